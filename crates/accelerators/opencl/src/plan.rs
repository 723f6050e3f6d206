//! The plan of a batch for `opencl-deterministic`: waves of chains that do not conflict.
//!
//! The host computes every transaction's keys from its arguments and asks the batch lock manager
//! (`lockwork_locking::batch`) which transactions may run side by side. A record's number there is that of its bucket
//! in the device's index, so two transactions of one wave change neither the same row nor the same bucket, and the
//! index needs no synchronisation. Where two keys share a bucket, their transactions are chained for nothing; there
//! are about as many buckets as half the rows.
//!
//! A chain holds the operations of hot keys in batch order and is run by one work-item. What conflicts with several
//! chains goes to the next wave of the same batch. A dependent transaction, whose keys only the database knows, takes
//! everything: in its batch all others hold the record [`Planner::everything`] with intent.

use lockwork_engine::EngineError;
use lockwork_engine::registry::{Registered, Registry};
use lockwork_locking::LockMode;
use lockwork_locking::batch::{
    Access, BatchConfig, BatchLocks, CHAIN_LIMIT, FlatSets, NO_POSITION, Plan as Grants, SingleSets,
};
use lockwork_memory::prefetch;
use lockwork_procedure::access::{KeyAccess, Operation};
use lockwork_procedure::block::{Batch, Block};

use crate::heap::Descriptor;
use crate::translate::table_modes;

/// The most transactions of one wave.
pub(crate) const MAX_PLANNED: usize = CHAIN_LIMIT as usize;
/// How many blocks ahead the planner fetches.
const AHEAD: usize = 8;

/// Where a planner finds the records of a procedure.
#[derive(Debug)]
struct Records {
    /// First record and bucket mask of each of its tables, by slot.
    tables: Vec<(u32, u32)>,
    /// The records of whole tables that it takes.
    whole: Vec<Access>,
}

impl Records {
    /// Those of a procedure, given the same of all tables, and the record of the first table as a whole.
    fn of(registered: &Registered, registry: &Registry, tables: &[(u32, u32)], first_whole: u32) -> Self {
        let whole = |(table, mode)| Access { record: first_whole + u32::from(table), mode };
        Self {
            tables: registered.verified.tables().iter().map(|table| tables[usize::from(table.id)]).collect(),
            whole: table_modes(registered, registry).into_iter().map(whole).collect(),
        }
    }
}

/// Waves of chains; see the module.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Blocks, by index: chain after chain.
    pub(crate) order: Vec<u32>,
    /// For each wave, where each of its chains begins in `order`, and where the last one ends.
    pub(crate) starts: Vec<u32>,
    /// For each wave, where it begins in `starts`, and its number of chains.
    pub(crate) waves: Vec<(u32, u32)>,
}

/// See the module.
pub(crate) struct Planner {
    locks: BatchLocks,
    /// By procedure.
    records: Vec<Records>,
    everything: u32,
    has_dependent: bool,
    offsets: Vec<u32>,
    accesses: Vec<Access>,
    keys: Vec<KeyAccess>,
    long: Vec<u32>,
    /// Every block of the batch has exactly one access.
    is_single: bool,
}

impl Planner {
    /// A planner for batches of up to `capacity` blocks.
    pub(crate) fn new(registry: &Registry, tables: &[Descriptor], capacity: usize) -> Result<Self, EngineError> {
        let mut records = 0_u64;
        let mut firsts = Vec::with_capacity(tables.len());
        for table in tables {
            firsts.push((records as u32, table.mask));
            records += u64::from(table.mask) + 1;
        }
        let first_whole = records as u32;
        records += tables.len() as u64 + 1;
        let all = u32::try_from(records).map_err(|_| {
            EngineError::BackEnd(format!("{records} index buckets are more than the planner numbers; use fewer rows"))
        })?;
        let capacity = capacity.clamp(1, MAX_PLANNED) as u32;
        let config = BatchConfig { records: all, capacity, deferred_limit: capacity };
        let locks = BatchLocks::new(config).map_err(|error| EngineError::BackEnd(error.to_string()))?;
        Ok(Self {
            locks,
            records: registry.all().map(|registered| Records::of(registered, registry, &firsts, first_whole)).collect(),
            everything: all - 1,
            has_dependent: registry.all().any(|registered| registered.traits.dependent),
            offsets: Vec::new(),
            accesses: Vec::new(),
            keys: Vec::new(),
            long: Vec::new(),
            is_single: false,
        })
    }

