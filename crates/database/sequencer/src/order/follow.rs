//! A node's part: it runs what the journal has, until it leads.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{channel, sync_channel};
use std::time::Duration;

use super::{Callers, Order, Request};
use crate::catalogue::Catalogue;
use crate::decode::{Decoder, Item};
use crate::error::Error;
use crate::format::calls;
use crate::format::frame::RecordKind;
use crate::io::Mode;
use crate::journal::answers::Answers;
use crate::journal::compare::Comparing;
use crate::journal::complete::complete;
use crate::journal::election::{Membership, NodeOptions, Role};
use crate::journal::follower::READ_BYTES;
use crate::journal::message::{Chain, OVERHEAD, Position, salt};
use crate::journal::publisher::Publisher;
use crate::journal::{Journal, Messages, append_first};
use crate::log::reader::Record;
use crate::log::room::Room;
use crate::recovery::{RecoveryReport, Replay};
use crate::requests::DedupTable;
use crate::threads::Thread;

/// Units that may wait for the publisher. Few: they are appended one after the other, and what waits before it becomes
/// a unit makes the next one longer.
const UNITS: usize = 2;
/// Decoded items that are run before more messages are decoded: their blocks take more memory than their messages.
const MAX_ITEMS: usize = 16;
/// No log engine takes longer messages, so no record has more calls than one of this length.
const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// What a node has beside what every sequencer has.
pub(crate) struct Node {
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) membership: Arc<Membership>,
    pub(crate) options: NodeOptions,
    /// The journal, for messages about damage.
    pub(crate) path: PathBuf,
    /// What the next record follows, until this node leads.
    pub(crate) chain: Chain,
    pub(crate) decoder: Decoder<Vec<(Item, u64)>>,
    /// What the calls of a record have answered of which only a part has run.
    answers: Answers,
    /// When digests of the whole database are made.
    pub(crate) comparing: Comparing,
    /// What the database is called if this node begins it.
    pub(crate) fresh: u64,
    pub(crate) publisher: Option<Thread>,
}

impl Node {
    pub(crate) fn new(
        journal: Arc<dyn Journal>,
        options: NodeOptions,
        chain: Chain,
        catalogue: Catalogue,
        fresh: u64,
    ) -> Self {
        let path = PathBuf::from(journal.describe());
        let mut decoder = Decoder::new(catalogue, Vec::new(), channel().1, 0);
        decoder.max_calls = journal.most_bytes().max(MAX_MESSAGE_BYTES) / calls::most_bytes(0);
        decoder.compares = options.compares;
        let comparing = Comparing::new(options.digest_interval, options.threads.now());
        let membership = Arc::new(Membership::new(options.threads.clone()));
        membership.set_epoch(chain.epoch);
        Self {
            journal,
            membership,
            options,
            path,
            chain,
            decoder,
            answers: Answers::default(),
            comparing,
            fresh,
            publisher: None,
        }
    }

    pub(crate) fn is_leading(&self) -> bool {
        self.membership.role() == Role::Leading
    }
}

impl Order {
    /// Whether calls are another node's to run.
    pub(super) fn follows(&self) -> bool {
        self.node.as_ref().is_some_and(|node| !node.is_leading())
    }

    /// Why calls are refused.
    pub(super) fn not_leading(&self) -> Error {
        let leader = self.node.as_ref().map_or(String::new(), |node| node.membership.leader());
        self.shared.trouble().unwrap_or(Error::Follower { leader })
    }

    /// Why nothing is read: a node that did lead has run what the log may not have, and others have gone on.
    fn is_over(&self) -> Option<Error> {
        let has_ended = self.node.as_ref().is_some_and(|node| node.membership.role() == Role::Ended);
        self.shared.trouble().or(has_ended.then_some(Error::Superseded))
    }

    /// As [`Self::take`], for a node that follows: calls are refused.
    pub(super) fn take_following(&mut self, request: Request) {
        let error = self.not_leading();
        match request {
            Request::Batch(mut waiting) => {
                if let Some((batch, reply)) = waiting.0.take() {
                    Callers::One(reply).refuse(Some(batch), error);
                }
            }
            Request::Call { reply, .. } => reply(Err(error)),
            Request::Steps { reply, .. } => reply(Err(error)),
            Request::Look { reply, .. } => reply(Err(error)),
            Request::Define { reply, .. } => drop(reply.send(Err(error))),
            Request::Load { reply, .. } => reply(Err(error)),
            Request::Gather { .. } => unreachable!("nobody asks who has everything"),
            // What it has is from the journal, so it is durable.
            Request::Read(read) => {
                let answered = read(&*self.engine, self.next - 1);
                answered(self.is_over().map_or(Ok(()), Err));
            }
            Request::Checkpoint(reply) => self.work.wanted.push(reply),
            Request::Digest(reply) => reply(Err(error)),
            Request::Definitions(from, reply) => {
                drop(reply.send(self.is_over().map_or_else(|| Ok(self.definitions_from(from)), Err)));
            }
            Request::Follow { messages, done } => {
                self.follow(&messages);
                // Who reads may have ended.
                done.send(()).ok();
            }
            Request::Appended(_) | Request::NotAppended { .. } | Request::Streamed { .. } | Request::Differs(_) => {}
            Request::Lead(reply) => drop(reply.send(self.lead())),
            Request::Close(reply) => self.work.closing = Some(reply),
        }
    }

