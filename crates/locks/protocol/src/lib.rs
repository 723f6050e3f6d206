//! The lock service: reader-writer locks whose decision is taken in the data plane and whose bookkeeping happens
//! afterwards on the holder's machine (FissLock, OSDI'24).
//!
//! This crate is the protocol, and nothing else: pure state machines, with packets and the time as input, and packets
//! and events as output. No clock, no socket, no thread. Transports are in `lockwork-locks`.
//!
//! | module | idea |
//! |---|---|
//! | [`word`] | the decision word: two bits of state, the agent's machine, an incarnation |
//! | [`packet`] | packets, byte by byte, with tags |
//! | [`table`] | the decision table: what a decider does, in every case |
//! | [`decider`] | packets in, packets out, one compare-and-swap between |
//! | [`control`] | bodies of control packets |
//! | [`config`] | times and limits of machines and registry |
//! | `agent` | one lock's holders and waiters, on its holder's machine |
//! | `deadlock` | cycles of tasks that wait for each other |
//! | [`racks`] | several deciders that share the locks |
//! | [`beyond`] | locks that the decider has no words for, and who manages them |
//! | [`registry`] | sessions, leases, locks of machines that are gone |
//! | [`names`] | which lock a name means, and when it may mean another one |
//! | [`client`] | requests of one machine's tasks |
//! | [`pool`] | the agents of one machine |
//! | [`node`] | both, as a transport drives them |
//! | [`report`] | what machines tell a decider that was restored |
//! | [`export`] | writes the decision table and the packets' constants as C and P4 |
//! | [`branches`] | ways that are seldom taken, counted |
//! | [`simulator`] | all of it, where everything goes wrong |
//! | [`lean`] | 18 bits a lock, and how many a switch holds |
//! | [`vectors`] | what a decider answers, in files that every decider plays |
//!
//! docs/lock-service.md tells the protocol with timelines, what differs from the paper, and what is guaranteed.

mod agent;
pub mod beyond;
pub mod branches;
pub mod client;
pub mod config;
pub mod control;
mod deadlock;
pub mod decider;
pub mod export;
pub mod lean;
pub mod names;
pub mod node;
mod numbers;
mod pace;
pub mod packet;
pub mod pool;
pub mod racks;
pub mod registry;
pub mod report;
pub mod simulator;
pub mod table;
mod timers;
pub mod vectors;
pub mod word;
