//! Batches: space for them is reserved, they run, and what ran is written in its serial order.

use std::time::Duration;

use lockwork_engine::EngineError;
use lockwork_engine::replay::serial_order;
use lockwork_procedure::block::{Batch, Block, HEADER_BYTES, Status};

use super::{CallReply, Callers, InFlight, Order, Single};
use crate::error::{Error, Failure, Refused};
use crate::format::calls;
use crate::format::frame::{self, RecordKind};
use crate::journal::answers::{Answers, of_call};
use crate::log::room::Room;
use crate::requests::Outcome;

type Replies = Vec<CallReply>;

/// What has to be known of a batch before it runs.
#[derive(Clone, Copy, Debug, Default)]
struct Survey {
    /// Calls that have to be in the log if they do what they may.
    logged: usize,
    /// The most bytes that they take there.
    bytes: u64,
    /// Whether some call has a request id.
    requests: bool,
}

/// The log has no space for a batch.
struct NoSpace(Error);

impl Callers {
    pub(crate) fn refuse(self, batch: Option<Batch>, error: Error) {
        match self {
            Self::One(reply) => reply(Err(Box::new(Refused { batch, error }))),
            Self::Many(replies) => {
                replies.into_iter().for_each(|reply| reply(Err(error.clone())));
            }
        }
    }

    /// Gives a batch that ran to those who called, or says why it is not certain.
    pub(crate) fn answer(self, batch: Batch, outcome: Result<(), Error>) {
        match (self, outcome) {
            (callers, Err(error)) => callers.refuse(None, error),
            (Self::One(reply), Ok(())) => reply(Ok(batch)),
            (Self::Many(replies), Ok(())) => {
                for (reply, block) in replies.into_iter().zip(batch.blocks()) {
                    reply(Ok(block.bytes().to_vec()));
                }
            }
        }
    }
}

impl Order {
    fn survey(&self, batch: &Batch) -> Survey {
        let mut survey = Survey::default();
        for (index, block) in batch.blocks().enumerate() {
            let Some(known) = self.procedures.get(block.procedure() as usize) else { continue };
            if known.block_bytes > batch.stride() {
                continue;
            }
            let request = batch.request(index).is_some();
            if request || known.traits.writes {
                let arguments = self.catalogue.procedures[block.procedure() as usize].arguments;
                survey.logged += 1;
                survey.bytes += calls::most_bytes(arguments) as u64;
                survey.requests |= request;
            }
        }
        let records = survey.logged / self.calls_a_record() + 1;
        survey.bytes += (records * (frame::BYTES + frame::ALIGN)) as u64;
        survey
    }

    /// How many calls go into one record.
    fn calls_a_record(&self) -> usize {
        let most = self.space.as_ref().map_or(usize::MAX, Room::record_bytes);
        (most / self.catalogue.call_bytes()).max(1)
    }

    /// Bytes of the block of a single call: what it has, or what its procedure needs if that is more.
    pub(super) fn block_bytes(&self, block: &[u8]) -> usize {
        let id = Block::new(block).procedure();
        self.procedures.get(id as usize).map_or(0, |known| known.block_bytes).max(block.len())
    }

    /// Makes a batch of single calls, with blocks of `stride` bytes. Those that only read go first if the others
    /// cannot be logged.
    pub(super) fn start_calls(&mut self, calls: Vec<Single>, stride: usize) {
        let mut batch = match Batch::new(stride as u32, calls.len()) {
            Ok(batch) => batch,
            Err(error) => {
                let error = Error::from(EngineError::from(error));
                return Callers::Many(calls.into_iter().map(|(_, reply)| reply).collect()).refuse(None, error);
            }
        };
        let mut replies = Vec::with_capacity(calls.len());
        for (bytes, reply) in calls {
            let procedure = Block::new(&bytes).procedure();
            let mut block = batch.push(procedure).expect("as many blocks as calls");
            block.bytes()[..bytes.len()].copy_from_slice(&bytes);
            if let Some(request) = Block::new(&bytes).request() {
                batch.set_request(batch.len() - 1, request);
            }
            replies.push(reply);
        }
        let survey = self.survey(&batch);
        if survey.logged == 0 || survey.logged == batch.len() || self.room(survey.bytes, false).is_ok() {
            return self.start(batch, Callers::Many(replies));
        }
        // The two kinds apart, so that reads go on.
        let mut parts: [(Vec<u32>, Replies); 2] = Default::default();
        for (index, reply) in replies.into_iter().enumerate() {
            let block = batch.block(index);
            let writes = self.procedures.get(block.procedure() as usize).is_some_and(|known| known.traits.writes);
            let part = &mut parts[usize::from(writes || batch.request(index).is_some())];
            part.0.push(index as u32);
            part.1.push(reply);
        }
        for (indexes, replies) in parts {
            match super::repeat::pick(&batch, &indexes) {
                Ok(part) => self.start(part, Callers::Many(replies)),
                Err(error) => Callers::Many(replies).refuse(None, error),
            }
        }
    }

