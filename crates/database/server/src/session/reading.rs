//! Texts, statement by statement: each belongs to the first room that knows it.

use std::sync::Arc;

use lockwork::sql::{SqlError, Statement, statements};
use pgwire::api::Type;

use super::Session;
use crate::batch_call;
use crate::catalog;
use crate::copy;
use crate::error::{Refusal, refuse};
use crate::grants;
use crate::prepared::Stored;
use crate::query;
use crate::session_settings::{SessionNames, known, wants_one_moment};
use crate::syntax::{comment, divide, is_unclosed};
use crate::verb::Verb;

/// A text, and how far it has been read.
pub(super) struct Reading<'a> {
    text: &'a str,
    rest: &'a str,
    /// The types that the client says `$1` and so on have.
    declared: &'a [Option<Type>],
}

impl<'a> Reading<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let mut reading = Self { text, rest: text, declared: &[] };
        reading.go_on(text);
        reading
    }

    /// Whether nothing is left but blanks, comments and semicolons.
    pub(super) fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Goes on behind what was read.
    fn go_on(&mut self, rest: &'a str) {
        self.rest = rest;
        loop {
            let rest = self.rest.trim_start_matches(|c: char| c.is_whitespace() || c == ';');
            let comment = comment(rest);
            if comment == 0 || is_unclosed(rest) {
                self.rest = rest;
                return;
            }
            self.rest = &rest[comment..];
        }
    }

    /// Characters of the text before a part of it.
    fn before(&self, part: &str) -> usize {
        self.text[..part.as_ptr().addr() - self.text.as_ptr().addr()].chars().count()
    }

    /// Reads the next statement as the database does. Those behind it are not looked at: a text is read once, however
    /// many there are. `piece` is its text, unless that goes on behind a semicolon, as that of a procedure may.
    fn own(&self, piece: &str) -> Option<Result<Statement<'a>, SqlError>> {
        const CREATE: &str = "CREATE";
        let mut length = piece.len();
        loop {
            // With its semicolon.
            let source = self.rest.get(..=length).unwrap_or(self.rest);
            let read = statements(source).next();
            let is_whole = !matches!(read, Some(Err(_))) || source.len() == self.rest.len();
            if is_whole || !piece.get(..CREATE.len()).is_some_and(|first| first.eq_ignore_ascii_case(CREATE)) {
                return read;
            }
            // Twice as much each time, so that all times together are as long as the last one.
            let goal = 2 * source.len();
            while length < goal && length < self.rest.len() {
                length += 1 + divide(self.rest.get(length + 1..).unwrap_or_default()).0.len();
            }
        }
    }
}

impl Session {
    /// Understands the only statement of a text; there is none in a comment.
    /// `declared` are the types that the client says `$1` and so on have.
    pub(crate) async fn understand(
        &self,
        text: &str,
        declared: &[Option<Type>],
        who: &SessionNames,
    ) -> Result<Option<Stored>, Refusal> {
        let mut reading = Reading { declared, ..Reading::new(text) };
        if reading.is_at_end() {
            return Ok(None);
        }
        let stored = self.next(&mut reading, who).await?;
        match reading.is_at_end() {
            true => Ok(Some(stored)),
            false => Err(refuse("42601", "several statements stand where there may be one")),
        }
    }

