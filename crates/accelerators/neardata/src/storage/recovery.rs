//! Opening: from the pages of the file to the maps in memory.
//!
//! The first pass reads the whole file and looks at seals only; the second reads the pages that count, in ascending
//! order, and checks each against its seal. Whatever no whole seal lists was never sealed, or has been replaced, and is
//! free.
//!
//! Trade-off: no checkpoint is kept, so opening takes two sequential reads of the file, and writing takes nothing more
//! than the seals.

use std::collections::{BTreeMap, HashMap};

use lockwork_procedure::assembly::assemble;
use lockwork_procedure::schema::TableSchema;

use super::core::check;
use super::disk::{Disk, Page};
use super::error::{corrupt, disk_error};
use super::head::{HEAD_PAGES, Head};
use super::page::{HEADER_BYTES, Header, Kind, PAGE_BYTES, RecordHeader, Shape, Slots, record_at, u32_at};
use super::page::{checksum, put};
use super::seal::{Part, Seal, Seals};
use super::space::Space;
use super::state::{Place, State, Table};
use super::sweep::Sweeper;
use crate::device::{DeviceError, TableId};
use crate::record::{RecordId, Timestamp, VidEntry};

/// Bytes of a schema that one page holds.
const SCHEMA_BYTES: usize = PAGE_BYTES - HEADER_BYTES - 12;

/// What opening finds.
pub(super) struct Recovered {
    pub(super) state: State,
    pub(super) space: Space,
    pub(super) seals: Seals,
}

/// Reads the file.
pub(super) fn recover(disk: &dyn Disk, head: &Head) -> Result<Recovered, DeviceError> {
    let mut sweeper = Sweeper::new(disk);
    let Map { places, seals, live, newest } = Map::read(&mut sweeper, head.pages)?;
    // What is found counts from here on, so it has to be durable before anything that it replaced is written over. The
    // last seal may be in a cache only, which a sync that failed may have left in there as if it were on the disk.
    let last = live.iter().max_by_key(|(number, _)| **number);
    make_durable(disk, last.map_or(&[], |(_, seal)| &seal.physical))?;
    let mut used = vec![false; head.pages as usize];
    let mut content: Vec<(u32, u32)> = Vec::new();
    for (logical, place) in places.iter().enumerate().filter(|(_, place)| place.physical != 0) {
        let in_file = (HEAD_PAGES..head.pages).contains(&place.physical);
        if !in_file || std::mem::replace(&mut used[place.physical as usize], true) {
            let what = format!("seal {} puts logical page {logical} where it cannot be", place.seal);
            return Err(corrupt(place.physical, what));
        }
        content.push((place.physical, logical as u32));
    }
    content.sort_unstable();
    let physical: Vec<u32> = content.iter().map(|&(physical, _)| physical).collect();
    let mut finds = Finds::default();
    sweeper.sweep(&physical, |index, page| {
        let (physical, logical) = content[index];
        let place = &places[logical as usize];
        let header = check(page, logical, place)?;
        finds.look_at(page, &header, physical, place.created)
    })?;
    live.values().flat_map(|seal| &seal.physical).for_each(|&page| used[page as usize] = true);
    let mut space = Space::new(head.pages, (places.len() as u32).max(1));
    (HEAD_PAGES..head.pages).filter(|&page| !used[page as usize]).for_each(|page| space.give(page));
    let empty = (1..places.len()).filter(|&logical| places[logical].physical == 0);
    empty.for_each(|logical| space.give_logical(logical as u32));
    let seals = Seals::new(seals, live);
    let state = finds.into_state(places, newest)?;
    Ok(Recovered { state, space, seals })
}

/// Writes pages once more as they are, and syncs.
fn make_durable(disk: &dyn Disk, physical: &[u32]) -> Result<(), DeviceError> {
    for &number in physical {
        let mut page = [Page::ZERO];
        disk.read(number, &mut page).map_err(|error| disk_error("reading", number, &error))?;
        disk.write(number, &page).map_err(|error| disk_error("writing", number, &error))?;
    }
    disk.sync().map_err(|error| DeviceError::Io(format!("making what was found durable: {error}")))
}

/// The page map, as the seals tell it.
struct Map {
    places: Vec<Place>,
    /// Number of the next seal.
    seals: u64,
    live: HashMap<u64, Seal>,
    newest: Timestamp,
}

