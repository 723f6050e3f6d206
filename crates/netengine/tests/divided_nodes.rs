//! Nodes that have a part of every table and share a log: what was acknowledged was made once, whoever leads, and
//! whoever ends and begins again.

#[path = "common/parts.rs"]
#[allow(dead_code, reason = "every test takes what it needs")]
mod parts;

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockwork_engine::conformance::Random;
use lockwork_netengine::divided::{KEPT_BYTES, Others};
use lockwork_procedure::block::{Batch, Status};
use lockwork_sequencer::io::simulated::SimulatedDisk;
use lockwork_sequencer::journal::Journal;
use lockwork_sequencer::journal::simulated::SimulatedJournal;
use lockwork_sequencer::{Definition, Error, NodeOptions, Options, Role, Sequencer};
use parts::{listeners, part};

const ACCOUNTS: i64 = 40;
const BALANCE: i64 = 1000;
const TABLES: &str = "table accounts (id: i64 key, balance: i64, follows: i64) partition by hash(id)";

const OPEN: &str = "procedure open\ntable accounts\nparam id: i64\nparam balance: i64\nparam follows: i64
    insert c0, accounts, [id]\nret r1, c0\nload r2, [balance]\nstorer r2, r1[accounts.balance]
    load r2, [follows]\nstorer r2, r1[accounts.follows]\ncommit";

const TRANSFER: &str =
    "procedure transfer\ntable accounts\nparam from: i64\nparam to: i64\nparam amount: i64\nresult left: i64
    update c0, accounts, [from]\nupdate c1, accounts, [to]\nret r1, c0\nret r2, c1\nload r3, [amount]
    loadr r4, r1[accounts.balance]\ncmp r4, r3\nbl poor\nsub r4, r4, r3\nstorer r4, r1[accounts.balance]
    loadr r5, r2[accounts.balance]\nadd r5, r5, r3\nstorer r5, r2[accounts.balance]\nstore r4, [left]\ncommit
    poor:\nabort 1";

/// Pays to whom the payer's row names: what it touches is not told by its arguments.
const PAY: &str = "procedure pay\ntable accounts\nparam from: i64\nparam nothing: i64\nparam amount: i64\nresult left: i64\nscratch key: i64
    update c0, accounts, [from]\nret r1, c0\nloadr r2, r1[accounts.follows]\nstore r2, [key]\nupdate c1, accounts, [key]\nret r6, c1
    load r3, [amount]\nloadr r4, r1[accounts.balance]\nsub r4, r4, r3\nstorer r4, r1[accounts.balance]
    loadr r5, r6[accounts.balance]\nadd r5, r5, r3\nstorer r5, r6[accounts.balance]\nstore r4, [left]\ncommit";

const READ: &str = "procedure read\ntable accounts\nparam id: i64\nresult balance: i64
    search c0, accounts, [id]\nret r1, c0\nloadr r2, r1[accounts.balance]\nstore r2, [balance]\ncommit";

/// A set of nodes, one of each part.
struct Set {
    listeners: Vec<TcpListener>,
    addresses: Vec<String>,
    journals: Vec<SimulatedJournal>,
    nodes: Vec<Option<Sequencer>>,
    others: Vec<Option<Others>>,
    may_lead: bool,
}

impl Set {
    fn new(journal: &SimulatedJournal, parts: usize, may_lead: bool) -> Self {
        let (listeners, addresses) = listeners(parts);
        let journals = (0..parts).map(|_| journal.another()).collect();
        let (nodes, others) = ((0..parts).map(|_| None).collect(), vec![None; parts]);
        let mut set = Self { listeners, addresses, journals, nodes, others, may_lead };
        (0..parts).for_each(|number| set.begin(number).unwrap());
        set
    }

    fn begin(&mut self, number: usize) -> Result<(), Error> {
        self.nodes[number] = None;
        self.journals[number].cut(false);
        let node = NodeOptions {
            may_lead: self.may_lead,
            lease: Duration::from_millis(300),
            digest_interval: Duration::ZERO,
            ..NodeOptions::new(format!("node{number}:1"))
        };
        let engine = Box::new(part(number, &self.listeners[number], &self.addresses, KEPT_BYTES));
        self.others[number] = Some(engine.others());
        let options = Options { checkpoint_bytes: 0, ..Options::default() };
        let (journal, disk) = (Arc::new(self.journals[number].clone()), Arc::new(SimulatedDisk::new(1)));
        let joined = Sequencer::join_divided(journal, disk, Path::new("/n"), options, node, engine, &mut |_| ());
        self.nodes[number] = Some(joined?.0);
        Ok(())
    }

