//! `lockwork-bench shared-locks`: what a lock and its release cost, alone in a process, and among processes that want
//! the same.
//!
//! Every pair is timed by itself. What it costs to read the clock is measured first and taken off, so short times are
//! exact to a few nanoseconds only, and what is left of some is nothing: those are shown as below what the clock tells
//! apart. Counters that only the locks protect are added to without atomic operations, and compared with what the
//! processes say they have done.
//!
//! Table and counters have no names, so nothing is left of them however the benchmark ends. Its processes open them by
//! the descriptors of the one that made them.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum, value_parser};
use lockwork_console::duration;
use lockwork_lock_bench::histogram::Histogram;
use lockwork_memory::shared::anonymous_file;
use lockwork_sharedlocks::{Layout, LockMode, Options, Session, SharedLocks};
use lockwork_workload::random::Random;
use memmap2::{MmapOptions, MmapRaw};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::measure::check_memory;
use super::near_data::clock;
use super::{Failure, Outcome, print};

/// Pairs of the uncontended part, for each order of keys.
const PAIRS: u64 = 1_000_000;
/// Words between counters, so that they lie in lines of their own.
const APART: usize = 8;

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// Tables for people
    Text,
    /// One JSON object
    Json,
}

fn failure(error: lockwork_sharedlocks::Error) -> Failure {
    match error {
        lockwork_sharedlocks::Error::Table(_) => Failure::Check(error.to_string()),
        _ => Failure::usage(error),
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "The first part is one session alone: sequential keys, then random ones. The second is --processes times --threads sessions
on --keys keys, for --seconds.
Exit codes: 0 done; 1 the data is not what the locks should have made of it; 2 usage."
)]
pub(super) struct Arguments {
    #[command(flatten)]
    load: Load,
    /// Processes that contend
    #[arg(long, default_value_t = 2, value_parser = value_parser!(u32).range(1..=256))]
    processes: u32,
    /// Lines of the table, a power of two
    #[arg(long, default_value_t = 1 << 20)]
    lines: u32,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Form::Text)]
    output: Form,
}

/// What every process does.
#[derive(Clone, Debug, Args)]
struct Load {
    /// Threads of each process, a session each
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..=256))]
    threads: u32,
    /// Keys that they choose from, each as likely as the other
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u64).range(1..=1 << 24))]
    keys: u64,
    /// How many locks in a hundred are shared
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = value_parser!(u32).range(0..=100))]
    shared: u32,
    /// For how long they contend, from 1ms on
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = some_time)]
    seconds: Duration,
    /// Keep each thread on one core
    #[arg(long)]
    pin: bool,
}

/// A time in which something can be done.
fn some_time(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    let too_short = || format!("'{text}' is too short: at least 1ms is possible, such as 500ms or 2s");
    if time < Duration::from_millis(1) { Err(too_short()) } else { Ok(time) }
}

/// A process of it.
#[derive(Debug, Args)]
pub(super) struct Process {
    /// The table
    table: String,
    /// The file of the counters
    data: String,
    /// Its number
    number: u32,
    #[command(flatten)]
    load: Load,
}

/// What a process has done.
#[derive(Serialize, Deserialize)]
struct Done {
    locks: u64,
    exclusive: u64,
    /// What a thread found wrong under a lock.
    wrong: Option<String>,
    longest_ns: u64,
    /// Of each bucket its largest value and how many were in it: the time that a lock took.
    waits: Vec<(u64, u64)>,
}

/// What is known of the clock, in nanoseconds.
#[derive(Clone, Copy)]
struct Clock {
    /// What it costs to read it: the median.
    cost: u64,
    /// The least by which two times differ that it tells apart.
    step: u64,
}

impl Clock {
    fn measure() -> Self {
        let read = |_| {
            let begin = Instant::now();
            begin.elapsed().as_nanos() as u64
        };
        let mut costs: Vec<u64> = (0..100_000).map(read).collect();
        costs.sort_unstable();
        Self { cost: costs[costs.len() / 2], step: clock::step(&costs) }
    }

    /// What something took, as far as the clock can tell.
    fn since(self, begin: Instant) -> u64 {
        (begin.elapsed().as_nanos() as u64).saturating_sub(self.cost)
    }

    /// A time for people; one below the resolution of the clock is shown as such.
    fn show(self, ns: u64) -> String {
        clock::cell(ns, self.cost + self.step)
    }

    /// The same with its unit.
    fn show_alone(self, ns: u64) -> String {
        let shown = self.show(ns);
        if shown.ends_with("ns") { shown } else { format!("{shown} ns") }
    }
}

