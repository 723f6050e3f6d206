//! Queries of the catalog, as clients send them.

use lockwork::EngineKind;
use lockwork::Lockwork;

use super::fuzz::written;
use super::*;
use crate::grants::Grants;

const SQL: &str = "
    CREATE TABLE t (a INTEGER NOT NULL, b SMALLINT NOT NULL, name VARCHAR(10) NOT NULL DEFAULT 'it''s',
        at TIMESTAMP NOT NULL, PRIMARY KEY (a, b)) WITH (ordered = true);
    CREATE INDEX t_name ON t (name, a);
    CREATE PROCEDURE p(x BIGINT, INOUT y BIGINT, OUT z DECIMAL(12, 2)) AS BEGIN y := x; z := 1.5; END;";

fn who() -> SessionNames {
    SessionNames { user: "ann".into(), database: "bank".into() }
}

fn built() -> Built {
    let mut database = Lockwork::open_in_memory(EngineKind::DETERMINISTIC).unwrap();
    database.sql(SQL).unwrap();
    let mut built = Built::new(&(database.sql_catalogue().clone(), database.procedure_definitions()), 1).unwrap();
    built.be(&who()).unwrap();
    built
}

/// Limits of a query that has begun now, and the room that its memory comes from.
fn limits() -> (Arc<Limits>, Arc<Room>) {
    let room = Room::new(limits::ALL);
    (Limits::new(WHAT, LIMIT, "ann", &room, &Arc::default()), room)
}

/// A value of a parameter, as text.
fn given(text: &str, ty: Type) -> Given {
    Given { bytes: Some(text.to_string().into()), format: FieldFormat::Text, ty }
}

/// Names and types of the columns, and the rows as text.
fn answer(built: &Built, text: &str, values: &[Given]) -> Result<String, Refusal> {
    let rewritten = rewrite(text).unwrap_or_else(|| panic!("not of the catalog: {text}"))?;
    let (asked, rows) = limits().0.enter(|| {
        let asked = built.understand(&rewritten, text)?;
        let rows = built.run(&asked, values, &Format::UnifiedText)?;
        Ok::<_, Refusal>((asked, rows))
    })?;
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
    let head = asked.columns.iter().map(|(name, ty)| format!("{name} {ty}")).collect::<Vec<_>>().join(", ");
    Ok(format!("{head}: {}", rows.iter().map(cells).collect::<Vec<_>>().join("; ")))
}

