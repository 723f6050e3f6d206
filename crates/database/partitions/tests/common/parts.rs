//! Divided engines of one process as one engine, so that what every engine passes can be tried on them.

use std::net::TcpListener;
use std::sync::Arc;

use lockwork_engine::registry::Registered;
use lockwork_engine::{Calls, Completed, Divided, Engine, EngineError, Place, Refused, SerialOrder};
use lockwork_memory::Pages;
use lockwork_partitions::divided::{DividedEngine, DividedOptions, KEPT_BYTES};
use lockwork_procedure::block::{Batch, Status};
use lockwork_procedure::partitioning::Partitioning;
use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::{Catalog, TableSchema};
use lockwork_storage::Database;

/// Where the engines of so many parts listen.
pub(crate) fn listeners(parts: usize) -> (Vec<TcpListener>, Vec<String>) {
    let listeners: Vec<_> = (0..parts).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addresses = listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect();
    (listeners, addresses)
}

pub(crate) fn part(number: usize, listener: &TcpListener, addresses: &[String], kept_bytes: usize) -> DividedEngine {
    DividedEngine::new(DividedOptions {
        part: number as u16,
        addresses: addresses.to_vec(),
        listener: listener.try_clone().unwrap(),
        cluster: [3; 16],
        secret: b"secret".to_vec(),
        kept_bytes,
        pages: Pages::Plain,
    })
    .unwrap()
}

/// Where the calls of a batch stand that a part has to be given; `home` is to have all of them.
pub(crate) fn offsets(part: &mut DividedEngine, batch: &Batch, place: Place) -> Vec<u32> {
    let mut offsets = Vec::new();
    for (at, block) in batch.blocks().enumerate() {
        let (procedure, stamp) = (block.procedure(), place.stamp + at as u64);
        let end = part.procedure(procedure).map(|known| known.verified.procedure().layout().arguments_end as usize);
        let arguments = block.bytes().get(32..end.unwrap_or(32)).unwrap_or_default();
        let mut chosen = Vec::new();
        // One that cannot be called has no arguments, and is everybody's.
        if end.is_some_and(|end| end <= batch.stride()) {
            part.choose(&Calls { procedure, stamp, count: 1, arguments }, &mut chosen);
        } else {
            chosen.push(0);
        }
        if !chosen.is_empty() || batch.request(at).is_some() || part.part().0 == place.home {
            offsets.push(at as u32);
        }
    }
    offsets
}

/// These calls of a batch.
pub(crate) fn some(batch: &Batch, offsets: &[u32]) -> Batch {
    let mut some = Batch::new(batch.stride() as u32, offsets.len()).unwrap();
    for &offset in offsets {
        let block = batch.block(offset as usize);
        some.push(block.procedure()).unwrap().bytes().copy_from_slice(block.bytes());
        if let Some(request) = batch.request(offset as usize) {
            some.set_request(some.len() - 1, request);
        }
    }
    some
}

/// See the module. Whose turn it is to be home goes round with the batches. Every part is given what it chooses.
pub(crate) struct Parts {
    parts: Vec<DividedEngine>,
    next: u64,
    /// Of each batch: its home, and what each part was given.
    given: std::collections::VecDeque<(usize, Vec<Vec<u32>>)>,
    submitted: usize,
}

impl Parts {
    pub(crate) fn new(parts: usize) -> Self {
        let (listeners, addresses) = listeners(parts);
        let each = |(number, listener)| part(number, listener, &addresses, KEPT_BYTES);
        let parts = listeners.iter().enumerate().map(each).collect();
        Self { parts, next: 1, given: Default::default(), submitted: 0 }
    }
}

