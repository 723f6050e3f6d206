//! What goes over the wire, and what is written from it: packets byte by byte, golden vectors, the P4 program.

mod p4;
mod packet;
#[path = "../../examples/vectors/scenarios.rs"]
mod scenarios;
mod vectors;
