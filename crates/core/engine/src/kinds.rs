//! The engines of this crate, which run on the threads of this process.

use crate::contract::{Constructor, Engine, EngineKind, Options};
use crate::deterministic::Deterministic;
use crate::deterministic_queue::DeterministicQueue;
use crate::host_engine::{HostEngine, Scheme};
use crate::optimistic::Optimistic;
use crate::serial::Serial;
use crate::timestamp::Timestamp;
use crate::two_phase::TwoPhase;

/// An engine of this crate: its scheme, and how that is made of options.
macro_rules! cpu {
    ($scheme:ty, $options:ident => $made:expr) => {{
        static CONSTRUCTOR: Constructor = Constructor {
            name: <$scheme as Scheme>::NAME,
            on_device: false,
            settings: &[],
            create: |$options: Options| {
                let (scheme, options): ($scheme, Options) = $made;
                Ok(Box::new(HostEngine::new(scheme, options)?) as Box<dyn Engine>)
            },
        };
        EngineKind::new(&CONSTRUCTOR)
    }};
}

impl EngineKind {
    /// One transaction after the other.
    pub const SERIAL: Self = cpu!(Serial, options => (Serial::default(), Options { threads: 1, ..options }));
    /// Strict two-phase locking.
    pub const TWO_PHASE: Self = cpu!(TwoPhase, options => (TwoPhase::new(options.clone()), options));
    /// Validation at commit (Silo).
    pub const OPTIMISTIC: Self = cpu!(Optimistic, options => (Optimistic::new(options.clone()), options));
    /// Timestamp ordering on partitions, which exchange messages (BionicDB).
    pub const TIMESTAMP: Self = cpu!(Timestamp, options => (Timestamp::new(options.clone()), options));
    /// Ordered lock queues, one scheduler.
    pub const DETERMINISTIC_QUEUE: Self =
        cpu!(DeterministicQueue, options => (DeterministicQueue::new(options.clone()), options));
    /// Planned batches.
    pub const DETERMINISTIC: Self = cpu!(Deterministic, options => (Deterministic::new(options.clone()), options));

    /// The engines that run on the threads of this process: they are always there.
    pub const CPU: &[Self] = &[
        Self::SERIAL,
        Self::TWO_PHASE,
        Self::OPTIMISTIC,
        Self::TIMESTAMP,
        Self::DETERMINISTIC_QUEUE,
        Self::DETERMINISTIC,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Settings, create};

    #[test]
    fn engines_are_found_by_name_and_refuse_the_settings_of_others() {
        for &kind in EngineKind::CPU {
            assert_eq!(EngineKind::find(kind.name(), EngineKind::CPU).unwrap(), kind);
            let engine = create(kind, Options { threads: 2, ..Options::default() }).unwrap();
            assert_eq!((engine.name(), engine.runs_on_device()), (kind.name(), kind.runs_on_device()));
        }
        let unknown = EngineKind::find("quantum", EngineKind::CPU).unwrap_err().to_string();
        assert_eq!(
            unknown,
            "no engine is called 'quantum'; there are serial, two-phase, optimistic, timestamp, deterministic-queue, \
             deterministic"
        );
        let mut settings = Settings::default();
        settings.set("device", "1");
        let refused = create(EngineKind::SERIAL, Options { settings: settings.clone(), ..Options::default() })
            .err()
            .unwrap()
            .to_string();
        assert_eq!(refused, "no engine that is used has a setting 'device'; they have none");
        assert_eq!(settings.get::<u16>("device", "a number").unwrap(), Some(1));
        settings.set("device", "one");
        let refused = settings.get::<u16>("device", "a number").unwrap_err().to_string();
        assert_eq!(refused, "device=one is not possible: a number");
    }
}
