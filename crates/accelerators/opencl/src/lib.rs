//! Deterministic and two-phase engines on OpenCL devices: GPUs, FPGAs with an OpenCL tool chain, and, through PoCL, the
//! CPU. Source: HOBBES, sections 3.3 and 4.2, and beyond it (docs/opencl.md).
//!
//! Procedures are translated from bytecode to OpenCL C (`translate`) when the first batch comes; tables lie in device
//! memory (`heap`); blocks travel as they are. `opencl-deterministic` plans on the host which transactions may run
//! side by side (`plan`); `opencl-two-phase` lets work-items lock. The rooms: `device` (which devices there are),
//! `session` (every call to one), `appetite` (how many rows a batch may add), `running` (a batch's way through it),
//! `engine` (the contract), `limits` (what a device could do at most).
//!
//! The OpenCL library is loaded when a device is first asked for, so a program that contains this crate starts on a
//! machine without OpenCL.

mod appetite;
mod device;
mod engine;
mod heap;
mod limits;
mod plan;
mod running;
mod session;
mod translate;

pub use device::{DeviceInfo, DeviceKind, REMEDY, chosen, devices, find};
pub use engine::{ENGINES, OPENCL_DETERMINISTIC, OPENCL_TWO_PHASE, create_failing, device};
pub use limits::{CopyTimes, copies, random_lines};
