//! The module with memory, decision words and tables around it.

use std::collections::{BTreeMap, BTreeSet};

use lockwork_verilated::{Build, Model, Port};

use super::decisions::{Decisions, Verdict};
use super::memory::{Access, Memory, Timing};
use super::random::Random;
use super::table::{Table, hash};

/// Bytes of the result buffer of a context, and of what follows it and must not be written.
const BUFFER: u64 = 4096;
const CONTEXTS: u64 = 64;
/// (offset, bytes, from one to the next) of the scan sources.
pub(crate) const SOURCES: [(u64, u64, u64); 5] = [(16, 8, 8), (51, 8, 8), (53, 13, 16), (16, 69, 72), (80, 5, 8)];

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) slots: u64,
    pub(crate) key_words: u64,
    pub(crate) scanners: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Op {
    #[default]
    Search,
    Update,
    Insert,
    Remove,
    Scan,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) op: Op,
    pub(crate) table: u64,
    pub(crate) stamp: u64,
    pub(crate) context: u64,
    pub(crate) key: Vec<u64>,
    pub(crate) granted: Option<u64>,
    pub(crate) limit: u64,
    pub(crate) source: u64,
    pub(crate) buffer: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Answer {
    pub(crate) context: u64,
    /// 0 ready, 1 missing, 2 conflict, 3 failed.
    pub(crate) kind: u64,
    pub(crate) granted: bool,
    pub(crate) entry: u64,
    pub(crate) value: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Events {
    pub(crate) accepted: bool,
    pub(crate) answer: Option<Answer>,
}

#[derive(Debug)]
pub(crate) struct Bench {
    model: Model,
    ports: BTreeMap<String, Port>,
    pub(crate) memory: Memory,
    pub(crate) decisions: Decisions,
    pub(crate) tables: Vec<Table>,
    judged: bool,
    random: Random,
    /// Cycle, tag, time, entry.
    asked: Vec<(u64, u64, u64, u64)>,
    buffers: u64,
    /// Hashes of keys that were ever used.
    hashes: BTreeSet<u64>,
    quiet: u64,
}

impl Bench {
    pub(crate) fn build(shape: Shape) -> Model {
        Build::new("lw_skiplist")
            .parameter("Slots", shape.slots)
            .parameter("KeyWords", shape.key_words)
            .parameter("Scanners", shape.scanners)
            .parameter("Links", if shape.slots > 16 { 256 } else { 64 })
            .load()
            .expect("it builds")
    }

    pub(crate) fn new(model: &Model, seed: u64, timing: Timing, tables: &[Table]) -> Self {
        let model = model.again(seed);
        let names = "rst_ni config_i clear_i idle_o req_valid_i req_ready_o req_op_i req_table_i req_stamp_i req_ret_i \
                     req_key_i req_hash_i req_granted_i req_entry_i req_limit_i req_source_i req_buffer_i mem_valid_o \
                     mem_ready_i mem_req_o mem_valid_i mem_rsp_i grant_valid_o grant_ready_i grant_stamp_o \
                     grant_hash_o grant_table_o grant_tag_o grant_valid_i grant_tag_i grant_i grant_entry_i \
                     release_valid_o release_ready_i release_stamp_o release_entry_o response_valid_o \
                     response_ready_i response_o";
        let ports = names.split_whitespace().map(|name| (name.to_string(), model.port(name).unwrap())).collect();
        let buffers = 4096;
        let mut at = buffers + CONTEXTS * BUFFER;
        let tables: Vec<Table> = tables
            .iter()
            .map(|table| {
                let head = at + table.before();
                let first = head + table.stride();
                at = first + table.rows * table.stride();
                Table { head, first, ..table.clone() }
            })
            .collect();
        let mut bench = Self {
            model,
            ports,
            memory: Memory::new(at, seed, timing),
            decisions: Decisions::new(),
            tables,
            judged: true,
            random: Random::new(seed ^ 0xBE7C4),
            asked: Vec::new(),
            buffers,
            hashes: BTreeSet::new(),
            quiet: 0,
        };
        bench.start();
        bench
    }

    fn get(&self, name: &str) -> u64 {
        self.model.get(self.ports[name])
    }

    fn set(&mut self, name: &str, value: u64) {
        self.model.set(self.ports[name], value);
    }

    fn start(&mut self) {
        for name in ["clear_i", "req_valid_i", "mem_valid_i", "grant_valid_i", "rst_ni"] {
            self.set(name, 0);
        }
        self.model.set_bits(self.ports["config_i"], 80, 1, 0);
        self.model.tick();
        self.model.tick();
        self.set("rst_ni", 1);
        let sources =
            SOURCES.iter().zip(0xD000..).map(|(&(offset, bytes, next), at)| (at, offset | bytes << 16 | next << 32));
        let config: Vec<_> = self.tables.iter().flat_map(Table::config).chain(sources).collect();
        let port = self.ports["config_i"];
        for (address, data) in config {
            self.model.set_bits(port, 0, 64, data);
            self.model.set_bits(port, 64, 16, address);
            self.model.set_bits(port, 80, 1, 1);
            self.model.tick();
        }
        self.model.set_bits(port, 80, 1, 0);
    }

    /// Whether decision words are asked, or everything is granted.
    pub(crate) fn set_judged(&mut self, judged: bool) {
        self.judged = judged;
    }

    pub(crate) fn cycles(&self) -> u64 {
        self.model.cycles()
    }

    pub(crate) fn buffer(&self, context: u64) -> u64 {
        self.buffers + context * BUFFER
    }

    fn offer(&mut self, request: &Request) {
        let ret = request.context << 8 | request.context;
        self.set("req_op_i", request.op as u64);
        self.set("req_table_i", request.table);
        self.set("req_stamp_i", request.stamp);
        self.set("req_ret_i", ret);
        let port = self.ports["req_key_i"];
        for word in 0..port.bits / 64 {
            let value = request.key.get(word as usize).copied().unwrap_or_else(|| self.random.any());
            self.model.set_bits(port, 64 * word, 64, value);
        }
        self.set("req_hash_i", u64::from(hash(&request.key)));
        self.hashes.insert(u64::from(hash(&request.key)));
        self.set("req_granted_i", u64::from(request.granted.is_some()));
        self.set("req_entry_i", request.granted.unwrap_or(0));
        self.set("req_limit_i", request.limit);
        self.set("req_source_i", request.source);
        self.set("req_buffer_i", request.buffer / 8);
    }

    /// One cycle, in which `request` is offered.
    pub(crate) fn step(&mut self, request: Option<&Request>) -> Events {
        let answer = self.memory.step();
        self.set("mem_valid_i", u64::from(answer.is_some()));
        if let Some((tag, data, refused)) = answer {
            let port = self.ports["mem_rsp_i"];
            self.model.set_bits(port, 0, 10, tag);
            self.model.set_bits(port, 10, 64, data);
            self.model.set_bits(port, 74, 1, u64::from(refused));
        }
        let mem_ready = self.memory.is_ready();
        self.set("mem_ready_i", u64::from(mem_ready));
        self.set("req_valid_i", u64::from(request.is_some()));
        if let Some(request) = request {
            self.offer(request);
        }
        let ready = |bench: &mut Self| !bench.judged || bench.random.of(0..4) > 0;
        let (grant, release, response) = (ready(self), ready(self), ready(self));
        self.set("grant_ready_i", u64::from(grant));
        self.set("release_ready_i", u64::from(release));
        self.set("response_ready_i", u64::from(response));
        self.answer_grants();
        self.model.eval();

        let mut events = Events { accepted: request.is_some() && self.get("req_ready_o") == 1, answer: None };
        if mem_ready && self.get("mem_valid_o") == 1 {
            let port = self.ports["mem_req_o"];
            let bits = |low, width| self.model.get_bits(port, low, width);
            let access = Access {
                tag: bits(0, 10),
                strobe: bits(10, 8),
                data: bits(18, 64),
                address: bits(82, 37) * 8,
                write: bits(119, 1) == 1,
            };
            self.memory.ask(access);
        }
        if grant && self.get("grant_valid_o") == 1 {
            assert!(self.hashes.contains(&self.get("grant_hash_o")), "a grant is asked for what is no key");
            let entry = Decisions::entry(self.get("grant_table_o"), self.get("grant_hash_o") as u32);
            let wait = if self.judged { self.random.of(2..12) } else { 4 };
            self.asked.push((self.cycles() + wait, self.get("grant_tag_o"), self.get("grant_stamp_o"), entry));
        }
        if release && self.get("release_valid_o") == 1 && self.judged {
            self.decisions.release(self.get("release_entry_o"), self.get("release_stamp_o"));
        }
        if response && self.get("response_valid_o") == 1 {
            let port = self.ports["response_o"];
            let bits = |low, width| self.model.get_bits(port, low, width);
            assert_eq!(bits(64, 8), bits(72, 6), "cp and context of the answer");
            events.answer = Some(Answer {
                context: bits(72, 6),
                kind: bits(59, 2),
                granted: bits(58, 1) == 1,
                entry: bits(40, 14),
                value: bits(0, 40),
            });
        }
        self.quiet = if events.accepted || events.answer.is_some() { 0 } else { self.quiet + 1 };
        assert!(self.quiet < 300_000, "it hangs, idle {}", self.get("idle_o"));
        self.model.tick();
        events
    }

    fn answer_grants(&mut self) {
        let now = self.cycles();
        let due = self.asked.iter().position(|asked| asked.0 <= now);
        self.set("grant_valid_i", u64::from(due.is_some()));
        if let Some((_, tag, time, entry)) = due.map(|place| self.asked.swap_remove(place)) {
            let verdict = if self.judged { self.decisions.ask(entry, time, false) } else { Verdict::Granted };
            self.set("grant_tag_i", tag);
            self.set("grant_i", verdict as u64);
            self.set("grant_entry_i", entry);
        }
    }

    /// Lets everything end.
    pub(crate) fn settle(&mut self) {
        let mut left = 2_000;
        while left > 0 {
            assert!(self.step(None).answer.is_none(), "an answer that nobody waits for");
            left -= 1;
        }
        assert_eq!(self.get("idle_o"), 1);
    }

    /// Compares the lists of a table, by its place, with (key, row, live).
    pub(crate) fn check_lists(&self, table: usize, expected: &[(Vec<u64>, u64, bool)]) {
        let table = &self.tables[table];
        let mut expected = expected.to_vec();
        expected.sort();
        for level in 0..table.levels {
            let mut at = table.head;
            let list = || {
                let mut list = Vec::new();
                let mut at = table.head;
                while list.len() <= expected.len() {
                    at = self.memory.word(table.link(at, level)) & 0xFF_FFFF_FFFF;
                    if at == 0 {
                        break;
                    }
                    list.push((at, self.memory.word(at + 8)));
                }
                list
            };
            for (key, row, live) in expected.iter().filter(|(key, ..)| table.height(hash(key)) > level) {
                at = self.memory.word(table.link(at, level)) & 0xFF_FFFF_FFFF;
                let number = table.number;
                assert_eq!(at, *row, "level {level} of table {number}: {key:x?} is next; there are {:x?}", list());
                if level == 0 {
                    self.check_row(table, key, at, *live);
                }
            }
            let end = self.memory.word(table.link(at, level)) & 0xFF_FFFF_FFFF;
            assert_eq!(end, 0, "level {level} of table {} ends", table.number);
        }
    }

    fn check_row(&self, table: &Table, key: &[u64], row: u64, live: bool) {
        assert_eq!(self.memory.byte(row + 7), u8::from(live), "{key:x?} is live");
        for (word, &value) in key.iter().enumerate() {
            let address = if word == 0 { row + 8 } else { row - 8 * word as u64 };
            assert_eq!(self.memory.word(address), value, "word {word} of {key:x?}");
        }
        for (byte, place) in table.image.iter().enumerate() {
            if let Some((place, flip)) = place {
                let normal = (key[byte / 8] >> (56 - 8 * (byte % 8))) as u8;
                let image = self.memory.byte(row + 16 + place);
                assert_eq!(image, normal ^ u8::from(*flip) << 7, "image byte {place} of {key:x?}");
            }
        }
    }
}
