//! `lw_tuple_lock` beside software on one lock table in simulated memory, with the locking crate as the oracle.

mod card;
mod golden;
mod random;
mod replay;
mod single;
