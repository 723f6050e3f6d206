//! Texts, arrays, branches and loops, on every engine of the CPU.

mod common;

use common::answers;

#[test]
fn texts_compare_join_and_cut() {
    answers(
        "CREATE TABLE t (id CHAR(12) PRIMARY KEY, a VARCHAR(20) NOT NULL, b BYTEA(7) NOT NULL) PARTITION BY HASH (id);
         CREATE PROCEDURE p(x VARCHAR(20), y VARCHAR(12), OUT eq BOOLEAN, OUT less BOOLEAN, OUT most BOOLEAN,
                            OUT both CHAR(32), OUT piece CHAR(3)) AS
         DECLARE mine VARCHAR(20) := 'abcdefghijklmnopqrst';
         BEGIN
             eq := x = y; less := x < y; most := NOT (x > 'm' OR x IN ('k', 'l'));
             both := x || y; piece := SUBSTRING(mine FROM 2 FOR 3);
             mine := SUBSTRING(mine FROM 5 FOR 10) || SUBSTRING(mine FROM 1 FOR 4);
             IF mine <> 'efghijklmnabcd' THEN RAISE EXCEPTION 'wrong'; END IF;
         END;
         CALL p('hello', 'hello'); CALL p('hello', 'hellp'); CALL p('z', 'abc'); CALL p('', 'abc');
         INSERT INTO t VALUES ('key', 'text', X'00FF10');
         CREATE PROCEDURE swap(k CHAR(12)) AS BEGIN
             UPDATE t SET a = b || SUBSTRING(a FROM 1 FOR 13), b = SUBSTRING(a FROM 1 FOR 7) WHERE id = k;
         END;
         CALL swap('key');
         SELECT b FROM t WHERE id = 'key';
         CALL swap('nokey');",
        "eq = true
less = false
most = true
both = hello\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0hello
piece = bcd
eq = false
less = true
most = true
both = hello\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0hellp
piece = bcd
eq = false
less = false
most = false
both = z\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0abc
piece = bcd
eq = false
less = true
most = true
both = \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0abc
piece = bcd
rows = 1
b
\\x74657874000000
error P0002: no row has this key",
    );
}

#[test]
fn arrays_are_counted_from_one_and_checked() {
    answers(
        "CREATE PROCEDURE p(items SMALLINT[4], names CHAR(3)[2], at BIGINT, OUT one BIGINT, OUT sum BIGINT,
                            OUT back SMALLINT[4], OUT name CHAR(3)) AS
         DECLARE seen BIGINT[4];
         BEGIN
             one := items[at];
             FOR i IN 1..4 LOOP
                 sum := sum + items[i]; seen[i] := sum; back[5 - i] := items[i];
             END LOOP;
             name := names[LEAST(at, 2)];
             IF seen[4] <> sum THEN RAISE EXCEPTION 'wrong'; END IF;
         END;
         CALL p(ARRAY(1, 2, 3, 4), ARRAY('ab', 'cd'), 3);
         CALL p(ARRAY(-1, 2), ARRAY('ab'), 1);
         CALL p(ARRAY(1), ARRAY('ab'), 5);
         CALL p(ARRAY(1), ARRAY('ab'), 0);",
        "one = 3
sum = 10
back = {4,3,2,1}
name = cd
one = -1
sum = 1
back = {0,0,2,-1}
name = ab
error 22003: value out of range
error 22003: value out of range",
    );
}

#[test]
fn loop_variables_pass_their_values_on_at_once() {
    answers(
        "CREATE PROCEDURE fib(n SMALLINT, OUT a BIGINT, OUT b BIGINT, OUT rounds BIGINT, OUT last BIGINT) AS
         DECLARE t BIGINT;
         BEGIN
             b := 1;
             FOR i IN 1..LEAST(n, 90) LOOP
                 t := a; a := b; b := t + b; rounds := rounds + 1; last := i;
             END LOOP;
         END;
         CREATE PROCEDURE swap(n SMALLINT, INOUT x BIGINT, INOUT y BIGINT) AS
         DECLARE t BIGINT;
         BEGIN
             FOR i IN n..9 LOOP t := x; x := y; y := t; EXIT WHEN i = 7; END LOOP;
         END;
         CALL fib(10); CALL fib(0); CALL fib(-3); CALL fib(90); CALL swap(7, 1, 2); CALL swap(6, 1, 2); CALL swap(8, 1, 2);",
        "a = 55
b = 89
rounds = 10
last = 10
a = 0
b = 1
rounds = 0
last = 0
a = 0
b = 1
rounds = 0
last = 0
a = 2880067194370816120
b = 4660046610375530309
rounds = 90
last = 90
x_out = 2
y_out = 1
x_out = 1
y_out = 2
x_out = 1
y_out = 2",
    );
}

#[test]
fn case_if_return_and_errors_of_arithmetic() {
    answers(
        "CREATE PROCEDURE p(x BIGINT, y INTEGER, OUT kind SMALLINT, OUT z BIGINT, OUT m INTEGER) AS BEGIN
             kind := CASE WHEN x < 0 THEN -1 WHEN x = 0 THEN 0 ELSE 1 END;
             m := MOD(x, 7) + ABS(y);
             IF x BETWEEN 10 AND 20 AND NOT y = 3 THEN
                 z := x * y; RETURN;
             ELSIF x IN (1, 2, 3) OR y > 100 THEN
                 z := x / y;
             ELSE
                 z := x - y;
             END IF;
             z := z + 1;
         END;
         CALL p(15, 2); CALL p(15, 3); CALL p(2, 0); CALL p(-9223372036854775807, 2);
         CALL p(7, 2147483647); CALL p(-8, 1);
         CREATE PROCEDURE choose(x BIGINT, OUT y BIGINT) AS BEGIN
             y := CASE x WHEN 1 THEN 10 WHEN 2 THEN 20 END;
         END;
         CALL choose(2); CALL choose(3);
         CREATE PROCEDURE narrow(x BIGINT, OUT y BIGINT) AS
         DECLARE s SMALLINT; BEGIN s := x; y := s; END;
         CALL narrow(-32768); CALL narrow(32768);",
        "kind = 1
z = 30
m = 3
kind = 1
z = 13
m = 4
error 22012: division by zero
error 22003: integer overflow
kind = 1
z = 1
m = 2147483647
kind = -1
z = -8
m = 0
y = 20
error 22003: value out of range
y = -32768
error 22003: value out of range",
    );
}
