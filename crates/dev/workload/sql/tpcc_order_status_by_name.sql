-- OrderStatus (clause 2.6) by last name: of all of that name in the district, ordered by first name, the one in the
-- middle, rounded up.
CREATE PROCEDURE order_status_by_name(
    c_w SMALLINT UNSIGNED,
    c_d TINYINT UNSIGNED,
    last CHAR(16),
    OUT balance BIGINT,
    OUT entry BIGINT,
    OUT o INTEGER UNSIGNED,
    OUT carrier TINYINT UNSIGNED,
    OUT count TINYINT UNSIGNED,
    OUT person TINYINT UNSIGNED[34],
    OUT lines order_line%ROWTYPE[15]
) AS
DECLARE
    who SMALLINT UNSIGNED;
    same BIGINT := 0;
    numbers SMALLINT UNSIGNED[121];
    falling INTEGER UNSIGNED;
BEGIN
    FOR named IN SELECT c FROM customer_name
        WHERE w = c_w AND d = c_d AND last = :last ORDER BY first, c LIMIT 121
    LOOP
        same := same + 1;
        numbers[same] := named.c;
    END LOOP;
    IF same = 0 THEN
        RAISE EXCEPTION 'no customer has this name' USING ERRCODE = 'LW002';
    END IF;
    who := numbers[(same + 1) / 2];
    SELECT balance, BYTES(first, last) INTO balance, person FROM customer WHERE w = c_w AND d = c_d AND c = who;
    SELECT newest INTO falling FROM customer_order WHERE w = c_w AND d = c_d AND c = who ORDER BY newest LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    o := 4294967295 - falling;
    SELECT entry, carrier, count INTO entry, carrier, count FROM orders WHERE w = c_w AND d = c_d AND o = :o;
    SELECT * INTO lines FROM order_line WHERE w = c_w AND d = c_d AND o = :o ORDER BY number LIMIT LEAST(count, 15);
END;
