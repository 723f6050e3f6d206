//! Records into work for an engine: calls in large batches, definitions, rows, digests.
//!
//! Batches of the log are merged freely, and a record of many calls may be parted. Which calls of a batch are of which
//! record is noted where the record says what they answered.

use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender};

use lockwork_engine::EngineError;
use lockwork_procedure::block::{Batch, HEADER_BYTES};
use lockwork_storage::Digest;

use crate::catalogue::Catalogue;
use crate::error::Error;
use crate::format::calls::runs;
use crate::format::frame::RecordKind;
use crate::format::items::{Definition, Rows};
use crate::journal::answers::Answers;
use crate::log::reader::Record;

/// Calls that are run as one batch, and about how many bytes of blocks.
const MERGED_CALLS: usize = 32_768;
const MERGED_BYTES: usize = 8 << 20;
/// A piece of work that the log asks for.
pub(crate) enum Item {
    Calls {
        batch: Batch,
        last: u64,
        marks: Vec<Mark>,
    },
    Definition(Definition, u64),
    Rows {
        table: String,
        width: usize,
        images: Vec<u8>,
        number: u64,
    },
    /// The digest that the whole database has here.
    Digest(Digest, u64),
}

/// The calls of a batch that are of one record, which says what they answered.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    pub(crate) record: u64,
    pub(crate) calls: Range<usize>,
    /// `None` when the record goes on in the next batch.
    pub(crate) answers: Option<Answers>,
}

/// Who takes items, and how many bytes of log each was.
pub(crate) trait Sink {
    /// # Errors
    /// When nobody takes items any more.
    fn put(&mut self, item: Item, bytes: u64) -> Result<(), Error>;
}

impl Sink for SyncSender<(Item, u64)> {
    fn put(&mut self, item: Item, bytes: u64) -> Result<(), Error> {
        // A receiver that has stopped reports its own error.
        self.send((item, bytes)).map_err(|_| Error::Closed)
    }
}

impl Sink for Vec<(Item, u64)> {
    fn put(&mut self, item: Item, bytes: u64) -> Result<(), Error> {
        self.push((item, bytes));
        Ok(())
    }
}

/// Makes batches of records.
pub(crate) struct Decoder<S> {
    catalogue: Catalogue,
    pub(crate) items: S,
    /// Batches that ran.
    spare: Receiver<Batch>,
    batch: Option<Batch>,
    last: u64,
    /// Of the batch.
    marks: Vec<Mark>,
    /// The record that is decoded, if it says what its calls answered, and its first call in the batch.
    open: Option<(u64, usize)>,
    /// Whether what records say about answers and digests is of interest.
    pub(crate) compares: bool,
    /// Whether records are those of nodes that have parts of the tables.
    pub(crate) divided: bool,
    /// Calls of a record, at most: those without arguments take no bytes, so its length does not bound them.
    pub(crate) max_calls: usize,
    /// Bytes of the log since the last item.
    bytes: u64,
    covered: u64,
    pub(crate) records: u64,
}

impl<S: Sink> Decoder<S> {
    /// Records up to `covered` are not needed; `spare` gives batches that ran.
    pub(crate) fn new(catalogue: Catalogue, items: S, spare: Receiver<Batch>, covered: u64) -> Self {
        Self {
            catalogue,
            items,
            spare,
            batch: None,
            last: 0,
            marks: Vec::new(),
            open: None,
            compares: true,
            divided: false,
            max_calls: usize::MAX,
            bytes: 0,
            covered,
            records: 0,
        }
    }

