//! Mistakes in procedures, and how they are reported: the thing, its place, and what would be right.
//!
//! Nothing of a procedure that is refused stays behind, neither itself nor the tables that it declares.
//!
//! `cargo run --release -p lockwork --example 07_bad_procedures`

use lockwork::{EngineKind, Error, Lockwork};

const HEAD: &str = "procedure p\ntable accounts (id: i64 key, balance: i64)\nparam id: i64\nresult balance: i64\n";

fn main() -> Result<(), Error> {
    let mut lockwork = Lockwork::open_in_memory(EngineKind::SERIAL)?;
    let mistakes = [
        (
            "an unknown column",
            "search c0, accounts, [id]\nret r1, c0\nloadr r2, r1[accounts.balence]\ncommit",
            "balance",
        ),
        ("an answer that nobody awaits", "search c0, accounts, [id]\ncommit", "c0"),
        (
            "a row written that was looked up to read",
            "search c0, accounts, [id]\nret r1, c0\nmov r2, 1\nstorer r2, r1[accounts.balance]\ncommit",
            "r1",
        ),
        ("a loop without a bound", "again:\njmp again\ncommit", "loop"),
        ("a key that reaches beyond the block", "search c0, accounts, [balance + 4]\nret r1, c0\ncommit", "32 to 48"),
    ];
    for (what, code, named) in mistakes {
        let error = lockwork.register(&format!("{HEAD}{code}")).expect_err("it is refused").to_string();
        println!("{what}:\n    {error}");
        assert!(error.contains(named), "{error}");
    }
    assert_eq!(lockwork.digest()?, Lockwork::open_in_memory(EngineKind::SERIAL)?.digest()?);
    Ok(())
}
