//! Which worker runs a transaction: the one that has the row of its first DB instruction, so far as that can be told
//! from its arguments; else workers take turns.

use lockwork_engine::registry::{Registered, Registry};

use crate::key_words;
use crate::layout::{Placed, Shape, Spread};

#[derive(Clone, Debug)]
struct Home {
    shape: Shape,
    key_offset: usize,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Homes {
    workers: usize,
    /// By procedure.
    homes: Vec<Option<Home>>,
}

impl Homes {
    /// The homes of calls of these procedures, when these tables are where they are.
    #[must_use]
    pub(crate) fn new(registry: &Registry, placed: &[Placed], workers: usize) -> Self {
        Self { workers, homes: registry.all().map(|registered| home(registered, placed)).collect() }
    }

    /// The worker that runs block `index` of a batch, which calls this procedure.
    #[must_use]
    pub(crate) fn home(&self, procedure: u32, block: &[u8], index: usize) -> usize {
        let Some(Some(Home { shape, key_offset })) = self.homes.get(procedure as usize) else {
            return index % self.workers;
        };
        let image = &block[*key_offset..*key_offset + shape.format.image_bytes()];
        let hash = if shape.spread == Spread::Hash { key_words::hash(&shape.format, shape.words, image) } else { 0 };
        shape.owner(image, hash, self.workers)
    }
}

fn home(registered: &Registered, placed: &[Placed]) -> Option<Home> {
    let procedure = registered.verified.procedure();
    let arguments_end = procedure.layout().arguments_end as usize;
    procedure.code.iter().filter(|i| i.opcode.is_db()).find_map(|i| {
        let shape = &placed[usize::from(registered.table_id(i.d))].shape;
        let key_offset = i.x as usize;
        let fixed = i.c == 0 && key_offset + shape.format.image_bytes() <= arguments_end;
        (fixed && shape.spread != Spread::Replicated).then(|| Home { shape: shape.clone(), key_offset })
    })
}
