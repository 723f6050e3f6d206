//! The front: opening, calls, closing. See the crate for what it guarantees.

use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use lockwork_engine::Engine;
use lockwork_procedure::block::{Batch, HEADER_BYTES, MAX_BLOCK_BYTES};
use lockwork_storage::Digest;

use crate::checkpoint::write::{CheckpointReport, clean};
use crate::directory::{Directory, Listing};
use crate::error::{Error, Failure, Refused};
use crate::format::items::Definition;
use crate::io::{Io, Locking, Mode};
use crate::log::reader::LogEnd;
use crate::log::room::Room;
use crate::log::space::Space;
use crate::log::writer::Writer;
use crate::options::{Durability, Options};
use crate::order::{Order, Parts, Request, Waiting};
use crate::recovery::{Progress, RecoveryReport, Source, recover};
use crate::shared::{Shared, Statistics};
use crate::threads::{Thread, Threads};

/// Requests that may wait for the order thread.
pub(crate) const REQUESTS: usize = 1024;
/// How long the end of a node may take that has a part, before it is made to wait for the others no more.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Units that may wait for the writer.
const UNITS: usize = 16;

/// An open directory. Dropping it waits for what was submitted and closes it.
pub struct Sequencer {
    pub(crate) handle: Option<Handle>,
    /// In the order in which they end, last first.
    pub(crate) threads: Vec<Thread>,
    pub(crate) _lock: Box<dyn Send + Sync>,
}

/// The way in, for any number of threads.
#[derive(Clone)]
pub struct Handle {
    pub(crate) requests: SyncSender<Request>,
    pub(crate) shared: Arc<Shared>,
}

/// A batch that was submitted.
#[must_use = "only waiting tells whether the batch is durable"]
pub struct Ticket(Receiver<Result<Batch, Box<Refused>>>);

impl Ticket {
    /// Waits until the batch is acknowledged: it has run and is as durable as the options ask.
    ///
    /// # Errors
    /// [`Refused`], with the batch if nothing of it has happened.
    pub fn wait(self) -> Result<Batch, Box<Refused>> {
        self.0.recv().unwrap_or(Err(Box::new(Refused { batch: None, error: Error::Closed })))
    }
}

