//! Nodes that share a journal and do not compute the same: who differs from the leader is found, at the record.

mod common;

use std::time::Duration;

use common::nodes::*;
use common::*;
use lockwork_sequencer::io::simulated::SimulatedDisk;
use lockwork_sequencer::journal::Journal;
use lockwork_sequencer::journal::simulated::SimulatedJournal;
use lockwork_sequencer::{Error, NodeOptions, Options, Role, Sequencer};

fn joined(journal: &SimulatedJournal, node: NodeOptions) -> Sequencer {
    join_as(journal, node).unwrap().0
}

/// Changes the balance of an account in the memory of one node, as a bit that flips there does.
fn alter(node: &Sequencer, account: u64) {
    let altered = node.read(move |engine| {
        let mut altered = 0;
        let read = engine.with_database(&mut |database| {
            let table = database.table(database.table_id("accounts").unwrap());
            table.for_each(|row| {
                let image = row.image(table.schema()).cast::<u8>();
                // SAFETY: no call runs, and the row has two integers: id and balance.
                unsafe {
                    if image.cast::<u64>().read_unaligned() == account {
                        image.add(8).write(image.add(8).read() ^ 1);
                        altered += 1;
                    }
                }
            });
        });
        read.map(|()| altered)
    });
    assert_eq!(altered.unwrap().unwrap(), 1);
}

fn next(node: &Sequencer) -> u64 {
    node.handle().node().unwrap().next
}

/// A transfer between two accounts, and its record.
fn transfer(leader: &Sequencer, from: i64, to: i64) -> u64 {
    let record = next(leader);
    leader.call_batch(batch(&[(0, 0, vec![from, to, 1])])).unwrap();
    record
}

/// Sees that a node has stopped at this record, and what it says.
fn wait_until_it_differs(node: &Sequencer, record: u64, what: &str) {
    wait_for(node, Role::Ended);
    let status = node.handle().node().unwrap();
    let trouble = status.trouble.clone().unwrap_or_default();
    assert_eq!(status.differs, Some(record), "{status:?}");
    assert!(trouble.contains(&format!("record {record}: ")) && trouble.contains(what), "{trouble}");
    assert!(matches!(node.digest(), Err(Error::Differs { record: at, .. }) if at == record));
}

#[test]
fn a_follower_that_answers_something_else_is_found_at_the_record() {
    let journal = SimulatedJournal::new(1);
    let leader = joined(&journal, node("leader"));
    wait_for(&leader, Role::Leading);
    let follower = joined(&journal.another(), node("follower"));
    let sound = joined(&journal.another(), node("sound"));
    furnish(&leader).unwrap();
    let mut random = Random(1);
    for round in 0..10 {
        let calls = random.calls(100);
        match round % 3 {
            0 => together(&leader, &calls[..10]).unwrap(),
            _ => drop(leader.call_batch(batch(&calls)).unwrap()),
        }
    }
    leader.call_batch(batch(&[(0, 5, vec![1, 2, 3]), (0, 6, vec![1, 2, 1_000_000])])).unwrap();
    wait_until_as_far(&follower, &leader);
    alter(&follower, 7);
    // What does not touch the row does not show it.
    transfer(&leader, 1, 2);
    wait_until_as_far(&follower, &leader);
    assert_eq!(role(&follower), Role::Following);
    let record = transfer(&leader, 2, 7);
    transfer(&leader, 7, 3);
    wait_until_it_differs(&follower, record, "answered something else");
    assert!(follower.handle().node().unwrap().next <= record, "it has not gone on");
    wait_until_as_far(&sound, &leader);
    assert_eq!((role(&sound), role(&leader)), (Role::Following, Role::Leading));
    // Begun again, it computes the same.
    drop(follower);
    let again = joined(&journal.another(), node("follower"));
    wait_until_as_far(&again, &leader);
    assert_eq!(again.digest().unwrap(), leader.digest().unwrap());
}

#[test]
fn one_record_of_many_in_a_transaction_or_a_large_batch_is_named() {
    for large in [false, true] {
        let journal = SimulatedJournal::new(2);
        let leader = joined(&journal, node("leader"));
        wait_for(&leader, Role::Leading);
        furnish(&leader).unwrap();
        let follower = joined(&journal.another(), node("follower"));
        wait_until_as_far(&follower, &leader);
        alter(&follower, 7);
        for _ in 0..20 {
            transfer(&leader, 1, 2);
        }
        let record = next(&leader);
        if large {
            // More calls than are run as one batch.
            let mut calls: Vec<Call> = (0..40_000).map(|_| (0, 0, vec![1, 2, 0])).collect();
            calls.push((0, 0, vec![7, 2, 1]));
            leader.call_batch(batch(&calls)).unwrap();
        } else {
            together(&leader, &[(0, 0, vec![1, 2, 1]), (0, 0, vec![3, 7, 1]), (0, 0, vec![4, 5, 1])]).unwrap();
        }
        transfer(&leader, 7, 3);
        wait_until_it_differs(&follower, record, "answered something else");
    }
}

