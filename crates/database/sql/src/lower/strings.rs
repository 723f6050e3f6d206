//! Texts and bytes: pieces of memory and constants, compared and copied in words.

use super::state::Row;
use super::{Lower, field_bytes};
use crate::ir::{At, BlockId, Memory, Op, Operand, fits, moved, range_of};
use crate::syntax::Comparison;
use crate::tree::{Expr, ExprKind};

/// A piece of a text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Piece {
    Memory { memory: Memory, version: u64, length: u32 },
    Bytes(Vec<u8>),
}

impl Piece {
    pub(super) fn len(&self) -> u32 {
        match self {
            Self::Memory { length, .. } => *length,
            Self::Bytes(bytes) => bytes.len() as u32,
        }
    }

    /// The bytes from `from` on, `length` of them.
    fn part(&self, from: u32, length: u32) -> Self {
        match self {
            Self::Memory { memory, version, .. } => {
                Self::Memory { memory: moved(*memory, from), version: *version, length }
            }
            Self::Bytes(bytes) => Self::Bytes(bytes[from as usize..(from + length) as usize].to_vec()),
        }
    }
}

/// Pieces with those that follow each other in memory made one.
fn joined(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut all: Vec<Piece> = Vec::new();
    for piece in pieces.into_iter().filter(|piece| piece.len() > 0) {
        match (all.last_mut(), &piece) {
            (Some(Piece::Bytes(before)), Piece::Bytes(bytes)) => before.extend(bytes),
            (
                Some(Piece::Memory { memory: before, version: v, length }),
                Piece::Memory { memory, version: w, length: more },
            ) if moved(*before, *length) == *memory => {
                *length += more;
                *v = (*v).max(*w);
            }
            _ => all.push(piece),
        }
    }
    all
}

/// Cuts two texts into pieces of one length each; what one lacks is zero bytes.
fn side_by_side(a: &[Piece], b: &[Piece]) -> Vec<(Piece, Piece)> {
    let total = |pieces: &[Piece]| pieces.iter().map(Piece::len).sum::<u32>();
    let longest = total(a).max(total(b));
    let padded = |pieces: &[Piece]| {
        let mut all = pieces.to_vec();
        let lacks = longest - total(pieces);
        if lacks > 0 {
            all.push(Piece::Bytes(vec![0; lacks as usize]));
        }
        all
    };
    let (a, b) = (padded(a), padded(b));
    let (mut i, mut j, mut from_a, mut from_b) = (0, 0, 0, 0);
    let mut all = Vec::new();
    while i < a.len() && j < b.len() {
        let length = (a[i].len() - from_a).min(b[j].len() - from_b);
        all.push((a[i].part(from_a, length), b[j].part(from_b, length)));
        (from_a, from_b) = (from_a + length, from_b + length);
        if from_a == a[i].len() {
            (i, from_a) = (i + 1, 0);
        }
        if from_b == b[j].len() {
            (j, from_b) = (j + 1, 0);
        }
    }
    all
}

/// Widths of the words that make up a length.
fn words(length: u32, widest: u32) -> impl Iterator<Item = (u32, u32)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let width = [8, 4, 2, 1].into_iter().find(|&width| width <= widest && at + width <= length)?;
        at += width;
        Some((at - width, width))
    })
}

