// Types inside the softcore.

package lw_softcore_pkg;

  import lw_pkg::*;

  /// How transactions share the softcore.
  typedef enum logic [1:0] {
    ModeSerial  = 2'd0,
    ModeBatch   = 2'd1,
    ModeDynamic = 2'd2
  } mode_e;

  /// What a context does now.
  typedef enum logic [3:0] {
    StateFree   = 4'd0,
    StateReady  = 4'd1,  // may be taken by the barrel, or by the sequencer, whoever owns it
    StateBusy   = 4'd2,  // taken
    StateCp     = 4'd3,  // waits for the answer that its RET asked for
    StateAll    = 4'd4,  // waits for all answers
    StateLsu    = 4'd5,  // waits until the LSU has sent the last request of its job
    StateLate   = 4'd6,  // waits for a register that the multiplier or the divider writes
    StateDrain  = 4'd7,  // waits until memory has answered everything
    StateDivide = 4'd8,  // waits until the divider is free
    StateLoad   = 4'd9   // waits for a register that is being loaded
  } state_e;

  /// What the LSU does for a context.
  typedef enum logic [2:0] {
    JobLoad  = 3'd0,  // register <- memory at `dst`
    JobStore = 3'd1,  // memory at `dst` <- `data`
    JobCopy  = 3'd2,  // memory at `dst` <- memory at `data`
    JobFill  = 3'd3,  // memory at `dst` <- zeros
    JobUndo  = 3'd4   // plays the undo log backwards
  } job_e;

  typedef struct packed {
    job_e        kind;
    logic        undo;      // keep the old bytes first
    logic        clear;     // forget the undo log
    logic        extend;    // the sign of a load
    logic [7:0]  gp;        // where a load goes: physical GP register
    logic        toggle;    // comes back with the load
    logic        dst_row;   // `dst` lies in a row, else in the block
    logic        src_row;   // so does what is read: `data` of a copy, `dst` of a load
    logic [19:0] len;       // bytes
    addr_t       dst;
    logic [63:0] data;
  } job_t;

  /// What a load brings: a whole register, or the bytes of one of its two words.
  typedef struct packed {
    context_t    ctx;
    logic [7:0]  gp;
    logic        toggle;
    logic [7:0]  bytes;
    logic [63:0] value;
  } loaded_t;

  /// How a transaction ends.
  typedef enum logic [1:0] {
    EndRestart = 2'd0,  // these are the status bytes of the block, but for this one
    EndCommit  = 2'd1,
    EndAbort   = 2'd2,
    EndFailed  = 2'd3
  } end_e;

  /// Where the end of a transaction stands.
  typedef enum logic [3:0] {
    StepWait     = 4'd0,
    StepUndo     = 4'd1,
    StepRows     = 4'd2,
    StepFill     = 4'd3,
    StepHandler  = 4'd4,
    StepOutcome  = 4'd5,
    StepStamp    = 4'd6,
    StepDrain    = 4'd7,
    StepRelease  = 4'd8,
    StepRestart  = 4'd9,
    StepComplete = 4'd10
  } step_e;

  typedef struct packed {
    step_e       step;
    end_e        how;
    logic [15:0] code;
  } ending_t;

  /// Why rows of the grant log are looked at again when the transaction ends.
  typedef enum logic [1:0] {
    KindHeld     = 2'd0,
    KindInserted = 2'd1,
    KindRemoved  = 2'd2
  } kind_e;

  /// One place of the grant log.
  typedef struct packed {
    worker_t owner;
    entry_t  entry;
    kind_e   kind;
    addr_t   row;
  } held_t;

  /// What the catalogue knows of a procedure.
  typedef struct packed {
    logic        valid;
    logic [15:0] logic_at;
    logic [15:0] commit_at;
    logic [15:0] abort_at;
    logic        has_commit;
    logic        has_abort;
    logic [8:0]  gps;
    logic [8:0]  cps;
    logic [19:0] results_start;
    logic [19:0] block_bytes;
  } procedure_t;

  /// Windows of registers begin and end at granules.
  localparam int unsigned GranuleBits = 3;
  localparam int unsigned Granules = 256 >> GranuleBits;
  typedef logic [7-GranuleBits:0] granule_t;
  typedef logic [8-GranuleBits:0] granules_t;

  /// Where a context's transaction lives, from its beginning to its end.
  typedef struct packed {
    logic [9:0] procedure;
    addr_t      block;
    granule_t   gp_base;
    granule_t   cp_base;
    granules_t  gps;
    granules_t  cps;
  } place_t;

  /// How many granules so many registers (0 to 256) take.
  function automatic granules_t granules(logic [8:0] registers);
    return granules_t'((registers + 9'((1 << GranuleBits) - 1)) >> GranuleBits);
  endfunction

  /// Physical register of a window.
  function automatic logic [7:0] physical(granule_t base, logic [7:0] register);
    return {base, {GranuleBits{1'b0}}} + register;
  endfunction

  /// Ones in the lowest `bytes` (0 to 8) places.
  function automatic logic [7:0] low_bytes(logic [3:0] bytes);
    return 8'((9'd1 << bytes) - 9'd1);
  endfunction

  /// Bytes moved upwards around the word by `by` places.
  function automatic logic [63:0] rotate_up(logic [63:0] word, logic [2:0] by);
    logic [63:0] r;
    r = word;
    if (by[0]) r = {r[55:0], r[63:56]};
    if (by[1]) r = {r[47:0], r[63:48]};
    if (by[2]) r = {r[31:0], r[63:32]};
    return r;
  endfunction

endpackage
