//! The driver: speaks the register map.
//!
//! The catalogue and the set-up are written while the machine is stopped. A batch runs so: the machine is told to run,
//! blocks go into memory and their addresses into the submission rings, the doorbells are rung, and outcomes are taken
//! from the completion rings; when all was rung in, the machine is told to drain, and stops by itself when the last one
//! has ended. So batches do not overlap, and serial stamps of one are all above those of the one before.
//!
//! Times have 32 bits. When they run low the machine stops by itself between two transactions; the driver takes all
//! outcomes, has the decision words cleared and begins a new *epoch*, which are the upper bits of serial stamps.

use std::time::{Duration, Instant};

use lockwork_engine::EngineError;

use crate::capabilities::Capabilities;
use crate::card::Card;
use crate::catalogue::Write;
use crate::memory_map::MemoryMap;
use crate::registers as at;

/// log2 of the entries of each ring.
const RING_BITS: u32 = 11;
/// Entries of each ring.
pub(crate) const RING: usize = 1 << RING_BITS;
/// The longest undo log of a context, in bytes: a power of two.
const MAX_UNDO_BYTES: u64 = 1 << 19;

/// The most times that a transaction begins again by itself.
pub const MAX_RETRIES: u32 = 65_535;

/// How the machine is to work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// [`at::MODE_SERIAL`], [`at::MODE_BATCH`] or [`at::MODE_DYNAMIC`].
    pub mode: u32,
    /// DB instructions of a worker that may be outstanding; 0: as many as there are. To measure with: a low limit can
    /// stop everything when transactions wait for each other.
    pub inflight: u32,
    /// How often a transaction begins again after a conflict before it comes back as failed, at most 65535.
    pub retries: u32,
    /// A worker that is busy and completes nothing for so many times 256 cycles is stuck; 0: for ever.
    pub watchdog: u32,
    /// A card that completes nothing for so long is lost.
    pub timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mode: at::MODE_DYNAMIC,
            inflight: 0,
            retries: MAX_RETRIES,
            watchdog: 16_384,
            timeout: Duration::from_secs(120),
        }
    }
}

/// A worker's rings, as the host sees them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rings {
    pub(crate) submit_base: u64,
    pub(crate) complete_base: u64,
    /// Entries written, and outcomes taken, modulo 2^16.
    pub(crate) submitted: u16,
    pub(crate) completed: u16,
}

/// See the module.
pub struct Driver {
    pub(crate) card: Box<dyn Card>,
    pub(crate) capabilities: Capabilities,
    pub(crate) settings: Settings,
    pub(crate) rings: Vec<Rings>,
    /// Upper bits of serial stamps.
    pub(crate) epoch: u64,
}

impl Driver {
    /// Takes a card over: whatever it was doing is forgotten.
    ///
    /// # Errors
    /// [`EngineError::BackEnd`] when it is no transaction processor, one of another version, or does not answer.
    pub fn new(card: Box<dyn Card>, settings: Settings) -> Result<Self, EngineError> {
        let mut driver = Self { card, capabilities: Capabilities::default(), settings, rings: Vec::new(), epoch: 0 };
        let (id, version) = (driver.read(at::ID)?, driver.read(at::VERSION)?);
        if id != at::ID_VALUE {
            return Err(EngineError::BackEnd(format!(
                "the card's first register reads {id:#010x}, where a transaction processor has {:#010x}: is it another \
                 device?",
                at::ID_VALUE
            )));
        }
        if version >> 16 != at::VERSION_VALUE >> 16 {
            return Err(EngineError::BackEnd(format!(
                "the card is a transaction processor of version {}, and this driver speaks version {}: load another \
                 bitstream or take another driver",
                version >> 16,
                at::VERSION_VALUE >> 16
            )));
        }
        let mut size = |offset| driver.read(offset).map(|value| value as usize);
        let capabilities = Capabilities {
            workers: size(at::WORKERS)?,
            contexts: size(at::CONTEXTS)?,
            entries: size(at::ENTRIES)?,
            key_words: size(at::KEY_WORDS)?,
            instructions: size(at::INSTRUCTIONS)?,
            procedures: size(at::PROCEDURES)?,
            tables: size(at::TABLES)?,
            sources: size(at::SOURCES)?,
            grants: size(at::GRANTS)?,
            registers: size(at::REGISTERS)?,
            levels: size(at::LEVELS)?,
        };
        capabilities.check()?;
        driver.capabilities = capabilities;
        driver.rings = vec![Rings::default(); capabilities.workers];
        driver.reset()?;
        Ok(driver)
    }

