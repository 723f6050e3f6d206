//! The transaction block: the one unit that travels, from client to sequencer to log to engine and back.
//!
//! All integers are little-endian. A block is a header, then the regions of its procedure
//! ([`crate::program::Layout`]): arguments (written by the client), results (written by the procedure), scratch
//! (the procedure's own). Nothing in a block is a pointer.
//!
//! ```text
//! offset  bytes  field
//!      0      4  procedure id, given by the engine when the procedure was registered
//!      4      1  status: 0 pending, 1 committed, 2 aborted by the procedure, 3 failed (the engine gave up)
//!      5      1  zero, reserved
//!      6      2  abort code: the procedure's own, or one of [`abort`]
//!      8      8  sequence number: position in the order of all input, stamped by the engine
//!     16      8  zero, reserved
//!     24      8  serial stamp: the engine's serial order is ascending (serial stamp, sequence number)
//!     32      -  arguments, then results, then scratch
//! ```
//!
//! Results and scratch are zero when a call is handed over; [`Batch::push`] sees to it.
//!
//! A call that is handed over alone carries its [`RequestId`] in bytes 8 to 24, zeros if it has none. Engines do not
//! read request ids and write bytes 8 to 16, so a [`Batch`] keeps the ids of its calls beside the blocks. In bytes
//! 24 to 32 it carries the version of the procedure that it means, where procedures take each other's place.
//!
//! The blocks of one [`Batch`] have one stride, a multiple of 64 bytes, and lie in one 64-byte-aligned buffer, so a
//! batch goes to a log, a device or a wire without being rewritten. The header is half a line because a call with a
//! short key then still has header and key in one line.

use lockwork_memory::{Buffer, LINE, OutOfMemory, Pages};

use crate::request::RequestId;

/// Bytes of the header; the arguments begin here.
pub const HEADER_BYTES: u32 = 32;
/// The longest block, in bytes.
pub const MAX_BLOCK_BYTES: u32 = 1 << 20;

/// Abort codes that the system itself gives. A procedure's own codes lie below [`abort::FIRST_RESERVED`].
pub mod abort {
    /// Codes from here on are the system's.
    pub const FIRST_RESERVED: u16 = 0xFF00;
    /// SEARCH, UPDATE or REMOVE found no row and the RET had no label for that.
    pub const NOT_FOUND: u16 = 0xFF01;
    /// INSERT found a row with this key and the RET had no label for that.
    pub const DUPLICATE_KEY: u16 = 0xFF02;
    /// An addition, subtraction, multiplication or division left the range of 64-bit integers.
    pub const OVERFLOW: u16 = 0xFF03;
    /// A division by zero.
    pub const DIVISION_BY_ZERO: u16 = 0xFF04;
    /// CHECK found a value outside its range.
    pub const OUT_OF_RANGE: u16 = 0xFF05;
    /// A STORE of a value that its column or result cannot hold.
    pub const VALUE_TOO_WIDE: u16 = 0xFF06;
    /// The engine retried the transaction as often as it was told to and met a conflict every time (status failed).
    pub const TOO_MANY_RETRIES: u16 = 0xFF10;
    /// A table had no room for another row (status failed).
    pub const OUT_OF_MEMORY: u16 = 0xFF11;
    /// More rows than the engine can hold for one transaction (status failed).
    pub const TOO_MANY_GRANTS: u16 = 0xFF12;
    /// The device's memory refused an access (status failed).
    pub const MEMORY_ERROR: u16 = 0xFF13;
    /// No procedure has the block's procedure id (status failed).
    pub const UNKNOWN_PROCEDURE: u16 = 0xFF20;
    /// The block is shorter than its procedure needs (status failed).
    pub const BLOCK_TOO_SHORT: u16 = 0xFF21;
    /// The call's request id is that of an earlier call of another procedure, or with other arguments (status failed).
    pub const REQUEST_REUSED: u16 = 0xFF22;
    /// The call's request id is so old that an earlier call with it may have been forgotten (status failed).
    pub const REQUEST_TOO_OLD: u16 = 0xFF23;
    /// The device was lost while it had the block's batch; whether it took effect is not known (status failed).
    pub const DEVICE_LOST: u16 = 0xFF30;

