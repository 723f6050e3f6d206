// Answers to DB instructions: CP registers, the grant log, and how many are outstanding. Each counter has one writer, so
// it lies in small memory: what is outstanding is a difference of two.

module lw_answers
  import lw_pkg::*;
  import lw_softcore_pkg::*;
#(
  /// Contexts; a power of two, 2 to 64.
  parameter int unsigned Contexts = 16,
  /// Places of a context's grant log; a power of two, 2 to 256.
  parameter int unsigned Grants = 64
) (
  /// Everything happens on its rising edge.
  input  logic        clk_i,
  /// Nothing is outstanding.
  input  logic        rst_ni,
  /// The counters are being cleared: CP register and context `init_at_i` now.
  input  logic        init_i,
  /// See `init_i`.
  input  logic [7:0]  init_at_i,

  /// An answer; always taken.
  input  logic        response_valid_i,
  /// The answer; its CP register is a physical one.
  input  response_t   response_i,

  /// A DB instruction is issued.
  input  logic        issue_i,
  /// Whose.
  input  context_t    issue_ctx_i,
  /// Its physical CP register.
  input  logic [7:0]  issue_cp_i,

  /// CP register of the instruction that is resolved in the next cycle.
  input  logic [7:0]  cp_i,
  /// Its context.
  input  context_t    ctx_i,
  /// One cycle later: the CP register has its answer.
  output logic        cp_ready_o,
  /// One cycle later: the answer.
  output answer_e     cp_answer_o,
  /// One cycle later: its value; zero for a removal.
  output addr_t       cp_value_o,
  /// One cycle later: nothing of the context is outstanding.
  output logic        all_ready_o,
  /// One cycle later: the grant log could not hold another answer.
  output logic        full_o,

  /// Context that the sequencer looks at.
  input  context_t    seq_ctx_i,
  /// Nothing of it is outstanding; same cycle.
  output logic        seq_all_ready_o,
  /// Where its grant log ends; same cycle.
  output logic [$clog2(Grants):0] seq_granted_o,
  /// Code of its first failed answer; same cycle.
  output logic [15:0] seq_code_o,
  /// Which place of its grant log to read.
  input  logic [$clog2(Grants)-1:0] seq_place_i,
  /// That place, one cycle later.
  output held_t       seq_grant_o,
  /// A grant is released: the log's beginning moves.
  input  logic        seq_release_i,
  /// Whose.
  input  context_t    seq_release_ctx_i,
  /// Where the log of `seq_ctx_i` begins; same cycle.
  output logic [$clog2(Grants):0] seq_released_o,

  /// An answer came three cycles ago (one that was not ready then is seen to be now).
  output logic        wake_valid_o,
  /// Whose.
  output context_t    wake_ctx_o,
  /// Its physical CP register.
  output logic [7:0]  wake_cp_o,
  /// Nothing of the context is outstanding.
  output logic        wake_all_o,
  /// It is a conflict or failed.
  output logic        wake_bad_o,

  /// What an answer means for its context, one cycle after it came: whose, and the bits below.
  output logic        mark_valid_o,
  /// Whose.
  output context_t    mark_ctx_o,
  /// Conflict.
  output logic        mark_conflict_o,
  /// Failed.
  output logic        mark_failed_o,
  /// A row was inserted.
  output logic        mark_inserted_o,
  /// A row is to be removed.
  output logic        mark_removed_o
);

  localparam int unsigned CtxBits = $clog2(Contexts);
  localparam int unsigned GrantBits = $clog2(Grants);
  typedef logic [CtxBits-1:0] ctx_t;
  typedef logic [GrantBits:0] count_t;

  // A register is outstanding while the two differ.
  logic asked_mem[256];
  logic answered_mem[256];
  logic [AddrWidth+1:0] value_mem[256];
  logic [8:0] issued_mem[Contexts];
  logic [8:0] seen_mem[Contexts];
  count_t granted_mem[Contexts];
  count_t released_mem[Contexts];
  logic [15:0] code_mem[Contexts];
  held_t  grant_mem[Contexts * Grants];

  logic      r1_valid_q, r2_valid_q, r3_valid_q;
  response_t r1_q;
  ctx_t      r1_ctx, r2_ctx_q, r3_ctx_q;
  cp_t       r2_cp_q, r3_cp_q;
  logic      r2_bad_q, r3_bad_q, r3_all_q;
  assign r1_ctx = r1_q.ret.ctx[CtxBits-1:0];
  count_t r1_granted;
  assign r1_granted = granted_mem[r1_ctx];
  logic r1_ready;
  assign r1_ready = r1_q.answer == AnswerReady;

  kind_e r1_kind;
  always_comb begin
    r1_kind = KindHeld;
    if (r1_ready && r1_q.op == OpInsert) r1_kind = KindInserted;
    if (r1_ready && r1_q.op == OpRemove) r1_kind = KindRemoved;
  end

  logic [7:0] asked_at, answered_at;
  ctx_t issued_at, seen_at, granted_at, released_at;
  assign asked_at = init_i ? init_at_i : issue_cp_i;
  assign answered_at = init_i ? init_at_i : r1_q.ret.cp;
  assign issued_at = init_i ? init_at_i[CtxBits-1:0] : issue_ctx_i[CtxBits-1:0];
  assign seen_at = init_i ? init_at_i[CtxBits-1:0] : r1_ctx;
  assign granted_at = seen_at;
  assign released_at = init_i ? init_at_i[CtxBits-1:0] : seq_release_ctx_i[CtxBits-1:0];

  always_ff @(posedge clk_i) begin
    r1_q <= response_i;
    if (init_i || issue_i) asked_mem[asked_at] <= init_i ? 1'b0 : !asked_mem[issue_cp_i];
    if (init_i || issue_i) issued_mem[issued_at] <= init_i ? '0 : issued_mem[issued_at] + 9'd1;
    if (init_i || r1_valid_q) answered_mem[answered_at] <= init_i ? 1'b0 : !answered_mem[r1_q.ret.cp];
    if (init_i || r1_valid_q) seen_mem[seen_at] <= init_i ? '0 : seen_mem[r1_ctx] + 9'd1;
    if (init_i || (r1_valid_q && r1_q.granted)) begin
      granted_mem[granted_at] <= init_i ? '0 : r1_granted + count_t'(1);
    end
    if (init_i || seq_release_i) begin
      released_mem[released_at] <= init_i ? '0 : released_mem[released_at] + count_t'(1);
    end
    if (r1_valid_q && r1_q.answer == AnswerFailed) code_mem[r1_ctx] <= r1_q.value[15:0];
    if (r1_valid_q) begin
      value_mem[r1_q.ret.cp] <= {r1_q.answer, r1_q.op == OpRemove && r1_ready ? addr_t'(0) : r1_q.value};
    end
    if (r1_valid_q && r1_q.granted) begin
      grant_mem[{r1_ctx, r1_granted[GrantBits-1:0]}] <= '{
          owner: r1_q.owner,
          entry: r1_q.entry,
          kind: r1_kind,
          row: r1_q.value
      };
    end
  end

  // What the barrel asks for.
  logic [AddrWidth+1:0] value_q;
  held_t  grant_q;
  ctx_t barrel_ctx;
  assign barrel_ctx = ctx_i[CtxBits-1:0];
  logic [8:0] barrel_out;
  assign barrel_out = issued_mem[barrel_ctx] - seen_mem[barrel_ctx];
  count_t barrel_held;
  assign barrel_held = granted_mem[barrel_ctx] - released_mem[barrel_ctx];
  always_ff @(posedge clk_i) begin
    value_q <= value_mem[cp_i];
    cp_ready_o <= asked_mem[cp_i] == answered_mem[cp_i];
    all_ready_o <= barrel_out == '0;
    full_o <= 10'(barrel_out) + 10'(barrel_held) >= 10'(Grants);
    grant_q <= grant_mem[{seq_ctx_i[CtxBits-1:0], seq_place_i}];
  end
  assign cp_answer_o = answer_e'(value_q[AddrWidth+1:AddrWidth]);
  assign cp_value_o = value_q[AddrWidth-1:0];

  // What the sequencer asks for.
  ctx_t seq_ctx;
  assign seq_ctx = seq_ctx_i[CtxBits-1:0];
  assign seq_all_ready_o = issued_mem[seq_ctx] == seen_mem[seq_ctx];
  assign seq_granted_o = granted_mem[seq_ctx];
  assign seq_released_o = released_mem[seq_ctx];
  assign seq_code_o = code_mem[seq_ctx];
  assign seq_grant_o = grant_q;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      r1_valid_q <= 1'b0;
      r2_valid_q <= 1'b0;
      r3_valid_q <= 1'b0;
      r2_ctx_q <= '0;
      r3_ctx_q <= '0;
      r2_cp_q <= '0;
      r3_cp_q <= '0;
      r2_bad_q <= 1'b0;
      r3_bad_q <= 1'b0;
      r3_all_q <= 1'b0;
    end else begin
      r1_valid_q <= response_valid_i;
      r2_valid_q <= r1_valid_q;
      r2_ctx_q <= r1_ctx;
      r2_cp_q <= r1_q.ret.cp;
      r2_bad_q <= r1_q.answer == AnswerConflict || r1_q.answer == AnswerFailed;
      r3_valid_q <= r2_valid_q;
      r3_ctx_q <= r2_ctx_q;
      r3_cp_q <= r2_cp_q;
      r3_bad_q <= r2_bad_q;
      r3_all_q <= issued_mem[r2_ctx_q] == seen_mem[r2_ctx_q];
    end
  end

  assign wake_valid_o = r3_valid_q;
  assign wake_ctx_o = context_t'(r3_ctx_q);
  assign wake_cp_o = r3_cp_q;
  assign wake_all_o = r3_all_q;
  assign wake_bad_o = r3_bad_q;
  assign mark_valid_o = r1_valid_q;
  assign mark_ctx_o = context_t'(r1_ctx);
  assign mark_conflict_o = r1_q.answer == AnswerConflict;
  assign mark_failed_o = r1_q.answer == AnswerFailed;
  assign mark_inserted_o = r1_kind == KindInserted;
  assign mark_removed_o = r1_kind == KindRemoved;

  logic unused;
  assign unused = ^{r1_q.ret, issue_ctx_i, ctx_i, seq_ctx_i, seq_release_ctx_i, init_at_i};

endmodule
