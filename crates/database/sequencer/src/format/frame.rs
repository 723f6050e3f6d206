//! A record on disk: 32 bytes of header, the payload, zeros up to a multiple of 8.
//!
//! ```text
//! offset  bytes  field
//!      0      4  crc32c of bytes 4 to 32
//!      4      4  crc32c of the payload
//!      8      4  salt of the file
//!     12      1  format version: 1
//!     13      1  kind
//!     14      2  zero
//!     16      8  number of the record
//!     24      4  behind: number - behind is the first record that was not known to be durable when this was written
//!     28      4  bytes of the payload
//! ```
//!
//! `behind` is what tells a torn tail from damage: a sound frame that says "everything before n was durable" proves
//! that a bad frame with a number below n was good once.

use super::VERSION;

/// Bytes of the header.
pub(crate) const BYTES: usize = 32;
/// Frames begin at multiples of this.
pub(crate) const ALIGN: usize = 8;
/// The most bytes of a payload.
pub(crate) const MAX_BYTES: usize = 1 << 30;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// Calls, in their serial order.
    Calls,
    /// A table or a procedure.
    Definition,
    /// Rows that were loaded outside any call.
    Rows,
    /// Everything before is durable. It has no number of its own but that of the record that will follow.
    Durable,
    /// In a checkpoint of an earlier version: request ids of 8 bytes and their outcomes.
    Requests,
    /// In a checkpoint: request ids and their outcomes, and the youngest id that was forgotten.
    RequestIds,
    /// In a checkpoint: how many rows its tables have, about.
    Sizes,
    /// In a checkpoint: its end, with counts and the digest.
    End,
    /// Rows of a table and those of its indexes, loaded outside any call: all of them or none.
    Indexed,
    /// In a journal: a leader begins. Its name.
    Epoch,
    /// In a checkpoint of a node: what the first record behind it has to follow.
    Chain,
    /// In a journal: calls, behind the digest of what they answered.
    Answered,
    /// In a journal: the digest of the whole database, as the leader had it here.
    Digest,
    /// In a journal of nodes that have parts: calls to be run, whatever becomes of them.
    Ordered,
    /// The same: all parts make a checkpoint here.
    Cut,
    /// The same: all parts tell the one that leads the rows of some tables.
    Gathered,
    /// The same: rows of a table and those of its indexes, loaded outside any call.
    Loaded,
    /// The same: what further sequencers have in their streams, up to here, has its place here.
    Merged,
    /// The same: the nodes of a part compare digests of their rows here.
    Compared,
    /// In a checkpoint of such a node: how far it is in those streams.
    Streams,
}

impl RecordKind {
    const fn byte(self) -> u8 {
        match self {
            Self::Calls => 1,
            Self::Definition => 2,
            Self::Rows => 3,
            Self::Durable => 4,
            Self::Requests => 5,
            Self::End => 6,
            Self::Sizes => 7,
            Self::Indexed => 8,
            Self::Epoch => 9,
            Self::Chain => 10,
            Self::Answered => 11,
            Self::Digest => 12,
            Self::Ordered => 13,
            Self::Cut => 14,
            Self::Gathered => 15,
            Self::Loaded => 16,
            Self::Merged => 17,
            Self::Streams => 18,
            Self::Compared => 19,
            Self::RequestIds => 20,
        }
    }

    fn of(byte: u8) -> Option<Self> {
        let log = [Self::Calls, Self::Definition, Self::Rows, Self::Indexed, Self::Durable];
        let journal = [Self::Epoch, Self::Answered, Self::Digest];
        let parts = [Self::Ordered, Self::Cut, Self::Gathered, Self::Loaded, Self::Merged, Self::Compared];
        let checkpoint = [Self::Requests, Self::RequestIds, Self::Sizes, Self::End, Self::Chain, Self::Streams];
        log.into_iter().chain(journal).chain(parts).chain(checkpoint).find(|kind| kind.byte() == byte)
    }

