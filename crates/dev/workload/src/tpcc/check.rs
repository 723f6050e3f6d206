//! The twelve consistency conditions (clause 3.3.2), and that the database is what committed transactions made of it.
//!
//! One pass over all rows, in whatever order they come, gathers sums for every warehouse, district, customer and
//! order; then the conditions are looked at. Beyond the specification: conditions 8 and 9 with the payments that
//! committed transactions reported, condition 11 with the deliveries they reported (the specification has it for the
//! first rows only), the quantities and counts of stock against the order lines, and the indexes against their tables.

use lockwork_procedure::schema::TableSchema;

use super::observed::Observed;
use super::population::{FIRST_PAYMENT, Population, newest_first};
use super::schema::table;
use crate::fields::{Place, violation};
use crate::{Export, WorkloadError};

/// Orders of a district that the check has room for: more than any run makes.
const MAX_ORDERS: i64 = 1 << 26;

#[derive(Clone, Copy, Debug, Default)]
struct Order {
    customer: u16,
    carrier: u8,
    /// Lines that it should have, and lines that it has.
    count: u8,
    lines: u8,
    /// Of these, lines with a delivery date, and what they cost.
    delivered: u8,
    amount: i64,
    exists: bool,
    pending: bool,
    indexed: bool,
}

#[derive(Clone, Debug, Default)]
struct District {
    ytd: i64,
    next_o: i64,
    paid: i64,
    orders: Vec<Order>,
    /// Rows of `new_order`, the smallest and the largest.
    pending: [i64; 3],
}

#[derive(Clone, Copy, Debug, Default)]
struct Customer {
    exists: bool,
    named: bool,
    balance: i64,
    ytd_payment: i64,
    paid: i64,
    delivered: i64,
}

/// Everything that the conditions speak of.
struct Books<'a> {
    rows: &'a Population,
    /// Of the tables.
    names: Vec<&'a str>,
    /// Places of the columns that are read, by table.
    columns: Vec<Vec<Place>>,
    warehouses: Vec<(i64, i64)>,
    districts: Vec<District>,
    customers: Vec<Customer>,
    counts: Vec<u64>,
    /// Quantity, orders and remote orders of all stock.
    stock: [u64; 3],
}

/// The columns that are read of each table, in the order of the schemas.
const COLUMNS: [&[&str]; 11] = [
    &["w", "ytd"],
    &["w", "d", "ytd", "next_o"],
    &["w", "d", "c", "balance", "ytd_payment"],
    &["w", "d", "amount", "c_w", "c_d", "c"],
    &["w", "d", "o", "c", "carrier", "count"],
    &["w", "d", "o"],
    &["w", "d", "o", "delivery", "amount"],
    &["i"],
    &["w", "ytd", "order_cnt", "remote_cnt", "quantity"],
    &["w", "d", "c"],
    &["w", "d", "c", "newest"],
];

impl<'a> Books<'a> {
    fn new(schemas: &'a [TableSchema], rows: &'a Population) -> Self {
        let columns = schemas.iter().zip(COLUMNS);
        let places = columns.map(|(schema, names)| names.iter().map(|name| Place::column(schema, name)).collect());
        let districts = (rows.warehouses * rows.districts) as usize;
        Self {
            names: schemas.iter().map(TableSchema::name).collect(),
            columns: places.collect(),
            warehouses: vec![(0, 0); rows.warehouses as usize],
            districts: vec![District::default(); districts],
            customers: vec![Customer::default(); districts * rows.customers as usize],
            counts: vec![0; schemas.len()],
            stock: [0; 3],
            rows,
        }
    }

    fn warehouse(&self, w: i64) -> Result<usize, String> {
        let known = (1..=self.rows.warehouses as i64).contains(&w);
        if known { Ok(w as usize - 1) } else { Err(format!("a row of warehouse {w}, which there is not")) }
    }

    fn district(&self, w: i64, d: i64) -> Result<usize, String> {
        let first = self.warehouse(w)? * self.rows.districts as usize;
        let known = (1..=self.rows.districts as i64).contains(&d);
        if known { Ok(first + d as usize - 1) } else { Err(format!("a row of district {d}, which there is not")) }
    }

    fn customer(&mut self, w: i64, d: i64, c: i64) -> Result<&mut Customer, String> {
        let first = self.district(w, d)? * self.rows.customers as usize;
        let known = (1..=self.rows.customers as i64).contains(&c);
        if known {
            Ok(&mut self.customers[first + c as usize - 1])
        } else {
            Err(format!("a row of customer {c} of district {d}, who there is not"))
        }
    }

    fn order(&mut self, w: i64, d: i64, o: i64) -> Result<&mut Order, String> {
        let district = self.district(w, d)?;
        if !(1..=MAX_ORDERS).contains(&o) {
            return Err(format!("a row of order {o} of district {d}, which cannot be"));
        }
        let orders = &mut self.districts[district].orders;
        if orders.len() < o as usize {
            orders.resize(o as usize, Order::default());
        }
        Ok(&mut orders[o as usize - 1])
    }

