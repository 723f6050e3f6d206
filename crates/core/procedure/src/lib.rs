//! What a transaction is.
//!
//! A **procedure** is verified bytecode over the rows of tables; a **transaction block** carries one call of it from
//! the client to an engine and back. This crate holds the first of the two narrow waists of Lockwork and everything
//! that can be said about a procedure without running it against data:
//!
//! | module | idea |
//! |---|---|
//! | [`schema`] | tables, typed fixed-width columns, where each column lies in a row |
//! | [`partitioning`] | which partition a row belongs to, where an engine divides its tables |
//! | [`key`] | keys in a normal form that compares and hashes as words |
//! | [`block`] | the transaction block, and batches of blocks |
//! | [`request`] | request ids, by which a retry of a call is recognised |
//! | [`isa`] | the instruction set and its binary encoding, byte by byte |
//! | [`program`] | a procedure as written: code, tables, parameters, results |
//! | [`assembly`] | procedures as text, and back |
//! | [`verify`] | what a procedure must prove before an engine runs it |
//! | [`verified`] | a procedure that did, with the facts |
//! | [`access`] | which rows a call will touch, from its arguments alone |
//! | [`interpreter`] | one step of a procedure; its context is a program counter and a register window |
//!
//! The instruction set completes Table 2 of the BionicDB paper; what is different and why is told in [`isa`].

pub mod access;
pub mod assembly;
pub mod block;
pub mod block_access;
pub mod interpreter;
pub mod isa;
pub mod key;
pub mod partitioning;
pub mod program;
pub mod request;
pub mod schema;
pub mod verified;
pub mod verify;
