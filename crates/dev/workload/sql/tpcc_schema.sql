-- The tables of TPC-C as the standard mix needs them. Money in cents, taxes and discounts in hundredths of a per cent,
-- dates as counters, 0 for what is null.

CREATE TABLE warehouse (
    w SMALLINT UNSIGNED PRIMARY KEY,
    ytd BIGINT NOT NULL,
    tax SMALLINT UNSIGNED NOT NULL,
    name CHAR(10) NOT NULL,
    street_1 CHAR(20) NOT NULL,
    street_2 CHAR(20) NOT NULL,
    city CHAR(20) NOT NULL,
    state CHAR(2) NOT NULL,
    zip CHAR(9) NOT NULL
) PARTITION BY HASH (w);

CREATE TABLE district (
    w SMALLINT UNSIGNED,
    d TINYINT UNSIGNED,
    ytd BIGINT NOT NULL,
    next_o INTEGER UNSIGNED NOT NULL,
    tax SMALLINT UNSIGNED NOT NULL,
    name CHAR(10) NOT NULL,
    street_1 CHAR(20) NOT NULL,
    street_2 CHAR(20) NOT NULL,
    city CHAR(20) NOT NULL,
    state CHAR(2) NOT NULL,
    zip CHAR(9) NOT NULL,
    PRIMARY KEY (w, d)
) PARTITION BY HASH (w) WITH (ordered = false);

CREATE TABLE customer (
    w SMALLINT UNSIGNED,
    d TINYINT UNSIGNED,
    c SMALLINT UNSIGNED,
    balance BIGINT NOT NULL,
    ytd_payment BIGINT NOT NULL,
    credit_lim BIGINT NOT NULL,
    since BIGINT NOT NULL,
    payment_cnt INTEGER UNSIGNED NOT NULL,
    delivery_cnt INTEGER UNSIGNED NOT NULL,
    discount SMALLINT UNSIGNED NOT NULL,
    first CHAR(16) NOT NULL,
    middle CHAR(2) NOT NULL,
    last CHAR(16) NOT NULL,
    street_1 CHAR(20) NOT NULL,
    street_2 CHAR(20) NOT NULL,
    city CHAR(20) NOT NULL,
    state CHAR(2) NOT NULL,
    zip CHAR(9) NOT NULL,
    phone CHAR(16) NOT NULL,
    credit CHAR(2) NOT NULL,
    data BYTEA(500) NOT NULL,
    PRIMARY KEY (w, d, c)
) PARTITION BY HASH (w) WITH (ordered = false);

CREATE TABLE history (
    w SMALLINT UNSIGNED,
    number INTEGER UNSIGNED,
    date BIGINT NOT NULL,
    amount BIGINT NOT NULL,
    d TINYINT UNSIGNED NOT NULL,
    c_w SMALLINT UNSIGNED NOT NULL,
    c_d TINYINT UNSIGNED NOT NULL,
    c SMALLINT UNSIGNED NOT NULL,
    data CHAR(24) NOT NULL,
    PRIMARY KEY (w, number)
) PARTITION BY HASH (w) WITH (ordered = false);

CREATE TABLE orders (
    w SMALLINT UNSIGNED,
    d TINYINT UNSIGNED,
    o INTEGER UNSIGNED,
    entry BIGINT NOT NULL,
    c SMALLINT UNSIGNED NOT NULL,
    carrier TINYINT UNSIGNED NOT NULL,
    count TINYINT UNSIGNED NOT NULL,
    all_local TINYINT UNSIGNED NOT NULL,
    PRIMARY KEY (w, d, o)
) PARTITION BY HASH (w) WITH (ordered = false);

CREATE TABLE new_order (
    w SMALLINT UNSIGNED,
    d TINYINT UNSIGNED,
    o INTEGER UNSIGNED,
    PRIMARY KEY (w, d, o)
) PARTITION BY HASH (w);

CREATE TABLE order_line (
    w SMALLINT UNSIGNED,
    d TINYINT UNSIGNED,
    o INTEGER UNSIGNED,
    number TINYINT UNSIGNED,
    delivery BIGINT NOT NULL,
    i INTEGER UNSIGNED NOT NULL,
    amount INTEGER UNSIGNED NOT NULL,
    supply SMALLINT UNSIGNED NOT NULL,
    quantity TINYINT UNSIGNED NOT NULL,
    dist CHAR(24) NOT NULL,
    PRIMARY KEY (w, d, o, number)
) PARTITION BY HASH (w);

CREATE TABLE item (
    i INTEGER UNSIGNED PRIMARY KEY,
    im INTEGER UNSIGNED NOT NULL,
    price INTEGER UNSIGNED NOT NULL,
    original TINYINT UNSIGNED NOT NULL,
    name CHAR(24) NOT NULL,
    data CHAR(50) NOT NULL
) REPLICATED;

CREATE TABLE stock (
    w SMALLINT UNSIGNED,
    i INTEGER UNSIGNED,
    ytd INTEGER UNSIGNED NOT NULL,
    order_cnt INTEGER UNSIGNED NOT NULL,
    remote_cnt INTEGER UNSIGNED NOT NULL,
    quantity SMALLINT NOT NULL,
    original TINYINT UNSIGNED NOT NULL,
    dist_01 CHAR(24) NOT NULL, dist_02 CHAR(24) NOT NULL, dist_03 CHAR(24) NOT NULL, dist_04 CHAR(24) NOT NULL,
    dist_05 CHAR(24) NOT NULL, dist_06 CHAR(24) NOT NULL, dist_07 CHAR(24) NOT NULL, dist_08 CHAR(24) NOT NULL,
    dist_09 CHAR(24) NOT NULL, dist_10 CHAR(24) NOT NULL,
    data CHAR(50) NOT NULL,
    PRIMARY KEY (w, i)
) PARTITION BY HASH (w) WITH (ordered = false);

CREATE TABLE customer_name (
    w SMALLINT UNSIGNED,
    d TINYINT UNSIGNED,
    last CHAR(16),
    first CHAR(11),
    c SMALLINT UNSIGNED,
    PRIMARY KEY (w, d, last, first, c)
) PARTITION BY HASH (w);

CREATE TABLE customer_order (
    w SMALLINT UNSIGNED,
    d TINYINT UNSIGNED,
    c SMALLINT UNSIGNED,
    newest INTEGER UNSIGNED,
    PRIMARY KEY (w, d, c, newest)
) PARTITION BY HASH (w);
