//! `lockwork inspect log|checkpoint DIR`: what is in the files of a database, verified. Nothing is locked or written.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use lockwork::RequestId;
use lockwork::sequencer::Error;
use lockwork::sequencer::inspect::{Calls, Contents, Entry, Summary, checkpoint, log};
use lockwork::sequencer::io::Disk;
use serde_json::json;

use super::{Failure, Outcome, print};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Every record of the log, and whether it ends torn
    Log(Arguments),
    /// What is in the newest checkpoint
    Checkpoint(Arguments),
}

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The folder of the database
    folder: PathBuf,
    /// Only the last line: how much there is, and that all of it is whole
    #[arg(long)]
    quiet: bool,
    /// How records are printed
    #[arg(long, value_enum, default_value = "text")]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// A line a record for people
    Text,
    /// A JSON object a line
    Json,
}

pub(super) fn run(command: &Command) -> Outcome {
    let disk = Disk::new();
    match command {
        Command::Log(arguments) => {
            let path = arguments.found()?;
            let summary = arguments.walk(|entry| log(&disk, path, entry))?;
            arguments.end(&summary, "the log", &format!("the next record is {}", summary.number))
        }
        Command::Checkpoint(arguments) => {
            let path = arguments.found()?;
            match arguments.walk(|entry| checkpoint(&disk, path, entry))? {
                Some(summary) => {
                    let covers = format!("it covers all records up to {}", summary.number);
                    arguments.end(&summary, "the checkpoint", &covers)
                }
                None if arguments.output == Output::Json => print("{\"checkpoint\":null}\n"),
                None => print("there is no checkpoint yet\n"),
            }
        }
    }
}

impl Arguments {
    /// The folder, which must be one of a database.
    fn found(&self) -> Result<&PathBuf, Failure> {
        if self.folder.join("log").is_dir() {
            return Ok(&self.folder);
        }
        Err(Failure::usage(format!(
            "'{}' is no database: it has no folder 'log'; give the folder that was opened",
            self.folder.display()
        )))
    }

    /// Walks, and prints what is found as it is found: damage may come after it.
    fn walk<T>(&self, walk: impl FnOnce(&mut dyn FnMut(Entry)) -> Result<T, Error>) -> Result<T, Failure> {
        let mut printed = Ok(());
        if !self.quiet && self.output == Output::Text {
            printed =
                print(&format!("{:>10}  {:<10} {:>12} {:>10}  {}\n", "number", "kind", "offset", "bytes", "what"));
        }
        let mut path = PathBuf::new();
        let walked = walk(&mut |entry| {
            if self.quiet || printed.is_err() {
                return;
            }
            let mut text = String::new();
            if self.output == Output::Json {
                text = format!("{}\n", json_of(&entry));
            } else {
                if path != entry.path {
                    text.push_str(&format!("{}\n", entry.path.display()));
                }
                let Entry { number, kind, offset, bytes, contents, .. } = &entry;
                let (kind, what) = (kind.name(), describe(contents));
                text.push_str(&format!("{number:>10}  {kind:<10} {offset:>12} {bytes:>10}  {what}\n"));
            }
            path = entry.path;
            printed = print(&text);
        });
        printed?;
        Ok(walked?)
    }

    fn end(&self, summary: &Summary, what: &str, next: &str) -> Outcome {
        let Summary { number, records, bytes, torn, unknown } = summary;
        let torn = torn.as_ref().map(|torn| {
            let (path, offset, bytes) = (torn.path.display(), torn.offset, torn.bytes);
            format!("{bytes} bytes of '{path}' from offset {offset} on: {}", torn.problem)
        });
        if self.output == Output::Json {
            return print(&format!(
                "{}\n",
                json!({ "records": records, "bytes": bytes, "number": number, "torn": torn, "unknown": unknown })
            ));
        }
        unknown.iter().for_each(|path| eprintln!("lockwork: '{}' is no file of a database", path.display()));
        let torn = torn.map_or(String::new(), |torn| format!("; torn at its end: {torn}"));
        print(&format!("{what} is whole: {records} records, {bytes} bytes; {next}{torn}\n"))
    }
}

