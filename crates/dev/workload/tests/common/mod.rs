//! Workloads on engines, for several tests.

use lockwork_engine::{Engine, EngineKind, LockPolicy, Options, create};
use lockwork_memory::Pages;
use lockwork_procedure::assembly::assemble;
use lockwork_procedure::block::Batch;
use lockwork_workload::Workload;

/// An engine with the tables, rows and procedures of a workload.
pub(crate) fn prepared(kind: EngineKind, policy: LockPolicy, workload: &mut dyn Workload) -> Box<dyn Engine> {
    let options = Options { threads: 2, policy, pages: Pages::Plain, ..Options::default() };
    let mut engine = create(kind, options.clone()).unwrap();
    let schemas = workload.schemas();
    let mut image = Vec::new();
    for (table, schema) in schemas.iter().enumerate() {
        engine.create_table(schema.clone(), workload.row_count(table) as usize).unwrap();
        for row in 0..workload.row_count(table) {
            workload.row_image(table, row, &mut image);
            engine.load(schema.name(), &image).unwrap();
        }
    }
    for (name, source) in workload.sources() {
        let assembled = assemble(&source, schemas.as_slice()).unwrap_or_else(|error| panic!("{name}: {error}"));
        engine.register(assembled.procedure).unwrap_or_else(|error| panic!("{error}"));
    }
    let mut lookup = |name: &str| {
        let id = engine.procedure_id(name)?;
        Some((id, engine.procedure(id)?.verified.procedure().clone()))
    };
    workload.bind(&mut lookup).unwrap();
    engine
}

/// Hands a batch over.
pub(crate) fn submit(engine: &mut dyn Engine, batch: Batch) {
    engine.submit(batch).unwrap_or_else(|refused| panic!("{}", refused.error));
}
