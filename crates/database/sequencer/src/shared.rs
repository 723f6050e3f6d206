//! What the threads of a sequencer tell each other and their callers.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockwork_engine::Interrupt;

use crate::divided;
use crate::error::{Error, Failure};
use crate::journal::election::{Membership, Role, StreamStatus};
use crate::threads::Threads;

/// Locks a mutex; what a thread that panicked has left behind is whole, because nothing panics while it changes it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a sequencer has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Batches that ran.
    pub batches: u64,
    /// Calls in them.
    pub calls: u64,
    /// Calls written to the log.
    pub logged_calls: u64,
    /// Argument bytes of the calls written to the log.
    pub argument_bytes: u64,
    /// Bytes written to the log.
    pub log_bytes: u64,
    /// Writes to the log.
    pub writes: u64,
    /// Syncs of the log.
    pub syncs: u64,
    /// Nanoseconds of the writes and syncs that calls waited for, together.
    pub sync_ns: u64,
    /// Nanoseconds of the longest of them.
    pub sync_longest_ns: u64,
    /// Retries that were answered from the window of request ids.
    pub repeats: u64,
    /// Checkpoints that are durable.
    pub checkpoints: u64,
    /// Bytes of the last one.
    pub checkpoint_bytes: u64,
    /// Nanoseconds for which calls stood still for checkpoints, together.
    pub checkpoint_pause_ns: u64,
    /// Nanoseconds of the longest such pause.
    pub checkpoint_longest_ns: u64,
    /// Digests of the whole database that were appended to a journal, or compared with it.
    pub digests: u64,
    /// Nanoseconds for which calls stood still for them, together.
    pub digest_ns: u64,
    /// Messages that the servers of a journal had lost, but one of them, and that were appended again.
    pub recovered: u64,
}

#[derive(Debug, Default)]
struct Progress {
    durable: u64,
    trouble: Option<Error>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    progress: Mutex<Progress>,
    changed: Condvar,
    statistics: Mutex<Statistics>,
    /// Bytes of log since the last checkpoint began.
    pub(crate) since_checkpoint: AtomicU64,
    /// Since when the order thread is at one thing, in milliseconds since 1970; 0 while it waits for something to do.
    busy_since: AtomicU64,
    /// Definitions that a node which follows has met.
    pub(crate) definitions: AtomicUsize,
    /// Of a node; `None` when the log is this process's own.
    pub(crate) membership: Option<Arc<Membership>>,
    /// Of a node that stands for a stream of its own: its part there.
    pub(crate) sequencing: Option<Arc<Membership>>,
    /// Of further sequencers, if this node merges them.
    pub(crate) streams: Vec<Arc<divided::Progress>>,
    pub(crate) threads: Threads,
    /// Of a process that has a part of every table only: ends its waiting for other parts.
    pub(crate) interrupt: Option<Interrupt>,
    /// What the last checkpoint that failed said.
    checkpoint_trouble: Mutex<Option<Error>>,
    /// Buffers that units were in.
    buffers: Mutex<Vec<Vec<u8>>>,
}

/// Buffers kept, and the largest of them: what a batch of usual size needs.
const MAX_BUFFERS: usize = 4;
const MAX_BUFFER_BYTES: usize = 8 << 20;

impl Shared {
    pub(crate) fn new(durable: u64) -> Self {
        let shared = Self::default();
        shared.set_durable(durable);
        shared
    }

    pub(crate) fn of_node(durable: u64, membership: Arc<Membership>, threads: Threads) -> Self {
        Self { membership: Some(membership), threads, ..Self::new(durable) }
    }

    /// What this node does, of what it stands for.
    pub(crate) fn role(&self) -> Option<Role> {
        let role = self.membership.as_ref()?.role();
        let own = self.sequencing.as_ref().map_or(Role::Following, |own| own.role());
        Some(if role == Role::Following { own } else { role })
    }

    /// All records before this one are durable.
    pub(crate) fn durable(&self) -> u64 {
        lock(&self.progress).durable
    }

    pub(crate) fn set_durable(&self, next: u64) {
        lock(&self.progress).durable = next;
        self.changed.notify_all();
    }