    /// A reserved code in words; `None` for a procedure's own.
    #[must_use]
    pub fn describe(code: u16) -> Option<&'static str> {
        Some(match code {
            NOT_FOUND => "no row has this key",
            DUPLICATE_KEY => "a row with this key exists",
            OVERFLOW => "integer overflow",
            DIVISION_BY_ZERO => "division by zero",
            OUT_OF_RANGE => "value out of range",
            VALUE_TOO_WIDE => "value does not fit its column",
            TOO_MANY_RETRIES => "too many conflicts with other transactions",
            OUT_OF_MEMORY => "out of memory",
            TOO_MANY_GRANTS => "too many rows for one transaction",
            MEMORY_ERROR => "the device's memory refused an access",
            UNKNOWN_PROCEDURE => "no such procedure",
            BLOCK_TOO_SHORT => "block too short for its procedure",
            REQUEST_REUSED => "the request id was used before, for another call",
            REQUEST_TOO_OLD => "the request id is too old: a call with it may have been made before",
            DEVICE_LOST => "the device was lost",
            _ => return None,
        })
    }
}

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// Not executed yet.
    Pending = 0,
    /// All its effects are in the database.
    Committed = 1,
    /// The procedure aborted; none of its effects are in the database.
    Aborted = 2,
    /// The engine gave up; none of its effects are in the database, and the same call may succeed later.
    Failed = 3,
}

impl Status {
    /// The status that a byte stands for.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Pending,
            1 => Self::Committed,
            2 => Self::Aborted,
            3 => Self::Failed,
            _ => return None,
        })
    }
}

/// Offset of the status, one byte.
pub const STATUS: usize = 4;
/// Offset of the abort code, two bytes.
pub const CODE: usize = 6;
const SEQUENCE: usize = 8;
/// Of a call that is handed over alone.
const REQUEST: usize = 8;
/// Offset of the serial stamp, eight bytes.
pub const SERIAL: usize = 24;

/// A block, to read.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a>(&'a [u8]);

/// A block, to write.
#[derive(Debug)]
pub struct BlockMut<'a>(&'a mut [u8]);

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes"))
}

impl<'a> Block<'a> {
    /// Sees `bytes` as a block.
    ///
    /// # Panics
    /// When `bytes` is shorter than a header.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        assert!(bytes.len() >= HEADER_BYTES as usize, "a block is at least {HEADER_BYTES} bytes long");
        Self(bytes)
    }

    /// All its bytes, header included.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.0
    }

    /// The procedure to call.
    #[must_use]
    pub fn procedure(&self) -> u32 {
        u32::from_le_bytes(self.0[..4].try_into().expect("four bytes"))
    }

    /// What became of it; `None` when the byte is no status.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        Status::from_byte(self.0[STATUS])
    }

    /// The abort code; zero unless aborted or failed.
    #[must_use]
    pub fn abort_code(&self) -> u16 {
        u16::from_le_bytes([self.0[CODE], self.0[CODE + 1]])
    }

    /// Position in the order of all input.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        u64_at(self.0, SEQUENCE)
    }

    /// Returns the request id of a call that was handed over alone and has not run; see the module.
    #[must_use]
    pub fn request(&self) -> Option<RequestId> {
        RequestId::from_bytes(self.0[REQUEST..REQUEST + 16].try_into().expect("16 bytes"))
    }

    /// The version of the procedure that a call means which is handed over alone, see the module.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.serial()
    }

    /// The serial stamp, see the module.
    #[must_use]
    pub fn serial(&self) -> u64 {
        u64_at(self.0, SERIAL)
    }
}

impl<'a> BlockMut<'a> {
    /// Sees `bytes` as a block.
    ///
    /// # Panics
    /// When `bytes` is shorter than a header.
    #[must_use]
    pub fn new(bytes: &'a mut [u8]) -> Self {
        assert!(bytes.len() >= HEADER_BYTES as usize, "a block is at least {HEADER_BYTES} bytes long");
        Self(bytes)
    }

