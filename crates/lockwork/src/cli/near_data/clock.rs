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
    /// Ticks of its smallest step.
    step: u64,
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
        Self { ns_per_tick, empty: gaps[gaps.len() / 2], step: step(&gaps) }
    }

    /// Nanoseconds between two readings, less what reading takes.
    #[inline(always)]
    pub(super) fn ns(&self, before: u64, after: u64) -> u64 {
        let ticks = after.wrapping_sub(before).saturating_sub(self.empty);
        (ticks as f64 * self.ns_per_tick).round() as u64
    }

    /// Tenths of nanoseconds for each of `count` operations between two readings.
    pub(super) fn tenths_each(&self, before: u64, after: u64, count: usize) -> u64 {
        let ticks = after.wrapping_sub(before).saturating_sub(self.empty);
        (ticks as f64 * self.ns_per_tick * 10.0 / count.max(1) as f64).round() as u64
    }

    /// What reading it takes, which is subtracted, and its steps, for JSON.
    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::json!({ "reading_ns": self.empty as f64 * self.ns_per_tick, "step_ns": self.step_ns() })
    }

    /// The same in words.
    pub(super) fn words(&self) -> String {
        let (reading, step, limit) = (self.empty as f64 * self.ns_per_tick, self.step_ns(), self.limit_ns());
        format!(
            "clock: reading it takes {reading:.1} ns, which are subtracted; it has steps of {step} ns; what takes no \
             longer than a reading is <{limit}"
        )
    }

    /// Its smallest step in nanoseconds, rounded up.
    fn step_ns(&self) -> u64 {
        ((self.step as f64 * self.ns_per_tick).ceil() as u64).max(1)
    }

    /// The shortest time that the clock never shows as 0: a reading takes longer or shorter than the median that is
    /// subtracted, and what is measured goes on while the clock is read.
    fn limit_ns(&self) -> u64 {
        (self.empty as f64 * self.ns_per_tick).ceil() as u64 + self.step_ns()
    }

    /// Nanoseconds for people: what takes less than the clock can tell is not nothing.
    pub(super) fn cell(&self, ns: u64) -> String {
        cell(ns, self.limit_ns())
    }

    /// What a chart of these values says of those that are 0.
    pub(super) fn chart_note(&self, mut values: impl Iterator<Item = f64>) -> String {
        if values.any(|value| value == 0.0) {
            format!("; 0 is below the clock, less than {} ns", self.limit_ns())
        } else {
            String::new()
        }
    }
}

/// Nanoseconds by a clock that shows what takes less than `limit_ns` as 0, for people: it is not nothing.
pub(in super::super) fn cell(ns: u64, limit_ns: u64) -> String {
    if ns == 0 { format!("<{limit_ns}") } else { ns.to_string() }
}

/// The smallest step of a counter that readings in sorted distances show; 1 if they are all alike.
pub(in super::super) fn step(sorted: &[u64]) -> u64 {
    let between = sorted.windows(2).map(|pair| pair[1] - pair[0]);
    sorted.iter().copied().chain(between).filter(|ticks| *ticks > 0).min().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_the_clock_is_not_called_zero() {
        let clock = Clock { ns_per_tick: 0.4, empty: 50, step: 25 };
        assert_eq!((clock.ns(100, 140), clock.ns(100, 175)), (0, 10));
        assert_eq!([0, 10].map(|ns| clock.cell(ns)), ["<30", "10"]);
        let words = "clock: reading it takes 20.0 ns, which are subtracted; it has steps of 10 ns; what takes no longer \
                     than a reading is <30";
        assert_eq!(clock.words(), words);
        assert_eq!(clock.chart_note([3.0, 0.0].into_iter()), "; 0 is below the clock, less than 30 ns");
        assert_eq!(clock.chart_note([3.0].into_iter()), "");
    }

    #[test]
    fn many_operations_between_two_readings_are_measured_in_tenths_of_nanoseconds() {
        let clock = Clock { ns_per_tick: 0.4, empty: 50, step: 25 };
        // 2,050 ticks less the 50 of a reading are 800 ns.
        assert_eq!((clock.tenths_each(0, 2050, 64), clock.tenths_each(0, 2050, 1)), (125, 8000));
        assert_eq!((clock.tenths_each(0, 40, 64), clock.tenths_each(0, 40, 0)), (0, 0));
    }

    #[test]
    fn steps_are_seen_in_distances() {
        assert_eq!([step(&[50, 50, 75, 125]), step(&[0, 25, 25]), step(&[36, 38, 38]), step(&[0, 0])], [25, 25, 2, 1]);
        assert!(Clock::new().step_ns() >= 1);
    }
}
