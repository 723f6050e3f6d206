//! `lockwork serve` at its edges: starts that end in the middle, its end, long texts, forged errors, and sessions that
//! are READ ONLY.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::BANK;
use crate::busy::{ticks, until_busy};
use crate::client::{Client, message};
use crate::folder::{Folder, command};
use crate::server::{Server, program};

const ENDS: &str = "FATAL 57P01 terminating connection due to administrator command";

/// A folder with this script, and the words that start a server on its data with it.
fn initial(folder: &Folder, script: &str) -> [String; 6] {
    std::fs::create_dir_all(&folder.0).unwrap();
    let (file, data) = (folder.0.join("init.sql"), folder.0.join("data"));
    std::fs::write(&file, script).unwrap();
    let words = ["serve", "--listen=127.0.0.1:0", "--data", data.to_str().unwrap(), "--init", file.to_str().unwrap()];
    words.map(Into::into)
}

/// Starts with and without --init are refused, and say what to do.
fn is_refused(words: &[&str]) {
    for words in [words, &words[..4]] {
        let (code, output, errors) = command(words, "");
        let said = errors.contains("only a part of it is there") && errors.contains("start again; or do the rest");
        assert!(code == Some(2) && said && output.is_empty(), "{code:?} {output} {errors}");
    }
}

#[test]
fn an_init_that_fails_is_not_taken_for_whole() {
    let folder = Folder::new("serve-half");
    let words = initial(&folder, "CREATE TABLE a (id BIGINT PRIMARY KEY);\nINSERT INTO b VALUES (1);");
    let words = words.each_ref().map(String::as_str);
    let (code, _, errors) = command(&words, "");
    assert!(code == Some(2) && errors.contains("line 2") && errors.contains("before it is there"), "{errors}");
    is_refused(&words);
    // The rest is done by hand.
    let (code, _, errors) = command(&["sql", words[3], "--command", "CREATE TABLE b (id BIGINT PRIMARY KEY)"], "");
    assert_eq!(code, Some(0), "{errors}");
    std::fs::remove_file(folder.0.join("data/INIT")).unwrap();
    let server = Server::start(&words[2..4]);
    assert!(server.ready.starts_with("ready: "), "{}", server.ready);
    assert_eq!(Client::of(&server).query("SELECT count(*) FROM b").unwrap(), "0\nSELECT 1");
    assert_eq!(server.end(), Some(0));
    // What has done nothing may be mended and started again.
    let folder = Folder::new("serve-nothing");
    let words = initial(&folder, "CREATE TABEL a (id BIGINT PRIMARY KEY);");
    assert_eq!(command(&words.each_ref().map(String::as_str), "").0, Some(2));
    let words = initial(&folder, "CREATE TABLE a (id BIGINT PRIMARY KEY);");
    let words = words.each_ref().map(String::as_str);
    for durability in ["none", "fsync"] {
        let server = Server::start(&[&words[2..], &["--durability", durability]].concat());
        assert!(!folder.0.join("data/INIT").exists());
        assert_eq!(Client::of(&server).query("SELECT count(*) FROM a").unwrap(), "0\nSELECT 1");
        assert_eq!(server.end(), Some(0));
    }
}

/// A small file system in memory, gone at the end of the test.
struct Small(std::path::PathBuf);

impl Small {
    /// Nothing where this process may not mount one.
    fn new(bytes: u64) -> Option<Self> {
        let folder = Folder::new("serve-small");
        std::fs::create_dir_all(&folder.0).unwrap();
        let size = format!("size={bytes}");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&folder.0).output();
        if !mount.as_ref().is_ok_and(|mount| mount.status.success()) {
            lockwork_testkit::skip(&format!("a small tmpfs cannot be mounted (root can): {mount:?}"));
            return None;
        }
        let at = folder.0.clone();
        std::mem::forget(folder);
        Some(Self(at))
    }

    /// Leaves room for so many bytes.
    fn leave(&self, bytes: u64) {
        let full = self.0.join("full");
        drop(std::fs::remove_file(&full));
        let mut file = std::fs::File::create(&full).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
        let length = file.metadata().unwrap().len();
        file.set_len(length - bytes).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        drop(Command::new("umount").arg(&self.0).status());
        drop(std::fs::remove_dir(&self.0));
    }
}

