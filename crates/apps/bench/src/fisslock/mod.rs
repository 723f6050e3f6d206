//! `lockwork-bench paper fisslock`: figures of FissLock's evaluation that are about single locks: how long grants take
//! and how many there are (13, and 14 left), while a hotspot moves (16 left), by the number of locks (16 right), and by
//! how many locks protect the same objects (17 left).
//!
//! A figure is a list of cases, and what each system does in them. Systems take turns, round by round, as in
//! `lockwork-bench lock-service`, and every critical section is watched.
//!
//! The rooms: this one (what is measured), `report` (tables, JSON, CSV and charts).

mod report;

use std::time::Duration;

use clap::Args;
use lockwork_lock_bench::{Bench, Hotspot, Measured, Settings, System, end_on_signals};

use super::lock_service::{Clients, all_verified, check_locks, failure, failure_of, systems};
use super::options::{Results, check_passes, empty_entry, whole};
use super::progress::Live;
use super::{Failure, Outcome};
use report::{Cell, Figure, Report};

/// Clients of all machines, as in the paper.
const CLIENTS: u32 = 160;
/// Objects that locks protect, to the most locks: ten million for a million.
const OBJECTS: u64 = 10;
/// How long a hotspot stays.
const PERIOD: Duration = Duration::from_millis(300);
/// The slices in which grants are counted while it moves: four are 100 ms.
const SLICE: Duration = Duration::from_millis(25);
const IN_100_MS: usize = 4;

const MIXES: [(&str, f64); 3] = [("UH", 0.5), ("RM", 0.1), ("RO", 0.0)];
/// Read-mostly, where the paper has only one mix.
const READ_MOSTLY: f64 = 0.1;

/// Options of `paper fisslock`.
#[derive(Clone, Debug, Args)]
pub(super) struct Arguments {
    /// Figures, with commas: 13, 14, 16-left, 16-right, 17-left [default: all]
    #[arg(long, value_delimiter = ',')]
    figure: Vec<String>,
    #[command(flatten)]
    service: Clients,
    /// Locks; a figure over their number begins below and ends with it, or ten times it
    #[arg(long, default_value_t = 1_000_000)]
    locks: u64,
    /// Skew of zipf, 0 to below 1
    #[arg(long, default_value_t = 0.99)]
    theta: f64,
    /// Rounds of measuring; figures are their medians
    #[arg(long, default_value_t = 3)]
    passes: usize,
    /// Determines everything random
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>, allow_negative_numbers = true)]
    seed: u64,
    #[command(flatten)]
    results: Results,
}

/// What a figure shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    /// 13 and 14 (left): the same runs.
    Grants,
    /// 16 (left).
    Moving,
    /// 16 (right).
    Scale,
    /// 17 (left).
    Granularity,
}

impl Which {
    const ALL: [Self; 4] = [Self::Grants, Self::Moving, Self::Scale, Self::Granularity];
    /// Names on the command line.
    const NAMES: [(&str, Self); 5] = [
        ("13", Self::Grants),
        ("14", Self::Grants),
        ("16-left", Self::Moving),
        ("16-right", Self::Scale),
        ("17-left", Self::Granularity),
    ];

    const fn id(self) -> &'static str {
        match self {
            Self::Grants => "13-14",
            Self::Moving => "16-left",
            Self::Scale => "16-right",
            Self::Granularity => "17-left",
        }
    }
}

/// Some settings, and the systems that are measured with them.
struct Case {
    /// What is special about it.
    name: String,
    settings: Settings,
    systems: Vec<System>,
}

/// How many locks the decider has room for, of so many: all of them. What is beyond it would be the lock servers'.
const fn capacity(locks: u64) -> u64 {
    locks
}

/// What was asked for.
struct Wanted<'a> {
    arguments: &'a Arguments,
    base: Settings,
    theta: f64,
    systems: Vec<System>,
}