/// Lock and release, each pair timed.
fn alone(session: &mut Session, key_of: impl Fn(u64) -> u64, clock: Clock) -> Result<Histogram, Failure> {
    let mut pairs = Histogram::default();
    for number in 0..PAIRS {
        let key = key_of(number);
        let begin = Instant::now();
        session.lock(key, LockMode::Exclusive).map_err(failure)?;
        session.unlock(key).map_err(failure)?;
        pairs.record(clock.since(begin));
    }
    Ok(pairs)
}

/// Where other processes find an open file of this one, as long as it lives.
fn place_of(file: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

/// Counters in memory that processes share: two of each key, which are equal whenever nobody changes them.
struct Counters(MmapRaw);

impl Counters {
    fn create(keys: u64) -> std::io::Result<(Self, File)> {
        let file = anonymous_file(c"lockwork-counters")?;
        file.set_len(keys * (APART * 8) as u64)?;
        Ok((Self::of_file(&file)?, file))
    }

    fn of_file(file: &File) -> std::io::Result<Self> {
        MmapOptions::new().map_raw(file).map(Self)
    }

    fn of(&self, key: u64) -> [&AtomicU64; 2] {
        let at = key as usize * APART;
        assert!((at + 2) * 8 <= self.0.len());
        // SAFETY: inside the mapping, which lives as long as `self` and begins at a page; all access is atomic.
        [0, 1].map(|word| unsafe { AtomicU64::from_ptr(self.0.as_mut_ptr().cast::<u64>().add(at + word)) })
    }
}

pub(super) fn command(arguments: &Arguments) -> Outcome {
    let &Arguments { ref load, processes, lines, output } = arguments;
    let sessions = u16::try_from(u64::from(processes) * u64::from(load.threads) + 1).ok().filter(|all| *all <= 4095);
    let sessions = sessions.ok_or_else(|| {
        Failure::usage(format!(
            "{processes} processes of {} threads are more than the 4094 sessions that a table has room for beside one",
            load.threads
        ))
    })?;
    let layout = Layout { held: 16.min(lines.max(1)), ..Layout::new(lines, sessions) };
    layout.check().map_err(Failure::usage)?;
    check_memory(&format!("{} lines of the lock table", layout.lines), layout.words() as u128 * 8, "--lines")?;
    let (locks, table) = SharedLocks::anonymous(&Options { layout, reserve: true }).map_err(failure)?;
    let (counters, data) = Counters::create(load.keys).map_err(|error| Failure::usage(format!("counters: {error}")))?;
    let clock = Clock::measure();
    let mut session = locks.session().map_err(failure)?;
    // Once before, so that no page of the table is touched for the first time.
    alone(&mut session, |number| number, clock)?;
    let sequential = alone(&mut session, |number| number, clock)?;
    let random = alone(&mut session, |number| number.wrapping_mul(0x9E37_79B9_7F4A_7C15), clock)?;
    let done = contend([&table, &data].map(place_of), load, processes)?;

    let told: u64 = done.iter().map(|one| one.exclusive).sum();
    let wrong = wrong(&counters, load.keys, &done);
    let mut waits = Histogram::default();
    for (ns, count) in done.iter().flat_map(|one| &one.waits) {
        (0..*count).for_each(|_| waits.record(*ns));
    }
    let longest = done.iter().map(|one| one.longest_ns).max().unwrap_or(0);
    let locks_of: Vec<u64> = done.iter().map(|one| one.locks).collect();
    let all: u64 = locks_of.iter().sum();
    let rate = all as f64 / load.seconds.as_secs_f64();
    let points = |histogram: &Histogram| [0.5, 0.99, 0.999].map(|share| histogram.quantile(share));
    let parts = [("sequential", &sequential), ("random", &random), ("contended", &waits)];
    let report = match output {
        Form::Text => {
            let mut text = format!(
                "clock: {} ns, taken off\n\n{:<38} {:>12} {:>12} {:>12}\n",
                clock.cost, "ns", "p50", "p99", "p99.9"
            );
            let what = ["lock and release, sequential keys", "lock and release, random keys", "lock, contended"];
            for (what, (_, times)) in what.iter().zip(&parts) {
                let show = |ns| if times.count() == 0 { "-".to_string() } else { clock.show(ns) };
                let [p50, p99, p999] = points(times).map(show);
                text += &format!("{what:<38} {p50:>12} {p99:>12} {p999:>12}\n");
            }
            let (least, most) = (locks_of.iter().min().unwrap_or(&0), locks_of.iter().max().unwrap_or(&0));
            text + &format!(
                "\ncontended: {processes} processes of {} threads, {} keys, {} % shared\n\
                 {rate:.0} locks/s; the longest wait took {}; a process had {least} to {most} locks\n\
                 {}\n",
                load.threads,
                load.keys,
                load.shared,
                clock.show_alone(longest),
                wrong.as_ref().map_or_else(
                    || format!("verified: {told} changes under exclusive locks, none lost"),
                    |wrong| format!("WRONG: {wrong}")
                )
            )
        }
        Form::Json => {
            let latency = |[p50, p99, p999]: [u64; 3]| json!({ "p50": p50, "p99": p99, "p999": p999 });
            let latencies: serde_json::Map<_, _> =
                parts.map(|(name, times)| (name.into(), latency(points(times)))).into_iter().collect();
            let report = json!({
                "schema": 1, "clock_ns": clock.cost, "resolution_ns": clock.step,
                "latency_ns": latencies, "longest_wait_ns": longest,
                "processes": processes, "threads": load.threads, "keys": load.keys, "shared_percent": load.shared,
                "seconds": load.seconds.as_secs_f64(), "locks_per_s": rate, "locks_of_processes": locks_of,
                "changes": told, "verified": wrong.is_none(),
            });
            format!("{report:#}\n")
        }
    };
    print(&report)?;
    wrong.map_or(Ok(()), |wrong| Err(Failure::Check(wrong)))
}

/// What is wrong with the counters of so many keys after processes have done this, if anything is.
fn wrong(counters: &Counters, keys: u64, done: &[Done]) -> Option<String> {
    if let Some(wrong) = done.iter().find_map(|one| one.wrong.clone()) {
        return Some(wrong);
    }
    let mut counted = 0;
    for key in 0..keys {
        let [first, second] = counters.of(key).map(|counter| counter.load(Relaxed));
        if first != second {
            return Some(format!("key {key}: counters {first} and {second} differ after all locks were released"));
        }
        counted += first;
    }
    let told: u64 = done.iter().map(|one| one.exclusive).sum();
    (counted != told).then(|| format!("{told} changes were made under locks, and {counted} of them are there"))
}

/// A process that has been started.
struct Started {
    child: Child,
    /// Its end is ours.
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Drop for Started {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Runs the processes, all at the same time.
fn contend([table, data]: [String; 2], load: &Load, processes: u32) -> Result<Vec<Done>, Failure> {
    let fail = |error: std::io::Error| Failure::usage(format!("a process of the benchmark: {error}"));
    let own = std::env::current_exe().map_err(fail)?;
    let mut all = Vec::new();
    for number in 0..processes {
        let mut command = Command::new(&own);
        command.args(["shared-locks-process", &table, &data, &number.to_string()]);
        for (option, value) in [
            ("--threads", load.threads.to_string()),
            ("--keys", load.keys.to_string()),
            ("--shared", load.shared.to_string()),
            ("--seconds", load.seconds.as_secs_f64().to_string()),
        ] {
            command.args([option, &value]);
        }
        command.args(load.pin.then_some("--pin"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(fail)?;
        let input = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        all.push(Started { child, input, output });
    }
    for one in &mut all {
        let mut line = String::new();
        one.output.read_line(&mut line).map_err(fail)?;
        if line.trim_end() != "ready" {
            return Err(Failure::Check("a process of the benchmark could not begin; it has said why".into()));
        }
    }
    for one in &mut all {
        one.input.write_all(b"\n").map_err(fail)?;
    }
    let of = |mut one: Started| {
        let mut text = String::new();
        one.output.read_to_string(&mut text).map_err(fail)?;
        serde_json::from_str(&text).map_err(|_| {
            let how = one.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
            Failure::BackEnd(format!("process {} of the benchmark ended before it had measured: {how}", one.child.id()))
        })
    };
    all.into_iter().map(of).collect()
}

/// One process: says that it is ready, begins when it is sent a line, and says what it has done. It ends with whoever
/// started it.
pub(super) fn process(arguments: &Process) -> Outcome {
    let Process { table, data, number, load } = arguments;
    let locks = SharedLocks::attach(table).map_err(failure)?;
    let open = || Counters::of_file(&File::options().read(true).write(true).open(data)?);
    let counters = open().map_err(|error| Failure::usage(format!("'{data}': {error}")))?;
    let sessions = (0..load.threads).map(|_| locks.session().map_err(failure)).collect::<Result<Vec<_>, _>>()?;
    let clock = Clock::measure();
    print("ready\n")?;
    if std::io::stdin().read_line(&mut String::new()).map_err(Failure::usage)? == 0 {
        return Err(Failure::Check("the benchmark has ended before it began".into()));
    }
    std::thread::spawn(|| {
        drop(std::io::stdin().read_to_end(&mut Vec::new()));
        std::process::exit(1);
    });
    let threads: Vec<_> = std::thread::scope(|scope| {
        let one = |(thread, session)| {
            let (worker, counters) = (number * load.threads + thread, &counters);
            scope.spawn(move || work(session, counters, load, worker, clock))
        };
        let threads: Vec<_> = (0..load.threads).zip(sessions).map(one).collect();
        threads.into_iter().map(|thread| thread.join().expect("a worker does not panic")).collect()
    });
    let mut waits = Histogram::default();
    let mut done = Done { locks: 0, exclusive: 0, wrong: None, longest_ns: 0, waits: Vec::new() };
    for thread in threads {
        let worked: Worked = thread?;
        done.exclusive += worked.exclusive;
        done.wrong = done.wrong.or(worked.wrong);
        waits.add(&worked.waits);
    }
    done.locks = waits.count();
    done.longest_ns = waits.quantile(1.0);
    done.waits = waits.buckets().collect();
    let mut out = std::io::stdout();
    serde_json::to_writer(&mut out, &done).map_err(Failure::usage)?;
    out.flush().map_err(Failure::Output)
}

fn pin(worker: u32) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // SAFETY: zero is a good value of the set, which lives through the calls. Where it is not allowed nothing happens.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(worker as usize % cores, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

/// What one thread has done.
struct Worked {
    /// How long each lock took.
    waits: Histogram,
    exclusive: u64,
    /// What it found wrong under a lock; then it stopped.
    wrong: Option<String>,
}

/// One thread: takes and releases locks until the time is over, and compares the counters that each lock protects.
fn work(mut session: Session, counters: &Counters, load: &Load, worker: u32, clock: Clock) -> Result<Worked, Failure> {
    if load.pin {
        pin(worker);
    }
    let mut random = Random::new(u64::from(worker) + 1);
    let mut worked = Worked { waits: Histogram::default(), exclusive: 0, wrong: None };
    let begin = Instant::now();
    loop {
        let key = random.below(load.keys);
        let shared = random.below(100) < u64::from(load.shared);
        let before = Instant::now();
        if before - begin >= load.seconds {
            return Ok(worked);
        }
        session.lock(key, if shared { LockMode::Shared } else { LockMode::Exclusive }).map_err(failure)?;
        worked.waits.record(clock.since(before));
        let [first, second] = counters.of(key);
        let count = first.load(Relaxed);
        if !shared {
            first.store(count + 1, Relaxed);
        }
        let other = second.load(Relaxed);
        if count != other {
            worked.wrong = Some(format!("key {key}: counters {count} and {other} differ under the lock"));
            session.unlock(key).map_err(failure)?;
            return Ok(worked);
        }
        if !shared {
            second.store(count + 1, Relaxed);
            worked.exclusive += 1;
        }
        session.unlock(key).map_err(failure)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_changes_and_counters_that_differ_are_found() {
        let (counters, _file) = Counters::create(2).unwrap();
        let done = |exclusive, wrong: Option<&str>| Done {
            locks: exclusive,
            exclusive,
            wrong: wrong.map(String::from),
            longest_ns: 0,
            waits: Vec::new(),
        };
        counters.of(1).iter().for_each(|counter| counter.store(5, Relaxed));
        assert_eq!(wrong(&counters, 2, &[done(2, None), done(3, None)]), None);
        let lost = wrong(&counters, 2, &[done(2, None), done(4, None)]);
        assert_eq!(lost.unwrap(), "6 changes were made under locks, and 5 of them are there");
        assert_eq!(wrong(&counters, 2, &[done(2, None), done(3, Some("it has seen it"))]).unwrap(), "it has seen it");
        counters.of(0)[1].store(1, Relaxed);
        let differ = wrong(&counters, 2, &[done(5, None)]).unwrap();
        assert_eq!(differ, "key 0: counters 0 and 1 differ after all locks were released");
    }

    #[test]
    fn what_is_below_the_clock_is_shown_as_that() {
        let clock = Clock { cost: 30, step: 10 };
        assert_eq!([0, 39, 40].map(|ns| clock.show(ns)), ["below 40 ns", "below 40 ns", "40"]);
        assert_eq!([39, 40].map(|ns| clock.show_alone(ns)), ["below 40 ns", "40 ns"]);
        let clock = Clock::measure();
        assert!(clock.step > 0 && clock.show(0) != "0");
    }
}
