//! The rows of the catalog: what PostgreSQL always has, and what was defined here.
//!
//! Numbers: tables and indexes have four each from 16384 on in the order of their definition (itself, the index of its
//! primary key, that constraint, one to spare), procedures one each from 2^30 on by their number in the database,
//! defaults from 2^29 on. So they stay as long as nothing is replaced.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock};

use lockwork::ProcedureDefinition;
use lockwork::sql::{Catalogue, Field, SqlType, Table, Value};
use rusqlite::{Connection, ToSql};

use super::types;
use crate::parameters;
use crate::values::type_of;

const FIRST: i64 = 16_384;
const FIRST_DEFAULT: i64 = 1 << 29;
const FIRST_PROCEDURE: i64 = 1 << 30;
const MAX_COLUMNS: i64 = 4096;

const PG_CATALOG: i64 = 11;
const PUBLIC: i64 = 2200;
const INFORMATION_SCHEMA: i64 = 13_000;
pub(super) const OWNER: i64 = 10;
const HEAP: i64 = 2;
const BTREE: i64 = 403;
const HASH: i64 = 405;
const ARRAY_IN: i64 = 750;

/// What functions of the catalog look up.
#[derive(Default)]
pub(super) struct Names {
    /// Schema and name of relations.
    pub(super) relations: HashMap<i64, (&'static str, String)>,
    /// Of an index its CREATE INDEX and its columns.
    pub(super) indexes: HashMap<i64, (String, Vec<String>)>,
    pub(super) constraints: HashMap<i64, String>,
    pub(super) procedures: HashMap<i64, Procedure>,
}

/// What functions say of a procedure.
pub(super) struct Procedure {
    pub(super) name: String,
    pub(super) arguments: String,
    pub(super) input: String,
    pub(super) definition: String,
}

/// The relations of `relations.txt`: number, schema, name, and columns with their types.
pub(super) fn relations() -> impl Iterator<Item = (i64, &'static str, &'static str, Vec<(&'static str, &'static str)>)>
{
    let text = include_str!("relations.txt");
    let mut lines = text.lines().filter(|line| !line.starts_with('#')).peekable();
    std::iter::from_fn(move || {
        let mut words: Vec<&str> = lines.next()?.split_whitespace().collect();
        while let Some(more) = lines.next_if(|line| line.starts_with(' ')) {
            words.extend(more.split_whitespace());
        }
        let (schema, name) = words.get(1)?.split_once('.')?;
        let columns = words.iter().skip(2).filter_map(|word| word.split_once(':')).collect();
        Some((words.first()?.parse().ok()?, schema, name, columns))
    })
}

/// Whether the catalog has a table of this name, in one of its schemas.
pub(super) fn is_table(name: &str) -> bool {
    static NAMES: LazyLock<HashSet<&str>> = LazyLock::new(|| relations().map(|(_, _, name, _)| name).collect());
    NAMES.contains(name)
}

/// The affinity of SQLite for a type, which is the last word of the type that a column is declared with.
fn affinity(name: &str) -> &'static str {
    match name {
        "oid" | "int2" | "int4" | "int8" | "bool" | "regproc" | "regtype" | "xid" => "INT DEFAULT 0",
        "float4" | "float8" => "REAL DEFAULT 0",
        "name" | "char" => "TEXT DEFAULT ''",
        _ => "TEXT",
    }
}

/// A table that gets rows.
struct Rows<'a> {
    insert: rusqlite::Statement<'a>,
}

impl<'a> Rows<'a> {
    fn of(connection: &'a Connection, table: &str, columns: &str) -> rusqlite::Result<Self> {
        let places = vec!["?"; columns.split(',').count()].join(",");
        Ok(Self { insert: connection.prepare(&format!("INSERT INTO {table} ({columns}) VALUES ({places})"))? })
    }

    fn add(&mut self, values: &[&dyn ToSql]) -> rusqlite::Result<()> {
        self.insert.execute(values).map(drop)
    }
}

