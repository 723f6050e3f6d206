//! The near-data engine: host transactions and bulk updates inside smart storage change the same tables at the same
//! time (neoDBMS).
//!
//! | module | idea |
//! |---|---|
//! | [`command`] | calls of the storage and their answers as bytes |
//! | [`device`] | what the host may ask of the storage |
//! | [`linked`] | the lock table across the link |
//! | [`link`] | what the way between host and storage costs |
//! | [`record`] | names that host and storage share: tuples, versions, places |

pub mod command;
pub mod device;
pub mod link;
pub mod linked;
pub mod record;
