//! The microbenchmark's requests: one lock at a time, chosen uniformly or by Zipf's distribution, or half of them from
//! a hotspot that moves.

use std::time::Duration;

use lockwork_locking::LockMode;
use lockwork_workload::random::Random;
use lockwork_workload::zipf::{Chooser, Distribution};

use super::load::Script;
use super::netlock::hottest;
use super::{BenchError, Settings, now};

/// Half of the requests go to a few hot locks, which are others after some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hotspot {
    /// How long locks stay hot.
    pub period: Duration,
}

impl Hotspot {
    /// Sets of hot locks. After the last one the first is hot again.
    pub const SETS: u64 = 4;

    /// Locks of a set, of so many: 2,500 of a million.
    #[must_use]
    pub const fn size(locks: u64) -> u64 {
        if locks < 400 { 1 } else { locks / 400 }
    }

    /// When the sets begin anew, on the clock of all machines: multiples of so many nanoseconds.
    pub(super) const fn round(self) -> u64 {
        Self::SETS * self.period.as_nanos() as u64
    }

    /// The lock of a request.
    fn choose(self, locks: u64, now: u64, random: &mut Random) -> u64 {
        let size = Self::size(locks);
        let first = now / self.period.as_nanos() as u64 % Self::SETS * size;
        if random.unit() < 0.5 {
            return first + random.below(size);
        }
        let other = random.below(locks - size);
        if other < first { other } else { other + size }
    }
}

/// What locks are asked for.
#[derive(Debug)]
pub(super) struct Choice {
    chooser: Chooser,
    locks: u64,
    hotspot: Option<Hotspot>,
}

/// Requests of each machine that a profile looks at.
const PROFILED: usize = 1 << 19;

impl Choice {
    /// As settings say.
    ///
    /// # Errors
    /// [`BenchError`] where they are impossible.
    pub(super) fn new(settings: &Settings) -> Result<Self, BenchError> {
        let distribution = if settings.theta.is_some() { Distribution::Zipfian } else { Distribution::Uniform };
        let &Settings { locks, objects, hotspot, .. } = settings;
        if locks == 0 || objects < locks {
            return Err(BenchError::Usage(format!("{objects} objects and {locks} locks; 1 lock for each is most")));
        }
        if hotspot.is_some_and(|hotspot| hotspot.period.is_zero() || locks < 2 * Hotspot::SETS) {
            return Err(BenchError::Usage(format!(
                "{locks} locks; a hotspot that moves needs {} or more, and time to stay",
                2 * Hotspot::SETS
            )));
        }
        Ok(Self { chooser: Chooser::new(distribution, objects, settings.theta.unwrap_or(0.0))?, locks, hotspot })
    }

    fn next(&self, random: &mut Random) -> u64 {
        match self.hotspot {
            Some(hotspot) => hotspot.choose(self.locks, now(), random),
            None => self.chooser.next(random) % self.locks,
        }
    }

    /// The locks that a switch with little room would have: the hottest of the same requests that are going to be
    /// made; of a hotspot that moves, its first set.
    pub(super) fn profile(&self, settings: &Settings, machines: u16) -> Vec<u64> {
        if self.hotspot.is_some() {
            return (0..Hotspot::size(self.locks)).collect();
        }
        let requests = (0..machines).flat_map(|machine| {
            let mut requests = self.of(settings, machine);
            (0..PROFILED).map(move |_| requests.request().0)
        });
        hottest(requests, self.locks)
    }

    /// What the tasks of a machine ask for.
    pub(super) fn of(&self, settings: &Settings, machine: u16) -> OneLock<'_> {
        OneLock { choice: self, writes: settings.writes, random: Random::stream(settings.seed, machine.into()) }
    }
}

/// One lock at a time.
pub(super) struct OneLock<'a> {
    choice: &'a Choice,
    /// Share of exclusive locks.
    writes: f64,
    random: Random,
}

impl OneLock<'_> {
    fn request(&mut self) -> (u64, LockMode) {
        let lock = self.choice.next(&mut self.random);
        let writes = self.writes > 0.0 && self.random.unit() < self.writes;
        (lock, if writes { LockMode::Exclusive } else { LockMode::Shared })
    }
}

impl Script for OneLock<'_> {
    fn next(&mut self, _: u32, locks: &mut Vec<(u64, LockMode)>) -> usize {
        locks.push(self.request());
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Client;

    fn settings(locks: u64) -> Settings {
        Settings {
            machines: 2,
            clients: 1,
            locks,
            objects: locks,
            hotspot: None,
            slice: None,
            writes: 0.5,
            theta: None,
            seed: 7,
            client: Client::Udp,
            measured: Duration::ZERO,
        }
    }

    #[test]
    fn half_of_the_requests_are_for_the_set_whose_turn_it_is() {
        let hotspot = Hotspot { period: Duration::from_nanos(100) };
        let mut random = Random::new(1);
        for (now, set) in [(0, 0), (99, 0), (100, 1), (399, 3), (400, 0)] {
            let mut counts = vec![0; 4000];
            (0..40_000).for_each(|_| counts[hotspot.choose(4000, now, &mut random) as usize] += 1);
            let hot: u32 = counts[set * 10..(set + 1) * 10].iter().sum();
            assert!((19_000..21_000).contains(&hot), "{now}: {hot}");
            assert!(counts.iter().filter(|count| **count > 0).count() > 3_800, "the others are asked for too");
        }
        assert_eq!((Hotspot::size(1_000_000), hotspot.round()), (2_500, 400));
    }

    #[test]
    fn a_profile_is_of_the_requests_that_are_made() {
        let settings = Settings { theta: Some(0.99), ..settings(100_000) };
        let choice = Choice::new(&settings).expect("it is possible");
        let hot = choice.profile(&settings, 2);
        assert_eq!(hot.len(), crate::netlock::MAX_HOT);
        let mut made = choice.of(&settings, 1);
        let met = (0..10_000).filter(|_| hot[..100].contains(&made.request().0)).count();
        // The hundred most popular of a hundred thousand have some 42 % of the draws.
        assert!((3_700..4_700).contains(&met), "{met}");
        let moving = Settings { hotspot: Some(Hotspot { period: Duration::from_secs(1) }), ..settings };
        assert_eq!(Choice::new(&moving).expect("it is possible").profile(&moving, 2), (0..250).collect::<Vec<_>>());
    }

    #[test]
    fn objects_share_locks_evenly() {
        let settings = Settings { objects: 1000, ..settings(10) };
        let choice = Choice::new(&settings).expect("it is possible");
        let mut counts = [0; 10];
        let mut script = choice.of(&settings, 0);
        (0..10_000).for_each(|_| counts[script.request().0 as usize] += 1);
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
        for (locks, objects, hotspot) in [(0, 0, None), (5, 4, None), (7, 7, Some(Duration::from_secs(1)))] {
            let hotspot = hotspot.map(|period| Hotspot { period });
            let refused = Choice::new(&Settings { locks, objects, hotspot, ..settings.clone() }).map(drop);
            assert!(matches!(refused, Err(BenchError::Usage(_))), "{locks} locks, {objects} objects: {refused:?}");
        }
    }
}
