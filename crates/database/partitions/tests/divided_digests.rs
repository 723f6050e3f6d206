//! Nodes of the same part that do not have the same rows: who differs is found, at the record.

#[path = "common/parts.rs"]
#[allow(dead_code, reason = "every test takes what it needs")]
mod parts;
#[path = "common/set.rs"]
#[allow(dead_code, reason = "every test takes what it needs")]
mod set;

use std::sync::mpsc::sync_channel;
use std::time::Duration;

use lockwork_conformance::engines::Random;
use lockwork_sequencer::journal::Journal;
use lockwork_sequencer::journal::simulated::SimulatedJournal;
use lockwork_sequencer::{Error, Handle, NodeStatus, Role};
use set::{Set, calls, until};

const PARTS: usize = 3;

fn handle(set: &Set, number: usize) -> Handle {
    set.nodes[number].as_ref().unwrap().handle()
}

fn status(set: &Set, number: usize) -> NodeStatus {
    handle(set, number).node().unwrap()
}

/// Changes the balance of one of the accounts of a part in the memory of its node, as a bit that flips there does.
fn alter(set: &Set, number: usize) {
    let altered = handle(set, number).read(|engine| {
        let mut altered = 0;
        let read = engine.with_database(&mut |database| {
            let table = database.table(database.table_id("accounts").unwrap());
            table.for_each(|row| {
                let image = row.image(table.schema()).cast::<u8>();
                if altered == 0 {
                    // SAFETY: no call runs, and the row has three integers: id, balance and another.
                    unsafe { image.add(8).write(image.add(8).read() ^ 1) };
                    altered += 1;
                }
            });
        });
        read.map(|()| altered)
    });
    assert_eq!(altered.unwrap().unwrap(), 1);
}

/// Makes calls, and has the parts make their digests; the record.
fn digest(set: &mut Set, random: &mut Random) -> u64 {
    let (first, count) = (1000 + random.below(1 << 40), 1 + random.below(30));
    set.call_again(&calls(random, first, count));
    set.ask(Handle::append_digest).unwrap()
}

/// Waits until a node has compared its rows at a record, or ended because they differ there.
fn wait_until_compared(set: &Set, number: usize, record: u64) -> bool {
    until(|| {
        let status = status(set, number);
        match (status.compared, status.differs) {
            (_, Some(at)) if at == record => Ok(false),
            (Some((at, _)), None) if at == record => Ok(true),
            _ => Err(format!("node {number} has not compared record {record}: {status:?}")),
        }
    })
}

#[test]
fn who_has_other_rows_than_another_node_of_its_part_stops_at_the_record() {
    let journal = SimulatedJournal::new(1);
    let (mut set, mut follows) = (Set::new(&journal, PARTS, true), Set::new(&journal, PARTS, false));
    set.furnish();
    let mut random = Random(1);
    for _ in 0..5 {
        let record = digest(&mut set, &mut random);
        for number in 0..PARTS {
            assert!(wait_until_compared(&set, number, record) && wait_until_compared(&follows, number, record));
            assert_eq!(status(&set, number).compared, status(&follows, number).compared);
        }
    }
    // No call has shown it yet. Who is first is taken for right: not the one that is still reading.
    alter(&follows, 1);
    let ((begun, begins), (release, held)) = (sync_channel(1), sync_channel::<()>(0));
    let altered = handle(&follows, 1);
    let reads = std::thread::spawn(move || {
        altered.read(move |_| {
            begun.send(()).unwrap();
            held.recv().ok();
        })
    });
    begins.recv().unwrap();
    let record = set.ask(Handle::append_digest).unwrap();
    assert!(wait_until_compared(&set, 1, record));
    drop(release);
    reads.join().unwrap().unwrap();
    for number in 0..PARTS {
        assert!(wait_until_compared(&set, number, record));
        assert_eq!(wait_until_compared(&follows, number, record), number != 1);
    }
    let trouble = status(&follows, 1).trouble.unwrap();
    assert!(trouble.contains(&format!("record {record}: the rows of its part have the digest")), "{trouble}");
    assert_eq!(handle(&follows, 1).role(), Some(Role::Ended));
    let refused = follows.nodes[1].as_ref().unwrap().digest();
    assert!(matches!(refused, Err(Error::Differs { record: at, .. }) if at == record), "{refused:?}");
    // From the log it has the same.
    follows.begin(1).unwrap();
    assert!(wait_until_compared(&follows, 1, record));
    let record = digest(&mut set, &mut random);
    for number in 0..PARTS {
        assert!(wait_until_compared(&set, number, record) && wait_until_compared(&follows, number, record));
    }
    assert_eq!(follows.settled(), set.settled());
}

#[test]
fn who_begins_again_compares_with_what_it_had() {
    let journal = SimulatedJournal::new(2);
    let mut set = Set::new(&journal, PARTS, true);
    set.furnish();
    let mut random = Random(2);
    digest(&mut set, &mut random);
    // Nobody else has this part, so nobody finds it.
    let leader = set.leader();
    let number = (leader + 1) % PARTS;
    alter(&set, number);
    let record = digest(&mut set, &mut random);
    assert!(wait_until_compared(&set, number, record));
    // Only what was written down last is there to be compared.
    set.begin(number).unwrap();
    assert!(!wait_until_compared(&set, number, record));
    set.nodes[number] = None;
    set.begin(number).unwrap();
    assert!(!wait_until_compared(&set, number, record), "it is no better for being tried again");
    set.compares = false;
    set.begin(number).unwrap();
    let record = digest(&mut set, &mut random);
    assert!(wait_until_compared(&set, number, record));
    set.compares = true;
    set.begin(number).unwrap();
    assert!(wait_until_compared(&set, number, record));
}

#[test]
fn digests_are_made_when_something_has_changed_and_before_checkpoints() {
    let journal = SimulatedJournal::new(3);
    let mut set = Set::new(&journal, PARTS, true);
    set.digest_interval = Duration::from_millis(50);
    (0..PARTS).for_each(|number| set.begin(number).unwrap());
    set.furnish();
    let compared = |set: &Set| -> Vec<u64> {
        (0..PARTS).map(|number| status(set, number).compared.map_or(0, |(record, _)| record)).collect()
    };
    // After the last change there is one digest more, at all parts, and then no record any more.
    let mut random = Random(3);
    for round in 0..3 {
        set.call_again(&calls(&mut random, 1000 + round * 100, 10));
        until(|| {
            let next = journal.log_range().unwrap().next;
            let found = compared(&set);
            if found == [next - 1; PARTS] { Ok(()) } else { Err(format!("{found:?} of {next}: {:?}", set.status())) }
        });
        let next = journal.log_range().unwrap().next;
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(journal.log_range().unwrap().next, next);
    }
    // With an interval that does not come, there is one before a checkpoint.
    set.digest_interval = Duration::from_secs(3600);
    (0..PARTS).for_each(|number| set.begin(number).unwrap());
    set.call_again(&calls(&mut random, 5000, 10));
    set.ask(|handle| handle.checkpoint().map(drop)).unwrap();
    let cut = journal.log_range().unwrap().next - 1;
    for number in 0..PARTS {
        assert!(wait_until_compared(&set, number, cut));
    }
}
