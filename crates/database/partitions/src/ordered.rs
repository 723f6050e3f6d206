//! The coordinator of `network-deterministic`: it decides the order, and tells each call to all who take part in it.
//!
//! Who that is follows from the rows that the call touches. Where the arguments do not tell which, a worker looks
//! first, by running the call on copies: *reconnaissance*, which gives a *footprint*. Rows may have changed when the
//! call's turn comes; then all who take part find that alike, nothing of the call happens, and it is looked at and
//! ordered again, behind the others.
//!
//! Source: Calvin (Thomson et al., SIGMOD 2012), sections 3.1 and 3.2.1.

use lockwork_engine::EngineError;
use lockwork_engine::registry::Registry;
use lockwork_procedure::access::KeyAccess;
use lockwork_procedure::block::{Batch, HEADER_BYTES};

use crate::coordinator::{Core, Scheme, malformed};
use crate::dispatch::{admit, send_calls, take_result};
use crate::layout::Spread;
use crate::message::{AGAIN, CALLS, FOOTPRINTS, PIECE, RESULTS, SCOUT};
use crate::processes::Processes;
use crate::transaction::known_accesses;
use crate::wire::{Malformed, Put, Reader};

/// How long a frame of calls gets before the next one begins: some hundred calls, so that others' values are heard
/// while all that concerns them is in the nearest cache.
const CALLS_BYTES: usize = 32 << 10;
/// How often all calls that found something changed are looked at again together; then one after the other.
const TOGETHER: usize = 3;

/// Who takes part in a call: sets of workers, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Participants {
    /// They have rows that it touches, or are to run it.
    pub(crate) all: u64,
    /// They run it: they have rows that it writes. The first of them tells what became of it.
    pub(crate) active: u64,
}

impl Participants {
    /// Counts an access in; `owner` has its row, `None` stands for rows that everybody has.
    pub(crate) fn add(&mut self, owner: Option<usize>, writes: bool) {
        let owner = owner.map_or(0, |owner| 1 << owner);
        self.all |= owner;
        self.active |= if writes { owner } else { 0 };
    }

    /// Somebody has to run it, also if it writes nothing, or touches nothing that is not everywhere.
    pub(crate) fn settle(&mut self, otherwise: usize) {
        if self.all == 0 {
            self.all = 1 << otherwise;
        }
        if self.active == 0 {
            self.active = self.all & self.all.wrapping_neg();
        }
    }
}

/// What is known of a call.
#[derive(Clone, Debug, Default)]
struct Footprint {
    participants: Participants,
    /// What it will touch, as it was found by looking; nothing, if its arguments tell.
    accesses: Vec<u8>,
}

/// One batch on its way.
struct Ordering<'a> {
    running: &'a mut Processes,
    registry: &'a Registry,
    spreads: Vec<Spread>,
    workers: usize,
    stamp: &'a mut u64,
    /// By the calls' places, until they are told.
    footprints: Vec<Footprint>,
    /// What is to be sent to each worker.
    calls: Vec<Vec<u8>>,
    known: Vec<KeyAccess>,
    /// Calls whose results are still to come.
    left: usize,
    /// Whose turn it is where anybody would do.
    next: usize,
}

impl Core {
    /// Runs the calls of a batch.
    ///
    /// # Errors
    /// A worker is gone, or says something that means nothing.
    pub(crate) fn order(&mut self, batch: &mut Batch, in_order: bool, conflicts: &mut u64) -> Result<(), EngineError> {
        let Self { running, registry, database, options, scheme, .. } = self;
        let Scheme::Deterministic(stamp) = scheme else { unreachable!("the engine is deterministic") };
        let workers = options.threads;
        let mut ordering = Ordering {
            running: running.as_mut().expect("the workers were started"),
            registry,
            spreads: (0..database.len()).map(|id| Spread::of(database.table(id as u16).schema())).collect(),
            workers,
            stamp,
            footprints: vec![Footprint::default(); batch.len()],
            calls: vec![Vec::new(); workers],
            known: Vec::new(),
            left: 0,
            next: 0,
        };
        let calls: Vec<usize> = (0..batch.len()).filter(|&at| admit(registry, batch, at).is_some()).collect();
        if in_order {
            return ordering.in_order(batch, &calls);
        }
        let dependent: Vec<usize> = calls.iter().copied().filter(|&at| !ordering.is_known(batch, at)).collect();
        ordering.scout(batch, &dependent)?;
        calls.iter().for_each(|&at| ordering.tell(batch, at));
        let mut again = ordering.listen(batch)?;
        for _ in 0..TOGETHER {
            again.sort_unstable();
            *conflicts += again.len() as u64;
            ordering.scout(batch, &again)?;
            again.iter().for_each(|&at| ordering.tell(batch, at));
            again = ordering.listen(batch)?;
        }
        again.sort_unstable();
        *conflicts += again.len() as u64;
        again.into_iter().try_for_each(|at| ordering.alone(batch, at))
    }
}

