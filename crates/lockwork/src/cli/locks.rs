//! `lockwork bench locks`: lock and release only, no execution (HOBBES, figure 3.9).

use std::collections::VecDeque;
use std::time::Instant;

use lockwork_locking::batch::{Access, BatchConfig, BatchLocks, SingleSets};
use lockwork_locking::queue::QueueLocks;
use lockwork_locking::{LockId, LockMode, Owner, Request};
use lockwork_workload::random::Random;
use lockwork_workload::zipf::{Chooser, Distribution};

use super::{Failure, bench};

/// Requests that the queue manager looks ahead.
const AHEAD: usize = 16;

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
    let chooser = chooser.map_err(bench::refused)?;
    let mut random = Random::new(settings.seed);
    let mut access = || {
        let record = chooser.next(&mut random) as u32;
        let mode = if random.unit() < settings.writes { LockMode::Exclusive } else { LockMode::Shared };
        Access { record, mode }
    };
    Ok((0..settings.transactions).map(|_| access()).collect())
}

/// Locks granted and released a second by the batch manager, checked: everybody is granted once, and on every record
/// whoever conflicts comes in the order of the input.
pub(super) fn batch(settings: &Settings, accesses: &[Access]) -> Result<f64, Failure> {
    let config = BatchConfig::new(settings.records, settings.batch);
    let mut locks = BatchLocks::new(config).map_err(Failure::usage)?;
    let sets = SingleSets(accesses);
    let mut stream = 0..accesses.len() as u32;
    let mut seconds = 0.0;
    let mut order = Order::new(settings.records, accesses.len());
    while order.granted < accesses.len() {
        let start = Instant::now();
        let plan = locks.fill(&sets, &mut stream).map_err(Failure::usage)?;
        seconds += start.elapsed().as_secs_f64();
        let plan_chains = plan.grants.iter().map(|grant| (grant.transaction, grant.chain));
        order.check(accesses, plan_chains)?;
    }
    Ok(accesses.len() as f64 / seconds)
}

/// Checks that conflicting transactions keep their order.
struct Order {
    granted: usize,
    batch: u32,
    /// Of every record: batch and chain of the last grant, whether it was exclusive, and its transaction.
    last: Vec<(u32, u32, bool, u32)>,
}

impl Order {
    fn new(records: u32, transactions: usize) -> Self {
        debug_assert!(transactions <= u32::MAX as usize);
        Self { granted: 0, batch: 0, last: vec![(0, 0, false, 0); records as usize] }
    }

    fn check(&mut self, accesses: &[Access], grants: impl Iterator<Item = (u32, u32)>) -> Result<(), Failure> {
        self.batch += 1;
        let before = self.granted;
        for (transaction, chain) in grants {
            let access = accesses[transaction as usize];
            let exclusive = access.mode == LockMode::Exclusive;
            let last = &mut self.last[access.record as usize];
            let conflicts = last.0 > 0 && (exclusive || last.2);
            let ordered = last.3 < transaction && (last.0 < self.batch || last.1 == chain);
            if conflicts && !ordered {
                return Err(Failure::Check(format!(
                    "transactions {} and {transaction} conflict on record {} and lost their order",
                    last.3, access.record
                )));
            }
            *last = (self.batch, chain, exclusive, transaction);
            self.granted += 1;
        }
        if self.granted == before {
            return Err(Failure::Check("a batch came out empty while transactions wait".into()));
        }
        Ok(())
    }
}

/// Locks granted and released a second by the queue manager: a batch is locked, then released as it becomes ready.
pub(super) fn queue(settings: &Settings, accesses: &[Access]) -> Result<f64, Failure> {
    let requests: Vec<Request> =
        accesses.iter().map(|access| Request { id: LockId(access.record.into()), mode: access.mode }).collect();
    let mut locks = QueueLocks::dense(settings.records).map_err(Failure::usage)?;
    let mut ready = VecDeque::with_capacity(2 * settings.batch as usize);
    let mut released = 0;
    let start = Instant::now();
    for requests in requests.chunks(settings.batch as usize) {
        for (at, request) in requests.iter().enumerate() {
            if let Some(ahead) = requests.get(at + AHEAD) {
                locks.prefetch(std::slice::from_ref(ahead));
            }
            let owner = Owner(at as u32);
            if locks.lock(owner, std::slice::from_ref(request)).map_err(Failure::usage)? {
                ready.push_back(owner);
            }
        }
        while let Some(owner) = ready.pop_front() {
            locks.release(owner, |next| ready.push_back(next)).map_err(Failure::usage)?;
            released += 1;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    if released != accesses.len() {
        return Err(Failure::Check(format!("{released} of {} locks were granted and released", accesses.len())));
    }
    Ok(accesses.len() as f64 / seconds)
}
