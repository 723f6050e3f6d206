//! Processor time that nodes with a part of every table spend on a log: on calls of their own part, of another one, and
//! of two. Two parts, the simulated journal, transfers between a million accounts, batches of 1,024.
//!
//! `cargo run --profile verify -p lockwork-partitions --example divided_work`; behind it, shares of a hundred that are
//! between the parts, if others than 0, 10, 25, 50 and 100 are wanted.
//!
//! Each line replays one log from its beginning, with nodes that nobody calls; what is told is the processor time of
//! all threads of the process, so of reading, hashing, decoding, planning, running, and of messages between the nodes.
//! Money is counted afterwards.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lockwork_memory::Pages;
use lockwork_partitions::divided::{DividedEngine, DividedOptions, KEPT_BYTES};
use lockwork_procedure::block::{Batch, Status};
use lockwork_sequencer::io::simulated::SimulatedDisk;
use lockwork_sequencer::journal::Journal;
use lockwork_sequencer::journal::simulated::SimulatedJournal;
use lockwork_sequencer::{Definition, Journals, NodeOptions, Options, Role, Sequencer};

const ACCOUNTS: i64 = 1_000_000;
const BALANCE: i64 = 1000;
const BATCHES: usize = 400;
const CALLS: usize = 1024;
const SEED: u64 = 1;
const ROUNDS: usize = 9;

const SOURCES: [&str; 3] = [
    "table accounts (id: i64 key, balance: i64) partition by hash(id)",
    "procedure open\ntable accounts\nparam id: i64\nparam balance: i64
     insert c0, accounts, [id]\nret r1, c0\nload r2, [balance]\nstorer r2, r1[accounts.balance]\ncommit",
    "procedure transfer\ntable accounts\nparam from: i64\nparam to: i64\nparam amount: i64\nresult left: i64
     update c0, accounts, [from]\nupdate c1, accounts, [to]\nret r1, c0\nret r2, c1\nload r3, [amount]
     loadr r4, r1[accounts.balance]\nsub r4, r4, r3\nstorer r4, r1[accounts.balance]
     loadr r5, r2[accounts.balance]\nadd r5, r5, r3\nstorer r5, r2[accounts.balance]\nstore r4, [left]\ncommit",
];

struct Nodes {
    listeners: Vec<TcpListener>,
    addresses: Vec<String>,
}

impl Nodes {
    fn new() -> Self {
        let listeners: Vec<_> = (0..2).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
        let addresses =
            listeners.iter().map(|listener| listener.local_addr().expect("an address").to_string()).collect();
        Self { listeners, addresses }
    }

