//! Three machines in network namespaces of their own, each with a NATS server and a node; one of them is cut off.

use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockwork::request_id;
use lockwork_locks::namespace::{Network, NetworkError};
use lockwork_nats::local::ROUTES;
use tokio_postgres::Config;

use super::clients::{Patient, sql_at};
use super::harness::{LONG, alone, nats_is_here, under_load};

const MACHINES: usize = 3;

/// Processes that end with the test.
#[derive(Default)]
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// A configuration of a NATS server, and a file of users.
fn prepare(folder: &Path, addresses: &[Ipv4Addr]) {
    for (at, address) in addresses.iter().enumerate() {
        let routes: Vec<String> = addresses.iter().map(|address| format!("\"nats://{address}:6222\"")).collect();
        let text = format!(
            "server_name: nats-{at}\nlisten: \"{address}:4222\"\nmax_payload: 8MB\n\
             jetstream {{ store_dir: {:?}, sync_interval: always, max_memory_store: 64MB }}\n\
             cluster {{ name: lockwork, listen: \"{address}:6222\", routes: [{}], {ROUTES} }}\n\
             accounts {{\n  $SYS {{ users: [{{ user: system, password: \"secret\" }}] }}\n  \
             lockwork {{ jetstream: enabled, users: [{{ user: lockwork, password: \"secret\" }}] }}\n}}\n",
            folder.join(format!("nats-{at}")),
            routes.join(", ")
        );
        fs::write(folder.join(format!("nats-{at}.conf")), text).expect("a file");
    }
    let mut user = Command::new(env!("CARGO_BIN_EXE_lockwork"));
    user.arg("user").arg(folder.join("users")).args(["a", "--right", "define"]);
    let mut user = user.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it starts");
    user.stdin.take().expect("a pipe").write_all(b"secret-secret\n").expect("it reads");
    assert!(user.wait().expect("it ends").success());
}

fn node(folder: &Path, at: usize, addresses: &[Ipv4Addr]) -> Command {
    let servers: Vec<String> = addresses.iter().map(|address| format!("nats://{address}:4222")).collect();
    let mut node = Command::new(env!("CARGO_BIN_EXE_lockwork"));
    let address = format!("{}:5433", addresses[at]);
    node.args(["serve", "--init", "../../../examples/bank.sql", "--cluster", &servers.join(","), "--listen", &address]);
    node.arg("--users").arg(folder.join("users")).arg("--scratch").arg(folder.join(format!("node-{at}")));
    for variable in ["LOCKWORK_NATS_USER", "LOCKWORK_NATS_SYSTEM"] {
        let user = if variable.ends_with("USER") { "lockwork" } else { "system" };
        node.env(variable, format!("{user}:secret"));
    }
    node
}

/// Lets no packet of a machine through the switch, or all again.
fn cut(network: &Network, address: Ipv4Addr, cut: bool) {
    for way in ["from", "to"] {
        let done = network.switch.within(|| {
            let verb = if cut { "add" } else { "del" };
            let mut ip = Command::new("ip");
            ip.args(["rule", verb, "blackhole", way, &address.to_string(), "prio", "10"]).status()
        });
        assert!(done.expect("a namespace").expect("ip runs").success());
    }
}

