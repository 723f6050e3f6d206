//! Numbers and texts as bytes: little-endian, one after the other.
//!
//! Invariant: [`Reader`] never looks past the end, and no length that it reads is believed before that many bytes are
//! seen to be there; so what somebody else wrote can be wrong, but cannot make us panic or take memory.

use std::fmt;

/// Bytes that are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset}: {problem}")]
pub struct Malformed {
    /// Where, counted from the start of the message.
    pub offset: usize,
    /// What is wrong, and what would be right.
    pub problem: String,
}

/// Takes fields off the front of a message.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// An error about the field that was read last.
    pub(crate) fn wrong<T>(&self, problem: impl fmt::Display) -> Result<T, Malformed> {
        Err(Malformed { offset: self.at, problem: problem.to_string() })
    }

    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        match self.bytes[self.at..].get(..count) {
            Some(taken) => {
                self.at += count;
                Ok(taken)
            }
            None => self.wrong(format_args!("{count} more bytes should follow, and {} do", self.left())),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn i64(&mut self) -> Result<i64, Malformed> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    /// One of two: zero or one.
    pub(crate) fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => self.wrong(format_args!("{other} is neither 0 nor 1")),
        }
    }

    /// A length of four bytes, and that many bytes.
    pub(crate) fn counted(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u32()?;
        self.take(length as usize)
    }

    /// A length of four bytes, and that many bytes of UTF-8.
    pub(crate) fn text(&mut self) -> Result<&'a str, Malformed> {
        let bytes = self.counted()?;
        std::str::from_utf8(bytes).or_else(|error| self.wrong(format_args!("no UTF-8: {error}")))
    }

    /// The message must end here.
    pub(crate) fn end(&self) -> Result<(), Malformed> {
        match self.left() {
            0 => Ok(()),
            left => self.wrong(format_args!("the message should end here; {left} bytes follow")),
        }
    }
}

/// Puts fields at the end of a message.
pub(crate) trait Put {
    fn u8(&mut self, value: u8);
    fn u16(&mut self, value: u16);
    fn u32(&mut self, value: u32);
    fn u64(&mut self, value: u64);
    /// A length of four bytes, and the bytes.
    fn counted(&mut self, bytes: &[u8]);
}

impl Put for Vec<u8> {
    fn u8(&mut self, value: u8) {
        self.push(value);
    }

    fn u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn counted(&mut self, bytes: &[u8]) {
        Put::u32(self, u32::try_from(bytes.len()).expect("messages are shorter than 4 GiB"));
        self.extend_from_slice(bytes);
    }
}
