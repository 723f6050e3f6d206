//! Tables and procedures as definitions have made them, without an engine: what a payload of calls means depends on it.

use lockwork_procedure::assembly::{AssemblyError, assemble, assemble_tables};
use lockwork_procedure::block::HEADER_BYTES;
use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::{Catalog, TableSchema};

use crate::format::items::Definition;

/// Tables by number, procedures by id.
#[derive(Clone, Debug, Default)]
pub(crate) struct Catalogue {
    pub(crate) tables: Vec<TableSchema>,
    pub(crate) procedures: Vec<Known>,
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
        let fresh = declared.into_iter().filter(|schema| tables.table(schema.name()).is_none());
        Ok(Addition { tables: fresh.collect(), procedure })
    }

    /// The tables as they would be.
    pub(crate) fn future(&self, addition: &Addition) -> Vec<TableSchema> {
        self.tables.iter().chain(&addition.tables).cloned().collect()
    }

    pub(crate) fn add(&mut self, addition: Addition) {
        self.tables.extend(addition.tables);
        if let Some(procedure) = addition.procedure {
            let layout = procedure.layout();
            self.procedures.push(Known {
                arguments: (layout.arguments_end - HEADER_BYTES) as usize,
                block: layout.block_bytes as usize,
                results: (layout.results_start as usize, (layout.results_end - layout.results_start) as usize),
                name: procedure.name,
            });
        }
    }

    /// Argument bytes of a procedure.
    pub(crate) fn arguments(&self, procedure: u32) -> Option<usize> {
        self.procedures.get(procedure as usize).map(|known| known.arguments)
    }

    /// Bytes of the longest block.
    pub(crate) fn block_bytes(&self) -> usize {
        self.procedures.iter().map(|known| known.block).max().unwrap_or(0).max(HEADER_BYTES as usize)
    }
}

/// Whether the first word that is no comment is `table`.
fn defines_tables(assembly: &str) -> bool {
    let mut lines = assembly.lines().map(|line| line.split(';').next().unwrap_or_default().trim());
    lines.find(|line| !line.is_empty()).is_some_and(|line| line.split_whitespace().next() == Some("table"))
}
