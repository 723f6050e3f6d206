//! Any bytes as the messages of a journal, with right checksums and hashes: a node has what they say, or stops with a
//! place; what one node has read another one reads alike.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lockwork_sequencer::fuzz::journal(bytes));
