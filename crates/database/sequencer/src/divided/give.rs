//! Records that the leader gives to the journal, and what is done when they are there.

use std::collections::{BTreeMap, HashMap};

use lockwork_engine::Place;
use lockwork_procedure::block::{Batch, HEADER_BYTES, Status, abort};

use super::own::Own;
use super::{Ordered, PLACE_BITS, PartitionedOrder, run};
use crate::error::Error;
use crate::format::calls;
use crate::format::frame::{self, RecordKind};
use crate::journal::message::{OVERHEAD, salt};
use crate::log::writer::Unit;
use crate::order::{Callers, Request, pick};
use crate::requests::Call;

impl PartitionedOrder {
    /// Appends to the log a record that needs an empty queue of pending calls.
    pub(super) fn give_alone(&mut self, request: Request) {
        match request {
            Request::Define { definition, reply } => match self.may_define(&definition) {
                Ok(()) => {
                    let kept = definition.clone();
                    self.give(RecordKind::Definition, Ordered::Definition(definition, reply), |out| kept.encode(out));
                }
                Err(error) => drop(reply.send(Err(error))),
            },
            Request::Checkpoint(reply) => self.give(RecordKind::Cut, Ordered::Cut(Some(reply)), |_| ()),
            Request::Digest(reply) => self.give(RecordKind::Compared, Ordered::Compare(Some(reply)), |_| ()),
            Request::Gather { tables, most, reply } => self.give_gather(&tables, most, reply),
            Request::Load { tables, reply } => self.begin_load(tables, reply),
            _ => unreachable!("nothing else is kept for that"),
        }
    }

    /// Gives the journal the calls of a batch that can be run; the others say why they cannot.
    pub(super) fn order(&mut self, mut batch: Batch, callers: Callers) {
        let mut places = Vec::with_capacity(batch.len());
        for index in 0..batch.len() {
            let known = self.procedures.get(batch.block(index).procedure() as usize);
            let code = match known {
                Some(known) if known.block_bytes <= batch.stride() => {
                    places.push(index as u32);
                    continue;
                }
                Some(_) => abort::BLOCK_TOO_SHORT,
                None => abort::UNKNOWN_PROCEDURE,
            };
            batch.block_mut(index).set_outcome(Status::Failed, code);
        }
        if places.is_empty() {
            return callers.answer(batch, Ok(()));
        }
        let refused = self.refused(&batch, &places);
        if !refused.is_empty() {
            return self.order_others(batch, callers, refused);
        }
        let most = (self.node.journal.most_bytes() - OVERHEAD) / self.catalogue.call_bytes();
        let most = most.clamp(1, (1 << PLACE_BITS) - 1);
        if places.len() > most {
            let expected = format!("at most {most} calls are possible in one batch of a divided database");
            let error = Error::Option { option: "batch", value: places.len().to_string(), expected };
            return callers.refuse(Some(batch), error);
        }
        let mut payload = Vec::new();
        calls::put(&mut payload, &batch, &places, |id| self.catalogue.procedures[id as usize].arguments);
        let (home, parts) = self.engine.part();
        let record = |out: &mut Vec<u8>| {
            out.extend(run::head(home, parts));
            out.extend(payload);
        };
        match self.sequences() {
            true => self.give_to_stream(batch, places, callers, record),
            false => self.give(RecordKind::Ordered, Ordered::Calls { batch, places, callers }, record),
        }
    }

    /// Refuses single calls that may not have their request ids, and orders the others; a batch is refused whole.
    fn order_others(&mut self, batch: Batch, callers: Callers, mut refused: BTreeMap<u32, Error>) {
        let Callers::Many(replies) = callers else {
            let error = refused.pop_first().map_or(Error::Closed, |(_, error)| error);
            return callers.refuse(Some(batch), error);
        };
        let (mut others, mut waiting) = (Vec::new(), Vec::new());
        for (index, reply) in replies.into_iter().enumerate() {
            match refused.remove(&(index as u32)) {
                Some(error) => reply(Err(error)),
                None => {
                    others.push(index as u32);
                    waiting.push(reply);
                }
            }
        }
        match pick(&batch, &others) {
            _ if others.is_empty() => {}
            Ok(others) => self.order(others, Callers::Many(waiting)),
            Err(error) => Callers::Many(waiting).refuse(None, error),
        }
    }

