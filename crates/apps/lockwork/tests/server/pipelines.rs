//! Pipelines at `lockwork serve`: what a client sends up to its Sync is one transaction.

use std::time::{Duration, Instant};

use lockwork::request_id;

use crate::client::{Client, bind, execute, message};
use crate::folder::Folder;
use crate::server::Server;

const TABLES: &str = "CREATE TABLE t (id INTEGER PRIMARY KEY, v INTEGER NOT NULL);
    CREATE PROCEDURE add(i INTEGER, OUT sum INTEGER) AS
    BEGIN UPDATE t SET v = v + 1 WHERE id = i; SELECT v INTO sum FROM t WHERE id = i; END;";

fn serve() -> (Server, Client) {
    let server = Server::start(&[]);
    let mut client = Client::of(&server);
    assert_eq!(client.query(TABLES).unwrap(), "CREATE TABLE\nCREATE PROCEDURE");
    (server, client)
}

/// Parses, binds and runs a statement without values.
fn run(text: &str) -> Vec<u8> {
    [message(b'P', format!("\0{text}\0\0\0").as_bytes()), bind(&[]), execute(0)].concat()
}

fn sync() -> Vec<u8> {
    message(b'S', b"")
}

/// What a pipeline answers, on one line.
fn pipeline(client: &mut Client, statements: &[&str]) -> String {
    let mut messages: Vec<u8> = statements.iter().flat_map(|text| run(text)).collect();
    messages.extend(sync());
    client.ask(&messages).unwrap().replace('\n', "; ")
}

fn count(client: &mut Client) -> String {
    client.query("SELECT count(*) FROM t").unwrap().lines().next().unwrap().to_string()
}

