//! Read/write sets: what one transaction claims of the database, as a planner compares it.
//!
//! A transaction claims records by the hash of their key and *granules* of tables whose ranges are claimed. A granule
//! is the keys with the same leading bits, so that a table is cut into neighbouring ranges without keeping a list of
//! them. Who scans a range, or knows only how its keys begin, claims the granules that it covers as a whole; who
//! touches one row there claims the granule with intent, and the record.
//!
//! Coarse granules make transactions wait that touch different rows; fine ones make a range many claims. How many bits
//! are left out of a table's granules therefore follows from the ranges claimed lately: about as many as an average
//! range spans. Any number is sound, as long as all transactions that are planned together use the same.
//!
//! Nothing is claimed of a table that no procedure writes.
//!
//! Invariant: if two transactions touch the same row, or one changes which keys a range holds that the other reads,
//! they have a claim of the same name in modes that exclude each other. Names are hashes: two different records that
//! share one only wait for each other needlessly.

use lockwork_locking::LockMode;
use lockwork_procedure::access::{AccessSet, KeyAccess, Operation, Slice};
use lockwork_procedure::key::{Key, mix};
use lockwork_storage::{Database, Table};

use crate::registry::{Registered, Registry};

/// How a transaction holds a record or a granule. The encoding makes the weakest mode that covers two others their
/// bitwise *or*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Hold {
    /// Reads rows inside, by their own names.
    ReadWithin = 0,
    /// Reads all of it.
    Read = 1,
    /// Writes rows inside, by their own names.
    WriteWithin = 2,
    /// Writes any of it.
    Write = 3,
}

impl Hold {
    const ALL: [Self; 4] = [Self::ReadWithin, Self::Read, Self::WriteWithin, Self::Write];

    /// The weakest mode that allows what either allows.
    #[inline(always)]
    pub(crate) const fn join(self, other: Self) -> Self {
        Self::ALL[(self as u8 | other as u8) as usize]
    }

    /// As a lock manager knows it.
    ///
    /// # Panics
    /// For [`Self::ReadWithin`], which nobody claims who knows all keys.
    pub(crate) fn lock_mode(self) -> LockMode {
        match self {
            Self::Read => LockMode::Shared,
            Self::WriteWithin => LockMode::IntentExclusive,
            Self::Write => LockMode::Exclusive,
            Self::ReadWithin => unreachable!("only covers make readers announce themselves"),
        }
    }

    /// Whether two transactions may hold something in these modes at the same time. So may a third that is compatible
    /// with their join.
    #[inline(always)]
    pub(crate) const fn compatible(self, other: Self) -> bool {
        let (a, b) = (self as u8, other as u8);
        a | b != 3 && (a == b || a & b == 0)
    }
}

/// What a claim changes, and what it minds that others have changed before it, as bits.
pub(crate) mod change {
    /// A row, or any row of a granule.
    pub(crate) const WRITES: u8 = 1;
    /// Some row of a granule.
    pub(crate) const WRITES_WITHIN: u8 = 2;
    /// Takes keys away: a scan goes further than it would have.
    pub(crate) const REMOVES: u8 = 4;
    /// Whether there is a row.
    pub(crate) const KEYS: u8 = 8;
}

/// One record or granule of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Its name.
    pub(crate) record: u64,
    pub(crate) hold: Hold,
    /// What the transaction may change of it: bits of [`change`].
    pub(crate) changes: u8,
    /// What must not have been changed since the transaction was looked at, else its read/write set may be another one.
    pub(crate) invalidated_by: u8,
}

/// How one table is cut.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// Bits left out of the first word of a key; 64: the whole table is one granule.
    shift: u32,
    /// The first word of the last key: what lies behind belongs to the granule of that one.
    last: u64,
    /// Some procedure writes the table; else nothing of it is claimed.
    changes: bool,
    /// Some procedure claims ranges of the table, to read or to write.
    read: bool,
    written: bool,
    /// Ranges seen, the bits that they span together, and the widest.
    ranges: u64,
    bits: u64,
    widest: u32,
}

/// The granules of all tables.
#[derive(Debug, Default)]
pub(crate) struct Granules {
    cuts: Vec<Cut>,
    /// Every table is one granule for ever, and there are no covers.
    whole: bool,
}

/// A range may have so many granules.
const MAX_GRANULES: u64 = 64;
/// The widest range seen should have about two to the power of so many.
const WIDEST: u32 = 4;

impl Granules {
    /// Whole tables, for a planner that runs while keys come and go, and dependent transactions alone.
    pub(crate) fn whole_tables() -> Self {
        Self { cuts: Vec::new(), whole: true }
    }

