//! Lock and release only, no execution (HOBBES figure 3.9): the batch manager beside the queue manager and beside the
//! machine's independent random one-line reads, in one run.
//!
//! `cargo run --release -p lockwork-locking --example rates [seed]`

use lockwork_locking::batch::{Access, BatchConfig, BatchLocks, SingleSets};
use lockwork_locking::queue::QueueLocks;
use lockwork_locking::{LockId, LockMode, Owner, Request};
use lockwork_memory::{Buffer, Pages, prefetch};
use lockwork_random::Random;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

const RECORDS: u32 = 1_000_000;
const BATCH: u32 = 131_072;
const TRANSACTIONS: u32 = 64 * BATCH;
const REPETITIONS: usize = 3;

/// Zipf ranks by inversion (Gray et al. 1994), spread over the records by a multiplication modulo their number.
struct Zipf {
    theta: f64,
    alpha: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    fn new(theta: f64) -> Self {
        let count = f64::from(RECORDS);
        let zeta: f64 = (1..=RECORDS).map(|rank| f64::from(rank).powf(-theta)).sum();
        let two = 1.0 + 0.5f64.powf(theta);
        let eta = (1.0 - (2.0 / count).powf(1.0 - theta)) / (1.0 - two / zeta);
        Self { theta, alpha: 1.0 / (1.0 - theta), zeta, eta }
    }

    fn record(&self, random: &mut Random) -> u32 {
        let unit = random.unit();
        let scaled = unit * self.zeta;
        let rank = if scaled < 1.0 {
            0
        } else if scaled < 1.0 + 0.5f64.powf(self.theta) {
            1
        } else {
            (f64::from(RECORDS) * (self.eta * unit - self.eta + 1.0).powf(self.alpha)) as u64
        };
        // 700,001 and one million have no common divisor: a permutation.
        (rank.min(u64::from(RECORDS) - 1) * 700_001 % u64::from(RECORDS)) as u32
    }
}

fn stream(theta: f64, writes: f64, seed: u64) -> Vec<Access> {
    let zipf = Zipf::new(theta);
    let mut random = Random(seed);
    let mut access = || {
        let mode = if random.unit() < writes { LockMode::Exclusive } else { LockMode::Shared };
        Access { record: zipf.record(&mut random), mode }
    };
    (0..TRANSACTIONS).map(|_| access()).collect()
}

/// What one run of the batch manager did.
struct BatchRun {
    time: Duration,
    batches: u32,
    chained: u64,
    deferred: u64,
    longest: u32,
}

fn run_batch(accesses: &[Access]) -> BatchRun {
    let mut locks = BatchLocks::new(BatchConfig::new(RECORDS, BATCH)).unwrap();
    let sets = SingleSets(accesses);
    let mut stream = 0..TRANSACTIONS;
    let mut run = BatchRun { time: Duration::ZERO, batches: 0, chained: 0, deferred: 0, longest: 0 };
    let mut granted = 0;
    while granted < TRANSACTIONS {
        let start = Instant::now();
        let plan = locks.fill(&sets, &mut stream).unwrap();
        run.time += start.elapsed();
        granted += plan.grants.len() as u32;
        run.batches += 1;
        let mut lengths = vec![0; plan.grants.len()];
        for grant in plan.grants {
            lengths[grant.chain as usize] += 1;
            run.longest = run.longest.max(lengths[grant.chain as usize]);
        }
        run.chained += lengths.iter().filter(|&&length| length > 1).map(|&length| u64::from(length)).sum::<u64>();
        run.deferred += locks.deferred().len() as u64;
    }
    assert_eq!(granted, TRANSACTIONS);
    run
}

