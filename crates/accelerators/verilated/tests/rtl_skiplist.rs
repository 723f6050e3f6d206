//! The ordered index of the transaction processor against a model of memory, decision words and transactions.

#[path = "skiplist/bench.rs"]
mod bench;
#[path = "skiplist/decisions.rs"]
mod decisions;
#[path = "skiplist/memory.rs"]
mod memory;
#[path = "skiplist/random.rs"]
mod random;
#[path = "skiplist/table.rs"]
mod table;
#[path = "skiplist/transactions.rs"]
mod transactions;

use bench::{Answer, Bench, Op, Request, Shape};
use memory::Timing;
use random::Random;
use table::Table;
use transactions::{Mix, World};

const SMALL: Shape = Shape { slots: 16, key_words: 1, scanners: 1 };
const WIDE: Shape = Shape { slots: 8, key_words: 3, scanners: 3 };

fn seed() -> u64 {
    let seed = std::env::var("LOCKWORK_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| u64::from(std::process::id()) * 1_000_003);
    println!("LOCKWORK_SEED={seed}");
    seed
}

fn play(shape: Shape, tables: &[Table], mix: Mix, rounds: u64) {
    let first = seed();
    let model = Bench::build(shape);
    let (mut committed, mut scans) = (0, 0);
    for round in 0..rounds {
        let seed = first.wrapping_add(round);
        println!("round {round}: seed {seed}");
        let bench = Bench::new(&model, seed, Timing::random(seed), tables);
        let mut world = World::new(bench, seed, mix);
        world.run(600);
        let tally = world.check();
        committed += tally.committed;
        scans += tally.scans;
    }
    // Of all rounds together: with few keys a single one may abort almost all of its transactions.
    assert!(committed > 60 * rounds && scans > 10 * rounds, "{committed} commits and {scans} scans show nothing");
}

#[test]
fn transactions_with_one_word_keys_see_what_is_serial() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let mix = Mix { contexts: 24, keys: 60, scans: 15, inserts: 45, removes: 15 };
    play(SMALL, &[Table::single(3, 6), Table::single(9, 20)], mix, 12);
}

#[test]
fn transactions_with_long_keys_see_what_is_serial() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let mix = Mix { contexts: 20, keys: 40, scans: 20, inserts: 45, removes: 15 };
    play(WIDE, &[Table::long(2, 3, 8), Table::long(5, 2, 20), Table::single(7, 4)], mix, 12);
}

#[test]
fn many_scanners_share_many_scans() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let mix = Mix { contexts: 40, keys: 100, scans: 60, inserts: 30, removes: 5 };
    play(Shape { slots: 48, key_words: 1, scanners: 8 }, &[Table::single(1, 8)], mix, 8);
}

/// Keeps `in_flight` requests under way and returns cycles.
fn flow(bench: &mut Bench, requests: &[Request], in_flight: usize) -> (u64, Vec<Answer>) {
    let mut answers = vec![Answer::default(); requests.len()];
    let (mut next, mut left, mut free) = (0, requests.len(), (0..in_flight).collect::<Vec<_>>());
    let (mut sent, mut owner) = (None, vec![0; in_flight]);
    let begin = bench.cycles();
    while left > 0 {
        if sent.is_none()
            && next < requests.len()
            && let Some(place) = free.pop()
        {
            owner[place] = next;
            sent = Some(Request { context: place as u64, ..requests[next].clone() });
            next += 1;
        }
        let events = bench.step(sent.as_ref());
        if events.accepted {
            sent = None;
        }
        if let Some(answer) = events.answer {
            let place = answer.context as usize;
            answers[owner[place]] = answer;
            free.push(place);
            left -= 1;
        }
    }
    (bench.cycles() - begin, answers)
}

fn point(op: Op, key: u64, stamp: u64) -> Request {
    Request { op, table: 3, stamp, key: vec![key], ..Request::default() }
}

fn checked_load(bench: &mut Bench, keys: impl Iterator<Item = u64>, in_flight: usize) -> u64 {
    let requests: Vec<_> = keys.map(|key| point(Op::Insert, key, 1)).collect();
    let (cycles, answers) = flow(bench, &requests, in_flight);
    for (request, answer) in requests.iter().zip(&answers) {
        assert_eq!(answer.kind, 0, "insert of {:#x}", request.key[0]);
        assert_eq!(bench.memory.word(answer.value + 8), request.key[0], "the row has the key");
    }
    bench.check_lists(
        0,
        &requests.iter().zip(&answers).map(|(r, a)| (r.key.clone(), a.value, true)).collect::<Vec<_>>(),
    );
    cycles
}

#[test]
fn ascending_keys_load_faster_with_more_in_flight() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let model = Bench::build(Shape { slots: 48, key_words: 1, scanners: 1 });
    let mut last = f64::MAX;
    for in_flight in [1, 8] {
        let mut bench = Bench::new(&model, 1, Timing::steady(80), &[Table::single(3, 20).rows(10_000)]);
        bench.set_judged(false);
        let cycles = checked_load(&mut bench, (0..1_000).map(|i| (1 << 63) + i), in_flight) as f64 / 1e3;
        println!("{in_flight} in flight: {cycles:.1} cycles an insert, {} words", bench.memory.asked / 1_000);
        assert!(cycles < last / 4.0, "{cycles} cycles with {in_flight} in flight, {last} with fewer");
        last = cycles;
    }
}

