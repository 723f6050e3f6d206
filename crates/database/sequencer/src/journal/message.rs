//! A record as a message of a journal: 72 bytes of header, then the record's frame.
//!
//! ```text
//! offset  bytes  field
//!      0      8  "LWKMSG\r\n"
//!      8      4  format version: 1
//!     12      4  zero
//!     16      8  database: a random number, the same in all messages of a journal
//!     24      8  epoch
//!     32     32  BLAKE3 of the message before, all of it; zeros in the first
//!     64      4  crc32c of bytes 0 to 64
//!     68      4  zero
//!     72      -  the frame, whose number is that of the message
//! ```
//!
//! An epoch begins with a record that has no other purpose, of the leader's name.

use std::path::Path;

use crate::error::Error;
use crate::format::VERSION;
use crate::format::frame::{self, Found, Frame, RecordKind};
use crate::journal::answers::Answers;

/// Bytes of the header.
pub(crate) const BYTES: usize = 72;

const MAGIC: &[u8; 8] = b"LWKMSG\r\n";

/// Bytes of a message beside the payload of its record, at most.
pub(crate) const OVERHEAD: usize = BYTES + frame::BYTES + Answers::BYTES + frame::ALIGN;

/// What the next message has to follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chain {
    /// Which database it is; 0 before the first message.
    pub(crate) database: u64,
    /// The epoch of the last message; 0 before the first.
    pub(crate) epoch: u64,
    /// Its hash.
    pub(crate) hash: [u8; 32],
}

/// Of every frame in the messages of a database.
pub(crate) fn salt(database: u64) -> u32 {
    crc32c::crc32c(&database.to_le_bytes())
}

impl Chain {
    /// The message of a frame, which the chain then ends with.
    pub(crate) fn seal(&mut self, frame: &[u8]) -> Vec<u8> {
        let mut message = Vec::with_capacity(BYTES + frame.len());
        message.extend(MAGIC);
        message.extend(VERSION.to_le_bytes());
        message.extend([0; 4]);
        message.extend(self.database.to_le_bytes());
        message.extend(self.epoch.to_le_bytes());
        message.extend(self.hash);
        message.extend(crc32c::crc32c(&message).to_le_bytes());
        message.extend([0; 4]);
        message.extend(frame);
        self.hash = *blake3::hash(&message).as_bytes();
        message
    }

    /// The first message of a new epoch, which the chain then ends with.
    pub(crate) fn begin_epoch(&mut self, number: u64, leader: &str) -> Vec<u8> {
        self.epoch += 1;
        let mut bytes = Vec::new();
        let kind = RecordKind::Epoch;
        frame::put(&mut bytes, salt(self.database), kind, number, 0, |out| out.extend(leader.as_bytes()));
        self.seal(&bytes)
    }

    /// Verifies message `number`, which the chain then ends with, and returns its frame and payload.
    ///
    /// # Errors
    /// [`Error::Damaged`] and [`Error::Version`]; the chain is as before.
    pub(crate) fn verify<'a>(
        &mut self,
        path: &Path,
        number: u64,
        message: &'a [u8],
    ) -> Result<(Frame, &'a [u8]), Error> {
        let damaged = |problem: String| Error::damaged(path, number, problem);
        let (after, before, frame, payload) = parse(path, number, message)?;
        if self.epoch > 0 && after.database != self.database {
            let problem = format!("the message is of database {:016x}, not {:016x}", after.database, self.database);
            return Err(damaged(problem));
        }
        if before != self.hash {
            let problem = "the message does not follow the one before it: one was lost, altered, or appended twice";
            return Err(damaged(problem.into()));
        }
        let due = self.epoch + u64::from(frame.kind == RecordKind::Epoch);
        if after.epoch != due {
            return Err(damaged(format!("the record is of epoch {}, and one of epoch {due} is due", after.epoch)));
        }
        *self = after;
        Ok((frame, payload))
    }

    /// The chain that ends with message `number`, which may follow anything.
    ///
    /// # Errors
    /// As [`Self::verify`].
    pub(crate) fn behind(path: &Path, number: u64, message: &[u8]) -> Result<Self, Error> {
        Ok(parse(path, number, message)?.0)
    }

    /// Bytes of [`Self::encode`].
    pub(crate) const BYTES: usize = 48;

    /// For a checkpoint: what the first record behind it has to follow.
    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.database.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[16..].copy_from_slice(&self.hash);
        bytes
    }

    /// # Errors
    /// What is wrong with it, in words.
    pub(crate) fn decode(payload: &[u8]) -> Result<Self, String> {
        let bytes: &[u8; Self::BYTES] =
            payload.try_into().map_err(|_| format!("the end of a chain of {} bytes", payload.len()))?;
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        Ok(Self { database: long(0), epoch: long(8), hash: bytes[16..].try_into().expect("32 bytes") })
    }
}

/// How far a node is in a stream of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// The number of the next message.
    pub(crate) next: u64,
    /// What it has to follow.
    pub(crate) chain: Chain,
}

impl Position {
    /// Before the first message.
    pub(crate) const START: Self = Self { next: 1, chain: Chain { database: 0, epoch: 0, hash: [0; 32] } };

