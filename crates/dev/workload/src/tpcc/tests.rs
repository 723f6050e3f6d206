//! Input from a seed, and a check that sees each broken condition.

use super::*;
use crate::fields::Place;
use crate::testing;

fn small(mix: Mix) -> TpccConfig {
    let whole = if mix == Mix::Standard { TpccConfig::standard(2) } else { TpccConfig::new_order_payment(2) };
    TpccConfig { districts: 3, customers: 30, items: 200, ..whole }
}

#[test]
fn seed_1_gives_these_rows_and_calls() {
    assert_eq!(
        testing::golden(&mut Tpcc::new(small(Mix::Standard)).unwrap()),
        (10_320_816_728_974_986_620, 9_586_588_459_516_683_059)
    );
    assert_eq!(
        testing::golden(&mut Tpcc::new(small(Mix::NewOrderPayment)).unwrap()),
        (6_283_460_958_695_568_078, 11_161_609_706_190_793_750)
    );
}

#[test]
fn a_warehouse_has_the_specifications_cardinalities() {
    let tpcc = Tpcc::new(TpccConfig::standard(3)).unwrap();
    let counts: Vec<u64> = (0..12).map(|table| tpcc.row_count(table)).collect();
    let lines = counts[table::ORDER_LINE];
    assert!((890_000..910_000).contains(&lines) && lines.is_multiple_of(3), "{lines}");
    let all = 90_000;
    assert_eq!(counts, [3, 30, all, all, all, 27_000, lines, 100_000, 300_000, all, all, 0]);
}

#[test]
fn the_mix_is_the_specifications() {
    // So many that a share that is wrong by one in a hundred calls is seen.
    const CALLS: usize = 200_000;
    let mut tpcc = Tpcc::new(small(Mix::Standard)).unwrap();
    testing::bind(&mut tpcc);
    let batch = testing::filled(&mut tpcc, CALLS);
    let mut counts = [0_u32; 7];
    batch.blocks().for_each(|block| counts[block.procedure() as usize] += 1);
    // TPC-C 5.11, 5.2.3: the least percentage of each transaction, and New-Order has what is left. Clauses 2.5.1.2 and
    // 2.6.1.2: 60 % of Payment and Order-Status choose the customer by last name.
    for (kind, percent) in [
        (Kind::NewOrder, 45.0),
        (Kind::Payment, 43.0 * 0.4),
        (Kind::PaymentByName, 43.0 * 0.6),
        (Kind::OrderStatus, 4.0 * 0.4),
        (Kind::OrderStatusByName, 4.0 * 0.6),
        (Kind::Delivery, 4.0),
        (Kind::StockLevel, 4.0),
    ] {
        let (count, expected) = (counts[kind as usize], percent / 100.0 * CALLS as f64);
        assert!((f64::from(count) - expected).abs() < 4.0 * expected.sqrt(), "{kind:?}: {count} of {expected}");
        assert!((kind.share(&tpcc.config) * 100.0 - percent).abs() < 1e-9, "{kind:?}");
    }
    assert!((tpcc.mean(|_| 1.0) - 1.0).abs() < 1e-9);
}

#[test]
fn shares_of_remote_orders_and_payments_and_of_rollbacks_are_as_asked() {
    let config = TpccConfig { remote_order: 0.15, rollback: 0.1, ..small(Mix::NewOrderPayment) };
    let mut tpcc = Tpcc::new(config).unwrap();
    testing::bind(&mut tpcc);
    let batch = testing::filled(&mut tpcc, 20_000);
    let place = |kind: Kind, name| tpcc.procedures.place(kind as usize, name);
    let [local, items, count] = ["all_local", "items", "count"].map(|name| place(Kind::NewOrder, name));
    let [w, c_w] = ["w", "c_w"].map(|name| place(Kind::Payment, name));
    let (mut orders, mut payments) = ([0_u32; 3], [0_u32; 2]);
    for block in batch.blocks() {
        let bytes = block.bytes();
        if block.procedure() == Kind::NewOrder as u32 {
            let last = items.get_at(bytes, count.get(bytes) as usize - 1);
            orders[0] += 1;
            orders[1] += u32::from(local.get(bytes) == 0);
            orders[2] += u32::from(last == 201);
        } else {
            payments[0] += 1;
            payments[1] += u32::from(w.get(bytes) != c_w.get(bytes));
        }
    }
    let share = |part: u32, all: u32| (f64::from(part) / f64::from(all) * 100.0).round() as u32;
    assert!((14..=16).contains(&share(orders[1], orders[0])), "{orders:?}");
    assert!((9..=11).contains(&share(orders[2], orders[0])), "{orders:?}");
    assert!((14..=16).contains(&share(payments[1], payments[0])), "{payments:?}");
}

