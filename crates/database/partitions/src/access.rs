//! What a transaction touches: copies of rows and of ranges, on which its procedure runs.
//!
//! An *attempt* runs a procedure on the copies that are there. A DB instruction whose row was not fetched yet is noted
//! as an access to be fetched, and the attempt ends where its answer is needed; the next one begins anew, on unchanged
//! copies. So accesses that depend on what rows hold are found in as many attempts as references follow each other.
//!
//! Invariant: an attempt that was complete has used no row, and no range, that is not among the accesses.

use lockwork_engine::registry::Registered;
use lockwork_procedure::access::Operation;
use lockwork_procedure::block::abort;
use lockwork_procedure::interpreter::{Answer, Host, Request};
use lockwork_procedure::isa::scan_source;
use lockwork_procedure::key::Key;
use lockwork_procedure::schema::{ROW_HEADER_BYTES, TableSchema};

use crate::layout::{Layout, Range, Wanted};

/// The range that a scan reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scan {
    /// The most rows.
    pub(crate) limit: u32,
    /// Column plus one, or zero for whole rows.
    pub(crate) column: u8,
    /// Keys that were fetched, in order, and the bytes of their rows that the scan takes.
    pub(crate) keys: Vec<Key>,
    pub(crate) bytes: Vec<u8>,
}

impl Scan {
    /// Puts what several owners found in order, and drops what is behind the last row.
    pub(crate) fn merge(&mut self) {
        let most = self.limit as usize;
        let width = self.bytes.len() / self.keys.len().max(1);
        if !self.keys.is_sorted() {
            let mut order: Vec<usize> = (0..self.keys.len()).collect();
            order.sort_unstable_by_key(|&at| self.keys[at]);
            self.bytes = order.iter().flat_map(|&at| self.bytes[at * width..(at + 1) * width].to_vec()).collect();
            self.keys = order.iter().map(|&at| self.keys[at]).collect();
        }
        self.keys.truncate(most);
        self.bytes.truncate(most * width);
    }
}

/// A row, or the place of one, or a range.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) table: u16,
    pub(crate) key: Key,
    pub(crate) scan: Option<Box<Scan>>,
    /// Somebody writes it: its lock has to be exclusive.
    pub(crate) write: bool,
    /// What is copied here is from its owner, as late as the transaction needs it.
    pub(crate) fetched: bool,
    /// The row as it was fetched, without its header; empty: there was none.
    pub(crate) image: Vec<u8>,
    /// The row of the present attempt, header included; empty: it is as it was fetched.
    row: Vec<u64>,
    change: Change,
}

/// What the present attempt has done to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum Change {
    #[default]
    None,
    Written,
    Inserted,
    /// It goes at commit, and until then it is there. Whether it was inserted too.
    Removed(bool),
}

/// What has to be done to a table when a transaction commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect<'a> {
    Put(&'a [u8]),
    Remove,
}

impl Access {
    pub(crate) fn row(table: u16, key: Key, write: bool) -> Self {
        let (image, row) = (Vec::new(), Vec::new());
        Self { table, key, scan: None, write, fetched: false, image, row, change: Change::None }
    }

    /// Makes it one of another row; the memory stays.
    pub(crate) fn renew(&mut self, table: u16, key: Key, write: bool) {
        self.image.clear();
        self.row.clear();
        let (image, row) = (std::mem::take(&mut self.image), std::mem::take(&mut self.row));
        *self = Self { image, row, ..Self::row(table, key, write) };
    }

    pub(crate) fn range(table: u16, key: Key, limit: u32, column: u8) -> Self {
        let scan = Scan { limit, column, keys: Vec::new(), bytes: Vec::new() };
        Self { scan: Some(Box::new(scan)), ..Self::row(table, key, false) }
    }

    /// Forgets what an attempt did.
    pub(crate) fn begin_attempt(&mut self) {
        self.row.clear();
        self.change = Change::None;
    }

    fn exists(&self) -> bool {
        !self.image.is_empty() || matches!(self.change, Change::Inserted | Change::Removed(true))
    }

    /// The bytes of the attempt's row, header included.
    fn bytes(&self) -> &[u8] {
        // SAFETY: the words are initialised bytes eight at a time.
        unsafe { std::slice::from_raw_parts(self.row.as_ptr().cast(), self.row.len() * 8) }
    }

    /// A row of the attempt with this image, zeros behind it.
    fn materialize(&mut self, schema: &TableSchema, image: &[u8]) {
        self.row.clear();
        self.row.resize(schema.row_bytes().div_ceil(8) as usize, 0);
        let start = ROW_HEADER_BYTES as usize;
        assert!(start + image.len() <= self.row.len() * 8, "an image is no longer than its row");
        // SAFETY: the image lies in the row, as was just seen.
        unsafe { self.row.as_mut_ptr().cast::<u8>().add(start).copy_from(image.as_ptr(), image.len()) }
    }

    /// The locks that it needs, as far as what was fetched last tells.
    pub(crate) fn locks(&self, layout: &Layout, out: &mut Vec<Wanted>) {
        let range = match &self.scan {
            Some(scan) if (scan.keys.len() as u64) < u64::from(scan.limit) => Range::To(None),
            Some(scan) => Range::To(scan.keys.last()),
            None => Range::Row,
        };
        layout.locks(self.table, &self.key, range, self.write, out);
    }

