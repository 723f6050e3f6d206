//! What members of a divided engine tell each other at one place of the order, outside of calls: rows of whole tables
//! for the one that answers a query, and which of the rows that come from outside are refused.
//!
//! A coordinator and its member are two threads, and what they hand each other may be as large as tables are. So it
//! lies here, and the streams between them say only that there is something.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Something to be told to others.
#[derive(Debug)]
pub(crate) struct Share {
    /// The place that it is of.
    pub(crate) stamp: u64,
    /// To whom: a bit for each member.
    pub(crate) whom: u64,
    /// Whether who begins again needs it once more. What is not is dropped when all have it.
    pub(crate) stays: bool,
    pub(crate) bytes: Vec<u8>,
}

/// What was told, by place and by who told it.
type Heard = BTreeMap<(u64, usize), Vec<u8>>;

/// See the module.
#[derive(Debug)]
pub(crate) struct Exchange {
    new: Mutex<Vec<Share>>,
    heard: Mutex<Heard>,
    /// The first place of which something may still have to be heard.
    wanted: Arc<AtomicU64>,
}

fn own<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Exchange {
    pub(crate) fn new(wanted: Arc<AtomicU64>) -> Self {
        Self { new: Mutex::default(), heard: Mutex::default(), wanted }
    }

    /// Whether what is of this place is of no interest any more.
    pub(crate) fn is_over(&self, stamp: u64) -> bool {
        stamp < self.wanted.load(Ordering::Acquire)
    }

    /// The coordinator hands over what is to be told.
    pub(crate) fn tell(&self, share: Share) {
        own(&self.new).push(share);
    }

    /// The member takes it.
    pub(crate) fn to_tell(&self) -> Vec<Share> {
        std::mem::take(&mut own(&self.new))
    }

    /// The member hands over what another one has told, whole.
    pub(crate) fn hear(&self, stamp: u64, from: usize, bytes: Vec<u8>) {
        own(&self.heard).insert((stamp, from), bytes);
    }

    /// The coordinator takes what a member has told of a place.
    pub(crate) fn take(&self, stamp: u64, from: usize) -> Option<Vec<u8>> {
        own(&self.heard).remove(&(stamp, from))
    }

    /// Drops what is of places before this one.
    pub(crate) fn drop_before(&self, stamp: u64) {
        let mut heard = own(&self.heard);
        *heard = heard.split_off(&(stamp, 0));
    }
}
