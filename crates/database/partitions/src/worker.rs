//! A worker process: owner of a partition, and home of the transactions that it is given.
//!
//! One thread. A round takes what has arrived from the coordinator, the other workers and the lock service, moves every
//! transaction on that this concerns, begins new ones where there is room, and sends what was said meanwhile, one
//! system call for each process that it goes to. So the more transactions are in flight, the less a message costs.
//!
//! Invariant: what another worker asks is answered in the round in which it arrives, whatever this worker's own
//! transactions wait for; so waiting for an answer never waits for a lock.

mod orders;

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::task::Waker;

use lockwork_engine::Tally;
use lockwork_engine::exclusive::{close, give_up};
use lockwork_engine::registry::{Registered, Registry};
use lockwork_locking::service::LockService;
use lockwork_procedure::block::{Block, Status, abort};
use lockwork_procedure::interpreter::Stop;
use lockwork_procedure::key::Key;
use lockwork_storage::Database;

use crate::access::Effect;
use crate::bell::Bell;
use crate::fetch::{LocalPartition, Windows, fetched};
use crate::layout::Layout;
use crate::message::{APPLIED, APPLY, FAILED, FETCH, FETCHED, RESULTS};
use crate::partition;
use crate::stamps::Stamps;
use crate::stream::{Stream, StreamError, poll, poll_of};
use crate::transaction::{Stage, Transaction};
use crate::wire::{Malformed, Put, Reader};

/// Why a worker ends.
#[derive(Debug)]
pub(crate) enum End {
    /// The coordinator has closed its end, or is gone.
    Coordinator,
    /// It cannot go on, and says why.
    Failed(String),
}

impl<E: std::error::Error> From<E> for End {
    fn from(error: E) -> Self {
        Self::Failed(error.to_string())
    }
}

/// What came of talking to the coordinator, whose end is no failure.
pub(crate) fn of_coordinator<T>(result: Result<T, StreamError>) -> Result<T, End> {
    result.map_err(|error| match error {
        StreamError::Ended => End::Coordinator,
        other => other.into(),
    })
}

/// A call that has not begun.
struct Call {
    index: u32,
    sequence: u64,
    registered: Arc<Registered>,
    arguments: Vec<u8>,
}

/// What every worker is given when it starts.
pub(crate) struct Inherited {
    pub(crate) coordinator: Stream,
    /// By the workers' numbers; `None` is this one.
    pub(crate) peers: Vec<Option<Stream>>,
    pub(crate) stamps: Stamps,
}

struct Worker<S: LockService> {
    coordinator: Stream,
    peers: Vec<Option<Stream>>,
    me: usize,
    stamps: Stamps,
    database: Database,
    registry: Registry,
    cuts: Vec<Vec<Key>>,
    service: String,
    max_retries: u32,
    ready: Option<(Layout, S)>,
    bell: Arc<Bell>,
    wakers: Vec<Waker>,
    /// Transactions that something was told to in this round.
    woken: Vec<usize>,
    slots: Vec<Option<Box<Transaction<S>>>>,
    free: Vec<usize>,
    queue: VecDeque<Call>,
    results: Vec<u8>,
    windows: Windows,
}

/// Serves until the coordinator ends; an error is why it had to end before that.
pub(crate) fn serve<S: LockService>(inherited: Inherited) -> Result<(), String> {
    let Inherited { coordinator, peers, stamps } = inherited;
    let me = peers.iter().position(Option::is_none).ok_or("every other worker has a socket, and this one has not")?;
    let mut worker = Worker::<S> {
        coordinator,
        peers,
        me,
        stamps,
        database: Database::default(),
        registry: Registry::default(),
        cuts: Vec::new(),
        service: String::new(),
        max_retries: 0,
        ready: None,
        bell: Bell::new().map_err(|error| error.to_string())?,
        wakers: Vec::new(),
        woken: Vec::new(),
        slots: Vec::new(),
        free: Vec::new(),
        queue: VecDeque::new(),
        results: Vec::new(),
        windows: Windows::default(),
    };
    loop {
        match worker.round() {
            Ok(()) => {}
            Err(End::Coordinator) => return Ok(()),
            Err(End::Failed(text)) => {
                worker.coordinator.send(|frame| {
                    frame.u8(FAILED);
                    frame.bytes(text.as_bytes());
                });
                // If the coordinator is gone too, standard error is where it can be read.
                return worker.coordinator.drain(0).map_err(|_| text);
            }
        }
    }
}

impl<S: LockService> Worker<S> {
    fn round(&mut self) -> Result<(), End> {
        self.wait()?;
        of_coordinator(self.coordinator.receive())?;
        while let Some(frame) = self.coordinator.frame()? {
            self.ordered(&frame)?;
        }
        for number in 0..self.peers.len() {
            self.hear(number)?;
        }
        self.bell.take(&mut self.woken);
        while let Some(slot) = self.woken.pop() {
            self.advance(slot)?;
        }
        while let (Some(&slot), false) = (self.free.last(), self.queue.is_empty()) {
            self.free.pop();
            self.begin(slot)?;
        }
        if !self.results.is_empty() {
            let results = std::mem::take(&mut self.results);
            self.coordinator.send(|frame| {
                frame.u8(RESULTS);
                frame.bytes(&results);
            });
        }
        of_coordinator(self.coordinator.flush())?;
        // One that is gone is noticed where it is heard.
        self.peers.iter_mut().flatten().for_each(|peer| _ = peer.flush());
        Ok(())
    }