    /// Takes note of new tables and procedures, and of where tables end. Call it while nobody changes keys.
    pub(crate) fn prepare(&mut self, registry: &Registry, database: &Database) {
        let new = Cut {
            shift: 64,
            last: u64::MAX,
            changes: true,
            read: false,
            written: false,
            ranges: 0,
            bits: 0,
            widest: 0,
        };
        self.cuts.resize(database.len(), new);
        for (number, cut) in self.cuts.iter_mut().enumerate() {
            let id = number as u16;
            cut.changes = registry.is_written(id);
            (cut.read, cut.written) = (registry.is_scanned(id), registry.is_covered(id) && !self.whole);
            if (cut.read || cut.written) && !self.whole {
                cut.last = database.table(id).last_key().map_or(u64::MAX, |key| key.0[0]);
            }
        }
    }

    /// Follows the ranges that were claimed since it was called last.
    pub(crate) fn follow<'a>(&mut self, footprints: impl Iterator<Item = &'a mut ReadWriteSet>) {
        for read_write_set in footprints {
            for (table, bits) in read_write_set.ranges.drain(..) {
                let cut = &mut self.cuts[usize::from(table)];
                cut.ranges += 1;
                cut.bits += u64::from(bits);
                cut.widest = cut.widest.max(bits);
            }
        }
        for cut in self.cuts.iter_mut().filter(|cut| cut.ranges > 0) {
            let average = (cut.bits / cut.ranges) as u32;
            cut.shift = average.max(cut.widest.saturating_sub(WIDEST));
            (cut.ranges, cut.bits, cut.widest) = (0, 0, 0);
        }
    }
}

impl Cut {
    #[inline(always)]
    fn granule(&self, key: &Key) -> u64 {
        key.0[0].min(self.last).checked_shr(self.shift).unwrap_or(0)
    }
}

/// What an operation may change of its row, or, in a cover, of any row of its range.
#[inline(always)]
const fn changes(operation: Operation) -> u8 {
    match operation {
        Operation::Search | Operation::Scan => 0,
        Operation::Update => change::WRITES,
        Operation::Insert | Operation::Remove => change::WRITES | change::KEYS,
    }
}

/// What an operation may change in the granule of its row.
#[inline(always)]
const fn within(operation: Operation) -> u8 {
    match operation {
        Operation::Search | Operation::Scan => 0,
        Operation::Update | Operation::Insert => change::WRITES_WITHIN,
        Operation::Remove => change::WRITES_WITHIN | change::REMOVES,
    }
}

/// The name of a record: a hash of table and key.
#[inline(always)]
fn record_name(table: u16, hash: u64) -> u64 {
    mix(hash ^ (u64::from(table) << 48 | 1))
}

/// The name of a granule.
#[inline(always)]
fn granule_name(table: u16, granule: u64) -> u64 {
    mix(mix(granule).wrapping_add(u64::from(table) << 48 | 2))
}

/// Claims up to this many are compared one by one.
const FEW: usize = 12;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ReadWriteSet {
    accesses: Vec<KeyAccess>,
    /// Each name once.
    claims: Vec<Claim>,
    /// Places in `claims` by name, once they are many: what is not of this epoch is empty. And how many stand there.
    index: Vec<(u32, u32)>,
    indexed: usize,
    epoch: u32,
    /// Ranges since [`Granules::follow`]: table, and the bits that it spans.
    ranges: Vec<(u16, u32)>,
}

