//! Which locks transactions take under two-phase locking: what lock managers are compared by.
//!
//! The list is not a table of guesses: each call of the workload runs, as its procedure is written, on the rows that
//! the workload begins with, and every row that it looks up, writes, inserts, removes or scans is the lock of the range
//! that the row lies in, shared to read and exclusive to write. Rows are a function of the seed, so nothing is loaded,
//! and a thousand warehouses need no memory. What a call writes is gone after it; the next one finds the first rows
//! again. That changes which row of a range is touched (a Delivery always finds the same oldest order), hardly which
//! range.
//!
//! A transaction's list is in the order of the locks, so that clients who take them one after the other never wait in a
//! circle, and each lock stands in it once, exclusive if any of the accesses was a write.
//!
//! Rows of indexes, and of tables that are replicated since nobody writes them, are not locked: the locks of the
//! records that they lead to protect what is read. The wealth of rows is mapped to about as many locks as a decider
//! has: see `lock_of` of each workload.

use lockwork_procedure::access::Operation;
use lockwork_procedure::assembly::assemble;
use lockwork_procedure::block::{Batch, abort};
use lockwork_procedure::interpreter::{Answer, Context, Host, Program, Request, Stop, run};
use lockwork_procedure::isa::scan_source;
use lockwork_procedure::schema::{ROW_HEADER_BYTES, TableSchema};
use lockwork_procedure::verified::Verified;
use lockwork_procedure::verify::verify;

use crate::fields::Place;
use crate::tatp::{Tatp, TatpConfig};
use crate::tpcc::{Tpcc, TpccConfig};
use crate::{Workload, WorkloadError};

/// A workload that knows its first rows by key, and which locks protect them.
pub(crate) trait Locked: Workload {
    /// How many locks there are.
    fn locks(&self) -> u64;

    /// Which row of table number `table` has this key (integers of its key columns, texts as 0, and the image).
    fn row_of(&self, table: usize, key: &Key<'_>) -> Option<u64>;

    /// The rows from `key` on, in the order of their keys, at most `limit`.
    fn scan(&self, table: usize, key: &Key<'_>, limit: usize) -> Vec<u64>;

    /// The lock of the range that this key lies in; `None` where rows are not locked.
    fn lock_of(&self, table: usize, key: &Key<'_>) -> Option<u64>;

    /// Names of its types of transaction, and the type of each procedure.
    fn types() -> (&'static [&'static str], &'static [u8]);

    /// Where a call of procedure `number` belongs, from 0; `None` if to no place in particular.
    fn home_of(&self, number: usize, block: &[u8]) -> Option<u64>;

    /// How many locks each home has, where there are homes.
    fn locks_of_home(&self) -> Option<u64>;
}

/// The key of a row.
pub(crate) struct Key<'a> {
    /// Integer columns, in order; texts are 0.
    pub(crate) parts: [u64; 5],
    /// All columns, as they lie in a row.
    pub(crate) image: &'a [u8],
}

impl<'a> Key<'a> {
    pub(crate) fn of(schema: &TableSchema, image: &'a [u8]) -> Self {
        let mut parts = [0; 5];
        for (part, column) in parts.iter_mut().zip(schema.key()) {
            if column.column_type.is_integer() {
                *part = Place::of(column).get(image) as u64;
            }
        }
        Self { parts, image }
    }
}

/// A lock that a transaction takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockRequest {
    /// Which, from 0.
    pub lock: u64,
    /// To write.
    pub exclusive: bool,
}

/// One transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transaction<'a> {
    /// Which of [`LockTrace::types`] it is.
    pub type_number: usize,
    /// Where it belongs: to a warehouse of TPC-C, from 0. Transactions of TATP belong to no place in particular.
    pub home: Option<u64>,
    /// What it locks, by lock, each once.
    pub requests: &'a [LockRequest],
}

#[derive(Clone, Copy, Debug)]
struct Call {
    type_number: u8,
    home: Option<u64>,
    /// Where its requests end.
    end: usize,
}

/// The lock requests of many transactions, in the order in which the workload makes them.
#[derive(Clone, Debug)]
pub struct LockTrace {
    locks: u64,
    locks_of_home: Option<u64>,
    types: &'static [&'static str],
    calls: Vec<Call>,
    requests: Vec<LockRequest>,
}

