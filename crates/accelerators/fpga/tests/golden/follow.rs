//! The golden model follows the traced order of the hardware: every decision of admission, and behind it every value.
//!
//! Admission's decisions come in the order of the trace; the model makes each again on its own decision words. A
//! request that is granted is looked up in the model's tables at once, as nobody who may change the answer can be
//! granted before it is released. A transaction is executed when its last DB instruction has been answered: what it
//! reads was copied when it was granted, and what it writes nobody sees before its grants are let go, which is later.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use lockwork_engine::registry::Registered;
use lockwork_fpga::trace::{Event, Found, Op, Record, Return, Verdict};
use lockwork_fpga::views::Views;
use lockwork_procedure::block::abort;
use lockwork_procedure::isa::Opcode;
use lockwork_procedure::partitioning::Partitioning;

use super::interpret::interpret;
use super::rows::{Key, Table};
use super::stepper::{Copy, Ending, Issue, Stepper, first_cp};
use super::words::Word;

/// Requests that a worker parks at most.
const PARK: usize = 64;
/// Bytes of a block's header that are the machine's: status and code, and the serial stamp.
const OUTCOME: std::ops::Range<usize> = 4..8;
const STAMP: std::ops::Range<usize> = 24..32;

/// What a run showed, to see that it was worth something.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) committed: u64,
    pub(crate) aborted: u64,
    pub(crate) failed: u64,
    pub(crate) conflicts: u64,
    pub(crate) granted: u64,
    pub(crate) waits: u64,
    pub(crate) late: u64,
    pub(crate) rows: u64,
    pub(crate) writes: u64,
    pub(crate) answers: u64,
}

#[derive(Clone, Debug)]
struct Asked {
    to: Return,
    op: Op,
    table: usize,
    key_address: u64,
    limit: u32,
    key: Option<Key>,
    /// What the model expects, once it is admitted.
    expected: Option<Found>,
    /// What the hardware answers in the end, and whether it has by now.
    found: Option<Found>,
    told: bool,
    rows: Vec<(Key, Vec<u8>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Unknown,
    Again,
    Done(u8, u16),
}

/// One execution of a transaction, from its beginning or beginning again.
struct Attempt {
    worker: u8,
    block: u64,
    before: Vec<u8>,
    after: Vec<u8>,
    asked: Vec<Asked>,
    /// DB instructions of the whole execution, and those that are answered.
    total: usize,
    answered: usize,
    writes: Vec<(u8, u64)>,
    /// Registers that were written in part: which bytes, and those.
    parts: HashMap<u8, (u8, u64)>,
    gp_base: u8,
    end: End,
    copies: HashMap<u64, Copy>,
    /// Rows at the time of their first grant, whose address is not known before the answer.
    granted: HashMap<(usize, Key), Vec<u8>>,
    inserted: Vec<(usize, Key)>,
    removed: Vec<(usize, Key)>,
}

/// See the module.
pub(crate) struct Golden<'a> {
    pub(crate) tables: Vec<Table>,
    pub(crate) seen: Seen,
    /// The table that each number of the catalogue means.
    numbers: Vec<usize>,
    procedure: &'a dyn Fn(u32) -> Option<Arc<Registered>>,
    entry_bits: u32,
    /// By worker and number.
    words: HashMap<(u8, u16), Word>,
    parked: HashMap<u8, Vec<Return>>,
    rows_asked: HashMap<u8, VecDeque<(u32, u8, u32)>>,
    /// The latest time of a scan of each table.
    scans: HashMap<usize, u32>,
    attempts: HashMap<u32, Attempt>,
    what: String,
}

impl<'a> Golden<'a> {
    pub(crate) fn new(
        what: &str,
        tables: Vec<Table>,
        entries: u64,
        procedure: &'a dyn Fn(u32) -> Option<Arc<Registered>>,
    ) -> Self {
        Self {
            numbers: numbers(&tables, procedure),
            tables,
            seen: Seen::default(),
            procedure,
            entry_bits: entries.trailing_zeros(),
            words: HashMap::new(),
            parked: HashMap::new(),
            rows_asked: HashMap::new(),
            scans: HashMap::new(),
            attempts: HashMap::new(),
            what: what.to_string(),
        }
    }

