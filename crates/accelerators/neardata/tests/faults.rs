//! A storage that dies, refuses, is full or answers nonsense at any step: the data stays as it was, nothing that was
//! committed is lost, and no lock is left.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::{Setup, all, at_least, block, filled, gone, insert, numbers, procedure, raise, set};
use lockwork_neardata::device::{
    Device, DeviceError, DeviceStatus, Fold, Modified, Operation, Piece, Ran, TableId, TransactionId, Tuple, Version,
};
use lockwork_neardata::host::in_process::InProcessLocks;
use lockwork_neardata::host::vid_map::VidMap;
use lockwork_neardata::host::{Config, Host, HostError, Isolation};
use lockwork_neardata::record::{RecordId, Timestamp, Vid};
use lockwork_procedure::block::{Block, Status, abort};
use lockwork_procedure::schema::TableSchema;

/// A bulk update that fails at step `step` with `error`. Answers false if it got done before.
fn fails_at(isolation: Isolation, here: bool, step: u64, error: &DeviceError) -> bool {
    let setup = Setup::new(isolation, Duration::ZERO);
    let host = filled(&setup);
    let before = all(&host);
    let mut after = before.clone();
    after.values_mut().filter(|value| **value >= 30).for_each(|value| *value += 1);
    let (program, block) = raise(30, 1);
    setup.device.fail_at(step, error.clone());
    let ended = {
        let mut worker = host.worker().unwrap();
        if here {
            worker.bulk_update_on_host(0, &program, &block).map(|_| ())
        } else {
            worker.bulk_update(0, &program, &block).and_then(|update| update.commit()).map(|_| ())
        }
    };
    if setup.device.will_fail() {
        setup.device.revive();
        ended.unwrap();
        assert_eq!(all(&host), after);
        return false;
    }
    let died = matches!(error, DeviceError::Gone(_));
    let in_doubt = matches!(ended, Err(HostError::InDoubt { .. }));
    if died {
        if in_doubt {
            assert_ne!(setup.locks.held(), 0, "what is in doubt stays locked");
            assert!(matches!(set(&host, 0, 5), Err(HostError::Device(_) | HostError::InDoubt { .. })));
        } else {
            assert_eq!(setup.locks.held(), 0, "its locks go");
        }
        setup.device.revive();
        let committed = host.reattach(setup.device.clone()).unwrap();
        assert!(in_doubt || committed.is_none());
        assert_eq!(
            all(&host),
            if committed.is_some() || ended.is_ok() { after } else { visible(here, &host, before, after) }
        );
    } else {
        assert!(matches!(ended, Err(HostError::Device(_))), "{ended:?}");
        assert_eq!(all(&host), visible(here, &host, before, after));
    }
    assert_eq!(setup.locks.held(), 0);
    // Host and storage go on, together.
    set(&host, 3, 1_000).unwrap();
    let (program, block) = raise(1_000, 1);
    let mut worker = host.worker().unwrap();
    assert_eq!(worker.bulk_update(0, &program, &block).unwrap().commit().map(|_| all(&host)[&3]), Ok(1_001));
    host.flush_all().unwrap();
    assert_eq!(setup.stored(0), all(&host));
    true
}

/// An update on the host is visible before its last flush, which may fail.
fn visible(here: bool, host: &Host, before: BTreeMap<i64, i64>, after: BTreeMap<i64, i64>) -> BTreeMap<i64, i64> {
    if here && host.counters().bulk_committed == 1 { after } else { before }
}

#[test]
fn a_bulk_update_that_fails_at_any_step_leaves_the_data_as_before() {
    let errors = [gone(), DeviceError::Io("the test".into()), DeviceError::Full("the test".into())];
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        for (here, error) in [false, true].into_iter().flat_map(|here| errors.iter().map(move |error| (here, error))) {
            let steps = (0..1_000).take_while(|&step| fails_at(isolation, here, step, error)).count();
            assert!(steps >= if here { 4 } else { 10 }, "{steps} steps, on the host: {here}");
        }
    }
}

