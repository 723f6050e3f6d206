//! Ranges of rows: a SCAN into a buffer, and a loop over what it delivered.
//!
//! A SCAN has a first key and no last one, so the loop ends at the first row beyond the range. Ranges of more than
//! [`PIECE`] rows are read in pieces, so that a range that turns out short costs one short scan: each further piece
//! begins at the last row of the one before, which is passed over.

use std::collections::HashMap;

use lockwork_procedure::isa::scan_stride;
use lockwork_procedure::schema::{Column, ColumnType, ROW_HEADER_BYTES};

use super::keys::Part;
use super::state::{Changes, Row};
use super::strings::Piece;
use super::{Lower, Named};
use crate::ir::{At, Database, End, Into, Memory, Op, Operand, Val, width_of};
use crate::syntax::Comparison;
use crate::tree::{Arithmetic, PIECE, Role, Scan, SourceId, Stmt, VarId};

/// A scan whose bounds have values.
struct Range {
    /// The table that is scanned: of the rows themselves, or of the index.
    table: usize,
    prefix: Vec<Part>,
    high: Option<Operand>,
    field: usize,
    stride: u32,
}

impl Lower<'_> {
    /// FOR over rows.
    pub(super) fn for_rows(&mut self, scan: &Scan, source: SourceId, body: &[Stmt]) {
        let mut changes = Changes::default();
        self.changes(body, &mut changes);
        let limit = self.number(&scan.limit);
        let (table, columns) = match scan.index {
            None => (scan.table, (0..self.schema(scan.table).columns().len()).collect()),
            Some(index) => {
                let index = &self.table(scan.table).indexes()[index];
                (self.index_table(&index.name), index.columns.clone())
            }
        };
        let schema = self.schema(table);
        let stride = scan_stride(schema, None);
        let prefix = self.parts(&scan.prefix);
        let low = scan.low.as_ref().map(|low| self.number(low));
        let high = scan.high.as_ref().map(|high| self.number(high));
        let mut first = prefix.clone();
        first.extend(low.map(Part::Number));
        for column in &schema.key()[first.len()..] {
            first.push(match column.column_type.range() {
                Some((lo, _)) => Part::Number(Operand::Const(lo)),
                None => Part::String(Vec::new()),
            });
        }
        let rows = scan.max.min(PIECE);
        let field = self.scratch(ColumnType::I64, stride / 8 * rows);
        let range = Range { table, prefix, high, field, stride };
        let base = scan.table;
        let changing = changes.tables.contains(&base);
        let with_row = |this: &mut Self, index: Option<Val>| {
            let place = |(&column, place): (&usize, &Column)| {
                (column, At { field, offset: (place.offset - ROW_HEADER_BYTES) as i32, index })
            };
            let columns = columns.iter().zip(schema.columns()).map(place).collect();
            this.stand_at(source, base, columns, changing);
        };
        self.open_buffers.insert(field);
        if scan.max <= PIECE {
            let key = self.key(schema, &first);
            let limit = if limit == Operand::Const(i64::from(scan.max)) { None } else { Some(limit) };
            let count = self.scan(&range, key, scan.max, limit);
            self.rows_of(&range, count, scan.max, &changes, |this, index, exit| {
                this.named.push(Named { exit, again: exit });
                with_row(this, index);
                this.statements(body);
                this.named.pop();
            });
        } else {
            self.pieces_of(&range, &first, (limit, scan.max), changes, |this, index, exit| {
                this.named.push(Named { exit, again: exit + 1 });
                with_row(this, index);
                this.statements(body);
                this.named.pop();
            });
        }
        self.open_buffers.remove(&field);
        self.sources[source] = None;
    }

    /// The source stands at a row of a scan, which delivered these columns; if it lacks some that are used, the row
    /// itself is looked up. If the loop may change the row, they are kept as they are now.
    fn stand_at(&mut self, source: SourceId, table: usize, mut columns: HashMap<usize, At>, changing: bool) {
        let of = &self.routine.sources[source];
        let places = self.schema(table).columns();
        let as_the_row =
            columns.iter().all(|(&column, at)| places[column].offset as i32 == at.offset + ROW_HEADER_BYTES as i32);
        let lacking: Vec<usize> = of.used.iter().copied().filter(|column| !columns.contains_key(column)).collect();
        let complete = (as_the_row || !of.whole) && lacking.is_empty();
        self.sources[source] = Some(Row::Image { table, columns: columns.clone() });
        if complete {
            return;
        }
        let (at, parts) = self.key_of_source(source, table);
        let handle = self.look_up(table, at, parts, false);
        let row = Row::Held { table, handle };
        // Of a row that is read as a whole nothing is written: it is one of a SELECT INTO.
        if changing && !of.whole {
            columns.extend(self.keep(table, &row, &lacking));
            self.sources[source] = Some(Row::Image { table, columns });
        } else {
            self.sources[source] = Some(row);
        }
    }

    /// Copies of columns of a row in the block.
    fn keep(&mut self, table: usize, row: &Row, columns: &[usize]) -> HashMap<usize, At> {
        let schema = self.schema(table);
        let field = self.scratch(ColumnType::I64, scan_stride(schema, None).div_ceil(8));
        let mut kept = HashMap::new();
        for &column in columns {
            let place = &schema.columns()[column];
            let at = At { field, offset: (place.offset - ROW_HEADER_BYTES) as i32, index: None };
            if place.column_type.is_integer() {
                let value = self.column(row, column);
                self.b.store(at, width_of(place.column_type), value);
            } else {
                let pieces: Vec<Piece> = self.column_piece(row, column).into_iter().collect();
                self.write_pieces(Memory::Block(at), &pieces, place.column_type.width(), false);
            }
            kept.insert(column, at);
        }
        self.wrote_field(field);
        kept
    }

    /// The key of the row that a source stands at.
    pub(super) fn key_of_source(&mut self, source: SourceId, table: usize) -> (At, Vec<Part>) {
        let row = self.row(source);
        let schema = self.schema(table);
        let mut parts = Vec::new();
        for (column, place) in schema.key().iter().enumerate() {
            parts.push(if place.column_type.is_integer() {
                Part::Number(self.column(&row, column))
            } else {
                Part::String(self.column_piece(&row, column).into_iter().collect())
            });
        }
        (self.key(schema, &parts), parts)
    }

    /// Scans, and returns how many rows there were.
    fn scan(&mut self, range: &Range, key: At, max: u32, limit: Option<Operand>) -> Operand {
        let slot = self.slot(range.table);
        let limit = match limit {
            None => None,
            Some(Operand::Val(value)) if !self.trusting => {
                let to = (0, i64::from(max));
                Some(self.b.compute(Op::Check(value, i64::from(max) + 1), 0, to, false))
            }
            Some(limit) => {
                let limit = self.b.check(limit, i64::from(max) + 1);
                Some(self.b.in_value(limit))
            }
        };
        let cp = self.b.cp();
        // A limit of zero in r0 would mean none.
        if limit == Some(crate::ir::ZERO) {
            return Operand::Const(0);
        }
        let into = Some(Into { field: range.field, max: max as u16, limit });
        self.b.push(Op::Issue { operation: Database::Scan, slot, key, cp, into }, None);
        let count = self.b.value(0, i64::from(max));
        self.b.push(Op::Await { cp, raise: None }, Some(count));
        self.wrote_field(range.field);
        Operand::Val(count)
    }

    /// Goes through rows in the buffer: `body` gets the place of the row and the loop to leave.
    fn rows_of(
        &mut self,
        range: &Range,
        count: Operand,
        max: u32,
        changes: &Changes,
        body: impl FnOnce(&mut Self, Option<Val>, usize),
    ) {
        let position = self.loops.len();
        let limit = i64::from(max);
        self.counted(changes, Operand::Const(0), (1, limit), (0, limit - 1), |this, number| {
            this.unless(Comparison::Ge, Operand::Val(number), count, position);
            let index =
                this.b.arithmetic(Arithmetic::Mul, Operand::Val(number), Operand::Const(i64::from(range.stride)));
            let index = Some(this.b.in_value(index));
            this.unless_inside(range, index, position);
            body(this, index, position);
        });
    }

    /// Leaves the loop if the comparison holds.
    fn unless(&mut self, op: Comparison, a: Operand, b: Operand, position: usize) {
        let (out, on) = (self.b.block(), self.b.block());
        self.b.branch(op, a, b, out, on);
        self.b.start(out);
        self.leave_from(position, false);
        self.b.start(on);
    }

    fn leave_from(&mut self, position: usize, again: bool) {
        if let Some(way) = self.way() {
            self.loops[position].add(way, again);
        }
    }

    /// Leaves the loop if the row lies beyond the range.
    fn unless_inside(&mut self, range: &Range, index: Option<Val>, position: usize) {
        let schema = self.schema(range.table);
        let version = self.field_version(range.field);
        for (column, part) in schema.key().iter().zip(&range.prefix) {
            let offset = (column.offset - ROW_HEADER_BYTES) as i32;
            let at = At { field: range.field, offset, index };
            match part {
                Part::Number(value) => {
                    let found = self.b.load(at, width_of(column.column_type), version, false);
                    self.unless(Comparison::Ne, found, *value, position);
                }
                Part::String(pieces) => {
                    let length = column.column_type.width();
                    let found = [Piece::Memory { memory: Memory::Block(at), version, length }];
                    self.unless_same(&found, pieces, position);
                }
            }
        }
        if let Some(high) = range.high {
            let column = &schema.key()[range.prefix.len()];
            let at = At { field: range.field, offset: (column.offset - ROW_HEADER_BYTES) as i32, index };
            let found = self.b.load(at, width_of(column.column_type), version, false);
            self.unless(Comparison::Gt, found, high, position);
        }
    }

    fn unless_same(&mut self, found: &[Piece], wanted: &[Piece], position: usize) {
        let (out, on) = (self.b.block(), self.b.block());
        self.branch_pieces(Comparison::Eq, found, wanted, on, out);
        self.b.start(out);
        self.leave_from(position, false);
        self.b.start(on);
    }

    /// A long range, piece by piece. The outer loop goes through pieces, the inner one through the rows of each; `body`
    /// gets the outer loop, behind which the inner one lies.
    fn pieces_of(
        &mut self,
        range: &Range,
        first: &[Part],
        (limit, max): (Operand, u32),
        mut changes: Changes,
        body: impl FnOnce(&mut Self, Option<Val>, usize),
    ) {
        let schema = self.schema(range.table);
        let key = self.own_key(schema, first);
        let skip: VarId = self.state.variables.len();
        let taken = skip + 1;
        self.state.variables.extend([Operand::Const(0); 2]);
        // Rows that were taken are counted if the pieces do not end where the limit does.
        let pieces = 1 + (max - PIECE).div_ceil(PIECE - 1);
        let exact = limit == Operand::Const(i64::from(PIECE + (pieces - 1) * (PIECE - 1)));
        let mut inner = changes.clone();
        changes.variables.insert(skip);
        if !exact {
            changes.variables.insert(taken);
            inner.variables.insert(taken);
        }
        changes.fields.extend([range.field, key]);
        let outer = self.loops.len();
        let limits = (1, i64::from(pieces));
        self.counted(&changes, Operand::Const(0), limits, (0, i64::from(pieces) - 1), |this, _| {
            let at = At { field: key, offset: 0, index: None };
            let count = this.scan(range, at, PIECE, None);
            let passed = this.state.variables[skip];
            let rounds = i64::from(PIECE);
            this.counted(&inner, Operand::Const(0), (1, rounds), (0, rounds - 1), |this, number| {
                this.unless(Comparison::Ge, Operand::Val(number), count, outer);
                let (again, on) = (this.b.block(), this.b.block());
                this.b.branch(Comparison::Lt, Operand::Val(number), passed, again, on);
                this.b.start(again);
                this.leave_from(outer + 1, true);
                this.b.start(on);
                if !exact {
                    let so_far = this.state.variables[taken];
                    this.unless(Comparison::Ge, so_far, limit, outer);
                    let more = this.b.arithmetic(Arithmetic::Add, so_far, Operand::Const(1));
                    this.state.variables[taken] = more;
                }
                let by = Operand::Const(i64::from(range.stride));
                let index = this.b.arithmetic(Arithmetic::Mul, Operand::Val(number), by);
                let index = Some(this.b.in_value(index));
                this.unless_inside(range, index, outer);
                body(this, index, outer);
            });
            let last = At { field: range.field, offset: ((PIECE - 1) * range.stride) as i32, index: None };
            this.b.copy(Memory::Block(at), Memory::Block(last), schema.key_bytes());
            this.wrote_field(key);
            this.state.variables[skip] = Operand::Const(1);
        });
        self.state.variables.truncate(skip);
    }

    /// Whole rows into a variable: they are scanned where they belong, and what lies beyond the range is cleared.
    pub(super) fn fill(&mut self, scan: &Scan, var: VarId) {
        let limit = self.number(&scan.limit);
        let schema = self.schema(scan.table);
        let prefix = self.parts(&scan.prefix);
        let mut first = prefix.clone();
        for column in &schema.key()[first.len()..] {
            first.push(match column.column_type.range() {
                Some((lo, _)) => Part::Number(Operand::Const(lo)),
                None => Part::String(Vec::new()),
            });
        }
        let field = self.fields[var].unwrap_or(0);
        let stride = scan_stride(schema, None);
        let range = Range { table: scan.table, prefix, high: None, field, stride };
        // Only a result is zero when a call begins, until it is written.
        if self.routine.variables[var].role != Role::Out || self.state.fields.contains_key(&field) {
            self.clear(field);
        }
        let key = self.key(schema, &first);
        let limit = if limit == Operand::Const(i64::from(scan.max)) { None } else { Some(limit) };
        let count = self.scan(&range, key, scan.max, limit);
        // Keys ascend: if the last row is inside, all are.
        let changes = Changes { fields: [field].into(), ..Changes::default() };
        let position = self.loops.len();
        let rounds = i64::from(scan.max);
        self.counted(&changes, Operand::Const(0), (1, rounds), (0, rounds - 1), |this, number| {
            let from_last = this.b.arithmetic(Arithmetic::Sub, count, Operand::Const(1));
            let row = this.b.arithmetic(Arithmetic::Sub, from_last, Operand::Val(number));
            this.unless(Comparison::Lt, row, Operand::Const(0), position);
            let row = match row {
                Operand::Val(value) => {
                    Operand::Val(this.b.compute(Op::Check(value, rounds), 0, (0, rounds - 1), false))
                }
                constant => constant,
            };
            let index = this.b.arithmetic(Arithmetic::Mul, row, Operand::Const(i64::from(stride)));
            let index = Some(this.b.in_value(index));
            let inner = this.loops.len();
            // A row inside ends the search; a loop of no rounds more holds the ways that are not inside.
            this.loops.push(super::Loop::new(this.state.variables.len()));
            this.unless_inside(&range, index, inner);
            this.leave_from(position, false);
            let beyond = this.loops.pop().map(|open| open.exits).unwrap_or_default();
            this.meet(beyond);
            let zeros = vec![0; stride as usize];
            let at = At { field, offset: 0, index };
            this.write_pieces(Memory::Block(at), &[Piece::Bytes(zeros)], stride, false);
        });
        self.wrote_field(field);
    }

    /// Clears a field of the block.
    pub(super) fn clear(&mut self, field: usize) {
        let (column_type, count) = {
            let field = &self.b.program.fields[field];
            (field.column_type, field.count)
        };
        let bytes = super::field_bytes(column_type, count);
        let at = At { field, offset: 0, index: None };
        self.write_pieces(Memory::Block(at), &[Piece::Bytes(vec![0; bytes as usize])], bytes, false);
        self.wrote_field(field);
    }

    /// A look-up of a row that is known to be there or whose absence aborts.
    pub(super) fn look_up(&mut self, table: usize, key: At, parts: Vec<Part>, write: bool) -> Val {
        self.find(table, key, parts, write, None)
    }

    /// Ends the current block by going on with another.
    pub(super) fn go_to(&mut self, block: crate::ir::BlockId) {
        self.b.end(End::Jump(block));
    }
}
