//! What was said to a member that may have to hear it again: it was away for a while, or begins again behind a
//! checkpoint and runs what it has run before.
//!
//! Bytes are kept as they were sent, in chunks that know up to which call they go. So a chunk is said again whole, and
//! whoever hears what it knows already passes it over.

use std::collections::VecDeque;

use crate::wire::Put;

/// About how long a chunk gets.
const CHUNK: usize = 64 << 10;

#[derive(Debug)]
struct Chunk {
    /// Nothing in it is of a later call.
    most: u64,
    kind: u8,
    bytes: Vec<u8>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Kept {
    chunks: VecDeque<Chunk>,
    bytes: usize,
    /// The most bytes.
    room: usize,
    /// What is of this call, or of one before, may have been dropped for want of room.
    dropped: Option<u64>,
}

impl Kept {
    pub(super) fn new(room: usize) -> Self {
        Self { chunks: VecDeque::new(), bytes: 0, room, dropped: None }
    }

    /// Keeps what was said, none of it of a later call than `most`.
    pub(super) fn keep(&mut self, kind: u8, bytes: &[u8], most: u64) {
        if bytes.is_empty() {
            return;
        }
        let long = CHUNK.min(self.room);
        match self.chunks.back_mut().filter(|last| last.kind == kind && last.bytes.len() < long) {
            Some(last) => {
                last.most = last.most.max(most);
                last.bytes.extend_from_slice(bytes);
            }
            None => {
                let mut chunk = Vec::with_capacity(long + bytes.len());
                chunk.extend_from_slice(bytes);
                self.chunks.push_back(Chunk { most, kind, bytes: chunk });
            }
        }
        self.bytes += bytes.len();
        while self.bytes > self.room && self.chunks.len() > 1 {
            let Some(oldest) = self.chunks.pop_front() else { break };
            self.bytes -= oldest.bytes.len();
            self.dropped = self.dropped.max(Some(oldest.most));
        }
    }

    /// Nobody will want what is of calls before `stamp`.
    pub(super) fn forget(&mut self, stamp: u64) {
        while let Some(oldest) = self.chunks.pop_front_if(|oldest| oldest.most < stamp) {
            self.bytes -= oldest.bytes.len();
        }
    }

    /// Appends frames of everything that is of call `stamp` or of a later one.
    ///
    /// # Errors
    /// Some of that was dropped.
    pub(super) fn again(&self, stamp: u64, mut frame: impl FnMut(u8, &[u8])) -> Result<(), String> {
        if self.dropped.is_some_and(|dropped| dropped >= stamp) {
            let room = self.room >> 20;
            return Err(format!("it was away for too long: more than {room} MiB were said to it meanwhile"));
        }
        let wanted = self.chunks.iter().filter(|chunk| chunk.most >= stamp);
        wanted.for_each(|chunk| frame(chunk.kind, &chunk.bytes));
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Appends a frame of this kind.
pub(super) fn put(out: &mut Vec<u8>, kind: u8, bytes: &[u8]) {
    out.u8(kind);
    out.bytes(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(kept: &Kept, stamp: u64) -> Result<Vec<(u8, Vec<u8>)>, String> {
        let mut all = Vec::new();
        kept.again(stamp, |kind, bytes| all.push((kind, bytes.to_vec())))?;
        Ok(all)
    }

    #[test]
    fn what_was_said_is_said_again_from_a_call_on() {
        let mut kept = Kept::new(1 << 20);
        kept.keep(1, b"a", 10);
        kept.keep(1, b"b", 20);
        kept.keep(2, b"c", 20);
        kept.keep(1, b"", 25);
        kept.keep(1, b"d", 30);
        let all = vec![(1, b"ab".to_vec()), (2, b"c".to_vec()), (1, b"d".to_vec())];
        assert_eq!(said(&kept, 0).unwrap(), all);
        assert_eq!(said(&kept, 20).unwrap(), all);
        assert_eq!(said(&kept, 21).unwrap(), all[2..]);
        kept.forget(21);
        assert_eq!((said(&kept, 0).unwrap(), kept.bytes()), (all[2..].to_vec(), 1));
    }

    #[test]
    fn what_there_is_no_room_for_is_dropped_and_that_is_known() {
        let mut kept = Kept::new(3 * CHUNK);
        (1..=4).for_each(|stamp| kept.keep(1, &[0; CHUNK], stamp));
        assert!(said(&kept, 1).unwrap_err().contains("away for too long"));
        assert_eq!(said(&kept, 2).unwrap().len(), 3);
        // What is larger than all room is kept as long as it is the last.
        kept.keep(1, &vec![0; 5 * CHUNK], 9);
        assert!(said(&kept, 4).unwrap_err().contains("away for too long"));
        assert_eq!(said(&kept, 5).unwrap().len(), 1);
    }
}
