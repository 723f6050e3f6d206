//! What a card was built with, as its registers say.

use lockwork_engine::EngineError;

/// The most workers of any card.
pub const MAX_WORKERS: usize = 16;
/// Bytes from which on memory has no addresses any more.
pub const MAX_MEMORY_BYTES: u64 = 1 << 40;

/// Sizes of a card. Every count is of one worker unless it says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Workers of the card: a power of two, at most 16.
    pub workers: usize,
    /// Transactions in hardware.
    pub contexts: usize,
    /// Decision words: a power of two, at least 64.
    pub entries: usize,
    /// Words of the widest key in normal form, 1 to 4.
    pub key_words: usize,
    /// Instructions that the catalogue holds, of all procedures together.
    pub instructions: usize,
    /// Procedures that the catalogue holds.
    pub procedures: usize,
    /// Tables that the catalogue holds.
    pub tables: usize,
    /// Scan sources that the catalogue holds.
    pub sources: usize,
    /// Grants that a transaction may hold.
    pub grants: usize,
    /// GP registers, and as many CP registers.
    pub registers: usize,
    /// Levels of a skiplist; 0: there is none, so no scan.
    pub levels: usize,
}

impl Capabilities {
    /// Refuses what no card can be, so that nothing below has to be checked again.
    ///
    /// # Errors
    /// [`EngineError::BackEnd`] names the size that is not possible.
    pub fn check(&self) -> Result<(), EngineError> {
        let sizes = [
            ("workers", self.workers, self.workers.is_power_of_two() && self.workers <= MAX_WORKERS),
            ("contexts", self.contexts, self.contexts.is_power_of_two() && (2..=64).contains(&self.contexts)),
            ("decision words", self.entries, self.entries.is_power_of_two() && (64..=16384).contains(&self.entries)),
            ("key words", self.key_words, (1..=4).contains(&self.key_words)),
            ("instructions", self.instructions, (1..=16384).contains(&self.instructions)),
            ("procedures", self.procedures, (1..=1024).contains(&self.procedures)),
            ("tables", self.tables, (1..=64).contains(&self.tables)),
            ("scan sources", self.sources, self.sources <= 64),
            ("grants", self.grants, self.grants >= 1),
            ("registers", self.registers, (1..=256).contains(&self.registers)),
            ("skiplist levels", self.levels, self.levels <= 20),
        ];
        match sizes.iter().find(|(_, _, possible)| !possible) {
            None => Ok(()),
            Some((what, found, _)) => Err(EngineError::BackEnd(format!(
                "the card says that it has {found} {what}, which no transaction processor has: is it another device?"
            ))),
        }
    }

    /// Bits of a decision word's number.
    #[must_use]
    pub fn entry_bits(&self) -> u32 {
        self.entries.trailing_zeros()
    }
}