#[test]
fn a_death_whose_answer_was_lost_is_known_when_the_storage_is_back() {
    let setup = Setup::new(Isolation::Snapshot, Duration::ZERO);
    let host = filled(&setup);
    let (program, block) = raise(80, 1);
    let mut worker = host.worker().unwrap();
    let update = worker.bulk_update(0, &program, &block).unwrap();
    // A commit has one step before it takes effect and one after.
    setup.device.fail_at(1, gone());
    let Err(HostError::InDoubt { timestamp, .. }) = update.commit() else { panic!("it is not known") };
    assert_eq!(all(&host)[&9], 90, "what the host has can be read");
    assert_eq!(set(&host, 0, 5), Err(HostError::InDoubt { timestamp, why: "its end is not known yet".into() }));
    assert!(matches!(worker.bulk_update(0, &program, &block).err(), Some(HostError::Device(DeviceError::Gone(_)))));
    setup.device.revive();
    assert_eq!(host.reattach(setup.device.clone()), Ok(Some(timestamp)));
    assert_eq!((all(&host)[&8], all(&host)[&9], host.newest()), (81, 91, timestamp));
    set(&host, 9, 7).unwrap();
    assert_eq!(all(&host)[&9], 7);
}

#[test]
fn a_flush_that_fails_loses_nothing() {
    for lost in 0..3 {
        let setup = Setup::new(Isolation::Snapshot, Duration::ZERO);
        let host = filled(&setup);
        set(&host, 2, 21).unwrap();
        setup.device.fail_at(lost, if lost == 2 { DeviceError::Full("the test".into()) } else { gone() });
        let failed = host.flush_all();
        assert_eq!(failed.is_err(), lost < 2, "a flush has two steps");
        set(&host, 2, 22).unwrap_or_else(|_| panic!("it is in the host's memory"));
        setup.device.revive();
        assert_eq!(host.reattach(setup.device.clone()), Ok(None));
        let expected: BTreeMap<i64, i64> = (0..10).map(|id| (id, if id == 2 { 22 } else { id * 10 })).collect();
        assert_eq!(all(&host), expected);
        host.flush_all().unwrap();
        assert_eq!((setup.stored(0), host.shared_bytes()), (expected, 0));
    }
}

#[test]
fn a_full_storage_stops_commits_before_memory_runs_out_and_no_longer_than_it_is_full() {
    let mut setup = Setup::new(Isolation::Snapshot, Duration::ZERO);
    setup.config = Config { flush_bytes: 1_000, shared_bytes: 3_000, ..setup.config };
    let host = filled(&setup);
    let deposit = "procedure deposit\ntable numbers\nparam id: i64\nupdate c0, numbers, [id]\nret r1, c0
        loadr r2, r1[numbers.value]\nadd r2, r2, 1\nstorer r2, r1[numbers.value]\ncommit";
    let id = host.register(procedure(deposit)).unwrap();
    let mut worker = host.worker().unwrap();
    let mut call = |key: i64| {
        let mut block = block(&[key], 64);
        block[..4].copy_from_slice(&id.to_le_bytes());
        let status = worker.call(&mut block).unwrap();
        (status, Block::new(&block).abort_code())
    };
    // Snapshots in use keep the versions that they see.
    let mut readers: Vec<_> = (0..20).map(|_| host.worker().unwrap()).collect();
    let mut readers = readers.iter_mut();
    let (mut old, mut committed, mut refused) = (Vec::new(), 0, 0);
    for turn in 0..200 {
        if turn % 10 == 0 {
            old.push(readers.next().unwrap().begin());
        }
        setup.device.fail_at(0, DeviceError::Full("the test".into()));
        match call(turn % 10) {
            (Status::Committed, 0) => committed += 1,
            outcome => {
                assert_eq!(outcome, (Status::Failed, abort::OUT_OF_MEMORY));
                refused += 1;
            }
        }
        assert!(host.shared_bytes() < 3_300, "{} bytes", host.shared_bytes());
    }
    assert!(committed > 10 && refused > 10, "{committed} committed, {refused} refused");
    setup.device.revive();
    assert_eq!(call(0), (Status::Committed, 0));
    drop(old);
    assert_eq!(all(&host).values().sum::<i64>(), 450 + committed + 1);
}