#[test]
fn a_full_disk_ends_the_start_with_one_line() {
    let Some(small) = Small::new(256 << 10) else { return };
    let data = small.0.join("data");
    let words = ["serve", "--listen=127.0.0.1:0", "--data", data.to_str().unwrap()];
    let mut seen = Vec::new();
    // Of the folder, its lock, its FORMAT, the first segment of the log and the room in it something has no room.
    for room in (0..4).map(|pages| pages * 4096) {
        drop(std::fs::remove_dir_all(&data));
        small.leave(room);
        let (code, output, errors) = command(&words, "");
        let said = errors.starts_with("lockwork: the disk is full: cannot ") && errors.contains("make room and start");
        assert!(
            code == Some(6) && said && errors.lines().count() == 1 && output.is_empty(),
            "{room} {code:?} {errors}"
        );
        seen.push(errors.split('\'').next().unwrap_or_default().to_string());
        // As soon as there is room what was begun is a database.
        std::fs::remove_file(small.0.join("full")).unwrap();
        assert_eq!(Server::start(&words[2..]).end(), Some(0));
    }
    seen.dedup();
    assert!(seen.len() > 1 && seen.iter().any(|said| said.contains("allocate room")), "{seen:?}");
    // The log begins without room, and takes some with the first statement: of --init.
    drop(std::fs::remove_dir_all(&data));
    small.leave(24 << 10);
    let (code, _, errors) = command(&[&words[..], &["--init", BANK]].concat(), "");
    let said =
        errors.contains("the disk is full: ") && errors.contains("bank.sql: line 2, statement 1: cannot allocate room");
    assert!(code == Some(6) && said && errors.lines().count() == 1, "{code:?} {errors}");
}

#[test]
fn an_address_that_is_taken_leaves_no_folder() {
    let folder = Folder::new("serve-taken");
    let data = folder.0.join("data");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    for (listen, expected) in [(&*listen, 3), ("0.0.0.0:0", 2)] {
        let (code, _, errors) = command(&["serve", "--listen", listen, "--data", data.to_str().unwrap()], "");
        assert!(code == Some(expected) && errors.contains(listen), "{code:?} {errors}");
        assert!(!data.exists(), "{listen}");
    }
}

#[test]
fn an_init_says_where_it_failed() {
    let folder = Folder::new("serve-where");
    let script =
        "CREATE TABLE a (id BIGINT PRIMARY KEY);\nINSERT INTO a VALUES (1);\n-- again\n\nINSERT INTO a VALUES (1);";
    let words = initial(&folder, script);
    let (code, _, errors) = command(&words.each_ref().map(String::as_str), "");
    assert!(code == Some(2) && errors.contains("init.sql: line 5, statement 3: "), "{code:?} {errors}");
}

