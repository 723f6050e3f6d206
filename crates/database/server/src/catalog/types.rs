//! The types of PostgreSQL: what they are called, and their numbers.

use std::sync::LazyLock;

use pgwire::api::Type;

/// A row of `types.txt`.
pub(crate) struct Row {
    pub(super) oid: i64,
    pub(crate) name: &'static str,
    pub(super) length: i64,
    pub(super) by_value: bool,
    pub(super) kind: &'static str,
    pub(super) category: &'static str,
    pub(super) preferred: bool,
    /// The type of its elements, 0 for none.
    pub(super) element: i64,
    /// The type of arrays of it, 0 for none.
    pub(super) array: i64,
    pub(super) alignment: &'static str,
    pub(super) storage: &'static str,
    pub(super) collation: i64,
    /// What SQL calls it.
    pub(super) sql: &'static str,
}

/// All types, by number.
pub(super) static LIST: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let row = |line: &'static str| {
        let mut words = line.split('|');
        let mut word = || words.next().unwrap_or_default();
        let number = |word: &str| word.parse::<i64>().unwrap_or_default();
        Row {
            oid: number(word()),
            name: word(),
            length: number(word()),
            by_value: word() == "1",
            kind: word(),
            category: word(),
            preferred: word() == "1",
            element: number(word()),
            array: number(word()),
            alignment: word(),
            storage: word(),
            collation: number(word()),
            sql: word(),
        }
    };
    include_str!("types.txt").lines().filter(|line| !line.starts_with('#')).map(row).collect()
});

pub(super) fn of_oid(oid: i64) -> Option<&'static Row> {
    LIST.binary_search_by_key(&oid, |row| row.oid).ok().map(|at| &LIST[at])
}

/// The type that has this name, in the words of the catalog or of SQL, in any schema and with any modifier.
pub(crate) fn named(text: &str) -> Option<&'static Row> {
    let text = text.trim().to_ascii_lowercase();
    let text = text.strip_prefix("pg_catalog.").unwrap_or(&text);
    let (text, is_array) = match text.strip_suffix("[]") {
        Some(element) => (element, true),
        None => (text, false),
    };
    // "varchar(10)" and "timestamp(6) without time zone", without what is in parentheses.
    let (before, behind) = match (text.find('('), text.rfind(')')) {
        (Some(from), Some(to)) if from < to => (&text[..from], &text[to + 1..]),
        _ => (text, ""),
    };
    let plain = format!("{}{behind}", before.trim_end());
    let bare = if text == "\"char\"" { "\"char\"" } else { plain.trim_matches('"') };
    let name = match bare {
        "\"char\"" => "char",
        "int" | "integer" => "int4",
        "char" | "character" => "bpchar",
        "decimal" => "numeric",
        "float" => "float8",
        "timestamp" | "timestamp without time zone" => "timestamp",
        other => other,
    };
    let row = LIST.iter().find(|row| row.name == name || row.sql == name)?;
    if is_array { of_oid(row.array) } else { Some(row) }
}

/// The type of the protocol; text for one that is not known.
pub(super) fn of_name(name: &str) -> Type {
    let row = LIST.iter().find(|row| row.name == name);
    row.and_then(|row| Type::from_oid(row.oid as u32)).unwrap_or(Type::TEXT)
}

/// What SQL calls a type with a modifier.
pub(super) fn format(oid: i64, modifier: i64) -> String {
    let Some(row) = of_oid(oid) else { return if oid == 0 { "-".into() } else { "???".into() } };
    if row.category == "A" && row.name.starts_with('_') {
        return format!("{}[]", format(row.element, modifier));
    }
    match row.name {
        "varchar" | "bpchar" if modifier >= 4 => format!("{}({})", row.sql, modifier - 4),
        "numeric" if modifier >= 4 => format!("numeric({},{})", (modifier - 4) >> 16, (modifier - 4) & 0xffff),
        _ => row.sql.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_types_and_back() {
        for (text, oid, sql) in [
            ("int4", 23, "integer"),
            ("INTEGER", 23, "integer"),
            ("pg_catalog.int8", 20, "bigint"),
            ("varchar(10)", 1043, "character varying"),
            ("character varying", 1043, "character varying"),
            ("\"char\"", 18, "\"char\""),
            ("char(3)", 1042, "character"),
            ("text[]", 1009, "text[]"),
            ("timestamp(6) without time zone", 1114, "timestamp without time zone"),
            ("_int2", 1005, "smallint[]"),
        ] {
            let row = named(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((row.oid, format(row.oid, -1)), (oid, sql.to_string()), "{text}");
        }
        assert!(named("hstore").is_none() && named("").is_none() && named("[]").is_none());
        assert_eq!(format(1700, (12 << 16 | 2) + 4), "numeric(12,2)");
        assert_eq!(format(1043, 14), "character varying(10)");
        assert!(LIST.is_sorted_by_key(|row| row.oid));
        assert!(LIST.iter().all(|row| Type::from_oid(row.oid as u32).is_some_and(|ty| ty.name() == row.name)));
    }
}
