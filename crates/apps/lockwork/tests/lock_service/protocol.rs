//! docs/lock-protocol.md is enough to write a client: the one in docs/examples is written from it, in the standard
//! library of Python, and shares locks with processes that use this library.

use crate::daemon::Daemon;
use lockwork_locks::client::Locks;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const PYTHON: &str = "python3";

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs")
}

pub(super) fn client() -> Option<Command> {
    if Command::new(PYTHON).arg("--version").output().is_err() {
        lockwork_testkit::skip("python3 is not installed");
        return None;
    }
    let mut command = Command::new(PYTHON);
    command.arg(docs().join("examples/lock_client.py")).stdout(Stdio::piped());
    Some(command)
}

#[test]
fn the_vectors_are_those_of_another_writer_and_reader() {
    let Some(mut client) = client() else { return };
    let output = client.arg("vectors").arg(docs().join("lock-protocol-vectors.json")).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.trim_end().ends_with(" packets"), "{text}");
}

/// Three processes of the other client and two machines of this one add to a number in a file; each says that its
/// token is the largest so far.
fn count(lock: &str) {
    const ROUNDS: u64 = 60;
    let Some(_) = client() else { return };
    let daemon = Daemon::start("--locks 50 --names 50");
    let name = format!("protocol-{}-{}", lock.replace('/', "-"), std::process::id());
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, "0 0").expect("a file");
    let others: Vec<_> = (0..3)
        .map(|_| {
            let mut other = client().expect("it was there");
            other.args(["count", &daemon.address, lock]).arg(&path).arg(ROUNDS.to_string());
            other.spawn().expect("it starts")
        })
        .collect();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let locks = Locks::connect(&daemon.address).expect("it is there");
                for round in 0..ROUNDS {
                    let request = match lock.parse() {
                        Ok(number) => locks.exclusive(number),
                        Err(_) => locks.exclusive_named(lock),
                    };
                    let guard = request.timeout(Duration::from_secs(60)).acquire().expect("it is granted");
                    let text = std::fs::read_to_string(&path).expect("the file");
                    let (number, newest) = text.split_once(' ').expect("two numbers");
                    let (number, newest): (u64, u64) = (number.parse().unwrap(), newest.parse().unwrap());
                    assert!(guard.token() > newest, "token {} after {newest}", guard.token());
                    std::fs::write(&path, format!("{} {}", number + 1, guard.token())).expect("written");
                    drop(guard);
                    // Readers in between, which the other client only has to queue.
                    if round % 8 == 0
                        && let Ok(number) = lock.parse()
                    {
                        drop(locks.shared(number).timeout(Duration::from_secs(60)).acquire().expect("it is granted"));
                    }
                }
            });
        }
    });
    for other in others {
        let output = other.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let text = std::fs::read_to_string(&path).expect("the file");
    assert!(text.starts_with(&format!("{} ", 5 * ROUNDS)), "{text}");
}

#[test]
fn another_client_shares_a_lock_by_number() {
    count("17");
}

#[test]
fn another_client_shares_a_lock_by_name() {
    count("orders/17");
}

#[test]
fn another_client_hands_locks_over_while_packets_are_lost_and_doubled() {
    let Some(_) = client() else { return };
    let daemon = Daemon::start("--locks 50 --names 50");
    for seed in 1..4 {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lock_service/lossy.py");
        let mut command = Command::new(PYTHON);
        command.arg(script).arg(docs().join("examples")).args([&daemon.address, &seed.to_string()]);
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "seed {seed}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
