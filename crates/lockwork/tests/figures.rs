//! `lockwork bench bionicdb` and `lockwork bench engines` from their first figure to their last, on small tables.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// What a short run of a command reports, and the folder with its files.
fn report(name: &str, options: &str) -> (Value, String) {
    let folder = format!("{}/figures-{name}", env!("CARGO_TARGET_TMPDIR"));
    let line = format!("bench {name} --quick --records 2000 --seed 3 --output json --out {folder} {options}");
    let output = Command::new(env!("CARGO_BIN_EXE_lockwork")).args(line.split_whitespace()).output();
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
    let (report, folder) = report("bionicdb", "--threads 2");
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
