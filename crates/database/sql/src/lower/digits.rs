//! Texts that are made when a procedure runs: the digits of a number, and texts joined behind them.
//!
//! There is no instruction for a text of a number. Its digits are written from the last to the first, each by a
//! division by ten; how many there are is a value, and so is the byte at which the text begins.

use super::Lower;
use super::strings::{Piece, cut};
use crate::ir::{At, Memory, Op, Operand};
use crate::syntax::Comparison;
use crate::tree::{Arithmetic, Expr, ExprKind, Ty};
use crate::types::power_of_ten;
use lockwork_procedure::schema::ColumnType;

/// A text in pieces, which zero bytes may end, and how many bytes there are before them.
struct Text {
    pieces: Vec<Piece>,
    length: Operand,
}

impl Text {
    /// The bytes that its pieces have room for.
    fn room(&self) -> u32 {
        self.pieces.iter().map(Piece::len).sum()
    }
}

/// Whether the length of a text is a value.
fn is_made(expr: &Expr) -> bool {
    match &expr.kind {
        ExprKind::Digits(..) | ExprKind::Sized(..) => true,
        ExprKind::Concat(parts) => parts.iter().any(is_made),
        _ => false,
    }
}

/// The texts that `||` joins, in their order.
fn parts_of<'e>(expr: &'e Expr, all: &mut Vec<&'e Expr>) {
    match &expr.kind {
        ExprKind::Concat(parts) => parts.iter().for_each(|part| parts_of(part, all)),
        _ => all.push(expr),
    }
}

