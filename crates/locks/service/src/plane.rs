//! The seam between the daemon and whatever decides: in this process, or in the kernel in front of it.
//!
//! Wherever decisions are made, words, tokens and the table of machines are the same, and the registry works on them
//! through this trait: it scans the words of dead machines, and the agents it keeps for them ask the Rust decider over
//! the same store.

use crate::kernel::words::Words;
use crate::kernel::{Hook, KernelDecider, error::KernelError};
use lockwork_lock_protocol::decider::{Store, Wide, WideLock};
use lockwork_lock_protocol::word::Machine;
use lockwork_memory::{Buffer, OutOfMemory, Pages};
use std::io;
use std::net::SocketAddr;

/// What a data plane has done without the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    /// Packets decided on or sent on.
    pub decisions: u64,
    /// Locks granted; `None` if it does not count them.
    pub grants: Option<u64>,
    /// Packets dropped.
    pub dropped: u64,
}

impl Default for Decided {
    /// Nothing.
    fn default() -> Self {
        Self { decisions: 0, grants: Some(0), dropped: 0 }
    }
}

/// Where decisions are made.
pub trait DataPlane {
    /// Where the decision words are.
    type Store: Store;

    /// The decision words. They may change under the reader's eyes.
    fn store(&self) -> &Self::Store;

    /// Makes all tokens larger than `after`, before anything is granted.
    fn begin_tokens(&self, after: u64);

    /// All words are there, and all machines are set: it may decide. Called only where the daemon has decided alone
    /// before.
    ///
    /// # Errors
    /// If it cannot.
    fn begin(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// `machine` takes part from now on; or still does, and the way to it may have changed.
    ///
    /// # Errors
    /// If the data plane cannot reach such an address, or has no room; the machine is then turned away.
    fn set_machine(&mut self, machine: Machine, session: u32, address: SocketAddr) -> io::Result<()>;

    /// `machine` no longer takes part. Decisions that are under way may still know it for a moment.
    fn remove_machine(&mut self, machine: Machine);

    /// What the data plane has counted beside the daemon: cause, in the form of a Prometheus label, and how often.
    fn counters(&self) -> Vec<(String, u64)> {
        Vec::new()
    }

    /// What it has decided on beside the daemon.
    fn tally(&self) -> Decided {
        Decided::default()
    }

    /// What it is, for the ready line.
    fn name(&self) -> String;
}

/// Locks of the wide profile, in huge pages where the system gives them.
#[derive(Debug)]
pub struct Locks {
    buffer: Buffer,
    count: usize,
}

impl Locks {
    /// `count` free locks, 16 bytes each.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the system has not so much.
    pub fn new(count: usize) -> Result<Self, OutOfMemory> {
        let what = "locks";
        let too_much = OutOfMemory { what, bytes: usize::MAX };
        let bytes = count.checked_mul(size_of::<WideLock>()).filter(|bytes| isize::try_from(*bytes).is_ok());
        Ok(Self { buffer: Buffer::zeroed(bytes.ok_or(too_much)?, Pages::Huge, what)?, count })
    }
}

impl AsRef<[WideLock]> for Locks {
    fn as_ref(&self) -> &[WideLock] {
        // SAFETY: the buffer is 64-byte aligned and at least `count` locks long; all bytes zero is a free lock, and
        // locks are only changed through their atomics.
        unsafe { std::slice::from_raw_parts(self.buffer.as_ptr().cast(), self.count) }
    }
}

/// The decider in this process.
#[derive(Debug)]
pub struct InProcess(Wide<Locks>);

impl InProcess {
    /// With `locks` free locks.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the system has not so much.
    pub fn new(locks: usize) -> Result<Self, OutOfMemory> {
        Ok(Self(Wide(Locks::new(locks)?)))
    }
}

impl DataPlane for InProcess {
    type Store = Wide<Locks>;

    fn store(&self) -> &Self::Store {
        &self.0
    }

    fn begin_tokens(&self, after: u64) {
        self.0.begin_tokens(after);
    }

    // The registry's own table serves the decider.
    fn set_machine(&mut self, _: Machine, _: u32, _: SocketAddr) -> io::Result<()> {
        Ok(())
    }

