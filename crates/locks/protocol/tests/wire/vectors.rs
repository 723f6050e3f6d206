//! The golden vectors are what the decider does today, cover the table, and are played through packet bytes.

use crate::scenarios;
use lockwork_lock_protocol::decider::To;
use lockwork_lock_protocol::export::rows::rows;
use lockwork_lock_protocol::packet::{HEADER, Kind, Problem, parse};
use lockwork_lock_protocol::table::{Case, ROWS};
use lockwork_lock_protocol::vectors::{Dropped, FOLDER, Model, Scenario, Setup, VectorDecider, play};
use lockwork_lock_protocol::word::{Profile, State, Word};
use std::collections::{BTreeMap, BTreeSet};

fn files() -> BTreeMap<String, String> {
    let entries =
        std::fs::read_dir(FOLDER).expect("the folder of vectors").map(|entry| entry.expect("an entry").path());
    let file = |path: std::path::PathBuf| {
        let name = path.file_stem().expect("a name").to_str().expect("a plain name").to_string();
        (name, std::fs::read_to_string(path).expect("text"))
    };
    entries.map(file).collect()
}

#[test]
fn the_files_are_what_the_decider_does() {
    let written = files();
    let stories = scenarios::all();
    let names: BTreeSet<String> = stories.iter().map(|story| story.name.clone()).collect();
    let again = "run: cargo run -p lockwork-lock-protocol --example vectors";
    assert_eq!(names.len(), stories.len(), "two stories have one name");
    assert_eq!(names, written.keys().cloned().collect(), "{again}");
    for story in stories {
        let name = story.name.clone();
        assert!(story.record().to_string() == written[&name], "{name} differs; {again}");
    }
}

#[test]
fn the_files_are_played_packet_by_packet() {
    for (name, text) in files() {
        let scenario = Scenario::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(scenario.to_string(), text, "{name}");
        let mut model = Model::new(&Setup::new(1));
        play(&scenario, &mut model).unwrap_or_else(|problem| panic!("{name}: {problem}"));
    }
}

#[test]
fn every_row_that_can_be_met_is_met() {
    let (mut met, mut problems, mut drops) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    for story in scenarios::all() {
        let mut model = Model::new(&story.setup);
        for (_, input) in &story.inputs {
            met.extend(model.row(input).map(Case::index));
            for (_, output) in model.process(input) {
                let (packet, _) = parse(&output, story.setup.key.as_ref()).expect("deciders send packets");
                problems.extend((packet.kind == Kind::Error).then_some(packet.token));
            }
        }
        drops.extend(story.record().steps.iter().filter_map(|step| step.dropped));
    }
    // No packet can match a word and have made it. A free lock is the registry's, and nobody speaks for that over a
    // network; its own agents, beside the decider, do not say anything about a free lock either but what they said
    // before.
    let strange = |case: &Case| (case.matches && case.applied) || (case.state == State::Free && case.from_agent);
    let reachable = (0..ROWS).map(Case::of_index).filter(|case| !strange(case));
    let missing: Vec<Case> = reachable.filter(|case| !met.contains(&case.index())).collect();
    assert!(missing.is_empty(), "{} rows are not met: {missing:#?}", missing.len());
    assert_eq!(met.len(), 672);
    // "No number is free" is the registry's to say.
    let of_deciders = [Problem::NoSuchLock, Problem::NoSuchSession, Problem::NoSuchMachine, Problem::NotHeld];
    assert_eq!(problems, of_deciders.map(|problem| problem as u64).into());
    let causes = [Dropped::Length, Dropped::Magic, Dropped::Version, Dropped::Tag, Dropped::Field, Dropped::Kind];
    causes.into_iter().for_each(|cause| assert!(drops.contains(&cause), "{cause:?}"));
}

#[test]
fn switches_meet_every_merged_row_from_new_locks_on() {
    let mut met = Vec::new();
    for story in scenarios::for_switches() {
        assert!(story.setup.words.is_empty() && story.setup.profile == Profile::Lean);
        let mut model = Model::new(&story.setup);
        for (_, input) in &story.inputs {
            met.extend(model.row(input));
            model.process(input);
        }
    }
    for row in rows() {
        for state in State::ALL.into_iter().filter(|state| row.states >> *state as u8 & 1 == 1) {
            assert!(met.iter().any(|case| case.state == state && row.is_for(*case)), "{state} {row:?}");
        }
    }
}

