//! `lockwork sql DIR`: a prompt on a terminal, a filter in a pipe.

use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use lockwork::sequencer::{self, Durability, Progress, RecoveryReport};
use lockwork::sql::{Kind, Value, is_ended, statements};
use lockwork::{EngineKind, Error, Lockwork, OpenOptions, SqlAnswer};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::json;

use super::{Failure, Outcome, print};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The folder of the database, made if it is not there
    folder: PathBuf,
    /// Statements to run instead of those of standard input
    #[arg(short, long)]
    command: Option<String>,
    /// A file of statements to run instead of those of standard input
    #[arg(short, long, conflicts_with = "command")]
    file: Option<PathBuf>,
    /// How answers are printed
    #[arg(long, value_enum, default_value = "text")]
    output: Output,
    /// The engine that runs the calls
    #[arg(long, default_value = "deterministic")]
    engine: String,
    /// When a statement is answered: fsync, when it survives a loss of power; async, when it survives this process;
    /// none, when it has run, and only what is there at the end is kept
    #[arg(long, default_value = "fsync")]
    durability: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Tables for people
    Text,
    /// Rows alone, with a line of column names
    Csv,
    /// A JSON object a statement
    Json,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Durability(error) => error.into(),
            Error::Engine(error) => error.into(),
            Error::Aborted { .. } => Self::Check(error.to_string()),
            error => Self::Usage(error.to_string()),
        }
    }
}

pub(super) fn run(arguments: &Arguments) -> Outcome {
    let engine: EngineKind = arguments.engine.parse().map_err(Failure::usage)?;
    let durability: Durability = arguments.durability.parse()?;
    let sequencer = sequencer::Options { durability, ..sequencer::Options::default() };
    let script = arguments.script()?;
    let is_typed = script.is_none() && std::io::stdin().is_terminal();
    let options = OpenOptions { engine, sequencer, ..OpenOptions::default() };
    let mut database = open_and_tell(&arguments.folder, &options, |_, _| ())?;
    let ended = match &script {
        Some(script) => execute(&mut database, script, 0, arguments.output),
        None if is_typed => prompt(&mut database, arguments),
        None => filter(&mut database, arguments.output),
    };
    // What was acknowledged is durable already, whatever ended it.
    let closed = database.close().map_err(Failure::from);
    ended.and(closed)
}

impl Arguments {
    /// The statements, unless they come from standard input.
    fn script(&self) -> Result<Option<String>, Failure> {
        if let Some(command) = &self.command {
            return Ok(Some(command.clone()));
        }
        let Some(file) = &self.file else { return Ok(None) };
        match std::fs::read_to_string(file) {
            Ok(text) => Ok(Some(text)),
            Err(error) => Err(Failure::usage(format!("{}: {error}", file.display()))),
        }
    }
}

/// Opens a database, and says what its owner may want to know.
/// `watch` gets the bytes that recovery has done, and all.
pub(super) fn open_and_tell(
    folder: &PathBuf,
    options: &OpenOptions,
    watch: impl Fn(u64, u64),
) -> Result<Lockwork, Failure> {
    let (database, report) = open(folder, options, watch)?;
    told(&report);
    Ok(database)
}

/// Opens a database, with a bar for those who watch.
fn open(
    folder: &PathBuf,
    options: &OpenOptions,
    watch: impl Fn(u64, u64),
) -> Result<(Lockwork, RecoveryReport), Failure> {
    // Most are open before anybody could read it.
    let patience = Duration::from_millis(300);
    let style = "recovering [{bar:40}] {binary_bytes} of {binary_total_bytes}, {eta} left";
    let bar = ProgressBar::no_length().with_style(ProgressStyle::with_template(style).expect("a constant template"));
    let opened = Lockwork::open_with(folder, options, |Progress { done_bytes, total_bytes, elapsed, .. }| {
        watch(done_bytes, total_bytes);
        if elapsed > patience {
            bar.set_length(total_bytes);
            bar.set_position(done_bytes);
        }
    });
    bar.finish_and_clear();
    Ok(opened?)
}

/// Says what recovery found that somebody may want to know.
fn told(report: &RecoveryReport) {
    if let Some(torn) = &report.torn {
        let (path, offset, bytes) = (torn.path.display(), torn.offset, torn.bytes);
        eprintln!(
            "lockwork: {bytes} bytes at the end of the log were never acknowledged and were cut off ('{path}' from \
             offset {offset} on)"
        );
    }
    for path in &report.unknown {
        eprintln!("lockwork: '{}' is no file of a database; it was left alone", path.display());
    }
}

