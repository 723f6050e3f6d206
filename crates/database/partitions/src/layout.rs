//! Where rows are, and by which locks they are covered.
//!
//! **Partitions.** A table that says how it is divided is divided by that column, if it is the first of the key and an
//! integer; every other one by the hash of its keys. A replicated table is with every worker.
//!
//! **Locks.** The service knows shared and exclusive locks with numbers. A record's lock is the hash of table and key
//! in the service's numbers: records that share one wait for each other needlessly, and that is all. Where a procedure
//! scans a table, what is locked is not records but *granules*, ranges of keys: a scan locks all granules from its
//! first key to its last shared, who writes a row there, or the place of one, locks its granule exclusively. So no row
//! comes into a range that was read, or goes, before who read it has ended. Granules are cut where the table's rows
//! were when the workers started. A table that no procedure writes has no locks.
//!
//! Invariant: two transactions one of which writes a row, or the place of one, that the other reads or writes, hold the
//! same lock, and not both of them shared.

use lockwork_engine::registry::Registry;
use lockwork_procedure::key::{Key, mix};
use lockwork_procedure::partitioning::Partitioning;
use lockwork_procedure::schema::TableSchema;
use lockwork_storage::{Database, Table};

use crate::wire::Malformed;

/// Rows of a granule, at least.
const GRANULE_ROWS: usize = 32;
/// Granules of a table, at most.
const GRANULES: usize = 1 << 14;

/// How the rows of one table are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    Everywhere,
    /// By the bits of the key's first word above so many.
    Leading(u32),
    Hashed,
}

impl Spread {
    pub(crate) fn of(schema: &TableSchema) -> Self {
        match schema.partitioning() {
            Some(Partitioning::Replicated) => Self::Everywhere,
            Some(Partitioning::Hash(0)) if schema.key()[0].column_type.is_integer() => {
                Self::Leading(64 - 8 * schema.key()[0].column_type.width())
            }
            _ => Self::Hashed,
        }
    }

    /// The worker that has the row of a key; `None`: all have it.
    #[inline]
    pub(crate) fn owner(self, key: &Key, workers: usize) -> Option<usize> {
        match self {
            Self::Everywhere => None,
            Self::Leading(shift) => {
                let (value, workers) = (key.0[0] >> shift, workers as u64);
                // A division takes longer than everything else here.
                Some((if workers.is_power_of_two() { value & (workers - 1) } else { value % workers }) as usize)
            }
            Self::Hashed => Some(((u128::from(key.hash()) * workers as u128) >> 64) as usize),
        }
    }
}

/// The keys at which the granules of an ordered table begin, but for the first.
pub(crate) fn cuts(table: &Table) -> Vec<Key> {
    let rows = GRANULE_ROWS.max(table.len() as usize / GRANULES);
    let (mut cuts, mut seen) = (Vec::new(), 0);
    table.scan_all(&Key([0; 4]), rows, 0..0, |row| {
        seen += 1;
        if seen % rows == 0 {
            // SAFETY: nobody writes: no transaction runs on the table that workers are filled from.
            cuts.push(table.key_format().encode(unsafe { table.row_image(row) }));
        }
        true
    });
    cuts
}

/// How a table is locked.
#[derive(Clone, Debug)]
enum Granularity {
    /// Nobody writes it.
    None,
    Records,
    Granules(Vec<Key>),
}

/// What a lock is wanted for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Range<'a> {
    Row,
    /// From the key to this one; `None`: to the end of the table.
    To(Option<&'a Key>),
}

/// A lock of the service, and whether it is wanted, or held, exclusively.
pub(crate) type Wanted = (u64, bool);

/// See the module.
#[derive(Debug)]
pub(crate) struct Layout {
    workers: usize,
    /// How many locks the service has.
    locks: u64,
    spreads: Vec<Spread>,
    granularity: Vec<Granularity>,
}

