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
            "clock: reading it takes {reading:.1} ns, which are subtracted; it has steps of {step} ns; times below a \
             reading and a step, {limit} ns, are below its resolution"
        )
    }

    /// Its smallest step in nanoseconds, rounded up.
    fn step_ns(&self) -> u64 {
        ((self.step as f64 * self.ns_per_tick).ceil() as u64).max(1)
    }

    /// The resolution: the shortest time that the clock never shows as 0. A reading takes longer or shorter than the
    /// median that is subtracted, and what is measured goes on while the clock is read.
    pub(super) fn limit_ns(&self) -> u64 {
        (self.empty as f64 * self.ns_per_tick).ceil() as u64 + self.step_ns()
    }

    /// A time for people, which is the sum of so many measured ones; one below the resolution is shown as such.
    pub(super) fn cell(&self, ns: u64, measured: u64) -> String {
        cell(ns, self.limit_ns() * measured)
    }

    /// The mean of `count` operations between two readings for people, given in tenths of nanoseconds.
    pub(super) fn cell_of_mean(&self, tenths: u64, count: usize) -> String {
        match self.mean(tenths, count) {
            Some(mean) => format!("{mean:.1}"),
            None => format!("below {:.1} ns", self.limit_ns() as f64 / count as f64),
        }
    }

    /// The mean of `count` operations between two readings in nanoseconds, if the clock resolves it; it is given in
    /// tenths.
    pub(super) fn mean(&self, tenths: u64, count: usize) -> Option<f64> {
        let mean = tenths as f64 / 10.0;
        (mean * count as f64 >= self.limit_ns() as f64).then_some(mean)
    }

    /// What a chart of these values says of those below the resolution; each is the sum of so many measured times.
    pub(super) fn chart_note(&self, mut values: impl Iterator<Item = f64>, measured: u64) -> String {
        let limit = self.limit_ns() * measured;
        if values.any(|value| value < limit as f64) {
            format!("; the clock does not resolve values below {limit} ns")
        } else {
            String::new()
        }
    }
}

/// Nanoseconds for people by a clock with this resolution.
pub(in super::super) fn cell(ns: u64, limit_ns: u64) -> String {
    if ns < limit_ns { format!("below {limit_ns} ns") } else { ns.to_string() }
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
    fn what_is_below_the_resolution_of_the_clock_is_shown_as_such() {
        let clock = Clock { ns_per_tick: 0.4, empty: 50, step: 25 };
        assert_eq!((clock.ns(100, 140), clock.ns(100, 175)), (0, 10));
        assert_eq!([0, 10, 29, 30].map(|ns| clock.cell(ns, 1)), ["below 30 ns", "below 30 ns", "below 30 ns", "30"]);
        assert_eq!([59, 60].map(|ns| clock.cell(ns, 2)), ["below 60 ns", "60"]);
        // 64 operations take 30 ns and more: what is below a tenth of a nanosecond more is lost in the rounding.
        assert_eq!([4, 5, 125].map(|tenths| clock.mean(tenths, 64)), [None, Some(0.5), Some(12.5)]);
        assert_eq!([4, 125].map(|tenths| clock.cell_of_mean(tenths, 64)), ["below 0.5 ns", "12.5"]);
        let words = "clock: reading it takes 20.0 ns, which are subtracted; it has steps of 10 ns; times below a reading \
                     and a step, 30 ns, are below its resolution";
        assert_eq!(clock.words(), words);
        let note = "; the clock does not resolve values below 30 ns";
        assert_eq!([29.0, 30.0].map(|value| clock.chart_note([300.0, value].into_iter(), 1)), [note, ""]);
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