/// An array, as the catalog keeps it.
fn array<T: std::fmt::Display>(values: impl IntoIterator<Item = T>) -> String {
    let values: Vec<String> = values.into_iter().map(|value| value.to_string()).collect();
    format!("[{}]", values.join(","))
}

fn texts<'a>(values: impl IntoIterator<Item = &'a str>) -> String {
    array(values.into_iter().map(super::array::quoted))
}

/// Makes all tables and fills them.
pub(super) fn fill(
    connection: &Connection,
    catalogue: &Catalogue,
    procedures: &[ProcedureDefinition],
) -> rusqlite::Result<Names> {
    connection.execute_batch("ATTACH ':memory:' AS pg_catalog; ATTACH ':memory:' AS information_schema; BEGIN")?;
    for (_, schema, name, columns) in relations() {
        let columns: Vec<String> =
            columns.iter().map(|(name, ty)| format!("\"{name}\" {ty} {}", affinity(ty))).collect();
        connection.execute_batch(&format!("CREATE TABLE {schema}.{name} ({})", columns.join(", ")))?;
    }
    connection.execute_batch(include_str!("always.sql"))?;
    let mut names = Names::default();
    fill_types(connection)?;
    fill_system(connection, &mut names)?;
    for (at, table) in catalogue.tables().iter().enumerate() {
        let oid = FIRST + 4 * at as i64;
        match table.index_of() {
            None => fill_table(connection, &mut names, table, oid)?,
            Some(base) => fill_index(connection, &mut names, catalogue, table, base, oid)?,
        }
    }
    for procedure in procedures {
        fill_procedure(connection, &mut names, procedure)?;
    }
    let mut settings = Rows::of(connection, "pg_settings", "name,setting,category,context,vartype,source,reset_val")?;
    for (name, value) in parameters::LIST.iter().chain(parameters::MORE) {
        settings.add(&[name, value, &"Lockwork", &"internal", &"string", &"default", value])?;
    }
    drop(settings);
    connection.execute_batch(include_str!("views.sql"))?;
    // What stands in an index is found by it: queries join by these.
    connection.execute_batch(
        "CREATE INDEX pg_catalog.class_oid ON pg_class (oid); CREATE INDEX pg_catalog.type_oid ON pg_type (oid);
         CREATE INDEX pg_catalog.class_name ON pg_class (relname);
         CREATE INDEX pg_catalog.attribute_of ON pg_attribute (attrelid, attnum);
         CREATE INDEX pg_catalog.index_of ON pg_index (indrelid); COMMIT; PRAGMA query_only = ON",
    )?;
    Ok(names)
}

fn fill_types(connection: &Connection) -> rusqlite::Result<()> {
    let columns = "oid,typname,typnamespace,typowner,typlen,typbyval,typtype,typcategory,typispreferred,typisdefined,\
                   typdelim,typelem,typarray,typinput,typalign,typstorage,typtypmod,typcollation";
    let mut rows = Rows::of(connection, "pg_type", columns)?;
    for row in types::LIST.iter() {
        let input = if row.category == "A" && row.name.starts_with('_') { ARRAY_IN } else { 0 };
        rows.add(&[
            &row.oid,
            &row.name,
            &PG_CATALOG,
            &OWNER,
            &row.length,
            &row.by_value,
            &row.kind,
            &row.category,
            &row.preferred,
            &true,
            &",",
            &row.element,
            &row.array,
            &input,
            &row.alignment,
            &row.storage,
            &-1,
            &row.collation,
        ])?;
    }
    Ok(())
}

/// A row of `pg_class`.
#[derive(Clone, Copy)]
struct Relation<'a> {
    oid: i64,
    schema: i64,
    name: &'a str,
    kind: &'a str,
    method: i64,
    columns: usize,
    has_index: bool,
}

