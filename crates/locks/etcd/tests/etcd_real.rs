//! A real etcd, that is killed while it is used.

use lockwork_etcd::{Entry, Etcd};
use lockwork_testkit::etcd::Server;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(20);

fn connect(server: &Server) -> Etcd {
    Etcd::connect(&[server.address()], "test/")
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < LONG, "not within {LONG:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn values(entries: &[Entry]) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    entries.iter().map(|entry| (text(&entry.key), text(&entry.value))).collect()
}

#[test]
fn writes_keep_their_order_and_none_is_lost_when_etcd_is_killed() {
    const WRITES: u64 = 6000;
    let Some(mut server) = Server::start() else { return };
    let etcd = connect(&server);
    let mut done = Vec::new();
    let mut killed = false;
    for ticket in 0..WRITES {
        // Every key gets several values, and each third of them is taken away in the end.
        let key = format!("keys/{:03}", ticket % 300);
        if ticket >= WRITES - 300 && ticket % 3 == 0 {
            etcd.delete(key, ticket);
        } else {
            etcd.put(key, ticket.to_string().into_bytes(), ticket);
        }
        until("fewer than 500 in flight", || {
            etcd.completed(&mut done);
            if done.len() > 2000 && !killed {
                server.kill();
                killed = true;
                until("its death is noticed", || !etcd.health().reachable);
                assert!(etcd.health().why.is_some());
                server.restart();
            }
            etcd.in_flight() < 500
        });
    }
    until("all are durable", || {
        etcd.completed(&mut done);
        etcd.in_flight() == 0
    });
    etcd.completed(&mut done);
    assert!(killed);
    assert_eq!(done, (0..WRITES).collect::<Vec<_>>());
    until("it is well again", || etcd.health().reachable && etcd.health().why.is_none());
    let expected: Vec<_> = (0..300u64)
        .filter(|key| !(WRITES - 300 + key).is_multiple_of(3))
        .map(|key| (format!("{key:03}"), (WRITES - 300 + key).to_string()))
        .collect();
    assert_eq!(values(&etcd.load("keys/", LONG).expect("etcd answers")), expected);
}

#[test]
fn a_folder_is_loaded_in_pages_and_knows_what_was_made_first() {
    let Some(server) = Server::start() else { return };
    let etcd = connect(&server);
    // 7.5 MB, of which an answer has at most 4 MB.
    for ticket in 0..5000u64 {
        etcd.put(format!("many/{:05}", 4999 - ticket), vec![b'x'; 1500], ticket);
    }
    etcd.put("manyfold".to_string(), Vec::new(), 5000);
    until("all are durable", || etcd.in_flight() == 0);
    let before = server.range_requests();
    let entries = etcd.load("many/", LONG).expect("etcd answers");
    // 2000, 2000 and 1000 keys; the connection also asks now and then whether etcd is there.
    let requests = server.range_requests() - before;
    assert!(requests >= 3, "{requests} range requests");
    let keys: Vec<String> = values(&entries).into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, (0..5000).map(|key| format!("{key:05}")).collect::<Vec<_>>());
    assert!(entries.iter().all(|entry| entry.value == [b'x'; 1500]));
    assert!(entries[0].created > entries[4999].created, "the last key was made first");
    assert!(etcd.load("none/", LONG).expect("etcd answers").is_empty());
}

