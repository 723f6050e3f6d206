//! One procedure, one call: what an embedded Lockwork looks like.
//!
//! A procedure declares its tables, parameters and results, and is verified when it is registered: bounds, types,
//! loops. Calling it is then a serializable transaction.
//!
//! `cargo run --release -p lockwork --example 01_first_transaction`

use lockwork::{EngineKind, Error, Lockwork, Status, Value};

const DEPOSIT: &str = "
procedure deposit
table accounts (id: i64 key, balance: i64)
param id: i64
param amount: i64
result balance: i64
    update  c0, accounts, [id]          ; starts the look-up
    ret     r1, c0                      ; waits for the row
    loadr   r2, r1[accounts.balance]
    load    r3, [amount]
    add     r2, r2, r3                  ; overflow would abort, not wrap
    storer  r2, r1[accounts.balance]
    store   r2, [balance]
    commit";

fn main() -> Result<(), Error> {
    let mut lockwork = Lockwork::open_in_memory(EngineKind::DETERMINISTIC)?;
    lockwork.register(DEPOSIT)?;
    lockwork.insert("accounts", &[("id", Value::Integer(7)), ("balance", Value::Integer(100))])?;

    let answer = lockwork.call("deposit", &[("id", Value::Integer(7)), ("amount", Value::Integer(5))])?;
    assert_eq!(answer.status(), Status::Committed);
    println!("account 7 has {}", answer.integer("balance")?);
    assert_eq!(answer.integer("balance")?, 105);
    Ok(())
}