impl Sequencer {
    /// Opens a directory, which is made if it is not there, and recovers what is in it into `engine`. `progress` is
    /// told how far that has come.
    ///
    /// # Errors
    /// [`Error::Foreign`]; [`Error::Locked`]; [`Error::Damaged`] and [`Error::Version`], which leave log and
    /// checkpoints alone; [`Error::Io`] and [`Error::Full`]; [`Error::Engine`] when the engine has tables or
    /// procedures already.
    pub fn open(
        io: Arc<dyn Io>,
        path: &Path,
        options: Options,
        mut engine: Box<dyn Engine>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Self, RecoveryReport), Error> {
        options.validate()?;
        is_empty(&*engine)?;
        let directory = Directory::new(path);
        directory.refuse_foreign(&*io)?;
        for folder in [&directory.root, &directory.log, &directory.checkpoint] {
            io.create_directory(folder).map_err(|error| Error::io("create", folder, error))?;
        }
        let lock = match io.lock(&directory.lock()).map_err(|error| Error::io("lock", &directory.lock(), error))? {
            Locking::Held(lock) => lock,
            Locking::Taken(owner) => return Err(Error::Locked { path: path.to_path_buf(), owner }),
        };
        // A process that was killed may have left names that only memory has; files are removed as others are there.
        let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        for folder in [above, &directory.root, &directory.log, &directory.checkpoint] {
            io.sync_directory(folder).map_err(|error| Error::io("sync", folder, error))?;
        }
        let listing = directory.list(&*io)?;
        let mut report = RecoveryReport { io: io.describe(), unknown: listing.unknown.clone(), ..Default::default() };
        let (database, listing) = identify(&*io, &directory, listing, &mut report)?;
        let source = Source { io: &*io, directory: &directory, listing: &listing, database, options: &options };
        let recovered = recover(&source, &mut *engine, &mut report, progress)?;
        report.rewritten_bytes = settle(&*io, &directory, database, &listing, &recovered.end)?;
        let next = recovered.end.next;
        let space = match options.durability {
            Durability::None => None,
            _ => {
                let space = Space::begin(io.clone(), directory.clone(), database, next, options.segment_bytes)?;
                Some(Room::Segments(space))
            }
        };
        if let Some(&newest) = listing.checkpoints.last() {
            clean(&*io, &directory, newest, next)?;
        }
        let shared = Arc::new(Shared::new(next));
        shared.count(|statistics| statistics.checkpoint_bytes = report.checkpoint.map_or(0, |(_, bytes)| bytes));
        shared.since_checkpoint.store(report.log_bytes, std::sync::atomic::Ordering::Relaxed);
        let mut threads = Vec::new();
        let system = Threads::default();
        let mut units = None;
        if space.is_some() {
            let Options { durability, async_interval, idle_mark, .. } = options;
            let writer = Writer::new(shared.clone(), durability, async_interval, idle_mark, next);
            let (sender, written) = sync_channel(UNITS);
            threads.push(system.start("lockwork-log", move || writer.run(&written))?);
            units = Some(sender);
        }
        let (requests, taken) = sync_channel(REQUESTS);
        let order = Order::new(Parts {
            engine,
            options,
            io,
            directory,
            database,
            space,
            units,
            shared: shared.clone(),
            catalogue: recovered.catalogue,
            definitions: recovered.definitions,
            dedup: recovered.dedup,
            next,
            node: None,
            uncovered: report.engine_took,
        });
        threads.push(system.start("lockwork-order", move || order.run(&taken))?);
        Ok((Self { handle: Some(Handle { requests, shared }), threads, _lock: lock }, report))
    }

    /// A way in, to be given to other threads.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone().expect("open until it is dropped")
    }

    fn way_in(&self) -> &Handle {
        self.handle.as_ref().expect("open until it is dropped")
    }

    /// Creates a table or registers a procedure, durably.
    ///
    /// # Errors
    /// What is wrong with the definition, [`Error::Full`], or why nothing is accepted any more.
    pub fn define(&self, definition: Definition) -> Result<(), Error> {
        self.way_in().define(definition)
    }

    /// As [`Handle::load`].
    ///
    /// # Errors
    /// As there.
    pub fn load(&self, table: &str, images: Vec<u8>) -> Result<usize, Error> {
        self.way_in().load(table, images)
    }

    /// As [`Handle::call_batch`].
    ///
    /// # Errors
    /// As there.
    pub fn call_batch(&self, batch: Batch) -> Result<Batch, Box<Refused>> {
        self.way_in().call_batch(batch)
    }

    /// As [`Handle::submit`].
    ///
    /// # Errors
    /// As there.
    pub fn submit(&self, batch: Batch) -> Result<Ticket, Box<Refused>> {
        self.way_in().submit(batch)
    }

    /// As [`Handle::read`].
    ///
    /// # Errors
    /// As there.
    pub fn read<T: Send + 'static>(&self, read: impl FnOnce(&dyn Engine) -> T + Send + 'static) -> Result<T, Error> {
        self.way_in().read(read)
    }

    /// As [`Handle::digest`].
    ///
    /// # Errors
    /// As there.
    pub fn digest(&self) -> Result<Digest, Error> {
        self.way_in().digest()
    }

    /// As [`Handle::checkpoint`].
    ///
    /// # Errors
    /// As there.
    pub fn checkpoint(&self) -> Result<CheckpointReport, Error> {
        self.way_in().checkpoint()
    }

    /// What was done since it was opened.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.way_in().shared.statistics()
    }

    /// Why the last checkpoint was not made, if it was not.
    #[must_use]
    pub fn checkpoint_trouble(&self) -> Option<Error> {
        self.way_in().shared.checkpoint_trouble()
    }

    /// Waits until everything is durable and closes the directory. With [`Durability::None`] it makes a checkpoint
    /// first.
    ///
    /// # Errors
    /// Why something is not durable.
    pub fn close(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        let Some(handle) = self.handle.take() else { return Ok(()) };
        let trouble = handle.shared.trouble();
        let (reply, answer) = sync_channel(1);
        let threads = &handle.shared.threads;
        let closed = match threads.send(&handle.requests, Request::Close(reply)) {
            Ok(()) => {
                let timeout = handle.is_divided().then_some(TIMEOUT);
                let closed = threads.receive(&answer, timeout).or_else(|_| {
                    // Its engine may wait for a part that is gone.
                    handle.break_off();
                    threads.receive(&answer, None)
                });
                closed.unwrap_or(Err(Error::Closed))
            }
            Err(_) => Err(Error::Closed),
        };
        let shared = handle.shared.clone();
        drop(handle);
        // The writer ends when the order thread, which feeds it, has; its last words are in `shared`.
        for thread in std::mem::take(&mut self.threads).into_iter().rev() {
            thread.join();
        }
        closed.and(trouble.or(shared.trouble()).map_or(Ok(()), Err))
    }
}

