//! Aborts: a call that does not commit leaves nothing behind, and says why.
//!
//! A procedure aborts with a code of its own (`abort 1`), or because of what it met: a missing row, an overflow. An
//! abort is an answer, not an error.
//!
//! `cargo run --release -p lockwork --example 02_aborts`

use lockwork::{EngineKind, Error, Lockwork, Status, Value, abort};

fn transfer(lockwork: &mut Lockwork, from: i64, to: i64, amount: i64) -> Result<(Status, u16), Error> {
    let integer = Value::Integer;
    let arguments = [("from", integer(from)), ("to", integer(to)), ("amount", integer(amount))];
    let answer = lockwork.call("transfer", &arguments)?;
    let why = abort::describe(answer.abort_code()).unwrap_or("the procedure's own code");
    println!("{amount} from {from} to {to}: {:?}, code {} ({why})", answer.status(), answer.abort_code());
    Ok((answer.status(), answer.abort_code()))
}

fn main() -> Result<(), Error> {
    let mut lockwork = Lockwork::open_in_memory(EngineKind::TWO_PHASE)?;
    lockwork.register(include_str!("../../../../examples/transfer.lw"))?;
    for id in [1, 2] {
        lockwork.insert("accounts", &[("id", Value::Integer(id)), ("balance", Value::Integer(100))])?;
    }

    assert_eq!(transfer(&mut lockwork, 1, 2, 30)?, (Status::Committed, 0));
    let before = lockwork.digest()?;
    // Too little money: the procedure says `abort 1`.
    assert_eq!(transfer(&mut lockwork, 1, 2, 1_000)?, (Status::Aborted, 1));
    // No such account: the system aborts, although account 1 was locked already.
    assert_eq!(transfer(&mut lockwork, 1, 9, 10)?, (Status::Aborted, abort::NOT_FOUND));
    assert_eq!(lockwork.digest()?, before);
    println!("the database is as it was before the two that aborted");
    Ok(())
}
