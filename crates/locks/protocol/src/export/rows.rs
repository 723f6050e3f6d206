//! The 1024 rows of the decision table merged into some forty, as people read them and ternary matches hold them.
//!
//! For each kind and state a decision tree asks the condition first that leaves the fewest leaves; leaves are rows, and
//! rows that differ in their state only become one. So rows never overlap, and their order means nothing.

use crate::packet::Kind;
use crate::table::{Action, Case, Place, Send, rule};
use crate::word::State;

/// The conditions beside kind and state, in the order of [`Case::index`].
pub const CONDITIONS: usize = 5;

/// What a condition is called when it holds and when not.
const WORDS: [(&str, &str); CONDITIONS] = [
    ("shared", "exclusive"),
    ("from the agent", "not from the agent"),
    ("incarnation matches", "incarnation differs"),
    ("applied", "not applied"),
    ("writers first", "readers first"),
];

/// Cases that have one action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The packet.
    pub kind: Kind,
    /// Bit `s` is set if the row is for state `s`.
    pub states: u8,
    /// `None` where a condition does not matter.
    pub conditions: [Option<bool>; CONDITIONS],
    /// What is done.
    pub action: Action,
}

impl Row {
    /// Whether the row is for this case.
    #[must_use]
    pub fn is_for(&self, case: Case) -> bool {
        let Case { shared, from_agent, matches, applied, writers_first, .. } = case;
        let given = [shared, from_agent, matches, applied, writers_first];
        let fits = |(wanted, given): (Option<bool>, bool)| wanted.is_none_or(|wanted| wanted == given);
        self.kind == case.kind
            && self.states >> case.state as u8 & 1 == 1
            && self.conditions.into_iter().zip(given).all(fits)
    }
}

type Conditions = [Option<bool>; CONDITIONS];

/// The action of all cases under `conditions`, if they agree.
fn agreed(kind: Kind, state: State, conditions: Conditions) -> Option<Action> {
    let fits =
        |bits: usize| (0..CONDITIONS).all(|at| conditions[at].is_none_or(|wanted| wanted == (bits >> at & 1 == 1)));
    let case = |bits: usize| Case::of_index(kind as usize | (state as usize) << 3 | bits << 5);
    let mut actions = (0..1 << CONDITIONS).filter(|bits| fits(*bits)).map(|bits| rule(case(bits)));
    let first = actions.next()?;
    actions.all(|action| action == first).then_some(first)
}

fn leaves(kind: Kind, state: State, conditions: Conditions) -> Vec<(Conditions, Action)> {
    if let Some(action) = agreed(kind, state, conditions) {
        return vec![(conditions, action)];
    }
    let free = (0..CONDITIONS).filter(|at| conditions[*at].is_none());
    let split = |at: usize| -> Vec<_> {
        let with = |value| {
            let mut conditions = conditions;
            conditions[at] = Some(value);
            leaves(kind, state, conditions)
        };
        [with(true), with(false)].concat()
    };
    free.map(split).min_by_key(Vec::len).expect("a case without free conditions has one action")
}

/// All rows, in the order of kinds and states.
#[must_use]
pub fn rows() -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for kind in Kind::ALL.into_iter().filter(|kind| kind.is_decided()) {
        for state in State::ALL {
            for (conditions, action) in leaves(kind, state, [None; CONDITIONS]) {
                let same = |row: &&mut Row| (row.kind, row.conditions, row.action) == (kind, conditions, action);
                match rows.iter_mut().find(same) {
                    Some(row) => row.states |= 1 << state as u8,
                    None => rows.push(Row { kind, states: 1 << state as u8, conditions, action }),
                }
            }
        }
    }
    rows
}

fn states(states: u8) -> String {
    let names = State::ALL.into_iter().filter(|state| states >> *state as u8 & 1 == 1).map(|state| state.to_string());
    match states {
        0b1111 => "any".into(),
        0b1110 => "held".into(),
        _ => names.collect::<Vec<_>>().join(", "),
    }
}

fn conditions(row: &Row) -> String {
    let word = |(condition, (yes, no)): (Option<bool>, (&'static str, &'static str))| {
        condition.map(|holds| if holds { yes } else { no })
    };
    row.conditions.into_iter().zip(WORDS).filter_map(word).collect::<Vec<_>>().join(", ")
}

fn written(action: Action) -> String {
    let Some(state) = action.state else { return "-".into() };
    let place = match action.place {
        Place::Keep => "",
        Place::Requester => ", agent at the requester",
        Place::Target => ", agent at the target",
        Place::Nobody => ", no agent",
    };
    let next = if action.next { ", incarnation + 1" } else { "" };
    let token = if action.token { ", token grows" } else { "" };
    format!("{state}{place}{next}{token}")
}

fn sent(send: Send) -> &'static str {
    match send {
        Send::Grant => "GRANT with a new agent to the requester",
        Send::Join => "GRANT to the requester, ACQUIRE marked as granted to the agent",
        Send::Agent => "the packet, to the agent",
        Send::Target => "GRANT with the agent to the target",
        Send::Done => "DONE to the sender",
        Send::Refused => "REFUSED to the sender",
        Send::Ack => "ACK to the requester",
        Send::Gone => "ERROR (not held) to the requester",
    }
}

/// What stands before and after the table in docs/lock-service.md.
pub const MARKS: [&str; 2] = ["<!-- decision table -->", "<!-- end of the decision table -->"];

/// The table for docs/lock-service.md. What is called exclusive is whatever is not shared.
#[must_use]
pub fn markdown() -> String {
    let mut text = String::from("| packet | lock | if | written | sent |\n|---|---|---|---|---|\n");
    for row in rows() {
        let cells = [states(row.states), conditions(&row), written(row.action), sent(row.action.send).into()];
        text.push_str(&format!("| {} | {} |\n", format!("{:?}", row.kind).to_uppercase(), cells.join(" | ")));
    }
    // An empty cell has one space.
    text.replace("|  |", "| |")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::ROWS;

    #[test]
    fn every_case_is_in_one_row_with_its_action() {
        let rows = rows();
        assert!(rows.len() <= 40, "{} rows are too many to read", rows.len());
        for case in (0..ROWS).map(Case::of_index) {
            let fitting: Vec<&Row> = rows.iter().filter(|row| row.is_for(case)).collect();
            assert!(fitting.len() == 1 && fitting[0].action == rule(case), "{case:?}: {fitting:?}");
        }
    }

    #[test]
    fn the_table_of_the_documentation_is_this_one() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/lock-service.md");
        let page = std::fs::read_to_string(page).expect("docs/lock-service.md");
        let [first, last] = MARKS;
        let between = page.split_once(first).and_then(|(_, rest)| rest.split_once(last));
        let (table, _) = between.expect("the marks around the table");
        assert!(table.trim() == markdown().trim(), "run: cargo run -p lockwork-lock-protocol --example vectors");
    }
}