impl Map {
    fn read(sweeper: &mut Sweeper<'_>, pages: u32) -> Result<Self, DeviceError> {
        /// The parts found of a seal, and where all of its pages are.
        #[derive(Default)]
        struct Found {
            parts: HashMap<u32, Part>,
            physical: Vec<u32>,
        }
        let mut found: BTreeMap<u64, Found> = BTreeMap::new();
        let all: Vec<u32> = (HEAD_PAGES..pages).collect();
        sweeper.sweep(&all, |index, page| {
            if Header::claims(page, Kind::Seal)
                && checksum(page).is_some()
                && let Some(part) = Part::read(page)
            {
                let seal = found.entry(part.number).or_default();
                seal.physical.push(all[index]);
                seal.parts.insert(part.part, part);
            }
            Ok(())
        })?;
        let mut map = Self { places: Vec::new(), seals: 1, live: HashMap::new(), newest: 0 };
        for (number, Found { parts, physical }) in found {
            map.seals = number + 1;
            let whole = parts.values().next().is_some_and(|part| part.parts as usize == parts.len());
            if !whole {
                continue;
            }
            map.live.insert(number, Seal { physical, ..Seal::default() });
            for part in parts.into_values() {
                map.newest = map.newest.max(part.newest);
                for entry in part.entries {
                    let index = entry.logical as usize;
                    map.places.resize(map.places.len().max(index + 1), Place::default());
                    let (physical, checksum, created) = (entry.physical, entry.checksum, entry.created);
                    map.places[index] = Place { physical, checksum, created, seal: number, ..Place::default() };
                }
            }
        }
        for (logical, place) in map.places.iter().enumerate() {
            if let Some(seal) = map.live.get_mut(&place.seal) {
                seal.logicals.push(logical as u32);
                seal.live += 1;
            }
        }
        map.live.retain(|_, seal| seal.live > 0);
        Ok(map)
    }
}

/// The newest version of a tuple found so far.
#[derive(Clone, Copy, Default)]
struct Newest {
    record: u64,
    created: Timestamp,
    number: u32,
}

/// A version that is not the newest of its tuple.
struct Older {
    vid: u32,
    number: u32,
    created: Timestamp,
    record: RecordId,
}

#[derive(Default)]
struct Tuples {
    newest: Vec<Newest>,
    older: Vec<Older>,
    /// (logical page, free slots)
    free: Vec<(u32, Slots)>,
    /// Logical pages of the table, and a physical one for errors.
    pages: Vec<u32>,
    somewhere: u32,
    stride: usize,
    schema: BTreeMap<u32, (usize, Vec<u8>)>,
}

/// What the pages hold, table by table.
#[derive(Default)]
struct Finds {
    tables: BTreeMap<TableId, Tuples>,
    versions: u64,
}

impl Finds {
    fn look_at(&mut self, page: &Page, header: &Header, physical: u32, sealed: Timestamp) -> Result<(), DeviceError> {
        let tuples = self.tables.entry(header.table).or_default();
        tuples.pages.push(header.logical);
        tuples.somewhere = physical;
        match header.kind {
            Kind::Schema => {
                let [offset, length, total] = [0, 4, 8].map(|at| u32_at(&page[..], HEADER_BYTES + at) as usize);
                let at = HEADER_BYTES + 12;
                let bytes = page.get(at..at + length.min(SCHEMA_BYTES)).expect("a schema's bytes are in the page");
                tuples.schema.insert(offset as u32, (total, bytes.to_vec()));
                Ok(())
            }
            Kind::Rows => {
                if tuples.stride != 0 && tuples.stride != header.stride {
                    return Err(corrupt(physical, "its records are of another length than those of its table"));
                }
                tuples.stride = header.stride;
                let free = &mut Slots::default();
                for slot in 0..header.slots {
                    match RecordHeader::read(page, record_at(header.stride, slot)) {
                        None => free.insert(slot),
                        Some(mut record) => {
                            if record.created == 0 {
                                record.created = sealed;
                            }
                            tuples.add(&record, RecordId::new(header.logical, slot as u8), physical)?;
                            self.versions += 1;
                        }
                    }
                }
                if !free.is_empty() {
                    tuples.free.push((header.logical, *free));
                }
                Ok(())
            }
            Kind::Head | Kind::Seal => Err(corrupt(physical, "it is a page of another kind than its seal says")),
        }
    }

    fn into_state(self, places: Vec<Place>, newest: Timestamp) -> Result<State, DeviceError> {
        let mut state = State { places, newest, versions: self.versions, ..State::default() };
        for (id, tuples) in self.tables {
            let missing = || corrupt(tuples.somewhere, format_args!("it is of table {id}, whose schema is missing"));
            if usize::from(id) != state.tables.len() {
                return Err(corrupt(
                    tuples.somewhere,
                    format_args!("it is of table {id}, and earlier ones are missing"),
                ));
            }
            let (schema, shape) = read_schema(&tuples.schema).ok_or_else(missing)?;
            if tuples.stride != 0 && tuples.stride != shape.stride {
                return Err(corrupt(tuples.somewhere, "its records are of another length than its schema says"));
            }
            let mut table = Table::new(schema, shape);
            tuples.fill(&mut table)?;
            state.tables.push(table);
            for &logical in &tuples.pages {
                state.place(logical).table = id;
            }
            for (logical, slots) in tuples.free {
                state.add_free(id, logical, slots);
            }
        }
        Ok(state)
    }
}

