//! `lockwork-bench lock-service` as its users meet it: results of every system, mistakes named, and nothing left
//! behind.

#[path = "common/command.rs"]
mod command;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use command::run;
use lockwork_locks::namespace::{Network, NetworkError};
use lockwork_testkit::or_skip;
use serde_json::Value;

#[test]
fn privileged_every_system_has_its_figures() {
    if or_skip(Network::new(1), NetworkError::is_unavailable).is_none() {
        return;
    }
    let small = "--locks 1000 --clients 8 --machines 2 --seconds 0.1 --passes 1 --workload uh";
    for more in ["--distribution zipf", "--client afxdp --workload rm"] {
        let small = if more.contains("--workload") { small.replace(" --workload uh", "") } else { small.into() };
        let output = run(&format!("lock-service {small} {more} --output json"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).expect("one object");
        assert!(report["schema"] == 1 && report["environment"]["commit"].is_string());
        assert!(report["settings"]["network"].as_str().expect("it is said").contains("one host"));
        let runs = report["runs"].as_array().expect("a list");
        let names: Vec<&str> = runs.iter().filter_map(|run| run["system"].as_str()).collect();
        assert_eq!(names, ["lockwork-xdp", "lockwork-tc", "lockwork-udp", "netlock", "parlock", "srvlock"]);
        for run in runs {
            for figure in ["throughput_locks_per_s", "throughput_ratio", "uncontended_ratio"] {
                assert!(run[figure].as_f64().is_some_and(|figure| figure > 0.0), "{run}");
            }
            for latency in ["latency_us", "uncontended_us"] {
                let at = |name: &str| run[latency][name].as_f64().expect("a number");
                let quantiles = ["p50", "p95", "p99", "p999", "max"].map(at);
                assert!(quantiles[0] > 0.0 && quantiles.is_sorted(), "{run}");
            }
            assert!(run["verified"] == true && run["grants"].as_u64() > Some(0));
        }
    }
}

#[test]
fn privileged_transactions_have_their_figures_by_lock_manager_and_by_type() {
    if or_skip(Network::new(1), NetworkError::is_unavailable).is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let small = format!(
        "--clients 8 --machines 2 --seconds 0.2 --passes 1 --output json --out {}",
        folder.path().to_str().expect("a path")
    );
    let common = ["lockwork-tc", "lockwork-udp", "netlock", "parlock", "srvlock"];
    for (line, types, mean, first) in [
        (
            "lock-transactions tatp --records 500",
            &["GS", "GD", "GA", "US", "UL", "IF", "DF"][..],
            1.0..1.2,
            &["lockwork-xdp"][..],
        ),
        (
            "lock-transactions tpcc --records 16 --client afxdp",
            &["NEW", "PAY", "OS", "DLY", "SL"],
            11.0..19.0,
            &["lockwork-xdp", "lockwork-xdp-local"],
        ),
    ] {
        let output = run(&format!("{line} {small}"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).expect("one object");
        let locks = &report["locks_per_transaction"];
        assert!(locks["all"].as_f64().is_some_and(|all| mean.contains(&all)), "{locks}");
        assert!(types.iter().all(|name| locks["types"][name].as_f64() >= Some(1.0)), "{locks}");
        let runs = report["runs"].as_array().expect("a list");
        let names: Vec<&str> = runs.iter().filter_map(|run| run["system"].as_str()).collect();
        assert!([first, &common].concat().iter().all(|name| names.contains(name)), "{names:?}");
        for run in runs {
            assert!(run["throughput_txn_per_s"].as_f64() > Some(0.0) && run["verified"] == true, "{run}");
            assert!(["srvlock", "netlock"].iter().all(|base| run["ratios"][base].as_f64() > Some(0.0)), "{run}");
            let of_types = run["types"].as_array().expect("a list");
            assert!(of_types.iter().map(|of_type| of_type["name"].as_str()).eq(types.iter().map(|name| Some(*name))));
            for of_type in of_types.iter().filter(|of_type| of_type["transactions"].as_u64() > Some(0)) {
                let percentiles = of_type["percentiles_us"].as_array().expect("a list");
                let percentiles: Vec<f64> = percentiles.iter().filter_map(Value::as_f64).collect();
                assert!(percentiles.len() == 99 && percentiles.is_sorted() && percentiles[0] >= 2.0, "{of_type}");
            }
        }
        let charts = types.iter().map(|name| format!("latency-{}.svg", name.to_lowercase()));
        for file in charts.chain(["throughput.svg", "result.csv", "result.json"].map(String::from)) {
            let text = std::fs::read_to_string(folder.path().join(&file)).expect(&file);
            assert!(text.contains("srvlock"), "{file}: {text}");
        }
    }
}

#[test]
fn privileged_every_figure_of_grants_has_its_table_its_lines_and_its_charts() {
    if or_skip(Network::new(1), NetworkError::is_unavailable).is_none() {
        return;
    }
    let all = ["lockwork-xdp", "lockwork-tc", "lockwork-udp", "netlock", "parlock", "srvlock"];
    let few = "--system lockwork-udp,netlock,parlock";
    for (line, id, cells, charts) in [
        ("13 --seconds 0.05", "13-14", 6 * 6, &["13-uh-uniform", "13-ro-zipf", "14-left"][..]),
        ("14 --client afxdp --seconds 0.05", "13-14", 6 * 6, &["13-rm-zipf", "14-left"]),
        ("16-left --seconds 0.7", "16-left", 6, &["16-left"]),
        ("16-right --seconds 0.05", "16-right", 4, &["16-right"]),
        (&format!("17-left --seconds 0.05 {few}"), "17-left", 4 * 2 * 3, &["17-left-uniform", "17-left-zipf"]),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_str().expect("a path");
        let small = "--locks 4000 --clients 8 --machines 2 --passes 1 --output json";
        let output = run(&format!("paper fisslock --figure {line} {small} --out {path}"));
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).expect("one object");
        assert!(report["settings"]["network"].as_str().expect("it is said").contains("one host"));
        let figures = report["figures"].as_array().expect("a list");
        assert!(figures.len() == 1 && figures[0]["id"] == id, "{line}");
        let found = figures[0]["cells"].as_array().expect("a list");
        assert_eq!(found.len(), cells, "{line}");
        for cell in found {
            assert!(cell["verified"] == true && cell["throughput_locks_per_s"].as_f64() > Some(0.0), "{cell}");
            let percentiles = cell["percentiles_us"].as_array().expect("a list");
            let percentiles: Vec<f64> = percentiles.iter().filter_map(Value::as_f64).collect();
            assert!(percentiles.len() == 99 && percentiles.is_sorted() && percentiles[98] > 0.0, "{cell}");
            assert_eq!(cell["moving"].is_object(), id == "16-left", "{cell}");
            if id == "16-left" {
                // 28 of 25 ms, of which 12 are the first set's.
                assert_eq!(cell["moving"]["slices_locks_per_s"].as_array().map(Vec::len), Some(28), "{cell}");
                let evenness = cell["moving"]["lowest_to_median"].as_f64().expect("a number");
                assert!((0.0..=1.0).contains(&evenness), "{cell}");
                for sets in ["first_set_locks_per_s", "other_sets_locks_per_s"] {
                    assert!(cell["moving"][sets].as_f64() > Some(0.0), "{cell}");
                }
            }
        }
        if id != "16-right" && !line.contains("--system") {
            assert!(all.iter().all(|name| found.iter().any(|cell| cell["system"] == *name)), "{line}");
        }
        for chart in charts {
            let chart = std::fs::read_to_string(folder.path().join(format!("figure-{chart}.svg"))).expect(chart);
            assert!(chart.contains("parlock"), "{line}: {chart}");
        }
        let csv = std::fs::read_to_string(folder.path().join("result.csv")).expect("it is saved");
        assert_eq!(csv.lines().count(), 1 + cells, "{csv}");
        let text = std::fs::read_to_string(folder.path().join("result.txt")).expect("it is saved");
        assert_eq!(text.contains("lowest 100 ms / median"), id == "16-left", "{text}");
    }
}

fn namespaces_of(process: u32) -> usize {
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let prefix = format!("lockwork-{process}-");
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)).count()
}

