//! SQL on a database in a folder, through the library and the command.

#[path = "common/folder.rs"]
mod folder;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use folder::{Folder, command};
use lockwork::sequencer::Durability;
use lockwork::sql::{Field, Value, statements};
use lockwork::{EngineKind, Error, Lockwork, MAX_STATEMENTS, OpenOptions, SqlAnswer, Status};

const BANK: &str = "
CREATE TABLE accounts (id BIGINT PRIMARY KEY, branch INTEGER NOT NULL, balance DECIMAL(12, 2) NOT NULL)
    WITH (ordered = true);
CREATE PROCEDURE transfer(from_id BIGINT, to_id BIGINT, amount DECIMAL(12, 2), OUT left DECIMAL(12, 2)) AS
BEGIN
    SELECT balance INTO left FROM accounts WHERE id = from_id;
    IF left < amount THEN
        RAISE EXCEPTION 'not enough money' USING ERRCODE = 'BK001';
    END IF;
    left := left - amount;
    UPDATE accounts SET balance = balance - amount WHERE id = from_id;
    UPDATE accounts SET balance = balance + amount WHERE id = to_id;
END;
INSERT INTO accounts VALUES (1, 10, 100.00), (2, 10, 50.00), (3, 20, 0.00);
";

fn rows(lockwork: &mut Lockwork, select: &str) -> Vec<Vec<String>> {
    match lockwork.sql(select).unwrap_or_else(|error| panic!("{select}: {error}")).pop() {
        Some(SqlAnswer::Rows(_, rows)) => {
            rows.iter().map(|row| row.iter().map(ToString::to_string).collect()).collect()
        }
        other => panic!("{select}: {other:?}"),
    }
}

fn balances(lockwork: &mut Lockwork) -> Vec<String> {
    let rows = rows(lockwork, "SELECT id, balance FROM accounts WHERE id BETWEEN 1 AND 3 ORDER BY id LIMIT 10;");
    rows.into_iter().map(|mut row| row.pop().unwrap()).collect()
}

#[test]
fn tables_procedures_and_rows_are_there_when_it_is_opened_again() {
    let folder = Folder::new("sql-again");
    let mut database = Lockwork::open(&folder.0).unwrap();
    database.sql(BANK).unwrap();
    let called = database.sql("CALL transfer(1, 3, 25.50);").unwrap().pop();
    assert_eq!(called, Some(SqlAnswer::Called(vec![("left".into(), Value::Decimal(7450, 2))])));
    drop(database);
    let mut database = Lockwork::open(&folder.0).unwrap();
    assert_eq!(balances(&mut database), ["74.50", "50.00", "25.50"]);
    let poor = database.sql("CALL transfer(2, 1, 50.01);").unwrap_err();
    assert!(matches!(&poor, Error::Aborted { sqlstate, .. } if sqlstate == "BK001"), "{poor}");
    assert_eq!(poor.to_string(), "error BK001: not enough money");
    let nobody = database.sql("CALL transfer(9, 1, 1.00);").unwrap_err().to_string();
    assert!(nobody.contains("P0002"), "{nobody}");
    let values = [Value::Integer(2), Value::Integer(1), Value::Decimal(100, 2)];
    assert_eq!(database.sql_call("transfer", &values).unwrap(), [("left".to_string(), Value::Decimal(4900, 2))]);
    // A new version takes the place of the first one, also when it is opened again.
    let generous = BANK.split_once("CREATE PROCEDURE").unwrap().1.split_once("END;\nINSERT").unwrap().0;
    let generous = format!("CREATE OR REPLACE PROCEDURE{}END;", generous.replace("left < amount", "left < 0"));
    let generous = generous.replace("amount WHERE id = to_id", "amount + 1 WHERE id = to_id");
    database.sql(&generous).unwrap();
    for _ in 0..2 {
        database.sql("CALL transfer(1, 2, 1.00);").unwrap();
        database = {
            database.close().unwrap();
            Lockwork::open(&folder.0).unwrap()
        };
    }
    assert_eq!(balances(&mut database), ["73.50", "53.00", "25.50"]);
    let again = database.sql(BANK).unwrap_err().to_string();
    assert!(again.contains("line 2") && again.contains("42P07"), "{again}");
}

