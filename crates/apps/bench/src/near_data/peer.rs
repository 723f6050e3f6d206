//! The other side: a process of its own, which does what it reads from its standard input, a line for each job.
//!
//! Lock table and memory have no names: it inherits their descriptors, so nothing is left of them however it ends.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::{CommandExt, parent_id};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering;

use clap::Args;
use lockwork_lock_bench::histogram::Histogram;
use lockwork_neardata::link::Link;
use lockwork_neardata::linked::Linked;
use lockwork_sharedlocks::{SharedLocks, Waiting};
use serde::{Deserialize, Serialize};

use super::super::{Failure, Outcome};
use super::clock::{Clock, ticks_after};
use super::contend::{Load, contend};
use super::shared::{PAGE, Shared};
use super::watch::Watch;
use super::{Files, timeout};

#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    /// The inherited descriptor of the lock table
    #[arg(long)]
    table: u16,
    /// That of the shared memory
    #[arg(long)]
    memory: u16,
    /// Counters in it
    #[arg(long)]
    counters: usize,
    /// The process that has started it
    #[arg(long)]
    host: u32,
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
pub(crate) fn command(arguments: &Arguments) -> Outcome {
    let failed = |error: &dyn std::fmt::Display| Failure::BackEnd(format!("near-data peer: {error}"));
    // It looks at memory without end while it waits for the host, which may be killed meanwhile.
    // SAFETY: a plain system call.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    // Before that nobody would have told.
    if parent_id() != arguments.host {
        return Err(failed(&format!("process {} is not its parent, or not any more", arguments.host)));
    }
    let table = inherited(arguments.table).map_err(|error| failed(&error))?;
    let locks = SharedLocks::of_descriptor(table.as_fd()).map_err(|error| failed(&error))?;
    let locks = locks.through(|mapped| Linked::new(mapped, arguments.link));
    let mut session = locks.session().map_err(|error| failed(&error))?;
    session.set_waiting(Waiting::Poll);
    let memory = inherited(arguments.memory).map_err(|error| failed(&error))?;
    let shared = Shared::open(&memory, arguments.counters).map_err(|error| failed(&error))?;
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

/// The file of a descriptor that the host has handed over.
fn inherited(descriptor: u16) -> io::Result<File> {
    let path = format!("/proc/self/fd/{descriptor}");
    let file = OpenOptions::new().read(true).write(true).open(&path);
    file.map_err(|error| io::Error::new(error.kind(), format!("{path}, which the host should have opened: {error}")))
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
    /// Of the child, while that has not been waited for.
    watch: Option<Watch>,
}

impl Peer {
    /// Starts one on the table and the memory of `files`.
    pub(super) fn start(bench: &super::Arguments, files: &Files, link: Link) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::BackEnd(format!("the peer process cannot be started: {error}"));
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(program);
        let descriptors = [files.table.as_raw_fd(), files.memory.as_raw_fd()];
        command.arg("near-data-peer").args(["--table", &descriptors[0].to_string()]);
        command.args(["--memory", &descriptors[1].to_string(), "--host", &std::process::id().to_string()]);
        command.args(["--counters", &files.counters.to_string(), "--link", link.name()]);
        let inherit = move || {
            for descriptor in descriptors {
                // SAFETY: a plain system call, which is allowed between fork and exec.
                if unsafe { libc::fcntl(descriptor, libc::F_SETFD, 0) } < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        };
        // SAFETY: what runs between fork and exec makes system calls only, and allocates nothing.
        unsafe { command.pre_exec(inherit) };
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let jobs = child.stdin.take().expect("it is a pipe");
        let reports = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let mut peer = Self { child, jobs, reports, watch: None };
        peer.watch = Some(Watch::over(peer.child.id(), timeout(bench))?);
        Ok(peer)
    }

    /// Tells it what to do.
    pub(super) fn tell(&mut self, job: Job) -> Result<(), Failure> {
        let text = serde_json::to_string(&job).map_err(Failure::usage)?;
        writeln!(self.jobs, "{text}").and_then(|()| self.jobs.flush()).map_err(|_| self.gone())
    }

    /// Waits for what came of it.
    ///
    /// # Errors
    /// The peer ends, or is stopped for longer than [`timeout`].
    pub(super) fn report(&mut self) -> Result<Report, Failure> {
        let mut line = String::new();
        match self.reports.read_line(&mut line) {
            Ok(length) if length > 0 => serde_json::from_str(&line).map_err(Failure::usage),
            Ok(_) => Err(self.gone()),
            Err(error) => Err(Failure::BackEnd(format!("the peer process: {error}"))),
        }
    }

    /// Whether it still runs.
    pub(super) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Why there is nothing more to hear of it.
    pub(super) fn gone(&mut self) -> Failure {
        if let Some(verdict) = self.watch.as_ref().and_then(|watch| watch.verdict("the peer process")) {
            return verdict;
        }
        self.watch = None;
        // It has closed its pipes, so it ends; if it does not, it is of no use.
        drop(self.child.kill());
        let how = self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        Failure::BackEnd(format!("the peer process has ended ({how})"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.watch = None;
        // It has nothing to lose.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
