//! A procedure from its statement: bound, lowered, put in order, given registers, written, and verified.

use lockwork_procedure::assembly::disassemble;
use lockwork_procedure::program::Procedure;
use lockwork_procedure::verify::verify;
use lockwork_procedure::{access, schema::Catalog};

use crate::bind::Binder;
use crate::catalogue::{Catalogue, writes};
use crate::error::{Result, SqlError, state};
use crate::ir::{allocate, emit, live, schedule};
use crate::lower::lower;
use crate::syntax::{CreateProcedure, Place};
use crate::tree::{Abort, Role, Routine, VarType};
use crate::types::SqlType;

/// The most instructions of the intermediate form.
const MAX_INSTRUCTIONS: usize = 60_000;

/// A parameter or result as SQL sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name: that of the field in the block. The result of an INOUT parameter `x` is `x_out`.
    pub name: String,
    /// Its type; `None` for whole rows of a table.
    pub sql_type: Option<SqlType>,
    /// Elements, of an array.
    pub count: Option<u32>,
}

/// A procedure that was compiled, and what callers want to know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// The procedure, which the verifier has accepted.
    pub procedure: Procedure,
    /// The parameters, in the order of CALL, as in `procedure.parameters`.
    pub parameters: Vec<Field>,
    /// The results, as in `procedure.results`.
    pub results: Vec<Field>,
    /// What it raises.
    pub aborts: Vec<Abort>,
    /// The line of the source of each instruction; 0 for those that have none.
    pub lines: Vec<u32>,
    /// The tables that it writes.
    pub writes: Vec<String>,
}

impl Compiled {
    /// SQLSTATE and message of an abort code of a call: one of the procedure's own, or one of the system's.
    #[must_use]
    pub fn describe(&self, code: u16) -> (String, String) {
        use lockwork_procedure::block::abort as a;
        if let Some(abort) = self.aborts.iter().find(|abort| abort.code == code) {
            return (abort.sqlstate.clone(), abort.message.clone());
        }
        let sqlstate = match code {
            a::NOT_FOUND => "P0002",
            a::DUPLICATE_KEY => "23505",
            a::OVERFLOW | a::OUT_OF_RANGE | a::VALUE_TOO_WIDE => "22003",
            a::DIVISION_BY_ZERO => "22012",
            a::TOO_MANY_RETRIES => "40001",
            a::OUT_OF_MEMORY | a::TOO_MANY_GRANTS => "53200",
            a::UNKNOWN_PROCEDURE => "42883",
            a::MEMORY_ERROR | a::DEVICE_LOST => "58030",
            a::BLOCK_TOO_SHORT => "08P01",
            a::REQUEST_REUSED => "22R01",
            a::REQUEST_TOO_OLD => "22R02",
            _ => "P0001",
        };
        let message = a::describe(code).map_or_else(|| format!("abort {code}"), str::to_string);
        (sqlstate.to_string(), message)
    }
}

/// Compiles a CREATE PROCEDURE.
pub(crate) fn procedure(catalogue: &Catalogue, create: &CreateProcedure) -> Result<Compiled> {
    let routine = Binder::new(catalogue, &create.name.text).procedure(create)?;
    routine_of(catalogue, &routine, create.name.place)
}

