//! What services log: text or JSON on standard error, as `--log-format` and `LOCKWORK_LOG` ask for.

#[path = "common/command.rs"]
mod command;

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use command::run;
use serde_json::Value;

/// What a lockd logs that is started so, and ended when it is ready.
fn logged(options: &[&str], filter: &str) -> String {
    let mut lockd = Command::new(env!("CARGO_BIN_EXE_lockwork"));
    lockd.args(["lockd", "--udp", "127.0.0.1:0", "--locks", "50"]).args(options).env("LOCKWORK_LOG", filter);
    let mut lockd = lockd.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut ready = String::new();
    BufReader::new(lockd.stdout.take().expect("a pipe")).read_line(&mut ready).expect("a line");
    assert!(ready.starts_with("lockd: ready on "), "{ready}");
    let id = lockd.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().expect("kill runs").success());
    let mut logged = String::new();
    lockd.stderr.take().expect("a pipe").read_to_string(&mut logged).expect("text");
    assert!(lockd.wait().expect("it ends").success(), "{logged}");
    logged
}

#[test]
fn events_are_lines_of_text_or_of_json() {
    let text = logged(&[], "");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].contains(" INFO lockwork::cli::lockd: clients come in after 2000 ms"), "{text}");
    assert!(lines.last().unwrap().ends_with("stopped; all sessions have ended"), "{text}");
    assert!(!text.contains('\x1b'), "colours are for terminals: {text}");
    let json = logged(&["--log-format", "json"], "");
    for line in json.lines() {
        let event: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert!(event["timestamp"].is_string() && event["level"] == "INFO", "{event}");
        assert!(event["message"].is_string() && event["target"] == "lockwork::cli::lockd", "{event}");
    }
    assert_eq!(json.lines().count(), lines.len(), "{json}");
}

#[test]
fn a_filter_selects_events_by_level_and_target() {
    for (filter, lines) in [("warn", 0), ("off", 0), ("warn,lockwork::cli=info", 2), ("lockwork_server=trace", 0)] {
        let logged = logged(&["--log-format", "text"], filter);
        assert_eq!(logged.lines().count(), lines, "{filter}: {logged}");
    }
}

#[test]
fn wrong_filters_and_formats_are_refused_with_what_is_possible() {
    for (line, named) in [
        ("LOCKWORK_LOG=inof lockd", "'inof' is no level; write a level (off, error, warn, info, debug, trace) or"),
        ("LOCKWORK_LOG=lockwork_server=loud serve", "TARGET=LEVEL"),
        ("lockd --log-format xml", "[possible values: text, json]"),
    ] {
        let output = run(line);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && error.contains(named), "{line}: {error}");
        assert!(output.stdout.is_empty(), "{line}");
    }
}
