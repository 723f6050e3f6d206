//! Nodes that have a part of every table and share a log: what was acknowledged was made once, whoever leads, and
//! whoever ends and begins again.

#[path = "common/parts.rs"]
#[allow(dead_code, reason = "every test takes what it needs")]
mod parts;
#[path = "common/set.rs"]
#[allow(dead_code, reason = "every test takes what it needs")]
mod set;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;

use lockwork_conformance::engines::Random;
use lockwork_partitions::divided::KEPT_BYTES;
use lockwork_procedure::block::{BlockMut, Status};
use lockwork_sequencer::io::simulated::SimulatedDisk;
use lockwork_sequencer::io::{Io, Mode};
use lockwork_sequencer::journal::Journal;
use lockwork_sequencer::journal::simulated::SimulatedJournal;
use lockwork_sequencer::{Definition, Error, Journals, NodeOptions, Options, Role, Sequencer};
use parts::{listeners, part};
use set::{ACCOUNTS, Answer, BALANCE, Call, LEASE, READ, Set, TABLES, calls, id, until};

#[test]
fn what_is_called_at_the_leader_is_run_by_all_parts() {
    let journal = SimulatedJournal::new(1);
    let mut set = Set::new(&journal, 3, true);
    set.furnish();
    let mut follows = Set::new(&journal, 3, false);
    let mut random = Random(4);
    for round in 0..30 {
        let calls = calls(&mut random, 1000 + round * 100, 1 + round);
        let first = set.call_again(&calls);
        // What is made again is what it was, but for what has no id.
        let again: Vec<Call> = calls.iter().filter(|call| call.1 != 0).cloned().collect();
        let same: Vec<Answer> = calls.iter().zip(&first).filter(|(call, _)| call.1 != 0).map(|(_, a)| *a).collect();
        assert_eq!(set.call_again(&again), same);
    }
    let (money, digests) = set.settled();
    assert_eq!(money, ACCOUNTS * BALANCE);
    assert_eq!(follows.settled(), (money, digests));
    // A batch of several refuses an id that was another procedure's, and nothing has happened.
    let reused = set.call(&[(1, 0, vec![1, 2, 3]), (3, 5, vec![1])]).unwrap_err();
    assert!(matches!(reused, Error::RequestReused { request, .. } if request == id(5)), "{reused}");
    // What cannot be run says why, and the others run.
    let answers = set.call(&[(3, 0, vec![1]), (77, 0, vec![]), (3, 0, vec![2])]).unwrap();
    assert_eq!(answers[1].0, Some(Status::Failed));
    assert!(answers[0].0 == Some(Status::Committed) && answers[2].0 == Some(Status::Committed));
}

#[test]
fn one_call_that_is_refused_for_its_id_refuses_no_other() {
    let journal = SimulatedJournal::new(1);
    let mut set = Set::new(&journal, 2, true);
    set.furnish();
    set.call(&[(1, 900, vec![1, 2, 3])]).unwrap();
    let leader = set.leader();
    let handle = set.nodes[leader].as_ref().unwrap().handle();
    let (sender, answers) = channel();
    let calls = |number: usize| match number {
        50 => (1, 900, vec![1, 2, 4]),
        number => (1, 1000 + number as u64, vec![1, 2, 1]),
    };
    for number in 0..100 {
        let sender = sender.clone();
        let batch = set::batch(&[calls(number)]);
        let mut block = batch.block(0).bytes().to_vec();
        BlockMut::new(&mut block).set_request(batch.request(0));
        handle.call_then(block, move |outcome| sender.send((number, outcome.map(drop))).unwrap()).unwrap();
    }
    drop(sender);
    let mut count = 0;
    for (number, outcome) in answers {
        assert_eq!(outcome.is_err(), number == 50, "{number}: {outcome:?}");
        count += 1;
    }
    assert_eq!(count, 100);
    // The ids of the others are remembered.
    let before = set.settled();
    set.call_again(&(0..100).filter(|number| *number != 50).map(calls).collect::<Vec<Call>>());
    assert_eq!(set.settled(), before);
}

