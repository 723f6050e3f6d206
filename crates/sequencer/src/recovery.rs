//! From files to a database: the newest checkpoint, then the log behind it.
//!
//! One thread reads, verifies and decodes the log into large batches, another one (the caller's) runs them. Calls were
//! written in their serial order, so they are run in the order in which they stand; batches of the log are merged
//! freely. An engine that cannot run in that order gets the rows of one that can.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use lockwork_engine::{Engine, EngineError, EngineKind, Options as EngineOptions, create};
use lockwork_procedure::block::{Batch, HEADER_BYTES, Status};
use lockwork_storage::Digest;

use crate::catalogue::Catalogue;
use crate::checkpoint::read::{Visitor, read};
use crate::directory::{Directory, Listing};
use crate::error::Error;
use crate::format::calls::runs;
use crate::format::frame::RecordKind;
use crate::format::items::{Definition, Rows};
use crate::io::Io;
use crate::journal::answers::{Answers, of_call};
use crate::journal::message::Chain;
use crate::log::reader::{LogEnd, Record, Torn, Wanted, walk};
use crate::order::apply;
use crate::requests::{Outcome, Window};

/// Calls that are run as one batch, and about how many bytes of blocks.
const MERGED_CALLS: usize = 32_768;
const MERGED_BYTES: usize = 8 << 20;
/// Decoded items that may wait.
const DECODED: usize = 4;

/// How far recovery has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of checkpoint and log done.
    pub done_bytes: u64,
    /// All of them, as far as they are known: room in segments that was never written is counted until it is reached.
    pub total_bytes: u64,
    /// Calls run again.
    pub calls: u64,
    /// Since it began.
    pub elapsed: Duration,
}

/// What recovery found and did.
#[derive(Clone, Debug, Default)]
pub struct RecoveryReport {
    /// Nothing was there: a new database was made.
    pub created: bool,
    /// The last record that the checkpoint covers, and its bytes.
    pub checkpoint: Option<(u64, u64)>,
    /// Rows loaded from the checkpoint.
    pub checkpoint_rows: u64,
    /// Records of the log behind the checkpoint.
    pub records: u64,
    /// Calls run again.
    pub calls: u64,
    /// Bytes of log read.
    pub log_bytes: u64,
    /// The number that the next record gets.
    pub next: u64,
    /// What was cut off the end of the log, because it was never known to be durable.
    pub torn: Option<Torn>,
    /// Bytes at the end of the log that nothing proved to be durable; they were written again.
    pub rewritten_bytes: u64,
    /// Request ids remembered.
    pub requests: u64,
    /// Definitions, in order, with the texts that they were made from.
    pub definitions: Vec<Definition>,
    /// Files that are not ours; they were left alone.
    pub unknown: Vec<PathBuf>,
    /// How writes become durable, in words.
    pub io: String,
    /// Of reading the checkpoint.
    pub checkpoint_took: Duration,
    /// Of replaying the log.
    pub log_took: Duration,
    /// Of that, the time in which the engine ran calls: the rest is waiting for them to be read.
    pub engine_took: Duration,
}

/// What was recovered.
pub(crate) struct Recovered {
    pub(crate) catalogue: Catalogue,
    pub(crate) definitions: Vec<Definition>,
    pub(crate) window: Window,
    pub(crate) end: LogEnd,
}

/// A piece of work that the log asks for.
pub(crate) enum Item {
    Calls {
        batch: Batch,
        requests: bool,
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
    record: u64,
    calls: Range<usize>,
    /// `None` when the record goes on in the next batch.
    answers: Option<Answers>,
}

/// A batch in the engine's hands.
struct InFlight {
    /// Whether it has calls with request ids.
    requests: bool,
    /// Its last record.
    last: u64,
    marks: Vec<Mark>,
}

/// Runs what was recovered.
pub(crate) struct Replay<'a> {
    engine: &'a mut dyn Engine,
    pub(crate) catalogue: Catalogue,
    pub(crate) definitions: Vec<Definition>,
    pub(crate) window: Window,
    /// What the record behind a checkpoint of a node follows.
    pub(crate) chain: Option<Chain>,
    report: &'a mut RecoveryReport,
    progress: &'a mut dyn FnMut(Progress),
    state: Progress,
    start: Instant,
    /// Rows that tables had when the checkpoint was made, so that they are made large enough.
    sizes: HashMap<String, u64>,
    in_flight: VecDeque<InFlight>,
    /// What the calls of a record that goes on in the next batch have answered.
    pub(crate) answers: Answers,
    /// The last record whose digest of the whole database was compared, and how long that took.
    pub(crate) compared: Option<(u64, Digest, Duration)>,
    /// Where batches that ran go back to, so that their memory is used again.
    spare: Sender<Batch>,
}

