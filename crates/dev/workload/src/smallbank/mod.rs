//! SmallBank: customers with a savings and a checking account, and six short transactions on them.
//!
//! Source: Alomari, Cahill, Fekete, Röhm, "The cost of serializability on platforms that use snapshot isolation", ICDE
//! 2008; the mix and the hot customers are those of the H-Store version, which most papers run. It is the smallest
//! workload in which transactions read what others write in other tables: under snapshot isolation its invariants
//! break, so it tells a serializable engine from one that is not.
//!
//! As there, calls name the customer by number and every transaction looks `accounts` up. Customers are chosen with
//! skew `theta`; a share of the choices can go to a few hot customers instead. Money is in cents.
//!
//! Invariant: the sum of all balances changes by what the committed transactions put in and took out, to the cent, and
//! no savings account is below 0. (A checking account can be: WriteCheck lends.)

mod procedures;

use lockwork_procedure::block::{Batch, Status};
use lockwork_procedure::schema::{ColumnType, TableSchema};

use crate::fields::{Place, Procedures, RowWriter, check_share, violation};
use crate::random::Random;
use crate::zipf::{Chooser, Distribution, check_theta};
use crate::{Export, Lookup, Repeat, Source, Workload, WorkloadError, fill, from_sql, refuse, within};

/// The transactions, in the order of [`Smallbank`]'s mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Kind {
    /// Moves all of one customer's money to another.
    Amalgamate,
    /// Reads both balances.
    Balance,
    /// Puts money on a checking account.
    DepositChecking,
    /// Moves money between checking accounts.
    SendPayment,
    /// Puts money on a savings account, or takes it from there.
    TransactSavings,
    /// Takes money from a checking account.
    WriteCheck,
}

impl Kind {
    /// All kinds, as they are counted.
    pub const ALL: [Self; 6] = [
        Self::Amalgamate,
        Self::Balance,
        Self::DepositChecking,
        Self::SendPayment,
        Self::TransactSavings,
        Self::WriteCheck,
    ];

    /// Transactions of this kind in a hundred.
    const fn weight(self) -> u64 {
        if matches!(self, Self::SendPayment) { 25 } else { 15 }
    }
}

/// What SmallBank is to be like.
#[derive(Clone, Debug, PartialEq)]
pub struct SmallbankConfig {
    /// Customers, at least 2; each has a savings and a checking account.
    pub accounts: u64,
    /// What each account begins with, in cents, not negative.
    pub balance: i64,
    /// Skew of the choice of customers, 0 (even) to below 1.
    pub theta: f64,
    /// Share of the choices that go to the hot customers, all alike, 0 to 1.
    pub hot: f64,
    /// How many customers are hot: the first ones; 2 to `accounts`.
    pub hot_accounts: u64,
    /// The most that a transaction moves, in cents, at least 1.
    pub amount_max: i64,
    /// Everything random follows from it.
    pub seed: u64,
    /// What the procedures are written in.
    pub source: Source,
}

impl Default for SmallbankConfig {
    fn default() -> Self {
        let (accounts, balance, amount_max) = (1_000_000, 1_000_000, 10_000);
        Self {
            accounts,
            balance,
            theta: 0.5,
            hot: 0.0,
            hot_accounts: 100,
            amount_max,
            seed: 1,
            source: Source::Assembly,
        }
    }
}

impl SmallbankConfig {
    /// Whether everything is possible.
    ///
    /// # Errors
    /// [`WorkloadError::Option`] with the option, its value and what is possible.
    pub fn validate(&self) -> Result<(), WorkloadError> {
        within("accounts", self.accounts, 2, 1 << 40)?;
        // All the money on one account fits it, and so does what a hundred years of deposits add.
        let most = (i64::MAX / 4) / self.accounts as i64;
        if !(0..=most).contains(&self.balance) {
            return refuse("balance", self.balance, format!("0 to {most} is possible with {} accounts", self.accounts));
        }
        check_theta(self.theta)?;
        check_share("hot", self.hot)?;
        if self.hot > 0.0 {
            within("hot_accounts", self.hot_accounts, 2, self.accounts)?;
        }
        within("amount_max", u64::try_from(self.amount_max).unwrap_or(0), 1, 1 << 31)
    }
}

/// Columns of every balance table.
const BALANCE: [(&str, ColumnType); 2] = [("customer", ColumnType::I64), ("balance", ColumnType::I64)];

/// Names of the arguments, two customers and an amount, for each kind; the result that tells what moved.
const FIELDS: [(&[&str], &str); 6] = [
    (&["from", "to"], "moved"),
    (&["customer"], "total"),
    (&["customer", "amount"], "balance"),
    (&["from", "to", "amount"], "left"),
    (&["customer", "amount"], "balance"),
    (&["customer", "amount"], "taken"),
];

