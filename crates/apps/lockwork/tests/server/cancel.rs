//! Statements that are cancelled at `lockwork serve`: by tokio-postgres and Ctrl-C in psql, by keys right and wrong,
//! and by clients that vanish.

use std::io::{Cursor, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::BANK;
use crate::busy::{is_busy, ticks, until_busy};
use crate::client::{Client as Raw, bind, execute, fields, message, startup};
use crate::server::{Server, program};
use futures::{SinkExt, StreamExt};
use tokio_postgres::{Client, CopyInSink, NoTls};

/// A query that is cancelled ends in less; one that is not takes half a minute.
const SOON: Duration = Duration::from_secs(10);
/// For a statement to be under way.
const A_WHILE: Duration = Duration::from_millis(400);

/// A query of the two accounts that counts for longer than anything may run.
fn long() -> String {
    let tables: Vec<String> = (0..40).map(|at| format!("accounts a{at}")).collect();
    format!("SELECT count(*) FROM {}", tables.join(", "))
}

fn serve(words: &[&str]) -> Server {
    let server = Server::start(&[&["--init", BANK], words].concat());
    assert!(server.ready.starts_with("ready: "), "{}", server.ready);
    server
}

async fn connect(server: &Server) -> Client {
    let settings = format!("host=127.0.0.1 port={} user=ann dbname=bank", server.port);
    let (client, connection) = tokio_postgres::connect(&settings, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(future)
}

fn said(error: &tokio_postgres::Error) -> String {
    error
        .as_db_error()
        .map_or_else(|| error.to_string(), |error| format!("{} {}", error.code().code(), error.message()))
}

/// What comes of something that is cancelled when the server is at it.
async fn cancelled<T: std::fmt::Debug>(
    server: &Server,
    client: &Client,
    what: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> String {
    let token = client.cancel_token();
    let (begun, since) = (Instant::now(), ticks(server));
    let cancel = async {
        tokio::time::sleep(A_WHILE).await;
        while !is_busy(server, since, begun) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        token.cancel_query(NoTls).await.unwrap();
        Instant::now()
    };
    let (ended, asked) = tokio::join!(what, cancel);
    assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
    said(&ended.unwrap_err())
}

async fn count(client: &Client, text: &str) -> i64 {
    client.query_one(text, &[]).await.unwrap_or_else(|error| panic!("{text}: {}", said(&error))).get(0)
}

/// Sends a request to cancel, and sees that nothing is answered.
fn request(server: &Server, number: u32, secret: &[u8]) {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let length = 12 + secret.len() as u32;
    let head = [length, 80_877_102, number].map(u32::to_be_bytes).concat();
    stream.write_all(&[&head[..], secret].concat()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.is_empty(), "{answer:?}");
}

#[test]
fn a_query_is_cancelled_and_its_connection_goes_on() {
    let server = serve(&[]);
    block_on(async {
        let client = connect(&server).await;
        let expected = "57014 the statement has been cancelled, as its client has asked";
        assert_eq!(cancelled(&server, &client, client.query(&long(), &[])).await, expected);
        assert_eq!(cancelled(&server, &client, client.simple_query(&long())).await, expected);
        let text = format!("{}; INSERT INTO accounts VALUES (77, 1)", long());
        assert_eq!(cancelled(&server, &client, client.batch_execute(&text)).await, expected);
        let catalog = "SELECT count(*) FROM pg_type a, pg_type b, pg_type c, pg_type d, pg_type e";
        assert_eq!(cancelled(&server, &client, client.query(catalog, &[])).await, expected);
        let regex = "SELECT string_agg((a.oid * b.oid * c.oid)::text, '') ~ '[0-9]*[13579][0-9]{900}[g-z]' \
                     FROM pg_class a, pg_class b, pg_class c";
        assert_eq!(cancelled(&server, &client, client.query(regex, &[])).await, expected);
        assert_eq!(count(&client, "SELECT count(*) FROM accounts").await, 2);

        // What a transaction has done before is there behind a savepoint.
        client.batch_execute("BEGIN; INSERT INTO accounts VALUES (3, 1); SAVEPOINT s").await.unwrap();
        assert_eq!(cancelled(&server, &client, client.query(&long(), &[])).await, expected);
        assert!(said(&client.query("SELECT count(*) FROM accounts", &[]).await.unwrap_err()).starts_with("25P02"));
        client.batch_execute("ROLLBACK TO s; COMMIT").await.unwrap();
        assert_eq!(count(&client, "SELECT count(*) FROM accounts").await, 3);

        // A client that waits for an answer has cancelled nothing else, and one that waits for none nothing at all.
        client.cancel_token().cancel_query(NoTls).await.unwrap();
        tokio::time::sleep(A_WHILE).await;
        assert_eq!(count(&client, "SELECT count(*) FROM accounts").await, 3);
        client.query("CALL transfer(1, 2, 1)", &[]).await.unwrap();
    });
    assert_eq!(server.end(), Some(0));
}

#[test]
fn who_waits_for_its_turn_is_cancelled_too() {
    let server = serve(&[]);
    block_on(async {
        let mut running = Vec::new();
        for _ in 0..8 {
            let client = connect(&server).await;
            let token = client.cancel_token();
            let query = tokio::spawn(async move { client.query(&long(), &[]).await.map(|_| ()) });
            running.push((token, query));
        }
        tokio::time::sleep(A_WHILE).await;
        let ninth = connect(&server).await;
        assert!(cancelled(&server, &ninth, ninth.query(&long(), &[])).await.starts_with("57014"));
        for (token, query) in running {
            assert!(!query.is_finished());
            token.cancel_query(NoTls).await.unwrap();
            assert!(said(&query.await.unwrap().unwrap_err()).starts_with("57014"));
        }
    });
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_wrong_key_cancels_nothing_and_a_right_one_needs_no_place() {
    let server = serve(&["--connections", "1"]);
    let stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let mut raw = Raw(std::io::BufReader::new(stream));
    raw.0.get_mut().write_all(&startup("ann")).unwrap();
    let told = raw.answers().unwrap();
    let (_, key) = told.iter().find(|(kind, _)| *kind == b'K').unwrap();
    let number = u32::from_be_bytes(key[..4].try_into().unwrap());
    assert!(key.len() == 8 && number > 0 && key[4..] != [0; 4], "{key:?}");

    let ask = message(b'Q', &[long().as_bytes(), b"\0"].concat());
    let since = ticks(&server);
    raw.0.get_mut().write_all(&ask).unwrap();
    until_busy(&server, since);
    let wrong: Vec<u8> = key[4..].iter().map(|byte| byte ^ 0x10).collect();
    request(&server, number, &wrong);
    request(&server, number ^ 1, &key[4..]);
    request(&server, 0, &[0; 4]);
    request(&server, number, &[&key[4..], &[0; 28]].concat());
    raw.0.get_ref().set_read_timeout(Some(A_WHILE)).unwrap();
    raw.0.get_mut().peek(&mut [0]).expect_err("the query has ended");
    raw.0.get_ref().set_read_timeout(Some(SOON)).unwrap();
    request(&server, number, &key[4..]);
    let answers = raw.answers().unwrap();
    assert!(fields(&answers[0].1).starts_with("ERROR 57014"), "{answers:?}");

    // What is sent while a query runs is carried out behind it; what was asked together with it is not.
    let execute = [bind(&[]), execute(0)].concat();
    let parse = |name: &str, text: &str| message(b'P', &[name.as_bytes(), b"\0", text.as_bytes(), b"\0\0\0"].concat());
    let together = [parse("", &long()), execute.clone(), parse("", "SELECT 1"), execute, message(b'S', b"")].concat();
    let since = ticks(&server);
    raw.0.get_mut().write_all(&together).unwrap();
    until_busy(&server, since);
    raw.0.get_mut().write_all(&message(b'Q', b"SELECT 2\0")).unwrap();
    std::thread::sleep(A_WHILE);
    request(&server, number, &key[4..]);
    let kinds =
        |raw: &mut Raw| raw.answers().unwrap().into_iter().map(|(kind, _)| char::from(kind)).collect::<String>();
    assert_eq!((kinds(&mut raw), kinds(&mut raw)), ("12EZ".into(), "TDCZ".into()));
    assert_eq!(server.end(), Some(0));
}

/// A table of so many rows, loaded by COPY.
async fn load(client: &Client, rows: usize) {
    client.batch_execute("CREATE TABLE big (id BIGINT PRIMARY KEY, name VARCHAR(60) NOT NULL)").await.unwrap();
    let sink: CopyInSink<Cursor<Vec<u8>>> = client.copy_in("COPY big FROM STDIN").await.unwrap();
    let mut sink = std::pin::pin!(sink);
    for from in (0..rows).step_by(10_000) {
        let lines: String = (from..from + 10_000).map(|id| format!("{id}\t{id:060}\n")).collect();
        sink.send(Cursor::new(lines.into_bytes())).await.unwrap();
    }
    assert_eq!(sink.finish().await.unwrap(), rows as u64);
}

#[test]
fn copies_in_and_out_are_cancelled_between_lines() {
    let server = serve(&[]);
    block_on(async {
        let client = connect(&server).await;
        load(&client, 400_000).await;
        let mut lines = std::pin::pin!(client.copy_out("COPY big TO STDOUT").await.unwrap());
        lines.next().await.unwrap().unwrap();
        // The server waits for the client to read on.
        tokio::time::sleep(A_WHILE).await;
        client.cancel_token().cancel_query(NoTls).await.unwrap();
        let mut count = 1;
        let error = loop {
            match lines.next().await.unwrap() {
                Ok(_) => count += 1,
                Err(error) => break error,
            }
        };
        assert!(said(&error).starts_with("57014 ") && count < 400_000, "{count} {}", said(&error));

        let sink: CopyInSink<Cursor<Vec<u8>>> = client.copy_in("COPY accounts FROM STDIN").await.unwrap();
        let mut sink = std::pin::pin!(sink);
        sink.send(Cursor::new(b"7\t1.00\n".to_vec())).await.unwrap();
        tokio::time::sleep(A_WHILE).await;
        client.cancel_token().cancel_query(NoTls).await.unwrap();
        tokio::time::sleep(A_WHILE).await;
        sink.send(Cursor::new(b"8\t1.00\n".to_vec())).await.unwrap();
        let error = sink.finish().await.unwrap_err();
        assert!(said(&error).starts_with("57014 "), "{}", said(&error));
        assert_eq!(error.as_db_error().unwrap().detail(), Some("No row has been loaded."));
        let client = connect(&server).await;
        assert_eq!(self::count(&client, "SELECT count(*) FROM accounts").await, 2);
    });
    assert_eq!(server.end(), Some(0));
}

#[test]
fn many_calls_are_cancelled_between_pieces_and_what_was_made_stays() {
    let server = serve(&[]);
    block_on(async {
        let client = connect(&server).await;
        client.batch_execute("CREATE TABLE t (id BIGINT PRIMARY KEY)").await.unwrap();
        let slow = "CREATE PROCEDURE add(n BIGINT) AS DECLARE sum BIGINT := 0; BEGIN
            FOR i IN 1 .. 5000 LOOP sum := sum + i; END LOOP; INSERT INTO t VALUES (n); END";
        client.batch_execute(slow).await.unwrap();
        let numbers: Vec<i64> = (0..262_144).collect();
        let said = cancelled(&server, &client, client.query("CALL MANY add($1)", &[&numbers])).await;
        let made = said.strip_prefix("57014 the statement has been cancelled, as its client has asked; the first ");
        let made: i64 = made.and_then(|made| made.strip_suffix(" calls have been made")?.parse().ok()).expect(&said);
        assert!((1..262_144).contains(&made), "{said}");
        assert_eq!(count(&client, "SELECT count(*) FROM t").await, made);
        assert_eq!(count(&client, "SELECT max(id) FROM t").await, made - 1);
    });
    assert_eq!(server.end(), Some(0));
}

#[test]
fn calls_of_others_come_between_many_long_ones() {
    let server = serve(&[]);
    block_on(async {
        let (client, other) = (connect(&server).await, connect(&server).await);
        let slow = "CREATE PROCEDURE slow(n BIGINT, OUT sum BIGINT) AS
            BEGIN sum := n; FOR i IN 1 .. 1000000 LOOP sum := sum + i; END LOOP; END";
        client.batch_execute(slow).await.unwrap();
        // More than one connection may try to keep all others out.
        let third = connect(&server).await;
        let numbers: Vec<i64> = (0..16_384).collect();
        let arguments: &[&(dyn tokio_postgres::types::ToSql + Sync)] = &[&numbers];
        let one = client.query("CALL MANY slow($1)", arguments);
        let two = third.query("CALL MANY slow($1)", arguments);
        let calls = async {
            tokio::time::sleep(A_WHILE).await;
            for _ in 0..3 {
                other.batch_execute("CALL transfer(1, 2, 1.00)").await.unwrap();
            }
        };
        let (mut one, mut two, mut calls) = (std::pin::pin!(one), std::pin::pin!(two), std::pin::pin!(calls));
        tokio::select! {
            answer = &mut one => panic!("{answer:?} came first"),
            answer = &mut two => panic!("{answer:?} came first"),
            () = &mut calls => {}
        }
        for (client, many) in [(&client, one), (&third, two)] {
            client.cancel_token().cancel_query(NoTls).await.unwrap();
            let error = many.await.unwrap_err();
            assert!(said(&error).starts_with("57014 "), "{}", said(&error));
        }
    });
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_query_ends_when_its_client_vanishes() {
    let server = serve(&[]);
    let since = ticks(&server);
    // One more than run at a time, some with something behind it that nobody reads.
    let behind = message(b'Q', b"SELECT 1\0");
    let clients: Vec<Raw> = (0..9)
        .map(|at| {
            let mut client = Raw::of(&server);
            client.0.get_mut().write_all(&message(b'Q', &[long().as_bytes(), b"\0"].concat())).unwrap();
            client.0.get_mut().write_all(if at % 2 == 0 { &behind } else { b"" }).unwrap();
            client
        })
        .collect();
    until_busy(&server, since);
    drop(clients);
    let begun = Instant::now();
    assert_eq!(Raw::of(&server).prepared("SELECT count(*) FROM accounts", &[]).unwrap(), "takes []\n2\nSELECT 1");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert_eq!(Raw::of(&server).query("CALL transfer(1, 2, 999.00)").unwrap(), "1.00\nCALL");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn control_c_in_psql_cancels() {
    let Some(mut psql) = program("psql") else { return };
    let server = serve(&[]);
    psql.args(["-h", "127.0.0.1", "-p", &server.port.to_string(), "-U", "ann", "-X", "-A", "-t", "bank"]);
    let mut child = psql.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (text, since) = (format!("\\set VERBOSITY verbose\n{};\n", long()), ticks(&server));
    child.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    until_busy(&server, since);
    let begun = Instant::now();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("ERROR:  57014: the statement has been cancelled"), "{errors}");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert_eq!(server.end(), Some(0));
}
