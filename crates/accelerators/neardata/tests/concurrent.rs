//! Random transactions on several threads, checked against what their isolation promises.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::{Setup, all, at_least, insert, number, numbers, raise};
use lockwork_conformance::engines::{MIXES, PROCEDURES, ROWS, Random, accounts, fill, prepared};
use lockwork_engine::replay::replay;
use lockwork_engine::{EngineKind, Options, SerialOrder, create};
use lockwork_neardata::device::{DeviceError, Fold};
use lockwork_neardata::host::{Config, Host, HostError, Isolation};
use lockwork_neardata::record::Timestamp;
use lockwork_procedure::assembly::assemble;

const TIMEOUT: Duration = Duration::from_millis(200);

/// A host that flushes all the time and caches next to nothing.
fn restless(isolation: Isolation) -> (Setup, Host) {
    let mut setup = Setup::new(isolation, TIMEOUT);
    let config = Config { flush_bytes: 2_000, cache_bytes: 16 * 500, max_retries: 10_000, ..setup.config };
    setup.config = config;
    let host = setup.open().unwrap();
    (setup, host)
}

/// A block's address, for the one thread that runs it.
struct Block(*mut u8, usize);

// SAFETY: each block is taken by one thread.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

#[test]
fn serializable_calls_end_as_in_the_order_of_their_stamps() {
    for (seed, (names, ordered)) in MIXES.iter().enumerate() {
        let (setup, host) = restless(Isolation::Serializable);
        let schema = accounts(*ordered);
        host.create_table(&schema).unwrap();
        for source in PROCEDURES.iter().filter(|source| *ordered || !source.contains("scan c0")) {
            let ours = assemble(source, [schema.clone()].as_slice()).unwrap().procedure;
            host.register(ours).unwrap();
        }
        let mut oracle = prepared(&|| create(EngineKind::SERIAL, Options::default()), *ordered);
        {
            let mut worker = host.worker().unwrap();
            let mut transaction = worker.begin();
            let load = &mut |_: &str, image: &[u8]| {
                let values = transaction.insert(0, &image[..8]).unwrap().unwrap();
                values.copy_from_slice(&image[8..]);
            };
            oracle.export(load).unwrap();
            transaction.commit().unwrap();
        }
        let batch = fill(&*oracle, &mut Random(seed as u64), names, 900);
        let blocks: Vec<Block> = (0..batch.len()).map(|at| Block(batch.block_ptr(at), batch.stride())).collect();
        let (next, done) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let run = || {
                let mut worker = host.worker().unwrap();
                while let Some(block) = blocks.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    // SAFETY: the block lies in the batch, and no other thread has taken it.
                    worker.call(unsafe { std::slice::from_raw_parts_mut(block.0, block.1) }).unwrap();
                }
            };
            let workers = [scope.spawn(run), scope.spawn(run), scope.spawn(run)];
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    host.flush_all().unwrap();
                    host.collect().unwrap();
                    std::thread::yield_now();
                }
            });
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            done.store(true, Ordering::Relaxed);
        });
        let counters = host.counters();
        assert_eq!(counters.failed, 0, "{names:?}: {counters:?}");
        replay(&mut *oracle, &batch, 0, SerialOrder::Stamp).unwrap_or_else(|error| panic!("{names:?}: {error}"));
        host.flush_all().unwrap();
        let mut expected = BTreeMap::new();
        oracle.export(&mut |_, image| _ = expected.insert(image[..8].to_vec(), image.to_vec())).unwrap();
        assert_eq!(setup.device.contents(0, u64::MAX), expected, "{names:?}");
        assert_eq!(setup.locks.held(), 0);
        assert!(expected.len() <= ROWS as usize);
    }
}

/// What a transaction did, to be looked at when all have ended.
#[derive(Default)]
struct Done {
    snapshot: Timestamp,
    /// Zero if it wrote nothing.
    committed: Timestamp,
    reads: Vec<(i64, Option<i64>)>,
    scan: Option<(i64, Vec<(i64, i64)>)>,
    writes: BTreeMap<i64, Option<i64>>,
    /// A bulk update: where value >= least, by.
    bulk: Option<(i64, i64)>,
}

const KEYS: i64 = 12;