#[test]
fn values_as_the_machine_has_them_are_checked_against_their_sql_types() {
    use lockwork::Value as Stored;
    let folder = Folder::new("sql-stored");
    let mut database = Lockwork::open(&folder.0).unwrap();
    database.sql(BANK).unwrap();
    for again in [false, true] {
        if again {
            database.close().unwrap();
            database = Lockwork::open(&folder.0).unwrap();
        }
        let call = |amount| {
            let id = |id| Stored::Integer(id);
            database.call("transfer", &[("from_id", id(1)), ("to_id", id(2)), ("amount", id(amount))])
        };
        assert_eq!(call(1).unwrap().status(), Status::Committed);
        let refused = call(1_000_000_000_000).unwrap_err().to_string();
        let expected = "1000000000000 does not fit 'amount', which is DECIMAL(12, 2): -999999999999 to 999999999999 as \
                        it is stored";
        assert_eq!(refused, expected);
        let row = [("id", 9), ("branch", 1), ("balance", -1_000_000_000_000)];
        let refused = database.insert("accounts", &row.map(|(name, value)| (name, Stored::Integer(value))));
        assert!(refused.unwrap_err().to_string().contains("does not fit 'balance', which is DECIMAL(12, 2)"));
    }
    assert_eq!(balances(&mut database), ["99.98", "50.02", "0.00"]);
}

#[test]
fn a_prepared_statement_runs_with_values_from_several_threads() {
    let folder = Folder::new("sql-prepared");
    let mut database = Lockwork::open(&folder.0).unwrap();
    database.sql(BANK).unwrap();
    let mut prepare = |text| database.prepare(&statements(text).next().unwrap().unwrap()).unwrap();
    let transfer = prepare("CALL transfer($1, $2, 0.01)");
    let balance = prepare("SELECT id, balance FROM accounts WHERE id = $1");
    let one_more = prepare("UPDATE accounts SET balance = balance + $2 WHERE id = $1");
    let named = |fields: &[Field]| fields.iter().map(|field| field.name.clone()).collect::<Vec<_>>();
    assert_eq!(
        (named(transfer.parameters()), named(&transfer.columns())),
        (vec!["$1".into(), "$2".into()], vec!["left".into()])
    );
    assert_eq!((named(&balance.columns()), one_more.columns().len()), (vec!["id".into(), "balance".into()], 0));
    assert!(balance.columns().iter().all(|field| field.count.is_none()));
    let caller = database.caller();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (caller, transfer) = (caller.clone(), &transfer);
            scope.spawn(move || {
                for _ in 0..50 {
                    caller.run(transfer, &[Value::Integer(1), Value::Integer(2)]).unwrap();
                }
            });
        }
    });
    let (sender, answers) = std::sync::mpsc::channel();
    for cents in 1..=10 {
        let sender = sender.clone();
        let block = one_more.block(&[Value::Integer(3), Value::Decimal(cents, 2)]).unwrap().unwrap();
        caller.run_then(block, move |ran| sender.send(ran).unwrap()).unwrap();
    }
    for _ in 0..10 {
        let block = answers.recv().unwrap().unwrap();
        assert_eq!(one_more.answer(&block).unwrap(), SqlAnswer::Written(1));
    }
    let row = |id| vec![vec![Value::Integer(id), Value::Decimal(if id == 1 { 98_00 } else { 55 }, 2)]];
    for id in [1, 3] {
        let answer = caller.run(&balance, &[Value::Integer(id)]).unwrap();
        assert_eq!(answer, SqlAnswer::Rows(vec!["id".into(), "balance".into()], row(id)));
    }
    let poor = caller.run(&transfer, &[Value::Integer(9), Value::Integer(1)]).unwrap_err().to_string();
    assert!(poor.contains("P0002"), "{poor}");
    assert!(caller.run(&transfer, &[Value::Integer(9)]).unwrap_err().to_string().contains("has 2 parameters, and 1"));
    database.close().unwrap();
    let closed = caller.run(&balance, &[Value::Integer(1)]).unwrap_err();
    assert!(closed.to_string().contains("closed"), "{closed:?}");
}

