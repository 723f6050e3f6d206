//! What digests cost, and what a log costs that is only read: `cargo run --release -p lockwork-sequencer --example
//! digests`.
//!
//! A leader makes transfers among a million accounts, through a journal in memory. Two nodes catch up, one that
//! compares what calls answered and one that does not, turn by turn; then the leader makes digests of everything.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockwork_engine::{EngineKind, Options as EngineOptions, create};
use lockwork_procedure::block::Batch;
use lockwork_random::Random;
use lockwork_sequencer::io::NullIo;
use lockwork_sequencer::journal::Journal;
use lockwork_sequencer::journal::simulated::SimulatedJournal;
use lockwork_sequencer::{Definition, Error, NodeOptions, Options, Role, Sequencer};

const ACCOUNTS: u64 = 1_000_000;
const BATCHES: u64 = 100;
const CALLS: usize = 16_384;
const ROUNDS: usize = 15;

const TRANSFER: &str = "\
procedure transfer
table accounts (id: i64 key, balance: i64) partition by hash(id)
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
    sub     r4, r4, r3
    storer  r4, r1[accounts.balance]
    loadr   r5, r2[accounts.balance]
    add     r5, r5, r3
    storer  r5, r2[accounts.balance]
    store   r4, [from_balance]
    store   r5, [to_balance]
    commit
";

/// Touches nothing: what remains is reading the log, and as little as a call can be.
const NOTHING: &str = "\
procedure nothing
param from: i64
param to: i64
param amount: i64
    commit
";

fn join(journal: &SimulatedJournal, may_lead: bool, compares: bool) -> Result<(Sequencer, Duration), Error> {
    let engine = create(EngineKind::DETERMINISTIC, EngineOptions { threads: 1, ..EngineOptions::default() })?;
    let node = NodeOptions { may_lead, compares, digest_interval: Duration::ZERO, ..NodeOptions::new("here") };
    let options = Options { checkpoint_bytes: 0, ..Options::default() };
    let (journal, io) = (Arc::new(journal.another()), Arc::new(NullIo::new()));
    let start = Instant::now();
    let (node, _) = Sequencer::join(journal, io, Path::new("/"), options, node, engine, &mut |_| ())?;
    Ok((node, start.elapsed()))
}

fn calls(seed: u64) -> Batch {
    let mut batch = Batch::new(72, CALLS).expect("memory");
    let mut random = Random(seed);
    for _ in 0..CALLS {
        let mut draw = || random.below(ACCOUNTS);
        let arguments = [draw(), draw(), 1];
        let mut block = batch.push(0).expect("room");
        for (at, argument) in arguments.into_iter().enumerate() {
            block.bytes()[32 + 8 * at..40 + 8 * at].copy_from_slice(&argument.to_le_bytes());
        }
    }
    batch
}

/// The shortest time: what others do on the machine makes them longer.
fn shortest(times: &[Duration]) -> Duration {
    times.iter().min().copied().unwrap_or_default()
}

fn main() -> Result<(), Error> {
    let journal = SimulatedJournal::new(1);
    let (leader, _) = join(&journal, true, true)?;
    while leader.handle().role() != Some(Role::Leading) {
        std::thread::sleep(Duration::from_millis(10));
    }
    leader.define(Definition::new(TRANSFER, ""))?;
    let image = |id: u64| [id.to_le_bytes(), 1000_u64.to_le_bytes()].concat();
    leader.load("accounts", (0..ACCOUNTS).flat_map(image).collect())?;
    for seed in 0..BATCHES {
        leader.call_batch(calls(seed)).map_err(|refused| refused.error)?;
    }
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        with.push(join(&journal, false, true)?.1);
        without.push(join(&journal, false, false)?.1);
    }
    let (with, without, made) = (shortest(&with), shortest(&without), BATCHES * CALLS as u64);
    let more = with.as_secs_f64() - without.as_secs_f64();
    println!("{made} calls and {ACCOUNTS} rows replayed: {with:.2?} comparing answers, {without:.2?} not");
    println!(
        "answers: {:.1} ns a call, {:.1} % of the replay",
        more * 1e9 / made as f64,
        more / without.as_secs_f64() * 100.0
    );
    for _ in 0..ROUNDS {
        leader.handle().append_digest()?;
    }
    let took = leader.statistics().digest_ns / ROUNDS as u64;
    println!("everything: {} ms, {:.1} ns a row", took / 1_000_000, took as f64 / ACCOUNTS as f64);
    reading()
}

/// Calls that touch nothing, read by a node that catches up.
fn reading() -> Result<(), Error> {
    let journal = SimulatedJournal::new(2);
    let (leader, _) = join(&journal, true, true)?;
    while leader.handle().role() != Some(Role::Leading) {
        std::thread::sleep(Duration::from_millis(10));
    }
    leader.define(Definition::new(NOTHING, ""))?;
    for seed in 0..BATCHES {
        leader.call_batch(calls(seed)).map_err(|refused| refused.error)?;
    }
    let times = (0..ROUNDS).map(|_| Ok(join(&journal, false, false)?.1)).collect::<Result<Vec<_>, Error>>()?;
    let (mut bytes, mut first) = (0, 1);
    loop {
        let read = journal.read(first, 1 << 20, Duration::ZERO);
        let read = read.map_err(|error| Error::Unreachable(error.to_string()))?.messages;
        if read.is_empty() {
            break;
        }
        first += read.len() as u64;
        bytes += read.iter().map(Vec::len).sum::<usize>();
    }
    let made = (BATCHES * CALLS as u64) as f64;
    let each = shortest(&times).as_secs_f64() * 1e9 / made;
    println!("a log of calls that touch nothing: {each:.1} ns and {:.1} bytes a call", bytes as f64 / made);
    Ok(())
}
