//! A transaction processor in software behind the same registers: what the driver writes is all that it knows. It runs
//! one transaction after the other, so it says nothing of concurrency; it checks layout, catalogue and driver.

#![allow(dead_code, reason = "each test program uses a part of it")]

mod machine;
mod rows;

use std::sync::{Arc, Mutex};

use lockwork_fpga::capabilities::Capabilities;
use lockwork_fpga::card::{Card, CardError, CardMemory};
use lockwork_fpga::memory::{Behaviour, Memory};
use lockwork_fpga::registers as at;

/// What a test has the card do.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// Times run low when so many transactions have run since the last clear; 0: never.
    pub(crate) times_after: u32,
    /// Every so manieth transaction fails with this code before it does anything; 0: none.
    pub(crate) fail_every: u32,
    /// See `fail_every`.
    pub(crate) fail_code: u16,
    /// After so many transactions the card does nothing more; 0: never.
    pub(crate) hang_after: u32,
    /// The ID register reads something else.
    pub(crate) other_device: bool,
}

/// What the card has done, for a test to look at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    /// Transactions run, by worker.
    pub(crate) transactions: Vec<u32>,
    /// DB instructions whose key belongs to another worker.
    pub(crate) remote: u32,
    /// Times that decision words were cleared.
    pub(crate) clears: u32,
}

/// See the module.
pub(crate) struct SoftwareCard {
    pub(crate) capabilities: Capabilities,
    pub(crate) memory: Memory,
    pub(crate) faults: Faults,
    pub(crate) log: Arc<Mutex<Log>>,
    registers: Vec<u32>,
    config: Vec<u64>,
    state: u32,
    error: u32,
    stamp: u32,
    run: u32,
    since_clear: u32,
}

pub(crate) fn capabilities(workers: usize) -> Capabilities {
    Capabilities {
        workers,
        contexts: 8,
        entries: 256,
        key_words: 4,
        instructions: 2048,
        procedures: 64,
        tables: 16,
        sources: 16,
        grants: 64,
        registers: 256,
        levels: 12,
    }
}

impl SoftwareCard {
    pub(crate) fn new(workers: usize, faults: Faults) -> Self {
        Self::with_memory(workers, faults, 64 << 20)
    }

    pub(crate) fn with_memory(workers: usize, faults: Faults, bytes: u64) -> Self {
        Self {
            capabilities: capabilities(workers),
            memory: Memory::new(bytes, 1, Behaviour::paper()).unwrap(),
            faults,
            log: Arc::new(Mutex::new(Log { transactions: vec![0; workers], ..Log::default() })),
            registers: vec![0; at::BYTES as usize / 4],
            config: vec![0; 1 << 16],
            state: at::STATE_STOPPED,
            error: 0,
            stamp: 1,
            run: 0,
            since_clear: 0,
        }
    }

    fn of(&self, worker: usize, offset: u32) -> u32 {
        self.registers[((at::WORKER + worker as u32 * at::WORKER_STRIDE + offset) / 4) as usize]
    }

    fn set(&mut self, worker: usize, offset: u32, value: u32) {
        self.registers[((at::WORKER + worker as u32 * at::WORKER_STRIDE + offset) / 4) as usize] = value;
    }

    fn base(&self, worker: usize, offset: u32) -> u64 {
        u64::from(self.of(worker, offset)) | u64::from(self.of(worker, offset + 4)) << 32
    }

    fn refuse(&mut self, offset: u32, error: u32) -> Result<(), CardError> {
        self.error |= error;
        self.registers[at::REFUSED as usize / 4] = offset;
        Ok(())
    }

    fn command(&mut self, command: u32) -> Result<(), CardError> {
        let stopped = self.state == at::STATE_STOPPED;
        match command {
            at::CONTROL_RUN if stopped => self.state = at::STATE_RUNNING,
            at::CONTROL_DRAIN if self.state == at::STATE_RUNNING => self.state = at::STATE_DRAINING,
            at::CONTROL_RESET => {
                self.state = at::STATE_STOPPED;
                for worker in 0..self.capabilities.workers {
                    for offset in (0..at::WORKER_STRIDE).step_by(4) {
                        self.set(worker, offset, 0);
                    }
                }
            }
            at::CONTROL_CLEAR if stopped => {
                (self.stamp, self.since_clear) = (1, 0);
                self.log.lock().unwrap().clears += 1;
            }
            _ => return self.refuse(at::CONTROL, at::ERROR_STATE),
        }
        Ok(())
    }

