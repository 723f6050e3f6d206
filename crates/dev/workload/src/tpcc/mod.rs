//! TPC-C: wholesale with warehouses, districts, customers, orders and stock; the standard benchmark of transactions.
//!
//! Source: TPC Benchmark C, revision 5.11; clause numbers in this module are of that text. All five transactions with
//! the standard mix ([`Mix::Standard`]), or NewOrder and Payment alone ([`Mix::NewOrderPayment`]), as BionicDB
//! measured. There are no terminals, think times or queued deliveries: an engine gets transactions as fast as it takes
//! them, so figures are transactions a second, not tpmC.
//!
//! The rooms: `config` (what is wanted), `schema` (tables), `population` (first rows), `draw` and `call` (input),
//! `procedures` (the transactions), `locks` (what
//! protects a row, for lock managers), `observed` (what committed transactions said), `check` (what must hold).
//!
//! Invariant: the twelve consistency conditions of clause 3.3.2 hold whenever nothing is in flight; the money that
//! committed payments paid is the growth of the warehouses' `ytd`, and orders, deliveries and quantities are as many as
//! committed transactions reported.
//!
//! A payment's row of `history` is named by its warehouse and a number of the call, so calls cannot run twice.

mod call;
mod check;
mod config;
mod draw;
mod locks;
mod observed;
mod population;
mod procedures;
mod schema;
#[cfg(test)]
mod tests;

use lockwork_procedure::block::Batch;
use lockwork_procedure::schema::TableSchema;

pub use config::{Mix, TpccConfig};

use crate::fields::Procedures;
use crate::{Export, Lookup, Repeat, Workload, WorkloadError, fill};
use call::Calls;
use observed::Observed;
use population::Population;
use schema::table;

/// The transactions, in the order of the procedures; the first two are all that the smaller mixes have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
enum Kind {
    NewOrder,
    Payment,
    PaymentByName,
    OrderStatus,
    OrderStatusByName,
    Delivery,
    StockLevel,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::NewOrder,
        Self::Payment,
        Self::PaymentByName,
        Self::OrderStatus,
        Self::OrderStatusByName,
        Self::Delivery,
        Self::StockLevel,
    ];

    /// Its share of the transactions.
    fn share(self, config: &TpccConfig) -> f64 {
        let by_name = config.by_name;
        match (config.mix, self) {
            (Mix::NewOrderPayment, Self::NewOrder | Self::Payment) => 0.5,
            (Mix::NewOrder, Self::NewOrder) | (Mix::Payment, Self::Payment) => 1.0,
            (Mix::NewOrderPayment | Mix::NewOrder | Mix::Payment, _) => 0.0,
            (_, Self::NewOrder) => 0.45,
            (_, Self::Payment) => 0.43 * (1.0 - by_name),
            (_, Self::PaymentByName) => 0.43 * by_name,
            (_, Self::OrderStatus) => 0.04 * (1.0 - by_name),
            (_, Self::OrderStatusByName) => 0.04 * by_name,
            (_, Self::Delivery | Self::StockLevel) => 0.04,
        }
    }

    /// Rows that it looks up, inserts, removes or scans, and bytes of them that it reads or writes, for 10 lines an
    /// order and 10 districts.
    const fn cost(self) -> (f64, f64) {
        match self {
            // Warehouse, district, customer, order, new order; item, stock and line ten times.
            Self::NewOrder => (35.0, 1300.0),
            // Addresses, the customer and the history.
            Self::Payment => (4.0, 420.0),
            Self::PaymentByName => (8.0, 550.0),
            Self::OrderStatus => (13.0, 700.0),
            Self::OrderStatusByName => (17.0, 830.0),
            // Of each district: new order twice, order, customer and ten lines.
            Self::Delivery => (140.0, 1700.0),
            // District, 20 orders, 200 lines, and stock for each.
            Self::StockLevel => (421.0, 1300.0),
        }
    }
}