    /// Understands the next statement of a text, which has one. After an error there is no further one.
    pub(super) async fn next(&self, reading: &mut Reading<'_>, who: &SessionNames) -> Result<Stored, Refusal> {
        if is_unclosed(reading.rest) {
            let at = reading.before(reading.rest) + 1;
            reading.rest = "";
            return Err(Refusal { position: at, ..refuse("42601", "the comment has no end").hint("write */") });
        }
        let (piece, behind) = divide(reading.rest);
        if self.database.follows() && wants_one_moment(piece) {
            reading.go_on(behind);
            let message = "a node of a cluster that follows has no transactions whose statements all see one moment";
            return Err(refuse("0A000", message).hint("ISOLATION LEVEL READ COMMITTED; or ask the leader"));
        }
        if let Some(known) = known(piece, who) {
            reading.go_on(behind);
            return known.map(|known| Stored::Known(Arc::new(known)));
        }
        self.database.reach(self.reader.after(), &self.cancel).await?;
        let asker = query::Asker { who, declared: reading.declared, scales: &[] };
        let mut unknown = None;
        match catalog::may_ask(piece).then(|| query::alone(piece, asker)).flatten() {
            Some(Ok(query)) => {
                reading.go_on(behind);
                let stored = Stored::Query(Arc::new(query));
                return self.allow_stored(&stored).map(|()| stored);
            }
            Some(Err(refusal)) if query::may_be_of_catalog(&refusal) => unknown = Some(refusal),
            Some(Err(refusal)) => {
                reading.go_on(behind);
                return Err(refusal.behind(reading.before(piece)));
            }
            None => {}
        }
        if let Some(asked) = self.database.asked(piece, self.asker(who), self.may_define()).await {
            reading.go_on(behind);
            let refused = |refusal: Refusal| {
                // What neither knows is what a query without tables found first.
                let is_of_both = refusal.sqlstate == "42883" || refusal.message.starts_with(catalog::UNCLEAR);
                // Of two operators that are not supported the catalog may name one that queries have.
                let is_operator = |refusal: &Refusal| refusal.message.starts_with("the operator");
                let is_another = |own: &Refusal| is_operator(own) && !own.message.starts_with(&refusal.message);
                let is_of_both = is_of_both || is_operator(&refusal) && unknown.as_ref().is_some_and(is_another);
                let told = unknown.filter(|own| is_of_both && matches!(&*own.sqlstate, "0A000" | "42883"));
                told.unwrap_or(refusal).behind(reading.before(piece))
            };
            return asked.map(|asked| Stored::Catalog(Arc::new(asked))).map_err(refused);
        }
        if copy::is_copy(piece) {
            reading.go_on(behind);
            return self.copy_of(piece, who).await.map_err(|refusal| refusal.behind(reading.before(piece)));
        }
        if let Some(call) = batch_call::call_of(piece) {
            reading.go_on(behind);
            let statement = batch_call::statement(&call)?;
            self.allow_statement(&statement)?;
            self.database.admit_write(Verb::Call)?;
            let stored = Stored::Plan(Arc::new(self.database.plan_many(&statement, self.user())?));
            return self.allow_stored(&stored).map(|()| stored);
        }
        if grants::is_change(piece) {
            reading.go_on(behind);
            return self.understand_grant(piece).map(|change| Stored::Grant(Arc::new(change)));
        }
        let Some(read) = reading.own(piece) else { return Err(refuse("42601", "there is no statement")) };
        match &read {
            Ok(statement) => {
                let end = statement.text().as_ptr().addr() + statement.text().len() - reading.text.as_ptr().addr();
                // What stands between a statement and its semicolon are blanks and comments.
                let behind = divide(&reading.text[end..]).1;
                reading.go_on(behind);
            }
            Err(_) => reading.go_on(behind),
        }
        self.own(read, piece, reading, asker)
    }

    /// Understands a statement of the database, or what is none as a query of whole tables: its text is `piece`.
    fn own(
        &self,
        read: Result<Statement<'_>, SqlError>,
        piece: &str,
        reading: &Reading<'_>,
        asker: query::Asker<'_>,
    ) -> Result<Stored, Refusal> {
        let (source, statement) = match read {
            Ok(statement) => (statement.source(), Ok(statement)),
            Err(error) => (&reading.text[piece.as_ptr().addr() - reading.text.as_ptr().addr()..], Err(error)),
        };
        let planned = match &statement {
            Ok(statement) => self.plan(statement),
            Err(error) => Err(Refusal::of(error.clone().into(), source)),
        };
        let Err(refusal) = planned else { return planned };
        let refusal = match self.query(&refusal, piece, asker) {
            Some(Ok(stored)) => return Ok(stored),
            Some(Err(better)) => better.behind(reading.before(piece)),
            None => refusal.behind(reading.before(source)),
        };
        if let Ok(statement) = &statement {
            let verb = Verb::of(statement.kind()).name().into();
            self.database.watch.failed((verb, refusal.sqlstate.clone(), refusal.cause()), 1);
        }
        Err(refusal)
    }

    /// Understands a statement that the client may carry out.
    fn plan(&self, statement: &Statement<'_>) -> Result<Stored, Refusal> {
        self.allow_statement(statement)?;
        self.database.admit_kind(statement.kind())?;
        let stored = match statement.control() {
            Some(control) => Stored::Control(control.clone()),
            None => Stored::Plan(Arc::new(self.database.plan(statement, self.user())?)),
        };
        self.allow_stored(&stored).map(|()| stored)
    }

    /// Understands what was refused as a single statement as a query of whole tables, if it is one.
    fn query(&self, refusal: &Refusal, text: &str, asker: query::Asker<'_>) -> Option<Result<Stored, Refusal>> {
        if !query::may_be_one(refusal, text) {
            return None;
        }
        let understood = self.database.query(text, asker)?;
        Some(self.allow_query(understood.map(|query| Stored::Query(Arc::new(query)))))
    }
}
