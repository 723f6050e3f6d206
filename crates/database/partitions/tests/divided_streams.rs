//! Further sequencers of nodes that have a part of every table: their streams are merged alike by all, and what is
//! wrong with one is found.

#[path = "common/parts.rs"]
#[allow(dead_code, reason = "every test takes what it needs")]
mod parts;
#[path = "common/set.rs"]
#[allow(dead_code, reason = "every test takes what it needs")]
mod set;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockwork_conformance::engines::Random;
use lockwork_partitions::divided::KEPT_BYTES;
use lockwork_procedure::block::Status;
use lockwork_sequencer::io::simulated::SimulatedDisk;
use lockwork_sequencer::journal::Journal;
use lockwork_sequencer::journal::simulated::SimulatedJournal;
use lockwork_sequencer::{Error, Handle, Journals, NodeOptions, Options, Role, Sequencer, StreamStatus};
use parts::{listeners, part};
use set::{ACCOUNTS, Answer, BALANCE, Call, LEASE, Set, batch, calls, result, until};

#[test]
fn sequencers_take_calls_beside_the_leader_and_their_streams_are_merged_alike_by_all() {
    let (journal, streams) = (SimulatedJournal::new(5), [SimulatedJournal::new(6), SimulatedJournal::new(7)]);
    let mut set = Set::with_streams(&journal, &streams, 3, true, Duration::from_secs(20));
    set.furnish();
    let mut follows = Set::with_streams(&journal, &streams, 3, false, LEASE);
    let takers: Vec<usize> = (0..3).map(|_| set.taker()).collect();
    let takers: Vec<Handle> = takers.iter().map(|&at| set.nodes[at].as_ref().unwrap().handle()).collect();
    // All of them at once, and each has made what it was told.
    let run = |(number, handle): (u64, &Handle)| {
        let mut random = Random(40 + number);
        let mut made = Vec::new();
        for round in 0..60 {
            let calls = calls(&mut random, 1 + (number * 100 + round) * 1000, 1 + round);
            let ran = handle.call_batch(batch(&calls)).map_err(|refused| refused.error).unwrap();
            let answers = ran.blocks().map(|block| (block.status(), block.abort_code(), result(block.bytes())));
            made.extend(calls.into_iter().zip(answers).filter(|(call, _)| call.1 != 0));
        }
        made
    };
    let made: Vec<(Call, Answer)> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..).zip(&takers).map(|of| scope.spawn(move || run(of))).collect();
        all.into_iter().flat_map(|one| one.join().unwrap()).collect()
    });
    assert!(streams.iter().all(|stream| stream.log_range().unwrap().next > 10));
    // Whoever is asked again says the same.
    for chunk in made.chunks(500) {
        let (calls, answers): (Vec<Call>, Vec<Answer>) = chunk.iter().cloned().unzip();
        assert_eq!(set.call_again(&calls), answers);
    }
    let (money, digests) = set.settled();
    assert_eq!(money, ACCOUNTS * BALANCE);
    assert_eq!(follows.settled(), (money, digests));
    for (stream, at) in streams.iter().zip(0..) {
        let next = stream.log_range().unwrap().next;
        let shown = follows.nodes[0].as_ref().unwrap().handle().node().unwrap().streams[at];
        assert_eq!(shown, StreamStatus { part: at as u16 + 1, merged: next - 1, lag: 0 });
    }
    // What is not for them, and an id that another one has had of another procedure.
    let sequencer = &takers[takers.iter().position(|handle| handle.role() == Some(Role::Sequencing)).unwrap()];
    assert!(matches!(sequencer.load("accounts", vec![0; 24]), Err(Error::ForLeader { .. })));
    let reused = sequencer.call_batch(batch(&[(3, made[0].0.1, vec![1])])).map_err(|refused| refused.error);
    assert!(matches!(reused, Err(Error::RequestReused { .. })), "{:?}", reused.err());
    let ids: Vec<_> = takers
        .iter()
        .enumerate()
        .map(|(number, handle)| {
            let (procedure, handle) = (1 + 2 * (number as u32 % 2), handle.clone());
            std::thread::spawn(move || handle.call_batch(batch(&[(procedure, 77, vec![1, 2, 3])])))
        })
        .collect();
    // Given together, the later one is told that nothing has happened, by who finds out.
    let outcomes: Vec<_> = ids.into_iter().map(|one| one.join().unwrap()).collect();
    let made = outcomes
        .iter()
        .filter_map(|outcome| outcome.as_ref().ok())
        .filter(|ran| ran.block(0).status() != Some(Status::Failed));
    let kinds: std::collections::HashSet<u32> = made.map(|ran| ran.block(0).procedure()).collect();
    assert_eq!(kinds.len(), 1, "{outcomes:?}");
    assert_eq!(set.settled().0, ACCOUNTS * BALANCE);
}

