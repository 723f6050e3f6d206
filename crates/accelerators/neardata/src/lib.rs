//! The near-data engine: host transactions and bulk updates inside smart storage change the same tables at the same
//! time (neoDBMS).
//!
//! | module | idea |
//! |---|---|
//! | [`channel`] | calls between two processes over shared memory |
//! | [`coherent`] | the memory that both see: lock table, VID maps; and the engine over it |
//! | [`command`] | calls of the storage and their answers as bytes |
//! | [`device`] | what the host may ask of the storage |
//! | [`linked`] | the lock table across the link |
//! | [`link`] | what the way between host and storage costs |
//! | [`process`] | the storage process, as the host sees it |
//! | [`program`] | the storage process, as it sees itself |
//! | [`host`] | transactions over the newest versions, beside bulk operations that the storage runs |
//! | [`record`] | names that host and storage share: tuples, versions, places |
//! | [`row_program`] | which rows a bulk operation takes, and what becomes of them; host and storage evaluate it |
//! | [`serve`] | the storage's main loop |
//! | [`storage`] | smart storage: the file, and the processing elements that work on it |

pub mod channel;
pub mod coherent;
pub mod command;
pub mod device;
pub mod host;
pub mod link;
pub mod linked;
pub mod process;
pub mod program;
pub mod record;
pub mod row_program;
pub mod serve;
pub mod storage;
