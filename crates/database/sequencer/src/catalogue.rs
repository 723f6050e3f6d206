//! Tables and procedures as definitions have made them, without an engine: what a payload of calls means depends on it.

use std::collections::BTreeMap;

use lockwork_procedure::assembly::{AssemblyError, assemble, assemble_tables};
use lockwork_procedure::block::HEADER_BYTES;
use lockwork_procedure::program::{Procedure, STATEMENT};
use lockwork_procedure::schema::{Catalog, TableSchema};

use crate::format::calls;
use crate::format::items::Definition;

/// Tables by number, procedures by id.
#[derive(Clone, Debug, Default)]
pub(crate) struct Catalogue {
    pub(crate) tables: Vec<TableSchema>,
    pub(crate) procedures: Vec<Known>,
    /// Bytes of the longest arguments and of the longest block that any procedure has had.
    longest: (usize, usize),
}

/// The definitions that a catalogue was made of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Definitions {
    added: Vec<Definition>,
    replaced: BTreeMap<u32, Definition>,
}

impl Definitions {
    /// Adds one. Of those that took the place of a procedure, only the last is kept.
    pub(crate) fn push(&mut self, definition: Definition) {
        match definition.replaces {
            Some(id) => drop(self.replaced.insert(id, definition)),
            None => self.added.push(definition),
        }
    }

    /// Those that added something, in order.
    pub(crate) fn added(&self) -> &[Definition] {
        &self.added
    }

    /// All that make the catalogue as it is: those that took the place of procedures come last.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Definition> {
        self.added.iter().chain(self.replaced.values())
    }
}

/// What is known of a procedure by its declarations.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) name: String,
    /// Bytes of its arguments.
    pub(crate) arguments: usize,
    /// Bytes of its block.
    pub(crate) block: usize,
    /// Results, as (offset, length) in the block.
    pub(crate) results: (usize, usize),
}

/// What a definition adds.
#[derive(Debug)]
pub(crate) struct Addition {
    pub(crate) tables: Vec<TableSchema>,
    pub(crate) procedure: Option<Procedure>,
    /// The id of the procedure whose place it takes.
    pub(crate) replaces: Option<u32>,
}

impl Catalogue {
    /// What a definition would add.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub(crate) fn understand(&self, definition: &Definition) -> Result<Addition, AssemblyError> {
        let tables = self.tables.as_slice();
        let (declared, procedure) = if defines_tables(&definition.assembly) {
            (assemble_tables(&definition.assembly, tables)?, None)
        } else {
            let assembled = assemble(&definition.assembly, tables)?;
            (assembled.schemas, Some(assembled.procedure))
        };
        let fresh: Vec<_> = declared.into_iter().filter(|schema| tables.table(schema.name()).is_none()).collect();
        let is_statement = |name: &str| name.starts_with(STATEMENT);
        if let Some(id) = definition.replaces
            && !(fresh.is_empty()
                && self.procedures.get(id as usize).is_some_and(|known| is_statement(&known.name))
                && procedure.as_ref().is_some_and(|procedure| is_statement(&procedure.name)))
        {
            let message = format!("only a statement, on tables that there are, takes the place of one, here of {id}");
            return Err(AssemblyError { line: 1, column: 1, message });
        }
        Ok(Addition { tables: fresh, procedure, replaces: definition.replaces })
    }

    /// The tables as they would be.
    pub(crate) fn future(&self, addition: &Addition) -> Vec<TableSchema> {
        self.tables.iter().chain(&addition.tables).cloned().collect()
    }

    pub(crate) fn add(&mut self, addition: Addition) {
        self.tables.extend(addition.tables);
        if let Some(procedure) = addition.procedure {
            let layout = procedure.layout();
            let known = Known {
                arguments: (layout.arguments_end - HEADER_BYTES) as usize,
                block: layout.block_bytes as usize,
                results: (layout.results_start as usize, (layout.results_end - layout.results_start) as usize),
                name: procedure.name,
            };
            self.longest = (self.longest.0.max(known.arguments), self.longest.1.max(known.block));
            match addition.replaces {
                Some(id) => self.procedures[id as usize] = known,
                None => self.procedures.push(known),
            }
        }
    }

    /// Argument bytes of a procedure.
    pub(crate) fn arguments(&self, procedure: u32) -> Option<usize> {
        self.procedures.get(procedure as usize).map(|known| known.arguments)
    }

    /// Bytes of the longest block.
    pub(crate) fn block_bytes(&self) -> usize {
        self.longest.1.max(HEADER_BYTES as usize)
    }

    /// The most bytes that a call takes in a record.
    pub(crate) fn call_bytes(&self) -> usize {
        calls::most_bytes(self.longest.0)
    }
}

/// Whether the first word that is no comment is `table`.
fn defines_tables(assembly: &str) -> bool {
    let mut lines = assembly.lines().map(|line| line.split(';').next().unwrap_or_default().trim());
    lines.find(|line| !line.is_empty()).is_some_and(|line| line.split_whitespace().next() == Some("table"))
}