    /// What the card was built with.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The card.
    pub fn card(&mut self) -> &mut dyn Card {
        &mut *self.card
    }

    pub(crate) fn read(&mut self, offset: u32) -> Result<u32, EngineError> {
        Ok(self.card.read_register(offset)?)
    }

    pub(crate) fn write(&mut self, offset: u32, value: u32) -> Result<(), EngineError> {
        Ok(self.card.write_register(offset, value)?)
    }

    /// The offset of a register of a worker.
    pub(crate) fn of(worker: usize, offset: u32) -> u32 {
        at::WORKER + worker as u32 * at::WORKER_STRIDE + offset
    }

    /// The state of the machine.
    pub(crate) fn state(&mut self) -> Result<u32, EngineError> {
        Ok(self.read(at::STATUS)? & at::STATUS_STATE)
    }

    /// Gives a command.
    pub(crate) fn command(&mut self, command: u32) -> Result<(), EngineError> {
        self.write(at::CONTROL, command)
    }

    /// Waits until the machine has stopped.
    pub(crate) fn until_stopped(&mut self, what: &str) -> Result<(), EngineError> {
        let begin = Instant::now();
        while self.state()? != at::STATE_STOPPED {
            if begin.elapsed() > self.settings.timeout {
                return Err(self.lost(&format!("it does not stop {what}")));
            }
            self.card.wait()?;
        }
        Ok(())
    }

    /// Stops whatever the machine does, forgets it, and begins with time 1.
    fn reset(&mut self) -> Result<(), EngineError> {
        self.command(at::CONTROL_RESET)?;
        self.until_stopped("after a reset")?;
        let errors = self.read(at::ERROR)?;
        self.write(at::ERROR, errors)?;
        for rings in &mut self.rings {
            (rings.submitted, rings.completed) = (0, 0);
        }
        self.clear()
    }

    /// Has the decision words forgotten. Nothing runs.
    pub(crate) fn clear(&mut self) -> Result<(), EngineError> {
        self.command(at::CONTROL_CLEAR)?;
        self.until_stopped("when its decision words are cleared")?;
        self.epoch += 1;
        self.write(at::ERROR, at::ERROR_TIMES)
    }

    /// Begins anew: memory is free again but for rings and undo logs, which hold `undo_bytes` for each transaction.
    ///
    /// # Errors
    /// [`EngineError::BackEnd`] when the card's memory is too small, or the card does not answer.
    pub fn begin(&mut self, undo_bytes: u64) -> Result<MemoryMap, EngineError> {
        self.reset()?;
        let mut map = MemoryMap::new(self.card.bytes());
        let Settings { mode, inflight, retries, watchdog, .. } = self.settings;
        let contexts = self.capabilities.contexts;
        let undo_bytes = undo_bytes.clamp(64, MAX_UNDO_BYTES).next_multiple_of(64);
        self.write(at::MODE, mode)?;
        self.write(at::MAX_INFLIGHT, inflight.min(2047))?;
        self.write(at::MAX_RETRIES, retries.min(MAX_RETRIES))?;
        self.write(at::WATCHDOG, watchdog.min(65_535))?;
        self.write(at::UNDO_BYTES, undo_bytes as u32)?;
        self.write(at::INTERRUPT, 0)?;
        for worker in 0..self.capabilities.workers {
            let ring_bytes = 8 * RING as u64;
            let submit_base = map.take_aligned(ring_bytes, ring_bytes, "rings")?;
            let complete_base = map.take_aligned(ring_bytes, ring_bytes, "rings")?;
            let undo = map.take(undo_bytes * contexts as u64, "undo logs")?;
            self.card.zero(submit_base, 2 * ring_bytes)?;
            let low_and_high = [(at::SUBMIT_LOW, submit_base), (at::COMPLETE_LOW, complete_base), (at::UNDO_LOW, undo)];
            for (offset, base) in low_and_high {
                self.write(Self::of(worker, offset), base as u32)?;
                self.write(Self::of(worker, offset + 4), (base >> 32) as u32)?;
            }
            self.write(Self::of(worker, at::SUBMIT_SIZE), RING_BITS)?;
            self.write(Self::of(worker, at::COMPLETE_SIZE), RING_BITS)?;
            self.rings[worker] = Rings { submit_base, complete_base, submitted: 0, completed: 0 };
        }
        Ok(map)
    }

