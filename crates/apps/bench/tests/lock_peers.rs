//! `lockwork-bench lock-peers` as its users meet it: every peer that is installed has its figures, what is absent or
//! wrong is named, and nothing is left behind.

#[path = "common/command.rs"]
mod command;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use command::{bench, run};
use lockwork_testkit::skip;
use serde_json::Value;

/// Whether a program is there; if not, the calling test is skipped, and says so.
fn has(program: &str, package: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if !found {
        skip(&format!("no {program} in PATH; Debian has it in the package {package}"));
    }
    found
}

fn runs_of(line: &str) -> Vec<Value> {
    let output = run(&format!("lock-peers {line} --output json"));
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert!(report["schema"] == 1 && report["environment"]["commit"].is_string());
    report["runs"].as_array().expect("a list").clone()
}

/// A short run of these systems has every figure.
fn figures(systems: &str) {
    let small = "--records 100 --clients 8 --seconds 0.2 --passes 1";
    let runs = runs_of(&format!("--system lockwork,{systems} {small}"));
    let names: Vec<&str> = runs.iter().filter_map(|run| run["system"].as_str()).collect();
    assert_eq!(names.join(","), format!("lockwork,{systems}"));
    for run in runs {
        for figure in ["alone_ratio", "pairs_per_s", "crowd_per_s", "crowd_p99_ratio"] {
            assert!(run[figure].as_f64().is_some_and(|figure| figure > 0.0), "{figure}: {run}");
        }
        for latency in ["alone_us", "alone_grant_us", "crowd_grant_us"] {
            let at = |name: &str| run[latency][name].as_f64().expect("a number");
            assert!(at("p50") > 0.0 && at("p50") <= at("p99"), "{latency}: {run}");
        }
        assert!(run["verified"] == true, "{run}");
    }
}

#[test]
fn the_lock_service_has_its_figures() {
    figures("lockwork-stay,lockwork-shared");
}

#[test]
fn redis_and_redlock_have_their_figures() {
    if has("redis-server", "redis-server") {
        figures("redis,redlock,redlock-at-once");
    }
}

#[test]
fn etcd_has_its_figures() {
    if has("etcd", "etcd-server") {
        figures("etcd");
    }
}

#[test]
fn the_bank_keeps_its_money_with_every_number_of_clients_and_is_drawn() {
    if !has("redis-server", "redis-server") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().display();
    let runs = runs_of(&format!("--bank --records 200 --crowds 1,16 --seconds 0.2 --passes 1 --out {out} --theta 0.9"));
    let of = |run: &Value| format!("{}, {}", run["system"].as_str().unwrap_or("-"), run["clients"]);
    let names: Vec<String> = runs.iter().map(of).collect();
    let systems = ["lockwork", "redis", "redlock", "store-alone"];
    let all: Vec<String> =
        systems.iter().flat_map(|name| [1, 16].map(|clients| format!("{name}, {clients}"))).collect();
    assert_eq!(names, all);
    for run in runs {
        assert!(run["operations_per_s"].as_f64() > Some(0.0) && run["latency_us"]["p50"].as_f64() > Some(0.0), "{run}");
        assert_eq!(run["verified"], run["system"] != "store-alone");
    }
    for name in ["result.json", "result.csv", "throughput.svg", "bank-throughput.svg", "bank-latency.svg"] {
        assert!(folder.path().join(name).is_file(), "{name}");
    }
}

/// Folders of servers that a process has started.
fn folders(process: u32) -> Vec<PathBuf> {
    let parent = if Path::new("/dev/shm").is_dir() { PathBuf::from("/dev/shm") } else { std::env::temp_dir() };
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten().map(|entry| entry.path());
    let prefix = format!("lockwork-peers-{process}-");
    entries.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix))).collect()
}

#[test]
fn an_interrupt_and_a_kill_end_the_servers() {
    for (signal, code) in [("-INT", Some(130)), ("-KILL", None)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockwork-bench"));
        command.args(["lock-peers", "--system", "lockwork", "--seconds", "60"]);
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the command starts");
        let start = Instant::now();
        while folders(process.id()).is_empty() {
            assert_eq!(process.try_wait().expect("it is our child"), None, "it ends before it is interrupted");
            assert!(start.elapsed() < Duration::from_secs(30), "no folder");
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(Duration::from_millis(300));
        let number = process.id();
        let kill = Command::new("kill").args([signal, &number.to_string()]).status().expect("there is kill");
        assert!(kill.success());
        assert_eq!(process.wait().expect("it ends").code(), code);
        let start = Instant::now();
        while !folders(number).is_empty() {
            assert!(start.elapsed() < Duration::from_secs(10), "{:?} is left behind", folders(number));
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn an_absent_server_and_a_wrong_one_are_named() {
    let output = bench(&["PATH=/nowhere"], &["lock-peers", "--system", "redis"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(6), "{error}");
    assert!(error.contains("no redis-server in PATH") && error.contains("package redis-server"), "{error}");
    let output = bench(&["PATH=/nowhere"], &["lock-peers", "--system", "etcd"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(6) && error.contains("package etcd-server"), "{error}");
    // It is called so, and is something else.
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("redis-server");
    std::fs::write(&program, "#!/bin/sh\necho unknown option $1\nexit 1\n").expect("it is written");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    let path = format!("PATH={}:/usr/bin:/bin", folder.path().display());
    let output = bench(&[&path], &["lock-peers", "--bank"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(6), "{error}");
    assert!(error.contains("redis-server: it ended at once: unknown option --port"), "{error}");
}

#[test]
fn mistakes_are_named_and_exit_with_2() {
    for (line, names) in [
        (
            "--system zookeeper",
            "no system is called 'zookeeper'; there are lockwork, lockwork-stay, lockwork-shared, redis",
        ),
        ("--bank --system etcd", "no system is called 'etcd'; there are lockwork, redis, redlock, store-alone"),
        ("--system redis,redis", "--system has 'redis' twice"),
        ("--system redis,,etcd", "--system has an empty entry"),
        ("--clients 0", "--clients is 0"),
        ("--clients 201", "--clients is 201"),
        ("--seconds 0", "--seconds is 0.0"),
        ("--retry 0", "--retry is 0.0"),
        ("--passes 0", "--passes is 0"),
        ("--records 1", "--records is 1"),
        ("--records 10000001", "--records is 10000001"),
        ("--theta 1", "--theta is 1"),
        ("--bank --crowds 4,0", "--crowds has 0"),
        ("--bank --servers 0", "--servers is 0"),
        ("--machines 3", "unexpected argument '--machines"),
    ] {
        let output = run(&format!("lock-peers {line}"));
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {error}");
        assert!(error.contains(names), "{line}: {error}");
    }
}
