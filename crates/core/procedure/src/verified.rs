//! A procedure that the verifier has accepted, with the facts it proved.
//!
//! Engines rely on these facts and check nothing again. Only [`crate::verify`] makes a [`Verified`].

use std::sync::Arc;

use crate::key::KeyFormat;
use crate::program::Procedure;
use crate::schema::TableSchema;

/// A table that a procedure uses, by slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableUse {
    /// The number that the engine knows the table by.
    pub id: u16,
    /// Its schema.
    pub schema: Arc<TableSchema>,
    /// How its key images are normalised.
    pub key: KeyFormat,
}

/// A loop, with the proof that it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loop {
    /// Its first instruction.
    pub head: u32,
    /// The conditional branch back to the head.
    pub back: u32,
    /// The most times the body can run.
    pub bound: u64,
}

/// What was proved of one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Facts {
    /// Control can reach it.
    pub reachable: bool,
    /// It may abort the transaction by itself (overflow, CHECK, a RET without a label, a value too wide).
    pub may_abort: bool,
    /// It writes a row, and an abort may still follow: the old bytes must be kept.
    pub needs_undo: bool,
}

/// A verified procedure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    pub(crate) procedure: Procedure,
    pub(crate) tables: Vec<TableUse>,
    pub(crate) gp_registers: usize,
    pub(crate) cp_registers: usize,
    pub(crate) facts: Vec<Facts>,
    pub(crate) loops: Vec<Loop>,
    pub(crate) step_bound: u64,
}

impl Verified {
    /// The procedure itself.
    #[must_use]
    pub fn procedure(&self) -> &Procedure {
        &self.procedure
    }

    /// Its tables, by slot.
    #[must_use]
    pub fn tables(&self) -> &[TableUse] {
        &self.tables
    }

    /// How many GP registers its window has: the highest one it uses, plus one.
    #[must_use]
    pub fn gp_registers(&self) -> usize {
        self.gp_registers
    }

    /// How many CP registers its window has.
    #[must_use]
    pub fn cp_registers(&self) -> usize {
        self.cp_registers
    }

    /// What was proved of each instruction.
    #[must_use]
    pub fn facts(&self) -> &[Facts] {
        &self.facts
    }

    /// Its loops, by head.
    #[must_use]
    pub fn loops(&self) -> &[Loop] {
        &self.loops
    }

    /// The most instructions one execution can take, handlers included (saturating).
    #[must_use]
    pub fn step_bound(&self) -> u64 {
        self.step_bound
    }

    /// Bytes of its block, rounded up to a cache line.
    #[must_use]
    pub fn block_stride(&self) -> u32 {
        self.procedure.layout().block_bytes.next_multiple_of(64)
    }
}
