//! CREATE PROCEDURE: parameters, declarations and the statements of a body.

use sqlparser::tokenizer::Token;

use super::cursor::Cursor;
use super::define::type_name;
use super::expression::expression;
use super::statement::{data, select, target};
use crate::error::{Result, SqlError, state, syntax, unsupported};
use crate::syntax::{CreateProcedure, Declaration, Mode, Name, Place, Stmt, StmtKind, TypeName};

/// How deep statements may lie in each other.
const MAX_DEPTH: u32 = 40;

/// The most ELSIF in front of a statement: each one lies in the arm behind the one before.
const MAX_ARMS: u32 = 500;

/// Everything after CREATE PROCEDURE.
pub(super) fn create(cursor: &mut Cursor, replace: bool) -> Result<CreateProcedure> {
    let name = cursor.object("the name of the procedure")?;
    let mut parameters = Vec::new();
    cursor.expect("(")?;
    if !cursor.is(")") {
        parameters = cursor.list(parameter)?;
    }
    cursor.expect(")")?;
    if cursor.eat("LANGUAGE") {
        cursor.name("the name of a language")?;
    }
    if !cursor.eat("AS") {
        cursor.expect("IS")?;
    }
    let place = cursor.place();
    let quoted = match cursor.token() {
        Token::DollarQuotedString(body) => {
            let tag = body.tag.as_ref().map_or(0, |tag| tag.chars().count()) as u32;
            Some((body.value.clone(), Place { column: place.column + tag + 2, ..place }))
        }
        _ => None,
    };
    let (declarations, body) = match quoted {
        Some((text, place)) => {
            cursor.advance();
            let mut inner = Cursor::nested(&text, place)?;
            let body = block(&mut inner)?;
            inner.eat(";");
            if !inner.at_end() {
                return inner.expected("the end of the body");
            }
            if cursor.eat("LANGUAGE") {
                cursor.name("the name of a language")?;
            }
            body
        }
        // psql ends a statement at the first END that has a semicolon behind it, which may be that of an IF.
        None => block(cursor).map_err(|error| match cursor.at_end() {
            true => error.hint("psql cuts a body that stands free: write it between $$ and $$"),
            false => error,
        })?,
    };
    Ok(CreateProcedure { name, replace, parameters, declarations, body })
}

fn parameter(cursor: &mut Cursor) -> Result<(Mode, Name, TypeName)> {
    let word = |cursor: &mut Cursor| {
        [("INOUT", Mode::InOut), ("OUT", Mode::Out), ("IN", Mode::In)].into_iter().find(|(word, _)| cursor.eat(word))
    };
    let before = word(cursor);
    let name = cursor.name("the name of a parameter")?;
    let mode = before.or_else(|| word(cursor)).map_or(Mode::In, |(_, mode)| mode);
    let type_name = type_name(cursor, true)?;
    if cursor.is("DEFAULT") || cursor.is("=") {
        return unsupported(cursor.place(), "parameters have no defaults", "pass every argument");
    }
    Ok((mode, name, type_name))
}

fn block(cursor: &mut Cursor) -> Result<(Vec<Declaration>, Vec<Stmt>)> {
    let mut declarations = Vec::new();
    if cursor.eat("DECLARE") {
        while !cursor.is("BEGIN") {
            declarations.push(declaration(cursor)?);
            cursor.expect(";")?;
        }
    }
    cursor.expect("BEGIN")?;
    let body = statements(cursor, &["END", "EXCEPTION"])?;
    if cursor.is("EXCEPTION") {
        let hint = "an error always takes the whole transaction back; test before you write";
        return unsupported(cursor.place(), "EXCEPTION blocks are not supported", hint);
    }
    cursor.expect("END")?;
    if !cursor.is(";") && !cursor.at_end() {
        cursor.name("';'")?;
    }
    Ok((declarations, body))
}

