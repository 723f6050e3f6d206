//! Engines whose workers are the program that this crate has for it.

use lockwork_engine::{Engine, EngineError, Options};
use lockwork_netengine::NetworkEngine;

pub(crate) fn make(options: Options) -> Result<Box<dyn Engine>, EngineError> {
    Ok(Box::new(NetworkEngine::new(options, env!("CARGO_BIN_EXE_lockwork-network-worker").into())?))
}
