//! Queries and what they answer, without a server.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Instant;

use lockwork::{Lockwork, OpenOptions};

use super::*;
use crate::cancel::Cancel;
use crate::limits::Room;

mod alone;
mod limits;

const SQL: &str = "
    CREATE TABLE accounts (id BIGINT PRIMARY KEY, owner VARCHAR(20) NOT NULL, balance DECIMAL(12, 2) NOT NULL);
    INSERT INTO accounts VALUES (1, 'ann', 100), (2, 'bob', 20.5), (3, 'eve', -7.25), (4, 'bob', 0);
    CREATE TABLE lines (o BIGINT, n SMALLINT, amount DECIMAL(10, 3) NOT NULL, count INTEGER NOT NULL,
        paid BOOLEAN NOT NULL, at TIMESTAMP NOT NULL, raw BYTEA(4) NOT NULL, PRIMARY KEY (o, n));
    INSERT INTO lines VALUES (1, 1, 1.5, 3, TRUE, TIMESTAMP '2024-01-31 12:30:00', X'00ff0000'),
        (1, 2, 20, 1, FALSE, TIMESTAMP '2024-02-01 00:00:00', X'01000000'),
        (2, 1, 9.999, 2, TRUE, TIMESTAMP '1969-12-31 23:59:59.5', X'00000000'),
        (7, 1, 0.001, 1, TRUE, TIMESTAMP '2024-02-01 00:00:01', X'00000000');
    CREATE INDEX by_owner ON accounts (owner);
    CREATE TABLE pgbench_branches (bid INTEGER PRIMARY KEY);";

fn open(sql: &str) -> Lockwork {
    let mut database = Lockwork::open_in_memory_with(&OpenOptions::default()).unwrap();
    database.sql(sql).unwrap();
    database
}

static WHO: LazyLock<SessionNames> = LazyLock::new(|| SessionNames { user: "ann".into(), database: "bank".into() });

fn asker(declared: &[Option<Type>]) -> Asker<'_> {
    Asker { who: &WHO, declared, scales: &[] }
}

fn limits() -> Arc<Limits> {
    Limits::new(WHAT, LIMIT, "ann", &Room::new(crate::limits::ALL), &Arc::default())
}

/// Types of the columns and the rows as text, or SQLSTATE, message and position.
fn ask(database: &Lockwork, text: &str, values: &[Value]) -> Result<(String, Vec<String>), Refusal> {
    let query = understand(text, database.sql_catalogue(), asker(&[])).unwrap_or_else(|| panic!("no query: {text}"))?;
    let names: Vec<&str> = query.tables.iter().map(|table| table.name.as_str()).collect();
    let rows = database.caller().rows(&names, 1 << 30).unwrap();
    let given: Vec<Given> =
        values.iter().zip(&query.parameters).map(|(value, field)| given(value, field)).collect::<Result<_, _>>()?;
    let rows = query.answer(rows, &given, &Format::UnifiedText, &limits())?;
    let columns: Vec<String> = query.columns().map(|(name, ty, _)| format!("{name} {ty}")).collect();
    let cells = |row: &DataRow| {
        let (mut data, mut cells) = (&row.data[..], Vec::new());
        while let Some((length, rest)) = data.split_at_checked(4) {
            let length = i32::from_be_bytes(length.try_into().unwrap());
            let (cell, rest) = rest.split_at(length.max(0) as usize);
            cells.push(if length < 0 { "NULL".into() } else { String::from_utf8_lossy(cell).into_owned() });
            data = rest;
        }
        cells.join("|")
    };
    Ok((columns.join(", "), rows.iter().map(cells).collect()))
}

fn answer(database: &Lockwork, text: &str) -> String {
    match ask(database, text, &[]) {
        Ok((columns, rows)) => format!("{columns}: {}", rows.join("; ")),
        Err(refusal) => format!("{} {} at {}", refusal.sqlstate, refusal.message, refusal.position),
    }
}

