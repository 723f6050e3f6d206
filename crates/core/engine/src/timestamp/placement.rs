//! Which worker's partition a row is in, and which worker a transaction runs on.
//!
//! There are as many partitions as workers in the batch, because a partition is no more than the right to touch headers
//! of rows: nothing moves when their number changes. A small batch that the caller's thread runs alone has one.
//!
//! A transaction runs where the row of its first DB instruction is, so far as that can be told from its arguments; else
//! transactions take turns.

use lockwork_procedure::access::{AccessSet, Operation};
use lockwork_procedure::partitioning::{Partitioner, Partitioning};

use super::transaction::Place;
use crate::host_engine::Core;
use crate::registry::Registered;

/// The most accesses of a procedure that goes the short way: repeated rows of one bundle are found by looking through
/// it.
const MAX_STRAIGHT: usize = 256;

#[derive(Clone, Copy, Debug)]
enum Spread {
    Replicated,
    /// And how long the first column of the key is, if the table is partitioned by it.
    Hashed(Partitioner, Option<usize>),
}

/// The first DB instruction of a procedure that says where it runs.
#[derive(Clone, Copy, Debug)]
struct Home {
    table: u16,
    key_offset: usize,
    key_bytes: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Placement {
    workers: usize,
    /// By table number.
    tables: Vec<Spread>,
    /// By procedure id.
    shapes: Vec<Shape>,
    /// [`crate::registry::Registry::changes`] when they were made.
    changes: u64,
}

impl Placement {
    /// The placement of the tables and procedures of `core` over `workers`.
    pub(super) fn new(core: &Core, workers: usize) -> Self {
        let tables = (0..core.database.len()).map(|id| {
            let schema = core.database.table(id as u16).schema();
            match (schema.partitioning(), Partitioner::new(schema, workers)) {
                (Some(Partitioning::Hash(column)), Some(partitioner)) => {
                    let first = (column == 0).then(|| schema.key()[0].column_type.width() as usize);
                    Spread::Hashed(partitioner, first)
                }
                // Tables that are not declared are not touched either: registration sees to that.
                _ => Spread::Replicated,
            }
        });
        let tables: Vec<Spread> = tables.collect();
        let shapes = core.registry.all().map(|registered| Shape::of(registered, &tables)).collect();
        Self { workers, tables, shapes, changes: core.registry.changes() }
    }

    /// Whether it is the placement of all tables and procedures of `core` over `workers`: tables are only added.
    pub(super) fn is_of(&self, core: &Core, workers: usize) -> bool {
        (self.workers, self.tables.len(), self.changes) == (workers, core.database.len(), core.registry.changes())
    }

    /// How many workers there are.
    #[inline(always)]
    pub(super) fn workers(&self) -> usize {
        self.workers
    }

    /// Whether calls of a procedure look rows up by their arguments and do nothing else to the database.
    #[inline(always)]
    pub(super) fn is_straight(&self, procedure: u32) -> bool {
        self.shapes[procedure as usize].straight
    }

    /// Where the row of a key is, for worker `me`.
    #[inline(always)]
    pub(super) fn place(&self, table: u16, image: &[u8], me: usize) -> Place {
        match &self.tables[usize::from(table)] {
            Spread::Replicated => Place::Everywhere,
            Spread::Hashed(..) if self.workers == 1 => Place::Here,
            Spread::Hashed(partitioner, _) => match partitioner.partition(image) {
                owner if owner == me => Place::Here,
                owner => Place::There(owner),
            },
        }
    }

    /// Whether all keys between these two are in one partition: those whose first column, by which the table is
    /// partitioned, is the same.
    pub(super) fn is_one_partition(&self, table: u16, from: &[u8], to: &[u8]) -> bool {
        match &self.tables[usize::from(table)] {
            Spread::Replicated => true,
            Spread::Hashed(..) if self.workers == 1 => true,
            Spread::Hashed(_, first) => first.is_some_and(|bytes| from[..bytes] == to[..bytes]),
        }
    }

    /// The worker that runs block `index`, which calls this procedure.
    ///
    /// # Safety
    /// `block` is a block of the procedure.
    #[inline(always)]
    pub(super) unsafe fn home(&self, procedure: u32, block: *const u8, index: usize) -> usize {
        let Some(Home { table, key_offset, key_bytes }) = self.shapes[procedure as usize].home else {
            return index % self.workers;
        };
        // SAFETY: the key image lies in the arguments.
        let image = unsafe { std::slice::from_raw_parts(block.add(key_offset), key_bytes) };
        match &self.tables[usize::from(table)] {
            Spread::Hashed(partitioner, _) => partitioner.partition(image),
            Spread::Replicated => index % self.workers,
        }
    }
}

/// What every call of a procedure has in common.
#[derive(Clone, Copy, Debug)]
struct Shape {
    home: Option<Home>,
    straight: bool,
}

impl Shape {
    fn of(registered: &Registered, tables: &[Spread]) -> Self {
        let looks_up = |operation| matches!(operation, Operation::Search | Operation::Update);
        let straight = match &registered.access {
            AccessSet::Straight(straight) => {
                let accesses = &straight.accesses;
                accesses.len() <= MAX_STRAIGHT && accesses.iter().all(|access| looks_up(access.operation))
            }
            _ => false,
        };
        Self { home: home(registered, tables), straight }
    }
}

fn home(registered: &Registered, tables: &[Spread]) -> Option<Home> {
    let procedure = registered.verified.procedure();
    let arguments_end = procedure.layout().arguments_end as usize;
    procedure.code.iter().filter(|i| i.opcode.is_db()).find_map(|i| {
        let table = &registered.verified.tables()[usize::from(i.d)];
        let (key_offset, key_bytes) = (i.x as usize, table.key.image_bytes());
        let fixed = i.c == 0 && key_offset + key_bytes <= arguments_end;
        let spread = matches!(tables[usize::from(table.id)], Spread::Hashed(..));
        (fixed && spread).then_some(Home { table: table.id, key_offset, key_bytes })
    })
}