#[test]
fn a_machine_that_is_cut_off_neither_answers_nor_loses_anything() {
    let _alone = alone();
    if !nats_is_here() {
        return;
    }
    let made = Network::new(MACHINES as u16 + 1).and_then(|network| network.forward().map(|()| network));
    let Some(network) = lockwork_testkit::or_skip(made, NetworkError::is_unavailable) else { return };
    let folder = tempfile::Builder::new().prefix("lockwork-test").tempdir().expect("a temporary folder");
    let addresses: Vec<Ipv4Addr> = network.machines[..MACHINES].iter().map(|machine| machine.near.address).collect();
    prepare(folder.path(), &addresses);
    let mut processes = Processes::default();
    let log = |name: String| fs::File::create(folder.path().join(name)).expect("a file");
    for (at, machine) in network.machines[..MACHINES].iter().enumerate() {
        let mut nats = Command::new(lockwork_nats::local::program());
        nats.arg("--config").arg(folder.path().join(format!("nats-{at}.conf")));
        let (out, error) = (log(format!("nats-{at}.txt")), Stdio::null());
        let started = machine.namespace.within(|| nats.stdin(Stdio::null()).stdout(error).stderr(out).spawn());
        processes.0.push(started.expect("a namespace").expect("it starts"));
    }
    let begin = Instant::now();
    let said = |at: usize| fs::read_to_string(folder.path().join(format!("node-{at}.txt"))).unwrap_or_default();
    let errors =
        |at: usize| fs::read_to_string(folder.path().join(format!("node-{at}-errors.txt"))).unwrap_or_default();
    let all = || (0..MACHINES).map(|at| said(at) + &errors(at)).collect::<Vec<_>>().join("--\n");
    // Servers need a moment until they have found each other; a node that comes too early says so and ends.
    let start = |at: usize| {
        let (out, error) = (log(format!("node-{at}.txt")), log(format!("node-{at}-errors.txt")));
        let mut node = node(folder.path(), at, &addresses);
        let node = node.stdin(Stdio::null()).stdout(out).stderr(error);
        let started = network.machines[at].namespace.within(|| node.spawn());
        started.expect("a namespace").expect("it starts")
    };
    for at in 0..MACHINES {
        let mut child = start(at);
        // Faults begin when all are there.
        while !said(at).contains("ready: ") {
            assert!(begin.elapsed() < LONG, "node {at} does not start: {}", all());
            std::thread::sleep(Duration::from_millis(100));
            if child.try_wait().expect("a child").is_some() {
                child = start(at);
            }
        }
        processes.0.push(child);
    }
    let leads = |at: usize| said(at).matches("leads: ").count();
    let leader = || (0..MACHINES).find(|at| leads(*at) > 0);
    while leader().is_none() {
        assert!(begin.elapsed() < LONG, "nobody leads: {}", all());
        std::thread::sleep(Duration::from_millis(100));
    }
    let config = |address: &Ipv4Addr| {
        let text = format!("host={address} port=5433 user=a password=secret-secret dbname=bank connect_timeout=2");
        text.parse::<Config>().expect("a configuration")
    };
    let nodes: Vec<Config> = addresses.iter().map(config).collect();
    let client = &network.machines[MACHINES].namespace;
    // A call in the middle of which its leader is cut off goes on at the next one.
    let hosts: Vec<String> = addresses.iter().map(|address| format!("{address}:5433")).collect();
    let url = format!("postgres://a:secret-secret@{}/bank?sslmode=disable", hosts.join(","));
    let called = client.within(|| {
        let connect = || sql_at(&url);
        let mut patient = Patient::new(&connect);
        let mut calls = 0;
        let mut call = || {
            calls += 1;
            let left = patient.ask(&format!("CALL transfer(1, 2, 1.00) REQUEST '{}'", request_id().unwrap()));
            assert_eq!(left, format!("{}.00", 1000 - calls), "each call is made once: {}", all());
        };
        call();
        let first = leader().expect("it was seen");
        // It is cut off while calls are made one after the other, so that one is under way.
        std::thread::scope(|scope| {
            let cuts = scope.spawn(|| cut(&network, addresses[first], true));
            while !cuts.is_finished() {
                call();
            }
        });
        call();
        cut(&network, addresses[first], false);
    });
    called.expect("a namespace");
    let ran = client.within(|| {
        under_load(&nodes, &all, |load| {
            let first = leader().expect("it was seen");
            for at in [first, (first + 1) % MACHINES, (first + 2) % MACHINES] {
                let start = Instant::now();
                cut(&network, addresses[at], true);
                std::thread::sleep(Duration::from_secs(6));
                load.go_on();
                let pause = load.pause(start).as_secs_f64();
                println!("machine {at} is cut off: {pause:.2} s without an answer");
                cut(&network, addresses[at], false);
                load.go_on();
                std::thread::sleep(Duration::from_secs(3));
            }
        });
    });
    ran.expect("a namespace");
}