/// A SmallBank workload.
#[derive(Clone, Debug)]
pub struct Smallbank {
    config: SmallbankConfig,
    schemas: [TableSchema; 3],
    procedures: Procedures,
    /// For each kind: the customers and the amount, and the result.
    arguments: Vec<(Vec<Place>, Place)>,
    balance: Place,
    random: Random,
    chooser: Chooser,
    /// Cents that observed transactions put in, less what they took out.
    gained: i128,
    /// Observed commits of each kind.
    committed: [u64; 6],
}

impl Smallbank {
    /// Prepares a workload. Takes time linear in the accounts when they are chosen with skew.
    ///
    /// # Errors
    /// As [`SmallbankConfig::validate`].
    pub fn new(config: SmallbankConfig) -> Result<Self, WorkloadError> {
        config.validate()?;
        let schemas = Self::schemas();
        let sources = match config.source {
            Source::Assembly => procedures::SOURCES.map(String::from).to_vec(),
            Source::Sql => from_sql::assembly(&[procedures::SQL], &schemas, &procedures::NAMES),
        };
        let procedures = Procedures::new(sources, &schemas);
        let places = |(number, (arguments, result)): (usize, &(&[&str], &str))| {
            let arguments = arguments.iter().map(|name| procedures.place(number, name)).collect();
            (arguments, procedures.place(number, result))
        };
        let distribution = if config.theta > 0.0 { Distribution::Zipfian } else { Distribution::Uniform };
        Ok(Self {
            arguments: FIELDS.iter().enumerate().map(places).collect(),
            balance: Place::column(&schemas[1], "balance"),
            random: Random::stream(config.seed, 0),
            chooser: Chooser::new(distribution, config.accounts, config.theta)?,
            gained: 0,
            committed: [0; 6],
            procedures,
            schemas,
            config,
        })
    }

    /// The tables: accounts (names), savings, checking; partitioned by customer.
    ///
    /// # Panics
    /// Never: the schemas are sound.
    #[must_use]
    pub fn schemas() -> [TableSchema; 3] {
        let table = |name, columns: &[(&str, ColumnType)]| {
            let schema = TableSchema::new(name, columns, 1, false).expect("sound");
            schema.partition_by_hash("customer").expect("the key")
        };
        let accounts = [("customer", ColumnType::I64), ("name", ColumnType::Char(40))];
        [table("accounts", &accounts), table("savings", &BALANCE), table("checking", &BALANCE)]
    }

    /// What it was made from.
    #[must_use]
    pub fn config(&self) -> &SmallbankConfig {
        &self.config
    }

    /// The next transaction's kind: by the weights, which sum to 100.
    fn draw(&mut self) -> Kind {
        let mut draw = self.random.below(100);
        let kind = Kind::ALL.into_iter().find(|kind| {
            let found = draw < kind.weight();
            draw = draw.wrapping_sub(kind.weight());
            found
        });
        kind.expect("weights of 100")
    }

    /// A customer who is not in `taken`.
    fn customer(&mut self, taken: &[u64]) -> u64 {
        if self.config.hot == 0.0 || self.random.unit() >= self.config.hot {
            return self.chooser.next_other(&mut self.random, |account| taken.contains(&account));
        }
        let mut customer = self.random.below(self.config.hot_accounts);
        while taken.contains(&customer) {
            customer = (customer + 1) % self.config.hot_accounts;
        }
        customer
    }

    fn write_call(&mut self, kind: Kind, block: &mut [u8]) {
        let mut customers = Vec::with_capacity(2);
        let count = if matches!(kind, Kind::Amalgamate | Kind::SendPayment) { 2 } else { 1 };
        for place in 0..count {
            let customer = self.customer(&customers);
            self.arguments[kind as usize].0[place].put(block, customer as i64);
            customers.push(customer);
        }
        let mut amount = 1 + self.random.below(self.config.amount_max as u64) as i64;
        if kind == Kind::TransactSavings && self.random.below(2) == 0 {
            amount = -amount;
        }
        if let Some(place) = self.arguments[kind as usize].0.get(count) {
            place.put(block, amount);
        }
    }

    fn total(&self) -> i128 {
        2 * i128::from(self.config.accounts) * i128::from(self.config.balance)
    }
}

impl Workload for Smallbank {
    fn name(&self) -> String {
        "smallbank".into()
    }

    fn describe(&self) -> String {
        let SmallbankConfig { accounts, balance, theta, hot, hot_accounts, amount_max, seed, .. } = self.config;
        let hot = if hot > 0.0 { format!(", {hot:.4} of them the first {hot_accounts}") } else { String::new() };
        format!(
            "smallbank: {accounts} customers with twice {balance} cents, theta {theta}{hot}, amounts 1 to \
             {amount_max}, seed {seed}"
        )
    }

    fn schemas(&self) -> Vec<TableSchema> {
        self.schemas.to_vec()
    }

