//! A disk in memory whose calls fail when told to, for tests.
//!
//! Calls that can fail (reads, writes, syncs, growth) are counted. At the chosen one the [`Fault`] happens, once, or
//! from then on for a crash. [`MemoryDisk::after_crash`] is what the next process finds: all that was synced, and of
//! what was not, any sectors that a seed picks. That is what a real disk may leave, so it is what recovery must bear.
//! A sync that fails forgets what it was to make durable, as Linux does: the next one succeeds without it.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use super::{Disk, PAGE_BYTES, Page, PlainQueue, ReadQueue};

const SECTOR: usize = 512;

/// What happens at the chosen call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails and does nothing.
    Fail,
    /// It fails for want of room; a write has done the first half.
    NoSpace,
    /// A write does the first half and fails; a read finds the end of the file.
    Short,
    /// A write does every other sector and fails.
    Torn,
    /// It and all after it fail.
    Crash,
    /// It fails if it is no read, and so do all after it.
    NoMoreWrites,
}

#[derive(Default)]
struct State {
    /// What a reader sees.
    bytes: Vec<u8>,
    /// What a crash leaves for certain.
    durable: Vec<u8>,
    /// Sectors that differ perhaps.
    dirty: BTreeSet<usize>,
    /// Sectors that differ perhaps for ever: a sync that was to make them durable has failed.
    lost: BTreeSet<usize>,
    calls: u64,
    plan: Option<(u64, Fault)>,
    crashed: bool,
    read_only: bool,
    capacity: Option<u32>,
}

/// A disk in memory. Clones are the same disk.
#[derive(Clone, Default)]
pub struct MemoryDisk(Arc<Mutex<State>>);

impl MemoryDisk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A disk with this content.
    #[must_use]
    pub fn with(bytes: Vec<u8>) -> Self {
        let disk = Self::new();
        disk.lock().durable.clone_from(&bytes);
        disk.lock().bytes = bytes;
        disk
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Lets the `n`th call from now on, counted from zero, go wrong.
    pub fn fail_at(&self, n: u64, fault: Fault) {
        let mut state = self.lock();
        state.plan = Some((state.calls + n, fault));
    }

    /// Takes the plan back, heals the disk unless it has crashed, and says whether the plan had not come to pass.
    pub fn forget_fault(&self) -> bool {
        let mut state = self.lock();
        state.read_only = false;
        state.plan.take().is_some()
    }

    /// Limits its length; `None` takes the limit away.
    pub fn limit(&self, pages: Option<u32>) {
        self.lock().capacity = pages;
    }

    /// A copy of what is on it now.
    #[must_use]
    pub fn content(&self) -> Vec<u8> {
        self.lock().bytes.clone()
    }

    /// The disk that the next process finds when only this one has died: all that was written, but not durable for
    /// that.
    #[must_use]
    pub fn after_kill(&self) -> Self {
        let state = self.lock();
        let (bytes, durable) = (state.bytes.clone(), state.durable.clone());
        let (dirty, lost, capacity) = (state.dirty.clone(), state.lost.clone(), state.capacity);
        Self(Arc::new(Mutex::new(State { bytes, durable, dirty, lost, capacity, ..State::default() })))
    }

    /// The disk that the next process finds after a crash at this moment.
    #[must_use]
    pub fn after_crash(&self, seed: u64) -> Self {
        let state = self.lock();
        let mut bytes = state.durable.clone();
        let mut random = lockwork_random::Random(seed);
        for &sector in state.dirty.union(&state.lost) {
            let kept = random.one_in(2);
            // Some seeds lose everything, some nothing, most a part.
            let keep = match seed % 4 {
                0 => false,
                1 => true,
                _ => kept,
            };
            let range = sector * SECTOR..(sector + 1) * SECTOR;
            if keep && range.end <= state.bytes.len() {
                if bytes.len() < range.end {
                    bytes.resize(range.end.next_multiple_of(PAGE_BYTES), 0);
                }
                bytes[range.clone()].copy_from_slice(&state.bytes[range]);
            }
        }
        drop(state);
        Self::with(bytes)
    }
}

