//! The bytes on disk, all little-endian; `docs/durability.md` draws them.
//!
//! | module | idea |
//! |---|---|
//! | `file` | the header of a file: magic, version, whose it is, from which record on |
//! | `frame` | a record: header with checksums, number, length; payload |
//! | `calls` | the payload that calls make |
//! | `items` | the other payloads: definitions, rows, requests, the end of a checkpoint |
//!
//! Decoding takes any bytes, allocates no more than a constant multiple of them, and never panics.

pub(crate) mod calls;
pub(crate) mod file;
pub(crate) mod frame;
pub(crate) mod items;

/// The format version that is written and read.
pub const VERSION: u32 = 1;

/// No log has a record of this number: nodes that have parts of the tables stamp calls by the number of their record
/// and 20 bits more.
pub(crate) const RECORDS_END: u64 = 1 << 44;

/// Takes pieces off the front of a payload. What is missing is an error in words.
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(crate) fn take(&mut self, count: usize, what: &str) -> Result<&'a [u8], String> {
        let piece = self.bytes[self.at..].get(..count);
        let piece = piece.ok_or_else(|| format!("{what} needs {count} bytes and {} are left", self.left()))?;
        self.at += count;
        Ok(piece)
    }

    pub(crate) fn u16(&mut self, what: &str) -> Result<u16, String> {
        Ok(u16::from_le_bytes(self.take(2, what)?.try_into().expect("two bytes")))
    }

    pub(crate) fn u32(&mut self, what: &str) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.take(4, what)?.try_into().expect("four bytes")))
    }

    pub(crate) fn u64(&mut self, what: &str) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.take(8, what)?.try_into().expect("eight bytes")))
    }

    pub(crate) fn text(&mut self, count: usize, what: &str) -> Result<String, String> {
        let bytes = self.take(count, what)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| format!("{what} is not UTF-8"))
    }

    /// LEB128, at most 64 bits, in its shortest form.
    pub(crate) fn varint(&mut self, what: &str) -> Result<u64, String> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1, what)?[0];
            let bits = u64::from(byte & 0x7F);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                if byte == 0 && shift > 0 {
                    break;
                }
                return Ok(value);
            }
        }
        Err(format!("{what} is no number"))
    }
}

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
