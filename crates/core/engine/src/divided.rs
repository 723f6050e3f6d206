//! Engines that run one order together: each has a part of every table.
//!
//! All of them are given the same batches, in the same order, wherever they are; each runs what touches its part. So
//! nothing is decided between them but the order, and that was decided before (Calvin, SIGMOD 2012): there is no
//! coordinator, and nobody votes.
//!
//! Most calls touch other parts than an engine's own. It says so of calls as they stand in a log
//! ([`Divided::choose`]), and need not be given those: what is left of a batch is submitted with the places that it
//! has in the whole one.
//!
//! Invariant: engines that were given the same batches at the same places, each at least what it has chosen of them,
//! with the same tables and procedures between them, have together what one engine has that runs the batches in the
//! order of their blocks.

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

/// Calls of one procedure, one behind the other in the order of all, as they stand in a log: not in blocks.
#[derive(Clone, Copy, Debug)]
pub struct Calls<'a> {
    /// Of all of them.
    pub procedure: u32,
    /// The number of the first; the others follow.
    pub stamp: u64,
    /// How many there are.
    pub count: usize,
    /// Those of the first, those of the second and so on; each has as many bytes as the procedure takes.
    pub arguments: &'a [u8],
}

impl<'a> Calls<'a> {
    /// The arguments of one of them.
    ///
    /// # Panics
    /// When there are fewer.
    #[inline]
    #[must_use]
    pub fn arguments_of(&self, index: usize) -> &'a [u8] {
        let each = self.arguments.len() / self.count;
        &self.arguments[index * each..(index + 1) * each]
    }
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

    /// Appends to `chosen` which of the calls, by their place among them, this engine has to be given: it takes part in
    /// them, or their arguments do not tell who does. The others it may be given; it has to be, if they have request
    /// ids, or this part is home to them. All engines choose by the same rule, so of any call they know of each other
    /// who has it.
    ///
    /// A procedure that is not registered concerns everybody.
    fn choose(&mut self, calls: &Calls<'_>, chosen: &mut Vec<u32>);

    /// As [`Engine::submit_in_order`], at a place in the order of all. Blocks whose outcome is another engine's to know
    /// come back [`Pending`](lockwork_procedure::block::Status::Pending).
    ///
    /// It may wait for others, without end if one is gone; then what [`Self::interrupt`] gives ends it.
    ///
    /// # Errors
    /// As there.
    fn submit_at(&mut self, batch: Batch, place: Place) -> Result<(), Box<Refused>> {
        let offsets = (0..batch.len() as u32).collect();
        self.submit_some(batch, offsets, place)
    }

    /// As [`Self::submit_at`], with only some of the calls that stand there: the number of each block's call is the
    /// place's and its offset together.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// When there are not as many offsets as blocks, or they do not ascend.
    fn submit_some(&mut self, batch: Batch, offsets: Vec<u32>, place: Place) -> Result<(), Box<Refused>>;

    /// Ends all waiting for others, from any thread; the engine is of no use then.
    fn interrupt(&self) -> Interrupt;

    /// Has the home of a place, which is that of no call, get all rows of some tables as they are there: what those
    /// before made, and nothing of those behind. All engines do so at this place, and only the home gets any. `wants`:
    /// whether somebody there still asks for them.
    ///
    /// It may wait, as [`Self::submit_at`].
    ///
    /// # Errors
    /// [`EngineError::Busy`]; as there.
    fn gather(&mut self, place: Place, tables: &[u16], most: u64, wants: bool) -> Result<Gathered, EngineError>;

    /// Inserts rows at a place that is that of no call: the first of each table, then the second of each, and so on up
    /// to the first that a part's rows of the first table refuse. All engines do so at this place, and say the same.
    ///
    /// It may wait, as [`Self::submit_at`].
    ///
    /// # Errors
    /// As there. Nothing but a key that is there, or stands twice, is refused for its own sake.
    fn load_at(&mut self, place: Place, tables: &[Images<'_>]) -> Result<Loaded, EngineError>;

    /// No engine will begin before the call `stamp` any more: what others might have needed of earlier ones to run them
    /// again is dropped.
    ///
    /// # Errors
    /// [`EngineError::Busy`].
    fn forget(&mut self, stamp: u64) -> Result<(), EngineError>;
}

/// All rows of some tables ([`Divided::gather`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gathered {
    /// Bytes of them, also when those were too many.
    pub bytes: u64,
    /// Of each table the images of its rows, in no particular order; nothing where they were too many, and where they
    /// are not wanted.
    pub tables: Vec<Vec<u8>>,
}

/// Images of rows of a table, one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct Images<'a> {
    /// Its number.
    pub table: u16,
    /// All of them.
    pub bytes: &'a [u8],
}

/// What became of rows ([`Divided::load_at`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// How many of each table are there.
    pub rows: usize,
    /// Whether the one behind them was refused: its key is there already.
    pub is_refused: bool,
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
