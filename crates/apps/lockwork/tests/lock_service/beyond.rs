//! Locks beyond those that the decider has words for: kept by processes that come, go and are killed.

use super::daemon::{Daemon, LONG, finish, spawn, text};
use super::sections::under_load;
use crate::command::run;
use crate::is_busy;
use lockwork_locks::client::{LockError, Locks, Options};
use lockwork_testkit::etcd::Server;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A lock of every size, the first and the last included; and those that the decider has.
const LOCKS: [u64; 8] = [3, 200, 201, 264, 1 << 20, 1 << 32 | 5, 1 << 61, (1 << 62) - 1];

fn connect(daemon: &Daemon) -> Locks {
    Locks::connect_with(&daemon.address, Options { connect_timeout: LONG, ..Options::default() }).expect("it lets in")
}

/// A process that manages. Dropped, it is killed.
struct Manager(Child);

impl Manager {
    fn start(daemon: &Daemon) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockwork"));
        command.args(["locks", "manage", "--server", &daemon.address]).stdout(Stdio::piped());
        let mut process = command.spawn().expect("it starts");
        let mut ready = String::new();
        BufReader::new(process.stdout.take().expect("it is piped")).read_line(&mut ready).expect("a line");
        assert!(ready.starts_with("locks manage: ready, machine "), "'{ready}'");
        Self(process)
    }

    /// Ends in good order.
    fn stop(mut self) {
        let id = self.0.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().expect("kill is there").success());
        assert_eq!(self.0.wait().expect("it ends").code(), Some(0));
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Which machine keeps a lock.
fn manager(daemon: &Daemon, lock: u64) -> u64 {
    let output = run(&format!("locks show {lock} --server {} --output json", daemon.address));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
    shown["agent"].as_u64().unwrap_or_else(|| panic!("no manager: {shown}"))
}

#[test]
fn managers_that_come_go_and_are_killed_lose_nothing() {
    let daemon = Daemon::start("--locks 100 --names 100 --overflow-locks --lease 1s");
    let machines: Vec<Locks> = (0..3).map(|_| connect(&daemon)).collect();
    assert!(machines[0].is_beyond(200) && !machines[0].is_beyond(199));
    // Held all the time: by a writer, and by readers of two machines.
    let write = machines[0].exclusive(1000).acquire().expect("nobody has it");
    let reads = [0, 1].map(|at| machines[at].shared(1001).acquire().expect("all may read"));
    assert_eq!(manager(&daemon, 1000), 0, "lockd itself keeps what nobody else does");
    let mut last = None;
    under_load(&machines, &LOCKS, |go_on| {
        go_on();
        let first = Manager::start(&daemon);
        go_on();
        let second = Manager::start(&daemon);
        go_on();
        assert_ne!(manager(&daemon, 1000), 0);
        drop(first);
        go_on();
        let third = Manager::start(&daemon);
        go_on();
        second.stop();
        go_on();
        last = Some(third);
    });
    let other = &machines[2];
    assert!(!write.is_lost() && reads.iter().all(|read| !read.is_lost()));
    assert!(is_busy(other.exclusive(1000).try_acquire()) && is_busy(other.exclusive(1001).try_acquire()));
    // A writer becomes a reader, of a lock that is kept elsewhere.
    let mut write = write;
    let token = write.token();
    write.downgrade().expect("it writes");
    drop(other.shared(1000).timeout(LONG).acquire().expect("they read together"));
    assert!(is_busy(other.exclusive(1000).try_acquire()));
    drop((write, reads));
    for lock in [1000, 1001] {
        let guard = other.exclusive(lock).timeout(LONG).acquire().expect("it was given back");
        assert!(guard.token() > token);
    }
    drop(last);
}

#[test]
fn a_decider_that_is_killed_with_its_managers_goes_on() {
    let Some(etcd) = Server::start() else { return };
    let options = format!("--fresh --locks 100 --names 0 --overflow-locks --lease 10s --etcd {}", etcd.address());
    let mut daemon = Daemon::start_at("127.0.0.1:0", &options);
    let machines: Vec<Locks> = (0..3).map(|_| connect(&daemon)).collect();
    let managers = [Manager::start(&daemon), Manager::start(&daemon)];
    let write = machines[0].exclusive(1000).acquire().expect("nobody has it");
    under_load(&machines, &LOCKS, |go_on| {
        for _ in 0..3 {
            go_on();
            daemon.restart(&options);
        }
        go_on();
    });
    assert_ne!(manager(&daemon, 1000), 0, "who manages is known after a new start");
    assert!(!write.is_lost() && is_busy(machines[1].exclusive(1000).try_acquire()));
    drop(write);
    assert!(machines[1].exclusive(1000).timeout(LONG).acquire().is_ok());
    drop(managers);
}

#[test]
fn who_waits_for_a_writer_that_is_killed_is_granted_after_its_lease() {
    let daemon = Daemon::start("--locks 100 --overflow-locks --lease 1s");
    let manager = Manager::start(&daemon);
    let mut holder = spawn(daemon.lock("5000", "exec sleep 600"));
    daemon.until(5000, 1, 0);
    let locks = connect(&daemon);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| locks.exclusive(5000).timeout(LONG).acquire().map(|guard| guard.token()));
        daemon.until(5000, 1, 1);
        // Its manager dies with it.
        drop(manager);
        holder.kill().expect("it is killed");
        holder.wait().expect("it ends");
        assert!(waits.join().expect("no panic").is_ok());
    });
}

#[test]
fn numbers_that_are_no_locks_are_refused_and_say_which_are() {
    let daemon = Daemon::start("--locks 100 --names 50 --overflow-locks");
    for lock in ["100", "149", "4611686018427387904"] {
        let refused = finish(spawn(daemon.lock(lock, "true")));
        let why = text(&refused.stderr);
        let right = format!("there is no lock {lock}: the service has 100, numbered from 0, and those from 150");
        assert!(refused.status.code() == Some(2) && why.contains(&right), "{:?} {why}", refused.status);
    }
    let without = Daemon::start("--locks 100");
    let refused = run(&format!("locks manage --server {}", without.address));
    let why = text(&refused.stderr);
    assert!(refused.status.code() == Some(2) && why.contains("with --overflow-locks"), "{why}");
    let locks = connect(&without);
    assert!(!locks.is_beyond(1 << 40));
    let refused = locks.exclusive(1 << 40).timeout(Duration::from_secs(1)).acquire();
    let is_right =
        |error: &LockError| matches!(error, LockError::NoSuchLock { lock, locks: 100, .. } if *lock == 1 << 40);
    assert!(refused.as_ref().is_err_and(is_right), "{refused:?}");
}