    /// Whether it is of nodes that have parts of the tables.
    pub(crate) fn is_of_parts(self) -> bool {
        matches!(self, Self::Ordered | Self::Cut | Self::Gathered | Self::Loaded | Self::Merged | Self::Compared)
    }

    /// Its name in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::Definition => "definition",
            Self::Rows => "rows",
            Self::Durable => "durable",
            Self::Requests => "requests",
            Self::RequestIds => "request ids",
            Self::End => "end",
            Self::Sizes => "sizes",
            Self::Indexed => "indexed",
            Self::Epoch => "epoch",
            Self::Chain => "chain",
            Self::Answered => "answered",
            Self::Digest => "digest",
            Self::Ordered => "ordered",
            Self::Cut => "cut",
            Self::Gathered => "gathered",
            Self::Loaded => "loaded",
            Self::Merged => "merged",
            Self::Streams => "streams",
            Self::Compared => "compared",
        }
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: RecordKind,
    pub(crate) number: u64,
    pub(crate) behind: u32,
    pub(crate) length: u32,
    pub(crate) payload_crc: u32,
}

impl Frame {
    /// Every record before this one was durable when the frame was written.
    pub(crate) fn durable(&self) -> u64 {
        self.number.saturating_sub(u64::from(self.behind))
    }

    /// Bytes of the whole frame, padding included.
    pub(crate) fn bytes(&self) -> usize {
        whole(self.length as usize)
    }

    /// Reads a header, all of whose own bytes must be right. `None` when they are not.
    pub(crate) fn decode(bytes: &[u8], salt: u32) -> Option<Self> {
        let header: &[u8; BYTES] = bytes.get(..BYTES)?.try_into().ok()?;
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
        if word(8) != salt || word(0) != crc32c::crc32c(&header[4..]) {
            return None;
        }
        let sound = header[12] == VERSION as u8 && header[14..16] == [0, 0] && word(28) as usize <= MAX_BYTES;
        let number = u64::from_le_bytes(header[16..24].try_into().expect("eight bytes"));
        let kind = RecordKind::of(header[13]).filter(|_| sound)?;
        Some(Self { kind, number, behind: word(24), length: word(28), payload_crc: word(4) })
    }

