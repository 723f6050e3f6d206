//! The load generator: client machines as threads, each with many tasks that run transactions, one after the other (a
//! closed loop). A transaction acquires its locks one by one, is in all of their critical sections for a while, and
//! releases them. One lock and no while is the smallest of them.
//!
//! A task is a few words of state, not a thread: its machine's thread turns to whichever has been granted. In a round,
//! whoever was granted enters, then all who have been in for long enough leave and begin again, so critical sections
//! of one round overlap. Nobody is kept waiting by another one's time in there.
//!
//! *Invariant*: at the end every request was granted and every lock given back, or the run fails.

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockwork_lock_protocol::client::task_of;
use lockwork_lock_protocol::packet::{datagram, parse_whole};
use lockwork_locking::LockMode;

use super::checker::Checker;
use super::histogram::Histogram;
use super::link::Link;
use super::machine::{ClientMachine, Granted};
use super::{BenchError, Idle, interrupted, now};
use lockwork_locks::udp::BATCH;

/// A client machine and how it is connected.
pub(super) struct Site {
    pub(super) machine: Box<dyn ClientMachine>,
    pub(super) link: Box<dyn Link>,
}

/// What the tasks of a machine do.
pub(super) trait Script: Send {
    /// Appends the locks of the next transaction of `task`, at least one, in the order in which it takes them, and
    /// returns the transaction's type.
    fn next(&mut self, task: u32, locks: &mut Vec<(u64, LockMode)>) -> usize;
}

/// How much is done at once, and for how long.
#[derive(Clone, Debug)]
pub(super) struct Load {
    pub(super) locks: u64,
    /// Tasks of each machine.
    pub(super) tasks: u32,
    /// The most locks of a transaction.
    pub(super) most: u32,
    /// Types of transactions whose latency is wanted.
    pub(super) types: usize,
    /// How long a transaction is in its critical sections, at least: nanoseconds.
    pub(super) inside: u64,
    /// Only the first machine has tasks; the others serve.
    pub(super) first_only: bool,
    /// A machine begins only when nothing is under way any more: no release of before is measured along.
    pub(super) one_by_one: bool,
    pub(super) warmup: Duration,
    /// At least; on a busy machine the first grant may take longer, and is waited for.
    pub(super) measured: Duration,
    /// Longest time for the first grant, and for all requests to be granted and released at the end.
    pub(super) drain: Duration,
    /// Grants are counted by slices of the time, too.
    pub(super) slices: Option<Slices>,
}

/// Slices of the time that is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slices {
    /// Nanoseconds of each.
    pub(super) length: u64,
    /// The first begins at a multiple of so many nanoseconds on the clock of all machines.
    pub(super) align: u64,
}

/// Measuring begins so long before the first slice, and goes on for as long after the last one.
const MARGIN: Duration = Duration::from_millis(20);

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Locks granted while measuring.
    pub grants: u64,
    /// How long that was.
    pub seconds: f64,
    /// From asking to the critical section.
    pub latency: Histogram,
    /// For each type of transaction, from asking for its first lock to the release of all; empty where every lock is
    /// by itself.
    pub transactions: Vec<Histogram>,
    /// Packets that client machines sent and received while measuring.
    pub packets: [u64; 2],
    /// Grants in each slice of the time, where that was wanted.
    pub slices: Vec<u64>,
    /// Whether it was checked, and right: writers alone in their critical sections, growing tokens, and every lock
    /// granted and given back.
    pub verified: bool,
}

impl Measured {
    /// Counts what another machine has measured at the same time.
    fn add(&mut self, other: &Self) {
        self.grants += other.grants;
        self.seconds = self.seconds.max(other.seconds);
        self.latency.add(&other.latency);
        self.transactions.resize_with(self.transactions.len().max(other.transactions.len()), Histogram::default);
        self.transactions.iter_mut().zip(&other.transactions).for_each(|(mine, more)| mine.add(more));
        self.packets.iter_mut().zip(other.packets).for_each(|(mine, more)| *mine += more);
        self.slices.resize(self.slices.len().max(other.slices.len()), 0);
        self.slices.iter_mut().zip(&other.slices).for_each(|(mine, more)| *mine += more);
    }
}

/// Requests of a machine in one round.
const MAX_ASKS: usize = 64;