#[test]
fn a_statement_that_an_index_overtook_is_refused() {
    let folder = Folder::new("sql-overtaken");
    let mut database = Lockwork::open(&folder.0).unwrap();
    database.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT NOT NULL);").unwrap();
    let prepare = |database: &mut Lockwork, text: &str| database.prepare(&statements(text).next().unwrap().unwrap());
    let insert = "INSERT INTO t VALUES ($1, 7)";
    let (old, find) = (prepare(&mut database, insert).unwrap(), "SELECT v FROM t WHERE id = $1");
    let find = prepare(&mut database, find).unwrap();
    let caller = database.caller();
    caller.run(&old, &[Value::Integer(1)]).unwrap();
    database.sql("CREATE INDEX iv ON t (v);").unwrap();
    let outdated = |ran| assert!(matches!(ran, Err(Error::Outdated)), "{ran:?}");
    outdated(caller.run(&old, &[Value::Integer(2)]));
    // A database can prepare it again; who only calls cannot.
    assert_eq!(database.run(&old, &[Value::Integer(2)]).unwrap(), SqlAnswer::Written(1));
    outdated(caller.run(&old, &[Value::Integer(4)]));
    let new = prepare(&mut database, insert).unwrap();
    caller.run(&new, &[Value::Integer(3)]).unwrap();
    // What only reads goes on as it is.
    assert_eq!(
        caller.run(&find, &[Value::Integer(1)]).unwrap(),
        SqlAnswer::Rows(vec!["v".into()], vec![vec![Value::Integer(7)]])
    );
    assert_eq!(rows(&mut database, "SELECT id FROM t WHERE v = 7 LIMIT 9"), [["1"], ["2"], ["3"]]);
    assert!(matches!(new.procedure(), Err(Error::NoCall)));
}

#[test]
fn statements_of_many_shapes_take_the_place_of_those_that_are_not_called() {
    let folder = Folder::new("sql-shapes");
    let mut options = OpenOptions::default();
    options.sequencer.durability = Durability::Async;
    let open = || Lockwork::open_with(&folder.0, &options, |_| ()).unwrap().0;
    let mut database = open();
    database
        .sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT NOT NULL) WITH (ordered = true); INSERT INTO t VALUES (1, 0), (2, 0);")
        .unwrap();
    let prepare = |database: &mut Lockwork, text: &str| database.prepare(&statements(text).next().unwrap().unwrap());
    let often = prepare(&mut database, "UPDATE t SET v = v + 1 WHERE id = 2").unwrap();
    let once = prepare(&mut database, "UPDATE t SET v = v + 1000000 WHERE id = 1").unwrap();
    let caller = database.caller();
    let mut open_one = caller.begin();
    open_one.run(&once, &[]).unwrap();
    let shapes = MAX_STATEMENTS + 300;
    for number in 1..=shapes {
        if number % 100 == 0 {
            caller.run(&often, &[]).unwrap();
        }
        database.sql(&format!("UPDATE t SET v = v + {number} WHERE id = 1")).unwrap();
    }
    // What was not called has gone, and does nothing else instead: not alone, and not in a transaction that has it.
    let outdated = caller.run(&once, &[]).unwrap_err();
    assert!(matches!(outdated, Error::Outdated) && !caller.is_current(&once), "{outdated}");
    let outdated = open_one.commit().unwrap_err();
    assert!(matches!(outdated, Error::Outdated), "{outdated}");
    assert!(caller.is_current(&often));
    let sum = (shapes * (shapes + 1) / 2).to_string();
    let is_whole = |database: &mut Lockwork, often: &str| {
        assert_eq!(
            rows(database, "SELECT v FROM t WHERE id BETWEEN 1 AND 2 ORDER BY id LIMIT 2"),
            [[&sum[..]], [often]]
        );
    };
    let calls = (shapes / 100).to_string();
    is_whole(&mut database, &calls);
    // What is no block is refused, and no thread panics of it.
    for bytes in [0, 7] {
        let refused = caller.run_then(vec![0; bytes], |_| ()).unwrap_err().to_string();
        assert!(refused.contains("bytes are possible"), "{refused}");
    }
    // There is room for procedures.
    database.sql(&BANK[..BANK.find("INSERT").unwrap()]).unwrap();
    assert_eq!(database.read(|engine| (0..).map_while(|id| engine.procedure(id)).count()).unwrap(), MAX_STATEMENTS + 1);
    // From the log, and from a checkpoint.
    for number in 0..3 {
        database.close().unwrap();
        database = open();
        is_whole(&mut database, &(shapes / 100 + number).to_string());
        database.sql("UPDATE t SET v = v + 1 WHERE id = 2").unwrap();
        if number == 1 {
            database.checkpoint().unwrap();
        }
    }
    let refused = database.register("procedure _statement_1\ncommit").unwrap_err();
    assert!(matches!(refused, Error::Reserved { .. }), "{refused}");
}

