//! A worker process of `network-deterministic`: owner of a partition, and one of those who run what touches it.
//!
//! Calls come in one order, the same for all workers, each to those who take part in it. A call that is all here runs
//! on this partition's own engine, many at a time, unless something before it that has not ended touches the same. In
//! a call of several workers everybody copies the rows that it has, as its turn comes, and tells those who write; who
//! writes runs the call on all of these copies, comes to the same end as the others, because everything that it uses is
//! the same, and keeps what is its own. Nobody votes, and nobody waits for an answer: values are sent once, unasked.
//!
//! One thread. A round takes what has arrived, runs what can run, and sends what was said meanwhile, one system call
//! for each process that it goes to.
//!
//! Invariants: of two transactions that touch the same row here, one of which writes it, the earlier ends here before
//! the later copies or runs. The earliest that has not ended waits for nobody, so every one ends.
//!
//! Source: Calvin (Thomson et al., SIGMOD 2012), section 3.2.

mod apart;
mod kept;
mod orders;
mod queues;
mod said;
mod scout;
mod transaction;

use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockwork_engine::exclusive::{close, give_up};
use lockwork_engine::registry::Registry;
use lockwork_engine::{Engine, EngineKind, Options, Tally, create};
use lockwork_memory::Pages;
use lockwork_procedure::access::KeyAccess;
use lockwork_procedure::block::{self, Batch, HEADER_BYTES, Status};
use lockwork_procedure::interpreter::Stop;
use lockwork_procedure::key::Key;

use crate::access::Effect;
use crate::fetch::{Here, Windows, fetched};
use crate::layout::{Layout, Wanted};
use crate::message::{AGAIN, FAILED, FETCH, FETCHED, FOOTPRINTS, RESULTS, VALUES};
use crate::partition;
use crate::stream::{Stream, StreamError, poll, poll_of};
use crate::wire::{Malformed, Put, Reader};
use crate::worker::{End, Inherited, of_coordinator};

pub(crate) use apart::{Apart, Arrival, Arrivals};
use queues::{Queues, Spread};
use said::{Said, put_outcome, put_result, say};
use scout::Scout;
use transaction::{Block, Transaction};

/// The rows and procedures of a partition. Others of the same process look at them while nothing runs.
pub(crate) type Rows = Arc<Mutex<Box<dyn Engine>>>;

pub(crate) fn lock(rows: &Rows) -> MutexGuard<'_, Box<dyn Engine>> {
    rows.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls that are given to the engine at once: as many as it runs on the thread that asks.
const AT_ONCE: usize = 64;
/// Locks are names here: there can be any number.
const LOCKS: u64 = 1 << 62;

/// A call in the engine's batch.
#[derive(Clone, Copy, Debug)]
struct Going {
    index: u32,
    stamp: u64,
    /// Workers elsewhere that are to be told what becomes of it.
    tell: u64,
    /// If it had to wait.
    slot: Option<u32>,
}

pub(crate) struct Member {
    coordinator: Stream,
    peers: Vec<Option<Stream>>,
    me: usize,
    engine: Rows,
    /// The same procedures, for what does not run on the engine.
    registry: Registry,
    cuts: Vec<Vec<Key>>,
    /// Once everything is there.
    layout: Option<Layout>,
    /// What the engine is to run next, and what calls these are.
    batch: Option<Batch>,
    going: Vec<Going>,
    queues: Queues,
    slots: Vec<Option<Box<Transaction>>>,
    free: Vec<u32>,
    /// Transactions that can go on.
    runnable: Vec<u32>,
    /// By their stamps: transactions that wait for values, and values of transactions that are not known yet.
    waiting: HashMap<u64, u32, Spread>,
    early: HashMap<u64, Vec<(usize, Vec<u8>)>, Spread>,
    scouts: Vec<Option<Box<Scout>>>,
    /// Of them those that can be looked at when everything has ended that was told before.
    due: Vec<usize>,
    said: Said,
    /// Others who look at calls ask for rows here, as they are then: what somebody has told the coordinator may still
    /// have to happen here.
    asked: Vec<(usize, Vec<u8>)>,
    /// The coordinator wants the rows as soon as everything has ended.
    export: bool,
    windows: Windows,
    scratch: Block,
    known: Vec<KeyAccess>,
    wanted: Vec<Wanted>,
    values: Vec<u8>,
    /// For their memory.
    #[expect(clippy::vec_box, reason = "they go into slots and come back as they are")]
    spare: Vec<Box<Transaction>>,
    /// The last call that was told.
    latest: u64,
    /// Whom to tell that everything before has ended.
    settling: Option<u32>,
    /// When others are on other machines, which come and go.
    apart: Option<Box<Apart>>,
}