    /// The calls that may not have their request ids, by all that is known here, and why.
    fn refused(&self, batch: &Batch, places: &[u32]) -> BTreeMap<u32, Error> {
        let mut refused = BTreeMap::new();
        if !batch.has_requests() {
            return refused;
        }
        let call = |batch: &Batch, at: u32| {
            let block = batch.block(at as usize);
            Call::of(block, &self.catalogue.procedures[block.procedure() as usize])
        };
        let pending = self.pending.iter().filter_map(|ordered| match ordered {
            Ordered::Calls { batch, places, .. } => Some((batch, places)),
            _ => None,
        });
        let own = self.own.iter().flat_map(Own::given).map(|given| (&given.batch, &given.places));
        let mut known = HashMap::new();
        for (batch, places) in pending.chain(own) {
            let with_ids = places.iter().filter_map(|&at| Some((batch.request(at as usize)?, call(batch, at))));
            known.extend(with_ids);
        }
        let time = self.shared.threads.unix_ms();
        for &at in places {
            let Some(request) = batch.request(at as usize) else { continue };
            let now = call(batch, at);
            let first = self.dedup.get(request).map(|outcome| outcome.call).or_else(|| known.get(&request).copied());
            let error = match first {
                Some(first) if first == now => None,
                Some(first) => Some(first.reused(request, now, &self.catalogue)),
                None => {
                    known.insert(request, now);
                    self.dedup.refusal(request, time)
                }
            };
            refused.extend(error.map(|error| (at, error)));
        }
        refused
    }

    /// Gives the journal a record.
    pub(super) fn give(&mut self, kind: RecordKind, ordered: Ordered, payload: impl FnOnce(&mut Vec<u8>)) {
        let Some(units) = &self.units else { return ordered.refuse(Error::Superseded) };
        let mut bytes = self.shared.buffer();
        frame::put(&mut bytes, salt(self.node.chain.database), kind, self.giving, 0, payload);
        self.giving += 1;
        if matches!(ordered, Ordered::Compare(_) | Ordered::Cut(_)) {
            self.node.comparing.wrote(self.giving, self.shared.threads.now());
        }
        self.pending.push_back(ordered);
        let (requests, threads) = (self.requests.clone(), self.shared.threads.clone());
        // Never more is pending than this thread has room for, so it never waits for the publisher that waits for it.
        let done = Box::new(move |outcome| drop(threads.send(&requests, Request::Appended(outcome))));
        let unit = Unit { segment: None, bytes, frames: vec![0], next: self.giving, requires_durability: true, done };
        if units.send(unit).is_err() {
            self.end_if(Err(Error::Superseded));
        }
    }

    /// The oldest record that was given to the journal is there, or why not.
    pub(super) fn appended(&mut self, outcome: Result<(), Error>) {
        let Some(ordered) = self.pending.pop_front() else { return };
        if let Err(error) = outcome {
            ordered.refuse(error.clone());
            return self.refuse_all(&error);
        }
        let record = self.next;
        self.next += 1;
        let ran = match ordered {
            Ordered::Calls { batch, places, callers } => {
                let place = Place { stamp: record << PLACE_BITS, home: self.engine.part().0 };
                self.run_given(batch, &places, callers, place)
            }
            Ordered::Merge(until) => match self.merge(&until, record) {
                Ok(true) => Ok(()),
                Ok(false) => Err(Error::Stopped("what is merged was read before".into())),
                Err(error) => Err(error),
            },
            Ordered::Definition(definition, reply) => {
                let outcome = self.define(definition, record);
                drop(reply.send(outcome.clone()));
                outcome
            }
            Ordered::Gather { tables, most, reply } => self.gather(&tables, most, record, reply),
            Ordered::Rows(loading, rows) => self.load(loading, &rows, record),
            Ordered::Compare(reply) => {
                let compared = self.compare(record);
                if let Some(reply) = reply {
                    reply(compared.clone().map(|()| record));
                }
                compared
            }
            Ordered::Cut(reply) => {
                let compared = self.compare_before_cut(record);
                let cut = compared.clone().and_then(|()| self.cut(record));
                // What was wrong is told by the statistics too, and the next one may succeed.
                drop(reply.map(|reply| reply.send(cut)));
                compared
            }
        };
        self.end_if(ran);
    }

    /// Runs calls that were given, and answers.
    pub(super) fn run_given(
        &mut self,
        mut batch: Batch,
        places: &[u32],
        callers: Callers,
        place: Place,
    ) -> Result<(), Error> {
        match self.run_places(&mut batch, places, place) {
            Ok(()) => {
                callers.answer(batch, Ok(()));
                Ok(())
            }
            Err(error) => {
                callers.refuse(None, Error::Unknown(error.to_string()));
                Err(error)
            }
        }
    }

    /// Runs calls of a batch, and writes what became of them into their blocks.
    fn run_places(&mut self, batch: &mut Batch, places: &[u32], place: Place) -> Result<(), Error> {
        let mut part = pick(batch, places)?;
        // Callers may have left anything behind the arguments; what is read from the journal has zeros there.
        for index in 0..part.len() {
            let mut block = part.block_mut(index);
            let known = &self.catalogue.procedures[block.as_block().procedure() as usize];
            block.bytes()[HEADER_BYTES as usize + known.arguments..known.block].fill(0);
        }
        let offsets = (0..part.len() as u32).collect();
        let ran = self.run_calls(part, offsets, place)?;
        for (block, &place) in ran.blocks().zip(places) {
            batch.block_mut(place as usize).bytes().copy_from_slice(block.bytes());
        }
        Ok(())
    }
}
