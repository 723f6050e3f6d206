/// The hash index: BionicDB's pipeline (section 4.4.1) with its stages HeadFetch, KeyComp, Traverse and Install as
/// events instead of places. Each instruction has a slot; an answer of memory moves its slot on by one stage, whatever
/// the others do, so a long chain is in nobody's way, and there are as many Traverse stages as there are slots.
///
/// Admission sees to it that whoever may change a chain is alone in it. What is left are instructions of one
/// transaction: those that admission marks `ordered` have their slot, but begin when no slot that has begun has their
/// decision word any more.
///
/// An answer of memory goes through four stages: E0 takes it, E1 compares it with the key, E2 counts, E3 decides. A
/// slot's counters are read and written in one cycle, so answers of one slot may follow each other at once. What E3
/// decides goes past its queue if that is empty.
module lw_hash #(
  /// Words of the widest key in normal form, 1 to 4.
  parameter int unsigned KeyWords = 4,
  /// Instructions under way, 2 to 64.
  parameter int unsigned Inflight = 48
) (
  /// Clock.
  input  logic              clk_i,
  /// Asynchronous reset: all instructions are lost; nothing is taken for some cycles.
  input  logic              rst_ni,
  /// This worker.
  input  lw_pkg::worker_t   worker_i,
  /// What the host writes.
  input  lw_pkg::config_t   config_i,
  /// An instruction that may go on; taken in a cycle with `grant_ready_o`.
  input  logic              grant_valid_i,
  /// Follows `grant_i` in the same cycle.
  output logic              grant_ready_o,
  /// The instruction: no scan.
  input  lw_pkg::grant_t    grant_i,
  /// A memory request; stays until taken; from registers, the address behind an adder.
  output logic              mem_valid_o,
  /// It is taken.
  input  logic              mem_ready_i,
  /// The request; tags are below 512.
  output lw_pkg::mem_req_t  mem_req_o,
  /// An answer to one of its requests.
  input  logic              mem_rsp_valid_i,
  /// The answer.
  input  lw_pkg::mem_rsp_t  mem_rsp_i,
  /// A grant of an instruction that failed is taken back, before the answer; stays until taken; from registers.
  output logic              takeback_valid_o,
  /// It is taken.
  input  logic              takeback_ready_i,
  /// The grant.
  output lw_pkg::release_t  takeback_o,
  /// An answer; stays until taken; from registers.
  output logic              answer_valid_o,
  /// It is taken.
  input  logic              answer_ready_i,
  /// The answer.
  output lw_pkg::response_t answer_o,
  /// Instructions are under way; from registers.
  output logic              busy_o
);

  import lw_pkg::*;
  import lw_point_pkg::*;

  localparam int unsigned WantedWidth = 13;
  localparam int unsigned SideDepth = 4;
  localparam logic [15:0] NotFound = 16'hFF01;
  localparam logic [15:0] Duplicate = 16'hFF02;
  localparam logic [15:0] NoRoom = 16'hFF11;
  localparam logic [15:0] Refused = 16'hFF13;

  localparam int unsigned SlotWidth = $clog2(Inflight);
  typedef logic [SlotWidth-1:0] slot_t;
  typedef logic [39:6] row_t;

  // What a slot needs from its instruction, by who reads it.
  typedef struct packed {
    op_e    op;
    table_t tab;
  } what_t;

  // What an instruction begins with.
  typedef struct packed {
    slot_t  slot;
    table_t tab;
    entry_t entry;
    hash_t  hash;
  } begin_t;

  typedef struct packed {
    op_e     op;
    stamp_t  stamp;
    return_t ret;
    logic    granted;
    entry_t  entry;
  } owner_t;

  typedef enum logic [2:0] {
    EndReady,
    EndNotFound,
    EndDuplicate,
    EndNoRoom,
    EndRefused
  } end_e;

  (* ram_style = "distributed" *) what_t what_q [Inflight];
  (* ram_style = "distributed" *) owner_t owner_q [Inflight];
  (* ram_style = "distributed" *) entry_t entry_q [Inflight];
  (* ram_style = "distributed" *) logic [KeyWords-1:0][63:0] key_q [Inflight];
  // A copy for who writes the rows. A slot's key is not read in the cycle in which it is written.
  (* ram_style = "block", no_rw_check *) logic [KeyWords-1:0][63:0] key_copy_q [Inflight];
  (* ram_style = "distributed" *) row_t row_q [Inflight];
  (* ram_style = "distributed" *) row_t head_q [Inflight];
  // An instruction is under way in a slot if these differ.
  (* ram_style = "distributed" *) logic begun_q [Inflight];
  (* ram_style = "distributed" *) logic ended_q [Inflight];
  logic [$clog2(Inflight+1)-1:0] slots_q;

  // ---------------------------------------------------------------------------------------------------------------
  // Beginning: a slot for each instruction; those that must wait for another one of their transaction stand aside
  // ---------------------------------------------------------------------------------------------------------------

  typedef struct packed {
    slot_t  slot;
    job_e   job;
    table_t tab;
  } work_t;

  begin_t main, side, chosen;
  logic side_push, side_room, side_valid, side_clear_q, side_take, main_take, take;
  logic slot_free, begin_go, begins, work_valid, work_pop, issue_ready;
  logic sweep_q;
  slot_t new_slot, look_q, sweep_at_q;
  work_t work, next_work;
  logic [2:0] unused_side_count;
  logic free_slot;
  slot_t freed_slot;
  slot_t row_slot, key_slot;
  logic key_next;
  logic [KeyWords-1:0][63:0] issue_key_q;
  // What E3 decides.
  logic e3_work, work_direct;
  work_t e3_what;

  assign main          = '{slot: new_slot, tab: grant_i.req.tab, entry: grant_i.entry, hash: grant_i.req.hash};
  assign side_take     = side_valid && side_clear_q && issue_ready;
  assign begin_go      = slot_free && !sweep_q && (grant_i.ordered ? side_room : issue_ready && !side_take);
  assign grant_ready_o = begin_go;
  assign take          = grant_valid_i && begin_go;
  assign side_push     = take && grant_i.ordered;
  assign main_take     = take && !grant_i.ordered;
  // New ones go first: theirs is the shortest job, and there are no more than slots.
  assign begins        = main_take || side_take;
  assign chosen        = side_take ? side : main;
  assign work_pop      = work_valid && issue_ready && !begins;
  assign work_direct   = e3_work && !work_valid && issue_ready && !begins;

  always_comb begin
    if (begins) begin
      next_work = '{slot: chosen.slot, job: JobHeadFetch, tab: chosen.tab};
    end else begin
      next_work = work_valid ? work : e3_what;
    end
  end

  lw_fifo #(
    .Width($bits(begin_t)),
    .Depth(SideDepth)
  ) u_side (
    .clk_i,
    .rst_ni,
    .valid_i(side_push),
    .ready_o(side_room),
    .data_i (main),
    .valid_o(side_valid),
    .ready_i(side_take),
    .data_o (side),
    .count_o(unused_side_count)
  );

  lw_slots #(
    .Slots(Inflight)
  ) u_slots (
    .clk_i,
    .rst_ni,
    .valid_o(slot_free),
    .take_i (take),
    .slot_o (new_slot),
    .free_i (free_slot),
    .slot_i (freed_slot)
  );

  // The oldest one aside looks at one slot a cycle, and waits at one that has its decision word.
  logic look_hit;
  assign look_hit = begun_q[look_q] != ended_q[look_q] && entry_q[look_q] == side.entry;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      look_q       <= '0;
      side_clear_q <= 1'b0;
      slots_q      <= '0;
      sweep_q      <= 1'b1;
      sweep_at_q   <= '0;
    end else begin
      if (!side_valid || side_take) begin
        look_q       <= '0;
        side_clear_q <= 1'b0;
      end else if (!look_hit && !side_clear_q) begin
        if (look_q == slot_t'(Inflight - 1)) begin
          side_clear_q <= 1'b1;
        end else begin
          look_q <= look_q + 1'b1;
        end
      end
      slots_q <= slots_q + ($clog2(Inflight+1))'(take) - ($clog2(Inflight+1))'(free_slot);
      if (sweep_q) begin
        sweep_at_q <= sweep_at_q + 1'b1;
        if (sweep_at_q == slot_t'(Inflight - 1)) sweep_q <= 1'b0;
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (begins || sweep_q) begin
      begun_q[sweep_q ? sweep_at_q : chosen.slot] <= !sweep_q && !ended_q[chosen.slot];
    end
    if (free_slot || sweep_q) begin
      ended_q[sweep_q ? sweep_at_q : freed_slot] <= !sweep_q && begun_q[freed_slot];
    end
    if (take) begin
      what_q[new_slot]  <= '{op: grant_i.req.op, tab: grant_i.req.tab};
      owner_q[new_slot] <= '{op: grant_i.req.op, stamp: grant_i.req.stamp, ret: grant_i.req.ret,
                             granted: grant_i.granted, entry: grant_i.entry};
      entry_q[new_slot] <= grant_i.entry;
      key_q[new_slot]   <= grant_i.req.key[KeyWords-1:0];
    end
    if (take) key_copy_q[new_slot] <= grant_i.req.key[KeyWords-1:0];
    if (key_next) issue_key_q <= key_copy_q[row_slot];
  end

  // ---------------------------------------------------------------------------------------------------------------
  // HeadFetch, Traverse, Install: what goes to memory
  // ---------------------------------------------------------------------------------------------------------------

  logic wanted_valid, new_row_valid, new_row_ready, no_room_valid, no_room_ready;
  logic [WantedWidth-1:0] wanted;
  row_t new_row;

  lw_hash_issue #(
    .KeyWords   (KeyWords),
    .Inflight   (Inflight),
    .WantedWidth(WantedWidth)
  ) u_issue (
    .clk_i,
    .rst_ni,
    .worker_i,
    .config_i,
    .job_valid_i    (begins || work_valid || e3_work),
    .job_ready_o    (issue_ready),
    .job_slot_i     (next_work.slot),
    .job_i          (next_work.job),
    .job_table_i    (next_work.tab),
    .job_hash_i     (chosen.hash),
    .row_slot_o     (row_slot),
    .row_i          (row_q[row_slot]),
    .key_next_o     (key_next),
    .key_slot_o     (key_slot),
    .key_i          (issue_key_q),
    .head_i         (head_q[key_slot]),
    .wanted_valid_o (wanted_valid),
    .wanted_o       (wanted),
    .new_row_valid_o(new_row_valid),
    .new_row_ready_i(new_row_ready),
    .new_row_o      (new_row),
    .no_room_valid_o(no_room_valid),
    .no_room_ready_i(no_room_ready),
    .mem_valid_o,
    .mem_ready_i,
    .mem_req_o
  );

  // ---------------------------------------------------------------------------------------------------------------
  // KeyComp: E0 takes an answer, E1 compares
  // ---------------------------------------------------------------------------------------------------------------

  logic e0_valid_q, e1_valid_q, e1_same_q, e0_error_q, e1_error_q, e1_live_q, e0_same;
  slot_t e0_slot_q, e1_slot_q;
  logic [2:0] e0_kind_q, e1_kind_q;
  logic [63:0] e0_data_q, e0_key;
  row_t e1_row_q;
  what_t e1_what_q;

  always_comb begin
    e0_key = '0;
    for (int unsigned w = 0; w < KeyWords; w++) begin
      if (e0_kind_q[1:0] == 2'(w)) e0_key = key_q[e0_slot_q][w];
    end
  end

  assign e0_same = e0_data_q == e0_key;

  always_ff @(posedge clk_i) begin
    e0_slot_q  <= mem_rsp_i.tag[3+:SlotWidth];
    e0_kind_q  <= mem_rsp_i.tag[2:0];
    e0_data_q  <= mem_rsp_i.data;
    e0_error_q <= mem_rsp_i.error;
    e1_slot_q  <= e0_slot_q;
    e1_kind_q  <= e0_kind_q;
    e1_row_q   <= e0_data_q[39:6];
    e1_live_q  <= e0_data_q[56];
    e1_same_q  <= !e0_kind_q[2] || e0_same;
    e1_error_q <= e0_error_q;
    e1_what_q  <= what_q[e0_slot_q];
  end

  // ---------------------------------------------------------------------------------------------------------------
  // E2: was it the last one this slot waits for?
  // ---------------------------------------------------------------------------------------------------------------

  typedef struct packed {
    logic [WantedWidth-1:0] arrived;
    logic                   same;   // all of the key that came
    logic                   error;
  } count_t;

  typedef struct packed {
    logic live;
    row_t row;
  } link_t;

  (* ram_style = "distributed" *) count_t count_q [Inflight];
  (* ram_style = "distributed" *) link_t link_q [Inflight];
  // Less one.
  (* ram_style = "distributed" *) logic [WantedWidth-1:0] wanted_q [Inflight];
  count_t count_now, count_next;
  link_t link_now;
  logic e2_single, e2_complete, e2_valid_q, e2_same_q, e2_error_q;
  slot_t e2_slot_q;
  logic [2:0] e2_kind_q;
  link_t e2_link_q;
  what_t e2_what_q;

  assign count_now   = count_q[e1_slot_q];
  assign e2_single   = e1_kind_q == KindHead || e1_kind_q == KindUndo;
  assign e2_complete = e2_single || count_now.arrived == wanted_q[e1_slot_q];
  assign link_now    = (e1_kind_q == KindRow || e1_kind_q == KindHead) ? '{live: e1_live_q, row: e1_row_q} :
                       link_q[e1_slot_q];

  always_comb begin
    count_next.arrived = count_now.arrived + 1'b1;
    count_next.same    = count_now.same && e1_same_q;
    count_next.error   = count_now.error || e1_error_q;
    if (e2_complete) count_next = '{arrived: '0, same: 1'b1, error: 1'b0};
  end

  always_ff @(posedge clk_i) begin
    if (e1_valid_q) begin
      count_q[e1_slot_q] <= count_next;
      if (e1_kind_q == KindRow) link_q[e1_slot_q] <= link_now;
    end
    if (wanted_valid) wanted_q[key_slot] <= wanted;
    e2_slot_q  <= e1_slot_q;
    e2_kind_q  <= e1_kind_q;
    e2_link_q  <= link_now;
    e2_what_q  <= e1_what_q;
    // The first answer of a slot finds nothing in its counters.
    e2_same_q  <= e1_same_q && count_now.same;
    e2_error_q <= e1_error_q || (!e2_single && count_now.error);
  end

  // ---------------------------------------------------------------------------------------------------------------
  // E3: what the slot does next
  // ---------------------------------------------------------------------------------------------------------------

  logic e3_row, e3_end, end_direct;
  job_e e3_job;
  end_e e3_how;
  logic end_push, last_go;
  slot_t end_slot;
  end_e end_how;

  always_comb begin
    e3_row  = 1'b0;
    e3_work = 1'b0;
    e3_end  = 1'b0;
    e3_job  = JobRow;
    e3_how  = EndReady;
    if (e2_valid_q) begin
      if (e2_kind_q == KindUndo || (e2_error_q && e2_kind_q != KindWrites)) begin
        e3_end = 1'b1;
        e3_how = EndRefused;
      end else if (e2_kind_q == KindWrites) begin
        e3_end  = !e2_error_q;
        e3_work = e2_error_q;
        e3_job  = JobUndo;
      end else if (e2_kind_q != KindHead && e2_same_q) begin
        // The row with this key.
        if (e2_link_q.live) begin
          e3_end = 1'b1;
          e3_how = (e2_what_q.op == OpInsert) ? EndDuplicate : EndReady;
        end else if (e2_what_q.op == OpInsert) begin
          e3_work = 1'b1;
          e3_job  = JobZero;
        end else begin
          e3_end = 1'b1;
          e3_how = EndNotFound;
        end
      end else if (e2_link_q.row != '0) begin
        e3_row  = 1'b1;
        e3_work = 1'b1;
        e3_job  = JobRow;
      end else if (e2_what_q.op == OpInsert) begin
        e3_work = 1'b1;
        e3_job  = JobInstall;
      end else begin
        e3_end = 1'b1;
        e3_how = EndNotFound;
      end
    end
  end

  assign new_row_ready = !e3_row;
  assign no_room_ready = !e3_end;
  assign e3_what       = '{slot: e2_slot_q, job: e3_job, tab: e2_what_q.tab};
  assign end_push      = (e3_end && !end_direct) || (no_room_valid && !e3_end);
  assign end_slot      = e3_end ? e2_slot_q : key_slot;
  assign end_how       = e3_end ? e3_how : EndNoRoom;

  always_ff @(posedge clk_i) begin
    if (e3_row) begin
      row_q[e2_slot_q] <= e2_link_q.row;
    end else if (new_row_valid) begin
      row_q[key_slot] <= new_row;
    end
    if (e2_valid_q && e2_kind_q == KindHead) head_q[e2_slot_q] <= e2_link_q.row;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      e0_valid_q <= 1'b0;
      e1_valid_q <= 1'b0;
      e2_valid_q <= 1'b0;
    end else begin
      e0_valid_q <= mem_rsp_valid_i;
      e1_valid_q <= e0_valid_q;
      e2_valid_q <= e1_valid_q && e2_complete;
    end
  end

  logic unused_work_ready, unused_end_ready, end_valid, end_pop;
  logic [$clog2(Inflight+1)-1:0] unused_work_count, unused_end_count;
  slot_t ended_slot, old_slot;
  end_e ended_how, old_how;

  lw_fifo #(
    .Width($bits(work_t)),
    .Depth(Inflight)
  ) u_work (
    .clk_i,
    .rst_ni,
    .valid_i(e3_work && !work_direct),
    .ready_o(unused_work_ready),
    .data_i (e3_what),
    .valid_o(work_valid),
    .ready_i(work_pop),
    .data_o (work),
    .count_o(unused_work_count)
  );

  lw_fifo #(
    .Width(SlotWidth + 3),
    .Depth(Inflight)
  ) u_end (
    .clk_i,
    .rst_ni,
    .valid_i(end_push),
    .ready_o(unused_end_ready),
    .data_i ({end_slot, end_how}),
    .valid_o(end_valid),
    .ready_i(last_go),
    .data_o ({old_slot, old_how}),
    .count_o(unused_end_count)
  );

  // ---------------------------------------------------------------------------------------------------------------
  // Answers
  // ---------------------------------------------------------------------------------------------------------------

  owner_t last_q;
  row_t last_row_q;
  end_e last_how_q;
  logic last_valid_q, last_taken_back_q, failed;
  logic [15:0] code;

  assign last_go          = !last_valid_q || (answer_valid_o && answer_ready_i);
  assign end_direct       = e3_end && !end_valid && last_go;
  assign end_pop          = (end_valid && last_go) || end_direct;
  assign ended_slot       = end_valid ? old_slot : e2_slot_q;
  assign ended_how        = end_valid ? old_how : e3_how;
  assign free_slot        = end_pop;
  assign freed_slot       = ended_slot;
  assign failed           = last_how_q == EndNoRoom || last_how_q == EndRefused;
  assign takeback_valid_o = last_valid_q && failed && last_q.granted && !last_taken_back_q;
  assign takeback_o       = '{stamp: last_q.stamp, entry: last_q.entry};
  assign answer_valid_o   = last_valid_q && !takeback_valid_o;

  always_comb begin
    unique case (last_how_q)
      EndDuplicate: code = Duplicate;
      EndNoRoom:    code = NoRoom;
      EndRefused:   code = Refused;
      default:      code = NotFound;
    endcase
    answer_o         = '0;
    answer_o.ret     = last_q.ret;
    answer_o.op      = last_q.op;
    answer_o.answer  = failed ? AnswerFailed : ((last_how_q == EndReady) ? AnswerReady : AnswerMissing);
    answer_o.granted = last_q.granted && !failed;
    answer_o.owner   = worker_i;
    answer_o.entry   = last_q.entry;
    answer_o.value   = (last_how_q == EndReady) ? {last_row_q, 6'b0} : AddrWidth'(code);
  end

  always_ff @(posedge clk_i) begin
    if (end_pop) begin
      last_q     <= owner_q[ended_slot];
      last_row_q <= row_q[ended_slot];
      last_how_q <= ended_how;
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      last_valid_q      <= 1'b0;
      last_taken_back_q <= 1'b0;
    end else begin
      if (takeback_valid_o && takeback_ready_i) last_taken_back_q <= 1'b1;
      if (end_pop) begin
        last_valid_q      <= 1'b1;
        last_taken_back_q <= 1'b0;
      end else if (answer_valid_o && answer_ready_i) begin
        last_valid_q <= 1'b0;
      end
    end
  end

  assign busy_o = slots_q != '0 || last_valid_q;

  logic unused_bits;
  assign unused_bits = ^{grant_i, mem_rsp_i.tag[9], chosen.entry, e0_data_q[55:40]};

`ifdef LW_ASSERT
  always_ff @(posedge clk_i) begin
    if (rst_ni) begin
      assert (!e3_work || work_direct || unused_work_ready) else $error("lw_hash: a slot's job is lost");
      assert (!end_push || unused_end_ready) else $error("lw_hash: a slot's answer is lost");
      assert (!mem_rsp_valid_i || begun_q[mem_rsp_i.tag[3+:SlotWidth]] != ended_q[mem_rsp_i.tag[3+:SlotWidth]])
      else $error("lw_hash: an answer for a slot that is free");
    end
  end
`endif

endmodule