fn describe(contents: &Contents) -> String {
    match contents {
        Contents::Calls(None) => "calls of procedures that are defined before the log begins".into(),
        Contents::Calls(Some(runs)) => {
            let run = |Calls { procedure, calls, requests }: &Calls| match requests.is_empty() {
                true => format!("{calls} {procedure}"),
                false => format!("{calls} {procedure} ({})", ids(requests)),
            };
            // Mixed batches have many short runs.
            let shown: Vec<String> = runs.iter().take(4).map(run).collect();
            let more = runs.len().saturating_sub(4);
            let calls: usize = runs.iter().map(|run| run.calls).sum();
            match more {
                0 => shown.join(", "),
                _ => format!("{} and {more} runs more, {calls} calls in all", shown.join(", ")),
            }
        }
        Contents::Definition(definition) => {
            let lines = definition.assembly.lines().map(|line| line.split(';').next().unwrap_or_default().trim());
            let first = lines.into_iter().find(|line| !line.is_empty()).unwrap_or_default();
            first.chars().take(100).collect()
        }
        Contents::Rows(table, count) => format!("{count} of {table}"),
        Contents::Indexed(tables) => {
            let each: Vec<String> = tables.iter().map(|(table, rows)| format!("{rows} of {table}")).collect();
            each.join(", ")
        }
        Contents::Sizes(tables) => {
            let sizes: Vec<String> = tables.iter().map(|(table, rows)| format!("{rows} of {table}")).collect();
            format!("expect {}", sizes.join(", "))
        }
        Contents::ShortRequests => "request ids of an earlier version, which are refused now".into(),
        Contents::Requests(horizon, requests) => match horizon {
            Some(horizon) => format!("{}; ids up to {horizon} are refused", ids(requests)),
            None => ids(requests),
        },
        Contents::Chain(epoch) => format!("epoch {epoch}"),
        Contents::Durable => "everything before is durable".into(),
        Contents::End(rows, digest) => format!("{rows} rows, digest {digest}"),
    }
}

/// How many request ids, and the first of them.
fn ids(requests: &[RequestId]) -> String {
    let shown: Vec<String> = requests.iter().take(4).map(ToString::to_string).collect();
    match requests.len().saturating_sub(shown.len()) {
        0 if shown.is_empty() => "no request ids".into(),
        0 if shown.len() == 1 => format!("request id {}", shown[0]),
        0 => format!("{} request ids: {}", requests.len(), shown.join(", ")),
        more => format!("{} request ids: {} and {more} more", requests.len(), shown.join(", ")),
    }
}

fn texts(requests: &[RequestId]) -> Vec<String> {
    requests.iter().map(ToString::to_string).collect()
}

fn json_of(entry: &Entry) -> serde_json::Value {
    let Entry { path, offset, bytes, number, kind, contents } = entry;
    let contents = match contents {
        Contents::Calls(runs) => json!(runs.as_ref().map(|runs| {
            let run = |Calls { procedure, calls, requests }: &Calls| {
                json!({ "procedure": procedure, "calls": calls, "requests": texts(requests) })
            };
            runs.iter().map(run).collect::<Vec<_>>()
        })),
        Contents::Definition(definition) => json!({ "assembly": definition.assembly, "source": definition.source }),
        Contents::Rows(table, count) => json!({ "table": table, "rows": count }),
        Contents::Indexed(tables) | Contents::Sizes(tables) => {
            json!(tables.iter().map(|(table, rows)| json!({ "table": table, "rows": rows })).collect::<Vec<_>>())
        }
        Contents::ShortRequests => json!(null),
        Contents::Requests(horizon, requests) => {
            json!({ "requests": texts(requests), "refused_up_to": horizon.map(|horizon| horizon.to_string()) })
        }
        Contents::Chain(epoch) => json!({ "epoch": epoch }),
        Contents::Durable => json!(null),
        Contents::End(rows, digest) => json!({ "rows": rows, "digest": digest.to_string() }),
    };
    json!({
        "file": path, "offset": offset, "bytes": bytes, "number": number, "kind": kind.name(), "contents": contents,
    })
}
