//! Payloads of definitions, rows, requests and ends.
//!
//! ```text
//! definition  assembly bytes (4), assembly, source bytes (4), source, and, of a procedure that takes the place of
//!             another one, the id of that (4)
//! rows        table name bytes (2), table name, bytes of a row image (4), row images
//! indexed     repeated: bytes of what follows (4), and that is as in rows
//! requests    of an earlier version: request ids of 8 bytes and outcomes, which are passed over
//! request ids the horizon, the youngest request id that was forgotten (16, zeros if none), then repeated:
//!             request id (16), procedure id (4), status (1), zero (1), abort code (2), hash of the arguments (8),
//!             result bytes (4), results
//! sizes       repeated: table name bytes (2), table name, rows (8)
//! end         rows (8), definitions (8), request ids (8), digest (16), whether the log reaches as far (8: 0 or 1)
//! ```

use lockwork_procedure::block::Status;
use lockwork_procedure::request::RequestId;
use lockwork_storage::Digest;

use super::Cursor;
use crate::requests::{Call, Outcome};

/// A table or a procedure, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// One procedure, as [`lockwork_procedure::assembly::assemble`] takes it, with the tables that it declares; or
    /// tables alone, as [`lockwork_procedure::assembly::assemble_tables`] takes them.
    pub assembly: String,
    /// The text that it was made from, for people and for tools; empty when there is none. It has no effect.
    pub source: String,
    /// The id of a procedure whose place this one takes: calls with this id are its calls from here on. It declares no
    /// tables that are new.
    pub replaces: Option<u32>,
}

impl Definition {
    /// A procedure or tables that are new.
    #[must_use]
    pub fn new(assembly: impl Into<String>, source: impl Into<String>) -> Self {
        Self { assembly: assembly.into(), source: source.into(), replaces: None }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        for text in [&self.assembly, &self.source] {
            out.extend((text.len() as u32).to_le_bytes());
            out.extend(text.as_bytes());
        }
        out.extend(self.replaces.iter().flat_map(|id| id.to_le_bytes()));
    }

    pub(crate) fn bytes(&self) -> usize {
        12 + self.assembly.len() + self.source.len()
    }

    pub(crate) fn decode(payload: &[u8]) -> Result<Self, String> {
        let mut cursor = Cursor::new(payload);
        let mut text = |what: &str| {
            let count = cursor.u32(what)? as usize;
            cursor.text(count, what)
        };
        let (assembly, source) = (text("the assembly")?, text("the source")?);
        let replaces = if cursor.left() > 0 { Some(cursor.u32("the id that is replaced")?) } else { None };
        let definition = Self { assembly, source, replaces };
        if cursor.left() > 0 { Err("bytes are left behind the definition".into()) } else { Ok(definition) }
    }
}

/// Row images of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows<'a> {
    pub(crate) table: &'a str,
    pub(crate) image_bytes: usize,
    pub(crate) images: &'a [u8],
}

impl<'a> Rows<'a> {
    /// The bytes before the images.
    pub(crate) fn put_head(out: &mut Vec<u8>, table: &str, image_bytes: usize) {
        out.extend((table.len() as u16).to_le_bytes());
        out.extend(table.as_bytes());
        out.extend((image_bytes as u32).to_le_bytes());
    }

    pub(crate) fn decode(payload: &'a [u8]) -> Result<Self, String> {
        let mut cursor = Cursor::new(payload);
        let count = usize::from(cursor.u16("the table's name")?);
        let table = std::str::from_utf8(cursor.take(count, "the table's name")?);
        let table = table.map_err(|_| "the table's name is not UTF-8".to_string())?;
        let image_bytes = cursor.u32("the length of a row")? as usize;
        let images = cursor.take(cursor.left(), "rows")?;
        if image_bytes == 0 || !images.len().is_multiple_of(image_bytes) {
            return Err(format!("{} bytes of rows of {image_bytes} bytes", images.len()));
        }
        Ok(Self { table, image_bytes, images })
    }

    pub(crate) fn count(&self) -> usize {
        self.images.len() / self.image_bytes
    }

    /// The rows of several tables that are one record.
    pub(crate) fn decode_all(payload: &'a [u8]) -> Result<Vec<Self>, String> {
        let mut cursor = Cursor::new(payload);
        let mut all = Vec::new();
        while cursor.left() > 0 {
            let count = cursor.u32("the rows of a table")? as usize;
            all.push(Self::decode(cursor.take(count, "the rows of a table")?)?);
        }
        Ok(all)
    }
}

