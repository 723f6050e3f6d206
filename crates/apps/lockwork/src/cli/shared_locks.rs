//! `lockwork shared-locks`: lock tables in memory that the processes of this host share.
//!
//! `status` only reads, so it may see a line between two steps of others; it takes no lock and opens no session. It
//! looks at every line, as a table keeps no list of those that are held.

use std::collections::BTreeMap;
use std::fmt::Write;

use clap::{Args, Subcommand, ValueEnum, value_parser};
use lockwork_sharedlocks::{
    Damage, Error, Layout, LockMode, Options, Placement, SessionNumber, SessionStatus, SharedLocks, segment,
};
use serde_json::{Value, json};

use super::{Failure, Outcome, print};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Make a table
    Create(Create),
    /// Tables; of one, its sessions and who holds what
    Status(Status),
    /// Take a table's name away; who is attached stays so
    Remove(Remove),
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Form {
    /// Tables for people
    Text,
    /// One JSON object
    Json,
}

/// How keys find their lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Keys {
    /// Any keys, hashed; neighbours stay neighbours
    Spread,
    /// Small numbers: the key modulo the number of lines
    Direct,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A name without a slash is a table of this host (/dev/shm/lockwork-NAME): letters a to z and A to Z, digits, '.', '_'
and '-', up to 200, not '.' first. One with a slash is the path of a file, which may be on a tmpfs of another memory
node, or an fsdax mount.
Exit codes: 0 done; 2 there is one already, or it cannot be made."
)]
pub(super) struct Create {
    /// Its name
    name: String,
    /// Lines, a power of two, 64 bytes each; two keys of one line exclude each other
    #[arg(long, default_value_t = 1 << 16)]
    lines: u32,
    /// The most sessions at a time
    #[arg(long, default_value_t = 256, value_parser = value_parser!(u16).range(1..=i64::from(SessionNumber::MAX)))]
    sessions: u16,
    /// The most lines that one session can hold [default: 4096, or all lines if there are fewer]
    #[arg(long)]
    held: Option<u32>,
    /// How keys find their lines
    #[arg(long, value_enum, default_value_t = Keys::Spread)]
    placement: Keys,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Form::Text)]
    output: Form,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Sessions that are closed are not shown. A dead one is one whose process has died; who waits for its locks cleans up by
itself, --clean does it now. A dead one that is damaged cannot be cleaned up after, and its number not be used.
Without a name, files that are called as tables are and are none are told of on standard error.
Exit codes: 0 all is well; 1 a line or a session is damaged; 2 there is no such table, or it is none of this version."
)]
pub(super) struct Status {
    /// Its name [default: all tables of this host, a line for each]
    name: Option<String>,
    /// Clean up after sessions whose processes have died
    #[arg(long, requires = "name")]
    clean: bool,
    /// How many lines to show, those with most waiters first
    #[arg(long, default_value_t = 20)]
    lines: usize,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Form::Text)]
    output: Form,
}

#[derive(Debug, Args)]
pub(super) struct Remove {
    /// Its name
    name: String,
}

fn failure(error: Error) -> Failure {
    match error {
        Error::Table(_) => Failure::Check(error.to_string()),
        _ => Failure::usage(error),
    }
}

pub(super) fn run(command: &Command) -> Outcome {
    match command {
        Command::Create(arguments) => create(arguments),
        Command::Status(arguments) => status(arguments),
        Command::Remove(arguments) => segment::remove(&arguments.name).map_err(failure),
    }
}

fn create(arguments: &Create) -> Outcome {
    let &Create { lines, sessions, held, placement, output, .. } = arguments;
    let placement = if placement == Keys::Direct { Placement::Direct } else { Placement::Spread };
    let layout = Layout { lines, sessions, held: held.unwrap_or(4096.min(lines.max(1))), placement };
    let locks = SharedLocks::create(&arguments.name, &Options { layout, reserve: true }).map_err(failure)?;
    print(&match output {
        Form::Text => format!("{}\n", title(&locks)),
        Form::Json => format!("{}\n", dimensions(&locks)),
    })
}

fn placement(layout: &Layout) -> &'static str {
    if layout.placement == Placement::Direct { "direct" } else { "spread" }
}

