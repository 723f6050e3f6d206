//! Statements that meet each other: loops in loops, rows that change while they are gone through, and what is large.

mod common;

use common::{KINDS, Session, answers};

const LINES: &str = "
    CREATE TABLE lines (o BIGINT, n SMALLINT, amount BIGINT NOT NULL, PRIMARY KEY (o, n)) PARTITION BY HASH (o);
    CREATE PROCEDURE fill(orders SMALLINT, each SMALLINT) AS BEGIN
        FOR o IN 1..LEAST(orders, 100) LOOP
            FOR n IN 1..LEAST(each, 100) LOOP INSERT INTO lines VALUES (o, n, o * 1000 + n); END LOOP;
        END LOOP;
    END;
";

#[test]
fn a_long_range_in_a_counting_loop_is_left_for_the_loop_around() {
    answers(
        &format!(
            "{LINES}
             CREATE PROCEDURE p(OUT seen BIGINT, OUT whole BIGINT, OUT last BIGINT) AS BEGIN
                 <<orders>> FOR i IN 1..4 LOOP
                     last := i;
                     FOR r IN SELECT n FROM lines WHERE o = i LIMIT 40 LOOP
                         CONTINUE orders WHEN r.n > 18 AND i < 3;
                         EXIT orders WHEN r.n > 20;
                         seen := seen + 1;
                     END LOOP;
                     whole := whole + 1;
                 END LOOP;
             END;
             CALL fill(2, 30); CALL p(); CALL fill(0, 0);
             INSERT INTO lines VALUES (3, 1, 0), (3, 21, 0);
             CALL p();"
        ),
        "seen = 36\nwhole = 2\nlast = 4\nrows = 2\nseen = 37\nwhole = 0\nlast = 3",
    );
}

#[test]
fn an_elsif_asks_for_found_too() {
    answers(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, x INTEGER NOT NULL) PARTITION BY HASH (id);
         INSERT INTO t VALUES (1, 5);
         CREATE PROCEDURE p(who BIGINT, OUT r INTEGER, OUT y INTEGER) AS BEGIN
             SELECT x INTO y FROM t WHERE id = who;
             IF NOT FOUND THEN r := 2; ELSIF FOUND THEN r := 1; END IF;
         END;
         CREATE PROCEDURE q(who BIGINT, OUT r INTEGER) AS BEGIN
             UPDATE t SET x = x + 1 WHERE id = who;
             IF FOUND THEN r := 1; ELSIF FOUND OR who = 3 THEN r := 3; ELSIF NOT FOUND THEN r := 2; END IF;
         END;
         CALL p(1); CALL p(2); CALL q(1); CALL q(2); CALL q(3);",
        "rows = 1\nr = 1\ny = 5\nr = 2\ny = 0\nr = 1\nr = 2\nr = 3",
    );
}

const TOWNS: &str = "
    CREATE TABLE people (id BIGINT PRIMARY KEY, town INTEGER NOT NULL, visits INTEGER NOT NULL, name CHAR(8) NOT NULL)
        PARTITION BY HASH (id) WITH (ordered = true);
    CREATE INDEX by_town ON people (town);
    CREATE PROCEDURE fill(n SMALLINT, first INTEGER) AS BEGIN
        FOR i IN 1..LEAST(n, 100) LOOP INSERT INTO people VALUES (i, first, i, 'ann'); END LOOP;
    END;
";

