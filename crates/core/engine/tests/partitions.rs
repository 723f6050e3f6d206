//! What is particular to engines that divide their tables: transactions over several partitions are atomic, scans that
//! run through them see no phantoms, and a transaction may come back to a row of another partition in any order.

mod common;

use common::{Pair, calls, engines, engines_with, every_way, pairs, run, simple};
use lockwork_conformance::engines::Random;
use lockwork_engine::{EngineError, EngineKind, Options, create};
use lockwork_procedure::assembly::assemble;
use lockwork_procedure::block::Batch;
use lockwork_procedure::schema::{ColumnType, TableSchema};

const KIND: EngineKind = EngineKind::TIMESTAMP;

fn ways() -> impl Iterator<Item = Options> {
    [1, 2, 3, 8].into_iter().flat_map(every_way)
}

/// A batch of calls of all procedures by turns of chance, with integers below these bounds as arguments.
fn mixed(engines: &Pair, random: &mut Random, names: &[&str], bounds: &[u64], count: usize) -> Batch {
    let ids: Vec<u32> = names.iter().map(|name| engines[0].procedure_id(name).unwrap()).collect();
    let stride = ids.iter().map(|&id| engines[0].procedure(id).unwrap().verified.block_stride()).max().unwrap();
    let mut batch = Batch::new(stride, count).unwrap();
    for _ in 0..count {
        let id = ids[random.below(ids.len() as u64) as usize];
        let arguments_end = engines[0].procedure(id).unwrap().verified.procedure().layout().arguments_end as usize;
        let mut block = batch.push(id).unwrap();
        for (number, &bound) in bounds.iter().enumerate() {
            let argument = (random.below(bound) as i64).to_le_bytes();
            block.bytes()[32 + number * 8..40 + number * 8].copy_from_slice(&argument);
        }
        block.bytes()[arguments_end..].fill(0);
    }
    batch
}

#[test]
fn money_moves_between_partitions_and_none_is_lost_on_the_way() {
    let transfer = "procedure transfer\ntable t\nparam id: i64\nparam other: i64\nparam amount: i64
        update c0, t, [id]\nupdate c1, t, [other]\nret r1, c0\nret r2, c1\nload r3, [amount]\nloadr r4, r1[t.value]
        cmp r4, r3\nbl poor\nsub r4, r4, r3\nstorer r4, r1[t.value]\nloadr r4, r2[t.value]\nadd r4, r4, r3
        storer r4, r2[t.value]\ncommit\npoor:\nabort 3";
    // Writes first, and decides then; the other partition's row is written already.
    let rash = "procedure rash\ntable t\nparam id: i64\nparam other: i64\nparam amount: i64
        update c1, t, [other]\nret r2, c1\nload r3, [amount]\nloadr r4, r2[t.value]\nadd r4, r4, r3
        storer r4, r2[t.value]\nupdate c0, t, [id]\nret r1, c0\nloadr r4, r1[t.value]\nsub r4, r4, r3
        storer r4, r1[t.value]\ncmp r4, 0\nbl poor\ncommit\npoor:\nabort 4";
    let sum = "procedure sum\ntable t\nparam id: i64\nresult sum: i64\nscratch key: i64\nmov r2, 0\nmov r5, 0\nagain:
        store r2, [key]\nsearch c0, t, [key]\nret r4, c0\nloadr r6, r4[t.value]\nadd r5, r5, r6\nadd r2, r2, 1
        cmp r2, 12\nbl again\nstore r5, [sum]\ncommit";
    let all = "procedure all\ntable t\nparam id: i64\nresult sum: i64\nresult found: i64[12]\nscratch first: i64
        mov r1, 0\nstore r1, [first]\nscan c0, t.value, [first], [found], 12\nret r1, c0\nstore r1, [sum]\ncommit";
    for options in ways() {
        let mut engines = engines(KIND, options.clone(), &simple(), &pairs(0..12), &[transfer, rash, sum, all]);
        let sums: Vec<u32> = ["sum", "all"].map(|name| engines[0].procedure_id(name).unwrap()).into();
        let mut random = Random(options.threads as u64);
        for _ in 0..4 {
            let names = ["transfer", "transfer", "rash", "rash", "sum", "all"];
            let batch = mixed(&engines, &mut random, &names, &[12, 12, 90], 600);
            let (batch, tally) = run(&mut engines, batch);
            assert!(tally.failed.is_empty() && tally.committed > 0 && !tally.aborted.is_empty(), "{tally:?}");
            for block in batch.blocks() {
                let word = |at: usize| i64::from_le_bytes(block.bytes()[at..at + 8].try_into().unwrap());
                if block.procedure() == sums[0] {
                    assert_eq!(word(40), 660, "{options:?}");
                } else if block.procedure() == sums[1] {
                    assert_eq!((word(40), (0..12).map(|at| word(48 + at * 8)).sum()), (12, 660), "{options:?}");
                }
            }
        }
    }
}

