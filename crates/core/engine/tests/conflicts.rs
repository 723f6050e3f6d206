//! What is particular to engines whose workers keep several transactions in flight that may conflict: storms of
//! conflicts end, a transaction sees what it did itself, and rows of every shape come and go whole.

mod common;

use common::{calls, engines, every_way, pairs, run, schema, simple};
use lockwork_conformance::engines::Random;
use lockwork_engine::{Cause, EngineKind, Interleave, Options};
use lockwork_procedure::block::{Batch, Status, abort};
use lockwork_procedure::schema::ColumnType;

const KINDS: [EngineKind; 2] = [EngineKind::OPTIMISTIC, EngineKind::TIMESTAMP];

/// Every kind, with so many threads, interleaved in every way.
fn kinds(threads: &[usize]) -> impl Iterator<Item = (EngineKind, Options)> {
    KINDS.into_iter().flat_map(move |kind| {
        threads.iter().flat_map(|&threads| every_way(threads)).map(move |options| (kind, options))
    })
}

const ADD: &str = "procedure add\ntable t\nparam id: i64\nparam amount: i64\nresult value: i64
    update c0, t, [id]\nret r1, c0\nloadr r2, r1[t.value]\nload r3, [amount]\nadd r2, r2, r3
    storer r2, r1[t.value]\nstore r2, [value]\ncommit";

/// Two rows: writes one, and only reads the other, which it looks up first and then sets aside.
const CROSS: &str = "procedure cross\ntable t\nparam id: i64\nparam other: i64\nresult value: i64
    search c0, t, [other]\nret r1, c0\nloadr r2, r1[t.value]\nupdate c1, t, [id]\nret r3, c1\nloadr r4, r3[t.value]
    add r4, r4, r2\nadd r4, r4, 1\ncmp r4, 1000000\nbl small\nmov r4, 0\nsmall:
    storer r4, r3[t.value]\nstore r4, [value]\ncommit";

#[test]
fn a_storm_of_all_on_one_row_passes() {
    for (kind, options) in kinds(&[1, 3, 8]) {
        let mut engines = engines(kind, options.clone(), &simple(), &pairs(0..3), &[ADD]);
        let arguments = (0..30_000).map(|_| [1_i64.to_le_bytes(), 1_i64.to_le_bytes()].concat());
        let batch = calls(&*engines[0], "add", arguments);
        let (batch, tally) = run(&mut engines, batch);
        assert_eq!((tally.committed, tally.transactions()), (30_000, 30_000), "{kind} {options:?}: {tally:?}");
        let most = batch.blocks().map(|block| i64::from_le_bytes(block.bytes()[48..56].try_into().unwrap())).max();
        assert_eq!(most, Some(30_010));
    }
}

#[test]
fn a_storm_of_those_that_read_what_others_write_passes() {
    for (kind, options) in kinds(&[2, 3, 8]) {
        let mut engines = engines(kind, options.clone(), &simple(), &pairs(0..3), &[CROSS]);
        let arguments =
            (0..6_000_i64).map(|number| [(number % 3).to_le_bytes(), ((number + 1) % 3).to_le_bytes()].concat());
        let batch = calls(&*engines[0], "cross", arguments);
        let (_, tally) = run(&mut engines, batch);
        assert_eq!(tally.committed, 6_000, "{kind} {options:?}: {tally:?}");
    }
}

#[test]
fn who_may_not_begin_again_fails_and_leaves_nothing() {
    for (kind, options) in kinds(&[3]) {
        let options = Options { max_retries: 0, ..options.clone() };
        let mut engines = engines(kind, options.clone(), &simple(), &pairs(0..3), &[CROSS]);
        let mut conflicts = 0;
        for _ in 0..20 {
            let arguments =
                (0..5_000_i64).map(|number| [(number % 2).to_le_bytes(), (1 - number % 2).to_le_bytes()].concat());
            let batch = calls(&*engines[0], "cross", arguments);
            let (batch, tally) = run(&mut engines, batch);
            let failed = tally.failed.get(&abort::TOO_MANY_RETRIES).copied().unwrap_or(0);
            assert_eq!((tally.committed + failed, tally.conflicts.total()), (5_000, failed), "{tally:?}");
            let fits = |cause| match kind == EngineKind::OPTIMISTIC {
                true => cause == Cause::RowChanged,
                false => matches!(cause, Cause::LateRead | Cause::LateWrite),
            };
            assert!(tally.conflicts.by_cause().all(|(cause, _)| fits(cause)), "{kind}: {tally:?}");
            for block in batch.blocks().filter(|block| block.status() == Some(Status::Failed)) {
                assert_eq!(block.bytes()[48..56], [0; 8], "results of a call that failed");
            }
            conflicts += failed;
        }
        // With several in flight, siblings alone see to that.
        let wide = options.interleave == Interleave::Dynamic && options.window > 1;
        assert!(conflicts > 0 || !wide, "{kind} {options:?}");
    }
}

