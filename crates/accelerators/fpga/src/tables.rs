//! Tables into the card's memory, and back into the mirror.
//!
//! The host makes heads and rows of a table ready, worker by worker, and writes them in one go. Back they come by
//! following every chain (or level 0 of the skiplist), so only what a transaction could find is taken.

use std::collections::HashSet;

use lockwork_engine::EngineError;
use lockwork_memory::OutOfMemory;
use lockwork_storage::{Database, RowPtr, Table};

use crate::card::CardMemory;
use crate::key_words;
use crate::layout::{ADDRESS_MASK, Free, LINE, LIVE_SHIFT, Placed, Shape};
use crate::memory_map::MemoryMap;

/// A row as it lies in the card's memory.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// Its address.
    pub address: u64,
    /// Whether it is live.
    pub live: bool,
    /// Key image and values.
    pub image: &'a [u8],
    /// Its set of heads, and its number among them; the skiplist has one set of one.
    pub head: (usize, u64),
}

struct Ready {
    hash: u32,
    address: u64,
    key: [u64; 4],
    owner: usize,
    /// Where its bytes begin among those of its owner.
    start: usize,
}

impl Placed {
    /// Puts `table` into memory, with room for `room` more rows on every worker that may have some.
    ///
    /// # Errors
    /// [`EngineError::BackEnd`] when the card's memory is too small or cannot be written, [`EngineError::Memory`] when
    /// the host's is.
    pub fn load(
        shape: Shape,
        table: &Table,
        room: u64,
        workers: usize,
        map: &mut MemoryMap,
        card: &mut dyn CardMemory,
    ) -> Result<Self, EngineError> {
        let what = format!("rows of table '{}'", shape.name);
        let mut counts = vec![0_u64; workers];
        let mut keys = Vec::new();
        table.for_each(|row| {
            // SAFETY: no transaction is running on the mirror, ever.
            let image = unsafe { table.row_image(row) };
            let hash = key_words::hash(&shape.format, shape.words, image);
            let owner = shape.owner(image, hash, workers);
            keys.push((row, hash, owner, counts[owner]));
            counts[owner] += 1;
        });
        let room = |worker: usize| if shape.may_own(worker) { room } else { 0 };
        let mut free = Vec::new();
        let mut pieces = Vec::new();
        for (worker, &count) in counts.iter().enumerate() {
            let rows = count.saturating_add(room(worker));
            let start = map.take(rows.saturating_mul(shape.stride), &what)? + shape.prefix;
            free.push(Free { next: start + count * shape.stride, end: start + rows * shape.stride });
            pieces.push((start - shape.prefix, bytes(count * shape.stride)?));
        }
        let mut ready = Vec::with_capacity(keys.len());
        for (row, hash, owner, number) in keys {
            let (base, bytes) = &mut pieces[owner];
            let start = (number * shape.stride) as usize;
            let bytes = &mut bytes[start..start + shape.stride as usize];
            // SAFETY: as above.
            let image = unsafe { table.row_image(row) };
            shape.write_row(image, bytes);
            let key = shape.format.encode(&image[..shape.format.image_bytes()]).0;
            let address = *base + start as u64 + shape.prefix;
            ready.push(Ready { hash, address, key, owner, start });
        }
        let rows = |free: &Free| free.rows(shape.stride);
        let places = ready.len() as u64 + free.iter().map(rows).sum::<u64>();
        let given = free.iter().map(|free| free.next).collect();
        let mut placed = Self { shape, head_base: 0, head_node: 0, free, given, places };
        if placed.shape.levels == 0 {
            let length = placed.shape.heads_bytes(workers);
            placed.head_base = map.take(length, &format!("heads of table '{}'", placed.shape.name))?;
            placed.chain(&ready, &mut pieces, length, card)?;
        } else {
            let length = placed.shape.prefix + LINE;
            placed.head_node = map.take(length, "the head of a skiplist")? + placed.shape.prefix;
            placed.link(ready, &mut pieces, card)?;
        }
        for (worker, (base, bytes)) in pieces.iter().enumerate() {
            card.write(*base, bytes)?;
            let Free { next, end } = placed.free[worker];
            card.zero(next - placed.shape.prefix, end - next)?;
        }
        Ok(placed)
    }

