//! How sessions begin: the first, and those after one that has ended.

use super::*;
use std::net::UdpSocket;

/// A process whose session has ended because its service is gone, with a guard of then.
fn orphan(connect_timeout: Duration) -> (Locks, Guard, SocketAddr) {
    let daemon = Daemon::start();
    let options = Options { connect_timeout, ..Options::default() };
    let locks = Locks::connect_with(&daemon.address.to_string(), options).unwrap();
    let guard = locks.exclusive(5).acquire().unwrap();
    let address = daemon.address;
    drop(daemon);
    assert!(guard.wait_lost(LONG));
    (locks, guard, address)
}

fn no_answer<T: std::fmt::Debug>(result: Result<T, LockError>) {
    assert!(matches!(result, Err(LockError::Connect(ConnectError::NoAnswer { .. }))), "{result:?}");
}

#[test]
fn who_waits_for_a_new_session_keeps_nobody_else_and_waits_no_longer_than_told() {
    let (locks, guard, address) = orphan(LONG);
    let start = Instant::now();
    let mut waits = Box::pin(locks.exclusive(5).acquire_async());
    let mut poll = || waits.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending());
    let withdrawn = locks.exclusive(5).acquire_async();
    let mut withdrawn = Box::pin(withdrawn);
    assert!(withdrawn.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(withdrawn);
    drop(guard);
    no_answer(locks.exclusive(5).try_acquire());
    no_answer(locks.exclusive(5).timeout(SHORT).acquire());
    no_answer(block_on(locks.exclusive(5).timeout(SHORT).acquire_async()));
    assert!(start.elapsed() >= SHORT * 4 && start.elapsed() < LONG / 2, "{:?}", start.elapsed());
    assert!(poll().is_pending(), "it may wait as long as one may to connect");
    let _daemon = Daemon::at(address, None, 1000);
    let guard = block_on(waits).unwrap();
    let start = Instant::now();
    assert!(matches!(locks.shared(5).try_acquire(), Err(LockError::Busy(LockName::Number(5)))));
    assert!(matches!(locks.shared(5).timeout(SHORT).acquire(), Err(LockError::TimedOut(LockName::Number(5)))));
    assert!(start.elapsed() < LONG / 2 && !guard.is_lost());
    drop(guard);
    drop(locks.exclusive(5).timeout(LONG).acquire().unwrap());
}

#[test]
fn nobody_waits_for_a_session_longer_than_one_may_to_connect() {
    let (locks, _guard, address) = orphan(SHORT);
    for _ in 0..2 {
        let start = Instant::now();
        no_answer(locks.exclusive(5).timeout(LONG).acquire());
        no_answer(block_on(locks.exclusive(5).acquire_async()));
        assert!(start.elapsed() >= SHORT * 2 && start.elapsed() < LONG / 2, "{:?}", start.elapsed());
    }
    let _daemon = Daemon::at(address, None, 1000);
    drop(locks.exclusive(5).acquire().unwrap());
}

#[test]
fn threads_and_tasks_that_wait_for_one_session_get_it_together() {
    let (locks, _guard, address) = orphan(LONG);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|lock| {
                scope.spawn({
                    let locks = &locks;
                    move || match lock % 2 {
                        0 => locks.exclusive(lock).acquire(),
                        _ => block_on(locks.exclusive(lock).acquire_async()),
                    }
                })
            })
            .collect();
        std::thread::sleep(SHORT);
        let _daemon = Daemon::at(address, None, 1000);
        let guards: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect();
        assert!(guards.iter().all(|guard| !guard.is_lost()));
        assert!(matches!(locks.exclusive(1000).acquire(), Err(LockError::NoSuchLock { .. })));
    });
}

#[test]
fn of_several_addresses_the_first_that_answers_is_taken_and_the_error_names_all() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let closed = UdpSocket::bind("127.0.0.1:0").unwrap();
    let [silent_at, closed_at] = [&silent, &closed].map(|socket| socket.local_addr().unwrap());
    drop(closed);
    let options = |connect_timeout| Options { connect_timeout, ..Options::default() };
    let daemons = [Daemon::start(), Daemon::start()];
    let all = [closed_at, silent_at, daemons[0].address, daemons[1].address];
    assert_eq!(Locks::join(&all, options(SHORT * 8)).unwrap().address(), daemons[0].address);
    let error = Locks::join(&all[..2], options(SHORT)).unwrap_err();
    let ConnectError::NoAnswer { addresses, waited_ms, hint } = &error else { panic!("{error}") };
    assert!(addresses == &all[..2] && *waited_ms < 10_000 && hint.is_empty(), "{error}");
    assert!(error.to_string().contains(&format!("{closed_at}, {silent_at}")), "{error}");
    // The first may be started later than its client.
    let starts = std::thread::spawn(move || {
        std::thread::sleep(SHORT);
        Daemon::at(closed_at, None, 1000)
    });
    assert_eq!(Locks::join(&all[..2], options(LONG / 10)).unwrap().address(), closed_at);
    drop(starts.join().unwrap());
}
