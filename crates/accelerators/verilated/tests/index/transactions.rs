//! Contexts that run transactions of random DB instructions, and what must hold of their answers.
//!
//! Timestamp ordering promises the serial execution in the order of times. So the committed transactions, executed one
//! after the other in that order on a map, must have seen what the map says, and leave what it holds.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::machine::{
    Answer, CONFLICT, DbRequest, FAILED, INSERT, MISSING, Machine, READY, REMOVE, Release, SCAN, SEARCH, UPDATE,
};
use super::tables::{Placed, Table};

/// What is asked, and what came back.
#[derive(Clone, Copy, Debug)]
struct Operation {
    op: u64,
    table: usize,
    key: u64,
    answer: Option<Answer>,
    /// The value that a row had when it was answered.
    seen: Option<u64>,
}

#[derive(Debug, Default)]
struct Context {
    stamp: u64,
    operations: Vec<Operation>,
    issued: usize,
    commits: bool,
}

/// A committed transaction.
#[derive(Debug)]
struct Committed {
    stamp: u64,
    operations: Vec<Operation>,
}

/// How often what happened.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) committed: u64,
    pub(crate) conflicts: u64,
    pub(crate) refused: u64,
    pub(crate) no_room: u64,
    pub(crate) answers: u64,
    pub(crate) scans: u64,
    pub(crate) reused: u64,
}

#[derive(Debug)]
pub(crate) struct Transactions {
    pub(crate) machine: Machine,
    tables: Vec<Table>,
    /// Where the keys of the tables lie, one after the other; by table and key.
    images: Vec<Vec<u64>>,
    contexts: Vec<Vec<Context>>,
    initial: BTreeMap<(usize, u64), u64>,
    committed: Vec<Committed>,
    /// Who holds what: by (owner, decision word), the times, and whether it is for writing.
    held: HashMap<(u64, u64), Vec<(u64, bool)>>,
    rows: HashMap<u64, (usize, u64)>,
    /// What went to the skiplist last, by context: (time, number of the instruction).
    last_tree: HashMap<(u64, u64), (u64, u64)>,
    stamps: u64,
    pub(crate) counts: Counts,
}

impl Transactions {
    /// Lays out the tables, loads some of their rows, and begins on `contexts` contexts of each worker.
    pub(crate) fn new(mut machine: Machine, mut tables: Vec<Table>, contexts: usize) -> Self {
        let workers = machine.workers.len() as u64;
        let mut at = 64;
        let mut images = Vec::new();
        let mut initial = BTreeMap::new();
        let mut rows = HashMap::new();
        let mut free = Vec::new();
        for (number, table) in tables.iter_mut().enumerate() {
            table.head_base = at;
            at += 8 * (workers << table.head_bits);
            let mut places = Vec::new();
            for key in 0..table.keys {
                // Any alignment, unless the key is one integer; the bytes around are not zero.
                let place = at + if table.format.is_one_integer() { 0 } else { machine.random.below(8) };
                table.image(key).iter().enumerate().for_each(|(i, &b)| machine.memory.set_byte(place + i as u64, b));
                places.push(place);
                at += 48;
            }
            images.push(places);
            at = at.next_multiple_of(64);
            for worker in 0..workers {
                let first = at + table.before;
                let mut next = first;
                let all = table.placed == Placed::Everywhere;
                for key in 0..table.keys {
                    if table.owner(key, 0, workers) != worker || !machine.random.percent(50) || table.ordered {
                        continue;
                    }
                    let value = 1_000_000 + key;
                    table.load(&mut machine.memory, worker, next, key, value);
                    rows.insert(next, (number, key));
                    initial.insert((number, key), value);
                    next += table.stride;
                }
                let left = if all || table.ordered { 0 } else { table.rows };
                free.push((number as u64, worker, next, next + left * table.stride));
                at = next + left * table.stride;
            }
        }
        machine.configure(&tables, &free);
        let contexts = (0..workers).map(|_| (0..contexts).map(|_| Context::default()).collect()).collect();
        Self {
            machine,
            tables,
            images,
            contexts,
            initial,
            committed: Vec::new(),
            held: HashMap::new(),
            rows,
            last_tree: HashMap::new(),
            stamps: 0,
            counts: Counts::default(),
        }
    }

