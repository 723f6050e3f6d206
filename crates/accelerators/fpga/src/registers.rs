//! The register map of the transaction processor: the same numbers as `hardware/rtl/pkg/lw_regs_pkg.sv`. What the
//! registers mean in full is said in `hardware/rtl/README.md`.
//!
//! Registers have 32 bits and are written whole; addresses are in bytes. A write that is refused is answered with an
//! error, changes nothing, sets a bit of [`ERROR`] and leaves its address in [`REFUSED`].

/// Bytes of the register map.
pub const BYTES: u32 = 0x4000;

/// Read only: [`ID_VALUE`].
pub const ID: u32 = 0x000;
/// What [`ID`] reads as: "LWTP".
pub const ID_VALUE: u32 = 0x4C57_5450;
/// Read only: [`VERSION_VALUE`]; the upper half changes when old drivers cannot go on.
pub const VERSION: u32 = 0x004;
/// What [`VERSION`] reads as.
pub const VERSION_VALUE: u32 = 0x0001_0000;

/// Read only: workers.
pub const WORKERS: u32 = 0x008;
/// Read only: hardware contexts of a worker.
pub const CONTEXTS: u32 = 0x00C;
/// Read only: decision words of a worker.
pub const ENTRIES: u32 = 0x010;
/// Read only: words of 64 bits of the longest key.
pub const KEY_WORDS: u32 = 0x014;
/// Read only: instructions of the catalogue.
pub const INSTRUCTIONS: u32 = 0x018;
/// Read only: procedures of the catalogue.
pub const PROCEDURES: u32 = 0x01C;
/// Read only: tables of the catalogue.
pub const TABLES: u32 = 0x020;
/// Read only: scan sources of the catalogue.
pub const SOURCES: u32 = 0x024;
/// Read only: grants that a transaction may hold.
pub const GRANTS: u32 = 0x028;
/// Read only: GP registers of a worker, and as many CP registers.
pub const REGISTERS: u32 = 0x02C;
/// Read only: levels of the skiplist; 0: there is none.
pub const LEVELS: u32 = 0x030;
/// Read only: [`TOPOLOGY_CROSSBAR`] or [`TOPOLOGY_RING`].
pub const TOPOLOGY: u32 = 0x034;
/// The message fabric is a crossbar.
pub const TOPOLOGY_CROSSBAR: u32 = 0;
/// The message fabric is a ring.
pub const TOPOLOGY_RING: u32 = 1;
/// Read only: memory requests of a worker that may wait for their answers.
pub const INFLIGHT: u32 = 0x038;

/// Write only: one command, exactly one of the `CONTROL_` bits.
pub const CONTROL: u32 = 0x080;
/// Stopped: takes blocks from the submission rings from now on.
pub const CONTROL_RUN: u32 = 1 << 0;
/// Running or draining: begins no more blocks. Stopped when those that have been read have ended.
pub const CONTROL_STOP: u32 = 1 << 1;
/// Running: refuses submission doorbells from now on. Stopped when all that was rung in has ended.
pub const CONTROL_DRAIN: u32 = 1 << 2;
/// In every state: forgets all transactions, the ring indices and the counters. Stopped when memory has answered.
pub const CONTROL_RESET: u32 = 1 << 3;
/// Stopped: forgets all decision words and begins with time 1 again. Stopped again when that is done.
pub const CONTROL_CLEAR: u32 = 1 << 4;

/// Read only: [`STATUS_STATE`] and flags.
pub const STATUS: u32 = 0x084;
/// Bits of [`STATUS`] with the state.
pub const STATUS_STATE: u32 = 0x7;
/// Nothing runs; the registers of the set-up may be written.
pub const STATE_STOPPED: u32 = 0;
/// Blocks are taken from the rings.
pub const STATE_RUNNING: u32 = 1;
/// No more blocks are begun.
pub const STATE_STOPPING: u32 = 2;
/// Blocks that were rung in are taken, no new ones are let in.
pub const STATE_DRAINING: u32 = 3;
/// Waiting for memory to answer what was asked before a reset.
pub const STATE_RESETTING: u32 = 4;
/// Decision words are cleared.
pub const STATE_CLEARING: u32 = 5;
/// Bit of [`STATUS`]: no worker has anything unfinished.
pub const STATUS_IDLE: u32 = 1 << 8;
/// Bit of [`STATUS`]: memory has answered everything.
pub const STATUS_QUIET: u32 = 1 << 9;

/// Errors so far, the `ERROR_` bits. Writing 1 to a bit clears it, in every state.
pub const ERROR: u32 = 0x088;
/// A write that the state does not allow.
pub const ERROR_STATE: u32 = 1 << 0;
/// A read or write where no such register is.
pub const ERROR_ADDRESS: u32 = 1 << 1;
/// A write of less than 32 bits.
pub const ERROR_PARTIAL: u32 = 1 << 2;
/// A command or value that means nothing.
pub const ERROR_VALUE: u32 = 1 << 3;
/// A doorbell that claims more than the ring holds.
pub const ERROR_DOORBELL: u32 = 1 << 4;
/// Memory refused a read or write of a ring: a block or a completion is lost.
pub const ERROR_MEMORY: u32 = 1 << 5;
/// The watchdog of a worker has barked: see [`STUCK`].
pub const ERROR_STUCK: u32 = 1 << 6;
/// Times have nearly run out: the machine stops by itself; [`CONTROL_CLEAR`] begins with time 1 again.
pub const ERROR_TIMES: u32 = 1 << 7;
/// Read only: byte address of the last access that was refused.
pub const REFUSED: u32 = 0x08C;
/// Read only: bit k: the watchdog of worker k has barked, and its state words are those of that cycle. Cleared together
/// with [`ERROR_STUCK`].
pub const STUCK: u32 = 0x090;