/// Ranges that lie in one partition, run on into the next value, or go through all, on tables that are divided by the
/// first column of their keys and by the second, while keys come and go everywhere.
#[test]
fn scans_through_partitions_see_no_phantoms() {
    let columns = [("a", ColumnType::I64), ("b", ColumnType::I64), ("value", ColumnType::I64)];
    let come = "procedure come\ntable t\nparam a: i64\nparam b: i64\ninsert c0, t, [a]\nret r1, c0\nload r2, [b]
        storer r2, r1[t.value]\ncommit";
    let go = "procedure go\ntable t\nparam a: i64\nparam b: i64\nremove c0, t, [a]\nret c0\ncommit";
    let range = "procedure range\ntable t\nparam a: i64\nparam b: i64\nresult count: i64\nresult found: i64[5]
        scan c0, t.value, [a], [found], 5\nret r1, c0\nstore r1, [count]\ncommit";
    // What it saw it leaves elsewhere, so that it matters.
    let copy = "procedure copy\ntable t\nparam a: i64\nparam b: i64\nparam c: i64\nparam d: i64\nresult count: i64
        result found: i64[9]\nscan c0, t.b, [a], [found], 9\nret r1, c0\nstore r1, [count]
        update c1, t, [c]\nret r2, c1, none\nstorer r1, r2[t.value]\ncommit\nnone:\ninsert c2, t, [c]\nret r2, c2
        storer r1, r2[t.value]\ncommit";
    let rows = |a: i64, b: i64| [a, b, a * 10 + b].map(i64::to_le_bytes).concat();
    let images: Vec<Vec<u8>> = (0..4).flat_map(|a| (0..3).map(move |b| rows(a, b * 3))).collect();
    for by in ["a", "b"] {
        let schema = TableSchema::new("t", &columns, 2, true).unwrap().partition_by_hash(by).unwrap();
        for options in ways() {
            let mut engines = engines(KIND, options.clone(), &schema, &images, &[come, go, range, copy]);
            let mut random = Random(options.window as u64);
            for _ in 0..3 {
                let names = ["come", "go", "range", "range", "copy"];
                let batch = mixed(&engines, &mut random, &names, &[5, 9, 5, 9], 500);
                let (_, tally) = run(&mut engines, batch);
                assert!(tally.failed.is_empty(), "{options:?}: {tally:?}");
            }
        }
    }
}

