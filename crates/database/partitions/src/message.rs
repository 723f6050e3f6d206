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
//! In `network-deterministic`:
//!
//! | kind | from, to | what follows |
//! |---|---|---|
//! | `CALLS` | coordinator, worker | calls: place (4), stamp (8), participants (16), whom to tell (8), footprint, procedure (4), arguments |
//! | `SCOUT` | coordinator, worker | calls: place (4), procedure (4), arguments |
//! | `FOOTPRINTS` | worker, coordinator | for each call: place (4), participants (16), footprint |
//! | `AGAIN` | worker, coordinator | places (4 each) of calls whose footprints are not right any more |
//! | `VALUES` | worker, worker | for each transaction: stamp (8), what `FETCHED` has |
//!
//! Between members of a divided engine, which are on several machines ([`divided`](crate::divided)), and their own
//! coordinators:
//!
//! | kind | from, to | what follows |
//! |---|---|---|
//! | `SETTLE` | coordinator, member | a number (4); the answer is `SETTLED` with it when everything told before has ended |
//! | `LOOK` | coordinator, member | stamp (8), who looks (2), procedure (4), arguments |
//! | `FORGET` | coordinator, member | stamp (8) |
//! | `FOOTPRINT` | member, member; member, coordinator | stamp (8), participants (16), footprint |
//! | `OUTCOMES` | member, member; member, coordinator | for each call: stamp (8), status, code (2), results |
//! | `LOOKING` | member, member | stamp (8) of the call for which the next `FETCH` is |
//! | `SHARE` | coordinator, member; back | nothing: there is something in the [`exchange`](crate::exchange) |
//! | `SHARE` | member, member | stamp (8) of a place, first byte (8), bytes of all (8), and these bytes of it |
//! | `GOT` | coordinator, member; member, member | stamp (8) of a place of which nothing is wanted any more |
//!
//! Participants are two sets of workers, a bit each: who takes part, and who of them runs the call.
//! A footprint is a number of accesses (4) and each of them: table (2), key, flags: 1 writes, 2 a range, 4 that has an
//! end; of a range its limit (4), column (1), and the last key, if there is an end. An empty one: the arguments tell.
//!
//! Images, texts, arguments, results, footprints and values have their length, four bytes, before them, but in `ROWS`,
//! where all are as long as the table's rows, and in `PROCEDURE`, `FAILED` and `SETUP`, where they end the frame.

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
pub(crate) const SCOUT: u8 = 16;
pub(crate) const FOOTPRINTS: u8 = 17;
pub(crate) const AGAIN: u8 = 18;
pub(crate) const VALUES: u8 = 19;
pub(crate) const SETTLE: u8 = 20;
pub(crate) const SETTLED: u8 = 21;
pub(crate) const LOOK: u8 = 22;
pub(crate) const FORGET: u8 = 23;
pub(crate) const FOOTPRINT: u8 = 24;
pub(crate) const OUTCOMES: u8 = 25;
pub(crate) const LOOKING: u8 = 26;
pub(crate) const SHARE: u8 = 27;
pub(crate) const GOT: u8 = 28;

/// How long a frame of rows or calls gets before the next one begins.
pub(crate) const PIECE: usize = 1 << 20;
