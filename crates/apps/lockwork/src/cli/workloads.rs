//! The workloads of `lockwork bench` that have a name of their own, made from the options of the command line.
//!
//! YCSB is not among them: its property files are `bench.rs`'s affair.

use lockwork_engine::Options;
use lockwork_procedure::schema::TableSchema;
use lockwork_workload::smallbank::{Smallbank, SmallbankConfig};
use lockwork_workload::tatp::{Tatp, TatpConfig};
use lockwork_workload::tpcc::{Tpcc, TpccConfig};
use lockwork_workload::transfer::{Transfer, TransferConfig};
use lockwork_workload::{Workload, WorkloadError};

use super::Failure;
use super::bench::{Arguments, refused};
use super::run::check_rows;

/// A workload, if it is possible.
pub(super) type Boxed = Result<Box<dyn Workload>, Failure>;

/// Makes a workload afresh, once for every engine.
pub(super) type Make = Box<dyn Fn() -> Boxed>;

/// A workload, or why it is not possible, in the words of the command.
pub(super) fn boxed<W: Workload + 'static>(made: Result<W, WorkloadError>) -> Boxed {
    Ok(Box::new(made.map_err(refused)?))
}

/// What options of workloads are called on the command line.
pub(super) const NAMES: &[(&str, &str)] = &[
    ("records", "--records"),
    ("accounts", "--records"),
    ("theta", "--theta"),
    ("warehouses", "--records"),
    ("subscribers", "--records"),
    ("remote_payment", "--remote"),
    ("remote", "--remote"),
    ("partitions", "--partitions"),
    ("hot", "--hot"),
    ("operations", "--ops"),
    ("fields", "--fields"),
    ("field_bytes", "-P fieldlength"),
    ("min_scan", "-P minscanlength"),
    ("max_scan", "-P maxscanlength"),
    ("read", "-P readproportion"),
];

/// Refuses tables of `rows` rows each that do not fit, before anything is computed for them.
fn check_tables(schemas: &[TableSchema], rows: u64) -> Result<(), Failure> {
    schemas.iter().try_for_each(|schema| check_rows(schema, rows))
}

/// How to make the workload that was asked for; `None` when it is none of these.
pub(super) fn named(arguments: &Arguments) -> Result<Option<Make>, Failure> {
    Ok(Some(match arguments.workload.as_str() {
        "transfer" => transfer(arguments)?,
        "smallbank" => smallbank(arguments)?,
        "tatp" => tatp(arguments)?,
        "tpcc" | "tpcc-np" => tpcc(arguments)?,
        _ => return Ok(None),
    }))
}

fn transfer(arguments: &Arguments) -> Result<Make, Failure> {
    let default = TransferConfig::default();
    let config = TransferConfig {
        accounts: arguments.records.unwrap_or(default.accounts),
        theta: arguments.theta.unwrap_or(default.theta),
        seed: arguments.seed(),
        ..default
    };
    config.validate().map_err(refused)?;
    check_tables(&[Transfer::schema()], config.accounts)?;
    Ok(Box::new(move || boxed(Transfer::new(config.clone()))))
}

fn smallbank(arguments: &Arguments) -> Result<Make, Failure> {
    let default = SmallbankConfig::default();
    let config = SmallbankConfig {
        accounts: arguments.records.unwrap_or(default.accounts),
        theta: arguments.theta.unwrap_or(default.theta),
        hot: arguments.hot.unwrap_or(default.hot),
        seed: arguments.seed(),
        ..default
    };
    if config.hot > 0.0 && config.accounts < config.hot_accounts {
        let (accounts, hot) = (config.accounts, config.hot_accounts);
        return Err(Failure::usage(format!(
            "--records is {accounts}; at least {hot}, the hot customers, are needed with --hot"
        )));
    }
    config.validate().map_err(refused)?;
    check_tables(&Smallbank::schemas(), config.accounts)?;
    Ok(Box::new(move || boxed(Smallbank::new(config.clone()))))
}

fn tatp(arguments: &Arguments) -> Result<Make, Failure> {
    let subscribers = arguments.records.unwrap_or(TatpConfig::default().subscribers);
    let config = TatpConfig { subscribers, seed: arguments.seed(), ..TatpConfig::default() };
    config.validate().map_err(refused)?;
    for (schema, each) in Tatp::tables() {
        check_rows(&schema, (subscribers as f64 * each) as u64)?;
    }
    Ok(Box::new(move || boxed(Tatp::new(config.clone()))))
}

fn tpcc(arguments: &Arguments) -> Result<Make, Failure> {
    let threads = arguments.threads.unwrap_or(Options::default().threads) as u64;
    let warehouses = arguments.records.unwrap_or(threads);
    let whole = arguments.workload == "tpcc";
    let mut config = if whole { TpccConfig::standard(warehouses) } else { TpccConfig::new_order_payment(warehouses) };
    config.seed = arguments.seed();
    if let Some(share) = arguments.remote {
        config.remote_payment = share;
        *(if whole { &mut config.remote_line } else { &mut config.remote_order }) = share;
    }
    let tpcc = Tpcc::new(config.clone()).map_err(refused)?;
    for (table, schema) in tpcc.schemas().iter().enumerate() {
        check_rows(schema, tpcc.row_count(table))?;
    }
    Ok(Box::new(move || boxed(Tpcc::new(config.clone()))))
}