#[test]
fn a_long_range_of_an_index_does_not_meet_the_rows_that_it_moves() {
    for body in [
        "UPDATE people SET town = town + 1 WHERE town >= 5 LIMIT 17;",
        "FOR r IN SELECT id FROM people WHERE town >= 5 LIMIT 40 LOOP
             UPDATE people SET town = 9 WHERE id = r.id;
         END LOOP;",
        "FOR r IN SELECT id FROM people WHERE town >= 5 LIMIT 40 LOOP
             FOR i IN 1..2 LOOP
                 IF i = 2 THEN
                     UPDATE people SET visits = 1 WHERE id = r.id;
                 ELSE
                     UPDATE people SET town = 9 WHERE id >= r.id LIMIT 1;
                 END IF;
             END LOOP;
         END LOOP;",
    ] {
        let script = format!("{TOWNS} CREATE PROCEDURE p() AS BEGIN {body} END;");
        let answer = Session::new(KINDS[0]).run(&script);
        assert!(answer.contains("0A000") && answer.contains("'town'") && answer.contains("by_town"), "{answer}");
    }
    let answer = Session::new(KINDS[0]).run(&format!("{TOWNS} UPDATE people SET town = 3 WHERE town = 5 LIMIT 40;"));
    assert!(answer.contains("0A000"), "{answer}");
    // One piece is read before the first of its rows is written, and other columns stand in no index.
    answers(
        &format!(
            "{TOWNS}
             CREATE PROCEDURE p() AS BEGIN
                 UPDATE people SET town = town + 1 WHERE town >= 5 LIMIT 16;
                 UPDATE people SET visits = 0 WHERE town = 4 LIMIT 40;
                 UPDATE people SET town = 8 WHERE id >= 1 AND id <= 2 LIMIT 40;
             END;
             CALL fill(16, 5); CALL p();
             SELECT id FROM people WHERE town = 5 LIMIT 40;
             CREATE PROCEDURE count(which INTEGER, OUT n BIGINT) AS BEGIN
                 SELECT COUNT(*) INTO n FROM (SELECT id FROM people WHERE town = which LIMIT 40) AS q;
             END;
             CALL count(6); CALL count(8); CALL count(7);"
        ),
        "id\nn = 14\nn = 2\nn = 0",
    );
}

#[test]
fn arrays_beyond_a_copy_are_copied_and_cleared_whole() {
    answers(
        "CREATE PROCEDURE p(OUT x INTEGER, OUT y INTEGER, OUT z INTEGER, OUT cleared INTEGER) AS
         DECLARE a TINYINT UNSIGNED[200000]; b TINYINT UNSIGNED[200000];
         BEGIN
             a[1] := 5; a[65536] := 6; a[200000] := 7;
             b := a; x := b[1]; y := b[65536]; z := b[200000];
             a := '';
             FOR i IN 1..200000 LOOP b[i] := 1; END LOOP;
             b := '';
             FOR i IN 1..200000 LOOP cleared := cleared + a[i] + b[i]; END LOOP;
         END;
         CALL p();",
        "x = 5\ny = 6\nz = 7\ncleared = 0",
    );
}

#[test]
fn columns_of_a_loop_are_those_of_the_moment_it_came_to_the_row() {
    for order in ["town = 7", "id >= 1"] {
        answers(
            &format!(
                "{TOWNS}
                 CREATE PROCEDURE p(OUT total BIGINT, OUT first CHAR(8), OUT again CHAR(8), OUT ids BIGINT) AS BEGIN
                     FOR r IN SELECT id, visits, name FROM people WHERE {order} LIMIT 40 LOOP
                         UPDATE people SET visits = 0, name = 'eve' WHERE id = r.id;
                         total := total + r.visits; ids := ids + r.id;
                         first := r.name;
                         SELECT name INTO again FROM people WHERE id = r.id;
                     END LOOP;
                 END;
                 CALL fill(20, 7); CALL p(); CALL p();"
            ),
            "total = 210\nfirst = ann\nagain = eve\nids = 210\ntotal = 0\nfirst = eve\nagain = eve\nids = 210",
        );
    }
    answers(
        &format!(
            "{TOWNS}
             CREATE PROCEDURE p(OUT total BIGINT, OUT all_visits BIGINT) AS BEGIN
                 FOR r IN SELECT id, visits, name FROM people WHERE town = 7 LIMIT 40 LOOP
                     UPDATE people SET visits = 100 + visits, name = 'x' || SUBSTRING(name FROM 1 FOR 7)
                     WHERE id = r.id;
                     FOR s IN SELECT visits FROM people WHERE town = 7 AND id <= r.id LIMIT 2 LOOP
                         CONTINUE WHEN r.name <> 'ann';
                         all_visits := all_visits + s.visits;
                     END LOOP;
                     IF r.name = 'ann' THEN total := total + r.visits; END IF;
                 END LOOP;
             END;
             CALL fill(3, 7); CALL p();"
        ),
        "total = 6\nall_visits = 507",
    );
}

