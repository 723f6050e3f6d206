//! A fault at every call of the disk, in turn, during everything that writes; then a crash, too.

use lockwork_neardata::storage::disk::{Fault, PAGE_BYTES};

use super::*;

const VIDS: u32 = 26;

/// A file with several versions, freed slots, and pages without content.
fn prepared() -> Vec<u8> {
    let disk = MemoryDisk::new();
    let store = store_over(&disk);
    let versions: Vec<Version> = (0..24).map(|vid| version(vid, 1, 1, i64::from(vid))).collect();
    store.flush(0, &versions, 0).unwrap();
    raise(&store, 1, 0, 100, 1).unwrap();
    store.commit(TransactionId(1), 2).unwrap();
    store.collect(2).unwrap();
    raise(&store, 2, 116, 100, 2).unwrap();
    store.commit(TransactionId(2), 3).unwrap();
    store.flush(0, &[version(3, 3, 4, -3), version(24, 1, 4, 24)], 2).unwrap();
    disk.content()
}

type Action = fn(&Store) -> Result<(), DeviceError>;

fn flush(store: &Store) -> Result<(), DeviceError> {
    let new = (8..14).map(|vid| version(vid, 3, 5, -1));
    let versions: Vec<Version> = new.chain([version(25, 1, 5, 25), version(25, 2, 6, 26)]).collect();
    store.flush(0, &versions, 3).map(|records| assert_eq!(records.len(), 8))
}

fn update_and_commit(store: &Store) -> Result<(), DeviceError> {
    let result = raise(store, 7, 0, 1000, 4).and_then(|_| store.commit(TransactionId(7), 5));
    store.abort(TransactionId(7)).unwrap();
    result
}

fn collect(store: &Store) -> Result<(), DeviceError> {
    store.collect(4).map(|_| ())
}

fn create(store: &Store) -> Result<(), DeviceError> {
    let other = TableSchema::new("other", &[("id", ColumnType::I64)], 1, false).unwrap();
    store.create_table(&other).map(|id| assert_eq!(id, 1))
}

/// What can be seen: rows at all snapshots in use, and tables.
fn state(store: &Store, from: Timestamp) -> (Seen, Vec<TableSchema>) {
    (everything(store, VIDS, from, 6), store.tables().unwrap())
}

/// Lets every call of `action` to the disk go wrong in turn.
fn at_every_call(action: Action, fault: Fault, from: Timestamp) {
    let content = prepared();
    let before = state(&store_over(&MemoryDisk::with(content.clone())), from);
    let after = {
        let store = store_over(&MemoryDisk::with(content.clone()));
        action(&store).unwrap();
        state(&store, from)
    };
    for n in 0.. {
        assert!(n < 200, "an action has far fewer calls");
        let disk = MemoryDisk::with(content.clone());
        let store = store_over(&disk);
        disk.fail_at(n, fault);
        let result = action(&store);
        if disk.forget_fault() {
            assert_eq!(result, Ok(()));
            assert!(n > 1, "the action reached the disk {n} times");
            return;
        }
        for seed in 0..6 {
            let found = state(&store_over(&disk.after_crash(seed)), from);
            let expected = if result.is_ok() { found == after } else { found == before || found == after };
            assert!(expected, "{fault:?} at call {n}, seed {seed}: neither before nor after ({result:?})");
        }
        if fault == Fault::Crash {
            continue;
        }
        // Those who go on without reopening find what the call has answered, and can do it again.
        let now = state(&store, from);
        assert!(now == if result.is_ok() { after.clone() } else { before.clone() }, "{fault:?} at call {n}");
        if let Err(error) = result {
            assert_eq!(matches!(error, DeviceError::Full(_)), fault == Fault::NoSpace, "{error}");
            action(&store).unwrap_or_else(|error| panic!("{fault:?} at call {n}, once more: {error}"));
            assert!(state(&store, from) == after);
            for seed in 0..4 {
                assert!(state(&store_over(&disk.after_crash(seed)), from) == after, "call {n}, once more");
            }
        }
    }
}