    fn encode(&self, salt: u32) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[4..8].copy_from_slice(&self.payload_crc.to_le_bytes());
        bytes[8..12].copy_from_slice(&salt.to_le_bytes());
        bytes[12] = VERSION as u8;
        bytes[13] = self.kind.byte();
        bytes[16..24].copy_from_slice(&self.number.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.behind.to_le_bytes());
        bytes[28..].copy_from_slice(&self.length.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

/// Bytes of a frame with a payload of `length` bytes.
pub(crate) const fn whole(length: usize) -> usize {
    (BYTES + length).next_multiple_of(ALIGN)
}

/// Appends a frame whose payload `payload` writes.
pub(crate) fn put(
    out: &mut Vec<u8>,
    salt: u32,
    kind: RecordKind,
    number: u64,
    behind: u32,
    payload: impl FnOnce(&mut Vec<u8>),
) {
    let start = out.len();
    out.resize(start + BYTES, 0);
    payload(out);
    let length = out.len() - start - BYTES;
    assert!(length <= MAX_BYTES, "a payload of {length} bytes");
    let payload_crc = crc32c::crc32c(&out[start + BYTES..]);
    let frame = Frame { kind, number, behind, length: length as u32, payload_crc };
    out[start..start + BYTES].copy_from_slice(&frame.encode(salt));
    out.resize(start + whole(length), 0);
}

/// Writes into the frame at the start of `bytes` which records are durable by now.
///
/// # Panics
/// When there is no sound frame.
pub(crate) fn set_durable(bytes: &mut [u8], salt: u32, durable: u64) {
    let mut frame = Frame::decode(bytes, salt).expect("a frame that was written just now");
    frame.behind = u32::try_from(frame.number.saturating_sub(durable)).unwrap_or(u32::MAX);
    bytes[..BYTES].copy_from_slice(&frame.encode(salt));
}

/// What stands at a place in a file of frames.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found<'a> {
    /// A sound frame and its payload.
    Frame(Frame, &'a [u8]),
    /// Nothing but zeros, or nothing, up to the end of the file.
    Nothing,
    /// Something that is no sound frame; why.
    Bad(String),
    /// A header that is sound but for its format version.
    Version(u32),
}

/// Looks at the bytes of a file from where a frame should begin.
pub(crate) fn look(bytes: &[u8], salt: u32) -> Found<'_> {
    let Some(frame) = Frame::decode(bytes, salt) else {
        if bytes.iter().all(|&byte| byte == 0) {
            return Found::Nothing;
        }
        if let Some(header) = bytes.get(..BYTES)
            && header[8..12] == salt.to_le_bytes()
            && header[..4] == crc32c::crc32c(&header[4..]).to_le_bytes()
            && header[12] != VERSION as u8
        {
            return Found::Version(u32::from(header[12]));
        }
        let short = bytes.len() < BYTES;
        let why = if short { "the file ends inside a record's header" } else { "no sound record header stands here" };
        return Found::Bad(why.into());
    };
    let Some(rest) = bytes.get(BYTES..frame.bytes()) else {
        return Found::Bad(format!("the file ends inside record {}", frame.number));
    };
    let (payload, padding) = rest.split_at(frame.length as usize);
    if crc32c::crc32c(payload) != frame.payload_crc {
        return Found::Bad(format!("the checksum of record {} is wrong", frame.number));
    }
    if padding.iter().any(|&byte| byte != 0) {
        return Found::Bad(format!("the padding of record {} is not zero", frame.number));
    }
    Found::Frame(frame, payload)
}

/// The first sound header at or behind `from` that proves that everything before `number` + 1 was durable; its place.
pub(crate) fn proof(bytes: &[u8], from: usize, salt: u32, number: u64) -> Option<usize> {
    let marks = salt.to_le_bytes();
    (from.next_multiple_of(ALIGN)..bytes.len().saturating_sub(BYTES - 1)).step_by(ALIGN).find(|&at| {
        bytes[at + 8..at + 12] == marks && Frame::decode(&bytes[at..], salt).is_some_and(|f| f.durable() > number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_the_module_says() {
        let mut bytes = Vec::new();
        put(&mut bytes, 0xA1B2_C3D4, RecordKind::Rows, 0x0102_0304, 3, |out| out.extend(b"hello"));
        assert_eq!(bytes.len(), 40);
        assert_eq!(bytes[8..16], [0xD4, 0xC3, 0xB2, 0xA1, 1, 3, 0, 0]);
        assert_eq!(bytes[16..32], [4, 3, 2, 1, 0, 0, 0, 0, 3, 0, 0, 0, 5, 0, 0, 0]);
        assert_eq!(bytes[32..], *b"hello\0\0\0");
        let Found::Frame(frame, payload) = look(&bytes, 0xA1B2_C3D4) else { panic!("{bytes:?}") };
        assert_eq!((frame.number, frame.durable(), payload), (0x0102_0304, 0x0102_0301, b"hello".as_slice()));
        set_durable(&mut bytes, 0xA1B2_C3D4, 0x0102_0304);
        let Found::Frame(frame, _) = look(&bytes, 0xA1B2_C3D4) else { panic!("{bytes:?}") };
        assert_eq!(frame.behind, 0);
    }

    #[test]
    fn every_flipped_bit_of_a_frame_is_found() {
        let mut bytes = Vec::new();
        put(&mut bytes, 7, RecordKind::Calls, 9, 0, |out| out.extend([0x55; 21]));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(look(&flipped, 7), Found::Bad(_)), "bit {bit}");
        }
    }
}