    /// The most blocks of a batch.
    pub(crate) fn capacity(&self) -> usize {
        self.locks.config().capacity as usize
    }

    /// Plans a batch of at most [`Self::capacity`] blocks.
    pub(crate) fn plan(&mut self, registry: &Registry, batch: &Batch, plan: &mut Plan) {
        self.collect(registry, batch);
        plan.order.clear();
        plan.starts.clear();
        plan.waves.clear();
        let flat = FlatSets::new(&self.offsets, &self.accesses).expect("offsets ascend");
        let single = self.is_single.then_some(SingleSets(&self.accesses));
        let mut stream = 0..batch.len() as u32;
        loop {
            let grants = match &single {
                Some(single) => self.locks.fill(single, &mut stream),
                None => self.locks.fill(&flat, &mut stream),
            };
            let grants = grants.expect("records are below their number");
            if grants.grants.is_empty() {
                debug_assert!(stream.is_empty(), "the first transaction of a wave is granted");
                break;
            }
            plan.add_wave(grants, &mut self.long);
        }
        assert_eq!(plan.order.len(), batch.len(), "every block stands in exactly one wave");
    }

    /// The access sets of all blocks. A block that cannot be executed touches nothing.
    fn collect(&mut self, registry: &Registry, batch: &Batch) {
        self.offsets.clear();
        self.accesses.clear();
        let stride = batch.stride();
        // The procedure of a block, if the block can be executed.
        let registered_of =
            |block: Block<'_>| registry.get(block.procedure()).filter(|registered| registered.block_bytes <= stride);
        let mixed = self.has_dependent
            && batch.blocks().filter_map(registered_of).any(|registered| registered.traits.dependent);
        self.offsets.push(0);
        self.is_single = true;
        for index in 0..batch.len() {
            if index + AHEAD < batch.len() {
                prefetch(batch.block_ptr(index + AHEAD));
            }
            let block = batch.block(index);
            if let Some(registered) = registered_of(block) {
                let records = &self.records[block.procedure() as usize];
                let take = |operation: Operation, slot, hash| {
                    if operation != Operation::Scan {
                        let (first, mask) = records.tables[usize::from(slot)];
                        let mode = if operation.writes() { LockMode::Exclusive } else { LockMode::Shared };
                        self.accesses.push(Access { record: first + (hash as u32 & mask), mode });
                    }
                };
                // SAFETY: the block is as long as its procedure wants it.
                let known = unsafe { registered.accesses(block.bytes().as_ptr(), &mut self.keys, take) };
                self.accesses.extend_from_slice(&records.whole);
                if mixed {
                    let mode = if known { LockMode::IntentExclusive } else { LockMode::Exclusive };
                    self.accesses.push(Access { record: self.everything, mode });
                }
            }
            self.offsets.push(self.accesses.len() as u32);
            self.is_single &= self.accesses.len() == index + 1;
        }
    }
}

impl Plan {
    /// Chains of several members are spread among those of one, so that no group of work-items gets only long ones.
    fn add_wave(&mut self, grants: Grants<'_>, long: &mut Vec<u32>) {
        let from = self.starts.len() as u32;
        let first = self.order.len() as u32;
        let all = grants.grants;
        long.clear();
        let mut heads = 0;
        for (at, grant) in (0_u32..).zip(all) {
            let is_head = grant.chain == at;
            heads += u32::from(is_head);
            if is_head && grant.next != NO_POSITION {
                long.push(at);
            }
        }
        if long.is_empty() {
            self.order.extend(all.iter().map(|grant| grant.transaction));
            self.starts.extend(first..=first + heads);
            self.waves.push((from, heads));
            return;
        }
        let between = (heads as usize - long.len()) / long.len();
        let mut chains = long.iter();
        let mut singles = 0;
        let mut chain = |plan: &mut Self| {
            if let Some(&head) = chains.next() {
                plan.starts.push(plan.order.len() as u32);
                plan.order.extend(grants.chain(head));
            }
        };
        chain(self);
        for (at, grant) in (0_u32..).zip(all) {
            if grant.chain == at && grant.next == NO_POSITION {
                self.starts.push(self.order.len() as u32);
                self.order.push(grant.transaction);
                singles += 1;
                if singles == between {
                    singles = 0;
                    chain(self);
                }
            }
        }
        while self.starts.len() < (from + heads) as usize {
            chain(self);
        }
        self.starts.push(self.order.len() as u32);
        self.waves.push((from, heads));
    }
}
