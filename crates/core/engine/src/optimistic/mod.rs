//! The `optimistic` engine: Silo's protocol (Tu et al., *Speedy Transactions in Multicore In-Memory Databases*, SOSP
//! 2013) on the rows and the executor of this house.
//!
//! A transaction runs without a lock on private copies of the rows that it looks up (`copies.rs`). At its end it locks
//! what it wrote, looks once more at everything that it read, and installs its copies if nothing has changed
//! (`transaction.rs`); else it begins again. Readers write nothing that another core would have to fetch, and what only
//! copies from rows needs no copies of them (`reader.rs`).
//!
//! **Keys without rows.** A look-up that finds nothing puts a *tombstone* into the index, a row in state absent, whose
//! word it validates like any other; so does an insert, which writes the tombstone at commit. Two inserts of one key,
//! or an insert and a look-up that missed it, meet on the tombstone's word. A removal leaves a tombstone. Tombstones
//! that nobody turned into rows are unlinked when the batch is over.
//!
//! **Scans.** A scan goes over all rows of its range, tombstones too, and validates each word. That no key was added in
//! between is told by the number of keys that the table's ordered index was ever given: Silo's node versions, with one
//! node a table. Where that has grown, the scan is gone over once more and must meet the same rows, new tombstones of
//! keys that never existed left out. So an insert elsewhere costs a scan a second pass, not an abort.
//!
//! **Epochs.** Silo's epochs order transactions across cores and tell when memory may be used again. Here a batch is an
//! epoch for memory: what was unlinked goes back when it is over. For order they are too coarse, because every
//! transaction's place is told, also that of a reader before the writer that overwrote what it had read.
//! [`lockwork_locking::tid`] says how TIDs give that order, and proves it.
//!
//! **Interleaving** is as in `two-phase`: a RET prefetches the bucket, then the parts of the row that will be touched
//! (`worker.rs`). The rows are read in the step in which the transaction goes on, so those that issue everything
//! before they wait are not set aside between their first read and their commit.
//!
//! Serial order: ascending stamp. Trade-off: work done in vain under contention, and a copy of whatever is read; the
//! copies are what makes it safe to read a row that another core installs at that moment.

mod copies;
mod host;
mod reader;
mod transaction;
mod worker;

use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use lockwork_locking::tid::Tids;
use lockwork_procedure::block::Batch;

use crate::blocks::Blocks;
use crate::contract::{BatchReport, Options, SerialOrder};
use crate::host_engine::{Core, Scheme};
use crate::interleaved::{BlockSupply, settle};
use crate::team::Team;
use worker::{Shared, Worker};

/// See the module.
#[derive(Debug)]
pub struct Optimistic {
    options: Options,
    workers: Vec<Mutex<Worker>>,
    tids: Tids,
}

impl Optimistic {
    /// An engine with these options.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let workers = (0..options.threads).map(|_| Mutex::default()).collect();
        Self { options, workers, tids: Tids::default() }
    }
}

impl Scheme for Optimistic {
    const NAME: &'static str = "optimistic";
    const ORDER: SerialOrder = SerialOrder::Stamp;

    fn run(&mut self, core: &Core, team: &Team, batch: &mut Batch) -> BatchReport {
        let shared = Shared {
            core,
            options: &self.options,
            tids: &self.tids,
            supply: BlockSupply::new(Blocks::of(core, batch)),
            gate: AtomicUsize::new(0),
        };
        let workers = &self.workers;
        team.run(&|number| workers[number].lock().expect("no worker panicked").run(&shared, number));
        let workers = self.workers.iter_mut().map(|worker| worker.get_mut().expect("no worker panicked"));
        // SAFETY: the batch is over, so no transaction runs.
        unsafe { settle(workers.map(|worker| (&mut worker.tombstones, &mut worker.tally))) }
    }
}