/// After so many rounds timers are looked at though more may have come: sockets hold fewer packets than those rounds
/// take.
const MAX_UNTIMED: u32 = 128;

const WARM: u8 = 0;
const MEASURE: u8 = 1;
/// Nobody asks for another lock.
const END: u8 = 2;
const STOP: u8 = 3;

struct Shared {
    phase: AtomicU8,
    /// Somebody failed: all stop.
    failed: AtomicBool,
    /// Bit `n`: machine `n` has requests, or anything else to look after.
    busy: Vec<AtomicBool>,
    /// Somebody was granted a lock while measuring.
    granted: AtomicBool,
    /// When the first slice begins.
    origin: AtomicU64,
    checker: Checker,
}

impl Shared {
    fn busy(&self) -> usize {
        self.busy.iter().filter(|busy| busy.load(Ordering::SeqCst)).count()
    }
}

/// A lock of a transaction.
#[derive(Clone, Copy, Debug)]
struct Step {
    lock: u64,
    mode: LockMode,
    slot: u32,
    request: u64,
}

#[derive(Clone, Debug, Default)]
struct Task {
    /// Locks of the transaction that it has asked for, and those that it will.
    steps: Vec<Step>,
    /// How many of them it has.
    granted: usize,
    type_number: usize,
    /// When it asked for the first, and for the newest.
    began: u64,
    asked: u64,
    waits: bool,
}

struct Worker<'a, S> {
    site: Site,
    load: &'a Load,
    shared: &'a Shared,
    script: S,
    tasks: Vec<Task>,
    /// A machine knows requests by a number below that of all locks that its tasks may have at once: whose each is.
    slots: Vec<u32>,
    unused: Vec<u32>,
    /// Tasks in transactions.
    active: usize,
    /// Tasks that have some of their locks and are about to ask for the next.
    between: Vec<u32>,
    /// Tasks in critical sections, and when they may leave.
    inside: VecDeque<(u64, u32)>,
    /// Tasks that are about to begin.
    outside: Vec<u32>,
    locks: Vec<(u64, LockMode)>,
    /// Rounds since timers were looked at.
    untimed: u32,
    measured: Measured,
}

impl<'a, S: Script> Worker<'a, S> {
    fn new(number: usize, site: Site, script: S, load: &'a Load, shared: &'a Shared) -> Self {
        let tasks = if load.first_only && number > 0 { 0 } else { load.tasks };
        let slots = tasks * load.most;
        let count = load.slices.map_or(0, |slices| (load.measured.as_nanos() as u64 / slices.length) as usize);
        Self {
            site,
            load,
            shared,
            script,
            tasks: vec![Task::default(); tasks as usize],
            slots: vec![0; slots as usize],
            unused: (0..slots).rev().collect(),
            active: 0,
            between: Vec::new(),
            inside: VecDeque::new(),
            outside: (0..tasks).collect(),
            locks: Vec::new(),
            untimed: 0,
            measured: Measured {
                transactions: vec![Histogram::default(); load.types],
                slices: vec![0; count],
                ..Measured::default()
            },
        }
    }

    fn run(&mut self, number: usize) -> Result<(), String> {
        let mut idle = Idle::default();
        let (mut before, mut start) = (WARM, 0);
        loop {
            let phase = self.shared.phase.load(Ordering::Relaxed);
            if phase != before {
                match phase {
                    MEASURE => start = now(),
                    _ if before == MEASURE => self.measured.seconds = (now() - start) as f64 / 1e9,
                    _ => {}
                }
                before = phase;
            }
            if phase == STOP || self.shared.failed.load(Ordering::Relaxed) {
                return Ok(());
            }
            idle.round(self.round(phase)?);
            if phase == END {
                let busy = self.active > 0 || !self.site.machine.is_idle();
                if busy && self.active == 0 {
                    self.site.machine.wind_up(now());
                }
                self.shared.busy[number].store(busy, Ordering::SeqCst);
            }
        }
    }

    /// Begins the next transaction of `number`.
    fn begin(&mut self, number: u32, now: u64) -> Result<(), String> {
        let task = &mut self.tasks[number as usize];
        self.locks.clear();
        task.type_number = self.script.next(number, &mut self.locks);
        task.steps.clear();
        task.steps.extend(self.locks.iter().map(|&(lock, mode)| Step { lock, mode, slot: 0, request: 0 }));
        (task.granted, task.began) = (0, now);
        self.active += 1;
        self.ask(number, now)
    }

