//! How long to wait for an answer before a packet is sent again.
//!
//! A fixed time either waits too long for a lost packet, or repeats a slow one; and a client that repeats slow packets
//! makes it slower, until a busy service does nothing else. So the time follows the answers as TCP's does (RFC 6298):
//! their mean and four times their deviation; a packet that was sent twice measures nothing, but says that the time was
//! too short until one is answered that was sent once.
//!
//! *Invariant*: times are [`Config::retry`] times a power of two, so that there are few different ones
//! ([`Timers`](crate::timers::Timers) has a queue for each).

use crate::config::Config;

/// No time is more often doubled; after so many tries the number of tries tells nothing.
pub(crate) const MAX_DOUBLINGS: u8 = 16;

#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct Pace {
    retry: u64,
    most: u64,
    mean: u64,
    deviation: u64,
    level: u8,
}

impl Pace {
    pub(crate) const fn new(config: &Config) -> Self {
        Self { retry: config.retry, most: config.retry_most, mean: 0, deviation: 0, level: 0 }
    }

    /// The time after a packet was sent `tries` times before.
    pub(crate) fn backoff(&self, tries: u8) -> u64 {
        let shift = self.level.saturating_add(tries).min(MAX_DOUBLINGS);
        (self.retry << shift).min(self.most)
    }

    /// A packet that was sent once has been answered after `time`.
    pub(crate) fn answered(&mut self, time: u64) {
        if self.mean == 0 {
            (self.mean, self.deviation) = (time, time / 2);
        } else {
            self.deviation = (3 * self.deviation + self.mean.abs_diff(time)) / 4;
            self.mean = (7 * self.mean + time) / 8;
        }
        let enough = self.mean + 4 * self.deviation;
        self.level = 0;
        while self.retry << self.level < enough.min(self.most) {
            self.level += 1;
        }
    }

    /// A packet that was sent `tries` times has had no answer in time.
    pub(crate) fn unanswered(&mut self, tries: u8) {
        self.level = self.level.max(tries).min(MAX_DOUBLINGS);
    }
}

#[cfg(test)]
mod tests {
    use super::Pace;
    use crate::config::Config;

    #[test]
    fn it_follows_the_answers_and_is_not_led_astray_by_repeated_packets() {
        let config = Config::new(1);
        let mut pace = Pace::new(&config);
        assert_eq!(pace.backoff(0), config.retry);
        for _ in 0..100 {
            pace.answered(3 * config.retry);
        }
        assert_eq!(pace.backoff(0), 4 * config.retry);
        pace.unanswered(3);
        assert_eq!((pace.backoff(0), pace.backoff(1)), (8 * config.retry, 16 * config.retry));
        for _ in 0..100 {
            pace.answered(1000);
        }
        assert_eq!((pace.backoff(0), pace.backoff(200)), (config.retry, config.retry_most));
    }
}