fn title(locks: &SharedLocks) -> String {
    let layout = locks.table().layout();
    format!(
        "lock table '{}': {} lines ({}), {} sessions of up to {} lines, {:.1} MiB",
        locks.place().display(),
        layout.lines,
        placement(layout),
        layout.sessions,
        layout.held,
        layout.words() as f64 * 8.0 / (1 << 20) as f64
    )
}

fn dimensions(locks: &SharedLocks) -> Value {
    let layout = locks.table().layout();
    json!({
        "table": locks.place(), "lines": layout.lines, "placement": placement(layout), "sessions": layout.sessions,
        "held": layout.held, "bytes": layout.words() * 8,
    })
}

/// A session that is open, or whose process died in it.
struct Open {
    number: SessionNumber,
    process: u32,
    alive: bool,
    lines: u32,
    /// What cannot be, of that what the session touches. If it is dead, nobody can use its number.
    damage: Option<Damage>,
}

/// A line that somebody is in.
struct Taken {
    line: u32,
    holders: Vec<(SessionNumber, LockMode)>,
    waiters: Vec<SessionNumber>,
}

/// What is seen of a table.
struct Seen {
    sessions: Vec<Open>,
    taken: Vec<Taken>,
    damaged: Vec<String>,
}

fn look(locks: &SharedLocks) -> Result<Seen, Failure> {
    let mut sessions = Vec::new();
    for status in locks.sessions() {
        let alive = locks.is_alive(status.number).map_err(failure)?;
        if alive || status.touched > 0 {
            let damage = locks.table().check(status.number).err();
            let SessionStatus { number, process, touched: lines, .. } = status;
            sessions.push(Open { number, process, alive, lines, damage });
        }
    }
    let (mut taken, mut damaged) = (Vec::new(), Vec::new());
    for (one, damage) in sessions.iter().filter_map(|one: &Open| Some((one, one.damage.as_ref()?))) {
        let unusable = if one.alive { "" } else { ", and nobody can use it, since its process has died" };
        damaged.push(format!("session {} is damaged{unusable}: {damage}", one.number.get()));
    }
    for line in 0..locks.table().layout().lines {
        match look_at(locks, line) {
            Ok(one) => taken.extend(one),
            Err(error) => damaged.push(error.to_string()),
        }
    }
    taken.sort_by_key(|one: &Taken| (std::cmp::Reverse(one.waiters.len()), one.line));
    Ok(Seen { sessions, taken, damaged })
}

fn look_at(locks: &SharedLocks, line: u32) -> Result<Option<Taken>, Error> {
    let mut there = Vec::new();
    locks.table().everybody(line, |number| there.push(number))?;
    let mut taken = Taken { line, holders: Vec::new(), waiters: Vec::new() };
    for number in there {
        match locks.table().standing(number, line)? {
            Some(Some(mode)) => taken.holders.push((number, mode)),
            Some(None) => taken.waiters.push(number),
            // It has gone since.
            None => {}
        }
    }
    Ok((!taken.holders.is_empty() || !taken.waiters.is_empty()).then_some(taken))
}

fn mode(mode: LockMode) -> &'static str {
    match mode {
        LockMode::Shared => "shared",
        LockMode::IntentExclusive => "intent",
        LockMode::Exclusive => "exclusive",
    }
}

fn status(arguments: &Status) -> Outcome {
    let Some(name) = &arguments.name else { return list(arguments.output) };
    let locks = SharedLocks::attach(name).map_err(failure)?;
    let cleaned = if arguments.clean { Some(clean_up(&locks)?) } else { None };
    let seen = look(&locks)?;
    print(&match arguments.output {
        Form::Text => status_text(&locks, &seen, arguments.lines, cleaned),
        Form::Json => format!("{:#}\n", status_json(&locks, &seen, arguments.lines, cleaned)),
    })?;
    match &seen.damaged[..] {
        [] => Ok(()),
        [first] => Err(Failure::Check(first.clone())),
        [first, ..] => Err(Failure::Check(format!("{} damages; the first: {first}", seen.damaged.len()))),
    }
}

/// Cleans up after all who have died, and answers how many there were. What damage keeps from it is shown afterwards.
fn clean_up(locks: &SharedLocks) -> Result<usize, Failure> {
    let mut cleaned = 0;
    for status in locks.sessions().filter(|status| status.touched > 0) {
        match locks.clean_up_after(status.number) {
            Ok(was_dead) => cleaned += usize::from(was_dead),
            Err(Error::Table(_)) => {}
            Err(error) => return Err(failure(error)),
        }
    }
    Ok(cleaned)
}

