//! GRANT and REVOKE as they are written.

use sqlparser::tokenizer::Token;

use super::Privilege;
use crate::error::{Refusal, refuse};
use crate::words::{self, Words, begins_with};

/// A GRANT or REVOKE that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) text: String,
    pub(crate) is_grant: bool,
    pub(crate) privilege: Privilege,
    /// The procedures or tables.
    pub(crate) names: Vec<String>,
    pub(crate) users: Vec<String>,
}

impl Change {
    /// What it is called when it is done.
    pub(crate) fn tag(&self) -> &'static str {
        if self.is_grant { "GRANT" } else { "REVOKE" }
    }
}

const SHAPE: &str = "write GRANT EXECUTE ON PROCEDURE p TO user, GRANT SELECT ON TABLE t TO user, or REVOKE .. FROM \
                     user; lockwork user FILE NAME --right gives a right for all of them";

/// Whether a text begins as GRANT or REVOKE does.
pub(crate) fn is_change(text: &str) -> bool {
    begins_with(text, "grant") || begins_with(text, "revoke")
}

fn unsupported(what: &str) -> Refusal {
    refuse("0A000", format!("{what} is not supported")).hint(SHAPE)
}

/// Reads a text that [`is_change`].
pub(crate) fn read(text: &str) -> Result<Change, Refusal> {
    let mut words = Words::new(words::tokens(text, SHAPE)?, SHAPE);
    let is_grant = words.word().as_deref() == Some("grant");
    if !is_grant && words.eat_word("grant") {
        return Err(unsupported("GRANT OPTION FOR"));
    }
    let privilege = privilege(&mut words)?;
    let names = match privilege {
        Privilege::Execute => procedures(&mut words)?,
        Privilege::Select => tables(&mut words)?,
    };
    let before = if is_grant { "to" } else { "from" };
    if !words.eat_word(before) {
        return Err(words.wrong(format!("{} is expected before the users", before.to_ascii_uppercase())));
    }
    let users = list(&mut words, user)?;
    match words.word().as_deref() {
        None => {}
        // Nobody can pass a grant on, so no other grant depends on one.
        Some("cascade" | "restrict") if !is_grant => {}
        Some("with") if is_grant => return Err(unsupported("WITH GRANT OPTION")),
        Some("granted") => return Err(unsupported("GRANTED BY")),
        Some(other) => return Err(words.wrong(format!("'{other}' is not expected behind the users"))),
    }
    match words.tokens.next() {
        None | Some(Token::EOF | Token::SemiColon) => {}
        Some(other) => return Err(words.wrong(format!("'{other}' is not expected behind the users"))),
    }
    Ok(Change { text: text.into(), is_grant, privilege, names, users })
}

/// Reads the privilege and the ON behind it.
fn privilege(words: &mut Words) -> Result<Privilege, Refusal> {
    let word = words.name()?;
    let privilege = match &*word {
        "execute" => Privilege::Execute,
        "select" => Privilege::Select,
        "all" => return Err(unsupported("a grant of ALL")),
        "insert" | "update" | "delete" | "truncate" | "references" | "trigger" | "maintain" | "usage" | "create"
        | "connect" | "temporary" | "temp" | "set" => {
            return Err(unsupported(&format!("a grant of {}", word.to_ascii_uppercase())));
        }
        _ => return Err(unsupported("a grant of a role")),
    };
    if words.tokens.peek() == Some(&Token::LParen) {
        return Err(unsupported("a grant of columns"));
    }
    if words.eat(&Token::Comma) {
        return Err(unsupported("a grant of several privileges in one statement"));
    }
    match words.eat_word("on") {
        true => Ok(privilege),
        false => Err(words.wrong("ON is expected behind the privilege")),
    }
}

fn list(words: &mut Words, mut one: impl FnMut(&mut Words) -> Result<String, Refusal>) -> Result<Vec<String>, Refusal> {
    let mut all = vec![one(words)?];
    while words.eat(&Token::Comma) {
        all.push(one(words)?);
    }
    Ok(all)
}

/// Reads the kind of a thing and its names. A name tells a procedure: there is one of each name, so its parameters are
/// passed over.
fn procedures(words: &mut Words) -> Result<Vec<String>, Refusal> {
    match words.word().as_deref() {
        Some("procedure" | "routine") => {}
        Some("all") => return Err(unsupported("a grant on ALL PROCEDURES")),
        Some("function") => {
            let refusal = refuse("0A000", "a grant on a FUNCTION is not supported: there are procedures only");
            return Err(refusal.hint(SHAPE));
        }
        _ => return Err(words.wrong("EXECUTE is granted ON PROCEDURE")),
    }
    list(words, |words| {
        let name = words.qualified_name()?;
        let mut depth = 0;
        while depth > 0 || words.tokens.peek() == Some(&Token::LParen) {
            match words.tokens.next() {
                Some(Token::LParen) => depth += 1,
                Some(Token::RParen) => depth -= 1,
                None | Some(Token::EOF) => {
                    return Err(words.wrong("the parenthesis behind the procedure is not closed"));
                }
                Some(_) => {}
            }
            if depth == 0 {
                break;
            }
        }
        Ok(name)
    })
}

