//! What the client may do: its right, which holds for everything, and grants, each of one procedure or table.
//!
//! A statement is checked when it is understood, and again each time it runs: what was prepared, or waits for its Sync,
//! does not outlive a REVOKE.

use lockwork::sql::{Kind, Statement};

use super::Session;
use crate::audit::{Event, Of};
use crate::copy::Copy;
use crate::error::{Refusal, refuse};
use crate::grants::{self, Change, Privilege};
use crate::prepared::{Answered, Stored};
use crate::rights::Right;
use crate::shared::Plan;
use crate::verb::Verb;

impl Session {
    /// Whether the client may see how procedures are made.
    pub(crate) fn may_define(&self) -> bool {
        self.right() == Some(Right::Define)
    }

    pub(super) fn right(&self) -> Option<Right> {
        self.identity.get().map(|identity| identity.right)
    }

    /// Refuses a statement of this kind to a client whose right does not cover it.
    fn allow(&self, kind: Kind) -> Result<(), Refusal> {
        Right::check(self.right(), Right::of(kind))
    }

    /// Refuses this to a client who neither has the right for all things of its kind nor was granted this one.
    fn allow_one(&self, privilege: Privilege, name: &str) -> Result<(), Refusal> {
        if self.right() >= Some(privilege.right()) {
            return Ok(());
        }
        let user = self.identity.get().map_or("", |identity| identity.user.as_str());
        match &self.users {
            Some(users) if users.has(user, privilege, name) => Ok(()),
            _ => Err(privilege.denied(name, user)),
        }
    }

    /// Whether the client may read some table.
    fn may_read_any(&self) -> bool {
        self.allow(Kind::Select).is_ok()
            || matches!((self.owner(), &self.users), (Some(user), Some(users)) if users.reads_any(user))
    }

    /// Refuses the reading of tables to a client who may not read one of them. A query may read none, and take time.
    fn allow_reads<'a>(&self, tables: impl IntoIterator<Item = &'a str>) -> Result<(), Refusal> {
        let mut tables = tables.into_iter().peekable();
        if tables.peek().is_none() && !self.may_read_any() {
            return self.allow(Kind::Select);
        }
        tables.try_for_each(|table| self.allow_one(Privilege::Select, table))
    }

    /// Refuses a statement to a client who may not carry it out, or may not any more.
    pub(crate) fn allow_stored(&self, stored: &Stored) -> Result<(), Refusal> {
        match stored {
            Stored::Known(_) | Stored::Catalog(_) | Stored::Control(_) => Ok(()),
            Stored::Grant(_) => Right::check(self.right(), Right::Define),
            Stored::Query(query) if query.is_computed => Ok(()),
            Stored::Query(query) => self.allow_reads(query.tables()),
            Stored::Plan(plan) => self.allow_plan(plan),
            Stored::Copy(copy) => match &**copy {
                Copy::Load(_) => self.allow(Kind::Insert),
                Copy::Export(table) => self.allow_one(Privilege::Select, table.name()),
                Copy::Query(stored, _) => self.allow_stored(stored),
            },
        }
    }

    /// As [`Self::allow_stored`], of a statement of the database.
    pub(super) fn allow_plan(&self, plan: &Plan) -> Result<(), Refusal> {
        match (plan.verb, plan.reads()) {
            (Verb::Call, _) => self.allow_one(Privilege::Execute, plan.what()),
            (_, Some(table)) => self.allow_one(Privilege::Select, table),
            _ => self.allow(plan.kind()),
        }
    }

    /// Refuses the reading of a table to a client who may not read it. That it does not exist is told to those who may
    /// read some table.
    fn allow_read(&self, table: &str) -> Result<(), Refusal> {
        let allowed = self.allow_one(Privilege::Select, table);
        if allowed.is_err() && self.may_read_any() && !self.database.has_table(table) { Ok(()) } else { allowed }
    }

    /// Refuses a COPY of a table to a client who may not carry it out.
    pub(crate) fn allow_copy(&self, table: &str, is_export: bool) -> Result<(), Refusal> {
        if is_export { self.allow_read(table) } else { self.allow(Kind::Insert) }
    }

    /// Refuses a statement of the database to a client who may not carry it out, as far as its text tells. What a CALL
    /// needs is known when its procedure is: nothing is made for that.
    pub(super) fn allow_statement(&self, statement: &Statement<'_>) -> Result<(), Refusal> {
        match (statement.kind(), statement.reads()) {
            (Kind::Call, _) => Ok(()),
            (_, Some(table)) => self.allow_read(table),
            (kind, None) => {
                let allowed = self.allow(kind);
                if matches!(kind, Kind::CreateTable | Kind::CreateIndex | Kind::CreateProcedure) {
                    allowed.inspect_err(|refusal| self.note(Event::Definition, statement.text(), Some(refusal)))
                } else {
                    allowed
                }
            }
        }
    }

    /// Refuses a query, which was understood or not, to a client who may not ask it. Whether a query can be understood
    /// is told only to those who may read some table.
    pub(super) fn allow_query(&self, understood: Result<Stored, Refusal>) -> Result<Stored, Refusal> {
        match understood {
            Ok(stored) => self.allow_stored(&stored).map(|()| stored),
            Err(refusal) if self.may_read_any() => Err(refusal),
            Err(refusal) => self.allow(Kind::Select).and(Err(refusal)),
        }
    }

    /// Writes down that something was defined or granted, or was not.
    pub(super) fn note(&self, event: Event, text: &str, refusal: Option<&Refusal>) {
        let (Some(audit), Some(identity)) = (&self.audit, self.identity.get()) else { return };
        let of = Of { user: &identity.user, address: identity.address, tls: identity.tls };
        audit.statement(event, of, identity.number, text, refusal.map_or("00000", |refusal| &refusal.sqlstate));
    }

    /// Understands a GRANT or REVOKE.
    pub(super) fn understand_grant(&self, text: &str) -> Result<Change, Refusal> {
        let understood = Right::check(self.right(), Right::Define)
            .and_then(|()| if self.users.is_some() { Ok(()) } else { Err(no_users()) })
            .and_then(|()| grants::read(text));
        understood.inspect_err(|refusal| self.note(Event::Grant, text, Some(refusal)))
    }

    /// Carries out a GRANT or REVOKE.
    pub(super) async fn carry_out_grant(&self, change: &Change) -> Result<Answered, Refusal> {
        let is_open = self.open.lock().await.is_some();
        let changed = self.grant(change, is_open);
        self.note(Event::Grant, &change.text, changed.as_ref().err());
        let tag = change.tag().into();
        changed.map(|()| Answered { rows: Vec::new(), tag, held: None })
    }

    fn grant(&self, change: &Change, is_open: bool) -> Result<(), Refusal> {
        Right::check(self.right(), Right::Define)?;
        let users = self.users.as_ref().ok_or_else(no_users)?;
        if is_open {
            let message = format!("{} cannot be part of a transaction", change.tag());
            return Err(refuse("25001", message).hint("COMMIT before it"));
        }
        // A node that follows is READ ONLY for its rows, and has a file of users of its own.
        if self.reader.is_read_only() && !self.database.follows() {
            return Err(refuse("25006", format!("this {} writes, and the session is READ ONLY", change.tag())));
        }
        for name in &change.names {
            self.database.check_grantable(change.privilege, name)?;
        }
        tokio::task::block_in_place(|| users.grant(change))
    }
}

fn no_users() -> Refusal {
    let hint = "add users with lockwork user FILE NAME, and start the server with lockwork serve --users FILE";
    refuse("0A000", "this server has no users: every client may do everything").hint(hint)
}