    /// Runs until so many transactions are committed and nothing is under way.
    pub(crate) fn run(&mut self, transactions: u64) {
        let mut last_answer = self.machine.now;
        let mut answers = 0;
        loop {
            let drains = self.counts.committed >= transactions;
            for worker in 0..self.contexts.len() {
                self.take_answers(worker);
                for context in 0..self.contexts[worker].len() {
                    self.go_on(worker, context, drains);
                }
            }
            if drains && self.contexts.iter().flatten().all(|context| context.operations.is_empty()) {
                break;
            }
            self.machine.step();
            if answers != self.counts.answers {
                (answers, last_answer) = (self.counts.answers, self.machine.now);
            }
            let context = || self.contexts.iter().flatten().find(|context| !context.operations.is_empty());
            assert!(self.machine.now < last_answer + 50_000, "nothing is answered any more: {:?}", context());
        }
        (0..2000).for_each(|_| self.machine.step());
        assert!(!self.machine.is_busy(), "something is left under way");
        assert!(self.machine.workers.iter().all(|worker| worker.answers.is_empty()), "an answer too many");
    }

    fn begin(&mut self, worker: usize, context: usize) {
        let random = &mut self.machine.random;
        self.stamps += 1;
        let mut operations = Vec::new();
        let table = random.below(self.tables.len() as u64) as usize;
        for _ in 0..1 + random.below(8) {
            let table = if random.percent(50) { table } else { random.below(self.tables.len() as u64) as usize };
            let key = if random.percent(30) { random.below(3) } else { random.below(self.tables[table].keys) };
            let op = match random.below(10) {
                _ if self.tables[table].placed == Placed::Everywhere => SEARCH,
                _ if self.tables[table].ordered && random.percent(50) => SCAN,
                0..4 => SEARCH,
                4..6 => UPDATE,
                6..9 => INSERT,
                _ => REMOVE,
            };
            operations.push(Operation { op, table, key, answer: None, seen: None });
            // Often the same key again.
            if random.percent(30) && op != SCAN {
                let op = if self.tables[table].placed == Placed::Everywhere { SEARCH } else { random.below(4) };
                operations.push(Operation { op, table, key, answer: None, seen: None });
            }
        }
        let commits = random.percent(85);
        self.contexts[worker][context] = Context { stamp: self.stamps, operations, issued: 0, commits };
    }

    /// Issues instructions, or ends the transaction.
    fn go_on(&mut self, worker: usize, context: usize, drains: bool) {
        if self.contexts[worker][context].operations.is_empty() {
            if !drains {
                self.begin(worker, context);
            }
            return;
        }
        let now = &mut self.contexts[worker][context];
        if let Some(operation) = now.operations.get(now.issued) {
            if self.machine.workers[worker].db.len() < 2 && self.machine.random.percent(50) {
                let key_address = self.images[operation.table][operation.key as usize];
                self.machine.workers[worker].db.push_back(DbRequest {
                    op: operation.op,
                    table: operation.table as u64,
                    stamp: now.stamp,
                    context: context as u64,
                    cp: now.issued as u64,
                    key_address,
                    limit: now.stamp & 0xFFFF,
                    source: operation.key & 63,
                    delta: 0x80_0000 + now.stamp,
                });
                now.issued += 1;
            }
            return;
        }
        if now.operations.iter().all(|operation| operation.answer.is_some()) {
            self.end(worker, context);
        }
    }

    fn take_answers(&mut self, worker: usize) {
        self.take_trees(worker);
        for answer in std::mem::take(&mut self.machine.workers[worker].answers) {
            self.take_answer(answer);
        }
    }

    /// What goes to the skiplist is answered here, and must be what was asked.
    fn take_trees(&mut self, worker: usize) {
        for tree in std::mem::take(&mut self.machine.workers[worker].trees) {
            let Answer { worker: from, context, cp, .. } = tree.answer;
            let asked = self.contexts[from as usize][context as usize].operations[cp as usize];
            let stamp = self.contexts[from as usize][context as usize].stamp;
            let table = &self.tables[asked.table];
            assert_eq!((tree.answer.op, tree.table, tree.stamp), (asked.op, asked.table as u64, stamp), "{tree:?}");
            let earlier = self.last_tree.insert((from, context), (stamp, cp));
            assert!(earlier.is_none_or(|earlier| earlier < (stamp, cp)), "{earlier:?} was overtaken by {tree:?}");
            assert_eq!(tree.key, table.key(asked.key).0, "{tree:?}");
            assert_eq!(tree.hash, table.hash(asked.key), "{tree:?}");
            assert_eq!(tree.answer.granted, asked.op != SCAN, "{tree:?}");
            if asked.op == SCAN {
                let result =
                    self.images[asked.table][asked.key as usize].wrapping_sub(0x80_0000 - stamp) & 0xFF_FFFF_FFFF;
                assert_eq!(
                    (tree.limit, tree.source, tree.result),
                    (stamp & 0xFFFF, asked.key & 63, result),
                    "{tree:?}"
                );
                self.counts.scans += 1;
            }
            self.take_answer(Answer { value: u64::MAX, ..tree.answer });
        }
    }