    fn join(&self, journal: &SimulatedJournal, part: usize, may_lead: bool) -> Sequencer {
        let engine = DividedEngine::new(DividedOptions {
            part: part as u16,
            addresses: self.addresses.clone(),
            listener: self.listeners[part].try_clone().expect("a second descriptor"),
            cluster: [1; 16],
            secret: Vec::new(),
            kept_bytes: KEPT_BYTES,
            pages: Pages::Plain,
        });
        let node = NodeOptions { may_lead, ..NodeOptions::new(format!("part{part}:1")) };
        let (journals, disk) = (Journals::one(journal.another()), Arc::new(SimulatedDisk::new(SEED)));
        let (options, engine) = (Options { checkpoint_bytes: 0, ..Options::default() }, engine.expect("an engine"));
        let joined =
            Sequencer::join_divided(journals, disk, Path::new("/n"), options, node, Box::new(engine), &mut |_| ());
        joined.expect("a node").0
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn batch(calls: impl Iterator<Item = (u32, [i64; 3])>) -> Batch {
    let calls: Vec<_> = calls.collect();
    let mut batch = Batch::new(64, calls.len()).expect("memory");
    for (procedure, arguments) in calls {
        let mut block = batch.push(procedure).expect("room");
        for (at, argument) in arguments.iter().enumerate() {
            block.bytes()[32 + at * 8..40 + at * 8].copy_from_slice(&argument.to_le_bytes());
        }
    }
    batch
}

/// A log of accounts, and of transfers: `of_two` of a hundred between the parts, the others within one. All of part 0
/// if `alone`: then a node of part 0 has to hear nothing of the other one.
fn log(of_two: u64, alone: bool) -> (SimulatedJournal, u64) {
    let (journal, nodes) = (SimulatedJournal::new(SEED), Nodes::new());
    let others = [nodes.join(&journal, 0, true), nodes.join(&journal, 1, false)];
    let leader = &others[0];
    while leader.handle().role() != Some(Role::Leading) {
        std::thread::sleep(Duration::from_millis(5));
    }
    for source in SOURCES {
        leader.define(Definition::new(source, "")).expect("a definition");
    }
    let run = |batch: Batch| {
        let ran = leader.call_batch(batch).expect("an answer");
        assert!(ran.blocks().all(|block| block.status() == Some(Status::Committed)));
    };
    let accounts: Vec<i64> = (0..ACCOUNTS).step_by(if alone { 2 } else { 1 }).collect();
    for accounts in accounts.chunks(16 * CALLS) {
        run(batch(accounts.iter().map(|&id| (0, [id, BALANCE, 0]))));
    }
    let begun = journal.log_range().expect("a journal").next;
    let mut random = Random(SEED);
    for _ in 0..BATCHES {
        run(batch((0..CALLS).map(|_| {
            let part = if alone { 0 } else { random.below(2) as i64 };
            let other = if random.below(100) < of_two { 1 - part } else { part };
            let half = ACCOUNTS as u64 / 2;
            (1, [2 * random.below(half) as i64 + part, 2 * random.below(half) as i64 + other, 1])
        })));
    }
    others.into_iter().for_each(|node| node.close().expect("an end"));
    (journal, begun)
}

/// Processor time of this process so far.
fn processor() -> Duration {
    // SAFETY: plain numbers, for which zeros are good.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives during the call.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Gives a journal what another one has from record `from` on, up to `until`.
fn copy(journal: &SimulatedJournal, to: &SimulatedJournal, mut from: u64, until: u64) {
    while from < until {
        let messages = journal.read(from, 1, Duration::ZERO).expect("a journal").messages;
        to.append(from, &messages[..1]).1.expect("a journal that takes a copy");
        from += 1;
    }
}

/// Nanoseconds of processor time a transfer, when nodes of these parts replay a log. They get the transfers when all
/// have their accounts: one that needs nothing of the others would have done them before that is looked at.
fn replay(whole: &SimulatedJournal, begun: u64, parts: &[usize]) -> f64 {
    let (nodes, journal) = (Nodes::new(), SimulatedJournal::new(SEED));
    copy(whole, &journal, 1, begun);
    let joined: Vec<_> = parts.iter().map(|&part| nodes.join(&journal, part, false)).collect();
    let next = whole.log_range().expect("a journal").next;
    let far = |record: u64| {
        while joined.iter().any(|node| node.handle().node().is_none_or(|status| status.next < record)) {
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    far(begun);
    let start = processor();
    copy(whole, &journal, begun, next);
    far(next);
    let took = processor() - start;
    if parts.len() == 2 {
        let money = joined.iter().map(|node| {
            node.read(|engine| {
                let mut money = 0;
                let mut row = |_: &str, image: &[u8]| money += i64::from_le_bytes(image[8..16].try_into().expect("8"));
                engine.export(&mut row).expect("rows");
                money
            })
        });
        let money: i64 = money.map(|money| money.expect("an answer")).sum();
        assert_eq!(money, ACCOUNTS * BALANCE, "no money is lost or made");
    }
    took.as_nanos() as f64 / (BATCHES * CALLS) as f64
}

fn median(of: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = of.collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() {
    println!(
        "two parts, {ACCOUNTS} accounts, {BATCHES} batches of {CALLS} transfers, seed {SEED}; medians of {ROUNDS}"
    );
    let mut shares: Vec<u64> = std::env::args().skip(1).map(|share| share.parse().expect("a share of 100")).collect();
    if shares.is_empty() {
        shares = vec![0, 10, 25, 50, 100];
    }
    let alone = log(0, true);
    let logs: Vec<_> = shares.iter().map(|&of_two| log(of_two, false)).collect();
    // What is set against each other is measured in one round: how fast the machine is changes.
    let round = |_| {
        let replay = |(journal, begun): &(SimulatedJournal, u64), parts: &[usize]| replay(journal, *begun, parts);
        let mut took = vec![replay(&alone, &[0]), replay(&alone, &[1])];
        took.extend(logs.iter().map(|log| replay(log, &[0, 1])));
        took
    };
    let rounds: Vec<Vec<f64>> = (0..ROUNDS).map(round).collect();
    let took = |at: usize| median(rounds.iter().map(|round| round[at]));
    let ratio = |at: usize, to: usize| median(rounds.iter().map(|round| round[at] / round[to]));
    println!(
        "a transfer within one part: {:.0} ns at its node, {:.0} ns at the other (ratio {:.3})",
        took(0),
        took(1),
        ratio(1, 0)
    );
    for (at, of_two) in (2..).zip(&shares) {
        println!(
            "{of_two:3} % between the parts: {:.0} ns a transfer at both nodes together (ratio {:.2})",
            took(at),
            ratio(at, 2)
        );
    }
}
