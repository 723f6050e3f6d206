//! Runs of the simulator.
use lockwork_lockservice::simulator::*;
fn main() {
    let a: Vec<u64> = std::env::args().skip(1).map(|a| a.parse().unwrap()).collect();
    let (index, seed, count, ops) = (a[0] as usize, a[1], a[2], a[3]);
    for seed in seed..seed + count {
        let settings = Settings { seed, ..Settings::standard(0, ops)[index] };
        let report = std::panic::catch_unwind(|| run(settings));
        match report {
            Ok(report) => match report.verdict() {
                Ok(()) => {
                    if count == 1 {
                        println!("{:?}", report.counters)
                    }
                }
                Err(why) if count == 1 => println!("{why}"),
                Err(why) => println!("{index} {seed}: {}", why.lines().rev().nth(1).unwrap()),
            },
            Err(_) => println!("{index} {seed}: panic"),
        }
    }
}