fn with_every_fault(action: Action, from: Timestamp) {
    for fault in [Fault::Fail, Fault::NoSpace, Fault::Short, Fault::Torn, Fault::Crash] {
        at_every_call(action, fault, from);
    }
}

#[test]
fn flush_is_whole_or_nothing() {
    with_every_fault(flush, 3);
}

#[test]
fn a_bulk_update_is_whole_or_nothing() {
    with_every_fault(update_and_commit, 4);
}

#[test]
fn collecting_loses_nothing() {
    with_every_fault(collect, 4);
}

#[test]
fn a_table_is_there_or_not() {
    with_every_fault(create, 3);
}

#[test]
fn creating_the_file_can_crash_anywhere() {
    for n in 0.. {
        let disk = MemoryDisk::new();
        disk.fail_at(n, Fault::Crash);
        let result = Store::over(Arc::new(disk.clone()), &config(None)).map(|_| ());
        for seed in 0..8 {
            let store = store_over(&disk.after_crash(seed));
            store.flush(0, &[version(0, 1, 1, 5)], 0).unwrap();
            assert_eq!(total(&store, 1), Ok((1, Some(5))));
        }
        if disk.forget_fault() {
            assert_eq!((result, n > 3), (Ok(()), true));
            return;
        }
    }
}

#[test]
fn a_seal_that_cannot_be_taken_back_closes_the_store_for_writing() {
    let content = prepared();
    let before = state(&store_over(&MemoryDisk::with(content.clone())), 3);
    let mut closed = 0;
    for n in 0.. {
        let disk = MemoryDisk::with(content.clone());
        let store = store_over(&disk);
        disk.fail_at(n, Fault::NoMoreWrites);
        let result = flush(&store);
        assert!(result.is_ok() || state(&store, 3) == before, "call {n}");
        if disk.forget_fault() {
            break;
        }
        assert!(matches!(result, Err(DeviceError::Io(_))), "call {n}: {result:?}");
        for seed in 0..6 {
            // The seal may have become durable; then it counts after opening.
            let found = state(&store_over(&disk.after_crash(seed)), 3);
            let after = found.0.iter().flatten().any(|version| version.created == 5);
            assert!(after || found == before, "call {n}, seed {seed}");
        }
        match flush(&store) {
            Ok(()) => assert!(total(&store_over(&disk.after_crash(0)), 6) == total(&store, 6)),
            Err(error) => {
                assert!(error.to_string().contains("open the storage again"), "{error}");
                closed += 1;
            }
        }
    }
    assert!(closed >= 2, "the seal's write and its sync cannot be taken back: {closed}");
}

#[test]
fn what_a_killed_process_had_written_and_not_synced_is_there_for_good_or_not_at_all() {
    // The kernel keeps what was written when a process dies, and power may be lost later.
    let content = prepared();
    let before = state(&store_over(&MemoryDisk::with(content.clone())), 3);
    for fault in [Fault::Crash, Fault::NoMoreWrites] {
        let mut unsynced = 0;
        for n in 0.. {
            let disk = MemoryDisk::with(content.clone());
            let store = store_over(&disk);
            disk.fail_at(n, fault);
            let result = flush(&store);
            if disk.forget_fault() {
                break;
            }
            let disk = disk.after_kill();
            let next = store_over(&disk);
            let found = state(&next, 3);
            unsynced += u32::from(result.is_err() && found != before);
            let same = |from, found: &_, what: &str| {
                for seed in 0..8 {
                    let after = state(&store_over(&disk.after_crash(seed)), from);
                    assert!(after == *found, "{fault:?} at call {n}, {what}, seed {seed}");
                }
            };
            same(3, &found, "opened");
            // It goes on from there, over what the seal in question has replaced or not.
            next.collect(6).unwrap();
            raise(&next, 9, 0, 1000, 6).unwrap();
            next.commit(TransactionId(9), 7).unwrap();
            same(7, &state(&next, 7), "and gone on");
        }
        assert!(unsynced > 0, "a seal that was written counts although it was not synced");
    }
}