#[test]
fn an_error_takes_back_what_came_since_the_last_sync() {
    let (server, mut client) = serve();
    let insert = |id: u32| format!("INSERT INTO t VALUES ({id}, 0)");
    let (one, two) = (insert(1), insert(2));
    let failed = pipeline(&mut client, &[&one, &two, &one, &insert(3)]);
    assert!(failed.starts_with("INSERT 0 1; INSERT 0 1; ERROR 23505"), "{failed}");
    assert_eq!(count(&mut client), "0");
    // Also an error that comes up before a statement runs: what was answered before it is taken back.
    for bad in [
        "SELECT nothing FROM t WHERE id = 1",
        "INSERT INTO t VALUES (9, 99999999999)",
        "CREATE TABLE s (id INTEGER PRIMARY KEY)",
    ] {
        let failed = pipeline(&mut client, &[&one, bad, &two]);
        assert!(failed.starts_with("INSERT 0 1; ERROR ") && !failed.contains("INSERT 0 1; INSERT"), "{bad}: {failed}");
        assert_eq!(count(&mut client), "0", "{bad}");
    }
    // Settings too.
    pipeline(&mut client, &["SET lock_timeout = 7", &insert(8), &insert(8)]);
    assert_eq!(client.query("SHOW lock_timeout").unwrap(), "0\nSHOW");
    assert_eq!(pipeline(&mut client, &["SET lock_timeout = 7", "SHOW lock_timeout"]), "SET; 7ms; SHOW");
    assert_eq!(client.query("SHOW lock_timeout").unwrap(), "7ms\nSHOW");
    assert_eq!(pipeline(&mut client, &[&one, &two, &insert(3)]), "INSERT 0 1; INSERT 0 1; INSERT 0 1");
    assert_eq!(count(&mut client), "3");
    // Each Sync ends a transaction.
    let two_of_them = [run(&insert(4)), sync(), run(&insert(4)), run(&insert(5)), sync()].concat();
    assert_eq!(client.ask(&two_of_them).unwrap(), "INSERT 0 1");
    assert!(client.answers().unwrap().iter().any(|(kind, _)| *kind == b'E'));
    assert_eq!(count(&mut client), "4");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_pipeline_sees_what_it_has_done() {
    let (server, mut client) = serve();
    let all = [
        "INSERT INTO t VALUES (1, 5)",
        "CALL add(1)",
        "SELECT v FROM t WHERE id = 1",
        "SELECT count(*), sum(v) FROM t",
        "SHOW server_encoding",
        "UPDATE t SET v = 9 WHERE id = 1",
        "SELECT v FROM t WHERE id = 99999999999",
        "SELECT v FROM t WHERE id = 1",
        "SELECT sum(v) FROM t",
    ];
    let expected =
        "INSERT 0 1; 6; CALL; 6; SELECT 1; 1|6; SELECT 1; UTF8; SHOW; UPDATE 1; SELECT 0; 9; SELECT 1; 9; SELECT 1";
    assert_eq!(pipeline(&mut client, &all), expected);
    // A Flush has the answers before the Sync.
    let flushed = [run("UPDATE t SET v = 1 WHERE id = 1"), message(b'H', b"")].concat();
    std::io::Write::write_all(client.0.get_mut(), &flushed).unwrap();
    let mut tags = Vec::new();
    while tags.last() != Some(&b'C') {
        let mut head = [0; 5];
        std::io::Read::read_exact(&mut client.0, &mut head).unwrap();
        let length = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize - 4;
        std::io::Read::read_exact(&mut client.0, &mut vec![0; length]).unwrap();
        tags.push(head[0]);
    }
    assert_eq!(tags, *b"12C");
    let mut other = Client::of(&server);
    assert_eq!(other.query("SELECT v FROM t WHERE id = 1").unwrap(), "9\nSELECT 1");
    let failed = [run("INSERT INTO t VALUES (1, 1)"), sync()].concat();
    assert!(client.ask(&failed).unwrap().starts_with("ERROR 23505"));
    assert_eq!(other.query("SELECT v FROM t WHERE id = 1").unwrap(), "9\nSELECT 1");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn begin_and_commit_in_a_pipeline_do_what_postgresql_does() {
    let (server, mut client) = serve();
    let insert = |id: u32| format!("INSERT INTO t VALUES ({id}, 0)");
    // BEGIN takes what came before it into its transaction.
    let begun = pipeline(&mut client, &[&insert(1), "BEGIN", &insert(2)]);
    assert_eq!(begun, "INSERT 0 1; BEGIN; INSERT 0 1");
    assert_eq!(client.query("ROLLBACK").unwrap(), "ROLLBACK");
    assert_eq!(count(&mut client), "0");
    // COMMIT ends one; what comes behind it is another.
    let failed = pipeline(&mut client, &["BEGIN", &insert(1), &insert(2), "COMMIT", &insert(3), &insert(3)]);
    assert!(failed.starts_with("BEGIN; INSERT 0 1; INSERT 0 1; COMMIT; INSERT 0 1; ERROR 23505"), "{failed}");
    assert_eq!(count(&mut client), "2");
    let failed = pipeline(&mut client, &[&insert(3), "COMMIT", &insert(4), &insert(4)]);
    assert!(failed.starts_with("INSERT 0 1; COMMIT; INSERT 0 1; ERROR 23505"), "{failed}");
    assert_eq!(count(&mut client), "3");
    assert_eq!(pipeline(&mut client, &[&insert(5), "ROLLBACK", &insert(6)]), "INSERT 0 1; ROLLBACK; INSERT 0 1");
    assert_eq!(count(&mut client), "4");
    assert!(pipeline(&mut client, &[&insert(7), "SAVEPOINT a"]).contains("ERROR 25P01"));
    assert_eq!(count(&mut client), "4");
    // A transaction that has failed stays so behind the Sync.
    assert!(pipeline(&mut client, &["BEGIN", &insert(6), "COMMIT"]).contains("BEGIN; ERROR 23505"));
    assert!(client.query("SELECT 1").unwrap().starts_with("ERROR 25P02"));
    assert_eq!(client.query("ROLLBACK").unwrap(), "ROLLBACK");
    // A pipeline that a simple query ends.
    let mixed = [run(&insert(8)), message(b'Q', b"SELECT count(*) FROM t\0")].concat();
    assert_eq!(client.ask(&mixed).unwrap(), "INSERT 0 1\n5\nSELECT 1");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn what_is_no_part_of_a_transaction_is_the_first_of_its_pipeline() {
    let (server, mut client) = serve();
    let created = pipeline(&mut client, &["CREATE TABLE s (id INTEGER PRIMARY KEY)", "INSERT INTO s VALUES (1)"]);
    assert_eq!(created, "CREATE TABLE; INSERT 0 1");
    let insert = "INSERT INTO t VALUES (1, 0)";
    assert_eq!(pipeline(&mut client, &[insert]), "INSERT 0 1");
    let once = format!("CALL add(1) REQUEST '{}'", request_id().unwrap());
    assert!(pipeline(&mut client, &[&once, "CALL add(1)"]).ends_with("1; CALL; 2; CALL"));
    let once = format!("CALL add(1) REQUEST '{}'", request_id().unwrap());
    for last in ["CREATE TABLE u (id INTEGER PRIMARY KEY)", &once, "COPY t TO STDOUT"] {
        let failed = pipeline(&mut client, &["UPDATE t SET v = 100 WHERE id = 1", last]);
        assert!(failed.starts_with("UPDATE 1; ERROR 25001"), "{last}: {failed}");
    }
    assert_eq!(client.query("SELECT v FROM t WHERE id = 1").unwrap(), "2\nSELECT 1");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_long_pipeline_takes_about_as_long_as_its_statements_and_is_there_after_a_crash() {
    let folder = Folder::new("pipelines-long");
    let path = folder.0.join("data");
    let words = ["--data", path.to_str().unwrap()];
    let server = Server::start(&words);
    let mut client = Client::of(&server);
    client.query(TABLES).unwrap();
    let long = |from: u32, calls: u32| -> Vec<u8> {
        let parse = message(b'P', b"\0INSERT INTO t VALUES ($1, 0)\0\0\0");
        let one = |id: u32| [bind(&[&id.to_string()]), execute(0)].concat();
        [parse, (from..from + calls).flat_map(one).collect(), sync()].concat()
    };
    let begun = Instant::now();
    let answered = client.ask(&long(0, 4096)).unwrap();
    assert_eq!(answered.lines().filter(|line| *line == "INSERT 0 1").count(), 4096);
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    // The last one fails: none of them is there.
    let mut failed = long(10_000, 2000);
    failed.truncate(failed.len() - sync().len());
    failed.extend(run("INSERT INTO t VALUES (0, 0)"));
    failed.extend(sync());
    assert!(client.ask(&failed).unwrap().contains("ERROR 23505"));
    let too_long = client.ask(&long(20_000, 65_537)).unwrap();
    assert!(too_long.starts_with("ERROR 54000"), "{too_long}");
    assert_eq!(count(&mut client), "4096");
    drop(client);
    assert_eq!(server.end(), Some(0));
    let server = Server::start(&words);
    assert_eq!(count(&mut Client::of(&server)), "4096");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_pool_can_reset_a_connection() {
    let (server, mut client) = serve();
    let reset = "SELECT pg_advisory_unlock_all();\nCLOSE ALL;\nUNLISTEN *;\nRESET ALL;";
    assert_eq!(client.query(reset).unwrap(), "\nSELECT 1\nCLOSE CURSOR ALL\nUNLISTEN\nRESET");
    assert!(client.query("CLOSE c").unwrap().starts_with("ERROR 34000"));
    assert_eq!(pipeline(&mut client, &["SELECT pg_advisory_unlock_all()"]), "; SELECT 1");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn what_would_keep_all_others_waiting_is_refused() {
    let (server, mut client) = serve();
    let slow = "CREATE PROCEDURE slow(OUT sum BIGINT) AS
        BEGIN sum := 0; FOR i IN 1 .. 1000000 LOOP sum := sum + i; END LOOP; END";
    assert_eq!(client.query(slow).unwrap(), "CREATE PROCEDURE");
    let refused = pipeline(&mut client, &["CALL slow()"; 600]);
    assert!(refused.starts_with("ERROR 54000 a transaction has at most") && refused.contains(" steps"), "{refused}");
    assert_eq!(pipeline(&mut client, &["CALL slow()"; 2]), "500000500000; CALL; 500000500000; CALL");
    assert_eq!(server.end(), Some(0));
}
