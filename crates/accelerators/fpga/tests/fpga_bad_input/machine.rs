//! A simulated card that several engines drive, one after the other, and that the test can look at meanwhile.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockwork_conformance::engines::{Random, fill};
use lockwork_engine::{Engine, EngineError, Options};
use lockwork_fpga::card::{Card, CardError, CardMemory};
use lockwork_fpga::configurations::Configuration;
use lockwork_fpga::driver::Settings;
use lockwork_fpga::engine::FpgaEngine;
use lockwork_fpga::memory::{Behaviour, Request};
use lockwork_fpga::registers as at;
use lockwork_fpga::simulated::{SimulatedCard, Simulation};
use lockwork_procedure::block::Status;

/// See the module.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Mutex<SimulatedCard>>);

impl Shared {
    /// A small card of one worker; `None` where none can be simulated.
    pub(crate) fn new(behaviour: Behaviour) -> Option<Self> {
        lockwork_testkit::or_skip(lockwork_verilated::tools(), |_| true)?;
        let configuration = Configuration::named("small").unwrap().with_workers(1).unwrap();
        let simulation = Simulation {
            behaviour,
            assertions: true,
            memory_bytes: 64 << 20,
            sources: std::env::var_os(lockwork_fpga::create::RTL).map(Into::into),
            ..Simulation::new(configuration)
        };
        Some(Self(Arc::new(Mutex::new(SimulatedCard::new(&simulation).unwrap()))))
    }

    fn card(&self) -> MutexGuard<'_, SimulatedCard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn try_engine(&self, settings: Settings) -> Result<FpgaEngine, EngineError> {
        FpgaEngine::new(Box::new(self.clone()), Options { threads: 1, ..Options::default() }, settings)
    }

    /// A new engine on this card, which is reset.
    pub(crate) fn engine(&self, settings: Settings) -> Box<dyn Engine> {
        Box::new(self.try_engine(settings).unwrap())
    }

    pub(crate) fn read(&self, offset: u32) -> u32 {
        self.card().read_register(offset).unwrap()
    }

    pub(crate) fn write(&self, offset: u32, value: u32) {
        self.card().write_register(offset, value).unwrap();
    }

    /// A word of the catalogue.
    pub(crate) fn configure(&self, address: u32, data: u64) {
        let writes =
            [(at::CONFIG_ADDR, address), (at::CONFIG_LOW, data as u32), (at::CONFIG_HIGH, (data >> 32) as u32)];
        writes.into_iter().for_each(|(offset, value)| self.write(offset, value));
        assert_eq!(self.read(at::ERROR), 0);
    }

    pub(crate) fn behave(&self, behaviour: Behaviour) {
        self.card().memory().behave(behaviour);
    }

    /// Requests since the last call, from the first call on.
    pub(crate) fn log(&self) -> Vec<Request> {
        self.card().memory().log()
    }

    pub(crate) fn wait(&self) {
        self.card().wait().unwrap();
    }

    pub(crate) fn read_word(&self, address: u64) -> u64 {
        self.card().read_word(address).unwrap()
    }

    pub(crate) fn write_word(&self, address: u64, word: u64) {
        self.card().write(address, &word.to_le_bytes()).unwrap();
    }
}

impl CardMemory for Shared {
    fn bytes(&self) -> u64 {
        self.card().bytes()
    }

    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), CardError> {
        self.card().read(address, into)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), CardError> {
        self.card().write(address, bytes)
    }
}

impl Card for Shared {
    fn read_register(&mut self, offset: u32) -> Result<u32, CardError> {
        self.card().read_register(offset)
    }

    fn write_register(&mut self, offset: u32, value: u32) -> Result<(), CardError> {
        self.card().write_register(offset, value)
    }

    fn wait(&mut self) -> Result<(), CardError> {
        self.card().wait()
    }

    fn describe(&self) -> String {
        self.card().describe()
    }
}

/// The engine takes work, and its values are right: of the accounts from 12 on every second one is there, and `deposit`
/// answers its balance.
pub(crate) fn works(engine: &mut dyn Engine) {
    let mut batch = fill(engine, &mut Random(1), &["deposit"], 30);
    for index in 0..30 {
        let account = 12 + index as i64 % 12;
        batch.block_mut(index).bytes()[32..40].copy_from_slice(&account.to_le_bytes());
    }
    engine.submit(batch).unwrap();
    let completed = engine.complete().unwrap().unwrap();
    let mut balances = std::collections::HashMap::new();
    let batch = completed.batch;
    for index in lockwork_engine::replay::serial_order(&batch, engine.serial_order()) {
        let bytes = batch.block(index).bytes();
        let word = |at: usize| i64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let there = word(32) % 2 == 0;
        let expected = if there { Status::Committed } else { Status::Aborted };
        assert_eq!(batch.block(index).status(), Some(expected), "account {}", word(32));
        if there {
            // Whatever was there before, from the first on it goes on by what is paid in.
            let balance = balances.entry(word(32)).or_insert(word(48) - word(40));
            *balance += word(40);
            assert_eq!(word(48), *balance, "account {}", word(32));
        }
    }
    assert_eq!(balances.len(), 6);
}
