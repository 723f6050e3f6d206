//! What the tests share: a bank small enough to be replayed by hand, and directories.
#![allow(dead_code, reason = "every test takes what it needs")]

pub(crate) mod nodes;

use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use lockwork_engine::{Engine, EngineKind, Options as EngineOptions, create};
use lockwork_memory::Pages;
use lockwork_procedure::block::{Batch, BlockMut, Status};
pub(crate) use lockwork_random::Random;
use lockwork_sequencer::io::Io;
use lockwork_sequencer::{Definition, Error, Handle, Options, RecoveryReport, RequestId, Sequencer, Transaction};
use lockwork_storage::Digest;

/// Accounts of the bank, and what each begins with.
pub(crate) const ACCOUNTS: u64 = 50;
pub(crate) const BALANCE: i64 = 1000;

pub(crate) const TABLES: &str = "table accounts (id: i64 key, balance: i64) partition by hash(id)";

/// Moves money; answers both new balances; aborts with 1 when there is too little.
pub(crate) const TRANSFER: &str = "\
procedure transfer
table accounts
param from: i64
param to: i64
param amount: i64
result from_balance: i64
result to_balance: i64
    update  c0, accounts, [from]
    update  c1, accounts, [to]
    ret     r1, c0
    ret     r2, c1
    load    r3, [amount]
    loadr   r4, r1[accounts.balance]
    cmp     r4, r3
    bl      poor
    sub     r4, r4, r3
    storer  r4, r1[accounts.balance]
    loadr   r5, r2[accounts.balance]
    add     r5, r5, r3
    storer  r5, r2[accounts.balance]
    store   r4, [from_balance]
    store   r5, [to_balance]
    commit
poor:
    abort   1
";

/// Reads one balance.
pub(crate) const AUDIT: &str = "\
procedure audit
table accounts
param id: i64
result balance: i64
    search  c0, accounts, [id]
    ret     r1, c0
    loadr   r2, r1[accounts.balance]
    store   r2, [balance]
    commit
";

/// Opens an account with nothing in it.
pub(crate) const OPEN: &str = "\
procedure open
table accounts
param id: i64
    insert  c0, accounts, [id]
    ret     r1, c0
    commit
";

/// Closes an account, whose money goes to another one.
pub(crate) const CLOSE: &str = "\
procedure close
table accounts
param id: i64
param to: i64
    search  c0, accounts, [id]
    update  c1, accounts, [to]
    ret     r1, c0
    ret     r2, c1
    loadr   r3, r1[accounts.balance]
    loadr   r4, r2[accounts.balance]
    add     r4, r4, r3
    storer  r4, r2[accounts.balance]
    remove  c2, accounts, [id]
    ret     r3, c2
    commit
";

/// Ids in the order in which [`furnish`] defines them.
pub(crate) const IDS: [(&str, u32); 4] = [("transfer", 0), ("audit", 1), ("open", 2), ("close", 3)];

pub(crate) fn engine(kind: EngineKind) -> Box<dyn Engine> {
    create(kind, EngineOptions { threads: 2, pages: Pages::Plain, ..EngineOptions::default() }).unwrap()
}

/// Small segments, and no checkpoint that was not asked for.
pub(crate) fn options() -> Options {
    Options { segment_bytes: 4096, checkpoint_bytes: 0, ..Options::default() }
}

pub(crate) fn open_with(
    io: Arc<dyn Io>,
    path: &Path,
    options: Options,
    kind: EngineKind,
) -> Result<(Sequencer, RecoveryReport), Error> {
    Sequencer::open(io, path, options, engine(kind), &mut |_| ())
}

pub(crate) fn definition(assembly: &str) -> Definition {
    Definition::new(assembly, "")
}

pub(crate) fn image(id: u64) -> Vec<u8> {
    [id.to_le_bytes(), BALANCE.to_le_bytes()].concat()
}

/// Tables, rows and procedures.
pub(crate) fn furnish(sequencer: &Sequencer) -> Result<(), Error> {
    sequencer.define(definition(TABLES))?;
    for source in [TRANSFER, AUDIT, OPEN, CLOSE] {
        sequencer.define(definition(source))?;
    }
    sequencer.load("accounts", (0..ACCOUNTS).flat_map(image).collect()).map(|loaded| {
        assert_eq!(loaded as u64, ACCOUNTS);
    })
}

/// The request id with a number; its time is that of the first one, and a millisecond for each number.
pub(crate) fn id(number: u64) -> RequestId {
    static BEGIN: OnceLock<u64> = OnceLock::new();
    let begin = *BEGIN.get_or_init(|| SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64);
    let mut random = [0; 10];
    random[2..].copy_from_slice(&number.to_be_bytes());
    RequestId::new(begin + number % 50_000, random)
}

/// A call: procedure, number of its request id (0 for none), arguments.
pub(crate) type Call = (u32, u64, Vec<i64>);

