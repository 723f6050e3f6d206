CREATE PROCEDURE transfer(source BIGINT, target BIGINT, amount BIGINT, OUT remains BIGINT) AS
DECLARE
    known BIGINT := 0;
BEGIN
    SELECT balance INTO remains FROM accounts WHERE id = source;
    IF remains < amount THEN RAISE EXCEPTION 'poor' USING ERRCODE = 'LW001'; END IF;
    UPDATE accounts SET balance = balance - amount WHERE id = source;
    UPDATE accounts SET balance = balance + amount WHERE id = target;
    IF NOT FOUND THEN INSERT INTO accounts VALUES (target, amount, ''); END IF;
END;
CREATE PROCEDURE lines(which BIGINT, wanted SMALLINT[10], INOUT total DECIMAL(12, 2), OUT rows orders%ROWTYPE[20],
                       OUT n BIGINT, OUT least INTEGER) AS $$
DECLARE
    text VARCHAR(20) := 'abc';
    flags BOOLEAN[8];
BEGIN
    SELECT COUNT(*), MIN(amount) INTO n, least FROM (SELECT amount FROM orders WHERE id = which LIMIT 50) AS q;
    SELECT * INTO rows FROM orders WHERE id = which ORDER BY line LIMIT 20;
    <<outer>> FOR r IN SELECT line, amount FROM orders WHERE id = which AND line > 3 ORDER BY line LIMIT 40 LOOP
        FOR i IN 1..10 BY 2 LOOP
            CONTINUE outer WHEN wanted[i] = r.line;
            EXIT WHEN flags[LEAST(i, 8)];
            flags[LEAST(i, 8)] := r.amount BETWEEN -5 AND 5 OR MOD(r.line, 3) = 0;
        END LOOP;
        total := total + r.amount / 3.00;
        DELETE FROM orders WHERE id = which AND line = r.line;
    END LOOP;
    IF text < 'abd' AND text IN ('abc', 'x') AND NOT flags[1] THEN RETURN; END IF;
    text := SUBSTRING(text FROM 2 FOR 2) || 'z';
    total := ROUND(total * 1.05, 2);
END;
$$ LANGUAGE plpgsql;