#[test]
fn an_index_is_filled_kept_and_used() {
    let folder = Folder::new("sql-index");
    let mut database = Lockwork::open(&folder.0).unwrap();
    database.sql(&BANK[..BANK.find("CREATE PROCEDURE").unwrap()]).unwrap();
    database.sql("INSERT INTO accounts VALUES (1, 10, 1.00), (2, 20, 2.00), (3, 10, 3.00);").unwrap();
    database.sql("CREATE INDEX by_branch ON accounts (branch);").unwrap();
    let of = |database: &mut Lockwork, branch: i64| {
        let select = format!("SELECT id FROM accounts WHERE branch = {branch} LIMIT 10;");
        rows(database, &select).concat()
    };
    assert_eq!((of(&mut database, 10), of(&mut database, 20)), (vec!["1".into(), "3".into()], vec!["2".to_string()]));
    database.sql("UPDATE accounts SET branch = 20 WHERE id = 3; DELETE FROM accounts WHERE id = 2;").unwrap();
    database.sql("INSERT INTO accounts VALUES (4, 20, 0.00);").unwrap();
    for _ in 0..2 {
        assert_eq!(of(&mut database, 10), ["1"]);
        assert_eq!(of(&mut database, 20), ["3", "4"]);
        drop(database);
        database = Lockwork::open(&folder.0).unwrap();
    }
}

#[test]
fn rows_that_are_loaded_are_in_the_index_and_assembly_cannot_go_past_it() {
    let folder = Folder::new("sql-load");
    let mut database = Lockwork::open(&folder.0).unwrap();
    database.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT NOT NULL); CREATE INDEX iv ON t (v);").unwrap();
    let row = |id: i64, v: i64| [("id", lockwork::Value::Integer(id)), ("v", lockwork::Value::Integer(v))];
    database.insert_all("t", &[row(1, 7).as_slice(), row(2, 8).as_slice()]).unwrap();
    // The second one is there already: the first one stays, and its row of the index as well.
    let met = database.insert_all("t", &[row(3, 7).as_slice(), row(2, 9).as_slice()]).unwrap_err().to_string();
    assert!(met.starts_with("1 rows were loaded, and the next was refused"), "{met}");
    let past = "procedure past
table t
param id: i64
    update c0, t, [id]
    ret r1, c0
    load r2, [id]
    storer r2, r1[t.v]
    commit";
    let error = database.register(past).unwrap_err().to_string();
    assert!(error.contains("55006"), "{error}");
    for _ in 0..2 {
        assert_eq!(rows(&mut database, "SELECT id FROM t WHERE v = 7 LIMIT 10;"), [["1"], ["3"]]);
        assert!(matches!(database.call("past", &[]), Err(Error::Unknown { .. })));
        drop(database);
        database = Lockwork::open(&folder.0).unwrap();
    }
}

#[test]
fn nobody_sees_a_row_that_is_loaded_without_its_row_in_the_index() {
    const ROWS: i64 = 40_000;
    let folder = Folder::new("sql-load-delete");
    let options = lockwork::OpenOptions {
        sequencer: lockwork::sequencer::Options {
            durability: lockwork::sequencer::Durability::Async,
            ..lockwork::sequencer::Options::default()
        },
        ..lockwork::OpenOptions::default()
    };
    let mut database = Lockwork::open_with(&folder.0, &options, |_| {}).unwrap().0;
    database.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT NOT NULL); CREATE INDEX iv ON t (v);").unwrap();
    let delete = database.prepare(&statements("DELETE FROM t WHERE id = $1").next().unwrap().unwrap()).unwrap();
    let caller = database.caller();
    let row = |id: i64| [("id", lockwork::Value::Integer(id)), ("v", lockwork::Value::Integer(7))];
    std::thread::scope(|scope| {
        let deleting = scope.spawn(|| {
            // Each again and again, until it has come and gone: a row that is found has its row in the index.
            for id in (0..ROWS).step_by(97) {
                loop {
                    match caller.run(&delete, &[Value::Integer(id)]).unwrap() {
                        SqlAnswer::Written(0) => {}
                        SqlAnswer::Written(1) => break,
                        other => panic!("{other:?}"),
                    }
                }
            }
        });
        for first in (0..ROWS).step_by(97) {
            let rows: Vec<_> = (first..ROWS.min(first + 97)).map(row).collect();
            let rows: Vec<&[_]> = rows.iter().map(<[_; 2]>::as_slice).collect();
            database.insert_all("t", &rows).unwrap();
        }
        deleting.join().unwrap();
    });
    // An index has as many rows as its table, and they are those.
    let copied = caller.rows(&["t", "iv"], u64::MAX).unwrap();
    let counts: Vec<usize> = copied.iter().map(|rows| rows.images.len() / rows.row_bytes()).collect();
    let left = (ROWS - (ROWS + 96) / 97) as usize;
    assert_eq!(counts, [left, left]);
}

