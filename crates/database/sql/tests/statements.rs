//! What statements do, on every engine of the CPU.

mod common;

use common::{KINDS, Session, answers};
use lockwork_sql::{Field, SqlError, Value};

const ACCOUNTS: &str = "
    CREATE TABLE accounts (id BIGINT PRIMARY KEY, owner VARCHAR(10) NOT NULL, balance DECIMAL(12, 2) NOT NULL DEFAULT 0,
                           active BOOLEAN NOT NULL DEFAULT TRUE, opened TIMESTAMP NOT NULL DEFAULT '2024-01-01')
        PARTITION BY HASH (id);
";

fn on_accounts(rest: &str, expected: &str) {
    answers(&format!("{ACCOUNTS}{rest}"), expected);
}

#[test]
fn single_statements_write_and_read() {
    on_accounts(
        "INSERT INTO accounts (id, owner, balance) VALUES (1, 'ann', 12.5), (2, 'bob', -0.01);
         SELECT * FROM accounts WHERE id = 1;
         UPDATE accounts SET balance = balance * 2, active = FALSE WHERE id = 2;
         SELECT owner, balance AS money, active FROM accounts WHERE id = 2;
         INSERT INTO accounts (id, owner) VALUES (2, 'eve');
         INSERT INTO accounts (id, owner) VALUES (2, 'eve') ON CONFLICT DO NOTHING;
         DELETE FROM accounts WHERE id = 1;
         DELETE FROM accounts WHERE id = 1;
         SELECT owner FROM accounts WHERE id = 1;",
        "rows = 2
id | owner | balance | active | opened
1 | ann | 12.50 | true | 2024-01-01 00:00:00
rows = 1
owner | money | active
bob | -0.02 | false
error 23505: a row with this key exists
rows = 0
rows = 1
rows = 0
owner",
    );
}

#[test]
fn single_statements_that_differ_in_constants_are_one_procedure() {
    let mut session = Session::new(KINDS[0]);
    session.run(ACCOUNTS);
    let single = |text| {
        let statement = lockwork_sql::statements(text).next().unwrap().unwrap();
        session.catalogue.single(&statement).unwrap()
    };
    let (a, b) = (single("DELETE FROM accounts WHERE id = 7"), single("DELETE FROM accounts WHERE id = -8"));
    assert_eq!(a.compiled.procedure, b.compiled.procedure);
    assert_eq!(a.arguments.values(&[]), Ok(Some(vec![Value::Integer(7)])));
    assert_eq!(b.arguments.values(&[]), Ok(Some(vec![Value::Integer(-8)])));
    let parameter = single("DELETE FROM accounts WHERE id = $1");
    assert_eq!(a.compiled.procedure, parameter.compiled.procedure);
    assert_eq!(parameter.arguments.values(&[Value::Integer(7)]), a.arguments.values(&[]));
}

#[test]
fn single_statements_whose_limits_are_alike_are_one_procedure() {
    let mut session = Session::new(KINDS[0]);
    session.run(&format!("{LINES} CALL fill(3, 40);"));
    session.run("CREATE TABLE wide (id BIGINT PRIMARY KEY, text CHAR(1000) NOT NULL) WITH (ordered = true)");
    let single = |text: String| {
        let statement = lockwork_sql::statements(&text).next().unwrap().unwrap();
        session.catalogue.single(&statement).unwrap_or_else(|error| panic!("{text}: {error}"))
    };
    for kind in ["SELECT n FROM lines", "UPDATE lines SET amount = 1", "DELETE FROM lines"] {
        let of = |limit: u32| single(format!("{kind} WHERE o = 3 LIMIT {limit}")).compiled.procedure;
        let mut procedures: Vec<_> = (1..=10_000).step_by(37).map(of).collect();
        procedures.dedup();
        assert!((8..=15).contains(&procedures.len()), "{kind}: {}", procedures.len());
        assert!(of(9) == of(16) && of(16) != of(17) && of(8193) == of(10_000));
    }
    // Where there is room for no more rows than it says, it is one by itself.
    let wide = |limit: u32| single(format!("SELECT text FROM wide WHERE id BETWEEN 1 AND 9000 LIMIT {limit}"));
    assert_ne!(wide(519).compiled.procedure, wide(520).compiled.procedure);
    for limit in [1, 2, 3, 15, 16, 17, 31, 32, 33, 39, 40, 41, 64, 10_000] {
        let answer = session.run(&format!("SELECT n FROM lines WHERE o = 3 ORDER BY n LIMIT {limit}"));
        let rows: Vec<i64> = answer.lines().filter_map(|line| line.trim().parse().ok()).collect();
        assert_eq!(rows.len(), limit.min(40), "{limit}: {answer}");
        assert!(rows.is_sorted() && rows[0] == -19, "{limit}: {answer}");
    }
    let changed =
        session.run("UPDATE lines SET amount = 1 WHERE o = 3 LIMIT 19; DELETE FROM lines WHERE o = 3 LIMIT 39;");
    assert!(changed.contains("19") && changed.contains("39"), "{changed}");
    assert_eq!(session.run("SELECT n FROM lines WHERE o = 3 LIMIT 9").trim().lines().last().map(str::trim), Some("20"));
}

