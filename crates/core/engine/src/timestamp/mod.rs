//! The `timestamp` engine: BionicDB's architecture in software (sections 4.5 to 4.7), and the model that the
//! transaction processor is checked against.
//!
//! Tables are partitioned, as their schemas say, and every worker has a partition: the right to judge its rows by the
//! timestamps in their headers (`header.rs`). A DB instruction on a row of another partition travels as a message to
//! the worker that has it (`message.rs`), is run there as a background request (`partition.rs`), and its answer comes
//! back into the CP register that waits for it; rows that are known from the arguments go together, as a bundle
//! (`bundle.rs`). There are no shared locks, and no word that two cores write.
//!
//! **Atomicity.** What a transaction writes is dirty from the grant on. At its end, which nothing can prevent any
//! more, it lets its rows go one after the other; whoever is younger waits for each, whoever is older came too late
//! at each.
//!
//! **Beyond the paper.** There a dirty row rejects everybody, a row may change under its reader, scans miss phantoms,
//! a transaction has its time from its beginning, and an abort goes back to the client. Here the younger wait for the
//! older, rows are pinned while they are read, scans leave their time on ranges (`gaps.rs`, `scan.rs`), a time is
//! taken at the first grant (`clock.rs`), and what conflicted begins again under a new time, [`Options::max_retries`]
//! times at the most. The paper's static two-phase interleaving and none at all are [`crate::Interleave`]s.
//!
//! **Two ways.** Transactions that look rows up by their arguments run in one step when all rows are near
//! (`straight.rs`), others instruction by instruction (`host.rs`).
//!
//! Serial order: ascending stamp, which is the time. Trade-off: each access to another partition, or each bundle, costs
//! a message, its answer and one more in the end, and the wait for them; a transaction on one partition costs no atomic
//! operation at all.

mod bundle;
mod calm;
mod clock;
mod gaps;
mod header;
mod host;
mod message;
mod partition;
mod placement;
mod scan;
mod straight;
mod transaction;
mod worker;

use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use lockwork_memory::prefetch;
use lockwork_procedure::block::Batch;
use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::Catalog;

use crate::blocks::Blocks;
use crate::contract::{BatchReport, EngineError, Options, SerialOrder};
use crate::host_engine::{Core, Scheme};
use crate::interleaved::settle;
use crate::tally::Tally;
use crate::team::{Barrier, Team, share};
use calm::Calm;
use message::Mail;
use placement::Placement;
use worker::{Shared, Worker};

/// Blocks by which the router looks ahead.
const AHEAD: usize = 16;

/// See the module.
#[derive(Debug)]
pub struct Timestamp {
    options: Options,
    workers: Vec<Mutex<Worker>>,
    /// How many workers have rings between them. A batch of fewer leaves the others' empty.
    connected: usize,
    /// Messages that each of those holds.
    ring: usize,
    /// For batches that the caller runs alone, and for those of the team.
    placements: [Placement; 2],
    /// The latest time of any transaction.
    latest: u64,
}

impl Timestamp {
    /// An engine with these options.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let workers = (0..options.threads).map(|_| Mutex::default()).collect();
        let ring = message::capacity(options.threads);
        Self { options, workers, connected: 0, ring, placements: Default::default(), latest: 0 }
    }

    /// Lays rings between so many workers, unless there are.
    fn connect(&mut self, workers: usize) {
        if self.connected < workers {
            for (worker, mail) in self.workers.iter_mut().zip(Mail::all(workers, self.ring)) {
                worker.get_mut().expect("no worker panicked").mail = mail;
            }
            self.connected = workers;
        }
    }
}

impl Scheme for Timestamp {
    const NAME: &'static str = "timestamp";
    const ORDER: SerialOrder = SerialOrder::Stamp;

    fn accepts(procedure: &Procedure, tables: &dyn Catalog) -> Result<(), EngineError> {
        for name in &procedure.tables {
            // A table that there is none of is the verifier's to tell.
            let Some((_, schema)) = tables.table(name) else { continue };
            if schema.partitioning().is_none() {
                let keys: Vec<&str> = schema.key().iter().map(|column| column.name.as_str()).collect();
                let (procedure, table) = (procedure.name.clone(), name.clone());
                return Err(EngineError::NotPartitioned { procedure, table, keys: keys.join(", ") });
            }
        }
        Ok(())
    }

