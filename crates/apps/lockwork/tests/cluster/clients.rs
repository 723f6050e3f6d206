//! `lockwork sql` with the addresses of all nodes, when the leader stops answering in the middle of a call.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use lockwork::request_id;

use super::harness::{Cluster, LONG, signal};

/// Within this time there is an answer or an error, whatever happens to a server; a machine that does much else gets
/// two seconds more.
pub(crate) const ANSWER: Duration = Duration::from_secs(12);

/// `lockwork sql` at several servers, fed through a pipe.
pub(crate) struct Sql {
    child: Child,
    to: ChildStdin,
    lines: Receiver<String>,
}

impl Sql {
    /// `command` is the command itself, with what it needs to reach the servers.
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let (to, out) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let (send, lines) = channel();
        std::thread::spawn(move || {
            // The test may have ended.
            BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| send.send(line)).ok();
        });
        Self { child, to, lines }
    }

    /// The value that a statement answers; `None` when the command has ended with an error instead.
    fn ask(&mut self, statement: &str) -> Option<String> {
        writeln!(self.to, "{statement};").ok()?;
        // The first line names the column.
        self.lines.recv_timeout(LONG).ok()?;
        self.lines.recv_timeout(LONG).ok()
    }
}

/// A client that asks again, with the same request id, after each error.
pub(crate) struct Patient<'a> {
    connect: &'a dyn Fn() -> Command,
    sql: Option<Sql>,
}

impl<'a> Patient<'a> {
    /// `connect` makes the command that reaches the servers.
    pub(crate) fn new(connect: &'a dyn Fn() -> Command) -> Self {
        Self { connect, sql: None }
    }

    /// The value that a statement answers at last. Each answer and each error on the way comes in time.
    pub(crate) fn ask(&mut self, statement: &str) -> String {
        let begun = Instant::now();
        loop {
            let sql = self.sql.get_or_insert_with(|| Sql::start((self.connect)()));
            let asked = Instant::now();
            let answer = sql.ask(statement);
            let took = asked.elapsed();
            println!("{statement}: {answer:?} after {:.1} s", took.as_secs_f64());
            assert!(took < ANSWER, "{statement}: {answer:?} after {took:?}");
            match answer {
                Some(answer) => return answer,
                None => self.sql = None,
            }
            assert!(begun.elapsed() < LONG, "{statement} is not answered");
        }
    }
}

impl Drop for Sql {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The command at these servers.
pub(crate) fn sql_at(servers: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockwork"));
    command.args(["sql", servers, "--user", "a", "--output", "csv"]);
    command
}

#[test]
fn a_call_goes_on_at_the_next_leader_when_its_own_is_stopped() {
    let Some(cluster) = Cluster::start() else { return };
    let (mut terms, mut leader) = cluster.leader(0);
    let hosts: Vec<String> = cluster.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let connect = || sql_at(&hosts.join(","));
    let mut client = Patient::new(&connect);
    let mut calls = 0;
    let mut call = |client: &mut Patient<'_>| {
        calls += 1;
        let left = client.ask(&format!("CALL transfer(1, 2, 1.00) REQUEST '{}'", request_id().unwrap()));
        assert_eq!(left, format!("{}.00", 1000 - calls), "each call is made once: {}", cluster.said());
    };
    call(&mut client);
    for round in 1..=2 {
        // It is stopped while calls are made one after the other, so that one is under way.
        std::thread::scope(|scope| {
            let stops = scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(137 * round));
                signal(leader, "-STOP");
            });
            while !stops.is_finished() {
                call(&mut client);
            }
        });
        call(&mut client);
        signal(leader, "-CONT");
        (terms, leader) = cluster.leader(terms);
        call(&mut client);
        // Reads go on too.
        signal(leader, "-STOP");
        assert_eq!(client.ask("SELECT sum(balance) FROM accounts"), "2000.00", "{}", cluster.said());
        signal(leader, "-CONT");
        (terms, leader) = cluster.leader(terms);
        call(&mut client);
    }
}
