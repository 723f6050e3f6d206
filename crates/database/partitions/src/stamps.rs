//! The counter that puts transactions in order, in memory that all workers share.
//!
//! A transaction takes its stamp while it holds all its locks. If two conflict, one takes its stamp before it releases
//! what the other one waits for, so ascending stamps are an order that the transactions are equivalent to.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::MmapRaw;

/// See the module.
#[derive(Debug)]
pub(crate) struct Stamps(MmapRaw);

impl Stamps {
    /// A counter, and the file that others [attach](Self::attach).
    pub(crate) fn create() -> io::Result<OwnedFd> {
        let file = lockwork_memory::shared::anonymous_file(c"lockwork-stamps")?;
        file.set_len(size_of::<AtomicU64>() as u64)?;
        Ok(file.into())
    }

    pub(crate) fn attach(file: OwnedFd) -> io::Result<Self> {
        let file = File::from(file);
        if file.metadata()?.len() < size_of::<AtomicU64>() as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is too short for a counter"));
        }
        Ok(Self(MmapRaw::map_raw(&file)?))
    }

    /// The next stamp, from 1 on.
    pub(crate) fn next(&self) -> u64 {
        // SAFETY: the mapping is page-aligned, long enough, and written by atomic operations only.
        let counter = unsafe { &*self.0.as_ptr().cast::<AtomicU64>() };
        counter.fetch_add(1, Ordering::SeqCst) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_who_attach_count_together() {
        let file = Stamps::create().unwrap();
        let [one, other] = [0; 2].map(|_| Stamps::attach(file.try_clone().unwrap()).unwrap());
        assert_eq!([one.next(), other.next(), one.next()], [1, 2, 3]);
    }
}
