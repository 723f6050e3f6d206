//! What the coordinator tells a worker: tables, procedures, rows, and calls in their order.

use std::sync::Arc;

use lockwork_engine::registry::{Registered, Registry};
use lockwork_memory::Pages;
use lockwork_procedure::access::AccessSet;
use lockwork_procedure::assembly::decode;
use lockwork_procedure::block::{Batch, HEADER_BYTES};
use lockwork_storage::Database;

use super::transaction::Transaction;
use super::{AT_ONCE, End, Going, LOCKS, Member, engine, lock};
use crate::layout::{Layout, Range};
use crate::message::{
    CALLS, EXPORT, FORGET, GOT, LOOK, PROCEDURE, READY, ROWS, SCOUT, SETTLE, SETUP, SHARE, START, TABLE,
};
use crate::ordered::Participants;
use crate::partition;
use crate::transaction::known_accesses;
use crate::wire::{Malformed, Put, Reader};

impl Member {
    /// Takes what the coordinator says.
    pub(super) fn ordered(&mut self, frame: &[u8]) -> Result<(), End> {
        let mut reader = Reader::new(frame);
        match reader.u8()? {
            SETUP => {
                let workers = reader.u16()?;
                if usize::from(workers) != self.peers.len() {
                    return Err(Malformed::new(format_args!("{workers} workers")).into());
                }
                let (_in_flight, _retries) = (reader.u32()?, reader.u32()?);
                *lock(&self.engine) = engine(if reader.u8()? == 0 { Pages::Plain } else { Pages::Huge })?;
            }
            TABLE => {
                let (schema, hint) = (reader.schema()?, reader.u64()?);
                lock(&self.engine).create_table(schema, hint as usize)?;
                let count = reader.u32()?;
                self.cuts.push((0..count).map(|_| reader.key()).collect::<Result<_, _>>()?);
            }
            PROCEDURE => {
                let procedure = decode(&frame[1..])?;
                lock(&self.engine).register(procedure.clone())?;
                self.with_database(|registry, database| registry.register(procedure.clone(), database).map(drop))??;
            }
            ROWS => self.with_database(|_, database| partition::load(database, &frame[1..]))??,
            START => self.start()?,
            CALLS if self.layout.is_some() => {
                while !reader.is_empty() {
                    self.take_call(&mut reader)?;
                }
            }
            SCOUT if self.layout.is_some() => {
                while !reader.is_empty() {
                    self.take_scout(&mut reader)?;
                }
            }
            EXPORT => self.export = true,
            SETTLE => self.settling = Some(reader.u32()?),
            LOOK if self.layout.is_some() => self.take_look(&mut reader)?,
            FORGET => self.forget(reader.u64()?),
            // What there is to share is taken when everything else was said.
            SHARE if self.apart.is_some() => {}
            GOT => self.has_got(reader.u64()?),
            other => return Err(Malformed::new(format_args!("the coordinator sent a message of kind {other}")).into()),
        }
        Ok(())
    }

    fn with_database<T>(&mut self, mut each: impl FnMut(&mut Registry, &Database) -> T) -> Result<T, End> {
        let (mut result, registry) = (None, &mut self.registry);
        lock(&self.engine).with_database(&mut |database| result = Some(each(registry, database)))?;
        Ok(result.expect("the closure ran"))
    }

    /// Everything is there.
    fn start(&mut self) -> Result<(), End> {
        let cuts = if self.apart.is_some() { self.renew()? } else { std::mem::take(&mut self.cuts) };
        let workers = self.peers.len();
        let mut cuts = Some(cuts);
        let layout = self.with_database(|registry, database| {
            Layout::new(database, registry, cuts.take().unwrap_or_default(), workers, LOCKS)
        })?;
        self.layout = Some(layout);
        self.windows.widen(self.registry.widest_windows());
        let longest = self.registry.all().map(|registered| registered.block_bytes).max().unwrap_or(0);
        self.batch = Some(Batch::new(longest as u32, AT_ONCE)?);
        self.coordinator.send(|frame| frame.u8(READY));
        Ok(())
    }

