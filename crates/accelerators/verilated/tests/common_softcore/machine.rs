//! The softcore with everything around it in Rust: memory that answers late and out of order, and an index that judges
//! by timestamp ordering.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use lockwork_conformance::engines::Random;
use lockwork_procedure::block::abort;
use lockwork_verilated::{Build, Model, Port};

use super::world::{CODE_WORDS, Found, UNDO, World};

pub(crate) const SERIAL: u64 = 0;
pub(crate) const BATCH: u64 = 1;
pub(crate) const DYNAMIC: u64 = 2;

/// How a run is made difficult.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) seed: u64,
    pub(crate) mode: u64,
    pub(crate) latency: u64,
    pub(crate) spread: u64,
    /// Cycles that an index takes for an answer.
    pub(crate) index: u64,
    /// One in so many handshakes is refused; 0: none.
    pub(crate) refuse: u64,
    /// One in so many DB instructions meets a conflict without a reason, or fails; 0: none.
    pub(crate) conflict: u64,
    pub(crate) fail: u64,
    /// One in so many memory answers is an error; 0: none.
    pub(crate) broken: u64,
    pub(crate) undo_bytes: u64,
    pub(crate) retries: u64,
}

impl Options {
    pub(crate) fn new(seed: u64, mode: u64) -> Self {
        Self {
            seed,
            mode,
            latency: 20,
            spread: 60,
            index: 60,
            refuse: 4,
            conflict: 0,
            fail: 0,
            broken: 0,
            undo_bytes: 4096,
            retries: 200,
        }
    }
}

/// A decision word.
#[derive(Clone, Debug, Default)]
struct Word {
    write: u64,
    read: u64,
    dirty: bool,
    holders: Vec<u64>,
}

enum Verdict {
    Granted,
    Wait,
    Conflict,
}

impl Word {
    fn judge(&mut self, time: u64, write: bool) -> Verdict {
        if self.dirty && self.write != time {
            return if self.write < time { Verdict::Wait } else { Verdict::Conflict };
        }
        if !self.dirty {
            if self.write > time || (write && self.read > time) {
                return Verdict::Conflict;
            }
            if write {
                if self.holders.iter().any(|&holder| holder != time) {
                    return Verdict::Wait;
                }
                (self.dirty, self.write) = (true, time);
            } else {
                self.read = self.read.max(time);
            }
        }
        self.holders.push(time);
        Verdict::Granted
    }

