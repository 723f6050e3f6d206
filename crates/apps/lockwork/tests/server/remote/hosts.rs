//! `lockwork sql A:1,B:2`: of several servers the first that will do is taken, and nothing is asked twice.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::BANK;
use crate::folder::{Folder, command};
use crate::server::Server;

/// A server that does the same with everybody who comes, and counts them.
pub(super) struct Fake {
    port: u16,
    asked: Arc<AtomicU64>,
}

impl Fake {
    pub(super) fn new(does: impl Fn(&mut TcpStream) -> std::io::Result<()> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, asked) = (listener.local_addr().unwrap().port(), Arc::new(AtomicU64::new(0)));
        let count = asked.clone();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                count.fetch_add(1, Relaxed);
                // Who hangs up has heard enough.
                drop(startup(&mut stream).and_then(|()| does(&mut stream)));
            }
        });
        Self { port, asked }
    }

    /// One that lets nobody in, for this reason.
    fn refuses(sqlstate: &'static str) -> Self {
        Self::new(move |stream| {
            stream.write_all(&message(b'E', format!("SFATAL\0C{sqlstate}\0Mnot here\0\0").as_bytes()))
        })
    }

    /// One that hangs up when it is told who comes.
    fn vanishes() -> Self {
        Self::new(|_| Ok(()))
    }

    /// One that lets everybody in, takes a statement, and is gone.
    fn dies() -> Self {
        Self::new(|stream| {
            let let_in = [message(b'R', &[0; 4]), message(b'Z', b"I")].concat();
            stream.write_all(&let_in)?;
            stream.read_exact(&mut [0; 10])
        })
    }

    pub(super) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

/// A message of the protocol.
pub(super) fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat()
}

/// Reads what a client begins with.
pub(super) fn startup(stream: &mut TcpStream) -> std::io::Result<()> {
    loop {
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let mut rest = vec![0; u32::from_be_bytes(length) as usize - 4];
        stream.read_exact(&mut rest)?;
        // A request for TLS is 80877103.
        match rest == 80_877_103_u32.to_be_bytes() {
            true => stream.write_all(b"N")?,
            false => return Ok(()),
        }
    }
}

/// An address where nobody is.
fn closed() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

pub(super) fn at(server: &Server) -> String {
    format!("127.0.0.1:{}", server.port)
}

fn sql(place: &str, variables: &[(&str, &str)], text: &str) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockwork"));
    command.args(["sql", place, "--output", "csv", "-c", text]).env_remove("PGPASSWORD").env("PGUSER", "ann");
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

const CALL: &str = "CALL transfer(1, 2, 1.00);";

