//! Delivery (clause 2.7): the oldest order of every district of a warehouse that is not delivered yet, all of them in
//! one transaction. A district without one is skipped.

use super::compose;

const TEMPLATE: &str = "\
procedure delivery
table new_order
table orders
table order_line
table customer
param w: u16
param carrier: u8
param date: i64
result delivered: u32[10]           ; the order of each district, 0 when skipped
result amount: i64[10]
scratch order_w: u16
scratch order_d: u8
scratch order_o: u32
scratch line: u8
scratch oldest: i64
scratch customer_w: u16
scratch customer_d: u8
scratch customer_c: u16
    load    r1, [w]
    store   r1, [order_w]
    store   r1, [customer_w]
    load    r2, [carrier]
    load    r3, [date]
    mov     r4, 1                   ; district
each:
    store   r4, [order_d]
    mov     r5, 0
    store   r5, [order_o]
    scan    c0, new_order, [order_w], [oldest], 1
    ret     r6, c0
    cmp     r6, 0
    be      next
    load.u16 r7, [oldest]
    cmp     r7, r1
    bne     next
    load.u8 r7, [oldest + 2]
    cmp     r7, r4
    bne     next
    load.u32 r7, [oldest + 4]
    store   r7, [order_o]
    remove  c1, new_order, [order_w]
    update  c2, orders, [order_w]
    ret     c1
    ret     r8, c2
    storer  r2, r8[orders.carrier]
    loadr   r9, r8[orders.count]
    loadr   r10, r8[orders.c]
    store   r4, [customer_d]
    store   r10, [customer_c]
    update  c3, customer, [customer_w]
    mov     r11, 0                  ; sum of the amounts
    mov     r12, 1                  ; line
line_of:
    cmp     r12, r9
    bg      behind
    store   r12, [line]
    update  c4, order_line, [order_w]
    ret     r13, c4
    storer  r3, r13[order_line.delivery]
    loadr   r14, r13[order_line.amount]
    add     r11, r11, r14
behind:
    add     r12, r12, 1
    cmp     r12, 15
    ble     line_of
    ret     r15, c3
    loadr   r16, r15[customer.balance]
    add     r16, r16, r11
    storer  r16, r15[customer.balance]
    loadr   r17, r15[customer.delivery_cnt]
    add     r17, r17, 1
    storer  r17, r15[customer.delivery_cnt]
    sub     r18, r4, 1
    mul     r19, r18, 4
    store   r7, [delivered + r19]
    mul     r19, r18, 8
    store   r11, [amount + r19]
next:
    add     r4, r4, 1
    cmp     r4, {districts}
    ble     each
    commit
";

/// The text for warehouses of this many districts, 1 to 10.
pub(super) fn source(districts: u8) -> String {
    compose(TEMPLATE, &[("{districts}", &districts.to_string())])
}