    fn release(&mut self, time: u64) {
        let at = self.holders.iter().position(|&holder| holder == time).expect("a grant is released once");
        self.holders.swap_remove(at);
        if self.dirty && self.write == time && self.holders.is_empty() {
            self.dirty = false;
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Access {
    op: u64,
    table: usize,
    time: u64,
    back: u64,
    key: usize,
    limit: usize,
    source: usize,
    delta: i64,
}

#[derive(Clone, Debug)]
pub(crate) struct Done {
    pub(crate) block: usize,
    pub(crate) status: u8,
    pub(crate) code: u16,
    pub(crate) stamp: u64,
    pub(crate) cycle: u64,
}

/// What the trace told of one execution.
#[derive(Clone, Debug, Default)]
pub(crate) struct Execution {
    pub(crate) registers: HashMap<u8, u64>,
    pub(crate) writes: Vec<(u8, u64)>,
    /// First parts of registers, and which bytes they are.
    parts: HashMap<u8, (u64, u64)>,
}

impl Execution {
    fn write(&mut self, register: u8, bytes: u64, value: u64) {
        let mask = (0..8).filter(|at| bytes >> at & 1 == 1).map(|at| 0xFF << (8 * at)).sum::<u64>();
        let (before, old) = self.parts.remove(&register).unwrap_or((0, 0));
        assert_eq!(before & bytes, 0, "r{register} is written twice at a time");
        let (bytes, value) = (before | bytes, old | (value & mask));
        if bytes == 0xFF {
            self.registers.insert(register, value);
            self.writes.push((register, value));
        } else {
            self.parts.insert(register, (bytes, value));
        }
    }

    /// By register: its values, in order.
    pub(crate) fn histories(writes: &[(u8, u64)]) -> HashMap<u8, Vec<u64>> {
        let mut histories: HashMap<u8, Vec<u64>> = HashMap::new();
        writes.iter().for_each(|&(register, value)| histories.entry(register).or_default().push(value));
        histories
    }
}

struct Memory {
    write: bool,
    at: usize,
    data: u64,
    strobe: u64,
    tag: u64,
}

pub(crate) struct Machine {
    pub(crate) model: Model,
    pub(crate) world: World,
    pub(crate) options: Options,
    pub(crate) done: Vec<Done>,
    /// By block: its last execution.
    pub(crate) traced: HashMap<usize, Execution>,
    pub(crate) restarts: u64,
    pub(crate) conflicts: u64,
    pub(crate) waits: u64,
    /// Answer at most one DB instruction in so many cycles, at once.
    pub(crate) pace: u64,
    random: Random,
    submitted: VecDeque<usize>,
    memory: Vec<(u64, Memory)>,
    accesses: Vec<(u64, Access)>,
    words: Vec<Word>,
    entries: HashMap<(usize, Option<lockwork_procedure::key::Key>), usize>,
    running: HashMap<u64, (usize, u8)>,
    stamp: u64,
    ports: HashMap<&'static str, Port>,
    pub(crate) cycle: u64,
    pub(crate) outstanding_most: usize,
    /// Rows that were given to someone, for overlap checks.
    pub(crate) grants_out: u64,
}

const PORTS: &[&str] = &[
    "rst_ni",
    "config_i",
    "worker_i",
    "mode_i",
    "max_inflight_i",
    "max_retries_i",
    "undo_base_i",
    "undo_bytes_i",
    "start_stamp_i",
    "start_o",
    "submit_valid_i",
    "submit_ready_o",
    "submit_addr_i",
    "done_valid_o",
    "done_ready_i",
    "done_block_o",
    "done_status_o",
    "done_code_o",
    "done_stamp_o",
    "db_valid_o",
    "db_ready_i",
    "db_op_o",
    "db_table_o",
    "db_stamp_o",
    "db_return_o",
    "db_key_addr_o",
    "db_limit_o",
    "db_source_o",
    "db_delta_o",
    "response_valid_i",
    "response_i",
    "release_valid_o",
    "release_ready_i",
    "release_owner_o",
    "release_o",
    "mem_valid_o",
    "mem_ready_i",
    "mem_o",
    "mem_rsp_valid_i",
    "mem_rsp_i",
    "idle_o",
    "stuck_o",
    "states_o",
    "trace_write_o",
    "trace_write_ctx_o",
    "trace_write_gp_o",
    "trace_write_bytes_o",
    "trace_write_value_o",
    "trace_begin_o",
    "trace_begin_ctx_o",
    "trace_begin_block_o",
    "trace_begin_gp_o",
];

/// Tests that need the same module wait for the one that builds it.
static BUILDING: Mutex<()> = Mutex::new(());

pub(crate) fn build(contexts: u32, grants: u32) -> Model {
    let _building = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../hardware/rtl");
    let build = Build::new("lw_softcore").sources(&root).parameter("Contexts", contexts).parameter("Grants", grants);
    build.parameter("CodeWords", CODE_WORDS).parameter("Procedures", 128).parameter("WatchdogBits", 16).load().unwrap()
}

impl Machine {
    pub(crate) fn new(model: Model, world: World, options: Options, catalogue: &[(u16, u64)]) -> Self {
        let ports = PORTS.iter().map(|&name| (name, model.port(name).unwrap())).collect();
        let mut machine = Self {
            model,
            world,
            random: Random(options.seed),
            options,
            done: Vec::new(),
            traced: HashMap::new(),
            restarts: 0,
            conflicts: 0,
            waits: 0,
            pace: 0,
            submitted: VecDeque::new(),
            memory: Vec::new(),
            accesses: Vec::new(),
            words: Vec::new(),
            entries: HashMap::new(),
            running: HashMap::new(),
            stamp: 1,
            ports,
            cycle: 0,
            outstanding_most: 0,
            grants_out: 0,
        };
        machine.set("rst_ni", 0);
        machine.set("worker_i", 3);
        machine.set("mode_i", machine.options.mode);
        machine.set("max_inflight_i", 0);
        machine.set("max_retries_i", machine.options.retries);
        machine.set("undo_base_i", UNDO as u64);
        machine.set("undo_bytes_i", machine.options.undo_bytes);
        for port in ["submit_valid_i", "response_valid_i", "mem_rsp_valid_i", "done_ready_i", "db_ready_i"] {
            machine.set(port, 0);
        }
        machine.set("release_ready_i", 0);
        machine.set("mem_ready_i", 0);
        machine.bits("config_i", 80, 1, 0);
        machine.model.tick();
        machine.model.tick();
        machine.set("rst_ni", 1);
        for &(address, value) in catalogue {
            machine.bits("config_i", 0, 64, value);
            machine.bits("config_i", 64, 16, u64::from(address));
            machine.bits("config_i", 80, 1, 1);
            machine.model.tick();
        }
        machine.bits("config_i", 80, 1, 0);
        machine
    }

    pub(crate) fn set(&mut self, port: &'static str, value: u64) {
        self.model.set(self.ports[port], value);
    }

    pub(crate) fn get(&self, port: &'static str) -> u64 {
        self.model.get(self.ports[port])
    }

    fn bits(&mut self, port: &'static str, low: u32, width: u32, value: u64) {
        self.model.set_bits(self.ports[port], low, width, value);
    }

    fn refuses(&mut self) -> bool {
        self.options.refuse != 0 && self.random.below(self.options.refuse) == 0
    }

    fn one_in(&mut self, n: u64) -> bool {
        n != 0 && self.random.below(n) == 0
    }

    pub(crate) fn submit(&mut self, block: usize) {
        self.submitted.push_back(block);
    }

    /// Runs until all blocks are completed.
    pub(crate) fn finish(&mut self) {
        let mut last = (self.cycle, self.done.len());
        while !(self.submitted.is_empty() && self.get("idle_o") == 1 && self.memory.is_empty()) {
            self.step();
            if self.done.len() != last.1 {
                last = (self.cycle, self.done.len());
            }
            assert!(
                self.cycle < last.0 + 300_000,
                "seed {}: nothing completed after {} blocks, states {:#x}, accesses {:?}, stuck {:#x}",
                self.options.seed,
                self.done.len(),
                self.get("states_o"),
                self.accesses,
                self.get("stuck_o"),
            );
        }
        assert!(self.words.iter().all(|word| word.holders.is_empty()), "grants are left");
        assert_eq!(self.grants_out, 0);
    }

    pub(crate) fn step(&mut self) {
        // Inputs of this cycle.
        let ready = !self.refuses();
        self.set("mem_ready_i", u64::from(ready));
        let ready = !self.refuses();
        self.set("db_ready_i", u64::from(ready));
        let ready = !self.refuses();
        self.set("release_ready_i", u64::from(ready));
        let ready = !self.refuses();
        self.set("done_ready_i", u64::from(ready));
        self.set("start_stamp_i", self.stamp);
        self.set("submit_valid_i", u64::from(!self.submitted.is_empty()));
        if let Some(&block) = self.submitted.front() {
            self.set("submit_addr_i", block as u64);
        }
        self.answer_memory();
        self.answer_index();
        self.model.eval();
        // What happens in this cycle.
        if self.get("submit_valid_i") & self.get("submit_ready_o") == 1 {
            self.submitted.pop_front();
        }
        let began = self.get("start_o") == 1;
        if self.get("trace_begin_o") == 1 {
            let block = self.get("trace_begin_block_o") as usize;
            let context = self.get("trace_begin_ctx_o");
            if block != 0 {
                self.running.insert(context, (block, self.get("trace_begin_gp_o") as u8));
            } else {
                self.restarts += 1;
            }
            let block = self.running[&context].0;
            self.traced.insert(block, Execution::default());
        }
        if self.get("trace_write_o") == 1 {
            let (block, base) = self.running[&self.get("trace_write_ctx_o")];
            let register = (self.get("trace_write_gp_o") as u8).wrapping_sub(base);
            let (bytes, value) = (self.get("trace_write_bytes_o"), self.get("trace_write_value_o"));
            self.traced.get_mut(&block).expect("it began").write(register, bytes, value);
        }
        if self.get("mem_valid_o") & self.get("mem_ready_i") == 1 {
            let port = self.ports["mem_o"];
            let get = |low, width| self.model.get_bits(port, low, width);
            let request = Memory {
                write: get(119, 1) == 1,
                at: (get(82, 37) as usize) << 3,
                data: get(18, 64),
                strobe: get(10, 8),
                tag: get(0, 10),
            };
            let due = self.cycle + self.options.latency + self.random.below(self.options.spread + 1);
            self.memory.push((due, request));
            self.outstanding_most = self.outstanding_most.max(self.memory.len());
        }
        if self.get("db_valid_o") & self.get("db_ready_i") == 1 {
            let delta = (self.get("db_delta_o") << 40) as i64 >> 40;
            let access = Access {
                op: self.get("db_op_o"),
                table: self.get("db_table_o") as usize,
                time: self.get("db_stamp_o"),
                back: self.get("db_return_o"),
                key: self.get("db_key_addr_o") as usize,
                limit: self.get("db_limit_o") as usize,
                source: self.get("db_source_o") as usize,
                delta,
            };
            let due = match self.pace {
                0 => self.cycle + 2 + self.random.below(self.options.index),
                _ => self.cycle + self.options.index,
            };
            self.accesses.push((due, access));
        }
        if self.get("release_valid_o") & self.get("release_ready_i") == 1 {
            let port = self.ports["release_o"];
            let get = |low, width| self.model.get_bits(port, low, width);
            assert_eq!((self.get("release_owner_o"), get(153, 3)), (3, 5), "a release of this worker");
            self.grants_out -= 1;
            self.words[get(0, 32) as usize].release(get(115, 32));
        }
        if self.get("done_valid_o") & self.get("done_ready_i") == 1 {
            self.done.push(Done {
                block: self.get("done_block_o") as usize,
                status: self.get("done_status_o") as u8,
                code: self.get("done_code_o") as u16,
                stamp: self.get("done_stamp_o"),
                cycle: self.cycle,
            });
        }
        self.model.tick();
        self.stamp += u64::from(began);
        self.cycle += 1;
    }

    fn answer_memory(&mut self) {
        let cycle = self.cycle;
        let due: Vec<usize> = (0..self.memory.len()).filter(|&at| self.memory[at].0 <= cycle).collect();
        self.set("mem_rsp_valid_i", u64::from(!due.is_empty()));
        if due.is_empty() {
            return;
        }
        let chosen = due[self.random.below(due.len() as u64) as usize];
        let (_, request) = self.memory.swap_remove(chosen);
        let broken = self.one_in(self.options.broken) || request.at + 8 > self.world.bytes.len();
        let mut data = self.random.below(u64::MAX);
        if !broken {
            let word = &mut self.world.bytes[request.at..request.at + 8];
            if request.write {
                for (at, byte) in word.iter_mut().enumerate().filter(|(at, _)| request.strobe >> at & 1 == 1) {
                    *byte = (request.data >> (8 * at)) as u8;
                }
            } else {
                data = u64::from_le_bytes(word.try_into().unwrap());
            }
        }
        self.bits("mem_rsp_i", 0, 10, request.tag);
        self.bits("mem_rsp_i", 10, 64, data);
        self.bits("mem_rsp_i", 74, 1, u64::from(broken));
    }

    fn answer_index(&mut self) {
        self.set("response_valid_i", 0);
        if self.pace != 0 && !self.cycle.is_multiple_of(self.pace) {
            return;
        }
        let cycle = self.cycle;
        let due: Vec<usize> = (0..self.accesses.len()).filter(|&at| self.accesses[at].0 <= cycle).collect();
        if due.is_empty() {
            return;
        }
        // Instructions of one transaction take effect in order.
        let chosen = if self.pace != 0 { due[0] } else { due[self.random.below(due.len() as u64) as usize] };
        let access = self.accesses[chosen].1;
        if self.pace == 0 && (0..chosen).any(|at| self.accesses[at].1.back >> 8 == access.back >> 8) {
            return;
        }
        let image = self.world.image(access.table, access.key);
        let key = self.world.formats[access.table].encode(&image);
        // Tables that are scanned have one word each.
        let of = (access.table, (!self.world.schemas[access.table].is_ordered()).then_some(key));
        let count = self.entries.len();
        let entry = *self.entries.entry(of).or_insert(count);
        self.words.resize(self.entries.len(), Word::default());
        let (conflict, fail) = (self.one_in(self.options.conflict), self.one_in(self.options.fail));
        let (answer, granted, value) = if conflict {
            (2, false, 0)
        } else if fail {
            (3, false, 0xFF11)
        } else {
            match self.words[entry].judge(access.time, matches!(access.op, 1..=3)) {
                Verdict::Conflict => {
                    self.conflicts += 1;
                    (2, false, 0)
                }
                Verdict::Wait => {
                    self.waits += 1;
                    self.accesses[chosen].0 = self.cycle + 8;
                    return;
                }
                Verdict::Granted => {
                    let (answer, value) = self.execute(&access, &image);
                    (answer, true, value)
                }
            }
        };
        self.accesses.remove(chosen);
        self.grants_out += u64::from(granted);
        self.set("response_valid_i", 1);
        self.bits("response_i", 0, 40, value);
        self.bits("response_i", 40, 14, entry as u64);
        self.bits("response_i", 54, 4, 3);
        self.bits("response_i", 58, 1, u64::from(granted));
        self.bits("response_i", 59, 2, answer);
        self.bits("response_i", 61, 3, access.op);
        self.bits("response_i", 64, 18, access.back);
    }

    fn execute(&mut self, access: &Access, image: &[u8]) -> (u64, u64) {
        let (found, code) = match access.op {
            0 | 1 | 3 => (self.world.find(access.table, image), abort::NOT_FOUND),
            2 => (self.world.insert(access.table, image), abort::DUPLICATE_KEY),
            _ => {
                assert_eq!(access.source >> 4, access.table, "the source of a scan");
                let buffer = (access.key as i64 + access.delta) as usize;
                let column = access.source & 15;
                (Found::Ready(self.world.scan(access.table, image, access.limit, column, buffer)), 0)
            }
        };
        match found {
            Found::Ready(value) => (0, value),
            Found::Missing => (1, u64::from(code)),
        }
    }
}
