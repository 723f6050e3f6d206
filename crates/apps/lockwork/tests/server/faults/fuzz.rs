//! `lockwork serve` under bytes that no client sends, and under wrong passwords: it stays, and serves the others.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use lockwork_random::Random;
use tokio_postgres::NoTls;

use super::process::{descriptors, resident, until_no_more};
use crate::BANK;
use crate::client::{Client, bind, execute, message, startup};
use crate::folder::{Folder, command};
use crate::server::Server;

/// The seed of a run: LOCKWORK_SEED, to see one again.
fn seed() -> u64 {
    let told = std::env::var("LOCKWORK_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = told.unwrap_or_else(|| u64::from(std::process::id()));
    println!("LOCKWORK_SEED={seed}");
    seed
}

/// What clients send, a message each.
fn sessions() -> Vec<Vec<Vec<u8>>> {
    let query = |text: &str| message(b'Q', &[text.as_bytes(), b"\0"].concat());
    let parse = |name: &str, text: &str| message(b'P', format!("{name}\0{text}\0\0\x01\0\0\0\x14").as_bytes());
    let (sync, start) = (message(b'S', b""), startup("ann"));
    let describe = message(b'D', b"S\0");
    let own = "CREATE TABLE IF NOT EXISTS x (id BIGINT PRIMARY KEY)";
    vec![
        vec![start.clone(), query("CALL transfer(1, 2, 0.01)"), query("SELECT * FROM accounts WHERE id = 1")],
        vec![start.clone(), query(own), query("BEGIN; CALL transfer(1, 2, 0.01)"), query("COMMIT; SELECT 1")],
        vec![
            start.clone(),
            parse("", "CALL transfer($1, $2, $3)"),
            describe,
            bind(&["1", "2", "0.01"]),
            execute(1),
            execute(0),
            sync.clone(),
        ],
        vec![
            start.clone(),
            parse("", "CALL MANY transfer($1, 2, $2)"),
            bind(&["{1,2,1}", "{0.01,0.01,0.02}"]),
            message(b'D', b"P\0"),
            execute(0),
            message(b'C', b"P\0"),
            message(b'H', b""),
            sync.clone(),
        ],
        vec![
            start.clone(),
            query("SELECT relname, oid FROM pg_catalog.pg_class WHERE relkind IN ('r', 'p') ORDER BY 1"),
            parse("a", "SELECT typname FROM pg_type WHERE oid = $1"),
            message(b'B', b"\0a\0\0\x01\0\x01\0\x01\0\0\0\x04\0\0\0\x14\0\x01\0\x01"),
            execute(0),
            sync,
        ],
        vec![
            message(b'\0', b"\x04\xd2\x16\x2f")[1..].to_vec(),
            start,
            message(b'p', b"SCRAM-SHA-256\0\0\0\0\x20n,,n=,r=fyko+d2lbbFgONRv9qkxdawL"),
            message(b'p', b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="),
            message(b'X', b""),
        ],
    ]
}

/// Does something to the bytes of a session.
fn mutate(session: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut messages = session.to_vec();
    match random.index(6) {
        0 => drop(messages.remove(random.index(messages.len()))),
        1 => messages.push(messages[random.index(messages.len())].clone()),
        2 => {
            let (one, other) = (random.index(messages.len()), random.index(messages.len()));
            messages.swap(one, other);
        }
        3 => {
            // A body that is cut, and whose length is right.
            let at = 1 + random.index((messages.len() - 1).max(1));
            let kept = 5 + random.index(messages[at].len().saturating_sub(4).max(1));
            messages[at].truncate(kept);
            let length = (messages[at].len() as u32).saturating_sub(1).to_be_bytes();
            if messages[at].len() >= 5 {
                messages[at][1..5].copy_from_slice(&length);
            }
        }
        _ => {}
    }
    let mut bytes = messages.concat();
    for _ in 0..random.index(4) {
        if bytes.is_empty() {
            break;
        }
        let at = random.index(bytes.len());
        match random.index(5) {
            0 => bytes[at] ^= 1 << random.index(8),
            1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.index(5)],
            2 => bytes.truncate(at),
            3 => bytes.insert(at, random.next_u64() as u8),
            _ => drop(bytes.remove(at)),
        }
    }
    bytes
}

/// Sends bytes, some at a time, and reads what comes until the server hangs up.
fn throw(port: u16, bytes: &[u8], random: &mut Random) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(40))).unwrap();
    let first = if random.index(4) == 0 { random.index(bytes.len().max(1)) } else { bytes.len() };
    for part in [&bytes[..first], &bytes[first..]] {
        // A server that has seen enough may have hung up.
        drop(stream.write_all(part));
    }
    drop(stream.shutdown(Shutdown::Write));
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
            panic!("neither answered nor ended: {bytes:?}")
        }
        _ => {}
    }
}

