//! No text makes the compiler panic, and whatever it compiles passes the verifier: scripts that are right, with words
//! taken out, doubled, exchanged and replaced.

use lockwork_sql::fuzz::script;
use proptest::prelude::*;

const SCRIPTS: [&str; 7] = [
    include_str!("../../../dev/workload/sql/smallbank.sql"),
    include_str!("../../../dev/workload/sql/tatp.sql"),
    concat!(
        include_str!("../../../dev/workload/sql/tpcc_schema.sql"),
        include_str!("../../../dev/workload/sql/tpcc_new_order.sql"),
        include_str!("../../../dev/workload/sql/tpcc_delivery.sql")
    ),
    concat!(
        include_str!("../../../dev/workload/sql/tpcc_schema.sql"),
        include_str!("../../../dev/workload/sql/tpcc_payment_by_name.sql"),
        include_str!("../../../dev/workload/sql/tpcc_order_status.sql"),
        include_str!("../../../dev/workload/sql/tpcc_stock_level.sql")
    ),
    include_str!("../../../../fuzz/seeds/sql/statements.sql"),
    include_str!("../../../../fuzz/seeds/sql/procedures.sql"),
    include_str!("../../../../fuzz/seeds/sql/definitions.sql"),
];

const WORDS: [&str; 40] = [
    "(",
    ")",
    ",",
    ";",
    "0",
    "1",
    "-1",
    "9223372036854775807",
    "1.5",
    "'x'",
    "X'00'",
    "TRUE",
    "FOUND",
    "NOT",
    "AND",
    "OR",
    "+",
    "-",
    "*",
    "/",
    "=",
    "<",
    "..",
    ":=",
    ":",
    "||",
    "id",
    "balance",
    "accounts",
    "orders",
    "line",
    "SELECT",
    "FROM",
    "WHERE",
    "LIMIT",
    "BIGINT",
    "INTO",
    "END",
    "CASE",
    "[",
];

fn words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = |c: char| c.is_alphanumeric() || c == '_';
        let length = if word(first) { rest.find(|c| !word(c)).unwrap_or(rest.len()) } else { first.len_utf8() };
        let (one, more) = rest.split_at(length);
        words.push(one);
        rest = more;
    }
    words
}

#[test]
fn the_scripts_themselves_compile() {
    for text in SCRIPTS {
        let error = script(text.as_bytes());
        assert!(error.is_none(), "{}", error.unwrap());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_scripts_are_refused_or_sound(
        which in 0..SCRIPTS.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..5_u8, 0..WORDS.len()), 1..6),
    ) {
        let mut text = words(SCRIPTS[which]);
        for (at, what, word) in changes {
            let at = at.index(text.len());
            match what {
                0 => drop(text.remove(at)),
                1 => text.insert(at, text[at]),
                2 => text.insert(at, WORDS[word]),
                3 => text[at] = WORDS[word],
                _ => {
                    let other = (at * 7 + word) % text.len();
                    text.swap(at, other);
                }
            }
        }
        script(text.concat().as_bytes());
    }

    #[test]
    fn any_text_is_refused_or_sound(text in "\\PC{0,200}") {
        script(text.as_bytes());
    }
}

#[test]
fn what_is_deep_or_long_is_refused() {
    for text in [
        "(".repeat(10_000),
        format!("CREATE PROCEDURE p(OUT x BIGINT) AS BEGIN x := {}1{}; END;", "(".repeat(5000), ")".repeat(5000)),
        format!("CREATE PROCEDURE p(OUT x BIGINT) AS BEGIN x := 1{}; END;", " + 1".repeat(50_000)),
        format!("CREATE PROCEDURE p(OUT x BIGINT) AS BEGIN x := {}1; END;", "- ".repeat(5000)),
        format!("CREATE PROCEDURE p(x BOOLEAN) AS BEGIN {} END;", "IF x THEN ".repeat(5000)),
        format!(
            "CREATE PROCEDURE p(OUT x BOOLEAN) AS BEGIN x := {}TRUE{}; END;",
            "(".repeat(40),
            " IN (TRUE, FALSE))".repeat(40)
        ),
        format!(
            "CREATE PROCEDURE p() AS DECLARE {} BEGIN END;",
            ["a", "b", "c"].map(|v| format!("{v} BIGINT[60000];")).concat()
        ),
        "CREATE PROCEDURE p(x CHAR(65535)[8000]) AS BEGIN END;".into(),
    ] {
        let error = script(text.as_bytes()).unwrap();
        assert!(["54001", "42601"].contains(&error.sqlstate), "{error}");
    }
}
