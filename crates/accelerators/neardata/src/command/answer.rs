//! Answers as bytes: *pieces*, each complete in itself and no longer than a slot of the channel, and then one
//! *outcome*.
//!
//! ```text
//! piece     kind, 1 byte | fields | elements to the end
//! outcome   0 | kind of answer | its fields        or        number of the error | its fields
//! ```
//!
//! Trade-off: a device hands over pieces of any length, and `rows` and `elements` cut them to length; images are
//! not touched for that, but go straight from the device's memory into the slot.

use lockwork_procedure::schema::{MAX_KEY_BYTES, MAX_ROW_BYTES, TableSchema};

use super::wire::{Malformed, Put, Reader};
use super::{put_version, schema, version};
use crate::device::{DeviceError, DeviceStatus, Modified, Piece, Ran, TableId, Tuple, Version};
use crate::record::{RecordId, Vid};

const ROWS: u8 = 1;
const FOLDED: u8 = 2;
const MODIFIED: u8 = 3;
const TUPLES: u8 = 4;
const RECORDS: u8 = 5;
const SCHEMAS: u8 = 6;

/// The most bytes that a tuple takes in a piece.
pub(crate) const TUPLE_BYTES: usize = 4 + 4 + 8 + 8 + 1 + MAX_KEY_BYTES as usize;
/// Bytes of a modified tuple in a piece.
const MODIFIED_BYTES: usize = 4 + 4 + 8;
/// Bytes of a piece of rows before its VIDs.
const ROWS_HEAD_BYTES: usize = 1 + 4 + 4;
/// The most bytes of an error's text; the rest is cut off.
const TEXT_BYTES: usize = 4096;

/// What a call that went well answers at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing more than the pieces.
    Nothing,
    /// The number of the new table.
    Table(TableId),
    /// A version, or that none is visible.
    Version(Option<Version>),
    /// What became of a bulk operation.
    Ran(Ran),
    /// How many versions were freed.
    Freed(u64),
    /// How full the storage is.
    Status(DeviceStatus),
}

