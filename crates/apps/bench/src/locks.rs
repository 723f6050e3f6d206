//! `lockwork-bench locks`: lock and release only, no execution (HOBBES, figure 3.9).

use std::collections::VecDeque;
use std::time::Instant;

use clap::{Args, ValueEnum};
use lockwork_locking::batch::{Access, BatchConfig, BatchLocks, CHAIN_LIMIT, SingleSets};
use lockwork_locking::queue::QueueLocks;
use lockwork_locking::{LockId, LockMode, Owner, Request};
use lockwork_memory::Pages;
use lockwork_workload::random::Random;
use lockwork_workload::zipf::{Chooser, Distribution};
use serde_json::json;

use super::measure::check_memory;
use super::options::{Results, empty_entry, whole};
use super::report::Forms;
use super::workloads::refused;
use super::{Environment, Failure, Outcome, chart, memory};

/// Requests that the queue manager looks ahead.
const AHEAD: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mix {
    /// half of the locks exclusive
    A,
    /// one in twenty exclusive
    B,
}

/// Options of `locks`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Lock managers, with commas: queue, batch
    #[arg(long, value_delimiter = ',', default_value = "queue,batch")]
    manager: Vec<String>,
    /// How many locks are exclusive
    #[arg(long, value_enum, default_value = "a")]
    mix: Mix,
    /// Records that are locked
    #[arg(long, default_value_t = 1_000_000, value_parser = whole::<u64>, allow_negative_numbers = true)]
    records: u64,
    /// Skew, 0 to below 1
    #[arg(long, default_value_t = 0.5)]
    theta: f64,
    /// Locks of a batch
    #[arg(long, default_value_t = 131_072)]
    batch: u64,
    /// Locks in all
    #[arg(long, default_value_t = 8_388_608)]
    txns: u64,
    /// Determines everything random
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>, allow_negative_numbers = true)]
    seed: u64,
    #[command(flatten)]
    results: Results,
}

/// What is locked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) records: u32,
    pub(super) transactions: u32,
    pub(super) batch: u32,
    pub(super) theta: f64,
    /// Share of exclusive locks.
    pub(super) writes: f64,
    pub(super) seed: u64,
}

/// One lock for every transaction.
pub(super) fn stream(settings: &Settings) -> Result<Vec<Access>, Failure> {
    let chooser = Chooser::new(Distribution::Zipfian, u64::from(settings.records), settings.theta);
    let chooser = chooser.map_err(refused)?;
    let mut random = Random::new(settings.seed);
    let mut access = || {
        let record = chooser.next(&mut random) as u32;
        let mode = if random.unit() < settings.writes { LockMode::Exclusive } else { LockMode::Shared };
        Access { record, mode }
    };
    Ok((0..settings.transactions).map(|_| access()).collect())
}

/// What a run of a lock manager came to.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    /// Locks granted and released a second.
    pub(super) rate: f64,
    /// What the manager did wrong, if its grants were not right.
    pub(super) wrong: Option<String>,
}

impl Measured {
    /// The rate of lock manager `name`, or an error if its grants were wrong.
    pub(super) fn verified(self, name: &str) -> Result<f64, Failure> {
        self.wrong.map_or(Ok(self.rate), |wrong| Err(Failure::Check(format!("lock manager {name}: {wrong}"))))
    }
}

/// Measures the batch manager and checks its grants: every transaction is granted once, and conflicting transactions
/// are granted in the order of the input.
pub(super) fn batch(settings: &Settings, accesses: &[Access]) -> Result<Measured, Failure> {
    let config = BatchConfig::new(settings.records, settings.batch);
    let mut locks = BatchLocks::new(config).map_err(Failure::usage)?;
    let sets = SingleSets(accesses);
    let mut stream = 0..accesses.len() as u32;
    let (mut seconds, mut wrong) = (0.0, None);
    let mut order = Order::new(settings.records, accesses.len());
    while order.granted < accesses.len() && wrong.is_none() {
        let start = Instant::now();
        let plan = locks.fill(&sets, &mut stream).map_err(Failure::usage)?;
        seconds += start.elapsed().as_secs_f64();
        let plan_chains = plan.grants.iter().map(|grant| (grant.transaction, grant.chain));
        wrong = order.check(accesses, plan_chains).err();
    }
    Ok(Measured { rate: order.granted as f64 / seconds, wrong })
}

/// Checks that the batch manager grants every transaction once, and conflicting ones in the order of the input.
struct Order {
    granted: usize,
    seen: Vec<bool>,
    batch: u32,
    /// Of every record: batch and chain of the last grant, whether it was exclusive, and its transaction.
    last: Vec<(u32, u32, bool, u32)>,
}

