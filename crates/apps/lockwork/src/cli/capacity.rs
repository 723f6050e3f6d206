//! `lockwork locks capacity`: how many locks of the lean profile a programmable switch holds (FissLock, section 7.2).

use clap::{Args, value_parser};
use lockwork_lock_protocol::lean::{Capacity, Switch};
use serde_json::json;

use super::Output;
use super::{Failure, Outcome, print};

/// The switch of the paper.
const PAPER: Switch = Switch::TOFINO;
/// More than any switch has; below it nothing overflows.
const MAX_KB: u64 = 1_000_000_000;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Match-action stages of the ingress pipeline
    #[arg(long, default_value_t = PAPER.stages, value_parser = value_parser!(u64).range(1..=1024))]
    stages: u64,
    /// Registers of a stage, in thousands of bytes
    #[arg(long, default_value_t = PAPER.stage_bits / 8000, value_parser = value_parser!(u64).range(1..=MAX_KB))]
    stage_kb: u64,
    /// Stages for control and computing, which hold no locks
    #[arg(long, default_value_t = PAPER.control_stages, value_parser = value_parser!(u64).range(..=1024))]
    control_stages: u64,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Figures in groups of three.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).expect("digits"));
    groups.collect::<Vec<_>>().join(" ")
}

pub(super) fn run(arguments: &Arguments) -> Outcome {
    let &Arguments { stages, stage_kb, control_stages, output } = arguments;
    let switch = Switch { stages, stage_bits: stage_kb * 8000, control_stages };
    let Capacity { locks, state_stages, machine_stages, incarnation_stages, unused_stages } = switch.capacity();
    if locks == 0 {
        return Err(Failure::usage(format!(
            "a switch of {stages} stages holds no lock: it takes {} at least, {control_stages} for control and one for each \
             of four arrays (two of state, machine, incarnation)",
            control_stages + 4
        )));
    }
    print(&match output {
        Output::Text => format!(
            "{stages} stages of {stage_kb} KB hold {} locks of 18 bits\n\n\
             {:<14}{control_stages:>3} stages\n\
             {:<14}{state_stages:>3} stages, two arrays of 1 bit a lock\n\
             {:<14}{machine_stages:>3} stages, 8 bits a lock\n\
             {:<14}{incarnation_stages:>3} stages, 8 bits a lock\n\
             {:<14}{unused_stages:>3} stages\n",
            grouped(locks),
            "control",
            "state",
            "machine",
            "incarnation",
            "left over",
        ),
        Output::Json => {
            let report = json!({
                "schema": 1,
                "switch": { "stages": stages, "stage_bytes": stage_kb * 1000, "control_stages": control_stages },
                "locks": locks,
                "bits_per_lock": 18,
                "stages": {
                    "control": control_stages,
                    "state": state_stages,
                    "machine": machine_stages,
                    "incarnation": incarnation_stages,
                    "unused": unused_stages,
                },
            });
            format!("{report:#}\n")
        }
        Output::Csv => format!(
            "stages,stage_kb,control_stages,locks,state_stages,machine_stages,incarnation_stages,unused_stages\n\
             {stages},{stage_kb},{control_stages},{locks},{state_stages},{machine_stages},{incarnation_stages},{unused_stages}\n"
        ),
    })
}
