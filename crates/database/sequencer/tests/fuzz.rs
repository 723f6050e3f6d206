//! What the fuzz targets do, with random frames and without coverage feedback: enough to see that they hold at all.

mod common;

use lockwork_sequencer::fuzz;
use proptest::prelude::*;

/// Frames as the fuzz entries read them: kind, length, payload.
fn frame(kind: u8, payload: Vec<u8>) -> Vec<u8> {
    [vec![kind, payload.len() as u8], payload].concat()
}

fn text(assembly: &str) -> Vec<u8> {
    [&(assembly.len() as u32).to_le_bytes()[..], assembly.as_bytes(), &[0; 4]].concat()
}

fn frames() -> impl Strategy<Value = Vec<u8>> {
    let table = "table t (k: u8 key, v: u8)";
    let procedure = "procedure p\ntable t\nparam k: u8\n    insert c0, t, [k]\n    ret r1, c0\n    commit";
    let one = prop_oneof![
        Just(frame(1, text(table))),
        Just(frame(1, text(procedure))),
        (any::<u8>(), any::<u8>()).prop_map(|(k, v)| frame(2, [&[1, 0, b't', 2, 0, 0, 0], &[k, v][..]].concat())),
        prop::collection::vec(any::<u8>(), 1..9)
            .prop_map(|keys| frame(0, [vec![0, 2 * keys.len() as u8], keys].concat())),
        (0..8_u8, prop::collection::vec(any::<u8>(), 0..60)).prop_map(|(kind, payload)| frame(kind, payload)),
        Just(frame(3, Vec::new())),
    ];
    prop::collection::vec(one, 0..8).prop_map(|frames| frames.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_log_opens_or_is_refused(bytes in frames()) {
        fuzz::log(&bytes);
    }

    #[test]
    fn any_checkpoint_opens_or_is_refused(bytes in frames()) {
        fuzz::checkpoint(&bytes);
    }

    #[test]
    fn any_journal_is_read_or_refused(bytes in frames()) {
        fuzz::journal(&bytes);
    }

    #[test]
    fn any_bytes_do(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        fuzz::log(&bytes);
        fuzz::checkpoint(&bytes);
        fuzz::definition(&bytes);
    }
}
