//! What the commands `lockwork` and `lockwork-bench` have in common: how they end, print, draw and choose engines.

pub mod chart;
mod duration;
pub mod engines;
mod environment;
mod failure;
mod output;
pub mod progress;

pub use duration::duration;
pub use environment::Environment;
pub use failure::{Failure, Outcome};
pub use output::{Output, print};
