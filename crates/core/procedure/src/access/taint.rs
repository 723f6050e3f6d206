//! What depends on values read from the database, and whether a DB instruction does.
//!
//! A value is *tainted* when it comes from a row, from the answer of a DB instruction, from a block byte that may hold
//! such a value, or when a decision on such a value chose it. Registers and the comparison flag are followed
//! from instruction to instruction; bytes of the block are tainted for the whole procedure or not at all.
//!
//! A decision on a tainted value need not make a procedure dependent:
//!
//! - **Skipped.** All ways from it come together again before the next DB instruction. What lies between is left out of
//!   the slice, and what it assigns is tainted (the immediate post-dominator, and control dependence as in
//!   Ferrante, Ottenstein and Warren, 1987).
//! - **Forced.** Only one side can reach a DB instruction (the other ends, or aborts: a balance that is too low). The
//!   slice takes that side, which names a superset.
//! - Otherwise the accesses themselves differ, and the procedure is dependent. So it is when a loop would end only by
//!   such a decision, because then the slice would not.
//!
//! Invariant: every execution that follows the slice has the slice's values in all registers and block bytes that
//! are not tainted, at every instruction that is not skipped.

use std::fmt;

use super::flow::{self, Graph};
use super::ranges::{BlockUse, Span};
use crate::block::HEADER_BYTES;
use crate::isa::Opcode;
use crate::key::{Key, KeyFormat};
use crate::verified::Verified;

/// Steps that the analysis may take before it gives up: far more than any sensible procedure needs.
const MAX_STEPS: usize = 20_000_000;

/// Why a procedure is dependent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The key is computed from a value read from the database.
    Key,
    /// Whether the instruction runs is decided by a value read from the database.
    Control {
        /// The branch, or the RET with a label, that decides.
        branch: u32,
    },
    /// How often it runs is decided by a value read from the database.
    Loop {
        /// The branch, or the RET with a label, that ends the loop or goes on.
        branch: u32,
    },
    /// The procedure is too large and entangled to be analysed at registration.
    TooComplex,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key => write!(f, "its key is computed from a value read from the database"),
            Self::Control { branch } => {
                write!(f, "whether it runs is decided at instruction {branch} by a value read from the database")
            }
            Self::Loop { branch } => {
                write!(f, "how often it runs is decided at instruction {branch} by a value read from the database")
            }
            Self::TooComplex => write!(f, "the procedure is too large and entangled to be analysed"),
        }
    }
}

/// A procedure whose access set is not known without the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dependence {
    /// The first DB instruction that is not known from the arguments.
    pub pc: u32,
    /// Why.
    pub reason: Reason,
}

/// What the slice does at a decision on a tainted value: goes to this instruction.
type Detour = Option<u32>;

/// The result: what the slice can execute.
pub(super) struct Analysis<'a> {
    pub(super) graph: Graph<'a>,
    pub(super) joins: Vec<Option<u32>>,
    /// Computes only from arguments, and is not skipped.
    pub(super) clean: Vec<bool>,
    /// Where the slice goes on instead of deciding.
    pub(super) detours: Vec<Detour>,
    /// How many leading bytes of each DB instruction's key, in normal form, are known.
    pub(super) known: Vec<u8>,
}

/// Registers, and as number 256 the flag.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Taints([u64; 5]);

const FLAG: usize = 256;

impl Taints {
    fn has(&self, place: usize) -> bool {
        self.0[place / 64] >> (place % 64) & 1 == 1
    }

    fn set(&mut self, place: usize, tainted: bool) {
        let bit = 1 << (place % 64);
        if tainted {
            self.0[place / 64] |= bit;
        } else {
            self.0[place / 64] &= !bit;
        }
    }

    fn join(&mut self, other: &Self) -> bool {
        let before = *self;
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word |= other);
        *self != before
    }
}

/// Bytes of the block.
struct ByteSet(Vec<bool>);

impl ByteSet {
    fn meets(&self, span: &Option<Span>) -> bool {
        let bytes = |span: &Span| span.start as usize..span.end as usize;
        span.as_ref().is_some_and(|span| self.0[bytes(span)].contains(&true))
    }

    /// Whether a byte is new.
    fn insert(&mut self, span: &Option<Span>) -> bool {
        let Some(span) = span else { return false };
        let bytes = &mut self.0[span.start as usize..span.end as usize];
        let grown = bytes.contains(&false);
        bytes.fill(true);
        grown
    }
}

struct Tainting<'a> {
    graph: Graph<'a>,
    ranges: &'a [BlockUse],
    joins: Vec<Option<u32>>,
    states: Vec<Option<Taints>>,
    block: ByteSet,
    /// Skipped by some decision.
    skipped: Vec<bool>,
    /// Decisions whose skipped part is marked already.
    marked: Vec<bool>,
    budget: usize,
}

/// What the analysis gives up with.
struct Exhausted;

/// Which keys the slice has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// All of every key.
    Keys,
    /// At least the first column of every key; no scans, whose end is known of no prefix.
    Prefixes,
}