impl Drop for Sequencer {
    fn drop(&mut self) {
        drop(self.end());
    }
}

impl Handle {
    pub(crate) fn ask<T>(&self, request: impl FnOnce(SyncSender<Result<T, Error>>) -> Request) -> Result<T, Error> {
        let (reply, answer) = sync_channel(1);
        self.give(request(reply))?;
        answer.recv().unwrap_or_else(|_| Err(self.shared.trouble().unwrap_or(Error::Closed)))
    }

    /// Waits while very many requests are queued.
    pub(crate) fn give(&self, request: Request) -> Result<(), Error> {
        self.shared.threads.send(&self.requests, request).map_err(|_| Error::Closed)
    }

    /// As [`Sequencer::define`].
    ///
    /// # Errors
    /// As there.
    pub fn define(&self, definition: Definition) -> Result<(), Error> {
        self.ask(|reply| Request::Define { definition, reply })
    }

    /// Inserts rows by their images, one behind the other, outside any call. Returns how many; all of them are durable.
    ///
    /// # Errors
    /// [`Error::Load`] when a row was refused: those before it are there. [`Error::Full`]: rows of whole megabytes
    /// before may be there.
    pub fn load(&self, table: &str, images: Vec<u8>) -> Result<usize, Error> {
        self.ask(|reply| {
            let reply = Box::new(move |loaded| drop(reply.send(loaded)));
            Request::Load { tables: vec![(table.into(), images)], reply }
        })
    }

    /// Inserts rows by their images into several tables, the first row of each, then the second of each, and so on,
    /// and no call comes between those of one number: rows of a table and of its indexes. Each table is given as many.
    /// `then` gets how many of each there are, as [`Self::load`] returns it: no row of the first table is there without
    /// those of the others. It runs on a thread of the sequencer, must neither wait nor panic, and is dropped when the
    /// sequencer ends before it knows. Waits while very many requests are queued.
    ///
    /// # Errors
    /// [`Error::Closed`]. `then` gets what [`Self::load`] has; a row that another table than the first refuses stops
    /// the sequencer, because what the log does not have cannot be taken back.
    pub fn load_then(
        &self,
        tables: Vec<(String, Vec<u8>)>,
        then: impl FnOnce(Result<usize, Error>) + Send + 'static,
    ) -> Result<(), Error> {
        self.give(Request::Load { tables, reply: Box::new(then) })
    }

    /// Runs a batch and returns it when it is acknowledged. A call that aborted or failed is no error: its block says
    /// so.
    ///
    /// # Errors
    /// [`Refused`], with the batch if nothing of it has happened.
    pub fn call_batch(&self, batch: Batch) -> Result<Batch, Box<Refused>> {
        self.submit(batch)?.wait()
    }