#[test]
fn servers_are_asked_in_turn_until_one_will_do() {
    let server = Server::start(&["--init", BANK]);
    let (follows, ends, vanishes, full) =
        (Fake::refuses("57P03"), Fake::refuses("57P01"), Fake::vanishes(), Fake::refuses("53300"));
    let before = [closed(), follows.address(), ends.address(), vanishes.address()].join(",");
    let nowhere = "nowhere.invalid:5433";
    let left = |balance: &str| (Some(0), format!("left\n{balance}\n"), String::new());
    assert_eq!(sql(&format!("{before},{nowhere},{}", at(&server)), &[], CALL), left("999.00"));
    assert_eq!(sql(&format!("postgresql://ann@{before},{}/bank", at(&server)), &[], CALL), left("998.00"));
    // Whoever comes behind is not asked.
    assert_eq!(sql(&format!("{},{before}", at(&server)), &[], CALL), left("997.00"));
    assert_eq!([&follows, &ends, &vanishes].map(|fake| fake.asked.load(Relaxed)), [2; 3]);
    // In any order, each one is found.
    for _ in 0..5 {
        let url = format!("postgres://ann@{before},{}/bank?load_balance_hosts=random", at(&server));
        assert_eq!(sql(&url, &[], "SELECT 1 AS one;"), (Some(0), "one\n1\n".into(), String::new()));
    }
    // What is no matter of this one server is said at once.
    let (code, _, error) = sql(&format!("{},{},{}", follows.address(), full.address(), at(&server)), &[], CALL);
    let last = format!("{}: error 53300: not here\n", full.address());
    assert!(code == Some(3) && error.ends_with(&last) && error.contains("none of 2 servers"), "{error}");
    // And if there is none, each says why.
    let (code, _, error) = sql(&before, &[], CALL);
    let each = [
        "none of 4 servers takes the session\n".to_string(),
        ": Connection refused (os error 111)\n".into(),
        format!("{}: error 57P03: not here\n", follows.address()),
        format!("{}: error 57P01: not here\n", ends.address()),
        format!("{}: ", vanishes.address()),
    ];
    let mut rest = error.as_str();
    for part in &each {
        (_, rest) = rest.split_once(part.as_str()).unwrap_or_else(|| panic!("{part} is not in {error}"));
    }
    assert_eq!(code, Some(3));
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_server_that_is_not_what_is_wanted_is_passed_over() {
    let server = Server::start(&["--init", BANK]);
    let place = format!("{},{}", closed(), at(&server));
    let url = |attrs: &str| format!("postgres://ann@{place}/bank?target_session_attrs={attrs}");
    for attrs in ["any", "read-write", "primary"] {
        let (code, _, error) = sql(&url(attrs), &[], CALL);
        assert_eq!((code, error.as_str()), (Some(0), ""), "{attrs}");
    }
    let (code, _, error) = sql(&url("standby"), &[], CALL);
    let why = "it follows no other server, and target_session_attrs is standby\n";
    assert!(code == Some(3) && error.ends_with(why), "{error}");
    // Who wants to read does nothing else.
    for attrs in ["prefer-standby", "read-only"] {
        assert_eq!(sql(&url(attrs), &[], "SHOW transaction_read_only;").1, "transaction_read_only\non\n");
        let (code, _, error) = sql(&url(attrs), &[], CALL);
        assert!(code == Some(2) && error.contains("25006"), "{error}");
    }
    // Variables of PostgreSQL's clients say it too, and the URL is louder.
    let variable = [("PGTARGETSESSIONATTRS", "standby")];
    assert_eq!(sql(&place, &variable, CALL).0, Some(3));
    assert_eq!(sql(&url("any"), &variable, CALL).0, Some(0));
    let options = [("PGOPTIONS", "-c default_transaction_read_only=on")];
    assert!(sql(&place, &options, CALL).2.contains("25006"));
    let (code, _, error) = sql(&place, &[("PGTARGETSESSIONATTRS", "leader")], CALL);
    assert!(code == Some(2) && error.contains("'leader'\nhint: there are any, read-write"), "{error}");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_wrong_password_is_tried_at_one_server() {
    let folder = Folder::new("sql-hosts-users");
    std::fs::create_dir_all(&folder.0).unwrap();
    let users = folder.0.join("users").to_str().unwrap().to_string();
    assert_eq!(command(&["user", &users, "ann", "--right", "define"], "right-password").0, Some(0));
    let servers = [(); 2].map(|()| Server::start(&["--init", BANK, "--users", &users]));
    let open = Server::start(&["--init", BANK]);
    let place = [closed(), at(&servers[0]), at(&servers[1]), at(&open)].join(",");
    let (code, _, error) = sql(&format!("postgres://ann:wrong@{place}/bank"), &[], CALL);
    assert!(code == Some(2) && error.contains("28P01") && error.contains("none of 2 servers"), "{error}");
    let (code, _, error) = sql(&place, &[], CALL);
    assert!(code == Some(2) && error.contains("wants a password of ann"), "{error}");
    assert_eq!(sql(&format!("postgres://ann:right-password@{place}/bank"), &[], CALL).1, "left\n999.00\n");
    for server in servers.into_iter().chain([open]) {
        assert_eq!(server.end(), Some(0));
    }
}

#[test]
fn what_was_on_its_way_when_a_server_died_is_not_asked_of_the_next() {
    let server = Server::start(&["--init", BANK]);
    let dies = Fake::dies();
    let (code, text, error) = sql(&format!("{},{}", dies.address(), at(&server)), &[], CALL);
    let lost = format!("lockwork: {}: the connection is lost: ", dies.address());
    assert!(code == Some(3) && error.starts_with(&lost) && error.contains("is not known"), "{text}{error}");
    let balance = sql(&at(&server), &[], "SELECT balance FROM accounts WHERE id = 1");
    assert_eq!(balance.1, "balance\n1000.00\n");
    assert_eq!(server.end(), Some(0));
}
