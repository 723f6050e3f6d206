//! Transactions of several calls ([`crate::transaction`]): those before a call are made again, and must end as they
//! did.

use std::hash::Hasher;

use lockwork_engine::{Compound, EngineError};
use lockwork_procedure::block::{Batch, Block, HEADER_BYTES, Status};
use lockwork_storage::{Database, Digest};
use siphasher::sip128::{Hasher128, SipHasher13};

use super::Order;
use crate::catalogue::Catalogue;
use crate::error::Error;
use crate::format::calls;
use crate::format::frame::{self, RecordKind};
use crate::journal::answers::{Answers, of_call};
use crate::transaction::{Looked, MAX_STEPS_AT_ONCE, Made, Step, Transaction};

/// What is done with a transaction that has made further calls, and with the blocks of those that ran. The transaction
/// is an empty one when it has been committed.
pub(crate) type StepsReply = Box<dyn FnOnce(Result<(Transaction, Vec<Vec<u8>>), Error>) + Send>;

/// Looks at the database, and says whether it has seen anything.
pub(crate) type Look = Box<dyn FnOnce(&Database) -> bool + Send>;

/// What is done with a transaction that has looked.
pub(crate) type LookReply = Box<dyn FnOnce(Result<Transaction, Error>) + Send>;

/// The calls of a transaction that are logged, as the payload of a record, and the room that was reserved for it.
struct Logged {
    payload: Vec<u8>,
    room: usize,
}

/// A further call of a transaction.
struct Further {
    procedure: u32,
    version: u64,
    arguments: Vec<u8>,
    block_bytes: usize,
}