/// Serves until the coordinator ends; an error is why it had to end before that.
pub(crate) fn serve(inherited: Inherited) -> Result<(), String> {
    let Inherited { coordinator, peers, .. } = inherited;
    let me = peers.iter().position(Option::is_none).ok_or("every other worker has a socket, and this one has not")?;
    let rows = engine(Pages::Plain).map_err(|error| error.to_string())?;
    Member::new(coordinator, peers, me, Arc::new(Mutex::new(rows)), None).serve()
}

/// The engine of a partition.
pub(crate) fn engine(pages: Pages) -> Result<Box<dyn Engine>, lockwork_engine::EngineError> {
    create(EngineKind::Deterministic, Options { threads: 1, pages, ..Options::default() })
}

impl Member {
    /// Worker `me` of as many as `peers`; those that are on other machines come later, `apart`.
    pub(crate) fn new(
        coordinator: Stream,
        peers: Vec<Option<Stream>>,
        me: usize,
        engine: Rows,
        apart: Option<Box<Apart>>,
    ) -> Self {
        let nothing = || vec![Vec::new(); peers.len()];
        Self {
            coordinator,
            me,
            engine,
            registry: Registry::default(),
            cuts: Vec::new(),
            layout: None,
            batch: None,
            going: Vec::new(),
            queues: Queues::default(),
            slots: Vec::new(),
            free: Vec::new(),
            runnable: Vec::new(),
            waiting: HashMap::default(),
            early: HashMap::default(),
            scouts: Vec::new(),
            due: Vec::new(),
            said: Said { values: nothing(), outcomes: nothing(), ..Said::default() },
            peers,
            asked: Vec::new(),
            export: false,
            windows: Windows::default(),
            scratch: Block::default(),
            known: Vec::new(),
            wanted: Vec::new(),
            values: Vec::new(),
            spare: Vec::new(),
            latest: 0,
            settling: None,
            apart,
        }
    }

    /// Serves until the coordinator ends.
    ///
    /// # Errors
    /// Why it had to end before that, unless the coordinator was told.
    pub(crate) fn serve(mut self) -> Result<(), String> {
        loop {
            match self.round() {
                Ok(()) => {}
                Err(End::Coordinator) => return Ok(()),
                Err(End::Failed(text)) => {
                    self.coordinator.send(|frame| {
                        frame.u8(FAILED);
                        frame.bytes(text.as_bytes());
                    });
                    // If the coordinator is gone too, standard error is where it can be read.
                    return self.coordinator.drain(0).map_err(|_| text);
                }
            }
        }
    }

    fn round(&mut self) -> Result<(), End> {
        self.wait()?;
        self.arrive()?;
        of_coordinator(self.coordinator.receive())?;
        // What others say is heard between what the coordinator does, so that little is in flight, and near.
        loop {
            let frame = self.coordinator.frame()?;
            if let Some(frame) = &frame {
                self.ordered(frame)?;
                self.settle()?;
                self.say()?;
            }
            for number in 0..self.peers.len() {
                self.hear(number)?;
            }
            self.settle()?;
            if frame.is_none() {
                break;
            }
        }
        if self.queues.is_empty() && self.waiting.is_empty() {
            self.settled()?;
            self.answer()?;
            while let Some(id) = self.due.pop() {
                self.look(id)?;
            }
            if self.export && self.scouts.iter().all(Option::is_none) {
                self.export = false;
                self.export()?;
            }
        }
        self.say()
    }

