//! `CALL ... REQUEST id` at `lockwork serve`: a call that is repeated with its id is made once, also when the server
//! was killed before it answered.

use std::io::Write;
use std::time::Duration;

use crate::BANK;
use crate::client::{Client, execute, message};
use crate::folder::{Folder, command};
use crate::server::{Server, program};

const BALANCE: &str = "SELECT balance FROM accounts WHERE id = 1";

fn expect(client: &mut Client, expected: &[(&str, &str)]) {
    for (text, answer) in expected {
        assert_eq!(client.query(text).unwrap(), *answer, "{text}");
    }
}

/// Prepares a statement, and binds its last parameter to a BIGINT in binary.
fn prepared(client: &mut Client, text: &str, id: i64) -> String {
    let parse = message(b'P', &[b"\0", text.as_bytes(), b"\0\0\0"].concat());
    let value = [&8_u32.to_be_bytes()[..], &id.to_be_bytes()].concat();
    let bind = message(b'B', &[&[0, 0, 0, 1, 0, 1, 0, 1][..], &value, &[0, 0]].concat());
    client.ask(&[parse, bind, execute(0), message(b'S', b"")].concat()).unwrap()
}

#[test]
fn a_call_with_an_id_is_made_once() {
    let server = Server::start(&["--init", BANK]);
    let mut client = Client::of(&server);
    expect(
        &mut client,
        &[
            ("CALL transfer(1, 2, 1) REQUEST 17", "999.00\nCALL"),
            ("CALL transfer(1, 2, 1) request 17 ;", "999.00\nCALL"),
            ("CALL transfer(1, 2, 1) /* REQUEST 18 */ REQUEST -- 19\n 17", "999.00\nCALL"),
            (BALANCE, "999.00\nSELECT 1"),
            // Two statements are two transactions, and the largest id is one like others.
            (
                "CALL transfer(1, 2, 1) REQUEST 9223372036854775807; CALL transfer(1, 2, 1)",
                "998.00\nCALL\n997.00\nCALL",
            ),
            ("CALL transfer(1, 2, 1) REQUEST 9223372036854775807", "998.00\nCALL"),
            // What was taken back was answered too; the money that comes later changes nothing.
            ("CALL transfer(1, 2, 1500) REQUEST 20", "ERROR BK001 not enough money"),
            ("CALL transfer(2, 1, 900)", "103.00\nCALL"),
            ("CALL transfer(1, 2, 1500) REQUEST 20", "ERROR BK001 not enough money"),
            ("CALL transfer(1, 2, 1500) REQUEST 21", "397.00\nCALL"),
        ],
    );
    let takes = "takes [20, 20, 1700, 20]";
    let text = "CALL transfer($1, $2, $3) REQUEST $4";
    for _ in 0..2 {
        let answer = client.prepared(text, &["1", "2", "7", "22"]).unwrap();
        assert_eq!(answer, format!("{takes}\n390.00\nCALL"));
    }
    assert_eq!(prepared(&mut client, "CALL transfer(1, 2, 7) REQUEST $1", 22), "390.00\nCALL");
    assert_eq!(prepared(&mut client, "CALL transfer(1, 2, 7) REQUEST $1", 23), "383.00\nCALL");
    if let Some(mut psql) = program("psql") {
        psql.args(["-h", "127.0.0.1", "-p", &server.port.to_string(), "-U", "ann", "-X", "-A", "-t", "bank", "-c"]);
        let output = psql.arg("CALL transfer(1, 2, 7) REQUEST 23").output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "383.00\n", "{output:?}");
    }
    // Other connections have the same ids.
    expect(
        &mut Client::of(&server),
        &[("CALL transfer(1, 2, 7) REQUEST 23", "383.00\nCALL"), (BALANCE, "383.00\nSELECT 1")],
    );
    assert_eq!(server.end(), Some(0));
}

