//! From statements as written to statements with every name resolved and every expression typed.
//!
//! A name in a statement on a table is a column if the table has one of this name, and else a variable; `:name` is
//! always a variable. FOR over a table, aggregates and writes of a range become the loops that they stand for.

mod access;
mod coerce;
pub(crate) mod define;
mod expression;
mod flow;
mod point;
mod removed;
mod strings;
mod table;
mod terms;
mod texts;
mod truth;

use std::collections::BTreeSet;

use crate::catalogue::{Catalogue, Table};
use crate::error::{Result, SqlError, state};
use crate::single::{Inserted, Purpose};
use crate::syntax::{self, Mode, Name, Place, TypeName};
use crate::tree::{
    Abort, Expr, ExprKind, Role, Routine, Source, SourceId, Stmt, StmtKind, Target, VarId, VarType, Variable,
};
use crate::types::SqlType;
use lockwork_procedure::isa::scan_stride;
use texts::string;

/// The most bytes that a variable may take.
const MAX_VARIABLE_BYTES: u64 = 1 << 19;

/// What a name means before tables are asked.
#[derive(Clone, Debug)]
enum Meaning {
    Variable(VarId),
    /// The rows of a FOR loop: name in the select list, column.
    Row(SourceId, Vec<(String, usize)>),
    /// A variable that is a row of a table: a variable for each column, in the order of the declaration.
    Record(Vec<(String, VarId)>),
}

/// An argument of a single statement.
#[derive(Clone, Debug)]
pub(crate) enum Lifted {
    Constant(crate::catalogue::Constant),
    /// `$n`.
    Placeholder(u16),
    /// The time when it runs.
    Now,
    Null,
    /// An array of these.
    List(Vec<Lifted>),
    /// How many elements the argument before has.
    Length,
    /// Whether `$n` is no NULL.
    IsKnown(u16),
    /// `$n`, which is compared with values of this type.
    Compared(u16, SqlType),
    /// How many bytes `$n` has, which is a text.
    LengthOf(u16),
}

pub(crate) struct Binder<'a> {
    catalogue: &'a Catalogue,
    routine: Routine,
    /// Names, innermost last.
    scope: Vec<(String, Meaning)>,
    constants: BTreeSet<VarId>,
    /// The table of the statement, by its name or alias.
    row: Option<(SourceId, String)>,
    /// Labels of the loops around, innermost last; a loop that the binder made has none and counts too.
    loops: Vec<Option<String>>,
    /// Whether FOUND says something here.
    found: bool,
    /// The arguments of a single statement, whose constants become parameters, and what each is for.
    lifted: Option<Vec<(Lifted, Purpose)>>,
    /// What the values are for that are read.
    purpose: Purpose,
    /// How many bytes the column has that a value goes into.
    room: Option<u32>,
    /// The row of a single INSERT of one.
    inserted: Option<Inserted>,
    /// Those of them that are texts, whatever length their places need.
    texts: Vec<(VarId, Place)>,
    /// Whether statements whose LIMITs are of one size share a procedure.
    shares: bool,
    /// What counts the rows that a single statement writes.
    rows: Option<VarId>,
    /// What has to be a constant here, and what to do instead of something else.
    constant: Option<(&'static str, &'static str)>,
    /// For how many elements there is room in a parameter that lists keys.
    capacity: u32,
    /// The decimals that `$1` and so on have at least in expressions.
    scales: &'a [u8],
    /// Whether this is a condition beside the key of a single statement: it has to hold of the rows that it holds of in
    /// a query, so what procedures compute otherwise is refused.
    as_query: bool,
}

impl<'a> Binder<'a> {
    pub(crate) fn new(catalogue: &'a Catalogue, name: &str) -> Self {
        let routine = Routine {
            name: name.to_string(),
            variables: Vec::new(),
            sources: Vec::new(),
            body: Vec::new(),
            aborts: Vec::new(),
        };
        Self {
            catalogue,
            routine,
            scope: Vec::new(),
            constants: BTreeSet::new(),
            row: None,
            loops: Vec::new(),
            found: false,
            lifted: None,
            purpose: Purpose::Any,
            room: None,
            inserted: None,
            texts: Vec::new(),
            shares: false,
            rows: None,
            constant: None,
            capacity: 1,
            scales: &[],
            as_query: false,
        }
    }

