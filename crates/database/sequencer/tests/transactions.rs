//! Transactions of several calls: what they see, what ends them, and that they are serializable.

mod common;

use std::path::Path;
use std::sync::Arc;

use common::*;
use lockwork_engine::EngineKind;
use lockwork_procedure::block::{Block, Status};
use lockwork_sequencer::io::simulated::SimulatedDisk;
use lockwork_sequencer::{Error, Handle, MAX_CALLS, Sequencer, Transaction};

const TRANSFER_ID: u32 = 0;
const AUDIT_ID: u32 = 1;
const OPEN_ID: u32 = 2;
const CLOSE_ID: u32 = 3;

fn furnished(disk: &SimulatedDisk, kind: EngineKind) -> Sequencer {
    let (sequencer, report) = open_with(Arc::new(disk.clone()), Path::new("/db"), options(), kind).unwrap();
    if report.created {
        furnish(&sequencer).unwrap();
    }
    sequencer
}

fn balance(block: &[u8]) -> i64 {
    assert_eq!(Block::new(block).status(), Some(Status::Committed));
    i64::from_le_bytes(block[40..48].try_into().unwrap())
}

fn audit(id: u64) -> Call {
    (AUDIT_ID, 0, vec![id as i64])
}

fn seen(handle: &Handle, id: u64) -> i64 {
    let mut block = block(&audit(id));
    handle.call(&mut block).unwrap();
    balance(&block)
}

#[test]
fn a_transaction_sees_itself_and_others_see_it_when_it_has_committed() {
    for &kind in EngineKind::CPU {
        let disk = SimulatedDisk::new(1);
        let sequencer = furnished(&disk, kind);
        let handle = sequencer.handle();
        let (transaction, _) = step(&handle, Transaction::default(), &(TRANSFER_ID, 0, vec![1, 2, 10])).unwrap();
        let (transaction, block) = step(&handle, transaction, &audit(1)).unwrap();
        assert_eq!((balance(&block), seen(&handle, 1)), (990, 1000), "{kind}");
        // It deletes a row and makes it anew; one call aborts, and takes back itself.
        let (transaction, _) = step(&handle, transaction, &(CLOSE_ID, 0, vec![1, 3])).unwrap();
        let (transaction, _) = step(&handle, transaction, &(OPEN_ID, 0, vec![1])).unwrap();
        let (transaction, block) = step(&handle, transaction, &(TRANSFER_ID, 0, vec![1, 2, 1])).unwrap();
        assert_eq!(Block::new(&block).status(), Some(Status::Aborted));
        let (transaction, block) = step(&handle, transaction, &audit(1)).unwrap();
        assert_eq!((balance(&block), seen(&handle, 1), seen(&handle, 3)), (0, 1000, 1000), "{kind}");
        commit(&handle, transaction).unwrap();
        assert_eq!((seen(&handle, 1), seen(&handle, 2), seen(&handle, 3)), (0, 1010, 1990), "{kind}");
        let digest = sequencer.digest().unwrap();
        drop((handle, sequencer));
        assert_eq!(furnished(&disk, kind).digest().unwrap(), digest, "{kind}");
    }
}

#[test]
fn what_it_was_told_has_to_hold_until_it_commits() {
    let sequencer = furnished(&SimulatedDisk::new(2), EngineKind::TWO_PHASE);
    let handle = sequencer.handle();
    let transfer = |from, to| (TRANSFER_ID, 0, vec![from, to, 5]);
    let begin = || step(&handle, Transaction::default(), &audit(1)).unwrap().0;
    let (early, late, other) = (begin(), begin(), begin());
    // Who reads a row and writes another one meets who did it the other way round (write skew).
    let (early, _) = step(&handle, early, &transfer(1, 2)).unwrap();
    let (late, _) = step(&handle, late, &transfer(1, 2)).unwrap();
    commit(&handle, early).unwrap();
    assert!(matches!(commit(&handle, late), Err(Error::Conflict { call: 1 })));
    assert!(matches!(step(&handle, other, &transfer(3, 4)), Err(Error::Conflict { call: 1 })));
    // Who was told nothing that has changed commits, whatever rows it shares.
    let (blind, _) = step(&handle, Transaction::default(), &(OPEN_ID, 0, vec![100])).unwrap();
    handle.call(&mut block(&transfer(1, 2))).unwrap();
    commit(&handle, blind).unwrap();
    // What was taken back was seen all the same.
    let mut curious = Transaction::default();
    let mark = curious.mark();
    (curious, _) = step(&handle, curious, &audit(1)).unwrap();
    curious.back_to(mark);
    handle.call(&mut block(&transfer(1, 2))).unwrap();
    assert!(matches!(commit(&handle, curious), Err(Error::Conflict { call: 1 })));
}

