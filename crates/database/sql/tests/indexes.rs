//! Indexes follow their tables, find rows, and are refused where they could not be kept.

mod common;

use lockwork_random::Random;

use common::{KINDS, Session, answers};

const PEOPLE: &str = "
    CREATE TABLE people (id BIGINT PRIMARY KEY, town INTEGER NOT NULL, name CHAR(8) NOT NULL, age SMALLINT NOT NULL)
        PARTITION BY HASH (id);
    CREATE INDEX by_town ON people (town, age);
    CREATE INDEX by_name ON people (name);
    CREATE PROCEDURE move(who BIGINT, to_town INTEGER, new_age SMALLINT) AS BEGIN
        UPDATE people SET town = to_town, age = new_age WHERE id = who;
    END;
    CREATE PROCEDURE find(which INTEGER, OUT ids BIGINT[5], OUT names CHAR(8)[5], OUT n BIGINT) AS BEGIN
        FOR p IN SELECT id, name FROM people WHERE town = which ORDER BY age LIMIT 5 LOOP
            n := n + 1; ids[n] := p.id; names[n] := p.name;
        END LOOP;
    END;
    INSERT INTO people VALUES (1, 10, 'ann', 30), (2, 10, 'bob', 20), (3, 20, 'eve', 40), (4, 10, 'joe', 25);
";

#[test]
fn an_index_finds_rows_in_its_order_and_follows_writes() {
    answers(
        &format!(
            "{PEOPLE}
             CALL find(10); CALL move(1, 20, 41); CALL move(2, 10, 99); CALL move(4, 10, 25);
             CALL find(10); CALL find(20);
             DELETE FROM people WHERE id = 4; CALL find(10);
             SELECT id, town FROM people WHERE name = 'eve' LIMIT 5;
             UPDATE people SET name = 'eva' WHERE id = 3;
             SELECT id FROM people WHERE name = 'eve' LIMIT 5;
             SELECT id FROM people WHERE name = 'eva' LIMIT 5;
             SELECT age FROM people WHERE town = 20 AND age > 40 LIMIT 3;"
        ),
        "rows = 4
ids = {2,4,1,0,0}
names = {bob,joe,ann,,}
n = 3
ids = {4,2,0,0,0}
names = {joe,bob,,,}
n = 2
ids = {3,1,0,0,0}
names = {eve,ann,,,}
n = 2
rows = 1
ids = {2,0,0,0,0}
names = {bob,,,,}
n = 1
id | town
3 | 20
rows = 1
id
id
3
age
41",
    );
}

/// Every index has the rows that its table gives it.
fn check(session: &Session) {
    for table in session.catalogue.tables() {
        for index in table.indexes() {
            let (mut expected, mut found) = (Vec::new(), Vec::new());
            session
                .engine
                .export(&mut |name, image| {
                    if name == index.table {
                        expected.push(index.row_image(image));
                    } else if name == index.name {
                        found.push(image.to_vec());
                    }
                })
                .unwrap();
            expected.sort();
            found.sort();
            assert_eq!(expected, found, "{}", index.name);
        }
    }
}

#[test]
fn indexes_hold_what_their_table_does_after_random_writes() {
    for kind in KINDS {
        for seed in 1..=5_u64 {
            let mut random = Random(seed);
            let mut draw = |below| random.below(below);
            let mut session = Session::new(kind);
            session.run(PEOPLE);
            for _ in 0..150 {
                let (id, town, age) = (draw(12), draw(3), draw(4));
                session.run(&match draw(4) {
                    0 => format!("INSERT INTO people VALUES ({id}, {town}, 'n{age}', {age}) ON CONFLICT DO NOTHING;"),
                    1 => format!("DELETE FROM people WHERE id = {id};"),
                    2 => format!("UPDATE people SET name = 'm{age}' WHERE id = {id};"),
                    _ => format!("CALL move({id}, {town}, {age});"),
                });
            }
            assert!(session.count("people") > 0, "{kind}, seed {seed}");
            check(&session);
        }
    }
}

#[test]
fn an_index_is_made_while_the_writers_of_its_table_are_replaced() {
    let mut session = Session::new(KINDS[0]);
    let writer = |body: &str| format!("CREATE OR REPLACE PROCEDURE w(n INTEGER) AS BEGIN {body} END;");
    let update = writer("UPDATE t SET v = n WHERE id = 1;");
    session.run("CREATE TABLE t (id BIGINT PRIMARY KEY, v INTEGER NOT NULL);");
    session.run(&update);
    assert!(session.run("CREATE INDEX i ON t (v);").contains("55006"));
    // The same body again writes the table as before.
    session.run(&update);
    assert!(session.run("CREATE INDEX i ON t (v);").contains("55006"));
    session.run(&writer("NULL;"));
    assert_eq!(session.run("CREATE INDEX i ON t (v);"), "");
    session.run(&update);
    let answer = session.run("INSERT INTO t VALUES (1, 5); CALL w(7); SELECT id FROM t WHERE v = 7 LIMIT 2;");
    assert_eq!(answer, "rows = 1\nid\n1\n");
    assert_eq!(session.run("SELECT id FROM t WHERE v = 5 LIMIT 2;"), "id\n");
    check(&session);
}

#[test]
fn an_index_made_later_is_filled_and_refused_while_writers_do_not_know_it() {
    let mut session = Session::new(KINDS[0]);
    session.run(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, v INTEGER NOT NULL);
         INSERT INTO t VALUES (1, 5), (2, 4);
         CREATE INDEX i ON t (v);",
    );
    assert_eq!(session.run("SELECT id FROM t WHERE v = 4 LIMIT 5;"), "id\n2\n");
    session.run("CREATE PROCEDURE w() AS BEGIN UPDATE t SET v = 1 WHERE id = 1; END;");
    let error = session.run("CREATE INDEX j ON t (v, id);");
    assert!(error.contains("55006") && error.contains("their table, in a new folder if need be: w"), "{error}");
    let error = session.run("CREATE INDEX j ON t (nope);");
    assert!(error.contains("42703") && error.contains("'nope'"), "{error}");
    assert!(session.run("INSERT INTO i VALUES (1, 1);").contains("25006"));
    let mut catalogue = session.catalogue.clone();
    let by_hand = lockwork_procedure::assembly::assemble(
        "procedure by_hand\ntable t\nparam id: i64\n    remove c0, t, [id]\n    ret c0\n    commit",
        &catalogue,
    )
    .unwrap();
    let error = catalogue.add_procedure(&by_hand.procedure).unwrap_err();
    assert_eq!(error.sqlstate, "55006");
}