    /// Hands over a batch. Batches run and are acknowledged in the order in which they were handed over by one thread.
    ///
    /// # Errors
    /// [`Refused`] when the sequencer is closed.
    pub fn submit(&self, batch: Batch) -> Result<Ticket, Box<Refused>> {
        let (reply, answer) = sync_channel(1);
        self.submit_then(batch, move |outcome| drop(reply.send(outcome)))?;
        Ok(Ticket(answer))
    }

    /// As [`Self::submit`], and `then` gets what [`Ticket::wait`] gives, on a thread of the sequencer: it must neither
    /// wait nor panic. It is dropped when the sequencer ends before it knows.
    ///
    /// # Errors
    /// As there.
    pub fn submit_then(
        &self,
        batch: Batch,
        then: impl FnOnce(Result<Batch, Box<Refused>>) + Send + 'static,
    ) -> Result<(), Box<Refused>> {
        let request = Request::Batch(Waiting(Some((batch, Box::new(then)))));
        match self.shared.threads.send(&self.requests, request) {
            Ok(()) => Ok(()),
            Err(mut refused) => {
                let batch = match &mut refused.0 {
                    Request::Batch(waiting) => waiting.0.take().map(|(batch, _)| batch),
                    _ => None,
                };
                Err(Box::new(Refused { batch, error: Error::Closed }))
            }
        }
    }

    /// Runs one call, together with those of other threads, and writes its outcome and results into `block`, which
    /// holds a header and arguments and has room for the results. Returns when it is acknowledged.
    ///
    /// # Errors
    /// As [`Self::call_batch`]; the block is unchanged then. [`Error::Option`] for a block that is no block.
    pub fn call(&self, block: &mut [u8]) -> Result<(), Error> {
        let (reply, answer) = sync_channel(1);
        self.call_then(block.to_vec(), move |outcome| drop(reply.send(outcome)))?;
        let answer = answer.recv().unwrap_or_else(|_| Err(self.shared.trouble().unwrap_or(Error::Closed)))?;
        block.copy_from_slice(&answer[..block.len()]);
        Ok(())
    }

    /// As [`Self::call`] without waiting: `then` gets the block, on a thread of the sequencer: it must neither wait nor
    /// panic. It is dropped when the sequencer ends before it knows. Waits while very many requests are queued.
    ///
    /// # Errors
    /// [`Error::Option`] for a block that is no block, and [`Error::Closed`].
    pub fn call_then(
        &self,
        block: Vec<u8>,
        then: impl FnOnce(Result<Vec<u8>, Error>) + Send + 'static,
    ) -> Result<(), Error> {
        is_block(&block)?;
        self.give(Request::Call { block, reply: Box::new(then) })
    }

    /// Calls `read` with the engine while no batch runs, and returns what it says when all that it may have seen is
    /// durable. After a failed write of the log reads go on, and may see what is not durable and never will be.
    ///
    /// # Errors
    /// [`Error::Closed`].
    ///
    /// # Panics
    /// When `read` does; nobody else notices.
    pub fn read<T: Send + 'static>(&self, read: impl FnOnce(&dyn Engine) -> T + Send + 'static) -> Result<T, Error> {
        let (sender, seen) = sync_channel(1);
        self.read_then(move |engine, _| read(engine), move |outcome| drop(sender.send(outcome)))?;
        let seen = seen.recv().unwrap_or_else(|_| Err(self.shared.trouble().unwrap_or(Error::Closed)))?;
        Ok(seen.unwrap_or_else(|panic| resume_unwind(panic)))
    }

    /// The digest of all tables, when everything before it is durable.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn digest(&self) -> Result<Digest, Error> {
        Ok(self.read(|engine| engine.digest())??)
    }

    /// Makes a checkpoint and waits until it is current. Calls go on meanwhile.
    ///
    /// # Errors
    /// Why there is none; the one before stays.
    pub fn checkpoint(&self) -> Result<CheckpointReport, Error> {
        self.ask(Request::Checkpoint)
    }

    /// For how long one batch, transaction, definition or read has been under way, and everybody else waits; zero when
    /// none is. Not known where tables are divided among nodes.
    #[must_use]
    pub fn busy_for(&self) -> Duration {
        self.shared.busy_for()
    }

    /// What was done since the directory was opened.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.shared.statistics()
    }
}

