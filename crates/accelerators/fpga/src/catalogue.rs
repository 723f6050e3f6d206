//! What the host writes into the catalogue: the words of the config bus, see `hardware/rtl/README.md`.

use crate::create::FPGA;
use lockwork_engine::EngineError;
use lockwork_engine::registry::Registry;
use lockwork_procedure::access::overwrites;
use lockwork_procedure::isa::{NO_LABEL, Opcode, scan_source, scan_stride};
use lockwork_procedure::schema::TableSchema;
use lockwork_procedure::verified::Verified;
use lockwork_storage::Database;

use crate::capabilities::Capabilities;
use crate::demands::{Demands, keys_are_aligned};
use crate::key_words;
use crate::layout::{Free, Placed, Shape, Spread};
use crate::views::Views;

/// One write of the config bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Which word.
    pub address: u16,
    /// Its value.
    pub data: u64,
}

/// Where the regions of the config bus begin.
pub mod region {
    /// Code: 2 * instruction + half.
    pub const CODE: u16 = 0x0000;
    /// Procedures: 8 * procedure + field.
    pub const PROCEDURE: u16 = 0x8000;
    /// Tables: 8 * table + field.
    pub const TABLE: u16 = 0xA000;
    /// Keys: 4 * table + word.
    pub const KEY: u16 = 0xB000;
    /// Free rows: 32 * table + 2 * worker + field.
    pub const ROWS: u16 = 0xC000;
    /// Scan sources.
    pub const SOURCE: u16 = 0xD000;
}

/// In the first byte of an instruction: the old bytes of the row must be kept.
pub const UNDO_BIT: u8 = 0x80;

/// A column of a table, or all of them, that some SCAN delivers: offset in the row, bytes, bytes from one to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Offset in the row.
    pub offset: u32,
    /// How many bytes.
    pub bytes: u32,
    /// From one to the next in the result.
    pub stride: u32,
}

impl Source {
    /// Column `e - 1` of a table, or all of its columns.
    #[must_use]
    pub fn of(schema: &TableSchema, e: u8) -> Self {
        let column = usize::from(e).checked_sub(1);
        let (offset, bytes) = scan_source(schema, column);
        Self { offset, bytes, stride: scan_stride(schema, column) }
    }
}

/// What all procedures together ask of the card.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    sources: Vec<Source>,
    instructions: usize,
    /// What each procedure may ask for.
    pub demands: Vec<Demands>,
}

impl Catalogue {
    /// All procedures of a registry.
    ///
    /// # Errors
    /// As for [`Self::add`].
    pub fn of(registry: &Registry, card: &Capabilities) -> Result<Self, EngineError> {
        let mut catalogue = Self::default();
        registry.all().try_for_each(|registered| catalogue.add(&registered.verified, card))?;
        Ok(catalogue)
    }

    /// Adds a procedure.
    ///
    /// # Errors
    /// [`EngineError::BackEnd`] when the card cannot hold it; then nothing has changed.
    pub fn add(&mut self, verified: &Verified, card: &Capabilities) -> Result<(), EngineError> {
        let procedure = verified.procedure();
        let demands = Demands::of(verified);
        let mut sources = self.sources.clone();
        for i in procedure.code.iter().filter(|i| i.opcode == Opcode::Scan) {
            let source = Source::of(&verified.tables()[usize::from(i.d)].schema, i.e);
            if !sources.contains(&source) {
                sources.push(source);
            }
        }
        let table = verified.tables().iter().map(|table| usize::from(table.id) + 1).max().unwrap_or(0);
        let sizes = [
            ("procedures", self.demands.len() + 1, card.procedures),
            ("instructions of all procedures", self.instructions + procedure.code.len(), card.instructions),
            ("general-purpose registers", verified.gp_registers(), card.registers),
            ("coprocessor registers", verified.cp_registers(), card.registers),
            ("kinds of scanned columns of all procedures", sources.len(), card.sources),
            ("grants in a call", usize::try_from(demands.grants).unwrap_or(usize::MAX), card.grants),
            ("tables", table, card.tables),
        ];
        for (what, needed, most) in sizes {
            if needed > most {
                return Err(EngineError::BackEnd(format!(
                    "procedure '{}' does not fit on the card of engine '{}': with it, {needed} {what} are needed, and \
                     the card has room for {most}; shorten it, or take a larger configuration",
                    procedure.name, FPGA
                )));
            }
        }
        self.sources = sources;
        self.instructions += procedure.code.len();
        self.demands.push(demands);
        Ok(())
    }