    fn remove_machine(&mut self, _: Machine) {}

    fn name(&self) -> String {
        "udp".to_string()
    }
}

/// The decider in the kernel. What its programs leave undecided comes to the daemon's socket, and is decided on there,
/// over the same words.
#[derive(Debug)]
pub struct InKernel {
    decider: KernelDecider,
    words: Wide<Words>,
    /// Where it decides once it may.
    later: Vec<(Hook, String)>,
}

impl InKernel {
    /// With programs that are attached, or will be.
    #[must_use]
    pub fn new(decider: KernelDecider) -> Self {
        Self { words: decider.words(), decider, later: Vec::new() }
    }

    /// The programs.
    #[must_use]
    pub fn decider(&self) -> &KernelDecider {
        &self.decider
    }

    /// The programs, to attach them.
    #[must_use]
    pub fn decider_mut(&mut self) -> &mut KernelDecider {
        &mut self.decider
    }
}

impl InKernel {
    /// Takes these interfaces, and attaches to them when the words are back, or at [`InKernel::attach`].
    pub fn attach_later(&mut self, hook: Hook, interfaces: &[String]) {
        self.later = interfaces.iter().map(|interface| (hook, interface.clone())).collect();
    }

    /// Attaches to the interfaces that it was to attach to later.
    ///
    /// # Errors
    /// [`KernelError`] of the first that cannot be.
    pub fn attach(&mut self) -> Result<(), KernelError> {
        for (hook, interface) in std::mem::take(&mut self.later) {
            let attached = self.decider.attach(hook, &interface)?;
            tracing::info!("{} on {interface}", attached.mode);
        }
        Ok(())
    }
}

impl From<KernelError> for io::Error {
    fn from(error: KernelError) -> Self {
        Self::other(error)
    }
}

impl DataPlane for InKernel {
    type Store = Wide<Words>;

    fn store(&self) -> &Self::Store {
        &self.words
    }

    fn begin_tokens(&self, after: u64) {
        self.words.begin_tokens(after);
    }

    fn begin(&mut self) -> io::Result<()> {
        Ok(self.attach()?)
    }

    // A machine that no attached interface leads to is served by the daemon.
    fn set_machine(&mut self, machine: Machine, session: u32, address: SocketAddr) -> io::Result<()> {
        self.decider.admit(machine, session, address)?;
        Ok(())
    }

    fn remove_machine(&mut self, machine: Machine) {
        if let Err(error) = self.decider.dismiss(machine) {
            tracing::warn!("machine {} stays in the kernel's table: {error}", machine.0);
        }
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let counters =
            self.decider.counters().map(|all| all.iter().map(|(name, count)| (name.to_string(), count)).collect());
        counters.unwrap_or_default()
    }

    // The programs count requests that they granted and those that they sent to agents together.
    fn tally(&self) -> Decided {
        let counters = self.decider.counters().unwrap_or_default();
        Decided { decisions: counters.handled(), grants: None, dropped: counters.dropped() }
    }

    fn name(&self) -> String {
        let one = |attached: &crate::kernel::Attached| format!("{} on {}", attached.mode.name(), attached.interface);
        let later = |(hook, interface): &(Hook, String)| format!("{hook} on {interface} when words are back");
        let all = self.decider.attached().iter().map(one).chain(self.later.iter().map(later));
        all.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockwork_lock_protocol::word::{State, Word};

    #[test]
    fn locks_are_free_at_first_and_an_impossible_number_is_refused() {
        let plane = InProcess::new(300_000).unwrap();
        let store = plane.store();
        assert!((0..300_000).all(|lock| store.load(lock) == Word::NEW && store.token(lock) == 0));
        let word = Word { state: State::Led, machine: Machine(7), incarnation: 1 };
        assert!(store.swap(299_999, Word::NEW, word) && store.load(299_999) == word);
        for count in [usize::MAX, usize::MAX / 64] {
            assert_eq!(InProcess::new(count).map(drop).map_err(|error| error.what), Err("locks"), "{count}");
        }
    }
}