#[test]
fn what_was_flushed_is_there_when_the_host_is_opened_again() {
    let setup = Setup::new(Isolation::Serializable, Duration::ZERO);
    let host = filled(&setup);
    let mut worker = host.worker().unwrap();
    let mut transaction = worker.begin();
    assert!(transaction.remove(0, &4_i64.to_le_bytes()).unwrap());
    transaction.commit().unwrap();
    let (program, arguments) = raise(90, 1);
    worker.bulk_update(0, &program, &arguments).unwrap().commit().unwrap();
    host.flush_all().unwrap();
    let (expected, newest) = (all(&host), host.newest());
    // Neither this one nor a bulk update that was not committed.
    set(&host, 1, 99).unwrap();
    let (program, arguments) = raise(92, 1);
    std::mem::forget(worker.bulk_update(0, &program, &arguments).unwrap());
    drop(worker);
    drop(host);
    setup.device.revive();

    let host = setup.open().unwrap();
    let after = all(&host);
    // The bulk update flushed the table before it ran.
    assert_eq!((after[&1], after.get(&4), after[&9]), (99, None, 91));
    let others = |rows: &BTreeMap<i64, i64>| rows.clone().into_iter().filter(|(id, _)| *id != 1).collect::<Vec<_>>();
    assert_eq!(others(&after), others(&expected));
    assert!(host.newest() >= newest);
    // A removed key comes back as another tuple, and versions go on where they were.
    insert(&host, [(4, 44), (20, 200)]);
    set(&host, 9, 92).unwrap();
    host.flush_all().unwrap();
    assert_eq!(setup.stored(0), all(&host));
    assert_eq!((all(&host)[&4], all(&host)[&9]), (44, 92));
}

#[test]
fn cold_rows_are_read_once_and_again_when_they_have_changed() {
    let setup = Setup::new(Isolation::Snapshot, Duration::ZERO);
    drop(filled(&setup).flush_all());
    let host = setup.open().unwrap();
    let reads = |host: &Host| (host.counters().device_reads, host.counters().cache_hits);
    all(&host);
    assert_eq!(reads(&host), (10, 0));
    all(&host);
    assert_eq!(reads(&host), (10, 10));
    let mut worker = host.worker().unwrap();
    let (program, block) = raise(80, 1);
    let update = worker.bulk_update(0, &program, &block).unwrap();
    all(&host);
    assert_eq!(reads(&host), (10, 20));
    update.commit().unwrap();
    assert_eq!((all(&host)[&8], reads(&host)), (81, (12, 28)));
    set(&host, 0, 5).unwrap();
    assert_eq!((all(&host)[&0], reads(&host)), (5, (12, 38)), "a recent version is read from neither");
}

#[test]
fn a_table_holds_as_many_tuples_as_its_map_and_no_more() {
    let setup = Setup::new(Isolation::Snapshot, Duration::ZERO);
    let locks = setup.locks.clone();
    let open = |capacity: usize| {
        let locks_for_maps = locks.clone();
        let maps = move |table, _: &TableSchema| {
            let map = VidMap::in_process(capacity);
            locks_for_maps.add_map(table, map.clone());
            Ok(map)
        };
        Host::open(setup.config.clone(), setup.device.clone(), Arc::new(locks.clone()), Box::new(maps))
    };
    let host = open(3).unwrap();
    host.create_table(&numbers()).unwrap();
    insert(&host, (0..3).map(|id| (id, id)));
    let mut worker = host.worker().unwrap();
    let mut transaction = worker.begin();
    assert!(matches!(transaction.insert(0, &7_i64.to_le_bytes()), Err(HostError::Full(_))));
    drop(transaction);
    set(&host, 2, 5).unwrap();
    host.flush_all().unwrap();
    let Err(error) = open(2) else { panic!("the map is too small") };
    assert!(matches!(error, HostError::TooManyTuples { capacity: 2, .. }), "{error}");
    assert_eq!(all(&open(3).unwrap()), BTreeMap::from([(0, 0), (1, 1), (2, 5)]));
    let none = Host::open(
        setup.config.clone(),
        setup.device.clone(),
        Arc::new(InProcessLocks::default()),
        Box::new(|_, _| Err("the segment is foreign".into())),
    );
    assert!(matches!(none, Err(HostError::NoVidMap { table: 0, .. })));
}

