CREATE TABLE people (
    town INTEGER NOT NULL, id BIGINT, name CHAR(8) NOT NULL DEFAULT 'none', money DECIMAL(10, 2) NOT NULL DEFAULT 0.5,
    born TIMESTAMP NOT NULL, picture BYTEA(100) NOT NULL, ok BOOLEAN NOT NULL DEFAULT TRUE, CONSTRAINT key PRIMARY KEY (id)
) PARTITION BY HASH (id) WITH (ordered = true);
CREATE TABLE fixed (a TINYINT UNSIGNED PRIMARY KEY, b SMALLINT UNSIGNED NOT NULL) REPLICATED;
CREATE INDEX by_town ON people (town);
CREATE INDEX by_name ON people (name, money);
CREATE PROCEDURE add(id BIGINT, town INTEGER, name CHAR(8)) AS BEGIN
    INSERT INTO people (id, town, name, born, picture) VALUES (id, town, name, '2024-02-29', X'01');
END;
CREATE PROCEDURE rename(who BIGINT, new CHAR(8)) AS BEGIN
    UPDATE people SET name = new, money = money + 1, town = town + 1 WHERE id = who;
END;
CREATE OR REPLACE PROCEDURE remove_all(which INTEGER, OUT any BOOLEAN) AS BEGIN
    FOR p IN SELECT id, picture FROM people WHERE town = which ORDER BY id LIMIT 30 LOOP
        DELETE FROM people WHERE id = p.id;
    END LOOP;
    any := FOUND;
END;
