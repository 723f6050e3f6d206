//! The rows that TATP begins with, each a function of the seed and its number.
//!
//! A subscriber has 1 to 4 accesses and 1 to 4 special facilities, of different types, and each facility 0 to 3
//! forwardings of calls. So row number n of these tables belongs to a subscriber who has to be found: the rows before
//! every 64th subscriber are known, and the rest is counted.

use lockwork_procedure::schema::{ColumnType, TableSchema};

use crate::fields::RowWriter;
use crate::random::{Random, mix};

use ColumnType as T;

/// Subscribers from one known sum to the next.
const EVERY: u64 = 64;

/// Where tables stand.
pub(super) mod table {
    pub(in super::super) const SUBSCRIBER: usize = 0;
    pub(in super::super) const SUBSCRIBER_NUMBER: usize = 1;
    pub(in super::super) const ACCESS_INFO: usize = 2;
    pub(in super::super) const SPECIAL_FACILITY: usize = 3;
    pub(in super::super) const CALL_FORWARDING: usize = 4;
}

/// The tables: the specification's four, and the index of subscribers by telephone number. They are partitioned by
/// subscriber, the index by number, since that is all a call that looks a subscriber up has.
pub(super) fn schemas() -> [TableSchema; 5] {
    let table = |name: &str, columns: &[(&str, ColumnType)], key| {
        let schema = TableSchema::new(name, columns, key, false).expect("a sound schema");
        schema.partition_by_hash(columns[0].0).expect("the first column is in the key")
    };
    let flags = ["bit", "hex", "byte2"].map(|name| (1..=10).map(move |number| format!("{name}_{number}")));
    let flags: Vec<String> = flags.into_iter().flatten().collect();
    let mut subscriber = vec![("s", T::U32), ("sub_nbr", T::Char(15))];
    subscriber.extend(flags.iter().map(|name| (name.as_str(), T::U8)));
    subscriber.extend([("msc_location", T::U32), ("vlr_location", T::U32)]);
    let access = [
        ("s", T::U32),
        ("ai_type", T::U8),
        ("data1", T::U8),
        ("data2", T::U8),
        ("data3", T::Char(3)),
        ("data4", T::Char(5)),
    ];
    let special = [
        ("s", T::U32),
        ("sf_type", T::U8),
        ("is_active", T::U8),
        ("error_cntrl", T::U8),
        ("data_a", T::U8),
        ("data_b", T::Char(5)),
    ];
    let forwarding =
        [("s", T::U32), ("sf_type", T::U8), ("start_time", T::U8), ("end_time", T::U8), ("numberx", T::Char(15))];
    [
        table("subscriber", &subscriber, 1),
        table("subscriber_number", &[("sub_nbr", T::Char(15)), ("s", T::U32)], 1),
        table("access_info", &access, 2),
        table("special_facility", &special, 2),
        table("call_forwarding", &forwarding, 3),
    ]
}

/// The telephone number of a subscriber.
pub(super) fn sub_nbr(s: u64) -> [u8; 15] {
    let mut digits = [b'0'; 15];
    let mut rest = s;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    digits
}

/// What one subscriber has.
#[derive(Clone, Debug, Default)]
struct Profile {
    /// Types of accesses.
    accesses: Vec<u8>,
    /// Types of special facilities.
    facilities: Vec<u8>,
    /// Types and starts of forwardings.
    forwardings: Vec<(u8, u8)>,
}

