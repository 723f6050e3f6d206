//! CREATE TABLE and CREATE INDEX.

use lockwork_procedure::schema::{ROW_HEADER_BYTES, TableSchema};

use super::Binder;
use crate::catalogue::{Catalogue, Constant, Index, Table};
use crate::error::{Result, SqlError, state, unsupported};
use crate::syntax::{CreateIndex, CreateTable, Division, Name, Place};
use crate::tree::ExprKind;

fn refused(place: Place, error: impl std::fmt::Display) -> SqlError {
    SqlError::new(state::INVALID_DEFINITION, place, error.to_string())
}

/// The columns of the key, as positions in the declaration.
fn key(create: &CreateTable) -> Result<Vec<usize>> {
    let place = create.name.place;
    let inline: Vec<usize> = (0..create.columns.len()).filter(|&at| create.columns[at].primary).collect();
    let named = match &create.primary {
        None => inline.clone(),
        Some(_) if !inline.is_empty() => {
            return Err(refused(place, format!("table '{}' has two primary keys", create.name.text)));
        }
        Some(names) => {
            let mut all = Vec::new();
            for Name { text, place } in names {
                let column = create.columns.iter().position(|column| column.name.text == *text);
                let Some(column) = column else {
                    let message = format!("table '{}' has no column '{text}'", create.name.text);
                    return Err(SqlError::new(state::UNDEFINED_COLUMN, *place, message));
                };
                if all.contains(&column) {
                    return Err(refused(*place, format!("'{text}' stands twice in the primary key")));
                }
                all.push(column);
            }
            all
        }
    };
    match named.len() {
        0 => {
            let error = refused(place, format!("table '{}' has no primary key", create.name.text));
            Err(error.hint("add PRIMARY KEY (columns): rows are found by it"))
        }
        1 => Ok(named),
        _ if create.primary.is_none() => {
            Err(refused(place, "several columns are PRIMARY KEY").hint("write PRIMARY KEY (a, b) after the columns"))
        }
        _ => Ok(named),
    }
}

/// The table of a CREATE TABLE.
pub(crate) fn table(catalogue: &Catalogue, create: &CreateTable) -> Result<Table> {
    let place = create.name.place;
    catalogue.check_free(&create.name.text, place)?;
    let key = key(create)?;
    for (at, column) in create.columns.iter().enumerate() {
        if create.columns[..at].iter().any(|other| other.name.text == column.name.text) {
            let message = format!("column '{}' is declared twice", column.name.text);
            return Err(SqlError::new(state::DUPLICATE_COLUMN, column.name.place, message));
        }
        if !column.not_null && !key.contains(&at) {
            let message = format!("column '{}' could be NULL, and there are no NULLs", column.name.text);
            let hint = "add NOT NULL, and use a value of your own for 'none'";
            return unsupported(column.name.place, message, hint);
        }
    }
    // Columns of the key come first in a row.
    let others = (0..create.columns.len()).filter(|at| !key.contains(at));
    let order: Vec<usize> = key.iter().copied().chain(others).collect();
    let columns: Vec<_> = order
        .iter()
        .map(|&at| (create.columns[at].name.text.as_str(), create.columns[at].sql_type.storage()))
        .collect();
    let ordered = create.ordered.unwrap_or(key.len() > 1);
    let mut schema =
        TableSchema::new(&create.name.text, &columns, key.len(), ordered).map_err(|error| refused(place, error))?;
    if let Some(column) = &create.partition {
        schema = schema.partition_by_hash(&column.text).map_err(|error| refused(column.place, error))?;
    }
    if create.division == Division::Replicated {
        schema = schema.replicate();
    }
    let mut defaults = Vec::new();
    for &at in &order {
        let column = &create.columns[at];
        let Some(written) = &column.default else {
            defaults.push(None);
            continue;
        };
        let hint = "give rows their values in INSERT, where CURRENT_TIMESTAMP is possible too";
        let mut binder = Binder::of_constant(catalogue, "a DEFAULT", hint);
        let value = binder.expression(written)?;
        let value = binder.coerce(value, column.sql_type)?;
        defaults.push(Some(match value.kind {
            ExprKind::Const(number) => Constant::Number(number),
            ExprKind::String(bytes) | ExprKind::Text(bytes) => Constant::String(bytes),
            _ => return unsupported(written.place, "a DEFAULT is a constant", hint),
        }));
    }
    let mut declared: Vec<usize> = vec![0; order.len()];
    order.iter().enumerate().for_each(|(position, &at)| declared[at] = position);
    let types = order.iter().map(|&at| create.columns[at].sql_type).collect();
    Ok(Table { schema, types, declared, defaults, indexes: Vec::new(), index_of: None })
}

/// The index of a CREATE INDEX.
pub(crate) fn index(catalogue: &Catalogue, create: &CreateIndex) -> Result<Index> {
    let place = create.name.place;
    catalogue.check_free(&create.name.text, place)?;
    let number = catalogue.resolve(&create.table.text, create.table.place)?;
    let table = &catalogue.tables()[number];
    let schema = table.schema();
    if table.index_of.is_some() {
        return Err(refused(create.table.place, format!("'{}' is an index itself", create.table.text)));
    }
    let mut columns = Vec::new();
    for Name { text, place } in &create.columns {
        let Some((column, _)) = schema.column(text) else {
            let message = format!("table '{}' has no column '{text}'", schema.name());
            return Err(SqlError::new(state::UNDEFINED_COLUMN, *place, message));
        };
        if columns.contains(&column) {
            return Err(SqlError::new(state::DUPLICATE_COLUMN, *place, format!("'{text}' stands twice in the index")));
        }
        columns.push(column);
    }
    let named = columns.len();
    columns.extend((0..schema.key().len()).filter(|column| !columns.contains(column)).collect::<Vec<_>>());
    let described: Vec<_> = columns
        .iter()
        .map(|&column| (schema.columns()[column].name.as_str(), schema.columns()[column].column_type))
        .collect();
    let made = TableSchema::new(&create.name.text, &described, described.len(), true);
    let mut made = made.map_err(|error| {
        refused(place, error).hint("an index holds its columns and the primary key, together at most 32 bytes")
    })?;
    match schema.partitioning() {
        Some(lockwork_procedure::partitioning::Partitioning::Hash(column)) => {
            let name = &schema.columns()[column].name;
            made = made.partition_by_hash(name).map_err(|error| refused(place, error))?;
        }
        Some(lockwork_procedure::partitioning::Partitioning::Replicated) => made = made.replicate(),
        None => {}
    }
    let writers = catalogue.writers(schema.name());
    if !writers.is_empty() {
        let message = format!("procedures write table '{}' and do not know of this index", schema.name());
        let hint = format!(
            "make indexes before the procedures that write their table, in a new folder if need be: {}",
            writers.join(", ")
        );
        return Err(SqlError::new(state::IN_USE, place, message).hint(hint));
    }
    let at = |offset: u32| (offset - ROW_HEADER_BYTES) as usize;
    let moves = columns
        .iter()
        .zip(made.columns())
        .map(|(&column, to)| (at(schema.columns()[column].offset), at(to.offset), to.column_type.width() as usize));
    let moves = moves.collect();
    Ok(Index { name: create.name.text.clone(), table: schema.name().to_string(), schema: made, columns, named, moves })
}
