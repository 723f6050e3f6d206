//! What a server makes of values: queries of no table, bytes, values that a column cannot hold, NULLs, and names with a
//! schema, as PostgreSQL's clients expect it.

use std::io::Write;
use std::path::Path;

use crate::BANK;
use crate::client::{Client, message};
use crate::folder::{Folder, command};
use crate::server::{Server, program};

const TABLE: &str = "CREATE TABLE t (id INTEGER PRIMARY KEY, s SMALLINT NOT NULL, v VARCHAR(5) NOT NULL, \
                     b BYTEA(8) NOT NULL)";

/// Each statement, and what it answers; of an error what it begins with.
fn answers(client: &mut Client, all: &[(&str, &str)]) {
    for (text, expected) in all {
        let answered = client.query(text).unwrap();
        let is_right =
            if expected.starts_with("ERROR") { answered.starts_with(expected) } else { answered == *expected };
        assert!(is_right, "{text}: {answered}");
    }
}

#[test]
fn queries_of_no_table_are_exact_or_fail() {
    let server = Server::start(&["--init", BANK]);
    let mut client = Client::of(&server);
    answers(
        &mut client,
        &[
            ("SELECT 7 / 0", "ERROR 22012 division by zero"),
            ("SELECT 7 / 2, -7 % 3", "3|-1\nSELECT 1"),
            ("SELECT 9223372036854775807 + 1", "ERROR 22003"),
            ("SELECT 1.5::int, 2.5::int, (-1.5)::int", "2|3|-2\nSELECT 1"),
            ("SELECT 'a' 'b'", "ERROR 42601"),
            ("SELECT 0x10, 0xffffffffff", "16|1099511627775\nSELECT 1"),
            ("SELECT 0x10000000000000000", "ERROR 22003"),
            ("VALUES (1, 'a'), (2, 'b')", "1|a\n2|b\nSELECT 2"),
            ("SELECT 1 WHERE 1 = 2", "SELECT 0"),
            ("SELECT now() > '2026-01-01', now() = current_timestamp", "t|t\nSELECT 1"),
            ("SELECT count(*) FROM accounts WHERE now() > '2026-01-01'", "2\nSELECT 1"),
            ("SELECT * FROM generate_series(1, 3)", "1\n2\n3\nSELECT 3"),
            ("SELECT sum(n) FROM generate_series(10, 1, -3) AS g(n)", "22\nSELECT 1"),
            ("SELECT count(*) FROM generate_series(1, 0)", "0\nSELECT 1"),
            (
                "SELECT max(g) FROM generate_series(9223372036854775806, 9223372036854775807) AS g",
                "9223372036854775807\nSELECT 1",
            ),
            ("SELECT count(*) FROM accounts, generate_series(1, 5)", "10\nSELECT 1"),
            ("SELECT * FROM generate_series(1, 3, 0)", "ERROR 22023"),
            // The catalog knows more functions.
            ("SELECT current_database(), 'accounts'::regclass", "bank|accounts\nSELECT 1"),
        ],
    );
    assert_eq!(server.end(), Some(0));
}

#[test]
fn bytes_are_read_as_they_are_shown() {
    let server = Server::start(&[]);
    let mut client = Client::of(&server);
    answers(
        &mut client,
        &[
            (TABLE, "CREATE TABLE"),
            ("CREATE TABLE k (b BYTEA(4) PRIMARY KEY, n BIGINT NOT NULL)", "CREATE TABLE"),
            (r"INSERT INTO t VALUES (1, 1, 'a', '\x0a0b')", "INSERT 0 1"),
            (r"INSERT INTO t VALUES (2, 1, 'a', X'5c7830')", "INSERT 0 1"),
            (r"INSERT INTO t VALUES (3, 1, 'a', 'abc')", "INSERT 0 1"),
            (r"INSERT INTO t VALUES (4, 1, 'a', '\x0a0')", "ERROR 22P02"),
            (r"INSERT INTO t VALUES (4, 1, 'a', '\x000102030405060708')", "ERROR 22001"),
            ("SELECT b FROM t WHERE id = 1", "\\x0a0b000000000000\nSELECT 1"),
            (r"SELECT id FROM t WHERE b = '\x0a0b'", "1\nSELECT 1"),
            (r"SELECT id FROM t WHERE b = '\x0a0b000000000000'", "1\nSELECT 1"),
            (r"SELECT id FROM t WHERE b = X'5c7830'", "2\nSELECT 1"),
            (r"SELECT id FROM t WHERE b = 'abc'", "3\nSELECT 1"),
            (r"SELECT id FROM t WHERE b <> '\x0a0b' ORDER BY id", "2\n3\nSELECT 2"),
            (r"SELECT id FROM t WHERE b IN ('\x0a0b', 'abc') ORDER BY id", "1\n3\nSELECT 2"),
            (r"UPDATE t SET b = '\xff' WHERE id = 1", "UPDATE 1"),
            ("SELECT b FROM t WHERE id = 1", "\\xff00000000000000\nSELECT 1"),
            (r"INSERT INTO k VALUES ('\x01ff', 7)", "INSERT 0 1"),
            (r"SELECT n FROM k WHERE b = '\x01ff'", "7\nSELECT 1"),
            (r"DELETE FROM k WHERE b = '\x01ff'", "DELETE 1"),
            (
                r"CREATE PROCEDURE p(b BYTEA(2), OUT c BYTEA(2)) AS $$ BEGIN c := '\x0102'; IF b = c THEN c := '\xff'; END IF; END $$",
                "CREATE PROCEDURE",
            ),
            (r"CALL p('\x0102')", "\\xff00\nCALL"),
            (r"CALL p('\x03')", "\\x0102\nCALL"),
        ],
    );
    assert_eq!(server.end(), Some(0));
}

