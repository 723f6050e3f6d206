//! What clients do: take a lock, be seen in its critical section, give it back; each a thread with a connection of its
//! own.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockwork_lock_bench::checker::Checker;
use lockwork_lock_bench::histogram::Histogram;
use lockwork_lock_bench::interrupted;
use lockwork_locking::LockMode;
use lockwork_workload::random::Random;
use lockwork_workload::zipf::Chooser;

use super::{Failure, Peer};

/// One of so many critical sections lets others run while it lasts, so that whoever is let in too is seen.
const STAYS: u64 = 16;

/// What all clients of one measurement have in common.
pub(super) struct Load<'a> {
    /// Which locks.
    pub(super) chooser: &'a Chooser,
    pub(super) locks: u64,
    pub(super) seed: u64,
    pub(super) measured: Duration,
}

/// What they did.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    /// Locks taken and given back.
    pub(super) pairs: u64,
    pub(super) seconds: f64,
    /// From asking to the grant.
    pub(super) grant: Histogram,
    /// From asking until the lock was given back.
    pub(super) pair: Histogram,
    /// Whether exclusion and growing tokens were checked, and right.
    pub(super) verified: bool,
}

impl Measured {
    /// Pairs a second.
    pub(super) fn rate(&self) -> f64 {
        self.pairs as f64 / self.seconds
    }
}

/// Shared by the clients of one measurement.
struct Shared {
    checker: Checker,
    /// Tokens of those who have none: exclusion makes them grow.
    token: AtomicU64,
    measuring: AtomicBool,
    stop: AtomicBool,
}

/// Lets all clients work: a fifth of the time before the clock counts, then as long as is asked for.
///
/// # Errors
/// A client fails, two are in one critical section, or a token does not grow; somebody wants it to end.
pub(super) fn drive(clients: Vec<Box<dyn Peer>>, load: &Load) -> Result<Measured, Failure> {
    let shared = Shared {
        checker: Checker::new(load.locks),
        token: AtomicU64::new(0),
        measuring: AtomicBool::new(false),
        stop: AtomicBool::new(false),
    };
    let mut all = Measured::default();
    let crowded = clients.len() > 1;
    std::thread::scope(|scope| {
        let threads: Vec<_> = clients
            .into_iter()
            .enumerate()
            .map(|(number, mut client)| {
                let (shared, random) = (&shared, Random::stream(load.seed, number as u64));
                scope.spawn(move || {
                    let done = work(&mut *client, random, load, shared, crowded);
                    if done.is_err() {
                        shared.stop.store(true, Ordering::Relaxed);
                    }
                    done
                })
            })
            .collect();
        wait(load.measured / 5, &shared.stop);
        shared.measuring.store(true, Ordering::Relaxed);
        let began = Instant::now();
        wait(load.measured, &shared.stop);
        shared.measuring.store(false, Ordering::Relaxed);
        all.seconds = began.elapsed().as_secs_f64();
        shared.stop.store(true, Ordering::Relaxed);
        for thread in threads {
            let done = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let (grant, pair) = done.map_err(Failure::Check)?;
            all.grant.add(&grant);
            all.pair.add(&pair);
        }
        Ok::<(), Failure>(())
    })?;
    all.pairs = all.pair.count();
    match shared.checker.occupied() {
        _ if interrupted() => Err(Failure::Interrupted),
        0 if all.pairs == 0 => Err(Failure::Check(format!("nothing was granted in {:?}", load.measured))),
        0 => Ok(Measured { verified: true, ..all }),
        count => Err(Failure::Check(format!("somebody is still in {count} critical sections"))),
    }
}

/// Waits, unless somebody has failed or wants an end.
pub(super) fn wait(time: Duration, stop: &AtomicBool) {
    let began = Instant::now();
    while began.elapsed() < time && !stop.load(Ordering::Relaxed) && !interrupted() {
        std::thread::sleep(time.saturating_sub(began.elapsed()).min(Duration::from_millis(20)));
    }
}

/// One client, until it is to stop.
fn work(
    client: &mut dyn Peer,
    mut random: Random,
    load: &Load,
    shared: &Shared,
    crowded: bool,
) -> Result<(Histogram, Histogram), String> {
    let (mut grant, mut pair) = (Histogram::default(), Histogram::default());
    while !shared.stop.load(Ordering::Relaxed) {
        let lock = load.chooser.next(&mut random);
        let asked = Instant::now();
        let token = client.acquire(lock)?;
        let granted = asked.elapsed();
        let token = token.unwrap_or_else(|| shared.token.fetch_add(1, Ordering::SeqCst) + 1);
        shared.checker.enter(lock, LockMode::Exclusive, token)?;
        if crowded && random.below(STAYS) == 0 {
            std::thread::yield_now();
        }
        shared.checker.leave(lock, LockMode::Exclusive);
        client.release(lock)?;
        if shared.measuring.load(Ordering::Relaxed) {
            grant.record(granted.as_nanos() as u64);
            pair.record(asked.elapsed().as_nanos() as u64);
        }
    }
    Ok((grant, pair))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use lockwork_workload::zipf::Distribution;

    use super::*;

    /// Grants everything, with these tokens.
    struct Generous(&'static Mutex<Vec<u64>>);

    impl Peer for Generous {
        fn acquire(&mut self, _: u64) -> Result<Option<u64>, String> {
            Ok(self.0.lock().expect("nobody panics").pop())
        }

        fn release(&mut self, _: u64) -> Result<(), String> {
            std::thread::sleep(Duration::from_millis(1));
            Ok(())
        }
    }

    fn measure(tokens: Vec<u64>) -> Result<Measured, Failure> {
        let chooser = Chooser::new(Distribution::Uniform, 1, 0.0).expect("it is possible");
        let load = Load { chooser: &chooser, locks: 1, seed: 1, measured: Duration::from_millis(20) };
        drive(vec![Box::new(Generous(Box::leak(Box::new(Mutex::new(tokens)))))], &load)
    }

    #[test]
    fn grants_are_counted_and_an_old_token_is_a_violation() {
        let measured = measure(Vec::new()).expect("one client is in nobody's way");
        assert!(measured.pairs > 0 && measured.rate() > 0.0 && measured.grant.count() == measured.pairs);
        assert!(measured.pair.quantile(0.5) >= 1_000_000);
        let error = measure(vec![7, 8]).expect_err("tokens shrink").to_string();
        assert!(error.contains("the token of a writer is 7, of one before it 8"), "{error}");
    }
}
