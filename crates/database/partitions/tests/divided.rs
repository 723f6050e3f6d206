//! Engines that run one order together: they have together what one engine has, whoever is away for a while or begins
//! again.

#[path = "common/parts.rs"]
#[allow(dead_code, reason = "every test takes what it needs")]
mod parts;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

use lockwork_conformance::engines::{MIXES, Random, check, check_replaced, define, fill, prepared};
use lockwork_engine::{Divided, Engine, EngineKind, Interrupt, Options, Place, create};
use lockwork_partitions::divided::{DividedEngine, KEPT_BYTES};
use lockwork_procedure::block::{Batch, Status};
use lockwork_procedure::request::RequestId;
use parts::{Parts, listeners, offsets, part, some};

fn every_mix(count: usize) {
    for (number, (names, ordered)) in MIXES.iter().enumerate() {
        let what = format!("{count} parts");
        check(&what, &|| Ok(Box::new(Parts::new(count))), names, *ordered, number as u64);
    }
}

#[test]
fn one_part_is_equivalent_to_batch_order() {
    every_mix(1);
}

#[test]
fn two_parts_are_equivalent_to_batch_order() {
    every_mix(2);
}

#[test]
fn five_parts_are_equivalent_to_batch_order() {
    every_mix(5);
}

/// Rows, as an engine tells them.
type Rows = Vec<(String, Vec<u8>)>;

fn rows(engine: &dyn Engine) -> Rows {
    let mut rows = Vec::new();
    engine.export(&mut |table, image| rows.push((table.to_string(), image.to_vec()))).unwrap();
    rows
}

fn copy(batch: &Batch) -> Batch {
    let mut copy = Batch::new(batch.stride() as u32, batch.len()).unwrap();
    for block in batch.blocks() {
        copy.push(block.procedure()).unwrap().bytes().copy_from_slice(block.bytes());
    }
    copy
}

/// An order for all parts, and what serial replay makes of it.
struct World {
    listeners: Vec<TcpListener>,
    addresses: Vec<String>,
    batches: Vec<(Batch, Place)>,
    first: Rows,
    kept_bytes: usize,
    /// Of everybody who waits.
    interrupts: Mutex<Vec<Interrupt>>,
}

/// One that panics leaves nobody waiting for it.
struct Guard<'a>(&'a World);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.interrupts.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(Interrupt::set);
        }
    }
}

impl World {
    fn new(count: usize, seed: u64) -> (Self, Vec<Batch>, Rows) {
        let (listeners, addresses) = listeners(count);
        let mut oracle = prepared(&|| create(EngineKind::SERIAL, Options::default()), true);
        let (first, mut random) = (rows(&*oracle), Random(seed));
        let (mut batches, mut answers, mut stamp) = (Vec::new(), Vec::new(), 1);
        for number in 0..24 {
            let calls = 1 + random.below(40) as usize;
            let mut batch = fill(&*oracle, &mut random, MIXES[13].0, calls);
            for index in 0..batch.len() {
                // Every third call wants to be known by everybody.
                if index % 3 == 0 {
                    batch.set_request(index, RequestId::new(stamp + index as u64, [0; 10]));
                }
            }
            batches.push((copy(&batch), Place { stamp, home: number % count as u16 }));
            stamp += batch.len() as u64;
            oracle.submit(batch).unwrap();
            answers.push(oracle.complete().unwrap().unwrap().batch);
        }
        let last = rows(&*oracle);
        let interrupts = Mutex::default();
        (Self { listeners, addresses, batches, first, kept_bytes: KEPT_BYTES, interrupts }, answers, last)
    }

    /// A part with these rows.
    fn begin(&self, number: usize, rows: &Rows) -> DividedEngine {
        let mut engine = part(number, &self.listeners[number], &self.addresses, self.kept_bytes);
        define(&mut engine, true);
        rows.iter().for_each(|(table, image)| engine.load(table, image).unwrap());
        self.interrupts.lock().unwrap().push(engine.interrupt());
        engine
    }