impl Wanted<'_> {
    fn case(&self, name: String, settings: Settings) -> Case {
        Case { name, settings, systems: self.systems.clone() }
    }

    fn distributions(&self) -> [(&'static str, Option<f64>); 2] {
        [("uniform", None), ("zipf", Some(self.theta))]
    }

    fn cases(&self, which: Which) -> Vec<Case> {
        let base = &self.base;
        let of = |locks: u64| Settings { locks, objects: locks, ..base.clone() };
        match which {
            Which::Grants => {
                let all = MIXES.iter().flat_map(|mix| self.distributions().map(|how| (mix, how)));
                let case = |((mix, writes), (how, theta)): (&(&str, f64), _)| {
                    self.case(format!("{mix} {how}"), Settings { writes: *writes, theta, ..base.clone() })
                };
                all.map(case).collect()
            }
            Which::Moving => {
                let (hotspot, slice) = (Some(Hotspot { period: PERIOD }), Some(SLICE));
                vec![self.case("RM, moving".into(), Settings { hotspot, slice, ..base.clone() })]
            }
            Which::Scale => {
                let counts = [(base.locks / 10).max(1), base.locks, base.locks * 10];
                let mut cases: Vec<_> =
                    counts.iter().map(|&locks| self.case(format!("{locks} locks"), of(capacity(locks)))).collect();
                if self.arguments.service.system.is_empty() {
                    // As in the paper: the service, and what it would fall back to where locks are most.
                    let [few @ .., most] = &mut cases[..] else { return cases };
                    few.iter_mut().for_each(|case| case.systems = vec![System::Xdp]);
                    most.systems = vec![System::Xdp, System::ParLock];
                }
                cases
            }
            Which::Granularity => {
                let counts = (0..=4).rev().map(|power| base.locks / 10_u64.pow(power)).filter(|count| *count > 0);
                let objects = base.locks * OBJECTS;
                let case = |(locks, (how, theta)): (u64, (&str, _))| {
                    self.case(format!("{locks} locks, {how}"), Settings { objects, theta, ..of(locks) })
                };
                counts.flat_map(|locks| self.distributions().map(|how| (locks, how))).map(case).collect()
            }
        }
    }

    /// Measures a figure.
    fn measure(&self, which: Which, mut bench: Bench, live: &Live) -> Result<(Figure, Bench), Failure> {
        let mut cells = Vec::new();
        for case in self.cases(which) {
            bench = bench.with(case.settings.clone()).map_err(failure)?;
            let mut rounds: Vec<Vec<Measured>> = vec![Vec::new(); case.systems.len()];
            for pass in 1..=self.arguments.passes {
                for (rounds, &system) in rounds.iter_mut().zip(&case.systems) {
                    let (name, all) = (system.name(), self.arguments.passes);
                    live.show(0, &format!("{}: {}: {name}, round {pass} of {all}", which.id(), case.name));
                    rounds.push(bench.round(system).map_err(|error| failure_of(system, error))?);
                }
            }
            let measured = case.systems.iter().zip(rounds).map(|(system, rounds)| Cell::of(&case, *system, rounds));
            let mut measured: Vec<Cell> = measured.collect();
            Cell::compare(&mut measured);
            cells.append(&mut measured);
        }
        Ok((Figure::new(which, cells), bench))
    }
}

/// The figures that are asked for, each once.
fn figures(names: &[String]) -> Result<Vec<Which>, Failure> {
    let mut figures = Vec::new();
    for name in names {
        if name.is_empty() {
            return Err(empty_entry("--figure", "--figure 13,16-left"));
        }
        let found = Which::NAMES.iter().find(|(is, _)| is == name).map(|(_, which)| *which);
        let which = found.ok_or_else(|| {
            let names = Which::NAMES.map(|(name, _)| name).join(", ");
            Failure::usage(format!("--figure {name}: there is no such figure; there are {names}"))
        })?;
        if !figures.contains(&which) {
            figures.push(which);
        }
    }
    Ok(if names.is_empty() { Which::ALL.to_vec() } else { figures })
}

fn wanted(arguments: &Arguments) -> Result<(Wanted<'_>, Vec<Which>), Failure> {
    let service = &arguments.service;
    let figures = figures(&arguments.figure)?;
    let systems = systems(&service.system, System::ALL)?;
    check_passes(arguments.passes)?;
    let least = SLICE * IN_100_MS as u32;
    let measured = service.measured()?;
    if figures.contains(&Which::Moving) && measured < least {
        return Err(Failure::usage(format!("--seconds is {:?}; figure 16-left needs 0.1 or more", service.seconds())));
    }
    if !(10..=u64::MAX / OBJECTS).contains(&arguments.locks) {
        return Err(Failure::usage(format!(
            "--locks is {}; 10 or more are possible, as memory allows",
            arguments.locks
        )));
    }
    let theta = arguments.theta;
    let machines = service.machines();
    let base = Settings {
        machines,
        clients: service.clients.unwrap_or(CLIENTS / u32::from(machines.max(1))),
        locks: arguments.locks,
        objects: arguments.locks,
        hotspot: None,
        slice: None,
        writes: READ_MOSTLY,
        theta: None,
        seed: arguments.seed,
        client: service.client().0,
        measured,
    };
    base.check(&systems).map_err(failure)?;
    let most = if figures.contains(&Which::Scale) { arguments.locks * 10 } else { arguments.locks };
    check_locks(most)?;
    Ok((Wanted { arguments, base, theta, systems }, figures))
}

/// Measures, prints, and says whether everything was as promised.
pub(super) fn command(arguments: &Arguments) -> Outcome {
    let (wanted, which) = wanted(arguments)?;
    arguments.results.prepare()?;
    end_on_signals();
    // Before anything is measured, whatever cannot be chosen is refused.
    let skewed = Settings { theta: Some(wanted.theta), ..wanted.base.clone() };
    let mut bench = Bench::new(skewed).map_err(failure)?;
    let live = Live::new(std::iter::once("fisslock"));
    let mut figures = Vec::new();
    for which in which {
        let measured;
        (measured, bench) = wanted.measure(which, bench, &live)?;
        figures.push(measured);
    }
    drop(live);
    drop(bench);
    let cells: Vec<_> = figures.iter().flat_map(Figure::verified).collect();
    Report { arguments, base: &wanted.base, theta: wanted.theta, figures }.give()?;
    all_verified(cells.into_iter())
}
