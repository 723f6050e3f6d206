//! The rows of one worker: what it hands out, and what it is told to change.
//!
//! A worker is one thread, and no address of a row is kept longer than one of these calls.

use lockwork_procedure::isa::scan_source;
use lockwork_procedure::key::Key;
use lockwork_storage::{Database, StorageError};

use crate::access::Scan;
use crate::message::{EXPORTED, PIECE, ROWS};
use crate::stream::{Stream, StreamError};
use crate::wire::{Malformed, Put, Reader};

/// The image of the row of a key, if there is one.
pub(crate) fn image<'a>(database: &'a Database, table: u16, key: &Key) -> Option<&'a [u8]> {
    let table = database.table(table);
    // SAFETY: the worker's thread alone touches its rows, and changes them only through `&mut` of its database's owner.
    table.find(key.hash(), key).map(|row| unsafe { table.row_image(row) })
}

/// Appends what a scan from `from` on finds in this partition.
pub(crate) fn scan(database: &Database, table: u16, from: &Key, scan: &mut Scan) {
    let table = database.table(table);
    let (offset, length) = scan_source(table.schema(), usize::from(scan.column).checked_sub(1));
    let taken = offset as usize..(offset + length) as usize;
    table.scan(from, scan.limit as usize, taken.clone(), |row| {
        let header = lockwork_procedure::schema::ROW_HEADER_BYTES as usize;
        // SAFETY: as for `image`.
        let image = unsafe { table.row_image(row) };
        scan.keys.push(table.key_format().encode(image));
        scan.bytes.extend_from_slice(&image[taken.start - header..taken.end - header]);
    });
}

/// Makes the row of a key be `image`, or be gone if that is `None`.
///
/// # Errors
/// No memory for it.
pub(crate) fn put(database: &Database, table: u16, key: &Key, image: Option<&[u8]>) -> Result<(), StorageError> {
    let table = database.table(table);
    let Some(image) = image else {
        // SAFETY: the worker's thread alone touches its rows.
        unsafe { table.remove(key.hash(), key) };
        return Ok(());
    };
    let Some(row) = table.find(key.hash(), key) else { return table.load(image).map(drop) };
    let start = table.key_format().image_bytes();
    // SAFETY: as above; the image is as long as a row's.
    unsafe {
        let target = &mut *row.image(table.schema());
        target[start..].copy_from_slice(&image[start..]);
    }
    Ok(())
}

/// Answers a `FETCH`, all behind its transaction.
pub(crate) fn answer(database: &Database, reader: &mut Reader<'_>, out: &mut Vec<u8>) -> Result<(), Malformed> {
    while !reader.is_empty() {
        let table = known(database, reader.u16()?)?;
        let key = reader.key()?;
        if reader.u8()? == 0 {
            out.counted(image(database, table, &key).unwrap_or_default());
            continue;
        }
        let mut found = Scan { limit: reader.u32()?, column: reader.u8()?, keys: Vec::new(), bytes: Vec::new() };
        let schema = database.table(table).schema();
        if !schema.is_ordered() || usize::from(found.column) > schema.columns().len() {
            return Err(Malformed::new(format_args!("a scan that table '{}' does not allow", schema.name())));
        }
        scan(database, table, &key, &mut found);
        out.u32(found.keys.len() as u32);
        found.keys.iter().for_each(|key| out.key(key));
        out.counted(&found.bytes);
    }
    Ok(())
}

/// Does what an `APPLY` says, all behind its transaction.
pub(crate) fn apply(database: &Database, reader: &mut Reader<'_>) -> Result<(), String> {
    let wrong = |error: Malformed| error.to_string();
    while !reader.is_empty() {
        let table = known(database, reader.u16().map_err(wrong)?).map_err(wrong)?;
        let (key, image) = (reader.key().map_err(wrong)?, reader.counted().map_err(wrong)?);
        let schema = database.table(table).schema();
        let length = (schema.row_bytes() - lockwork_procedure::schema::ROW_HEADER_BYTES) as usize;
        if !image.is_empty() && image.len() != length {
            return Err(wrong(Malformed::new(format_args!("a row of {} bytes, not {length}", image.len()))));
        }
        put(database, table, &key, (!image.is_empty()).then_some(image)).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Loads the rows behind their table's number.
///
/// # Errors
/// Bytes that are no rows of it, or no memory for them, in words.
pub(crate) fn load(database: &Database, bytes: &[u8]) -> Result<(), Malformed> {
    let mut reader = Reader::new(bytes);
    let table = database.table(known(database, reader.u16()?)?);
    let width = (table.schema().row_bytes() - lockwork_procedure::schema::ROW_HEADER_BYTES) as usize;
    bytes[2..].chunks(width).try_for_each(|image| table.load(image).map(drop)).map_err(Malformed::new)
}

/// Tells the coordinator all rows that may have changed.
///
/// # Errors
/// What the stream says.
pub(crate) fn export(
    database: &Database,
    written: impl Fn(u16) -> bool,
    coordinator: &mut Stream,
) -> Result<(), StreamError> {
    for id in (0..database.len() as u16).filter(|&id| written(id)) {
        let table = database.table(id);
        let mut start = Some(0);
        let count = (PIECE / table.schema().row_bytes() as usize).max(1) as u64;
        while let Some(from) = start {
            coordinator.send(|frame| {
                frame.u8(ROWS);
                frame.u16(id);
                // SAFETY: the worker's thread alone touches the rows.
                start = table.for_some(from, count, |_, row| frame.bytes(unsafe { table.row_image(row) }));
            });
            coordinator.drain(PIECE)?;
        }
    }
    coordinator.send(|frame| frame.u8(EXPORTED));
    Ok(())
}

/// A table's number, if there is such a table.
pub(crate) fn known(database: &Database, table: u16) -> Result<u16, Malformed> {
    let error = || Malformed::new(format_args!("no table has number {table}; there are {}", database.len()));
    (usize::from(table) < database.len()).then_some(table).ok_or_else(error)
}
