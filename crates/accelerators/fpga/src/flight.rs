//! One batch on the card: blocks into slots of its memory, addresses into submission rings, outcomes back.

use std::collections::VecDeque;
use std::time::Instant;

use lockwork_engine::EngineError;
use lockwork_procedure::block::{Batch, Status};

use crate::driver::{Driver, RING};
use crate::memory_map::MemoryMap;
use crate::registers as at;

/// Memory for blocks that are on the card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    base: u64,
    bytes: u64,
}

/// Bytes of all slots, if the card has enough memory.
const SLOTS_BYTES: u64 = 8 << 20;

impl Slots {
    /// Takes memory for blocks of up to `block_bytes`.
    ///
    /// # Errors
    /// [`EngineError::BackEnd`] when there is none.
    pub fn new(map: &mut MemoryMap, block_bytes: u64) -> Result<Self, EngineError> {
        let bytes = SLOTS_BYTES.min(map.left() / 8).max(block_bytes.next_multiple_of(64));
        Ok(Self { base: map.take(bytes, "transaction blocks")?, bytes })
    }
}

/// A block that is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its index in the batch.
    pub index: usize,
    /// Its bytes that count.
    pub bytes: usize,
    /// The worker that runs it.
    pub home: usize,
}

/// What running took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Cycles of the card.
    pub cycles: u64,
    /// Times that transactions began again.
    pub conflicts: u64,
}

struct Flight<'a> {
    batch: &'a mut Batch,
    slots: Slots,
    stride: u64,
    /// What lies in each slot.
    calls: Vec<Option<Call>>,
    free: Vec<usize>,
    waiting: Vec<VecDeque<Call>>,
    out: usize,
}

impl Driver {
    /// Runs these blocks of `batch` to their ends, and writes back all that they left: outcome, results, serial stamp.
    ///
    /// # Errors
    /// [`EngineError::BackEnd`] when the card is lost; then nothing is known of what happened.
    pub fn run(&mut self, batch: &mut Batch, calls: &[Call], slots: Slots) -> Result<Taken, EngineError> {
        let most = calls.iter().map(|call| call.bytes).max().unwrap_or(0);
        if most == 0 {
            return Ok(Taken::default());
        }
        let stride = (most as u64).next_multiple_of(64);
        let places = (slots.bytes / stride).min((self.rings.len() * RING) as u64) as usize;
        if places == 0 {
            return Err(EngineError::BackEnd(format!("a block of {most} bytes has no place on the card")));
        }
        let mut waiting = vec![VecDeque::new(); self.rings.len()];
        for call in calls {
            waiting[call.home].push_back(*call);
        }
        let free = (0..places).rev().collect();
        let mut flight = Flight { batch, slots, stride, calls: vec![None; places], free, waiting, out: 0 };
        let (cycles, conflicts) = (self.cycles()?, self.counter(at::CONFLICTS)?);
        self.command(at::CONTROL_RUN)?;
        let mut draining = false;
        let mut progress = Instant::now();
        loop {
            let submitted = if draining { 0 } else { self.submit(&mut flight)? };
            let all_in = flight.waiting.iter().all(VecDeque::is_empty);
            if all_in && !draining {
                self.command(at::CONTROL_DRAIN)?;
                draining = true;
            }
            let completed = self.collect(&mut flight)?;
            if completed + submitted > 0 {
                progress = Instant::now();
            }
            if all_in && flight.out == 0 {
                break;
            }
            if completed == 0 {
                self.check()?;
                if self.read(at::ERROR)? & at::ERROR_TIMES != 0 {
                    self.next_epoch(&mut flight)?;
                    draining = false;
                    continue;
                }
                if self.state()? == at::STATE_STOPPED && self.collect(&mut flight)? == 0 {
                    return Err(self.lost(&format!("it stopped and kept {} blocks", flight.out)));
                }
                if progress.elapsed() > self.settings.timeout {
                    return Err(self.lost(&format!("it completes none of {} blocks", flight.out)));
                }
                self.card.wait()?;
            }
        }
        self.until_stopped("after the last block")?;
        self.check()?;
        if self.read(at::ERROR)? & at::ERROR_TIMES != 0 {
            self.clear()?;
        }
        let after = self.counter(at::CONFLICTS)?;
        let conflicts = conflicts.iter().zip(after).map(|(before, after)| u64::from(after.wrapping_sub(*before))).sum();
        Ok(Taken { cycles: self.cycles()?.wrapping_sub(cycles), conflicts })
    }