#[test]
fn a_transaction_has_an_end() {
    let sequencer = furnished(&SimulatedDisk::new(3), EngineKind::SERIAL);
    let handle = sequencer.handle();
    let mut transaction = Transaction::default();
    for _ in 0..MAX_CALLS {
        (transaction, _) = step(&handle, transaction, &audit(1)).unwrap();
    }
    assert_eq!(transaction.calls(), MAX_CALLS);
    assert!(matches!(step(&handle, transaction, &audit(1)), Err(Error::TooLong)));
    // A procedure that is not there is an outcome like others; bytes that are no block are none.
    let (transaction, ran) = step(&handle, Transaction::default(), &(99, 0, vec![])).unwrap();
    assert_eq!(Block::new(&ran).status(), Some(Status::Failed));
    commit(&handle, transaction).unwrap();
    assert!(matches!(handle.step_then(Transaction::default(), vec![0; 7], |_| ()), Err(Error::Option { .. })));
}

/// Several threads read two balances each, think, and write what follows from them; others call as usual. No money is
/// lost, and none is made.
#[test]
fn transactions_of_many_threads_are_serializable() {
    for kind in [EngineKind::TWO_PHASE, EngineKind::DETERMINISTIC, EngineKind::OPTIMISTIC, EngineKind::TIMESTAMP] {
        let sequencer = furnished(&SimulatedDisk::new(4), kind);
        let (mut committed, mut conflicts) = (0, 0);
        std::thread::scope(|scope| {
            let work = |seed: u64| {
                let handle = sequencer.handle();
                move || {
                    let (mut random, mut committed, mut conflicts) = (Random(seed), 0, 0);
                    while committed < 60 {
                        // Few accounts, so that they meet.
                        let (a, b) = (random.below(4), 4 + random.below(4));
                        let once = || -> Result<(), Error> {
                            let (transaction, first) = step(&handle, Transaction::default(), &audit(a))?;
                            let (transaction, second) = step(&handle, transaction, &audit(b))?;
                            // It makes both alike: right only by what it has seen.
                            let half = (balance(&first) - balance(&second)) / 2;
                            let (from, to) = if half >= 0 { (a, b) } else { (b, a) };
                            let call = (TRANSFER_ID, 0, vec![from as i64, to as i64, half.abs()]);
                            let (transaction, moved) = step(&handle, transaction, &call)?;
                            let left = [56, 64].map(|at| i64::from_le_bytes(moved[at..at + 8].try_into().unwrap()));
                            assert!((left[0] - left[1]).abs() <= 1, "{left:?}");
                            commit(&handle, transaction)
                        };
                        match once() {
                            Ok(()) => committed += 1,
                            Err(Error::Conflict { .. }) => conflicts += 1,
                            Err(other) => panic!("{other}"),
                        }
                        let (x, y) = (random.below(8) as i64, random.below(8) as i64);
                        handle.call(&mut block(&(TRANSFER_ID, 0, vec![x, y, 1 + random.below(40) as i64]))).unwrap();
                    }
                    (committed, conflicts)
                }
            };
            let threads: Vec<_> = (0..4).map(|seed| scope.spawn(work(seed))).collect();
            for thread in threads {
                let (some, others) = thread.join().unwrap();
                (committed, conflicts) = (committed + some, conflicts + others);
            }
        });
        assert_eq!((committed, total(&sequencer)), (240, ACCOUNTS as i64 * BALANCE), "{kind}");
        assert!(conflicts > 0, "{kind}: they never met");
    }
}
