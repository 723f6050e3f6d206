//! The load generator: client machines as threads, each with many tasks that acquire a lock, are in its critical
//! section, and release it, over and over (a closed loop).
//!
//! A task is a few words of state, not a thread: its machine's thread turns to whichever has been granted. In a round,
//! whoever was granted enters, then all leave and ask for their next lock, so critical sections of one round overlap.
//!
//! *Invariant*: at the end every request was granted and every lock given back, or the run fails.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockwork_locking::LockMode;
use lockwork_lockservice::client::task_of;
use lockwork_lockservice::packet::{datagram, parse_whole};
use lockwork_workload::random::Random;
use lockwork_workload::zipf::Chooser;

use super::checker::Checker;
use super::histogram::Histogram;
use super::link::Link;
use super::machine::ClientMachine;
use super::{BenchError, Idle, interrupted, now};

/// A client machine and how it is connected.
pub(super) struct Site {
    pub(super) machine: Box<dyn ClientMachine>,
    pub(super) link: Box<dyn Link>,
}

/// What is asked for, and for how long.
#[derive(Clone, Debug)]
pub(super) struct Load {
    pub(super) chooser: Chooser,
    pub(super) locks: u64,
    /// Tasks of each machine.
    pub(super) tasks: u32,
    /// Share of exclusive locks.
    pub(super) writes: f64,
    pub(super) seed: u64,
    /// A machine asks only when nothing is under way any more: no release of before is measured along.
    pub(super) one_by_one: bool,
    pub(super) warmup: Duration,
    /// At least; on a busy machine the first grant may take longer, and is waited for.
    pub(super) measured: Duration,
    /// Longest time for the first grant, and for all requests to be granted and released at the end.
    pub(super) drain: Duration,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Locks granted while measuring.
    pub grants: u64,
    /// How long that was.
    pub seconds: f64,
    /// From asking to the critical section.
    pub latency: Histogram,
}

/// Requests of a machine in one round.
const MOST_ASKS: usize = 64;

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
    grants: AtomicU64,
    checker: Checker,
}

impl Shared {
    fn busy(&self) -> usize {
        self.busy.iter().filter(|busy| busy.load(Ordering::SeqCst)).count()
    }
}

#[derive(Clone, Copy, Debug)]
struct Task {
    lock: u64,
    mode: LockMode,
    request: u64,
    asked: u64,
    waits: bool,
}

struct Worker<'a> {
    site: Site,
    load: &'a Load,
    shared: &'a Shared,
    random: Random,
    tasks: Vec<Task>,
    waiting: usize,
    /// Tasks in critical sections.
    inside: Vec<u32>,
    /// Tasks that are about to ask.
    outside: Vec<u32>,
    latency: Histogram,
    grants: u64,
}

