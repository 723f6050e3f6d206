//! GRANT and REVOKE: users who may call one procedure or read one table, by every way that leads there.

use std::process::Command;

use futures::TryStreamExt;
use tokio_postgres::{Client as Postgres, Error, Statement};

use crate::clients::{installed, printed};
use crate::doors::{PASSWORD, Runtime, users};
use crate::folder::{Folder, command};
use crate::server::Server;

const TABLES: &str = "
    CREATE TABLE items (id BIGINT PRIMARY KEY, n BIGINT NOT NULL) WITH (ordered = true);
    CREATE TABLE secrets (id BIGINT PRIMARY KEY, n BIGINT NOT NULL);
    CREATE TABLE \"OddName\" (id BIGINT PRIMARY KEY, n BIGINT NOT NULL);
    CREATE INDEX items_n ON items (n, id);
    CREATE PROCEDURE add(i BIGINT, OUT v BIGINT) AS BEGIN
        UPDATE items SET n = n + 1 WHERE id = i; SELECT n INTO v FROM items WHERE id = i; END;
    CREATE PROCEDURE look(OUT v BIGINT) AS BEGIN SELECT n INTO v FROM secrets WHERE id = 1; END;
    INSERT INTO items VALUES (1, 10), (2, 20);
    INSERT INTO secrets VALUES (1, 99);
    INSERT INTO \"OddName\" VALUES (1, 7);";

/// A folder, its file of users, and the file that makes the tables.
fn files(name: &str, all: &[(&str, &str)]) -> (Folder, String, String) {
    let folder = Folder::new(name);
    let file = users(&folder, all);
    let init = folder.0.join("init.sql").to_str().unwrap().to_string();
    std::fs::write(&init, TABLES).unwrap();
    (folder, file, init)
}

/// `SQLSTATE message` of an error.
fn told(error: &Error) -> String {
    let why = error.as_db_error().unwrap_or_else(|| panic!("{error:?}"));
    format!("{} {}", why.code().code(), why.message())
}

/// The rows of a COPY, or its error.
async fn copied(client: &Postgres, text: &str) -> Result<String, String> {
    let stream = client.copy_out(text).await.map_err(|error| told(&error))?;
    let parts: Vec<_> = stream.try_collect().await.map_err(|error| told(&error))?;
    Ok(String::from_utf8(parts.concat()).unwrap())
}

/// The only value of a statement that was prepared, or its error.
async fn value(client: &Postgres, statement: &Statement, values: &[i64]) -> Result<i64, String> {
    let values: Vec<_> = values.iter().map(|value| value as &(dyn tokio_postgres::types::ToSql + Sync)).collect();
    client.query_one(statement, &values).await.map(|row| row.get(0)).map_err(|error| told(&error))
}

/// Asserts that each of these is refused, with this message.
fn refused(runtime: &Runtime, client: &Postgres, all: &[(&str, &str)]) {
    for (text, message) in all {
        assert_eq!(runtime.ask(client, text), Err(format!("42501 {message}")), "{text}");
        // The extended protocol refuses it when it is prepared.
        let prepared = runtime.0.block_on(client.prepare(text));
        assert_eq!(told(&prepared.err().unwrap_or_else(|| panic!("{text}"))), format!("42501 {message}"), "{text}");
    }
}

const NO_ITEMS: &str = "permission denied for table items";
const NO_SECRETS: &str = "permission denied for table secrets";
const NO_ADD: &str = "permission denied for procedure add";
const NO_WRITE: &str = "the right 'write' is needed, and this user has 'none'";
const NO_DEFINE: &str = "the right 'define' is needed, and this user has 'none'";

