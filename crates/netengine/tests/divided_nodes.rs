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
use lockwork_sequencer::{Definition, Error, GatheredTables, Handle, Journals, NodeOptions, Options, Role, Sequencer};
use parts::{listeners, part};

const ACCOUNTS: i64 = 40;
const BALANCE: i64 = 1000;
const LEASE: Duration = Duration::from_millis(300);
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
    /// Of each node its ways to the streams of further sequencers.
    streams: Vec<Vec<SimulatedJournal>>,
    /// Calls that were made.
    turn: usize,
    /// Of each node the end of the journal when it began.
    begun: Vec<u64>,
    nodes: Vec<Option<Sequencer>>,
    others: Vec<Option<Others>>,
    may_lead: bool,
    lease: Duration,
}

impl Set {
    fn new(journal: &SimulatedJournal, parts: usize, may_lead: bool) -> Self {
        Self::with_streams(journal, &[], parts, may_lead, LEASE)
    }

    fn with_streams(
        journal: &SimulatedJournal,
        streams: &[SimulatedJournal],
        parts: usize,
        may_lead: bool,
        lease: Duration,
    ) -> Self {
        let (listeners, addresses) = listeners(parts);
        let journals = (0..parts).map(|_| journal.another()).collect();
        let (nodes, others) = ((0..parts).map(|_| None).collect(), vec![None; parts]);
        let another = |_| streams.iter().map(SimulatedJournal::another).collect();
        let streams = (0..parts).map(another).collect();
        let mut set = Self {
            listeners,
            addresses,
            journals,
            streams,
            turn: 0,
            begun: vec![0; parts],
            nodes,
            others,
            may_lead,
            lease,
        };
        (0..parts).for_each(|number| set.begin(number).unwrap());
        set
    }

    fn begin(&mut self, number: usize) -> Result<(), Error> {
        self.nodes[number] = None;
        self.cut(number, false);
        self.begun[number] = self.journals[number].extent().unwrap().next;
        let node = NodeOptions {
            may_lead: self.may_lead,
            lease: self.lease,
            digest_interval: Duration::ZERO,
            ..NodeOptions::new(format!("node{number}:1"))
        };
        let engine = Box::new(part(number, &self.listeners[number], &self.addresses, KEPT_BYTES));
        self.others[number] = Some(engine.others());
        let options = Options { checkpoint_bytes: 0, ..Options::default() };
        let streams = self.streams[number].iter().map(|stream| Arc::new(stream.clone()) as Arc<dyn Journal>).collect();
        let journals = Journals { order: Arc::new(self.journals[number].clone()), streams };
        let disk = Arc::new(SimulatedDisk::new(1));
        let joined = Sequencer::join_divided(journals, disk, Path::new("/n"), options, node, engine, &mut |_| ());
        self.nodes[number] = Some(joined?.0);
        Ok(())
    }

