//! A table's schema as bytes. Offsets do not travel: they follow from the columns, on either side.

use lockwork_procedure::partitioning::Partitioning;
use lockwork_procedure::schema::{ColumnType, TableSchema};

use super::wire::{Malformed, Put, Reader};

const UNDIVIDED: u8 = 0;
const BY_HASH: u8 = 1;
const REPLICATED: u8 = 2;

pub(crate) fn put(out: &mut Vec<u8>, schema: &TableSchema) {
    out.counted(schema.name().as_bytes());
    out.u8(u8::from(schema.is_ordered()));
    out.u8(schema.key().len() as u8);
    out.u8(schema.columns().len() as u8);
    for column in schema.columns() {
        out.counted(column.name.as_bytes());
        let (number, width) = match column.column_type {
            ColumnType::I8 => (0, None),
            ColumnType::I16 => (1, None),
            ColumnType::I32 => (2, None),
            ColumnType::I64 => (3, None),
            ColumnType::U8 => (4, None),
            ColumnType::U16 => (5, None),
            ColumnType::U32 => (6, None),
            ColumnType::Char(width) => (7, Some(width)),
            ColumnType::Bytes(width) => (8, Some(width)),
        };
        out.u8(number);
        width.into_iter().for_each(|width| out.u32(width));
    }
    match schema.partitioning() {
        None => out.u8(UNDIVIDED),
        Some(Partitioning::Hash(column)) => {
            out.u8(BY_HASH);
            out.u8(column as u8);
        }
        Some(Partitioning::Replicated) => out.u8(REPLICATED),
    }
}

pub(crate) fn get(reader: &mut Reader<'_>) -> Result<TableSchema, Malformed> {
    let name = reader.text()?;
    let (ordered, key, count) = (reader.flag()?, reader.u8()?, reader.u8()?);
    let mut columns = Vec::with_capacity(count.into());
    for _ in 0..count {
        let column = reader.text()?;
        let column_type = match reader.u8()? {
            0 => ColumnType::I8,
            1 => ColumnType::I16,
            2 => ColumnType::I32,
            3 => ColumnType::I64,
            4 => ColumnType::U8,
            5 => ColumnType::U16,
            6 => ColumnType::U32,
            7 => ColumnType::Char(width(reader)?),
            8 => ColumnType::Bytes(width(reader)?),
            other => return reader.wrong(format_args!("no column type has number {other}; there are 0 to 8")),
        };
        columns.push((column, column_type));
    }
    let schema = TableSchema::new(name, &columns, key.into(), ordered).or_else(|error| reader.wrong(error))?;
    match reader.u8()? {
        UNDIVIDED => Ok(schema),
        BY_HASH => match columns.get(usize::from(reader.u8()?)) {
            Some((column, _)) => schema.partition_by_hash(column).or_else(|error| reader.wrong(error)),
            None => reader.wrong(format_args!("the table is divided by a column that it has not, of {count}")),
        },
        REPLICATED => Ok(schema.replicate()),
        other => reader.wrong(format_args!("no way to divide a table has number {other}; there are 0 to 2")),
    }
}

fn width(reader: &mut Reader<'_>) -> Result<u32, Malformed> {
    match reader.u32()? {
        0 => reader.wrong("a column of no bytes; give it at least one"),
        width => Ok(width),
    }
}
