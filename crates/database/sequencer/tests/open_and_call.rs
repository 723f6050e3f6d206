//! What is acknowledged is there after reopening, on every engine of the CPU, with every durability; retries get the
//! first outcome; the log is small.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::*;
use lockwork_engine::EngineKind;
use lockwork_procedure::block::Status;
use lockwork_sequencer::io::{Disk, Io, simulated::SimulatedDisk};
use lockwork_sequencer::{Durability, Error, Options, RequestId, inspect};

fn disks() -> [Arc<dyn Io>; 2] {
    [Arc::new(Disk::new()), Arc::new(Disk::plain())]
}

#[test]
fn every_engine_recovers_what_it_ran() {
    for &kind in EngineKind::CPU {
        for io in disks() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("a/b");
            let mut oracle = Oracle::new();
            let mut random = Random(kind.name().len() as u64);
            let order = engine(kind).serial_order();
            let (sequencer, report) = open_with(io.clone(), &path, options(), kind).unwrap();
            assert!(report.created);
            furnish(&sequencer).unwrap();
            let mut digest = sequencer.digest().unwrap();
            assert_eq!(digest, oracle.digest());
            for round in 0..6 {
                for _ in 0..5 {
                    let ran = sequencer.call_batch(batch(&random.calls(200))).unwrap();
                    oracle.follow(&ran, order);
                }
                digest = sequencer.digest().unwrap();
                assert_eq!(digest, oracle.digest(), "{kind}, round {round}");
                if round % 2 == 1 {
                    let made = sequencer.checkpoint().unwrap();
                    assert_eq!(made.digest, digest);
                }
            }
            assert_eq!(total(&sequencer), ACCOUNTS as i64 * BALANCE);
            sequencer.close().unwrap();
            for again in 0..2 {
                let (sequencer, report) = open_with(io.clone(), &path, options(), kind).unwrap();
                assert_eq!(sequencer.digest().unwrap(), digest, "{kind}, opened again {again}");
                assert_eq!((report.created, report.torn, report.rewritten_bytes), (false, None, 0));
                assert!(report.checkpoint.is_some() && report.definitions.len() == 5);
                let ran = sequencer.call_batch(batch(&random.calls(50))).unwrap();
                oracle.follow(&ran, order);
                digest = sequencer.digest().unwrap();
                assert_eq!(digest, oracle.digest());
                drop(sequencer);
            }
        }
    }
}

#[test]
fn a_log_of_one_engine_is_replayed_on_every_other() {
    let folder = tempfile::tempdir().unwrap();
    let io: Arc<dyn Io> = Arc::new(Disk::new());
    let mut random = Random(3);
    let (sequencer, _) = open_with(io.clone(), folder.path(), options(), EngineKind::TWO_PHASE).unwrap();
    furnish(&sequencer).unwrap();
    (0..20).for_each(|_| drop(sequencer.call_batch(batch(&random.calls(300))).unwrap()));
    let digest = sequencer.digest().unwrap();
    sequencer.close().unwrap();
    for &kind in EngineKind::CPU {
        let (sequencer, report) = open_with(io.clone(), folder.path(), options(), kind).unwrap();
        assert_eq!(sequencer.digest().unwrap(), digest, "{kind}");
        assert!(report.calls > 3000, "{report:?}");
    }
}

#[test]
fn weaker_durability_survives_closing_too() {
    for durability in [Durability::Async, Durability::None] {
        let folder = tempfile::tempdir().unwrap();
        let io: Arc<dyn Io> = Arc::new(Disk::new());
        let weak = Options { durability, async_interval: Duration::from_millis(1), ..options() };
        let mut digest = None;
        let mut random = Random(4);
        for round in 0..4 {
            // Every other time as it should be, so that logs follow upon checkpoints without one.
            let options = if round % 2 == 0 { weak.clone() } else { options() };
            let (sequencer, _) = open_with(io.clone(), folder.path(), options, EngineKind::DETERMINISTIC).unwrap();
            if let Some(digest) = digest {
                assert_eq!(sequencer.digest().unwrap(), digest, "{durability} {round}");
            } else {
                furnish(&sequencer).unwrap();
            }
            (0..10).for_each(|_| drop(sequencer.call_batch(batch(&random.calls(100))).unwrap()));
            digest = Some(sequencer.digest().unwrap());
            sequencer.close().unwrap();
        }
    }
}