#[test]
fn damage_in_a_stream_stops_who_reads_it_and_says_where() {
    for (number, what) in [(0, "altered"), (1, "lost"), (2, "of another database")] {
        let (journal, stream) = (SimulatedJournal::new(20 + number), SimulatedJournal::new(30 + number));
        let mut set = Set::with_streams(&journal, std::slice::from_ref(&stream), 2, true, LEASE);
        set.furnish();
        for _ in 0..6 {
            assert_eq!(set.call_again(&[(3, 0, vec![1])])[0].0, Some(Status::Committed));
        }
        set.settled();
        let other = SimulatedJournal::new(40);
        let read = match number {
            0 => {
                stream.alter(2, |message| message[100] ^= 1);
                &stream
            }
            1 => {
                stream.forget(2);
                &stream
            }
            _ => {
                let mut set =
                    Set::with_streams(&SimulatedJournal::new(41), std::slice::from_ref(&other), 2, true, LEASE);
                set.furnish();
                for _ in 0..12 {
                    set.call_again(&[(3, 0, vec![1])]);
                }
                &other
            }
        };
        let mut follows = Set::with_streams(&journal, std::slice::from_ref(read), 2, false, LEASE);
        let told = until(|| match follows.nodes[0].as_ref().unwrap().handle().node().unwrap() {
            status if status.role == Role::Ended => Ok(status.trouble.unwrap_or_default()),
            status => Err(format!("{what}: {status:?}")),
        });
        let expected = ["offset 2: ", "offset 2: ", "the stream is of another database"][number as usize];
        assert!(told.contains(expected), "{what}: {told}");
        follows.nodes.clear();
    }
}

/// What nodes have merged that one server of a stream still has, and all of them together do not, nor whoever begins
/// again then.
#[test]
fn what_one_server_of_a_stream_has_is_gone_on_with() {
    let (journal, stream) = (SimulatedJournal::new(80), SimulatedJournal::new(81));
    let mut set = Set::with_streams(&journal, std::slice::from_ref(&stream), 2, true, LEASE);
    set.furnish();
    let mut random = Random(80);
    for round in 0..6 {
        let made = calls(&mut random, (1 + round) * 1000, 8);
        let answers = set.call_again(&made);
        let (made, answers): (Vec<Call>, Vec<Answer>) =
            made.into_iter().zip(answers).filter(|(call, _)| call.1 != 0).unzip();
        set.settled();
        let end = stream.log_range().unwrap().next;
        match round {
            // All begin again, and the order names what is not there.
            0 | 1 => {
                set.nodes.iter_mut().for_each(|node| *node = None);
                stream.strand(1 + round as usize);
            }
            // The node that sequences begins again.
            2 | 3 => {
                set.nodes[1] = None;
                stream.strand(1 + round as usize);
            }
            // It goes on, until it appends something.
            _ => stream.strand(2),
        }
        assert_eq!(set.call_again(&made), answers);
        until(|| {
            set.call_again(&[(3, 0, vec![1])]);
            let next = stream.log_range().unwrap().next;
            if next > end { Ok(()) } else { Err(format!("round {round}: {next} of {end}")) }
        });
    }
    let (money, digests) = set.settled();
    assert_eq!(money, ACCOUNTS * BALANCE);
    let mut follows = Set::with_streams(&journal, std::slice::from_ref(&stream), 2, false, LEASE);
    assert_eq!(follows.settled(), (money, digests));
}

#[test]
fn whole_tables_read_all_the_time_keep_no_calls_waiting() {
    let (journal, stream) = (SimulatedJournal::new(70), SimulatedJournal::new(71));
    let lease = Duration::from_secs(20);
    let mut set = Set::with_streams(&journal, std::slice::from_ref(&stream), 2, true, lease);
    set.furnish();
    let takers: Vec<usize> = (0..2).map(|_| set.taker()).collect();
    let takers: Vec<Handle> = takers.iter().map(|&at| set.nodes[at].as_ref().unwrap().handle()).collect();
    let leader = takers.iter().find(|handle| handle.role() == Some(Role::Leading)).unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    let (sender, gathered) = std::sync::mpsc::sync_channel(1);
                    let then = move |outcome| drop(sender.send(outcome));
                    leader.gather_then(vec!["accounts".into()], 1 << 20, then).unwrap();
                    assert!(gathered.recv().unwrap().is_ok());
                }
            });
        }
        let calls: Vec<_> = takers
            .iter()
            .map(|handle| {
                scope.spawn(|| {
                    for _ in 0..20 {
                        assert!(handle.call_batch(batch(&[(3, 0, vec![1])])).is_ok());
                    }
                })
            })
            .collect();
        let start = Instant::now();
        while !calls.iter().all(|calls| calls.is_finished()) && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(start.elapsed() < Duration::from_secs(60), "calls wait");
    });
}

