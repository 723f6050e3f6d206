//! Machines, decider and registry with packets in the hands of the test.
//!
//! - *Flows* (`network`): a network that loses nothing. Every packet arrives at once and in order, and time stands
//!   still unless a test lets it pass, so each test tells exactly what is sent, in which order, and how much of it.
//! - *Timelines* (`script`): a test says which packet arrives when, and which never: the holes of the paper, and what
//!   the simulator, the model and review have found.
//! - *One node*: any packet, in any order.

mod any_packets;
mod beyond;
mod dead_agents;
mod deadlock;
mod golden;
mod holes;
mod network;
mod order;
mod queues;
mod recovery;
mod regressions;
mod script;
mod tokens;
mod workflows;
