//! What TPC-C is to be like.

use crate::fields::check_share;
use crate::{Source, WorkloadError, within};

/// Which transactions run, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// All five: of a hundred 45 NewOrder, 43 Payment, 4 OrderStatus, 4 Delivery, 4 StockLevel.
    Standard,
    /// NewOrder and Payment, half and half, customers by number: what BionicDB and many others run. Nothing is
    /// scanned, so no table is ordered and there are no indexes of customers by name and orders by customer.
    NewOrderPayment,
    /// NewOrder alone, on the tables of [`Self::NewOrderPayment`].
    NewOrder,
    /// Payment alone, on the same tables.
    Payment,
}

/// The parameters of TPC-C. Cardinalities below the specification's are for tests.
#[derive(Clone, Debug, PartialEq)]
pub struct TpccConfig {
    /// Which transactions run.
    pub mix: Mix,
    /// Warehouses, 1 to 65,535.
    pub warehouses: u64,
    /// Districts of a warehouse, 1 to 10; the specification has 10.
    pub districts: u8,
    /// Customers of a district, and orders that it begins with, 10 to 3,000; the specification has 3,000.
    pub customers: u16,
    /// Items, 100 to 100,000; the specification has 100,000.
    pub items: u32,
    /// Share of payments to a customer of another warehouse, 0 to 1. Without another warehouse all are local.
    pub remote_payment: f64,
    /// Share of order lines that are supplied by another warehouse, 0 to 1.
    pub remote_line: f64,
    /// Share of orders of which one line (more if `remote_line` says so) is supplied by another warehouse, 0 to 1.
    pub remote_order: f64,
    /// Share of orders with an item that does not exist, which are rolled back, 0 to 1.
    pub rollback: f64,
    /// Share of Payment and OrderStatus that name the customer by last name, 0 to 1; only with [`Mix::Standard`].
    pub by_name: f64,
    /// Everything random follows from it.
    pub seed: u64,
    /// What the procedures are written in.
    pub source: Source,
}

impl TpccConfig {
    /// The specification's mix on so many warehouses: 60 % by last name, 1 % of orders rolled back, 1 % of order lines
    /// and 15 % of payments remote.
    #[must_use]
    pub fn standard(warehouses: u64) -> Self {
        Self {
            mix: Mix::Standard,
            warehouses,
            districts: 10,
            customers: 3000,
            items: 100_000,
            remote_payment: 0.15,
            remote_line: 0.01,
            remote_order: 0.0,
            rollback: 0.01,
            by_name: 0.6,
            seed: 1,
            source: Source::Assembly,
        }
    }

    /// NewOrder and Payment as BionicDB runs them (section 5): 1 % of the orders and 15 % of the payments are of two
    /// warehouses. Orders are rolled back as in the specification.
    #[must_use]
    pub fn new_order_payment(warehouses: u64) -> Self {
        let mix = Mix::NewOrderPayment;
        Self { mix, remote_line: 0.0, remote_order: 0.01, by_name: 0.0, ..Self::standard(warehouses) }
    }

    /// Whether everything is possible.
    ///
    /// # Errors
    /// [`WorkloadError::Option`] with the option, its value and what is possible.
    pub fn validate(&self) -> Result<(), WorkloadError> {
        within("warehouses", self.warehouses, 1, u64::from(u16::MAX))?;
        within("districts", u64::from(self.districts), 1, 10)?;
        within("customers", u64::from(self.customers), 10, 3000)?;
        within("items", u64::from(self.items), 100, 100_000)?;
        let by_name = if self.mix != Mix::Standard && self.by_name != 0.0 {
            return crate::refuse("by_name", self.by_name, "with NewOrder and Payment alone only 0 is possible");
        } else {
            self.by_name
        };
        let shares = [
            ("remote_payment", self.remote_payment),
            ("remote_line", self.remote_line),
            ("remote_order", self.remote_order),
            ("rollback", self.rollback),
            ("by_name", by_name),
        ];
        shares.into_iter().try_for_each(|(option, share)| check_share(option, share))
    }

    /// In one line.
    pub(super) fn describe(&self) -> String {
        let name = super::name(self.mix);
        let Self { warehouses, districts, customers, items, remote_payment, rollback, by_name, seed, .. } = self;
        let remote = match (self.remote_line, self.remote_order) {
            (line, 0.0) => format!("lines {line:.4}"),
            (0.0, order) => format!("orders {order:.4}"),
            (line, order) => format!("lines {line:.4}, orders {order:.4}"),
        };
        format!(
            "{name}: {warehouses} warehouses of {districts} districts with {customers} customers, {items} items; remote \
             payments {remote_payment:.4}, {remote}; by last name {by_name:.4}, rollbacks {rollback:.4}, seed {seed}"
        )
    }
}
