//! Any bytes as a source: no panic; what assembles comes back from text and from bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lockwork_procedure::assembly::fuzz::source(bytes));
