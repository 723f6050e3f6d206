//! The seven transactions of TATP as procedures.
//!
//! A row that is not there aborts the transaction, as the specification expects of a known share of the calls. Those
//! that name a subscriber by telephone number find the key in `subscriber_number` first.

/// Reads all of a subscriber.
const GET_SUBSCRIBER_DATA: &str = "\
procedure get_subscriber_data
table subscriber
param s: u32
result data: u8[56]                 ; sub_nbr to vlr_location
    search  c0, subscriber, [s]
    ret     r1, c0
    copy    [data], r1[subscriber.sub_nbr], 56
    commit
";

/// Where calls of an active facility go at a time. Starts are 0, 8 or 16, so a forwarding that has begun by then is
/// one of three rows.
const GET_NEW_DESTINATION: &str = "\
procedure get_new_destination
table special_facility
table call_forwarding
param s: u32
param sf_type: u8
param start_time: u8
param end_time: u8
result count: u8
result number: char(15)[3]
scratch key_s: u32
scratch key_type: u8
scratch key_start: u8
    load    r1, [s]
    load    r2, [sf_type]
    load    r3, [start_time]
    load    r4, [end_time]
    store   r1, [key_s]
    store   r2, [key_type]
    search  c0, special_facility, [s]
    mov     r5, 0                   ; found
    mov     r6, 0                   ; start
    ret     r7, c0
    loadr   r8, r7[special_facility.is_active]
    cmp     r8, 1
    bne     none
each:
    cmp     r6, r3
    bg      next
    store   r6, [key_start]
    search  c1, call_forwarding, [key_s]
    ret     r9, c1, next
    loadr   r10, r9[call_forwarding.end_time]
    cmp     r4, r10
    bge     next
    check   r5, 3
    mul     r11, r5, 15
    copy    [number + r11], r9[call_forwarding.numberx]
    add     r5, r5, 1
next:
    add     r6, r6, 8
    cmp     r6, 16
    ble     each
    cmp     r5, 0
    be      none
    store   r5, [count]
    commit
none:
    abort   1
";

/// Reads one of a subscriber's accesses.
const GET_ACCESS_DATA: &str = "\
procedure get_access_data
table access_info
param s: u32
param ai_type: u8
result data: u8[10]                 ; data1 to data4
    search  c0, access_info, [s]
    ret     r1, c0
    copy    [data], r1[access_info.data1], 10
    commit
";

/// Writes a bit of a subscriber and a byte of a facility.
const UPDATE_SUBSCRIBER_DATA: &str = "\
procedure update_subscriber_data
table subscriber
table special_facility
param s: u32
param sf_type: u8
param bit_1: u8
param data_a: u8
    update  c0, subscriber, [s]
    update  c1, special_facility, [s]
    ret     r1, c0
    ret     r2, c1
    load    r3, [bit_1]
    load    r4, [data_a]
    storer  r3, r1[subscriber.bit_1]
    storer  r4, r2[special_facility.data_a]
    commit
";

/// A subscriber, by telephone number, has moved.
const UPDATE_LOCATION: &str = "\
procedure update_location
table subscriber
table subscriber_number
param sub_nbr: char(15)
param location: u32
scratch key_s: u32
    search  c0, subscriber_number, [sub_nbr]
    ret     r1, c0
    loadr   r2, r1[subscriber_number.s]
    store   r2, [key_s]
    update  c1, subscriber, [key_s]
    ret     r3, c1
    load    r4, [location]
    storer  r4, r3[subscriber.vlr_location]
    commit
";

/// Adds a forwarding to a facility, which must be one of the subscriber's.
const INSERT_CALL_FORWARDING: &str = "\
procedure insert_call_forwarding
table subscriber_number
table special_facility
table call_forwarding
param sub_nbr: char(15)
param sf_type: u8
param start_time: u8
param end_time: u8
param numberx: char(15)
scratch key_s: u32
scratch key_type: u8
scratch key_start: u8
    search  c0, subscriber_number, [sub_nbr]
    load    r1, [sf_type]
    load    r2, [start_time]
    ret     r3, c0
    loadr   r4, r3[subscriber_number.s]
    store   r4, [key_s]
    mov     r5, 0                   ; whether the facility is there
    mov     r6, 1                   ; type
each:
    store   r6, [key_type]
    search  c1, special_facility, [key_s]
    ret     c1, next
    cmp     r6, r1
    bne     next
    mov     r5, 1
next:
    add     r6, r6, 1
    cmp     r6, 4
    ble     each
    cmp     r5, 1
    bne     none
    store   r1, [key_type]
    store   r2, [key_start]
    insert  c2, call_forwarding, [key_s]
    ret     r7, c2
    load    r8, [end_time]
    storer  r8, r7[call_forwarding.end_time]
    copy    r7[call_forwarding.numberx], [numberx]
    commit
none:
    abort   1
";

/// Takes a forwarding away.
const DELETE_CALL_FORWARDING: &str = "\
procedure delete_call_forwarding
table subscriber_number
table call_forwarding
param sub_nbr: char(15)
param sf_type: u8
param start_time: u8
scratch key_s: u32
scratch key_type: u8
scratch key_start: u8
    search  c0, subscriber_number, [sub_nbr]
    load    r1, [sf_type]
    load    r2, [start_time]
    store   r1, [key_type]
    store   r2, [key_start]
    ret     r3, c0
    loadr   r4, r3[subscriber_number.s]
    store   r4, [key_s]
    remove  c1, call_forwarding, [key_s]
    ret     c1
    commit
";

/// In the order of [`super::Kind`].
pub(super) const SOURCES: [&str; 7] = [
    GET_SUBSCRIBER_DATA,
    GET_NEW_DESTINATION,
    GET_ACCESS_DATA,
    UPDATE_SUBSCRIBER_DATA,
    UPDATE_LOCATION,
    INSERT_CALL_FORWARDING,
    DELETE_CALL_FORWARDING,
];

/// The names of [`SOURCES`].
pub(super) const NAMES: [&str; 7] = [
    "get_subscriber_data",
    "get_new_destination",
    "get_access_data",
    "update_subscriber_data",
    "update_location",
    "insert_call_forwarding",
    "delete_call_forwarding",
];

/// The same transactions in SQL.
pub(super) const SQL: &str = include_str!("../../sql/tatp.sql");
