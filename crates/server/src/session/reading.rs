//! Texts, statement by statement: each belongs to the first room that knows it.

use std::sync::Arc;

use lockwork_database::sql::{Kind, SqlError, Statement, statements};

use super::Session;
use crate::catalog::Asker;
use crate::copy;
use crate::error::{Refusal, refuse};
use crate::known::{Who, known};
use crate::many;
use crate::query::{self, Query};
use crate::stored::Stored;
use crate::syntax::{comment, divide};
use crate::verb::Verb;

/// A text, and how far it has been read.
pub(super) struct Reading<'a> {
    text: &'a str,
    rest: &'a str,
    /// Statements of the database, of which the next one begins where the rest does, up to one that is none.
    own: Option<std::vec::IntoIter<Result<Statement<'a>, SqlError>>>,
}

impl<'a> Reading<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let mut reading = Self { text, rest: text, own: None };
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
            self.rest = &rest[comment..];
            if comment == 0 {
                return;
            }
        }
    }

    /// Characters of the text before a part of it.
    fn before(&self, part: &str) -> usize {
        self.text[..part.as_ptr().addr() - self.text.as_ptr().addr()].chars().count()
    }

    /// Goes over a statement that is not read as the database reads.
    fn skip(&mut self, behind: &'a str) {
        self.own = None;
        self.go_on(behind);
    }
}

impl Session {
    /// Understands the only statement of a text; there is none in a comment.
    pub(crate) async fn understand(&self, text: &str, who: &Who) -> Result<Option<Stored>, Refusal> {
        let mut reading = Reading::new(text);
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
    pub(super) async fn next(&self, reading: &mut Reading<'_>, who: &Who) -> Result<Stored, Refusal> {
        let (piece, behind) = divide(reading.rest);
        let before = reading.before(piece);
        if let Some(known) = known(piece, who) {
            reading.skip(behind);
            return known.map(|known| Stored::Known(Arc::new(known)));
        }
        if let Some(asked) = self.database.asked(piece, Asker { who, cancel: &self.cancel }).await {
            reading.skip(behind);
            return asked.map(|asked| Stored::Catalog(Arc::new(asked))).map_err(|refusal| refusal.behind(before));
        }
        if copy::is_copy(piece) {
            reading.skip(behind);
            return self.copy_of(piece, who).await.map_err(|refusal| refusal.behind(before));
        }
        if let Some(call) = many::call_of(piece) {
            reading.skip(behind);
            let statement = many::statement(&call)?;
            self.allow(statement.kind())?;
            return Ok(Stored::Plan(Arc::new(self.database.plan_many(&statement)?)));
        }
        let own = reading.own.get_or_insert_with(|| statements(reading.rest).collect::<Vec<_>>().into_iter());
        let Some(read) = own.next() else { return Err(refuse("42601", "there is no statement")) };
        match &read {
            Ok(statement) => {
                let end = statement.text().as_ptr().addr() + statement.text().len() - reading.text.as_ptr().addr();
                // What stands between a statement and its semicolon are blanks and comments.
                let behind = divide(&reading.text[end..]).1;
                reading.go_on(behind);
            }
            Err(_) => reading.skip(behind),
        }
        self.own(read, piece, reading)
    }

    /// Understands a statement of the database, or what is none as a query of whole tables: its text is `piece`.
    fn own(
        &self,
        read: Result<Statement<'_>, SqlError>,
        piece: &str,
        reading: &Reading<'_>,
    ) -> Result<Stored, Refusal> {
        let (source, statement) = match read {
            Ok(statement) => (statement.source(), Ok(statement)),
            // Who reads it as a piece names the same place.
            Err(error) => (piece, Err(error)),
        };
        let planned = match &statement {
            Ok(statement) => self.plan(statement),
            Err(error) => Err(Refusal::of(error.clone().into(), piece)),
        };
        let Err(refusal) = planned else { return planned };
        let refusal = match self.query(&refusal, piece) {
            Some(Ok(query)) => return Ok(Stored::Query(Arc::new(query))),
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
        self.allow(statement.kind())?;
        match statement.control() {
            Some(control) => Ok(Stored::Control(control.clone())),
            None => Ok(Stored::Plan(Arc::new(self.database.plan(statement)?))),
        }
    }

    /// Understands what was refused as a single statement as a query of whole tables, if it is one.
    fn query(&self, refusal: &Refusal, text: &str) -> Option<Result<Query, Refusal>> {
        if !query::may_be_one(refusal, text) {
            return None;
        }
        match self.allow(Kind::Select) {
            Ok(()) => self.database.query(text),
            Err(refusal) => Some(Err(refusal)),
        }
    }
}