#[test]
fn hundreds_of_arms_find_their_way() {
    let arms = |from: u32| -> String {
        (from..=400).map(|i| format!("ELSIF n = {i} THEN r := {}; ", i * 2)).collect::<String>()
    };
    let empty: String = (1..=400).map(|i| format!("ELSIF n > {i} THEN NULL; ")).collect();
    let cases: String = (1..=120).map(|i| format!("WHEN {i} THEN {} ", i * 3)).collect();
    answers(
        &format!(
            "CREATE PROCEDURE p(n INTEGER, OUT r INTEGER) AS BEGIN
                 IF n = 1 THEN r := 2; {} ELSE r := -1; END IF;
             END;
             CREATE PROCEDURE q(n INTEGER, OUT r INTEGER) AS BEGIN
                 r := 3;
                 IF n < -1 THEN r := 4; {empty} END IF;
                 r := r + 1;
             END;
             CREATE PROCEDURE c(n INTEGER, OUT r INTEGER) AS BEGIN r := CASE n {cases} ELSE 7 END; END;
             CALL p(1); CALL p(399); CALL p(400); CALL p(401);
             CALL q(-5); CALL q(0); CALL q(300); CALL c(1); CALL c(119); CALL c(120); CALL c(121);",
            arms(2)
        ),
        "r = 2\nr = 798\nr = 800\nr = -1\nr = 5\nr = 4\nr = 4\nr = 3\nr = 357\nr = 360\nr = 7",
    );
}

#[test]
fn a_loop_that_begins_beyond_its_end_has_no_round() {
    answers(
        "CREATE PROCEDURE p(n TINYINT, OUT rounds INTEGER, OUT last INTEGER) AS BEGIN
             last := 1;
             FOR i IN n..10 LOOP rounds := rounds + 1; last := i; END LOOP;
             last := last + n;
         END;
         CREATE PROCEDURE q(n TINYINT, m TINYINT, OUT rounds INTEGER) AS BEGIN
             FOR k IN 1..2 LOOP
                 FOR i IN GREATEST(n, 3)..LEAST(m, 5) LOOP rounds := rounds + 1; END LOOP;
             END LOOP;
         END;
         CALL p(50); CALL p(11); CALL p(10); CALL p(-128); CALL q(127, 127); CALL q(4, 9); CALL q(-5, -5);",
        "rounds = 0
last = 51
rounds = 0
last = 12
rounds = 1
last = 20
rounds = 139
last = -118
rounds = 0
rounds = 4
rounds = 0",
    );
}

#[test]
fn variables_of_one_select_change_places() {
    for (filter, order) in [("id = 1", ""), ("id >= 1", "ORDER BY id LIMIT 1")] {
        answers(
            &format!(
                "{TOWNS}
                 CREATE PROCEDURE p(INOUT a CHAR(5), INOUT b CHAR(5), INOUT x BIGINT, INOUT y BIGINT) AS BEGIN
                     SELECT :b, :a, :y, :x INTO a, b, x, y FROM people WHERE {filter} {order};
                 END;
                 CREATE PROCEDURE q(INOUT a CHAR(5)[2], INOUT n BIGINT[2]) AS BEGIN
                     SELECT a[2], a[1], n[2], n[1] INTO a[1], a[2], n[1], n[2]
                     FROM people WHERE {filter} {order};
                 END;
                 CALL fill(1, 7); CALL p('one', 'two', 1, 2); CALL q(ARRAY('ann', 'bob'), ARRAY(3, 4));"
            ),
            "a_out = two\nb_out = one\nx_out = 2\ny_out = 1\na_out = {bob,ann}\nn_out = {4,3}",
        );
    }
}

#[test]
fn fewer_rows_leave_nothing_of_those_before() {
    let row = |o: u8, n: u8, amount: u8| format!("\\x0{o}000000000000000{n}000000000000000{amount}00000000000000");
    let none = format!("\\x{}", "00".repeat(24));
    let rows = |all: [&String; 3]| format!("rows = {{{},{},{}}}", all[0], all[1], all[2]);
    let (twice, once) = (rows([&row(2, 1, 7), &none, &none]), rows([&row(1, 1, 4), &row(1, 2, 5), &row(1, 3, 6)]));
    answers(
        &format!(
            "{LINES}
             CREATE PROCEDURE p(many SMALLINT, OUT rows lines%ROWTYPE[3]) AS BEGIN
                 SELECT * INTO rows FROM lines WHERE o = 1 LIMIT 3;
                 FOR i IN 1..LEAST(many, 3) LOOP SELECT * INTO rows FROM lines WHERE o = 2 LIMIT 3; END LOOP;
             END;
             INSERT INTO lines VALUES (1, 1, 4), (1, 2, 5), (1, 3, 6), (2, 1, 7);
             CALL p(0); CALL p(1); CALL p(2);"
        ),
        &format!("rows = 4\n{once}\n{twice}\n{twice}"),
    );
}

