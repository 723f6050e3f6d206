//! A database at a server. Statements go one by one as simple queries, so that each is a transaction of its own unless
//! it stands between BEGIN and COMMIT. Values come as text; where a statement may answer rows it is prepared first, to
//! know their types.

use std::io::IsTerminal;

use lockwork::sql::{Control, Kind, Statement, Value, pointed, statements};
use lockwork_client::Error::Refused;
use lockwork_client::{Address, AskError, Effect, Host, Session, divide, is_copy};
use tokio::runtime::Runtime;
use tokio_postgres::error::{DbError, ErrorPosition};
use tokio_postgres::types::{Kind as TypeKind, Type};
use tokio_postgres::{Error, SimpleQueryMessage};

use super::Database;
use super::form::{Answer, Output, form, tag};
use crate::cli::{Failure, Outcome, print, prompt};

pub(super) struct Remote {
    /// Its only thread is the one that waits for an answer.
    runtime: Runtime,
    session: Session,
    state: State,
}

/// Whether a transaction of several statements is open, as the server has it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Open,
    Failed,
}

impl Remote {
    /// # Errors
    /// Nobody answers, they let nobody in, or it is not as safe as it has to be.
    pub(super) fn open(mut address: Address) -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::usage(format!("threads: {error}")))?;
        match let_in(&runtime, &mut address) {
            Ok(session) => Ok(Self { runtime, session, state: State::Idle }),
            Err(failure) => {
                // Nobody waits for a name that is still being looked up.
                runtime.shutdown_background();
                Err(failure)
            }
        }
    }

    /// What a person at a terminal is told of it.
    pub(super) fn name(&self) -> String {
        let address = self.session.address();
        let database = address.config.get_dbname().unwrap_or_default();
        format!("{}, database {database}, as {}", self.session.host(), user(address))
    }

    /// Has one statement carried out. `statement` is what this program understands of it.
    fn answer(&mut self, text: &str, statement: Option<&Statement<'_>>) -> Result<Answer, AskError> {
        let kind = statement.map(Statement::kind);
        let (prepared, messages) = self.runtime.block_on(self.session.ask(text, async |client| {
            // Others answer no rows, or the lines of EXPLAIN.
            let prepared = match kind {
                None | Some(Kind::Select | Kind::Call) => Some(client.prepare(text).await?),
                Some(_) => None,
            };
            Ok((prepared, client.simple_query(text).await?))
        }))?;
        let columns = prepared.as_ref().map_or(&[][..], tokio_postgres::Statement::columns);
        let (mut rows, mut written) = (Vec::new(), 0);
        for message in &messages {
            match message {
                SimpleQueryMessage::Row(row) => rows.push(row),
                SimpleQueryMessage::CommandComplete(count) => written = *count as i64,
                _ => {}
            }
        }
        let cells = |row: &&tokio_postgres::SimpleQueryRow| {
            let types = columns.iter().map(tokio_postgres::Column::type_).chain(std::iter::repeat(&Type::TEXT));
            (0..row.len()).zip(types).map(|(at, ty)| row.get(at).map(|text| value(text, ty))).collect::<Vec<_>>()
        };
        let names = || columns.iter().map(|column| column.name().to_string());
        Ok(match kind {
            Some(Kind::Call) => Answer::Called(names().zip(rows.iter().flat_map(cells)).collect()),
            Some(Kind::Insert | Kind::Update | Kind::Delete) => Answer::Written(written),
            Some(Kind::Explain) => {
                let lines: Vec<_> = rows.iter().filter_map(|row| row.get(0)).map(|line| format!("{line}\n")).collect();
                Answer::Text(lines.concat())
            }
            Some(kind @ (Kind::CreateTable | Kind::CreateIndex | Kind::CreateProcedure)) => {
                Answer::Done(tag(kind).into())
            }
            _ if !columns.is_empty() => Answer::Rows(names().collect(), rows.iter().map(cells).collect()),
            // Of a transaction that has failed nothing is left.
            Some(Kind::Transaction) if self.state == State::Failed => Answer::Done("ROLLBACK".into()),
            _ => Answer::Done(first_words(text)),
        })
    }

    /// Notes what has become of a transaction.
    fn note(&mut self, control: Option<&Control>, went_well: bool) {
        self.state = match (control, self.state) {
            (_, state) if !went_well => {
                if state == State::Idle {
                    State::Idle
                } else {
                    State::Failed
                }
            }
            (Some(Control::Begin { .. } | Control::RollBackTo(_)), _) => State::Open,
            (Some(Control::Commit | Control::RollBack), _) => State::Idle,
            (_, state) => state,
        };
    }

    /// Why a statement that stands at `start` was refused.
    fn failure(&mut self, error: AskError, script: &str, start: usize, lines_before: u32) -> Failure {
        let (host, why, effect, is_undone) = match error {
            AskError::Refused(error) => match error.as_db_error() {
                Some(refusal) => return failure(refusal, script, start, lines_before),
                None => (self.session.host().clone(), told(&error), Effect::Other, false),
            },
            AskError::Lost { host, why, effect, is_undone } => (host, why, effect, is_undone),
            other => (self.session.host().clone(), other.to_string(), Effect::Other, false),
        };
        self.state = State::Idle;
        let hint = match effect {
            _ if is_undone => "the last statement was not carried out; it may be repeated",
            Effect::Read => "the last statement only reads; it may be repeated",
            Effect::CallOnce => {
                "whether the last call was made is not known; repeat it with the same request id: it is made once"
            }
            _ => "whether the last statement was carried out is not known; look before it is repeated",
        };
        Failure::connect(format!("{host}: the connection is lost: {why}\nhint: {hint}"))
    }
}

