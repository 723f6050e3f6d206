//! Machines, decider and registry on a network that loses nothing: which packets go where, in which order, and how
//! many.
//!
//! What goes wrong on real networks is the simulator's matter. Here every packet arrives at once and in order, and time
//! stands still unless a test lets it pass, so each test tells exactly what is sent.

mod golden;
mod network;
mod order;
mod queues;
mod tokens;
mod workflows;
