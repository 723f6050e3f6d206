//! Transactions that can go on, in waves.
//!
//! A wave is everything that has all its locks: so none of it touches what another one of it writes, and what is done
//! to each can be done to all before the next step. What is all here is given to the engine. Of the others every row is
//! looked for before the first is copied, so that memory is waited for once and not for each; the rows are held once a
//! wave; and all that have their values run before the first of them is kept.
//!
//! Invariant: when a wave begins, everything that came before its transactions and touches the same has ended here.

use std::ops::Range;
use std::sync::Arc;

use lockwork_engine::Tally;
use lockwork_engine::exclusive::{close, give_up};
use lockwork_procedure::block::{self, HEADER_BYTES, Status};
use lockwork_procedure::interpreter::Stop;
use lockwork_storage::Database;

use super::said::{put_outcome, put_result};
use super::transaction::Transaction;
use super::{AT_ONCE, End, Going, Member, lock};
use crate::access::Effect;
use crate::fetch::{LocalPartition, fetched};
use crate::layout::Layout;
use crate::partition;
use crate::wire::{Malformed, Put, Reader};

/// What somebody has told of a transaction.
#[derive(Clone, Debug)]
pub(super) struct Values {
    from: usize,
    /// The frame that they came in, which many share, and where in it they are.
    frame: Arc<Vec<u8>>,
    place: Range<usize>,
}

type Slots = [Option<Box<Transaction>>];

impl Member {
    /// Runs everything that can run.
    pub(super) fn settle(&mut self) -> Result<(), End> {
        self.take_arrived()?;
        let mut shared = std::mem::take(&mut self.shared);
        while !(self.runnable.is_empty() && self.going.is_empty()) {
            let mut wave = std::mem::take(&mut self.runnable);
            for slot in wave.drain(..) {
                let Some(transaction) = self.slots[slot as usize].take() else { continue };
                if transaction.whole {
                    let Transaction { index, stamp, tell, procedure, .. } = *transaction;
                    let going = Going { index, stamp, tell, slot: Some(slot) };
                    let arguments = HEADER_BYTES as usize..transaction.registered.arguments_end;
                    self.go(going, procedure, &transaction.block.bytes()[arguments])?;
                } else {
                    shared.push(slot);
                }
                self.slots[slot as usize] = Some(transaction);
            }
            if self.runnable.is_empty() {
                self.runnable = wave;
            }
            // What comes before has to have ended before anything is copied.
            self.run_engine()?;
            for some in shared.chunks(AT_ONCE) {
                self.tell(some)?;
                self.advance(some)?;
            }
            shared.clear();
        }
        self.shared = shared;
        Ok(())
    }

    /// Copies what is here of those that were not told yet, and tells it to those who run them.
    fn tell(&mut self, wave: &[u32]) -> Result<(), End> {
        let Self { engine, layout, said, me, slots, values: told, .. } = self;
        let layout = layout.as_ref().expect("it was begun");
        lock(engine).with_database(&mut |database| {
            let here = LocalPartition { layout, database, me: *me };
            untold(slots, wave, |transaction| here.prefetch(&transaction.accesses));
            untold(slots, wave, |transaction| {
                told.clear();
                here.copy_and_tell(&mut transaction.accesses, told);
                transaction.told = true;
                let mut others = transaction.participants.active & !(1 << *me);
                while others != 0 {
                    let values = &mut said.values[others.trailing_zeros() as usize];
                    values.u64(transaction.stamp);
                    values.counted(told);
                    others &= others - 1;
                }
            });
        })?;
        Ok(())
    }

    /// Ends those that need nothing more: they run, if they are to be run here, and what they wrote is kept.
    fn advance(&mut self, wave: &[u32]) -> Result<(), End> {
        let (mine, mut ended) = (1 << self.me, std::mem::take(&mut self.ended));
        self.prefetch(wave)?;
        for &slot in wave {
            let Some(mut transaction) = self.slots[slot as usize].take() else { continue };
            let active = transaction.participants.active & mine != 0;
            if !active {
                ended.push((slot, false));
            } else if transaction.awaited == 0 {
                ended.push((slot, self.run(&mut transaction)));
            }
            self.slots[slot as usize] = Some(transaction);
        }
        if ended.iter().any(|(_, keep)| *keep) {
            let Self { engine, layout, me, slots, .. } = self;
            let (layout, mut kept) = (layout.as_ref().expect("it was begun"), Ok(()));
            lock(engine).with_database(&mut |database| {
                let committed = ended.iter().filter(|(_, keep)| *keep);
                let mut committed = committed.filter_map(|(slot, _)| slots[*slot as usize].as_ref());
                kept = committed.try_for_each(|transaction| keep(transaction, database, layout, *me));
            })?;
            kept?;
        }
        ended.drain(..).for_each(|(slot, _)| self.end(slot));
        self.ended = ended;
        Ok(())
    }

    /// Brings near what those will write that are going to run: others have been at work since it was copied.
    fn prefetch(&mut self, wave: &[u32]) -> Result<(), End> {
        let Self { engine, layout, me, slots, .. } = self;
        let layout = layout.as_ref().expect("it was begun");
        let ready = || {
            let all = wave.iter().filter_map(|slot| slots[*slot as usize].as_ref());
            all.filter(|transaction| transaction.participants.active & 1 << *me != 0 && transaction.awaited == 0)
        };
        lock(engine).with_database(&mut |database| {
            let here = LocalPartition { layout, database, me: *me };
            ready().for_each(|transaction| here.prefetch(&transaction.accesses));
        })?;
        Ok(())
    }

