//! Names: through a daemon without etcd, and with a real one that is killed.

use super::*;
use lockwork_etcd::Etcd;
use lockwork_testkit::etcd::Server;

/// A daemon with a thousand locks for names.
fn named(names: u64, etcd: Option<&Server>) -> Daemon {
    let options = lockd::Options {
        lease_ms: 1000,
        fresh: true,
        names,
        etcd: etcd.map(Server::address).into_iter().collect(),
        ..lockd::Options::new("127.0.0.1:0".parse().unwrap())
    };
    let mut lockd = Lockd::bind(&options, InProcess::new(100 + names as usize).unwrap()).unwrap();
    let address = lockd.address().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let thread = Some(std::thread::spawn(move || lockd.run(&stopped).unwrap()));
    Daemon { address, stop, thread }
}

fn few_names(daemon: &Daemon, most_names: usize) -> Locks {
    Locks::connect_with(&daemon.address.to_string(), Options { most_names, ..Options::default() }).unwrap()
}

#[test]
fn a_name_is_one_lock_for_all_and_no_other_name_has_it() {
    let daemon = named(1000, None);
    let (one, two) = (daemon.locks(), daemon.locks());
    assert_eq!((one.count(), one.count_named()), (100, 1000));
    let guard = one.exclusive_named("orders/17").timeout(LONG).acquire().unwrap();
    assert_eq!(guard.name(), Some("orders/17"));
    assert!(guard.lock() >= 100);
    let lock = guard.lock();
    let name = LockName::Name("orders/17".into());
    let busy = two.shared_named("orders/17").try_acquire().unwrap_err();
    assert!(matches!(&busy, LockError::Busy(busy) if *busy == name), "{busy:?}");
    assert!(busy.to_string().starts_with("lock 'orders/17' is held"), "{busy}");
    let timed_out = two.exclusive_named("orders/17").timeout(SHORT).acquire();
    assert!(matches!(&timed_out, Err(LockError::TimedOut(late)) if *late == name), "{timed_out:?}");
    let others: Vec<Guard> =
        (0..500).map(|at| two.exclusive_named(&format!("orders/x{at}")).timeout(LONG).acquire().unwrap()).collect();
    assert!(others.iter().all(|other| other.lock() != lock));
    let token = guard.token();
    drop(guard);
    let guard = block_on(two.exclusive_named("orders/17").acquire_async()).unwrap();
    assert!(guard.lock() == lock && guard.token() > token);
    assert!(matches!(one.exclusive_named("").acquire(), Err(LockError::BadName(0))));
    assert!(matches!(one.exclusive_named(&"x".repeat(256)).acquire(), Err(LockError::BadName(256))));
    drop(one.exclusive_named(&"x".repeat(255)).timeout(LONG).acquire().unwrap());
    assert!(matches!(one.exclusive(100).acquire(), Err(LockError::NoSuchLock { lock: 100, locks: 100, .. })));
}

