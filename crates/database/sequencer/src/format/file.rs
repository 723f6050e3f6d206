//! The header of a file: 64 bytes.
//!
//! ```text
//! offset  bytes  field
//!      0      8  magic: "LWKLOG\r\n" of a segment, "LWKCKP\r\n" of a checkpoint, "LWKDIR\r\n" of FORMAT
//!      8      4  format version: 1
//!     12      4  bytes of this header: 64
//!     16      8  database: a random number, the same in every file of one directory
//!     24      8  number: of a segment the first record's, of a checkpoint the last record's that it covers, else 0
//!     32     28  zero
//!     60      4  crc32c of bytes 0 to 60
//! ```
//!
//! The line ends in the magic show a transfer that took the file for text. The checksum of the header, which depends on
//! the random number, is the *salt* of all frames in the file: bytes that a client sends cannot pass for a frame.

use std::path::Path;

use super::{Cursor, VERSION};
use crate::error::Error;

/// Bytes of the header.
pub(crate) const BYTES: usize = 64;

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    Segment,
    Checkpoint,
    Format,
}

impl FileKind {
    const fn magic(self) -> &'static [u8; 8] {
        match self {
            Self::Segment => b"LWKLOG\r\n",
            Self::Checkpoint => b"LWKCKP\r\n",
            Self::Format => b"LWKDIR\r\n",
        }
    }
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileHeader {
    pub(crate) kind: FileKind,
    pub(crate) database: u64,
    pub(crate) number: u64,
}

impl FileHeader {
    pub(crate) fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(self.kind.magic());
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(BYTES as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.database.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.number.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The salt of the frames behind this header.
    pub(crate) fn salt(&self) -> u32 {
        u32::from_le_bytes(self.encode()[60..].try_into().expect("four bytes"))
    }

    /// Reads the header of a file that should be of this kind.
    ///
    /// # Errors
    /// [`Error::Version`] when everything else is sound, [`Error::Damaged`] otherwise.
    pub(crate) fn decode(path: &Path, bytes: &[u8], kind: FileKind) -> Result<Self, Error> {
        let damaged = |offset, problem: String| Error::damaged(path, offset, problem);
        let Some(header) = bytes.get(..BYTES) else {
            return Err(damaged(0, format!("the file has {} bytes, and its header needs {BYTES}", bytes.len())));
        };
        if &header[..8] != kind.magic() {
            return Err(damaged(0, format!("it does not begin as a {kind:?} file does")));
        }
        let mut cursor = Cursor::new(&header[8..]);
        let mut word = || cursor.u32("the header").map_err(|problem| damaged(0, problem));
        let (version, length) = (word()?, word()?);
        let mut long = || cursor.u64("the header").map_err(|problem| damaged(0, problem));
        let (database, number) = (long()?, long()?);
        let crc = u32::from_le_bytes(header[60..].try_into().expect("four bytes"));
        if crc32c::crc32c(&header[..60]) != crc {
            return Err(damaged(0, "the checksum of the header is wrong".into()));
        }
        if version != VERSION {
            return Err(Error::Version { path: path.to_path_buf(), found: version, wanted: VERSION });
        }
        if length != BYTES as u32 || header[32..60].iter().any(|&byte| byte != 0) {
            return Err(damaged(12, "the header has fields that version 1 does not have".into()));
        }
        Ok(Self { kind, database, number })
    }
}
