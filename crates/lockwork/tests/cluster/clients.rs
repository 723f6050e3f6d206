//! `lockwork sql` with the addresses of all nodes, when the leader stops answering in the middle of a call.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::harness::{Cluster, LONG, signal};

/// How long a call may take, whatever happens to its server; a machine that does much else gets two seconds more.
pub(crate) const ANSWER: Duration = Duration::from_secs(12);

/// `lockwork sql` at several servers, fed through a pipe.
pub(crate) struct Sql {
    child: Child,
    to: ChildStdin,
    lines: Receiver<String>,
}

impl Sql {
    /// `command` is the command itself, with what it needs to reach the servers.
    pub(crate) fn start(command: &mut Command) -> Self {
        command.args(["--output", "csv"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let (to, out) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let (send, lines) = channel();
        std::thread::spawn(move || {
            // The test may have ended.
            BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| send.send(line)).ok();
        });
        Self { child, to, lines }
    }

    /// The value that a statement answers, and how long that took.
    pub(crate) fn ask(&mut self, statement: &str) -> (String, Duration) {
        let begun = Instant::now();
        writeln!(self.to, "{statement};").expect("it reads");
        let line = || self.lines.recv_timeout(LONG).unwrap_or_else(|error| panic!("{statement}: {error}"));
        // The first line names the column.
        line();
        (line(), begun.elapsed())
    }
}

impl Drop for Sql {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn a_call_goes_on_at_the_next_leader_when_its_own_is_stopped() {
    let Some(cluster) = Cluster::start() else { return };
    let (mut terms, mut leader) = cluster.leader(0);
    let hosts: Vec<String> = cluster.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockwork"));
    let mut sql = Sql::start(command.args(["sql", &hosts.join(","), "--user", "ann"]));
    let mut calls = 0;
    let mut call = |sql: &mut Sql| {
        calls += 1;
        let (left, took) = sql.ask(&format!("CALL transfer(1, 2, 1.00) REQUEST {}", 7_000 + calls));
        assert_eq!(left, format!("{}.00", 1000 - calls), "each call is made once");
        took
    };
    call(&mut sql);
    for _ in 0..2 {
        signal(leader, "-STOP");
        let took = call(&mut sql);
        println!("the leader is stopped: an answer after {:.1} s", took.as_secs_f64());
        assert!(took < ANSWER, "{took:?}: {}", cluster.said());
        signal(leader, "-CONT");
        (terms, leader) = cluster.leader(terms);
        call(&mut sql);
        // Reads go on too.
        signal(leader, "-STOP");
        let (sum, took) = sql.ask("SELECT sum(balance) FROM accounts");
        assert!(sum == "2000.00" && took < ANSWER, "{sum} {took:?}: {}", cluster.said());
        signal(leader, "-CONT");
        (terms, leader) = cluster.leader(terms);
        call(&mut sql);
    }
}