/// A decider with a mistake.
struct Broken(Model, fn(&mut Vec<(To, Vec<u8>)>), Option<u64>);

impl VectorDecider for Broken {
    fn reset(&mut self, setup: &Setup) {
        self.0.reset(setup);
    }

    fn process(&mut self, datagram: &[u8]) -> Vec<(To, Vec<u8>)> {
        let mut outputs = self.0.process(datagram);
        self.1(&mut outputs);
        outputs
    }

    fn word(&mut self, lock: u64) -> Option<(Word, u64)> {
        let (word, token) = self.0.word(lock)?;
        Some((word, if Some(lock) == self.2 { token + 1 } else { token }))
    }
}

#[test]
fn mistakes_are_found() {
    let text = &files()["workflow-2-join"];
    let scenario = Scenario::parse(text).expect("a scenario");
    let failure = |change: fn(&mut Vec<(To, Vec<u8>)>), lock| {
        play(&scenario, &mut Broken(Model::new(&scenario.setup), change, lock)).expect_err("a mistake")
    };
    assert!(failure(|outputs| outputs.truncate(1), None).contains("step 2"));
    assert!(failure(|outputs| outputs.push(outputs[0].clone()), None).contains("too much: out 1: grant"));
    assert!(failure(|outputs| outputs[0].0 = To::Source, None).contains("missing out 1: grant"));
    assert!(failure(|outputs| outputs[0].1[HEADER - 20] ^= 1, None).contains("missing out 1: grant"));
    assert!(failure(|_| {}, Some(5)).contains("has lock 5 free machine=0 incarnation=0 token=0x1"));
    // The order of answers is not part of it.
    assert_eq!(play(&scenario, &mut Broken(Model::new(&scenario.setup), |outputs| outputs.reverse(), None)), Ok(()));
}

#[test]
fn lines_that_cannot_be_read_are_named() {
    let good = &files()["workflow-2-join"];
    for (line, wrong, says) in [
        (2, "profile narrow", "'narrow' is no profile"),
        (3, "locks many", "'many' is no number"),
        (4, "first come", "Readers or writers"),
        (5, "key 00", "16 bytes"),
        (5, "key xy", "no hex"),
        (6, "machine 1", "'session=' is missing"),
        (12, "in sing shared", "'sing' is no kind"),
        (12, "in acquire hungry", "'hungry' is no field and no flag"),
        (12, "in acquire colour=3", "no field 'colour'"),
        (12, "in acquire request=3", "TASK:COUNTER"),
        (12, "in acquire sender=3", "MACHINE/SESSION"),
        (12, "in acquire sender=70000/1", "'70000' is no number that fits"),
        (12, "in acquire hops=64", "'64' is no number that fits"),
        (12, "in acquire payload=00", "1 bytes does not travel"),
        (12, "in hex 0", "'0' is no hex"),
        (13, "out 1 grant", "out MACHINE: PACKET"),
        (13, "out nobody: grant", "'nobody' is no number"),
        (13, "drop it", "'it' is no reason"),
        (14, "lock 8 shared machine=1 incarnation=1 token=0", "lock 8 of 8"),
        (14, "lock 0 open machine=1 incarnation=1 token=0", "'open' is no state"),
        (14, "lock 0 shared machine=1 incarnation=1", "'token=' is missing"),
        (14, "locks 9", "'locks 9' is not understood here"),
    ] {
        let mut lines: Vec<&str> = good.lines().collect();
        lines[line - 1] = wrong;
        let error = Scenario::parse(&lines.join("\n")).expect_err(wrong);
        assert_eq!(error.line, line, "{wrong}: {error}");
        assert!(error.to_string().contains(says), "{wrong}: {error}");
    }
    assert_eq!(Scenario::parse("out 1: grant").expect_err("no step").line, 1);
}
