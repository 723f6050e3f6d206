//! The `two-phase` engine: strict two-phase locking on words in the rows (HOBBES, section 3.2.2).
//!
//! Workers take transactions from the batch in order and lock what they touch, shared or exclusive, at the RET of each
//! access; all locks are kept to the end. Nothing is planned and no scheduler is asked. What happens when a lock is
//! held is the [policy](crate::contract::LockPolicy).
//!
//! **Keys without rows.** A look-up that finds nothing, and an insert, must keep others from inserting the key. They
//! put a *tombstone* into the index, a row in state absent, and lock that. Tombstones that nobody turned into rows are
//! unlinked when the batch is over and nobody runs. A removal leaves a tombstone too.
//!
//! **Scans.** A table has a lock of its own for two groups: scans, and transactions that insert or remove. A scan also
//! locks the rows that it reads.
//!
//! **Interleaving.** A worker keeps several transactions in flight (`worker.rs`); a RET prefetches the bucket, then the
//! row, and only then locks, so that misses of different transactions overlap and locks are held for as short as
//! possible.
//!
//! Serial order: ascending stamp ([`lockwork_locking::word`]).

mod host;
mod worker;

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use lockwork_procedure::block::Batch;

use crate::blocks::Blocks;
use crate::contract::{BatchReport, Options, SerialOrder};
use crate::host_engine::{Core, Scheme};
use crate::interleaved::{BlockSupply, settle};
use crate::team::Team;
use worker::{Shared, Worker};

/// A table's group lock, on cache lines of its own.
#[repr(align(128))]
#[derive(Debug, Default)]
struct TableLock(AtomicU64);

/// See the module.
#[derive(Debug)]
pub struct TwoPhase {
    options: Options,
    workers: Vec<Mutex<Worker>>,
    tables: Vec<TableLock>,
}

impl TwoPhase {
    /// An engine with these options.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let workers = (0..options.threads).map(|_| Mutex::default()).collect();
        Self { options, workers, tables: Vec::new() }
    }
}

impl Scheme for TwoPhase {
    const NAME: &'static str = "two-phase";
    const ORDER: SerialOrder = SerialOrder::Stamp;

    fn run(&mut self, core: &Core, team: &Team, batch: &mut Batch) -> BatchReport {
        self.tables.resize_with(core.database.len(), TableLock::default);
        let shared = Shared {
            core,
            options: &self.options,
            tables: &self.tables,
            supply: BlockSupply::new(Blocks::of(core, batch)),
        };
        let workers = &self.workers;
        team.run(&|number| workers[number].lock().expect("no worker panicked").run(&shared));
        let workers = self.workers.iter_mut().map(|worker| worker.get_mut().expect("no worker panicked"));
        // SAFETY: the batch is over, so no transaction runs.
        unsafe { settle(workers.map(|worker| (&mut worker.tombstones, &mut worker.tally))) }
    }
}
