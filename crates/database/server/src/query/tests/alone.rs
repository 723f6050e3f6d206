//! Queries without tables, and values that are compared with columns.

use super::*;

/// As [`answer`], of a query without tables.
fn answer_alone(text: &str) -> String {
    let database = open("");
    match alone(text, asker(&[])) {
        Some(Err(refusal)) if !may_be_of_catalog(&refusal) => answer(&database, text),
        Some(Ok(_)) => answer(&database, text),
        _ => "not here".into(),
    }
}

#[test]
fn queries_without_tables_answer_what_postgresql_does() {
    for (text, expected) in [
        ("SELECT 7/0", "22012 division by zero at 0"),
        ("SELECT 9223372036854775807 + 1", "22003 a number is out of range at 0"),
        ("SELECT 1.5::int, -2.5::int, 7/2", "int4 int4, ?column? int4, ?column? int4: 2|-3|3"),
        ("SELECT 'a'\n 'b'", "?column? text: ab"),
        ("SELECT 'a' 'b'", "42601 syntax error at or near \"'b'\" at 8"),
        ("SELECT 1 AS 'b'", "42601 syntax error at or near \"'b'\" at 8"),
        ("SELECT 0x1F, X'1f'", "?column? int4, ?column? bytea: 31|\\x1f"),
        ("VALUES (1, 'a'), (2.5, NULL)", "column1 numeric, column2 text: 1.0|a; 2.5|NULL"),
        ("VALUES ('1'), (2)", "column1 int4: 1; 2"),
        ("SELECT * FROM generate_series(1, 3)", "generate_series int4: 1; 2; 3"),
        ("SELECT sum(n) FROM generate_series(10, -10, -5) AS s(n)", "sum int8: 0"),
        (
            "SELECT g FROM generate_series(9223372036854775806, 9223372036854775807) g",
            "g int8: 9223372036854775806; 9223372036854775807",
        ),
        ("SELECT count(*) FROM generate_series(3, 1) a, generate_series(1, 2) b", "count int8: 0"),
        ("SELECT * FROM generate_series(1.5, 3)", "42804 generate_series takes integers, and this is numeric at 15"),
        ("SELECT count(*) FROM generate_series(1, 2, 0)", "22023 step size cannot equal zero at 0"),
        (
            "SELECT current_date - current_date, '2024-02-28'::date + 2, 1 + '1969-12-31'::date, '2024-03-01'::date - 1",
            "?column? int4, ?column? date, ?column? date, ?column? date: 0|2024-03-01|1970-01-01|2024-02-29",
        ),
        ("SELECT -9223372036854775808, - 9223372036854775808 - 1", "22003 a number is out of range at 0"),
        ("SELECT -9223372036854775808", "?column? int8: -9223372036854775808"),
        ("SELECT 1_000", "42601 '1_000' is no number at 8"),
        ("SELECT -'x'", "42883 - takes a number at 9"),
        ("SELECT +'x'", "42883 + takes a number at 9"),
        ("SELECT true + 1", "42883 a boolean and a integer cannot be computed like this at 8"),
        ("SELECT 1 || 2", "42883 || joins texts at 8"),
        ("SELECT abs('x')", "42883 there is no function abs(text) for queries at 8"),
        ("SELECT 9223372036854775807 + 1, current_user", "22003 a number is out of range at 0"),
        (
            "SELECT 'abcdef'::varchar(3), length(user), current_database()",
            "varchar text, length int4, current_database text: abc|3|bank",
        ),
        ("SELECT 1 UNION ALL SELECT NULL", "?column? int4: 1; NULL"),
        ("SELECT NULL AS a, '2' AS b UNION ALL (SELECT 1.5, 3) ORDER BY b DESC", "a numeric, b int4: 1.5|3; NULL|2"),
        ("SELECT 1 UNION SELECT 'x'", "22P02 'x' is no INTEGER: write digits at 16"),
        ("SELECT 1 a, 2 a ORDER BY a", "42702 several columns of the list are called 'a' at 26"),
        ("SELECT 1 + 1 a, 1 + 1 a ORDER BY a", "a int4, a int4: 2|2"),
        (
            "SELECT * FROM generate_series(5, 1, -2) WITH ORDINALITY AS s(n) WHERE ordinality > 1",
            "n int4, ordinality int8: 3|2; 1|3",
        ),
        (
            "SELECT now() = CURRENT_TIMESTAMP, current_date <= localtimestamp, now()::date = current_date",
            "?column? bool, ?column? bool, ?column? bool: t|t|t",
        ),
        (
            "SELECT '2024-01-31 12:30'::timestamptz, '2024-01-31 12:30'::date, '1969-12-31 23:00'::timestamp::date",
            "timestamptz timestamptz, date date, date date: 2024-01-31 12:30:00+00|2024-01-31|1969-12-31",
        ),
        ("SELECT current_schema()", "current_schema text: public"),
        ("SELECT to_regclass('accounts')", "not here"),
    ] {
        assert_eq!(answer_alone(text), expected, "{text}");
    }
    let query = alone("SELECT $1, $2::int8", asker(&[Some(Type::INT2), Some(Type::INT4)])).unwrap().unwrap();
    let types: Vec<Type> = query.columns().map(|(_, ty, _)| ty).collect();
    assert_eq!(types, [Type::INT2, Type::INT8]);
    let query = alone("VALUES ($1, $2)", asker(&[Some(Type::DATE), Some(Type::TIMESTAMPTZ)])).unwrap().unwrap();
    let types: Vec<Type> = query.columns().map(|(_, ty, _)| ty).collect();
    assert_eq!(types, [Type::DATE, Type::TIMESTAMPTZ]);
    let query = alone("SELECT $1::int8", asker(&[Some(Type::NUMERIC)])).unwrap().unwrap();
    assert_eq!(query.parameters[0].sql_type, Some(SqlType::Decimal(18, 6)));
}

#[test]
fn bytes_are_found_by_what_they_were_before_they_were_filled_up() {
    let database = open(SQL);
    for (filter, expected) in [
        (r"raw = '\x00ff'", "n int2: 1"),
        (r"raw = '\x00ff0000'", "n int2: 1"),
        (r"raw IN ('\x00ff000000', '\x02')", "n int2: 1"),
        (r"raw = '\x00ff000001'", "n int2: "),
        (r"raw > '\x00ff' AND raw < '\x0100000000'", "n int2: "),
        (r"raw >= '\x01'", "n int2: 2"),
    ] {
        assert_eq!(answer(&database, &format!("SELECT n FROM lines WHERE {filter}")), expected, "{filter}");
    }
}
