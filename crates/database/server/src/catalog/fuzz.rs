//! For fuzzing: texts and names come back from SQLite as they were, and no query makes it do anything but answer.

use lockwork::sql::Catalogue;

use super::{Built, LIMIT, WHAT, rewrite};
use crate::limits::{self, Limits, Room};
use crate::quoting::{identifier, literal};
use crate::session_settings::SessionNames;

/// Any bytes as a text, as a name, and as a query of the catalog: SQLite gives back the text and the name, also when
/// they stand in a query in each way in which PostgreSQL writes them, and a query that is understood only reads.
///
/// # Panics
/// When that does not hold.
pub fn catalog(bytes: &[u8]) {
    thread_local! {
        static BUILT: Built = {
            let mut built = Built::new(&(Catalogue::new(), Vec::new()), 0).expect("the catalog of a database without tables");
            built.be(&SessionNames { user: "ann".into(), database: "bank".into() }).expect("names");
            built
        };
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    BUILT.with(|built| {
        let room = Room::new(limits::ALL);
        let limits = Limits::new(WHAT, LIMIT, "ann", &room, &std::sync::Arc::default());
        limits.enter(|| {
            comes_back(built, text);
            only_reads(built, text);
        });
    });
}

/// The ways to write a text in PostgreSQL.
pub(super) fn written(text: &str) -> Vec<String> {
    let doubled = text.replace('\'', "''");
    let escape = |c: char| if matches!(c, '\'' | '\\') { format!("\\{c}") } else { c.to_string() };
    let escaped: String = text.chars().map(escape).collect();
    let mut all = vec![format!("'{doubled}'"), format!("N'{doubled}'"), format!("E'{escaped}'")];
    if !text.contains('\\') {
        all.push(format!("U&'{doubled}'"));
    }
    if !text.contains('$') {
        all.extend([format!("$${text}$$"), format!("$a${text}$a$")]);
    }
    all
}

/// The only value of a statement of SQLite.
fn value(built: &Built, sql: &str) -> Option<String> {
    built.connection.query_row(sql, [], |row| row.get(0)).ok()
}

fn comes_back(built: &Built, text: &str) {
    let (literal, identifier) = match (literal(text), identifier(text)) {
        (Ok(literal), Ok(identifier)) => (literal, identifier),
        (literal, identifier) => {
            assert!(text.contains('\0') && literal.is_err() && identifier.is_err(), "{text:?} is refused");
            return;
        }
    };
    assert_eq!(value(built, &format!("SELECT {literal}")).as_deref(), Some(text));
    let named = built.connection.prepare(&format!("SELECT 1 AS {identifier}")).expect("a name");
    assert_eq!(named.column_name(0).ok(), Some(text));
    for literal in written(text) {
        let asked = format!("SELECT {literal} AS x FROM pg_class LIMIT 1");
        // A text that is too long is none of the catalog's.
        if let Some(rewritten) = rewrite(&asked) {
            let sql = rewritten.map(|rewritten| rewritten.sql).expect("a text is understood");
            assert_eq!(value(built, &sql).as_deref(), Some(text), "{literal}");
        }
    }
}

fn only_reads(built: &Built, text: &str) {
    for text in
        [text.to_string(), format!("SELECT {text} FROM pg_class"), format!("SELECT oid FROM pg_class WHERE {text}")]
    {
        match rewrite(&text) {
            Some(Ok(rewritten)) => {
                assert!(!rewritten.sql.contains('\0'));
                if let Ok(prepared) = built.connection.prepare(&rewritten.sql) {
                    assert!(prepared.readonly(), "{text}");
                }
            }
            Some(Err(refusal)) => assert!(refusal.sqlstate.len() == 5 && !refusal.message.is_empty()),
            None => {}
        }
    }
}