fn add_relation(connection: &Connection, relation: Relation<'_>) -> rusqlite::Result<()> {
    let columns = "oid,relname,relnamespace,relowner,relam,relfilenode,relhasindex,relpersistence,relkind,relnatts,\
                   relispopulated,relreplident,reltuples";
    Rows::of(connection, "pg_class", columns)?.add(&[
        &relation.oid,
        &relation.name,
        &relation.schema,
        &OWNER,
        &relation.method,
        &relation.oid,
        &relation.has_index,
        &"p",
        &relation.kind,
        &(relation.columns as i64),
        &true,
        &if relation.kind == "r" { "d" } else { "n" },
        &-1,
    ])
}

/// Adds columns with names, types, modifiers, and whether they have a default.
fn add_columns<'a>(
    connection: &Connection,
    relation: i64,
    columns: impl Iterator<Item = (&'a str, i64, i32, bool)>,
) -> rusqlite::Result<()> {
    let names = "attrelid,attname,atttypid,attstattarget,attlen,attnum,attcacheoff,atttypmod,attbyval,attalign,\
                 attstorage,attnotnull,atthasdef,attislocal,attcollation";
    let mut rows = Rows::of(connection, "pg_attribute", names)?;
    for (at, (name, oid, modifier, has_default)) in columns.enumerate() {
        let Some(ty) = types::of_oid(oid) else { continue };
        rows.add(&[
            &relation,
            &name,
            &oid,
            &-1,
            &ty.length,
            &(at as i64 + 1),
            &-1,
            &modifier,
            &ty.by_value,
            &ty.alignment,
            &ty.storage,
            &true,
            &has_default,
            &true,
            &ty.collation,
        ])?;
    }
    Ok(())
}

/// The catalog's own tables.
fn fill_system(connection: &Connection, names: &mut Names) -> rusqlite::Result<()> {
    for (oid, schema, name, columns) in relations() {
        let schema_oid = if schema == "pg_catalog" { PG_CATALOG } else { INFORMATION_SCHEMA };
        let kind = if oid >= INFORMATION_SCHEMA || name.ends_with('s') && name != "pg_inherits" { "v" } else { "r" };
        let method = if kind == "r" { HEAP } else { 0 };
        let relation =
            Relation { oid, schema: schema_oid, name, kind, method, columns: columns.len(), has_index: false };
        add_relation(connection, relation)?;
        let typed = columns.iter().map(|(name, ty)| (*name, i64::from(types::of_name(ty).oid()), -1, false));
        add_columns(connection, oid, typed)?;
        names.relations.insert(oid, (schema, name.into()));
    }
    Ok(())
}

fn field(name: &str, sql_type: SqlType) -> Field {
    Field { name: name.into(), sql_type: Some(sql_type), count: None }
}

/// A default in the words of PostgreSQL.
fn expression(value: &Value, sql_type: SqlType) -> String {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
    let cast = types::format(i64::from(type_of(&field("", sql_type)).0.oid()), -1);
    match value {
        Value::Boolean(truth) => truth.to_string(),
        Value::Integer(_) | Value::Decimal(..) => value.to_string(),
        other => format!("{}::{cast}", quoted(&other.to_string())),
    }
}

