//! BEGIN .. COMMIT at `lockwork serve`: what each state of a session takes, and that transactions of many clients are
//! serializable.

use std::io::Write;
use std::process::Stdio;

use crate::BANK;
use crate::folder::{Folder, command};
use crate::server::{Server, program};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

const TPCB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/tpcb.sql");

async fn connect(port: u16) -> Client {
    let settings = format!("host=127.0.0.1 port={port} user=ann dbname=bank");
    let (client, connection) = tokio_postgres::connect(&settings, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// What psql prints of each statement in turn, in one session: what it answers, or the SQLSTATE.
fn psql(server: &Server, statements: &[&str]) -> Option<Vec<String>> {
    let mut psql = program("psql")?;
    let port = server.port.to_string();
    psql.args(["-h", "127.0.0.1", "-p", &port, "-U", "ann", "-X", "-A", "-t", "bank"]);
    let mut child = psql.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let script: String = statements.iter().map(|text| format!("{text};\n\\echo :SQLSTATE;\n")).collect();
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let output = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    let mut answers = Vec::new();
    let mut lines = Vec::new();
    for line in output.lines() {
        match line.strip_suffix(';') {
            Some("00000") => answers.push(std::mem::take(&mut lines).join(" ")),
            Some(sqlstate) => {
                lines.clear();
                answers.push(sqlstate.to_string());
            }
            None => lines.push(line),
        }
    }
    Some(answers)
}

/// Statements of one session and what each answers.
fn check(server: &Server, expected: &[(&str, &str)]) {
    let statements: Vec<&str> = expected.iter().map(|(statement, _)| *statement).collect();
    let Some(answers) = psql(server, &statements) else { return };
    let found: Vec<(&str, &str)> = statements.into_iter().zip(answers.iter().map(String::as_str)).collect();
    assert_eq!(found, expected);
}

const READ: &str = "SELECT balance FROM accounts WHERE id = 1";

#[test]
fn each_state_takes_what_it_may() {
    let server = Server::start(&["--init", BANK]);
    check(
        &server,
        &[
            ("BEGIN", "BEGIN"),
            ("UPDATE accounts SET balance = balance + 5 WHERE id = 1", "UPDATE 1"),
            (READ, "1005.00"),
            ("BEGIN WORK", "BEGIN"),
            ("SAVEPOINT a", "SAVEPOINT"),
            ("CALL transfer(1, 2, 1)", "1004.00"),
            ("SAVEPOINT b", "SAVEPOINT"),
            ("CALL transfer(1, 2, 1000000)", "BK001"),
            (READ, "25P02"),
            ("SHOW server_encoding", "25P02"),
            ("SAVEPOINT c", "25P02"),
            ("RELEASE b", "25P02"),
            ("ROLLBACK TO nowhere", "3B001"),
            ("ROLLBACK TO SAVEPOINT b", "ROLLBACK"),
            (READ, "1004.00"),
            ("ROLLBACK TO a", "ROLLBACK"),
            ("ROLLBACK TO b", "3B001"),
            ("ROLLBACK TO a", "ROLLBACK"),
            (READ, "1005.00"),
            ("RELEASE SAVEPOINT a", "RELEASE"),
            ("COMMIT", "COMMIT"),
            (READ, "1005.00"),
            // What has failed cannot be kept.
            ("START TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE", "BEGIN"),
            ("DELETE FROM accounts WHERE id = 1", "DELETE 1"),
            ("INSERT INTO accounts VALUES (1, 7)", "INSERT 0 1"),
            (READ, "7.00"),
            ("INSERT INTO accounts VALUES (1, 8)", "23505"),
            ("COMMIT", "ROLLBACK"),
            (READ, "1005.00"),
            // What cannot be part of one.
            ("BEGIN", "BEGIN"),
            ("CREATE TABLE t (id BIGINT PRIMARY KEY)", "25001"),
            ("ROLLBACK", "ROLLBACK"),
            ("BEGIN READ ONLY", "BEGIN"),
            (READ, "1005.00"),
            ("CALL transfer(1, 2, 1)", "25006"),
            ("ABORT", "ROLLBACK"),
            // And outside.
            ("COMMIT", "COMMIT"),
            ("ROLLBACK", "ROLLBACK"),
            ("SAVEPOINT a", "25P01"),
            ("COMMIT AND CHAIN", "0A000"),
            ("BEGIN; UPDATE accounts SET balance = 1 WHERE id = 1; ROLLBACK", "BEGIN UPDATE 1 ROLLBACK"),
            (READ, "1005.00"),
        ],
    );
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_transaction_is_there_after_a_kill_and_what_was_not_committed_is_not() {
    let folder = Folder::new("serve-transactions");
    let data = folder.0.join("data");
    let words = ["--init", BANK, "--engine", "two-phase", "--data", data.to_str().unwrap()];
    let server = Server::start(&words);
    let update = "UPDATE accounts SET balance = balance + 1 WHERE id = 1";
    let add = "INSERT INTO accounts VALUES (9, 1)";
    check(
        &server,
        &[
            ("BEGIN", "BEGIN"),
            (update, "UPDATE 1"),
            ("SAVEPOINT a", "SAVEPOINT"),
            (update, "UPDATE 1"),
            (add, "INSERT 0 1"),
            ("ROLLBACK TO a", "ROLLBACK"),
            (add, "INSERT 0 1"),
            ("COMMIT", "COMMIT"),
            ("BEGIN", "BEGIN"),
            (update, "UPDATE 1"),
        ],
    );
    drop(server);
    let (code, log, _) = command(&["inspect", "log", words[5]], "");
    assert_eq!(code, Some(0), "{log}");
    let server = Server::start(&words[2..]);
    assert!(server.ready.starts_with("ready: "), "{}", server.ready);
    check(&server, &[(READ, "1001.00"), ("SELECT balance FROM accounts WHERE id = 9", "1.00")]);
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_query_of_whole_tables_is_part_of_its_transaction() {
    let server = Server::start(&["--init", BANK, "--engine", "two-phase"]);
    let sum = "SELECT sum(balance), count(*) FROM accounts";
    check(
        &server,
        &[
            ("BEGIN", "BEGIN"),
            ("INSERT INTO accounts VALUES (3, 50)", "INSERT 0 1"),
            ("SAVEPOINT a", "SAVEPOINT"),
            ("DELETE FROM accounts WHERE id = 1", "DELETE 1"),
            (sum, "1050.00|2"),
            ("ROLLBACK TO a", "ROLLBACK"),
            (sum, "2050.00|3"),
            ("ROLLBACK", "ROLLBACK"),
            (sum, "2000.00|2"),
            // Of what psql sends in one message each statement is read on its own.
            (
                "SELECT 1; BEGIN; SELECT count(*) FROM accounts; -- one; two\n SHOW server_encoding; COMMIT",
                "1 BEGIN 2 UTF8 COMMIT",
            ),
        ],
    );
    runtime().block_on(async {
        let (mut one, other) = (connect(server.port).await, connect(server.port).await);
        let add = "INSERT INTO accounts VALUES ($1, 0)";
        for (reads, write) in [(true, true), (true, false), (false, true)] {
            let transaction = one.transaction().await.unwrap();
            if reads {
                transaction.query_one("SELECT count(*) FROM accounts", &[]).await.unwrap();
            }
            other.execute("UPDATE accounts SET balance = balance + 1 WHERE id = 1", &[]).await.unwrap();
            let written = match write {
                true => transaction.execute(add, &[&(10 + i64::from(reads))]).await.map(drop),
                false => Ok(()),
            };
            let ended = match written {
                Ok(()) => transaction.commit().await,
                Err(error) => Err(error),
            };
            // Who has only looked was there before the other one; who has written what it may have read here was not.
            let code = ended.err().and_then(|error| error.code().cloned());
            assert_eq!(code, (reads && write).then_some(SqlState::T_R_SERIALIZATION_FAILURE), "{reads} {write}");
        }
    });
    assert_eq!(server.end(), Some(0));
}

#[test]
fn pgbench_runs_its_tpc_b() {
    let Some(_) = program("pgbench") else { return };
    let tables = std::fs::read_to_string(TPCB).unwrap();
    let folder = Folder::new("serve-tpcb");
    std::fs::create_dir_all(&folder.0).unwrap();
    let init = folder.0.join("init.sql");
    let rows = |table: &str, columns: &str, count: u32, of: fn(u32) -> String| {
        let rows: Vec<String> = (1..=count).map(of).collect();
        let inserts = rows.chunks(10).map(|rows| rows.join(", "));
        inserts.map(|rows| format!("INSERT INTO pgbench_{table} ({columns}) VALUES {rows};\n")).collect::<String>()
    };
    let rows = [
        rows("branches", "bid, bbalance", 1, |bid| format!("({bid}, 0)")),
        rows("tellers", "tid, bid, tbalance", 10, |tid| format!("({tid}, 1, 0)")),
        // Of the 100,000 that it asks for; the others are not found, which is no error.
        rows("accounts", "aid, bid, abalance", 100, |aid| format!("({}, 1, 0)", aid * 1000)),
    ];
    std::fs::write(&init, tables + &rows.concat()).unwrap();
    for engine in ["two-phase", "deterministic"] {
        let data = folder.0.join(engine);
        let words = ["--engine", engine, "--init", init.to_str().unwrap(), "--data", data.to_str().unwrap()];
        let server = Server::start(&words);
        let port = server.port.to_string();
        for mode in ["simple", "extended", "prepared"] {
            let mut pgbench = program("pgbench").unwrap();
            pgbench.args(["-h", "127.0.0.1", "-p", &port, "-U", "ann", "-n", "-M", mode, "-c", "8", "-t", "25"]);
            let output = pgbench.args(["-b", "tpcb-like", "--max-tries", "1000", "bank"]).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{mode}: {text}{}", String::from_utf8_lossy(&output.stderr));
            assert!(text.contains("actually processed: 200/200"), "{mode}: {text}");
        }
        check(
            &server,
            &[
                ("SELECT count(*) FROM pgbench_history", "600"),
                (
                    "SELECT (SELECT sum(delta) FROM pgbench_history) = (SELECT sum(bbalance) FROM pgbench_branches), \
                 (SELECT sum(delta) FROM pgbench_history) = (SELECT sum(tbalance) FROM pgbench_tellers)",
                    "t|t",
                ),
            ],
        );
        assert_eq!(server.end(), Some(0));
    }
}

/// Clients read two balances, think, and write what follows from them: no money is lost, none is made, and who could
/// not be served is told to try again.
#[test]
fn transactions_of_many_clients_are_serializable() {
    for engine in ["two-phase", "deterministic"] {
        let server = Server::start(&["--init", BANK, "--engine", engine]);
        let port = server.port;
        let (committed, conflicts) = runtime().block_on(async move {
            let work = |seed: i64| async move {
                let mut client = connect(port).await;
                let (mut committed, mut conflicts) = (0, 0);
                while committed < 40 {
                    let once = async {
                        let transaction = client.transaction().await?;
                        let mut cents = [0, 0];
                        for (cents, id) in cents.iter_mut().zip([1, 2]) {
                            let read = format!("SELECT balance FROM accounts WHERE id = {id}");
                            let answer = transaction.simple_query(&read).await?;
                            let row = answer.iter().find_map(|message| match message {
                                SimpleQueryMessage::Row(row) => row.get(0),
                                _ => None,
                            });
                            *cents = row.unwrap().replace('.', "").parse::<i64>().unwrap();
                        }
                        let moved = (cents[0] - cents[1]) / 2 + seed;
                        for (cents, id) in [cents[0] - moved, cents[1] + moved].into_iter().zip([1, 2]) {
                            let balance = format!("{}.{:02}", cents / 100, cents % 100);
                            let write = format!("UPDATE accounts SET balance = {balance} WHERE id = {id}");
                            transaction.simple_query(&write).await?;
                        }
                        transaction.commit().await
                    };
                    match once.await {
                        Ok(()) => committed += 1,
                        Err(error) if error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE) => conflicts += 1,
                        Err(other) => panic!("{other:?}"),
                    }
                }
                (committed, conflicts)
            };
            let clients: Vec<_> = (0..4).map(|seed| tokio::spawn(work(seed))).collect();
            let mut all = (0, 0);
            for client in clients {
                let (committed, conflicts): (u32, u32) = client.await.unwrap();
                all = (all.0 + committed, all.1 + conflicts);
            }
            all
        });
        assert_eq!(committed, 160);
        assert!(conflicts > 0, "{engine}: they never met");
        let money = "SELECT balance FROM accounts WHERE id BETWEEN 1 AND 2 LIMIT 2";
        let Some(answers) = psql(&server, &[money]) else { return };
        let sum: f64 = answers[0].split(' ').map(|balance| balance.parse::<f64>().unwrap()).sum();
        assert_eq!(sum, 2000.0, "{engine}");
        assert_eq!(server.end(), Some(0));
    }
}

#[test]
fn engines_that_run_single_calls_only_say_so() {
    for engine in ["opencl-deterministic", "network-two-phase"] {
        let server = Server::start(&["--init", BANK, "--engine", engine]);
        check(&server, &[("BEGIN", "0A000"), ("CALL transfer(1, 2, 1.00)", "999.00"), ("START TRANSACTION", "0A000")]);
        // Also where the engine has a compiler, which takes signals for itself.
        assert_eq!(server.end(), Some(0), "{engine}");
    }
}
