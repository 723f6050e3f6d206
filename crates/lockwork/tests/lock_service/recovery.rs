//! A lockd that writes down in etcd who takes part, killed and started again while its locks are held, asked for and
//! given back; with clients, and with etcd.

use super::daemon::{Daemon, LONG, finish, spawn, text};
use lockwork::locks::{Locks, Options};
use lockwork_etcd::testing::Server;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Leases that outlast a start of lockd on a busy machine.
const OPTIONS: &str = "--locks 2000 --lease 10s";

fn options(etcd: &Server) -> String {
    format!("{OPTIONS} --etcd {}", etcd.address())
}

fn connect(daemon: &Daemon) -> Locks {
    Locks::connect_with(&daemon.address, Options { connect_timeout: LONG, ..Options::default() }).expect("it lets in")
}

/// Who is in the critical section of one lock: readers count up, a writer is -1; and the tokens that were seen.
#[derive(Default)]
struct Section {
    inside: AtomicI64,
    writer: AtomicU64,
}

impl Section {
    fn write(&self, token: u64) {
        assert_eq!(self.inside.swap(-1, Ordering::SeqCst), 0, "a writer is alone");
        assert!(self.writer.swap(token, Ordering::SeqCst) < token, "tokens grow");
        std::hint::spin_loop();
        assert_eq!(self.inside.swap(0, Ordering::SeqCst), -1, "a writer is alone");
    }

    fn read(&self, token: u64) {
        assert!(self.inside.fetch_add(1, Ordering::SeqCst) >= 0, "no reader beside a writer");
        assert!(token >= self.writer.load(Ordering::SeqCst), "tokens of readers are not smaller");
        assert!(self.inside.fetch_sub(1, Ordering::SeqCst) > 0, "no reader beside a writer");
    }
}

