//! NetLock, the baseline with a lock manager in the switch: it has room for some thousands of locks, the hottest ones
//! of a profile that was taken beforehand; the others are a lock server's.
//!
//! Both are lock managers with the whole state of their locks (`table`), each with a socket and, where there are cores
//! for it, a thread of its own, at two ports of one address. A switch looks at every packet and sends on what is not
//! its own; here the sender looks, in the same list, and sends to the right port at once. So what a switch does on the
//! way costs no processor time of a server, and hot locks do not queue behind the others.
//!
//! The trade-off against lock fission: the whole state, queues and all, must fit into a switch, so few locks do; who
//! asks for those is answered on the way, and everybody else by the server.
//!
//! Source: FissLock, sections 2.3 and 7.1; Yu et al., "NetLock: Fast, Centralized Lock Management Using Programmable
//! Switches", SIGCOMM 2020.

use lockwork_workload::zipf::fnv1a;

/// Locks that fit into the switch: "a few thousand" (section 7.2), 0.3 % of a million.
pub(super) const MAX_HOT: usize = 3_000;

/// Locks of a switch, each with its place in the switch's table: open addressing, at most half full.
#[derive(Clone, Debug)]
pub(super) struct Hot {
    slots: Vec<Option<(u64, u32)>>,
    count: u32,
}

impl Hot {
    /// These locks, each once.
    pub(super) fn new(locks: &[u64]) -> Self {
        let slots = (2 * locks.len()).next_power_of_two();
        let mut hot = Self { slots: vec![None; slots], count: 0 };
        for &lock in locks {
            let at = hot.find(lock);
            if hot.slots[at].is_none() {
                hot.slots[at] = Some((lock, hot.count));
                hot.count += 1;
            }
        }
        hot
    }

    /// How many there are.
    pub(super) fn locks(&self) -> u64 {
        self.count.into()
    }

    /// The lock's place in the table, if it is one of them.
    pub(super) fn place(&self, lock: u64) -> Option<usize> {
        self.slots[self.find(lock)].map(|(_, place)| place as usize)
    }

    /// The slot of a lock, or the empty one where its search ends.
    fn find(&self, lock: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = fnv1a(&lock.to_le_bytes()) as usize & mask;
        while self.slots[at].is_some_and(|(is, _)| is != lock) {
            at = (at + 1) & mask;
        }
        at
    }
}

/// The locks that a profile met most often, hottest first, as many as fit.
pub(super) fn hottest(profile: impl Iterator<Item = u64>, locks: u64) -> Vec<u64> {
    let mut counts = vec![0_u32; locks as usize];
    profile.for_each(|lock| counts[lock as usize] += 1);
    let mut met: Vec<u64> = (0..locks).filter(|lock| counts[*lock as usize] > 0).collect();
    let rank = |lock: &u64| (std::cmp::Reverse(counts[*lock as usize]), *lock);
    if met.len() > MAX_HOT {
        met.select_nth_unstable_by_key(MAX_HOT, rank);
        met.truncate(MAX_HOT);
    }
    met.sort_unstable_by_key(rank);
    met
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hot_lock_has_a_place_of_its_own_and_no_other_has_one() {
        let locks: Vec<u64> = (0..MAX_HOT as u64).map(|n| n * 331).collect();
        let hot = Hot::new(&[&locks[..], &locks[..9]].concat());
        assert_eq!(hot.locks(), MAX_HOT as u64);
        let mut places: Vec<_> = locks.iter().map(|lock| hot.place(*lock).expect("it is hot")).collect();
        places.sort_unstable();
        assert_eq!(places, (0..MAX_HOT).collect::<Vec<_>>());
        assert!((0..1_000_000).filter(|lock| lock % 331 > 0).all(|lock| hot.place(lock).is_none()));
        assert_eq!((Hot::new(&[]).locks(), Hot::new(&[]).place(0)), (0, None));
    }

    #[test]
    fn a_profile_tells_the_hottest_that_fit() {
        assert_eq!(hottest([5, 3, 5, 9, 3, 5].into_iter(), 10), [5, 3, 9]);
        let all = (0..2 * MAX_HOT as u64).chain(1_000..1_000 + MAX_HOT as u64);
        let found = hottest(all, 1 << 20);
        assert_eq!(found, (1_000..1_000 + MAX_HOT as u64).collect::<Vec<_>>());
    }
}
