//! Functions of texts, for the catalog and for queries, in place of those of SQLite, which look at no clock: some of
//! them take the square of the length of a text.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use regex_automata::Input;
use regex_automata::hybrid::dfa::{self, DFA};
use regex_automata::nfa::thompson::pikevm::PikeVM;
use regex_automata::nfa::thompson::{self, NFA, WhichCaptures};
use regex_automata::util::syntax;
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Error, Result};

use crate::limits::{self, Reserved, spend};
use crate::sqlite::{self, MAX_VALUE};

/// The most bytes of a regular expression, and of what is made of it.
const MAX_PATTERN: usize = 16 << 10;
const MAX_COMPILED: usize = 512 << 10;
/// The most bytes of a text that a regular expression is looked for in.
const MAX_HAYSTACK: usize = 16 << 20;
/// Bytes of the states of a regular expression that are kept.
const STATES: usize = 256 << 10;
/// The most states times bytes where a regular expression cannot be looked for piece by piece.
const MAX_WHOLE: usize = 1 << 25;
/// Bytes of a text between two looks at the clock.
const PIECE: usize = 256;

/// An error with its SQLSTATE.
fn wrong(sqlstate: &str, message: impl std::fmt::Display) -> Error {
    Error::UserFunctionError(format!("{sqlstate}: {message}").into())
}