/// Images of accounts of these numbers.
fn images(accounts: impl Iterator<Item = i64>) -> Vec<u8> {
    accounts.flat_map(|id| [id, BALANCE, id].map(i64::to_le_bytes).concat()).collect()
}

#[test]
fn whole_tables_are_read_and_loaded_at_the_leader_of_parts() {
    let journal = SimulatedJournal::new(3);
    let (mut set, mut follows) = (Set::new(&journal, 3, true), Set::new(&journal, 3, false));
    for source in [TABLES, "table names (id: i64 key, name: char(8)) replicated", READ] {
        let leader = set.leader();
        let definition = Definition::new(source, "");
        set.nodes[leader].as_ref().unwrap().define(definition).unwrap();
    }
    let names =
        |from: i64| -> Vec<u8> { (from..from + 9).flat_map(|id| [id; 2].map(i64::to_le_bytes).concat()).collect() };
    // More than one record has, and more than one piece.
    let many = 300_000;
    assert_eq!(set.load("accounts", images(1..=many)).unwrap(), many as usize);
    assert_eq!(set.load("names", names(1)).unwrap(), 9);
    let gathered = set.gather(&["names", "accounts"], 1 << 30).unwrap();
    assert_eq!(gathered.bytes, 9 * 16 + many as u64 * 24);
    assert_eq!(gathered.tables[0].1, names(1));
    let mut rows: Vec<&[u8]> = gathered.tables[1].1.chunks(24).collect();
    rows.sort_by_key(|row| i64::from_le_bytes(row[..8].try_into().unwrap()));
    assert!(rows.concat() == images(1..=many));
    assert!(gathered.record > 3 && gathered.tables[0].0.name() == "names");
    // Too many are counted, and not told.
    let counted = set.gather(&["accounts"], 1 << 20).unwrap();
    assert_eq!((counted.bytes, counted.tables.len()), (many as u64 * 24, 0));

    // A key that is there, or stands twice, ends it, whichever part has it, and those before it are there.
    let refused = set.load("accounts", images((many + 1..many + 50).chain([7]).chain(many + 50..many + 60)));
    let expected = "49 rows were loaded, and the next was refused: table 'accounts' has a row with key (7)";
    assert!(refused.clone().unwrap_err().starts_with(expected), "{refused:?}");
    let twice = [0, 1, 2, 1, 3].into_iter().map(|at| many + 50 + at);
    assert!(set.load("accounts", images(twice)).unwrap_err().starts_with("3 rows were loaded"));
    assert!(set.load("names", names(5)).unwrap_err().starts_with("0 rows were loaded"));
    assert_eq!(set.load("names", names(10)).unwrap(), 9);
    assert_eq!(set.gather(&["accounts"], 0).unwrap().bytes, (many as u64 + 52) * 24);
    for (table, wrong) in [("nothing", "no table is called"), ("accounts", "has 24 bytes after its header")] {
        assert!(set.load(table, vec![0; 25]).unwrap_err().contains(wrong));
    }
    assert!(set.gather(&["accounts", "nothing"], 1).unwrap_err().contains("no table is called 'nothing'"));
    assert_eq!(set.load("accounts", Vec::new()).unwrap(), 0);
    assert_eq!(follows.settled().1, set.settled().1);
    let handle = follows.nodes[1].as_ref().unwrap().handle();
    assert!(matches!(handle.load("accounts", vec![0; 24]), Err(Error::Follower { .. })));
}

#[test]
fn a_load_that_is_broken_off_says_what_is_there() {
    let journal = SimulatedJournal::new(5);
    let mut set = Set::new(&journal, 2, true);
    let leader = set.leader();
    let definition = Definition::new(TABLES, "");
    set.nodes[leader].as_ref().unwrap().define(definition).unwrap();
    // Of two records there is room for one.
    journal.set_capacity(5 << 20);
    let refused = set.nodes[leader].as_ref().unwrap().handle().load("accounts", images(1..=300_000)).unwrap_err();
    let told = refused.to_string();
    assert!(matches!(refused, Error::Unknown(_)) && told.contains("rows were loaded, and then: "), "{told}");
    let loaded: u64 = told.split(' ').find_map(|word| word.parse().ok()).unwrap();
    assert!(loaded > 100_000 && loaded < 300_000);
    journal.set_capacity(usize::MAX);
    assert_eq!(set.gather(&["accounts"], 0).unwrap().bytes, loaded * 24);
}