pub(crate) fn batch(calls: &[Call]) -> Batch {
    let mut batch = Batch::new(72, calls.len()).unwrap();
    for (procedure, request, arguments) in calls {
        let mut block = batch.push(*procedure).unwrap();
        for (index, argument) in arguments.iter().enumerate() {
            block.bytes()[32 + 8 * index..40 + 8 * index].copy_from_slice(&argument.to_le_bytes());
        }
        if *request > 0 {
            batch.set_request(batch.len() - 1, id(*request));
        }
    }
    batch
}

/// The block of one call.
pub(crate) fn block(call: &Call) -> Vec<u8> {
    let batch = batch(std::slice::from_ref(call));
    let mut block = batch.block(0).bytes().to_vec();
    BlockMut::new(&mut block).set_request(batch.request(0));
    block
}

/// Makes a further call of a transaction, and waits for it.
pub(crate) fn step(handle: &Handle, transaction: Transaction, call: &Call) -> Result<(Transaction, Vec<u8>), Error> {
    let (sender, done) = sync_channel(1);
    handle.step_then(transaction, block(call), move |outcome| drop(sender.send(outcome)))?;
    done.recv().map_err(|_| Error::Closed)?
}

pub(crate) fn commit(handle: &Handle, transaction: Transaction) -> Result<(), Error> {
    let (sender, done) = sync_channel(1);
    handle.commit_then(transaction, move |outcome| drop(sender.send(outcome)))?;
    done.recv().map_err(|_| Error::Closed)?
}

/// Makes calls as one transaction, and others among them that it takes back.
pub(crate) fn together(sequencer: &Sequencer, calls: &[Call]) -> Result<(), Error> {
    let handle = sequencer.handle();
    let mut transaction = Transaction::default();
    for (number, call) in calls.iter().enumerate() {
        if number % 3 == 0 {
            let mark = transaction.mark();
            (transaction, _) = step(&handle, transaction, &calls[(number * 7 + 3) % calls.len()])?;
            (transaction, _) = step(&handle, transaction, call)?;
            transaction.back_to(mark);
        }
        (transaction, _) = step(&handle, transaction, call)?;
    }
    commit(&handle, transaction)
}

/// Makes calls by chance.
pub(crate) trait Calls {
    /// Calls of every kind: transfers that commit and that abort, audits, accounts that come and go.
    fn calls(&mut self, count: usize) -> Vec<Call>;
}

impl Calls for Random {
    fn calls(&mut self, count: usize) -> Vec<Call> {
        let mut call = || {
            let (a, b) = (self.below(ACCOUNTS) as i64, self.below(ACCOUNTS) as i64);
            match self.below(10) {
                0 => (1, 0, vec![a]),
                1 => (2, 0, vec![ACCOUNTS as i64 + a]),
                2 => (3, 0, vec![ACCOUNTS as i64 + a, b]),
                3 => (0, 0, vec![a, b, 100_000]),
                4 => (0, 0, vec![a, ACCOUNTS as i64 + b, 1 + self.below(9) as i64]),
                _ => (0, 0, vec![a, b, 1 + self.below(50) as i64]),
            }
        };
        (0..count).map(|_| call()).collect()
    }
}

/// A serial engine that has what [`furnish`] gives, for what should be.
pub(crate) struct Oracle(Box<dyn Engine>);

impl Oracle {
    pub(crate) fn new() -> Self {
        let mut oracle = engine(EngineKind::SERIAL);
        let tables = lockwork_procedure::assembly::assemble_tables(TABLES, [].as_slice()).unwrap();
        oracle.create_table(tables[0].clone(), 10).unwrap();
        for source in [TRANSFER, AUDIT, OPEN, CLOSE] {
            let assembled = lockwork_procedure::assembly::assemble(source, tables.as_slice()).unwrap();
            oracle.register(assembled.procedure).unwrap();
        }
        (0..ACCOUNTS).for_each(|id| oracle.load("accounts", &image(id)).unwrap());
        Self(oracle)
    }

    pub(crate) fn run(&mut self, calls: Batch) -> Batch {
        self.0.submit(calls).unwrap();
        self.0.complete().unwrap().unwrap().batch
    }

    /// Runs what another engine has run, in that one's order.
    pub(crate) fn follow(&mut self, ran: &Batch, order: lockwork_engine::SerialOrder) {
        lockwork_engine::replay::replay(&mut *self.0, ran, 0, order).unwrap();
    }

    pub(crate) fn digest(&self) -> Digest {
        self.0.digest().unwrap()
    }
}

/// Outcomes and results, for comparison.
pub(crate) fn answers(batch: &Batch) -> Vec<(Option<Status>, u16, Vec<u8>)> {
    let results = |procedure| match procedure {
        0 => 56..72,
        1 => 40..48,
        _ => 40..40,
    };
    let answer = |block: lockwork_procedure::block::Block<'_>| {
        (block.status(), block.abort_code(), block.bytes()[results(block.procedure())].to_vec())
    };
    batch.blocks().map(answer).collect()
}

/// The money of all accounts together.
pub(crate) fn total(sequencer: &Sequencer) -> i64 {
    let sum = |engine: &dyn Engine| {
        let mut sum = 0;
        engine.export(&mut |_, image| sum += i64::from_le_bytes(image[8..16].try_into().unwrap())).unwrap();
        sum
    };
    sequencer.read(sum).unwrap()
}
