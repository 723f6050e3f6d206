//! Texts that `||` makes of numbers, and parameters that are joined to texts or compared with them.

mod common;

use common::{KINDS, Session, answers};
use lockwork_sql::Value;

const T: &str = "CREATE TABLE t (id BIGINT PRIMARY KEY, small SMALLINT NOT NULL, v BIGINT NOT NULL,
                     d DECIMAL(12, 2) NOT NULL, b BOOLEAN NOT NULL, s VARCHAR(8) NOT NULL, long VARCHAR(60) NOT NULL)
                     PARTITION BY HASH (id);
                 INSERT INTO t VALUES (1, -7, 9223372036854775807, -0.05, true, 's', 'l');";

#[test]
fn numbers_and_truth_values_are_joined_as_their_texts() {
    answers(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, d DECIMAL(12, 2) NOT NULL, b BOOLEAN NOT NULL, s VARCHAR(60) NOT NULL);
         CREATE PROCEDURE p(n BIGINT, d DECIMAL(12, 2), small TINYINT, b BOOLEAN, OUT last CHAR(24), OUT first CHAR(24),
                            OUT all CHAR(60), OUT same BOOLEAN, OUT less BOOLEAN, OUT wide CHAR(20)) AS
         BEGIN
             last := 'n=' || n; first := n || '.'; all := b || ' ' || small || '/' || d || ';' || n;
             same := 'a' || small = 'a-7'; less := 'a' || small < 'a7'; wide := CAST(d AS VARCHAR(20)) || '!';
         END;
         CALL p(0, 0, 0, false);
         CALL p(-9223372036854775808, -9999999999.99, -128, true);
         CALL p(9223372036854775807, 0.05, -7, true);
         CALL p(-10, -0.5, 7, false);
         CALL p(99, 100, 10, true); CALL p(1000000000, 12.34, 99, true); CALL p(999999999, 1, 100, true);",
        "last = n=0
first = 0.
all = false 0/0.00;0
same = false
less = true
wide = 0.00!
last = n=-9223372036854775808
first = -9223372036854775808.
all = true -128/-9999999999.99;-9223372036854775808
same = false
less = true
wide = -9999999999.99!
last = n=9223372036854775807
first = 9223372036854775807.
all = true -7/0.05;9223372036854775807
same = true
less = true
wide = 0.05!
last = n=-10
first = -10.
all = false 7/-0.50;-10
same = false
less = false
wide = -0.50!
last = n=99
first = 99.
all = true 10/100.00;99
same = false
less = true
wide = 100.00!
last = n=1000000000
first = 1000000000.
all = true 99/12.34;1000000000
same = false
less = false
wide = 12.34!
last = n=999999999
first = 999999999.
all = true 100/1.00;999999999
same = false
less = true
wide = 1.00!",
    );
}

#[test]
fn every_number_of_digits_is_joined_as_it_is_written() {
    let mut session = Session::new(KINDS[0]);
    let text = "CREATE PROCEDURE p(n BIGINT, d DECIMAL(18, 3), OUT a CHAR(30), OUT b CHAR(30)) AS
                BEGIN a := n || 'x'; b := d || 'x'; END;";
    assert_eq!(session.run(text), "");
    for power in 0..19 {
        for around in [-1, 0, 1] {
            for sign in [-1, 1] {
                let n = (10_i64.pow(power) + around) * sign;
                let d = n % 1_000_000_000_000_000_000;
                let decimal = Value::Decimal(d, 3).to_string();
                let answer = session.run(&format!("CALL p({n}, {decimal})"));
                assert_eq!(answer, format!("a = {n}x\nb = {decimal}x\n"));
            }
        }
    }
}

#[test]
fn statements_join_numbers_to_texts() {
    answers(
        &format!(
            "{T}
             UPDATE t SET long = 'v' || v || ' ' || small || ' ' || d || ' ' || b WHERE id = 1;
             SELECT long FROM t WHERE id = 1;
             UPDATE t SET s = 'abc' || small WHERE id = 1; SELECT s FROM t WHERE id = 1;
             UPDATE t SET s = id || 'x' || 1.50 || 't' WHERE id = 1; SELECT s FROM t WHERE id = 1;
             UPDATE t SET s = 'v' || v WHERE id = 1; SELECT s FROM t WHERE id = 1;
             INSERT INTO t VALUES (2, 0, 0, 0, false, 'n' || 5, 1 || '-' || -2);
             SELECT s, long FROM t WHERE id = 2;"
        ),
        "rows = 1
rows = 1
long
v9223372036854775807 -7 -0.05 true
rows = 1
s
abc-7
rows = 1
s
1x1.50t
error 22001: column 's': the text does not fit a text of 8 bytes
s
1x1.50t
rows = 1
s | long
n5 | 1--2",
    );
}

