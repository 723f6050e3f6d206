//! `CALL ... REQUEST id` at `lockwork serve`: a call that is repeated with its id is made once, also when the server
//! was killed before it answered.

use std::io::Write;
use std::time::{Duration, SystemTime};

use lockwork::{RequestId, request_id};

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

fn id() -> RequestId {
    request_id().unwrap()
}

/// An id that was made so many milliseconds before now.
fn id_of_before(age_ms: u64) -> RequestId {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
    RequestId::new(now - age_ms, [age_ms as u8; 10])
}

/// Prepares a statement, and binds its only parameter in binary; the server is told its type, if it has one.
fn prepared(client: &mut Client, text: &str, value: &[u8], oid: u32) -> String {
    let parse = message(b'P', &[b"\0", text.as_bytes(), b"\0\0\x01", &oid.to_be_bytes()].concat());
    let value = [&(value.len() as u32).to_be_bytes()[..], value].concat();
    let bind = message(b'B', &[&[0, 0, 0, 1, 0, 1, 0, 1][..], &value, &[0, 0]].concat());
    client.ask(&[parse, bind, execute(0), message(b'S', b"")].concat()).unwrap()
}

const UUID: u32 = 2950;
const BIGINT: u32 = 20;
const TEXT: u32 = 25;

#[test]
fn a_call_with_an_id_is_made_once() {
    let server = Server::start(&["--init", BANK]);
    let mut client = Client::of(&server);
    let [a, b, c, d, e, f] = [(); 6].map(|()| id());
    let upper = a.to_string().to_uppercase();
    expect(
        &mut client,
        &[
            (&format!("CALL transfer(1, 2, 1) REQUEST '{a}'"), "999.00\nCALL"),
            (&format!("CALL transfer(1, 2, 1) request '{upper}' ;"), "999.00\nCALL"),
            (&format!("CALL transfer(1, 2, 1) /* REQUEST '{b}' */ REQUEST -- 19\n '{a}'"), "999.00\nCALL"),
            (BALANCE, "999.00\nSELECT 1"),
            // Two statements are two transactions.
            (&format!("CALL transfer(1, 2, 1) REQUEST '{b}'; CALL transfer(1, 2, 1)"), "998.00\nCALL\n997.00\nCALL"),
            (&format!("CALL transfer(1, 2, 1) REQUEST '{b}'"), "998.00\nCALL"),
            // What was taken back was answered too; the money that comes later changes nothing.
            (&format!("CALL transfer(1, 2, 1500) REQUEST '{c}'"), "ERROR BK001 not enough money"),
            ("CALL transfer(2, 1, 900)", "103.00\nCALL"),
            (&format!("CALL transfer(1, 2, 1500) REQUEST '{c}'"), "ERROR BK001 not enough money"),
            (&format!("CALL transfer(1, 2, 1500) REQUEST '{d}'"), "397.00\nCALL"),
        ],
    );
    let takes = "takes [20, 20, 1700, 2950]";
    let text = "CALL transfer($1, $2, $3) REQUEST $4";
    for _ in 0..2 {
        let answer = client.prepared(text, &["1", "2", "7", &e.to_string()]).unwrap();
        assert_eq!(answer, format!("{takes}\n390.00\nCALL"));
    }
    let text = "CALL transfer(1, 2, 7) REQUEST $1";
    assert_eq!(prepared(&mut client, text, &e.to_bytes(), 0), "390.00\nCALL");
    assert_eq!(prepared(&mut client, text, &f.to_bytes(), UUID), "383.00\nCALL");
    assert_eq!(prepared(&mut client, text, f.to_string().as_bytes(), TEXT), "383.00\nCALL");
    if let Some(mut psql) = program("psql") {
        psql.args(["-h", "127.0.0.1", "-p", &server.port.to_string(), "-U", "ann", "-X", "-A", "-t", "bank", "-c"]);
        let output = psql.arg(format!("CALL transfer(1, 2, 7) REQUEST '{f}'")).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "383.00\n", "{output:?}");
    }
    // Other connections have the same ids.
    let text = format!("CALL transfer(1, 2, 7) REQUEST '{f}'");
    expect(&mut Client::of(&server), &[(&text, "383.00\nCALL"), (BALANCE, "383.00\nSELECT 1")]);
    assert_eq!(server.end(), Some(0));
}

