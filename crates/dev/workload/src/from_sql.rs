//! Procedures written in SQL, as assembly.

use lockwork_procedure::assembly::disassemble;
use lockwork_procedure::schema::TableSchema;
use lockwork_sql::{Catalogue, Definition, Kind, statements};

/// The assembly of the procedures of these scripts, in the order of `names`. Tables that a script creates are those of
/// `schemas`.
///
/// # Panics
/// When a script does not compile, a table differs or a procedure is missing: the scripts are this crate's own.
pub(crate) fn assembly(scripts: &[&str], schemas: &[TableSchema], names: &[&str]) -> Vec<String> {
    let mut catalogue = Catalogue::of_schemas(schemas);
    let mut procedures = Vec::new();
    for script in scripts {
        for statement in statements(script) {
            let statement = statement.unwrap_or_else(|error| panic!("{error}"));
            let mut fresh = Catalogue::new();
            let made = if statement.kind() == Kind::CreateTable { &mut fresh } else { &mut catalogue };
            match made.define(&statement).unwrap_or_else(|error| panic!("{error}")) {
                Definition::Table(schema) => assert!(schemas.contains(&schema), "the workload has no table {schema}"),
                Definition::Procedure(compiled) => procedures.push(compiled.procedure),
                other => panic!("a workload has tables and procedures only: {other:?}"),
            }
        }
    }
    let text = |name: &&str| {
        let procedure = procedures.iter().find(|procedure| procedure.name == **name);
        let procedure = procedure.unwrap_or_else(|| panic!("no script has a procedure '{name}'"));
        disassemble(procedure, schemas)
    };
    names.iter().map(text).collect()
}
