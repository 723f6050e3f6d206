//! Input from a seed, the specification's shares, and a check that sees what is wrong.

use super::*;
use crate::testing;

fn small() -> TatpConfig {
    TatpConfig { subscribers: 200, ..TatpConfig::default() }
}

#[test]
fn seed_1_gives_these_rows_and_calls() {
    assert_eq!(
        testing::golden(&mut Tatp::new(small()).unwrap()),
        (15_019_594_261_514_220_226, 11_281_128_295_409_516_583)
    );
}

#[test]
fn rows_have_distinct_keys_and_the_specifications_averages() {
    let tatp = Tatp::new(TatpConfig { subscribers: 5000, ..small() }).unwrap();
    let rows = testing::images(&tatp);
    for (table, (schema, each)) in Tatp::tables().into_iter().enumerate() {
        let key = schema.key_bytes() as usize;
        let keys: std::collections::BTreeSet<&[u8]> =
            rows.iter().filter(|(name, _)| name == schema.name()).map(|(_, row)| &row[..key]).collect();
        assert_eq!(keys.len() as u64, tatp.row_count(table));
        assert!((keys.len() as f64 / 5000.0 - each).abs() < 0.1, "{}: {}", schema.name(), keys.len());
    }
    let active = Place::column(&tatp.schemas[table::SPECIAL_FACILITY], "is_active");
    let facilities = rows.iter().filter(|(name, _)| name == "special_facility");
    let share = facilities.map(|(_, row)| active.get(row)).sum::<i64>() as f64 / 12_500.0;
    assert!((0.82..0.88).contains(&share), "{share}");
}

#[test]
fn the_mix_is_the_specifications() {
    // So many that a weight that is wrong by one is seen.
    const CALLS: usize = 200_000;
    let mut tatp = Tatp::new(small()).unwrap();
    testing::bind(&mut tatp);
    let batch = testing::filled(&mut tatp, CALLS);
    let mut counts = [0_u64; 7];
    batch.blocks().for_each(|block| counts[block.procedure() as usize] += 1);
    // TATP 1.0, "Transaction mix".
    for (kind, percent) in [
        (Kind::GetSubscriberData, 35),
        (Kind::GetNewDestination, 10),
        (Kind::GetAccessData, 35),
        (Kind::UpdateSubscriberData, 2),
        (Kind::UpdateLocation, 14),
        (Kind::InsertCallForwarding, 2),
        (Kind::DeleteCallForwarding, 2),
    ] {
        let (count, expected) = (counts[kind as usize], CALLS as u64 / 100 * percent);
        assert!(count.abs_diff(expected) < CALLS as u64 / 200, "{kind:?}: {count} of {expected}");
    }
    tatp.observe(&batch);
    assert_eq!((tatp.calls, tatp.committed), (counts, [0; 7]));
}

#[test]
fn numbers_are_fifteen_digits() {
    assert_eq!(&sub_nbr(1_234_567), b"000000001234567");
}

#[test]
fn what_is_loaded_holds_and_each_broken_row_is_named() {
    let mut tatp = Tatp::new(small()).unwrap();
    testing::bind(&mut tatp);
    let rows = testing::images(&tatp);
    assert!(testing::check(&mut tatp, &rows).unwrap().contains("200 subscribers, 0 forwardings inserted"));
    let schemas = tatp.schemas();
    let mut refused = |table: &str, column: &str, value: i64, words: &str| {
        let mut rows = rows.clone();
        let schema = schemas.iter().find(|schema| schema.name() == table).unwrap();
        let image = rows.iter_mut().find(|(name, _)| name == table).unwrap();
        Place::column(schema, column).put(&mut image.1, value);
        let error = testing::check(&mut tatp, &rows).expect_err(words);
        assert!(error.contains(words), "'{error}' does not say '{words}'");
    };
    refused("access_info", "s", 201, "access_info: a row of subscriber 201, who there is not");
    refused("subscriber_number", "s", 2, "the number of subscriber 2 is another one's");
    refused("call_forwarding", "sf_type", 5, "forwards calls of a facility that there is not");
    refused("call_forwarding", "start_time", 4, "starts at 4");
    assert!(testing::check(&mut tatp, &rows[1..]).unwrap_err().contains("subscriber has 199 rows; 200 loaded"));
    tatp.committed[Kind::InsertCallForwarding as usize] = 2;
    let words = "2 inserted and 0 deleted make";
    assert!(testing::check(&mut tatp, &rows).unwrap_err().contains(words));
}

#[test]
fn the_data_of_another_subscriber_is_a_violation() {
    let mut tatp = Tatp::new(small()).unwrap();
    testing::bind(&mut tatp);
    let mut batch = testing::filled(&mut tatp, 50);
    let read = (0..50).find(|&at| batch.block(at).procedure() == Kind::GetSubscriberData as u32).unwrap();
    batch.block_mut(read).set_outcome(Status::Committed, 0);
    let error = tatp.check_results(&batch).unwrap_err().to_string();
    assert!(error.contains(&format!("block {read}: the data of subscriber")), "{error}");
}

#[test]
fn impossible_options_are_refused_by_name() {
    let error = Tatp::new(TatpConfig { subscribers: 0, ..small() }).unwrap_err();
    assert!(matches!(error, WorkloadError::Option { option: "subscribers", .. }), "{error}");
}
