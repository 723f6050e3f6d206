//! The verilated processor with a model of memory.
//!
//! Every access to a register is a transaction on the processor's AXI4-Lite port, cycle by cycle; memory is written and
//! read directly, as by a host whose bus is fast. The processor goes on meanwhile: time passes in every register access
//! and in [`Card::wait`], and nowhere else.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use lockwork_engine::EngineError;
use lockwork_verilated::{Build, Model, Port};

use crate::card::{Card, CardError, CardMemory};
use crate::configurations::Configuration;
use crate::memory::{Behaviour, Memory, Request};
use crate::trace::{Event, MODULES, Record, Trace};

/// The module that is simulated.
const TOP: &str = "lw_top_mem";
/// Cycles of a [`Card::wait`].
const BURST: u64 = 128;
/// A register is answered within so many cycles, or never.
const TIMEOUT: u64 = 10_000;
/// Cycles of reset.
const RESET: u64 = 8;

// Bits of `port_req_t` and `port_rsp_t` of `lw_pkg.sv`, from the lowest: unit and tag, which go back as they came, then
// the others.
const TAG_BITS: u32 = 13;
const STROBE: u32 = TAG_BITS;
const DATA: u32 = STROBE + 8;
const ADDRESS: u32 = DATA + 64;
const ADDRESS_BITS: u32 = 37;
const WRITE: u32 = ADDRESS + ADDRESS_BITS;
const REQUEST_BITS: u32 = WRITE + 1;
const ERROR: u32 = TAG_BITS + 64;
const ANSWER_BITS: u32 = ERROR + 1;

/// What is to be simulated.
#[derive(Clone, Debug)]
pub struct Simulation {
    /// The processor.
    pub configuration: Configuration,
    /// The memory.
    pub behaviour: Behaviour,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Writes a waveform to this file (VCD).
    pub waveform: Option<PathBuf>,
    /// Checks the assertions of the design, which is slower.
    pub assertions: bool,
    /// What registers begin with.
    pub seed: u64,
    /// Notes what happens inside, which is slower.
    pub trace: Option<Trace>,
    /// The folder of the design; that of this repository, if there is none.
    pub sources: Option<PathBuf>,
}

impl Simulation {
    /// A configuration with the memory of the paper's machine.
    #[must_use]
    pub fn new(configuration: Configuration) -> Self {
        Self {
            configuration,
            behaviour: Behaviour::paper(),
            memory_bytes: 2 << 30,
            waveform: None,
            assertions: false,
            seed: 1,
            trace: None,
            sources: None,
        }
    }
}

fn no_waveform(file: &Path, error: &std::io::Error) -> String {
    format!("no waveform can be written to {}: {error}", file.display())
}

/// The parameters that the top module declares: a configuration can have more.
fn parameters(folder: &Path) -> Result<Vec<String>, EngineError> {
    let file = folder.join("top").join(TOP).with_extension("sv");
    let text = std::fs::read_to_string(&file)
        .map_err(|error| EngineError::BackEndAbsent(format!("{}: {error}", file.display())))?;
    let declared = text.lines().filter_map(|line| line.trim().strip_prefix("parameter ")?.split_once('='));
    Ok(declared.filter_map(|(before, _)| before.split_whitespace().last().map(String::from)).collect())
}

#[derive(Clone, Copy, Debug)]
struct Ports {
    awvalid: Port,
    awready: Port,
    awaddr: Port,
    wvalid: Port,
    wready: Port,
    wdata: Port,
    wstrb: Port,
    bvalid: Port,
    bready: Port,
    arvalid: Port,
    arready: Port,
    araddr: Port,
    rvalid: Port,
    rready: Port,
    rdata: Port,
    rresp: Port,
    mem_valid: Port,
    mem_ready: Port,
    mem_req: Port,
    rsp_valid: Port,
    rsp: Port,
}

/// Bytes of a block that are kept when its transaction begins and when it is completed.
const TRACED_BYTES: usize = 4096;

#[derive(Debug)]
struct Tracing {
    trace: Trace,
    records: Vec<Record>,
    /// The block of each context of each worker.
    blocks: HashMap<(u8, u8), u64>,
}

/// See the module.
#[derive(Debug)]
pub struct SimulatedCard {
    model: Model,
    memory: Memory,
    ports: Ports,
    workers: usize,
    name: String,
    tracing: Option<Tracing>,
    waveform: Option<PathBuf>,
    /// Why the simulation ended, if it did.
    ended: Option<String>,
}

// SAFETY: ports are addresses inside the model, which is owned and goes with them.
unsafe impl Send for SimulatedCard {}

