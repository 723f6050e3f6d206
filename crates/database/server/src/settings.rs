//! The settings of a session that clients change with SET: timeouts and the search path.
//!
//! As in PostgreSQL, SET LOCAL counts until the transaction ends, and a SET that a transaction takes back has not
//! happened. What a session begins with stands in its first message, and RESET brings that back.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Refusal, refuse};
use crate::syntax::comment;

pub(crate) const STATEMENT_TIMEOUT: &str = "statement_timeout";
pub(crate) const LOCK_TIMEOUT: &str = "lock_timeout";
pub(crate) const SEARCH_PATH: &str = "search_path";
/// All of them.
pub(crate) const NAMES: [&str; 3] = [STATEMENT_TIMEOUT, LOCK_TIMEOUT, SEARCH_PATH];

/// The units of timeouts in milliseconds, the longest first.
const UNITS: [(&str, f64); 6] =
    [("d", 86_400_000.0), ("h", 3_600_000.0), ("min", 60_000.0), ("s", 1_000.0), ("ms", 1.0), ("us", 0.001)];

/// A value of one of the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    /// Milliseconds; 0 is off.
    StatementTimeout(u32),
    LockTimeout(u32),
    SearchPath(String),
    /// Of the setting of this name, the value that the session began with.
    AsBegun(&'static str),
}

/// The values of all settings.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Values {
    statement_timeout: u32,
    lock_timeout: u32,
    search_path: String,
}

impl Default for Values {
    fn default() -> Self {
        Self { statement_timeout: 0, lock_timeout: 0, search_path: "public".into() }
    }
}

impl Values {
    fn set(&mut self, setting: &Setting, begun: &Self) {
        match setting {
            Setting::StatementTimeout(timeout) => self.statement_timeout = *timeout,
            Setting::LockTimeout(timeout) => self.lock_timeout = *timeout,
            Setting::SearchPath(path) => self.search_path.clone_from(path),
            Setting::AsBegun(STATEMENT_TIMEOUT) => self.statement_timeout = begun.statement_timeout,
            Setting::AsBegun(LOCK_TIMEOUT) => self.lock_timeout = begun.lock_timeout,
            Setting::AsBegun(_) => self.search_path.clone_from(&begun.search_path),
        }
    }
}

/// The settings of one session.
#[derive(Debug, Default)]
pub(crate) struct Settings(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    begun: Values,
    current: Values,
    /// What the values become when the transaction that has changed them is taken back, and when it commits.
    ends: Option<(Values, Values)>,
}

impl Settings {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the settings of a client's first message.
    ///
    /// # Errors
    /// A value that is not possible.
    pub(crate) fn begin(&self, pairs: &BTreeMap<String, String>) -> Result<(), Refusal> {
        let mut state = self.state();
        let (mut begun, default) = (Values::default(), Values::default());
        for (name, value) in pairs {
            if let Some(name) = NAMES.into_iter().find(|known| known.eq_ignore_ascii_case(name)) {
                begun.set(&read(name, value)?, &default);
            }
        }
        *state = State { current: begun.clone(), begun, ends: None };
        Ok(())
    }

    /// Changes a setting until the transaction ends, or, unless `is_local`, for good if it commits. A statement or a
    /// pipeline outside of BEGIN and COMMIT is a transaction too.
    pub(crate) fn set(&self, setting: &Setting, is_local: bool) {
        let State { begun, current, ends } = &mut *self.state();
        let (_, committed) = ends.get_or_insert_with(|| (current.clone(), current.clone()));
        if !is_local {
            committed.set(setting, begun);
        }
        current.set(setting, begun);
    }

    /// As the session has begun.
    pub(crate) fn reset(&self) {
        NAMES.into_iter().for_each(|name| self.set(&Setting::AsBegun(name), false));
    }

    /// A transaction has ended.
    pub(crate) fn end(&self, has_committed: bool) {
        let mut state = self.state();
        if let Some((before, committed)) = state.ends.take() {
            state.current = if has_committed { committed } else { before };
        }
    }

