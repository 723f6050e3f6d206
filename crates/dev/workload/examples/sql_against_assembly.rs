//! How fast the SQL of the fixed workloads is beside their assembly: the same calls, on `deterministic` with one
//! thread, in turns; prints the median rates and their ratio, after the data was checked.
//!
//! `cargo run --release -p lockwork-workload --example sql_against_assembly [ROUNDS]`

use std::time::Instant;

use lockwork_engine::{Engine, EngineKind, Options, create};
use lockwork_procedure::assembly::assemble;
use lockwork_procedure::block::Batch;
use lockwork_workload::smallbank::{Smallbank, SmallbankConfig};
use lockwork_workload::statistics::median;
use lockwork_workload::tatp::{Tatp, TatpConfig};
use lockwork_workload::tpcc::{Tpcc, TpccConfig};
use lockwork_workload::{Source, Workload};

type Failure = Box<dyn std::error::Error>;
type Make = dyn Fn(Source) -> Result<Box<dyn Workload>, Failure>;

fn prepared(workload: &mut dyn Workload) -> Result<Box<dyn Engine>, Failure> {
    let mut engine = create(EngineKind::DETERMINISTIC, Options { threads: 1, ..Options::default() })?;
    let schemas = workload.schemas();
    let mut image = Vec::new();
    for (table, schema) in schemas.iter().enumerate() {
        engine.create_table(schema.clone(), workload.row_count(table) as usize * 2)?;
        for row in 0..workload.row_count(table) {
            workload.row_image(table, row, &mut image);
            engine.load(schema.name(), &image)?;
        }
    }
    for (_, source) in workload.sources() {
        engine.register(assemble(&source, schemas.as_slice())?.procedure)?;
    }
    workload.bind(&mut |name| {
        let id = engine.procedure_id(name)?;
        Some((id, engine.procedure(id)?.verified.procedure().clone()))
    })?;
    Ok(engine)
}

fn compare(name: &str, make: &Make, rounds: usize, calls: usize) -> Result<(), Failure> {
    let mut workloads = [make(Source::Assembly)?, make(Source::Sql)?];
    let [assembly, sql] = &mut workloads;
    let mut engines = [prepared(&mut **assembly)?, prepared(&mut **sql)?];
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (at, (engine, workload)) in engines.iter_mut().zip(&mut workloads).enumerate() {
            let mut batch = Batch::new(workload.block_bytes(), calls)?;
            workload.fill(&mut batch, calls)?;
            let start = Instant::now();
            engine.submit(batch).map_err(|refused| refused.error)?;
            let completed = engine.complete()?.ok_or("a batch was submitted")?;
            rates[at].push(calls as f64 / start.elapsed().as_secs_f64());
            workload.observe(&completed.batch);
        }
    }
    if engines[0].digest()? != engines[1].digest()? {
        return Err(format!("{name}: the digests differ").into());
    }
    for (engine, workload) in engines.iter().zip(&mut workloads) {
        workload.check(&mut |each| engine.export(each).expect("nothing is in flight"))?;
    }
    let [assembly, sql] = rates.map(median);
    println!("{name:12} assembly {assembly:10.0} txn/s   sql {sql:10.0} txn/s   ratio {:.3}", sql / assembly);
    Ok(())
}

fn main() -> Result<(), Failure> {
    let rounds = std::env::args().nth(1).map_or(Ok(15), |rounds| rounds.parse())?;
    let smallbank = |source| -> Result<Box<dyn Workload>, Failure> {
        Ok(Box::new(Smallbank::new(SmallbankConfig { accounts: 200_000, source, ..SmallbankConfig::default() })?))
    };
    let tatp = |source| -> Result<Box<dyn Workload>, Failure> {
        Ok(Box::new(Tatp::new(TatpConfig { source, ..TatpConfig::default() })?))
    };
    let tpcc = |source| -> Result<Box<dyn Workload>, Failure> {
        Ok(Box::new(Tpcc::new(TpccConfig { source, ..TpccConfig::standard(1) })?))
    };
    let pair = |source| -> Result<Box<dyn Workload>, Failure> {
        Ok(Box::new(Tpcc::new(TpccConfig { source, ..TpccConfig::new_order_payment(1) })?))
    };
    compare("smallbank", &smallbank, rounds, 100_000)?;
    compare("tatp", &tatp, rounds, 100_000)?;
    compare("tpcc", &tpcc, rounds, 4_000)?;
    compare("tpcc-np", &pair, rounds, 4_000)
}
