-- TATP: the register of a mobile network. A row that is not there aborts the transaction, as the specification expects
-- of a known share of the calls.

CREATE TABLE subscriber (
    s INTEGER UNSIGNED PRIMARY KEY,
    sub_nbr CHAR(15) NOT NULL,
    bit_1 TINYINT UNSIGNED NOT NULL, bit_2 TINYINT UNSIGNED NOT NULL, bit_3 TINYINT UNSIGNED NOT NULL,
    bit_4 TINYINT UNSIGNED NOT NULL, bit_5 TINYINT UNSIGNED NOT NULL, bit_6 TINYINT UNSIGNED NOT NULL,
    bit_7 TINYINT UNSIGNED NOT NULL, bit_8 TINYINT UNSIGNED NOT NULL, bit_9 TINYINT UNSIGNED NOT NULL,
    bit_10 TINYINT UNSIGNED NOT NULL,
    hex_1 TINYINT UNSIGNED NOT NULL, hex_2 TINYINT UNSIGNED NOT NULL, hex_3 TINYINT UNSIGNED NOT NULL,
    hex_4 TINYINT UNSIGNED NOT NULL, hex_5 TINYINT UNSIGNED NOT NULL, hex_6 TINYINT UNSIGNED NOT NULL,
    hex_7 TINYINT UNSIGNED NOT NULL, hex_8 TINYINT UNSIGNED NOT NULL, hex_9 TINYINT UNSIGNED NOT NULL,
    hex_10 TINYINT UNSIGNED NOT NULL,
    byte2_1 TINYINT UNSIGNED NOT NULL, byte2_2 TINYINT UNSIGNED NOT NULL, byte2_3 TINYINT UNSIGNED NOT NULL,
    byte2_4 TINYINT UNSIGNED NOT NULL, byte2_5 TINYINT UNSIGNED NOT NULL, byte2_6 TINYINT UNSIGNED NOT NULL,
    byte2_7 TINYINT UNSIGNED NOT NULL, byte2_8 TINYINT UNSIGNED NOT NULL, byte2_9 TINYINT UNSIGNED NOT NULL,
    byte2_10 TINYINT UNSIGNED NOT NULL,
    msc_location INTEGER UNSIGNED NOT NULL,
    vlr_location INTEGER UNSIGNED NOT NULL
) PARTITION BY HASH (s);

CREATE TABLE subscriber_number (sub_nbr CHAR(15) PRIMARY KEY, s INTEGER UNSIGNED NOT NULL) PARTITION BY HASH (sub_nbr);

CREATE TABLE access_info (
    s INTEGER UNSIGNED,
    ai_type TINYINT UNSIGNED,
    data1 TINYINT UNSIGNED NOT NULL,
    data2 TINYINT UNSIGNED NOT NULL,
    data3 CHAR(3) NOT NULL,
    data4 CHAR(5) NOT NULL,
    PRIMARY KEY (s, ai_type)
) PARTITION BY HASH (s) WITH (ordered = false);

CREATE TABLE special_facility (
    s INTEGER UNSIGNED,
    sf_type TINYINT UNSIGNED,
    is_active TINYINT UNSIGNED NOT NULL,
    error_cntrl TINYINT UNSIGNED NOT NULL,
    data_a TINYINT UNSIGNED NOT NULL,
    data_b CHAR(5) NOT NULL,
    PRIMARY KEY (s, sf_type)
) PARTITION BY HASH (s) WITH (ordered = false);

CREATE TABLE call_forwarding (
    s INTEGER UNSIGNED,
    sf_type TINYINT UNSIGNED,
    start_time TINYINT UNSIGNED,
    end_time TINYINT UNSIGNED NOT NULL,
    numberx CHAR(15) NOT NULL,
    PRIMARY KEY (s, sf_type, start_time)
) PARTITION BY HASH (s) WITH (ordered = false);

-- Reads all of a subscriber.
CREATE PROCEDURE get_subscriber_data(s INTEGER UNSIGNED, OUT data TINYINT UNSIGNED[56]) AS
BEGIN
    SELECT BYTES(sub_nbr, vlr_location) INTO data FROM subscriber WHERE s = :s;
END;

