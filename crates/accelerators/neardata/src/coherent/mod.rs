//! The memory that host and storage both see, and the engine that is put together over it.
//!
//! | module | idea |
//! |---|---|
//! | [`maps`] | the VID maps of all tables in one segment |
//! | [`locks`] | which line of the shared lock table stands for what, for the host and for processing elements |
//! | [`engine`] | lock table, VID maps, storage process and host, started and restarted together |
//!
//! The host makes both segments and hands their descriptors to the storage, so they go with the last of the two. On a
//! machine with a coherent link they lie in the host's memory, as in the paper: the host has short transactions, and
//! their locks are then local (neoDBMS, section 4, experiment 1).

pub mod engine;
pub mod locks;
pub mod maps;

pub use engine::{NearData, NearDataConfig, NearDataError, storage_process};
