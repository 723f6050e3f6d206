//! Rows by the whole key: with further conditions beside it, and by lists of keys.

mod common;

use common::{KINDS, Session, answers};
use lockwork_sql::Value;

const STOCK: &str = "
    CREATE TABLE stock (id INTEGER PRIMARY KEY, amount BIGINT NOT NULL, least INTEGER NOT NULL,
                        price DECIMAL(8, 2) NOT NULL,
                        name VARCHAR(8) NOT NULL, sold BOOLEAN NOT NULL DEFAULT FALSE) PARTITION BY HASH (id);
    INSERT INTO stock VALUES (1, 10, 5, 2.5, 'nail', FALSE), (2, 0, 5, 12, 'saw', TRUE), (3, 7, 7, 0.01, 'glue', FALSE);
";

fn on_stock(rest: &str, expected: &str) {
    answers(&format!("{STOCK}{rest}"), &format!("rows = 3\n{}", expected.trim()));
}

#[test]
fn a_row_of_a_key_has_to_satisfy_further_conditions() {
    on_stock(
        "UPDATE stock SET amount = amount - 8 WHERE id = 1 AND amount >= 8;
         UPDATE stock SET amount = amount - 8 WHERE id = 1 AND amount >= 8;
         UPDATE stock SET amount = amount - 8 WHERE id = 9 AND amount >= 8;
         SELECT amount FROM stock WHERE id = 1 AND amount >= 8;
         SELECT amount FROM stock WHERE amount < 8 AND id = 1;
         SELECT id FROM stock WHERE id = 1 AND (price > 2.5 OR name = 'nail') AND NOT sold;
         SELECT id FROM stock WHERE id = 1 AND NOT (price <= 2.5 AND name <> 'saw');
         SELECT id FROM stock WHERE amount >= least AND id = 3 AND amount BETWEEN least AND least + 1;
         SELECT id FROM stock WHERE id = 2 AND amount >= least;
         SELECT id FROM stock WHERE id = 2 AND name IN ('saw', 'axe') AND price NOT IN (1, 2.5) AND sold;
         SELECT id FROM stock WHERE id = 2 AND name NOT IN ('saw', 'axe');
         SELECT id FROM stock WHERE id = 2 AND id > 1 AND id <> 3 AND id = 2;
         SELECT id FROM stock WHERE id = 2 AND id = 3;
         SELECT id FROM stock WHERE 1 = 1 AND id = 2 AND 'a' < 'b';
         SELECT id FROM stock WHERE id = 2 AND FALSE;
         SELECT id FROM stock WHERE id = 2 AND (NULL OR price = 12 OR amount = NULL);
         SELECT id FROM stock WHERE id = 2 AND NOT (amount = NULL);
         SELECT id FROM stock WHERE id = 2 AND price NOT IN (1, NULL);
         SELECT id FROM stock WHERE id = 2 AND 100 / amount > 3;
         DELETE FROM stock WHERE id = 3 AND name = 'saw';
         DELETE FROM stock WHERE id = 3 AND name = 'glue' AND price = 0.01;
         SELECT id FROM stock WHERE id = 3 ORDER BY name LIMIT 5;
         SELECT id FROM stock WHERE id = 2 AND sold ORDER BY price LIMIT 1;
         DELETE FROM stock WHERE id = 2 AND sold LIMIT 3;",
        "rows = 1
rows = 0
rows = 0
amount
amount
2
id
1
id
id
3
id
id
2
id
id
2
id
id
2
id
id
2
id
id
error 22012: division by zero
rows = 0
rows = 1
id
id
2
rows = 1",
    );
}

#[test]
fn procedures_see_whether_a_row_satisfied_its_conditions() {
    on_stock(
        "CREATE PROCEDURE take(which INTEGER, wanted BIGINT, OUT done BOOLEAN, OUT remains BIGINT) AS
         BEGIN
             UPDATE stock SET amount = amount - wanted WHERE id = which AND amount - wanted >= 0;
             done := FOUND;
             SELECT amount INTO remains FROM stock WHERE id = which AND amount <> 0;
             IF NOT FOUND THEN remains := -1; END IF;
             DELETE FROM stock WHERE id = which AND amount = 0;
             IF FOUND THEN remains := -2; END IF;
         END;
         CALL take(1, 4);
         CALL take(1, 7);
         CALL take(1, 6);
         CALL take(1, 0);
         CREATE PROCEDURE must(which INTEGER, OUT n BIGINT) AS
         BEGIN
             SELECT COUNT(*) INTO n FROM stock WHERE id = which AND sold;
             UPDATE stock SET sold = FALSE WHERE id = which AND sold;
         END;
         CALL must(2);
         CALL must(2);
         CREATE PROCEDURE know(which INTEGER, OUT label VARCHAR(8)) AS
         BEGIN SELECT name INTO label FROM stock WHERE id = which AND (amount > 0 OR sold); END;
         CALL know(3);
         CALL know(2);",
        "done = true
remains = 6
done = false
remains = 6
done = true
remains = -2
done = false
remains = -1
n = 1
error P0002: no row was found
label = glue
error P0002: no row was found",
    );
}