impl Lower<'_> {
    /// The pieces of a text of a number, or of texts that are joined.
    pub(super) fn made_pieces(&mut self, expr: &Expr) -> Vec<Piece> {
        match &expr.kind {
            ExprKind::Digits(..) | ExprKind::Sized(..) => self.made(expr).pieces,
            _ => self.joined_text(expr),
        }
    }

    /// Joins texts. One whose length is a value is followed by the next where it ends.
    fn joined_text(&mut self, expr: &Expr) -> Vec<Piece> {
        let mut parts = Vec::new();
        parts_of(expr, &mut parts);
        let Some(first) = parts.iter().position(|part| is_made(part)) else {
            return parts.iter().flat_map(|part| self.pieces(part)).collect();
        };
        let made: Vec<Text> = parts.iter().map(|part| self.made(part)).collect();
        if first + 1 == made.len() {
            return made.into_iter().flat_map(|text| text.pieces).collect();
        }
        let room: u32 = made.iter().map(Text::room).sum();
        let field = self.scratch(ColumnType::I64, room.div_ceil(8).max(1));
        let start = Memory::Block(At { field, offset: 0, index: None });
        self.write_bytes(start, &vec![0; room as usize], false);
        let (mut position, mut before) = (Operand::Const(0), 0);
        for Text { pieces, length } in made {
            let place = self.place_in(field, position, before);
            let mut at = 0;
            for piece in &pieces {
                match piece {
                    Piece::Memory { memory, length, .. } => {
                        self.b.copy(crate::ir::moved(place, at), *memory, *length);
                    }
                    Piece::Bytes(bytes) => self.write_bytes(crate::ir::moved(place, at), bytes, false),
                }
                at += piece.len();
            }
            position = self.b.arithmetic(Arithmetic::Add, position, length);
            before += at;
        }
        self.whole_field(field, 0, room)
    }

    /// A text, and its length: that of its type, unless it is made when the procedure runs.
    fn made(&mut self, expr: &Expr) -> Text {
        match (&expr.kind, expr.ty) {
            (ExprKind::Digits(value, digits), Ty::String(room)) => match value.ty {
                Ty::Number(scale) => self.digits(value, (u32::from(*digits), u32::from(scale)), room),
                _ => self.truth_text(value),
            },
            (ExprKind::Sized(text, length), _) => {
                let pieces = self.pieces(text);
                let length = self.number(length);
                let room: u32 = pieces.iter().map(Piece::len).sum();
                Text { length: self.b.check(length, i64::from(room) + 1), pieces }
            }
            _ => {
                let pieces = self.pieces(expr);
                let room: u32 = pieces.iter().map(Piece::len).sum();
                Text { pieces, length: Operand::Const(room.into()) }
            }
        }
    }

    /// The bytes of a field from one on that is at most `most`.
    fn place_in(&mut self, field: usize, from: Operand, most: u32) -> Memory {
        let from = match from {
            Operand::Val(value) if !self.trusting => {
                let limit = i64::from(most) + 1;
                Operand::Val(self.b.compute(Op::Check(value, limit), 0, (0, limit - 1), false))
            }
            from => from,
        };
        Memory::Block(match from {
            Operand::Const(offset) => At { field, offset: offset as i32, index: None },
            Operand::Val(value) => At { field, offset: 0, index: Some(value) },
        })
    }

    /// A piece that was just written to a field of its own.
    fn whole_field(&mut self, field: usize, offset: i32, length: u32) -> Vec<Piece> {
        self.wrote_field(field);
        let memory = Memory::Block(At { field, offset, index: None });
        vec![Piece::Memory { memory, version: self.field_version(field), length }]
    }

    /// `true` or `false`.
    fn truth_text(&mut self, value: &Expr) -> Text {
        let value = self.number(value);
        let word = |text: &[u8; 8]| Operand::Const(i64::from_le_bytes(*text));
        let zero = Operand::Const(0);
        let text = self.select(Comparison::Ne, value, zero, |_| word(b"true\0\0\0\0"), |_| word(b"false\0\0\0"));
        let length = self.select(Comparison::Ne, value, zero, |_| Operand::Const(4), |_| Operand::Const(5));
        let field = self.scratch(ColumnType::I64, 1);
        self.b.store(At { field, offset: 0, index: None }, 8, text);
        Text { pieces: self.whole_field(field, 0, 5), length }
    }

    /// The text of a number of at most so many digits, of which `scale` stand behind the point, in `room` bytes.
    fn digits(&mut self, value: &Expr, (digits, scale): (u32, u32), room: u32) -> Text {
        let value = self.number(value);
        let point = u32::from(scale > 0);
        // A byte for the sign, the digits with their point, and zero bytes: as many as the text may be shorter.
        let last = digits + point;
        let field = self.scratch(ColumnType::I64, (last + 1 + room).div_ceil(8));
        let at = |offset: u32| At { field, offset: offset as i32, index: None };
        self.write_bytes(Memory::Block(at(last + 1)), &vec![0; room as usize], false);
        // Minus the magnitude: the least number has no positive one.
        let all = self.magnitude(value);
        let ten = Operand::Const(10);
        let mut rest = all;
        for place in 0..digits {
            let tenth = self.b.arithmetic(Arithmetic::Div, rest, ten);
            let whole = self.b.arithmetic(Arithmetic::Mul, tenth, ten);
            let digit = self.b.arithmetic(Arithmetic::Sub, whole, rest);
            let sign = self.b.arithmetic(Arithmetic::Add, digit, Operand::Const(b'0'.into()));
            let behind = place + if place >= scale { point } else { 0 };
            self.b.store(at(last - behind), 1, sign);
            rest = tenth;
        }
        if scale > 0 {
            self.b.store(at(last - scale), 1, Operand::Const(b'.'.into()));
        }
        let written = self.count_digits(all, scale + 1, digits);
        let mut first = self.b.arithmetic(Arithmetic::Sub, Operand::Const(i64::from(digits) + 1), written);
        let mut length = self.b.arithmetic(Arithmetic::Add, written, Operand::Const(point.into()));
        if self.b.range(value).0 < 0 {
            let before = self.b.arithmetic(Arithmetic::Sub, first, Operand::Const(1));
            let Memory::Block(sign) = self.place_in(field, before, digits) else { unreachable!("it is in the block") };
            self.b.store(sign, 1, Operand::Const(b'-'.into()));
            let zero = Operand::Const(0);
            let is_negative = self.select(Comparison::Lt, value, zero, |_| Operand::Const(1), |_| Operand::Const(0));
            first = self.b.arithmetic(Arithmetic::Sub, first, is_negative);
            length = self.b.arithmetic(Arithmetic::Add, length, is_negative);
        }
        let memory = self.place_in(field, first, last);
        self.wrote_field(field);
        let pieces = vec![Piece::Memory { memory, version: self.field_version(field), length: room }];
        Text { pieces, length }
    }

    /// How many digits a number has, at least `least` and at most `most`; it is given as minus its magnitude.
    fn count_digits(&mut self, number: Operand, least: u32, most: u32) -> Operand {
        if least >= most {
            return Operand::Const(most.into());
        }
        let middle = least + (most - least) / 2;
        let power = Operand::Const(-power_of_ten(middle as u8));
        self.select(
            Comparison::Gt,
            number,
            power,
            |this| this.count_digits(number, least, middle),
            |this| this.count_digits(number, middle + 1, most),
        )
    }

    /// A text that is no longer than `most` bytes, zero bytes at its end aside; with a longer one the procedure aborts.
    pub(super) fn fitting(&mut self, text: &Expr, most: u32, code: u16) -> Vec<Piece> {
        let pieces = self.pieces(text);
        let room: u32 = pieces.iter().map(Piece::len).sum();
        let behind = cut(&pieces, most, room.saturating_sub(most));
        let (fits, too_long) = (self.b.block(), self.b.block());
        self.branch_pieces(Comparison::Eq, &behind, &[], fits, too_long);
        self.b.start(too_long);
        self.b.end(crate::ir::End::Abort(code));
        self.b.start(fits);
        cut(&pieces, 0, most.min(room))
    }
}