    /// Cuts all ways of a node, or mends them.
    fn cut(&self, number: usize, cut: bool) {
        self.journals[number].cut(cut);
        self.streams[number].iter().for_each(|stream| stream.cut(cut));
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

    /// One that takes calls: they take turns.
    fn taker(&mut self) -> usize {
        self.turn += 1;
        let number = self.turn % (self.streams[0].len() + 1);
        if number == 0 {
            return self.leader();
        }
        until(|| {
            self.revive();
            match self.nodes[number].as_ref().unwrap().handle().role() {
                Some(Role::Sequencing) => {
                    // Whoever calls there may have called before.
                    let next = self.nodes[number].as_ref().unwrap().handle().node().unwrap().next;
                    assert!(next >= self.begun[number], "it has {next} of {}", self.begun[number]);
                    Ok(number)
                }
                _ => Err(format!("{number} does not sequence: {:?}", self.status())),
            }
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
        let taker = self.taker();
        let (handle, calls) = (self.nodes[taker].as_ref().unwrap().handle().clone(), batch(calls));
        let waits = std::thread::spawn(move || handle.call_batch(calls));
        // It waits for all parts.
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

    /// Asks the leader until there is an answer; what is refused for its own sake is one.
    fn ask<T: Send + 'static>(
        &mut self,
        ask: impl Fn(&Handle) -> Result<T, Error> + Clone + Send + 'static,
    ) -> Result<T, String> {
        until(|| {
            let leader = self.leader();
            let (handle, asked) = (self.nodes[leader].as_ref().unwrap().handle(), ask.clone());
            let waits = std::thread::spawn(move || asked(&handle));
            let start = Instant::now();
            while !waits.is_finished() {
                self.revive();
                assert!(start.elapsed() < Duration::from_secs(60), "no answer: {:?}", self.status());
                std::thread::sleep(Duration::from_millis(2));
            }
            match waits.join().unwrap() {
                Ok(answer) => Ok(Ok(answer)),
                Err(error @ (Error::Load { .. } | Error::Engine(_))) => Ok(Err(error.to_string())),
                Err(error) => Err(error.to_string()),
            }
        })
    }

    fn load(&mut self, table: &'static str, images: Vec<u8>) -> Result<usize, String> {
        self.ask(move |handle| handle.load(table, images.clone()))
    }

    fn gather(&mut self, tables: &'static [&'static str], most: u64) -> Result<GatheredTables, String> {
        self.ask(move |handle| {
            let (sender, gathered) = std::sync::mpsc::sync_channel(1);
            let names = tables.iter().map(ToString::to_string).collect();
            handle.gather_then(names, most, move |outcome| drop(sender.send(outcome)))?;
            gathered.recv().map_err(|_| Error::Closed)?
        })
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
}

/// Images of accounts of these numbers.
fn images(accounts: impl Iterator<Item = i64>) -> Vec<u8> {
    accounts.flat_map(|id| [id, BALANCE, id].map(i64::to_le_bytes).concat()).collect()
}

#[test]
fn whole_tables_are_read_and_loaded_at_the_leader_of_parts() {
    let journal = SimulatedJournal::new(3);
    let (mut set, mut follows) = (Set::new(&journal, 3, true), Set::new(&journal, 3, false));
    for source in [TABLES, "table names (id: i64 key, name: char(8)) replicated", READ] {
        let leader = set.leader();
        let definition = Definition { assembly: source.into(), source: String::new() };
        set.nodes[leader].as_ref().unwrap().define(definition).unwrap();
    }
    let names =
        |from: i64| -> Vec<u8> { (from..from + 9).flat_map(|id| [id; 2].map(i64::to_le_bytes).concat()).collect() };
    // More than one record has, and more than one piece.
    let many = 300_000;
    assert_eq!(set.load("accounts", images(1..=many)).unwrap(), many as usize);
    assert_eq!(set.load("names", names(1)).unwrap(), 9);
    let gathered = set.gather(&["names", "accounts"], 1 << 30).unwrap();
    assert_eq!(gathered.bytes, 9 * 16 + many as u64 * 24);
    assert_eq!(gathered.tables[0].1, names(1));
    let mut rows: Vec<&[u8]> = gathered.tables[1].1.chunks(24).collect();
    rows.sort_by_key(|row| i64::from_le_bytes(row[..8].try_into().unwrap()));
    assert!(rows.concat() == images(1..=many));
    assert!(gathered.record > 3 && gathered.tables[0].0.name() == "names");
    // Too many are counted, and not told.
    let counted = set.gather(&["accounts"], 1 << 20).unwrap();
    assert_eq!((counted.bytes, counted.tables.len()), (many as u64 * 24, 0));

    // A key that is there, or stands twice, ends it, whichever part has it, and those before it are there.
    let refused = set.load("accounts", images((many + 1..many + 50).chain([7]).chain(many + 50..many + 60)));
    let expected = "49 rows were loaded, and the next was refused: table 'accounts' has a row with key (7)";
    assert!(refused.clone().unwrap_err().starts_with(expected), "{refused:?}");
    let twice = [0, 1, 2, 1, 3].into_iter().map(|at| many + 50 + at);
    assert!(set.load("accounts", images(twice)).unwrap_err().starts_with("3 rows were loaded"));
    assert!(set.load("names", names(5)).unwrap_err().starts_with("0 rows were loaded"));
    assert_eq!(set.load("names", names(10)).unwrap(), 9);
    assert_eq!(set.gather(&["accounts"], 0).unwrap().bytes, (many as u64 + 52) * 24);
    for (table, wrong) in [("nothing", "no table is called"), ("accounts", "has 24 bytes after its header")] {
        assert!(set.load(table, vec![0; 25]).unwrap_err().contains(wrong));
    }
    assert!(set.gather(&["accounts", "nothing"], 1).unwrap_err().contains("no table is called 'nothing'"));
    assert_eq!(set.load("accounts", Vec::new()).unwrap(), 0);
    assert_eq!(follows.settled().1, set.settled().1);
    let handle = follows.nodes[1].as_ref().unwrap().handle();
    assert!(matches!(handle.load("accounts", vec![0; 24]), Err(Error::Follower { .. })));
}

#[test]
fn parts_that_end_begin_again_from_checkpoint_and_log_and_nothing_is_lost_or_made_twice() {
    for seed in 0..8 {
        let (journal, parts) = (SimulatedJournal::new(seed), 2 + seed as usize % 2);
        // Of the second half, all parts have sequencers.
        let streams = if seed < 4 { 0 } else { parts as u64 - 1 };
        let streams: Vec<_> = (0..streams).map(|number| SimulatedJournal::new(seed + 100 + number)).collect();
        let mut set = Set::with_streams(&journal, &streams, parts, true, LEASE);
        set.furnish();
        let mut random = Random(seed);
        let (mut made, mut cuts, mut loaded) = (Vec::new(), 0, 0);
        for round in 0..40 {
            let count = 1 + random.below(20);
            let calls = calls(&mut random, 1000 + round * 100, count);
            let (parts, fate) = (set.nodes.len() as u64, random.below(8));
            let number = random.below(parts) as usize;
            match fate {
                // One ends, and begins again while there are calls.
                0 | 1 => set.nodes[number] = None,
                // One loses the journal, which it notices later.
                2 => set.cut(number, true),
                3 => {
                    let leader = set.leader();
                    cuts += u64::from(set.nodes[leader].as_ref().unwrap().checkpoint().is_ok());
                }
                _ => {}
            }
            // While one is away, or begins again; without the journal it would not come back.
            if fate != 2 && round % 4 < 2 {
                let gathered = set.gather(&["accounts"], 1 << 20).unwrap();
                let balances = gathered.tables[0].1.chunks(24).map(|row| &row[8..16]);
                let money: i64 = balances.map(|balance| i64::from_le_bytes(balance.try_into().unwrap())).sum();
                assert_eq!(money, (ACCOUNTS + loaded) * BALANCE, "seed {seed}");
            }
            if fate != 2 && round % 4 == 1 {
                // It is not known of one that fails whether it was made: then this finds out.
                let next = ACCOUNTS + loaded + 1;
                let again = set.load("accounts", images(next..next + 3));
                loaded += 3;
                assert!(again == Ok(3) || again.is_err_and(|why| why.starts_with("0 rows")), "seed {seed}");
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
        assert_eq!(money, (ACCOUNTS + loaded) * BALANCE, "seed {seed}");
        for chunk in made.chunks(100) {
            let calls: Vec<Call> = chunk.iter().map(|(call, _)| call.clone()).collect();
            let answers: Vec<Answer> = chunk.iter().map(|(_, answer)| *answer).collect();
            assert_eq!(set.call_again(&calls), answers, "seed {seed}");
        }
        let extents = streams.iter().map(|stream| stream.extent().unwrap().next).collect::<Vec<_>>();
        println!("seed {seed}: {} records, {extents:?} in streams, {cuts} cuts", journal.extent().unwrap().next);
    }
}

#[test]
fn sequencers_take_calls_beside_the_leader_and_their_streams_are_merged_alike_by_all() {
    let (journal, streams) = (SimulatedJournal::new(5), [SimulatedJournal::new(6), SimulatedJournal::new(7)]);
    let mut set = Set::with_streams(&journal, &streams, 3, true, Duration::from_secs(20));
    set.furnish();
    let mut follows = Set::with_streams(&journal, &streams, 3, false, LEASE);
    let takers: Vec<usize> = (0..3).map(|_| set.taker()).collect();
    let takers: Vec<Handle> = takers.iter().map(|&at| set.nodes[at].as_ref().unwrap().handle()).collect();
    // All of them at once, and each has made what it was told.
    let run = |(number, handle): (u64, &Handle)| {
        let mut random = Random(40 + number);
        let mut made = Vec::new();
        for round in 0..60 {
            let calls = calls(&mut random, 1 + (number * 100 + round) * 1000, 1 + round);
            let ran = handle.call_batch(batch(&calls)).map_err(|refused| refused.error).unwrap();
            let answers = ran.blocks().map(|block| (block.status(), block.abort_code(), result(block.bytes())));
            made.extend(calls.into_iter().zip(answers).filter(|(call, _)| call.1 != 0));
        }
        made
    };
    let made: Vec<(Call, Answer)> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..).zip(&takers).map(|of| scope.spawn(move || run(of))).collect();
        all.into_iter().flat_map(|one| one.join().unwrap()).collect()
    });
    assert!(streams.iter().all(|stream| stream.extent().unwrap().next > 10));
    // Whoever is asked again says the same.
    for chunk in made.chunks(500) {
        let (calls, answers): (Vec<Call>, Vec<Answer>) = chunk.iter().cloned().unzip();
        assert_eq!(set.call_again(&calls), answers);
    }
    let (money, digests) = set.settled();
    assert_eq!(money, ACCOUNTS * BALANCE);
    assert_eq!(follows.settled(), (money, digests));
    // What is not for them, and an id that another one has had of another procedure.
    let sequencer = &takers[takers.iter().position(|handle| handle.role() == Some(Role::Sequencing)).unwrap()];
    assert!(matches!(sequencer.load("accounts", vec![0; 24]), Err(Error::ForLeader { .. })));
    let reused = sequencer.call_batch(batch(&[(3, made[0].0.1, vec![1])])).map_err(|refused| refused.error);
    assert!(matches!(reused, Err(Error::RequestReused { .. })), "{:?}", reused.err());
    let ids: Vec<_> = takers
        .iter()
        .enumerate()
        .map(|(number, handle)| {
            let (procedure, handle) = (1 + 2 * (number as u32 % 2), handle.clone());
            std::thread::spawn(move || handle.call_batch(batch(&[(procedure, 77, vec![1, 2, 3])])))
        })
        .collect();
    // Given together, the later one is told that nothing has happened, by who finds out.
    let outcomes: Vec<_> = ids.into_iter().map(|one| one.join().unwrap()).collect();
    let made = outcomes
        .iter()
        .filter_map(|outcome| outcome.as_ref().ok())
        .filter(|ran| ran.block(0).status() != Some(Status::Failed));
    let kinds: std::collections::HashSet<u32> = made.map(|ran| ran.block(0).procedure()).collect();
    assert_eq!(kinds.len(), 1, "{outcomes:?}");
    assert_eq!(set.settled().0, ACCOUNTS * BALANCE);
}

#[test]
fn damage_in_a_stream_stops_who_reads_it_and_says_where() {
    for (number, what) in [(0, "altered"), (1, "lost"), (2, "of another database")] {
        let (journal, stream) = (SimulatedJournal::new(20 + number), SimulatedJournal::new(30 + number));
        let mut set = Set::with_streams(&journal, std::slice::from_ref(&stream), 2, true, LEASE);
        set.furnish();
        for _ in 0..6 {
            assert_eq!(set.call_again(&[(3, 0, vec![1])])[0].0, Some(Status::Committed));
        }
        set.settled();
        let other = SimulatedJournal::new(40);
        let read = match number {
            0 => {
                stream.alter(2, |message| message[100] ^= 1);
                &stream
            }
            1 => {
                stream.forget(2);
                &stream
            }
            _ => {
                let mut set =
                    Set::with_streams(&SimulatedJournal::new(41), std::slice::from_ref(&other), 2, true, LEASE);
                set.furnish();
                for _ in 0..12 {
                    set.call_again(&[(3, 0, vec![1])]);
                }
                &other
            }
        };
        let mut follows = Set::with_streams(&journal, std::slice::from_ref(read), 2, false, LEASE);
        let told = until(|| match follows.nodes[0].as_ref().unwrap().handle().node().unwrap() {
            status if status.role == Role::Ended => Ok(status.trouble.unwrap_or_default()),
            status => Err(format!("{what}: {status:?}")),
        });
        let expected = ["offset 2: ", "offset 2: ", "the stream is of another database"][number as usize];
        assert!(told.contains(expected), "{what}: {told}");
        follows.nodes.clear();
    }
}

#[test]
fn whole_tables_read_all_the_time_keep_no_calls_waiting() {
    let (journal, stream) = (SimulatedJournal::new(70), SimulatedJournal::new(71));
    let lease = Duration::from_secs(20);
    let mut set = Set::with_streams(&journal, std::slice::from_ref(&stream), 2, true, lease);
    set.furnish();
    let takers: Vec<usize> = (0..2).map(|_| set.taker()).collect();
    let takers: Vec<Handle> = takers.iter().map(|&at| set.nodes[at].as_ref().unwrap().handle()).collect();
    let leader = takers.iter().find(|handle| handle.role() == Some(Role::Leading)).unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    let (sender, gathered) = std::sync::mpsc::sync_channel(1);
                    let then = move |outcome| drop(sender.send(outcome));
                    leader.gather_then(vec!["accounts".into()], 1 << 20, then).unwrap();
                    assert!(gathered.recv().unwrap().is_ok());
                }
            });
        }
        let calls: Vec<_> = takers
            .iter()
            .map(|handle| {
                scope.spawn(|| {
                    for _ in 0..20 {
                        assert!(handle.call_batch(batch(&[(3, 0, vec![1])])).is_ok());
                    }
                })
            })
            .collect();
        let start = Instant::now();
        while !calls.iter().all(|calls| calls.is_finished()) && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(start.elapsed() < Duration::from_secs(60), "calls wait");
    });
}