impl Lower<'_> {
    /// The pieces of a text.
    pub(super) fn pieces(&mut self, expr: &Expr) -> Vec<Piece> {
        let pieces = match &expr.kind {
            ExprKind::String(bytes) | ExprKind::Text(bytes) => vec![Piece::Bytes(bytes.clone())],
            ExprKind::Whole(var) => {
                let field = self.fields[*var].unwrap_or(0);
                let (column_type, count) = self.routine.variables[*var].field();
                // What lies between elements of an array is none of a text that stands alone.
                let length = if count == 1 { column_type.width() } else { field_bytes(column_type, count) };
                let memory = Memory::Block(At { field, offset: 0, index: None });
                vec![Piece::Memory { memory, version: self.field_version(field), length }]
            }
            ExprKind::Element(var, index) => {
                let index = self.number(index);
                let (at, field) = self.element(*var, index);
                let length = self.routine.variables[*var].field().0.width();
                vec![Piece::Memory { memory: Memory::Block(at), version: self.field_version(field), length }]
            }
            ExprKind::Column(source, column) => {
                let row = self.row(*source);
                self.column_piece(&row, *column).into_iter().collect()
            }
            ExprKind::Span(source, column) => {
                let row = self.row(*source);
                let crate::tree::Ty::String(bytes) = expr.ty else { return Vec::new() };
                match self.column_piece(&row, *column) {
                    // What was written to any column before is in the memory, whatever the version says.
                    Some(Piece::Memory { memory, .. }) => {
                        vec![Piece::Memory { memory, version: self.b.version(), length: bytes }]
                    }
                    _ => Vec::new(),
                }
            }
            ExprKind::Choose { operand, first, source, column, count } => {
                let operand = self.number(operand);
                let number = self.b.arithmetic(crate::tree::Arithmetic::Sub, operand, Operand::Const(*first));
                let number = self.b.check(number, i64::from(*count));
                let crate::tree::Ty::String(width) = expr.ty else { return Vec::new() };
                let row = self.row(*source);
                let Some(Piece::Memory { memory, version, length }) = self.column_piece(&row, *column) else {
                    return Vec::new();
                };
                let by = self.b.arithmetic(crate::tree::Arithmetic::Mul, number, Operand::Const(i64::from(width)));
                vec![Piece::Memory { memory: self.indexed(memory, by), version, length }]
            }
            ExprKind::Concat(_) | ExprKind::Digits(..) | ExprKind::Sized(..) => self.made_pieces(expr),
            ExprKind::Fitting(text, code) => {
                let crate::tree::Ty::String(most) = expr.ty else { return Vec::new() };
                self.fitting(text, most, *code)
            }
            ExprKind::Piece(text, from) => {
                let crate::tree::Ty::String(length) = expr.ty else { return Vec::new() };
                let text = self.pieces(text);
                cut(&text, *from, length)
            }
            _ => Vec::new(),
        };
        joined(pieces)
    }

    /// A place with a value added to its index.
    fn indexed(&mut self, memory: Memory, by: Operand) -> Memory {
        let mut add = |index: Option<u32>, offset: i64| match (by, index) {
            (Operand::Const(by), index) => (index, offset + by),
            (by, None) => (Some(self.b.in_value(by)), offset),
            (by, Some(index)) => {
                let sum = self.b.arithmetic(crate::tree::Arithmetic::Add, Operand::Val(index), by);
                (Some(self.b.in_value(sum)), offset)
            }
        };
        match memory {
            Memory::Block(at) => {
                let (index, offset) = add(at.index, i64::from(at.offset));
                Memory::Block(At { index, offset: offset as i32, ..at })
            }
            Memory::Row { row, slot, offset, index } => {
                let (index, offset) = add(index, i64::from(offset));
                Memory::Row { row, slot, offset: offset as u32, index }
            }
        }
    }

    /// A text column of a row.
    pub(super) fn column_piece(&mut self, row: &Row, column: usize) -> Option<Piece> {
        match row {
            Row::Nowhere => None,
            Row::Held { table, handle } => {
                let place = &self.schema(*table).columns()[column];
                let (offset, length) = (place.offset, place.column_type.width());
                let slot = self.slot(*table);
                let memory = Memory::Row { row: *handle, slot, offset, index: None };
                Some(Piece::Memory { memory, version: self.column_version(*table, column), length })
            }
            Row::Image { table, columns } => {
                let length = self.schema(*table).columns()[column].column_type.width();
                let at = *columns.get(&column)?;
                Some(Piece::Memory { memory: Memory::Block(at), version: self.field_version(at.field), length })
            }
        }
    }

    /// A word of a piece.
    fn word(&mut self, piece: &Piece, at: u32, width: u32) -> Operand {
        match piece {
            Piece::Bytes(bytes) => {
                let mut word = [0; 8];
                word[..width as usize].copy_from_slice(&bytes[at as usize..(at + width) as usize]);
                Operand::Const(i64::from_le_bytes(word))
            }
            Piece::Memory { memory, version, .. } => match moved(*memory, at) {
                Memory::Block(at) => {
                    let constant = self.b.program.fields[at.field].kind == crate::ir::FieldKind::Parameter;
                    self.b.load(at, width as u16, *version, constant)
                }
                Memory::Row { row, slot, offset, index: None } => {
                    let op = Op::LoadRow { row, slot, offset, w: width as u16 };
                    Operand::Val(self.b.compute(op, *version, range_of(width as u16), false))
                }
                from @ Memory::Row { .. } => {
                    let field = self.scratch(lockwork_procedure::schema::ColumnType::I64, 1);
                    let to = At { field, offset: 0, index: None };
                    self.b.copy(Memory::Block(to), from, width);
                    let version = self.b.version();
                    self.b.load(to, width as u16, version, false)
                }
            },
        }
    }

    /// Goes to `yes` if the comparison of two texts holds, else to `no`.
    pub(super) fn branch_strings(&mut self, op: Comparison, a: &Expr, b: &Expr, yes: BlockId, no: BlockId) {
        let (a, b) = (self.pieces(a), self.pieces(b));
        self.branch_pieces(op, &a, &b, yes, no);
    }

    /// As [`Self::branch_strings`], of pieces.
    pub(super) fn branch_pieces(&mut self, op: Comparison, a: &[Piece], b: &[Piece], yes: BlockId, no: BlockId) {
        // Words behind the first are loaded on some ways only.
        self.b.enter();
        let pairs = side_by_side(a, b);
        let equality = matches!(op, Comparison::Eq | Comparison::Ne);
        // If equal so far, which way a difference goes.
        let (same, differs) = match op {
            Comparison::Eq | Comparison::Le | Comparison::Ge => (yes, no),
            _ => (no, yes),
        };
        let (less, more) = match op {
            Comparison::Lt | Comparison::Le => (yes, no),
            _ => (no, yes),
        };
        for (a, b) in &pairs {
            for (at, width) in words(a.len(), if equality { 8 } else { 1 }) {
                let (x, y) = (self.word(a, at, width), self.word(b, at, width));
                let next = self.b.block();
                if equality {
                    self.b.branch(Comparison::Ne, x, y, differs, next);
                } else {
                    let not_less = self.b.block();
                    self.b.branch(Comparison::Lt, x, y, less, not_less);
                    self.b.start(not_less);
                    self.b.branch(Comparison::Gt, x, y, more, next);
                }
                self.b.start(next);
            }
        }
        self.b.end(crate::ir::End::Jump(same));
        self.b.leave();
    }

    /// Writes pieces to a place of `width` bytes, and zero bytes behind them. A row that was just inserted is zero.
    pub(super) fn write_pieces(&mut self, to: Memory, pieces: &[Piece], width: u32, zeroed: bool) {
        let pieces = self.apart(to, pieces, width);
        let mut at = 0;
        for piece in &pieces {
            match piece {
                Piece::Memory { memory, length, .. } => self.b.copy(moved(to, at), *memory, *length),
                Piece::Bytes(bytes) => self.write_bytes(moved(to, at), bytes, zeroed),
            }
            at += piece.len();
        }
        if at < width && !zeroed {
            self.write_bytes(moved(to, at), &vec![0; (width - at) as usize], false);
        }
    }

    /// The pieces, which lie apart from the place that they are written to, or where they already are.
    fn apart(&mut self, to: Memory, pieces: &[Piece], width: u32) -> Vec<Piece> {
        let mut at = 0;
        let mut meets = false;
        for piece in pieces {
            if let Piece::Memory { memory, .. } = piece {
                let same = *memory == moved(to, at);
                let place = match (*memory, to) {
                    (Memory::Block(from), Memory::Block(to)) => from.field == to.field,
                    (Memory::Row { slot: x, offset: a, .. }, Memory::Row { slot: y, offset: b, .. }) => {
                        x == y && a < b + width && b < a + piece.len()
                    }
                    _ => false,
                };
                meets |= place && !same;
            }
            at += piece.len();
        }
        if !meets {
            return pieces.to_vec();
        }
        self.kept(pieces)
    }

    /// A copy of a text in a field of its own.
    pub(super) fn kept(&mut self, pieces: &[Piece]) -> Vec<Piece> {
        let length: u32 = pieces.iter().map(Piece::len).sum();
        let field = self.scratch(lockwork_procedure::schema::ColumnType::I64, length.div_ceil(8).max(1));
        let mut at = 0;
        let memory = Memory::Block(At { field, offset: 0, index: None });
        for piece in pieces {
            match piece {
                Piece::Memory { memory: from, length, .. } => self.b.copy(moved(memory, at), *from, *length),
                Piece::Bytes(bytes) => self.write_bytes(moved(memory, at), bytes, false),
            }
            at += piece.len();
        }
        self.wrote_field(field);
        vec![Piece::Memory { memory, version: self.field_version(field), length }]
    }

    pub(super) fn write_bytes(&mut self, to: Memory, bytes: &[u8], zeroed: bool) {
        if zeroed && bytes.iter().all(|&byte| byte == 0) {
            return;
        }
        let length = bytes.len() as u32;
        // Many zero bytes: a loop of stores would be long, so a cleared word is spread by copies that double.
        if length > 64 && bytes.iter().all(|&byte| byte == 0) {
            self.write_bytes(to, &bytes[..32], false);
            let mut done = 32;
            while done < length {
                let piece = done.min(length - done);
                self.b.copy(moved(to, done), to, piece);
                done += piece;
            }
            return;
        }
        for (at, width) in words(length, 8) {
            let mut word = [0; 8];
            word[..width as usize].copy_from_slice(&bytes[at as usize..(at + width) as usize]);
            let value = i64::from_le_bytes(word);
            if zeroed && value == 0 {
                continue;
            }
            let w = width as u16;
            debug_assert!(fits((value, value), w));
            let value = self.b.in_value(Operand::Const(value));
            match moved(to, at) {
                Memory::Block(at) => self.b.push(Op::Store(at, w, value), None),
                Memory::Row { row, slot, offset, .. } => {
                    self.b.push(Op::StoreRow { row, slot, offset, w, value }, None);
                }
            }
        }
    }
}

/// Bytes `from` to `from + length` of a text.
pub(super) fn cut(pieces: &[Piece], from: u32, length: u32) -> Vec<Piece> {
    let (mut at, end) = (0, from + length);
    let mut all = Vec::new();
    for piece in pieces {
        let (first, last) = (from.max(at), end.min(at + piece.len()));
        if first < last {
            all.push(piece.part(first - at, last - first));
        }
        at += piece.len();
    }
    all
}
