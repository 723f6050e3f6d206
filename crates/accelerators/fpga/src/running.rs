//! Tables and procedures on a card, ready for batches.

use lockwork_engine::EngineError;
use lockwork_engine::registry::Registry;
use lockwork_procedure::block::{Batch, Status, abort};
use lockwork_storage::Database;

use crate::catalogue::{Catalogue, rows_writes, shapes, table_writes};
use crate::demands::Demands;
use crate::driver::Driver;
use crate::flight::{Call, Slots, Taken};
use crate::homes::Homes;
use crate::layout::{Placed, Shape, Spread};
use crate::memory_map::MemoryMap;
use crate::tables;
use crate::views::Views;

/// The fewest rows that a worker of a table is given room for.
const MIN_ROOM: u64 = 16;
/// How often blocks that found no room are tried again, each time with more.
const MAX_ROUNDS: u32 = 4;

/// See the module.
pub(crate) struct Running {
    placed: Vec<Placed>,
    map: MemoryMap,
    slots: Slots,
    homes: Homes,
}

/// How many rows each table may be asked for.
pub(crate) fn appetite(demands: &[Demands], tables: usize, blocks: impl Iterator<Item = u32>) -> Vec<u64> {
    let mut most = vec![0_u64; tables];
    for procedure in blocks {
        for &(table, times) in demands.get(procedure as usize).iter().flat_map(|demands| &demands.inserts) {
            let most = &mut most[usize::from(table)];
            *most = most.saturating_add(times);
        }
    }
    most
}

impl Running {
    /// Puts everything on the card, with room for `extra` rows more on each worker of a table than is usual.
    pub(crate) fn new(
        driver: &mut Driver,
        database: &Database,
        registry: &Registry,
        catalogue: &Catalogue,
        hints: &[usize],
        extra: &[u64],
    ) -> Result<Self, EngineError> {
        let card = *driver.capabilities();
        let shapes = shapes(database, registry, hints, &card)?;
        let undo_bytes = catalogue.demands.iter().map(|demands| demands.undo_bytes).max().unwrap_or(0);
        let mut map = driver.begin(undo_bytes)?;
        let block_bytes = registry.all().map(|registered| registered.block_bytes).max().unwrap_or(64);
        let slots = Slots::new(&mut map, block_bytes as u64)?;
        let procedures = || registry.all().map(|registered| &registered.verified);
        let divisible = |shape: &Shape| shape.levels == 0 && shape.spread != Spread::Replicated;
        let views = Views::of(procedures(), &shapes.iter().map(divisible).collect::<Vec<_>>(), card.tables);
        let mut writes = catalogue.writes(procedures(), &views);
        let mut placed = Vec::new();
        for (number, shape) in shapes.into_iter().enumerate() {
            let table = database.table(number as u16);
            let announced = (hints[number] as u64).saturating_sub(table.len());
            let spare = announced.max(table.len() / 4) / card.workers as u64;
            let room = match shape.spread {
                Spread::Replicated => 0,
                _ => spare.max(MIN_ROOM).max(extra.get(number).copied().unwrap_or(0)),
            };
            let table_placed = Placed::load(shape, table, room, card.workers, &mut map, &mut *driver.card)?;
            writes.extend(table_writes(number, true, &table_placed, table.schema(), card.workers));
            for (worker, free) in table_placed.free.iter().enumerate() {
                writes.extend(rows_writes(number, worker, *free));
            }
            placed.push(table_placed);
        }
        for (number, view) in (placed.len()..).zip(&views.views) {
            let schema = database.table(view.table).schema();
            let of = &placed[usize::from(view.table)];
            writes.extend(table_writes(number, view.judged, of, schema, card.workers));
        }
        driver.configure(&writes)?;
        let homes = Homes::new(registry, &placed, card.workers);
        Ok(Self { placed, map, slots, homes })
    }

    /// Brings the mirror up to date.
    pub(crate) fn download(&self, driver: &mut Driver, database: &Database) -> Result<(), EngineError> {
        let workers = driver.capabilities().workers;
        tables::download(&self.placed, workers, database, &mut *driver.card)
    }