/// Every sequence of three operations on one key, awaited one by one or together.
#[test]
fn a_transaction_comes_back_to_a_row_in_every_order() {
    const OPERATIONS: [&str; 4] = ["search", "update", "insert", "remove"];
    let mut sources = Vec::new();
    for (number, compound) in (0..64).flat_map(|number| [(number, false), (number, true)]) {
        let mut source =
            format!("procedure p{number}{compound}\ntable t\nparam home: i64\nparam id: i64\nresult seen: i64[4]\n");
        // It runs where this row is.
        source += "search c9, t, [home]\nret r9, c9, away\naway:\nmov r1, 0\n";
        let (mut issues, mut awaits) = (String::new(), String::new());
        for at in 0..3 {
            let operation = OPERATIONS[number >> (at * 2) & 3];
            issues += &format!("{operation} c{at}, t, [id]\n");
            let row = if operation == "remove" { String::new() } else { "r2, ".into() };
            awaits += &format!("ret {row}c{at}, none{at}\nadd r1, r1, {}\n", 1 << at);
            awaits += match operation {
                "remove" => "",
                "search" => "loadr r3, r2[t.value]\nadd r1, r1, r3\n",
                _ => "loadr r3, r2[t.value]\nadd r3, r3, 8\nstorer r3, r2[t.value]\n",
            };
            awaits += &format!("none{at}:\n");
            if !compound {
                issues += &std::mem::take(&mut awaits);
            }
        }
        source += &format!("{issues}{awaits}store r1, [seen]\ncommit");
        sources.push(source);
    }
    let sources: Vec<&str> = sources.iter().map(String::as_str).collect();
    let names: Vec<&str> = sources.iter().map(|source| source[10..].lines().next().unwrap()).collect();
    for options in ways() {
        let mut engines = engines(KIND, options.clone(), &simple(), &pairs(0..4), &sources);
        let mut random = Random(3);
        for _ in 0..2 {
            let batch = mixed(&engines, &mut random, &names, &[6, 6], 1_000);
            let (_, tally) = run(&mut engines, batch);
            assert_eq!(tally.committed, 1_000, "{options:?}: {tally:?}");
        }
    }
}

/// Keys of several words, which travel by their address, and a table that every partition has.
#[test]
fn texts_and_replicated_rows_are_found_from_everywhere() {
    let names = TableSchema::new("names", &[("name", ColumnType::Char(20)), ("value", ColumnType::I64)], 1, false);
    let names = names.unwrap().partition_by_hash("name").unwrap();
    let rates = TableSchema::new("rates", &[("id", ColumnType::I64), ("rate", ColumnType::I64)], 1, true);
    let rates = rates.unwrap().replicate();
    let text = |number: u64| format!("{number:020}").into_bytes();
    let name_image = |number: u64| {
        let mut image = text(number);
        image.resize(24, 0);
        image.extend(7_i64.to_le_bytes());
        image
    };
    let pay = "procedure pay\ntable names\ntable rates\nparam a: char(20)\nparam b: char(20)\nparam rate: i64
        result got: i64\nresult all: i64[3]\nscratch key: char(20)\nsearch c0, rates, [rate]\ncopy [key], [a], 20
        update c1, names, [key]\ncopy [key], [b], 20\nsearch c2, names, [key]\nscan c3, rates.rate, [rate], [all], 3
        ret r1, c0, free\nloadr r2, r1[rates.rate]\njmp go\nfree:\nmov r2, 0\ngo:\nret r3, c1, new\nret r4, c2, none
        ret r6, c3\nloadr r5, r4[names.value]\nadd r5, r5, r2\nstore r5, [got]\nstorer r5, r3[names.value]\ncommit
        new:\nret r4, c2, fresh\nfresh:\nret r6, c3\ninsert c4, names, [a]\nret r3, c4\nstorer r2, r3[names.value]\ncommit
        none:\nret r6, c3\nremove c4, names, [a]\nret c4\ncommit";
    for options in ways() {
        let tables = [(names.clone(), (0..5).map(name_image).collect()), (rates.clone(), pairs(0..3))];
        let mut engines = engines_with(KIND, options.clone(), &tables, &[pay]);
        let mut random = Random(8);
        let registered = engines[0].procedure(0).unwrap();
        let at: Vec<usize> =
            registered.verified.procedure().parameters.iter().map(|parameter| parameter.offset as usize - 32).collect();
        for _ in 0..3 {
            let random = &mut random;
            let argument = |_| {
                let mut bytes = vec![0; 56];
                bytes[at[0]..at[0] + 20].copy_from_slice(&text(random.below(7)));
                bytes[at[1]..at[1] + 20].copy_from_slice(&text(random.below(7)));
                bytes[at[2]..at[2] + 8].copy_from_slice(&(random.below(4) as i64).to_le_bytes());
                bytes.truncate(at[2] + 8);
                bytes
            };
            let batch = calls(&*engines[0], "pay", (0..800).map(argument));
            let (_, tally) = run(&mut engines, batch);
            assert!(tally.failed.is_empty() && tally.committed > 700, "{options:?}: {tally:?}");
        }
    }
}

