//! Queries of the catalog, as clients send them.

use lockwork_database::EngineKind;
use lockwork_database::Lockwork;

use super::*;

const SQL: &str = "
    CREATE TABLE t (a INTEGER NOT NULL, b SMALLINT NOT NULL, name VARCHAR(10) NOT NULL DEFAULT 'it''s',
        at TIMESTAMP NOT NULL, PRIMARY KEY (a, b)) WITH (ordered = true);
    CREATE INDEX t_name ON t (name, a);
    CREATE PROCEDURE p(x BIGINT, INOUT y BIGINT, OUT z DECIMAL(12, 2)) AS BEGIN y := x; z := 1.5; END;";

fn who() -> Who {
    Who { user: "ann".into(), database: "bank".into() }
}

fn built() -> Built {
    let mut database = Lockwork::open_in_memory(EngineKind::Deterministic).unwrap();
    database.sql(SQL).unwrap();
    let built = Built::new(&(database.sql_catalogue().clone(), database.procedure_definitions()), 1).unwrap();
    built.be(&who()).unwrap();
    built
}

/// Names and types of the columns, and the rows as text.
fn answer(built: &Built, text: &str, values: &[Given]) -> Result<String, Refusal> {
    let rewritten = rewrite(text).unwrap_or_else(|| panic!("not of the catalog: {text}"))?;
    built.start(&Arc::default());
    let asked = built.understand(&rewritten, text)?;
    let rows = built.run(&asked, values, &Format::UnifiedText)?;
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
    let word = |word: &str| Given::Text(word.into());
    let values = [Given::Integer(16_384), word(r#"["t","u"]"#), word("r"), word("v")];
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
        ("SELECT relname ~ '(' FROM pg_class", "22023", 0),
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
    let mut state = seed;
    let mut next = |most: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % most
    };
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
            built.start(&Arc::default());
            if let Ok(asked) = built.understand(&rewritten, &text) {
                drop(built.run(&asked, &[], &Format::UnifiedText));
            }
        }
    }
}
