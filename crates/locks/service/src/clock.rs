//! The time by which a client counts its lease.
//!
//! A service counts on while the machine of a client is suspended, so a client has to as well. `Instant` stands still
//! then: on Linux it is CLOCK_MONOTONIC. CLOCK_BOOTTIME is the same and goes on, and is read without a system call too.
//!
//! *Invariant*: never goes back, and never slower than the service's clock but for what quartz differs by, which the
//! lease's margin covers (`Config::own_lease`).

use std::time::Duration;

/// A clock in nanoseconds since it was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: u64,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { start: boot_time() }
    }

    pub(crate) fn now(self) -> u64 {
        boot_time().saturating_sub(self.start)
    }

    /// The time of CLOCK_BOOTTIME at which this clock shows `now`.
    pub(crate) fn boot_time(self, now: u64) -> Duration {
        Duration::from_nanos(self.start.saturating_add(now))
    }
}

fn boot_time() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes into a timespec that lives during the call.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    assert_eq!(result, 0, "Linux has had CLOCK_BOOTTIME since 2.6.39");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// In nanoseconds; what is longer than five centuries is as long as can be said.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_clock_that_goes_on_while_the_machine_is_suspended() {
        // What the system calls its up time has the suspended time in it; in whole seconds, rounded up.
        // SAFETY: plain numbers, for which all bytes zero is a value.
        let mut system: libc::sysinfo = unsafe { std::mem::zeroed() };
        // SAFETY: writes into a structure that lives during the call.
        assert_eq!(unsafe { libc::sysinfo(&raw mut system) }, 0);
        let difference = boot_time().abs_diff(system.uptime as u64 * 1_000_000_000);
        assert!(difference < 10_000_000_000, "{difference}");
        let clock = Clock::new();
        let before = clock.now();
        std::thread::sleep(Duration::from_millis(2));
        assert!(clock.now() - before >= 2_000_000);
        let now = clock.boot_time(clock.now());
        assert!(Duration::from_nanos(boot_time()) - now < Duration::from_secs(10));
        assert_eq!((nanos(Duration::MAX), nanos(Duration::from_secs(1))), (u64::MAX, 1_000_000_000));
    }
}
