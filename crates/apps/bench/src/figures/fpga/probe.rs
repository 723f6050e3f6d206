//! What the figures of the index run: look-ups, inserts and scans, so many a transaction, and nothing else.
//!
//! As in BionicDB (section 5.5) a transaction starts all its DB instructions at once and reads nothing of the rows, so
//! what is measured is the index. Keys of partition `p` of `n` are `p`, `p + n`, `p + 2n` and so on; rows hold their
//! key times three, which a check reads. An ordered table that scans read is a skiplist on one worker, so there each
//! partition has a table of its own, with keys from 0 on.

use lockwork_procedure::block::{Batch, Status};
use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::{ColumnType, TableSchema};
use lockwork_workload::random::Random;
use lockwork_workload::{Export, Lookup, Repeat, Workload, WorkloadError};

/// Rows of a scan (BionicDB, section 5.3).
pub(super) const SCANNED: usize = 50;

/// What a transaction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Looks up rows that are there.
    Search,
    /// Inserts rows, each partition's in ascending order.
    Insert,
    /// Reads the 50 rows from a key on, of a table of the partition's own.
    Scan,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Probe {
    pub(super) what: Operation,
    /// DB instructions of a transaction.
    pub(super) each: usize,
    /// Partitions, and rows of each.
    pub(super) partitions: u64,
    pub(super) records: u64,
    /// Bytes of a row besides key and value.
    pub(super) payload: u32,
    pub(super) ordered: bool,
    /// How many of the instructions, in turn, go to other partitions than the first one's.
    pub(super) remote: bool,
    pub(super) random: Random,
    /// Procedures by id: one, or one for each table of scans.
    pub(super) ids: Vec<u32>,
    pub(super) called: u64,
}

impl Probe {
    pub(super) fn new(what: Operation, each: usize, partitions: usize, records: u64, seed: u64) -> Self {
        Self {
            what,
            each,
            partitions: partitions as u64,
            records,
            payload: 0,
            ordered: what == Operation::Scan,
            remote: false,
            random: Random::stream(seed, 7),
            ids: Vec::new(),
            called: 0,
        }
    }

    fn tables(&self) -> u64 {
        if self.ordered { self.partitions } else { 1 }
    }

    /// Row `number` of partition `home`.
    fn key(&self, home: u64, number: u64) -> u64 {
        if self.ordered { number } else { home + number * self.partitions }
    }

    fn source(&self, what: Operation, each: usize, table: u64) -> String {
        let parameters: String = (0..each).map(|i| format!("param k{i}: i64\n")).collect();
        let rows: String = match what {
            Operation::Scan => (0..each).map(|i| format!("result rows{i}: i64[{SCANNED}]\n")).collect(),
            _ => String::new(),
        };
        let start = |i: usize| match what {
            Operation::Search => format!("    search  c{i}, rows{table}, [k{i}]\n"),
            Operation::Insert => format!("    insert  c{i}, rows{table}, [k{i}]\n"),
            Operation::Scan => format!("    scan    c{i}, rows{table}.value, [k{i}], [rows{i}], {SCANNED}\n"),
        };
        let starts: String = (0..each).map(start).collect();
        let waits: String = (0..each).map(|i| format!("    ret     c{i}\n")).collect();
        let name = Self::procedure(what, each, table);
        format!("procedure {name}\ntable rows{table}\n{parameters}{rows}{starts}{waits}    commit\n")
    }

    fn procedure(what: Operation, each: usize, table: u64) -> String {
        format!("{what:?}_{each}_{table}").to_lowercase()
    }
}

impl Workload for Probe {
    fn name(&self) -> String {
        format!("{:?}", self.what).to_lowercase()
    }

    fn describe(&self) -> String {
        format!(
            "{} {:?} a transaction, {} rows in each of {} partitions",
            self.each, self.what, self.records, self.partitions
        )
    }

    fn schemas(&self) -> Vec<TableSchema> {
        let columns =
            [("key", ColumnType::I64), ("value", ColumnType::I64), ("payload", ColumnType::Bytes(self.payload))];
        let columns = if self.payload == 0 { &columns[..2] } else { &columns[..] };
        let schema = |table: u64| {
            let schema = TableSchema::new(&format!("rows{table}"), columns, 1, self.ordered).expect("a sound schema");
            schema.partition_by_hash("key").expect("the key")
        };
        (0..self.tables()).map(schema).collect()
    }

    fn row_count(&self, _: usize) -> u64 {
        match self.what {
            Operation::Insert => 0,
            _ if self.ordered => self.records,
            _ => self.records * self.partitions,
        }
    }

    fn row_image(&self, _: usize, row: u64, image: &mut Vec<u8>) {
        image.clear();
        image.extend(row.to_le_bytes());
        image.extend((row * 3).to_le_bytes());
        let whole = self.schemas()[0].row_bytes() as usize - 16;
        image.resize(whole, 0);
    }

    fn sources(&self) -> Vec<(String, String)> {
        let of = |what: Operation, each: usize| {
            (0..self.tables()).map(move |table| (Self::procedure(what, each, table), self.source(what, each, table)))
        };
        let scans = (self.ordered && self.what != Operation::Scan).then(|| of(Operation::Scan, 1));
        of(self.what, self.each).chain(scans.into_iter().flatten()).collect()
    }

