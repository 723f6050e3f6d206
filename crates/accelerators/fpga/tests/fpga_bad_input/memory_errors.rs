//! Memory refuses one request of a transaction, each in turn.

use std::collections::BTreeMap;

use lockwork_conformance::engines::{Random, fill, prepared};
use lockwork_engine::Engine;
use lockwork_fpga::driver::Settings;
use lockwork_fpga::memory::{Behaviour, Request};
use lockwork_fpga::registers as at;
use lockwork_procedure::block::{Batch, abort};

use super::machine::{Shared, works};

/// One call of a procedure on accounts that are there, or one that is not and is to be opened.
fn call(engine: &dyn Engine, name: &str) -> Batch {
    let mut batch = fill(engine, &mut Random(1), &[name], 1);
    let (first, second) = if name == "open" { (7_i64, 1_i64) } else { (4, 10) };
    batch.block_mut(0).bytes()[32..40].copy_from_slice(&first.to_le_bytes());
    batch.block_mut(0).bytes()[40..48].copy_from_slice(&second.to_le_bytes());
    batch
}

/// What a request is for.
fn meaning(card: &Shared, log: &[Request], number: usize) -> &'static str {
    let long = |low: u32| u64::from(card.read(at::WORKER + low)) | u64::from(card.read(at::WORKER + low + 4)) << 32;
    let (submit, complete, undo) = (long(at::SUBMIT_LOW), long(at::COMPLETE_LOW), long(at::UNDO_LOW));
    let ring_bytes = 8 << card.read(at::WORKER + at::SUBMIT_SIZE);
    let undo_bytes = u64::from(card.read(at::UNDO_BYTES) * card.read(at::CONTEXTS));
    let block = card.read_word(submit);
    let Request { write, address, strobe, .. } = log[number];
    let in_block = (block..block + 256).contains(&address).then(|| address - block);
    match (in_block, write) {
        _ if (submit..submit + ring_bytes).contains(&address) => "submission ring",
        _ if (complete..complete + ring_bytes).contains(&address) => "completion ring",
        _ if (undo..undo + undo_bytes).contains(&address) => "undo log",
        (Some(0), false) => "block",
        (Some(0), true) => "outcome",
        (Some(24), true) => "stamp",
        (Some(_), false) => "key or argument",
        (Some(_), true) => "result",
        (None, true) if strobe == 0x80 => "live byte",
        (None, true) => "row written",
        // The first that is neither is the head of the chain.
        (None, false) => {
            let others = |request: &&Request| {
                let of_block = (block..block + 256).contains(&request.address);
                let of_ring = (submit..submit + ring_bytes).contains(&request.address);
                !of_block && !of_ring && !request.write
            };
            if log[..number].iter().filter(others).count() == 0 { "head" } else { "row read" }
        }
    }
}

#[test]
fn whichever_request_of_a_transaction_memory_refuses_it_is_told_and_the_card_works_afterwards() {
    let Some(card) = Shared::new(Behaviour::paper()) else { return };
    let mut seen: BTreeMap<&str, [u32; 2]> = BTreeMap::new();
    for name in ["look", "hasty", "open", "close"] {
        let fresh = || {
            card.behave(Behaviour::paper());
            let mut engine = prepared(&|| Ok(card.engine(Settings::default())), false);
            engine.start().unwrap();
            engine
        };
        let mut engine = fresh();
        card.log();
        let batch = call(&*engine, name);
        engine.submit(batch).unwrap();
        assert_eq!(engine.complete().unwrap().unwrap().report.tally.failed.len(), 0);
        let log = card.log();
        // While the ring has the block's address.
        let meanings: Vec<_> = (0..log.len()).map(|number| meaning(&card, &log, number)).collect();
        for (number, meaning) in meanings.into_iter().enumerate() {
            let mut engine = fresh();
            card.behave(Behaviour { bad_request: Some(number as u64 + 1), ..Behaviour::paper() });
            let batch = call(&*engine, name);
            engine.submit(batch).unwrap();
            let tally = engine.complete().unwrap().unwrap().report.tally;
            let lost = engine.start().err().map(|error| error.to_string());
            let what = format!("{name}, request {number}, {meaning}, {:?}: {tally:?}, {lost:?}", log[number]);
            card.behave(Behaviour::paper());
            let ring = meaning.ends_with("ring");
            if let Some(text) = &lost {
                assert_eq!(tally.failed.get(&abort::DEVICE_LOST), Some(&1), "{what}");
                assert!(ring && text.contains("memory refused a ring"), "{what}");
                let error = engine.digest().unwrap_err().to_string();
                assert!(error.contains("memory refused a ring"), "{what}: {error}");
                // Another engine resets the card.
                works(&mut *fresh());
            } else {
                assert_eq!(tally.failed.get(&abort::MEMORY_ERROR), Some(&1), "{what}");
                assert!(!ring, "{what}");
                works(&mut *engine);
            }
            seen.entry(meaning).or_default()[usize::from(lost.is_some())] += 1;
        }
    }
    println!("{seen:?}");
    let meanings = [
        "block",
        "completion ring",
        "head",
        "key or argument",
        "live byte",
        "outcome",
        "result",
        "row read",
        "row written",
        "stamp",
        "submission ring",
        "undo log",
    ];
    assert_eq!(seen.keys().copied().collect::<Vec<_>>(), meanings);
}
