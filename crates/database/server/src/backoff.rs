//! How long wrong passwords make the next login wait.
//!
//! Failures are counted for each pair of an address and a user, so that nobody locks a user out from elsewhere. Behind
//! the first [`FREE`] of them a proof of the same pair is looked at only after a time, which doubles with each further
//! failure up to [`MAX_DELAY`]. Logins wait side by side, not in a queue: the right password is late by that time at
//! most, whatever others guess beside it. At most [`MAX_WAITING`] of a pair wait, which bounds the guesses by
//! `MAX_WAITING / MAX_DELAY` a second; further ones are refused and not looked at.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Failures that cost no more time than the answer to each.
const FREE: u32 = 3;
const FIRST_DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(4);
/// Logins of a pair that wait at a time.
const MAX_WAITING: u32 = 64;
/// Failures are forgotten when no further one has come for so long.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// Users of one address that are counted apart; further ones, which somebody makes up, are counted together.
const MAX_USERS: u32 = 64;
/// Pairs that are counted at all; beyond that, the one whose last failure is the oldest is forgotten.
const MAX_PAIRS: usize = 16_384;

#[derive(Debug)]
struct Count {
    failures: u32,
    waiting: u32,
    last: Instant,
}

#[derive(Debug, Default)]
struct Counts {
    pairs: HashMap<(IpAddr, String), Count>,
    /// How many users each address has among the pairs.
    users: HashMap<IpAddr, u32>,
}

/// Counts of failures.
#[derive(Debug, Default)]
pub(crate) struct Backoff(Mutex<Counts>);

/// An address as far as one machine has it to itself: all that a machine has of IPv6 is 64 bits wide.
pub(crate) fn machine(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() & (u128::MAX << 64);
            // ::1 is no network of anybody's.
            IpAddr::V6(if address.is_loopback() { address } else { network.into() })
        }
        address => address,
    }
}

fn delay(failures: u32) -> Duration {
    let doubled = failures.saturating_sub(FREE).min(16);
    if doubled == 0 { Duration::ZERO } else { MAX_DELAY.min(FIRST_DELAY * (1 << (doubled - 1))) }
}

/// A login that waits; dropped when it does not any more.
#[derive(Debug)]
pub(crate) struct Waiting {
    backoff: Arc<Backoff>,
    pair: Option<(IpAddr, String)>,
    /// How long it has to.
    pub(crate) delay: Duration,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(pair) = self.pair.take()
            && let Some(count) = self.backoff.counts().pairs.get_mut(&pair)
        {
            count.waiting -= 1;
        }
    }
}

impl Counts {
    /// The pair that a user's failures are counted for.
    fn pair(&self, address: IpAddr, user: &str) -> (IpAddr, String) {
        let pair = (machine(address), user.to_string());
        let is_apart = self.pairs.contains_key(&pair) || self.users.get(&pair.0).is_none_or(|users| *users < MAX_USERS);
        // No user has a name without a byte.
        if is_apart { pair } else { (pair.0, String::new()) }
    }

    fn forget(&mut self, pair: &(IpAddr, String)) {
        if self.pairs.remove(pair).is_some()
            && let Some(users) = self.users.get_mut(&pair.0)
        {
            *users -= 1;
            if *users == 0 {
                self.users.remove(&pair.0);
            }
        }
    }
}

impl Backoff {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a login has to wait before its proof is looked at; nothing if too many wait already.
    pub(crate) fn wait(self: &Arc<Self>, address: IpAddr, user: &str, now: Instant) -> Option<Waiting> {
        let mut counts = self.counts();
        let pair = counts.pair(address, user);
        if counts.pairs.get(&pair).is_some_and(|count| count.waiting == 0 && now - count.last > FORGOTTEN) {
            counts.forget(&pair);
        }
        let Some(count) = counts.pairs.get_mut(&pair) else {
            return Some(Waiting { backoff: self.clone(), pair: None, delay: Duration::ZERO });
        };
        let delay = delay(count.failures);
        if delay.is_zero() {
            return Some(Waiting { backoff: self.clone(), pair: None, delay });
        }
        if count.waiting == MAX_WAITING {
            return None;
        }
        count.waiting += 1;
        Some(Waiting { backoff: self.clone(), pair: Some(pair), delay })
    }

