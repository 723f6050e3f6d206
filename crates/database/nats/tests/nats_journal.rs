//! The journal on real servers: its contract, and what it does when servers are killed and stopped.

use std::fs;
use std::time::{Duration, Instant};

use async_nats::jetstream::stream::{Config, DiscardPolicy};
use lockwork_nats::{Error, NatsJournal, Options, audit};
use lockwork_sequencer::io::simulated::SimulatedDisk;
use lockwork_sequencer::io::{Io, Mode};
use lockwork_sequencer::journal::{AppendError, Journal, Key, LogRange, Run};
use lockwork_testkit::nats::{TestServers, change_other, change_stream, damage, prefer_leader, stream_leader};

fn open(servers: &TestServers, name: &str) -> NatsJournal {
    NatsJournal::open(&servers.options(name)).unwrap()
}

fn message(number: u64) -> Vec<u8> {
    format!("message {number} {}", "x".repeat(number as usize * 37 % 5000)).into_bytes()
}

fn messages(numbers: std::ops::Range<u64>) -> Vec<Vec<u8>> {
    numbers.map(message).collect()
}

/// Asks again until there is an answer, as nodes do: servers that come back take a while before they answer everything.
fn patiently<T, E: std::fmt::Debug>(mut ask: impl FnMut() -> Result<T, E>) -> T {
    let until = Instant::now() + Duration::from_secs(90);
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(error) if Instant::now() > until => panic!("{error:?}"),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Reads all there is from `first` on.
fn read_all(journal: &NatsJournal, first: u64) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let read = patiently(|| journal.read(first + all.len() as u64, 20_000, Duration::ZERO));
        assert_eq!(read.first, first + all.len() as u64);
        if read.messages.is_empty() {
            return all;
        }
        all.extend(read.messages);
    }
}

#[test]
fn messages_are_appended_in_order_once_and_read_from_anywhere() {
    let Some(servers) = TestServers::start(3) else { return };
    let (journal, other) = (open(&servers, "a"), open(&servers, "a"));
    assert_eq!(journal.log_range().unwrap(), LogRange { first: 1, next: 1 });
    assert!(journal.read(1, 100, Duration::ZERO).unwrap().messages.is_empty());
    assert_eq!(journal.append(1, &messages(1..200)), (199, Ok(())));
    assert_eq!(journal.append(200, &[message(200)]), (1, Ok(())));
    // The same again is there; another one is too late.
    assert_eq!(other.append(190, &messages(190..201)), (11, Ok(())));
    assert_eq!(other.append(200, &[b"other".to_vec()]), (0, Err(AppendError::Superseded)));
    assert_eq!(other.append(150, &[message(150), b"other".to_vec()]), (1, Err(AppendError::Superseded)));
    assert_eq!(read_all(&other, 1), messages(1..201));
    assert_eq!(read_all(&other, 137), messages(137..201));
    // A reader that waits gets what comes.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| patiently(|| other.read(201, 100, Duration::from_secs(20))));
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(journal.append(201, &messages(201..202)), (1, Ok(())));
        assert_eq!(waiting.join().unwrap().messages, messages(201..202));
    });
    // What is cut off is missing, and the rest has its numbers.
    journal.truncate(100).unwrap();
    assert_eq!(journal.log_range().unwrap(), LogRange { first: 100, next: 202 });
    assert_eq!(other.read(5, 100, Duration::ZERO).unwrap().first, 100);
    assert_eq!(read_all(&journal, 100), messages(100..202));
    // The longest message there is.
    let longest = vec![7; journal.most_bytes()];
    assert_eq!(journal.append(202, std::slice::from_ref(&longest)), (1, Ok(())));
    assert!(patiently(|| other.read(202, 1, Duration::from_secs(5))).messages == [longest]);
}

#[test]
fn nothing_is_appended_behind_a_message_that_was_refused() {
    let Some(servers) = TestServers::start(1) else { return };
    let (one, other) = (open(&servers, "a"), open(&servers, "a"));
    assert_eq!(one.append(1, &messages(1..3)), (2, Ok(())));
    assert_eq!(other.append(3, &[b"another node's".to_vec()]), (1, Ok(())));
    // The number of the second would be right.
    assert_eq!(one.append(3, &messages(3..6)), (0, Err(AppendError::Superseded)));
    assert_eq!(one.log_range().unwrap(), LogRange { first: 1, next: 4 });
}

