//! INSERT, UPDATE and DELETE, and the indexes that follow.

use super::Lower;
use super::keys::Part;
use super::state::{Held, Row};
use super::statement::Miss;
use super::strings::Piece;
use crate::catalogue::Index;
use crate::ir::{Database, Memory, Op, Operand, Val, width_of};
use crate::syntax::Comparison;
use crate::tree::{Access, Expr, SourceId};

impl Lower<'_> {
    pub(super) fn insert(&mut self, table: usize, values: &[Expr], miss: Miss) {
        let schema = self.schema(table);
        let keys = schema.key().len();
        let parts = self.parts(values);
        let key = self.key(schema, &parts[..keys]);
        let slot = self.slot(table);
        let cp = self.b.cp();
        let issue = (self.b.current, cp);
        self.b.push(Op::Issue { operation: Database::Insert, slot, key, cp, into: None }, None);
        let needed = schema.columns().len() > keys;
        let handle = match miss {
            Miss::Abort(raise) => self.await_row(cp, raise),
            Miss::Branch => {
                let handle = self.b.value(i64::MIN, i64::MAX);
                self.branch_on(cp, Some(handle));
                handle
            }
        };
        for index in self.table(table).indexes() {
            let of = |column: usize| parts[column].clone();
            self.index_row(index, Database::Insert, index.columns.iter().map(|&column| of(column)).collect());
        }
        if needed {
            for (column, part) in schema.columns().iter().zip(&parts).skip(keys) {
                self.store(table, handle, column.offset, column.column_type, part, true);
            }
        }
        self.wrote_columns(table, keys..schema.columns().len(), handle);
        for (at, part) in parts.iter().enumerate().skip(keys) {
            self.stored(table, handle, at, part);
        }
        self.state.held.insert((table, parts[..keys].to_vec()), Held { handle, write: true, issue });
    }

    /// A value into a column of a row.
    fn store(
        &mut self,
        table: usize,
        row: Val,
        offset: u32,
        column_type: lockwork_procedure::schema::ColumnType,
        part: &Part,
        zeroed: bool,
    ) {
        let slot = self.slot(table);
        match part {
            Part::Number(Operand::Const(0)) if zeroed => {}
            Part::Number(value) => {
                let value = self.b.in_value(*value);
                self.b.push(Op::StoreRow { row, slot, offset, w: width_of(column_type), value }, None);
            }
            Part::String(pieces) => {
                let to = Memory::Row { row, slot, offset, index: None };
                self.write_pieces(to, pieces, column_type.width(), zeroed);
            }
        }
    }

    /// A number that was stored need not be loaded again.
    fn stored(&mut self, table: usize, row: Val, column: usize, part: &Part) {
        let place = &self.schema(table).columns()[column];
        if let Part::Number(Operand::Val(value)) = part {
            let (offset, w) = (place.offset, width_of(place.column_type));
            let slot = self.slot(table);
            if crate::ir::fits(self.b.range(Operand::Val(*value)), w) {
                let version = self.column_version(table, column);
                self.b.remember(Op::LoadRow { row, slot, offset, w }, version, *value);
            }
        }
    }

    /// Inserts or removes a row of an index.
    fn index_row(&mut self, index: &Index, operation: Database, parts: Vec<Part>) {
        let table = self.index_table(&index.name);
        let key = self.key(self.schema(table), &parts);
        let slot = self.slot(table);
        let cp = self.b.cp();
        self.b.push(Op::Issue { operation, slot, key, cp, into: None }, None);
        self.b.push(Op::Await { cp, raise: None }, None);
    }

    pub(super) fn update(&mut self, table: usize, handle: Val, source: SourceId, sets: &[(usize, Expr)]) {
        let row = Row::Held { table, handle };
        self.sources[source] = Some(row.clone());
        // Every value is read before the first is written.
        let mut parts: Vec<(usize, Part)> = Vec::new();
        for (column, value) in sets {
            let part = self.part(value);
            let part = match part {
                Part::String(pieces) if sets.len() > 1 && reads_rows(&pieces) => Part::String(self.kept(&pieces)),
                part => part,
            };
            parts.push((*column, part));
        }
        for index in self.table(table).indexes() {
            if parts.iter().any(|(column, _)| index.columns.contains(column)) {
                self.move_in_index(index, &row, &parts);
            }
        }
        for (column, part) in &parts {
            let place = &self.schema(table).columns()[*column];
            self.store(table, handle, place.offset, place.column_type, part, false);
        }
        self.wrote_columns(table, parts.iter().map(|(column, _)| *column), handle);
        for (column, part) in &parts {
            self.stored(table, handle, *column, part);
        }
    }

    /// The parts of an index's key in a row.
    fn index_parts(&mut self, index: &Index, row: &Row) -> Vec<Part> {
        let table = self.index_table(&index.name);
        let integers: Vec<bool> =
            self.schema(table).columns().iter().map(|column| column.column_type.is_integer()).collect();
        let mut parts = Vec::new();
        for (&column, integer) in index.columns.iter().zip(integers) {
            parts.push(if integer {
                Part::Number(self.column(row, column))
            } else {
                let pieces: Vec<Piece> = self.column_piece(row, column).into_iter().collect();
                Part::String(pieces)
            });
        }
        parts
    }

    /// If the values of an index change, its old row goes and a new one comes.
    fn move_in_index(&mut self, index: &Index, row: &Row, sets: &[(usize, Part)]) {
        let old = self.index_parts(index, row);
        let mut new = old.clone();
        let changed = self.b.block();
        for (at, column) in index.columns.iter().enumerate() {
            let Some((_, part)) = sets.iter().find(|(set, _)| set == column) else { continue };
            new[at] = part.clone();
            let next = self.b.block();
            match (&old[at], part) {
                (Part::Number(old), Part::Number(new)) => self.b.branch(Comparison::Ne, *old, *new, changed, next),
                (Part::String(old), Part::String(new)) => {
                    self.branch_pieces(Comparison::Ne, old, new, changed, next);
                }
                _ => self.go_to(next),
            }
            self.b.start(next);
        }
        let before = self.state.clone();
        let mut ways: Vec<_> = self.way().into_iter().collect();
        self.arm(changed, |this| {
            this.index_row(index, Database::Remove, old);
            this.index_row(index, Database::Insert, new);
            ways.extend(this.way());
        });
        self.state = before;
        self.meet(ways);
    }

    pub(super) fn delete(&mut self, table: usize, access: &Access, miss: Miss) {
        let (key, parts) = self.key_of(table, access);
        let indexes = self.table(table).indexes();
        let mut miss = miss;
        if !indexes.is_empty() {
            // The values of the indexes are read before the row goes.
            let handle = match miss {
                Miss::Abort(raise) => Some(self.find(table, key, parts.clone(), true, raise)),
                Miss::Branch => self.find_or(table, key, parts.clone(), true, Miss::Branch),
            };
            let Some(handle) = handle else { return };
            miss = Miss::Abort(None);
            let row = Row::Held { table, handle };
            for index in indexes {
                let old = self.index_parts(index, &row);
                self.index_row(index, Database::Remove, old);
            }
        }
        let slot = self.slot(table);
        let cp = self.b.cp();
        self.b.push(Op::Issue { operation: Database::Remove, slot, key, cp, into: None }, None);
        match miss {
            Miss::Abort(raise) => self.b.push(Op::Await { cp, raise }, None),
            Miss::Branch => self.branch_on(cp, None),
        }
        self.state.held.retain(|(of, _), _| *of != table);
    }
}

fn reads_rows(pieces: &[Piece]) -> bool {
    pieces.iter().any(|piece| matches!(piece, Piece::Memory { memory: Memory::Row { .. }, .. }))
}
