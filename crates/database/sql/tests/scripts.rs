//! Scripts around their statements, and what errors call things.

mod common;

use common::{KINDS, Session};
use lockwork_sql::{is_ended, statements};

#[test]
fn a_byte_order_mark_at_the_beginning_is_passed_over() {
    let script = "\u{feff}CREATE TABLE t (id BIGINT PRIMARY KEY);\nINSERT INTO t VALUES (1);";
    let all: Vec<_> = statements(script).map(Result::unwrap).collect();
    assert_eq!(all.len(), 2);
    assert_eq!(all[0].text(), "CREATE TABLE t (id BIGINT PRIMARY KEY)");
    assert_eq!((all[0].place().column, all[1].text()), (1, "INSERT INTO t VALUES (1)"));
    assert_eq!(Session::new(KINDS[0]).run(script), "rows = 1\n");
    assert_eq!(statements("\u{feff}").count(), 0);
    let error = statements("SELECT \u{feff} id FROM t;").find_map(Result::err).unwrap();
    assert_eq!((error.sqlstate, error.column), ("0A000", 10), "{error}");
}

#[test]
fn comments_alone_are_no_statement() {
    for script in ["", " \n", "-- nothing", "-- nothing\n", "/* nothing */", "/* a\n /* b */ */ -- c\n;\n-- d", ";;"] {
        assert_eq!(statements(script).count(), 0, "{script:?}");
    }
    let error = statements("/* no end").find_map(Result::err).unwrap();
    assert!(error.sqlstate == "42601" && error.message.contains("comment"), "{error}");
}

#[test]
fn a_script_has_ended_when_its_last_statement_has() {
    let one = "DELETE FROM t WHERE id = 1";
    for script in ["", "\n", "-- nothing", "/* nothing */", "-- a;\n", ";"] {
        assert!(is_ended(script), "{script:?}");
    }
    for end in [";", ";;", " ; -- done", ";\n/* done */\n", ";\n-- done;\n"] {
        assert!(is_ended(&format!("{one}{end}")) && is_ended(&format!("{one}; {one}{end}")), "{end:?}");
    }
    for end in ["", "\n", " -- one;", " -- one;\n", "\n/* ; */"] {
        assert!(!is_ended(&format!("{one}{end}")) && !is_ended(&format!("{one}; {one}{end}")), "{end:?}");
    }
}

#[test]
fn only_procedures_are_explained() {
    for script in ["EXPLAIN SELECT id FROM t WHERE id = 1;", "EXPLAIN ANALYZE DELETE FROM t;", "EXPLAIN;"] {
        let error = statements(script).next().unwrap().unwrap_err();
        assert_eq!((error.sqlstate, error.column), ("0A000", 1), "{error}");
        assert!(error.message.contains("only procedures") && error.hint.contains("EXPLAIN PROCEDURE name"), "{error}");
    }
}

#[test]
fn errors_of_texts_do_not_take_one_type_for_the_other() {
    let mut session = Session::new(KINDS[0]);
    session.run("CREATE TABLE t (id BIGINT PRIMARY KEY, v VARCHAR(4) NOT NULL, c CHAR(5) NOT NULL);");
    let long = session.run("INSERT INTO t VALUES (1, 'abcde', 'x');");
    assert!(long.contains("22001: column 'v': 5 bytes do not fit a text of 4 bytes"), "{long}");
    let number = session.run("INSERT INTO t VALUES (1, 'abcd', 7);");
    assert!(number.contains("42804: a number stands where a text of 5 bytes is needed"), "{number}");
}

#[test]
fn a_select_names_the_table_that_it_reads() {
    for (text, table) in [
        ("SELECT a FROM t WHERE id = 1", Some("t")),
        ("SELECT a FROM public.T AS u WHERE id = 1", Some("t")),
        ("SELECT a FROM \"TT\" WHERE id = 1", Some("TT")),
        ("SELECT sum(a) FROM (SELECT a FROM t WHERE id = 1 LIMIT 5) AS u", Some("t")),
        ("SELECT a FROM t WHERE id = 1 FOR UPDATE", None),
        ("UPDATE t SET a = 1 WHERE id = 1", None),
        ("DELETE FROM t WHERE id = 1", None),
        ("INSERT INTO t VALUES (1)", None),
        ("CALL t(1)", None),
        ("BEGIN", None),
    ] {
        let statement = statements(text).next().unwrap().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(statement.reads(), table, "{text}");
    }
}