    /// Sees that there is room for `bytes` bytes of log, and reserves it if `reserve`.
    fn room(&mut self, bytes: u64, reserve: bool) -> Result<(), NoSpace> {
        for fresh in [false, true] {
            if fresh {
                self.drain();
            }
            // An engine that is lost may be found to be so only now.
            if let Some(error) = self.shared.trouble() {
                return Err(NoSpace(error));
            }
            let next = self.next;
            let Some(space) = &mut self.space else { return Ok(()) };
            if fresh && let Err(error) = space.advance(next, bytes, || self.shared.wait_durable(next)) {
                if let Error::Poisoned(Failure { .. }) = &error {
                    self.shared.stop(error.clone());
                }
                return Err(NoSpace(error));
            }
            if space.reserve(bytes) {
                if !reserve {
                    space.settle(bytes, 0);
                }
                return Ok(());
            }
        }
        unreachable!("a fresh segment has room for what it was made for")
    }

    /// Makes everything behind the arguments zero, as replay will find it: the log holds the arguments only.
    fn clean(&self, batch: &mut Batch) {
        for index in 0..batch.len() {
            let mut block = batch.block_mut(index);
            if let Some(known) = self.catalogue.procedures.get(block.as_block().procedure() as usize)
                && let Some(rest) = block.bytes().get_mut(HEADER_BYTES as usize + known.arguments..known.block)
            {
                rest.fill(0);
            }
        }
    }

    /// Begins to run a batch.
    pub(super) fn start(&mut self, batch: Batch, callers: Callers) {
        let survey = self.survey(&batch);
        let requires_durability = survey.logged > 0;
        let (mut batch, repeats) = if survey.requests {
            match self.deduplicate(batch) {
                Ok(sorted) => sorted,
                Err(refused) => return self.start_apart(*refused, callers),
            }
        } else {
            (batch, None)
        };
        let give_back = |batch, repeats: Option<super::repeat::Repeats>| repeats.map_or(batch, |r| r.whole);
        if requires_durability && let Err(NoSpace(error)) = self.room(survey.bytes, true) {
            return callers.refuse(Some(give_back(batch, repeats)), error);
        }
        let reserved = if requires_durability { survey.bytes } else { 0 };
        if survey.requests {
            self.work.running.extend(batch.requests().map(|(_, request)| request));
        }
        let in_flight = InFlight { callers, reserved, requires_durability, requests: survey.requests, repeats };
        if batch.is_empty() {
            // Everything was answered before; the answers wait their turn.
            self.drain();
            return self.finish(in_flight, batch);
        }
        self.clean(&mut batch);
        self.save_before(&batch);
        match self.engine.submit(batch) {
            Ok(()) => self.work.in_flight.push_back(in_flight),
            Err(refused) => {
                let InFlight { callers, repeats, .. } = in_flight;
                for (_, request) in refused.batch.requests() {
                    self.work.running.remove(&request);
                }
                if let (Some(space), true) = (&mut self.space, requires_durability) {
                    space.settle(reserved, 0);
                }
                callers.refuse(Some(give_back(refused.batch, repeats)), refused.error.into());
            }
        }
    }

    /// Single calls of which one is refused are none of each other's business: each goes by itself.
    fn start_apart(&mut self, refused: Refused, callers: Callers) {
        match (callers, refused.batch) {
            (Callers::Many(replies), Some(batch)) if replies.len() > 1 => {
                for (index, reply) in replies.into_iter().enumerate() {
                    let callers = Callers::Many(vec![reply]);
                    match super::repeat::pick(&batch, &[index as u32]) {
                        Ok(alone) => self.start(alone, callers),
                        Err(error) => callers.refuse(None, error),
                    }
                }
            }
            (callers, batch) => callers.refuse(batch, refused.error),
        }
    }

    /// Takes the oldest batch from the engine.
    pub(super) fn complete_one(&mut self) {
        let Some(in_flight) = self.work.in_flight.pop_front() else { return };
        match self.engine.complete() {
            Ok(Some(completed)) => {
                if in_flight.requires_durability {
                    self.work.uncovered += Duration::from_nanos(completed.report.total_ns);
                }
                self.finish(in_flight, completed.batch);
            }
            other => {
                let why = match other {
                    Err(error) => error.to_string(),
                    _ => "the engine has lost a batch".into(),
                };
                let error = Error::Stopped(why);
                self.shared.stop(error.clone());
                if let (Some(space), true) = (&mut self.space, in_flight.requires_durability) {
                    space.settle(in_flight.reserved, 0);
                }
                in_flight.callers.refuse(None, error);
            }
        }
    }