/// What the order had named of such a stream would be there for good.
#[test]
fn a_stream_that_is_left_over_is_not_merged() {
    let (journal, stream) = (SimulatedJournal::new(50), SimulatedJournal::new(51));
    let mut before = Set::with_streams(&SimulatedJournal::new(52), std::slice::from_ref(&stream), 2, true, LEASE);
    before.furnish();
    for _ in 0..4 {
        before.call_again(&[(3, 0, vec![1])]);
    }
    drop(before);
    // A database that has had no further sequencers.
    let mut set = Set::new(&journal, 2, true);
    set.furnish();
    set.nodes.clear();
    let extent = journal.extent().unwrap();
    let wrong = Set::with_streams(&journal, std::slice::from_ref(&stream), 2, true, LEASE);
    let told = until(|| match wrong.nodes[0].as_ref().unwrap().handle().node().unwrap() {
        status if status.role == Role::Ended => Ok(status.trouble.unwrap_or_default()),
        status => Err(format!("{status:?}")),
    });
    assert!(told.contains("the stream is of another database"), "{told}");
    drop(wrong);
    // At most somebody has begun to lead.
    assert!(journal.extent().unwrap().next <= extent.next + 1);
    let empty = SimulatedJournal::new(53);
    let mut set = Set::with_streams(&journal, std::slice::from_ref(&empty), 2, true, LEASE);
    for _ in 0..4 {
        assert_eq!(set.call_again(&[(3, 0, vec![1])])[0].0, Some(Status::Committed));
    }
    assert!(empty.extent().unwrap().next > 2);
    assert_eq!(set.settled().0, ACCOUNTS * BALANCE);
}

