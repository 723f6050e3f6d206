//! Which lock protects a row, and where the rows that TATP begins with stand.

use super::population::table;
use super::{Kind, Tatp};
use crate::lock_trace::{Key, Locked};

/// Locks of a subscriber: its row; each of its accesses; all of its facilities; the forwardings of each facility.
const EACH: u64 = 10;
const ACCESSES: u64 = 1;
const FACILITIES: u64 = 5;
const FORWARDINGS: u64 = 6;

impl Locked for Tatp {
    fn locks(&self) -> u64 {
        self.config.subscribers * EACH
    }

    fn row_of(&self, number: usize, key: &Key<'_>) -> Option<u64> {
        let [s, of_type, start, ..] = key.parts;
        let s =
            if number == table::SUBSCRIBER_NUMBER { std::str::from_utf8(key.image).ok()?.parse().ok()? } else { s };
        if !(1..=self.config.subscribers).contains(&s) {
            return None;
        }
        match number {
            table::SUBSCRIBER | table::SUBSCRIBER_NUMBER => Some(s - 1),
            _ => self.population.row_of(number, s, of_type, start),
        }
    }

    fn scan(&self, _: usize, _: &Key<'_>, _: usize) -> Vec<u64> {
        unreachable!("no table of TATP is ordered")
    }

    fn lock_of(&self, number: usize, key: &Key<'_>) -> Option<u64> {
        let [s, of_type, ..] = key.parts;
        let place = match number {
            table::SUBSCRIBER => 0,
            table::ACCESS_INFO => ACCESSES + of_type - 1,
            table::SPECIAL_FACILITY => FACILITIES,
            table::CALL_FORWARDING => FORWARDINGS + of_type - 1,
            // An index that nobody writes.
            _ => return None,
        };
        Some((s - 1) * EACH + place)
    }

    fn types() -> (&'static [&'static str], &'static [u8]) {
        const { assert!(Kind::ALL.len() == 7) };
        (&["GS", "GD", "GA", "US", "UL", "IF", "DF"], &[0, 1, 2, 3, 4, 5, 6])
    }

    fn home_of(&self, _: usize, _: &[u8]) -> Option<u64> {
        None
    }

    fn locks_of_home(&self) -> Option<u64> {
        None
    }
}
