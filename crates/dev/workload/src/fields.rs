//! What the fixed workloads (SmallBank, TATP, TPC-C) share: procedures whose layout is known from their own text, and
//! fields that are read and written by place instead of by name.
//!
//! A [`Place`] is an integer field of a block or column of a row image: offset, type, and the way to the next element.
//! Places are looked up by name once, when a workload is made, so generators and checks cost a store or a load a field.
//!
//! Invariant: texts are this crate's own, so they assemble, and a name that is not there is a bug: it panics.

use lockwork_procedure::assembly::assemble;
use lockwork_procedure::block::Batch;
use lockwork_procedure::program::{Field, Procedure};
use lockwork_procedure::schema::{Column, ColumnType, ROW_HEADER_BYTES, TableSchema};

use crate::random::Random;
use crate::{Lookup, WorkloadError, room};

/// Where an integer lies, or an array of them, in bytes from the start of a block or a row image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    at: usize,
    column_type: ColumnType,
    stride: usize,
}

impl Place {
    /// A parameter, result or scratch field.
    pub(crate) fn field(procedure: &Procedure, name: &str) -> Self {
        let mut fields = procedure.parameters.iter().chain(&procedure.results).chain(&procedure.scratch);
        let field = fields.find(|field| field.name == name);
        let field = field.unwrap_or_else(|| panic!("{} has no field '{name}'", procedure.name));
        let (at, stride) = (field.offset as usize, field.element_stride() as usize);
        Self { at, column_type: field.column_type, stride }
    }

    /// A column.
    pub(crate) fn column(schema: &TableSchema, name: &str) -> Self {
        let Some((_, column)) = schema.column(name) else { panic!("{} has no column '{name}'", schema.name()) };
        Self::of(column)
    }

    /// A column of a row image.
    pub(crate) fn of(column: &Column) -> Self {
        let width = column.column_type.width() as usize;
        Self { at: (column.offset - ROW_HEADER_BYTES) as usize, column_type: column.column_type, stride: width }
    }

    /// Writes the low bytes of `value`.
    #[inline]
    pub(crate) fn put(self, bytes: &mut [u8], value: i64) {
        self.put_at(bytes, 0, value);
    }

    /// As [`Self::put`], element `index`.
    #[inline]
    pub(crate) fn put_at(self, bytes: &mut [u8], index: usize, value: i64) {
        let (at, width) = (self.at + index * self.stride, self.column_type.width() as usize);
        bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
    }

    /// Writes text, padded with zero bytes.
    #[inline]
    pub(crate) fn put_text(self, bytes: &mut [u8], text: &[u8]) {
        let place = &mut bytes[self.at..self.at + self.column_type.width() as usize];
        place.fill(0);
        place[..text.len()].copy_from_slice(text);
    }

    /// The integer that lies there.
    #[inline]
    pub(crate) fn get(self, bytes: &[u8]) -> i64 {
        self.get_at(bytes, 0)
    }

    /// As [`Self::get`], element `index`.
    #[inline]
    pub(crate) fn get_at(self, bytes: &[u8], index: usize) -> i64 {
        let (at, width) = (self.at + index * self.stride, self.column_type.width() as usize);
        let mut word = [0; 8];
        word[..width].copy_from_slice(&bytes[at..at + width]);
        let unused = 64 - 8 * width as u32;
        let value = i64::from_le_bytes(word) << unused;
        if self.column_type.is_signed() { value >> unused } else { ((value as u64) >> unused) as i64 }
    }

    /// The bytes of element `index`.
    #[inline]
    pub(crate) fn bytes_at(self, bytes: &[u8], index: usize) -> &[u8] {
        let at = self.at + index * self.stride;
        &bytes[at..at + self.column_type.width() as usize]
    }
}

/// The procedures of a workload: as written, and, once bound, as registered.
#[derive(Clone, Debug)]
pub(crate) struct Procedures {
    sources: Vec<String>,
    own: Vec<Procedure>,
    ids: Vec<u32>,
    block_bytes: u32,
}

