//! The arguments of calls (clauses 2.4.1, 2.5.1, 2.6.1, 2.7.1 and 2.8.1).

use super::Kind;
use super::config::{Mix, TpccConfig};
use super::draw;
use super::population::Population;
use crate::fields::{Place, Procedures};
use crate::random::Random;

/// The most lines of an order.
pub(super) const MAX_LINES: u64 = 15;

/// Draws calls and writes them into blocks.
#[derive(Clone, Debug)]
pub(super) struct Calls {
    random: Random,
    /// Payments and dates are numbered as they are made.
    payments: i64,
    date: i64,
    new_order: [Place; 9],
    /// The customer, by number or by name, is the last of these, and of those of OrderStatus.
    payment: [Place; 8],
    /// The other five, where the mix has them.
    payment_by_name: Option<[Place; 8]>,
    order_status: Option<[[Place; 3]; 2]>,
    delivery: Option<[Place; 3]>,
    stock_level: Option<[Place; 3]>,
}

/// What Payment and OrderStatus call the customer.
fn customer_field(name: bool) -> &'static str {
    if name { "last" } else { "c" }
}

impl Calls {
    pub(super) fn new(config: &TpccConfig, procedures: &Procedures) -> Self {
        let new_order = ["w", "d", "c", "entry", "count", "all_local", "items", "supply", "quantity"];
        let standard = config.mix == Mix::Standard;
        let places = |kind: Kind, names: [&str; 3]| standard.then(|| procedures.places(kind as usize, names));
        let payment = |kind: Kind, name| {
            let names = ["w", "d", "c_w", "c_d", "number", "amount", "date", customer_field(name)];
            procedures.places(kind as usize, names)
        };
        let status = |kind: Kind, name| procedures.places(kind as usize, ["c_w", "c_d", customer_field(name)]);
        Self {
            random: Random::stream(config.seed, 0),
            payments: 0,
            date: 1,
            new_order: procedures.places(Kind::NewOrder as usize, new_order),
            payment: payment(Kind::Payment, false),
            payment_by_name: standard.then(|| payment(Kind::PaymentByName, true)),
            order_status: standard.then(|| [status(Kind::OrderStatus, false), status(Kind::OrderStatusByName, true)]),
            delivery: places(Kind::Delivery, ["w", "carrier", "date"]),
            stock_level: places(Kind::StockLevel, ["w", "d", "threshold"]),
        }
    }

    /// The next transaction.
    pub(super) fn draw(&mut self, config: &TpccConfig) -> Kind {
        match config.mix {
            Mix::NewOrder => return Kind::NewOrder,
            Mix::Payment => return Kind::Payment,
            Mix::NewOrderPayment if self.random.below(2) == 0 => return Kind::NewOrder,
            Mix::NewOrderPayment => return Kind::Payment,
            Mix::Standard => {}
        }
        let draw = self.random.below(100);
        let by_name = (45..92).contains(&draw) && self.random.unit() < config.by_name;
        match draw {
            0..45 => Kind::NewOrder,
            45..88 if by_name => Kind::PaymentByName,
            45..88 => Kind::Payment,
            88..92 if by_name => Kind::OrderStatusByName,
            88..92 => Kind::OrderStatus,
            92..96 => Kind::Delivery,
            _ => Kind::StockLevel,
        }
    }

    /// Writes the arguments of a call.
    pub(super) fn write(&mut self, kind: Kind, config: &TpccConfig, rows: &Population, block: &mut [u8]) {
        self.date += 1;
        let (w, d) = (1 + self.random.below(rows.warehouses), 1 + self.random.below(rows.districts));
        match kind {
            Kind::NewOrder => self.write_new_order(config, rows, (w, d), block),
            Kind::Payment | Kind::PaymentByName => {
                let by_name = kind == Kind::PaymentByName;
                let places = if by_name { self.payment_by_name.expect("the mix has it") } else { self.payment };
                let away = rows.warehouses > 1 && self.random.unit() < config.remote_payment;
                let (c_w, c_d) = if away { self.elsewhere(rows, w) } else { (w, d) };
                self.payments += 1;
                let number = (rows.districts * rows.customers) as i64 + self.payments;
                let amount = 100 + self.random.below(499_901) as i64;
                let values = [w as i64, d as i64, c_w as i64, c_d as i64, number, amount, self.date];
                places.into_iter().zip(values).for_each(|(place, value)| place.put(block, value));
                self.write_customer(rows, by_name, places[7], block);
            }
            Kind::OrderStatus | Kind::OrderStatusByName => {
                let by_name = kind == Kind::OrderStatusByName;
                let [at_w, at_d, customer] = self.order_status.expect("the mix has it")[usize::from(by_name)];
                at_w.put(block, w as i64);
                at_d.put(block, d as i64);
                self.write_customer(rows, by_name, customer, block);
            }
            Kind::Delivery => {
                let values = [w as i64, 1 + self.random.below(10) as i64, self.date];
                let places = self.delivery.expect("the mix has it");
                places.into_iter().zip(values).for_each(|(place, value)| place.put(block, value));
            }
            Kind::StockLevel => {
                let values = [w as i64, d as i64, 10 + self.random.below(11) as i64];
                let places = self.stock_level.expect("the mix has it");
                places.into_iter().zip(values).for_each(|(place, value)| place.put(block, value));
            }
        }
    }

    /// A district of another warehouse than `w`.
    fn elsewhere(&mut self, rows: &Population, w: u64) -> (u64, u64) {
        (self.other_warehouse(rows, w), 1 + self.random.below(rows.districts))
    }

    fn other_warehouse(&mut self, rows: &Population, w: u64) -> u64 {
        1 + (w + self.random.below(rows.warehouses - 1)) % rows.warehouses
    }

    fn write_customer(&mut self, rows: &Population, by_name: bool, place: Place, block: &mut [u8]) {
        if by_name {
            place.put_text(block, &draw::last_name(draw::called_name(&mut self.random, rows.names())));
        } else {
            place.put(block, draw::customer(&mut self.random, rows.customers) as i64);
        }
    }

    fn write_new_order(&mut self, config: &TpccConfig, rows: &Population, (w, d): (u64, u64), block: &mut [u8]) {
        let [at_w, at_d, at_c, entry, at_count, at_local, items, supply, quantity] = self.new_order;
        let count = 5 + self.random.below(MAX_LINES - 4);
        let several = rows.warehouses > 1;
        let away = if several && self.random.unit() < config.remote_order { self.random.below(count) } else { count };
        let unused = self.random.unit() < config.rollback;
        let mut local = true;
        for line in 0..count {
            let mut item = draw::item(&mut self.random, rows.items);
            if unused && line == count - 1 {
                // No item has a number beyond the last one.
                item = rows.items + 1;
            }
            let remote = line == away || several && self.random.unit() < config.remote_line;
            let from = if remote { self.other_warehouse(rows, w) } else { w };
            local &= !remote;
            let at = line as usize;
            items.put_at(block, at, item as i64);
            supply.put_at(block, at, from as i64);
            quantity.put_at(block, at, 1 + self.random.below(10) as i64);
        }
        at_w.put(block, w as i64);
        at_d.put(block, d as i64);
        at_c.put(block, draw::customer(&mut self.random, rows.customers) as i64);
        entry.put(block, self.date);
        at_count.put(block, count as i64);
        at_local.put(block, i64::from(local));
    }
}