fn status_text(locks: &SharedLocks, seen: &Seen, most: usize, cleaned: Option<usize>) -> String {
    let mut text = format!("{}\n", title(locks));
    if let Some(cleaned) = cleaned {
        _ = writeln!(text, "cleaned up after {cleaned} sessions whose processes had died");
    }
    _ = writeln!(text, "\n{:>8} {:>9}  {:<13} {:>7}", "session", "process", "is", "lines");
    for one in &seen.sessions {
        let is = match (one.alive, &one.damage) {
            (true, None) => "alive",
            (false, None) => "dead",
            (true, Some(_)) => "damaged",
            (false, Some(_)) => "dead, damaged",
        };
        _ = writeln!(text, "{:>8} {:>9}  {is:<13} {:>7}", one.number.get(), one.process, one.lines);
    }
    let held = seen.taken.len();
    _ = writeln!(
        text,
        "\n{held} lines taken{}",
        if held > most { format!("; {most} of them:") } else { String::new() }
    );
    let processes: BTreeMap<_, _> = seen.sessions.iter().map(|one| (one.number, one.process)).collect();
    let who = |number: &SessionNumber| match processes.get(number) {
        Some(process) => format!("session {} of process {process}", number.get()),
        None => format!("session {}", number.get()),
    };
    for one in seen.taken.iter().take(most) {
        _ = writeln!(text, "line {}, {} waiting", one.line, one.waiters.len());
        for (number, how) in &one.holders {
            _ = writeln!(text, "  holds  {:<9}  {}", mode(*how), who(number));
        }
        for number in &one.waiters {
            _ = writeln!(text, "  waits  {:<9}  {}", "", who(number));
        }
    }
    text
}

fn status_json(locks: &SharedLocks, seen: &Seen, most: usize, cleaned: Option<usize>) -> Value {
    let sessions = seen.sessions.iter().map(|one| {
        json!({
            "session": one.number.get(), "process": one.process, "alive": one.alive, "lines": one.lines,
            "damaged": one.damage.is_some(),
        })
    });
    let taken = seen.taken.iter().take(most).map(|one| {
        let holders = one.holders.iter().map(|(number, how)| json!({ "session": number.get(), "mode": mode(*how) }));
        let waiters = one.waiters.iter().map(|number| number.get());
        json!({ "line": one.line, "holders": holders.collect::<Vec<_>>(), "waiters": waiters.collect::<Vec<_>>() })
    });
    json!({
        "table": dimensions(locks), "cleaned": cleaned, "sessions": sessions.collect::<Vec<_>>(),
        "taken": seen.taken.len(), "lines": taken.collect::<Vec<_>>(), "damaged": seen.damaged,
    })
}

/// All tables, a line for each. What is no table, or none that can be attached to, is told of on standard error.
fn list(output: Form) -> Outcome {
    let fail = |error| Failure::usage(format!("/dev/shm: {error}"));
    for place in segment::misnamed().map_err(fail)? {
        eprintln!("{place:?} has no name that a lock table can have; not looked at");
    }
    let names = segment::names().map_err(fail)?;
    let (mut text, mut all) =
        (format!("{:<24} {:>10} {:>9} {:>6}\n", "table", "lines", "sessions", "dead"), Vec::new());
    for name in names {
        let locks = match SharedLocks::attach(&name) {
            Ok(locks) => locks,
            // It has just been removed.
            Err(Error::Missing(_)) => continue,
            // Of another user, or with no descriptor left: it may be one.
            Err(error @ Error::Io { .. }) => {
                eprintln!("not looked at: {error}");
                continue;
            }
            Err(error) => {
                eprintln!("no lock table: {error}");
                continue;
            }
        };
        let (mut alive, mut dead) = (0, 0);
        for status in locks.sessions() {
            let lives = locks.is_alive(status.number).map_err(failure)?;
            alive += usize::from(lives);
            dead += usize::from(!lives && status.touched > 0);
        }
        let lines = locks.table().layout().lines;
        _ = writeln!(text, "{name:<24} {lines:>10} {alive:>9} {dead:>6}");
        all.push(json!({ "name": name, "table": dimensions(&locks), "alive": alive, "dead": dead }));
    }
    print(&if output == Form::Text { text } else { format!("{:#}\n", json!({ "tables": all })) })
}
