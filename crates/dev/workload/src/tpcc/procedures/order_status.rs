//! OrderStatus (clause 2.6): the newest order of a customer, and its lines.

use super::{by, compose};

const TEMPLATE: &str = "\
procedure order_status{suffix}
table customer
table customer_order
table orders
table order_line
{index}param c_w: u16
param c_d: u8
{who}result balance: i64
result entry: i64
result o: u32                       ; 0 when there is no order
result carrier: u8                  ; 0 when it is not delivered
result count: u8
result person: u8[34]               ; first to last
result lines: bytes(64)[15]         ; rows of order_line, key and all
scratch index_w: u16
scratch index_d: u8
scratch index_c: u16
scratch index_newest: u32
scratch order_w: u16
scratch order_d: u8
scratch order_o: u32
scratch line: u8
scratch newest: i64[2]
{find_scratch}{find}    search  c0, customer, [{key}]
    ret     r1, c0
    copy    [person], r1[customer.first], 34
    loadr   r2, r1[customer.balance]
    store   r2, [balance]
    load    r3, [c_w]
    load    r4, [c_d]
    loadr   r5, r1[customer.c]
    store   r3, [index_w]
    store   r4, [index_d]
    store   r5, [index_c]
    scan    c1, customer_order, [index_w], [newest], 1
    ret     r6, c1
    cmp     r6, 0
    be      none
    load.u16 r7, [newest]
    cmp     r7, r3
    bne     none
    load.u8 r7, [newest + 2]
    cmp     r7, r4
    bne     none
    load.u16 r7, [newest + 4]
    cmp     r7, r5
    bne     none
    load.u32 r7, [newest + 8]
    mov     r8, 4294967295
    sub     r8, r8, r7
    store   r3, [order_w]
    store   r4, [order_d]
    store   r8, [order_o]
    store   r8, [o]
    search  c2, orders, [order_w]
    ret     r9, c2
    loadr   r10, r9[orders.entry]
    store   r10, [entry]
    loadr   r10, r9[orders.carrier]
    store   r10, [carrier]
    loadr   r10, r9[orders.count]
    check   r10, 16
    store   r10, [count]
    scan    c3, order_line, [order_w], [lines], 15, r10
    ret     c3
none:
    commit
{nobody}";

/// The text, by last name or by number.
pub(super) fn source(name: bool) -> String {
    compose(TEMPLATE, &by(name))
}