#[test]
fn parameters_of_single_statements_have_the_types_of_what_they_stand_beside() {
    let mut session = Session::new(KINDS[0]);
    session.run(ACCOUNTS);
    session.run(
        "CREATE PROCEDURE double(x DECIMAL(6, 1), y INTEGER, OUT z DECIMAL(8, 1)) AS BEGIN z := x + x + y; END;
         CREATE PROCEDURE last(list BIGINT[3], OUT z BIGINT) AS BEGIN z := list[3]; END;",
    );
    let types = |session: &Session, text: &str| -> Result<String, SqlError> {
        let statement = lockwork_sql::statements(text).next().unwrap()?;
        let arguments = match statement.name() {
            Some(name) => statement.arguments(&session.procedures[name].0)?,
            None => session.catalogue.single(&statement)?.arguments,
        };
        let one = |field: &Field| {
            let count = field.count.map_or_else(String::new, |count| format!("[{count}]"));
            format!("{} {}{count}", field.name, field.sql_type.unwrap())
        };
        Ok(arguments.parameters().iter().map(one).collect::<Vec<_>>().join(", "))
    };
    for (text, expected) in [
        (
            "INSERT INTO accounts VALUES ($1, $2, $3, $4, $5)",
            "$1 BIGINT, $2 CHAR(10), $3 DECIMAL(12, 2), $4 BOOLEAN, $5 TIMESTAMP",
        ),
        ("UPDATE accounts SET balance = balance + $2 WHERE id = $1", "$1 BIGINT, $2 DECIMAL(18, 2)"),
        (
            "UPDATE accounts SET balance = $2 * balance, active = $3 = owner WHERE $1 = id",
            "$1 BIGINT, $2 DECIMAL(18, 2), $3 CHAR(10)",
        ),
        ("UPDATE accounts SET balance = CAST($1 AS INTEGER) WHERE id = 1", "$1 INTEGER"),
        (
            "UPDATE accounts SET active = balance BETWEEN $1 AND $2 OR owner IN ($3, 'x') WHERE id = 1",
            "$1 DECIMAL(18, 2), $2 DECIMAL(18, 2), $3 CHAR(10)",
        ),
        ("UPDATE accounts SET owner = $1::VARCHAR WHERE id = $2", "$1 CHAR(10), $2 BIGINT"),
        ("UPDATE accounts SET active = CAST($1 AS TEXT) = owner WHERE id = 1", "$1 CHAR(10)"),
        ("CALL double($2, $1)", "$1 INTEGER, $2 DECIMAL(6, 1)"),
        ("CALL double(1.5, $1)", "$1 INTEGER"),
        ("CALL last($1)", "$1 BIGINT[3]"),
        ("SELECT owner FROM accounts WHERE id = 1", ""),
    ] {
        assert_eq!(types(&session, text).as_deref(), Ok(expected), "{text}");
    }
    for (text, expected) in [
        ("DELETE FROM accounts WHERE id = $2", "nothing says the type of $1"),
        ("UPDATE accounts SET active = $1 = $2 WHERE id = 1", "a parameter of no known type"),
        ("UPDATE accounts SET balance = $1::TEXT WHERE id = 1", "a text stands where DECIMAL(12, 2) is needed"),
        ("CALL double(1, $1::VARCHAR)", "$1 stands only in a single statement"),
        ("UPDATE accounts SET balance = -$1 WHERE id = 1", "CAST($1 AS type) says it"),
        ("UPDATE accounts SET balance = $0 WHERE id = 1", "$0"),
        ("UPDATE accounts SET balance = $99999 WHERE id = 1", "$99999"),
        ("CALL double(1 + $1, 1)", "$1 stands only in a single statement"),
    ] {
        let refused = types(&session, text).unwrap_err().to_string();
        assert!(refused.contains(expected), "{text}: {refused}");
    }
    let in_procedure = session.run("CREATE PROCEDURE p(OUT x BIGINT) AS BEGIN x := $1; END;");
    assert!(in_procedure.contains("$1 stands only in a single statement"), "{in_procedure}");
    let text = |text: &str| Value::Text(text.into());
    let row = [Value::Integer(7), text("ann"), Value::Decimal(1250, 2), Value::Boolean(true), Value::Timestamp(0)];
    assert_eq!(session.run_with("INSERT INTO accounts VALUES ($1, $2, $3, $4, $5)", &row), "rows = 1\n");
    let update = "UPDATE accounts SET balance = balance + $2, owner = $3 WHERE id = $1";
    let given = [Value::Integer(7), Value::Integer(-3), text("eve")];
    assert_eq!(session.run_with(update, &given), "rows = 1\n");
    let found = session.run_with("SELECT * FROM accounts WHERE id = $1", &[Value::Integer(7)]);
    assert_eq!(found, "id | owner | balance | active | opened\n7 | eve | 9.50 | true | 1970-01-01 00:00:00\n");
    let called = session.run_with("CALL double($2, $1)", &[Value::Integer(1), Value::Decimal(25, 1)]);
    assert_eq!(called, "z = 6.0\n");
    // One parameter in two places of different types: it has to fit both.
    let both = "UPDATE accounts SET balance = $1 WHERE id = $1";
    assert_eq!(session.run_with(both, &[Value::Integer(7)]), "rows = 1\n");
    for wrong in [vec![], vec![text("x"); 3], vec![Value::Integer(7), Value::Integer(1 << 50), text("x")]] {
        let refused = session.run_with(update, &wrong);
        assert!(refused.contains("error "), "{refused}");
    }
    assert!(session.run_with(update, &[Value::Integer(7), Value::Integer(0), text("12345678901")]).contains("error"));
}