fn declaration(cursor: &mut Cursor) -> Result<Declaration> {
    let name = cursor.name("the name of a variable, or BEGIN")?;
    let constant = cursor.eat("CONSTANT");
    if cursor.is("CURSOR") || cursor.is("RECORD") {
        return unsupported(cursor.place(), "cursors and records are not declared", "use FOR r IN SELECT ... LOOP");
    }
    let type_name = type_name(cursor, true)?;
    cursor.eat_all(&["NOT", "NULL"]);
    let initial =
        if cursor.eat(":=") || cursor.eat("=") || cursor.eat("DEFAULT") { Some(expression(cursor)?) } else { None };
    Ok(Declaration { name, type_name, constant, initial })
}

/// Statements up to one of the words that end them.
fn statements(cursor: &mut Cursor, ends: &[&str]) -> Result<Vec<Stmt>> {
    cursor.depth += 1;
    if cursor.depth > MAX_DEPTH {
        let message = format!("statements lie more than {MAX_DEPTH} deep in each other");
        return Err(SqlError::new(state::TOO_COMPLEX, cursor.place(), message));
    }
    let mut all = Vec::new();
    loop {
        while cursor.eat(";") {}
        if ends.iter().any(|end| cursor.is(end)) {
            break;
        }
        all.push(statement(cursor)?);
        cursor.expect(";")?;
    }
    cursor.depth -= 1;
    Ok(all)
}

fn statement(cursor: &mut Cursor) -> Result<Stmt> {
    let place = cursor.place();
    let label = if cursor.eat("<<") {
        let label = cursor.name("a label")?;
        cursor.expect(">>")?;
        Some(label)
    } else {
        None
    };
    if cursor.eat("FOR") {
        let kind = repeat(cursor, label)?;
        return Ok(Stmt { kind, place });
    }
    if cursor.is("WHILE") || cursor.is("LOOP") || cursor.is("REPEAT") {
        let hint = "every loop has a constant bound: write FOR i IN 1..100 LOOP ... EXIT WHEN done; ... END LOOP";
        return unsupported(place, "loops without a bound are not supported", hint);
    }
    if let Some(label) = label {
        return syntax(label.place, "a label stands before FOR");
    }
    if let Some(kind) = data(cursor)? {
        return Ok(Stmt { kind, place });
    }
    let kind = if cursor.eat("IF") {
        branch(cursor)?
    } else if cursor.eat("RETURN") {
        if !cursor.is(";") {
            return unsupported(cursor.place(), "a procedure returns no value", "assign it to an OUT parameter");
        }
        StmtKind::Return
    } else if cursor.is("EXIT") || cursor.is("CONTINUE") {
        let again = cursor.is("CONTINUE");
        cursor.advance();
        let plain = cursor.is(";") || cursor.is("WHEN");
        let label = if plain { None } else { Some(cursor.name("a label, WHEN or ';'")?) };
        let when = if cursor.eat("WHEN") { Some(expression(cursor)?) } else { None };
        StmtKind::Leave { again, label, when }
    } else if cursor.eat("RAISE") {
        raise(cursor)?
    } else if cursor.eat("NULL") {
        StmtKind::Nothing
    } else if cursor.is("CASE") {
        return unsupported(place, "CASE as a statement is not supported", "use IF ... ELSIF ... ELSE ... END IF");
    } else if cursor.is("CALL") || cursor.is("PERFORM") {
        return unsupported(place, "a procedure calls no other", "write its statements here");
    } else if cursor.is("EXECUTE") {
        return unsupported(place, "statements made at run time are not supported", "write the statement itself");
    } else if cursor.is("COMMIT") || cursor.is("ROLLBACK") {
        let hint = "RETURN commits, RAISE takes everything back";
        return unsupported(place, "a procedure is one transaction", hint);
    } else if cursor.is("BEGIN") || cursor.is("DECLARE") {
        return unsupported(place, "blocks in blocks are not supported", "declare variables before the first BEGIN");
    } else {
        let target = target(cursor)?;
        if !cursor.eat(":=") && !cursor.eat("=") {
            return cursor.expected("':='");
        }
        StmtKind::Assign(target, expression(cursor)?)
    };
    Ok(Stmt { kind, place })
}