#[test]
fn a_negative_limit_is_refused_or_aborts() {
    for limit in ["-1", "LEAST(-1, 5)"] {
        let script = format!(
            "{LINES} CREATE PROCEDURE p(OUT n BIGINT) AS BEGIN
                 FOR r IN SELECT n FROM lines WHERE o = 1 LIMIT {limit} LOOP n := n + 1; END LOOP;
             END;"
        );
        let answer = Session::new(KINDS[0]).run(&script);
        assert!(answer.contains("2201W"), "{answer}");
    }
    answers(
        &format!(
            "{LINES}
             CREATE PROCEDURE p(few SMALLINT, many SMALLINT, OUT a BIGINT, OUT b BIGINT) AS BEGIN
                 FOR r IN SELECT n FROM lines WHERE o = 1 LIMIT LEAST(few, 5) LOOP a := a + 1; END LOOP;
                 FOR r IN SELECT n FROM lines WHERE o = 1 LIMIT LEAST(many, 40) LOOP b := b + 1; END LOOP;
             END;
             CREATE PROCEDURE q(n SMALLINT) AS BEGIN DELETE FROM lines WHERE o = 1 LIMIT LEAST(n, 40); END;
             CREATE PROCEDURE s(n SMALLINT, OUT c BIGINT) AS BEGIN
                 SELECT COUNT(*) INTO c FROM (SELECT n FROM lines WHERE o = 1 LIMIT LEAST(:n, 40)) AS q;
             END;
             CREATE PROCEDURE f(n SMALLINT, OUT rows lines%ROWTYPE[2]) AS BEGIN
                 SELECT * INTO rows FROM lines WHERE o = 1 LIMIT LEAST(n, 2);
             END;
             CALL fill(1, 30);
             CALL p(-1, 3); CALL p(3, -1); CALL p(0, 0); CALL p(9, 99); CALL q(-1); CALL s(-1); CALL f(-1); CALL s(17);"
        ),
        "error 2201W: LIMIT is negative
error 2201W: LIMIT is negative
a = 0
b = 0
a = 5
b = 30
error 2201W: LIMIT is negative
error 2201W: LIMIT is negative
error 2201W: LIMIT is negative
c = 17",
    );
}

#[test]
fn rounding_near_the_limits_of_64_bits_is_exact() {
    // `a * 0.001` is `a` with three decimals.
    let cases = [
        (i64::MAX, "9223372036854776"),
        (i64::MAX - 307, "9223372036854776"),
        (i64::MAX - 308, "9223372036854775"),
        (i64::MIN + 308, "-9223372036854776"),
        (i64::MIN + 309, "-9223372036854775"),
        (i64::MIN, "-9223372036854776"),
        (1_499, "1"),
        (1_500, "2"),
        (-1_499, "-1"),
        (-1_500, "-2"),
        (499, "0"),
        (-499, "0"),
    ];
    let calls: String = cases.iter().map(|(value, _)| format!("CALL p({value}); ")).collect();
    let expected: String = cases.iter().map(|(_, rounded)| format!("x = {rounded}\ny = {rounded}.0\n")).collect();
    answers(
        &format!(
            "CREATE PROCEDURE p(a BIGINT, OUT x BIGINT, OUT y DECIMAL(18, 1)) AS BEGIN
                 x := CAST(a * 0.001 AS BIGINT); y := ROUND(a * 0.001, 0);
             END;
             {calls}"
        ),
        &expected,
    );
    answers(
        "CREATE PROCEDURE q(a DECIMAL(18, 0), b DECIMAL(18, 2), OUT x DECIMAL(18, 2)) AS BEGIN x := a / b; END;
         CALL q(92233720368547, 0.03); CALL q(922337203685477, 0.03); CALL q(922337203685478, 0.03);
         CALL q(-922337203685478, 0.03);",
        "x = 3074457345618233.33
error 22003: value out of range
error 22003: integer overflow
error 22003: integer overflow",
    );
}