    /// Answers those who ask for rows.
    fn answer(&mut self) -> Result<(), End> {
        if self.apart.is_some() {
            return self.answer_apart();
        }
        let Self { engine, peers, asked, .. } = self;
        for (number, frame) in asked.drain(..) {
            let Some(peer) = &mut peers[number] else { continue };
            let mut reader = Reader::new(&frame[1..]);
            let (id, mut answer) = (reader.u32()?, Ok(()));
            lock(engine).with_database(&mut |database| {
                peer.send(|frame| {
                    frame.u8(FETCHED);
                    frame.u32(id);
                    answer = partition::answer(database, &mut reader, frame);
                });
            })?;
            answer?;
        }
        Ok(())
    }

    /// Tells the coordinator all rows that may have changed.
    fn export(&mut self) -> Result<(), End> {
        let Self { engine, registry, coordinator, .. } = self;
        let mut told = Ok(());
        lock(engine).with_database(&mut |database| {
            told = partition::export(database, |id| registry.is_written(id), coordinator);
        })?;
        of_coordinator(told)
    }

    /// Sleeps until there is something to do.
    fn wait(&self) -> Result<(), End> {
        let out = |stream: &Stream| if stream.backlog() > 0 { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
        let streams = std::iter::once(&self.coordinator).chain(self.peers.iter().flatten());
        let mut files: Vec<_> = streams.map(|stream| poll_of(stream.as_raw_fd(), out(stream))).collect();
        files.extend(self.apart.as_ref().map(|apart| poll_of(apart.bell(), libc::POLLIN)));
        Ok(poll(&mut files, -1)?)
    }

    /// Sends everything that was said.
    fn say(&mut self) -> Result<(), End> {
        let Self { coordinator, peers, said, .. } = self;
        for (kind, bytes) in
            [(RESULTS, &mut said.results), (AGAIN, &mut said.again), (FOOTPRINTS, &mut said.footprints)]
        {
            say(coordinator, kind, bytes);
        }
        of_coordinator(coordinator.flush())?;
        if self.apart.is_some() {
            self.say_apart();
            return Ok(());
        }
        for (peer, values) in peers.iter_mut().zip(&mut said.values) {
            let Some(peer) = peer else { continue };
            say(peer, VALUES, values);
            // One that is gone is noticed where it is heard.
            _ = peer.flush();
        }
        Ok(())
    }

    /// Gives a call to the engine.
    fn go(&mut self, going: Going, procedure: u32, arguments: &[u8]) -> Result<(), End> {
        if self.going.len() == AT_ONCE {
            self.run_engine()?;
        }
        let batch = self.batch.as_mut().expect("it is here but while the engine runs it");
        let mut block = batch.push(procedure).expect("a full one was run");
        block.bytes()[HEADER_BYTES as usize..][..arguments.len()].copy_from_slice(arguments);
        self.going.push(going);
        Ok(())
    }

    /// Runs what was given to the engine.
    fn run_engine(&mut self) -> Result<(), End> {
        let Some(batch) = self.batch.take_if(|batch| !batch.is_empty()) else { return Ok(()) };
        let completed = {
            let mut engine = lock(&self.engine);
            engine.submit(batch).map_err(|refused| refused.error)?;
            engine.complete()?.ok_or_else(|| End::Failed("the engine has lost a batch".into()))?
        };
        let (mut batch, mut going) = (completed.batch, std::mem::take(&mut self.going));
        for (call, block) in going.drain(..).zip(batch.blocks()) {
            let registered = self.registry.get(block.procedure()).expect("it is one that was told");
            put_result(&mut self.said.results, call.index, call.stamp, block, registered);
            put_outcome(&mut self.said.outcomes, call.tell, call.stamp, block, registered);
            if let Some(slot) = call.slot {
                self.end(slot);
            }
        }
        batch.clear();
        (self.batch, self.going) = (Some(batch), going);
        Ok(())
    }

    /// Runs everything that can run.
    fn settle(&mut self) -> Result<(), End> {
        while !(self.runnable.is_empty() && self.going.is_empty()) {
            let mut wave = std::mem::take(&mut self.runnable);
            let mut shared = Vec::new();
            for slot in wave.drain(..) {
                let Some(transaction) = self.slots[slot as usize].as_ref() else { continue };
                if !transaction.whole {
                    shared.push(slot);
                    continue;
                }
                let Transaction { index, stamp, tell, .. } = **transaction;
                let going = Going { index, stamp, tell, slot: Some(slot) };
                let registered = transaction.registered.clone();
                let end = registered.verified.procedure().layout().arguments_end as usize;
                let (procedure, block) = (transaction.procedure, self.slots[slot as usize].take());
                let Some(transaction) = block else { continue };
                self.go(going, procedure, &transaction.block.bytes()[HEADER_BYTES as usize..end])?;
                self.slots[slot as usize] = Some(transaction);
            }
            // What comes before has to have ended before anything is copied.
            self.run_engine()?;
            shared.into_iter().try_for_each(|slot| self.advance(slot))?;
        }
        Ok(())
    }

    /// Moves a transaction on that has its locks.
    fn advance(&mut self, slot: u32) -> Result<(), End> {
        let Some(mut transaction) = self.slots[slot as usize].take() else { return Ok(()) };
        let mine = 1 << self.me;
        if !transaction.told {
            self.tell(&mut transaction)?;
        }
        let active = transaction.participants.active & mine != 0;
        if active && transaction.awaited != 0 {
            self.slots[slot as usize] = Some(transaction);
            return Ok(());
        }
        if active {
            self.run(&mut transaction)?;
        }
        self.slots[slot as usize] = Some(transaction);
        self.end(slot);
        Ok(())
    }

    /// Copies what is here, and tells it to those who run the transaction.
    fn tell(&mut self, transaction: &mut Transaction) -> Result<(), End> {
        let Self { engine, layout, said, me, .. } = self;
        let layout = layout.as_ref().expect("it was begun");
        let told = &mut self.values;
        told.clear();
        lock(engine).with_database(&mut |database| {
            Here { layout, database, me: *me }.copy_and_tell(&mut transaction.accesses, told);
        })?;
        transaction.told = true;
        let mut others = transaction.participants.active & !(1 << *me);
        while others != 0 {
            let values = &mut said.values[others.trailing_zeros() as usize];
            values.u64(transaction.stamp);
            values.counted(told);
            others &= others - 1;
        }
        Ok(())
    }

    /// Takes what worker `from` has of a transaction.
    fn take_values(&mut self, stamp: u64, from: usize, values: &[u8]) -> Result<(), End> {
        let again = self.apart.is_some();
        let Some(&slot) = self.waiting.get(&stamp) else {
            // Who was away for a while may say again what was heard before.
            if !again || stamp > self.latest {
                self.early.entry(stamp).or_default().push((from, values.to_vec()));
            }
            return Ok(());
        };
        let Self { engine, layout, slots, me, .. } = self;
        let layout = layout.as_ref().expect("it was begun");
        let transaction = slots[slot as usize].as_mut().filter(|transaction| transaction.awaited & 1 << from != 0);
        let Some(transaction) = transaction else {
            return if again { Ok(()) } else { Err(Malformed::new("values that nobody waits for").into()) };
        };
        let (mut taken, mut reader) = (Ok(()), Reader::new(values));
        lock(engine).with_database(&mut |database| {
            let here = Here { layout, database, me: *me };
            taken = here.take(&mut transaction.accesses, from, &mut reader);
        })?;
        taken?;
        transaction.awaited &= !(1 << from);
        if transaction.awaited == 0 && transaction.told {
            self.runnable.push(slot);
        }
        Ok(())
    }

    /// Runs a transaction, all of whose values are here.
    fn run(&mut self, transaction: &mut Transaction) -> Result<(), End> {
        fetched(&mut transaction.accesses);
        let (registered, block) = (transaction.registered.clone(), transaction.block.as_mut_ptr());
        // SAFETY: the transaction's block is its procedure's.
        let (stop, lacks) = unsafe { self.windows.attempt(&registered, block, &mut transaction.accesses) };
        let layout = self.layout.as_ref().expect("it was begun");
        let answers = transaction.participants.active.trailing_zeros() as usize == self.me;
        if lacks.fetch || lacks.write || !transaction.is_covered(layout) {
            if answers {
                self.said.again.u32(transaction.index);
            }
            return Ok(());
        }
        let outcome = match stop {
            Stop::Committed => {
                // SAFETY: as above, and the windows are the widest of all procedures.
                unsafe {
                    registered.program.run_commit_handler(&mut self.windows.registers, block);
                    close(block, Status::Committed, 0, 0, transaction.stamp);
                }
                None
            }
            Stop::Aborted(code) => Some((Status::Aborted, code)),
            Stop::Failed(code) => Some((Status::Failed, code)),
            Stop::Waiting | Stop::Conflict => unreachable!("an attempt that lacks nothing comes to an end"),
        };
        match outcome {
            None => self.keep(transaction)?,
            Some(outcome) => {
                let (place, tally) = ((0, transaction.stamp), &mut Tally::default());
                // SAFETY: as above.
                unsafe { give_up(&registered, &mut self.windows.registers, block, outcome, place, tally) };
            }
        }
        if answers {
            let block = block::Block::new(transaction.block.bytes());
            put_result(&mut self.said.results, transaction.index, transaction.stamp, block, &registered);
            put_outcome(&mut self.said.outcomes, transaction.tell, transaction.stamp, block, &registered);
        }
        Ok(())
    }

    /// Keeps what a transaction wrote here.
    fn keep(&mut self, transaction: &Transaction) -> Result<(), End> {
        let Self { engine, layout, me, .. } = self;
        let layout = layout.as_ref().expect("it was begun");
        let mut kept = Ok(());
        lock(engine).with_database(&mut |database| {
            kept = transaction
                .accesses
                .iter()
                .filter(|access| access.write && layout.owner(access.table, &access.key) == Some(*me))
                .try_for_each(|access| match access.effect(database.table(access.table).schema()) {
                    Some(Effect::Put(image)) => partition::put(database, access.table, &access.key, Some(image)),
                    Some(Effect::Remove) => partition::put(database, access.table, &access.key, None),
                    None => Ok(()),
                });
        })?;
        Ok(kept?)
    }

    /// A transaction has ended here.
    fn end(&mut self, slot: u32) {
        let Some(ended) = self.slots[slot as usize].take() else { return };
        self.waiting.remove(&ended.stamp);
        let Self { queues, slots, runnable, .. } = self;
        queues.leave(slot, &ended.locks, |next| {
            if let Some(next_one) = &mut slots[next as usize] {
                next_one.waits -= 1;
                if next_one.waits == 0 {
                    runnable.push(next);
                }
            }
        });
        self.free.push(slot);
        self.spare.push(ended);
    }

    /// Takes what another worker says. One that is gone is forgotten: the coordinator sees it too, and ends all.
    fn hear(&mut self, number: usize) -> Result<(), End> {
        let Some(mut peer) = self.peers[number].take() else { return Ok(()) };
        if self.apart.is_some() {
            return self.hear_apart(number, peer);
        }
        match peer.receive() {
            Err(StreamError::Ended) => return self.alone(),
            received => _ = received?,
        }
        while let Some(frame) = peer.frame()? {
            let mut reader = Reader::new(&frame);
            match reader.u8()? {
                VALUES => {
                    while !reader.is_empty() {
                        let (stamp, values) = (reader.u64()?, reader.counted()?);
                        self.take_values(stamp, number, values)?;
                    }
                }
                FETCH => self.asked.push((number, frame)),
                FETCHED => {
                    let id = reader.u32()?;
                    self.take_fetched(id as usize, number, &mut reader)?;
                }
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
}