impl Order {
    fn new(records: u32, transactions: usize) -> Self {
        debug_assert!(transactions <= u32::MAX as usize);
        Self { granted: 0, seen: vec![false; transactions], batch: 0, last: vec![(0, 0, false, 0); records as usize] }
    }

    fn check(&mut self, accesses: &[Access], grants: impl Iterator<Item = (u32, u32)>) -> Result<(), String> {
        self.batch += 1;
        let before = self.granted;
        for (transaction, chain) in grants {
            let access = accesses[transaction as usize];
            if std::mem::replace(&mut self.seen[transaction as usize], true) {
                return Err(format!("transaction {transaction} was granted twice"));
            }
            let exclusive = access.mode == LockMode::Exclusive;
            let last = &mut self.last[access.record as usize];
            let conflicts = last.0 > 0 && (exclusive || last.2);
            let ordered = last.3 < transaction && (last.0 < self.batch || last.1 == chain);
            if conflicts && !ordered {
                return Err(format!(
                    "transactions {} and {transaction} conflict on record {} and lost their order",
                    last.3, access.record
                ));
            }
            *last = (self.batch, chain, exclusive, transaction);
            self.granted += 1;
        }
        if self.granted == before {
            return Err("a batch came out empty while transactions wait".into());
        }
        Ok(())
    }
}

/// Measures the queue manager, and checks its grants in a second run of the same requests: no lock is granted while
/// another transaction holds it in a conflicting mode, conflicting transactions are granted in the order of the input,
/// and every transaction is granted and released once.
pub(super) fn queue(settings: &Settings, accesses: &[Access]) -> Result<Measured, Failure> {
    let (released, seconds) = drive_queue(settings, accesses, |_| ())?;
    let mut holders = Holders::new(settings.records, accesses);
    drive_queue(settings, accesses, |event| holders.note(event))?;
    Ok(Measured { rate: released as f64 / seconds, wrong: holders.end().err() })
}

/// What happens to a transaction, which is named by its place in the input.
#[derive(Clone, Copy, Debug)]
enum Event {
    Granted(u32),
    Released(u32),
}

/// Locks one batch after the other with the queue manager, and releases each lock as it is granted. Returns how many
/// locks were released, and the seconds that took.
fn drive_queue(settings: &Settings, accesses: &[Access], mut note: impl FnMut(Event)) -> Result<(usize, f64), Failure> {
    let requests: Vec<Request> =
        accesses.iter().map(|access| Request { id: LockId(access.record.into()), mode: access.mode }).collect();
    let mut locks = QueueLocks::dense(settings.records).map_err(Failure::usage)?;
    let mut ready = VecDeque::with_capacity(2 * settings.batch as usize);
    let (mut released, mut first) = (0, 0);
    let start = Instant::now();
    for requests in requests.chunks(settings.batch as usize) {
        for (at, request) in requests.iter().enumerate() {
            if let Some(ahead) = requests.get(at + AHEAD) {
                locks.prefetch(std::slice::from_ref(ahead));
            }
            let owner = Owner(at as u32);
            if locks.lock(owner, std::slice::from_ref(request)).map_err(Failure::usage)? {
                note(Event::Granted(first + owner.0));
                ready.push_back(owner);
            }
        }
        while let Some(owner) = ready.pop_front() {
            note(Event::Released(first + owner.0));
            let granted = |next: Owner| {
                note(Event::Granted(first + next.0));
                ready.push_back(next);
            };
            locks.release(owner, granted).map_err(Failure::usage)?;
            released += 1;
        }
        first += requests.len() as u32;
    }
    Ok((released, start.elapsed().as_secs_f64()))
}

/// Checks who holds the locks of the queue manager.
struct Holders<'a> {
    accesses: &'a [Access],
    /// Of every record: readers and writers that hold its lock, and the last transaction that was granted it to read
    /// and to write, each plus one.
    records: Vec<([u32; 2], [u32; 2])>,
    /// Of every transaction: how often it was granted and released.
    counts: Vec<[u8; 2]>,
    /// The first event that was wrong.
    wrong: Option<String>,
}

impl<'a> Holders<'a> {
    fn new(records: u32, accesses: &'a [Access]) -> Self {
        Self {
            accesses,
            records: vec![([0; 2], [0; 2]); records as usize],
            counts: vec![[0; 2]; accesses.len()],
            wrong: None,
        }
    }

    fn note(&mut self, event: Event) {
        if self.wrong.is_none() {
            self.wrong = self.check(event).err();
        }
    }