#[test]
fn a_commit_of_which_nobody_knows_is_not_called_aborted() {
    let content = prepared();
    let (mut open, mut refused) = (0, 0);
    for n in 0.. {
        let disk = MemoryDisk::with(content.clone());
        let store = store_over(&disk);
        raise(&store, 7, 0, 1000, 4).unwrap();
        let before = state(&store, 4);
        disk.fail_at(n, Fault::NoMoreWrites);
        let result = store.commit(TransactionId(7), 5);
        assert!(result.is_ok() || state(&store, 4) == before, "call {n}");
        if disk.forget_fault() {
            break;
        }
        drop(store);
        let found = [0, 1, 2, 3, 6, 7].map(|seed| state(&store_over(&disk.after_crash(seed)), 4));
        let killed = state(&store_over(&disk), 4);
        match result.unwrap_err() {
            DeviceError::Gone(text) => {
                assert!(text.contains("whether the update was committed is not known"), "{text}");
                open += u32::from(found.iter().chain([&killed]).any(|found| *found != before));
            }
            error => {
                assert!(found.iter().chain([&killed]).all(|found| *found == before), "call {n}: {error}");
                refused += 1;
            }
        }
    }
    assert!(open > 0 && refused > 0, "{open} were open and took place, {refused} were refused");
}

#[test]
fn what_was_written_before_a_sync_that_failed_never_counts() {
    let content = prepared();
    let mut doomed = 0;
    for n in 0.. {
        let disk = MemoryDisk::with(content.clone());
        let store = store_over(&disk);
        let raised = raise(&store, 7, 0, 1000, 4).unwrap();
        assert!(raised > 0);
        // Its pages are written and not durable; now the disk forgets them, if the call that fails is a sync.
        disk.fail_at(n, Fault::Fail);
        let flushed = flush_one(&store);
        if disk.forget_fault() {
            assert!(flushed.is_ok() && n > 2);
            break;
        }
        let before = state(&store, 4);
        match store.commit(TransactionId(7), 7) {
            Ok(()) => {
                let after = state(&store, 4);
                (0..4).for_each(|seed| assert!(state(&store_over(&disk.after_crash(seed)), 4) == after, "call {n}"));
            }
            Err(error) => {
                assert!(error.to_string().contains("when a sync failed; nothing of it counts"), "{error}");
                store.abort(TransactionId(7)).unwrap();
                assert!(state(&store, 4) == before, "call {n}");
                assert_eq!(raise(&store, 8, 0, 1000, 4), Ok(raised));
                store.commit(TransactionId(8), 7).unwrap();
                doomed += 1;
            }
        }
    }
    assert!(doomed >= 2, "a flush syncs its pages and its seal: {doomed}");
}

/// Stores a new tuple.
fn flush_one(store: &Store) -> Result<(), DeviceError> {
    store.flush(0, &[version(25, 1, 5, 25)], 3).map(drop)
}

#[test]
fn a_full_disk_fails_writes_and_nothing_else() {
    let disk = MemoryDisk::with(prepared());
    let store = store_over(&disk);
    disk.limit(Some(store.status().unwrap().pages as u32));
    let mut vid = 25;
    let error = loop {
        let versions: Vec<Version> = (vid..vid + 8).map(|vid| version(vid, 1, 5, 1)).collect();
        match store.flush(0, &versions, 4) {
            Ok(_) => vid += 8,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, DeviceError::Full(_)), "{error}");
    let rows = total(&store, 9).unwrap();
    assert_eq!(rows.0, u64::from(vid));
    assert!(matches!(raise(&store, 1, i64::MIN, 1, 9), Err(DeviceError::Full(_))));
    assert_eq!(total(&store, 9), Ok(rows));
    assert!(store.collect(9).is_ok());
    disk.limit(None);
    assert_eq!(raise(&store, 2, i64::MIN, 1, 9), Ok(u64::from(vid)));
    store.commit(TransactionId(2), 10).unwrap();
    assert_eq!(total(&store_over(&disk.after_crash(0)), 10), Ok((rows.0, rows.1.map(|sum| sum + i64::from(vid)))));
}