    /// Takes a row in; what is wrong with it alone.
    fn add(&mut self, number: usize, image: &[u8]) -> Result<(), String> {
        self.counts[number] += 1;
        let mut values = [0; 6];
        for (value, place) in values.iter_mut().zip(&self.columns[number]) {
            *value = place.get(image);
        }
        let [a, b, c, x, y, z] = values;
        match number {
            table::WAREHOUSE => {
                let warehouse = self.warehouse(a)?;
                self.warehouses[warehouse].0 = b;
            }
            table::DISTRICT => {
                let district = self.district(a, b)?;
                self.districts[district].ytd = c;
                self.districts[district].next_o = x;
            }
            table::CUSTOMER => {
                let customer = self.customer(a, b, c)?;
                (customer.exists, customer.balance, customer.ytd_payment) = (true, x, y);
            }
            table::HISTORY => {
                let (warehouse, district) = (self.warehouse(a)?, self.district(a, b)?);
                self.warehouses[warehouse].1 += c;
                self.districts[district].paid += c;
                self.customer(x, y, z)?.paid += c;
            }
            table::ORDERS => {
                let order = self.order(a, b, c)?;
                (order.exists, order.customer, order.carrier, order.count) = (true, x as u16, y as u8, z as u8);
            }
            table::NEW_ORDER => {
                self.order(a, b, c)?.pending = true;
                let district = self.district(a, b)?;
                let [count, min, max] = &mut self.districts[district].pending;
                *min = if *count == 0 { c } else { c.min(*min) };
                *max = c.max(*max);
                *count += 1;
            }
            table::ORDER_LINE => {
                let order = self.order(a, b, c)?;
                order.lines = order.lines.saturating_add(1);
                if x != 0 {
                    order.delivered += 1;
                    order.amount += y;
                }
            }
            table::STOCK => {
                [b, c, x].into_iter().zip(&mut self.stock).for_each(|(value, sum)| *sum += value as u64);
                // 2.4.2.2 keeps it at 10 or more after every order line of at most ten.
                if !(0..=100).contains(&y) {
                    return Err(format!("a stock of {y}, which no order leaves"));
                }
            }
            table::CUSTOMER_NAME => self.customer(a, b, c)?.named = true,
            table::CUSTOMER_ORDER => self.order(a, b, newest_first(x as u64) as i64)?.indexed = true,
            _ => {}
        }
        Ok(())
    }

    /// Conditions 1, 8, 9 and the payments that were observed.
    fn check_money(&self, observed: &Observed) -> Result<(), String> {
        let each = self.rows.districts as usize;
        for (w, &(ytd, history)) in self.warehouses.iter().enumerate() {
            let districts = &self.districts[w * each..(w + 1) * each];
            equal(1, &format!("ytd of warehouse {} and of its districts", w + 1), ytd, sum(districts, |d| d.ytd))?;
            equal(8, &format!("ytd and history of warehouse {}", w + 1), ytd, history)?;
            let began = (self.rows.districts * self.rows.customers) as i64 * FIRST_PAYMENT;
            let (grown, paid) = (i128::from(ytd - began), observed.paid[w]);
            if grown != paid {
                let w = w + 1;
                return Err(format!("ytd of warehouse {w} has grown by {grown}; committed payments paid {paid}"));
            }
        }
        for (place, district) in self.districts.iter().enumerate() {
            equal(9, &format!("ytd and history of {}", self.place(place)), district.ytd, district.paid)?;
        }
        Ok(())
    }

    fn place(&self, district: usize) -> String {
        let each = self.rows.districts as usize;
        format!("district {} of warehouse {}", district % each + 1, district / each + 1)
    }

    /// Conditions 2 to 7 and 11, and the orders and deliveries that were observed.
    fn check_orders(&self, observed: &Observed) -> Result<(), String> {
        for (place, district) in self.districts.iter().enumerate() {
            let (name, orders) = (self.place(place), district.orders.as_slice());
            let last = orders.iter().rposition(|order| order.exists).map_or(0, |at| at as i64 + 1);
            equal(2, &format!("the next order less one, and the last order, of {name}"), district.next_o - 1, last)?;
            let [pending, oldest, newest] = district.pending;
            if pending > 0 {
                equal(2, &format!("the last order and the last new order of {name}"), last, newest)?;
                equal(3, &format!("new orders of {name} and their range"), pending, newest - oldest + 1)?;
            }
            let (count, lines) = (sum(orders, |order| order.count.into()), sum(orders, |order| order.lines.into()));
            equal(4, &format!("lines that orders of {name} say and have"), count, lines)?;
            for (at, order) in orders.iter().enumerate() {
                let name = || format!("order {} of {name}", at + 1);
                self.check_order(order, &name)?;
            }
            let placed = orders.iter().filter(|order| order.exists).count() as i64;
            let began = self.rows.customers - self.rows.pending;
            let delivered = (began + observed.delivered[place]) as i64;
            equal(11, &format!("orders of {name} that are no new orders"), placed - pending, delivered)?;
            let ordered = (self.rows.customers + observed.ordered[place]) as i64;
            if placed != ordered {
                return Err(format!("{name} has {placed} orders; {ordered} were loaded or committed"));
            }
        }
        Ok(())
    }

