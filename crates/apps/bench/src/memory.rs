//! `lockwork-bench memory`: the random reads that the machine allows, a limit of every engine.

use std::time::Instant;

use clap::Args;
use lockwork_memory::{Buffer, LINE, Pages, prefetch};
use lockwork_workload::random::Random;
use lockwork_workload::statistics::median;
use serde::Serialize;
use serde_json::json;

use super::measure::check_memory;
use super::options::{Results, whole};
use super::report::Forms;
use super::{Environment, Failure, Outcome};

/// Options of `memory`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Cores that read at once
    #[arg(long, default_value_t = 1, value_parser = whole::<usize>, allow_negative_numbers = true)]
    threads: usize,
    /// Determines everything random
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>, allow_negative_numbers = true)]
    seed: u64,
    #[command(flatten)]
    results: Results,
}

/// Bytes that are read at random: far more than any cache holds.
const BYTES: usize = 1 << 30;
/// Lines that a thread reads in one go.
const READS: usize = 16_000_000;
/// Reads ahead of the one that is used.
const AHEAD: usize = 24;

/// Random reads a second of one core, in millions.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Limits {
    pub(super) pages: &'static str,
    /// Nanoseconds of a read that needs the one before.
    pub(super) dependent_ns: f64,
    /// One line each.
    pub(super) one_line_m_per_s: f64,
    /// Two neighbouring lines each.
    pub(super) two_lines_m_per_s: f64,
    /// Sixteen neighbouring lines each.
    pub(super) sixteen_lines_m_per_s: f64,
}

/// Bytes that [`measure`] needs at most: what is read, its order, and the places that each thread reads.
pub(super) fn bytes(threads: usize) -> u128 {
    (BYTES + BYTES / LINE * 4 + threads * READS * 4) as u128
}

/// Measures on `threads` cores at once and gives the median of three for one core.
pub(super) fn measure(pages: Pages, threads: usize, seed: u64) -> Result<Limits, Failure> {
    let buffer = Buffer::zeroed(BYTES, pages, "random reads").map_err(Failure::usage)?;
    let lines = (BYTES / LINE) as u64;
    link(&buffer, lines, seed);
    let several = |one: &(dyn Fn(u64) -> f64 + Sync)| {
        median((0..3).map(|round| together(threads, &|thread| one(seed + round * 64 + thread))))
    };
    let independent = |width: u64| several(&|seed| independent(&buffer, lines, width, seed));
    Ok(Limits {
        pages: if pages == Pages::Huge { "huge" } else { "plain" },
        dependent_ns: 1e9 / several(&|seed| dependent(&buffer, lines, seed)),
        one_line_m_per_s: independent(1) / 1e6,
        two_lines_m_per_s: independent(2) / 1e6,
        sixteen_lines_m_per_s: independent(16) / 1e6,
    })
}

/// Runs `one` on every thread at once; the mean of what they return.
fn together(threads: usize, one: &(dyn Fn(u64) -> f64 + Sync)) -> f64 {
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads as u64).map(|thread| scope.spawn(move || one(thread))).collect();
        let sum: f64 = running.into_iter().map(|thread| thread.join().expect("it only reads")).sum();
        sum / threads as f64
    })
}

/// Makes every line hold the number of another, all in one circle (Sattolo's shuffle).
fn link(buffer: &Buffer, lines: u64, seed: u64) {
    let mut random = Random::new(seed);
    let mut order: Vec<u32> = (0..lines as u32).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, random.below(last as u64) as usize);
    }
    for pair in 0..order.len() {
        let (from, to) = (order[pair], order[(pair + 1) % order.len()]);
        // SAFETY: the line lies in the buffer, which is ours alone.
        unsafe { buffer.as_ptr().add(from as usize * LINE).cast::<u64>().write(u64::from(to)) };
    }
}

#[inline(always)]
fn read(buffer: &Buffer, line: u64) -> u64 {
    // SAFETY: callers stay inside the buffer.
    unsafe { buffer.as_ptr().add(line as usize * LINE).cast::<u64>().read_volatile() }
}

/// Reads a second when each needs the one before.
fn dependent(buffer: &Buffer, lines: u64, seed: u64) -> f64 {
    const READS: u64 = 2_000_000;
    let mut line = seed % lines;
    let start = Instant::now();
    for _ in 0..READS {
        line = read(buffer, line);
    }
    assert!(std::hint::black_box(line) < lines);
    READS as f64 / start.elapsed().as_secs_f64()
}

/// Reads a second of `width` neighbouring lines each, prefetched ahead.
fn independent(buffer: &Buffer, lines: u64, width: u64, seed: u64) -> f64 {
    let reads = (READS / width as usize).max(1_000_000);
    let mut random = Random::new(seed);
    let places: Vec<u32> = (0..reads + AHEAD).map(|_| (random.below(lines / width) * width) as u32).collect();
    let mut sum = 0_u64;
    let start = Instant::now();
    for at in 0..reads {
        let ahead = u64::from(places[at + AHEAD]);
        for line in 0..width {
            prefetch(buffer.as_ptr().wrapping_add((ahead + line) as usize * LINE));
        }
        for line in 0..width {
            sum = sum.wrapping_add(read(buffer, u64::from(places[at]) + line));
        }
    }
    std::hint::black_box(sum);
    reads as f64 / start.elapsed().as_secs_f64()
}

/// Measures random reads of plain and huge pages.
pub(super) fn command(arguments: &Arguments) -> Outcome {
    let threads = arguments.threads;
    if threads == 0 || threads > lockwork_engine::contract::MAX_THREADS {
        return Err(Failure::usage(format!("--threads is {threads}; 1 to 256 are possible")));
    }
    check_memory(&format!("random reads on {threads} threads"), bytes(threads), "--threads")?;
    arguments.results.prepare()?;
    let limits = [Pages::Plain, Pages::Huge].map(|pages| measure(pages, threads, arguments.seed));
    let [plain, huge] = limits;
    let (limits, environment) = ([plain?, huge?], Environment::read());
    let settings = json!({ "workload": "memory", "threads": threads, "seed": arguments.seed });
    let report = json!({ "schema": 1, "environment": environment, "settings": settings, "limits": limits });
    let forms = Forms {
        json: format!("{report:#}\n"),
        csv: limits.iter().fold(
            "pages,dependent_ns,one_line_m_per_s,two_lines_m_per_s,sixteen_lines_m_per_s\n".to_string(),
            |text, l| {
                let (one, two, sixteen) = (l.one_line_m_per_s, l.two_lines_m_per_s, l.sixteen_lines_m_per_s);
                format!("{text}{},{:.1},{one:.2},{two:.2},{sixteen:.2}\n", l.pages, l.dependent_ns)
            },
        ),
        text: limits.iter().fold(
            format!(
                "{}, commit {}\nrandom reads of 1 GiB, {threads} cores at once, for each core\n\n\
                 pages   dependent ns   1 line M/s   2 lines M/s   16 lines M/s\n",
                environment.cpu, environment.commit
            ),
            |text, l| {
                let (one, two, sixteen) = (l.one_line_m_per_s, l.two_lines_m_per_s, l.sixteen_lines_m_per_s);
                format!("{text}{:<7} {:>12.1} {one:>12.1} {two:>13.1} {sixteen:>14.2}\n", l.pages, l.dependent_ns)
            },
        ),
        title: "memory".into(),
        unit: "random reads of one line a second, for each core",
        bars: limits.iter().map(|l| (format!("{} pages", l.pages), l.one_line_m_per_s * 1e6)).collect(),
    };
    arguments.results.give(&forms)
}
