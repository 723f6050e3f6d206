//! The near-data engine: host transactions and bulk updates inside smart storage change the same tables at the same
//! time (neoDBMS).
//!
//! | module | idea |
//! |---|---|
//! | [`device`] | what the host may ask of the storage |
//! | [`record`] | names that host and storage share: tuples, versions, places |
//! | [`storage`] | smart storage: the file, and the processing elements that work on it |

pub mod device;
pub mod record;
pub mod storage;
