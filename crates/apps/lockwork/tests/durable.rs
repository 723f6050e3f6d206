//! A database in a folder: what was acknowledged is there when it is opened again.

#[path = "common/folder.rs"]
mod folder;

use folder::{Folder, command};
use lockwork::{EngineKind, Error, Lockwork, OpenOptions, Status, Value, request_id, sequencer};

const DEPOSIT: &str = "procedure deposit
table accounts (id: i64 key, balance: i64)
param id: i64
param amount: i64
result balance: i64
    update  c0, accounts, [id]
    ret     r1, c0
    loadr   r2, r1[accounts.balance]
    load    r3, [amount]
    add     r2, r2, r3
    storer  r2, r1[accounts.balance]
    store   r2, [balance]
    commit";

fn arguments(id: i64, amount: i64) -> [(&'static str, Value); 2] {
    [("id", Value::Integer(id)), ("amount", Value::Integer(amount))]
}

fn balance(lockwork: &mut Lockwork, id: i64) -> i64 {
    lockwork.call("deposit", &arguments(id, 0)).unwrap().integer("balance").unwrap()
}

fn created(folder: &Folder) -> Lockwork {
    let mut lockwork = Lockwork::open(&folder.0).unwrap();
    lockwork.register(DEPOSIT).unwrap();
    let rows: Vec<[(&str, Value); 2]> =
        (0..10).map(|id| [("id", Value::Integer(id)), ("balance", Value::Integer(100))]).collect();
    let rows: Vec<&[(&str, Value)]> = rows.iter().map(<[_; 2]>::as_slice).collect();
    lockwork.insert_all("accounts", &rows).unwrap();
    lockwork
}

#[test]
fn what_was_called_is_there_when_it_is_opened_again_on_any_engine() {
    let folder = Folder::new("durable-again");
    let lockwork = created(&folder);
    let answer = lockwork.call("deposit", &arguments(7, 5)).unwrap();
    assert_eq!((answer.status(), answer.integer("balance").unwrap()), (Status::Committed, 105));
    let mut batch = lockwork.batch(3).unwrap();
    for (id, amount) in [(7, 1), (8, 2), (99, 1)] {
        assert!(lockwork.push(&mut batch, "deposit", &arguments(id, amount)).unwrap());
    }
    let (batch, tally) = lockwork.call_batch(batch).unwrap();
    assert_eq!((tally.committed, tally.aborted.len()), (2, 1));
    assert_eq!(lockwork.answer(&batch, 0).integer("balance").unwrap(), 106);
    let digest = lockwork.digest().unwrap();
    lockwork.close().unwrap();
    for engine in EngineKind::CPU.iter().copied() {
        let options = OpenOptions { engine, ..OpenOptions::default() };
        // An engine with partitions wants to know how accounts are divided.
        if engine == EngineKind::TIMESTAMP {
            let refused = Lockwork::open_with(&folder.0, &options, |_| {}).err().unwrap().to_string();
            assert!(refused.contains("partition"), "{refused}");
            continue;
        }
        let (mut lockwork, report) = Lockwork::open_with(&folder.0, &options, |_| {}).unwrap();
        assert!(report.torn.is_none() && !report.created, "{report:?}");
        assert_eq!(lockwork.digest().unwrap(), digest, "{engine}");
        assert_eq!([7, 8].map(|id| balance(&mut lockwork, id)), [106, 102], "{engine}");
    }
}

#[test]
fn a_checkpoint_and_the_log_behind_it_are_all_that_is_needed() {
    let folder = Folder::new("durable-checkpoint");
    let lockwork = created(&folder);
    lockwork.call("deposit", &arguments(1, 1)).unwrap();
    let report = lockwork.checkpoint().unwrap();
    assert_eq!(report.rows, 10);
    lockwork.call("deposit", &arguments(1, 1)).unwrap();
    let digest = lockwork.digest().unwrap();
    drop(lockwork);
    let (mut lockwork, report) = Lockwork::open_with(&folder.0, &OpenOptions::default(), |_| {}).unwrap();
    assert_eq!((report.checkpoint_rows, report.calls), (10, 1));
    assert_eq!((lockwork.digest().unwrap(), balance(&mut lockwork, 1)), (digest, 102));
    assert_eq!(lockwork.tables()[0].name(), "accounts");
    // And it goes on: a further procedure over the same table.
    lockwork.register(&DEPOSIT.replace("procedure deposit", "procedure pay_in")).unwrap();
    assert_eq!(lockwork.call("pay_in", &arguments(1, 3)).unwrap().integer("balance").unwrap(), 105);
}

#[test]
fn it_can_be_opened_as_often_as_one_likes_without_a_log() {
    let folder = Folder::new("durable-none");
    drop(created(&folder));
    for session in 0..6 {
        // Four without a log, one with, and one without again.
        let durability = if session == 4 { sequencer::Durability::Fsync } else { sequencer::Durability::None };
        let sequencer = sequencer::Options { durability, ..sequencer::Options::default() };
        let options = OpenOptions { sequencer, ..OpenOptions::default() };
        let (lockwork, _) = Lockwork::open_with(&folder.0, &options, |_| {}).unwrap();
        let answer = lockwork.call("deposit", &arguments(1, 1)).unwrap();
        assert_eq!(answer.integer("balance").unwrap(), 101 + session);
        lockwork.close().unwrap();
    }
}

#[test]
fn many_threads_call_and_a_request_runs_once() {
    let folder = Folder::new("durable-threads");
    let mut lockwork = created(&folder);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let caller = lockwork.caller();
            scope.spawn(move || {
                for _ in 0..50 {
                    let request = request_id().unwrap();
                    let first = caller.call_once(request, "deposit", &arguments(3, 1)).unwrap();
                    let again = caller.call_once(request, "deposit", &arguments(3, 1)).unwrap();
                    assert_eq!(first.integer("balance").unwrap(), again.integer("balance").unwrap());
                }
            });
        }
    });
    assert_eq!(balance(&mut lockwork, 3), 300);
    let caller = lockwork.caller();
    let request = request_id().unwrap();
    let first = caller.call_once(request, "deposit", &arguments(3, 1)).unwrap().integer("balance").unwrap();
    drop((lockwork, caller));
    let mut lockwork = Lockwork::open(&folder.0).unwrap();
    let again = lockwork.caller().call_once(request, "deposit", &arguments(3, 1)).unwrap();
    assert_eq!((again.integer("balance").unwrap(), balance(&mut lockwork, 3)), (first, 301));
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let folder = Folder::new("durable-refused");
    let mut lockwork = created(&folder);
    let digest = lockwork.digest().unwrap();
    let second = Lockwork::open(&folder.0).err().unwrap().to_string();
    assert!(second.contains("in use") && second.contains(&std::process::id().to_string()), "{second}");
    assert!(matches!(lockwork.call("withdraw", &[]), Err(Error::Unknown { .. })));
    assert!(matches!(lockwork.call("deposit", &arguments(1, 1)[..1]), Err(Error::Missing { .. })));
    let twice = lockwork.register(DEPOSIT).unwrap_err().to_string();
    assert!(twice.contains("'deposit' is registered already"), "{twice}");
    let there = lockwork.insert("accounts", &[("id", Value::Integer(1)), ("balance", Value::Integer(0))]);
    assert!(there.unwrap_err().to_string().contains("key"));
    assert_eq!(lockwork.digest().unwrap(), digest);
    let memory = Lockwork::open_in_memory(EngineKind::SERIAL).unwrap();
    assert!(matches!(memory.checkpoint(), Err(Error::InMemory(_))));
}

