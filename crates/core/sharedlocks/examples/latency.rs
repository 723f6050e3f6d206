//! The latency of an uncontended lock and its release, in one session: sequential and random keys, each timed in
//! batches.

use std::time::Instant;

use lockwork_sharedlocks::{Layout, LockMode, Options, SharedLocks};

fn main() -> Result<(), lockwork_sharedlocks::Error> {
    const REQUESTS: u64 = 1_000_000;
    let options = Options { layout: Layout { held: 4096, ..Layout::new(1 << 20, 16) }, reserve: true };
    let (locks, _descriptor) = SharedLocks::anonymous(&options)?;
    let mut session = locks.session()?;
    for (name, step) in [("sequential", 1), ("random", 0x9E37_79B9_7F4A_7C15)] {
        for round in 0..3 {
            let begin = Instant::now();
            for number in 0..REQUESTS {
                let key = number.wrapping_mul(step);
                session.lock(key, LockMode::Exclusive)?;
                session.unlock(key)?;
            }
            println!("{name}, round {round}: {} ns", begin.elapsed().as_nanos() as f64 / REQUESTS as f64);
        }
    }
    Ok(())
}
