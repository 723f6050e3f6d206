//! Random transactions on the index, as a softcore would run them, and whether what they saw is serial in the order of
//! their times.

use std::collections::{BTreeMap, VecDeque};

use super::bench::{Answer, Bench, Op, Request, SOURCES};
use super::decisions::{Decisions, Verdict};
use super::random::Random;
use super::table::{ROW_BYTES, VALUES, hash};

/// Percentages of operations; the rest are searches and updates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mix {
    pub(crate) contexts: u64,
    pub(crate) keys: usize,
    pub(crate) scans: u32,
    pub(crate) inserts: u32,
    pub(crate) removes: u32,
}

type Key = (u64, Vec<u64>);

/// What a row held from a time on: all of it, or nothing.
type Version = Option<Vec<u8>>;

#[derive(Debug, Default)]
struct Row {
    address: u64,
    live: bool,
    versions: BTreeMap<u64, Version>,
}

#[derive(Debug)]
struct Undo {
    key: Key,
    before: Vec<u8>,
    live: bool,
    removed: bool,
}

#[derive(Debug, Default)]
enum Step {
    #[default]
    Idle,
    Admission(Request),
    Waiting(Request),
}

#[derive(Debug, Default)]
struct Context {
    time: u64,
    left: u32,
    grants: Vec<u64>,
    undo: Vec<Undo>,
    scans: Vec<Scan>,
    step: Step,
}

#[derive(Debug)]
struct Scan {
    time: u64,
    request: Request,
    result: Vec<Vec<u8>>,
}

#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) committed: u64,
    aborted: u64,
    late_inserts: u64,
    pub(crate) scans: u64,
    rows: u64,
    reused: u64,
}

pub(crate) struct World {
    bench: Bench,
    random: Random,
    mix: Mix,
    keys: Vec<Key>,
    rows: BTreeMap<Key, Row>,
    contexts: Vec<Context>,
    queue: VecDeque<Request>,
    scans: Vec<Scan>,
    latest_scan: u64,
    clock: u64,
    tally: Tally,
}

impl World {
    pub(crate) fn new(bench: Bench, seed: u64, mix: Mix) -> Self {
        let mut random = Random::new(seed ^ 0x3072);
        let keys = (0..mix.keys).map(|_| Self::random_key(&bench, &mut random)).collect();
        let contexts = (0..mix.contexts).map(|_| Context::default()).collect();
        Self {
            bench,
            random,
            mix,
            keys,
            rows: BTreeMap::new(),
            contexts,
            queue: VecDeque::new(),
            scans: Vec::new(),
            latest_scan: 0,
            clock: 0,
            tally: Tally::default(),
        }
    }

    fn random_key(bench: &Bench, random: &mut Random) -> Key {
        let table = &bench.tables[random.of(0..bench.tables.len())];
        // Few values in the words, so that keys begin alike.
        let mut word = || if table.words == 1 { random.any() } else { random.of(1..5_u64) << 61 | 0xABC0 };
        (table.number, (0..table.words).map(|_| word()).collect())
    }

    /// Runs so many transactions to their ends.
    pub(crate) fn run(&mut self, transactions: u64) {
        let mut sent: Option<Request> = None;
        let mut begun = 0;
        loop {
            for i in 0..self.contexts.len() {
                if matches!(self.contexts[i].step, Step::Idle) {
                    if self.contexts[i].left == 0 {
                        self.end(i, true);
                        if begun < transactions {
                            begun += 1;
                            self.clock += 1;
                            let left = self.random.of(1..6);
                            self.contexts[i] = Context { time: self.clock, left, ..Context::default() };
                        }
                    }
                    if self.contexts[i].left > 0 {
                        self.contexts[i].left -= 1;
                        let request = self.request(i);
                        self.contexts[i].step = Step::Admission(request);
                    }
                }
                self.admit(i);
            }
            if sent.is_none() {
                sent = self.queue.pop_front();
            }
            let events = self.bench.step(sent.as_ref());
            if events.accepted {
                sent = None;
            }
            if let Some(answer) = events.answer {
                self.answered(answer);
            }
            let idle = |context: &Context| matches!(context.step, Step::Idle) && context.left == 0 && context.time == 0;
            if begun == transactions && self.contexts.iter().all(idle) {
                break;
            }
        }
        self.bench.settle();
    }

