//! One batch at one member: which of its calls touch this part, and what became of those that are of interest here.

use std::os::fd::AsRawFd;

use lockwork_engine::{EngineError, Place};
use lockwork_procedure::block::Batch;

use super::reach::turn;
use super::{Core, behind};
use crate::coordinator::malformed;
use crate::dispatch::{admit, set_result, take_result};
use crate::message::{CALLS, FAILED, FOOTPRINT, LOOK, OUTCOMES, READY, RESULTS, SETTLE, SETTLED, SHARE};
use crate::ordered::{Participants, put_call};
use crate::stream::{StreamError, poll, poll_of};
use crate::wire::{Malformed, Put, Reader};

/// How long a frame of calls gets before the next one begins. Longer than most batches: what is between parts is told
/// to the others when the frame has been read, and then nothing comes between that and what they tell.
const CALLS_BYTES: usize = 128 << 10;
/// How long it takes to notice that waiting is to end.
const TICK_MS: i32 = 20;

/// What is known of a call.
#[derive(Debug)]
struct Footprint {
    participants: Participants,
    /// What it touches, as it was found by looking; nothing, if its arguments tell.
    accesses: Vec<u8>,
}

/// How far it is known what became of a call, as long as that is another member's to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its turn has not come.
    Untold,
    /// The same, and it was said already.
    Early,
    /// It is of interest here, and was not said yet.
    Awaited,
    /// It was said, or is of no interest, or this member's to say.
    Done,
}

/// See the module.
pub(super) struct Outcomes<'a> {
    core: &'a mut Core,
    place: Place,
    /// Where each call stands behind the place; ascending.
    offsets: &'a [u32],
    /// Of each call.
    states: Vec<State>,
    /// How many are awaited.
    left: usize,
    /// What this call touches, that is looked at.
    looked: Option<(u64, Footprint)>,
    settled: u32,
}

impl<'a> Outcomes<'a> {
    pub(super) fn new(core: &'a mut Core, offsets: &'a [u32], place: Place) -> Self {
        // What the member says of another number than the one that is asked for next is of no meaning here.
        let settled = core.settled;
        Self { core, place, offsets, states: vec![State::Untold; offsets.len()], left: 0, looked: None, settled }
    }

    fn stamp(&self, at: usize) -> u64 {
        self.place.stamp + u64::from(self.offsets[at])
    }

    /// Which call of the batch has this number.
    fn find(&self, stamp: u64) -> Option<usize> {
        let offset = u32::try_from(stamp.checked_sub(self.place.stamp)?).ok()?;
        // As long as none is left out before it.
        match self.offsets.get(offset as usize) {
            Some(&same) if same == offset => Some(offset as usize),
            _ => self.offsets.binary_search(&offset).ok(),
        }
    }

    /// Runs what touches this part, and returns when that has ended and everything of interest is known.
    pub(super) fn run(mut self, batch: &mut Batch) -> Result<(), EngineError> {
        self.take_early(batch).map_err(malformed)?;
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
        Ok(())
    }

    /// Returns when what is to be sent is sent, and these members have told something of this place: with what it is,
    /// and the number of each.
    pub(super) fn shared(mut self, nothing: &mut Batch, from: u64) -> Result<Vec<(usize, Vec<u8>)>, EngineError> {
        let mut told = Vec::new();
        for number in (0..self.core.parts).filter(|number| from >> number & 1 == 1) {
            loop {
                if let Some(bytes) = self.core.exchange.take(self.place.stamp, number) {
                    told.push((number, bytes));
                    break;
                }
                self.listen(nothing)?;
            }
        }
        while self.core.member.backlog() > 0 {
            self.listen(nothing)?;
        }
        Ok(told)
    }

    /// Who takes part in a call, if its arguments tell.
    fn told_by_arguments(&mut self, batch: &Batch, at: usize) -> Option<Footprint> {
        let (stamp, block) = (self.stamp(at), batch.block(at));
        let Core { reaches, scratch, .. } = &mut *self.core;
        let participants = reaches[block.procedure() as usize].of_block(block.bytes(), stamp, scratch)?;
        Some(Footprint { participants, accesses: Vec::new() })
    }

    /// Has a call looked at, when everything before it has ended here.
    fn look(&mut self, batch: &mut Batch, at: usize) -> Result<Footprint, EngineError> {
        self.settle(batch)?;
        let stamp = self.stamp(at);
        let who = turn(stamp, self.core.parts);
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
        let (stamp, mine) = (self.stamp(at), 1_u64 << self.core.me);
        // A retry may come to any node, so everybody remembers what has a request id.
        let interested = match batch.request(at) {
            None => 1 << self.place.home,
            Some(_) => u64::MAX >> (64 - self.core.parts),
        };
        let answers = 1_u64 << participants.active.trailing_zeros();
        let was = std::mem::replace(&mut self.states[at], State::Done);
        if interested & mine != 0 && answers != mine && was == State::Untold {
            self.states[at] = State::Awaited;
            self.left += 1;
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
        member.flush_before_receive().map_err(gone)?;
        let events = if member.backlog() > 0 { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
        poll(&mut [poll_of(member.as_raw_fd(), events)], TICK_MS).map_err(|error| failed(&error))?;
        member.receive().map_err(gone)?;
        while let Some(frame) = self.core.member.frame().map_err(gone)? {
            if frame.first() == Some(&FAILED) {
                return Err(failed(&String::from_utf8_lossy(&frame[1..])));
            }
            self.hear(batch, frame).map_err(malformed)?;
        }
        Ok(())
    }

    fn hear(&mut self, batch: &mut Batch, frame: Vec<u8>) -> Result<(), Malformed> {
        let mut reader = Reader::new(&frame);
        match reader.u8()? {
            // What is shared is looked for by who waits for it.
            READY | SHARE => {}
            RESULTS => {
                while !reader.is_empty() {
                    take_result(&mut reader, batch, &self.core.registry, &mut self.core.conflicts)?;
                }
            }
            OUTCOMES => return self.take_outcomes(batch, frame),
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

    /// Takes what became of calls at another member. What is of a later batch is kept, with its frame; what is known,
    /// or of no interest any more, is passed over. Outcomes are said to those alone who are given the call.
    fn take_outcomes(&mut self, batch: &mut Batch, frame: Vec<u8>) -> Result<(), Malformed> {
        let behind = behind(self.offsets, self.place);
        let (mut reader, mut later) = (Reader::new(&frame[1..]), None);
        while !reader.is_empty() {
            let (stamp, status, code) = (reader.u64()?, reader.u8()?, reader.u16()?);
            let results = reader.counted()?;
            if stamp >= behind {
                later = Some(later.map_or(stamp, |least: u64| least.min(stamp)));
                continue;
            }
            let Some(at) = self.find(stamp).filter(|&at| self.states[at] != State::Done) else { continue };
            set_result(batch, at, &self.core.registry, (status, code, stamp), results)?;
            match self.states[at] {
                State::Awaited => {
                    self.states[at] = State::Done;
                    self.left -= 1;
                }
                _ => self.states[at] = State::Early,
            }
        }
        if let Some(least) = later {
            self.core.early.entry(least).or_default().push(frame);
        }
        Ok(())
    }

    /// Takes what was said of this batch before its turn came.
    fn take_early(&mut self, batch: &mut Batch) -> Result<(), Malformed> {
        let behind = behind(self.offsets, self.place);
        let later = self.core.early.split_off(&behind);
        for frame in std::mem::replace(&mut self.core.early, later).into_values().flatten() {
            self.take_outcomes(batch, frame)?;
        }
        Ok(())
    }
}
