//! Statements outside of procedures: their constants become parameters, and what they answer becomes results.

use crate::bind::Binder;
use crate::catalogue::Constant;
use crate::compile::Compiled;
use crate::error::{Result, SqlError, state, unsupported};
use crate::syntax::{self, Expr as Written, ExprKind as W, Name, StmtKind as S};
use crate::tree::Routine;
use crate::types::SqlType;
use crate::value::Value;

/// A routine, the arguments of its call, and the names of the columns that it answers.
pub(crate) type Bound = (Routine, Vec<Constant>, Vec<String>);

/// The arguments of a CALL.
pub(crate) fn arguments(name: &Name, written: &[Written], compiled: &Compiled) -> Result<Vec<Value>> {
    if written.len() != compiled.parameters.len() {
        let (given, needed) = (written.len(), compiled.parameters.len());
        let names: Vec<&str> = compiled.parameters.iter().map(|field| field.name.as_str()).collect();
        let message = format!("procedure '{}' takes {needed} arguments, and {given} are given", name.text);
        let error = SqlError::new(state::UNDEFINED_PROCEDURE, name.place, message);
        return Err(error.hint(format!("its parameters are: {}", names.join(", "))));
    }
    let one = |written: &Written, sql: SqlType| {
        let catalogue = crate::catalogue::Catalogue::new();
        let constant = Binder::new(&catalogue, "call").constant_of(written, sql)?;
        Ok(Value::of_constant(constant, Some(sql)))
    };
    let argument = |(written, field): (&Written, &crate::compile::Field)| {
        let Some(sql) = field.sql_type else {
            return unsupported(written.place, "rows cannot be given as constants", "call it from a program");
        };
        match (&written.kind, field.count) {
            (_, None) => one(written, sql),
            (W::Call(function, elements), Some(count)) if function.text == "array" => {
                if elements.len() > count as usize {
                    let message = format!("'{}' has {count} elements, and {} are given", field.name, elements.len());
                    return Err(SqlError::new(state::OUT_OF_RANGE, written.place, message));
                }
                elements.iter().map(|element| one(element, sql)).collect::<Result<_>>().map(Value::Array)
            }
            (_, Some(_)) => unsupported(written.place, format!("'{}' is an array", field.name), "write ARRAY(1, 2, 3)"),
        }
    };
    written.iter().zip(&compiled.parameters).map(argument).collect()
}

/// A statement with what makes it one that answers: `rows` counts.
pub(crate) fn counted(stmt: &syntax::Stmt) -> Result<Vec<syntax::Stmt>> {
    let place = stmt.place;
    let make = |kind| syntax::Stmt { kind, place };
    let name = |text: &str| Name { text: text.into(), place };
    let number = |text: &str| Written { kind: W::Number(text.into()), place };
    let variable = |text: &str| Written { kind: W::Name(Some(name(":")), name(text)), place };
    let set = |value: Written| make(S::Assign(syntax::Target { name: name("rows"), index: None }, value));
    let found = Written { kind: W::Name(None, name("found")), place };
    let when_found =
        |value: Written| make(S::If { arms: vec![(found.clone(), vec![set(value)])], otherwise: Vec::new() });
    match &stmt.kind {
        S::Insert { rows, ignore: false, .. } => Ok(vec![stmt.clone(), set(number(&rows.len().to_string()))]),
        S::Insert { .. } | S::Update { limit: None, .. } | S::Delete { limit: None, .. } => {
            Ok(vec![stmt.clone(), when_found(number("1"))])
        }
        // A range: the rows are counted by a loop of the same rows in front.
        S::Update { table, filter, order, limit, .. } | S::Delete { table, filter, order, limit } => {
            let more = Written {
                kind: W::Binary(syntax::BinaryOp::Add, Box::new(variable("rows")), Box::new(number("1"))),
                place,
            };
            let select = syntax::Select {
                items: vec![syntax::Item::All(place)],
                into: Vec::new(),
                from: syntax::From::Table(table.clone(), None),
                filter: filter.clone(),
                order: order.clone(),
                limit: limit.clone(),
                for_update: false,
                place,
            };
            let count = S::ForRows { label: None, variable: name("counted_row"), select, body: vec![set(more)] };
            Ok(vec![make(count), stmt.clone()])
        }
        _ => unsupported(place, "this statement stands in procedures only", "write it in CREATE PROCEDURE"),
    }
}
