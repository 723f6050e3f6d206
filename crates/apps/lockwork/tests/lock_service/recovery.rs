//! A lockd that writes down in etcd who takes part, killed and started again while its locks are held, asked for and
//! given back; with clients, and with etcd.

use super::daemon::{Daemon, LONG, finish, signal, spawn, text};
use super::sections::under_load;
use crate::command::run;
use crate::{is_busy, is_late};
use lockwork_etcd::Etcd;
use lockwork_locks::client::{Locks, Options};
use lockwork_testkit::etcd::Server;
use serde_json::Value;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Leases that outlast a start of lockd on a busy machine.
const OPTIONS: &str = "--fresh --locks 2000 --lease 10s";

fn options(etcd: &Server) -> String {
    format!("{OPTIONS} --etcd {}", etcd.address())
}

fn connect(daemon: &Daemon) -> Locks {
    Locks::connect_with(&daemon.address, Options { connect_timeout: LONG, ..Options::default() }).expect("it lets in")
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
    let locks: Vec<u64> = (0..8).collect();
    under_load(&machines, &locks, |go_on| {
        for _ in 0..4 {
            go_on();
            daemon.restart(&options);
        }
        go_on();
    });
    assert!(!write.is_lost() && reads.iter().all(|read| !read.is_lost()) && many.iter().all(|one| !one.is_lost()));
    // What was held all the time excludes others after all this, and is given back as ever.
    let other = &machines[2];
    assert!(is_busy(other.exclusive(1000).try_acquire()) && is_busy(other.exclusive(1001).try_acquire()));
    assert!(other.shared(1001).try_acquire().is_ok());
    let [first, second, third] = reads;
    drop((first, second));
    assert!(is_late(other.exclusive(1001).timeout(Duration::from_millis(300)).acquire()), "one still reads");
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
    let options = format!("--fresh --locks 2000 --lease 4s --etcd {}", etcd.address());
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
    until_top(&daemon, |top| top["state"] == "serving" && top["etcd"]["reachable"] == true);
    assert!(top(&daemon, "text").contains("\netcd: reachable\n"), "{}", top(&daemon, "text"));
    etcd.kill();
    until_top(&daemon, |top| top["etcd"]["reachable"] == false && top["etcd"]["away_ms"].as_u64() > Some(0));
    let shown = top(&daemon, "text");
    assert!(shown.contains("\netcd: away for ") && shown.contains(" s, waiting for it: nothing\n"), "{shown}");
    for lock in 0..100 {
        drop(locks.exclusive(lock).acquire().expect("the decider decides"));
    }
    let refused = finish(spawn(daemon.lock("7 --timeout 1s", "true")));
    let why = text(&refused.stderr);
    assert!(refused.status.code() == Some(3) && why.contains("it cannot reach etcd"), "{:?} {why}", refused.status);
    std::thread::scope(|scope| {
        let joins = scope.spawn(|| connect(&daemon).exclusive(7).acquire().map(|guard| guard.token()));
        // The command that was refused is one of those that join, until its lease is over.
        let (other, names) = (&locks, |top: &Value| top["etcd"]["names_waiting"] == 1);
        let named = scope.spawn(|| other.exclusive_named("new").timeout(LONG).acquire().map(|guard| guard.token()));
        until_top(&daemon, |top| top["etcd"]["joins_waiting"] == 2 && names(top));
        let shown = top(&daemon, "text");
        assert!(shown.contains(" that join, 1 name\n") && !shown.contains("not answered"), "{shown}");
        assert!(!joins.is_finished() && !named.is_finished());
        etcd.restart();
        assert!(named.join().expect("no panic").is_ok());
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

fn top(daemon: &Daemon, form: &str) -> String {
    let output = run(&format!("locks top --server {} --interval 10ms --output {form}", daemon.address));
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Waits until the service says of itself what is wanted.
fn until_top(daemon: &Daemon, wanted: impl Fn(&Value) -> bool) {
    let begin = Instant::now();
    loop {
        let top: Value = serde_json::from_str(&top(daemon, "json")).expect("one object");
        if wanted(&top) {
            return;
        }
        assert!(begin.elapsed() < LONG, "{top}");
        sleep(Duration::from_millis(20));
    }
}

/// A client that stands still while lockd is started anew is waited for, and people see that.
#[test]
fn a_client_that_stands_still_is_waited_for_and_goes_on() {
    let Some(etcd) = Server::start() else { return };
    let options = options(&etcd);
    let mut daemon = Daemon::start_at("127.0.0.1:0", &options);
    let locks = connect(&daemon);
    let write = locks.exclusive(8).acquire().expect("nobody has it");
    let mut holder = daemon.lock("5", "read line");
    holder.stdin(Stdio::piped());
    let mut holder = spawn(holder);
    daemon.until(5, 1, 0);
    signal("-STOP", &holder);
    daemon.restart(&options);
    until_top(&daemon, |top| top["state"] == "recovering" && top["machines_recovering"] == 1);
    let shown = top(&daemon, "text");
    assert!(shown.contains(": recovering: 1 of 2 machines still to report, 2000 locks"), "{shown}");
    // Who has it may be the one that has not answered.
    assert_eq!(daemon.show(5)["state"], "recovering");
    let five = text(&run(&format!("locks show 5 --server {}", daemon.address)).stdout);
    assert!(five.starts_with("lock 5: not known yet, the service is recovering"), "{five}");
    assert!(is_late(locks.exclusive(5).timeout(Duration::from_millis(300)).acquire()));
    // The word of this one is back.
    assert_eq!(daemon.show(8)["holders"].as_array().map(Vec::len), Some(1));
    signal("-CONT", &holder);
    until_top(&daemon, |top| top["state"] == "serving" && top["machines_recovering"] == 0);
    daemon.until(5, 1, 0);
    assert!(!write.is_lost() && is_busy(locks.exclusive(5).try_acquire()));
    drop(holder.stdin.take());
    assert_eq!(finish(holder).status.code(), Some(1), "the script has read nothing, and its lock was not lost");
    assert!(locks.exclusive(5).timeout(LONG).acquire().is_ok());
}

/// What is in etcd tells only of those who were written down there.
#[test]
fn the_first_lockd_with_an_etcd_waits_for_leases_of_before() {
    let Some(etcd) = Server::start() else { return };
    let mut before = Daemon::start("--locks 2000 --lease 3s");
    let guard = connect(&before).exclusive(5).acquire().expect("nobody has it");
    before.kill();
    let options = format!("--locks 2000 --lease 3s --etcd {}", etcd.address());
    let after = Daemon::start_at(&before.address, &options);
    let next = connect(&after).exclusive(5).timeout(LONG).acquire().expect("the lease is over");
    assert!(guard.is_lost() && next.token() > guard.token());
}

/// Who joined before etcd lost everything is not written down any more, so nobody goes on, whoever joined since.
#[test]
fn after_etcd_was_emptied_no_lockd_takes_what_is_there_for_all() {
    let Some(mut etcd) = Server::start() else { return };
    let options = format!("--locks 2000 --lease 3s --etcd {}", etcd.address());
    let mut daemon = Daemon::start_at("127.0.0.1:0", &format!("--fresh {options}"));
    let guard = connect(&daemon).exclusive(5).acquire().expect("nobody has it");
    etcd.empty();
    let joined = connect(&daemon);
    assert!(is_late(joined.exclusive(5).timeout(Duration::from_millis(100)).acquire()));
    daemon.restart(&options);
    let next = joined.exclusive(5).timeout(LONG).acquire();
    // It may have been granted, in a new session.
    match &next {
        Ok(next) => assert!(guard.is_lost() && next.token() > guard.token()),
        Err(error) => assert!(error.is_retryable(), "{error:?}"),
    }
    drop(next);
    let next = connect(&daemon).exclusive(5).timeout(LONG).acquire().expect("the lease is over");
    assert!(guard.is_lost() && next.token() > guard.token());
}

/// Two that write down their machines in one place would strike out each other's.
#[test]
fn a_second_lockd_with_the_same_prefix_is_refused() {
    let Some(etcd) = Server::start() else { return };
    let options = options(&etcd);
    let daemon = Daemon::start_at("127.0.0.1:0", &options);
    let locks = connect(&daemon);
    let guard = locks.exclusive(5).acquire().expect("nobody has it");
    let mut second = Command::new("timeout");
    second.args(["30", env!("CARGO_BIN_EXE_lockwork"), "lockd", "--udp", "127.0.0.1:0"]);
    let second = second.args(options.split_whitespace()).output().expect("it ends");
    let why = text(&second.stderr);
    let told = format!("--etcd-prefix lockwork/ is that of a lockd at {}: end it", daemon.address);
    assert!(second.status.code() == Some(3) && why.contains(&told), "{:?} {why}", second.status);
    let other = Daemon::start_at("127.0.0.1:0", &format!("{options} --etcd-prefix other/"));
    assert!(connect(&other).exclusive(5).acquire().is_ok() && !guard.is_lost());
}

#[test]
fn a_lockd_in_whose_place_another_one_has_begun_ends() {
    let Some(etcd) = Server::start() else { return };
    let mut daemon = Daemon::start_at("127.0.0.1:0", &options(&etcd));
    let held = connect(&daemon).exclusive(17).acquire().expect("nobody has it");
    assert_eq!(daemon.ended(Duration::from_secs(1)), None, "it is the newest");
    // As one does that has the same address on another host.
    let begins = Etcd::connect(&[etcd.address()], "lockwork/");
    begins.increment("era", LONG).expect("it answers");
    assert_eq!(daemon.ended(LONG), Some(3));
    assert!(held.wait_lost(Duration::from_secs(5)), "its lease of 10 s is no reason to trust it");
}
