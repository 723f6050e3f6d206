//! What the server says of itself, in the words of PostgreSQL's settings.

use crate::error::{Refusal, refuse};
use crate::session_settings::{DEFAULT_READ_ONLY, IN_STANDBY, READ_AFTER, READ_ONLY, RECORD};

/// The settings that clients are told when they connect, and that SHOW shows. The version is that of the PostgreSQL
/// whose protocol this is: drivers look at it to know what they may ask.
pub(crate) const LIST: &[(&str, &str)] = &[
    ("server_version", concat!("16.0 (Lockwork ", env!("CARGO_PKG_VERSION"), ")")),
    ("server_encoding", "UTF8"),
    ("client_encoding", "UTF8"),
    ("DateStyle", "ISO, YMD"),
    ("IntervalStyle", "postgres"),
    ("TimeZone", "UTC"),
    ("integer_datetimes", "on"),
    ("standard_conforming_strings", "on"),
    ("transaction_isolation", "serializable"),
    ("default_transaction_isolation", "serializable"),
    (DEFAULT_READ_ONLY, "off"),
    (IN_STANDBY, "off"),
    ("is_superuser", "off"),
    ("search_path", "public"),
    ("max_identifier_length", "63"),
];

/// Settings that only queries of the catalog show.
pub(crate) const MORE: &[(&str, &str)] = &[
    ("default_table_access_method", "heap"),
    ("max_index_keys", "32"),
    // asyncpg switches it off while it asks the catalog for types.
    ("jit", "off"),
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
    (READ_ONLY, "off"),
    (READ_AFTER, "0"),
    (RECORD, "0"),
];

/// Whether an encoding of texts is the one that there is, or says that there is none, as that of psql in the locale C.
pub(crate) fn is_utf8(encoding: &str) -> bool {
    let name: String = encoding.chars().filter(char::is_ascii_alphanumeric).collect();
    matches!(name.to_ascii_lowercase().as_str(), "utf8" | "unicode" | "default" | "sqlascii")
}

/// Refuses another one: texts in it would be read as something else.
pub(crate) fn other_encoding(encoding: &str) -> Refusal {
    refuse("0A000", format!("the encoding of clients is UTF8, and not '{encoding}'"))
        .hint("SET client_encoding TO 'UTF8', or PGCLIENTENCODING=UTF8")
}

/// What `version()` says.
pub(crate) fn version() -> String {
    format!("PostgreSQL 16.0 compatible: Lockwork {}", env!("CARGO_PKG_VERSION"))
}
