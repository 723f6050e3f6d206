-- StockLevel (clause 2.8): how many different items of a district's last 20 orders are low in stock.
CREATE PROCEDURE stock_level(
    w SMALLINT UNSIGNED,
    d TINYINT UNSIGNED,
    threshold TINYINT UNSIGNED,
    OUT low INTEGER UNSIGNED
) AS
DECLARE
    next BIGINT;
    first_order BIGINT;
    lines TINYINT UNSIGNED;
    in_stock BIGINT;
    items BIGINT := 0;
    known BOOLEAN;
    counted INTEGER UNSIGNED[300];
BEGIN
    SELECT next_o INTO next FROM district WHERE w = :w AND d = :d;
    first_order := GREATEST(next - 20, 1);
    FOR n IN 0..19 LOOP
        EXIT WHEN first_order + n >= next;
        SELECT count INTO lines FROM orders WHERE w = :w AND d = :d AND o = first_order + n;
        IF FOUND THEN
            FOR line IN SELECT i FROM order_line
                WHERE w = :w AND d = :d AND o = first_order + n ORDER BY number LIMIT LEAST(lines, 15)
            LOOP
                SELECT quantity INTO in_stock FROM stock WHERE w = :w AND i = line.i;
                CONTINUE WHEN in_stock >= threshold;
                known := FALSE;
                FOR k IN 1..300 LOOP
                    EXIT WHEN k > items;
                    IF counted[k] = line.i THEN
                        known := TRUE;
                        EXIT;
                    END IF;
                END LOOP;
                IF NOT known THEN
                    items := items + 1;
                    counted[items] := line.i;
                END IF;
            END LOOP;
        END IF;
    END LOOP;
    low := items;
END;
