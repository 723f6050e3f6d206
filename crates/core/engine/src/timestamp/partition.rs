//! A partition: the rows whose headers one worker alone looks at and changes.
//!
//! The worker visits rows for its own transactions directly, and for others as *background requests*, which arrive as
//! messages and go through stages as a transaction's own instructions do, so that their misses overlap too:
//!
//! ```text
//! bundle --(keys in cache)--> arrived --(bucket in cache)--> found --(row in cache)--> visited and answered, or parked
//! ```
//!
//! A request that has to wait for an older transaction is parked, and visited again when something was let go, oldest
//! first: granted the other way round the older ones would come too late.

use std::sync::Arc;

use lockwork_memory::{LINE, prefetch};
use lockwork_procedure::access::Operation;
use lockwork_procedure::block::abort;
use lockwork_procedure::key::{Key, mix};
use lockwork_storage::{ABSENT, Database, Inserted, RowPtr, Table};

use super::bundle::Wanted;
use super::gaps::Gaps;
use super::header::{Ending, Header, Verdict, split};
use super::message::{Job, Mail, Message, Return};
use crate::conflicts::Cause;
use crate::tombstones::Tombstones;

/// A DB instruction, no scan, whose row is found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) operation: Operation,
    /// Table number.
    pub(super) table: u16,
    pub(super) time: u64,
    /// How often the transaction has pinned the row already, if there is one that it does not hold. For a search here
    /// it may be left at zero: a few pins more cost less than finding out.
    pub(super) own_pins: u64,
    pub(super) key: Key,
    pub(super) row: RowPtr,
}

/// What became of a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The transaction has the row: pinned, for a search, else held for writing.
    Granted,
    /// The transaction has pinned the row, or holds it, already.
    Seen,
    /// There is no row, or, for an insert, there is one. The transaction may know that, and has nothing.
    Missing(u16),
    /// Ask again when something was let go.
    Wait,
    /// The transaction comes too late; it would not with a time above this one.
    Conflict(u64, Cause),
}

#[derive(Debug)]
enum Request {
    Access(Access),
    /// A transaction's bundle, and how many of its rows are granted.
    Fetch {
        wanted: *mut Wanted,
        count: usize,
        time: u64,
        granted: usize,
    },
    /// A scan's job, and how many of its rows are pinned.
    Scan {
        job: *const Job,
        time: u64,
        pinned: usize,
    },
}

#[derive(Debug)]
struct Background {
    from: usize,
    to: Return,
    request: Request,
}

/// What it is called that an operation comes too late.
#[cold]
pub(super) fn late(operation: Operation) -> Cause {
    if operation == Operation::Search { Cause::LateRead } else { Cause::LateWrite }
}

/// Brings what finds the row of a key into cache.
#[inline(always)]
fn prefetch_bucket(table: &Table, word: u64, image: *const u8) {
    if table.key_format().fits_one_word() {
        table.prefetch(mix(word));
    } else {
        table.prefetch(word);
        prefetch(image);
    }
}

