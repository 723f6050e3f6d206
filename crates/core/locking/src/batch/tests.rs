//! The batch manager against its three invariants, on written cases and on generated streams.

use super::*;
use LockMode::{Exclusive, IntentExclusive, Shared};
use proptest::prelude::*;

/// Sets as a list of lists.
struct Lists(Vec<Vec<Access>>);

impl AccessSets for Lists {
    fn accesses(&self, transaction: u32) -> &[Access] {
        &self.0[transaction as usize]
    }
}

const fn access(record: u32, mode: LockMode) -> Access {
    Access { record, mode }
}

fn chains(plan: Plan<'_>) -> Vec<Vec<u32>> {
    plan.heads().map(|head| plan.chain(head).collect()).collect()
}

fn locks(records: u32, capacity: u32, deferred_limit: u32) -> BatchLocks {
    BatchLocks::new(BatchConfig { records, capacity, deferred_limit }).unwrap()
}

#[test]
fn the_worked_example_of_the_module() {
    let (a, b, c) = (0, 1, 2);
    let sets = Lists(vec![
        vec![access(a, Exclusive)],
        vec![access(b, Shared)],
        vec![access(b, Shared)],
        vec![access(a, Exclusive), access(c, Exclusive)],
        vec![access(b, Exclusive)],
        vec![access(c, Shared)],
        vec![access(b, Shared)],
    ]);
    let mut locks = locks(3, 16, 16);
    let mut stream = 0..7;
    let plan = locks.fill(&sets, &mut stream).unwrap();
    assert_eq!(chains(plan), [vec![0, 3, 5], vec![1], vec![2]]);
    assert_eq!((plan.placement(1), plan.placement(0)), (Placement::Free, Placement::Chained(0)));
    assert_eq!(locks.deferred(), [4, 6]);
    assert_eq!(chains(locks.fill(&sets, &mut stream).unwrap()), [vec![4, 6]]);
    assert!(locks.fill(&sets, &mut stream).unwrap().grants.is_empty());
}

#[test]
fn a_transaction_between_two_chains_is_deferred_and_nobody_overtakes_it() {
    let sets = Lists(vec![
        vec![access(0, Exclusive)],
        vec![access(1, Exclusive)],
        vec![access(0, Exclusive), access(1, Shared), access(2, Shared)],
        vec![access(2, Exclusive)],
        vec![access(2, Shared)],
    ]);
    let mut locks = locks(3, 16, 16);
    let mut stream = 0..5;
    assert_eq!(chains(locks.fill(&sets, &mut stream).unwrap()), [vec![0], vec![1]]);
    assert_eq!(locks.deferred(), [2, 3, 4], "3 would overtake 2, and 4 would overtake 3");
    assert_eq!(chains(locks.fill(&sets, &mut stream).unwrap()), [vec![2, 3, 4]]);
}

#[test]
fn readers_of_a_record_that_a_deferred_reader_reserves_go_on() {
    let sets = Lists(vec![
        vec![access(0, Exclusive)],
        vec![access(1, Exclusive)],
        vec![access(0, Exclusive), access(1, Exclusive), access(2, Shared)],
        vec![access(2, Shared)],
    ]);
    let mut locks = locks(3, 16, 16);
    let plan = locks.fill(&sets, &mut (0..4)).unwrap();
    assert_eq!(chains(plan), [vec![0], vec![1], vec![3]]);
}

#[test]
fn a_hot_record_is_one_chain_of_readers_and_writers() {
    let modes = [Shared, Shared, Exclusive, Shared, Shared, Exclusive, Shared];
    let accesses: Vec<_> = modes.iter().cycle().take(70).map(|&mode| access(0, mode)).collect();
    let sets = SingleSets(&accesses);
    let mut locks = locks(1, 128, 128);
    let mut stream = 0..70;
    assert_eq!(chains(locks.fill(&sets, &mut stream).unwrap()), [vec![0], vec![1]]);
    assert_eq!(chains(locks.fill(&sets, &mut stream).unwrap()), [(2..70).collect::<Vec<_>>()]);
}

#[test]
fn intent_locks_go_together_and_exclude_the_rest() {
    let sets = Lists(vec![
        vec![access(0, IntentExclusive), access(1, Exclusive)],
        vec![access(0, IntentExclusive), access(2, Exclusive)],
        vec![access(0, Shared)],
    ]);
    let mut locks = locks(3, 16, 16);
    let mut stream = 0..3;
    assert_eq!(chains(locks.fill(&sets, &mut stream).unwrap()), [vec![0], vec![1]]);
    assert_eq!(chains(locks.fill(&sets, &mut stream).unwrap()), [vec![2]]);
}

#[test]
fn a_full_deferred_queue_closes_the_batch_and_the_next_one_goes_on() {
    let sets = Lists((0..40).map(|t| vec![access(t % 4, Exclusive), access((t + 1) % 4, Exclusive)]).collect());
    let mut locks = locks(4, 8, 2);
    let mut stream = 0..40;
    let mut order = Vec::new();
    while order.len() < 40 {
        let plan = locks.fill(&sets, &mut stream).unwrap();
        assert!(!plan.grants.is_empty(), "every batch makes progress");
        order.extend(plan.grants.iter().map(|grant| grant.transaction));
        assert!(locks.deferred().len() <= 2);
    }
    order.sort_unstable();
    assert_eq!(order, (0..40).collect::<Vec<_>>());
}

