//! Ports of a model.

/// Which way a port goes, as the module sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Written from outside.
    Input,
    /// Written by the module.
    Output,
}

/// One port: where its bits are.
///
/// Up to 64 bits lie in one integer of 8, 16, 32 or 64 bits, more in an array of 32-bit words, the lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    pub(crate) number: usize,
    pub(crate) address: *mut u8,
    /// How many bits it has.
    pub bits: u32,
    /// Which way it goes.
    pub direction: Direction,
}

/// A port that is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("module '{module}' has no port '{port}'; it has {ports}")]
pub struct PortError {
    pub(crate) module: String,
    pub(crate) port: String,
    pub(crate) ports: String,
}

impl Port {
    /// Bytes of the integer it is kept in.
    fn bytes(self) -> u32 {
        match self.bits {
            0..=8 => 1,
            9..=16 => 2,
            17..=32 => 4,
            33..=64 => 8,
            _ => self.bits.div_ceil(32) * 4,
        }
    }

    /// The 32 bits from `32 * word` on.
    ///
    /// # Safety
    /// The model lives.
    #[inline(always)]
    pub(crate) unsafe fn word(self, word: u32) -> u32 {
        // SAFETY: as the caller's; the word is inside the port's storage.
        unsafe {
            match self.bytes() {
                1 => u32::from(*self.address),
                2 => u32::from(*self.address.cast::<u16>()),
                _ => *self.address.cast::<u32>().add(word as usize),
            }
        }
    }

    /// Writes the 32 bits from `32 * word` on.
    ///
    /// # Safety
    /// The model lives, and the value has no bit that the port does not have.
    #[inline(always)]
    pub(crate) unsafe fn set_word(self, word: u32, value: u32) {
        // SAFETY: as the caller's; the word is inside the port's storage.
        unsafe {
            match self.bytes() {
                1 => *self.address = value as u8,
                2 => *self.address.cast::<u16>() = value as u16,
                _ => *self.address.cast::<u32>().add(word as usize) = value,
            }
        }
    }
}