/// Finds what the slice can execute.
///
/// # Errors
/// The first DB instruction whose key (or first column) or execution is not known from the arguments.
pub(super) fn analyse<'a>(
    verified: &'a Verified,
    ranges: &'a [BlockUse],
    wanted: Wanted,
) -> Result<Analysis<'a>, Dependence> {
    let code = &verified.procedure.code;
    let graph = Graph::new(code);
    let joins = graph.joins();
    // What the system writes into the header is not the client's to know.
    let mut header = ByteSet(vec![false; verified.procedure.layout().block_bytes.max(HEADER_BYTES) as usize]);
    header.insert(&Some(0..HEADER_BYTES));
    let count = code.len();
    let mut tainting = Tainting {
        graph,
        ranges,
        joins,
        states: vec![None; count],
        block: header,
        skipped: vec![false; count],
        marked: vec![false; count],
        budget: MAX_STEPS,
    };
    let first_db = code.iter().position(|i| i.opcode.is_db()).unwrap_or(0) as u32;
    match tainting.iterate() {
        Ok(()) => tainting.conclude(verified, wanted),
        Err(Exhausted) => Err(Dependence { pc: first_db, reason: Reason::TooComplex }),
    }
}

impl<'a> Tainting<'a> {
    fn spend(&mut self, steps: usize) -> Result<(), Exhausted> {
        self.budget = self.budget.checked_sub(steps).ok_or(Exhausted)?;
        Ok(())
    }

    /// Until nothing grows: registers along the graph, tainted bytes of the block, skipped parts.
    fn iterate(&mut self) -> Result<(), Exhausted> {
        loop {
            self.flow_registers()?;
            let grown = self.taint_block()? | self.skip_parts()?;
            if !grown {
                return Ok(());
            }
        }
    }

    fn flow_registers(&mut self) -> Result<(), Exhausted> {
        let code = self.graph.code;
        self.states.fill(None);
        self.states[0] = Some(Taints::default());
        let mut work = std::collections::BTreeSet::from([0_u32]);
        while let Some(pc) = work.pop_first() {
            let i = &code[pc as usize];
            let length = self.ranges[pc as usize].read.as_ref().map_or(0, ExactSizeIterator::len);
            self.spend(1 + length / 64)?;
            let mut state = self.states[pc as usize].unwrap_or_default();
            let tainted = self.taints(pc);
            if let Some(register) = flow::defined(i) {
                state.set(usize::from(register), tainted);
            }
            if flow::sets_flag(i) {
                state.set(FLAG, tainted);
            }
            for next in flow::successors(pc, i).into_iter().flatten() {
                let grown = match &mut self.states[next as usize] {
                    Some(known) => known.join(&state),
                    unknown => {
                        *unknown = Some(state);
                        true
                    }
                };
                if grown {
                    work.insert(next);
                }
            }
        }
        Ok(())
    }

    /// Whether a register that the instruction reads is tainted.
    fn uses_tainted(&self, pc: u32) -> bool {
        let Some(state) = &self.states[pc as usize] else { return false };
        let i = &self.graph.code[pc as usize];
        if i.opcode == Opcode::Scan {
            // How many rows a scan may read changes nothing about its first key.
            return state.has(i.c.into());
        }
        flow::used(i).into_iter().any(|register| state.has(register.into())) || i.opcode.is_branch() && state.has(FLAG)
    }

    /// Whether what the instruction computes or decides is tainted.
    fn taints(&self, pc: u32) -> bool {
        let i = &self.graph.code[pc as usize];
        let from_database = matches!(i.opcode, Opcode::Loadr | Opcode::CopyBr | Opcode::Ret | Opcode::Scan);
        from_database
            || self.skipped[pc as usize]
            || self.uses_tainted(pc)
            || self.block.meets(&self.ranges[pc as usize].read)
    }

    fn taint_block(&mut self) -> Result<bool, Exhausted> {
        let mut grown = false;
        for pc in 0..self.graph.code.len() as u32 {
            let write = &self.ranges[pc as usize].write;
            if self.states[pc as usize].is_none() || write.is_none() || !self.taints(pc) {
                continue;
            }
            grown |= self.block.insert(write);
            let length = write.as_ref().map_or(0, ExactSizeIterator::len);
            self.spend(1 + length / 64)?;
        }
        Ok(grown)
    }

    fn is_tainted_decision(&self, pc: u32) -> bool {
        let i = &self.graph.code[pc as usize];
        let known = self.states[pc as usize].is_some() && self.graph.live[pc as usize];
        known && flow::decides(i) && self.taints(pc)
    }

