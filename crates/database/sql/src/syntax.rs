//! Statements as they are written, every piece with its place.

use crate::types::SqlType;

/// Where something stands in a text, both counted from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
}

impl Place {
    pub(crate) const START: Self = Self { line: 1, column: 1 };
}

/// A name, in lower case unless it was quoted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) text: String,
    pub(crate) place: Place,
}

/// A type, and how many elements there are if it is an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TypeName {
    Sql(SqlType, Option<u32>),
    /// `table%ROWTYPE[n]`: whole rows, as a scan delivers them; without `[n]` one row.
    Rows(Name, Option<u32>),
    /// `table.column%TYPE`: the type of a column, or an array of it.
    Column(Name, Name, Option<u32>),
    /// `variable%TYPE`: the type of a variable that is declared before, or an array of it.
    Variable(Name, Option<u32>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expr {
    pub(crate) kind: ExprKind,
    pub(crate) place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BinaryOp {
    Add,
    Sub,
    Mul,
    Div,
    Rem,
    Concat,
    And,
    Or,
    Compare(Comparison),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Comparison {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl Comparison {
    /// The comparison that holds when this one does not.
    pub(crate) const fn negate(self) -> Self {
        match self {
            Self::Eq => Self::Ne,
            Self::Ne => Self::Eq,
            Self::Lt => Self::Ge,
            Self::Le => Self::Gt,
            Self::Gt => Self::Le,
            Self::Ge => Self::Lt,
        }
    }

    /// The comparison of the sides exchanged.
    pub(crate) const fn flip(self) -> Self {
        match self {
            Self::Lt => Self::Gt,
            Self::Le => Self::Ge,
            Self::Gt => Self::Lt,
            Self::Ge => Self::Le,
            same => same,
        }
    }

    pub(crate) const fn holds(self, order: std::cmp::Ordering) -> bool {
        match self {
            Self::Eq => order.is_eq(),
            Self::Ne => order.is_ne(),
            Self::Lt => order.is_lt(),
            Self::Le => order.is_le(),
            Self::Gt => order.is_gt(),
            Self::Ge => order.is_ge(),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ExprKind {
    Number(String),
    Text(String),
    Bytes(Vec<u8>),
    Null,
    /// The default of a column, as a value of INSERT or UPDATE.
    Default,
    Bool(bool),
    Timestamp(String),
    /// `$1` and so on, of a single statement: a value that comes when it runs.
    Placeholder(u16),
    /// `$n::VARCHAR`: a text as long as its place.
    TextPlaceholder(u16),
    /// `name` or `qualifier.name`.
    Name(Option<Name>, Name),
    Element(Name, Box<Expr>),
    Negate(Box<Expr>),
    Not(Box<Expr>),
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    Between(Box<Expr>, Box<Expr>, Box<Expr>),
    In(Box<Expr>, Vec<Expr>),
    /// `value = ANY($n)`: the parameter is an array.
    AnyOf(Box<Expr>, u16),
    Case {
        operand: Option<Box<Expr>>,
        arms: Vec<(Expr, Expr)>,
        otherwise: Option<Box<Expr>>,
    },
    Call(Name, Vec<Expr>),
    CountAll,
    Cast(Box<Expr>, SqlType),
    Substring(Box<Expr>, Box<Expr>, Box<Expr>),
}

impl Expr {
    /// The expressions that this one consists of.
    pub(crate) fn parts(&self) -> Vec<&Self> {
        match &self.kind {
            ExprKind::Number(_)
            | ExprKind::Text(_)
            | ExprKind::Bytes(_)
            | ExprKind::Null
            | ExprKind::Default
            | ExprKind::Bool(_)
            | ExprKind::Timestamp(_)
            | ExprKind::Placeholder(_)
            | ExprKind::TextPlaceholder(_)
            | ExprKind::Name(..)
            | ExprKind::CountAll => Vec::new(),
            ExprKind::Element(_, a)
            | ExprKind::Negate(a)
            | ExprKind::Not(a)
            | ExprKind::AnyOf(a, _)
            | ExprKind::Cast(a, _) => vec![a],
            ExprKind::Binary(_, a, b) => vec![a, b],
            ExprKind::Between(a, b, c) | ExprKind::Substring(a, b, c) => vec![a, b, c],
            ExprKind::In(a, list) => std::iter::once(&**a).chain(list).collect(),
            ExprKind::Case { operand, arms, otherwise } => {
                let arms = arms.iter().flat_map(|(condition, value)| [condition, value]);
                operand.as_deref().into_iter().chain(arms).chain(otherwise.as_deref()).collect()
            }
            ExprKind::Call(_, arguments) => arguments.iter().collect(),
        }
    }
}

/// What is assigned to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Target {
    pub(crate) name: Name,
    /// A column of a variable that is a row.
    pub(crate) field: Option<Name>,
    pub(crate) index: Option<Expr>,
}

/// One of a select list.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Item {
    All(Place),
    Expr(Expr, Option<Name>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Select {
    pub(crate) items: Vec<Item>,
    pub(crate) into: Vec<Target>,
    pub(crate) from: From,
    pub(crate) filter: Option<Expr>,
    pub(crate) order: Vec<Name>,
    pub(crate) limit: Option<Expr>,
    pub(crate) for_update: bool,
    pub(crate) place: Place,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum From {
    Table(Name, Option<Name>),
    Select(Box<Select>, Option<Name>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stmt {
    pub(crate) kind: StmtKind,
    pub(crate) place: Place,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StmtKind {
    Assign(Target, Expr),
    Select(Select),
    Insert { table: Name, columns: Option<Vec<Name>>, rows: Vec<Vec<Expr>>, ignore: bool },
    Update { table: Name, sets: Vec<(Name, Expr)>, filter: Option<Expr>, order: Vec<Name>, limit: Option<Expr> },
    Delete { table: Name, filter: Option<Expr>, order: Vec<Name>, limit: Option<Expr> },
    If { arms: Vec<(Expr, Vec<Stmt>)>, otherwise: Vec<Stmt> },
    ForCount { label: Option<Name>, variable: Name, from: Expr, to: Expr, step: Option<Expr>, body: Vec<Stmt> },
    ForRows { label: Option<Name>, variable: Name, select: Select, body: Vec<Stmt> },
    Leave { again: bool, label: Option<Name>, when: Option<Expr> },
    Return,
    Raise { message: String, state: Option<(String, Place)> },
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    In,
    Out,
    InOut,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Declaration {
    pub(crate) name: Name,
    pub(crate) type_name: TypeName,
    pub(crate) constant: bool,
    pub(crate) initial: Option<Expr>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CreateProcedure {
    pub(crate) name: Name,
    pub(crate) replace: bool,
    pub(crate) parameters: Vec<(Mode, Name, TypeName)>,
    pub(crate) declarations: Vec<Declaration>,
    pub(crate) body: Vec<Stmt>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ColumnDefinition {
    pub(crate) name: Name,
    pub(crate) sql_type: SqlType,
    pub(crate) not_null: bool,
    pub(crate) primary: bool,
    pub(crate) default: Option<Expr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Division {
    None,
    Replicated,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CreateTable {
    pub(crate) name: Name,
    pub(crate) columns: Vec<ColumnDefinition>,
    pub(crate) primary: Option<Vec<Name>>,
    pub(crate) ordered: Option<bool>,
    pub(crate) partition: Option<Name>,
    pub(crate) division: Division,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CreateIndex {
    pub(crate) name: Name,
    pub(crate) table: Name,
    pub(crate) columns: Vec<Name>,
}

/// A statement of a script.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Top {
    Table(CreateTable),
    Index(CreateIndex),
    Procedure(CreateProcedure),
    Explain(Name),
    /// Procedure, arguments, and the id of the request.
    Call(Name, Vec<Expr>, Option<Expr>),
    Single(Box<Stmt>),
    Transaction(Control),
}

/// A statement that begins or ends a transaction of several statements, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// BEGIN, START TRANSACTION.
    Begin {
        /// Whether it is READ ONLY, if it says so or READ WRITE.
        read_only: Option<bool>,
    },
    /// COMMIT, END.
    Commit,
    /// ROLLBACK, ABORT.
    RollBack,
    /// SAVEPOINT name.
    Savepoint(String),
    /// RELEASE SAVEPOINT name.
    Release(String),
    /// ROLLBACK TO SAVEPOINT name.
    RollBackTo(String),
}
