//! Nodes that share a journal: one leads, the others follow; what was acknowledged is there once, whoever leads after.

mod common;

use std::time::Duration;

use common::nodes::*;
use common::*;
use lockwork_procedure::block::Status;
use lockwork_sequencer::journal::simulated::SimulatedJournal;
use lockwork_sequencer::journal::{Journal, Key};
use lockwork_sequencer::{Definition, Error, NodeOptions, Role, Sequencer};

#[test]
fn one_leads_and_the_others_have_what_it_has() {
    let journal = SimulatedJournal::new(1);
    let leader = join(&journal, "a:1");
    wait_for(&leader, Role::Leading);
    let follower = join(&journal.another(), "b:2");
    furnish(&leader).unwrap();
    let mut random = Random(1);
    for round in 0..20 {
        let calls = random.calls(50);
        if round % 4 == 3 {
            together(&leader, &calls[..10]).unwrap();
        } else {
            leader.call_batch(batch(&calls)).unwrap();
        }
        let refused = follower.call_batch(batch(&calls)).unwrap_err();
        assert!(matches!(refused.error, Error::Follower { .. }) && refused.batch.is_some(), "{refused}");
    }
    wait_until_as_far(&follower, &leader);
    assert_eq!(follower.digest().unwrap(), leader.digest().unwrap());
    assert_eq!(total(&follower), ACCOUNTS as i64 * BALANCE);
    assert_eq!(role(&follower), Role::Following);
    let refused = follower.define(definition(AUDIT)).unwrap_err().to_string();
    assert!(refused.contains("a:1"), "{refused}");
    // It gives its lease back, so the other one need not wait for it to end.
    let digest = leader.digest().unwrap();
    leader.close().unwrap();
    wait_for(&follower, Role::Leading);
    assert_eq!(follower.digest().unwrap(), digest);
    follower.call_batch(batch(&random.calls(10))).unwrap();
    let status = follower.handle().node().unwrap();
    assert_eq!((status.epoch, status.leader.as_deref()), (2, Some("b:2")));
    follower.close().unwrap();
    // All of them can end.
    let again = join(&journal, "c:3");
    assert_eq!(total(&again), ACCOUNTS as i64 * BALANCE);
}

#[test]
fn a_new_leader_returns_first_answers_and_refuses_ids_that_may_have_been_forgotten() {
    for with_checkpoint in [false, true] {
        let journal = SimulatedJournal::new(7);
        // The second node has memory for ten ids, the third for all.
        let with_memory =
            |name: &str, bytes| join_remembering(&journal.another(), node(name), bytes, &mut || ()).unwrap();
        let first = join(&journal, "first");
        wait_for(&first, Role::Leading);
        furnish(&first).unwrap();
        let calls: Vec<Call> = (1..=30).map(|number| (0, number, vec![1, 2, number as i64])).collect();
        let told = answers(&first.call_batch(batch(&calls)).unwrap());
        if with_checkpoint {
            first.checkpoint().unwrap();
        }
        let (second, _) = with_memory("second", 10 * 144);
        wait_until_as_far(&second, &first);
        let digest = first.digest().unwrap();
        let repeat = |node: &Sequencer, number: u64| {
            let call = &calls[number as usize - 1..number as usize];
            let outcome = node.call_batch(batch(call)).map(|batch| answers(&batch)[0].clone());
            assert_eq!(node.digest().unwrap(), digest);
            outcome.map_err(|refused| refused.error)
        };
        assert_eq!((repeat(&first, 1).unwrap(), repeat(&first, 30).unwrap()), (told[0].clone(), told[29].clone()));
        first.close().unwrap();
        wait_for(&second, Role::Leading);
        for (number, told) in (1..).zip(&told) {
            match repeat(&second, number) {
                Ok(answer) => assert!(number > 20 && answer == *told, "{number}"),
                Err(error) => {
                    assert!(number <= 20 && matches!(error, Error::RequestTooOld { .. }), "{number}: {error}")
                }
            }
        }
        // What a checkpoint does not have is refused by one that has more memory too.
        if with_checkpoint {
            second.checkpoint().unwrap();
        }
        let (third, _) = with_memory("third", 1 << 20);
        wait_until_as_far(&third, &second);
        second.close().unwrap();
        wait_for(&third, Role::Leading);
        for (number, told) in (1..).zip(&told) {
            match repeat(&third, number) {
                Ok(answer) => assert!((number > 20 || !with_checkpoint) && answer == *told, "{number}"),
                Err(error) => assert!(with_checkpoint && number <= 20, "{number}: {error}"),
            }
        }
        third.close().unwrap();
    }
}