    /// Writes words of the catalogue. Nothing runs.
    ///
    /// # Errors
    /// [`EngineError::BackEnd`] when the card does not answer or refuses.
    pub fn configure(&mut self, writes: &[Write]) -> Result<(), EngineError> {
        let mut next = None;
        for &Write { address, data } in writes {
            if next != Some(address) {
                self.write(at::CONFIG_ADDR, u32::from(address))?;
            }
            self.write(at::CONFIG_LOW, data as u32)?;
            self.write(at::CONFIG_HIGH, (data >> 32) as u32)?;
            next = address.checked_add(1);
        }
        self.check()
    }

    /// Cycles in which the machine was not stopped.
    ///
    /// # Errors
    /// When the card does not answer.
    pub fn cycles(&mut self) -> Result<u64, EngineError> {
        let low = self.read(at::CYCLES_LOW)?;
        Ok(u64::from(low) | u64::from(self.read(at::CYCLES_HIGH)?) << 32)
    }

    /// A counter of all workers together, modulo 2^32 each.
    ///
    /// # Errors
    /// When the card does not answer.
    pub fn counter(&mut self, offset: u32) -> Result<Vec<u32>, EngineError> {
        (0..self.capabilities.workers).map(|worker| self.read(Self::of(worker, offset))).collect()
    }

    /// Fails when the card has noted an error, but for times that run low.
    pub(crate) fn check(&mut self) -> Result<(), EngineError> {
        match self.read(at::ERROR)? & !at::ERROR_TIMES {
            0 => Ok(()),
            _ => Err(self.lost("it has noted an error")),
        }
    }

    /// What is wrong with the card, in words, with the state of every stage.
    pub(crate) fn lost(&mut self, what: &str) -> EngineError {
        match self.describe(what) {
            Ok(text) => EngineError::BackEnd(text),
            Err(error) => error,
        }
    }

    fn describe(&mut self, what: &str) -> Result<String, EngineError> {
        let (status, errors, refused) = (self.read(at::STATUS)?, self.read(at::ERROR)?, self.read(at::REFUSED)?);
        let stuck = self.read(at::STUCK)?;
        let mut text = format!("the transaction processor cannot go on: {what}; it is {}", state_name(status));
        for (bit, meaning) in ERRORS.iter().filter(|(bit, _)| errors & bit != 0) {
            text += &format!("; {meaning}");
            if *bit == at::ERROR_STUCK {
                text += &format!(" (workers {})", bits(stuck));
            }
            if bit & (at::ERROR_STATE | at::ERROR_ADDRESS | at::ERROR_PARTIAL | at::ERROR_VALUE) != 0 {
                text += &format!(" (register {refused:#06x})");
            }
        }
        for worker in 0..self.capabilities.workers {
            let low = self.read(Self::of(worker, at::STATE_LOW))?;
            let high = self.read(Self::of(worker, at::STATE_HIGH))?;
            let state = u64::from(low) | u64::from(high) << 32;
            text += &format!("\nworker {worker}: {}", crate::stages::describe(state));
        }
        Ok(text)
    }
}

/// What the bits of the error register mean.
const ERRORS: [(u32, &str); 8] = [
    (at::ERROR_STATE, "a register was written that its state does not allow"),
    (at::ERROR_ADDRESS, "there is no such register"),
    (at::ERROR_PARTIAL, "a register was written in part"),
    (at::ERROR_VALUE, "a value means nothing"),
    (at::ERROR_DOORBELL, "a doorbell claims more than its ring holds"),
    (at::ERROR_MEMORY, "memory refused a ring"),
    (at::ERROR_STUCK, "the watchdog barked"),
    (at::ERROR_TIMES, "its times run out"),
];

fn state_name(status: u32) -> &'static str {
    match status & at::STATUS_STATE {
        at::STATE_STOPPED => "stopped",
        at::STATE_RUNNING => "running",
        at::STATE_STOPPING => "stopping",
        at::STATE_DRAINING => "draining",
        at::STATE_RESETTING => "resetting",
        at::STATE_CLEARING => "clearing its decision words",
        _ => "in a state that there is not",
    }
}

fn bits(word: u32) -> String {
    let set = (0..32).filter(|bit| word >> bit & 1 == 1);
    set.map(|bit: u32| bit.to_string()).collect::<Vec<_>>().join(", ")
}
