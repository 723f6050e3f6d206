//! What the coordinator tells a worker: tables, procedures, rows, calls, and to hand its rows back.

use lockwork_locking::service::LockService;
use lockwork_memory::Pages;
use lockwork_procedure::assembly::decode;
use lockwork_procedure::block::HEADER_BYTES;
use lockwork_storage::Database;

use super::{Call, End, Worker, of_coordinator};
use crate::layout::Layout;
use crate::message::{CALLS, EXPORT, PROCEDURE, READY, ROWS, SETUP, START, TABLE};
use crate::partition;
use crate::wire::{Malformed, Put, Reader};

impl<S: LockService> Worker<S> {
    /// Takes what the coordinator says.
    pub(super) fn ordered(&mut self, frame: &[u8]) -> Result<(), End> {
        let mut reader = Reader::new(frame);
        match reader.u8()? {
            SETUP => {
                let workers = reader.u16()?;
                if usize::from(workers) != self.peers.len() {
                    return Err(Malformed::new(format_args!("{workers} workers")).into());
                }
                let in_flight = reader.u32()? as usize;
                self.max_retries = reader.u32()?;
                self.database = Database::new(if reader.u8()? == 0 { Pages::Plain } else { Pages::Huge });
                self.service = reader.text()?.into();
                self.wakers = (0..in_flight).map(|slot| self.bell.waker(slot)).collect();
                self.slots.resize_with(in_flight, || None);
                self.free = (0..in_flight).collect();
            }
            TABLE => {
                let (schema, hint) = (reader.schema()?, reader.u64()?);
                self.database.create_table(schema, hint as usize)?;
                let count = reader.u32()?;
                self.cuts.push((0..count).map(|_| reader.key()).collect::<Result<_, _>>()?);
            }
            PROCEDURE => {
                let procedure = decode(&frame[1..])?;
                self.registry.register(procedure, &self.database)?;
            }
            ROWS => partition::load(&self.database, &frame[1..])?,
            START => {
                let service = S::connect(&self.service).map_err(End::Failed)?;
                let cuts = std::mem::take(&mut self.cuts);
                let layout = Layout::new(&self.database, &self.registry, cuts, self.peers.len(), service.count());
                self.ready = Some((layout, service));
                self.windows.widen(self.registry.widest_windows());
                self.coordinator.send(|frame| frame.u8(READY));
            }
            CALLS if self.ready.is_some() => {
                // SAFETY: no address of a row is kept from round to round.
                unsafe { self.database.reclaim() };
                while !reader.is_empty() {
                    let (index, sequence, procedure) = (reader.u32()?, reader.u64()?, reader.u32()?);
                    let arguments = reader.counted()?.to_vec();
                    let Some(registered) = self.registry.get(procedure).cloned() else {
                        return Err(Malformed::new(format_args!("no procedure has number {procedure}")).into());
                    };
                    if HEADER_BYTES as usize + arguments.len() > registered.block_bytes {
                        return Err(Malformed::new(format_args!("{} bytes of arguments", arguments.len())).into());
                    }
                    self.queue.push_back(Call { index, sequence, registered, arguments });
                }
            }
            EXPORT => {
                let written = |id| self.registry.is_written(id);
                of_coordinator(partition::export(&self.database, written, &mut self.coordinator))?;
            }
            other => return Err(Malformed::new(format_args!("the coordinator sent a message of kind {other}")).into()),
        }
        Ok(())
    }
}
