-- A bank: accounts, and a transfer that is all there or not at all.
CREATE TABLE accounts (id BIGINT PRIMARY KEY, balance DECIMAL(12, 2) NOT NULL)
    PARTITION BY HASH (id) WITH (ordered = true);

CREATE PROCEDURE transfer(from_id BIGINT, to_id BIGINT, amount DECIMAL(12, 2), OUT left DECIMAL(12, 2)) AS $$
BEGIN
    SELECT balance INTO left FROM accounts WHERE id = from_id;
    IF left < amount THEN
        RAISE EXCEPTION 'not enough money' USING ERRCODE = 'BK001';
    END IF;
    left := left - amount;
    UPDATE accounts SET balance = balance - amount WHERE id = from_id;
    UPDATE accounts SET balance = balance + amount WHERE id = to_id;
END $$;

INSERT INTO accounts VALUES (1, 1000.00), (2, 1000.00);
