//! Where tables lie in device memory, and how they get there and back.
//!
//! ```text
//! line 0                nothing, so that no row has handle 0
//! a line for each table the ring's head, tail and limit
//! a line for each table its lock (two-phase)
//! then, for each table, rows | buckets | ring of free numbers | links (ordered) | locks (two-phase)
//! ```
//!
//! Everything begins at a multiple of 64 bytes. The host keeps a mirror of the tables ([`Database`]): rows are loaded
//! into it before the first batch, and it is brought up to date when somebody wants to read. The format of a row and
//! of a bucket is that of `hardware/opencl/common.cl`; [`Image`] writes the same on the host.
//!
//! A table has room for as many rows as were announced, or for a quarter more than there are. When inserts could need
//! more, the engine drains the device, brings the mirror up to date and builds the heap again with twice the room.

use lockwork_engine::EngineError;
use lockwork_procedure::key::Key;
use lockwork_storage::{Database, RowPtr, Table};

use crate::session::{DeviceBuffer, Session};

const LINE: usize = 64;
const PLACES: usize = 5;
const LEVELS: usize = 16;
/// Rows travel in pieces of about so many bytes.
const PIECE: usize = 16 << 20;
/// The most rows of a table.
const MAX_ROWS: usize = 1 << 31;
/// The fewest rows that a table has room for.
const MIN_ROWS: usize = 64;

/// `struct lw_table` of `hardware/opencl/common.cl`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Descriptor {
    pub(crate) rows: u64,
    pub(crate) buckets: u64,
    pub(crate) ring: u64,
    pub(crate) counters: u64,
    pub(crate) links: u64,
    pub(crate) locks: u64,
    pub(crate) table_lock: u64,
    pub(crate) mask: u32,
    pub(crate) ring_mask: u32,
}

const _: () = assert!(size_of::<Descriptor>() == LINE);

/// Tables on a device.
pub(crate) struct Heap {
    pub(crate) buffer: DeviceBuffer,
    pub(crate) descriptors: DeviceBuffer,
    layout: Layout,
    /// Free rows of each table that no batch in flight may take.
    pub(crate) free: Vec<u64>,
}

/// Where everything lies.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layout {
    pub(crate) tables: Vec<Descriptor>,
    capacities: Vec<usize>,
    bytes: usize,
}

impl Layout {
    /// A layout with room for `capacities` rows.
    fn new(database: &Database, capacities: Vec<usize>, two_phase: bool) -> Self {
        let count = database.len();
        let mut at = LINE * (1 + 2 * count);
        let mut take = |bytes: usize| {
            let start = at;
            at += bytes.next_multiple_of(LINE);
            start as u64
        };
        let tables = (0..count)
            .map(|number| {
                let schema = database.table(number as u16).schema();
                let capacity = capacities[number];
                let buckets = (capacity / 2).next_power_of_two();
                let ring = capacity.next_power_of_two();
                Descriptor {
                    rows: take(capacity * schema.stride()),
                    buckets: take(buckets * LINE),
                    ring: take(ring * 4),
                    counters: (LINE * (1 + number)) as u64,
                    links: take(if schema.is_ordered() { (capacity + 1) * LINE } else { 0 }),
                    locks: take(if two_phase { buckets * 16 } else { 0 }),
                    table_lock: (LINE * (1 + count + number)) as u64,
                    mask: (buckets - 1) as u32,
                    ring_mask: (ring - 1) as u32,
                }
            })
            .collect();
        Self { tables, capacities, bytes: at }
    }
}

/// What the host writes for one table, but for its rows.
struct Image {
    buckets: Vec<u8>,
    /// Behind each row number: the next row of its bucket's overflow list, plus one.
    next: Vec<u32>,
}

impl Image {
    fn new(table: &Table, rows: &[RowPtr], descriptor: &Descriptor) -> Self {
        let mut image = Self { buckets: vec![0; (descriptor.mask as usize + 1) * LINE], next: vec![0; rows.len()] };
        let exact = table.key_format().fits_one_word();
        for (number, row) in rows.iter().enumerate() {
            let key = key_of(table, *row);
            let hash = key.hash();
            let tag = if exact { key.0[0] } else { hash };
            image.put((hash as u32 & descriptor.mask) as usize, tag, number);
        }
        image
    }

