//! `lockwork serve` in a folder under everything that clients do, for SOAK_SECONDS (a few unless told otherwise;
//! `make soak` takes ten minutes): money is conserved, and neither memory nor descriptors grow.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::cents;
use super::process::{descriptors, resident, until_no_more};
use crate::BANK;
use crate::client::{Client, bind, execute, message};
use crate::folder::Folder;
use crate::server::Server;

/// What one client does once; the number tells them apart.
fn work(client: &mut Client, at: u64) {
    // Turn by turn, so that neither account is ever empty.
    let (from, to) = if (at / 16).is_multiple_of(2) { ("1", "2") } else { ("2", "1") };
    let expect = |answer: String, expected: &str| assert!(answer.contains(expected), "{at}: {answer}");
    match at % 16 {
        0..=5 => expect(client.prepared("CALL transfer($1, $2, $3)", &[from, to, "0.01"]).unwrap(), "CALL"),
        6 => expect(client.query(&format!("CALL transfer({from}, {to}, 0.02)")).unwrap(), "CALL"),
        7 => expect(client.query("SELECT * FROM accounts WHERE id BETWEEN 1 AND 2 LIMIT 2").unwrap(), "SELECT 2"),
        8 => {
            // A row of its own, which comes and goes.
            let id = 1000 + at % 1000;
            client.query(&format!("INSERT INTO accounts VALUES ({id}, 0.00)")).unwrap();
            client.query(&format!("DELETE FROM accounts WHERE id = {id}")).unwrap();
        }
        9 => {
            client.query("BEGIN").unwrap();
            client.query(&format!("CALL transfer({from}, {to}, 0.01)")).unwrap();
            client.query(if at.is_multiple_of(3) { "ROLLBACK" } else { "COMMIT" }).unwrap();
        }
        10 => expect(client.query("SELECT nonsense FROM accounts WHERE id = 1").unwrap(), "42703"),
        11 => expect(client.query("CALL transfer(1, 2, 1000000.00)").unwrap(), "BK001"),
        12 => expect(client.query("SELEKT 1").unwrap(), "42601"),
        13 => expect(client.query("SELECT relname FROM pg_class WHERE relkind = 'r'").unwrap(), "accounts"),
        14 => {
            let ones = format!("{{{}}}", vec!["1"; 500].join(","));
            expect(client.prepared("CALL MANY transfer($1, 2, 0)", &[&ones]).unwrap(), "CALL");
        }
        _ => {
            // A named statement, closed again.
            let parse = message(b'P', b"mine\0CALL transfer($1, $2, $3)\0\0\0");
            let close = [message(b'C', b"Smine\0"), message(b'S', b"")].concat();
            expect(client.ask(&[parse, bind(&["x"]), execute(0), close.clone()].concat()).unwrap(), "ERROR");
            client.ask(&close).unwrap();
        }
    }
}

#[test]
fn neither_memory_nor_descriptors_grow() {
    let seconds = std::env::var("SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(4);
    let folder = Folder::new("serve-soak");
    let server = Server::start(&["--data", folder.0.to_str().unwrap(), "--init", BANK]);
    let mut first = Client::of(&server);
    first.query("CALL transfer(1, 2, 0.00)").unwrap();
    let (files, begun, done) = (descriptors(&server), Instant::now(), AtomicU64::new(0));
    let (end, connected) = (begun + Duration::from_secs(seconds), AtomicU64::new(0));
    let mut memory = Vec::new();
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let (server, done, connected) = (&server, &done, &connected);
            scope.spawn(move || {
                let mut at = thread * 1_000_003;
                while Instant::now() < end {
                    let mut client = Client::of(server);
                    connected.fetch_add(1, Relaxed);
                    // A connection of its own for one in so many, others last.
                    for _ in 0..[1, 50, 2000][at as usize % 3] {
                        if Instant::now() >= end {
                            break;
                        }
                        at += 1;
                        work(&mut client, at);
                        done.fetch_add(1, Relaxed);
                    }
                    if at.is_multiple_of(2) {
                        // One that goes without a word, and one in the middle of something.
                        drop(client.0.get_mut().write_all(&message(b'Q', b"BEGIN; CALL transfer(1, 2, 5.00)\0")));
                    }
                }
            });
        }
        let mut last = 0;
        while Instant::now() < end {
            std::thread::sleep(Duration::from_millis(250));
            memory.push(resident(&server));
            if begun.elapsed().as_secs() / 15 > last {
                last = begun.elapsed().as_secs() / 15;
                println!("{} s: {} KiB, {} done", last * 15, memory[memory.len() - 1], done.load(Relaxed));
            }
        }
    });
    let third = |at: usize| {
        let third = &memory[memory.len() * at / 3..memory.len() * (at + 1) / 3];
        third.iter().sum::<u64>() / third.len() as u64
    };
    let (second, last) = (third(1), third(2));
    println!("{} done on {} connections; {second} KiB, then {last} KiB", done.load(Relaxed), connected.load(Relaxed));
    assert_eq!(cents(&mut first), 200_000);
    until_no_more(&server, &files);
    assert!(done.into_inner() > 0, "no statement was answered");
    // In a few seconds everything is still on its way to the size that it has.
    let allowed = if seconds < 60 { memory[0] + (150 << 10) } else { second + second / 20 };
    assert!(last < allowed, "{} KiB, {second} KiB, then {last} KiB", memory[0]);
    drop(first);
    assert_eq!(server.end(), Some(0));
}
