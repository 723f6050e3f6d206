//! COPY at `lockwork serve`: rows in and out with PostgreSQL's own client, psycopg and tokio-postgres, and what becomes
//! of one that goes wrong.

use std::io::{Cursor, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use crate::folder::{Folder, command};
use crate::server::{Server, program};
use futures::{SinkExt, StreamExt};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, CopyInSink, NoTls};

const TABLES: &str = "\
CREATE TABLE t (k SMALLINT, n INTEGER UNSIGNED, ok BOOLEAN NOT NULL, at TIMESTAMP NOT NULL, name VARCHAR(12) NOT NULL, \
price DECIMAL(18, 4) NOT NULL, raw BYTEA(3) NOT NULL, big BIGINT NOT NULL DEFAULT -7, PRIMARY KEY (n, k));\n\
CREATE INDEX t_name ON t (name);\n\
CREATE TABLE u (k SMALLINT, n INTEGER UNSIGNED, ok BOOLEAN NOT NULL, at TIMESTAMP NOT NULL, name VARCHAR(12) NOT NULL, \
price DECIMAL(18, 4) NOT NULL, raw BYTEA(3) NOT NULL, big BIGINT NOT NULL, PRIMARY KEY (n, k));\n\
CREATE TABLE s (id BIGINT PRIMARY KEY, name VARCHAR(20) NOT NULL DEFAULT 'none');\n";

/// Rows of every type, in the order of their key, as COPY writes them.
const ROWS: &str = "\
-5\t0\tt\t2024-01-31 12:30:00.5\ta\\tb\\nc\\\\d\t-12.5000\t\\\\x00ff07\t9223372036854775807
7\t0\tf\t0001-01-01 00:00:00\t\t0.0000\t\\\\x000000\t-9223372036854775808
-32768\t4294967295\tt\t9999-12-31 23:59:59.999999\t\u{e4}\"',|\\r\t99999999999999.9999\t\\\\xffffff\t-1
";

/// A server with the tables; the folder has to be there as long as it.
fn serve(folder: &Folder, words: &[&str]) -> Server {
    std::fs::create_dir_all(&folder.0).unwrap();
    let file = folder.0.join("tables.sql");
    std::fs::write(&file, TABLES).unwrap();
    let server = Server::start(&[&["--init", file.to_str().unwrap()], words].concat());
    assert!(server.ready.starts_with("ready: "), "{}", server.ready);
    server
}

/// What psql prints and complains of, with this on its standard input.
fn psql(server: &Server, user: &str, statement: &str, input: &str) -> Option<(String, String)> {
    let mut psql = program("psql")?;
    psql.args(["-h", "127.0.0.1", "-p", &server.port.to_string(), "-U", user, "-X", "-A", "-t", "bank"]);
    psql.args(["-v", "VERBOSITY=verbose", "-c", statement])
        .env("PGPASSWORD", format!("{}-PASSWORD", user.to_uppercase()));
    let mut child = psql.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdin.take().unwrap().write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    Some((String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap()))
}

