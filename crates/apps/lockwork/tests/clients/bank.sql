CREATE TABLE accounts (id BIGINT PRIMARY KEY, balance DECIMAL(12, 2) NOT NULL) WITH (ordered = true);
CREATE TABLE t (a INTEGER NOT NULL, b SMALLINT NOT NULL, name VARCHAR(10) NOT NULL DEFAULT 'it''s', ok BOOLEAN NOT NULL DEFAULT TRUE, at TIMESTAMP NOT NULL, PRIMARY KEY (a, b));
CREATE INDEX t_name ON t (name, ok);
CREATE PROCEDURE transfer(from_id BIGINT, to_id BIGINT, amount DECIMAL(12, 2), OUT left DECIMAL(12, 2)) AS
BEGIN
    SELECT balance INTO left FROM accounts WHERE id = from_id;
    left := left - amount;
    UPDATE accounts SET balance = balance - amount WHERE id = from_id;
    UPDATE accounts SET balance = balance + amount WHERE id = to_id;
END;
INSERT INTO accounts VALUES (1, 1000.00), (2, 1000.00);
