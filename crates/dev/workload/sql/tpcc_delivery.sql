-- Delivery (clause 2.7): the oldest order of every district of a warehouse that is not delivered yet, all of them in
-- one transaction. A district without one is skipped.
CREATE PROCEDURE delivery(
    w SMALLINT UNSIGNED,
    carrier TINYINT UNSIGNED,
    date BIGINT,
    OUT delivered INTEGER UNSIGNED[10],
    OUT amount BIGINT[10]
) AS
DECLARE
    oldest INTEGER UNSIGNED;
    who SMALLINT UNSIGNED;
    lines TINYINT UNSIGNED;
    line_amount BIGINT;
    sum BIGINT;
BEGIN
    FOR d IN 1..10 LOOP
        SELECT o INTO oldest FROM new_order WHERE w = :w AND d = :d ORDER BY o LIMIT 1;
        IF FOUND THEN
            DELETE FROM new_order WHERE w = :w AND d = :d AND o = oldest;
            SELECT c, count INTO who, lines FROM orders WHERE w = :w AND d = :d AND o = oldest;
            UPDATE orders SET carrier = :carrier WHERE w = :w AND d = :d AND o = oldest;
            sum := 0;
            FOR line IN 1..LEAST(lines, 15) LOOP
                SELECT amount INTO line_amount
                    FROM order_line WHERE w = :w AND d = :d AND o = oldest AND number = line;
                UPDATE order_line SET delivery = date WHERE w = :w AND d = :d AND o = oldest AND number = line;
                sum := sum + line_amount;
            END LOOP;
            UPDATE customer SET balance = balance + sum, delivery_cnt = delivery_cnt + 1
                WHERE w = :w AND d = :d AND c = who;
            delivered[d] := oldest;
            amount[d] := sum;
        END IF;
    END LOOP;
END;
