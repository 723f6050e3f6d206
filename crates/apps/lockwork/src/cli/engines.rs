//! The engines that this program offers, by name, and the options that choose one.

use clap::Args;
use lockwork_engine::{Engine, EngineError, EngineKind, Options, Settings};
use lockwork_locks::client::Locks;

use super::Failure;

/// All engines: those of the CPU, then those that copy tables elsewhere.
pub(super) fn all() -> Vec<EngineKind> {
    let network = [lockwork_partitions::network_two_phase::<Locks>(), lockwork_partitions::NETWORK_DETERMINISTIC];
    [EngineKind::CPU, lockwork_opencl::ENGINES, &[lockwork_fpga::FPGA], &network].concat()
}

/// The engine of this name.
pub(super) fn find(name: &str) -> Result<EngineKind, Failure> {
    EngineKind::find(name, &all()).map_err(Failure::usage)
}

/// Creates one of several engines that the same options are for: it gets those settings that it has.
pub(super) fn create(kind: EngineKind, options: &Options) -> Result<Box<dyn Engine>, EngineError> {
    lockwork_engine::create(kind, Options { settings: options.settings.of(kind), ..options.clone() })
}

/// Settings of single engines.
#[derive(Clone, Debug, Default, Args)]
#[group(skip)]
pub(super) struct EngineOptions {
    /// A setting of one engine; may stand several times: device=N of the opencl engines, lockd=HOST:PORT of
    /// network-two-phase
    #[arg(long, value_name = "NAME=VALUE")]
    engine_option: Vec<String>,
}

impl EngineOptions {
    /// Whether there is any.
    pub(super) fn are_given(&self) -> bool {
        !self.engine_option.is_empty()
    }

    /// The settings, each of which one of these engines has.
    pub(super) fn settings(&self, kinds: &[EngineKind]) -> Result<Settings, Failure> {
        let mut settings = Settings::default();
        for text in &self.engine_option {
            let wrong = || Failure::usage(format!("--engine-option {text}: write NAME=VALUE, as in device=1"));
            let (name, value) = text.split_once('=').ok_or_else(wrong)?;
            settings.set(name, value);
        }
        settings.check(kinds).map_err(Failure::usage)?;
        Ok(settings)
    }

    /// The options of an engine that has these settings, and all others as they are by default.
    pub(super) fn options(&self, kind: EngineKind) -> Result<Options, Failure> {
        Ok(Options { settings: self.settings(&[kind])?, ..Options::default() })
    }
}