/// Runs the statements of standard input, each when it has ended.
fn filter(database: &mut Lockwork, output: Output) -> Outcome {
    let mut read = String::new();
    let mut lines_before = 0;
    let mut input = std::io::stdin().lock();
    for number in 1.. {
        let mut line = Vec::new();
        let wrong = |error: &dyn std::fmt::Display| Failure::usage(format!("standard input, line {number}: {error}"));
        if input.read_until(b'\n', &mut line).map_err(|error| wrong(&error))? == 0 {
            break;
        }
        read.push_str(std::str::from_utf8(&line).map_err(|error| wrong(&error))?);
        if read.trim_end().ends_with(';') && is_complete(&read) {
            execute(database, &read, lines_before, output)?;
            lines_before += read.lines().count() as u32;
            read.clear();
        }
    }
    execute(database, &read, lines_before, output)
}

/// Runs a script and prints each answer when it is there. So many lines have been read before it.
fn execute(database: &mut Lockwork, script: &str, lines_before: u32, output: Output) -> Outcome {
    let mut printed = Ok(());
    let ran = database.sql_each(script, |_, answer| {
        if printed.is_ok() {
            printed = print(&form(&answer, output));
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

/// Reads statements from the terminal until it ends.
fn prompt(database: &mut Lockwork, arguments: &Arguments) -> Outcome {
    let mut editor = DefaultEditor::new().map_err(|error| Failure::usage(format!("the terminal: {error}")))?;
    print(&format!(
        "{}; statements end with ';', \\q or Ctrl-D ends, Ctrl-C forgets what was typed\n",
        arguments.folder.display()
    ))?;
    let mut typed = String::new();
    loop {
        let line = match editor.readline(if typed.is_empty() { "lockwork> " } else { "     ...> " }) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => {
                typed.clear();
                continue;
            }
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(Failure::usage(format!("the terminal: {error}"))),
        };
        if line.trim() == "\\q" || typed.is_empty() && matches!(line.trim(), "quit" | "exit") {
            return Ok(());
        }
        if typed.is_empty() && line.trim() == "help" {
            print(
                "CREATE TABLE, INDEX, PROCEDURE; CALL, SELECT, INSERT, UPDATE, DELETE; EXPLAIN PROCEDURE; docs/sql.md\n",
            )?;
            continue;
        }
        typed.push_str(&line);
        typed.push('\n');
        if !is_complete(&typed) {
            continue;
        }
        // A history that is full forgets by itself.
        let _ = editor.add_history_entry(typed.trim());
        match execute(database, &typed, 0, arguments.output) {
            // Only what keeps everything from going on ends the prompt.
            Err(failure @ (Failure::Output(_) | Failure::Damaged(_))) => return Err(failure),
            Err(failure) => eprintln!("{failure}"),
            Ok(()) => {}
        }
        typed.clear();
    }
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

const fn tag(kind: Kind) -> &'static str {
    match kind {
        Kind::CreateTable => "CREATE TABLE",
        Kind::CreateIndex => "CREATE INDEX",
        _ => "CREATE PROCEDURE",
    }
}

/// An answer as it is printed.
fn form(answer: &SqlAnswer, output: Output) -> String {
    match (answer, output) {
        (SqlAnswer::Created(kind), Output::Text) => format!("{}\n", tag(*kind)),
        (SqlAnswer::Written(rows), Output::Text) => format!("{rows} row{}\n", if *rows == 1 { "" } else { "s" }),
        (SqlAnswer::Text(text), Output::Text | Output::Csv) => format!("{text}\n"),
        (SqlAnswer::Rows(columns, rows), Output::Text) => {
            let count = rows.len();
            format!("{}({count} row{})\n", table(columns, rows), if count == 1 { "" } else { "s" })
        }
        (SqlAnswer::Called(results), Output::Text) if results.is_empty() => "CALL\n".into(),
        (SqlAnswer::Called(results), Output::Text) => {
            let (columns, row): (Vec<_>, Vec<_>) = results.iter().cloned().unzip();
            table(&columns, &[row])
        }
        (SqlAnswer::Created(_) | SqlAnswer::Written(_), Output::Csv) => String::new(),
        (SqlAnswer::Rows(columns, rows), Output::Csv) => csv(columns, rows),
        (SqlAnswer::Called(results), Output::Csv) => {
            let (columns, row): (Vec<_>, Vec<_>) = results.iter().cloned().unzip();
            if columns.is_empty() { String::new() } else { csv(&columns, &[row]) }
        }
        (SqlAnswer::Created(kind), Output::Json) => format!("{}\n", json!({ "done": tag(*kind) })),
        (SqlAnswer::Written(rows), Output::Json) => format!("{}\n", json!({ "written": rows })),
        (SqlAnswer::Text(text), Output::Json) => format!("{}\n", json!({ "text": text })),
        (SqlAnswer::Rows(columns, rows), Output::Json) => {
            let distinct: std::collections::HashSet<_> = columns.iter().collect();
            let row = |row: &Vec<Value>| match distinct.len() == columns.len() {
                true => object(columns.iter().zip(row)),
                // An object could not hold two values of one name.
                false => row.iter().map(json_of).collect(),
            };
            let rows: Vec<_> = rows.iter().map(row).collect();
            format!("{}\n", json!({ "columns": columns, "rows": rows }))
        }
        (SqlAnswer::Called(results), Output::Json) => {
            format!("{}\n", json!({ "results": object(results.iter().map(|(name, value)| (name, value))) }))
        }
        (_, _) => format!("{answer:?}\n"),
    }
}

fn object<'a>(fields: impl Iterator<Item = (&'a String, &'a Value)>) -> serde_json::Value {
    fields.map(|(name, value)| (name.clone(), json_of(value))).collect::<serde_json::Map<_, _>>().into()
}

/// Decimals stay texts, because a reader of JSON may take numbers for floating-point ones.
fn json_of(value: &Value) -> serde_json::Value {
    match value {
        Value::Integer(number) => json!(number),
        Value::Boolean(truth) => json!(truth),
        Value::Array(values) => values.iter().map(json_of).collect(),
        other => json!(other.to_string()),
    }
}

fn table(columns: &[String], rows: &[Vec<Value>]) -> String {
    let cells: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(ToString::to_string).collect()).collect();
    let width = |column: usize| {
        let cells = cells.iter().map(|row| row[column].chars().count());
        cells.chain([columns[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let is_number =
        |column: usize| rows.iter().all(|row| matches!(row[column], Value::Integer(_) | Value::Decimal(..)));
    let numbers: Vec<bool> = (0..columns.len()).map(is_number).collect();
    let line = |cells: &[String]| {
        let cell = |(column, cell): (usize, &String)| {
            let width = widths[column];
            if numbers[column] { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        };
        let cells: Vec<String> = cells.iter().enumerate().map(cell).collect();
        format!(" {}\n", cells.join(" | ").trim_end())
    };
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(width + 2)).collect();
    let mut text = line(columns);
    text.push_str(&format!("{}\n", rule.join("+")));
    cells.iter().for_each(|row| text.push_str(&line(row)));
    text
}

fn csv(columns: &[String], rows: &[Vec<Value>]) -> String {
    let quoted = |cell: String| {
        let plain = !cell.contains([',', '"', '\n', '\r']);
        if plain { cell } else { format!("\"{}\"", cell.replace('"', "\"\"")) }
    };
    let mut text = columns.iter().cloned().map(quoted).collect::<Vec<_>>().join(",") + "\n";
    for row in rows {
        text.push_str(&(row.iter().map(|value| quoted(value.to_string())).collect::<Vec<_>>().join(",") + "\n"));
    }
    text
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

    #[test]
    fn answers_are_tables_lines_or_objects() {
        let rows = SqlAnswer::Rows(
            vec!["id".into(), "name".into()],
            vec![vec![Value::Integer(7), Value::Text("a,b".into())], vec![Value::Integer(10), Value::Text("c".into())]],
        );
        assert_eq!(form(&rows, Output::Text), " id | name\n----+------\n  7 | a,b\n 10 | c\n(2 rows)\n");
        assert_eq!(form(&rows, Output::Csv), "id,name\n7,\"a,b\"\n10,c\n");
        let expected =
            "{\"columns\":[\"id\",\"name\"],\"rows\":[{\"id\":7,\"name\":\"a,b\"},{\"id\":10,\"name\":\"c\"}]}\n";
        assert_eq!(form(&rows, Output::Json), expected);
        let called = SqlAnswer::Called(vec![("left".into(), Value::Decimal(1050, 2))]);
        assert_eq!(form(&called, Output::Text), "  left\n-------\n 10.50\n");
        assert_eq!(form(&called, Output::Json), "{\"results\":{\"left\":\"10.50\"}}\n");
    }
}