/// A window of a batch is in flight: what is ready is released in the order in which it got ready, and as many new
/// transactions are locked.
fn run_queue(requests: &[Request], hashed: bool, ahead: usize) -> Duration {
    let mut locks = if hashed { QueueLocks::hashed(BATCH) } else { QueueLocks::dense(RECORDS).unwrap() };
    let mut ready = VecDeque::with_capacity(2 * BATCH as usize);
    let mut released = 0u32;
    let start = Instant::now();
    for (batch, requests) in requests.chunks(BATCH as usize).enumerate() {
        for (at, request) in requests.iter().enumerate() {
            if ahead > 0 && at + ahead < requests.len() {
                locks.prefetch(std::slice::from_ref(&requests[at + ahead]));
            }
            let owner = Owner(at as u32);
            if locks.lock(owner, std::slice::from_ref(request)).unwrap() {
                ready.push_back(owner);
            }
        }
        while let Some(owner) = ready.pop_front() {
            locks.release(owner, |next| ready.push_back(next)).unwrap();
            released += 1;
        }
        assert_eq!(released as usize, (batch * BATCH as usize) + requests.len());
    }
    start.elapsed()
}

fn line_reads_per_s(seed: u64) -> f64 {
    const LINES: u64 = 1 << 24;
    const READS: usize = 1 << 23;
    let memory = Buffer::zeroed(LINES as usize * 64, Pages::Huge, "lines").unwrap();
    // SAFETY: the buffer has this many bytes; writing makes the pages real.
    unsafe { memory.as_ptr().write_bytes(1, LINES as usize * 64) };
    let mut random = Random(seed);
    let order: Vec<u32> = (0..READS + 32).map(|_| (random.next_u64() % LINES) as u32).collect();
    let address = |line: u32| memory.as_ptr().wrapping_add(line as usize * 64);
    let start = Instant::now();
    let mut sum = 0u64;
    for at in 0..READS {
        prefetch(address(order[at + 32]));
        // SAFETY: every line number is below LINES.
        sum += u64::from(unsafe { address(order[at]).read() });
    }
    let time = start.elapsed();
    assert_eq!(std::hint::black_box(sum), READS as u64);
    READS as f64 / time.as_secs_f64()
}

fn millions(time: Duration) -> f64 {
    f64::from(TRANSACTIONS) / time.as_secs_f64() / 1e6
}

fn main() {
    let seed = std::env::args().nth(1).map_or(42, |text| text.parse().expect("the seed is a number"));
    let best = |run: &dyn Fn() -> Duration| (0..REPETITIONS).map(|_| run()).min().unwrap();
    let lines = (0..REPETITIONS).map(|_| line_reads_per_s(seed)).fold(0.0, f64::max) / 1e6;
    println!("seed {seed}, records {RECORDS}, batch {BATCH}, transactions {TRANSACTIONS}, best of {REPETITIONS}");
    println!("independent random one-line reads: {lines:.1} M/s");
    println!(
        "theta mix | batch M/s  of line reads | batches chained% deferred% longest | queue M/s  prefetched  hashed | ratio"
    );
    for (theta, mix, writes) in [(0.5, 'a', 0.5), (0.5, 'b', 0.05), (0.99, 'a', 0.5), (0.99, 'b', 0.05)] {
        let accesses = stream(theta, writes, seed);
        let requests: Vec<_> = accesses.iter().map(|a| Request { id: LockId(a.record.into()), mode: a.mode }).collect();
        let batch = (0..REPETITIONS).map(|_| run_batch(&accesses)).min_by_key(|run| run.time).unwrap();
        let rate = millions(batch.time);
        let share = |count: u64| 100.0 * count as f64 / f64::from(TRANSACTIONS);
        let queue = millions(best(&|| run_queue(&requests, false, 0)));
        let prefetched = millions(best(&|| run_queue(&requests, false, 16)));
        let hashed = millions(best(&|| run_queue(&requests, true, 16)));
        println!(
            "{theta:5} {mix:3} | {rate:9.1} {:14.2} | {:7} {:8.2} {:9.2} {:7} | {queue:9.1} {prefetched:11.1} {hashed:7.1} | {:.1}x",
            rate / lines,
            batch.batches,
            share(batch.chained),
            share(batch.deferred),
            batch.longest,
            rate / prefetched.max(queue),
        );
    }
}