#[test]
fn entries_are_written_by_compare_and_swap() {
    let Some(servers) = TestServers::start(1) else { return };
    let (journal, other) = (open(&servers, "a"), open(&servers, "a"));
    assert_eq!(journal.entry(Key::Leader).unwrap(), None);
    let first = journal.write(Key::Leader, 0, "one").unwrap().unwrap();
    assert_eq!(other.write(Key::Leader, 0, "two").unwrap(), None);
    assert_eq!(other.entry(Key::Leader).unwrap().unwrap().text, "one");
    let second = other.write(Key::Leader, first, "two").unwrap().unwrap();
    assert_eq!(journal.write(Key::Leader, first, "one").unwrap(), None);
    assert_eq!(journal.entry(Key::Leader).unwrap().unwrap().revision, second);
    assert!(journal.write(Key::Leader, second, "").unwrap().is_some());
    // Others are under keys of their own.
    let digests = [Key::Digest(0), Key::Digest(1)];
    for key in digests {
        assert_eq!(other.entry(key).unwrap(), None);
        other.write(key, 0, &format!("{key:?}")).unwrap().unwrap();
    }
    let written = [Key::Leader, Key::Digest(0), Key::Digest(1)].map(|key| journal.entry(key).unwrap().unwrap().text);
    assert_eq!(written, ["", "Digest(0)", "Digest(1)"]);
}

#[test]
fn streams_of_a_journal_have_messages_and_leases_of_their_own() {
    let Some(mut servers) = TestServers::start(1) else { return };
    let first = open(&servers, "a");
    let (second, other) = (first.beside(2).unwrap(), open(&servers, "a").beside(2).unwrap());
    // A journal that is called nearly the same.
    let near = open(&servers, "2_a");
    assert_eq!(first.append(1, &messages(1..4)), (3, Ok(())));
    assert_eq!(second.append(1, &messages(10..12)), (2, Ok(())));
    assert_eq!(near.append(1, &messages(20..21)), (1, Ok(())));
    assert_eq!(read_all(&other, 1), messages(10..12));
    assert_eq!((read_all(&first, 1), read_all(&near, 1)), (messages(1..4), messages(20..21)));
    assert_eq!(other.append(2, &[b"another".to_vec()]), (0, Err(AppendError::Superseded)));
    let lease = first.write(Key::Leader, 0, "one").unwrap().unwrap();
    let theirs = second.write(Key::Leader, 0, "two").unwrap().unwrap();
    assert_eq!(other.write(Key::Leader, theirs + 1, "three").unwrap(), None);
    let holders = [&first, &other].map(|journal| journal.entry(Key::Leader).unwrap().unwrap().text);
    assert_eq!(holders, ["one", "two"]);
    assert!(first.write(Key::Leader, lease, "one").unwrap().is_some());
    assert!(second.describe().contains("stream lockwork-2_a"), "{}", second.describe());
    // Cut off, and after its server was killed, it goes on with its numbers.
    second.truncate(3).unwrap();
    servers.kill(0).unwrap();
    servers.restart(0).unwrap();
    let again = patiently(|| NatsJournal::open(&servers.options("a"))).beside(2).unwrap();
    assert_eq!(patiently(|| again.log_range()), LogRange { first: 3, next: 3 });
    assert_eq!(again.append(3, &messages(12..13)), (1, Ok(())));
    assert_eq!(read_all(&again, 3), messages(12..13));
}

