//! `lockwork sql ADDR`: the command at a server is what it is on a folder.

mod failover;
mod hosts;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use crate::BANK;
use crate::folder::{Folder, command};
use crate::server::{Server, program};

/// Every kind of statement and of value.
const SCRIPT: &str = "\u{feff}-- Everything; here.
CREATE TABLE things (id BIGINT PRIMARY KEY, small TINYINT NOT NULL, good BOOLEAN NOT NULL,
    price DECIMAL(12, 2) NOT NULL, name VARCHAR(20) NOT NULL, at TIMESTAMP NOT NULL,
    raw BYTEA(2) NOT NULL) WITH (ordered = true);
CREATE INDEX by_name ON things (name);
INSERT INTO things VALUES (1, -7, TRUE, -0.05, 'a;b, \"c\"', TIMESTAMP '2024-01-31 12:00:00', X'00ff'),
    (22, 5, FALSE, 1234.5, 'é', TIMESTAMP '1999-12-31 23:59:59.5', X'0102'); -- two; rows
/* one; */ SELECT * FROM things WHERE id BETWEEN 1 AND 30 ORDER BY id LIMIT 10;
SELECT name AS x, id AS x FROM things WHERE id = 22; SELECT id, price FROM things WHERE id = 3;
CREATE PROCEDURE lists(n BIGINT, OUT ids BIGINT[3], OUT names VARCHAR(9)[2], OUT prices DECIMAL(9, 1)[2],
    OUT odd BOOLEAN) AS
DECLARE m BIGINT := n;
BEGIN
    FOR i IN 1..3 LOOP
        ids[i] := CASE WHEN i = 2 THEN 0 ELSE m END;
    END LOOP;
    IF m > 0 THEN
        names[1] := 'x';
        prices[2] := 2.5;
    END IF;
    odd := TRUE;
END;
CREATE OR REPLACE PROCEDURE nothing() AS $$ BEGIN UPDATE things SET small = 0 WHERE id = 1; END; $$;
CALL lists(9); CALL nothing();
UPDATE things SET small = 1 WHERE id = 22;
DELETE FROM things WHERE id = 1;
EXPLAIN PROCEDURE nothing;
";

/// The command at a server.
fn at(server: &Server, words: &[&str], input: &str) -> (Option<i32>, String, String) {
    let address = format!("127.0.0.1:{}", server.port);
    command(&[&["sql", &address, "--user", "ann"], words].concat(), input)
}