#[test]
fn what_is_loaded_holds_and_each_broken_row_is_named() {
    let mut tpcc = Tpcc::new(small(Mix::Standard)).unwrap();
    let rows = testing::images(&tpcc);
    assert!(testing::check(&mut tpcc, &rows).unwrap().contains("all twelve conditions hold"));
    let schemas = tpcc.schemas();
    let mut refused = |table: &str, column: &str, row: usize, value: i64, words: &str| {
        let mut rows = rows.clone();
        let schema = schemas.iter().find(|schema| schema.name() == table).unwrap();
        let image = rows.iter_mut().filter(|(name, _)| name == table).nth(row).unwrap();
        Place::column(schema, column).put(&mut image.1, value);
        let error = testing::check(&mut tpcc, &rows).expect_err(words);
        assert!(error.contains(words), "'{error}' does not say '{words}'");
    };
    refused("warehouse", "ytd", 1, 5, "condition 1: ytd of warehouse 2");
    refused("district", "ytd", 0, 5, "condition 1: ytd of warehouse 1");
    refused("district", "next_o", 2, 30, "condition 2: the next order less one, and the last order, of district 3");
    refused("new_order", "o", 8, 23, "condition 2");
    refused("new_order", "o", 0, 20, "condition 3: new orders");
    refused("orders", "count", 7, 1, "condition 4: lines");
    refused("orders", "carrier", 7, 0, "condition 5: order 8 of district 1 of warehouse 1");
    refused("orders", "carrier", 28, 3, "condition 5: order 29");
    refused("order_line", "delivery", 3, 0, "condition 7: order 1");
    refused("history", "amount", 4, 2000, "condition 8");
    refused("customer", "balance", 9, 0, "condition 10: the balance of customer 10");
    refused("customer", "ytd_payment", 9, 0, "condition 12: balance and payments of customer 10");
    refused("stock", "ytd", 17, 3, "the quantity that left the stock is 3");
    refused("stock", "quantity", 17, -4, "stock: a stock of -4");
    refused("customer_order", "newest", 0, 9, "cannot be");
    refused("customer", "w", 0, 3, "warehouse 3, which there is not");
    let mut lost = rows.clone();
    lost.retain(|(name, row)| name != "order_line" || row[..9] != [1, 0, 1, 0, 4, 0, 0, 0, 2]);
    assert!(testing::check(&mut tpcc, &lost).unwrap_err().contains("condition 4"));
    let mut lost = rows.clone();
    lost.remove(rows.iter().position(|(name, _)| name == "item").unwrap());
    assert!(testing::check(&mut tpcc, &lost).unwrap_err().contains("item has 199 rows of 200"));
}

#[test]
fn a_mix_of_one_transaction_calls_it_alone_and_describes_itself() {
    for (mix, kind, name) in
        [(Mix::NewOrder, Kind::NewOrder, "tpcc-new-order"), (Mix::Payment, Kind::Payment, "tpcc-payment")]
    {
        let mut tpcc = Tpcc::new(TpccConfig { mix, ..small(Mix::NewOrderPayment) }).unwrap();
        testing::bind(&mut tpcc);
        assert!(testing::filled(&mut tpcc, 100).blocks().all(|block| block.procedure() == kind as u32));
        assert_eq!((tpcc.name().as_str(), tpcc.accesses()), (name, kind.cost().0 as u32));
    }
}

#[test]
fn orders_that_were_committed_are_expected() {
    let mut tpcc = Tpcc::new(small(Mix::NewOrderPayment)).unwrap();
    testing::bind(&mut tpcc);
    let mut batch = testing::filled(&mut tpcc, 1);
    batch.block_mut(0).set_outcome(lockwork_procedure::block::Status::Committed, 0);
    let rows = testing::images(&tpcc);
    tpcc.observe(&batch);
    let error = testing::check(&mut tpcc, &rows).unwrap_err();
    assert!(error.contains("committed payments paid") || error.contains("were loaded or committed"), "{error}");
}

#[test]
fn impossible_options_are_refused_by_name() {
    let good = || small(Mix::Standard);
    let cases = [
        ("warehouses", TpccConfig { warehouses: 0, ..good() }),
        ("warehouses", TpccConfig { warehouses: 65_536, ..good() }),
        ("districts", TpccConfig { districts: 11, ..good() }),
        ("customers", TpccConfig { customers: 9, ..good() }),
        ("items", TpccConfig { items: 100_001, ..good() }),
        ("remote_payment", TpccConfig { remote_payment: 1.1, ..good() }),
        ("rollback", TpccConfig { rollback: f64::NAN, ..good() }),
        ("by_name", TpccConfig { by_name: 0.5, ..small(Mix::NewOrderPayment) }),
        ("by_name", TpccConfig { by_name: 0.5, mix: Mix::Payment, ..small(Mix::NewOrderPayment) }),
    ];
    for (option, config) in cases {
        let error = Tpcc::new(config).unwrap_err();
        assert!(matches!(error, WorkloadError::Option { option: named, .. } if named == option), "{option}: {error}");
    }
}
