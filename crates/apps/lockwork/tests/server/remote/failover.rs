//! `lockwork sql A:1,B:2` when a server stops answering in the middle of a statement.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use lockwork::request_id;

use super::hosts::{Fake, at, message, startup};
use crate::BANK;
use crate::folder::command;
use crate::server::Server;

/// Within this time there is an answer or an error; a machine that does much else gets a second more.
const TIME: Duration = Duration::from_secs(11);

/// A server that lets a client in, and never says anything again, to nobody: as a process that is stopped.
fn silent() -> Fake {
    Fake::new(|stream| {
        stream.write_all(&[message(b'R', &[0; 4]), message(b'Z', b"I")].concat())?;
        stream.read_to_end(&mut Vec::new())?;
        // Its client has gone, and so it might be asked again: it is not there then.
        std::thread::sleep(Duration::from_secs(60));
        Ok(())
    })
}

/// A statement at these servers: exit code, standard output, standard error, and how long it took.
fn ask(servers: &[String], words: &[&str]) -> (Option<i32>, String, String, Duration) {
    let begun = Instant::now();
    let (code, text, error) =
        command(&[&["sql", &servers.join(","), "--user", "ann", "--output", "csv"], words].concat(), "");
    (code, text, error, begun.elapsed())
}

fn balance(server: &Server) -> String {
    ask(&[at(server)], &["-c", "SELECT balance FROM accounts WHERE id = 1"]).1
}

#[test]
fn what_may_be_repeated_goes_on_at_the_next_server() {
    let server = Server::start(&["--init", BANK]);
    let stopped = silent();
    let servers = [stopped.address(), at(&server)];
    let call = format!("CALL transfer(1, 2, 1.00) REQUEST '{}'", request_id().unwrap());
    let (code, text, error, took) = ask(&servers, &["-c", &call]);
    assert!(code == Some(0) && text == "left\n999.00\n" && took < TIME, "{code:?} {text} {error} {took:?}");
    let told = format!("lockwork: {} is lost: no answer within 5 s; the call is repeated", stopped.address());
    assert!(error.starts_with(&told) && error.contains(&at(&server)), "{error}");
    let stopped = silent();
    let servers = [stopped.address(), at(&server)];
    let (code, text, error, took) = ask(&servers, &["-c", "SELECT balance FROM accounts WHERE id = 1"]);
    assert!(code == Some(0) && text == "balance\n999.00\n" && took < TIME, "{code:?} {text} {error} {took:?}");
    assert!(
        error.contains("does not respond") && error.contains("the statement is repeated: it only reads"),
        "{error}"
    );
    assert_eq!(server.end(), Some(0));
}

#[test]
fn what_may_happen_twice_is_not_repeated() {
    let server = Server::start(&["--init", BANK]);
    for (statement, hint) in [
        ("CALL transfer(1, 2, 1.00)", "whether the last statement was carried out is not known"),
        ("UPDATE accounts SET balance = 5 WHERE id = 1", "whether the last statement was carried out is not known"),
        // Its session has set something.
        ("SET lockwork.read_after = 0; SELECT balance FROM accounts WHERE id = 1", "is not known"),
    ] {
        let stopped = silent();
        let (code, text, error, took) =
            ask(&[stopped.address(), at(&server)], &["--call-timeout", "2", "-c", statement]);
        let lost = format!("lockwork: {}: the connection is lost: ", stopped.address());
        assert!(code == Some(3) && error.starts_with(&lost) && error.contains(hint), "{statement}: {text}{error}");
        assert!(took < TIME, "{statement}: {took:?}");
    }
    assert_eq!(balance(&server), "balance\n1000.00\n");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_server_that_is_stopped_is_given_up_within_ten_seconds() {
    let server = Server::start(&["--init", BANK]);
    let signal = |signal: &str| {
        assert!(Command::new("kill").args([signal, &server.child.id().to_string()]).status().unwrap().success());
    };
    // The connection is there before the server is stopped: a statement of its own says so.
    let address = at(&server);
    let mut child = Command::new(env!("CARGO_BIN_EXE_lockwork"));
    child.args(["sql", &address, "--user", "ann", "--output", "csv"]);
    let (stdin, stdout) = (std::process::Stdio::piped(), std::process::Stdio::piped());
    let mut child = child.stdin(stdin).stdout(stdout).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut to = child.stdin.take().unwrap();
    to.write_all(b"SELECT 1 AS one;\n").unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    signal("-STOP");
    let begun = Instant::now();
    let call = format!("CALL transfer(1, 2, 1.00) REQUEST '{}'", request_id().unwrap());
    writeln!(to, "{call};").unwrap();
    let output = child.wait_with_output().unwrap();
    let (error, took) = (String::from_utf8_lossy(&output.stderr).into_owned(), begun.elapsed());
    signal("-CONT");
    assert!(output.status.code() == Some(3) && took < TIME, "{error} {took:?}");
    assert!(error.contains("no answer within 10 s") && error.contains("repeat it with the same request id"), "{error}");
    let (_, text, error, _) = ask(&[address], &["-c", &call]);
    assert_eq!((text.as_str(), error.as_str()), ("left\n999.00\n", ""));
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_statement_that_takes_long_at_a_server_that_works_is_waited_for() {
    // It answers each connection by itself: whoever asks whether it is there, and a statement after 3 s.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serve = |mut stream: TcpStream| {
        startup(&mut stream)?;
        stream.write_all(&[message(b'R', &[0; 4]), message(b'Z', b"I")].concat())?;
        stream.read_exact(&mut [0; 5])?;
        std::thread::sleep(Duration::from_secs(3));
        stream.write_all(&[message(b'C', b"INSERT 0 1\0"), message(b'Z', b"I")].concat())?;
        stream.read_to_end(&mut Vec::new())
    };
    std::thread::spawn(move || {
        listener.incoming().flatten().for_each(|stream| drop(std::thread::spawn(move || drop(serve(stream)))));
    });
    let insert = "INSERT INTO accounts VALUES (3, 1.00)";
    let (code, _, error, took) = ask(&[address], &["--call-timeout", "1", "-c", insert]);
    assert!(code == Some(0) && error.is_empty() && took > Duration::from_secs(3), "{code:?} {error} {took:?}");
}

#[test]
fn limits_are_seconds() {
    for (option, value) in [("--call-timeout", "soon"), ("--connect-timeout", "-1")] {
        let (code, _, error) = command(&["sql", "127.0.0.1:1", &format!("{option}={value}"), "-c", "SELECT 1"], "");
        assert!(code == Some(2) && error.contains(&format!("{option} is '{value}'")), "{error}");
    }
    let (code, _, error) = command(&["sql", "./nowhere", "--call-timeout", "1", "-c", "SELECT 1"], "");
    assert!(code == Some(2) && error.contains("--call-timeout is for servers"), "{error}");
}
