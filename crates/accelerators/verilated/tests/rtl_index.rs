//! The index coprocessor (hardware/rtl/index) among random transactions, memory that answers in any order, and a
//! fabric.

#[path = "index/curve.rs"]
mod curve;
#[path = "index/judge.rs"]
mod judge;
#[path = "index/machine.rs"]
mod machine;
#[path = "index/memory.rs"]
mod memory;
#[path = "index/tables.rs"]
mod tables;
#[path = "index/transactions.rs"]
mod transactions;

use std::sync::Mutex;

use lockwork_procedure::schema::ColumnType::{Bytes, Char, I8, I16, I32, I64, U8, U16, U32};
use lockwork_verilated::{Build, Model};

use curve::cycles;
use machine::{INSERT, Machine, SEARCH};
use memory::Behaviour;
use tables::{Placed, Table};
use transactions::{Counts, Transactions};

const ANY_ORDER: Behaviour = Behaviour { latency: (3, 120), busy: 30, refused: 0 };

/// One build at a time.
static BUILDING: Mutex<()> = Mutex::new(());

fn load(build: &Build) -> Model {
    let _guard = BUILDING.lock();
    build.load().expect("it builds")
}

fn small() -> Model {
    let parameters = [("KeyWords", 2), ("Inflight", 6), ("Slots", 4), ("Entries", 64), ("Park", 4), ("Workers", 4)];
    let build = parameters.iter().fold(Build::new("lw_index"), |build, (name, value)| build.parameter(name, value));
    load(&build)
}

fn large(fast: bool) -> Model {
    load(&Build::new("lw_index").parameter("Entries", 4096).fast(fast))
}

/// Keys of one integer, of several in one word, of two words, in the common copy, and at a home.
fn tables(keys: u64) -> Vec<Table> {
    vec![
        Table::new(0, &[("k", I64), ("v", I64), ("w", Bytes(13))], 1, Placed::Byte(0), keys),
        Table::new(1, &[("a", I16), ("b", U8), ("c", I32), ("v", I64)], 3, Placed::Byte(0), keys),
        Table::new(2, &[("a", Char(10)), ("b", I32), ("v", Bytes(30))], 2, Placed::Hash, keys),
        Table::new(3, &[("k", I64), ("v", I64)], 1, Placed::Everywhere, keys),
        Table::new(4, &[("a", U32), ("b", I8), ("c", I64), ("v", I64)], 3, Placed::Home(2), keys),
        Table::new(5, &[("a", U16), ("b", I64), ("v", I64)], 2, Placed::Home(1), keys).order(),
    ]
}

fn run(model: Model, workers: usize, behaviour: Behaviour, tables: Vec<Table>, eager: u64, seed: u64) -> Counts {
    let mut machine = Machine::new(model, workers, 8 << 20, behaviour, seed);
    machine.eager = eager;
    let mut transactions = Transactions::new(machine, tables, 6);
    transactions.run(if workers == 1 { 1500 } else { 3000 });
    transactions.check();
    println!("seed {seed}: {:?} in {} cycles", transactions.counts, transactions.machine.now);
    transactions.counts
}

#[test]
fn transactions_on_four_workers_are_serial_in_the_order_of_their_times() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    for seed in 1..=4 {
        println!("seed {seed}");
        let eager = if seed % 2 == 0 { 100 } else { 60 };
        let counts = run(small(), 4, ANY_ORDER, tables(60), eager, seed);
        assert!(counts.conflicts > 0 && counts.reused > 0 && counts.scans > 0, "{counts:?}");
    }
}

#[test]
fn transactions_on_a_large_worker_are_serial_in_the_order_of_their_times() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    for seed in 11..=13 {
        println!("seed {seed}");
        let mut tables = tables(150);
        // No fewer buckets than decision words: a chain has one.
        tables.iter_mut().for_each(|table| table.head_bits = 12);
        let counts = run(large(false), 1, ANY_ORDER, tables, 80, seed);
        assert!(counts.conflicts > 0 && counts.reused > 0, "{counts:?}");
    }
}

#[test]
fn full_tables_and_memory_that_refuses_leave_a_working_machine() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    for seed in 21..=22 {
        println!("seed {seed}");
        let mut tables = tables(60);
        tables.iter_mut().for_each(|table| table.rows = 4);
        let behaviour = Behaviour { refused: 100, ..ANY_ORDER };
        let counts = run(small(), 4, behaviour, tables, 80, seed);
        assert!(counts.refused > 0 && counts.no_room > 0, "{counts:?}");
    }
}

#[test]
fn a_worker_is_as_fast_as_promised() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let model = large(false);
    let measured = [(SEARCH, 32), (SEARCH, 48), (INSERT, 48)].map(|(op, contexts)| cycles(&model, op, contexts, 4_000));
    println!("search with 32 and 48 in flight, insert with 48: {measured:.2?} cycles");
    assert!(measured[0] <= 9.0 && measured[1] <= 7.0 && measured[2] <= 8.0, "{measured:?}");
}

#[test]
#[ignore = "prints a curve"]
fn curve_over_instructions_in_flight() {
    lockwork_testkit::needs!(lockwork_verilated::tools());
    let model = large(true);
    println!("in flight  search  insert  (cycles an operation, 80 cycles of memory latency)");
    for contexts in [1, 2, 4, 8, 12, 16, 24, 32, 40, 48] {
        let [search, insert] = [SEARCH, INSERT].map(|op| cycles(&model, op, contexts, 4_000));
        println!("{contexts:9}  {search:6.2}  {insert:6.2}");
    }
}
