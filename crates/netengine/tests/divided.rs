//! Engines that run one order together: they have together what one engine has, whoever is away for a while or begins
//! again.

#[path = "common/parts.rs"]
mod parts;

use lockwork_engine::conformance::{MIXES, check};
use parts::Parts;

fn every_mix(count: usize) {
    for (number, (names, ordered)) in MIXES.iter().enumerate() {
        let what = format!("{count} parts");
        check(&what, &|| Ok(Box::new(Parts::new(count))), names, *ordered, number as u64);
    }
}

#[test]
fn one_part_is_equivalent_to_batch_order() {
    every_mix(1);
}

#[test]
fn two_parts_are_equivalent_to_batch_order() {
    every_mix(2);
}

#[test]
fn five_parts_are_equivalent_to_batch_order() {
    every_mix(5);
}
