//! A set of nodes that have a part of every table each and share a log, and what is called there.

use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use lockwork_conformance::engines::Random;
use lockwork_partitions::divided::{KEPT_BYTES, Others};
use lockwork_procedure::block::{Batch, Status};
use lockwork_sequencer::io::simulated::SimulatedDisk;
use lockwork_sequencer::journal::Journal;
use lockwork_sequencer::journal::simulated::SimulatedJournal;
use lockwork_sequencer::{
    Definition, Error, GatheredTables, Handle, Journals, NodeOptions, Options, RequestId, Role, Sequencer,
};

use crate::parts::{listeners, part};

pub(crate) const ACCOUNTS: i64 = 40;
pub(crate) const BALANCE: i64 = 1000;
pub(crate) const LEASE: Duration = Duration::from_millis(300);
pub(crate) const TABLES: &str = "table accounts (id: i64 key, balance: i64, follows: i64) partition by hash(id)";

pub(crate) const OPEN: &str = "procedure open\ntable accounts\nparam id: i64\nparam balance: i64\nparam follows: i64
    insert c0, accounts, [id]\nret r1, c0\nload r2, [balance]\nstorer r2, r1[accounts.balance]
    load r2, [follows]\nstorer r2, r1[accounts.follows]\ncommit";

pub(crate) const TRANSFER: &str =
    "procedure transfer\ntable accounts\nparam from: i64\nparam to: i64\nparam amount: i64\nresult left: i64
    update c0, accounts, [from]\nupdate c1, accounts, [to]\nret r1, c0\nret r2, c1\nload r3, [amount]
    loadr r4, r1[accounts.balance]\ncmp r4, r3\nbl poor\nsub r4, r4, r3\nstorer r4, r1[accounts.balance]
    loadr r5, r2[accounts.balance]\nadd r5, r5, r3\nstorer r5, r2[accounts.balance]\nstore r4, [left]\ncommit
    poor:\nabort 1";

/// Pays to whom the payer's row names: what it touches is not told by its arguments.
pub(crate) const PAY: &str = "procedure pay\ntable accounts\nparam from: i64\nparam nothing: i64\nparam amount: i64\nresult left: i64\nscratch key: i64
    update c0, accounts, [from]\nret r1, c0\nloadr r2, r1[accounts.follows]\nstore r2, [key]\nupdate c1, accounts, [key]\nret r6, c1
    load r3, [amount]\nloadr r4, r1[accounts.balance]\nsub r4, r4, r3\nstorer r4, r1[accounts.balance]
    loadr r5, r6[accounts.balance]\nadd r5, r5, r3\nstorer r5, r6[accounts.balance]\nstore r4, [left]\ncommit";

pub(crate) const READ: &str = "procedure read\ntable accounts\nparam id: i64\nresult balance: i64
    search c0, accounts, [id]\nret r1, c0\nloadr r2, r1[accounts.balance]\nstore r2, [balance]\ncommit";

/// A set of nodes, one of each part.
pub(crate) struct Set {
    pub(crate) listeners: Vec<TcpListener>,
    pub(crate) addresses: Vec<String>,
    pub(crate) journals: Vec<SimulatedJournal>,
    /// Of each node its ways to the streams of further sequencers.
    pub(crate) streams: Vec<Vec<SimulatedJournal>>,
    /// Calls that were made.
    pub(crate) turn: usize,
    /// Of each node the end of the journal when it began.
    pub(crate) begun: Vec<u64>,
    pub(crate) nodes: Vec<Option<Sequencer>>,
    pub(crate) others: Vec<Option<Others>>,
    pub(crate) may_lead: bool,
    pub(crate) lease: Duration,
    /// What nodes that begin have of [`NodeOptions`].
    pub(crate) digest_interval: Duration,
    pub(crate) compares: bool,
}

impl Set {
    pub(crate) fn new(journal: &SimulatedJournal, parts: usize, may_lead: bool) -> Self {
        Self::with_streams(journal, &[], parts, may_lead, LEASE)
    }

