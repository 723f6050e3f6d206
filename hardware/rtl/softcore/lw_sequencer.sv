// Begins and ends transactions beside the barrel: each context that it owns takes one step at a time, several contexts
// in turn. A step takes four cycles: choice, descriptors, catalogue and grant log, and the act, which happens in the
// cycles in which the barrel resolves nothing, so that both write the same memories.

module lw_sequencer
  import lw_pkg::*;
  import lw_softcore_pkg::*;
  import lw_isa_pkg::*;
#(
  /// Contexts; a power of two, 2 to 64.
  parameter int unsigned Contexts = 16,
  /// Places of a context's grant log; a power of two.
  parameter int unsigned Grants = 64
) (
  /// Everything happens on its rising edge.
  input  logic        clk_i,
  /// Forgets all steps.
  input  logic        rst_ni,
  /// High in cycles in which a choice may be made; low in those of acts.
  input  logic        choose_i,
  /// The memories are being cleared.
  input  logic        init_i,
  /// See `init_i`.
  input  context_t    init_ctx_i,
  /// How often a transaction may begin again.
  input  logic [15:0] max_retries_i,
  /// This worker.
  input  worker_t     worker_i,

  /// Contexts that have a step to take.
  input  logic [Contexts-1:0] ready_i,
  /// A block is there, and a context, and it may begin.
  input  logic        begin_i,
  /// The context it would get.
  input  context_t    begin_ctx_i,
  /// Its block.
  input  addr_t       begin_block_i,
  /// Its procedure.
  input  logic [9:0]  begin_procedure_i,
  /// There is no such procedure.
  input  logic        begin_unknown_i,
  /// Memory refused the block.
  input  logic        begin_error_i,
  /// Granules of GP registers in use.
  input  granules_t   gp_used_i,
  /// The next window of GP registers begins here.
  input  granule_t    gp_base_i,
  /// It may have so many granules.
  input  granules_t   gp_free_i,
  /// Granules of CP registers in use.
  input  granules_t   cp_used_i,
  /// See `gp_base_i`.
  input  granule_t    cp_base_i,
  /// See `gp_free_i`.
  input  granules_t   cp_free_i,

  /// A block is chosen, and its act is to come, or comes.
  output logic        beginning_o,
  /// A context is chosen: it is busy until the act.
  output logic        choose_valid_o,
  /// Which.
  output context_t    choose_ctx_o,
  /// Descriptors of this context are wanted.
  output context_t    read_ctx_o,
  /// Where its end stands, same cycle.
  input  ending_t     ending_i,
  /// Where it lives, same cycle.
  input  place_t      place_i,
  /// Its time, same cycle.
  input  stamp_t      time_i,
  /// Which procedure is wanted.
  output logic [9:0]  procedure_o,
  /// It, one cycle later.
  input  procedure_t  procedure_i,

  /// Context of the act.
  output context_t    ctx_o,
  /// Nothing of it is outstanding at an index; same cycle.
  input  logic        all_ready_i,
  /// It has its time; same cycle.
  input  logic        timed_i,
  /// It has no job, and memory has answered all it asked; same cycle.
  input  logic        drained_i,
  /// Loads of it have been answered and are not in their registers; same cycle.
  input  logic        queued_i,
  /// It has a job; same cycle.
  input  logic        busy_i,
  /// One of its answers is a conflict; same cycle.
  input  logic        conflict_i,
  /// One of its answers has failed; same cycle.
  input  logic        failed_i,
  /// Code of that answer; same cycle.
  input  logic [15:0] failed_code_i,
  /// Memory refused something; same cycle.
  input  logic        error_i,
  /// Its undo log is full; same cycle.
  input  logic        full_i,
  /// It inserted rows; same cycle.
  input  logic        inserted_i,
  /// It is going to remove rows; same cycle.
  input  logic        removed_i,
  /// Ends of its grant log; one cycle before the act.
  input  logic [$clog2(Grants):0] granted_i,
  /// See `granted_i`.
  input  logic [$clog2(Grants):0] released_i,
  /// Context whose ends are wanted, one cycle before the act.
  output context_t    log_ctx_o,
  /// Place of the grant log wanted, one cycle before the act.
  output logic [$clog2(Grants)-1:0] log_place_o,
  /// That place.
  input  held_t       log_i,

  /// An act.
  output logic        act_o,
  /// What its context does now.
  output state_e      act_state_o,
  /// The barrel has it from now on.
  output logic        act_barrel_o,
  /// It is in a handler from now on.
  output logic        act_handler_o,
  /// The marks of its answers are cleared.
  output logic        act_clear_o,
  /// A transaction begins.
  output logic        act_begin_o,
  /// The block has to wait until registers are given back.
  output logic        act_blocked_o,
  /// It has to wait until its windows are found.
  output logic        act_seek_o,
  /// A time was taken.
  output logic        act_stamp_o,
  /// The transaction begins again.
  output logic        act_restart_o,
  /// It does so later, and waits.
  output logic        act_hold_o,
  /// A grant was released.
  output logic        act_release_o,
  /// New value of where it stands.
  output ending_t     act_ending_o,
  /// Its program counter changes.
  output logic        act_pc_o,
  /// To this.
  output logic [15:0] act_pc_value_o,
  /// Where it lives, when it begins; its granules also when it has to wait.
  output place_t      act_place_o,
  /// A job begins.
  output logic        job_valid_o,
  /// Which.
  output job_t        job_o,

  /// A grant is to be released.
  output logic        release_valid_o,
  /// It is taken.
  input  logic        release_ready_i,
  /// The worker that gave it.
  output worker_t     release_owner_o,
  /// The release.
  output request_t    release_o,

  /// A transaction has ended.
  output logic        done_valid_o,
  /// It is heard of.
  input  logic        done_ready_i,
  /// Its block.
  output addr_t       done_block_o,
  /// Its status.
  output logic [1:0]  done_status_o,
  /// Its code.
  output logic [15:0] done_code_o,
  /// Its time.
  output stamp_t      done_stamp_o
);

  localparam int unsigned CtxBits = $clog2(Contexts);
  typedef logic [CtxBits-1:0] ctx_t;
  typedef logic [$clog2(Grants):0] count_t;

  logic   pick_valid;
  ctx_t   pick_ctx;
  logic   begin_busy;
  logic   choose_begin;
  assign choose_begin = choose_i && begin_i && !begin_busy;
  lw_pick #(
    .Width(Contexts)
  ) u_pick (
    .clk_i,
    .rst_ni,
    .ask_i  (ready_i),
    .take_i (choose_i && !choose_begin),
    .valid_o(pick_valid),
    .index_o(pick_ctx)
  );
  assign choose_valid_o = choose_i && !choose_begin && pick_valid;
  assign choose_ctx_o = context_t'(pick_ctx);

  logic    s1_valid_q, s2_valid_q, s3_valid_q;
  logic    s1_begin_q, s2_begin_q, s3_begin_q;
  ctx_t    s1_ctx_q, s2_ctx_q, s3_ctx_q;
  ending_t s2_ending_q, s3_ending_q;
  place_t  s2_place_q, s3_place_q;
  stamp_t  s2_time_q, s3_time_q;
  count_t  s2_walk_q, s3_walk_q, s3_granted_q, s3_released_q;
  logic [15:0] s2_retries_q, s3_retries_q;
  logic        s3_hold_q;
  assign begin_busy = s1_begin_q || s2_begin_q;
  assign beginning_o = begin_busy || s3_begin_q;

  count_t walk_mem[Contexts];
  logic [15:0] retries_mem[Contexts];

  assign read_ctx_o = context_t'(s1_ctx_q);
  assign procedure_o = s2_begin_q ? begin_procedure_i : s2_place_q.procedure;
  assign log_ctx_o = context_t'(s2_ctx_q);
  count_t log_at;
  assign log_at = s2_ending_q.step == StepRows ? s2_walk_q : released_i;
  assign log_place_o = log_at[$clog2(Grants)-1:0];
  assign ctx_o = context_t'(s3_ctx_q);

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      s1_valid_q <= 1'b0;
      s2_valid_q <= 1'b0;
      s3_valid_q <= 1'b0;
      s1_begin_q <= 1'b0;
      s2_begin_q <= 1'b0;
      s3_begin_q <= 1'b0;
      s1_ctx_q <= '0;
      s2_ctx_q <= '0;
      s3_ctx_q <= '0;
    end else begin
      s1_valid_q <= choose_valid_o;
      s1_begin_q <= choose_begin;
      s1_ctx_q <= choose_begin ? ctx_t'(begin_ctx_i) : pick_ctx;
      s2_valid_q <= s1_valid_q;
      s2_begin_q <= s1_begin_q;
      s2_ctx_q <= s1_ctx_q;
      s3_valid_q <= s2_valid_q;
      s3_begin_q <= s2_begin_q;
      s3_ctx_q <= s2_ctx_q;
    end
  end

  // Transactions that hinder each other begin again apart, or they might do so for ever: each time that one is to begin
  // again it does so with half the probability of the time before, down to one in 2^HoldBits. Workers differ.
  localparam int unsigned HoldBits = 6;
  logic [15:0]         random_q;
  logic [HoldBits-1:0] hold_mask;
  for (genvar i = 0; i < int'(HoldBits); i++) begin : gen_hold
    assign hold_mask[i] = s2_retries_q > 16'(i);
  end
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) random_q <= 16'hACE1;
    else random_q <= {random_q[14:0], random_q[15] ^ random_q[13] ^ random_q[12] ^ random_q[10]};
  end

  always_ff @(posedge clk_i) begin
    s3_hold_q <= ((random_q[HoldBits-1:0] ^ HoldBits'(worker_i)) & hold_mask) != '0;
    s2_ending_q <= ending_i;
    s2_place_q <= place_i;
    s2_time_q <= time_i;
    s2_walk_q <= walk_mem[s1_ctx_q];
    s2_retries_q <= retries_mem[s1_ctx_q];
    s3_ending_q <= s2_ending_q;
    s3_place_q <= s2_place_q;
    s3_time_q <= s2_time_q;
    s3_walk_q <= s2_walk_q;
    s3_retries_q <= s2_retries_q;
    s3_granted_q <= granted_i;
    s3_released_q <= released_i;
  end

  // ---- The act.
  logic   walk_write, retries_write;
  count_t walk_next;
  logic [15:0] retries_next;
  logic   release_push, release_free, done_push, done_free;
  assign release_free = !release_valid_o || release_ready_i;
  assign done_free = !done_valid_o || done_ready_i;

  logic fits, found, known;
  granules_t gps, cps;
  assign known = procedure_i.valid && !begin_unknown_i && !begin_error_i && procedure_i.gps <= 9'd256
      && procedure_i.cps <= 9'd256;
  assign gps = known ? granules(procedure_i.gps) : '0;
  assign cps = known ? granules(procedure_i.cps) : '0;
  assign fits = 7'(gps) + 7'(gp_used_i) <= 7'(Granules) && 7'(cps) + 7'(cp_used_i) <= 7'(Granules);
  assign found = gps <= gp_free_i && cps <= cp_free_i;

  logic    too_often;
  ending_t judged;  // what becomes of the transaction now that all answers are in
  assign too_often = s3_retries_q >= max_retries_i;
  always_comb begin
    judged = s3_ending_q;
    if (conflict_i) begin
      judged.how = too_often ? EndFailed : EndRestart;
      judged.code = AbortTooManyRetries;
    end else if (error_i) begin
      judged.how = EndFailed;
      judged.code = AbortMemoryError;
    end else if (failed_i) begin
      judged.how = EndFailed;
      judged.code = failed_code_i;
    end else if (full_i) begin
      judged.how = EndFailed;
      judged.code = AbortOutOfMemory;
    end
    judged.step = judged.how == EndCommit ? (removed_i ? StepRows : StepHandler) : StepUndo;
  end

  logic commits, job_wanted, row_absent;
  logic [19:0] into_block;  // where the job writes
  assign commits = s3_ending_q.how == EndCommit;

  always_comb begin
    act_o = s3_valid_q;
    act_state_o = StateReady;
    act_barrel_o = 1'b0;
    act_handler_o = 1'b0;
    act_clear_o = 1'b0;
    act_begin_o = 1'b0;
    act_blocked_o = 1'b0;
    act_seek_o = 1'b0;
    act_stamp_o = 1'b0;
    act_restart_o = 1'b0;
    act_hold_o = 1'b0;
    act_release_o = 1'b0;
    act_ending_o = s3_ending_q;
    act_pc_o = 1'b0;
    act_pc_value_o = procedure_i.logic_at;
    act_place_o = '{
        procedure: begin_procedure_i,
        block: begin_block_i,
        gp_base: gp_base_i,
        cp_base: cp_base_i,
        gps: gps,
        cps: cps
    };
    job_wanted = 1'b0;
    row_absent = 1'b0;
    into_block = procedure_i.results_start;
    job_o = '{
        kind: JobStore,
        undo: 1'b0,
        clear: 1'b0,
        extend: 1'b0,
        gp: '0,
        toggle: 1'b0,
        dst_row: 1'b0,
        src_row: 1'b0,
        len: 20'd8,
        dst: '0,
        data: '0
    };
    walk_write = 1'b0;
    walk_next = s3_walk_q + count_t'(1);
    retries_write = 1'b0;
    retries_next = '0;
    release_push = 1'b0;
    done_push = 1'b0;

    if (s3_begin_q) begin
      act_blocked_o = !fits;
      act_seek_o = fits && !found;
      act_o = fits && found;
      act_begin_o = act_o;
      act_stamp_o = act_o && !known;
      act_clear_o = act_o;
      act_barrel_o = known;
      act_pc_o = 1'b1;
      retries_write = act_o;
      act_ending_o.step = StepOutcome;
      act_ending_o.how = EndFailed;
      act_ending_o.code = begin_error_i ? AbortMemoryError : AbortUnknownProcedure;
    end else if (s3_valid_q) begin
      unique case (s3_ending_q.step)
        StepWait: begin
          if (!all_ready_i) act_state_o = StateAll;
          else if (!drained_i) act_state_o = StateDrain;
          else begin
            act_ending_o = judged;
            // It asked for no row.
            act_stamp_o = !timed_i;
          end
          walk_write = 1'b1;
          walk_next = s3_released_q;
        end
        StepUndo: begin
          job_wanted = 1'b1;
          job_o.kind = JobUndo;
          job_o.dst_row = 1'b1;
          act_ending_o.step = inserted_i ? StepRows : StepFill;
        end
        StepRows: begin
          // Removed rows when it commits, inserted ones when it does not, are absent from now on.
          if (s3_walk_q == s3_granted_q) begin
            act_ending_o.step = commits ? StepHandler : StepFill;
          end else begin
            job_wanted = log_i.kind == (commits ? KindRemoved : KindInserted);
            walk_write = !(job_wanted && busy_i);
            job_o.len = 20'd1;
            job_o.dst_row = 1'b1;
            row_absent = 1'b1;
          end
        end
        StepFill: begin
          job_wanted = 1'b1;
          job_o.kind = JobFill;
          job_o.len = procedure_i.block_bytes - procedure_i.results_start;
          act_ending_o.step = StepHandler;
        end
        StepHandler: begin
          if (!drained_i) begin
            act_state_o = StateDrain;
          end else if (error_i && s3_ending_q.how != EndFailed) begin
            act_ending_o.how = EndFailed;
            act_ending_o.code = AbortMemoryError;
          end else if (s3_ending_q.how == EndRestart) begin
            act_ending_o.step = StepRelease;
          end else begin
            act_ending_o.step = StepOutcome;
            if ((commits && procedure_i.has_commit)
                || (s3_ending_q.how == EndAbort && procedure_i.has_abort)) begin
              act_barrel_o = 1'b1;
              act_handler_o = 1'b1;
              act_pc_o = 1'b1;
              act_pc_value_o = commits ? procedure_i.commit_at : procedure_i.abort_at;
            end
          end
        end
        StepOutcome: begin
          job_wanted = 1'b1;
          job_o.len = 20'd4;
          into_block = 20'(HeaderStatus);
          job_o.data = 64'({commits ? 16'd0 : s3_ending_q.code, 8'd0, 6'd0, s3_ending_q.how});
          act_ending_o.step = StepStamp;
        end
        StepStamp: begin
          job_wanted = 1'b1;
          job_o.clear = 1'b1;
          into_block = 20'(HeaderSerial);
          job_o.data = 64'(s3_time_q);
          act_ending_o.step = StepDrain;
        end
        StepDrain: begin
          if (!drained_i) begin
            act_state_o = StateDrain;
          end else if (error_i && s3_ending_q.how != EndFailed) begin
            // Memory refused the outcome or the stamp: the block says so.
            act_ending_o.how = EndFailed;
            act_ending_o.code = AbortMemoryError;
            act_ending_o.step = StepOutcome;
          end else begin
            act_ending_o.step = StepRelease;
          end
        end
        StepRelease: begin
          if (s3_released_q == s3_granted_q) begin
            act_ending_o.step = s3_ending_q.how == EndRestart ? StepRestart : StepComplete;
          end else if (release_free) begin
            release_push = 1'b1;
            act_release_o = 1'b1;
          end
        end
        // Nothing may come to a window when it begins again, or is another's.
        StepRestart: begin
          act_hold_o = !queued_i && s3_hold_q;
          act_restart_o = !queued_i && !s3_hold_q;
          act_clear_o = act_restart_o;
          act_barrel_o = act_restart_o;
          act_pc_o = act_restart_o;
          retries_write = act_restart_o;
          retries_next = s3_retries_q + 16'd1;
        end
        default: begin
          if (done_free && !queued_i) begin
            done_push = 1'b1;
            act_state_o = StateFree;
          end
        end
      endcase
    end
    job_o.dst = row_absent ? {log_i.row[AddrWidth-1:3], 3'd7} : s3_place_q.block + addr_t'(into_block);
    // A step whose job has to wait is taken again.
    job_valid_o = job_wanted && !busy_i;
    if (job_wanted && busy_i) begin
      act_state_o = StateLsu;
      act_ending_o = s3_ending_q;
    end
  end

  always_ff @(posedge clk_i) begin
    if (init_i || walk_write) walk_mem[init_i ? ctx_t'(init_ctx_i) : s3_ctx_q] <= init_i ? '0 : walk_next;
    if (retries_write) retries_mem[s3_ctx_q] <= retries_next;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      release_valid_o <= 1'b0;
      release_owner_o <= '0;
      release_o <= '0;
      done_valid_o <= 1'b0;
      done_block_o <= '0;
      done_status_o <= '0;
      done_code_o <= '0;
      done_stamp_o <= '0;
    end else begin
      if (release_free) release_valid_o <= release_push;
      if (release_push) begin
        release_owner_o <= log_i.owner;
        release_o <= '{
            op: OpRelease,
            tab: '0,
            stamp: s3_time_q,
            ret: '{worker: worker_i, ctx: context_t'(s3_ctx_q), cp: '0},
            keyed: 1'b0,
            key: '0,
            hash: hash_t'(log_i.entry)
        };
      end
      if (done_free) done_valid_o <= done_push;
      if (done_push) begin
        done_block_o <= s3_place_q.block;
        done_status_o <= s3_ending_q.how;
        done_code_o <= commits ? 16'd0 : s3_ending_q.code;
        done_stamp_o <= s3_time_q;
      end
    end
  end

  logic unused;
  assign unused = ^{s2_place_q, s3_place_q, log_i.row, log_at, init_ctx_i, begin_ctx_i};

endmodule
