//! Transfers: money moves between accounts, and its total never changes.
//!
//! The oldest test of a database, and one that YCSB cannot be: a transaction decides from what it has read (too poor:
//! it aborts), and a lost update, a dirty read or half a transaction shows in one number at the end. Audits read one
//! account each and never see a negative balance.
//!
//! Invariant: the sum of all balances is accounts × balance, and none is negative.

use lockwork_procedure::block::{Batch, Status};
use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::{ColumnType, TableSchema};

use crate::random::Random;
use crate::zipf::{Chooser, Distribution, check_theta};
use crate::{Export, Lookup, Repeat, Workload, WorkloadError, fill, refuse, room, within};

/// What transfers are to be like.
#[derive(Clone, Debug, PartialEq)]
pub struct TransferConfig {
    /// Accounts, at least 2; their ids are 0 to `accounts` - 1.
    pub accounts: u64,
    /// What each account begins with, not negative.
    pub balance: i64,
    /// Skew of the choice of accounts, 0 (even) to below 1.
    pub theta: f64,
    /// The most that one transfer moves; amounts from 1 to this are equally likely.
    pub amount_max: i64,
    /// Share of transactions that read one balance instead of moving money, 0 to 1.
    pub audit: f64,
    /// Partitions that accounts are dealt out to by their ids. With 1, `remote` means nothing.
    pub partitions: u64,
    /// Share of transfers between accounts of two partitions, 0 to 1; the others are between accounts of one.
    pub remote: f64,
    /// Everything random follows from it.
    pub seed: u64,
}

impl Default for TransferConfig {
    fn default() -> Self {
        Self {
            accounts: 1_000_000,
            balance: 1000,
            theta: 0.5,
            amount_max: 100,
            audit: 0.1,
            partitions: 1,
            remote: 0.0,
            seed: 1,
        }
    }
}

impl TransferConfig {
    /// Whether everything is possible.
    ///
    /// # Errors
    /// [`WorkloadError::Option`] with the option, its value and what is possible.
    pub fn validate(&self) -> Result<(), WorkloadError> {
        within("accounts", self.accounts, 2, 1 << 48)?;
        // All the money on one account still fits it.
        let most = i64::MAX / self.accounts as i64;
        if !(0..=most).contains(&self.balance) {
            return refuse("balance", self.balance, format!("0 to {most} is possible with {} accounts", self.accounts));
        }
        check_theta(self.theta)?;
        if self.amount_max < 1 {
            return refuse("amount_max", self.amount_max, "1 or more is possible");
        }
        for (option, share) in [("audit", self.audit), ("remote", self.remote)] {
            if !(0.0..=1.0).contains(&share) {
                return refuse(option, share, "0 to 1 is possible");
            }
        }
        // Each partition has two accounts.
        within("partitions", self.partitions, 1, self.accounts / 2)?;
        Ok(())
    }
}

/// A transfer of more than there is aborts with this code.
pub const POOR: u16 = 1;
/// A transfer of nothing, or of less, aborts with this code.
pub const NO_AMOUNT: u16 = 2;

/// Moves an amount; answers both new balances. Right for `from` = `to` too: the second balance is read last.
const TRANSFER: &str = "\
procedure transfer
table accounts
param from: i64
param to: i64
param amount: i64
result from_balance: i64
result to_balance: i64
    update  c0, accounts, [from]
    update  c1, accounts, [to]
    ret     r1, c0
    ret     r2, c1
    load    r3, [amount]
    cmp     r3, 0
    ble     nothing
    loadr   r4, r1[accounts.balance]
    cmp     r4, r3
    bl      poor
    sub     r4, r4, r3
    storer  r4, r1[accounts.balance]
    loadr   r5, r2[accounts.balance]
    add     r5, r5, r3
    storer  r5, r2[accounts.balance]
    store   r4, [from_balance]
    store   r5, [to_balance]
    commit
poor:
    abort   1
nothing:
    abort   2
";

/// Reads one balance.
const AUDIT: &str = "\
procedure audit
table accounts
param id: i64
result balance: i64
    search  c0, accounts, [id]
    ret     r1, c0
    loadr   r2, r1[accounts.balance]
    store   r2, [balance]
    commit
";

const TRANSFER_ARGUMENTS: [&str; 3] = ["from", "to", "amount"];
const TRANSFER_RESULTS: [&str; 2] = ["from_balance", "to_balance"];

/// Ids and offsets (in bytes from the start of the block) of the registered procedures.
#[derive(Clone, Copy, Debug)]
struct Bound {
    transfer: u32,
    arguments: [usize; 3],
    balances: [usize; 2],
    audit: u32,
    id: usize,
    balance: usize,
}

