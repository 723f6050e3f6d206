//! Whether it pays to look for packets without sleeping.
//!
//! To be woken up costs more than a round trip on one host, so who waits for an answer looks for it itself for some
//! microseconds, and lets others have its core between two looks. Where others want the core for longer, that is the
//! worst that it can do: the scheduler puts who yields behind them, and they keep the core for a slice, some
//! milliseconds, while the answer lies there; who sleeps is woken by its packet, before them. So a yield that took
//! long, and brought no more than one packet, says that looking does not pay here for a while. If it brought several,
//! the core was with those who sent them, and to be woken by each would cost more.
//!
//! *Trade-off*: a few grants in each while are late by a slice, to find out whether the cores are free again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A yield that takes longer was somebody else's slice, and not one packet of a peer.
const LONG: Duration = Duration::from_micros(300);
/// For how long it does not pay after the first such yield.
const AT_FIRST: u64 = 10_000_000;
/// And after many in turn.
const AT_MOST: u64 = 1_000_000_000;

/// What is known of the cores.
#[derive(Debug)]
pub(crate) struct Spinner {
    began: Instant,
    /// Until when it does not pay, in nanoseconds.
    crowded_until: AtomicU64,
    /// For how long it was said last.
    pause: AtomicU64,
}

impl Default for Spinner {
    fn default() -> Self {
        Self { began: Instant::now(), crowded_until: AtomicU64::new(0), pause: AtomicU64::new(AT_FIRST / 2) }
    }
}

impl Spinner {
    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Whether looking without sleeping pays.
    pub(crate) fn pays(&self) -> bool {
        let until = self.crowded_until.load(Ordering::Relaxed);
        until == 0 || self.now() >= until
    }

    /// Lets others have the core: whether they have had it for long.
    pub(crate) fn let_others(&self) -> bool {
        let before = Instant::now();
        std::thread::yield_now();
        before.elapsed() > LONG
    }

    /// They had it for long, and did nothing with it that was of use here.
    pub(crate) fn note_crowded(&self) {
        let after = self.now();
        // Again soon after the last time: they stay.
        let last = self.crowded_until.load(Ordering::Relaxed);
        let pause = match after < last.saturating_add(AT_FIRST) && last > 0 {
            true => (self.pause.load(Ordering::Relaxed) * 2).min(AT_MOST),
            false => AT_FIRST,
        };
        self.pause.store(pause, Ordering::Relaxed);
        self.crowded_until.store(after.saturating_add(pause), Ordering::Relaxed);
    }
}
