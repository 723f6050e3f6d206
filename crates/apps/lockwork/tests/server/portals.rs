//! Portals of `lockwork serve`: when they end, and what waits in them.

use crate::BANK;
use crate::client::{Client, message};
use crate::server::Server;

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
fn portals_behind_a_savepoint_end_when_a_transaction_goes_back_to_it() {
    let server = Server::start(&["--init", BANK]);
    let mut client = Client::of(&server);
    let text = "SELECT id FROM accounts WHERE id BETWEEN 1 AND 2 LIMIT 2";
    let parse = message(b'P', format!("s\0{text}\0\0\0").as_bytes());
    let bind = |name: &str| message(b'B', format!("{name}\0s\0\0\0\0\0\0\0").as_bytes());
    let run = |name: &str| message(b'E', &[name.as_bytes(), b"\0", &1_u32.to_be_bytes()].concat());
    let close = |name: &str| message(b'C', format!("P{name}\0").as_bytes());
    let ask = |client: &mut Client, messages: &[Vec<u8>]| {
        client.ask(&[messages.concat(), message(b'S', b"")].concat()).unwrap()
    };
    client.query("BEGIN").unwrap();
    let opened = [parse, bind("before"), run("before"), bind("closed"), close("closed")];
    assert_eq!(ask(&mut client, &opened), "1\nmore");
    client.query("SAVEPOINT a").unwrap();
    assert_eq!(ask(&mut client, &[bind("closed"), run("closed"), bind("fresh"), bind("")]), "1\nmore");
    assert_eq!(client.query("SAVEPOINT b; RELEASE a; SAVEPOINT b; ROLLBACK TO b").unwrap().lines().count(), 4);
    assert_eq!(ask(&mut client, &[run("closed")]), "2\nmore");
    client.query("SAVEPOINT c").unwrap();
    ask(&mut client, &[bind("late")]);
    assert!(client.query("SELECT nope FROM accounts WHERE id = 1").unwrap().starts_with("ERROR 42703"));
    // A transaction that has failed answers nothing, also what waits in a portal.
    assert!(ask(&mut client, &[run("before")]).starts_with("ERROR 25P02"));
    client.query("ROLLBACK TO c").unwrap();
    assert!(ask(&mut client, &[run("late")]).starts_with("ERROR 34000"));
    client.query("ROLLBACK TO b").unwrap();
    assert_eq!(ask(&mut client, &[run("before")]), "2\nmore");
    client.query("ROLLBACK; BEGIN").unwrap();
    ask(&mut client, &[bind("before")]);
    client.query("SAVEPOINT a").unwrap();
    ask(&mut client, &[bind("closed"), bind("fresh"), bind("")]);
    client.query("ROLLBACK TO a").unwrap();
    for name in ["closed", "fresh", ""] {
        assert!(ask(&mut client, &[run(name)]).starts_with("ERROR 34000"), "{name}");
        client.query("ROLLBACK TO a").unwrap();
    }
    // The names are free again, and what stood before the savepoint goes on.
    assert_eq!(ask(&mut client, &[bind("fresh"), run("fresh"), run("before")]), "1\nmore\n1\nmore");
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

#[test]
fn names_are_taken_once_and_formats_fit() {
    let server = Server::start(&["--init", BANK]);
    let mut client = Client::of(&server);
    let parse = |name: &str, text: &str| message(b'P', format!("{name}\0{text}\0\0\0").as_bytes());
    // The formats of the parameters, the value 1 for each of them, and the formats of the columns.
    let bind = |portal: &str, name: &str, given: &[u16], values: u16, wanted: &[u16]| {
        let list = |codes: &[u16]| {
            let all = [&[codes.len() as u16], codes].concat();
            all.into_iter().flat_map(u16::to_be_bytes).collect::<Vec<_>>()
        };
        let values = [values.to_be_bytes().to_vec(), b"\0\0\0\x011".repeat(values.into())].concat();
        let names = format!("{portal}\0{name}\0").into_bytes();
        message(b'B', &[names, list(given), values, list(wanted)].concat())
    };
    let close = |what: &str| message(b'C', format!("{what}\0").as_bytes());
    let run = |name: &str| message(b'E', &[name.as_bytes(), b"\0", &0_u32.to_be_bytes()].concat());
    let mut ask = |messages: &[Vec<u8>]| client.ask(&[messages.concat(), message(b'S', b"")].concat()).unwrap();
    let balance = "SELECT id, balance FROM accounts WHERE id = $1";
    let insert = "INSERT INTO accounts VALUES ($1, 7)";
    assert_eq!(ask(&[parse("s", balance), parse("i", insert), parse("e", ""), parse("", ""), parse("", "")]), "");
    for (messages, expected) in [
        (vec![parse("s", balance)], "ERROR 42P05"),
        (vec![parse("e", "")], "ERROR 42P05"),
        (vec![parse("s", "SELECT nope FROM accounts WHERE id = 1")], "ERROR 42703"),
        (vec![close("Ss"), parse("s", balance), bind("", "s", &[], 1, &[]), run("")], "1|1000.00\nSELECT 1"),
        (vec![bind("p", "s", &[], 1, &[]), bind("p", "s", &[], 1, &[])], "ERROR 42P03"),
        (vec![bind("p", "e", &[], 0, &[]), bind("p", "e", &[], 0, &[])], "ERROR 42P03"),
        (vec![bind("p", "s", &[], 1, &[]), close("Pp"), bind("p", "s", &[], 1, &[]), run("p")], "1|1000.00\nSELECT 1"),
        (vec![bind("", "s", &[], 1, &[]), bind("", "s", &[0], 1, &[0, 0]), run("")], "1|1000.00\nSELECT 1"),
        (vec![bind("", "s", &[], 1, &[1]), run("")], "\0"),
        (vec![bind("", "s", &[], 1, &[0; 3])], "ERROR 08P01"),
        (vec![bind("", "s", &[0; 2], 1, &[])], "ERROR 08P01"),
        (vec![bind("", "s", &[], 1, &[0, 2])], "ERROR 22023"),
        (vec![bind("", "s", &[], 1, &[u16::MAX])], "ERROR 22023"),
        (vec![bind("", "s", &[2], 1, &[])], "ERROR 22023"),
        // What answers no columns has no formats.
        (vec![bind("", "i", &[], 1, &[7; 3]), run("")], "ERROR 23505"),
    ] {
        let answered = ask(&messages);
        assert!(answered.starts_with(expected), "{answered:?}, and not {expected:?}");
    }
    assert_eq!(server.end(), Some(0));
}
