//! Workers of a machine, each a `lw_index`, joined by a fabric that keeps the order of each pair.

use std::collections::VecDeque;

use lockwork_random::Random;
use lockwork_verilated::{Model, Port};

use super::memory::{Behaviour, Memory, Request};
use super::tables::Table;

pub(crate) const SEARCH: u64 = 0;
pub(crate) const UPDATE: u64 = 1;
pub(crate) const INSERT: u64 = 2;
pub(crate) const REMOVE: u64 = 3;
pub(crate) const SCAN: u64 = 4;

pub(crate) const READY: u64 = 0;
pub(crate) const MISSING: u64 = 1;
pub(crate) const CONFLICT: u64 = 2;
pub(crate) const FAILED: u64 = 3;

/// A DB instruction as the softcore sends it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DbRequest {
    pub(crate) op: u64,
    pub(crate) table: u64,
    pub(crate) stamp: u64,
    pub(crate) context: u64,
    pub(crate) cp: u64,
    pub(crate) key_address: u64,
    pub(crate) limit: u64,
    pub(crate) source: u64,
    pub(crate) delta: u64,
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) worker: u64,
    pub(crate) context: u64,
    pub(crate) cp: u64,
    pub(crate) op: u64,
    pub(crate) answer: u64,
    pub(crate) granted: bool,
    pub(crate) owner: u64,
    pub(crate) entry: u64,
    pub(crate) value: u64,
}

/// What goes to the skiplist.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tree {
    pub(crate) answer: Answer,
    pub(crate) table: u64,
    pub(crate) stamp: u64,
    pub(crate) key: [u64; 4],
    pub(crate) hash: u64,
    pub(crate) limit: u64,
    pub(crate) source: u64,
    pub(crate) result: u64,
}

/// A grant that is let go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Release {
    pub(crate) owner: u64,
    pub(crate) stamp: u64,
    pub(crate) entry: u64,
}

#[derive(Clone, Copy, Debug)]
struct Ports {
    db: [Port; 3],
    release: [Port; 3],
    far_release: [Port; 3],
    far_in: [Port; 3],
    far_out: [Port; 4],
    tree: [Port; 3],
    answer: [Port; 3],
    mem: [Port; 5],
    row: [Port; 6],
    config: Port,
    reset: Port,
    busy: Port,
}

/// A request of 156 bits on its way through the fabric.
type Far = [u64; 3];

#[derive(Debug)]
pub(crate) struct Worker {
    model: Model,
    ports: Ports,
    pub(crate) db: VecDeque<DbRequest>,
    pub(crate) releases: VecDeque<Release>,
    pub(crate) answers: Vec<Answer>,
    pub(crate) trees: Vec<Tree>,
    /// Rows to be read: (stamp, table, hash).
    pub(crate) rows: VecDeque<(u64, u64, u64)>,
    /// What became of them: (verdict, decision word).
    pub(crate) verdicts: Vec<(u64, u64)>,
    arriving: Vec<VecDeque<(u64, Far)>>,
    offered: Option<(usize, Far)>,
    /// Of other workers, and when they come.
    far_releases: VecDeque<(u64, Release)>,
}

#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) workers: Vec<Worker>,
    pub(crate) memory: Memory,
    pub(crate) now: u64,
    pub(crate) random: Random,
    /// How many of 100 cycles an output is taken in, how many an input is offered in.
    pub(crate) eager: u64,
}

fn ports(model: &Model) -> Ports {
    let port = |name: &str| model.port(name).expect("a port of lw_index");
    Ports {
        db: ["db_valid_i", "db_ready_o", "db_req_i"].map(port),
        release: ["release_valid_i", "release_ready_o", "release_i"].map(port),
        far_release: ["far_release_valid_i", "far_release_ready_o", "far_release_i"].map(port),
        far_in: ["far_valid_i", "far_ready_o", "far_req_i"].map(port),
        far_out: ["far_valid_o", "far_ready_i", "far_dest_o", "far_req_o"].map(port),
        tree: ["tree_valid_o", "tree_ready_i", "tree_o"].map(port),
        answer: ["answer_valid_o", "answer_ready_i", "answer_o"].map(port),
        mem: ["mem_valid_o", "mem_ready_i", "mem_req_o", "mem_rsp_valid_i", "mem_rsp_i"].map(port),
        row: ["row_valid_i", "row_ready_o", "row_i", "row_valid_o", "row_verdict_o", "row_entry_o"].map(port),
        config: port("config_i"),
        reset: port("rst_ni"),
        busy: port("busy_o"),
    }
}

