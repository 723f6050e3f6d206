//! Which lock protects a row, and where the rows that TPC-C begins with stand.

use super::schema::table;
use super::{Kind, Tpcc};
use crate::lock_trace::{Key, Locked};

/// Customers of a district that share a lock.
const CUSTOMERS: u64 = 100;
/// Stocks of a warehouse that do.
const STOCKS: u64 = 200;

impl Tpcc {
    /// Locks of the customers of a district.
    fn customer_locks(&self) -> u64 {
        self.population.customers.div_ceil(CUSTOMERS)
    }

    /// Locks of a warehouse: its row; of each district the row, payments, orders and customers; and stocks.
    fn locks_of_warehouse(&self) -> u64 {
        let rows = &self.population;
        1 + rows.districts * (3 + self.customer_locks()) + rows.items.div_ceil(STOCKS)
    }
}

impl Locked for Tpcc {
    fn locks(&self) -> u64 {
        self.population.warehouses * self.locks_of_warehouse()
    }

    fn row_of(&self, number: usize, key: &Key<'_>) -> Option<u64> {
        self.population.row_of(number, &key.parts)
    }

    fn scan(&self, number: usize, key: &Key<'_>, limit: usize) -> Vec<u64> {
        // Behind warehouse and district.
        let name = key.image.get(3..).unwrap_or_default();
        self.population.scan(number, &key.parts, name, limit)
    }

    fn lock_of(&self, number: usize, key: &Key<'_>) -> Option<u64> {
        let rows = &self.population;
        let [w, d, n, ..] = key.parts;
        let (districts, payments, orders) = (1, 1 + rows.districts, 1 + 2 * rows.districts);
        let customers = 1 + 3 * rows.districts;
        let stocks = customers + rows.districts * self.customer_locks();
        let place = match number {
            table::WAREHOUSE => 0,
            table::DISTRICT => districts + d - 1,
            // As many payments as a district begins with, and after those of the last district again the first.
            table::HISTORY => payments + (d - 1) / rows.customers % rows.districts,
            // With the index of orders by customer, which is read and written with them.
            table::ORDERS | table::NEW_ORDER | table::ORDER_LINE | table::CUSTOMER_ORDER => orders + d - 1,
            table::CUSTOMER => customers + (d - 1) * self.customer_locks() + (n - 1) / CUSTOMERS,
            table::STOCK => stocks + (d - 1).min(rows.items - 1) / STOCKS,
            // Replicated, and an index; nobody writes them.
            _ => return None,
        };
        Some((w - 1) * self.locks_of_warehouse() + place)
    }

    fn types() -> (&'static [&'static str], &'static [u8]) {
        const { assert!(Kind::ALL.len() == 7) };
        (&["NEW", "PAY", "OS", "DLY", "SL"], &[0, 1, 1, 2, 2, 3, 4])
    }

    fn home_of(&self, number: usize, block: &[u8]) -> Option<u64> {
        // OrderStatus has no other warehouse than the customer's.
        let name = if matches!(Kind::ALL[number], Kind::OrderStatus | Kind::OrderStatusByName) { "c_w" } else { "w" };
        Some(self.procedures.place(number, name).get(block) as u64 - 1)
    }

    fn locks_of_home(&self) -> Option<u64> {
        Some(self.locks_of_warehouse())
    }
}
