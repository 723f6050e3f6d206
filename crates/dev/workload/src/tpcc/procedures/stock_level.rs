//! StockLevel (clause 2.8): how many different items of a district's last 20 orders are low in stock.
//!
//! The lines of each order are scanned; how many there are says the order. Items that are low are kept in a list, so
//! that each is counted once; it is short, since few items are low.

pub(super) const SOURCE: &str = "\
procedure stock_level
table district
table orders
table order_line
table stock
param w: u16
param d: u8
param threshold: u8
result low: u32
scratch stock_w: u16
scratch stock_i: u32
scratch order_w: u16
scratch order_d: u8
scratch order_o: u32
scratch line: u8
scratch items: i64[15]
scratch counted: u32[300]
    search  c0, district, [w]
    load    r1, [w]
    load    r2, [d]
    load    r3, [threshold]
    store   r1, [stock_w]
    store   r1, [order_w]
    store   r2, [order_d]
    ret     r4, c0
    loadr   r5, r4[district.next_o]
    mov     r6, 0                   ; items counted
    sub     r7, r5, 20
    cmp     r7, 1
    bge     enough
    mov     r7, 1
enough:
    mov     r8, 0
each:
    add     r9, r7, r8
    cmp     r9, r5
    bge     next
    store   r9, [order_o]
    search  c0, orders, [order_w]
    ret     r10, c0, next
    loadr   r11, r10[orders.count]
    check   r11, 16
    scan    c1, order_line.i, [order_w], [items], 15, r11
    ret     r12, c1
    mov     r13, 0
item:
    cmp     r13, r12
    bge     behind
    mul     r14, r13, 8
    load.u32 r15, [items + r14]
    store   r15, [stock_i]
    search  c2, stock, [stock_w]
    ret     r16, c2
    loadr   r17, r16[stock.quantity]
    cmp     r17, r3
    bge     behind
    mov     r18, 0
known:
    cmp     r18, r6
    bge     fresh
    mul     r19, r18, 4
    load    r20, [counted + r19]
    cmp     r20, r15
    be      behind
    add     r18, r18, 1
    cmp     r18, 300
    bl      known
fresh:
    check   r6, 300
    mul     r19, r6, 4
    store   r15, [counted + r19]
    add     r6, r6, 1
behind:
    add     r13, r13, 1
    cmp     r13, 15
    bl      item
next:
    add     r8, r8, 1
    cmp     r8, 20
    bl      each
    store   r6, [low]
    commit
";