    fn bind(&mut self, lookup: &mut Lookup<'_>) -> Result<(), WorkloadError> {
        let find = |table: u64| {
            let name = Self::procedure(self.what, self.each, table);
            lookup(&name).map(|found: (u32, Procedure)| found.0).ok_or(WorkloadError::Unbound(name))
        };
        self.ids = (0..self.tables()).map(find).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn fill(&mut self, batch: &mut Batch, transactions: usize) -> Result<usize, WorkloadError> {
        for number in 0..transactions {
            let home = self.called % self.partitions;
            let id = self.ids[if self.ordered { home as usize } else { 0 }];
            let mut keys = Vec::with_capacity(self.each);
            for i in 0..self.each as u64 {
                let home = if self.remote { (home + i) % self.partitions } else { home };
                let key = match self.what {
                    // Distinct in the transaction, as in YCSB.
                    Operation::Search => loop {
                        let number = self.random.below(self.records);
                        let key = self.key(home, number);
                        if !keys.contains(&key) {
                            break key;
                        }
                    },
                    Operation::Insert => self.key(home, self.called / self.partitions * self.each as u64 + i),
                    Operation::Scan => self.random.below(self.records - SCANNED as u64 + 1),
                };
                keys.push(key);
            }
            let Some(mut block) = batch.push(id) else { return Ok(number) };
            for (place, key) in block.bytes()[32..].chunks_exact_mut(8).zip(keys) {
                place.copy_from_slice(&key.to_le_bytes());
            }
            self.called += 1;
        }
        Ok(transactions)
    }

    fn block_bytes(&self) -> u32 {
        let rows = if self.what == Operation::Scan { 8 * SCANNED } else { 0 };
        (32 + self.each * (8 + rows)) as u32
    }

    fn payload_bytes(&self) -> u32 {
        0
    }

    fn accesses(&self) -> u32 {
        self.each as u32
    }

    fn growth(&self, _: usize) -> f64 {
        if self.what == Operation::Insert { self.each as f64 / self.tables() as f64 } else { 0.0 }
    }

    fn repeat(&self) -> Repeat {
        if self.what == Operation::Insert { Repeat::Never } else { Repeat::Freely }
    }

    fn observe(&mut self, _: &Batch) {}

    fn check_results(&self, batch: &Batch) -> Result<u64, WorkloadError> {
        let mut values = 0;
        for (number, block) in batch.blocks().enumerate() {
            if block.status() != Some(Status::Committed) {
                let (status, code) = (block.status(), block.abort_code());
                return Err(WorkloadError::Violation(format!("block {number} ended as {status:?}, code {code:#x}")));
            }
            if self.what != Operation::Scan {
                continue;
            }
            let word = |at: usize| u64::from_le_bytes(block.bytes()[at..at + 8].try_into().expect("eight bytes"));
            for i in 0..self.each {
                let first = word(32 + 8 * i);
                for row in 0..SCANNED {
                    let found = word(32 + 8 * (self.each + i * SCANNED + row));
                    let expected = 3 * (first + row as u64);
                    if found != expected {
                        let problem = format!("block {number}, scan from {first}, row {row}: {found}, not {expected}");
                        return Err(WorkloadError::Violation(problem));
                    }
                    values += 1;
                }
            }
        }
        Ok(values)
    }

    fn check(&mut self, export: &mut Export<'_>) -> Result<String, WorkloadError> {
        let (mut rows, mut sum, mut wrong) = (0_u64, 0_u64, None);
        export(&mut |table, image| {
            let word = |at: usize| u64::from_le_bytes(image[at..at + 8].try_into().expect("eight bytes"));
            let expected = if self.what == Operation::Insert { 0 } else { 3 * word(0) };
            if word(8) != expected {
                wrong = Some(format!("{table}: the row of key {} has value {}", word(0), word(8)));
            }
            rows += 1;
            sum = sum.wrapping_add(word(0));
        });
        let per_table = match self.what {
            Operation::Insert => self.called * self.each as u64 / self.tables(),
            _ => self.row_count(0),
        };
        let all = per_table * self.tables();
        // Keys are 0 to n - 1 in every table, or, of inserts, as far as whole rounds of partitions have come.
        let complete = self.what != Operation::Insert || self.called.is_multiple_of(self.partitions);
        let keys = (per_table * per_table.saturating_sub(1) / 2).wrapping_mul(self.tables());
        match wrong {
            Some(wrong) => Err(WorkloadError::Violation(wrong)),
            None if rows != all => Err(WorkloadError::Violation(format!("{rows} rows instead of {all}"))),
            None if complete && sum != keys => Err(WorkloadError::Violation("keys are lost or doubled".into())),
            None => Ok(format!("{rows} rows")),
        }
    }
}

#[cfg(test)]
mod tests {
    use lockwork_engine::{EngineKind, Options, create};

    use super::super::super::super::measure::{load, verify};
    use super::*;

    #[test]
    fn every_probe_runs_and_its_check_sees_what_is_missing() {
        for (what, ordered) in [
            (Operation::Search, false),
            (Operation::Search, true),
            (Operation::Insert, false),
            (Operation::Insert, true),
            (Operation::Scan, true),
        ] {
            for remote in [false, !ordered] {
                let mut probe = Probe { remote, ordered, ..Probe::new(what, 3, 2, 500, 1) };
                let options = Options { threads: 2, ..Options::default() };
                let engine = create(EngineKind::TIMESTAMP, options).unwrap();
                let mut engine = load(engine, &mut probe, 300, &mut |_| {}).unwrap();
                let mut batch = Batch::new(probe.block_bytes(), 100).unwrap();
                assert_eq!(probe.fill(&mut batch, 200).unwrap(), 100);
                engine.submit(batch).unwrap();
                let completed = engine.complete().unwrap().unwrap();
                verify(&*engine, &mut probe, &[completed.batch]).unwrap();
                probe.records += 1;
                probe.called += 2;
                let wrong = verify(&*engine, &mut probe, &[]).unwrap_err().to_string();
                assert!(wrong.contains(" rows instead of "), "{what:?}: {wrong}");
            }
        }
    }
}