/// An argument as text; nothing for NULL.
pub(crate) fn text(context: &Context<'_>, at: usize) -> Option<String> {
    if at >= context.len() {
        return None;
    }
    match context.get_raw(at) {
        ValueRef::Text(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        ValueRef::Integer(number) => Some(number.to_string()),
        ValueRef::Real(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Counts a value that is about to be made.
///
/// # Errors
/// It is too long, or there is no memory for it.
pub(crate) fn made(bytes: usize) -> Result<Reserved> {
    if bytes > MAX_VALUE {
        return Err(wrong(
            "53200",
            format!("a value would have {bytes} bytes, and {} MiB are possible", MAX_VALUE >> 20),
        ));
    }
    spend(bytes)?;
    limits::reserve(bytes)
}

/// What a pattern of LIKE consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Char(char),
    One,
    Any,
}

/// Reads a pattern of LIKE; nothing if it ends with its escape character. No escape character is an empty text.
fn parts(pattern: &str, escape: &str, is_folded: bool) -> Option<Vec<Part>> {
    let mut made = Vec::new();
    let mut chars = pattern.chars();
    while let Some(next) = chars.next() {
        let c = match next {
            c if escape.chars().eq([c]) => chars.next()?,
            '%' => {
                if made.last() != Some(&Part::Any) {
                    made.push(Part::Any);
                }
                continue;
            }
            '_' => {
                made.push(Part::One);
                continue;
            }
            c => c,
        };
        match is_folded {
            true => made.extend(c.to_lowercase().map(Part::Char)),
            false => made.push(Part::Char(c)),
        }
    }
    Some(made)
}

/// Whether a text is like a pattern.
fn is_like(text: &[char], pattern: &[Part]) -> Result<bool> {
    let (mut at, mut part) = (0, 0);
    // Where it goes on when the parts behind the last `%` do not fit: the part, and the text.
    let mut again = None;
    let mut steps = 0;
    while at < text.len() {
        steps += 1;
        if steps == PIECE {
            spend(steps * 4)?;
            steps = 0;
        }
        match pattern.get(part) {
            Some(Part::Any) => {
                again = Some((part + 1, at));
                part += 1;
            }
            Some(Part::One) => (at, part) = (at + 1, part + 1),
            Some(Part::Char(c)) if *c == text[at] => (at, part) = (at + 1, part + 1),
            _ => {
                let Some((behind, from)) = again else { return Ok(false) };
                again = Some((behind, from + 1));
                (at, part) = (from + 1, behind);
            }
        }
    }
    Ok(pattern[part..].iter().all(|part| *part == Part::Any))
}

/// `lw_like(text, pattern, escape, whether case is of no matter)`.
fn like(context: &Context<'_>) -> Result<Value> {
    let is_folded = context.get_raw(3) != ValueRef::Integer(0);
    let (Some(pattern), Some(escape)) = (text(context, 1), text(context, 2)) else { return Ok(Value::Null) };
    let _parts = limits::reserve(pattern.len() * size_of::<Part>() * 3)?;
    let parts = parts(&pattern, &escape, is_folded)
        .ok_or_else(|| wrong("22025", "LIKE pattern must not end with escape character"))?;
    let Some(text) = text(context, 0) else { return Ok(Value::Null) };
    let _chars = limits::reserve(text.len() * size_of::<char>() * 3)?;
    let chars: Vec<char> =
        if is_folded { text.chars().flat_map(char::to_lowercase).collect() } else { text.chars().collect() };
    Ok(Value::Integer(is_like(&chars, &parts)?.into()))
}

/// `lw_replace(text, from, to)`.
fn replace(context: &Context<'_>) -> Result<Value> {
    let (Some(all), Some(from), Some(to)) = (text(context, 0), text(context, 1), text(context, 2)) else {
        return Ok(Value::Null);
    };
    if from.is_empty() {
        return Ok(Value::Text(all));
    }
    let count = all.matches(&from).count();
    let bytes = (all.len() - count * from.len()).saturating_add(count.saturating_mul(to.len()));
    let _made = made(bytes)?;
    Ok(Value::Text(all.replace(&from, &to)))
}

/// `lw_position(text, part)`: in characters, from 1; 0 if it is not there.
fn position(context: &Context<'_>) -> Result<Value> {
    let (Some(all), Some(part)) = (text(context, 0), text(context, 1)) else { return Ok(Value::Null) };
    let at = all.find(&part).map_or(0, |at| all[..at].chars().count() + 1);
    Ok(Value::Integer(at as i64))
}

/// `lw_trim(text, characters)` and its like, from the left, the right, or both.
fn trim(context: &Context<'_>, is_left: bool, is_right: bool) -> Result<Value> {
    let Some(all) = text(context, 0) else { return Ok(Value::Null) };
    let characters = if context.len() > 1 { text(context, 1) } else { Some(" ".into()) };
    let Some(characters) = characters else { return Ok(Value::Null) };
    let _set = limits::reserve(characters.len() * 16)?;
    let set: HashSet<char> = characters.chars().collect();
    let mut left = all.as_str();
    if is_left {
        left = left.trim_start_matches(|c| set.contains(&c));
    }
    if is_right {
        left = left.trim_end_matches(|c| set.contains(&c));
    }
    Ok(Value::Text(left.into()))
}

/// A regular expression, which is looked for byte by byte.
struct Regex {
    nfa: NFA,
    dfa: DFA,
    cache: Mutex<dfa::Cache>,
    _memory: Reserved,
}

impl Regex {
    fn new(pattern: &str, ignores_case: bool) -> Result<Self> {
        if pattern.len() > MAX_PATTERN {
            let message = format!("a regular expression has {} bytes, and {MAX_PATTERN} are possible", pattern.len());
            return Err(wrong("54000", message));
        }
        spend(MAX_COMPILED)?;
        let compiling = limits::reserve(4 * MAX_COMPILED)?;
        let refused = |error: &dyn std::fmt::Display| wrong("2201B", error);
        let nfa = thompson::Compiler::new()
            .syntax(syntax::Config::new().case_insensitive(ignores_case))
            .configure(thompson::Config::new().nfa_size_limit(Some(MAX_COMPILED)).which_captures(WhichCaptures::None))
            .build(pattern)
            .map_err(|error| match error.size_limit() {
                Some(most) => wrong("54000", format!("a regular expression is compiled to more than {most} bytes")),
                None => refused(&explained(&error)),
            })?;
        let config =
            dfa::Config::new().unicode_word_boundary(true).cache_capacity(STATES).skip_cache_capacity_check(true);
        let dfa = dfa::Builder::new().configure(config).build_from_nfa(nfa.clone()).map_err(|error| refused(&error))?;
        drop(compiling);
        let memory = limits::reserve(4 * nfa.memory_usage() + 2 * STATES)?;
        let cache = Mutex::new(dfa.create_cache());
        Ok(Self { nfa, dfa, cache, _memory: memory })
    }

    fn is_match(&self, text: &str) -> Result<bool> {
        if text.len() > MAX_HAYSTACK {
            let most = MAX_HAYSTACK >> 20;
            return Err(wrong("54000", format!("a regular expression is looked for in {most} MiB of text at most")));
        }
        let cache = &mut *self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let (dfa, bytes) = (&self.dfa, text.as_bytes());
        let Ok(mut state) = dfa.start_state_forward(cache, &Input::new(text)) else { return self.whole(text) };
        for piece in bytes.chunks(PIECE) {
            // Each byte may make a new state of all those of the expression.
            spend(piece.len() * (16 + self.nfa.states().len()))?;
            for &byte in piece {
                let Ok(next) = dfa.next_state(cache, state, byte) else { return self.whole(text) };
                state = next;
                if state.is_tagged() {
                    if state.is_match() {
                        return Ok(true);
                    }
                    if state.is_dead() {
                        return Ok(false);
                    }
                    if state.is_quit() {
                        return self.whole(text);
                    }
                }
            }
        }
        match dfa.next_eoi_state(cache, state) {
            Ok(last) if last.is_quit() => self.whole(text),
            Ok(last) => Ok(last.is_match()),
            Err(_) => self.whole(text),
        }
    }

    /// As [`Self::is_match`], at once: for word boundaries beside characters outside of ASCII.
    fn whole(&self, text: &str) -> Result<bool> {
        let work = self.nfa.states().len().saturating_mul(text.len());
        if work > MAX_WHOLE {
            let message = "a regular expression with word boundaries is looked for in too long a text";
            return Err(wrong("54000", message));
        }
        spend(work)?;
        let vm = PikeVM::builder().build_from_nfa(self.nfa.clone()).map_err(|error| wrong("2201B", error))?;
        let _cache = limits::reserve(64 * self.nfa.states().len())?;
        Ok(vm.is_match(&mut vm.create_cache(), text))
    }
}

/// The reason that stands behind an error.
fn explained(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), explained)
}

/// `pg_regex(text, pattern, whether case is of no matter)`.
fn regex(context: &Context<'_>) -> Result<Value> {
    let (Some(all), Some(pattern)) = (text(context, 0), text(context, 1)) else { return Ok(Value::Null) };
    let ignores_case = context.get_raw(2) == ValueRef::Integer(1);
    let compile = |_: ValueRef<'_>| -> std::result::Result<Regex, Box<dyn std::error::Error + Send + Sync>> {
        Regex::new(&pattern, ignores_case).map_err(|error| sqlite::message(&error).into())
    };
    let regex: Arc<Regex> = context.get_or_create_aux(1, compile)?;
    Ok(Value::Integer(regex.is_match(&all)?.into()))
}

