//! `lockwork-bench lock-recovery`: the decider is killed while locks are held, and another goes on (figure 17, middle,
//! of the FissLock paper).
//!
//! etcd and both lockds are processes of their own; eight client machines are sessions of this one, over UDP on
//! loopback. Of the held locks three quarters are held by a writer each, the others by a reader whose agent is on
//! another machine. What is measured is measured by clients; the two times in between the daemon tells itself.
//!
//! *Simulated*: a machine that dies is a session that falls silent.

use std::time::{Duration, Instant};

use clap::Args;
use lockwork_locks::client::{Guard, Locks, Options};
use lockwork_workload::statistics::median;
use serde_json::json;

use super::super::chart::{grouped, lines};
use super::super::options::{Results, whole};
use super::super::progress::Live;
use super::super::{Environment, Failure, Outcome, Output, print};
use super::server::Server;
use super::{etcd, lockwork, outside};

/// Client machines.
const MACHINES: usize = 8;
/// One lock in so many is held.
const ONE_IN: u64 = 10;

/// Options of `lock-recovery`.
#[derive(Clone, Debug, Args)]
pub(in super::super) struct Arguments {
    /// The most locks
    #[arg(long, default_value_t = 1_000_000, value_parser = whole::<u64>, allow_negative_numbers = true)]
    records: u64,
    /// Rounds of measuring; figures are their medians
    #[arg(long, default_value_t = 3)]
    passes: usize,
    #[command(flatten)]
    results: Results,
    /// One of the eight machines dies together with the decider; its locks are free a lease later
    #[arg(long)]
    machine_dies: bool,
}

/// What one recovery took, in milliseconds from the kill.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    /// A new process says that it is ready.
    ready: f64,
    /// A lock that nobody held is granted.
    free: f64,
    /// All that is held is enrolled: a writer waits for readers elsewhere, and for nothing else.
    settled: f64,
    /// As the daemon says: words are back so long after it has begun, and agents decide.
    words: f64,
    agents: f64,
}

fn lockd(etcd: &Server, port: u16, locks: u64) -> Result<Server, Failure> {
    let program = lockwork::program()?;
    let line = format!(
        "lockd --udp 127.0.0.1:{port} --fresh --names 0 --lease 2s --locks {locks} --etcd {} --etcd-prefix recovery-{locks}/",
        etcd.address
    );
    let mut command = vec![program.display().to_string()];
    command.extend(line.split(' ').map(String::from));
    Server::start(&command, port, |_, log| log.split_once("ready on ")?.1.split_once(' ')?.0.parse().ok())
}

/// What the daemon has said that something took.
fn said(server: &Server, what: &str) -> Option<f64> {
    let log = server.log();
    log.split_once(what)?.1.trim_start().split_once(' ')?.0.parse().ok()
}

/// Looks again and again, for half a minute at most.
fn until<T>(what: &str, look: impl Fn() -> Option<T>) -> Result<T, Failure> {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if began.elapsed() > Duration::from_secs(30) {
            return Err(Failure::Check(format!("{what} after 30 s")));
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn hold(machines: &[Locks], locks: u64) -> Result<Vec<Guard>, Failure> {
    let failed = |error: lockwork_locks::client::LockError| Failure::Check(error.to_string());
    let take = |at: usize| {
        let mut guards = Vec::new();
        for lock in (0..locks).step_by(ONE_IN as usize).filter(|lock| (lock / ONE_IN) as usize % MACHINES == at) {
            match lock / ONE_IN / MACHINES as u64 % 4 {
                // The agent is the first reader's, who gives back; the second one still reads.
                0 => {
                    let first = machines[(at + 1) % MACHINES].shared(lock).acquire().map_err(failed)?;
                    guards.push(machines[at].shared(lock).acquire().map_err(failed)?);
                    drop(first);
                }
                _ => guards.push(machines[at].exclusive(lock).acquire().map_err(failed)?),
            }
        }
        Ok(guards)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..MACHINES).map(|at| scope.spawn(move || take(at))).collect();
        let all = threads.into_iter().map(|thread| thread.join().expect("it does not panic"));
        all.collect::<Result<Vec<_>, Failure>>().map(|all| all.into_iter().flatten().collect())
    })
}

