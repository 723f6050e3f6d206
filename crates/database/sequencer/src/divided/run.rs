//! What the messages of a journal say, done in their order, by whoever reads them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lockwork_engine::{Divided, Place};
use lockwork_procedure::block::{Batch, Status, abort};
use lockwork_procedure::request::RequestId;

use super::{PLACE_BITS, PartitionedOrder};
use crate::decode::Item;
use crate::error::Error;
use crate::format::frame::RecordKind;
use crate::format::items::Definition;
use crate::journal::Messages;
use crate::journal::complete::complete;
use crate::journal::follower::READ_BYTES;
use crate::journal::message::Position;
use crate::log::reader::Record;
use crate::order::{apply, pick};
use crate::requests::{Call, Outcome};

/// Bytes of what stands before a record of parts.
pub(super) const HEAD: usize = 4;

/// What stands before a record of parts: the part whose node led, and how many there are.
pub(super) fn head(part: u16, parts: u16) -> [u8; HEAD] {
    let ([a, b], [c, d]) = (part.to_le_bytes(), parts.to_le_bytes());
    [a, b, c, d]
}

impl PartitionedOrder {
    /// Reads and runs what the journal has before this record, and returns when there was nothing more.
    pub(super) fn catch_up(&mut self, until: u64) -> Result<(), Error> {
        while self.next < until {
            let read = self.node.journal.read(self.next, READ_BYTES, Duration::ZERO);
            let messages = read.map_err(|error| Error::Unreachable(error.to_string()))?;
            if messages.messages.is_empty() {
                return Ok(());
            }
            // More may have been read than is wanted.
            if !self.follow(&messages)? && self.next < until {
                return Err(Error::Unreachable("the streams of further sequencers are being read".into()));
            }
        }
        Ok(())
    }

    /// Runs all there is, also what only one server of the journal has.
    pub(super) fn catch_up_with_all(&mut self) -> Result<(), Error> {
        self.catch_up(u64::MAX)?;
        let read = Position { next: self.next, chain: self.node.chain };
        let node = &self.node;
        match complete(&*node.journal, (&self.shared, &node.membership), &node.path, read)?.next > self.next {
            true => self.catch_up(u64::MAX),
            false => Ok(()),
        }
    }

    /// Goes on with what was read and could not be run to its end, unless this node leads by now.
    pub(super) fn go_on_following(&mut self) -> Result<(), Error> {
        let Some((messages, done)) = self.stalled.take() else { return Ok(()) };
        if !self.leads() && self.shared.trouble().is_none() && !self.follow(&messages)? {
            self.stalled = Some((messages, done));
            return Ok(());
        }
        // Who reads may have ended.
        done.send(()).ok();
        Ok(())
    }

    /// Verifies messages, as far as they are new, and runs what they say; whether all of it. If not, more has to be
    /// read of the streams of further sequencers before this is called again.
    pub(super) fn follow(&mut self, messages: &Messages) -> Result<bool, Error> {
        if messages.first > self.next {
            let problem = format!("records {} to {} are missing", self.next, messages.first - 1);
            return Err(Error::damaged(&self.node.path, self.next, problem));
        }
        let due = (self.next - messages.first) as usize;
        for message in messages.messages.iter().skip(due) {
            let before = self.node.chain;
            let (node, number) = (&mut self.node, self.next);
            let (frame, payload) = node.chain.verify(&node.path, number, message)?;
            match frame.kind {
                RecordKind::Epoch => node.membership.set_epoch(node.chain.epoch),
                RecordKind::Cut => {
                    self.next = number + 1;
                    self.shared.set_durable(self.next);
                    self.compare_before_cut(number)?;
                    // One that fails is one that is not there: the parts have no checkpoint together.
                    drop(self.cut(number));
                }
                RecordKind::Compared => self.compare(number)?,
                kind @ (RecordKind::Gathered | RecordKind::Loaded) => self.whole_tables(kind, payload, number)?,
                RecordKind::Ordered => self.ordered(number, payload)?,
                RecordKind::Merged => {
                    if !self.merged(payload, number)? {
                        self.node.chain = before;
                        return Ok(false);
                    }
                }
                _ => {
                    node.decoder.record(&Record { path: &node.path, offset: number, frame, payload })?;
                    for (item, _) in std::mem::take(&mut node.decoder.items) {
                        self.item(item, number)?;
                    }
                }
            }
            self.next = number + 1;
            self.shared.set_durable(self.next);
            self.shared.count_sync(message.len(), false, Duration::ZERO);
        }
        Ok(true)
    }

    /// Runs calls that are to be run.
    fn ordered(&mut self, number: u64, payload: &[u8]) -> Result<(), Error> {
        let (home, calls) = self.home_of(&self.node.path, payload, number)?;
        let path = self.node.path.clone();
        self.run_ordered(calls, Place { stamp: number << PLACE_BITS, home }, (&path, number)).map(drop)
    }

    /// Runs calls that are to be run, at a place; how many there are. For messages about damage: what has them, and
    /// their record there.
    pub(super) fn run_ordered(
        &mut self,
        calls: &[u8],
        place: Place,
        (path, number): (&Path, u64),
    ) -> Result<usize, Error> {
        // Who is home to them wants to know what becomes of each.
        let is_home = place.home == self.engine.part().0;
        let engine: Option<&mut dyn Divided> = if is_home { None } else { Some(&mut *self.engine) };
        let taken = self.chooser.take(calls, place, &self.catalogue, engine);
        let (batch, offsets, count) =
            taken.map_err(|trouble| trouble.unwrap_or_else(|problem| Error::damaged(path, number, problem)))?;
        if (place.stamp & ((1 << PLACE_BITS) - 1)) + count as u64 >= 1 << PLACE_BITS {
            return Err(Error::damaged(path, number, "its record has more calls than it has places for"));
        }
        match batch {
            Some(batch) => {
                let ran = self.run_calls(batch, offsets, place)?;
                self.chooser.give_back(ran);
            }
            // Nothing has to be heard any more of what comes before.
            None => self.engine.begin(place.stamp + count as u64)?,
        }
        Ok(count)
    }