pub(crate) fn put_sizes(out: &mut Vec<u8>, sizes: &[(String, u64)]) {
    for (table, rows) in sizes {
        out.extend((table.len() as u16).to_le_bytes());
        out.extend(table.as_bytes());
        out.extend(rows.to_le_bytes());
    }
}

pub(crate) fn sizes(payload: &[u8], mut each: impl FnMut(&str, u64)) -> Result<(), String> {
    let mut cursor = Cursor::new(payload);
    while cursor.left() > 0 {
        let count = usize::from(cursor.u16("the table's name")?);
        let table = cursor.text(count, "the table's name")?;
        each(&table, cursor.u64("rows")?);
    }
    Ok(())
}

pub(crate) fn put_outcome(out: &mut Vec<u8>, request: RequestId, outcome: &Outcome) {
    out.extend(request.to_bytes());
    out.extend(outcome.call.procedure.to_le_bytes());
    out.extend([outcome.status as u8, 0]);
    out.extend(outcome.code.to_le_bytes());
    out.extend(outcome.call.arguments.to_le_bytes());
    out.extend((outcome.results.len() as u32).to_le_bytes());
    out.extend(&*outcome.results);
}

/// Reads request ids and what became of their calls; `horizon` gets the youngest id that was forgotten, if any was.
pub(crate) fn outcomes(
    payload: &[u8],
    mut horizon: impl FnMut(RequestId),
    mut each: impl FnMut(RequestId, Outcome),
) -> Result<(), String> {
    let mut cursor = Cursor::new(payload);
    let id = |cursor: &mut Cursor<'_>| {
        let bytes: [u8; 16] = cursor.take(16, "a request id")?.try_into().expect("16 bytes");
        Ok::<_, String>((bytes, RequestId::from_bytes(bytes)))
    };
    match id(&mut cursor)? {
        (_, Some(id)) => horizon(id),
        (bytes, None) if bytes == [0; 16] => {}
        _ => return Err(NO_ID.into()),
    }
    while cursor.left() > 0 {
        let request = id(&mut cursor)?.1.ok_or(NO_ID)?;
        let procedure = cursor.u32("a procedure id")?;
        let (status, code) = status(&mut cursor)?;
        let arguments = cursor.u64("the hash of arguments")?;
        let count = cursor.u32("the length of results")? as usize;
        let results = cursor.take(count, "results")?.into();
        each(request, Outcome { call: Call { procedure, arguments }, status, code, results });
    }
    Ok(())
}

const NO_ID: &str = "a request id is no UUID of version 7 or 8";

fn status(cursor: &mut Cursor<'_>) -> Result<(Status, u16), String> {
    let status = u8::try_from(cursor.u16("a status")?).ok().and_then(Status::from_byte);
    let status = status.filter(|status| matches!(status, Status::Committed | Status::Aborted));
    let status = status.ok_or("a remembered call has no outcome")?;
    Ok((status, cursor.u16("an abort code")?))
}

/// Counts the request ids of 8 bytes that an earlier version remembered.
pub(crate) fn short_outcomes(payload: &[u8]) -> Result<u64, String> {
    let mut cursor = Cursor::new(payload);
    let mut found = 0;
    while cursor.left() > 0 {
        cursor.take(8 + 4, "a request id")?;
        status(&mut cursor)?;
        let count = cursor.u32("the length of results")? as usize;
        cursor.take(count, "results")?;
        found += 1;
    }
    Ok(found)
}

/// What stands at the end of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct End {
    pub(crate) rows: u64,
    pub(crate) definitions: u64,
    pub(crate) requests: u64,
    pub(crate) digest: Digest,
    /// The log holds the record that the checkpoint is named by. It does not when no log was written.
    pub(crate) logged: bool,
}

impl End {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        for count in [self.rows, self.definitions, self.requests] {
            out.extend(count.to_le_bytes());
        }
        out.extend(self.digest.0.to_le_bytes());
        out.extend(u64::from(self.logged).to_le_bytes());
    }

    pub(crate) fn decode(payload: &[u8]) -> Result<Self, String> {
        let mut cursor = Cursor::new(payload);
        let mut count = || cursor.u64("the end");
        let (rows, definitions, requests) = (count()?, count()?, count()?);
        let (low, high, logged) = (count()?, count()?, count()?);
        if cursor.left() > 0 || logged > 1 {
            return Err("the end of the checkpoint has other fields than version 1 has".into());
        }
        let digest = Digest(u128::from(high) << 64 | u128::from(low));
        Ok(Self { rows, definitions, requests, digest, logged: logged == 1 })
    }
}
