//! Names at the commands, and what of them outlives the daemon.

use crate::command::{lockwork, run};
use crate::daemon::{Daemon, finish, spawn, text};
use lockwork_testkit::etcd::Server;

/// Runs a command that has to succeed: what it prints.
fn says(line: &str) -> String {
    let output = run(line);
    assert!(output.status.success(), "{line}: {}", text(&output.stderr));
    text(&output.stdout).trim().to_string()
}

#[test]
fn commands_lock_and_show_by_name_and_numbers_are_others() {
    let daemon = Daemon::start("--locks 50 --names 20");
    let at = format!("--server {}", daemon.address);
    assert_eq!(says(&format!("lock orders/17 {at} -- printenv LOCKWORK_LOCK")), "orders/17");
    let shown = says(&format!("lock orders/17 {at} -- {} locks show orders/17 {at}", env!("CARGO_BIN_EXE_lockwork")));
    assert!(shown.starts_with("lock 50 'orders/17': exclusive") && shown.contains("holds  exclusive"), "{shown}");
    assert!(says(&format!("locks show 50 {at}")).starts_with("lock 50 'orders/17': "));
    assert!(says(&format!("locks show 17 {at}")).starts_with("lock 17: free"));
    let inner = format!("{} lock orders/17 {at} --try -- true", env!("CARGO_BIN_EXE_lockwork"));
    assert_eq!(run(&format!("lock orders/17 {at} -- {inner}")).status.code(), Some(1));
    for (line, message) in [
        (format!("locks show nobody {at}"), "is called 'nobody'"),
        (format!("lock 50 {at} -- true"), "the service has 50"),
    ] {
        let output = run(&line);
        assert!(output.status.code() == Some(2) && text(&output.stderr).contains(message), "{}", text(&output.stderr));
    }
    let output = lockwork(&[], &["lock", "", "--server", &daemon.address, "--", "true"]);
    assert!(output.status.code() == Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("the name is empty"), "{}", text(&output.stderr));
    let without = Daemon::start("--locks 50 --names 0");
    let output = run(&format!("lock orders/17 --server {} -- true", without.address));
    assert!(output.status.code() == Some(2) && text(&output.stderr).contains("--names"), "{}", text(&output.stderr));
}

#[test]
fn messages_name_the_lock_as_it_was_typed() {
    let mut daemon = Daemon::start("--locks 50 --names 20 --lease 1s");
    let holder = spawn(daemon.lock("orders/17", "exec sleep 60"));
    daemon.until(50, 1, 0);
    let top = |output: &str| says(&format!("locks top --server {} --interval 10ms --output {output}", daemon.address));
    let shown = top("text");
    assert!(
        shown.lines().any(|line| line.trim_start().starts_with("50 ") && line.ends_with(" 'orders/17'")),
        "{shown}"
    );
    let shown: serde_json::Value = serde_json::from_str(&top("json")).expect("one object");
    assert_eq!((&shown["busiest"][0]["lock"], &shown["busiest"][0]["name"]), (&50.into(), &"orders/17".into()));
    for (options, message) in [
        ("orders/17 --try", "lock 'orders/17' is held by another session"),
        ("orders/17 --timeout 100ms", "lock 'orders/17' was not granted in time"),
    ] {
        let refused = daemon.lock(options, "true").output().expect("it runs");
        let error = text(&refused.stderr);
        assert!(refused.status.code() == Some(1) && error.contains(message), "{options}: {error}");
    }
    let waits = spawn(daemon.lock("orders/17 --timeout 4s", "true"));
    daemon.until(50, 1, 1);
    daemon.kill();
    let (lost, waited) = (text(&finish(holder).stderr), finish(waits));
    assert!(lost.contains("lock 'orders/17' is lost"), "{lost}");
    let waited = (waited.status.code(), text(&waited.stderr));
    assert!(waited.0 == Some(3) && waited.1.contains("lock 'orders/17' was waited for"), "{waited:?}");
    for message in [lost, waited.1] {
        assert!(!message.contains("lock 50") && message.contains("'orders/17'"), "{message}");
    }
    let without = Daemon::start("--locks 50 --names 0");
    let error = text(&without.lock("orders/17", "true").output().expect("it runs").stderr);
    assert!(error.contains("lock 'orders/17': the lock service has no locks for names"), "{error}");
}

#[test]
fn names_are_shown_without_what_terminals_take_for_commands() {
    let daemon = Daemon::start("--locks 50 --names 20");
    let at = format!("--server {}", daemon.address);
    assert_eq!(says(&format!("lock a\u{1b}[31mb'größe {at} -- printenv LOCKWORK_LOCK")), "a\u{1b}[31mb'größe");
    let shown = says(&format!("locks show 50 {at}"));
    assert!(shown.starts_with(r"lock 50 'a\u{1b}[31mb\'größe': free"), "{shown}");
}

#[test]
fn names_in_etcd_outlive_a_daemon_that_is_killed() {
    let Some(etcd) = Server::start() else { return };
    let options = format!("--locks 50 --names 20 --etcd {} --etcd-prefix mine/", etcd.address());
    let number = |daemon: &Daemon, name: &str| {
        let at = format!("--server {}", daemon.address);
        let shown = says(&format!(
            "lock {name} {at} -- {} locks show {name} {at} --output json",
            env!("CARGO_BIN_EXE_lockwork")
        ));
        let shown: serde_json::Value = serde_json::from_str(&shown).expect("one object");
        (shown["lock"].as_u64().expect("a number"), shown["token"].as_u64().expect("a token"))
    };
    let daemon = Daemon::start(&options);
    let (first, second) = (number(&daemon, "first"), number(&daemon, "second"));
    assert_eq!((first.0, second.0), (50, 51));
    drop(daemon);
    let daemon = Daemon::start(&options);
    // Names of before stay, whoever is asked for first.
    assert_eq!(number(&daemon, "third").0, 52);
    let again = number(&daemon, "second");
    assert!(again.0 == 51 && again.1 > second.1);
}