#[test]
fn a_full_stream_refuses_calls_of_its_sequencer_and_nothing_of_them_happens() {
    let (journal, stream) = (SimulatedJournal::new(60), SimulatedJournal::new(61));
    let mut set = Set::with_streams(&journal, std::slice::from_ref(&stream), 2, true, LEASE);
    set.furnish();
    let transfer = (1, 900, vec![1, 2, 30]);
    let at = |set: &mut Set| {
        until(|| {
            let taker = set.taker();
            if taker == 1 { Ok(set.nodes[1].as_ref().unwrap().handle()) } else { Err("the other one".into()) }
        })
    };
    let handle = at(&mut set);
    stream.set_capacity(0);
    let refused = handle.call_batch(batch(std::slice::from_ref(&transfer))).map_err(|refused| refused.error);
    assert!(matches!(refused, Err(Error::JournalFull(_))), "{:?}", refused.err());
    // The others go on, and with room so does it.
    set.leader();
    stream.set_capacity(usize::MAX);
    let handle = at(&mut set);
    let ran = handle.call_batch(batch(std::slice::from_ref(&transfer))).map_err(|refused| refused.error).unwrap();
    assert_eq!((ran.block(0).status(), result(ran.block(0).bytes())), (Some(Status::Committed), BALANCE - 30));
    assert_eq!(set.settled().0, ACCOUNTS * BALANCE);
}