#[test]
fn a_leader_that_is_cut_off_answers_nothing_and_another_one_goes_on() {
    let journal = SimulatedJournal::new(2);
    let first = join(&journal, "first");
    wait_for(&first, Role::Leading);
    furnish(&first).unwrap();
    let second = join(&journal.another(), "second");
    let request = batch(&[(0, 77, vec![1, 2, 5])]);
    first.call_batch(request).unwrap();
    journal.cut(true);
    // What it cannot append is not known; the other one tells.
    let lost = first.call_batch(batch(&[(0, 78, vec![1, 2, 5])])).unwrap_err();
    assert!(matches!(lost.error, Error::Unknown(_)), "{lost}");
    wait_for(&second, Role::Leading);
    assert_eq!(role(&first), Role::Ended);
    assert!(matches!(first.digest().unwrap_err(), Error::Superseded));
    // The first call was made, so it is not made again; the second was not, or was.
    let again = second.call_batch(batch(&[(0, 77, vec![1, 2, 5]), (0, 78, vec![1, 2, 5])])).unwrap();
    assert!(again.blocks().all(|block| block.status() == Some(Status::Committed)));
    let left = second.call_batch(batch(&[(1, 0, vec![1])])).unwrap();
    assert_eq!(answers(&left)[0].2, (BALANCE - 10).to_le_bytes());
    drop(first);
    journal.cut(false);
    let first = join(&journal, "first");
    wait_until_as_far(&first, &second);
    assert_eq!(first.digest().unwrap(), second.digest().unwrap());
}

