//! `lockwork sql DIR` and `lockwork sql ADDR`: a prompt on a terminal, a filter in a pipe.
//!
//! | room | idea |
//! |---|---|
//! | `folder` | a database that this process opens |
//! | `remote` | one at a server |
//! | `form` | answers as they are printed |

mod folder;
mod form;
mod remote;

use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use lockwork::OpenOptions;
use lockwork::sequencer::{self, Durability};
use lockwork_client::Address;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use super::engines::{self, EngineOptions};
use super::{Failure, Outcome, print};
pub(super) use folder::open_folder;
use form::Output;
use remote::Remote;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The folder of the database, made if it is not there; or a server: 127.0.0.1:5433, or
    /// postgres://user:password@host:port/database?sslmode=verify-full&sslrootcert=FILE; or several of which one is
    /// wanted: a:5433,b:5433, or postgres://a:5433,b:5433/database?target_session_attrs=primary
    #[arg(value_name = "DIR|ADDR")]
    place: PathBuf,
    /// Statements to run instead of those of standard input. Given several times, each list of statements runs in its
    /// turn, in one session, until one fails
    #[arg(short, long, value_name = "STATEMENTS", allow_hyphen_values = true)]
    command: Vec<String>,
    /// A file of statements to run instead of those of standard input
    #[arg(short, long, conflicts_with = "command")]
    file: Option<PathBuf>,
    /// How answers are printed
    #[arg(long, value_enum, default_value = "text")]
    output: Output,
    /// Of a folder: the engine that runs the calls [default: deterministic]
    #[arg(long)]
    engine: Option<String>,
    #[command(flatten)]
    engine_options: EngineOptions,
    /// Of a folder: when a statement is answered: fsync, when it survives a loss of power; async, when it survives this
    /// process; none, when it has run, and only what is there at the end is kept [default: fsync]
    #[arg(long)]
    durability: Option<String>,
    /// At a server: the user [default: PGUSER, USER, or lockwork]. A password is that of the URL, LOCKWORK_PASSWORD or
    /// PGPASSWORD, or is asked for
    #[arg(long)]
    user: Option<String>,
    /// Of a server: the database [default: as the user]
    #[arg(long)]
    database: Option<String>,
    /// Of a server: seconds that a CALL may go without an answer, and a statement of another kind while the server does
    /// not respond; of several servers, until another one has answered. 0 for no limit, and no fail-over [default: 10]
    #[arg(long, value_name = "SECONDS")]
    call_timeout: Option<String>,
    /// Of a server: seconds that each server may take to let the client in [default: 10, or 3 for each of several]
    #[arg(long, value_name = "SECONDS")]
    connect_timeout: Option<String>,
}

/// What runs statements.
trait Database {
    /// Runs a script and prints each answer when it is there. So many lines have been read before it.
    fn execute(&mut self, script: &str, lines_before: u32, output: Output) -> Outcome;

    /// Whether what was typed can be run: it ends a statement, or is wrong before its end.
    fn is_complete(&self, typed: &str) -> bool;

    /// Goes on at another server when this one was lost, and returns what a prompt shows of it; `None` where there is
    /// none.
    fn recover(&mut self) -> Option<String> {
        None
    }

    /// Ends the work; what is left undone is a failure.
    fn end(self: Box<Self>) -> Outcome;
}

pub(super) fn run(arguments: &Arguments) -> Outcome {
    let scripts = arguments.scripts()?;
    let (mut database, name) = arguments.open()?;
    let is_typed = std::io::stdin().is_terminal();
    let ended = match scripts {
        Some(scripts) => execute_all(&mut *database, &scripts, arguments.output),
        None if is_typed => prompt(&mut *database, &name, arguments.output),
        None => filter(&mut *database, arguments.output),
    };
    match (ended, database.end()) {
        (Err(failure), Err(also)) => Err(failure.reworded(|text| format!("{text}\nlockwork: {also}"))),
        (ended, closed) => ended.and(closed),
    }
}

impl Arguments {
    /// The lists of statements, unless they come from standard input.
    fn scripts(&self) -> Result<Option<Vec<String>>, Failure> {
        if !self.command.is_empty() {
            return Ok(Some(self.command.clone()));
        }
        let Some(file) = &self.file else { return Ok(None) };
        match std::fs::read_to_string(file) {
            Ok(text) => Ok(Some(vec![text])),
            Err(error) => Err(Failure::usage(format!("{}: {error}", file.display()))),
        }
    }