impl Visitor for Replay<'_> {
    fn definition(&mut self, definition: Definition) -> Result<(), Error> {
        self.define(definition, 0)
    }

    fn rows(&mut self, rows: &Rows<'_>) -> Result<(), Error> {
        let failed = |error: EngineError| Error::Replay { record: 0, problem: error.to_string() };
        self.engine.load_rows(rows.table, rows.image_bytes, rows.images).map_err(failed)?;
        self.report.checkpoint_rows += rows.count() as u64;
        Ok(())
    }

    fn size(&mut self, table: &str, rows: u64) {
        self.sizes.insert(table.to_string(), rows);
    }

    fn outcome(&mut self, request: u64, outcome: Outcome) {
        self.window.put(request, outcome);
    }

    fn chain(&mut self, chain: Chain) {
        self.chain = Some(chain);
    }

    fn frame(&mut self, _: RecordKind, _: u64, bytes: u64) {
        self.advance(bytes);
    }
}

impl<'a> Replay<'a> {
    /// Nothing is known yet; batches that ran go to whoever has the other end of `spare`.
    pub(crate) fn new(
        engine: &'a mut dyn Engine,
        request_window: usize,
        report: &'a mut RecoveryReport,
        progress: &'a mut dyn FnMut(Progress),
        spare: Sender<Batch>,
    ) -> Self {
        Self {
            engine,
            catalogue: Catalogue::default(),
            definitions: Vec::new(),
            window: Window::new(request_window),
            chain: None,
            report,
            progress,
            state: Progress::default(),
            start: Instant::now(),
            sizes: HashMap::new(),
            in_flight: VecDeque::new(),
            answers: Answers::default(),
            compared: None,
            spare,
        }
    }

    fn advance(&mut self, bytes: u64) {
        self.state.done_bytes += bytes;
        self.state.elapsed = self.start.elapsed();
        self.state.total_bytes = self.state.total_bytes.max(self.state.done_bytes);
        (self.progress)(self.state);
    }

    fn define(&mut self, definition: Definition, record: u64) -> Result<(), Error> {
        let failed = |problem: String| Error::Replay { record, problem };
        let addition = self.catalogue.understand(&definition).map_err(|error| failed(error.to_string()))?;
        apply(self.engine, &addition, &self.sizes).map_err(|error| failed(error.to_string()))?;
        self.catalogue.add(addition);
        self.definitions.push(definition);
        Ok(())
    }

    pub(crate) fn item(&mut self, item: Item) -> Result<(), Error> {
        match item {
            Item::Calls { batch, requests, last, marks } => {
                self.report.calls += batch.len() as u64;
                self.state.calls = self.report.calls;
                self.in_flight.push_back(InFlight { requests, last, marks });
                self.engine.submit_in_order(batch).map_err(|refused| Error::from(refused.error))?;
                if self.in_flight.len() > 1 {
                    self.complete()?;
                }
                Ok(())
            }
            Item::Definition(definition, number) => {
                self.drain()?;
                self.define(definition, number)
            }
            Item::Rows { table, width, images, number } => {
                self.drain()?;
                let failed = |error: EngineError| Error::Replay { record: number, problem: error.to_string() };
                self.engine.load_rows(&table, width, &images).map_err(failed)
            }
            Item::Digest(expected, record) => {
                self.drain()?;
                let start = Instant::now();
                let found = self.engine.digest()?;
                if found != expected {
                    let problem = format!("its tables have the digest {found}, and the leader's had {expected}");
                    return Err(Error::Differs { record, problem });
                }
                self.compared = Some((record, found, start.elapsed()));
                Ok(())
            }
        }
    }

    /// Compares what calls that ran have answered with what their records say.
    fn compare(&mut self, batch: &Batch, marks: Vec<Mark>) -> Result<(), Error> {
        for Mark { record, calls, answers } in marks {
            for index in calls {
                let block = batch.block(index);
                self.answers.add(of_call(block, self.catalogue.procedures[block.procedure() as usize].results));
            }
            let Some(expected) = answers else { continue };
            let found = std::mem::take(&mut self.answers);
            if found != expected {
                let problem = format!(
                    "its calls answered something else here (digest {:016x}) than at the leader ({:016x})",
                    found.0, expected.0
                );
                return Err(Error::Differs { record, problem });
            }
        }
        Ok(())
    }