/// A loop over rows that are near goes round while an insert elsewhere is on its way, from a key that the loop writes
/// over.
#[test]
fn a_loop_beside_a_slow_access_keeps_what_that_needs() {
    let beside = "procedure beside\ntable t\nparam a: i64\nparam b: i64\nparam c: i64\nparam d: i64\nresult sum: i64
        scratch first: i64\nscratch second: i64\nsearch c2, t, [a]\nload r1, [c]\nstore r1, [first]\nload r1, [d]
        store r1, [second]\ninsert c1, t, [first]\nload r1, [a]\nstore r1, [first]\nmov r2, 0\nmov r5, 0\nagain:
        store r2, [second]\nsearch c0, t, [first]\nret r4, c0, none\nloadr r6, r4[t.value]\nadd r5, r5, r6\nnone:
        add r2, r2, 1\ncmp r2, 50\nbl again\nstore r5, [sum]\nret r7, c2, away\naway:\nret r3, c1\nadd r5, r5, 1
        storer r5, r3[t.value]\ncommit";
    let columns = [("a", ColumnType::I64), ("b", ColumnType::I64), ("value", ColumnType::I64)];
    let schema = TableSchema::new("t", &columns, 2, true).unwrap().partition_by_hash("a").unwrap();
    let rows = |a: i64, b: i64| [a, b * 7, a + b].map(i64::to_le_bytes).concat();
    let images: Vec<Vec<u8>> = (0..9).flat_map(|a| (0..3).map(move |b| rows(a, b))).collect();
    for options in ways() {
        let mut engines = engines(KIND, options.clone(), &schema, &images, &[beside]);
        let batch = mixed(&engines, &mut Random(2), &["beside"], &[9, 50, 9, 50], 400);
        let (_, tally) = run(&mut engines, batch);
        assert!(tally.failed.is_empty() && tally.committed > 200, "{options:?}: {tally:?}");
    }
}

/// More look-ups of one row than it has room for pins, by one transaction alone and by many together.
#[test]
fn a_row_is_read_more_often_than_it_can_be_pinned() {
    let often =
        "procedure often\ntable t\nparam id: i64\nparam other: i64\nresult sum: i64\nscratch key: i64\nload r1, [other]
        store r1, [key]\nmov r2, 0\nmov r5, 0\nagain:\nsearch c0, t, [key]\nret r4, c0\nloadr r6, r4[t.value]
        add r5, r5, r6\nadd r2, r2, 1\ncmp r2, 4200\nbl again\nstore r5, [sum]\nupdate c1, t, [key]\nret r3, c1
        add r6, r6, 1\nstorer r6, r3[t.value]\ncommit";
    let look =
        "procedure look\ntable t\nparam id: i64\nparam other: i64\nresult value: i64\nsearch c0, t, [id]\nret r1, c0
        loadr r2, r1[t.value]\nstore r2, [value]\ncommit";
    for (threads, names) in
        [(1, &["often"][..]), (2, &["often", "look", "look", "look", "look", "look", "look", "look"])]
    {
        let options = Options { threads, max_retries: 1_000, ..Options::default() };
        let mut engines = engines(KIND, options.clone(), &simple(), &pairs(0..4), &[often, look]);
        let batch = mixed(&engines, &mut Random(5), names, &[4, 3], 70);
        let (_, tally) = run(&mut engines, batch);
        assert_eq!(tally.committed, 70, "{options:?}: {tally:?}");
    }
}

