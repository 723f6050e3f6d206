//! One batch at one member: which of its calls touch this part, and what became of those that are of interest here.

use std::os::fd::AsRawFd;

use lockwork_engine::{EngineError, Place};
use lockwork_procedure::block::Batch;

use super::Core;
use crate::core::malformed;
use crate::dispatch::{admit, take_result};
use crate::message::{CALLS, FAILED, FOOTPRINT, LOOK, OUTCOMES, READY, RESULTS, SETTLE, SETTLED};
use crate::ordered::{Participants, put_call};
use crate::stream::{StreamError, poll, poll_of};
use crate::transaction::known_accesses;
use crate::wire::{Malformed, Put, Reader};

/// How long a frame of calls gets before the next one begins.
const CALLS_BYTES: usize = 32 << 10;
/// How long it takes to notice that waiting is to end.
const TICK_MS: i32 = 20;

/// What is known of a call.
#[derive(Debug)]
struct Footprint {
    participants: Participants,
    /// What it touches, as it was found by looking; nothing, if its arguments tell.
    accesses: Vec<u8>,
}

/// See the module.
pub(super) struct Outcomes<'a> {
    core: &'a mut Core,
    place: Place,
    /// Of each call: its outcome is of interest here, another member's to say, and not here yet.
    awaited: Vec<bool>,
    left: usize,
    /// What this call touches, that is looked at.
    looked: Option<(u64, Footprint)>,
    settled: u32,
}

impl<'a> Outcomes<'a> {
    pub(super) fn new(core: &'a mut Core, batch: &Batch, place: Place) -> Self {
        // What the member says of another number than the one that is asked for next is of no meaning here.
        let settled = core.settled;
        Self { core, place, awaited: vec![false; batch.len()], left: 0, looked: None, settled }
    }

    /// Runs what touches this part, and returns when that has ended and everything of interest is known.
    pub(super) fn run(mut self, batch: &mut Batch) -> Result<(), EngineError> {
        for at in 0..batch.len() {
            if admit(&self.core.registry, batch, at).is_none() {
                continue;
            }
            let footprint = match self.told_by_arguments(batch, at) {
                Some(footprint) => footprint,
                None => self.look(batch, at)?,
            };
            self.tell(batch, at, &footprint)?;
        }
        self.settle(batch)?;
        while self.left > 0 {
            self.listen(batch)?;
        }
        let behind = self.place.stamp + batch.len() as u64;
        self.core.early.retain(|stamp, _| *stamp >= behind);
        Ok(())
    }

    /// Who takes part in a call, if its arguments tell.
    fn told_by_arguments(&mut self, batch: &Batch, at: usize) -> Option<Footprint> {
        let turn = self.turn(at);
        let Core { registry, spreads, known, parts, .. } = &mut *self.core;
        let block = batch.block(at);
        let registered = registry.get(block.procedure())?;
        known.clear();
        if !known_accesses(registered, block.bytes(), known) {
            return None;
        }
        let mut participants = Participants::default();
        for access in known.iter() {
            let spread = spreads[usize::from(registered.table_id(access.slot))];
            participants.add(spread.owner(&access.key, *parts), access.operation.writes());
        }
        participants.settle(turn);
        Some(Footprint { participants, accesses: Vec::new() })
    }

    /// The part whose turn it is where any would do; the same at all members.
    fn turn(&self, at: usize) -> usize {
        ((self.place.stamp + at as u64) % self.core.parts as u64) as usize
    }

    /// Has a call looked at, when everything before it has ended here.
    fn look(&mut self, batch: &mut Batch, at: usize) -> Result<Footprint, EngineError> {
        self.settle(batch)?;
        let (stamp, who) = (self.place.stamp + at as u64, self.turn(at));
        let Core { registry, member, .. } = &mut *self.core;
        let block = batch.block(at);
        member.send(|frame| {
            frame.u8(LOOK);
            frame.u64(stamp);
            frame.u16(who as u16);
            put_call(registry, block.procedure(), block.bytes(), frame);
        });
        loop {
            self.listen(batch)?;
            if let Some((_, footprint)) = self.looked.take_if(|looked| looked.0 == stamp) {
                return Ok(footprint);
            }
        }
    }

