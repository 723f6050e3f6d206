//! Queries that would cost too much.

use super::*;

#[test]
fn what_stands_once_does_not_become_long() {
    let database = open(SQL);
    let nested = |begin: &str, end: &str, inner: &str| format!("{}{inner}{}", begin.repeat(40), end.repeat(40));
    for condition in [
        nested("(", " BETWEEN FALSE AND TRUE)", "id > 1"),
        nested("nullif(", ", 7)", "id") + " = 1",
        nested("(CASE ", " WHEN 1 THEN 2 WHEN 2 THEN 1 ELSE 3 END)", "id") + " = 1",
        nested("(", " IN (id, 1.5, 2.25))", "id").replace("id, ", "TRUE, "),
    ] {
        let asked = understand(
            &format!("SELECT count(*) FROM accounts WHERE {condition}"),
            database.sql_catalogue(),
            asker(&[]),
        );
        let refusal = asked.unwrap().map(|query| query.sql.len()).unwrap_err();
        assert!(["54001", "42804"].contains(&&*refusal.sqlstate), "{refusal}");
    }
}

#[test]
fn a_query_that_needs_too_much_memory_is_refused_and_names_the_limit() {
    let insert = |id: usize| format!("INSERT INTO t VALUES ({id}, '{}');", "x".repeat(900));
    let rows: String = (0..1000).map(insert).collect();
    let database = open(&format!("CREATE TABLE t (id BIGINT PRIMARY KEY, name VARCHAR(1000) NOT NULL); {rows}"));
    let long = format!("replace(replace(a.name, 'x', b.name || 'y'), 'x', '{}')", "x".repeat(100));
    for (text, expected) in [
        (
            "SELECT count(*) FROM (SELECT DISTINCT a.name || b.id || ' ' || a.id AS x FROM t a, t b) AS s".to_string(),
            "256 MiB",
        ),
        (
            "SELECT x FROM (SELECT a.name || b.id || a.id AS x FROM t a, t b) AS s ORDER BY x LIMIT 900000".into(),
            "256 MiB",
        ),
        ("SELECT a.name || b.id || a.id AS x, count(*) FROM t a, t b GROUP BY 1 LIMIT 1".into(), "256 MiB"),
        ("SELECT string_agg(a.name, b.name) FROM t a, t b".into(), "64 MiB"),
        (format!("SELECT length({long}) FROM t a, t b"), "64 MiB"),
        (format!("SELECT {long} || {long} FROM t a, t b"), "64 MiB"),
    ] {
        let refusal = ask(&database, &text, &[]).unwrap_err();
        assert!(refusal.sqlstate == "53200" && refusal.message.contains(expected), "{text}: {refusal:?}");
    }
}