    /// How long a statement may take; nothing if that has no bound.
    pub(crate) fn statement_timeout(&self) -> Option<Duration> {
        let timeout = self.state().current.statement_timeout;
        (timeout > 0).then(|| Duration::from_millis(timeout.into()))
    }

    /// What SHOW answers; nothing for another setting.
    pub(crate) fn shown(&self, name: &str) -> Option<String> {
        let state = self.state();
        Some(match name {
            STATEMENT_TIMEOUT => duration(state.current.statement_timeout),
            LOCK_TIMEOUT => duration(state.current.lock_timeout),
            SEARCH_PATH => state.current.search_path.clone(),
            _ => return None,
        })
    }
}

/// The setting that a SET or RESET changes; nothing if it is another one.
pub(crate) fn of(text: &str, name: &str) -> Option<Result<Setting, Refusal>> {
    let name = NAMES.into_iter().find(|known| *known == name)?;
    let bare = bare(text);
    let at = bare.to_ascii_lowercase().find(name)?;
    let value = bare[at + name.len()..].trim_start_matches(['"', ' ', '\t', '\n', '\r']);
    let value = match value.strip_prefix('=') {
        Some(value) => value,
        None => value.get(..2).filter(|to| to.eq_ignore_ascii_case("to")).map_or("", |_| &value[2..]),
    };
    let value = value.trim();
    if value.is_empty() || value.eq_ignore_ascii_case("default") {
        return Some(Ok(Setting::AsBegun(name)));
    }
    Some(read(name, value))
}

/// A text without comments.
fn bare(text: &str) -> String {
    let (mut bare, mut rest, mut quote) = (String::new(), text, None);
    while let Some(first) = rest.chars().next() {
        let length = if quote.is_none() { comment(rest) } else { 0 };
        if length > 0 {
            bare.push(' ');
            rest = &rest[length..];
            continue;
        }
        match quote {
            Some(open) if open == first => quote = None,
            None if matches!(first, '\'' | '"') => quote = Some(first),
            _ => {}
        }
        bare.push(first);
        rest = &rest[first.len_utf8()..];
    }
    bare
}

/// The value of a setting from its text, in quotes or not.
pub(crate) fn read(name: &str, value: &str) -> Result<Setting, Refusal> {
    match name {
        SEARCH_PATH => path(value).map(Setting::SearchPath),
        name => {
            let text = value.trim().trim_matches('\'');
            let timeout = milliseconds(text).ok_or_else(|| {
                refuse("22023", format!("invalid value for parameter \"{name}\": \"{text}\""))
                    .hint("a number of milliseconds, or with a unit: us, ms, s, min, h, d; 0 is off")
            })?;
            Ok(if name == LOCK_TIMEOUT { Setting::LockTimeout(timeout) } else { Setting::StatementTimeout(timeout) })
        }
    }
}

/// A search path: its schemas must leave names what they are.
fn path(value: &str) -> Result<String, Refusal> {
    let schemas = value.split(',').map(|schema| {
        let schema = schema.trim();
        let quoted = ['"', '\''].into_iter().find_map(|quote| schema.strip_prefix(quote)?.strip_suffix(quote));
        quoted.map_or_else(|| schema.to_ascii_lowercase(), str::to_string)
    });
    let schemas: Vec<String> = schemas.collect();
    if let Some(other) = schemas.iter().find(|schema| !matches!(schema.as_str(), "public" | "$user" | "pg_catalog")) {
        let message = format!("the search path cannot have the schema '{other}': all tables are in 'public'");
        return Err(refuse("0A000", message).hint("leave search_path as it is, or SET search_path TO public"));
    }
    if !schemas.iter().any(|schema| schema == "public") {
        let message = "a search path without the schema 'public' would find no tables";
        return Err(refuse("0A000", message).hint("SET search_path TO public"));
    }
    let shown = |schema: &String| if schema == "$user" { "\"$user\"".into() } else { schema.clone() };
    Ok(schemas.iter().map(shown).collect::<Vec<_>>().join(", "))
}