fn recover(etcd: &Server, locks: u64, machine_dies: bool) -> Result<Times, Failure> {
    let first = lockd(etcd, super::server::free_port()?, locks)?;
    let port = first.address.port();
    let options = || Options { connect_timeout: Duration::from_secs(20), ..Options::default() };
    let connect = || Locks::connect_with(&first.address.to_string(), options());
    let mut machines = (0..MACHINES)
        .map(|_| connect().map_err(|error| Failure::Connect(error.to_string())))
        .collect::<Result<Vec<_>, Failure>>()?;
    let mut guards = hold(&machines, locks)?;
    let free = locks - 1;
    assert!(!free.is_multiple_of(ONE_IN), "nobody holds the last lock");
    let killed = Instant::now();
    first.kill();
    if machine_dies {
        let last = machines.pop().expect("there are eight");
        last.abandon();
    }
    let second = lockd(etcd, port, locks)?;
    let ms = |since: Instant| since.elapsed().as_secs_f64() * 1e3;
    let ready = ms(killed);
    let guard = machines[0].exclusive(free).timeout(Duration::from_secs(30)).acquire();
    drop(guard.map_err(|error| Failure::Check(format!("a free lock: {error}")))?);
    let free = ms(killed);
    let agents = until("agents do not decide", || said(&second, "agents decide after"))?;
    let settled = ms(killed);
    let words = said(&second, "locks are back after").unwrap_or_default();
    if !machine_dies && let Some(lost) = guards.iter().position(Guard::is_lost) {
        return Err(Failure::Check(format!(
            "guard {lost} of {} is lost: its lease of 2 s ended before lockd was there again and had answered; is this \
             machine busy with other work?",
            guards.len()
        )));
    }
    // What was held excludes still.
    for lock in (0..locks).step_by((locks / 50 * ONE_IN / ONE_IN).max(ONE_IN) as usize) {
        let of_dead = (lock / ONE_IN) as usize % MACHINES == MACHINES - 1;
        let held = lock.is_multiple_of(ONE_IN) && !(machine_dies && of_dead);
        if held && machines[0].exclusive(lock).try_acquire().is_ok() {
            return Err(Failure::Check(format!("lock {lock} is held, and was granted once more")));
        }
    }
    guards.clear();
    Ok(Times { ready, free, settled, words, agents })
}

/// Measures, prints, and says whether everything was as promised.
pub(in super::super) fn command(arguments: &Arguments) -> Outcome {
    let most = arguments.records;
    if !(100..=100_000_000).contains(&most) {
        return Err(Failure::usage(format!("--records is {most}; 100 to 100000000 locks are possible")));
    }
    let dies = arguments.machine_dies;
    arguments.results.prepare()?;
    let etcd = etcd::start()?;
    let sizes: Vec<u64> = [100, 10, 1].iter().map(|part| most / part).filter(|locks| *locks >= 100).collect();
    let live = Live::new(sizes.iter().map(|_| "lock-recovery"));
    let mut rows = Vec::new();
    for (row, &locks) in sizes.iter().enumerate() {
        let mut rounds = Vec::new();
        for pass in 1..=arguments.passes {
            live.show(row, &format!("{locks} locks, round {pass} of {}", arguments.passes));
            rounds.push(recover(&etcd, locks, dies)?);
        }
        let of = |time: fn(&Times) -> f64| median(rounds.iter().map(time));
        let ready = of(|times| times.ready);
        rows.push((locks, [ready, of(|t| t.words), of(|t| t.agents), of(|t| t.free), of(|t| t.settled)]));
    }
    drop(live);
    let e = Environment::read();
    let who = if dies { "the decider and one of eight machines" } else { "the decider" };
    let mut text = format!(
        "{}, {} cores, kernel {}, commit {}\n{who} killed; one lock in {ONE_IN} is held; rounds: {}; leases of 2 s; medians \
         in ms\n\n\
         {:>12} {:>10} {:>12} {:>12} {:>12} {:>14} {:>14}\n",
        e.cpu,
        e.cores,
        e.kernel,
        e.commit,
        arguments.passes,
        "locks",
        "held",
        "process",
        "words",
        "agents",
        "free lock",
        "all"
    );
    let mut csv = String::from("locks,held,process_ms,words_ms,agents_ms,free_lock_ms,all_ms\n");
    for (locks, [ready, words, agents, free, all]) in &rows {
        let held = locks.div_ceil(ONE_IN);
        text += &format!(
            "{:>12} {:>10} {ready:>12.1} {words:>12.1} {agents:>12.1} {free:>14.1} {all:>14.1}\n",
            grouped(*locks as f64),
            grouped(held as f64)
        );
        csv += &format!("{locks},{held},{ready:.2},{words:.2},{agents:.2},{free:.2},{all:.2}\n");
    }
    text += "\nprocess: from the kill until a new lockd is ready; words, agents: after that, as it says; free lock: from the\n\
             kill until a client has a lock that nobody held; all: until every agent decides. Verified: no guard was\n\
             lost, what is held is granted to nobody else\n";
    let row = |(locks, [ready, words, agents, free, all]): &(u64, [f64; 5])| {
        json!({
            "locks": locks, "held": locks.div_ceil(ONE_IN), "process_ms": ready, "words_ms": words, "agents_ms": agents,
            "free_lock_ms": free, "all_ms": all,
        })
    };
    let runs: Vec<_> = rows.iter().map(row).collect();
    let json = json!({ "schema": 1, "environment": e, "machine_dies": dies, "rounds": arguments.passes, "runs": runs });
    if let Some(folder) = arguments.results.out.as_deref() {
        let labels: Vec<String> = rows.iter().map(|(locks, _)| grouped(*locks as f64)).collect();
        let series =
            |name: &str, at: usize| (name.to_string(), rows.iter().map(|(_, row)| row[at]).collect::<Vec<f64>>());
        let chart = lines(
            &format!("recovery, {who} killed"),
            "ms",
            &labels,
            &[series("process", 0), series("words", 1), series("agents", 2), series("all", 4)],
        );
        for (name, content) in [("recovery.svg", &chart), ("recovery.csv", &csv), ("recovery.txt", &text)] {
            let at = folder.join(name);
            std::fs::write(&at, content).map_err(|error| outside(&at.display().to_string(), error))?;
        }
    }
    print(&match arguments.results.output {
        Output::Json => format!("{json:#}\n"),
        Output::Csv => csv,
        Output::Text => text,
    })
}