    /// Runs a transaction, all of whose values are here; whether there is something to be kept.
    fn run(&mut self, transaction: &mut Transaction) -> bool {
        fetched(&mut transaction.accesses);
        let (registered, block) = (transaction.registered.clone(), transaction.block.as_mut_ptr());
        // SAFETY: the transaction's block is its procedure's.
        let (stop, lacks) = unsafe { self.windows.attempt(&registered, block, &mut transaction.accesses) };
        let layout = self.layout.as_ref().expect("it was begun");
        let answers = transaction.participants.active.trailing_zeros() as usize == self.me;
        if lacks.fetch || lacks.write || !transaction.is_covered(layout) {
            if answers {
                self.said.again.u32(transaction.index);
            }
            return false;
        }
        let outcome = match stop {
            Stop::Committed => {
                // SAFETY: as above, and the windows are the widest of all procedures.
                unsafe {
                    registered.program.run_commit_handler(&mut self.windows.registers, block);
                    close(block, Status::Committed, 0, 0, transaction.stamp);
                }
                None
            }
            Stop::Aborted(code) => Some((Status::Aborted, code)),
            Stop::Failed(code) => Some((Status::Failed, code)),
            Stop::Waiting | Stop::Conflict => unreachable!("an attempt that lacks nothing comes to an end"),
        };
        if let Some(outcome) = outcome {
            let (place, tally) = ((0, transaction.stamp), &mut Tally::default());
            // SAFETY: as above.
            unsafe { give_up(&registered, &mut self.windows.registers, block, outcome, place, tally) };
        }
        if answers {
            let block = block::Block::new(transaction.block.bytes());
            put_result(&mut self.said.results, transaction.index, transaction.stamp, block, &registered);
            put_outcome(&mut self.said.outcomes, transaction.tell, transaction.stamp, block, &registered);
        }
        outcome.is_none()
    }

    /// Takes what worker `from` has of transactions, by a frame of values.
    pub(super) fn take_values(&mut self, from: usize, frame: Vec<u8>) -> Result<(), End> {
        let (again, frame) = (self.apart.is_some(), Arc::new(frame));
        let mut reader = Reader::new(&frame[1..]);
        while !reader.is_empty() {
            let (stamp, length) = (reader.u64()?, reader.counted()?.len());
            let end = frame.len() - reader.left();
            let values = Values { from, frame: frame.clone(), place: end - length..end };
            match self.waiting.get(&stamp) {
                Some(&slot) => self.arrived.push((slot, values)),
                // Who was away for a while may say again what was heard before.
                None if again && stamp <= self.latest => {}
                None => match self.early.get_mut(&stamp) {
                    Some((_, more)) => more.push(values),
                    None => drop(self.early.insert(stamp, (values, Vec::new()))),
                },
            }
        }
        Ok(())
    }

    /// Gives transactions the values that have arrived.
    fn take_arrived(&mut self) -> Result<(), End> {
        if self.arrived.is_empty() {
            return Ok(());
        }
        let Self { engine, layout, slots, arrived, runnable, me, apart, .. } = self;
        let (layout, mut taken) = (layout.as_ref().expect("it was begun"), Ok(()));
        lock(engine).with_database(&mut |database| {
            let here = LocalPartition { layout, database, me: *me };
            taken = arrived.drain(..).try_for_each(|(slot, values)| {
                let Values { from, frame, place } = values;
                let transaction = slots[slot as usize].as_mut();
                let Some(transaction) = transaction.filter(|transaction| transaction.awaited & 1 << from != 0) else {
                    return if apart.is_some() { Ok(()) } else { Err(Malformed::new("values that nobody waits for")) };
                };
                here.take(&mut transaction.accesses, from, &mut Reader::new(&frame[place]))?;
                transaction.awaited &= !(1 << from);
                if transaction.awaited == 0 && transaction.told {
                    runnable.push(slot);
                }
                Ok(())
            });
        })?;
        Ok(taken?)
    }
}

/// Does something with those of a wave that were not told yet.
fn untold(slots: &mut Slots, wave: &[u32], mut each: impl FnMut(&mut Transaction)) {
    for &slot in wave {
        if let Some(transaction) = slots[slot as usize].as_mut().filter(|transaction| !transaction.told) {
            each(transaction);
        }
    }
}

/// Keeps what a transaction wrote here.
fn keep(transaction: &Transaction, database: &Database, layout: &Layout, me: usize) -> Result<(), End> {
    let mine = |access: &&crate::access::Access| access.write && layout.owner(access.table, &access.key) == Some(me);
    for access in transaction.accesses.iter().filter(mine) {
        match access.effect(database.table(access.table).schema()) {
            Some(Effect::Put(image)) => partition::put(database, access.table, &access.key, Some(image))?,
            Some(Effect::Remove) => partition::put(database, access.table, &access.key, None)?,
            None => {}
        }
    }
    Ok(())
}