    fn complete(&mut self) -> Result<(), Error> {
        let Some(InFlight { requests, last, marks }) = self.in_flight.pop_front() else { return Ok(()) };
        let Some(completed) = self.engine.complete()? else {
            return Err(Error::Replay { record: last, problem: "the engine has lost a batch".into() });
        };
        self.report.engine_took += Duration::from_nanos(completed.report.total_ns);
        if let Some((code, count)) = completed.report.tally.failed.first_key_value() {
            let why = lockwork_procedure::block::abort::describe(*code).unwrap_or("a reason of its own");
            let problem = format!("{count} calls before its end, which ran once, fail with code {code}: {why}");
            return Err(Error::Replay { record: last, problem });
        }
        self.compare(&completed.batch, marks)?;
        if requests {
            for block in completed.batch.blocks().filter(|block| block.request() != 0) {
                let results = self.catalogue.procedures[block.procedure() as usize].results;
                if let Some(outcome) = Outcome::of(block, results) {
                    self.window.put(block.request(), outcome);
                }
            }
        }
        debug_assert!(completed.batch.blocks().all(|block| block.status() != Some(Status::Pending)));
        // Once the log has ended nobody wants it.
        drop(self.spare.send(completed.batch));
        Ok(())
    }

    pub(crate) fn drain(&mut self) -> Result<(), Error> {
        while !self.in_flight.is_empty() {
            self.complete()?;
        }
        Ok(())
    }
}

/// Who takes items, and how many bytes of log each was.
pub(crate) trait Sink {
    /// # Errors
    /// When nobody takes items any more.
    fn put(&mut self, item: Item, bytes: u64) -> Result<(), Error>;
}