    fn status(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("{:?}", node.as_ref().and_then(|node| node.handle().node()))).collect()
    }

    /// The node that leads; those whose role has ended begin again.
    fn leader(&mut self) -> usize {
        until(|| {
            self.revive();
            let leads = |node: &Option<Sequencer>| node.as_ref().unwrap().handle().role() == Some(Role::Leading);
            self.nodes.iter().position(leads).ok_or_else(|| format!("nobody leads: {:?}", self.status()))
        })
    }

    /// Begins again with nodes whose role has ended, as a server does.
    fn revive(&mut self) {
        for number in 0..self.nodes.len() {
            if self.nodes[number].as_ref().is_none_or(|node| node.handle().role() == Some(Role::Ended)) {
                self.begin(number).unwrap();
            }
        }
    }

    fn call(&mut self, calls: &[Call]) -> Result<Vec<Answer>, Error> {
        let leader = self.leader();
        let (handle, calls) = (self.nodes[leader].as_ref().unwrap().handle().clone(), batch(calls));
        let waits = std::thread::spawn(move || handle.call_batch(calls));
        // The leader waits for all parts.
        let start = Instant::now();
        while !waits.is_finished() {
            self.revive();
            let others: Vec<_> = self.others.iter().map(|others| others.as_ref().unwrap().status()).collect();
            assert!(start.elapsed() < Duration::from_secs(60), "no answer: {:?} {others:?}", self.status());
            std::thread::sleep(Duration::from_millis(2));
        }
        let ran = waits.join().unwrap().map_err(|refused| refused.error)?;
        Ok(ran.blocks().map(|block| (block.status(), block.abort_code(), result(block.bytes()))).collect())
    }

    /// Calls until there is an answer, whoever leads then.
    fn call_again(&mut self, calls: &[Call]) -> Vec<Answer> {
        until(|| self.call(calls).map_err(|error| error.to_string()))
    }

    fn furnish(&mut self) {
        for source in [TABLES, OPEN, TRANSFER, PAY, READ] {
            let leader = self.leader();
            let definition = Definition { assembly: source.into(), source: String::new() };
            self.nodes[leader].as_ref().unwrap().define(definition).unwrap();
        }
        let open =
            (1..=ACCOUNTS).map(|id| (0, id as u64, vec![id, BALANCE, id * 7 % ACCOUNTS + 1])).collect::<Vec<_>>();
        assert!(self.call_again(&open).iter().all(|answer| answer.0 == Some(Status::Committed)));
    }

    /// Money and digests of the parts, when all of them are as far as the journal.
    fn settled(&mut self) -> (i64, Vec<String>) {
        until(|| {
            let next = self.journals[0].extent().unwrap().next;
            let far = |node: &Option<Sequencer>| node.as_ref().unwrap().handle().node().unwrap().next == next;
            if self.nodes.iter().all(far) { Ok(()) } else { Err(format!("{:?}", self.status())) }
        });
        let mut money = 0;
        let mut digests = Vec::new();
        for node in self.nodes.iter().flatten() {
            let seen = node.read(|engine| {
                let mut money = 0;
                let row = |_: &str, image: &[u8]| money += i64::from_le_bytes(image[8..16].try_into().unwrap());
                engine.export(&mut { row }).unwrap();
                (money, engine.digest().unwrap().to_string())
            });
            let (part, digest) = seen.unwrap();
            money += part;
            digests.push(digest);
        }
        (money, digests)
    }
}

type Call = (u32, u64, Vec<i64>);
type Answer = (Option<Status>, u16, i64);

fn batch(calls: &[Call]) -> Batch {
    let mut batch = Batch::new(72, calls.len()).unwrap();
    for (procedure, request, arguments) in calls {
        let mut block = batch.push(*procedure).unwrap();
        block.set_request(*request);
        for (at, argument) in arguments.iter().enumerate() {
            block.bytes()[32 + at * 8..40 + at * 8].copy_from_slice(&argument.to_le_bytes());
        }
    }
    batch
}

/// The result of a transfer.
fn result(block: &[u8]) -> i64 {
    i64::from_le_bytes(block[56..64].try_into().unwrap())
}

