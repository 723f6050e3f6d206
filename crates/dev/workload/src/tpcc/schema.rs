//! The nine tables, and two indexes that are tables too.
//!
//! Columns are the specification's (1.3), with fixed widths: money in cents, taxes and discounts in hundredths of a
//! per cent, dates as counters, texts padded with zero bytes, 0 for what is null (carrier, delivery date). "ORIGINAL"
//! in the data of items and stock is a column of its own besides, because procedures have no search in texts.
//!
//! A customer's last and first name with everything else would make a key of 41 bytes, and 32 are possible: the key
//! of `customer_name` has the first 11 bytes of the first name. Two customers of one name who differ behind them stand
//! in the order of their numbers.
//!
//! Everything is partitioned by warehouse, but items, which nobody writes, are replicated. Every ordered table has the
//! warehouse first in its key, so a scan of one district stays in one partition as long as it is not read beyond it.

use lockwork_procedure::schema::{ColumnType, TableSchema};

use ColumnType as T;

/// Where tables stand in [`schemas`].
pub(super) mod table {
    pub(in super::super) const WAREHOUSE: usize = 0;
    pub(in super::super) const DISTRICT: usize = 1;
    pub(in super::super) const CUSTOMER: usize = 2;
    pub(in super::super) const HISTORY: usize = 3;
    pub(in super::super) const ORDERS: usize = 4;
    pub(in super::super) const NEW_ORDER: usize = 5;
    pub(in super::super) const ORDER_LINE: usize = 6;
    pub(in super::super) const ITEM: usize = 7;
    pub(in super::super) const STOCK: usize = 8;
    pub(in super::super) const CUSTOMER_NAME: usize = 9;
    pub(in super::super) const CUSTOMER_ORDER: usize = 10;
}

type Columns<'a> = &'a [(&'a str, ColumnType)];

/// Bytes of the first name in the key of `customer_name`.
pub(super) const FIRST_BYTES: usize = 11;

const ADDRESS: [(&str, ColumnType); 5] = [
    ("street_1", T::Char(20)),
    ("street_2", T::Char(20)),
    ("city", T::Char(20)),
    ("state", T::Char(2)),
    ("zip", T::Char(9)),
];

const WAREHOUSE: Columns<'_> = &[("w", T::U16), ("ytd", T::I64), ("tax", T::U16), ("name", T::Char(10))];

const DISTRICT: Columns<'_> =
    &[("w", T::U16), ("d", T::U8), ("ytd", T::I64), ("next_o", T::U32), ("tax", T::U16), ("name", T::Char(10))];

const CUSTOMER: Columns<'_> = &[
    ("w", T::U16),
    ("d", T::U8),
    ("c", T::U16),
    ("balance", T::I64),
    ("ytd_payment", T::I64),
    ("credit_lim", T::I64),
    ("since", T::I64),
    ("payment_cnt", T::U32),
    ("delivery_cnt", T::U32),
    ("discount", T::U16),
    ("first", T::Char(16)),
    ("middle", T::Char(2)),
    ("last", T::Char(16)),
];

const CONTACT: [(&str, ColumnType); 3] = [("phone", T::Char(16)), ("credit", T::Char(2)), ("data", T::Bytes(500))];

const HISTORY: Columns<'_> = &[
    ("w", T::U16),
    ("number", T::U32),
    ("date", T::I64),
    ("amount", T::I64),
    ("d", T::U8),
    ("c_w", T::U16),
    ("c_d", T::U8),
    ("c", T::U16),
    ("data", T::Char(24)),
];

const ORDERS: Columns<'_> = &[
    ("w", T::U16),
    ("d", T::U8),
    ("o", T::U32),
    ("entry", T::I64),
    ("c", T::U16),
    ("carrier", T::U8),
    ("count", T::U8),
    ("all_local", T::U8),
];

const NEW_ORDER: Columns<'_> = &[("w", T::U16), ("d", T::U8), ("o", T::U32)];

const ORDER_LINE: Columns<'_> = &[
    ("w", T::U16),
    ("d", T::U8),
    ("o", T::U32),
    ("number", T::U8),
    ("delivery", T::I64),
    ("i", T::U32),
    ("amount", T::U32),
    ("supply", T::U16),
    ("quantity", T::U8),
    ("dist", T::Char(24)),
];

const ITEM: Columns<'_> = &[
    ("i", T::U32),
    ("im", T::U32),
    ("price", T::U32),
    ("original", T::U8),
    ("name", T::Char(24)),
    ("data", T::Char(50)),
];

const STOCK: Columns<'_> = &[
    ("w", T::U16),
    ("i", T::U32),
    ("ytd", T::U32),
    ("order_cnt", T::U32),
    ("remote_cnt", T::U32),
    ("quantity", T::I16),
    ("original", T::U8),
];

const CUSTOMER_NAME: Columns<'_> =
    &[("w", T::U16), ("d", T::U8), ("last", T::Char(16)), ("first", T::Char(FIRST_BYTES as u32)), ("c", T::U16)];

const CUSTOMER_ORDER: Columns<'_> = &[("w", T::U16), ("d", T::U8), ("c", T::U16), ("newest", T::U32)];

/// The tables; those with `indexes` are what the standard mix needs.
pub(super) fn schemas(indexes: bool) -> Vec<TableSchema> {
    let table = |name: &str, columns: Columns<'_>, key: usize, ordered: bool| {
        let schema = TableSchema::new(name, columns, key, ordered && indexes).expect("a sound schema");
        if columns[0].0 == "w" { schema.partition_by_hash("w").expect("w is in the key") } else { schema.replicate() }
    };
    let dists: Vec<String> = (1..=10).map(|d| format!("dist_{d:02}")).collect();
    let dists = dists.iter().map(|name| (name.as_str(), T::Char(24)));
    let stock: Vec<_> = STOCK.iter().copied().chain(dists).chain([("data", T::Char(50))]).collect();
    let mut schemas = vec![
        table("warehouse", &[WAREHOUSE, &ADDRESS].concat(), 1, false),
        table("district", &[DISTRICT, &ADDRESS].concat(), 2, false),
        table("customer", &[CUSTOMER, &ADDRESS, &CONTACT].concat(), 3, false),
        table("history", HISTORY, 2, false),
        table("orders", ORDERS, 3, false),
        table("new_order", NEW_ORDER, 3, true),
        table("order_line", ORDER_LINE, 4, true),
        table("item", ITEM, 1, false),
        table("stock", &stock, 2, false),
    ];
    if indexes {
        schemas.push(table("customer_name", CUSTOMER_NAME, 5, true));
        schemas.push(table("customer_order", CUSTOMER_ORDER, 4, true));
    }
    schemas
}
