//! What acquire and release of a free lock cost over UDP on this host's loopback: a daemon and one client in one
//! process.
//!
//! Arguments: for how many microseconds daemon and client look for packets without sleeping. Prints quantiles of both,
//! and pairs a second. Loopback is no network: it has no wire and no interrupt, and two cores share everything.
//! `lockwork-bench lock-service` compares systems.

use lockwork_locks::client::{Locks, Options};
use lockwork_locks::lockd::{self, Lockd};
use lockwork_locks::plane::InProcess;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const LOCKS: u64 = 1_000_000;
const PAIRS: u64 = 50_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let us = |at: usize| std::env::args().nth(at).and_then(|text| text.parse().ok()).map(Duration::from_micros);
    let mut options = lockd::Options::new("127.0.0.1:0".parse()?);
    options.fresh = true;
    options.spin = us(1).unwrap_or(options.spin);
    let mut lockd = Lockd::bind(&options, InProcess::new(LOCKS as usize)?)?;
    let address = lockd.address()?.to_string();
    let stop = AtomicBool::new(false);
    let report = std::thread::scope(|scope| {
        scope.spawn(|| lockd.run(&stop));
        let mut client = Options::default();
        client.spin = us(2).unwrap_or(client.spin);
        let measured = measure(&Locks::connect_with(&address, client)?);
        stop.store(true, Ordering::Relaxed);
        measured
    })?;
    print!("{report}");
    Ok(())
}

fn measure(locks: &Locks) -> Result<String, Box<dyn std::error::Error>> {
    let mut report = String::new();
    let mut acquires = Vec::with_capacity(PAIRS as usize);
    let mut releases = Vec::with_capacity(PAIRS as usize);
    let began = Instant::now();
    for pair in 0..PAIRS {
        let lock = pair.wrapping_mul(0x9e37_79b9_7f4a_7c15) % LOCKS;
        let start = Instant::now();
        let guard = locks.exclusive(lock).acquire()?;
        let held = Instant::now();
        drop(guard);
        acquires.push(held - start);
        releases.push(held.elapsed());
    }
    let seconds = began.elapsed().as_secs_f64();
    for (name, mut times) in [("acquire", acquires), ("release", releases)] {
        times.sort_unstable();
        let quantile = |share: f64| times[(share * (times.len() - 1) as f64) as usize].as_nanos() as f64 / 1e3;
        let (p50, p99, most) = (quantile(0.5), quantile(0.99), quantile(1.0));
        writeln!(report, "{name}  p50 {p50:.1} us  p99 {p99:.1} us  max {most:.1} us")?;
    }
    writeln!(report, "{:.0} pairs a second by one thread", PAIRS as f64 / seconds)?;
    Ok(report)
}