    /// Bytes of [`Self::encode`].
    const BYTES: usize = 8 + Chain::BYTES;

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.next.to_le_bytes());
        out.extend(self.chain.encode());
    }

    /// All of them that stand one behind the other.
    ///
    /// # Errors
    /// What is wrong with them, in words.
    pub(crate) fn decode_all(payload: &[u8]) -> Result<Vec<Self>, String> {
        let each = |bytes: &[u8]| match bytes.split_first_chunk() {
            Some((next, chain)) if bytes.len() == Self::BYTES => {
                Ok(Self { next: u64::from_le_bytes(*next), chain: Chain::decode(chain)? })
            }
            _ => Err(format!("positions of {} bytes", payload.len())),
        };
        payload.chunks(Self::BYTES).map(each).collect()
    }
}

/// The chain that ends with a message, the hash of the message before, and its frame and payload.
type Parsed<'a> = (Chain, [u8; 32], Frame, &'a [u8]);

/// What a message says by itself.
fn parse<'a>(path: &Path, number: u64, message: &'a [u8]) -> Result<Parsed<'a>, Error> {
    let damaged = |problem: String| Error::damaged(path, number, problem);
    let Some((header, body)) = message.split_at_checked(BYTES) else {
        return Err(damaged(format!("a message of {} bytes is none of Lockwork's", message.len())));
    };
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
    let long = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
    if &header[..8] != MAGIC {
        return Err(damaged("the message is none of Lockwork's: something else writes there".into()));
    }
    if word(64) != crc32c::crc32c(&header[..64]) || word(68) != 0 {
        return Err(damaged("the checksum of the message's header is wrong".into()));
    }
    if word(8) != VERSION {
        return Err(Error::Version { path: path.into(), found: word(8), wanted: VERSION });
    }
    let chain = Chain { database: long(16), epoch: long(24), hash: *blake3::hash(message).as_bytes() };
    match frame::look(body, salt(chain.database)) {
        Found::Frame(frame, payload) if frame.bytes() == body.len() => {
            if frame.number != number {
                return Err(damaged(format!("record {} stands where record {number} is due", frame.number)));
            }
            Ok((chain, header[32..64].try_into().expect("32 bytes"), frame, payload))
        }
        Found::Bad(problem) => Err(damaged(problem)),
        Found::Version(found) => Err(Error::Version { path: path.into(), found, wanted: VERSION }),
        Found::Frame(..) | Found::Nothing => Err(damaged("the message holds no record".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(chain: &Chain, number: u64, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame::put(&mut bytes, salt(chain.database), RecordKind::Calls, number, 0, |out| out.extend(payload));
        bytes
    }

    /// An epoch, three records, another epoch, a record.
    fn messages() -> Vec<Vec<u8>> {
        let mut chain = Chain { database: 7, ..Chain::default() };
        let mut messages = vec![chain.begin_epoch(1, "a")];
        for number in 2..5 {
            messages.push(chain.seal(&frame(&chain, number, &[number as u8; 5])));
        }
        messages.push(chain.begin_epoch(5, "b"));
        messages.push(chain.seal(&frame(&chain, 6, b"six")));
        messages
    }

    fn read(messages: &[Vec<u8>]) -> Result<Chain, Error> {
        let mut chain = Chain::default();
        for (message, number) in messages.iter().zip(1..) {
            chain.verify(Path::new("journal"), number, message)?;
        }
        Ok(chain)
    }

    #[test]
    fn a_chain_is_read_as_it_was_written() {
        let chain = read(&messages()).unwrap();
        assert_eq!((chain.database, chain.epoch), (7, 2));
        assert_eq!(Chain::decode(&chain.encode()).unwrap(), chain);
    }

    #[test]
    fn positions_are_read_as_they_were_written() {
        let chain = read(&messages()).unwrap();
        let positions = [Position { next: 7, chain }, Position::START];
        let mut payload = Vec::new();
        positions.iter().for_each(|position| position.encode(&mut payload));
        assert_eq!(Position::decode_all(&payload), Ok(positions.to_vec()));
        assert_eq!(Position::decode_all(&[]), Ok(Vec::new()));
        assert_eq!(Position::decode_all(&payload[..60]), Err("positions of 60 bytes".into()));
    }

    #[test]
    fn what_is_lost_altered_swapped_or_forked_is_found() {
        let sound = messages();
        let is_found =
            |messages: &[Vec<u8>]| matches!(read(messages), Err(Error::Damaged { .. } | Error::Version { .. }));
        for at in 0..sound.len() {
            for bit in 0..sound[at].len() * 8 {
                let mut flipped = sound.clone();
                flipped[at][bit / 8] ^= 1 << (bit % 8);
                assert!(is_found(&flipped), "message {at}, bit {bit}");
            }
            let mut lost = sound.clone();
            lost.remove(at);
            // Nothing behind the last message tells that it is lost.
            assert_eq!(is_found(&lost), at + 1 < sound.len(), "without message {at}");
            let mut twice = sound.clone();
            twice.insert(at, sound[at].clone());
            assert!(is_found(&twice), "message {at} twice");
            let mut cut = sound.clone();
            cut[at].pop();
            assert!(is_found(&cut), "message {at}, cut");
        }
        for at in 1..sound.len() {
            let mut swapped = sound.clone();
            swapped.swap(at - 1, at);
            assert!(is_found(&swapped), "messages {at} and the one before swapped");
        }
        // Another leader's record in place of ours, sound by itself, is found by the next.
        let mut chain = read(&sound[..3]).unwrap();
        let mut forked = sound.clone();
        forked[3] = chain.seal(&frame(&chain, 4, b"other"));
        assert!(read(&forked[..4]).is_ok() && is_found(&forked));
    }
}
