//! What each call does, and what it refuses.

use super::*;

fn bank() -> (MemoryDisk, Store) {
    let disk = MemoryDisk::new();
    let store = store_over(&disk);
    let versions: Vec<Version> = (0..40).map(|vid| version(vid, 1, 1, i64::from(vid))).collect();
    store.flush(0, &versions, 0).unwrap();
    (disk, store)
}

fn aggregate(store: &Store, source: &str, arguments: &[i64], folds: &[(&str, Fold)]) -> Result<Vec<i64>, DeviceError> {
    let folds = folds.iter().map(|(name, fold)| ((*name).to_string(), *fold)).collect();
    let mut answer = Vec::new();
    store.run(&operation(source, arguments, Purpose::Aggregate(folds), 9), &mut |piece| {
        let Piece::Folded { values, .. } = piece else { panic!("an aggregate gives folded results") };
        answer = values.unwrap_or_default().to_vec();
    })?;
    Ok(answer)
}

#[test]
fn rows_are_filtered_and_folded() {
    let (_, store) = bank();
    assert_eq!(filter(&store, 38, 1).unwrap().into_keys().collect::<Vec<_>>(), [38, 39]);
    assert_eq!(filter(&store, 0, 0).unwrap().len(), 0);
    assert_eq!(total(&store, 1), Ok((40, Some(780))));
    assert_eq!(total(&store, 0), Ok((0, None)));
    let all = [("balance", Fold::Min), ("balance", Fold::Max), ("balance", Fold::Sum)];
    assert_eq!(aggregate(&store, RICH, &[30], &all), Ok(vec![30, 39, 345]));
    // Two of these do not fit 64 bits together, and neither do any three with one of them taken away.
    store.flush(0, &[version(40, 1, 2, i64::MAX), version(41, 1, 2, i64::MAX)], 0).unwrap();
    let error = aggregate(&store, RICH, &[30], &all).unwrap_err().to_string();
    assert_eq!(error, "the sum of 'balance' is 18446744073709551959, which does not fit 64 bits with a sign");
    assert_eq!(aggregate(&store, RICH, &[30], &all[..2]), Ok(vec![30, i64::MAX]));
}

#[test]
fn a_narrow_result_keeps_its_sign() {
    let (_, store) = bank();
    let source = "procedure p\ntable accounts\nparam k: i64\nresult low: i8\nresult high: u8
        search c0, accounts, [k]\nret r1, c0\nmov r2, -3\nstore r2, [low]\nmov r2, 200\nstore r2, [high]\ncommit\n";
    assert_eq!(aggregate(&store, source, &[0], &[("low", Fold::Min), ("high", Fold::Max)]), Ok(vec![-3, 200]));
}

#[test]
fn an_update_waits_for_its_commit_and_leaves_nothing_when_aborted() {
    let (disk, store) = bank();
    assert_eq!(raise(&store, 1, 30, 1000, 1), Ok(10));
    assert_eq!(total(&store, 9), Ok((40, Some(780))));
    store.abort(TransactionId(1)).unwrap();
    assert!(matches!(store.commit(TransactionId(1), 2), Err(DeviceError::Refused(_))));

    assert_eq!(raise(&store, 2, 30, 1000, 1), Ok(10));
    assert!(raise(&store, 2, 30, 1000, 1).unwrap_err().to_string().contains("transaction 2 has run already"));
    let error = store.commit(TransactionId(2), 1).unwrap_err().to_string();
    assert_eq!(error, "timestamp 1 is not after the snapshot of the transaction, 1");
    store.commit(TransactionId(2), 5).unwrap();
    for store in [store, store_over(&disk.after_crash(0))] {
        assert_eq!((total(&store, 4), total(&store, 5)), (Ok((40, Some(780))), Ok((40, Some(10_780)))));
        let read = store.read(0, Vid(31), 7).unwrap().unwrap();
        assert_eq!((read.number, read.created, balance(&read.image.unwrap())), (2, 5, 1031));
        assert_eq!(store.status().unwrap().newest, 5);
    }
}

#[test]
fn first_updater_wins() {
    let (disk, store) = bank();
    store.flush(0, &[version(35, 2, 3, 99)], 0).unwrap();
    let conflict = DeviceError::Conflict { table: 0, vid: Vid(35) };
    let free = store.status().unwrap().free_pages;
    assert_eq!(raise(&store, 1, 30, 1, 2), Err(conflict.clone()));
    assert_eq!(store.status().unwrap().free_pages, free);
    assert_eq!(raise(&store, 1, 30, 1, 3), Ok(10));
    // Whoever updates a tuple that the transaction has, without its lock, spoils the transaction.
    store.flush(0, &[version(36, 2, 4, 99)], 0).unwrap();
    assert_eq!(store.commit(TransactionId(1), 5), Err(DeviceError::Conflict { table: 0, vid: Vid(36) }));
    store.abort(TransactionId(1)).unwrap();
    drop(store);
    for (refusal, error) in [
        (LockRefusal::Superseded, conflict),
        (LockRefusal::Busy, DeviceError::Busy { table: 0, vid: Vid(35) }),
        (LockRefusal::Failed("gone".into()), DeviceError::Refused("the lock table is not usable: gone".into())),
    ] {
        let config = config(Some((Vid(35), refusal)));
        let store = Store::over(Arc::new(disk.clone()), &config).unwrap();
        assert_eq!(raise(&store, 1, 30, 1, 4), Err(error));
    }
}

