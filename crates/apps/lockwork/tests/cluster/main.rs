//! A cluster of real processes: nodes and NATS servers that are killed, stopped, cut off and damaged while clients
//! call. Every call that was acknowledged was made, once.

mod clients;
#[path = "../common/command.rs"]
#[allow(dead_code, reason = "others need more of it")]
mod command;
mod harness;
mod partition;
mod parts;
mod random;
mod servers;

use std::time::Instant;

use harness::{Cluster, signal, under_load};

/// A command ends with this code, and says this.
fn refused(line: &str, code: i32, wanted: &str) {
    let output = command::run(line);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(code) && told.contains(wanted), "{line}: {:?}, {told}", output.status);
}

#[test]
fn nodes_that_are_killed_or_stopped_lose_nothing() {
    let Some(cluster) = Cluster::start() else { return };
    let (mut terms, mut leader) = cluster.leader(0);
    under_load(&cluster.nodes(), &|| cluster.said(), |load| {
        // Nodes that lead: killed twice, and stopped for longer than the lease.
        for how in ["-KILL", "-STOP", "-KILL"] {
            let start = Instant::now();
            signal(leader, how);
            let stopped = leader;
            (terms, leader) = cluster.leader(terms);
            load.go_on();
            println!("{how} of the leader: {:.2} s without an answer", load.pause(start).as_secs_f64());
            signal(stopped, "-CONT");
            load.go_on();
        }
        // Nodes that follow.
        let (_, follower) = cluster.follower();
        signal(follower, "-STOP");
        load.go_on();
        std::thread::sleep(std::time::Duration::from_secs(2));
        signal(follower, "-CONT");
        load.go_on();
        signal(follower, "-KILL");
        load.go_on();
    });
    let taken = cluster.ports[0];
    let folder = tempfile::tempdir().expect("a folder");
    let new = folder.path().join("new");
    let line = format!("cluster up --nodes 1 --port {taken} --data {}", new.display());
    refused(&line, 3, &format!("node 1 cannot listen at 127.0.0.1:{taken}: Address already in use"));
    assert!(!new.exists(), "the folder is made after the ports");
}

