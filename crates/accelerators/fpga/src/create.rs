//! Which card an engine gets: the one that the environment names, else a simulated one.
//!
//! | variable | what it says |
//! |---|---|
//! | `LOCKWORK_FPGA_CARD` | `registers,memory`: files to map, each `path`, `path@offset` or `path@offset:bytes` |
//! | `LOCKWORK_FPGA_CONFIGURATION` | which configuration of the processor is simulated; `paper` if none is named |
//! | `LOCKWORK_FPGA_MEMORY_MIB` | memory of the simulated card; 2048 if nothing is said |
//! | `LOCKWORK_FPGA_RTL` | folder of the design that is simulated; `hardware/rtl` of this repository if none is named |
//! | `LOCKWORK_FPGA_WAVEFORM` | file that a waveform of the simulation is written to |

use lockwork_engine::{Constructor, Engine, EngineError, EngineKind, Options};

use crate::card::Card;
use crate::configurations::{Configuration, USUAL};
use crate::engine::{FpgaEngine, settings};
use crate::mapped::{MappedCard, Window};
use crate::simulated::{SimulatedCard, Simulation};

/// Names a card.
pub const CARD: &str = "LOCKWORK_FPGA_CARD";
/// Names a configuration.
pub const CONFIGURATION: &str = "LOCKWORK_FPGA_CONFIGURATION";
/// Says how much memory a simulated card has.
pub const MEMORY_MIB: &str = "LOCKWORK_FPGA_MEMORY_MIB";
/// Names the folder of the design.
pub const RTL: &str = "LOCKWORK_FPGA_RTL";
/// Names a file for a waveform.
pub const WAVEFORM: &str = "LOCKWORK_FPGA_WAVEFORM";

/// Timestamp ordering by the transaction processor, on a card or simulated (BionicDB), with `threads` workers. Creating
/// it returns [`EngineError::BackEndAbsent`] when there is neither a card nor a simulator, [`EngineError::Setting`]
/// when a variable has a value that is not possible, [`EngineError::BackEnd`] when the card is not what was asked for.
pub const FPGA: EngineKind = EngineKind::new(&Constructor { name: "fpga", on_device: true, settings: &[], create });

fn create(options: Options) -> Result<Box<dyn Engine>, EngineError> {
    let card = match text(CARD) {
        Some(files) => mapped(&files)?,
        None => simulated(options.threads)?,
    };
    let settings = settings(&options);
    Ok(Box::new(FpgaEngine::new(card, options, settings)?))
}

/// What an engine would run on, in words.
///
/// # Errors
/// [`EngineError::BackEndAbsent`] says what is missing and how to get it, [`EngineError::Setting`] which variable has a
/// value that is not possible.
pub fn available() -> Result<String, EngineError> {
    match text(CARD) {
        Some(files) => Ok(mapped(&files)?.describe()),
        None => simulator(),
    }
}

fn text(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|value| !value.is_empty())
}

fn mapped(files: &str) -> Result<Box<dyn Card>, EngineError> {
    let Some((registers, memory)) = files.split_once(',') else {
        return Err(EngineError::BackEndAbsent(format!(
            "{CARD} is '{files}', and should name two files: those of registers and of memory, with a comma between"
        )));
    };
    let absent = |error: crate::card::CardError| EngineError::BackEndAbsent(format!("{CARD}: {error}"));
    let windows = (Window::parse(registers).map_err(absent)?, Window::parse(memory).map_err(absent)?);
    Ok(Box::new(MappedCard::open(&windows.0, &windows.1).map_err(absent)?))
}

fn simulated(workers: usize) -> Result<Box<dyn Card>, EngineError> {
    let name = text(CONFIGURATION).unwrap_or_else(|| USUAL.into());
    let mut simulation = Simulation::new(Configuration::named(&name)?.with_workers(workers)?);
    let memory = memory_bytes()?;
    simulation.memory_bytes = memory.unwrap_or(simulation.memory_bytes);
    simulation.sources = text(RTL).map(Into::into);
    simulation.waveform = text(WAVEFORM).map(Into::into);
    match SimulatedCard::new(&simulation) {
        Err(EngineError::Memory(error)) if memory.is_some() => {
            Err(EngineError::Setting(format!("{MEMORY_MIB} is {}: {error}", memory.unwrap_or(0) >> 20)))
        }
        card => Ok(Box::new(card?)),
    }
}

/// What is to be the memory of a simulated card, if somebody says.
fn memory_bytes() -> Result<Option<u64>, EngineError> {
    let Some(mib) = text(MEMORY_MIB) else { return Ok(None) };
    match mib.parse() {
        Ok(mib @ 1..=0x10_0000_u64) => Ok(Some(mib << 20)),
        _ => Err(EngineError::Setting(format!(
            "{MEMORY_MIB} is '{mib}', and should be a number of mebibytes up to 1048576"
        ))),
    }
}

fn simulator() -> Result<String, EngineError> {
    let name = text(CONFIGURATION).unwrap_or_else(|| USUAL.into());
    let configuration = Configuration::named(&name)?;
    memory_bytes()?;
    let verilator = lockwork_verilated::tools()
        .map_err(|missing| EngineError::BackEndAbsent(format!("{missing}; or name a card by {CARD}")))?;
    Ok(format!("simulated, configuration '{}', by {}", configuration.name, verilator.version))
}