#[test]
fn a_server_prints_what_a_folder_prints() {
    for output in ["text", "csv", "json"] {
        let folder = Folder::new(&format!("sql-remote-{output}"));
        let local = |words: &[&str], input: &str| {
            command(&[&["sql", folder.0.to_str().unwrap(), "--output", output], words].concat(), input)
        };
        let server = Server::start(&[]);
        let remote = |words: &[&str], input: &str| at(&server, &[&["--output", output], words].concat(), input);
        let printed = local(&[], SCRIPT);
        assert_eq!((printed.0, printed.2.as_str()), (Some(0), ""));
        assert_eq!(remote(&[], SCRIPT), printed);
        for (wrong, code) in [
            ("SELECT name FROM things WHERE id = 22;\n\n  UPDATE things SET nothing = 1 WHERE id = 1;", 2),
            ("SELECT name FROM things WHERE id = 22;\n\tSELEKT 'é' FROM things;", 2),
            ("INSERT INTO things VALUES (22, 5, FALSE, 1, '', TIMESTAMP '1999-12-31 23:59:59', '');", 1),
            ("CALL lists(1); CALL nobody(1)", 2),
            ("CALL lists(1, 2);", 2),
            ("CALL lists(\n'x');", 2),
            ("CREATE TABLE things (id BIGINT PRIMARY KEY);", 2),
            ("CREATE PROCEDURE p() AS BEGIN\n  x := 1; END; CALL p();", 2),
            ("CREATE TABLE floats (x FLOAT);", 2),
            ("/* é */ DROP TABLE things;", 2),
            ("CALL nothing(", 2),
            ("SELECT 'a", 2),
        ] {
            let expected = local(&["-c", wrong], "");
            assert_eq!(expected.0, Some(code), "{expected:?}");
            assert_eq!(remote(&["-c", wrong], ""), expected, "{wrong}");
            assert_eq!(remote(&[], wrong), local(&[], wrong), "{wrong}");
        }
        let file = folder.0.with_extension("script");
        std::fs::write(&file, "CALL lists(1);\n CALL nothing()").unwrap();
        let file = file.to_str().unwrap();
        assert_eq!(remote(&["--file", file], "SELEKT"), local(&["--file", file], "SELEKT"));
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn what_only_a_server_knows_is_asked_there() {
    let server = Server::start(&["--init", BANK]);
    let script = "SET x = ';'; SHOW server_encoding;\n-- who; is it\nSELECT current_user, 7 AS n, TRUE AS t;
        SELECT relname, relhasindex, NULL AS no FROM pg_class WHERE relname = 'accounts';\nDISCARD ALL;";
    let (code, text, error) = at(&server, &[], script);
    assert_eq!((code, error.as_str()), (Some(0), ""), "{text}");
    assert!(text.starts_with("SET\n server_encoding\n-----------------\n UTF8\n(1 row)\n"), "{text}");
    assert!(text.contains(" ann          | 7 | true\n") && text.ends_with("\nDISCARD\n"), "{text}");
    assert!(text.contains(" accounts | true        |\n"), "{text}");
    let (_, text, error) = at(&server, &["--output", "json", "--database", "shop"], script);
    assert!(text.contains("{\"current_user\":\"ann\",\"n\":7,\"t\":true}"), "{text} {error}");
    assert!(text.contains("\"no\":null,\"relhasindex\":true,\"relname\":\"accounts\""), "{text} {error}");
    let (_, text, _) = at(&server, &["--output", "csv", "--database", "shop"], "SELECT current_database();");
    assert_eq!(text, "current_database\nshop\n");
    for (wrong, why) in [
        ("SELECT 1;\nSHOW nonsense;", "error 42704: there is no setting called 'nonsense'"),
        ("SELECT 1;\n COPY accounts FROM STDIN;", "line 2: this command has no COPY"),
        ("SELECT 1;\nSELECT '\0';", "line 2: a zero byte"),
        ("CALL MANY transfer($1, $2, 1);", "error 42P02"),
        ("ROLLBACK TO a;", "error 25P01: there are savepoints in transactions only\nhint: BEGIN"),
    ] {
        let (code, _, error) = at(&server, &[], wrong);
        assert!(code == Some(2) && error.contains(why), "{wrong}: {code:?} {error}");
    }
    assert_eq!((server.ready.starts_with("ready: in memory"), server.end()), (true, Some(0)));
}

#[test]
fn several_commands_run_in_their_order_until_one_fails() {
    let server = Server::start(&["--init", BANK]);
    let folder = Folder::new("sql-commands");
    let place = folder.0.to_str().unwrap();
    let bank = std::fs::read_to_string(BANK).unwrap();
    assert_eq!(command(&["sql", place, "-c", &bank], "").0, Some(0));
    let local = |words: &[&str]| command(&[&["sql", place, "--output", "csv"], words].concat(), "");
    let remote = |words: &[&str]| at(&server, &[&["--output", "csv"], words].concat(), "");
    let words = ["-c", "CALL transfer(1, 2, 1); CALL transfer(1, 2, 1)", "--command", "CALL transfer(1, 2, 1);"];
    let printed = (Some(0), "left\n999.00\nleft\n998.00\nleft\n997.00\n".to_string(), String::new());
    assert_eq!((local(&words), remote(&words)), (printed.clone(), printed));
    // The second one fails: the third does not run, and the failure names its list.
    let words = ["-c", "CALL transfer(1, 2, 1)", "-c", "CALL transfer(1, 2, 1);\n CALL transfer(1, 2, 5000)"];
    let failed = (
        Some(1),
        "left\n996.00\nleft\n995.00\n".to_string(),
        "lockwork: --command 2: error BK001: not enough money\n".to_string(),
    );
    let words = [&words[..], &["-c", "CALL transfer(1, 2, 1)"]].concat();
    assert_eq!((local(&words), remote(&words)), (failed.clone(), failed));
    // They are of one session.
    let (code, text, error) = remote(&["-c", "BEGIN", "-c", "CALL transfer(1, 2, 1)", "-c", "ROLLBACK"]);
    assert_eq!((code, error.as_str()), (Some(0), ""), "{text}");
    let balance = remote(&["-c", "SELECT balance FROM accounts WHERE id = 1"]);
    assert_eq!(balance.1, "balance\n995.00\n");
}

#[test]
fn transactions_of_several_statements_end_with_commit_or_are_taken_back() {
    let server = Server::start(&["--init", BANK]);
    let balance = || at(&server, &["--output", "csv"], "SELECT balance FROM accounts WHERE id = 1;").1;
    let script = "BEGIN; CALL transfer(1, 2, 1.00); SAVEPOINT a; CALL transfer(1, 2, 5.00);
        ROLLBACK TO a; RELEASE a; COMMIT; START TRANSACTION; CALL transfer(1, 2, 5); ROLLBACK;";
    let (code, text, error) = at(&server, &["--output", "json"], script);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    let done: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("{\"done\":")).collect();
    let words = ["BEGIN", "SAVEPOINT", "ROLLBACK", "RELEASE", "COMMIT", "BEGIN", "ROLLBACK"];
    assert_eq!(done, words.map(|word| format!("\"{word}\"}}")));
    assert_eq!(balance(), "balance\n999.00\n");
    let open = (Some(1), "lockwork: the transaction has no COMMIT, and is taken back\n".to_string());
    let (code, _, error) = at(&server, &[], "BEGIN; CALL transfer(1, 2, 1.00);");
    assert_eq!((code, error), open);
    let (code, _, error) =
        at(&server, &[], "BEGIN;\nCALL transfer(1, 2, 1.00);\n CALL transfer(1, 2, 10000.00); COMMIT;");
    assert_eq!(code, Some(1));
    assert_eq!(error, format!("lockwork: error BK001: not enough money\n{}", open.1));
    assert_eq!(balance(), "balance\n999.00\n");
}

/// Types lines at a prompt, in a terminal that util-linux's `script` makes.
fn typed(server: &Server, variables: &[(&str, &str)], words: &str, lines: &str) -> Option<String> {
    let mut script = program("script")?;
    let binary = env!("CARGO_BIN_EXE_lockwork");
    let line = format!("{binary} sql 127.0.0.1:{} --user ann {words}", server.port);
    script.args(["-qec", &line, "/dev/null"]).env("TERM", "dumb").envs(variables.iter().copied());
    let mut child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    Some(String::from_utf8_lossy(&output.stdout).replace('\r', ""))
}

#[test]
fn a_prompt_goes_on_after_an_error() {
    let server = Server::start(&["--init", BANK]);
    let lines = "SELECT 1 AS one,\n2 AS two;\nBEGIN;\nSELEKT;\nSHOW server_encoding;\nCOMMIT;\nCALL transfer(1, 2, 1.00);\n\\q\n";
    let Some(text) = typed(&server, &[], "", lines) else { return };
    let parts = [
        &format!("127.0.0.1:{}, database ann, as ann; statements end with ';'", server.port),
        " one | two\n",
        "BEGIN\n",
        "line 1, column 1: error 42601",
        "error 25P02",
        "ROLLBACK\n",
        " 999.00\n",
    ];
    let mut rest = text.as_str();
    for part in parts {
        let (_, behind) = rest.split_once(part).unwrap_or_else(|| panic!("{part} is not in {text}"));
        rest = behind;
    }
}

#[test]
fn a_password_comes_from_the_url_a_variable_or_a_person() {
    let folder = Folder::new("sql-remote-users");
    std::fs::create_dir_all(&folder.0).unwrap();
    let users = folder.0.join("users").to_str().unwrap().to_string();
    assert_eq!(command(&["user", &users, "ann", "--right", "call"], "p@ss word of ann").0, Some(0));
    let server = Server::start(&["--init", BANK, "--users", &users]);
    let call = "CALL transfer(1, 2, 1.00);";
    let ask = |variables: &[(&str, &str)], place: &str, words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockwork"));
        command.args(["sql", &place.replace("PORT", &server.port.to_string()), "-c", call]).args(words);
        command.env_remove("PGPASSWORD").env_remove("LOCKWORK_PASSWORD").env_remove("PGUSER");
        let output = command.envs(variables.iter().copied()).stdin(Stdio::null()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let good = (Some(0), String::new());
    assert_eq!(ask(&[], "postgres://ann:p%40ss%20word%20of%20ann@127.0.0.1:PORT/bank", &[]), good);
    assert_eq!(ask(&[("PGPASSWORD", "p@ss word of ann")], "127.0.0.1:PORT", &["--user", "ann"]), good);
    assert_eq!(ask(&[("PGUSER", "ann"), ("PGPASSWORD", "p@ss word of ann")], "localhost:PORT", &[]), good);
    let both = [("LOCKWORK_PASSWORD", "p@ss word of ann"), ("PGPASSWORD", "x"), ("USER", "ann")];
    assert_eq!(ask(&both, "127.0.0.1:PORT", &[]), good);
    let (code, error) = ask(&[("PGPASSWORD", "p@ss word of ann")], "postgres://ann:wrong@localhost:PORT", &[]);
    assert_eq!(code, Some(2));
    assert!(error.contains("error 28P01: Password authentication failed for user \"ann\"") && !error.contains("wrong"));
    let (code, error) = ask(&[], "127.0.0.1:PORT", &["--user", "ann"]);
    assert!(code == Some(2) && error.contains("wants a password of ann\nhint: LOCKWORK_PASSWORD"), "{error}");
    let (code, error) = ask(&[], "postgres://ann:p%40ss%20word%20of%20ann@127.0.0.1:PORT/bank", &["--file", "x"]);
    assert!(code == Some(2) && error.contains("cannot be used with"), "{error}");
    let may = "SELECT balance FROM accounts WHERE id = 1";
    let url = format!("postgres://ann:p%40ss%20word%20of%20ann@127.0.0.1:{}", server.port);
    let (code, _, error) = command(&["sql", &url, "-c", may], "");
    assert!(code == Some(2) && error.contains("error 42501"), "{error}");
    let none = [("LOCKWORK_PASSWORD", ""), ("PGPASSWORD", "")];
    let Some(text) = typed(&server, &none, "", &format!("p@ss word of ann\n{call}\n\\q\n")) else { return };
    assert!(text.contains("password of ann:") && text.contains(" 995.00\n"), "{text}");
}

#[test]
fn an_address_that_cannot_be_is_refused() {
    let folder = Folder::new("sql-remote-options");
    let path = folder.0.to_str().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let closed = format!("127.0.0.1:{port}");
    for (words, code, why) in [
        (
            &[closed.as_str()][..],
            3,
            format!("lockwork: {closed}: Connection refused (os error 111)\nhint: lockwork serve"),
        ),
        (&[&closed, "--engine", "serial"], 2, format!("--engine is for folders, and {closed} is a server")),
        (&[&closed, "--durability", "async"], 2, "--durability is for folders".into()),
        (&[path, "--user", "ann"], 2, format!("--user is for servers, and '{path}' is a folder")),
        (&[path, "--database", "bank"], 2, "--database is for servers".into()),
        (&["postgres://localhost?sslmode=always"], 2, "sslmode is 'always'\nhint: there are disable".into()),
        (&["nowhere.invalid:5433"], 3, "nowhere.invalid:5433: ".into()),
    ] {
        let (found, _, error) = command(&[&["sql"], words].concat(), "");
        assert!(found == Some(code) && error.contains(&why), "{words:?}: {found:?} {error}");
        assert!(!folder.0.exists());
    }
    // What exists is no address.
    std::fs::create_dir_all(folder.0.join("localhost:1")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_lockwork"))
        .args(["sql", "localhost:1", "-c", "CREATE TABLE t (id BIGINT PRIMARY KEY)"])
        .current_dir(&folder.0)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "CREATE TABLE\n");
}

/// A command that has not ended, with its standard error.
fn waiting(address: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_lockwork"))
        .args(["sql", address, "--user", "ann"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn errors(mut child: Child) -> (std::process::ExitStatus, String) {
    let mut text = String::new();
    drop(child.stdin.take());
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    (child.wait().unwrap(), text)
}

#[test]
fn a_server_that_dies_is_told() {
    for signal in ["-KILL", "-TERM"] {
        let mut server = Server::start(&["--init", BANK]);
        let address = format!("127.0.0.1:{}", server.port);
        let mut child = waiting(&address);
        let (mut to, mut from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()).lines());
        writeln!(to, "BEGIN;").unwrap();
        assert_eq!(from.next().unwrap().unwrap(), "BEGIN");
        assert!(Command::new("kill").args([signal, &server.child.id().to_string()]).status().unwrap().success());
        server.child.wait().unwrap();
        writeln!(to, "COMMIT;").unwrap();
        drop(to);
        let (status, error) = errors(child);
        assert_eq!(status.code(), Some(3), "{error}");
        let lost = format!("lockwork: {address}: the connection is lost: ");
        assert!(error.starts_with(&lost) && error.contains("hint: whether the last statement"), "{error}");
    }
}

/// A server that lets everybody in and then answers nothing; gives a connection when it has got a statement.
fn silent(listener: &TcpListener) -> TcpStream {
    let (mut stream, _) = listener.accept().unwrap();
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut startup = vec![0; u32::from_be_bytes(length) as usize - 4];
    stream.read_exact(&mut startup).unwrap();
    // AuthenticationOk and ReadyForQuery.
    stream.write_all(&[b'R', 0, 0, 0, 8, 0, 0, 0, 0, b'Z', 0, 0, 0, 5, b'I']).unwrap();
    stream.read_exact(&mut length).unwrap();
    stream
}

#[test]
fn nobody_waits_for_ever() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    // The system lets it in, and nobody answers.
    let late = waiting(&format!("postgres://{address}?connect_timeout=1"));
    let (status, error) = errors(late);
    assert_eq!((status.code(), error), (Some(3), format!("lockwork: {address}: no answer within 1 s\n")));
    drop(listener.accept().unwrap());
    let mut child = waiting(&address);
    child.stdin.as_mut().unwrap().write_all(b"CREATE TABLE t (id BIGINT PRIMARY KEY);\n").unwrap();
    let stream = silent(&listener);
    // Ctrl-C ends a statement that is not answered, and the command, as it ends every program: a shell says 130.
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let (status, error) = errors(child);
    assert_eq!((status.signal(), error.as_str()), (Some(2), ""));
    drop(stream);
}
