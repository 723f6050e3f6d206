//! The six transactions of SmallBank as procedures.
//!
//! Each looks the customer up in `accounts` first, as the original does, where that is how a name becomes a number; a
//! customer who is not there aborts it. All rows of a transaction are asked for before the first is awaited.

/// Reads both balances of a customer.
const BALANCE: &str = "\
procedure balance
table accounts
table savings
table checking
param customer: i64
result total: i64
    search  c0, accounts, [customer]
    search  c1, savings, [customer]
    search  c2, checking, [customer]
    ret     c0
    ret     r1, c1
    ret     r2, c2
    loadr   r3, r1[savings.balance]
    loadr   r4, r2[checking.balance]
    add     r3, r3, r4
    store   r3, [total]
    commit
";

/// Puts money on the checking account.
const DEPOSIT_CHECKING: &str = "\
procedure deposit_checking
table accounts
table checking
param customer: i64
param amount: i64
result balance: i64
    search  c0, accounts, [customer]
    update  c1, checking, [customer]
    ret     c0
    ret     r2, c1
    load    r1, [amount]
    cmp     r1, 0
    bl      negative
    loadr   r3, r2[checking.balance]
    add     r3, r3, r1
    storer  r3, r2[checking.balance]
    store   r3, [balance]
    commit
negative:
    abort   1
";

/// Puts money on the savings account or takes it from there, never more than there is.
const TRANSACT_SAVINGS: &str = "\
procedure transact_savings
table accounts
table savings
param customer: i64
param amount: i64
result balance: i64
    search  c0, accounts, [customer]
    update  c1, savings, [customer]
    ret     c0
    ret     r1, c1
    loadr   r2, r1[savings.balance]
    load    r3, [amount]
    add     r2, r2, r3
    cmp     r2, 0
    bl      poor
    storer  r2, r1[savings.balance]
    store   r2, [balance]
    commit
poor:
    abort   2
";

/// Moves all that one customer has to the checking account of another.
const AMALGAMATE: &str = "\
procedure amalgamate
table accounts
table savings
table checking
param from: i64
param to: i64
result moved: i64
    search  c0, accounts, [from]
    search  c1, accounts, [to]
    update  c2, savings, [from]
    update  c3, checking, [from]
    update  c4, checking, [to]
    ret     c0
    ret     c1
    ret     r1, c2
    ret     r2, c3
    ret     r3, c4
    loadr   r4, r1[savings.balance]
    loadr   r5, r2[checking.balance]
    add     r4, r4, r5
    mov     r6, 0
    storer  r6, r1[savings.balance]
    storer  r6, r2[checking.balance]
    loadr   r7, r3[checking.balance]
    add     r7, r7, r4
    storer  r7, r3[checking.balance]
    store   r4, [moved]
    commit
";

/// Takes money from the checking account; who has less in both accounts together pays one more as a penalty.
const WRITE_CHECK: &str = "\
procedure write_check
table accounts
table savings
table checking
param customer: i64
param amount: i64
result taken: i64
    search  c0, accounts, [customer]
    search  c1, savings, [customer]
    update  c2, checking, [customer]
    ret     c0
    ret     r1, c1
    ret     r2, c2
    loadr   r3, r1[savings.balance]
    loadr   r4, r2[checking.balance]
    load    r5, [amount]
    add     r3, r3, r4
    cmp     r3, r5
    bge     enough
    add     r5, r5, 1
enough:
    sub     r4, r4, r5
    storer  r4, r2[checking.balance]
    store   r5, [taken]
    commit
";

/// Moves money from one checking account to another, never more than there is.
const SEND_PAYMENT: &str = "\
procedure send_payment
table accounts
table checking
param from: i64
param to: i64
param amount: i64
result left: i64
    search  c0, accounts, [from]
    search  c1, accounts, [to]
    update  c2, checking, [from]
    update  c3, checking, [to]
    ret     c0
    ret     c1
    ret     r1, c2
    ret     r2, c3
    loadr   r3, r1[checking.balance]
    load    r4, [amount]
    cmp     r3, r4
    bl      poor
    sub     r3, r3, r4
    storer  r3, r1[checking.balance]
    loadr   r5, r2[checking.balance]
    add     r5, r5, r4
    storer  r5, r2[checking.balance]
    store   r3, [left]
    commit
poor:
    abort   2
";

/// In the order of [`super::Kind`].
pub(super) const SOURCES: [&str; 6] =
    [AMALGAMATE, BALANCE, DEPOSIT_CHECKING, SEND_PAYMENT, TRANSACT_SAVINGS, WRITE_CHECK];

/// The names of [`SOURCES`].
pub(super) const NAMES: [&str; 6] =
    ["amalgamate", "balance", "deposit_checking", "send_payment", "transact_savings", "write_check"];

/// The same transactions in SQL.
pub(super) const SQL: &str = include_str!("../../sql/smallbank.sql");
