//! Walks a log or a checkpoint, verifies all of it, and tells what is there. Nothing is opened for writing or locked,
//! so it can look at a directory that is in use; what is being written at the moment then looks torn.

use std::path::{Path, PathBuf};

use lockwork_procedure::request::RequestId;
use lockwork_storage::Digest;

use crate::catalogue::Catalogue;
use crate::checkpoint::read::{Visitor, read};
use crate::directory::{Directory, Listing};
use crate::error::Error;
use crate::format::calls::runs;
use crate::format::frame::RecordKind;
use crate::format::items::{Definition, Rows};
use crate::io::Io;
use crate::journal::message::Chain;
use crate::log::reader::{LogEnd, Record, Torn, Wanted, walk};
use crate::requests::Outcome;

/// What is in a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Runs of calls. `None` when the definitions that say how long calls are lie before what is inspected.
    Calls(Option<Vec<Calls>>),
    /// A table or a procedure.
    Definition(Definition),
    /// Table, and how many rows.
    Rows(String, usize),
    /// The same of a table and of its indexes.
    Indexed(Vec<(String, u64)>),
    /// How many rows each table has, about, in a checkpoint.
    Sizes(Vec<(String, u64)>),
    /// In a checkpoint of an earlier version: request ids of 8 bytes, which count as too old.
    ShortRequests,
    /// In a checkpoint: request ids whose outcomes are remembered, and the youngest id that was forgotten, if any was.
    Requests(Option<RequestId>, Vec<RequestId>),
    /// Everything before is durable.
    Durable,
    /// In a checkpoint of a node: epoch of the last record that it covers.
    Chain(u64),
    /// Rows and digest of a checkpoint.
    End(u64, Digest),
}

/// A run of calls of one procedure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calls {
    /// Name of the procedure.
    pub procedure: String,
    /// How many calls.
    pub calls: usize,
    /// The request ids of those that have one.
    pub requests: Vec<RequestId>,
}

/// A record, verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The file.
    pub path: PathBuf,
    /// Where it begins.
    pub offset: u64,
    /// Its bytes, header and padding included.
    pub bytes: u64,
    /// Its number; in a checkpoint, its place.
    pub number: u64,
    /// Its kind.
    pub kind: RecordKind,
    /// What is in it.
    pub contents: Contents,
}

/// What a walk found.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// The number of the next record of the log; the last record that the checkpoint covers.
    pub number: u64,
    /// Records of the log, or frames of the checkpoint. Frames that only say what is durable are no records.
    pub records: u64,
    /// Bytes of all frames.
    pub bytes: u64,
    /// What is torn at the end of the log.
    pub torn: Option<Torn>,
    /// Files in the directory that are not Lockwork's.
    pub unknown: Vec<PathBuf>,
}

/// Definitions as of the newest checkpoint that can be read.
struct Definitions<'a> {
    catalogue: Catalogue,
    entry: &'a mut dyn FnMut(Entry),
    path: PathBuf,
    at: (u64, u64, RecordKind),
    number: u64,
    summary: Summary,
    sizes: Vec<(String, u64)>,
    silent: bool,
}

impl Definitions<'_> {
    fn tell(&mut self, contents: Contents) {
        let (offset, bytes, kind) = self.at;
        let number = self.number - 1;
        if !self.silent {
            (self.entry)(Entry { path: self.path.clone(), offset, bytes, number, kind, contents });
        }
    }

    fn flush(&mut self) {
        if !self.sizes.is_empty() {
            let sizes = std::mem::take(&mut self.sizes);
            self.tell(Contents::Sizes(sizes));
        }
    }
}

impl Visitor for Definitions<'_> {
    fn definition(&mut self, definition: Definition) -> Result<(), Error> {
        self.catalogue.add(self.catalogue.understand(&definition)?);
        self.tell(Contents::Definition(definition));
        Ok(())
    }

    fn rows(&mut self, rows: &Rows<'_>) -> Result<(), Error> {
        self.tell(Contents::Rows(rows.table.to_string(), rows.count()));
        Ok(())
    }

    fn size(&mut self, table: &str, rows: u64) {
        self.sizes.push((table.to_string(), rows));
    }

    fn chain(&mut self, chain: Chain) {
        self.tell(Contents::Chain(chain.epoch));
    }

    fn requests(&mut self, horizon: Option<RequestId>, outcomes: Vec<(RequestId, Outcome)>) {
        self.tell(Contents::Requests(horizon, outcomes.into_iter().map(|(request, _)| request).collect()));
    }

    fn frame(&mut self, kind: RecordKind, offset: u64, bytes: u64) {
        self.flush();
        self.at = (offset, bytes, kind);
        self.number += 1;
        self.summary.records += 1;
        self.summary.bytes += bytes;
        if kind == RecordKind::Requests {
            self.tell(Contents::ShortRequests);
        }
    }
}

