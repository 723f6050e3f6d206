//! Any bytes as a script of SQL: no panic; an error has a place; what compiles passes the verifier.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drop(lockwork_sql::fuzz::script(bytes)));
