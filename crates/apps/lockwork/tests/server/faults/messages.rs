//! Messages that never end, and giant ones.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use lockwork::{EngineKind, Lockwork, OpenOptions};
use lockwork_server::{Options, Users};

use super::cents;
use super::process::resident;
use crate::BANK;
use crate::client::{Client, startup};
use crate::folder::{Folder, command};
use crate::server::Server;

/// Everything that a server says to bytes until it hangs up.
fn said(port: u16, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    drop(stream.write_all(bytes));
    let mut answer = Vec::new();
    drop(stream.read_to_end(&mut answer));
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn who_does_not_go_on_is_sent_away() {
    let folder = Folder::new("serve-patience");
    std::fs::create_dir_all(&folder.0).unwrap();
    let users = folder.0.join("users");
    let set = command(&["user", users.to_str().unwrap(), "ann", "--right", "define"], "secret-secret");
    assert_eq!(set.0, Some(0), "{}", set.2);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let start = |users: Option<Users>| {
        let open = OpenOptions { engine: EngineKind::DETERMINISTIC, ..OpenOptions::default() };
        // Longer than a login takes on a busy machine.
        let timeout = Duration::from_secs(2);
        let options = Options { login: timeout, io_timeout: timeout, users, connections: 8, ..Options::default() };
        let database = Lockwork::open_in_memory_with(&open).unwrap();
        let address = "127.0.0.1:0".parse().unwrap();
        let server = runtime.block_on(lockwork_server::Server::listen(address, database, options)).unwrap();
        let (port, ending) = (server.address().unwrap().port(), server.ending());
        (port, ending, runtime.spawn(server.run()))
    };
    let (port, ending, running) = start(None);
    let mut idle = Client::new(port).unwrap();
    let begun = Instant::now();
    // As many as there are places for: silent ones, half a startup, half a message.
    let silent: Vec<TcpStream> = (0..4).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
    let half = startup("ann");
    assert!(said(port, &half[..half.len() - 1]).contains("FATAL"));
    let begin = [&half[..], b"Q\0\0\0\x20SELECT"].concat();
    assert!(said(port, &begin).contains("the rest of a message has not come"));
    for mut stream in silent {
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    }
    assert!(begun.elapsed() < Duration::from_secs(30));
    assert_eq!(idle.query("SELECT 1").unwrap(), "1\nSELECT 1");
    ending.end();
    runtime.block_on(running).unwrap().unwrap();
    let (port, ending, running) = start(Some(Users::open(users).unwrap()));
    let answer = said(port, &half);
    assert!(answer.contains("SCRAM-SHA-256") && answer.contains("57014"), "{answer}");
    ending.end();
    runtime.block_on(running).unwrap().unwrap();
}

#[test]
fn before_the_login_messages_are_short() {
    let folder = Folder::new("serve-before-login");
    std::fs::create_dir_all(&folder.0).unwrap();
    let users = folder.0.join("users").to_str().unwrap().to_string();
    assert_eq!(command(&["user", &users, "ann", "--right", "define"], "secret-secret").0, Some(0));
    let server = Server::start(&["--users", &users]);
    for (kind, length) in [(b'd', 59 << 20), (b'B', 59 << 20), (b'Q', 20), (b'p', 20_000)] {
        let begin = [&startup("ann")[..], &[kind], &i32::to_be_bytes(length), &[b'x'; 1000]].concat();
        let answer = said(server.port, &begin);
        assert!(answer.contains("FATAL") && answer.contains("08P01"), "{kind}: {answer}");
    }
    assert_eq!(server.end(), Some(0));
}

#[test]
fn giant_messages_are_refused_and_take_no_memory() {
    let server = Server::start(&["--init", BANK]);
    let mut good = Client::of(&server);
    let mut refused = Client::of(&server);
    assert!(refused.query("SELECT id FROM accounts WHERE id = 1").unwrap().starts_with('1'));
    let before = resident(&server);
    for length in [i32::MAX, 1 << 30, 3, 1, 0, -1, i32::MIN] {
        for kind in *b"QPBDECSHXpdcf" {
            let answer = said(server.port, &[&startup("ann")[..], &[kind], &length.to_be_bytes()].concat());
            assert!(answer.contains("08P01") && answer.contains("FATAL"), "{kind} {length}: {answer}");
        }
        let answer = said(server.port, &[&length.to_be_bytes()[..], &[0, 3, 0, 0]].concat());
        assert!(answer.contains("08P01") && answer.contains("FATAL"), "{length}: {answer}");
    }
    assert!(said(server.port, &[&startup("ann")[..], b"V\0\0\0\x04"].concat()).contains("no message of the kind 'V'"));
    // Announced and never sent, of every kind that may be long.
    let announced: Vec<Client> = (0..100)
        .map(|at| {
            let mut client = Client::of(&server);
            let length: i32 = if at % 4 == 3 { (64 << 20) - 1 } else { (1 << 30) - 1 };
            let begin = [&[b"QPBB"[at % 4]][..], &length.to_be_bytes(), &[b'x'; 1000]].concat();
            client.0.get_mut().write_all(&begin).unwrap();
            client
        })
        .collect();
    assert_eq!(cents(&mut good), 200_000);
    // Sent, and passed over: the client goes on.
    let text = "x".repeat(100 << 20);
    let mut most = 0;
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| refused.query(&text));
        while !asked.is_finished() {
            most = most.max(resident(&server));
            std::thread::sleep(Duration::from_millis(1));
        }
        let answer = asked.join().unwrap().unwrap();
        assert!(answer.starts_with("ERROR 54000") && answer.contains("1048576"), "{answer}");
    });
    let answer = refused.prepared(&text[..2 << 20], &[]).unwrap();
    assert!(answer.starts_with("ERROR 54000") && answer.lines().count() == 1, "{answer}");
    let answer = refused.prepared("CALL transfer($1, 2, 0)", &[&text[..65 << 20]]).unwrap();
    assert!(answer.lines().last().unwrap().starts_with("ERROR 54000"), "{answer}");
    assert!(refused.query("SELECT 1").unwrap().starts_with('1'));
    let more = most.max(resident(&server)).saturating_sub(before);
    println!("{more} KiB more than before");
    assert!(more < 32 << 10, "{more} KiB");
    drop(announced);
    assert_eq!(cents(&mut good), 200_000);
    assert_eq!(server.end(), Some(0));
}