#[test]
fn what_a_column_cannot_hold_equals_nothing_and_is_not_stored() {
    let server = Server::start(&["--init", BANK]);
    let mut client = Client::of(&server);
    answers(
        &mut client,
        &[
            (TABLE, "CREATE TABLE"),
            ("CREATE TABLE w (v VARCHAR(3) PRIMARY KEY)", "CREATE TABLE"),
            ("INSERT INTO t VALUES (1, 1, 'abc', 'x')", "INSERT 0 1"),
            ("SELECT id FROM t WHERE id = 99999999999", "SELECT 0"),
            ("SELECT id FROM t WHERE 99999999999 = id", "SELECT 0"),
            ("SELECT id FROM t WHERE id < 99999999999", "1\nSELECT 1"),
            ("SELECT id FROM t WHERE id>-5 AND id<=+1", "1\nSELECT 1"),
            ("SELECT v FROM w WHERE v = 'abcdef'", "SELECT 0"),
            ("UPDATE t SET s = 2 WHERE id = 99999999999", "UPDATE 0"),
            ("DELETE FROM t WHERE id = -99999999999", "DELETE 0"),
            ("DELETE FROM w WHERE v = 'abcdef'", "DELETE 0"),
            ("INSERT INTO t VALUES (99999999999, 1, 'a', 'a')", "ERROR 22003 column 'id'"),
            ("INSERT INTO t VALUES (2, 1, 'abcdef', 'a')", "ERROR 22001 column 'v'"),
            ("UPDATE t SET s = 40000 WHERE id = 1", "ERROR 22003 column 's'"),
            ("UPDATE t SET v = 'abcdef' WHERE id = 1", "ERROR 22001 column 'v'"),
            ("INSERT INTO t VALUES (2, NULL, 'a', 'a')", "ERROR 23502 null value in column 's' of table 't'"),
            ("INSERT INTO t (id) VALUES (2)", "ERROR 23502"),
            ("UPDATE t SET v = NULL WHERE id = 1", "ERROR 23502 null value in column 'v'"),
            ("CALL transfer(1, NULL, 3)", "ERROR 0A000 there are no NULLs"),
            ("SELECT s FROM t WHERE id = 1", "1\nSELECT 1"),
        ],
    );
    let cases: [(&str, &[&str], &str); 4] = [
        ("SELECT s FROM t WHERE id = $1", &["1"], "1\nSELECT 1"),
        ("SELECT s FROM t WHERE id = $1", &["99999999999"], "SELECT 0"),
        ("INSERT INTO t VALUES ($1, 1, $2, 'a')", &["5", "abcdef"], "ERROR 22001 parameter $2"),
        ("SELECT $1::bigint + 1", &["41"], "42\nSELECT 1"),
    ];
    for (text, values, expected) in cases {
        let answered = client.prepared(text, values).unwrap();
        assert!(answered.contains(expected), "{text}: {answered}");
    }
    assert_eq!(server.end(), Some(0));
}

