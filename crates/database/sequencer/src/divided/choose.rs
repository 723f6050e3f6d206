//! Which calls of a record a node takes: those that its engine wants to be given, those that have request ids, and all
//! if its part is home to them. The others are passed over as they stand in the record.
//!
//! Every node reads every record, and with many parts next to nothing of it is its own; so what is passed over may cost
//! little more than its hash. The engine says of each run of calls, by the arguments, which ones it takes part in.
//! That is found out at every reader, by a rule that is the same for all, and is not in the log: a mark that a leader
//! had set wrong would leave a node without a call that touches its rows, and nobody would notice.
//!
//! What is taken makes one batch, however long the record: what a call with a request id repeats depends on what
//! was run before *its* batch, and nodes that had cut a record at different places would differ.
//!
//! Invariant: a call's offset is its place in the record, whatever was passed over before it.

use lockwork_engine::{Calls, Divided, EngineError, Place};
use lockwork_procedure::block::{Batch, HEADER_BYTES};

use super::PLACE_BITS;
use crate::catalogue::Catalogue;
use crate::decode::Trouble;
use crate::format::calls::{Run, runs};

/// Batches up to here are kept for their memory.
const MAX_SPARE_BYTES: usize = 16 << 20;

/// What was taken of a record: blocks, if there are any, and their offsets; and how many calls it has.
pub(super) type Taken = (Option<Batch>, Vec<u32>, usize);

/// See the module; this is its memory.
#[derive(Debug, Default)]
pub(super) struct Chooser {
    /// A batch that ran.
    spare: Option<Batch>,
    /// Of one run.
    chosen: Vec<u32>,
}

impl Chooser {
    /// Takes calls of a record, without its head; all of them if no engine chooses.
    ///
    /// # Errors
    /// What is wrong with the record, or that there is no memory.
    pub(super) fn take(
        &mut self,
        payload: &[u8],
        place: Place,
        catalogue: &Catalogue,
        mut engine: Option<&mut dyn Divided>,
    ) -> Result<Taken, Trouble> {
        let (mut taken, mut offsets) = (Vec::new(), Vec::new());
        let (mut bytes, mut first) = (HEADER_BYTES as usize, 0);
        let read = runs(
            payload,
            |procedure| catalogue.arguments(procedure),
            |run| {
                let end = first + run.count;
                if end >= 1 << PLACE_BITS {
                    return Err(format!("{end} calls or more; a record has fewer than {}", 1 << PLACE_BITS));
                }
                let before = offsets.len();
                match &mut engine {
                    Some(engine) => {
                        self.choose(&run, place.stamp + first as u64, &mut **engine);
                        offsets.extend(self.chosen.iter().map(|&at| first as u32 + at));
                    }
                    None => offsets.extend(first as u32..end as u32),
                }
                if offsets.len() > before {
                    bytes = bytes.max(catalogue.procedures[run.procedure as usize].block);
                    taken.push((run, first, before..offsets.len()));
                }
                first = end;
                Ok(())
            },
        );
        read.map_err(Trouble::Payload)?;
        if offsets.is_empty() {
            return Ok((None, offsets, first));
        }
        let mut batch = self.fresh(bytes, offsets.len()).map_err(|error| Trouble::Other(error.into()))?;
        for (run, first, places) in taken {
            for &offset in &offsets[places] {
                let at = offset as usize - first;
                let mut block = batch.push(run.procedure).expect("there is room for all");
                let arguments = run.arguments(at);
                block.bytes()[HEADER_BYTES as usize..][..arguments.len()].copy_from_slice(arguments);
                if let Some(request) = run.request(at) {
                    batch.set_request(batch.len() - 1, request);
                }
            }
        }
        Ok((Some(batch), offsets, first))
    }

    /// Which calls of a run are taken.
    fn choose(&mut self, run: &Run<'_>, stamp: u64, engine: &mut dyn Divided) {
        let chosen = &mut self.chosen;
        chosen.clear();
        let arguments = run.all_arguments();
        engine.choose(&Calls { procedure: run.procedure, stamp, count: run.count, arguments }, chosen);
        if run.has_requests() {
            // A retry may come to any node, so everybody has to know.
            let known = (0..run.count as u32).filter(|&at| run.request(at as usize).is_some());
            chosen.extend(known);
            chosen.sort_unstable();
            chosen.dedup();
        }
    }