    /// Tells the member a call, if it takes part.
    fn tell(&mut self, batch: &mut Batch, at: usize, footprint: &Footprint) -> Result<(), EngineError> {
        let Footprint { participants, accesses } = footprint;
        let (stamp, mine) = (self.place.stamp + at as u64, 1_u64 << self.core.me);
        // A retry may come to any node, so everybody remembers what has a request id.
        let interested = match batch.block(at).request() {
            0 => 1 << self.place.home,
            _ => u64::MAX >> (64 - self.core.parts),
        };
        let answers = 1_u64 << participants.active.trailing_zeros();
        if interested & mine != 0 && answers != mine {
            self.awaited[at] = true;
            self.left += 1;
            if let Some(bytes) = self.core.early.remove(&stamp) {
                self.take(batch, stamp, &bytes).map_err(malformed)?;
            }
        }
        if participants.all & mine == 0 {
            return Ok(());
        }
        let Core { registry, calls, .. } = &mut *self.core;
        let block = batch.block(at);
        calls.u32(at as u32);
        calls.u64(stamp);
        calls.u64(participants.all);
        calls.u64(participants.active);
        calls.u64(if answers == mine { interested & !mine } else { 0 });
        calls.counted(accesses);
        put_call(registry, block.procedure(), block.bytes(), calls);
        if calls.len() > CALLS_BYTES {
            self.send();
        }
        Ok(())
    }

    fn send(&mut self) {
        let Core { calls, member, .. } = &mut *self.core;
        if !calls.is_empty() {
            member.send(|frame| {
                frame.u8(CALLS);
                frame.bytes(calls);
            });
            calls.clear();
        }
    }

    /// Waits until everything that the member was told has ended.
    fn settle(&mut self, batch: &mut Batch) -> Result<(), EngineError> {
        self.send();
        self.core.settled = self.core.settled.wrapping_add(1);
        let number = self.core.settled;
        self.core.member.send(|frame| {
            frame.u8(SETTLE);
            frame.u32(number);
        });
        while self.settled != number {
            self.listen(batch)?;
        }
        Ok(())
    }

    /// Takes what the member says, when it says something.
    fn listen(&mut self, batch: &mut Batch) -> Result<(), EngineError> {
        let failed = |error: &dyn std::fmt::Display| EngineError::BackEnd(format!("a divided engine: {error}"));
        if self.core.interrupt.is_set() {
            return Err(failed(&"it was interrupted while it waited for other parts"));
        }
        let gone = |error: StreamError| match error {
            StreamError::Ended => EngineError::Worker("of a divided engine has ended".into()),
            other => failed(&other),
        };
        let member = &mut self.core.member;
        member.flush().map_err(gone)?;
        let events = if member.backlog() > 0 { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
        poll(&mut [poll_of(member.as_raw_fd(), events)], TICK_MS).map_err(|error| failed(&error))?;
        member.receive().map_err(gone)?;
        while let Some(frame) = self.core.member.frame().map_err(gone)? {
            if frame.first() == Some(&FAILED) {
                return Err(failed(&String::from_utf8_lossy(&frame[1..])));
            }
            self.hear(batch, &frame).map_err(malformed)?;
        }
        Ok(())
    }

    fn hear(&mut self, batch: &mut Batch, frame: &[u8]) -> Result<(), Malformed> {
        let mut reader = Reader::new(frame);
        match reader.u8()? {
            READY => {}
            RESULTS => {
                while !reader.is_empty() {
                    take_result(&mut reader, batch, &self.core.registry, &mut self.core.conflicts)?;
                }
            }
            OUTCOMES => {
                while !reader.is_empty() {
                    let stamp = reader.u64()?;
                    let mut outcome = Vec::new();
                    outcome.u8(reader.u8()?);
                    outcome.u16(reader.u16()?);
                    outcome.counted(reader.counted()?);
                    self.take(batch, stamp, &outcome)?;
                }
            }
            FOOTPRINT => {
                let stamp = reader.u64()?;
                let participants = Participants { all: reader.u64()?, active: reader.u64()? };
                let accesses = reader.counted()?.to_vec();
                let parts = u64::MAX >> (64 - self.core.parts);
                let Participants { all, active } = participants;
                if all == 0 || active == 0 || accesses.is_empty() || active & !all != 0 || all & !parts != 0 {
                    return Err(Malformed::new("a footprint of nobody"));
                }
                self.looked = Some((stamp, Footprint { participants, accesses }));
            }
            SETTLED => self.settled = reader.u32()?,
            other => return Err(Malformed::new(format_args!("a member said something of kind {other}"))),
        }
        Ok(())
    }

    /// Takes what became of a call at another member. One that was not told here yet is for later; one that is known,
    /// or of no interest any more, is passed over.
    fn take(&mut self, batch: &mut Batch, stamp: u64, outcome: &[u8]) -> Result<(), Malformed> {
        let Some(at) = stamp.checked_sub(self.place.stamp) else { return Ok(()) };
        let at = at as usize;
        if !self.awaited.get(at).copied().unwrap_or(false) {
            self.core.early.insert(stamp, outcome.to_vec());
            return Ok(());
        }
        let mut result = Vec::new();
        result.u32(at as u32);
        result.bytes(&outcome[..3]);
        result.u64(stamp);
        result.u32(0);
        result.bytes(&outcome[3..]);
        take_result(&mut Reader::new(&result), batch, &self.core.registry, &mut self.core.conflicts)?;
        self.awaited[at] = false;
        self.left -= 1;
        Ok(())
    }
}