    /// The procedure of a call, and its arguments.
    pub(super) fn call<'a>(&self, reader: &mut Reader<'a>) -> Result<(Arc<Registered>, u32, &'a [u8]), Malformed> {
        let (procedure, arguments) = (reader.u32()?, reader.counted()?);
        Ok((self.known(procedure, arguments)?.clone(), procedure, arguments))
    }

    /// A procedure that may have such arguments.
    fn known(&self, procedure: u32, arguments: &[u8]) -> Result<&Arc<Registered>, Malformed> {
        let registered = self.registry.get(procedure);
        let registered =
            registered.ok_or_else(|| Malformed::new(format_args!("no procedure has number {procedure}")))?;
        if HEADER_BYTES as usize + arguments.len() > registered.block_bytes {
            return Err(Malformed::new(format_args!("{} bytes of arguments", arguments.len())));
        }
        Ok(registered)
    }

    /// Takes the next call of the order.
    fn take_call(&mut self, reader: &mut Reader<'_>) -> Result<(), End> {
        let (index, stamp) = (reader.u32()?, reader.u64()?);
        let participants = Participants { all: reader.u64()?, active: reader.u64()? };
        let (tell, footprint) = (reader.u64()?, reader.counted()?);
        let (procedure, arguments) = (reader.u32()?, reader.counted()?);
        self.latest = stamp;
        self.known(procedure, arguments)?;
        let mine = 1 << self.me;
        let whole = footprint.is_empty() && participants.all == mine;
        if whole && !self.would_wait(procedure, arguments)? {
            return self.go(Going { index, stamp, tell, slot: None }, procedure, arguments);
        }
        let registered = self.known(procedure, arguments)?.clone();
        let mut block = std::mem::take(&mut self.scratch);
        block.fill(&registered, arguments);
        self.known.clear();
        if footprint.is_empty() && !known_accesses(&registered, block.bytes(), &mut self.known) {
            return Err(unknown().into());
        }
        let layout = self.layout.as_ref().expect("calls come after the start");
        let mut transaction = match self.spare.pop() {
            Some(mut spare) => {
                spare.renew(procedure, registered);
                spare
            }
            None => Box::new(Transaction::new(procedure, registered)),
        };
        (transaction.index, transaction.stamp) = (index, stamp);
        (transaction.participants, transaction.whole, transaction.tell) = (participants, whole, tell);
        self.scratch = std::mem::replace(&mut transaction.block, block);
        if footprint.is_empty() {
            transaction.touch_known(&self.known, layout, self.me);
        } else {
            transaction.touch_footprint(footprint, layout, self.me)?;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        transaction.waits = self.queues.enter(slot, &transaction.locks);
        if transaction.waits == 0 {
            self.runnable.push(slot);
        }
        if participants.active & mine != 0 && participants.all != mine {
            transaction.awaited = participants.all & !mine;
            self.waiting.insert(stamp, slot);
        }
        self.slots[slot as usize] = Some(transaction);
        if let Some((first, more)) = self.early.remove(&stamp) {
            self.arrived.push((slot, first));
            self.arrived.extend(more.into_iter().map(|values| (slot, values)));
        }
        Ok(())
    }

    /// Whether a call that is all here would have to wait for one before it.
    fn would_wait(&mut self, procedure: u32, arguments: &[u8]) -> Result<bool, Malformed> {
        if self.queues.is_empty() {
            return Ok(false);
        }
        let Self { registry, layout, wanted, scratch, known, queues, .. } = self;
        let layout = layout.as_ref().expect("calls come after the start");
        let registered = registry.get(procedure).expect("it was looked for");
        wanted.clear();
        let end = registered.arguments_end;
        match &registered.access {
            // No block is needed for what the arguments have as it is.
            AccessSet::Straight(straight) if arguments.len() == end - HEADER_BYTES as usize => {
                for access in &straight.accesses {
                    let image = &arguments[(access.key_offset - HEADER_BYTES) as usize..];
                    let key = registered.tables[usize::from(access.slot)].key_format().encode(image);
                    let (table, write) = (registered.table_id(access.slot), access.operation.writes());
                    layout.locks(table, &key, Range::Row, write, wanted);
                }
            }
            _ => {
                scratch.fill(registered, arguments);
                known.clear();
                if !known_accesses(registered, scratch.bytes(), known) {
                    return Err(unknown());
                }
                for access in known {
                    let (table, write) = (registered.table_id(access.slot), access.operation.writes());
                    layout.locks(table, &access.key, Range::Row, write, wanted);
                }
            }
        }
        Ok(wanted.iter().any(|lock| queues.is_taken(*lock)))
    }
}

fn unknown() -> Malformed {
    Malformed::new("a call whose arguments do not tell what it touches has no footprint")
}