#[test]
fn decimals_round_half_away_from_zero_and_keep_to_their_precision() {
    on_accounts(
        "CREATE PROCEDURE p(a DECIMAL(12, 4), b DECIMAL(12, 2), OUT cut DECIMAL(12, 2), OUT product DECIMAL(12, 2),
                            OUT quotient DECIMAL(12, 4), OUT whole BIGINT, OUT same BOOLEAN) AS
         BEGIN
             cut := a; product := a * b; quotient := a / b; whole := CAST(a AS BIGINT); same := a = b;
         END;
         CALL p(1.2350, 2);
         CALL p(-1.2350, 2);
         CALL p(1.2349, -3);
         CALL p(2.5, 2.50);
         CALL p(1, 0);
         CALL p(99999999.9999, 99999999.99);
         CREATE PROCEDURE q(a DECIMAL(12, 2), OUT r DECIMAL(4, 2)) AS BEGIN r := a; END;
         CALL q(99.99);
         CALL q(100);",
        "cut = 1.24
product = 2.47
quotient = 0.6175
whole = 1
same = false
cut = -1.24
product = -2.47
quotient = -0.6175
whole = -1
same = false
cut = 1.23
product = -3.70
quotient = -0.4116
whole = 1
same = false
cut = 2.50
product = 6.25
quotient = 1.0000
whole = 3
same = true
error 22012: division by zero
error 22003: integer overflow
r = 99.99
error 22003: value out of range",
    );
}

#[test]
fn found_tells_whether_there_was_a_row() {
    on_accounts(
        "CREATE PROCEDURE put(who BIGINT, amount DECIMAL(12, 2), OUT made BOOLEAN) AS BEGIN
             UPDATE accounts SET balance = balance + amount WHERE id = who;
             IF NOT FOUND THEN
                 INSERT INTO accounts (id, owner, balance) VALUES (who, 'new', amount);
                 made := TRUE;
             END IF;
         END;
         CREATE PROCEDURE must(who BIGINT, OUT balance DECIMAL(12, 2)) AS BEGIN
             SELECT balance INTO balance FROM accounts WHERE id = who;
         END;
         CREATE PROCEDURE says(who BIGINT, OUT there BOOLEAN, OUT gone BOOLEAN) AS BEGIN
             DELETE FROM accounts WHERE id = who;
             there := FOUND;
             UPDATE accounts SET balance = 1 WHERE id = who + 1;
             IF FOUND OR there THEN gone := TRUE; END IF;
         END;
         CREATE PROCEDURE refuse(who BIGINT) AS BEGIN
             DELETE FROM accounts WHERE id = who;
             IF NOT FOUND THEN RAISE EXCEPTION 'nobody' USING ERRCODE = 'LW007'; END IF;
         END;
         CALL put(1, 2.5); CALL put(1, 2.5); CALL must(1); CALL must(2); CALL says(1); CALL says(1); CALL refuse(1);",
        "made = true
made = false
balance = 5.00
error P0002: no row has this key
there = true
gone = true
there = false
gone = false
error LW007: nobody",
    );
}

