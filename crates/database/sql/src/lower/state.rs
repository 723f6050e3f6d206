//! What is known at a point of a procedure, and what is left of it where ways meet.

use std::collections::{BTreeSet, HashMap};

use super::Lower;
use super::keys::{Area, Part};
use super::strings::Piece;
use crate::ir::{At, BlockId, End, Op, Operand, Val};
use crate::tree::VarId;

/// A row that columns are read from.
#[derive(Clone, Debug)]
pub(super) enum Row {
    Nowhere,
    /// A row of the table whose handle is known.
    Held {
        table: usize,
        handle: Val,
    },
    /// Columns of the table that lie in the block: in the buffer of a scan, or where they are kept.
    Image {
        table: usize,
        columns: HashMap<usize, At>,
    },
}

/// A row that was looked up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Held {
    pub(super) handle: Val,
    pub(super) write: bool,
    /// The instruction that looked it up, to make it one for writing.
    pub(super) issue: (BlockId, u32),
}

#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) variables: Vec<Operand>,
    /// The version of each field of the block that was written.
    pub(super) fields: HashMap<usize, u64>,
    /// The version of each column that was written: table, column.
    pub(super) columns: HashMap<(usize, usize), u64>,
    /// Rows by table and key.
    pub(super) held: HashMap<(usize, Vec<Part>), Held>,
    /// Key images in the block.
    pub(super) areas: Vec<Area>,
}

impl Lower<'_> {
    pub(super) fn field_version(&self, field: usize) -> u64 {
        self.state.fields.get(&field).copied().unwrap_or(0)
    }

    pub(super) fn column_version(&self, table: usize, column: usize) -> u64 {
        self.state.columns.get(&(table, column)).copied().unwrap_or(0)
    }

    /// A field of the block was written.
    pub(super) fn wrote_field(&mut self, field: usize) {
        let version = self.b.version();
        self.state.fields.insert(field, version);
    }

    /// Columns of a table were written, through the row of this handle.
    pub(super) fn wrote_columns(&mut self, table: usize, columns: impl IntoIterator<Item = usize>, handle: Val) {
        for column in columns {
            let version = self.b.version();
            self.state.columns.insert((table, column), version);
        }
        // What was looked up to read may be the same row under another key value: it is looked up again.
        self.state.held.retain(|(of, _), held| *of != table || held.write || held.handle == handle);
    }

    /// Ends the current block, open or not, and remembers it as a way to somewhere.
    pub(super) fn way(&mut self) -> Option<(BlockId, State)> {
        self.b.is_open().then(|| (self.b.current, self.state.clone()))
    }

    /// Goes on where ways meet: with what all of them know.
    pub(super) fn meet(&mut self, ways: Vec<(BlockId, State)>) {
        let mut ways = ways;
        match ways.len() {
            0 => {
                // Nothing comes here; what follows is written to a block that is thrown away.
                let block = self.b.block();
                self.b.start(block);
                self.b.end(End::Commit);
                return;
            }
            1 => {
                if let Some((block, state)) = ways.pop() {
                    self.state = state;
                    if block == self.b.current {
                        return;
                    }
                    let next = self.b.block();
                    self.link(block, next);
                    self.b.start(next);
                }
                return;
            }
            _ => {}
        }
        let next = self.b.block();
        let mut merged = ways[0].1.clone();
        for var in 0..merged.variables.len() {
            let first = ways[0].1.variables[var];
            if ways.iter().all(|(_, state)| state.variables[var] == first) {
                continue;
            }
            let ranges = ways.iter().map(|(_, state)| self.b.range(state.variables[var]));
            let range = ranges.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).unwrap_or((i64::MIN, i64::MAX));
            let value = self.b.value(range.0, range.1);
            for (block, state) in &ways {
                let line = self.b.line;
                let op = Op::Move(state.variables[var]);
                self.b.program.blocks[*block].code.push(crate::ir::Ins { op, to: Some(value), line });
            }
            merged.variables[var] = Operand::Val(value);
        }
        for (_, state) in &ways[1..] {
            let fields: BTreeSet<usize> = merged.fields.keys().chain(state.fields.keys()).copied().collect();
            for field in fields {
                if merged.fields.get(&field) != state.fields.get(&field) {
                    merged.fields.insert(field, self.b.version());
                }
            }
            let columns: BTreeSet<_> = merged.columns.keys().chain(state.columns.keys()).copied().collect();
            for column in columns {
                if merged.columns.get(&column) != state.columns.get(&column) {
                    merged.columns.insert(column, self.b.version());
                }
            }
            merged.held.retain(|key, held| state.held.get(key) == Some(held));
            merged.areas.retain(|area| state.areas.contains(area));
        }
        for (block, _) in &ways {
            self.link(*block, next);
        }
        self.state = merged;
        self.b.start(next);
    }

    /// An open block goes on with another.
    pub(super) fn link(&mut self, block: BlockId, next: BlockId) {
        let line = self.b.line;
        let block = &mut self.b.program.blocks[block];
        if block.end == End::Open {
            (block.end, block.end_line) = (End::Jump(next), line);
        }
    }

    /// What a loop changes is not known at its head: these variables get mutable values there, these fields and tables
    /// new versions. Returns the variables with their values.
    pub(super) fn forget(&mut self, changes: &Changes) -> Vec<(VarId, Val)> {
        for &field in &changes.fields {
            self.wrote_field(field);
        }
        for &table in &changes.tables {
            for column in 0..self.schema(table).columns().len() {
                let version = self.b.version();
                self.state.columns.insert((table, column), version);
            }
            // A row that is held to write may be removed in the loop; one to read may be written.
            self.state.held.retain(|(of, _), held| *of != table || held.write && !changes.removed.contains(of));
        }
        let texts = |part: &Part| match part {
            Part::String(pieces) => pieces.iter().any(|piece| matches!(piece, Piece::Memory { .. })),
            Part::Number(_) => false,
        };
        self.state.areas.retain(|area| !area.parts.iter().any(|(_, part)| texts(part)));
        changes.variables.iter().map(|&var| (var, self.b.value(i64::MIN, i64::MAX))).collect()
    }
}

/// What a piece of a procedure may change.
#[derive(Clone, Debug, Default)]
pub(super) struct Changes {
    pub(super) variables: BTreeSet<VarId>,
    pub(super) fields: BTreeSet<usize>,
    pub(super) tables: BTreeSet<usize>,
    pub(super) removed: BTreeSet<usize>,
}