/// Makes the functions known to a database.
pub(crate) fn register(connection: &Connection) -> Result<()> {
    let flags = FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_INNOCUOUS;
    sqlite::function(connection, "lw_like", 4, flags, like)?;
    sqlite::function(connection, "lw_replace", 3, flags, replace)?;
    sqlite::function(connection, "lw_position", 2, flags, position)?;
    sqlite::function(connection, "pg_regex", 3, flags, regex)?;
    for count in [1, 2] {
        sqlite::function(connection, "lw_trim", count, flags, |context| trim(context, true, true))?;
        sqlite::function(connection, "lw_ltrim", count, flags, |context| trim(context, true, false))?;
        sqlite::function(connection, "lw_rtrim", count, flags, |context| trim(context, false, true))?;
    }
    let changed = |change: fn(&str) -> String| {
        move |context: &Context<'_>| Ok(text(context, 0).map_or(Value::Null, |text| Value::Text(change(&text))))
    };
    sqlite::function(connection, "lw_lower", 1, flags, changed(str::to_lowercase))?;
    sqlite::function(connection, "lw_upper", 1, flags, changed(str::to_uppercase))?;
    sqlite::function(connection, "lw_length", 1, flags, |context| {
        Ok(text(context, 0).map_or(Value::Null, |text| Value::Integer(text.chars().count() as i64)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_like_are_those_of_postgresql() {
        for (text, pattern, escape, expected) in [
            ("", "", "\\", Some(true)),
            ("", "%%", "\\", Some(true)),
            ("abc", "a%", "\\", Some(true)),
            ("abc", "a_c", "\\", Some(true)),
            ("abc", "a_", "\\", Some(false)),
            ("a%c", "a\\%c", "\\", Some(true)),
            ("abc", "a\\%c", "\\", Some(false)),
            ("äbc", "_b%", "\\", Some(true)),
            ("aabab", "%ab", "\\", Some(true)),
            ("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "%a%a%a%a%a%a%a%a%a%a%a%a%b", "\\", Some(false)),
            ("a\\", "a\\\\", "\\", Some(true)),
            ("a", "a\\", "\\", None),
            ("%\\", "!%\\", "!", Some(true)),
            ("a", "a!", "!", None),
            ("a\\b", "a\\b", "", Some(true)),
        ] {
            let text: Vec<char> = text.chars().collect();
            let answered = parts(pattern, escape, false).map(|parts| is_like(&text, &parts).unwrap());
            assert_eq!(answered, expected, "{text:?} {pattern} {escape}");
        }
    }

    #[test]
    fn regular_expressions_are_found_piece_by_piece() {
        let long = "x".repeat(3 * PIECE);
        for (pattern, text, expected) in [
            ("^(t)$", "t", true),
            ("^(t)$", "tt", false),
            ("", "", true),
            ("b$", "ab", true),
            ("xy", &*format!("{long}y{long}"), true),
            ("x{300}y", &*format!("{long}y"), true),
            ("yx*$", &*format!("y{long}"), true),
            ("^x+$", &*format!("{long}y"), false),
            ("\\bx\\b", "ä x", true),
            ("\\bx\\b", "äx", false),
            ("[äö]", "xö", true),
            ("ÄÖ", "xäö", false),
        ] {
            assert_eq!(Regex::new(pattern, false).unwrap().is_match(text).unwrap(), expected, "{pattern}");
        }
        assert!(Regex::new("ÄÖ", true).unwrap().is_match("xäö").unwrap());
        for (pattern, sqlstate) in
            [("(", "2201B"), ("(?:[0-9]{500}){500}", "54000"), (&*"x".repeat(MAX_PATTERN + 1), "54000")]
        {
            let error = Regex::new(pattern, false).map(drop).unwrap_err().to_string();
            assert!(error.contains(sqlstate), "{error}");
        }
        let error = Regex::new("\\b.{900}x", false).unwrap().is_match(&"ä".repeat(1 << 20)).unwrap_err();
        assert!(error.to_string().contains("54000"), "{error}");
    }
}
