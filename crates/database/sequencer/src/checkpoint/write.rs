//! The thread that writes a checkpoint, makes it current, and removes what it replaces.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use lockwork_storage::Digest;

use crate::directory::Directory;
use crate::error::{Error, Failure};
use crate::format::file::{FileHeader, FileKind};
use crate::format::frame::{self, RecordKind};
use crate::format::items::{Definition, End, Rows, put_sizes};
use crate::io::{File, Io, Mode};
use crate::journal::message::{Chain, Position};
use crate::shared::Shared;

/// Frames are gathered up to so many bytes, and synced after so many, so that the disk is never asked to take all of a
/// large checkpoint at once while calls wait for the log.
const WRITTEN_BYTES: usize = 1 << 20;
const SYNCED_BYTES: usize = 16 << 20;

/// A part of a checkpoint.
pub(crate) enum Piece {
    /// How many rows each table has, about.
    Sizes(Vec<(String, u64)>),
    Definition(Definition),
    Rows {
        table: String,
        image_bytes: usize,
        images: Vec<u8>,
    },
    /// Request ids with their outcomes, encoded, and how many.
    Requests(Vec<u8>, u64),
    /// There are no more.
    End,
}

/// What became of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointReport {
    /// The last record that it covers.
    pub number: u64,
    /// Rows in it.
    pub rows: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Digest of the tables.
    pub digest: Digest,
    /// From its moment until it was current.
    pub took: Duration,
}

/// A checkpoint to be written.
pub(crate) struct Task {
    pub(crate) io: Arc<dyn Io>,
    pub(crate) directory: Directory,
    pub(crate) database: u64,
    /// The last record that it covers.
    pub(crate) number: u64,
    /// Whether the log holds that record.
    pub(crate) logged: bool,
    /// The first record of the segment that is written now.
    pub(crate) active: u64,
    pub(crate) shared: Arc<Shared>,
    /// Says what the record behind it follows, when that record is durable; `None` for a log in segments.
    pub(crate) chain: Option<ChainAt>,
    /// How far it is in the streams of further sequencers.
    pub(crate) streams: Vec<Position>,
}

/// See [`Task::chain`].
pub(crate) type ChainAt = Box<dyn FnOnce() -> Result<Chain, Error> + Send>;

struct Output {
    file: Arc<dyn File>,
    buffer: Vec<u8>,
    offset: u64,
    unsynced: usize,
}

impl Output {
    fn flush(&mut self) -> std::io::Result<()> {
        self.file.write_at(self.offset, &self.buffer)?;
        self.offset += self.buffer.len() as u64;
        self.unsynced += self.buffer.len();
        self.buffer.clear();
        if self.unsynced >= SYNCED_BYTES {
            self.file.sync()?;
            self.unsynced = 0;
        }
        Ok(())
    }
}

impl Task {
    /// Writes pieces until the end and makes the checkpoint current.
    ///
    /// # Errors
    /// The system's, or that the log will not be durable as far as that; the checkpoint before stays.
    pub(crate) fn run(mut self, pieces: &Receiver<Piece>) -> Result<CheckpointReport, Error> {
        let start = self.shared.threads.now();
        let path = self.directory.checkpoint(self.number);
        let unfinished = path.with_extension("ckpt.tmp");
        let failed = |action| {
            let path = unfinished.clone();
            move |error| Error::Io(Failure::new(action, &path, None, error))
        };
        let written = self.io.open(&unfinished, Mode::Create).map_err(failed("create"));
        let written = written.and_then(|file| self.write(file, pieces));
        let (end, bytes) = match written {
            Ok(written) => written,
            Err(error) => {
                drop(self.io.remove(&unfinished));
                return Err(error);
            }
        };
        if self.logged {
            // A checkpoint of what the log may yet lose would make an unacknowledged call durable, and the log have a
            // gap.
            self.shared.wait_durable(self.number + 1).inspect_err(|_| drop(self.io.remove(&unfinished)))?;
        }
        self.io.rename(&unfinished, &path).map_err(failed("rename"))?;
        let folder = &self.directory.checkpoint;
        self.io.sync_directory(folder).map_err(|error| Error::io("sync", folder, error))?;
        let report = CheckpointReport {
            number: self.number,
            rows: end.rows,
            bytes,
            digest: end.digest,
            took: self.shared.threads.now() - start,
        };
        self.shared.count(|statistics| {
            statistics.checkpoints += 1;
            statistics.checkpoint_bytes = bytes;
        });
        clean(&*self.io, &self.directory, self.number, self.active)?;
        Ok(report)
    }