/// A workload of transfers.
#[derive(Clone, Debug)]
pub struct Transfer {
    config: TransferConfig,
    schema: TableSchema,
    bound: Option<Bound>,
    random: Random,
    chooser: Chooser,
}

impl Transfer {
    /// Prepares a workload. Takes time linear in the accounts when they are chosen with skew.
    ///
    /// # Errors
    /// As [`TransferConfig::validate`].
    pub fn new(config: TransferConfig) -> Result<Self, WorkloadError> {
        config.validate()?;
        let distribution = if config.theta > 0.0 { Distribution::Zipfian } else { Distribution::Uniform };
        Ok(Self {
            schema: Self::schema(),
            bound: None,
            random: Random::stream(config.seed, 0),
            chooser: Chooser::new(distribution, config.accounts, config.theta)?,
            config,
        })
    }

    /// The table of accounts.
    ///
    /// # Panics
    /// Never: the schema is sound.
    #[must_use]
    pub fn schema() -> TableSchema {
        let columns = [("id", ColumnType::I64), ("balance", ColumnType::I64)];
        let schema = TableSchema::new("accounts", &columns, 1, false).expect("a sound schema");
        schema.partition_by_hash("id").expect("the key")
    }

    /// What it was made from.
    #[must_use]
    pub fn config(&self) -> &TransferConfig {
        &self.config
    }

    fn total(&self) -> i128 {
        i128::from(self.config.accounts) * i128::from(self.config.balance)
    }
}

/// Where integer fields of a registered procedure lie.
fn offsets<const N: usize>(procedure: &Procedure, name: &str, fields: [&str; N]) -> Result<[usize; N], WorkloadError> {
    let mut found = [0; N];
    for (place, field) in found.iter_mut().zip(fields) {
        let declared = procedure.parameter(field).or(procedure.result(field));
        let declared = declared.filter(|field| (field.column_type, field.count) == (ColumnType::I64, 1));
        let foreign = || WorkloadError::Foreign { procedure: name.into(), field: field.into() };
        *place = declared.ok_or_else(foreign)?.offset as usize;
    }
    Ok(found)
}

