//! The five transactions of TPC-C as procedures, by the clauses of the specification.
//!
//! A transaction that can name its customer by number or by last name is two procedures: by number every key follows
//! from the arguments, so deterministic engines plan it; by name the number is read from `customer_name` first.
//!
//! Keys of several columns lie in the block as they do in the row, so the fields of a key are declared in the key's
//! order and begin at a multiple of 4.

mod delivery;
mod new_order;
mod order_status;
mod payment;
mod sql;
mod stock_level;

use lockwork_procedure::schema::TableSchema;

use super::config::{Mix, TpccConfig};
use crate::Source;

/// Looks a customer's number up by last name (2.5.2.2, 2.6.2.2): of all of that name in the district, ordered by first
/// name, the one in the middle, rounded up. Reads the index in pieces, because how many there are is not known; a
/// hundred and twenty-eight are far more than NURand gives a name among 3,000 customers. Uses registers from r40 on,
/// writes `key_c`, and ends at `nobody` when there is none.
const FIND: &str = "\
    load    r40, [c_w]
    load    r41, [c_d]
    store   r40, [key_w]
    store   r41, [key_d]
    store   r40, [from_w]
    store   r41, [from_d]
    copy    [from_last], [last]
    load.i64 r42, [last]
    load.i64 r43, [last + 8]
    mov     r44, 0                  ; customers of that name so far
    mov     r45, 0                  ; piece
piece:
    scan    c0, customer_name, [from_w], [rows], 16
    ret     r46, c0
    mov     r47, 0                  ; row of the piece
same:
    cmp     r47, r46
    bge     found
    mul     r48, r47, 32
    load.u16 r49, [rows + r48]
    cmp     r49, r40
    bne     found
    load.u8 r49, [rows + 2 + r48]
    cmp     r49, r41
    bne     found
    load.i64 r49, [rows + 3 + r48]
    cmp     r49, r42
    bne     found
    load.i64 r49, [rows + 11 + r48]
    cmp     r49, r43
    bne     found
    load.u16 r49, [rows + 30 + r48]
    check   r44, 128
    mul     r50, r44, 2
    store   r49, [numbers + r50]
    add     r44, r44, 1
    add     r47, r47, 1
    cmp     r47, 16
    bl      same
    copy    [from_first], [rows#15 + 19], 11
    load.u16 r49, [rows#15 + 30]    ; the next piece begins behind the last row
    add     r49, r49, 1
    store   r49, [from_c]
    add     r45, r45, 1
    cmp     r45, 8
    bl      piece
found:
    cmp     r44, 0
    be      nobody
    sub     r44, r44, 1
    div     r44, r44, 2
    check   r44, 128
    mul     r44, r44, 2
    load    r49, [numbers + r44]
    store   r49, [key_c]
";

/// What [`FIND`] needs; the rows of `customer_name` are 32 bytes, all of them key.
const FIND_SCRATCH: &str = "\
scratch key_w: u16
scratch key_d: u8
scratch key_c: u16
scratch from_w: u16
scratch from_d: u8
scratch from_last: char(16)
scratch from_first: char(11)
scratch from_c: u16
scratch numbers: u16[128]
scratch rows: bytes(32)[16]
";

/// How [`FIND`] ends without a customer.
const NOBODY: &str = "\
nobody:
    abort   2
";

/// A text in which every `{name}` is replaced.
fn compose(template: &str, parts: &[(&str, &str)]) -> String {
    parts.iter().fold(template.to_string(), |text, (name, part)| text.replace(name, part))
}

/// The parts in which a transaction by last name differs from the one by number.
fn by(name: bool) -> [(&'static str, &'static str); 7] {
    [
        ("{suffix}", if name { "_by_name" } else { "" }),
        ("{index}", if name { "table customer_name\n" } else { "" }),
        ("{who}", if name { "param last: char(16)\n" } else { "param c: u16\n" }),
        ("{find_scratch}", if name { FIND_SCRATCH } else { "" }),
        ("{find}", if name { FIND } else { "" }),
        ("{key}", if name { "key_w" } else { "c_w" }),
        ("{nobody}", if name { NOBODY } else { "" }),
    ]
}

/// The texts that a mix needs, in the order of [`super::Kind`].
pub(super) fn sources(config: &TpccConfig, schemas: &[TableSchema]) -> Vec<String> {
    if config.source == Source::Sql {
        return sql::assembly(config, schemas);
    }
    match config.mix {
        Mix::NewOrderPayment | Mix::NewOrder | Mix::Payment => vec![new_order::source(false), payment::source(false)],
        Mix::Standard => vec![
            new_order::source(true),
            payment::source(false),
            payment::source(true),
            order_status::source(false),
            order_status::source(true),
            delivery::source(config.districts),
            stock_level::SOURCE.to_string(),
        ],
    }
}
