//! `lockwork-bench paper bionicdb` and `lockwork-bench engines` from their first figure to their last, on small tables,
//! and what `lockwork-bench near-data` does when something goes wrong.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// What a short run of a command reports, and the folder with its files.
fn report(command: &str, options: &str) -> (Value, String) {
    let folder = format!("{}/figures-{}", env!("CARGO_TARGET_TMPDIR"), command.replace(' ', "-"));
    let line = format!("{command} --quick --records 2000 --seed 3 --output json --out {folder} {options}");
    let output = Command::new(env!("CARGO_BIN_EXE_lockwork-bench")).args(line.split_whitespace()).output();
    let output = output.expect("the command starts");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(report["schema"] == 1 && report["environment"]["commit"].is_string(), "{report}");
    let settings = &report["settings"];
    assert!(settings["records"] == 2000 && settings["seed"] == 3 && settings["passes"] == 1, "{settings}");
    (report, folder)
}

/// Names of the figures, each of which must have a rate for every point of every series, and files that tell the same.
fn figures(report: &Value, folder: &str) -> Vec<String> {
    let read = |name: &str| std::fs::read_to_string(Path::new(folder).join(name)).expect(name);
    let (text, csv) = (read("result.txt"), read("result.csv"));
    assert_eq!(serde_json::from_str::<Value>(&read("result.json")).expect("JSON"), *report);
    let mut names = Vec::new();
    for figure in report["figures"].as_array().expect("figures") {
        let (name, points) = (figure["id"].as_str().unwrap(), figure["labels"].as_array().unwrap().len());
        assert!(text.contains(&format!("\n{name}: ")), "{name} is not in the text");
        for series in figure["series"].as_array().unwrap() {
            let values = series["values"].as_array().unwrap();
            assert_eq!(values.len(), points, "{name}");
            assert!(values.iter().all(|value| value.as_f64().unwrap() > 0.0), "{name}: {series}");
            let lines = format!("{name},{},", series["name"].as_str().unwrap());
            assert_eq!(csv.lines().filter(|line| line.starts_with(&lines)).count(), points, "{lines}");
        }
        if figure["apart"] == false && points > 0 {
            assert!(read(&format!("{}.svg", name.to_lowercase().replace(' ', "-"))).starts_with("<svg"));
        }
        names.push(name.to_string());
    }
    names
}

fn series(report: &Value, figure: usize) -> Vec<&str> {
    let series = report["figures"][figure]["series"].as_array().unwrap();
    series.iter().map(|series| series["name"].as_str().unwrap()).collect()
}

#[test]
fn figures_10_to_13_of_bionicdb_are_there() {
    let (report, folder) = report("paper bionicdb", "--threads 2");
    let names = figures(&report, &folder);
    let expected = ["10a", "10b", "10c", "10d", "11a", "11b", "11c", "12a", "12b", "13"];
    assert_eq!(names, expected.map(|number| format!("Figure {number}")));
    assert_eq!(series(&report, 0), ["inserts", "searches"]);
    assert_eq!(series(&report, 7), ["none", "batch", "dynamic"]);
    let ratios = report["figures"][7]["ratios"].as_array().unwrap();
    assert_eq!((ratios.len(), &ratios[1]["name"]), (2, &Value::from("dynamic / none")));
    let sites = &report["figures"][9];
    assert!(sites["ratios"][0]["values"][0] == 1.0 && sites["notes"][0].as_str().unwrap().contains(" ns "), "{sites}");
}

#[test]
fn engines_stand_beside_each_other_and_one_thread_has_no_remote_accesses() {
    let (report, folder) = report("engines", "--threads 1 --engine serial,timestamp");
    assert_eq!(figures(&report, &folder), ["skew", "accesses", "workloads"]);
    assert_eq!(series(&report, 0), ["serial", "timestamp"]);
    let workloads = ["ycsb-a", "ycsb-b", "ycsb-c", "ycsb-e", "transfer", "smallbank", "tatp", "tpcc", "tpcc-np"];
    assert_eq!(series(&report, 2), workloads);
}

/// A near-data benchmark under way, which ends with the test.
struct NearData {
    child: Option<Child>,
    folder: PathBuf,
}