    /// Runs messages, as far as they are new. Nothing is wrong if this node leads by now.
    pub(super) fn follow(&mut self, messages: &Messages) {
        if self.follows()
            && self.shared.trouble().is_none()
            && let Err(error) = self.apply(messages)
        {
            self.end(error);
        }
    }

    /// The part of this node is over: what it has is not what the journal says.
    fn end(&self, error: Error) {
        if let Some(node) = &self.node {
            if let Error::Differs { record, .. } = error {
                node.membership.differs(record);
            }
            node.membership.end(error.to_string());
        }
        self.shared.stop(error);
    }

    /// Reads and runs what the journal has, and returns when there was nothing more. Calls `told` with the bytes,
    /// records and calls replayed so far.
    ///
    /// # Errors
    /// [`Error::Unreachable`]; [`Error::Damaged`], [`Error::Version`], [`Error::Replay`] and [`Error::Differs`], behind
    /// which there is no way on.
    pub(crate) fn catch_up(&mut self, told: &mut dyn FnMut(u64, u64, u64)) -> Result<(), Error> {
        let (mut bytes, first) = (0, self.next);
        while let Some(node) = &self.node {
            let read = node.journal.read(self.next, READ_BYTES, Duration::ZERO);
            let messages = read.map_err(|error| Error::Unreachable(error.to_string()))?;
            if messages.messages.is_empty() {
                break;
            }
            bytes += messages.messages.iter().map(Vec::len).sum::<usize>() as u64;
            self.apply(&messages)?;
            told(bytes, self.next - first, self.shared.statistics().calls);
        }
        Ok(())
    }

    /// The same, also with what only one server of the journal has.
    fn catch_up_with_all(&mut self) -> Result<(), Error> {
        self.catch_up(&mut |_, _, _| ())?;
        let Some(node) = &self.node else { return Ok(()) };
        let read = Position { next: self.next, chain: node.chain };
        match complete(&*node.journal, (&self.shared, &node.membership), &node.path, read)?.next > self.next {
            true => self.catch_up(&mut |_, _, _| ()),
            false => Ok(()),
        }
    }

    /// Verifies messages and runs what they say.
    fn apply(&mut self, messages: &Messages) -> Result<(), Error> {
        let Some(node) = &mut self.node else { return Ok(()) };
        if messages.first > self.next {
            let problem = format!("records {} to {} are missing", self.next, messages.first - 1);
            return Err(Error::damaged(&node.path, self.next, problem));
        }
        let due = (self.next - messages.first) as usize;
        let mut rest = messages.messages.get(due..).unwrap_or_default();
        loop {
            rest = self.apply_some(rest)?;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    /// The same with as many of the messages as are decoded at a time; returns the others.
    fn apply_some<'a>(&mut self, messages: &'a [Vec<u8>]) -> Result<&'a [Vec<u8>], Error> {
        let Some(node) = &mut self.node else { return Ok(&[]) };
        let (mut number, mut bytes, mut rest) = (self.next, 0, messages);
        while let [message, after @ ..] = rest
            && node.decoder.items.len() < MAX_ITEMS
        {
            let (frame, payload) = node.chain.verify(&node.path, number, message)?;
            if frame.kind == RecordKind::Epoch {
                node.membership.set_epoch(node.chain.epoch);
            } else {
                node.decoder.record(&Record { path: &node.path, offset: number, frame, payload })?;
            }
            bytes += message.len();
            number += 1;
            rest = after;
        }
        node.decoder.flush()?;
        self.database = node.chain.database;
        let items = std::mem::take(&mut node.decoder.items);
        let items = self.choose_digests(items.into_iter().map(|(item, _)| item).collect(), number);
        self.replay(items)?;
        self.next = number;
        self.shared.definitions.store(self.definitions.added().len(), Ordering::Release);
        self.shared.set_durable(number);
        self.shared.count_sync(bytes, false, Duration::ZERO);
        Ok(rest)
    }

    /// Runs items in their order.
    fn replay(&mut self, items: Vec<Item>) -> Result<(), Error> {
        let copying = self.work.checkpointing.as_ref().is_some_and(|checkpoint| checkpoint.snapshot.is_some());
        if !copying {
            return self.replay_together(items);
        }
        for item in items {
            match &item {
                Item::Calls { batch, .. } => self.save_before(batch),
                // It changes nothing.
                Item::Digest(..) => {}
                _ => self.copy_rest(),
            }
            self.replay_together(vec![item])?;
        }
        Ok(())
    }

