//! The calls of [`Device`](crate::device::Device) as bytes: requests here, answers in [`answer`].
//!
//! A request is a message in *fragments*, none longer than a slot of the channel. Only a flush can be long; its
//! fragments break between versions, so that the storage decodes each as it comes and never holds the bytes of all of
//! them. Those of the others are put together before they are decoded, up to [`MAX_REQUEST_BYTES`].
//!
//! ```text
//! opcode, 1 byte | fields in the order of the request's declaration | versions of a flush, to the end of the fragment
//! ```
//!
//! Invariant: a request has one form as bytes, and decoding either gives a request that makes sense by its form (names,
//! types, lengths) or an error; whether it makes sense to the store is for the store to say.

pub mod answer;
#[doc(hidden)]
pub mod fuzz;
pub(crate) mod schema;
#[cfg(test)]
mod tests;
pub(crate) mod wire;

use lockwork_procedure::schema::{MAX_ROW_BYTES, TableSchema};

use crate::device::{Fold, Operation, Purpose, TableId, TransactionId, Version};
use crate::record::{Timestamp, Vid};

pub use wire::Malformed;
use wire::{Put, Reader};

/// The longest request that is no flush.
pub const MAX_REQUEST_BYTES: usize = 16 << 20;
/// Bytes of a version beside its image.
const VERSION_BYTES: usize = 4 + 4 + 8 + 4;
/// In place of an image's length: the version says that the tuple was removed.
const REMOVED: u32 = u32::MAX;

const CREATE_TABLE: u8 = 1;
const TABLES: u8 = 2;
const TUPLES: u8 = 3;
const FLUSH: u8 = 4;
const READ: u8 = 5;
const RUN: u8 = 6;
const COMMIT: u8 = 7;
const ABORT: u8 = 8;
const COLLECT: u8 = 9;
const STATUS: u8 = 10;

/// A call of the storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// [`Device::create_table`](crate::device::Device::create_table).
    CreateTable(TableSchema),
    /// [`Device::tables`](crate::device::Device::tables).
    Tables,
    /// [`Device::tuples`](crate::device::Device::tuples).
    Tuples(TableId),
    /// [`Device::flush`](crate::device::Device::flush).
    Flush {
        /// The table.
        table: TableId,
        /// No snapshot below is in use.
        watermark: Timestamp,
        /// What to store.
        versions: Vec<Version>,
    },
    /// [`Device::read`](crate::device::Device::read).
    Read {
        /// The table.
        table: TableId,
        /// The tuple.
        vid: Vid,
        /// What it sees.
        snapshot: Timestamp,
    },
    /// [`Device::run`](crate::device::Device::run).
    Run(Operation),
    /// [`Device::commit`](crate::device::Device::commit).
    Commit {
        /// Which bulk update.
        transaction: TransactionId,
        /// When it becomes visible.
        timestamp: Timestamp,
    },
    /// [`Device::abort`](crate::device::Device::abort).
    Abort(TransactionId),
    /// [`Device::collect`](crate::device::Device::collect).
    Collect(Timestamp),
    /// [`Device::status`](crate::device::Device::status).
    Status,
}

/// A request that is being sent, by reference.
#[derive(Debug)]
pub(crate) enum Outgoing<'a> {
    /// All of it, or what is left.
    Bytes(&'a [u8]),
    /// The head of a flush if it has not been sent, and the versions that have not.
    Flush { head: Option<Vec<u8>>, versions: &'a [Version] },
}

impl<'a> Outgoing<'a> {
    /// A flush, if every image can be a row's.
    pub(crate) fn flush(table: TableId, versions: &'a [Version], watermark: Timestamp) -> Result<Self, String> {
        for Version { vid, number, image, .. } in versions {
            let bytes = image.as_ref().map_or(0, |image| image.len());
            if bytes > MAX_ROW_BYTES as usize {
                let vid = vid.0;
                return Err(format!(
                    "table {table}: version {number} of tuple {vid} has {bytes} bytes; a row has at most {MAX_ROW_BYTES}"
                ));
            }
        }
        let mut head = Vec::with_capacity(11);
        head.u8(FLUSH);
        head.u16(table);
        head.u64(watermark);
        Ok(Self::Flush { head: Some(head), versions })
    }

    /// Puts the next fragment into `buffer`, at most `limit` bytes, and says whether it is the last.
    pub(crate) fn fragment(&mut self, buffer: &mut Vec<u8>, limit: usize) -> bool {
        buffer.clear();
        match self {
            Self::Bytes(bytes) => {
                let (now, later) = bytes.split_at(bytes.len().min(limit));
                buffer.extend_from_slice(now);
                *bytes = later;
                later.is_empty()
            }
            Self::Flush { head, versions } => {
                buffer.extend(head.take().into_iter().flatten());
                while let Some((version, rest)) = versions.split_first() {
                    let image = version.image.as_deref();
                    if buffer.len() + VERSION_BYTES + image.map_or(0, <[u8]>::len) > limit {
                        return false;
                    }
                    put_version(buffer, version);
                    *versions = rest;
                }
                true
            }
        }
    }
}

pub(crate) fn put_version(out: &mut Vec<u8>, version: &Version) {
    out.u32(version.vid.0);
    out.u32(version.number);
    out.u64(version.created);
    match &version.image {
        Some(image) => out.counted(image),
        None => out.u32(REMOVED),
    }
}

pub(crate) fn version(reader: &mut Reader<'_>) -> Result<Version, Malformed> {
    let (vid, number, created) = (Vid(reader.u32()?), reader.u32()?, reader.u64()?);
    let image = match reader.u32()? {
        REMOVED => None,
        length if length > MAX_ROW_BYTES => {
            return reader.wrong(format_args!("an image of {length} bytes; a row has at most {MAX_ROW_BYTES}"));
        }
        length => Some(reader.take(length as usize)?.into()),
    };
    Ok(Version { vid, number, created, image })
}

impl Request {
    /// All of it as bytes, in one piece.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16);
        match self {
            Self::CreateTable(schema) => {
                out.u8(CREATE_TABLE);
                schema::put(&mut out, schema);
            }
            Self::Tables => out.u8(TABLES),
            Self::Tuples(table) => {
                out.u8(TUPLES);
                out.u16(*table);
            }
            Self::Flush { table, watermark, versions } => {
                out.u8(FLUSH);
                out.u16(*table);
                out.u64(*watermark);
                versions.iter().for_each(|version| put_version(&mut out, version));
            }
            Self::Read { table, vid, snapshot } => {
                out.u8(READ);
                out.u16(*table);
                out.u32(vid.0);
                out.u64(*snapshot);
            }
            Self::Run(operation) => {
                out.u8(RUN);
                put_operation(&mut out, operation);
            }
            Self::Commit { transaction, timestamp } => {
                out.u8(COMMIT);
                out.u64(transaction.0);
                out.u64(*timestamp);
            }
            Self::Abort(transaction) => {
                out.u8(ABORT);
                out.u64(transaction.0);
            }
            Self::Collect(watermark) => {
                out.u8(COLLECT);
                out.u64(*watermark);
            }
            Self::Status => out.u8(STATUS),
        }
        out
    }

    /// The request in these bytes.
    ///
    /// # Errors
    /// What is wrong with them, and where.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut incoming = Incoming::default();
        incoming.push(bytes)?;
        incoming.finish()
    }

    fn decode_short(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let request = match reader.u8()? {
            CREATE_TABLE => Self::CreateTable(schema::get(&mut reader)?),
            TABLES => Self::Tables,
            TUPLES => Self::Tuples(reader.u16()?),
            READ => Self::Read { table: reader.u16()?, vid: Vid(reader.u32()?), snapshot: reader.u64()? },
            RUN => Self::Run(operation(&mut reader)?),
            COMMIT => Self::Commit { transaction: TransactionId(reader.u64()?), timestamp: reader.u64()? },
            ABORT => Self::Abort(TransactionId(reader.u64()?)),
            COLLECT => Self::Collect(reader.u64()?),
            STATUS => Self::Status,
            other => return reader.wrong(format_args!("no call has number {other}; there are 1 to {STATUS}")),
        };
        reader.end()?;
        Ok(request)
    }
}