impl Machine {
    /// Workers as `first`, reset, with these tables.
    pub(crate) fn new(first: Model, workers: usize, bytes: usize, behaviour: Behaviour, seed: u64) -> Self {
        let mut random = Random(seed);
        let models: Vec<_> = (0..workers).map(|_| first.again(random.next_u64())).collect();
        let worker = |(number, mut model): (usize, Model)| {
            let ports = ports(&model);
            model.set(ports.reset, 0);
            model.set(model.port("worker_i").expect("a port"), number as u64);
            model.tick();
            model.set(ports.reset, 1);
            model.eval();
            Worker {
                model,
                ports,
                db: VecDeque::new(),
                releases: VecDeque::new(),
                answers: Vec::new(),
                trees: Vec::new(),
                rows: VecDeque::new(),
                verdicts: Vec::new(),
                arriving: vec![VecDeque::new(); workers],
                offered: None,
                far_releases: VecDeque::new(),
            }
        };
        let workers: Vec<_> = models.into_iter().enumerate().map(worker).collect();
        let memory = Memory::new(bytes, workers.len(), behaviour);
        Self { workers, memory, now: 0, random, eager: 100 }
    }

    /// Writes the tables and each worker's free rows, (table, worker, first, end), and waits until all are ready.
    pub(crate) fn configure(&mut self, tables: &[Table], rows: &[(u64, u64, u64, u64)]) {
        let workers = self.workers.len() as u64;
        let mut writes: Vec<_> = tables.iter().flat_map(|table| table.config(workers)).collect();
        for &(table, worker, first, end) in rows {
            writes.push((0xC000 + 32 * table + 2 * worker, first));
            writes.push((0xC000 + 32 * table + 2 * worker + 1, end));
        }
        for (address, data) in writes {
            for worker in &mut self.workers {
                let config = worker.ports.config;
                worker.model.set_bits(config, 0, 64, data);
                worker.model.set_bits(config, 64, 16, address);
                worker.model.set_bits(config, 80, 1, 1);
                worker.model.tick();
                worker.model.set_bits(config, 80, 1, 0);
                worker.model.eval();
            }
        }
        while self.is_busy() {
            self.step();
        }
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.workers.iter().any(|worker| {
            let releases = !worker.releases.is_empty() || !worker.far_releases.is_empty();
            worker.model.get(worker.ports.busy) == 1 || !worker.db.is_empty() || releases
        })
    }

    /// One cycle.
    pub(crate) fn step(&mut self) {
        for number in 0..self.workers.len() {
            let others = |release: &Release| release.owner != number as u64;
            while let Some(release) = self.workers[number].releases.pop_front_if(|release| others(release)) {
                self.workers[release.owner as usize].far_releases.push_back((self.now + 2, release));
            }
        }
        let mut sent = Vec::new();
        for number in 0..self.workers.len() {
            let ready = self.memory.is_ready(&mut self.random);
            let answer = self.memory.answer(number, self.now, &mut self.random);
            let worker = &mut self.workers[number];
            let mem = worker.cycle(number as u64, self.now, self.eager, ready, answer, &mut self.random, &mut sent);
            if let Some(request) = mem {
                self.memory.take(number, self.now, request, &mut self.random);
            }
        }
        for (from, to, request) in sent {
            self.workers[to as usize].arriving[from as usize].push_back((self.now + 2, request));
        }
        self.now += 1;
    }
}