#[test]
fn queries_answer_what_postgresql_does() {
    let database = open(SQL);
    for (text, expected) in [
        ("SELECT count(*) FROM accounts", "count int8: 4"),
        ("SELECT count(*) FROM pgbench_branches", "count int8: 0"),
        (
            "SELECT * FROM accounts WHERE id < 3 ORDER BY id",
            "id int8, owner varchar, balance numeric: 1|ann|100.00; \
          2|bob|20.50",
        ),
        ("TABLE accounts ORDER BY balance DESC LIMIT 1", "id int8, owner varchar, balance numeric: 1|ann|100.00"),
        ("SELECT sum(balance) FROM accounts", "sum numeric: 113.25"),
        (
            "SELECT sum(balance), min(owner), max(id) FROM accounts WHERE id > 9",
            "sum numeric, min varchar, max int8: \
          NULL|NULL|NULL",
        ),
        ("SELECT id FROM accounts WHERE balance < 0 ORDER BY balance DESC LIMIT 10", "id int8: 3"),
        (
            "SELECT owner, count(*) n, sum(balance) FROM accounts GROUP BY owner ORDER BY n DESC, owner",
            "owner varchar, n int8, sum numeric: bob|2|20.50; ann|1|100.00; eve|1|-7.25",
        ),
        ("SELECT owner FROM accounts GROUP BY 1 HAVING count(*) > 1", "owner varchar: bob"),
        (
            "SELECT upper(owner) AS u, count(*) FROM accounts GROUP BY u ORDER BY u LIMIT 1 OFFSET 1",
            "u text, count int8: BOB|2",
        ),
        (
            "SELECT a.owner, l.n, l.amount FROM accounts a JOIN lines l ON l.o = a.id ORDER BY 1, 2",
            "owner varchar, n int2, amount numeric: ann|1|1.500; ann|2|20.000; bob|1|9.999",
        ),
        (
            "SELECT a.id, sum(l.amount) FROM accounts a LEFT JOIN lines l ON l.o = a.id GROUP BY a.id ORDER BY 1",
            "id int8, sum numeric: 1|21.500; 2|9.999; 3|NULL; 4|NULL",
        ),
        (
            "SELECT a.owner, count(l.o) FROM accounts a LEFT JOIN lines l ON l.o = a.id GROUP BY a.id ORDER BY a.id",
            "owner varchar, count int8: ann|2; bob|1; eve|0; bob|0",
        ),
        (
            "SELECT l.o, a.owner FROM accounts a RIGHT JOIN lines l ON l.o = a.id WHERE a.id IS NULL",
            "o int8, owner \
          varchar: 7|NULL",
        ),
        ("SELECT count(*) FROM accounts a FULL JOIN lines l ON l.o = a.id", "count int8: 6"),
        (
            "SELECT x.id FROM accounts b, accounts a RIGHT JOIN accounts x ON x.id = a.id + 3 WHERE b.id = 1 ORDER BY 1",
            "id int8: 1; 2; 3; 4",
        ),
        ("SELECT DISTINCT owner FROM accounts ORDER BY owner DESC", "owner varchar: eve; bob; ann"),
        (
            "WITH rich AS (SELECT * FROM accounts WHERE balance > 10), r(x) AS (SELECT id FROM rich) \
          SELECT max(x), count(*) FROM r",
            "max int8, count int8: 2|2",
        ),
        (
            "SELECT owner FROM accounts WHERE id IN (SELECT o FROM lines WHERE paid) ORDER BY id",
            "owner varchar: ann; \
          bob",
        ),
        ("SELECT id FROM accounts a WHERE EXISTS (SELECT 1 FROM lines WHERE o = a.id AND NOT paid)", "id int8: 1"),
        (
            "SELECT id, (SELECT sum(amount) FROM lines WHERE o = a.id) FROM accounts a ORDER BY id LIMIT 3",
            "id int8, sum numeric: 1|21.500; 2|9.999; 3|NULL",
        ),
        (
            "SELECT id, (SELECT n FROM lines WHERE o = a.id) FROM accounts a WHERE id > 1 ORDER BY id",
            "id int8, n int2: 2|1; 3|NULL; 4|NULL",
        ),
        (
            "SELECT (SELECT n FROM lines WHERE o = 1)",
            "21000 a subquery that stands for a value answers several rows \
          at 0",
        ),
        ("SELECT owner FROM accounts WHERE balance > (SELECT avg(balance) FROM accounts)", "owner varchar: ann"),
        ("SELECT avg(balance), avg(id) FROM accounts", "avg numeric, avg numeric: 28.3125|2.5"),
        (
            "SELECT round(avg(amount), 2), round(9.995, 2), round(-155, -1), trunc(1.99), floor(-1.5), ceil(1.2) FROM lines",
            "round numeric, round numeric, round numeric, trunc numeric, floor numeric, ceil numeric: \
          7.88|10.00|-160|1|-2|2",
        ),
        (
            "SELECT sum(count), sum(n), min(n), max(paid::int) FROM lines",
            "sum int8, sum int8, min int2, max int4: \
          7|5|1|1",
        ),
        (
            "SELECT bool_and(paid), bool_or(paid), count(*) FILTER (WHERE paid), count(DISTINCT count) FROM lines",
            "bool_and bool, bool_or bool, count int8, count int8: f|t|3|3",
        ),
        (
            "SELECT at, at - TIMESTAMP '2024-02-01' FROM lines WHERE at >= '2024-01-31' ORDER BY at",
            "at timestamp, ?column? int8: 2024-01-31 12:30:00|-41400000000; 2024-02-01 00:00:00|0; \
          2024-02-01 00:00:01|1000000",
        ),
        ("SELECT min(at) FROM lines", "min timestamp: 1969-12-31 23:59:59.5"),
        (
            "SELECT raw, octet_length(raw), length(owner) FROM lines JOIN accounts ON id = o AND n = 1 ORDER BY raw",
            "raw bytea, octet_length int4, length int4: \\x00000000|4|3; \\x00ff0000|4|3",
        ),
        (
            "SELECT balance * 1.5, balance + 1, balance - 0.125, -balance, balance % 3, id / 2, balance / 3 FROM accounts \
          WHERE id = 2",
            "?column? numeric, ?column? numeric, ?column? numeric, ?column? numeric, ?column? numeric, \
          ?column? int8, ?column? numeric: 30.750|21.50|20.375|-20.50|2.50|1|6.83333333333333",
        ),
        (
            "SELECT id FROM accounts WHERE balance = 20.5000 OR balance = -7.2501 OR balance > 99.9999 ORDER BY id",
            "id int8: 1; 2",
        ),
        ("SELECT a.id FROM accounts a JOIN lines l ON a.balance >= l.amount AND l.amount = 20", "id int8: 1; 2"),
        ("SELECT id FROM accounts WHERE balance IN (0, 20.5, 100.001) ORDER BY 1", "id int8: 2; 4"),
        (
            "SELECT id FROM accounts WHERE balance NOT IN (SELECT amount FROM lines WHERE count = 1) ORDER BY 1 LIMIT 2",
            "id int8: 1; 2",
        ),
        ("SELECT id FROM accounts WHERE balance BETWEEN '-7.25' AND 0 ORDER BY id", "id int8: 3; 4"),
        (
            "SELECT CASE WHEN balance < 0 THEN 'debt' WHEN balance = 0 THEN 'none' ELSE 'fine' END AS s, count(*) \
          FROM accounts GROUP BY 1 ORDER BY 1",
            "s text, count int8: debt|1; fine|2; none|1",
        ),
        (
            "SELECT owner || ':' || balance, balance::text, id::text, paid::text FROM accounts JOIN lines ON o = id \
          WHERE id = 2",
            "?column? text, balance text, id text, paid text: bob:20.50|20.50|2|true",
        ),
        ("SELECT owner FROM accounts WHERE owner LIKE '%B%' OR owner ILIKE 'E%'", "owner varchar: eve"),
        (
            "SELECT substring(owner FROM 2 FOR 1), replace(owner, 'n', 'm'), strpos(owner, 'n'), trim(' x ') \
          FROM accounts WHERE id = 1",
            "substring text, replace text, strpos int4, btrim text: n|amm|2|x",
        ),
        (
            "SELECT id FROM accounts UNION SELECT amount FROM lines WHERE o = 7 ORDER BY id",
            "id numeric: 0.001; 1.000; \
          2.000; 3.000; 4.000",
        ),
        ("SELECT id FROM accounts EXCEPT SELECT o FROM lines ORDER BY 1", "id int8: 3; 4"),
        (
            "(SELECT id FROM accounts ORDER BY id DESC LIMIT 1) UNION ALL (SELECT id FROM accounts ORDER BY id LIMIT 1)",
            "id int8: 4; 1",
        ),
        ("SELECT * FROM (VALUES (1, 'x'), (2, 'y')) AS v(a, b) ORDER BY a DESC", "a int4, b text: 2|y; 1|x"),
        (
            "SELECT * FROM (SELECT 1 AS o) AS one JOIN lines USING (o) WHERE n = 1",
            "o int4, n int2, amount numeric, \
          count int4, paid bool, at timestamp, raw bytea: 1|1|1.500|3|t|2024-01-31 12:30:00|\\x00ff0000",
        ),
        (
            "SELECT coalesce(sum(balance), 0), nullif(1, 1), greatest(1, 2.5), least(3, 2) FROM accounts WHERE id > 9",
            "coalesce numeric, nullif int4, greatest numeric, least int4: 0.00|NULL|2.5|2",
        ),
        (
            "SELECT replace(owner, '', NULL), replace(owner, '', 'x'), replace(owner, 'n', NULL) FROM accounts WHERE id = 1",
            "replace text, replace text, replace text: NULL|ann|NULL",
        ),
        (
            "SELECT nullif(1, 0.25) / 4, nullif(1, 2) / 4, nullif(1, 1.0), nullif(id, 0.5) FROM accounts WHERE id = 1",
            "?column? numeric, ?column? int4, nullif numeric, nullif numeric: 0.25|0|NULL|1",
        ),
        (
            "SELECT 2 ^ 3, 1.5 ^ 2, power(id, 2), 2 * 3 ^ 2, (-2) ^ 3 FROM accounts WHERE id = 3",
            "?column? float8, ?column? numeric, power float8, ?column? float8, ?column? float8: 8|2.25|9|18|-8",
        ),
        ("SELECT 'a' || id, id || 'a' FROM accounts WHERE id = 1", "?column? text, ?column? text: a1|1a"),
        (
            "SELECT string_agg(owner, ',') FROM (SELECT owner FROM accounts ORDER BY id) AS o",
            "string_agg text: \
          ann,bob,eve,bob",
        ),
        (
            "SELECT id::numeric(5, 1), balance::int, CAST('7' AS bigint), 1.5::float8, owner::varchar(2) FROM accounts \
          WHERE id = 3",
            "id numeric, balance int4, int8 int8, float8 float8, owner text: 3.0|-7|7|1.5|ev",
        ),
        ("SELECT \"id\", ACCOUNTS.Owner FROM public.accounts WHERE accounts.id = 1", "id int8, owner varchar: 1|ann"),
        ("SELECT count(*) FROM accounts WHERE owner > 'ann' AND owner <= 'bob'", "count int8: 2"),
        ("SELECT id FROM accounts ORDER BY owner, balance FETCH FIRST 2 ROWS ONLY", "id int8: 1; 4"),
        ("SELECT id FROM accounts a WHERE a.id IS DISTINCT FROM 2 AND balance IS NOT DISTINCT FROM 0", "id int8: 4"),
        ("SELECT max(id) FROM accounts HAVING count(*) > 9", "max int8: "),
        (
            "SELECT a.* FROM (accounts a JOIN lines l ON l.o = a.id) LEFT JOIN accounts b ON b.id = 99 WHERE n = 2",
            "id int8, owner varchar, balance numeric: 1|ann|100.00",
        ),
        // What stands behind parentheses belongs to what stands in them.
        ("(SELECT id FROM accounts LIMIT 2) ORDER BY id DESC", "id int8: 4; 3"),
        ("((SELECT id FROM accounts ORDER BY 1 LIMIT 2)) OFFSET 1", "id int8: 2; 3"),
        ("(WITH a AS (SELECT id AS x FROM accounts) SELECT x FROM a) ORDER BY -x LIMIT 1", "x int8: 4"),
        ("WITH a AS (SELECT id AS x FROM accounts) (SELECT x FROM a ORDER BY 1) LIMIT 1", "x int8: 1"),
        ("WITH a AS (WITH b AS (SELECT 1 AS x) SELECT x + 1 AS y FROM b) SELECT y FROM a", "y int4: 2"),
        ("SELECT id FROM accounts ORDER BY id LIMIT NULL OFFSET NULL", "id int8: 1; 2; 3; 4"),
        ("SELECT id FROM accounts ORDER BY id LIMIT 1 OFFSET NULL", "id int8: 1"),
        ("SELECT id FROM accounts ORDER BY id LIMIT nullif(1, 1) OFFSET (SELECT NULL::int) + 2", "id int8: 1; 2; 3; 4"),
        (
            "SELECT count(*) FROM accounts WHERE owner ILIKE 'BXO_' ESCAPE 'X' OR owner LIKE 'b!ob' ESCAPE '!'",
            "count int8: 2",
        ),
        (
            "SELECT '50%' LIKE '50\\%', 'a\\' LIKE 'a\\\\', 'a\\b' LIKE 'a\\b!' || 'b' ESCAPE '!' FROM accounts LIMIT 1",
            "?column? bool, ?column? bool, ?column? bool: t|t|f",
        ),
    ] {
        assert_eq!(answer(&database, text), expected, "{text}");
    }
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let database = open(SQL);
    for (text, expected) in [
        ("SELECT nope FROM accounts", "42703 no column is called 'nope' at 8"),
        ("SELECT count(*) FROM nothing", "42P01 no table is called 'nothing' at 22"),
        ("SELECT x.id FROM accounts", "42P01 no table of this query is called 'x' at 8"),
        ("SELECT count(*) FROM by_owner", "42809 'by_owner' is an index at 22"),
        ("SELECT id FROM accounts a, accounts b", "42702 several columns are called 'id' at 8"),
        ("SELECT 1 FROM accounts, accounts", "42712 two tables of the query are called 'accounts' at 0"),
        ("SELECT id, count(*) FROM accounts", "42803 column 'id' stands neither in GROUP BY nor in an aggregate at 8"),
        (
            "SELECT *, count(*) FROM accounts GROUP BY owner",
            "42803 column 'id' stands neither in GROUP BY nor in an \
          aggregate at 8",
        ),
        (
            "SELECT owner FROM accounts GROUP BY owner ORDER BY balance",
            "42803 column 'balance' stands neither in \
          GROUP BY nor in an aggregate at 52",
        ),
        (
            "SELECT (SELECT a.balance) FROM accounts a GROUP BY owner",
            "42803 column 'balance' stands neither in \
          GROUP BY nor in an aggregate at 16",
        ),
        ("SELECT id FROM accounts WHERE count(*) > 1", "42803 no aggregate can stand in WHERE at 31"),
        ("SELECT sum(count(*)) FROM accounts", "42803 aggregates do not stand in each other at 12"),
        (
            "SELECT (SELECT sum(a.balance) FROM lines) FROM accounts a",
            "0A000 an aggregate of the outer query is not \
          supported in queries at 16",
        ),
        (
            "SELECT DISTINCT owner FROM accounts ORDER BY id",
            "42P10 with DISTINCT, ORDER BY names columns of the list \
          at 46",
        ),
        ("SELECT id FROM accounts ORDER BY 2", "42P10 there is no column 2 in the list at 34"),
        ("SELECT id FROM accounts WHERE owner = 1", "42804 a text and a integer cannot stand for each other at 31"),
        ("SELECT id FROM accounts WHERE owner", "42804 a text stands where a boolean is needed at 31"),
        ("SELECT id FROM accounts WHERE id = 'x'", "22P02 'x' is no BIGINT: write digits at 31"),
        ("SELECT md5(owner) FROM accounts", "42883 no function is called 'md5' here at 8"),
        ("SELECT row_number() OVER () FROM accounts", "0A000 OVER is not supported in queries at 8"),
        ("SELECT sum(id) OVER (ORDER BY id) FROM accounts", "0A000 OVER is not supported in queries at 8"),
        ("SELECT DISTINCT ON (owner) id FROM accounts", "0A000 DISTINCT ON is not supported in queries at 1"),
        ("WITH RECURSIVE r AS (SELECT 1) SELECT * FROM r", "0A000 WITH RECURSIVE is not supported in queries at 1"),
        ("SELECT 1 FROM accounts, LATERAL (SELECT 1) AS l", "0A000 LATERAL is not supported in queries at 34"),
        ("SELECT 1 FROM accounts NATURAL JOIN lines", "0A000 NATURAL JOIN is not supported in queries at 37"),
        ("SELECT id FROM accounts LIMIT -1", "2201W LIMIT is negative at 0"),
        ("SELECT id / 0 FROM accounts", "22012 division by zero at 0"),
        ("SELECT balance / 0 FROM accounts", "22012 division by zero at 0"),
        ("SELECT id * 9223372036854775807 FROM accounts", "22003 a number is out of range at 0"),
        ("SELECT sum(id * 4611686018427387904) FROM accounts WHERE id < 3", "22003 a number is out of range at 0"),
        ("SELECT sum(9223372036854775807) FROM accounts", "22003 a number is out of range at 0"),
        ("SELECT abs(CAST(-32768 AS smallint)) FROM accounts", "22003 a number is out of range at 0"),
        ("SELECT abs(-9223372036854775807 - id) FROM accounts WHERE id = 1", "22003 a number is out of range at 0"),
        ("SELECT abs(CAST(-2147483648 AS integer)) FROM accounts", "22003 a number is out of range at 0"),
        ("SELECT n * 40000::smallint FROM lines", "22003 a number is out of range at 0"),
        ("SELECT n * 20000::smallint FROM lines", "22003 a number is out of range at 0"),
        ("SELECT count * 2147483647 FROM lines", "22003 a number is out of range at 0"),
        (
            "SELECT balance * 0.00000000000000001 FROM accounts",
            "22003 a product has 19 decimals, and 18 are possible \
          at 8",
        ),
        ("SELECT balance * 90000000000000000.5 FROM accounts", "22003 a number is out of range at 0"),
        ("SELECT CAST(balance AS DECIMAL(3, 2)) FROM accounts", "22003 a number is out of range at 0"),
        (
            "SELECT count(*) FROM accounts WHERE owner LIKE 'a\\'",
            "22025 LIKE pattern must not end with escape character at 0",
        ),
        ("SELECT 'a' NOT LIKE 'a\\' FROM accounts", "22025 LIKE pattern must not end with escape character at 0"),
        (
            "SELECT 'a' NOT ILIKE 'a!' ESCAPE '!' FROM accounts",
            "22025 LIKE pattern must not end with escape character at 0",
        ),
        (
            "SELECT owner !~~* (owner || '\\') FROM accounts",
            "22025 LIKE pattern must not end with escape character at 0",
        ),
        (
            "(SELECT id FROM accounts LIMIT 5) LIMIT 1",
            "42601 a query has one LIMIT, which may stand behind its parentheses at 2",
        ),
        (
            "((SELECT id FROM accounts FETCH FIRST ROW ONLY)) LIMIT 1",
            "42601 a query has one LIMIT, which may stand behind its parentheses at 3",
        ),
        (
            "(SELECT id FROM accounts OFFSET 5) OFFSET 1",
            "42601 a query has one OFFSET, which may stand behind its parentheses at 2",
        ),
        (
            "(SELECT id FROM accounts ORDER BY 1) ORDER BY 1",
            "42601 a query has one ORDER BY, which may stand behind its parentheses at 2",
        ),
        (
            "WITH a AS (SELECT 1) (WITH b AS (SELECT 1) SELECT * FROM a, b)",
            "42601 a query has one WITH, which may stand behind its parentheses at 23",
        ),
        ("TABLE nothing", "42P01 no table is called 'nothing' at 7"),
        ("SELECT id FROM accounts FOR UPDATE", "0A000 what stands behind the query is not supported in queries at 1"),
        ("SELECT id INTO x FROM accounts", "0A000 SELECT INTO is not supported in queries at 1"),
        (
            "SELECT a.id FROM accounts a JOIN accounts b ON c.id = 1, accounts c",
            "42P01 no table of this query is \
          called 'c' at 48",
        ),
    ] {
        assert_eq!(answer(&database, text), expected, "{text}");
    }
    let deep = format!("SELECT {}1{} FROM accounts", "abs(".repeat(40), ")".repeat(40));
    assert!(answer(&database, &deep).starts_with("abs int4: 1;"));
    let long = format!("SELECT count(*) FROM accounts WHERE {}", vec!["id = 1"; 195].join(" OR "));
    let said = answer(&database, &long);
    assert!(said.starts_with("54001 expressions and queries stand in each other"), "{said}");
}

