//! How many rows a batch may add to the tables: there must be room for them before it goes to the device, which cannot
//! ask for more memory while it runs.
//!
//! A block says which procedure it calls, and the procedure how often each of its INSERTs can run at most. That is more
//! than happens where INSERTs stand in loops or behind conditions, so what is *likely* is told as well, for devices
//! whose memory does not allow for the most.

use lockwork_engine::registry::Registered;
use lockwork_procedure::block::Batch;
use lockwork_procedure::isa::Opcode;

use crate::translate::times;

/// How a procedure changes which rows there are.
#[derive(Debug)]
pub(crate) struct InsertBounds {
    /// Its INSERT instructions: the table, and how often each can run in a call.
    inserts: Vec<(u16, u64)>,
    /// It inserts or removes.
    changes_keys: bool,
}

impl InsertBounds {
    /// Those of a procedure.
    pub(crate) fn of(registered: &Registered) -> Self {
        let verified = &registered.verified;
        let code = &verified.procedure().code;
        let inserts = code.iter().enumerate().filter(|(_, i)| i.opcode == Opcode::Insert);
        let inserts = inserts.map(|(at, i)| (verified.tables()[usize::from(i.d)].id, times(verified, at)));
        let changes_keys = code.iter().any(|i| matches!(i.opcode, Opcode::Insert | Opcode::Remove));
        Self { inserts: inserts.collect(), changes_keys }
    }
}

/// What a batch asks of the memory for rows, by table.
#[derive(Debug, Default)]
pub(crate) struct RowDemand {
    /// The most rows that it can insert.
    pub(crate) most: Vec<u64>,
    /// Rows that it inserts if it does not abort before: INSERTs in loops may run less often than they can.
    pub(crate) likely: Vec<u64>,
    /// It inserts or removes.
    pub(crate) changes_keys: bool,
}

impl RowDemand {
    /// That of the blocks of a batch; `habits` by procedure.
    pub(crate) fn of(habits: &[InsertBounds], tables: usize, batch: &Batch) -> Self {
        let mut appetite = Self { most: vec![0; tables], likely: vec![0; tables], changes_keys: false };
        if habits.iter().all(|habits| !habits.changes_keys) {
            return appetite;
        }
        for block in batch.blocks() {
            let Some(habits) = habits.get(block.procedure() as usize) else { continue };
            appetite.changes_keys |= habits.changes_keys;
            for &(table, times) in &habits.inserts {
                let at = usize::from(table);
                appetite.most[at] = appetite.most[at].saturating_add(times);
                appetite.likely[at] += 1;
            }
        }
        appetite
    }
}
