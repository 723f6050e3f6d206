//! `lockwork serve`: PostgreSQL's own programs, a client of a few lines, and clients that behave badly.

use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::BANK;
use crate::client::{Client, bind, execute, message};
use crate::folder::{Folder, command};
use crate::server::{Server, program};

#[test]
fn psql_defines_calls_and_asks() {
    let Some(mut psql) = program("psql") else { return };
    let server = Server::start(&["--init", BANK]);
    assert!(server.ready.starts_with("ready: in memory, psql -h 127.0.0.1 -p "), "{}", server.ready);
    let script = "
        CALL transfer(1, 2, 25.00);
        SELECT * FROM accounts WHERE id BETWEEN 1 AND 2 ORDER BY id LIMIT 2;
        CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(10) NOT NULL, ok BOOLEAN NOT NULL, at TIMESTAMP NOT NULL);
        INSERT INTO t VALUES (1, 'it''s', TRUE, '2024-01-31 12:30:00'), (2, 'b', FALSE, '1969-12-31');
        SELECT * FROM t WHERE id = 1;
        UPDATE t SET ok = FALSE WHERE id = 1;
        DELETE FROM t WHERE id = 2;
        CREATE PROCEDURE add(a BIGINT, OUT b BIGINT) AS BEGIN b := a + 1; END;
        CALL add(41);
        CREATE OR REPLACE PROCEDURE add(a BIGINT, OUT b BIGINT) AS BEGIN b := a + 2; END;
        CALL add(41);
        SELECT 1 AS one;
        SHOW server_encoding;
        CALL transfer(1, 2, 1000000.00);
        SELECT nonsense;
        SELECT id FROM t WHERE id = 1;";
    let port = server.port.to_string();
    let words = ["-h", "127.0.0.1", "-p", &port, "-U", "ann", "-X", "-A", "-t", "bank"];
    let mut child =
        psql.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    // Several in one message, of which some are no business of the database.
    let mut client = Client::of(&server);
    let several = client.query("SET a = 1; SELECT 7; SELECT balance FROM accounts WHERE id = 1; SELECT x").unwrap();
    assert!(several.starts_with("SET\n7\nSELECT 1\n") && several.contains("975.00\nSELECT 1\nERROR"), "{several}");
    drop(client);
    let expected = "975.00\n1|975.00\n2|1025.00\nCREATE TABLE\nINSERT 0 2\n1|it's|t|2024-01-31 12:30:00\nUPDATE 1\n\
                    DELETE 1\nCREATE PROCEDURE\n42\nCREATE PROCEDURE\n43\n1\nUTF8\n1\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    let errors = String::from_utf8_lossy(&output.stderr);
    for expected in ["ERROR:  not enough money", "no column is called 'nonsense'"] {
        assert!(errors.contains(expected), "{errors}");
    }
    assert_eq!(server.end(), Some(0));
}

