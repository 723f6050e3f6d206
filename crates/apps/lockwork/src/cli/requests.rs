//! Request ids: how long a server remembers them, and the command that makes one.

use std::time::Duration;

use clap::Args;
use lockwork::sequencer::Options;

use super::{Failure, Outcome, print};

/// How a server remembers request ids.
#[derive(Debug, Args)]
pub(super) struct Memory {
    /// How long request ids are remembered, in seconds: a call that is repeated with an older id is refused (22R02)
    #[arg(long, value_name = "S", default_value_t = Options::default().request_window.as_secs())]
    request_window: u64,
    /// Memory for request ids, in MiB, about 128 bytes and its results for each call: when it is used up, the oldest
    /// ids are forgotten before the window is over, and refused
    #[arg(long, value_name = "MIB", default_value_t = Options::default().request_memory >> 20)]
    request_memory: u64,
}

impl Memory {
    /// Options with this.
    pub(super) fn applied(&self, options: Options) -> Result<Options, Failure> {
        let request_memory = self.request_memory.saturating_mul(1 << 20);
        let options = Options { request_window: Duration::from_secs(self.request_window), request_memory, ..options };
        options.validate()?;
        Ok(options)
    }
}

/// Prints a request id.
pub(super) fn run() -> Outcome {
    let id = lockwork::request_id();
    let id = id.map_err(|error| Failure::BackEnd(format!("the system has no random bytes: {error}")))?;
    print(&format!("{id}\n"))
}