#[test]
fn what_no_call_reads_is_found_by_the_digest_of_everything() {
    let journal = SimulatedJournal::new(3);
    let leader = joined(&journal, node("leader"));
    wait_for(&leader, Role::Leading);
    furnish(&leader).unwrap();
    let follower = joined(&journal.another(), node("follower"));
    let first = leader.handle().append_digest().unwrap();
    wait_until_as_far(&follower, &leader);
    let compared = |node: &Sequencer| node.handle().node().unwrap().compared;
    let digest = leader.digest().unwrap();
    assert_eq!((compared(&leader), compared(&follower)), (Some((first, digest)), Some((first, digest))));
    alter(&follower, 9);
    transfer(&leader, 1, 2);
    let record = leader.handle().append_digest().unwrap();
    wait_until_it_differs(&follower, record, "digest");
    let refused = follower.handle().append_digest().unwrap_err();
    assert!(matches!(refused, Error::Differs { .. }), "{refused}");
    assert_eq!(leader.statistics().digests, 2);
}

#[test]
fn a_leader_that_differs_is_found_by_who_joins_later() {
    for by_digest in [false, true] {
        let journal = SimulatedJournal::new(4);
        let leader = joined(&journal, node("leader"));
        wait_for(&leader, Role::Leading);
        furnish(&leader).unwrap();
        alter(&leader, 3);
        transfer(&leader, 1, 2);
        let record = match by_digest {
            false => transfer(&leader, 1, 3),
            true => leader.handle().append_digest().unwrap(),
        };
        for _ in 0..5 {
            transfer(&leader, 1, 2);
        }
        let refused = join_as(&journal.another(), node("late")).map(drop).unwrap_err();
        assert!(matches!(&refused, Error::Differs { record: at, .. } if *at == record), "{refused}");
        assert!(refused.is_corruption());
        // Also itself, when it begins again; and nobody keeps the others from leading.
        drop(leader);
        let refused = join_as(&journal, node("leader")).map(drop).unwrap_err();
        assert!(matches!(&refused, Error::Differs { record: at, .. } if *at == record), "{refused}");
        // Who is told to takes the log for what counts.
        let told = joined(&journal, NodeOptions { compares: false, ..node("told") });
        wait_for(&told, Role::Leading);
        assert_eq!(total(&told), ACCOUNTS as i64 * BALANCE);
    }
}

#[test]
fn who_finds_that_it_differs_when_it_is_to_lead_does_not_lead() {
    let journal = SimulatedJournal::new(5);
    let leader = joined(&journal, node("leader"));
    wait_for(&leader, Role::Leading);
    furnish(&leader).unwrap();
    let way = journal.another();
    let follower = joined(&way, node("follower"));
    wait_until_as_far(&follower, &leader);
    alter(&follower, 3);
    way.cut(true);
    let record = transfer(&leader, 1, 3);
    transfer(&leader, 1, 2);
    leader.close().unwrap();
    way.cut(false);
    wait_until_it_differs(&follower, record, "answered something else");
    // It gives the lease back, so others lead.
    let other = joined(&journal.another(), node("other"));
    wait_for(&other, Role::Leading);
    assert_eq!(total(&other), ACCOUNTS as i64 * BALANCE);
}

#[test]
fn digests_come_by_themselves_when_something_has_changed_and_with_checkpoints() {
    let journal = SimulatedJournal::new(6);
    let leader = joined(&journal, NodeOptions { digest_interval: Duration::from_millis(20), ..node("leader") });
    wait_for(&leader, Role::Leading);
    furnish(&leader).unwrap();
    let follower = joined(&journal.another(), node("follower"));
    let compared = |node: &Sequencer| node.handle().node().unwrap().compared.map_or(0, |(record, _)| record);
    for _ in 0..3 {
        let record = transfer(&leader, 1, 2);
        until(|| match (compared(&leader), compared(&follower)) {
            (one, other) if one > record && one == other => Ok(()),
            other => Err(format!("{other:?}, and the record is {record}")),
        });
    }
    // When nothing has changed there is no further one.
    let end = next(&leader);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(next(&leader), end);
    assert!(journal.log_range().unwrap().next == end && compared(&leader) == end - 1);
    // One comes with a checkpoint, whenever the last one was; it covers it.
    let rare = joined(&journal.another(), NodeOptions { digest_interval: Duration::from_secs(1000), ..node("rare") });
    leader.close().unwrap();
    until(|| match (role(&rare), role(&follower)) {
        (Role::Leading, _) | (_, Role::Leading) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    if role(&rare) == Role::Leading {
        let record = transfer(&rare, 1, 2);
        let report = rare.checkpoint().unwrap();
        assert_eq!((report.number, compared(&rare)), (record + 1, record + 1));
        assert_eq!(rare.handle().node().unwrap().compared.unwrap().1, report.digest);
    }
}

#[test]
fn a_log_of_its_own_has_no_digests() {
    let disk = std::sync::Arc::new(SimulatedDisk::new(1));
    let kind = lockwork_engine::EngineKind::DETERMINISTIC;
    let (alone, _) = open_with(disk, std::path::Path::new("/d"), Options::default(), kind).unwrap();
    let refused = alone.handle().append_digest().unwrap_err();
    assert!(matches!(refused, Error::Option { .. }), "{refused}");
}