#[test]
fn the_server_and_the_command_make_ids() {
    let server = Server::start(&["--init", BANK]);
    let mut client = Client::of(&server);
    let mut made: Vec<RequestId> = (0..2)
        .map(|_| client.query("SELECT uuidv7()").unwrap().strip_suffix("\nSELECT 1").unwrap().parse().unwrap())
        .collect();
    let rows = client.query("SELECT uuidv7() AS id, g FROM generate_series(1, 2) g").unwrap();
    made.extend(rows.lines().take(2).map(|row| row.split('|').next().unwrap().parse::<RequestId>().unwrap()));
    // A prepared statement makes another one each time.
    let parse = message(b'P', b"a\0SELECT uuidv7()\0\0\0");
    let run = [message(b'B', b"\0a\0\0\0\0\0\0\0"), execute(0)].concat();
    let answers = client.ask(&[parse, run.clone(), run, message(b'S', b"")].concat()).unwrap();
    made.extend(answers.lines().filter_map(|line| line.parse::<RequestId>().ok()));
    for _ in 0..2 {
        let (code, text, error) = command(&["request-id"], "");
        assert_eq!((code, error.as_str()), (Some(0), ""));
        made.push(text.trim_end().parse().unwrap());
    }
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
    assert!(made.iter().all(|id| now - id.unix_ms() < 60_000), "{made:?}");
    made.sort_unstable();
    made.dedup();
    assert_eq!(made.len(), 8);
    let text = format!("CALL transfer(1, 2, 1) REQUEST '{}'", made[0]);
    expect(&mut client, &[(&text, "999.00\nCALL"), (&text, "999.00\nCALL")]);
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_call_is_made_once_though_70_000_others_come_before_its_repetition() {
    let server = Server::start(&["--init", BANK]);
    let mut client = Client::of(&server);
    let first = format!("CALL transfer(1, 2, 1) REQUEST '{}'", id());
    expect(&mut client, &[(&first, "999.00\nCALL")]);
    for _ in 0..70 {
        let calls: Vec<String> = (0..1000).map(|_| format!("CALL transfer(2, 2, 0) REQUEST '{}'", id())).collect();
        let answer = client.query(&calls.join(";")).unwrap();
        assert_eq!(answer.lines().filter(|line| *line == "CALL").count(), 1000, "{answer:.200}");
    }
    expect(&mut client, &[(&first, "999.00\nCALL"), (BALANCE, "999.00\nSELECT 1")]);
    assert_eq!(server.end(), Some(0));
}

#[test]
fn an_id_that_may_have_been_forgotten_is_refused() {
    let folder = Folder::new("serve-old-requests");
    let data = folder.0.to_str().unwrap().to_string();
    // So much memory that eight thousand ids fit.
    let words = ["--data", &data, "--init", BANK, "--request-window", "100", "--request-memory", "1"];
    let mut server = Server::start(&words);
    let mut client = Client::of(&server);
    let call = |id: RequestId| format!("CALL transfer(1, 2, 1) REQUEST '{id}'");
    for age in [101_000, 86_400_000] {
        let answer = client.query(&call(id_of_before(age))).unwrap();
        assert!(answer.starts_with("ERROR 22R02 request id ") && answer.contains(" is too old"), "{answer}");
    }
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
    let answer = client.query(&call(RequestId::new(now + 120_000, [0; 10]))).unwrap();
    assert!(answer.starts_with("ERROR 22R03 ") && answer.contains("ahead of this server's clock"), "{answer}");
    expect(&mut client, &[(BALANCE, "1000.00\nSELECT 1")]);
    let first = call(id_of_before(50_000));
    expect(&mut client, &[(&first, "999.00\nCALL"), (&first, "999.00\nCALL")]);
    for _ in 0..9 {
        let calls: Vec<String> = (0..1000).map(|_| format!("CALL transfer(2, 2, 0) REQUEST '{}'", id())).collect();
        client.query(&calls.join(";")).unwrap();
    }
    for _ in 0..2 {
        for text in [&first, &call(id_of_before(60_000))] {
            let answer = client.query(text).unwrap();
            assert!(answer.starts_with("ERROR 22R02 ") && answer.contains(" is too old"), "{answer}");
        }
        expect(&mut client, &[(BALANCE, "999.00\nSELECT 1")]);
        // Also when it begins again.
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        server = Server::start(&words);
        client = Client::of(&server);
    }
    // What is in the files has the ids.
    assert_eq!(server.end(), Some(0));
    let (code, text, error) = command(&["inspect", "log", &data], "");
    assert!(code == Some(0) && text.contains("1 transfer (request id "), "{text:.300} {error}");
}

#[test]
fn what_is_no_id_and_where_there_is_none_is_refused() {
    let server = Server::start(&["--init", BANK]);
    let mut client = Client::of(&server);
    let again = "CREATE PROCEDURE other() AS BEGIN UPDATE accounts SET balance = 0 WHERE id = 1; END;";
    let (used, fresh) = (id(), id());
    let text = format!("CALL transfer(1, 2, 1) REQUEST '{used}'");
    expect(&mut client, &[(again, "CREATE PROCEDURE"), (&text, "999.00\nCALL")]);
    let reused = format!("22R01 request id {used} was used before, for a call of procedure 'transfer'");
    for (text, why) in [
        ("CALL transfer(1, 2, 1) REQUEST 17", "22023 17 is no request id, which is a UUID of version 7 in quotes"),
        ("CALL transfer(1, 2, 1) REQUEST -4", "22023 -4 is no request id"),
        ("CALL transfer(1, 2, 1) REQUEST 1.5", "22023 1.5 is no request id"),
        ("CALL transfer(1, 2, 1) REQUEST 'x'", "22023 x is no request id"),
        ("CALL transfer(1, 2, 1) REQUEST 'c2f0ea4b-9a1e-4f0e-8a53-7f1c8f0e7d11'", "22023 c2f0ea4b"),
        ("CALL transfer(1, 2, 1) REQUEST now()", "22023"),
        ("CALL transfer(1, 2, 1) REQUEST", "42601"),
        (&format!("{text} 7"), "42601"),
        ("CALL transfer(1, 2, 1) REQUEST $1", "42P02"),
        ("CALL transfer(1, 2, 1) TWICE", "42601"),
        (&format!("CALL MANY transfer($1, 2, 1) REQUEST '{fresh}'"), "0A000 the id of a request is for one call"),
        (&format!("SELECT balance FROM accounts WHERE id = 1 REQUEST '{fresh}'"), "42601"),
        (&format!("CALL other() REQUEST '{used}'"), &format!("{reused}, and this one is of procedure 'other'")),
        (&format!("CALL transfer(1, 2, 2) REQUEST '{used}'"), &format!("{reused} with other arguments")),
    ] {
        let answer = client.query(text).unwrap();
        assert!(answer.starts_with(&format!("ERROR {why}")), "{text}: {answer}");
    }
    for number in [0, 17, i64::MIN] {
        let answer = prepared(&mut client, "CALL transfer(1, 2, 1) REQUEST $1", &number.to_be_bytes(), BIGINT);
        assert!(answer.starts_with(&format!("ERROR 22023 {number} is no request id")), "{answer}");
    }
    let answer = prepared(&mut client, "CALL transfer(1, 2, 1) REQUEST $1", &[7; 16], UUID);
    assert!(answer.starts_with("ERROR 22023 07070707-0707-0707-0707-070707070707 is no request id"), "{answer}");
    let inside = "ERROR 25001 a CALL with the id of a request is a transaction of its own, and cannot be part of one";
    let text = format!("CALL transfer(1, 2, 1) REQUEST '{fresh}'");
    expect(
        &mut client,
        &[
            ("BEGIN", "BEGIN"),
            (&text, inside),
            ("COMMIT", "ROLLBACK"),
            (BALANCE, "999.00\nSELECT 1"),
            (&text, "998.00\nCALL"),
        ],
    );
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_prepared_call_with_an_id_follows_its_procedure() {
    let server = Server::start(&["--init", BANK]);
    let mut client = Client::of(&server);
    let id = id();
    let text = format!("a\0CALL transfer(1, 2, 1) REQUEST '{id}'\0\0\0");
    let parse = message(b'P', text.as_bytes());
    assert_eq!(client.ask(&[parse, message(b'S', b"")].concat()).unwrap(), "");
    let bind = message(b'B', b"\0a\0\0\0\0\0\0\0");
    let run = [bind, execute(0), message(b'S', b"")].concat();
    assert_eq!(client.ask(&run).unwrap(), "999.00\nCALL");
    let text = std::fs::read_to_string(BANK).unwrap();
    let from = text.find("CREATE PROCEDURE").unwrap();
    let replaced = text[from..text.find("$$;\n").unwrap() + 3].replace("CREATE", "CREATE OR REPLACE");
    assert_eq!(client.query(&replaced).unwrap(), "CREATE PROCEDURE");
    // Another procedure of the same name is another one.
    let answer = client.ask(&run).unwrap();
    let why = "was used before, for a call of an earlier definition of procedure 'transfer'";
    assert!(answer.starts_with(&format!("ERROR 22R01 request id {id} {why}")), "{answer}");
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
        let text = format!("CALL transfer(1, 2, 1) REQUEST '{}'", id());
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
    let once = format!("CALL transfer(1, 2, 1) REQUEST '{}';", id());
    for _ in 0..2 {
        let (code, text, error) = command(&["sql", data, "--output", "csv"], &once);
        assert_eq!((code, text.as_str(), error.as_str()), (Some(0), "left\n999.00\n", ""));
    }
    let (code, _, error) = command(&["sql", data], "CALL transfer(1, 2, 1) REQUEST 17;");
    assert!(code == Some(2) && error.contains("line 1, column 32: error 22023: 17 is no request id"), "{error}");
    assert!(error.contains("SELECT uuidv7()"), "{error}");
    let server = Server::start(&["--data", data]);
    let address = format!("127.0.0.1:{}", server.port);
    let (code, text, error) =
        command(&["sql", &address, "--output", "csv"], &format!("{once} CALL transfer(1, 2, 1);"));
    assert_eq!((code, text.as_str(), error.as_str()), (Some(0), "left\n999.00\nleft\n998.00\n", ""));
    assert_eq!(server.end(), Some(0));
}
