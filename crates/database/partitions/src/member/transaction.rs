//! A call that does not run at once: because others take part in it, it has to wait, or what it touches was looked up.

use std::sync::Arc;

use lockwork_engine::registry::Registered;
use lockwork_procedure::access::KeyAccess;
use lockwork_procedure::block::HEADER_BYTES;
use lockwork_procedure::key::Key;

use crate::access::{Access, Scan};
use crate::layout::{Layout, Range, Wanted, in_order};
use crate::ordered::Participants;
use crate::wire::{Malformed, Put, Reader};

const WRITES: u8 = 1;
const RANGE: u8 = 2;
const ENDS: u8 = 4;

/// See the module.
#[derive(Debug)]
pub(super) struct Transaction {
    /// Its place in the coordinator's batch, and in the order.
    pub(super) index: u32,
    pub(super) stamp: u64,
    pub(super) participants: Participants,
    /// The number of its procedure, and that.
    pub(super) procedure: u32,
    pub(super) registered: Arc<Registered>,
    pub(super) block: Block,
    /// In an order that is the same at all who take part.
    pub(super) accesses: Vec<Access>,
    /// So many of them have been made of this call; the others are of one before, until it is known that they are not
    /// needed.
    touched: usize,
    /// For their memory.
    spare: Vec<Access>,
    /// It is all here, and what it touches is told by its arguments: it runs as if it had not waited.
    pub(super) whole: bool,
    /// The locks of its footprint, wherever the rows are; none if its arguments tell, for then it touches nothing else.
    pub(super) covered: Vec<Wanted>,
    /// The locks of its rows here.
    pub(super) locks: Vec<Wanted>,
    /// Of them so many are not granted yet.
    pub(super) waits: usize,
    /// Whose values are still to come.
    pub(super) awaited: u64,
    /// Workers elsewhere that are to be told what becomes of it.
    pub(super) tell: u64,
    /// Its own values are copied and told.
    pub(super) told: bool,
}

/// A block of its own.
#[derive(Debug, Default)]
pub(super) struct Block(Vec<u64>);

impl Block {
    /// Makes it one of this procedure, with these arguments.
    pub(super) fn fill(&mut self, registered: &Registered, arguments: &[u8]) {
        self.0.clear();
        self.0.resize(registered.block_bytes.max(HEADER_BYTES as usize).div_ceil(8), 0);
        // SAFETY: initialised words are eight initialised bytes each, and all bytes are good in words.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast::<u8>(), self.0.len() * 8) };
        bytes[HEADER_BYTES as usize..][..arguments.len()].copy_from_slice(arguments);
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * 8) }
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

impl Transaction {
    /// A transaction that nothing is known of yet.
    pub(super) fn new(procedure: u32, registered: Arc<Registered>) -> Self {
        Self {
            index: 0,
            stamp: 0,
            participants: Participants::default(),
            procedure,
            registered,
            block: Block::default(),
            accesses: Vec::new(),
            touched: 0,
            spare: Vec::new(),
            whole: false,
            covered: Vec::new(),
            locks: Vec::new(),
            waits: 0,
            awaited: 0,
            tell: 0,
            told: false,
        }
    }

    /// Makes it as [`Self::new`] does; the memory stays.
    pub(super) fn renew(&mut self, procedure: u32, registered: Arc<Registered>) {
        (self.procedure, self.registered) = (procedure, registered);
        self.touched = 0;
        self.covered.clear();
        self.locks.clear();
        (self.whole, self.told, self.waits, self.awaited) = (false, false, 0, 0);
    }

