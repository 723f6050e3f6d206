//! Conditions of WHERE find the rows that they name and no others.

mod common;

use common::{KINDS, Session, answers};

const TABLES: &str = "
    CREATE TABLE t (id BIGINT PRIMARY KEY, v INTEGER NOT NULL) PARTITION BY HASH (id) WITH (ordered = true);
    CREATE TABLE prices (price DECIMAL(6, 2) PRIMARY KEY, v INTEGER NOT NULL) PARTITION BY HASH (price)
        WITH (ordered = true);
    INSERT INTO t VALUES (1, 1), (2, 2), (3, 3);
    INSERT INTO prices VALUES (1, 100), (1.01, 101), (9999.99, 102);
";

/// A session with the tables.
fn session() -> Session {
    let mut session = Session::new(KINDS[0]);
    assert_eq!(session.run(TABLES), "rows = 3\nrows = 3\n");
    session
}

#[test]
fn a_value_with_more_decimals_than_the_key_is_compared_exactly_or_refused_and_not_rounded() {
    let mut session = session();
    for (text, found) in [
        ("SELECT id FROM t WHERE id = 1.5;", "id"),
        ("DELETE FROM t WHERE id = 1.5;", "rows = 0"),
        ("UPDATE t SET v = 0 WHERE id = -1.5;", "rows = 0"),
        ("UPDATE t SET v = 0 WHERE id IN (1.5, 2.5);", "rows = 0"),
        ("SELECT id FROM t WHERE id > 1.5 LIMIT 9;", "id\n2\n3"),
        ("SELECT id FROM t WHERE 1.5 > id LIMIT 9;", "id\n1"),
        ("SELECT id FROM t WHERE id BETWEEN 1.4 AND 3.6 LIMIT 9;", "id\n2\n3"),
        ("SELECT id FROM t WHERE id IN (1.5, 2.00, 3.25);", "id\n2"),
        ("SELECT id FROM t WHERE id = 2 AND v < 2.5;", "id\n2"),
        ("SELECT id FROM t WHERE id IN (2, 3) AND v > 2.5;", "id\n3"),
        ("SELECT v FROM prices WHERE price = 1.005;", "v"),
        ("SELECT v FROM prices WHERE price = ANY('{1.005,1.010}');", "v\n101"),
    ] {
        assert_eq!(session.run(text), format!("{found}\n"), "{text}");
    }
    for text in [
        "CREATE PROCEDURE q(OUT n BIGINT) AS BEGIN SELECT v INTO n FROM t WHERE id = 1.5; END;",
        "CREATE PROCEDURE p(a DECIMAL(9, 4), OUT n BIGINT) AS BEGIN
             SELECT COUNT(*) INTO n FROM (SELECT v FROM prices WHERE price > a LIMIT 9) AS q;
         END;",
    ] {
        let answer = session.run(text);
        assert!(answer.contains("0A000") && answer.contains("decimals, and the column,"), "{text}: {answer}");
        assert!(answer.contains("CAST(value AS"), "{text}: {answer}");
    }
    assert_eq!(session.run("SELECT id FROM t WHERE id >= 1 LIMIT 9;"), "id\n1\n2\n3\n");
}

#[test]
fn values_that_the_key_can_have_find_it() {
    answers(
        &format!(
            "{TABLES}
             SELECT id FROM t WHERE id = 2.0;
             SELECT id FROM t WHERE id > 1.00 LIMIT 9;
             SELECT v FROM prices WHERE price = 1.0100;
             SELECT v FROM prices WHERE price = 1;
             CREATE PROCEDURE p(a DECIMAL(9, 4), b DECIMAL(4, 1), OUT n BIGINT, OUT m BIGINT) AS BEGIN
                 SELECT COUNT(*) INTO n FROM (SELECT v FROM prices WHERE price > CAST(a AS DECIMAL(6, 2)) LIMIT 9) AS q;
                 SELECT COUNT(*) INTO m FROM (SELECT v FROM prices WHERE price >= b LIMIT 9) AS q;
             END;
             CALL p(1.0049, 1.0);"
        ),
        "rows = 3\nrows = 3\nid\n2\nid\n2\n3\nv\n101\nv\n100\nn = 2\nm = 3",
    );
}