#[test]
fn many_threads_share_batches_and_each_gets_its_own_answer() {
    let folder = tempfile::tempdir().unwrap();
    let io: Arc<dyn Io> = Arc::new(Disk::new());
    let (sequencer, _) = open_with(io.clone(), folder.path(), options(), EngineKind::DETERMINISTIC).unwrap();
    furnish(&sequencer).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8_i64 {
            let handle = sequencer.handle();
            scope.spawn(move || {
                // Each thread moves money between two accounts of its own, so it knows what it must be told.
                for round in 1..=40_i64 {
                    let calls = batch(&[(0, 0, vec![thread * 2, thread * 2 + 1, 1])]);
                    let mut block = calls.block(0).bytes().to_vec();
                    handle.call(&mut block).unwrap();
                    let answered = lockwork_procedure::block::Block::new(&block);
                    assert_eq!(answered.status(), Some(Status::Committed));
                    let balances = [56, 64].map(|at| i64::from_le_bytes(block[at..at + 8].try_into().unwrap()));
                    assert_eq!(balances, [BALANCE - round, BALANCE + round]);
                }
            });
        }
    });
    let statistics = sequencer.statistics();
    assert_eq!(statistics.logged_calls, 320);
    assert!(statistics.batches < 320, "calls share batches: {statistics:?}");
    assert!(sequencer.handle().call(&mut [0; 31]).unwrap_err().to_string().contains("31 bytes"));
    let digest = sequencer.digest().unwrap();
    drop(sequencer);
    let (sequencer, _) = open_with(io, folder.path(), options(), EngineKind::DETERMINISTIC).unwrap();
    assert_eq!(sequencer.digest().unwrap(), digest);
}

#[test]
fn submitted_batches_overlap_and_come_back_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let (sequencer, _) = open_with(Arc::new(Disk::new()), folder.path(), options(), EngineKind::DETERMINISTIC).unwrap();
    furnish(&sequencer).unwrap();
    let mut oracle = Oracle::new();
    let mut random = Random(9);
    let calls: Vec<_> = (0..60).map(|_| random.calls(100)).collect();
    let tickets: Vec<_> = calls.iter().map(|calls| sequencer.submit(batch(calls)).unwrap()).collect();
    for (calls, ticket) in calls.iter().zip(tickets) {
        assert_eq!(answers(&ticket.wait().unwrap()), answers(&oracle.run(batch(calls))));
    }
    assert_eq!(sequencer.digest().unwrap(), oracle.digest());
}

