//! The interpreter: runs a verified procedure until it ends or meets a DB instruction that is not ready.
//!
//! The whole context of a transaction is a [`Context`] (program counter and comparison flag) and its register windows,
//! so an executor holds as many transactions in flight as it likes and changes between them by calling [`run`] with
//! another one. BionicDB (section 4.5) switched only at the end of the logic; here every RET that is not ready is a
//! switch.
//!
//! The database is behind [`Host`]: the interpreter knows nothing of indexes, locks or undo. DB instructions of one
//! transaction take effect in program order; a host that works ahead must keep to that.
//!
//! Invariant: nothing is checked at run time that the verifier has proved; addresses, registers and branch
//! targets are used as they are. That is why [`run`] is unsafe and takes a [`Program`], which only a
//! [`Verified`] procedure becomes.

use std::cmp::Ordering;

use crate::access::{Fragment, Operation};
use crate::block::abort;
use crate::isa::{Instruction, NO_LABEL, Opcode, SIGNED};
use crate::verified::Verified;

/// A DB instruction, as the host gets it.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// What to do.
    pub operation: Operation,
    /// Which of the procedure's tables.
    pub slot: u8,
    /// Which of the procedure's CP registers will be asked for the answer.
    pub cp: u8,
    /// The key image, in the block.
    pub key: *const u8,
    /// For a scan: where its rows go.
    pub buffer: *mut u8,
    /// For a scan: the most rows.
    pub limit: u32,
    /// For a scan: column plus one, or zero for whole rows.
    pub column: u8,
}

// SAFETY: addresses in a block that belongs to the transaction, whichever thread runs it.
unsafe impl Send for Request {}

/// The answer to a RET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Not known yet: switch to another transaction and ask again.
    Pending,
    /// A row's address, a number of rows, or zero, as the instruction has it.
    Ready(u64),
    /// There is no row, or, for INSERT, there is one. The code is for a RET without a label.
    Missing(u16),
    /// A conflict with another transaction: take everything back and begin again.
    Conflict,
    /// The transaction cannot go on for a reason of the system's; the code says which.
    Failed(u16),
}

/// What the interpreter needs of a database.
pub trait Host {
    /// What the host keeps in a CP register.
    type Cp: Copy;

    /// Whether [`Self::keep`] is to be called for every write, because what commits may be taken back too.
    const KEEPS_ALL: bool = false;

    /// Starts a DB instruction.
    fn issue(&mut self, cp: &mut Self::Cp, request: Request);

    /// As [`Self::issue`], for a host that cannot start every instruction at any time. `false`: nothing was started, or
    /// not all of it; the transaction waits here and comes again with the same request.
    #[inline(always)]
    fn try_issue(&mut self, cp: &mut Self::Cp, request: Request) -> bool {
        self.issue(cp, request);
        true
    }

    /// Asks for the answer of the DB instruction that was issued into `cp`. `cps` is the transaction's whole window,
    /// so that a host can move all of its instructions on together.
    fn answer(&mut self, cps: &mut [Self::Cp], cp: usize) -> Answer;

    /// Keeps the bytes of a row that are about to be written by an instruction after which an abort is still possible,
    /// or by any, see [`Self::KEEPS_ALL`].
    ///
    /// # Safety
    /// The row holds at least `offset + length` bytes and is held for writing.
    unsafe fn keep(&mut self, row: *mut u8, offset: u32, length: u32);
}

/// Where a transaction stands: everything but its registers.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// The next instruction.
    pub pc: u32,
    flag: Ordering,
}

impl Context {
    /// A transaction at the first instruction of `pc`'s section.
    #[must_use]
    #[inline(always)]
    pub const fn at(pc: u32) -> Self {
        Self { pc, flag: Ordering::Equal }
    }
}

impl Default for Context {
    /// At the first instruction of the logic.
    fn default() -> Self {
        Self::at(0)
    }
}

/// Why [`run`] came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// At a RET that is not ready, or a DB instruction that cannot be started yet; call again later.
    Waiting,
    /// At the COMMIT of the section.
    Committed,
    /// The procedure aborts with this code.
    Aborted(u16),
    /// The host met a conflict.
    Conflict,
    /// The host cannot go on, with this code.
    Failed(u16),
}

/// Executable form of a verified procedure.
#[derive(Clone, Debug)]
pub struct Program {
    code: Box<[Instruction]>,
    keep: Box<[bool]>,
    commit_handler: Option<u32>,
    abort_handler: Option<u32>,
    gp_registers: usize,
    cp_registers: usize,
}