impl Database for Remote {
    fn execute(&mut self, script: &str, lines_before: u32, output: Output) -> Outcome {
        let script = script.strip_prefix('\u{feff}').unwrap_or(script);
        for place in divide(script).statements {
            let (start, text) = (place.start, &script[place]);
            let statement = statements(text).next().and_then(Result::ok);
            let control = statement.as_ref().and_then(Statement::control).cloned();
            let refused = |what: &str| {
                let line = lines_before as usize + script[..start].matches('\n').count() + 1;
                Err(Failure::usage(format!("line {line}: {what}")))
            };
            if is_copy(text) {
                return refused("this command has no COPY\nhint: use INSERT, or psql, which has \\copy");
            }
            if text.contains('\0') {
                return refused("a zero byte is no part of a statement");
            }
            let answered = self.answer(text, statement.as_ref());
            self.note(control.as_ref(), answered.is_ok());
            let answer = answered.map_err(|error| self.failure(error, script, start, lines_before))?;
            print(&form(&answer, output))?;
        }
        Ok(())
    }

    fn is_complete(&self, typed: &str) -> bool {
        divide(typed).is_ended
    }

    fn recover(&mut self) -> Option<String> {
        if self.session.address().hosts.len() < 2 {
            return None;
        }
        let reconnected = self.runtime.block_on(self.session.reconnect());
        self.state = State::Idle;
        reconnected.ok().map(|_| self.name())
    }

    fn end(self: Box<Self>) -> Outcome {
        match self.state {
            State::Idle => Ok(()),
            _ => Err(Failure::Check("the transaction has no COMMIT, and is taken back".into())),
        }
    }
}

/// Adds what options and variables say: of the user and the database options first, then the URL.
pub(super) fn complete(address: &mut Address, user: Option<&str>, database: Option<&str>) -> Outcome {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let config = &mut address.config;
    let user = user.or(config.get_user()).map(str::to_string);
    let user = user.or_else(|| variable("PGUSER")).or_else(|| variable("USER")).unwrap_or("lockwork".into());
    let database = database.or(config.get_dbname()).unwrap_or(&user).to_string();
    config.user(user).dbname(database);
    if config.get_password().is_none()
        && let Some(password) = variable("LOCKWORK_PASSWORD").or_else(|| variable("PGPASSWORD"))
    {
        config.password(password);
    }
    if let Some(options) = variable("PGOPTIONS").filter(|_| config.get_options().is_none()) {
        config.options(options);
    }
    if let Some(attrs) = variable("PGTARGETSESSIONATTRS").filter(|_| address.attrs.is_none()) {
        address.attrs = Some(attrs.parse().map_err(|error| failure_of(&error, None))?);
    }
    let security = address.security.complete(variable("PGSSLMODE").as_deref(), variable("PGSSLROOTCERT").as_deref());
    security.map_err(|error| failure_of(&error, None))?;
    let seconds = variable("PGCONNECT_TIMEOUT").and_then(|text| text.trim().parse::<u64>().ok());
    if let Some(seconds) = seconds.filter(|seconds| *seconds > 0 && address.timeouts.connect.is_none()) {
        address.timeouts.connect = Some(std::time::Duration::from_secs(seconds));
    }
    Ok(())
}

