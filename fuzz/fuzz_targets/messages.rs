//! Any bytes as what host and smart storage say to each other: none panics, and what decodes has one form.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lockwork_neardata::command::fuzz::message(bytes));