#[test]
fn an_unknown_record_is_refused_by_name_behind_what_stood_in_front_of_it() {
    let sets = SingleSets(&[access(1, Exclusive), access(9, Shared), access(1, Exclusive)]);
    let mut locks = locks(4, 8, 8);
    let mut stream = 0..3;
    assert_eq!(chains(locks.fill(&sets, &mut stream).unwrap()), [[0]]);
    let error = locks.fill(&sets, &mut stream).unwrap_err();
    assert_eq!(error, BatchError::UnknownRecord { transaction: 1, record: 9, records: 4 });
    assert_eq!(stream, 1..3, "the transaction stays in the stream");
    stream.start = 2;
    assert_eq!(chains(locks.fill(&sets, &mut stream).unwrap()), [[2]]);
}

#[test]
fn impossible_sizes_and_offsets_are_refused() {
    let config = |capacity, deferred_limit| BatchConfig { records: 1, capacity, deferred_limit };
    assert_eq!(BatchLocks::new(config(0, 1)).unwrap_err(), BatchError::Capacity { capacity: 0 });
    let capacity = CHAIN_LIMIT + 1;
    assert_eq!(BatchLocks::new(config(capacity, 1)).unwrap_err(), BatchError::Capacity { capacity });
    assert_eq!(BatchLocks::new(config(1, 0)).unwrap_err(), BatchError::NoDeferredQueue);
    let accesses = [access(0, Shared)];
    let refused = |offsets: &[u32]| FlatSets::new(offsets, &accesses).unwrap_err();
    assert_eq!(refused(&[0, 1, 0]), BatchError::Offsets { index: 2, offset: 0, least: 1, length: 1 });
    assert_eq!(refused(&[0, 2]), BatchError::Offsets { index: 1, offset: 2, least: 0, length: 1 });
    assert_eq!(FlatSets::new(&[0, 0, 1], &accesses).unwrap().len(), 2);
}

#[test]
fn the_epoch_wraps_without_waking_old_words() {
    let sets = SingleSets(&[access(0, Exclusive), access(1, Exclusive)]);
    let mut locks = locks(2, 8, 8);
    locks.fill(&sets, &mut (1..2)).unwrap();
    assert_eq!(locks.epoch, 1);
    locks.epoch = u32::MAX;
    assert_eq!(chains(locks.fill(&sets, &mut (0..2)).unwrap()), [[0], [1]], "record 1 was taken in another epoch 1");
    assert_eq!(locks.epoch, 1);
}

/// Checks a whole stream: every transaction once, order per record, independence within a batch, progress.
fn check_stream(sets: &Lists, records: u32, capacity: u32, deferred_limit: u32) {
    let total = sets.0.len() as u32;
    let mut locks = locks(records, capacity, deferred_limit);
    let mut stream = 0..total;
    // (batch, chain, rank in chain) of every transaction.
    let mut place = vec![None; total as usize];
    for batch in 0.. {
        let before = locks.deferred().first().copied().or((stream.start < total).then_some(stream.start));
        let plan = locks.fill(sets, &mut stream).unwrap();
        let Some(first) = before else {
            assert!(plan.grants.is_empty());
            break;
        };
        assert_eq!(plan.grants[0].transaction, first, "the first transaction of a batch is granted");
        assert!(plan.grants.len() <= capacity as usize);
        for head in plan.heads() {
            for (rank, transaction) in plan.chain(head).enumerate() {
                let slot = &mut place[transaction as usize];
                assert_eq!(*slot, None, "transaction {transaction} was granted twice");
                *slot = Some((batch, head, rank));
            }
        }
    }
    for later in 0..total as usize {
        for earlier in 0..later {
            let conflict = sets.0[later]
                .iter()
                .any(|a| sets.0[earlier].iter().any(|b| a.record == b.record && !crate::compatible(a.mode, b.mode)));
            if conflict {
                let (first, second) = (place[earlier].unwrap(), place[later].unwrap());
                let ordered = first.0 < second.0 || (first.0, first.1) == (second.0, second.1) && first.2 < second.2;
                assert!(ordered, "{earlier} at {first:?} conflicts with {later} at {second:?}");
            }
        }
    }
}

fn any_mode() -> impl Strategy<Value = LockMode> {
    prop_oneof![4 => Just(Shared), 3 => Just(Exclusive), 1 => Just(IntentExclusive)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn conflicting_transactions_take_effect_in_input_order(
        raw in proptest::collection::vec(proptest::collection::vec((0u32..64, any_mode()), 0..5), 0..160),
        records in 1u32..24,
        capacity in 1u32..64,
        deferred_limit in 1u32..48,
    ) {
        let fold = |set: Vec<(u32, LockMode)>| set.into_iter().map(|(r, mode)| access(r % records, mode)).collect();
        check_stream(&Lists(raw.into_iter().map(fold).collect()), records, capacity, deferred_limit);
    }

    #[test]
    fn single_key_streams_keep_their_order_through_hot_and_cold(
        raw in proptest::collection::vec((0u32..6, any_mode()), 0..300),
        capacity in 1u32..80,
        deferred_limit in 1u32..32,
    ) {
        let lists = raw.into_iter().map(|(record, mode)| vec![access(record, mode)]).collect();
        check_stream(&Lists(lists), 6, capacity, deferred_limit);
    }
}
