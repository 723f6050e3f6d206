//! NATS servers that are killed, stopped, slow, damaged and full.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockwork_testkit::nats::{alter, change_stream};

use super::harness::{Cluster, LONG, Load, fill, signal, under_load};

#[test]
fn any_server_and_a_majority_of_them_may_be_killed_or_stopped() {
    let Some(cluster) = Cluster::start() else { return };
    cluster.leader(0);
    under_load(&cluster.nodes(), &|| cluster.said(), |load| {
        for at in 0..3 {
            signal(cluster.server(at), "-KILL");
            load.go_on();
        }
        // `cluster up` starts them again after a second.
        std::thread::sleep(Duration::from_secs(3));
        for at in 0..3 {
            let server = cluster.server(at);
            signal(server, "-STOP");
            std::thread::sleep(Duration::from_secs(3));
            load.go_on();
            signal(server, "-CONT");
            load.go_on();
        }
        // Nobody is answered while most of them are away, and everybody afterwards.
        let majority = [cluster.server(0), cluster.server(1)];
        majority.iter().for_each(|server| signal(*server, "-STOP"));
        std::thread::sleep(Duration::from_secs(6));
        majority.iter().for_each(|server| signal(*server, "-CONT"));
        load.go_on();
        [0, 2].into_iter().for_each(|at| signal(cluster.server(at), "-KILL"));
        load.go_on();
    });
}

/// Alters bytes in the middle of every file of messages that a server has, while it does not run.
pub(crate) fn damage(cluster: &Cluster, at: usize) -> usize {
    let server = cluster.server(at);
    // Stopped, so that it sees nothing before it is killed.
    signal(server, "-STOP");
    let files = alter(&cluster.nats().join(format!("nats-{}", at + 1)));
    signal(server, "-KILL");
    files
}

#[test]
fn a_server_whose_messages_were_altered_does_no_harm() {
    let Some(cluster) = Cluster::start() else { return };
    cluster.leader(0);
    under_load(&cluster.nodes(), &|| cluster.said(), |load| {
        for at in 0..3 {
            assert!(damage(&cluster, at) > 0, "no messages at server {at}");
            load.go_on();
            // It gets from the others what it has lost.
            cluster.whole();
            load.go_on();
        }
        // Whoever begins now reads all of it.
        let (terms, leader) = cluster.until("somebody leads", |told| Some((told.terms, told.nodes[&told.leader])));
        signal(leader, "-KILL");
        cluster.leader(terms);
    });
}

/// What `lockwork cluster check` ends with, and says.
fn check(cluster: &Cluster) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockwork"));
    command.args(["cluster", "check", "--data"]).arg(cluster.nats().parent().expect("a folder"));
    let output = command.output().expect("it runs");
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn a_server_that_has_lost_older_messages_is_given_them_again() {
    let Some(cluster) = Cluster::start() else { return };
    cluster.leader(0);
    under_load(&cluster.nodes(), &|| cluster.said(), |load| {
        // More than servers keep of what they have agreed upon (8 MB), of which they would have them again.
        fill(&cluster.nodes(), 16 << 20);
        let kept = cluster.nats().join("nats-2/kept");
        fs::write(&kept, "").expect("a file");
        assert!(damage(&cluster, 1) > 0);
        load.go_on();
        cluster.whole();
        assert!(!kept.exists(), "nobody gave the server an empty store");
        load.go_on();
    });
    let until = |wanted: &dyn Fn(Option<i32>, &str) -> bool| {
        let start = Instant::now();
        loop {
            let (code, said) = check(&cluster);
            if wanted(code, &said) {
                return;
            }
            assert!(start.elapsed() < LONG, "{code:?}: {said}");
        }
    };
    let lines = |said: &str| said.lines().filter(|line| line.contains(" lockwork_lockwork ")).count();
    until(&|code, said| code == Some(0) && lines(said) == 3);
    let stopped = cluster.server(2);
    signal(stopped, "-STOP");
    until(&|code, said| code == Some(1) && said.contains("2 of 3 servers say what they have"));
    signal(stopped, "-CONT");
}

/// A process whose syncs take longer.
struct Slow(Child);

impl Slow {
    fn new(process: u32, log: &Path) -> Option<Self> {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-q", "-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:delay_exit=30000", "-o"]);
        strace.arg(log).args(["-p", &process.to_string()]);
        match strace.stdin(Stdio::null()).stderr(Stdio::null()).spawn() {
            Ok(child) => Some(Self(child)),
            Err(error) => {
                lockwork_testkit::skip(&format!("strace, which makes a disk slow: {error}"));
                None
            }
        }
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        // It lets go of the process when it is asked to end, not when it is killed.
        signal(self.0.id(), "-INT");
        drop(self.0.wait());
    }
}

#[test]
fn a_server_with_a_slow_disk_holds_nobody_up_for_long() {
    let Some(cluster) = Cluster::start() else { return };
    cluster.leader(0);
    let rate = |load: &Load<'_>| {
        let start = Instant::now();
        load.go_on();
        100.0 / start.elapsed().as_secs_f64()
    };
    under_load(&cluster.nodes(), &|| cluster.said(), |load| {
        println!("{:.0} calls/s", rate(load));
        for at in 0..3 {
            let log = cluster.nats().join("slow.txt");
            let Some(slow) = Slow::new(cluster.server(at), &log) else { return };
            std::thread::sleep(Duration::from_secs(2));
            println!("{:.0} calls/s while every sync of server {} takes 30 ms longer", rate(load), at + 1);
            load.go_on();
            drop(slow);
            let syncs = fs::read_to_string(&log).unwrap_or_default();
            assert!(syncs.contains("DELAYED"), "no sync of server {at} was slow: {syncs:.200}");
        }
    });
}

#[test]
fn a_full_stream_is_told_and_goes_on_when_there_is_room() {
    let Some(cluster) = Cluster::start() else { return };
    cluster.leader(0);
    under_load(&cluster.nodes(), &|| cluster.said(), |load| {
        // Not less than there is: the oldest messages would go.
        change_stream(&cluster.options(), |config, bytes| config.max_bytes = bytes as i64 + 300_000);
        // Whoever leads finds out and gives up; nobody can lead then, and each says why.
        cluster.until("it is full", |told| told.lines.iter().any(|line| line.contains("full")).then_some(()));
        std::thread::sleep(Duration::from_secs(4));
        change_stream(&cluster.options(), |config, _| config.max_bytes = -1);
        load.go_on();
    });
}