/// Another number of streams would give what is merged another order.
#[test]
fn a_journal_of_another_number_of_streams_is_refused() {
    let (journal, streams) = (SimulatedJournal::new(11), [SimulatedJournal::new(12), SimulatedJournal::new(13)]);
    let mut set = Set::with_streams(&journal, &streams, 3, true, LEASE);
    set.furnish();
    for _ in 0..3 {
        assert_eq!(set.call_again(&[(3, 0, vec![1])])[0].0, Some(Status::Committed));
    }
    let mut other = Set::with_streams(&journal, &streams[..1], 3, false, LEASE);
    let told = until(|| match other.nodes[0].as_ref().unwrap().handle().node().unwrap() {
        status if status.role == Role::Ended => Ok(status.trouble.unwrap_or_default()),
        status => Err(format!("{status:?}")),
    });
    assert!(told.contains("the nodes of this journal have 2"), "{told}");
    other.nodes.clear();
    // Of a checkpoint too, and more than parts can stand for.
    set.ask(|handle| handle.checkpoint().map(|_| ())).unwrap();
    set.settled();
    set.nodes.clear();
    for (wrong, expected) in [(1, "checkpoints of this journal have 2"), (3, "at most 2 are possible")] {
        let (listeners, addresses) = listeners(3);
        let (engine, disk) = (part(0, &listeners[0], &addresses, KEPT_BYTES), Arc::new(SimulatedDisk::new(1)));
        let streams = (0..wrong).map(|at| Arc::new(streams[at % 2].another()) as Arc<dyn Journal>).collect();
        let (journals, node) = (Journals { order: Arc::new(journal.another()), streams }, NodeOptions::new("a:1"));
        let (options, engine) = (Options::default(), Box::new(engine));
        let joined = Sequencer::join_divided(journals, disk, Path::new("/n"), options, node, engine, &mut |_| ());
        let told = joined.err().unwrap_or_else(|| panic!("{wrong} streams are taken")).to_string();
        assert!(told.contains(expected), "{wrong}: {told}");
    }
}

