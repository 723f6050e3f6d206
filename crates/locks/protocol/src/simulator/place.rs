//! A place where a process runs, crashes, and runs again: its clock, its tasks, and the node of the present process.

use crate::node::Node;
use lockwork_locking::LockMode;

/// What a task is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    Nothing,
    Waiting { lock: u64, request: u64, mode: LockMode, since: u64 },
    Holding { lock: u64, request: u64, mode: LockMode },
}

/// A task, and the number of the alarm that counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    pub(super) doing: Doing,
    pub(super) alarm: u32,
}

/// The process at a place.
#[derive(Debug)]
pub(super) enum Process {
    /// There is none.
    Down,
    /// It asks for a number since a time of its clock.
    Joining {
        nonce: u64,
        since: u64,
    },
    Running(Box<Node>),
}

#[derive(Debug)]
pub(super) struct Place {
    pub(super) process: Process,
    /// How many processes there have been.
    pub(super) life: u32,
    pub(super) tasks: Vec<Task>,
    pub(super) cut_until: u64,
    pub(super) paused_until: u64,
    /// The next wake-up of the node that is on its way.
    pub(super) tick: u64,
    offset: u64,
    /// Thousandths by which the clock runs faster.
    pace: u64,
}

impl Place {
    pub(super) fn new(tasks: u32, offset: u64, pace: u64) -> Self {
        Self {
            process: Process::Down,
            life: 0,
            tasks: vec![Task { doing: Doing::Nothing, alarm: 0 }; tasks as usize],
            cut_until: 0,
            paused_until: 0,
            tick: u64::MAX,
            offset,
            pace,
        }
    }

    /// The time by the clock of this place.
    pub(super) const fn clock(&self, now: u64) -> u64 {
        self.offset + now + now / 1000 * self.pace
    }

    /// The first time at which the clock shows `clock` or more.
    pub(super) fn when(&self, clock: u64) -> u64 {
        let passed = clock.saturating_sub(self.offset);
        let mut now = passed / (1000 + self.pace) * 1000;
        now = now.saturating_sub(1000);
        // The clock goes in steps of a thousandth; at most a few of them are to go.
        let step = passed.saturating_sub(now + now / 1000 * self.pace);
        now += step.saturating_sub(self.pace * 3);
        while self.clock(now) < clock {
            now += 1;
        }
        now
    }

    pub(super) fn node(&self) -> Option<&Node> {
        match &self.process {
            Process::Running(node) => Some(node),
            _ => None,
        }
    }

    pub(super) fn node_mut(&mut self) -> Option<&mut Node> {
        match &mut self.process {
            Process::Running(node) => Some(node),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Place;

    #[test]
    fn clocks_are_read_both_ways() {
        for pace in [0, 1, 10] {
            let place = Place::new(1, 12_345, pace);
            for clock in (0..2_000_000).step_by(777) {
                let now = place.when(clock);
                assert!(place.clock(now) >= clock, "{pace} {clock}");
                assert!(now == 0 || place.clock(now - 1) < clock, "{pace} {clock}");
            }
        }
    }
}