/// Milliseconds of a text such as `200`, `5s` or `1.5 min`.
fn milliseconds(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (text[..end].parse::<f64>().ok()?, text[end..].trim());
    let factor = match unit {
        "" => 1.0,
        unit => UNITS.into_iter().find(|(name, _)| *name == unit)?.1,
    };
    let milliseconds = (number * factor).round();
    (milliseconds <= f64::from(i32::MAX)).then_some(milliseconds as u32)
}

/// Milliseconds as PostgreSQL shows them: in the longest unit without a fraction.
fn duration(milliseconds: u32) -> String {
    let fits = |(_, length): &(&str, f64)| *length >= 1.0 && milliseconds.is_multiple_of(*length as u32);
    match UNITS.into_iter().find(fits) {
        Some((unit, length)) if milliseconds > 0 => format!("{}{unit}", milliseconds / length as u32),
        _ => "0".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_units_as_postgresql_has_them() {
        for (text, shown) in [
            ("SET statement_timeout = 0", "0"),
            ("SET statement_timeout = 1500", "1500ms"),
            ("SET statement_timeout TO '5s'", "5s"),
            ("SET LOCAL statement_timeout to '1.5 min' -- long", "90s"),
            ("SET SESSION statement_timeout = '200ms'", "200ms"),
            ("SET /* a */ \"statement_timeout\" = '60s'", "1min"),
            ("SET statement_timeout='1d'", "1d"),
            ("SET statement_timeout = '1600us'", "2ms"),
        ] {
            let setting = of(text, STATEMENT_TIMEOUT).unwrap().unwrap_or_else(|refusal| panic!("{text}: {refusal}"));
            let settings = Settings::default();
            settings.set(&setting, false);
            assert_eq!(settings.shown(STATEMENT_TIMEOUT).unwrap(), shown, "{text}");
        }
        for text in ["'5 days'", "-1", "abc", "''", "3000000000", "'1d2h'"] {
            let refused = of(&format!("SET statement_timeout = {text}"), STATEMENT_TIMEOUT).unwrap().unwrap_err();
            assert_eq!(refused.sqlstate, "22023", "{text}");
        }
        assert_eq!(of("SET lock_timeout TO DEFAULT", LOCK_TIMEOUT), Some(Ok(Setting::AsBegun(LOCK_TIMEOUT))));
        assert_eq!(of("RESET lock_timeout", LOCK_TIMEOUT), Some(Ok(Setting::AsBegun(LOCK_TIMEOUT))));
    }

    #[test]
    fn a_search_path_leaves_names_what_they_are() {
        for (text, shown) in [
            ("public", "public"),
            ("\"$user\", public", "\"$user\", public"),
            ("pg_catalog, 'public'", "pg_catalog, public"),
        ] {
            let setting = of(&format!("SET search_path TO {text}"), SEARCH_PATH).unwrap();
            assert_eq!(setting, Ok(Setting::SearchPath(shown.into())), "{text}");
        }
        for text in ["other", "public, other", "''", "\"Public\"", "pg_catalog"] {
            let refused = of(&format!("SET search_path = {text}"), SEARCH_PATH).unwrap().unwrap_err();
            assert_eq!(refused.sqlstate, "0A000", "{text}");
        }
    }

    #[test]
    fn a_setting_of_a_transaction_ends_with_it() {
        let settings = Settings::default();
        settings.begin(&BTreeMap::from([("statement_timeout".into(), "1s".into())])).unwrap();
        let shown = || settings.shown(STATEMENT_TIMEOUT).unwrap();
        let set = |timeout, is_local| settings.set(&Setting::StatementTimeout(timeout), is_local);
        set(9, true);
        settings.end(true);
        assert_eq!(shown(), "1s");
        set(2, false);
        set(3, true);
        assert_eq!(shown(), "3ms");
        settings.end(true);
        assert_eq!(shown(), "2ms");
        set(4, false);
        settings.end(false);
        assert_eq!(shown(), "2ms");
        settings.reset();
        settings.end(true);
        assert_eq!(shown(), "1s");
    }
}
