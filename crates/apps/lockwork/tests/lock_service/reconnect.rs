//! `lockwork lock` while lockd is started anew without etcd: who waits goes on waiting, and who holds loses the lock.

use super::daemon::{Daemon, finish, signal, spawn, text};
use std::time::{Duration, Instant};

const OPTIONS: &str = "--locks 50 --names 20 --lease 1s";

#[test]
fn waiters_wait_on_when_lockd_is_started_anew() {
    let mut daemon = Daemon::start(OPTIONS);
    let holder = spawn(daemon.lock("orders/17", "exec sleep 60"));
    daemon.until(50, 1, 0);
    let options = ["", "--timeout 60s", "--shared", "--shared --timeout 60s", ""];
    let waits: Vec<_> =
        options.iter().map(|more| spawn(daemon.lock(&format!("orders/17 {more}"), "echo got it"))).collect();
    daemon.until(50, 1, waits.len());
    daemon.kill();
    // Longer than a lease, so that sessions have ended when lockd is there again.
    std::thread::sleep(Duration::from_millis(1200));
    daemon.restart(OPTIONS);
    let lost = finish(holder);
    assert_eq!(lost.status.code(), Some(4), "{}", text(&lost.stderr));
    for (options, waiter) in options.iter().zip(waits) {
        let output = finish(waiter);
        let error = text(&output.stderr);
        assert!(output.status.success() && text(&output.stdout) == "got it\n", "{options}: {error}");
        assert!(error.contains("ended while lock 'orders/17' was waited for; connecting again"), "{options}: {error}");
    }
}

#[test]
fn waiters_wait_on_when_lockd_says_that_their_session_is_gone() {
    let mut daemon = Daemon::start("--locks 50 --lease 4s");
    let holder = spawn(daemon.lock("5", "exec sleep 60"));
    daemon.until(5, 1, 0);
    let waits = [spawn(daemon.lock("5", "echo got it")), spawn(daemon.lock("5 --timeout 60s", "echo got it"))];
    daemon.until(5, 1, 2);
    // Within the lease: lockd answers their renewals, and does not know them.
    daemon.restart("--locks 50 --lease 1s");
    assert_eq!(finish(holder).status.code(), Some(4));
    for waiter in waits {
        let output = finish(waiter);
        assert!(output.status.success() && text(&output.stdout) == "got it\n", "{}", text(&output.stderr));
    }
}

#[test]
fn a_timeout_counts_from_the_start_and_not_from_the_new_session() {
    let timeout = Duration::from_secs(8);
    let mut daemon = Daemon::start(OPTIONS);
    let holder = spawn(daemon.lock("5", "exec sleep 60"));
    daemon.until(5, 1, 0);
    let start = Instant::now();
    let waits = spawn(daemon.lock("5 --timeout 8s", "true"));
    daemon.until(5, 1, 1);
    signal("-STOP", &waits);
    daemon.restart(OPTIONS);
    assert_eq!(finish(holder).status.code(), Some(4));
    let next = spawn(daemon.lock("5", "exec sleep 60"));
    daemon.until(5, 1, 0);
    std::thread::sleep(Duration::from_secs(1));
    signal("-CONT", &waits);
    let continued = start.elapsed();
    let output = finish(waits);
    let (elapsed, error) = (start.elapsed(), text(&output.stderr));
    assert!(elapsed >= timeout && elapsed < continued + timeout, "{elapsed:?}, went on after {continued:?}: {error}");
    assert!(output.status.code() == Some(1) && error.contains("lock 5 was not granted in time"), "{error}");
    assert!(error.contains("connecting again"), "{error}");
    signal("-TERM", &next);
    finish(next);
}

#[test]
fn a_waiter_with_a_timeout_cannot_connect_when_lockd_stays_away() {
    let mut daemon = Daemon::start(OPTIONS);
    let holder = spawn(daemon.lock("5", "exec sleep 60"));
    daemon.until(5, 1, 0);
    let start = Instant::now();
    let [timed, waits] = ["5 --timeout 7s", "5"].map(|options| spawn(daemon.lock(options, "true")));
    daemon.until(5, 1, 2);
    daemon.kill();
    assert_eq!(finish(holder).status.code(), Some(4));
    let output = finish(timed);
    let error = text(&output.stderr);
    assert!(start.elapsed() >= Duration::from_secs(7) && output.status.code() == Some(3), "{error}");
    assert!(error.contains("lock 5: no answer from"), "{error}");
    // Without a timeout it waits on, until it is interrupted.
    signal("-INT", &waits);
    assert_eq!(finish(waits).status.code(), Some(128 + 2));
}