impl Program {
    /// Prepares a verified procedure.
    #[must_use]
    pub fn new(verified: &Verified) -> Self {
        let procedure = verified.procedure();
        let handler = |at: u32| (procedure.code[at as usize].opcode != Opcode::Commit).then_some(at);
        Self {
            code: procedure.code.clone().into(),
            keep: verified.facts().iter().map(|facts| facts.needs_undo).collect(),
            commit_handler: handler(procedure.commit_handler),
            abort_handler: handler(procedure.abort_handler),
            gp_registers: verified.gp_registers(),
            cp_registers: verified.cp_registers(),
        }
    }

    /// Prepares one independent piece of a verified procedure: it writes without keeping
    /// old bytes, because a separable procedure cannot abort once its planner has let it go.
    #[must_use]
    pub fn of_fragment(fragment: &Fragment, verified: &Verified) -> Self {
        let keep = vec![false; fragment.code.len()].into();
        let gp_registers = verified.gp_registers();
        let code = fragment.code.clone().into();
        Self { code, keep, commit_handler: None, abort_handler: None, gp_registers, cp_registers: 1 }
    }

    /// GP registers of its window.
    #[must_use]
    #[inline]
    pub fn gp_registers(&self) -> usize {
        self.gp_registers
    }

    /// CP registers of its window.
    #[must_use]
    #[inline]
    pub fn cp_registers(&self) -> usize {
        self.cp_registers
    }

    /// Runs the commit handler, if the author wrote one.
    ///
    /// # Safety
    /// As [`run`].
    #[inline(always)]
    pub unsafe fn run_commit_handler(&self, registers: &mut [i64], block: *mut u8) {
        if let Some(at) = self.commit_handler {
            // SAFETY: as the caller's.
            unsafe { self.run_handler(at, registers, block) }
        }
    }

    /// Runs the abort handler, if the author wrote one.
    ///
    /// # Safety
    /// As [`run`].
    #[inline(always)]
    pub unsafe fn run_abort_handler(&self, registers: &mut [i64], block: *mut u8) {
        if let Some(at) = self.abort_handler {
            // SAFETY: as the caller's.
            unsafe { self.run_handler(at, registers, block) }
        }
    }

    #[cold]
    unsafe fn run_handler(&self, at: u32, registers: &mut [i64], block: *mut u8) {
        let mut context = Context::at(at);
        // A handler uses no CP register; a window of nothing takes no memory.
        let mut cps = vec![(); self.cp_registers];
        // SAFETY: as the caller's.
        let stop = unsafe { run(self, &mut context, registers, &mut cps, block, &mut NoHost) };
        assert_eq!(stop, Stop::Committed, "a verified handler ends with COMMIT");
    }
}

/// The host of a handler, which has no DB instruction.
struct NoHost;

impl Host for NoHost {
    type Cp = ();

    fn issue(&mut self, (): &mut (), _: Request) {
        unreachable!("a verified handler has no DB instruction");
    }

    fn answer(&mut self, _: &mut [()], _: usize) -> Answer {
        unreachable!("a verified handler has no RET");
    }

    unsafe fn keep(&mut self, _: *mut u8, _: u32, _: u32) {
        unreachable!("a verified handler writes no row");
    }
}