    fn write(&mut self, file: Arc<dyn File>, pieces: &Receiver<Piece>) -> Result<(End, u64), Error> {
        let path = self.directory.checkpoint(self.number).with_extension("ckpt.tmp");
        let failed = |error| Error::io("write", &path, error);
        let header = FileHeader { kind: FileKind::Checkpoint, database: self.database, number: self.number };
        let salt = header.salt();
        let mut output = Output { file, buffer: header.encode().to_vec(), offset: 0, unsynced: 0 };
        let mut end = End { logged: self.logged, ..End::default() };
        for index in 0_u64.. {
            // A sequencer that ended in the middle leaves no checkpoint.
            let piece = self
                .shared
                .threads
                .receive(pieces, None)
                .map_err(|_| self.shared.trouble().unwrap_or(Error::Closed))?;
            let out = &mut output.buffer;
            match piece {
                Piece::Sizes(sizes) => {
                    frame::put(out, salt, RecordKind::Sizes, index, 0, |out| put_sizes(out, &sizes));
                }
                Piece::Definition(definition) => {
                    end.definitions += 1;
                    frame::put(out, salt, RecordKind::Definition, index, 0, |out| definition.encode(out));
                }
                Piece::Rows { table, image_bytes, images } => {
                    end.rows += (images.len() / image_bytes) as u64;
                    end.digest = end.digest.combine(Digest::of_rows(&table, image_bytes, &images));
                    frame::put(out, salt, RecordKind::Rows, index, 0, |out| {
                        Rows::put_head(out, &table, image_bytes);
                        out.extend_from_slice(&images);
                    });
                }
                Piece::Requests(outcomes, count) => {
                    end.requests += count;
                    frame::put(out, salt, RecordKind::RequestIds, index, 0, |out| out.extend_from_slice(&outcomes));
                }
                Piece::End => {
                    let mut index = index;
                    if let Some(chain) = self.chain.take() {
                        self.shared.wait_durable(self.number + 1)?;
                        let chain = chain()?;
                        frame::put(out, salt, RecordKind::Chain, index, 0, |out| out.extend(chain.encode()));
                        index += 1;
                    }
                    if !self.streams.is_empty() {
                        let each = |out: &mut Vec<u8>| self.streams.iter().for_each(|position| position.encode(out));
                        frame::put(out, salt, RecordKind::Streams, index, 0, each);
                        index += 1;
                    }
                    frame::put(out, salt, RecordKind::End, index, 0, |out| end.encode(out));
                    output.flush().map_err(failed)?;
                    output.file.sync().map_err(|error| Error::io("sync", &path, error))?;
                    return Ok((end, output.offset));
                }
            }
            if output.buffer.len() >= WRITTEN_BYTES {
                output.flush().map_err(failed)?;
            }
        }
        Err(Error::Closed)
    }
}

/// Removes checkpoints before `number` and segments that hold nothing behind it. The last segment stays, and so does
/// the one that begins with record `active`, and later ones.
///
/// # Errors
/// The system's; what is left is removed by the next checkpoint.
pub(crate) fn clean(io: &dyn Io, directory: &Directory, number: u64, active: u64) -> Result<(), Error> {
    let listing = directory.list(io)?;
    let removed = |path: std::path::PathBuf| io.remove(&path).map_err(|error| Error::io("remove", &path, error));
    for &old in listing.checkpoints.iter().filter(|&&old| old < number) {
        removed(directory.checkpoint(old))?;
    }
    for pair in listing.segments.windows(2).filter(|pair| pair[1] <= number + 1 && pair[0] < active) {
        removed(directory.segment(pair[0]))?;
    }
    for folder in [&directory.checkpoint, &directory.log] {
        io.sync_directory(folder).map_err(|error| Error::io("sync", folder, error))?;
    }
    Ok(())
}
