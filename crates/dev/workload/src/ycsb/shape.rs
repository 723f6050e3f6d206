//! The procedures of a YCSB configuration, as assembly text.
//!
//! One procedure for every way to split a transaction's operations among the kinds; with one operation a transaction
//! also one for every field, whose offset is then a constant. A procedure computes and checks its field indexes, then
//! issues all its DB instructions, then awaits them, then works on the rows in the same order, then commits. So the
//! look-ups overlap, nothing can abort once a row has been written, and procedures of reads and updates alone are
//! separable ([`lockwork_procedure::access`]). Only scans behind inserts wait until the new rows are filled: a
//! transaction sees what it has done, empty rows included.
//!
//! Keys stand first in the block, behind the header: those of up to four operations share its cache line.

use std::fmt::Write;
use std::ops::Range;

use lockwork_procedure::isa::scan_stride;
use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::ColumnType;

use super::config::{Kind, ReadScope, YcsbConfig};

/// One operation of a procedure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operation {
    pub(super) kind: Kind,
    /// The field, where it is part of the procedure.
    pub(super) fixed_field: Option<u32>,
}

/// A declared parameter or result.
pub(super) type Declaration = (String, ColumnType, u32);

/// A procedure before it is text.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) name: String,
    pub(super) operations: Vec<Operation>,
    pub(super) parameters: Vec<Declaration>,
    pub(super) results: Vec<Declaration>,
}

/// Whether an operation of this kind works on one chosen field (besides, perhaps, the whole row).
fn chooses_field(config: &YcsbConfig, kind: Kind) -> bool {
    let (read, write) = (config.read_scope == ReadScope::Field, !config.write_all_fields);
    match kind {
        Kind::Read => read,
        Kind::ReadModifyWrite => read || write,
        Kind::Update => write,
        Kind::Insert | Kind::Scan => false,
    }
}

/// All procedures of a valid configuration. With one operation a transaction: for each kind that happens, in order, one
/// for each field or one alone.
pub(super) fn shapes(config: &YcsbConfig) -> Vec<Shape> {
    if config.operations == 1 {
        return config.kinds().into_iter().flat_map(|kind| single(config, kind)).collect();
    }
    let mut shapes = Vec::new();
    split(config, &config.kinds(), config.operations, &mut Vec::new(), &mut shapes);
    shapes
}

fn single(config: &YcsbConfig, kind: Kind) -> Vec<Shape> {
    let verb = match kind {
        Kind::Read => "read",
        Kind::ReadModifyWrite => "rmw",
        Kind::Update => "update",
        Kind::Insert => return vec![shape(config, "ycsb_insert".into(), vec![Operation { kind, fixed_field: None }])],
        Kind::Scan => return vec![shape(config, "ycsb_scan".into(), vec![Operation { kind, fixed_field: None }])],
    };
    if !chooses_field(config, kind) {
        return vec![shape(config, format!("ycsb_{verb}_row"), vec![Operation { kind, fixed_field: None }])];
    }
    let of = |field| shape(config, format!("ycsb_{verb}_f{field}"), vec![Operation { kind, fixed_field: Some(field) }]);
    (0..config.fields).map(of).collect()
}

/// Every way to split `left` operations among `kinds`, behind those chosen already.
fn split(config: &YcsbConfig, kinds: &[Kind], left: u32, chosen: &mut Vec<(Kind, u32)>, shapes: &mut Vec<Shape>) {
    let Some((&kind, rest)) = kinds.split_first() else { return };
    let counts = if rest.is_empty() { left..=left } else { 0..=left };
    for count in counts {
        chosen.push((kind, count));
        if rest.is_empty() {
            shapes.push(combined(config, chosen));
        } else {
            split(config, rest, left - count, chosen, shapes);
        }
        chosen.pop();
    }
}

fn combined(config: &YcsbConfig, counts: &[(Kind, u32)]) -> Shape {
    let mut name = String::from("ycsb_");
    let mut operations = Vec::new();
    for &(kind, count) in counts.iter().filter(|(_, count)| *count > 0) {
        let letter = match kind {
            Kind::Read => 'r',
            Kind::ReadModifyWrite => 'm',
            Kind::Update => 'u',
            Kind::Insert => 'i',
            Kind::Scan => 's',
        };
        // Writing to a string cannot fail.
        let _ = write!(name, "{letter}{count}");
        operations.extend((0..count).map(|_| Operation { kind, fixed_field: None }));
    }
    shape(config, name, operations)
}

