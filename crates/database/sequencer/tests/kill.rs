//! kill -9 of a child process under load, at random moments: what it was told is durable is there.
//!
//! `LOCKWORK_KILLS` says how often each test kills, 50 unless told otherwise; `make soak` asks for more.

mod common;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::*;
use lockwork_engine::EngineKind;
use lockwork_sequencer::io::Disk;
use lockwork_sequencer::{Options, Sequencer};

const CHILD: &str = "LOCKWORK_KILL_CHILD";
const FROM: &str = "LOCKWORK_KILL_FROM";
/// Threads that make single calls, and how far apart the accounts are that they open.
const THREADS: i64 = 4;
const APART: i64 = 1 << 32;

fn kills() -> u64 {
    let asked = std::env::var("LOCKWORK_KILLS").ok();
    asked.map_or(50, |text| text.parse().expect("LOCKWORK_KILLS is a number"))
}

/// Small segments and many checkpoints.
fn busy() -> Options {
    Options { segment_bytes: 16 << 10, checkpoint_bytes: 32 << 10, ..options() }
}

fn open(path: &Path, kind: EngineKind) -> Sequencer {
    open_with(Arc::new(Disk::new()), path, busy(), kind).unwrap_or_else(|error| panic!("{error}")).0
}

/// The calls of batch `number`, whoever asks.
fn calls(number: u64) -> Vec<Call> {
    let mut random = Random(number ^ 0xB47C);
    let count = 1 + random.below(40) as usize;
    random.calls(count)
}

/// What the killed process does: makes calls for ever, and says of each that it was acknowledged.
#[test]
fn child() {
    let Ok(path) = std::env::var(CHILD) else { return };
    let from: u64 = std::env::var(FROM).unwrap().parse().unwrap();
    let sequencer = open(Path::new(&path), EngineKind::DETERMINISTIC);
    let out = Mutex::new(std::io::stdout());
    let say = |line: String| {
        // The parent may have closed the pipe before it kills.
        let mut out = out.lock().unwrap();
        drop(out.write_all(line.as_bytes()).and_then(|()| out.flush()));
    };
    say("\nready\n".into());
    if path.ends_with("batches") {
        let mut tickets = std::collections::VecDeque::new();
        for number in from.. {
            tickets.push_back((number, sequencer.submit(batch(&calls(number))).unwrap()));
            if tickets.len() == 4 {
                let (number, ticket): (u64, lockwork_sequencer::Ticket) = tickets.pop_front().unwrap();
                ticket.wait().unwrap();
                say(format!("done {number}\n"));
            }
        }
    }
    let say = &say;
    std::thread::scope(|scope| {
        for thread in 1..=THREADS {
            let handle = sequencer.handle();
            scope.spawn(move || {
                for number in from as i64.. {
                    let mut block = batch(&[(2, 0, vec![thread * APART + number])]).block(0).bytes().to_vec();
                    handle.call(&mut block).unwrap();
                    say(format!("open {thread} {number}\n"));
                }
            });
        }
    });
}

/// Starts a child, kills it a random while after it is ready, and gives every line that it has said.
fn kill_one(path: &Path, from: u64, random: &mut Random) -> Vec<String> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(CHILD, path)
        .env(FROM, from.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = lines.by_ref().map_while(Result::ok).any(|line| line == "ready");
    assert!(ready, "the child did not open the directory");
    let reader = std::thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<_>>());
    std::thread::sleep(Duration::from_micros(random.below(25_000)));
    child.kill().unwrap();
    child.wait().unwrap();
    // What was said is in the pipe; a last line may be cut.
    reader.join().unwrap()
}

#[test]
fn batches_of_a_killed_process_are_there_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("batches");
    let sequencer = open(&path, EngineKind::DETERMINISTIC);
    furnish(&sequencer).unwrap();
    drop(sequencer);
    let mut oracle = Oracle::new();
    let mut random = Random(1);
    let (mut done, mut acknowledged_all, mut checkpoints) = (0_u64, 0, 0);
    for round in 0..kills() {
        let said = kill_one(&path, done, &mut random);
        let acknowledged = said.iter().filter_map(|line| line.strip_prefix("done ")?.parse::<u64>().ok()).max();
        let kind = EngineKind::CPU[round as usize % EngineKind::CPU.len()];
        let (sequencer, report) = open_with(Arc::new(Disk::new()), &path, busy(), kind).unwrap();
        checkpoints += u64::from(report.checkpoint.is_some());
        let digest = sequencer.digest().unwrap();
        // A number that was cut in the pipe is smaller, never larger.
        let least = acknowledged.map_or(done, |number| number + 1);
        while done < least {
            oracle.run(batch(&calls(done)));
            done += 1;
        }
        let mut ahead = 0;
        while oracle.digest() != digest {
            assert!(ahead < 8, "round {round}: {least} batches were acknowledged, and what is there is no later state");
            oracle.run(batch(&calls(done)));
            done += 1;
            ahead += 1;
        }
        assert_eq!(total(&sequencer), ACCOUNTS as i64 * BALANCE, "round {round}");
        acknowledged_all = done;
        // Now and then the directory is left as a killed process leaves it, with no clean end between.
        if round % 3 == 0 {
            sequencer.close().unwrap();
        } else {
            drop(sequencer);
        }
    }
    assert!(acknowledged_all > kills() && checkpoints > kills() / 4, "{acknowledged_all} batches, {checkpoints}");
}

#[test]
fn single_calls_of_many_threads_of_a_killed_process_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("threads");
    let sequencer = open(&path, EngineKind::DETERMINISTIC);
    furnish(&sequencer).unwrap();
    drop(sequencer);
    let mut random = Random(2);
    let mut opened: HashMap<i64, Vec<i64>> = HashMap::new();
    for round in 0..kills() {
        // Every life opens accounts of its own.
        let from = (round as i64) << 20;
        for line in kill_one(&path, from as u64, &mut random) {
            let words: Vec<&str> = line.split(' ').collect();
            // A line that was cut off has no end, and may have lost digits; only whole ones count.
            if let ["open", thread, number] = words[..]
                && let (Ok(thread), Ok(number)) = (thread.parse(), number.parse::<i64>())
                && number >= from
            {
                opened.entry(thread).or_default().push(number);
            }
        }
        let sequencer = open(&path, EngineKind::SERIAL);
        let ids = sequencer.read(|engine| {
            let mut ids = std::collections::HashSet::new();
            engine
                .export(&mut |_, image| {
                    ids.insert(i64::from_le_bytes(image[..8].try_into().unwrap()));
                })
                .unwrap();
            ids
        });
        let ids = ids.unwrap();
        for (thread, numbers) in &opened {
            for number in numbers {
                assert!(ids.contains(&(thread * APART + number)), "round {round}: thread {thread}, call {number}");
            }
            // A thread makes one call at a time: at most one more than it was told of, and none behind a gap.
            let there = (from..).take_while(|number| ids.contains(&(thread * APART + number))).count();
            let told = numbers.iter().filter(|&&number| number >= from).count();
            let all = ids.iter().filter(|&&id| id / APART == *thread && id % APART >= from).count();
            assert!(there == all && all <= told + 2, "round {round}: thread {thread}: {there} {all} {told}");
        }
        drop(sequencer);
    }
    let all: usize = opened.values().map(Vec::len).sum();
    assert!(all as u64 > kills(), "{all} calls were acknowledged");
}
