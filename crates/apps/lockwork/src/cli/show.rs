//! `lockwork locks top` and `lockwork locks show NAME`: what happens in a lock service.

use std::collections::HashMap;
use std::fmt::Write;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use lockwork_lock_protocol::control::Summary;
use lockwork_lock_protocol::packet::Key;
use lockwork_lock_protocol::word::State;
use lockwork_locking::LockMode;
use lockwork_locks::query::{self, LockStatus, QueryError, ServiceStatus};
use serde_json::{Value, json};

use super::service::{Lock, Service, lock};
use super::{Failure, Outcome, duration, print};

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// A table for people
    Text,
    /// One JSON object a line
    Json,
}

#[derive(Debug, Args)]
pub(super) struct Show {
    /// The lock: a name, or a number from 0
    #[arg(value_name = "NAME", value_parser = lock, allow_negative_numbers = true)]
    id: Lock,
    #[command(flatten)]
    service: Service,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Form::Text)]
    output: Form,
}

#[derive(Debug, Args)]
#[command(after_help = "Only locks that somebody holds or waits for are shown, those with most waiters first.
decisions/s: packets about the lock that the decider decided on, '-' if the lock was not shown the time before. What an
agent grants on its own machine takes no packet; if writers do so, the token grows all the same.")]
pub(super) struct Top {
    #[command(flatten)]
    service: Service,
    /// How long to wait between two looks: 500ms, 5s, 1m
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// How many times to print [default: on a terminal until interrupted, elsewhere once]
    #[arg(long, value_name = "TIMES", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// How many locks to show
    #[arg(long, default_value_t = 20)]
    lines: usize,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Form::Text)]
    output: Form,
}

/// Looking more often would be a load on the service.
const SHORTEST: Duration = Duration::from_millis(10);

fn interval(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|time| if time < SHORTEST { Err("give at least 10ms".to_string()) } else { Ok(time) })
}

/// How long the daemon may take to answer.
const TIMEOUT: Duration = Duration::from_secs(2);

fn failure(error: QueryError) -> Failure {
    match error {
        QueryError::NoSuchLock(..) | QueryError::NoSuchName(..) | QueryError::NoNames(_) => Failure::usage(error),
        _ => Failure::connect(error),
    }
}

fn name(mode: LockMode) -> &'static str {
    if mode == LockMode::Exclusive { "exclusive" } else { "shared" }
}

pub(super) fn show(arguments: &Show) -> Outcome {
    let (address, key) = (arguments.service.address()?, arguments.service.key()?);
    let (number, name) = match &arguments.id {
        Lock::Number(number) => (*number, query::name_of(address, key, *number, TIMEOUT).map_err(failure)?),
        Lock::Name(name) => (query::number_of(address, key, name, TIMEOUT).map_err(failure)?, Some(name.clone())),
    };
    let status = query::lock(address, key, number, TIMEOUT).map_err(failure)?;
    print(&match arguments.output {
        Form::Text => show_text(number, name.as_deref(), &status),
        Form::Json => format!("{}\n", show_json(number, name.as_deref(), &status)),
    })
}

/// A name in quotes. Whoever gave it may have put in what a terminal takes for commands.
fn quoted(name: &str) -> String {
    format!("'{}'", name.escape_debug())
}

fn show_text(lock: u64, named: Option<&str>, status: &LockStatus) -> String {
    let LockStatus { is_back, state, machine, incarnation, token, participants } = status;
    let agent = match (state, machine) {
        (State::Free, _) => "no agent".to_string(),
        (_, 0) => "agent in the daemon".to_string(),
        _ => format!("agent on machine {machine}"),
    };
    let named = named.map_or(String::new(), |name| format!(" {}", quoted(name)));
    if !is_back {
        return format!("lock {lock}{named}: not known yet, the service is recovering (see 'lockwork locks top')\n");
    }
    let mut text = format!("lock {lock}{named}: {state}, {agent}, incarnation {incarnation}, token {token}\n");
    if *state == State::Free {
        return text;
    }
    let Some(participants) = participants else {
        text.push_str("the agent has not answered\n");
        return text;
    };
    if participants.is_empty() {
        text.push_str("  nobody holds or waits: it stays with the machine that has used it, in case that it is asked for there again\n");
    }
    for one in participants {
        let does = if one.holds { "holds" } else { "waits" };
        let (machine, task) = (one.who.machine.0, one.who.request >> 32);
        _ = writeln!(text, "  {does}  {:<9}  machine {machine:<5}  task {task}", name(one.who.mode));
    }
    text
}

