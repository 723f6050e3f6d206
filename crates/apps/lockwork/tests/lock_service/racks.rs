//! Several lockds that share the locks, each a process, with a real etcd: locks that move while clients use them.
//!
//! Tests whose names begin with `privileged` need root. Elsewhere they say that they are skipped.

use super::daemon::{Daemon, LONG, finish, spawn, text};
use super::kernel::{self, KEY, SERVICE};
use super::protocol::client;
use super::sections::under_load;
use crate::command::run;
use crate::is_busy;
use lockwork_locks::client::{ConnectError, LockError, LockName, Locks, Options};
use lockwork_locks::namespace::{Network, NetworkError};
use lockwork_testkit::etcd::Server;
use lockwork_testkit::or_skip;
use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::process::Output;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Of several parts, some of the same.
const LOCKS: [u64; 8] = [0, 64, 1, 17, 31, 63, 95, 99];

fn rack(etcd: &Server, name: &str, more: &str) -> (Daemon, String) {
    let options = format!("--locks 100 --lease 10s --rack {name} --etcd {} {more}", etcd.address());
    (Daemon::start_at("127.0.0.1:0", &format!("--fresh {options}")), options)
}

fn connect(daemon: &Daemon) -> Locks {
    Locks::connect_with(&daemon.address, Options { connect_timeout: LONG, ..Options::default() }).expect("it lets in")
}

fn racks(etcd: &Server, options: &str) -> Output {
    run(&format!("locks racks --etcd {} {options}", etcd.address()))
}

fn spread(etcd: &Server, names: &str) {
    let output = racks(etcd, &format!("--rebalance {names} --wait 30s"));
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// How many parts a rack decides on.
fn parts(etcd: &Server, name: &str) -> u64 {
    let output = racks(etcd, "--output json");
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
    let all = shown["racks"].as_array().expect("racks");
    all.iter().find(|rack| rack["rack"] == name).expect("it is there")["parts"].as_u64().expect("a number")
}

#[test]
fn racks_come_and_go_while_their_locks_are_used() {
    let Some(etcd) = Server::start() else { return };
    let (one, _) = rack(&etcd, "one", "");
    let (two, _) = rack(&etcd, "two", "");
    assert_eq!([parts(&etcd, "one"), parts(&etcd, "two")], [64, 0], "the first one has all");
    // Whichever rack they know first.
    let machines = [connect(&one), connect(&two), connect(&one)];
    let before = machines[1].exclusive(42).acquire().expect("nobody has it").token();
    let mut third = None;
    under_load(&machines, &LOCKS, |go_on| {
        go_on();
        spread(&etcd, "one,two");
        go_on();
        assert_eq!([parts(&etcd, "one"), parts(&etcd, "two")], [32, 32]);
        third = Some(rack(&etcd, "three", "").0);
        spread(&etcd, "one,three,two");
        go_on();
        spread(&etcd, "two,three");
        go_on();
        assert_eq!(parts(&etcd, "one"), 0);
    });
    // All its locks are elsewhere, so it may go.
    drop(one);
    under_load(&machines, &LOCKS, |go_on| go_on());
    for machine in &machines {
        let guard = machine.exclusive(42).timeout(LONG).acquire().expect("it is asked for where it is now");
        assert!(guard.token() > before, "tokens grow from rack to rack");
    }
    let shown = run(&format!("locks show 42 --server {}", two.address));
    assert!(text(&shown.stdout).contains("lock 42: "), "{}", text(&shown.stderr));
}

#[test]
fn a_lock_that_is_held_goes_when_it_is_released_and_others_wait_for_nobody() {
    let Some(etcd) = Server::start() else { return };
    let (one, _) = rack(&etcd, "one", "");
    let (two, _) = rack(&etcd, "two", "");
    let (machine, other) = (connect(&one), connect(&two));
    let held = machine.exclusive(17).acquire().expect("nobody has it");
    let reads = [&machine, &other].map(|machine| machine.shared(18).acquire().expect("all may read"));
    let late = racks(&etcd, "--rebalance two --wait 1s");
    let why = text(&late.stderr);
    assert!(late.status.code() == Some(3) && why.contains("2 parts have not arrived in 1 s"), "{why}");
    assert_eq!(parts(&etcd, "two"), 62);
    // Those of the same part, too.
    for lock in (0..100).filter(|lock| ![17, 18].contains(lock)) {
        for machine in [&machine, &other] {
            let asked = machine.exclusive(lock).timeout(LONG).acquire();
            assert!(asked.is_ok(), "lock {lock}: {asked:?}");
        }
    }
    assert!(!held.is_lost() && reads.iter().all(|read| !read.is_lost()));
    let token = held.token();
    std::thread::scope(|scope| {
        let waits = [&machine, &other]
            .map(|machine| scope.spawn(|| machine.exclusive(17).timeout(LONG).acquire().map(|guard| guard.token())));
        assert!(matches!(
            other.exclusive(17).timeout(Duration::from_millis(50)).acquire(),
            Err(LockError::TimedOut(LockName::Number(17)))
        ));
        drop(held);
        drop(reads);
        for wait in waits {
            assert!(wait.join().expect("no panic").expect("it is granted") > token);
        }
    });
    spread(&etcd, "two");
    assert_eq!(parts(&etcd, "two"), 64);
}

#[test]
fn racks_that_are_killed_while_locks_move_go_on() {
    let Some(etcd) = Server::start() else { return };
    let (mut one, of_one) = rack(&etcd, "one", "");
    let (mut two, of_two) = rack(&etcd, "two", "");
    let machines = [connect(&one), connect(&two)];
    // A lock that is held keeps its part moving.
    let held = machines[0].exclusive(5).acquire().expect("nobody has it");
    under_load(&machines, &LOCKS, |go_on| {
        for round in 0..3 {
            go_on();
            let names = ["two", "one,two", "two"][round];
            let begun = racks(&etcd, &format!("--rebalance {names} --wait 0s"));
            assert!(matches!(begun.status.code(), Some(0 | 3)), "{}", text(&begun.stderr));
            one.restart(&of_one);
            go_on();
            two.restart(&of_two);
            go_on();
        }
    });
    assert!(!held.is_lost() && is_busy(machines[1].exclusive(5).try_acquire()));
    drop(held);
    spread(&etcd, "two");
    let guard = machines[0].exclusive(5).timeout(LONG).acquire().expect("it was given back");
    assert!(is_busy(machines[1].exclusive(5).try_acquire()));
    drop(guard);
}

#[test]
fn who_waits_for_a_rack_that_is_away_waits_until_it_is_there() {
    let Some(etcd) = Server::start() else { return };
    let (one, _) = rack(&etcd, "one", "");
    let (mut two, of_two) = rack(&etcd, "two", "");
    spread(&etcd, "two");
    let options = Options { connect_timeout: Duration::from_millis(200), ..Options::default() };
    let machine = Locks::connect_with(&one.address, options).expect("it lets in");
    two.kill();
    let told = machine.exclusive(3).try_acquire();
    assert!(matches!(told, Err(LockError::Connect(ConnectError::NoAnswer { .. }))), "{told:?}");
    let late = machine.exclusive(3).timeout(Duration::from_millis(500)).acquire();
    assert!(matches!(late, Err(LockError::TimedOut(LockName::Number(3)))), "{late:?}");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| machine.exclusive(3).acquire());
        std::thread::sleep(Duration::from_secs(1));
        assert!(!waits.is_finished());
        two.restart(&of_two);
        drop(waits.join().expect("no panic").expect("the rack is there again"));
    });
}

