//! Batches: many calls handed over in one piece, which is what engines are fast at.
//!
//! A batch comes back with every call's answer in its block, in the order in which the calls were made.
//!
//! `cargo run --release -p lockwork --example 03_batches`

use lockwork::{EngineKind, Error, Lockwork, Status, Value};

fn main() -> Result<(), Error> {
    let mut lockwork = Lockwork::open_in_memory(EngineKind::DETERMINISTIC)?;
    lockwork.register(include_str!("../../../../examples/transfer.lw"))?;
    for id in 0..10 {
        lockwork.insert("accounts", &[("id", Value::Integer(id)), ("balance", Value::Integer(10))])?;
    }

    let mut batch = lockwork.batch(1_000)?;
    for call in 0..1_000 {
        let (from, to) = (call % 10, (call * 7 + 1) % 10);
        let to = if to == from { (to + 1) % 10 } else { to };
        let arguments = [("from", from), ("to", to), ("amount", 1 + call % 4)];
        lockwork.push(&mut batch, "transfer", &arguments.map(|(name, value)| (name, Value::Integer(value))))?;
    }
    let (batch, tally) = lockwork.call_batch(batch)?;
    println!("{} committed, {} aborted", tally.committed, tally.transactions() - tally.committed);

    let committed = batch.blocks().filter(|block| block.status() == Some(Status::Committed)).count();
    assert_eq!(committed as u64, tally.committed);
    let first = lockwork.answer(&batch, 0);
    println!("the first call left {} in the account it took from", first.integer("left")?);
    assert_eq!(first.integer("left")?, 9);
    Ok(())
}
