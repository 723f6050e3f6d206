//! What errors say is to be done can be done where they are.

mod common;

use common::{KINDS, Session};

const T: &str = "CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT NOT NULL, s VARCHAR(5) NOT NULL); CREATE TABLE u (id BIGINT PRIMARY KEY)";

#[test]
fn hints_outside_of_procedures_speak_of_no_variables() {
    let mut session = Session::new(KINDS[0]);
    assert_eq!(session.run(T), "");
    for statement in [
        "SELECT DISTINCT v FROM t WHERE id = 1",
        "SELECT 1",
        "SELECT v FROM t JOIN u ON t.id = u.id",
        "SELECT v FROM t WHERE id = 1 GROUP BY v",
        "SELECT v FROM (SELECT v FROM t WHERE id = 1) AS q",
        "SELECT v + 1 FROM t WHERE id = 1",
        "SELECT v INTO x FROM t WHERE id = 1",
        "SELECT v FROM t WHERE v > 1",
        "SELECT v FROM t WHERE id > 1",
        "SELECT v FROM t WHERE id = 1 AND v IS NULL",
        "SELECT v FROM t WHERE id = (SELECT 1)",
        "SELECT v FROM t WHERE id = found",
        "INSERT INTO t SELECT * FROM u",
        "INSERT INTO t VALUES (1, 2, 'a') ON CONFLICT (id) DO UPDATE SET v = 1",
        "INSERT INTO t VALUES (1, 2, NULL)",
        "INSERT INTO t VALUES (1, count(*), 'a')",
        "INSERT INTO t VALUES (1, sum(v), 'a')",
        "INSERT INTO t VALUES (1, 2, 'a') RETURNING id",
        "UPDATE t SET v = 1 FROM u WHERE t.id = u.id",
        "UPDATE t SET v = 1 WHERE v = 1 OR s = 'a'",
        "UPDATE t SET v = 1 WHERE id > 1",
        "UPDATE t SET v = CASE WHEN v > 1 THEN 'a' ELSE 'bc' END WHERE id = 1",
        "UPDATE t SET s = CASE WHEN v > 1 THEN 'a' ELSE 'b' END WHERE id = 1",
        "UPDATE t SET v = count(DISTINCT v) WHERE id = 1",
        "DELETE FROM t WHERE v = 3",
        "DELETE FROM t WHERE id = 1 AND v = ANY($1)",
    ] {
        let answer = session.run(statement);
        let hint = answer.split_once("hint: ").map_or("", |(_, hint)| hint);
        assert!(answer.contains("error "), "{statement}: {answer}");
        for word in ["INTO v", "variable", "IF ", "FOUND THEN", "assign", "LOOP", "RAISE", "OUT "] {
            assert!(!hint.contains(word), "{statement}: {answer}");
        }
    }
}

#[test]
fn constraints_and_defaults_that_are_not_possible_are_named() {
    let mut session = Session::new(KINDS[0]);
    for (table, message) in [
        ("id BIGINT PRIMARY KEY, v BIGINT NOT NULL UNIQUE", "UNIQUE is not supported"),
        ("id BIGINT PRIMARY KEY, v BIGINT UNIQUE NOT NULL, w BIGINT NOT NULL", "UNIQUE is not supported"),
        ("id BIGINT PRIMARY KEY, v BIGINT NOT NULL, UNIQUE (v)", "UNIQUE is not supported"),
        ("id BIGINT PRIMARY KEY, v BIGINT NOT NULL, CONSTRAINT one UNIQUE (v)", "UNIQUE is not supported"),
        ("id BIGINT PRIMARY KEY, v BIGINT NOT NULL CONSTRAINT one UNIQUE", "UNIQUE is not supported"),
        ("id BIGINT PRIMARY KEY, v BIGINT NOT NULL CHECK (v > 0)", "CHECK is not supported"),
        ("id BIGINT PRIMARY KEY, v BIGINT NOT NULL, CHECK (v > 0)", "CHECK is not supported"),
        ("id BIGINT PRIMARY KEY, v BIGINT NOT NULL REFERENCES u", "REFERENCES is not supported"),
        ("id BIGINT PRIMARY KEY, v BIGINT NOT NULL, FOREIGN KEY (v) REFERENCES u (id)", "FOREIGN is not supported"),
        ("id BIGINT PRIMARY KEY, v TIMESTAMP NOT NULL DEFAULT now()", "a DEFAULT is a constant, and the time is none"),
        ("id BIGINT PRIMARY KEY, v TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP", "a DEFAULT is a constant, and"),
        ("id BIGINT PRIMARY KEY, v BIGINT NOT NULL DEFAULT id + 1", "nothing is called 'id'"),
    ] {
        let answer = session.run(&format!("CREATE TABLE x ({table})"));
        assert!(answer.contains(message), "{table}: {answer}");
        let followed = ["second table", "procedures that", "INSERT"].iter().any(|word| answer.contains(word));
        assert!(followed, "{table}: {answer}");
    }
    // Columns may have their names.
    assert_eq!(
        session.run("CREATE TABLE x (unique BIGINT PRIMARY KEY, check BIGINT NOT NULL, foreign BIGINT NOT NULL)"),
        ""
    );
    session.run("CREATE PROCEDURE p(a TIMESTAMP) AS BEGIN NULL; END");
    let answer = session.run("CALL p(now() + 1)");
    assert!(answer.contains("an argument is a constant, and the time is none"), "{answer}");
}

#[test]
fn what_is_not_joined_to_a_text_is_named() {
    let mut session = Session::new(KINDS[0]);
    assert_eq!(session.run(T), "");
    let set = |session: &mut Session, value: &str| session.run(&format!("UPDATE t SET s = {value} WHERE id = 1"));
    for value in ["'a' || TIMESTAMP '2024-01-31'", "now() || 'a'"] {
        let answer = set(&mut session, value);
        assert!(answer.contains("42804: a timestamp stands where || needs a text"), "{value}: {answer}");
    }
    let answer = set(&mut session, "v || 1");
    assert!(answer.contains("42804: a number stands where || needs a text"), "{answer}");
    assert!(answer.contains("one side of || has to be a text"), "{answer}");
}

#[test]
fn a_syntax_error_names_what_is_not_understood() {
    let mut session = Session::new(KINDS[0]);
    for (text, message) in [
        ("CREATE INDEX i ON t (a DESC)", "42601: syntax error at or near 'DESC': ')' is expected"),
        ("UPDATE t SET s := 1", "42601: syntax error at or near ':=': '=' is expected"),
        ("INSERT INTO t VALUES (1", "42601: syntax error at the end of the text: ')' is expected"),
        ("CREATE PROCEDURE p() AS BEGIN FOR i IN 1..2 DO NULL; END LOOP; END", "at or near 'DO': 'loop' is expected"),
    ] {
        let answer = session.run(text);
        assert!(answer.to_lowercase().contains(&message.to_lowercase()), "{text}: {answer}");
    }
}
