//! The same transactions in SQL.

use lockwork_procedure::schema::TableSchema;

use super::{Mix, TpccConfig};
use crate::from_sql;

const SCHEMA: &str = include_str!("../../../sql/tpcc_schema.sql");
const NEW_ORDER: &str = include_str!("../../../sql/tpcc_new_order.sql");
const PAYMENT: &str = include_str!("../../../sql/tpcc_payment.sql");
const PAYMENT_BY_NAME: &str = include_str!("../../../sql/tpcc_payment_by_name.sql");
const ORDER_STATUS: &str = include_str!("../../../sql/tpcc_order_status.sql");
const ORDER_STATUS_BY_NAME: &str = include_str!("../../../sql/tpcc_order_status_by_name.sql");
const DELIVERY: &str = include_str!("../../../sql/tpcc_delivery.sql");
const STOCK_LEVEL: &str = include_str!("../../../sql/tpcc_stock_level.sql");

/// The assembly that the SQL of a mix compiles to, in the order of [`super::super::Kind`].
pub(super) fn assembly(config: &TpccConfig, schemas: &[TableSchema]) -> Vec<String> {
    if config.mix != Mix::Standard {
        // Without the index of orders by customer there is no row of it.
        let lines = NEW_ORDER.lines().filter(|line| !line.contains("INTO customer_order"));
        let new_order = lines.collect::<Vec<_>>().join("\n");
        return from_sql::assembly(&[&new_order, PAYMENT], schemas, &["new_order", "payment"]);
    }
    let delivery = DELIVERY.replace("FOR d IN 1..10 LOOP", &format!("FOR d IN 1..{} LOOP", config.districts));
    let scripts =
        [SCHEMA, NEW_ORDER, PAYMENT, PAYMENT_BY_NAME, ORDER_STATUS, ORDER_STATUS_BY_NAME, &delivery, STOCK_LEVEL];
    let names =
        ["new_order", "payment", "payment_by_name", "order_status", "order_status_by_name", "delivery", "stock_level"];
    from_sql::assembly(&scripts, schemas, &names)
}