    /// Conditions 5, 6 and 7 for one order.
    fn check_order(&self, order: &Order, name: &dyn Fn() -> String) -> Result<(), String> {
        let wrong = |condition: u32, what: String| Err(format!("condition {condition}: {} {what}", name()));
        if !order.exists {
            return Err(format!("{} is missing, though later ones or rows of it are there", name()));
        }
        if (order.carrier == 0) != order.pending {
            return wrong(5, format!("has carrier {} and is new: {}", order.carrier, order.pending));
        }
        if order.count != order.lines {
            return wrong(6, format!("says {} lines and has {}", order.count, order.lines));
        }
        let delivered = if order.carrier == 0 { 0 } else { order.lines };
        if order.delivered != delivered {
            return wrong(7, format!("has carrier {} and {} delivered lines", order.carrier, order.delivered));
        }
        if self.counts.len() > table::CUSTOMER_ORDER && !order.indexed {
            return Err(format!("{} is not in the index of orders by customer", name()));
        }
        Ok(())
    }

    /// Conditions 10 and 12.
    fn check_customers(&mut self) -> Result<(), String> {
        let each = self.rows.customers as usize;
        for (place, district) in self.districts.iter().enumerate() {
            for order in district.orders.iter().filter(|order| order.delivered > 0) {
                match self.customers[place * each..(place + 1) * each].get_mut(usize::from(order.customer) - 1) {
                    Some(customer) => customer.delivered += order.amount,
                    None => return Err(format!("an order of customer {}, who there is not", order.customer)),
                }
            }
        }
        let named = self.counts.len() > table::CUSTOMER_NAME;
        for (at, customer) in self.customers.iter().enumerate() {
            let name = || format!("customer {} of {}", at % each + 1, self.place(at / each));
            if !customer.exists || named && !customer.named {
                return Err(format!("{} is missing, or in the index of names", name()));
            }
            let owed = customer.delivered - customer.paid;
            equal(10, &format!("the balance of {}, and goods less payments", name()), customer.balance, owed)?;
            let sum = customer.balance + customer.ytd_payment;
            equal(12, &format!("balance and payments of {}, and goods", name()), sum, customer.delivered)?;
        }
        Ok(())
    }

    /// Stock against what was ordered, and the number of rows of each table.
    fn check_stock(&self, observed: &Observed) -> Result<(), String> {
        let [lines, quantity, remote] = observed.lines;
        for (what, found, expected) in [
            ("the quantity that left the stock", self.stock[0], quantity),
            ("the orders that stock counts", self.stock[1], lines),
            ("the remote orders that stock counts", self.stock[2], remote),
        ] {
            if found != expected {
                return Err(format!("{what} is {found}; committed orders make {expected}"));
            }
        }
        for number in
            [table::WAREHOUSE, table::DISTRICT, table::CUSTOMER, table::ITEM, table::STOCK, table::CUSTOMER_NAME]
        {
            let expected = self.rows.row_count(number);
            match self.counts.get(number) {
                Some(&found) if found != expected => {
                    return Err(format!("{} has {found} rows of {expected}", self.names[number]));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn sum<T>(list: &[T], of: impl Fn(&T) -> i64) -> i64 {
    list.iter().map(of).sum()
}

fn equal(condition: u32, what: &str, found: i64, expected: i64) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("condition {condition}: {what} are {found} and {expected}")) }
}

/// Checks everything; in words what holds.
pub(super) fn contents(
    schemas: &[TableSchema],
    rows: &Population,
    observed: &Observed,
    export: &mut Export<'_>,
) -> Result<String, WorkloadError> {
    let mut books = Books::new(schemas, rows);
    let mut wrong = Ok(());
    export(&mut |name, image| {
        if wrong.is_ok()
            && let Some(number) = schemas.iter().position(|schema| schema.name() == name)
        {
            wrong = books.add(number, image).map_err(|what| format!("{name}: {what}"));
        }
    });
    let checked = wrong
        .and_then(|()| books.check_money(observed))
        .and_then(|()| books.check_orders(observed))
        .and_then(|()| books.check_customers())
        .and_then(|()| books.check_stock(observed));
    if let Err(what) = checked {
        return violation(what);
    }
    let paid: i128 = observed.paid.iter().sum();
    let (ordered, delivered) = (observed.ordered.iter().sum::<u64>(), observed.delivered.iter().sum::<u64>());
    Ok(format!(
        "all twelve conditions hold; {} commits: {ordered} orders, {delivered} deliveries, {paid} cents paid",
        observed.committed
    ))
}