    /// The same block, to read.
    #[must_use]
    pub fn as_block(&self) -> Block<'_> {
        Block(self.0)
    }

    /// All its bytes, header included.
    #[must_use]
    pub fn bytes(&mut self) -> &mut [u8] {
        self.0
    }

    /// Makes the block a fresh call: header and everything behind it zero, but for the procedure id.
    pub fn reset(&mut self, procedure: u32) {
        self.0.fill(0);
        self.0[..4].copy_from_slice(&procedure.to_le_bytes());
    }

    /// Writes status and abort code.
    #[inline]
    pub fn set_outcome(&mut self, status: Status, code: u16) {
        self.0[STATUS] = status as u8;
        self.0[CODE..CODE + 2].copy_from_slice(&code.to_le_bytes());
    }

    /// Writes the sequence number.
    #[inline]
    pub fn set_sequence(&mut self, sequence: u64) {
        self.0[SEQUENCE..SEQUENCE + 8].copy_from_slice(&sequence.to_le_bytes());
    }

    /// Writes the request id of a call that is handed over alone. [`Batch::set_request`] is for calls of batches.
    pub fn set_request(&mut self, request: Option<RequestId>) {
        self.0[REQUEST..REQUEST + 16].copy_from_slice(&request.map_or([0; 16], RequestId::to_bytes));
    }

    /// Writes the version of the procedure that a call means which is handed over alone, see the module.
    pub fn set_version(&mut self, version: u64) {
        self.set_serial(version);
    }

    /// Writes the serial stamp.
    #[inline]
    pub fn set_serial(&mut self, serial: u64) {
        self.0[SERIAL..SERIAL + 8].copy_from_slice(&serial.to_le_bytes());
    }
}

/// Blocks of one stride in one aligned buffer.
#[derive(Debug)]
pub struct Batch {
    buffer: Buffer,
    stride: usize,
    len: usize,
    capacity: usize,
    /// The request ids of the first calls; empty when no call has one.
    requests: Vec<Option<RequestId>>,
}

impl Batch {
    /// Room for `capacity` blocks of up to `block_bytes` bytes each.
    ///
    /// # Errors
    /// [`OutOfMemory`] when the system refuses.
    ///
    /// # Panics
    /// When `block_bytes` is above [`MAX_BLOCK_BYTES`].
    pub fn new(block_bytes: u32, capacity: usize) -> Result<Self, OutOfMemory> {
        assert!(block_bytes <= MAX_BLOCK_BYTES, "a block has at most {MAX_BLOCK_BYTES} bytes");
        let stride = (block_bytes.max(HEADER_BYTES) as usize).next_multiple_of(LINE);
        let bytes = stride.saturating_mul(capacity);
        let buffer = Buffer::zeroed(bytes, Pages::Huge, "a batch of transaction blocks")?;
        Ok(Self { buffer, stride, len: 0, capacity, requests: Vec::new() })
    }

    /// Room for one block, between pages that nobody may touch: an access behind it ends the process. For tests.
    ///
    /// # Errors
    /// As [`Self::new`].
    ///
    /// # Panics
    /// As [`Self::new`].
    #[doc(hidden)]
    pub fn guarded(block_bytes: u32) -> Result<Self, OutOfMemory> {
        let mut batch = Self::new(block_bytes, 0)?;
        batch.buffer = Buffer::zeroed(batch.stride, Pages::Guarded, "a transaction block")?;
        batch.capacity = 1;
        Ok(batch)
    }

    /// Bytes from one block to the next: a multiple of 64.
    #[must_use]
    #[inline]
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// How many blocks there are.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many blocks there is room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Takes all blocks out; the memory stays.
    pub fn clear(&mut self) {
        self.len = 0;
        self.requests.clear();
    }

    /// Returns the request id of call `index`, if it has one.
    #[must_use]
    #[inline]
    pub fn request(&self, index: usize) -> Option<RequestId> {
        self.requests.get(index).copied().flatten()
    }

    /// Sets the request id of call `index`.
    ///
    /// # Panics
    /// When there is no such call.
    pub fn set_request(&mut self, index: usize, request: RequestId) {
        assert!(index < self.len, "block {index} of {}", self.len);
        if self.requests.len() <= index {
            self.requests.resize(index + 1, None);
        }
        self.requests[index] = Some(request);
    }

    /// Whether any call has a request id.
    #[must_use]
    pub fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Returns the request ids of the calls that have one, with the indexes of the calls.
    pub fn requests(&self) -> impl Iterator<Item = (usize, RequestId)> {
        self.requests.iter().enumerate().filter_map(|(index, request)| Some((index, (*request)?)))
    }