#[test]
fn indexes_follow_writes_with_conditions() {
    answers(
        "CREATE TABLE people (id BIGINT PRIMARY KEY, town INTEGER NOT NULL, age INTEGER NOT NULL) PARTITION BY HASH (id);
         CREATE INDEX by_town ON people (town);
         INSERT INTO people VALUES (1, 7, 40), (2, 7, 50), (3, 8, 60);
         UPDATE people SET town = 9 WHERE id IN (1, 2, 3, 4) AND age >= 50;
         UPDATE people SET town = 10 WHERE id = 1 AND town = 9;
         SELECT id FROM people WHERE town = 9 LIMIT 9;
         SELECT id FROM people WHERE town = 7 AND id = 1;
         DELETE FROM people WHERE id IN (2, 3) AND age < 60;
         SELECT id FROM people WHERE town = 9 LIMIT 9;",
        "rows = 3\nrows = 2\nrows = 0\nid\n2\n3\nid\n1\nrows = 1\nid\n3",
    );
}

#[test]
fn lists_of_keys_find_their_rows() {
    on_stock(
        "SELECT id, name FROM stock WHERE id IN (3, 1, 3, 9, NULL, 99999999999);
         SELECT id FROM stock WHERE id IN (3, 2, 1) ORDER BY id LIMIT 2;
         SELECT id FROM stock WHERE id IN (3, 2, 1) AND price > 2 ORDER BY id LIMIT 2;
         SELECT id FROM stock WHERE id IN (2);
         SELECT id FROM stock WHERE id = 1 OR id = 3 OR 2 = id;
         SELECT id FROM stock WHERE id = ANY(ARRAY[2, 1]);
         SELECT id FROM stock WHERE id = ANY('{2,NULL,1}'::int4[]);
         SELECT id FROM stock WHERE id = ANY('{}') AND sold;
         SELECT id FROM stock WHERE id IN (NULL);
         UPDATE stock SET amount = amount + 1 WHERE id IN (1, 1, 2, 5);
         UPDATE stock SET amount = 0 WHERE id IN (1, 2, 3) AND NOT sold;
         UPDATE stock SET amount = 1 WHERE id IN (1, 2, 3) LIMIT 2;
         SELECT id FROM stock WHERE id IN (1, 2, 3) AND amount = 1;
         DELETE FROM stock WHERE id = ANY('{3,2,3,2}');
         DELETE FROM stock WHERE id IN (1, 2, 3, 4, 5);
         DELETE FROM stock WHERE id IN (1, 2, 3, 4, 5);",
        "id | name
1 | nail
3 | glue
id
1
2
id
1
2
id
2
id
1
2
3
id
1
2
id
1
2
id
id
rows = 2
rows = 2
rows = 2
id
1
2
rows = 2
rows = 1
rows = 0",
    );
}

#[test]
fn lists_stand_in_any_column_of_a_key() {
    answers(
        "CREATE TABLE lines (o BIGINT, word VARCHAR(6), n DECIMAL(4, 1) NOT NULL, PRIMARY KEY (o, word)) PARTITION BY HASH (o);
         INSERT INTO lines VALUES (1, 'a', 1), (1, 'b', 2), (2, 'a', 3), (2, 'longer', 4);
         SELECT n FROM lines WHERE o = 1 AND word IN ('b', 'a', 'too long for it');
         SELECT n FROM lines WHERE o IN (2, 1) AND word IN ('a', 'longer') ORDER BY o, word;
         SELECT n FROM lines WHERE o IN (2, 1) AND word = 'a' ORDER BY word, o;
         DELETE FROM lines WHERE o IN (1, 2) AND word IN ('a', 'b') AND n > 1;
         SELECT n FROM lines WHERE o IN (2, 1) AND word IN ('a', 'longer', 'b');",
        "rows = 4\nn\n1.0\n2.0\nn\n1.0\n3.0\n4.0\nn\n1.0\n3.0\nrows = 2\nn\n1.0\n4.0",
    );
}