    fn run(&mut self, core: &Core, team: &Team, batch: &mut Batch) -> BatchReport {
        let size = team.size();
        self.connect(size);
        let placement = &mut self.placements[usize::from(size > 1)];
        if !placement.is_of(core, size) {
            *placement = Placement::new(core, size);
        }
        for (number, worker) in self.workers.iter_mut().enumerate().take(size) {
            worker.get_mut().expect("no worker panicked").begin(core, number, size, self.latest);
        }
        let shared = Shared {
            core,
            options: &self.options,
            blocks: Blocks::of(core, batch),
            placement,
            routes: Routes::new(size),
            routed: Barrier::new(size),
            calm: Calm::default(),
            busy: AtomicUsize::new(size),
        };
        let workers = &self.workers;
        team.run(&|number| workers[number].lock().expect("no worker panicked").run(&shared, number));
        let mut ended = Vec::new();
        for worker in self.workers.iter_mut().take(size) {
            let worker = worker.get_mut().expect("no worker panicked");
            self.latest = self.latest.max(worker.clock.latest());
            ended.push((&mut worker.partition.tombstones, &mut worker.executor.tally));
        }
        // SAFETY: the batch is over, so no transaction runs.
        unsafe { settle(ended.into_iter()) }
    }
}

/// Which blocks run where: a list of block numbers from every worker to every worker.
#[derive(Debug)]
struct Routes {
    lists: Vec<Mutex<Vec<u32>>>,
    workers: usize,
}

impl Routes {
    fn new(workers: usize) -> Self {
        Self { lists: (0..workers * workers).map(|_| Mutex::default()).collect(), workers }
    }

    fn put(&self, from: usize, lists: Vec<Vec<u32>>) {
        for (to, list) in lists.into_iter().enumerate() {
            *self.lists[from * self.workers + to].lock().expect("no worker panicked") = list;
        }
    }

    /// Blocks for a worker, in the order of the batch.
    fn take(&self, to: usize) -> Vec<u32> {
        let list = |from: usize| std::mem::take(&mut *self.lists[from * self.workers + to].lock().expect("as above"));
        let mut all = list(0);
        (1..self.workers).for_each(|from| all.append(&mut list(from)));
        all
    }
}

impl Shared<'_> {
    /// Finds the homes of worker `me`'s share of the blocks. Those that cannot be executed are closed as failed.
    fn route(&self, me: usize, tally: &mut Tally) {
        let workers = self.placement.workers();
        let mine = share(&(0..self.blocks.len), me, workers);
        let mut lists: Vec<_> = (0..workers).map(|_| Vec::with_capacity(mine.len() / workers + 1)).collect();
        for index in mine {
            prefetch(self.blocks.at(index + AHEAD));
            // SAFETY: before the barrier a block belongs to the worker whose share it is in.
            unsafe {
                if self.blocks.admit(self.core, index, tally).is_some() {
                    let procedure = self.blocks.procedure(index);
                    let home = self.placement.home(procedure, self.blocks.at(index), index);
                    lists[home].push(index as u32);
                }
            }
        }
        self.routes.put(me, lists);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{check, prepared};
    use crate::contract::{Engine, Interleave};
    use crate::host_engine::HostEngine;
    use header::MAX_TIME;

    fn engine(scheme: Timestamp) -> Result<Box<dyn Engine>, EngineError> {
        let options = scheme.options.clone();
        Ok(Box::new(HostEngine::new(scheme, options)?))
    }

    /// Most messages find their ring full, those of both ways and of scans.
    #[test]
    fn rings_of_one_message_are_enough() {
        let straight = ["look", "transfer", "paint"];
        let all = ["transfer", "paint", "hasty", "follow", "open", "close", "swap", "range", "tally", "sweep"];
        for threads in [2, 4] {
            for interleave in [Interleave::None, Interleave::Batch, Interleave::Dynamic] {
                let options = Options { threads, interleave, ..Options::default() };
                let make = || engine(Timestamp { ring: 1, ..Timestamp::new(options.clone()) });
                check("straight calls", &make, &straight, false, 1);
                check("calls of all kinds", &make, &all, true, 2);
            }
        }
    }

    /// The worker that has the key runs out of times, while the other one has nothing to do.
    #[test]
    fn a_worker_that_panics_ends_the_batch() {
        let options = Options { threads: 2, ..Options::default() };
        for key in 0..6_i64 {
            let mut engine =
                prepared(&|| engine(Timestamp { latest: MAX_TIME - 64, ..Timestamp::new(options.clone()) }), false);
            let id = engine.procedure_id("look").unwrap();
            let mut batch = Batch::new(256, 500).unwrap();
            for _ in 0..500 {
                batch.push(id).unwrap().bytes()[32..40].copy_from_slice(&(key * 2).to_le_bytes());
            }
            engine.submit(batch).unwrap();
            assert!(matches!(engine.complete(), Err(EngineError::Worker(_))));
        }
    }
}