const LINES: &str = "
    CREATE TABLE lines (o BIGINT, n SMALLINT, amount BIGINT NOT NULL, PRIMARY KEY (o, n)) PARTITION BY HASH (o);
    CREATE PROCEDURE fill(orders SMALLINT, each SMALLINT) AS BEGIN
        FOR o IN 1..LEAST(orders, 100) LOOP
            FOR n IN 1..LEAST(each, 100) LOOP INSERT INTO lines VALUES (o, n - 20, o * 1000 + n); END LOOP;
        END LOOP;
    END;
";

#[test]
fn ranges_of_every_length_are_gone_through_to_their_limit() {
    // Pieces end after 16 and 31 rows; limits lie before, at and behind.
    for limit in [1, 15, 16, 17, 30, 31, 32, 40] {
        for each in [0_i64, 1, 15, 16, 17, 31, 32, 33, 45] {
            let script = format!(
                "{LINES}
                 CREATE PROCEDURE sum(which BIGINT, OUT total BIGINT, OUT rows BIGINT, OUT last BIGINT) AS BEGIN
                     FOR r IN SELECT n, amount FROM lines WHERE o = which ORDER BY n LIMIT {limit} LOOP
                         total := total + r.amount; rows := rows + 1; last := r.n;
                     END LOOP;
                 END;
                 CALL fill(3, {each}); CALL sum(2);"
            );
            let rows = each.min(limit);
            let total = rows * 2000 + rows * (rows + 1) / 2;
            let last = if rows == 0 { 0 } else { rows - 20 };
            let expected = format!("total = {total}\nrows = {rows}\nlast = {last}");
            let answer = Session::new(KINDS[0]).run(&script);
            assert_eq!(answer.trim(), expected, "limit {limit}, {each} rows");
        }
    }
}

#[test]
fn ranges_have_bounds_exits_and_rounds_that_are_passed_over() {
    answers(
        &format!(
            "{LINES}
             CREATE PROCEDURE p(low SMALLINT, high SMALLINT, OUT within BIGINT, OUT odd BIGINT, OUT some BIGINT) AS
             BEGIN
                 FOR r IN SELECT n FROM lines WHERE o = 2 AND n >= low AND n < high ORDER BY n LIMIT 50 LOOP
                     within := within + 1;
                     CONTINUE WHEN MOD(r.n, 2) = 0;
                     odd := odd + 1;
                 END LOOP;
                 <<outer>> FOR r IN SELECT o, n FROM lines WHERE o >= 2 ORDER BY o, n LIMIT 90 LOOP
                     FOR i IN 1..3 LOOP
                         EXIT outer WHEN r.o = 3 AND r.n > low;
                         CONTINUE outer WHEN i = 2;
                         some := some + 1;
                     END LOOP;
                 END LOOP;
             END;
             CALL fill(3, 40); CALL p(-5, 10); CALL p(5, 5);"
        ),
        "within = 15
odd = 8
some = 55
within = 0
odd = 0
some = 65",
    );
}

#[test]
fn aggregates_and_range_writes() {
    answers(
        &format!(
            "{LINES}
             CREATE PROCEDURE a(which BIGINT, OUT n BIGINT, OUT s BIGINT, OUT lo BIGINT, OUT hi BIGINT) AS BEGIN
                 SELECT COUNT(*), SUM(amount), MIN(amount), MAX(amount) INTO n, s, lo, hi
                     FROM (SELECT amount FROM lines WHERE o = which LIMIT 50) AS q;
             END;
             CREATE PROCEDURE window(OUT s BIGINT) AS BEGIN
                 SELECT SUM(amount) INTO s FROM lines WHERE o = 2 AND n BETWEEN -19 AND -17;
             END;
             CREATE PROCEDURE cut(which BIGINT, OUT any BOOLEAN) AS BEGIN
                 UPDATE lines SET amount = amount + 1000000 WHERE o = which AND n > 0 LIMIT 50;
                 DELETE FROM lines WHERE o = which AND n <= -18 LIMIT 50;
                 any := FOUND;
             END;
             CALL fill(3, 25); CALL a(2); CALL window(); CALL cut(2); CALL a(2); CALL cut(9); CALL a(9);
             UPDATE lines SET amount = 7 WHERE o = 3 LIMIT 4;
             SELECT n, amount FROM lines WHERE o = 3 AND n >= -17 ORDER BY n LIMIT 2;"
        ),
        "n = 25
s = 50325
lo = 2001
hi = 2025
s = 6006
any = true
n = 23
s = 5046322
lo = 2003
hi = 1002025
any = false
error P0002: no row was found
rows = 4
n | amount
-17 | 7
-16 | 7",
    );
}