async fn connect(server: &Server) -> Client {
    let settings = format!("host=127.0.0.1 port={} user=ann dbname=bank", server.port);
    let (client, connection) = tokio_postgres::connect(&settings, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(test);
}

type Sink = std::pin::Pin<Box<CopyInSink<Cursor<Vec<u8>>>>>;

async fn copy_in(client: &Client, statement: &str) -> Sink {
    Box::pin(client.copy_in(statement).await.unwrap())
}

fn lines(ids: std::ops::Range<u32>) -> Cursor<Vec<u8>> {
    Cursor::new(ids.map(|id| format!("{id}\tname {id}\n")).collect::<String>().into_bytes())
}

async fn copied_out(client: &Client, statement: &str) -> String {
    let mut rows = Box::pin(client.copy_out(statement).await.unwrap());
    let mut all = Vec::new();
    while let Some(row) = rows.next().await {
        all.extend_from_slice(&row.unwrap());
    }
    String::from_utf8(all).unwrap()
}

#[test]
fn rows_of_every_type_come_back_in_every_form() {
    let folder = Folder::new("serve-copy-forms");
    let server = serve(&folder, &[]);
    let Some(copied) = psql(&server, "ann", "\\copy t from stdin", &format!("{ROWS}\\.\n")) else { return };
    assert_eq!(copied, ("COPY 3\n".into(), String::new()));
    assert_eq!(psql(&server, "ann", "\\copy t to stdout", "").unwrap().0, ROWS);
    // By the index too.
    let found = psql(&server, "ann", "SELECT big FROM t WHERE name = '' LIMIT 9", "").unwrap();
    assert_eq!(found.0, "-9223372036854775808\n");
    let file = folder.0.join("file");
    let file = file.to_str().unwrap();
    for form in [
        "",
        "(delimiter '|', null '?')",
        "(format csv)",
        "with csv header",
        "(format csv, header, delimiter E'\\t', null 'a', quote '''', escape '\\')",
        "with delimiter ';' null 'nothing'",
    ] {
        let form = form.to_string();
        let (out, errors) = psql(&server, "ann", &format!("\\copy t to '{file}' {form}"), "").unwrap();
        assert_eq!((out.as_str(), errors.as_str()), ("COPY 3\n", ""), "{form}");
        let (said, errors) = psql(&server, "ann", &format!("\\copy u from '{file}' {form}"), "").unwrap();
        assert_eq!((said.as_str(), errors.as_str()), ("COPY 3\n", ""), "{form}");
        assert_eq!(psql(&server, "ann", "\\copy u to stdout", "").unwrap().0, ROWS, "{form}");
        for (k, n) in [(-5, 0_u32), (7, 0), (-32768, u32::MAX)] {
            let delete = format!("DELETE FROM u WHERE n = {n} AND k = {k}");
            assert_eq!(psql(&server, "ann", &delete, "").unwrap().0, "DELETE 1\n");
        }
    }
    // Some columns, in another order; the rest is by DEFAULT.
    let some = "\\copy t (name, n, at, k, price, raw, ok) from stdin csv";
    let row = "\"x, \"\"y\"\"\nz\",5,2024-01-31,1,2.5,ab,yes\n";
    assert_eq!(psql(&server, "ann", some, row).unwrap(), ("COPY 1\n".into(), String::new()));
    let csv = psql(&server, "ann", "\\copy t (big, name) to stdout csv header", "").unwrap().0;
    assert!(csv.starts_with("big,name\n9223372036854775807,\"a\tb\nc\\d\"\n"), "{csv}");
    assert!(csv.contains("\n-7,\"x, \"\"y\"\"\nz\"\n"), "{csv}");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn what_is_wrong_is_named_and_what_stood_before_it_stays() {
    let folder = Folder::new("serve-copy-wrong");
    let server = serve(&folder, &[]);
    let copy = |statement: &str, input: &str| psql(&server, "ann", statement, input);
    for (options, input, expected, stays) in [
        ("", "1\ta\n2\tb\nx\tc\n", ["22P02", "line 3, column id: \"x\""], 2),
        ("", "1\ta\n1\tb\n", ["23505", "line 2"], 1),
        ("", "1\t\\N\n", ["23502", "line 1, column name: null input"], 0),
        ("csv", "1,\n", ["23502", "NULL"], 0),
        ("csv", "1,a\n2,\"b\nc\"\n3\n", ["22P04", "missing data for column \"name\""], 2),
        ("csv header", "id,name\n1,a,b\n", ["22P04", "line 2"], 0),
        ("csv", "1,a\n2,\"b\n", ["22P04", "unterminated CSV quoted field"], 1),
        ("", "1\tlonger than twenty bytes\n", ["22001", "column name"], 0),
        ("", "99999999999999999999\ta\n", ["22003", "column id"], 0),
        ("", "1\ta\\000b\n", ["22021", "zero"], 0),
        ("", "1\t\\xff\n", ["22021", "UTF-8"], 0),
    ] {
        let Some((out, errors)) = copy(&format!("\\copy s from stdin {options}"), input) else { return };
        assert!(out.is_empty() && expected.iter().all(|part| errors.contains(part)), "{input}: {out} {errors}");
        let told = match stays {
            0 => "No row".into(),
            1 => "1 row before it has".into(),
            rows => format!("{rows} rows before it have"),
        };
        assert!(errors.contains(&told), "{errors}");
        assert_eq!(copy("\\copy s to stdout", "").unwrap().0.lines().count(), stays, "{input}");
        for id in 1..=stays {
            assert_eq!(copy(&format!("DELETE FROM s WHERE id = {id}"), "").unwrap().0, "DELETE 1\n");
        }
    }
    for (statement, expected) in [
        ("COPY nowhere FROM STDIN", "42P01"),
        ("COPY t_name TO STDOUT", "42809"),
        ("COPY s (x) FROM STDIN", "42703"),
        ("COPY s (id, id) FROM STDIN", "42701"),
        ("COPY s (name) FROM STDIN", "23502"),
        ("COPY s FROM '/etc/passwd'", "0A000"),
        ("COPY (DELETE FROM s WHERE id = 1) TO STDOUT", "0A000"),
        ("COPY (SELECT id FROM s WHERE id = $1) TO STDOUT", "42P02"),
        ("COPY (COPY s TO STDOUT) TO STDOUT", "0A000"),
        ("COPY (SELECT 1; SELECT 2) TO STDOUT", "42601"),
        ("COPY s TO STDOUT (FORMAT binary)", "0A000"),
        ("COPY s FROM STDIN; SELECT 1", "0A000"),
    ] {
        let (out, errors) = copy(statement, "").unwrap();
        assert!(out.is_empty() && errors.contains(expected), "{statement}: {out} {errors}");
    }
    let mixed = "INSERT INTO s VALUES (1, 'a'); COPY s TO STDOUT; /* and */ COPY s FROM STDIN";
    assert_eq!(copy(mixed, "2\tb\n").unwrap().0, "INSERT 0 1\n1\ta\nCOPY 1\n");
    for (query, expected) in [
        ("SELECT name, id FROM s WHERE id = 2", "name,id\nb,2\n"),
        ("SELECT count(*), NULLIF(1, 1) AS \"no, thing\" FROM s", "count,\"no, thing\"\n2,\n"),
        ("SELECT relname FROM pg_class WHERE relname = 's'", "relname\ns\n"),
        ("SELECT 1 AS one", "one\n1\n"),
    ] {
        assert_eq!(copy(&format!("\\copy ({query}) to stdout csv header"), "").unwrap().0, expected);
    }
    let (_, errors) = copy("COPY (SELECT nothing FROM s) TO STDOUT", "").unwrap();
    assert!(errors.contains("42703") && errors.contains("                     ^"), "{errors}");
    let together = "BEGIN; DELETE FROM s WHERE id = 1; COPY (SELECT count(*) FROM s) TO STDOUT; ROLLBACK";
    assert_eq!(copy(together, "").unwrap().0, "BEGIN\nDELETE 1\n1\nROLLBACK\n");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn who_does_not_read_holds_up_nobody_with_little_to_copy() {
    let folder = Folder::new("serve-copy-slow");
    let server = serve(&folder, &[]);
    // More than buffers of sockets take.
    let rows: String = (1..=800_000).map(|id| format!("{id}\t{id:020}\n")).collect();
    let Some((loaded, _)) = psql(&server, "ann", "\\copy s from stdin", &rows) else { return };
    assert_eq!(loaded, "COPY 800000\n");
    let mut slow: Vec<TcpStream> = Vec::new();
    for _ in 0..2 {
        let mut socket = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        socket.write_all(b"\0\0\0\x12\0\x03\0\0user\0ann\0\0").unwrap();
        socket.write_all(b"Q\0\0\0\x15COPY s TO STDOUT\0").unwrap();
        // A byte of it has come, and nothing is read.
        socket.read_exact(&mut [0; 1000]).unwrap();
        slow.push(socket);
    }
    let (_, errors) = psql(&server, "ann", "COPY s TO STDOUT", "").unwrap();
    assert!(errors.contains("53000"), "{errors}");
    assert_eq!(psql(&server, "ann", "COPY t TO STDOUT", "").unwrap(), (String::new(), String::new()));
    drop(slow);
    assert_eq!(server.end(), Some(0));
}

#[test]
fn only_who_may_write_copies() {
    let folder = Folder::new("serve-copy-rights");
    std::fs::create_dir_all(&folder.0).unwrap();
    let users = folder.0.join("users").to_str().unwrap().to_string();
    for right in ["call", "write"] {
        assert_eq!(
            command(&["user", &users, right, "--right", right], &format!("{}-PASSWORD", right.to_uppercase())).0,
            Some(0)
        );
    }
    let server = serve(&folder, &["--users", &users]);
    for statement in ["\\copy s from stdin", "\\copy s to stdout"] {
        let Some((_, errors)) = psql(&server, "call", statement, "1\ta\n") else { return };
        assert!(errors.contains("42501"), "{errors}");
        assert_eq!(psql(&server, "write", statement, "1\ta\n").unwrap().1, "");
    }
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_copy_that_ends_early_leaves_the_connection_and_the_rows_that_are_there() {
    let folder = Folder::new("serve-copy-faults");
    let server = serve(&folder, &[]);
    run(async {
        let client = connect(&server).await;
        let count = async |client: &Client| copied_out(client, "COPY s TO STDOUT").await.lines().count();
        // Nothing is held while a client is waited for, and others go on.
        let mut sink = copy_in(&client, "COPY s FROM STDIN").await;
        sink.send(lines(0..200_000)).await.unwrap();
        let other = connect(&server).await;
        other.batch_execute("CREATE TABLE v (id BIGINT PRIMARY KEY); INSERT INTO v VALUES (1)").await.unwrap();
        sink.send(lines(200_000..200_010)).await.unwrap();
        assert_eq!(sink.as_mut().finish().await.unwrap(), 200_010);
        assert_eq!(count(&other).await, 200_010);
        // CopyFail: whole pieces of a megabyte stay, and what was not put into the table has never been.
        let mut sink = copy_in(&client, "COPY s FROM STDIN").await;
        sink.send(lines(300_000..400_000)).await.unwrap();
        drop(sink);
        client.batch_execute("INSERT INTO v VALUES (2)").await.unwrap();
        let there = count(&client).await;
        assert!((200_010..300_010).contains(&there), "{there}");
        // An error in the middle, behind which the client goes on to send.
        let mut sink = copy_in(&client, "COPY s FROM STDIN").await;
        for _ in 0..50 {
            // The client may have seen the error, and refuse.
            drop(sink.send(lines(500_000..510_000)).await);
        }
        let error = sink.as_mut().finish().await.unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::UNIQUE_VIOLATION), "{error}");
        let detail = "Key (id)=(500000) already exists. 10000 rows before it have been loaded, and stay.";
        assert_eq!(error.as_db_error().unwrap().detail(), Some(detail), "{error:?}");
        assert_eq!(count(&client).await, there + 10_000);
        // In a transaction there is none, either way.
        for statement in ["COPY s FROM STDIN", "COPY s TO STDOUT"] {
            client.batch_execute("BEGIN").await.unwrap();
            let error = client.batch_execute(statement).await.unwrap_err();
            assert_eq!(error.code(), Some(&SqlState::ACTIVE_SQL_TRANSACTION));
            client.batch_execute("ROLLBACK").await.unwrap();
        }
        // Clients that read nothing take two places, and nobody else's time.
        let readers = [connect(&server).await, connect(&server).await];
        let mut slow = Vec::new();
        for reader in &readers {
            slow.push(Box::pin(reader.copy_out("COPY s TO STDOUT").await.unwrap()));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        let refused = client.copy_out("COPY s TO STDOUT").await.map(drop).unwrap_err();
        assert_eq!(refused.code(), Some(&SqlState::INSUFFICIENT_RESOURCES), "{refused}");
        client.batch_execute("INSERT INTO v VALUES (3)").await.unwrap();
        drop((slow, readers));
        for round in 0.. {
            if client.copy_out("COPY s TO STDOUT").await.is_ok() {
                break;
            }
            assert!(round < 1000, "the places are not given back");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    assert_eq!(server.end(), Some(0));
}

/// A message of the protocol.
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat()
}

/// The kinds of the messages up to the next that is of this kind, and the text of errors.
fn kinds(stream: &mut TcpStream, last: u8) -> String {
    let mut kinds = String::new();
    loop {
        let mut head = [0; 5];
        stream.read_exact(&mut head).unwrap();
        let mut body = vec![0; u32::from_be_bytes(head[1..].try_into().unwrap()) as usize - 4];
        stream.read_exact(&mut body).unwrap();
        kinds.push(char::from(head[0]));
        if head[0] == b'E' {
            kinds.push_str(&String::from_utf8_lossy(&body).replace('\0', " "));
        }
        if head[0] == last {
            return kinds;
        }
    }
}

#[test]
fn messages_that_do_not_belong_there_end_a_copy() {
    let folder = Folder::new("serve-copy-messages");
    let server = serve(&folder, &[]);
    let connect = || {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        let words = b"\0\x03\0\0user\0ann\0database\0bank\0\0";
        stream.write_all(&[&(words.len() as u32 + 4).to_be_bytes()[..], words].concat()).unwrap();
        kinds(&mut stream, b'Z');
        stream.write_all(&message(b'Q', b"COPY s FROM STDIN\0")).unwrap();
        assert_eq!(kinds(&mut stream, b'G'), "G");
        stream
    };
    let mut stream = connect();
    stream.write_all(&message(b'd', b"1\ta\n2\t")).unwrap();
    stream.write_all(&message(b'Q', b"SELECT 1\0")).unwrap();
    let said = kinds(&mut stream, b'Z');
    assert!(said.starts_with('E') && said.contains("08P01") && said.contains("No row has been loaded"), "{said}");
    // Data without a COPY is nothing, and the next query is answered.
    stream.write_all(&[message(b'd', b"3\ta\n"), message(b'c', b""), message(b'f', b"why\0")].concat()).unwrap();
    stream.write_all(&message(b'Q', b"COPY s TO STDOUT\0")).unwrap();
    assert_eq!(kinds(&mut stream, b'Z'), "HcCZ");
    // Rows in pieces of one byte, and the client that vanishes in the middle of one.
    stream.write_all(&message(b'Q', b"COPY s FROM STDIN\0")).unwrap();
    let bytes: Vec<u8> = b"4\tx\n5\ty".iter().flat_map(|byte| message(b'd', &[*byte])).collect();
    stream.write_all(&[bytes, message(b'c', b"")].concat()).unwrap();
    assert_eq!(kinds(&mut stream, b'Z'), "GCZ");
    for _ in 0..20 {
        connect().write_all(&message(b'd', b"6\tx\n")[..7]).unwrap();
        connect().write_all(&message(b'd', b"7\tx\n")).unwrap();
    }
    stream.write_all(&message(b'Q', b"COPY s TO STDOUT\0")).unwrap();
    assert_eq!(kinds(&mut stream, b'Z'), "HddcCZ");
    drop(stream);
    assert_eq!(server.end(), Some(0));
}

#[test]
fn rows_are_there_after_a_kill() {
    let folder = Folder::new("serve-copy-kill");
    let data = folder.0.join("data");
    let server = serve(&folder, &["--data", data.to_str().unwrap()]);
    run(async {
        let client = connect(&server).await;
        let mut sink = copy_in(&client, "COPY s FROM STDIN").await;
        sink.send(lines(0..100_000)).await.unwrap();
        assert_eq!(sink.as_mut().finish().await.unwrap(), 100_000);
        let mut sink = copy_in(&client, "COPY t FROM STDIN").await;
        sink.send(Cursor::new(ROWS.into())).await.unwrap();
        assert_eq!(sink.as_mut().finish().await.unwrap(), 3);
    });
    drop(server);
    let server = serve(&folder, &["--data", data.to_str().unwrap()]);
    run(async {
        let client = connect(&server).await;
        let expected = String::from_utf8(lines(0..100_000).into_inner()).unwrap();
        assert!(copied_out(&client, "COPY s TO STDOUT").await == expected);
        assert_eq!(copied_out(&client, "COPY t TO STDOUT").await, ROWS);
        let row = client.query_one("SELECT big FROM t WHERE name = '' LIMIT 9", &[]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), i64::MIN);
    });
    assert_eq!(server.end(), Some(0));
}
