//! From files to a database: the newest checkpoint, then the log behind it.
//!
//! One thread reads, verifies and decodes the log into large batches, another one (the caller's) runs them. Calls were
//! written in their serial order, so they are run in the order in which they stand; batches of the log are merged
//! freely. An engine that cannot run in that order gets the rows of one that can.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::time::{Duration, Instant};

use lockwork_engine::{Engine, EngineError, EngineKind, Options as EngineOptions, create};
use lockwork_procedure::block::{Batch, Status};
use lockwork_procedure::request::RequestId;
use lockwork_storage::Digest;

use crate::catalogue::{Catalogue, Definitions};
use crate::checkpoint::read::{Visitor, read};
use crate::decode::{Decoder, Item, Mark};
use crate::directory::{Directory, Listing};
use crate::error::Error;
use crate::format::frame::RecordKind;
use crate::format::items::{Definition, Rows};
use crate::io::Io;
use crate::journal::answers::{Answers, of_call};
use crate::journal::message::{Chain, Position};
use crate::log::reader::{LogEnd, Torn, Wanted, walk};
use crate::options::Options;
use crate::order::apply;
use crate::requests::{DedupTable, Outcome};
use crate::threads::Threads;

/// Decoded items that may wait.
const DECODED: usize = 4;

/// How far recovery has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of checkpoint and log done.
    pub done_bytes: u64,
    /// All of them, as far as they are known: room in segments that was never written is counted until it is reached.
    pub total_bytes: u64,
    /// Records of a shared log replayed behind the checkpoint.
    pub records: u64,
    /// All of them, as far as they are known; zero while only bytes are counted.
    pub total_records: u64,
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
    pub(crate) definitions: Definitions,
    pub(crate) dedup: DedupTable,
    pub(crate) end: LogEnd,
}

/// A batch in the engine's hands.
struct InFlight {
    /// Its last record.
    last: u64,
    marks: Vec<Mark>,
}

/// Runs what was recovered.
pub(crate) struct Replay<'a> {
    engine: &'a mut dyn Engine,
    pub(crate) catalogue: Catalogue,
    pub(crate) definitions: Definitions,
    /// The ids of procedures whose place others have taken.
    pub(crate) replaced: Vec<u32>,
    pub(crate) dedup: DedupTable,
    /// What the record behind a checkpoint of a node follows.
    pub(crate) chain: Option<Chain>,
    /// How far it was in the streams of further sequencers.
    pub(crate) streams: Vec<Position>,
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

    fn requests(&mut self, horizon: Option<RequestId>, outcomes: Vec<(RequestId, Outcome)>) {
        horizon.into_iter().for_each(|horizon| self.dedup.raise(horizon));
        outcomes.into_iter().for_each(|(request, outcome)| self.dedup.put(request, outcome));
    }

    fn chain(&mut self, chain: Chain) {
        self.chain = Some(chain);
    }

    fn streams(&mut self, positions: Vec<Position>) {
        self.streams = positions;
    }

    fn frame(&mut self, _: RecordKind, _: u64, bytes: u64) {
        self.advance(bytes);
    }
}

impl<'a> Replay<'a> {
    /// Nothing is known yet; batches that ran go to whoever has the other end of `spare`.
    pub(crate) fn new(
        engine: &'a mut dyn Engine,
        dedup: DedupTable,
        report: &'a mut RecoveryReport,
        progress: &'a mut dyn FnMut(Progress),
        spare: Sender<Batch>,
    ) -> Self {
        Self {
            engine,
            catalogue: Catalogue::default(),
            definitions: Definitions::default(),
            replaced: Vec::new(),
            dedup,
            chain: None,
            streams: Vec::new(),
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

    /// Adds bytes that are still to be done to the total.
    pub(crate) fn expect(&mut self, bytes: u64) {
        self.state.total_bytes += bytes;
        self.advance(0);
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
        self.replaced.extend(addition.replaces);
        self.catalogue.add(addition);
        self.definitions.push(definition);
        Ok(())
    }

    pub(crate) fn item(&mut self, item: Item) -> Result<(), Error> {
        match item {
            Item::Calls { batch, last, marks } => {
                self.report.calls += batch.len() as u64;
                self.state.calls = self.report.calls;
                self.in_flight.push_back(InFlight { last, marks });
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
        let Some(InFlight { last, marks }) = self.in_flight.pop_front() else { return Ok(()) };
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
        for (index, request) in completed.batch.requests() {
            let block = completed.batch.block(index);
            let known = &self.catalogue.procedures[block.procedure() as usize];
            if let Some(outcome) = Outcome::of(block, known) {
                self.dedup.put(request, outcome);
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

/// What is to be recovered.
pub(crate) struct Source<'a> {
    pub(crate) io: &'a dyn Io,
    pub(crate) directory: &'a Directory,
    pub(crate) listing: &'a Listing,
    pub(crate) database: u64,
    pub(crate) options: &'a Options,
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
    let mut other = create(EngineKind::DETERMINISTIC, EngineOptions::default())?;
    let recovered = replay(source, &mut *other, report, progress)?;
    let mut sizes = HashMap::new();
    other.with_database(&mut |database| {
        let tables = (0..database.len()).map(|id| database.table(id as u16));
        sizes = tables.map(|table| (table.schema().name().to_string(), table.len())).collect();
    })?;
    let mut catalogue = Catalogue::default();
    for definition in recovered.definitions.all() {
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
    let Source { io, directory, listing, database, options } = *source;
    let start = Instant::now();
    let (give_back, spare) = channel();
    let mut replay = Replay::new(engine, DedupTable::new(options), report, progress, give_back);
    let newest = listing.checkpoints.last().copied();
    let size = |path: PathBuf| io.open(&path, crate::io::Mode::Read).and_then(|file| file.length()).unwrap_or(0);
    let covered = newest.unwrap_or(0);
    let requires_durability = listing.segments.iter().enumerate();
    let requires_durability = requires_durability
        .filter(|(at, _)| listing.segments.get(at + 1).is_none_or(|&next| next > covered.saturating_add(1)));
    replay.state.total_bytes = requires_durability.map(|(_, &first)| size(directory.segment(first))).sum();
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
    let Replay { catalogue, definitions, mut dedup, .. } = replay;
    dedup.expire(Threads::default().unix_ms());
    (report.records, report.next, report.log_bytes) = (records, end.next, end.bytes);
    (report.torn, report.requests) = (end.torn.clone(), dedup.len() as u64);
    report.log_took = log_start.elapsed();
    report.definitions = definitions.added().to_vec();
    Ok(Recovered { catalogue, definitions, dedup, end })
}

fn run_items(replay: &mut Replay<'_>, decoded: Receiver<(Item, u64)>) -> Result<(), Error> {
    for (item, bytes) in decoded {
        replay.item(item)?;
        replay.advance(bytes);
    }
    replay.drain()
}
