//! The rows that TPC-C begins with (clause 4.3.3), each a function of the seed and its number.
//!
//! Which customer placed which order, and how many lines it has, is drawn once and the same in every warehouse; so the
//! place of an order line is found without drawing for all warehouses before. No transaction can tell.

use lockwork_procedure::schema::TableSchema;

use super::config::TpccConfig;
use super::draw;
use super::schema::{FIRST_BYTES, table};
use crate::fields::{RowWriter, fill_letters};
use crate::random::{Random, mix};

/// What every customer has paid when it begins, in cents.
pub(super) const FIRST_PAYMENT: i64 = 1000;
/// The date of everything that was loaded.
const LOADED: i64 = 1;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Population {
    seed: u64,
    pub(super) warehouses: u64,
    pub(super) districts: u64,
    /// Of a district; also its orders.
    pub(super) customers: u64,
    pub(super) items: u64,
    /// Orders of a district that are not delivered: the last ones, three in ten.
    pub(super) pending: u64,
    /// Who placed an order, for each of a warehouse.
    placed_by: Vec<u16>,
    /// Lines of all orders of a warehouse before this one; one more than there are orders.
    lines_before: Vec<u32>,
}

/// Warehouse, district and number in the district of something, all from 1.
struct Number {
    w: u64,
    d: u64,
    n: u64,
}

impl Population {
    pub(super) fn new(config: &TpccConfig) -> Self {
        let (districts, customers) = (u64::from(config.districts), u64::from(config.customers));
        let mut random = Random::stream(config.seed, 100);
        let mut placed_by = Vec::new();
        for _ in 0..districts {
            let mut order: Vec<u16> = (1..=config.customers).collect();
            for last in (1..order.len()).rev() {
                order.swap(last, random.below(last as u64 + 1) as usize);
            }
            placed_by.extend(order);
        }
        let mut lines_before = vec![0];
        for order in 0..placed_by.len() {
            lines_before.push(lines_before[order] + 5 + random.below(11) as u32);
        }
        Self {
            seed: config.seed,
            warehouses: config.warehouses,
            districts,
            customers,
            items: u64::from(config.items),
            pending: customers * 3 / 10,
            placed_by,
            lines_before,
        }
    }

    /// Order lines of a warehouse.
    fn lines(&self) -> u64 {
        u64::from(self.lines_before[self.placed_by.len()])
    }

    /// Last names in use.
    pub(super) fn names(&self) -> u64 {
        self.customers.min(1000)
    }

    /// Rows of a table.
    pub(super) fn row_count(&self, number: usize) -> u64 {
        let of_warehouse = match number {
            table::WAREHOUSE => 1,
            table::DISTRICT => self.districts,
            table::CUSTOMER | table::HISTORY | table::ORDERS | table::CUSTOMER_NAME | table::CUSTOMER_ORDER => {
                self.districts * self.customers
            }
            table::NEW_ORDER => self.districts * self.pending,
            table::ORDER_LINE => self.lines(),
            table::ITEM => return self.items,
            table::STOCK => self.items,
            _ => 0,
        };
        self.warehouses * of_warehouse
    }

    /// What row `row` is, in a table that has `each` of a district.
    fn split(&self, row: u64, each: u64) -> Number {
        let (district, n) = (row / each, row % each + 1);
        Number { w: district / self.districts + 1, d: district % self.districts + 1, n }
    }

    /// The place of an order among those of its warehouse.
    fn order(&self, of: &Number) -> usize {
        ((of.d - 1) * self.customers + of.n - 1) as usize
    }

    /// The row with this key, by its integers; of histories none, which nobody looks up.
    pub(super) fn row_of(&self, number: usize, key: &[u64; 5]) -> Option<u64> {
        let &[w, d, n, line, _] = key;
        let within = |number: u64, most: u64| (1..=most).contains(&number);
        if number == table::ITEM {
            return within(w, self.items).then(|| w - 1);
        }
        if number == table::STOCK {
            return (within(w, self.warehouses) && within(d, self.items)).then(|| (w - 1) * self.items + d - 1);
        }
        if !within(w, self.warehouses) || number != table::WAREHOUSE && !within(d, self.districts) {
            return None;
        }
        let in_district = |before: u64, each: u64| {
            let n = n.checked_sub(before)?;
            within(n, each).then(|| ((w - 1) * self.districts + d - 1) * each + n - 1)
        };
        match number {
            table::WAREHOUSE => Some(w - 1),
            table::DISTRICT => Some((w - 1) * self.districts + d - 1),
            table::CUSTOMER | table::ORDERS => in_district(0, self.customers),
            table::NEW_ORDER => in_district(self.customers - self.pending, self.pending),
            table::ORDER_LINE if within(n, self.customers) => {
                let order = self.order(&Number { w, d, n });
                let (first, behind) = (self.lines_before[order], self.lines_before[order + 1]);
                within(line, u64::from(behind - first)).then(|| (w - 1) * self.lines() + u64::from(first) + line - 1)
            }
            _ => None,
        }
    }

