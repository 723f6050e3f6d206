//! The stream that a node stands for: who leads it takes calls, and gives them to it ([`super::streams`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use lockwork_procedure::block::Batch;

use super::PartitionedOrder;
use crate::error::Error;
use crate::format::frame::{self, RecordKind};
use crate::journal::election::{Election, Membership, NodeOptions, Role, holder};
use crate::journal::message::{Position, salt};
use crate::journal::publisher::Publisher;
use crate::journal::{Journal, append_first};
use crate::log::writer::Unit;
use crate::order::{Callers, Request};
use crate::threads::Thread;

/// Records that a sequencer has given to its stream and that are not merged: on their way there, there, and named by a
/// record of the order that is on its way. What comes meanwhile makes the next one longer.
const UNMERGED: usize = 6;

/// Calls that were given to a stream.
pub(super) struct Given {
    number: u64,
    pub(super) batch: Batch,
    pub(super) places: Vec<u32>,
    pub(super) callers: Callers,
}

/// See the module.
pub(super) struct Own {
    /// Which stream it is.
    pub(super) index: usize,
    options: NodeOptions,
    pub(super) membership: Arc<Membership>,
    /// To the publisher, while this node sequences.
    units: Option<SyncSender<Unit>>,
    publisher: Option<Thread>,
    epoch: u64,
    /// The number of the next message.
    giving: u64,
    given: VecDeque<Given>,
}

impl Own {
    /// The stream that the nodes of a part stand for, of so many.
    pub(super) fn of(part: u16, streams: usize, options: &NodeOptions) -> Option<Self> {
        let index = usize::from(part).checked_sub(1).filter(|index| *index < streams)?;
        Some(Self {
            index,
            options: options.clone(),
            membership: Arc::new(Membership::new(options.threads.clone())),
            units: None,
            publisher: None,
            epoch: 0,
            giving: 0,
            given: VecDeque::new(),
        })
    }

    /// Starts what looks after the lease.
    pub(super) fn start(
        &self,
        journal: Arc<dyn Journal>,
        requests: &SyncSender<Request>,
        fresh: u64,
    ) -> Result<Thread, Error> {
        let election = Election {
            journal,
            options: self.options.clone(),
            membership: self.membership.clone(),
            requests: requests.clone(),
            holder: holder(&self.options.address, fresh),
        };
        self.options.threads.start("lockwork-lease", move || election.run())
    }

    /// Whether this node takes calls for it.
    pub(super) fn sequences(&self) -> bool {
        self.units.is_some() && self.membership.role() == Role::Sequencing
    }

    /// Whether there is room for another record.
    pub(super) fn has_room(&self) -> bool {
        self.given.len() < UNMERGED
    }

    /// Calls that were given to it and are not merged.
    pub(super) fn given(&self) -> impl Iterator<Item = &Given> {
        self.given.iter()
    }

    /// What was given as message `number`, if this node gave the one of this epoch.
    pub(super) fn take(&mut self, epoch: u64, number: u64) -> Option<Given> {
        let is_next = self.epoch == epoch && self.given.front().is_some_and(|given| given.number == number);
        if is_next { self.given.pop_front() } else { None }
    }

    /// Message `number` is not there, for this reason.
    pub(super) fn refuse_one(&mut self, number: u64, error: Error) {
        let found = self.given.iter().position(|given| given.number == number);
        if let Some(given) = found.and_then(|at| self.given.remove(at)) {
            given.callers.refuse(None, error);
        }
    }

    /// Nobody learns any more what becomes of calls that may be there.
    pub(super) fn refuse(&mut self, error: &Error) {
        for given in std::mem::take(&mut self.given) {
            given.callers.refuse(None, error.clone());
        }
    }

    /// The last that it does; the publisher, which is to be waited for.
    pub(super) fn close(&mut self) -> Option<Thread> {
        self.units = None;
        self.membership.close();
        self.publisher.take()
    }
}

impl PartitionedOrder {
    /// Gives calls to the stream of this node.
    pub(super) fn give_to_stream(
        &mut self,
        batch: Batch,
        places: Vec<u32>,
        callers: Callers,
        payload: impl FnOnce(&mut Vec<u8>),
    ) {
        let (requests, threads) = (self.requests.clone(), self.shared.threads.clone());
        let Some(own) = &mut self.own else { return callers.refuse(None, Error::Superseded) };
        let Some(units) = &own.units else { return callers.refuse(None, Error::Superseded) };
        let mut bytes = self.shared.buffer();
        frame::put(&mut bytes, salt(self.node.chain.database), RecordKind::Ordered, own.giving, 0, payload);
        let number = own.giving;
        own.given.push_back(Given { number, batch, places, callers });
        own.giving += 1;
        // That it is there is told by the record that merges it.
        let done = Box::new(move |outcome: Result<(), Error>| {
            if let Err(error) = outcome {
                drop(threads.send(&requests, Request::NotAppended { number, error }));
            }
        });
        let unit = Unit { segment: None, bytes, frames: vec![0], next: own.giving, requires_durability: true, done };
        if units.send(unit).is_err() {
            self.end_if(Err(Error::Superseded));
        }
    }

    /// Begins an epoch of the stream that this node stands for, if nobody has begun one since it ended there.
    pub(super) fn sequence(&mut self, end: Position) -> Result<(), Error> {
        let Some(own) = &mut self.own else { return Ok(()) };
        if own.units.is_some() {
            return Ok(());
        }
        let journal = self.streams.journal(own.index);
        let mut chain = self.streams.begins(own.index, end, self.node.chain.database)?;
        let message = chain.begin_epoch(end.next, &own.options.address);
        append_first(&*journal, &own.membership, end.next, message)?;
        (own.epoch, own.giving) = (chain.epoch, end.next + 1);
        let (shared, membership) = (self.shared.clone(), own.membership.clone());
        let publisher = Publisher { journal, shared, membership, chain, next: own.giving, orders: false };
        let (units, taken) = sync_channel(UNMERGED);
        let threads = &self.shared.threads;
        own.publisher = Some(threads.start("lockwork-journal", move || publisher.run(&taken))?);
        own.units = Some(units);
        own.membership.set_epoch(chain.epoch);
        own.membership.take(Role::Sequencing);
        Ok(())
    }
}
