//! Payment (clause 2.5): a customer pays at some warehouse, maybe not the customer's own.
//!
//! What can fail comes before what is written, so nothing has to be kept for an abort. A customer of bad credit gets a
//! note at the front of `data`, 24 bytes (five numbers and the amount, 32 bits each), and what was there moves back.

use super::{by, compose};

const TEMPLATE: &str = "\
procedure payment{suffix}
table warehouse
table district
table customer
table history
{index}param w: u16
param d: u8
param c_w: u16
param c_d: u8
{who}param number: u32                   ; of the payment, unique in the warehouse
param amount: i64
param date: i64
result balance: i64
result credit_lim: i64
result since: i64
result discount: u16
result w_address: u8[71]            ; street_1 to zip
result d_address: u8[71]
result person: u8[123]              ; first to credit
result data: u8[200]                ; for bad credit
scratch history_w: u16
scratch history_number: u32
scratch note: u32[6]
{find_scratch}{find}    load    r1, [w]
    load    r2, [number]
    store   r1, [history_w]
    store   r2, [history_number]
    update  c0, warehouse, [w]
    update  c1, district, [w]
    update  c2, customer, [{key}]
    insert  c3, history, [history_w]
    ret     r3, c0
    ret     r4, c1
    ret     r5, c2
    ret     r6, c3
    load    r7, [amount]
    loadr   r8, r3[warehouse.ytd]
    loadr   r9, r4[district.ytd]
    loadr   r10, r5[customer.balance]
    loadr   r11, r5[customer.ytd_payment]
    loadr   r12, r5[customer.payment_cnt]
    load    r13, [d]
    load    r14, [c_w]
    load    r15, [c_d]
    load    r17, [date]
    loadr   r16, r5[customer.c]
    loadr.u16 r18, r5[customer.credit]
    loadr   r20, r5[customer.credit_lim]
    loadr   r21, r5[customer.since]
    loadr   r22, r5[customer.discount]
    copy    [w_address], r3[warehouse.street_1], 71
    copy    [d_address], r4[district.street_1], 71
    add     r8, r8, r7
    add     r9, r9, r7
    sub     r10, r10, r7
    add     r11, r11, r7
    add     r12, r12, 1
    store   r16, [note#0]
    store   r15, [note#1]
    store   r14, [note#2]
    store   r13, [note#3]
    store   r1, [note#4]
    store   r7, [note#5]
    store   r10, [balance]
    store   r20, [credit_lim]
    store   r21, [since]
    store   r22, [discount]
    storer  r12, r5[customer.payment_cnt]
    storer  r8, r3[warehouse.ytd]
    storer  r9, r4[district.ytd]
    storer  r10, r5[customer.balance]
    storer  r11, r5[customer.ytd_payment]
    storer  r17, r6[history.date]
    storer  r7, r6[history.amount]
    storer  r13, r6[history.d]
    storer  r14, r6[history.c_w]
    storer  r15, r6[history.c_d]
    storer  r16, r6[history.c]
    copy    [person], r5[customer.first], 123
    copy    r6[history.data], r3[warehouse.name], 10
    copy    r6[history.data + 14], r4[district.name], 10
    cmp     r18, 0x4342             ; 'BC'
    bne     good
    mov     r19, 0
back:
    mov     r20, 452                ; from the end, in pieces that do not overlap
    sub     r20, r20, r19
    copy    r5[customer.data + 24 + r20], r5[customer.data + r20], 24
    add     r19, r19, 24
    cmp     r19, 432
    ble     back
    copy    r5[customer.data + 24], r5[customer.data], 20
    copy    r5[customer.data], [note], 24
    copy    [data], r5[customer.data], 200
good:
    commit
{nobody}";

/// The text, by last name or by number.
pub(super) fn source(name: bool) -> String {
    compose(TEMPLATE, &by(name))
}
