//! The coordinator of `network-two-phase`: each call goes to one worker, which does the rest.

use lockwork_engine::EngineError;
use lockwork_engine::registry::{Registered, Registry};
use lockwork_procedure::access::KeyAccess;
use lockwork_procedure::block::{Batch, HEADER_BYTES, Status, abort};

use crate::coordinator::{Core, malformed};
use crate::layout::Spread;
use crate::message::{CALLS, PIECE, RESULTS};
use crate::processes::Processes;
use crate::transaction::known_accesses;
use crate::wire::{Malformed, Put, Reader};

impl Core {
    /// Gives the calls of a batch to workers, and takes their results.
    ///
    /// # Errors
    /// A worker is gone, or says something that means nothing.
    pub(crate) fn give_and_take(
        &mut self,
        batch: &mut Batch,
        first: u64,
        conflicts: &mut u64,
    ) -> Result<(), EngineError> {
        let Self { running, registry, database, options, .. } = self;
        let running = running.as_mut().expect("the workers were started");
        let spreads: Vec<Spread> =
            (0..database.len()).map(|id| Spread::of(database.table(id as u16).schema())).collect();
        let mut homes = Homes { spreads, rows: vec![0; options.threads], known: Vec::new(), next: 0 };
        let mut calls: Vec<Vec<u8>> = vec![Vec::new(); options.threads];
        let mut left = 0;
        for index in 0..batch.len() {
            let procedure = batch.block(index).procedure();
            let Some(registered) = admit(registry, batch, index) else { continue };
            let mut block = batch.block_mut(index);
            let worker = homes.of(registered, block.bytes());
            let end = registered.arguments_end;
            let call = &mut calls[worker];
            call.u32(index as u32);
            call.u64(first + index as u64);
            call.u32(procedure);
            call.counted(&block.bytes()[HEADER_BYTES as usize..end]);
            left += 1;
            if call.len() > PIECE {
                send_calls(running, worker, CALLS, call);
            }
        }
        calls.iter_mut().enumerate().for_each(|(worker, calls)| send_calls(running, worker, CALLS, calls));
        if left == 0 {
            return Ok(());
        }
        running.listen(|_, frame| {
            let mut reader = Reader::new(frame);
            if reader.u8().map_err(malformed)? != RESULTS {
                return Err(malformed(Malformed::new("something else than results")));
            }
            while !reader.is_empty() {
                take_result(&mut reader, batch, registry, conflicts).map_err(malformed)?;
                left -= 1;
            }
            Ok(left == 0)
        })
    }
}

/// The procedure of a call; `None`: it cannot be called so, and its block says why.
pub(crate) fn admit<'a>(registry: &'a Registry, batch: &mut Batch, index: usize) -> Option<&'a Registered> {
    let (procedure, stride) = (batch.block(index).procedure(), batch.stride());
    let code = match registry.get(procedure) {
        Some(registered) if registered.block_bytes <= stride => return Some(registered),
        Some(_) => abort::BLOCK_TOO_SHORT,
        None => abort::UNKNOWN_PROCEDURE,
    };
    let mut block = batch.block_mut(index);
    block.set_outcome(Status::Failed, code);
    block.set_serial(0);
    None
}

/// Sends the calls that were gathered for a worker, if there are any.
pub(crate) fn send_calls(running: &mut Processes, worker: usize, kind: u8, calls: &mut Vec<u8>) {
    if !calls.is_empty() {
        running.stream(worker).send(|frame| {
            frame.u8(kind);
            frame.bytes(calls);
        });
        calls.clear();
    }
}

/// Writes what a worker says of a call into its block.
///
/// # Errors
/// It is about no call of the batch.
pub(crate) fn take_result(
    reader: &mut Reader<'_>,
    batch: &mut Batch,
    registry: &Registry,
    conflicts: &mut u64,
) -> Result<(), Malformed> {
    let index = reader.u32()? as usize;
    let (status, code, serial) = (reader.u8()?, reader.u16()?, reader.u64()?);
    *conflicts += u64::from(reader.u32()?);
    let results = reader.counted()?;
    set_result(batch, index, registry, (status, code, serial), results)
}

/// Writes what became of a call into its block: status, abort code, stamp and results.
///
/// # Errors
/// As for [`take_result`].
pub(crate) fn set_result(
    batch: &mut Batch,
    index: usize,
    registry: &Registry,
    (status, code, serial): (u8, u16, u64),
    results: &[u8],
) -> Result<(), Malformed> {
    let registered = (index < batch.len()).then(|| registry.get(batch.block(index).procedure())).flatten();
    let (Some(registered), Some(status)) = (registered, Status::from_byte(status)) else {
        return Err(Malformed::new(format_args!("the result of call {index} of {}", batch.len())));
    };
    let (start, length) = registered.results;
    if results.len() != length {
        return Err(Malformed::new(format_args!("{} bytes of results, not {length}", results.len())));
    }
    let mut block = batch.block_mut(index);
    block.bytes()[start..start + length].copy_from_slice(results);
    block.set_outcome(status, code);
    block.set_serial(serial);
    Ok(())
}

/// Chooses the worker of a call: the one that has most of its rows; they take turns where that is not known.
struct Homes {
    spreads: Vec<Spread>,
    rows: Vec<usize>,
    known: Vec<KeyAccess>,
    next: usize,
}

impl Homes {
    fn of(&mut self, registered: &Registered, block: &[u8]) -> usize {
        let workers = self.rows.len();
        self.known.clear();
        self.rows.fill(0);
        known_accesses(registered, block, &mut self.known);
        for access in &self.known {
            let spread = self.spreads[usize::from(registered.table_id(access.slot))];
            if let Some(owner) = spread.owner(&access.key, workers) {
                self.rows[owner] += 1;
            }
        }
        let most = self.rows.iter().copied().max().unwrap_or(0);
        self.next = (self.next + 1) % workers;
        // Of several that have as many, not always the first.
        let from = |offset: usize| (self.next + offset) % workers;
        (0..workers).map(from).find(|&worker| self.rows[worker] == most).unwrap_or(0)
    }
}