#[test]
fn what_touches_other_parts_is_passed_over_and_what_has_a_request_id_is_not() {
    const PARTS: usize = 3;
    let journal = SimulatedJournal::new(2);
    let mut set = Set::new(&journal, PARTS, true);
    set.furnish();
    let mut attempt = 0;
    until(|| {
        attempt += 1;
        let leader = set.leader();
        set.settled();
        let taken = |set: &Set| -> Vec<u64> {
            set.nodes.iter().map(|node| node.as_ref().unwrap().statistics().calls).collect()
        };
        let before = taken(&set);
        // Who pays whom a row names is found out by looking: it is everybody's. Of the others every tenth has an id.
        let call = |at: u64| match at % 25 {
            3 => (2, 0, vec![1 + at as i64 % ACCOUNTS, 0, 0]),
            kind => (3, if kind % 10 == 0 { attempt * 1000 + at } else { 0 }, vec![1 + at as i64 % ACCOUNTS]),
        };
        let calls: Vec<Call> = (0..200).map(call).collect();
        let mut due = [0; PARTS];
        for (procedure, request, arguments) in &calls {
            let owner = ((arguments[0] as u64 ^ 1 << 63) % PARTS as u64) as usize;
            for (part, due) in due.iter_mut().enumerate() {
                let concerns = part == owner || part == leader || *procedure == 2 || *request != 0;
                *due += u64::from(concerns);
            }
        }
        let answers = set.call(&calls).map_err(|error| error.to_string())?;
        assert!(answers.iter().all(|answer| answer.0 == Some(Status::Committed)));
        set.settled();
        // On a busy machine another one may have begun to lead.
        if set.leader() != leader {
            return Err("the leader has changed".into());
        }
        let after = taken(&set);
        let seen: Vec<u64> = after.iter().zip(&before).map(|(after, before)| after.wrapping_sub(*before)).collect();
        assert_eq!(seen, due);
        assert_eq!(due[leader], 200);
        assert!((0..PARTS).all(|part| part == leader || due[part] < 120), "{due:?}");
        Ok(())
    });
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

/// Of three parts, two have everything that two parts would have, as far as names of checkpoints tell.
#[test]
fn checkpoints_of_another_number_of_parts_are_refused() {
    let journal = SimulatedJournal::new(10);
    let mut set = Set::new(&journal, 3, true);
    set.furnish();
    // A later one has the log cut behind the first.
    until(|| {
        set.ask(|handle| handle.checkpoint().map(|_| ())).unwrap();
        set.settled();
        if journal.extent().unwrap().first > 1 { Ok(()) } else { Err("the log is not cut".into()) }
    });
    set.nodes.clear();
    for wrong in [1, 2, 4] {
        let (listeners, addresses) = listeners(wrong);
        let (engine, disk) = (part(0, &listeners[0], &addresses, KEPT_BYTES), Arc::new(SimulatedDisk::new(1)));
        let (journals, node) = (Journals::one(journal.another()), NodeOptions::new("a:1"));
        let (options, engine) = (Options::default(), Box::new(engine));
        let joined = Sequencer::join_divided(journals, disk, Path::new("/n"), options, node, engine, &mut |_| ());
        let told = joined.err().unwrap_or_else(|| panic!("{wrong} parts are taken")).to_string();
        assert!(told.contains("of 3 parts"), "{wrong}: {told}");
    }
    set = Set::new(&journal, 3, true);
    assert_eq!(set.settled().0, ACCOUNTS * BALANCE);
}
