//! Tests of the YCSB procedures, their calls and their checks.

use lockwork_procedure::program::Field;

use super::*;
use crate::zipf::{Distribution, fnv1a};

/// What registration would give, without code: the declarations, laid out.
fn declared(shape: &Shape) -> Procedure {
    let types = |list: &[Declaration]| -> Vec<_> { list.iter().map(|&(_, kind, count)| (kind, count)).collect() };
    let (_, offsets) = Procedure::lay_out([&types(&shape.parameters), &types(&shape.results), &[]]);
    let mut offsets = offsets.into_iter();
    let mut fields = |list: &[Declaration]| -> Vec<Field> {
        let of = |(name, column_type, count): &Declaration| Field {
            name: name.clone(),
            column_type: *column_type,
            count: *count,
            offset: offsets.next().unwrap() as u32,
        };
        list.iter().map(of).collect()
    };
    let parameters = fields(&shape.parameters);
    let results = fields(&shape.results);
    Procedure { name: shape.name.clone(), parameters, results, ..Procedure::default() }
}

fn bound(config: YcsbConfig) -> Ycsb {
    let mut ycsb = Ycsb::new(config).unwrap();
    let shapes = ycsb.shapes.clone();
    ycsb.bind(&mut |name| {
        let place = shapes.iter().position(|shape| shape.name == name)?;
        Some((place as u32 + 10, declared(&shapes[place])))
    })
    .unwrap();
    ycsb
}

fn filled(ycsb: &mut Ycsb, transactions: usize) -> Batch {
    let mut batch = Batch::new(ycsb.block_bytes(), transactions).unwrap();
    assert_eq!(ycsb.fill(&mut batch, transactions), Ok(transactions));
    batch
}

fn small(letter: char) -> YcsbConfig {
    YcsbConfig { records: 100, ..YcsbConfig::hobbes(letter).unwrap() }
}

fn several(letter: char) -> YcsbConfig {
    YcsbConfig { records: 200, ..YcsbConfig::bionicdb(letter).unwrap() }
}

#[test]
fn every_preset_is_possible_and_describes_itself() {
    for letter in 'a'..='f' {
        for config in [YcsbConfig::hobbes(letter).unwrap(), YcsbConfig::bionicdb(letter).unwrap()] {
            config.validate().unwrap();
            assert!(config.describe().contains("seed 1"), "{}", config.describe());
        }
    }
    let refused = YcsbConfig::hobbes('g').unwrap_err().to_string();
    assert!(refused.contains("is hobbes 'g'; the letters a, b, c, d, e and f"), "{refused}");
}

#[test]
fn the_first_thousand_blocks_of_a_are_these() {
    let mut ycsb = bound(YcsbConfig { records: 10_000, ..YcsbConfig::hobbes('a').unwrap() });
    assert_eq!(ycsb.block_bytes(), 128);
    let batch = filled(&mut ycsb, 1000);
    let bytes: Vec<u8> = batch.blocks().flat_map(|block| block.bytes().to_vec()).collect();
    assert_eq!(format!("{:016x}", fnv1a(&bytes)), GOLDEN_A);
}

const GOLDEN_A: &str = "d608a29dd7bad6e0";

#[test]
fn the_procedures_of_sixteen_operations_are_one_for_each_split() {
    let ycsb = Ycsb::new(several('a')).unwrap();
    let sources = ycsb.sources();
    assert_eq!(sources.len(), 17);
    assert_eq!((sources[0].0.as_str(), sources[3].0.as_str()), ("ycsb_u16", "ycsb_r3u13"));
    assert_eq!(Ycsb::new(small('a')).unwrap().sources().len(), 16);
}

#[test]
fn a_procedure_checks_then_issues_then_awaits_then_works() {
    let config = YcsbConfig { operations: 2, fields: 4, ..small('a') };
    let text = Ycsb::new(config).unwrap().sources().into_iter().find(|(name, _)| name == "ycsb_r1u1").unwrap().1;
    let expected = "\
procedure ycsb_r1u1
table usertable
param key0: i64
param key1: i64
param f0: u8
param f1: u8
param value1: bytes(64)
result out0: bytes(64)
    load    r3, [f0]
    check   r3, 4
    mul     r3, r3, 64
    load    r4, [f1]
    check   r4, 4
    mul     r4, r4, 64
    search  c0, usertable, [key0]
    update  c1, usertable, [key1]
    ret     r1, c0
    ret     r2, c1
    copy    [out0], r1[usertable.field0 + r3], 64
    copy    r2[usertable.field0 + r4], [value1], 64
    commit
";
    assert_eq!(text, expected);
}