#[test]
fn what_is_no_id_and_where_there_is_none_is_refused() {
    let server = Server::start(&["--init", BANK]);
    let mut client = Client::of(&server);
    let again = "CREATE PROCEDURE other() AS BEGIN UPDATE accounts SET balance = 0 WHERE id = 1; END;";
    expect(&mut client, &[(again, "CREATE PROCEDURE"), ("CALL transfer(1, 2, 1) REQUEST 5", "999.00\nCALL")]);
    for (text, why) in [
        ("CALL transfer(1, 2, 1) REQUEST 0", "22023 0 is no id of a request, which is a BIGINT from 1 on"),
        ("CALL transfer(1, 2, 1) REQUEST -4", "22023 -4 is no id"),
        ("CALL transfer(1, 2, 1) REQUEST 9223372036854775808", "22023 9223372036854775808 is no id"),
        ("CALL transfer(1, 2, 1) REQUEST 1.5", "22023 1.5 is no id"),
        ("CALL transfer(1, 2, 1) REQUEST 'x'", "22023"),
        ("CALL transfer(1, 2, 1) REQUEST now()", "22023"),
        ("CALL transfer(1, 2, 1) REQUEST", "42601"),
        ("CALL transfer(1, 2, 1) REQUEST 6 7", "42601"),
        ("CALL transfer(1, 2, 1) REQUEST $1", "42P02"),
        ("CALL transfer(1, 2, 1) TWICE", "42601"),
        ("CALL MANY transfer($1, 2, 1) REQUEST 6", "0A000 the id of a request is for one call"),
        ("SELECT balance FROM accounts WHERE id = 1 REQUEST 6", "42601"),
        ("CALL other() REQUEST 5", "22R01 request id 5 was used before, for a call of another procedure"),
    ] {
        let answer = client.query(text).unwrap();
        assert!(answer.starts_with(&format!("ERROR {why}")), "{text}: {answer}");
    }
    for id in [0, -1, i64::MIN] {
        let answer = prepared(&mut client, "CALL transfer(1, 2, 1) REQUEST $1", id);
        assert_eq!(answer, format!("ERROR 22023 {id} is no id of a request, which is a BIGINT from 1 on"));
    }
    let inside = "ERROR 25001 a CALL with the id of a request is a transaction of its own, and cannot be part of one";
    expect(
        &mut client,
        &[
            ("BEGIN", "BEGIN"),
            ("CALL transfer(1, 2, 1) REQUEST 30", inside),
            ("COMMIT", "ROLLBACK"),
            (BALANCE, "999.00\nSELECT 1"),
            ("CALL transfer(1, 2, 1) REQUEST 30", "998.00\nCALL"),
        ],
    );
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_prepared_call_with_an_id_follows_its_procedure() {
    let server = Server::start(&["--init", BANK]);
    let mut client = Client::of(&server);
    let parse = message(b'P', b"a\0CALL transfer(1, 2, 1) REQUEST 40\0\0\0");
    assert_eq!(client.ask(&[parse, message(b'S', b"")].concat()).unwrap(), "");
    let bind = message(b'B', b"\0a\0\0\0\0\0\0\0");
    let run = [bind, execute(0), message(b'S', b"")].concat();
    assert_eq!(client.ask(&run).unwrap(), "999.00\nCALL");
    let text = std::fs::read_to_string(BANK).unwrap();
    let from = text.find("CREATE PROCEDURE").unwrap();
    let replaced = text[from..text.find("$$;\n").unwrap() + 3].replace("CREATE", "CREATE OR REPLACE");
    assert_eq!(client.query(&replaced).unwrap(), "CREATE PROCEDURE");
    // Another procedure of the same name is another one.
    assert!(client.ask(&run).unwrap().starts_with("ERROR 22R01 request id 40"));
    expect(&mut client, &[(BALANCE, "999.00\nSELECT 1")]);
}

#[test]
fn a_call_whose_answer_was_lost_with_the_server_is_made_once() {
    let folder = Folder::new("serve-requests");
    let data = folder.0.to_str().unwrap().to_string();
    let start = || Server::start(&["--data", &data, "--init", BANK]);
    for round in 1..=8 {
        let mut server = start();
        assert!(server.ready.starts_with("ready: "));
        let text = format!("CALL transfer(1, 2, 1) REQUEST {round}");
        let mut lost = Client::of(&server);
        lost.0.get_mut().write_all(&message(b'Q', format!("{text}\0").as_bytes())).unwrap();
        if round % 2 == 0 {
            // It has happened: who sees it says that it is durable.
            let done = format!("{}.00\nSELECT 1", 1000 - round);
            let mut other = Client::of(&server);
            while other.query(BALANCE).unwrap() != done {}
        } else {
            // Before it, while it runs, or behind it.
            std::thread::sleep(Duration::from_micros(300 * (round - 1)));
        }
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        drop(lost);
        let server = start();
        let mut client = Client::of(&server);
        let answer = format!("{}.00\nCALL", 1000 - round);
        expect(&mut client, &[(&text, &answer), (&text, &answer)]);
        expect(&mut client, &[(BALANCE, &format!("{}.00\nSELECT 1", 1000 - round))]);
        assert_eq!(server.end(), Some(0));
    }
}

#[test]
fn a_folder_knows_them_too() {
    let folder = Folder::new("sql-requests");
    let data = folder.0.to_str().unwrap();
    assert_eq!(command(&["sql", data, "--file", BANK], "").0, Some(0));
    for _ in 0..2 {
        let (code, text, error) = command(&["sql", data, "--output", "csv"], "CALL transfer(1, 2, 1) REQUEST 17;");
        assert_eq!((code, text.as_str(), error.as_str()), (Some(0), "left\n999.00\n", ""));
    }
    let (code, _, error) = command(&["sql", data], "CALL transfer(1, 2, 1) REQUEST 0;");
    assert!(code == Some(2) && error.contains("line 1, column 32: error 22023: 0 is no id"), "{error}");
    let server = Server::start(&["--data", data]);
    let address = format!("127.0.0.1:{}", server.port);
    let (code, text, error) =
        command(&["sql", &address, "--output", "csv"], "CALL transfer(1, 2, 1) REQUEST 17; CALL transfer(1, 2, 1);");
    assert_eq!((code, text.as_str(), error.as_str()), (Some(0), "left\n999.00\nleft\n998.00\n", ""));
    assert_eq!(server.end(), Some(0));
}