    /// Runs one block of `worker`, if there is one. Returns whether there was.
    fn step(&mut self, worker: usize) -> bool {
        let (head, tail) = (self.of(worker, at::SUBMIT_HEAD) as u16, self.of(worker, at::SUBMIT_TAIL) as u16);
        if head == tail || self.state == at::STATE_STOPPED {
            return false;
        }
        let size = |size: u32| (1_u64 << size) - 1;
        let entry = u64::from(tail) & size(self.of(worker, at::SUBMIT_SIZE));
        let block = self.memory.read_word(self.base(worker, at::SUBMIT_LOW) + 8 * entry).unwrap();
        self.set(worker, at::SUBMIT_TAIL, u32::from(tail.wrapping_add(1)));
        self.run += 1;
        self.since_clear += 1;
        self.log.lock().unwrap().transactions[worker] += 1;
        let stamp = self.stamp;
        self.stamp += 1;
        let forced = self.faults.fail_every > 0 && self.run.is_multiple_of(self.faults.fail_every);
        let forced = forced.then_some(self.faults.fail_code);
        let (status, code) = self.transaction(worker, block, stamp, forced);
        let head = self.of(worker, at::COMPLETE_HEAD) as u16;
        let bits = self.of(worker, at::COMPLETE_SIZE);
        let phase = if u64::from(head) >> bits & 1 == 0 { at::COMPLETION_PHASE } else { 0 };
        let outcome = u64::from(status) << at::COMPLETION_STATUS_SHIFT | u64::from(code) << at::COMPLETION_CODE_SHIFT;
        let place = self.base(worker, at::COMPLETE_LOW) + 8 * (u64::from(head) & size(bits));
        self.memory.write(place, &(phase | outcome | block).to_le_bytes()).unwrap();
        self.set(worker, at::COMPLETE_HEAD, u32::from(head.wrapping_add(1)));
        self.registers[at::CYCLES_LOW as usize / 4] += 100;
        if self.faults.times_after > 0 && self.since_clear >= self.faults.times_after {
            self.error |= at::ERROR_TIMES;
            self.state = at::STATE_STOPPED;
        }
        true
    }
}

impl CardMemory for SoftwareCard {
    fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), CardError> {
        self.memory.read(address, into)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), CardError> {
        self.memory.write(address, bytes)
    }
}

impl Card for SoftwareCard {
    fn read_register(&mut self, offset: u32) -> Result<u32, CardError> {
        if offset >= at::BYTES || !offset.is_multiple_of(4) {
            return Err(CardError::Register { offset, end: at::BYTES });
        }
        let c = &self.capabilities;
        Ok(match offset {
            at::ID if self.faults.other_device => 7,
            at::ID => at::ID_VALUE,
            at::VERSION => at::VERSION_VALUE,
            at::WORKERS => c.workers as u32,
            at::CONTEXTS => c.contexts as u32,
            at::ENTRIES => c.entries as u32,
            at::KEY_WORDS => c.key_words as u32,
            at::INSTRUCTIONS => c.instructions as u32,
            at::PROCEDURES => c.procedures as u32,
            at::TABLES => c.tables as u32,
            at::SOURCES => c.sources as u32,
            at::GRANTS => c.grants as u32,
            at::REGISTERS => c.registers as u32,
            at::LEVELS => c.levels as u32,
            at::STATUS => self.state,
            at::ERROR => self.error,
            _ => self.registers[offset as usize / 4],
        })
    }

    fn write_register(&mut self, offset: u32, value: u32) -> Result<(), CardError> {
        if offset >= at::BYTES || !offset.is_multiple_of(4) {
            return self.refuse(offset, at::ERROR_ADDRESS);
        }
        let in_worker = offset.wrapping_sub(at::WORKER) % at::WORKER_STRIDE;
        let any_state =
            offset == at::INTERRUPT || offset >= at::WORKER && matches!(in_worker, at::SUBMIT_HEAD | at::COMPLETE_TAIL);
        match offset {
            at::CONTROL => return self.command(value),
            at::ERROR if value > 0xFF => return self.refuse(offset, at::ERROR_VALUE),
            at::ERROR => {
                self.error &= !value;
                return Ok(());
            }
            _ if self.state != at::STATE_STOPPED && !any_state => return self.refuse(offset, at::ERROR_STATE),
            at::CONFIG_HIGH => {
                let address = self.registers[at::CONFIG_ADDR as usize / 4];
                let low = self.registers[at::CONFIG_LOW as usize / 4];
                self.config[address as usize] = u64::from(low) | u64::from(value) << 32;
                self.registers[at::CONFIG_ADDR as usize / 4] = address + 1;
            }
            _ => {}
        }
        if offset >= at::WORKER && in_worker == at::SUBMIT_HEAD && self.state == at::STATE_DRAINING {
            return self.refuse(offset, at::ERROR_DOORBELL);
        }
        self.registers[offset as usize / 4] = value;
        Ok(())
    }

    fn wait(&mut self) -> Result<(), CardError> {
        if self.faults.hang_after > 0 && self.run >= self.faults.hang_after {
            self.error |= at::ERROR_STUCK;
            self.registers[at::STUCK as usize / 4] = 1;
            return Ok(());
        }
        let mut ran = true;
        for _ in 0..50 {
            ran = (0..self.capabilities.workers).fold(false, |ran, worker| self.step(worker) | ran);
        }
        if !ran && self.state == at::STATE_DRAINING {
            self.state = at::STATE_STOPPED;
        }
        Ok(())
    }

    fn describe(&self) -> String {
        "software".into()
    }
}