    /// Follows the trace of whole batches: nothing is under way at its end.
    pub(crate) fn follow(&mut self, trace: &[Record]) {
        let times = times(trace);
        self.attempts = attempts(trace, &times, &self.numbers);
        // Who is in a context now.
        let mut running: HashMap<(u8, u8), u32> = HashMap::new();
        for (number, Record { cycle, worker, event }) in trace.iter().enumerate() {
            let (worker, what) = (*worker, format!("{}, cycle {cycle}, worker {worker}, {event:?}", self.what));
            match event {
                Event::Clear => {
                    self.words.retain(|(of, _), _| *of != worker);
                    self.scans.clear();
                }
                Event::Begin { context, .. } => {
                    let stamp = times[&number];
                    running.insert((worker, *context), stamp);
                    if self.attempts[&stamp].total == 0 {
                        self.execute(stamp);
                    }
                }
                Event::Request { .. } => self.request(worker, event, &what),
                Event::Release { stamp, entry } => {
                    let word = self.words.entry((worker, *entry)).or_default();
                    assert!(word.release(*stamp), "{what}: nobody has a grant");
                }
                Event::RowAsked { stamp, table, hash } => {
                    self.rows_asked.entry(worker).or_default().push_back((*stamp, *table, *hash));
                }
                Event::Row { stamp, entry, verdict } => self.row(worker, *stamp, *entry, *verdict, &what),
                Event::Answer { to, op, found, .. } => {
                    let stamp = running[&(to.worker, to.context)];
                    self.answer(stamp, *to, *op, *found, &what);
                }
                Event::Issue { .. } | Event::Write { .. } | Event::Done { .. } => {}
            }
        }
        assert!(self.attempts.values().all(|attempt| attempt.answered == attempt.total), "{}", self.what);
        let held: Vec<_> = self.words.iter().filter(|(_, word)| !word.is_free()).collect();
        assert!(held.is_empty(), "{}: grants are left: {held:?}", self.what);
        assert!(self.parked.values().all(Vec::is_empty), "{}: {:?}", self.what, self.parked);
    }

    fn entry(&self, table: usize, hash: u32) -> u16 {
        ((hash ^ (table as u32) << (self.entry_bits - 6)) & ((1 << self.entry_bits) - 1)) as u16
    }

    fn request(&mut self, worker: u8, event: &Event, what: &str) {
        let &Event::Request { stamp, to, op, table, key, entry, again, judged, round, verdict } = event else {
            unreachable!()
        };
        let (number, table) = (usize::from(table), self.numbers[usize::from(table)]);
        if judged {
            assert_eq!(entry, self.entry(number, self.tables[table].hash(&key)), "{what}: the decision word");
        }
        let parked = self.parked.entry(worker).or_default();
        let full = parked.len() >= PARK;
        let behind = parked.iter().any(|of| (of.worker, of.context) == (to.worker, to.context));
        if again {
            let at = parked.iter().position(|of| *of == to).unwrap_or_else(|| panic!("{what}: was not parked"));
            parked.remove(at);
        }
        let word = self.words.entry((worker, entry)).or_default();
        let write = op != Op::Search;
        let expected = match (round, judged) {
            // Who has one parked waits behind it; a pass that is under way makes others keep their places too.
            (true, _) => Verdict::Waits,
            (false, false) => Verdict::Granted,
            (false, true) if !again && full && word.must_wait(stamp, write) => Verdict::Late,
            (false, true) => word.request(stamp, write, true),
        };
        assert!(round || again || !behind, "{what}: overtakes one of its transaction");
        assert!(verdict == expected || (round && full && !again && verdict == Verdict::Late), "{what}: {expected:?}");
        match verdict {
            Verdict::Waits => {
                self.seen.waits += 1;
                self.parked.entry(worker).or_default().push(to);
            }
            Verdict::Late => {
                self.seen.late += 1;
                self.expect(stamp, to, op, key, Found::Conflict, what);
            }
            Verdict::Granted => {
                self.seen.granted += 1;
                if op == Op::Scan {
                    let latest = self.scans.entry(table).or_default();
                    *latest = stamp.max(*latest);
                } else {
                    self.look_up(stamp, to, op, table, key, what);
                }
            }
        }
    }

