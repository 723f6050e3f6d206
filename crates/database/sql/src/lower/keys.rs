//! Key images: where the values of a key lie in the block one behind the other as they do in a row.
//!
//! Arguments, elements of arrays and rows of scans that lie so already are used where they are. Otherwise the values go
//! to an *area*. Two keys of the same values share one, and so does a longer key that begins with the values of a
//! shorter one: the lines of an order write only their number behind the order's key.

use lockwork_procedure::schema::{ColumnType, ROW_HEADER_BYTES, TableSchema};

use super::Lower;
use super::strings::Piece;
use crate::ir::{At, Field, FieldKind, Ins, Memory, Op, Operand, width_of};
use crate::tree::Expr;

/// The value of a key column.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Part {
    Number(Operand),
    String(Vec<Piece>),
}

/// A key image that was written.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Area {
    pub(super) field: usize,
    /// Offset and type of each column, and its value.
    pub(super) parts: Vec<((u32, ColumnType), Part)>,
}

/// Where the columns of a key lie in its image.
fn places(schema: &TableSchema) -> Vec<(u32, ColumnType)> {
    schema.key().iter().map(|column| (column.offset - ROW_HEADER_BYTES, column.column_type)).collect()
}

impl Lower<'_> {
    pub(super) fn parts(&mut self, exprs: &[Expr]) -> Vec<Part> {
        exprs.iter().map(|expr| self.part(expr)).collect()
    }

    pub(super) fn part(&mut self, expr: &Expr) -> Part {
        match expr.ty {
            crate::tree::Ty::String(_) => Part::String(self.pieces(expr)),
            _ => Part::Number(self.number(expr)),
        }
    }

    /// Where an image of this key lies.
    pub(super) fn key(&mut self, schema: &TableSchema, parts: &[Part]) -> At {
        let places = places(schema);
        if let Some(at) = self.lies(&places, parts) {
            return at;
        }
        let wanted: Vec<_> = places.iter().copied().zip(parts.iter().cloned()).collect();
        if let Some(area) = self.state.areas.iter().find(|area| area.parts.starts_with(&wanted)) {
            return At { field: area.field, offset: 0, index: None };
        }
        let end = |at: usize| places[at].0 + places[at].1.width();
        let bytes = end(places.len() - 1);
        let longest = |field: usize, length: usize| {
            !self.state.areas.iter().any(|area| area.field == field && area.parts.len() > length)
        };
        let begun = self
            .state
            .areas
            .iter()
            .filter(|area| wanted.starts_with(&area.parts) && longest(area.field, area.parts.len()))
            .max_by_key(|area| area.parts.len())
            .map(|area| (area.field, area.parts.len()));
        let (field, known) = match begun {
            Some(begun) => begun,
            None => (self.scratch(ColumnType::I64, 1), 0),
        };
        let words = &mut self.b.program.fields[field].count;
        *words = (*words).max(bytes.div_ceil(8));
        for ((offset, column_type), part) in &wanted[known..] {
            let at = At { field, offset: *offset as i32, index: None };
            self.store_part(Memory::Block(at), *column_type, part);
        }
        self.state.areas.push(Area { field, parts: wanted });
        At { field, offset: 0, index: None }
    }

    fn store_part(&mut self, to: Memory, column_type: ColumnType, part: &Part) {
        match (part, to) {
            (Part::Number(value), Memory::Block(at)) => self.b.store(at, width_of(column_type), *value),
            (Part::String(pieces), to) => self.write_pieces(to, pieces, column_type.width(), false),
            (Part::Number(_), Memory::Row { .. }) => {}
        }
    }

    /// An image of a key that is for itself, to be changed: it is no area.
    pub(super) fn own_key(&mut self, schema: &TableSchema, parts: &[Part]) -> usize {
        let bytes = schema.key_bytes();
        let field = self.scratch(ColumnType::I64, bytes.div_ceil(8));
        for ((offset, column_type), part) in places(schema).into_iter().zip(parts) {
            let at = At { field, offset: offset as i32, index: None };
            self.store_part(Memory::Block(at), column_type, part);
        }
        field
    }

    /// The place in the block where the values of a key lie in the right order already.
    fn lies(&self, places: &[(u32, ColumnType)], parts: &[Part]) -> Option<At> {
        let mut start: Option<At> = None;
        for ((offset, column_type), part) in places.iter().zip(parts) {
            let at = match part {
                Part::Number(Operand::Val(value)) => {
                    let (at, w) = self.loaded(*value)?;
                    (w & !lockwork_procedure::isa::SIGNED == column_type.width() as u16).then_some(at)?
                }
                Part::String(pieces) => match pieces[..] {
                    [Piece::Memory { memory: Memory::Block(at), length, .. }]
                        if length == column_type.width() && self.stays(at.field) =>
                    {
                        self.place_in_parameters(at)
                    }
                    _ => return None,
                },
                Part::Number(Operand::Const(_)) => return None,
            };
            let begins = At { offset: at.offset - *offset as i32, ..at };
            match start {
                None => start = Some(begins),
                Some(start) if start == begins => {}
                Some(_) => return None,
            }
        }
        // The whole image lies in the field, or in fields that follow it as they do here.
        start
    }

    /// Whether what lies in a field is what was loaded from it.
    fn stays(&self, field: usize) -> bool {
        self.b.program.fields[field].kind == FieldKind::Parameter || self.open_buffers.contains(&field)
    }

    /// Where a value was loaded from, as a place counted from the first parameter, and how wide.
    fn loaded(&self, value: u32) -> Option<(At, u16)> {
        let of = |ins: &Ins| match ins.op {
            Op::Load(at, w) if ins.to == Some(value) && self.stays(at.field) => Some((at, w)),
            _ => None,
        };
        let blocks = self.b.program.blocks.iter();
        let (at, w) = blocks.flat_map(|block| &block.code).find_map(of)?;
        Some((self.place_in_parameters(at), w))
    }

    /// A place in a plain parameter, counted from the first parameter: parameters that follow each other are one place.
    fn place_in_parameters(&self, at: At) -> At {
        let fields = &self.b.program.fields;
        if fields[at.field].kind != FieldKind::Parameter {
            return at;
        }
        let parameters = || fields.iter().enumerate().filter(|(_, field)| field.kind == FieldKind::Parameter);
        let Some((first, _)) = parameters().next() else { return at };
        let shapes: Vec<_> = parameters().map(|(_, Field { column_type, count, .. })| (*column_type, *count)).collect();
        let (_, offsets) = lockwork_procedure::program::Procedure::lay_out([&shapes, &[], &[]]);
        let position = parameters().position(|(number, _)| number == at.field).unwrap_or(0);
        let distance = i32::try_from(offsets[position] - offsets[0]).unwrap_or(i32::MAX);
        At { field: first, offset: at.offset.saturating_add(distance), index: at.index }
    }
}
