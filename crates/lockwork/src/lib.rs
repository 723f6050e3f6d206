//! Serializable stored-procedure transactions at hardware speed.
//!
//! Write a transaction once, as a procedure; run it on engines with different concurrency control; get the same answer.
//!
//! ```
//! use lockwork::{EngineKind, Lockwork, Status, Value};
//!
//! let mut lockwork = Lockwork::open_in_memory(EngineKind::DETERMINISTIC)?;
//! lockwork.register(
//!     "procedure deposit
//!      table accounts (id: i64 key, balance: i64)
//!      param id: i64
//!      param amount: i64
//!      result balance: i64
//!          update  c0, accounts, [id]
//!          ret     r1, c0
//!          loadr   r2, r1[accounts.balance]
//!          load    r3, [amount]
//!          add     r2, r2, r3
//!          storer  r2, r1[accounts.balance]
//!          store   r2, [balance]
//!          commit",
//! )?;
//! lockwork.insert("accounts", &[("id", Value::Integer(7)), ("balance", Value::Integer(100))])?;
//!
//! let answer = lockwork.call("deposit", &[("id", Value::Integer(7)), ("amount", Value::Integer(5))])?;
//! assert_eq!(answer.status(), Status::Committed);
//! assert_eq!(answer.integer("balance")?, 105);
//! # Ok::<(), lockwork::Error>(())
//! ```
//!
//! A batch of calls goes in as one piece ([`Lockwork::batch`], [`Lockwork::call_batch`]) and is what the engines are
//! fast at.

/// The example of the README, run as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

pub use lockwork_database::*;
/// The client of the lock service: [`Locks::connect`](locks::Locks::connect).
pub use lockwork_locknet::client as locks;
