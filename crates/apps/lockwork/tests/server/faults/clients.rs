//! Many clients, clients that vanish or do not read, and kills of the server under them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::cents;
use super::process::{descriptors, resident, until, until_no_more};
use crate::BANK;
use crate::client::{Client, bind, execute, message};
use crate::folder::Folder;
use crate::server::{Server, program};

#[test]
fn a_thousand_wait_while_a_hundred_work() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls take a structure of this type, which is on the stack.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
    let server = Server::start(&["--init", BANK, "--connections", "1101"]);
    let mut first = Client::of(&server);
    first.query("CALL transfer(1, 2, 0.01)").unwrap();
    let (files, before) = (descriptors(&server), resident(&server));
    let mut idle: Vec<Client> = (0..1000).map(|_| Client::of(&server)).collect();
    let each = resident(&server).saturating_sub(before) as f64 / 1000.0;
    println!("{before} KiB without connections, {each:.1} KiB for each that is idle");
    assert!(each < 40.0, "{each} KiB");
    let (answered, ended) = (AtomicU64::new(0), Instant::now() + Duration::from_secs(2));
    std::thread::scope(|scope| {
        for at in 0..100 {
            let (server, answered) = (&server, &answered);
            scope.spawn(move || {
                let mut client = Client::of(server);
                let (from, to) = if at % 2 == 0 { ("1", "2") } else { ("2", "1") };
                while Instant::now() < ended {
                    let answer = client.prepared("CALL transfer($1, $2, $3)", &[from, to, "0.01"]).unwrap();
                    assert!(answer.ends_with("CALL"), "{answer}");
                    answered.fetch_add(1, Relaxed);
                }
            });
        }
    });
    let busy = resident(&server).saturating_sub(before);
    println!("{} calls; {busy} KiB more than at first", answered.load(Relaxed));
    assert!(answered.load(Relaxed) > 0, "no client of a hundred was answered");
    assert!(busy < 100 << 10, "{busy} KiB");
    for client in &mut idle {
        assert_eq!(client.query("SELECT id FROM accounts WHERE id = 1").unwrap(), "1\nSELECT 1");
    }
    assert_eq!(cents(&mut first), 200_000);
    drop(idle);
    until_no_more(&server, &files);
    assert_eq!(server.end(), Some(0));
}

#[test]
fn clients_that_vanish_leave_nothing() {
    let server = Server::start(&["--init", BANK]);
    let mut good = Client::of(&server);
    good.query("CALL transfer(1, 2, 1.00)").unwrap();
    let files = descriptors(&server);
    let query = |text: &str| message(b'Q', &[text.as_bytes(), b"\0"].concat());
    let parse = message(b'P', b"\0CALL transfer($1, $2, $3)\0\0\0");
    let pipeline = [parse, [bind(&["1", "2", "0.01"]), execute(0)].concat().repeat(50)].concat();
    let answers = query(&"SELECT id FROM accounts WHERE id BETWEEN 1 AND 2 LIMIT 2;".repeat(500));
    for round in 0..100 {
        let mut client = Client::of(&server);
        let sent = match round % 6 {
            0 => query("CALL transfer(1, 2, 0.01)")[..round / 4 + 1].to_vec(),
            1 => answers.clone(),
            2 => query("BEGIN; CALL transfer(1, 2, 0.01)"),
            3 => pipeline.clone(),
            4 => pipeline[..pipeline.len() - 7].to_vec(),
            _ => [query("BEGIN"), pipeline.clone(), message(b'S', b"")].concat(),
        };
        client.0.get_mut().write_all(&sent).unwrap();
        if round % 6 == 1 {
            client.0.get_mut().read_exact(&mut [0; 100]).unwrap();
        }
    }
    until_no_more(&server, &files);
    assert_eq!(cents(&mut good), 200_000);
    assert_eq!(good.query("BEGIN; CALL transfer(1, 2, 0.00); COMMIT").unwrap().lines().last(), Some("COMMIT"));
    // Those who vanish without a word are asked whether they are there: 02 is that timer.
    let address = |port: u16| format!("0100007F:{port:04X}");
    let ends = format!("{} {}", address(server.port), address(good.0.get_ref().local_addr().unwrap().port()));
    until("no timer asks whether the client is there", || {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let line = table.lines().find(|line| line.contains(&ends)).unwrap_or_else(|| panic!("{ends}\n{table}"));
        line.split_whitespace().nth(5).unwrap().starts_with("02:")
    });
    drop(good);
    assert_eq!(server.end(), Some(0));
}