impl Procedures {
    /// Assembles the workload's own texts.
    ///
    /// # Panics
    /// When one does not assemble.
    pub(crate) fn new(sources: Vec<String>, schemas: &[TableSchema]) -> Self {
        let assembled = |text: &String| match assemble(text, schemas) {
            Ok(assembled) => assembled.procedure,
            Err(error) => panic!("{error}\n{text}"),
        };
        let own: Vec<Procedure> = sources.iter().map(assembled).collect();
        let bytes = own.iter().map(|procedure| procedure.layout().block_bytes.next_multiple_of(8));
        Self { block_bytes: bytes.max().unwrap_or(0), own, sources, ids: Vec::new() }
    }

    /// Name and text of each.
    pub(crate) fn sources(&self) -> Vec<(String, String)> {
        self.own.iter().map(|procedure| procedure.name.clone()).zip(self.sources.iter().cloned()).collect()
    }

    /// Bytes of the longest block.
    pub(crate) fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Where a field of procedure `number` lies.
    pub(crate) fn place(&self, number: usize, name: &str) -> Place {
        Place::field(&self.own[number], name)
    }

    /// Where several fields of procedure `number` lie.
    pub(crate) fn places<const N: usize>(&self, number: usize, names: [&str; N]) -> [Place; N] {
        names.map(|name| self.place(number, name))
    }

    /// Learns the ids of the registered procedures, whose parameters and results have to be those of the workload.
    pub(crate) fn bind(&mut self, lookup: &mut Lookup<'_>) -> Result<(), WorkloadError> {
        let mut ids = Vec::with_capacity(self.own.len());
        for own in &self.own {
            let (id, found) = lookup(&own.name).ok_or_else(|| WorkloadError::Unbound(own.name.clone()))?;
            let groups = [(&own.parameters, &found.parameters), (&own.results, &found.results)];
            for (ours, theirs) in groups {
                let other = |(place, field): &(usize, &Field)| theirs.get(*place) != Some(*field);
                if let Some((_, field)) = ours.iter().enumerate().find(other) {
                    let (procedure, field) = (own.name.clone(), field.name.clone());
                    return Err(WorkloadError::Foreign { procedure, field });
                }
            }
            ids.push(id);
        }
        self.ids = ids;
        Ok(())
    }

    /// How many of `transactions` calls there is room for in `batch`, which is refused if its blocks are too short.
    pub(crate) fn room(&self, batch: &Batch, transactions: usize) -> Result<usize, WorkloadError> {
        if self.ids.is_empty() {
            return Err(WorkloadError::Unbound(self.own[0].name.clone()));
        }
        room(batch, transactions, self.block_bytes)
    }

    /// The id of procedure `number`, once bound.
    pub(crate) fn id(&self, number: usize) -> u32 {
        self.ids[number]
    }

    /// The number of the procedure with this id.
    #[inline]
    pub(crate) fn number(&self, id: u32) -> Option<usize> {
        self.ids.iter().position(|&known| known == id)
    }
}

/// Writes a row image column after column, in the order of the schema.
pub(crate) struct RowWriter<'a> {
    columns: std::slice::Iter<'a, Column>,
    image: &'a mut Vec<u8>,
}

impl<'a> RowWriter<'a> {
    /// Clears `image` and makes it as long as a row of `schema`.
    pub(crate) fn new(schema: &'a TableSchema, image: &'a mut Vec<u8>) -> Self {
        image.clear();
        image.resize((schema.row_bytes() - ROW_HEADER_BYTES) as usize, 0);
        Self { columns: schema.columns().iter(), image }
    }

    fn next(&mut self) -> (ColumnType, &mut [u8]) {
        let column = self.columns.next().expect("as many values as columns");
        let at = (column.offset - ROW_HEADER_BYTES) as usize;
        (column.column_type, &mut self.image[at..at + column.column_type.width() as usize])
    }

