//! Serial equivalence, checked the hard way: run the same calls again, one after the other, in the order that an engine
//! claims to be equivalent to, and compare every outcome, every result and the final digest.

use lockwork_procedure::block::{Batch, Status};
use lockwork_storage::Digest;

use crate::contract::{Engine, EngineError, SerialOrder};

/// What replay found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Difference {
    /// A transaction ended differently.
    #[error("batch {batch}, block {block}: the engine says {found}, serial replay says {expected}")]
    Outcome {
        /// Number of the batch.
        batch: usize,
        /// Index of the block in the batch.
        block: usize,
        /// Status and abort code of the engine.
        found: String,
        /// Status and abort code of the replay.
        expected: String,
    },
    /// A transaction answered differently.
    #[error("batch {batch}, block {block}: result byte {offset} is {found:#04x}, serial replay says {expected:#04x}")]
    Result {
        /// Number of the batch.
        batch: usize,
        /// Index of the block in the batch.
        block: usize,
        /// Offset in the block.
        offset: usize,
        /// The engine's byte.
        found: u8,
        /// The replay's byte.
        expected: u8,
    },
    /// The databases differ.
    #[error("the digest is {found}, serial replay says {expected}")]
    Digest {
        /// The engine's.
        found: Digest,
        /// The replay's.
        expected: Digest,
    },
    /// The oracle could not run.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// The order of a completed batch that its engine is equivalent to, as block indexes.
#[must_use]
pub fn serial_order(batch: &Batch, order: SerialOrder) -> Vec<usize> {
    let mut indexes: Vec<usize> = (0..batch.len()).collect();
    if order == SerialOrder::Stamp {
        indexes.sort_by_key(|&index| (batch.block(index).serial(), index));
    }
    indexes
}

/// Runs the calls of `completed`, batch `number` of `engine`, on `oracle` (a serial engine that has the same tables,
/// rows and procedures and has replayed the batches before) and compares outcomes and results.
///
/// # Errors
/// The first [`Difference`].
pub fn replay(oracle: &mut dyn Engine, completed: &Batch, number: usize, order: SerialOrder) -> Result<(), Difference> {
    let indexes = serial_order(completed, order);
    let mut again = Batch::new(completed.stride() as u32, completed.len()).map_err(EngineError::from)?;
    // A transaction that the engine gave up on has no place in the serial order: it did not happen.
    let happened = |index: &usize| completed.block(*index).status() != Some(Status::Failed);
    let indexes: Vec<usize> = indexes.into_iter().filter(happened).collect();
    for &index in &indexes {
        let block = completed.block(index);
        let Some(registered) = oracle.procedure(block.procedure()) else { continue };
        let arguments = 32..registered.verified.procedure().layout().arguments_end as usize;
        let mut copy = again.push(block.procedure()).expect("as many blocks as before");
        copy.bytes()[arguments.clone()].copy_from_slice(&block.bytes()[arguments]);
    }
    oracle.submit(again).map_err(|refused| refused.error)?;
    let replayed = oracle.complete()?.expect("a batch was submitted").batch;
    for (position, &index) in indexes.iter().enumerate() {
        let (found, expected) = (completed.block(index), replayed.block(position));
        let outcome = |block: lockwork_procedure::block::Block<'_>| (block.status(), block.abort_code());
        if outcome(found) != outcome(expected) {
            let text = |block| format!("{:?}", outcome(block));
            return Err(Difference::Outcome {
                batch: number,
                block: index,
                found: text(found),
                expected: text(expected),
            });
        }
        let Some(registered) = oracle.procedure(found.procedure()) else { continue };
        let (start, length) = registered.results;
        for offset in start..start + length {
            let (found, expected) = (found.bytes()[offset], expected.bytes()[offset]);
            if found != expected {
                return Err(Difference::Result { batch: number, block: index, offset, found, expected });
            }
        }
    }
    Ok(())
}

/// Compares the digests of an engine and its oracle.
///
/// # Errors
/// [`Difference::Digest`].
pub fn compare_digests(engine: &dyn Engine, oracle: &dyn Engine) -> Result<Digest, Difference> {
    let (found, expected) = (engine.digest()?, oracle.digest()?);
    if found == expected { Ok(found) } else { Err(Difference::Digest { found, expected }) }
}