/// Refuses bytes that are no block.
pub(crate) fn is_block(block: &[u8]) -> Result<(), Error> {
    if (HEADER_BYTES as usize..=MAX_BLOCK_BYTES as usize).contains(&block.len()) {
        return Ok(());
    }
    let expected = format!("{HEADER_BYTES} to {MAX_BLOCK_BYTES} bytes are possible");
    Err(Error::Option { option: "block", value: format!("{} bytes", block.len()), expected })
}

/// Refuses an engine that has something in it.
pub(crate) fn is_empty(engine: &dyn Engine) -> Result<(), Error> {
    let mut tables = 0;
    engine.with_database(&mut |database| tables = database.len())?;
    if tables == 0 && engine.procedure(0).is_none() {
        return Ok(());
    }
    let value = format!("one with {tables} tables");
    Err(Error::Option { option: "engine", value, expected: "one without tables and procedures is possible".into() })
}

/// Finds out which database this is, or makes a new one, and clears away what was never finished.
fn identify(
    io: &dyn Io,
    directory: &Directory,
    listing: Listing,
    report: &mut RecoveryReport,
) -> Result<(u64, Listing), Error> {
    for path in &listing.unfinished {
        io.remove(path).map_err(|error| Error::io("remove", path, error))?;
    }
    if let Some(database) = directory.identify(io, &listing)? {
        return Ok((database, listing));
    }
    report.created = true;
    let database = fresh_id();
    crate::log::space::make(io, directory, database, 1, 0, || Ok(()))?;
    directory.write_format(io, database)?;
    Ok((database, Listing { segments: vec![1], ..listing }))
}

/// A number that no other database has.
pub(crate) fn fresh_id() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // Seeded by the system's randomness.
    let mut hasher = std::hash::RandomState::new().build_hasher();
    hasher.write_u128(std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos()));
    hasher.finish()
}

/// Makes the end of the log what it was taken for: what is torn is cut off, what may not be durable is written again,
/// and segments that were never used are removed. Returns how many bytes were written again.
fn settle(io: &dyn Io, directory: &Directory, database: u64, listing: &Listing, end: &LogEnd) -> Result<u64, Error> {
    let mut rewritten = 0;
    if let Some((first, at)) = end.last {
        let path = directory.segment(first);
        let failed = |action| {
            let path = path.clone();
            move |error| Error::Io(Failure::new(action, &path, Some(at), error))
        };
        let file = io.open(&path, Mode::Write).map_err(failed("open"))?;
        if file.length().map_err(failed("look at"))? != at || !end.unproven.is_empty() {
            // A sync that failed before the crash may have left pages that count as clean: written again they do not.
            rewritten = end.unproven.len() as u64;
            if rewritten > 0 {
                file.write_at(at - rewritten, &end.unproven).map_err(failed("write"))?;
            }
            file.truncate(at).map_err(failed("cut"))?;
            file.sync().map_err(failed("sync"))?;
        }
    }
    // There always is a segment: if none has records, there is one for the next record before the others go.
    let some_stays = listing.segments.iter().any(|segment| !end.empty.contains(segment));
    if !some_stays && !listing.segments.contains(&end.next) {
        crate::log::space::make(io, directory, database, end.next, 0, || Ok(()))?;
    }
    for &empty in &end.empty {
        let path = directory.segment(empty);
        // The one where the next record is due says that all before it was durable.
        if empty != end.next {
            io.remove(&path).map_err(|error| Error::io("remove", &path, error))?;
        }
    }
    io.sync_directory(&directory.log).map_err(|error| Error::io("sync", &directory.log, error))?;
    Ok(rewritten)
}
