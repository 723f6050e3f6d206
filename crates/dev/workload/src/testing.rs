//! What the tests of several workloads share.

use lockwork_procedure::assembly::assemble;
use lockwork_procedure::block::Batch;

use crate::{Workload, WorkloadError};

/// Binds a workload to its own procedures, numbered as they stand.
pub(crate) fn bind(workload: &mut dyn Workload) {
    let (schemas, sources) = (workload.schemas(), workload.sources());
    let mut lookup = |name: &str| {
        let number = sources.iter().position(|(known, _)| known == name)?;
        Some((number as u32, assemble(&sources[number].1, schemas.as_slice()).unwrap().procedure))
    };
    workload.bind(&mut lookup).unwrap();
}

/// A batch of calls.
pub(crate) fn filled(workload: &mut dyn Workload, calls: usize) -> Batch {
    let mut batch = Batch::new(workload.block_bytes(), calls).unwrap();
    assert_eq!(workload.fill(&mut batch, calls), Ok(calls));
    batch
}

/// Names of tables, and images of all rows as loaded.
pub(crate) fn images(workload: &dyn Workload) -> Vec<(String, Vec<u8>)> {
    let mut images = Vec::new();
    for (table, schema) in workload.schemas().iter().enumerate() {
        for row in 0..workload.row_count(table) {
            let mut image = Vec::new();
            workload.row_image(table, row, &mut image);
            images.push((schema.name().to_string(), image));
        }
    }
    images
}

/// What the check says of these rows.
pub(crate) fn check(workload: &mut dyn Workload, rows: &[(String, Vec<u8>)]) -> Result<String, String> {
    let mut export = |each: &mut dyn FnMut(&str, &[u8])| rows.iter().for_each(|(table, row)| each(table, row));
    workload.check(&mut export).map_err(|error: WorkloadError| error.to_string())
}

/// FNV-1a, 64 bits, of many pieces.
fn digest<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> u64 {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
    pieces.fold(0xCBF2_9CE4_8422_2325, |hash, piece| piece.iter().fold(hash, step))
}

/// Digests of all rows as loaded and of the first thousand calls: a change of either is a change of every result that
/// was measured before.
pub(crate) fn golden(workload: &mut dyn Workload) -> (u64, u64) {
    let rows = images(workload);
    bind(workload);
    let batch = filled(workload, 1000);
    (digest(rows.iter().map(|(_, row)| row.as_slice())), digest(batch.blocks().map(|block| block.bytes())))
}
