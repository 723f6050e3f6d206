//! What the messages of a journal say, done in their order, by whoever reads them.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lockwork_engine::Place;
use lockwork_procedure::block::Batch;

use super::{PLACE_BITS, Parted};
use crate::decode::Item;
use crate::error::Error;
use crate::format::frame::RecordKind;
use crate::format::items::Definition;
use crate::journal::Messages;
use crate::journal::follower::READ_BYTES;
use crate::log::reader::Record;
use crate::order::{apply, pick};
use crate::requests::Outcome;

/// Bytes before the calls of a record.
const HEAD: usize = 4;

/// What stands before the calls of a record: the part whose node led, and how many there are.
pub(super) fn head(part: u16, parts: u16) -> [u8; HEAD] {
    let ([a, b], [c, d]) = (part.to_le_bytes(), parts.to_le_bytes());
    [a, b, c, d]
}

impl Parted {
    /// Reads and runs what the journal has, and returns when there was nothing more.
    pub(super) fn catch_up(&mut self) -> Result<(), Error> {
        loop {
            let read = self.node.journal.read(self.next, READ_BYTES, Duration::ZERO);
            let messages = read.map_err(|error| Error::Unreachable(error.to_string()))?;
            if messages.messages.is_empty() {
                return Ok(());
            }
            self.follow(&messages)?;
        }
    }

    /// Verifies messages, as far as they are new, and runs what they say.
    pub(super) fn follow(&mut self, messages: &Messages) -> Result<(), Error> {
        if messages.first > self.next {
            let problem = format!("records {} to {} are missing", self.next, messages.first - 1);
            return Err(Error::damaged(&self.node.path, self.next, problem));
        }
        let due = (self.next - messages.first) as usize;
        for message in messages.messages.iter().skip(due) {
            let (node, number) = (&mut self.node, self.next);
            let (frame, payload) = node.chain.verify(&node.path, number, message)?;
            match frame.kind {
                RecordKind::Epoch => node.membership.set_epoch(node.chain.epoch),
                RecordKind::Cut => {
                    self.next = number + 1;
                    self.shared.set_durable(self.next);
                    // One that fails is one that is not there: the parts have no checkpoint together.
                    drop(self.cut(number));
                }
                kind => {
                    let (mut home, mut payload) = (0, payload);
                    if kind == RecordKind::Ordered {
                        let Some((&[a, b, c, d], calls)) = payload.split_first_chunk::<HEAD>() else {
                            return Err(Error::damaged(&node.path, number, "calls have no head"));
                        };
                        let (parts, mine) = (u16::from_le_bytes([c, d]), self.engine.part().1);
                        if parts != mine {
                            return Err(Error::Option {
                                option: "parts",
                                value: mine.to_string(),
                                expected: format!("the tables of this journal have {parts}"),
                            });
                        }
                        (home, payload) = (u16::from_le_bytes([a, b]), calls);
                    }
                    node.decoder.record(&Record { path: &node.path, offset: number, frame, payload })?;
                    node.decoder.flush()?;
                    let mut place = Place { stamp: number << PLACE_BITS, home };
                    for (item, _) in std::mem::take(&mut node.decoder.items) {
                        place.stamp += self.item(item, number, place)?;
                    }
                }
            }
            self.next = number + 1;
            self.shared.set_durable(self.next);
            self.shared.count_sync(message.len(), false, Duration::ZERO);
        }
        Ok(())
    }

    /// Runs an item of a record, whose calls have this place; returns how many they are.
    fn item(&mut self, item: Item, record: u64, place: Place) -> Result<u64, Error> {
        match item {
            Item::Calls { batch, .. } => {
                let count = batch.len() as u64;
                self.run_calls(batch, place)?;
                Ok(count)
            }
            Item::Definition(definition, number) => self.define(definition, number).map(|()| 0),
            Item::Rows { .. } | Item::Digest(..) => {
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
        self.catalogue.add(addition);
        self.definitions.push(definition);
        let known = self.procedures.len() as u32;
        self.procedures.extend((known..).map_while(|id| self.engine.procedure(id)));
        self.shared.definitions.store(self.definitions.len(), Ordering::Release);
        Ok(())
    }

    /// Runs calls, but for those that were made before, and says of all what became of them, as far as that is known
    /// here.
    pub(super) fn run_calls(&mut self, mut batch: Batch, place: Place) -> Result<Batch, Error> {
        for index in 0..batch.len() {
            let mut block = batch.block_mut(index);
            let known = &self.catalogue.procedures[block.as_block().procedure() as usize];
            let behind = lockwork_procedure::block::HEADER_BYTES as usize + known.arguments;
            block.bytes()[behind..known.block].fill(0);
        }
        let (mut places, mut known, mut same) = (Vec::new(), Vec::new(), Vec::new());
        let mut first: HashMap<u64, usize> = HashMap::new();
        for (index, block) in batch.blocks().enumerate() {
            let request = block.request();
            if request == 0 {
                places.push(index as u32);
            } else if let Some(outcome) = self.window.get(request) {
                known.push((index, outcome.clone()));
            } else if let Some(&position) = first.get(&request) {
                same.push((index, position));
            } else {
                first.insert(request, places.len());
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
            return self.run_once(batch, place);
        }
        let ran = match places.is_empty() {
            true => pick(&batch, &[])?,
            false => self.run_once(pick(&batch, &places)?, place)?,
        };
        for (block, &at) in ran.blocks().zip(&places) {
            batch.block_mut(at as usize).bytes().copy_from_slice(block.bytes());
        }
        let repeated = same.iter().map(|&(at, position)| (at, places[position] as usize));
        for (at, first) in repeated {
            let procedure = batch.block(first).procedure();
            let results = self.catalogue.procedures[procedure as usize].results;
            if let Some(outcome) = Outcome::of(batch.block(first), results) {
                outcome.answer(&mut batch.block_mut(at), results);
            } else {
                let block = batch.block(first);
                let (status, code) = (block.status(), block.abort_code());
                let status = status.unwrap_or(lockwork_procedure::block::Status::Failed);
                batch.block_mut(at).set_outcome(status, code);
            }
        }
        for (at, outcome) in known {
            let results = self.catalogue.procedures[outcome.procedure as usize].results;
            outcome.answer(&mut batch.block_mut(at), results);
        }
        Ok(batch)
    }

    /// Runs calls none of which was made before, and remembers those that have request ids.
    fn run_once(&mut self, batch: Batch, place: Place) -> Result<Batch, Error> {
        self.engine.submit_at(batch, place).map_err(|refused| Error::from(refused.error))?;
        let completed = self.engine.complete()?;
        let batch = completed.ok_or_else(|| Error::Stopped("the engine has lost a batch".into()))?.batch;
        for block in batch.blocks().filter(|block| block.request() != 0) {
            let results = self.catalogue.procedures[block.procedure() as usize].results;
            if let Some(outcome) = Outcome::of(block, results) {
                self.window.put(block.request(), outcome);
            }
        }
        Ok(batch)
    }
}