#[test]
fn slow_readers_hold_up_nobody() {
    let server = Server::start(&["--init", BANK]);
    let mut good = Client::of(&server);
    good.query("CREATE TABLE t (id BIGINT PRIMARY KEY, v VARCHAR(60) NOT NULL) WITH (ordered = true)").unwrap();
    good.query("CREATE PROCEDURE add(n BIGINT) AS BEGIN INSERT INTO t VALUES (n, 'some text'); END").unwrap();
    let list = |items: &mut dyn Iterator<Item = u64>| {
        format!("{{{}}}", items.map(|item| item.to_string()).collect::<Vec<_>>().join(","))
    };
    let added = good.prepared("CALL MANY add($1)", &[&list(&mut (0..10_000))]).unwrap();
    assert!(added.ends_with("CALL"), "{}", &added[..100]);
    let run = [bind(&[]), execute(0), message(b'S', b"")].concat();
    let select = message(b'P', b"\0SELECT * FROM t WHERE id BETWEEN 0 AND 9999 LIMIT 10000\0\0\0");
    let selects = [select, run.repeat(500)].concat();
    let ones = list(&mut std::iter::repeat_n(1, 20_000));
    let call = message(b'P', b"\0CALL MANY transfer($1, 2, 0)\0\0\0");
    let calls = [call, [bind(&[&ones]), execute(0), message(b'S', b"")].concat().repeat(100)].concat();
    let before = resident(&server);
    let mut slow: Vec<Client> = (0..20).map(|_| Client::of(&server)).collect();
    for (at, client) in slow.iter_mut().enumerate() {
        client.0.get_mut().set_write_timeout(Some(Duration::from_millis(50))).unwrap();
        // The server stops taking what it cannot answer.
        drop(client.0.get_mut().write_all(if at % 2 == 0 { &selects } else { &calls }));
    }
    let (mut most, mut slowest) = (0, Duration::ZERO);
    let ended = Instant::now() + Duration::from_secs(2);
    while Instant::now() < ended {
        let asked = Instant::now();
        assert!(good.query("CALL transfer(1, 2, 0.01)").unwrap().ends_with("CALL"));
        slowest = slowest.max(asked.elapsed());
        most = most.max(resident(&server));
        std::thread::sleep(Duration::from_millis(2));
    }
    let more = most.saturating_sub(before);
    println!("{more} KiB more than before; the slowest call of others took {slowest:?}");
    assert!(more < 200 << 10, "{more} KiB");
    assert!(slowest < Duration::from_secs(20), "{slowest:?}");
    let asked = Instant::now();
    assert_eq!(server.end(), Some(0));
    // Those who do not read are waited for as long as anybody is.
    assert!(asked.elapsed() < Duration::from_secs(40), "{:?}", asked.elapsed());
}

