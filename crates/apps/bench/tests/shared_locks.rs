//! `lockwork-bench shared-locks` as people use it: what it measures is verified, and nothing is left of it.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

#[path = "common/command.rs"]
mod command;

use command::run;

#[track_caller]
fn good(output: &Output) -> String {
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[track_caller]
fn refused(line: &str, code: i32, parts: &[&str]) {
    let output = run(line);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{line}: {text}");
    for part in parts {
        assert!(text.contains(part), "{line}: no '{part}' in: {text}");
    }
}

#[track_caller]
fn json(line: &str) -> Value {
    serde_json::from_str(&good(&run(line))).unwrap()
}

#[test]
fn nothing_is_left_of_a_benchmark_that_is_killed() {
    let mut bench = std::process::Command::new(env!("CARGO_BIN_EXE_lockwork-bench"))
        .args(["shared-locks", "--lines", "1024", "--seconds", "1h"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let children = format!("/proc/{0}/task/{0}/children", bench.id());
    let begin = std::time::Instant::now();
    let both = || std::fs::read_to_string(&children).unwrap_or_default().split_whitespace().count() == 2;
    while !both() && begin.elapsed().as_secs() < 20 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let processes = std::fs::read_to_string(&children).unwrap();
    let there = std::fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name());
    let named: Vec<_> = there.filter(|name| name.to_string_lossy().contains(&bench.id().to_string())).collect();
    bench.kill().unwrap();
    bench.wait().unwrap();
    assert_eq!(processes.split_whitespace().count(), 2, "{processes}");
    assert!(named.is_empty(), "{named:?}");
    // Nor do its processes go on for an hour without it.
    for process in processes.split_whitespace() {
        let place = PathBuf::from(format!("/proc/{process}/cmdline"));
        let runs = || std::fs::read_to_string(&place).is_ok_and(|command| command.contains("shared-locks-process"));
        while runs() && begin.elapsed().as_secs() < 40 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(!runs(), "{process} is still there");
    }
}

/// The counters that the locks of a running benchmark protect; its processes have no names for them.
fn counters_of(bench: u32) -> Option<std::fs::File> {
    let open = std::fs::read_dir(format!("/proc/{bench}/fd")).ok()?.flatten().map(|entry| entry.path());
    let is_it = |path: &PathBuf| std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("counters"));
    std::fs::File::options().write(true).open(open.into_iter().find(is_it)?).ok()
}

#[test]
fn a_benchmark_whose_data_are_wrong_reports_that_and_exits_with_1() {
    use std::os::unix::fs::FileExt;
    for output in ["json", "text"] {
        let line = format!("shared-locks --processes 2 --lines 1024 --seconds 60s --output {output}");
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockwork-bench"));
        command.args(line.split(' ')).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut bench = command.spawn().unwrap();
        let children = format!("/proc/{0}/task/{0}/children", bench.id());
        let begin = std::time::Instant::now();
        while std::fs::read_to_string(&children).unwrap_or_default().split_whitespace().count() < 2 {
            assert!(begin.elapsed().as_secs() < 50, "no processes");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        // The first of the two counters of key 0 changes again and again without the lock.
        let counters = counters_of(bench.id()).expect("the benchmark has its counters");
        while bench.try_wait().unwrap().is_none() {
            counters.write_all_at(&(1_u64 << 40).to_ne_bytes(), 0).unwrap();
            assert!(begin.elapsed().as_secs() < 50, "the change is not seen");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let ended = bench.wait_with_output().unwrap();
        let (report, error) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
        assert_eq!(ended.status.code(), Some(1), "{report}{error}");
        assert!(error.contains("key 0: counters") && error.contains("differ"), "{error}");
        if output == "json" {
            assert_eq!(serde_json::from_str::<Value>(&report).unwrap()["verified"], false, "{report}");
        } else {
            assert!(report.contains("WRONG: key 0: counters") && !report.contains("verified"), "{report}");
        }
    }
}

#[test]
fn the_benchmark_measures_what_it_verifies() {
    let report = json(
        "shared-locks --processes 2 --threads 2 --keys 4 --shared 30 --seconds 200ms --lines 4096 --pin --output json",
    );
    assert_eq!(report["verified"], true, "{report}");
    assert!(report["changes"].as_u64().unwrap() > 100, "{report}");
    assert_eq!(report["locks_of_processes"].as_array().unwrap().len(), 2, "{report}");
    for part in ["sequential", "random", "contended"] {
        let at = |name: &str| report["latency_ns"][part][name].as_u64().unwrap();
        assert!(at("p50") <= at("p99") && at("p99") <= at("p999"), "{report}");
    }
    let most = report["longest_wait_ns"].as_u64().unwrap();
    assert!(most >= report["latency_ns"]["contended"]["p999"].as_u64().unwrap(), "{report}");
    let text = good(&run("shared-locks --seconds 100ms --lines 1024"));
    assert!(text.contains("verified: ") && text.contains("none lost"), "{text}");
    // Nothing takes no time: what is below the clock is shown as that.
    let measured: Vec<_> = text.lines().filter(|line| line.starts_with("lock")).collect();
    assert_eq!(measured.len(), 3, "{text}");
    assert!(!measured.iter().any(|line| line.split_whitespace().any(|cell| cell == "0")), "{text}");
    assert!(report["resolution_ns"].as_u64().unwrap() > 0, "{report}");
}

#[test]
fn the_benchmark_takes_no_more_memory_than_there_is() {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let kib: u64 = text.lines().next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap();
    // The next power of two of lines, in whole memories.
    let lines = (kib * 1024 / 64).next_power_of_two();
    if let Ok(lines) = u32::try_from(lines) {
        refused(&format!("shared-locks --lines {lines}"), 2, &["MiB are free", "--lines"]);
    }
}

#[test]
fn nonsense_is_refused_with_what_would_be_right() {
    refused("shared-locks --seconds 1parsec", 2, &["500ms"]);
    for none in ["0", "0s", "0.9ms"] {
        refused(&format!("shared-locks --seconds {none}"), 2, &["too short", "at least 1ms"]);
    }
    refused("shared-locks --shared 101", 2, &["100"]);
    refused("shared-locks --processes 256 --threads 256", 2, &["4094 sessions"]);
}
