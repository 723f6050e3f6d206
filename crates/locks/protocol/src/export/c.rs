//! The protocol's numbers and the decision table as a C header: hardware/xdp/table.h.
//!
//! The eBPF program has no rules of its own. It computes the index of a case as [`Case::index`] does, finds the row
//! here, and applies it; so a rule that changes in [`table`](crate::table) changes there by writing the header anew.
//! Rows are the 16 bits of [`Action::bits`](crate::table::Action::bits).

use crate::decider::TOKEN_STEP;
use crate::packet::{AGENT, GRANTED, HEADER, Kind, MAGIC, MAX_BYTES, Problem, VERSION};
use crate::table::{Case, Place, ROWS, Send, rule};
use std::fmt::Write;

/// How many rows stand in one line.
const A_LINE: usize = 12;

/// `NoSuchLock` as `NO_SUCH_LOCK`.
fn constant(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.extend(letter.to_uppercase());
    }
    text
}

fn define(text: &mut String, prefix: &str, name: &str, value: u64) {
    let name = format!("{prefix}{}", constant(name));
    writeln!(text, "#define {name:<24} {value}").expect("a string takes any text");
}

/// hardware/xdp/table.h.
#[must_use]
pub fn header() -> String {
    let mut text = String::from(
        "/* Written from crates/locks/protocol/src/{packet,table}.rs by export/c.rs; a test compares. Do not edit. */\n\
         #pragma once\n\n\
         /* Packets. */\n",
    );
    let numbers = [
        ("Magic", u64::from(MAGIC)),
        ("Version", u64::from(VERSION)),
        ("Header", HEADER as u64),
        ("MostBytes", MAX_BYTES as u64),
        ("TokenStep", TOKEN_STEP),
        ("FlagAgent", u64::from(AGENT)),
        ("FlagGranted", u64::from(GRANTED)),
        ("KindsDecided", u64::from(Kind::DECIDED)),
    ];
    numbers.into_iter().for_each(|(name, value)| define(&mut text, "", name, value));
    text.push_str("\n/* Kinds. */\n");
    Kind::ALL.into_iter().for_each(|kind| define(&mut text, "KIND_", &format!("{kind:?}"), kind as u64));
    let known = Kind::ALL.into_iter().fold(0_u64, |known, kind| known | 1 << kind as u8);
    writeln!(text, "/* Bit n: kind n is known. */\n#define {:<24} {known:#x}", "KINDS_KNOWN").expect("a string");
    text.push_str("\n/* Problems, in the token of an ERROR. */\n");
    let problems = (0..64).filter_map(Problem::of_number);
    problems.for_each(|problem| define(&mut text, "PROBLEM_", &format!("{problem:?}"), problem as u64));
    text.push_str(
        "\n/* A row: bits 0 to 2 what is sent, 3 and 4 the state, 5 whether the word is written, 6 and 7 the agent's\n",
    );
    text.push_str("   place, 8 the next incarnation, 9 the next token. */\n");
    let sends = [Send::Grant, Send::Join, Send::Agent, Send::Target, Send::Done, Send::Refused, Send::Ack, Send::Gone];
    sends.into_iter().for_each(|send| define(&mut text, "SEND_", &format!("{send:?}"), send as u64));
    let places = [Place::Keep, Place::Requester, Place::Target, Place::Nobody];
    places.into_iter().for_each(|place| define(&mut text, "PLACE_", &format!("{place:?}"), place as u64));
    define(&mut text, "", "Rows", ROWS as u64);
    text.push_str(
        "\n/* Found by bits 0 to 2 kind, 3 and 4 state, then one bit each: shared, from agent, incarnation matches,\n",
    );
    text.push_str("   applied before, writers first. */\n");
    text.push_str("static const unsigned short rows[ROWS] = {\n");
    let rows: Vec<String> = (0..ROWS).map(|index| format!("0x{:03x}", rule(Case::of_index(index)).bits())).collect();
    for line in rows.chunks(A_LINE) {
        writeln!(text, "\t{},", line.join(", ")).expect("a string takes any text");
    }
    text.push_str("};\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_header_is_what_would_be_written() {
        super::super::check("hardware/xdp/table.h", &header());
    }

    /// The value of a constant in the header.
    fn value(header: &str, name: &str) -> u64 {
        let mut lines = header.lines().filter_map(|line| line.strip_prefix("#define "));
        let found = lines.find_map(|line| line.split_once(' ').filter(|(is, _)| *is == name));
        let (_, value) = found.unwrap_or_else(|| panic!("no constant {name}"));
        let value = value.trim();
        value.strip_prefix("0x").map_or_else(|| value.parse(), |hex| u64::from_str_radix(hex, 16)).expect("a number")
    }

    #[test]
    fn constants_have_the_numbers_of_the_wire() {
        let header = header();
        // Written by hand from the table in `packet`, so that a renumbering does not go unseen.
        for (name, number) in [
            ("MAGIC", 0x4b4c),
            ("VERSION", 1),
            ("HEADER", 64),
            // As the programs of the kernel call it.
            (concat!("MOST", "_BYTES"), 1400),
            ("FLAG_AGENT", 4),
            ("FLAG_GRANTED", 8),
            ("KIND_ACQUIRE", 0),
            ("KIND_RELEASE", 1),
            ("KIND_FREE", 2),
            ("KIND_MOVE", 3),
            ("KIND_OPEN", 4),
            ("KIND_CLOSE", 5),
            ("KIND_ENROL", 6),
            ("KIND_SEEK", 7),
            ("KIND_GRANT", 8),
            ("KIND_DONE", 9),
            ("KIND_REFUSED", 10),
            ("KIND_ACK", 11),
            ("KIND_ERROR", 12),
            ("KIND_PROBE", 13),
            ("KIND_JOIN", 16),
            ("KIND_STATUS", 25),
            ("KIND_UNNAME", 31),
            ("KINDS_KNOWN", 0xffff_3fff),
            ("PROBLEM_NO_SUCH_LOCK", 1),
            ("PROBLEM_NO_SUCH_SESSION", 2),
            ("PROBLEM_NO_SUCH_MACHINE", 3),
            ("PROBLEM_NOT_HELD", 5),
            ("SEND_GRANT", 0),
            ("SEND_GONE", 7),
            ("PLACE_NOBODY", 3),
        ] {
            assert_eq!(value(&header, name), number, "{name}");
        }
    }

    #[test]
    fn rows_stand_in_the_order_of_their_indexes() {
        let header = header();
        let (_, rows) = header.split_once("rows[ROWS] = {").expect("the rows");
        let numbers = rows.split(['\n', ',']).map(str::trim).filter_map(|word| word.strip_prefix("0x"));
        let numbers: Vec<u16> = numbers.map(|hex| u16::from_str_radix(hex, 16).expect("hexadecimal")).collect();
        let expected: Vec<u16> = (0..ROWS).map(|index| rule(Case::of_index(index)).bits()).collect();
        assert_eq!(numbers, expected);
    }
}