#[test]
fn inspect_tells_what_is_there_and_names_what_is_damaged() {
    let folder = Folder::new("durable-inspect");
    let path = folder.0.to_str().unwrap();
    let inspect = |words: &[&str]| command(&[&["inspect"], words].concat(), "");
    let (code, _, error) = inspect(&["log", path]);
    assert!(code == Some(2) && error.contains("is no database"), "{code:?} {error}");
    let database = created(&folder);
    assert!(inspect(&["checkpoint", path]).1.contains("no checkpoint yet"));
    let mut batch = database.batch(40).unwrap();
    (0..40).for_each(|id| assert!(database.push(&mut batch, "deposit", &arguments(id % 10, 1)).unwrap()));
    database.call_batch(batch).unwrap();
    let digest = database.digest().unwrap().to_string();
    database.checkpoint().unwrap();
    database.call("deposit", &arguments(1, 1)).unwrap();
    database.close().unwrap();
    let (code, text, error) = inspect(&["log", path]);
    assert_eq!((code, error.as_str()), (Some(0), ""), "{text}");
    assert!(text.contains("1 deposit") && text.contains("the log is whole"), "{text}");
    // Records are numbered from 1, and those of a log that is whole are all there.
    let last = text.lines().last().unwrap();
    let number = |from: &str| last.split(from).nth(1).unwrap().split(|c: char| !c.is_ascii_digit()).next().unwrap();
    let first = text.lines().find_map(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap();
    let (records, next): (u64, u64) = (number("whole: ").parse().unwrap(), number("record is ").parse().unwrap());
    assert_eq!(first + records, next, "{text}");
    let (code, text, _) = inspect(&["checkpoint", path]);
    assert!(code == Some(0) && text.contains("10 of accounts") && text.contains(&digest), "{text}");
    let (code, text, _) = inspect(&["checkpoint", path, "--output", "json"]);
    assert!(code == Some(0) && text.contains("\"rows\":10") && text.lines().count() > 2, "{text}");
    // A bit of the rows in the checkpoint.
    let file = std::fs::read_dir(folder.0.join("checkpoint")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let (code, _, error) = inspect(&["checkpoint", path, "--quiet"]);
    assert_eq!(code, Some(5), "{error}");
    assert!(error.contains(file.to_str().unwrap()) && error.contains("offset"), "{error}");
    let refused = Lockwork::open(&folder.0).err().unwrap().to_string();
    assert!(refused.contains("damaged at offset"), "{refused}");
}