    fn take_answer(&mut self, answer: Answer) {
        let context = &mut self.contexts[answer.worker as usize][answer.context as usize];
        let stamp = context.stamp;
        let operation =
            context.operations.get_mut(answer.cp as usize).unwrap_or_else(|| panic!("nobody asked: {answer:?}"));
        assert!(operation.answer.is_none(), "answered twice: {answer:?}");
        operation.answer = Some(answer);
        self.counts.answers += 1;
        let Operation { op, table: number, key, .. } = *operation;
        let table = &self.tables[number];
        let workers = self.machine.workers.len() as u64;
        assert_eq!(answer.op, op, "{answer:?}");
        // Who could not read the key does not know the owner.
        let unknown = (answer.answer, answer.value) == (FAILED, 0xFF13);
        assert!(unknown || answer.owner == table.owner(key, answer.worker, workers), "{answer:?}");
        let judged = table.placed != Placed::Everywhere && op != SCAN;
        assert_eq!(answer.granted, judged && matches!(answer.answer, READY | MISSING), "{answer:?}");
        if answer.granted {
            let holders = self.held.entry((answer.owner, answer.entry)).or_default();
            let write = op != SEARCH;
            let clash = holders.iter().find(|(other, writes)| *other != stamp && (write || *writes));
            assert_eq!(clash, None, "time {stamp} got what another one holds: {answer:?}");
            holders.push((stamp, write));
        }
        if answer.value == u64::MAX {
            return;
        }
        match (answer.answer, answer.value) {
            (READY, row) => {
                let memory = &mut self.machine.memory;
                let words = table.key(key).0;
                assert_eq!(memory.word(row + 8), words[0], "another row: {answer:?}");
                for (word, &wanted) in words.iter().enumerate().take(table.words()).skip(1) {
                    assert_eq!(memory.word(row - 8 * word as u64), wanted, "another row: {answer:?}");
                }
                assert_eq!(memory.word(row) >> 56, 1, "an absent row: {answer:?}");
                let known = self.rows.insert(row, (number, key));
                assert!(known.is_none_or(|known| known == (number, key)), "a row of two keys: {answer:?}");
                if op == INSERT {
                    self.counts.reused += u64::from(known.is_some());
                    assert!(table.are_values_zero(memory, row), "an inserted row's values are not zero: {answer:?}");
                    table.set_values(memory, row, u64::MAX / 3);
                } else {
                    operation.seen = table.values(memory, row);
                    assert!(operation.seen.is_some(), "values that nobody wrote: {answer:?}");
                }
            }
            (MISSING, code) => assert_eq!(code, if op == INSERT { 0xFF02 } else { 0xFF01 }, "{answer:?}"),
            (CONFLICT, _) => self.counts.conflicts += 1,
            (_, 0xFF13) => self.counts.refused += 1,
            (_, code) => {
                assert_eq!((code, op), (0xFF11, INSERT), "{answer:?}");
                self.counts.no_room += 1;
            }
        }
    }

