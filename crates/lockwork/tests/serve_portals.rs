//! Portals of `lockwork serve`: when they end, and what waits in them.

#[path = "common/client.rs"]
#[allow(dead_code, reason = "others use the rest")]
mod client;
#[path = "common/server.rs"]
#[allow(dead_code, reason = "others use the rest")]
mod server;

use client::{Client, message};
use server::Server;

const BANK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/bank.sql");

#[test]
fn portals_end_with_their_transaction() {
    let server = Server::start(&["--init", BANK]);
    let mut client = Client::of(&server);
    let parse = |name: &str, text: &str| message(b'P', format!("{name}\0{text}\0\0\0").as_bytes());
    let bind = |name: &str| message(b'B', format!("{name}\0{name}\0\0\0\0\0\0\0").as_bytes());
    let run = |name: &str, most: u32| message(b'E', &[name.as_bytes(), b"\0", &most.to_be_bytes()].concat());
    let sync = message(b'S', b"");
    client.query("BEGIN").unwrap();
    let inserted = [
        parse("i", "INSERT INTO accounts VALUES (9, 0)"),
        bind("i"),
        parse("c", "COMMIT"),
        bind("c"),
        run("c", 0),
        run("i", 0),
        sync.clone(),
    ];
    let answered = client.ask(&inserted.concat()).unwrap();
    assert!(answered.contains("COMMIT") && answered.contains("ERROR 34000"), "{answered}");
    client.query("BEGIN").unwrap();
    let begun = [parse("s", "SELECT id FROM accounts WHERE id BETWEEN 1 AND 2 LIMIT 2"), bind("s"), run("s", 1)];
    let answered = client.ask(&[begun.concat(), sync.clone()].concat()).unwrap();
    assert!(answered.contains("1\nmore"), "{answered}");
    client.query("ROLLBACK").unwrap();
    assert!(client.ask(&[run("s", 1), sync].concat()).unwrap().starts_with("ERROR 34000"));
    assert_eq!(client.query("SELECT count(*) FROM accounts").unwrap(), "2\nSELECT 1");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn answers_that_wait_in_portals_have_a_bound() {
    let server = Server::start(&[]);
    let mut client = Client::of(&server);
    client.query("CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(1000) NOT NULL)").unwrap();
    let values: Vec<String> = (0..1000).map(|id| format!("({id}, '{}')", "x".repeat(900))).collect();
    for (at, some) in values.chunks(50).enumerate() {
        let inserted = client.query(&format!("INSERT INTO t VALUES {}", some.join(", "))).unwrap();
        assert_eq!(inserted, "INSERT 0 50", "{at}");
    }
    // 27 MB each.
    let parse = message(b'P', b"q\0SELECT a.name FROM t a, t b WHERE b.id < 30\0\0\0");
    let mut messages = vec![message(b'Q', b"BEGIN\0"), parse];
    for at in 0..20 {
        messages.push(message(b'B', format!("p{at}\0q\0\0\0\0\0\0\0").as_bytes()));
        messages.push(message(b'E', &[format!("p{at}\0").as_bytes(), &1_u32.to_be_bytes()].concat()));
    }
    client.ask(&messages[0]).unwrap();
    messages.push(message(b'S', b""));
    let answered = client.ask(&messages[1..].concat()).unwrap();
    let (waiting, end) = (answered.matches("more").count(), answered.lines().last().unwrap_or_default());
    assert!((5..12).contains(&waiting) && end.contains("53200"), "{waiting} {end}");
    client.query("ROLLBACK").unwrap();
    assert_eq!(client.query("SELECT count(*) FROM t").unwrap(), "1000\nSELECT 1");
    assert_eq!(server.end(), Some(0));
}
