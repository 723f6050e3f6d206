//! What happens inside the simulated processor: what its softcores do, and every decision of admission.
//!
//! The design tells it by modules that are bound to a model only when somebody wants to know (`hardware/rtl/trace`), in
//! notes whose words are read here. Tests compare it with golden models.

use std::sync::{Arc, Mutex, PoisonError};

use lockwork_verilated::Note;

/// The modules that tell.
pub(crate) const MODULES: [&str; 2] = ["lw_softcore_trace", "lw_admission_trace"];

/// Where the answer to a DB instruction goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Return {
    /// Worker of the transaction.
    pub worker: u8,
    /// Its context.
    pub context: u8,
    /// Its physical CP register.
    pub cp: u8,
}

/// What a DB instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Reads a row.
    Search,
    /// Writes a row.
    Update,
    /// Makes a row.
    Insert,
    /// Takes a row away.
    Remove,
    /// Reads rows in the order of their keys.
    Scan,
}

/// How a DB instruction was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Address of the row, or number of rows of a scan.
    Ready(u64),
    /// No row, or one for an insert; the abort code.
    Missing(u16),
    /// Begin again.
    Conflict,
    /// Abort code.
    Failed(u16),
}

/// What becomes of a request at admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on.
    Granted,
    /// It is parked.
    Waits,
    /// It is a conflict.
    Late,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A transaction begins, or begins again.
    Begin {
        /// Its context.
        context: u8,
        /// Its block, if it begins for the first time.
        block: Option<u64>,
        /// The first register of its window, if it begins for the first time.
        gp_base: u8,
        /// The bytes of its block, as many as were asked for.
        bytes: Vec<u8>,
    },
    /// A register is written.
    Write {
        /// Whose.
        context: u8,
        /// Physical register.
        gp: u8,
        /// Which of its bytes: a load from two words comes in two parts.
        bytes: u8,
        /// Its value.
        value: u64,
    },
    /// The softcore issues a DB instruction.
    Issue {
        /// Time of its transaction.
        stamp: u32,
        /// Where its answer goes.
        to: Return,
        /// What it does.
        op: Op,
        /// On which table.
        table: u8,
        /// Where its key image lies.
        key_address: u64,
        /// The most rows of a scan.
        limit: u16,
    },
    /// The softcore gets an answer.
    Answer {
        /// Where it goes.
        to: Return,
        /// What was asked for.
        op: Op,
        /// The answer.
        found: Found,
        /// A grant comes with it: worker and number of the decision word.
        granted: Option<(u8, u16)>,
    },
    /// A block is completed.
    Done {
        /// Its address.
        block: u64,
        /// Its last time.
        stamp: u32,
        /// Status.
        status: u8,
        /// Code.
        code: u16,
        /// The bytes of the block, as many as were asked for.
        bytes: Vec<u8>,
    },
    /// Admission decides on a request, by its decision word if it is `judged`.
    Request {
        /// Time of the transaction.
        stamp: u32,
        /// Where the answer goes.
        to: Return,
        /// What it does.
        op: Op,
        /// On which table.
        table: u8,
        /// With which key, in normal form.
        key: [u64; 4],
        /// The decision word.
        entry: u16,
        /// It was parked before.
        again: bool,
        /// The word decides; it does not of scans and replicated tables.
        judged: bool,
        /// Parked unjudged, to keep its place.
        round: bool,
        /// What was decided.
        verdict: Verdict,
    },
    /// A grant is let go.
    Release {
        /// Time of the transaction.
        stamp: u32,
        /// The decision word.
        entry: u16,
    },
    /// A scanner asks for a row.
    RowAsked {
        /// Time of the transaction.
        stamp: u32,
        /// On which table.
        table: u8,
        /// Hash of the row's key.
        hash: u32,
    },
    /// Admission decides on the oldest row that was asked for.
    Row {
        /// Time of the transaction.
        stamp: u32,
        /// The decision word.
        entry: u16,
        /// What was decided.
        verdict: Verdict,
    },
    /// All decision words are forgotten.
    Clear,
}