/// Walks the newest checkpoint of the directory at `path`. `None` when there is none.
///
/// # Errors
/// [`Error::Damaged`] and [`Error::Version`] with file and offset, and [`Error::Io`].
pub fn checkpoint(io: &dyn Io, path: &Path, entry: &mut dyn FnMut(Entry)) -> Result<Option<Summary>, Error> {
    let (directory, listing, database) = find(io, path)?;
    let Some(&number) = listing.checkpoints.last() else { return Ok(None) };
    let mut walked = visit(io, &directory, (number, database), entry, false)?;
    (walked.1.number, walked.1.unknown) = (number, listing.unknown);
    Ok(Some(walked.1))
}

/// What is in the directory at `path`, and which database it is, if it was ever finished.
fn find(io: &dyn Io, path: &Path) -> Result<(Directory, Listing, Option<u64>), Error> {
    let directory = Directory::new(path);
    let listing = directory.list(io)?;
    let database = directory.identify(io, &listing)?;
    if database.is_none() {
        // A directory of something else has none for a log.
        io.list(&directory.log).map_err(|error| Error::io("list", &directory.log, error))?;
    }
    Ok((directory, listing, database))
}

fn visit(
    io: &dyn Io,
    directory: &Directory,
    (number, database): (u64, Option<u64>),
    entry: &mut dyn FnMut(Entry),
    silent: bool,
) -> Result<(Catalogue, Summary), Error> {
    let path = directory.checkpoint(number);
    let mut visitor = Definitions {
        catalogue: Catalogue::default(),
        entry,
        path: path.clone(),
        at: (0, 0, RecordKind::End),
        number: 0,
        summary: Summary::default(),
        sizes: Vec::new(),
        silent,
    };
    let (header, end) = read(io, &path, number, &mut visitor)?;
    if database.is_some_and(|database| database != header.database) {
        return Err(Error::damaged(&path, 16, "the checkpoint belongs to another database"));
    }
    visitor.flush();
    visitor.tell(Contents::End(end.rows, end.digest));
    Ok((visitor.catalogue, visitor.summary))
}

/// Walks the log of the directory at `path`.
///
/// # Errors
/// [`Error::Damaged`] and [`Error::Version`] with file and offset, and [`Error::Io`]. Entries before the place have
/// been told by then.
pub fn log(io: &dyn Io, path: &Path, entry: &mut dyn FnMut(Entry)) -> Result<Summary, Error> {
    let (directory, listing, database) = find(io, path)?;
    let covered = listing.checkpoints.last().copied().unwrap_or(0);
    // How long calls are follows from definitions, the first of which may be in the checkpoint only.
    let mut known = match listing.checkpoints.last() {
        Some(&number) => visit(io, &directory, (number, database), &mut |_| (), true)?.0,
        None => Catalogue::default(),
    };
    let complete = listing.segments.first() == Some(&1);
    if complete {
        known = Catalogue::default();
    }
    let wanted = Wanted { segments: &listing.segments, database, covered, all: true };
    let mut summary = Summary::default();
    let mut each = |record: Record<'_>| {
        summary.records += u64::from(record.frame.kind != RecordKind::Durable);
        summary.bytes += record.frame.bytes() as u64;
        let fresh = complete || record.frame.number > covered;
        let contents = contents(&mut known, &record, fresh)?;
        let Record { path, offset, frame, .. } = record;
        let (bytes, number, kind) = (frame.bytes() as u64, frame.number, frame.kind);
        entry(Entry { path: path.to_path_buf(), offset, bytes, number, kind, contents });
        Ok(())
    };
    let LogEnd { next, torn, .. } = walk(io, &directory, &wanted, &mut each)?;
    (summary.number, summary.torn, summary.unknown) = (next, torn, listing.unknown);
    Ok(summary)
}

/// Decodes a record. `fresh` says that what it defines is not known yet.
fn contents(known: &mut Catalogue, record: &Record<'_>, fresh: bool) -> Result<Contents, Error> {
    let damaged = |problem: String| Error::damaged(record.path, record.offset, problem);
    Ok(match record.frame.kind {
        RecordKind::Calls => {
            let mut found = Vec::new();
            let each = |run: crate::format::calls::Run<'_>| {
                let procedure = known.procedures[run.procedure as usize].name.clone();
                let requests = (0..run.count).filter_map(|index| run.request(index)).collect();
                found.push(Calls { procedure, calls: run.count, requests });
                Ok(())
            };
            match runs(record.payload, |procedure| known.arguments(procedure), each) {
                Ok(()) => Contents::Calls(Some(found)),
                // What the checkpoint covers may be older than a procedure it has.
                Err(_) if !fresh => Contents::Calls(None),
                Err(problem) => return Err(damaged(problem)),
            }
        }
        RecordKind::Definition => {
            let definition = Definition::decode(record.payload).map_err(damaged)?;
            if fresh {
                let addition = known.understand(&definition).map_err(|error| damaged(error.to_string()))?;
                known.add(addition);
            }
            Contents::Definition(definition)
        }
        RecordKind::Rows => {
            let rows = Rows::decode(record.payload).map_err(damaged)?;
            Contents::Rows(rows.table.to_string(), rows.count())
        }
        RecordKind::Indexed => {
            let all = Rows::decode_all(record.payload).map_err(damaged)?;
            Contents::Indexed(all.iter().map(|rows| (rows.table.to_string(), rows.count() as u64)).collect())
        }
        _ => Contents::Durable,
    })
}