/// The fields of the error that a message ends with, each with its letter.
fn fields(client: &mut Client, message: &[u8]) -> Vec<String> {
    client.0.get_mut().write_all(message).unwrap();
    let answers = client.answers().unwrap();
    let (_, body) = answers.iter().find(|(kind, _)| *kind == b'E').expect("an error");
    String::from_utf8_lossy(body).split('\0').map(String::from).collect()
}

#[test]
fn errors_name_what_they_are_about() {
    let server = Server::start(&[]);
    let mut client = Client::of(&server);
    answers(&mut client, &[(TABLE, "CREATE TABLE"), ("INSERT INTO t VALUES (1, 1, 'a', 'a')", "INSERT 0 1")]);
    for insert in ["INSERT INTO t VALUES (1, 1, 'a', 'a')", "insert into public.\"t\" values (1, 1, 'a', 'a')"] {
        let shown = fields(&mut client, &message(b'Q', &[insert.as_bytes(), b"\0"].concat()));
        for field in ["SERROR", "VERROR", "C23505", "spublic", "tt", "nt_pkey"] {
            assert!(shown.iter().any(|one| one == field), "{field}: {shown:?}");
        }
    }
    // A function call of the old protocol is refused, and the connection goes on.
    let mut call = 1_u32.to_be_bytes().to_vec();
    call.extend([0; 6]);
    assert!(client.ask(&message(b'F', &call)).unwrap().starts_with("ERROR 0A000"));
    answers(&mut client, &[("SELECT s FROM t WHERE id = 1", "1\nSELECT 1")]);
    let shown = fields(&mut client, &message(b'z', b""));
    assert!(["SFATAL", "VFATAL", "C08P01"].iter().all(|field| shown.iter().any(|one| one == field)), "{shown:?}");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn names_may_have_their_schema_and_statements_that_there_are_not_say_what_there_is() {
    let server = Server::start(&[]);
    let mut client = Client::of(&server);
    answers(
        &mut client,
        &[
            ("CREATE TABLE public.t (id BIGINT PRIMARY KEY, n BIGINT NOT NULL)", "CREATE TABLE"),
            ("CREATE INDEX i ON public.t (n)", "CREATE INDEX"),
            ("CREATE TABLE d (id BIGINT PRIMARY KEY, n BIGINT DEFAULT -7 NOT NULL)", "CREATE TABLE"),
            ("INSERT INTO d (id) VALUES (1)", "INSERT 0 1"),
            ("SELECT n FROM d WHERE id = 1", "-7\nSELECT 1"),
            (
                "CREATE PROCEDURE public.p(k BIGINT, OUT m BIGINT) AS $$ BEGIN SELECT n INTO m FROM public.t WHERE id = k; END $$",
                "CREATE PROCEDURE",
            ),
            ("INSERT INTO public.t VALUES (1, 2)", "INSERT 0 1"),
            ("UPDATE public.t SET n = 3 WHERE id = 1", "UPDATE 1"),
            ("SELECT n FROM public.t WHERE id = 1", "3\nSELECT 1"),
            ("UPDATE public.t SET n = public.t.n + 1 WHERE public.t.id = 1", "UPDATE 1"),
            ("SELECT public.t.n FROM bank.public.t WHERE t.id = 1", "4\nSELECT 1"),
            ("UPDATE bank.public.t SET n = 3 WHERE id = 1", "UPDATE 1"),
            ("SELECT count(*) FROM public.t AS a JOIN public.t AS b ON a.id = b.id", "1\nSELECT 1"),
            ("COPY public.t TO STDOUT", "COPY 1"),
            ("CALL public.p(1)", "3\nCALL"),
            ("DELETE FROM \"public\".t WHERE id = 1", "DELETE 1"),
            ("INSERT INTO other.t VALUES (1, 2)", "ERROR 3F000 no schema is called 'other'"),
            ("SELECT n FROM other.t WHERE id = 1", "ERROR 3F000"),
            ("SELECT count(*) FROM public.t JOIN other.t ON true", "ERROR 3F000 no schema is called 'other'"),
            ("UPDATE t SET n = other.t.n WHERE id = 1", "ERROR 3F000"),
            ("CALL other.p(1)", "ERROR 3F000"),
            ("COPY other.t TO STDOUT", "ERROR 3F000"),
            ("CREATE TABLE other.t (id BIGINT PRIMARY KEY)", "ERROR 3F000"),
            (
                "CREATE PROCEDURE rows(OUT r t%ROWTYPE[2], OUT s public.t%ROWTYPE) AS $$ BEGIN NULL; END $$",
                "CREATE PROCEDURE",
            ),
            ("CREATE TABLE pg_mine (id BIGINT PRIMARY KEY)", "ERROR 42939"),
            ("CREATE INDEX pg_mine ON t (n)", "ERROR 42939"),
            ("VACUUM", "ERROR 0A000 VACUUM is not supported"),
            ("DECLARE c CURSOR FOR SELECT 1", "ERROR 0A000 DECLARE is not supported"),
            ("DROP TABLE t", "ERROR 0A000 DROP TABLE is not supported"),
            ("LISTEN a", "ERROR 0A000 LISTEN is not supported"),
            ("CREATE OR REPLACE VIEW v AS SELECT 1", "ERROR 0A000 CREATE VIEW"),
            ("CREATE SCHEMA s", "ERROR 0A000 CREATE SCHEMA"),
            ("ALTER ROLE ann PASSWORD 'a'", "ERROR 0A000 ALTER ROLE"),
            ("CREATE TABLE c AS SELECT 1", "ERROR 0A000 CREATE TABLE ... AS"),
            ("CREATE INDEX CONCURRENTLY c ON t (n)", "ERROR 0A000 CREATE INDEX CONCURRENTLY"),
            ("CREATE INDEX ON t (n)", "ERROR 0A000 an index without a name"),
            ("INSERT INTO t DEFAULT VALUES", "ERROR 0A000 DEFAULT VALUES"),
            ("WITH a AS (SELECT 1) INSERT INTO t VALUES (1, 2)", "ERROR 0A000 a query is a SELECT"),
            ("CREATE", "ERROR 0A000 CREATE is not supported"),
            ("SELEC 1", "ERROR 42601"),
        ],
    );
    assert_eq!(server.end(), Some(0));
}

#[test]
fn what_is_meant_for_an_address_makes_no_folder_and_odd_options_are_refused() {
    let folder = Folder::new("serve-addresses");
    std::fs::create_dir_all(&folder.0).unwrap();
    for place in ["127.0.0.1", "127.0.0.1:99999", "foo:bar", "localhost", "http://a/b", "localhost:5433/bank"] {
        for words in [["sql", place, "--command", "SELECT 1"], ["serve", "--init=nowhere.sql", "--data", place]] {
            let (code, _, errors) = command(&words, "");
            assert!(code == Some(2) && errors.contains("looks like an address"), "{place} {code:?} {errors}");
            assert!(!Path::new(place).exists(), "{place}");
        }
    }
    // As its hint says.
    let path = folder.0.join("localhost");
    let (code, _, errors) =
        command(&["sql", path.to_str().unwrap(), "--command", "CREATE TABLE t (id BIGINT PRIMARY KEY)"], "");
    assert!(code == Some(0) && path.exists(), "{code:?} {errors}");
    for words in [["--connections", "0"], ["--connections", "many"], ["--listen", "127.0.0.1"], ["--listen", "::1:a"]] {
        let (code, _, errors) = command(&[&["serve"][..], &words].concat(), "");
        assert!(code == Some(2) && errors.contains(words[0]), "{words:?} {code:?} {errors}");
    }
    let server = Server::start(&["--listen", "localhost:0", "--init", BANK]);
    assert!(server.ready.starts_with("ready: in memory, psql -h 127.0.0.1 -p "), "{}", server.ready);
    let address = format!("127.0.0.1:{}", server.port);
    let says = |statement: &str, expected: &str| {
        let (code, _, errors) = command(&["sql", &address, "--command", statement], "");
        assert!(code == Some(2) && errors.contains(expected), "{code:?} {errors}");
    };
    // CALL MANY as it makes sense of the procedure that was typed.
    says("CALL MANY transfer(1, 2, 1)", "hint: CALL MANY transfer($1, $2, $3) with an array for each, from a driver");
    assert_eq!(command(&["sql", &address, "--command", "CREATE PROCEDURE nop() AS BEGIN NULL; END"], "").0, Some(0));
    says("CALL MANY nop()", "hint: 'nop' takes nothing that could differ: CALL nop() as often as it is wanted");
    says("CALL transfer(1)", "hint: its parameters are: from_id, to_id, amount");
    // As the ready line and the README say it.
    if let Some(mut psql) = program("psql") {
        let port = server.port.to_string();
        let words = ["-h", "127.0.0.1", "-p", &port, "-A", "-t", "bank", "-c", "CALL transfer(1, 2, 25.00)"];
        let output = psql.args(words).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "975.00\n", "{output:?}");
    }
    assert_eq!(server.end(), Some(0));
}