fn transaction(host: &Host, random: &mut Random) -> Option<Done> {
    let mut worker = host.worker().unwrap();
    let mut transaction = worker.begin();
    let mut done = Done { snapshot: transaction.snapshot(), ..Done::default() };
    for _ in 0..1 + random.below(4) {
        let id = random.below(KEYS as u64) as i64;
        let (key, value) = (id.to_le_bytes(), random.below(1_000) as i64);
        let own = done.writes.contains_key(&id);
        match random.below(6) {
            0..=2 if !own => {
                let image = transaction.get(0, &key).ok()?;
                done.reads.push((id, image.map(|image| number(image, 8))));
            }
            3 => {
                if let Some(values) = transaction.update(0, &key).ok()? {
                    values[..8].copy_from_slice(&value.to_le_bytes());
                    done.writes.entry(id).and_modify(|known| *known = known.map(|_| value)).or_insert(Some(value));
                }
            }
            4 => {
                if let Some(values) = transaction.insert(0, &key).ok()? {
                    values[..8].copy_from_slice(&value.to_le_bytes());
                    done.writes.insert(id, Some(value));
                }
            }
            5 if !own && transaction.remove(0, &key).ok()? => _ = done.writes.insert(id, None),
            _ => {}
        }
    }
    if random.below(3) == 0 && done.writes.is_empty() {
        let mut found = Vec::new();
        let from = random.below(KEYS as u64) as i64;
        let mut note = |image: &[u8]| found.push((number(image, 0), number(image, 8)));
        transaction.scan(0, &from.to_le_bytes(), 5, &mut note).ok()?;
        done.scan = Some((from, found));
    }
    let stamp = transaction.commit().ok()?;
    done.committed = if stamp % 2 == 0 { stamp / 2 } else { 0 };
    assert_eq!(done.committed == 0, done.writes.is_empty());
    Some(done)
}

fn bulk(host: &Host, random: &mut Random) -> Option<Done> {
    let mut worker = host.worker().unwrap();
    let (least, by) = (random.below(1_000) as i64, 1 + random.below(5) as i64);
    let (program, block) = raise(least, by);
    let update = worker.bulk_update(0, &program, &block).ok()?;
    let (snapshot, taken) = (update.snapshot(), update.ran().taken);
    let committed = if random.below(4) == 0 { return None } else { update.commit().unwrap() };
    (taken > 0).then(|| Done { snapshot, committed, bulk: Some((least, by)), ..Done::default() })
}

#[test]
fn a_snapshot_transaction_reads_its_snapshot_and_the_first_updater_wins() {
    for seed in 0..4 {
        let (setup, host) = restless(Isolation::Snapshot);
        host.create_table(&numbers()).unwrap();
        insert(&host, (0..KEYS).step_by(2).map(|id| (id, id * 100)));
        let first = host.newest();
        let log = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (host, log) = (&host, &log);
                scope.spawn(move || {
                    let mut random = Random(seed * 10 + thread);
                    for _ in 0..400 {
                        let done = if thread == 3 { bulk(host, &mut random) } else { transaction(host, &mut random) };
                        if thread == 0 {
                            host.collect().unwrap();
                        }
                        log.lock().unwrap().extend(done);
                    }
                });
            }
        });
        let log = log.into_inner().unwrap();
        let bulks = log.iter().filter(|done| done.bulk.is_some()).count();
        assert!(log.len() > 500 && bulks > 20, "{} transactions committed, {bulks} of them bulk updates", log.len());
        check_log(&host, log, first);
        assert_eq!(setup.locks.held(), 0);
    }
}

/// Plays the log in the order of commits and compares every read with the state as of its snapshot.
fn check_log(host: &Host, log: Vec<Done>, first: Timestamp) {
    let initial: BTreeMap<i64, i64> = (0..KEYS).step_by(2).map(|id| (id, id * 100)).collect();
    let mut states: BTreeMap<Timestamp, BTreeMap<i64, i64>> = BTreeMap::from([(first, initial)]);
    let mut writers: Vec<&Done> = log.iter().filter(|done| done.committed != 0).collect();
    writers.sort_by_key(|done| done.committed);
    let mut last: BTreeMap<i64, Timestamp> = BTreeMap::new();
    for done in writers {
        let mut state = states.values().next_back().unwrap().clone();
        let mut writes = done.writes.clone();
        if let Some((least, by)) = done.bulk {
            let (_, seen) = states.range(..=done.snapshot).next_back().unwrap();
            let taken = seen.iter().filter(|(_, value)| **value >= least);
            writes.extend(taken.map(|(id, value)| (*id, Some(value + by))));
        }
        for (id, value) in writes {
            let before = last.insert(id, done.committed).unwrap_or(first);
            assert!(before <= done.snapshot, "key {id} was updated by {before} and by one that saw {}", done.snapshot);
            match value {
                Some(value) => _ = state.insert(id, value),
                None => _ = state.remove(&id),
            }
        }
        assert_eq!(states.insert(done.committed, state), None, "two commits of one timestamp");
    }
    for done in &log {
        let (_, seen) = states.range(..=done.snapshot).next_back().unwrap();
        for (id, value) in &done.reads {
            assert_eq!(seen.get(id), value.as_ref(), "key {id} as of {}", done.snapshot);
        }
        if let Some((from, found)) = &done.scan {
            let expected: Vec<(i64, i64)> = seen.range(from..).take(5).map(|(id, value)| (*id, *value)).collect();
            assert_eq!(found, &expected, "from {from} as of {}", done.snapshot);
        }
    }
    assert_eq!(&all(host), states.values().next_back().unwrap());
}

