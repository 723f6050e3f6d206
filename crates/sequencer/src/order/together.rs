//! Transactions of several calls ([`crate::transaction`]): those before a call are made again, and must end as they
//! did.

use std::hash::Hasher;

use lockwork_engine::{EngineError, Together};
use lockwork_procedure::block::{Batch, Block, HEADER_BYTES, Status};
use lockwork_storage::{Database, Digest};
use siphasher::sip128::{Hasher128, SipHasher13};

use super::Order;
use crate::catalogue::Catalogue;
use crate::error::Error;
use crate::format::calls;
use crate::format::frame::{self, RecordKind};
use crate::journal::answers::{Answers, of_call};
use crate::transaction::{Looked, Made, Step, Transaction};

/// What is done with a transaction that has come a call further, and with the block of the call.
pub(crate) type StepReply = Box<dyn FnOnce(Result<(Transaction, Vec<u8>), Error>) + Send>;

/// Looks at the database, and says whether it has seen anything.
pub(crate) type Look = Box<dyn FnOnce(&Database) -> bool + Send>;

/// What is done with a transaction that has looked.
pub(crate) type LookReply = Box<dyn FnOnce(Result<Transaction, Error>) + Send>;

/// What is done when a transaction is durable, or never will be.
pub(crate) type CommitReply = Box<dyn FnOnce(Result<(), Error>) + Send>;

const HEADER: usize = HEADER_BYTES as usize;

/// Writes a call into the only block of a batch.
fn write(batch: &mut Batch, procedure: u32, arguments: &[u8]) {
    batch.clear();
    let mut block = batch.push(procedure).expect("the batch has room for one block");
    block.bytes()[HEADER..HEADER + arguments.len()].copy_from_slice(arguments);
}

/// What a caller sees of a block that ran, as a digest.
fn seen(block: Block<'_>, catalogue: &Catalogue) -> u128 {
    let mut hasher = SipHasher13::new();
    hasher.write_u8(block.status().map_or(0, |status| status as u8));
    hasher.write_u16(block.abort_code());
    if let Some(known) = catalogue.procedures.get(block.procedure() as usize) {
        let (start, length) = known.results;
        hasher.write(block.bytes().get(start..start + length).unwrap_or_default());
    }
    hasher.finish128().as_u128()
}

/// What somebody has seen who has looked at all rows of some tables.
fn digest(database: &Database, tables: &[u16]) -> Digest {
    tables.iter().map(|&table| database.table(table).digest()).fold(Digest::default(), Digest::combine)
}

/// Makes all calls of a transaction again.
///
/// # Errors
/// [`Error::Conflict`] when one of them has not ended as it did.
fn repeat(
    together: &mut Together<'_>,
    transaction: &Transaction,
    batch: &mut Batch,
    catalogue: &Catalogue,
) -> Result<(), Error> {
    let mut moments = Vec::with_capacity(transaction.steps.len());
    let mut call = 0;
    for step in &transaction.steps {
        moments.push(together.moment());
        match step {
            Step::BackTo(mark) => together.back_to(moments[*mark]),
            Step::Look(looked) => {
                call += 1;
                if digest(together.database(), &looked.tables) != looked.seen {
                    return Err(Error::Conflict { call });
                }
            }
            Step::Call(made) => {
                call += 1;
                write(batch, made.procedure, &made.arguments);
                together.call(batch);
                if seen(batch.block(0), catalogue) != made.seen {
                    return Err(Error::Conflict { call });
                }
            }
        }
    }
    Ok(())
}

impl Order {
    /// A batch of one block that every call of a transaction fits into, and one of this procedure.
    fn single(&mut self, transaction: &Transaction, procedure: Option<u32>) -> Result<Batch, Error> {
        let bytes = |id: u32| self.procedures.get(id as usize).map_or(0, |known| known.block_bytes);
        let needed = transaction.procedures().chain(procedure).map(bytes).fold(HEADER, usize::max);
        match self.work.single.take().filter(|batch| batch.stride() >= needed) {
            Some(batch) => Ok(batch),
            None => Ok(Batch::new(needed as u32, 1).map_err(EngineError::from)?),
        }
    }

    /// Makes a further call of a transaction.
    pub(super) fn step(&mut self, transaction: Transaction, block: &[u8], reply: StepReply) {
        self.drain();
        let outcome = self.try_step(transaction, block);
        self.send(Vec::new(), Vec::new(), false, Box::new(move |done| reply(done.and(outcome))));
    }