#[test]
fn what_may_be_deleted_is_not_moved_in_an_index() {
    let moved = "UPDATE people SET town = 9 WHERE id";
    let gone = "DELETE FROM people WHERE id";
    let each = "FOR r IN SELECT id, visits FROM people WHERE id >= 1 LIMIT 40 LOOP";
    let made = |body: &str| {
        let mut session = Session::new(KINDS[0]);
        session.run(&format!("{TOWNS} CALL fill(3, 7);"));
        let parameters = "who BIGINT, other BIGINT, OUT n BIGINT";
        let error = session.run(&format!("CREATE PROCEDURE p({parameters}) AS BEGIN {body} END;"));
        if error.is_empty() {
            session.run("CALL p(1, 2);");
            assert_eq!(session.count("people"), session.count("by_town"), "{body}");
        }
        error
    };
    for body in [
        format!("{gone} = who; {moved} = who;"),
        format!("{gone} = who; {moved} = other;"),
        format!("{gone} = 1; {moved} >= 1 LIMIT 5;"),
        format!("{gone} >= who LIMIT 2; {moved} = 2;"),
        format!("FOR i IN 1..2 LOOP {moved} = i; {gone} = i; END LOOP;"),
        format!("{each} {gone} = r.id; {moved} = r.id; END LOOP;"),
        format!("{each} {moved} = other; {gone} = r.id; END LOOP;"),
        format!(
            "FOR i IN 1..2 LOOP {each} IF i = 2 THEN {moved} = r.id; ELSE {gone} = r.id; END IF; END LOOP; END LOOP;"
        ),
        format!("{each} {gone} = r.id; EXIT; END LOOP; {moved} = who;"),
        format!("IF who = 1 THEN {gone} = who; END IF; {moved} = who;"),
        format!("FOR i IN 1..2 LOOP {moved} = who; IF n = 0 THEN {gone} = who; CONTINUE; END IF; RETURN; END LOOP;"),
    ] {
        let error = made(&body);
        assert!(error.contains("0A000") && error.contains("'people'") && error.contains("'town'"), "{body}: {error}");
    }
    for body in [
        format!("{moved} = who; {gone} = who;"),
        format!("{gone} = 1; {moved} = 2;"),
        format!("IF who = 1 THEN {gone} = who; ELSE {moved} = who; END IF;"),
        format!("IF who = 1 THEN {gone} = who; RETURN; END IF; {moved} = other;"),
        format!("{each} IF r.visits = 2 THEN {gone} = r.id; ELSE {moved} = r.id; END IF; END LOOP;"),
        format!("{each} IF r.visits = 2 THEN {gone} = r.id; RETURN; END IF; {moved} = other; END LOOP;"),
        format!("{gone} = who; UPDATE people SET visits = 0 WHERE id = who;"),
    ] {
        assert_eq!(made(&body), "", "{body}");
    }
}

#[test]
fn more_arms_than_can_lie_in_each_other_are_refused() {
    let arms = |count: u32, last: &str| -> String {
        let arms: String = (1..=count).map(|i| format!("ELSIF n = {i} THEN r := {i}; ")).collect();
        format!("IF n = 0 THEN r := -1; {arms} ELSE {last} END IF;")
    };
    let made = |body: &str| {
        let text = format!("CREATE PROCEDURE p(n INTEGER, OUT r INTEGER) AS BEGIN {body} END; CALL p(500);");
        let statements: Vec<_> = lockwork_sql::statements(&text).collect();
        if let Some(Err(error)) = statements.into_iter().find(Result::is_err) {
            return format!("{}: {}", error.sqlstate, error.message);
        }
        Session::new(KINDS[0]).run(&text)
    };
    let refused = "54001: more than 500 ELSIF stand in front of this one";
    assert_eq!(made(&arms(500, "")), "r = 500\n");
    assert_eq!(made(&arms(501, "")), refused);
    assert_eq!(made(&arms(100_000, "")), refused);
    assert_eq!(made(&arms(250, &arms(251, ""))), refused);
    assert_eq!(made(&format!("{} {}", arms(400, ""), arms(500, ""))), "r = 500\n");
}