impl Worker<'_> {
    fn run(&mut self, number: usize) -> Result<f64, String> {
        let mut idle = Idle::default();
        let (mut before, mut start, mut seconds) = (WARM, 0, 0.0);
        loop {
            let phase = self.shared.phase.load(Ordering::Relaxed);
            if phase != before {
                match phase {
                    MEASURE => start = now(),
                    _ if before == MEASURE => seconds = (now() - start) as f64 / 1e9,
                    _ => {}
                }
                before = phase;
            }
            if phase == STOP || self.shared.failed.load(Ordering::Relaxed) {
                return Ok(seconds);
            }
            idle.round(self.round(phase)?);
            if phase == END {
                let busy = self.waiting > 0 || !self.site.machine.is_idle();
                self.shared.busy[number].store(busy, Ordering::SeqCst);
            }
        }
    }

    /// Asks for a lock for `task`.
    fn ask(&mut self, task: u32, now: u64) -> Result<(), String> {
        let lock = self.load.chooser.next(&mut self.random);
        let writes = self.load.writes > 0.0 && self.random.unit() < self.load.writes;
        let mode = if writes { LockMode::Exclusive } else { LockMode::Shared };
        let request = self.site.machine.acquire(now, lock, mode, task)?;
        self.tasks[task as usize] = Task { lock, mode, request, asked: now, waits: true };
        self.waiting += 1;
        Ok(())
    }

    /// Takes what has come, lets everybody do a step, and sends. Whether there was anything to do.
    fn round(&mut self, phase: u8) -> Result<bool, String> {
        let Site { machine, link } = &mut self.site;
        let before = now();
        let failed = |error: std::io::Error| format!("the socket of a client machine: {error}");
        let mut take = |bytes: &[u8]| {
            // What is no packet of ours is not ours.
            if let Ok((packet, body)) = parse_whole(bytes, None) {
                machine.receive(before, &packet, body);
            }
        };
        let mut anything = link.receive(&mut take).map_err(failed)? > 0;
        let now = now();
        machine.tick(now);
        while let Some(granted) = machine.poll_event()? {
            let number = task_of(granted.request);
            let task = self.tasks.get_mut(number as usize).filter(|task| task.request == granted.request && task.waits);
            let task =
                task.ok_or_else(|| format!("nobody waits for request {:x}, which was granted", granted.request))?;
            self.shared.checker.enter(task.lock, task.mode, granted.token)?;
            task.waits = false;
            self.inside.push(number);
            if phase == MEASURE {
                self.latency.record(now - task.asked);
                if self.grants == 0 {
                    self.shared.granted.store(true, Ordering::Relaxed);
                }
                self.grants += 1;
            }
        }
        self.waiting -= self.inside.len();
        for at in 0..self.inside.len() {
            let number = self.inside[at];
            let task = self.tasks[number as usize];
            self.shared.checker.leave(task.lock, task.mode);
            self.site.machine.release(now, task.request)?;
        }
        self.outside.append(&mut self.inside);
        if phase < END && (!self.load.one_by_one || self.site.machine.is_idle()) {
            let asks = self.outside.len().min(MOST_ASKS);
            (0..asks).try_for_each(|at| self.ask(self.outside[at], now))?;
            self.outside.drain(..asks);
        }
        let Site { machine, link } = &mut self.site;
        while let Some((packet, body)) = machine.poll_packet() {
            anything = true;
            if body.is_empty() {
                link.send(&packet.header(0, None)).map_err(failed)?;
            } else {
                link.send(&datagram(&packet, &body, None)).map_err(failed)?;
            }
        }
        link.flush().map_err(failed)?;
        Ok(anything)
    }
}

