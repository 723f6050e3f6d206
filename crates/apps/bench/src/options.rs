//! Options that several subcommands have in common.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use lockwork_engine::{EngineKind, Interleave, Options};
use lockwork_memory::Pages;

use super::report::{Forms, prepare_folder};
use super::{EngineOptions, Failure, Outcome, Output, engines};

/// Where results go.
#[derive(Clone, Debug, Args)]
#[group(skip)]
pub(super) struct Results {
    /// How results are printed
    #[arg(long, value_enum, default_value = "text")]
    pub(super) output: Output,
    /// A folder for the results as text, JSON, CSV and charts
    #[arg(long)]
    pub(super) out: Option<PathBuf>,
}

impl Results {
    /// Creates the folder, if the user wants one, before minutes of work.
    pub(super) fn prepare(&self) -> Outcome {
        prepare_folder(self.out.as_deref())
    }

    /// Prints a result in the form that the user wants, and saves the others.
    pub(super) fn give(&self, forms: &Forms) -> Outcome {
        forms.give(self.output, self.out.as_deref())
    }
}

/// Which engines to measure.
#[derive(Clone, Debug, Args)]
#[group(skip)]
pub(super) struct Engines {
    /// Engines, with commas: serial, two-phase, optimistic, timestamp, deterministic-queue, deterministic,
    /// opencl-deterministic, opencl-two-phase, fpga, network-two-phase, network-deterministic [default: for run
    /// two-phase,deterministic-queue,deterministic; for engines all that run on the CPU]
    #[arg(long, value_delimiter = ',')]
    engine: Vec<String>,
    #[command(flatten)]
    options: EngineOptions,
}

impl Engines {
    /// The engines that the user names, or else `default`, and their settings.
    pub(super) fn choose(&self, default: &[EngineKind]) -> Result<(Vec<EngineKind>, Options), Failure> {
        let parse = |name: &String| match name.as_str() {
            "" => Err(empty_entry("--engine", "--engine serial,deterministic")),
            name => engines::find(name),
        };
        let kinds = match self.engine.as_slice() {
            [] => default.to_vec(),
            names => names.iter().map(parse).collect::<Result<_, _>>()?,
        };
        let settings = self.options.settings(&kinds)?;
        Ok((kinds, Options { settings, ..Options::default() }))
    }
}

/// How many workers an engine has, and what they work on.
#[derive(Clone, Debug, Args)]
#[group(skip)]
pub(super) struct Workers {
    /// Worker threads [default: threadcount of -P, or the cores]
    #[arg(long, value_parser = whole::<usize>, allow_negative_numbers = true)]
    pub(super) threads: Option<usize>,
    /// Row accesses in flight in each worker
    #[arg(long, default_value_t = 16)]
    window: usize,
    /// Plain pages instead of huge ones
    #[arg(long)]
    plain_pages: bool,
}

impl Workers {
    /// `options` with these workers.
    pub(super) fn apply(&self, options: Options) -> Options {
        Options {
            threads: self.threads.unwrap_or(options.threads),
            window: self.window,
            pages: if self.plain_pages { Pages::Plain } else { Pages::Huge },
            ..options
        }
    }
}

/// How transactions of one worker overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Overlap {
    /// one after the other, nothing prefetched
    None,
    /// groups, each begun as a whole and then ended in order; deterministic takes it for dynamic
    Batch,
    /// each left wherever it would wait for memory or for a lock
    Dynamic,
}

impl From<Overlap> for Interleave {
    fn from(overlap: Overlap) -> Self {
        match overlap {
            Overlap::None => Self::None,
            Overlap::Batch => Self::Batch,
            Overlap::Dynamic => Self::Dynamic,
        }
    }
}

/// The name of an option's value on the command line.
pub(super) fn name_of(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string())
}

/// Parses a whole number; the error names the range. Workloads have further limits.
pub(super) fn whole<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("whole numbers from 0 to {} are possible", u64::MAX))
}

/// The error of a list with nothing between two commas.
pub(super) fn empty_entry(option: &str, example: &str) -> Failure {
    Failure::usage(format!("{option} has an empty entry; write names with single commas between, as in {example}"))
}

/// Refuses a benchmark without rounds.
pub(super) fn check_passes(passes: usize) -> Outcome {
    match passes {
        0 => Err(Failure::usage("--passes is 0; 1 or more is possible")),
        _ => Ok(()),
    }
}

/// Refuses a benchmark without rounds, or with more than a person waits for.
pub(super) fn check_rounds(passes: usize) -> Outcome {
    match passes {
        1..=100 => Ok(()),
        _ => Err(Failure::usage(format!("--passes is {passes}; 1 to 100 are possible"))),
    }
}
