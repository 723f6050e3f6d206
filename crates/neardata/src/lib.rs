//! The near-data engine: host transactions and bulk updates inside smart storage change the same tables at the same
//! time (neoDBMS).
//!
//! | module | idea |
//! |---|---|
//! | [`device`] | what the host may ask of the storage |
//! | [`host`] | transactions over the newest versions, beside bulk operations that the storage runs |
//! | [`record`] | names that host and storage share: tuples, versions, places |

pub mod device;
pub mod host;
pub mod record;