    /// As [`Self::new`], for a constant: `what` it is, and what to do instead of something else.
    pub(crate) fn of_constant(catalogue: &'a Catalogue, what: &'static str, hint: &'static str) -> Self {
        Self { constant: Some((what, hint)), ..Self::new(catalogue, "constant") }
    }

    fn table(&self, number: usize) -> &'a Table {
        &self.catalogue.tables()[number]
    }

    fn fresh(&mut self, name: &str, sql: SqlType, role: Role) -> VarId {
        self.routine.variables.push(Variable { name: name.into(), var_type: VarType::Sql(sql), count: None, role });
        self.routine.variables.len() - 1
    }

    fn source(&mut self, table: usize) -> SourceId {
        self.routine.sources.push(Source { table, used: BTreeSet::new(), whole: false });
        self.routine.sources.len() - 1
    }

    fn check_new(&self, name: &Name) -> Result<()> {
        if self.scope.iter().any(|(known, _)| *known == name.text) {
            let message = format!("'{}' is declared twice", name.text);
            return Err(SqlError::new(state::DUPLICATE_COLUMN, name.place, message));
        }
        Ok(())
    }

    /// Declares a variable that is a row of a table. Returns the variables of its columns.
    fn declare_record(&mut self, name: &Name, table: &Name) -> Result<Vec<VarId>> {
        self.check_new(name)?;
        let table = self.table(self.catalogue.resolve(&table.text, table.place)?);
        let columns = table.declared.iter().map(|&at| (table.schema.columns()[at].name.clone(), table.types[at]));
        let columns = columns.map(|(column, sql)| {
            let var = self.fresh(&format!("{}.{column}", name.text), sql, Role::Local);
            (column, var)
        });
        let columns: Vec<(String, VarId)> = columns.collect();
        let variables = columns.iter().map(|(_, var)| *var).collect();
        self.scope.push((name.text.clone(), Meaning::Record(columns)));
        Ok(variables)
    }

    /// The type of a variable, and its number of elements if it is an array.
    fn type_of_name(&self, type_name: &TypeName) -> Result<(VarType, Option<u32>)> {
        Ok(match type_name {
            TypeName::Sql(sql, count) => (VarType::Sql(*sql), *count),
            TypeName::Rows(table, count) => {
                let table = self.catalogue.resolve(&table.text, table.place)?;
                let bytes = scan_stride(self.table(table).schema(), None);
                (VarType::Rows { table, bytes }, Some(count.unwrap_or(1)))
            }
            TypeName::Column(table, column, count) => {
                let table = self.catalogue.resolve(&table.text, table.place)?;
                (VarType::Sql(self.table(table).types[self.named(table, column)?]), *count)
            }
            TypeName::Variable(name, count) => {
                let variable = &self.routine.variables[self.variable(name)?];
                match (variable.var_type, variable.count) {
                    (var_type, None) => (var_type, *count),
                    (var_type, own) if count.is_none() => (var_type, own),
                    _ => {
                        let message = format!("'{}' is an array, and there are no arrays of arrays", name.text);
                        return Err(SqlError::new(state::DATATYPE, name.place, message));
                    }
                }
            }
        })
    }

    fn declare(&mut self, name: &Name, type_name: &TypeName, role: Role) -> Result<VarId> {
        self.check_new(name)?;
        let (var_type, count) = self.type_of_name(type_name)?;
        let variable = Variable { name: name.text.clone(), var_type, count, role };
        let width = match var_type {
            VarType::Sql(sql) => u64::from(sql.storage().width()),
            VarType::Rows { bytes, .. } => u64::from(bytes),
        };
        if width * u64::from(count.unwrap_or(1)) > MAX_VARIABLE_BYTES {
            let message = format!("'{}' is larger than {MAX_VARIABLE_BYTES} bytes", name.text);
            return Err(SqlError::new(state::TOO_COMPLEX, name.place, message));
        }
        self.routine.variables.push(variable);
        let var = self.routine.variables.len() - 1;
        self.scope.push((name.text.clone(), Meaning::Variable(var)));
        Ok(var)
    }

    /// Binds a whole procedure.
    pub(crate) fn procedure(mut self, create: &syntax::CreateProcedure) -> Result<Routine> {
        for (mode, name, type_name) in &create.parameters {
            let role = match mode {
                Mode::In => Role::In,
                Mode::Out => Role::Out,
                Mode::InOut => Role::InOut,
            };
            self.declare(name, type_name, role)?;
        }
        let mut body = Vec::new();
        for declaration in &create.declarations {
            if let TypeName::Rows(table, None) = &declaration.type_name {
                let place = declaration.name.place;
                if declaration.constant || declaration.initial.is_some() {
                    let hint = "SELECT * INTO it, or assign its columns: row.column := value";
                    return crate::error::unsupported(place, "a row has no value to begin with", hint);
                }
                for var in self.declare_record(&declaration.name, table)? {
                    if !self.routine.variables[var].in_register() {
                        body.push(plain(StmtKind::Assign(Target::Var(var), string(Vec::new(), place)), place));
                    }
                }
                continue;
            }
            let var = self.declare(&declaration.name, &declaration.type_name, Role::Local)?;
            let place = declaration.name.place;
            match &declaration.initial {
                Some(initial) => {
                    let target = Target::Var(var);
                    let value = self.value_for(initial, &target, place)?;
                    body.push(plain(StmtKind::Assign(target, value), place));
                }
                // What lives in the block may hold what an earlier try of the transaction left there.
                None if !self.routine.variables[var].in_register() => {
                    body.push(plain(StmtKind::Assign(Target::Var(var), string(Vec::new(), place)), place));
                }
                None => {}
            }
            if declaration.constant {
                self.constants.insert(var);
            }
        }
        body.extend(self.statements(&create.body)?);
        self.check_removed(&body)?;
        self.routine.body = body;
        Ok(self.routine)
    }

    /// The abort code of something raised: `LWnnn` names it, the others get numbers from 1000 on.
    fn abort(&mut self, sqlstate: &str, message: &str, place: Place) -> Result<u16> {
        let good = sqlstate.len() == 5 && sqlstate.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit());
        if !good || sqlstate.starts_with("00") {
            let error = SqlError::new(state::INVALID_TEXT, place, format!("'{sqlstate}' is no SQLSTATE"));
            return Err(
                error.hint("use five digits and upper-case letters, such as 'P0001', or 'LW001' for abort code 1")
            );
        }
        let same = |abort: &&Abort| abort.sqlstate == sqlstate && abort.message == message;
        if let Some(known) = self.routine.aborts.iter().find(same) {
            return Ok(known.code);
        }
        let named = sqlstate.strip_prefix("LW").and_then(|digits| digits.parse::<u16>().ok());
        let highest = self.routine.aborts.iter().map(|abort| abort.code).max().unwrap_or(0);
        let code = named.unwrap_or(highest.max(999) + 1);
        if named.is_none() || !self.routine.aborts.iter().any(|abort| abort.code == code) {
            let (sqlstate, message) = (sqlstate.to_string(), message.to_string());
            self.routine.aborts.push(Abort { code, sqlstate, message });
        }
        Ok(code)
    }

    fn meaning(&self, name: &str) -> Option<&Meaning> {
        self.scope.iter().rev().find(|(known, _)| known == name).map(|(_, meaning)| meaning)
    }

    fn variable(&self, name: &Name) -> Result<VarId> {
        match self.meaning(&name.text) {
            Some(Meaning::Variable(var)) => Ok(*var),
            Some(Meaning::Row(..) | Meaning::Record(_)) => {
                let message = format!("'{}' is a row; name one of its columns", name.text);
                Err(SqlError::new(state::DATATYPE, name.place, message))
            }
            None => Err(self.unknown(name)),
        }
    }

    fn unknown(&self, name: &Name) -> SqlError {
        let mut known: Vec<&str> = self.scope.iter().map(|(known, _)| known.as_str()).collect();
        if let Some((source, _)) = &self.row {
            known.extend(
                self.table(self.routine.sources[*source].table).schema().columns().iter().map(|c| c.name.as_str()),
            );
        }
        let hint = match self.constant {
            Some((what, hint)) => format!("{what} is a constant: {hint}"),
            None if known.is_empty() => "nothing is declared".into(),
            None => format!("there are: {}", known.join(", ")),
        };
        SqlError::new(state::UNDEFINED_COLUMN, name.place, format!("nothing is called '{}'", name.text)).hint(hint)
    }

    /// The variable of a column of a variable that is a row.
    fn column_of_record(&self, row: &Name, column: &Name) -> Result<VarId> {
        let Some(Meaning::Record(columns)) = self.meaning(&row.text) else { return Err(self.unknown(row)) };
        columns.iter().find(|(known, _)| *known == column.text).map(|(_, var)| *var).ok_or_else(|| {
            let known: Vec<&str> = columns.iter().map(|(known, _)| known.as_str()).collect();
            let message = format!("'{}' has no column '{}'", row.text, column.text);
            let error = SqlError::new(state::UNDEFINED_COLUMN, column.place, message);
            error.hint(format!("its table has: {}", known.join(", ")))
        })
    }

    /// Targets, of which a row stands for all of its columns.
    fn columns_of_targets(&self, targets: &[syntax::Target]) -> Vec<syntax::Target> {
        let one = |target: &syntax::Target| match self.meaning(&target.name.text) {
            Some(Meaning::Record(columns)) if target.field.is_none() && target.index.is_none() => {
                let column = |(text, _): &(String, VarId)| {
                    let field = Some(Name { text: text.clone(), place: target.name.place });
                    syntax::Target { field, ..target.clone() }
                };
                columns.iter().map(column).collect()
            }
            _ => vec![target.clone()],
        };
        targets.iter().flat_map(one).collect()
    }

    fn target(&mut self, target: &syntax::Target) -> Result<Target> {
        let var = match &target.field {
            None => self.variable(&target.name)?,
            Some(column) => self.column_of_record(&target.name, column)?,
        };
        let variable = &self.routine.variables[var];
        if variable.role == Role::In || self.constants.contains(&var) {
            let what = if variable.role == Role::In { "a parameter" } else { "a constant" };
            let message = format!("'{}' is {what} and cannot be assigned to", target.name.text);
            return Err(SqlError::new("22005", target.name.place, message).hint("use INOUT, or a variable of its own"));
        }
        match &target.index {
            None => Ok(Target::Var(var)),
            Some(index) => {
                self.check_array(var, target.name.place)?;
                Ok(Target::Element(var, self.integer(index)?))
            }
        }
    }

    fn check_array(&self, var: VarId, place: Place) -> Result<()> {
        let variable = &self.routine.variables[var];
        if variable.count.is_some() && matches!(variable.var_type, VarType::Sql(_)) {
            return Ok(());
        }
        Err(SqlError::new(state::DATATYPE, place, format!("'{}' is no array", variable.name)))
    }

    /// A value of the type of what it is assigned to.
    fn value_for(&mut self, expr: &syntax::Expr, target: &Target, place: Place) -> Result<Expr> {
        let expr = self.expression(expr)?;
        self.fit_target(expr, target, place)
    }

    fn fit_target(&mut self, expr: Expr, target: &Target, place: Place) -> Result<Expr> {
        // What is assigned to a variable is no argument of a single statement.
        let lifted = self.lifted.take();
        let value = self.fit_variable(expr, target, place);
        self.lifted = lifted;
        value
    }

    fn fit_variable(&mut self, expr: Expr, target: &Target, place: Place) -> Result<Expr> {
        let (var, whole) = match target {
            Target::Var(var) => (*var, true),
            Target::Element(var, _) => (*var, false),
        };
        let variable = &self.routine.variables[var];
        match variable.var_type {
            VarType::Sql(sql) if variable.count.is_none() || !whole => {
                let register = variable.in_register();
                let value = self.coerce(expr, sql)?;
                Ok(if register { self.fitted(value, sql) } else { value })
            }
            VarType::Sql(SqlType::Integer(storage)) if storage.width() == 1 => {
                let bytes = variable.count.unwrap_or(1);
                self.coerce(expr, SqlType::Bytes(bytes))
            }
            _ if matches!(&expr.kind, ExprKind::String(bytes) | ExprKind::Text(bytes) if bytes.is_empty()) => Ok(expr),
            _ => {
                let message = format!("'{}' cannot be assigned as a whole", variable.name);
                let hint = "assign its elements; arrays of TINYINT UNSIGNED take texts and bytes";
                Err(SqlError::new(state::DATATYPE, place, message).hint(hint))
            }
        }
    }
}

