//! Standard output.

use std::io::Write;

use crate::{Failure, Outcome};

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// A table for people
    Text,
    /// One JSON object
    Json,
    /// One line a run
    Csv,
}

/// Writes to standard output. A reader that has closed its end is no error.
///
/// # Errors
/// [`Failure::Output`].
pub fn print(text: &str) -> Outcome {
    let mut output = std::io::stdout();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::Output(error)),
        _ => Ok(()),
    }
}