fn fill_table(connection: &Connection, names: &mut Names, table: &Table, oid: i64) -> rusqlite::Result<()> {
    let schema = table.schema();
    let (name, key) = (schema.name(), oid + 1);
    let columns = schema.columns();
    let relation = Relation {
        oid,
        schema: PUBLIC,
        name,
        kind: "r",
        method: HEAP,
        columns: columns.len(),
        has_index: !schema.key().is_empty(),
    };
    add_relation(connection, relation)?;
    names.relations.insert(oid, ("public", name.into()));
    let described = |&at: &usize| {
        let (ty, modifier) = type_of(&field("", table.types()[at]));
        (columns[at].name.as_str(), i64::from(ty.oid()), modifier, table.default_of(at).is_some())
    };
    add_columns(connection, oid, table.declared().iter().map(described))?;
    let mut defaults = Rows::of(connection, "pg_attrdef", "oid,adrelid,adnum,adbin")?;
    for (number, &at) in table.declared().iter().enumerate() {
        if let Some(value) = table.default_of(at) {
            let default = FIRST_DEFAULT + (oid - FIRST) / 4 * MAX_COLUMNS + number as i64;
            defaults.add(&[&default, &oid, &(number as i64 + 1), &expression(&value, table.types()[at])])?;
        }
    }
    if schema.key().is_empty() {
        return Ok(());
    }
    let index = Listed {
        oid: key,
        name: format!("{name}_pkey"),
        columns: (0..schema.key().len()).collect(),
        is_ordered: schema.is_ordered(),
        is_key: true,
    };
    let listed = add_index(connection, names, table, oid, &index)?;
    let definition = format!("PRIMARY KEY ({listed})");
    let columns = "oid,conname,connamespace,contype,convalidated,conrelid,conindid,confupdtype,confdeltype,\
                   confmatchtype,conislocal,connoinherit,conkey";
    let numbers = array(index.columns.iter().map(|&at| number_of(table, at)));
    Rows::of(connection, "pg_constraint", columns)?.add(&[
        &(oid + 2),
        &index.name,
        &PUBLIC,
        &"p",
        &true,
        &oid,
        &key,
        &" ",
        &" ",
        &" ",
        &true,
        &true,
        &numbers,
    ])?;
    names.constraints.insert(oid + 2, definition);
    Ok(())
}

/// The number of a column, from 1, as it was declared.
fn number_of(table: &Table, position: usize) -> i64 {
    table.declared().iter().position(|&at| at == position).map_or(0, |at| at as i64 + 1)
}

/// An index that is to be listed.
struct Listed {
    oid: i64,
    name: String,
    /// Positions in the schema of the table.
    columns: Vec<usize>,
    is_ordered: bool,
    is_key: bool,
}

/// Adds an index, and gives its columns as SQL lists them.
fn add_index(
    connection: &Connection,
    names: &mut Names,
    table: &Table,
    of: i64,
    index: &Listed,
) -> rusqlite::Result<String> {
    let columns = table.schema().columns();
    let column_names: Vec<String> = index.columns.iter().map(|&at| identifier(&columns[at].name)).collect();
    let (method, using) = if index.is_ordered { (BTREE, "btree") } else { (HASH, "hash") };
    let (oid, schema) = (index.oid, PUBLIC);
    let count = index.columns.len();
    let relation = Relation { oid, schema, name: &index.name, kind: "i", method, columns: count, has_index: false };
    add_relation(connection, relation)?;
    let described = |&at: &usize| {
        let (ty, modifier) = type_of(&field("", table.types()[at]));
        (columns[at].name.as_str(), i64::from(ty.oid()), modifier, false)
    };
    add_columns(connection, oid, index.columns.iter().map(described))?;
    let columns = "indexrelid,indrelid,indnatts,indnkeyatts,indisunique,indisprimary,indimmediate,indisvalid,\
                   indisready,indislive,indkey,indcollation,indclass,indoption";
    let numbers = array(index.columns.iter().map(|&at| number_of(table, at)));
    let zeros = array(vec![0; count]);
    Rows::of(connection, "pg_index", columns)?.add(&[
        &oid,
        &of,
        &(count as i64),
        &(count as i64),
        &index.is_key,
        &index.is_key,
        &true,
        &true,
        &true,
        &true,
        &numbers,
        &zeros,
        &zeros,
        &zeros,
    ])?;
    let list = column_names.join(", ");
    let unique = if index.is_key { "UNIQUE " } else { "" };
    let of = identifier(table.schema().name());
    let definition = format!("CREATE {unique}INDEX {} ON public.{of} USING {using} ({list})", identifier(&index.name));
    Rows::of(connection, "pg_indexes", "schemaname,tablename,indexname,indexdef")?.add(&[
        &"public",
        &table.schema().name(),
        &index.name,
        &definition,
    ])?;
    names.relations.insert(oid, ("public", index.name.clone()));
    names.indexes.insert(oid, (definition, column_names));
    Ok(list)
}