    /// Notes what the instruction will be answered.
    fn expect(&mut self, stamp: u32, to: Return, op: Op, key: Key, found: Found, what: &str) {
        let attempt = self.attempts.get_mut(&stamp).unwrap_or_else(|| panic!("{what}: nobody has this time"));
        let asked = attempt.asked.iter_mut().find(|asked| asked.to == to && asked.op == op && asked.expected.is_none());
        let asked = asked.unwrap_or_else(|| panic!("{what}: was not issued"));
        (asked.key, asked.expected) = ((op != Op::Scan).then_some(key), Some(found));
    }

    fn look_up(&mut self, stamp: u32, to: Return, op: Op, number: usize, key: Key, what: &str) {
        let table = &mut self.tables[number];
        let there = table.rows.contains_key(&key);
        let scanned = self.scans.get(&number).is_some_and(|latest| *latest > stamp);
        let attempt = self.attempts.get_mut(&stamp).unwrap_or_else(|| panic!("{what}: nobody has this time"));
        let asked = attempt.asked.iter().find(|asked| asked.to == to && asked.op == op && asked.expected.is_none());
        let found = match op {
            // A later transaction has scanned a range: whether this key lies in it is checked by the serial order. No
            // row is made, and the unit lets the grant go.
            Op::Insert if scanned && asked.is_some_and(|asked| asked.found == Some(Found::Conflict)) => {
                return self.expect(stamp, to, op, key, Found::Conflict, what);
            }
            Op::Insert if there => Found::Missing(abort::DUPLICATE_KEY),
            _ if !there && op != Op::Insert => Found::Missing(abort::NOT_FOUND),
            // Where it is, is known from the answer.
            _ => Found::Ready(0),
        };
        if op == Op::Insert && !there {
            table.insert(key);
            table.addresses.remove(&key);
            attempt.inserted.push((number, key));
        }
        if matches!(found, Found::Ready(_)) {
            attempt.granted.entry((number, key)).or_insert_with(|| table.rows[&key].clone());
            if op == Op::Remove {
                attempt.removed.push((number, key));
            }
        }
        self.expect(stamp, to, op, key, found, what);
    }

    fn row(&mut self, worker: u8, stamp: u32, entry: u16, verdict: Verdict, what: &str) {
        let asked = self.rows_asked.entry(worker).or_default().pop_front();
        let (of, table, hash) = asked.unwrap_or_else(|| panic!("{what}: nobody asked"));
        let table = usize::from(table);
        assert_eq!((of, self.entry(table, hash)), (stamp, entry), "{what}");
        let expected = self.words.entry((worker, entry)).or_default().request(stamp, false, false);
        assert_eq!(verdict, expected, "{what}");
        if verdict != Verdict::Granted {
            return;
        }
        self.seen.rows += 1;
        let Some(key) = self.tables[table].by_hash(hash) else { return };
        let row = self.tables[table].rows[&key].clone();
        let attempt = self.attempts.get_mut(&stamp).unwrap_or_else(|| panic!("{what}: nobody has this time"));
        let scan = |asked: &&mut Asked| asked.op == Op::Scan && asked.table == table && !asked.told;
        let scan = attempt.asked.iter_mut().find(scan).unwrap_or_else(|| panic!("{what}: no scan"));
        scan.rows.push((key, row));
    }

    fn answer(&mut self, stamp: u32, to: Return, op: Op, found: Found, what: &str) {
        self.seen.answers += 1;
        let attempt = self.attempts.get_mut(&stamp).unwrap_or_else(|| panic!("{what}: nobody has this time"));
        let asked = attempt.asked.iter_mut().find(|asked| asked.to == to && asked.op == op && !asked.told);
        let asked = asked.unwrap_or_else(|| panic!("{what}: was not issued"));
        asked.told = true;
        let (number, key) = (asked.table, asked.key);
        match (op, found) {
            (Op::Scan, Found::Ready(rows)) => {
                asked.rows.truncate(asked.limit as usize);
                assert_eq!(rows as usize, asked.rows.len(), "{what}: rows of the scan: {asked:?}");
            }
            (Op::Scan, _) => {}
            (_, Found::Ready(address)) => {
                assert_eq!(asked.expected, Some(Found::Ready(0)), "{what}: {asked:?}");
                let key = key.expect("it was granted");
                if op != Op::Remove {
                    let known = *self.tables[number].addresses.entry(key).or_insert(address);
                    assert_eq!(known, address, "{what}: the row of key {key:x?} has moved");
                    let bytes = attempt.granted[&(number, key)].clone();
                    attempt.copies.entry(address).or_insert(Copy { table: number, key, bytes });
                    let copy = &attempt.copies[&address];
                    assert_eq!((copy.table, copy.key), (number, key), "{what}: two keys at one address");
                }
            }
            _ => assert_eq!(asked.expected, Some(found), "{what}: {asked:?}"),
        }
        attempt.answered += 1;
        if attempt.answered == attempt.total {
            self.execute(stamp);
        }
    }

