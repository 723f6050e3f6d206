//! Engines whose worker processes run the command `lockwork`.

use lockwork_engine::{Engine, EngineError, EngineKind, Options};
use lockwork_locks::client::Locks;
use lockwork_partitions::{NETWORK_DETERMINISTIC, NetworkEngine, network_two_phase};

/// The engines of several processes.
pub(crate) const KINDS: &[EngineKind] = &[network_two_phase::<Locks>(), NETWORK_DETERMINISTIC];

pub(crate) fn make(kind: EngineKind, options: Options) -> Result<Box<dyn Engine>, EngineError> {
    let program = env!("CARGO_BIN_EXE_lockwork").into();
    Ok(Box::new(match kind == NETWORK_DETERMINISTIC {
        true => NetworkEngine::deterministic(options, program)?,
        false => NetworkEngine::two_phase::<Locks>(options, program)?,
    }))
}