fn tables(words: &mut Words) -> Result<Vec<String>, Refusal> {
    const OTHERS: [&str; 14] = [
        "all",
        "database",
        "domain",
        "foreign",
        "function",
        "language",
        "large",
        "parameter",
        "procedure",
        "routine",
        "schema",
        "sequence",
        "tablespace",
        "type",
    ];
    if !words.eat_word("table")
        && let Some(other) = OTHERS.into_iter().find(|other| words.eat_word(other))
    {
        return Err(unsupported(&format!("a grant of SELECT ON {}", other.to_ascii_uppercase())));
    }
    list(words, Words::qualified_name)
}

fn user(words: &mut Words) -> Result<String, Refusal> {
    const ROLES: [&str; 5] = ["public", "group", "current_role", "current_user", "session_user"];
    match ROLES.into_iter().find(|role| words.eat_word(role)) {
        Some(role) => Err(unsupported(&format!("a grant to {}", role.to_ascii_uppercase()))),
        None => words.name(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_name_procedures_or_tables_and_users() {
        let (execute, select) = (Privilege::Execute, Privilege::Select);
        for (text, is_grant, privilege, names, users) in [
            ("GRANT EXECUTE ON PROCEDURE p TO bob", true, execute, &["p"][..], &["bob"][..]),
            (
                "grant execute on routine Public.P(bigint, numeric(12, 2)), q() to Bob, \"Ann-1\";",
                true,
                execute,
                &["p", "q"],
                &["bob", "Ann-1"],
            ),
            ("REVOKE EXECUTE ON PROCEDURE \"P q\" FROM bob RESTRICT", false, execute, &["P q"], &["bob"]),
            ("GRANT SELECT ON t TO bob", true, select, &["t"], &["bob"]),
            ("GRANT SELECT ON TABLE t, \"U\" TO bob", true, select, &["t", "U"], &["bob"]),
            ("REVOKE SELECT ON public.t FROM bob, ann CASCADE", false, select, &["t"], &["bob", "ann"]),
        ] {
            assert!(is_change(text));
            let [names, users] = [names, users].map(|all| all.iter().map(ToString::to_string).collect());
            assert_eq!(read(text), Ok(Change { text: text.into(), is_grant, privilege, names, users }), "{text}");
        }
        assert!(!is_change("granted") && !is_change("grant"));
    }

    #[test]
    fn other_grants_are_refused_with_what_there_is() {
        for (text, sqlstate, part) in [
            ("GRANT ALL PRIVILEGES ON t TO bob", "0A000", "a grant of ALL "),
            ("GRANT ALL ON PROCEDURE p TO bob", "0A000", "a grant of ALL "),
            ("GRANT INSERT ON t TO bob", "0A000", "a grant of INSERT"),
            ("GRANT SELECT, INSERT ON t TO bob", "0A000", "several privileges"),
            ("GRANT SELECT (a) ON t TO bob", "0A000", "a grant of columns"),
            ("GRANT USAGE ON SCHEMA public TO bob", "0A000", "a grant of USAGE"),
            ("GRANT SELECT ON ALL TABLES IN SCHEMA public TO bob", "0A000", "SELECT ON ALL"),
            ("GRANT SELECT ON SEQUENCE s TO bob", "0A000", "SELECT ON SEQUENCE"),
            ("GRANT EXECUTE ON ALL PROCEDURES IN SCHEMA public TO bob", "0A000", "ALL PROCEDURES"),
            ("GRANT EXECUTE ON FUNCTION p TO bob", "0A000", "FUNCTION"),
            ("GRANT EXECUTE ON PROCEDURE p TO bob WITH GRANT OPTION", "0A000", "WITH GRANT OPTION"),
            ("REVOKE GRANT OPTION FOR SELECT ON t FROM bob", "0A000", "GRANT OPTION FOR"),
            ("GRANT SELECT ON t TO bob GRANTED BY ann", "0A000", "GRANTED BY"),
            ("GRANT SELECT ON t TO PUBLIC", "0A000", "a grant to PUBLIC"),
            ("GRANT SELECT ON t TO ann, CURRENT_USER", "0A000", "a grant to CURRENT_USER"),
            ("GRANT writers TO bob", "0A000", "a grant of a role"),
            ("GRANT SELECT ON other.t TO bob", "3F000", "no schema 'other'"),
            ("GRANT EXECUTE ON p TO bob", "42601", "ON PROCEDURE"),
            ("GRANT EXECUTE ON PROCEDURE p( TO bob", "42601", "not closed"),
            ("GRANT SELECT ON t FROM bob", "42601", "TO is expected"),
            ("REVOKE SELECT ON t TO bob", "42601", "FROM is expected"),
            ("GRANT SELECT t TO bob", "42601", "ON is expected"),
            ("GRANT SELECT ON t TO", "42601", "a name is expected"),
            ("GRANT SELECT ON t TO bob ann", "42601", "'ann' is not expected"),
            ("GRANT SELECT ON t TO bob RESTRICT", "42601", "'restrict' is not expected"),
            ("GRANT SELECT ON t TO 'bob'", "42601", "a name is expected"),
            ("GRANT \"unended", "42601", "42601"),
        ] {
            let refusal = read(text).unwrap_err();
            assert!(refusal.sqlstate == sqlstate && refusal.to_string().contains(part), "{text}: {refusal}");
            assert!(sqlstate == "3F000" || refusal.hint.contains("GRANT SELECT ON TABLE"), "{text}: {}", refusal.hint);
        }
    }
}