#[test]
fn a_procedure_that_was_replaced_is_called_by_nobody_and_no_index_misses_its_writes() {
    let folder = Folder::new("sql-replaced");
    let mut database = Lockwork::open(&folder.0).unwrap();
    let write = |more: i64| {
        format!("CREATE OR REPLACE PROCEDURE w(a BIGINT) AS BEGIN UPDATE t SET v = v + {more} WHERE id = a; END;")
    };
    database.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT NOT NULL); INSERT INTO t VALUES (1, 1);").unwrap();
    [1, 20].iter().for_each(|more| drop(database.sql(&write(*more)).unwrap()));
    let mut batch = database.batch(1).unwrap();
    assert!(database.push(&mut batch, "w", &[("a", lockwork::Value::Integer(1))]).unwrap());
    database.sql("CREATE OR REPLACE PROCEDURE w(a BIGINT) AS BEGIN NULL; END;").unwrap();
    for _ in 0..2 {
        for old in ["w__2", "w__3", "_statement_1"] {
            let error = database.sql(&format!("CALL {old}(1);")).unwrap_err().to_string();
            assert!(error.contains(&format!("'{old}' does not exist")) && error.ends_with("there are: w"), "{error}");
            assert!(database.call(old, &[]).unwrap_err().to_string().ends_with("there are: w"));
        }
        let late = database.sql("CREATE INDEX iv ON t(v);").unwrap_err().to_string();
        assert!(late.contains("55006") && late.contains("'w"), "{late}");
        drop(database);
        database = Lockwork::open(&folder.0).unwrap();
    }
    // A batch that was made for a version calls that version.
    database.call_batch(batch).unwrap();
    assert_eq!(rows(&mut database, "SELECT v FROM t WHERE id = 1;"), [["21"]]);
}

#[test]
fn a_script_stops_at_its_first_error_and_what_was_done_stays() {
    for folder in [None, Some(Folder::new("sql-errors"))] {
        let mut database = match &folder {
            None => Lockwork::open_in_memory(EngineKind::SERIAL).unwrap(),
            Some(folder) => Lockwork::open(&folder.0).unwrap(),
        };
        database.sql(BANK).unwrap();
        let mut answers = Vec::new();
        let script = "DELETE FROM accounts WHERE id = 3;\nINSERT INTO accounts VALUES (1, 1, 1.00);\nDELETE FROM accounts WHERE id = 2;";
        let error = database.sql_each(script, |_, answer| answers.push(answer)).unwrap_err();
        assert!(matches!(&error, Error::Aborted { sqlstate, .. } if sqlstate == "23505"), "{error}");
        assert_eq!(answers, [SqlAnswer::Written(1)]);
        assert_eq!(balances(&mut database).len(), 2);
        for (wrong, part) in [
            ("SELECT nothing FROM accounts WHERE id = 1;", "42703"),
            ("CALL withdraw(1);", "'withdraw'"),
            ("CALL transfer(1);", "takes 3 arguments"),
            ("DROP TABLE accounts;", "line 1"),
            ("CREATE PROCEDURE _statement_x() AS BEGIN END;", "choose another"),
        ] {
            let error = database.sql(wrong).unwrap_err().to_string();
            assert!(error.contains(part), "{wrong}: {error}");
        }
        assert_eq!(balances(&mut database), ["100.00", "50.00"]);
    }
}

/// Statements on standard input.
fn piped(folder: &Folder, input: &str, options: &[&str]) -> (Option<i32>, String, String) {
    command(&[&["sql", folder.0.to_str().unwrap()], options].concat(), input)
}