#[test]
fn all_pages_of_a_folder_are_of_one_revision() {
    let Some(server) = Server::start() else { return };
    let (etcd, writer) = (connect(&server), connect(&server));
    for ticket in 0..4100u64 {
        etcd.put(format!("pages/{ticket:05}"), b"0".to_vec(), ticket);
    }
    until("all are durable", || etcd.in_flight() == 0);
    // The writer raises the first key and then the last one, again and again: the last one is never ahead.
    let stop = std::sync::atomic::AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1.. {
                for (at, key) in ["pages/00000", "pages/04099"].into_iter().enumerate() {
                    writer.put(key.to_string(), u64::to_string(&round).into_bytes(), 2 * round + at as u64);
                }
                until("the pair is durable", || writer.in_flight() == 0);
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    return;
                }
            }
        });
        let loads = (0..20).map(|_| {
            let entries = values(&etcd.load("pages/", LONG).expect("etcd answers"));
            let of = |at: usize| entries[at].1.parse::<u64>().expect("a number");
            (entries.len(), of(0), of(4099))
        });
        let seen: Vec<_> = loads.collect();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        seen
    });
    for &(count, first, last) in &seen {
        assert!(count == 4100 && (first == last || first == last + 1), "{seen:?}");
    }
    assert!(seen[0].1 < seen[19].1, "the writer did nothing meanwhile: {seen:?}");
}

#[test]
fn nobody_else_gets_the_same_number() {
    let Some(server) = Server::start() else { return };
    let (one, other) = (connect(&server), connect(&server));
    let mut all = Vec::new();
    std::thread::scope(|scope| {
        let count = |etcd: &Etcd| (0..50).map(|_| etcd.increment("era", LONG).expect("a number")).collect::<Vec<_>>();
        let handles = [scope.spawn(move || count(&one)), scope.spawn(move || count(&other))];
        all = handles.into_iter().flat_map(|handle| handle.join().expect("it counts")).collect();
    });
    all.sort_unstable();
    assert_eq!(all, (1..=100).collect::<Vec<_>>());
}

#[test]
fn a_value_is_replaced_only_if_nobody_else_has_done_so() {
    let Some(server) = Server::start() else { return };
    let etcd = connect(&server);
    let replace = |old, new| etcd.replace("part", old, new, LONG).expect("an answer");
    assert!(!replace(Some("a"), "b"), "there is none");
    assert!(replace(None, "a") && !replace(None, "b"));
    assert!(replace(Some("a"), "b") && !replace(Some("a"), "c"));
    assert!(replace(Some("a"), "b"), "it is so already");
    assert_eq!(etcd.load("part", LONG).expect("an answer")[0].value, b"b");
}

#[test]
fn what_is_kept_lives_as_long_as_its_handle() {
    let Some(mut server) = Server::start() else { return };
    let (keeper, watcher) = (connect(&server), connect(&server));
    let kept = || values(&watcher.load("members/", LONG).expect("etcd answers"));
    keeper.keep("members/a".to_string(), b"first".to_vec(), 3);
    until("it is there", || kept() == [("a".to_string(), "first".to_string())]);
    keeper.keep("members/a".to_string(), b"second".to_vec(), 3);
    until("it is another one", || kept() == [("a".to_string(), "second".to_string())]);
    server.restart();
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(kept().len(), 1, "it was renewed beyond its lease");
    drop(keeper);
    until("it is gone with its handle, before its lease ends", || kept().is_empty());
}

#[test]
fn without_etcd_nothing_blocks_and_errors_name_the_address() {
    let etcd = Etcd::connect(&["127.0.0.1:9".to_string()], "test/");
    let begin = Instant::now();
    (0..1000).for_each(|ticket| etcd.put(format!("k{ticket}"), Vec::new(), ticket));
    etcd.keep("members/a".to_string(), Vec::new(), 2);
    let mut done = Vec::new();
    etcd.completed(&mut done);
    assert!(begin.elapsed() < Duration::from_millis(500), "{:?}", begin.elapsed());
    assert!(done.is_empty());
    assert_eq!(etcd.in_flight(), 1000);
    let error = etcd.load("k", Duration::from_millis(300)).expect_err("nobody is there");
    assert!(error.to_string().contains("127.0.0.1:9"), "{error}");
    until("it is known", || etcd.health().why.is_some_and(|why| !why.contains("yet")));
    assert!(!etcd.health().reachable);
    let begin = Instant::now();
    drop(etcd);
    assert!(begin.elapsed() < Duration::from_secs(1));
    let error = Etcd::connect(&["no address".to_string()], "").increment("era", LONG).expect_err("no address");
    assert!(error.to_string().contains("no address"), "{error}");
}
