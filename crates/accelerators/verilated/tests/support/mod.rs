//! What the tests of modules share: chance by a printed seed, and ports by name.
#![allow(dead_code, reason = "every test uses some of it")]

pub(crate) use lockwork_random::Random;
use lockwork_verilated::{Build, Model, Port};

static BUILDING: std::sync::Mutex<()> = std::sync::Mutex::new(());

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
