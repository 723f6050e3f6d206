//! Every engine there is, by kind.

use lockwork_engine::{Engine, EngineError, EngineKind, Options};

/// Creates an engine over an empty database.
///
/// # Errors
/// Options that are not possible, threads or processes that cannot be started, or a back end that is not on this
/// machine.
pub fn create(kind: EngineKind, options: Options) -> Result<Box<dyn Engine>, EngineError> {
    match kind {
        EngineKind::OpenclDeterministic | EngineKind::OpenclTwoPhase => lockwork_opencl::create(kind, options),
        EngineKind::Fpga => lockwork_fpga::create(options),
        EngineKind::NetworkTwoPhase | EngineKind::NetworkDeterministic => lockwork_netengine::create(kind, options),
        _ => lockwork_engine::create(kind, options),
    }
}