/// Runs `program` from `context` until it ends or has to wait, and leaves `context` where to go on.
///
/// # Safety
/// - `registers` and `cps` are at least [`Program::gp_registers`] and [`Program::cp_registers`] long, belong to this
///   transaction alone, and `registers[0]` is zero.
/// - `block` is a whole block of the procedure, at least its layout's `block_bytes` long, and this thread's alone.
/// - `host` answers [`Answer::Ready`] with addresses of rows of the table asked for, which stay readable (and, for
///   UPDATE and INSERT, this thread's alone to write) until the transaction ends.
#[inline]
pub unsafe fn run<H: Host>(
    program: &Program,
    context: &mut Context,
    registers: &mut [i64],
    cps: &mut [H::Cp],
    block: *mut u8,
    host: &mut H,
) -> Stop {
    assert!(registers.len() >= program.gp_registers && cps.len() >= program.cp_registers);
    let code = program.code.as_ptr();
    let gp = registers.as_mut_ptr();
    let mut pc = context.pc as usize;
    let mut flag = context.flag;
    // SAFETY: the verifier proved of every instruction that control reaches: the program counter stays in the code,
    // registers are in the window, block addresses inside the block, row addresses inside the row whose handle the
    // register holds, keys inside the block. The caller vouches for the pointers.
    unsafe {
        macro_rules! get {
            ($register:expr) => {
                *gp.add($register as usize)
            };
        }
        macro_rules! abort_with {
            ($code:expr) => {{
                context.pc = pc as u32;
                return Stop::Aborted($code);
            }};
        }
        macro_rules! arithmetic {
            ($i:ident, $method:ident, $right:expr) => {
                match get!($i.b).$method($right) {
                    Some(value) => get!($i.a) = value,
                    None => abort_with!(abort::OVERFLOW),
                }
            };
        }
        macro_rules! divide {
            ($i:ident, $right:expr) => {{
                let right = $right;
                if right == 0 {
                    abort_with!(abort::DIVISION_BY_ZERO);
                }
                arithmetic!($i, checked_div, right)
            }};
        }
        macro_rules! branch {
            ($i:ident, $condition:expr) => {
                if $condition {
                    pc = $i.x as usize;
                    continue;
                }
            };
        }
        macro_rules! at_block {
            ($offset:expr, $index:expr) => {
                block.offset($offset as isize + get!($index) as isize)
            };
        }
        macro_rules! at_row {
            ($handle:expr, $offset:expr, $index:expr) => {
                (get!($handle) as usize as *mut u8).offset($offset as isize + get!($index) as isize)
            };
        }
        macro_rules! keep_row {
            ($handle:expr, $offset:expr, $index:expr, $length:expr) => {
                if H::KEEPS_ALL || *program.keep.get_unchecked(pc) {
                    let offset = ($offset as i64 + get!($index)) as u32;
                    host.keep(get!($handle) as usize as *mut u8, offset, u32::from($length));
                }
            };
        }
        loop {
            let i = &*code.add(pc);
            match i.opcode {
                Opcode::Mov => get!(i.a) = get!(i.b),
                Opcode::Movi => get!(i.a) = i.immediate(),
                Opcode::Add => arithmetic!(i, checked_add, get!(i.c)),
                Opcode::Sub => arithmetic!(i, checked_sub, get!(i.c)),
                Opcode::Mul => arithmetic!(i, checked_mul, get!(i.c)),
                Opcode::Div => divide!(i, get!(i.c)),
                Opcode::Addi => arithmetic!(i, checked_add, i.immediate()),
                Opcode::Subi => arithmetic!(i, checked_sub, i.immediate()),
                Opcode::Muli => arithmetic!(i, checked_mul, i.immediate()),
                Opcode::Divi => divide!(i, i.immediate()),
                Opcode::Cmp => flag = get!(i.b).cmp(&get!(i.c)),
                Opcode::Cmpi => flag = get!(i.b).cmp(&i.immediate()),
                Opcode::Check => {
                    if !(0..i.immediate()).contains(&get!(i.b)) {
                        abort_with!(abort::OUT_OF_RANGE);
                    }
                }
                Opcode::Load => get!(i.a) = load(at_block!(i.x, i.c), i.w),
                Opcode::Store => {
                    if !store(at_block!(i.x, i.c), i.w, get!(i.a)) {
                        abort_with!(abort::VALUE_TOO_WIDE);
                    }
                }
                Opcode::Loadr => get!(i.a) = load(at_row!(i.b, i.x, i.c), i.w),
                Opcode::Storer => {
                    if !fits(i.w, get!(i.a)) {
                        abort_with!(abort::VALUE_TOO_WIDE);
                    }
                    keep_row!(i.b, i.x, i.c, i.w & !SIGNED);
                    store(at_row!(i.b, i.x, i.c), i.w, get!(i.a));
                }
                Opcode::CopyBb => at_block!(i.y, i.e).copy_to(at_block!(i.x, i.d), usize::from(i.w)),
                Opcode::CopyBr => copy_apart(at_row!(i.c, i.y, i.e), at_block!(i.x, i.d), i.w),
                Opcode::CopyRb => {
                    keep_row!(i.b, i.x, i.d, i.w);
                    copy_apart(at_block!(i.y, i.e), at_row!(i.b, i.x, i.d), i.w);
                }
                Opcode::CopyRr => {
                    keep_row!(i.b, i.x, i.d, i.w);
                    at_row!(i.c, i.y, i.e).copy_to(at_row!(i.b, i.x, i.d), usize::from(i.w));
                }
                Opcode::Jmp => branch!(i, true),
                Opcode::Be => branch!(i, flag.is_eq()),
                Opcode::Bne => branch!(i, flag.is_ne()),
                Opcode::Bl => branch!(i, flag.is_lt()),
                Opcode::Ble => branch!(i, flag.is_le()),
                Opcode::Bg => branch!(i, flag.is_gt()),
                Opcode::Bge => branch!(i, flag.is_ge()),
                Opcode::Search | Opcode::Update | Opcode::Insert | Opcode::Remove | Opcode::Scan => {
                    let mut request = Request {
                        operation: Operation::of(i.opcode),
                        slot: i.d,
                        cp: i.a,
                        key: at_block!(i.x, i.c),
                        buffer: std::ptr::null_mut(),
                        limit: 0,
                        column: i.e,
                    };
                    if i.opcode == Opcode::Scan {
                        request.buffer = block.add(i.y as usize);
                        request.limit = if i.b == 0 { u32::from(i.w) } else { get!(i.b) as u32 };
                    }
                    if !host.try_issue(cps.get_unchecked_mut(usize::from(i.a)), request) {
                        (context.pc, context.flag) = (pc as u32, flag);
                        return Stop::Waiting;
                    }
                }
                Opcode::Ret => match host.answer(cps, usize::from(i.b)) {
                    Answer::Ready(value) => {
                        if i.a != 0 {
                            get!(i.a) = value as i64;
                        }
                    }
                    Answer::Pending => {
                        (context.pc, context.flag) = (pc as u32, flag);
                        return Stop::Waiting;
                    }
                    Answer::Missing(_) if i.x != NO_LABEL => branch!(i, true),
                    Answer::Missing(code) => abort_with!(code),
                    Answer::Conflict => return Stop::Conflict,
                    Answer::Failed(code) => return Stop::Failed(code),
                },
                Opcode::Commit => return Stop::Committed,
                Opcode::Abort => abort_with!(i.w),
            }
            pc += 1;
        }
    }
}

