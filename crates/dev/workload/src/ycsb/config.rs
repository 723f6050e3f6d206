//! What a YCSB workload is: sizes, proportions, skew, and the presets of the papers.
//!
//! Sources: Cooper et al., "Benchmarking Cloud Serving Systems with YCSB", SoCC 2010 (workloads A to F); HOBBES,
//! sections 3 and 4 (A and B, skew 0.1, 0.5 and 0.9); BionicDB, section 5.1 (16 accesses a transaction, an 8-byte key
//! and 1 KB of payload, 300,000 rows; C, and E with scans of 50 rows alone). What a paper did not run follows YCSB with
//! that paper's sizes.

use lockwork_procedure::schema::{ColumnType, MAX_COLUMNS, TableSchema};

use super::shape;
use crate::fields::check_share;
use crate::zipf::{Distribution, check_theta};
use crate::{WorkloadError, refuse, within};
use lockwork_procedure::block::MAX_BLOCK_BYTES;

/// How much of a row a read looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadScope {
    /// One field, chosen evenly (for scans: the first field).
    Field,
    /// All fields.
    Row,
}

/// What an operation does. A transaction's operations stand in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Reads a row.
    Read,
    /// Reads a row, then writes it.
    ReadModifyWrite,
    /// Writes a row.
    Update,
    /// Makes a new row.
    Insert,
    /// Reads rows in key order.
    Scan,
}

impl Kind {
    /// All kinds, in their order in a transaction.
    pub const ALL: [Self; 5] = [Self::Read, Self::ReadModifyWrite, Self::Update, Self::Insert, Self::Scan];
}

/// The most operations of a transaction.
pub const MAX_OPERATIONS: u32 = 64;
/// The most procedures a configuration may need: one for every way to split a transaction's operations among kinds.
pub const MAX_PROCEDURES: u64 = 1024;

/// The most partitions that keys are drawn from.
pub const MAX_PARTITIONS: u64 = 1 << 16;

/// A YCSB workload. Make one from a preset, change what is to differ, and [`Self::validate`] it.
#[derive(Clone, Debug, PartialEq)]
pub struct YcsbConfig {
    /// What it is called.
    pub name: String,
    /// Rows loaded; their keys are 0 to `records` - 1.
    pub records: u64,
    /// Skew, 0 to below 1; not used by [`Distribution::Uniform`].
    pub theta: f64,
    /// How keys are chosen.
    pub distribution: Distribution,
    /// Fields of a row, besides the key.
    pub fields: u32,
    /// Bytes of a field.
    pub field_bytes: u32,
    /// Operations of a transaction, 1 to [`MAX_OPERATIONS`].
    pub operations: u32,
    /// Share of reads. The five shares are relative to their sum.
    pub read: f64,
    /// Share of updates.
    pub update: f64,
    /// Share of inserts.
    pub insert: f64,
    /// Share of scans.
    pub scan: f64,
    /// Share of reads followed by a write of the same row.
    pub rmw: f64,
    /// The fewest rows a scan asks for.
    pub min_scan: u16,
    /// The most rows a scan asks for; lengths between the two are equally likely.
    pub max_scan: u16,
    /// How much of a row is read.
    pub read_scope: ReadScope,
    /// Whether updates write every field (with one value), or one.
    pub write_all_fields: bool,
    /// Whether the table keeps its keys in order, which scans need.
    pub ordered: bool,
    /// Partitions that keys are drawn from, each access's by itself. With 1 they are drawn from the whole table. The
    /// first access of a transaction lies in its home partition.
    pub partitions: u32,
    /// Share of accesses that lie outside the transaction's home partition: 0 to (n - 1) / n for n operations.
    pub remote: f64,
    /// Everything random follows from it.
    pub seed: u64,
}