#[test]
fn mistakes_with_clusters_are_named() {
    refused("cluster up --nodes 2", 2, "write 1, 3 or 5");
    refused("cluster up --port 65535", 2, "65535");
    refused("cluster up --partitions 2 --port 65533", 2, "65535");
    refused("cluster up --port 0", 2, "65535");
    refused("cluster up --engine none", 2, "none");
    refused("cluster up --init nosuch.sql", 2, "nosuch.sql: No such file");
    let folder = tempfile::tempdir().expect("a folder");
    let lock = std::fs::File::create(folder.path().join("lock")).expect("a file");
    lock.lock().expect("it is free");
    refused(&format!("cluster up --data {}", folder.path().display()), 2, "another `lockwork cluster up` has it");
    drop(lock);
    let layout = folder.path().join("layout");
    std::fs::write(&layout, "3 NATS servers, whole tables\n").expect("a file");
    let again = format!("cluster up --data {}", folder.path().display());
    refused(&format!("{again} --nodes 1"), 2, "is of 3 NATS servers, whole tables, and this would be 1 NATS servers");
    refused(&format!("{again} --partitions 2"), 2, "this would be 3 NATS servers, tables in 2 parts");
    // Of a version that wrote none.
    std::fs::remove_file(&layout).expect("it is there");
    std::fs::create_dir(folder.path().join("nats")).expect("a folder");
    for server in 1..4 {
        std::fs::write(folder.path().join(format!("nats/nats-{server}.conf")), "").expect("a file");
    }
    refused(&format!("{again} --nodes 1"), 2, "is of 3 NATS servers, and this would be 1 NATS servers");
    refused("serve --cluster 127.0.0.1:1", 2, "nats://HOST:PORT");
    refused("serve --cluster nats://a:b@127.0.0.1:1", 2, "LOCKWORK_NATS_USER");
    refused("serve --cluster nats://127.0.0.1:1 --replicas 2", 2, "1, 3 or 5");
    refused("serve --cluster nats://127.0.0.1:1 --cluster-name a.b", 2, "letters");
    refused("serve --cluster nats://127.0.0.1:1 --data x", 2, "--data");
    refused("serve --replicas 3", 2, "--cluster");
    refused("cluster up --partitions 0", 2, "1..=64");
    refused("serve --partition 1 --peers a:1", 2, "--cluster");
    let parts = "serve --cluster nats://127.0.0.1:1 --partition";
    refused(&format!("{parts} 1"), 2, "--peers");
    refused(&format!("{parts} 0 --peers a:1,b:1"), 2, "1 to 2 are possible");
    refused(&format!("{parts} 3 --peers a:1,b:1"), 2, "1 to 2 are possible");
    refused(&format!("{parts} 1 --peers a,b:1"), 2, "'a' is no address");
    refused(&format!("{parts} 1 --peers a:1,a:1"), 2, "twice");
    refused(&format!("{parts} 1 --peers 10.0.0.1:1,10.0.0.2:1"), 2, "LOCKWORK_PEER_SECRET");
    let here = format!("{parts} 1 --peers 127.0.0.1:1,127.0.0.1:2");
    refused(&format!("LOCKWORK_PEER_SECRET=short {here}"), 2, "16 characters or more");
    // Whoever reaches a node that listens for other machines could be one of the others.
    refused(&format!("{here} --peer-listen 0.0.0.0:1"), 2, "LOCKWORK_PEER_SECRET");
    refused("serve --peer-listen 127.0.0.1:1", 2, "--partition");
    refused("serve --sequencers 2", 2, "--partition");
    refused("cluster up --sequencers 2", 2, "--partitions");
    refused("cluster up --partitions 2 --sequencers 3", 2, "1 to 2 are possible");
    refused("cluster up --partitions 2 --engine serial", 2, "leave --engine away");
    refused(&format!("{here} --sequencers 3"), 2, "1 to 2 are possible");
    refused(&format!("{here} --sequencers 0"), 2, "1 to 2 are possible");
    refused("serve --peers 127.0.0.1:1", 2, "--partition");
    refused(&format!("{here} --engine serial"), 2, "--engine");
    refused(&format!("{parts} 1 --peers 127.0.0.1:1,127.0.0.1:2 --no-leader"), 2, "--no-leader");
    refused(&format!("{parts} 1 --peers 127.0.0.1:0,127.0.0.1:2"), 2, "no address");
    let many: Vec<String> = (1..=65).map(|port| format!("127.0.0.1:{port}")).collect();
    refused(&format!("{parts} 1 --peers {}", many.join(",")), 2, "64 are possible");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("an address");
    refused(&format!("{parts} 1 --peers {taken},127.0.0.1:2"), 3, "cannot listen for other nodes");
    refused("serve --listen 127.0.0.1:0 --cluster nats://127.0.0.1:1", 3, "connect");
    // Before the servers of the log are asked, and before the folder for checkpoints is made.
    let scratch = tempfile::tempdir().expect("a folder");
    let new = scratch.path().join("new");
    let line = format!("serve --listen {taken} --cluster nats://127.0.0.1:1 --scratch {}", new.display());
    refused(&line, 3, &format!("cannot listen at {taken}: Address already in use"));
    assert!(!new.exists());
    refused("cluster check", 2, "--cluster");
    refused("cluster check --cluster 127.0.0.1:1", 2, "nats://HOST:PORT");
    refused("cluster check --cluster nats://127.0.0.1:1 --cluster-name a.b", 2, "letters");
    refused("cluster check --cluster nats://127.0.0.1:1", 3, "connect");
    refused("cluster check --cluster nats://127.0.0.1:1 --data x", 2, "--data");
    refused("cluster check --data nosuch", 2, "nats-1.conf': No such file");
    let other = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(other.path().join("nats")).expect("a folder");
    std::fs::write(other.path().join("nats/nats-1.conf"), "port: 4222\n").expect("a file");
    refused(&format!("cluster check --data {}", other.path().display()), 2, "is of no server that");
}
