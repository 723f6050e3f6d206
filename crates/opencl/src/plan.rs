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

use lockwork_engine::registry::{Registered, Registry};
use lockwork_locking::LockMode;
use lockwork_locking::batch::{
    Access, BatchConfig, BatchLocks, CHAIN_LIMIT, FlatSets, NO_POSITION, Plan as Grants, SingleSets,
};
use lockwork_procedure::access::{AccessSet, KeyAccess, Operation};
use lockwork_procedure::block::Batch;
use lockwork_procedure::isa::Opcode;
use lockwork_procedure::key::mix;

use lockwork_engine::EngineError;

use lockwork_memory::prefetch;

use crate::heap::Descriptor;
use crate::translate::{table_modes, times};

/// The most transactions of one wave.
pub(crate) const MOST_PLANNED: usize = CHAIN_LIMIT as usize;
/// How many blocks ahead the planner fetches.
const AHEAD: usize = 8;

/// What a planner knows of a procedure.
#[derive(Debug)]
pub(crate) struct Habits {
    /// Bytes of its block.
    block_bytes: usize,
    /// Its records, if all its keys are single integers in the arguments.
    simple: Option<Vec<SimpleKey>>,
    /// The records of whole tables that it takes.
    whole: Vec<Access>,
    /// Its INSERT instructions: the table, and how often each can run in a call.
    pub(crate) inserts: Vec<(u16, u64)>,
    /// It inserts or removes.
    pub(crate) structural: bool,
}

/// A key that is one integer at a fixed place in the block.
#[derive(Clone, Copy, Debug)]
struct SimpleKey {
    offset: u32,
    first: u32,
    mask: u32,
    mode: LockMode,
}

impl SimpleKey {
    /// The record of the key in this block.
    #[inline(always)]
    fn record(&self, block: &[u8]) -> Access {
        let at = self.offset as usize;
        let word = u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"));
        // The normal form and hash of `lockwork_procedure::key`, for a key of one integer.
        let hash = mix(word ^ (1 << 63));
        Access { record: self.first + (hash as u32 & self.mask), mode: self.mode }
    }
}

impl Habits {
    fn of(registered: &Registered, registry: &Registry, tables: &[(u32, u32)], first_whole: u32) -> Self {
        let whole = table_modes(registered, registry)
            .into_iter()
            .map(|(table, mode)| Access { record: first_whole + u32::from(table), mode })
            .collect();
        let verified = &registered.verified;
        let code = &verified.procedure().code;
        let mut inserts: Vec<(u16, u64)> = Vec::new();
        for (at, instruction) in code.iter().enumerate().filter(|(_, i)| i.opcode == Opcode::Insert) {
            inserts.push((verified.tables()[usize::from(instruction.d)].id, times(verified, at)));
        }
        let simple = match &registered.access {
            AccessSet::Straight(straight) => {
                let known = straight.accesses.iter().filter(|access| access.operation != Operation::Scan);
                let simple = known.map(|access| {
                    let table = &verified.tables()[usize::from(access.slot)];
                    let &(first, mask) = tables.get(usize::from(table.id))?;
                    let key = SimpleKey { offset: access.key_offset, first, mask, mode: mode_of(access.operation) };
                    table.key.is_one_integer().then_some(key)
                });
                simple.collect()
            }
            _ => None,
        };
        let structural = code.iter().any(|i| matches!(i.opcode, Opcode::Insert | Opcode::Remove));
        Self { block_bytes: registered.block_bytes, simple, whole, inserts, structural }
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
        let capacity = capacity.clamp(1, MOST_PLANNED) as u32;
        let config = BatchConfig { records: all, capacity, deferred_limit: capacity };
        let locks = BatchLocks::new(config).map_err(|error| EngineError::BackEnd(error.to_string()))?;
        Ok(Self {
            locks,
            habits: registry.all().map(|registered| Habits::of(registered, registry, &firsts, first_whole)).collect(),
            tables: firsts,
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
        // What stands in a block, if it can be executed.
        let of = |index: usize| {
            let block = batch.block(index);
            let id = block.procedure() as usize;
            (id, block, self.habits.get(id).filter(|habits| habits.block_bytes <= stride))
        };
        let registered = |id: usize| registry.get(id as u32).expect("a procedure with habits is registered");
        let mixed = self.has_dependent
            && (0..batch.len()).map(of).any(|(id, _, habits)| habits.is_some() && registered(id).traits.dependent);
        self.offsets.push(0);
        self.is_single = true;
        for index in 0..batch.len() {
            if index + AHEAD < batch.len() {
                prefetch(batch.block_ptr(index + AHEAD));
            }
            let (id, block, habits) = of(index);
            if let Some(habits) = habits {
                let known = match (&habits.simple, &registered(id).access) {
                    (Some(keys), _) => {
                        self.accesses.extend(keys.iter().map(|key| key.record(block.bytes())));
                        true
                    }
                    (None, AccessSet::Straight(straight)) => {
                        let bytes = block.bytes();
                        for access in straight.accesses.iter().filter(|access| access.operation != Operation::Scan) {
                            let table = &registered(id).verified.tables()[usize::from(access.slot)];
                            let hash = table.key.encode(&bytes[access.key_offset as usize..]).hash();
                            self.accesses.push(record(&self.tables, table.id, hash, access.operation));
                        }
                        true
                    }
                    (None, AccessSet::Sliced(slice)) => {
                        self.keys.clear();
                        slice.collect(block.bytes(), &mut self.keys);
                        for access in self.keys.iter().filter(|access| access.operation != Operation::Scan) {
                            let table = &registered(id).verified.tables()[usize::from(access.slot)];
                            self.accesses.push(record(&self.tables, table.id, access.key.hash(), access.operation));
                        }
                        true
                    }
                    (None, AccessSet::Dependent(_)) => false,
                };
                self.accesses.extend_from_slice(&habits.whole);
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

/// What a batch asks of the memory for rows, by table.
#[derive(Debug, Default)]
pub(crate) struct Appetite {
    /// The most rows that it can insert.
    pub(crate) most: Vec<u64>,
    /// Rows that it inserts if it does not abort before: INSERTs in loops may run less often than they can.
    pub(crate) likely: Vec<u64>,
    /// It inserts or removes.
    pub(crate) structural: bool,
}

impl Appetite {
    /// That of the blocks of a batch.
    pub(crate) fn of(habits: &[Habits], tables: usize, batch: &Batch) -> Self {
        let mut appetite = Self { most: vec![0; tables], likely: vec![0; tables], structural: false };
        if habits.iter().all(|habits| !habits.structural) {
            return appetite;
        }
        for block in batch.blocks() {
            let Some(habits) = habits.get(block.procedure() as usize) else { continue };
            appetite.structural |= habits.structural;
            for &(table, times) in &habits.inserts {
                let at = usize::from(table);
                appetite.most[at] = appetite.most[at].saturating_add(times);
                appetite.likely[at] += 1;
            }
        }
        appetite
    }
}

/// What all procedures do to tables.
pub(crate) fn habits(registry: &Registry) -> Vec<Habits> {
    registry.all().map(|registered| Habits::of(registered, registry, &[], 0)).collect()
}

#[inline(always)]
fn record(tables: &[(u32, u32)], table: u16, hash: u64, operation: Operation) -> Access {
    let (first, mask) = tables[usize::from(table)];
    Access { record: first + (hash as u32 & mask), mode: mode_of(operation) }
}

const fn mode_of(operation: Operation) -> LockMode {
    if operation.writes() { LockMode::Exclusive } else { LockMode::Shared }
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