#[test]
fn the_command_is_a_filter() {
    let folder = Folder::new("sql-command");
    let (code, text, error) = piped(&folder, BANK, &[]);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    assert_eq!(text, "CREATE TABLE\nCREATE PROCEDURE\n3 rows\n");
    let select = "SELECT id, balance FROM accounts WHERE id BETWEEN 1 AND 2 ORDER BY id LIMIT 10;";
    let expected = [
        ("text", " id | balance\n----+---------\n  1 |  100.00\n  2 |   50.00\n(2 rows)\n"),
        ("csv", "id,balance\n1,100.00\n2,50.00\n"),
        (
            "json",
            "{\"columns\":[\"id\",\"balance\"],\"rows\":[{\"balance\":\"100.00\",\"id\":1},{\"balance\":\"50.00\",\"id\":2}]}\n",
        ),
    ];
    for (output, expected) in expected {
        assert_eq!(piped(&folder, select, &["--output", output]).1, expected);
        assert_eq!(piped(&folder, "SELEKT", &["-c", select, "--output", output]).1, expected);
    }
    let (code, _, error) = piped(&folder, "CALL transfer(2, 1, 1000.00);", &[]);
    assert!(code == Some(1) && error.contains("BK001"), "{code:?} {error}");
    let (code, text, error) = piped(&folder, "CALL transfer(1, 2, 1.00);\nSELEKT 1;", &["--output", "csv"]);
    assert_eq!((code, text.as_str()), (Some(2), "left\n99.00\n"));
    assert!(error.contains("line 2, column 1") && error.contains("SELEKT 1;"), "{error}");
    let (code, text, _) = piped(&folder, "EXPLAIN PROCEDURE transfer;", &[]);
    assert!(code == Some(0) && text.contains("accounts") && text.contains("commit"), "{text}");
    for (option, value) in [("--engine", "quantum"), ("--durability", "maybe"), ("--output", "xml")] {
        let (code, _, error) = piped(&folder, "", &[option, value]);
        assert!(code == Some(2) && error.contains(value), "{error}");
    }
    let unknown = "SELECT balance FROM accounts WHERE id = 1;\n CALL nobody(1)";
    let (_, _, error) = piped(&folder, unknown, &[]);
    assert!(error.contains("line 2, column 7: error 42883: procedure 'nobody' does not exist"), "{error}");
    assert!(error.contains("hint: there are: transfer"), "{error}");
    let bytes = folder.0.with_extension("bytes");
    std::fs::write(&bytes, b"SELECT balance\n FROM \xff accounts;").unwrap();
    let told = Command::new(env!("CARGO_BIN_EXE_lockwork"))
        .args(["sql", folder.0.to_str().unwrap()])
        .stdin(std::fs::File::open(&bytes).unwrap())
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&told.stderr).contains("standard input, line 2: invalid utf-8"), "{told:?}");
    let (code, _, error) = command(&["sql", bytes.to_str().unwrap()], "");
    assert!(code == Some(2) && error.contains("it is a file, and a folder is needed"), "{error}");
    std::fs::remove_file(&bytes).unwrap();
    let twice = "SELECT id AS x, balance AS x FROM accounts WHERE id = 2;";
    let (_, text, _) = piped(&folder, twice, &["--output", "json"]);
    assert_eq!(text, "{\"columns\":[\"x\",\"x\"],\"rows\":[[2,\"51.00\"]]}\n");
    let held = Lockwork::open(&folder.0).unwrap();
    let (code, _, error) = piped(&folder, select, &[]);
    assert!(code == Some(2) && error.contains("in use"), "{error}");
    drop(held);
}

#[test]
fn a_statement_of_a_pipe_is_answered_when_it_ends() {
    let folder = Folder::new("sql-pipe");
    let mut child = Command::new(env!("CARGO_BIN_EXE_lockwork"))
        .args(["sql", folder.0.to_str().unwrap()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut to, mut from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()).lines());
    for (statement, answer) in [
        ("CREATE TABLE t (id BIGINT PRIMARY KEY,\n v BIGINT NOT NULL);\n", "CREATE TABLE"),
        ("CREATE PROCEDURE p(x BIGINT) AS BEGIN\n INSERT INTO t VALUES (x, 1);\nEND;\n", "CREATE PROCEDURE"),
        ("/* one;\n two; */ CALL p(7);\n", "CALL"),
    ] {
        to.write_all(statement.as_bytes()).unwrap();
        to.flush().unwrap();
        assert_eq!(from.next().unwrap().unwrap(), answer);
    }
    drop(to);
    assert!(child.wait().unwrap().success() && from.next().is_none());
}

