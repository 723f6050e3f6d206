//! The watchdog of `lockwork lock`: a command ends before another client gets its lock, whatever is stopped or killed.

use super::daemon::{Daemon, LONG, finish, signal, spawn, text};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// What `/proc/PROCESS/stat` says: name, state, parent, session.
fn stat(process: u32) -> Option<(String, char, u32, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?.chars().next()?;
    let mut number = || fields.next()?.parse().ok();
    let (parent, _, session) = (number()?, number()?, number()?);
    Some((name.to_string(), state, parent, session))
}

/// Calls it until it returns something.
#[track_caller]
fn until<T>(what: &str, mut call: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = call() {
            return found;
        }
        assert!(start.elapsed() < LONG, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The watchdog of a `lockwork lock`.
fn watchdog(of: &Child) -> u32 {
    until("a watchdog", || {
        let processes = std::fs::read_dir("/proc").expect("processes").flatten();
        let mut numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let is_one = |(name, state, parent, _): (String, char, u32, u32)| {
            name == "lock-watchdog" && state != 'Z' && parent == of.id()
        };
        numbers.find(|number| stat(*number).is_some_and(is_one))
    })
}

fn kill(name: &str, process: u32) {
    assert!(Command::new("kill").args([name, &process.to_string()]).status().expect("kill is there").success());
}

/// Whether a process has ended; its parent may not have waited for it.
fn has_ended(process: u32) -> bool {
    stat(process).is_none_or(|(_, state, ..)| state == 'Z')
}

/// A file that does not exist.
fn file(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    _ = std::fs::remove_file(&path);
    path
}

/// A command that holds lock 5, ignores SIGTERM, and writes to the file as long as it lives; and its number.
fn writer(daemon: &Daemon, name: &str) -> (Child, u32, PathBuf) {
    let (number, lines) = (file(&format!("{name}-number")), file(name));
    let (at, to) = (number.display(), lines.display());
    let script =
        format!("trap '' TERM; echo $$ > {at}.new; mv {at}.new {at}; while :; do echo x >> {to}; sleep 0.01; done");
    let holder = spawn(daemon.lock("5", &script));
    let number = until("the command", || std::fs::read_to_string(&number).ok()?.trim().parse().ok());
    (holder, number, lines)
}

/// What another client runs when it has the lock: two sizes of the file, which are alike if nobody writes.
fn sizes(daemon: &Daemon, lines: &std::path::Path) -> Child {
    let file = lines.display();
    spawn(daemon.lock("5", &format!("wc -c < {file}; sleep 0.3; wc -c < {file}")))
}

#[track_caller]
fn assert_alike(sizes: Child) {
    let output = finish(sizes);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let text = text(&output.stdout);
    let mut sizes = text.split_whitespace();
    assert!(sizes.next().is_some_and(|size| Some(size) == sizes.next()), "the former holder's command writes: {text}");
}

#[test]
fn a_command_has_ended_when_another_client_gets_the_lock_of_a_stopped_holder() {
    let daemon = Daemon::start("--locks 50 --lease 2s");
    let (holder, command, lines) = writer(&daemon, "stopped-holder");
    let waits = sizes(&daemon, &lines);
    daemon.until(5, 1, 1);
    signal("-STOP", &holder);
    assert_alike(waits);
    assert!(has_ended(command), "the holder is still stopped");
    signal("-CONT", &holder);
    let output = finish(holder);
    let error = text(&output.stderr);
    assert!(output.status.code() == Some(4) && error.contains("lock 5 is lost"), "{:?} {error}", output.status);
}

/// As Ctrl-Z at a terminal does.
#[test]
fn a_command_that_is_stopped_with_its_holder_does_not_go_on_later() {
    let daemon = Daemon::start("--locks 50 --lease 2s");
    let (holder, command, lines) = writer(&daemon, "stopped-both");
    let waits = sizes(&daemon, &lines);
    daemon.until(5, 1, 1);
    signal("-STOP", &holder);
    kill("-STOP", command);
    assert_alike(waits);
    assert!(has_ended(command), "both are still stopped");
    signal("-CONT", &holder);
    assert_eq!(finish(holder).status.code(), Some(4));
}

#[test]
fn a_watchdog_that_is_killed_is_replaced() {
    let daemon = Daemon::start("--locks 50 --lease 2s");
    let (holder, command, lines) = writer(&daemon, "killed-watchdog");
    let first = watchdog(&holder);
    kill("-KILL", first);
    let second = until("another watchdog", || Some(watchdog(&holder)).filter(|second| *second != first));
    let session = |process| stat(process).expect("it lives").3;
    assert_ne!(session(second), session(holder.id()), "what a terminal stops is not the watchdog");
    // Signals that end whole sessions and services do not end it.
    for signal in ["-TERM", "-INT", "-HUP"] {
        kill(signal, second);
    }
    let waits = sizes(&daemon, &lines);
    daemon.until(5, 1, 1);
    signal("-STOP", &holder);
    assert_alike(waits);
    assert!(has_ended(command));
    signal("-CONT", &holder);
    assert_eq!(finish(holder).status.code(), Some(4));
}

#[test]
fn a_watchdog_ends_with_the_command_or_with_its_holder() {
    let daemon = Daemon::start("--locks 50");
    let holder = spawn(daemon.lock("5", "exec sleep 60"));
    daemon.until(5, 1, 0);
    let number = watchdog(&holder);
    signal("-TERM", &holder);
    assert_eq!(finish(holder).status.code(), Some(128 + 15));
    assert!(stat(number).is_none(), "it was waited for");
    let (holder, command, _) = writer(&daemon, "killed-holder");
    let number = watchdog(&holder);
    signal("-KILL", &holder);
    finish(holder);
    until("the end of both", || (has_ended(number) && has_ended(command)).then_some(()));
    // A watchdog that is stopped does not keep its holder from ending.
    let (holder, command, _) = writer(&daemon, "stopped-watchdog");
    kill("-STOP", watchdog(&holder));
    kill("-KILL", command);
    assert_eq!(finish(holder).status.code(), Some(128 + 9));
}

#[test]
fn a_command_that_ignores_sigterm_is_killed_when_lockd_ends_its_session() {
    let mut daemon = Daemon::start("--locks 50");
    let (holder, command, _) = writer(&daemon, "ended-session");
    kill("-TERM", daemon.id());
    assert_eq!(daemon.ended(LONG), Some(0));
    let output = finish(holder);
    let error = text(&output.stderr);
    assert!(output.status.code() == Some(4) && error.contains("was killed") && has_ended(command), "{error}");
}
