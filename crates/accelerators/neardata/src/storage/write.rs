//! What changes the store: new tables, flushed versions, committed bulk updates, collection.
//!
//! Invariant: whoever changes a VID map holds the seals, and does so after the seal is durable; before, nothing that a
//! reader can find has changed.

use std::collections::HashMap;

use lockwork_procedure::schema::TableSchema;

use super::bulk::Changes;
use super::core::Core;
use super::page::{RecordHeader, Shape};
use super::recovery::schema_pages;
use super::seal::{Contents, Seals};
use super::state::{Table, no_table};
use super::unit::{Target, UnitWriter, forget, write_plain};
use crate::device::{DeviceError, TableId, Version};
use crate::record::{RecordId, Timestamp, Vid, VidEntry};

/// Entries of a VID map that are changed in one go.
const AT_ONCE: usize = 1 << 14;

fn refuse<T>(text: String) -> Result<T, DeviceError> {
    Err(DeviceError::Refused(text))
}

/// Creates a table.
pub(super) fn create_table(core: &Core, seals: &mut Seals, schema: &TableSchema) -> Result<TableId, DeviceError> {
    let name = schema.name();
    let Some(shape) = Shape::of(schema) else {
        let bytes = schema.row_bytes();
        return refuse(format!("table '{name}': its rows have {bytes} bytes; a row must fit a page of 8 KiB"));
    };
    let id = {
        let state = core.state();
        if state.tables.iter().any(|table| table.schema.name() == name) {
            return refuse(format!("there is a table '{name}'; give another name"));
        }
        TableId::try_from(state.tables.len()).or_else(|_| refuse(format!("there are {} tables", state.tables.len())))?
    };
    let mut targets = Vec::new();
    let mut write = || {
        for (header, page) in schema_pages(id, schema) {
            targets.push(write_plain(core, header, page)?);
        }
        Ok(())
    };
    // The pages that are installed with the seal are of this table, so it must be there before.
    let result = write().and_then(|()| {
        core.state_mut().tables.push(Table::new(schema.clone(), shape));
        let contents = Contents { targets: &targets, dropped: &[], table: id, created: 0, newest: 0 };
        seals.seal(core, &contents).inspect_err(|_| drop(core.state_mut().tables.pop()))
    });
    result.inspect_err(|_| forget(core, targets))?;
    Ok(id)
}

/// Stores committed versions.
pub(super) fn flush(
    core: &Core,
    seals: &mut Seals,
    table: TableId,
    versions: &[Version],
    watermark: Timestamp,
) -> Result<Vec<RecordId>, DeviceError> {
    let shape = check(core, table, versions)?;
    core.state_mut().free_superseded(table, core.watermark(watermark));
    if versions.is_empty() {
        return Ok(Vec::new());
    }
    let mut writer = UnitWriter::new(core, table, shape);
    let mut records = Vec::with_capacity(versions.len());
    // What is newest of each tuple once this flush counts.
    let mut newest: HashMap<Vid, VidEntry> = HashMap::with_capacity(versions.len());
    let mut superseded = Vec::new();
    for version in versions {
        let Version { vid, number, created, .. } = *version;
        let known = newest.get(&vid).copied().unwrap_or_else(|| {
            let state = core.state();
            state.tables[usize::from(table)].vids.get(vid.0 as usize).copied().unwrap_or_default()
        });
        let previous = if known == VidEntry::default() { RecordId::NONE } else { known.record() };
        let removed = version.image.is_none();
        let record = RecordHeader { vid, number, created, previous, removed };
        let record = writer.push(&record, version.image.as_deref())?;
        if previous != RecordId::NONE {
            superseded.push(previous);
        }
        newest.insert(vid, VidEntry::new(number, record));
        records.push(record);
    }
    let targets = writer.finish()?;
    let last = versions.iter().map(|version| version.created).max().unwrap_or_default();
    let contents = Contents { targets: &targets, dropped: &[], table, created: 0, newest: last };
    seals.seal(core, &contents).inspect_err(|_| forget(core, targets))?;
    let mut state = core.state_mut();
    state.versions += versions.len() as u64;
    let table = &mut state.tables[usize::from(table)];
    for (vid, entry) in newest {
        set(table, vid, entry);
    }
    table.supersede(last, superseded);
    Ok(records)
}