    fn replay_together(&mut self, items: Vec<Item>) -> Result<(), Error> {
        let mut report = RecoveryReport::default();
        let mut unseen = |_| ();
        let dedup = std::mem::replace(&mut self.dedup, DedupTable::new(&self.options));
        let mut replay = Replay::new(&mut *self.engine, dedup, &mut report, &mut unseen, channel().0);
        replay.catalogue = std::mem::take(&mut self.catalogue);
        replay.definitions = std::mem::take(&mut self.definitions);
        replay.answers = self.node.as_mut().map_or_else(Answers::default, |node| std::mem::take(&mut node.answers));
        let ran = items.into_iter().try_for_each(|item| replay.item(item)).and_then(|()| replay.drain());
        let (answers, compared, replaced) = (replay.answers, replay.compared, replay.replaced);
        self.catalogue = std::mem::take(&mut replay.catalogue);
        self.definitions = std::mem::take(&mut replay.definitions);
        self.dedup = replay.dedup;
        self.dedup.expire(self.shared.threads.unix_ms());
        if let Some(node) = &mut self.node {
            node.answers = answers;
        }
        ran?;
        if let Some((record, digest, took)) = compared {
            self.compared(record, digest, took);
        }
        self.learn_procedures(&replaced);
        self.shared.count(|statistics| statistics.calls += report.calls);
        Ok(())
    }

    /// Begins an epoch, if nobody has begun one since.
    ///
    /// # Errors
    /// Why not; trying again may help.
    pub(super) fn lead(&mut self) -> Result<(), Error> {
        if !self.follows() {
            return Ok(());
        }
        if let Some(error) = self.shared.trouble() {
            return Err(error);
        }
        if let Err(error) = self.catch_up_with_all() {
            if !matches!(error, Error::Unreachable(_) | Error::JournalFull(_)) {
                self.end(error.clone());
            }
            return Err(error);
        }
        let Some(node) = &mut self.node else { return Ok(()) };
        let mut chain = node.chain;
        if chain.epoch == 0 {
            chain.database = node.fresh;
        }
        let message = chain.begin_epoch(self.next, &node.options.address);
        append_first(&*node.journal, &node.membership, self.next, message)?;
        (node.chain, self.database) = (chain, chain.database);
        self.next += 1;
        self.shared.set_durable(self.next);
        let most_bytes = node.journal.most_bytes() - OVERHEAD;
        self.space = Some(Room::Messages { salt: salt(chain.database), most_bytes });
        let (journal, shared, membership) = (node.journal.clone(), self.shared.clone(), node.membership.clone());
        let publisher = Publisher { journal, shared, membership, chain, next: self.next, orders: true };
        let (units, taken) = sync_channel(UNITS);
        node.publisher = Some(self.shared.threads.start("lockwork-journal", move || publisher.run(&taken))?);
        self.units = Some(units);
        node.membership.set_epoch(chain.epoch);
        node.membership.take(Role::Leading);
        Ok(())
    }

    /// What a checkpoint of a node has beside the database: what the record behind it will follow. To be called when
    /// the last record that it covers, `number`, is durable.
    pub(super) fn chain_at(&self, number: u64) -> Option<Box<dyn FnOnce() -> Result<Chain, Error> + Send>> {
        let node = self.node.as_ref()?;
        let (journal, path) = (node.journal.clone(), node.path.clone());
        Some(Box::new(move || {
            if number == 0 {
                return Ok(Chain::default());
            }
            let read =
                journal.read(number, 1, Duration::ZERO).map_err(|error| Error::Unreachable(error.to_string()))?;
            match &read.messages[..] {
                [message, ..] if read.first == number => Chain::behind(&path, number, message),
                _ => Err(Error::damaged(&path, number, "the record is missing")),
            }
        }))
    }

    /// Gives a checkpoint that is whole to the journal, and removes there what it replaces but one: a node that lags
    /// may go on with it.
    pub(super) fn keeper(&self, number: u64) -> Option<Box<dyn FnOnce() -> Result<(), Error> + Send>> {
        let node = self.node.as_ref()?;
        let (journal, io, path) = (node.journal.clone(), self.io.clone(), self.directory.checkpoint(number));
        Some(Box::new(move || {
            let failed = |error: crate::journal::Unreachable| Error::Unreachable(error.to_string());
            let kept = journal.checkpoints().map_err(failed)?;
            if kept.last().is_some_and(|&newest| newest >= number) {
                return Ok(());
            }
            let file = io.open(&path, Mode::Read).map_err(|error| Error::io("read", &path, error))?;
            journal.keep_checkpoint(number, &*file).map_err(failed)?;
            let Some(&before) = kept.last() else { return Ok(()) };
            journal.truncate(before + 1).map_err(failed)?;
            journal.drop_checkpoints(before).map_err(failed)
        }))
    }

    /// The last that a node does: its publisher ends, and whoever waits for its lease learns so.
    pub(super) fn leave(&mut self) {
        self.units = None;
        if let Some(node) = &mut self.node {
            if let Some(publisher) = node.publisher.take() {
                publisher.join();
            }
            node.membership.close();
        }
    }
}
