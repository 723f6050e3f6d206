//! The transaction processor (`hardware/rtl`, BionicDB) as an engine.

pub mod capabilities;
pub mod card;
pub mod catalogue;
pub mod demands;
pub mod key_words;
pub mod layout;
pub mod memory;
pub mod memory_map;
pub mod tables;