/// What became of further calls of a transaction.
#[derive(Default)]
struct Stepped {
    /// The transaction with these calls; an empty one when it has ended.
    transaction: Transaction,
    /// The blocks of the calls that were made.
    ran: Vec<Vec<u8>>,
    /// What has to be logged before the transaction is acknowledged.
    logged: Option<Logged>,
}

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
    together: &mut Compound<'_>,
    transaction: &Transaction,
    batch: &mut Batch,
    catalogue: &Catalogue,
) -> Result<(), Error> {
    let mut moments = Vec::with_capacity(transaction.steps.len());
    let mut call = 0;
    for step in &transaction.steps {
        moments.push(together.savepoint());
        match step {
            Step::BackTo(mark) => together.roll_back_to(moments[*mark]),
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
    /// A batch of one block that every call of a transaction fits into, and those of these procedures.
    fn single(&mut self, transaction: &Transaction, procedures: impl Iterator<Item = u32>) -> Result<Batch, Error> {
        let bytes = |id: u32| self.procedures.get(id as usize).map_or(0, |known| known.block_bytes);
        let requires_durability =
            transaction.procedures().map(|(id, _)| id).chain(procedures).map(bytes).fold(HEADER, usize::max);
        match self.work.single.take().filter(|batch| batch.stride() >= requires_durability) {
            Some(batch) => Ok(batch),
            None => Ok(Batch::new(requires_durability as u32, 1).map_err(EngineError::from)?),
        }
    }

    /// Makes further calls of a transaction, up to the first that does not commit. If `commits`, and all of them do,
    /// the whole transaction is made for good.
    pub(super) fn steps(&mut self, transaction: Transaction, blocks: &[Vec<u8>], commits: bool, reply: StepsReply) {
        self.drain();
        match self.try_steps(transaction, blocks, commits) {
            Ok(Stepped { transaction, ran, logged: None }) => {
                let reply = move |done: Result<(), Error>| reply(done.map(|()| (transaction, ran)));
                self.send(Vec::new(), Vec::new(), false, Box::new(reply));
            }
            Ok(Stepped { transaction, ran, logged: Some(Logged { payload, room }) }) => {
                let kind = self.kind_of_calls();
                let reply = move |done: Result<(), Error>| reply(done.map(|()| (transaction, ran)));
                self.record(kind, room, |out| out.extend(payload), reply);
            }
            Err(error) => {
                self.send(Vec::new(), Vec::new(), false, Box::new(move |done| reply(done.and(Err(error)))));
            }
        }
    }

    fn try_steps(&mut self, mut transaction: Transaction, blocks: &[Vec<u8>], commits: bool) -> Result<Stepped, Error> {
        let call = |block: &Vec<u8>| {
            let procedure = Block::new(block).procedure();
            let known = self.catalogue.procedures.get(procedure as usize);
            let arguments = block.get(HEADER..HEADER + known.map_or(0, |known| known.arguments)).unwrap_or_default();
            let (arguments, block_bytes) = (arguments.to_vec(), self.block_bytes(block));
            Further { procedure, version: Block::new(block).version(), arguments, block_bytes }
        };
        let calls: Vec<Further> = blocks.iter().map(call).collect();
        transaction.room(calls.iter().map(|call| call.arguments.len()), commits)?;
        let steps = |id: u32| self.procedures.get(id as usize).map_or(0, |known| known.verified.step_bound());
        let all = transaction.procedures().map(|(id, _)| id).chain(calls.iter().map(|call| call.procedure));
        if all.map(steps).fold(0_u64, u64::saturating_add) > MAX_STEPS_AT_ONCE {
            return Err(Error::TooLong);
        }
        let room = match commits {
            true => self.reserve(&transaction, &calls)?,
            false => None,
        };
        if commits && calls.is_empty() && room.is_none() && transaction.is_single() {
            // It has changed nothing, and what it has seen was so at one moment.
            return Ok(Stepped::default());
        }
        let done = self.run_steps(&mut transaction, calls, commits);
        let is_kept = matches!(done, Ok((_, true)));
        if let (Some(room), Some(space), false) = (room, &mut self.space, is_kept) {
            space.settle(frame::whole(room) as u64, 0);
        }
        let (ran, _) = done?;
        if !is_kept {
            return Ok(Stepped { transaction, ran, logged: None });
        }
        let lasting = self.written(&transaction);
        let logged = if self.space.is_some() { &lasting[..] } else { &[] };
        self.shared.count(|statistics| {
            statistics.batches += 1;
            statistics.calls += transaction.calls() as u64;
            statistics.logged_calls += logged.len() as u64;
            statistics.argument_bytes += logged.iter().map(|made| made.arguments.len() as u64).sum::<u64>();
        });
        let mut payload = Vec::new();
        if self.kind_of_calls() == RecordKind::Answered {
            // What each answered now is what it answered before.
            let mut answers = Answers::default();
            lasting.iter().for_each(|made| answers.add(made.answered));
            payload.extend(answers.0.to_le_bytes());
        }
        lasting.iter().for_each(|made| calls::put_one(&mut payload, made.procedure, &made.arguments));
        let logged = match (lasting.is_empty(), room) {
            (false, Some(room)) => Some(Logged { payload, room }),
            (_, Some(room)) => {
                // What may write has not committed.
                if let Some(space) = &mut self.space {
                    space.settle(frame::whole(room) as u64, 0);
                }
                None
            }
            (_, None) => None,
        };
        Ok(Stepped { transaction: Transaction::default(), ran, logged })
    }

    /// The calls of a transaction whose effects there are and that may write.
    fn written<'a>(&self, transaction: &'a Transaction) -> Vec<&'a Made> {
        let mut lasting = transaction.lasting();
        lasting.retain(|made| self.writes(made.procedure));
        lasting
    }

    fn writes(&self, procedure: u32) -> bool {
        self.procedures.get(procedure as usize).is_some_and(|known| known.traits.writes)
    }

    /// Reserves room for the record of a transaction and further calls, and saves what they will change for a
    /// checkpoint that is being made; nothing if none of them writes. One record, so that a crash leaves all of it or
    /// nothing.
    fn reserve(&mut self, transaction: &Transaction, calls: &[Further]) -> Result<Option<usize>, Error> {
        let made = self.written(transaction).into_iter().map(|made| (made.procedure, &made.arguments));
        let further = calls.iter().map(|call| (call.procedure, &call.arguments));
        let further = further.filter(|(procedure, _)| self.writes(*procedure));
        let written: Vec<(u32, &Vec<u8>)> = made.chain(further).collect();
        if written.is_empty() {
            return Ok(None);
        }
        let room = written.iter().map(|(_, arguments)| calls::most_bytes(arguments.len())).sum();
        self.room_for_record(room)?;
        let mut batch = self.single(transaction, calls.iter().map(|call| call.procedure))?;
        for (procedure, arguments) in written {
            write(&mut batch, procedure, arguments);
            self.save_before(&batch);
        }
        self.work.single = Some(batch);
        Ok(Some(room))
    }

    /// Runs the calls of a transaction once more, and then further ones, up to the first that does not commit; and
    /// whether all of it stays.
    fn run_steps(
        &mut self,
        transaction: &mut Transaction,
        calls: Vec<Further>,
        commits: bool,
    ) -> Result<(Vec<Vec<u8>>, bool), Error> {
        let mut batch = self.single(transaction, calls.iter().map(|call| call.procedure))?;
        let (mut repeated, mut ran, mut made) = (Ok(()), Vec::new(), Vec::new());
        let catalogue = &self.catalogue;
        let is_kept = self.engine.compound(&mut |together| {
            repeated = repeat(together, transaction, &mut batch, catalogue);
            if repeated.is_err() {
                return false;
            }
            for Further { procedure, arguments, block_bytes, .. } in &calls {
                write(&mut batch, *procedure, arguments);
                together.call(&mut batch);
                let block = batch.block(0);
                let committed = block.status() == Some(Status::Committed);
                let results = catalogue.procedures.get(*procedure as usize).map_or((0, 0), |known| known.results);
                made.push((committed, seen(block, catalogue), of_call(block, results)));
                ran.push(block.bytes()[..(*block_bytes).min(batch.stride())].to_vec());
                if !committed {
                    return false;
                }
            }
            commits
        })?;
        self.work.single = Some(batch);
        repeated?;
        for (Further { procedure, version, arguments, .. }, (committed, seen, answered)) in calls.into_iter().zip(made)
        {
            transaction.add(Made { procedure, version, arguments, committed, seen, answered });
        }
        Ok((ran, is_kept))
    }

    /// Lets `look` see the tables as a transaction has made them. If it says so, it has seen them.
    pub(super) fn look(&mut self, mut transaction: Transaction, tables: &[String], look: Look, reply: LookReply) {
        self.drain();
        let outcome = self.try_look(&mut transaction, tables, look).map(|()| transaction);
        self.send(Vec::new(), Vec::new(), false, Box::new(move |done| reply(done.and(outcome))));
    }

    fn try_look(&mut self, transaction: &mut Transaction, tables: &[String], look: Look) -> Result<(), Error> {
        transaction.room([0].into_iter(), false)?;
        let mut batch = self.single(transaction, std::iter::empty())?;
        let mut look = Some(look);
        let (mut repeated, mut looked) = (Ok(()), None);
        let catalogue = &self.catalogue;
        self.engine.compound(&mut |together| {
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
}
