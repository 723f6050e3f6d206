//! The lock service on real networks: what gives the state machines of `lockwork-lock-protocol` packets and the time.
//!
//! The protocol knows no I/O and lives in a crate of its own, so that simulator and model run the very code that runs
//! here.
//!
//! | module | idea |
//! |---|---|
//! | [`udp`] | a socket that receives and sends batches |
//! | [`xsk`] | an AF_XDP socket, past the network stack |
//! | [`plane`] | where decisions are made, as the daemon sees it |
//! | [`lockd`] | the daemon: a data plane and the registry |
//! | [`client`] | the client library |
//! | `engine` | implements `LockService` for engines that take their locks from the service |
//! | [`query`] | questions about locks, without a session |
//! | [`kernel`] | the decider as an eBPF program |
//! | [`key`] | the cluster's key in a file |
//! | [`namespace`] | a small network of one host |

pub mod client;
mod clock;
mod engine;
pub mod kernel;
pub mod key;
pub mod lockd;
pub mod namespace;
pub mod plane;
pub mod query;
mod socket;
mod spinner;
mod status;
pub mod udp;
pub mod xsk;
