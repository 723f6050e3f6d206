//! The command as its users meet it: results in the promised form, mistakes named and refused with exit code 2.

#[path = "common/command.rs"]
mod command;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use command::{bench, run};
use serde_json::Value;

fn json(line: &str) -> Value {
    let output = run(line);
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// A folder of this test's own.
fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

#[test]
fn json_has_what_is_promised_on_every_engine() {
    let all = "--engine serial,two-phase,optimistic,deterministic-queue,deterministic,timestamp";
    for workload in [
        "ycsb-a --records 2000",
        "ycsb-e --records 500",
        "ycsb-e --records 500 --ops 2",
        "ycsb-f --preset bionicdb --records 300",
        "ycsb-c --preset bionicdb --records 300 --ops 1",
        "ycsb-e --preset bionicdb --records 300",
        "ycsb-d --records 600 --ops 3 --remote 0.5 --partitions 3",
        "transfer --records 100",
        "smallbank --records 200 --hot 0.5",
        "tatp --records 300",
    ] {
        let report = json(&format!("run {workload} {all} --txns 2000 --batch 300 --time 0 --warmup 0 --output json"));
        assert_eq!(report["schema"], 1);
        assert!(report["environment"]["cores"].as_u64().unwrap() >= 1);
        assert!(report["environment"]["commit"].is_string() && report["settings"]["seed"] == 1);
        let runs = report["runs"].as_array().unwrap();
        let names: Vec<&str> = runs.iter().map(|run| run["engine"].as_str().unwrap()).collect();
        assert_eq!(names, ["serial", "two-phase", "optimistic", "deterministic-queue", "deterministic", "timestamp"]);
        for run in runs {
            assert!(run["throughput_txn_per_s"].as_f64().unwrap() > 0.0);
            assert!(run["accesses_per_s"].as_f64().unwrap() >= run["throughput_txn_per_s"].as_f64().unwrap());
            for quantile in ["p50", "p99", "p999", "max"] {
                assert!(run["latency_us"][quantile].as_f64().unwrap() > 0.0, "{workload} {quantile}");
            }
            assert!(run["aborts"].is_object() && run["verified"] == true, "{workload}: {run}");
            assert!(!run["digest"].as_str().unwrap().is_empty());
            let causes = run["conflict_causes"].as_object().unwrap().values().map(|count| count.as_u64().unwrap());
            assert_eq!(Some(causes.sum()), run["conflicts"].as_u64());
        }
        // Batch order is one order, so these agree to the bit.
        assert!(runs[0]["digest"] == runs[3]["digest"] && runs[3]["digest"] == runs[4]["digest"], "{workload}");
    }
}

#[test]
fn worker_processes_are_this_command_once_more() {
    for (workload, threads) in [("ycsb-b --records 2000 --theta 0.1", 2), ("transfer --records 100", 3)] {
        let engines = "--engine network-two-phase,serial --txns 3000 --time 0 --output json";
        let report = json(&format!("run {workload} {engines} --threads {threads}"));
        let runs = report["runs"].as_array().expect("a run for each engine");
        assert_eq!(runs.iter().map(|run| &run["engine"]).collect::<Vec<_>>(), ["network-two-phase", "serial"]);
        assert!(runs.iter().all(|run| run["verified"] == true), "{report}");
    }
    for (options, says) in [
        ("--engine network-two-phase --engine-option lockd=nowhere", "lockd=nowhere is no address; write HOST:PORT"),
        (
            "--engine serial --engine-option lockd=127.0.0.1:7400",
            "no engine that is used has a setting 'lockd'; they have",
        ),
        ("--engine network-two-phase --engine-option lockd", "--engine-option lockd: write NAME=VALUE"),
    ] {
        let output = run(&format!("run ycsb-b {options}"));
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && text.contains(says), "{text}");
    }
}

