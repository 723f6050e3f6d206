//! Faults of all kinds, one after the other, as a seed has them.

use std::time::{Duration, Instant};

use lockwork_random::Random;

use super::harness::{Cluster, Load, parts_under_load, signal, under_load};
use super::servers::damage;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable} is '{text}'")))
}

/// For `CLUSTER_SECONDS`, 90 unless told otherwise, by the seed `CLUSTER_SEED`.
#[test]
fn random_faults_lose_nothing() {
    let Some(cluster) = Cluster::start() else { return };
    let (seconds, seed) = (number("CLUSTER_SECONDS", 90), number("CLUSTER_SEED", 1));
    cluster.leader(0);
    let told = || format!("seed {seed}\n{}", cluster.said());
    under_load(&cluster.nodes(), &told, |load| faults(&cluster, load, seconds, seed));
}

/// The same to nodes that have parts, of which two take calls.
#[test]
fn random_faults_to_parts_lose_nothing() {
    let Some(cluster) = Cluster::start_with(&["--partitions", "3", "--sequencers", "2"], 3) else { return };
    let (seconds, seed) = (number("CLUSTER_SECONDS", 90), number("CLUSTER_SEED", 2));
    cluster.leader(0);
    let told = || format!("seed {seed}\n{}", cluster.said());
    parts_under_load(&cluster.nodes(), &told, |load| faults(&cluster, load, seconds, seed));
}

fn faults(cluster: &Cluster, load: &Load<'_>, seconds: u64, seed: u64) {
    let (begin, mut random) = (Instant::now(), Random(seed));
    while begin.elapsed() < Duration::from_secs(seconds) {
        let at = random.below(3) as usize;
        let wait = Duration::from_millis(random.below(4000));
        let leader = cluster.until("a leader", |told| told.nodes.get(&told.leader).copied());
        let (_, follower) = cluster.follower();
        let what = random.below(8);
        let start = Instant::now();
        match what {
            0 => signal(leader, "-KILL"),
            1 => signal(follower, "-KILL"),
            2 | 3 => {
                let node = if what == 2 { leader } else { follower };
                signal(node, "-STOP");
                std::thread::sleep(wait);
                signal(node, "-CONT");
            }
            4 => signal(cluster.server(at), "-KILL"),
            5 => {
                let server = cluster.server(at);
                signal(server, "-STOP");
                std::thread::sleep(wait);
                signal(server, "-CONT");
            }
            6 => {
                let two = [cluster.server(at), cluster.server((at + 1) % 3)];
                let how = if wait.as_millis().is_multiple_of(2) { "-KILL" } else { "-STOP" };
                two.iter().for_each(|server| signal(*server, how));
                std::thread::sleep(wait);
                two.iter().for_each(|server| signal(*server, "-CONT"));
            }
            _ => {
                damage(cluster, at);
                load.go_on();
                // Two damaged at the same time would be a majority.
                cluster.whole();
            }
        }
        load.go_on();
        let (pause, at) = (load.pause(start).as_secs_f64(), begin.elapsed().as_secs_f64());
        println!("{at:.1} s: fault {what}, {pause:.2} s without an answer");
        std::thread::sleep(Duration::from_millis(500));
    }
}