/// What takes a right for all tables or procedures, which no grant gives.
const NEVER: [(&str, &str); 11] = [
    ("CALL look()", "permission denied for procedure look"),
    ("SELECT n FROM secrets WHERE id = 1", NO_SECRETS),
    ("SELECT n FROM items WHERE id = 1 FOR UPDATE", NO_WRITE),
    ("INSERT INTO items VALUES (3, 30)", NO_WRITE),
    ("UPDATE items SET n = 1 WHERE id = 1", NO_WRITE),
    ("DELETE FROM items WHERE id = 1", NO_WRITE),
    ("COPY items FROM STDIN", NO_WRITE),
    ("CREATE TABLE t (id BIGINT PRIMARY KEY)", NO_DEFINE),
    ("CREATE OR REPLACE PROCEDURE add(i BIGINT, OUT v BIGINT) AS BEGIN v := 1; END", NO_DEFINE),
    ("EXPLAIN PROCEDURE add", NO_DEFINE),
    ("GRANT SELECT ON secrets TO bob", NO_DEFINE),
];

/// The ways to read one table, and what they answer.
const READS: [(&str, &str); 8] = [
    ("SELECT n FROM items WHERE id = 1", "10"),
    ("SELECT n FROM public.items WHERE id IN (1, 2) AND n = 20", "20"),
    ("SELECT sum(n) FROM items", "30"),
    ("TABLE items", "1\n2"),
    ("SELECT a.n FROM items a JOIN items b ON a.id = b.id ORDER BY 1", "10\n20"),
    ("WITH w AS (SELECT n FROM items) SELECT max(n) FROM w", "20"),
    ("SELECT (SELECT min(n) FROM items)", "10"),
    ("SELECT 1 WHERE EXISTS (SELECT 1 FROM items)", "1"),
];

