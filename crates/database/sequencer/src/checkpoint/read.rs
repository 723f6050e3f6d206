//! Reads a checkpoint, frame by frame, and verifies all of it: every byte is under a checksum, the counts and the
//! digest are those at its end.

use std::path::Path;

use lockwork_procedure::request::RequestId;
use lockwork_storage::Digest;

use crate::error::Error;
use crate::format::RECORDS_END;
use crate::format::file::{self, FileHeader, FileKind};
use crate::format::frame::{self, Found, Frame, RecordKind};
use crate::format::items::{Definition, End, Rows, outcomes, short_outcomes, sizes};
use crate::io::{File, Io, Mode};
use crate::journal::message::{Chain, Position};
use crate::requests::Outcome;

/// Who wants to know what is in a checkpoint.
pub(crate) trait Visitor {
    fn definition(&mut self, definition: Definition) -> Result<(), Error>;
    fn rows(&mut self, rows: &Rows<'_>) -> Result<(), Error>;
    /// How many rows a table has, about; told before its definition.
    fn size(&mut self, _table: &str, _rows: u64) {}
    /// Request ids that are remembered, and the youngest that was forgotten, if any was.
    fn requests(&mut self, horizon: Option<RequestId>, outcomes: Vec<(RequestId, Outcome)>);
    /// What the record behind the checkpoint follows, in a journal.
    fn chain(&mut self, _chain: Chain) {}
    /// How far it is in the streams of further sequencers.
    fn streams(&mut self, _positions: Vec<Position>) {}
    /// Every frame, before what is in it; `done` is where in the file it ends.
    fn frame(&mut self, _kind: RecordKind, _offset: u64, _bytes: u64) {}
}

fn read_exactly(file: &dyn File, path: &Path, offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
    let mut at = 0;
    while at < bytes.len() {
        match file.read_at(offset + at as u64, &mut bytes[at..]).map_err(|error| Error::io("read", path, error))? {
            0 => return Err(Error::damaged(path, offset, "the file ends in the middle")),
            read => at += read,
        }
    }
    Ok(())
}

/// Gives everything in the checkpoint at `path`, which covers records up to `number`, to `visitor`. Returns its header
/// and its end. What the visitor has seen counts only when no error is returned.
///
/// # Errors
/// [`Error::Damaged`], [`Error::Version`], [`Error::Io`], and those of the visitor.
pub(crate) fn read(
    io: &dyn Io,
    path: &Path,
    number: u64,
    visitor: &mut dyn Visitor,
) -> Result<(FileHeader, End), Error> {
    let failed = |error| Error::io("read", path, error);
    let file = io.open(path, Mode::Read).map_err(failed)?;
    let length = file.length().map_err(failed)?;
    let mut bytes = vec![0; length.min(file::BYTES as u64) as usize];
    read_exactly(&*file, path, 0, &mut bytes)?;
    let header = FileHeader::decode(path, &bytes, FileKind::Checkpoint)?;
    if header.number != number {
        let problem = format!("its name says record {number}, it says {}", header.number);
        return Err(Error::damaged(path, 24, problem));
    }
    if number >= RECORDS_END {
        return Err(Error::damaged(path, 24, format!("no log has {number} records")));
    }
    // A row takes at least a byte, so no more memory is asked for than the file justifies, for all tables together.
    let mut room = length;
    let salt = header.salt();
    let mut offset = file::BYTES as u64;
    let mut found = End::default();
    for index in 0_u64.. {
        let damaged = |problem: String| Error::damaged(path, offset, problem);
        let left = length - offset;
        bytes.resize(left.min(frame::BYTES as u64) as usize, 0);
        read_exactly(&*file, path, offset, &mut bytes)?;
        if let Some(frame) = Frame::decode(&bytes, salt) {
            bytes.resize(left.min(frame.bytes() as u64) as usize, 0);
            read_exactly(&*file, path, offset, &mut bytes)?;
        }
        let (frame, payload) = match frame::look(&bytes, salt) {
            Found::Frame(frame, payload) => (frame, payload),
            Found::Bad(problem) => return Err(damaged(problem)),
            Found::Nothing => return Err(damaged("the checkpoint ends without its end".into())),
            Found::Version(found) => {
                return Err(Error::Version { path: path.into(), found, wanted: crate::format::VERSION });
            }
        };
        if frame.number != index {
            return Err(damaged(format!("frame {} stands where frame {index} is due", frame.number)));
        }
        visitor.frame(frame.kind, offset, frame.bytes() as u64);
        match frame.kind {
            RecordKind::Sizes => {
                let each = |table: &str, rows: u64| {
                    let rows = rows.min(room);
                    room -= rows;
                    visitor.size(table, rows);
                };
                sizes(payload, each).map_err(damaged)?;
            }
            RecordKind::Definition => {
                found.definitions += 1;
                visitor.definition(Definition::decode(payload).map_err(damaged)?)?;
            }
            RecordKind::Rows => {
                let rows = Rows::decode(payload).map_err(damaged)?;
                found.rows += rows.count() as u64;
                found.digest = found.digest.combine(Digest::of_rows(rows.table, rows.image_bytes, rows.images));
                visitor.rows(&rows)?;
            }
            RecordKind::Requests => found.requests += short_outcomes(payload).map_err(damaged)?,
            RecordKind::RequestIds => {
                let (mut horizon, mut read) = (None, Vec::new());
                let each = |request, outcome| read.push((request, outcome));
                outcomes(payload, |id| horizon = Some(id), each).map_err(damaged)?;
                found.requests += read.len() as u64;
                visitor.requests(horizon, read);
            }
            RecordKind::End => {
                let end = End::decode(payload).map_err(damaged)?;
                found.logged = end.logged;
                if found != end {
                    return Err(damaged(format!("it should hold {end:?} and holds {found:?}")));
                }
                if offset + frame.bytes() as u64 != length {
                    return Err(damaged("the file goes on behind its end".into()));
                }
                return Ok((header, end));
            }
            RecordKind::Chain => visitor.chain(Chain::decode(payload).map_err(damaged)?),
            RecordKind::Streams => visitor.streams(Position::decode_all(payload).map_err(damaged)?),
            RecordKind::Calls
            | RecordKind::Indexed
            | RecordKind::Durable
            | RecordKind::Epoch
            | RecordKind::Answered
            | RecordKind::Digest
            | RecordKind::Ordered
            | RecordKind::Cut
            | RecordKind::Gathered
            | RecordKind::Loaded
            | RecordKind::Merged
            | RecordKind::Compared => {
                return Err(damaged(format!("a record of kind {} has no place in a checkpoint", frame.kind.name())));
            }
        }
        offset += frame.bytes() as u64;
    }
    Err(Error::damaged(path, offset, "the checkpoint has no end"))
}
