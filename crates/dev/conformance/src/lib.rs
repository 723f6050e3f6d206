//! What every engine and every lock manager has to pass. Only tests depend on this crate.
//!
//! | module | what it checks |
//! |---|---|
//! | [`engines`] | an engine on mixes of procedures, against its serial order replayed by `serial` |
//! | [`procedures`] | an engine on random verified procedures, by seed |
//! | [`locks`] | a lock manager on golden scripts |

pub mod engines;
pub mod locks;
pub mod procedures;
