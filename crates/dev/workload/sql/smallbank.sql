-- SmallBank: customers with two accounts each. Every transaction looks the customer up in `accounts` first; one who is
-- not there aborts it.

CREATE TABLE accounts (customer BIGINT PRIMARY KEY, name CHAR(40) NOT NULL) PARTITION BY HASH (customer);
CREATE TABLE savings (customer BIGINT PRIMARY KEY, balance BIGINT NOT NULL) PARTITION BY HASH (customer);
CREATE TABLE checking (customer BIGINT PRIMARY KEY, balance BIGINT NOT NULL) PARTITION BY HASH (customer);

-- Moves all that one customer has to the checking account of another.
CREATE PROCEDURE amalgamate("from" BIGINT, "to" BIGINT, OUT moved BIGINT) AS
DECLARE
    known BIGINT;
    saved BIGINT;
    checked BIGINT;
BEGIN
    SELECT customer INTO known FROM accounts WHERE customer = :from;
    SELECT customer INTO known FROM accounts WHERE customer = :to;
    SELECT balance INTO saved FROM savings WHERE customer = :from;
    SELECT balance INTO checked FROM checking WHERE customer = :from;
    moved := saved + checked;
    UPDATE savings SET balance = 0 WHERE customer = :from;
    UPDATE checking SET balance = 0 WHERE customer = :from;
    UPDATE checking SET balance = balance + moved WHERE customer = :to;
END;

-- Reads both balances of a customer.
CREATE PROCEDURE balance(customer BIGINT, OUT total BIGINT) AS
DECLARE
    known BIGINT;
    saved BIGINT;
    checked BIGINT;
BEGIN
    SELECT customer INTO known FROM accounts WHERE customer = :customer;
    SELECT balance INTO saved FROM savings WHERE customer = :customer;
    SELECT balance INTO checked FROM checking WHERE customer = :customer;
    total := saved + checked;
END;

-- Puts money on the checking account.
CREATE PROCEDURE deposit_checking(customer BIGINT, amount BIGINT, OUT balance BIGINT) AS
DECLARE
    known BIGINT;
BEGIN
    SELECT customer INTO known FROM accounts WHERE customer = :customer;
    SELECT balance INTO balance FROM checking WHERE customer = :customer FOR UPDATE;
    IF amount < 0 THEN
        RAISE EXCEPTION 'the amount is negative' USING ERRCODE = 'LW001';
    END IF;
    balance := balance + amount;
    UPDATE checking SET balance = :balance WHERE customer = :customer;
END;

-- Moves money from one checking account to another, never more than there is.
CREATE PROCEDURE send_payment("from" BIGINT, "to" BIGINT, amount BIGINT, OUT "left" BIGINT) AS
DECLARE
    known BIGINT;
    theirs BIGINT;
BEGIN
    SELECT customer INTO known FROM accounts WHERE customer = :from;
    SELECT customer INTO known FROM accounts WHERE customer = :to;
    SELECT balance INTO "left" FROM checking WHERE customer = :from;
    SELECT balance INTO theirs FROM checking WHERE customer = :to FOR UPDATE;
    IF :left < amount THEN
        RAISE EXCEPTION 'there is not enough money' USING ERRCODE = 'LW002';
    END IF;
    "left" := :left - amount;
    UPDATE checking SET balance = :left WHERE customer = :from;
    UPDATE checking SET balance = balance + amount WHERE customer = :to;
END;

-- Puts money on the savings account or takes it from there, never more than there is.
CREATE PROCEDURE transact_savings(customer BIGINT, amount BIGINT, OUT balance BIGINT) AS
DECLARE
    known BIGINT;
BEGIN
    SELECT customer INTO known FROM accounts WHERE customer = :customer;
    SELECT balance + amount INTO balance FROM savings WHERE customer = :customer;
    IF balance < 0 THEN
        RAISE EXCEPTION 'there is not enough money' USING ERRCODE = 'LW002';
    END IF;
    UPDATE savings SET balance = :balance WHERE customer = :customer;
END;

-- Takes money from the checking account; who has less in both accounts together pays one more as a penalty.
CREATE PROCEDURE write_check(customer BIGINT, amount BIGINT, OUT taken BIGINT) AS
DECLARE
    known BIGINT;
    saved BIGINT;
    checked BIGINT;
BEGIN
    SELECT customer INTO known FROM accounts WHERE customer = :customer;
    SELECT balance INTO saved FROM savings WHERE customer = :customer;
    SELECT balance INTO checked FROM checking WHERE customer = :customer;
    taken := amount;
    IF saved + checked < amount THEN
        taken := amount + 1;
    END IF;
    UPDATE checking SET balance = balance - taken WHERE customer = :customer;
END;