    /// Asks for the next lock of `number`.
    fn ask(&mut self, number: u32, now: u64) -> Result<(), String> {
        let task = &mut self.tasks[number as usize];
        let step = &mut task.steps[task.granted];
        step.slot = self.unused.pop().expect("there are enough for all locks of all tasks");
        self.slots[step.slot as usize] = number;
        step.request = self.site.machine.acquire(now, step.lock, step.mode, step.slot)?;
        (task.asked, task.waits) = (now, true);
        Ok(())
    }

    /// A lock was granted: its critical section begins.
    fn enter(&mut self, granted: Granted, now: u64, measures: bool) -> Result<(), String> {
        let Granted { request, token } = granted;
        let unknown = || format!("nobody waits for request {request:x}, which was granted");
        let number = *self.slots.get(task_of(request) as usize).ok_or_else(unknown)?;
        let task = &mut self.tasks[number as usize];
        let step = task.steps.get(task.granted).filter(|step| task.waits && step.request == request);
        let &Step { lock, mode, .. } = step.ok_or_else(unknown)?;
        self.shared.checker.enter(lock, mode, token)?;
        task.waits = false;
        task.granted += 1;
        if measures {
            self.measured.latency.record(now - task.asked);
            if self.measured.grants == 0 {
                self.shared.granted.store(true, Ordering::Relaxed);
            }
            self.measured.grants += 1;
            count_slice(&mut self.measured, self.load, self.shared, now);
        }
        if task.granted < task.steps.len() {
            self.between.push(number);
        } else {
            self.inside.push_back((now + self.load.inside, number));
        }
        Ok(())
    }

    /// All of the transaction's critical sections end.
    fn leave(&mut self, number: u32, now: u64, measures: bool) -> Result<(), String> {
        let task = &self.tasks[number as usize];
        for step in &task.steps {
            self.shared.checker.leave(step.lock, step.mode);
            self.site.machine.release(now, step.request)?;
            self.unused.push(step.slot);
        }
        if let Some(latency) = self.measured.transactions.get_mut(task.type_number).filter(|_| measures) {
            latency.record(now - task.began);
        }
        self.active -= 1;
        self.outside.push(number);
        Ok(())
    }

    /// Takes what has come, lets everybody do a step, and sends. Whether there was anything to do.
    fn round(&mut self, phase: u8) -> Result<bool, String> {
        let measures = phase == MEASURE;
        let Site { machine, link } = &mut self.site;
        let before = now();
        let failed = |error: std::io::Error| format!("the socket of a client machine: {error}");
        let mut take = |bytes: &[u8]| {
            // What is no packet of ours is not ours.
            if let Ok((packet, body)) = parse_whole(bytes, None) {
                machine.receive(before, &packet, body);
            }
        };
        let received = link.receive(&mut take).map_err(failed)? as u64;
        let now = now();
        // Whose answer is in the socket is not asked again.
        self.untimed = if received < BATCH as u64 || self.untimed == MAX_UNTIMED { 0 } else { self.untimed + 1 };
        if self.untimed == 0 {
            machine.tick(now);
        }
        while let Some(granted) = self.site.machine.poll_event()? {
            self.enter(granted, now, measures)?;
        }
        while let Some((_, number)) = self.inside.pop_front_if(|(due, _)| *due <= now) {
            self.leave(number, now, measures)?;
        }
        let asks = self.between.len().min(MAX_ASKS);
        (0..asks).try_for_each(|at| self.ask(self.between[at], now))?;
        self.between.drain(..asks);
        if phase < END && (!self.load.one_by_one || self.active == 0 && self.site.machine.is_idle()) {
            let begins = self.outside.len().min(MAX_ASKS - asks);
            (0..begins).try_for_each(|at| self.begin(self.outside[at], now))?;
            self.outside.drain(..begins);
        }
        let Site { machine, link } = &mut self.site;
        let mut sent = 0;
        while let Some((packet, body)) = machine.poll_packet() {
            sent += 1;
            if body.is_empty() {
                link.send(&packet.header(0, None)).map_err(failed)?;
            } else {
                link.send(&datagram(&packet, &body, None)).map_err(failed)?;
            }
        }
        link.flush().map_err(failed)?;
        if measures {
            self.measured.packets[0] += sent;
            self.measured.packets[1] += received;
        }
        Ok(received + sent > 0)
    }
}