#[test]
fn a_row_on_which_the_program_fails_fails_the_operation() {
    let (_, store) = bank();
    let error = raise(&store, 1, 39, i64::MAX, 1).unwrap_err();
    assert_eq!(error, DeviceError::RowFailed { table: 0, vid: Vid(39), code: 0xFF03 });
    assert!(error.to_string().contains("tuple 39") && error.to_string().contains("integer overflow"));
    let source = "procedure p\ntable accounts\nparam k: i64\nupdate c0, accounts, [k]\nret r1, c0
        mov r2, 128\nstorer r2, r1[accounts.small]\ncommit\n";
    let operation = operation(source, &[0], Purpose::Update(TransactionId(4)), 1);
    assert!(matches!(store.run(&operation, &mut |_| {}), Err(DeviceError::RowFailed { code: 0xFF06, .. })));
    assert_eq!(store.commit(TransactionId(4), 7).unwrap_err().to_string().split(';').count(), 2);
    assert_eq!(total(&store, 9), Ok((40, Some(780))));
}

#[test]
fn programs_of_another_shape_are_refused() {
    let (_, store) = bank();
    let other = TableSchema::new("other", &[("id", ColumnType::I64)], 1, false).unwrap();
    assert_eq!(store.create_table(&other), Ok(1));
    let refused = |operation: &Operation, text: &str| match store.run(operation, &mut |_| {}) {
        Err(DeviceError::Refused(error)) => assert!(error.contains(text), "{error}"),
        other => panic!("'{text}' expected, and it was {other:?}"),
    };
    let good = operation(RICH, &[0], Purpose::Filter, 1);
    refused(&Operation { purpose: Purpose::Update(TransactionId(1)), ..good.clone() }, "must be update, once");
    refused(&operation(RAISE, &[0, 0], Purpose::Filter, 1), "must be search, once");
    refused(&Operation { table: 1, ..good.clone() }, "must use table 'other' and no other");
    refused(&Operation { table: 2, ..good.clone() }, "there is no table 2");
    refused(&Operation { block: vec![0; 40], ..good.clone() }, "its block has 40 bytes, 48 are needed");
    refused(&Operation { program: b"LWP2".to_vec(), ..good.clone() }, "byte 0");
    let unknown = Purpose::Aggregate(vec![("limit".into(), Fold::Sum)]);
    refused(&Operation { purpose: unknown, ..good.clone() }, "'limit' is not a result of one integer");
    let twice = RICH.replace("    cmp", "    search  c1, accounts, [limit]\n    ret     r4, c1\n    cmp");
    refused(&operation(&twice, &[0], Purpose::Filter, 1), "must be search, once");
    // A key column is the verifier's to protect.
    let keys = RAISE.replace("storer  r2, r1[accounts.balance]", "storer  r2, r1[accounts.id]");
    refused(&operation(&keys, &[0, 0], Purpose::Update(TransactionId(1)), 1), "key");
}

#[test]
fn versions_that_do_not_follow_are_refused_whole() {
    let (_, store) = bank();
    let before = everything(&store, 41, 0, 3);
    let refused = |versions: &[Version], text: &str| match store.flush(0, versions, 0) {
        Err(DeviceError::Refused(error)) => assert!(error.contains(text), "{error}"),
        other => panic!("'{text}' expected, and it was {other:?}"),
    };
    let good = version(3, 2, 2, 50);
    refused(&[good.clone(), version(4, 1, 2, 0)], "version 1 of tuple 4 does not follow on the newest stored one, 1");
    refused(&[good.clone(), version(3, 2, 3, 0)], "version 2 of tuple 3 does not follow");
    refused(&[good.clone(), version(3, 3, 2, 0)], "was created at 2, not after the one before");
    refused(&[good.clone(), version(40, 0, 2, 0)], "version 0 of tuple 40 does not follow on the newest stored one, 0");
    refused(&[good.clone(), version(40, 1, 0, 0)], "was created at 0");
    refused(&[good.clone(), version(u32::MAX, 1, 2, 0)], "there is no tuple 4294967295");
    let mut short = version(5, 2, 2, 0);
    short.image = Some(Box::new([0; 7]));
    refused(&[good, short], "has 7 bytes instead of");
    assert_eq!(everything(&store, 41, 0, 3), before);
    assert!(store.flush(7, &[], 0).unwrap_err().to_string().contains("there is no table 7"));
}