impl SimulatedCard {
    /// Builds the model, unless that was done before, and resets it.
    ///
    /// # Errors
    /// [`EngineError::BackEndAbsent`] when the model cannot be built here, [`EngineError::Memory`] when there is too
    /// little memory, [`EngineError::BackEnd`] when the model is none of the processor.
    pub fn new(simulation: &Simulation) -> Result<Self, EngineError> {
        let configuration = &simulation.configuration;
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../hardware/rtl");
        let folder = simulation.sources.clone().unwrap_or(folder);
        let mut build = Build::new(TOP)
            .sources(&folder)
            .fast(!simulation.assertions)
            .trace(simulation.waveform.is_some())
            .seed(simulation.seed);
        if simulation.trace.is_some() {
            build = MODULES.iter().fold(build, |build, module| build.bind(module));
        }
        let has = parameters(&folder)?;
        for (name, value) in configuration.parameters().into_iter().filter(|(name, _)| has.contains(name)) {
            build = build.parameter(&name, value);
        }
        let mut model = build.load().map_err(|error| EngineError::BackEndAbsent(error.to_string()))?;
        let port = |name: &str| model.port(name).map_err(|error| EngineError::BackEnd(error.to_string()));
        let ports = Ports {
            awvalid: port("awvalid_i")?,
            awready: port("awready_o")?,
            awaddr: port("awaddr_i")?,
            wvalid: port("wvalid_i")?,
            wready: port("wready_o")?,
            wdata: port("wdata_i")?,
            wstrb: port("wstrb_i")?,
            bvalid: port("bvalid_o")?,
            bready: port("bready_i")?,
            arvalid: port("arvalid_i")?,
            arready: port("arready_o")?,
            araddr: port("araddr_i")?,
            rvalid: port("rvalid_o")?,
            rready: port("rready_i")?,
            rdata: port("rdata_o")?,
            rresp: port("rresp_o")?,
            mem_valid: port("mem_valid_o")?,
            mem_ready: port("mem_ready_i")?,
            mem_req: port("mem_req_o")?,
            rsp_valid: port("mem_rsp_valid_i")?,
            rsp: port("mem_rsp_i")?,
        };
        let workers = ports.mem_valid.bits as usize;
        let expected = (workers as u32 * REQUEST_BITS, workers as u32 * ANSWER_BITS);
        if (ports.mem_req.bits, ports.rsp.bits) != expected {
            return Err(EngineError::BackEnd(format!(
                "the memory ports of the model have {} and {} bits, where {workers} workers have {} and {}",
                ports.mem_req.bits, ports.rsp.bits, expected.0, expected.1
            )));
        }
        if let Some(file) = &simulation.waveform {
            model.trace(file).map_err(|error| EngineError::BackEnd(no_waveform(file, &error)))?;
        }
        let reset = model.port("rst_ni").map_err(|error| EngineError::BackEnd(error.to_string()))?;
        // Reset is asynchronous: its edge comes before the first one of the clock, when registers hold anything.
        for level in [1, 0] {
            model.set(reset, level);
            model.eval();
        }
        (0..RESET).for_each(|_| model.tick());
        model.set(reset, 1);
        let name = format!("the simulated processor, configuration '{}', {workers} workers", configuration.name);
        let memory = Memory::new(simulation.memory_bytes, workers, simulation.behaviour.clone())?;
        let tracing = simulation.trace.clone();
        let tracing = tracing.map(|trace| Tracing { trace, records: Vec::new(), blocks: HashMap::new() });
        let waveform = simulation.waveform.clone();
        let mut card = Self { model, memory, ports, workers, name, tracing, waveform, ended: None };
        card.model.set(ports.wstrb, 0xF);
        card.model.set(ports.bready, 1);
        card.model.set(ports.rready, 1);
        Ok(card)
    }

    /// The memory, to change how it behaves.
    pub fn memory(&mut self) -> &mut Memory {
        &mut self.memory
    }

    /// Gives memory its turn and lets the processor settle: outputs are those of this cycle now.
    #[inline]
    fn settle(&mut self) {
        self.memory.begin();
        let Ports { mem_ready, rsp_valid, rsp, .. } = self.ports;
        let (mut ready, mut valid) = (0, 0);
        for worker in 0..self.workers {
            ready |= u64::from(self.memory.is_ready(worker)) << worker;
            if let Some(answer) = self.memory.answer(worker) {
                valid |= 1 << worker;
                let low = worker as u32 * ANSWER_BITS;
                self.model.set_bits(rsp, low, TAG_BITS, answer.tag);
                self.model.set_bits(rsp, low + TAG_BITS, 64, answer.data);
                self.model.set_bits(rsp, low + ERROR, 1, u64::from(answer.error));
            }
        }
        self.model.set(mem_ready, ready);
        self.model.set(rsp_valid, valid);
        self.model.eval();
        let asked = self.model.get(self.ports.mem_valid) & ready;
        if asked != 0 {
            (0..self.workers).filter(|worker| asked >> worker & 1 == 1).for_each(|worker| self.take(worker));
        }
    }