#[test]
fn psql_runs_the_file_of_the_example() {
    let server = Server::start(&[]);
    let port = server.port.to_string();
    let run = |what: &[&str]| {
        let words = ["-h", "127.0.0.1", "-p", &port, "-U", "ann", "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1"];
        let output = program("psql")?.args(words).args(what).arg("bank").output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Some((text(output.stdout), text(output.stderr)))
    };
    let Some(defined) = run(&["-f", BANK]) else { return };
    assert_eq!(defined, ("CREATE TABLE\nCREATE PROCEDURE\nINSERT 0 2\n".into(), String::new()));
    assert_eq!(run(&["-c", "CALL transfer(1, 2, 25.00)"]).unwrap().0, "975.00\n");
    // A body that stands free is cut by psql, and the error says so.
    let file = std::env::temp_dir().join(format!("lockwork-cut-{port}.sql"));
    let body = "BEGIN IF a = 1 THEN b := 2; END IF; b := 3; END;";
    std::fs::write(&file, format!("CREATE PROCEDURE cut(a BIGINT, OUT b BIGINT) AS {body}")).unwrap();
    let (_, errors) = run(&["-f", file.to_str().unwrap()]).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(errors.contains("at the end of the text") && errors.contains("between $$ and $$"), "{errors}");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn statements_are_prepared_bound_described_and_fetched() {
    // As PostgreSQL's catalogue has them.
    let (int8, numeric, int8s, numerics) = (20, 1700, 1016, 1231);
    let server = Server::start(&["--init", BANK]);
    let mut client = Client::of(&server);
    let call = client.prepared("CALL transfer($1, $2, $3)", &["1", "2", "0.50"]).unwrap();
    assert_eq!(call, format!("takes [{int8}, {int8}, {numeric}]\n999.50\nCALL"));
    let read = client.prepared("SELECT balance FROM accounts WHERE id = $1", &["2"]).unwrap();
    assert_eq!(read, format!("takes [{int8}]\n1000.50\nSELECT 1"));
    let many = "call many transfer($1, 2, $2)";
    let called = client.prepared(many, &["{1,1,1,9}", "{0.50,1000000.00,1.00,1}"]).unwrap();
    let expected =
        format!("takes [{int8s}, {numerics}]\n{{999.00,0.00,998.00,0.00}}|{{\"\",\"BK001\",\"\",\"P0002\"}}\nCALL");
    assert_eq!(called, expected);
    for (text, values, expected) in [
        (many, &["{1,1}", "{1}"][..], "22023"),
        (many, &["1", "{1}"], "22P02"),
        ("CALL MANY transfer(1, 2, 3)", &[], "CALL MANY needs parameters"),
        ("CALL MANY", &[], "42601"),
        ("SELECT balance FROM accounts WHERE id = $1", &["x"], "22P02"),
        ("SELECT balance FROM accounts WHERE id = $1", &[], "08P01"),
        ("CALL transfer(1, 2, 0); CALL transfer(1, 2, 0)", &[], "several statements"),
        ("CALL nothing($1)", &["1"], "42883"),
    ] {
        let refused = client.prepared(text, values).unwrap();
        assert!(refused.contains("ERROR") && refused.contains(expected), "{text}: {refused}");
    }
    assert!(client.query(many).unwrap().contains("42P02"));
    // Rows in portions; the portal goes with the next Sync, and an error before it skips the rest.
    client.query("CREATE TABLE t (id BIGINT PRIMARY KEY) WITH (ordered = true)").unwrap();
    client.query("INSERT INTO t VALUES (1), (2), (3)").unwrap();
    let parse = message(b'P', b"\0SELECT id FROM t WHERE id BETWEEN 1 AND 9 LIMIT 9\0\0\0");
    let sync = message(b'S', b"");
    let portions = [parse, bind(&[]), execute(2), execute(2), sync.clone()].concat();
    assert_eq!(client.ask(&portions).unwrap(), "1\n2\nmore\n3\nSELECT 1");
    let after_error = [execute(1), message(b'B', b"\0nothing\0\0\0\0\0\0\0"), execute(1), sync].concat();
    let answer = client.ask(&after_error).unwrap();
    assert!(answer.lines().count() == 1 && answer.contains("ERROR"), "{answer}");
    // A definition that changes what a prepared statement answers is told; one that does not is followed.
    let named = message(b'P', b"mine\0CALL transfer(1, 2, 1.00)\0\0\0");
    let run = [message(b'B', b"\0mine\0\0\0\0\0\0\0"), execute(0), message(b'S', b"")].concat();
    assert_eq!(client.ask(&[named, run.clone()].concat()).unwrap(), "997.00\nCALL");
    let version = |out: &str, value: &str| {
        format!(
            "CREATE OR REPLACE PROCEDURE transfer(from_id BIGINT, to_id BIGINT, amount DECIMAL(12, 2), OUT {out}) AS \
                 BEGIN {value}; END;"
        )
    };
    client.query(&version("left DECIMAL(12, 2)", "left := amount")).unwrap();
    assert_eq!(client.ask(&run).unwrap(), "1.00\nCALL");
    client.query(&version("other BIGINT", "other := 7")).unwrap();
    assert!(client.ask(&run).unwrap().contains("0A000"));
    assert_eq!(server.end(), Some(0));
}

/// Bind, Execute of as many rows each, Sync: what comes of it.
fn executed(client: &mut Client, text: &str, most: &[u32]) -> String {
    let parse = message(b'P', &[b"\0", text.as_bytes(), b"\0\0\0"].concat());
    let executes = most.iter().flat_map(|most| execute(*most)).collect();
    client.ask(&[parse, bind(&[]), executes, message(b'S', b"")].concat()).unwrap()
}

#[test]
fn a_portal_is_executed_once() {
    let server = Server::start(&["--init", BANK]);
    let mut client = Client::of(&server);
    let again = executed(&mut client, "CALL transfer(1, 2, 1.00)", &[0, 0]);
    assert_eq!(again, "999.00\nCALL\nSELECT 0");
    let again = executed(&mut client, "UPDATE accounts SET balance = 5 WHERE id = 2", &[0, 0]);
    assert!(again.starts_with("UPDATE 1\nERROR 55000"), "{again}");
    let select = "SELECT id FROM accounts WHERE id BETWEEN 1 AND 2 LIMIT 2";
    assert_eq!(executed(&mut client, select, &[2, 2]), "1\n2\nmore\nSELECT 0");
    // As many as a client may ask for.
    assert_eq!(executed(&mut client, select, &[1, u32::MAX >> 1]), "1\nmore\n2\nSELECT 1");
    assert_eq!(client.query("SELECT balance FROM accounts WHERE id = 1").unwrap(), "999.00\nSELECT 1");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn what_is_deallocated_is_gone_and_takes_no_room() {
    let server = Server::start(&["--init", BANK]);
    let mut client = Client::of(&server);
    let parse = |name: &str, text: &str| message(b'P', &[name.as_bytes(), b"\0", text.as_bytes(), b"\0\0\0"].concat());
    let describe = |name: &str| message(b'D', &[b"S", name.as_bytes(), b"\0"].concat());
    let sync = message(b'S', b"");
    let read = "SELECT balance FROM accounts WHERE id = $1";
    let names = ["a", "b", "c", "Mixed", ""];
    client.ask(&[names.map(|name| parse(name, read)).concat(), sync.clone()].concat()).unwrap();
    let there = |client: &mut Client| -> Vec<&str> {
        let is_there = |name: &&str| client.ask(&[describe(name), sync.clone()].concat()).unwrap() == "takes [20]";
        names.into_iter().filter(is_there).collect()
    };
    assert_eq!(there(&mut client), names);
    assert_eq!(client.query("DEALLOCATE A; DEALLOCATE PREPARE \"Mixed\"").unwrap(), "DEALLOCATE\nDEALLOCATE");
    assert_eq!(there(&mut client), ["b", "c", ""]);
    let gone = client.query("DEALLOCATE a").unwrap();
    assert_eq!(gone, "ERROR 26000 there is no prepared statement called 'a'");
    client.ask(&[message(b'C', b"Sb\0"), sync.clone()].concat()).unwrap();
    assert!(client.query("DEALLOCATE b").unwrap().contains("26000"));
    assert!(client.query("DEALLOCATE \"\"").unwrap().starts_with("ERROR"));
    assert!(client.query("BEGIN; DISCARD ALL").unwrap().contains("25001"));
    assert_eq!(client.query("ROLLBACK; DISCARD PLANS").unwrap(), "ROLLBACK\nDISCARD PLANS");
    assert_eq!(there(&mut client), ["c", ""]);
    assert_eq!(client.prepared("DISCARD ALL", &[]).unwrap(), "takes []\nDISCARD ALL");
    assert_eq!(there(&mut client), [""; 0]);

    // As much as all connections may hold together, and half of that again.
    let text = format!("SET a = '{}'", "x".repeat((1 << 20) - 100));
    for round in 0..32 {
        let several: Vec<u8> = (0..24).flat_map(|at| parse(&format!("s{at}"), &text)).collect();
        assert_eq!(client.ask(&[several, sync.clone()].concat()).unwrap(), "");
        let free = if round % 2 == 0 { "DEALLOCATE ALL" } else { "DISCARD ALL" };
        assert_eq!(client.query(free).unwrap(), free);
    }
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_deep_query_is_refused_and_not_followed() {
    let server = Server::start(&[]);
    let mut client = Client::of(&server);
    client.query("CREATE TABLE t (id BIGINT PRIMARY KEY)").unwrap();
    let deep = [
        ("SELECT 1", "+1"),
        ("SELECT 1", "::int"),
        ("SELECT a", "[1]"),
        ("SELECT 1", " UNION SELECT 1"),
        ("SELECT 1", " in (1)"),
        ("SELECT 1", " notnull"),
        ("SELECT 'a'", " ilike 'a'"),
        ("SELECT 'a'", " rlike 'a'"),
    ];
    for name in ["abs", "sign", "round", "mod"] {
        let nested = format!("SELECT {}1{} FROM pg_class", format!("{name}(").repeat(100), ")".repeat(100));
        client.query(&nested).unwrap();
        client.query(&nested.replace("pg_class", "t")).unwrap();
    }
    for (begin, more) in deep {
        for count in [100, 900, 1_000, 5_000, 20_000, 100_000] {
            // Whatever it answers.
            client.query(&format!("{begin}{}", more.repeat(count))).unwrap();
            client.query(&format!("{begin}{} FROM pg_class", more.repeat(count))).unwrap();
        }
    }
    assert_eq!(client.query("SELECT 1").unwrap(), "1\nSELECT 1");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn what_stands_in_a_comment_is_not_done() {
    let server = Server::start(&["--init", BANK]);
    let mut client = Client::of(&server);
    for text in [
        "/* /* */ DELETE FROM accounts WHERE id = 1; */ SELECT 1",
        "SELECT 1; /* x /* ; */ DELETE FROM accounts WHERE id = 1; */",
        "SELECT 1 /* /* */ ; DELETE FROM accounts WHERE id = 1; */",
        "-- DELETE FROM accounts WHERE id = 1;\nSELECT 1",
    ] {
        assert_eq!(client.query(text).unwrap(), "1\nSELECT 1", "{text}");
    }
    let quoted = "SELECT id FROM accounts WHERE id = 1 /* ' */; SELECT E'\\';' ; SELECT id FROM accounts WHERE id = 2";
    let answered = client.query(quoted).unwrap();
    assert!(answered.starts_with("1\nSELECT 1\n") && !answered.contains("DELETE"), "{answered}");
    assert_eq!(client.query("SELECT count(*) FROM accounts").unwrap(), "2\nSELECT 1");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn texts_that_are_no_utf8_are_refused_and_nothing_is_stored() {
    let server = Server::start(&[]);
    let mut client = Client::of(&server);
    client.query("CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(20) NOT NULL)").unwrap();
    let text = [&b"INSERT INTO t VALUES (1, 'caf"[..], b"\xe9", b"')\0"].concat();
    assert!(client.ask(&message(b'Q', &text)).unwrap().starts_with("ERROR 22021"));
    let parse = message(b'P', &[&b"\0"[..], &text, b"\0\0"].concat());
    assert!(client.ask(&[parse, message(b'S', b"")].concat()).unwrap().starts_with("ERROR 22021"));
    assert!(client.query("SET client_encoding TO 'LATIN1'").unwrap().starts_with("ERROR 0A000"));
    assert!(client.prepared("INSERT INTO t VALUES (2, $1)", &["a\0"]).unwrap().contains("22021"));
    assert_eq!(client.query("SELECT count(*) FROM t").unwrap(), "0\nSELECT 1");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn no_row_that_was_inserted_while_an_index_was_made_is_missing_in_it() {
    let server = Server::start(&[]);
    let mut owner = Client::of(&server);
    owner.query("CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT NOT NULL)").unwrap();
    let (ended, next) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut client = Client::of(&server);
                while ended.load(Ordering::Relaxed) == 0 {
                    let id = next.fetch_add(1, Ordering::Relaxed).to_string();
                    let answer = client.prepared("INSERT INTO t VALUES ($1, 7)", &[&id]).unwrap();
                    assert!(answer.ends_with("INSERT 0 1"), "{answer}");
                }
            });
        }
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(owner.query("CREATE INDEX iv ON t (v)").unwrap(), "CREATE INDEX");
        std::thread::sleep(Duration::from_millis(100));
        ended.store(1, Ordering::Relaxed);
    });
    // By the index, from each on: LIMIT has an end.
    let count = next.load(Ordering::Relaxed);
    let mut found = 0;
    loop {
        let answer = owner.query("DELETE FROM t WHERE v = 7 LIMIT 5000").unwrap();
        let rows: u64 = answer.strip_prefix("DELETE ").unwrap_or_else(|| panic!("{answer}")).parse().unwrap();
        found += rows;
        if rows == 0 {
            break;
        }
    }
    assert_eq!(found, count);
    assert_eq!(server.end(), Some(0));
}

#[test]
fn pgbench_calls_in_every_mode_and_money_is_conserved() {
    let Some(_) = program("pgbench") else { return };
    let folder = Folder::new("serve-pgbench");
    std::fs::create_dir_all(&folder.0).unwrap();
    let script = folder.0.join("transfer.pgbench");
    std::fs::write(&script, "\\set a random(1, 2)\n\\set b 3 - :a\nCALL transfer(:a, :b, 0.01);\n").unwrap();
    let data = folder.0.join("data");
    let server = Server::start(&["--data", data.to_str().unwrap(), "--init", BANK]);
    for mode in ["simple", "extended", "prepared"] {
        let mut pgbench = program("pgbench").unwrap();
        let port = server.port.to_string();
        pgbench.args(["-h", "127.0.0.1", "-p", &port, "-U", "ann", "-n", "-M", mode, "-c", "8", "-t", "50", "-f"]);
        let output = pgbench.arg(&script).arg("bank").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{mode}: {text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("actually processed: 400/400"), "{mode}: {text}");
    }
    let mut client = Client::of(&server);
    let rows = client.query("SELECT balance FROM accounts WHERE id BETWEEN 1 AND 2 LIMIT 2").unwrap();
    let cents = |row: &str| row.replace('.', "").parse::<i64>().ok();
    assert_eq!(rows.lines().filter_map(cents).sum::<i64>(), 200_000, "{rows}");
    drop(client);
    assert_eq!(server.end(), Some(0));
}

#[test]
fn what_was_acknowledged_is_there_after_a_kill() {
    let folder = Folder::new("serve-kill");
    let data = folder.0.to_str().unwrap();
    let init = std::env::temp_dir().join(format!("lockwork-serve-kill-{}.sql", std::process::id()));
    std::fs::write(
        &init,
        "CREATE TABLE counters (id BIGINT PRIMARY KEY, n BIGINT NOT NULL);
         CREATE PROCEDURE more(counter BIGINT) AS BEGIN UPDATE counters SET n = n + 1 WHERE id = counter; END;
         INSERT INTO counters VALUES (0, 0), (1, 0), (2, 0), (3, 0);",
    )
    .unwrap();
    let mut counted = [0; 4];
    for round in 0..5 {
        let mut server = Server::start(&["--data", data, "--init", init.to_str().unwrap()]);
        let acknowledged: [AtomicU64; 4] = counted.map(AtomicU64::new);
        std::thread::scope(|scope| {
            for (id, acknowledged) in acknowledged.iter().enumerate() {
                let mut client = Client::of(&server);
                scope.spawn(move || {
                    while let Ok(answer) = client.query(&format!("CALL more({id})")) {
                        if answer != "CALL" {
                            break;
                        }
                        acknowledged.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let some = Instant::now() + Duration::from_secs(20);
            let goal = counted.iter().sum::<u64>() + 40 + 13 * round;
            while acknowledged.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u64>() < goal {
                assert!(Instant::now() < some, "calls are not answered");
                std::thread::sleep(Duration::from_millis(1));
            }
            server.child.kill().unwrap();
        });
        server.child.wait().unwrap();
        for (id, acknowledged) in acknowledged.iter().enumerate() {
            let select = format!("SELECT n FROM counters WHERE id = {id}");
            let (code, output, errors) = command(&["sql", data, "--output", "csv", "--command", &select], "");
            assert_eq!(code, Some(0), "{errors}");
            let there: u64 = output.lines().last().unwrap().parse().unwrap();
            let acknowledged = acknowledged.load(Ordering::Relaxed);
            // One more may be there that its client did not hear of.
            assert!((acknowledged..=acknowledged + 1).contains(&there), "{there} of {acknowledged}, round {round}");
            counted[id] = there;
        }
    }
    std::fs::remove_file(init).unwrap();
}

#[test]
fn clients_that_behave_badly_disturb_nobody() {
    let server = Server::start(&["--init", BANK]);
    let mut good = Client::of(&server);
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut random = lockwork_random::Random(seed);
    let mut next = move || random.next_u64() as u8;
    for round in 0..60 {
        let mut bad = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        let bytes: Vec<u8> = (0..usize::from(next()) * 4).map(|_| next()).collect();
        match round % 4 {
            // Any bytes at all.
            0 => drop(bad.write_all(&bytes)),
            // Half a startup, and gone.
            1 => drop(bad.write_all(&[0, 0, 0, 40, 0, 3])),
            // A message that would be of a gigabyte.
            2 => drop(bad.write_all(&[0x3f, 0xff, 0xff, 0xff, 0, 3, 0, 0])),
            // A startup, then any bytes.
            _ => {
                let mut client = Client::of(&server);
                drop(
                    client.0.get_mut().write_all(&[&[b"QPBEDSHCXdcf"[usize::from(next()) % 12]], &bytes[..]].concat()),
                );
            }
        }
        drop(bad);
        assert_eq!(good.query("SELECT id FROM accounts WHERE id = 1").unwrap(), "1\nSELECT 1", "round {round}");
    }
    // Gone in the middle of a call, and in the middle of an answer.
    for _ in 0..20 {
        let mut client = Client::of(&server);
        let text = b"CALL transfer(1, 2, 0.01)\0";
        let length = (text.len() as u32 + 4).to_be_bytes();
        client.0.get_mut().write_all(&[b"Q", &length[..], text].concat()).unwrap();
    }
    assert!(good.query(&format!("SELECT '{}'", "x".repeat(1_000_000))).unwrap().ends_with("SELECT 1"));
    let deep = format!("SELECT {}1{}", "(".repeat(20_000), ")".repeat(20_000));
    assert!(good.query(&deep).unwrap().contains("ERROR"));
    assert_eq!(good.query("").unwrap(), "");
    assert_eq!(good.query("-- nothing").unwrap(), "");
    drop(good);
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_server_that_ends_answers_what_it_was_asked() {
    let folder = Folder::new("serve-drain");
    let mut server = Server::start(&["--data", folder.0.to_str().unwrap(), "--init", BANK]);
    let asked = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let mut client = Client::of(&server);
            let asked = &asked;
            scope.spawn(move || {
                // An answer is whole, or there is none because the connection ended before the next question.
                while let Ok(answer) = client.query("CALL transfer(1, 1, 0.00)") {
                    if answer.is_empty() || answer.starts_with("FATAL 57P01 ") {
                        break;
                    }
                    assert_eq!(answer, "1000.00\nCALL");
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        while asked.load(Ordering::Relaxed) < 100 {
            std::thread::yield_now();
        }
        let told = Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status().unwrap();
        assert!(told.success());
    });
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

#[test]
fn more_clients_than_there_may_be_are_told() {
    let server = Server::start(&["--connections", "300"]);
    let mut clients: Vec<Client> = (0..300).map(|_| Client::of(&server)).collect();
    let refused = Client::new(server.port).err().expect("there are 300").to_string();
    assert_eq!(refused, "FATAL 53300 there are too many connections");
    if let Some(mut psql) = program("psql") {
        let told = psql.args(["-h", "127.0.0.1", "-p", &server.port.to_string(), "-c", "SELECT 1"]).output().unwrap();
        assert!(String::from_utf8_lossy(&told.stderr).contains("there are too many connections"), "{told:?}");
    }
    assert_eq!(clients[299].query("SELECT 1").unwrap(), "1\nSELECT 1");
    clients.truncate(200);
    let some = Instant::now() + Duration::from_secs(10);
    while Client::new(server.port).is_err() {
        assert!(Instant::now() < some, "places that are free again are given away");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_service_manager_is_told_when_it_is_ready_and_when_it_ends() {
    let folder = Folder::new("serve-notify");
    std::fs::create_dir_all(&folder.0).unwrap();
    let path = folder.0.join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let server = Server::start_with(&[], &[("NOTIFY_SOCKET", path.to_str().unwrap())]);
    let mut told = [0; 64];
    let length = manager.recv(&mut told).unwrap();
    assert_eq!(&told[..length], b"READY=1\n");
    Client::of(&server).query("SELECT 1").unwrap();
    assert_eq!(server.end(), Some(0));
    let length = manager.recv(&mut told).unwrap();
    assert_eq!(&told[..length], b"STOPPING=1\n");
}

#[test]
fn what_cannot_be_served_is_said() {
    let server = Server::start(&[]);
    let taken = format!("127.0.0.1:{}", server.port);
    let (code, _, errors) = command(&["serve", "--listen", &taken], "");
    assert!(code == Some(3) && errors.contains(&taken), "{errors}");
    let (code, _, errors) = command(&["serve", "--listen", "0.0.0.0:0"], "");
    assert!(code == Some(2) && errors.contains("can be reached from other machines"), "{errors}");
    let (code, _, errors) = command(&["serve", "--init", "nowhere.sql"], "");
    assert!(code == Some(2) && errors.contains("nowhere.sql"), "{errors}");
    let (code, _, errors) = command(&["serve", "--engine", "steam"], "");
    assert!(code == Some(2) && errors.contains("steam"), "{errors}");
    let folder = Folder::new("serve-two");
    let data = folder.0.to_str().unwrap();
    let first = Server::start(&["--data", data, "--init", BANK]);
    let (code, _, errors) = command(&["serve", "--listen", "127.0.0.1:0", "--data", data], "");
    assert!(code == Some(2) && errors.contains(data), "{errors}");
    Client::of(&first).query("CALL transfer(1, 2, 10.00)").unwrap();
    assert_eq!(first.end(), Some(0));
    // What is there is not made again.
    let second = Server::start(&["--data", data, "--init", BANK]);
    assert_eq!(Client::of(&second).query("SELECT balance FROM accounts WHERE id = 1").unwrap(), "990.00\nSELECT 1");
    assert!(Path::new(data).join("log").is_dir());
}
