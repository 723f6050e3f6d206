//! Variables with the types of columns and rows, and values that are defaults.

mod common;

use common::answers;

const BOXES: &str = "
    CREATE TABLE boxes (size DECIMAL(6, 2) NOT NULL DEFAULT 1.5, id BIGINT PRIMARY KEY,
                        label VARCHAR(6) NOT NULL DEFAULT 'none',
                        open BOOLEAN NOT NULL DEFAULT TRUE) PARTITION BY HASH (id);
";

fn on_boxes(rest: &str, expected: &str) {
    answers(&format!("{BOXES}{rest}"), expected);
}

#[test]
fn variables_have_the_types_of_columns_and_variables() {
    on_boxes(
        "INSERT INTO boxes VALUES (2.25, 1, 'a');
         CREATE PROCEDURE p(which boxes.id%TYPE, OUT twice public.boxes.size%TYPE, OUT name boxes.label%TYPE) AS
         DECLARE
             s boxes.size%TYPE := 5 % 3;
             t s%TYPE;
             list boxes.size%TYPE[3];
         BEGIN
             SELECT size, label INTO s, name FROM boxes WHERE id = which;
             list[2] := s;
             t := list[2];
             twice := t + s;
         END;
         CALL p(1);
         CREATE PROCEDURE wrong(a boxes.weight%TYPE) AS BEGIN NULL; END;
         CREATE PROCEDURE wrong(a crates.id%TYPE) AS BEGIN NULL; END;
         CREATE PROCEDURE wrong(a b%TYPE) AS BEGIN NULL; END;
         CREATE PROCEDURE wrong(a other.boxes.id%TYPE) AS BEGIN NULL; END;",
        "rows = 1
twice = 4.50
name = a
line 18, column 41: error 42703: table 'boxes' has no column 'weight'
             CREATE PROCEDURE wrong(a boxes.weight%TYPE) AS BEGIN NULL; END;
                                            ^
hint: it has: id, size, label, open
line 19, column 35: error 42P01: no table is called 'crates'
             CREATE PROCEDURE wrong(a crates.id%TYPE) AS BEGIN NULL; END;
                                      ^
hint: there are: boxes
line 20, column 35: error 42703: nothing is called 'b'
             CREATE PROCEDURE wrong(a b%TYPE) AS BEGIN NULL; END;
                                      ^
hint: nothing is declared
line 21, column 35: error 3F000: no schema is called 'other'
             CREATE PROCEDURE wrong(a other.boxes.id%TYPE) AS BEGIN NULL; END;
                                      ^
hint: everything is in 'public'",
    );
}

#[test]
fn a_row_goes_into_a_variable_that_is_one() {
    on_boxes(
        "INSERT INTO boxes VALUES (2.25, 1, 'a');
         CREATE PROCEDURE copy(source BIGINT, target BIGINT, OUT label VARCHAR(6), OUT found_one BOOLEAN) AS
         DECLARE r boxes%ROWTYPE; before boxes%ROWTYPE;
         BEGIN
             SELECT * INTO r FROM boxes WHERE id = source AND size > 0;
             found_one := FOUND;
             IF NOT found_one THEN r.label := 'lost'; END IF;
             before.label := r.label;
             r.id := target;
             r.size := r.size * 2;
             INSERT INTO boxes VALUES (r.size, r.id, r.label, r.open);
             label := before.label;
         END;
         CALL copy(1, 2);
         CALL copy(7, 8);
         SELECT * FROM boxes WHERE id IN (2, 8);
         CREATE PROCEDURE must(which BIGINT, OUT n BIGINT) AS
         DECLARE r boxes%ROWTYPE;
         BEGIN
             SELECT * INTO r FROM boxes WHERE id = which;
             n := r.id;
         END;
         CALL must(2);
         CALL must(3);
         CREATE PROCEDURE wrong() AS DECLARE r boxes%ROWTYPE; BEGIN r.weight := 1; END;
         CREATE PROCEDURE wrong() AS DECLARE r boxes%ROWTYPE; n BIGINT; BEGIN n := r; END;
         CREATE PROCEDURE wrong() AS DECLARE r boxes%ROWTYPE; BEGIN SELECT id INTO r FROM boxes WHERE id = 1; END;",
        "rows = 1
label = a
found_one = true
label = lost
found_one = false
size | id | label | open
4.50 | 2 | a | true
0.00 | 8 | lost | false
n = 2
error P0002: no row has this key
line 29, column 71: error 42703: 'r' has no column 'weight'
             CREATE PROCEDURE wrong() AS DECLARE r boxes%ROWTYPE; BEGIN r.weight := 1; END;
                                                                          ^
hint: its table has: size, id, label, open
line 30, column 84: error 42804: 'r' is a row; name one of its columns
             CREATE PROCEDURE wrong() AS DECLARE r boxes%ROWTYPE; n BIGINT; BEGIN n := r; END;
                                                                                       ^
line 31, column 69: error 42601: 1 columns are selected into 4 variables
             CREATE PROCEDURE wrong() AS DECLARE r boxes%ROWTYPE; BEGIN SELECT id INTO r FROM boxes WHERE id = 1; END;
                                                                        ^",
    );
}

#[test]
fn values_may_be_defaults() {
    on_boxes(
        "INSERT INTO boxes VALUES (DEFAULT, 1, DEFAULT), (7, 2);
         INSERT INTO boxes (id, label, size) VALUES (3, DEFAULT, 2);
         CREATE PROCEDURE p(n BIGINT) AS
         BEGIN
             INSERT INTO boxes VALUES (DEFAULT, n, 'p', DEFAULT);
             INSERT INTO boxes VALUES (3, n + 1);
             UPDATE boxes SET label = DEFAULT, open = FALSE WHERE id = n;
         END;
         CALL p(4);
         UPDATE boxes SET size = DEFAULT WHERE id = 2;
         SELECT * FROM boxes WHERE id IN (1, 2, 3, 4, 5);
         INSERT INTO boxes VALUES (1);
         INSERT INTO boxes VALUES (1, DEFAULT);
         INSERT INTO boxes VALUES (1, 2, 'c', TRUE, 5);
         INSERT INTO boxes (id, size) VALUES (9);
         UPDATE boxes SET size = DEFAULT + 1 WHERE id = 2;",
        "rows = 2
rows = 1
rows = 1
size | id | label | open
1.50 | 1 | none | true
1.50 | 2 | none | true
2.00 | 3 | none | true
1.50 | 4 | none | false
3.00 | 5 | none | true
line 16, column 10: error 23502: column 'id' of table 'boxes' gets no value and has no default
             INSERT INTO boxes VALUES (1);
             ^
hint: there are no NULLs: give it a value, or a DEFAULT in CREATE TABLE
line 17, column 39: error 23502: column 'id' of table 'boxes' gets no value and has no default
             INSERT INTO boxes VALUES (1, DEFAULT);
                                          ^
hint: there are no NULLs: give it a value, or a DEFAULT in CREATE TABLE
line 18, column 10: error 42601: 5 values are given for 4 columns
             INSERT INTO boxes VALUES (1, 2, 'c', TRUE, 5);
             ^
line 19, column 10: error 42601: 1 values are given for 2 columns
             INSERT INTO boxes (id, size) VALUES (9);
             ^
line 20, column 42: error 42601: syntax error at or near '+': ';' is expected
             UPDATE boxes SET size = DEFAULT + 1 WHERE id = 2;
                                             ^",
    );
}