#[test]
fn a_user_without_a_right_logs_in_and_does_nothing() {
    let (_folder, file, init) = files("grants-none", &[("bob", "none")]);
    let server = Server::start(&["--init", &init, "--users", &file]);
    let runtime = Runtime::new();
    let bob = runtime.login(&server, "bob", PASSWORD).unwrap();
    refused(&runtime, &bob, &NEVER);
    refused(&runtime, &bob, &READS.map(|(text, _)| (text, NO_ITEMS)));
    refused(
        &runtime,
        &bob,
        &[("CALL add(1)", NO_ADD), ("CALL MANY add($1)", NO_ADD), ("COPY items TO STDOUT", NO_ITEMS)],
    );
    // A query that reads no table takes time. What is wrong with one is told to those who may read something.
    let wrong = "SELECT count(*) FROM items JOIN nothing ON true";
    for text in ["SELECT count(*) FROM generate_series(1, 9)", wrong] {
        refused(&runtime, &bob, &[(text, NO_WRITE)]);
    }
    for text in
        ["SELECT 1", "SHOW server_version", "BEGIN; COMMIT", "SELECT relname FROM pg_class WHERE relname = 'items'"]
    {
        runtime.ask(&bob, text).unwrap_or_else(|error| panic!("{text}: {error}"));
    }
    assert!(runtime.ask(&bob, "CALL nothing()").unwrap_err().starts_with("42883"));
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_grant_of_execute_is_for_one_procedure_by_every_way() {
    let (_folder, file, init) = files("grants-execute", &[("admin", "define"), ("bob", "none")]);
    let server = Server::start(&["--init", &init, "--users", &file]);
    let runtime = Runtime::new();
    let [admin, bob] = ["admin", "bob"].map(|user| runtime.login(&server, user, PASSWORD).unwrap());
    runtime.ask(&admin, "GRANT EXECUTE ON PROCEDURE public.Add(BIGINT) TO Bob").unwrap();
    // The session that was there has it at once.
    assert_eq!(runtime.ask(&bob, "CALL add(1)"), Ok("11".into()));
    assert_eq!(runtime.ask(&bob, "BEGIN; CALL add(1); COMMIT"), Ok("12".into()));
    runtime.0.block_on(async {
        let add = bob.prepare("CALL add($1)").await.unwrap();
        assert_eq!(value(&bob, &add, &[1]).await, Ok(13));
        let row = bob.query_one("CALL MANY add($1)", &[&vec![1_i64, 2]]).await.unwrap();
        assert_eq!(row.get::<_, Vec<i64>>(0), [14, 21]);
    });
    refused(&runtime, &bob, &NEVER);
    refused(&runtime, &bob, &READS.map(|(text, _)| (text, NO_ITEMS)));
    refused(
        &runtime,
        &bob,
        &[("COPY items TO STDOUT", NO_ITEMS), ("COPY (SELECT sum(n) FROM items) TO STDOUT", NO_ITEMS)],
    );
    let may =
        "SELECT has_function_privilege('add', 'EXECUTE')::text || has_function_privilege('look', 'EXECUTE')::text";
    assert_eq!(runtime.ask(&bob, may), Ok("truefalse".into()));
    // It is for the name, whatever stands behind it.
    runtime.ask(&admin, "CREATE OR REPLACE PROCEDURE add(i BIGINT, OUT v BIGINT) AS BEGIN v := 77; END").unwrap();
    assert_eq!(runtime.ask(&bob, "CALL add(1)"), Ok("77".into()));
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_grant_of_select_is_for_one_table_by_every_way() {
    let (_folder, file, init) = files("grants-select", &[("admin", "define"), ("bob", "none")]);
    let server = Server::start(&["--init", &init, "--users", &file]);
    let runtime = Runtime::new();
    let [admin, bob] = ["admin", "bob"].map(|user| runtime.login(&server, user, PASSWORD).unwrap());
    runtime.ask(&admin, "GRANT SELECT ON TABLE items, \"OddName\" TO bob").unwrap();
    for (text, answer) in READS {
        assert_eq!(runtime.ask(&bob, text), Ok(answer.into()), "{text}");
        assert_eq!(runtime.ask(&bob, &format!("BEGIN READ ONLY; {text}; COMMIT")), Ok(answer.into()), "{text}");
    }
    assert_eq!(runtime.ask(&bob, "SELECT n FROM \"OddName\" WHERE id = 1"), Ok("7".into()));
    runtime.0.block_on(async {
        for text in ["SELECT n FROM items WHERE id = $1", "SELECT max(n) FROM items WHERE n < 15 OR id = $1"] {
            let statement = bob.prepare(text).await.unwrap();
            assert_eq!(value(&bob, &statement, &[1]).await, Ok(10), "{text}");
        }
        assert_eq!(copied(&bob, "COPY items TO STDOUT").await, Ok("1\t10\n2\t20\n".into()));
        assert_eq!(copied(&bob, "COPY (SELECT sum(n) FROM items) TO STDOUT").await, Ok("30\n".into()));
        assert_eq!(copied(&bob, "COPY secrets TO STDOUT").await, Err(format!("42501 {NO_SECRETS}")));
    });
    refused(&runtime, &bob, &NEVER);
    refused(&runtime, &bob, &[("CALL add(1)", NO_ADD), ("CALL MANY add($1)", NO_ADD)]);
    // One table that was not granted is enough, wherever it stands.
    for text in [
        "SELECT i.n FROM items i JOIN secrets s ON s.id = i.id",
        "SELECT n FROM items WHERE n > (SELECT max(n) FROM secrets)",
        "SELECT sum(n) FROM items WHERE EXISTS (SELECT 1 FROM secrets)",
        "SELECT n FROM items UNION ALL SELECT n FROM secrets",
        "WITH items AS (SELECT n FROM secrets) SELECT n FROM items",
        "SELECT count(*) FROM (SELECT n FROM public.secrets) AS items",
        "SELECT n, (SELECT count(*) FROM secrets) FROM items WHERE false",
        "COPY (SELECT n FROM secrets WHERE id = 1) TO STDOUT",
        "TABLE secrets",
    ] {
        refused(&runtime, &bob, &[(text, NO_SECRETS)]);
    }
    for text in ["SELECT n FROM nothing WHERE id = 1", "SELECT count(*) FROM nothing", "COPY nothing TO STDOUT"] {
        assert!(runtime.ask(&bob, text).unwrap_err().starts_with("42P01"), "{text}");
    }
    let may = "SELECT has_table_privilege('items', 'SELECT')::text || has_table_privilege('secrets', 'SELECT')::text";
    assert_eq!(runtime.ask(&bob, may), Ok("truefalse".into()));
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_revoke_takes_what_was_prepared_in_a_session_that_goes_on() {
    let (_folder, file, init) = files("grants-revoke", &[("admin", "define"), ("bob", "none")]);
    let server = Server::start(&["--init", &init, "--users", &file]);
    let runtime = Runtime::new();
    let [admin, bob] = ["admin", "bob"].map(|user| runtime.login(&server, user, PASSWORD).unwrap());
    let all = [("SELECT ON items", NO_ITEMS), ("EXECUTE ON PROCEDURE add", NO_ADD)];
    all.iter().for_each(|(what, _)| drop(runtime.ask(&admin, &format!("GRANT {what} TO bob")).unwrap()));
    let prepared = runtime.0.block_on(async {
        let mut all = Vec::new();
        for (text, message) in [
            ("SELECT n FROM items WHERE id = $1", NO_ITEMS),
            ("SELECT max(n) FROM items WHERE n < 15 OR id = $1", NO_ITEMS),
            ("CALL add($1)", NO_ADD),
        ] {
            let statement = bob.prepare(text).await.unwrap();
            value(&bob, &statement, &[1]).await.unwrap();
            all.push((statement, message));
        }
        all
    });
    let many = runtime.0.block_on(bob.prepare("CALL MANY add($1)")).unwrap();
    let copy = runtime.0.block_on(bob.prepare("COPY items TO STDOUT")).unwrap();
    // A transaction that is open loses it, too.
    runtime.ask(&bob, "BEGIN; SELECT n FROM items WHERE id = 1").unwrap();
    all.iter().for_each(|(what, _)| drop(runtime.ask(&admin, &format!("REVOKE {what} FROM bob")).unwrap()));
    assert_eq!(runtime.ask(&bob, "SELECT n FROM items WHERE id = 1"), Err(format!("42501 {NO_ITEMS}")));
    runtime.ask(&bob, "ROLLBACK").unwrap();
    runtime.0.block_on(async {
        for (statement, message) in &prepared {
            assert_eq!(value(&bob, statement, &[1]).await, Err(format!("42501 {message}")));
        }
        let refused = bob.query(&many, &[&vec![1_i64]]).await.unwrap_err();
        assert_eq!(told(&refused), format!("42501 {NO_ADD}"));
        let refused = bob.copy_out(&copy).await.err().unwrap();
        assert_eq!(told(&refused), format!("42501 {NO_ITEMS}"));
    });
    // The session is the same, and has them again.
    all.iter().for_each(|(what, _)| drop(runtime.ask(&admin, &format!("GRANT {what} TO bob")).unwrap()));
    runtime.0.block_on(async {
        for (statement, _) in &prepared {
            value(&bob, statement, &[1]).await.unwrap();
        }
    });
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_revoke_takes_what_waits_for_its_sync() {
    let Some(python) = installed("bin/python3") else { return };
    let (_folder, file, init) = files("grants-sync", &[("admin", "define"), ("bob", "none")]);
    let server = Server::start(&["--init", &init, "--users", &file]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/grants.py");
    let said = printed(Command::new(python).arg(script).arg(server.port.to_string()));
    assert_eq!(said, format!("FATAL_ERROR {NO_ADD}\n(10,)"));
    assert_eq!(server.end(), Some(0));
}

#[test]
fn grants_outlive_the_server_and_end_with_their_user() {
    let (folder, file, init) = files("grants-restart", &[("admin", "define"), ("bob", "none"), ("eve", "none")]);
    let data = folder.0.join("data").to_str().unwrap().to_string();
    let runtime = Runtime::new();
    let server = Server::start(&["--data", &data, "--init", &init, "--users", &file]);
    let admin = runtime.login(&server, "admin", PASSWORD).unwrap();
    runtime.ask(&admin, "GRANT EXECUTE ON PROCEDURE add, look TO bob, eve").unwrap();
    runtime.ask(&admin, "GRANT SELECT ON \"OddName\" TO bob; REVOKE EXECUTE ON PROCEDURE look FROM bob").unwrap();
    let listed = "admin  define\nbob    none    EXECUTE ON PROCEDURE add; SELECT ON TABLE \"OddName\"\n\
                  eve    none    EXECUTE ON PROCEDURE add, look\n";
    assert_eq!(command(&["user", &file], ""), (Some(0), listed.into(), String::new()));
    assert_eq!(server.end(), Some(0));
    let server = Server::start(&["--data", &data, "--users", &file]);
    let [bob, eve] = ["bob", "eve"].map(|user| runtime.login(&server, user, PASSWORD).unwrap());
    for (client, text, may) in [
        (&bob, "CALL add(1)", true),
        (&bob, "CALL look()", false),
        (&bob, "SELECT n FROM \"OddName\" WHERE id = 1", true),
        (&bob, "SELECT n FROM items WHERE id = 1", false),
        (&eve, "CALL look()", true),
        (&eve, "SELECT n FROM \"OddName\" WHERE id = 1", false),
    ] {
        let answer = runtime.ask(client, text);
        assert!(
            answer.is_ok() == may && (may || answer.as_ref().unwrap_err().starts_with("42501")),
            "{text}: {answer:?}"
        );
    }
    // Another password leaves them, another user of the same name has none.
    assert_eq!(command(&["user", &file, "bob", "--right", "none"], "another password").0, Some(0));
    let bob = runtime.login(&server, "bob", "another password").unwrap();
    runtime.ask(&bob, "CALL add(1)").unwrap();
    assert_eq!(command(&["user", &file, "bob", "--remove"], "").0, Some(0));
    assert_eq!(command(&["user", &file, "bob", "--right", "none"], PASSWORD).0, Some(0));
    let bob = runtime.login(&server, "bob", PASSWORD).unwrap();
    refused(&runtime, &bob, &[("CALL add(1)", NO_ADD)]);
    assert_eq!(server.end(), Some(0));
}

#[test]
fn grants_that_cannot_be_say_why_and_all_are_written_down() {
    let all = [("admin", "define"), ("ann", "write"), ("bob", "none"), ("cal", "call")];
    let (_folder, file, init) = files("grants-bad", &all);
    let server = Server::start(&["--init", &init, "--users", &file]);
    let runtime = Runtime::new();
    let admin = runtime.login(&server, "admin", PASSWORD).unwrap();
    let before = std::fs::read_to_string(&file).unwrap();
    let bad = [
        ("GRANT EXECUTE ON PROCEDURE add, nothing TO bob", "42883 procedure 'nothing' does not exist"),
        ("GRANT EXECUTE ON PROCEDURE items TO bob", "42883 procedure 'items' does not exist"),
        ("REVOKE EXECUTE ON PROCEDURE nothing FROM bob", "42883 procedure 'nothing' does not exist"),
        ("GRANT SELECT ON Nothing TO bob", "42P01 table 'nothing' does not exist"),
        ("GRANT SELECT ON \"Items\" TO bob", "42P01 table 'Items' does not exist"),
        ("GRANT SELECT ON items_n TO bob", "42809 'items_n' is an index"),
        ("GRANT SELECT ON items TO bob, \"Bob\"", "42704 user 'Bob' does not exist"),
        ("REVOKE SELECT ON items FROM ann", "0LP01 user 'ann' has the right 'write', which covers every table"),
        (
            "REVOKE EXECUTE ON PROCEDURE add FROM cal",
            "0LP01 user 'cal' has the right 'call', which covers every procedure",
        ),
        ("GRANT ALL PRIVILEGES ON items TO bob", "0A000 a grant of ALL is not supported"),
        ("GRANT SELECT ON items TO PUBLIC", "0A000 a grant to PUBLIC is not supported"),
        ("GRANT SELECT ON items TO bob WITH GRANT OPTION", "0A000 WITH GRANT OPTION is not supported"),
        ("GRANT INSERT ON items TO bob", "0A000 a grant of INSERT is not supported"),
        ("BEGIN; GRANT SELECT ON items TO bob", "25001 GRANT cannot be part of a transaction"),
    ];
    for (text, message) in bad {
        assert_eq!(runtime.ask(&admin, text), Err(message.into()), "{text}");
        runtime.ask(&admin, "ROLLBACK").unwrap();
    }
    let refused = runtime.0.block_on(admin.simple_query("REVOKE SELECT ON items FROM ann")).unwrap_err();
    let hint = refused.as_db_error().unwrap().hint().unwrap();
    assert!(hint.starts_with("lockwork user FILE ann --right call removes it"), "{hint}");
    runtime.ask(&admin, "SET default_transaction_read_only = on").unwrap();
    assert!(runtime.ask(&admin, "GRANT SELECT ON items TO bob").unwrap_err().starts_with("25006"));
    runtime.ask(&admin, "SET default_transaction_read_only = off").unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), before);
    // Who may write grants nothing, to nobody.
    let ann = runtime.login(&server, "ann", PASSWORD).unwrap();
    for text in ["GRANT EXECUTE ON PROCEDURE add TO ann", "CREATE TABLE t (id BIGINT PRIMARY KEY)"] {
        assert!(runtime.ask(&ann, text).unwrap_err().starts_with("42501 the right 'define'"), "{text}");
    }
    // By the extended protocol too, and what is there already, or is not, is no error.
    runtime.0.block_on(async {
        for text in
            ["GRANT SELECT ON items TO bob", "GRANT SELECT ON items TO bob", "REVOKE SELECT ON secrets FROM bob"]
        {
            admin.execute(text, &[]).await.unwrap();
        }
    });
    let url = format!("postgres://admin:a%20good%20password@127.0.0.1:{}/bank", server.port);
    let (code, _, error) = command(&["sql", &url, "-c", "GRANT EXECUTE ON PROCEDURE add TO bob;"], "");
    assert_eq!((code, error.as_str()), (Some(0), ""));
    assert_eq!(server.end(), Some(0));
    let audit = std::fs::read_to_string(format!("{file}.audit")).unwrap();
    let lines = |event: &str, user: &str| -> Vec<String> {
        let is_one = |line: &&str| {
            [("event", event), ("user", user)].iter().all(|(k, v)| line.contains(&format!("\"{k}\":\"{v}\"")))
        };
        audit.lines().filter(is_one).map(str::to_string).collect()
    };
    let grants = lines("grant", "admin");
    let states: Vec<&str> = bad.iter().map(|(_, message)| &message[..5]).collect();
    let states = [&states[..], &["0LP01", "25006", "00000", "00000", "00000", "00000"]].concat();
    assert_eq!(grants.len(), states.len(), "{audit}");
    for (line, state) in grants.iter().zip(states) {
        assert!(line.contains(&format!("\"sqlstate\":\"{state}\"")) && line.contains(" ON "), "{state}: {line}");
    }
    // What lacks the right is there as well.
    for (event, part) in [("grant", "GRANT EXECUTE ON PROCEDURE add TO ann"), ("definition", "CREATE TABLE t (")] {
        let [line] = &lines(event, "ann")[..] else { panic!("{audit}") };
        assert!(line.contains(part) && line.contains("\"sqlstate\":\"42501\""), "{line}");
    }
}

#[test]
fn without_users_a_grant_says_how_there_are_some() {
    let server = Server::start(&[]);
    let runtime = Runtime::new();
    let anybody = runtime.login(&server, "anybody", "").unwrap();
    for text in ["GRANT SELECT ON items TO bob", "REVOKE ALL ON items FROM bob"] {
        let refused = runtime.0.block_on(anybody.simple_query(text)).unwrap_err();
        let refused = refused.as_db_error().unwrap();
        assert_eq!(refused.code().code(), "0A000");
        assert!(refused.message().starts_with("this server has no users"), "{}", refused.message());
        assert!(refused.hint().unwrap().contains("lockwork serve --users FILE"), "{refused:?}");
    }
    let folder = Folder::new("grants-no-server");
    let (code, _, error) = command(&["sql", folder.0.to_str().unwrap(), "--command", "GRANT SELECT ON t TO bob"], "");
    assert!(code == Some(2) && error.contains("lockwork serve --users FILE"), "{code:?} {error}");
    assert_eq!(server.end(), Some(0));
}