    /// Executes a transaction, all of whose answers are known, and compares registers, outcome and block.
    fn execute(&mut self, stamp: u32) {
        let attempt = self.attempts.get_mut(&stamp).expect("it began");
        let number = u32::from_le_bytes(attempt.before[..4].try_into().expect("four bytes"));
        let registered = (self.procedure)(number).expect("it is registered");
        let verified = &registered.verified;
        let what = format!(
            "{}, worker {}, time {stamp}, {}, {:?}",
            self.what,
            attempt.worker,
            verified.procedure().name,
            attempt.end
        );
        // The base of its window of CP registers is not told; the first instruction shows it.
        let cp_base = match attempt.asked.first() {
            Some(asked) => asked.to.cp.wrapping_sub(first_cp(verified, &attempt.before)),
            None => 0,
        };
        let issue = |asked: &Asked| Issue {
            op: asked.op,
            table: asked.table,
            key_at: asked.key_address.wrapping_sub(attempt.block) as usize,
            limit: asked.limit,
            cp: asked.to.cp.wrapping_sub(cp_base),
            key: asked.key,
            found: match asked.found.expect("it is answered") {
                // A row that is removed has no handle.
                Found::Ready(_) if asked.op == Op::Remove => Found::Ready(0),
                found => found,
            },
            rows: asked.rows.clone(),
        };
        let issues: Vec<Issue> = attempt.asked.iter().map(issue).collect();
        let mut copies = attempt.copies.clone();
        let mut block = attempt.before[..registered.block_bytes.next_multiple_of(8)].to_vec();
        let mut stepper = Stepper::new(verified, block.clone(), &issues, attempt.copies.clone());
        let logic = stepper.logic();
        let (again, registers) = interpret(verified, &mut block, &issues[..stepper.issued], &mut copies);
        assert_eq!((again, &block), (logic, &stepper.block), "{what}: the interpreter and the stepper differ");
        assert_eq!(registers, stepper.registers[..registers.len()], "{what}: the interpreter and the stepper differ");
        for (address, copy) in &copies {
            assert_eq!(copy.bytes, stepper.copies[address].bytes, "{what}: the interpreter and the stepper differ");
        }
        let conflict = issues.iter().any(|issue| issue.found == Found::Conflict);
        let failed = issues.iter().any(|issue| matches!(issue.found, Found::Failed(_)));
        let lacks = matches!(attempt.end, End::Done(3, abort::OUT_OF_MEMORY | abort::TOO_MANY_GRANTS));
        let expected = match logic {
            _ if conflict && attempt.end == End::Again => End::Again,
            _ if conflict => End::Done(3, abort::TOO_MANY_RETRIES),
            _ if failed || lacks => attempt.end,
            Ending::Committed => End::Done(1, 0),
            Ending::Aborted(code) => End::Done(2, code),
            Ending::Conflict | Ending::Failed(_) => unreachable!("some answer says so"),
        };
        assert_eq!(attempt.end, expected, "{what}: {logic:?}");
        assert!(!failed || matches!(attempt.end, End::Done(3, _)), "{what}");
        let ended = match attempt.end {
            End::Done(1 | 2, _) => {
                stepper.handler(logic);
                let same = |at: &usize| OUTCOME.contains(at) || STAMP.contains(at);
                let differs = (0..stepper.block.len()).find(|at| !same(at) && attempt.after[*at] != stepper.block[*at]);
                if let Some(at) = differs {
                    let (found, expected) = (attempt.after[at], stepper.block[at]);
                    panic!("{what}: byte {at} of the block is {found:#04x}, the model says {expected:#04x}");
                }
                let header = u64::from_le_bytes(attempt.after[STAMP].try_into().expect("eight bytes"));
                assert_eq!(header, u64::from(stamp), "{what}: the stamp in the block");
                true
            }
            _ => false,
        };
        let registers = by_register(&stepper.writes);
        let told = attempt.writes.iter().map(|&(gp, value)| (gp.wrapping_sub(attempt.gp_base), value));
        let told = by_register(&told.collect::<Vec<_>>());
        // Who is told of a conflict or a lack may be stopped before it asks for that.
        let stopped = lacks || failed || conflict;
        let told_of = |register: u8| told.get(&register).map_or(&[][..], Vec::as_slice);
        let expected_of = |register: u8| registers.get(&register).map_or(&[][..], Vec::as_slice);
        let cut = |register: u8| if stopped { told_of(register).len() } else { usize::MAX };
        let same = |register: u8| {
            let expected = expected_of(register);
            told_of(register) == &expected[..cut(register).min(expected.len())]
        };
        if let Some(register) = (0..=255).find(|&register| !same(register)) {
            let (found, expected) = (told_of(register), expected_of(register));
            panic!("{what}, ended {ended}: r{register} was written {found:x?}, the model says {expected:x?}");
        }
        self.seen.writes += attempt.writes.len() as u64;
        match attempt.end {
            End::Done(1, _) => self.seen.committed += 1,
            End::Done(2, _) => self.seen.aborted += 1,
            End::Done(..) => self.seen.failed += 1,
            _ => self.seen.conflicts += 1,
        }
        let gone = if attempt.end == End::Done(1, 0) {
            for copy in stepper.copies.values() {
                let before = &attempt.granted[&(copy.table, copy.key)];
                let row = self.tables[copy.table].rows.entry(copy.key).or_insert_with(|| before.clone());
                // Others may have written other columns meanwhile.
                let bytes = row.iter_mut().zip(&copy.bytes).zip(before);
                bytes.filter(|((_, now), before)| now != before).for_each(|((byte, now), _)| *byte = *now);
            }
            std::mem::take(&mut attempt.removed)
        } else {
            std::mem::take(&mut attempt.inserted)
        };
        for (table, key) in gone {
            self.tables[table].rows.remove(&key);
            self.tables[table].addresses.remove(&key);
        }
    }
}