fn show_json(lock: u64, named: Option<&str>, status: &LockStatus) -> Value {
    let LockStatus { is_back, state, machine, incarnation, token, participants } = status;
    let state = if *is_back { state.to_string() } else { "recovering".to_string() };
    let one = |one: &lockwork_lock_protocol::control::Participant| json!({ "machine": one.who.machine.0, "task": one.who.request >> 32, "mode": name(one.who.mode) });
    let all = |holds: bool| {
        participants.as_ref().map(|all| all.iter().filter(|one| one.holds == holds).map(one).collect::<Vec<_>>())
    };
    json!({
        "lock": lock, "name": named, "state": state, "agent": machine, "incarnation": incarnation, "token": token,
        "holders": all(true), "waiters": all(false),
    })
}

/// What is known of a service at one time.
struct Sample {
    at: Instant,
    status: ServiceStatus,
    /// Of the locks that are shown: when, and how many decisions there had been.
    decisions: HashMap<u64, (Instant, u32)>,
    /// The names of those that have one.
    names: HashMap<u64, String>,
}

impl Sample {
    fn take(address: SocketAddr, key: Option<Key>, lines: usize) -> Result<Self, QueryError> {
        let (status, at) = (query::all(address, key, TIMEOUT)?, Instant::now());
        let locks: Vec<u64> = status.busiest.iter().take(lines).map(|(_, one)| one.lock).collect();
        let incarnations = query::incarnations(address, key, &locks, TIMEOUT)?;
        let now = Instant::now();
        let mut names = HashMap::new();
        for &lock in &locks {
            names.extend(query::name_of(address, key, lock, TIMEOUT)?.map(|name| (lock, name)));
        }
        let decisions = locks.into_iter().zip(incarnations).filter_map(|(lock, count)| Some((lock, (now, count?))));
        Ok(Self { at, status, decisions: decisions.collect(), names })
    }

    /// Decisions a second on a lock since `before`, if it was shown then.
    fn rate_of(&self, before: &Self, lock: u64) -> Option<f64> {
        let (&(was_at, was), &(at, is)) = (before.decisions.get(&lock)?, self.decisions.get(&lock)?);
        Some(rate(0, is.wrapping_sub(was).into(), seconds(was_at, at)))
    }
}

pub(super) fn top(arguments: &Top) -> Outcome {
    let (address, key) = (arguments.service.address()?, arguments.service.key()?);
    let terminal = std::io::stdout().is_terminal();
    let count = arguments.count.unwrap_or(if terminal { u64::MAX } else { 1 });
    let take = || Sample::take(address, key, arguments.lines).map_err(failure);
    let mut before = take()?;
    for _ in 0..count {
        std::thread::sleep(arguments.interval);
        let now = take()?;
        print(&match arguments.output {
            Form::Text => {
                // Home, and everything below cleared.
                let clear = if terminal { "\x1b[H\x1b[J" } else { "" };
                format!("{clear}{}", top_text(&address.to_string(), &before, &now, arguments.lines))
            }
            Form::Json => format!("{}\n", top_json(&before, &now, arguments.lines)),
        })?;
        before = now;
    }
    Ok(())
}

fn seconds(from: Instant, to: Instant) -> f64 {
    (to - from).as_secs_f64().max(1e-9)
}

/// How fast a counter has grown.
fn rate(before: u64, now: u64, seconds: f64) -> f64 {
    (now.saturating_sub(before) as f64 / seconds).round()
}

/// Locks granted a second, where they are counted.
fn grants(before: &Sample, now: &Sample) -> Option<f64> {
    Some(rate(before.status.grants()?, now.status.grants()?, seconds(before.at, now.at)))
}

/// So many of something, of which there are `all` if they are many.
fn count(number: u64, one: &str, all: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { all })
}

