//! Many runs of the simulator's standard settings: `soak FIRST_SEED SEEDS OPERATIONS [SETTING]`, each setting with each
//! seed.
//!
//! A run that fails is told by its command for `lockwork-bench sim locks`; with one seed and one setting, by its trace
//! and counters.

use lockwork_lock_protocol::simulator::{Settings, run};
use std::process::ExitCode;

fn main() -> ExitCode {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|number| number.parse().ok()).collect();
    let [first, seeds, operations, setting @ ..] = &numbers[..] else {
        eprintln!("soak: takes FIRST_SEED SEEDS OPERATIONS [SETTING]");
        return ExitCode::from(2);
    };
    let mut code = ExitCode::SUCCESS;
    for (at, settings) in Settings::standard(0, *operations).into_iter().enumerate() {
        if setting.first().is_some_and(|only| *only != at as u64) {
            continue;
        }
        for seed in *first..first + seeds {
            let settings = Settings { seed, ..settings };
            let alone = *seeds == 1 && !setting.is_empty();
            // An assertion of the service is a failure like others.
            match std::panic::catch_unwind(|| run(settings)) {
                Ok(report) if report.failure.is_none() && !alone => continue,
                Ok(report) if alone => {
                    println!("{:?}\n{}", report.counters, report.verdict().err().unwrap_or_default())
                }
                Ok(report) => {
                    println!(
                        "{}: {}",
                        settings.command(),
                        report.failure.map(|failure| failure.what).unwrap_or_default()
                    );
                    code = ExitCode::FAILURE;
                }
                Err(_) => code = ExitCode::FAILURE,
            }
        }
    }
    code
}