#[test]
fn what_is_no_row_program_is_refused_before_anything_is_done() {
    let setup = Setup::new(Isolation::Snapshot, Duration::ZERO);
    let host = filled(&setup);
    let mut worker = host.worker().unwrap();
    let (update, arguments) = raise(0, 1);
    let (search, block) = at_least(0);
    let twice = procedure(
        "procedure twice\ntable numbers\nparam id: i64\nsearch c0, numbers, [id]\nret r1, c0\nsearch c0, numbers, [id]
        ret r1, c0\ncommit",
    );
    let mut none = |_, _: &[u8]| panic!("no row was to be given");
    let refused = [
        worker.filter(0, &update, &arguments, &mut none).err(),
        worker.bulk_update(0, &search, &block).err(),
        worker.filter(0, &twice, &block, &mut none).err(),
        worker.filter(0, &search, &block[..30], &mut none).err(),
        worker.aggregate(0, &search, &block, &[("nothing".into(), Fold::Max)]).err(),
        worker.bulk_update_on_host(0, &search, &block).err(),
    ];
    for error in refused {
        assert!(matches!(error, Some(HostError::RowProgram(_))), "{error:?}");
    }
    assert_eq!(worker.bulk_update(7, &update, &arguments).err(), Some(HostError::NoTable(7)));
    assert_eq!(
        worker.begin().get(0, &[1, 2]).err().map(|error| error.to_string()).as_deref(),
        Some("a key of table 'numbers' has 8 bytes, and 2 were given")
    );
    let overflow = worker.bulk_update(0, &update, &common::block(&[0, 0, i64::MAX], 64)).err();
    assert!(matches!(overflow, Some(HostError::Device(DeviceError::RowFailed { code: abort::OVERFLOW, .. }))));
    let counters = host.counters();
    assert_eq!((counters.bulk_aborted, counters.flushes), (1, 2), "one reached the storage, and flushed before");
    assert_eq!(setup.locks.held(), 0);
}

#[test]
fn aggregates_fold_and_say_when_there_was_nothing_to_fold() {
    let setup = Setup::new(Isolation::Serializable, Duration::ZERO);
    let host = filled(&setup);
    let mut worker = host.worker().unwrap();
    let folds = [Fold::Sum, Fold::Min, Fold::Max].map(|fold| ("value".to_string(), fold));
    let (program, block) = at_least(35);
    let answer = worker.aggregate(0, &program, &block, &folds).unwrap();
    assert_eq!((answer.values, answer.ran), (Some(vec![390, 40, 90]), Ran { rows: 10, taken: 6 }));
    let nothing = worker.aggregate(0, &program, &common::block(&[0, 1_000], 64), &folds).unwrap();
    assert_eq!((nothing.values, nothing.ran.taken), (None, 0));
}

/// What a lying storage answers instead of the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    OldNumber,
    Twice,
    NoPlace,
    TooFew,
    Short,
    OtherPiece,
    ShortRow,
    FewPlaces,
    NoPlaces,
}

struct Liar(Arc<dyn Device>, Lie);

impl Device for Liar {
    fn create_table(&self, schema: &TableSchema) -> Result<TableId, DeviceError> {
        self.0.create_table(schema)
    }

    fn tables(&self) -> Result<Vec<TableSchema>, DeviceError> {
        self.0.tables()
    }

