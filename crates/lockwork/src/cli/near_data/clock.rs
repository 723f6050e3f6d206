//! A clock for what takes tens of nanoseconds: the processor's time stamp counter where there is one.
//!
//! The counter of current processors runs at one rate whatever the core does. Its rate is measured against the
//! system's clock, and what reading it twice takes is measured and subtracted from every figure.

use std::time::{Duration, Instant};

/// The clock, with what is known of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    ns_per_tick: f64,
    /// Ticks between two readings with nothing between them, the median of many.
    empty: u64,
}

/// The counter.
#[inline(always)]
pub(super) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the instruction is there on every processor of this architecture.
        unsafe { std::arch::x86_64::_rdtsc() }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// The counter, when everything before it has been done: loads may otherwise still be under way.
#[inline(always)]
pub(super) fn ticks_after() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: as above.
        unsafe { std::arch::x86_64::_mm_lfence() };
    }
    ticks()
}

impl Clock {
    /// Measures the clock for twenty milliseconds.
    pub(super) fn new() -> Self {
        let (start, first) = (Instant::now(), ticks());
        while start.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let ns_per_tick = start.elapsed().as_nanos() as f64 / (ticks() - first) as f64;
        let mut gaps: Vec<u64> = (0..10_001)
            .map(|_| {
                let before = ticks();
                ticks() - before
            })
            .collect();
        gaps.sort_unstable();
        Self { ns_per_tick, empty: gaps[gaps.len() / 2] }
    }

    /// Nanoseconds between two readings, less what reading takes.
    #[inline(always)]
    pub(super) fn ns(&self, before: u64, after: u64) -> u64 {
        let ticks = after.wrapping_sub(before).saturating_sub(self.empty);
        (ticks as f64 * self.ns_per_tick).round() as u64
    }

    /// What reading it takes, which is subtracted.
    pub(super) fn empty_ns(&self) -> f64 {
        self.empty as f64 * self.ns_per_tick
    }
}