/// Throws mutated sessions and random bytes from four connections at a time; how many.
fn fuzz(port: u16, seed: u64, how_long: Duration, ended: &AtomicBool) -> u64 {
    let (thrown, until) = (AtomicU64::new(0), Instant::now() + how_long);
    std::thread::scope(|scope| {
        for at in 0..4 {
            let thrown = &thrown;
            scope.spawn(move || {
                let (mut random, sessions) = (Random(seed + at), sessions());
                while Instant::now() < until {
                    let bytes = match random.index(8) {
                        0 => (0..random.index(500)).map(|_| random.next_u64() as u8).collect(),
                        1 => {
                            let any: Vec<u8> = (0..random.index(500)).map(|_| random.next_u64() as u8).collect();
                            [startup("ann"), message(b"QPBEDCSHXdcfp"[random.index(13)], &any)].concat()
                        }
                        _ => mutate(&sessions[random.index(sessions.len())], &mut random),
                    };
                    throw(port, &bytes, &mut random);
                    thrown.fetch_add(1, Relaxed);
                }
            });
        }
    });
    ended.store(true, Relaxed);
    thrown.into_inner()
}

#[test]
fn bytes_that_no_client_sends_disturb_nobody() {
    let seed = seed();
    let server = Server::start(&["--init", BANK]);
    let mut good = Client::of(&server);
    good.query("CREATE TABLE mine (id BIGINT PRIMARY KEY, v BIGINT NOT NULL)").unwrap();
    good.query("INSERT INTO mine VALUES (1, 4711)").unwrap();
    let (files, before) = (descriptors(&server), resident(&server));
    let (ended, mut slowest) = (AtomicBool::new(false), Duration::ZERO);
    let thrown = std::thread::scope(|scope| {
        let fuzz = scope.spawn(|| fuzz(server.port, seed, Duration::from_secs(5), &ended));
        // A thread that panics ends nothing.
        while !ended.load(Relaxed) && !fuzz.is_finished() {
            let asked = Instant::now();
            let answer = good.prepared("SELECT v FROM mine WHERE id = $1", &["1"]).unwrap();
            assert!(answer.ends_with("4711\nSELECT 1"), "{answer}");
            assert_eq!(good.query("CALL transfer(1, 2, 0.00)").unwrap().lines().last(), Some("CALL"));
            slowest = slowest.max(asked.elapsed());
            std::thread::sleep(Duration::from_millis(1));
        }
        fuzz.join().unwrap()
    });
    let more = resident(&server).saturating_sub(before);
    println!("{thrown} sessions, {more} KiB more than before, slowest answer of another {slowest:?}");
    assert!(thrown > 100 && slowest < Duration::from_secs(20), "{thrown} {slowest:?}");
    assert!(more < 150 << 10, "{more} KiB");
    until_no_more(&server, &files);
    drop(good);
    assert_eq!(server.end(), Some(0));
}