#[test]
fn a_leader_whose_lease_has_lapsed_answers_no_reads() {
    let journal = SimulatedJournal::new(3);
    let alone = join(&journal, "alone");
    wait_for(&alone, Role::Leading);
    furnish(&alone).unwrap();
    assert_eq!(total(&alone), ACCOUNTS as i64 * BALANCE);
    journal.cut(true);
    until(|| match alone.digest() {
        Err(Error::Lapsed) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let mut audit = block(&(1, 0, vec![1]));
    assert!(matches!(alone.handle().call(&mut audit), Err(Error::Lapsed)));
    // Nobody has taken it, so it goes on.
    journal.cut(false);
    until(|| alone.digest().map_err(|error| error.to_string()));
    alone.call_batch(batch(&[(0, 0, vec![1, 2, 5])])).unwrap();
    assert_eq!(alone.handle().node().unwrap().epoch, 1);
}

#[test]
fn a_leader_that_learns_that_another_one_has_the_lease_answers_no_reads() {
    let journal = SimulatedJournal::new(6);
    let first = join(&journal, "first");
    wait_for(&first, Role::Leading);
    furnish(&first).unwrap();
    let another = journal.another();
    until(|| {
        let lease = another.entry(Key::Leader).unwrap().unwrap();
        let taken = another.write(Key::Leader, lease.revision, "second 2").unwrap();
        taken.map(drop).ok_or_else(|| "it was renewed meanwhile".into())
    });
    wait_for(&first, Role::Ended);
    assert!(matches!(first.digest().unwrap_err(), Error::Superseded));
    assert!(matches!(first.handle().definitions(0).unwrap_err(), Error::Superseded));
}

#[test]
fn what_one_server_has_behind_the_end_is_appended_before_an_epoch_begins() {
    let told = |node: &Sequencer| until(|| node.digest().map_err(|error| error.to_string()));
    let journal = SimulatedJournal::new(7);
    let first = join(&journal, "first");
    wait_for(&first, Role::Leading);
    furnish(&first).unwrap();
    let mut random = Random(7);
    (0..5).for_each(|_| drop(first.call_batch(batch(&random.calls(20))).unwrap()));
    let (digest, end) = (told(&first), journal.log_range().unwrap().next);
    first.close().unwrap();
    // Of who begins then, which has read none of it.
    journal.strand(3);
    assert_eq!(journal.log_range().unwrap().next, end - 3);
    // In one go, or several.
    let found: Vec<_> = [1, usize::MAX].map(|bytes| journal.stranded(end - 3, bytes).unwrap()[0].len()).into();
    assert_eq!((found, journal.stranded(end, 1)), (vec![1, 3], Ok(Vec::new())));
    let second = join(&journal, "second");
    wait_for(&second, Role::Leading);
    assert_eq!(told(&second), digest);
    assert_eq!(second.statistics().recovered, 3);
    assert_eq!(journal.log_range().unwrap().next, end + 1);
    // And of who has.
    let third = join(&journal.another(), "third");
    second.call_batch(batch(&random.calls(20))).unwrap();
    wait_until_as_far(&third, &second);
    let digest = told(&second);
    // Before the third may lead, and have appended something.
    journal.strand(2);
    second.close().unwrap();
    wait_for(&third, Role::Leading);
    assert_eq!(told(&third), digest);
    third.call_batch(batch(&random.calls(20))).unwrap();
    assert_eq!(total(&third), ACCOUNTS as i64 * BALANCE);
    drop(third);
    assert_eq!(total(&join(&journal, "fourth")), ACCOUNTS as i64 * BALANCE);
}

#[test]
fn a_node_that_begins_while_the_journal_is_cut_behind_a_newer_checkpoint_is_to_begin_again() {
    let journal = SimulatedJournal::new(10);
    let leader = join(&journal, "leader");
    wait_for(&leader, Role::Leading);
    furnish(&leader).unwrap();
    leader.checkpoint().unwrap();
    leader.call_batch(batch(&Random(10).calls(20))).unwrap();
    let end = journal.log_range().unwrap().next;
    // With the checkpoint that there is, and another one when it has read that.
    let begin =
        |cut: &mut dyn FnMut()| join_telling(&journal.another(), NodeOptions { may_lead: false, ..node("late") }, cut);
    let mut was_cut = false;
    let refused = begin(&mut || {
        if !std::mem::replace(&mut was_cut, true) {
            leader.checkpoint().unwrap();
            journal.truncate(end).unwrap();
            leader.call_batch(batch(&Random(11).calls(20))).unwrap();
        }
    });
    let refused = refused.map(|(_, report)| report);
    let is_told = matches!(&refused, Err(Error::Unreachable(why)) if why.contains("newer checkpoint"));
    assert!(was_cut && is_told, "{was_cut} {refused:?}");
    assert_eq!(begin(&mut || ()).unwrap().0.digest().unwrap(), leader.digest().unwrap());
}

/// A leader with accounts, and a node that follows and has all of them.
fn leader_and_follower(journal: &SimulatedJournal) -> (Sequencer, Sequencer) {
    let leader = join(journal, "leader");
    wait_for(&leader, Role::Leading);
    furnish(&leader).unwrap();
    let follower = join(&journal.another(), "follower");
    wait_until_as_far(&follower, &leader);
    (leader, follower)
}

#[test]
fn a_leader_that_has_nothing_to_do_finds_out_that_the_journal_has_lost_what_it_appended() {
    let journal = SimulatedJournal::new(9);
    let (leader, follower) = leader_and_follower(&journal);
    let (digest, end) = (follower.digest().unwrap(), journal.log_range().unwrap().next);
    journal.strand(2);
    wait_for(&leader, Role::Ended);
    wait_for(&follower, Role::Leading);
    assert_eq!(follower.digest().unwrap(), digest);
    assert!(journal.log_range().unwrap().next > end);
}

#[test]
fn who_has_read_what_no_server_has_any_more_does_not_begin_an_epoch_in_its_place() {
    let journal = SimulatedJournal::new(8);
    let (leader, follower) = leader_and_follower(&journal);
    let end = journal.log_range().unwrap().next;
    let read = follower.handle().record();
    // Before the follower may lead, and have appended something.
    journal.forget(read);
    leader.close().unwrap();
    until(|| match follower.handle().node().unwrap().trouble {
        Some(why) if why.contains(&format!("and {read} was read")) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert_eq!((role(&follower), journal.log_range().unwrap().next), (Role::Following, end - 1));
}

#[test]
fn damage_in_the_journal_stops_whoever_reads_it_with_a_report() {
    let sound = |seed| {
        let journal = SimulatedJournal::new(seed);
        let leader = join(&journal, "a");
        wait_for(&leader, Role::Leading);
        furnish(&leader).unwrap();
        leader.call_batch(batch(&Random(seed).calls(20))).unwrap();
        leader.close().unwrap();
        journal
    };
    let end = sound(1).log_range().unwrap().next;
    for number in 1..end {
        for damage in 0..3 {
            let journal = sound(1);
            match damage {
                0 => journal.alter(number, |bytes| bytes[90] ^= 4),
                1 => journal.alter(number, |bytes| *bytes = b"hello".to_vec()),
                _ => journal.forget(number),
            }
            match join_with(&journal, "b", true) {
                Err(error @ Error::Damaged { .. }) => {
                    assert!(error.to_string().contains(&format!("offset {number}")), "{number}, {damage}: {error}");
                }
                Err(error) => panic!("{number}, {damage}: {error}"),
                // Nothing is behind the last one that could miss it.
                Ok(_) => assert!(damage == 2 && number + 1 == end, "{number}, {damage}"),
            }
        }
    }
    // Also while it follows.
    let journal = sound(2);
    let follower = join_with(&journal, "follower", false).unwrap().0;
    let leader = join(&journal.another(), "leader");
    wait_for(&leader, Role::Leading);
    wait_until_as_far(&follower, &leader);
    leader.call_batch(batch(&Random(3).calls(20))).unwrap();
    let digest = leader.digest().unwrap();
    wait_until_as_far(&follower, &leader);
    assert_eq!(follower.digest().unwrap(), digest);
    journal.another().append(journal.log_range().unwrap().next, &[b"not ours".to_vec()]).1.unwrap();
    wait_for(&follower, Role::Ended);
    let trouble = follower.handle().node().unwrap().trouble.unwrap();
    assert!(trouble.contains("none of Lockwork's"), "{trouble}");
    assert!(matches!(leader.call_batch(batch(&[(0, 0, vec![1, 2, 5])])).unwrap_err().error, Error::Superseded));
}

#[test]
fn a_new_node_begins_with_a_checkpoint_and_the_journal_is_cut() {
    let journal = SimulatedJournal::new(4);
    let leader = join(&journal, "leader");
    wait_for(&leader, Role::Leading);
    furnish(&leader).unwrap();
    let mut random = Random(4);
    for _ in 0..3 {
        leader.call_batch(batch(&[(0, 900 + random.below(9), vec![1, 2, 3])])).unwrap();
        leader.call_batch(batch(&random.calls(40))).unwrap();
        leader.checkpoint().unwrap();
    }
    let log_range = journal.log_range().unwrap();
    assert!(log_range.first > 8 && log_range.first < log_range.next, "{log_range:?}");
    assert_eq!(journal.checkpoints().unwrap().len(), 2);
    let request = batch(&[(0, 1000, vec![1, 2, 3])]);
    leader.call_batch(request).unwrap();
    let (follower, report) = join_with(&journal.another(), "follower", true).unwrap();
    assert!(report.records < 5 && report.definitions.len() == 5, "{report:?}");
    wait_until_as_far(&follower, &leader);
    assert_eq!(follower.digest().unwrap(), leader.digest().unwrap());
    // A checkpoint of a follower is as good, also on a real disk.
    leader.call_batch(batch(&random.calls(40))).unwrap();
    wait_until_as_far(&follower, &leader);
    follower.checkpoint().unwrap();
    let digest = leader.digest().unwrap();
    drop(leader);
    wait_for(&follower, Role::Leading);
    let third = join(&journal.another(), "third");
    assert_eq!(third.digest().unwrap(), digest);
    let again = follower.call_batch(batch(&[(0, 1000, vec![1, 2, 3])])).unwrap();
    assert_eq!(again.block(0).status(), Some(Status::Committed));
    assert_eq!(follower.digest().unwrap(), digest, "a request id that was used runs nothing");
}

#[test]
fn a_full_journal_refuses_calls_and_goes_on_when_there_is_room() {
    let journal = SimulatedJournal::new(5);
    let leader = join(&journal, "leader");
    wait_for(&leader, Role::Leading);
    furnish(&leader).unwrap();
    leader.call_batch(batch(&[(0, 1, vec![1, 2, 3])])).unwrap();
    let digest = leader.digest().unwrap();
    journal.set_capacity(100);
    let refused = leader.call_batch(batch(&[(0, 2, vec![1, 2, 3])])).unwrap_err();
    assert!(matches!(refused.error, Error::JournalFull(_)), "{refused}");
    assert_eq!(role(&leader), Role::Ended);
    drop(leader);
    let next = join(&journal.another(), "next");
    assert_eq!(next.digest().unwrap(), digest);
    // It cannot lead, and says why; a checkpoint lets the journal be cut, then there is room.
    until(|| match next.handle().node().unwrap() {
        status if status.trouble.as_ref().is_some_and(|trouble| trouble.contains("full")) => Ok(()),
        status => Err(format!("{status:?}")),
    });
    assert_eq!(role(&next), Role::Following);
    journal.set_capacity(usize::MAX);
    wait_for(&next, Role::Leading);
    next.call_batch(batch(&[(0, 2, vec![1, 2, 3])])).unwrap();
}

/// A node that appends a digest of everything whenever something has changed.
fn eager() -> NodeOptions {
    NodeOptions { digest_interval: Duration::from_millis(1), ..node("node") }
}

/// Three nodes that are cut off, dropped and joined again, over a journal that loses requests and answers, and clients
/// that call whoever leads until each call is acknowledged: every call was made once.
fn random_faults(seed: u64, rounds: u64) {
    let journal = SimulatedJournal::new(seed);
    let ways: Vec<SimulatedJournal> = (0..3).map(|_| journal.another()).collect();
    let mut random = Random(seed);
    let mut nodes: Vec<Option<Sequencer>> = ways.iter().map(|way| Some(join_as(way, eager()).unwrap().0)).collect();
    let mut furnished = false;
    let (mut asked, mut acknowledged) = (0, 0);
    journal.lose(seed % 4 * 10);
    for _ in 0..rounds {
        let at = random.below(3) as usize;
        match random.below(12) {
            0 => ways[at].cut(true),
            1 | 2 => ways.iter().for_each(|way| way.cut(false)),
            3 => nodes[at] = None,
            4 => {
                if let Some(node) = nodes[at].as_ref().filter(|_| furnished) {
                    drop(node.checkpoint());
                }
            }
            _ => {}
        }
        for (node, way) in nodes.iter_mut().zip(&ways) {
            if node.as_ref().is_none_or(|node| role(node) == Role::Ended) {
                drop(node.take());
                // It may be cut off, or its request be lost.
                match join_as(way, eager()) {
                    Ok((joined, _)) => *node = Some(joined),
                    Err(Error::Unreachable(_)) => {}
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            }
        }
        for node in nodes.iter().flatten() {
            if !furnished && role(node) == Role::Leading {
                let defined = node.read(|engine| engine.procedure(3).is_some());
                let rows = defined.ok().filter(|&all| all).and_then(|_| node.digest().ok());
                furnished = match rows {
                    Some(digest) => digest != lockwork_storage::Digest::default() || furnish_rest(node).is_ok(),
                    None => furnish_rest(node).is_ok(),
                };
            }
            if furnished {
                // One call after the other, each until it is acknowledged by whoever leads.
                let request = acknowledged + 1;
                asked = asked.max(request);
                let called = node.call_batch(batch(&[(0, request, vec![3, 4, 1])]));
                if let Ok(batch) = called {
                    assert_eq!(batch.block(0).status(), Some(Status::Committed), "seed {seed}");
                    acknowledged = request;
                }
            }
        }
        std::thread::sleep(Duration::from_millis(random.below(20)));
    }
    journal.lose(0);
    ways.iter().for_each(|way| way.cut(false));
    drop(nodes);
    let last = join(&journal, "last");
    wait_for(&last, Role::Leading);
    if furnished {
        let left = last.call_batch(batch(&[(1, 0, vec![4])])).unwrap();
        let balance = i64::from_le_bytes(answers(&left)[0].2[..].try_into().unwrap());
        let made = (balance - BALANCE) as u64;
        assert!(
            made == acknowledged || made == asked,
            "seed {seed}: {made} made, {acknowledged} of {asked} acknowledged"
        );
        assert_eq!(total(&last), ACCOUNTS as i64 * BALANCE, "seed {seed}");
    }
    // Whoever reads the journal from its beginning has the same.
    let other = join_with(&journal.another(), "other", false).unwrap().0;
    wait_until_as_far(&other, &last);
    assert_eq!(other.digest().unwrap(), last.digest().unwrap(), "seed {seed}");
}

/// As [`furnish`], where another leader may have come as far as anything.
fn furnish_rest(node: &Sequencer) -> Result<(), Error> {
    let known = node.read(|engine| (0..).map_while(|id| engine.procedure(id)).count())?;
    let tables = node.read(|engine| {
        let mut tables = 0;
        engine.with_database(&mut |database| tables = database.len()).map(|()| tables)
    })??;
    if tables == 0 {
        node.define(definition(TABLES))?;
    }
    for source in &[TRANSFER, AUDIT, OPEN, CLOSE][known..] {
        node.define(definition(source))?;
    }
    node.load("accounts", (0..ACCOUNTS).flat_map(image).collect()).map(drop)
}

#[test]
fn every_acknowledged_call_is_made_once_whatever_happens() {
    let seeds: u64 = std::env::var("NODE_SEEDS").ok().map_or(12, |seeds| seeds.parse().expect("a number"));
    for seed in 0..seeds {
        random_faults(seed, 120);
    }
}

/// A statement that adds so much to an account.
fn statement(amount: i64) -> String {
    format!(
        "procedure _statement_4\ntable accounts\nparam id: i64\nupdate c0, accounts, [id]\nret r1, c0\n\
         loadr r2, r1[accounts.balance]\nadd r2, r2, {amount}\nstorer r2, r1[accounts.balance]\ncommit"
    )
}

#[test]
fn what_takes_the_place_of_a_statement_is_there_for_followers_and_new_nodes() {
    let journal = SimulatedJournal::new(12);
    let first = join(&journal, "first");
    wait_for(&first, Role::Leading);
    furnish(&first).unwrap();
    first.define(definition(&statement(10))).unwrap();
    let second = join(&journal.another(), "second");
    wait_until_as_far(&second, &first);
    let replaced =
        |node: &Sequencer, assembly: &str, id| node.define(Definition { replaces: Some(id), ..definition(assembly) });
    let mut wanted = total(&first);
    let mut adds = |node: &Sequencer, amount: i64| {
        node.call_batch(batch(&[(4, 0, vec![1])])).unwrap();
        wanted += amount;
        assert_eq!(total(node), wanted);
    };
    adds(&first, 10);
    for amount in 11..15 {
        replaced(&first, &statement(amount), 4).unwrap();
        adds(&first, amount);
    }
    // Nothing takes the place of what has a name, or is not there.
    let named = "procedure more\nparam id: i64\ncommit";
    for (assembly, id) in [(statement(9), 0), (statement(9), 5), (named.into(), 4)] {
        let refused = replaced(&first, &assembly, id).unwrap_err().to_string();
        assert!(refused.contains("only a statement, on tables that there are, takes the place of one"), "{refused}");
    }
    // One node has followed all of it, another one begins with a checkpoint.
    wait_until_as_far(&second, &first);
    first.checkpoint().unwrap();
    let third = join(&journal.another(), "third");
    replaced(&first, &statement(100), 4).unwrap();
    adds(&first, 100);
    for node in [&second, &third] {
        wait_until_as_far(node, &first);
        assert_eq!(node.digest().unwrap(), first.digest().unwrap());
    }
    first.close().unwrap();
    wait_for(&second, Role::Leading);
    adds(&second, 100);
    replaced(&second, &statement(1000), 4).unwrap();
    adds(&second, 1000);
    wait_until_as_far(&third, &second);
    second.close().unwrap();
    wait_for(&third, Role::Leading);
    adds(&third, 1000);
}