    /// The database, and what it is called at a prompt. What exists is a folder, also if it is called like an address.
    fn open(&self) -> Result<(Box<dyn Database>, String), Failure> {
        let address = self.place.to_str().filter(|_| !self.place.exists()).and_then(Address::parse);
        let address = address.transpose().map_err(|error| remote::failure_of(&error, None))?;
        let of_folders = [("--engine", &self.engine), ("--durability", &self.durability)];
        let of_servers = [
            ("--user", &self.user),
            ("--database", &self.database),
            ("--call-timeout", &self.call_timeout),
            ("--connect-timeout", &self.connect_timeout),
        ];
        let given = |options: &[(&'static str, &Option<String>)]| {
            options.iter().find(|(_, value)| value.is_some()).map(|(name, _)| *name)
        };
        let place = self.place.display();
        let Some(mut address) = address else {
            refuse_address(&self.place)?;
            if let Some(option) = given(&of_servers) {
                let hint = "hint: a server is written as 127.0.0.1:5433 or postgres://user@host:port/database";
                return Err(Failure::usage(format!("{option} is for servers, and '{place}' is a folder\n{hint}")));
            }
            let options = self.options()?;
            let (database, found) = open_folder(&self.place, &options, |_| ())?;
            found.iter().for_each(|what| eprintln!("lockwork: {what}"));
            return Ok((Box::new(database), place.to_string()));
        };
        let engine_option = self.engine_options.are_given().then_some("--engine-option");
        if let Some(option) = given(&of_folders).or(engine_option) {
            let hint = format!("hint: lockwork serve {option} chooses it for all who connect");
            return Err(Failure::usage(format!("{option} is for folders, and {address} is a server\n{hint}")));
        }
        if let Some(seconds) = seconds("--call-timeout", self.call_timeout.as_deref())? {
            address.timeouts.call = Some(seconds).filter(|limit| !limit.is_zero());
        }
        if let Some(seconds) = seconds("--connect-timeout", self.connect_timeout.as_deref())? {
            address.timeouts.connect = Some(seconds).filter(|limit| !limit.is_zero());
        }
        remote::complete(&mut address, self.user.as_deref(), self.database.as_deref())?;
        let remote = Remote::open(address)?;
        let name = remote.name();
        Ok((Box::new(remote), name))
    }

    fn options(&self) -> Result<OpenOptions, Failure> {
        let engine = engines::find(self.engine.as_deref().unwrap_or("deterministic"))?;
        let engine_options = self.engine_options.options(engine)?;
        let durability: Durability = self.durability.as_deref().unwrap_or("fsync").parse()?;
        let sequencer = sequencer::Options { durability, ..sequencer::Options::default() };
        Ok(OpenOptions { engine, engine_options, sequencer })
    }
}

/// The time that an option gives in seconds, if it is there.
fn seconds(option: &str, value: Option<&str>) -> Result<Option<Duration>, Failure> {
    let Some(text) = value else { return Ok(None) };
    let time = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let refused = || Failure::usage(format!("{option} is '{text}'\nhint: write seconds, from 0 on"));
    time.map(Some).ok_or_else(refused)
}

/// Runs lists of statements, each in its turn, until one fails. Of several lists a failure names the one it is of.
fn execute_all(database: &mut dyn Database, scripts: &[String], output: Output) -> Outcome {
    for (at, script) in scripts.iter().enumerate() {
        let ran = database.execute(script, 0, output);
        ran.map_err(|failure| match scripts.len() {
            1 => failure,
            _ => failure.reworded(|text| format!("--command {}: {text}", at + 1)),
        })?;
    }
    Ok(())
}

/// Refuses to make a folder of a name that may be meant as an address.
pub(super) fn refuse_address(place: &Path) -> Result<(), Failure> {
    match place.to_str().filter(|text| !place.exists() && Address::is_meant(text)) {
        None => Ok(()),
        Some(text) => Err(Failure::usage(format!(
            "'{text}' is no folder that is there, and none is made of a name that looks like an address\n\
             hint: a server is written as 127.0.0.1:5433 or postgres://user@host:port/database, \
             a new folder of this name as ./{text}"
        ))),
    }
}

/// Runs the statements of standard input, each when it has ended.
fn filter(database: &mut dyn Database, output: Output) -> Outcome {
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
        if read.trim_end().ends_with(';') && database.is_complete(&read) {
            database.execute(&read, lines_before, output)?;
            lines_before += read.lines().count() as u32;
            read.clear();
        }
    }
    database.execute(&read, lines_before, output)
}

/// Reads statements from the terminal until it ends.
fn prompt(database: &mut dyn Database, name: &str, output: Output) -> Outcome {
    let mut editor = DefaultEditor::new().map_err(|error| Failure::usage(format!("the terminal: {error}")))?;
    print(&format!("{name}; statements end with ';', \\q or Ctrl-D ends, Ctrl-C forgets what was typed\n"))?;
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
        if !database.is_complete(&typed) {
            continue;
        }
        // A history that is full forgets by itself.
        let _ = editor.add_history_entry(typed.trim());
        match database.execute(&typed, 0, output) {
            // Only what keeps everything from going on ends the prompt.
            Err(failure @ (Failure::Output(_) | Failure::Damaged(_))) => return Err(failure),
            Err(failure @ Failure::Connect(_)) => match database.recover() {
                Some(name) => eprintln!("lockwork: {failure}\nlockwork: connected to {name}"),
                None => return Err(failure),
            },
            Err(failure) => eprintln!("{failure}"),
            Ok(()) => {}
        }
        typed.clear();
    }
}