    /// Times run low: takes what has ended, and goes on in the next epoch.
    fn next_epoch(&mut self, flight: &mut Flight<'_>) -> Result<(), EngineError> {
        self.until_stopped("when its times run low")?;
        self.collect(flight)?;
        self.clear()?;
        self.command(at::CONTROL_RUN)
    }

    /// Puts as many blocks on the card as there is room for. Returns how many.
    fn submit(&mut self, flight: &mut Flight<'_>) -> Result<usize, EngineError> {
        let before = flight.out;
        for worker in 0..self.rings.len() {
            let mut rings = self.rings[worker];
            // An entry is free again when its outcome has come: both rings have the same size.
            while usize::from(rings.submitted.wrapping_sub(rings.completed)) < RING
                && !flight.free.is_empty()
                && let Some(call) = flight.waiting[worker].pop_front()
                && let Some(slot) = flight.free.pop()
            {
                let address = flight.slots.base + slot as u64 * flight.stride;
                self.card.write(address, &flight.batch.block(call.index).bytes()[..call.bytes])?;
                let entry = rings.submit_base + 8 * (u64::from(rings.submitted) % RING as u64);
                self.card.write(entry, &address.to_le_bytes())?;
                rings.submitted = rings.submitted.wrapping_add(1);
                flight.calls[slot] = Some(call);
                flight.out += 1;
            }
            if rings.submitted != self.rings[worker].submitted {
                self.rings[worker] = rings;
                self.write(Self::of(worker, at::SUBMIT_HEAD), u32::from(rings.submitted))?;
            }
        }
        Ok(flight.out - before)
    }

    /// Takes the outcomes that there are. Returns how many.
    fn collect(&mut self, flight: &mut Flight<'_>) -> Result<usize, EngineError> {
        let mut taken = 0;
        for worker in 0..self.rings.len() {
            let mut rings = self.rings[worker];
            if rings.completed == rings.submitted {
                continue;
            }
            let head = self.read(Self::of(worker, at::COMPLETE_HEAD))? as u16;
            let there = head.wrapping_sub(rings.completed);
            if there > rings.submitted.wrapping_sub(rings.completed) {
                return Err(self.lost(&format!("worker {worker} claims to have completed more than it was given")));
            }
            for _ in 0..there {
                let entry = rings.complete_base + 8 * (u64::from(rings.completed) % RING as u64);
                let entry = self.card.read_word(entry)?;
                rings.completed = rings.completed.wrapping_add(1);
                self.take(flight, entry & at::COMPLETION_ADDRESS)?;
            }
            if there > 0 {
                taken += usize::from(there);
                self.rings[worker] = rings;
                self.write(Self::of(worker, at::COMPLETE_TAIL), u32::from(rings.completed))?;
            }
        }
        Ok(taken)
    }

    /// Takes the block at this address back.
    fn take(&mut self, flight: &mut Flight<'_>, address: u64) -> Result<(), EngineError> {
        let slot = address.wrapping_sub(flight.slots.base) / flight.stride;
        let aligned = address.wrapping_sub(flight.slots.base).is_multiple_of(flight.stride);
        let place = flight.calls.get_mut(slot as usize).filter(|_| aligned);
        let Some(call) = place.and_then(Option::take) else {
            return Err(self.lost(&format!("it completes a block at {address:#x}, where it was given none")));
        };
        let mut block = flight.batch.block_mut(call.index);
        self.card.read(address, &mut block.bytes()[..call.bytes])?;
        let (status, serial) = (block.as_block().status(), block.as_block().serial());
        match status {
            None | Some(Status::Pending) => {
                return Err(self.lost(&format!("it completes block {} without an outcome", call.index)));
            }
            Some(Status::Failed) => block.set_serial(0),
            Some(_) => block.set_serial(self.epoch << 32 | serial & u64::from(u32::MAX)),
        }
        flight.free.push(slot as usize);
        flight.out -= 1;
        Ok(())
    }
}
