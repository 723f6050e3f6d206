//! Any bytes as a text, a name and a query of the catalog: SQLite gets them as they are, and only reads.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lockwork_server::fuzz::catalog(bytes));