impl Engine for Parts {
    fn name(&self) -> &'static str {
        "divided"
    }

    fn serial_order(&self) -> SerialOrder {
        SerialOrder::Batch
    }

    fn create_table(&mut self, schema: TableSchema, rows: usize) -> Result<u16, EngineError> {
        let mut ids = Vec::new();
        for part in &mut self.parts {
            ids.push(part.create_table(schema.clone(), rows)?);
        }
        assert!(ids.iter().all(|id| *id == ids[0]));
        Ok(ids[0])
    }

    fn register(&mut self, procedure: Procedure) -> Result<u32, EngineError> {
        let mut ids = Vec::new();
        for part in &mut self.parts {
            ids.push(part.register(procedure.clone())?);
        }
        Ok(ids[0])
    }

    fn replace(&mut self, id: u32, procedure: Procedure) -> Result<(), EngineError> {
        self.parts.iter_mut().try_for_each(|part| part.replace(id, procedure.clone()))
    }

    fn accepts(&self, procedure: &Procedure, tables: &dyn Catalog, old: Option<u32>) -> Result<(), EngineError> {
        self.parts[0].accepts(procedure, tables, old)
    }

    fn procedure(&self, id: u32) -> Option<Arc<Registered>> {
        self.parts[0].procedure(id)
    }

    fn procedure_id(&self, name: &str) -> Option<u32> {
        self.parts[0].procedure_id(name)
    }

    /// A copy of all rows together.
    fn with_database(&self, read: &mut dyn FnMut(&Database)) -> Result<(), EngineError> {
        let mut whole = Database::new(Pages::Plain);
        for (number, part) in self.parts.iter().enumerate() {
            part.with_database(&mut |database| {
                for id in 0..database.len() as u16 {
                    let schema = database.table(id).schema();
                    if number == 0 {
                        whole.create_table(schema.clone(), 64).unwrap();
                    }
                    // Replicated tables are everywhere.
                    if number > 0 && schema.partitioning() == Some(Partitioning::Replicated) {
                        continue;
                    }
                    database.table(id).for_each(|row| {
                        // SAFETY: nothing runs.
                        whole.load(schema.name(), unsafe { database.table(id).row_image(row) }).unwrap();
                    });
                }
            })?;
        }
        read(&whole);
        Ok(())
    }

    fn submit(&mut self, batch: Batch) -> Result<(), Box<Refused>> {
        let home = self.submitted % self.parts.len();
        self.submitted += 1;
        let place = Place { stamp: self.next, home: home as u16 };
        // Stamps may have gaps.
        self.next += batch.len() as u64 + 5;
        let mut given = Vec::new();
        for part in &mut self.parts {
            if self.submitted == 1 {
                // The first batch may be none of its business, and yet it has to hear of what is said from there on.
                part.begin(place.stamp).unwrap();
            }
            let offsets = offsets(part, &batch, place);
            if !offsets.is_empty() {
                part.submit_some(some(&batch, &offsets), offsets.clone(), place)?;
            }
            given.push(offsets);
        }
        self.given.push_back((home, given));
        Ok(())
    }

    fn complete(&mut self) -> Result<Option<Completed>, EngineError> {
        let Some((home, given)) = self.given.pop_front() else { return Ok(None) };
        let (mut all, mut whole): (Vec<(Batch, Vec<u32>)>, _) = (Vec::new(), None);
        for (number, (part, offsets)) in self.parts.iter_mut().zip(given).enumerate() {
            if number == home {
                whole = part.complete()?;
            } else if !offsets.is_empty() {
                all.push((part.complete()?.unwrap().batch, offsets));
            }
        }
        // Whoever knows what became of a call says the same as its home.
        let whole = whole.unwrap();
        for (other, offsets) in &all {
            for (there, offset) in other.blocks().zip(offsets) {
                let here = whole.batch.block(*offset as usize);
                if there.status() != Some(Status::Pending) {
                    assert_eq!((there.status(), there.abort_code()), (here.status(), here.abort_code()));
                    assert_eq!(there.serial(), here.serial(), "a call's number is the same for all");
                } else {
                    assert_eq!(
                        whole.batch.request(*offset as usize),
                        None,
                        "what has a request id is known everywhere"
                    );
                }
            }
        }
        assert!(whole.batch.blocks().all(|block| block.status() != Some(Status::Pending)));
        Ok(Some(whole))
    }

    fn in_flight(&self) -> usize {
        self.given.len()
    }

    fn load(&mut self, table: &str, image: &[u8]) -> Result<(), EngineError> {
        self.parts.iter_mut().try_for_each(|part| part.load(table, image))
    }
}
