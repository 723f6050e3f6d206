//! Where records go, as the order thread sees it: it reserves room before a batch runs.

use std::sync::Arc;

use super::space::{Segment, Space};
use crate::error::Error;

/// About how many bytes of payload a record in a segment has at most, so that reading one takes little memory.
const RECORD_BYTES: usize = 16 << 20;

/// See the module.
pub(crate) enum Room {
    /// Into segments of a directory.
    Segments(Space),
    /// Into messages of a journal, which has room until it says otherwise.
    Messages {
        /// Of every frame.
        salt: u32,
        /// The most bytes of payload of a record.
        most_bytes: usize,
    },
}

impl Room {
    /// The most bytes of payload that a record should have.
    pub(crate) fn record_bytes(&self) -> usize {
        match self {
            Self::Segments(_) => RECORD_BYTES,
            Self::Messages { most_bytes, .. } => *most_bytes,
        }
    }

    /// Of every frame that is written now.
    pub(crate) fn salt(&self) -> u32 {
        match self {
            Self::Segments(space) => space.segment.salt,
            Self::Messages { salt, .. } => *salt,
        }
    }

    /// The segment that is written now, if there are segments.
    pub(crate) fn segment(&self) -> Option<&Arc<Segment>> {
        match self {
            Self::Segments(space) => Some(&space.segment),
            Self::Messages { .. } => None,
        }
    }

    /// As [`Space::reserve`].
    pub(crate) fn reserve(&mut self, bytes: u64) -> bool {
        match self {
            Self::Segments(space) => space.reserve(bytes),
            Self::Messages { .. } => true,
        }
    }

    /// As [`Space::settle`].
    pub(crate) fn settle(&mut self, bytes: u64, used: u64) {
        if let Self::Segments(space) = self {
            space.settle(bytes, used);
        }
    }

    /// As [`Space::advance`].
    ///
    /// # Errors
    /// As there.
    pub(crate) fn advance(
        &mut self,
        first: u64,
        bytes: u64,
        durable: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        match self {
            Self::Segments(space) => space.advance(first, bytes, durable),
            Self::Messages { .. } => Ok(()),
        }
    }

    /// As [`Space::close`].
    ///
    /// # Errors
    /// As there.
    pub(crate) fn close(&mut self, first: u64, durable: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        match self {
            Self::Segments(space) => space.close(first, durable),
            Self::Messages { .. } => Ok(()),
        }
    }
}