    fn check(&mut self, event: Event) -> Result<(), String> {
        let (Event::Granted(transaction) | Event::Released(transaction)) = event;
        let access = self.accesses[transaction as usize];
        let (holding, last) = &mut self.records[access.record as usize];
        let mode = usize::from(access.mode == LockMode::Exclusive);
        let count = &mut self.counts[transaction as usize];
        let record = access.record;
        if matches!(event, Event::Released(_)) {
            if *count != [1, 0] {
                return Err(format!(
                    "transaction {transaction} released the lock of record {record} and did not hold it"
                ));
            }
            (count[1], holding[mode]) = (1, holding[mode] - 1);
            return Ok(());
        }
        if count[0] > 0 {
            return Err(format!("transaction {transaction} was granted the lock of record {record} twice"));
        }
        if holding[1] > 0 || mode == 1 && holding[0] > 0 {
            return Err(format!("transaction {transaction} was granted the lock of record {record} beside others"));
        }
        let before = if mode == 1 { last[0].max(last[1]) } else { last[1] };
        if before > transaction + 1 {
            return Err(format!(
                "transactions {} and {transaction} conflict on record {record} and lost their order",
                before - 1
            ));
        }
        (count[0], holding[mode], last[mode]) = (1, holding[mode] + 1, last[mode].max(transaction + 1));
        Ok(())
    }

    /// Whether all events were right, and every transaction was granted and released.
    fn end(self) -> Result<(), String> {
        if let Some(wrong) = self.wrong {
            return Err(wrong);
        }
        let left = self.counts.iter().filter(|count| **count != [1, 1]).count();
        if left == 0 { Ok(()) } else { Err(format!("{left} of {} locks were not released", self.counts.len())) }
    }
}