    /// How far the streams of further sequencers are.
    pub(crate) fn stream_status(&self) -> Vec<StreamStatus> {
        self.streams.iter().zip(1..).map(|(stream, part)| stream.status(part)).collect()
    }

    /// Why nothing more is accepted, if so.
    pub(crate) fn trouble(&self) -> Option<Error> {
        lock(&self.progress).trouble.clone()
    }

    /// From now on nothing is accepted. The first reason stands.
    pub(crate) fn stop(&self, error: Error) {
        lock(&self.progress).trouble.get_or_insert(error);
        self.changed.notify_all();
    }

    pub(crate) fn poison(&self, failure: Failure) {
        self.stop(Error::Poisoned(failure));
    }

    /// Waits until all records before `next` are durable.
    ///
    /// # Errors
    /// Why they will not be.
    pub(crate) fn wait_durable(&self, next: u64) -> Result<(), Error> {
        let waits = |progress: &mut Progress| progress.durable < next && progress.trouble.is_none();
        let progress = self.threads.wait_while((&self.progress, &self.changed), None, waits);
        match &progress.trouble {
            Some(error) if progress.durable < next => Err(error.clone()),
            // A thread that has to end waits no longer.
            None if progress.durable < next => Err(Error::Closed),
            _ => Ok(()),
        }
    }

    /// The order thread begins something, or waits for something to do.
    pub(crate) fn set_busy(&self, is_busy: bool) {
        let now = if is_busy { self.threads.unix_ms().max(1) } else { 0 };
        self.busy_since.store(now, Ordering::Relaxed);
    }

    /// For how long the order thread has been at one thing.
    pub(crate) fn busy_for(&self) -> Duration {
        match self.busy_since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => Duration::from_millis(self.threads.unix_ms().saturating_sub(since)),
        }
    }

    pub(crate) fn statistics(&self) -> Statistics {
        *lock(&self.statistics)
    }

    /// Bytes of the last checkpoint.
    pub(crate) fn statistics_checkpoint_bytes(&self) -> u64 {
        lock(&self.statistics).checkpoint_bytes
    }

    pub(crate) fn count(&self, add: impl FnOnce(&mut Statistics)) {
        add(&mut lock(&self.statistics));
    }

    /// A digest of all rows was made.
    pub(crate) fn count_digest(&self, took: Duration) {
        self.count(|statistics| {
            statistics.digests += 1;
            statistics.digest_ns += took.as_nanos() as u64;
        });
    }

    pub(crate) fn count_sync(&self, bytes: usize, synced: bool, took: Duration) {
        let took = took.as_nanos() as u64;
        self.count(|statistics| {
            statistics.log_bytes += bytes as u64;
            statistics.writes += u64::from(bytes > 0);
            statistics.syncs += u64::from(synced);
            statistics.sync_ns += took;
            statistics.sync_longest_ns = statistics.sync_longest_ns.max(took);
        });
        self.since_checkpoint.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn checkpoint_trouble(&self) -> Option<Error> {
        lock(&self.checkpoint_trouble).clone()
    }

    pub(crate) fn set_checkpoint_trouble(&self, error: Option<Error>) {
        *lock(&self.checkpoint_trouble) = error;
    }

    pub(crate) fn buffer(&self) -> Vec<u8> {
        lock(&self.buffers).pop().unwrap_or_default()
    }

    pub(crate) fn give_back(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let mut buffers = lock(&self.buffers);
        if buffers.len() < MAX_BUFFERS && (1..=MAX_BUFFER_BYTES).contains(&buffer.capacity()) {
            buffers.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_busy_from_when_it_began() {
        let shared = Shared::default();
        assert_eq!(shared.busy_for(), Duration::ZERO);
        shared.set_busy(true);
        let begun = shared.threads.unix_ms();
        while shared.threads.unix_ms() < begun + 2 {
            std::thread::yield_now();
        }
        assert!(shared.busy_for() >= Duration::from_millis(2));
        shared.set_busy(false);
        assert_eq!(shared.busy_for(), Duration::ZERO);
    }
}