#[test]
fn privileged_an_interrupt_removes_the_namespaces() {
    if or_skip(Network::new(1), NetworkError::is_unavailable).is_none() {
        return;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockwork-bench"));
    command.args(["lock-service", "--system", "srvlock", "--machines", "2", "--seconds", "60"]);
    let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the command starts");
    let start = Instant::now();
    while namespaces_of(process.id()) < 3 {
        let ended = process.try_wait().expect("it is our child");
        assert_eq!(ended, None, "it ends before it is interrupted");
        assert!(start.elapsed() < Duration::from_secs(30), "no namespaces");
        std::thread::sleep(Duration::from_millis(10));
    }
    // While it measures.
    std::thread::sleep(Duration::from_millis(300));
    let kill = Command::new("kill").args(["-INT", &process.id().to_string()]).status().expect("there is kill");
    assert!(kill.success());
    let number = process.id();
    assert_eq!(process.wait().expect("it ends").code(), Some(130));
    assert_eq!(namespaces_of(number), 0);
}

#[test]
fn mistakes_are_named_and_exit_with_2() {
    for (line, names) in [
        ("lock-service --system paxos", "no system is called 'paxos'; there are lockwork-xdp, lockwork-tc"),
        ("lock-service --system srvlock,,lockwork-udp", "--system has an empty entry"),
        ("lock-service --locks 0", "--locks is 0"),
        ("lock-service --clients 0", "0 clients"),
        ("lock-service --clients 65536 --machines 2", "65536 clients on each of 2 machines; 1 to 4096"),
        ("lock-service --machines 0", "0 machines"),
        ("lock-service --machines 33", "33 machines; lockwork-xdp serves at most 32"),
        ("lock-service --machines 251 --clients 1 --system lockwork-udp", "1 to 250 are possible"),
        ("lock-service --seconds 0", "--seconds is 0.0"),
        ("lock-service --seconds nan", "--seconds is NaN"),
        ("lock-service --passes 0", "--passes is 0"),
        ("lock-service --theta 0.5", "--theta means nothing for uniform"),
        ("lock-service --distribution zipf --theta 1", "--theta is 1"),
        ("lock-service --locks 99999999999999", "--locks"),
        ("lock-service --records 5", "unexpected argument '--records"),
        ("lock-service --workload ycsb", "'ycsb'"),
        ("paper fisslock --figure 12", "there is no such figure; there are 13, 14, 16-left"),
        ("paper fisslock --figure 13,", "--figure has an empty entry"),
        ("paper fisslock --figure 16-left --seconds 0.05", "figure 16-left needs 0.1"),
        ("paper fisslock --locks 9", "--locks is 9"),
        ("paper fisslock --locks 99999999999999", "--locks"),
        ("paper fisslock --theta 1", "--theta is 1"),
        ("paper fisslock --workload uh", "unexpected argument '--workload"),
        ("paper fisslock --figure 13 --distribution zipf", "unexpected argument '--distribution"),
        ("lock-service --figure 13", "unexpected argument '--figure"),
        ("lock-transactions tatp --records 0", "--records is 0"),
        ("lock-transactions tpcc --records 65536", "--records is 65536"),
        ("lock-transactions tatp --system lockwork-xdp-local", "no system is called 'lockwork-xdp-local'"),
        ("lock-transactions tpcc --clients 3000 --machines 2", "3000 clients on each of 2 machines; 1 to 4096"),
        ("lock-transactions tpcc --locks 5", "unexpected argument '--locks"),
        ("run ycsb-a --workload rm", "unexpected argument '--workload"),
        ("run ycsb-a --clients 5", "unexpected argument '--clients"),
    ] {
        let output = run(line);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {error}");
        assert!(error.contains(names), "{line}: {error}");
    }
}