#[test]
fn recycled_batches_make_the_same_calls_as_prepared_ones() {
    let line = "run ycsb-a --records 1000 --ops 4 --txns 3000 --batch 250 --time 0 --warmup 0 --output json";
    let [prepared, recycled] = ["prepared", "recycled"].map(|input| json(&format!("{line} --input {input}")));
    let [prepared, recycled] = [&prepared, &recycled].map(|report| report["runs"].as_array().unwrap());
    assert!(prepared.len() > 1 && prepared.len() == recycled.len(), "{prepared:?} {recycled:?}");
    for (a, b) in prepared.iter().zip(recycled) {
        assert_eq!(a["engine"], b["engine"]);
        assert!(b["verified"] == true && a["committed"] == b["committed"], "{b}");
        // Two-phase may choose another order each time.
        assert!(a["digest"] == b["digest"] || a["engine"] == "two-phase", "{a} {b}");
    }
    let output = run("run ycsb-d --records 1000 --txns 100 --input recycled");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn tpcc_runs_with_the_cardinalities_of_the_specification() {
    for (line, tables) in [("tpcc-np --remote 0.15", "tpcc-np: 1 warehouses"), ("tpcc", "tpcc: 1 warehouses")] {
        let line = format!("run {line} --records 1 --txns 500 --engine serial --time 0 --output json");
        let report = json(&line);
        assert!(report["settings"]["effective"].as_str().unwrap().starts_with(tables), "{report}");
        let run = &report["runs"][0];
        assert!(run["verified"] == true && run["committed"].as_u64().unwrap() > 480, "{run}");
        assert!(run["verification"].as_str().unwrap().starts_with("all twelve conditions hold"), "{run}");
    }
}

#[test]
fn locks_are_measured_and_checked() {
    let report =
        json("locks --manager queue,batch --mix b --theta 0.9 --records 5000 --txns 20000 --batch 1000 --output json");
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.iter().map(|run| &run["manager"]).collect::<Vec<_>>(), ["queue", "batch"]);
    for run in runs {
        assert!(run["throughput_locks_per_s"].as_f64().unwrap() > 0.0 && run["verified"] == true, "{run}");
    }
}

#[test]
fn results_are_saved_as_json_csv_and_chart() {
    let out = folder("saved");
    let out = out.to_str().unwrap();
    let output =
        run(&format!("run ycsb-c --records 500 --txns 500 --time 0 --engine deterministic --output csv --out {out}"));
    assert!(output.status.success());
    let csv = String::from_utf8(output.stdout).unwrap();
    assert_eq!(csv, std::fs::read_to_string(format!("{out}/result.csv")).unwrap());
    assert_eq!(csv.lines().count(), 2);
    assert!(std::fs::read_to_string(format!("{out}/throughput.svg")).unwrap().contains("deterministic"));
    let saved: Value = serde_json::from_str(&std::fs::read_to_string(format!("{out}/result.json")).unwrap()).unwrap();
    assert_eq!(saved["runs"][0]["verified"], true);
}

