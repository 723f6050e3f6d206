//! `lockwork procedure check|assemble|disassemble FILE`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use lockwork_procedure::access::{access_set, explain};
use lockwork_procedure::assembly::{Assembled, assemble, decode, disassemble, encode};
use lockwork_procedure::schema::TableSchema;
use lockwork_procedure::verify::verify;

use super::{Failure, Outcome, print};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Assemble and verify, and show what a call will touch; tables are declared with their columns
    Check {
        /// A procedure in assembly
        file: PathBuf,
    },
    /// Assemble into a binary procedure; verified if its tables are declared with their columns
    Assemble {
        /// A procedure in assembly
        file: PathBuf,
        /// Where the binary goes
        #[arg(short, long)]
        output: PathBuf,
    },
    /// Show a binary procedure as assembly; a binary names tables but not their columns, so those come out as offsets
    Disassemble {
        /// A binary procedure
        file: PathBuf,
    },
}

fn read(file: &PathBuf) -> Result<Vec<u8>, Failure> {
    std::fs::read(file).map_err(|error| Failure::usage(format!("{}: {error}", file.display())))
}

fn source(file: &PathBuf) -> Result<Assembled, Failure> {
    let text = String::from_utf8(read(file)?);
    let text = text.map_err(|_| Failure::usage(format!("{}: not UTF-8, so no assembly", file.display())))?;
    let none: [TableSchema; 0] = [];
    assemble(&text, none.as_slice()).map_err(|error| Failure::usage(format!("{}: {error}", file.display())))
}

pub(super) fn run(arguments: &Arguments) -> Outcome {
    match &arguments.action {
        Action::Check { file } => {
            let Assembled { procedure, schemas } = source(file)?;
            let verified = verify(procedure, schemas.as_slice());
            let verified = verified.map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
            let procedure = verified.procedure();
            let mut text = format!("procedure {}: verified\n", procedure.name);
            text.push_str(&format!(
                "{} instructions, {} GP and {} CP registers, blocks of {} bytes, at most {} steps\n",
                procedure.code.len(),
                verified.gp_registers(),
                verified.cp_registers(),
                verified.block_stride(),
                verified.step_bound()
            ));
            for schema in &schemas {
                text.push_str(&format!("table {schema}\n"));
            }
            text.push_str(&explain(&verified, &access_set(&verified)));
            if !text.ends_with('\n') {
                text.push('\n');
            }
            print(&text)
        }
        Action::Assemble { file, output } => {
            let Assembled { procedure, schemas } = source(file)?;
            let declared = |name: &String| schemas.iter().any(|schema| schema.name() == name);
            match procedure.tables.iter().find(|name| !declared(name)) {
                None => {
                    let verified = verify(procedure.clone(), schemas.as_slice());
                    verified.map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
                }
                Some(table) => eprintln!(
                    "lockwork: {}: not verified, because the columns of table '{table}' are not declared; that is done when \
                     the procedure is registered",
                    file.display()
                ),
            }
            std::fs::write(output, encode(&procedure))
                .map_err(|error| Failure::usage(format!("{}: {error}", output.display())))
        }
        Action::Disassemble { file } => {
            let procedure = decode(&read(file)?);
            let procedure = procedure.map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
            let none: [TableSchema; 0] = [];
            print(&disassemble(&procedure, none.as_slice()))
        }
    }
}