/// The name of a mix on the command line.
const fn name(mix: Mix) -> &'static str {
    match mix {
        Mix::Standard => "tpcc",
        Mix::NewOrderPayment => "tpcc-np",
        Mix::NewOrder => "tpcc-new-order",
        Mix::Payment => "tpcc-payment",
    }
}

/// A TPC-C workload.
#[derive(Clone, Debug)]
pub struct Tpcc {
    config: TpccConfig,
    schemas: Vec<TableSchema>,
    population: Population,
    procedures: Procedures,
    calls: Calls,
    observed: Observed,
}

impl Tpcc {
    /// Prepares a workload.
    ///
    /// # Errors
    /// As [`TpccConfig::validate`].
    pub fn new(config: TpccConfig) -> Result<Self, WorkloadError> {
        config.validate()?;
        let schemas = schema::schemas(config.mix == Mix::Standard);
        let procedures = Procedures::new(procedures::sources(&config, &schemas), &schemas);
        let population = Population::new(&config);
        Ok(Self {
            calls: Calls::new(&config, &procedures),
            observed: Observed::new(&config, &population, &procedures),
            schemas,
            population,
            procedures,
            config,
        })
    }

    /// What it was made from.
    #[must_use]
    pub fn config(&self) -> &TpccConfig {
        &self.config
    }

    /// The mean of something over the mix.
    fn mean(&self, of: impl Fn(Kind) -> f64) -> f64 {
        Kind::ALL.into_iter().map(|kind| kind.share(&self.config) * of(kind)).sum()
    }
}

impl Workload for Tpcc {
    fn name(&self) -> String {
        name(self.config.mix).into()
    }

    fn describe(&self) -> String {
        self.config.describe()
    }

    fn schemas(&self) -> Vec<TableSchema> {
        self.schemas.clone()
    }

    fn row_count(&self, table: usize) -> u64 {
        if table < self.schemas.len() { self.population.row_count(table) } else { 0 }
    }

    fn row_image(&self, table: usize, row: u64, image: &mut Vec<u8>) {
        assert!(row < self.row_count(table), "row {row} of table {table}");
        self.population.row_image(table, &self.schemas[table], row, image);
    }

    fn sources(&self) -> Vec<(String, String)> {
        self.procedures.sources()
    }

    fn bind(&mut self, lookup: &mut Lookup<'_>) -> Result<(), WorkloadError> {
        self.procedures.bind(lookup)
    }

    fn fill(&mut self, batch: &mut Batch, transactions: usize) -> Result<usize, WorkloadError> {
        let room = self.procedures.room(batch, transactions)?;
        let draw = |this: &mut Self, _| {
            let kind = this.calls.draw(&this.config);
            (kind, this.procedures.id(kind as usize))
        };
        let write = |this: &mut Self, kind, block: &mut [u8]| {
            this.calls.write(kind, &this.config, &this.population, block);
        };
        Ok(fill(self, batch, room, draw, write))
    }

    fn block_bytes(&self) -> u32 {
        self.procedures.block_bytes()
    }

    fn payload_bytes(&self) -> u32 {
        self.mean(|kind| kind.cost().1).round() as u32
    }

    fn accesses(&self) -> u32 {
        self.mean(|kind| kind.cost().0).round() as u32
    }

    fn growth(&self, table: usize) -> f64 {
        let orders = Kind::NewOrder.share(&self.config);
        match table {
            table::HISTORY => Kind::Payment.share(&self.config) + Kind::PaymentByName.share(&self.config),
            table::ORDERS | table::NEW_ORDER | table::CUSTOMER_ORDER => orders,
            table::ORDER_LINE => 10.0 * orders,
            _ => 0.0,
        }
    }

    fn repeat(&self) -> Repeat {
        Repeat::Never
    }

    fn observe(&mut self, batch: &Batch) {
        self.observed.add(&self.procedures, batch);
    }

    fn check_results(&self, batch: &Batch) -> Result<u64, WorkloadError> {
        self.observed.check_results(&self.procedures, batch)
    }

    fn check(&mut self, export: &mut Export<'_>) -> Result<String, WorkloadError> {
        check::contents(&self.schemas, &self.population, &self.observed, export)
    }
}