/// Lets all machines work, and looks at every critical section.
pub(super) fn drive(sites: Vec<Site>, load: &Load) -> Result<Measured, BenchError> {
    let shared = Shared {
        phase: AtomicU8::new(WARM),
        failed: AtomicBool::new(false),
        busy: sites.iter().map(|_| AtomicBool::new(true)).collect(),
        granted: AtomicBool::new(false),
        grants: AtomicU64::new(0),
        checker: Checker::new(load.locks),
    };
    let mut measured = Measured::default();
    let outcome = std::thread::scope(|scope| {
        let work = |(number, site): (usize, Site)| {
            let shared = &shared;
            scope.spawn(move || {
                let free = Task { lock: 0, mode: LockMode::Shared, request: 0, asked: 0, waits: false };
                let mut worker = Worker {
                    site,
                    load,
                    shared,
                    random: Random::stream(load.seed, number as u64),
                    tasks: vec![free; load.tasks as usize],
                    waiting: 0,
                    inside: Vec::new(),
                    outside: (0..load.tasks).collect(),
                    latency: Histogram::default(),
                    grants: 0,
                };
                let outcome = worker.run(number);
                shared.grants.fetch_add(worker.grants, Ordering::Relaxed);
                outcome.map(|seconds| (seconds, worker.latency)).map_err(|error| {
                    shared.failed.store(true, Ordering::Relaxed);
                    format!("machine {}: {error}", number + 1)
                })
            })
        };
        let threads: Vec<_> = sites.into_iter().enumerate().map(work).collect();
        let ended = conduct(&shared, load);
        shared.phase.store(STOP, Ordering::Relaxed);
        for thread in threads {
            let joined = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let (seconds, latency) = joined.map_err(BenchError::Check)?;
            measured.seconds = measured.seconds.max(seconds);
            measured.latency.add(&latency);
        }
        ended
    });
    outcome?;
    measured.grants = shared.grants.load(Ordering::Relaxed);
    match shared.checker.occupied() {
        0 => Ok(measured),
        count => Err(BenchError::Check(format!("somebody is still in {count} critical sections"))),
    }
}

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
    shared.phase.store(MEASURE, Ordering::Relaxed);
    until(load.measured, &|| false)?;
    let granted = || shared.granted.load(Ordering::Relaxed);
    until(load.drain, &granted)?;
    shared.phase.store(END, Ordering::Relaxed);
    until(load.drain, &|| shared.busy() == 0)?;
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

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use lockwork_lockservice::packet::Packet;
    use lockwork_workload::zipf::Distribution;

    use super::super::machine::Granted;
    use super::*;

    /// Nobody is there.
    struct Nowhere;

    impl Link for Nowhere {
        fn send(&mut self, _: &[u8]) -> std::io::Result<()> {
            Ok(())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }

        fn receive(&mut self, _: &mut dyn FnMut(&[u8])) -> std::io::Result<usize> {
            Ok(0)
        }
    }

    /// Grants whatever is asked for by itself, and loses every request from a certain number on.
    struct Generous {
        requests: u64,
        loses_from: u64,
        granted: VecDeque<Granted>,
    }

    impl ClientMachine for Generous {
        fn acquire(&mut self, _: u64, _: u64, _: LockMode, task: u32) -> Result<u64, String> {
            self.requests += 1;
            let request = u64::from(task) << 32 | self.requests;
            if self.requests < self.loses_from {
                self.granted.push_back(Granted { request, token: self.requests });
            }
            Ok(request)
        }

        fn release(&mut self, _: u64, _: u64) -> Result<(), String> {
            Ok(())
        }

        fn receive(&mut self, _: u64, _: &Packet, _: &[u8]) {}

        fn tick(&mut self, _: u64) {}

        fn poll_packet(&mut self) -> Option<(Packet, Vec<u8>)> {
            None
        }

        fn poll_event(&mut self) -> Result<Option<Granted>, String> {
            Ok(self.granted.pop_front())
        }

        fn is_idle(&self) -> bool {
            true
        }
    }

    const BRIEF: Duration = Duration::from_millis(20);

    fn measure(tasks: u32, writes: f64, loses_from: u64, measured: Duration) -> Result<Measured, BenchError> {
        let machine = Box::new(Generous { requests: 0, loses_from, granted: VecDeque::new() });
        let load = Load {
            chooser: Chooser::new(Distribution::Uniform, 4, 0.0).expect("it is possible"),
            locks: 4,
            tasks,
            writes,
            seed: 1,
            one_by_one: false,
            warmup: Duration::from_millis(5),
            measured,
            drain: Duration::from_millis(100),
        };
        drive(vec![Site { machine, link: Box::new(Nowhere) }], &load)
    }

    #[test]
    fn readers_and_a_single_writer_may_do_what_they_like() {
        for (tasks, writes) in [(8, 0.0), (1, 1.0)] {
            let measured = measure(tasks, writes, u64::MAX, BRIEF).expect("nobody is in anybody's way");
            assert!(measured.grants > 0 && measured.grants == measured.latency.count() && measured.seconds > 0.0);
        }
    }

    #[test]
    fn the_first_grant_is_waited_for() {
        let measured = measure(1, 1.0, u64::MAX, Duration::ZERO).expect("it is granted later");
        assert!(measured.grants > 0 && measured.seconds > 0.0);
        let error = measure(0, 1.0, u64::MAX, BRIEF).expect_err("nobody asks").to_string();
        assert_eq!(error, "nothing was granted in 120ms");
    }

    #[test]
    fn a_service_that_lets_two_writers_in_or_loses_a_request_fails() {
        let error = measure(8, 1.0, u64::MAX, BRIEF).expect_err("eight writers share four locks").to_string();
        assert!(error.contains("was granted Exclusive while 1 writers"), "{error}");
        let error = measure(1, 1.0, 2, 8 * BRIEF).expect_err("the second request is not granted").to_string();
        assert!(error.contains("still wait"), "{error}");
    }
}