impl YcsbConfig {
    fn preset(family: &str, letter: char) -> Result<Self, WorkloadError> {
        let mut config = Self {
            name: format!("ycsb-{letter}"),
            records: 1_000_000,
            theta: 0.5,
            distribution: Distribution::Zipfian,
            fields: 8,
            field_bytes: 64,
            operations: 1,
            read: 0.0,
            update: 0.0,
            insert: 0.0,
            scan: 0.0,
            rmw: 0.0,
            min_scan: 1,
            max_scan: 100,
            read_scope: ReadScope::Field,
            write_all_fields: false,
            ordered: false,
            partitions: 1,
            remote: 0.0,
            seed: 1,
        };
        match letter {
            'a' => (config.read, config.update) = (0.5, 0.5),
            'b' => (config.read, config.update) = (0.95, 0.05),
            'c' => config.read = 1.0,
            'd' => (config.read, config.insert, config.distribution) = (0.95, 0.05, Distribution::Latest),
            'e' => (config.scan, config.insert, config.ordered) = (0.95, 0.05, true),
            'f' => (config.read, config.rmw) = (0.5, 0.5),
            _ => {
                return refuse(
                    "workload",
                    format!("{family} '{letter}'"),
                    "the letters a, b, c, d, e and f are possible",
                );
            }
        }
        Ok(config)
    }

    /// Workload `letter` ('a' to 'f') as HOBBES runs it: 1,000,000 rows of 8 fields of 64 bytes, one operation on one
    /// field a transaction, skew 0.5.
    ///
    /// # Errors
    /// [`WorkloadError::Option`] for another letter.
    pub fn hobbes(letter: char) -> Result<Self, WorkloadError> {
        Self::preset("hobbes", letter)
    }

    /// Workload `letter` ('a' to 'f') as BionicDB runs it: 300,000 rows of 16 fields of 64 bytes, 16 operations a
    /// transaction; for E one scan of 50 rows and nothing else.
    ///
    /// # Errors
    /// [`WorkloadError::Option`] for another letter.
    pub fn bionicdb(letter: char) -> Result<Self, WorkloadError> {
        let mut config = Self::preset("bionicdb", letter)?;
        config.name = format!("bionicdb-{letter}");
        (config.records, config.fields, config.operations) = (300_000, 16, 16);
        if letter == 'e' {
            (config.operations, config.scan, config.insert) = (1, 1.0, 0.0);
            (config.min_scan, config.max_scan) = (50, 50);
        }
        Ok(config)
    }

    /// The share of a kind, as configured.
    #[must_use]
    pub fn share(&self, kind: Kind) -> f64 {
        match kind {
            Kind::Read => self.read,
            Kind::ReadModifyWrite => self.rmw,
            Kind::Update => self.update,
            Kind::Insert => self.insert,
            Kind::Scan => self.scan,
        }
    }

    /// The kinds that happen.
    #[must_use]
    pub fn kinds(&self) -> Vec<Kind> {
        Kind::ALL.into_iter().filter(|&kind| self.share(kind) > 0.0).collect()
    }

    /// The sum of all shares.
    pub(super) fn total(&self) -> f64 {
        Kind::ALL.into_iter().map(|kind| self.share(kind)).sum()
    }

    /// Whether everything is possible.
    ///
    /// # Errors
    /// [`WorkloadError::Option`] with the option, its value and what is possible; [`WorkloadError::Schema`] when the
    /// rows fit no table.
    pub fn validate(&self) -> Result<(), WorkloadError> {
        within("fields", u64::from(self.fields), 1, MAX_COLUMNS as u64 - 1)?;
        within("field_bytes", u64::from(self.field_bytes), 1, 65_000)?;
        within("operations", u64::from(self.operations), 1, u64::from(MAX_OPERATIONS))?;
        within("records", self.records, u64::from(self.operations), 1 << 48)?;
        // A transaction may have all its keys in one partition.
        let partitions = (self.records / u64::from(self.operations)).min(MAX_PARTITIONS);
        within("partitions", u64::from(self.partitions), 1, partitions)?;
        check_share("remote", self.remote)?;
        if self.remote > 0.0 && self.partitions == 1 {
            let expected = "with one partition nothing is remote: 0 is possible, or 2 and more partitions";
            return refuse("remote", self.remote, expected);
        }
        let most = 1.0 - 1.0 / f64::from(self.operations);
        if self.remote > most {
            let operations = self.operations;
            let expected = if operations == 1 {
                "a transaction of one operation is at home where that is: 0 is possible, or more operations".to_string()
            } else {
                format!(
                    "the first of {operations} operations is at home: 0 to {most:.4} is possible, or more operations"
                )
            };
            return refuse("remote", self.remote, expected);
        }
        check_theta(self.theta)?;
        self.validate_shares()?;
        self.schema()?;
        if self.scan > 0.0 {
            within("max_scan", u64::from(self.max_scan), 1, u64::from(u16::MAX))?;
            within("min_scan", u64::from(self.min_scan), 1, u64::from(self.max_scan))?;
            if !self.ordered {
                return refuse("ordered", false, "scans need an ordered table: true is possible");
            }
        }
        let (kinds, operations) = (self.kinds().len() as u64, u64::from(self.operations));
        // Ways to split n operations among k kinds: n + k - 1 over k - 1.
        let splits = (1..kinds).fold(1, |ways, i| ways * (operations + i) / i);
        if splits > MAX_PROCEDURES {
            let expected = format!(
                "with {kinds} kinds of operations this would need {splits} procedures, {MAX_PROCEDURES} are possible: \
                 use fewer operations or kinds"
            );
            return refuse("operations", operations, expected);
        }
        let (option, value, bytes) = shape::longest_block(self);
        if bytes > u64::from(MAX_BLOCK_BYTES) {
            let expected = format!(
                "a call would need a block of {bytes} bytes, {MAX_BLOCK_BYTES} are possible: use fewer or shorter \
                 fields, operations or scans"
            );
            return refuse(option, value, expected);
        }
        Ok(())
    }

