//! A card whose registers and memory are mapped into the address space: `/dev/uioN` and its maps, or the resource files
//! of a PCI device in `/sys`.
//!
//! Registers are read and written as 32-bit words, memory as 64-bit words where they are aligned: bridges split what is
//! wider, and some refuse what is narrower. Between memory and a register that tells of it stands a full fence.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use memmap2::{MmapOptions, MmapRaw};

use crate::capabilities::MAX_MEMORY_BYTES;
use crate::card::{Card, CardError, CardMemory, place};
use crate::registers;

/// How often the driver looks, while it waits.
const POLL: Duration = Duration::from_micros(50);

/// A piece of a file to map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The file.
    pub path: PathBuf,
    /// Where the piece begins: a multiple of the system's pages. For map N of `/dev/uio`, N pages.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
}

impl Window {
    /// Reads `path`, `path@offset`, `path:bytes` or `path@offset:bytes`; numbers are decimal, or hexadecimal with `0x`.
    /// Without `bytes`, the window goes to the end of the file.
    ///
    /// # Errors
    /// [`CardError::File`] when a number is none, or the file is not there.
    pub fn parse(text: &str) -> Result<Self, CardError> {
        let bad = |path: &str, what: &str| CardError::File {
            path: path.to_string(),
            error: std::io::Error::new(std::io::ErrorKind::InvalidInput, what.to_string()),
        };
        let number = |digits: &str| match digits.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => digits.parse(),
        };
        let (rest, bytes) = match text.rsplit_once(':').map(|(rest, bytes)| (rest, number(bytes))) {
            Some((rest, Ok(bytes))) => (rest, Some(bytes)),
            _ => (text, None),
        };
        let (path, offset) = match rest.rsplit_once('@') {
            None => (rest, 0),
            Some((path, offset)) => (path, number(offset).map_err(|_| bad(text, "the offset after '@' is no number"))?),
        };
        let bytes = match bytes {
            Some(bytes) => bytes,
            None => {
                let found = std::fs::metadata(path).map_err(|error| CardError::File { path: path.into(), error })?;
                let length = found.len().saturating_sub(offset);
                if length == 0 {
                    return Err(bad(path, "the file does not tell its length: write it behind a ':'"));
                }
                length
            }
        };
        Ok(Self { path: path.into(), offset, bytes })
    }

    fn map(&self) -> Result<MmapRaw, CardError> {
        let failed = |error| CardError::File { path: self.path.display().to_string(), error };
        let file = OpenOptions::new().read(true).write(true).open(&self.path).map_err(failed)?;
        MmapOptions::new().offset(self.offset).len(self.bytes as usize).map_raw(&file).map_err(failed)
    }
}

/// See the module.
#[derive(Debug)]
pub struct MappedCard {
    registers: MmapRaw,
    memory: MmapRaw,
    bytes: u64,
    name: String,
}

impl MappedCard {
    /// Maps a card. `registers` holds the register map, `memory` the card's memory from address 0 on.
    ///
    /// # Errors
    /// [`CardError::File`] when a file cannot be mapped, [`CardError::Register`] when the first is too short.
    pub fn open(registers: &Window, memory: &Window) -> Result<Self, CardError> {
        if registers.bytes < u64::from(registers::BYTES) {
            return Err(CardError::Register { offset: registers::BYTES - 4, end: registers.bytes as u32 });
        }
        let shown = |path: &Path| path.display().to_string();
        Ok(Self {
            registers: registers.map()?,
            memory: memory.map()?,
            bytes: memory.bytes.min(MAX_MEMORY_BYTES) & !7,
            name: format!("registers {}, memory {}", shown(&registers.path), shown(&memory.path)),
        })
    }

    fn register(&self, offset: u32) -> Result<*mut u32, CardError> {
        if offset >= registers::BYTES || !offset.is_multiple_of(4) {
            return Err(CardError::Register { offset, end: registers::BYTES });
        }
        Ok(self.registers.as_mut_ptr().wrapping_add(offset as usize).cast())
    }
}

impl CardMemory for MappedCard {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), CardError> {
        let mut at = place(address, into.len(), self.bytes)?;
        let base = self.memory.as_mut_ptr();
        let mut rest = into;
        while !rest.is_empty() {
            let (word, skip) = (at & !7, at % 8);
            let count = rest.len().min(8 - skip);
            // SAFETY: the word lies in the mapping, whose length is taken as a multiple of 8.
            let bytes = unsafe { base.add(word).cast::<u64>().read_volatile() }.to_le_bytes();
            rest[..count].copy_from_slice(&bytes[skip..skip + count]);
            (at, rest) = (at + count, &mut rest[count..]);
        }
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), CardError> {
        let mut at = place(address, bytes.len(), self.bytes)?;
        let base = self.memory.as_mut_ptr();
        let mut rest = bytes;
        while !rest.is_empty() {
            if at.is_multiple_of(8)
                && let Some((word, behind)) = rest.split_first_chunk::<8>()
            {
                // SAFETY: as above.
                unsafe { base.add(at).cast::<u64>().write_volatile(u64::from_le_bytes(*word).to_le()) };
                (at, rest) = (at + 8, behind);
            } else {
                // SAFETY: as above; what is not a word is written byte by byte, for its neighbours may be others'.
                unsafe { base.add(at).write_volatile(rest[0]) };
                (at, rest) = (at + 1, &rest[1..]);
            }
        }
        Ok(())
    }
}

impl Card for MappedCard {
    fn read_register(&mut self, offset: u32) -> Result<u32, CardError> {
        let register = self.register(offset)?;
        // SAFETY: the register lies in the mapping and is aligned.
        let value = u32::from_le(unsafe { register.read_volatile() });
        fence(Ordering::SeqCst);
        Ok(value)
    }

    fn write_register(&mut self, offset: u32, value: u32) -> Result<(), CardError> {
        let register = self.register(offset)?;
        fence(Ordering::SeqCst);
        // SAFETY: as above.
        unsafe { register.write_volatile(value.to_le()) };
        Ok(())
    }

    fn wait(&mut self) -> Result<(), CardError> {
        std::thread::sleep(POLL);
        Ok(())
    }

    fn describe(&self) -> String {
        format!("a mapped card: {}", self.name)
    }
}
