//! Engines that run one order together: each has a part of every table.
//!
//! All of them are given the same batches, in the same order, wherever they are; each runs what touches its part. So
//! nothing is decided between them but the order, and that was decided before (Calvin, SIGMOD 2012): there is no
//! coordinator, and nobody votes.
//!
//! Invariant: engines that were given the same batches at the same places, with the same tables and procedures between
//! them, have together what one engine has that runs the batches in the order of their blocks.

use lockwork_procedure::block::Batch;

use crate::contract::{Engine, EngineError, Refused};

/// Where a batch stands in the order of all, and who wants to know what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The number of its first call; the others follow. Greater than that of any call before.
    pub stamp: u64,
    /// The part whose engine is to have the outcome of every call. Others know those of calls that they answer, and of
    /// calls with request ids.
    pub home: u16,
}

/// See the module.
pub trait Divided: Engine {
    /// Which part this engine has, from 0, and how many there are.
    fn part(&self) -> (u16, u16);

    /// Nothing before the call `stamp` concerns this engine: what follows begins there, or later. Called before the
    /// first batch, and whenever that is known; then the engine looks for the others.
    ///
    /// # Errors
    /// [`EngineError::Busy`], and what the system refuses.
    fn begin(&mut self, stamp: u64) -> Result<(), EngineError>;

    /// As [`Engine::submit_in_order`], at a place in the order of all. Blocks whose outcome is another engine's to know
    /// come back [`Pending`](lockwork_procedure::block::Status::Pending).
    ///
    /// It may wait for others, without end if one is gone; then what [`Self::interrupt`] gives ends it.
    ///
    /// # Errors
    /// As there.
    fn submit_at(&mut self, batch: Batch, place: Place) -> Result<(), Box<Refused>>;

    /// Ends all waiting for others, from any thread; the engine is of no use then.
    fn interrupt(&self) -> Interrupt;

    /// No engine will begin before the call `stamp` any more: what others might have needed of earlier ones to run them
    /// again is dropped.
    ///
    /// # Errors
    /// [`EngineError::Busy`].
    fn forget(&mut self, stamp: u64) -> Result<(), EngineError>;
}

/// Ends all waiting of an engine for others.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(std::sync::Arc<std::sync::atomic::AtomicBool>);

impl Interrupt {
    /// Ends it now.
    pub fn set(&self) {
        self.0.store(true, std::sync::atomic::Ordering::Release);
    }

    /// Whether it was ended.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(std::sync::atomic::Ordering::Acquire)
    }
}