    pub(crate) fn with_streams(
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
            digest_interval: Duration::ZERO,
            compares: true,
        };
        (0..parts).for_each(|number| set.begin(number).unwrap());
        set
    }

    pub(crate) fn begin(&mut self, number: usize) -> Result<(), Error> {
        self.nodes[number] = None;
        self.cut(number, false);
        self.begun[number] = self.journals[number].log_range().unwrap().next;
        let node = NodeOptions {
            may_lead: self.may_lead,
            lease: self.lease,
            digest_interval: self.digest_interval,
            compares: self.compares,
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
    pub(crate) fn cut(&self, number: usize, cut: bool) {
        self.journals[number].cut(cut);
        self.streams[number].iter().for_each(|stream| stream.cut(cut));
    }

    pub(crate) fn status(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("{:?}", node.as_ref().and_then(|node| node.handle().node()))).collect()
    }

    /// The node that leads; those whose role has ended begin again.
    pub(crate) fn leader(&mut self) -> usize {
        until(|| {
            self.revive();
            let leads = |node: &Option<Sequencer>| node.as_ref().unwrap().handle().role() == Some(Role::Leading);
            self.nodes.iter().position(leads).ok_or_else(|| format!("nobody leads: {:?}", self.status()))
        })
    }

    /// One that takes calls: they take turns.
    pub(crate) fn taker(&mut self) -> usize {
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
    pub(crate) fn revive(&mut self) {
        for number in 0..self.nodes.len() {
            if self.nodes[number].as_ref().is_none_or(|node| node.handle().role() == Some(Role::Ended)) {
                self.begin(number).unwrap();
            }
        }
    }

    pub(crate) fn call(&mut self, calls: &[Call]) -> Result<Vec<Answer>, Error> {
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
    pub(crate) fn call_again(&mut self, calls: &[Call]) -> Vec<Answer> {
        until(|| self.call(calls).map_err(|error| error.to_string()))
    }

    /// Asks the leader until there is an answer; what is refused for its own sake is one.
    pub(crate) fn ask<T: Send + 'static>(
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

    pub(crate) fn load(&mut self, table: &'static str, images: Vec<u8>) -> Result<usize, String> {
        self.ask(move |handle| handle.load(table, images.clone()))
    }

    pub(crate) fn gather(&mut self, tables: &'static [&'static str], most: u64) -> Result<GatheredTables, String> {
        self.ask(move |handle| {
            let (sender, gathered) = std::sync::mpsc::sync_channel(1);
            let names = tables.iter().map(ToString::to_string).collect();
            handle.gather_then(names, most, move |outcome| drop(sender.send(outcome)))?;
            gathered.recv().map_err(|_| Error::Closed)?
        })
    }

    pub(crate) fn furnish(&mut self) {
        for source in [TABLES, OPEN, TRANSFER, PAY, READ] {
            let leader = self.leader();
            let definition = Definition::new(source, "");
            self.nodes[leader].as_ref().unwrap().define(definition).unwrap();
        }
        let open =
            (1..=ACCOUNTS).map(|id| (0, id as u64, vec![id, BALANCE, id * 7 % ACCOUNTS + 1])).collect::<Vec<_>>();
        assert!(self.call_again(&open).iter().all(|answer| answer.0 == Some(Status::Committed)));
    }

    /// Money and digests of the parts, when all of them are as far as the journal.
    pub(crate) fn settled(&mut self) -> (i64, Vec<String>) {
        until(|| {
            let next = self.journals[0].log_range().unwrap().next;
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

/// The request id with a number; its time is that of the first one, and a millisecond for each number.
pub(crate) fn id(number: u64) -> RequestId {
    static BEGIN: OnceLock<u64> = OnceLock::new();
    let begin = *BEGIN.get_or_init(|| SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64);
    let mut random = [0; 10];
    random[2..].copy_from_slice(&number.to_be_bytes());
    RequestId::new(begin + number % 50_000, random)
}

/// Procedure, number of the request id (0 for none), arguments.
pub(crate) type Call = (u32, u64, Vec<i64>);
pub(crate) type Answer = (Option<Status>, u16, i64);

pub(crate) fn batch(calls: &[Call]) -> Batch {
    let mut batch = Batch::new(72, calls.len()).unwrap();
    for (procedure, request, arguments) in calls {
        let mut block = batch.push(*procedure).unwrap();
        for (at, argument) in arguments.iter().enumerate() {
            block.bytes()[32 + at * 8..40 + at * 8].copy_from_slice(&argument.to_le_bytes());
        }
        if *request > 0 {
            batch.set_request(batch.len() - 1, id(*request));
        }
    }
    batch
}

/// The result of a transfer.
pub(crate) fn result(block: &[u8]) -> i64 {
    i64::from_le_bytes(block[56..64].try_into().unwrap())
}

pub(crate) fn until<T>(mut holds: impl FnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    loop {
        match holds() {
            Ok(found) => return found,
            Err(why) if start.elapsed() > Duration::from_secs(60) => panic!("{why}"),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

pub(crate) fn calls(random: &mut Random, first: u64, count: u64) -> Vec<Call> {
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