impl State {
    /// Counts a call and says what shall go wrong with it.
    fn call(&mut self, reads: bool) -> io::Result<Option<Fault>> {
        let number = self.calls;
        self.calls += 1;
        let due = self.plan.is_some_and(|(at, _)| at <= number);
        let fault = if due { self.plan.take().map(|(_, fault)| fault) } else { None };
        self.crashed |= fault == Some(Fault::Crash);
        self.read_only |= fault == Some(Fault::NoMoreWrites);
        match fault {
            _ if self.read_only && !self.crashed => {
                if reads {
                    Ok(None)
                } else {
                    Err(io::Error::other("no more writes (test)"))
                }
            }
            _ if self.crashed => Err(io::Error::other("the process has crashed (test)")),
            Some(Fault::Fail) => Err(io::Error::other("failed by a test")),
            other => Ok(other),
        }
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        for sector in at / SECTOR..(at + bytes.len()) / SECTOR {
            self.dirty.insert(sector);
            self.lost.remove(&sector);
        }
    }
}

impl Disk for MemoryDisk {
    fn read(&self, first: u32, pages: &mut [Page]) -> io::Result<()> {
        let mut state = self.lock();
        let fault = state.call(true)?;
        let target = Page::bytes_mut(pages);
        let start = first as usize * PAGE_BYTES;
        match state.bytes.get(start..start + target.len()) {
            // Nobody needs room to read.
            Some(source) if matches!(fault, None | Some(Fault::NoSpace)) => target.copy_from_slice(source),
            _ => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        Ok(())
    }

    fn write(&self, first: u32, pages: &[Page]) -> io::Result<()> {
        let mut state = self.lock();
        let fault = state.call(false)?;
        let source = Page::bytes(pages);
        let start = first as usize * PAGE_BYTES;
        if start + source.len() > state.bytes.len() {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "written beyond what was allocated"));
        }
        match fault {
            None => state.put(start, source),
            Some(Fault::Torn) => {
                for at in (0..source.len()).step_by(2 * SECTOR) {
                    state.put(start + at, &source[at..at + SECTOR]);
                }
            }
            Some(_) => state.put(start, &source[..source.len() / 2]),
        }
        match fault {
            None => Ok(()),
            Some(Fault::NoSpace) => Err(io::ErrorKind::StorageFull.into()),
            Some(_) => Err(io::Error::new(io::ErrorKind::WriteZero, "shortened by a test")),
        }
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.lock();
        let fault = state.call(false);
        let State { bytes, durable, dirty, lost, crashed, .. } = &mut *state;
        let error = match fault {
            Ok(None) => None,
            Ok(Some(Fault::NoSpace)) => Some(io::ErrorKind::StorageFull.into()),
            Ok(Some(_)) => Some(io::Error::other("failed by a test")),
            Err(error) => Some(error),
        };
        if let Some(error) = error {
            if !*crashed {
                lost.append(dirty);
            }
            return Err(error);
        }
        durable.resize(bytes.len(), 0);
        for sector in std::mem::take(dirty) {
            let range = sector * SECTOR..(sector + 1) * SECTOR;
            durable[range.clone()].copy_from_slice(&bytes[range]);
        }
        Ok(())
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.lock().bytes.len() as u64)
    }

    fn grow(&self, pages: u32) -> io::Result<()> {
        let mut state = self.lock();
        let fault = state.call(false)?;
        if fault.is_some() || state.capacity.is_some_and(|capacity| pages > capacity) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let bytes = (pages as usize * PAGE_BYTES).max(state.bytes.len());
        state.bytes.resize(bytes, 0);
        Ok(())
    }

    fn queue(&self, depth: usize) -> Box<dyn ReadQueue + '_> {
        Box::new(PlainQueue::new(self, depth))
    }

    fn describe(&self) -> String {
        "memory".into()
    }
}