#[test]
fn parameters_have_the_types_of_what_they_stand_beside() {
    let database = open(SQL);
    let types = |text: &str| {
        let query = understand(text, database.sql_catalogue(), asker(&[])).unwrap();
        query.map(|query| {
            let list = query.parameters.iter().map(|field| field.sql_type.map(|ty| ty.to_string()).unwrap_or_default());
            list.collect::<Vec<_>>().join(", ")
        })
    };
    for (text, expected) in [
        (
            "SELECT count(*) FROM accounts WHERE balance < $1 AND owner = $2 AND id > $3 LIMIT $4",
            "DECIMAL(18, 2), TEXT, BIGINT, BIGINT",
        ),
        (
            "SELECT count(*) FROM lines WHERE at > $1 AND n IN ($2, $3) AND paid = $4 AND $5",
            "TIMESTAMP, SMALLINT, SMALLINT, BOOLEAN, BOOLEAN",
        ),
        ("SELECT $1::int + count, $2 FROM lines", "INTEGER, TEXT"),
    ] {
        assert_eq!(types(text).as_deref(), Ok(expected), "{text}");
    }
    assert_eq!(types("SELECT $1 + $2").unwrap_err().sqlstate, "42P18");
    assert_eq!(types("SELECT id + $2 FROM accounts").unwrap_err().sqlstate, "42P18");
    assert_eq!(types("SELECT $0").unwrap_err().sqlstate, "42P02");
    let text = "SELECT id FROM accounts WHERE balance <= $1 AND owner <> $2 ORDER BY id";
    let values = [Value::Decimal(205, 1), Value::Text("eve".into())];
    assert_eq!(ask(&database, text, &values).unwrap().1, ["2", "4"]);
    let refused = ask(&database, text, &[Value::Decimal(i64::MAX, 1), Value::Text(String::new())]).unwrap_err();
    assert_eq!(refused.sqlstate, "22003");
}