/// What the order had named of such a stream would be there for good.
#[test]
fn a_stream_that_is_left_over_is_not_merged() {
    let (journal, stream) = (SimulatedJournal::new(50), SimulatedJournal::new(51));
    let mut before = Set::with_streams(&SimulatedJournal::new(52), std::slice::from_ref(&stream), 2, true, LEASE);
    before.furnish();
    for _ in 0..4 {
        before.call_again(&[(3, 0, vec![1])]);
    }
    drop(before);
    // A database that has had no further sequencers.
    let mut set = Set::new(&journal, 2, true);
    set.furnish();
    set.nodes.clear();
    let log_range = journal.log_range().unwrap();
    let wrong = Set::with_streams(&journal, std::slice::from_ref(&stream), 2, true, LEASE);
    let told = until(|| match wrong.nodes[0].as_ref().unwrap().handle().node().unwrap() {
        status if status.role == Role::Ended => Ok(status.trouble.unwrap_or_default()),
        status => Err(format!("{status:?}")),
    });
    assert!(told.contains("the stream is of another database"), "{told}");
    drop(wrong);
    // Each of both may have begun to lead, and said that streams are merged, before it had read any of this one. Who
    // goes on with an empty one shows that none of it was named.
    let next = journal.log_range().unwrap().next;
    assert!(next <= log_range.next + 4, "{next}, {log_range:?}");
    let empty = SimulatedJournal::new(53);
    let mut set = Set::with_streams(&journal, std::slice::from_ref(&empty), 2, true, LEASE);
    for _ in 0..4 {
        assert_eq!(set.call_again(&[(3, 0, vec![1])])[0].0, Some(Status::Committed));
    }
    assert!(empty.log_range().unwrap().next > 2);
    assert_eq!(set.settled().0, ACCOUNTS * BALANCE);
}

#[test]
fn a_full_stream_refuses_calls_of_its_sequencer_and_nothing_of_them_happens() {
    let (journal, stream) = (SimulatedJournal::new(60), SimulatedJournal::new(61));
    let mut set = Set::with_streams(&journal, std::slice::from_ref(&stream), 2, true, LEASE);
    set.furnish();
    let transfer = (1, 900, vec![1, 2, 30]);
    let at = |set: &mut Set| {
        until(|| {
            let taker = set.taker();
            if taker == 1 { Ok(set.nodes[1].as_ref().unwrap().handle()) } else { Err("the other one".into()) }
        })
    };
    let handle = at(&mut set);
    stream.set_capacity(0);
    let refused = handle.call_batch(batch(std::slice::from_ref(&transfer))).map_err(|refused| refused.error);
    assert!(matches!(refused, Err(Error::JournalFull(_))), "{:?}", refused.err());
    // The others go on, and with room so does it.
    set.leader();
    stream.set_capacity(usize::MAX);
    let handle = at(&mut set);
    let ran = handle.call_batch(batch(std::slice::from_ref(&transfer))).map_err(|refused| refused.error).unwrap();
    assert_eq!((ran.block(0).status(), result(ran.block(0).bytes())), (Some(Status::Committed), BALANCE - 30));
    assert_eq!(set.settled().0, ACCOUNTS * BALANCE);
}

/// Another number of streams would give what is merged another order.
#[test]
fn a_journal_of_another_number_of_streams_is_refused() {
    let (journal, streams) = (SimulatedJournal::new(11), [SimulatedJournal::new(12), SimulatedJournal::new(13)]);
    let mut set = Set::with_streams(&journal, &streams, 3, true, LEASE);
    set.furnish();
    for _ in 0..3 {
        assert_eq!(set.call_again(&[(3, 0, vec![1])])[0].0, Some(Status::Committed));
    }
    let mut other = Set::with_streams(&journal, &streams[..1], 3, false, LEASE);
    let told = until(|| match other.nodes[0].as_ref().unwrap().handle().node().unwrap() {
        status if status.role == Role::Ended => Ok(status.trouble.unwrap_or_default()),
        status => Err(format!("{status:?}")),
    });
    assert!(told.contains("the nodes of this journal have 2"), "{told}");
    other.nodes.clear();
    // Of a checkpoint too, and more than parts can stand for.
    set.ask(|handle| handle.checkpoint().map(|_| ())).unwrap();
    set.settled();
    set.nodes.clear();
    for (wrong, expected) in [(1, "checkpoints of this journal have 2"), (3, "at most 2 are possible")] {
        let (listeners, addresses) = listeners(3);
        let (engine, disk) = (part(0, &listeners[0], &addresses, KEPT_BYTES), Arc::new(SimulatedDisk::new(1)));
        let streams = (0..wrong).map(|at| Arc::new(streams[at % 2].another()) as Arc<dyn Journal>).collect();
        let (journals, node) = (Journals { order: Arc::new(journal.another()), streams }, NodeOptions::new("a:1"));
        let (options, engine) = (Options::default(), Box::new(engine));
        let joined = Sequencer::join_divided(journals, disk, Path::new("/n"), options, node, engine, &mut |_| ());
        let told = joined.err().unwrap_or_else(|| panic!("{wrong} streams are taken")).to_string();
        assert!(told.contains(expected), "{wrong}: {told}");
    }
}