impl NearData {
    fn start(name: &str, options: &str, variables: &[(&str, String)]) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("near-data-{name}"));
        drop(std::fs::remove_dir_all(&folder));
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockwork-bench"));
        command.args(["near-data", "--quick", "--out"]).arg(&folder).args(options.split_whitespace());
        command.envs(variables.iter().cloned()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { child: Some(command.spawn().expect("it starts")), folder }
    }

    fn id(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// The processes that it has started, by their parent's number, which is the second behind the name.
    fn children(&self) -> Vec<u32> {
        let id = self.id().to_string();
        let processes = std::fs::read_dir("/proc").expect("processes").flatten();
        let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let parent = |process: &u32| {
            let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            let behind = stat.rsplit_once(')').map(|(_, behind)| behind.split_whitespace().nth(1).map(String::from));
            behind.flatten()
        };
        numbers.filter(|process| parent(process).as_ref() == Some(&id)).collect()
    }

    /// Waits until something is so.
    #[track_caller]
    fn until(&mut self, what: &str, mut so: impl FnMut(&Self) -> bool) {
        let since = Instant::now();
        while !so(self) {
            assert!(since.elapsed() < Duration::from_secs(60), "waited in vain: {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn ended(&mut self) -> bool {
        self.child.as_mut().expect("it runs").try_wait().expect("a child").is_some()
    }

    fn output(&mut self) -> Output {
        self.child.take().expect("it runs").wait_with_output().expect("it ends")
    }

    fn saved(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.folder.join("result.json")).expect("a result")).expect("JSON")
    }
}

impl Drop for NearData {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

fn signal(process: u32, signal: &str) {
    // It may have ended meanwhile.
    drop(Command::new("kill").args([signal, &process.to_string()]).stderr(Stdio::null()).status());
}

#[test]
fn an_experiment_whose_peer_is_stopped_fails_and_takes_nothing_from_those_before_it() {
    let mut bench = NearData::start("stopped", "--experiment a,b,c --requests 1000 --timeout 1", &[]);
    bench.until("experiment a", |bench| bench.folder.join("result.json").is_file());
    let before = bench.saved();
    assert!(before["experiments"]["a"]["verified"] == true && before["not_run"] == json!(["b", "c"]), "{before}");
    // Peers of experiment b live for some milliseconds.
    while !bench.ended() {
        bench.children().into_iter().for_each(|peer| signal(peer, "-STOP"));
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = bench.output();
    let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(6), "{error}");
    let expected = "experiment b failed: the peer process was stopped for 1 s (--timeout), so it was ended; not run: c; \
                    finished, printed and saved before: a";
    assert!(error.contains(expected), "{error}");
    assert!(text.contains("(a) lock and release") && text.contains("verified: "), "{text}");
    let after = bench.saved();
    assert!(after["experiments"]["a"] == before["experiments"]["a"] && after["failed"]["experiment"] == "b", "{after}");
    assert!(bench.folder.join("a-8-keys.svg").is_file());
}

#[test]
fn an_experiment_whose_peer_is_killed_fails_and_says_how_it_ended() {
    let mut bench = NearData::start("killed", "--experiment a", &[]);
    bench.until("the peer", |bench| !bench.children().is_empty());
    std::thread::sleep(Duration::from_millis(100));
    bench.children().into_iter().for_each(|peer| signal(peer, "-KILL"));
    let output = bench.output();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(6), "{error}");
    assert!(error.contains("experiment a failed: the peer process has ended (signal: 9 (SIGKILL))"), "{error}");
}

#[test]
fn a_storage_that_is_stopped_fails_its_experiment() {
    let options = "--experiment d --records 100000 --threads 1 --elements 1 --timeout 1";
    let mut bench = NearData::start("storage", options, &[]);
    bench.until("the storage", |bench| !bench.children().is_empty());
    // It takes calls by then.
    std::thread::sleep(Duration::from_millis(600));
    bench.children().into_iter().for_each(|storage| signal(storage, "-STOP"));
    let output = bench.output();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(6), "{error}");
    assert!(error.contains("experiment d failed: the storage process was stopped for 1 s (--timeout)"), "{error}");
}