#[test]
fn checkpoints_are_kept_whole() {
    let Some(servers) = TestServers::start(1) else { return };
    let journal = open(&servers, "a");
    let disk = SimulatedDisk::new(1);
    let file = |name: &str| disk.open(name.as_ref(), Mode::Create).unwrap();
    assert!(journal.checkpoints().unwrap().is_empty());
    let contents: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    let source = file("/source");
    source.write_at(0, &contents).unwrap();
    journal.keep_checkpoint(70, &*source).unwrap();
    journal.keep_checkpoint(7, &*file("/empty")).unwrap();
    assert_eq!(journal.checkpoints().unwrap(), [7, 70]);
    let fetched = file("/fetched");
    journal.fetch_checkpoint(70, &*fetched).unwrap();
    assert!(disk.contents("/fetched".as_ref()).unwrap() == contents);
    journal.drop_checkpoints(70).unwrap();
    assert_eq!(journal.checkpoints().unwrap(), [70]);
    let missing = journal.fetch_checkpoint(7, &*file("/none")).unwrap_err().to_string();
    assert!(missing.contains("fetch a checkpoint"), "{missing}");
}

#[test]
fn any_one_server_may_be_killed_or_stopped() {
    let Some(mut servers) = TestServers::start(3) else { return };
    let journal = open(&servers, "a");
    let mut next = 1;
    let mut append = |count: u64| {
        let messages = messages(next..next + count);
        // What is there already counts as appended.
        patiently(|| match journal.append(next, &messages) {
            (appended, Ok(())) => {
                assert_eq!(appended, messages.len());
                Ok(())
            }
            (_, Err(unknown @ AppendError::Unknown(_))) => Err(unknown),
            (_, Err(other)) => panic!("{other}"),
        });
        next += count;
    };
    append(50);
    for at in 0..3 {
        servers.kill(at).unwrap();
        append(20);
        servers.restart(at).unwrap();
        append(20);
        servers.signal(at, "-STOP");
        append(20);
        servers.signal(at, "-CONT");
        append(20);
    }
    // A majority: nothing is acknowledged before it is there again.
    servers.kill(0).unwrap();
    servers.kill(1).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| append(20));
        std::thread::sleep(Duration::from_secs(3));
        assert!(!waits.is_finished());
        servers.restart(0).unwrap();
        servers.restart(1).unwrap();
    });
    let other = patiently(|| NatsJournal::open(&servers.options("a")));
    assert_eq!(read_all(&other, 1), messages(1..next));
}

