//! Values at `lockwork serve` that are computed, do not fit, are NULL or are there already: clients are told what
//! PostgreSQL would say.

use std::io::Cursor;
use std::time::SystemTime;

use crate::folder::{Folder, command};
use crate::server::{Server, program};
use futures::SinkExt;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

const TABLES: &str = "
    CREATE TABLE t (id INTEGER PRIMARY KEY, name VARCHAR(5) NOT NULL, price DECIMAL(6, 2) NOT NULL DEFAULT 0,
        at TIMESTAMP NOT NULL DEFAULT '2024-01-31') WITH (ordered = true);
    INSERT INTO t (id, name, price) VALUES (-2147483648, 'least', 1), (7, 'ann', 2), (2147483647, 'most', 3);
    CREATE TABLE named (name VARCHAR(5), n SMALLINT, PRIMARY KEY (name, n));
    INSERT INTO named VALUES ('ann', 1);
    CREATE TABLE raw (b BYTEA(4) PRIMARY KEY, more BYTEA(3) NOT NULL);
    CREATE PROCEDURE add(n SMALLINT, word VARCHAR(3)) AS BEGIN NULL; END;
    CREATE PROCEDURE is_raw(b BYTEA(4), OUT yes BOOLEAN) AS BEGIN yes := b = '\\x0a0b'; END;";

