//! What one instruction reads and writes, and where control goes after it.
//!
//! Every analysis of this module folder asks these questions; they are answered once, here, from the table in
//! [`crate::isa`]. `r0` is never written and always clean, so it may appear among the registers used.

use crate::isa::{Instruction, NO_LABEL, Opcode, SIGNED};

/// The GP registers that an instruction reads; unused places are `r0`.
pub(super) fn used(i: &Instruction) -> [u8; 4] {
    match i.opcode {
        Opcode::Mov => [i.b, 0, 0, 0],
        Opcode::Add | Opcode::Sub | Opcode::Mul | Opcode::Div | Opcode::Cmp => [i.b, i.c, 0, 0],
        Opcode::Addi | Opcode::Subi | Opcode::Muli | Opcode::Divi | Opcode::Cmpi | Opcode::Check => [i.b, 0, 0, 0],
        Opcode::Load => [i.c, 0, 0, 0],
        Opcode::Store => [i.a, i.c, 0, 0],
        Opcode::Loadr => [i.b, i.c, 0, 0],
        Opcode::Storer => [i.a, i.b, i.c, 0],
        Opcode::CopyBb => [i.d, i.e, 0, 0],
        Opcode::CopyBr => [i.c, i.d, i.e, 0],
        Opcode::CopyRb => [i.b, i.d, i.e, 0],
        Opcode::CopyRr => [i.b, i.c, i.d, i.e],
        Opcode::Search | Opcode::Update | Opcode::Insert | Opcode::Remove => [i.c, 0, 0, 0],
        Opcode::Scan => [i.b, i.c, 0, 0],
        _ => [0; 4],
    }
}

/// The GP register that an instruction writes.
pub(super) fn defined(i: &Instruction) -> Option<u8> {
    let writes = matches!(
        i.opcode,
        Opcode::Mov
            | Opcode::Movi
            | Opcode::Add
            | Opcode::Sub
            | Opcode::Mul
            | Opcode::Div
            | Opcode::Addi
            | Opcode::Subi
            | Opcode::Muli
            | Opcode::Divi
            | Opcode::Load
            | Opcode::Loadr
            | Opcode::Ret
    );
    (writes && i.a != 0).then_some(i.a)
}

/// Whether it sets the comparison flag.
pub(super) fn sets_flag(i: &Instruction) -> bool {
    matches!(i.opcode, Opcode::Cmp | Opcode::Cmpi)
}

/// A piece of a row that an instruction touches.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowPiece {
    /// The GP register that holds the row.
    pub(super) handle: u8,
    pub(super) offset: u32,
    /// The GP register that is added to the offset.
    pub(super) index: u8,
    /// In bytes.
    pub(super) length: u32,
    pub(super) write: bool,
}

/// The pieces of rows that an instruction reads or writes.
pub(super) fn row_pieces(i: &Instruction) -> [Option<RowPiece>; 2] {
    let value = u32::from(i.w & !SIGNED);
    let read = |handle, offset, index, length| Some(RowPiece { handle, offset, index, length, write: false });
    let write = |handle, offset, index, length| Some(RowPiece { handle, offset, index, length, write: true });
    match i.opcode {
        Opcode::Loadr => [read(i.b, i.x, i.c, value), None],
        Opcode::Storer => [write(i.b, i.x, i.c, value), None],
        Opcode::CopyBr => [read(i.c, i.y, i.e, i.w.into()), None],
        Opcode::CopyRb => [write(i.b, i.x, i.d, i.w.into()), None],
        Opcode::CopyRr => [read(i.c, i.y, i.e, i.w.into()), write(i.b, i.x, i.d, i.w.into())],
        _ => [None, None],
    }
}

/// Where control can go: the next instruction, and the branch target.
pub(super) fn successors(pc: u32, i: &Instruction) -> [Option<u32>; 2] {
    match i.opcode {
        Opcode::Commit | Opcode::Abort => [None, None],
        Opcode::Jmp => [None, Some(i.x)],
        Opcode::Ret if i.x != NO_LABEL => [Some(pc + 1), Some(i.x)],
        _ if i.opcode.is_branch() => [Some(pc + 1), Some(i.x)],
        _ => [Some(pc + 1), None],
    }
}

/// Whether an instruction decides where control goes: a conditional branch, or a RET with a label.
pub(super) fn decides(i: &Instruction) -> bool {
    i.opcode.is_branch() || i.opcode == Opcode::Ret && i.x != NO_LABEL
}