/// Microseconds since 1970 of a text.
pub(crate) fn timestamp(text: &str) -> Result<i64> {
    strings::timestamp(text, Place::START)
}

fn plain(kind: StmtKind, place: Place) -> Stmt {
    Stmt { kind, place, observed: false }
}

impl<'a> Binder<'a> {
    /// Binds a single statement: its constants become parameters, and what it answers becomes results. Also its LIMIT
    /// becomes one if it `shares`, with room for more rows than it says. In a parameter that lists keys there is room
    /// for `capacity` of them. `scales` are the decimals that `$1` and so on have at least in expressions.
    pub(crate) fn single(
        mut self,
        stmt: &syntax::Stmt,
        shares: bool,
        capacity: u32,
        scales: &'a [u8],
    ) -> Result<crate::single::Bound> {
        (self.shares, self.capacity, self.scales) = (shares, capacity, scales);
        self.lifted = Some(Vec::new());
        let place = stmt.place;
        let name = |text: &str| Name { text: text.into(), place };
        let mut columns = Vec::new();
        let body = match &stmt.kind {
            syntax::StmtKind::Select(select) => self.answers(select, &mut columns)?,
            _ => crate::single::counted(stmt)?,
        };
        self.rows = Some(self.declare(&name("rows"), &TypeName::Sql(SqlType::BIGINT, None), Role::Out)?);
        self.routine.body = self.statements(&body)?;
        let constants = self.lifted.take().unwrap_or_default();
        for (var, place) in self.texts {
            if let VarType::Sql(sql) = self.routine.variables[var].var_type
                && !matches!(sql, SqlType::Text(_))
            {
                let message = format!("a text stands where {sql} is needed");
                return Err(SqlError::new(state::DATATYPE, place, message).hint("leave the cast away"));
            }
        }
        Ok((self.routine, constants, columns, self.inserted))
    }

