//! Kinds of statements, as counts and clients call them.

use lockwork::sql::Kind;

/// What a statement does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    CreateTable,
    CreateIndex,
    CreateProcedure,
    Explain,
    Call,
    Select,
    Insert,
    Update,
    Delete,
    Copy,
    /// That of a transaction of several statements.
    Commit,
}

impl Verb {
    pub(crate) const ALL: [Self; 11] = [
        Self::CreateTable,
        Self::CreateIndex,
        Self::CreateProcedure,
        Self::Explain,
        Self::Call,
        Self::Select,
        Self::Insert,
        Self::Update,
        Self::Delete,
        Self::Copy,
        Self::Commit,
    ];

    pub(crate) fn of(kind: Kind) -> Self {
        match kind {
            Kind::CreateTable => Self::CreateTable,
            Kind::CreateIndex => Self::CreateIndex,
            Kind::CreateProcedure => Self::CreateProcedure,
            Kind::Explain => Self::Explain,
            Kind::Call => Self::Call,
            Kind::Select => Self::Select,
            Kind::Insert => Self::Insert,
            Kind::Update => Self::Update,
            Kind::Delete => Self::Delete,
            _ => Self::Commit,
        }
    }

    /// What counts call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::CreateTable => "create_table",
            Self::CreateIndex => "create_index",
            Self::CreateProcedure => "create_procedure",
            Self::Explain => "explain",
            Self::Call => "call",
            Self::Select => "select",
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Copy => "copy",
            Self::Commit => "commit",
        }
    }

    /// The words that it begins with.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::CreateTable => "CREATE TABLE",
            Self::CreateIndex => "CREATE INDEX",
            Self::CreateProcedure => "CREATE PROCEDURE",
            Self::Explain => "EXPLAIN",
            Self::Call => "CALL",
            Self::Select => "SELECT",
            Self::Insert => "INSERT",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Copy => "COPY",
            Self::Commit => "COMMIT",
        }
    }

    /// The tag of a statement that wrote or answered so many rows.
    pub(crate) fn tag(self, rows: i64) -> String {
        match self {
            Self::Select | Self::Update | Self::Delete | Self::Copy => format!("{} {rows}", self.words()),
            Self::Insert => format!("INSERT 0 {rows}"),
            _ => self.words().into(),
        }
    }
}