impl Background {
    fn time(&self) -> u64 {
        match &self.request {
            Request::Access(access) => access.time,
            Request::Fetch { time, .. } | Request::Scan { time, .. } => *time,
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Partition {
    /// By table number.
    gaps: Vec<Gaps>,
    pub(super) tombstones: Tombstones,
    /// Bundles whose keys come into cache.
    bundles: Vec<(usize, Message)>,
    arrived: Vec<(usize, Message)>,
    found: Vec<Background>,
    /// In the order of their times.
    parked: Vec<Background>,
    /// Whether something was let go since the parked ones were visited.
    let_go: bool,
}

// SAFETY: addresses of rows, key images, jobs and bundles, which mean the same on every thread.
unsafe impl Send for Partition {}

impl Partition {
    /// Prepares for a batch over so many tables.
    pub(super) fn begin(&mut self, tables: usize) {
        self.gaps.resize_with(tables, Gaps::default);
        self.gaps.iter_mut().for_each(Gaps::clear);
    }

    /// The row of a key, or a tombstone that stands for it.
    ///
    /// # Errors
    /// [`abort::OUT_OF_MEMORY`].
    #[inline(always)]
    pub(super) fn find(&mut self, table: &Arc<Table>, hash: u64, key: &Key, image: *const u8) -> Result<RowPtr, u16> {
        match table.find(hash, key) {
            Some(row) => Ok(row),
            None => self.make_ghost(table, hash, key, image),
        }
    }

    #[cold]
    fn make_ghost(&mut self, table: &Arc<Table>, hash: u64, key: &Key, image: *const u8) -> Result<RowPtr, u16> {
        // SAFETY: who sends a key image keeps it until the answer.
        let image = unsafe { std::slice::from_raw_parts(image, table.key_format().image_bytes()) };
        match table.insert(hash, key, image, ABSENT) {
            Ok(Inserted::New(row)) => {
                self.tombstones.note(table, hash, *key, row);
                Ok(row)
            }
            Ok(Inserted::Exists(row)) => Ok(row),
            Err(_) => Err(abort::OUT_OF_MEMORY),
        }
    }

    /// Checks whether an instruction may go, and lets it.
    #[inline(always)]
    pub(super) fn visit(&mut self, table: &Arc<Table>, access: &Access) -> Outcome {
        let Access { operation, time, own_pins, row, .. } = *access;
        let mut header = Header::load(row);
        match header.may_read(time) {
            Verdict::Granted => {}
            Verdict::Wait => return Outcome::Wait,
            Verdict::Conflict(above) => return Outcome::Conflict(above, late(operation)),
        }
        let exists = header.is_live();
        if exists == (operation == Operation::Insert) {
            header.saw(time);
            header.store(row);
            let code = if exists { abort::DUPLICATE_KEY } else { abort::NOT_FOUND };
            return Outcome::Missing(code);
        }
        if operation == Operation::Search {
            if own_pins > 0 {
                return Outcome::Seen;
            }
            if !header.pin() {
                return Outcome::Conflict(time, Cause::LateRead);
            }
            header.saw(time);
            header.store(row);
            return Outcome::Granted;
        }
        match header.may_write(time, own_pins) {
            Verdict::Granted => {}
            Verdict::Wait => return Outcome::Wait,
            Verdict::Conflict(above) => return Outcome::Conflict(above, Cause::LateWrite),
        }
        if operation == Operation::Insert {
            if let Some(above) = self.gaps[usize::from(access.table)].above(&access.key, time) {
                return Outcome::Conflict(above, Cause::LateInsert);
            }
            let schema = table.schema();
            let (start, end) = (schema.values_start() as usize, schema.row_bytes() as usize);
            // SAFETY: the row is the transaction's from here on, and what a removed row held does not count.
            unsafe { row.as_ptr().add(start).write_bytes(0, end - start) }
        }
        header.hold(time);
        match operation {
            Operation::Insert => header.insert(),
            Operation::Remove => {
                header.remove();
                self.tombstones.note(table, access.key.hash(), access.key, row);
            }
            _ => {}
        }
        header.store(row);
        Outcome::Granted
    }

    /// Leaves a scan's time on a range of keys.
    #[inline(always)]
    pub(super) fn cover(&mut self, table: u16, from: Key, to: Key, time: u64) {
        self.gaps[usize::from(table)].cover(from, to, time);
    }

    /// Takes a pin out.
    #[inline(always)]
    pub(super) fn unpin(&mut self, row: RowPtr) {
        let mut header = Header::load(row);
        header.unpin();
        header.store(row);
        self.let_go = true;
    }

    /// Ends a hold.
    #[inline(always)]
    pub(super) fn settle(&mut self, row: RowPtr, time: u64, ending: Ending) {
        let mut header = Header::load(row);
        header.settle(time, ending);
        header.store(row);
        self.let_go = true;
    }

    /// Takes in a message that is no answer.
    #[inline(always)]
    pub(super) fn arrive(&mut self, database: &Database, from: usize, message: Message) {
        match message {
            Message::Access { table, word, image, .. } => {
                prefetch_bucket(database.table(table), word, image);
                self.arrived.push((from, message));
            }
            Message::Fetch { count, wanted, .. } => {
                let (first, end) = (wanted.addr() & !(LINE - 1), wanted.wrapping_add(usize::from(count)).addr());
                (first..end).step_by(LINE).for_each(|line| prefetch(line as *const u8));
                self.bundles.push((from, message));
            }
            Message::Scan { .. } => self.arrived.push((from, message)),
            Message::Release { count, time, wanted, ending } => {
                // SAFETY: what was granted is kept until this has arrived.
                let wanted = unsafe { std::slice::from_raw_parts(wanted, usize::from(count)) };
                self.release(wanted, time, ending);
            }
            Message::Unpin { count, rows } => {
                for &row in &rows[..usize::from(count)] {
                    // SAFETY: rows in messages are rows.
                    self.unpin(unsafe { RowPtr::from_address(row) });
                }
            }
            Message::Settle { row, time, ending } => {
                // SAFETY: as above.
                self.settle(unsafe { RowPtr::from_address(row) }, time, ending);
            }
            _ => unreachable!("answers go to the transactions"),
        }
    }

    /// Whether requests of others are under way.
    #[inline(always)]
    pub(super) fn is_idle(&self) -> bool {
        self.bundles.is_empty() && self.arrived.is_empty() && self.found.is_empty() && self.parked.is_empty()
    }

    /// Moves the background requests on, each by one stage.
    #[inline(always)]
    pub(super) fn move_on(&mut self, database: &Database, mail: &mut Mail) {
        if self.let_go {
            self.let_go = false;
            if !self.parked.is_empty() {
                self.visit_parked(database, mail);
            }
        }
        if !self.found.is_empty() {
            let mut found = std::mem::take(&mut self.found);
            for background in found.drain(..) {
                self.serve(database, background, mail);
            }
            self.found = found;
        }
        if !self.arrived.is_empty() {
            let mut arrived = std::mem::take(&mut self.arrived);
            for (from, message) in arrived.drain(..) {
                self.look_up(database, from, message, mail);
            }
            self.arrived = arrived;
        }
        for &(from, message) in &self.bundles {
            if let Message::Fetch { count, block, wanted, .. } = message {
                // SAFETY: who sends a bundle leaves it alone until the answer.
                let wanted = unsafe { std::slice::from_raw_parts(wanted, usize::from(count)) };
                for wanted in wanted {
                    let image = block.wrapping_add(wanted.key_offset as usize);
                    prefetch_bucket(database.table(wanted.table), wanted.word, image);
                }
            }
            self.arrived.push((from, message));
        }
        self.bundles.clear();
    }

    /// Finds the row of a key in a message, or a tombstone, and prefetches it.
    #[inline(always)]
    fn find_for(&mut self, table: &Arc<Table>, word: u64, image: *const u8) -> Result<(Key, RowPtr), u16> {
        let format = table.key_format();
        let (key, hash) = if format.fits_one_word() {
            (Key([word, 0, 0, 0]), mix(word))
        } else {
            // SAFETY: who sends a key image keeps it until the answer.
            let image = unsafe { std::slice::from_raw_parts(image, format.image_bytes()) };
            (format.encode(image), word)
        };
        let row = self.find(table, hash, &key, image)?;
        prefetch(row.as_ptr());
        Ok((key, row))
    }

    fn look_up(&mut self, database: &Database, from: usize, message: Message, mail: &mut Mail) {
        let (to, request) = match message {
            Message::Access { to, operation, table: number, stamp, word, image } => {
                let (key, row) = match self.find_for(database.table(number), word, image) {
                    Ok(found) => found,
                    Err(code) => return mail.send(from, Message::Failed { to, code }),
                };
                let (time, own_pins) = split(stamp);
                (to, Request::Access(Access { operation, table: number, time, own_pins, key, row }))
            }
            Message::Fetch { slot, count, time, block, wanted } => {
                let to = Return { slot, cp: 0 };
                let count = usize::from(count);
                // SAFETY: who sends a bundle leaves it alone until the answer.
                for wanted in unsafe { std::slice::from_raw_parts_mut(wanted, count) } {
                    let image = block.wrapping_add(wanted.key_offset as usize);
                    match self.find_for(database.table(wanted.table), wanted.word, image) {
                        Ok((_, row)) => wanted.row = row.as_ptr() as u64,
                        Err(code) => return mail.send(from, Message::Failed { to, code }),
                    }
                }
                (to, Request::Fetch { wanted, count, time, granted: 0 })
            }
            Message::Scan { to, time, job } => {
                // SAFETY: who sends a job keeps it until the answer.
                let Job { table, from, to: last, rows } = unsafe { &*job };
                // Before the first row: who inserts from now on comes too late, even if it is older and has arrived
                // already, and who was before is in the index.
                self.cover(*table, *from, *last, time);
                rows.iter().for_each(|row| prefetch(row.as_ptr()));
                (to, Request::Scan { job, time, pinned: 0 })
            }
            _ => unreachable!("only instructions arrive"),
        };
        self.found.push(Background { from, to, request });
    }

    #[cold]
    fn visit_parked(&mut self, database: &Database, mail: &mut Mail) {
        let parked = std::mem::take(&mut self.parked);
        for background in parked {
            self.serve(database, background, mail);
        }
    }

    /// Answers a request, or parks it.
    #[inline(always)]
    fn serve(&mut self, database: &Database, mut background: Background, mail: &mut Mail) {
        if !self.parked.is_empty() && self.is_parked(background.time()) {
            return self.park(background);
        }
        let outcome = match &mut background.request {
            Request::Access(access) => self.visit(database.table(access.table), access),
            Request::Fetch { wanted, count, time, granted } => {
                // SAFETY: who sends a bundle leaves it alone until the answer.
                let wanted = unsafe { std::slice::from_raw_parts_mut(*wanted, *count) };
                self.grant_rows(database, wanted, *time, granted)
            }
            Request::Scan { job, time, pinned } => {
                // SAFETY: who sends a job keeps it until the answer.
                let job = unsafe { &**job };
                self.pin_rows(job, *time, pinned)
            }
        };
        let (from, to) = (background.from, background.to);
        let row = match &background.request {
            Request::Access(access) => access.row.as_ptr() as u64,
            Request::Fetch { .. } | Request::Scan { .. } => 0,
        };
        match outcome {
            Outcome::Granted => match background.request {
                Request::Fetch { .. } => mail.send(from, Message::Fetched { slot: to.slot }),
                _ => mail.grant(from, to, row),
            },
            Outcome::Seen => mail.send(from, Message::Seen { to, row }),
            Outcome::Missing(code) => mail.send(from, Message::Missing { to, code }),
            Outcome::Conflict(above, cause) => mail.send(from, Message::Conflict { to, above, cause }),
            Outcome::Wait => self.park(background),
        }
    }

    /// Whether a request of the transaction of this time is parked. Its later ones must not overtake it: a row that it
    /// reads is pinned, and it would wait for its own pin.
    fn is_parked(&self, time: u64) -> bool {
        self.parked.binary_search_by_key(&time, Background::time).is_ok()
    }

    fn park(&mut self, background: Background) {
        let at = self.parked.partition_point(|other| other.time() <= background.time());
        self.parked.insert(at, background);
    }

    /// Goes on granting the rows of a bundle, in its order.
    #[inline(always)]
    fn grant_rows(&mut self, database: &Database, all: &mut [Wanted], time: u64, granted: &mut usize) -> Outcome {
        while *granted < all.len() {
            let (before, rest) = all.split_at_mut(*granted);
            let wanted = &mut rest[0];
            // SAFETY: rows were found for all.
            let row = unsafe { RowPtr::from_address(wanted.row) };
            let header = Header::load(row);
            let own_pins = if wanted.write && header.is_pinned() || header.is_full() {
                before.iter().filter(|other| other.row == wanted.row && other.has && !other.write).count() as u64
            } else {
                0
            };
            let operation = if wanted.write { Operation::Update } else { Operation::Search };
            // The key does not matter: no key comes or goes.
            let access =
                Access { operation, table: wanted.table, time, own_pins, key: Key([wanted.word, 0, 0, 0]), row };
            match self.visit(database.table(wanted.table), &access) {
                Outcome::Granted => wanted.has = true,
                Outcome::Seen => wanted.has = false,
                Outcome::Wait => return Outcome::Wait,
                refused => {
                    self.release(before, time, Ending::Abort);
                    return refused;
                }
            }
            *granted += 1;
        }
        Outcome::Granted
    }

    /// Lets the rows of a bundle go that are had.
    #[inline(always)]
    fn release(&mut self, all: &[Wanted], time: u64, ending: Ending) {
        for wanted in all.iter().filter(|wanted| wanted.has) {
            // SAFETY: what is had is a row.
            let row = unsafe { RowPtr::from_address(wanted.row) };
            if wanted.write {
                self.settle(row, time, ending);
            } else {
                self.unpin(row);
            }
        }
    }

    /// Goes on pinning the rows of a job, whose range is covered, in the order of their keys.
    fn pin_rows(&mut self, job: &Job, time: u64, pinned: &mut usize) -> Outcome {
        while let Some(&row) = job.rows.get(*pinned) {
            let mut header = Header::load(row);
            let above = match header.may_read(time) {
                Verdict::Granted if header.pin() => {
                    header.saw(time);
                    header.store(row);
                    *pinned += 1;
                    continue;
                }
                Verdict::Granted => time,
                Verdict::Wait => return Outcome::Wait,
                Verdict::Conflict(above) => above,
            };
            job.rows[..*pinned].iter().for_each(|&row| self.unpin(row));
            return Outcome::Conflict(above, Cause::LateRead);
        }
        Outcome::Granted
    }
}