/// Values of each register, in the order in which they were written.
fn by_register(writes: &[(u8, u64)]) -> HashMap<u8, Vec<u64>> {
    let mut all: HashMap<u8, Vec<u64>> = HashMap::new();
    writes.iter().for_each(|&(register, value)| all.entry(register).or_default().push(value));
    all
}

/// The tables of the numbers of the catalogue: those of groups of columns follow those of tables.
fn numbers(tables: &[Table], procedure: &dyn Fn(u32) -> Option<Arc<Registered>>) -> Vec<usize> {
    let procedures: Vec<_> = (0..).map_while(procedure).collect();
    let is_scanned = |table: usize| {
        procedures.iter().any(|registered| {
            let verified = &registered.verified;
            let id = |slot: u8| usize::from(verified.tables()[usize::from(slot)].id);
            verified.procedure().code.iter().any(|i| i.opcode == Opcode::Scan && id(i.d) == table)
        })
    };
    let divisible = |(number, table): (usize, &Table)| {
        table.schema.partitioning() != Some(Partitioning::Replicated) && !is_scanned(number)
    };
    let divisible: Vec<bool> = tables.iter().enumerate().map(divisible).collect();
    let views = Views::of(procedures.iter().map(|registered| &registered.verified), &divisible, 64);
    (0..tables.len()).chain(views.views.iter().map(|view| usize::from(view.table))).collect()
}

