//! The same procedure on an OpenCL device: translated to OpenCL C, planned by the host, and the same answer.
//!
//! Without a device it says so and ends: a GPU's driver brings its own platform, and `apt install pocl-opencl-icd`
//! makes one of the CPU.
//!
//! `cargo run --release -p lockwork --example 09_opencl_device`

use lockwork::{EngineKind, Error, Lockwork, Status, Value};

fn deposit(lockwork: &mut Lockwork) -> Result<String, Error> {
    lockwork.register(
        "procedure deposit
         table accounts (id: i64 key, balance: i64)
         param id: i64
         param amount: i64
         result balance: i64
             update  c0, accounts, [id]
             ret     r1, c0
             loadr   r2, r1[accounts.balance]
             load    r3, [amount]
             add     r2, r2, r3
             storer  r2, r1[accounts.balance]
             store   r2, [balance]
             commit",
    )?;
    for id in 0..100 {
        lockwork.insert("accounts", &[("id", Value::Integer(id)), ("balance", Value::Integer(1_000))])?;
    }
    let mut batch = lockwork.batch(10_000)?;
    for call in 0..10_000 {
        // Every tenth call goes to account 7: its deposits form a chain that one work-item runs in order.
        let id = if call % 10 == 0 { 7 } else { call % 100 };
        lockwork.push(&mut batch, "deposit", &[("id", Value::Integer(id)), ("amount", Value::Integer(1))])?;
    }
    let (batch, tally) = lockwork.call_batch(batch)?;
    assert_eq!(tally.committed, 10_000);
    let last = lockwork.answer(&batch, 9_990);
    assert_eq!(last.status(), Status::Committed);
    println!("account 7 holds {}", last.integer("balance")?);
    Ok(lockwork.digest()?.to_string())
}

fn main() -> Result<(), Error> {
    let mut device = match Lockwork::open_in_memory(lockwork_opencl::OPENCL_DETERMINISTIC) {
        Ok(lockwork) => lockwork,
        Err(absent) => {
            println!("skipped: {absent}");
            return Ok(());
        }
    };
    let on_device = deposit(&mut device)?;
    let on_cpu = deposit(&mut Lockwork::open_in_memory(EngineKind::DETERMINISTIC)?)?;
    println!("digests {on_device} and {on_cpu}");
    assert_eq!(on_device, on_cpu);
    Ok(())
}