/// `count` of these, in a random order.
fn some(random: &mut Random, from: &[u8], count: u64) -> Vec<u8> {
    let mut list = from.to_vec();
    for place in 0..count as usize {
        let other = place + random.below((list.len() - place) as u64) as usize;
        list.swap(place, other);
    }
    list.truncate(count as usize);
    list
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Population {
    seed: u64,
    pub(super) subscribers: u64,
    /// Accesses, facilities and forwardings of all subscribers before every 64th, and at the end of all.
    before: [Vec<u64>; 3],
}

impl Population {
    /// Counts the rows: takes time linear in the subscribers.
    pub(super) fn new(subscribers: u64, seed: u64) -> Self {
        let mut population = Self { seed, subscribers, before: [const { Vec::new() }; 3] };
        let mut sums = [0; 3];
        for s in 1..=subscribers {
            if s % EVERY == 1 {
                population.before.iter_mut().zip(sums).for_each(|(before, sum)| before.push(sum));
            }
            let profile = population.profile(s);
            let counts = [profile.accesses.len(), profile.facilities.len(), profile.forwardings.len()];
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count as u64);
        }
        population.before.iter_mut().zip(sums).for_each(|(before, sum)| before.push(sum));
        population
    }

    fn profile(&self, s: u64) -> Profile {
        let mut random = Random::stream(mix(self.seed), s);
        let types = [1, 2, 3, 4];
        let count = 1 + random.below(4);
        let accesses = some(&mut random, &types, count);
        let count = 1 + random.below(4);
        let facilities = some(&mut random, &types, count);
        let mut forwardings = Vec::new();
        for &facility in &facilities {
            let count = random.below(4);
            let starts = some(&mut random, &[0, 8, 16], count);
            forwardings.extend(starts.into_iter().map(|start| (facility, start)));
        }
        Profile { accesses, facilities, forwardings }
    }

    /// Rows of a table.
    pub(super) fn row_count(&self, number: usize) -> u64 {
        match number {
            table::SUBSCRIBER | table::SUBSCRIBER_NUMBER => self.subscribers,
            _ => self.before.get(number - table::ACCESS_INFO).and_then(|before| before.last().copied()).unwrap_or(0),
        }
    }

    /// Whose row `row` of a table is, what the subscriber has, and which of it.
    fn find(&self, number: usize, row: u64) -> (u64, Profile, usize) {
        let of = number - table::ACCESS_INFO;
        let block = self.before[of].partition_point(|&before| before <= row) - 1;
        let mut rest = row - self.before[of][block];
        let mut s = block as u64 * EVERY + 1;
        loop {
            let profile = self.profile(s);
            let count = [profile.accesses.len(), profile.facilities.len(), profile.forwardings.len()][of] as u64;
            if rest < count {
                return (s, profile, rest as usize);
            }
            rest -= count;
            s += 1;
        }
    }

    /// The row of this subscriber with this type, and start, in a table whose rows are found by counting.
    pub(super) fn row_of(&self, number: usize, s: u64, of_type: u64, start: u64) -> Option<u64> {
        let profile = self.profile(s);
        let is_type = |&have: &u8| u64::from(have) == of_type;
        let which = match number {
            table::ACCESS_INFO => profile.accesses.iter().position(is_type),
            table::SPECIAL_FACILITY => profile.facilities.iter().position(is_type),
            _ => profile.forwardings.iter().position(|(have, at)| is_type(have) && u64::from(*at) == start),
        };
        let of = number - table::ACCESS_INFO;
        let block = (s - 1) / EVERY;
        let before = (block * EVERY + 1..s).map(|s| {
            let profile = self.profile(s);
            [profile.accesses.len(), profile.facilities.len(), profile.forwardings.len()][of] as u64
        });
        Some(self.before[of][block as usize] + before.sum::<u64>() + which? as u64)
    }

    /// Writes row `row` of table `number`, whose schema is given.
    pub(super) fn row_image(&self, number: usize, schema: &TableSchema, row: u64, image: &mut Vec<u8>) {
        let mut random = Random::stream(mix(self.seed.wrapping_add(1 + number as u64)), row);
        let mut writer = RowWriter::new(schema, image);
        match number {
            table::SUBSCRIBER => {
                writer.integer(row + 1).text(&sub_nbr(row + 1));
                for below in [2, 16, 256] {
                    for _ in 0..10 {
                        writer.integer(random.below(below));
                    }
                }
                writer.integer(random.next_u64() >> 32).integer(random.next_u64() >> 32);
            }
            table::SUBSCRIBER_NUMBER => {
                writer.text(&sub_nbr(row + 1)).integer(row + 1);
            }
            table::ACCESS_INFO => {
                let (s, profile, which) = self.find(number, row);
                writer.integer(s).integer(profile.accesses[which]);
                writer.integer(random.below(256)).integer(random.below(256));
                writer.letters(&mut random, 3).letters(&mut random, 5);
            }
            table::SPECIAL_FACILITY => {
                let (s, profile, which) = self.find(number, row);
                let active = random.below(100) < 85;
                writer.integer(s).integer(profile.facilities[which]).integer(i64::from(active));
                writer.integer(random.below(256)).integer(random.below(256)).letters(&mut random, 5);
            }
            _ => {
                let (s, profile, which) = self.find(number, row);
                let (facility, start) = profile.forwardings[which];
                let end = u64::from(start) + 1 + random.below(8);
                writer.integer(s).integer(facility).integer(start).integer(end).digits(&mut random);
            }
        }
    }
}