#[test]
fn a_retry_gets_the_first_outcome_also_after_reopening_and_checkpoints() {
    for with_checkpoint in [false, true] {
        let disk = SimulatedDisk::new(1);
        let path = std::path::Path::new("/db");
        // Four ids of transfers.
        let options = Options { request_memory: 4 * 144, ..options() };
        let open = || open_with(Arc::new(disk.clone()), path, options.clone(), EngineKind::DETERMINISTIC).unwrap().0;
        let sequencer = open();
        furnish(&sequencer).unwrap();
        let first = [
            (0, 11, vec![1, 2, 5]),
            (0, 12, vec![1, 2, 99_999]),
            (1, 13, vec![1]),
            (0, 0, vec![1, 2, 1]),
            // Twice in one batch: it runs once.
            (0, 11, vec![1, 2, 5]),
        ];
        let told = answers(&sequencer.call_batch(batch(&first)).unwrap());
        assert_eq!(told[0], told[4]);
        let (b1, b2) = ((BALANCE - 5).to_le_bytes(), (BALANCE + 5).to_le_bytes());
        assert_eq!(told[0], (Some(Status::Committed), 0, [b1, b2].concat()));
        assert_eq!(told[1], (Some(Status::Aborted), 1, vec![0; 16]));
        if with_checkpoint {
            sequencer.checkpoint().unwrap();
        }
        let retry = |sequencer: &lockwork_sequencer::Sequencer| {
            let digest = sequencer.digest().unwrap();
            let again = answers(&sequencer.call_batch(batch(&first[..3])).unwrap());
            assert_eq!(again[..], told[..3]);
            assert_eq!(sequencer.digest().unwrap(), digest, "nothing ran");
            let mut block = block(&first[0]);
            sequencer.handle().call(&mut block).unwrap();
            assert_eq!(block[56..72], told[0].2);
        };
        retry(&sequencer);
        drop(sequencer);
        disk.crash();
        let sequencer = open();
        retry(&sequencer);
        // The id stands for one procedure and its arguments.
        for (call, why) in [
            (
                (1, 11, vec![1]),
                "was used before, for a call of procedure 'transfer', and this one is of procedure 'audit'",
            ),
            ((0, 11, vec![1, 2, 6]), "was used before, for a call of procedure 'transfer' with other arguments"),
        ] {
            let refused = sequencer.call_batch(batch(&[call])).unwrap_err();
            assert!(matches!(refused.error, Error::RequestReused { request, .. } if request == id(11)));
            assert!(refused.to_string().contains(why), "{refused}");
            assert_eq!(refused.batch.unwrap().len(), 1);
        }
        // Four more ids, and the first is forgotten: it is refused, and does not run again.
        let more: Vec<Call> = (20..24).map(|request| (0, request, vec![3, 4, 1])).collect();
        sequencer.call_batch(batch(&more)).unwrap();
        let refuses = |sequencer: &lockwork_sequencer::Sequencer| {
            let digest = sequencer.digest().unwrap();
            for call in [first[0].clone(), (0, 5, vec![1, 2, 5])] {
                let refused = sequencer.call_batch(batch(std::slice::from_ref(&call))).unwrap_err();
                assert!(matches!(refused.error, Error::RequestTooOld { request, .. } if request == id(call.1)));
                let alone = sequencer.handle().call(&mut block(&call)).unwrap_err();
                assert!(matches!(alone, Error::RequestTooOld { .. }), "{alone}");
            }
            assert_eq!(sequencer.digest().unwrap(), digest);
        };
        refuses(&sequencer);
        if with_checkpoint {
            sequencer.checkpoint().unwrap();
        }
        drop(sequencer);
        disk.crash();
        refuses(&open());
    }
}

#[test]
fn a_retry_after_70_000_other_calls_gets_the_first_answer() {
    let disk = SimulatedDisk::new(1);
    let path = std::path::Path::new("/db");
    let open = || open_with(Arc::new(disk.clone()), path, options(), EngineKind::DETERMINISTIC).unwrap().0;
    let sequencer = open();
    furnish(&sequencer).unwrap();
    let first = [(0, 1, vec![1, 2, 5])];
    let told = answers(&sequencer.call_batch(batch(&first)).unwrap());
    for begin in (0..70_000).step_by(10_000) {
        let others: Vec<Call> = (begin..begin + 10_000).map(|number| (0, 2 + number, vec![3, 4, 0])).collect();
        sequencer.call_batch(batch(&others)).unwrap();
    }
    let digest = sequencer.digest().unwrap();
    assert_eq!(answers(&sequencer.call_batch(batch(&first)).unwrap()), told);
    sequencer.checkpoint().unwrap();
    drop(sequencer);
    disk.crash();
    let sequencer = open();
    assert_eq!(answers(&sequencer.call_batch(batch(&first)).unwrap()), told);
    assert_eq!(sequencer.digest().unwrap(), digest);
}

