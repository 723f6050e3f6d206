//! Queries of whole tables at `lockwork serve`: what people type first in psql, and what drivers prepare.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::folder::{Folder, command};
use crate::server::{Server, program};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

const BANK: &str = "
    CREATE TABLE accounts (id BIGINT PRIMARY KEY, owner VARCHAR(20) NOT NULL, balance DECIMAL(12, 2) NOT NULL);
    INSERT INTO accounts VALUES (1, 'ann', 1000), (2, 'bob', 500), (3, 'eve', 0);
    CREATE PROCEDURE transfer(source BIGINT, target BIGINT, amount DECIMAL(12, 2), OUT remains DECIMAL(12, 2)) AS BEGIN
        SELECT balance - amount INTO remains FROM accounts WHERE id = source;
        UPDATE accounts SET balance = remains WHERE id = source;
        UPDATE accounts SET balance = balance + amount WHERE id = target;
    END;";

/// A server with a bank.
fn bank(name: &str) -> (Folder, Server) {
    let folder = Folder::new(name);
    std::fs::create_dir_all(&folder.0).unwrap();
    let file = folder.0.join("bank.sql");
    std::fs::write(&file, BANK).unwrap();
    let server = Server::start(&["--init", file.to_str().unwrap()]);
    assert!(server.ready.starts_with("ready: in memory"), "{}", server.ready);
    (folder, server)
}

/// psql that answers rows as plain text.
fn psql(server: &Server, words: &[&str]) -> Option<(String, String)> {
    let port = server.port.to_string();
    let mut psql: Command = program("psql")?;
    let output = psql.args(["-h", "127.0.0.1", "-p", &port, "-U", "ann", "-X", "-A", "-t"]).args(words).arg("bank");
    let output = output.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().trim_end().to_string();
    Some((text(output.stdout), text(output.stderr)))
}

async fn connect(server: &Server) -> Client {
    let settings = format!("host=127.0.0.1 port={} user=ann dbname=bank", server.port);
    let (client, connection) = tokio_postgres::connect(&settings, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Something on the threads of a runtime of its own.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(future)
}

/// The SQLSTATE, the message and the place of an error.
fn refused(error: &tokio_postgres::Error) -> String {
    let error = error.as_db_error().unwrap_or_else(|| panic!("{error}"));
    let place = error.position().map(|place| format!(" {place:?}")).unwrap_or_default();
    format!("{} {}{place}", error.code().code(), error.message())
}

/// The first column of the rows of a simple query.
async fn simple(client: &Client, text: &str) -> Vec<String> {
    let messages = client.simple_query(text).await.unwrap_or_else(|error| panic!("{text}: {}", refused(&error)));
    let cell = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_string),
        _ => None,
    };
    messages.iter().filter_map(cell).collect()
}

#[test]
fn psql_answers_what_people_type_first() {
    let (_folder, server) = bank("serve-query-psql");
    for (text, expected) in [
        ("SELECT count(*) FROM accounts", "3"),
        ("SELECT * FROM accounts", "1|ann|1000.00\n2|bob|500.00\n3|eve|0.00"),
        ("SELECT sum(balance) FROM accounts;", "1500.00"),
        ("-- a comment\nSELECT owner FROM accounts WHERE balance > 0 ORDER BY balance DESC LIMIT 10", "ann\nbob"),
        ("TABLE accounts LIMIT 1", "1|ann|1000.00"),
        // Several statements, of which one is no single statement, and one cannot be read by the compiler at all.
        (
            "CALL transfer(1, 2, 25.00); SELECT sum(balance) FROM accounts; SELECT owner, count(*) FROM accounts GROUP BY \
          owner HAVING max(balance) > 900; UPDATE accounts SET balance = 0 WHERE id = 3",
            "975.00\n1500.00\nann|1\nUPDATE 1",
        ),
        ("SELECT balance FROM accounts WHERE id = 2", "525.00"),
    ] {
        let Some((said, error)) = psql(&server, &["-c", text]) else { return };
        assert_eq!((said.as_str(), error.as_str()), (expected, ""), "{text}");
    }
    for (text, expected) in [
        (
            "SELECT nope FROM accounts",
            "no column is called 'nope'\nLINE 1: SELECT nope FROM accounts\n               ^",
        ),
        (
            "SELECT 1 FROM accounts; SELECT count(nope)\nFROM accounts",
            "'nope'\nLINE 1: SELECT 1 FROM accounts; SELECT count(nope)\n                                             ^",
        ),
        ("SELECT count(*) FROM accounts, pg_class", "a query asks either those or your own"),
        ("SELECT id, count(*) FROM accounts", "column 'id' stands neither in GROUP BY nor in an aggregate"),
        ("UPDATE accounts SET balance = 0 WHERE owner = 'ann'", "no key of table 'accounts' finds the rows"),
    ] {
        let (_, error) = psql(&server, &["-c", text]).unwrap();
        assert!(error.contains(expected), "{text}: {error}");
        assert!(!error.contains("t0") && !error.contains("lw_"), "{error}");
    }
}

