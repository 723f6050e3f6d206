//! `lockwork lockd --xdp` and `--tc` with etcd, killed and started again under load: the daemon decides until all words
//! are back, and then the kernel does again.
//!
//! Tests whose names begin with `privileged` need root. Elsewhere they say that they are skipped.

use super::daemon::LONG;
use super::kernel::{Daemon, KEY, SERVICE};
use super::sections::under_load;
use crate::is_busy;
use lockwork_locks::client::{Locks, Options};
use lockwork_locks::namespace::{Network, NetworkError};
use lockwork_testkit::etcd::Server;
use lockwork_testkit::or_skip;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Where the daemon answers scrapers, in the namespace of the decider.
const METRICS: &str = "127.0.0.1:7401";

/// The sum of the samples that begin so.
fn counted(network: &Network, samples: &[&str]) -> u64 {
    let scrape = || {
        let mut stream = TcpStream::connect(METRICS).expect("it listens");
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("it reads");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("text");
        text
    };
    let text = network.switch.within(scrape).expect("it is there");
    let value = |line: &str| line.rsplit(' ').next().and_then(|value| value.parse::<u64>().ok());
    let wanted = |line: &&str| samples.iter().any(|sample| line.starts_with(&format!("lockwork_lockd_{sample} ")));
    text.lines().filter(wanted).filter_map(value).sum()
}

/// Waits until the programs have decided on so many packets more.
fn until_the_kernel_decides(network: &Network) {
    let decided =
        || counted(network, &["data_plane_events_total{cause=\"acquire\"}", "data_plane_events_total{cause=\"free\"}"]);
    let (before, begin) = (decided(), Instant::now());
    while decided() < before + 200 {
        assert!(begin.elapsed() < LONG, "the kernel does not decide");
        sleep(Duration::from_millis(20));
    }
}

fn goes_on(hook: &str, name: &str) {
    let Some(network) = or_skip(Network::new(3), NetworkError::is_unavailable) else { return };
    let etcd = network.switch.within(Server::start).expect("it is there");
    let Some(etcd) = etcd else { return };
    let ports = [1, 2, 3].map(Network::port).join(" ");
    // Leases that outlast a start of lockd on a busy machine.
    let kept = format!("--fresh --lease 8s --etcd {} --metrics {METRICS}", etcd.address());
    let start = || Daemon::start_with(&network, &format!("--udp {SERVICE} --locks 2000 {kept} --{hook} {ports}"));
    let Some(daemon) = start() else { return };
    assert!(daemon.ready.contains(&format!("({name} on port1, ")), "{}", daemon.ready);
    let mut daemon = Some(daemon);
    let connect = |at: usize| {
        let options = Options { connect_timeout: LONG, key: Some(KEY), ..Options::default() };
        let locks = network.machines[at].namespace.within(|| Locks::connect_with(SERVICE, options));
        locks.expect("it is there").expect("it lets in")
    };
    let machines: Vec<Locks> = (0..3).map(connect).collect();
    let write = machines[0].exclusive(1000).acquire().expect("nobody has it");
    let reads = [0, 1, 2].map(|at| machines[at].shared(1001).acquire().expect("all may read"));
    let before = write.token();
    let locks: Vec<u64> = (0..8).collect();
    under_load(&machines, &locks, |go_on| {
        for _ in 0..3 {
            go_on();
            until_the_kernel_decides(&network);
            let said = daemon.take().expect("it runs").kill();
            assert!(!said.contains("cannot"), "{said}");
            daemon = start();
            let ready = &daemon.as_ref().expect("as before").ready;
            let waits = ready.contains("(XDP on port1 when") || ready.contains("(TC ingress on port1 when");
            assert!(ready.contains("3 machines from before") && waits, "{ready}");
        }
        go_on();
    });
    until_quiet_the_kernel_decides(&network, &machines[1]);
    assert!(!write.is_lost() && reads.iter().all(|read| !read.is_lost()));
    // What was held all the time excludes others, whoever decides, and is given back as ever.
    let other = &machines[1];
    assert!(is_busy(other.exclusive(1000).try_acquire()) && is_busy(other.exclusive(1001).try_acquire()));
    drop((write, reads));
    for lock in 1000..1002 {
        let guard = other.exclusive(lock).timeout(LONG).acquire().expect("it was given back");
        assert!(guard.token() > before, "lock {lock}");
    }
    let said = daemon.take().expect("it runs").kill();
    let back = said.find("2 of them held").or_else(|| said.find("locks are back"));
    assert!(back.is_some() && said.contains(&format!(" {name} on port3\n")), "{said}");
}

/// The same with one task, whose requests alone are counted.
fn until_quiet_the_kernel_decides(network: &Network, locks: &Locks) {
    let decided = || counted(network, &["data_plane_events_total{cause=\"acquire\"}"]);
    let (before, begin) = (decided(), Instant::now());
    while decided() < before + 20 {
        assert!(begin.elapsed() < LONG, "the kernel does not decide");
        drop(locks.exclusive(1500).acquire().expect("nobody has it"));
    }
}

#[test]
fn privileged_native_xdp_decides_again_after_every_kill_and_nobody_loses_a_lock() {
    goes_on("xdp", "native XDP");
}

#[test]
fn privileged_tc_decides_again_after_every_kill_and_nobody_loses_a_lock() {
    goes_on("tc", "TC ingress");
}