#[test]
fn a_program_makes_transactions_of_several_calls() {
    let mut database = Lockwork::open_in_memory_with(&OpenOptions::default()).unwrap();
    database.sql(BANK).unwrap();
    let select = "SELECT balance FROM accounts WHERE id = $1";
    let read = database.prepare(&statements(select).next().unwrap().unwrap()).unwrap();
    let write = "UPDATE accounts SET balance = $2 WHERE id = $1";
    let write = database.prepare(&statements(write).next().unwrap().unwrap()).unwrap();
    let caller = database.caller();
    let mut transaction = caller.begin();
    let balance = |answer| match answer {
        SqlAnswer::Rows(_, rows) => rows[0][0].to_string(),
        other => panic!("{other:?}"),
    };
    let values = |balance| [Value::Integer(1), Value::Decimal(balance, 2)];
    assert_eq!(balance(transaction.run(&read, &[Value::Integer(1)]).unwrap()), "100.00");
    transaction.run(&write, &values(7000)).unwrap();
    let savepoint = transaction.savepoint().unwrap();
    transaction.run(&write, &values(0)).unwrap();
    // A statement that is taken back is no end.
    let absent = transaction.run(&read, &[Value::Integer(77)]);
    assert!(matches!(absent, Ok(SqlAnswer::Rows(_, rows)) if rows.is_empty()));
    assert_eq!(balance(transaction.run(&read, &[Value::Integer(1)]).unwrap()), "0.00");
    transaction.roll_back_to(savepoint).unwrap();
    assert_eq!(balances(&mut database), ["100.00", "50.00", "0.00"]);
    transaction.commit().unwrap();
    assert_eq!(balances(&mut database), ["70.00", "50.00", "0.00"]);
    let mut late = caller.begin();
    late.run(&read, &[Value::Integer(1)]).unwrap();
    caller.run(&write, &values(1)).unwrap();
    let refused = late.run(&write, &values(2)).unwrap_err();
    assert!(refused.is_retryable(), "{refused}");
    assert!(matches!(late.run(&write, &values(2)), Err(Error::Ended)));
    assert!(matches!(late.commit(), Err(Error::Ended)));
    drop(caller.begin());
    assert_eq!(balances(&mut database), ["0.01", "50.00", "0.00"]);
}

#[test]
fn a_statement_knows_what_time_it_is_when_it_runs() {
    let mut database = Lockwork::open_in_memory_with(&OpenOptions::default()).unwrap();
    database.sql("CREATE TABLE log (id BIGINT PRIMARY KEY, at TIMESTAMP NOT NULL);").unwrap();
    let add = "INSERT INTO log VALUES ($1, CURRENT_TIMESTAMP)";
    let add = database.prepare(&statements(add).next().unwrap().unwrap()).unwrap();
    for id in 1..=2 {
        database.run(&add, &[Value::Integer(id)]).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let note = "CREATE PROCEDURE note(who BIGINT, time TIMESTAMP) AS BEGIN INSERT INTO log VALUES (who, time); END;";
    database.sql(note).unwrap();
    database.sql("CALL note(3, now()); UPDATE log SET at = now() WHERE id = 1;").unwrap();
    let mut at = |id: i64| rows(&mut database, &format!("SELECT at FROM log WHERE id = {id}"))[0][0].clone();
    let (updated, second, called) = (at(1), at(2), at(3));
    assert!(second < called && called <= updated && second.starts_with("20"), "{second} {called} {updated}");
    for (wrong, why) in [
        ("CREATE PROCEDURE p(OUT t TIMESTAMP) AS BEGIN t := CURRENT_TIMESTAMP; END;", "a procedure has no clock"),
        ("CALL note(now(), now());", "this is a timestamp"),
        ("CREATE TABLE l (id BIGINT PRIMARY KEY, at TIMESTAMP NOT NULL DEFAULT now());", "a DEFAULT is a constant"),
    ] {
        let refused = database.sql(wrong).unwrap_err().to_string();
        assert!(refused.contains(why), "{wrong}: {refused}");
    }
}