impl Worker {
    /// Sets inputs, looks at what is taken, and ticks.
    #[expect(clippy::too_many_arguments, reason = "all that surrounds a worker")]
    fn cycle(
        &mut self,
        number: u64,
        now: u64,
        eager: u64,
        mem_ready: bool,
        mem_answer: Option<(bool, u64, u64)>,
        random: &mut Random,
        sent: &mut Vec<(u64, u64, Far)>,
    ) -> Option<Request> {
        let Ports { db, release, far_release, far_in, far_out, tree, answer, mem, row, .. } = self.ports;
        let model = &mut self.model;
        // A request that was offered stays.
        let offer_db = self.db.front().copied().filter(|_| model.get(db[0]) == 1 || random.percent(eager));
        model.set(db[0], u64::from(offer_db.is_some()));
        if let Some(request) = offer_db {
            let DbRequest { op, table, stamp, context, cp, key_address, limit, source, delta } = request;
            for (low, width, value) in [
                (0, 24, delta),
                (24, 6, source),
                (30, 16, limit),
                (46, 40, key_address),
                (86, 8, cp),
                (94, 6, context),
                (100, 4, number),
                (104, 32, stamp),
                (136, 6, table),
                (142, 3, op),
            ] {
                model.set_bits(db[2], low, width, value);
            }
        }
        let offer_release =
            self.releases.front().copied().filter(|_| model.get(release[0]) == 1 || random.percent(eager));
        model.set(release[0], u64::from(offer_release.is_some()));
        if let Some(Release { stamp, entry, .. }) = offer_release {
            model.set(release[2], stamp << 14 | entry);
        }
        let offer_far = self.far_releases.front().filter(|_| model.get(far_release[0]) == 1 || random.percent(eager));
        let offer_far = offer_far.filter(|&&(due, _)| due <= now).map(|&(_, release)| release);
        model.set(far_release[0], u64::from(offer_far.is_some()));
        if let Some(Release { stamp, entry, .. }) = offer_far {
            model.set(far_release[2], stamp << 14 | entry);
        }
        if self.offered.is_none() {
            let due = |from: &usize| self.arriving[*from].front().is_some_and(|&(due, _)| due <= now);
            let ready: Vec<usize> = (0..self.arriving.len()).filter(due).collect();
            if !ready.is_empty() && random.percent(eager) {
                let from = ready[random.below(ready.len() as u64) as usize];
                self.offered = self.arriving[from].front().map(|&(_, request)| (from, request));
            }
        }
        model.set(far_in[0], u64::from(self.offered.is_some()));
        if let Some((_, request)) = self.offered {
            for (i, &word) in request.iter().enumerate() {
                model.set_bits(far_in[2], 52 * i as u32, 52, word);
            }
        }
        model.set(row[0], u64::from(!self.rows.is_empty()));
        if let Some(&(stamp, table, hash)) = self.rows.front() {
            model.set_bits(row[2], 0, 32, hash);
            model.set_bits(row[2], 32, 6, table);
            model.set_bits(row[2], 38, 32, stamp);
        }
        for ready in [far_out[1], tree[1], answer[1]] {
            model.set(ready, u64::from(random.percent(eager)));
        }
        model.set(mem[1], u64::from(mem_ready));
        model.set(mem[3], u64::from(mem_answer.is_some()));
        if let Some((error, data, tag)) = mem_answer {
            model.set_bits(mem[4], 0, 10, tag);
            model.set_bits(mem[4], 10, 64, data);
            model.set_bits(mem[4], 74, 1, u64::from(error));
        }
        model.eval();
        let both = |model: &Model, a: Port, b: Port| model.get(a) == 1 && model.get(b) == 1;
        let db_taken = both(model, db[0], db[1]);
        if db_taken {
            self.db.pop_front();
        }
        let release_taken = both(model, release[0], release[1]);
        if release_taken {
            self.releases.pop_front();
        }
        let far_release_taken = both(model, far_release[0], far_release[1]);
        if far_release_taken {
            self.far_releases.pop_front();
        }
        if both(model, far_in[0], far_in[1])
            && let Some((from, _)) = self.offered.take()
        {
            self.arriving[from].pop_front();
        }
        if both(model, row[0], row[1]) {
            self.rows.pop_front();
        }
        if model.get(row[3]) == 1 {
            self.verdicts.push((model.get(row[4]), model.get(row[5])));
        }
        if both(model, far_out[0], far_out[1]) {
            let request = [0, 1, 2].map(|i| model.get_bits(far_out[3], 52 * i, 52));
            sent.push((number, model.get(far_out[2]), request));
        }
        if both(model, answer[0], answer[1]) {
            let bits = |low, width| model.get_bits(answer[2], low, width);
            self.answers.push(Answer {
                worker: bits(78, 4),
                context: bits(72, 6),
                cp: bits(64, 8),
                op: bits(61, 3),
                answer: bits(59, 2),
                granted: bits(58, 1) == 1,
                owner: bits(54, 4),
                entry: bits(40, 14),
                value: bits(0, 40),
            });
        }
        if both(model, tree[0], tree[1]) {
            let bits = |low, width| model.get_bits(tree[2], low, width);
            let answer = Answer {
                worker: bits(382, 4),
                context: bits(376, 6),
                cp: bits(368, 8),
                op: bits(424, 3),
                answer: READY,
                granted: bits(15, 1) == 1,
                owner: number,
                entry: bits(0, 14),
                value: 0,
            };
            self.trees.push(Tree {
                answer,
                table: bits(418, 6),
                stamp: bits(386, 32),
                key: [0, 1, 2, 3].map(|i| bits(110 + 64 * i, 64)),
                hash: bits(78, 32),
                limit: bits(62, 16),
                source: bits(56, 6),
                result: bits(16, 40),
            });
        }
        let request = both(model, mem[0], mem[1]).then(|| Request {
            write: model.get_bits(mem[2], 119, 1) == 1,
            word: model.get_bits(mem[2], 82, 37),
            data: model.get_bits(mem[2], 18, 64),
            strobe: model.get_bits(mem[2], 10, 8),
            tag: model.get_bits(mem[2], 0, 10),
        });
        model.tick();
        if db_taken {
            self.model.set(db[0], 0);
        }
        if release_taken {
            self.model.set(release[0], 0);
        }
        if far_release_taken {
            self.model.set(far_release[0], 0);
        }
        request
    }
}