    /// Makes chains of the rows and writes the heads.
    fn chain(
        &self,
        ready: &[Ready],
        pieces: &mut [(u64, Vec<u8>)],
        length: u64,
        card: &mut dyn CardMemory,
    ) -> Result<(), EngineError> {
        let mut heads = bytes(length)?;
        for row in ready {
            let at = (self.head(row.owner, row.hash) - self.head_base) as usize;
            let first = word(&heads, at);
            heads[at..at + 8].copy_from_slice(&row.address.to_le_bytes());
            set_link(&mut pieces[row.owner].1, row.start + self.shape.prefix as usize, first);
        }
        Ok(card.write(self.head_base, &heads)?)
    }

    /// Makes a skiplist of the rows and writes its head.
    fn link(
        &self,
        mut ready: Vec<Ready>,
        pieces: &mut [(u64, Vec<u8>)],
        card: &mut dyn CardMemory,
    ) -> Result<(), EngineError> {
        let shape = &self.shape;
        ready.sort_unstable_by_key(|row| row.key);
        let mut head = vec![0_u8; (shape.prefix + LINE) as usize];
        let mut last: Vec<Option<(usize, usize)>> = vec![None; shape.levels as usize];
        for row in &ready {
            let height = key_words::height(row.hash, shape.levels);
            for (level, last) in last.iter_mut().enumerate().take(height as usize) {
                let down = shape.prefix as usize - shape.link_below(level as u32) as usize;
                match *last {
                    None => set_link(&mut head, down, row.address),
                    Some((owner, start)) => set_link(&mut pieces[owner].1, start + down, row.address),
                }
                *last = Some((row.owner, row.start));
            }
        }
        Ok(card.write(self.head_node - shape.prefix, &head)?)
    }

    /// Gives `worker` room for `rows` more rows, in place of what room it has.
    ///
    /// # Errors
    /// [`EngineError::BackEnd`] when the card's memory is too small; then nothing has changed.
    pub fn extend(
        &mut self,
        worker: usize,
        rows: u64,
        map: &mut MemoryMap,
        card: &mut dyn CardMemory,
    ) -> Result<Free, EngineError> {
        let length = rows.saturating_mul(self.shape.stride);
        let start = map.take(length, &format!("new rows of table '{}'", self.shape.name))?;
        card.zero(start, length)?;
        let next = start + self.shape.prefix;
        self.free[worker] = Free { next, end: next + length };
        self.given[worker] = next;
        self.places += rows;
        Ok(self.free[worker])
    }

    /// Looks which free rows of `worker` are still free. Nothing runs.
    ///
    /// Rows are handed out upwards. One that was handed out is not all zeros, but for that of the one key whose words
    /// are, absent and the last of its chain: so one more than the last of the others counts as taken.
    ///
    /// # Errors
    /// [`EngineError::BackEnd`] when the card's memory cannot be read.
    pub fn recount(&mut self, worker: usize, card: &mut dyn CardMemory) -> Result<(), EngineError> {
        let (first, Free { end, .. }) = (self.given[worker], self.free[worker]);
        let stride = self.shape.stride;
        let mut next = end;
        let mut header = [0; 16];
        while next > first {
            card.read(next - stride, &mut header)?;
            if header != [0; 16] {
                next = (next + stride).min(end);
                break;
            }
            next -= stride;
        }
        if next == first && first < end {
            next += stride;
        }
        self.free[worker].next = next;
        Ok(())
    }