/// Neighbours in flight together, in an order that is almost the keys': links of upper levels are looked for again and
/// again while others change them.
#[test]
fn almost_ascending_keys_find_their_places_on_every_level() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let first = seed();
    let model = Bench::build(SMALL);
    for round in 0..24 {
        let seed = first.wrapping_add(round);
        println!("round {round}: seed {seed}");
        let mut random = Random::new(seed);
        let timing = if round % 2 == 0 { Timing::steady(80) } else { Timing::random(seed) };
        let mut bench = Bench::new(&model, seed, timing, &[Table::single(3, 20).rows(500)]);
        bench.set_judged(false);
        let mut keys: Vec<u64> = (0..500).map(|i| (1 << 63) + (round << 16) + i).collect();
        for at in 0..keys.len() {
            let other = at + random.of(0..(keys.len() - at).min(8));
            keys.swap(at, other);
        }
        checked_load(&mut bench, keys.into_iter(), 16);
    }
}

#[test]
fn a_full_table_and_a_refusing_memory_fail_and_leave_a_working_unit() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let seed = seed();
    let model = Bench::build(SMALL);
    let mut bench = Bench::new(&model, seed, Timing::random(seed), &[Table::single(3, 5)]);
    bench.set_judged(false);
    let rows = bench.tables[0].rows;
    checked_load(&mut bench, 0..rows, 8);
    let late: Vec<_> = (rows..rows + 20).map(|key| point(Op::Insert, key, 1)).collect();
    let (_, answers) = flow(&mut bench, &late, 8);
    assert!(answers.iter().all(|answer| (answer.kind, answer.value, answer.granted) == (3, 0xFF11, false)));
    let found: Vec<_> = (0..rows + 20).map(|key| point(Op::Search, key, 1)).collect();
    let (_, answers) = flow(&mut bench, &found, 8);
    for (key, answer) in (0..).zip(&answers) {
        assert_eq!(answer.kind, u64::from(key >= rows), "{key}");
    }

    let mut bench = Bench::new(&model, seed ^ 1, Timing::random(seed), &[Table::single(3, 5)]);
    bench.set_judged(false);
    bench.memory.refuse(3);
    let (_, answers) = flow(&mut bench, &(0..200).map(|key| point(Op::Insert, key, 1)).collect::<Vec<_>>(), 12);
    assert!(answers.iter().all(|answer| answer.kind == 0 || (answer.kind, answer.value) == (3, 0xFF13)));
    assert!(answers.iter().any(|answer| answer.kind == 3), "something was refused");
    bench.memory.refuse(0);
    let again: Vec<_> = (1_000..1_100).map(|key| point(Op::Insert, key, 2)).collect();
    let (_, answers) = flow(&mut bench, &again, 12);
    assert!(answers.iter().all(|answer| answer.kind == 0));
    let found: Vec<_> = (1_000..1_100).map(|key| point(Op::Search, key, 2)).collect();
    let (_, searched) = flow(&mut bench, &found, 12);
    assert!(searched.iter().zip(&answers).all(|(found, made)| (found.kind, found.value) == (0, made.value)));
}

/// Figure 11: `cargo test --profile verify -p lockwork-verilated --test skiplist -- --ignored --nocapture`.
#[test]
#[ignore = "prints curves; takes a minute"]
fn curves() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    const ROWS: u64 = 10_000;
    let one = Bench::build(Shape { slots: 48, key_words: 1, scanners: 1 });
    let eight = Bench::build(Shape { slots: 48, key_words: 1, scanners: 8 });
    let mut random = Random::new(7);
    let keys: Vec<u64> = (0..ROWS).map(|i| (1 << 63) + i).collect();
    println!("in flight, cycles: sequential insert, random search");
    for in_flight in [1, 2, 4, 8, 12, 16, 24, 32, 48] {
        let mut bench = Bench::new(&one, 5, Timing::steady(80), &[Table::single(3, 20).rows(10_000)]);
        bench.set_judged(false);
        let insert = checked_load(&mut bench, keys.iter().copied(), in_flight) as f64 / ROWS as f64;
        let wanted: Vec<_> = (0..3_000).map(|_| point(Op::Search, keys[random.of(0..keys.len())], 2)).collect();
        let (cycles, answers) = flow(&mut bench, &wanted, in_flight);
        for (request, answer) in wanted.iter().zip(&answers) {
            assert_eq!((answer.kind, bench.memory.word(answer.value + 8)), (0, request.key[0]));
        }
        println!("{in_flight:9} {insert:12.1} {:12.1}", cycles as f64 / 3e3);
    }
    println!("in flight, cycles a scan of 50 rows: 1 scanner, 8 scanners");
    for in_flight in [1, 2, 4, 8, 16, 32, 48] {
        let mut line = format!("{in_flight:9}");
        for model in [&one, &eight] {
            let mut bench = Bench::new(model, 5, Timing::steady(80), &[Table::single(3, 20).rows(10_000)]);
            bench.set_judged(false);
            checked_load(&mut bench, keys.iter().copied(), 16);
            let starts: Vec<_> = (0..200).map(|_| random.of(0..ROWS - 50)).collect();
            let scans: Vec<_> = starts
                .iter()
                .zip(0..)
                .map(|(&at, i)| Request {
                    limit: 50,
                    source: 0,
                    buffer: bench.buffer(i % 48),
                    ..point(Op::Scan, keys[at as usize], 3)
                })
                .collect();
            let (cycles, answers) = flow(&mut bench, &scans, in_flight);
            assert!(answers.iter().all(|answer| (answer.kind, answer.value) == (0, 50)));
            for (i, scan) in scans.iter().enumerate().skip(scans.len() - in_flight.min(8)) {
                for row in 0..50 {
                    let key = bench.memory.word(scan.buffer + row * 8);
                    assert_eq!(key ^ 1 << 63, scan.key[0] + row, "row {row} of scan {i}");
                }
            }
            line += &format!("{:12.1}", cycles as f64 / 200.0);
        }
        println!("{line}");
    }
}