-- Where calls of an active facility go at a time. Starts are 0, 8 or 16, so a forwarding that has begun by then is one
-- of three rows.
CREATE PROCEDURE get_new_destination(
    s INTEGER UNSIGNED,
    sf_type TINYINT UNSIGNED,
    start_time TINYINT UNSIGNED,
    end_time TINYINT UNSIGNED,
    OUT count TINYINT UNSIGNED,
    OUT number CHAR(15)[3]
) AS
DECLARE
    active TINYINT UNSIGNED;
    until TINYINT UNSIGNED;
    found_so_far BIGINT := 0;
BEGIN
    SELECT is_active INTO active FROM special_facility WHERE s = :s AND sf_type = :sf_type;
    IF active <> 1 THEN
        RAISE EXCEPTION 'the facility is not active' USING ERRCODE = 'LW001';
    END IF;
    FOR start IN 0..16 BY 8 LOOP
        EXIT WHEN start > start_time;
        SELECT end_time INTO until FROM call_forwarding WHERE s = :s AND sf_type = :sf_type AND start_time = :start;
        IF FOUND THEN
            IF end_time < until THEN
                found_so_far := found_so_far + 1;
                SELECT numberx INTO number[found_so_far]
                    FROM call_forwarding WHERE s = :s AND sf_type = :sf_type AND start_time = :start;
            END IF;
        END IF;
    END LOOP;
    IF found_so_far = 0 THEN
        RAISE EXCEPTION 'the facility is not active' USING ERRCODE = 'LW001';
    END IF;
    count := found_so_far;
END;

-- Reads one of a subscriber's accesses.
CREATE PROCEDURE get_access_data(s INTEGER UNSIGNED, ai_type TINYINT UNSIGNED, OUT data TINYINT UNSIGNED[10]) AS
BEGIN
    SELECT BYTES(data1, data4) INTO data FROM access_info WHERE s = :s AND ai_type = :ai_type;
END;

-- Writes a bit of a subscriber and a byte of a facility.
CREATE PROCEDURE update_subscriber_data(
    s INTEGER UNSIGNED,
    sf_type TINYINT UNSIGNED,
    bit_1 TINYINT UNSIGNED,
    data_a TINYINT UNSIGNED
) AS
BEGIN
    UPDATE subscriber SET bit_1 = :bit_1 WHERE s = :s;
    UPDATE special_facility SET data_a = :data_a WHERE s = :s AND sf_type = :sf_type;
END;

-- A subscriber, by telephone number, has moved.
CREATE PROCEDURE update_location(sub_nbr CHAR(15), location INTEGER UNSIGNED) AS
DECLARE
    who INTEGER UNSIGNED;
BEGIN
    SELECT s INTO who FROM subscriber_number WHERE sub_nbr = :sub_nbr;
    UPDATE subscriber SET vlr_location = location WHERE s = who;
END;

-- Adds a forwarding to a facility, which must be one of the subscriber's.
CREATE PROCEDURE insert_call_forwarding(
    sub_nbr CHAR(15),
    sf_type TINYINT UNSIGNED,
    start_time TINYINT UNSIGNED,
    end_time TINYINT UNSIGNED,
    numberx CHAR(15)
) AS
DECLARE
    who INTEGER UNSIGNED;
    kind TINYINT UNSIGNED;
    has BOOLEAN := FALSE;
BEGIN
    SELECT s INTO who FROM subscriber_number WHERE sub_nbr = :sub_nbr;
    FOR type IN 1..4 LOOP
        SELECT sf_type INTO kind FROM special_facility WHERE s = who AND sf_type = type;
        IF FOUND THEN
            IF kind = sf_type THEN
                has := TRUE;
            END IF;
        END IF;
    END LOOP;
    IF NOT has THEN
        RAISE EXCEPTION 'the subscriber does not have this facility' USING ERRCODE = 'LW001';
    END IF;
    INSERT INTO call_forwarding VALUES (who, sf_type, start_time, end_time, numberx);
END;

-- Takes a forwarding away.
CREATE PROCEDURE delete_call_forwarding(sub_nbr CHAR(15), sf_type TINYINT UNSIGNED, start_time TINYINT UNSIGNED) AS
DECLARE
    who INTEGER UNSIGNED;
BEGIN
    SELECT s INTO who FROM subscriber_number WHERE sub_nbr = :sub_nbr;
    DELETE FROM call_forwarding WHERE s = who AND sf_type = :sf_type AND start_time = :start_time;
END;
