//! Requesting locks as fast as it goes, or for a share of the time: what both sides of experiment (a) do.

use std::time::{Duration, Instant};

use lockwork_lock_bench::histogram::Histogram;
use lockwork_sharedlocks::{Error, LockMode, Session, SharedMemory};
use lockwork_workload::random::Random;

use super::clock::{Clock, ticks};
use super::shared::Shared;

/// What one side is to do.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Load {
    /// Share of the time in which it requests locks, in percent.
    pub(super) percent: u32,
    /// For how long.
    pub(super) ms: u64,
    /// Keys that it chooses from, from zero.
    pub(super) keys: u32,
    /// Of the choice.
    pub(super) seed: u64,
}

/// Requests keys, holds each for an increment of its counter, and gives it back, for as long as `load` says. Answers
/// how long request and release took together, without the increment.
pub(super) fn contend<M: SharedMemory>(
    session: &mut Session<M>,
    shared: &Shared,
    clock: &Clock,
    load: Load,
) -> Result<Histogram, Error> {
    let mut histogram = Histogram::default();
    let mut random = Random::new(load.seed);
    let end = Instant::now() + Duration::from_millis(load.ms);
    while load.percent > 0 && Instant::now() < end {
        for _ in 0..64 {
            let key = random.below(load.keys.into());
            let begin = ticks();
            session.lock(key, LockMode::Exclusive)?;
            let granted = ticks();
            shared.bump(key as usize);
            let bumped = ticks();
            session.unlock(key)?;
            let done = ticks();
            histogram.record(clock.ns(begin, granted) + clock.ns(bumped, done));
            let idle = (done - begin) * u64::from(100 - load.percent) / u64::from(load.percent);
            while ticks() - done < idle {
                std::hint::spin_loop();
            }
        }
    }
    Ok(histogram)
}
