//! A node that has a part of every table: the log first, then execution.
//!
//! ```text
//! leader:   calls -> record -> message -> append ---+
//!                                                   v
//! all:      read (the leader: what it appended) -> verify -> engine, with those of the other parts -> outcomes
//! ```
//!
//! A node that has everything runs calls and appends what happened ([`order`](crate::order)). One that has a part
//! cannot: the others learn of a call by the log, and run it with this one. So here a record has what is to be run,
//! whatever becomes of it, and the leader runs it when it is appended, as everybody does. Nobody votes, and nothing is
//! ever taken back.
//!
//! Who has called at the leader is answered when its engine knows the outcome, which another part may tell. The
//! outcome of a call with a request id is known by all, so that a retry is answered whoever leads then.
//!
//! A call's stamp is the number of its record, and its place in it; so it is the same for all, whatever else of the
//! record they take, and for one that begins again.
//!
//! | module | idea |
//! |---|---|
//! | `mod` | requests, and what the leader makes of them |
//! | `join` | how such a node begins |
//! | `give` | records that the leader gives to the journal, and what is done when they are there |
//! | `run` | what messages say, done in their order |
//! | `choose` | which calls of a record this node takes |
//! | `compare` | digests of all parts at one record |
//! | `cut` | checkpoints of all parts at one record |
//! | `tables` | whole tables: their rows read, and rows loaded |
//! | `streams` | further sequencers, whose streams are merged |
//! | `own` | the stream that this node stands for |
//! | `parts` | what the checkpoints of parts are called in a journal |
//!
//! Invariant: at any record the nodes of all parts have together what one engine has that ran the log up to there.
//!
//! Source: Calvin (Thomson et al., SIGMOD 2012), sections 3.1 and 3.3.

mod choose;
mod compare;
mod cut;
mod give;
mod join;
mod own;
mod parts;
mod run;
mod streams;
mod tables;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};

use lockwork_engine::registry::Registered;
use lockwork_engine::{Divided, EngineError};
use lockwork_procedure::block::{Batch, Block};

use crate::catalogue::{Catalogue, Definitions};
use crate::checkpoint::write::CheckpointReport;
use crate::directory::Directory;
use crate::error::Error;
use crate::format::frame::RecordKind;
use crate::format::items::Definition;
use crate::io::Io;
use crate::journal::election::{Membership, Role};
use crate::journal::message::OVERHEAD;
use crate::journal::publisher::Publisher;
use crate::journal::{Messages, append_first};
use crate::log::writer::Unit;
use crate::options::Options;
use crate::order::{Callers, DigestReply, MAX_DEFINITION_BYTES, Node, Read, Reply, Request, Tables};
use crate::requests::DedupTable;
use crate::shared::Shared;

use choose::Chooser;
use compare::Digests;
pub use join::Journals;
use own::Own;
pub(crate) use streams::Progress;
use streams::{Streams, Until};
pub(crate) use tables::GatherReply;
pub use tables::GatheredTables;
use tables::Loading;

/// Records that are on their way to the journal at a time; what comes meanwhile makes the next one longer.
const PENDING: usize = 2;
/// What a record costs whoever begins again, beside its calls, in bytes of them: a wait for other parts.
const RECORD_COST: u64 = 4096;
/// Bits of a stamp for the place of a call in its record.
const PLACE_BITS: u32 = 20;

/// Something that the leader has given to the journal, in the order of the records.
enum Ordered {
    /// The calls at these places of a batch; the others cannot be run, and say why.
    Calls {
        batch: Batch,
        places: Vec<u32>,
        callers: Callers,
    },
    Definition(Definition, Reply<()>),
    /// The rows of these tables are wanted, if they are no more than so many bytes.
    Gather {
        tables: Vec<u16>,
        most: u64,
        reply: GatherReply,
    },
    /// Of what is loaded, these rows.
    Rows(Loading, Range<usize>),
    /// What the streams of further sequencers have before these numbers has its place here.
    Merge(Vec<Until>),
    /// Digests of all parts, and who waits for that.
    Compare(Option<DigestReply>),
    /// Checkpoints of all parts, and who waits for that.
    Cut(Option<Reply<CheckpointReport>>),
}