fn serve(name: &str, words: &[&str]) -> (Folder, Server) {
    let folder = Folder::new(name);
    std::fs::create_dir_all(&folder.0).unwrap();
    let file = folder.0.join("tables.sql");
    std::fs::write(&file, TABLES).unwrap();
    let server = Server::start(&[&["--init", file.to_str().unwrap()], words].concat());
    assert!(server.ready.starts_with("ready: in memory"), "{}", server.ready);
    (folder, server)
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

/// SQLSTATE, message, detail, table, column and constraint of an error.
fn refused(error: &tokio_postgres::Error) -> String {
    let error = error.as_db_error().unwrap_or_else(|| panic!("{error}"));
    let mut text = format!("{} {}", error.code().code(), error.message());
    assert_eq!(error.schema().is_some(), error.table().is_some());
    let fields = [error.detail(), error.schema(), error.table(), error.column(), error.constraint()];
    fields.into_iter().flatten().for_each(|field| text += &format!(" | {field}"));
    text
}

/// What a simple query answers: the cells of rows, the number of rows otherwise, or its error.
async fn ask(client: &Client, text: &str) -> String {
    let messages = match client.simple_query(text).await {
        Ok(messages) => messages,
        Err(error) => return refused(&error),
    };
    let (mut rows, mut count) = (Vec::new(), 0);
    for message in &messages {
        match message {
            SimpleQueryMessage::Row(row) => {
                rows.push((0..row.len()).map(|at| row.get(at).unwrap_or("NULL")).collect::<Vec<_>>().join("|"));
            }
            SimpleQueryMessage::CommandComplete(rows) => count = *rows,
            _ => {}
        }
    }
    if rows.is_empty() { count.to_string() } else { rows.join("; ") }
}

/// As [`ask`], of a statement with values.
async fn run(client: &Client, text: &str, values: &[(&(dyn ToSql + Sync), Type)]) -> String {
    match client.query_typed(text, values).await {
        Ok(rows) => rows.len().to_string(),
        Err(error) => refused(&error),
    }
}

#[test]
fn a_select_without_a_table_computes_what_postgresql_does() {
    let (_folder, server) = serve("serve-values-alone", &[]);
    block_on(async {
        let client = connect(&server).await;
        for (text, expected) in [
            ("SELECT 7/0", "22012 division by zero"),
            ("SELECT 7 % 0, current_schema()", "22012 division by zero"),
            ("SELECT 9223372036854775807 + 1", "22003 a number is out of range"),
            ("SELECT 1.5::int, 2.5::int", "2|3"),
            ("SELECT 'a'\n'b'", "ab"),
            ("SELECT 'a' 'b'", "42601 syntax error at or near \"'b'\""),
            ("SELECT 0x10", "16"),
            ("SELECT * FROM (VALUES (1, 'a'), (2, 'b')) AS v(n, word) WHERE n > 1", "2|b"),
            ("SELECT sum(n) FROM generate_series(1, 100) AS n", "5050"),
            ("SELECT n, id FROM generate_series(1, 2) AS s(n), t WHERE id = 7 ORDER BY n", "1|7; 2|7"),
            ("SELECT count(*) FROM t WHERE now() > at AND id = 7 AND current_date = CURRENT_TIMESTAMP::date", "1"),
            ("SELECT count(*) FROM t WHERE at = '2024-01-31'::date", "3"),
            ("SELECT 9223372036854775807 + 1, current_user", "22003 a number is out of range"),
            ("SELECT upper(current_user), current_database(), count(*) FROM t", "ANN|bank|3"),
            ("SELECT user, session_user FROM t WHERE id = 7", "ann|ann"),
            ("SELECT 70000::smallint, format_type(23, -1)", "22003 a number is out of range"),
            ("SELECT format_type(23, -1), 1.5", "0A000 the number 1.5 cannot stand beside what the catalog answers"),
            ("SELECT to_char(now(), 'YYYY')", "42883 no function is called 'to_char' here"),
            ("SELECT generate_series(1.5, 3)", "0A000 the number 1.5 cannot stand beside what the catalog answers"),
            ("SELECT * FROM generate_series(1.5, 3)", "42804 generate_series takes integers, and this is numeric"),
            ("SELECT n FROM generate_series('a', 'b') AS s(n)", "22P02 'a' is no INTEGER: write digits"),
            ("SELECT interval '1 day'", "0A000 'INTERVAL '1 day'' is not supported in queries"),
            ("SELECT 1 << 40", "0A000 the operator << is not supported"),
            ("SELECT *, n FROM generate_series(3, 4) WITH ORDINALITY AS s(n, at)", "3|1|3; 4|2|4"),
            ("SELECT -'x'", "42883 - takes a number"),
            ("SELECT true + 1", "42883 a boolean and a integer cannot be computed like this"),
            ("SELECT 1 || 2", "42883 || joins texts"),
            ("SELECT 1 UNION ALL SELECT NULL", "1; NULL"),
            ("SELECT id FROM t WHERE id = 7 UNION ALL SELECT NULL ORDER BY 1", "7; NULL"),
            ("SELECT -9223372036854775808", "-9223372036854775808"),
            ("SELECT trim(leading from '  a '), trim(BOTH 'x' FROM 'xax')", "a |a"),
            ("SELECT 2.5::float8::int, round(-2.5::float8), 2.5::int", "2|-2|3"),
            ("SELECT 1 /* and so on", "42601 Unexpected EOF while in a multi-line comment"),
            ("/* and so on", "42601 the comment has no end"),
            ("SELECT 1 a, 2 a ORDER BY a", "42702 several columns of the list are called 'a'"),
        ] {
            assert_eq!(ask(&client, text).await, expected, "{text}");
        }
        let cases = format!("SELECT {}1{} FROM t", "CASE WHEN true THEN ".repeat(200), " END".repeat(200));
        assert_eq!(ask(&client, &cases).await, "54001 the query is too deep to be read");
        let many = format!("VALUES {}(1)", "(1), ".repeat(60_000));
        assert_eq!(ask(&client, &many).await, "54000 a query is of at most 256 KiB");
        let joins = (0..70).map(|at| format!("t t{at}")).collect::<Vec<_>>().join(", ");
        let joins = format!("SELECT count(*) FROM {joins}");
        assert_eq!(ask(&client, &joins).await, "54000 a SELECT joins at most 64 tables");
        // Numbers with decimals have six, unless something says how many they have.
        let half = client.query_typed("SELECT $1, $1 + 1, 2 * $1", &[(&0.5_f64, Type::FLOAT8)]).await.unwrap();
        assert_eq!((half[0].columns()[0].type_(), half[0].get::<_, f64>(0)), (&Type::FLOAT8, 0.5));
        // A client that says the types of its values gets them back.
        let answered = client.query_typed("SELECT $1, $1::int8", &[(&7_i16, Type::INT2)]).await.unwrap();
        assert_eq!((answered[0].get::<_, i16>(0), answered[0].get::<_, i64>(1)), (7, 7));
        let answered = client.query_one("SELECT $1::int8 + 1", &[&i64::from(i32::MAX)]).await.unwrap();
        assert_eq!(answered.get::<_, i64>(0), 2_147_483_648);
        let answered = client.query_one("VALUES (1, 2::int8, 'x'), (2, 3, NULL) LIMIT 1", &[]).await.unwrap();
        let types: Vec<&Type> = answered.columns().iter().map(tokio_postgres::Column::type_).collect();
        assert_eq!(types, [&Type::INT4, &Type::INT8, &Type::TEXT]);
        let now = client.query_one("SELECT now(), current_date", &[]).await.unwrap();
        assert_eq!(now.columns()[1].type_(), &Type::DATE);
        let ago = SystemTime::now().duration_since(now.get::<_, SystemTime>(0)).unwrap();
        assert!(ago.as_secs() < 60, "{ago:?}");
    });
}

#[test]
fn bytes_are_what_their_text_means_on_every_way() {
    let (_folder, server) = serve("serve-values-bytes", &[]);
    block_on(async {
        let client = connect(&server).await;
        let shown = r"\x0a0b0000|\x616200";
        assert_eq!(ask(&client, r"INSERT INTO raw VALUES ('\x0a0b', 'ab')").await, "1");
        for filter in [r"b = '\x0a0b'", r"b = '\x0A0b0000'", r"b = '\012\013'", "b = X'0a0b'", r"b <= '\x0a0b' LIMIT 9"]
        {
            assert_eq!(ask(&client, &format!("SELECT * FROM raw WHERE {filter}")).await, shown, "{filter}");
        }
        for filter in [r"more = '\x6162'", r"more IN ('ab')", r"b = '\x0a0b' AND more = 'ab'"] {
            assert_eq!(ask(&client, &format!("SELECT * FROM raw WHERE {filter}")).await, shown, "{filter}");
        }
        for value in [&[10_u8, 11][..], &[10, 11, 0, 0], &[10, 11, 0, 0, 0]] {
            let found = client.query("SELECT b FROM raw WHERE b = $1", &[&value]).await.unwrap();
            assert_eq!(found[0].get::<_, &[u8]>(0), [10, 11, 0, 0]);
            let found = client.query("SELECT more FROM raw WHERE b = $1 AND b IS NOT NULL", &[&value]).await.unwrap();
            assert_eq!(found.len(), 1);
        }
        assert_eq!(ask(&client, r"CALL is_raw('\x0a0b')").await, "t");
        assert_eq!(ask(&client, r"UPDATE raw SET more = '\x00ff' WHERE b = '\x0a0b'").await, "1");
        let copied = client.copy_out("COPY raw TO STDOUT").await.unwrap();
        let lines: Vec<_> = futures::TryStreamExt::try_collect(copied).await.unwrap();
        assert_eq!(lines.concat(), b"\\\\x0a0b0000\t\\\\x00ff00\n");
        assert_eq!(ask(&client, r"DELETE FROM raw WHERE b = '\x0a0b'").await, "1");
        let sink = client.copy_in("COPY raw FROM STDIN").await.unwrap();
        let mut sink = std::pin::pin!(sink);
        sink.send(Cursor::new(lines.concat())).await.unwrap();
        assert_eq!(sink.finish().await.unwrap(), 1);
        assert_eq!(ask(&client, r"SELECT more FROM raw WHERE b = '\x0a0b'").await, r"\x00ff00");
        assert!(ask(&client, r"INSERT INTO raw VALUES ('\x0', 'a')").await.starts_with("22P02 column 'b': "));
        assert!(ask(&client, r"SELECT b FROM raw WHERE b = 'a\'").await.starts_with("22P02"));
    });
}

#[test]
fn what_a_column_cannot_hold_finds_no_rows_and_is_not_written() {
    let (_folder, server) = serve("serve-values-range", &["--engine", "two-phase"]);
    block_on(async {
        let client = connect(&server).await;
        for (text, expected) in [
            ("SELECT * FROM t WHERE id = 99999999999", "0"),
            ("SELECT * FROM t WHERE id = NULL", "0"),
            ("UPDATE t SET price = 9 WHERE id = -99999999999", "0"),
            ("DELETE FROM t WHERE id = 99999999999.0", "0"),
            ("DELETE FROM t WHERE id > 2147483647 LIMIT 10", "0"),
            ("SELECT id FROM t WHERE id < 99999999999 LIMIT 9", "-2147483648; 7; 2147483647"),
            ("SELECT id FROM t WHERE id > -99999999999 AND id <= 7 LIMIT 9", "-2147483648; 7"),
            ("SELECT id FROM t WHERE id BETWEEN 8 AND 99999999999 LIMIT 9", "2147483647"),
            ("SELECT id FROM t WHERE id > 7 AND id < 2147483647 LIMIT 9", "0"),
            ("SELECT id FROM t WHERE id < -99999999999 LIMIT 9", "0"),
            ("SELECT n FROM named WHERE name = 'anna-maria' AND n = 1", "0"),
            ("SELECT n FROM named WHERE name = 'ann' AND n = 70000", "0"),
            ("SELECT n FROM named WHERE name = 'ann' AND n > -70000 LIMIT 3", "1"),
            ("SELECT count(*) FROM t WHERE id < 99999999999 AND name <> 'anna-maria'", "3"),
        ] {
            assert_eq!(ask(&client, text).await, expected, "{text}");
        }
        let big = 99_999_999_999_i64;
        for (text, expected) in [
            ("SELECT id FROM t WHERE id = $1", "0"),
            ("SELECT id FROM t WHERE id < $1 LIMIT 9", "3"),
            ("SELECT id FROM t WHERE id > $1 LIMIT 9", "0"),
            ("SELECT id FROM t WHERE id < $1 AND price > 0", "3"),
            (
                "INSERT INTO t (id, name) VALUES ($1, 'a')",
                "22003 parameter $1: column 'id': 99999999999 is out of the range of INTEGER",
            ),
            ("CALL add($1, 'a')", "22003 parameter $1: 99999999999 is out of the range of SMALLINT"),
        ] {
            let said = run(&client, text, &[(&big, Type::INT8)]).await;
            assert!(said.starts_with(expected), "{text}: {said}");
        }
        let long = "anna-maria";
        for (text, expected) in [
            ("SELECT n FROM named WHERE name = $1 AND n = 1", "0"),
            ("UPDATE t SET price = 1 WHERE id = 7 AND name = $1", "0"),
            (
                "UPDATE t SET name = $1 WHERE id = 7",
                "22001 parameter $1: column 'name': 10 bytes do not fit a text of 5 bytes",
            ),
            ("CALL add(1, $1)", "22001"),
        ] {
            let said = run(&client, text, &[(&long, Type::TEXT)]).await;
            assert!(said.starts_with(expected), "{text}: {said}");
        }
        for (text, expected) in [
            ("INSERT INTO t (id, name) VALUES (99999999999, 'a')", "22003 column 'id': "),
            ("INSERT INTO t (id, name, price) VALUES (1, 'a', 10000)", "22003 column 'price': "),
            ("UPDATE t SET name = 'anna-maria' WHERE id = 7", "22001 column 'name': "),
        ] {
            let said = ask(&client, text).await;
            assert!(said.starts_with(expected) && said.contains(" | public | t | "), "{text}: {said}");
        }
        // A transaction goes on behind a statement that finds nothing.
        let many = "BEGIN; UPDATE t SET price = 1 WHERE id = 99999999999; UPDATE t SET price = 5 WHERE id = 7; COMMIT";
        ask(&client, many).await;
        assert_eq!(ask(&client, "SELECT price FROM t WHERE id = 7").await, "5.00");
    });
}

#[test]
fn nulls_and_keys_that_exist_are_told_with_their_table_and_column() {
    let (_folder, server) = serve("serve-values-null", &[]);
    block_on(async {
        let client = connect(&server).await;
        let null = "23502 null value in column 'name' of table 't', and there are no NULLs | public | t | name";
        for text in ["INSERT INTO t (id, name) VALUES (9, NULL)", "UPDATE t SET name = NULL WHERE id = 7"] {
            assert_eq!(ask(&client, text).await, null, "{text}");
        }
        let left_out = ask(&client, "INSERT INTO t (id) VALUES (9)").await;
        assert!(left_out.starts_with("23502 ") && left_out.ends_with(" | public | t | name"), "{left_out}");
        let none: Option<&str> = None;
        for text in ["INSERT INTO t (id, name) VALUES (9, $1)", "UPDATE t SET name = $1 WHERE id = 7"] {
            assert_eq!(run(&client, text, &[(&none, Type::TEXT)]).await, null, "{text}");
        }
        assert_eq!(run(&client, "SELECT 1 FROM named WHERE name = $1 AND n = 1", &[(&none, Type::TEXT)]).await, "0");
        assert_eq!(run(&client, "SELECT n FROM named WHERE name = $1 AND n = 1", &[(&none, Type::TEXT)]).await, "0");
        assert!(run(&client, "CALL add(1, $1)", &[(&none, Type::TEXT)]).await.starts_with("22004 "));
        assert!(ask(&client, "CALL add(1, NULL)").await.starts_with("0A000 there are no NULLs"));

        let exists = "23505 a row with this key exists | Key (id)=(7) already exists. | public | t | t_pkey";
        assert_eq!(ask(&client, "INSERT INTO t (id, name) VALUES (7, 'a')").await, exists);
        assert_eq!(run(&client, "INSERT INTO t (name, id) VALUES ('a', $1)", &[(&7_i32, Type::INT4)]).await, exists);
        let several = ask(&client, "INSERT INTO t (id, name) VALUES (8, 'a'), (7, 'a')").await;
        assert_eq!(several, "23505 a row with this key exists | public | t | t_pkey");
        let said = ask(&client, "INSERT INTO named VALUES ('ann', 1)").await;
        assert!(said.ends_with("| Key (name, n)=(ann, 1) already exists. | public | named | named_pkey"), "{said}");

        for (text, line, expected) in [
            ("COPY t (id, name) FROM STDIN", "9\t\\N\n", "23502 null value in column \"name\" | "),
            (
                "COPY t (id, name) FROM STDIN",
                "8\ta\n7\ta\n9\ta\n",
                "23505 table 't' has a row with key (7) already; a key may stand once | Key (id)=(7) already",
            ),
            (
                "COPY t (id) FROM STDIN",
                "9\n",
                "23502 column 'name' is left out, and has no DEFAULT | public | t | name",
            ),
        ] {
            let error = match client.copy_in(text).await {
                Ok(sink) => {
                    let mut sink = std::pin::pin!(sink);
                    sink.send(Cursor::new(line)).await.unwrap();
                    sink.finish().await.unwrap_err()
                }
                Err(error) => error,
            };
            let said = refused(&error);
            assert!(said.starts_with(expected) && said.contains(" | public | t | "), "{text}: {said}");
        }
    });
}

#[test]
fn psql_shows_what_an_error_is_about() {
    let (_folder, server) = serve("serve-values-psql", &[]);
    let Some(mut psql) = program("psql") else { return };
    psql.args([
        "-h",
        "127.0.0.1",
        "-p",
        &server.port.to_string(),
        "-U",
        "ann",
        "-X",
        "-v",
        "VERBOSITY=verbose",
        "bank",
    ]);
    let output = psql.args(["-c", "INSERT INTO named VALUES ('ann', 1)"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    for line in ["DETAIL:  Key (name, n)=(ann, 1) already exists.", "SCHEMA NAME:  public", "TABLE NAME:  named"] {
        assert!(said.contains(line), "{said}");
    }
    assert!(said.contains("ERROR:  23505: ") && said.contains("CONSTRAINT NAME:  named_pkey"), "{said}");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_folder_says_the_same_without_a_server() {
    let folder = Folder::new("values-folder");
    let path = folder.0.to_str().unwrap();
    let (code, _, error) = command(&["sql", path], TABLES);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    for (text, expected) in [
        ("SELECT id FROM t WHERE id = 99999999999", ""),
        ("SELECT id FROM t WHERE id > 7 AND id < 99999999999 LIMIT 3", "2147483647"),
        ("INSERT INTO t (id, name) VALUES (99999999999, 'a')", "22003: column 'id': "),
        ("INSERT INTO t (id, name) VALUES (1, NULL)", "23502: null value in column 'name' of table 't'"),
    ] {
        let (_, said, error) = command(&["sql", path, "--command", text, "--output", "csv"], "");
        let all = format!("{said}{error}");
        assert!(
            all.contains(expected) && (!expected.is_empty() || error.is_empty() && !said.contains("7")),
            "{text}: {all}"
        );
    }
}

#[test]
fn a_text_in_quotes_is_what_its_place_needs() {
    let (_folder, server) = serve("serve-values-quoted", &[]);
    block_on(async {
        let client = connect(&server).await;
        for (text, expected) in [
            ("CREATE TABLE q (id BIGINT PRIMARY KEY, d DECIMAL(6, 2) NOT NULL DEFAULT '0', b BOOLEAN NOT NULL)", "0"),
            ("INSERT INTO q (id, b) VALUES ('1', 'yes')", "1"),
            ("INSERT INTO q VALUES (2, '1.5', 'f'), ('3', '-2.345', true)", "2"),
            ("SELECT d FROM q WHERE id = '1'", "0.00"),
            ("UPDATE q SET d = d + '1' WHERE id = '2'", "1"),
            ("SELECT id, d, b FROM q ORDER BY id", "1|0.00|t; 2|2.50|f; 3|-2.35|t"),
            ("SELECT id FROM q WHERE d > '2' AND b = 'no'", "2"),
            ("CALL add('1', 'ab')", "0"),
            ("SELECT d FROM q WHERE id = '1x'", "22P02 '1x' is no BIGINT: write digits"),
            ("SELECT d FROM q WHERE id = '1.5'", "22P02 '1.5' is no BIGINT: write digits"),
            ("CALL add('1x', 'ab')", "22P02 '1x' is no SMALLINT: write digits"),
            (
                "INSERT INTO q VALUES (4, 'x', true)",
                "22P02 column 'd': 'x' is no DECIMAL(6, 2): write digits and a point | public | q | d",
            ),
            (
                "INSERT INTO q VALUES (4, 1, 'maybe')",
                "22P02 column 'b': 'maybe' is no BOOLEAN: write true or false | public | q | b",
            ),
            (
                "INSERT INTO q VALUES ('9223372036854775808', 1, true)",
                "22003 column 'id': 9223372036854775808 is out of the range of BIGINT | public | q | id",
            ),
        ] {
            assert_eq!(ask(&client, text).await, expected, "{text}");
        }
    });
    assert_eq!(server.end(), Some(0));
}
