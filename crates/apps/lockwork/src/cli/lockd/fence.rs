//! A lockd that is no longer the one to decide, which it finds in etcd.
//!
//! Within one host only one process can have an address, and whoever has it decides. Two hosts, or two network
//! namespaces, may have the same one: a container that was started twice, an address that was moved. Each lockd counts
//! its start in etcd, so the earlier one finds a larger count than its own, and ends. A rack ends when etcd knows
//! nothing of it any more: the next one to begin is given its locks.
//!
//! *Trade-off*: it looks now and then, because a decision that waits for etcd would take milliseconds. Until it has
//! looked, two may decide; from then on none of before does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lockwork_etcd::Etcd;

use super::STOP;

/// How often it looks.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// How soon it sees that it has to stop.
const BACKOFF: Duration = Duration::from_millis(50);
/// How long etcd may take to answer.
const ANSWER: Duration = Duration::from_secs(1);
/// The key at which starts are counted.
pub(super) const ERA: &str = "era";

/// Why this lockd must not decide any more.
static WHY: OnceLock<String> = OnceLock::new();

/// This lockd ends, and says why.
pub(in crate::cli) fn end(why: String) {
    if WHY.set(why).is_ok() {
        STOP.store(true, Ordering::Relaxed);
    }
}

/// Why it has ended, if not because it was told to.
pub(super) fn why() -> Option<&'static str> {
    WHY.get().map(String::as_str)
}

/// A thread that looks whether another lockd has begun.
pub(super) struct Fence {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Fence {
    /// For the lockd at `address`, whose start was number `era`.
    pub(super) fn start(etcd: Arc<Etcd>, era: u64, address: String) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let look = move || {
            let mut looked = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                std::thread::sleep(BACKOFF);
                if looked.elapsed() < POLL_INTERVAL {
                    continue;
                }
                looked = Instant::now();
                if newest(&etcd).is_some_and(|newest| newest > era) {
                    end(format!(
                        "another lockd has begun at {address} with this --etcd-prefix, on another host or in another \
                         network namespace: this one ends, because two would grant the same locks"
                    ));
                }
            }
        };
        let thread = std::thread::Builder::new().name("lockd-fence".to_string()).spawn(look)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

/// The number of the newest start, if etcd says so now.
fn newest(etcd: &Etcd) -> Option<u64> {
    let entries = etcd.load(ERA, ANSWER).ok()?;
    let entry = entries.iter().find(|entry| entry.key.is_empty())?;
    std::str::from_utf8(&entry.value).ok()?.parse().ok()
}