/// See the module.
pub(crate) struct PartitionedOrder {
    engine: Box<dyn Divided>,
    options: Options,
    io: Arc<dyn Io>,
    directory: Directory,
    shared: Arc<Shared>,
    catalogue: Catalogue,
    definitions: Definitions,
    procedures: Vec<Arc<Registered>>,
    dedup: DedupTable,
    /// The number of the next record that is run.
    next: u64,
    node: Node,
    chooser: Chooser,
    streams: Streams,
    /// If it stands for one of them, and so not for the order.
    own: Option<Own>,
    /// Reads that wait for a record to be merged to its end.
    reads: Vec<Read>,
    /// Messages of which one merges more than was read of the streams yet, and who waits for them.
    stalled: Option<(Messages, SyncSender<()>)>,
    /// To this thread.
    requests: SyncSender<Request>,
    /// To the publisher, while this node leads.
    units: Option<SyncSender<Unit>>,
    /// The record at which the last checkpoint was made, or asked for.
    cut_at: u64,
    digests: Digests,
    /// The number of the next record that is given to the journal.
    giving: u64,
    pending: VecDeque<Ordered>,
    /// Calls that wait until there is room for a record, and what they are together.
    held: VecDeque<(Batch, Callers)>,
    /// What has to wait until nothing is pending.
    later: VecDeque<Request>,
    closing: Option<Reply<()>>,
}