#[test]
fn an_id_outside_the_window_is_refused() {
    let disk = SimulatedDisk::new(1);
    let path = std::path::Path::new("/db");
    let options = Options { request_window: Duration::from_secs(100), ..options() };
    let (sequencer, _) = open_with(Arc::new(disk), path, options, EngineKind::DETERMINISTIC).unwrap();
    furnish(&sequencer).unwrap();
    let digest = sequencer.digest().unwrap();
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
    let call = |unix_ms| {
        let mut batch = batch(&[(0, 0, vec![1, 2, 5])]);
        batch.set_request(0, RequestId::new(unix_ms, [1; 10]));
        sequencer.call_batch(batch).map(|batch| answers(&batch)).map_err(|refused| refused.error)
    };
    let old = call(now - 101_000).unwrap_err();
    assert!(matches!(old, Error::RequestTooOld { window, .. } if window == Duration::from_secs(100)), "{old}");
    let ahead = call(now + 120_000).unwrap_err();
    assert!(matches!(ahead, Error::RequestInFuture { .. }), "{ahead}");
    assert_eq!(sequencer.digest().unwrap(), digest);
    for unix_ms in [now - 50_000, now + 30_000] {
        assert_eq!(call(unix_ms).unwrap(), call(unix_ms).unwrap());
    }
}

#[test]
fn the_log_takes_little_more_than_the_arguments() {
    let folder = tempfile::tempdir().unwrap();
    let io = Disk::new();
    let big = Options { segment_bytes: 16 << 20, ..options() };
    let (sequencer, _) = open_with(Arc::new(Disk::new()), folder.path(), big, EngineKind::DETERMINISTIC).unwrap();
    furnish(&sequencer).unwrap();
    let before = sequencer.statistics();
    let mut random = Random(5);
    for _ in 0..10 {
        let transfer = |_| (0, 0, vec![random.below(ACCOUNTS) as i64, random.below(ACCOUNTS) as i64, 1]);
        let calls: Vec<Call> = (0..1000).map(transfer).collect();
        sequencer.call_batch(batch(&calls)).unwrap();
    }
    let after = sequencer.statistics();
    let arguments = after.argument_bytes - before.argument_bytes;
    let log = after.log_bytes - before.log_bytes;
    assert!(arguments >= 24 * 9000 && log as f64 <= 1.3 * arguments as f64, "{log} for {arguments}");
    sequencer.close().unwrap();
    let mut entries = Vec::new();
    let summary = inspect::log(&io, folder.path(), &mut |entry| entries.push(entry)).unwrap();
    assert_eq!((summary.torn, summary.records), (None, 5 + 1 + 10));
    let calls = entries.iter().filter_map(|entry| match &entry.contents {
        inspect::Contents::Calls(Some(runs)) => Some(runs.iter().map(|run| run.calls).sum::<usize>()),
        _ => None,
    });
    assert_eq!(calls.sum::<usize>() as u64, after.logged_calls);
}

#[test]
fn what_is_refused_leaves_nothing_behind() {
    let disk = SimulatedDisk::new(1);
    let path = std::path::Path::new("/db");
    let open = || open_with(Arc::new(disk.clone()), path, options(), EngineKind::OPTIMISTIC);
    let (sequencer, _) = open().unwrap();
    assert!(matches!(open(), Err(Error::Locked { .. })));
    furnish(&sequencer).unwrap();
    let digest = sequencer.digest().unwrap();
    assert!(sequencer.define(definition("procedure broken\n    nonsense")).unwrap_err().to_string().contains("line 2"));
    let twice = sequencer.define(definition(TRANSFER)).unwrap_err().to_string();
    assert!(twice.contains("'transfer' is registered already"), "{twice}");
    let unknown = sequencer.load("nowhere", vec![0; 16]).unwrap_err().to_string();
    assert!(unknown.contains("no table is called 'nowhere'"), "{unknown}");
    assert!(sequencer.load("accounts", vec![0; 15]).unwrap_err().to_string().contains("16 bytes"));
    let rows = [image(900), image(901), image(3), image(902)].concat();
    match sequencer.load("accounts", rows).unwrap_err() {
        Error::Load { loaded: 2, error } => assert!(error.to_string().contains("key (3)"), "{error}"),
        other => panic!("{other}"),
    }
    assert_ne!(sequencer.digest().unwrap(), digest);
    let digest = sequencer.digest().unwrap();
    // No such procedure, and a block too short: these calls fail, the others run.
    let ran = sequencer.call_batch(batch(&[(77, 0, vec![]), (0, 5, vec![1, 2, 3]), (77, 6, vec![])])).unwrap();
    let statuses: Vec<_> = ran.blocks().map(|block| block.status()).collect();
    assert_eq!(statuses, [Some(Status::Failed), Some(Status::Committed), Some(Status::Failed)]);
    sequencer.call_batch(batch(&[(0, 0, vec![2, 1, 3])])).unwrap();
    assert_eq!(sequencer.digest().unwrap(), digest);
    drop(sequencer);
    let (sequencer, _) = open().unwrap();
    assert_eq!(sequencer.digest().unwrap(), digest);
}