fn user(address: &Address) -> &str {
    address.config.get_user().unwrap_or_default()
}

/// Says that a statement goes on at another server.
fn moved(lost: &Host, why: &str, now: &Host, effect: Effect) {
    let what = match effect {
        Effect::CallOnce => "the call is repeated with its request id",
        Effect::Read => "the statement is repeated: it only reads",
        _ => "the statement was not carried out, and is sent",
    };
    eprintln!("lockwork: {lost} is lost: {why}; {what} at {now}");
}

/// Connects, and asks for a password if that is what is missing.
fn let_in(runtime: &Runtime, address: &mut Address) -> Result<Session, Failure> {
    let connect = |address: &Address| runtime.block_on(Session::connect(address.clone(), moved));
    let mut connected = connect(address);
    let asks = |error: &lockwork_client::Error| matches!(error.decisive(), Refused(error) if wants_password(error));
    if connected.as_ref().is_err_and(asks) {
        address.config.password(password(address)?);
        connected = connect(address);
    }
    connected.map_err(|error| failure_of(&error, Some(address)))
}

/// Why there is no connection, or none could be.
pub(super) fn failure_of(error: &lockwork_client::Error, address: Option<&Address>) -> Failure {
    use lockwork_client::Error;
    let hint = match (error, address) {
        (Error::Unreachable(_), Some(address)) => format!("lockwork serve --listen {address}"),
        _ => error.hint().into(),
    };
    let mut text = match (error, address) {
        // It names each server itself.
        (Error::Nobody(_), _) | (_, None) => error.to_string(),
        (_, Some(address)) => format!("{address}: {error}"),
    };
    if !hint.is_empty() {
        text = format!("{text}\nhint: {hint}");
    }
    let is_wrong = |refusal: &DbError| refusal.code().code().starts_with("28");
    match error.decisive() {
        Error::Asked { .. } => Failure::Usage(text),
        Error::Refused(error) if error.as_db_error().is_some_and(is_wrong) => Failure::Usage(text),
        _ => Failure::Connect(text),
    }
}

/// An error and what it comes from.
fn told(error: &Error) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), ToString::to_string)
}

/// Whether the server wants a password and there was none to give.
fn wants_password(error: &Error) -> bool {
    error.as_db_error().is_none() && told(error) == "password missing"
}

fn password(address: &Address) -> Result<String, Failure> {
    let user = user(address);
    if !std::io::stdin().is_terminal() {
        let hint = "hint: LOCKWORK_PASSWORD or PGPASSWORD has it, or postgres://user:password@host:port";
        return Err(Failure::usage(format!("{address} wants a password of {user}\n{hint}")));
    }
    let asked = prompt::password(&format!("password of {user}: "));
    asked.map_err(|error| Failure::usage(format!("the password: {error}")))
}

/// An error of a server in the words that a folder has for it. Its place counts characters of the statement that
/// stands at `start`.
fn failure(refusal: &DbError, script: &str, start: usize, lines_before: u32) -> Failure {
    let code = refusal.code().code();
    let mut text = format!("error {code}: {}", refusal.message());
    let position = match refusal.position() {
        Some(ErrorPosition::Original(position)) => Some(*position as usize),
        _ => None,
    };
    if let Some(position) = position {
        let behind = script[start..].char_indices().nth(position.saturating_sub(1));
        let before = &script[..behind.map_or(script.len(), |(at, _)| start + at)];
        let first = before.rfind('\n').map_or(0, |at| at + 1);
        let line = lines_before as usize + before.matches('\n').count() + 1;
        let column = before[first..].chars().count() as u32 + 1;
        let source = script[first..].lines().next().unwrap_or_default();
        text = format!("line {line}, column {column}: {text}{}", pointed(source, column));
    }
    if let Some(hint) = refusal.hint() {
        text = format!("{text}\nhint: {hint}");
    }
    // What is wrong with a text has a place; of what has none these are no errors of a transaction that ran.
    let is_wrong = ["0A", "25", "28", "42", "53", "54", "55", "58"].iter().any(|class| code.starts_with(class));
    if position.is_some() || is_wrong { Failure::Usage(text) } else { Failure::Check(text) }
}

