//! Any bytes as a procedure: no panic; what decodes is written as the same bytes, and comes back from text.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lockwork_procedure::assembly::fuzz::binary(bytes));