fn shape(config: &YcsbConfig, name: String, operations: Vec<Operation>) -> Shape {
    let value = ColumnType::Bytes(config.field_bytes);
    let (mut keys, mut lengths, mut fields, mut values) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut results = Vec::new();
    for (i, operation) in operations.iter().enumerate() {
        let kind = operation.kind;
        keys.push((format!("key{i}"), ColumnType::I64, 1));
        if chooses_field(config, kind) && operation.fixed_field.is_none() {
            fields.push((format!("f{i}"), ColumnType::U8, 1));
        }
        if matches!(kind, Kind::ReadModifyWrite | Kind::Update | Kind::Insert) {
            values.push((format!("value{i}"), value, 1));
        }
        match kind {
            Kind::Read | Kind::ReadModifyWrite => {
                let count = if config.read_scope == ReadScope::Row { config.fields } else { 1 };
                results.push((format!("out{i}"), value, count));
            }
            Kind::Scan => {
                lengths.push((format!("len{i}"), ColumnType::I64, 1));
                results.push((format!("count{i}"), ColumnType::I64, 1));
                let bytes = scan_row_stride(config).saturating_mul(u32::from(config.max_scan));
                results.push((format!("rows{i}"), ColumnType::Bytes(bytes), 1));
            }
            _ => {}
        }
    }
    Shape { name, operations, parameters: [keys, lengths, fields, values].concat(), results }
}

/// Bytes from one row of a scan's result to the next.
pub(super) fn scan_row_stride(config: &YcsbConfig) -> u32 {
    let column = (config.read_scope == ReadScope::Field).then_some(1);
    // A table that is too wide is refused by `validate` before anything is made of this.
    config.schema().map_or(u32::MAX, |schema| scan_stride(&schema, column))
}

/// The longest block among all procedures, and the option to blame for it.
pub(super) fn longest_block(config: &YcsbConfig) -> (&'static str, u64, u64) {
    // The longest is among those with operations of one kind only: every operation adds what its kind needs.
    let bytes_of = |kind: Kind| {
        let count = config.operations as usize;
        let fixed_field = (count == 1 && chooses_field(config, kind)).then_some(0);
        shape(config, String::new(), vec![Operation { kind, fixed_field }; count]).block_bytes()
    };
    let longest = config.kinds().into_iter().map(|kind| (bytes_of(kind), kind)).max();
    match longest {
        Some((bytes, Kind::Scan)) => ("max_scan", u64::from(config.max_scan), bytes),
        Some((bytes, _)) if config.operations > 1 => ("operations", u64::from(config.operations), bytes),
        Some((bytes, _)) => ("field_bytes", u64::from(config.field_bytes), bytes),
        None => ("operations", u64::from(config.operations), 0),
    }
}

impl Shape {
    /// Bytes of its block.
    pub(super) fn block_bytes(&self) -> u64 {
        let types = |list: &[Declaration]| -> Vec<_> { list.iter().map(|&(_, kind, count)| (kind, count)).collect() };
        Procedure::lay_out([&types(&self.parameters), &types(&self.results), &[]]).0[3]
    }

    /// The assembly text.
    pub(super) fn text(&self, config: &YcsbConfig) -> String {
        let mut writer = Writer { config, lines: Vec::new() };
        writer.lines.push(format!("procedure {}\ntable usertable", self.name));
        for (word, list) in [("param", &self.parameters), ("result", &self.results)] {
            for (name, column_type, count) in list {
                let count = if *count == 1 { String::new() } else { format!("[{count}]") };
                writer.lines.push(format!("{word} {name}: {column_type}{count}"));
            }
        }
        let operations = || self.operations.iter().enumerate();
        operations().for_each(|(i, operation)| writer.prepare(i, self.index(i), operation));
        let (before, scans) = self.stages();
        for stage in [before, scans] {
            let operations = || operations().skip(stage.start).take(stage.len());
            operations().for_each(|(i, operation)| writer.issue(i, self.index(i), operation.kind));
            operations().for_each(|(i, _)| writer.line(format!("ret     r{}, c{i}", i + 1)));
            operations().for_each(|(i, operation)| writer.access(i, self.index(i), operation));
        }
        writer.line("commit".into());
        writer.lines.join("\n") + "\n"
    }