    /// Runs the batches from number `from` on, and compares what is known of them.
    fn run(&self, engine: &mut DividedEngine, from: usize, until: usize, answers: &[Batch]) {
        let _guard = Guard(self);
        let all = self.batches.iter().zip(answers).enumerate().take(until).skip(from);
        for (number, ((batch, place), answers)) in all {
            // Some nodes take everything, and some what they have to.
            let offsets = match (number + usize::from(engine.part().0)) % 3 {
                0 => (0..batch.len() as u32).collect(),
                _ => offsets(engine, batch, *place),
            };
            if offsets.is_empty() {
                engine.begin(place.stamp + batch.len() as u64).unwrap();
                continue;
            }
            engine.submit_some(some(batch, &offsets), offsets.clone(), *place).unwrap();
            let ran = engine.complete().unwrap().unwrap().batch;
            for (at, (here, offset)) in ran.blocks().zip(offsets).enumerate() {
                let there = answers.block(offset as usize);
                if here.status() == Some(Status::Pending) {
                    assert!(ran.request(at).is_none() && place.home != engine.part().0);
                    continue;
                }
                let stamp = place.stamp + u64::from(offset);
                assert_eq!(here.serial(), stamp, "what is passed over keeps its number");
                assert_eq!((here.status(), here.abort_code()), (there.status(), there.abort_code()), "{number}");
                let (start, length) = engine.procedure(here.procedure()).unwrap().results;
                assert_eq!(here.bytes()[start..start + length], there.bytes()[start..start + length], "{number}");
            }
        }
    }
}

fn sorted(mut rows: Rows) -> Rows {
    rows.sort();
    rows
}

/// After so many batches all parts save their rows.
const SAVE: usize = 5;

/// By part: rows that were saved before a batch.
type Saved = Mutex<Vec<BTreeMap<usize, Rows>>>;

/// Runs a part that ends before or in these batches, whatever it is at, and begins again where all have saved.
fn live(
    world: &World,
    number: usize,
    stops: [usize; 2],
    answers: &[Batch],
    saved: &Saved,
    done: &Sender<()>,
    all: &Receiver<()>,
) -> Rows {
    let (mut engine, mut at) = (world.begin(number, &world.first), 0);
    for stop in stops {
        while at < stop {
            if at % SAVE == 0 {
                saved.lock().unwrap()[number].insert(at, rows(&engine));
            }
            world.run(&mut engine, at, at + 1, answers);
            at += 1;
        }
        if at < world.batches.len() {
            // It may be in the middle of the next one when it ends.
            let (batch, place) = &world.batches[at];
            engine.submit_at(copy(batch), *place).unwrap();
        }
        drop(engine);
        let saved = saved.lock().unwrap();
        let newest = saved[number].iter().rev().find(|(at, _)| saved.iter().all(|other| other.contains_key(at)));
        let (from, rows) = newest.map_or((0, &world.first), |(at, rows)| (*at, rows));
        engine = world.begin(number, rows);
        at = from;
    }
    for at in at..world.batches.len() {
        if at % SAVE == 0 {
            saved.lock().unwrap()[number].insert(at, rows(&engine));
        }
        world.run(&mut engine, at, at + 1, answers);
    }
    // Others may still need what it says.
    done.send(()).unwrap();
    all.recv().unwrap();
    rows(&engine)
}

#[test]
fn parts_that_end_and_begin_again_hear_once_more_what_they_need() {
    for seed in 0..12 {
        let count = 2 + seed as usize % 3;
        let (world, answers, last) = World::new(count, seed);
        let mut random = Random(seed + 100);
        let (done, ended) = channel();
        let saved = Mutex::new(vec![BTreeMap::new(); count]);
        let all: Vec<Rows> = std::thread::scope(|scope| {
            let mut parts = Vec::new();
            for number in 0..count {
                let mut stop = || random.below(world.batches.len() as u64 + 1) as usize;
                let stops = [stop(), stop()];
                let (world, answers, saved, done) = (&world, &answers, &saved, done.clone());
                let (go, gone) = channel();
                let work = move || live(world, number, stops, answers, saved, &done, &gone);
                parts.push((scope.spawn(work), go));
            }
            (0..count).for_each(|_| ended.recv().unwrap());
            parts.iter().for_each(|(_, go)| go.send(()).unwrap());
            parts.into_iter().map(|(part, _)| part.join().unwrap()).collect()
        });
        assert_eq!(sorted(all.concat()), sorted(last), "seed {seed}");
    }
}

