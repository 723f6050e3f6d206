//! A procedure with every name resolved and every expression typed: what `bind` makes and `lower` takes.

use lockwork_procedure::schema::ColumnType;

use crate::syntax::{Comparison, Place};
use crate::types::SqlType;

pub(crate) type VarId = usize;
/// A row that columns are read from: of the statement, or of a FOR loop.
pub(crate) type SourceId = usize;

/// What an expression is. Numbers are scaled 64-bit integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ty {
    /// A number with this many decimals.
    Number(u8),
    Boolean,
    Timestamp,
    /// Text or bytes, this long.
    String(u32),
    /// A `$n` whose type nothing has said yet.
    Unknown,
}

impl Ty {
    pub(crate) fn of(sql: SqlType) -> Self {
        match sql {
            SqlType::Integer(_) => Self::Number(0),
            SqlType::Decimal(_, scale) => Self::Number(scale),
            SqlType::Boolean => Self::Boolean,
            SqlType::Timestamp => Self::Timestamp,
            SqlType::Text(n) | SqlType::Bytes(n) => Self::String(n),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Number(_) => "a number",
            Self::Boolean => "a truth value",
            Self::Timestamp => "a timestamp",
            Self::String(_) => "a text",
            Self::Unknown => "a parameter of no known type (CAST($1 AS type) says it)",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expr {
    pub(crate) kind: ExprKind,
    pub(crate) ty: Ty,
    pub(crate) place: Place,
    /// How many nodes it has.
    pub(crate) size: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Arithmetic {
    Add,
    Sub,
    Mul,
    /// Truncates.
    Div,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ExprKind {
    Const(i64),
    String(Vec<u8>),
    /// A text in quotes, which as bytes may be others: `'\x00ff'`.
    Text(Vec<u8>),
    /// A variable that is a number.
    Var(VarId),
    /// A variable that is text or bytes, or an array as the bytes that it is.
    Whole(VarId),
    Element(VarId, Box<Expr>),
    Column(SourceId, usize),
    /// The bytes of a row from a column on, as many as the type says.
    Span(SourceId, usize),
    /// Columns of one width that follow each other, the first for this value of the operand.
    Choose {
        operand: Box<Expr>,
        first: i64,
        source: SourceId,
        column: usize,
        count: u32,
    },
    Arithmetic(Arithmetic, Box<Expr>, Box<Expr>),
    /// Division, rounded half away from zero.
    Round(Box<Expr>, Box<Expr>),
    Compare(Comparison, Box<Expr>, Box<Expr>),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Not(Box<Expr>),
    /// The value of the first arm whose condition holds; without another the procedure aborts.
    Case(Vec<(Expr, Expr)>, Option<Box<Expr>>),
    Least(Box<Expr>, Box<Expr>),
    Greatest(Box<Expr>, Box<Expr>),
    /// Aborts unless the value lies between the two.
    Fit(Box<Expr>, i64, i64),
    Found,
    Concat(Vec<Expr>),
    /// The text of a number of at most so many digits, or of a truth value. Where it is joined to others, the next
    /// begins behind its last character.
    Digits(Box<Expr>, u8),
    /// A text, and how many bytes it has. Where it is joined to others, the next begins behind the last of them.
    Sized(Box<Expr>, Box<Expr>),
    /// A text of which the type's bytes are all, or the procedure aborts with this code.
    Fitting(Box<Expr>, u16),
    /// Bytes of a text: from (0 is the first), and as many as the type says.
    Piece(Box<Expr>, u32),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Target {
    Var(VarId),
    Element(VarId, Expr),
}

impl Target {
    /// The variable that changes.
    pub(crate) fn var(&self) -> VarId {
        match self {
            Self::Var(var) | Self::Element(var, _) => *var,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    In,
    Out,
    InOut,
    Local,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VarType {
    Sql(SqlType),
    /// Whole rows of this many bytes, as a scan delivers them.
    Rows {
        table: usize,
        bytes: u32,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) var_type: VarType,
    /// Elements, of an array.
    pub(crate) count: Option<u32>,
    pub(crate) role: Role,
}

impl Variable {
    /// Whether it is a number that lives in a register; the others live in the block.
    pub(crate) fn in_register(&self) -> bool {
        self.count.is_none() && matches!(self.var_type, VarType::Sql(sql) if !sql.is_string())
    }

    /// Its field of the block: type and number of elements.
    pub(crate) fn field(&self) -> (ColumnType, u32) {
        match self.var_type {
            VarType::Sql(sql) => (sql.storage(), self.count.unwrap_or(1)),
            VarType::Rows { bytes, .. } => {
                let count = self.count.unwrap_or(1);
                // A row that is not as far from the next as a field of its size would be is a row of words.
                let apart = if bytes >= 64 { bytes.is_multiple_of(64) } else { true };
                if apart { (ColumnType::Bytes(bytes), count) } else { (ColumnType::I64, count * (bytes / 8)) }
            }
        }
    }
}

/// Rows of a piece: a scan of more is several, one behind the other.
pub(crate) const PIECE: u32 = 16;

/// Which rows a scan delivers, in ascending order of the key of its table or index.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scan {
    pub(crate) table: usize,
    /// Number of the table's index that is scanned instead of the table.
    pub(crate) index: Option<usize>,
    /// Values of the leading columns.
    pub(crate) prefix: Vec<Expr>,
    /// Bounds of the column behind them, both included.
    pub(crate) low: Option<Expr>,
    pub(crate) high: Option<Expr>,
    pub(crate) limit: Expr,
    /// What `limit` is at most.
    pub(crate) max: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Access {
    /// The row of this key.
    Point(Vec<Expr>),
    /// The row that the loop around stands at.
    Current(SourceId),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stmt {
    pub(crate) kind: StmtKind,
    pub(crate) place: Place,
    /// The next statement asks whether this one found its row; without that, a missing one aborts.
    pub(crate) observed: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StmtKind {
    Assign(Target, Expr),
    /// Several at once: every value is read before the first is assigned.
    AssignAll(Vec<(Target, Expr)>),
    If(Expr, Vec<Stmt>, Vec<Stmt>),
    ForCount {
        var: VarId,
        from: Expr,
        to: Expr,
        lo: i64,
        hi: i64,
        step: i64,
        body: Vec<Stmt>,
    },
    ForRows {
        scan: Scan,
        source: SourceId,
        body: Vec<Stmt>,
    },
    /// Whole rows into a variable.
    Fill {
        scan: Scan,
        var: VarId,
    },
    Fetch {
        table: usize,
        access: Access,
        source: SourceId,
        write: bool,
        sets: Vec<(Target, Expr)>,
    },
    Insert {
        table: usize,
        values: Vec<Expr>,
    },
    Update {
        table: usize,
        access: Access,
        source: SourceId,
        sets: Vec<(usize, Expr)>,
    },
    Delete {
        table: usize,
        access: Access,
        source: SourceId,
    },
    /// Out of (or to the next round of) the loop that is this many loops up.
    Leave {
        again: bool,
        up: usize,
    },
    SetFound(Expr),
    Return,
    Raise(u16),
}

/// An abort of a procedure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abort {
    /// The abort code of the block.
    pub code: u16,
    /// What is raised, five characters.
    pub sqlstate: String,
    /// What is said.
    pub message: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Source {
    pub(crate) table: usize,
    /// The columns that are read of it.
    pub(crate) used: std::collections::BTreeSet<usize>,
    /// Whether bytes between columns are read too, so that only the row itself will do.
    pub(crate) whole: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Routine {
    pub(crate) name: String,
    pub(crate) variables: Vec<Variable>,
    pub(crate) sources: Vec<Source>,
    pub(crate) body: Vec<Stmt>,
    pub(crate) aborts: Vec<Abort>,
}
