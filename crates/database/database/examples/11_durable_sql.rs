//! A database in a folder: tables and procedures in SQL, calls that are durable when they return.
//!
//! `cargo run --release -p lockwork --example 11_durable_sql FOLDER` opens the folder, makes the bank if it is new,
//! moves money, and prints the balances. Run it twice, or kill it: nothing is lost.

use lockwork::sql::Value;
use lockwork::{Error, Lockwork, SqlAnswer};

fn main() -> Result<(), Error> {
    // Without a folder one is made for this run.
    let given = std::env::args().nth(1);
    let folder = given.clone().unwrap_or_else(|| {
        std::env::temp_dir().join(format!("lockwork-bank-{}", std::process::id())).display().to_string()
    });
    let mut bank = Lockwork::open(&folder)?;
    if bank.tables().is_empty() {
        bank.sql(include_str!("../../../../examples/bank.sql"))?;
    }

    // Typed values, in the order of the parameters; 25.00 is 2500 with two digits behind the point.
    let results = bank.sql_call("transfer", &[Value::Integer(1), Value::Integer(2), Value::Decimal(2500, 2)])?;
    println!("account 1 has {} left", results[0].1);
    match bank.sql("CALL transfer(2, 1, 999999.00)") {
        Err(Error::Aborted { sqlstate, message, .. }) => println!("refused with {sqlstate}: {message}"),
        other => panic!("there is not so much money: {other:?}"),
    }
    bank.close()?;

    let mut bank = Lockwork::open(&folder)?;
    for answer in bank.sql("SELECT id, balance FROM accounts WHERE id BETWEEN 1 AND 2 ORDER BY id LIMIT 2")? {
        if let SqlAnswer::Rows(columns, rows) = answer {
            println!("{}", columns.join(" | "));
            rows.iter().for_each(|row| println!("{} | {}", row[0], row[1]));
        }
    }
    bank.close()?;
    if given.is_none() {
        drop(std::fs::remove_dir_all(&folder));
    }
    Ok(())
}