/// Stopped: [`MODE_SERIAL`], [`MODE_BATCH`] or [`MODE_DYNAMIC`].
pub const MODE: u32 = 0x0A0;
/// One transaction at a time.
pub const MODE_SERIAL: u32 = 0;
/// Two-phase batches.
pub const MODE_BATCH: u32 = 1;
/// Any context that can go on goes on.
pub const MODE_DYNAMIC: u32 = 2;
/// Stopped: DB instructions of a worker that may be outstanding, at most 2047; 0: no limit. To measure with: a low
/// limit can stop everything when transactions wait for each other.
pub const MAX_INFLIGHT: u32 = 0x0A4;
/// Stopped: how often a transaction begins again after a conflict, at most 65535.
pub const MAX_RETRIES: u32 = 0x0A8;
/// Stopped: after how many times 256 cycles without a completion a busy worker is stuck, at most 65535; 0: never.
pub const WATCHDOG: u32 = 0x0AC;
/// Stopped: bytes of a context's undo log, a multiple of 16 below 2^20.
pub const UNDO_BYTES: u32 = 0x0B0;
/// Any state: bit 0: interrupt while a completion ring has entries; bit 1: while [`ERROR`] is not 0.
pub const INTERRUPT: u32 = 0x0B4;

/// Stopped: word of the configuration bus that is written next; counts up by itself.
pub const CONFIG_ADDR: u32 = 0x0C0;
/// Stopped: lower half of the data.
pub const CONFIG_LOW: u32 = 0x0C4;
/// Stopped: upper half of the data; writing it sends the word.
pub const CONFIG_HIGH: u32 = 0x0C8;

/// Read only: cycles in which the machine was not stopped, lower half; reading it keeps the upper half for
/// [`CYCLES_HIGH`].
pub const CYCLES_LOW: u32 = 0x0D0;
/// Read only: upper half, as it was when the lower was read.
pub const CYCLES_HIGH: u32 = 0x0D4;

/// Where the registers of worker 0 begin.
pub const WORKER: u32 = 0x2000;
/// Bytes from the registers of one worker to those of the next.
pub const WORKER_STRIDE: u32 = 0x100;

/// Stopped: base of the submission ring, a multiple of its bytes; lower half.
pub const SUBMIT_LOW: u32 = 0x00;
/// Bits 32 to 39.
pub const SUBMIT_HIGH: u32 = 0x04;
/// Stopped: log2 of the entries, 0 to 15.
pub const SUBMIT_SIZE: u32 = 0x08;
/// Stopped or running: entries the host has written, modulo 2^16; the doorbell.
pub const SUBMIT_HEAD: u32 = 0x0C;
/// Read only: entries that the worker has taken, modulo 2^16. Their places may be written again.
pub const SUBMIT_TAIL: u32 = 0x10;
/// Stopped: base of the completion ring, a multiple of its bytes; lower half.
pub const COMPLETE_LOW: u32 = 0x20;
/// Bits 32 to 39.
pub const COMPLETE_HIGH: u32 = 0x24;
/// Stopped: log2 of the entries, 0 to 15.
pub const COMPLETE_SIZE: u32 = 0x28;
/// Read only: entries that are in memory, modulo 2^16.
pub const COMPLETE_HEAD: u32 = 0x2C;
/// Any state but resetting: entries the host has read, modulo 2^16. A worker waits while the ring is full.
pub const COMPLETE_TAIL: u32 = 0x30;
/// Stopped: base of the undo logs of the worker, a multiple of 16; lower half.
pub const UNDO_LOW: u32 = 0x38;
/// Bits 32 to 39.
pub const UNDO_HIGH: u32 = 0x3C;
/// Read only: transactions completed, modulo 2^32, since the last reset, as the other counters.
pub const TRANSACTIONS: u32 = 0x40;
/// Read only: DB instructions that the softcore has sent, again after conflicts, without releases.
pub const DB_INSTRUCTIONS: u32 = 0x44;
/// Read only: words asked of memory.
pub const MEMORY_WORDS: u32 = 0x48;
/// Read only: answers that are conflicts.
pub const CONFLICTS: u32 = 0x4C;
/// Read only: requests that had to wait for a decision word.
pub const PARKS: u32 = 0x50;
/// Read only: what every stage does, see the README; lower half.
pub const STATE_LOW: u32 = 0x60;
/// Upper half.
pub const STATE_HIGH: u32 = 0x64;

/// Bits of a completion ring's entry with the block's address.
pub const COMPLETION_ADDRESS: u64 = (1 << 40) - 1;
/// First bit of the code, which has 16 bits.
pub const COMPLETION_CODE_SHIFT: u32 = 40;
/// First bit of the status, which has 7 bits.
pub const COMPLETION_STATUS_SHIFT: u32 = 56;
/// 1 in entries of the first, third, fifth... lap around the ring, so that a host that has filled the ring with zeros
/// can see new entries without asking a register.
pub const COMPLETION_PHASE: u64 = 1 << 63;
