//! Anomalies as scripts: one a file in `anomalies/`, played by sessions step by step, at both isolations, and with the
//! same outcomes over locks and a storage of this process, and over the shared lock table and a storage process.
//!
//! A line is a step, `session: what it does`, and what came of it at each isolation; `#` begins a comment. A step that
//! would have to wait for a lock does not: `waits` stands for it, and the transaction is over. Older sessions are those
//! that began first. What did not begin is `over`.
//!
//! ```text
//! a: begin                                     a: get 1        a: set 1 5      a: insert 1 5    a: remove 1
//! a: scan 1 (ten rows from key 1 on)           a: commit       a: abort
//! b: raise 5 by 1 (bulk update: where value >= 5, in the storage; commit or abort follows)
//! b: raise here 5 by 1 (the same, on the host, with its commit)
//! b: sum 5, b: rows 5 (aggregate and filter: where value >= 5)
//! flush       rows (all rows, at the end)
//! ```

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::{CAPACITY, Setup, all, at_least, insert, number, numbers, raise};
use lockwork_neardata::coherent::{NearData, NearDataConfig};
use lockwork_neardata::device::{DeviceError, Fold};
use lockwork_neardata::host::bulk::BulkUpdate;
use lockwork_neardata::host::interactive::Transaction;
use lockwork_neardata::host::{Config, Conflict, Host, HostError, Isolation, Worker};

enum State {
    Running(Transaction<'static, 'static>),
    Bulk(BulkUpdate<'static, 'static>),
}

struct Play {
    host: &'static Host,
    sessions: BTreeMap<String, State>,
}

fn refused(error: &HostError) -> String {
    match error {
        HostError::Conflict(Conflict::Superseded) | HostError::Device(DeviceError::Conflict { .. }) => "superseded",
        HostError::Conflict(Conflict::Busy) | HostError::Device(DeviceError::Busy { .. }) => "refused",
        HostError::Conflict(Conflict::TimedOut) => "waits",
        other => return other.to_string(),
    }
    .to_string()
}

fn rows(rows: impl IntoIterator<Item = (i64, i64)>) -> String {
    let rows: Vec<String> = rows.into_iter().map(|(id, value)| format!("{id}={value}")).collect();
    if rows.is_empty() { "none".into() } else { rows.join(" ") }
}

impl Play {
    fn worker(&self) -> &'static mut Worker<'static> {
        Box::leak(Box::new(self.host.worker().unwrap()))
    }

    fn step(&mut self, session: &str, words: &[&str]) -> Result<String, HostError> {
        let int = |at: usize| words[at].parse::<i64>().unwrap();
        let key = |at: usize| int(at).to_le_bytes();
        Ok(match words {
            ["begin"] => {
                let transaction = self.worker().begin();
                assert!(self.sessions.insert(session.into(), State::Running(transaction)).is_none(), "it runs already");
                "ok".into()
            }
            ["raise", _, "by", _] => {
                let (program, block) = raise(int(1), int(3));
                let update = self.worker().bulk_update(0, &program, &block)?;
                let text = format!("{} updated", update.ran().taken);
                assert!(self.sessions.insert(session.into(), State::Bulk(update)).is_none(), "it runs already");
                text
            }
            ["raise", "here", _, "by", _] => {
                let (program, block) = raise(int(2), int(4));
                format!("{} updated", self.worker().bulk_update_on_host(0, &program, &block)?.0.taken)
            }
            ["sum", _] => {
                let (program, block) = at_least(int(1));
                let folds = [("value".to_string(), Fold::Sum)];
                let sum = self.worker().aggregate(0, &program, &block, &folds)?.values;
                sum.map_or("none".into(), |values| values[0].to_string())
            }
            ["rows", _] => {
                let (program, block) = at_least(int(1));
                let mut found = BTreeMap::new();
                let mut note = |_, image: &[u8]| _ = found.insert(number(image, 0), number(image, 8));
                self.worker().filter(0, &program, &block, &mut note)?;
                rows(found)
            }
            ["commit"] | ["abort"] => match self.sessions.remove(session) {
                None => "over".into(),
                Some(State::Running(transaction)) if words == ["commit"] => {
                    transaction.commit().map(|_| "ok".into())?
                }
                Some(State::Bulk(update)) if words == ["commit"] => update.commit().map(|_| "ok".into())?,
                Some(_) => "ok".into(),
            },
            _ => {
                let Some(State::Running(transaction)) = self.sessions.get_mut(session) else {
                    panic!("'{session}' does not run a transaction")
                };
                match words {
                    ["get", _] => {
                        transaction.get(0, &key(1))?.map_or("none".into(), |image| number(image, 8).to_string())
                    }
                    ["set", ..] | ["insert", ..] => {
                        let values = match words[0] {
                            "set" => transaction.update(0, &key(1))?,
                            _ => transaction.insert(0, &key(1))?,
                        };
                        let none = if words[0] == "set" { "none" } else { "exists" };
                        values
                            .map_or(none, |values| {
                                values[..8].copy_from_slice(&key(2));
                                "ok"
                            })
                            .into()
                    }
                    ["remove", _] => (if transaction.remove(0, &key(1))? { "ok" } else { "none" }).into(),
                    ["scan", _] => {
                        let mut found = Vec::new();
                        let mut note = |image: &[u8]| found.push((number(image, 0), number(image, 8)));
                        transaction.scan(0, &key(1), 10, &mut note)?;
                        rows(found)
                    }
                    _ => panic!("no such step: {words:?}"),
                }
            }
        })
    }
}