#[test]
fn scans_are_issued_when_new_rows_are_filled() {
    let config = YcsbConfig { operations: 2, fields: 2, ..small('e') };
    let sources = Ycsb::new(config).unwrap().sources();
    let text = |wanted: &str| &sources.iter().find(|(name, _)| name == wanted).unwrap().1;
    let (_, code) = text("ycsb_i1s1").split_once("    load    ").unwrap();
    let expected = "\
r4, [len1]
    check   r4, 101
    insert  c0, usertable, [key0]
    ret     r1, c0
    copy    r1[usertable.field0], [value0], 64
    copy    r1[usertable.field1], [value0], 64
    scan    c1, usertable.field0, [key1], [rows1], 100, r4
    ret     r2, c1
    store   r2, [count1]
    commit
";
    assert_eq!(code, expected);
    let both = text("ycsb_s2");
    assert!(both.find("scan    c1").unwrap() < both.find("ret     r1").unwrap(), "{both}");
}

#[test]
fn keys_of_a_transaction_differ_and_values_are_whole() {
    for letter in ['a', 'b', 'd', 'f'] {
        let mut ycsb = bound(YcsbConfig { theta: 0.99, ..several(letter) });
        for block in filled(&mut ycsb, 500).blocks() {
            let slots = &ycsb.bound[ycsb.by_id[&block.procedure()]].slots;
            assert_eq!(slots.len(), 16);
            let mut keys: Vec<&[u8]> = slots.iter().map(|slot| &block.bytes()[slot.key..slot.key + 8]).collect();
            keys.sort_unstable();
            keys.dedup();
            assert_eq!(keys.len(), 16);
            for slot in slots {
                assert!(slot.field.is_none_or(|at| block.bytes()[at] < 16));
                assert!(slot.value.is_none_or(|at| crate::value::is_intact(&block.bytes()[at..at + 64])));
            }
        }
    }
}

#[test]
fn new_keys_are_unique_above_the_loaded_ones_and_read_only_in_later_batches() {
    let mut ycsb = bound(small('d'));
    let mut next = 100;
    for _ in 0..5 {
        let visible = next;
        for block in filled(&mut ycsb, 200).blocks() {
            let slot = &ycsb.bound[ycsb.by_id[&block.procedure()]].slots[0];
            let key = u64::from_le_bytes(block.bytes()[slot.key..slot.key + 8].try_into().unwrap());
            if slot.kind == Kind::Insert {
                assert_eq!(key, next);
                next += 1;
            } else {
                assert!(key < visible);
            }
        }
    }
    assert!(next > 120, "{next}");
}

#[test]
fn kinds_come_in_their_proportions() {
    let mut ycsb = bound(YcsbConfig { records: 1000, ..YcsbConfig::hobbes('b').unwrap() });
    let batch = filled(&mut ycsb, 20_000);
    let updates =
        batch.blocks().filter(|block| ycsb.bound[ycsb.by_id[&block.procedure()]].slots[0].kind == Kind::Update);
    let updates = updates.count();
    assert!((900..1100).contains(&updates), "{updates}");
}

#[test]
fn scans_ask_for_lengths_between_the_two() {
    let mut ycsb = bound(YcsbConfig { min_scan: 3, max_scan: 5, ..small('e') });
    let mut lengths = [0; 6];
    for block in filled(&mut ycsb, 500).blocks() {
        let slot = &ycsb.bound[ycsb.by_id[&block.procedure()]].slots[0];
        if let Some(at) = slot.length {
            lengths[block.bytes()[at] as usize] += 1;
        }
    }
    assert!(lengths[..3].iter().all(|&n| n == 0) && lengths[3..].iter().all(|&n| n > 50), "{lengths:?}");
}

/// The rows as loaded.
fn images(ycsb: &Ycsb) -> Vec<Vec<u8>> {
    (0..ycsb.row_count(0))
        .map(|row| {
            let mut image = Vec::new();
            ycsb.row_image(0, row, &mut image);
            image
        })
        .collect()
}