impl LockTrace {
    /// Of TATP: ten locks a subscriber, one of them for the subscriber's row, one for each access and for all
    /// facilities, and one for the forwardings of each facility.
    ///
    /// # Errors
    /// As [`Tatp::new`].
    pub fn tatp(config: TatpConfig, transactions: usize) -> Result<Self, WorkloadError> {
        Ok(Self::record(&mut Tatp::new(config)?, transactions))
    }

    /// Of TPC-C: 831 locks a warehouse of the specification's size. The warehouse and each district have one; and so
    /// have the orders of a district with their lines, 3,000 payments in a row, 100 customers of a district, and 200
    /// stocks.
    ///
    /// # Errors
    /// As [`Tpcc::new`].
    pub fn tpcc(config: TpccConfig, transactions: usize) -> Result<Self, WorkloadError> {
        Ok(Self::record(&mut Tpcc::new(config)?, transactions))
    }

    fn record<W: Locked>(workload: &mut W, transactions: usize) -> Self {
        let schemas = workload.schemas();
        let assembled = |(_, text): &(String, String)| {
            let procedure = assemble(text, schemas.as_slice()).expect("the workload's own").procedure;
            verify(procedure, schemas.as_slice()).expect("the workload's own")
        };
        let sources = workload.sources();
        let procedures: Vec<Verified> = sources.iter().map(assembled).collect();
        let find = |name: &str| procedures.iter().position(|known| known.procedure().name == name);
        let mut lookup = |name: &str| Some((find(name)? as u32, procedures[find(name)?].procedure().clone()));
        workload.bind(&mut lookup).expect("its own procedures");
        let programs: Vec<Program> = procedures.iter().map(Program::new).collect();
        let (types, type_of) = W::types();
        let (locks, locks_of_home) = (workload.locks(), workload.locks_of_home());
        let mut trace = Self { locks, locks_of_home, types, calls: Vec::new(), requests: Vec::new() };
        let mut batch = Batch::new(workload.block_bytes(), 1024).expect("some megabytes");
        while trace.calls.len() < transactions {
            batch.clear();
            let wanted = transactions - trace.calls.len();
            workload.fill(&mut batch, wanted).expect("it is bound, and blocks are long enough");
            for at in 0..batch.len() {
                let number = batch.block(at).procedure() as usize;
                let home = workload.home_of(number, batch.block(at).bytes());
                let mut recorder = Recorder {
                    workload: &*workload,
                    schemas: &schemas,
                    verified: &procedures[number],
                    rows: Vec::new(),
                    image: Vec::new(),
                    requests: Vec::new(),
                };
                recorder.run(&programs[number], batch.block_mut(at).bytes());
                trace.requests.append(&mut merged(recorder.requests));
                trace.calls.push(Call { type_number: type_of[number], home, end: trace.requests.len() });
            }
        }
        trace
    }

    /// How many locks there are; requests are for those below.
    #[must_use]
    pub fn locks(&self) -> u64 {
        self.locks
    }

    /// How many homes transactions and locks belong to, each with as many locks; 0 if to none.
    #[must_use]
    pub fn homes(&self) -> u64 {
        self.locks_of_home.map_or(0, |each| self.locks / each)
    }

    /// The home that a lock belongs to, where there are homes.
    #[must_use]
    pub fn home_of(&self, lock: u64) -> Option<u64> {
        Some(lock / self.locks_of_home?)
    }

