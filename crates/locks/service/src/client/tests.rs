//! The client against a daemon on loopback.

mod ends;
mod joining;
mod names;
mod stay;
mod wakers;

use super::*;
use crate::lockd::{self, Lockd};
use crate::plane::InProcess;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Instant;

struct Daemon {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    fn start() -> Self {
        Self::at("127.0.0.1:0".parse().unwrap(), None, 1000)
    }

    fn at(address: SocketAddr, key: Option<Key>, lease_ms: u32) -> Self {
        let options = lockd::Options { key, lease_ms, fresh: true, ..lockd::Options::new(address) };
        let mut lockd = Lockd::bind(&options, InProcess::new(1000).unwrap()).unwrap();
        let address = lockd.address().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = Some(std::thread::spawn(move || lockd.run(&stopped).unwrap()));
        Self { address, stop, thread }
    }

    fn locks(&self) -> Locks {
        Locks::connect(&self.address.to_string()).unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(50);

#[test]
fn locks_are_granted_with_tokens_that_grow_and_given_back_when_dropped() {
    let daemon = Daemon::start();
    let (one, two) = (daemon.locks(), daemon.locks());
    assert_ne!(one.machine(), two.machine());
    assert_eq!(one.count(), 1000);
    let mut token = 0;
    for round in 0..200 {
        let locks = if round % 3 == 0 { &one } else { &two };
        let guard = locks.exclusive(17).timeout(LONG).acquire().unwrap();
        assert!(guard.token() > token && !guard.is_lost() && guard.lock() == 17);
        token = guard.token();
        let reader = locks.shared(18).acquire().unwrap();
        assert_eq!(reader.mode(), LockMode::Shared);
    }
    assert!(matches!(one.shared(1000).acquire(), Err(LockError::NoSuchLock { lock: 1000, locks: 1000, beyond: None })));
}

#[test]
fn a_lock_that_is_held_is_busy_or_times_out_and_readers_share() {
    let daemon = Daemon::start();
    let (one, two) = (daemon.locks(), daemon.locks());
    for locks in [&one, &two] {
        let guard = one.exclusive(5).acquire().unwrap();
        assert!(matches!(locks.exclusive(5).try_acquire(), Err(LockError::Busy(LockName::Number(5)))));
        assert!(matches!(locks.shared(5).try_acquire(), Err(LockError::Busy(LockName::Number(5)))));
        let start = Instant::now();
        assert!(matches!(locks.shared(5).timeout(SHORT).acquire(), Err(LockError::TimedOut(LockName::Number(5)))));
        assert!(start.elapsed() >= SHORT);
        drop(guard);
        let readers = [one.shared(5).acquire().unwrap(), locks.shared(5).acquire().unwrap()];
        assert!(matches!(locks.exclusive(5).try_acquire(), Err(LockError::Busy(LockName::Number(5)))));
        drop(readers);
        drop(locks.exclusive(5).timeout(LONG).acquire().unwrap());
    }
}

#[test]
fn a_writer_that_becomes_a_reader_lets_readers_in_and_no_writer() {
    let daemon = Daemon::start();
    let (one, two) = (daemon.locks(), daemon.locks());
    let mut guard = one.exclusive(5).acquire().unwrap();
    assert!(matches!(guard.upgrade(), Err(LockError::NoUpgrade)));
    guard.downgrade().unwrap();
    assert!(matches!(guard.downgrade(), Err(LockError::NotExclusive(LockName::Number(5)))));
    assert!(matches!(guard.upgrade(), Err(LockError::NoUpgrade)));
    let reader = two.shared(5).timeout(LONG).acquire().unwrap();
    assert!(matches!(two.exclusive(5).timeout(SHORT).acquire(), Err(LockError::TimedOut(LockName::Number(5)))));
    drop(guard);
    drop(reader);
    drop(two.exclusive(5).timeout(LONG).acquire().unwrap());
}

#[test]
fn threads_of_several_machines_exclude_each_other() {
    let daemon = Daemon::start();
    const ROUNDS: u64 = 300;
    let machines: Vec<Locks> = (0..3).map(|_| daemon.locks()).collect();
    let total = AtomicU64::new(0);
    let newest = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (locks, total, newest) = (&machines[thread % 3], &total, &newest);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let guard = locks.exclusive(3).timeout(LONG).acquire().unwrap();
                    // Two steps that would lose counts if two did them at once.
                    let before = total.load(Ordering::Relaxed);
                    assert!(newest.swap(guard.token(), Ordering::Relaxed) < guard.token());
                    total.store(before + 1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(total.into_inner(), 6 * ROUNDS);
}

/// Runs a future to its end, looking at it now and then.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let start = Instant::now();
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        assert!(start.elapsed() < LONG, "nobody wakes the task");
        std::thread::park_timeout(LONG);
    }
}

#[test]
fn tasks_wait_without_threads_and_withdraw_when_they_are_dropped() {
    let daemon = Daemon::start();
    let (one, two) = (daemon.locks(), daemon.locks());
    let guard = block_on(one.exclusive(5).acquire_async()).unwrap();
    let mut waits = Box::pin(two.exclusive(5).acquire_async());
    assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    std::thread::sleep(SHORT);
    drop(waits);
    let next = two.exclusive(5).acquire_async();
    let release = std::thread::spawn(move || {
        std::thread::sleep(SHORT);
        drop(guard);
    });
    let guard = block_on(next).unwrap();
    release.join().unwrap();
    assert!(matches!(
        block_on(one.shared(5).timeout(SHORT).acquire_async()),
        Err(LockError::TimedOut(LockName::Number(5)))
    ));
    drop(guard);
    drop(one.exclusive(5).timeout(LONG).acquire().unwrap());
}

#[test]
fn a_guard_knows_that_its_service_is_gone_and_a_new_session_begins_with_the_next_request() {
    let daemon = Daemon::start();
    let address = daemon.address;
    let locks = daemon.locks();
    let guard = locks.exclusive(5).acquire().unwrap();
    assert!(!guard.wait_lost(SHORT));
    drop(daemon);
    assert!(guard.wait_lost(Duration::MAX));
    block_on(guard.lost());
    let refused = locks.exclusive(5).timeout(SHORT).acquire();
    assert!(matches!(refused, Err(LockError::Connect(ConnectError::NoAnswer { .. }))), "{refused:?}");
    let _daemon = Daemon::at(address, None, 1000);
    let again = locks.exclusive(5).timeout(LONG).acquire().unwrap();
    assert!(guard.is_lost() && !again.is_lost());
    drop(guard);
    assert!(
        matches!(locks.shared(5).try_acquire(), Err(LockError::Busy(LockName::Number(5)))),
        "the old guard gives nothing back"
    );
    assert!(!again.is_lost());
}

#[test]
fn what_a_vanished_machine_held_goes_to_who_waits_when_its_lease_is_over() {
    let daemon = Daemon::at("127.0.0.1:0".parse().unwrap(), None, 1500);
    let (one, two, three) = (daemon.locks(), daemon.locks(), daemon.locks());
    let exclusive = one.exclusive(5).acquire().unwrap();
    let shared = [one.shared(6).acquire().unwrap(), two.shared(6).acquire().unwrap()];
    let token = exclusive.token();
    let start = Instant::now();
    one.abandon();
    let next = three.exclusive(5).timeout(LONG).acquire().unwrap();
    assert!(start.elapsed() > Duration::from_millis(1000) && exclusive.is_lost());
    assert!(next.token() > token);
    assert!(
        matches!(three.exclusive(6).timeout(SHORT).acquire(), Err(LockError::TimedOut(LockName::Number(6)))),
        "two reads on"
    );
    drop(shared);
    drop(three.exclusive(6).timeout(LONG).acquire().unwrap());
    assert!(!next.is_lost());
}

#[test]
fn no_service_another_key_and_a_bad_address_are_told_apart() {
    let options = |key| Options { key, connect_timeout: Duration::from_millis(200), ..Options::default() };
    let daemon = Daemon::at("127.0.0.1:0".parse().unwrap(), Some(Key([1; 16])), 1000);
    let address = daemon.address.to_string();
    assert!(Locks::connect_with(&address, options(Some(Key([1; 16])))).is_ok());
    for key in [None, Some(Key([2; 16]))] {
        let error = Locks::connect_with(&address, options(key)).unwrap_err().to_string();
        assert!(error.contains("with the same key") && !error.contains("closed"), "{error}");
    }
    drop(daemon);
    let error = Locks::connect_with(&address, options(None)).unwrap_err().to_string();
    assert!(error.contains("the port is closed"), "{error}");
    for bad in ["", "nowhere", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999"] {
        let error = Locks::connect_with(bad, options(None)).unwrap_err();
        assert!(matches!(error, ConnectError::Address { .. }) && error.to_string().contains("HOST:PORT"), "{error}");
    }
}

#[test]
fn a_machine_that_leaves_frees_its_number_and_its_locks_at_once() {
    let daemon = Daemon::at("127.0.0.1:0".parse().unwrap(), None, 60_000);
    let (one, two) = (daemon.locks(), daemon.locks());
    let guards: Vec<Guard> = (0..100).map(|lock| one.exclusive(lock).acquire().unwrap()).collect();
    drop(one);
    drop(guards);
    for lock in 0..100 {
        drop(two.exclusive(lock).timeout(LONG).acquire().unwrap());
    }
}

#[test]
fn a_lock_whose_lease_has_ended_before_the_call_returns_is_no_guard() {
    let daemon = Daemon::start();
    let locks = daemon.locks();
    let pending = locks.begin(LockName::Number(5), LockMode::Exclusive, Ask::default(), false).unwrap();
    locks.0.shared.wait(&pending.wait);
    assert!(matches!(pending.wait.answer(), Some(Answer::Granted { .. })));
    pending.wait.set_lost().wake();
    assert!(matches!(pending.finish(), Err(Unmet::Failed(LockError::Disconnected(LockName::Number(5))))));
    drop(locks.exclusive(5).timeout(LONG).acquire().unwrap());
}

#[test]
fn a_guard_says_until_when_it_is_held() {
    let daemon = Daemon::start();
    let locks = daemon.locks();
    let now = || Clock::new().boot_time(0);
    let guard = locks.exclusive(5).acquire().unwrap();
    let (first, lease) = (guard.held_until(), locks.lease());
    assert!(now() < first && first <= now() + lease, "{first:?}");
    // Each renewal moves it.
    let since = Instant::now();
    while guard.held_until() == first {
        assert!(since.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(guard.held_until() > first);
    guard.wait.set_lost().wake();
    assert_eq!(guard.held_until(), Duration::ZERO);
}

#[test]
fn people_see_who_holds_and_who_waits() {
    use crate::query;
    use lockwork_lock_protocol::word::State;
    let daemon = Daemon::start();
    let (one, two) = (daemon.locks(), daemon.locks());
    let ask = |lock| query::lock(daemon.address, None, lock, LONG).unwrap();
    assert!(matches!(query::lock(daemon.address, None, 1000, LONG), Err(query::QueryError::NoSuchLock(1000, _))));
    assert_eq!(ask(5).state, State::Free);
    let guard = one.exclusive(5).task(77).acquire().unwrap();
    let mut waits = Box::pin(two.shared(5).task(88).acquire_async());
    assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let start = Instant::now();
    let found = loop {
        let status = ask(5);
        assert!(status.state == State::Exclusive && status.machine == one.machine());
        let participants = status.participants.expect("its agent lives");
        if participants.len() == 2 {
            break participants;
        }
        assert!(start.elapsed() < LONG, "{participants:?}");
    };
    let facts: Vec<_> = found.iter().map(|one| (one.who.machine.0, one.who.request >> 32, one.holds)).collect();
    assert_eq!(facts, [(one.machine(), 77, true), (two.machine(), 88, false)]);
    let all = query::all(daemon.address, None, LONG).unwrap();
    assert!(all.summary.machines == 2 && all.silent == 0 && all.summary.grants >= 1, "{all:?}");
    assert!(all.busiest.len() == 1 && all.busiest[0].0 == one.machine() && all.busiest[0].1.waiters == 1, "{all:?}");
    drop(guard);
}