/// Scans that are set aside before they commit, and inserts of keys that were never there, side by side.
#[test]
fn no_scan_misses_a_key_that_comes() {
    let grow = "procedure grow\ntable t\nparam id: i64\nparam from: i64\nresult count: i64\nresult found: i64[8]
        scan c0, t.id, [from], [found], 8\nret r1, c0\ninsert c1, t, [id]\nret r2, c1, taken\nstorer r1, r2[t.value]
        taken:\nstore r1, [count]\ncommit";
    for (kind, options) in kinds(&[2, 3, 8]) {
        for seed in 0..2 {
            let at_both_ends: Vec<Vec<u8>> = pairs(0..50).into_iter().chain(pairs(3_950..4_000)).collect();
            let mut engines = engines(kind, options.clone(), &simple(), &at_both_ends, &[grow]);
            let mut random = Random(seed);
            for _ in 0..2 {
                let mut argument = || (random.below(4_000) as i64).to_le_bytes();
                let arguments: Vec<Vec<u8>> = (0..1_500).map(|_| [argument(), argument()].concat()).collect();
                let batch = calls(&*engines[0], "grow", arguments.into_iter());
                let (_, tally) = run(&mut engines, batch);
                assert_eq!(tally.committed, 1_500);
            }
        }
    }
}

/// What one transaction did is what it sees, in program order.
#[test]
fn a_transaction_sees_what_it_did_itself() {
    let head = "table t\nparam id: i64\nparam other: i64\n";
    let bodies = [
        // The same row by two handles.
        "result a: i64\nresult b: i64\nupdate c0, t, [id]\nsearch c1, t, [id]\nret r1, c0\nret r2, c1
         mov r3, 77\nstorer r3, r1[t.value]\nloadr r4, r2[t.value]\nstore r4, [a]\ncommit",
        // A row that is to be removed is still there, and its key still taken.
        "result a: i64\nresult b: i64\nremove c0, t, [id]\nret c0\nsearch c1, t, [id]\nret r1, c1\nloadr r2, r1[t.value]
         store r2, [a]\nremove c2, t, [id]\nret c2\ninsert c3, t, [id]\nret r3, c3, taken\nabort 7\ntaken:\nmov r4, 1
         store r4, [b]\ncommit",
        // An insert is found, updated, and removed again.
        "result a: i64\nresult b: i64\ninsert c0, t, [id]\nret r1, c0, exists\nmov r2, 5\nstorer r2, r1[t.value]
         update c1, t, [id]\nret r3, c1\nloadr r4, r3[t.value]\nstore r4, [a]\nadd r4, r4, 1\nstorer r4, r3[t.value]
         load r5, [other]\ncmp r5, 3\nbl keep\nremove c2, t, [id]\nret c2\nkeep:\ncommit\nexists:\nabort 8",
        // Scans before and after an insert, a write and a removal.
        "result a: i64\nresult b: i64\nresult before: i64[6]\nresult after: i64[6]\nscan c0, t.value, [id], [before], 6
         insert c1, t, [other]\nscan c2, t.value, [id], [after], 6\nret r1, c0\nstore r1, [a]\nret r2, c1, exists
         ret r3, c2\nstore r3, [b]\ncommit\nexists:\nret r3, c2\nstore r3, [b]\ncommit",
        "result a: i64\nresult b: i64\nresult seen: i64[6]\nupdate c0, t, [id]\nret r1, c0\nmov r2, -9\nremove c1, t, [other]
         ret c1, none\nnone:\nstorer r2, r1[t.value]\nscan c2, t.value, [other], [seen], 6\nmov r2, -8
         storer r2, r1[t.value]\nret r3, c2\nstore r3, [a]\ncommit",
        // The key is overwritten before the answer is asked for.
        "result a: i64\nresult b: i64\nscratch key: i64\nload r1, [id]\nstore r1, [key]\nsearch c0, t, [key]\nload r1, [other]
         store r1, [key]\ninsert c1, t, [key]\nmov r1, 1\nstore r1, [key]\nret r2, c0\nret r3, c1, exists
         loadr r4, r2[t.value]\nstorer r4, r3[t.value]\ncommit\nexists:\nabort 6",
    ];
    let sources: Vec<String> =
        bodies.iter().enumerate().map(|(number, body)| format!("procedure p{number}\n{head}{body}")).collect();
    let sources: Vec<&str> = sources.iter().map(String::as_str).collect();
    let kinds = EngineKind::CPU.iter().filter(|kind| **kind != EngineKind::SERIAL);
    let ways = || every_way(1).chain(every_way(3));
    for (&kind, options) in kinds.flat_map(|kind| ways().map(move |options| (kind, options))) {
        let mut engines = engines(kind, options.clone(), &simple(), &pairs(0..4), &sources);
        let mut random = Random(9);
        for _ in 0..12 {
            for number in 0..sources.len() {
                let mut argument = || (random.below(7) as i64).to_le_bytes();
                let arguments: Vec<Vec<u8>> = (0..100).map(|_| [argument(), argument()].concat()).collect();
                let batch = calls(&*engines[0], &format!("p{number}"), arguments.into_iter());
                run(&mut engines, batch);
            }
        }
    }
}

