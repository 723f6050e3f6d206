//! The other side: a process of its own, which does what it reads from its standard input, a line for each job.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering;

use clap::Args;
use lockwork_locknet::bench::histogram::Histogram;
use lockwork_neardata::link::Link;
use lockwork_neardata::linked::Linked;
use lockwork_sharedlocks::{SharedLocks, Waiting};
use serde::{Deserialize, Serialize};

use super::super::{Failure, Outcome};
use super::clock::{Clock, ticks_after};
use super::contend::{Load, contend};
use super::shared::{PAGE, Shared};

#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    /// The lock table
    #[arg(long)]
    table: PathBuf,
    /// The shared memory
    #[arg(long)]
    memory: PathBuf,
    /// Counters in it
    #[arg(long)]
    counters: usize,
    /// The way between the two sides
    #[arg(long)]
    link: Link,
}

/// What the peer can be told.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Job {
    /// Request locks.
    Contend(Load),
    /// Fetch this many bytes this many times, as often as the host has written them.
    Fetch {
        /// 64 or 8192.
        bytes: usize,
        /// Times.
        times: u64,
    },
}

/// What it answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Report {
    /// Largest value of each bucket in nanoseconds, and how often.
    buckets: Vec<(u64, u64)>,
    /// Fetches whose contents were not what the host had written.
    pub(super) wrong: u64,
}

impl Report {
    /// What was measured.
    pub(super) fn histogram(&self) -> Histogram {
        let mut histogram = Histogram::default();
        self.buckets.iter().for_each(|&(ns, count)| (0..count).for_each(|_| histogram.record(ns)));
        histogram
    }
}

/// The process.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let failed = |error: &dyn std::fmt::Display| Failure::BackEnd(format!("near-data peer: {error}"));
    // It looks at memory without end while it waits for the host, which may be killed meanwhile.
    // SAFETY: a plain system call.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let name = arguments.table.to_str().ok_or_else(|| failed(&"the table's path is not UTF-8"))?;
    let locks = SharedLocks::attach(name).map_err(|error| failed(&error))?;
    let locks = locks.through(|mapped| Linked::new(mapped, arguments.link));
    let mut session = locks.session().map_err(|error| failed(&error))?;
    session.set_waiting(Waiting::Poll);
    let shared = Shared::open(&arguments.memory, arguments.counters).map_err(|error| failed(&error))?;
    let clock = Clock::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| failed(&error))?;
        let job = serde_json::from_str(&line).map_err(|error| failed(&format!("'{line}' is no job: {error}")))?;
        let (histogram, wrong) = match job {
            Job::Contend(load) => (contend(&mut session, &shared, &clock, load).map_err(|error| failed(&error))?, 0),
            Job::Fetch { bytes, times } => fetch(&shared, &clock, arguments.link, bytes.min(PAGE), times),
        };
        let report = Report { buckets: histogram.buckets().collect(), wrong };
        println!("{}", serde_json::to_string(&report).map_err(|error| failed(&error))?);
    }
    Ok(())
}

/// Fetches what the host has written, each time anew.
fn fetch(shared: &Shared, clock: &Clock, link: Link, bytes: usize, times: u64) -> (Histogram, u64) {
    let (mut histogram, mut wrong) = (Histogram::default(), 0);
    let mut copy = vec![0u64; PAGE / 8];
    for time in 0..times {
        let turn = 2 * time + 1;
        while shared.turn().load(Ordering::Acquire) != turn {
            std::hint::spin_loop();
        }
        let begin = ticks_after();
        let words = bytes / 8;
        for (copy, word) in copy[..words].iter_mut().zip(shared.page()) {
            *copy = word.load(Ordering::Relaxed);
        }
        link.transfer(bytes);
        histogram.record(clock.ns(begin, ticks_after()));
        let written = |at: usize| time.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ at as u64;
        wrong += u64::from((0..words).any(|at| copy[at] != written(at)));
        shared.turn().store(turn + 1, Ordering::Release);
    }
    (histogram, wrong)
}

/// Writes the page, as often as the peer fetches it.
pub(super) fn serve_fetches(shared: &Shared, bytes: usize, times: u64, alive: &mut dyn FnMut() -> bool) -> bool {
    for time in 0..times {
        let mut looks = 0u64;
        while shared.turn().load(Ordering::Acquire) != 2 * time {
            looks += 1;
            if looks.is_multiple_of(1 << 20) && !alive() {
                return false;
            }
            std::hint::spin_loop();
        }
        let written = |at: usize| time.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ at as u64;
        shared.page()[..bytes / 8].iter().enumerate().for_each(|(at, word)| word.store(written(at), Ordering::Relaxed));
        shared.turn().store(2 * time + 1, Ordering::Release);
    }
    true
}

/// A peer that runs.
pub(super) struct Peer {
    child: Child,
    jobs: ChildStdin,
    reports: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts one.
    pub(super) fn start(table: &Path, memory: &Path, counters: usize, link: Link) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::BackEnd(format!("the peer process cannot be started: {error}"));
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(program);
        command.arg("near-data-peer").arg("--table").arg(table).arg("--memory").arg(memory);
        command.args(["--counters", &counters.to_string(), "--link", link.name()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let jobs = child.stdin.take().expect("it is a pipe");
        let reports = BufReader::new(child.stdout.take().expect("it is a pipe"));
        Ok(Self { child, jobs, reports })
    }

    /// Tells it what to do.
    pub(super) fn tell(&mut self, job: Job) -> Result<(), Failure> {
        let text = serde_json::to_string(&job).map_err(Failure::usage)?;
        let told = writeln!(self.jobs, "{text}").and_then(|()| self.jobs.flush());
        told.map_err(|error| Failure::BackEnd(format!("the peer process is gone: {error}")))
    }

    /// Waits for what came of it.
    pub(super) fn report(&mut self) -> Result<Report, Failure> {
        let mut line = String::new();
        match self.reports.read_line(&mut line) {
            Ok(length) if length > 0 => serde_json::from_str(&line).map_err(Failure::usage),
            Ok(_) => Err(Failure::BackEnd("the peer process has ended".into())),
            Err(error) => Err(Failure::BackEnd(format!("the peer process: {error}"))),
        }
    }

    /// Whether it still runs.
    pub(super) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It has nothing to lose.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
