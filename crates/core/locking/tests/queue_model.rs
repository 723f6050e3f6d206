//! The queue manager against the oracle: random requests, sets, withdrawals and releases, step by step.
#![cfg(not(loom))]

use lockwork_conformance::locks::managers::Queue;
use lockwork_conformance::locks::reference::Reference;
use lockwork_conformance::locks::{Manager, Session};
use lockwork_locking::{LockId, LockMode, Request};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Lock(Vec<Request>),
    /// Releases one of the sessions that have requests, by its place among them.
    Release(usize),
}

fn any_request() -> impl Strategy<Value = Request> {
    let mode =
        prop_oneof![3 => Just(LockMode::Shared), 2 => Just(LockMode::Exclusive), 1 => Just(LockMode::IntentExclusive)];
    (0u64..5, mode).prop_map(|(id, mode)| Request { id: LockId(id), mode })
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => proptest::collection::vec(any_request(), 1..5).prop_map(Step::Lock),
        4 => any::<usize>().prop_map(Step::Release),
    ]
}

/// Every lock is a session of its own, because the oracle lets one session ask again and queues do not.
fn compare(steps: &[Step], hashed: bool) -> Result<(), TestCaseError> {
    let (mut queue, mut oracle) = (Queue::new(hashed), Reference::default());
    let mut open: Vec<(Session, Vec<LockId>)> = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        match step {
            Step::Lock(requests) => {
                let session = Session(at as u32);
                let (answer, expected) =
                    (queue.acquire(session, requests, None), oracle.acquire(session, requests, None));
                prop_assert_eq!(answer, expected, "step {}: {:?}", at, step);
                open.push((session, requests.iter().map(|request| request.id).collect()));
            }
            Step::Release(place) if !open.is_empty() => {
                let (session, locks) = open.swap_remove(place % open.len());
                let mut answer = queue.release(session, &locks).unwrap();
                let mut expected = oracle.release(session, &locks).unwrap();
                answer.sort_unstable();
                expected.sort_unstable();
                prop_assert_eq!(answer, expected, "step {}: {:?}", at, step);
            }
            Step::Release(_) => {}
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn dense_queues_answer_as_the_oracle_does(steps in proptest::collection::vec(any_step(), 0..60)) {
        compare(&steps, false)?;
    }

    #[test]
    fn hashed_queues_answer_as_the_oracle_does(steps in proptest::collection::vec(any_step(), 0..60)) {
        compare(&steps, true)?;
    }
}