fn fill_index(
    connection: &Connection,
    names: &mut Names,
    catalogue: &Catalogue,
    table: &Table,
    base: &str,
    oid: i64,
) -> rusqlite::Result<()> {
    let name = table.schema().name();
    let of = catalogue.tables().iter().position(|table| table.schema().name() == base);
    let Some((at, base)) = of.map(|at| (at, &catalogue.tables()[at])) else { return Ok(()) };
    let Some(index) = base.indexes().iter().find(|index| index.name == name) else { return Ok(()) };
    let listed = Listed {
        oid,
        name: name.into(),
        columns: index.columns[..index.named].to_vec(),
        is_ordered: true,
        is_key: false,
    };
    add_index(connection, names, base, FIRST + 4 * at as i64, &listed).map(drop)
}

/// A name as SQL writes it.
pub(crate) fn identifier(name: &str) -> String {
    let is_plain = |(at, c): (usize, char)| c.is_ascii_lowercase() || c == '_' || at > 0 && c.is_ascii_digit();
    let is_plain = !name.is_empty() && name.chars().enumerate().all(is_plain);
    if is_plain { name.into() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

fn fill_procedure(connection: &Connection, names: &mut Names, procedure: &ProcedureDefinition) -> rusqlite::Result<()> {
    let compiled = &procedure.compiled;
    let is_sql = !procedure.text.is_empty();
    // What is given back in a parameter has its name with this behind it.
    let returned = |field: &Field| compiled.results.iter().any(|result| result.name == format!("{}_out", field.name));
    let mut all: Vec<(&str, &Field)> =
        compiled.parameters.iter().map(|field| (if returned(field) { "b" } else { "i" }, field)).collect();
    let is_new = |field: &&Field| {
        let of = field.name.strip_suffix("_out");
        !compiled.parameters.iter().any(|parameter| Some(parameter.name.as_str()) == of)
    };
    all.extend(compiled.results.iter().filter(is_new).map(|field| ("o", field)));
    let oid_of = |field: &Field| i64::from(type_of(field).0.oid());
    let argument = |&(mode, field): &(&str, &Field)| {
        let mode = match mode {
            "i" => "IN",
            "b" => "INOUT",
            _ => "OUT",
        };
        format!("{mode} {} {}", identifier(&field.name), types::format(oid_of(field), -1))
    };
    let arguments: Vec<String> = all.iter().map(argument).collect();
    let input: Vec<String> = all.iter().filter(|(mode, _)| *mode != "o").map(argument).collect();
    let has_results = all.iter().any(|(mode, _)| *mode != "i");
    let oid = FIRST_PROCEDURE + i64::from(procedure.id);
    let modes = has_results.then(|| texts(all.iter().map(|(mode, _)| *mode)));
    let every = has_results.then(|| array(all.iter().map(|(_, field)| oid_of(field))));
    let argument_names = (!all.is_empty()).then(|| texts(all.iter().map(|(_, field)| field.name.as_str())));
    let columns = "oid,proname,pronamespace,proowner,prolang,procost,prokind,provolatile,proparallel,pronargs,\
                   prorettype,proargtypes,proallargtypes,proargmodes,proargnames,prosrc";
    let (sql, assembly, record, void) = (14, 15, 2249, 2278);
    Rows::of(connection, "pg_proc", columns)?.add(&[
        &oid,
        &procedure.name,
        &PUBLIC,
        &OWNER,
        &if is_sql { sql } else { assembly },
        &1,
        &"p",
        &"v",
        &"u",
        &(compiled.parameters.len() as i64),
        &if has_results { record } else { void },
        &array(compiled.parameters.iter().map(oid_of)),
        &every,
        &modes,
        &argument_names,
        &&*procedure.text,
    ])?;
    let known = Procedure {
        name: procedure.name.clone(),
        arguments: arguments.join(", "),
        input: input.join(", "),
        definition: procedure.text.to_string(),
    };
    names.procedures.insert(oid, known);
    Ok(())
}

/// For [`super::Catalog`]: what was copied of the database.
pub(crate) type Definitions = (Catalogue, Vec<ProcedureDefinition>);

/// For connections.
pub(super) type Known = Arc<Names>;