#[test]
fn who_needs_what_was_dropped_is_told_why_it_waits() {
    let (mut world, answers, _) = World::new(2, 5);
    world.kept_bytes = 1;
    let half = world.batches.len() / 2;
    let mut engines: Vec<_> = (0..2).map(|number| Some(world.begin(number, &world.first))).collect();
    std::thread::scope(|scope| {
        for engine in engines.iter_mut().flatten() {
            scope.spawn(|| world.run(engine, 0, half, &answers));
        }
    });
    engines[1] = None;
    let mut again = world.begin(1, &world.first);
    let (others, interrupt) = (engines[0].as_ref().unwrap().others(), again.interrupt());
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            for (batch, place) in &world.batches {
                again.submit_at(copy(batch), *place).unwrap();
            }
            world.batches.iter().try_for_each(|_| again.complete().map(drop))
        });
        let told = |text: &Option<String>| text.as_ref().is_some_and(|text| text.contains("away for too long"));
        while !told(&others.status()[1].1) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        interrupt.set();
        assert!(waits.join().unwrap().unwrap_err().to_string().contains("interrupted"));
    });
}

#[test]
fn what_nobody_begins_before_is_forgotten() {
    let (world, answers, _) = World::new(2, 6);
    let mut engines: Vec<_> = (0..2).map(|number| world.begin(number, &world.first)).collect();
    let half = world.batches.len() / 2;
    let run = |engines: &mut Vec<DividedEngine>, from, until| {
        std::thread::scope(|scope| {
            let each = |engine| scope.spawn(|| world.run(engine, from, until, &answers));
            engines.iter_mut().map(each).for_each(drop);
        });
    };
    run(&mut engines, 0, half);
    let saved = rows(&engines[1]);
    for engine in &mut engines {
        engine.forget(world.batches[half].1.stamp).unwrap();
    }
    run(&mut engines, half, half + 3);
    engines.pop();
    engines.push(world.begin(1, &saved));
    let (first, rest) = engines.split_at_mut(1);
    std::thread::scope(|scope| {
        scope.spawn(|| world.run(&mut first[0], half + 3, world.batches.len(), &answers));
        scope.spawn(|| world.run(&mut rest[0], half, world.batches.len(), &answers));
    });
}

#[test]
fn who_began_with_an_older_checkpoint_than_another_is_told_to_begin_again() {
    let (world, answers, _) = World::new(2, 7);
    let mut engines: Vec<_> = (0..2).map(|number| world.begin(number, &world.first)).collect();
    std::thread::scope(|scope| {
        for engine in &mut engines {
            scope.spawn(|| world.run(engine, 0, 4, &answers));
        }
    });
    let saved = rows(&engines[1]);
    engines.clear();
    // It may learn that before its first batch, or while that waits.
    for pause in [0, 200] {
        let mut older = world.begin(0, &world.first);
        let mut newer = world.begin(1, &saved);
        newer.begin(world.batches[4].1.stamp).unwrap();
        let (batch, place) = &world.batches[0];
        older.begin(place.stamp).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(pause));
        older.submit_at(copy(batch), *place).unwrap();
        let told = older.complete().unwrap_err().to_string();
        assert!(told.contains("part 2 has begun with a newer checkpoint; begin again"), "{told}");
    }
}

#[test]
fn a_procedure_takes_the_place_of_another_one() {
    check_replaced("two parts", &|| Ok(Box::new(Parts::new(2))));
}