    /// Makes sure that so many rows can be inserted into each table, wherever they go. Nothing runs.
    ///
    /// # Errors
    /// When the card has no more memory: some of the room may have been made.
    pub(crate) fn make_room(&mut self, driver: &mut Driver, most: &[u64]) -> Result<(), EngineError> {
        let mut writes = Vec::new();
        let mut made = Ok(());
        for (number, placed) in self.placed.iter_mut().enumerate().filter(|(number, _)| most[*number] > 0) {
            for worker in 0..placed.free.len() {
                if !placed.shape.may_own(worker) || placed.free[worker].rows(placed.shape.stride) >= most[number] {
                    continue;
                }
                placed.recount(worker, &mut *driver.card)?;
                if placed.free[worker].rows(placed.shape.stride) >= most[number] {
                    continue;
                }
                // What is asked for once is asked for again.
                let rows = most[number].saturating_mul(2).max(placed.places / 8);
                let mut extended = placed.extend(worker, rows, &mut self.map, &mut *driver.card);
                if extended.is_err() {
                    extended = placed.extend(worker, most[number], &mut self.map, &mut *driver.card);
                }
                match extended {
                    Ok(free) => writes.extend(rows_writes(number, worker, free)),
                    Err(error) => made = Err(error),
                }
            }
        }
        driver.configure(&writes)?;
        made
    }

    /// Notes that so many rows may have been inserted.
    fn spend(&mut self, most: &[u64]) {
        for (placed, &most) in self.placed.iter_mut().zip(most) {
            let stride = placed.shape.stride;
            for free in &mut placed.free {
                free.next += most.min(free.rows(stride)) * stride;
            }
        }
    }

    /// Runs blocks of a batch; those for which there was no room, or that met too many conflicts, again. `tries`: how
    /// often a block may come back with too many conflicts.
    pub(crate) fn run(
        &mut self,
        driver: &mut Driver,
        registry: &Registry,
        catalogue: &Catalogue,
        batch: &mut Batch,
        tries: u32,
    ) -> Result<Taken, EngineError> {
        let mut calls: Vec<Call> = Vec::with_capacity(batch.len());
        for index in 0..batch.len() {
            let procedure = batch.block(index).procedure();
            let refused = match registry.get(procedure) {
                None => abort::UNKNOWN_PROCEDURE,
                Some(registered) if registered.block_bytes > batch.stride() => abort::BLOCK_TOO_SHORT,
                Some(registered) => {
                    let bytes = registered.block_bytes.next_multiple_of(8);
                    let home = self.homes.home(procedure, batch.block(index).bytes(), index);
                    calls.push(Call { index, bytes, home });
                    continue;
                }
            };
            batch.block_mut(index).set_outcome(Status::Failed, refused);
            batch.block_mut(index).set_serial(0);
        }
        let mut taken = Taken::default();
        let (mut conflict_rounds, mut room_rounds) = (1, 1);
        while !calls.is_empty() {
            for call in &calls {
                batch.block_mut(call.index).set_outcome(Status::Pending, 0);
            }
            let procedures = calls.iter().map(|call| batch.block(call.index).procedure());
            let most = appetite(&catalogue.demands, self.placed.len(), procedures);
            // A row that finds no room fails alone.
            let room = self.make_room(driver, &most);
            let round = driver.run(batch, &calls, self.slots)?;
            taken.cycles += round.cycles;
            taken.conflicts += round.conflicts;
            self.spend(&most);
            let code = |call: &Call| {
                let block = batch.block(call.index);
                (block.status() == Some(Status::Failed)).then(|| block.abort_code())
            };
            let again = |wanted: u16| calls.iter().any(|call| code(call) == Some(wanted));
            let conflicts = again(abort::TOO_MANY_RETRIES) && conflict_rounds < tries;
            let full = again(abort::OUT_OF_MEMORY) && room_rounds < MAX_ROUNDS && room.is_ok();
            conflict_rounds += u32::from(conflicts);
            room_rounds += u32::from(full);
            let wanted = |call: &Call| match code(call) {
                Some(abort::TOO_MANY_RETRIES) => conflicts,
                Some(abort::OUT_OF_MEMORY) => full,
                _ => false,
            };
            calls = calls.iter().copied().filter(wanted).collect();
        }
        Ok(taken)
    }

    /// Whether the card has no memory for the rows that a batch may insert.
    pub(crate) fn is_full(&mut self, driver: &mut Driver, most: &[u64]) -> bool {
        self.make_room(driver, most).is_err()
    }
}
