//! Divided engines of one process as one engine, so that what every engine passes can be tried on them.

use std::net::TcpListener;
use std::sync::Arc;

use lockwork_engine::registry::Registered;
use lockwork_engine::{Completed, Divided, Engine, EngineError, Place, Refused, SerialOrder};
use lockwork_memory::Pages;
use lockwork_netengine::divided::{DividedEngine, DividedOptions, KEPT_BYTES};
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

/// See the module. Whose turn it is to be home goes round with the batches.
pub(crate) struct Parts {
    parts: Vec<DividedEngine>,
    next: u64,
    homes: std::collections::VecDeque<usize>,
    submitted: usize,
}

impl Parts {
    pub(crate) fn new(parts: usize) -> Self {
        let (listeners, addresses) = listeners(parts);
        let each = |(number, listener)| part(number, listener, &addresses, KEPT_BYTES);
        let parts = listeners.iter().enumerate().map(each).collect();
        Self { parts, next: 1, homes: Default::default(), submitted: 0 }
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

    fn accepts(&self, procedure: &Procedure, tables: &dyn Catalog) -> Result<(), EngineError> {
        self.parts[0].accepts(procedure, tables)
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
        for part in &mut self.parts {
            let mut copy = Batch::new(batch.stride() as u32, batch.len()).unwrap();
            for block in batch.blocks() {
                copy.push(block.procedure()).unwrap().bytes().copy_from_slice(block.bytes());
            }
            part.submit_at(copy, place)?;
        }
        self.homes.push_back(home);
        Ok(())
    }

    fn complete(&mut self) -> Result<Option<Completed>, EngineError> {
        let Some(home) = self.homes.pop_front() else { return Ok(None) };
        let mut all: Vec<Completed> = Vec::new();
        for part in &mut self.parts {
            all.push(part.complete()?.unwrap());
        }
        // Whoever knows what became of a call says the same as its home.
        for other in &all {
            for (there, here) in other.batch.blocks().zip(all[home].batch.blocks()) {
                assert_ne!(here.status(), Some(Status::Pending));
                if there.status() != Some(Status::Pending) {
                    assert_eq!((there.status(), there.abort_code()), (here.status(), here.abort_code()));
                } else {
                    assert_eq!(here.request(), 0, "what has a request id is known everywhere");
                }
            }
        }
        Ok(Some(all.swap_remove(home)))
    }

    fn in_flight(&self) -> usize {
        self.homes.len()
    }

    fn load(&mut self, table: &str, image: &[u8]) -> Result<(), EngineError> {
        self.parts.iter_mut().try_for_each(|part| part.load(table, image))
    }
}