#[test]
fn queries_answer_what_is_there() {
    let (built, mut wrong) = (built(), Vec::new());
    for (text, expected) in [
        (
            "SELECT relname, relkind FROM pg_class WHERE relnamespace = 2200 ORDER BY 1",
            "relname name, relkind char: t|r; t_name|i; t_pkey|i",
        ),
        (
            "select c.oid::regclass, 't'::regclass::oid from pg_catalog.pg_class c where c.relname ~ '^(t)$'",
            "oid text, oid oid: t|16384",
        ),
        (
            "SELECT attname AS \"Name\", pg_catalog.format_type(atttypid, atttypmod) FROM pg_attribute \
             WHERE attrelid = '16384' AND attnum > 0 ORDER BY attnum",
            "Name name, format_type text: a|integer; b|smallint; name|character varying(10); \
             at|timestamp without time zone",
        ),
        (
            "SELECT pg_get_indexdef(indexrelid), pg_get_indexdef(indexrelid, 2, true), indkey, indkey[0] FROM pg_index \
             ORDER BY indexrelid",
            "pg_get_indexdef text, pg_get_indexdef text, indkey int2vector, indkey int2: \
             CREATE UNIQUE INDEX t_pkey ON public.t USING btree (a, b)|b|1 2|1; \
             CREATE INDEX t_name ON public.t USING btree (name, a)|a|3 1|3",
        ),
        (
            "SELECT conname, pg_get_constraintdef(oid, true), unnest(conkey) AS k, generate_subscripts(conkey, 1) AS n \
             FROM pg_constraint ORDER BY n",
            "conname name, pg_get_constraintdef text, k int2, n int4: t_pkey|PRIMARY KEY (a, b)|1|1; \
             t_pkey|PRIMARY KEY (a, b)|2|2",
        ),
        (
            "SELECT (information_schema._pg_expandarray(i.indkey)).n, (information_schema._pg_expandarray(i.indkey)).x \
             FROM pg_index i WHERE indexrelid = 't_name'::regclass",
            "n int4, x int2: 1|3; 2|1",
        ),
        (
            "SELECT proname, pg_get_function_arguments(oid), proargmodes FROM pg_proc WHERE pronamespace = \
             'public'::regnamespace",
            "proname name, pg_get_function_arguments text, proargmodes _char: \
             p|IN x bigint, INOUT y bigint, OUT z numeric|{i,b,o}",
        ),
        (
            "SELECT adbin, pg_get_expr(adbin, adrelid) FROM pg_attrdef",
            "adbin pg_node_tree, pg_get_expr text: 'it''s'::character varying|'it''s'::character varying",
        ),
        (
            "SELECT oid, typarray, oid::regtype::text FROM pg_type WHERE oid = to_regtype('varchar')",
            "oid oid, typarray oid, oid text: 1043|1015|character varying",
        ),
        (
            "SELECT current_schemas(true), current_database(), ARRAY(SELECT rolname FROM pg_roles) AS r, 1 + 1",
            "current_schemas _name, current_database name, r _name, ?column? int4: {pg_catalog,public}|bank|{ann}|2",
        ),
        ("SELECT s.n FROM generate_series(1, 3) AS s(n) WHERE n <> 2", "n int4: 1; 3"),
        ("SELECT * FROM unnest('{7,8}'::int[]) WITH ORDINALITY AS t(a, n)", "a int4, n int8: 7|1; 8|2"),
        ("SELECT * FROM unnest(ARRAY['a']) AS t(a), generate_series(1, 2)", "a text, generate_series int4: a|1; a|2"),
        (
            "SELECT 'abcdef'::varchar(3), format_type(23, -1), -(1 + 2), '7'::int2",
            "varchar varchar, format_type text, ?column? int4, int2 int2: abc|integer|-3|7",
        ),
        (
            "SELECT array_agg(attname::text ORDER BY attnum) FROM pg_attribute WHERE attrelid = 16384 AND attnum < 3",
            "array_agg _text: {a,b}",
        ),
        (
            "SELECT table_name, is_nullable FROM information_schema.columns WHERE table_schema = 'public' LIMIT 1",
            "table_name name, is_nullable varchar: t|NO",
        ),
        (
            "SELECT 'a' = ANY (ARRAY['a', 'b']), 3 <> ALL ('{1,2}'::int[]), E'a\\nb' LIKE 'a%'",
            "?column? bool, ?column? bool, ?column? bool: t|t|t",
        ),
        (
            "SELECT 'aBc' ILIKE 'AXbC' ESCAPE 'X', '5%' ~~ '5\\%' FROM pg_class WHERE oid = 16384 LIMIT NULL OFFSET NULL",
            "?column? bool, ?column? bool: t|t",
        ),
        ("(SELECT 1 AS x) UNION (SELECT 2) ORDER BY 1", "x int4: 1; 2"),
        ("SELECT NULL::int, has_table_privilege('t', 'select')", "int4 int4, has_table_privilege bool: NULL|t"),
    ] {
        let answer = answer(&built, text, &[]);
        if answer.as_deref() != Ok(expected) {
            wrong.push(format!("{text}\n  expected {expected}\n  answered {answer:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn parameters_have_the_types_of_what_they_are_compared_with() {
    let built = built();
    let text = "SELECT relname FROM pg_class WHERE oid = $1 AND relname = ANY ($2) AND relkind IN ($3, $4::varchar)";
    let rewritten = rewrite(text).unwrap().unwrap();
    let asked = built.understand(&rewritten, text).unwrap();
    assert_eq!(asked.parameters, [Type::OID, Type::NAME_ARRAY, Type::CHAR, Type::VARCHAR]);
    let values = [
        given("16384", Type::OID),
        given("{t,u}", Type::NAME_ARRAY),
        given("r", Type::CHAR),
        given("v", Type::VARCHAR),
    ];
    assert_eq!(answer(&built, text, &values).unwrap(), "relname name: t");
}

#[test]
fn what_is_not_understood_is_refused_with_its_place() {
    let built = built();
    for (text, sqlstate, position) in [
        ("SELECT nonsense(1), 1 FROM pg_class", "42883", 8),
        ("SELECT nonsense FROM pg_class", "42703", 8),
        ("SELECT oid / 0 FROM pg_class", "22012", 0),
        ("SELECT pg_backend_pid() % 0.0 FROM pg_class", "22012", 0),
        ("SELECT pg_backend_pid() * 1.5", "0A000", 27),
        ("SELECT format_type(23, -1), 70000::smallint", "22003", 0),
        ("SELECT format_type(23, -1), 'x'::integer", "22P02", 0),
        ("SELECT format_type(23, -1), 9223372036854775807 + 1", "22003", 0),
        ("SELECT 9223372036854775807 * oid FROM pg_class", "22003", 0),
        ("SELECT format_type(23, -1), -'x'", "42883", 0),
        ("SELECT format_type(23, -1), true + 1", "42883", 0),
        ("SELECT format_type(23, -1), 1 || 2", "42883", 0),
        ("SELECT generate_series(1.5::float8, 3), oid FROM pg_class", "0A000", 0),
        ("SELECT generate_series(), oid FROM pg_class", "42883", 0),
        ("SELECT generate_series(1)", "42883", 0),
        ("SELECT generate_series(1, 2, 3, 4)", "42883", 0),
        ("SELECT generate_series(1, 2, 0)", "22023", 0),
        ("SELECT 1 FROM pg_class, generate_series(1)", "42883", 25),
        ("SELECT *, 1 FROM unnest('{1,2}'::int[])", "0A000", 1),
        ("SELECT * FROM pg_class, unnest('{1,2}'::int[])", "0A000", 1),
        ("SELECT * FROM pg_nothing", "42P01", 15),
        ("SELECT * FROM pg_class, t", "0A000", 25),
        ("SELECT 1::hstore", "42704", 0),
        ("SELECT 'nothing'::regclass", "22023", 0),
        ("SELECT relname ~ '(' FROM pg_class", "2201B", 0),
        ("SELECT relname LIKE 't\\' FROM pg_class", "22025", 0),
        ("SELECT relname NOT ILIKE 't!' ESCAPE '!' FROM pg_class", "22025", 0),
        ("SELECT * FROM pg_class c, LATERAL (SELECT c.oid) x", "0A000", 0),
        ("SELECT DISTINCT ON (relname) relname FROM pg_class", "0A000", 1),
        ("SELECT * FROM generate_series(1, 1000000000)", "22023", 0),
        ("SELECT count(*) FROM pg_attribute a, pg_attribute b, pg_attribute c, pg_attribute d", "57014", 0),
    ] {
        let refusal = answer(&built, text, &[]).unwrap_err();
        assert_eq!((refusal.sqlstate.as_str(), refusal.position), (sqlstate, position), "{text}: {refusal}");
    }
    // What is none of the catalog's.
    for text in ["SELECT a FROM t", "SELECT nonsense", "CALL p(1)", "SELECT 1 FROM", "INSERT INTO pg_class VALUES (1)"]
    {
        assert!(rewrite(text).is_none(), "{text}");
    }
    let deep = format!("SELECT version(){}", " + 1".repeat(50_000));
    assert!(rewrite(&deep).is_none());
}

#[test]
fn any_text_is_answered_or_refused() {
    let built = built();
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut random = lockwork_random::Random(seed);
    let mut next = |most: usize| random.index(most);
    let words = [
        "SELECT",
        "FROM",
        "pg_class",
        "pg_index i",
        "WHERE",
        "(",
        ")",
        "[",
        "]",
        ",",
        ".",
        "1",
        "'a'",
        "$1",
        "::",
        "regclass",
        "int2[]",
        "unnest",
        "(indkey)",
        "ANY",
        "ARRAY",
        "=",
        "~",
        "CASE",
        "WHEN",
        "THEN",
        "END",
        "oid",
        "AS",
        "x",
        "relname",
        "NOT",
        "LIKE",
        "UNION",
        "generate_series(1, 3)",
        "\"",
        "E'\\x'",
        "COLLATE",
        "*",
        "ORDER BY",
        "n",
    ];
    for _ in 0..4_000 {
        let count = 1 + next(14);
        let random: Vec<&str> = (0..count).map(|_| words[next(words.len())]).collect();
        let text = format!("SELECT {} FROM pg_index i", random.join(" "));
        if let Some(Ok(rewritten)) = rewrite(&text) {
            limits().0.enter(|| {
                if let Ok(asked) = built.understand(&rewritten, &text) {
                    drop(built.run(&asked, &[], &Format::UnifiedText));
                }
            });
        }
    }
}

/// The only cell of an answer without its column.
fn cell(built: &Built, text: &str, values: &[Given]) -> Result<String, Refusal> {
    answer(built, text, values).map(|answer| answer.split_once(": ").unwrap().1.into())
}

#[test]
fn texts_and_names_stay_what_they_are() {
    let built = built();
    for text in [
        "it''s",
        "a\\', sqlite_version() FROM pg_class LIMIT 1 --",
        "x\\' OR 1 = 1 --",
        "\\'",
        "'",
        "''",
        "\\\\''\\",
        "\"a\"\"",
        "/* a */ -- b",
        "?1 $1 :a @b",
        "ä\u{10ffff}",
        "a\nb",
    ] {
        for literal in written(text) {
            let asked = format!("SELECT {literal} AS x FROM pg_class WHERE oid = 16384");
            assert_eq!(cell(&built, &asked, &[]).as_deref(), Ok(text), "{literal}");
            let asked = format!("SELECT {literal} || '', {literal}::text = {literal} FROM pg_class WHERE oid = 16384");
            assert_eq!(cell(&built, &asked, &[]), Ok(format!("{text}|t")), "{literal}");
        }
        let name = text.replace('"', "\"\"");
        let asked =
            format!("SELECT t.\"{name}\" FROM (SELECT 7 AS \"{name}\", oid FROM pg_class WHERE oid = 16384) AS t");
        assert_eq!(cell(&built, &asked, &[]).as_deref(), Ok("7"), "{asked}");
    }
    // Nothing stands in a text that SQLite would take for its end.
    for literal in ["E'a\\0b'", "E'\\u0000'", "U&'\\0000'", "E'\\x00'"] {
        let asked = format!("SELECT {literal}, oid FROM pg_class");
        if let Some(asked) = rewrite(&asked) {
            assert_eq!(asked.map(|_| ()).unwrap_err().sqlstate, "22021", "{literal}");
        }
    }
    // A text is no name, and a name is no text.
    let refusal = answer(&built, "SELECT \"nonsense\" FROM pg_class", &[]).unwrap_err();
    assert_eq!((&*refusal.sqlstate, &*refusal.message), ("42703", "no such column: nonsense"));
}

#[test]
fn values_and_expressions_of_other_kinds_are_refused() {
    let built = built();
    for expression in [
        "X'1f'",
        "B'01'",
        "0x1f",
        "1_000",
        "INTERVAL '1 day'",
        "oid AT TIME ZONE 'UTC'",
        "EXTRACT(year FROM relname)",
        "relname SIMILAR TO 'a'",
        "relname IS NORMALIZED",
        "OVERLAY(relname PLACING 'a' FROM 1)",
        "relname COLLATE \"C\" RLIKE 'a'",
        "GROUPING SETS (oid)",
        "TRY_CAST(oid AS text)",
        "count(DISTINCT oid) WITHIN GROUP (ORDER BY oid)",
        "first_value(oid) IGNORE NULLS OVER ()",
        "~oid",
        "|/ oid",
    ] {
        for text in
            [format!("SELECT {expression} FROM pg_class"), format!("SELECT oid FROM pg_class ORDER BY {expression}")]
        {
            // What the parser does not know is not carried out either.
            if let Some(rewritten) = rewrite(&text) {
                let refusal = rewritten.map(|rewritten| rewritten.sql).unwrap_err();
                assert!(["0A000", "42883", "42704", "42601"].contains(&&*refusal.sqlstate), "{text}: {refusal:?}");
            }
        }
    }
    for text in [
        "SELECT sqlite_version(), oid FROM pg_class",
        "SELECT load_extension('a'), oid FROM pg_class",
        "SELECT json_extract('{}', '$'), oid FROM pg_class",
        "SELECT pg_regex('a', 'a', 0), oid FROM pg_class",
        "SELECT value FROM json_each('[1]'), pg_class",
        "SELECT name FROM pragma_database_list, pg_class",
        "SELECT * FROM pg_class, sqlite_schema",
        "SELECT * FROM pg_class TABLESAMPLE SYSTEM (1)",
        "SELECT * FROM pg_class FOR XML AUTO",
    ] {
        assert!(rewrite(text).is_none_or(|rewritten| rewritten.is_err()), "{text}");
    }
    // SQLite itself would refuse it, whatever came to it.
    for sql in [
        "SELECT sqlite_version()",
        "SELECT sqlite_compileoption_get(1)",
        "SELECT load_extension('a')",
        "SELECT randomblob(9)",
        "SELECT * FROM sqlite_schema",
        "SELECT * FROM pg_catalog.sqlite_master",
        "SELECT * FROM pragma_database_list",
        "PRAGMA database_list",
        "PRAGMA query_only = OFF",
        "ATTACH 'a' AS b",
        "UPDATE pg_roles SET rolname = 'a'",
        "CREATE TEMP TABLE a (b)",
        "VACUUM INTO 'a'",
        "SELECT oid FROM pg_class WHERE relname = fts3_tokenizer('a')",
    ] {
        let prepared = built.connection.prepare(sql);
        assert!(prepared.is_err() || !prepared.unwrap().readonly(), "{sql}");
    }
}

proptest::proptest! {
    #[test]
    fn any_text_comes_back(text in "[\u{1}-\u{10ffff}]{0,12}|['\\\\\"$a ]{0,12}") {
        thread_local! {
            static BUILT: Built = built();
        }
        BUILT.with(|built| {
            for literal in written(&text) {
                let asked = format!("SELECT {literal} AS x FROM pg_class WHERE oid = 16384");
                assert_eq!(cell(built, &asked, &[]).as_deref(), Ok(&*text), "{literal}");
            }
            assert_eq!(cell(built, "SELECT $1::text FROM pg_class WHERE oid = 16384", &[given(&text, Type::TEXT)]), Ok(text.clone()));
            let quoted = (crate::quoting::literal(&text).unwrap(), crate::quoting::identifier(&text).unwrap());
            let sql = format!("SELECT {} AS {}", quoted.0, quoted.1);
            let connection = rusqlite::Connection::open_in_memory().unwrap();
            let mut statement = connection.prepare(&sql).unwrap();
            assert_eq!(statement.column_name(0).unwrap(), text);
            assert_eq!(statement.query_row([], |row| row.get::<_, String>(0)).unwrap(), text);
        });
    }
}

#[test]
fn a_query_that_needs_too_much_memory_is_refused_and_names_the_limit() {
    let built = built();
    let many = format!("[{}1]", "1,".repeat(6_000_000));
    let deep = "replace(replace(replace(replace('aaaaaaaa', 'a', 'aaaaaaaaaaaaaaaa'), 'a', 'aaaaaaaaaaaaaaaa'), 'a', 'aaaaaaaaaaaaaaaa'), 'a', 'aaaaaaaaaaaaaaaa')";
    for (text, values, expected) in [
        (
            "SELECT cardinality($1::int[]), oid FROM pg_class LIMIT 1".to_string(),
            vec![given(&many, Type::INT4_ARRAY)],
            "256 MiB",
        ),
        ("SELECT cardinality($1), oid FROM pg_class LIMIT 1".to_string(), vec![given(&many, Type::TEXT)], "256 MiB"),
        (
            "SELECT array_to_string($1::text[], $2), oid FROM pg_class LIMIT 1".into(),
            vec![given(&many[6_000_000..], Type::TEXT), given("ab", Type::TEXT)],
            "256 MiB",
        ),
        (format!("SELECT replace({deep}, 'a', {deep}), oid FROM pg_class LIMIT 1"), vec![], "64 MiB"),
        (format!("SELECT array_agg({deep}), count(*) FROM pg_attribute a, pg_attribute b"), vec![], "MiB"),
        (
            format!("SELECT {deep} || a.attname || b.attname AS x FROM pg_attribute a, pg_attribute b ORDER BY x"),
            vec![],
            "256 MiB",
        ),
        (
            format!("SELECT count(DISTINCT {deep} || a.attname || b.attname) FROM pg_attribute a, pg_attribute b"),
            vec![],
            "256 MiB",
        ),
    ] {
        let refusal = answer(&built, &text, &values).unwrap_err();
        assert!(refusal.sqlstate == "53200" && refusal.message.contains(expected), "{text:.100}: {refusal:?}");
    }
    // What it had is there again.
    assert_eq!(
        cell(&built, "SELECT cardinality('{1,2}'::int[]), oid FROM pg_class WHERE oid = 16384", &[]).as_deref(),
        Ok("2|16384")
    );
}

#[test]
fn functions_end_when_their_query_is_cancelled() {
    let built = built();
    let long = format!("{0}'aaaaaaaa'{1}{1}{1}", "replace(".repeat(3), ", 'a', 'aaaaaaaaaaaaaaaa')");
    let digits = format!("replace({long}, 'a', '1357913579')");
    let same = format!("replace({long}, 'a', 'aaaaaaaa')");
    let random = "string_agg((a.oid * b.oid * c.oid)::text, '')";
    for text in [
        format!("SELECT {random} ~ '[0-9]*[13579][0-9]{{900}}[g-z]' FROM pg_class a, pg_class b, pg_class c"),
        format!("SELECT {random} ~ '\\b[0-9]*[13579][0-9]{{900}}[g-z]' FROM pg_class a, pg_class b, pg_class c"),
        format!(
            "SELECT count(*) FROM pg_attribute a, pg_attribute b, pg_attribute c WHERE {digits} || a.attname LIKE '%1%3%5%7%9%a%b%c%d%'"
        ),
        format!("SELECT {same} LIKE '%' || {long} || 'b%', oid FROM pg_class"),
        format!(
            "SELECT count(*) FROM pg_attribute a, pg_attribute b, pg_attribute c WHERE strpos({same} || a.attname, {same} || 'b') > 1"
        ),
        format!(
            "SELECT count(*) FROM pg_attribute a, pg_attribute b, pg_attribute c WHERE replace({same} || a.attname, 'x', '') = '2'"
        ),
        format!(
            "SELECT count(*) FROM pg_attribute a, pg_attribute b, pg_attribute c WHERE cardinality(('{{' || {digits} || a.attname || b.attname || '}}')::text[]) = 2"
        ),
        format!("SELECT count(*) FROM pg_attribute a, pg_attribute b WHERE length(upper({same} || a.attname)) = 2"),
        "SELECT count(*) FROM generate_series(1, 99999) a, generate_series(1, 99999) b".into(),
    ] {
        let rewritten = rewrite(&text).unwrap().unwrap();
        let cancel = Arc::new(Cancel::default());
        let limits = Limits::new(WHAT, Duration::from_secs(600), "ann", &Room::new(limits::ALL), &cancel);
        let asked = built.understand(&rewritten, &text).unwrap();
        cancel.begin();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                cancel.ask();
            });
            let begun = std::time::Instant::now();
            let ran = limits.enter(|| built.run(&asked, &[], &Format::UnifiedText));
            let refusal = ran.map(|rows| panic!("{text:.500}: {} rows", rows.len())).unwrap_err();
            assert_eq!(refusal.sqlstate, "57014", "{text:.100}: {refusal}");
            // Each of them would take minutes.
            assert!(begun.elapsed() < Duration::from_secs(20), "{text:.100}: {:?}", begun.elapsed());
        });
    }
}

