//! A card, as the driver sees it: registers, memory, and time that passes.
//!
//! Two kinds are behind this trait: the verilated processor with a model of memory, and a card whose registers and
//! memory are mapped into the address space. The driver cannot tell them apart, but for [`Card::cycles`].

use lockwork_engine::EngineError;

/// Why a card did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CardError {
    /// There is no such register.
    #[error("the card has no register at {offset:#x}; its registers end at {end:#x}")]
    Register {
        /// Which one.
        offset: u32,
        /// Where they end.
        end: u32,
    },
    /// The card answered an access to a register with an error.
    #[error("the card refuses the access to the register at {offset:#x}: bus response {response}")]
    Bus {
        /// Which one.
        offset: u32,
        /// What it answered.
        response: u8,
    },
    /// The card did not answer an access to a register.
    #[error("the card does not answer an access to the register at {offset:#x} in {cycles} cycles")]
    Silent {
        /// Which one.
        offset: u32,
        /// How long was waited.
        cycles: u64,
    },
    /// There is no such memory.
    #[error("the card has no {length} bytes of memory at {address:#x}; its memory ends at {end:#x}")]
    Memory {
        /// Where.
        address: u64,
        /// How many.
        length: usize,
        /// Where it ends.
        end: u64,
    },
    /// A file or a mapping of it.
    #[error("{path}: {error}")]
    File {
        /// Which one.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// The simulation ended by itself.
    #[error("the simulation stopped: {0}")]
    Simulation(String),
}

impl From<CardError> for EngineError {
    fn from(error: CardError) -> Self {
        Self::BackEnd(error.to_string())
    }
}

/// Memory of a card, by byte address.
pub trait CardMemory {
    /// Bytes of it.
    fn bytes(&self) -> u64;

    /// Reads `into.len()` bytes from `address` on.
    ///
    /// # Errors
    /// [`CardError::Memory`] when they do not lie in the memory.
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), CardError>;

    /// Writes `bytes` from `address` on.
    ///
    /// # Errors
    /// As for [`Self::read`].
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), CardError>;

    /// Reads the eight bytes at `address`, low byte first.
    ///
    /// # Errors
    /// As for [`Self::read`].
    fn read_word(&mut self, address: u64) -> Result<u64, CardError> {
        let mut word = [0; 8];
        self.read(address, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// Writes `length` zeros from `address` on.
    ///
    /// # Errors
    /// As for [`Self::write`].
    fn zero(&mut self, address: u64, length: u64) -> Result<(), CardError> {
        static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
        for start in (0..length).step_by(ZEROS.len()) {
            let piece = (length - start).min(ZEROS.len() as u64) as usize;
            self.write(address + start, &ZEROS[..piece])?;
        }
        Ok(())
    }
}

/// A card.
pub trait Card: CardMemory + Send {
    /// Reads the 32-bit register at `offset`.
    ///
    /// # Errors
    /// Those of [`CardError`].
    fn read_register(&mut self, offset: u32) -> Result<u32, CardError>;

    /// Writes the 32-bit register at `offset`.
    ///
    /// # Errors
    /// Those of [`CardError`].
    fn write_register(&mut self, offset: u32, value: u32) -> Result<(), CardError>;

    /// Lets the card work for a while: until it says that something is ready, or for some thousand cycles.
    ///
    /// # Errors
    /// [`CardError::Simulation`].
    fn wait(&mut self) -> Result<(), CardError>;

    /// Cycles of its clock so far, if it counts them where looking costs nothing.
    fn cycles(&self) -> Option<u64> {
        None
    }

    /// What it is, in words, for benchmarks and `doctor`.
    fn describe(&self) -> String;
}

/// Where `length` bytes at `address` lie in a memory of `bytes` bytes.
pub(crate) fn place(address: u64, length: usize, bytes: u64) -> Result<usize, CardError> {
    match address.checked_add(length as u64) {
        Some(end) if end <= bytes => Ok(address as usize),
        _ => Err(CardError::Memory { address, length, end: bytes }),
    }
}