#[test]
fn checkpoints_that_a_part_is_missing_of_are_removed_with_those_before() {
    let (journal, disk) = (SimulatedJournal::new(6), SimulatedDisk::new(1));
    let mut set = Set::new(&journal, 2, true);
    set.furnish();
    // Of a record before, the second part has handed none in.
    let file = disk.open(Path::new("/half"), Mode::Create).unwrap();
    journal.keep_checkpoint(2 << 6, &*file).unwrap();
    for round in 0..3 {
        set.call_again(&[(1, 1000 + round, vec![1, 2, 1])]);
        set.ask(|handle| handle.checkpoint().map(drop)).unwrap();
    }
    let names = journal.checkpoints().unwrap();
    assert!(names.len() >= 4 && names.iter().all(|name| name >> 6 > 2), "{names:?}");
}

#[test]
fn parts_that_end_begin_again_from_checkpoint_and_log_and_nothing_is_lost_or_made_twice() {
    for seed in 0..8 {
        let (journal, parts) = (SimulatedJournal::new(seed), 2 + seed as usize % 2);
        // Of the second half, all parts have sequencers.
        let streams = if seed < 4 { 0 } else { parts as u64 - 1 };
        let streams: Vec<_> = (0..streams).map(|number| SimulatedJournal::new(seed + 100 + number)).collect();
        let mut set = Set::with_streams(&journal, &streams, parts, true, LEASE);
        set.furnish();
        let mut random = Random(seed);
        let (mut made, mut cuts, mut loaded) = (Vec::new(), 0, 0);
        for round in 0..40 {
            let count = 1 + random.below(20);
            let calls = calls(&mut random, 1000 + round * 100, count);
            let (parts, fate) = (set.nodes.len() as u64, random.below(8));
            let number = random.below(parts) as usize;
            match fate {
                // One ends, and begins again while there are calls.
                0 | 1 => set.nodes[number] = None,
                // One loses the journal, which it notices later.
                2 => set.cut(number, true),
                3 => {
                    let leader = set.leader();
                    cuts += u64::from(set.nodes[leader].as_ref().unwrap().checkpoint().is_ok());
                }
                _ => {}
            }
            // While one is away, or begins again; without the journal it would not come back.
            if fate != 2 && round % 4 < 2 {
                let gathered = set.gather(&["accounts"], 1 << 20).unwrap();
                let balances = gathered.tables[0].1.chunks(24).map(|row| &row[8..16]);
                let money: i64 = balances.map(|balance| i64::from_le_bytes(balance.try_into().unwrap())).sum();
                assert_eq!(money, (ACCOUNTS + loaded) * BALANCE, "seed {seed}");
            }
            if fate != 2 && round % 4 == 1 {
                // It is not known of one that fails whether it was made: then this finds out.
                let next = ACCOUNTS + loaded + 1;
                let again = set.load("accounts", images(next..next + 3));
                loaded += 3;
                assert!(again == Ok(3) || again.is_err_and(|why| why.starts_with("0 rows")), "seed {seed}");
            }
            if fate < 3 {
                let beginning = std::time::Duration::from_millis(random.below(400));
                std::thread::sleep(beginning);
                set.begin(number).unwrap();
            }
            let answers = set.call_again(&calls);
            let kept = calls.into_iter().zip(answers).filter(|(call, _)| call.1 != 0);
            made.extend(kept);
        }
        let (money, _) = set.settled();
        assert_eq!(money, (ACCOUNTS + loaded) * BALANCE, "seed {seed}");
        for chunk in made.chunks(100) {
            let calls: Vec<Call> = chunk.iter().map(|(call, _)| call.clone()).collect();
            let answers: Vec<Answer> = chunk.iter().map(|(_, answer)| *answer).collect();
            assert_eq!(set.call_again(&calls), answers, "seed {seed}");
        }
        let extents = streams.iter().map(|stream| stream.log_range().unwrap().next).collect::<Vec<_>>();
        println!("seed {seed}: {} records, {extents:?} in streams, {cuts} cuts", journal.log_range().unwrap().next);
    }
}