#[test]
fn what_runs_without_engines_is_saved_alike() {
    let out = folder("alone");
    let out = out.to_str().unwrap();
    let output = run(&format!("locks --records 500 --txns 500 --output csv --out {out}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        std::fs::read_to_string(format!("{out}/result.csv")).unwrap()
    );
    assert!(std::fs::read_to_string(format!("{out}/throughput.svg")).unwrap().contains("locks a second"));
    let saved: Value = serde_json::from_str(&std::fs::read_to_string(format!("{out}/result.json")).unwrap()).unwrap();
    // No batch is longer than the input.
    assert!(saved["settings"]["batch"] == 500 && saved["runs"][0]["verified"] == true, "{saved}");
    let report = json("run ycsb-c --records 9 --txns 50 --batch 90 --time 0 --engine serial --output json");
    assert_eq!(report["settings"]["batch"], 50);
}

#[test]
fn standard_property_files_run_as_they_are() {
    let files = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dev/workload/ycsb");
    for letter in ["a", "b", "c", "d", "e", "f"] {
        let line = format!(
            "run ycsb -P {files}/workload{letter} -p recordcount=300 -p operationcount=600 --engine deterministic"
        );
        let report = json(&format!("{line} --time 0 --warmup 0 --output json"));
        assert_eq!(report["runs"][0]["verified"], true, "workload{letter}");
    }
    let output =
        run(&format!("run ycsb -P {files}/workloada -p recordcount=300 -p operationcount=60 -p what=1 --time 0"));
    assert!(output.status.success(), "an unknown property is a warning");
    assert!(String::from_utf8_lossy(&output.stderr).contains("what"));
}

#[test]
fn properties_change_a_lettered_workload_and_options_win_over_both() {
    let effective = |line: &str| {
        let report = json(&format!("run {line} --engine serial --txns 10 --time 0 --warmup 0 --output json"));
        let effective = report["settings"]["effective"].as_str().unwrap().to_string();
        (effective, report["settings"]["threads"].as_u64().unwrap(), report["settings"]["seed"].as_u64().unwrap())
    };
    let (words, threads, seed) = effective("ycsb-a -P recordcount=500 -p seed=7 -p threadcount=3");
    assert!(words.starts_with("ycsb-a: 500 rows of 8 fields of 64 bytes"), "{words}");
    assert!(words.contains("read 0.5000, update 0.5000") && words.contains("zipfian"), "{words}");
    assert_eq!((threads, seed), (3, 7));
    let line = "ycsb-e --preset bionicdb -p recordcount=300 -p minscanlength=2 -p seed=7 -p threadcount=3";
    let (words, threads, seed) = effective(&format!("{line} --seed 8 --records 200 --threads 1"));
    assert!(words.starts_with("bionicdb-e: 200 rows") && words.contains("scans of 2 to 50 rows"), "{words}");
    assert_eq!((threads, seed), (1, 8));
    let line = "ycsb-c --preset bionicdb --records 300 --remote 0.75";
    let sites = |line: &str| effective(line).0.split("theta 0.5, ").nth(1).unwrap_or_default().to_string();
    assert!(sites(&format!("{line} --threads 2")).starts_with("0.7500 of the accesses remote among 2 partitions"));
    assert!(sites(&format!("{line} --partitions 3 --threads 2")).contains("remote among 3 partitions"));
}

#[test]
fn mistakes_are_named_and_refused() {
    let file = folder("mistakes").join("some.bin");
    std::fs::write(&file, [0xff, 0xfe, 0, 1]).unwrap();
    let zeros = folder("mistakes").join("zeros.bin");
    std::fs::write(&zeros, [0; 64]).unwrap();
    let zeros = zeros.to_str().unwrap();
    let (file, nowhere) = (file.to_str().unwrap(), "/proc/nowhere/out");
    let cases = [
        ("locks --engine serial", "unexpected argument '--engine"),
        ("locks --time 1", "unexpected argument '--time"),
        ("locks --threads 2", "unexpected argument '--threads"),
        ("memory --records 10", "unexpected argument '--records"),
        ("memory --plain-pages", "unexpected argument '--plain-pages"),
        ("run smallbank --hot 1.5", "--hot is 1.5; 0 to 1 is possible"),
        ("run smallbank --hot 0.5 --records 50", "--records is 50; at least 100, the hot customers, are needed"),
        ("run smallbank --input recycled --records 9", "checks what every call did: use prepared"),
        ("run transfer --hot 0.5", "unexpected argument '--hot"),
        ("run tatp --records 0", "--records is 0; 1 to 4000000000"),
        ("run tatp --theta 0.5", "unexpected argument '--theta"),
        ("run tatp --records 4000000000", "MiB are free; use fewer --records"),
        ("run tpcc --records 65536", "--records is 65536; 1 to 65535"),
        ("run tpcc --records 65535", "MiB are free; use fewer --records"),
        ("run tpcc --remote 1.1", "--remote is 1.1; 0 to 1"),
        ("run tpcc-np --theta 0.5", "unexpected argument '--theta"),
        ("run tpcc-np --input recycled --records 1", "a workload that inserts: use prepared"),
        ("run transfer --ops 3", "unexpected argument '--ops"),
        ("run transfer -P x=y", "unexpected argument '-P"),
        ("run ycsb-a --mix b", "unexpected argument '--mix"),
        ("run ycsb -p recordcount=9 --preset hobbes", "unexpected argument '--preset"),
        ("run ycsb-a --engine serial,,deterministic", "--engine has an empty entry"),
        ("locks --manager queue,", "--manager has an empty entry"),
        ("locks --batch 16777217", "--batch is 16777217; 1 to 16777216"),
        ("run ycsb-a --warmup 86401", "--warmup is 86401; 0 to 86400"),
        ("run ycsb-a --time 1e300", "--time is 1e300;"),
        ("run ycsb-a --window 0", "window of 0"),
        ("run ycsb-a --window 5000", "1024"),
        ("run ycsb-a --batch 0", "--batch is 0"),
        ("run ycsb-a --txns 0", "--txns is 0"),
        ("run ycsb-a --threads 0", "0 threads"),
        ("run ycsb-a --threads 100000", "100000 threads"),
        ("run ycsb-a --remote 1.5 --partitions 2", "--remote is 1.5; 0 to 1 is possible"),
        ("run ycsb-a --remote nan --partitions 2", "--remote is NaN; 0 to 1 is possible"),
        ("run ycsb-a --remote 0.5 --threads 1", "--remote is 0.5; with one partition nothing is remote"),
        ("run ycsb-a --remote 0.5 --partitions 2", "--remote is 0.5; a transaction of one operation is at home"),
        (
            "run ycsb-a --remote 0.8 --ops 4 --partitions 2",
            "--remote is 0.8; the first of 4 operations is at home: 0 to 0.7500",
        ),
        ("run ycsb-a --remote 0.5 --partitions 0", "--partitions is 0; 1 to 65536 is possible"),
        ("run ycsb-a --remote 0.5 --records 100 --partitions 101", "--partitions is 101; 1 to 100 is possible"),
        ("run ycsb-a --partitions 2", "--partitions means something with --remote"),
        ("run transfer --partitions 2", "unexpected argument '--partitions"),
        ("run tatp --remote 0.5", "unexpected argument '--remote"),
        ("run ycsb-a --theta 1", "theta"),
        ("run ycsb-a --theta=-0.1", "theta"),
        ("run ycsb-a --theta nan", "theta"),
        ("run ycsb-a --theta 1e300", "--theta is 1e300;"),
        ("run transfer --theta 1.5", "--theta is 1.5"),
        ("run transfer --records 0", "--records is 0; 2 to"),
        ("locks --theta 1", "--theta is 1"),
        ("run ycsb-a --time nan", "--time"),
        ("run ycsb-a --time inf", "--time"),
        ("run ycsb-a --time=-1", "--time"),
        ("run ycsb-a --records 0", "--records is 0"),
        ("run ycsb-a --records 100000000000", "MiB"),
        ("run transfer --records 100000000000", "MiB"),
        ("run smallbank --records 100000000000", "MiB"),
        ("run ycsb-a --records 100 --txns 1000000000000", "MiB"),
        ("run ycsb-d --records 100 --txns 18446744073709551615", "MiB"),
        ("run transfer --records 100 --txns 1000000000000 --batch 1000000000000", "MiB"),
        ("run ycsb -p operationcount=1000000000000", "MiB"),
        ("locks --txns 4294967294", "MiB"),
        ("run ycsb-a --ops 100", "--ops is 100; 1 to 64"),
        ("run ycsb-a --ops 0", "--ops is 0"),
        ("run ycsb-a --fields 0", "--fields is 0"),
        ("run ycsb-g", "unrecognized subcommand 'ycsb-g'"),
        ("run ycsb-ab -p recordcount=9", "unrecognized subcommand 'ycsb-ab'"),
        ("run nothing", "unrecognized subcommand 'nothing'"),
        ("paper bionicdb --passes 0", "--passes is 0; 1 to 100"),
        ("paper bionicdb --engine serial", "unexpected argument '--engine"),
        ("paper bionicdb --threads 0", "0 threads"),
        ("paper bionicdb --window 0", "window of 0"),
        ("paper bionicdb --threads 2 --records 100", "--partitions is 2; 1 to 1 is possible"),
        ("engines --records 1", "--records is 1; 64 to"),
        ("engines --records 100000000000", "MiB"),
        ("engines --engine serial,", "--engine has an empty entry"),
        ("engines --theta 0.5", "unexpected argument '--theta"),
        ("run ycsb-a --passes 2", "unexpected argument '--passes"),
        ("run ycsb-a --engine warp", "warp"),
        ("run ycsb-a --preset silo", "silo"),
        ("locks --manager none", "none"),
        ("locks --mix c", "invalid value 'c' for '--mix"),
        ("locks --batch 0", "--batch is 0"),
        ("memory --threads 0", "--threads is 0"),
        ("run ycsb", "property file"),
        ("run ycsb -P /nowhere/at/all", "/nowhere/at/all"),
        ("run ycsb -p readproportion=2", "readproportion"),
        ("run ycsb -p recordcount=many", "recordcount"),
        ("nothing", "nothing"),
    ];
    let own = [
        (format!("locks --out {file}"), "is a file; --out wants a folder"),
        (format!("run ycsb -P {file}"), "some.bin: no text"),
        (format!("run ycsb -P {zeros}"), "zeros.bin: no text"),
        (format!("run ycsb-c --records 100 --txns 100 --time 0 --out {nowhere}"), nowhere),
    ];
    let cases = cases.map(|(line, named)| (line.to_string(), named)).into_iter().chain(own);
    for (line, named) in cases {
        let output = run(&line);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {error}");
        assert!(error.contains(named), "{line}: {error}");
        assert!(output.stdout.is_empty() && !error.contains("panicked"), "{line}: {error}");
    }
}

#[test]
fn an_empty_property_is_refused() {
    for workload in ["ycsb", "ycsb-a"] {
        let output = bench(&[], &["run", workload, "-P", ""]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && error.contains("-P is empty"), "{error}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let arguments = ["run", "ycsb-c", "--records", "500", "--txns", "500", "--time", "0"];
    let mut child = Command::new(env!("CARGO_BIN_EXE_lockwork-bench"))
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !error.contains("panicked"), "{error}");
}