    /// Appends a fresh call of `procedure` and returns it, to be filled in; `None` when the batch is full.
    pub fn push(&mut self, procedure: u32) -> Option<BlockMut<'_>> {
        if self.len == self.capacity {
            return None;
        }
        self.len += 1;
        let mut block = self.block_mut(self.len - 1);
        block.reset(procedure);
        Some(block)
    }

    /// Block `index`, to read.
    ///
    /// # Panics
    /// When there is no such block.
    #[must_use]
    pub fn block(&self, index: usize) -> Block<'_> {
        assert!(index < self.len, "block {index} of {}", self.len);
        // SAFETY: the block lies in the buffer and nobody writes it while the batch is borrowed.
        Block(unsafe { std::slice::from_raw_parts(self.block_ptr(index), self.stride) })
    }

    /// Block `index`, to write.
    ///
    /// # Panics
    /// When there is no such block.
    #[must_use]
    pub fn block_mut(&mut self, index: usize) -> BlockMut<'_> {
        assert!(index < self.len, "block {index} of {}", self.len);
        // SAFETY: the block lies in the buffer, and the batch is borrowed for this block alone.
        BlockMut(unsafe { std::slice::from_raw_parts_mut(self.block_ptr(index), self.stride) })
    }

    /// All blocks in order, to read.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = Block<'_>> {
        (0..self.len).map(|index| self.block(index))
    }

    /// Where block `index` lies, for engines whose workers write different blocks of one batch at the same time.
    /// The address is meaningful only for `index < len`.
    #[must_use]
    #[inline(always)]
    pub fn block_ptr(&self, index: usize) -> *mut u8 {
        self.buffer.as_ptr().wrapping_add(index * self.stride)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_fields_lie_where_the_module_says() {
        let mut batch = Batch::new(100, 2).unwrap();
        assert_eq!(batch.stride(), 128);
        let mut block = batch.push(0x0403_0201).unwrap();
        block.set_outcome(Status::Aborted, 0x1122);
        block.set_sequence(0x0807_0605_0403_0201);
        block.set_serial(9);
        let expected: Vec<u8> =
            [[1, 2, 3, 4, 2, 0, 0x22, 0x11].as_slice(), &[1, 2, 3, 4, 5, 6, 7, 8], &[0; 8], &[9, 0, 0, 0, 0, 0, 0, 0]]
                .concat();
        assert_eq!(block.bytes()[..32], expected);
        let block = batch.block(0);
        assert_eq!(
            (block.procedure(), block.status(), block.abort_code()),
            (0x0403_0201, Some(Status::Aborted), 0x1122)
        );
        assert_eq!((block.sequence(), block.serial()), (0x0807_0605_0403_0201, 9));
    }

    #[test]
    fn request_ids_stand_in_lone_blocks_and_beside_those_of_a_batch() {
        let id = RequestId::new(5, [9; 10]);
        let mut bytes = [0; 64];
        assert_eq!(Block::new(&bytes).request(), None);
        BlockMut::new(&mut bytes).set_request(Some(id));
        assert_eq!((Block::new(&bytes).request(), bytes[24]), (Some(id), 0));
        BlockMut::new(&mut bytes).set_request(None);
        assert_eq!(bytes, [0; 64]);
        let mut batch = Batch::new(64, 3).unwrap();
        (0..3).for_each(|_| _ = batch.push(1));
        assert!(!batch.has_requests());
        batch.set_request(1, id);
        assert_eq!([0, 1, 2].map(|index| batch.request(index)), [None, Some(id), None]);
        assert_eq!(batch.requests().collect::<Vec<_>>(), [(1, id)]);
        batch.clear();
        batch.push(1);
        assert!(!batch.has_requests());
    }

    #[test]
    fn a_full_batch_refuses_and_a_reused_one_is_clean() {
        let mut batch = Batch::new(64, 1).unwrap();
        batch.push(1).unwrap().bytes()[40] = 9;
        assert!(batch.push(2).is_none());
        batch.clear();
        assert_eq!(batch.push(3).unwrap().bytes()[40], 0);
        assert_eq!(batch.block_ptr(0) as usize % 64, 0);
    }
}
