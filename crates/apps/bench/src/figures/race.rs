//! Engines that take turns on the same calls, so that what disturbs a machine for a while disturbs all of them.
//!
//! Every contestant has loaded its tables before the first round. In a round each entry runs for a slice of time, one
//! after the other; the first round warms up and is not counted. A figure is the median of the other rounds, a ratio
//! the median of the ratios within rounds.
//!
//! A slice submits batches until its time is over. Calls that can run again do so; others are made afresh for every
//! round, and those of them that are not reached are never submitted. At the end the results of the last round and the
//! contents of all tables are checked.
//!
//! Trade-off: all contestants are in memory at once.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use lockwork_engine::{Engine, EngineKind, Options};
use lockwork_procedure::block::Batch;
use lockwork_workload::statistics::median;
use lockwork_workload::{Repeat, Workload, WorkloadError};

use super::super::Failure;
use super::super::measure::{AHEAD, Plan, check_memory, input, prepare, register, table_bytes, verify};
use super::super::progress::Live;
use super::super::workloads::Boxed;

/// Bytes of the calls that an entry has ready for a round.
const INPUT_BYTES: usize = 32 << 20;

/// Makes a workload, the same every time.
pub(super) type Make<'a> = dyn Fn() -> Boxed + 'a;

/// How a race is run.
pub(super) struct Race<'a> {
    /// Rounds that count.
    pub(super) passes: usize,
    /// How long an entry runs in a round.
    pub(super) slice: Duration,
    /// The most calls of an entry in a round; what limits how far tables grow.
    pub(super) calls: usize,
    /// Who may see what is going on.
    pub(super) live: &'a Live,
}

/// An engine with its tables.
pub(super) struct Contestant {
    name: String,
    engine: Box<dyn Engine>,
}

/// A workload on a contestant.
struct Entry {
    contestant: usize,
    workload: Box<dyn Workload>,
    plan: Plan,
    batches: Vec<Batch>,
    rates: Vec<f64>,
}

/// Accesses or transactions a second, round by round.
pub(super) type Rates = Vec<f64>;

impl Race<'_> {
    fn plan(&self, workload: &dyn Workload) -> Plan {
        let stride = (workload.block_bytes() as usize).next_multiple_of(64);
        let transactions = (INPUT_BYTES / stride).clamp(1, self.calls);
        let batch = ((1 << 20) / stride).clamp(256, 8192).min(transactions);
        Plan { transactions, batch, time: self.slice, warmup: 1, recycled: false, ahead: AHEAD }
    }

    /// Engines, each with the tables and rows of the workload, and room for what this race inserts.
    pub(super) fn contestants(
        &self,
        sides: &[(String, EngineKind, Options)],
        make: &Make<'_>,
    ) -> Result<Vec<Contestant>, Failure> {
        let first = make()?;
        let calls = self.plan(&*first).transactions * (self.passes + 1);
        let tables = first.schemas().into_iter().enumerate().map(|(number, schema)| {
            let grown = (calls as f64 * first.growth(number)) as u64;
            table_bytes(&schema, first.row_count(number) + grown)
        });
        let bytes = sides.len() as u128 * tables.sum::<u128>();
        check_memory(&format!("the tables of {} engines for {}", sides.len(), first.name()), bytes, "--records")?;
        let load = |(name, kind, options): &(String, EngineKind, Options)| {
            let mut workload = make()?;
            let mut show = |what: &str| self.live.show(0, &format!("{name}: {what}"));
            let engine = prepare(*kind, options, &mut *workload, calls, &mut show)?;
            Ok(Contestant { name: name.clone(), engine })
        };
        sides.iter().map(load).collect()
    }

    /// Runs entries, each a workload on the contestant of a number, over the tables that this one was loaded with.
    /// Workloads that insert stand alone on theirs: what they insert is unknown to another one's check. Workloads of
    /// one contestant that name procedures alike have the same procedures.
    pub(super) fn run(
        &self,
        contestants: &mut [Contestant],
        entries: Vec<(usize, Box<dyn Workload>)>,
    ) -> Result<Vec<Rates>, Failure> {
        let mut entered = Vec::new();
        for (contestant, mut workload) in entries {
            let engine = &mut *contestants[contestant].engine;
            let schemas = workload.schemas();
            register(engine, &mut *workload, &schemas)?;
            let (plan, rates) = (self.plan(&*workload), Vec::new());
            let batches = input(&mut *workload, &plan)?;
            entered.push(Entry { contestant, workload, plan, batches, rates });
        }
        for round in 0..=self.passes {
            for entry in &mut entered {
                let Contestant { name, engine } = &mut contestants[entry.contestant];
                let words = entry.workload.name();
                self.live.show(0, &format!("{words} on {name}: round {round} of {}", self.passes));
                let rate = entry.round(&mut **engine, round > 0).map_err(|failure| of(name, &words, failure))?;
                if round > 0 {
                    entry.rates.push(rate);
                }
            }
        }
        for (at, contestant) in contestants.iter().enumerate() {
            self.live.show(0, &format!("{}: verifying", contestant.name));
            let mut of_it: Vec<&mut Entry> = entered.iter_mut().filter(|entry| entry.contestant == at).collect();
            let Some(last) = of_it.pop() else { continue };
            for Entry { workload, batches, .. } in of_it {
                let wrong = |error: WorkloadError| Failure::Check(error.to_string());
                batches
                    .iter()
                    .try_for_each(|batch| workload.check_results(batch).map(drop))
                    .map_err(|error| of(&contestant.name, &workload.name(), wrong(error)))?;
            }
            let words = last.workload.name();
            verify(&*contestant.engine, &mut *last.workload, &last.batches)
                .map_err(|failure| of(&contestant.name, &words, failure))?;
        }
        Ok(entered.into_iter().map(|entry| entry.rates).collect())
    }
}

/// A failure, with what it befell.
fn of(engine: &str, workload: &str, failure: Failure) -> Failure {
    failure.reworded(|text| format!("{workload} on {engine}: {text}"))
}

impl Entry {
    /// One slice, with other calls if these cannot run `again`. Returns transactions a second.
    fn round(&mut self, engine: &mut dyn Engine, again: bool) -> Result<f64, Failure> {
        let freely = self.workload.repeat() == Repeat::Freely;
        if again && !freely {
            // First of all the memory of the old ones.
            self.batches.clear();
            self.batches = input(&mut *self.workload, &self.plan)?;
        }
        let mut waiting: VecDeque<Batch> = std::mem::take(&mut self.batches).into();
        let mut completed = 0;
        let start = Instant::now();
        loop {
            while engine.in_flight() < AHEAD
                && start.elapsed() < self.plan.time
                && let Some(batch) = waiting.pop_front()
            {
                engine.submit(batch).map_err(|refused| Failure::from(refused.error))?;
            }
            let Some(done) = engine.complete()? else { break };
            if let Some((code, count)) = done.report.tally.failed.first_key_value() {
                return Err(Failure::Check(format!("{count} transactions failed with code {code}")));
            }
            completed += done.batch.len();
            if freely { waiting.push_back(done.batch) } else { self.batches.push(done.batch) }
        }
        let elapsed = start.elapsed();
        self.batches.extend(waiting);
        self.batches.iter().for_each(|batch| self.workload.observe(batch));
        Ok(completed as f64 / elapsed.as_secs_f64())
    }
}

/// The median of what one is to the other, round by round.
pub(super) fn ratio(over: &[f64], under: &[f64]) -> f64 {
    median(over.iter().zip(under).map(|(over, under)| over / under.max(f64::MIN_POSITIVE)))
}