fn check(ycsb: &mut Ycsb, rows: &[Vec<u8>], inserts: u64) -> Result<String, WorkloadError> {
    ycsb.committed_inserts = inserts;
    ycsb.check(&mut |each| rows.iter().for_each(|row| each("usertable", row)))
}

#[test]
fn contents_as_loaded_hold_and_each_damage_is_named() {
    let mut ycsb = bound(small('a'));
    let rows = images(&ycsb);
    assert!(check(&mut ycsb, &rows, 0).unwrap().contains("800 values"));
    let refused = |ycsb: &mut Ycsb, rows: &[Vec<u8>], inserts, what: &str| {
        let error = check(ycsb, rows, inserts).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    };
    refused(&mut ycsb, &rows, 1, "100 rows; 100 loaded and 1 inserted make 101");
    refused(&mut ycsb, &rows[1..], 0, "99 rows");
    let with = |change: &dyn Fn(&mut Vec<Vec<u8>>)| {
        let mut rows = rows.clone();
        change(&mut rows);
        rows
    };
    // Half of another row's field: torn.
    let torn = with(&|rows| {
        let half = rows[3][80..112].to_vec();
        rows[7][80..112].copy_from_slice(&half);
    });
    refused(&mut ycsb, &torn, 0, "of key 7 is torn");
    refused(&mut ycsb, &with(&|rows| rows[5] = rows[6].clone()), 0, "two rows of key 6");
    refused(&mut ycsb, &with(&|rows| rows[5][0] = 200), 0, "key 200");
    refused(&mut ycsb, &with(&|rows| rows[5].truncate(10)), 0, "10 bytes");
}

#[test]
fn results_of_committed_reads_are_looked_at() {
    let mut ycsb = bound(small('c'));
    let mut batch = filled(&mut ycsb, 10);
    assert_eq!(ycsb.check_results(&batch), Ok(0), "nothing is committed yet");
    let out = ycsb.bound[0].slots[0].out.unwrap();
    for i in 0..10 {
        let mut block = batch.block_mut(i);
        block.set_outcome(Status::Committed, 0);
        write_value(i as u64, &mut block.bytes()[out..out + 64]);
    }
    assert_eq!(ycsb.check_results(&batch), Ok(10));
    batch.block_mut(4).bytes()[out + 40] ^= 1;
    let error = ycsb.check_results(&batch).unwrap_err().to_string();
    assert!(error.contains("block 4") && error.contains("torn"), "{error}");
}

#[test]
fn calls_have_their_homes_in_turn_and_new_keys_of_every_partition_are_known_to_the_check() {
    let config = YcsbConfig { read: 0.0, operations: 2, partitions: 4, records: 20, ..small('d') };
    let mut ycsb = bound(config);
    let mut rows = images(&ycsb);
    for (call, block) in filled(&mut ycsb, 9).blocks().enumerate() {
        for slot in &ycsb.bound[ycsb.by_id[&block.procedure()]].slots {
            let key = &block.bytes()[slot.key..slot.key + 8];
            assert_eq!(u64::from_le_bytes(key.try_into().unwrap()) % 4, call as u64 % 4);
            let mut row = rows[0].clone();
            row[..8].copy_from_slice(key);
            rows.push(row);
        }
    }
    assert!(check(&mut ycsb, &rows, 18).unwrap().contains("38 rows (18 of them inserted)"));
    // Partition 1 has 5 loaded and 4 new keys, the last of them 33.
    rows[30][..8].copy_from_slice(&37_u64.to_le_bytes());
    let error = check(&mut ycsb, &rows, 18).unwrap_err().to_string();
    assert!(error.contains("key 37, which was neither loaded nor inserted"), "{error}");
}

#[test]
fn committed_inserts_are_counted() {
    let mut ycsb = bound(YcsbConfig { read: 0.0, ..small('d') });
    let mut batch = filled(&mut ycsb, 10);
    ycsb.observe(&batch);
    assert_eq!(ycsb.committed_inserts, 0);
    batch.block_mut(1).set_outcome(Status::Committed, 0);
    batch.block_mut(2).set_outcome(Status::Aborted, 7);
    ycsb.observe(&batch);
    assert_eq!(ycsb.committed_inserts, 1);
}

