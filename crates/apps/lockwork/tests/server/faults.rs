//! `lockwork serve` under everything that goes wrong: it stays and serves the others, memory has bounds, and what was
//! acknowledged is there.

mod clients;
mod fuzz;
mod messages;
pub(crate) mod process;
mod soak;

/// The money of the bank.
fn cents(client: &mut crate::client::Client) -> i64 {
    let rows = client.query("SELECT balance FROM accounts WHERE id BETWEEN 1 AND 2 LIMIT 2").unwrap();
    rows.lines().filter_map(|row| row.replace('.', "").parse::<i64>().ok()).sum()
}