#[test]
fn transfers_and_bulk_updates_keep_every_sum_right() {
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let (setup, host) = restless(isolation);
        host.create_table(&numbers()).unwrap();
        insert(&host, (0..20).map(|id| (id, 1_000)));
        let source = "procedure transfer\ntable numbers\nparam from: i64\nparam to: i64\nparam amount: i64
            update c0, numbers, [from]\nupdate c1, numbers, [to]\nret r1, c0\nret r2, c1\nload r3, [amount]
            loadr r4, r1[numbers.value]\nsub r4, r4, r3\nstorer r4, r1[numbers.value]
            loadr r5, r2[numbers.value]\nadd r5, r5, r3\nstorer r5, r2[numbers.value]\ncommit";
        let transfer = host.register(common::procedure(source)).unwrap();
        let raised = AtomicU64::new(0);
        let sums = [const { AtomicU64::new(0) }; 2];
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let host = &host;
                scope.spawn(move || {
                    let (mut worker, mut random) = (host.worker().unwrap(), Random(thread));
                    for _ in 0..400 {
                        let mut block = common::block(&[0, 1, 2].map(|_| random.below(20) as i64), 64);
                        block[..4].copy_from_slice(&transfer.to_le_bytes());
                        worker.call(&mut block).unwrap();
                    }
                });
            }
            scope.spawn(|| {
                let (mut worker, mut random) = (host.worker().unwrap(), Random(9));
                let (everything, at_most) = at_least(i64::MIN);
                let folds = [("value".to_string(), Fold::Sum)];
                for turn in 0..60 {
                    let (program, block) = raise(900 + random.below(400) as i64, 3);
                    let updated = match turn % 3 {
                        0 => worker.bulk_update_on_host(0, &program, &block).map(|done| done.0.taken),
                        _ => worker.bulk_update(0, &program, &block).and_then(|update| {
                            let taken = update.ran().taken;
                            update.commit().map(|_| taken)
                        }),
                    };
                    let more = 3 * match updated {
                        Ok(taken) => taken,
                        Err(HostError::Conflict(_)) => 0,
                        Err(HostError::Device(DeviceError::Conflict { .. } | DeviceError::Busy { .. })) => 0,
                        Err(other) => panic!("{other}"),
                    };
                    let raised = raised.fetch_add(more, Ordering::Relaxed) + more;
                    // A serializable one waits for the writers in the table, but not for ever.
                    if let Ok(sum) = worker.aggregate(0, &everything, &at_most, &folds) {
                        assert_eq!(sum.values, Some(vec![20_000 + raised as i64]));
                        sums[0].fetch_add(1, Ordering::Relaxed);
                    }
                    let (mut sum, mut transaction) = (0, worker.begin());
                    if transaction.scan(0, &0_i64.to_le_bytes(), 100, &mut |image| sum += number(image, 8)).is_ok() {
                        assert_eq!(sum, 20_000 + raised as i64);
                        sums[1].fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        });
        let sums = sums.map(AtomicU64::into_inner);
        assert!(sums.iter().all(|&sums| sums > 0), "no sum was compared: {sums:?}");
        let counters = host.counters();
        assert_eq!((counters.committed >= 800, counters.failed), (true, 0), "{counters:?}");
        assert!(counters.bulk_committed > 0 && raised.load(Ordering::Relaxed) > 0, "{counters:?}");
        assert_eq!(all(&host).values().sum::<i64>(), 20_000 + raised.load(Ordering::Relaxed) as i64);
        assert_eq!(setup.locks.held(), 0);
    }
}

/// Ends what goes on beside, however the test ends.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn what_a_flush_stores_is_the_state_of_one_moment() {
    const KEYS: i64 = 40;
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let setup = Setup::new(isolation, TIMEOUT);
        let host = setup.open().unwrap();
        host.create_table(&numbers()).unwrap();
        insert(&host, (0..KEYS).map(|id| (id, 0)));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut worker = host.worker().unwrap();
                for value in 1.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let mut transaction = worker.begin();
                    for id in 0..KEYS {
                        let values = transaction.update(0, &id.to_le_bytes()).unwrap().expect("the row exists");
                        values[..8].copy_from_slice(&i64::to_le_bytes(value));
                    }
                    transaction.commit().unwrap();
                }
            });
            let _stop = Stop(&stop);
            let mut moments = BTreeSet::new();
            while moments.len() < 200 {
                host.flush_all().unwrap();
                let stored = setup.stored(0);
                let values: BTreeSet<i64> = stored.values().copied().collect();
                assert_eq!((stored.len() as i64, values.len()), (KEYS, 1), "{values:?}");
                moments.extend(values);
            }
        });
    }
}