/// An event of a worker: where it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// In which cycle.
    pub cycle: u64,
    /// On which worker.
    pub worker: u8,
    /// What.
    pub event: Event,
}

/// Records of a simulation, for as many as hold one of its clones.
#[derive(Clone, Debug, Default)]
pub struct Trace(Arc<Mutex<Vec<Record>>>);

impl Trace {
    /// All records since the last call, in the order of cycles.
    #[must_use]
    pub fn take(&self) -> Vec<Record> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn add(&self, records: &mut Vec<Record>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).append(records);
    }
}

fn long(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

const fn to(word: u32) -> Return {
    Return { worker: (word >> 14) as u8 & 0xF, context: (word >> 8) as u8 & 0x3F, cp: word as u8 }
}

const fn op(word: u32) -> Op {
    match word & 7 {
        0 => Op::Search,
        1 => Op::Update,
        2 => Op::Insert,
        3 => Op::Remove,
        _ => Op::Scan,
    }
}

impl Record {
    /// What a note says; nothing, if it is none of the kinds that are known.
    pub(crate) fn of(cycle: u64, note: &Note) -> Option<Self> {
        let &[kind, worker, ref w @ ..] = note;
        let event = match kind {
            1 => {
                let block = long(w[1], w[2] & 0xFF);
                let (context, gp_base) = (w[0] as u8, (w[2] >> 8) as u8);
                let block = (block != 0).then_some(block);
                Event::Begin { context, block, gp_base, bytes: Vec::new() }
            }
            2 => {
                let (context, gp, bytes) = (w[0] as u8, w[1] as u8, (w[1] >> 8) as u8);
                Event::Write { context, gp, bytes, value: long(w[2], w[3]) }
            }
            3 => {
                let (key_address, limit) = (long(w[4], w[5] & 0xFF), (w[5] >> 8) as u16);
                Event::Issue { stamp: w[0], to: to(w[1]), op: op(w[2]), table: w[3] as u8, key_address, limit }
            }
            4 => {
                let value = long(w[6], w[7]);
                let found = match w[2] {
                    0 => Found::Ready(value),
                    1 => Found::Missing(value as u16),
                    2 => Found::Conflict,
                    _ => Found::Failed(value as u16),
                };
                let granted = (w[3] == 1).then_some((w[4] as u8, w[5] as u16));
                Event::Answer { to: to(w[0]), op: op(w[1]), found, granted }
            }
            5 => {
                let (status, code) = (w[1] as u8, w[2] as u16);
                Event::Done { block: long(w[3], w[4]), stamp: w[0], status, code, bytes: Vec::new() }
            }
            6 => decision(w),
            7 => Event::RowAsked { stamp: w[0], table: w[1] as u8, hash: w[2] },
            8 => Event::Clear,
            _ => return None,
        };
        Some(Self { cycle, worker: worker as u8, event })
    }
}

/// What admission decided, from the words of its note.
fn decision(w: &[u32]) -> Event {
    let bit = |at: u32| w[0] >> at & 1 == 1;
    let (stamp, entry) = (w[1], (w[2] & 0x3FFF) as u16);
    let key = std::array::from_fn(|word| long(w[4 + 2 * word], w[5 + 2 * word]));
    match w[0] & 3 {
        0 => Event::Release { stamp, entry },
        3 => {
            let verdict = [Verdict::Granted, Verdict::Waits, Verdict::Late][(w[0] >> 5 & 3).min(2) as usize];
            Event::Row { stamp, entry, verdict }
        }
        class => {
            let verdict = match (bit(9), bit(8)) {
                (true, _) => Verdict::Granted,
                (_, true) => Verdict::Waits,
                _ => Verdict::Late,
            };
            let (again, judged, round) = (class == 2, bit(11), bit(10));
            let table = (w[2] >> 14) as u8;
            Event::Request { stamp, to: to(w[3]), op: op(w[0] >> 2), table, key, entry, again, judged, round, verdict }
        }
    }
}