    /// Marks what lies between a tainted decision and the place where its ways come together.
    fn skip_parts(&mut self) -> Result<bool, Exhausted> {
        let mut grown = false;
        for pc in 0..self.graph.code.len() as u32 {
            let Some(join) = self.joins[pc as usize] else { continue };
            let sides = self.graph.live_successors(pc).count();
            if sides < 2 || self.marked[pc as usize] || !self.is_tainted_decision(pc) {
                continue;
            }
            self.marked[pc as usize] = true;
            grown = true;
            let mut seen = std::collections::HashSet::new();
            let mut work = vec![pc];
            while let Some(at) = work.pop() {
                self.spend(4)?;
                for next in self.graph.live_successors(at).filter(|&next| next != join) {
                    if seen.insert(next) {
                        self.skipped[next as usize] = true;
                        work.push(next);
                    }
                }
            }
        }
        Ok(grown)
    }

    /// Where the slice goes at each tainted decision, and whether it knows all keys.
    fn conclude(self, verified: &Verified, wanted: Wanted) -> Result<Analysis<'a>, Dependence> {
        let count = self.graph.code.len() as u32;
        let mut detours = vec![None; count as usize];
        let mut known = vec![Key::BYTES; count as usize];
        let mut dependence: Option<Dependence> = None;
        let mut note = |pc: u32, reason: Reason| {
            if dependence.is_none_or(|first| pc < first.pc) {
                dependence = Some(Dependence { pc, reason });
            }
        };
        for pc in 0..count {
            let i = &self.graph.code[pc as usize];
            if i.opcode.is_db() && self.states[pc as usize].is_some() {
                let read = &self.ranges[pc as usize].read;
                if self.uses_tainted(pc) || self.block.meets(read) {
                    known[pc as usize] = self.known_bytes(pc, &verified.tables[usize::from(i.d)].key);
                    if wanted == Wanted::Keys || known[pc as usize] == 0 || i.opcode == Opcode::Scan {
                        note(pc, Reason::Key);
                    }
                }
            }
            if !self.is_tainted_decision(pc) {
                continue;
            }
            let mut sides = self.graph.live_successors(pc);
            let (first, second) = (sides.next(), sides.next());
            detours[pc as usize] = match (first, second, self.joins[pc as usize]) {
                (Some(only), None, _) if only > pc => Some(only),
                (Some(only), None, _) => {
                    note(self.next_db(only), Reason::Loop { branch: pc });
                    None
                }
                (Some(_), Some(_), Some(join)) => Some(join),
                (Some(first), ..) => {
                    note(self.next_db(first), Reason::Control { branch: pc });
                    None
                }
                (None, ..) => None,
            };
        }
        match dependence {
            Some(dependence) => return Err(dependence),
            None => self.check_that_it_ends(&detours)?,
        }
        let clean = (0..count)
            .map(|pc| self.states[pc as usize].is_some() && !self.skipped[pc as usize] && !self.taints(pc))
            .collect();
        Ok(Analysis { graph: self.graph, joins: self.joins, clean, detours, known })
    }

    /// How many leading bytes of the key of a DB instruction are known; none if it is not known where the key lies.
    fn known_bytes(&self, pc: u32, format: &KeyFormat) -> u8 {
        let i = &self.graph.code[pc as usize];
        if i.c != 0 {
            return 0;
        }
        format.leading_bytes(|column| !self.block.meets(&Some(i.x + column.start..i.x + column.end)))
    }

    /// A DB instruction that may be the next from here.
    fn next_db(&self, from: u32) -> u32 {
        let mut seen = std::collections::BTreeSet::from([from]);
        let mut work = vec![from];
        let mut found = u32::MAX;
        while let Some(pc) = work.pop() {
            if self.graph.code[pc as usize].opcode.is_db() {
                found = found.min(pc);
                continue;
            }
            work.extend(self.graph.live_successors(pc).filter(|&next| seen.insert(next)));
        }
        found.min(self.graph.code.len() as u32 - 1)
    }

    /// Refuses a slice that could go round for ever because its detours took the only way out.
    fn check_that_it_ends(&self, detours: &[Detour]) -> Result<(), Dependence> {
        let count = self.graph.code.len();
        let next = |pc: usize| -> Vec<u32> {
            match detours[pc] {
                Some(detour) => vec![detour],
                None => flow::successors(pc as u32, &self.graph.code[pc]).into_iter().flatten().collect(),
            }
        };
        let mut reverse = vec![Vec::new(); count];
        let mut ends = vec![false; count];
        let mut work = Vec::new();
        for pc in (0..count).filter(|&pc| self.graph.reachable[pc]) {
            if self.graph.live[pc] {
                next(pc).into_iter().for_each(|to| reverse[to as usize].push(pc));
            } else {
                ends[pc] = true;
                work.push(pc);
            }
        }
        while let Some(pc) = work.pop() {
            for &before in &reverse[pc] {
                if !std::mem::replace(&mut ends[before], true) {
                    work.push(before);
                }
            }
        }
        let branch = (0..count).find(|&pc| detours[pc].is_some() && !ends[pc]);
        match branch {
            None => Ok(()),
            Some(branch) => {
                let branch = branch as u32;
                Err(Dependence { pc: self.next_db(branch), reason: Reason::Loop { branch } })
            }
        }
    }
}