#[test]
fn impossible_options_are_refused_by_name() {
    let a = || small('a');
    let cases = [
        ("fields", YcsbConfig { fields: 0, ..a() }),
        ("fields", YcsbConfig { fields: 254, ..a() }),
        ("field_bytes", YcsbConfig { field_bytes: 0, ..a() }),
        ("operations", YcsbConfig { operations: 65, ..a() }),
        ("records", YcsbConfig { records: 0, ..a() }),
        ("records", YcsbConfig { records: 3, operations: 4, ..a() }),
        ("partitions", YcsbConfig { partitions: 0, ..a() }),
        ("partitions", YcsbConfig { partitions: 51, operations: 2, ..a() }),
        ("partitions", YcsbConfig { partitions: u32::MAX, records: 1 << 48, ..a() }),
        ("remote", YcsbConfig { partitions: 2, remote: 1.1, ..a() }),
        ("remote", YcsbConfig { partitions: 2, remote: -0.1, ..a() }),
        ("remote", YcsbConfig { partitions: 2, remote: f64::NAN, ..a() }),
        ("remote", YcsbConfig { partitions: 1, remote: 0.5, ..a() }),
        ("remote", YcsbConfig { partitions: 2, remote: 0.1, ..a() }),
        ("remote", YcsbConfig { partitions: 2, remote: 0.751, operations: 4, ..a() }),
        ("theta", YcsbConfig { theta: 1.0, ..a() }),
        ("read", YcsbConfig { read: -1.0, ..a() }),
        ("read", YcsbConfig { read: 0.0, update: 0.0, ..a() }),
        ("update", YcsbConfig { update: f64::NAN, ..a() }),
        ("ordered", YcsbConfig { ordered: false, ..small('e') }),
        ("min_scan", YcsbConfig { min_scan: 101, ..small('e') }),
        ("max_scan", YcsbConfig { max_scan: 0, ..small('e') }),
        ("max_scan", YcsbConfig { max_scan: 60_000, ..small('e') }),
        ("operations", YcsbConfig { operations: 64, insert: 0.1, rmw: 0.1, ..a() }),
    ];
    for (option, config) in cases {
        let error = Ycsb::new(config).unwrap_err();
        assert!(matches!(error, WorkloadError::Option { option: named, .. } if named == option), "{option}: {error}");
    }
    let wide = YcsbConfig { fields: 253, field_bytes: 1000, ..a() };
    assert!(matches!(Ycsb::new(wide).unwrap_err(), WorkloadError::Schema(_)));
}

#[test]
fn binding_needs_every_procedure_and_its_own_fields() {
    let mut ycsb = Ycsb::new(small('c')).unwrap();
    let mut batch = Batch::new(ycsb.block_bytes(), 1).unwrap();
    assert!(matches!(ycsb.fill(&mut batch, 1), Err(WorkloadError::Unbound(_))));
    assert_eq!(ycsb.bind(&mut |_| None), Err(WorkloadError::Unbound("ycsb_read_f0".into())));
    let foreign = ycsb.bind(&mut |_| Some((1, Procedure::default())));
    assert!(matches!(foreign, Err(WorkloadError::Foreign { field, .. }) if field == "key0"));
    let mut ycsb = bound(small('a'));
    let mut short = Batch::new(64, 1).unwrap();
    assert_eq!(ycsb.fill(&mut short, 1), Err(WorkloadError::ShortBlocks { stride: 64, needed: 128 }));
    assert!(short.is_empty());
}

#[test]
fn whole_rows_are_read_with_one_copy_and_payload_counts_what_is_touched() {
    let config = YcsbConfig {
        fields: 10,
        field_bytes: 100,
        read_scope: ReadScope::Row,
        distribution: Distribution::Uniform,
        ..small('c')
    };
    let ycsb = Ycsb::new(config).unwrap();
    let (name, text) = ycsb.sources().remove(0);
    assert_eq!(name, "ycsb_read_row");
    assert!(text.contains("result out0: bytes(100)[10]") && text.contains("r1[usertable.field0], 1252"), "{text}");
    assert_eq!(ycsb.payload_bytes(), 1000);
    assert_eq!(Ycsb::new(several('a')).unwrap().payload_bytes(), 1024);
}
