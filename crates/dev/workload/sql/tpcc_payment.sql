-- Payment (clause 2.5): a customer pays at some warehouse, maybe not the customer's own. A customer of bad credit gets
-- a note at the front of `data`.
CREATE PROCEDURE payment(
    w SMALLINT UNSIGNED,
    d TINYINT UNSIGNED,
    c_w SMALLINT UNSIGNED,
    c_d TINYINT UNSIGNED,
    c SMALLINT UNSIGNED,
    number INTEGER UNSIGNED,
    amount BIGINT,
    date BIGINT,
    OUT balance BIGINT,
    OUT credit_lim BIGINT,
    OUT since BIGINT,
    OUT discount SMALLINT UNSIGNED,
    OUT w_address TINYINT UNSIGNED[71],
    OUT d_address TINYINT UNSIGNED[71],
    OUT person TINYINT UNSIGNED[123],
    OUT data TINYINT UNSIGNED[200]
) AS
DECLARE
    w_name CHAR(10);
    d_name CHAR(10);
    credit CHAR(2);
    note INTEGER UNSIGNED[6];
BEGIN
    SELECT name, BYTES(street_1, zip) INTO w_name, w_address FROM warehouse WHERE w = :w;
    SELECT name, BYTES(street_1, zip) INTO d_name, d_address FROM district WHERE w = :w AND d = :d;
    SELECT balance - amount, credit_lim, since, discount, credit, BYTES(first, credit)
        INTO balance, credit_lim, since, discount, credit, person
        FROM customer WHERE w = c_w AND d = c_d AND c = :c;
    INSERT INTO history VALUES (w, number, date, amount, d, c_w, c_d, :c, w_name || X'00000000' || d_name);
    UPDATE warehouse SET ytd = ytd + amount WHERE w = :w;
    UPDATE district SET ytd = ytd + amount WHERE w = :w AND d = :d;
    UPDATE customer
        SET balance = :balance, ytd_payment = ytd_payment + amount, payment_cnt = payment_cnt + 1
        WHERE w = c_w AND d = c_d AND c = :c;
    IF credit = 'BC' THEN
        note[1] := :c;
        note[2] := c_d;
        note[3] := c_w;
        note[4] := d;
        note[5] := w;
        note[6] := amount;
        UPDATE customer SET data = BYTES(note) || SUBSTRING(data FROM 1 FOR 476) WHERE w = c_w AND d = c_d AND c = :c;
        SELECT SUBSTRING(data FROM 1 FOR 200) INTO data FROM customer WHERE w = c_w AND d = c_d AND c = :c;
    END IF;
END;