/// A piece of an answer, decoded.
#[derive(Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// Of a bulk operation.
    Bulk(Piece<'a>),
    /// Of a list of tuples.
    Tuples(Vec<Tuple<'a>>),
    /// Where flushed versions are.
    Records(Vec<RecordId>),
    /// Tables.
    Schemas(Vec<TableSchema>),
}

/// Memory for what a piece contains as other than bytes; used again for the next one.
#[derive(Debug, Default)]
pub struct Elements {
    vids: Vec<Vid>,
    values: Vec<i64>,
    modified: Vec<Modified>,
}

/// Cuts rows into pieces of at most `limit` bytes; gives each as its parts.
pub(crate) fn rows<E>(
    vids: &[Vid],
    images: &[u8],
    limit: usize,
    mut send: impl FnMut(&[&[u8]]) -> Result<(), E>,
) -> Result<(), E> {
    if vids.is_empty() {
        return Ok(());
    }
    let image_bytes = images.len() / vids.len();
    assert!(image_bytes * vids.len() == images.len(), "images of {} rows are of one length", vids.len());
    assert!(image_bytes <= MAX_ROW_BYTES as usize, "an image of {image_bytes} bytes is no row's");
    let most = (limit - ROWS_HEAD_BYTES) / (4 + image_bytes);
    let mut head = Vec::with_capacity(ROWS_HEAD_BYTES + 4 * most.min(vids.len()));
    for (position, vids) in vids.chunks(most).enumerate() {
        head.clear();
        head.u8(ROWS);
        head.u32(vids.len() as u32);
        head.u32(image_bytes as u32);
        vids.iter().for_each(|vid| head.u32(vid.0));
        let start = position * most * image_bytes;
        send(&[&head, &images[start..start + vids.len() * image_bytes]])?;
    }
    Ok(())
}

/// Cuts elements into pieces of `kind`.
fn elements<T, E>(
    (kind, bytes): (u8, usize),
    all: &[T],
    limit: usize,
    put: impl Fn(&mut Vec<u8>, &T),
    mut send: impl FnMut(&[&[u8]]) -> Result<(), E>,
) -> Result<(), E> {
    let mut piece = Vec::with_capacity((1 + bytes * all.len()).min(limit));
    for some in all.chunks((limit - 1) / bytes) {
        piece.clear();
        piece.u8(kind);
        some.iter().for_each(|element| put(&mut piece, element));
        send(&[&piece])?;
    }
    Ok(())
}

/// Cuts a list of modified tuples into pieces.
pub(crate) fn modified<E>(
    all: &[Modified],
    limit: usize,
    send: impl FnMut(&[&[u8]]) -> Result<(), E>,
) -> Result<(), E> {
    let put = |out: &mut Vec<u8>, modified: &Modified| {
        out.u32(modified.vid.0);
        out.u32(modified.number);
        out.u64(modified.record.bits());
    };
    elements((MODIFIED, MODIFIED_BYTES), all, limit, put, send)
}

/// Cuts a list of places into pieces.
pub(crate) fn records<E>(all: &[RecordId], limit: usize, send: impl FnMut(&[&[u8]]) -> Result<(), E>) -> Result<(), E> {
    elements((RECORDS, 8), all, limit, |out, record| out.u64(record.bits()), send)
}

/// Folded results as a piece.
pub(crate) fn folded(rows: u64, values: Option<&[i64]>) -> Vec<u8> {
    let mut out = Vec::new();
    out.u8(FOLDED);
    out.u64(rows);
    out.u8(u8::from(values.is_some()));
    values.into_iter().flatten().for_each(|value| out.u64(*value as u64));
    out
}

/// Begins a piece of tuples, to which [`put_tuple`] adds.
pub(crate) fn start_tuples(out: &mut Vec<u8>) {
    out.clear();
    out.u8(TUPLES);
}

/// Adds a tuple: at most [`TUPLE_BYTES`].
pub(crate) fn put_tuple(out: &mut Vec<u8>, tuple: &Tuple<'_>) {
    assert!(tuple.key.len() <= MAX_KEY_BYTES as usize, "a key of {} bytes is none", tuple.key.len());
    out.u32(tuple.vid.0);
    out.u32(tuple.number);
    out.u64(tuple.created);
    out.u64(tuple.record.bits());
    out.u8(tuple.key.len() as u8);
    out.extend_from_slice(tuple.key);
}

/// A table as a piece.
pub(crate) fn table(table: &TableSchema) -> Vec<u8> {
    let mut out = Vec::new();
    out.u8(SCHEMAS);
    schema::put(&mut out, table);
    out
}

fn record(reader: &mut Reader<'_>) -> Result<RecordId, Malformed> {
    let bits = reader.u64()?;
    RecordId::from_bits(bits).map_or_else(|| reader.wrong(format_args!("{bits:#x} is no record id")), Ok)
}

/// The piece in these bytes.
///
/// # Errors
/// What is wrong with them, and where.
pub fn decode_piece<'a>(bytes: &'a [u8], memory: &'a mut Elements) -> Result<Content<'a>, Malformed> {
    let mut reader = Reader::new(bytes);
    let content = match reader.u8()? {
        ROWS => {
            let (count, image_bytes) = (u64::from(reader.u32()?), u64::from(reader.u32()?));
            if count.checked_mul(4 + image_bytes) != Some(reader.left() as u64) {
                let left = reader.left();
                return reader.wrong(format_args!("{count} rows of {image_bytes} bytes each in {left} bytes"));
            }
            memory.vids.clear();
            let (vids, _) = reader.take(4 * count as usize)?.as_chunks();
            memory.vids.extend(vids.iter().map(|bytes| Vid(u32::from_le_bytes(*bytes))));
            Content::Bulk(Piece::Rows { vids: &memory.vids, images: reader.take(reader.left())? })
        }
        FOLDED => {
            let (rows, some) = (reader.u64()?, reader.flag()?);
            memory.values.clear();
            while some && reader.left() > 0 {
                memory.values.push(reader.i64()?);
            }
            Content::Bulk(Piece::Folded { rows, values: some.then_some(&memory.values) })
        }
        MODIFIED => {
            memory.modified.clear();
            while reader.left() > 0 {
                let (vid, number) = (Vid(reader.u32()?), reader.u32()?);
                memory.modified.push(Modified { vid, number, record: record(&mut reader)? });
            }
            Content::Bulk(Piece::Modified(&memory.modified))
        }
        TUPLES => {
            let mut tuples = Vec::new();
            while reader.left() > 0 {
                let (vid, number, created) = (Vid(reader.u32()?), reader.u32()?, reader.u64()?);
                let (record, length) = (record(&mut reader)?, reader.u8()?);
                if u32::from(length) > MAX_KEY_BYTES {
                    return reader.wrong(format_args!("a key of {length} bytes; at most {MAX_KEY_BYTES} are possible"));
                }
                tuples.push(Tuple { vid, number, created, record, key: reader.take(length.into())? });
            }
            Content::Tuples(tuples)
        }
        RECORDS => {
            let mut records = Vec::with_capacity(reader.left() / 8);
            while reader.left() > 0 {
                records.push(record(&mut reader)?);
            }
            Content::Records(records)
        }
        SCHEMAS => {
            let mut schemas = Vec::new();
            while reader.left() > 0 {
                schemas.push(schema::get(&mut reader)?);
            }
            Content::Schemas(schemas)
        }
        other => return reader.wrong(format_args!("no piece has number {other}; there are 1 to {SCHEMAS}")),
    };
    reader.end()?;
    Ok(content)
}

/// How a call ended, as bytes.
#[must_use]
pub fn encode_outcome(outcome: &Result<Answer, DeviceError>) -> Vec<u8> {
    let mut out = Vec::with_capacity(40);
    let answer = match outcome {
        Ok(answer) => answer,
        Err(error) => {
            put_error(&mut out, error);
            return out;
        }
    };
    out.u8(0);
    match answer {
        Answer::Nothing => out.u8(0),
        Answer::Table(table) => {
            out.u8(1);
            out.u16(*table);
        }
        Answer::Version(None) => out.u8(2),
        Answer::Version(Some(version)) => {
            out.u8(3);
            put_version(&mut out, version);
        }
        Answer::Ran(ran) => {
            out.u8(4);
            out.u64(ran.rows);
            out.u64(ran.taken);
        }
        Answer::Freed(count) => {
            out.u8(5);
            out.u64(*count);
        }
        Answer::Status(DeviceStatus { pages, free_pages, versions, newest }) => {
            out.u8(6);
            [pages, free_pages, versions, newest].into_iter().for_each(|field| out.u64(*field));
        }
    }
    out
}

fn put_error(out: &mut Vec<u8>, error: &DeviceError) {
    let mut texts = |number: u8, text: &str| {
        out.u8(number);
        out.counted(&text.as_bytes()[..text.floor_char_boundary(TEXT_BYTES)]);
    };
    match error {
        DeviceError::Refused(text) => texts(4, text),
        DeviceError::Full(text) => texts(5, text),
        DeviceError::Io(text) => texts(6, text),
        DeviceError::Corrupt(text) => texts(7, text),
        DeviceError::Gone(text) => texts(8, text),
        DeviceError::Conflict { table, vid } => {
            out.u8(1);
            out.u16(*table);
            out.u32(vid.0);
        }
        DeviceError::Busy { table, vid } => {
            out.u8(2);
            out.u16(*table);
            out.u32(vid.0);
        }
        DeviceError::RowFailed { table, vid, code } => {
            out.u8(3);
            out.u16(*table);
            out.u32(vid.0);
            out.u16(*code);
        }
    }
}

/// How a call ended, from bytes.
///
/// # Errors
/// What is wrong with them, and where.
pub fn decode_outcome(bytes: &[u8]) -> Result<Result<Answer, DeviceError>, Malformed> {
    let mut reader = Reader::new(bytes);
    let outcome = match reader.u8()? {
        0 => Ok(answer(&mut reader)?),
        1 => Err(DeviceError::Conflict { table: reader.u16()?, vid: Vid(reader.u32()?) }),
        2 => Err(DeviceError::Busy { table: reader.u16()?, vid: Vid(reader.u32()?) }),
        3 => Err(DeviceError::RowFailed { table: reader.u16()?, vid: Vid(reader.u32()?), code: reader.u16()? }),
        4 => Err(DeviceError::Refused(reader.text()?.into())),
        5 => Err(DeviceError::Full(reader.text()?.into())),
        6 => Err(DeviceError::Io(reader.text()?.into())),
        7 => Err(DeviceError::Corrupt(reader.text()?.into())),
        8 => Err(DeviceError::Gone(reader.text()?.into())),
        other => return reader.wrong(format_args!("no outcome has number {other}; there are 0 to 8")),
    };
    reader.end()?;
    Ok(outcome)
}

fn answer(reader: &mut Reader<'_>) -> Result<Answer, Malformed> {
    Ok(match reader.u8()? {
        0 => Answer::Nothing,
        1 => Answer::Table(reader.u16()?),
        2 => Answer::Version(None),
        3 => Answer::Version(Some(version(reader)?)),
        4 => Answer::Ran(Ran { rows: reader.u64()?, taken: reader.u64()? }),
        5 => Answer::Freed(reader.u64()?),
        6 => {
            let (pages, free_pages) = (reader.u64()?, reader.u64()?);
            Answer::Status(DeviceStatus { pages, free_pages, versions: reader.u64()?, newest: reader.u64()? })
        }
        other => return reader.wrong(format_args!("no answer has number {other}; there are 0 to 6")),
    })
}