/// What a statement is called that only the server knows: its first word, and of a definition the one behind it.
fn first_words(text: &str) -> String {
    let mut words = text.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_ascii_uppercase);
    let first = words.next().unwrap_or_default();
    match (first.as_str(), words.next()) {
        ("CREATE" | "DROP" | "ALTER", Some(second)) => format!("{first} {second}"),
        ("START", _) => "BEGIN".into(),
        ("END", _) => "COMMIT".into(),
        ("ABORT", _) => "ROLLBACK".into(),
        _ => first,
    }
}

/// The value that a text of a type is; a text if this program has no such type.
fn value(text: &str, ty: &Type) -> Value {
    let other = || Value::Text(text.into());
    if let TypeKind::Array(element) = ty.kind() {
        return elements(text)
            .map_or_else(other, |texts| Value::Array(texts.iter().map(|text| value(text, element)).collect()));
    }
    match *ty {
        Type::BOOL => Value::Boolean(text == "t"),
        Type::INT2 | Type::INT4 | Type::INT8 | Type::OID => text.parse().map_or_else(|_| other(), Value::Integer),
        Type::NUMERIC => {
            let (whole, part) = text.split_once('.').unwrap_or((text, ""));
            let decimal = format!("{whole}{part}").parse().map(|number| Value::Decimal(number, part.len() as u8));
            // One that is larger than a DECIMAL, or none at all, is not the same any more.
            decimal.ok().filter(|_| part.len() <= 18).filter(|value| value.to_string() == text).unwrap_or_else(other)
        }
        _ => other(),
    }
}

/// The elements of an array of one dimension, as PostgreSQL writes it.
fn elements(text: &str) -> Option<Vec<String>> {
    let inner = text.strip_prefix('{')?.strip_suffix('}')?;
    let mut all = Vec::new();
    let mut rest = inner.chars().peekable();
    while rest.peek().is_some() {
        let mut element = String::new();
        let is_quoted = rest.next_if_eq(&'"').is_some();
        loop {
            match rest.next() {
                Some('"') if is_quoted => break rest.next().is_none_or(|c| c == ',').then_some(())?,
                Some('\\') => element.push(rest.next()?),
                Some(',') if !is_quoted => break,
                Some(c) => element.push(c),
                None if is_quoted => return None,
                None => break,
            }
        }
        all.push(element);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_a_server_are_the_values_that_they_were() {
        for (text, ty, expected) in [
            ("t", Type::BOOL, Value::Boolean(true)),
            ("f", Type::BOOL, Value::Boolean(false)),
            ("-7", Type::INT8, Value::Integer(-7)),
            ("-0.05", Type::NUMERIC, Value::Decimal(-5, 2)),
            ("12", Type::NUMERIC, Value::Decimal(12, 0)),
            ("NaN", Type::NUMERIC, Value::Text("NaN".into())),
            ("99999999999999999999.5", Type::NUMERIC, Value::Text("99999999999999999999.5".into())),
            ("0.0000000000000000000", Type::NUMERIC, Value::Text("0.0000000000000000000".into())),
            ("{1,2}", Type::INT4_ARRAY, Value::Array(vec![Value::Integer(1), Value::Integer(2)])),
            ("{}", Type::INT4_ARRAY, Value::Array(Vec::new())),
            ("{1", Type::INT4_ARRAY, Value::Text("{1".into())),
            (
                "{\"a,\\\"b\\\\\",\"\"}",
                Type::TEXT_ARRAY,
                Value::Array(["a,\"b\\", ""].map(|t| Value::Text(t.into())).into()),
            ),
        ] {
            assert_eq!(value(text, &ty), expected, "{text}");
        }
    }
}