#[test]
fn many_threads_with_few_known_names_exclude_each_other_by_name() {
    let daemon = named(20, None);
    let machines: Vec<Locks> = (0..3).map(|_| few_names(&daemon, 2)).collect();
    let totals: Vec<AtomicU64> = (0..12).map(|_| AtomicU64::new(0)).collect();
    let newest: Vec<AtomicU64> = (0..12).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..6_usize {
            let (locks, totals, newest) = (&machines[thread % 3], &totals, &newest);
            scope.spawn(move || {
                for round in 0..200 {
                    // Names are forgotten, freed and made again all the time.
                    let at = (round * 7 + thread * 5) % 12;
                    let guard = locks.exclusive_named(&format!("n{at}")).timeout(LONG).acquire().unwrap();
                    let before = totals[at].load(Ordering::Relaxed);
                    assert!(newest[at].swap(guard.token(), Ordering::Relaxed) < guard.token());
                    totals[at].store(before + 1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(totals.iter().map(|total| total.load(Ordering::Relaxed)).sum::<u64>(), 6 * 200);
}

#[test]
fn when_all_names_are_in_use_it_says_so_and_those_of_a_session_that_ends_are_free() {
    let daemon = named(3, None);
    let (one, two) = (few_names(&daemon, 1), few_names(&daemon, 1));
    let held: Vec<Guard> =
        ["a", "b", "c"].iter().map(|name| one.exclusive_named(name).timeout(LONG).acquire().unwrap()).collect();
    let full = two.exclusive_named("d").timeout(LONG).acquire();
    assert!(matches!(full, Err(LockError::NamesFull(3))), "{full:?}");
    let newest = held.iter().map(Guard::token).max().unwrap();
    one.abandon();
    let start = Instant::now();
    let guard = loop {
        match two.exclusive_named("d").timeout(LONG).acquire() {
            Ok(guard) => break guard,
            Err(error) => assert!(error.is_retryable() && start.elapsed() < LONG, "{error}"),
        }
        std::thread::sleep(SHORT);
    };
    assert!(guard.token() > newest);
    drop(held);
    let none = Daemon::start();
    let locks = none.locks();
    assert!(matches!(locks.exclusive_named("a").acquire(), Err(LockError::NoNames)));
}

#[test]
fn a_name_is_resolved_anew_in_a_new_session() {
    let daemon = named(10, None);
    let address = daemon.address;
    let locks = daemon.locks();
    drop(locks.exclusive_named("first").timeout(LONG).acquire().unwrap());
    let guard = locks.exclusive_named("second").timeout(LONG).acquire().unwrap();
    drop(daemon);
    assert!(guard.wait_lost(Duration::MAX));
    let options = lockd::Options { lease_ms: 1000, fresh: true, names: 10, ..lockd::Options::new(address) };
    let mut lockd = Lockd::bind(&options, InProcess::new(100).unwrap()).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| lockd.run(&stop).unwrap());
        let again = locks.exclusive_named("second").timeout(LONG).acquire().unwrap();
        assert_eq!(again.lock(), 90, "the first name of the new service");
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn names_are_stored_before_they_are_told_and_known_after_a_new_start() {
    let Some(mut server) = Server::start() else { return };
    let etcd = Etcd::connect(&[server.address()], "lockwork/");
    let stored = || -> HashMap<String, u64> {
        let entries = etcd.load("names/", LONG).unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        entries.iter().map(|entry| (text(&entry.key), text(&entry.value).parse().unwrap())).collect()
    };
    let daemon = named(1000, Some(&server));
    let locks = daemon.locks();
    let guard = locks.exclusive_named("orders/17").timeout(LONG).acquire().unwrap();
    assert_eq!(stored().get("orders/17"), Some(&guard.lock()));
    // What is known goes on without etcd, and so do numbers; what is new waits.
    server.kill();
    let (lock, other) = (guard.lock(), daemon.locks());
    drop(guard);
    drop(locks.exclusive_named("orders/17").timeout(LONG).acquire().unwrap());
    drop(other.shared_named("orders/17").timeout(LONG).acquire().unwrap());
    drop(other.exclusive(5).timeout(LONG).acquire().unwrap());
    let new = locks.exclusive_named("orders/18").timeout(4 * SHORT).acquire();
    assert!(matches!(&new, Err(LockError::NotResolved(name)) if name == "orders/18"), "{new:?}");
    server.restart();
    let new = locks.exclusive_named("orders/18").timeout(LONG).acquire().unwrap();
    assert_eq!(stored().len(), 2);
    let new = (new.lock(), new.token());
    drop((locks, other));
    drop(daemon);
    let daemon = named(1000, Some(&server));
    let locks = daemon.locks();
    let again = locks.exclusive_named("orders/18").timeout(LONG).acquire().unwrap();
    assert!(again.lock() == new.0 && again.token() > new.1);
    assert_eq!(locks.exclusive_named("orders/17").timeout(LONG).acquire().unwrap().lock(), lock);
}

/// Some ten thousand names, made by one session after another and freed again.
#[test]
fn ten_thousand_names_go_into_etcd_and_out_again() {
    const NAMES: u64 = 10_000;
    let Some(server) = Server::start() else { return };
    let daemon = named(NAMES / 2, Some(&server));
    let etcd = Etcd::connect(&[server.address()], "lockwork/");
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..50 {
            let daemon = &daemon;
            scope.spawn(move || {
                let locks = few_names(daemon, 1);
                for at in 0..NAMES / 50 {
                    let name = format!("orders/{thread}/{at}");
                    drop(locks.exclusive_named(&name).timeout(6 * LONG).acquire().unwrap());
                }
            });
        }
    });
    println!("{NAMES} names in {:.1} s", start.elapsed().as_secs_f64());
    let start = Instant::now();
    loop {
        let left = etcd.load("names/", LONG).unwrap().len();
        if left == 0 {
            break;
        }
        assert!(start.elapsed() < 3 * LONG, "{left} names are left");
        std::thread::sleep(Duration::from_millis(200));
    }
}
