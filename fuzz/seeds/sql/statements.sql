SELECT * FROM accounts WHERE id = 1;
SELECT id, balance AS money FROM accounts WHERE id = -5 FOR UPDATE;
INSERT INTO accounts VALUES (1, 2, 'three'), (4, 5, 'six');
INSERT INTO accounts (id, balance, note) VALUES (1, 2, X'00ff') ON CONFLICT DO NOTHING;
UPDATE accounts SET balance = balance * 2 + 1, note = SUBSTRING(note FROM 2 FOR 5) || 'x' WHERE id = 3;
DELETE FROM orders WHERE id = 3 AND line BETWEEN 2 AND 7 LIMIT 5;
UPDATE orders SET amount = CASE WHEN amount > 3 THEN 1 ELSE -1 END WHERE id = 3 ORDER BY line LIMIT 40;
SELECT line, amount FROM orders WHERE id = 3 AND line >= 2 ORDER BY line LIMIT 20;
CALL something(1, 'two', ARRAY(3, 4), TRUE, TIMESTAMP '2024-01-01 12:00:00');