    fn end(&mut self, worker: usize, context: usize) {
        let now = std::mem::take(&mut self.contexts[worker][context]);
        let answer = |operation: &Operation| operation.answer.expect("all are answered");
        let failed = now.operations.iter().any(|operation| matches!(answer(operation).answer, CONFLICT | FAILED));
        let commits = now.commits && !failed;
        let memory = &mut self.machine.memory;
        let ready = || now.operations.iter().enumerate().filter(|(_, operation)| answer(operation).answer == READY);
        for (i, operation) in ready().filter(|(_, operation)| answer(operation).value != u64::MAX) {
            let row = answer(operation).value;
            match operation.op {
                UPDATE | INSERT if commits => {
                    self.tables[operation.table].set_values(memory, row, now.stamp * 16 + i as u64);
                }
                INSERT => memory.set_byte(row + 7, 0),
                _ => {}
            }
        }
        for (_, operation) in ready().filter(|(_, operation)| commits && operation.op == REMOVE) {
            if answer(operation).value != u64::MAX {
                memory.set_byte(answer(operation).value + 7, 0);
            }
        }
        for answer in now.operations.iter().map(answer).filter(|answer| answer.granted) {
            let holders = self.held.get_mut(&(answer.owner, answer.entry)).expect("it is held");
            let at = holders.iter().position(|&(stamp, _)| stamp == now.stamp).expect("it is held");
            holders.swap_remove(at);
            let release = Release { owner: answer.owner, stamp: now.stamp, entry: answer.entry };
            self.machine.workers[worker].releases.push_back(release);
        }
        if commits {
            self.counts.committed += 1;
            self.committed.push(Committed { stamp: now.stamp, operations: now.operations });
        }
    }

    /// Executes the committed transactions in the order of their times, compares what they saw, and then memory.
    pub(crate) fn check(&mut self) {
        let mut map = self.initial.clone();
        self.committed.sort_by_key(|transaction| transaction.stamp);
        for Committed { stamp, operations } in &self.committed {
            let mut inserted = HashSet::new();
            let mut removed = HashSet::new();
            let mut written = BTreeMap::new();
            for (i, operation) in operations.iter().enumerate() {
                let id = (operation.table, operation.key);
                let answer = operation.answer.expect("all are answered");
                if self.tables[operation.table].ordered {
                    continue;
                }
                let exists = map.contains_key(&id) || inserted.contains(&id);
                let wanted = if exists == (operation.op == INSERT) { MISSING } else { READY };
                assert_eq!(answer.answer, wanted, "time {stamp}, operation {i}: {operation:?} of {operations:?}");
                if wanted == MISSING {
                    continue;
                }
                match operation.op {
                    INSERT => _ = inserted.insert(id),
                    REMOVE => _ = removed.insert(id),
                    _ => {}
                }
                if operation.op != INSERT && !inserted.contains(&id) {
                    assert_eq!(operation.seen, map.get(&id).copied(), "time {stamp}, operation {i}: {operation:?}");
                }
                if matches!(operation.op, INSERT | UPDATE) {
                    written.insert(id, stamp * 16 + i as u64);
                }
            }
            map.extend(written);
            removed.iter().for_each(|id| _ = map.remove(id));
        }
        self.check_memory(&map);
    }

    /// Every row of the map is in the chain of its bucket, once, as it should be, and no other row lives.
    fn check_memory(&self, map: &BTreeMap<(usize, u64), u64>) {
        let memory = &self.machine.memory;
        let workers = self.machine.workers.len() as u64;
        let mut found = BTreeMap::new();
        for (number, table) in self.tables.iter().enumerate() {
            let keys: HashMap<_, _> = (0..table.keys).map(|key| (table.key(key).0, key)).collect();
            let lists = if table.placed == Placed::Everywhere { 1 } else { workers };
            for (worker, bucket) in (0..lists).flat_map(|worker| (0..1 << table.head_bits).map(move |b| (worker, b))) {
                let mut row = memory.word(table.head(worker, bucket));
                let mut seen = HashSet::new();
                while row != 0 {
                    let mut words = [memory.word(row + 8), 0, 0, 0];
                    (1..table.words()).for_each(|word| words[word] = memory.word(row - 8 * word as u64));
                    let key = *keys.get(&words).unwrap_or_else(|| panic!("table {number}, row {row:#x}: no such key"));
                    assert!(seen.insert(key), "table {number}: key {key} is in its chain twice");
                    assert_eq!(table.bucket(key), bucket, "table {number}: key {key} is in another bucket");
                    assert_eq!(table.owner(key, 0, workers), worker, "table {number}: key {key} is elsewhere");
                    let image = table.clean_image(key);
                    let bytes: Vec<u8> = (0..image.len() as u64).map(|i| memory.byte(row + 16 + i)).collect();
                    assert_eq!(bytes, image, "table {number}: key {key}'s columns");
                    if memory.word(row) >> 56 == 1 {
                        found.insert((number, key), table.values(memory, row).expect("one value"));
                    }
                    row = memory.word(row) & 0xFF_FFFF_FFFF;
                }
            }
        }
        assert_eq!(&found, map, "memory, and what the transactions leave");
    }
}