#[test]
fn an_init_that_is_killed_is_not_taken_for_whole() {
    let folder = Folder::new("serve-killed-init");
    let mut script = String::from("CREATE TABLE a (id BIGINT PRIMARY KEY);\n");
    (0..100_000).for_each(|id| writeln!(script, "INSERT INTO a VALUES ({id});").unwrap());
    let words = initial(&folder, &script);
    let words = words.each_ref().map(String::as_str);
    let mut child = Command::new(env!("CARGO_BIN_EXE_lockwork"))
        .args(words)
        .args(["--durability", "async"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    // What is in its second file has something before it.
    let is_far =
        |name: &str| name.split('.').next().and_then(|number| number.parse().ok()).is_some_and(|at: u64| at > 99);
    let names = || std::fs::read_dir(folder.0.join("data/log")).into_iter().flatten();
    while !names().any(|file| is_far(&file.unwrap().file_name().to_string_lossy())) {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    let mut output = String::new();
    child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    child.wait().unwrap();
    assert_eq!(output, "", "it was ready before it was killed");
    is_refused(&words);
}

/// A query of the two accounts that takes longer than the server waits for it.
fn long() -> String {
    let tables: Vec<String> = (0..40).map(|at| format!("accounts a{at}")).collect();
    format!("SELECT count(*) FROM {}", tables.join(", "))
}

#[test]
fn clients_are_told_that_the_server_ends() {
    let server = Server::start(&["--init", BANK]);
    let port = server.port;
    let [mut idle, mut open, mut busy] = [(); 3].map(|()| Client::of(&server));
    assert_eq!(open.query("BEGIN").unwrap(), "BEGIN");
    let long = format!("{}\0", long());
    let since = ticks(&server);
    busy.0.get_mut().write_all(&message(b'Q', long.as_bytes())).unwrap();
    until_busy(&server, since);
    let begun = Instant::now();
    let ending = std::thread::spawn(move || server.end());
    assert_eq!([idle.ask(b"").unwrap(), open.ask(b"").unwrap()], [ENDS; 2]);
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    let refused = Client::new(port).map(drop).unwrap_err();
    let is_told = refused.kind() == std::io::ErrorKind::ConnectionRefused || refused.to_string().contains("57P03");
    assert!(is_told, "{refused:?}");
    // When it has had its time.
    assert_eq!(busy.ask(b"").unwrap(), ENDS);
    assert!(begun.elapsed() > Duration::from_secs(9), "{:?}", begun.elapsed());
    assert_eq!(ending.join().unwrap(), Some(0));
    // The query has a limit of 30 s.
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
}

#[test]
fn a_second_signal_ends_at_once_and_loses_nothing_that_was_acknowledged() {
    let folder = Folder::new("serve-two-signals");
    let data = folder.0.to_str().unwrap();
    let mut server = Server::start(&["--data", data, "--init", BANK]);
    let [mut client, mut busy] = [(); 2].map(|()| Client::of(&server));
    let since = ticks(&server);
    busy.0.get_mut().write_all(&message(b'Q', format!("{}\0", long()).as_bytes())).unwrap();
    until_busy(&server, since);
    assert_eq!(client.query("CALL transfer(1, 2, 1.00)").unwrap(), "999.00\nCALL");
    let process = server.child.id().to_string();
    let ask = || assert!(Command::new("kill").args(["-TERM", &process]).status().unwrap().success());
    ask();
    // It has heard the first when it takes nobody any more, and waits for the query then.
    let begun = Instant::now();
    while Client::new(server.port).is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(10));
    }
    ask();
    assert_eq!(server.child.wait().unwrap().code(), Some(130));
    let server = Server::start(&["--data", data]);
    let balance = Client::of(&server).query("SELECT balance FROM accounts WHERE id = 1").unwrap();
    assert_eq!(balance, "999.00\nSELECT 1");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_text_of_many_statements_takes_as_long_as_it_is() {
    let server = Server::start(&["--init", BANK]);
    let mut client = Client::of(&server);
    client.query("CREATE TABLE t (id BIGINT PRIMARY KEY)").unwrap();
    let inserts: String = (0..15_000).fold(String::new(), |text, id| text + &format!("INSERT INTO t VALUES ({id});"));
    let mixed: String =
        (0..10_000).fold(String::new(), |text, id| text + &format!("SET a=1;DELETE FROM t WHERE id={id};"));
    let begun = Instant::now();
    for (text, lines, last) in [
        (format!("SELECT * FROM nowhere;{inserts}"), 1, "ERROR 42P01"),
        (format!("SELEC;{inserts}"), 1, "ERROR 42601"),
        (format!("{inserts}SELECT * FROM nowhere;"), 15_001, "ERROR 42P01"),
        (mixed, 20_000, "DELETE 1"),
        (format!("BEGIN;{}", "SAVEPOINT a;".repeat(50_000)), 4098, "ERROR 54000"),
        ("ROLLBACK".into(), 1, "ROLLBACK"),
        ("a".repeat(1_000_000), 1, "ERROR 42601"),
        (format!("{}SELECT 1", "CREATE PROCEDURE p() AS BEGIN; ".repeat(10_000)), 1, "ERROR 42601"),
    ] {
        let answer = client.query(&text).unwrap();
        let found: Vec<&str> = answer.lines().collect();
        let short = &text[..text.len().min(60)];
        assert!(
            found.len() == lines && found[lines - 1].starts_with(last),
            "{short} {} {:?}",
            found.len(),
            found.last()
        );
    }
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
    // Procedures go on behind semicolons.
    let body = "BEGIN INSERT INTO t VALUES (n); INSERT INTO t VALUES (n - 1000); END";
    let text = format!("CREATE PROCEDURE a(n BIGINT) AS {body}; CALL a(-1); create procedure b(n BIGINT) AS {body};");
    assert_eq!(client.query(&text).unwrap(), "CREATE PROCEDURE\nCALL\nCREATE PROCEDURE");
    assert_eq!(client.query("CALL b(-2); SELECT id FROM t WHERE id = -2").unwrap(), "CALL\n-2\nSELECT 1");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn what_is_copied_makes_no_fields_of_an_error() {
    let server = Server::start(&["--init", BANK]);
    let mut client = Client::of(&server);
    client.query("CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20) NOT NULL)").unwrap();
    let copy = message(b'Q', b"COPY t FROM STDIN\0");
    let data = message(b'd', b"30\ta\0C40001\0Mfake\n");
    client.0.get_mut().write_all(&[copy, data, message(b'c', b"")].concat()).unwrap();
    let answers = client.answers().unwrap();
    let (_, error) = answers.iter().find(|(kind, _)| *kind == b'E').unwrap();
    let fields: Vec<_> = error.split(|byte| *byte == 0).filter(|field| !field.is_empty()).collect();
    let kinds: Vec<char> = fields.iter().map(|field| char::from(field[0])).collect();
    assert_eq!(kinds.iter().filter(|kind| matches!(kind, 'C' | 'M')).count(), 2, "{kinds:?}");
    assert!(fields.contains(&&b"C22021"[..]), "{}", String::from_utf8_lossy(error));
    assert!(fields.contains(&&b"WCOPY t, line 1, column name: \"a\\0C40001\\0Mfake\""[..]), "{kinds:?}");
    assert_eq!(client.query("SELECT count(*) FROM t").unwrap(), "0\nSELECT 1");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn sessions_and_transactions_are_read_only_when_they_say_so() {
    const WRITE: &str = "UPDATE accounts SET balance = 7 WHERE id = 1";
    const REFUSED: &str = "ERROR 25006 this UPDATE writes, and the transaction is READ ONLY";
    let server = Server::start(&["--init", BANK]);
    let mut client = Client::of(&server);
    let mut check = |expected: &[(&str, &str)]| {
        for (text, expected) in expected {
            assert_eq!(client.query(text).unwrap(), *expected, "{text}");
        }
    };
    check(&[
        ("BEGIN; SET TRANSACTION READ ONLY", "BEGIN\nSET"),
        ("SHOW transaction_read_only", "on\nSHOW"),
        ("SELECT balance FROM accounts WHERE id = 99", "SELECT 0"),
        (
            "SET TRANSACTION READ WRITE",
            "ERROR 25001 a transaction that is READ ONLY is made READ WRITE before its first statement",
        ),
        ("ROLLBACK; BEGIN READ ONLY; SET transaction_read_only = off", "ROLLBACK\nBEGIN\nSET"),
        ("ROLLBACK; BEGIN; SET TRANSACTION READ ONLY", "ROLLBACK\nBEGIN\nSET"),
        (WRITE, REFUSED),
        ("ROLLBACK; SHOW transaction_read_only", "ROLLBACK\noff\nSHOW"),
        ("SET TRANSACTION READ ONLY", "SET"),
        (WRITE, "UPDATE 1"),
    ]);
    for (on, off) in [
        (
            "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
            "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
        ),
        ("SET default_transaction_read_only = on", "RESET ALL"),
        ("SET SESSION default_transaction_read_only TO 'true'", "DISCARD ALL"),
    ] {
        check(&[
            (on, on.split(' ').next().unwrap()),
            ("SHOW default_transaction_read_only", "on\nSHOW"),
            ("SHOW transaction_read_only", "on\nSHOW"),
            (WRITE, REFUSED),
            ("CALL transfer(1, 2, 1.00)", "ERROR 25006 this CALL writes, and the transaction is READ ONLY"),
            (
                "CREATE TABLE t (id BIGINT PRIMARY KEY)",
                "ERROR 25006 this CREATE TABLE writes, and the transaction is READ ONLY",
            ),
            ("COPY accounts FROM STDIN", "ERROR 25006 this COPY writes, and the transaction is READ ONLY"),
            ("SELECT count(*) FROM accounts", "2\nSELECT 1"),
            ("SELECT balance FROM accounts WHERE id = 1", "7.00\nSELECT 1"),
            ("BEGIN", "BEGIN"),
            (WRITE, REFUSED),
            ("ROLLBACK; BEGIN READ WRITE", "ROLLBACK\nBEGIN"),
            (WRITE, "UPDATE 1"),
            ("COMMIT", "COMMIT"),
            (off, if off == "DISCARD ALL" { off } else { off.split(' ').next().unwrap() }),
            ("SHOW default_transaction_read_only", "off\nSHOW"),
            (WRITE, "UPDATE 1"),
        ]);
    }
    check(&[("SHOW statement_timeout", "0\nSHOW")]);
    if let Some(mut psql) = program("psql") {
        let port = server.port.to_string();
        psql.args(["-h", "127.0.0.1", "-p", &port, "-U", "ann", "-X", "bank"]);
        let told = psql.args(["-c", "SET default_transaction_read_only = on", "-c", WRITE]).output().unwrap();
        assert!(String::from_utf8_lossy(&told.stderr).contains("is READ ONLY"), "{told:?}");
    }
    // A statement that was prepared before asks and is refused when it runs.
    check(&[("SET default_transaction_read_only = on", "SET")]);
    assert_eq!(client.prepared("SHOW transaction_read_only", &[]).unwrap(), "takes []\non\nSHOW");
    let many = "CALL MANY transfer($1, $2, 1.00)";
    let refused = client.prepared(many, &["{1}", "{2}"]).unwrap();
    assert!(refused.ends_with("ERROR 25006 this CALL writes, and the transaction is READ ONLY"), "{refused}");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_folder_of_others_stays_as_it_is() {
    let folder = Folder::new("serve-foreign");
    std::fs::create_dir_all(folder.0.join("data/log")).unwrap();
    std::fs::write(folder.0.join("data/notes.txt"), "mine").unwrap();
    let data = folder.0.join("data");
    let path = data.to_str().unwrap();
    for words in [&["serve", "--listen=127.0.0.1:0", "--data", path][..], &["sql", path, "--command", "SELECT 1"]] {
        let (code, output, errors) = command(words, "");
        assert!(code == Some(2) && output.is_empty(), "{words:?} {code:?} {output}");
        assert!(errors.contains("is no database, and not empty: it has 'notes.txt'"), "{errors}");
        let mut names: Vec<_> =
            std::fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, ["log", "notes.txt"]);
    }
    // What a start was killed in the middle of goes on.
    std::fs::remove_file(data.join("notes.txt")).unwrap();
    assert_eq!(command(&["sql", path, "--command", "CREATE TABLE t (id BIGINT PRIMARY KEY)"], "").0, Some(0));
    // Beside a database others may put what they like.
    std::fs::write(data.join("notes.txt"), "mine").unwrap();
    assert_eq!(command(&["sql", path, "--command", "INSERT INTO t VALUES (1)"], "").0, Some(0));
}

#[test]
fn who_comes_when_no_file_is_left_is_told_so() {
    let limited = "ulimit -n 60; exec \"$0\" serve --listen 127.0.0.1:0";
    let mut child = Command::new("sh")
        .args(["-c", limited, env!("CARGO_BIN_EXE_lockwork")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let port = ready.trim_end().rsplit(' ').next().unwrap().parse().unwrap();
    let (mut inside, mut refused) = (Vec::new(), 0);
    for _ in 0..70 {
        match Client::new(port) {
            Ok(client) => inside.push(client),
            Err(error) => {
                assert!(error.to_string().contains("FATAL 53300"), "{error}");
                refused += 1;
            }
        }
    }
    assert!(inside.len() > 20 && refused > 5, "{} are in, {refused} are refused", inside.len());
    assert_eq!(inside[0].query("SELECT 1").unwrap(), "1\nSELECT 1");
    // There are places again when others have gone.
    inside.truncate(10);
    let begun = Instant::now();
    while Client::new(port).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{said}");
    assert!(
        said.contains("may have 60 files open (ulimit -n)") && said.contains("those who come are refused"),
        "{said}"
    );
    assert_eq!(said.matches("those who come are refused").count(), 1, "{said}");
}

#[test]
fn a_session_names_its_user_and_proves_nothing_when_it_is_in() {
    let server = Server::start(&["--init", BANK]);
    for (body, expected) in [
        (&b"\0"[..], "FATAL 28000 the first message names no user"),
        (b"user\0\0\0", "FATAL 28000 the first message names no user"),
        (b"user\0ann\0", "FATAL 08P01 the first message has not what belongs to it"),
        (b"user\0ann", "FATAL 08P01 the first message has not what belongs to it"),
        (b"user\0ann\0\0more", "FATAL 08P01 the first message has not what belongs to it"),
    ] {
        let mut client = Client(BufReader::new(TcpStream::connect(("127.0.0.1", server.port)).unwrap()));
        let first = [&(body.len() as u32 + 8).to_be_bytes()[..], &196_608_u32.to_be_bytes(), body].concat();
        assert_eq!(client.ask(&first).unwrap(), expected, "{}", String::from_utf8_lossy(body));
    }
    let mut client = Client::of(&server);
    assert_eq!(
        client.ask(&message(b'p', b"secret\0")).unwrap(),
        "FATAL 08P01 there is no message of the kind 'p' here"
    );
    let mut client = Client::of(&server);
    assert_eq!(
        client.query("BEGIN; SELECT nothing").unwrap().lines().last(),
        Some("ERROR 42703 no column is called 'nothing'")
    );
    let call = message(b'F', &[0, 0, 4, 210, 0, 0, 0, 0, 0, 0]);
    assert!(client.ask(&call).unwrap().starts_with("ERROR 25P02"));
    assert_eq!(client.query("ROLLBACK").unwrap(), "ROLLBACK");
    assert!(client.ask(&call).unwrap().starts_with("ERROR 0A000"));
    assert_eq!(server.end(), Some(0));
}
