//! A session: scripts on an engine, with what they answer as text.
#![allow(dead_code, reason = "every test takes what it needs")]

use std::collections::HashMap;
use std::fmt::Write;

use lockwork_engine::{Engine, EngineKind, Options, create};
use lockwork_procedure::block::{Batch, Status};
use lockwork_sql::{Catalogue, Compiled, Definition, Kind, SqlError, Value, explain, statements};

/// Engines of the CPU.
pub(crate) const KINDS: [EngineKind; 6] = [
    EngineKind::SERIAL,
    EngineKind::TWO_PHASE,
    EngineKind::OPTIMISTIC,
    EngineKind::TIMESTAMP,
    EngineKind::DETERMINISTIC_QUEUE,
    EngineKind::DETERMINISTIC,
];

pub(crate) struct Session {
    pub(crate) catalogue: Catalogue,
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) procedures: HashMap<String, (Compiled, String)>,
    singles: u32,
}

impl Session {
    pub(crate) fn new(kind: EngineKind) -> Self {
        let options = Options { threads: 2, pages: lockwork_memory::Pages::Plain, ..Options::default() };
        let engine = create(kind, options.clone()).unwrap();
        Self { catalogue: Catalogue::new(), engine, procedures: HashMap::new(), singles: 0 }
    }

    /// Runs a script; every answer is a line or several.
    pub(crate) fn run(&mut self, script: &str) -> String {
        self.run_with(script, &[])
    }

    /// As [`Self::run`], with values for the `$1` and so on of every statement that answers.
    pub(crate) fn run_with(&mut self, script: &str, given: &[Value]) -> String {
        let mut text = String::new();
        for statement in statements(script) {
            let answer = statement.and_then(|statement| match statement.kind() {
                Kind::CreateTable | Kind::CreateIndex | Kind::CreateProcedure => {
                    match self.catalogue.define(&statement)? {
                        Definition::Table(schema) => {
                            self.engine.create_table(schema, 64).unwrap();
                        }
                        Definition::Index(index) => self.fill_index(&index),
                        Definition::Procedure(mut compiled) => {
                            let name = compiled.procedure.name.clone();
                            // Engines forget no procedure, so one that takes the place of another has another name.
                            if self.procedures.contains_key(&name) {
                                self.singles += 1;
                                compiled.procedure.name = format!("{name}__{}", self.singles);
                            }
                            self.engine.register(compiled.procedure.clone()).unwrap();
                            self.procedures.insert(name, (*compiled, script.to_string()));
                        }
                        other => panic!("{other:?}"),
                    }
                    Ok(String::new())
                }
                Kind::Call => {
                    let name = statement.name().unwrap();
                    let known = self.procedures.get(name).cloned();
                    let (compiled, _) = known.unwrap_or_else(|| panic!("no procedure '{name}'; so far: {text}"));
                    let arguments = statement.arguments(&compiled)?.values(given)?.unwrap();
                    Ok(self.call(&compiled, &compiled.procedure.name, &arguments, None))
                }
                Kind::Explain => {
                    let (compiled, source) = &self.procedures[statement.name().unwrap()];
                    explain(compiled, &self.catalogue, source)
                }
                _ => {
                    let single = self.catalogue.single(&statement)?;
                    let mut compiled = single.compiled;
                    self.singles += 1;
                    compiled.procedure.name = format!("statement_{}", self.singles);
                    let name = compiled.procedure.name.clone();
                    self.engine.register(compiled.procedure.clone()).unwrap();
                    Ok(match single.arguments.values(given)? {
                        Some(arguments) => self.call(&compiled, &name, &arguments, Some(&single.columns)),
                        None if single.columns.is_empty() => "rows = 0\n".into(),
                        None => single.columns.join(" | ") + "\n",
                    })
                }
            });
            match answer {
                Ok(answer) => text.push_str(&answer),
                Err(error) => {
                    let _ = writeln!(text, "{error}");
                }
            }
        }
        text
    }

    fn fill_index(&mut self, index: &lockwork_sql::Index) {
        self.engine.create_table(index.schema.clone(), 64).unwrap();
        let mut rows = Vec::new();
        self.engine
            .export(&mut |table, image| {
                if table == index.table {
                    rows.push(index.row_image(image));
                }
            })
            .unwrap();
        rows.iter().for_each(|row| self.engine.load(&index.name, row).unwrap());
    }

    /// Calls a procedure; `columns` of a SELECT are shown as rows.
    fn call(&mut self, compiled: &Compiled, name: &str, arguments: &[Value], columns: Option<&[String]>) -> String {
        let mut text = String::new();
        match self.outcome(compiled, name, arguments) {
            Err((sqlstate, message)) => {
                let _ = writeln!(text, "error {sqlstate}: {message}");
            }
            Ok(results) => {
                let named: Vec<(&str, &Value)> =
                    compiled.results.iter().map(|field| field.name.as_str()).zip(&results).collect();
                let rows = named.iter().find(|(name, _)| *name == "rows").map(|(_, value)| (*value).clone());
                match (columns, rows) {
                    (Some(columns), Some(Value::Integer(rows))) if !columns.is_empty() => {
                        let _ = writeln!(text, "{}", columns.join(" | "));
                        for row in 0..rows as usize {
                            let cell = |at: usize| match &results[at] {
                                Value::Array(values) => values[row].to_string(),
                                other => other.to_string(),
                            };
                            let cells: Vec<String> = (0..columns.len()).map(cell).collect();
                            let _ = writeln!(text, "{}", cells.join(" | "));
                        }
                    }
                    _ => {
                        for (name, value) in named {
                            let _ = writeln!(text, "{name} = {value}");
                        }
                    }
                }
            }
        }
        text
    }

    fn outcome(
        &mut self,
        compiled: &Compiled,
        name: &str,
        arguments: &[Value],
    ) -> Result<Vec<Value>, (String, String)> {
        let id = self.engine.procedure_id(name).unwrap();
        let mut batch = Batch::new(compiled.procedure.layout().block_bytes, 1).unwrap();
        let mut block = batch.push(id).unwrap();
        let written: Result<(), SqlError> = compiled.write_arguments(arguments, block.bytes());
        written.map_err(|error| (error.sqlstate.to_string(), error.message))?;
        self.engine.submit(batch).unwrap_or_else(|refused| panic!("{}", refused.error));
        let batch = self.engine.complete().unwrap().unwrap().batch;
        let block = batch.block(0);
        if block.status() != Some(Status::Committed) {
            return Err(compiled.describe(block.abort_code()));
        }
        Ok(compiled.read_results(block.bytes()).unwrap())
    }

    /// All rows of a table and their number.
    pub(crate) fn count(&self, table: &str) -> usize {
        let mut rows = 0;
        self.engine.export(&mut |name, _| rows += usize::from(name == table)).unwrap();
        rows
    }
}

/// Runs a script on every engine of the CPU; all must answer this.
#[track_caller]
pub(crate) fn answers(script: &str, expected: &str) {
    for kind in KINDS {
        let answer = Session::new(kind).run(script);
        assert_eq!(answer.trim(), expected.trim(), "on {kind}");
    }
}
