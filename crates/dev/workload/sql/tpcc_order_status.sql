-- OrderStatus (clause 2.6): the newest order of a customer, and its lines.
CREATE PROCEDURE order_status(
    c_w SMALLINT UNSIGNED,
    c_d TINYINT UNSIGNED,
    c SMALLINT UNSIGNED,
    OUT balance BIGINT,
    OUT entry BIGINT,
    OUT o INTEGER UNSIGNED,
    OUT carrier TINYINT UNSIGNED,
    OUT count TINYINT UNSIGNED,
    OUT person TINYINT UNSIGNED[34],
    OUT lines order_line%ROWTYPE[15]
) AS
DECLARE
    falling INTEGER UNSIGNED;
BEGIN
    SELECT balance, BYTES(first, last) INTO balance, person FROM customer WHERE w = c_w AND d = c_d AND c = :c;
    SELECT newest INTO falling FROM customer_order WHERE w = c_w AND d = c_d AND c = :c ORDER BY newest LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    o := 4294967295 - falling;
    SELECT entry, carrier, count INTO entry, carrier, count FROM orders WHERE w = c_w AND d = c_d AND o = :o;
    SELECT * INTO lines FROM order_line WHERE w = c_w AND d = c_d AND o = :o ORDER BY number LIMIT LEAST(count, 15);
END;