    fn request(&mut self, context: usize) -> Request {
        let dice = self.random.of(0..100);
        let Mix { scans, inserts, removes, .. } = self.mix;
        let op = match dice {
            _ if dice < scans => Op::Scan,
            _ if dice < scans + inserts => Op::Insert,
            _ if dice < scans + inserts + removes => Op::Remove,
            _ if dice.is_multiple_of(2) => Op::Update,
            _ => Op::Search,
        };
        // A row that the transaction removes is there until it commits, which the check of scans does not know.
        let removes = self.contexts[context].undo.iter().any(|undo| undo.removed);
        let op = if op == Op::Scan && removes { Op::Search } else { op };
        let (mut table, mut key) = self.keys[self.random.of(0..self.keys.len())].clone();
        let source = self.random.of(0..SOURCES.len() as u64);
        if op == Op::Scan && self.random.of(0..2) == 0 {
            (table, key) = Self::random_key(&self.bench, &mut self.random);
        }
        let limit = if self.random.of(0..5) == 0 { 30 } else { self.random.of(0..12) };
        let buffer = self.bench.buffer(context as u64);
        if op == Op::Scan {
            self.contexts[context].left = 0;
            (0..4096 / 8).for_each(|word| self.bench.memory.set_word(buffer + 8 * word, 0xEEEE_EEEE_EEEE_EEEE));
        }
        let (stamp, context) = (self.contexts[context].time, context as u64);
        Request { op, table, stamp, context, key, granted: None, limit, source, buffer }
    }

    fn admit(&mut self, i: usize) {
        let Step::Admission(request) = &mut self.contexts[i].step else { return };
        if request.op != Op::Scan {
            let entry = Decisions::entry(request.table, hash(&request.key));
            match self.bench.decisions.ask(entry, request.stamp, request.op != Op::Search) {
                Verdict::Granted => request.granted = Some(entry),
                Verdict::Wait => return,
                Verdict::Conflict => return self.end(i, false),
            }
        }
        let request = request.clone();
        if request.op == Op::Scan && request.limit > 0 {
            self.latest_scan = self.latest_scan.max(request.stamp);
        }
        self.contexts[i].step = Step::Waiting(request.clone());
        self.queue.push_back(request);
    }

    fn answered(&mut self, answer: Answer) {
        let i = answer.context as usize;
        let Step::Waiting(request) = std::mem::take(&mut self.contexts[i].step) else {
            panic!("context {i} waits for nothing, and got {answer:?}");
        };
        if answer.granted {
            assert_eq!(Some(answer.entry), request.granted);
            self.contexts[i].grants.push(answer.entry);
        } else {
            assert!(request.op == Op::Scan || answer.kind >= 2, "{answer:?} to {request:x?} keeps its grant");
        }
        if answer.kind == 2 {
            self.tally.late_inserts += u64::from(request.op == Op::Insert);
            match request.op {
                Op::Insert => assert!(request.stamp < self.latest_scan, "no scan is younger than {request:x?}"),
                op => assert_eq!(op, Op::Scan, "no conflict is due here"),
            }
            return self.end(i, false);
        }
        if request.op == Op::Scan {
            return self.scanned(i, request, answer);
        }
        let key = (request.table, request.key.clone());
        let row = self.rows.entry(key.clone()).or_default();
        let missing = row.live == (request.op == Op::Insert);
        let code = if row.live { 0xFF02 } else { 0xFF01 };
        if missing {
            assert_eq!((answer.kind, answer.value), (1, code), "{request:x?} of {row:x?}");
            if row.address == 0 {
                self.rows.remove(&key);
            }
            return;
        }
        assert_eq!(answer.kind, 0, "{request:x?} of {row:x?}: {answer:x?}");
        if row.address == 0 {
            row.address = answer.value;
        } else {
            self.tally.reused += u64::from(request.op == Op::Insert);
        }
        assert_eq!(answer.value, row.address, "row of {request:x?}");
        let (address, live) = (row.address, row.live);
        row.live = true;
        let memory = &mut self.bench.memory;
        assert_eq!(memory.byte(address + 7), 1, "{request:x?} is live");
        let before = (VALUES..ROW_BYTES).map(|at| memory.byte(address + at)).collect();
        if request.op == Op::Insert {
            assert_eq!(before, vec![0; (ROW_BYTES - VALUES) as usize], "values of {request:x?}");
        }
        if matches!(request.op, Op::Insert | Op::Update) {
            (VALUES..ROW_BYTES).for_each(|at| memory.set_byte(address + at, self.random.any()));
        }
        if request.op != Op::Search {
            self.contexts[i].undo.push(Undo { key, before, live, removed: request.op == Op::Remove });
        }
    }