impl Sink for SyncSender<(Item, u64)> {
    fn put(&mut self, item: Item, bytes: u64) -> Result<(), Error> {
        // Who does not has an error of its own to tell.
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
    requests: bool,
    last: u64,
    /// Of the batch.
    marks: Vec<Mark>,
    /// The record that is decoded, if it says what its calls answered, and its first call in the batch.
    open: Option<(u64, usize)>,
    /// Whether what records say about answers and digests is of interest.
    pub(crate) compares: bool,
    /// Bytes of the log since the last item.
    bytes: u64,
    covered: u64,
    records: u64,
}

impl<S: Sink> Decoder<S> {
    /// Records up to `covered` are not needed; `spare` gives batches that ran.
    pub(crate) fn new(catalogue: Catalogue, items: S, spare: Receiver<Batch>, covered: u64) -> Self {
        Self {
            catalogue,
            items,
            spare,
            batch: None,
            requests: false,
            last: 0,
            marks: Vec::new(),
            open: None,
            compares: true,
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
            let (requests, marks) = (std::mem::take(&mut self.requests), std::mem::take(&mut self.marks));
            let item = Item::Calls { batch, requests, last: self.last, marks };
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
        let mut trouble = None;
        let outcome = runs(
            payload,
            |procedure| catalogue.arguments(procedure),
            |run| {
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
                    let request = run.request(index);
                    if request != 0 {
                        block.set_request(request);
                        self.requests = true;
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
enum Trouble {
    Payload(String),
    Other(Error),
}

impl Trouble {
    fn unwrap_or_else(self, damaged: impl FnOnce(String) -> Error) -> Error {
        match self {
            Self::Payload(problem) => damaged(problem),
            Self::Other(error) => error,
        }
    }
}

/// What is to be recovered.
pub(crate) struct Source<'a> {
    pub(crate) io: &'a dyn Io,
    pub(crate) directory: &'a Directory,
    pub(crate) listing: &'a Listing,
    pub(crate) database: u64,
    /// How many request ids are remembered.
    pub(crate) request_window: usize,
}

/// Recovers what is in a directory into `engine`, which is empty.
///
/// # Errors
/// [`Error::Damaged`], [`Error::Version`], [`Error::Io`], [`Error::Replay`], and what the engine refuses.
pub(crate) fn recover(
    source: &Source<'_>,
    engine: &mut dyn Engine,
    report: &mut RecoveryReport,
    progress: &mut dyn FnMut(Progress),
) -> Result<Recovered, Error> {
    if engine.runs_in_order() {
        return replay(source, engine, report, progress);
    }
    let mut other = create(EngineKind::Deterministic, EngineOptions::default())?;
    let recovered = replay(source, &mut *other, report, progress)?;
    let mut sizes = HashMap::new();
    other.with_database(&mut |database| {
        let tables = (0..database.len()).map(|id| database.table(id as u16));
        sizes = tables.map(|table| (table.schema().name().to_string(), table.len())).collect();
    })?;
    let mut catalogue = Catalogue::default();
    for definition in &recovered.definitions {
        let addition = catalogue.understand(definition)?;
        apply(engine, &addition, &sizes)?;
        catalogue.add(addition);
    }
    let mut refused = None;
    other.export(&mut |table, image| {
        if refused.is_none() {
            refused = engine.load(table, image).err();
        }
    })?;
    refused.map_or(Ok(recovered), |error| Err(error.into()))
}

fn replay(
    source: &Source<'_>,
    engine: &mut dyn Engine,
    report: &mut RecoveryReport,
    progress: &mut dyn FnMut(Progress),
) -> Result<Recovered, Error> {
    let Source { io, directory, listing, database, request_window } = *source;
    let start = Instant::now();
    let (give_back, spare) = channel();
    let mut replay = Replay::new(engine, request_window, report, progress, give_back);
    let newest = listing.checkpoints.last().copied();
    let size = |path: PathBuf| io.open(&path, crate::io::Mode::Read).and_then(|file| file.length()).unwrap_or(0);
    let covered = newest.unwrap_or(0);
    let needed = listing.segments.iter().enumerate();
    let needed = needed.filter(|(at, _)| listing.segments.get(at + 1).is_none_or(|&next| next > covered + 1));
    replay.state.total_bytes = needed.map(|(_, &first)| size(directory.segment(first))).sum();
    let mut logged = true;
    if let Some(number) = newest {
        let path = directory.checkpoint(number);
        let bytes = size(path.clone());
        replay.state.total_bytes += bytes;
        replay.report.checkpoint = Some((number, bytes));
        let (header, end) = read(io, &path, number, &mut replay)?;
        if header.database != database {
            return Err(Error::damaged(&path, 16, "the checkpoint belongs to another database"));
        }
        logged = end.logged;
        replay.report.checkpoint_took = start.elapsed();
    }
    let log_start = Instant::now();
    let wanted = Wanted { segments: &listing.segments, database: Some(database), covered, all: false };
    let (items, decoded) = sync_channel(DECODED);
    let catalogue = replay.catalogue.clone();
    let end = std::thread::scope(|scope| {
        let decode = || {
            let mut decoder = Decoder::new(catalogue, items, spare, covered);
            let end = walk(io, directory, &wanted, &mut |record| decoder.record(&record))?;
            decoder.flush()?;
            Ok::<_, Error>((end, decoder.records))
        };
        let reader = scope.spawn(decode);
        let ran = run_items(&mut replay, decoded);
        let read = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // What stopped the replay has also stopped the reader.
        ran.and(read)
    });
    let (end, records) = end?;
    // A checkpoint is made current only when the log is durable as far as it covers.
    if logged && newest.is_some() && end.next_found < covered + 1 {
        let path = end.last.map_or(directory.log.clone(), |(first, _)| directory.segment(first));
        let problem = format!("the log ends with record {}, before the checkpoint {covered}", end.next_found - 1);
        return Err(Error::damaged(&path, end.last.map_or(0, |(_, at)| at), problem));
    }
    replay.state.total_bytes = replay.state.done_bytes;
    replay.advance(0);
    let Replay { catalogue, definitions, window, .. } = replay;
    (report.records, report.next, report.log_bytes) = (records, end.next, end.bytes);
    (report.torn, report.requests) = (end.torn.clone(), window.len() as u64);
    report.log_took = log_start.elapsed();
    report.definitions.clone_from(&definitions);
    Ok(Recovered { catalogue, definitions, window, end })
}

fn run_items(replay: &mut Replay<'_>, decoded: Receiver<(Item, u64)>) -> Result<(), Error> {
    for (item, bytes) in decoded {
        replay.item(item)?;
        replay.advance(bytes);
    }
    replay.drain()
}