#[test]
fn a_parameter_that_is_joined_to_a_text_may_be_as_long_as_the_column() {
    let mut session = Session::new(KINDS[0]);
    session.run(T);
    let text = |text: &str| Value::Text(text.into());
    for (set, given, expected) in [
        ("'x' || $1", "abcdefg", "xabcdefg"),
        ("$1 || 'x'", "abc", "abcx"),
        ("'(' || $1 || ')'", "", "()"),
        ("$1 || small", "abc", "abc-7"),
        ("5 || $1", "abc", "5abc"),
    ] {
        let answer = session.run_with(&format!("UPDATE t SET s = {set} WHERE id = 1"), &[text(given)]);
        assert_eq!(answer, "rows = 1\n", "{set}");
        assert_eq!(session.run("SELECT s FROM t WHERE id = 1"), format!("s\n{expected}\n"), "{set}");
    }
    for (set, given) in [("'x' || $1", "abcdefgh"), ("$1 || small", "abcdefg")] {
        let answer = session.run_with(&format!("UPDATE t SET s = {set} WHERE id = 1"), &[text(given)]);
        assert_eq!(answer, "error 22001: column 's': the text does not fit a text of 8 bytes\n", "{set}");
    }
    let answer = session.run_with("UPDATE t SET s = 'x' || $1 WHERE id = 1", &[text("abcdefghi")]);
    assert!(answer.contains("22001") && answer.contains("9 bytes do not fit a text of 8 bytes"), "{answer}");
    assert_eq!(session.run("SELECT s FROM t WHERE id = 1"), "s\n5abc\n");
}

#[test]
fn a_parameter_that_no_row_can_have_decides_a_condition_beside_a_key() {
    let mut session = Session::new(KINDS[0]);
    session.run(T);
    session.run("UPDATE t SET s = 'ab' WHERE id = 1");
    let text = |text: &str| Value::Text(text.into());
    let long = "abcdefghijkl";
    for (condition, given, holds) in [
        ("'qw' = $1", text("qwe"), false),
        ("'qw' = $1", text("qw"), true),
        ("'qw' <> $1", text("qwe"), true),
        ("'qw' < $1", text("qwe"), true),
        ("'qw' < $1", text("qw"), false),
        ("'qw' > $1", text("qva"), true),
        ("s = $1", text(long), false),
        ("s <> $1", text(long), true),
        ("s < $1", text(long), true),
        ("s > $1", text(long), false),
        ("s IN ($1, 'ab')", text(long), true),
        ("s IN ($1, 'cd')", text(long), false),
        ("NOT s IN ($1, 'cd')", text(long), true),
        ("s BETWEEN 'a' AND $1", text(long), true),
        ("small <> $1", Value::Integer(1 << 40), true),
        ("small IN ($1, -7)", Value::Integer(1 << 40), true),
        ("small IN ($1, 8)", Value::Integer(-1 << 40), false),
        ("small < $1", Value::Integer(1 << 40), true),
    ] {
        let single = format!("UPDATE t SET v = v WHERE id = 1 AND {condition}");
        let answer = session.run_with(&single, &[given]);
        assert_eq!(answer, format!("rows = {}\n", u8::from(holds)), "{condition}");
    }
}

#[test]
fn bytes_that_no_row_can_have_decide_a_condition_beside_a_key() {
    let mut session = Session::new(KINDS[0]);
    session.run("CREATE TABLE w (id BIGINT PRIMARY KEY, b BYTEA(2) NOT NULL); INSERT INTO w VALUES (1, X'0102')");
    for (condition, given, holds) in [
        ("b <> $1", &[1, 2, 0, 0][..], false),
        ("b <> $1", &[1, 2, 0, 0, 3], true),
        ("b < $1", &[1, 2, 0, 0, 3], true),
        ("b < $1", &[1, 2, 0, 0, 0], false),
        ("b > $1", &[1, 1, 9, 9, 9], true),
        ("b IN ($1, X'0102')", &[1, 2, 3], true),
        ("b IN ($1, X'0103')", &[1, 2, 3], false),
    ] {
        let select = format!("SELECT id FROM w WHERE id = 1 AND {condition}");
        let answer = session.run_with(&select, &[Value::Bytes(given.into())]);
        assert_eq!(answer, if holds { "id\n1\n" } else { "id\n" }, "{condition}, {given:?}");
    }
}