    /// Takes what the arguments tell, and brings near the places where rows of it are looked for here.
    pub(super) fn touch_known(&mut self, known: &[KeyAccess], layout: &Layout, me: usize) {
        for access in known {
            let table = self.registered.table_id(access.slot);
            let write = access.operation.writes();
            match self.accesses[..self.touched].iter_mut().find(|a| a.table == table && a.key == access.key) {
                Some(same) => same.write |= write,
                None => {
                    if layout.owner(table, &access.key) == Some(me) {
                        self.registered.tables[usize::from(access.slot)].prefetch(access.key.hash());
                    }
                    self.touch(table, access.key, write);
                }
            }
        }
        self.touched_all();
        for access in &self.accesses {
            if layout.owner(access.table, &access.key) == Some(me) {
                layout.locks(access.table, &access.key, Range::Row, access.write, &mut self.locks);
            }
        }
        in_order(&mut self.locks);
    }

    /// One more row.
    fn touch(&mut self, table: u16, key: Key, write: bool) {
        match self.accesses.get_mut(self.touched) {
            Some(access) => access.renew(table, key, write),
            None => match self.spare.pop() {
                Some(mut access) => {
                    access.renew(table, key, write);
                    self.accesses.push(access);
                }
                None => self.accesses.push(Access::row(table, key, write)),
            },
        }
        self.touched += 1;
    }

    /// Everything was touched that the call is known to touch.
    fn touched_all(&mut self) {
        self.spare.extend(self.accesses.drain(self.touched..));
    }

    /// Takes what was found by looking.
    ///
    /// # Errors
    /// It is no footprint.
    pub(super) fn touch_footprint(&mut self, footprint: &[u8], layout: &Layout, me: usize) -> Result<(), Malformed> {
        let mut reader = Reader::new(footprint);
        for _ in 0..reader.u32()? {
            let (table, key, flags) = (layout.known(reader.u16()?)?, reader.key()?, reader.u8()?);
            let before = self.covered.len();
            if flags & RANGE == 0 {
                self.touch(table, key, flags & WRITES != 0);
                layout.locks(table, &key, Range::Row, flags & WRITES != 0, &mut self.covered);
            } else {
                let (limit, column) = (reader.u32()?, reader.u8()?);
                let end = if flags & ENDS == 0 { None } else { Some(reader.key()?) };
                self.touch(table, key, false);
                self.accesses[self.touched - 1] = Access::range(table, key, limit, column);
                layout.locks(table, &key, Range::To(end.as_ref()), false, &mut self.covered);
            }
            // Every worker has its own part of a range.
            if flags & RANGE != 0 || layout.owner(table, &key) == Some(me) {
                self.locks.extend_from_slice(&self.covered[before..]);
            }
        }
        self.touched_all();
        in_order(&mut self.covered);
        in_order(&mut self.locks);
        Ok(())
    }

    /// Whether what the attempt used is what others keep away from. Rows that were not in the footprint are lacking, so
    /// only ranges are looked at: they may go further now.
    pub(super) fn is_covered(&self, layout: &Layout) -> bool {
        let mut needed = Vec::new();
        let ranges = self.accesses.iter().filter(|access| access.scan.is_some());
        ranges.for_each(|access| access.locks(layout, &mut needed));
        needed.iter().all(|&(lock, _)| self.covered.binary_search_by_key(&lock, |held| held.0).is_ok())
    }
}

/// Appends the footprint of what an attempt has used.
pub(super) fn put_footprint(accesses: &[Access], out: &mut Vec<u8>) {
    out.u32(accesses.len() as u32);
    for access in accesses {
        out.u16(access.table);
        out.key(&access.key);
        let Some(scan) = &access.scan else {
            out.u8(if access.write { WRITES } else { 0 });
            continue;
        };
        let end = scan_end(scan);
        out.u8(RANGE | if end.is_some() { ENDS } else { 0 });
        out.u32(scan.limit);
        out.u8(scan.column);
        if let Some(end) = end {
            out.key(end);
        }
    }
}

/// The last key of a range; `None`: it goes to the end of the table.
fn scan_end(scan: &Scan) -> Option<&Key> {
    if (scan.keys.len() as u64) < u64::from(scan.limit) { None } else { scan.keys.last() }
}