    /// The words of procedure `number`, whose code begins at instruction `first`.
    fn write(&self, writes: &mut Vec<Write>, verified: &Verified, number: usize, first: usize, views: &Views) {
        let procedure = verified.procedure();
        let first = first as u32;
        let overwrites = overwrites(verified);
        for (pc, instruction) in procedure.code.iter().enumerate() {
            let mut i = *instruction;
            if i.opcode.is_db() {
                let table = &verified.tables()[usize::from(i.d)];
                if i.opcode == Opcode::Scan {
                    let source = Source::of(&table.schema, i.e);
                    i.e = self.sources.iter().position(|known| *known == source).unwrap_or(0) as u8;
                }
                i.d = views.number(number, pc as u32, table.id) as u8;
            }
            let branches = i.opcode.is_branch() || i.opcode == Opcode::Jmp || i.opcode == Opcode::Ret;
            if branches && i.x != NO_LABEL {
                i.x += first;
            }
            let mut bytes = i.encode();
            if overwrites[pc] {
                bytes[0] |= UNDO_BIT;
            }
            let words = u128::from_le_bytes(bytes);
            let address = region::CODE + 2 * (first as u16 + pc as u16);
            writes.push(Write { address, data: words as u64 });
            writes.push(Write { address: address + 1, data: (words >> 64) as u64 });
        }
        let has = |at: u32| procedure.code[at as usize].opcode != Opcode::Commit;
        let (commit, abort) = (procedure.commit_handler, procedure.abort_handler);
        let layout = procedure.layout();
        let whole_words = |bytes: u32| u64::from(bytes.next_multiple_of(8));
        let fields = [
            u64::from(first)
                | u64::from(first + commit) << 16
                | u64::from(first + abort) << 32
                | u64::from(has(commit)) << 48
                | u64::from(has(abort)) << 49,
            verified.gp_registers() as u64 | (verified.cp_registers() as u64) << 16,
            whole_words(layout.results_start) | whole_words(layout.block_bytes) << 20,
            1,
        ];
        let address = region::PROCEDURE + 8 * number as u16;
        writes.extend((address..).zip(fields).map(|(address, data)| Write { address, data }));
    }

    /// All words of these procedures, which are those that were added, and of scan sources. A procedure becomes valid
    /// by its last one.
    #[must_use]
    pub fn writes<'a>(&self, procedures: impl Iterator<Item = &'a Verified>, views: &Views) -> Vec<Write> {
        let source = |(number, source): (usize, &Source)| Write {
            address: region::SOURCE + number as u16,
            data: u64::from(source.offset) | u64::from(source.bytes) << 16 | u64::from(source.stride) << 32,
        };
        let mut writes: Vec<Write> = self.sources.iter().enumerate().map(source).collect();
        let mut first = 0;
        for (number, verified) in procedures.enumerate() {
            self.write(&mut writes, verified, number, first, views);
            first += verified.procedure().code.len();
        }
        writes
    }
}

/// What the driver decides of every table, given all procedures.
///
/// # Errors
/// [`EngineError::BackEnd`] when there are too many, or the card cannot keep one.
pub fn shapes(
    database: &Database,
    registry: &Registry,
    hints: &[usize],
    card: &Capabilities,
) -> Result<Vec<Shape>, EngineError> {
    if database.len() > card.tables {
        return Err(EngineError::BackEnd(format!(
            "there are {} tables, and the card has room for {}: take a larger configuration",
            database.len(),
            card.tables
        )));
    }
    let shape = |number: usize| {
        let id = number as u16;
        let table = database.table(id);
        let rows = table.len().max(hints[number] as u64);
        let aligned = registry.all().all(|registered| keys_are_aligned(&registered.verified, id));
        Shape::new(number, table.schema(), rows, registry.is_scanned(id), aligned, card)
    };
    (0..database.len()).map(shape).collect()
}

/// The words of a table under this number, but for its free rows.
#[must_use]
pub fn table_writes(number: usize, judged: bool, placed: &Placed, schema: &TableSchema, workers: usize) -> Vec<Write> {
    let shape = &placed.shape;
    let (mut by_hash, mut home, mut offset) = (0, None, 0);
    match shape.spread {
        Spread::Home(worker) if workers > 1 => home = Some(worker as u64),
        Spread::Hash => by_hash = 1,
        Spread::Byte(at) => offset = u64::from(at),
        Spread::Home(_) | Spread::Replicated => {}
    }
    let fields = [
        placed.head_base | u64::from(shape.head_bits) << 40,
        shape.stride | u64::from(shape.values_start) << 16 | u64::from(shape.row_bytes) << 32,
        1 | u64::from(shape.spread == Spread::Replicated) << 1
            | u64::from(shape.levels > 0) << 2
            | u64::from(shape.single) << 3
            | by_hash << 4
            | u64::from(home.is_some()) << 5
            | home.unwrap_or(0) << 6
            | offset << 10
            | u64::from(!judged) << 15
            | (shape.format.image_bytes() as u64 - 1) << 16
            | (shape.words as u64) << 24
            | u64::from(shape.levels) << 32,
        placed.head_node,
    ];
    let address = |region: u16, places: usize| region + (places * number) as u16;
    // The word that makes the table valid comes last.
    let order = [0, 1, 3, 2];
    let fields =
        order.map(|field| Write { address: address(region::TABLE, 8) + field, data: fields[usize::from(field)] });
    let keys = key_words::sources(schema);
    let key = |(word, bytes): (usize, &[Option<(u8, bool)>])| {
        let byte = |source: &Option<(u8, bool)>| source.map_or(0, |(from, flip)| from | u8::from(flip) << 5 | 0x80);
        let data = bytes.iter().rev().fold(0, |data, source| data << 8 | u64::from(byte(source)));
        Write { address: address(region::KEY, 4) + word as u16, data }
    };
    keys.chunks(8).enumerate().map(key).chain(fields).collect()
}

/// The words that tell a worker its free rows of table `number`.
#[must_use]
pub fn rows_writes(number: usize, worker: usize, free: Free) -> [Write; 2] {
    let address = region::ROWS + (32 * number + 2 * worker) as u16;
    // The end first: rows before `next` are never handed out.
    [Write { address: address + 1, data: free.end }, Write { address, data: free.next }]
}