    /// An empty batch.
    fn fresh(&mut self, bytes: usize, calls: usize) -> Result<Batch, EngineError> {
        match self.spare.take().filter(|spare| spare.stride() >= bytes && spare.capacity() >= calls) {
            Some(mut batch) => {
                batch.clear();
                Ok(batch)
            }
            None => Ok(Batch::new(bytes as u32, calls.next_power_of_two())?),
        }
    }

    /// Takes a batch back, for its memory.
    pub(super) fn give_back(&mut self, batch: Batch) {
        if batch.stride() * batch.capacity() <= MAX_SPARE_BYTES {
            self.spare = Some(batch);
        }
    }
}

#[cfg(test)]
mod tests {
    use lockwork_procedure::request::RequestId;

    use super::*;
    use crate::catalogue::Known;
    use crate::format::calls::put;
    use crate::format::put_varint;

    fn catalogue() -> Catalogue {
        let known = |arguments, block| Known { name: String::new(), arguments, block, results: (block, 0) };
        let mut catalogue = Catalogue::default();
        catalogue.procedures.extend([known(8, 48), known(0, 200), known(3, 40)]);
        catalogue
    }

    fn calls(kinds: &[u32]) -> Batch {
        let mut batch = Batch::new(200, kinds.len()).unwrap();
        for (at, &kind) in kinds.iter().enumerate() {
            let mut block = batch.push(kind).unwrap();
            let arguments = catalogue().procedures[kind as usize].arguments;
            block.bytes()[32..32 + arguments].fill(at as u8 + 1);
            if at % 3 == 0 {
                batch.set_request(at, RequestId::new(100 + at as u64, [0; 10]));
            }
        }
        batch
    }

    fn payload(batch: &Batch) -> Vec<u8> {
        let (mut payload, all) = (Vec::new(), (0..batch.len() as u32).collect::<Vec<_>>());
        put(&mut payload, batch, &all, |procedure| catalogue().arguments(procedure).unwrap());
        payload
    }

    const PLACE: Place = Place { stamp: 7 << PLACE_BITS, home: 0 };

    #[test]
    fn a_record_becomes_one_batch_of_blocks_with_zeros_behind_the_arguments() {
        let mut chooser = Chooser::default();
        for kinds in [&[0, 0, 2, 1, 0, 0][..], &[2, 2], &[1; 9], &[0]] {
            let batch = calls(kinds);
            let (taken, offsets, _) = chooser.take(&payload(&batch), PLACE, &catalogue(), None).ok().unwrap();
            let mut taken = taken.unwrap();
            assert_eq!(offsets, (0..kinds.len() as u32).collect::<Vec<_>>());
            for (here, there) in taken.blocks().zip(batch.blocks()) {
                let length = here.bytes().len().min(there.bytes().len());
                assert_eq!(here.bytes()[..length], there.bytes()[..length]);
                assert!(here.bytes()[length..].iter().all(|byte| *byte == 0));
            }
            // What it is used for must not be seen by who gets it next.
            (0..taken.len()).for_each(|at| taken.block_mut(at).bytes().fill(0xEE));
            chooser.give_back(taken);
        }
    }

    #[test]
    fn a_record_is_one_batch_however_long_and_one_too_long_is_refused() {
        let take = |payload: &[u8]| Chooser::default().take(payload, PLACE, &catalogue(), None);
        // A run of procedure 1, which has no arguments: its count times two.
        let mut most = Vec::new();
        put_varint(&mut most, 1);
        put_varint(&mut most, ((1 << PLACE_BITS) - 1) << 1);
        assert!(matches!(take(&most), Ok((Some(batch), ..)) if batch.len() == (1 << PLACE_BITS) - 1));
        assert!(matches!(take(&[&most[..], &[1, 2]].concat()), Err(Trouble::Payload(why)) if why.contains("1048576")));
        assert!(matches!(take(&[9, 2]), Err(Trouble::Payload(why)) if why.contains("no procedure has id 9")));
        assert!(matches!(take(&[]), Ok((None, offsets, 0)) if offsets.is_empty()));
    }
}