    /// Gives away what was gathered.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        if let Some(batch) = self.batch.take().filter(|batch| !batch.is_empty()) {
            if let Some((record, first)) = &mut self.open {
                // The rest of its calls comes in the next batch.
                let calls = std::mem::take(first)..batch.len();
                self.marks.push(Mark { record: *record, calls, answers: None });
            }
            let marks = std::mem::take(&mut self.marks);
            let item = Item::Calls { batch, last: self.last, marks };
            self.send(item)?;
        }
        Ok(())
    }

    fn send(&mut self, item: Item) -> Result<(), Error> {
        self.items.put(item, std::mem::take(&mut self.bytes))
    }

    pub(crate) fn record(&mut self, record: &Record<'_>) -> Result<(), Error> {
        let number = record.frame.number;
        self.bytes += record.frame.bytes() as u64;
        if number <= self.covered || record.frame.kind == RecordKind::Durable {
            return Ok(());
        }
        self.records += 1;
        let damaged = |problem: String| Error::damaged(record.path, record.offset, problem);
        let is_definition = record.frame.kind == RecordKind::Definition;
        // Records of such nodes are taken by them as they stand (`divided`).
        if (self.divided || record.frame.kind.is_of_parts()) && !is_definition {
            let problem = match self.divided {
                true => "the record is of a database whose tables are not divided",
                false => {
                    "the record is of a database whose tables are divided over nodes, and this one is to have everything"
                }
            };
            return Err(Error::Replay { record: number, problem: problem.into() });
        }
        match record.frame.kind {
            RecordKind::Calls => {
                self.last = number;
                self.calls(record.payload).map_err(|problem| problem.unwrap_or_else(damaged))
            }
            RecordKind::Answered => {
                self.last = number;
                let (answers, calls) = Answers::split(record.payload).map_err(damaged)?;
                let first = self.batch.as_ref().map_or(0, Batch::len);
                self.open = self.compares.then_some((number, first));
                let decoded = self.calls(calls).map_err(|problem| problem.unwrap_or_else(damaged));
                if let Some((record, first)) = self.open.take() {
                    let calls = first..self.batch.as_ref().map_or(0, Batch::len);
                    self.marks.push(Mark { record, calls, answers: Some(answers) });
                }
                decoded
            }
            RecordKind::Digest => {
                self.flush()?;
                let digest = record.payload.try_into().map_err(|_| damaged("a digest has 16 bytes".into()))?;
                match self.compares {
                    true => self.send(Item::Digest(Digest(u128::from_le_bytes(digest)), number)),
                    false => Ok(()),
                }
            }
            RecordKind::Definition => {
                self.flush()?;
                let definition = Definition::decode(record.payload).map_err(damaged)?;
                let addition = self.catalogue.understand(&definition);
                let addition =
                    addition.map_err(|error| Error::Replay { record: number, problem: error.to_string() })?;
                self.catalogue.add(addition);
                self.send(Item::Definition(definition, number))
            }
            RecordKind::Indexed => {
                self.flush()?;
                let all = Rows::decode_all(record.payload).map_err(damaged)?;
                all.iter().try_for_each(|rows| self.rows(rows, number))
            }
            _ => {
                self.flush()?;
                let rows = Rows::decode(record.payload).map_err(damaged)?;
                self.rows(&rows, number)
            }
        }
    }

    fn rows(&mut self, rows: &Rows<'_>, number: u64) -> Result<(), Error> {
        let (table, width) = (rows.table.to_string(), rows.image_bytes);
        self.send(Item::Rows { table, width, images: rows.images.to_vec(), number })
    }

    fn calls(&mut self, payload: &[u8]) -> Result<(), Trouble> {
        let catalogue = std::mem::take(&mut self.catalogue);
        let bytes = catalogue.block_bytes();
        let capacity = (MERGED_BYTES / bytes.next_multiple_of(64)).clamp(1, MERGED_CALLS);
        let (mut trouble, mut count, max_calls) = (None, 0_usize, self.max_calls);
        let outcome = runs(
            payload,
            |procedure| catalogue.arguments(procedure),
            |run| {
                count = count.saturating_add(run.count);
                if count > max_calls {
                    return Err(format!("{count} calls or more; a record has at most {max_calls}"));
                }
                for index in 0..run.count {
                    if self.batch.as_ref().is_some_and(|batch| batch.len() == batch.capacity())
                        && let Err(error) = self.flush()
                    {
                        trouble = Some(error);
                        return Err(String::new());
                    }
                    if self.batch.is_none() {
                        match fresh(&self.spare, bytes, capacity) {
                            Ok(batch) => self.batch = Some(batch),
                            Err(error) => {
                                trouble = Some(error.into());
                                return Err(String::new());
                            }
                        }
                    }
                    let Some(mut block) = self.batch.as_mut().and_then(|batch| batch.push(run.procedure)) else {
                        return Err("a batch is full when it should not be".into());
                    };
                    let arguments = run.arguments(index);
                    let start = HEADER_BYTES as usize;
                    block.bytes()[start..start + arguments.len()].copy_from_slice(arguments);
                    if let (Some(request), Some(batch)) = (run.request(index), &mut self.batch) {
                        batch.set_request(batch.len() - 1, request);
                    }
                }
                Ok(())
            },
        );
        self.catalogue = catalogue;
        match (trouble, outcome) {
            (Some(error), _) => Err(Trouble::Other(error)),
            (None, Err(problem)) => Err(Trouble::Payload(problem)),
            (None, Ok(())) => Ok(()),
        }
    }
}

/// An empty batch: the oldest that ran, if it is as large as is wanted.
fn fresh(spare: &Receiver<Batch>, bytes: usize, capacity: usize) -> Result<Batch, EngineError> {
    let large = |batch: &Batch| batch.stride() >= bytes && batch.capacity() == capacity;
    match spare.try_recv().ok().filter(large) {
        Some(mut batch) => {
            batch.clear();
            Ok(batch)
        }
        None => Ok(Batch::new(bytes as u32, capacity)?),
    }
}

/// Why calls could not be decoded: by their bytes, or otherwise.
pub(crate) enum Trouble {
    Payload(String),
    Other(Error),
}

impl Trouble {
    pub(crate) fn unwrap_or_else(self, damaged: impl FnOnce(String) -> Error) -> Error {
        match self {
            Self::Payload(problem) => damaged(problem),
            Self::Other(error) => error,
        }
    }
}