fn until<T>(mut holds: impl FnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    loop {
        match holds() {
            Ok(found) => return found,
            Err(why) if start.elapsed() > Duration::from_secs(60) => panic!("{why}"),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn calls(random: &mut Random, first: u64, count: u64) -> Vec<Call> {
    let call = |at: u64| {
        let mut account = || 1 + random.below(ACCOUNTS as u64) as i64;
        let (from, to) = (account(), account());
        let to = if from == to { from % ACCOUNTS + 1 } else { to };
        let kind = if random.below(4) == 0 { 2 } else { 1 };
        // Some want no answer that outlives this.
        let request = if random.below(4) == 0 { 0 } else { first + at };
        (kind, request, vec![from, to, random.below(300) as i64])
    };
    (0..count).map(call).collect()
}

#[test]
fn what_is_called_at_the_leader_is_run_by_all_parts() {
    let journal = SimulatedJournal::new(1);
    let mut set = Set::new(&journal, 3, true);
    set.furnish();
    let mut follows = Set::new(&journal, 3, false);
    let mut random = Random(4);
    for round in 0..30 {
        let calls = calls(&mut random, 1000 + round * 100, 1 + round);
        let first = set.call_again(&calls);
        // What is made again is what it was, but for what has no id.
        let again: Vec<Call> = calls.iter().filter(|call| call.1 != 0).cloned().collect();
        let same: Vec<Answer> = calls.iter().zip(&first).filter(|(call, _)| call.1 != 0).map(|(_, a)| *a).collect();
        assert_eq!(set.call_again(&again), same);
    }
    let (money, digests) = set.settled();
    assert_eq!(money, ACCOUNTS * BALANCE);
    assert_eq!(follows.settled(), (money, digests));
    // A batch of several refuses an id that was another procedure's, and nothing has happened.
    let reused = set.call(&[(1, 0, vec![1, 2, 3]), (3, 5, vec![1])]).unwrap_err();
    assert!(matches!(reused, Error::RequestReused { request: 5, .. }), "{reused}");
    // What cannot be run says why, and the others run.
    let answers = set.call(&[(3, 0, vec![1]), (77, 0, vec![]), (3, 0, vec![2])]).unwrap();
    assert_eq!(answers[1].0, Some(Status::Failed));
    assert!(answers[0].0 == Some(Status::Committed) && answers[2].0 == Some(Status::Committed));
    let leader = set.leader();
    let node = set.nodes[leader].as_ref().unwrap();
    assert!(node.load("accounts", vec![0; 24]).unwrap_err().to_string().contains("divided"));
}

#[test]
fn parts_that_end_begin_again_from_checkpoint_and_log_and_nothing_is_lost_or_made_twice() {
    for seed in 0..4 {
        let journal = SimulatedJournal::new(seed);
        let mut set = Set::new(&journal, 2 + seed as usize % 2, true);
        set.furnish();
        let mut random = Random(seed);
        let (mut made, mut cuts) = (Vec::new(), 0);
        for round in 0..40 {
            let count = 1 + random.below(20);
            let calls = calls(&mut random, 1000 + round * 100, count);
            let (parts, fate) = (set.nodes.len() as u64, random.below(8));
            let number = random.below(parts) as usize;
            match fate {
                // One ends, and begins again while there are calls.
                0 | 1 => set.nodes[number] = None,
                // One loses the journal, which it notices later.
                2 => set.journals[number].cut(true),
                3 => {
                    let leader = set.leader();
                    cuts += u64::from(set.nodes[leader].as_ref().unwrap().checkpoint().is_ok());
                }
                _ => {}
            }
            if fate < 3 {
                let beginning = std::time::Duration::from_millis(random.below(400));
                std::thread::sleep(beginning);
                set.begin(number).unwrap();
            }
            let answers = set.call_again(&calls);
            let kept = calls.into_iter().zip(answers).filter(|(call, _)| call.1 != 0);
            made.extend(kept);
        }
        let (money, _) = set.settled();
        assert_eq!(money, ACCOUNTS * BALANCE, "seed {seed}");
        for chunk in made.chunks(100) {
            let calls: Vec<Call> = chunk.iter().map(|(call, _)| call.clone()).collect();
            let answers: Vec<Answer> = chunk.iter().map(|(_, answer)| *answer).collect();
            assert_eq!(set.call_again(&calls), answers, "seed {seed}");
        }
        println!("seed {seed}: {} records, {cuts} cuts", journal.extent().unwrap().next);
    }
}

#[test]
fn a_journal_of_another_number_of_parts_is_refused() {
    let journal = SimulatedJournal::new(9);
    let mut set = Set::new(&journal, 2, true);
    set.furnish();
    let mut other = Set::new(&journal, 3, false);
    let told = until(|| match other.nodes[0].as_ref().unwrap().handle().node().unwrap() {
        status if status.role == Role::Ended => Ok(status.trouble.unwrap_or_default()),
        status => Err(format!("{status:?}")),
    });
    assert!(told.contains("the tables of this journal have 2"), "{told}");
    other.nodes.clear();
}