/// Keys that end inside a word, and rows that are cut into parts of several lines.
#[test]
fn rows_of_every_shape_come_and_go_whole() {
    use ColumnType::{Bytes, Char, I32, I64, U8, U16};
    let tables: [(ColumnType, usize, u32); 5] =
        [(I32, 4, 3), (U8, 1, 100), (Char(11), 11, 60), (I64, 8, 4_500), (U16, 2, 40_000)];
    for (key, key_bytes, wide) in tables {
        let columns = [("id", key), ("small", U8), ("wide", Bytes(wide)), ("last", U8)];
        let schema = schema(&columns, false);
        let offsets: Vec<usize> = schema.columns().iter().map(|column| column.offset as usize - 16).collect();
        let image = |number: u8| {
            let mut image = vec![0; schema.row_bytes() as usize - 16];
            image[0] = number;
            image[offsets[1]] = number;
            image[offsets[2]..offsets[2] + wide as usize].fill(number);
            image[offsets[3]] = number;
            image
        };
        let name_of_type = match key {
            I32 => "i32".to_string(),
            U8 => "u8".to_string(),
            U16 => "u16".to_string(),
            I64 => "i64".to_string(),
            _ => "char(11)".to_string(),
        };
        let part = wide.min(200);
        let head =
            |name: &str| format!("procedure {name}\ntable t\nparam id: {name_of_type}\nparam other: {name_of_type}\n");
        // Everything of a row is written to one value, which must be seen everywhere.
        let paint = head("paint")
            + &format!(
                "param colour: bytes({part})\nparam shade: u8\nupdate c0, t, [id]\nret r1, c0\nload r2, [shade]
                 storer r2, r1[t.small]\nstorer r2, r1[t.last]\ncopy r1[t.wide], [colour], {part}\ncommit"
            );
        let look = head("look")
            + &format!(
                "result small: u8\nresult last: u8\nresult colour: bytes({part})\nsearch c0, t, [id]\nret r1, c0
                 loadr r2, r1[t.small]\nstore r2, [small]\nloadr r2, r1[t.last]\nstore r2, [last]
                 copy [colour], r1[t.wide], {part}\ncommit"
            );
        // Two rows at once, by copies alone: the short way.
        let peek = head("peek")
            + &format!(
                "param part: u8\nresult small: bytes(1)\nresult colour: bytes({part})\nresult tail: bytes(3)
                 load r3, [part]\ncheck r3, {most}\nsearch c0, t, [id]\nsearch c1, t, [other]\nret r1, c0\nret r2, c1
                 copy [small], r1[t.small]\ncopy [colour], r2[t.wide], {part}\ncopy [tail], r1[t.wide + r3], 3\ncommit",
                most = wide.min(255) - 2
            );
        let renew = head("renew")
            + "remove c0, t, [id]\ninsert c1, t, [other]\nret c0\nret r1, c1, taken\nmov r2, 3\nstorer r2, r1[t.small]
               storer r2, r1[t.last]\ntaken:\ncommit";
        let images: Vec<Vec<u8>> = (0..3).map(image).collect();
        for (kind, options) in kinds(&[3]) {
            let mut engines = engines(kind, options.clone(), &schema, &images, &[&paint, &look, &peek, &renew]);
            let peek = engines[0].procedure(engines[0].procedure_id("peek").unwrap()).unwrap();
            assert!(peek.recipe().is_some_and(|recipe| recipe.is_complete()), "it goes the long way");
            let mut random = Random(4);
            let stride = 512;
            for _ in 0..6 {
                let mut batch = Batch::new(stride, 3_000).unwrap();
                for _ in 0..3_000 {
                    let name = ["paint", "look", "peek", "peek", "renew"][random.below(5) as usize];
                    let id = engines[0].procedure_id(name).unwrap();
                    let registered = engines[0].procedure(id).unwrap();
                    let mut block = batch.push(id).unwrap();
                    let bytes = block.bytes();
                    let parameters = &registered.verified.procedure().parameters;
                    for parameter in &parameters[..2] {
                        bytes[parameter.offset as usize..][..key_bytes].fill(0);
                        bytes[parameter.offset as usize] = random.below(4) as u8;
                    }
                    for parameter in &parameters[2..] {
                        let width = parameter.column_type.width() as usize;
                        bytes[parameter.offset as usize..][..width].fill(random.0 as u8);
                    }
                }
                run(&mut engines, batch);
            }
        }
    }
}