impl ReadWriteSet {
    /// Begins the read/write set of another transaction.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.claims.clear();
        self.indexed = 0;
        self.epoch = self.epoch.wrapping_add(1);
        if self.epoch == 0 {
            self.index.fill((0, 0));
            self.epoch = 1;
        }
    }

    /// What was claimed.
    #[inline]
    pub(crate) fn claims(&self) -> &[Claim] {
        &self.claims
    }

    /// Claims all accesses of a call that are known from its arguments: of a procedure that is not dependent, or has a
    /// cover. Returns whether that was possible: a range may be too wide.
    ///
    /// # Safety
    /// `block` is a block of the procedure. Nobody changes keys.
    #[inline]
    pub(crate) unsafe fn collect(&mut self, granules: &Granules, registered: &Registered, block: *const u8) -> bool {
        // SAFETY: a block is at least as long as its procedure's layout.
        let bytes = unsafe { std::slice::from_raw_parts(block, registered.block_bytes) };
        match (&registered.access, &registered.cover) {
            (AccessSet::Straight(straight), _) => {
                let recipe = registered.known();
                for (number, access) in straight.accesses.iter().enumerate() {
                    let table = registered.table_id(access.slot);
                    // SAFETY: as the caller's.
                    let key = unsafe { recipe.key(number, block) };
                    let (operation, limit) = (access.operation, access.limit as usize);
                    let store = &registered.tables[usize::from(access.slot)];
                    if !self.claim_known(granules, store, table, operation, &key, limit) {
                        return false;
                    }
                }
                true
            }
            (AccessSet::Sliced(slice), _) | (AccessSet::Dependent(_), Some(slice)) => {
                self.collect_slice(granules, registered, slice, bytes)
            }
            (AccessSet::Dependent(_), None) => unreachable!("its accesses are not known from the arguments"),
        }
    }

    fn collect_slice(&mut self, granules: &Granules, registered: &Registered, slice: &Slice, block: &[u8]) -> bool {
        let mut accesses = std::mem::take(&mut self.accesses);
        accesses.clear();
        slice.collect(block, &mut accesses);
        let fits = accesses.iter().all(|access| {
            let table = registered.table_id(access.slot);
            if access.known < Key::BYTES {
                let (first, last) = access.key.span(access.known);
                let hold = if access.operation.writes() { Hold::Write } else { Hold::Read };
                let changes = changes(access.operation) | within(access.operation);
                return self.range(
                    granules,
                    table,
                    &first,
                    &last,
                    Claim { record: 0, hold, changes, invalidated_by: 0 },
                );
            }
            let store = &registered.tables[usize::from(access.slot)];
            self.claim_known(granules, store, table, access.operation, &access.key, usize::from(access.limit))
        });
        self.accesses = accesses;
        fits
    }

    #[inline(always)]
    fn claim_known(
        &mut self,
        granules: &Granules,
        store: &Table,
        table: u16,
        operation: Operation,
        key: &Key,
        limit: usize,
    ) -> bool {
        if operation == Operation::Scan {
            let asked = !granules.whole && granules.cuts[usize::from(table)].changes;
            let last = if !asked { None } else { store.nth_key(key, limit) };
            return self.scan(granules, table, key, &last.unwrap_or(Key::MAX), 0);
        }
        self.point(granules, table, operation, key, key.hash(), 0);
        true
    }

    /// Claims a row, or the place of one. `invalidated_by`: see [`Claim::invalidated_by`].
    #[inline(always)]
    pub(crate) fn point(
        &mut self,
        granules: &Granules,
        table: u16,
        operation: Operation,
        key: &Key,
        hash: u64,
        invalidated_by: u8,
    ) {
        let cut = &granules.cuts[usize::from(table)];
        if !cut.changes {
            return;
        }
        let record = record_name(table, hash);
        let (hold, inside) = match operation.writes() {
            true => (Hold::Write, Hold::WriteWithin),
            false => (Hold::Read, Hold::ReadWithin),
        };
        self.claim(Claim { record, hold, changes: changes(operation), invalidated_by });
        if cut.written || cut.read && operation.writes() {
            let record = granule_name(table, cut.granule(key));
            self.claim(Claim { record, hold: inside, changes: within(operation), invalidated_by });
        }
    }

    /// Claims the range that a scan reads. Returns false if it is too wide. A removal in it would make the scan longer;
    /// `invalidated_by` says what else must not have happened there.
    pub(crate) fn scan(
        &mut self,
        granules: &Granules,
        table: u16,
        first: &Key,
        last: &Key,
        invalidated_by: u8,
    ) -> bool {
        let claim = Claim { record: 0, hold: Hold::Read, changes: 0, invalidated_by: invalidated_by | change::REMOVES };
        self.range(granules, table, first, last, claim)
    }

    /// Claims the granules from `first` to `last` as `claim` says.
    fn range(&mut self, granules: &Granules, table: u16, first: &Key, last: &Key, claim: Claim) -> bool {
        let cut = &granules.cuts[usize::from(table)];
        if !cut.changes {
            return true;
        }
        let [low, high] = [first, last].map(|key| key.0[0].min(cut.last));
        if !granules.whole {
            self.ranges.push((table, 64 - (high - low).leading_zeros()));
        }
        let (first, last) = (cut.granule(first), cut.granule(last));
        if last - first >= MAX_GRANULES {
            return false;
        }
        for granule in first..=last {
            self.claim(Claim { record: granule_name(table, granule), ..claim });
        }
        true
    }

    #[inline(always)]
    fn claim(&mut self, claim: Claim) {
        let known = if self.claims.len() <= FEW {
            self.claims.iter().position(|known| known.record == claim.record)
        } else {
            self.look_up(claim.record)
        };
        match known {
            Some(place) => {
                let known = &mut self.claims[place];
                known.hold = known.hold.join(claim.hold);
                known.changes |= claim.changes;
                known.invalidated_by |= claim.invalidated_by;
            }
            None => self.claims.push(claim),
        }
    }

    /// The place of a name among many claims.
    fn look_up(&mut self, record: u64) -> Option<usize> {
        let count = self.claims.len();
        if 2 * count >= self.index.len() {
            self.index.clear();
            self.index.resize((4 * count).next_power_of_two(), (0, 0));
            self.indexed = 0;
        }
        while self.indexed < count {
            let slot = self.slot(self.claims[self.indexed].record);
            self.index[slot] = (self.epoch, self.indexed as u32);
            self.indexed += 1;
        }
        let (epoch, place) = self.index[self.slot(record)];
        (epoch == self.epoch).then_some(place as usize)
    }

    /// Where a name stands in the index, or where it would.
    fn slot(&self, record: u64) -> usize {
        let mask = self.index.len() - 1;
        let mut slot = record as usize & mask;
        loop {
            let (epoch, place) = self.index[slot];
            if epoch != self.epoch || self.claims[place as usize].record == record {
                return slot;
            }
            slot = (slot + 1) & mask;
        }
    }
}

#[cfg(test)]
mod tests;