fn put_operation(out: &mut Vec<u8>, operation: &Operation) {
    out.u16(operation.table);
    out.u64(operation.snapshot);
    match &operation.purpose {
        Purpose::Filter => out.u8(0),
        Purpose::Aggregate(folds) => {
            out.u8(1);
            out.u32(u32::try_from(folds.len()).expect("as many folds as results, few"));
            for (field, fold) in folds {
                out.u8(match fold {
                    Fold::Sum => 0,
                    Fold::Min => 1,
                    Fold::Max => 2,
                });
                out.counted(field.as_bytes());
            }
        }
        Purpose::Update(transaction) => {
            out.u8(2);
            out.u64(transaction.0);
        }
    }
    out.counted(&operation.program);
    out.counted(&operation.block);
}

fn operation(reader: &mut Reader<'_>) -> Result<Operation, Malformed> {
    let (table, snapshot) = (reader.u16()?, reader.u64()?);
    let purpose = match reader.u8()? {
        0 => Purpose::Filter,
        1 => {
            let mut folds = Vec::new();
            for _ in 0..reader.u32()? {
                let fold = match reader.u8()? {
                    0 => Fold::Sum,
                    1 => Fold::Min,
                    2 => Fold::Max,
                    other => return reader.wrong(format_args!("no fold has number {other}; there are 0 to 2")),
                };
                folds.push((reader.text()?.to_string(), fold));
            }
            Purpose::Aggregate(folds)
        }
        2 => Purpose::Update(TransactionId(reader.u64()?)),
        other => return reader.wrong(format_args!("no purpose has number {other}; there are 0 to 2")),
    };
    Ok(Operation { table, purpose, program: reader.counted()?.into(), block: reader.counted()?.into(), snapshot })
}

/// A request that is arriving in fragments.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    /// The fragments of a short request.
    bytes: Vec<u8>,
    /// Table, watermark and what has come of a flush.
    flush: Option<(TableId, Timestamp, Vec<Version>)>,
}

impl Incoming {
    /// The next fragment.
    pub(crate) fn push(&mut self, fragment: &[u8]) -> Result<(), Malformed> {
        let mut reader = Reader::new(fragment);
        if self.flush.is_none() && self.bytes.is_empty() && fragment.first() == Some(&FLUSH) {
            reader.u8()?;
            self.flush = Some((reader.u16()?, reader.u64()?, Vec::new()));
        }
        match &mut self.flush {
            Some((_, _, versions)) => {
                while reader.left() > 0 {
                    versions.push(version(&mut reader)?);
                }
            }
            None if self.bytes.len() + fragment.len() > MAX_REQUEST_BYTES => {
                return reader.wrong(format_args!("the request is longer than {MAX_REQUEST_BYTES} bytes"));
            }
            None => self.bytes.extend_from_slice(fragment),
        }
        Ok(())
    }

    /// The request, when its last fragment has come.
    pub(crate) fn finish(self) -> Result<Request, Malformed> {
        match self.flush {
            Some((table, watermark, versions)) => Ok(Request::Flush { table, watermark, versions }),
            None => Request::decode_short(&self.bytes),
        }
    }
}
