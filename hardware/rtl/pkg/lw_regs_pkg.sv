// The register map of the transaction processor, and what goes between the registers and a worker. What the registers
// mean is said in hardware/rtl/README.md; crates/accelerators/fpga/src/registers.rs has the same numbers.

package lw_regs_pkg;

  /// Bits of an address of the control port.
  localparam int unsigned RegAddrWidth = 14;

  /// Value of `RegId`: "LWTP".
  localparam logic [31:0] Id = 32'h4C57_5450;
  /// Value of `RegVersion`: major in the upper half, minor in the lower.
  localparam logic [31:0] Version = 32'h0001_0000;

  // Registers of the machine, byte addresses.
  localparam logic [11:0] RegId            = 12'h000;
  localparam logic [11:0] RegVersion       = 12'h004;
  localparam logic [11:0] RegWorkers       = 12'h008;
  localparam logic [11:0] RegContexts      = 12'h00C;
  localparam logic [11:0] RegEntries       = 12'h010;
  localparam logic [11:0] RegKeyWords      = 12'h014;
  localparam logic [11:0] RegInstructions  = 12'h018;
  localparam logic [11:0] RegProcedures    = 12'h01C;
  localparam logic [11:0] RegTables        = 12'h020;
  localparam logic [11:0] RegSources       = 12'h024;
  localparam logic [11:0] RegGrants        = 12'h028;
  localparam logic [11:0] RegRegisters     = 12'h02C;
  localparam logic [11:0] RegLevels        = 12'h030;
  localparam logic [11:0] RegTopology      = 12'h034;
  localparam logic [11:0] RegInflight      = 12'h038;
  localparam logic [11:0] RegControl       = 12'h080;
  localparam logic [11:0] RegStatus        = 12'h084;
  localparam logic [11:0] RegError         = 12'h088;
  localparam logic [11:0] RegRefused       = 12'h08C;
  localparam logic [11:0] RegStuck         = 12'h090;
  localparam logic [11:0] RegMode          = 12'h0A0;
  localparam logic [11:0] RegMaxInflight   = 12'h0A4;
  localparam logic [11:0] RegMaxRetries    = 12'h0A8;
  localparam logic [11:0] RegWatchdog      = 12'h0AC;
  localparam logic [11:0] RegUndoBytes     = 12'h0B0;
  localparam logic [11:0] RegInterrupt     = 12'h0B4;
  localparam logic [11:0] RegConfigAddr    = 12'h0C0;
  localparam logic [11:0] RegConfigLow     = 12'h0C4;
  localparam logic [11:0] RegConfigHigh    = 12'h0C8;
  localparam logic [11:0] RegCyclesLow     = 12'h0D0;
  localparam logic [11:0] RegCyclesHigh    = 12'h0D4;

  /// Address bit that tells the registers of a worker from those of the machine; the worker's number follows below it.
  localparam int unsigned WorkerBit = 13;
  /// log2 of the bytes from the registers of one worker to those of the next.
  localparam int unsigned WorkerShift = 8;

  // Registers of a worker, byte addresses from its first.
  localparam logic [7:0] RegSubmitLow      = 8'h00;
  localparam logic [7:0] RegSubmitHigh     = 8'h04;
  localparam logic [7:0] RegSubmitSize     = 8'h08;
  localparam logic [7:0] RegSubmitHead     = 8'h0C;
  localparam logic [7:0] RegSubmitTail     = 8'h10;
  localparam logic [7:0] RegCompleteLow    = 8'h20;
  localparam logic [7:0] RegCompleteHigh   = 8'h24;
  localparam logic [7:0] RegCompleteSize   = 8'h28;
  localparam logic [7:0] RegCompleteHead   = 8'h2C;
  localparam logic [7:0] RegCompleteTail   = 8'h30;
  localparam logic [7:0] RegUndoLow        = 8'h38;
  localparam logic [7:0] RegUndoHigh       = 8'h3C;
  localparam logic [7:0] RegTransactions   = 8'h40;
  localparam logic [7:0] RegDbInstructions = 8'h44;
  localparam logic [7:0] RegMemoryWords    = 8'h48;
  localparam logic [7:0] RegConflicts      = 8'h4C;
  localparam logic [7:0] RegParks          = 8'h50;
  localparam logic [7:0] RegStateLow       = 8'h60;
  localparam logic [7:0] RegStateHigh      = 8'h64;

  /// Bits of ring indices, which count on beyond the ring's size.
  localparam int unsigned IndexWidth = 16;
  /// Bits of log2 of a ring's size.
  localparam int unsigned SizeWidth = 4;
  /// Bits of a worker's state word.
  localparam int unsigned StateWidth = 64;

  typedef logic [IndexWidth-1:0] index_t;
  typedef logic [SizeWidth-1:0] size_t;

  /// Bits of `RegControl`, of which exactly one is written as 1.
  typedef struct packed {
    logic clear;  // forget all decision words and begin with time 1 again
    logic reset;  // forget all transactions in flight and what the rings' indices are
    logic drain;  // run until all that was rung in has ended, then stop
    logic stop;   // begin no more blocks; stopped when those that have begun have ended
    logic run;    // take blocks from the rings
  } command_t;

  /// Lower bits of `RegStatus`.
  typedef enum logic [2:0] {
    StateStopped   = 3'd0,
    StateRunning   = 3'd1,
    StateStopping  = 3'd2,
    StateDraining  = 3'd3,
    StateResetting = 3'd4,
    StateClearing  = 3'd5
  } state_e;

  /// Bits of `RegError`; each stays until 1 is written to it.
  typedef struct packed {
    logic times;     // times have nearly run out: the machine stops by itself and wants `clear`
    logic stuck;     // the watchdog of a worker has barked; `RegStuck` says of which
    logic memory;    // a ring could not be read or written
    logic doorbell;  // a ring index was refused: it claims more than the ring holds
    logic value;     // a command or value that means nothing
    logic partial;   // a write of less than a register
    logic address;   // no such register, or none that can be written
    logic state;     // a write that the state of the machine does not allow
  } error_t;

  /// What the registers tell the rings of a worker.
  typedef struct packed {
    logic                 fetch;          // blocks may be read from the submission ring
    lw_pkg::word_addr_t   submit_base;    // a multiple of the ring's bytes
    size_t                submit_size;    // log2 of entries
    index_t               submit_head;    // entries the host has written
    lw_pkg::word_addr_t   complete_base;  // a multiple of the ring's bytes
    size_t                complete_size;  // log2 of entries
    index_t               complete_tail;  // entries the host has read
  } ring_control_t;

  /// What the registers tell a worker.
  typedef struct packed {
    ring_control_t        rings;
    logic [1:0]           mode;           // 0 serial, 1 batch, 2 dynamic
    logic [10:0]          max_inflight;   // DB instructions outstanding, 0: no limit
    logic [15:0]          max_retries;    // beginnings again after a conflict
    lw_pkg::word_addr_t   undo_base;      // of context 0
    logic [19:0]          undo_bytes;     // from one context to the next
  } worker_control_t;

  /// What happens in a worker in one cycle, to be counted.
  typedef struct packed {
    logic transaction;  // one has been completed, however it ended
    logic db;           // a DB instruction leaves the softcore
    logic memory;       // a word is asked of memory
    logic conflict;     // an answer is a conflict
    logic park;         // a request has to wait for a decision word
  } events_t;

  /// What a worker tells the registers.
  typedef struct packed {
    index_t                submit_tail;    // entries that have been read and handed to the softcore
    index_t                complete_head;  // entries that have been written
    logic                  idle;           // nothing that has been read from the ring is unfinished
    logic                  quiet;          // memory has answered everything
    logic                  ring_error;     // one cycle: a ring could not be read or written
    events_t               events;
    logic [StateWidth-1:0] state;          // of every stage, see hardware/rtl/README.md
  } worker_status_t;

endpackage
