//! Checkpoints: the whole database in one file, as it was between two batches.
//!
//! | module | idea |
//! |---|---|
//! | `snapshot` | what was there at one moment, copied in slices while calls go on |
//! | `write` | the thread that writes the file and makes it current |
//! | `read` | reads one and verifies all of it |
//!
//! A file is a header and frames: definitions in order, rows, request ids, and an end with counts and the digest. Only
//! what is complete and durable gets its name, by a rename; so a file with that name which is not sound is damage.
//!
//! What was considered for the copy. *Stopping calls* while all rows are copied takes as long as memory does, half a
//! second for a gigabyte, every time. *Replaying the log onto the last checkpoint* beside the calls costs as much
//! processor time as the calls did, which two cores do not have. *Fuzzy copies* mended by the log need a log that says
//! what rows became; this one says what was called, and calls are not idempotent. *Page protection* (userfaultfd) finds
//! writes for nothing, but containers forbid it and it breaks up huge pages. What is left is what deterministic
//! execution gives: the keys that a batch will write are known before it runs, so what they hold is saved first, and
//! the copy goes on in slices between batches.

pub(crate) mod read;
pub(crate) mod snapshot;
pub(crate) mod write;
