//! Calls that were made before: a block whose request id is remembered, or stands twice in a batch, does not run again,
//! and gets the first outcome.
//!
//! A call that is in the engine's hands ends first. Answers go out in order, so a retry is answered after the first
//! call is durable.

use std::collections::HashMap;

use lockwork_engine::EngineError;
use lockwork_procedure::block::Batch;
use lockwork_procedure::request::RequestId;

use super::Order;
use crate::catalogue::Catalogue;
use crate::error::{Error, Refused};
use crate::requests::{Call, Outcome};

/// What was taken out of a batch, to be put together again.
pub(super) struct Repeats {
    /// The batch as it came.
    pub(super) whole: Batch,
    /// Where in it the blocks stand that run.
    places: Vec<u32>,
    /// Outcomes that are known, by place.
    known: Vec<(u32, Outcome)>,
    /// Places of calls that stand twice, and which of the blocks that run has their outcome.
    same: Vec<(u32, u32)>,
}

/// A batch of some blocks of another one.
pub(crate) fn pick(batch: &Batch, indexes: &[u32]) -> Result<Batch, Error> {
    let mut picked = Batch::new(batch.stride() as u32, indexes.len()).map_err(EngineError::from)?;
    for &index in indexes {
        let from = batch.block(index as usize);
        let mut block = picked.push(from.procedure()).expect("as many blocks as indexes");
        block.bytes().copy_from_slice(from.bytes());
        if let Some(request) = batch.request(index as usize) {
            picked.set_request(picked.len() - 1, request);
        }
    }
    Ok(picked)
}

impl Repeats {
    /// The batch as it came, every block with its outcome.
    pub(super) fn join(mut self, ran: &Batch, catalogue: &Catalogue) -> Batch {
        for (block, &place) in ran.blocks().zip(&self.places) {
            self.whole.block_mut(place as usize).bytes().copy_from_slice(block.bytes());
        }
        for (place, first) in self.same {
            let first = ran.block(first as usize);
            let mut block = self.whole.block_mut(place as usize);
            if let Some(known) = catalogue.procedures.get(first.procedure() as usize) {
                let (start, length) = known.results;
                block.bytes()[start..start + length].copy_from_slice(&first.bytes()[start..start + length]);
            }
            let status = first.status().unwrap_or(lockwork_procedure::block::Status::Failed);
            block.set_outcome(status, first.abort_code());
        }
        for (place, outcome) in &self.known {
            let mut block = self.whole.block_mut(*place as usize);
            if let Some(known) = catalogue.procedures.get(outcome.call.procedure as usize) {
                outcome.answer(&mut block, known.results);
            }
        }
        self.whole
    }
}

impl Order {
    /// Takes the calls out of a batch that have an outcome, or will have one by another call of the batch.
    pub(super) fn deduplicate(&mut self, batch: Batch) -> Result<(Batch, Option<Repeats>), Box<Refused>> {
        if batch.requests().any(|(_, request)| self.work.running.contains(&request)) {
            self.drain();
        }
        let (mut places, mut known, mut same) = (Vec::new(), Vec::new(), Vec::new());
        let mut first: HashMap<RequestId, (u32, Call)> = HashMap::new();
        let now = self.shared.threads.unix_ms();
        let mut refused = None;
        for (index, block) in batch.blocks().enumerate() {
            let (request, known_procedure) = (batch.request(index), self.procedures.get(block.procedure() as usize));
            let index = index as u32;
            // A block that is too short has no room for an outcome. It runs, which means that it fails.
            let fits = known_procedure.is_some_and(|procedure| procedure.block_bytes <= batch.stride());
            let Some(request) = request.filter(|_| fits) else {
                places.push(index);
                continue;
            };
            let call = Call::of(block, &self.catalogue.procedures[block.procedure() as usize]);
            let before = if let Some(outcome) = self.dedup.get(request) {
                known.push((index, outcome.clone()));
                outcome.call
            } else if let Some(&(position, before)) = first.get(&request) {
                same.push((index, position));
                before
            } else {
                refused = self.dedup.refusal(request, now);
                first.insert(request, (places.len() as u32, call));
                places.push(index);
                call
            };
            if before != call {
                refused = Some(before.reused(request, call, &self.catalogue));
            }
            if refused.is_some() {
                break;
            }
        }
        if let Some(error) = refused {
            return Err(Box::new(Refused { batch: Some(batch), error }));
        }
        if known.is_empty() && same.is_empty() {
            return Ok((batch, None));
        }
        match pick(&batch, &places) {
            Ok(part) => {
                self.shared.count(|statistics| statistics.repeats += (known.len() + same.len()) as u64);
                Ok((part, Some(Repeats { whole: batch, places, known, same })))
            }
            Err(error) => Err(Box::new(Refused { batch: Some(batch), error })),
        }
    }
}