impl Ordering<'_> {
    /// Runs calls so that their order is the order of the batch: a call is looked at when all before it have run.
    fn in_order(&mut self, batch: &mut Batch, calls: &[usize]) -> Result<(), EngineError> {
        for &at in calls {
            if self.is_known(batch, at) {
                self.tell(batch, at);
                continue;
            }
            let again = self.listen(batch)?;
            assert!(again.is_empty(), "what the arguments tell does not change");
            self.alone(batch, at)?;
        }
        self.listen(batch).map(drop)
    }

    /// Looks at a call and runs it while nothing else runs, so nothing changes in between.
    fn alone(&mut self, batch: &mut Batch, at: usize) -> Result<(), EngineError> {
        self.scout(batch, &[at])?;
        self.tell(batch, at);
        match self.listen(batch)?[..] {
            [] => Ok(()),
            _ => Err(malformed(Malformed::new("a call found something changed while nothing else ran"))),
        }
    }

    /// Whether the arguments of a call tell who takes part; then that is noted.
    fn is_known(&mut self, batch: &Batch, at: usize) -> bool {
        let block = batch.block(at);
        let Some(registered) = self.registry.get(block.procedure()) else { return false };
        self.known.clear();
        if !known_accesses(registered, block.bytes(), &mut self.known) {
            return false;
        }
        let mut participants = Participants::default();
        for access in &self.known {
            let spread = self.spreads[usize::from(registered.table_id(access.slot))];
            participants.add(spread.owner(&access.key, self.workers), access.operation.writes());
        }
        participants.settle(at % self.workers);
        self.footprints[at] = Footprint { participants, accesses: Vec::new() };
        true
    }

    /// Has workers look which rows calls touch.
    fn scout(&mut self, batch: &Batch, wanted: &[usize]) -> Result<(), EngineError> {
        for &at in wanted {
            self.next = (self.next + 1) % self.workers;
            let (worker, call) = (self.next, batch.block(at));
            let out = &mut self.calls[worker];
            out.u32(at as u32);
            put_call(self.registry, call.procedure(), call.bytes(), out);
            if out.len() > PIECE {
                send_calls(self.running, worker, SCOUT, out);
            }
        }
        self.send(SCOUT);
        let mut left = wanted.len();
        if left == 0 {
            return Ok(());
        }
        let footprints = &mut self.footprints;
        self.running.listen(|_, frame| {
            let mut reader = Reader::new(frame);
            if reader.u8().map_err(malformed)? != FOOTPRINTS {
                return Err(malformed(Malformed::new("something else than footprints")));
            }
            while !reader.is_empty() {
                let (at, footprint) = take_footprint(&mut reader).map_err(malformed)?;
                let place = footprints.get_mut(at).filter(|_| left > 0);
                *place.ok_or_else(|| malformed(Malformed::new("the footprint of no call")))? = footprint;
                left -= 1;
            }
            Ok(left == 0)
        })
    }

    /// Gives a call its place in the order, and tells it to all who take part.
    fn tell(&mut self, batch: &Batch, at: usize) {
        *self.stamp += 1;
        self.left += 1;
        let block = batch.block(at);
        let Footprint { participants, accesses } = std::mem::take(&mut self.footprints[at]);
        let mut rest = participants.all;
        while rest != 0 {
            let worker = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let out = &mut self.calls[worker];
            out.u32(at as u32);
            out.u64(*self.stamp);
            out.u64(participants.all);
            out.u64(participants.active);
            // Nobody but this process wants to know what becomes of it.
            out.u64(0);
            out.counted(&accesses);
            put_call(self.registry, block.procedure(), block.bytes(), out);
            if out.len() > CALLS_BYTES {
                send_calls(self.running, worker, CALLS, out);
            }
        }
    }

    fn send(&mut self, kind: u8) {
        let Self { calls, running, .. } = self;
        calls.iter_mut().enumerate().for_each(|(worker, calls)| send_calls(running, worker, kind, calls));
    }

    /// Takes results until all are there; returns the calls that found something changed.
    fn listen(&mut self, batch: &mut Batch) -> Result<Vec<usize>, EngineError> {
        self.send(CALLS);
        let (mut left, mut again, registry) = (std::mem::take(&mut self.left), Vec::new(), self.registry);
        if left == 0 {
            return Ok(again);
        }
        self.running.listen(|_, frame| {
            let mut reader = Reader::new(frame);
            let kind = reader.u8().map_err(malformed)?;
            while !reader.is_empty() {
                match kind {
                    RESULTS => take_result(&mut reader, batch, registry, &mut 0).map_err(malformed)?,
                    AGAIN => again.push(reader.u32().map_err(malformed)? as usize),
                    other => return Err(malformed(Malformed::new(format_args!("results of kind {other}")))),
                }
                left = left.checked_sub(1).ok_or_else(|| malformed(Malformed::new("more results than calls")))?;
            }
            Ok(left == 0)
        })?;
        match again.iter().all(|&at| at < batch.len()) {
            true => Ok(again),
            false => Err(malformed(Malformed::new("a call that is not there found something changed"))),
        }
    }
}

/// Appends a call: its procedure and its arguments.
pub(crate) fn put_call(registry: &Registry, procedure: u32, block: &[u8], out: &mut Vec<u8>) {
    let registered = registry.get(procedure).expect("the call was admitted");
    let end = registered.arguments_end;
    out.u32(procedure);
    out.counted(&block[HEADER_BYTES as usize..end]);
}

fn take_footprint(reader: &mut Reader<'_>) -> Result<(usize, Footprint), Malformed> {
    let at = reader.u32()? as usize;
    let participants = Participants { all: reader.u64()?, active: reader.u64()? };
    let accesses = reader.counted()?.to_vec();
    if participants.all == 0 || accesses.is_empty() || participants.active & !participants.all != 0 {
        return Err(Malformed::new("a footprint of nobody"));
    }
    Ok((at, Footprint { participants, accesses }))
}
