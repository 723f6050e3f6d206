//! The plan of a batch for `opencl-deterministic`: waves of chains that do not conflict.
//!
//! The host computes every transaction's keys from its arguments and asks the batch lock manager
//! (`lockwork_locking::batch`) which transactions may run side by side. A record's number there is that of its bucket in
//! the device's index, so two transactions of one wave change neither the same row nor the same bucket, and the index
//! needs no synchronisation. Where two keys share a bucket, their transactions are chained for nothing; there are about
//! as many buckets as half the rows.
//!
//! A chain holds the operations of hot keys in batch order and is run by one work-item. What conflicts with several
//! chains goes to the next wave of the same batch. A dependent transaction, whose keys only the database knows, takes
//! everything: in its batch all others hold the record [`Planner::everything`] with intent.

use lockwork_engine::registry::{Registered, Registry};
use lockwork_locking::LockMode;
use lockwork_locking::batch::{Access, BatchConfig, BatchLocks, CHAIN_LIMIT, FlatSets, NO_POSITION, Plan as Grants};
use lockwork_procedure::access::{AccessSet, KeyAccess, Operation};
use lockwork_procedure::block::Batch;
use lockwork_procedure::isa::Opcode;

use lockwork_engine::EngineError;

use crate::heap::Descriptor;
use crate::translate::table_modes;

/// What a planner knows of a procedure.
#[derive(Debug)]
pub(crate) struct Habits {
    /// The records of whole tables that it takes.
    whole: Vec<Access>,
    /// How many rows a call may insert, by table.
    pub(crate) inserts: Vec<(u16, u64)>,
    /// It inserts or removes.
    pub(crate) structural: bool,
}