fn i64_at(bytes: &[u8], at: usize) -> i64 {
    i64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn put(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

impl Workload for Transfer {
    fn name(&self) -> String {
        "transfer".into()
    }

    fn describe(&self) -> String {
        let TransferConfig { accounts, balance, theta, amount_max, audit, partitions, remote, seed } = self.config;
        format!(
            "transfer: {accounts} accounts of {balance}, theta {theta}, amounts 1 to {amount_max}, audits {audit:.4}, \
             {}seed {seed}",
            if partitions > 1 { format!("{partitions} partitions, {remote:.4} between two, ") } else { String::new() }
        )
    }

    fn schemas(&self) -> Vec<TableSchema> {
        vec![self.schema.clone()]
    }

    fn row_count(&self, table: usize) -> u64 {
        if table == 0 { self.config.accounts } else { 0 }
    }

    fn row_image(&self, table: usize, row: u64, image: &mut Vec<u8>) {
        assert!(row < self.row_count(table), "row {row} of table {table}");
        image.clear();
        image.extend_from_slice(&row.to_le_bytes());
        image.extend_from_slice(&self.config.balance.to_le_bytes());
    }

    fn sources(&self) -> Vec<(String, String)> {
        vec![("transfer".into(), TRANSFER.into()), ("audit".into(), AUDIT.into())]
    }

    fn bind(&mut self, lookup: &mut Lookup<'_>) -> Result<(), WorkloadError> {
        let mut find = |name: &str| lookup(name).ok_or_else(|| WorkloadError::Unbound(name.to_string()));
        let (transfer, mover) = find("transfer")?;
        let (audit, reader) = find("audit")?;
        let [id, balance] = offsets(&reader, "audit", ["id", "balance"])?;
        self.bound = Some(Bound {
            transfer,
            arguments: offsets(&mover, "transfer", TRANSFER_ARGUMENTS)?,
            balances: offsets(&mover, "transfer", TRANSFER_RESULTS)?,
            audit,
            id,
            balance,
        });
        Ok(())
    }

    fn fill(&mut self, batch: &mut Batch, transactions: usize) -> Result<usize, WorkloadError> {
        let bound = self.bound.ok_or_else(|| WorkloadError::Unbound("transfer".into()))?;
        let room = room(batch, transactions, self.block_bytes())?;
        let draw = |this: &mut Self, _| {
            let audit = this.random.unit() < this.config.audit;
            (audit, if audit { bound.audit } else { bound.transfer })
        };
        let write = |this: &mut Self, audit, block: &mut [u8]| {
            let from = this.chooser.next(&mut this.random);
            if audit {
                return put(block, bound.id, from);
            }
            let remote = this.config.partitions > 1 && this.random.unit() < this.config.remote;
            let partitions = this.config.partitions;
            let to = this.chooser.next_other(&mut this.random, |account| {
                account == from || partitions > 1 && (account % partitions != from % partitions) != remote
            });
            let amount = 1 + this.random.below(this.config.amount_max as u64);
            for (at, value) in bound.arguments.into_iter().zip([from, to, amount]) {
                put(block, at, value);
            }
        };
        Ok(fill(self, batch, room, draw, write))
    }

    fn block_bytes(&self) -> u32 {
        let ([.., end], _) = Procedure::lay_out([&[(ColumnType::I64, 1); 3], &[(ColumnType::I64, 1); 2], &[]]);
        end as u32
    }

    fn payload_bytes(&self) -> u32 {
        // A transfer reads and writes two balances, an audit reads one.
        (32.0 * (1.0 - self.config.audit) + 8.0 * self.config.audit).round() as u32
    }

    fn accesses(&self) -> u32 {
        2
    }

    fn growth(&self, _: usize) -> f64 {
        0.0
    }

    fn repeat(&self) -> Repeat {
        Repeat::Freely
    }

    fn observe(&mut self, _: &Batch) {}

    fn check_results(&self, batch: &Batch) -> Result<u64, WorkloadError> {
        let Some(bound) = self.bound else { return Ok(0) };
        let mut values = 0;
        for (index, block) in batch.blocks().enumerate() {
            let places: &[usize] = match block.procedure() {
                id if id == bound.transfer => &bound.balances,
                id if id == bound.audit => &[bound.balance],
                _ => continue,
            };
            if block.status() != Some(Status::Committed) {
                continue;
            }
            for &at in places {
                let balance = i64_at(block.bytes(), at);
                if balance < 0 || i128::from(balance) > self.total() {
                    let what = format!("block {index} answers a balance of {balance}; 0 to {} can be", self.total());
                    return Err(WorkloadError::Violation(what));
                }
                values += 1;
            }
        }
        Ok(values)
    }

    fn check(&mut self, export: &mut Export<'_>) -> Result<String, WorkloadError> {
        let accounts = self.config.accounts;
        let mut seen = vec![0_u64; (accounts as usize).div_ceil(64)];
        let (mut rows, mut total) = (0_u64, 0_i128);
        let mut wrong = None;
        export(&mut |table, image| {
            if table != self.schema.name() || wrong.is_some() {
                return;
            }
            wrong = (|| {
                let (Some(id), Some(balance), 16) = (image.get(..8), image.get(8..16), image.len()) else {
                    return Some(format!("a row image has {} bytes instead of 16", image.len()));
                };
                let (id, balance) = (i64_at(id, 0), i64_at(balance, 0));
                let Some(place) = u64::try_from(id).ok().filter(|&id| id < accounts) else {
                    return Some(format!("there is an account {id}, which was not loaded"));
                };
                let (word, bit) = (&mut seen[(place / 64) as usize], 1 << (place % 64));
                if *word & bit != 0 {
                    return Some(format!("there are two accounts {id}"));
                }
                *word |= bit;
                rows += 1;
                total += i128::from(balance);
                (balance < 0).then(|| format!("account {id} has a balance of {balance}"))
            })();
        });
        if wrong.is_none() && rows != accounts {
            wrong = Some(format!("there are {rows} accounts of {accounts}"));
        }
        if wrong.is_none() && total != self.total() {
            wrong = Some(format!("all balances sum to {total}; they began with {}", self.total()));
        }
        match wrong {
            Some(what) => Err(WorkloadError::Violation(what)),
            None => Ok(format!("{rows} accounts hold {total} together, as in the beginning, none below 0")),
        }
    }
}

#[cfg(test)]
mod tests {
    use lockwork_procedure::program::Field;

    use super::*;

    fn declared(parameters: &[&str], results: &[&str]) -> Procedure {
        let field = |(place, name): (usize, &&str)| Field {
            name: (*name).into(),
            column_type: ColumnType::I64,
            count: 1,
            offset: 32 + 8 * place as u32,
        };
        let mut fields: Vec<Field> = parameters.iter().chain(results).enumerate().map(field).collect();
        let results = fields.split_off(parameters.len());
        Procedure { parameters: fields, results, ..Procedure::default() }
    }

    fn small() -> Transfer {
        let config = TransferConfig { accounts: 100, audit: 0.25, ..TransferConfig::default() };
        let mut transfer = Transfer::new(config).unwrap();
        transfer
            .bind(&mut |name| match name {
                "transfer" => Some((1, declared(&TRANSFER_ARGUMENTS, &TRANSFER_RESULTS))),
                _ => Some((2, declared(&["id"], &["balance"]))),
            })
            .unwrap();
        transfer
    }

    fn images(transfer: &Transfer) -> Vec<Vec<u8>> {
        let image = |row| {
            let mut image = Vec::new();
            transfer.row_image(0, row, &mut image);
            image
        };
        (0..100).map(image).collect()
    }

    #[test]
    fn calls_name_two_accounts_and_an_amount() {
        let mut transfer = small();
        assert_eq!(transfer.block_bytes(), 72);
        let mut batch = Batch::new(transfer.block_bytes(), 1000).unwrap();
        assert_eq!(transfer.fill(&mut batch, 2000), Ok(1000));
        let mut audits = 0;
        for block in batch.blocks() {
            let [a, b, c] = [32, 40, 48].map(|at| i64_at(block.bytes(), at));
            assert!((0..100).contains(&a));
            if block.procedure() == 2 {
                audits += 1;
            } else {
                assert!((0..100).contains(&b) && a != b && (1..=100).contains(&c));
            }
        }
        assert!((200..300).contains(&audits), "{audits}");
    }

    #[test]
    fn money_that_moves_is_fine_and_money_that_appears_is_not() {
        let mut transfer = small();
        let mut rows = images(&transfer);
        put(&mut rows[3], 8, 1500);
        put(&mut rows[4], 8, 500);
        let mut check = |rows: &[Vec<u8>]| {
            transfer.check(&mut |each| rows.iter().for_each(|row| each("accounts", row))).map_err(|e| e.to_string())
        };
        assert!(check(&rows).unwrap().contains("hold 100000 together"));
        put(&mut rows[4], 8, 501);
        assert!(check(&rows).unwrap_err().contains("sum to 100001"));
        put(&mut rows[4], 8, (-1_i64) as u64);
        assert!(check(&rows).unwrap_err().contains("account 4 has a balance of -1"));
        assert!(check(&rows[5..]).unwrap_err().contains("95 accounts of 100"));
        rows[5] = rows[6].clone();
        assert!(check(&rows[5..]).unwrap_err().contains("two accounts 6"));
        rows[5].pop();
        assert!(check(&rows[5..]).unwrap_err().contains("15 bytes"));
    }

    #[test]
    fn a_negative_answer_is_a_violation() {
        let mut transfer = small();
        let mut batch = Batch::new(transfer.block_bytes(), 50).unwrap();
        transfer.fill(&mut batch, 50).unwrap();
        assert_eq!(transfer.check_results(&batch), Ok(0));
        let moves = (0..50).filter(|&i| batch.block(i).procedure() == 1).collect::<Vec<_>>();
        moves.iter().for_each(|&i| batch.block_mut(i).set_outcome(Status::Committed, 0));
        assert_eq!(transfer.check_results(&batch), Ok(2 * moves.len() as u64));
        put(batch.block_mut(moves[1]).bytes(), 64, (-5_i64) as u64);
        let error = transfer.check_results(&batch).unwrap_err().to_string();
        assert!(error.contains(&format!("block {}", moves[1])) && error.contains("-5"), "{error}");
    }

    #[test]
    fn impossible_options_are_refused_by_name() {
        let good = TransferConfig::default;
        let cases = [
            ("accounts", TransferConfig { accounts: 1, ..good() }),
            ("balance", TransferConfig { balance: -1, ..good() }),
            ("balance", TransferConfig { balance: i64::MAX, ..good() }),
            ("theta", TransferConfig { theta: 1.5, ..good() }),
            ("amount_max", TransferConfig { amount_max: 0, ..good() }),
            ("audit", TransferConfig { audit: f64::NAN, ..good() }),
        ];
        for (option, config) in cases {
            let error = Transfer::new(config).unwrap_err();
            assert!(matches!(error, WorkloadError::Option { option: named, .. } if named == option), "{error}");
        }
    }

    #[test]
    fn binding_asks_for_both_procedures_and_their_fields() {
        let mut transfer = Transfer::new(TransferConfig { accounts: 2, ..TransferConfig::default() }).unwrap();
        assert_eq!(transfer.bind(&mut |_| None), Err(WorkloadError::Unbound("transfer".into())));
        let foreign = transfer.bind(&mut |_| Some((1, Procedure::default())));
        assert!(matches!(foreign, Err(WorkloadError::Foreign { .. })));
        let mut batch = Batch::new(128, 1).unwrap();
        assert!(matches!(transfer.fill(&mut batch, 1), Err(WorkloadError::Unbound(_))));
    }
}