    fn scanned(&mut self, i: usize, request: Request, answer: Answer) {
        assert!(answer.kind == 0 && answer.value <= request.limit, "{answer:x?} to {request:x?}");
        let (_, bytes, next) = SOURCES[request.source as usize];
        let memory = &self.bench.memory;
        let row = |row| (0..bytes).map(|at| memory.byte(request.buffer + row * next + at)).collect();
        let result = (0..answer.value).map(row).collect();
        for row in 0..answer.value {
            for at in bytes..next {
                assert_eq!(memory.byte(request.buffer + row * next + at), 0xEE, "between rows of {request:x?}");
            }
        }
        assert_eq!(memory.byte(request.buffer + answer.value * next), 0xEE, "behind the rows of {request:x?}");
        self.contexts[i].scans.push(Scan { time: request.stamp, request, result });
    }

    fn image(&self, address: u64) -> Vec<u8> {
        (0..ROW_BYTES).map(|at| self.bench.memory.byte(address + at)).collect()
    }

    fn end(&mut self, i: usize, commit: bool) {
        let context = std::mem::take(&mut self.contexts[i]);
        if context.time == 0 {
            return;
        }
        let commit = commit && self.random.of(0..10) > 0;
        self.tally.committed += u64::from(commit);
        self.tally.aborted += u64::from(!commit);
        for undo in context.undo.iter().rev() {
            let row = self.rows.get_mut(&undo.key).expect("a row");
            if !commit {
                let bytes = (VALUES..).zip(&undo.before);
                bytes.for_each(|(at, &byte)| self.bench.memory.set_byte(row.address + at, byte));
                row.live = undo.live;
            } else if undo.removed {
                row.live = false;
            }
            self.bench.memory.set_byte(row.address + 7, u8::from(row.live));
        }
        for undo in context.undo.iter().filter(|_| commit) {
            let (address, live) = (self.rows[&undo.key].address, self.rows[&undo.key].live);
            let version = live.then(|| self.image(address));
            self.rows.get_mut(&undo.key).expect("a row").versions.insert(context.time, version);
        }
        if commit {
            self.scans.extend(context.scans);
        }
        for entry in context.grants {
            self.bench.decisions.release(entry, context.time);
        }
    }

    /// Checks what scans saw, the lists, and that nothing is held, and says what there was to see.
    pub(crate) fn check(mut self) -> Tally {
        self.bench.decisions.check();
        for scan in &self.scans {
            let (offset, bytes, _) = SOURCES[scan.request.source as usize];
            let from = (scan.request.table, scan.request.key.clone());
            let expected: Vec<Vec<u8>> = self
                .rows
                .range(from..(scan.request.table + 1, Vec::new()))
                .filter_map(|(_, row)| row.versions.range(..=scan.time).next_back()?.1.as_ref())
                .take(scan.request.limit as usize)
                .map(|row| row[offset as usize..][..bytes as usize].to_vec())
                .collect();
            assert_eq!(scan.result, expected, "{:x?}", scan.request);
            self.tally.scans += 1;
            self.tally.rows += expected.len() as u64;
        }
        for (place, table) in self.bench.tables.iter().enumerate() {
            let rows = self.rows.iter().filter(|(key, _)| key.0 == table.number);
            self.bench
                .check_lists(place, &rows.map(|(key, row)| (key.1.clone(), row.address, row.live)).collect::<Vec<_>>());
        }
        println!("{:?}, {} cycles", self.tally, self.bench.cycles());
        self.tally
    }
}