    /// Names of the types of transaction, as FissLock's evaluation has them.
    #[must_use]
    pub fn types(&self) -> &'static [&'static str] {
        self.types
    }

    /// How many transactions there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Transaction number `at`.
    ///
    /// # Panics
    /// When there are not so many.
    #[must_use]
    pub fn transaction(&self, at: usize) -> Transaction<'_> {
        let Call { type_number, home, end } = self.calls[at];
        let start = at.checked_sub(1).map_or(0, |before| self.calls[before].end);
        Transaction { type_number: type_number.into(), home, requests: &self.requests[start..end] }
    }

    /// All transactions.
    pub fn transactions(&self) -> impl Iterator<Item = Transaction<'_>> {
        (0..self.len()).map(|at| self.transaction(at))
    }

    /// For each type how many transactions there are, and how many locks they take in all.
    #[must_use]
    pub fn counts(&self) -> Vec<(u64, u64)> {
        let mut counts = vec![(0, 0); self.types.len()];
        for transaction in self.transactions() {
            let count = &mut counts[transaction.type_number];
            *count = (count.0 + 1, count.1 + transaction.requests.len() as u64);
        }
        counts
    }

    /// The locks that are asked for most often, and how often each, the hottest first: at most `most`. What a lock
    /// manager that accelerates a few locks has to know beforehand.
    #[must_use]
    pub fn hottest(&self, most: usize) -> Vec<(u64, u64)> {
        let mut sorted: Vec<u64> = self.requests.iter().map(|request| request.lock).collect();
        sorted.sort_unstable();
        let mut counts: Vec<(u64, u64)> =
            sorted.chunk_by(|a, b| a == b).map(|same| (same[0], same.len() as u64)).collect();
        counts.sort_unstable_by_key(|&(lock, count)| (std::cmp::Reverse(count), lock));
        counts.truncate(most);
        counts
    }
}

/// Sorted by lock, each once, in the stronger mode.
fn merged(mut requests: Vec<LockRequest>) -> Vec<LockRequest> {
    requests.sort_unstable();
    requests.dedup_by(|later, kept| {
        let same = later.lock == kept.lock;
        kept.exclusive |= same && later.exclusive;
        same
    });
    requests
}

/// Runs one call, and notes what it locks.
struct Recorder<'a, W> {
    workload: &'a W,
    schemas: &'a [TableSchema],
    verified: &'a Verified,
    /// Rows, headers included, that the call works on; they live as long as it does.
    rows: Vec<Box<[u64]>>,
    image: Vec<u8>,
    requests: Vec<LockRequest>,
}

impl<W: Locked> Recorder<'_, W> {
    fn run(&mut self, program: &Program, block: &mut [u8]) {
        let mut registers = vec![0; program.gp_registers()];
        let mut cps = vec![Answer::Pending; program.cp_registers()];
        let mut context = Context::default();
        // SAFETY: windows are as wide as the program says and zero; the block is this procedure's and ours; rows are
        // as long as their tables' rows, and live until the recorder is dropped.
        let stop = unsafe { run(program, &mut context, &mut registers, &mut cps, block.as_mut_ptr(), self) };
        debug_assert!(matches!(stop, Stop::Committed | Stop::Aborted(_)), "{stop:?}");
    }

    fn note(&mut self, table: usize, key: &Key<'_>, exclusive: bool) {
        if let Some(lock) = self.workload.lock_of(table, key) {
            self.requests.push(LockRequest { lock, exclusive });
        }
    }

    /// A row with this image, or the beginning of one, and zeros.
    fn lend(&mut self, schema: &TableSchema, image: &[u8]) -> *mut u8 {
        let header = ROW_HEADER_BYTES as usize;
        let bytes = (schema.row_bytes() as usize).max(header + image.len());
        let mut row = vec![0_u64; bytes.div_ceil(8)].into_boxed_slice();
        let start: *mut u8 = row.as_mut_ptr().cast();
        // SAFETY: the row is at least as long.
        unsafe { start.add(header).copy_from_nonoverlapping(image.as_ptr(), image.len()) };
        self.rows.push(row);
        start
    }

    /// Copies rows into the block, as SCAN has it.
    fn scan(&mut self, table: usize, key: &Key<'_>, request: &Request) -> u64 {
        let schema = &self.schemas[table];
        let (offset, length) = scan_source(schema, usize::from(request.column).checked_sub(1));
        let rows = self.workload.scan(table, key, request.limit as usize);
        let mut image = std::mem::take(&mut self.image);
        for (at, &row) in rows.iter().enumerate() {
            self.workload.row_image(table, row, &mut image);
            self.note(table, &Key::of(schema, &image), false);
            let from = &image[(offset - ROW_HEADER_BYTES) as usize..][..length as usize];
            // SAFETY: the verifier proved that the buffer holds as many rows as the limit says.
            unsafe {
                let to = request.buffer.add(at * length.next_multiple_of(8) as usize);
                to.copy_from_nonoverlapping(from.as_ptr(), from.len());
            }
        }
        self.image = image;
        rows.len() as u64
    }
}

