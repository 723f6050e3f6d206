//! The engines that the commands offer, by name, and the options that choose one.

use clap::Args;
use lockwork_engine::{Engine, EngineError, EngineKind, Options, Settings};
use lockwork_locks::client::Locks;

use crate::Failure;

/// All engines: those of the CPU, then those that copy tables elsewhere.
#[must_use]
pub fn all() -> Vec<EngineKind> {
    let network = [lockwork_partitions::network_two_phase::<Locks>(), lockwork_partitions::NETWORK_DETERMINISTIC];
    [EngineKind::CPU, lockwork_opencl::ENGINES, &[lockwork_fpga::FPGA], &network].concat()
}

/// The engine of this name.
///
/// # Errors
/// There is no such engine.
pub fn find(name: &str) -> Result<EngineKind, Failure> {
    EngineKind::find(name, &all()).map_err(Failure::usage)
}

/// Creates one of several engines that share options; it receives those settings that it knows.
///
/// # Errors
/// As [`lockwork_engine::create`].
pub fn create(kind: EngineKind, options: &Options) -> Result<Box<dyn Engine>, EngineError> {
    lockwork_engine::create(kind, Options { settings: options.settings.of(kind), ..options.clone() })
}

/// Settings of single engines.
#[derive(Clone, Debug, Default, Args)]
#[group(skip)]
pub struct EngineOptions {
    /// A setting of one engine; may stand several times: device=N of the opencl engines, lockd=HOST:PORT of
    /// network-two-phase
    #[arg(long, value_name = "NAME=VALUE")]
    engine_option: Vec<String>,
}

impl EngineOptions {
    /// Whether the user gave any.
    #[must_use]
    pub fn are_given(&self) -> bool {
        !self.engine_option.is_empty()
    }

    /// The settings, each of which one of these engines has.
    ///
    /// # Errors
    /// A setting that none of these engines has, or that is not `NAME=VALUE`.
    pub fn settings(&self, kinds: &[EngineKind]) -> Result<Settings, Failure> {
        let mut settings = Settings::default();
        for text in &self.engine_option {
            let wrong = || Failure::usage(format!("--engine-option {text}: write NAME=VALUE, as in device=1"));
            let (name, value) = text.split_once('=').ok_or_else(wrong)?;
            settings.set(name, value);
        }
        settings.check(kinds).map_err(Failure::usage)?;
        Ok(settings)
    }

    /// The default options of an engine, with these settings.
    ///
    /// # Errors
    /// As [`Self::settings`].
    pub fn options(&self, kind: EngineKind) -> Result<Options, Failure> {
        Ok(Options { settings: self.settings(&[kind])?, ..Options::default() })
    }
}
