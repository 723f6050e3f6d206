//! What the tests of modules share: chance by a printed seed, and ports by name.
#![allow(dead_code, reason = "every test uses some of it")]

use lockwork_verilated::{Build, Model, Port};

static BUILDING: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// SplitMix64.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// Below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// True in `percent` of a hundred cases.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// The seed: that of `LOCKWORK_SEED`, or `default`; printed.
pub(crate) fn seed(default: u64) -> u64 {
    let seed = std::env::var("LOCKWORK_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(default);
    println!("LOCKWORK_SEED={seed}");
    seed
}

/// A module with its parameters, out of reset, all other inputs zero.
pub(crate) fn module(name: &str, parameters: &[(&str, u64)]) -> Model {
    let build = parameters.iter().fold(Build::new(name), |build, (name, value)| build.parameter(name, *value));
    // One build at a time: tests of one process would write the same files.
    let building = BUILDING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut model = build.load().unwrap_or_else(|error| panic!("{error}"));
    drop(building);
    let reset = port(&model, "rst_ni");
    model.set(reset, 0);
    (0..3).for_each(|_| model.tick());
    model.set(reset, 1);
    model.eval();
    model
}

/// The port of this name.
pub(crate) fn port(model: &Model, name: &str) -> Port {
    model.port(name).unwrap_or_else(|error| panic!("{error}"))
}
