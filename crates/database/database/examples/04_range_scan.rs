//! Ordered tables and range scans, with keys of several columns.
//!
//! `ordered` gives a table a second index, in key order. A SCAN copies up to a number of rows, or one column of them,
//! into the results, and no row of the range appears or vanishes while the transaction runs.
//!
//! `cargo run --release -p lockwork --example 04_range_scan`

use lockwork::{EngineKind, Error, Lockwork, Status, Value};

const LINES: &str = "
procedure lines
table lines (order: i64 key, line: u8 key, amount: i32) ordered
param order: i64
param line: u8
result count: i64
result amounts: i64[4]
    scan    c0, lines.amount, [order], [amounts], 4
    ret     r1, c0
    store   r1, [count]
    commit";

fn main() -> Result<(), Error> {
    let mut lockwork = Lockwork::open_in_memory(EngineKind::DETERMINISTIC)?;
    lockwork.register(LINES)?;
    // Inserted out of order.
    for (order, line, amount) in [(2, 1, 500), (1, 2, 20), (1, 1, 10), (3, 1, 9), (1, 3, -30)] {
        let row = [("order", order), ("line", line), ("amount", amount)];
        lockwork.insert("lines", &row.map(|(name, value)| (name, Value::Integer(value))))?;
    }

    let answer = lockwork.call("lines", &[("order", Value::Integer(1)), ("line", Value::Integer(2))])?;
    assert_eq!(answer.status(), Status::Committed);
    let count = answer.integer("count")? as usize;
    // A four-byte column, eight bytes from one to the next.
    let amounts: Vec<i32> = answer
        .bytes("amounts")?
        .chunks(8)
        .take(count)
        .map(|each| i32::from_le_bytes(each[..4].try_into().expect("four bytes")))
        .collect();
    println!("from order 1, line 2 on: {amounts:?}");
    assert_eq!(amounts, [20, -30, 500, 9]);
    Ok(())
}
