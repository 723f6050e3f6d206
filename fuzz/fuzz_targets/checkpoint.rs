//! Any bytes as a checkpoint: it opens, or is refused with a place; what opens opens again with the same contents.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    lockwork_sequencer::fuzz::checkpoint(bytes);
    lockwork_sequencer::fuzz::definition(bytes);
});