    fn tuples(&self, table: TableId, each: &mut dyn FnMut(Tuple<'_>)) -> Result<(), DeviceError> {
        self.0.tuples(table, each)
    }

    fn flush(&self, table: TableId, versions: &[Version], watermark: Timestamp) -> Result<Vec<RecordId>, DeviceError> {
        let mut records = self.0.flush(table, versions, watermark)?;
        match self.1 {
            Lie::FewPlaces => _ = records.pop(),
            Lie::NoPlaces => records[0] = RecordId::HOST,
            _ => {}
        }
        Ok(records)
    }

    fn read(&self, table: TableId, vid: Vid, snapshot: Timestamp) -> Result<Option<Version>, DeviceError> {
        let short = |version: Version| Version { image: Some(Box::from([1, 2, 3])), ..version };
        let read = self.0.read(table, vid, snapshot)?;
        Ok(if self.1 == Lie::ShortRow { read.map(short) } else { read })
    }

    fn run(&self, operation: &Operation, piece: &mut dyn FnMut(Piece<'_>)) -> Result<Ran, DeviceError> {
        let mut first = true;
        self.0.run(operation, &mut |told| {
            let lie = std::mem::take(&mut first);
            match told {
                Piece::Modified(modified) if lie => {
                    let mut modified = modified.to_vec();
                    match self.1 {
                        Lie::OldNumber => modified[0].number -= 1,
                        Lie::Twice => modified[0] = Modified { vid: modified[1].vid, ..modified[1] },
                        Lie::NoPlace => modified[0].record = RecordId::NONE,
                        Lie::TooFew => _ = modified.pop(),
                        Lie::OtherPiece => return piece(Piece::Folded { rows: 1, values: None }),
                        _ => {}
                    }
                    piece(Piece::Modified(&modified));
                }
                Piece::Rows { vids, images } if self.1 == Lie::Short => {
                    piece(Piece::Rows { vids, images: &images[1..] });
                }
                Piece::Rows { .. } if self.1 == Lie::OtherPiece => piece(Piece::Modified(&[])),
                other => piece(other),
            }
        })
    }

    fn commit(&self, transaction: TransactionId, timestamp: Timestamp) -> Result<(), DeviceError> {
        self.0.commit(transaction, timestamp)
    }

    fn abort(&self, transaction: TransactionId) -> Result<(), DeviceError> {
        self.0.abort(transaction)
    }

    fn collect(&self, watermark: Timestamp) -> Result<u64, DeviceError> {
        self.0.collect(watermark)
    }

    fn status(&self) -> Result<DeviceStatus, DeviceError> {
        self.0.status()
    }
}

#[test]
fn a_storage_that_answers_nonsense_is_told_so_and_nothing_is_changed() {
    let lies = [
        Lie::OldNumber,
        Lie::Twice,
        Lie::NoPlace,
        Lie::TooFew,
        Lie::OtherPiece,
        Lie::Short,
        Lie::ShortRow,
        Lie::FewPlaces,
        Lie::NoPlaces,
    ];
    for lie in lies {
        let setup = Setup::new(Isolation::Snapshot, Duration::ZERO);
        let host = filled(&setup);
        let before = all(&host);
        if !matches!(lie, Lie::FewPlaces | Lie::NoPlaces) {
            host.flush_all().unwrap();
        }
        host.reattach(Arc::new(Liar(setup.device.clone(), lie))).unwrap();
        let (mut worker, (update, arguments), (search, block)) = (host.worker().unwrap(), raise(0, 1), at_least(0));
        let error = match lie {
            Lie::Short => worker.filter(0, &search, &block, &mut |_, _| ()).err(),
            Lie::ShortRow => {
                // Only what is not cached is read.
                drop(setup.open().unwrap());
                let cold = setup.open().unwrap();
                cold.reattach(Arc::new(Liar(setup.device.clone(), lie))).unwrap();
                let mut worker = cold.worker().unwrap();
                let mut transaction = worker.begin();
                transaction.get(0, &3_i64.to_le_bytes()).err()
            }
            Lie::FewPlaces | Lie::NoPlaces => host.flush_all().err(),
            _ => worker.bulk_update(0, &update, &arguments).err(),
        };
        assert!(matches!(error, Some(HostError::Device(DeviceError::Corrupt(_)))), "{lie:?}: {error:?}");
        assert_eq!(setup.locks.held(), 0, "{lie:?}");
        host.reattach(setup.device.clone()).unwrap();
        assert_eq!(all(&host), before, "{lie:?}");
        assert_eq!(worker.bulk_update(0, &update, &arguments).unwrap().commit().map(|_| all(&host)[&9]), Ok(91));
    }
}