impl<W: Locked> Host for Recorder<'_, W> {
    type Cp = Answer;

    fn issue(&mut self, cp: &mut Answer, request: Request) {
        let used = &self.verified.tables()[usize::from(request.slot)];
        let table = usize::from(used.id);
        let schema = &self.schemas[table];
        // SAFETY: the interpreter passes a key image inside the block, which is copied, as scans write to the block.
        let image = unsafe { std::slice::from_raw_parts(request.key, used.key.image_bytes()) }.to_vec();
        let key = Key::of(schema, &image);
        self.note(table, &key, request.operation.writes());
        let workload = self.workload;
        let row = || workload.row_of(table, &key);
        *cp = match request.operation {
            Operation::Scan => Answer::Ready(self.scan(table, &key, &request)),
            Operation::Insert if row().is_some() => Answer::Missing(abort::DUPLICATE_KEY),
            Operation::Insert => Answer::Ready(self.lend(schema, &image) as u64),
            _ => match row() {
                None => Answer::Missing(abort::NOT_FOUND),
                Some(_) if request.operation == Operation::Remove => Answer::Ready(0),
                Some(row) => {
                    let mut image = std::mem::take(&mut self.image);
                    self.workload.row_image(table, row, &mut image);
                    let row = self.lend(schema, &image);
                    self.image = image;
                    Answer::Ready(row as u64)
                }
            },
        };
    }

    fn answer(&mut self, cps: &mut [Answer], cp: usize) -> Answer {
        cps[cp]
    }

    // Rows are forgotten after the call, whatever it wrote.
    unsafe fn keep(&mut self, _: *mut u8, _: u32, _: u32) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(trace: &LockTrace, name: &str) -> f64 {
        let at = trace.types().iter().position(|known| *known == name).expect("a type");
        let (transactions, locks) = trace.counts()[at];
        locks as f64 / transactions as f64
    }

    /// Whether all of a type write the first of their locks, or none.
    fn writes(trace: &LockTrace, name: &str) -> (bool, bool) {
        let at = trace.types().iter().position(|known| *known == name).expect("a type");
        let mine = || trace.transactions().filter(|transaction| transaction.type_number == at);
        let writes = |transaction: Transaction<'_>| transaction.requests.iter().any(|request| request.exclusive);
        (mine().all(writes), mine().any(writes))
    }

    fn sound(trace: &LockTrace, transactions: usize) {
        assert_eq!((trace.len(), trace.is_empty()), (transactions, false));
        for transaction in trace.transactions() {
            let locks = transaction.requests;
            assert!(!locks.is_empty() && locks.windows(2).all(|two| two[0].lock < two[1].lock), "{transaction:?}");
            assert!(locks.iter().all(|request| request.lock < trace.locks()), "{transaction:?}");
        }
        let hottest = trace.hottest(10);
        assert_eq!(hottest.len(), 10);
        assert!(hottest.is_sorted_by(|a, b| a.1 >= b.1));
        let all: u64 = trace.hottest(usize::MAX).iter().map(|&(_, count)| count).sum();
        assert_eq!(all, trace.counts().iter().map(|(_, locks)| locks).sum::<u64>());
    }

    #[test]
    fn tatp_takes_one_lock_or_two() {
        let trace = LockTrace::tatp(TatpConfig { subscribers: 2000, ..TatpConfig::default() }, 5000);
        let trace = trace.expect("it is possible");
        sound(&trace, 5000);
        assert_eq!((trace.locks(), trace.home_of(7), trace.transaction(0).home), (20_000, None, None));
        for one in ["GS", "GA", "UL", "DF"] {
            assert_eq!(mean(&trace, one), 1.0, "{one}");
        }
        assert_eq!(mean(&trace, "US"), 2.0);
        // Five in eight facilities are there, and for one that is not nothing follows; nor for one that is not active.
        assert!((1.55..1.75).contains(&mean(&trace, "IF")), "{}", mean(&trace, "IF"));
        assert!((1.4..1.65).contains(&mean(&trace, "GD")), "{}", mean(&trace, "GD"));
        for reads in ["GS", "GA", "GD"] {
            assert_eq!(writes(&trace, reads), (false, false), "{reads}");
        }
        for changes in ["US", "UL", "DF"] {
            assert_eq!(writes(&trace, changes), (true, true), "{changes}");
        }
        // Without the facility nothing is inserted.
        assert_eq!(writes(&trace, "IF"), (false, true));
    }

    #[test]
    fn tpcc_takes_fourteen_locks_for_an_order_and_four_for_a_payment() {
        let trace = LockTrace::tpcc(TpccConfig::standard(20), 2000).expect("it is possible");
        sound(&trace, 2000);
        assert_eq!(trace.locks(), 20 * 831);
        assert!((13.3..14.3).contains(&mean(&trace, "NEW")), "{}", mean(&trace, "NEW"));
        assert_eq!(mean(&trace, "PAY"), 4.0);
        assert_eq!(mean(&trace, "OS"), 2.0);
        // Of each district the orders and the customer of the oldest one.
        assert_eq!(mean(&trace, "DLY"), 20.0);
        // The district, its orders, and stocks of some two hundred lines.
        assert!((130.0..180.0).contains(&mean(&trace, "SL")), "{}", mean(&trace, "SL"));
        for (name, all) in [("NEW", true), ("PAY", true), ("DLY", true), ("OS", false), ("SL", false)] {
            assert_eq!(writes(&trace, name), (all, all), "{name}");
        }
        for transaction in trace.transactions() {
            let (home, locks) = (transaction.home.expect("a warehouse"), transaction.requests);
            let at_home = locks.iter().filter(|request| trace.home_of(request.lock) == Some(home)).count();
            assert!(home < 20 && at_home * 2 >= locks.len() && at_home > 1, "{transaction:?}");
        }
        let warehouse = |transaction: &Transaction<'_>| {
            let own = LockRequest {
                lock: transaction.home.expect("a warehouse") * 831,
                exclusive: transaction.type_number == 1,
            };
            transaction.type_number > 1 || transaction.requests.contains(&own)
        };
        assert!(trace.transactions().all(|transaction| warehouse(&transaction)), "who pays writes the warehouse");
        let same = LockTrace::tpcc(TpccConfig::standard(20), 2000).expect("it is possible");
        assert_eq!((same.requests, same.calls.len()), (trace.requests, 2000));
    }

    #[test]
    fn rows_that_are_found_by_key_are_those_that_are_loaded() {
        let tatp = Tatp::new(TatpConfig { subscribers: 200, ..TatpConfig::default() }).expect("it is possible");
        found(&tatp, &[0, 1, 2, 3, 4]);
        let config = TpccConfig { customers: 30, items: 100, ..TpccConfig::standard(2) };
        let tpcc = Tpcc::new(config).expect("it is possible");
        found(&tpcc, &[0, 1, 2, 4, 5, 6, 7, 8]);
        // Ordered tables, and the indexes of customers by name and of orders by customer.
        for table in [5, 6, 9, 10] {
            let schema = &tpcc.schemas()[table];
            let mut rows: Vec<(u64, Vec<u8>)> = Vec::new();
            let mut image = Vec::new();
            for row in 0..tpcc.row_count(table) {
                tpcc.row_image(table, row, &mut image);
                let key = Key::of(schema, &image);
                if key.parts[..2] == [2, 3] {
                    rows.push((row, image.clone()));
                }
            }
            let format = lockwork_procedure::key::KeyFormat::of(schema);
            rows.sort_by_key(|(_, image)| format.encode(&image[..format.image_bytes()]));
            let order: Vec<u64> = rows.iter().map(|(row, _)| *row).collect();
            for (at, (_, image)) in rows.iter().enumerate() {
                assert_eq!(tpcc.scan(table, &Key::of(schema, image), 1 << 20), order[at..], "table {table}");
            }
            let first = Key::of(schema, &rows[0].1);
            assert_eq!(tpcc.scan(table, &first, 7), order[..7]);
        }
    }

    fn found<W: Locked>(workload: &W, tables: &[usize]) {
        let schemas = workload.schemas();
        let mut image = Vec::new();
        for &table in tables {
            for row in 0..workload.row_count(table) {
                workload.row_image(table, row, &mut image);
                let key = &image[..schemas[table].key_bytes() as usize];
                assert_eq!(workload.row_of(table, &Key::of(&schemas[table], key)), Some(row), "table {table}");
            }
        }
    }
}