    /// The rows of this district from `key` on, in the order of their keys, at most `limit`; `last` is the name in a
    /// key of `customer_name`.
    pub(super) fn scan(&self, number: usize, key: &[u64; 5], last: &[u8], limit: usize) -> Vec<u64> {
        let &[w, d, n, line, _] = key;
        let all = self.customers;
        let district = (w - 1) * self.districts + d - 1;
        let (first, of) = (district * all, Number { w, d, n: n.clamp(1, all + 1) });
        match number {
            table::NEW_ORDER => {
                let delivered = all - self.pending;
                let from = n.saturating_sub(delivered + 1).min(self.pending);
                (from..self.pending).map(|at| district * self.pending + at).take(limit).collect()
            }
            table::ORDER_LINE => {
                let before = |order: u64| u64::from(self.lines_before[order as usize]) + (w - 1) * self.lines();
                let from = before(self.order(&of) as u64) + line.saturating_sub(1);
                (from..before(d * all)).take(limit).collect()
            }
            table::CUSTOMER_NAME => {
                let padded = |mut name: Vec<u8>, bytes| {
                    name.resize(bytes, 0);
                    name
                };
                let named = (1..=all).map(|c| {
                    let (name, given) = self.customer_name(first + c - 1, c);
                    (padded(name, 16), padded(given, FIRST_BYTES), c)
                });
                // First name and number are those of the last row of the piece before.
                let (name, given) = (last[..16].to_vec(), last[16..16 + FIRST_BYTES].to_vec());
                let from = (name, given, key[4]);
                let mut rows: Vec<_> = named.filter(|row| *row >= from).collect();
                rows.sort_unstable();
                rows.into_iter().map(|(_, _, c)| first + c - 1).take(limit).collect()
            }
            _ => {
                let orders = &self.placed_by[((d - 1) * all) as usize..(d * all) as usize];
                let mut newest: Vec<(u16, u64)> =
                    orders.iter().copied().zip(0..).filter(|(c, _)| u64::from(*c) >= n).collect();
                newest.sort_unstable_by_key(|&(c, order)| (c, std::cmp::Reverse(order)));
                newest.into_iter().map(|(_, order)| first + order).take(limit).collect()
            }
        }
    }

    fn is_delivered(&self, order: u64) -> bool {
        order <= self.customers - self.pending
    }

    /// A sequence of its own for every row of every table.
    fn random(&self, number: usize, row: u64) -> Random {
        Random::stream(mix(self.seed.wrapping_add(number as u64)), row)
    }

    /// Last and first name of the customer in row `row`.
    fn customer_name(&self, row: u64, c: u64) -> (Vec<u8>, Vec<u8>) {
        let mut random = self.random(table::CUSTOMER_NAME, row);
        let number = if c <= 1000 { c - 1 } else { draw::loaded_name(&mut random, self.names()) };
        let mut first = vec![0; 8 + random.below(9) as usize];
        fill_letters(&mut random, &mut first);
        (draw::last_name(number), first)
    }