fn state(summary: &Summary) -> String {
    match summary.recovering {
        0 => "serving".to_string(),
        missing => {
            let of = count(summary.machines, "machine", "machines");
            format!("recovering: {missing} of {of} still to report")
        }
    }
}

/// A line about etcd, if it is used.
fn etcd(summary: &Summary) -> String {
    match summary.records {
        None => String::new(),
        Some(true) => "etcd: reachable\n".to_string(),
        Some(false) => {
            let joining = (summary.joining, "machine that joins", "machines that join");
            let names = (summary.names_under_way, "name", "names");
            let some = [joining, names].into_iter().filter(|(number, ..)| *number > 0);
            let all: Vec<_> = some.map(|(number, one, all)| count(number, one, all)).collect();
            let waits = if all.is_empty() { "nothing".to_string() } else { all.join(", ") };
            let seconds = summary.away_ms as f64 / 1000.0;
            format!("etcd: away for {seconds:.1} s, waiting for it: {waits}\n")
        }
    }
}

fn top_text(address: &str, before: &Sample, now: &Sample, lines: usize) -> String {
    let (was, is) = (&before.status.summary, &now.status.summary);
    let per_second = |was: u64, is: u64| rate(was, is, seconds(before.at, now.at));
    let grants = grants(before, now).map_or(String::new(), |rate| format!("{rate} grants/s, "));
    let mut text = format!(
        "{address}: {}, {} locks, {} machines, {} gone and not yet swept, {} sessions expired\n\
         {} decisions/s, {grants}{} packets dropped/s\n{}\n",
        state(is),
        is.locks,
        is.machines,
        is.gone,
        is.expired,
        per_second(was.decisions, is.decisions),
        per_second(was.dropped, is.dropped),
        etcd(is),
    );
    if now.status.silent > 0 {
        let machines = if now.status.silent == 1 { "machine has" } else { "machines have" };
        _ = writeln!(text, "{} {machines} not answered", now.status.silent);
    }
    _ = writeln!(
        text,
        "{:>12}  {:>7}  {:>7}  {:>7}  {:>11}  {:>20}  name",
        "lock", "machine", "holders", "waiters", "decisions/s", "token"
    );
    for (machine, one) in now.status.busiest.iter().take(lines) {
        let (holders, waiters) = (one.holders, one.waiters);
        let rate = now.rate_of(before, one.lock).map_or_else(|| "-".to_string(), |rate| rate.to_string());
        let (lock, token) = (one.lock, one.token);
        let row = format!("{lock:>12}  {machine:>7}  {holders:>7}  {waiters:>7}  {rate:>11}  {token:>20}");
        match now.names.get(&lock) {
            Some(name) => _ = writeln!(text, "{row}  {}", quoted(name)),
            None => _ = writeln!(text, "{row}"),
        }
    }
    text
}

fn top_json(before: &Sample, now: &Sample, lines: usize) -> Value {
    let (was, is) = (&before.status.summary, &now.status.summary);
    let per_second = |was: u64, is: u64| rate(was, is, seconds(before.at, now.at));
    let busiest = now.status.busiest.iter().take(lines).map(|(machine, one)| {
        json!({
            "lock": one.lock, "name": now.names.get(&one.lock), "machine": machine, "holders": one.holders, "waiters": one.waiters,
            "decisions_per_s": now.rate_of(before, one.lock), "token": one.token,
        })
    });
    let etcd = is.records.map(|reachable| {
        let (joins, names) = (is.joining, is.names_under_way);
        json!({ "reachable": reachable, "away_ms": is.away_ms, "joins_waiting": joins, "names_waiting": names })
    });
    json!({
        "state": if is.recovering > 0 { "recovering" } else { "serving" }, "machines_recovering": is.recovering,
        "etcd": etcd,
        "locks": is.locks, "machines": is.machines, "machines_gone": is.gone, "sessions_expired": is.expired,
        "machines_silent": now.status.silent,
        "decisions_per_s": per_second(was.decisions, is.decisions),
        "grants_per_s": grants(before, now),
        "dropped_per_s": per_second(was.dropped, is.dropped),
        "busiest": busiest.collect::<Vec<_>>(),
    })
}
