//! How a sequencer is to work.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::error::Error;

/// When a call is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// When the disk says that the log with the call is durable: an acknowledged call survives a loss of power.
    #[default]
    Fsync,
    /// When the operating system has the log: an acknowledged call survives the death of this process. A loss of power
    /// may take the calls of the last [`Options::async_interval`] and of one sync, and no others.
    Async,
    /// When it has run. No log is written: only checkpoints are durable, and [`crate::Sequencer::close`] makes one.
    None,
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fsync => "fsync",
            Self::Async => "async",
            Self::None => "none",
        })
    }
}

impl FromStr for Durability {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "fsync" => Ok(Self::Fsync),
            "async" => Ok(Self::Async),
            "none" => Ok(Self::None),
            _ => Err(refuse("durability", text, "fsync, async and none are possible")),
        }
    }
}

fn refuse(option: &'static str, value: impl ToString, expected: &str) -> Error {
    Error::Option { option, value: value.to_string(), expected: expected.into() }
}

/// How a sequencer is to work.
#[derive(Clone, Debug)]
pub struct Options {
    /// When a call is acknowledged.
    pub durability: Durability,
    /// How long written log may stay without a sync with [`Durability::Async`].
    pub async_interval: Duration,
    /// The most single calls of a [`crate::Handle`] that run as one batch.
    pub group_calls: usize,
    /// How long a group waits for further calls when it could run at once. Zero is right for nearly all: while the disk
    /// is busy with one group, the next one gathers anyway.
    pub group_wait: Duration,
    /// Bytes of a log segment. The first ones after opening have less, from 1 MiB on; one that has to hold a larger
    /// batch has more.
    pub segment_bytes: u64,
    /// Bytes of log after which a checkpoint is taken, or twice the bytes of the last checkpoint if that is more, so
    /// that checkpoints write at most half as much as the log. Zero takes none but those that are asked for.
    pub checkpoint_bytes: u64,
    /// Time of the engine after which a checkpoint is taken, or eight times what the last checkpoint took if that is
    /// more: about as long as recovery takes at most. Means nothing if [`Self::checkpoint_bytes`] is zero.
    pub checkpoint_time: Duration,
    /// For how long at a time a checkpoint stops the calls. Calls of procedures whose accesses depend on the database
    /// stop once for the rest of the copy.
    pub checkpoint_slice: Duration,
    /// How long request ids are remembered, from the time in the id on. Where tables are divided among nodes, only the
    /// default is possible.
    pub request_window: Duration,
    /// Bytes of memory for request ids and what became of their calls: about 128 and the results for each id. When it
    /// is used up, the oldest ids go before the window is over, and a call with one of them is refused. Where tables
    /// are divided among nodes, only the default is possible.
    pub request_memory: u64,
    /// After how long without calls the log notes that all before is durable, so that damage to the last batch can be
    /// told from a torn write.
    pub idle_mark: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            durability: Durability::Fsync,
            async_interval: Duration::from_millis(10),
            group_calls: 4096,
            group_wait: Duration::ZERO,
            segment_bytes: 64 << 20,
            checkpoint_bytes: 256 << 20,
            checkpoint_time: Duration::from_secs(30),
            checkpoint_slice: Duration::from_millis(10),
            request_window: Duration::from_secs(600),
            request_memory: 256 << 20,
            idle_mark: Duration::from_millis(10),
        }
    }
}

impl Options {
    /// Whether everything is possible.
    ///
    /// # Errors
    /// [`Error::Option`] with the option, its value and what is possible.
    pub fn validate(&self) -> Result<(), Error> {
        if !(1..=1 << 20).contains(&self.group_calls) {
            return Err(refuse("group_calls", self.group_calls, "1 to 1,048,576 is possible"));
        }
        if !(4096..=1 << 40).contains(&self.segment_bytes) {
            return Err(refuse("segment_bytes", self.segment_bytes, "4 KiB to 1 TiB is possible"));
        }
        if !(Duration::from_secs(1)..=Duration::from_secs(7 * 86_400)).contains(&self.request_window) {
            let value = format!("{:?}", self.request_window);
            return Err(refuse("request_window", value, "1 second to 7 days is possible"));
        }
        if !(1..=1 << 40).contains(&self.request_memory) {
            return Err(refuse("request_memory", self.request_memory, "1 byte to 1 TiB is possible"));
        }
        if self.async_interval.is_zero() || self.async_interval > Duration::from_secs(60) {
            let value = format!("{:?}", self.async_interval);
            return Err(refuse("async_interval", value, "more than 0 and up to 60 s is possible"));
        }
        Ok(())
    }

    /// Whether everything is possible where tables are divided: all nodes have to forget the same request ids.
    ///
    /// # Errors
    /// As for [`Self::validate`].
    pub(crate) fn validate_divided(&self) -> Result<(), Error> {
        let default = Self::default();
        let expected = "where tables are divided among nodes, only the default is possible";
        if self.request_window != default.request_window {
            return Err(refuse("request_window", format!("{:?}", self.request_window), expected));
        }
        if self.request_memory != default.request_memory {
            return Err(refuse("request_memory", self.request_memory, expected));
        }
        Ok(())
    }
}