    /// Writes what ran, and answers when it is durable.
    fn finish(&mut self, in_flight: InFlight, batch: Batch) {
        let InFlight { callers, reserved, requires_durability, requests, repeats } = in_flight;
        let mut indexes = std::mem::take(&mut self.work.indexes);
        indexes.clear();
        let mut argument_bytes = 0;
        let happened = |index: usize, argument_bytes: &mut u64| {
            let block = batch.block(index);
            let known = self.procedures.get(block.procedure() as usize)?;
            let kept = match block.status() {
                Some(Status::Committed) => known.traits.writes || batch.request(index).is_some(),
                Some(Status::Aborted) => batch.request(index).is_some(),
                _ => false,
            };
            if kept {
                *argument_bytes += self.catalogue.procedures[block.procedure() as usize].arguments as u64;
            }
            kept.then_some(index as u32)
        };
        match self.serial_order {
            lockwork_engine::SerialOrder::Batch => {
                indexes.extend((0..batch.len()).filter_map(|index| happened(index, &mut argument_bytes)));
            }
            order @ lockwork_engine::SerialOrder::Stamp if requires_durability => {
                let order = serial_order(&batch, order);
                indexes.extend(order.into_iter().filter_map(|index| happened(index, &mut argument_bytes)));
            }
            lockwork_engine::SerialOrder::Stamp => {}
        }
        let (bytes, frames) = self.encode(&batch, &indexes);
        if let (Some(space), true) = (&mut self.space, requires_durability) {
            space.settle(reserved, bytes.len() as u64);
        }
        if requests {
            self.remember(&batch, &indexes);
        }
        self.shared.count(|statistics| {
            statistics.batches += 1;
            statistics.calls += batch.len() as u64;
            if !bytes.is_empty() {
                statistics.logged_calls += indexes.len() as u64;
                statistics.argument_bytes += argument_bytes;
            }
        });
        self.work.indexes = indexes;
        let batch = match repeats {
            Some(repeats) => repeats.join(&batch, &self.catalogue),
            None => batch,
        };
        self.send(bytes, frames, requires_durability, Box::new(move |outcome| callers.answer(batch, outcome)));
    }

    /// The records of these calls, and where in the bytes they begin. None when no log is written.
    fn encode(&mut self, batch: &Batch, indexes: &[u32]) -> (Vec<u8>, Vec<usize>) {
        if indexes.is_empty() {
            return (Vec::new(), Vec::new());
        }
        let arguments = |procedure: u32| self.catalogue.procedures[procedure as usize].arguments;
        let pieces = indexes.chunks(self.calls_a_record());
        let Some(space) = &self.space else {
            self.next += pieces.len() as u64;
            return (Vec::new(), Vec::new());
        };
        let (salt, kind) = (space.salt(), self.kind_of_calls());
        let (mut bytes, mut frames) = (self.shared.buffer(), Vec::new());
        for piece in pieces {
            frames.push(bytes.len());
            frame::put(&mut bytes, salt, kind, self.next, 0, |out| {
                if kind == RecordKind::Answered {
                    let mut answers = Answers::default();
                    for &index in piece {
                        let block = batch.block(index as usize);
                        answers.add(of_call(block, self.catalogue.procedures[block.procedure() as usize].results));
                    }
                    out.extend(answers.0.to_le_bytes());
                }
                calls::put(out, batch, piece, arguments);
            });
            self.next += 1;
        }
        (bytes, frames)
    }

    /// Records of calls that others run again say what the calls answered.
    pub(super) fn kind_of_calls(&self) -> RecordKind {
        if self.node.is_some() { RecordKind::Answered } else { RecordKind::Calls }
    }

    /// Remembers the outcomes of calls that have request ids, in their serial order.
    fn remember(&mut self, batch: &Batch, indexes: &[u32]) {
        for (_, request) in batch.requests() {
            self.work.running.remove(&request);
        }
        for &index in indexes {
            let Some(request) = batch.request(index as usize) else { continue };
            let block = batch.block(index as usize);
            if let Some(outcome) = Outcome::of(block, &self.catalogue.procedures[block.procedure() as usize]) {
                self.dedup.put(request, outcome);
            }
        }
        self.dedup.expire(self.shared.threads.unix_ms());
    }

    /// A checkpoint under way copies what `batch` may write.
    pub(super) fn save_before(&mut self, batch: &Batch) {
        if self.work.checkpointing.as_ref().is_none_or(|checkpoint| checkpoint.snapshot.is_none()) {
            return;
        }
        self.drain();
        self.copy_before(batch);
    }
}