    fn put(&mut self, bucket: usize, tag: u64, number: usize) {
        let line = &mut self.buckets[bucket * LINE..(bucket + 1) * LINE];
        let entry = |place: usize| 40 + place * 4..44 + place * 4;
        let word = |line: &[u8], place| u32::from_le_bytes(line[entry(place)].try_into().expect("four bytes"));
        match (0..PLACES).find(|&place| word(line, place) == 0) {
            Some(place) => {
                line[place * 8..place * 8 + 8].copy_from_slice(&tag.to_le_bytes());
                line[entry(place)].copy_from_slice(&(number as u32 + 1).to_le_bytes());
            }
            None => {
                self.next[number] = word(line, PLACES);
                line[entry(PLACES)].copy_from_slice(&(number as u32 + 1).to_le_bytes());
            }
        }
    }
}

fn key_of(table: &Table, row: RowPtr) -> Key {
    // SAFETY: nothing is in flight while the mirror is read, so nobody writes the row.
    let image = unsafe { table.row_image(row) };
    table.key_format().encode(&image[..table.key_format().image_bytes()])
}

/// The links of an ordered table: a line for the head, then one for each row.
fn links(table: &Table, rows: &[RowPtr]) -> Vec<u8> {
    let mut sorted: Vec<(Key, usize)> =
        rows.iter().enumerate().map(|(number, row)| (key_of(table, *row), number)).collect();
    sorted.sort_unstable();
    let mut links = vec![0_u8; (rows.len() + 1) * LINE];
    let mut last = [0_usize; LEVELS];
    for (key, number) in sorted {
        let level = (key.hash().leading_zeros() as usize / 2).min(LEVELS - 1);
        for (level, last) in last.iter_mut().enumerate().take(level + 1) {
            let at = *last * LINE + level * 4;
            links[at..at + 4].copy_from_slice(&(number as u32 + 1).to_le_bytes());
            *last = number + 1;
        }
    }
    links
}

impl Heap {
    /// Puts the tables of `database` on the device, with room for `hints` rows each, and for `extra` more than there
    /// are.
    pub(crate) fn new(
        session: &Session,
        database: &Database,
        hints: &[usize],
        extra: &[u64],
        two_phase: bool,
    ) -> Result<Self, EngineError> {
        let capacity = |number: usize| {
            let rows = database.table(number as u16).len() as usize;
            (rows + rows / 4)
                .max(hints[number])
                .max(rows.saturating_add(extra.get(number).copied().unwrap_or(0) as usize))
                .max(MIN_ROWS)
        };
        let capacities: Vec<usize> = (0..database.len()).map(capacity).collect();
        for (number, &rows) in capacities.iter().enumerate() {
            let schema = database.table(number as u16).schema();
            // Row numbers plus one have 32 bits on the device.
            if rows > MAX_ROWS {
                let name = schema.name();
                return Err(EngineError::BackEnd(format!(
                    "table '{name}' with {rows} rows is more than an OpenCL engine numbers; at most {MAX_ROWS} are possible"
                )));
            }
        }
        let layout = Layout::new(database, capacities, two_phase);
        session.check_constants(size_of_val(&layout.tables[..]))?;
        let buffer = session.allocate(layout.bytes, "tables and their indexes")?;
        let descriptors = session.allocate(size_of_val(&layout.tables[..]), "table descriptions")?;
        let mut heap = Self { buffer, descriptors, layout, free: vec![0; database.len()] };
        session.write_now(&mut heap.descriptors, 0, bytes_of(&heap.layout.tables))?;
        for number in 0..database.len() {
            heap.upload(session, database.table(number as u16), number)?;
        }
        if two_phase {
            heap.clear_locks(session)?;
        }
        Ok(heap)
    }

    /// How many rows each table has room for.
    pub(crate) fn capacities(&self) -> &[usize] {
        &self.layout.capacities
    }

    /// Where tables lie.
    pub(crate) fn tables(&self) -> &[Descriptor] {
        &self.layout.tables
    }