#[test]
fn the_examples_of_the_page_run() {
    let page = include_str!("../../../../../docs/operations.md");
    let section = page.split("## Looking at tables").nth(1).unwrap();
    let block = section.split("```sql").nth(1).unwrap().split("```").next().unwrap();
    // As the page begins.
    let server = Server::start(&["--init", concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/bank.sql")]);
    let Some((said, error)) = psql(&server, &["-c", block]) else { return };
    assert_eq!((said.as_str(), error.as_str()), ("2\nt|2|2000.00\n1|0\n2|0\n1000|1", ""));
}

#[test]
fn who_may_not_read_learns_nothing() {
    let (folder, server) = bank("serve-query-rights");
    drop(server);
    let (users, file) = (folder.0.join("users"), folder.0.join("bank.sql"));
    let (users, file) = (users.to_str().unwrap(), file.to_str().unwrap());
    for right in ["call", "write"] {
        assert_eq!(command(&["user", users, right, "--right", right], "a-good-password").0, Some(0));
    }
    let server = Server::start(&["--init", file, "--users", users]);
    for (user, text, expected) in [
        ("write", "SELECT count(*) FROM accounts", "3"),
        ("call", "SELECT count(*) FROM accounts", "42501"),
        ("call", "SELECT owner FROM nothing GROUP BY owner HAVING count(*) > 1", "42501"),
    ] {
        let words = format!("host=127.0.0.1 port={} user={user} dbname=bank password=a-good-password", server.port);
        let Some(mut psql) = program("psql") else { return };
        let output = psql.args([&words, "-X", "-A", "-t", "-v", "VERBOSITY=verbose", "-c", text]).output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(said.contains(expected), "{user}: {text}: {said}");
    }
}

#[test]
fn pgbench_counts_its_branches() {
    let server = Server::start(&[]);
    let Some((_, error)) = psql(&server, &["-c", "CREATE TABLE pgbench_branches (bid INTEGER PRIMARY KEY)"]) else {
        return;
    };
    assert_eq!(error, "");
    let (said, _) = psql(&server, &["-c", "select count(*) from pgbench_branches"]).unwrap();
    assert_eq!(said, "0");
}

#[test]
fn prepared_queries_take_values_and_go_on_after_definitions() {
    let (_folder, server) = bank("serve-query-prepared");
    block_on(async {
        let client = connect(&server).await;
        let text =
            "SELECT count(*), sum(id), max(owner), bool_or(balance > 0) FROM accounts WHERE owner >= $1 AND id < $2";
        let statement = client.prepare(text).await.unwrap();
        assert_eq!(statement.params(), [Type::VARCHAR, Type::INT8]);
        let types: Vec<(&str, &Type)> =
            statement.columns().iter().map(|column| (column.name(), column.type_())).collect();
        let expected =
            [("count", &Type::INT8), ("sum", &Type::NUMERIC), ("max", &Type::VARCHAR), ("bool_or", &Type::BOOL)];
        assert_eq!(types, expected);
        for round in 0..2 {
            let row = client.query_one(&statement, &[&"bob", &9_i64]).await.unwrap();
            assert_eq!((row.get(0), row.get(2), row.get(3)), (2_i64, "eve", true), "{round}");
            client.batch_execute(&format!("CREATE TABLE more{round} (id BIGINT PRIMARY KEY)")).await.unwrap();
        }
        // Binary numbers in all kinds.
        let row = client
            .query_one(
                "SELECT id::int, avg(id)::float8, min(balance)::text FROM accounts WHERE id = 1 GROUP BY id",
                &[],
            )
            .await
            .unwrap();
        assert_eq!((row.get(0), row.get(1), row.get(2)), (1_i32, 1.0_f64, "1000.00"));
        for (text, expected) in [
            ("SELECT count(*) FROM accounts WHERE $1 = $2 + $3", "42P18"),
            ("SELECT count(*) FROM accounts; SELECT 1", "42601"),
            ("SELECT owner FROM accounts GROUP BY id, x", "42703"),
        ] {
            let error = client.prepare(text).await.unwrap_err();
            assert!(refused(&error).starts_with(expected), "{text}: {}", refused(&error));
        }
    });
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_limit_and_an_offset_may_be_parameters() {
    let (_folder, server) = bank("serve-query-limit");
    block_on(async {
        let client = connect(&server).await;
        client
            .batch_execute("CREATE TABLE o (c BIGINT, n BIGINT, PRIMARY KEY (c, n)) WITH (ordered = true)")
            .await
            .unwrap();
        client.batch_execute("INSERT INTO o VALUES (1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (2, 6)").await.unwrap();
        for (text, types, given, expected) in [
            ("SELECT n FROM o WHERE c = 1 ORDER BY n LIMIT $1", 1, &[2_i64][..], &[1_i64, 2][..]),
            ("SELECT n FROM o WHERE c = 1 ORDER BY n LIMIT $1 OFFSET $2", 2, &[5, 3], &[4, 5]),
            ("SELECT n FROM o WHERE c = $1 ORDER BY n LIMIT $2 OFFSET $3", 3, &[1, 1, 2], &[3]),
            ("SELECT n FROM o ORDER BY n DESC OFFSET $1", 1, &[4], &[2, 1]),
            ("SELECT n FROM o ORDER BY n OFFSET $1 ROWS FETCH FIRST $2 ROWS ONLY", 2, &[4, 9], &[5, 6]),
            ("SELECT sum(n)::bigint FROM o GROUP BY c ORDER BY c LIMIT $1", 1, &[1], &[15]),
            ("SELECT n FROM o WHERE c = 1 LIMIT $1", 1, &[0], &[]),
            ("SELECT n FROM o WHERE c = 1 AND n = 3 LIMIT $1 OFFSET $2", 2, &[1, 0], &[3]),
        ] {
            let statement = client.prepare(text).await.unwrap_or_else(|error| panic!("{text}: {}", refused(&error)));
            assert_eq!(statement.params(), vec![Type::INT8; types], "{text}");
            let given: Vec<_> = given.iter().map(|value| value as &(dyn tokio_postgres::types::ToSql + Sync)).collect();
            let rows = client.query(&statement, &given).await.unwrap();
            assert_eq!(rows.iter().map(|row| row.get::<_, i64>(0)).collect::<Vec<_>>(), expected, "{text}");
        }
        // As SQLAlchemy writes them.
        let text = "SELECT n FROM o ORDER BY n LIMIT $1::INTEGER OFFSET $2::INTEGER";
        let statement = client.prepare(text).await.unwrap();
        assert_eq!(statement.params(), [Type::INT4, Type::INT4]);
        assert_eq!(client.query(&statement, &[&1_i32, &2_i32]).await.unwrap()[0].get::<_, i64>(0), 3);
        for (limit, offset, expected) in [(-1, 0, "2201W"), (1, -1, "2201X"), (-1, -1, "2201")] {
            let error = client.query(&statement, &[&limit, &offset]).await.unwrap_err();
            assert!(refused(&error).starts_with(expected), "{}", refused(&error));
        }
        // More or less than a procedure takes.
        for (limit, expected) in [(0, 0), (10_001, 5), (3_000_000_000_u64, 5)] {
            let text = format!("SELECT n FROM o WHERE c = 1 ORDER BY n LIMIT {limit}");
            assert_eq!(simple(&client, &text).await.len(), expected, "{text}");
        }
        for (text, expected) in [("LIMIT -1", "2201W"), ("OFFSET -1", "2201X"), ("LIMIT 2 OFFSET -1", "2201X")] {
            let error = client.simple_query(&format!("SELECT n FROM o {text}")).await.unwrap_err();
            assert!(refused(&error).starts_with(expected), "{}", refused(&error));
        }
    });
    assert_eq!(server.end(), Some(0));
}

#[test]
fn queries_that_take_too_much_end_and_calls_go_on_meanwhile() {
    let (_folder, server) = bank("serve-query-limits");
    block_on(async {
        let (client, other) = (connect(&server).await, connect(&server).await);
        client
            .batch_execute(
                "CREATE TABLE big (id INTEGER PRIMARY KEY);
                 CREATE PROCEDURE fill(first INTEGER) AS BEGIN
                     FOR i IN 0..999 LOOP INSERT INTO big VALUES (first + i); END LOOP;
                 END;",
            )
            .await
            .unwrap();
        for first in (0..20).map(|thousand| thousand * 1000) {
            client.batch_execute(&format!("CALL fill({first})")).await.unwrap();
        }
        // 400 million pairs, and calls of others beside them.
        let begun = Instant::now();
        let long = tokio::spawn(async move {
            let asked = client.simple_query("SELECT count(*) FROM big a, big b WHERE a.id + b.id < 0").await;
            (client, asked.map(drop))
        });
        tokio::time::sleep(Duration::from_millis(300)).await;
        let mut slowest = Duration::ZERO;
        for _ in 0..50 {
            let call = Instant::now();
            assert_eq!(simple(&other, "CALL transfer(1, 2, 0.01)").await.len(), 1);
            assert_eq!(simple(&other, "SELECT count(*) FROM accounts").await, ["3"]);
            slowest = slowest.max(call.elapsed());
        }
        // The long one may run for 30 s.
        assert!(slowest < Duration::from_secs(15), "{slowest:?}");
        // With seven more there is no place for a query with tables; one without them needs none.
        let mut others = Vec::new();
        for _ in 0..7 {
            let more = connect(&server).await;
            others.push(tokio::spawn(async move {
                more.simple_query("SELECT count(*) FROM big a, big b WHERE a.id + b.id < 0").await.map(drop)
            }));
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        let asked = Instant::now();
        assert_eq!(simple(&other, "SELECT 1 + 1").await, ["2"]);
        assert!(asked.elapsed() < Duration::from_secs(15), "{:?}", asked.elapsed());
        others.into_iter().for_each(|other| other.abort());
        let (client, asked) = long.await.unwrap();
        // A fast machine may be done; else the limit says so.
        if let Err(error) = asked {
            let said = refused(&error);
            assert!(said.starts_with("57014") && begun.elapsed() > Duration::from_secs(29), "{said}");
        }
        let error = client.simple_query("SELECT a.id, b.id FROM big a, big b").await.unwrap_err();
        assert!(refused(&error).starts_with("54000"), "{}", refused(&error));
        let text = "SELECT sum(id) FROM big a WHERE id IN (SELECT id + 10000 FROM big)";
        assert_eq!(simple(&client, text).await, ["149995000"]);
    });
}
