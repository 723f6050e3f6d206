//! What coordinator and workers say to each other: the first byte of a frame, and what follows it.
//!
//! | kind | from, to | what follows |
//! |---|---|---|
//! | `SETUP` | coordinator, worker | workers (2 bytes), transactions in flight and retries (4 each), pages, lock service |
//! | `TABLE` | coordinator, worker | schema, rows expected (8), granules: number (4) and keys |
//! | `PROCEDURE` | coordinator, worker | its binary form |
//! | `ROWS` | both ways | table (2), row images |
//! | `START` | coordinator, worker | nothing; the answer is `READY` |
//! | `CALLS` | coordinator, worker | calls: place in the batch (4), sequence number (8), procedure (4), arguments |
//! | `RESULTS` | worker, coordinator | for each call: place (4), status, code (2), stamp (8), conflicts (4), results |
//! | `EXPORT` | coordinator, worker | nothing; the answers are `ROWS` and `EXPORTED` |
//! | `FAILED` | worker, coordinator | why it ends, as text |
//! | `FETCH` | worker, worker | transaction (4); for each row or range: table (2), key, 0, or 1 with limit (4) and column |
//! | `FETCHED` | worker, worker | transaction (4); for each row its image; for each range a number (4), keys, bytes |
//! | `APPLY` | worker, worker | transaction (4); for each row: table (2), key, image, empty to remove it |
//! | `APPLIED` | worker, worker | transaction (4) |
//!
//! Images, texts, arguments and results have their length, four bytes, before them, but in `ROWS`, where all of them
//! are as long as the table's rows, and in `PROCEDURE`, `FAILED` and `SETUP`, where they end the frame.

pub(crate) const SETUP: u8 = 1;
pub(crate) const TABLE: u8 = 2;
pub(crate) const PROCEDURE: u8 = 3;
pub(crate) const ROWS: u8 = 4;
pub(crate) const START: u8 = 5;
pub(crate) const READY: u8 = 6;
pub(crate) const CALLS: u8 = 7;
pub(crate) const RESULTS: u8 = 8;
pub(crate) const EXPORT: u8 = 9;
pub(crate) const EXPORTED: u8 = 10;
pub(crate) const FAILED: u8 = 11;
pub(crate) const FETCH: u8 = 12;
pub(crate) const FETCHED: u8 = 13;
pub(crate) const APPLY: u8 = 14;
pub(crate) const APPLIED: u8 = 15;

/// How long a frame of rows or calls gets before the next one begins.
pub(crate) const PIECE: usize = 1 << 20;