/// What a script is played on; lives as long as the test.
trait Stage {
    fn host(&self) -> &Host;

    /// Whether nothing is locked.
    fn is_free(&self) -> bool;
}

/// Locks and storage in this process.
struct InProcess(Setup, Host);

impl Stage for InProcess {
    fn host(&self) -> &Host {
        &self.1
    }

    fn is_free(&self) -> bool {
        self.0.locks.held() == 0
    }
}

/// The shared lock table, and a storage process with a file.
impl Stage for NearData {
    fn host(&self) -> &Host {
        self.host()
    }

    fn is_free(&self) -> bool {
        // An update of everything gets every lock.
        let (program, block) = raise(i64::MIN, 1);
        self.host().worker().unwrap().bulk_update(0, &program, &block).is_ok()
    }
}

fn in_process(isolation: Isolation) -> Box<dyn Stage> {
    let setup = Setup::new(isolation, Duration::ZERO);
    let host = setup.open().unwrap();
    Box::new(InProcess(setup, host))
}

fn two_processes(isolation: Isolation) -> Box<dyn Stage> {
    let data = std::env::temp_dir().join(format!("lockwork-anomalies-{}", std::process::id()));
    let config = NearDataConfig {
        lock_lines: 1 << 12,
        tables: 1,
        tuples: CAPACITY as u32,
        host: Config { isolation, timeout: Duration::ZERO, ..Config::default() },
        ..NearDataConfig::new(&data)
    };
    let engine = NearData::start(Command::new(env!("CARGO_BIN_EXE_lockwork-smart-storage")), config);
    // The storage has it open.
    std::fs::remove_file(&data).unwrap();
    Box::new(engine.unwrap())
}

/// Plays the steps of a script and answers what came of each.
fn play(steps: &[&str], stage: Box<dyn Stage>) -> Vec<String> {
    let stage: &'static dyn Stage = Box::leak(stage);
    let host = stage.host();
    host.create_table(&numbers()).unwrap();
    let mut play = Play { host, sessions: BTreeMap::new() };
    let outcomes = steps.iter().map(|step| match step.split_once(": ") {
        Some((session, step)) => {
            let words: Vec<&str> = step.split_whitespace().collect();
            play.step(session, &words).unwrap_or_else(|error| refused(&error))
        }
        None if *step == "flush" => host.flush_all().map_or_else(|error| error.to_string(), |()| "ok".into()),
        None if *step == "rows" => rows(all(host)),
        None => {
            let numbers = step.strip_prefix("with ").unwrap_or_else(|| panic!("no such step: {step}"));
            let number = |pair: &str| {
                let (id, value) = pair.split_once('=').unwrap();
                (id.parse().unwrap(), value.parse().unwrap())
            };
            insert(host, numbers.split(' ').map(number));
            "ok".into()
        }
    });
    let outcomes = outcomes.collect();
    assert!(play.sessions.is_empty(), "sessions have to end");
    assert!(stage.is_free(), "locks have to go");
    outcomes
}

/// The script with what came of its steps.
fn played(script: &str, stage: fn(Isolation) -> Box<dyn Stage>) -> String {
    let steps: Vec<&str> = script
        .lines()
        .map(|line| line.split(" -> ").next().unwrap().trim())
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    let (snapshot, serializable) =
        [Isolation::Snapshot, Isolation::Serializable].map(|isolation| play(&steps, stage(isolation))).into();
    let mut outcomes = snapshot.into_iter().zip(serializable);
    let mut text = String::new();
    for line in script.lines() {
        let step = line.split(" -> ").next().unwrap().trim();
        if step.is_empty() || step.starts_with('#') {
            text += step;
        } else {
            let (snapshot, serializable) = outcomes.next().unwrap();
            text += &match snapshot == serializable {
                true => format!("{step:<24} -> {snapshot}"),
                false => format!("{step:<24} -> {snapshot:<16} | {serializable}"),
            };
        }
        text.push('\n');
    }
    text
}

#[test]
fn every_script_ends_as_it_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("anomalies");
    let mut wrong = Vec::new();
    let mut scripts = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let script = std::fs::read_to_string(&path).unwrap();
        let found = played(&script, in_process);
        let other = played(&script, two_processes);
        // The shared table refuses an upgrade beside other readers at once: two of them would wait for each other.
        let [same, as_found] = [&other, &found].map(|text| text.replace("waits", "refused"));
        if !same.split_whitespace().eq(as_found.split_whitespace()) {
            wrong.push(format!("{}, over the shared lock table and a storage process:\n{other}", path.display()));
        }
        if found != script {
            if std::env::var_os("UPDATE_ANOMALIES").is_some() {
                std::fs::write(&path, &found).unwrap();
            }
            wrong.push(format!("{}:\n{found}", path.display()));
        }
        scripts += 1;
    }
    assert!(wrong.is_empty(), "{} of {scripts} scripts end otherwise:\n{}", wrong.len(), wrong.join("\n"));
    assert!(scripts >= 16, "only {scripts} scripts were found");
}