    /// The next column is an integer.
    pub(crate) fn integer(&mut self, value: impl TryInto<i64>) -> &mut Self {
        let value: i64 = value.try_into().unwrap_or_else(|_| panic!("an integer of a row fits 63 bits"));
        let (column_type, bytes) = self.next();
        let (lo, hi) = column_type.range().expect("an integer column");
        assert!((lo..=hi).contains(&value), "{value} in a column of {column_type}");
        let width = bytes.len();
        bytes.copy_from_slice(&value.to_le_bytes()[..width]);
        self
    }

    /// The next columns are integers.
    pub(crate) fn integers<const N: usize>(&mut self, values: [i64; N]) -> &mut Self {
        for value in values {
            self.integer(value);
        }
        self
    }

    /// The next column is this text.
    pub(crate) fn text(&mut self, text: &[u8]) -> &mut Self {
        let (column_type, bytes) = self.next();
        assert!(!column_type.is_integer(), "a text column");
        bytes[..text.len()].copy_from_slice(text);
        self
    }

    /// The next column is random text of `min` letters and digits or more, as many as it holds at most.
    pub(crate) fn letters(&mut self, random: &mut Random, min: u64) -> &mut Self {
        let (_, bytes) = self.next();
        let length = min + random.below(bytes.len() as u64 - min + 1);
        fill_letters(random, &mut bytes[..length as usize]);
        self
    }

    /// The next column is random digits, as many as it holds.
    pub(crate) fn digits(&mut self, random: &mut Random) -> &mut Self {
        let (_, bytes) = self.next();
        bytes.fill_with(|| b'0' + random.below(10) as u8);
        self
    }
}

/// Random letters and digits.
pub(crate) fn fill_letters(random: &mut Random, bytes: &mut [u8]) {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789ab";
    for chunk in bytes.chunks_mut(10) {
        // Sixty bits are ten letters; that two of them come twice as often is no matter.
        let word = random.next_u64();
        chunk.iter_mut().enumerate().for_each(|(i, byte)| *byte = LETTERS[(word >> (6 * i) & 63) as usize]);
    }
}

/// Requires a share of 0 to 1.
pub(crate) fn check_share(option: &'static str, share: f64) -> Result<(), WorkloadError> {
    if (0.0..=1.0).contains(&share) {
        Ok(())
    } else {
        crate::refuse(option, format!("{share:?}"), "0 to 1 is possible")
    }
}

/// A check that did not hold.
pub(crate) fn violation<T>(what: String) -> Result<T, WorkloadError> {
    Err(WorkloadError::Violation(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_write_and_read_every_width_and_sign() {
        let columns =
            [("a", ColumnType::I8), ("b", ColumnType::U16), ("c", ColumnType::I32), ("d", ColumnType::Char(3))];
        let schema = TableSchema::new("t", &columns, 1, false).unwrap();
        let mut image = Vec::new();
        RowWriter::new(&schema, &mut image).integers([-3, 65_535, -70_000]).text(b"xy");
        assert_eq!(image, [0xFD, 0, 0xFF, 0xFF, 0x90, 0xEE, 0xFE, 0xFF, b'x', b'y', 0]);
        let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| Place::column(&schema, name));
        assert_eq!((a.get(&image), b.get(&image), c.get(&image)), (-3, 65_535, -70_000));
        c.put(&mut image, -1);
        d.put_text(&mut image, b"z");
        assert_eq!((b.get(&image), c.get(&image), d.bytes_at(&image, 0)), (65_535, -1, &b"z\0\0"[..]));
    }

    #[test]
    fn arrays_have_their_stride() {
        let procedure = assemble("procedure p\nparam a: u16[3]\ncommit", [].as_slice()).unwrap().procedure;
        let place = Place::field(&procedure, "a");
        let mut block = vec![0; 40];
        (0..3).for_each(|i| place.put_at(&mut block, i, 7 + i as i64));
        assert_eq!((block[32], block[34], block[36], place.get_at(&block, 2)), (7, 8, 9, 9));
    }
}
