//! What committed transactions said they did: counted for the check of the contents, and checked by itself.

use lockwork_procedure::block::{Batch, Block, Status};

use super::Kind;
use super::call::MAX_LINES;
use super::config::{Mix, TpccConfig};
use super::population::Population;
use crate::WorkloadError;
use crate::fields::{Place, Procedures, violation};

/// Sums over all observed commits.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    districts: usize,
    /// Cents paid, by warehouse.
    pub(super) paid: Vec<i128>,
    /// Orders placed, by district of all warehouses.
    pub(super) ordered: Vec<u64>,
    /// Orders delivered, by district of all warehouses.
    pub(super) delivered: Vec<u64>,
    /// Lines of the orders placed, their quantities, and how many are remote.
    pub(super) lines: [u64; 3],
    /// Commits.
    pub(super) committed: u64,
    /// Arguments and results: of NewOrder, of both Payments, of Delivery, of StockLevel.
    order: [Place; 12],
    payments: Vec<[Place; 2]>,
    delivery: Option<[Place; 2]>,
    low: Option<Place>,
    /// OrderStatus by number and by name: warehouse and district; order, count and lines.
    statuses: Vec<[Place; 5]>,
}

impl Observed {
    pub(super) fn new(config: &TpccConfig, rows: &Population, procedures: &Procedures) -> Self {
        let order = [
            "w",
            "d",
            "count",
            "supply",
            "quantity",
            "total",
            "o",
            "warehouse_tax",
            "district_tax",
            "discount",
            "price",
            "amount",
        ];
        let standard = config.mix == Mix::Standard;
        let payments: &[Kind] = if standard { &[Kind::Payment, Kind::PaymentByName] } else { &[Kind::Payment] };
        let statuses: &[Kind] = if standard { &[Kind::OrderStatus, Kind::OrderStatusByName] } else { &[] };
        let status = |&kind: &Kind| procedures.places(kind as usize, ["c_w", "c_d", "o", "count", "lines"]);
        let districts = (rows.warehouses * rows.districts) as usize;
        Self {
            districts: rows.districts as usize,
            paid: vec![0; rows.warehouses as usize],
            ordered: vec![0; districts],
            delivered: vec![0; districts],
            lines: [0; 3],
            committed: 0,
            order: procedures.places(Kind::NewOrder as usize, order),
            payments: payments.iter().map(|&kind| procedures.places(kind as usize, ["w", "amount"])).collect(),
            delivery: standard.then(|| procedures.places(Kind::Delivery as usize, ["w", "delivered"])),
            low: standard.then(|| procedures.place(Kind::StockLevel as usize, "low")),
            statuses: statuses.iter().map(status).collect(),
        }
    }

    /// Counts what a batch did.
    pub(super) fn add(&mut self, procedures: &Procedures, batch: &Batch) {
        for block in batch.blocks().filter(|block| block.status() == Some(Status::Committed)) {
            let Some(number) = procedures.number(block.procedure()) else { continue };
            let bytes = block.bytes();
            self.committed += 1;
            match Kind::ALL[number] {
                Kind::NewOrder => {
                    let [w, d, count, supply, quantity, ..] = self.order;
                    let w = w.get(bytes);
                    self.ordered[(w as usize - 1) * self.districts + d.get(bytes) as usize - 1] += 1;
                    for line in 0..count.get(bytes) as usize {
                        self.lines[0] += 1;
                        self.lines[1] += quantity.get_at(bytes, line) as u64;
                        self.lines[2] += u64::from(supply.get_at(bytes, line) != w);
                    }
                }
                kind @ (Kind::Payment | Kind::PaymentByName) => {
                    let [w, amount] = self.payments[usize::from(kind == Kind::PaymentByName)];
                    self.paid[w.get(bytes) as usize - 1] += i128::from(amount.get(bytes));
                }
                Kind::Delivery => {
                    let [w, delivered] = self.delivery.expect("the mix has it");
                    let first = (w.get(bytes) as usize - 1) * self.districts;
                    for d in 0..self.districts {
                        self.delivered[first + d] += u64::from(delivered.get_at(bytes, d) != 0);
                    }
                }
                Kind::OrderStatus | Kind::OrderStatusByName | Kind::StockLevel => {}
            }
        }
    }

    /// Checks what committed transactions answered, each by itself; returns how many answers there were.
    pub(super) fn check_results(&self, procedures: &Procedures, batch: &Batch) -> Result<u64, WorkloadError> {
        let mut answers = 0;
        for (index, block) in batch.blocks().enumerate() {
            let Some(number) = procedures.number(block.procedure()) else { continue };
            if block.status() == Some(Status::Committed) {
                if let Some(what) = self.wrong(Kind::ALL[number], &block) {
                    return violation(format!("block {index}, {:?}: {what}", Kind::ALL[number]));
                }
                answers += 1;
            }
        }
        Ok(answers)
    }

    /// What is wrong with an answer.
    fn wrong(&self, kind: Kind, block: &Block<'_>) -> Option<String> {
        let bytes = block.bytes();
        match kind {
            Kind::NewOrder => self.wrong_total(bytes),
            Kind::OrderStatus | Kind::OrderStatusByName => {
                let [w, d, o, count, lines] = self.statuses[usize::from(kind == Kind::OrderStatusByName)];
                let (order, count) = (o.get(bytes), count.get(bytes) as usize);
                let key = |line: usize| {
                    let row = lines.bytes_at(bytes, line);
                    let w = i64::from(u16::from_le_bytes([row[0], row[1]]));
                    let o = i64::from(u32::from_le_bytes([row[4], row[5], row[6], row[7]]));
                    (w, i64::from(row[2]), o, usize::from(row[8]))
                };
                let expected = |line: usize| (w.get(bytes), d.get(bytes), order, line + 1);
                let wrong = (0..count).find(|&line| key(line) != expected(line))?;
                Some(format!("line {} of {count} of order {order} is that of {:?}", wrong + 1, key(wrong)))
            }
            Kind::StockLevel => {
                let low = self.low?.get(bytes);
                (low > 20 * MAX_LINES as i64).then(|| format!("{low} items of the last 20 orders"))
            }
            Kind::Payment | Kind::PaymentByName | Kind::Delivery => None,
        }
    }

    /// The total follows from prices, quantities, taxes and discount.
    fn wrong_total(&self, bytes: &[u8]) -> Option<String> {
        let [.., count, _, quantity, total, o, warehouse_tax, district_tax, discount, price, amount] = self.order;
        let mut sum = 0;
        for line in 0..count.get(bytes) as usize {
            let (found, expected) =
                (amount.get_at(bytes, line), price.get_at(bytes, line) * quantity.get_at(bytes, line));
            if found != expected {
                return Some(format!(
                    "line {} of order {} costs {found} instead of {expected}",
                    line + 1,
                    o.get(bytes)
                ));
            }
            sum += found;
        }
        let taxed = 10_000 + warehouse_tax.get(bytes) + district_tax.get(bytes);
        let expected = sum * (10_000 - discount.get(bytes)) * taxed / 100_000_000;
        let found = total.get(bytes);
        (found != expected).then(|| format!("order {} costs {found} instead of {expected}", o.get(bytes)))
    }
}