    /// The operations that are issued together, and those that are issued when the work of the first is done. A scan
    /// finds the rows that its own transaction has inserted, so they must have been filled before it.
    fn stages(&self) -> (Range<usize>, Range<usize>) {
        let (all, first) = (self.operations.len(), |kind| self.operations.iter().position(|each| each.kind == kind));
        match (first(Kind::Insert), first(Kind::Scan)) {
            (Some(_), Some(scan)) => (0..scan, scan..all),
            _ => (0..all, all..all),
        }
    }

    /// The register of operation `i`'s field offset or scan length. Row handles are in r1 and up, these behind them.
    fn index(&self, i: usize) -> usize {
        self.operations.len() + 1 + i
    }
}

/// Writes the instructions of a procedure.
struct Writer<'a> {
    config: &'a YcsbConfig,
    lines: Vec<String>,
}

impl Writer<'_> {
    fn line(&mut self, instruction: String) {
        self.lines.push(format!("    {instruction}"));
    }

    /// Field offset, or scan length, checked, into register `index`.
    fn prepare(&mut self, i: usize, index: usize, operation: &Operation) {
        let (argument, limit) = match operation.kind {
            Kind::Scan => (format!("len{i}"), u32::from(self.config.max_scan) + 1),
            kind if chooses_field(self.config, kind) && operation.fixed_field.is_none() => {
                (format!("f{i}"), self.config.fields)
            }
            _ => return,
        };
        self.line(format!("load    r{index}, [{argument}]"));
        self.line(format!("check   r{index}, {limit}"));
        if operation.kind != Kind::Scan {
            self.line(format!("mul     r{index}, r{index}, {}", self.config.field_stride()));
        }
    }

    fn issue(&mut self, i: usize, index: usize, kind: Kind) {
        let mnemonic = match kind {
            Kind::Read => "search ",
            Kind::ReadModifyWrite | Kind::Update => "update ",
            Kind::Insert => "insert ",
            Kind::Scan => {
                let what = if self.config.read_scope == ReadScope::Row { "usertable" } else { "usertable.field0" };
                let limit = self.config.max_scan;
                return self.line(format!("scan    c{i}, {what}, [key{i}], [rows{i}], {limit}, r{index}"));
            }
        };
        self.line(format!("{mnemonic} c{i}, usertable, [key{i}]"));
    }

    /// What happens to the row (or, for a scan, to the number of rows) in r(i + 1).
    fn access(&mut self, i: usize, index: usize, operation: &Operation) {
        let row = i + 1;
        let config = self.config;
        let bytes = config.field_bytes;
        let field = match operation.fixed_field {
            Some(field) => format!("r{row}[usertable.field{field}]"),
            None => format!("r{row}[usertable.field0 + r{index}]"),
        };
        let (reads, writes) = match operation.kind {
            Kind::Read => (true, false),
            Kind::ReadModifyWrite => (true, true),
            Kind::Update | Kind::Insert => (false, true),
            Kind::Scan => return self.line(format!("store   r{row}, [count{i}]")),
        };
        if reads && config.read_scope == ReadScope::Row {
            // Fields have one stride in rows and in blocks, so one copy takes them all, padding (zeros) included.
            let all = config.field_stride() * (config.fields - 1) + bytes;
            self.line(format!("copy    [out{i}], r{row}[usertable.field0], {all}"));
        } else if reads {
            self.line(format!("copy    [out{i}], {field}, {bytes}"));
        }
        if writes && (config.write_all_fields || operation.kind == Kind::Insert) {
            for each in 0..config.fields {
                self.line(format!("copy    r{row}[usertable.field{each}], [value{i}], {bytes}"));
            }
        } else if writes {
            self.line(format!("copy    {field}, [value{i}], {bytes}"));
        }
    }
}