#[tokio::test]
async fn a_user_leaves_turns_to_others() {
    let turns = Turns::new(3, 2);
    let soon = Duration::from_millis(20);
    let (one, _two) = (turns.take("ann").await.unwrap(), turns.take("ann").await.unwrap());
    assert!(tokio::time::timeout(soon, turns.take("ann")).await.is_err());
    let _three = turns.take("bob").await.unwrap();
    assert!(tokio::time::timeout(soon, turns.take("eve")).await.is_err());
    drop(one);
    turns.take("eve").await.unwrap();
    turns.take("ann").await.unwrap();
    assert!(turns.by_user.lock().unwrap().len() <= 3);
}

#[test]
fn what_holds_for_any_bytes_holds_for_these() {
    for text in ["it''s a\\' OR \"x\" = 'y' --", "a\0b", "oid = ANY('{1}'::int[])", "relname ~ '^a', count(*)", ""] {
        super::fuzz::catalog(text.as_bytes());
    }
}

#[test]
fn privileges_are_those_of_the_right_and_of_grants() {
    let built = built();
    let all = "SELECT has_table_privilege('t', 'SELECT'), has_table_privilege('public.t'::regclass, 'select, insert'),
        has_column_privilege(current_user, 16384, 'a', 'SELECT'), has_any_column_privilege('t', 'UPDATE'),
        has_table_privilege('t', 'SELECT WITH GRANT OPTION'), has_table_privilege('pg_class', 'SELECT'),
        has_function_privilege('p', 'EXECUTE'), has_function_privilege('ann', 'p(bigint, bigint)', 'execute'),
        has_table_privilege('bob', 't', 'SELECT')";
    let ask = |right, more: &str| {
        let grants = Grants::read(more.split_whitespace()).unwrap();
        *built.privileges.lock().unwrap() = Privileges { right, grants };
        answer(&built, all, &[]).unwrap().rsplit_once(": ").unwrap().1.to_string()
    };
    assert_eq!(ask(Right::Nothing, ""), "f|f|f|f|f|t|f|f|NULL");
    assert_eq!(ask(Right::Nothing, "select:u execute:q"), "f|f|f|f|f|t|f|f|NULL");
    assert_eq!(ask(Right::Nothing, "select:t"), "t|t|t|f|f|t|f|f|NULL");
    assert_eq!(ask(Right::Nothing, "execute:p"), "f|f|f|f|f|t|t|t|NULL");
    assert_eq!(ask(Right::Call, ""), "f|f|f|f|f|t|t|t|NULL");
    assert_eq!(ask(Right::Write, ""), "t|t|t|t|f|t|t|t|NULL");
    assert_eq!(ask(Right::Define, ""), "t|t|t|t|t|t|t|t|NULL");
    for (text, sqlstate) in [
        ("SELECT has_table_privilege('u', 'SELECT')", "42P01"),
        ("SELECT has_function_privilege('q', 'EXECUTE')", "42883"),
        ("SELECT has_table_privilege('t', 'EXECUTE')", "22023"),
        ("SELECT has_table_privilege('t')", "42883"),
    ] {
        assert_eq!(answer(&built, text, &[]).unwrap_err().sqlstate, sqlstate, "{text}");
    }
}
