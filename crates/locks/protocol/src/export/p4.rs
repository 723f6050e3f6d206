//! The decision table as entries of a P4 table: hardware/p4/decision.p4inc.
//!
//! A row is one or more ternary entries, because a set of states is not always one pattern of two bits. Entries never
//! overlap, so priorities do not matter. Tokens are left out: switches have the lean profile, which knows none.

use crate::export::rows::{Row, rows};
use crate::table::{Place, Send};
use crate::word::State;

/// Patterns of the two bits of a state, the widest first: value, mask, and which states they are.
const PATTERNS: [(u8, u8, u8); 8] = [
    (0, 2, 0b0011),
    (2, 2, 0b1100),
    (0, 1, 0b0101),
    (1, 1, 0b1010),
    (0, 3, 0b0001),
    (1, 3, 0b0010),
    (2, 3, 0b0100),
    (3, 3, 0b1000),
];

/// The columns, for a reader.
const COLUMNS: &str =
    "kind, state, shared, from agent, matches, applied, writers first : send, write, state, place, next";

fn send(send: Send) -> &'static str {
    match send {
        Send::Grant => "SEND_GRANT",
        Send::Join => "SEND_JOIN",
        Send::Agent => "SEND_AGENT",
        Send::Target => "SEND_TARGET",
        Send::Done => "SEND_DONE",
        Send::Refused => "SEND_REFUSED",
        Send::Ack => "SEND_ACK",
        Send::Gone => "SEND_GONE",
    }
}

fn place(place: Place) -> &'static str {
    match place {
        Place::Keep => "PLACE_KEEP",
        Place::Requester => "PLACE_REQUESTER",
        Place::Target => "PLACE_TARGET",
        Place::Nobody => "PLACE_NOBODY",
    }
}

fn state(state: State) -> String {
    format!("STATE_{state}").to_uppercase()
}

/// The patterns of a set of states.
fn patterns(states: u8) -> Vec<String> {
    if states == 0b1111 {
        return vec!["_".into()];
    }
    let mut left = states;
    let mut patterns = Vec::new();
    for (value, mask, covered) in PATTERNS {
        if covered & left == covered {
            left &= !covered;
            patterns.push(format!("{value} &&& {mask}"));
        }
    }
    patterns
}

fn entries(row: &Row) -> Vec<String> {
    let condition = |condition: Option<bool>| condition.map_or("_", |holds| if holds { "1" } else { "0" });
    let conditions = row.conditions.map(condition).join(", ");
    let action = row.action;
    let kind = format!("{:?}", row.kind).to_uppercase();
    let (write, new) = (u8::from(action.state.is_some()), state(action.state.unwrap_or(State::Free)));
    let what = [
        send(action.send).into(),
        write.to_string(),
        new,
        place(action.place).into(),
        u8::from(action.next).to_string(),
    ];
    let what = what.join(", ");
    patterns(row.states).iter().map(|state| format!("({kind}, {state}, {conditions}) : act({what});\n")).collect()
}

/// The text of hardware/p4/decision.p4inc.
#[must_use]
pub fn decision() -> String {
    let mut text = String::from(
        "// Written from crates/locks/protocol/src/table.rs by export/p4.rs; a test compares. Do not edit.\n\
         // ",
    );
    text.push_str(COLUMNS);
    text.push('\n');
    rows().iter().flat_map(entries).for_each(|entry| text.push_str(&entry));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Kind;
    use crate::table::{Action, Case, ROWS, rule};

    const FILE: &str = "hardware/p4/decision.p4inc";

    #[test]
    fn the_entries_are_written_from_the_table() {
        crate::export::check(FILE, &decision());
    }

    /// What the action parameters of an entry say, without looking at how they were written.
    fn action(parameters: &[&str]) -> Action {
        let named = |names: &[&str], name: &str| names.iter().position(|known| *known == name).expect("a known name");
        let bit = |text: &str| named(&["0", "1"], text) == 1;
        let states = ["STATE_FREE", "STATE_SHARED", "STATE_LED", "STATE_EXCLUSIVE"];
        let places = ["PLACE_KEEP", "PLACE_REQUESTER", "PLACE_TARGET", "PLACE_NOBODY"];
        let sends = [
            ("SEND_GRANT", Send::Grant),
            ("SEND_JOIN", Send::Join),
            ("SEND_AGENT", Send::Agent),
            ("SEND_TARGET", Send::Target),
            ("SEND_DONE", Send::Done),
            ("SEND_REFUSED", Send::Refused),
            ("SEND_ACK", Send::Ack),
            ("SEND_GONE", Send::Gone),
        ];
        let [send, write, state, place, next] = parameters else { panic!("{parameters:?}") };
        Action {
            state: bit(write).then(|| State::ALL[named(&states, state)]),
            place: [Place::Keep, Place::Requester, Place::Target, Place::Nobody][named(&places, place)],
            next: bit(next),
            token: false,
            send: sends.iter().find(|(name, _)| name == send).expect("a known name").1,
        }
    }

    /// Whether a column of an entry takes a value, as P4 has it.
    fn takes(pattern: &str, value: u8) -> bool {
        let number = |text: &str| text.parse::<u8>().expect("a number");
        match pattern.split_once(" &&& ") {
            Some((wanted, mask)) => value & number(mask) == number(wanted) & number(mask),
            None => pattern == "_" || number(pattern) == value,
        }
    }

    #[test]
    fn the_entries_give_what_the_table_gives_in_all_cases() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(FILE);
        let text = std::fs::read_to_string(path).expect("the entries");
        let entries = text.lines().filter(|line| !line.starts_with("//")).map(|line| {
            let (keys, rest) = line.strip_prefix('(').and_then(|line| line.split_once(") : act(")).expect("an entry");
            let parameters = rest.strip_suffix(");").expect("the end of an entry");
            (keys.split(", ").collect::<Vec<_>>(), action(&parameters.split(", ").collect::<Vec<_>>()))
        });
        let entries: Vec<_> = entries.collect();
        let kinds = ["ACQUIRE", "RELEASE", "FREE", "MOVE", "OPEN", "CLOSE", "ENROL", "SEEK"];
        for case in (0..ROWS).map(Case::of_index) {
            let Case { kind, state, shared, from_agent, matches, applied, writers_first } = case;
            let bits =
                [state as u8, shared.into(), from_agent.into(), matches.into(), applied.into(), writers_first.into()];
            let fits = |keys: &[&str]| {
                keys.len() == 7
                    && kinds.iter().position(|name| *name == keys[0]) == Some(kind as usize)
                    && keys[1..].iter().zip(bits).all(|(pattern, value)| takes(pattern, value))
            };
            let fitting: Vec<Action> =
                entries.iter().filter(|(keys, _)| fits(keys)).map(|(_, action)| *action).collect();
            assert_eq!(fitting, [Action { token: false, ..rule(case) }], "{case:?}");
        }
        assert_eq!(Kind::ALL[7], Kind::Seek);
    }
}