    /// A password was wrong.
    pub(crate) fn failed(&self, address: IpAddr, user: &str, now: Instant) {
        let mut counts = self.counts();
        let pair = counts.pair(address, user);
        if let Some(count) = counts.pairs.get_mut(&pair) {
            count.failures = count.failures.saturating_add(1);
            count.last = now;
            return;
        }
        if counts.pairs.len() >= MAX_PAIRS {
            let idle = counts.pairs.iter().filter(|(_, count)| count.waiting == 0);
            let oldest = idle.min_by_key(|(_, count)| count.last).map(|(pair, _)| pair.clone());
            // Who waits is counted, so there are fewer than pairs.
            oldest.iter().for_each(|oldest| counts.forget(oldest));
        }
        *counts.users.entry(pair.0).or_default() += 1;
        counts.pairs.insert(pair, Count { failures: 1, waiting: 0, last: now });
    }

    /// A password was right.
    pub(crate) fn succeeded(&self, address: IpAddr, user: &str) {
        let mut counts = self.counts();
        let pair = (machine(address), user.to_string());
        if let Some(count) = counts.pairs.get_mut(&pair) {
            count.failures = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delay_of(backoff: &Arc<Backoff>, address: &str, user: &str, now: Instant) -> Duration {
        backoff.wait(address.parse().unwrap(), user, now).unwrap().delay
    }

    #[test]
    fn failures_delay_their_pair_and_nobody_else() {
        let (backoff, now) = (Arc::new(Backoff::default()), Instant::now());
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let mut delays = Vec::new();
        for _ in 0..10 {
            delays.push(delay_of(&backoff, "10.0.0.1", "ann", now).as_millis());
            backoff.failed(address, "ann", now);
        }
        assert_eq!(delays, [0, 0, 0, 0, 500, 1000, 2000, 4000, 4000, 4000]);
        for (address, user) in [("10.0.0.2", "ann"), ("10.0.0.1", "bob"), ("::1", "ann")] {
            assert_eq!(delay_of(&backoff, address, user, now), Duration::ZERO, "{address} {user}");
        }
        // One machine, whichever of its addresses it takes.
        for _ in 0..4 {
            backoff.failed("2001:db8::1".parse().unwrap(), "ann", now);
        }
        assert_eq!(delay_of(&backoff, "2001:db8::2", "ann", now), FIRST_DELAY);
        assert_eq!(delay_of(&backoff, "2001:db8:0:1::2", "ann", now), Duration::ZERO);
        assert_eq!(delay_of(&backoff, "::ffff:10.0.0.1", "ann", now), MAX_DELAY);
        // The right password ends it, and so does time.
        backoff.succeeded("2001:db8::3".parse().unwrap(), "ann");
        assert_eq!(delay_of(&backoff, "2001:db8::2", "ann", now), Duration::ZERO);
        let later = now + FORGOTTEN + Duration::from_secs(1);
        assert_eq!(delay_of(&backoff, "10.0.0.1", "ann", later), Duration::ZERO);
    }

    #[test]
    fn who_guesses_side_by_side_is_bounded() {
        let (backoff, now) = (Arc::new(Backoff::default()), Instant::now());
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        (0..=FREE).for_each(|_| backoff.failed(address, "ann", now));
        let waiting: Vec<_> = (0..MAX_WAITING).map(|_| backoff.wait(address, "ann", now).unwrap()).collect();
        assert!(backoff.wait(address, "ann", now).is_none() && backoff.wait(address, "bob", now).is_some());
        drop(waiting);
        assert!(backoff.wait(address, "ann", now).is_some());
    }

    #[test]
    fn made_up_names_and_addresses_take_no_more_room_than_there_is() {
        let (backoff, now) = (Arc::new(Backoff::default()), Instant::now());
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        for number in 0..1000 {
            backoff.failed(address, &format!("u{number}"), now);
        }
        // Those beyond the first are delayed together.
        assert_eq!(backoff.counts().pairs.len(), MAX_USERS as usize + 1);
        assert_eq!(delay_of(&backoff, "10.0.0.1", "u5000", now), MAX_DELAY);
        for number in 0..2 * MAX_PAIRS as u32 {
            backoff.failed(IpAddr::V4((0x0b00_0000 + number).into()), "ann", now + Duration::from_nanos(number.into()));
        }
        let counts = backoff.counts();
        assert_eq!(counts.pairs.len(), MAX_PAIRS);
        assert_eq!(counts.users.values().sum::<u32>() as usize, MAX_PAIRS);
    }
}