    fn validate_shares(&self) -> Result<(), WorkloadError> {
        let shares = [
            ("read", self.read),
            ("update", self.update),
            ("insert", self.insert),
            ("scan", self.scan),
            ("rmw", self.rmw),
        ];
        for (option, share) in shares {
            if !(0.0..=1e6).contains(&share) {
                return refuse(option, format!("{share:?}"), "a share from 0 to 1 is possible");
            }
        }
        if self.total() < 1e-9 {
            return refuse("read", self.read, "at least one of the five shares must be above 0");
        }
        Ok(())
    }

    /// The table: `usertable (key i64, field0 .. bytes(n))`, keyed and partitioned by `key`.
    ///
    /// # Errors
    /// [`WorkloadError::Schema`] when rows would be too wide.
    pub fn schema(&self) -> Result<TableSchema, WorkloadError> {
        let names: Vec<String> = (0..self.fields).map(|field| format!("field{field}")).collect();
        let mut columns = vec![("key", ColumnType::I64)];
        columns.extend(names.iter().map(|name| (name.as_str(), ColumnType::Bytes(self.field_bytes))));
        Ok(TableSchema::new("usertable", &columns, 1, self.ordered)?.partition_by_hash("key")?)
    }

    /// Bytes from one field to the next, in rows and in blocks.
    pub(super) fn field_stride(&self) -> u32 {
        let field = ColumnType::Bytes(self.field_bytes);
        field.width().next_multiple_of(field.align())
    }

    /// The effective parameters, in one line.
    #[must_use]
    pub fn describe(&self) -> String {
        let total = self.total();
        let shares: Vec<String> = self
            .kinds()
            .into_iter()
            .map(|kind| {
                let name = match kind {
                    Kind::Read => "read",
                    Kind::ReadModifyWrite => "read-modify-write",
                    Kind::Update => "update",
                    Kind::Insert => "insert",
                    Kind::Scan => "scan",
                };
                format!("{name} {:.4}", self.share(kind) / total)
            })
            .collect();
        let scan = if self.scan > 0.0 {
            format!(", scans of {} to {} rows", self.min_scan, self.max_scan)
        } else {
            String::new()
        };
        let skew =
            if self.distribution == Distribution::Uniform { String::new() } else { format!(" theta {}", self.theta) };
        let sites = match self.partitions {
            1 => String::new(),
            partitions => format!(", {:.4} of the accesses remote among {partitions} partitions", self.remote),
        };
        let scope = if self.read_scope == ReadScope::Row { "whole rows" } else { "one field" };
        let written = if self.write_all_fields { "all fields" } else { "one field" };
        format!(
            "{}: {} rows of {} fields of {} bytes, {} operations a transaction ({}), {}{skew}{sites}, reads {scope}, writes \
             {written}{scan}, {} table, seed {}",
            self.name,
            self.records,
            self.fields,
            self.field_bytes,
            self.operations,
            shares.join(", "),
            self.distribution.name(),
            if self.ordered { "ordered" } else { "unordered" },
            self.seed
        )
    }
}
