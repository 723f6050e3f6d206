//! The transaction processor (`hardware/rtl`, BionicDB in open RTL) as an engine: driver, cards, and what is between.
//!
//! | module | idea |
//! |---|---|
//! | [`engine`] | the engine `fpga`: batches to the card, one after the other |
//! | [`driver`] | speaks the register map ([`registers`]) |
//! | [`layout`], [`tables`] | tables in the card's memory, and back |
//! | [`catalogue`], [`demands`] | procedures, schemas and what calls may ask for, in words of the config bus |
//! | [`views`] | of a table, what each DB instruction is about: conflicts are found by groups of columns |
//! | [`card`] | what a card is: registers, memory, time |
//! | [`mapped`] | a card that is mapped into the address space |
//! | [`simulated`] | the verilated processor, built when it is first wanted |
//! | [`trace`] | what happens inside the verilated processor, for golden models |
//! | [`memory`] | a model of the card's memory, cycle by cycle |
//! | [`configurations`] | named sizes of the processor |
//!
//! One driver drives both kinds of card; nothing above [`card::Card`] knows which.

pub mod capabilities;
pub mod card;
pub mod catalogue;
pub mod configurations;
pub mod create;
pub mod demands;
pub mod driver;
pub mod engine;
mod flight;
mod homes;
#[cfg(test)]
mod isa_package;
pub mod key_words;
pub mod layout;
pub mod mapped;
pub mod memory;
pub mod memory_map;
pub mod registers;
mod running;
pub mod simulated;
mod stages;
pub mod tables;
pub mod trace;
pub mod views;

pub use create::{FPGA, available};
pub use lockwork_verilated::tell_builds;