fn branch(cursor: &mut Cursor) -> Result<StmtKind> {
    let mut arms = Vec::new();
    let around = cursor.arms;
    loop {
        let condition = expression(cursor)?;
        cursor.expect("THEN")?;
        arms.push((condition, statements(cursor, &["ELSIF", "ELSEIF", "ELSE", "END"])?));
        let place = cursor.place();
        if !cursor.eat("ELSIF") && !cursor.eat("ELSEIF") {
            break;
        }
        cursor.arms += 1;
        if cursor.arms > MAX_ARMS {
            let message = format!("more than {MAX_ARMS} ELSIF stand in front of this one");
            let hint = "halve them: IF n < 500 THEN IF ... END IF; ELSE IF ... END IF; END IF";
            return Err(SqlError::new(state::TOO_COMPLEX, place, message).hint(hint));
        }
    }
    let otherwise = if cursor.eat("ELSE") { statements(cursor, &["END"])? } else { Vec::new() };
    cursor.expect("END")?;
    cursor.expect("IF")?;
    cursor.arms = around;
    Ok(StmtKind::If { arms, otherwise })
}

fn repeat(cursor: &mut Cursor, label: Option<Name>) -> Result<StmtKind> {
    let variable = cursor.name("the name of a variable")?;
    cursor.expect("IN")?;
    if cursor.is("REVERSE") {
        let hint = "count up, and compute the index from the counter";
        return unsupported(cursor.place(), "REVERSE is not supported", hint);
    }
    if cursor.is("SELECT") {
        let select = select(cursor)?;
        if let Some(target) = select.into.first() {
            return syntax(target.name.place, "the SELECT of a FOR has no INTO: its rows are the loop's variable");
        }
        let body = loop_body(cursor)?;
        return Ok(StmtKind::ForRows { label, variable, select, body });
    }
    let from = expression(cursor)?;
    cursor.expect("..")?;
    let to = expression(cursor)?;
    let step = if cursor.eat("BY") { Some(expression(cursor)?) } else { None };
    let body = loop_body(cursor)?;
    Ok(StmtKind::ForCount { label, variable, from, to, step, body })
}

fn loop_body(cursor: &mut Cursor) -> Result<Vec<Stmt>> {
    cursor.expect("LOOP")?;
    let body = statements(cursor, &["END"])?;
    cursor.expect("END")?;
    cursor.expect("LOOP")?;
    if !cursor.is(";") {
        cursor.name("';'")?;
    }
    Ok(body)
}

fn raise(cursor: &mut Cursor) -> Result<StmtKind> {
    let place = cursor.place();
    for word in ["NOTICE", "WARNING", "INFO", "LOG", "DEBUG"] {
        if cursor.is(word) {
            return unsupported(place, format!("RAISE {word} is not supported"), "answer in an OUT parameter");
        }
    }
    cursor.eat("EXCEPTION");
    let mut message = String::new();
    if !cursor.is("USING") && !cursor.is(";") {
        message = cursor.text("a message in quotes")?;
        if cursor.is(",") {
            let hint = "the message is constant; answer values in OUT parameters";
            return unsupported(cursor.place(), "a message has no arguments", hint);
        }
    }
    let mut state = None;
    if cursor.eat("USING") {
        loop {
            let place = cursor.place();
            if cursor.eat("ERRCODE") {
                cursor.expect("=")?;
                let place = cursor.place();
                state = Some((cursor.text("a SQLSTATE in quotes")?, place));
            } else if cursor.eat("MESSAGE") {
                cursor.expect("=")?;
                message = cursor.text("a message in quotes")?;
            } else {
                return unsupported(place, "only ERRCODE and MESSAGE are supported", "put everything into the message");
            }
            if !cursor.eat(",") {
                break;
            }
        }
    }
    Ok(StmtKind::Raise { message, state })
}