#[test]
fn rows_of_several_tables_are_loaded_together_and_are_there_again() {
    const ROWS: u64 = 300_000;
    let folder = tempfile::tempdir().unwrap();
    let (sequencer, _) = open_with(disks()[0].clone(), folder.path(), options(), EngineKind::DETERMINISTIC).unwrap();
    furnish(&sequencer).unwrap();
    sequencer.define(definition("table owners (balance: i64 key, id: i64 key)")).unwrap();
    let load = |tables: Vec<(&str, Vec<u8>)>| {
        let (sender, loaded) = std::sync::mpsc::sync_channel(1);
        let tables = tables.into_iter().map(|(table, images)| (table.to_string(), images)).collect();
        sequencer.handle().load_then(tables, move |outcome| sender.send(outcome).unwrap()).unwrap();
        loaded.recv().unwrap()
    };
    let accounts = |ids: std::ops::Range<u64>| ids.flat_map(image).collect::<Vec<u8>>();
    // A row of the one is one of the other with its columns in the other order.
    let owners = |ids: std::ops::Range<u64>| {
        ids.flat_map(|id| [BALANCE.to_le_bytes(), (id as i64).to_le_bytes()].concat()).collect::<Vec<u8>>()
    };
    let both = |ids: std::ops::Range<u64>| vec![("accounts", accounts(ids.clone())), ("owners", owners(ids))];
    // More than one record each.
    let first = ACCOUNTS..ACCOUNTS + ROWS;
    assert_eq!(load(both(first.clone())).unwrap(), ROWS as usize);
    // The third one is there already: neither table gets more.
    let mut met = both(first.end..first.end + 2);
    met[0].1.extend(image(first.start));
    met[1].1.extend(owners(0..1));
    met.iter_mut().for_each(|(_, images)| images.extend([77; 16]));
    assert!(matches!(load(met), Err(Error::Load { loaded: 2, .. })));
    let uneven = load(vec![("accounts", accounts(0..1)), ("owners", Vec::new())]).unwrap_err().to_string();
    assert!(uneven.contains("0 of table 'owners'") && uneven.contains("as many as of the first table"), "{uneven}");
    let unknown = load(vec![("accounts", Vec::new()), ("nowhere", Vec::new())]).unwrap_err().to_string();
    assert!(unknown.contains("'nowhere'"), "{unknown}");
    assert_eq!(load(both(0..0)).unwrap(), 0);
    let lengths = |sequencer: &lockwork_sequencer::Sequencer| {
        let mut lengths = [0; 2];
        let read = move |engine: &dyn lockwork_engine::Engine| {
            let length = |database: &lockwork_storage::Database, name: &str| {
                database.table(database.table_id(name).unwrap()).len()
            };
            let read = engine.with_database(&mut |database| {
                lengths = ["accounts", "owners"].map(|name| length(database, name));
            });
            read.map(|()| lengths)
        };
        sequencer.read(read).unwrap().unwrap()
    };
    assert_eq!(lengths(&sequencer), [ACCOUNTS + ROWS + 2, ROWS + 2]);
    let digest = sequencer.digest().unwrap();
    drop(sequencer);
    let (sequencer, _) = open_with(disks()[0].clone(), folder.path(), options(), EngineKind::DETERMINISTIC).unwrap();
    assert_eq!((sequencer.digest().unwrap(), lengths(&sequencer)), (digest, [ACCOUNTS + ROWS + 2, ROWS + 2]));
    // A row that only an index refuses cannot be taken back: nothing goes on, and it is not there again.
    let (sender, stopped) = std::sync::mpsc::sync_channel(1);
    let tables = [("accounts", accounts(900_000..900_001)), ("owners", owners(first.start..first.start + 1))];
    let tables = tables.map(|(table, images)| (table.to_string(), images)).to_vec();
    sequencer.handle().load_then(tables, move |outcome| sender.send(outcome).unwrap()).unwrap();
    assert!(matches!(stopped.recv().unwrap(), Err(Error::Stopped(_))));
    assert!(matches!(sequencer.load("accounts", accounts(900_002..900_003)), Err(Error::Stopped(_))));
    drop(sequencer);
    let (sequencer, _) = open_with(disks()[0].clone(), folder.path(), options(), EngineKind::DETERMINISTIC).unwrap();
    assert_eq!(sequencer.digest().unwrap(), digest);
}