    /// What the last attempt, which commits, has done to it.
    pub(crate) fn effect(&self, schema: &TableSchema) -> Option<Effect<'_>> {
        match self.change {
            Change::None | Change::Removed(true) => None,
            Change::Removed(false) => Some(Effect::Remove),
            Change::Written | Change::Inserted => {
                Some(Effect::Put(&self.bytes()[ROW_HEADER_BYTES as usize..schema.row_bytes() as usize]))
            }
        }
    }
}

/// What an attempt lacked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lacks {
    /// Something was not fetched.
    pub(crate) fetch: bool,
    /// Something is written that was only to be read.
    pub(crate) write: bool,
}

/// The host of one attempt.
pub(crate) struct Copies<'a> {
    pub(crate) registered: &'a Registered,
    pub(crate) accesses: &'a mut Vec<Access>,
    pub(crate) lacks: Lacks,
}

impl Host for Copies<'_> {
    type Cp = Option<Answer>;

    fn issue(&mut self, cp: &mut Option<Answer>, request: Request) {
        *cp = Some(self.answer_now(request));
    }

    fn answer(&mut self, cps: &mut [Option<Answer>], cp: usize) -> Answer {
        cps[cp].expect("the verifier proved that a DB instruction precedes its RET")
    }

    /// An attempt that aborts has changed copies only.
    unsafe fn keep(&mut self, _row: *mut u8, _offset: u32, _length: u32) {}
}

impl Copies<'_> {
    fn answer_now(&mut self, request: Request) -> Answer {
        let table = &self.registered.tables[usize::from(request.slot)];
        let id = self.registered.table_id(request.slot);
        // SAFETY: the interpreter passes a key image inside the block.
        let image = unsafe { std::slice::from_raw_parts(request.key, table.key_format().image_bytes()) };
        let key = table.key_format().encode(image);
        if request.operation == Operation::Scan {
            return self.scan(id, key, table.schema(), &request);
        }
        let found = self.accesses.iter().position(|a| a.key == key && a.table == id && a.scan.is_none());
        let at = found.unwrap_or_else(|| {
            self.accesses.push(Access::row(id, key, request.operation.writes()));
            self.accesses.len() - 1
        });
        let access = &mut self.accesses[at];
        if request.operation.writes() && !access.write {
            access.write = true;
            self.lacks.write = true;
        }
        if !access.fetched {
            self.lacks.fetch = true;
            return Answer::Pending;
        }
        match (request.operation, access.exists()) {
            (Operation::Search | Operation::Update, true) => {
                if access.row.is_empty() {
                    let image = std::mem::take(&mut access.image);
                    access.materialize(table.schema(), &image);
                    access.image = image;
                }
                if request.operation == Operation::Update && access.change == Change::None {
                    access.change = Change::Written;
                }
                Answer::Ready(access.row.as_mut_ptr() as u64)
            }
            (Operation::Remove, true) => {
                access.change = Change::Removed(access.image.is_empty());
                Answer::Ready(0)
            }
            (Operation::Insert, true) => Answer::Missing(abort::DUPLICATE_KEY),
            (Operation::Insert, false) => {
                let mut image = image.to_vec();
                let length = image.len();
                let gaps = table.schema().gaps().filter(|gap| gap.end <= length);
                gaps.for_each(|gap| image[gap].fill(0));
                access.materialize(table.schema(), &image);
                access.change = Change::Inserted;
                Answer::Ready(access.row.as_mut_ptr() as u64)
            }
            _ => Answer::Missing(abort::NOT_FOUND),
        }
    }

    fn scan(&mut self, id: u16, from: Key, schema: &TableSchema, request: &Request) -> Answer {
        let (limit, column) = (request.limit, request.column);
        let same = |access: &Access| {
            access.key == from
                && access.table == id
                && access.scan.as_ref().is_some_and(|scan| (scan.limit, scan.column) == (limit, column))
        };
        let Some(at) = self.accesses.iter().position(same) else {
            self.accesses.push(Access::range(id, from, limit, column));
            self.lacks.fetch = true;
            return Answer::Pending;
        };
        if !self.accesses[at].fetched {
            self.lacks.fetch = true;
            return Answer::Pending;
        }
        let (offset, length) = scan_source(schema, usize::from(column).checked_sub(1));
        let (offset, length) = (offset as usize, length as usize);
        let scan = self.accesses[at].scan.as_ref().expect("it is a range");
        let mut rows: Vec<(Key, &[u8])> = scan.keys.iter().copied().zip(scan.bytes.chunks(length.max(1))).collect();
        // What the transaction itself has written stands in its own copies.
        for own in self.accesses.iter().filter(|own| own.table == id && own.key >= from && !own.row.is_empty()) {
            let bytes = &own.bytes()[offset..offset + length];
            match rows.binary_search_by_key(&own.key, |row| row.0) {
                Ok(at) => rows[at].1 = bytes,
                Err(at) if own.image.is_empty() => rows.insert(at, (own.key, bytes)),
                // It is behind the last row that the scan reaches.
                Err(_) => {}
            }
        }
        rows.truncate(limit as usize);
        for (number, (_, bytes)) in rows.iter().enumerate() {
            // SAFETY: the verifier proved that the buffer holds as many rows, eight-aligned, as the limit says.
            unsafe {
                let target = request.buffer.add(number * length.next_multiple_of(8));
                target.copy_from_nonoverlapping(bytes.as_ptr(), length);
            }
        }
        Answer::Ready(rows.len() as u64)
    }
}
