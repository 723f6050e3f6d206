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
mod shares;
mod transaction;
mod wave;

use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockwork_engine::registry::Registry;
use lockwork_engine::{Engine, EngineKind, Options, create};
use lockwork_memory::Pages;
use lockwork_procedure::access::KeyAccess;
use lockwork_procedure::block::{Batch, HEADER_BYTES};
use lockwork_procedure::key::Key;

use crate::fetch::Windows;
use crate::layout::{Layout, Wanted};
use crate::message::{AGAIN, FAILED, FETCH, FETCHED, FOOTPRINTS, RESULTS, VALUES};
use crate::partition;
use crate::stream::{Stream, StreamError, poll, poll_of};
use crate::wire::{Malformed, Put, Reader};
use crate::worker::{End, Inherited, of_coordinator};

pub(crate) use apart::{Apart, Arrival, Arrivals, Unmet};
use queues::{Queues, Spreading};
use said::{Said, put_outcome, put_result, say};
use scout::Scout;
pub(crate) use shares::Shares;
use transaction::{Block, Transaction};
use wave::Values;

/// The rows and procedures of a partition. Others of the same process look at them while nothing runs.
pub(crate) type Rows = Arc<Mutex<Box<dyn Engine>>>;

pub(crate) fn lock(rows: &Rows) -> MutexGuard<'_, Box<dyn Engine>> {
    rows.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls that are given to the engine at once: as many as it runs on the thread that asks.
const AT_ONCE: usize = 64;
/// Values for one other worker that are sent before the round ends: it may wait for them.
const SOON_BYTES: usize = 8 << 10;
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
    /// By stamp: transactions that wait for values; and values whose transactions have not arrived yet.
    waiting: HashMap<u64, u32, Spreading>,
    early: HashMap<u64, (Values, Vec<Values>), Spreading>,
    /// Early values whose transactions have arrived since, to be handed over in this step.
    arrived: Vec<(u32, Values)>,
    /// Of a wave, for their memory: transactions with others, and those that have ended.
    shared: Vec<u32>,
    ended: Vec<(u32, bool)>,
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
    create(EngineKind::DETERMINISTIC, Options { threads: 1, pages, ..Options::default() })
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
            arrived: Vec::new(),
            shared: Vec::new(),
            ended: Vec::new(),
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
                if self.said.values.iter().any(|values| values.len() > SOON_BYTES) {
                    self.say_to_others();
                }
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
        self.say_to_coordinator();
        of_coordinator(self.coordinator.flush())?;
        self.say_to_others();
        Ok(())
    }

    /// Puts what was said to the coordinator into frames. They go out at the end of a round, so that it is woken once.
    fn say_to_coordinator(&mut self) {
        let Self { coordinator, said, .. } = self;
        for (kind, bytes) in
            [(RESULTS, &mut said.results), (AGAIN, &mut said.again), (FOOTPRINTS, &mut said.footprints)]
        {
            say(coordinator, kind, bytes);
        }
    }

    /// Sends what was said to others, who may wait for it.
    fn say_to_others(&mut self) {
        if self.apart.is_some() {
            return self.say_apart();
        }
        let Self { peers, said, .. } = self;
        for (peer, values) in peers.iter_mut().zip(&mut said.values) {
            let Some(peer) = peer else { continue };
            say(peer, VALUES, values);
            // One that is gone is noticed where it is heard.
            _ = peer.flush();
        }
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

    /// A transaction has ended here.
    fn end(&mut self, slot: u32) {
        let Some(ended) = self.slots[slot as usize].take() else { return };
        if !ended.whole {
            self.waiting.remove(&ended.stamp);
        }
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
                VALUES => self.take_values(number, frame)?,
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