/// The logic that control can reach, and, of that, what can still reach a DB instruction.
pub(super) struct Graph<'a> {
    pub(super) code: &'a [Instruction],
    /// Control can come here.
    pub(super) reachable: Vec<bool>,
    /// Reachable, and a DB instruction is here or may follow.
    pub(super) live: Vec<bool>,
}

impl<'a> Graph<'a> {
    pub(super) fn new(code: &'a [Instruction]) -> Self {
        let mut reachable = vec![false; code.len()];
        let mut predecessors = vec![Vec::new(); code.len()];
        let mut work = vec![0];
        reachable[0] = true;
        while let Some(pc) = work.pop() {
            for next in successors(pc, &code[pc as usize]).into_iter().flatten() {
                predecessors[next as usize].push(pc);
                if !std::mem::replace(&mut reachable[next as usize], true) {
                    work.push(next);
                }
            }
        }
        let mut live: Vec<bool> = code.iter().zip(&reachable).map(|(i, &reach)| reach && i.opcode.is_db()).collect();
        work.extend((0..code.len() as u32).filter(|&pc| live[pc as usize]));
        while let Some(pc) = work.pop() {
            for &before in &predecessors[pc as usize] {
                if !std::mem::replace(&mut live[before as usize], true) {
                    work.push(before);
                }
            }
        }
        Self { code, reachable, live }
    }

    /// Successors from which a DB instruction can still be reached.
    pub(super) fn live_successors(&self, pc: u32) -> impl Iterator<Item = u32> + '_ {
        successors(pc, &self.code[pc as usize]).into_iter().flatten().filter(|&next| self.live[next as usize])
    }

    /// For every live instruction, the next one that lies on all ways from it to the next DB instruction; `None` where
    /// only the DB instructions themselves would be (different ones on different ways), and for a DB instruction.
    ///
    /// These are the immediate post-dominators of the live graph with every DB instruction an exit, by the iteration
    /// of Cooper, Harvey and Kennedy ("A Simple, Fast Dominance Algorithm", 2001). Ways that leave the live
    /// graph touch nothing any more, so they need not be met.
    pub(super) fn joins(&self) -> Vec<Option<u32>> {
        let exit = self.code.len();
        let next = |pc: usize| -> Vec<usize> {
            if self.code[pc].opcode.is_db() {
                return vec![exit];
            }
            self.live_successors(pc as u32).map(|next| next as usize).collect()
        };
        let mut reverse = vec![Vec::new(); exit + 1];
        for pc in (0..exit).filter(|&pc| self.live[pc]) {
            for to in next(pc) {
                reverse[to].push(pc);
            }
        }
        let order = postorder(&reverse, exit);
        let mut number = vec![usize::MAX; exit + 1];
        for (position, &node) in order.iter().enumerate() {
            number[node] = position;
        }
        let mut join = vec![usize::MAX; exit + 1];
        join[exit] = exit;
        let mut changed = true;
        while changed {
            changed = false;
            for &pc in order.iter().rev().filter(|&&node| node != exit) {
                let mut met = usize::MAX;
                for to in next(pc).into_iter().filter(|&to| join[to] != usize::MAX) {
                    met = if met == usize::MAX { to } else { intersect(&join, &number, met, to) };
                }
                if join[pc] != met {
                    join[pc] = met;
                    changed = true;
                }
            }
        }
        (0..exit).map(|pc| u32::try_from(join[pc]).ok().filter(|&to| (to as usize) < exit)).collect()
    }
}

fn intersect(join: &[usize], number: &[usize], mut a: usize, mut b: usize) -> usize {
    while a != b {
        while number[a] < number[b] {
            a = join[a];
        }
        while number[b] < number[a] {
            b = join[b];
        }
    }
    a
}

fn postorder(edges: &[Vec<usize>], root: usize) -> Vec<usize> {
    let mut seen = vec![false; edges.len()];
    let mut order = Vec::new();
    let mut stack = vec![(root, 0)];
    seen[root] = true;
    while let Some((node, place)) = stack.last_mut() {
        if let Some(&to) = edges[*node].get(*place) {
            *place += 1;
            if !std::mem::replace(&mut seen[to], true) {
                stack.push((to, 0));
            }
        } else {
            order.push(*node);
            stack.pop();
        }
    }
    order
}