#[test]
fn a_call_that_is_refused_does_not_take_others_of_its_group_with_it() {
    let disk = SimulatedDisk::new(1);
    let gathered = Options { group_wait: Duration::from_millis(30), ..options() };
    let (sequencer, _) =
        open_with(Arc::new(disk), std::path::Path::new("/db"), gathered, EngineKind::DETERMINISTIC).unwrap();
    furnish(&sequencer).unwrap();
    sequencer.call_batch(batch(&[(0, 7, vec![1, 2, 5])])).unwrap();
    let before = sequencer.statistics();
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        // One asks for another procedure under an id that was used.
        let calls: [Call; 4] = [(0, 0, vec![3, 4, 5]), (1, 7, vec![1]), (0, 8, vec![5, 6, 5]), (0, 7, vec![1, 2, 5])];
        let threads = calls.map(|call| {
            let handle = sequencer.handle();
            scope.spawn(move || {
                let mut block = block(&call);
                handle.call(&mut block).map(|()| block)
            })
        });
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let balances = |from: i64, to: i64| [(BALANCE + from).to_le_bytes(), (BALANCE + to).to_le_bytes()].concat();
    for index in [0, 2, 3] {
        assert_eq!(outcomes[index].as_ref().unwrap()[56..72], balances(-5, 5), "{index}");
    }
    assert!(matches!(outcomes[1], Err(Error::RequestReused { request, .. }) if request == id(7)));
    let after = sequencer.statistics();
    assert_eq!((after.repeats - before.repeats, after.logged_calls - before.logged_calls), (1, 2));
}

#[test]
fn a_group_with_wide_blocks_has_no_more_bytes_than_it_may() {
    let folder = tempfile::tempdir().unwrap();
    let gathered = Options { group_wait: Duration::from_millis(50), ..options() };
    let (sequencer, _) = open_with(disks()[0].clone(), folder.path(), gathered, EngineKind::DETERMINISTIC).unwrap();
    furnish(&sequencer).unwrap();
    let (handle, (sender, answers)) = (sequencer.handle(), std::sync::mpsc::channel());
    let narrow = batch(&[(0, 0, vec![1, 2, 1])]).block(0).bytes().to_vec();
    for call in 0..100 {
        // As a procedure with large results would have it.
        let mut block = narrow.clone();
        if call % 2 == 1 {
            block.resize(1 << 20, 0);
        }
        let (length, sender) = (block.len(), sender.clone());
        handle.call_then(block, move |outcome| sender.send((length, outcome.unwrap())).unwrap()).unwrap();
    }
    drop(sender);
    let (mut answered, mut committed) = (0, 0);
    for (length, block) in answers {
        let block = lockwork_procedure::block::Block::new(&block[..length]);
        committed += usize::from(block.status() == Some(Status::Committed));
        answered += 1;
    }
    assert_eq!((answered, committed, total(&sequencer)), (100, 100, ACCOUNTS as i64 * BALANCE));
    let batches = sequencer.statistics().batches;
    assert!((4..=50).contains(&batches), "{batches} batches: one would have had 100 MiB");
    sequencer.close().unwrap();
}