/// Small batches have one partition, large ones as many as there are threads; full rings and more threads than cores.
#[test]
fn batches_of_all_sizes_follow_each_other() {
    let shift = "procedure shift\ntable t\nparam id: i64\nparam other: i64\nparam third: i64\nresult seen: i64
        update c0, t, [id]\nsearch c1, t, [other]\nsearch c2, t, [third]\nret r1, c0\nret r2, c1\nret r3, c2
        loadr r4, r2[t.value]\nloadr r5, r3[t.value]\nadd r4, r4, r5\nadd r4, r4, 1\nstore r4, [seen]
        loadr r5, r1[t.value]\nadd r5, r5, 1\nstorer r5, r1[t.value]\ncommit";
    for (threads, window) in [(2, 1_024), (5, 64), (64, 1_024)] {
        let options = Options { threads, window, ..Options::default() };
        let mut engines = engines(KIND, options.clone(), &simple(), &pairs(0..3_000), &[shift]);
        let mut random = Random(1);
        for size in [1, 5_000, 64, 65, 3, 2_000, 1, 200] {
            let batch = mixed(&engines, &mut random, &["shift"], &[3_000, 3_000, 3_000], size);
            let (_, tally) = run(&mut engines, batch);
            assert_eq!(tally.committed, size as u64, "{options:?}: {tally:?}");
        }
    }
}

#[test]
fn what_overflows_leaves_nothing_in_other_partitions() {
    let grow = "procedure grow\ntable t\nparam id: i64\nparam other: i64\nparam by: i64\nresult sum: i64
        update c0, t, [id]\nret r1, c0\nloadr r2, r1[t.value]\nadd r2, r2, 5\nstorer r2, r1[t.value]\nload r3, [by]
        update c1, t, [other]\nret r4, c1\nstorer r3, r4[t.value]\nmul r3, r3, 4611686018427387904
        mul r3, r3, 2\nstore r3, [sum]\ncommit";
    for options in ways() {
        let mut engines = engines(KIND, options.clone(), &simple(), &pairs(0..6), &[grow]);
        let batch = mixed(&engines, &mut Random(6), &["grow"], &[7, 7, 3], 2_000);
        let (_, tally) = run(&mut engines, batch);
        assert!(tally.committed > 100 && tally.aborted.len() == 2, "{options:?}: {tally:?}");
    }
}

#[test]
fn tables_that_do_not_say_how_they_are_divided_are_refused() {
    let plain = TableSchema::new("t", &[("id", ColumnType::I64), ("value", ColumnType::I64)], 1, false).unwrap();
    let source = "procedure look\ntable t\nparam id: i64\nsearch c0, t, [id]\nret r1, c0\ncommit";
    let procedure = |schema: &TableSchema| assemble(source, [schema.clone()].as_slice()).unwrap().procedure;
    let mut engine = create(KIND, Options::default()).unwrap();
    engine.create_table(plain.clone(), 4).unwrap();
    let refused = engine.register(procedure(&plain)).unwrap_err();
    assert!(matches!(refused, EngineError::NotPartitioned { .. }));
    let told = "procedure 'look' uses table 't', which changes not say how it is partitioned, as the engine needs to know; \
                declare it `partition by hash(column)`, where the column is one of id, or, if no procedure writes it, \
                `replicated`";
    assert_eq!((refused.to_string().as_str(), engine.procedure_id("look")), (told, None));

    let replicated = plain.replicate();
    let write = source.replace("search", "update");
    let mut engine = create(KIND, Options::default()).unwrap();
    engine.create_table(replicated.clone(), 4).unwrap();
    let refused = match assemble(&write, [replicated.clone()].as_slice()) {
        Err(error) => error.to_string(),
        Ok(assembled) => engine.register(assembled.procedure).unwrap_err().to_string(),
    };
    assert!(refused.contains("'t'") && refused.contains("replicated"), "{refused}");
    engine.register(procedure(&replicated)).unwrap();
}