/// Whether `value` can be stored in a field of width and sign `w`.
#[inline(always)]
fn fits(w: u16, value: i64) -> bool {
    match w {
        1 => u8::try_from(value).is_ok(),
        2 => u16::try_from(value).is_ok(),
        4 => u32::try_from(value).is_ok(),
        8 => true,
        _ => match w & !SIGNED {
            1 => i8::try_from(value).is_ok(),
            2 => i16::try_from(value).is_ok(),
            _ => i32::try_from(value).is_ok(),
        },
    }
}

/// Reads an integer of width and sign `w`.
///
/// # Safety
/// The bytes at `address` are readable.
#[inline(always)]
unsafe fn load(address: *const u8, w: u16) -> i64 {
    // SAFETY: as the caller's.
    unsafe {
        match w {
            8 => i64::from_le(address.cast::<i64>().read_unaligned()),
            4 => i64::from(u32::from_le(address.cast::<u32>().read_unaligned())),
            2 => i64::from(u16::from_le(address.cast::<u16>().read_unaligned())),
            1 => i64::from(*address),
            _ => match w & !SIGNED {
                1 => i64::from(*address as i8),
                2 => i64::from(i16::from_le(address.cast::<i16>().read_unaligned())),
                _ => i64::from(i32::from_le(address.cast::<i32>().read_unaligned())),
            },
        }
    }
}

/// Writes an integer of width and sign `w`; `false`, and nothing written, when the value does not fit.
///
/// # Safety
/// The bytes at `address` are writable.
#[inline(always)]
unsafe fn store(address: *mut u8, w: u16, value: i64) -> bool {
    if !fits(w, value) {
        return false;
    }
    // SAFETY: as the caller's.
    unsafe {
        match w & !SIGNED {
            1 => *address = value as u8,
            2 => address.cast::<u16>().write_unaligned((value as u16).to_le()),
            4 => address.cast::<u32>().write_unaligned((value as u32).to_le()),
            _ => address.cast::<u64>().write_unaligned((value as u64).to_le()),
        }
    }
    true
}

/// Copies `length` bytes between memory that cannot overlap (a block and a row). A whole line, by far the most
/// common length, is copied without a call.
///
/// # Safety
/// `length` bytes are readable at `source` and writable at `target`, and the two do not overlap.
#[inline(always)]
unsafe fn copy_apart(source: *const u8, target: *mut u8, length: u16) {
    // SAFETY: as the caller's.
    unsafe {
        if length == 64 {
            target.cast::<[u8; 64]>().write_unaligned(source.cast::<[u8; 64]>().read_unaligned());
        } else {
            source.copy_to_nonoverlapping(target, usize::from(length));
        }
    }
}