    fn upload(&mut self, session: &Session, table: &Table, number: usize) -> Result<(), EngineError> {
        let descriptor = self.layout.tables[number];
        let (stride, row_bytes) = (table.schema().stride(), table.schema().row_bytes() as usize);
        let mut rows = Vec::with_capacity(table.len() as usize);
        table.for_each(|row| rows.push(row));
        let image = Image::new(table, &rows, &descriptor);
        let heap = &mut self.buffer;
        session.write_now(heap, descriptor.buckets as usize, &image.buckets)?;

        let mut piece = Vec::with_capacity(PIECE + stride);
        let mut at = descriptor.rows as usize;
        for (row, next) in rows.iter().zip(&image.next) {
            let start = piece.len();
            piece.resize(start + stride, 0);
            piece[start + 8] = lockwork_storage::LIVE;
            piece[start + 12..start + 16].copy_from_slice(&next.to_le_bytes());
            // SAFETY: nothing is in flight while the mirror is read.
            piece[start + 16..start + row_bytes].copy_from_slice(unsafe { table.row_image(*row) });
            if piece.len() >= PIECE {
                session.write_now(heap, at, &piece)?;
                at += piece.len();
                piece.clear();
            }
        }
        session.write_now(heap, at, &piece)?;
        at += piece.len();
        let capacity = self.layout.capacities[number];
        session.zero(heap, at, (capacity - rows.len()) * stride)?;

        let free: Vec<u32> = (rows.len() as u32..capacity as u32).collect();
        session.write_now(heap, descriptor.ring as usize, bytes_of(&free))?;
        let counters = [0, free.len() as u32, free.len() as u32];
        session.write_now(heap, descriptor.counters as usize, bytes_of(&counters))?;
        session.zero(heap, descriptor.table_lock as usize, LINE)?;
        if table.schema().is_ordered() {
            session.write_now(heap, descriptor.links as usize, &links(table, &rows))?;
        }
        self.free[number] = free.len() as u64;
        Ok(())
    }

    /// Clears all locks, when stamps begin again at zero.
    pub(crate) fn clear_locks(&mut self, session: &Session) -> Result<(), EngineError> {
        for descriptor in self.layout.tables.clone() {
            session.zero(&mut self.buffer, descriptor.locks as usize, (descriptor.mask as usize + 1) * 16)?;
            session.zero(&mut self.buffer, descriptor.table_lock as usize, LINE)?;
        }
        Ok(())
    }

    /// How many rows of each table are free, from head and tail of its ring after recycling.
    pub(crate) fn free_of(seen: &[u32]) -> Vec<u64> {
        seen.chunks_exact(2).map(|ring| u64::from(ring[1].wrapping_sub(ring[0]))).collect()
    }

    /// Brings the mirror up to date.
    pub(crate) fn download(&self, session: &Session, database: &Database) -> Result<(), EngineError> {
        let mut piece = Vec::new();
        for (number, descriptor) in self.layout.tables.iter().enumerate() {
            let table = database.table(number as u16);
            let stride = table.schema().stride();
            let mut seen = Vec::new();
            let per_piece = (PIECE / stride).max(1);
            for first in (0..self.layout.capacities[number]).step_by(per_piece) {
                let count = per_piece.min(self.layout.capacities[number] - first);
                piece.resize(count * stride, 0);
                session.read_now(&self.buffer, descriptor.rows as usize + first * stride, &mut piece)?;
                for row in piece.chunks_exact(stride).filter(|row| row[8] == lockwork_storage::LIVE) {
                    seen.push(update(table, &row[16..table.schema().row_bytes() as usize])?);
                }
            }
            if table.len() != seen.len() as u64 {
                keep_only(table, seen);
            }
        }
        Ok(())
    }
}

/// Gives the mirror's row of this image's key the image's values.
fn update(table: &Table, image: &[u8]) -> Result<RowPtr, EngineError> {
    let key = table.key_format().encode(&image[..table.key_format().image_bytes()]);
    match table.find(key.hash(), &key) {
        Some(row) => {
            let values = (table.schema().values_start() - 16) as usize;
            let target = row.image(table.schema()).cast::<u8>();
            // SAFETY: nothing is in flight, so the mirror is this thread's alone; the image is as long as the row's.
            unsafe { target.add(values).copy_from(image[values..].as_ptr(), image.len() - values) };
            Ok(row)
        }
        None => Ok(table.load(image)?),
    }
}

/// Removes all rows of the mirror but these.
fn keep_only(table: &Table, mut seen: Vec<RowPtr>) {
    seen.sort_unstable_by_key(|row| row.as_ptr() as usize);
    let mut gone = Vec::new();
    table.for_each(|row| {
        if seen.binary_search_by_key(&(row.as_ptr() as usize), |row| row.as_ptr() as usize).is_err() {
            gone.push(key_of(table, row));
        }
    });
    for key in gone {
        // SAFETY: nothing is in flight, so the mirror is this thread's alone.
        unsafe { table.remove(key.hash(), &key) };
    }
}

/// # Safety
/// The type has no padding: every byte of a value is a byte of its contents.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: integers, and a structure of seven 64-bit words and two of 32 bits in 64 bytes.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl Plain for Descriptor {}

/// The bytes of plain values.
pub(crate) fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: plain values are bytes throughout.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}