#[test]
fn parameters_may_be_lists_and_null() {
    for kind in KINDS {
        let mut session = Session::new(kind);
        session.run(STOCK);
        let list = |numbers: &[i64]| Value::Array(numbers.iter().map(|&number| Value::Integer(number)).collect());
        let any = "SELECT id FROM stock WHERE id = ANY($1::bigint[]) ORDER BY id";
        assert_eq!(session.run_with(any, &[list(&[3, 1, 3, 77, i64::MAX])]), "id\n1\n3\n");
        assert_eq!(session.run_with(any, &[list(&[])]), "id\n");
        assert_eq!(session.run_with(any, &[Value::Null]), "id\n");
        let null = Value::Array(vec![Value::Null, Value::Integer(2)]);
        assert_eq!(session.run_with(any, &[null]), "id\n2\n");
        let both = [list(&[1, 2]), Value::Integer(5)];
        let write = "UPDATE stock SET amount = 6 WHERE id = ANY($1) AND (amount > $2 OR sold)";
        assert_eq!(session.run_with(write, &both), "rows = 2\n");
        let unknown = [list(&[1, 2]), Value::Null];
        assert_eq!(session.run_with(write, &unknown), "rows = 1\n");
        let negated = "DELETE FROM stock WHERE id = ANY($1) AND NOT (amount > $2)";
        assert_eq!(session.run_with(negated, &unknown), "rows = 0\n");
        let few = "SELECT id FROM stock WHERE id IN ($1, 3, $2)";
        assert_eq!(session.run_with(few, &[Value::Integer(1), Value::Null]), "id\n1\n3\n");
        let conditions = "SELECT id FROM stock WHERE id = $1 AND price >= $2 AND name = $3";
        let values = [Value::Integer(1), Value::Decimal(2_50, 2), Value::Text("nail".into())];
        assert_eq!(session.run_with(conditions, &values), "id\n1\n");
    }
}

#[test]
fn statements_that_differ_in_constants_of_conditions_and_lists_are_one_procedure() {
    let mut session = Session::new(KINDS[0]);
    session.run(STOCK);
    let procedure = |text: &str| {
        let statement = lockwork_sql::statements(text).next().unwrap().unwrap();
        session.catalogue.single(&statement).unwrap().compiled.procedure
    };
    for (a, b) in [
        ("DELETE FROM stock WHERE id = 1 AND amount >= 5", "DELETE FROM stock WHERE id = 2 AND amount >= -70000"),
        ("DELETE FROM stock WHERE id = 1 AND price < 5", "DELETE FROM stock WHERE id = 2 AND price < 5.25"),
        ("DELETE FROM stock WHERE id = 1 AND name = 'a'", "DELETE FROM stock WHERE id = 2 AND name = 'longer'"),
        ("DELETE FROM stock WHERE id IN (1, 2, 3)", "DELETE FROM stock WHERE id IN (4, 5, NULL, 7)"),
    ] {
        assert_eq!(procedure(a), procedure(b), "{a}");
    }
}

#[test]
fn a_range_takes_no_further_conditions() {
    answers(
        "CREATE TABLE t (a BIGINT, b BIGINT, v BIGINT NOT NULL, PRIMARY KEY (a, b)) PARTITION BY HASH (a);
         DELETE FROM t WHERE a = 1 AND v > 2 LIMIT 5;
         DELETE FROM t WHERE a = 1 AND b <> 2 LIMIT 5;",
        "line 2, column 10: error 0A000: no key of table 't' finds the rows of this WHERE
             DELETE FROM t WHERE a = 1 AND v > 2 LIMIT 5;
             ^
hint: name all columns of the primary key (a, b), and any other condition beside it; or its first columns, a range of \
         the next, and nothing else
line 3, column 40: error 0A000: this condition finds no rows of table 't' by key
             DELETE FROM t WHERE a = 1 AND b <> 2 LIMIT 5;
                                           ^
hint: name all columns of the primary key (a, b), and any other condition beside it; or its first columns, a range of \
         the next, and nothing else",
    );
}