#[test]
fn clients_reconnect_after_a_kill_and_find_what_was_acknowledged() {
    let folder = Folder::new("serve-reconnect");
    let scripts = Folder::new("serve-reconnect-scripts");
    std::fs::create_dir_all(&scripts.0).unwrap();
    let path = |name: &str| scripts.0.join(name).to_str().unwrap().to_string();
    let init = std::fs::read_to_string(BANK).unwrap()
        + "CREATE TABLE notes (id BIGINT PRIMARY KEY) WITH (ordered = true);
           CREATE PROCEDURE note(id BIGINT) AS BEGIN INSERT INTO notes VALUES (id); END;";
    std::fs::write(path("init.sql"), init).unwrap();
    std::fs::write(path("transfer"), "\\set a random(1, 2)\n\\set b 3 - :a\nCALL transfer(:a, :b, 0.01);\n").unwrap();
    let (data, init) = (folder.0.to_str().unwrap(), path("init.sql"));
    let mut server = Server::start(&["--data", data, "--init", &init]);
    let port = server.port;
    let pgbench = |mode: &str, count: [&str; 2]| {
        let mut pgbench = program("pgbench")?;
        pgbench.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-U", "ann", "-n", "-M", mode, "-c", "4"]);
        pgbench.args(count).args(["-f", &path("transfer"), "bank"]).stdout(Stdio::null()).stderr(Stdio::null());
        Some(pgbench)
    };
    let (ended, reconnected) = (AtomicBool::new(false), AtomicU64::new(0));
    let acknowledged = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4_u64)
            .map(|at| {
                let (ended, reconnected) = (&ended, &reconnected);
                scope.spawn(move || {
                    let mut acknowledged = Vec::new();
                    let mut next = at << 32;
                    while !ended.load(Relaxed) {
                        let Ok(mut client) = Client::new(port) else {
                            std::thread::sleep(Duration::from_millis(5));
                            continue;
                        };
                        reconnected.fetch_add(1, Relaxed);
                        while !ended.load(Relaxed) {
                            next += 1;
                            match client.query(&format!("CALL note({next})")) {
                                Ok(answer) if answer == "CALL" => acknowledged.push(next),
                                // It may have happened or not.
                                Ok(answer) if !answer.is_empty() => panic!("{answer}"),
                                _ => break,
                            }
                        }
                    }
                    acknowledged
                })
            })
            .collect();
        for round in 1..=3 {
            let mut bench = pgbench("prepared", ["-T", "30"]).map(|mut pgbench| pgbench.spawn().unwrap());
            std::thread::sleep(Duration::from_millis(250 + 100 * round));
            server.child.kill().unwrap();
            server.child.wait().unwrap();
            if let Some(bench) = &mut bench {
                assert!(!bench.wait().unwrap().success());
            }
            let listen = format!("127.0.0.1:{port}");
            server = Server::start(&["--data", data, "--init", &init, "--listen", &listen]);
            until("clients do not come back", || reconnected.load(Relaxed) >= 4 * (round + 1));
        }
        if let Some(mut pgbench) = pgbench("simple", ["-t", "50"]) {
            assert!(pgbench.status().unwrap().success());
        }
        ended.store(true, Relaxed);
        clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    let mut client = Client::of(&server);
    assert_eq!(cents(&mut client), 200_000);
    for (at, acknowledged) in acknowledged.iter().enumerate() {
        let (mut there, mut from) = (std::collections::HashSet::new(), at << 32);
        loop {
            let to = ((at + 1) << 32) - 1;
            let rows = client.prepared(
                "SELECT id FROM notes WHERE id BETWEEN $1 AND $2 ORDER BY id LIMIT 10000",
                &[&from.to_string(), &to.to_string()],
            );
            let rows: Vec<u64> = rows.unwrap().lines().filter_map(|row| row.parse().ok()).collect();
            let Some(last) = rows.last() else { break };
            from = *last as usize + 1;
            there.extend(rows);
        }
        let lost: Vec<_> = acknowledged.iter().filter(|id| !there.contains(id)).collect();
        assert!(acknowledged.len() > 10 && lost.is_empty(), "{} acknowledged, lost {lost:?}", acknowledged.len());
        assert!(there.len() <= acknowledged.len() + 4);
    }
    drop(client);
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_server_without_data_is_small() {
    let server = Server::start(&["--http", "127.0.0.1:0"]);
    let begun = resident(&server);
    let page = server.ready.split("http://").nth(1).and_then(|rest| rest.split('/').next()).unwrap().to_string();
    for _ in 0..20 {
        for path in ["/", "/metrics", "/status.json"] {
            let mut stream = TcpStream::connect(&page).unwrap();
            stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {page}\r\n\r\n").as_bytes()).unwrap();
            let mut answer = String::new();
            drop(stream.read_to_string(&mut answer));
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
    }
    let mut client = Client::of(&server);
    assert_eq!(client.query("SELECT 1").unwrap(), "1\nSELECT 1");
    let asked = resident(&server);
    println!("{begun} KiB after the start, {asked} KiB when asked");
    assert!(asked < 50 << 10, "{asked} KiB");
    drop(client);
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_server_opens_as_many_files_as_it_may() {
    let serve = "ulimit -S -n 200; exec \"$0\" serve --listen 127.0.0.1:0";
    let mut sh = Command::new("sh");
    sh.args(["-c", serve, env!("CARGO_BIN_EXE_lockwork")]).stdout(Stdio::piped());
    let mut child = sh.spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert!(ready.starts_with("ready") && words[0] == words[1], "{line}");
}

#[test]
fn all_that_a_server_opens_for_itself_is_open_when_it_is_ready() {
    for _ in 0..10 {
        let server = Server::start(&["--http", "127.0.0.1:0"]);
        let files = descriptors(&server);
        // It is at work: somebody is let in, and goes.
        Client::of(&server).query("SELECT 1").unwrap();
        until_no_more(&server, &files);
        assert_eq!(server.end(), Some(0));
    }
}