impl Habits {
    fn of(registered: &Registered, registry: &Registry, first_whole: u32) -> Self {
        let whole = table_modes(registered, registry)
            .into_iter()
            .map(|(table, mode)| Access { record: first_whole + u32::from(table), mode })
            .collect();
        let verified = &registered.verified;
        let code = &verified.procedure().code;
        let mut inserts: Vec<(u16, u64)> = Vec::new();
        for (at, instruction) in code.iter().enumerate().filter(|(_, i)| i.opcode == Opcode::Insert) {
            let around = verified.loops().iter().filter(|found| (found.head..=found.back).contains(&(at as u32)));
            let times = around.fold(1_u64, |times, found| times.saturating_mul(found.bound));
            inserts.push((verified.tables()[usize::from(instruction.d)].id, times));
        }
        let structural = code.iter().any(|i| matches!(i.opcode, Opcode::Insert | Opcode::Remove));
        Self { whole, inserts, structural }
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
    habits: Vec<Habits>,
    /// First record and bucket mask of each table.
    tables: Vec<(u32, u32)>,
    everything: u32,
    has_dependent: bool,
    offsets: Vec<u32>,
    accesses: Vec<Access>,
    keys: Vec<KeyAccess>,
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
        let capacity = capacity.clamp(1, CHAIN_LIMIT as usize) as u32;
        let config = BatchConfig { records: all, capacity, deferred_limit: capacity };
        let locks = BatchLocks::new(config).map_err(|error| EngineError::BackEnd(error.to_string()))?;
        Ok(Self {
            locks,
            habits: registry.all().map(|registered| Habits::of(registered, registry, first_whole)).collect(),
            tables: firsts,
            everything: all - 1,
            has_dependent: registry.all().any(|registered| registered.traits.dependent),
            offsets: Vec::new(),
            accesses: Vec::new(),
            keys: Vec::new(),
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
        let sets = FlatSets::new(&self.offsets, &self.accesses).expect("offsets ascend");
        let mut stream = 0..batch.len() as u32;
        loop {
            let grants = self.locks.fill(&sets, &mut stream).expect("records are below their number");
            if grants.grants.is_empty() {
                debug_assert!(stream.is_empty(), "the first transaction of a wave is granted");
                break;
            }
            plan.add_wave(grants);
        }
        assert_eq!(plan.order.len(), batch.len(), "every block stands in exactly one wave");
    }

    /// The access sets of all blocks. A block that cannot be executed touches nothing.
    fn collect(&mut self, registry: &Registry, batch: &Batch) {
        self.offsets.clear();
        self.accesses.clear();
        let stride = batch.stride();
        let of = |index: usize| {
            let block = batch.block(index);
            let id = block.procedure();
            (id as usize, block, registry.get(id).filter(|registered| registered.block_bytes <= stride))
        };
        let dependent = |index: usize| of(index).2.is_some_and(|registered| registered.traits.dependent);
        let mixed = self.has_dependent && (0..batch.len()).any(dependent);
        self.offsets.push(0);
        for index in 0..batch.len() {
            let (id, block, registered) = of(index);
            if let Some(registered) = registered {
                let known = match &registered.access {
                    AccessSet::Straight(straight) => {
                        let bytes = block.bytes();
                        for access in straight.accesses.iter().filter(|access| access.operation != Operation::Scan) {
                            let table = &registered.verified.tables()[usize::from(access.slot)];
                            let hash = table.key.encode(&bytes[access.key_offset as usize..]).hash();
                            self.accesses.push(record(&self.tables, table.id, hash, access.operation));
                        }
                        true
                    }
                    AccessSet::Sliced(slice) => {
                        self.keys.clear();
                        slice.collect(block.bytes(), &mut self.keys);
                        for access in self.keys.iter().filter(|access| access.operation != Operation::Scan) {
                            let table = &registered.verified.tables()[usize::from(access.slot)];
                            self.accesses.push(record(&self.tables, table.id, access.key.hash(), access.operation));
                        }
                        true
                    }
                    AccessSet::Dependent(_) => false,
                };
                self.accesses.extend_from_slice(&self.habits[id].whole);
                if mixed {
                    let mode = if known { LockMode::IntentExclusive } else { LockMode::Exclusive };
                    self.accesses.push(Access { record: self.everything, mode });
                }
            }
            self.offsets.push(self.accesses.len() as u32);
        }
    }
}

/// How many rows the blocks of a batch may insert, by table, and whether any of them inserts or removes.
pub(crate) fn appetite(habits: &[Habits], tables: usize, batch: &Batch) -> (Vec<u64>, bool) {
    let mut inserts = vec![0_u64; tables];
    if habits.iter().all(|habits| !habits.structural) {
        return (inserts, false);
    }
    let mut structural = false;
    for block in batch.blocks() {
        let Some(habits) = habits.get(block.procedure() as usize) else { continue };
        structural |= habits.structural;
        for &(table, rows) in &habits.inserts {
            let sum = &mut inserts[usize::from(table)];
            *sum = sum.saturating_add(rows);
        }
    }
    (inserts, structural)
}

/// What all procedures do to tables.
pub(crate) fn habits(registry: &Registry) -> Vec<Habits> {
    registry.all().map(|registered| Habits::of(registered, registry, 0)).collect()
}

#[inline(always)]
fn record(tables: &[(u32, u32)], table: u16, hash: u64, operation: Operation) -> Access {
    let (first, mask) = tables[usize::from(table)];
    let mode = if operation.writes() { LockMode::Exclusive } else { LockMode::Shared };
    Access { record: first + (hash as u32 & mask), mode }
}

impl Plan {
    /// Chains of several members are spread among those of one, so that no group of work-items gets only long ones.
    fn add_wave(&mut self, grants: Grants<'_>) {
        let from = self.starts.len() as u32;
        let all = grants.grants;
        let is_head = |at: &u32| all[*at as usize].chain == *at;
        let is_alone = |at: &u32| is_head(at) && all[*at as usize].next == NO_POSITION;
        let positions = 0..all.len() as u32;
        let mut alone = positions.clone().filter(is_alone);
        let long = positions.clone().filter(|at| is_head(at) && !is_alone(at));
        let (singles, chains) = if all.iter().zip(positions.clone()).all(|(grant, at)| grant.chain == at) {
            (all.len(), 0)
        } else {
            (positions.clone().filter(is_alone).count(), long.clone().count())
        };
        let between = singles.checked_div(chains).unwrap_or(0);
        for head in long {
            self.starts.push(self.order.len() as u32);
            self.order.extend(grants.chain(head));
            for single in alone.by_ref().take(between) {
                self.starts.push(self.order.len() as u32);
                self.order.push(all[single as usize].transaction);
            }
        }
        for single in alone {
            self.starts.push(self.order.len() as u32);
            self.order.push(all[single as usize].transaction);
        }
        let units = (singles + chains) as u32;
        self.starts.push(self.order.len() as u32);
        self.waves.push((from, units));
    }
}