#[test]
fn nothing_of_near_data_is_left_when_it_is_killed() {
    let temporary = Path::new(env!("CARGO_TARGET_TMPDIR")).join("near-data-temporary");
    std::fs::create_dir_all(&temporary).expect("a folder");
    let variables = [("TMPDIR", temporary.display().to_string())];
    for experiment in ["a", "b", "d --records 100000"] {
        let mut bench = NearData::start("left", &format!("--experiment {experiment}"), &variables);
        bench.until("the other side", |bench| !bench.children().is_empty());
        let mine = |folder: &Path| {
            let id = bench.id().to_string();
            let names = std::fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.file_name());
            names.filter(|name| name.to_string_lossy().contains(&id)).collect::<Vec<_>>()
        };
        for folder in [Path::new("/dev/shm"), &temporary] {
            assert_eq!(mine(folder), Vec::<std::ffi::OsString>::new(), "experiment {experiment}");
        }
        let other_side = bench.children();
        bench.child.as_mut().expect("it runs").kill().expect("it can be killed");
        bench.output();
        let since = Instant::now();
        while other_side.iter().any(|process| {
            let state = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            state.contains("(lockwork) ") && !state.contains("(lockwork) Z")
        }) {
            assert!(since.elapsed() < Duration::from_secs(20), "the other side of experiment {experiment} is left");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_peer_that_has_lost_its_host_before_it_could_ask_to_be_told_ends() {
    let line = ["near-data-peer", "--table", "0", "--memory", "0", "--host", "0", "--counters", "1", "--link", "none"];
    let output = Command::new(env!("CARGO_BIN_EXE_lockwork-bench")).args(line).output().expect("it starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(6), "{error}");
    assert!(error.contains("near-data peer: process 0 is not its parent, or not any more"), "{error}");
}

#[test]
fn near_data_goes_on_without_a_postgresql_that_does_not_start() {
    let programs = std::env::temp_dir().join(format!("lockwork-figures-postgres-{}", std::process::id()));
    std::fs::create_dir(&programs).expect("a folder");
    let texts = [
        ("initdb", "echo 'initdb: error: no space here'; exit 1"),
        ("pg_isready", "exit 2"),
        ("postgres", "echo 'postgres (PostgreSQL) 99.1'"),
        ("psql", "exit 1"),
    ];
    for (name, text) in texts {
        std::fs::write(programs.join(name), format!("#!/bin/sh\n{text}\n")).expect("a program");
        std::fs::set_permissions(programs.join(name), PermissionsExt::from_mode(0o755)).expect("it can be run");
    }
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    let mut bench = NearData::start("postgres", "--experiment c --requests 1000", &[("PATH", path)]);
    let output = bench.output();
    std::fs::remove_dir_all(&programs).expect("it goes");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let said = text.lines().find(|line| line.starts_with("PostgreSQL's tuple locks were not measured: "));
    assert!(said.is_some_and(|line| line.ends_with(": initdb: error: no space here")), "{text}");
    assert!(text.contains("shared lock table, lock + release") && text.contains("verified: "), "{text}");
    assert!(bench.saved()["experiments"]["c"]["postgresql"]["not_measured"].is_string());
}

#[test]
fn near_data_says_what_is_possible() {
    let cases = [
        ("--experiment a,a", "--experiment has a twice; a, b, c and d are possible, each once"),
        ("--experiment e", "[possible values: a, b, c, d]"),
        ("--link usb", "there are none, ccix, cxl and pcie"),
        ("--lock-lines 0", "powers of two from 1 to 2147483648 are possible"),
        ("--lock-lines -1", "powers of two from 1 to"),
        ("--lock-lines 3000000000", "powers of two from 1 to"),
        ("--requests 0", "whole numbers from 1000 to 10000000 are possible"),
        ("--requests -5", "whole numbers from 1000 to 10000000 are possible"),
        ("--requests many", "whole numbers from 1000 to 10000000 are possible"),
        ("--elements 0 --experiment a", "whole numbers from 1 to 64 are possible"),
        ("--elements 65", "whole numbers from 1 to 64 are possible"),
        ("--overlap 101", "whole numbers from 0 to 100 are possible"),
        ("--overlap -1", "whole numbers from 0 to 100 are possible"),
        ("--timeout 0", "whole numbers from 1 to 86400 are possible"),
        ("--records 9999 --experiment a", "10000 to 100000000 are possible"),
        ("--records -1", "whole numbers from 0 to"),
        ("--records few", "whole numbers from 0 to"),
        ("--threads 0 --experiment a", "1 to 64 are possible"),
        ("--threads -1", "whole numbers from 0 to"),
        ("--seed x", "whole numbers from 0 to"),
        ("--data /nowhere --experiment a", "--data: /nowhere is no folder"),
        ("--data /proc", "--data: /proc: "),
        ("--output csv", "near-data has no CSV form; use --output json"),
    ];
    for (options, expected) in cases {
        let output = NearData::start("options", options, &[]).output();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options}: {error}");
        assert!(error.contains(expected), "{options}: no '{expected}' in: {error}");
        assert!(output.stdout.is_empty(), "{options}");
    }
}

#[test]
fn a_folder_that_takes_no_files_is_refused_before_anything_is_measured() {
    // /proc/self/fd is a folder in which nobody makes files.
    for (folder, expected) in [("/proc/self/fd", "--out wants a folder that takes files"), ("/dev/null", "is a file")] {
        let line = ["near-data", "--experiment", "b", "--quick", "--out", folder];
        let output = Command::new(env!("CARGO_BIN_EXE_lockwork-bench")).args(line).output().expect("it starts");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(folder) && error.contains(expected) && output.stdout.is_empty(), "{error}");
    }
}