#[test]
fn behind_the_last_value_of_a_type_there_are_no_rows() {
    answers(
        &format!(
            "{TABLES}
             SELECT id FROM t WHERE id > 9223372036854775807 LIMIT 9;
             SELECT id FROM t WHERE id < -9223372036854775808 LIMIT 9;
             SELECT id FROM t WHERE id >= 1 AND id < -9223372036854775808 LIMIT 9;
             SELECT id FROM t WHERE id > 9223372036854775807 AND id <= 9223372036854775807 LIMIT 9;
             DELETE FROM prices WHERE price > 9999.99 LIMIT 9;
             SELECT v FROM prices WHERE price >= 9999.99 LIMIT 9;
             CREATE PROCEDURE p(OUT n BIGINT) AS BEGIN
                 SELECT COUNT(*) INTO n FROM (SELECT v FROM t WHERE id > 9223372036854775807 LIMIT 9) AS q;
             END;
             CALL p();
             CREATE PROCEDURE q(a BIGINT, OUT n BIGINT) AS BEGIN
                 SELECT COUNT(*) INTO n FROM (SELECT v FROM t WHERE id > a LIMIT 9) AS q;
             END;
             CALL q(9223372036854775806); CALL q(9223372036854775807);"
        ),
        "rows = 3\nrows = 3\nid\nid\nid\nid\nrows = 0\nv\n102\nn = 0\nn = 0\nerror 22003: integer overflow",
    );
}

#[test]
fn a_range_says_how_many_rows_it_takes() {
    let mut session = session();
    let answer = session.run("SELECT id FROM t WHERE id >= 1;");
    assert!(answer.contains("0A000") && answer.contains("a range of rows needs a LIMIT"), "{answer}");
    for limit in ["0", "2", "LEAST(n, 3)"] {
        let answer = session.run(&format!(
            "CREATE PROCEDURE p(n BIGINT, OUT v INTEGER) AS BEGIN
                 SELECT v INTO v FROM t WHERE id >= n ORDER BY id LIMIT {limit};
             END;"
        ));
        assert!(answer.contains("0A000") && answer.contains("SELECT INTO takes one row"), "{limit}: {answer}");
    }
    for (name, limit) in [("a", "LIMIT 1"), ("b", "")] {
        let script = format!(
            "CREATE PROCEDURE {name}(n BIGINT, OUT v INTEGER) AS BEGIN
                 SELECT v INTO v FROM t WHERE id >= n {limit};
             END;
             CALL {name}(2);"
        );
        assert_eq!(session.run(&script), "v = 2\n", "{name}");
    }
}

#[test]
fn signs_may_stand_at_operators() {
    answers(
        &format!(
            "{TABLES}
             INSERT INTO t VALUES (-2, 0), (-1, 0);
             SELECT id FROM t WHERE id>-2 AND id<+2 LIMIT 9;
             SELECT id FROM t WHERE id>=-1 AND id<=-1 LIMIT 9;
             UPDATE t SET v=2-+1 WHERE id=-2;
             SELECT v FROM t WHERE id=-2;
             CREATE PROCEDURE p(a BIGINT, OUT x BIGINT, OUT y BOOLEAN) AS BEGIN
                 x:=-a*-3+-1/-1; y := a<>-4 AND a!=-3;
             END;
             CALL p(4);"
        ),
        "rows = 3\nrows = 3\nrows = 2\nid\n-1\n1\nid\n-1\nrows = 1\nv\n1\nx = 13\ny = true",
    );
    let answer = session().run("SELECT id FROM t WHERE id >=!-1 LIMIT 9;");
    assert!(answer.contains("error"), "{answer}");
}

#[test]
fn constants_out_of_the_range_of_a_decimal_are_named_so() {
    let mut session = session();
    session.run("CREATE PROCEDURE f(a DECIMAL(6, 2), OUT r DECIMAL(6, 2)) AS BEGIN r := a; END;");
    for value in ["10000", "-9999.995", "99999999999999999", "9223372036854775807"] {
        let answer = session.run(&format!("CALL f({value});"));
        assert!(answer.contains("22003") && answer.contains("out of the range of DECIMAL(6, 2)"), "{value}: {answer}");
    }
    assert_eq!(session.run("CALL f(-9999.99); CALL f(9999.994);"), "r = -9999.99\nr = 9999.99\n");
    let answer = session.run("CREATE PROCEDURE g(OUT r DECIMAL(6, 2)) AS BEGIN r := 10000; END;");
    assert!(answer.contains("22003"), "{answer}");
}
