//! The command in a process of its own, for several tests.

use std::process::{Command, Output};

/// Runs the command with these variables (`NAME=value`) and arguments.
pub(crate) fn bench(variables: &[&str], arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockwork-bench"));
    command.args(arguments).envs(variables.iter().filter_map(|variable| variable.split_once('=')));
    command.output().expect("the command starts")
}

/// Runs the command with a command line in one text, variables first, as a shell takes it; nothing in it holds a space.
pub(crate) fn run(line: &str) -> Output {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (variables, arguments) = words.split_at(words.iter().take_while(|word| word.contains('=')).count());
    bench(variables, arguments)
}
