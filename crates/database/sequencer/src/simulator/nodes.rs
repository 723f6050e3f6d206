//! A process of a node: it joins, and joins again when its part has ended, as `lockwork serve` does.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lockwork_engine::{Engine, EngineError, EngineKind, Options as EngineOptions, create};
use lockwork_memory::Pages;
use lockwork_random::Random;

use super::counters::Seen;
use super::director::Told;
use super::way::Way;
use super::world::{SECOND, Seat};
use super::{Broken, Settings};
use crate::error::Error;
use crate::io::simulated::SimulatedDisk;
use crate::journal::election::{NodeOptions, Role};
use crate::options::Options;
use crate::sequencer::Sequencer;
use crate::threads::{Scheduler, Waits};

/// How long others wait for a lease.
pub(super) const LEASE: Duration = Duration::from_millis(1500);
/// How long a node waits before it joins again, and how often it looks whether it has to.
const RETRY_DELAY: Duration = Duration::from_millis(500);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What is the same for all nodes of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) broken: Option<Broken>,
    checkpoint_bytes: u64,
    digest_interval: Duration,
    group_wait: Duration,
    /// Of a thousand things that clients do, so many are reads, beside those that are anyway.
    pub(super) reads: u64,
    /// So many are asked of any node, not of whoever led last.
    pub(super) wanders: u64,
    /// How long a client waits for an answer.
    pub(super) timeout: u64,
    /// The longest time between two faults.
    pub(super) calm: u64,
    /// Bytes for request ids.
    request_memory: u64,
}

impl Plan {
    pub(super) fn new(settings: &Settings, chance: &mut Random) -> Self {
        let checkpoint_bytes = [0, 3_000, 10_000][chance.index(3)];
        Self {
            broken: settings.broken,
            // Who begins with a checkpoint does not read what is before it.
            checkpoint_bytes: if settings.damage.is_some() { 0 } else { checkpoint_bytes },
            digest_interval: Duration::from_millis([0, 100, 2000][chance.index(3)]),
            group_wait: Duration::from_millis([0, 0, 3][chance.index(3)]),
            reads: match settings.damage {
                Some(_) => 0,
                None => [0, 300, 900][chance.index(3)],
            },
            wanders: [0, 50, 300][chance.index(3)],
            timeout: [3 * SECOND, 15 * SECOND][chance.index(2)],
            calm: [SECOND, 3 * SECOND, 8 * SECOND][chance.index(3)],
            request_memory: [1 << 20, 1 << 20, 2_000][chance.index(3)],
        }
    }

    fn options(&self) -> Options {
        Options {
            checkpoint_bytes: self.checkpoint_bytes,
            checkpoint_slice: Duration::from_micros(1),
            group_wait: self.group_wait,
            request_memory: self.request_memory,
            ..Options::default()
        }
    }
}

/// Engines that all do the same.
fn engine(node: usize) -> Result<Box<dyn Engine>, EngineError> {
    let kind = if node % 3 == 1 { EngineKind::SERIAL } else { EngineKind::DETERMINISTIC };
    create(kind, EngineOptions { threads: 1 + node % 2, pages: Pages::Plain, ..EngineOptions::default() })
}

/// Starts a process, and says which.
pub(super) fn start(seat: Seat, node: usize, plan: Plan) {
    let process = Process { seat: seat.clone(), node, plan };
    drop(seat.start("lockwork", Box::new(move || process.run())));
}

struct Process {
    seat: Seat,
    node: usize,
    plan: Plan,
}

impl Process {
    fn run(self) {
        let threads = self.seat.threads();
        while !self.is_asked() {
            match self.join() {
                Ok((sequencer, records)) => {
                    let began = if records.0 { Seen::BeganWithCheckpoint } else { Seen::BeganWithLog };
                    self.seat.world.state().saw(began);
                    let handle = sequencer.handle();
                    self.tell(format_args!("follows from record {}", records.1));
                    self.seat.world.tell(Told::Joined(self.seat.life, handle.clone()));
                    while handle.role() != Some(Role::Ended) && !self.is_asked() {
                        let until = self.seat.now() + POLL_INTERVAL;
                        self.seat.wait(Some(until), false, Waits::Time);
                    }
                    self.seat.world.tell(Told::Left(self.seat.life));
                    let status = handle.node();
                    let ended = sequencer.close().err().map(|error| error.to_string());
                    if self.is_asked() {
                        break;
                    }
                    let why = status.as_ref().and_then(|status| status.trouble.clone()).or(ended).unwrap_or_default();
                    if status.is_some_and(|status| status.differs.is_some()) {
                        return self.stop(&why);
                    }
                    self.tell(format_args!("begins again: {why}"));
                    self.seat.world.state().saw(Seen::BeganAgain);
                }
                Err(Error::Unreachable(_)) => self.seat.world.state().saw(Seen::CouldNotBegin),
                Err(error) => return self.stop(&error.to_string()),
            }
            threads.sleep(RETRY_DELAY);
        }
        self.seat.world.tell(Told::Ended(self.seat.life));
    }

    fn is_asked(&self) -> bool {
        self.seat.world.state().lives[self.seat.life].is_asked
    }

    fn tell(&self, what: std::fmt::Arguments<'_>) {
        let mut state = self.seat.world.state();
        let name = state.name(self.seat.life);
        state.tell(format_args!("{name} {what}"));
    }

    /// It says what is wrong, and goes on with nothing.
    fn stop(&self, why: &str) {
        self.tell(format_args!("stops: {why}"));
        self.seat.world.state().saw(Seen::Stopped);
        self.seat.world.tell(Told::Stopped(self.seat.life, why.into()));
    }

    /// Joins; whether it began with a checkpoint, and with which record it goes on.
    fn join(&self) -> Result<(Sequencer, (bool, u64)), Error> {
        let Plan { broken, digest_interval, .. } = self.plan;
        let node = NodeOptions {
            lease: LEASE,
            digest_interval,
            threads: self.seat.threads(),
            ..NodeOptions::new(format!("node {}", self.node))
        };
        let way = Arc::new(Way::new(self.seat.clone(), broken));
        let disk = Arc::new(SimulatedDisk::new(self.seat.fresh()));
        let engine = engine(self.node)?;
        let joined = Sequencer::join(way, disk, Path::new("/n"), self.plan.options(), node, engine, &mut |_| ());
        joined.map(|(sequencer, report)| (sequencer, (report.next - 1 > report.records, report.next)))
    }
}