    /// Calls `f` with every row that a transaction could find, live or not.
    ///
    /// # Errors
    /// [`EngineError::BackEnd`] when an address is none of a row, or rows follow each other in a circle.
    pub fn walk(
        &self,
        workers: usize,
        card: &mut dyn CardMemory,
        mut f: impl FnMut(Found<'_>),
    ) -> Result<(), EngineError> {
        let shape = &self.shape;
        let mut bytes = vec![0; shape.row_bytes as usize];
        let mut seen = 0;
        let mut follow = |card: &mut dyn CardMemory, mut address: u64, head: (usize, u64)| {
            while address != 0 {
                seen += 1;
                let broken = |why: &str| {
                    let name = &shape.name;
                    Err(EngineError::BackEnd(format!(
                        "table '{name}' is broken in the card's memory: {why} (head {} of set {}, address {address:#x})",
                        head.1, head.0
                    )))
                };
                if seen > self.places {
                    return broken("rows follow each other in a circle");
                }
                if !address.is_multiple_of(LINE) || address + bytes.len() as u64 > card.bytes() {
                    return broken("there is no row at this address");
                }
                card.read(address, &mut bytes)?;
                let header = word(&bytes, 0);
                f(Found { address, live: header >> LIVE_SHIFT != 0, image: &bytes[16..], head });
                address = header & ADDRESS_MASK;
            }
            Ok(())
        };
        if shape.levels > 0 {
            let first = card.read_word(self.head_node)? & ADDRESS_MASK;
            return follow(card, first, (0, 0));
        }
        let mut heads = bytes_of_heads(shape);
        for set in 0..shape.head_sets(workers) {
            let base = self.head_base + ((set as u64) << (shape.head_bits + 3));
            for piece in (0..1_u64 << (shape.head_bits + 3)).step_by(heads.len()) {
                card.read(base + piece, &mut heads)?;
                for at in (0..heads.len()).step_by(8) {
                    follow(card, word(&heads, at), (set, (piece + at as u64) / 8))?;
                }
            }
        }
        Ok(())
    }

    /// Brings the mirror's table up to date.
    ///
    /// # Errors
    /// As for [`Self::walk`], or when a new row has no place in the mirror.
    pub fn download(&self, workers: usize, table: &Table, card: &mut dyn CardMemory) -> Result<(), EngineError> {
        let mut seen: HashSet<usize> = HashSet::new();
        let mut failed = None;
        self.walk(workers, card, |found| {
            if found.live && failed.is_none() {
                match update(table, found.image) {
                    Ok(row) => drop(seen.insert(row.as_ptr() as usize)),
                    Err(error) => failed = Some(error),
                }
            }
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        if table.len() != seen.len() as u64 {
            let mut gone = Vec::new();
            table.for_each(|row| {
                if !seen.contains(&(row.as_ptr() as usize)) {
                    // SAFETY: no transaction is running on the mirror, ever.
                    gone.push(table.key_format().encode(unsafe { table.row_image(row) }));
                }
            });
            for key in gone {
                // SAFETY: as above.
                unsafe { table.remove(key.hash(), &key) };
            }
        }
        Ok(())
    }
}

/// Brings all tables of the mirror up to date.
///
/// # Errors
/// As for [`Placed::download`].
pub fn download(
    placed: &[Placed],
    workers: usize,
    database: &Database,
    card: &mut dyn CardMemory,
) -> Result<(), EngineError> {
    for (number, placed) in placed.iter().enumerate() {
        placed.download(workers, database.table(number as u16), card)?;
    }
    Ok(())
}

/// Heads are read in pieces of at most a mebibyte.
fn bytes_of_heads(shape: &Shape) -> Vec<u8> {
    vec![0; (1 << (shape.head_bits + 3)).min(1 << 20)]
}

/// Zeroed bytes of the host.
fn bytes(length: u64) -> Result<Vec<u8>, EngineError> {
    let refused = || OutOfMemory { what: "a table on its way to the card", bytes: length as usize };
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length as usize).map_err(|_| refused())?;
    bytes.resize(length as usize, 0);
    Ok(bytes)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Writes an address where a link lies; the bytes above it stay.
fn set_link(bytes: &mut [u8], at: usize, address: u64) {
    bytes[at..at + 5].copy_from_slice(&address.to_le_bytes()[..5]);
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
