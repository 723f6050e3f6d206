//! The queue manager on written cases. The comparison with the naive model is in `tests/queue_model.rs`.

use super::*;
use crate::LockId;
use LockMode::{Exclusive, Shared};

fn request(id: u64, mode: LockMode) -> Request {
    Request { id: LockId(id), mode }
}

fn release(locks: &mut QueueLocks, owner: u32) -> Vec<u32> {
    let mut ready = Vec::new();
    locks.release(Owner(owner), |owner| ready.push(owner.0)).unwrap();
    ready
}

#[test]
fn refused_calls_name_the_fault_and_change_nothing() {
    let mut locks = QueueLocks::dense(4).unwrap();
    let wrong = [request(0, Exclusive), request(4, Shared)];
    assert_eq!(locks.lock(Owner(0), &wrong), Err(QueueError::UnknownLock { id: 4, records: 4 }));
    assert_eq!(locks.release(Owner(0), |_| {}), Err(QueueError::NothingHeld { owner: 0 }));
    assert_eq!(locks.lock(Owner(1), &[request(0, Exclusive)]), Ok(true), "the refused set left nothing behind");
    assert_eq!(locks.lock(Owner(1), &[]), Err(QueueError::OwnerBusy { owner: 1 }));
    assert_eq!(release(&mut locks, 1), []);
    assert_eq!(locks.release(Owner(1), |_| {}), Err(QueueError::NothingHeld { owner: 1 }));
}

#[test]
fn a_set_that_names_a_record_twice_gets_the_stronger_mode() {
    let mut locks = QueueLocks::hashed(4);
    assert_eq!(locks.lock(Owner(0), &[request(5, Shared)]), Ok(true));
    let twice = [request(5, Shared), request(6, Shared), request(5, Exclusive)];
    assert_eq!(locks.lock(Owner(1), &twice), Ok(false), "granted beside the reader, then waits for it as a writer");
    assert_eq!(locks.lock(Owner(2), &[request(5, Shared)]), Ok(false));
    assert_eq!(release(&mut locks, 0), [1]);
    assert_eq!(release(&mut locks, 1), [2]);
}

#[test]
fn an_empty_set_is_ready_and_must_be_released() {
    let mut locks = QueueLocks::dense(1).unwrap();
    assert_eq!(locks.lock(Owner(3), &[]), Ok(true));
    assert_eq!((locks.is_ready(Owner(3)), locks.is_ready(Owner(2))), (Some(true), None));
    assert_eq!(release(&mut locks, 3), []);
    assert_eq!(locks.is_ready(Owner(3)), None);
}

#[test]
fn the_slab_grows_to_the_requests_in_flight_and_no_further() {
    let mut locks = QueueLocks::hashed(4);
    for round in 0..100 {
        for owner in 0..10 {
            locks.lock(Owner(owner), &[request(round + u64::from(owner % 3), Exclusive)]).unwrap();
        }
        for owner in 0..10 {
            release(&mut locks, owner);
        }
    }
    assert_eq!(locks.nodes.len(), 11);
}
