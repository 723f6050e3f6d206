//! Runs of the simulator.

use lockwork_lockservice::simulator::{Settings, run};

#[test]
fn first() {
    let seed = std::env::var("SEED").map_or(1, |s| s.parse().unwrap());
    let n = std::env::var("COUNT").map_or(1, |s| s.parse().unwrap());
    for seed in seed..seed + n {
        let report = run(Settings {
            operations: std::env::var("OPS").map_or(100_000, |s| s.parse().unwrap()),
            ..Settings::new(seed)
        });
        println!("{:?}", report.counters);
        if let Err(what) = report.verdict() {
            panic!("{what}");
        }
    }
}