impl PartitionedOrder {
    fn run(mut self, requests: &Receiver<Request>) {
        let threads = self.shared.threads.clone();
        while self.closing.is_none() {
            match threads.receive(requests, self.until_digest()) {
                Ok(request) => self.take(request),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.answer_reads();
            self.go_on();
        }
        // What is on its way is appended, or not: nobody waits any more to learn which.
        self.refuse_all(&Error::Closed);
        self.units = None;
        let publishers = [self.node.publisher.take(), self.own.as_mut().and_then(Own::close)];
        for publisher in publishers.into_iter().flatten() {
            // It tells this thread what it has done, which is of no interest any more.
            while !publisher.is_finished() {
                drop(threads.receive(requests, Some(std::time::Duration::from_millis(1))));
            }
            publisher.join();
        }
        self.node.membership.close();
        if let Some(reply) = self.closing.take() {
            drop(reply.send(Ok(())));
        }
    }

    /// Answers reads, unless part of a record was run, and the rest will be.
    fn answer_reads(&mut self) {
        let trouble = self.shared.trouble();
        if trouble.is_none() && self.streams.are_underway() {
            return;
        }
        for read in std::mem::take(&mut self.reads) {
            let answered = read(&*self.engine, self.next - 1);
            answered(trouble.clone().map_or(Ok(()), Err));
        }
    }

    fn leads(&self) -> bool {
        self.units.is_some() && self.node.membership.role() == Role::Leading
    }

    /// Whether a record may be given to the journal, beside those that are on their way.
    fn has_room(&self) -> bool {
        self.pending.len() < PENDING
    }

    /// Whether it takes calls for a stream of its own.
    fn sequences(&self) -> bool {
        self.own.as_ref().is_some_and(Own::sequences)
    }

    /// Why nothing is taken from callers that is for who leads, if so.
    fn refusal(&self) -> Option<Error> {
        let follows = || {
            let leader = self.node.membership.leader();
            let error = if self.sequences() { Error::ForLeader { leader } } else { Error::Follower { leader } };
            (!self.leads()).then_some(error)
        };
        self.shared.trouble().or_else(follows)
    }

    /// Why no calls are taken, if so.
    fn refusal_of_calls(&self) -> Option<Error> {
        if self.sequences() { self.shared.trouble() } else { self.refusal() }
    }

    fn take(&mut self, request: Request) {
        match request {
            Request::Batch(mut waiting) => {
                let Some((batch, reply)) = waiting.0.take() else { return };
                match self.refusal_of_calls() {
                    Some(error) => Callers::One(reply).refuse(Some(batch), error),
                    None => self.held.push_back((batch, Callers::One(reply))),
                }
            }
            Request::Call { block, reply } => match self.refusal_of_calls() {
                Some(error) => reply(Err(error)),
                None => self.hold(block, reply),
            },
            Request::Steps { reply, .. } => reply(Err(self.undivided())),
            Request::Look { reply, .. } => reply(Err(self.undivided())),
            request @ (Request::Define { .. }
            | Request::Digest(_)
            | Request::Gather { .. }
            | Request::Load { .. }
            | Request::Checkpoint(_)) => match self.refusal() {
                Some(error) => refuse(request, error),
                None => self.later.push_back(request),
            },
            Request::Read(read) => self.reads.push(read),
            Request::Definitions(from, reply) => {
                let known = self.definitions.added().get(from..).unwrap_or_default().to_vec();
                drop(reply.send(self.shared.trouble().map_or(Ok(known), Err)));
            }
            Request::Follow { messages, done } => {
                self.stalled = Some((messages, done));
                let ran = self.go_on_following();
                self.end_if(ran);
            }
            Request::Streamed { stream, messages, done } => {
                if self.shared.trouble().is_none() {
                    let taken = self.streamed(stream, &messages, done);
                    self.end_if(taken);
                }
            }
            Request::Appended(outcome) => self.appended(outcome),
            Request::Differs(error) => self.end_if(Err(error)),
            Request::NotAppended { number, error } => {
                if let Some(own) = &mut self.own {
                    own.refuse_one(number, error);
                }
            }
            Request::Lead(reply) => {
                let begun = self.begin_epoch();
                drop(reply.send(begun));
            }
            Request::Close(reply) => self.closing = Some(reply),
        }
    }

    /// What needs all rows in one place.
    fn undivided(&self) -> Error {
        Error::Engine(EngineError::NotTogether(self.engine.name()).into())
    }

    fn end_if(&mut self, outcome: Result<(), Error>) {
        if let Err(error) = outcome {
            if let Error::Differs { record, .. } = error {
                self.node.membership.differs(record);
            }
            self.node.membership.end(error.to_string());
            if let Some(own) = &self.own {
                own.membership.end(error.to_string());
            }
            self.shared.stop(error.clone());
            self.refuse_all(&error);
        }
    }

    fn refuse_all(&mut self, error: &Error) {
        // What was given to the journal may be there.
        let unknown = || match error {
            Error::Superseded => Error::Unknown("this node does not take calls any more".into()),
            error => Error::Unknown(error.to_string()),
        };
        for ordered in std::mem::take(&mut self.pending) {
            ordered.refuse(unknown());
        }
        if let Some(own) = &mut self.own {
            own.refuse(&unknown());
        }
        for (batch, callers) in std::mem::take(&mut self.held) {
            callers.refuse(Some(batch), error.clone());
        }
        for request in std::mem::take(&mut self.later) {
            refuse(request, error.clone());
        }
    }

    /// Puts a single call to those that wait.
    fn hold(&mut self, block: Vec<u8>, reply: crate::order::CallReply) {
        let id = Block::new(&block).procedure();
        let bytes = self.procedures.get(id as usize).map_or(0, |known| known.block_bytes).max(block.len());
        let most = self.options.group_calls;
        let joins = |(batch, callers): &&mut (Batch, Callers)| match callers {
            Callers::Many(replies) => replies.len() < most && batch.stride() >= bytes && batch.len() < batch.capacity(),
            Callers::One(_) => false,
        };
        if self.held.back_mut().as_ref().is_none_or(|last| !joins(last)) {
            match Batch::new(bytes as u32, most.min(1024)) {
                Ok(batch) => self.held.push_back((batch, Callers::Many(Vec::new()))),
                Err(error) => return reply(Err(EngineError::from(error).into())),
            }
        }
        if let Some((batch, Callers::Many(replies))) = self.held.back_mut() {
            let mut target = batch.push(id).expect("there is room");
            target.bytes()[..block.len()].copy_from_slice(&block);
            if let Some(request) = Block::new(&block).request() {
                batch.set_request(batch.len() - 1, request);
            }
            replies.push(reply);
        }
    }

    /// Gives the journal what waits, as far as there is room.
    fn go_on(&mut self) {
        if let Some(error) = self.shared.trouble() {
            return self.end_if(Err(error));
        }
        if let Some(error) = self.refusal_of_calls() {
            return self.refuse_all(&error);
        }
        if self.sequences() {
            while self.own.as_ref().is_some_and(Own::has_room)
                && let Some((batch, callers)) = self.held.pop_front()
            {
                self.order(batch, callers);
            }
            return;
        }
        // What waits for nothing to be pending is not waited past, and does not keep everything else from going on.
        let is_free = self.pending.is_empty() || self.later.is_empty();
        while self.pending.is_empty()
            && let Some(request) = self.later.pop_front()
        {
            self.give_alone(request);
        }
        self.compare_if_due();
        while is_free
            && self.has_room()
            && let Some((batch, callers)) = self.held.pop_front()
        {
            self.order(batch, callers);
        }
        self.merge_if_due();
        if self.pending.len() > PENDING {
            return;
        }
        let records = self.giving.saturating_sub(self.cut_at) * RECORD_COST;
        let grown = self.shared.since_checkpoint.load(Ordering::Relaxed) + records;
        let enough = self.options.checkpoint_bytes.max(2 * self.shared.statistics_checkpoint_bytes());
        if self.options.checkpoint_bytes > 0 && grown >= enough {
            self.shared.since_checkpoint.store(0, Ordering::Relaxed);
            self.cut_at = self.giving;
            self.give(RecordKind::Cut, Ordered::Cut(None), |_| ());
        }
    }

    fn may_define(&self, definition: &Definition) -> Result<(), Error> {
        let most = (self.node.journal.most_bytes() - OVERHEAD).min(MAX_DEFINITION_BYTES);
        if definition.bytes() > most {
            let expected = format!("at most {most} bytes of text are possible");
            return Err(Error::Option { option: "definition", value: definition.bytes().to_string(), expected });
        }
        let addition = self.catalogue.understand(definition)?;
        match &addition.procedure {
            Some(procedure) => {
                let tables = Tables(self.catalogue.future(&addition));
                Ok(self.engine.accepts(procedure, &tables, addition.replaces)?)
            }
            None => Ok(()),
        }
    }

    /// Begins an epoch, of the order or of the stream that this node stands for. What was called must be known then.
    fn begin_epoch(&mut self) -> Result<(), Error> {
        if let Some(error) = self.shared.trouble() {
            return Err(error);
        }
        let begun = match self.own.as_ref().map(|own| (own.index, own.membership.clone())) {
            None => self.catch_up_with_all().and_then(|()| self.lead()),
            Some((index, membership)) => self.begin_stream(index, &membership),
        };
        if let Err(error) = &begun
            && !matches!(error, Error::Unreachable(_) | Error::JournalFull(_))
        {
            self.end_if(Err(error.clone()));
        }
        begun
    }

    /// The same of a stream.
    fn begin_stream(&mut self, index: usize, membership: &Membership) -> Result<(), Error> {
        // First, because the order may name what only one of the stream's servers has.
        let end = self.streams.end(index, (&self.shared, membership))?;
        // Others lead, and there may be more at any time.
        let log_range = self.node.journal.log_range().map_err(|error| Error::Unreachable(error.to_string()))?;
        self.catch_up(log_range.next)?;
        self.sequence(end)
    }

    /// Begins an epoch of the order, if nobody has begun one since.
    fn lead(&mut self) -> Result<(), Error> {
        if self.leads() {
            return Ok(());
        }
        let node = &mut self.node;
        let mut chain = node.chain;
        if chain.epoch == 0 {
            chain.database = node.fresh;
        }
        let message = chain.begin_epoch(self.next, &node.options.address);
        append_first(&*node.journal, &node.membership, self.next, message)?;
        node.chain = chain;
        self.next += 1;
        self.giving = self.next;
        self.shared.set_durable(self.next);
        if let Some((_, done)) = self.stalled.take() {
            done.send(()).ok();
        }
        let (journal, shared, membership) = (node.journal.clone(), self.shared.clone(), node.membership.clone());
        let publisher = Publisher { journal, shared, membership, chain, next: self.next, orders: true };
        // A cut that is due, and a merge, may come beside the calls.
        let (units, taken) = sync_channel(PENDING + 2);
        node.publisher = Some(self.shared.threads.start("lockwork-journal", move || publisher.run(&taken))?);
        self.units = Some(units);
        self.node.membership.set_epoch(chain.epoch);
        self.node.membership.take(Role::Leading);
        Ok(())
    }
}

/// Tells whoever asks for what has to wait until nothing is pending that it is not done.
fn refuse(request: Request, error: Error) {
    match request {
        Request::Define { reply, .. } => drop(reply.send(Err(error))),
        Request::Checkpoint(reply) => drop(reply.send(Err(error))),
        Request::Digest(reply) => reply(Err(error)),
        Request::Gather { reply, .. } => reply(Err(error)),
        Request::Load { reply, .. } => reply(Err(error)),
        _ => unreachable!("nothing else is kept for that"),
    }
}

impl Ordered {
    fn refuse(self, error: Error) {
        match self {
            Self::Calls { callers, .. } => callers.refuse(None, error),
            Self::Definition(_, reply) => drop(reply.send(Err(error))),
            // Whether it is in the log is nothing to who reads.
            Self::Gather { reply, .. } => reply(Err(match error {
                Error::Unknown(_) => Error::Lapsed,
                error => error,
            })),
            Self::Rows(loading, _) => loading.break_off(error),
            Self::Compare(reply) => drop(reply.map(|reply| reply(Err(error)))),
            Self::Cut(reply) => drop(reply.map(|reply| reply.send(Err(error)))),
            Self::Merge(_) => {}
        }
    }
}