impl Tuples {
    fn add(&mut self, record: &RecordHeader, place: RecordId, physical: u32) -> Result<(), DeviceError> {
        let index = record.vid.0 as usize;
        if index >= self.newest.len() {
            self.newest.resize(index + 1, Newest::default());
        }
        let known = &mut self.newest[index];
        let mut found = Newest { record: place.bits(), created: record.created, number: record.number };
        if known.number == found.number {
            let (vid, number) = (record.vid.0, record.number);
            return Err(corrupt(physical, format_args!("version {number} of tuple {vid} is in the file twice")));
        }
        if known.number < found.number {
            std::mem::swap(known, &mut found);
        }
        if found.number != 0 {
            let record = RecordId::from_bits(found.record).expect("it was made from a record id");
            self.older.push(Older { vid: index as u32, number: found.number, created: found.created, record });
        }
        Ok(())
    }

    /// Makes the VID map and notes which versions are superseded.
    fn fill(&self, table: &mut Table) -> Result<(), DeviceError> {
        let entry = |newest: &Newest| match RecordId::from_bits(newest.record) {
            Some(record) if newest.number != 0 => VidEntry::new(newest.number, record),
            _ => VidEntry::default(),
        };
        table.vids = self.newest.iter().map(entry).collect();
        let mut older: Vec<&Older> = self.older.iter().collect();
        older.sort_unstable_by_key(|older| (older.vid, older.number));
        for (index, Older { vid, number, record, .. }) in older.iter().copied().enumerate() {
            let next = older.get(index + 1).filter(|next| next.vid == *vid);
            if next.is_some_and(|next| next.number == *number) {
                return Err(corrupt(self.somewhere, format_args!("version {number} of tuple {vid} is there twice")));
            }
            let created = next.map_or(self.newest[*vid as usize].created, |next| next.created);
            table.supersede(created, [*record]);
        }
        Ok(())
    }
}

/// The pages that hold a schema.
pub(super) fn schema_pages(table: TableId, schema: &TableSchema) -> Vec<(Header, Page)> {
    let text = schema.to_string().into_bytes();
    let page = |(index, chunk): (usize, &[u8])| {
        let mut page = Page::ZERO;
        for (place, value) in [index * SCHEMA_BYTES, chunk.len(), text.len()].into_iter().enumerate() {
            put(&mut page[..], HEADER_BYTES + place * 4, &(value as u32).to_le_bytes());
        }
        put(&mut page[..], HEADER_BYTES + 12, chunk);
        (Header { table, ..Header::plain(Kind::Schema) }, page)
    };
    text.chunks(SCHEMA_BYTES).enumerate().map(page).collect()
}

/// The schema in its parts: where each begins, how long the whole is, and its bytes.
fn read_schema(parts: &BTreeMap<u32, (usize, Vec<u8>)>) -> Option<(TableSchema, Shape)> {
    let mut text = Vec::new();
    for (&offset, (_, bytes)) in parts {
        if offset as usize != text.len() {
            return None;
        }
        text.extend_from_slice(bytes);
    }
    let (total, _) = parts.get(&0)?;
    let text = String::from_utf8(text).ok().filter(|text| text.len() == *total)?;
    let source = format!("procedure schema\ntable {text}\ncommit\n");
    let schema = assemble(&source, [].as_slice()).ok()?.schemas.pop()?;
    let shape = Shape::of(&schema)?;
    Some((schema, shape))
}

#[cfg(test)]
mod tests {
    use lockwork_procedure::schema::ColumnType;

    use super::*;

    #[test]
    fn a_schema_of_many_pages_comes_back() {
        let names: Vec<String> =
            (0..250).map(|i| format!("a_rather_long_name_for_the_column_with_number_{i}")).collect();
        let columns: Vec<_> = names.iter().map(|name| (name.as_str(), ColumnType::Bytes(3))).collect();
        let schema = TableSchema::new("wide", &columns, 2, true).unwrap().partition_by_hash(&names[1]).unwrap();
        let pages = schema_pages(4, &schema);
        assert!(pages.len() > 1);
        let mut finds = Finds::default();
        for (header, page) in pages.iter().rev() {
            finds.look_at(page, header, 7, 0).unwrap();
        }
        let parts = &finds.tables[&4].schema;
        assert_eq!(read_schema(parts).unwrap().0, schema);
        let half = parts.iter().take(1).map(|(&at, part)| (at, part.clone())).collect();
        assert!(read_schema(&half).is_none());
    }
}
