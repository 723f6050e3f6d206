//! The library as its users meet it: what does not fit is an error that says so, and nothing is added.

use lockwork::{EngineKind, Lockwork, Value};

const ONE: &str = "procedure one\nresult r: i64\nmov r1, 1\nstore r1, [r]\ncommit";

#[test]
fn a_batch_from_before_a_larger_procedure_takes_only_what_fits() {
    let mut lockwork = Lockwork::open_in_memory(EngineKind::SERIAL).unwrap();
    let mut empty = lockwork.batch(1).unwrap();
    lockwork.register(ONE).unwrap();
    let mut batch = lockwork.batch(2).unwrap();
    lockwork.register("procedure wide\nparam x: i64\nresult r: bytes(640)\ncommit").unwrap();
    let refused = lockwork.push(&mut batch, "wide", &[("x", Value::Integer(1))]).unwrap_err().to_string();
    assert!(refused.contains("64 bytes") && refused.contains("'wide' needs 704"), "{refused}");
    assert!(batch.is_empty());
    assert!(lockwork.push(&mut batch, "one", &[]).unwrap());
    let refused = lockwork.push(&mut empty, "wide", &[("x", Value::Integer(1))]).unwrap_err().to_string();
    assert!(refused.contains("'wide' needs 704"), "{refused}");
    let (batch, _) = lockwork.call_batch(batch).unwrap();
    assert_eq!(lockwork.answer(&batch, 0).integer("r").unwrap(), 1);
}

#[test]
fn arrays_are_given_and_read_as_a_whole() {
    let mut lockwork = Lockwork::open_in_memory(EngineKind::SERIAL).unwrap();
    let source =
        "procedure echo\nparam x: i16[3]\nparam y: bytes(70)[2]\nparam z: i64\nresult a: i16[3]\nresult b: bytes(70)
         result c: i64\ncopy [a], [x], 6\ncopy [b], [y#1], 70\nload r1, [z]\nstore r1, [c]\ncommit";
    lockwork.register(source).unwrap();
    // Elements of bytes(70) stand 128 bytes apart.
    let long: Vec<u8> = (0..=255).collect();
    let z = || ("z", Value::Integer(-1));
    let y = || ("y", Value::Bytes(long.clone()));
    let bytes = Value::Bytes([7_i16, -8, 9].iter().flat_map(|value| value.to_le_bytes()).collect());
    for x in [bytes, Value::Integers(vec![7, -8, 9])] {
        let answer = lockwork.call("echo", &[("x", x), y(), z()]).unwrap();
        assert_eq!(answer.integers("a").unwrap(), [7, -8, 9]);
        assert_eq!(answer.bytes("a").unwrap(), [7, 0, 248, 255, 9, 0]);
        assert_eq!(answer.bytes("b").unwrap(), &long[128..198]);
        assert_eq!((answer.integer("c").unwrap(), answer.integers("c").unwrap()), (-1, vec![-1]));
        let refused = answer.integer("a").unwrap_err().to_string();
        assert!(refused.contains("'a', which is i16[3]"), "{refused}");
        assert!(answer.integers("b").unwrap_err().to_string().contains("bytes(70)"));
    }
    let refusals = [
        (Value::Integer(7), "7 does not fit 'x', which is i16[3]"),
        (Value::Integers(vec![1, 2]), "2 integers does not fit 'x', which is i16[3]"),
        (Value::Integers(vec![1, 2, 40_000]), "40000 as element 2 does not fit 'x', which is i16[3]"),
        (Value::Bytes(vec![0; 5]), "5 bytes does not fit 'x', which is i16[3] (6 bytes)"),
        (Value::Text("a".into()), "'x', which is i16[3]"),
    ];
    for (x, expected) in refusals {
        let error = lockwork.call("echo", &[("x", x), y(), z()]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let short = lockwork.call("echo", &[("x", Value::Integers(vec![1; 3])), ("y", Value::Bytes(vec![0; 140])), z()]);
    assert!(short.unwrap_err().to_string().contains("bytes(70)[2] (256 bytes)"));
}

#[test]
fn what_an_engine_does_not_take_leaves_no_tables() {
    let mut lockwork = Lockwork::open_in_memory(EngineKind::TIMESTAMP).unwrap();
    let source =
        |table: &str| format!("procedure look\n{table}\nparam id: i64\nsearch c0, t, [id]\nret r1, c0\ncommit");
    let refused = lockwork.register(&source("table t (id: i64 key, value: i64)")).unwrap_err().to_string();
    assert!(refused.contains("partition by hash"), "{refused}");
    lockwork.register(&source("table t (id: i64 key, value: i64) partition by hash(id)")).unwrap();
    lockwork.insert("t", &[("id", Value::Integer(1)), ("value", Value::Integer(2))]).unwrap();
    let twice =
        lockwork.register(&source("table u (id: i64 key) partition by hash(id)\ntable t")).unwrap_err().to_string();
    assert!(twice.contains("'look'"), "{twice}");
    let absent = lockwork.insert("u", &[("id", Value::Integer(1))]).unwrap_err().to_string();
    assert!(absent.contains("table 'u' does not exist"), "{absent}");
}

#[test]
fn texts_of_any_width_are_written_read_and_compared() {
    for n in [1, 7, 8, 63, 64, 65, 88, 100, 127, 128, 129, 1_000, 4_000] {
        for last in [false, true] {
            let mut lockwork = Lockwork::open_in_memory(EngineKind::DETERMINISTIC).unwrap();
            let (text, more) = ("x".repeat(n), "y".repeat(n / 2 + 1));
            let columns = if last {
                format!("v BIGINT NOT NULL, name VARCHAR({n}) NOT NULL")
            } else {
                format!("name VARCHAR({n}) NOT NULL, v BIGINT NOT NULL")
            };
            let mut run =
                |sql: String| format!("{:?}", lockwork.sql(&sql).unwrap_or_else(|error| panic!("{n}: {error}")));
            run(format!("CREATE TABLE t (id BIGINT PRIMARY KEY, {columns})"));
            run(format!(
                "CREATE PROCEDURE put(k BIGINT, s VARCHAR({n}), OUT was VARCHAR({n}), OUT same BOOLEAN) AS $$
                 DECLARE kept VARCHAR({n}); BEGIN
                     SELECT name INTO was FROM t WHERE id = k;
                     kept := s;
                     same := was = kept;
                     UPDATE t SET name = kept WHERE id = k;
                 END $$"
            ));
            run(format!("INSERT INTO t (id, name, v) VALUES (1, '{text}', 7), (2, '{more}', 8)"));
            let read = run("SELECT name, v FROM t WHERE id = 1".into());
            assert!(read.contains(&format!("\"{text}\"")) && read.contains('7'), "{n}: {read}");
            let called = run(format!("CALL put(1, '{more}')"));
            assert!(called.contains(&format!("\"{text}\"")), "{n}: {called}");
            let called = run(format!("CALL put(1, '{more}')"));
            assert!(called.contains(&format!("\"{more}\"")) && called.contains("true"), "{n}: {called}");
            run(format!("UPDATE t SET name = '{text}' WHERE id = 2"));
            let read = run("SELECT name, v FROM t WHERE id = 2".into());
            assert!(read.contains(&format!("\"{text}\"")) && read.contains('8'), "{n}: {read}");
        }
    }
}