#[test]
fn tuples_may_lie_far_from_those_that_are_stored_and_not_beyond_the_end_of_the_table() {
    let disk = MemoryDisk::new();
    let limited = StoreConfig { tuples: 3_000_000, ..config(None) };
    let store = Store::over(Arc::new(disk), &limited).unwrap();
    store.create_table(&schema()).unwrap();
    store.flush(0, &[version(2_999_999, 1, 1, 5)], 0).unwrap();
    assert_eq!(total(&store, 1), Ok((1, Some(5))));
    let error = store.flush(0, &[version(3_000_000, 1, 2, 5)], 0).unwrap_err().to_string();
    assert!(error.contains("there is no tuple 3000000; a table has at most 3000000 here"), "{error}");
}

#[test]
fn tables_come_back_and_bad_ones_are_refused() {
    let (disk, store) = bank();
    let other = TableSchema::new("other", &[("a", ColumnType::U8), ("b", ColumnType::U16)], 2, true).unwrap();
    let other = other.partition_by_hash("b").unwrap();
    assert_eq!(store.create_table(&other), Ok(1));
    assert!(store.create_table(&other).unwrap_err().to_string().contains("there is a table 'other'"));
    let wide = TableSchema::new("wide", &[("a", ColumnType::U8), ("b", ColumnType::Bytes(8200))], 1, true).unwrap();
    assert!(store.create_table(&wide).unwrap_err().to_string().contains("must fit a page of 8 KiB"));
    assert_eq!(store_over(&disk.after_crash(0)).tables().unwrap(), [schema(), other]);
}

#[test]
fn collecting_frees_what_nobody_sees_and_gives_whole_pages_back() {
    let (disk, store) = bank();
    assert_eq!(raise(&store, 1, 0, 1, 1), Ok(40));
    store.commit(TransactionId(1), 2).unwrap();
    assert_eq!((store.status().unwrap().versions, store.collect(1)), (80, Ok(0)));
    let free = store.status().unwrap().free_pages;
    assert_eq!((store.collect(2), store.collect(2)), (Ok(40), Ok(0)));
    assert_eq!(store.status().unwrap().versions, 40);
    assert!(store.status().unwrap().free_pages >= free + 4, "five pages of rows hold nothing any more");
    let reopened = store_over(&disk.after_crash(0));
    for store in [&store, &reopened] {
        assert_eq!(total(store, 2), Ok((40, Some(820))));
        assert_eq!(store.read(0, Vid(3), 1), Ok(None));
    }
    // Updates of everything again and again take no more room.
    let mut pages = Vec::new();
    for round in 2..40 {
        raise(&store, round, i64::MIN, 1, round).unwrap();
        store.commit(TransactionId(round), round + 1).unwrap();
        store.collect(round + 1).unwrap();
        pages.push(store.status().unwrap().pages);
    }
    assert_eq!(pages[5..], [pages[5]].repeat(pages.len() - 5));
    assert_eq!(total(&store, 99), Ok((40, Some(820 + 38 * 40))));
}

#[test]
fn small_flushes_share_pages_and_seals() {
    let (_, store) = bank();
    for round in 0..300_u32 {
        let (vid, number, created) = (round % 7, 2 + round / 7, u64::from(round) + 2);
        store.flush(0, &[version(vid, number, created, 5)], created).unwrap();
    }
    assert!(store.status().unwrap().pages <= 34, "{:?}", store.status());
}

#[test]
fn tuples_are_told_with_their_keys() {
    let (_, store) = bank();
    let removed = Version { vid: Vid(4), number: 2, created: 3, image: None };
    store.flush(0, &[removed], 0).unwrap();
    let mut seen = BTreeMap::new();
    store
        .tuples(0, &mut |tuple| {
            let key = <[u8; 8]>::try_from(tuple.key).map(i64::from_le_bytes).ok();
            assert!(seen.insert(tuple.vid.0, (tuple.number, tuple.created, key)).is_none());
        })
        .unwrap();
    let expected = (0..40).map(|vid| (vid, if vid == 4 { (2, 3, None) } else { (1, 1, Some(i64::from(vid))) }));
    assert_eq!(seen, expected.collect());
    assert_eq!(filter(&store, 0, 3).unwrap().len(), 39);
    assert_eq!(store.read(0, Vid(4), 3).unwrap().unwrap().image, None);
    assert!(store.read(0, Vid(4), 2).unwrap().unwrap().image.is_some());
}
