//! One procedure, every engine, one answer.
//!
//! Engines differ in how they settle conflicts, never in what comes out. Those that promise batch order agree to the
//! bit; two-phase locking promises some serial order, and for transfers that cannot fail every order gives the same.
//!
//! `cargo run --release -p lockwork --example 05_same_answer_everywhere`

use lockwork::{EngineKind, Error, Lockwork, Value};

fn run(kind: EngineKind) -> Result<String, Error> {
    let mut lockwork = Lockwork::open_in_memory(kind)?;
    lockwork.register(include_str!("../../../../examples/transfer.lw"))?;
    for id in 0..4 {
        lockwork.insert("accounts", &[("id", Value::Integer(id)), ("balance", Value::Integer(1_000_000))])?;
    }
    let mut batch = lockwork.batch(20_000)?;
    for call in 0..20_000 {
        let arguments = [("from", call % 4), ("to", (call + 1 + call % 3) % 4), ("amount", call % 50)];
        lockwork.push(&mut batch, "transfer", &arguments.map(|(name, value)| (name, Value::Integer(value))))?;
    }
    let (_, tally) = lockwork.call_batch(batch)?;
    assert_eq!(tally.committed, 20_000);
    Ok(lockwork.digest()?.to_string())
}

fn main() -> Result<(), Error> {
    let expected = run(EngineKind::SERIAL)?;
    println!("serial               {expected}");
    for kind in [EngineKind::TWO_PHASE, EngineKind::DETERMINISTIC_QUEUE, EngineKind::DETERMINISTIC] {
        let digest = run(kind)?;
        println!("{:20} {digest}", kind.to_string());
        assert_eq!(digest, expected);
    }
    Ok(())
}