    /// Does what a record asks for that is not of calls.
    fn item(&mut self, item: Item, record: u64) -> Result<(), Error> {
        match item {
            Item::Definition(definition, number) => self.define(definition, number),
            Item::Calls { .. } | Item::Rows { .. } | Item::Digest(..) => {
                let problem = "the record is of a database whose tables are not divided".into();
                Err(Error::Replay { record, problem })
            }
        }
    }

    /// Makes a table or a procedure.
    pub(super) fn define(&mut self, definition: Definition, record: u64) -> Result<(), Error> {
        let failed = |problem: String| Error::Replay { record, problem };
        let addition = self.catalogue.understand(&definition).map_err(|error| failed(error.to_string()))?;
        apply(&mut *self.engine, &addition, &HashMap::new()).map_err(|error| failed(error.to_string()))?;
        let replaced = addition.replaces;
        self.catalogue.add(addition);
        self.definitions.push(definition);
        let known = self.procedures.len() as u32;
        if let Some(id) = replaced
            && let Some(registered) = self.engine.procedure(id)
        {
            self.procedures[id as usize] = registered;
        }
        self.procedures.extend((known..).map_while(|id| self.engine.procedure(id)));
        self.shared.definitions.store(self.definitions.added().len(), Ordering::Release);
        Ok(())
    }

    /// Runs calls, but for those that were made before, and says of all what became of them, as far as that is known
    /// here. The calls stand at these offsets behind the place.
    ///
    /// What was made before is found alike by all, whatever else they pass over, because everybody takes every call
    /// with a request id, and a record, or a message of a stream, is never run in pieces.
    pub(super) fn run_calls(&mut self, mut batch: Batch, offsets: Vec<u32>, place: Place) -> Result<Batch, Error> {
        let (mut places, mut known, mut same, mut refused) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut first: HashMap<RequestId, (usize, Call)> = HashMap::new();
        for (index, block) in batch.blocks().enumerate() {
            let Some(request) = batch.request(index) else {
                places.push(index as u32);
                continue;
            };
            // Two sequencers may have been given the same id, which neither could know; and what was not too old for
            // the node that took the call may be by now.
            let call = Call::of(block, &self.catalogue.procedures[block.procedure() as usize]);
            if let Some(outcome) = self.dedup.get(request) {
                match outcome.call == call {
                    true => known.push((index, outcome.clone())),
                    false => refused.push((index, abort::REQUEST_REUSED)),
                }
            } else if let Some(&(position, before)) = first.get(&request) {
                match before == call {
                    true => same.push((index, position)),
                    false => refused.push((index, abort::REQUEST_REUSED)),
                }
            } else if self.dedup.has_forgotten(request) {
                refused.push((index, abort::REQUEST_TOO_OLD));
            } else {
                first.insert(request, (places.len(), call));
                places.push(index as u32);
            }
        }
        let count = batch.len() as u64;
        self.shared.count(|statistics| {
            statistics.batches += 1;
            statistics.calls += count;
            statistics.repeats += (known.len() + same.len()) as u64;
        });
        if places.len() == batch.len() {
            return self.run_once(batch, offsets, place);
        }
        let ran = match places.is_empty() {
            true => pick(&batch, &[])?,
            false => {
                let offsets = places.iter().map(|&at| offsets[at as usize]).collect();
                self.run_once(pick(&batch, &places)?, offsets, place)?
            }
        };
        for (block, &at) in ran.blocks().zip(&places) {
            batch.block_mut(at as usize).bytes().copy_from_slice(block.bytes());
        }
        let repeated = same.iter().map(|&(at, position)| (at, places[position] as usize));
        for (at, first) in repeated {
            let known = &self.catalogue.procedures[batch.block(first).procedure() as usize];
            if let Some(outcome) = Outcome::of(batch.block(first), known) {
                outcome.answer(&mut batch.block_mut(at), known.results);
            } else {
                let block = batch.block(first);
                let (status, code) = (block.status(), block.abort_code());
                let status = status.unwrap_or(Status::Failed);
                batch.block_mut(at).set_outcome(status, code);
            }
        }
        for (at, outcome) in known {
            let results = self.catalogue.procedures[outcome.call.procedure as usize].results;
            outcome.answer(&mut batch.block_mut(at), results);
        }
        for (at, code) in refused {
            batch.block_mut(at).set_outcome(Status::Failed, code);
        }
        Ok(batch)
    }

    /// Runs calls none of which was made before, and remembers those that have request ids.
    fn run_once(&mut self, batch: Batch, offsets: Vec<u32>, place: Place) -> Result<Batch, Error> {
        self.engine.submit_some(batch, offsets, place).map_err(|refused| Error::from(refused.error))?;
        let completed = self.engine.complete()?;
        let batch = completed.ok_or_else(|| Error::Stopped("the engine has lost a batch".into()))?.batch;
        for (index, request) in batch.requests() {
            let block = batch.block(index);
            if let Some(outcome) = Outcome::of(block, &self.catalogue.procedures[block.procedure() as usize]) {
                self.dedup.put(request, outcome);
            }
        }
        Ok(batch)
    }
}
