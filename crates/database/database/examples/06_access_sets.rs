//! What the verifier finds out: access sets, and procedures that depend on the database for them.
//!
//! A deterministic engine has to know what a transaction will touch before it runs. Nobody declares that; it follows
//! from the procedure. Where a key comes out of a row, the procedure is *dependent*, and the explanation says which
//! instruction makes it so.
//!
//! `cargo run --release -p lockwork --example 06_access_sets`

use std::error::Error;

use lockwork_procedure::access::{AccessSet, access_set, explain};
use lockwork_procedure::assembly::assemble;
use lockwork_procedure::schema::TableSchema;
use lockwork_procedure::verify::verify;

const FOLLOW: &str = "
procedure follow
table people (id: i64 key, friend: i64, score: i64)
param id: i64
result score: i64
scratch next: i64
    search  c0, people, [id]
    ret     r1, c0
    loadr   r2, r1[people.friend]
    store   r2, [next]
    search  c1, people, [next]          ; a key that was read from a row
    ret     r3, c1
    loadr   r4, r3[people.score]
    store   r4, [score]
    commit";

fn look(source: &str) -> Result<AccessSet, Box<dyn Error>> {
    let none: &[TableSchema] = &[];
    let assembled = assemble(source, none)?;
    let verified = verify(assembled.procedure, assembled.schemas.as_slice())?;
    let accesses = access_set(&verified);
    println!("{}\n", explain(&verified, &accesses).trim_end());
    Ok(accesses)
}

fn main() -> Result<(), Box<dyn Error>> {
    assert!(matches!(look(include_str!("../../../../examples/transfer.lw"))?, AccessSet::Straight(_)));
    assert!(matches!(look(FOLLOW)?, AccessSet::Dependent(_)));
    Ok(())
}