/// The text of a number times 10^scale.
fn shown(number: i128, scale: u32) -> String {
    let power = 10_i128.pow(scale);
    let (whole, part) = (number.unsigned_abs() / power.unsigned_abs(), number.unsigned_abs() % power.unsigned_abs());
    let sign = if number < 0 { "-" } else { "" };
    if scale == 0 { format!("{sign}{whole}") } else { format!("{sign}{whole}.{part:0width$}", width = scale as usize) }
}

#[test]
fn aggregates_comparisons_and_joins_of_random_decimals_are_exact_or_refused() {
    let mut random = lockwork_random::Random(42);
    let mut next = move || (random.next_u64() >> 11) as i64;
    let (mut exact, mut refused) = (0, 0);
    for round in 0..12 {
        let (a_scale, b_scale) = (round % 4 * 5, round / 4 * 6);
        let digits = 10 + round % 9;
        let mut database = open(&format!(
            "CREATE TABLE t (id BIGINT PRIMARY KEY, g INTEGER NOT NULL, a DECIMAL(18, {a_scale}) NOT NULL,
                b DECIMAL(18, {b_scale}) NOT NULL, i BIGINT NOT NULL);"
        ));
        let mut number = |digits: u32| {
            let size = 10_i64.pow(1 + next().unsigned_abs() as u32 % digits);
            (next() % size) * if next() % 2 == 0 { 1 } else { -1 }
        };
        let rows: Vec<[i64; 4]> =
            (0..200).map(|_| [number(1) % 5, number(digits), number(digits), number(18)]).collect();
        for (id, [g, a, b, i]) in rows.iter().enumerate() {
            let (a, b) = (shown((*a).into(), a_scale), shown((*b).into(), b_scale));
            database.sql(&format!("INSERT INTO t VALUES ({id}, {g}, {a}, {b}, {i});")).unwrap();
        }
        let common = a_scale.max(b_scale);
        let up = |number: i64, scale: u32| i128::from(number) * 10_i128.pow(common - scale);
        let mut groups: BTreeMap<i64, Vec<[i64; 4]>> = BTreeMap::new();
        rows.iter().for_each(|row| groups.entry(row[0]).or_default().push(*row));
        // Each query with what it answers, and whether all numbers on the way fit 64 bits.
        let mut checks: Vec<(String, Vec<String>, bool)> = Vec::new();
        let fits = |number: i128| i64::try_from(number).is_ok();
        for (column, at, scale) in [("a", 1, a_scale), ("b", 2, b_scale), ("i", 3, 0)] {
            let mut expected = Vec::new();
            let mut is_inside = true;
            for (group, rows) in &groups {
                let values: Vec<i128> = rows.iter().map(|row| row[at].into()).collect();
                let sum: i128 = values.iter().sum();
                // SQLite adds in its order, so only sums that fit in any order have to be answered.
                is_inside &= fits(values.iter().map(|value| value.abs()).sum());
                expected.push(format!(
                    "{group}|{}|{}|{}|{}",
                    shown(sum, scale),
                    shown(*values.iter().min().unwrap(), scale),
                    shown(*values.iter().max().unwrap(), scale),
                    values.len()
                ));
            }
            let text =
                format!("SELECT g, sum({column}), min({column}), max({column}), count(*) FROM t GROUP BY g ORDER BY g");
            checks.push((text, expected, is_inside));
        }
        let less = rows.iter().filter(|row| up(row[1], a_scale) < up(row[2], b_scale)).count();
        checks.push(("SELECT count(*) FROM t WHERE a < b".into(), vec![less.to_string()], true));
        let some = rows[7];
        let literal = shown(i128::from(some[2]), b_scale);
        let same = rows.iter().filter(|row| up(row[1], a_scale) >= up(some[2], b_scale)).count();
        checks.push((format!("SELECT count(*) FROM t WHERE a >= {literal}"), vec![same.to_string()], true));
        let pairs = rows.iter().flat_map(|row| rows.iter().map(move |other| (row, other)));
        let equal = pairs.filter(|(row, other)| row[1] == other[1]).count();
        checks.push(("SELECT count(*) FROM t x JOIN t y ON x.a = y.a".into(), vec![equal.to_string()], true));
        for (op, compute) in [("+", i128::checked_add as fn(i128, i128) -> Option<i128>), ("-", i128::checked_sub)] {
            let values: Vec<i128> =
                rows.iter().map(|row| compute(up(row[1], a_scale), up(row[2], b_scale)).unwrap()).collect();
            let is_inside = values.iter().all(|value| fits(*value))
                && rows.iter().all(|row| fits(up(row[1], a_scale)) && fits(up(row[2], b_scale)));
            let expected = values.iter().map(|value| shown(*value, common)).collect();
            checks.push((format!("SELECT a {op} b FROM t ORDER BY id"), expected, is_inside));
        }
        if a_scale + b_scale <= 18 {
            let values: Vec<i128> = rows.iter().map(|row| i128::from(row[1]) * i128::from(row[2])).collect();
            let is_inside = values.iter().all(|value| fits(*value));
            let expected = values.iter().map(|value| shown(*value, a_scale + b_scale)).collect();
            checks.push(("SELECT a * b FROM t ORDER BY id".into(), expected, is_inside));
        }
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by_key(|&id| (std::cmp::Reverse(rows[id][1]), id));
        let expected = order.iter().take(20).map(usize::to_string).collect();
        checks.push(("SELECT id FROM t ORDER BY a DESC, id LIMIT 20".into(), expected, true));
        for (text, expected, is_inside) in checks {
            match ask(&database, &text, &[]) {
                Ok((_, rows)) => {
                    assert_eq!(rows, expected, "{text}, scales {a_scale} and {b_scale}, {digits} digits");
                    exact += 1;
                }
                Err(refusal) => {
                    assert!(refusal.sqlstate == "22003" && !is_inside, "{text}: {refusal}");
                    refused += 1;
                }
            }
        }
    }
    assert!(exact > 80 && refused > 5, "{exact} {refused}");
}

#[test]
fn a_query_that_runs_too_long_or_that_nobody_waits_for_ends() {
    let database = open("CREATE TABLE t (id BIGINT PRIMARY KEY);");
    let text = "SELECT count(*) FROM (VALUES (1),(2),(3),(4),(5),(6),(7),(8),(9),(10)) AS v(a)";
    let many = format!(
        "{text}, {}",
        (0..12).map(|at| format!("({}) AS v{at}(a{at})", &text[22..64])).collect::<Vec<_>>().join(", ")
    );
    let query = understand(&many, database.sql_catalogue(), asker(&[])).unwrap().unwrap();
    let begun = Instant::now();
    let cancel = Arc::new(Cancel::default());
    cancel.begin();
    cancel.ask();
    let limits = Limits::new(WHAT, LIMIT, "ann", &Room::new(crate::limits::ALL), &cancel);
    let refused = query.answer(Vec::new(), &[], &Format::UnifiedText, &limits).unwrap_err();
    assert!(refused.sqlstate == "57014" && begun.elapsed() < Duration::from_secs(5), "{refused}");
    assert!(refused.message.contains("cancelled"), "{refused}");
}
