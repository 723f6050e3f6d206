//! What a running service logs, on standard error: a line for each event, for people or as JSON.
//!
//! Services log with `tracing`. The error that ends a command, and the output of a command that somebody waits for, are
//! no events: they are printed as they are.

use std::env::VarError;
use std::io::{IsTerminal, stderr};

use clap::{Args, ValueEnum};
use tracing::subscriber::set_global_default;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::{Failure, Outcome};

/// The variable of the environment with the filter.
pub(super) const FILTER: &str = "LOCKWORK_LOG";
/// The filter if the environment has none: crates of others log only what is wrong.
const DEFAULT_FILTER: &str = "warn,lockwork=info";

/// How events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    // Time, level, target, message and fields. As a doc comment this would stand in the help of every command.
    Text,
    // An object a line.
    Json,
}

impl Format {
    /// The value of `--log-format`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct Logging {
    /// How a service logs events on standard error; LOCKWORK_LOG selects them, such as info or lockwork_server=debug
    #[arg(
        long = "log-format",
        value_name = "FORMAT",
        value_enum,
        default_value = "text",
        global = true,
        display_order = 1000
    )]
    pub(super) format: Format,
}

impl Logging {
    /// Writes the events of this process from now on.
    pub(super) fn start(&self) -> Outcome {
        let given = match std::env::var(FILTER) {
            Ok(given) => given,
            Err(VarError::NotPresent) => String::new(),
            Err(error @ VarError::NotUnicode(_)) => return Err(Failure::usage(format!("{FILTER}: {error}"))),
        };
        let filter = filter(&given)?;
        let has_colours = stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let builder = tracing_subscriber::fmt().with_writer(stderr).with_ansi(has_colours).log_internal_errors(false);
        let builder = builder.with_env_filter(filter);
        let set = match self.format {
            Format::Text => set_global_default(builder.finish()),
            Format::Json => {
                let json = builder.json().flatten_event(true).with_current_span(false).with_span_list(false);
                set_global_default(json.finish())
            }
        };
        set.map_err(Failure::usage)
    }
}

/// The filter that a text describes; of an empty one the default.
fn filter(text: &str) -> Result<EnvFilter, Failure> {
    let text = if text.trim().is_empty() { DEFAULT_FILTER } else { text };
    let refused = |why: &str| {
        Failure::usage(format!(
            "{FILTER}={text}: {why}; write a level (off, error, warn, info, debug, trace) or TARGET=LEVEL, several \
             with commas between them: warn,lockwork_server=debug"
        ))
    };
    // EnvFilter takes such a word for a target, and logs nothing else.
    let is_mistyped = |part: &&str| {
        !(part.contains(['=', '[']) || part.starts_with("lockwork") || part.parse::<LevelFilter>().is_ok())
    };
    if let Some(word) = text.split(',').map(str::trim).filter(|part| !part.is_empty()).find(is_mistyped) {
        return Err(refused(&format!("'{word}' is no level")));
    }
    EnvFilter::builder().parse(text).map_err(|error| refused(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_has_levels_and_targets() {
        for right in ["", " ", "info", "OFF", "warn,lockwork_server=debug", "lockwork_locks::lockd=trace", "lockwork"] {
            assert!(filter(right).is_ok(), "{right}");
        }
        for wrong in ["inof", "warn,verbose", "lockwork_server=loud", "=", "a=b=c"] {
            let error = filter(wrong).map(drop).unwrap_err().to_string();
            assert!(error.starts_with(&format!("LOCKWORK_LOG={wrong}: ")) && error.contains("TARGET=LEVEL"), "{error}");
        }
    }
}