#[test]
fn a_task_asks_the_rack_that_decides() {
    let Some(etcd) = Server::start() else { return };
    let (one, _) = rack(&etcd, "one", "");
    let (two, _) = rack(&etcd, "two", "");
    spread(&etcd, "two");
    let machine = connect(&one);
    let mut asks = pin!(machine.exclusive(3).acquire_async());
    let (mut context, begin) = (Context::from_waker(Waker::noop()), Instant::now());
    let guard = loop {
        if let Poll::Ready(asked) = asks.as_mut().poll(&mut context) {
            break asked.expect("nobody has it");
        }
        assert!(begin.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(is_busy(connect(&two).exclusive(3).try_acquire()));
    drop(guard);
    assert!(matches!(machine.exclusive(100).acquire(), Err(LockError::NoSuchLock { .. })));
    assert!(matches!(machine.exclusive_named("a").acquire(), Err(LockError::NoNames)));
    let locked = finish(spawn(one.lock("4", "echo $LOCKWORK_TOKEN")));
    assert!(locked.status.success() && text(&locked.stdout).trim().parse::<u64>().is_ok(), "{}", text(&locked.stderr));
}

#[test]
fn another_client_finds_its_lock_wherever_it_is() {
    const ROUNDS: u64 = 1000;
    let Some(mut other) = client() else { return };
    let Some(etcd) = Server::start() else { return };
    let (one, _) = rack(&etcd, "one", "");
    let (two, _) = rack(&etcd, "two", "");
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("racks-{}", std::process::id()));
    std::fs::write(&path, "0 0").expect("a file");
    let other = other.args(["count", &one.address, "7"]).arg(&path).arg(ROUNDS.to_string()).spawn().expect("it starts");
    let machine = connect(&two);
    std::thread::scope(|scope| {
        let counts = scope.spawn(|| {
            for _ in 0..ROUNDS {
                let guard = machine.exclusive(7).timeout(LONG).acquire().expect("it is granted");
                let text = std::fs::read_to_string(&path).expect("the file");
                let (number, newest) = text.split_once(' ').expect("two numbers");
                let (number, newest): (u64, u64) = (number.parse().unwrap(), newest.parse().unwrap());
                assert!(guard.token() > newest, "token {} after {newest}", guard.token());
                std::fs::write(&path, format!("{} {}", number + 1, guard.token())).expect("written");
            }
        });
        while !counts.is_finished() {
            spread(&etcd, "two");
            spread(&etcd, "one");
        }
    });
    let output = other.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let counted = std::fs::read_to_string(&path).expect("the file");
    assert!(counted.starts_with(&format!("{} ", 2 * ROUNDS)), "{counted}");
    std::fs::remove_file(&path).expect("it is there");
}

/// One rack decides in the kernel, which knows nothing of racks, the other in its process.
fn moves_to_and_from_the_kernel(hook: &str) {
    let Some(network) = or_skip(Network::new(2), NetworkError::is_unavailable) else { return };
    let etcd = network.switch.within(Server::start).expect("it is there");
    let Some(etcd) = etcd else { return };
    let common = format!("--fresh --lease 10s --locks 100 --etcd {}", etcd.address());
    let ports = [1, 2].map(Network::port).join(" ");
    let start = |options: &str| kernel::Daemon::start_with(&network, &format!("{common} {options}"));
    let Some(_kernel) = start(&format!("--rack kernel --udp {SERVICE} --{hook} {ports}")) else { return };
    let Some(_process) = start("--rack process --udp 10.76.0.1:7402") else { return };
    let spread = |names: &str| network.switch.within(|| spread(&etcd, names)).expect("it is there");
    spread("kernel,process");
    let connect = |at: usize, to: &str| {
        let options = Options { connect_timeout: LONG, key: Some(KEY), ..Options::default() };
        let met = || {
            let locks = Locks::connect_with(to, options).expect("it lets in");
            // It has a session with each rack then: they are begun in this namespace.
            (0..64).for_each(|lock| drop(locks.exclusive(lock).acquire().expect("it is granted")));
            locks
        };
        network.machines[at].namespace.within(met).expect("it is there")
    };
    let machines = [connect(0, SERVICE), connect(1, "10.76.0.1:7402")];
    under_load(&machines, &LOCKS, |go_on| {
        for names in ["kernel", "process,kernel", "kernel"] {
            go_on();
            spread(names);
            go_on();
        }
    });
    network.switch.within(|| assert_eq!(parts(&etcd, "kernel"), 64)).expect("it is there");
}

#[test]
fn privileged_parts_move_to_and_from_native_xdp() {
    moves_to_and_from_the_kernel("xdp");
}

#[test]
fn privileged_parts_move_to_and_from_tc() {
    moves_to_and_from_the_kernel("tc");
}

#[test]
fn racks_end_when_etcd_has_lost_what_it_knew_of_them() {
    let Some(mut etcd) = Server::start() else { return };
    let options = |name: &str| format!("--locks 100 --lease 2s --rack {name} --etcd {}", etcd.address());
    let [of_one, of_two] = ["one", "two"].map(options);
    let mut one = Daemon::start_at("127.0.0.1:0", &format!("--fresh {of_one}"));
    let mut two = Daemon::start_at("127.0.0.1:0", &format!("--fresh {of_two}"));
    spread(&etcd, "two");
    let held = connect(&two).exclusive(17).acquire().expect("nobody has it");
    one.kill();
    etcd.empty();
    // The first that begins is given all locks, those of the other one too.
    one.restart(&of_one);
    let machine = connect(&one);
    assert_eq!(two.ended(Duration::ZERO), Some(3), "it must not decide any more");
    assert!(held.is_lost());
    drop(machine.exclusive(17).timeout(LONG).acquire().expect("nobody else has it"));
}

#[test]
fn mistakes_with_racks_are_named() {
    let Some(etcd) = Server::start() else { return };
    let at = etcd.address();
    let (one, _) = rack(&etcd, "one", "");
    let key = kernel::key_file().display();
    for (command, why) in [
        (format!("lockd --udp 127.0.0.1:0 --etcd {at}"), "is that of racks: say which one this is, --rack NAME"),
        (format!("lockd --udp 127.0.0.1:0 --etcd {at} --rack one --locks 100"), "rack 'one' is at 127.0.0.1:"),
        (format!("lockd --udp 127.0.0.1:0 --etcd {at} --rack two --locks 7"), "racks have 100 locks, and this one 7"),
        (
            format!("LOCKWORK_KEY={key} lockd --udp 0.0.0.0:0 --etcd {at} --rack two --locks 100"),
            "give --udp the address",
        ),
        (format!("lockd --etcd {at} --rack a/b"), "letters, digits, dots, hyphens and underscores"),
        (format!("lockd --etcd {at} --rack two --overflow-locks"), "cannot be used with"),
        ("lockd --rack two".to_string(), "--etcd"),
        (format!("locks racks --etcd {at} --rebalance one,two"), "no rack is called 'two'; there are: one"),
        (format!("locks racks --etcd {at} --rebalance one,one"), "'one' stands there twice"),
        (format!("locks racks --etcd {at} --etcd-prefix other/"), "is no rack"),
    ] {
        let output = run(&command);
        let told = text(&output.stderr);
        assert!(output.status.code() == Some(2) && told.contains(why), "{command}: {told}");
    }
    drop(one);
    let alone = Daemon::start(&format!("--locks 10 --etcd {at} --etcd-prefix alone/"));
    let output = run(&format!("lockd --udp 127.0.0.1:0 --etcd {at} --etcd-prefix alone/ --rack one"));
    assert!(text(&output.stderr).contains("is that of a lockd without --rack"), "{}", text(&output.stderr));
    drop(alone);
}