    fn try_step(&mut self, mut transaction: Transaction, block: &[u8]) -> Result<(Transaction, Vec<u8>), Error> {
        let procedure = Block::new(block).procedure();
        let bytes = self.catalogue.procedures.get(procedure as usize).map_or(0, |known| known.arguments);
        let arguments = block.get(HEADER..HEADER + bytes).unwrap_or_default().to_vec();
        transaction.room(arguments.len())?;
        let mut batch = self.single(&transaction, Some(procedure))?;
        let mut repeated = Ok(());
        let catalogue = &self.catalogue;
        self.engine.together(&mut |together| {
            repeated = repeat(together, &transaction, &mut batch, catalogue);
            if repeated.is_ok() {
                write(&mut batch, procedure, &arguments);
                together.call(&mut batch);
            }
            false
        })?;
        repeated?;
        let ran = batch.block(0);
        let committed = ran.status() == Some(Status::Committed);
        let results = catalogue.procedures.get(procedure as usize).map_or((0, 0), |known| known.results);
        let (seen, answered) = (seen(ran, catalogue), of_call(ran, results));
        transaction.add(Made { procedure, arguments, committed, seen, answered });
        let answer = ran.bytes()[..self.block_bytes(block).min(batch.stride())].to_vec();
        self.work.single = Some(batch);
        Ok((transaction, answer))
    }

    /// Lets `look` see the tables as a transaction has made them. If it says so, it has seen them.
    pub(super) fn look(&mut self, mut transaction: Transaction, tables: &[String], look: Look, reply: LookReply) {
        self.drain();
        let outcome = self.try_look(&mut transaction, tables, look).map(|()| transaction);
        self.send(Vec::new(), Vec::new(), false, Box::new(move |done| reply(done.and(outcome))));
    }

    fn try_look(&mut self, transaction: &mut Transaction, tables: &[String], look: Look) -> Result<(), Error> {
        transaction.room(0)?;
        let mut batch = self.single(transaction, None)?;
        let mut look = Some(look);
        let (mut repeated, mut looked) = (Ok(()), None);
        let catalogue = &self.catalogue;
        self.engine.together(&mut |together| {
            repeated = repeat(together, transaction, &mut batch, catalogue);
            let database = together.database();
            if repeated.is_ok()
                && let Some(look) = look.take()
                && look(database)
            {
                let tables: Vec<u16> = tables.iter().filter_map(|name| database.table_id(name)).collect();
                looked = Some(Looked { seen: digest(database, &tables), tables });
            }
            false
        })?;
        self.work.single = Some(batch);
        repeated?;
        looked.into_iter().for_each(|looked| transaction.add_look(looked));
        Ok(())
    }

    /// Makes all calls of a transaction once more, for good.
    pub(super) fn commit(&mut self, transaction: &Transaction, reply: CommitReply) {
        let mut lasting = transaction.lasting();
        lasting.retain(|made| self.procedures.get(made.procedure as usize).is_some_and(|known| known.traits.writes));
        if lasting.is_empty() && transaction.is_single() {
            // It has changed nothing, and what it has seen was so at one moment.
            return self.send(Vec::new(), Vec::new(), false, reply);
        }
        // One record, so that a crash leaves all of it or nothing.
        let room = lasting.iter().map(|made| calls::most_bytes(made.arguments.len())).sum();
        self.drain();
        if !lasting.is_empty()
            && let Err(error) = self.room_for_record(room)
        {
            return reply(Err(error));
        }
        match self.keep(transaction, &lasting) {
            Ok(()) if lasting.is_empty() => self.send(Vec::new(), Vec::new(), false, reply),
            Ok(()) => {
                // What each answered now is what it answered before.
                let mut answers = Answers::default();
                lasting.iter().for_each(|made| answers.add(made.answered));
                let kind = self.kind_of_calls();
                let payload = |out: &mut Vec<u8>| {
                    if kind == RecordKind::Answered {
                        out.extend(answers.0.to_le_bytes());
                    }
                    lasting.iter().for_each(|made| calls::put_one(out, made.procedure, &made.arguments));
                };
                self.record(kind, room, payload, reply);
            }
            Err(error) => {
                if let (Some(space), false) = (&mut self.space, lasting.is_empty()) {
                    space.settle(frame::whole(room) as u64, 0);
                }
                self.send(Vec::new(), Vec::new(), false, Box::new(move |done| reply(done.and(Err(error)))));
            }
        }
    }

    fn keep(&mut self, transaction: &Transaction, lasting: &[&Made]) -> Result<(), Error> {
        let mut batch = self.single(transaction, None)?;
        for made in lasting {
            write(&mut batch, made.procedure, &made.arguments);
            self.save_before(&batch);
        }
        let mut repeated = Ok(());
        let catalogue = &self.catalogue;
        self.engine.together(&mut |together| {
            repeated = repeat(together, transaction, &mut batch, catalogue);
            repeated.is_ok()
        })?;
        self.work.single = Some(batch);
        repeated?;
        let logged = if self.space.is_some() { lasting } else { &[] };
        self.shared.count(|statistics| {
            statistics.batches += 1;
            statistics.calls += transaction.calls() as u64;
            statistics.logged_calls += logged.len() as u64;
            statistics.argument_bytes += logged.iter().map(|made| made.arguments.len() as u64).sum::<u64>();
        });
        Ok(())
    }
}