/// The time of each beginning, by its place in the trace: it is taken with the first DB instruction, or at the end.
fn times(trace: &[Record]) -> HashMap<usize, u32> {
    let mut times = HashMap::new();
    // Beginnings whose time is not known: place, worker, context, block.
    let mut waiting: Vec<(usize, u8, u8, Option<u64>)> = Vec::new();
    for (number, Record { worker, event, .. }) in trace.iter().enumerate() {
        let (place, stamp) = match event {
            Event::Begin { context, block, .. } => {
                waiting.push((number, *worker, *context, *block));
                continue;
            }
            // A context may be taken again before the block that was in it is told to be done.
            Event::Issue { stamp, to, .. } => {
                (waiting.iter().rposition(|of| (of.1, of.2) == (*worker, to.context)), *stamp)
            }
            Event::Done { block, stamp, .. } => {
                (waiting.iter().position(|of| (of.1, of.3) == (*worker, Some(*block))), *stamp)
            }
            _ => continue,
        };
        if let Some(place) = place {
            times.insert(waiting.remove(place).0, stamp);
        }
    }
    assert!(waiting.is_empty(), "transactions without a time: {waiting:?}");
    times
}

/// All executions of a trace, by their times, with what their softcores did and were answered.
fn attempts(trace: &[Record], times: &HashMap<usize, u32>, numbers: &[usize]) -> HashMap<u32, Attempt> {
    let mut attempts: HashMap<u32, Attempt> = HashMap::new();
    let mut running: HashMap<(u8, u8), u32> = HashMap::new();
    for (number, Record { worker, event, .. }) in trace.iter().enumerate() {
        match event {
            Event::Begin { context, block, gp_base, bytes } => {
                let stamp = times[&number];
                let before = running.insert((*worker, *context), stamp);
                let (mut address, mut base) = (block.unwrap_or(0), *gp_base);
                if block.is_none() {
                    let before = attempts.get_mut(&before.expect("it began before")).expect("it began before");
                    assert_eq!(before.end, End::Unknown);
                    before.end = End::Again;
                    (address, base) = (before.block, before.gp_base);
                }
                let attempt = Attempt {
                    worker: *worker,
                    block: address,
                    before: bytes.clone(),
                    after: Vec::new(),
                    asked: Vec::new(),
                    total: 0,
                    answered: 0,
                    writes: Vec::new(),
                    parts: HashMap::new(),
                    gp_base: base,
                    end: End::Unknown,
                    copies: HashMap::new(),
                    granted: HashMap::new(),
                    inserted: Vec::new(),
                    removed: Vec::new(),
                };
                assert!(attempts.insert(stamp, attempt).is_none(), "two transactions of time {stamp}");
            }
            Event::Write { context, gp, bytes, value } => {
                let attempt = attempts.get_mut(&running[&(*worker, *context)]).expect("it began");
                let mask = (0..8).filter(|at| bytes >> at & 1 == 1).map(|at| 0xFF << (8 * at)).sum::<u64>();
                let (before, old) = attempt.parts.remove(gp).unwrap_or((0, 0));
                assert_eq!(before & bytes, 0, "register {gp} is written twice at a time");
                let (bytes, value) = (before | bytes, old | (value & mask));
                if bytes == 0xFF {
                    attempt.writes.push((*gp, value));
                } else {
                    attempt.parts.insert(*gp, (bytes, value));
                }
            }
            Event::Issue { stamp, to, op, table, key_address, limit } => {
                let attempt = attempts.get_mut(stamp).expect("it began");
                attempt.total += 1;
                attempt.asked.push(Asked {
                    to: *to,
                    op: *op,
                    table: numbers[usize::from(*table)],
                    key_address: *key_address,
                    limit: u32::from(*limit),
                    key: None,
                    expected: None,
                    found: None,
                    told: false,
                    rows: Vec::new(),
                });
            }
            Event::Answer { to, op, found, .. } => {
                let attempt = attempts.get_mut(&running[&(to.worker, to.context)]).expect("it began");
                let mut waiting = attempt.asked.iter_mut().filter(|asked| asked.found.is_none());
                let asked = waiting.find(|asked| asked.to == *to && asked.op == *op);
                asked.unwrap_or_else(|| panic!("{event:?}: was not issued")).found = Some(*found);
            }
            Event::Done { stamp, status, code, bytes, .. } => {
                // What is no procedure has not begun.
                if let Some(attempt) = attempts.get_mut(stamp) {
                    assert_eq!(attempt.end, End::Unknown);
                    attempt.end = End::Done(*status, *code);
                    attempt.after = bytes.clone();
                }
            }
            _ => {}
        }
    }
    attempts
}
