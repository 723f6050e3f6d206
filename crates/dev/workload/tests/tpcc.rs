//! What TPC-C's readers answer, against the tables themselves: the customer in the middle of a name, the newest order,
//! the different items that are low in stock.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{prepared, submit};
use lockwork_engine::{Engine, EngineKind, LockPolicy};
use lockwork_procedure::block::{Batch, Status};
use lockwork_procedure::schema::{ROW_HEADER_BYTES, TableSchema};
use lockwork_workload::Workload;
use lockwork_workload::tpcc::{Tpcc, TpccConfig};

/// Rows of one table as numbers (texts as their bytes), by column name.
struct Rows {
    schema: TableSchema,
    images: Vec<Vec<u8>>,
}

impl Rows {
    fn of(engine: &dyn Engine, workload: &dyn Workload, table: &str) -> Self {
        let schema = workload.schemas().into_iter().find(|schema| schema.name() == table).unwrap();
        let mut images = Vec::new();
        let mut keep = |name: &str, image: &[u8]| {
            if name == table {
                images.push(image.to_vec());
            }
        };
        engine.export(&mut keep).unwrap();
        Self { schema, images }
    }

    fn bytes<'a>(&self, image: &'a [u8], column: &str) -> &'a [u8] {
        let column = self.schema.column(column).unwrap().1;
        let at = (column.offset - ROW_HEADER_BYTES) as usize;
        &image[at..at + column.column_type.width() as usize]
    }

    fn number(&self, image: &[u8], column: &str) -> u64 {
        self.bytes(image, column).iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
    }
}

/// Calls a procedure with integers or texts; the block that came back.
fn call(engine: &mut dyn Engine, name: &str, arguments: &[(&str, &[u8])]) -> Vec<u8> {
    let id = engine.procedure_id(name).unwrap();
    let registered = engine.procedure(id).unwrap();
    let mut batch = Batch::new(registered.block_bytes as u32, 1).unwrap();
    let mut block = batch.push(id).unwrap();
    for (name, value) in arguments {
        let at = registered.verified.procedure().parameter(name).unwrap().offset as usize;
        block.bytes()[at..at + value.len()].copy_from_slice(value);
    }
    submit(engine, batch);
    let completed = engine.complete().unwrap().unwrap();
    assert_eq!(completed.batch.block(0).status(), Some(Status::Committed), "{name}");
    completed.batch.block(0).bytes().to_vec()
}

fn result(engine: &dyn Engine, name: &str, field: &str) -> usize {
    let registered = engine.procedure(engine.procedure_id(name).unwrap()).unwrap();
    registered.verified.procedure().result(field).unwrap().offset as usize
}

fn u32_at(block: &[u8], at: usize) -> u64 {
    u64::from(u32::from_le_bytes(block[at..at + 4].try_into().unwrap()))
}

/// A database of one warehouse on which a thousand transactions have run.
fn grown(config: TpccConfig) -> (Box<dyn Engine>, Tpcc) {
    let mut tpcc = Tpcc::new(config).unwrap();
    let mut engine = prepared(EngineKind::SERIAL, LockPolicy::Ordered, &mut tpcc);
    let mut batch = Batch::new(tpcc.block_bytes(), 1000).unwrap();
    tpcc.fill(&mut batch, 1000).unwrap();
    submit(&mut *engine, batch);
    engine.complete().unwrap().unwrap();
    (engine, tpcc)
}

#[test]
fn a_name_means_the_customer_in_the_middle_and_the_newest_order_is_found() {
    // More than the first thousand, whose names all differ.
    let config = TpccConfig { districts: 2, customers: 2500, items: 100, ..TpccConfig::standard(1) };
    let (mut engine, tpcc) = grown(config);
    let customers = Rows::of(&*engine, &tpcc, "customer");
    let orders = Rows::of(&*engine, &tpcc, "orders");
    let mut newest: BTreeMap<u64, u64> = BTreeMap::new();
    for image in orders.images.iter().filter(|image| orders.number(image, "d") == 2) {
        let newest = newest.entry(orders.number(image, "c")).or_default();
        *newest = orders.number(image, "o").max(*newest);
    }
    let mut names: BTreeMap<Vec<u8>, Vec<(Vec<u8>, u64)>> = BTreeMap::new();
    for image in customers.images.iter().filter(|image| customers.number(image, "d") == 2) {
        let first = customers.bytes(image, "first").to_vec();
        let who = (first, customers.number(image, "c"));
        names.entry(customers.bytes(image, "last").to_vec()).or_default().push(who);
    }
    let most = names.values().map(Vec::len).max().unwrap();
    assert!(most > 32, "a name of {most} customers is found in the first pieces");
    let person = result(&*engine, "order_status_by_name", "person");
    let order = result(&*engine, "order_status_by_name", "o");
    for (last, mut who) in names {
        who.sort();
        let (first, c) = &who[who.len().div_ceil(2) - 1];
        let arguments: [(&str, &[u8]); 3] = [("c_w", &[1, 0]), ("c_d", &[2]), ("last", &last)];
        let block = call(&mut *engine, "order_status_by_name", &arguments);
        assert_eq!(block[person..person + 16], first[..], "{} customers", who.len());
        assert_eq!(u32_at(&block, order), newest[c]);
    }
}

#[test]
fn every_low_item_of_the_last_twenty_orders_is_counted_once() {
    let config = TpccConfig { districts: 2, customers: 30, items: 100, ..TpccConfig::standard(1) };
    let (mut engine, tpcc) = grown(config);
    let [stock, lines, districts] = ["stock", "order_line", "district"].map(|name| Rows::of(&*engine, &tpcc, name));
    let low = result(&*engine, "stock_level", "low");
    let mut found = 0;
    for d in [1, 2] {
        let district = districts.images.iter().find(|image| districts.number(image, "d") == d).unwrap();
        let next = districts.number(district, "next_o");
        for threshold in [10_u8, 20, 60, 101] {
            let is_low = |image: &&Vec<u8>| stock.number(image, "quantity") < u64::from(threshold);
            let scarce: BTreeSet<u64> =
                stock.images.iter().filter(is_low).map(|image| stock.number(image, "i")).collect();
            let recent = |image: &&Vec<u8>| lines.number(image, "d") == d && lines.number(image, "o") + 20 >= next;
            let items: BTreeSet<u64> =
                lines.images.iter().filter(recent).map(|image| lines.number(image, "i")).collect();
            let expected = items.intersection(&scarce).count() as u64;
            let arguments: [(&str, &[u8]); 3] = [("w", &[1, 0]), ("d", &[d as u8]), ("threshold", &[threshold])];
            let block = call(&mut *engine, "stock_level", &arguments);
            assert_eq!(u32_at(&block, low), expected, "district {d}, threshold {threshold}");
            found += expected;
        }
    }
    assert!(found > 50, "{found}");
}
