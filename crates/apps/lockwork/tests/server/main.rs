//! `lockwork serve` and its clients: one program for all of them, as linking each file by itself takes longer than
//! running it.

mod access;
#[path = "../common/busy.rs"]
mod busy;
mod cancel;
#[path = "../common/certificates.rs"]
mod certificates;
#[path = "../common/client.rs"]
mod client;
mod clients;
mod copy;
mod doors;
mod edges;
mod faults;
#[path = "../common/folder.rs"]
mod folder;
mod grants;
mod keys;
mod limits;
mod names;
mod numbers;
mod pipelines;
mod portals;
mod query;
mod recompiled;
mod remote;
mod requests;
#[path = "../common/server.rs"]
mod server;
mod settings;
mod shapes;
mod starting;
mod statements;
mod tls;
mod transactions;
mod values;
mod watch;

/// The example of a bank: tables, rows and the procedure `transfer`.
const BANK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/bank.sql");