#[test]
fn a_changed_byte_anywhere_is_an_error_or_does_not_count() {
    let content = prepared();
    let before = state(&store_over(&MemoryDisk::with(content.clone())), 3);
    let (mut refused, mut harmless) = (0, 0);
    for page in 0..content.len() / PAGE_BYTES {
        for at in [0, 5, 9, 17, 36, 70, 100, 4000, 8191] {
            let mut content = content.clone();
            content[page * PAGE_BYTES + at] ^= 0x40;
            match Store::over(Arc::new(MemoryDisk::with(content)), &config(None)) {
                Err(DeviceError::Corrupt(text)) => {
                    assert!(text.contains(&format!("page {page} of the file")), "{text}");
                    refused += 1;
                }
                Err(error) => panic!("page {page}, byte {at}: {error}"),
                Ok(store) => {
                    assert!(state(&store, 3) == before, "page {page}, byte {at}");
                    harmless += 1;
                }
            }
        }
    }
    assert!(refused >= 9 * 5 && harmless >= 9 * 4, "{refused} refused, {harmless} harmless");
}

#[test]
fn truncated_and_foreign_files_are_told_apart() {
    let content = prepared();
    let open = |bytes: &[u8]| match Store::over(Arc::new(MemoryDisk::with(bytes.to_vec())), &config(None)) {
        Err(DeviceError::Corrupt(text)) => text,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was opened"),
    };
    for pages in 2..content.len() / PAGE_BYTES {
        let text = open(&content[..pages * PAGE_BYTES]);
        assert!(text.contains("truncated") && text.contains(&format!("{} bytes", content.len())), "{text}");
    }
    assert!(open(&content[..content.len() - 1]).contains("truncated"));
    assert!(open(&content[..PAGE_BYTES]).contains("no Lockwork near-data file"));
    assert!(open(&[7; 3 * PAGE_BYTES]).contains("neither of its first two pages is a whole head"));
    assert!(open(&[0; 3 * PAGE_BYTES]).contains("neither of its first two pages is a whole head"));
    assert!(open(b"hello").contains("it has 5 bytes, at least 16384 are wanted"));
}

#[test]
fn a_page_that_goes_bad_later_is_an_error_that_names_it() {
    let disk = MemoryDisk::with(prepared());
    let store = store_over(&disk);
    // Every page of rows is torn on the disk, behind the store's back.
    use lockwork_neardata::storage::disk::{Disk, Page};
    for number in 2..store.status().unwrap().pages as u32 {
        let mut page = [Page::ZERO];
        disk.read(number, &mut page).unwrap();
        if page[0][4] == 3 {
            page[0][4096..].fill(0xEE);
            disk.write(number, &page).unwrap();
        }
    }
    let text = |error: DeviceError| match error {
        DeviceError::Corrupt(text) => text,
        other => panic!("{other}"),
    };
    assert!(text(store.read(0, Vid(0), 9).unwrap_err()).contains("its checksum is wrong"));
    assert!(text(filter(&store, 0, 9).unwrap_err()).contains("its checksum is wrong"));
    assert!(text(store.tuples(0, &mut |_| {}).unwrap_err()).contains("its checksum is wrong"));
    // Pages that need not be read can still be written.
    store.create_table(&TableSchema::new("other", &[("id", ColumnType::I64)], 1, false).unwrap()).unwrap();
}
