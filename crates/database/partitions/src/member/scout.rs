//! Reconnaissance: a call is run on copies of rows as they are now, to see which rows it touches.
//!
//! Nothing is locked, and the copies may be of different moments; so what is seen is a guess, which is checked when the
//! call's turn comes.

use std::sync::Arc;

use lockwork_engine::registry::Registered;

use super::transaction::{Block, put_footprint};
use super::{End, Member, lock};
use crate::access::Access;
use crate::fetch::{LocalPartition, fetched};
use crate::ordered::Participants;
use crate::wire::{Malformed, Put, Reader};

/// A call that is looked at.
#[derive(Debug)]
pub(super) struct Scout {
    index: u32,
    registered: Arc<Registered>,
    block: Block,
    accesses: Vec<Access>,
    /// Answers that are still to come.
    outstanding: usize,
}

impl Member {
    /// Takes a call to be looked at.
    pub(super) fn take_scout(&mut self, reader: &mut Reader<'_>) -> Result<(), End> {
        let index = reader.u32()?;
        let (registered, _, arguments) = self.call(reader)?;
        let mut block = Block::default();
        block.fill(&registered, arguments);
        let scout = Box::new(Scout { index, registered, block, accesses: Vec::new(), outstanding: 0 });
        let id = self.scouts.iter().position(Option::is_none).unwrap_or_else(|| {
            self.scouts.push(None);
            self.scouts.len() - 1
        });
        self.scouts[id] = Some(scout);
        self.due.push(id);
        Ok(())
    }

    /// Runs a call again and again until it has everything, or has to wait for others.
    pub(super) fn look(&mut self, id: usize) -> Result<(), End> {
        let Some(mut scout) = self.scouts[id].take() else { return Ok(()) };
        while scout.outstanding == 0 {
            fetched(&mut scout.accesses);
            let (registered, block) = (scout.registered.clone(), scout.block.as_mut_ptr());
            // SAFETY: the block is the procedure's.
            let (_, lacks) = unsafe { self.windows.attempt(&registered, block, &mut scout.accesses) };
            if !lacks.fetch {
                self.found(&scout);
                return Ok(());
            }
            let Self { engine, layout, peers, me, .. } = self;
            let layout = layout.as_ref().expect("it was begun");
            lock(engine).with_database(&mut |database| {
                let here = LocalPartition { layout, database, me: *me };
                scout.outstanding = here.fetch(&mut scout.accesses, id as u32, peers);
            })?;
        }
        self.scouts[id] = Some(scout);
        Ok(())
    }

    /// Takes an answer of worker `number`.
    pub(super) fn take_fetched(&mut self, id: usize, number: usize, reader: &mut Reader<'_>) -> Result<(), End> {
        let Self { engine, layout, scouts, due, me, .. } = self;
        let scout = scouts.get_mut(id).and_then(Option::as_mut).filter(|scout| scout.outstanding > 0);
        let Some(scout) = scout else { return Err(Malformed::new("an answer that nobody waits for").into()) };
        let layout = layout.as_ref().expect("it was begun");
        let mut taken = Ok(());
        lock(engine).with_database(&mut |database| {
            taken = LocalPartition { layout, database, me: *me }.take(&mut scout.accesses, number, reader);
        })?;
        taken?;
        scout.outstanding -= 1;
        due.push(id);
        Ok(())
    }

    /// Tells the coordinator what a call touches.
    fn found(&mut self, scout: &Scout) {
        let (participants, footprint) = self.footprint(&scout.accesses);
        let out = &mut self.said.footprints;
        out.u32(scout.index);
        out.u64(participants.all);
        out.u64(participants.active);
        out.counted(&footprint);
    }

    /// Who takes part in what an attempt has used, and that.
    pub(super) fn footprint(&self, accesses: &[Access]) -> (Participants, Vec<u8>) {
        let layout = self.layout.as_ref().expect("it was begun");
        let mut participants = Participants::default();
        for access in accesses {
            match &access.scan {
                Some(_) if layout.is_everywhere(access.table) => {}
                Some(_) => (0..self.peers.len()).for_each(|worker| participants.add(Some(worker), false)),
                None => participants.add(layout.owner(access.table, &access.key), access.write),
            }
        }
        participants.settle(self.me);
        let mut footprint = Vec::new();
        put_footprint(accesses, &mut footprint);
        (participants, footprint)
    }
}