fn set(table: &mut Table, vid: Vid, entry: VidEntry) {
    let index = vid.0 as usize;
    if index >= table.vids.len() {
        table.vids.resize(index + 1, VidEntry::default());
    }
    table.vids[index] = entry;
}

/// Checks that versions follow on what is stored.
fn check(core: &Core, id: TableId, versions: &[Version]) -> Result<Shape, DeviceError> {
    let state = core.state();
    let table = state.table(id)?;
    let shape = table.shape;
    let mut last: HashMap<Vid, (u32, Timestamp)> = HashMap::with_capacity(versions.len());
    for Version { vid, number, created, image } in versions {
        let vid_text = &vid.0;
        if *vid_text >= core.tuples {
            let most = core.tuples;
            return refuse(format!("table {id}: there is no tuple {vid_text}; a table has at most {most} here"));
        }
        let stored = table.vids.get(vid.0 as usize).copied().unwrap_or_default();
        // The host leaves out versions that no snapshot sees any more.
        let follows = match last.get(vid) {
            Some((before, _)) => number > before,
            None if stored == VidEntry::default() => *number > 0,
            None => stored.is_older_than(*number),
        };
        if !follows {
            let newest = match last.get(vid) {
                Some((before, _)) => u64::from(*before),
                None => stored.0 >> 40,
            };
            return refuse(format!(
                "table {id}: version {number} of tuple {vid_text} does not follow on the newest stored one, {newest}"
            ));
        }
        if *created <= last.get(vid).map_or(0, |(_, created)| *created) {
            return refuse(format!(
                "table {id}: version {number} of tuple {vid_text} was created at {created}, not after the one before"
            ));
        }
        if let Some(image) = image
            && image.len() != shape.image
        {
            let (bytes, wanted) = (image.len(), shape.image);
            return refuse(format!("table {id}: the image of tuple {vid_text} has {bytes} bytes instead of {wanted}"));
        }
        last.insert(*vid, (*number, *created));
    }
    Ok(shape)
}

/// Seals the pages of a bulk update and switches the VID map to them.
pub(super) fn commit(
    core: &Core,
    seals: &mut Seals,
    table: TableId,
    changes: &Changes,
    timestamp: Timestamp,
) -> Result<(), DeviceError> {
    for tuples in changes.tuples.chunks(AT_ONCE) {
        let state = core.state();
        let vids = &state.tables[usize::from(table)].vids;
        for change in tuples {
            let vid = change.modified.vid;
            if vids[vid.0 as usize].record() != change.base {
                return Err(DeviceError::Conflict { table, vid });
            }
        }
    }
    let targets: &[Target] = &changes.targets;
    if !targets.is_empty() {
        let contents = Contents { targets, dropped: &[], table, created: timestamp, newest: timestamp };
        seals.seal(core, &contents)?;
    }
    for tuples in changes.tuples.chunks(AT_ONCE) {
        let mut state = core.state_mut();
        state.versions += tuples.len() as u64;
        let table = &mut state.tables[usize::from(table)];
        for change in tuples {
            let new = change.modified;
            set(table, new.vid, VidEntry::new(new.number, new.record));
        }
        table.supersede(timestamp, tuples.iter().map(|change| change.base));
    }
    Ok(())
}

/// Frees what no snapshot from `watermark` on sees, and the pages that hold nothing any more.
pub(super) fn collect(core: &Core, seals: &mut Seals, watermark: Timestamp) -> Result<u64, DeviceError> {
    let watermark = core.watermark(watermark);
    let mut freed = 0;
    let tables = core.state().tables.len();
    for table in 0..tables {
        let table = TableId::try_from(table).map_err(|_| no_table(TableId::MAX, tables))?;
        freed += core.state_mut().free_superseded(table, watermark);
    }
    let dropped = core.state_mut().check_out_empty();
    if dropped.is_empty() {
        return Ok(freed);
    }
    let contents = Contents { targets: &[], dropped: &dropped, table: 0, created: 0, newest: 0 };
    let sealed = seals.seal(core, &contents);
    if let Err(error) = sealed {
        let mut state = core.state_mut();
        dropped.iter().for_each(|page| state.give_back(page));
        return match error {
            // What was freed is free; only the pages stay where they are for now.
            DeviceError::Full(_) => Ok(freed),
            error => Err(error),
        };
    }
    Ok(freed)
}
