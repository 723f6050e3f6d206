//! Workloads made from the sizes that the command line gives. YCSB, with its property files, is made in `run.rs`.

use lockwork_procedure::schema::TableSchema;
use lockwork_workload::smallbank::{Smallbank, SmallbankConfig};
use lockwork_workload::tatp::{Tatp, TatpConfig};
use lockwork_workload::tpcc::{Tpcc, TpccConfig};
use lockwork_workload::transfer::{Transfer, TransferConfig};
use lockwork_workload::{Workload, WorkloadError};

use super::Failure;
use super::measure::check_rows;

/// A workload, if it is possible.
pub(super) type Boxed = Result<Box<dyn Workload>, Failure>;

/// Makes a workload afresh, once for every engine.
pub(super) type Make = Box<dyn Fn() -> Boxed>;

/// A workload, or why it is not possible, in the words of the command.
pub(super) fn boxed<W: Workload + 'static>(made: Result<W, WorkloadError>) -> Boxed {
    Ok(Box::new(made.map_err(refused)?))
}

/// What options of workloads are called on the command line.
const NAMES: &[(&str, &str)] = &[
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

/// An error of a workload, in the words of the command line.
pub(super) fn refused(error: WorkloadError) -> Failure {
    match &error {
        WorkloadError::Option { option, value, expected } => match NAMES.iter().find(|(name, _)| name == option) {
            Some((_, name)) => Failure::usage(format!("{name} is {value}; {expected}")),
            None => Failure::usage(error),
        },
        _ => Failure::usage(error),
    }
}

/// Sizes of a workload, as far as the user gives them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    pub(super) records: Option<u64>,
    pub(super) theta: Option<f64>,
    pub(super) hot: Option<f64>,
    pub(super) remote: Option<f64>,
    pub(super) seed: u64,
}

/// `transfer`.
pub(super) fn transfer(sizes: &Sizes) -> Result<Make, Failure> {
    let default = TransferConfig::default();
    let config = TransferConfig {
        accounts: sizes.records.unwrap_or(default.accounts),
        theta: sizes.theta.unwrap_or(default.theta),
        seed: sizes.seed,
        ..default
    };
    config.validate().map_err(refused)?;
    check_tables(&[Transfer::schema()], config.accounts)?;
    Ok(Box::new(move || boxed(Transfer::new(config.clone()))))
}

/// `smallbank`.
pub(super) fn smallbank(sizes: &Sizes) -> Result<Make, Failure> {
    let default = SmallbankConfig::default();
    let config = SmallbankConfig {
        accounts: sizes.records.unwrap_or(default.accounts),
        theta: sizes.theta.unwrap_or(default.theta),
        hot: sizes.hot.unwrap_or(default.hot),
        seed: sizes.seed,
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

/// `tatp`.
pub(super) fn tatp(sizes: &Sizes) -> Result<Make, Failure> {
    let subscribers = sizes.records.unwrap_or(TatpConfig::default().subscribers);
    let config = TatpConfig { subscribers, seed: sizes.seed, ..TatpConfig::default() };
    config.validate().map_err(refused)?;
    for (schema, each) in Tatp::tables() {
        check_rows(&schema, (subscribers as f64 * each) as u64)?;
    }
    Ok(Box::new(move || boxed(Tatp::new(config.clone()))))
}

/// All transactions of TPC-C.
pub(super) fn tpcc(sizes: &Sizes) -> Result<Make, Failure> {
    let mut config = TpccConfig::standard(sizes.records.unwrap_or(1));
    config.remote_line = sizes.remote.unwrap_or(config.remote_line);
    tpcc_of(sizes, config)
}

/// NewOrder and Payment of TPC-C.
pub(super) fn tpcc_np(sizes: &Sizes) -> Result<Make, Failure> {
    let mut config = TpccConfig::new_order_payment(sizes.records.unwrap_or(1));
    config.remote_order = sizes.remote.unwrap_or(config.remote_order);
    tpcc_of(sizes, config)
}

fn tpcc_of(sizes: &Sizes, config: TpccConfig) -> Result<Make, Failure> {
    let remote_payment = sizes.remote.unwrap_or(config.remote_payment);
    let config = TpccConfig { seed: sizes.seed, remote_payment, ..config };
    let tpcc = Tpcc::new(config.clone()).map_err(refused)?;
    for (table, schema) in tpcc.schemas().iter().enumerate() {
        check_rows(schema, tpcc.row_count(table))?;
    }
    Ok(Box::new(move || boxed(Tpcc::new(config.clone()))))
}
