// The softcore: takes blocks, executes their procedures in hardware contexts, and reports them completed. The barrel
// resolves an instruction in even cycles, the sequencer acts and late results arrive in odd ones, so each memory has
// one writer a cycle. An instruction that cannot go on is not executed: its context waits for an event and tries again.

module lw_softcore
  import lw_pkg::*;
  import lw_softcore_pkg::*;
  import lw_isa_pkg::*;
#(
  /// Transactions in hardware; a power of two, 2 to 64.
  parameter int unsigned Contexts = 16,
  /// Places of a context's grant log; a power of two, 2 to 256.
  parameter int unsigned Grants = 64,
  /// Instructions in the catalogue; a power of two.
  parameter int unsigned CodeWords = 1024,
  /// Procedures in the catalogue; a power of two.
  parameter int unsigned Procedures = 64,
  /// Reads of copies that may be outstanding; a power of two, to 64.
  parameter int unsigned Slots = 32,
  /// A context without progress for 2^WatchdogBits to twice as many cycles is reported.
  parameter int unsigned WatchdogBits = 20
) (
  /// Everything happens on its rising edge.
  input  logic        clk_i,
  /// Forgets all transactions; the first 256 cycles after it nothing is taken.
  input  logic        rst_ni,
  /// Writes of the host to the catalogue.
  input  config_t     config_i,
  /// This worker.
  input  worker_t     worker_i,
  /// How transactions share the softcore; changes only while `idle_o`.
  input  mode_e       mode_i,
  /// The most DB instructions outstanding, to measure with; 0: no limit. A low limit can stop everything when
  /// transactions wait for each other.
  input  logic [10:0] max_inflight_i,
  /// How often a transaction may begin again.
  input  logic [15:0] max_retries_i,
  /// Undo log of context 0, a multiple of 16; the others follow.
  input  addr_t       undo_base_i,
  /// Bytes of one context's undo log, a multiple of 16.
  input  logic [19:0] undo_bytes_i,
  /// The time that a transaction gets which takes one now; never 0, greater after each `start_o`.
  input  stamp_t      start_stamp_i,
  /// `start_stamp_i` was taken.
  output logic        start_o,

  /// A block is to be executed.
  input  logic        submit_valid_i,
  /// It is taken.
  output logic        submit_ready_o,
  /// Its address, a multiple of 8.
  input  addr_t       submit_addr_i,
  /// A block is completed; held until taken.
  output logic        done_valid_o,
  /// Taken.
  input  logic        done_ready_i,
  /// Its address.
  output addr_t       done_block_o,
  /// Its status.
  output logic [1:0]  done_status_o,
  /// Its code.
  output logic [15:0] done_code_o,
  /// Its time.
  output stamp_t      done_stamp_o,

  /// A DB instruction; held until taken.
  output logic        db_valid_o,
  /// Taken.
  input  logic        db_ready_i,
  /// What it does.
  output op_e         db_op_o,
  /// Its table.
  output table_t      db_table_o,
  /// Time of its transaction.
  output stamp_t      db_stamp_o,
  /// Where its answer goes; the CP register is a physical one.
  output return_t     db_return_o,
  /// Byte address of its key image.
  output addr_t       db_key_addr_o,
  /// The most rows of a scan.
  output logic [15:0] db_limit_o,
  /// What a scan takes of each row.
  output logic [5:0]  db_source_o,
  /// From the key image to the buffer of a scan, in bytes.
  output logic [23:0] db_delta_o,
  /// An answer; always taken.
  input  logic        response_valid_i,
  /// The answer.
  input  response_t   response_i,
  /// A grant is to be released; held until taken.
  output logic        release_valid_o,
  /// Taken.
  input  logic        release_ready_i,
  /// The worker that gave it.
  output worker_t     release_owner_o,
  /// The release.
  output request_t    release_o,

  /// A memory request; held until taken.
  output logic        mem_valid_o,
  /// Taken.
  input  logic        mem_ready_i,
  /// The request.
  output mem_req_t    mem_o,
  /// An answer of memory; always taken.
  input  logic        mem_rsp_valid_i,
  /// The answer.
  input  mem_rsp_t    mem_rsp_i,

  /// There is no transaction and no block.
  output logic        idle_o,
  /// Contexts without progress.
  output logic [Contexts-1:0] stuck_o,
  /// What each context does (`state_e`), four bits each.
  output logic [Contexts-1:0][3:0] states_o,

  /// For simulation: a register, or a part of it, is written.
  output logic        trace_write_o,
  /// Whose.
  output context_t    trace_write_ctx_o,
  /// Physical GP register.
  output logic [7:0]  trace_write_gp_o,
  /// Which bytes of it.
  output logic [7:0]  trace_write_bytes_o,
  /// Its value.
  output logic [63:0] trace_write_value_o,
  /// For simulation: a transaction begins, or begins again.
  output logic        trace_begin_o,
  /// Its context.
  output context_t    trace_begin_ctx_o,
  /// Its block.
  output addr_t       trace_begin_block_o,
  /// Its window of GP registers, if it begins for the first time.
  output logic [7:0]  trace_begin_gp_o
);

  localparam int unsigned CtxBits = $clog2(Contexts);
  typedef logic [CtxBits-1:0] ctx_t;

  // ---- After reset the small memories are cleared.
  logic [8:0] init_q;
  logic init, phase_q;
  assign init = !init_q[8];
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      init_q <= '0;
      phase_q <= 1'b0;
    end else begin
      if (init) init_q <= init_q + 9'd1;
      phase_q <= !phase_q;
    end
  end
  context_t init_ctx;
  assign init_ctx = context_t'(init_q[CtxBits-1:0]);

  // ---- Contexts.
  state_e [Contexts-1:0] state_q, state_d;
  logic [Contexts-1:0] barrel_q;      // the barrel has it, else the sequencer
  logic [Contexts-1:0] conflict_q;  // marks of its answers
  logic [Contexts-1:0] failed_q, inserted_q, removed_q;
  logic [Contexts-1:0] error_q;        // memory refused something
  logic [Contexts-1:0] full_q;          // its undo log is full
  logic [Contexts-1:0] fault_q;        // its product was too large
  logic [Contexts-1:0] handler_q;    // it is in a handler
  logic [Contexts-1:0] scan_q;          // a scan may be writing its block
  logic [Contexts-1:0] barrel_ready, barrel_ask, seq_ready, allowed, active, awake, s_set;

  logic [17:0] pc_mem[Contexts];  // flag, program counter
  ending_t     ending_mem[Contexts];
  place_t      place_mem[Contexts];
  stamp_t      stamp_mem[Contexts];
  logic [7:0]  awaited_cp_mem[Contexts];  // what its RET asked for
  logic [7:0]  awaited_gp_mem[Contexts];  // the register that it waits for

  // ---- Contexts and windows are given out in order and come back in any: a context that has ended keeps them until it
  // is looked at.
  logic [Contexts-1:0] held_q;
  ctx_t      next_q, look_q;  // the next transaction's, unless held; looked at
  logic [CtxBits:0] count_q;
  granule_t  gp_base, cp_base;
  granules_t gp_free, cp_free, gp_used_q, cp_used_q, gp_want_q, cp_want_q;
  logic      gp_give_ready, cp_give_ready, ended, may_give, give_back, beginning, act_begin;
  place_t    look_place, act_place;
  assign look_place = place_mem[look_q];
  assign ended = held_q[look_q] && state_q[look_q] == StateFree;
  assign give_back = ended && gp_give_ready && cp_give_ready && may_give;
  lw_windows u_gp_windows (
    .clk_i,
    .rst_ni,
    .init_i      (init),
    .init_at_i   (granule_t'(init_q)),
    .want_i      (gp_want_q),
    .base_o      (gp_base),
    .free_o      (gp_free),
    .take_i      (act_begin),
    .take_count_i(act_place.gps),
    .give_valid_i(give_back),
    .give_ready_o(gp_give_ready),
    .give_base_i (look_place.gp_base),
    .give_count_i(look_place.gps)
  );
  lw_windows u_cp_windows (
    .clk_i,
    .rst_ni,
    .init_i      (init),
    .init_at_i   (granule_t'(init_q)),
    .want_i      (cp_want_q),
    .base_o      (cp_base),
    .free_o      (cp_free),
    .take_i      (act_begin),
    .take_count_i(act_place.cps),
    .give_valid_i(give_back),
    .give_ready_o(cp_give_ready),
    .give_base_i (look_place.cp_base),
    .give_count_i(look_place.cps)
  );

  // ---- Front end.
  logic       fetch_valid, fetch_ready, fetched_valid, fetched_error;
  word_addr_t fetch_addr;
  logic [1:0] fetch_slot, fetched_slot;
  logic [63:0] fetched_data;
  logic       block_valid, block_unknown, block_error, no_block;
  addr_t      block_addr;
  logic [9:0] block_procedure;

  lw_front_end u_front_end (
    .clk_i,
    .rst_ni,
    .hold_i          (init),
    .submit_valid_i,
    .submit_ready_o,
    .submit_addr_i,
    .fetch_valid_o   (fetch_valid),
    .fetch_ready_i   (fetch_ready),
    .fetch_addr_o    (fetch_addr),
    .fetch_slot_o    (fetch_slot),
    .fetched_valid_i (fetched_valid),
    .fetched_slot_i  (fetched_slot),
    .fetched_data_i  (fetched_data),
    .fetched_error_i (fetched_error),
    .head_valid_o    (block_valid),
    .head_ready_i    (act_begin),
    .head_addr_o     (block_addr),
    .head_procedure_o(block_procedure),
    .head_unknown_o  (block_unknown),
    .head_error_o    (block_error),
    .empty_o         (no_block)
  );

  // ---- Catalogue.
  logic [15:0]  code_addr;
  logic [127:0] code;
  logic [9:0]   procedure_wanted;
  procedure_t   procedure;
  lw_catalogue #(
    .CodeWords (CodeWords),
    .Procedures(Procedures)
  ) u_catalogue (
    .clk_i,
    .rst_ni,
    .config_i,
    .code_addr_i(code_addr),
    .code_o     (code),
    .procedure_i(procedure_wanted),
    .procedure_o(procedure)
  );

  // ---- Barrel.
  logic     pick_valid, pick_take, b1_valid_q, r_ok, r_early, b1_early_q, b1_go, r_ok_q;
  ctx_t     pick_ctx, b1_ctx_q;
  place_t   b1_place;
  logic [17:0] b1_pc;
  assign pick_take = !phase_q && !init;
  assign b1_place = place_mem[b1_ctx_q];
  assign b1_pc = pc_mem[b1_ctx_q];
  lw_pick #(
    .Width(Contexts)
  ) u_pick (
    .clk_i,
    .rst_ni,
    .ask_i  (barrel_ask),
    .take_i (pick_take),
    .valid_o(pick_valid),
    .index_o(pick_ctx)
  );
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      b1_valid_q <= 1'b0;
      b1_ctx_q <= '0;
      b1_early_q <= 1'b0;
      r_ok_q <= 1'b0;
    end else begin
      b1_valid_q <= pick_take && pick_valid;
      b1_ctx_q <= pick_ctx;
      b1_early_q <= r_early;
      r_ok_q <= r_ok;
    end
  end
  // A context whose instruction is being resolved is taken again if no other is ready; that was too early if it turns
  // out that it has to wait.
  assign b1_go = b1_valid_q && !(b1_early_q && !r_ok_q);

  logic        write_q, write_d;
  context_t    write_ctx_q, write_ctx_d;
  logic [7:0]  write_gp_q, write_gp_d, write_bytes_q, write_bytes_d;
  logic [63:0] write_value_q, write_value_d;
  context_t    ask_ctx, r_context;
  logic        ask_b, r_toggle, r_stale, r_pending, loading, loaded_q, loaded_toggle_q;
  logic [7:0]  r_stale_gp, loaded_gp_q;
  logic [7:0]  ask_cp, r_opcode, r_a, r_d, r_e, r_gp_a, r_cp_a;
  logic        r_valid, r_undo, r_overflow, r_less, r_equal, r_zero, r_extreme, r_fits, r_taken;
  logic [15:0] r_pc, r_next_pc, r_w;
  logic [31:0] r_x;
  logic [63:0] r_left, r_right, r_stored, r_value;
  addr_t       r_addr_x, r_addr_y;
  lw_barrel u_barrel (
    .clk_i,
    .rst_ni,
    .pick_valid_i  (b1_go),
    .pick_ctx_i    (context_t'(b1_ctx_q)),
    .pick_pc_i     (b1_pc[15:0]),
    .pick_flag_i   (b1_pc[17:16]),
    .pick_block_i  (b1_place.block),
    .pick_gp_base_i(b1_place.gp_base),
    .pick_cp_base_i(b1_place.cp_base),
    .code_addr_o   (code_addr),
    .code_i        (code),
    .write_i       (write_q),
    .write_gp_i    (write_gp_q),
    .write_bytes_i (write_bytes_q),
    .write_value_i (write_value_q),
    .init_i        (init),
    .init_at_i     (init_q[7:0]),
    .load_i        (loading),
    .loaded_i      (loaded_q),
    .loaded_gp_i   (loaded_gp_q),
    .loaded_toggle_i(loaded_toggle_q),
    .toggle_o      (r_toggle),
    .stale_o       (r_stale),
    .stale_gp_o    (r_stale_gp),
    .pending_o     (r_pending),
    .ask_ctx_o     (ask_ctx),
    .ask_cp_o      (ask_cp),
    .ask_b_o       (ask_b),
    .valid_o       (r_valid),
    .ctx_o         (r_context),
    .opcode_o      (r_opcode),
    .undo_o        (r_undo),
    .pc_o          (r_pc),
    .next_pc_o     (r_next_pc),
    .a_o           (r_a),
    .d_o           (r_d),
    .e_o           (r_e),
    .w_o           (r_w),
    .x_o           (r_x),
    .gp_a_o        (r_gp_a),
    .cp_a_o        (r_cp_a),
    .left_o        (r_left),
    .right_o       (r_right),
    .stored_o      (r_stored),
    .addr_x_o      (r_addr_x),
    .addr_y_o      (r_addr_y),
    .value_o       (r_value),
    .overflow_o    (r_overflow),
    .less_o        (r_less),
    .equal_o       (r_equal),
    .zero_o        (r_zero),
    .extreme_o     (r_extreme),
    .fits_o        (r_fits),
    .taken_o       (r_taken)
  );
  ctx_t r_ctx;
  assign r_ctx = r_context[CtxBits-1:0];

  // ---- Arithmetic that takes long.
  logic        multiply, multiplier_ready, product_valid, product_overflow;
  context_t    product_ctx;
  logic [7:0]  product_gp;
  logic [63:0] product_value;
  lw_multiplier u_multiplier (
    .clk_i,
    .rst_ni,
    .valid_i   (multiply),
    .ready_o   (multiplier_ready),
    .ctx_i     (r_context),
    .gp_i      (r_gp_a),
    .a_i       (r_left),
    .b_i       (r_right),
    .valid_o   (product_valid),
    .ctx_o     (product_ctx),
    .gp_o      (product_gp),
    .value_o   (product_value),
    .overflow_o(product_overflow)
  );
  logic        divide, divider_ready, quotient_valid, quotient_ready;
  context_t    quotient_ctx;
  logic [7:0]  quotient_gp;
  logic [63:0] quotient_value;
  lw_divider u_divider (
    .clk_i,
    .rst_ni,
    .valid_i(divide),
    .ready_o(divider_ready),
    .ctx_i  (r_context),
    .gp_i   (r_gp_a),
    .a_i    (r_left),
    .b_i    (r_right),
    .valid_o(quotient_valid),
    .ready_i(quotient_ready),
    .ctx_o  (quotient_ctx),
    .gp_o   (quotient_gp),
    .value_o(quotient_value)
  );

  // ---- Memory.
  logic     job_valid, r_job_valid, s_job_valid;
  job_t     job, r_job, s_job;
  context_t job_ctx, s_context, lsu_done_ctx, lsu_full_ctx, drain_ctx, error_ctx;
  logic     lsu_done, lsu_full, loaded_valid, loaded_ready, drained, settled, queued, drain_valid, error_valid;
  logic [Contexts-1:0] lsu_busy;
  loaded_t  loaded;
  context_t s_log_ctx;
  assign job_valid = r_job_valid || s_job_valid;
  assign job = phase_q ? s_job : r_job;
  assign job_ctx = phase_q ? s_context : r_context;
  lw_lsu #(
    .Contexts(Contexts),
    .Slots   (Slots)
  ) u_lsu (
    .clk_i,
    .rst_ni,
    .init_i         (init),
    .init_at_i      (init_q[7:0]),
    .undo_base_i,
    .undo_bytes_i,
    .start_valid_i  (job_valid),
    .start_ctx_i    (job_ctx),
    .start_i        (job),
    .busy_o         (lsu_busy),
    .done_valid_o   (lsu_done),
    .done_ctx_o     (lsu_done_ctx),
    .full_valid_o   (lsu_full),
    .full_ctx_o     (lsu_full_ctx),
    .result_valid_o (loaded_valid),
    .result_ready_i (loaded_ready),
    .result_o       (loaded),
    .ask_i          (phase_q ? ask_ctx : s_log_ctx),
    .drained_o      (drained),
    .settled_o      (settled),
    .queued_o       (queued),
    .drain_valid_o  (drain_valid),
    .drain_ctx_o    (drain_ctx),
    .error_valid_o  (error_valid),
    .error_ctx_o    (error_ctx),
    .fetch_valid_i  (fetch_valid),
    .fetch_ready_o  (fetch_ready),
    .fetch_addr_i   (fetch_addr),
    .fetch_slot_i   (fetch_slot),
    .fetched_valid_o(fetched_valid),
    .fetched_slot_o (fetched_slot),
    .fetched_data_o (fetched_data),
    .fetched_error_o(fetched_error),
    .mem_valid_o,
    .mem_ready_i,
    .mem_o,
    .mem_rsp_valid_i,
    .mem_rsp_i
  );

  // ---- Answers.
  logic     s_all_ready_early;
  logic [15:0] s_code_early;
  logic     issue, cp_ready, r_all_ready, r_log_full, s_all_ready, take_time;
  logic [Contexts-1:0] timed_q;
  answer_e  cp_answer;
  addr_t    cp_value;
  logic [$clog2(Grants):0] s_granted, s_released;
  logic [$clog2(Grants)-1:0] s_log_place;
  logic [15:0] s_failed_code;
  held_t    s_grant;
  context_t wake_ctx, mark_ctx;
  logic     act_release, wake_valid, wake_all, wake_bad;
  logic     mark_valid, mark_conflict, mark_failed, mark_inserted, mark_removed;
  cp_t      wake_cp;
  lw_answers #(
    .Contexts(Contexts),
    .Grants  (Grants)
  ) u_answers (
    .clk_i,
    .rst_ni,
    .init_i           (init),
    .init_at_i        (init_q[7:0]),
    .response_valid_i,
    .response_i,
    .issue_i          (issue),
    .issue_ctx_i      (r_context),
    .issue_cp_i       (r_cp_a),
    .cp_i             (ask_cp),
    .ctx_i            (ask_ctx),
    .cp_ready_o       (cp_ready),
    .cp_answer_o      (cp_answer),
    .cp_value_o       (cp_value),
    .all_ready_o      (r_all_ready),
    .full_o           (r_log_full),
    .seq_ctx_i        (s_log_ctx),
    .seq_all_ready_o  (s_all_ready_early),
    .seq_granted_o    (s_granted),
    .seq_code_o       (s_code_early),
    .seq_place_i      (s_log_place),
    .seq_grant_o      (s_grant),
    .seq_release_i    (act_release),
    .seq_release_ctx_i(s_context),
    .seq_released_o   (s_released),
    .wake_valid_o     (wake_valid),
    .wake_ctx_o       (wake_ctx),
    .wake_cp_o        (wake_cp),
    .wake_all_o       (wake_all),
    .wake_bad_o       (wake_bad),
    .mark_valid_o     (mark_valid),
    .mark_ctx_o       (mark_ctx),
    .mark_conflict_o  (mark_conflict),
    .mark_failed_o    (mark_failed),
    .mark_inserted_o  (mark_inserted),
    .mark_removed_o   (mark_removed)
  );
  // Questions are asked one cycle before an instruction is resolved or the sequencer acts.
  logic drained_q, r_settled_q, queued_q;
  cp_t  r_cp_b_q;
  always_ff @(posedge clk_i) begin
    s_all_ready <= s_all_ready_early;
    s_failed_code <= s_code_early;
    drained_q <= drained;
    queued_q <= queued;
    r_settled_q <= settled;
    r_cp_b_q <= ask_cp;
  end

  // ---- Sequencer.
  logic     choose_valid, begin_ok, s_act, act_barrel, act_handler, act_clear, act_blocked, act_stamp, act_restart;
  logic     act_hold, act_seek;
  logic     act_pc;
  context_t choose_ctx, s_read_ctx;
  state_e   act_state;
  ending_t  act_ending;
  logic [15:0] act_pc_value;
  ctx_t     s_ctx, s_read;
  assign s_ctx = s_context[CtxBits-1:0];
  assign s_read = s_read_ctx[CtxBits-1:0];
  lw_sequencer #(
    .Contexts(Contexts),
    .Grants  (Grants)
  ) u_sequencer (
    .clk_i,
    .rst_ni,
    .choose_i         (!phase_q && !init),
    .init_i           (init),
    .init_ctx_i       (init_ctx),
    .max_retries_i,
    .worker_i,
    .ready_i          (seq_ready),
    .begin_i          (begin_ok),
    .begin_ctx_i      (context_t'(next_q)),
    .begin_block_i    (block_addr),
    .begin_procedure_i(block_procedure),
    .begin_unknown_i  (block_unknown),
    .begin_error_i    (block_error),
    .gp_used_i        (gp_used_q),
    .gp_base_i        (gp_base),
    .gp_free_i        (gp_free),
    .cp_used_i        (cp_used_q),
    .cp_base_i        (cp_base),
    .cp_free_i        (cp_free),
    .beginning_o      (beginning),
    .choose_valid_o   (choose_valid),
    .choose_ctx_o     (choose_ctx),
    .read_ctx_o       (s_read_ctx),
    .ending_i         (ending_mem[s_read]),
    .place_i          (place_mem[s_read]),
    .time_i           (stamp_mem[s_read]),
    .procedure_o      (procedure_wanted),
    .procedure_i      (procedure),
    .ctx_o            (s_context),
    .all_ready_i      (s_all_ready),
    .timed_i          (timed_q[s_ctx]),
    .drained_i        (drained_q),
    .queued_i         (queued_q),
    .busy_i           (lsu_busy[s_ctx]),
    .conflict_i       (conflict_q[s_ctx]),
    .failed_i         (failed_q[s_ctx]),
    .failed_code_i    (s_failed_code),
    .error_i          (error_q[s_ctx]),
    .full_i           (full_q[s_ctx]),
    .inserted_i       (inserted_q[s_ctx]),
    .removed_i        (removed_q[s_ctx]),
    .granted_i        (s_granted),
    .released_i       (s_released),
    .log_ctx_o        (s_log_ctx),
    .log_place_o      (s_log_place),
    .log_i            (s_grant),
    .act_o            (s_act),
    .act_state_o      (act_state),
    .act_barrel_o     (act_barrel),
    .act_handler_o    (act_handler),
    .act_clear_o      (act_clear),
    .act_begin_o      (act_begin),
    .act_blocked_o    (act_blocked),
    .act_seek_o       (act_seek),
    .act_stamp_o      (act_stamp),
    .act_restart_o    (act_restart),
    .act_hold_o       (act_hold),
    .act_release_o    (act_release),
    .act_ending_o     (act_ending),
    .act_pc_o         (act_pc),
    .act_pc_value_o   (act_pc_value),
    .act_place_o      (act_place),
    .job_valid_o      (s_job_valid),
    .job_o            (s_job),
    .release_valid_o,
    .release_ready_i,
    .release_owner_o,
    .release_o,
    .done_valid_o,
    .done_ready_i,
    .done_block_o,
    .done_status_o,
    .done_code_o,
    .done_stamp_o
  );
  // The time is taken with the first DB instruction, not when the transaction begins: so transactions that want the
  // same row first ask for it in the order of their times, and none of them comes too late.
  assign take_time = issue && !timed_q[r_ctx];
  assign start_o = act_stamp || take_time;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      timed_q <= '0;
    end else begin
      if (act_clear) timed_q[s_ctx] <= 1'b0;
      if (act_stamp) timed_q[s_ctx] <= 1'b1;
      if (take_time) timed_q[r_ctx] <= 1'b1;
    end
  end

  // ---- Scheduling.
  logic [Contexts-1:0] again_q;  // it began again
  logic [Contexts-1:0] hold_q;   // it waits before it begins again
  logic [5:0] hold_clock_q;
  logic blocked_q, found, batch_run_q, batch_end_q, may_begin, all_free, batch_idle;
  ctx_t batch_q, first_q;  // whose turn it is in a batch; its first
  always_comb begin
    for (int unsigned i = 0; i < Contexts; i++) active[i] = state_q[i] != StateFree;
  end
  always_comb begin
    unique case (mode_i)
      ModeSerial: may_begin = count_q == '0;
      ModeBatch:  may_begin = !batch_run_q && !batch_end_q && (active != '0 || all_free);
      default:    may_begin = 1'b1;
    endcase
  end
  // A batch begins with everything free and gets nothing back while it can grow: so its contexts follow each other in
  // the order of their beginnings, and what is free of the registers stays in one piece.
  assign all_free = count_q == '0 && gp_give_ready && cp_give_ready;
  assign may_give = mode_i != ModeBatch || batch_end_q || (active == '0 && !beginning);
  assign found = gp_want_q <= gp_free && cp_want_q <= cp_free;
  assign begin_ok = block_valid && !held_q[next_q] && !blocked_q && found && may_begin && !init;
  assign allowed = mode_i == ModeBatch ? (Contexts)'(batch_run_q) << batch_q : '1;
  always_comb begin
    for (int unsigned i = 0; i < Contexts; i++) begin
      barrel_ready[i] = state_q[i] == StateReady && barrel_q[i] && allowed[i];
      seq_ready[i] = state_q[i] == StateReady && !barrel_q[i] && !hold_q[i];
    end
  end
  logic r_again;
  assign r_again = r_valid && barrel_ready == '0 && allowed[r_ctx];
  assign barrel_ask = barrel_ready | ((Contexts)'(r_again) << r_ctx);
  assign r_early = pick_take && r_again;
  // A batch is full, or there is nothing to fill it with.
  assign batch_idle = blocked_q || count_q[CtxBits] || (no_block && !submit_valid_i);

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      blocked_q <= 1'b0;
      again_q <= '0;
      hold_q <= '0;
      hold_clock_q <= '0;
      batch_run_q <= 1'b0;
      batch_end_q <= 1'b0;
      batch_q <= '0;
      first_q <= '0;
    end else begin
      if (act_begin && active == '0) first_q <= s_ctx;
      if (act_begin || act_restart) again_q <= (again_q & ~s_set) | (s_set & {Contexts{act_restart}});
      hold_clock_q <= hold_clock_q + 6'd1;
      hold_q <= (hold_q & {Contexts{hold_clock_q != '0}}) | (s_set & {Contexts{act_hold}});
      // What comes back in the cycle of the act was not counted by it.
      if (give_back) blocked_q <= 1'b0;
      else if (act_blocked) blocked_q <= 1'b1;
      if (mode_i != ModeBatch || active == '0) begin
        batch_run_q <= mode_i == ModeBatch && act_begin;
        batch_end_q <= 1'b0;
        batch_q <= s_ctx;
      end else if (!batch_end_q) begin
        if (act_begin) begin
          batch_run_q <= 1'b1;
          batch_q <= s_ctx;
        end else if (batch_run_q) begin
          if (state_q[batch_q] == StateCp || state_q[batch_q] == StateAll || !active[batch_q]) batch_run_q <= 1'b0;
        end else if (batch_idle) begin
          batch_run_q <= 1'b1;
          batch_end_q <= 1'b1;
          batch_q <= first_q;
        end
      end else if (!active[batch_q] || (act_restart && s_ctx == batch_q)
          || (again_q[batch_q] && (state_q[batch_q] == StateCp || state_q[batch_q] == StateAll))) begin
        // One that began again has a later time than others of the batch, and may have to wait for them.
        batch_q <= batch_q + ctx_t'(1);
      end
    end
  end

  // ---- What happens to the instruction at the end of the barrel.
  logic        r_end, r_go, r_wait_all;
  ending_t     r_ending;
  state_e      r_state;
  logic        r_write, r_flag_write, r_bad, r_fence, r_busy, db_free, limited;
  logic [15:0] r_pc_next;
  logic [63:0] r_result;
  logic [1:0]  r_flag;
  logic        handler;
  logic [10:0] inflight_q;
  assign handler = handler_q[r_ctx];
  assign r_bad = !handler
      && (conflict_q[r_ctx] || failed_q[r_ctx] || error_q[r_ctx] || full_q[r_ctx] || fault_q[r_ctx]);
  assign db_free = !db_valid_o || db_ready_i;
  assign limited = max_inflight_i != '0 && inflight_q >= max_inflight_i;
  assign r_busy = lsu_busy[r_ctx];
  // A scan may still be writing the block, and reading rows.
  assign r_fence = scan_q[r_ctx] && !r_all_ready;

  always_comb begin
    r_end = 1'b0;
    r_go = 1'b1;
    r_state = StateReady;
    r_ending = '{step: StepWait, how: EndAbort, code: AbortOverflow};
    r_write = 1'b0;
    r_result = r_value;
    r_flag_write = 1'b0;
    r_pc_next = r_taken ? r_x[15:0] : r_next_pc;
    r_job_valid = 1'b0;
    r_job = '{
        kind: JobLoad,
        undo: r_undo,
        clear: 1'b0,
        extend: r_w[15],
        gp: r_gp_a,
        toggle: r_toggle,
        dst_row: r_opcode[1],
        src_row: r_opcode[1],
        len: 20'(r_w[3:0]),
        dst: r_addr_x,
        data: r_stored
    };
    loading = 1'b0;
    r_wait_all = 1'b0;
    multiply = 1'b0;
    divide = 1'b0;
    issue = 1'b0;
    if (r_valid && r_bad) begin
      r_end = 1'b1;
    end else if (r_valid && r_stale) begin
      // If the register has come meanwhile, the instruction is tried again at once.
      r_go = 1'b0;
      if (r_pending) r_state = StateLoad;
    end else if (r_valid) begin
      unique case (r_opcode)
        OpcodeMov, OpcodeMovi: r_write = 1'b1;
        OpcodeAdd, OpcodeSub, OpcodeAddi, OpcodeSubi: begin
          r_write = !r_overflow;
          r_end = r_overflow;
        end
        OpcodeMul, OpcodeMuli: begin
          // It is not busy for long: the instruction is tried again at once.
          multiply = multiplier_ready;
          r_go = multiplier_ready;
          if (multiplier_ready) r_state = StateLate;
        end
        OpcodeDiv, OpcodeDivi: begin
          if (r_zero || r_extreme) begin
            r_end = 1'b1;
            if (r_zero) r_ending.code = AbortDivisionByZero;
          end else if (divider_ready) begin
            divide = 1'b1;
            r_state = StateLate;
          end else begin
            r_go = 1'b0;
            r_state = StateDivide;
          end
        end
        OpcodeCmp, OpcodeCmpi: r_flag_write = 1'b1;
        OpcodeCheck: begin
          r_end = r_left[63] || !r_less;
          r_ending.code = AbortOutOfRange;
        end
        OpcodeLoad, OpcodeLoadr: begin
          if (r_fence) r_wait_all = 1'b1;
          else if (r_busy) r_state = StateLsu;
          else begin
            r_job_valid = 1'b1;
            loading = 1'b1;
          end
          r_go = r_job_valid;
        end
        OpcodeStore, OpcodeStorer: begin
          r_job.kind = JobStore;
          // Keys of instructions that have no answer may still be read from the block.
          if (!r_fits) begin
            r_end = 1'b1;
            r_ending.code = AbortValueTooWide;
          end else if (r_fence || (r_opcode == OpcodeStore && !r_all_ready)) r_wait_all = 1'b1;
          else if (r_busy) r_state = StateLsu;
          else r_job_valid = 1'b1;
          r_go = r_job_valid;
        end
        OpcodeCopyBb, OpcodeCopyBr, OpcodeCopyRb, OpcodeCopyRr: begin
          r_job.kind = JobCopy;
          r_job.len = 20'(r_w);
          r_job.data = 64'(r_addr_y);
          r_job.src_row = r_opcode[0];
          if (r_fence || (!r_opcode[1] && !r_all_ready)) r_wait_all = 1'b1;
          else if (r_busy) r_state = StateLsu;
          else r_job_valid = 1'b1;
          r_go = r_job_valid;
        end
        OpcodeJmp, OpcodeBe, OpcodeBne, OpcodeBl, OpcodeBle, OpcodeBg, OpcodeBge: ;
        OpcodeSearch, OpcodeUpdate, OpcodeInsert, OpcodeRemove, OpcodeScan: begin
          if (r_fence) r_wait_all = 1'b1;
          else if (!(r_opcode == OpcodeScan ? drained_q : r_settled_q)) r_state = StateDrain;
          else if (r_log_full && !r_all_ready) r_wait_all = 1'b1;
          else if (r_log_full) begin
            r_end = 1'b1;
            r_ending.how = EndFailed;
            r_ending.code = AbortTooManyGrants;
          end else issue = db_free && !limited;
          r_go = issue;
        end
        OpcodeRet: begin
          r_result = 64'(cp_value);
          if (!cp_ready) begin
            r_go = 1'b0;
            r_state = StateCp;
          end else if (cp_answer == AnswerReady) begin
            r_write = 1'b1;
          end else if (cp_answer == AnswerMissing && r_x != NoLabel) begin
            r_pc_next = r_x[15:0];
          end else begin
            r_end = 1'b1;
            r_ending.code = cp_value[15:0];
          end
        end
        OpcodeCommit: begin
          r_end = 1'b1;
          r_ending.how = EndCommit;
          r_ending.code = '0;
        end
        default: begin
          r_end = 1'b1;
          r_ending.code = r_w;
        end
      endcase
    end
    if (r_wait_all) r_state = StateAll;
    if (r_end) begin
      r_state = StateReady;
      r_go = 1'b0;
    end
    r_ok = r_state == StateReady && !r_end;
    // A handler's end is known already.
    if (handler) r_ending = '{step: StepOutcome, how: ending_mem[r_ctx].how, code: ending_mem[r_ctx].code};
  end
  // The flag of an instruction that compares nothing stays.
  logic [1:0] r_flag_old;
  logic [17:0] r_pc_word;
  assign r_pc_word = pc_mem[r_ctx];
  assign r_flag_old = r_pc_word[17:16];
  assign r_flag = r_flag_write ? {r_less, r_equal} : r_flag_old;

  // ---- Late results, in the sequencer's cycles. A load in two parts is complete with the second.
  logic     late_valid, late_fault, late_load, loaded_last;
  context_t late_ctx;
  logic     half_mem[256];
  assign loaded_ready = phase_q && !product_valid;
  assign quotient_ready = phase_q && !product_valid && !loaded_valid;
  assign late_load = loaded_ready && loaded_valid;
  assign late_valid = phase_q && (product_valid || (quotient_valid && quotient_ready));
  assign late_ctx = product_valid ? product_ctx : quotient_ctx;
  assign late_fault = product_valid && product_overflow;
  assign loaded_last = loaded.bytes == '1 || half_mem[loaded.gp];
  always_comb begin
    write_bytes_d = '1;
    if (phase_q) begin
      write_d = late_load || (late_valid && !late_fault);
      write_ctx_d = late_load ? loaded.ctx : late_ctx;
      write_gp_d = product_valid ? product_gp : loaded_valid ? loaded.gp : quotient_gp;
      write_value_d = product_valid ? product_value : loaded_valid ? loaded.value : quotient_value;
      if (late_load) write_bytes_d = loaded.bytes;
    end else begin
      write_d = r_valid && r_write && r_a != '0;
      write_ctx_d = r_context;
      write_gp_d = r_gp_a;
      write_value_d = r_result;
    end
  end
  // One cycle after its last part was written, a register is said to be loaded; the cycle after, its context hears of
  // it.
  logic [7:0] half_at, heard_gp_q;
  logic       last_q, last_toggle_q, heard_q;
  ctx_t       loaded_ctx_q, heard_ctx_q;
  assign half_at = init ? init_q[7:0] : loaded.gp;
  always_ff @(posedge clk_i) begin
    if (init || late_load) half_mem[half_at] <= !init && !loaded_last;
    write_ctx_q <= write_ctx_d;
    write_gp_q <= write_gp_d;
    write_bytes_q <= write_bytes_d;
    write_value_q <= write_value_d;
    last_toggle_q <= loaded.toggle;
    loaded_toggle_q <= last_toggle_q;
    loaded_gp_q <= write_gp_q;
    loaded_ctx_q <= write_ctx_q[CtxBits-1:0];
    heard_gp_q <= loaded_gp_q;
    heard_ctx_q <= loaded_ctx_q;
  end
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      write_q <= 1'b0;
      last_q <= 1'b0;
      loaded_q <= 1'b0;
      heard_q <= 1'b0;
    end else begin
      write_q <= write_d;
      last_q <= late_load && loaded_last;
      loaded_q <= last_q;
      heard_q <= loaded_q;
    end
  end

  // ---- States.
  ctx_t lsu_done_at, lsu_full_at, late_at, wake_at, drain_at, mark_at, error_at, choose_at;
  assign lsu_done_at = lsu_done_ctx[CtxBits-1:0];
  assign lsu_full_at = lsu_full_ctx[CtxBits-1:0];
  assign late_at = late_ctx[CtxBits-1:0];
  assign wake_at = wake_ctx[CtxBits-1:0];
  assign drain_at = drain_ctx[CtxBits-1:0];
  assign mark_at = mark_ctx[CtxBits-1:0];
  assign error_at = error_ctx[CtxBits-1:0];
  assign choose_at = choose_ctx[CtxBits-1:0];
  logic wake_cp_hit, heard_hit;
  assign wake_cp_hit = awaited_cp_mem[wake_at] == wake_cp;
  assign heard_hit = awaited_gp_mem[heard_ctx_q] == heard_gp_q;

  // Whom each event is about.
  typedef logic [Contexts-1:0] set_t;
  set_t wake_set, drain_set, done_set, heard_set, late_set, taken_set, r_set, clear_set, mark_set, error_set, full_set;
  assign wake_set = (Contexts)'(wake_valid) << wake_at;
  assign drain_set = (Contexts)'(drain_valid) << drain_at;
  assign done_set = (Contexts)'(lsu_done) << lsu_done_at;
  assign heard_set = (Contexts)'(heard_q && heard_hit) << heard_ctx_q;
  assign late_set = (Contexts)'(late_valid) << late_at;
  assign taken_set = ((Contexts)'(pick_take && pick_valid) << pick_ctx) | ((Contexts)'(choose_valid) << choose_at);
  assign r_set = (Contexts)'(r_valid) << r_ctx;
  assign s_set = (Contexts)'(s_act || act_begin) << s_ctx;
  assign clear_set = s_set & {Contexts{act_clear}};
  assign mark_set = (Contexts)'(mark_valid) << mark_at;
  assign error_set = (Contexts)'(error_valid) << error_at;
  assign full_set = (Contexts)'(lsu_full) << lsu_full_at;

  // A context is woken, taken, resolved or acted upon; never two of them at once.
  always_comb begin
    for (int unsigned i = 0; i < Contexts; i++) begin
      unique case (state_q[i])
        StateCp:     awake[i] = wake_set[i] && (wake_cp_hit || wake_bad);
        StateAll:    awake[i] = wake_set[i] && wake_all;
        StateLsu:    awake[i] = done_set[i];
        StateLate:   awake[i] = late_set[i];
        StateDrain:  awake[i] = drain_set[i] || done_set[i];
        StateDivide: awake[i] = divider_ready;
        StateLoad:   awake[i] = heard_set[i];
        default:     awake[i] = 1'b0;
      endcase
      state_d[i] = state_q[i];
      if (awake[i]) state_d[i] = StateReady;
      if (taken_set[i]) state_d[i] = StateBusy;
      if (r_set[i] && !(r_early && r_ok)) state_d[i] = r_state;
      if (s_set[i]) state_d[i] = act_state;
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      for (int unsigned i = 0; i < Contexts; i++) state_q[i] <= StateFree;
      barrel_q <= '0;
      conflict_q <= '0;
      failed_q <= '0;
      inserted_q <= '0;
      removed_q <= '0;
      error_q <= '0;
      full_q <= '0;
      fault_q <= '0;
      handler_q <= '0;
      scan_q <= '0;
    end else begin
      state_q <= state_d;
      barrel_q <= (barrel_q & ~s_set & ~(r_set & {Contexts{r_end}})) | (s_set & {Contexts{act_barrel}});
      handler_q <= (handler_q & ~clear_set) | (s_set & {Contexts{act_handler}});
      scan_q <= (scan_q & ~clear_set & ~(r_set & {Contexts{r_all_ready}}))
          | (r_set & {Contexts{issue && r_opcode == OpcodeScan}});
      conflict_q <= (conflict_q & ~clear_set) | (mark_set & {Contexts{mark_conflict}});
      failed_q <= (failed_q & ~clear_set) | (mark_set & {Contexts{mark_failed}});
      inserted_q <= (inserted_q & ~clear_set) | (mark_set & {Contexts{mark_inserted}});
      removed_q <= (removed_q & ~clear_set) | (mark_set & {Contexts{mark_removed}});
      error_q <= (error_q & ~clear_set) | error_set;
      full_q <= (full_q & ~clear_set) | full_set;
      fault_q <= (fault_q & ~clear_set) | (late_set & {Contexts{late_fault}});
    end
  end

  // ---- Memories of contexts: the barrel's cycle, then the sequencer's.
  always_ff @(posedge clk_i) begin
    if (phase_q) begin
      if (act_pc && (s_act || act_begin)) pc_mem[s_ctx] <= {2'b00, act_pc_value};
      if (s_act || act_begin) ending_mem[s_ctx] <= act_ending;
    end else begin
      if (r_valid && r_go) pc_mem[r_ctx] <= {r_flag, r_pc_next};
      if (r_valid && r_end) ending_mem[r_ctx] <= r_ending;
    end
    if (act_begin) place_mem[s_ctx] <= act_place;
    if (start_o) stamp_mem[take_time ? r_ctx : s_ctx] <= start_stamp_i;
    if (r_valid) awaited_cp_mem[r_ctx] <= r_cp_b_q;
    if (r_valid) awaited_gp_mem[r_ctx] <= r_stale_gp;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      held_q <= '0;
      next_q <= '0;
      look_q <= '0;
      count_q <= '0;
      gp_used_q <= '0;
      cp_used_q <= '0;
      gp_want_q <= '0;
      cp_want_q <= '0;
    end else begin
      held_q <= (held_q | ((Contexts)'(act_begin) << s_ctx)) & ~((Contexts)'(give_back) << look_q);
      if (held_q[next_q]) next_q <= next_q + ctx_t'(1);
      // Whoever ends is looked at first, if nobody is waited for.
      if (!ended && s_act && act_state == StateFree) look_q <= s_ctx;
      else if (!ended || give_back) look_q <= look_q + ctx_t'(1);
      count_q <= count_q + (CtxBits + 1)'(act_begin) - (CtxBits + 1)'(give_back);
      gp_used_q <= gp_used_q + (act_begin ? act_place.gps : '0) - (give_back ? look_place.gps : '0);
      cp_used_q <= cp_used_q + (act_begin ? act_place.cps : '0) - (give_back ? look_place.cps : '0);
      if (act_begin || act_seek) begin
        gp_want_q <= act_seek ? act_place.gps : '0;
        cp_want_q <= act_seek ? act_place.cps : '0;
      end
    end
  end

  // ---- DB instructions.
  op_e db_op;
  always_comb begin
    unique case (r_opcode)
      OpcodeUpdate: db_op = OpUpdate;
      OpcodeInsert: db_op = OpInsert;
      OpcodeRemove: db_op = OpRemove;
      OpcodeScan:   db_op = OpScan;
      default:      db_op = OpSearch;
    endcase
  end
  logic r_limit_given_q;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      db_valid_o <= 1'b0;
      db_op_o <= OpSearch;
      db_table_o <= '0;
      db_stamp_o <= '0;
      db_return_o <= '0;
      db_key_addr_o <= '0;
      db_limit_o <= '0;
      db_source_o <= '0;
      db_delta_o <= '0;
      inflight_q <= '0;
    end else begin
      if (db_free) db_valid_o <= issue;
      if (issue) begin
        db_op_o <= db_op;
        db_table_o <= r_d[TableWidth-1:0];
        db_stamp_o <= timed_q[r_ctx] ? stamp_mem[r_ctx] : start_stamp_i;
        db_return_o <= '{worker: worker_i, ctx: r_context, cp: r_cp_a};
        db_key_addr_o <= r_addr_x;
        db_limit_o <= r_limit_given_q ? r_left[15:0] : r_w;
        db_source_o <= r_e[5:0];
        db_delta_o <= r_addr_y[23:0] - r_addr_x[23:0];
      end
      inflight_q <= inflight_q + 11'(issue) - 11'(response_valid_i);
    end
  end
  always_ff @(posedge clk_i) r_limit_given_q <= ask_b;

  // ---- Watchdog.
  logic [WatchdogBits-1:0] watch_q;
  logic [Contexts-1:0] moved_q, stuck_q;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      watch_q <= '0;
      moved_q <= '0;
      stuck_q <= '0;
    end else begin
      watch_q <= watch_q + WatchdogBits'(1);
      for (int unsigned i = 0; i < Contexts; i++) begin
        if (state_q[i] == StateFree || state_q[i] == StateBusy || awake[i] || taken_set[i]) begin
          moved_q[i] <= 1'b1;
          stuck_q[i] <= 1'b0;
        end else if (watch_q == '0) begin
          moved_q[i] <= 1'b0;
          stuck_q[i] <= !moved_q[i];
        end
      end
    end
  end
  assign stuck_o = stuck_q;
  assign idle_o = count_q == '0 && no_block && !init && !release_valid_o && !done_valid_o;
  assign states_o = state_q;

  assign trace_write_o = write_q;
  assign trace_write_ctx_o = write_ctx_q;
  assign trace_write_gp_o = write_gp_q;
  assign trace_write_bytes_o = write_bytes_q;
  assign trace_write_value_o = write_value_q;
  assign trace_begin_o = (act_begin || act_restart) && act_barrel;
  assign trace_begin_ctx_o = s_context;
  assign trace_begin_block_o = act_begin ? block_addr : '0;
  assign trace_begin_gp_o = physical(gp_base, '0);

  logic unused;
  assign unused = ^{r_pc, r_d, r_e, b1_place, look_place, r_pc_word, lsu_done_ctx, lsu_full_ctx, drain_ctx, error_ctx,
                    wake_ctx, mark_ctx, choose_ctx, s_read_ctx};

`ifdef LW_ASSERT
  // A window is given away, or begins again, only when nothing is under way to it any more.
  always_ff @(posedge clk_i) begin
    if (rst_ni && s_act && (act_state == StateFree || act_restart)) assert (drained_q && !queued_q);
  end
`endif

endmodule