#[test]
fn what_touches_other_parts_is_passed_over_and_what_has_a_request_id_is_not() {
    const PARTS: usize = 3;
    let journal = SimulatedJournal::new(2);
    let mut set = Set::new(&journal, PARTS, true);
    set.furnish();
    let mut attempt = 0;
    until(|| {
        attempt += 1;
        let leader = set.leader();
        set.settled();
        let taken = |set: &Set| -> Vec<u64> {
            set.nodes.iter().map(|node| node.as_ref().unwrap().statistics().calls).collect()
        };
        let before = taken(&set);
        // Who pays whom a row names is found out by looking: it is everybody's. Of the others every tenth has an id.
        let call = |at: u64| match at % 25 {
            3 => (2, 0, vec![1 + at as i64 % ACCOUNTS, 0, 0]),
            kind => (3, if kind % 10 == 0 { attempt * 1000 + at } else { 0 }, vec![1 + at as i64 % ACCOUNTS]),
        };
        let calls: Vec<Call> = (0..200).map(call).collect();
        let mut due = [0; PARTS];
        for (procedure, request, arguments) in &calls {
            let owner = ((arguments[0] as u64 ^ 1 << 63) % PARTS as u64) as usize;
            for (part, due) in due.iter_mut().enumerate() {
                let concerns = part == owner || part == leader || *procedure == 2 || *request != 0;
                *due += u64::from(concerns);
            }
        }
        let answers = set.call(&calls).map_err(|error| error.to_string())?;
        assert!(answers.iter().all(|answer| answer.0 == Some(Status::Committed)));
        set.settled();
        // On a busy machine another one may have begun to lead.
        if set.leader() != leader {
            return Err("the leader has changed".into());
        }
        let after = taken(&set);
        let seen: Vec<u64> = after.iter().zip(&before).map(|(after, before)| after.wrapping_sub(*before)).collect();
        assert_eq!(seen, due);
        assert_eq!(due[leader], 200);
        assert!((0..PARTS).all(|part| part == leader || due[part] < 120), "{due:?}");
        Ok(())
    });
}

#[test]
fn a_journal_of_another_number_of_parts_is_refused() {
    let journal = SimulatedJournal::new(9);
    let mut set = Set::new(&journal, 2, true);
    set.furnish();
    let mut other = Set::new(&journal, 3, false);
    let told = until(|| match other.nodes[0].as_ref().unwrap().handle().node().unwrap() {
        status if status.role == Role::Ended => Ok(status.trouble.unwrap_or_default()),
        status => Err(format!("{status:?}")),
    });
    assert!(told.contains("the tables of this journal have 2"), "{told}");
    other.nodes.clear();
}

/// Of three parts, two have everything that two parts would have, as far as names of checkpoints tell.
#[test]
fn checkpoints_of_another_number_of_parts_are_refused() {
    let journal = SimulatedJournal::new(10);
    let mut set = Set::new(&journal, 3, true);
    set.furnish();
    // A later one has the log cut behind the first.
    until(|| {
        set.ask(|handle| handle.checkpoint().map(|_| ())).unwrap();
        set.settled();
        if journal.log_range().unwrap().first > 1 { Ok(()) } else { Err("the log is not cut".into()) }
    });
    set.nodes.clear();
    for wrong in [1, 2, 4] {
        let (listeners, addresses) = listeners(wrong);
        let (engine, disk) = (part(0, &listeners[0], &addresses, KEPT_BYTES), Arc::new(SimulatedDisk::new(1)));
        let (journals, node) = (Journals::one(journal.another()), NodeOptions::new("a:1"));
        let (options, engine) = (Options::default(), Box::new(engine));
        let joined = Sequencer::join_divided(journals, disk, Path::new("/n"), options, node, engine, &mut |_| ());
        let told = joined.err().unwrap_or_else(|| panic!("{wrong} parts are taken")).to_string();
        assert!(told.contains("of 3 parts"), "{wrong}: {told}");
    }
    set = Set::new(&journal, 3, true);
    assert_eq!(set.settled().0, ACCOUNTS * BALANCE);
}