/// Counts a grant in the slice of the time that it is in.
fn count_slice(measured: &mut Measured, load: &Load, shared: &Shared, now: u64) {
    let Some(slices) = load.slices else { return };
    let since = now.checked_sub(shared.origin.load(Ordering::Relaxed));
    let slice = since.and_then(|since| measured.slices.get_mut((since / slices.length) as usize));
    slice.into_iter().for_each(|slice| *slice += 1);
}

/// Lets all machines work, each by its script, and looks at every critical section.
pub(super) fn drive<S: Script>(sites: Vec<Site>, scripts: Vec<S>, load: &Load) -> Result<Measured, BenchError> {
    let shared = Shared {
        phase: AtomicU8::new(WARM),
        failed: AtomicBool::new(false),
        busy: sites.iter().map(|_| AtomicBool::new(true)).collect(),
        granted: AtomicBool::new(false),
        origin: AtomicU64::new(0),
        checker: Checker::new(load.locks),
    };
    let mut measured = Measured::default();
    let outcome = std::thread::scope(|scope| {
        let work = |(number, (site, script)): (usize, (Site, S))| {
            let shared = &shared;
            scope.spawn(move || {
                let mut worker = Worker::new(number, site, script, load, shared);
                let outcome = worker.run(number);
                outcome.map(|()| worker.measured).map_err(|error| {
                    shared.failed.store(true, Ordering::Relaxed);
                    format!("machine {}: {error}", number + 1)
                })
            })
        };
        let threads: Vec<_> = sites.into_iter().zip(scripts).enumerate().map(work).collect();
        let ended = conduct(&shared, load);
        shared.phase.store(STOP, Ordering::Relaxed);
        for thread in threads {
            let joined = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            measured.add(&joined.map_err(BenchError::Check)?);
        }
        ended
    });
    outcome?;
    match shared.checker.occupied() {
        0 => Ok(Measured { verified: true, ..measured }),
        count => Err(BenchError::Check(format!("somebody is still in {count} critical sections"))),
    }
}

/// For how long nothing may be under way at the end.
const REST: Duration = Duration::from_millis(100);

/// Goes through the phases.
fn conduct(shared: &Shared, load: &Load) -> Result<(), BenchError> {
    let until = |limit: Duration, end: &dyn Fn() -> bool| {
        let start = Instant::now();
        while start.elapsed() < limit && !end() && !shared.failed.load(Ordering::Relaxed) {
            if interrupted() {
                return Err(BenchError::Interrupted);
            }
            std::thread::sleep(Duration::from_millis(5).min(limit));
        }
        Ok(())
    };
    until(load.warmup, &|| false)?;
    let mut measured = load.measured;
    if let Some(slices) = load.slices {
        let (now, margin) = (now(), MARGIN.as_nanos() as u64);
        let origin = (now + margin).next_multiple_of(slices.align);
        shared.origin.store(origin, Ordering::Relaxed);
        until(Duration::from_nanos(origin - margin - now), &|| false)?;
        measured += 2 * MARGIN;
    }
    shared.phase.store(MEASURE, Ordering::Relaxed);
    until(measured, &|| false)?;
    let granted = || shared.granted.load(Ordering::Relaxed);
    until(load.drain, &granted)?;
    shared.phase.store(END, Ordering::Relaxed);
    // A late copy of a request may yet be granted to nobody, and is given back then.
    let since = Cell::new(None);
    let rests = || {
        let rested = since.get().filter(|_| shared.busy() == 0);
        since.set((shared.busy() == 0).then(|| rested.unwrap_or_else(Instant::now)));
        rested.is_some_and(|since: Instant| since.elapsed() >= REST)
    };
    until(load.drain, &rests)?;
    match shared.busy() {
        _ if shared.failed.load(Ordering::Relaxed) => Ok(()),
        0 if granted() => Ok(()),
        0 => Err(BenchError::Check(format!("nothing was granted in {:?}", load.measured + load.drain))),
        count => {
            let limit = load.drain;
            Err(BenchError::Check(format!("{count} machines still wait for grants or answers after {limit:?}")))
        }
    }
}