    fn row_count(&self, table: usize) -> u64 {
        if table < 3 { self.config.accounts } else { 0 }
    }

    fn row_image(&self, table: usize, row: u64, image: &mut Vec<u8>) {
        assert!(row < self.row_count(table), "row {row} of table {table}");
        let mut writer = RowWriter::new(&self.schemas[table], image);
        writer.integer(row);
        if table == 0 {
            writer.text(format!("{row:020}").as_bytes());
        } else {
            writer.integer(self.config.balance);
        }
    }

    fn sources(&self) -> Vec<(String, String)> {
        self.procedures.sources()
    }

    fn bind(&mut self, lookup: &mut Lookup<'_>) -> Result<(), WorkloadError> {
        self.procedures.bind(lookup)
    }

    fn fill(&mut self, batch: &mut Batch, transactions: usize) -> Result<usize, WorkloadError> {
        let room = self.procedures.room(batch, transactions)?;
        let draw = |this: &mut Self, _| {
            let kind = this.draw();
            (kind, this.procedures.id(kind as usize))
        };
        Ok(fill(self, batch, room, draw, Self::write_call))
    }

    fn block_bytes(&self) -> u32 {
        self.procedures.block_bytes()
    }

    fn payload_bytes(&self) -> u32 {
        // Balances read and written, eight bytes each: 5, 2, 2, 4, 2, 3 by kind, each as often as its weight says.
        (8 * (15 * (5 + 2 + 2 + 2 + 3) + 25 * 4) + 50) / 100
    }

    fn accesses(&self) -> u32 {
        // 5, 3, 2, 4, 2, 3 by kind.
        (15 * (5 + 3 + 2 + 2 + 3) + 25 * 4 + 50) / 100
    }

    fn growth(&self, _: usize) -> f64 {
        0.0
    }

    fn repeat(&self) -> Repeat {
        Repeat::Observed
    }

    fn observe(&mut self, batch: &Batch) {
        for block in batch.blocks().filter(|block| block.status() == Some(Status::Committed)) {
            let Some(number) = self.procedures.number(block.procedure()) else { continue };
            self.committed[number] += 1;
            let (arguments, result) = &self.arguments[number];
            self.gained += i128::from(match Kind::ALL[number] {
                Kind::DepositChecking | Kind::TransactSavings => arguments[1].get(block.bytes()),
                Kind::WriteCheck => -result.get(block.bytes()),
                Kind::Amalgamate | Kind::Balance | Kind::SendPayment => 0,
            });
        }
    }

    fn check_results(&self, batch: &Batch) -> Result<u64, WorkloadError> {
        let mut values = 0;
        for (index, block) in batch.blocks().enumerate() {
            let Some(number) = self.procedures.number(block.procedure()) else { continue };
            if block.status() != Some(Status::Committed) {
                continue;
            }
            let (arguments, result) = &self.arguments[number];
            let found = result.get(block.bytes());
            let amount = || arguments[1].get(block.bytes());
            let wrong = match Kind::ALL[number] {
                Kind::SendPayment | Kind::TransactSavings => found < 0,
                Kind::WriteCheck => found != amount() && found != amount() + 1,
                Kind::Amalgamate | Kind::Balance | Kind::DepositChecking => false,
            };
            if wrong {
                let (name, _) = &self.procedures.sources()[number];
                return violation(format!("block {index}, {name}: it answers {found}"));
            }
            values += 1;
        }
        Ok(values)
    }

    fn check(&mut self, export: &mut Export<'_>) -> Result<String, WorkloadError> {
        let accounts = self.config.accounts;
        let (mut rows, mut total) = ([0_u64; 3], 0_i128);
        let mut wrong = None;
        export(&mut |table, image| {
            let Some(number) = self.schemas.iter().position(|schema| schema.name() == table) else { return };
            rows[number] += 1;
            if number > 0 {
                let balance = self.balance.get(image);
                total += i128::from(balance);
                if number == 1 && balance < 0 {
                    wrong = Some(format!("a savings account has a balance of {balance}"));
                }
            }
        });
        if let Some(wrong) = wrong {
            return violation(wrong);
        }
        for (rows, schema) in rows.into_iter().zip(&self.schemas) {
            if rows != accounts {
                return violation(format!("{} has {rows} rows of {accounts}", schema.name()));
            }
        }
        let (expected, gained) = (self.total() + self.gained, self.gained);
        if total != expected {
            return violation(format!(
                "all balances sum to {total}; they began with {}, committed transactions changed that by {gained}: \
                 {expected} should be there",
                self.total()
            ));
        }
        let committed: u64 = self.committed.iter().sum();
        Ok(format!(
            "{accounts} customers hold {total}: as in the beginning and {gained} by {committed} committed transactions"
        ))
    }
}

#[cfg(test)]
mod tests;
