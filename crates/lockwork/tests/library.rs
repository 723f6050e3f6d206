//! The library as its users meet it: what does not fit is an error that says so, and nothing is added.

use lockwork::{EngineKind, Lockwork, Value};

const ONE: &str = "procedure one\nresult r: i64\nmov r1, 1\nstore r1, [r]\ncommit";

#[test]
fn a_batch_from_before_a_larger_procedure_takes_only_what_fits() {
    let mut lockwork = Lockwork::open_in_memory(EngineKind::Serial).unwrap();
    let mut empty = lockwork.batch(1).unwrap();
    lockwork.register(ONE).unwrap();
    let mut batch = lockwork.batch(2).unwrap();
    lockwork.register("procedure wide\nparam x: i64\nresult r: bytes(640)\ncommit").unwrap();
    let refused = lockwork.push(&mut batch, "wide", &[("x", Value::Integer(1))]).unwrap_err().to_string();
    assert!(refused.contains("64 bytes") && refused.contains("'wide' needs 704"), "{refused}");
    assert!(batch.is_empty());
    assert!(lockwork.push(&mut batch, "one", &[]).unwrap());
    assert!(lockwork.push(&mut empty, "wide", &[("x", Value::Integer(1))]).is_err());
    let (batch, _) = lockwork.call_batch(batch).unwrap();
    assert_eq!(lockwork.answer(&batch, 0).integer("r").unwrap(), 1);
}
