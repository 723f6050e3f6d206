//! What a member says at the end of a round: to its coordinator, and to the others.

use lockwork_engine::registry::Registered;
use lockwork_procedure::block::{self, Status};

use crate::stream::Stream;
use crate::wire::Put;

/// What is to be said at the end of a round.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub(super) results: Vec<u8>,
    pub(super) again: Vec<u8>,
    pub(super) footprints: Vec<u8>,
    /// To each other worker.
    pub(super) values: Vec<Vec<u8>>,
    pub(super) outcomes: Vec<Vec<u8>>,
}

/// Sends a frame of this kind, if there is something in it.
pub(super) fn say(stream: &mut Stream, kind: u8, bytes: &mut Vec<u8>) {
    if !bytes.is_empty() {
        stream.send(|frame| {
            frame.u8(kind);
            frame.bytes(bytes);
        });
        bytes.clear();
    }
}

/// Appends what became of a call for those elsewhere who want to know: stamp, status, abort code, results.
pub(super) fn put_outcome(
    outcomes: &mut [Vec<u8>],
    mut tell: u64,
    stamp: u64,
    block: block::Block<'_>,
    registered: &Registered,
) {
    while tell != 0 {
        let out = &mut outcomes[tell.trailing_zeros() as usize];
        tell &= tell - 1;
        let (start, length) = registered.results;
        out.u64(stamp);
        out.u8(block.status().unwrap_or(Status::Failed) as u8);
        out.u16(block.abort_code());
        out.counted(&block.bytes()[start..start + length]);
    }
}

/// Appends what became of a call.
pub(super) fn put_result(out: &mut Vec<u8>, index: u32, stamp: u64, block: block::Block<'_>, registered: &Registered) {
    let (start, length) = registered.results;
    out.u32(index);
    out.u8(block.status().unwrap_or(Status::Failed) as u8);
    out.u16(block.abort_code());
    out.u64(stamp);
    out.u32(0);
    out.counted(&block.bytes()[start..start + length]);
}
