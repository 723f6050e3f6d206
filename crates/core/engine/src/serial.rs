//! The serial engine: one transaction after the other, in batch order.
//!
//! It has no concurrency control that could be wrong, so it is the oracle that every other engine is compared with, and
//! the yardstick for what concurrency control costs.

use lockwork_procedure::block::Batch;

use crate::blocks::Blocks;
use crate::contract::{BatchReport, SerialOrder};
use crate::exclusive::Executor;
use crate::host_engine::{Core, Scheme};
use crate::team::Team;

/// See the module.
#[derive(Debug, Default)]
pub struct Serial {
    executor: Executor,
}

impl Scheme for Serial {
    const NAME: &'static str = "serial";
    const ORDER: SerialOrder = SerialOrder::Batch;

    fn run(&mut self, core: &Core, _: &Team, batch: &mut Batch) -> BatchReport {
        self.executor.prepare(&core.registry);
        let blocks = Blocks::of(core, batch);
        for index in 0..blocks.len {
            // SAFETY: this thread has the batch and the database for itself.
            unsafe {
                if let Some(registered) = blocks.admit(core, index, &mut self.executor.tally) {
                    // By its program, never the short way, which is compared with this one.
                    self.executor.execute(registered, blocks.at(index), blocks.sequence(index), &[]);
                }
            }
        }
        BatchReport { tally: std::mem::take(&mut self.executor.tally), ..BatchReport::default() }
    }
}
