//! Engines whose workers are the program that this crate has for it.

use lockwork_engine::{Engine, EngineError, EngineKind, Options};
use lockwork_netengine::NetworkEngine;

/// All engines of this crate.
pub(crate) const KINDS: [EngineKind; 2] = [EngineKind::NetworkTwoPhase, EngineKind::NetworkDeterministic];

pub(crate) fn make(kind: EngineKind, options: Options) -> Result<Box<dyn Engine>, EngineError> {
    let program = env!("CARGO_BIN_EXE_lockwork-network-worker").into();
    Ok(Box::new(match kind {
        EngineKind::NetworkTwoPhase => NetworkEngine::two_phase(options, program)?,
        _ => NetworkEngine::deterministic(options, program)?,
    }))
}
