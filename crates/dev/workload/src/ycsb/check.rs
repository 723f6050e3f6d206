//! What must hold after YCSB: no value is torn, no row is lost, doubled or made up.

use lockwork_procedure::block::{Batch, Block, Status};
use lockwork_procedure::schema::ROW_HEADER_BYTES;

use super::{ReadScope, Slot, Ycsb, shape};
use crate::value::is_intact;
use crate::{Export, WorkloadError};

fn violation<T>(what: String) -> Result<T, WorkloadError> {
    Err(WorkloadError::Violation(what))
}

fn i64_at(bytes: &[u8], at: usize) -> i64 {
    i64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Every value that the committed transactions of a batch read is whole; how many there are.
pub(super) fn results(ycsb: &Ycsb, batch: &Batch) -> Result<u64, WorkloadError> {
    let mut values = 0;
    for (index, block) in batch.blocks().enumerate() {
        let Some(&place) = ycsb.by_id.get(&block.procedure()) else { continue };
        if block.status() != Some(Status::Committed) {
            continue;
        }
        for slot in &ycsb.bound[place].slots {
            values += operation(ycsb, index, &block, slot)?;
        }
    }
    Ok(values)
}

fn operation(ycsb: &Ycsb, index: usize, block: &Block<'_>, slot: &Slot) -> Result<u64, WorkloadError> {
    let config = &ycsb.config;
    let (width, stride) = (config.field_bytes as usize, config.field_stride() as usize);
    let fields = if config.read_scope == ReadScope::Row { config.fields as usize } else { 1 };
    let bytes = block.bytes();
    let key = i64_at(bytes, slot.key);
    let whole = |at: usize, of: &str| match is_intact(&bytes[at..at + width]) {
        true => Ok(1_u64),
        false => violation(format!("block {index}, {of} of key {key}: the value at byte {at} is torn")),
    };
    let mut values = 0;
    if let Some(out) = slot.out {
        for field in 0..fields {
            values += whole(out + field * stride, "read")?;
        }
    }
    if let (Some(count), Some(length), Some(rows)) = (slot.count, slot.length, slot.rows) {
        let (count, asked) = (i64_at(bytes, count), i64_at(bytes, length));
        if !(0..=asked).contains(&count) {
            return violation(format!("block {index}, scan from key {key}: {count} rows of {asked}"));
        }
        // Rows are never removed, so a scan is short only where the keys end.
        let last = i64::try_from(config.records).unwrap_or(i64::MAX);
        if count < asked.min(last - key) {
            return violation(format!("block {index}, scan from key {key}: only {count} rows of {asked}"));
        }
        let row = shape::scan_row_stride(config) as usize;
        let first = match config.read_scope {
            ReadScope::Row => (ycsb.schema.columns()[1].offset - ROW_HEADER_BYTES) as usize,
            ReadScope::Field => 0,
        };
        for place in 0..count as usize {
            for field in 0..fields {
                values += whole(rows + place * row + first + field * stride, "scan")?;
            }
        }
    }
    Ok(values)
}

/// Every field of every row is whole, and the rows are those loaded and those inserted, each once.
pub(super) fn contents(ycsb: &Ycsb, export: &mut Export<'_>, inserts: u64) -> Result<String, WorkloadError> {
    let mut seen = vec![0_u64; (ycsb.keys.end() as usize).div_ceil(64)];
    let mut rows = 0_u64;
    let mut wrong = None;
    export(&mut |table, image| {
        if table == ycsb.schema.name() && wrong.is_none() {
            rows += 1;
            wrong = row(ycsb, image, &mut seen).err();
        }
    });
    if let Some(wrong) = wrong {
        return Err(wrong);
    }
    let expected = ycsb.config.records.saturating_add(inserts);
    if rows != expected {
        let (records, name) = (ycsb.config.records, ycsb.schema.name());
        return violation(format!("{name} has {rows} rows; {records} loaded and {inserts} inserted make {expected}"));
    }
    if let Some(lost) = (0..ycsb.config.records).find(|key| seen[(key / 64) as usize] >> (key % 64) & 1 == 0) {
        return violation(format!("the row of key {lost}, which was loaded, is missing"));
    }
    let values = rows * u64::from(ycsb.config.fields);
    Ok(format!("{rows} rows ({inserts} of them inserted), all {values} values whole"))
}

fn row(ycsb: &Ycsb, image: &[u8], seen: &mut [u64]) -> Result<(), WorkloadError> {
    let length = (ycsb.schema.row_bytes() - ROW_HEADER_BYTES) as usize;
    if image.len() != length {
        return violation(format!("a row image has {} bytes instead of {length}", image.len()));
    }
    let key = i64_at(image, 0);
    let Some(place) = u64::try_from(key).ok().filter(|&key| ycsb.keys.contain(key)) else {
        return violation(format!("a row has key {key}, which was neither loaded nor inserted"));
    };
    let (word, bit) = (&mut seen[(place / 64) as usize], 1 << (place % 64));
    if *word & bit != 0 {
        return violation(format!("there are two rows of key {key}"));
    }
    *word |= bit;
    for column in &ycsb.schema.columns()[1..] {
        let start = (column.offset - ROW_HEADER_BYTES) as usize;
        if !is_intact(&image[start..start + column.column_type.width() as usize]) {
            return violation(format!("{} of key {key} is torn", column.name));
        }
    }
    Ok(())
}
