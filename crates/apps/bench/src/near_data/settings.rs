//! What the options have to be, checked before anything is measured.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;

use lockwork_sharedlocks::Layout;

use super::super::measure::check_memory;
use super::super::report::probe;
use super::super::{Failure, Outcome};
use super::{Arguments, Experiment, bulk, layout, letter, postgres};

/// Reads a number from `least` to `most`; what else was given is told what is possible.
pub(super) fn number<T: FromStr + PartialOrd + std::fmt::Display>(text: &str, least: T, most: T) -> Result<T, String> {
    let value = text.parse().ok().filter(|value| (&least..=&most).contains(&value));
    value.ok_or_else(|| format!("whole numbers from {least} to {most} are possible"))
}

pub(super) fn lock_lines(text: &str) -> Result<u32, String> {
    let value = text.parse().ok().filter(|lines| Layout::new(*lines, 64).check().is_ok());
    value.ok_or_else(|| format!("powers of two from 1 to {} are possible", lockwork_locking::shared::MAX_LINES))
}

pub(super) fn requests(text: &str) -> Result<u64, String> {
    number(text, 1_000, postgres::MAX_ROWS)
}

pub(super) fn elements(text: &str) -> Result<usize, String> {
    number(text, 1, 64)
}

pub(super) fn overlap(text: &str) -> Result<u32, String> {
    number(text, 0, 100)
}

pub(super) fn timeout(text: &str) -> Result<u64, String> {
    number(text, 1, 86_400)
}

/// The experiments in their order, each once.
pub(super) fn experiments(given: &[Experiment]) -> Result<Vec<Experiment>, Failure> {
    let all = <Experiment as clap::ValueEnum>::value_variants();
    let mut experiments = if given.is_empty() { all.to_vec() } else { given.to_vec() };
    experiments.sort();
    if let Some(twice) = experiments.windows(2).find(|pair| pair[0] == pair[1]) {
        let text = format!("--experiment has {} twice; a, b, c and d are possible, each once", letter(twice[0]));
        return Err(Failure::usage(text));
    }
    Ok(experiments)
}

/// Refuses what the experiments cannot be run with.
pub(super) fn check(bench: &Arguments, experiments: &[Experiment]) -> Outcome {
    let arguments = bench;
    let records = bulk::records(bench);
    if !(10_000..=100_000_000).contains(&records) {
        return Err(Failure::usage(format!("--records is {records}; 10000 to 100000000 are possible")));
    }
    if let Some(threads) = bench.threads.filter(|threads| !(1..=64).contains(threads)) {
        return Err(Failure::usage(format!("--threads is {threads}; 1 to 64 are possible")));
    }
    if experiments.iter().any(|experiment| matches!(experiment, Experiment::A | Experiment::C)) {
        let bytes = layout(arguments.lock_lines).words() as u128 * 8;
        check_memory(&format!("{} lines of the lock table", arguments.lock_lines), bytes, "--lock-lines")?;
    }
    let data = bulk::folder(bench);
    if arguments.data.is_some() || experiments.contains(&Experiment::D) {
        if !data.is_dir() {
            return Err(Failure::usage(format!("--data: {} is no folder; give one for a large file", data.display())));
        }
        probe(&data).map_err(|error| Failure::usage(format!("--data: {}: {error}", data.display())))?;
    }
    if experiments.contains(&Experiment::D) {
        let (wanted, free) = (bulk::rows(bench) * bulk::FILE_BYTES, free_bytes(&data));
        if wanted > free {
            let (wanted, free, data) = (wanted >> 20, free >> 20, data.display());
            let text =
                format!("experiment d needs about {wanted} MiB in {data}, where {free} MiB are free; use another");
            return Err(Failure::usage(format!("{text} --data or fewer --records")));
        }
    }
    Ok(())
}

/// What there is room for in a folder, if the system says it.
fn free_bytes(folder: &Path) -> u64 {
    let Ok(path) = CString::new(folder.as_os_str().as_bytes()) else { return u64::MAX };
    // SAFETY: all zeros are a value of this plain structure.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: a system call with a string and a structure that live through it.
    if unsafe { libc::statvfs(path.as_ptr(), &raw mut found) } == 0 {
        found.f_bavail.saturating_mul(found.f_frsize)
    } else {
        u64::MAX
    }
}