    /// Sleeps until there is something to do.
    fn wait(&self) -> Result<(), End> {
        let out = |stream: &Stream| if stream.backlog() > 0 { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
        let streams = std::iter::once(&self.coordinator).chain(self.peers.iter().flatten());
        let mut files: Vec<_> = streams.map(|stream| poll_of(stream.as_raw_fd(), out(stream))).collect();
        files.push(poll_of(self.bell.as_raw_fd(), libc::POLLIN));
        Ok(poll(&mut files, -1)?)
    }

    /// Takes what another worker says. One that is gone is forgotten: the coordinator sees it too, and ends all.
    fn hear(&mut self, number: usize) -> Result<(), End> {
        let Some(mut peer) = self.peers[number].take() else { return Ok(()) };
        match peer.receive() {
            Err(StreamError::Ended) => return self.alone(),
            received => _ = received?,
        }
        while let Some(frame) = peer.frame()? {
            let mut reader = Reader::new(&frame);
            let (kind, id) = (reader.u8()?, reader.u32()?);
            match kind {
                FETCH => {
                    let mut answer = Ok(());
                    peer.send(|frame| {
                        frame.u8(FETCHED);
                        frame.u32(id);
                        answer = partition::answer(&self.database, &mut reader, frame);
                    });
                    answer?;
                }
                APPLY => {
                    partition::apply(&self.database, &mut reader).map_err(End::Failed)?;
                    peer.send(|frame| {
                        frame.u8(APPLIED);
                        frame.u32(id);
                    });
                }
                FETCHED | APPLIED => self.answered(number, id as usize, kind, &mut reader)?,
                other => return Err(Malformed::new(format_args!("a worker sent a message of kind {other}")).into()),
            }
        }
        self.peers[number] = Some(peer);
        Ok(())
    }

    /// Another worker is gone, and with it rows: there is nothing left to do but to be ended.
    fn alone(&mut self) -> Result<(), End> {
        loop {
            poll(&mut [poll_of(self.coordinator.as_raw_fd(), libc::POLLIN)], -1)?;
            of_coordinator(self.coordinator.receive())?;
        }
    }

    /// Takes the answer of worker `number`, which belongs to the transaction in a slot.
    fn answered(&mut self, number: usize, slot: usize, kind: u8, reader: &mut Reader<'_>) -> Result<(), End> {
        let transaction = self.slots.get_mut(slot).and_then(Option::as_mut).filter(|t| t.outstanding > 0);
        let Some(transaction) = transaction else {
            return Err(Malformed::new("an answer that nobody waits for").into());
        };
        transaction.outstanding -= 1;
        if kind == FETCHED {
            let (layout, _) = self.ready.as_ref().expect("a transaction was begun");
            let here = LocalPartition { layout, database: &self.database, me: self.me };
            here.take(&mut transaction.accesses, number, reader)?;
        }
        self.woken.push(slot);
        Ok(())
    }

    /// Begins the next call in a free slot.
    fn begin(&mut self, slot: usize) -> Result<(), End> {
        let call = self.queue.pop_front().expect("somebody looked");
        let (layout, _) = self.ready.as_ref().expect("calls come after the start");
        let mut transaction = Transaction::new(call.index, call.sequence, call.registered, &call.arguments);
        transaction.begin(layout);
        self.slots[slot] = Some(Box::new(transaction));
        self.advance(slot)
    }

    /// Moves a transaction on as far as it comes.
    fn advance(&mut self, slot: usize) -> Result<(), End> {
        // A slot may have been woken for a transaction that has ended.
        let Some(mut transaction) = self.slots[slot].take() else { return Ok(()) };
        loop {
            let goes_on = match transaction.stage {
                Stage::Locking => self.lock(slot, &mut transaction)?,
                Stage::Fetch => {
                    let (layout, _) = self.ready.as_ref().expect("it was begun");
                    let here = LocalPartition { layout, database: &self.database, me: self.me };
                    transaction.outstanding += here.fetch(&mut transaction.accesses, slot as u32, &mut self.peers);
                    transaction.stage = Stage::Fetching;
                    true
                }
                Stage::Fetching if transaction.outstanding == 0 => {
                    fetched(&mut transaction.accesses);
                    transaction.stage = Stage::Run;
                    true
                }
                Stage::Run => {
                    self.attempt(slot, &mut transaction)?;
                    true
                }
                Stage::Applying if transaction.outstanding == 0 => {
                    self.end(slot, &transaction);
                    return Ok(());
                }
                Stage::Fetching | Stage::Applying => false,
            };
            if !goes_on {
                self.slots[slot] = Some(transaction);
                return Ok(());
            }
        }
    }

    /// Takes locks; `true`: all are held, or it has to begin again.
    fn lock(&mut self, slot: usize, transaction: &mut Transaction<S>) -> Result<bool, End> {
        let (layout, service) = self.ready.as_ref().expect("it was begun");
        match transaction.take_locks(service, &self.wakers[slot]) {
            Ok(false) => Ok(false),
            Ok(true) => {
                transaction.stage = Stage::Fetch;
                Ok(true)
            }
            Err(error) if S::may_retry(&error) => {
                transaction.conflicts += 1;
                transaction.lock(layout);
                Ok(true)
            }
            Err(error) => Err(End::Failed(format!("the lock service at {}: {error}", self.service))),
        }
    }

    /// Runs the procedure on what is here.
    fn attempt(&mut self, slot: usize, transaction: &mut Transaction<S>) -> Result<(), End> {
        let (layout, _) = self.ready.as_ref().expect("it was begun");
        let registered = transaction.registered.clone();
        let block = transaction.block();
        // SAFETY: the transaction's block is its procedure's.
        let (stop, lacks) = unsafe { self.windows.attempt(&registered, block, &mut transaction.accesses) };
        if !transaction.locked {
            if lacks.fetch {
                transaction.stage = Stage::Fetch;
            } else {
                transaction.lock(layout);
            }
            return Ok(());
        }
        let lost = transaction.has_lost();
        if lost || lacks.fetch || !transaction.is_covered(layout) {
            if !lost && transaction.extend(layout) {
                return Ok(());
            }
            transaction.conflicts += 1;
            if transaction.conflicts > self.max_retries {
                self.give_up(transaction, (Status::Failed, abort::TOO_MANY_RETRIES), 0);
            } else if lacks.fetch {
                transaction.unlock();
                transaction.stage = Stage::Fetch;
            } else {
                transaction.lock(layout);
            }
            return Ok(());
        }
        match stop {
            Stop::Committed => {
                // SAFETY: as above.
                unsafe {
                    registered.program.run_commit_handler(&mut self.windows.registers, block);
                    close(block, Status::Committed, 0, transaction.sequence, self.stamps.next());
                }
                self.commit(slot, transaction)
            }
            Stop::Aborted(code) => {
                let stamp = self.stamps.next();
                self.give_up(transaction, (Status::Aborted, code), stamp);
                Ok(())
            }
            Stop::Failed(code) => {
                self.give_up(transaction, (Status::Failed, code), 0);
                Ok(())
            }
            Stop::Waiting | Stop::Conflict => unreachable!("an attempt that lacks nothing comes to an end"),
        }
    }

    /// Brings what a transaction wrote to the owners of the rows.
    fn commit(&mut self, slot: usize, transaction: &mut Transaction<S>) -> Result<(), End> {
        let (layout, _) = self.ready.as_ref().expect("it was begun");
        let mut wanted = vec![false; self.peers.len()];
        let schema = |table: u16| self.database.table(table).schema();
        for access in transaction.accesses.iter().filter(|access| access.write) {
            let Some(effect) = access.effect(schema(access.table)) else { continue };
            match layout.owner(access.table, &access.key) {
                Some(owner) if owner != self.me => wanted[owner] = true,
                _ => {
                    let image = match effect {
                        Effect::Put(image) => Some(image),
                        Effect::Remove => None,
                    };
                    partition::put(&self.database, access.table, &access.key, image)?;
                }
            }
        }
        for (number, peer) in self.peers.iter_mut().enumerate().filter(|(number, _)| wanted[*number]) {
            let Some(peer) = peer else { continue };
            transaction.outstanding += 1;
            peer.send(|frame| {
                frame.u8(APPLY);
                frame.u32(slot as u32);
                for access in transaction.accesses.iter().filter(|access| access.write) {
                    let Some(effect) = access.effect(schema(access.table)) else { continue };
                    if layout.owner(access.table, &access.key) == Some(number) {
                        frame.u16(access.table);
                        frame.key(&access.key);
                        frame.counted(match effect {
                            Effect::Put(image) => image,
                            Effect::Remove => &[],
                        });
                    }
                }
            });
        }
        transaction.stage = Stage::Applying;
        Ok(())
    }

    fn give_up(&mut self, transaction: &mut Transaction<S>, outcome: (Status, u16), stamp: u64) {
        let (registered, place) = (transaction.registered.clone(), (transaction.sequence, stamp));
        let block = transaction.block();
        // SAFETY: the block is the procedure's, and the window wide enough.
        unsafe { give_up(&registered, &mut self.windows.registers, block, outcome, place, &mut Tally::default()) };
        transaction.stage = Stage::Applying;
    }

    /// Tells what became of a transaction; its locks go with it.
    fn end(&mut self, slot: usize, transaction: &Transaction<S>) {
        let block = Block::new(transaction.bytes());
        let (start, length) = transaction.registered.results;
        self.results.u32(transaction.index);
        self.results.u8(block.status().unwrap_or(Status::Failed) as u8);
        self.results.u16(block.abort_code());
        self.results.u64(block.serial());
        self.results.u32(transaction.conflicts);
        self.results.counted(&transaction.bytes()[start..start + length]);
        self.free.push(slot);
    }
}