    /// Writes row `row` of table `number`, whose schema is given.
    pub(super) fn row_image(&self, number: usize, schema: &TableSchema, row: u64, image: &mut Vec<u8>) {
        let mut random = self.random(number, row);
        let mut writer = RowWriter::new(schema, image);
        let all = self.customers;
        match number {
            table::WAREHOUSE => {
                let paid = (self.districts * all) as i64 * FIRST_PAYMENT;
                writer.integer(row + 1).integers([paid, random.below(2001) as i64]).letters(&mut random, 6);
                address(&mut writer, &mut random);
            }
            table::DISTRICT => {
                let Number { w, d, .. } = self.split(row, 1);
                let (paid, tax) = (all as i64 * FIRST_PAYMENT, random.below(2001));
                writer.integer(w).integer(d).integer(paid).integer(all + 1).integer(tax).letters(&mut random, 6);
                address(&mut writer, &mut random);
            }
            table::CUSTOMER => self.customer(row, &mut writer, &mut random),
            table::HISTORY => {
                let Number { w, d, n } = self.split(row, all);
                let number = (row % (self.districts * all) + 1) as i64;
                writer.integer(w).integers([number, LOADED, FIRST_PAYMENT]);
                writer.integer(d).integer(w).integer(d).integer(n).letters(&mut random, 12);
            }
            table::ORDERS => {
                let of = self.split(row, all);
                let carrier = if self.is_delivered(of.n) { 1 + random.below(10) } else { 0 };
                let order = self.order(&of);
                let count = self.lines_before[order + 1] - self.lines_before[order];
                writer.integer(of.w).integer(of.d).integer(of.n).integer(LOADED);
                writer.integer(self.placed_by[order]).integer(carrier).integer(count).integer(1_i64);
            }
            table::NEW_ORDER => {
                let Number { w, d, n } = self.split(row, self.pending);
                writer.integer(w).integer(d).integer(all - self.pending + n);
            }
            table::ORDER_LINE => self.order_line(row, &mut writer, &mut random),
            table::ITEM => {
                writer.integer(row + 1).integer(1 + random.below(10_000)).integer(100 + random.below(9901));
                let original = random.below(10) == 0;
                writer.integer(i64::from(original)).letters(&mut random, 14).text(&data(&mut random, original));
            }
            table::STOCK => {
                let original = random.below(10) == 0;
                writer.integer(row / self.items + 1).integer(row % self.items + 1).integers([0; 3]);
                writer.integer(10 + random.below(91)).integer(i64::from(original));
                for _ in 0..10 {
                    writer.letters(&mut random, 24);
                }
                writer.text(&data(&mut random, original));
            }
            table::CUSTOMER_NAME => {
                let Number { w, d, n } = self.split(row, all);
                let (last, first) = self.customer_name(row, n);
                let first = &first[..first.len().min(FIRST_BYTES)];
                writer.integer(w).integer(d).text(&last).text(first).integer(n);
            }
            _ => {
                let of = self.split(row, all);
                let c = self.placed_by[self.order(&of)];
                writer.integer(of.w).integer(of.d).integer(c).integer(newest_first(of.n));
            }
        }
    }

    fn customer(&self, row: u64, writer: &mut RowWriter<'_>, random: &mut Random) {
        let Number { w, d, n } = self.split(row, self.customers);
        let (last, first) = self.customer_name(row, n);
        writer.integer(w).integer(d).integer(n);
        // Balance, paid so far, credit limit, since; payments, deliveries, discount.
        writer.integers([-FIRST_PAYMENT, FIRST_PAYMENT, 5_000_000, LOADED]);
        writer.integers([1, 0, random.below(5001) as i64]);
        writer.text(&first).text(b"OE").text(&last);
        address(writer, random);
        writer.digits(random);
        writer.text(if random.below(10) == 0 { b"BC" } else { b"GC" }).letters(random, 300);
    }

    fn order_line(&self, row: u64, writer: &mut RowWriter<'_>, random: &mut Random) {
        let (w, line) = (row / self.lines() + 1, (row % self.lines()) as u32);
        let order = self.lines_before.partition_point(|&before| before <= line) - 1;
        let (d, o) = (order as u64 / self.customers + 1, order as u64 % self.customers + 1);
        let delivered = self.is_delivered(o);
        let amount = if delivered { 0 } else { 1 + random.below(999_999) };
        writer.integer(w).integer(d).integer(o).integer(line - self.lines_before[order] + 1);
        writer.integer(if delivered { LOADED } else { 0 }).integer(1 + random.below(self.items)).integer(amount);
        writer.integer(w).integer(5_i64).letters(random, 24);
    }
}

/// The last column of the key of `customer_order`: newer orders are smaller.
pub(super) fn newest_first(order: u64) -> u64 {
    u64::from(u32::MAX) - order
}

fn address(writer: &mut RowWriter<'_>, random: &mut Random) {
    writer.letters(random, 10).letters(random, 10).letters(random, 10).letters(random, 2);
    writer.text(format!("{:04}11111", random.below(10_000)).as_bytes());
}

/// Text of 26 to 50 letters, with "ORIGINAL" somewhere if it is.
fn data(random: &mut Random, original: bool) -> Vec<u8> {
    let mut text = vec![0; 26 + random.below(25) as usize];
    fill_letters(random, &mut text);
    if original {
        let at = random.below(text.len() as u64 - 7) as usize;
        text[at..at + 8].copy_from_slice(b"ORIGINAL");
    }
    text
}