impl Layout {
    /// `cuts` of every table, in the order of their numbers; those of tables that nobody scans are not looked at.
    pub(crate) fn new(
        database: &Database,
        registry: &Registry,
        cuts: Vec<Vec<Key>>,
        workers: usize,
        locks: u64,
    ) -> Self {
        let schemas = (0..database.len()).map(|id| database.table(id as u16).schema());
        let granularity =
            (0_u16..).zip(cuts).map(|(id, cuts)| match (registry.is_written(id), registry.is_scanned(id)) {
                (false, _) => Granularity::None,
                (true, false) => Granularity::Records,
                (true, true) => Granularity::Granules(cuts),
            });
        Self { workers, locks, spreads: schemas.map(Spread::of).collect(), granularity: granularity.collect() }
    }

    /// The worker that has the row of a key; `None`: all have it.
    #[inline]
    pub(crate) fn owner(&self, table: u16, key: &Key) -> Option<usize> {
        self.spreads[usize::from(table)].owner(key, self.workers)
    }

    /// A table's number, if there is such a table.
    pub(crate) fn known(&self, table: u16) -> Result<u16, Malformed> {
        let tables = self.spreads.len();
        let known = (usize::from(table) < tables).then_some(table);
        known.ok_or_else(|| Malformed::new(format_args!("no table has number {table}; there are {tables}")))
    }

    pub(crate) fn is_everywhere(&self, table: u16) -> bool {
        self.spreads[usize::from(table)] == Spread::Everywhere
    }

    /// Appends the locks that an access needs.
    pub(crate) fn locks(&self, table: u16, key: &Key, range: Range<'_>, exclusive: bool, out: &mut Vec<Wanted>) {
        let lock = |name: u64| (((u128::from(name) * u128::from(self.locks)) >> 64) as u64, exclusive);
        match &self.granularity[usize::from(table)] {
            Granularity::None => {}
            Granularity::Records => out.push(lock(mix(key.hash() ^ (u64::from(table) << 48 | 1)))),
            Granularity::Granules(cuts) => {
                let granule = |key: &Key| cuts.partition_point(|cut| cut <= key);
                let first = granule(key);
                let last = match range {
                    Range::Row => first,
                    Range::To(Some(last)) => granule(last).max(first),
                    Range::To(None) => cuts.len(),
                };
                let name = |granule: usize| mix(mix(granule as u64).wrapping_add(u64::from(table) << 48 | 2));
                out.extend((first..=last).map(|granule| lock(name(granule))));
            }
        }
    }
}

/// Puts locks in the order in which everybody takes them, each once, exclusive if any was.
pub(crate) fn in_order(locks: &mut Vec<Wanted>) {
    locks.sort_unstable();
    locks.dedup_by(|later, kept| {
        let same = later.0 == kept.0;
        kept.1 |= same && later.1;
        same
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_taken_in_order_once_and_in_the_stronger_mode() {
        let mut locks = vec![(7, false), (3, true), (7, true), (3, false), (9, false)];
        in_order(&mut locks);
        assert_eq!(locks, [(3, true), (7, true), (9, false)]);
    }

    #[test]
    fn a_range_and_a_row_inside_it_share_a_lock() {
        let cuts: Vec<Key> = (1..9).map(|word| Key([word * 10, 0, 0, 0])).collect();
        let granularity = vec![Granularity::Granules(cuts)];
        let layout = Layout { workers: 2, locks: 1 << 30, spreads: vec![Spread::Hashed], granularity };
        let key = |word| Key([word, 0, 0, 0]);
        let (mut range, mut inside, mut outside) = (Vec::new(), Vec::new(), Vec::new());
        layout.locks(0, &key(15), Range::To(Some(&key(33))), false, &mut range);
        (15..=33).for_each(|word| layout.locks(0, &key(word), Range::Row, true, &mut inside));
        layout.locks(0, &key(40), Range::Row, true, &mut outside);
        assert_eq!(range.len(), 3);
        assert!(inside.iter().all(|row| range.contains(&(row.0, false))));
        assert!(!range.contains(&(outside[0].0, false)));
        range.clear();
        layout.locks(0, &key(15), Range::To(None), false, &mut range);
        assert_eq!(range.len(), 8);
    }

    #[test]
    fn every_worker_has_rows() {
        for spread in [Spread::Hashed, Spread::Leading(0)] {
            let mut counts = [0; 3];
            (0..3000).for_each(|word| counts[spread.owner(&Key([word, 0, 0, 0]), 3).unwrap()] += 1);
            assert!(counts.iter().all(|count| (900..1100).contains(count)), "{counts:?}");
        }
    }
}