#[test]
fn a_decider_that_is_killed_again_and_again_under_load_goes_on_and_nobody_loses_a_lock() {
    let Some(etcd) = Server::start() else { return };
    let options = options(&etcd);
    let mut daemon = Daemon::start_at("127.0.0.1:0", &options);
    let machines: Vec<Locks> = (0..3).map(|_| connect(&daemon)).collect();
    // Held all the time: by a writer here, by readers of two machines there.
    let write = machines[0].exclusive(1000).acquire().expect("nobody has it");
    let reads = [0, 1, 2].map(|at| machines[at].shared(1001).acquire().expect("all may read"));
    let many: Vec<_> = (1100..1900).map(|lock| machines[1].exclusive(lock).acquire().expect("free")).collect();
    let sections: Vec<Section> = (0..8).map(|_| Section::default()).collect();
    let (over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for (number, locks) in machines.iter().enumerate().flat_map(|(at, locks)| [(at, locks), (at + 3, locks)]) {
            let (sections, over, rounds) = (&sections, &over, &rounds);
            scope.spawn(move || {
                let mut at = number;
                while !over.load(Ordering::Relaxed) {
                    at = (at * 5 + 3) % 64;
                    let (lock, writes) = (at % sections.len(), at % 3 == 0);
                    let acquire = if writes { locks.exclusive(lock as u64) } else { locks.shared(lock as u64) };
                    let guard = acquire.timeout(LONG).acquire().expect("it is granted, if late");
                    if writes {
                        sections[lock].write(guard.token())
                    } else {
                        sections[lock].read(guard.token())
                    }
                    assert!(!guard.is_lost());
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..4 {
            let before = rounds.load(Ordering::Relaxed);
            let begin = Instant::now();
            while rounds.load(Ordering::Relaxed) < before + 200 {
                assert!(begin.elapsed() < LONG, "locks are not granted any more");
                sleep(Duration::from_millis(1));
            }
            daemon.restart(&options);
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(!write.is_lost() && reads.iter().all(|read| !read.is_lost()) && many.iter().all(|one| !one.is_lost()));
    // What was held all the time excludes others after all this, and is given back as ever.
    let other = &machines[2];
    assert!(other.exclusive(1000).try_acquire().is_err() && other.exclusive(1001).try_acquire().is_err());
    assert!(other.shared(1001).try_acquire().is_ok());
    let [first, second, third] = reads;
    drop((first, second));
    assert!(other.exclusive(1001).timeout(Duration::from_millis(300)).acquire().is_err(), "one still reads");
    let token = write.token();
    drop((write, third, many));
    for lock in (1000..1002).chain(1100..1900) {
        let guard = other.exclusive(lock).timeout(LONG).acquire().expect("it was given back");
        assert!(guard.token() > token, "lock {lock}");
    }
}

#[test]
fn a_decider_and_clients_that_are_killed_together_leave_no_waiter_behind() {
    let Some(etcd) = Server::start() else { return };
    let options = format!("--locks 2000 --lease 4s --etcd {}", etcd.address());
    let mut daemon = Daemon::start_at("127.0.0.1:0", &options);
    // A writer; and a reader whose machine has the agent of a lock that another machine reads.
    let holders = ["5", "6 --shared"].map(|lock| spawn(daemon.lock(lock, "exec sleep 600")));
    daemon.until(5, 1, 0);
    daemon.until(6, 1, 0);
    let locks = connect(&daemon);
    let reads = locks.shared(6).acquire().expect("all may read");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| locks.exclusive(5).timeout(LONG).acquire().expect("the holder is dead"));
        let writes = scope.spawn(|| connect(&daemon).exclusive(6).timeout(LONG).acquire().map(|guard| guard.token()));
        daemon.until(5, 1, 1);
        daemon.until(6, 2, 1);
        for mut holder in holders {
            holder.kill().expect("it is killed");
            holder.wait().expect("it ends");
        }
        let address = daemon.address.clone();
        assert!(Command::new("kill").args(["-9", &daemon.id().to_string()]).status().expect("kill").success());
        let after = Daemon::start_at_when_free(&address, &options);
        drop(waits.join().expect("no panic"));
        sleep(Duration::from_millis(500));
        assert!(!writes.is_finished() && !reads.is_lost(), "the reader that lives keeps its lock");
        let before = reads.token();
        drop(reads);
        assert!(writes.join().expect("no panic").expect("nobody reads any more") > before);
        drop(after);
    });
    daemon.kill();
}

#[test]
fn while_etcd_is_away_locks_are_granted_and_who_joins_waits() {
    let Some(mut etcd) = Server::start() else { return };
    let mut daemon = Daemon::start_at("127.0.0.1:0", &options(&etcd));
    let locks = connect(&daemon);
    etcd.kill();
    for lock in 0..100 {
        drop(locks.exclusive(lock).acquire().expect("the decider decides"));
    }
    let refused = finish(spawn(daemon.lock("7 --timeout 1s", "true")));
    let why = text(&refused.stderr);
    assert!(refused.status.code() == Some(3) && why.contains("it cannot reach etcd"), "{:?} {why}", refused.status);
    std::thread::scope(|scope| {
        let joins = scope.spawn(|| connect(&daemon).exclusive(7).acquire().map(|guard| guard.token()));
        sleep(Duration::from_millis(300));
        assert!(!joins.is_finished());
        etcd.restart();
        assert!(joins.join().expect("no panic").is_ok());
    });
    // Without etcd no lockd begins: it does not know who holds.
    etcd.kill();
    let held = locks.exclusive(9).acquire().expect("the decider decides");
    let address = daemon.address.clone();
    daemon.kill();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockwork"));
    command.args(["lockd", "--udp", &address]).args(options(&etcd).split_whitespace());
    let none = command.output().expect("it ends");
    assert!(none.status.code() == Some(3) && text(&none.stderr).contains("etcd at"), "{}", text(&none.stderr));
    drop(held);
}
