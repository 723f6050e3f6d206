//! Memory with tables in it, as the hardware sees it: bytes at addresses, and an index from keys to rows.

use std::collections::{BTreeMap, HashMap};

use lockwork_conformance::procedures::{key, schemas};
use lockwork_procedure::access::overwrites;
use lockwork_procedure::isa::{Instruction, NO_LABEL, Opcode, scan_source};
use lockwork_procedure::key::{Key, KeyFormat};
use lockwork_procedure::schema::TableSchema;
use lockwork_procedure::verified::Verified;

pub(crate) const UNDO: usize = 0x1_0000;
pub(crate) const BLOCKS: usize = 0x10_0000;
pub(crate) const ROWS: usize = 0x20_0000;
pub(crate) const BYTES: usize = 0x28_0000;

/// What a DB instruction finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Ready(u64),
    Missing,
}

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) bytes: Vec<u8>,
    pub(crate) rows: HashMap<(usize, Key), usize>,
    ordered: Vec<BTreeMap<Key, usize>>,
    pub(crate) schemas: Vec<TableSchema>,
    pub(crate) formats: Vec<KeyFormat>,
    next: usize,
}

impl World {
    /// Tables with a few rows each, as the random procedures expect them.
    pub(crate) fn new() -> Self {
        let schemas = schemas().to_vec();
        let formats = schemas.iter().map(KeyFormat::of).collect();
        let mut world = Self {
            bytes: vec![0; BYTES],
            rows: HashMap::new(),
            ordered: vec![BTreeMap::new(); schemas.len()],
            schemas,
            formats,
            next: ROWS,
        };
        for table in 0..world.schemas.len() {
            for row in 0..5_u8 {
                let image = key(table, row);
                let at = world.insert(table, &image);
                let Found::Ready(at) = at else { continue };
                let end = at as usize + world.schemas[table].row_bytes() as usize;
                let start = at as usize + 16 + image.len();
                world.bytes[start..end].fill(row.wrapping_mul(37));
            }
        }
        world
    }

    pub(crate) fn live(&self, row: usize) -> bool {
        self.bytes[row + 7] & 1 == 1
    }

    pub(crate) fn image(&self, table: usize, at: usize) -> Vec<u8> {
        self.bytes[at..at + self.formats[table].image_bytes()].to_vec()
    }

    pub(crate) fn find(&self, table: usize, image: &[u8]) -> Found {
        match self.rows.get(&(table, self.formats[table].encode(image))) {
            Some(&row) if self.live(row) => Found::Ready(row as u64),
            _ => Found::Missing,
        }
    }

    pub(crate) fn insert(&mut self, table: usize, image: &[u8]) -> Found {
        let key = self.formats[table].encode(image);
        let bytes = self.schemas[table].row_bytes() as usize;
        let row = match self.rows.get(&(table, key)) {
            Some(&row) if self.live(row) => return Found::Missing,
            Some(&row) => row,
            None => {
                let row = self.next;
                self.next += bytes.next_multiple_of(64);
                assert!(self.next <= BYTES, "the fake memory is full");
                self.rows.insert((table, key), row);
                self.ordered[table].insert(key, row);
                row
            }
        };
        self.bytes[row + 16..row + bytes].fill(0);
        self.bytes[row + 16..row + 16 + image.len()].copy_from_slice(image);
        self.bytes[row + 7] = 1;
        Found::Ready(row as u64)
    }

    /// Copies rows to `buffer` and returns how many. `column`: plus one, or zero for all.
    pub(crate) fn scan(&mut self, table: usize, image: &[u8], limit: usize, column: usize, buffer: usize) -> u64 {
        let from = self.formats[table].encode(image);
        let (offset, length) = scan_source(&self.schemas[table], column.checked_sub(1));
        let (offset, length) = (offset as usize, length as usize);
        let rows: Vec<usize> = self.ordered[table].range(from..).map(|(_, &row)| row).collect();
        let rows: Vec<usize> = rows.into_iter().filter(|&row| self.live(row)).take(limit).collect();
        for (number, &row) in rows.iter().enumerate() {
            let to = buffer + number * length.next_multiple_of(8);
            self.bytes.copy_within(row + offset..row + offset + length, to);
        }
        rows.len() as u64
    }
}

/// The config bus writes that load procedures: address and value.
pub(crate) fn catalogue(procedures: &[Verified]) -> Vec<(u16, u64)> {
    let mut writes = Vec::new();
    let mut base = 0_u32;
    for (number, verified) in procedures.iter().enumerate() {
        let procedure = verified.procedure();
        let overwrites = overwrites(verified);
        for (at, instruction) in procedure.code.iter().enumerate() {
            let word = located(*instruction, base).encode();
            let mut halves = [0, 8].map(|at| u64::from_le_bytes(word[at..at + 8].try_into().expect("eight bytes")));
            halves[0] |= u64::from(overwrites[at]) << 7;
            let address = 2 * (base as u16 + at as u16);
            writes.extend([(address, halves[0]), (address + 1, halves[1])]);
        }
        let handler = |at: u32| (u64::from(base + at), u64::from(procedure.code[at as usize].opcode != Opcode::Commit));
        let (commit, has_commit) = handler(procedure.commit_handler);
        let (abort, has_abort) = handler(procedure.abort_handler);
        let layout = procedure.layout();
        let up = |bytes: u32| u64::from(bytes.next_multiple_of(8));
        let at = 0x8000 + 8 * number as u16;
        writes.push((at, u64::from(base) | commit << 16 | abort << 32 | has_commit << 48 | has_abort << 49));
        writes.push((at + 1, verified.gp_registers() as u64 | (verified.cp_registers() as u64) << 16));
        writes.push((at + 2, up(layout.results_start) | up(layout.block_bytes) << 20));
        writes.push((at + 3, 1));
        base += procedure.code.len() as u32;
    }
    assert!(base <= CODE_WORDS, "{base} instructions");
    writes
}

pub(crate) const CODE_WORDS: u32 = 8192;

/// The instruction with branch targets moved by `base`, and with the source of a scan numbered.
fn located(mut i: Instruction, base: u32) -> Instruction {
    if i.opcode == Opcode::Jmp || i.opcode.is_branch() || (i.opcode == Opcode::Ret && i.x != NO_LABEL) {
        i.x += base;
    }
    if i.opcode == Opcode::Scan {
        i.e += 16 * i.d;
    }
    i
}
