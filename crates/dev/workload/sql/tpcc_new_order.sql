-- NewOrder (clause 2.4): an order of 5 to 15 lines, each from the stock of some warehouse. An item that does not exist
-- aborts it with code 1.
CREATE PROCEDURE new_order(
    w SMALLINT UNSIGNED,
    d TINYINT UNSIGNED,
    c SMALLINT UNSIGNED,
    entry BIGINT,
    count TINYINT UNSIGNED,
    all_local TINYINT UNSIGNED,
    items INTEGER UNSIGNED[15],
    supply SMALLINT UNSIGNED[15],
    quantity TINYINT UNSIGNED[15],
    OUT total BIGINT,
    OUT o INTEGER UNSIGNED,
    OUT warehouse_tax SMALLINT UNSIGNED,
    OUT district_tax SMALLINT UNSIGNED,
    OUT discount SMALLINT UNSIGNED,
    OUT last CHAR(16),
    OUT credit CHAR(2),
    OUT price INTEGER UNSIGNED[15],
    OUT amount INTEGER UNSIGNED[15],
    OUT in_stock SMALLINT[15],
    OUT brand TINYINT UNSIGNED[15],
    OUT name CHAR(24)[15]
) AS
DECLARE
    sum BIGINT := 0;
    item_price BIGINT;
    line_amount BIGINT;
    left_over BIGINT;
    item_original BIGINT;
    stock_original BIGINT;
    dist CHAR(24);
BEGIN
    SELECT tax INTO warehouse_tax FROM warehouse WHERE w = :w;
    SELECT tax, next_o INTO district_tax, o FROM district WHERE w = :w AND d = :d;
    SELECT discount, last, credit INTO discount, last, credit FROM customer WHERE w = :w AND d = :d AND c = :c;
    UPDATE district SET next_o = next_o + 1 WHERE w = :w AND d = :d;
    INSERT INTO orders VALUES (w, d, o, entry, c, 0, count, all_local);
    INSERT INTO new_order VALUES (w, d, o);
    INSERT INTO customer_order VALUES (w, d, c, 4294967295 - o);
    FOR line IN 1..LEAST(count, 15) LOOP
        SELECT price, original, name INTO item_price, item_original, name[line] FROM item WHERE i = items[line];
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the item is not in the catalogue' USING ERRCODE = 'LW001';
        END IF;
        SELECT quantity, original, CASE :d
                WHEN 1 THEN dist_01 WHEN 2 THEN dist_02 WHEN 3 THEN dist_03 WHEN 4 THEN dist_04 WHEN 5 THEN dist_05
                WHEN 6 THEN dist_06 WHEN 7 THEN dist_07 WHEN 8 THEN dist_08 WHEN 9 THEN dist_09 WHEN 10 THEN dist_10
            END
            INTO left_over, stock_original, dist FROM stock WHERE w = supply[line] AND i = items[line];
        IF left_over < quantity[line] + 10 THEN
            left_over := left_over + 91;
        END IF;
        left_over := left_over - quantity[line];
        UPDATE stock
            SET quantity = left_over,
                ytd = ytd + quantity[line],
                order_cnt = order_cnt + 1,
                remote_cnt = remote_cnt + CASE WHEN supply[line] = :w THEN 0 ELSE 1 END
            WHERE w = supply[line] AND i = items[line];
        line_amount := item_price * quantity[line];
        INSERT INTO order_line
            VALUES (w, d, o, line, 0, items[line], line_amount, supply[line], quantity[line], dist);
        sum := sum + line_amount;
        price[line] := item_price;
        amount[line] := line_amount;
        in_stock[line] := left_over;
        brand[line] := item_original * stock_original;
    END LOOP;
    total := sum * (10000 - discount) * (10000 + warehouse_tax + district_tax) / 100000000;
END;
