//! NewOrder (clause 2.4): an order of 5 to 15 lines, each from the stock of some warehouse.
//!
//! The number of the order is read from the district, so deterministic engines learn its keys only by running it. An
//! item that does not exist aborts it with code 1, after everything else of the order was written (2.4.1.4).
//!
//! Loads stand as far in front of what uses them as they can, and copies in front of stores: the transaction processor
//! does not wait for them. The lines use registers of the head again, so that eight windows fit into its register file.

use super::compose;

const TEMPLATE: &str = "\
procedure new_order
table warehouse
table district
table customer
table orders
table new_order
table order_line
table item
table stock
{table}param w: u16
param d: u8
param c: u16
param entry: i64
param count: u8                     ; lines
param all_local: u8
param items: u32[15]
param supply: u16[15]               ; the warehouse of each line
param quantity: u8[15]
result total: i64
result o: u32
result warehouse_tax: u16
result district_tax: u16
result discount: u16
result last: char(16)
result credit: char(2)
result price: u32[15]
result amount: u32[15]
result in_stock: i16[15]
result brand: u8[15]                ; 1 where item and stock are both original
result name: char(24)[15]
scratch stock_w: u16
scratch stock_i: u32
{scratch}scratch order_w: u16
scratch order_d: u8
scratch order_o: u32
scratch line: u8
    search  c0, warehouse, [w]
    update  c1, district, [w]
    search  c2, customer, [w]
    ret     r1, c0
    ret     r2, c1
    ret     r3, c2
    loadr   r4, r1[warehouse.tax]
    loadr   r5, r2[district.tax]
    loadr   r6, r3[customer.discount]
    loadr   r7, r2[district.next_o]
    load    r9, [w]
    load    r10, [d]
    load    r11, [c]
    load    r13, [entry]
    load    r14, [count]
    load    r15, [all_local]
    copy    [last], r3[customer.last]
    copy    [credit], r3[customer.credit]
    store   r4, [warehouse_tax]
    store   r5, [district_tax]
    store   r6, [discount]
    store   r7, [o]
    store   r9, [order_w]
    store   r10, [order_d]
    store   r7, [order_o]
    add     r8, r7, 1
    storer  r8, r2[district.next_o]
    insert  c0, orders, [order_w]
    insert  c1, new_order, [order_w]
{insert}    ret     r12, c0
    ret     c1
{await}    storer  r13, r12[orders.entry]
    storer  r11, r12[orders.c]
    check   r14, 16
    storer  r14, r12[orders.count]
    storer  r15, r12[orders.all_local]
    sub     r16, r10, 1
    check   r16, 10
    mul     r16, r16, 24            ; where the district's text lies in a stock row
    mov     r17, 0                  ; line, from 0
    mov     r18, 0                  ; sum of the amounts
each:
    cmp     r17, r14
    bge     next
    mul     r19, r17, 4
    mul     r20, r17, 2
    load    r22, [supply + r20]
    load    r21, [items + r19]
    load    r23, [quantity + r17]
    add     r24, r17, 1
    store   r24, [line]
    store   r22, [stock_w]
    store   r21, [stock_i]
    insert  c2, order_line, [order_w]
    update  c1, stock, [stock_w]
    search  c0, item, [items + r19]
    mul     r1, r17, 24
    ret     r25, c0, unused
    loadr   r28, r25[item.price]
    loadr   r2, r25[item.original]
    ret     r26, c1
    loadr   r7, r26[stock.quantity]
    loadr   r3, r26[stock.original]
    loadr   r10, r26[stock.ytd]
    loadr   r11, r26[stock.order_cnt]
    loadr   r12, r26[stock.remote_cnt]
    ret     r27, c2
    copy    [name + r1], r25[item.name]
    copy    r27[order_line.dist], r26[stock.dist_01 + r16]
    add     r8, r23, 10
    mul     r29, r28, r23
    add     r18, r18, r29
    store   r28, [price + r19]
    store   r29, [amount + r19]
    mul     r2, r2, r3
    store   r2, [brand + r17]
    cmp     r7, r8
    bge     enough
    add     r7, r7, 91
enough:
    sub     r7, r7, r23
    store   r7, [in_stock + r20]
    add     r10, r10, r23
    add     r11, r11, 1
    storer  r7, r26[stock.quantity]
    storer  r10, r26[stock.ytd]
    storer  r11, r26[stock.order_cnt]
    cmp     r22, r9
    be      local
    add     r12, r12, 1
    storer  r12, r26[stock.remote_cnt]
local:
    storer  r21, r27[order_line.i]
    storer  r22, r27[order_line.supply]
    storer  r23, r27[order_line.quantity]
    storer  r29, r27[order_line.amount]
next:
    add     r17, r17, 1
    cmp     r17, 15
    bl      each
    mov     r13, 10000              ; taxes and discount are in hundredths of a per cent
    sub     r13, r13, r6
    mul     r18, r18, r13
    add     r15, r4, r5
    add     r15, r15, 10000
    mul     r18, r18, r15
    div     r18, r18, 100000000
    store   r18, [total]
    commit
unused:
    abort   1
";

/// Order-Status finds the newest order of a customer by this index.
const INDEX: [(&str, &str); 4] = [
    ("{table}", "table customer_order\n"),
    ("{scratch}", "scratch index_w: u16\nscratch index_d: u8\nscratch index_c: u16\nscratch index_newest: u32\n"),
    (
        "{insert}",
        "    store   r9, [index_w]\n    store   r10, [index_d]\n    store   r11, [index_c]\n    mov     r12, 4294967295\n    \
         sub     r12, r12, r7            ; the newest first\n    store   r12, [index_newest]\n    insert  c2, \
         customer_order, [index_w]\n",
    ),
    ("{await}", "    ret     c2\n"),
];

/// The text, with or without the index of orders by customer.
pub(super) fn source(indexed: bool) -> String {
    compose(TEMPLATE, &INDEX.map(|(name, part)| (name, if indexed { part } else { "" })))
}