fn metric(page: &str, name: &str) -> u64 {
    let mut stream = TcpStream::connect(page).unwrap();
    stream.write_all(format!("GET /metrics HTTP/1.1\r\nHost: {page}\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    drop(stream.read_to_string(&mut answer));
    let line = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{answer}")).parse().unwrap()
}

#[test]
fn wrong_passwords_keep_nobody_out() {
    let folder = Folder::new("serve-passwords");
    std::fs::create_dir_all(&folder.0).unwrap();
    let file = folder.0.join("users").to_str().unwrap().to_string();
    let set = command(&["user", &file, "ann", "--right", "define"], "right-password");
    assert_eq!(set.0, Some(0), "{}", set.2);
    let server = Server::start(&["--init", BANK, "--users", &file, "--http", "127.0.0.1:0"]);
    let page = server.ready.split("http://").nth(1).and_then(|rest| rest.split('/').next()).unwrap().to_string();
    let files = descriptors(&server);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let login = |user: &str, password: &str| {
        let words = format!("host=127.0.0.1 port={} user={user} password={password} dbname=bank", server.port);
        async move { tokio_postgres::connect(&words, NoTls).await }
    };
    let (wrong, ended) = (AtomicU64::new(0), Instant::now() + Duration::from_secs(4));
    let (mut memory, mut slowest) = (Vec::new(), Duration::ZERO);
    std::thread::scope(|scope| {
        for at in 0..50 {
            let (wrong, runtime, login) = (&wrong, &runtime, &login);
            scope.spawn(move || {
                while Instant::now() < ended {
                    let user = if at % 2 == 0 { "ann" } else { "nobody" };
                    let refused = runtime.block_on(login(user, "wrong")).err().unwrap();
                    let code = refused.code().map(|code| code.code().to_string());
                    // Or too many others of this address wait.
                    assert!(matches!(code.as_deref(), Some("28P01" | "28000")), "{refused:?}");
                    wrong.fetch_add(1, Relaxed);
                }
            });
        }
        while Instant::now() < ended {
            let asked = Instant::now();
            let (client, connection) = runtime.block_on(login("ann", "right-password")).unwrap();
            let connection = runtime.spawn(connection);
            runtime.block_on(client.batch_execute("CALL transfer(1, 2, 0.00)")).unwrap();
            slowest = slowest.max(asked.elapsed());
            drop(client);
            runtime.block_on(connection).unwrap().unwrap();
            memory.push(resident(&server));
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let wrong = wrong.into_inner();
    let grown = memory[memory.len() - 1].saturating_sub(memory[memory.len() / 3]);
    println!("{wrong} wrong passwords; the slowest right one took {slowest:?}; {grown} KiB in the last two thirds");
    // What others guess beside it delays the right one by four seconds at most.
    assert!(slowest < Duration::from_secs(20), "{slowest:?}");
    assert!(wrong > 50 && grown < 8 << 10, "{wrong} {memory:?}");
    assert_eq!(metric(&page, "lockwork_logins_refused_total"), wrong);
    // What is no proof at all is told so, and nothing is done for who sent it.
    for proof in [&b"SCRAM-SHA-256\0\xff\xff\xff\xfe"[..], b"", b"SCRAM-SHA-256\0\0\0\0\x7fn,,", b"md5\0\0\0\0\0"] {
        let asked = message(b'Q', b"SELECT relname FROM pg_class\0");
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        stream.write_all(&[startup("ann"), message(b'p', proof), asked].concat()).unwrap();
        let mut answer = Vec::new();
        drop(stream.read_to_end(&mut answer));
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.contains("FATAL") && !answer.contains("accounts"), "{proof:?}: {answer}");
    }
    let thrown = fuzz(server.port, seed(), Duration::from_secs(2), &AtomicBool::new(false));
    let (client, connection) = runtime.block_on(login("ann", "right-password")).unwrap();
    let connection = runtime.spawn(connection);
    runtime.block_on(client.batch_execute("CALL transfer(1, 2, 0.00)")).unwrap();
    drop(client);
    runtime.block_on(connection).unwrap().unwrap();
    println!("{thrown} sessions");
    until_no_more(&server, &files);
    assert_eq!(server.end(), Some(0));
}