/// Measures lock managers, one after the other on the same requests.
pub(super) fn command(arguments: &Arguments) -> Outcome {
    let (mix, writes) = match arguments.mix {
        Mix::A => ("a", 0.5),
        Mix::B => ("b", 0.05),
    };
    let most = u64::from(u32::MAX) - 1;
    let (records, batch, transactions) = (arguments.records, arguments.batch, arguments.txns);
    let ranges =
        [("--records", records, most), ("--batch", batch, u64::from(CHAIN_LIMIT)), ("--txns", transactions, most)];
    for (option, value, most) in ranges {
        if value == 0 || value > most {
            return Err(Failure::usage(format!("{option} is {value}; 1 to {most} are possible")));
        }
    }
    // Shared with the random reads; two forms of every request; words, queues and checks of every record.
    let bytes = memory::bytes(1) + u128::from(transactions) * 24 + u128::from(records) * 48;
    check_memory(&format!("{transactions} locks on {records} records"), bytes, "--txns or --records")?;
    let batch = batch.min(transactions);
    let settings = Settings {
        records: records as u32,
        transactions: transactions as u32,
        batch: batch as u32,
        theta: arguments.theta,
        writes,
        seed: arguments.seed,
    };
    type Measure = fn(&Settings, &[Access]) -> Result<Measured, Failure>;
    let managers = arguments.manager.iter().map(|name| match name.as_str() {
        "queue" => Ok((name, self::queue as Measure)),
        "batch" => Ok((name, self::batch as Measure)),
        "" => Err(empty_entry("--manager", "--manager queue,batch")),
        other => Err(Failure::usage(format!("no lock manager is called '{other}'; there are queue and batch"))),
    });
    let managers: Vec<(&String, Measure)> = managers.collect::<Result<_, _>>()?;
    arguments.results.prepare()?;
    let accesses = stream(&settings)?;
    let limit = memory::measure(Pages::Huge, 1, arguments.seed)?.one_line_m_per_s * 1e6;
    let mut runs: Vec<(String, Measured)> = Vec::new();
    for (manager, measure) in managers {
        let mut rounds = (0..3).map(|_| measure(&settings, &accesses)).collect::<Result<Vec<_>, _>>()?;
        rounds.sort_by(|a, b| a.rate.total_cmp(&b.rate));
        let wrong = rounds.iter().find_map(|round| round.wrong.clone());
        runs.push((manager.clone(), Measured { rate: rounds[1].rate, wrong }));
    }
    let environment = Environment::read();
    let objects: Vec<_> = runs
        .iter()
        .map(|(manager, Measured { rate, wrong })| {
            json!({
                "manager": manager, "throughput_locks_per_s": rate, "share_of_line_reads": rate / limit,
                "verified": wrong.is_none()
            })
        })
        .collect();
    let effective = json!({
        "workload": "locks", "mix": mix, "theta": settings.theta, "records": records, "batch": batch,
        "transactions": transactions, "seed": arguments.seed, "line_reads_per_s": limit
    });
    let report = json!({ "schema": 1, "environment": environment, "settings": effective, "runs": objects });
    let forms = Forms {
        json: format!("{report:#}\n"),
        csv: {
            let head = "manager,throughput_locks_per_s,share_of_line_reads,verified\n".to_string();
            runs.iter().fold(head, |text, (manager, Measured { rate, wrong })| {
                format!("{text}{manager},{rate:.0},{:.3},{}\n", rate / limit, wrong.is_none())
            })
        },
        text: runs.iter().fold(
            format!(
                "{}, commit {}\nmix {}, theta {}, {records} records, batch {batch}, {transactions} locks, seed {}; \
                 one core; median of 3\nindependent random line reads: {}/s\n\n",
                environment.cpu,
                environment.commit,
                mix,
                settings.theta,
                arguments.seed,
                chart::grouped(limit)
            ),
            |text, (manager, Measured { rate, wrong })| {
                format!(
                    "{text}{manager:<8} {:>14} locks/s   {:.2} of the line reads   {}\n",
                    chart::grouped(*rate),
                    rate / limit,
                    wrong.as_ref().map_or_else(|| "verified".to_string(), |wrong| format!("WRONG: {wrong}"))
                )
            },
        ),
        title: format!("locks, mix {}, theta {}", mix, settings.theta),
        unit: "locks a second on one core",
        bars: runs.iter().map(|(manager, measured)| (manager.clone(), measured.rate)).collect(),
    };
    arguments.results.give(&forms)?;
    runs.into_iter().try_for_each(|(manager, measured)| measured.verified(&manager).map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four transactions on one record: two readers between two writers.
    fn accesses() -> Vec<Access> {
        let modes = [LockMode::Exclusive, LockMode::Shared, LockMode::Shared, LockMode::Exclusive];
        modes.map(|mode| Access { record: 0, mode }).into()
    }

    #[test]
    fn wrong_grants_of_the_batch_manager_are_found() {
        let accesses = accesses();
        let check = |batches: &[&[(u32, u32)]]| {
            let mut order = Order::new(1, accesses.len());
            batches.iter().try_for_each(|batch| order.check(&accesses, batch.iter().copied()))
        };
        assert_eq!(check(&[&[(0, 0), (1, 0), (2, 0)], &[(3, 0)]]), Ok(()));
        assert_eq!(check(&[&[(0, 0), (2, 0)], &[(1, 0), (3, 0)]]), Ok(()), "readers have no order");
        let lost =
            |first, second| Err(format!("transactions {first} and {second} conflict on record 0 and lost their order"));
        assert_eq!(check(&[&[(1, 0)], &[(0, 0)]]), lost(1, 0));
        assert_eq!(check(&[&[(0, 0), (1, 1)]]), lost(0, 1), "a chain of its own");
        assert_eq!(check(&[&[(0, 0)], &[(3, 0)], &[(2, 0)]]), lost(3, 2));
        assert_eq!(check(&[&[(0, 0)], &[(0, 0)]]), Err("transaction 0 was granted twice".into()));
        assert_eq!(check(&[&[]]), Err("a batch came out empty while transactions wait".into()));
    }

    #[test]
    fn wrong_grants_of_the_queue_manager_are_found() {
        use Event::{Granted, Released};
        let accesses = accesses();
        let check = |events: &[Event]| {
            let mut holders = Holders::new(1, &accesses);
            events.iter().for_each(|event| holders.note(*event));
            holders.end()
        };
        let sound =
            [Granted(0), Released(0), Granted(2), Granted(1), Released(1), Released(2), Granted(3), Released(3)];
        assert_eq!(check(&sound), Ok(()));
        assert_eq!(check(&sound[..7]), Err("1 of 4 locks were not released".into()));
        for (events, wrong) in [
            (&[Granted(0), Granted(1)][..], "transaction 1 was granted the lock of record 0 beside others"),
            (&[Granted(1), Granted(3)], "transaction 3 was granted the lock of record 0 beside others"),
            (&[Granted(3), Released(3), Granted(2)], "transactions 3 and 2 conflict on record 0 and lost their order"),
            (&[Granted(1), Released(1), Granted(0)], "transactions 1 and 0 conflict on record 0 and lost their order"),
            (&[Granted(0), Released(0), Granted(0)], "transaction 0 was granted the lock of record 0 twice"),
            (&[Released(0)], "transaction 0 released the lock of record 0 and did not hold it"),
        ] {
            assert_eq!(check(events), Err(wrong.to_string()), "{events:?}");
        }
    }

    #[test]
    fn both_managers_are_measured_and_found_right() {
        let settings = Settings { records: 50, transactions: 5_000, batch: 300, theta: 0.9, writes: 0.5, seed: 1 };
        let accesses = stream(&settings).unwrap();
        for measured in [batch(&settings, &accesses), queue(&settings, &accesses)] {
            let Measured { rate, wrong } = measured.unwrap();
            assert_eq!((wrong, rate > 0.0), (None, true));
        }
    }
}
