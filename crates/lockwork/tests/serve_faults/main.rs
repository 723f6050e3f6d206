//! `lockwork serve` under everything that goes wrong: it stays and serves the others, memory has bounds, and what was
//! acknowledged is there.

#[path = "../common/client.rs"]
mod client;
mod clients;
#[path = "../common/folder.rs"]
mod folder;
mod fuzz;
mod messages;
mod process;
#[path = "../common/server.rs"]
mod server;
mod soak;

const BANK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/bank.sql");

/// The money of the bank.
fn cents(client: &mut client::Client) -> i64 {
    let rows = client.query("SELECT balance FROM accounts WHERE id BETWEEN 1 AND 2 LIMIT 2").unwrap();
    rows.lines().filter_map(|row| row.replace('.', "").parse::<i64>().ok()).sum()
}