    /// The statements of a SELECT that answers in arrays, which are declared here.
    fn answers(&mut self, select: &syntax::Select, columns: &mut Vec<String>) -> Result<Vec<syntax::Stmt>> {
        use syntax::{Expr, ExprKind as W, Item, StmtKind as S};
        let place = select.place;
        let name = |text: &str| Name { text: text.into(), place };
        if let Some(target) = select.into.first() {
            let hint = "leave INTO away: the rows are the answer";
            return crate::error::unsupported(target.name.place, "there are no variables here", hint);
        }
        let (table, alias) = self.from(select)?;
        let mut named = Vec::new();
        for item in &select.items {
            match item {
                Item::All(_) => {
                    let info = self.table(table);
                    named.extend(info.declared.iter().map(|&column| {
                        let own = info.schema.columns()[column].name.clone();
                        (own.clone(), own, info.types[column])
                    }));
                }
                Item::Expr(Expr { kind: W::Name(_, column), .. }, alias) => {
                    let info = self.table(table);
                    let Some((at, _)) = info.schema.column(&column.text) else { return Err(self.unknown(column)) };
                    let shown = alias.as_ref().unwrap_or(column).text.clone();
                    named.push((column.text.clone(), shown, info.types[at]));
                }
                Item::Expr(other, _) => {
                    let hint = "select columns; compute, count and sum in a procedure";
                    return crate::error::unsupported(
                        other.place,
                        "a SELECT outside of a procedure names columns",
                        hint,
                    );
                }
            }
        }
        let source = self.source(table);
        self.row = Some((source, alias));
        let by_key = self.rows_by_key(table, select.filter.as_ref(), place);
        self.row = None;
        self.routine.sources.pop();
        let by_key = by_key?;
        // The rows of a key, or as many as LIMIT says.
        let limit = match &select.limit {
            None => by_key.unwrap_or(1),
            Some(Expr { kind: W::Number(digits), place }) if digits.starts_with('-') => {
                return Err(access::negative_limit(*place));
            }
            Some(Expr { kind: W::Number(digits), .. }) => digits.parse().unwrap_or(0),
            Some(other) => {
                return crate::error::unsupported(other.place, "LIMIT is a constant here", "write the number");
            }
        };
        let limit: u32 = limit;
        if !(1..=access::MAX_ROWS as u32).contains(&limit) {
            let message = format!("LIMIT is 1 to {} here", access::MAX_ROWS);
            return crate::error::unsupported(place, message, "ask for fewer rows at a time");
        }
        let limit = if self.shares { access::shared_bound(limit) } else { limit };
        let limit = by_key.map_or(limit, |rows| rows.min(limit));
        let variable = |text: &str| Expr { kind: W::Name(Some(name(":")), name(text)), place };
        let one = Expr { kind: W::Number("1".into()), place };
        let more = Expr { kind: W::Binary(syntax::BinaryOp::Add, Box::new(variable("rows")), Box::new(one)), place };
        let set = |value| {
            let target = syntax::Target { name: name("rows"), field: None, index: None };
            syntax::Stmt { kind: S::Assign(target, value), place }
        };
        let mut targets = Vec::new();
        for (at, (_, shown, sql)) in named.iter().enumerate() {
            let result = format!("c{}", at + 1);
            self.declare(&name(&result), &TypeName::Sql(*sql, Some(limit)), Role::Out)?;
            targets.push(syntax::Target { name: name(&result), field: None, index: Some(variable("rows")) });
            columns.push(shown.clone());
        }
        let point = by_key == Some(1) && select.limit.is_none();
        let mut select = select.clone();
        if point {
            select.into = targets
                .into_iter()
                .map(|target| {
                    let one = Expr { kind: W::Number("1".into()), place };
                    syntax::Target { index: Some(one), ..target }
                })
                .collect();
            let found = Expr { kind: W::Name(None, name("found")), place };
            let one = Expr { kind: W::Number("1".into()), place };
            let counted = S::If { arms: vec![(found, vec![set(one)])], otherwise: Vec::new() };
            return Ok(vec![syntax::Stmt { kind: S::Select(select), place }, syntax::Stmt { kind: counted, place }]);
        }
        let row = |column: &str| Expr { kind: W::Name(Some(name("row")), name(column)), place };
        let mut body = vec![set(more)];
        for ((column, ..), target) in named.iter().zip(targets) {
            body.push(syntax::Stmt { kind: S::Assign(target, row(column)), place });
        }
        select.items = named
            .iter()
            .map(|(column, ..)| Item::Expr(Expr { kind: W::Name(None, name(column)), place }, None))
            .collect();
        Ok(vec![syntax::Stmt { kind: S::ForRows { label: None, variable: name("row"), select, body }, place }])
    }
}