    fn take(&mut self, worker: usize) {
        let low = worker as u32 * REQUEST_BITS;
        let bits = |from: u32, bits: u32| self.model.get_bits(self.ports.mem_req, low + from, bits);
        let request = Request {
            write: bits(WRITE, 1) == 1,
            address: bits(ADDRESS, ADDRESS_BITS) << 3,
            data: bits(DATA, 64),
            strobe: bits(STROBE, 8) as u8,
            tag: bits(0, TAG_BITS),
        };
        self.memory.take(worker, request);
    }

    /// Does something in which the processor is clocked. An assertion of the design that fails ends the simulation, and
    /// so does a waveform that cannot be written.
    fn simulate<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> Result<T, CardError> {
        if let Some(why) = &self.ended {
            return Err(CardError::Simulation(why.clone()));
        }
        let done = catch_unwind(AssertUnwindSafe(|| f(self)))
            .map_err(|panic| panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "an assertion failed".into()));
        let done = done.and_then(|done| match &self.waveform {
            None => Ok(done),
            Some(file) => self.model.flush_waveform().map(|()| done).map_err(|error| no_waveform(file, &error)),
        });
        done.map_err(|why| {
            self.ended = Some(why.clone());
            CardError::Simulation(why)
        })
    }

    /// One cycle; `look` sees its outputs.
    #[inline]
    fn cycle<T>(&mut self, look: impl FnOnce(&Model, &Ports) -> T) -> T {
        self.settle();
        let seen = look(&self.model, &self.ports);
        self.model.tick();
        if self.tracing.is_some() {
            self.note();
        }
        seen
    }

    /// Keeps what the design has told of the cycle.
    fn note(&mut self) {
        let Some(Tracing { trace, records, blocks }) = &mut self.tracing else { return };
        let cycle = self.model.cycles();
        self.model.notes(|note| records.extend(Record::of(cycle, note)));
        let block_bytes = |address: u64, memory: &mut Memory| {
            let mut bytes = vec![0; TRACED_BYTES.min((memory.bytes() - address.min(memory.bytes())) as usize)];
            // As many as there are.
            let _ = memory.read(address, &mut bytes);
            bytes
        };
        for record in records.iter_mut() {
            match &mut record.event {
                Event::Begin { context, block, bytes, .. } => {
                    let of = (record.worker, *context);
                    if let Some(block) = *block {
                        blocks.insert(of, block);
                    }
                    *bytes = block_bytes(blocks.get(&of).copied().unwrap_or(0), &mut self.memory);
                }
                Event::Done { block, bytes, .. } => *bytes = block_bytes(*block, &mut self.memory),
                _ => {}
            }
        }
        if !records.is_empty() {
            trace.add(records);
        }
    }
}

impl CardMemory for SimulatedCard {
    fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), CardError> {
        self.memory.read(address, into)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), CardError> {
        self.memory.write(address, bytes)
    }
}

impl Card for SimulatedCard {
    fn read_register(&mut self, offset: u32) -> Result<u32, CardError> {
        let read = self.simulate(|card| {
            card.model.set(card.ports.araddr, u64::from(offset));
            card.model.set(card.ports.arvalid, 1);
            (0..TIMEOUT).find_map(|_| {
                let (taken, answer) = card.cycle(|model, ports| {
                    let answer =
                        (model.get(ports.rvalid) == 1).then(|| (model.get(ports.rdata), model.get(ports.rresp)));
                    (model.get(ports.arready) == 1, answer)
                });
                if taken {
                    card.model.set(card.ports.arvalid, 0);
                }
                answer
            })
        });
        match read? {
            None => Err(CardError::Silent { offset, cycles: TIMEOUT }),
            Some((value, 0)) => Ok(value as u32),
            Some((_, response)) => Err(CardError::Bus { offset, response: response as u8 }),
        }
    }

    /// Writes the register. A write that the processor refuses is told by its error register.
    fn write_register(&mut self, offset: u32, value: u32) -> Result<(), CardError> {
        let written = self.simulate(|card| {
            card.model.set(card.ports.awaddr, u64::from(offset));
            card.model.set(card.ports.wdata, u64::from(value));
            card.model.set(card.ports.awvalid, 1);
            card.model.set(card.ports.wvalid, 1);
            (0..TIMEOUT).any(|_| {
                let (address, data, answered) = card.cycle(|model, ports| {
                    (model.get(ports.awready) == 1, model.get(ports.wready) == 1, model.get(ports.bvalid) == 1)
                });
                if address {
                    card.model.set(card.ports.awvalid, 0);
                }
                if data {
                    card.model.set(card.ports.wvalid, 0);
                }
                answered
            })
        });
        if written? { Ok(()) } else { Err(CardError::Silent { offset, cycles: TIMEOUT }) }
    }

    fn wait(&mut self) -> Result<(), CardError> {
        self.simulate(|card| (0..BURST).for_each(|_| card.cycle(|_, _| ())))
    }

    fn cycles(&self) -> Option<u64> {
        Some(self.model.cycles())
    }

    fn describe(&self) -> String {
        self.name.clone()
    }
}