/// Compiles what was bound.
pub(crate) fn routine_of(catalogue: &Catalogue, routine: &Routine, place: Place) -> Result<Compiled> {
    let mut refusal = None;
    // Bounds that follow from types are believed first; if the verifier cannot follow, they are checked.
    for trusting in [true, false] {
        let mut program = lower(routine, catalogue, trusting);
        let length: usize = program.blocks.iter().map(|block| block.code.len()).sum();
        if length > MAX_INSTRUCTIONS || program.tables.len() > 256 {
            let message = format!("the procedure has {length} instructions and {} tables", program.tables.len());
            let hint = format!("at most {MAX_INSTRUCTIONS} instructions and 256 tables are possible");
            return Err(SqlError::new(state::TOO_COMPLEX, place, message).hint(hint));
        }
        live::prune(&mut program);
        schedule::schedule(&mut program);
        let allocation = allocate::allocate(&program, place)?;
        let names = program.tables.iter().map(|(_, schema)| schema.name().to_string()).collect();
        let Some((procedure, lines)) = emit::emit(&routine.name, names, &program, &allocation) else {
            let error = SqlError::new(state::INTERNAL, place, "a jump of this procedure goes nowhere");
            return Err(error.hint("this is a bug of the compiler"));
        };
        match verify(procedure, catalogue) {
            Ok(verified) => return Ok(complete(routine, verified.procedure().clone(), lines)),
            Err(error) => {
                let line = error.at.and_then(|(at, _)| lines.get(at as usize).copied()).filter(|&line| line > 0);
                refusal = Some((line, error));
            }
        }
    }
    let (line, error) = refusal.unwrap_or_else(|| unreachable!("both ways were tried"));
    let place = line.map_or(place, |line| Place { line, column: 1 });
    let too_large =
        error.problem.contains("steps") || error.problem.contains("too complex") || error.problem.contains("at most");
    let sqlstate = if too_large { state::TOO_COMPLEX } else { state::INTERNAL };
    let message = format!("the machine does not take this procedure: {error}");
    let error = SqlError::new(sqlstate, place, message);
    Err(match too_large {
        true => error
            .hints("use fewer or shorter loops and smaller arrays", "write a smaller LIMIT, or fewer keys or values"),
        false => error.hint("this is a bug of the compiler"),
    })
}

fn complete(routine: &Routine, procedure: Procedure, lines: Vec<u32>) -> Compiled {
    let (mut parameters, mut results) = (Vec::new(), Vec::new());
    for variable in &routine.variables {
        let sql_type = match variable.var_type {
            VarType::Sql(sql) => Some(sql),
            VarType::Rows { .. } => None,
        };
        let field = |name: String| Field { name, sql_type, count: variable.count };
        match variable.role {
            Role::In => parameters.push(field(variable.name.clone())),
            Role::Out => results.push(field(variable.name.clone())),
            Role::InOut => {
                parameters.push(field(variable.name.clone()));
                results.push(field(format!("{}_out", variable.name)));
            }
            Role::Local => {}
        }
    }
    // The block has them in the order of its fields.
    let place = |names: &[lockwork_procedure::program::Field], name: &str| {
        names.iter().position(|field| field.name == name).unwrap_or(usize::MAX)
    };
    parameters.sort_by_key(|field| place(&procedure.parameters, &field.name));
    results.sort_by_key(|field| place(&procedure.results, &field.name));
    let writes = writes(&procedure);
    Compiled { procedure, parameters, results, aborts: routine.aborts.clone(), lines, writes }
}

/// What a procedure is for the machine: its instructions with the lines of `source` that they come from, its access
/// set, and what it raises.
///
/// # Errors
/// The procedure does not go with the catalogue.
pub fn explain(compiled: &Compiled, catalogue: &Catalogue, source: &str) -> std::result::Result<String, SqlError> {
    use std::fmt::Write;
    let verified = verify(compiled.procedure.clone(), catalogue as &Catalogue).map_err(|error| {
        SqlError::new(state::INTERNAL, Place::START, error.to_string())
            .hint("explain it with the tables it was made with")
    })?;
    let set = access::access_set(&verified);
    let mut text = access::explain(&verified, &set);
    let (gp, cp) = (verified.gp_registers(), verified.cp_registers());
    let layout = compiled.procedure.layout();
    let _ = writeln!(
        text,
        "{} instructions, {gp} registers, {cp} look-ups at once, a block of {} bytes",
        compiled.procedure.code.len(),
        layout.block_bytes
    );
    for Abort { code, sqlstate, message } in &compiled.aborts {
        let _ = writeln!(text, "abort {code}: {sqlstate} {message}");
    }
    text.push('\n');
    let listing = disassemble(&compiled.procedure, catalogue);
    let mut instruction = 0;
    let mut shown = 0;
    for line in listing.lines() {
        if !line.starts_with("    ") {
            let _ = writeln!(text, "{line}");
            continue;
        }
        let number = compiled.lines.get(instruction).copied().unwrap_or(0);
        instruction += 1;
        let beside = source.lines().nth(number.saturating_sub(1) as usize).filter(|_| number > 0 && number != shown);
        match beside {
            Some(beside) => {
                shown = number;
                let _ = writeln!(text, "{line:<52}; {number}: {}", beside.trim());
            }
            None => {
                let _ = writeln!(text, "{line}");
            }
        }
    }
    debug_assert!(!catalogue.table_names().is_empty() || compiled.procedure.tables.is_empty());
    Ok(text)
}
