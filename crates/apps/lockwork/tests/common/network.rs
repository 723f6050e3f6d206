//! Engines whose workers are the program that this crate has for it.

use lockwork_engine::{Engine, EngineError, EngineKind, Options};
use lockwork_netengine::{ENGINES, NETWORK_TWO_PHASE, NetworkEngine};

/// All engines of this crate.
pub(crate) const KINDS: &[EngineKind] = ENGINES;

pub(crate) fn make(kind: EngineKind, options: Options) -> Result<Box<dyn Engine>, EngineError> {
    let program = env!("CARGO_BIN_EXE_lockwork-network-worker").into();
    Ok(Box::new(match kind == NETWORK_TWO_PHASE {
        true => NetworkEngine::two_phase(options, program)?,
        false => NetworkEngine::deterministic(options, program)?,
    }))
}
