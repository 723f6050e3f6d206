//! `lockwork user`: who may connect to a server.

use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;

use clap::Args;
use lockwork_server::{Right, Users};

use super::{Failure, Outcome, print, prompt};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The file of users, made if it is not there; `lockwork serve --users` reads it at each login
    file: PathBuf,
    /// The user; without one, list all users with their rights and grants
    name: Option<String>,
    /// What the user may do: none, only what GRANT allows; call, CALL of all procedures; write, also SELECT, INSERT,
    /// UPDATE, DELETE and COPY of all tables; define, also CREATE, GRANT and REVOKE
    /// [default: what the user has; call for a new one]
    #[arg(long, requires = "name")]
    right: Option<String>,
    /// Remove the user; otherwise the password is asked for, or read from a line of standard input
    #[arg(long, conflicts_with = "right", requires = "name")]
    remove: bool,
}

pub(super) fn run(arguments: &Arguments) -> Outcome {
    let Arguments { file, name, right, remove } = arguments;
    let Some(name) = name else {
        return print(&Users::describe(file).map_err(Failure::usage)?);
    };
    if *remove {
        return match Users::remove(file, name).map_err(Failure::usage)? {
            true => print(&format!("{name} is removed\n")),
            false => Err(Failure::usage(format!("{} has no user '{name}'", file.display()))),
        };
    }
    let right = right.as_deref().map(str::parse).transpose().map_err(Failure::usage)?;
    match Users::set(file, name, right, &password(name)?).map_err(Failure::usage)? {
        Right::Nothing => print(&format!("{name} may do what GRANT allows\n")),
        right => print(&format!("{name} may {right}\n")),
    }
}

/// Asks twice, or reads a line of a pipe.
fn password(name: &str) -> Result<String, Failure> {
    let refused = |error: std::io::Error| Failure::usage(format!("the password: {error}"));
    if !std::io::stdin().is_terminal() {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).map_err(refused)?;
        return Ok(line.trim_end_matches(['\n', '\r']).to_string());
    }
    let first = prompt::password(&format!("password of {name}: ")).map_err(refused)?;
    match prompt::password("once more: ").map_err(refused)? == first {
        true => Ok(first),
        false => Err(Failure::usage("the two passwords are not the same")),
    }
}
