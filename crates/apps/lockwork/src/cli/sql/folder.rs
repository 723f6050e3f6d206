//! A database in a folder, which this process opens itself.

use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use lockwork::sequencer::{Progress, RecoveryReport};
use lockwork::sql::{is_ended, statements};
use lockwork::{Error, Lockwork, OpenOptions};

use super::Database;
use super::form::{Output, form};
use crate::cli::{Failure, Outcome, print};

impl Database for Lockwork {
    fn execute(&mut self, script: &str, lines_before: u32, output: Output) -> Outcome {
        let mut printed = Ok(());
        let ran = self.sql_each(script, |_, answer| {
            if printed.is_ok() {
                printed = print(&form(&answer.into(), output));
            }
        });
        printed?;
        Ok(ran.map_err(|error| match error {
            Error::Sql(mut error) => {
                error.line += lines_before;
                Error::Sql(error)
            }
            error => error,
        })?)
    }

    fn is_complete(&self, typed: &str) -> bool {
        is_complete(typed)
    }

    fn end(self: Box<Self>) -> Outcome {
        // What was acknowledged is durable already, whatever ended it.
        Ok(self.close()?)
    }
}

/// Opens a database, and returns with it what its owner may want to know: a sentence each. `watch` is called with how
/// far recovery has come.
pub(in crate::cli) fn open_folder(
    folder: &Path,
    options: &OpenOptions,
    watch: impl Fn(Progress),
) -> Result<(Lockwork, Vec<String>), Failure> {
    let (database, report) = open(folder, options, watch)?;
    Ok((database, found(&report)))
}

/// Opens a database, with a bar for those who watch.
fn open(folder: &Path, options: &OpenOptions, watch: impl Fn(Progress)) -> Result<(Lockwork, RecoveryReport), Failure> {
    // Most are open before anybody could read it.
    let timeout = Duration::from_millis(300);
    let style = "recovering [{bar:40}] {binary_bytes} of {binary_total_bytes}, {eta} left";
    let bar = ProgressBar::no_length().with_style(ProgressStyle::with_template(style).expect("a constant template"));
    let opened = Lockwork::open_with(folder, options, |progress: Progress| {
        watch(progress);
        let Progress { done_bytes, total_bytes, elapsed, .. } = progress;
        if elapsed > timeout {
            bar.set_length(total_bytes);
            bar.set_position(done_bytes);
        }
    });
    bar.finish_and_clear();
    opened.map_err(|error| match &error {
        // Nobody has asked for the wrong thing.
        Error::Durability(why) if let Some(failure) = why.no_room() => Failure::no_room(failure),
        _ => error.into(),
    })
}

/// What recovery found that those who own the database may want to know.
fn found(report: &RecoveryReport) -> Vec<String> {
    let torn = report.torn.as_ref().map(|torn| {
        let (path, offset, bytes) = (torn.path.display(), torn.offset, torn.bytes);
        format!(
            "{bytes} bytes at the end of the log were never acknowledged and were cut off ('{path}' from offset \
             {offset} on)"
        )
    });
    let unknown = report.unknown.iter().map(|path| {
        let path = path.display();
        format!("'{path}' is no file of a database; it was left alone")
    });
    torn.into_iter().chain(unknown).collect()
}

/// Whether what was typed can be run: it ends a statement, or is wrong before its end.
fn is_complete(typed: &str) -> bool {
    let text = typed.trim_end();
    if text.is_empty() {
        return true;
    }
    let last_line = text.lines().count() as u32;
    match statements(text).find_map(Result::err) {
        None => is_ended(text),
        // An error in the last line may be that there is no more yet; a text or comment without an end is told where
        // it begins.
        Some(error) if error.message.to_lowercase().contains("unterminated") => typed.ends_with("\n\n"),
        Some(error) => error.line < last_line || typed.ends_with("\n\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_complete_when_it_ends_or_is_wrong() {
        let procedure = "CREATE PROCEDURE p(x BIGINT) AS BEGIN\n  DECLARE y BIGINT;\n";
        assert!(!is_complete("SELECT 1\n") && !is_complete(procedure));
        assert!(is_complete("SELECT a FROM t WHERE id = 1;\n") && is_complete("\n"));
        // Comments wait for nothing.
        assert!(is_complete("-- one\n") && is_complete("SELECT a FROM t WHERE id = 1; -- done\n"));
        assert!(!is_complete("SELECT a FROM t; SELECT b FROM t -- done?\n"));
        assert!(is_complete("-- a comment\n") && is_complete("SELECT a FROM t WHERE id = 1; -- one\n"));
        assert!(!is_complete("SELECT a FROM t WHERE id = 1 -- one;\n"));
        // Wrong before its end: there is nothing to wait for.
        assert!(is_complete("SELEKT\na FROM t\n;\n"));
        assert!(!is_complete("SELECT a /* one;\ntwo;\n") && !is_complete("INSERT INTO t VALUES ('a;\nb;\n"));
        assert!(is_complete(&format!("{procedure}\n")), "an empty line gives up");
    }
}