#[test]
fn servers_say_what_they_have_each_for_itself_when_most_of_them_do() {
    let Some(mut servers) = TestServers::start(3) else { return };
    let journal = open(&servers, "a");
    assert_eq!(journal.append(1, &messages(1..40)), (39, Ok(())));
    let stranded = |number, most_bytes| journal.stranded(number, most_bytes);
    let all_have = |number: u64, count: usize| {
        patiently(|| match stranded(number, 1) {
            Ok(found) if found == vec![vec![message(number)]; count] => Ok(()),
            other => Err(format!("{number}: {other:?}")),
        });
    };
    all_have(39, 3);
    all_have(1, 3);
    patiently(|| match stranded(3, usize::MAX) {
        Ok(found) if found == vec![messages(3..40); 3] => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let ten = messages(3..13).iter().map(Vec::len).sum();
    let is_some = |run: &Run| (10..37).contains(&run.len()) && run[..] == messages(3..40)[..run.len()];
    patiently(|| match stranded(3, ten) {
        Ok(found) if found.len() == 3 && found.iter().all(is_some) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    all_have(40, 0);
    servers.signal(0, "-STOP");
    let start = Instant::now();
    all_have(39, 2);
    assert!(start.elapsed() < Duration::from_secs(20), "who is away is not waited for");
    servers.kill(0).unwrap();
    all_have(39, 2);
    all_have(40, 0);
    servers.signal(1, "-STOP");
    assert!(stranded(39, 1).unwrap_err().to_string().contains("of 3 servers say what they have"));
    servers.signal(1, "-CONT");
    servers.restart(0).unwrap();
    all_have(39, 3);
}

#[test]
fn what_one_server_has_lost_is_had_from_another() {
    let Some(mut servers) = TestServers::start(3) else { return };
    let journal = open(&servers, "a");
    let (mut next, mut altered) = (1, 0);
    let all = |journal: &NatsJournal, next| match audit::messages(journal, 1, next) {
        Ok(all) if all == messages(1..next) => Ok(()),
        other => Err(format!("{} messages of {}", other.map_or(0, |some| some.len()), next - 1)),
    };
    for round in 0..3 {
        let number = next..next + 150;
        next = number.end;
        assert_eq!(journal.append(number.start, &messages(number)), (150, Ok(())));
        patiently(|| all(&journal, next));
        // Stopped, so that it sees nothing before it is killed.
        let at = stream_leader(&servers.options("a")).unwrap_or(round);
        servers.signal(at, "-STOP");
        altered += damage(&mut servers, at);
        // While it is away, and while it leads again before it has everything.
        patiently(|| all(&journal, next));
        servers.restart(at).unwrap();
        prefer_leader(&servers.options("a"), at);
        let whole = |journal: &NatsJournal| read_all(journal, 1) == messages(1..next);
        let other = patiently(|| NatsJournal::open(&servers.options("a")));
        assert!(whole(&other) && whole(&journal), "round {round}");
    }
    assert!(altered > 0);
}

#[test]
fn a_full_stream_refuses_what_is_new() {
    let Some(servers) = TestServers::start(1) else { return };
    let journal = open(&servers, "a");
    assert_eq!(journal.append(1, &messages(1..3)), (2, Ok(())));
    change(&servers, "a", |config| config.max_bytes = 6000);
    let longest = vec![message(3), vec![1; 7000]];
    let (appended, outcome) = journal.append(3, &longest);
    assert!(appended == 1 && matches!(outcome, Err(AppendError::Full(_))), "{appended}, {outcome:?}");
    change(&servers, "a", |config| config.max_bytes = -1);
    assert_eq!(journal.append(4, &messages(4..5)), (1, Ok(())));
}

fn change(servers: &TestServers, name: &str, change: impl FnOnce(&mut Config)) {
    change_stream(&servers.options(name), |config, _| change(config));
}

#[test]
fn settings_that_could_lose_messages_are_refused_with_what_would_be_right() {
    let Some(mut servers) = TestServers::start(1) else { return };
    drop(open(&servers, "a"));
    let refused = |options: &Options| match NatsJournal::open(options) {
        Err(Error::Settings(text)) => text,
        other => panic!("{:?}", other.err()),
    };
    let good = servers.options("a");
    let tells = refused(&Options { replicas: 2, ..good.clone() });
    assert!(tells.contains("1, 3 or 5"), "{tells}");
    let tells = refused(&Options { name: "a.b".into(), ..good.clone() });
    assert!(tells.contains("letters"), "{tells}");
    let tells = refused(&Options { system: None, ..good.clone() });
    assert!(tells.contains("system account"), "{tells}");
    let tells_nothing = refused(&Options { servers: vec!["nats://a:secret@127.0.0.1:1".into()], ..good.clone() });
    assert!(!tells_nothing.contains("secret"), "{tells_nothing}");
    assert!(NatsJournal::open(&Options { system: None, unsynced: true, ..good.clone() }).is_ok());
    change(&servers, "a", |config| config.discard = DiscardPolicy::Old);
    let tells = refused(&good);
    assert!(tells.contains("discards") && tells.contains("new is needed"), "{tells}");
    change(&servers, "a", |config| {
        config.discard = DiscardPolicy::New;
        config.max_age = Duration::from_secs(3600);
    });
    let tells = refused(&good);
    assert!(tells.contains("age"), "{tells}");
    change(&servers, "a", |config| config.max_age = Duration::ZERO);
    let bucket = "OBJ_lockwork_a_checkpoints";
    change_other(&good, bucket, |config, _| config.max_age = Duration::from_secs(3600));
    let tells = refused(&good);
    assert!(tells.contains("age") && tells.contains(bucket), "{tells}");
    // A server that syncs now and then.
    let path = servers.data(0).with_extension("conf");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("sync_interval: always", "sync_interval: 10s")).unwrap();
    servers.restart(0).unwrap();
    let tells = refused(&good);
    assert!(tells.contains("nats-1") && tells.contains("sync_interval: always"), "{tells}");
    fs::write(&path, text.replace("max_payload: 8MB", "max_payload: 1MB")).unwrap();
    servers.restart(0).unwrap();
    let tells = refused(&good);
    assert!(tells.contains("max_payload"), "{tells}");
    servers.kill(0).unwrap();
    assert!(matches!(NatsJournal::open(&good), Err(Error::Unreachable(_))));
}
