//! The channel between host and storage: rings of 64-byte entries in shared memory, as an NVMe device would have them.
//!
//! | module | idea |
//! |---|---|
//! | `segment` | the shared memory, and how it is checked before it is used |
//! | `ring` | one ring: tail, head, doorbell |
//! | `entry` | what stands in a ring |
//! | `port` | one end of the channel, used by many threads |
//! | `slots` | which calls and slots are free |
//! | `remote` | the host's end: [`RemoteDevice`] |
//! | `storage` | the storage's end: [`StorageEnd`] |
//! | `pidfd` | the process at the other end, and whether it lives |
//!
//! ```text
//! host                                             storage
//! call 7: slots 3 4 5 6, fragment in slot 3  --->
//!                                            <---  call 7: slot 3 accepted
//! call 7: last fragment in slot 4            --->  (has all four slots now)
//!                                            <---  call 7: piece in slot 3
//!                                            <---  call 7: piece in slot 4
//! call 7: slot 3 taken                       --->
//! call 7: slot 4 taken                       --->
//!                                            <---  call 7: done
//! ```
//!
//! A short call is two entries, and a slot if request or answer have more than 32 bytes. Whatever its length, a call
//! never has more of the payload area than its slots. All entries of a channel for one end are read by one thread at a
//! time; requests are carried out by as many threads as are in flight.
//!
//! Invariant: neither side believes the other. Positions, calls, slots, lengths and the bytes of messages are checked,
//! in private memory; what breaks a promise ends the channel with a text that says which.

mod entry;
pub(crate) mod pidfd;
pub(crate) mod port;
mod remote;
mod ring;
mod segment;
mod slots;
mod storage;
#[cfg(test)]
mod tests;

pub use remote::{RemoteDevice, Traffic};
pub use segment::{ChannelError, ChannelSize, ENTRY_BYTES, LAYOUT_VERSION, SLOT_BYTES};
pub(crate) use storage::Job;
pub use storage::StorageEnd;
