// Loads, stores, copies, fills, and the undo log, of all contexts over one memory port.
//
// A context hands over one job at a time and goes on; an engine takes one job after the other and sends its requests,
// one a cycle, each within one word of its source and one of its destination. It sees to the order of memory within a
// transaction: a request that may touch what an earlier one is still at parks its job until memory has answered.
//
// A copy, a store that keeps old bytes, and the undo log read before they write. Each such read has a place in a ring;
// the writes that follow from it leave the ring in the order in which the reads were sent. So an old word is kept
// before anything is written over it, and a copy that overlaps itself streams, from its safe end. A load's answer is
// one or two pieces of a register.

module lw_lsu
  import lw_pkg::*;
  import lw_softcore_pkg::*;
#(
  /// Contexts; a power of two, 2 to 64.
  parameter int unsigned Contexts = 16,
  /// Reads of copies and undo that may be outstanding at a time; a power of two, 2 to 64.
  parameter int unsigned Slots = 32,
  /// Words of loads that may be outstanding at a time; a power of two, at least 2.
  parameter int unsigned Loads = 32
) (
  /// Everything happens on its rising edge.
  input  logic        clk_i,
  /// Forgets all jobs; answers of memory that come later are misunderstood.
  input  logic        rst_ni,
  /// Small memories are being cleared: this place of each now; nothing else may happen meanwhile.
  input  logic        init_i,
  /// See `init_i`.
  input  logic [7:0]  init_at_i,

  /// Undo log of context 0, a multiple of 16; the others follow.
  input  addr_t       undo_base_i,
  /// Bytes of one context's undo log, a multiple of 16.
  input  logic [19:0] undo_bytes_i,

  /// A job begins; always taken, the context has none.
  input  logic        start_valid_i,
  /// Whose.
  input  context_t    start_ctx_i,
  /// What.
  input  job_t        start_i,
  /// Contexts that have a job. It ends with its last request (`JobUndo`: when everything was answered).
  output logic [Contexts-1:0] busy_o,
  /// A job has ended; two cycles after `busy_o` and `drained_o` told so first.
  output logic        done_valid_o,
  /// Whose.
  output context_t    done_ctx_o,
  /// A job ends now, because the undo log is full; nothing was written whose old bytes were not kept.
  output logic        full_valid_o,
  /// Whose.
  output context_t    full_ctx_o,

  /// A loaded value, or a part of it; held until taken.
  output logic        result_valid_o,
  /// Taken.
  input  logic        result_ready_i,
  /// It.
  output loaded_t     result_o,

  /// Has this context no job, and has memory answered all it asked?
  input  context_t    ask_i,
  /// The answer, same cycle.
  output logic        drained_o,
  /// Has it no job, and has memory answered all writes of its block? Same cycle.
  output logic        settled_o,
  /// Have loads of it been answered that were not taken yet? Same cycle.
  output logic        queued_o,
  /// A context may be drained or settled; at least one cycle after `drained_o` and `settled_o` told so first.
  output logic        drain_valid_o,
  /// Which.
  output context_t    drain_ctx_o,
  /// Memory refused something; before `drained_o` and a load's value tell of it.
  output logic        error_valid_o,
  /// Whose.
  output context_t    error_ctx_o,

  /// A word is wanted by the front end.
  input  logic        fetch_valid_i,
  /// It is sent.
  output logic        fetch_ready_o,
  /// Where it lies.
  input  word_addr_t  fetch_addr_i,
  /// Number of the fetch.
  input  logic [1:0]  fetch_slot_i,
  /// A word for the front end.
  output logic        fetched_valid_o,
  /// Number of the fetch.
  output logic [1:0]  fetched_slot_o,
  /// The word.
  output logic [63:0] fetched_data_o,
  /// Memory refused.
  output logic        fetched_error_o,

  /// A request; held until taken.
  output logic        mem_valid_o,
  /// Taken.
  input  logic        mem_ready_i,
  /// The request.
  output mem_req_t    mem_o,
  /// An answer; always taken.
  input  logic        mem_rsp_valid_i,
  /// The answer.
  input  mem_rsp_t    mem_rsp_i
);

  localparam int unsigned CtxBits = $clog2(Contexts);
  localparam int unsigned SlotBits = $clog2(Slots);
  localparam int unsigned LoadBits = $clog2(Loads);
  // Words of the block, and of rows, that the order of memory tells apart, by their low address bits.
  localparam int unsigned WordBits = CtxBits > 4 ? 8 - CtxBits : 4;
  localparam int unsigned TouchedBits = CtxBits + 1 + WordBits;
  localparam logic [19:0] LongBytes = 20'(8 * 2**WordBits - 8);
  localparam int unsigned EpochBits = 3;

  typedef logic [CtxBits-1:0] ctx_t;
  typedef logic [SlotBits-1:0] slot_t;
  typedef logic [EpochBits-1:0] epoch_t;
  typedef logic [5:0] count_t;

  // Tags: 1, second word, register; 01, row, context; 001, number of the fetch; 000, turn around the ring, slot.
  function automatic tag_t tag_write(logic of_row, ctx_t ctx);
    return {2'b01, of_row, 7'(ctx)};
  endfunction

  typedef enum logic [1:0] {
    UseCopy,    // write it
    UseKeep,    // two words into the undo log
    UseReplay,  // address and strobe of an entry of the log
    UseUndo     // write it there
  } use_e;

  typedef struct packed {
    use_e        what;
    logic        store;  // a store follows: this word of it
    logic        kept;   // not if old bytes of the same job could not be kept
    logic        row;    // it writes a row or the undo log, else the block
    ctx_t        ctx;
    word_addr_t  dst;
    logic [7:0]  strobe;
    logic [AddrWidth-1:4] entry;  // place in the undo log
  } slot_info_t;

  // What a context's order rests on: the epochs of its marks of touched words, and whether it has read since all its
  // reads were answered; of the block (0), and of rows (1).
  typedef struct packed {
    epoch_t [1:0] epoch;
    logic [1:0]   reads;
  } order_t;

  // What a parked job waits for.
  typedef enum logic [1:0] {
    ParkBlock,  // writes of the block
    ParkRows,   // writes of rows and of the undo log
    ParkReads
  } park_e;

  typedef struct packed {
    epoch_t     epoch;
    logic [7:0] strobe;
  } touched_t;

  // How far a job is that has been in the engine; zeros else.
  typedef struct packed {
    logic        again;  // it is not new
    logic        pass;
    logic        begun;  // `left` is valid
    logic [19:0] left;   // bytes
  } progress_t;

  typedef struct packed {
    ctx_t       ctx;
    logic       toggle;
    logic       extend;
    logic [3:0] len;
    logic [2:0] at;
  } load_t;

  typedef enum logic [2:0] {
    EngineIdle,
    EngineMeet,   // do source and destination overlap; where was it left
    EnginePlace,
    EngineRun
  } engine_e;

  // ---- Job descriptors, and how far parked ones are.
  job_t job_mem[Contexts];
  progress_t progress_mem[Contexts];
  logic [15:0] log_mem[Contexts];       // entries in the undo log
  logic [Contexts-1:0] busy_q, busy_d, runnable_q, runnable_d, parked_q, parked_d;
  park_e parked_mem[Contexts];
  logic [Contexts-1:0] lost_q;  // old bytes that were to be kept could not be read

  // ---- Counters: a pair of writers each.
  count_t block_sent_mem[Contexts];
  count_t block_seen_mem[Contexts];
  count_t row_sent_mem[Contexts];  // the undo log's too
  count_t row_seen_mem[Contexts];
  count_t read_sent_mem[Contexts];
  count_t read_seen_mem[Contexts];
  count_t result_in_mem[Contexts];   // results of loads that have come
  count_t result_out_mem[Contexts];  // and have left

  // ---- Engine.
  engine_e engine_q, engine_d;
  ctx_t    ctx_q;
  job_t    job_q;
  logic    pass_q;
  logic [19:0] left_q;
  addr_t   src_q, dst_q;
  logic    back_q, first_q;
  logic [15:0] log_q;
  addr_t   log_at_q;
  logic    log_empty_q;

  // The next job waits in a register between the arbiter and the descriptors.
  logic    choice_valid, choice_take;
  ctx_t    choice_ctx;
  logic    pick_valid_q, pick_take;
  ctx_t    pick_ctx_q;
  lw_pick #(
    .Width(Contexts)
  ) u_pick (
    .clk_i,
    .rst_ni,
    .ask_i  (runnable_q),
    .take_i (choice_take),
    .valid_o(choice_valid),
    .index_o(choice_ctx)
  );
  assign choice_take = !pick_valid_q || pick_take;

  job_t picked;
  assign picked = job_mem[pick_ctx_q];
  progress_t picked_progress;
  assign picked_progress = progress_mem[pick_ctx_q];

  // A copy whose destination lies a little above its source goes backwards.
  logic [16:0] distance_q;
  logic  is_copy;
  assign is_copy = job_q.kind == JobCopy;
  logic near_up;
  assign near_up = is_copy && distance_q < job_q.len[16:0];

  logic keeping;  // the pass that fills the undo log
  assign keeping = is_copy && job_q.undo && !pass_q;

  // Where a chunk lies: `src_q` and `dst_q` are its first bytes, or, backwards, its last.
  logic [3:0] src_room, dst_room, room, bytes;
  always_comb begin
    src_room = back_q ? {1'b0, src_q[2:0]} + 4'd1 : 4'd8 - {1'b0, src_q[2:0]};
    dst_room = back_q ? {1'b0, dst_q[2:0]} + 4'd1 : 4'd8 - {1'b0, dst_q[2:0]};
    if (!is_copy || keeping) src_room = 4'd8;
    room = src_room < dst_room ? src_room : dst_room;
    bytes = left_q < 20'(room) ? left_q[3:0] : room;
  end

  logic last;
  assign last = left_q == 20'(bytes);

  logic [2:0] src_at, dst_at;
  assign src_at = back_q ? 3'(src_room - bytes) : src_q[2:0];
  assign dst_at = back_q ? 3'(dst_room - bytes) : dst_q[2:0];
  word_addr_t src_word, dst_word;
  assign src_word = src_q[AddrWidth-1:3];
  assign dst_word = dst_q[AddrWidth-1:3];
  logic [7:0] strobe;
  assign strobe = low_bytes(bytes) << dst_at;

  logic log_full;
  assign log_full = log_q >= undo_bytes_i[19:4];
  logic [AddrWidth-1:4] log_entry;
  assign log_entry = log_at_q[AddrWidth-1:4] + (AddrWidth - 4)'(log_q);

  // ---- The ring of reads: what is to become of each, the word when it has come, and for a store what to write.
  slot_info_t slot_mem[Slots];
  logic [63:0] store_mem[Slots];
  logic [CtxBits+2:0] route_mem[Slots];  // context, rotation
  logic [64:0] data_mem[Slots];  // error, word
  logic came_mem[Slots];  // the turn in which its word has come
  logic [SlotBits:0] ring_head_q, ring_tail_q;  // begin in turn 1
  slot_t head_at, tail_at;
  assign head_at = ring_head_q[SlotBits-1:0];
  assign tail_at = ring_tail_q[SlotBits-1:0];
  logic slot_ok;
  assign slot_ok = head_at != tail_at || ring_head_q[SlotBits] == ring_tail_q[SlotBits];

  slot_info_t head;
  logic [64:0] head_data;
  logic [1:0] beat_q;
  logic head_valid, ring_valid, ring_beat, ring_pop, head_error;
  assign head = slot_mem[head_at];
  assign head_data = data_mem[head_at];
  assign head_error = head_data[64];
  assign head_valid = ring_head_q != ring_tail_q && came_mem[head_at] == ring_head_q[SlotBits];
  assign ring_valid = head_valid && head.what != UseReplay;
  word_addr_t replay_addr_q;
  logic [7:0] replay_strobe_q;

  // ---- Output register.
  logic     out_valid_q;
  mem_req_t out_q, out_d;
  logic     out_ready, out_valid_d;
  assign out_ready = !out_valid_q || mem_ready_i;

  // To where a copy begins or a parked job goes on, or to the next chunk.
  logic signed [20:0] step;
  always_comb begin
    if (engine_q == EnginePlace) step = back_q ? 21'(left_q) - 21'd1 : 21'(job_q.len) - 21'(left_q);
    else step = back_q ? 21'd0 - 21'(bytes) : 21'(bytes);
  end

  // ---- What may go on. Old marks of touched words mean nothing when nothing is outstanding.
  count_t blocks_out, rows_out, reads_out;
  logic [1:0] writing;
  assign blocks_out = block_sent_mem[ctx_q] - block_seen_mem[ctx_q];
  assign rows_out = row_sent_mem[ctx_q] - row_seen_mem[ctx_q];
  assign reads_out = read_sent_mem[ctx_q] - read_seen_mem[ctx_q];
  logic none_reading;
  assign writing = {rows_out != '0, blocks_out != '0};
  assign none_reading = reads_out == '0;

  order_t   order_mem[Contexts];
  touched_t touched_mem[2**TouchedBits];
  order_t   order, order_next;
  touched_t touched;
  logic [TouchedBits-1:0] touched_at;
  logic     marked, hazard_reads;
  assign order = order_mem[ctx_q];
  assign touched_at = {ctx_q, job_q.dst_row, dst_word[3+WordBits-1:3]};
  assign touched = touched_mem[touched_at];
  assign marked = writing[job_q.dst_row] && touched.epoch == order.epoch[job_q.dst_row];
  // A chunk waits for writes that may touch its bytes; a copy's source for all writes of its kind, row or block; what
  // is written for all reads of its kind. A copy or fill that would meet its own marks waits for all writes first.
  logic long, fresh, hazard_marks, hazard_source, hazard_long;
  assign fresh = first_q && !pass_q;
  assign long = job_q.len > LongBytes;
  assign hazard_marks = marked && !keeping && !long && (touched.strobe & strobe) != '0;
  assign hazard_source = fresh && is_copy && writing[job_q.src_row];
  assign hazard_long = fresh && long && writing[job_q.dst_row];
  assign hazard_reads = !none_reading && fresh && job_q.kind != JobLoad && order.reads[job_q.dst_row];

  // ---- What the engine sends in this cycle.
  logic     send_ok, send_valid, send_slot, send_read, send_write, load_ok;
  mem_req_t send;
  slot_info_t send_info;
  logic [2:0] send_rotate;
  logic [63:0] stored;
  logic [1:0] send_writes;
  assign send_ok = out_ready && !ring_valid && blocks_out[5:2] != '1 && rows_out[5:2] != '1 && reads_out[5:2] != '1;
  assign stored = job_q.kind == JobFill ? '0 : rotate_up(job_q.data, job_q.dst[2:0]);

  park_e engine_park_for;
  logic engine_end, engine_park, engine_step, engine_log_up, engine_log_down;
  logic engine_done, engine_full, engine_clear, engine_again;
  logic pass_d;

  always_comb begin
    send_valid = 1'b0;
    send_slot = 1'b0;
    send_read = 1'b0;
    send_write = 1'b0;
    send_writes = 2'd0;
    send = '{write: 1'b0, addr: dst_word, data: stored, strobe: strobe, tag: {2'b00, 8'(ring_tail_q)}};
    send_info = '{
        what: UseCopy,
        store: job_q.kind != JobCopy,
        kept: job_q.undo,
        row: job_q.dst_row,
        ctx: ctx_q,
        dst: dst_word,
        strobe: strobe,
        entry: log_entry
    };
    send_rotate = '0;
    engine_end = 1'b0;
    engine_done = 1'b0;
    engine_full = 1'b0;
    engine_clear = 1'b0;
    engine_park = 1'b0;
    engine_park_for = ParkReads;
    engine_step = 1'b0;
    engine_again = 1'b0;
    engine_log_up = 1'b0;
    engine_log_down = 1'b0;
    pass_d = pass_q;
    if (engine_q == EngineRun) begin
      if (job_q.kind == JobUndo) begin
        if (log_empty_q) begin
          engine_end = 1'b1;
          engine_done = 1'b1;
        end else if (send_ok && slot_ok) begin
          // The entry before the next free one: first what it says, then what it kept.
          send_valid = 1'b1;
          send_slot = 1'b1;
          pass_d = !pass_q;
          send.addr = {log_entry, pass_q};
          send_info.what = pass_q ? UseUndo : UseReplay;
          if (pass_q) begin
            send_writes = 2'd1;
            engine_end = 1'b1;
            engine_log_down = 1'b1;
            engine_park = 1'b1;
            engine_park_for = ParkRows;
          end
        end
      end else if (left_q == '0) begin
        engine_end = 1'b1;
        engine_done = 1'b1;
      end else if (hazard_marks || hazard_source || hazard_long || hazard_reads) begin
        engine_end = 1'b1;
        engine_park = 1'b1;
        if (hazard_marks || hazard_long) engine_park_for = job_q.dst_row ? ParkRows : ParkBlock;
        else if (hazard_source) engine_park_for = job_q.src_row ? ParkRows : ParkBlock;
      end else if (job_q.undo && !pass_q && log_full) begin
        engine_end = 1'b1;
        engine_done = 1'b1;
        engine_full = 1'b1;
      end else if (send_ok) begin
        unique case (job_q.kind)
          JobLoad: if (load_ok) begin
            send_valid = 1'b1;
            send_read = 1'b1;
            send.tag = {1'b1, left_q[3:0] != job_q.len[3:0], job_q.gp};
          end
          JobStore, JobFill: begin
            send_write = 1'b1;
            if (job_q.undo) begin
              send_valid = slot_ok;
              send_slot = slot_ok;
              send_info.what = UseKeep;
              send_writes = 2'd3;
              engine_log_up = slot_ok;
            end else begin
              send_valid = 1'b1;
              send_writes = 2'd1;
              send.write = 1'b1;
              send.tag = tag_write(job_q.dst_row, ctx_q);
            end
          end
          default: if (slot_ok) begin
            send_valid = 1'b1;
            send_slot = 1'b1;
            if (keeping) begin
              send_info.what = UseKeep;
              send_writes = 2'd2;
              engine_log_up = 1'b1;
              engine_again = last;
            end else begin
              send.addr = src_word;
              send_read = 1'b1;
              send_write = 1'b1;
              send_rotate = dst_at - src_at;
              send_writes = 2'd1;
            end
          end
        endcase
        engine_step = send_valid;
        engine_end = send_valid && last;
        engine_done = engine_end && !engine_again;
        engine_clear = engine_done && job_q.clear;
        pass_d = pass_q || engine_again;
      end
    end
  end

  always_comb begin
    order_next = order;
    for (int unsigned i = 0; i < 2; i++) begin
      if (!writing[i]) order_next.epoch[i] = order.epoch[i] + epoch_t'(1);
    end
    if (none_reading) order_next.reads = '0;
    if (send_read) order_next.reads[job_q.src_row] = 1'b1;
  end

  // The next job is fetched while the engine is idle, or in the last cycle of the one before.
  assign pick_take = engine_q == EngineIdle || (engine_q == EngineRun && engine_end);

  // A job in the engine's registers comes back with what this cycle did.
  logic [19:0] left_next;
  assign left_next = left_q - 20'(bytes);
  always_comb begin
    engine_d = engine_q;
    unique case (engine_q)
      EngineIdle, EngineRun: begin
        if (pick_take) begin
          engine_d = EngineIdle;
          if (pick_valid_q) begin
            engine_d = picked.kind == JobCopy || picked.kind == JobUndo || picked.undo || picked_progress.again
                ? EngineMeet : EngineRun;
          end
        end
      end
      EngineMeet:  engine_d = EnginePlace;
      default:     engine_d = EngineRun;
    endcase
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      engine_q <= EngineIdle;
      pick_valid_q <= 1'b0;
      pick_ctx_q <= '0;
    end else begin
      engine_q <= engine_d;
      if (choice_take) begin
        pick_valid_q <= choice_valid;
        pick_ctx_q <= choice_ctx;
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (pick_take && pick_valid_q) begin
      ctx_q <= pick_ctx_q;
      job_q <= picked;
      pass_q <= picked_progress.pass;
      left_q <= picked_progress.begun ? picked_progress.left : picked.len;
      src_q <= picked.data[AddrWidth-1:0];
      dst_q <= picked.dst;
      distance_q <= picked.dst[16:0] - picked.data[16:0];
      back_q <= 1'b0;
      first_q <= 1'b1;
      log_q <= log_mem[pick_ctx_q];
    end
    if (engine_q == EngineMeet) begin
      log_at_q <= addr_t'(ctx_q) * addr_t'(undo_bytes_i);
      log_empty_q <= log_q == '0;
      if (job_q.kind == JobUndo) log_q <= log_q - 16'd1;
      back_q <= near_up && !keeping;
    end
    if (engine_q == EnginePlace) begin
      log_at_q <= undo_base_i + log_at_q;
    end
    if (engine_q == EnginePlace || (engine_step && !pick_take)) begin
      src_q <= src_q + addr_t'(step);
      dst_q <= dst_q + addr_t'(step);
    end
    if (engine_q == EngineRun && !pick_take) begin
      pass_q <= pass_d;
      if (send_valid) first_q <= 1'b0;
      if (engine_step) left_q <= left_next;
      if (engine_log_up) log_q <= log_q + 16'd1;
    end
  end

  // ---- Memories that the engine writes.
  ctx_t log_ctx, init_ctx;
  logic log_write;
  logic [15:0] log_next;
  assign init_ctx = init_at_i[CtxBits-1:0];
  assign log_write = init_i || engine_log_up || engine_log_down || engine_clear;
  assign log_ctx = init_i ? init_ctx : ctx_q;
  always_comb begin
    log_next = '0;
    if (!init_i && engine_log_up) log_next = log_q + 16'd1;
    if (!init_i && engine_log_down) log_next = log_q;
  end

  progress_t progress_d;
  always_comb begin
    progress_d = '0;
    if (engine_park || engine_again) begin
      progress_d = '{again: 1'b1, pass: pass_d, begun: !engine_again, left: left_q};
    end
  end

  logic [7:0] load_gp;
  load_t      load_start, load_q;
  load_t      load_mem[256];
  assign load_gp = start_i.gp;
  assign load_start = '{
      ctx: ctx_t'(start_ctx_i),
      toggle: start_i.toggle,
      extend: start_i.extend,
      len: start_i.len[3:0],
      at: start_i.dst[2:0]
  };

  always_ff @(posedge clk_i) begin
    if (start_valid_i) job_mem[ctx_t'(start_ctx_i)] <= start_i;
    if (start_valid_i && start_i.kind == JobLoad) load_mem[load_gp] <= load_start;
    if (init_i || engine_end) progress_mem[log_ctx] <= init_i ? '0 : progress_d;
    if (engine_end) parked_mem[ctx_q] <= engine_park_for;
    if (log_write) log_mem[log_ctx] <= log_next;
    if (init_i || (send_valid && !job_q.dst_row)) begin
      block_sent_mem[log_ctx] <= init_i ? '0 : block_sent_mem[ctx_q] + count_t'(send_writes);
    end
    if (init_i || (send_valid && job_q.dst_row)) begin
      row_sent_mem[log_ctx] <= init_i ? '0 : row_sent_mem[ctx_q] + count_t'(send_writes);
    end
    if (init_i || send_slot || send_read) begin
      read_sent_mem[log_ctx] <= init_i ? '0 : read_sent_mem[ctx_q] + count_t'(send_valid);
    end
    if (send_valid) order_mem[ctx_q] <= order_next;
    if (send_valid && send_write) begin
      touched_mem[touched_at] <= '{
          epoch: order_next.epoch[job_q.dst_row],
          strobe: strobe | (marked ? touched.strobe : 8'd0)
      };
    end
    if (send_slot) slot_mem[tail_at] <= send_info;
    if (send_slot) store_mem[tail_at] <= stored;
    if (send_slot) route_mem[tail_at] <= {ctx_q, send_rotate};
  end

  // ---- To memory: writes that follow from reads first, then the engine, then the front end.
  assign ring_beat = ring_valid && out_ready;
  always_comb begin
    ring_pop = head_valid && head.what == UseReplay;
    if (ring_beat) ring_pop = head.what != UseKeep || beat_q == (head.store ? 2'd2 : 2'd1);
  end
  assign fetch_ready_o = out_ready && !ring_valid && !send_valid;

  always_comb begin
    out_valid_d = 1'b1;
    out_d = send;
    if (ring_valid) begin
      out_d.write = 1'b1;
      out_d.tag = tag_write(head.row, head.ctx);
      out_d.addr = head.dst;
      out_d.data = head_data[63:0];
      out_d.strobe = head_error || (head.kept && lost_q[head.ctx]) ? '0 : head.strobe;
      if (head.what == UseKeep) begin
        // A word that memory refuses is kept as no bytes, and nothing is written over it.
        if (beat_q == 2'd2) begin
          out_d.data = store_mem[head_at];
          out_d.strobe = head_error ? '0 : head.strobe;
        end else begin
          out_d.addr = {head.entry, beat_q[0]};
          out_d.strobe = '1;
          if (!beat_q[0]) out_d.data = 64'({head_error ? 8'd0 : head.strobe, head.dst, 3'd0});
        end
      end
      if (head.what == UseUndo) begin
        out_d.addr = replay_addr_q;
        out_d.strobe = head_error ? '0 : replay_strobe_q;
      end
    end else if (!send_valid) begin
      out_valid_d = fetch_valid_i;
      out_d.write = 1'b0;
      out_d.addr = fetch_addr_i;
      out_d.tag = {3'b001, 7'(fetch_slot_i)};
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) out_valid_q <= 1'b0;
    else if (out_ready) out_valid_q <= out_valid_d;
  end
  always_ff @(posedge clk_i) begin
    if (out_ready) out_q <= out_d;
    if (head_valid && head.what == UseReplay) begin
      replay_addr_q <= head_data[AddrWidth-1:3];
      replay_strobe_q <= head_error ? '0 : head_data[47:40];
    end
  end

  assign mem_valid_o = out_valid_q;
  assign mem_o = out_q;

  // ---- Answers. First stage: as they come. Second: rotated, and put where they belong. Third: who hears of it.
  logic       a1_valid_q, a1_load, a1_write, a1_fetch, a1_slot;
  mem_rsp_t   a1_q;
  logic [CtxBits+2:0] a1_route;
  logic [2:0] a1_rotate;
  ctx_t       a1_ctx;
  assign a1_load = a1_q.tag[9];
  assign a1_write = !a1_q.tag[9] && a1_q.tag[8];
  assign a1_fetch = a1_q.tag[9:7] == 3'b001;
  assign a1_slot = a1_q.tag[9:7] == 3'b000;
  assign a1_route = route_mem[a1_q.tag[SlotBits-1:0]];
  assign a1_rotate = a1_load ? 3'd0 - load_q.at : a1_route[2:0];
  always_comb begin
    a1_ctx = a1_load ? load_q.ctx : a1_route[CtxBits+2:3];
    if (a1_write) a1_ctx = a1_q.tag[CtxBits-1:0];
  end

  logic       a2_load_q, a2_slot_q, a2_write_q, a2_row_q, a2_error_q, a2_high_q;
  logic [SlotBits:0] a2_turn_q;
  logic [7:0] a2_gp_q;
  load_t      a2_of_q;
  ctx_t       a2_ctx_q;
  logic [63:0] a2_data_q;
  loaded_t    a2_loaded;
  logic [7:0] a2_low_bytes;
  logic [63:0] a2_value;
  assign a2_low_bytes = low_bytes(4'd8 - 4'(a2_of_q.at));
  always_comb begin
    unique case (a2_of_q.len)
      4'd1:    a2_value = {{56{a2_of_q.extend & a2_data_q[7]}}, a2_data_q[7:0]};
      4'd2:    a2_value = {{48{a2_of_q.extend & a2_data_q[15]}}, a2_data_q[15:0]};
      4'd4:    a2_value = {{32{a2_of_q.extend & a2_data_q[31]}}, a2_data_q[31:0]};
      default: a2_value = a2_data_q;
    endcase
    a2_loaded = '{
        ctx: context_t'(a2_ctx_q),
        gp: a2_gp_q,
        toggle: a2_of_q.toggle,
        bytes: '1,
        value: a2_value
    };
    // The first word has the low bytes, the second the others and the extension.
    if (5'(a2_of_q.at) + 5'(a2_of_q.len) > 5'd8) a2_loaded.bytes = a2_low_bytes ^ {8{a2_high_q}};
  end

  loaded_t result_mem[Loads];
  logic [LoadBits:0] result_head_q, result_tail_q, load_tail_q;
  // Results that are there or to come have a place each.
  logic [LoadBits:0] loads_out;
  assign loads_out = load_tail_q - result_head_q;
  assign load_ok = !loads_out[LoadBits];

  logic result_take;
  ctx_t result_ctx;
  assign result_take = result_valid_o && result_ready_i;
  assign result_ctx = result_o.ctx[CtxBits-1:0];

  ctx_t seen_ctx;
  slot_t came_at;
  assign seen_ctx = init_i ? init_ctx : a2_ctx_q;
  assign came_at = init_i ? init_at_i[SlotBits-1:0] : a2_turn_q[SlotBits-1:0];

  always_ff @(posedge clk_i) begin
    a1_q <= mem_rsp_i;
    load_q <= load_mem[mem_rsp_i.tag[7:0]];
    a2_error_q <= a1_q.error;
    a2_high_q <= a1_q.tag[8];
    a2_row_q <= a1_q.tag[7];
    a2_turn_q <= a1_q.tag[SlotBits:0];
    a2_gp_q <= a1_q.tag[7:0];
    a2_of_q <= load_q;
    a2_ctx_q <= a1_ctx;
    a2_data_q <= rotate_up(a1_q.data, a1_rotate);
    if (init_i || (a2_write_q && !a2_row_q)) begin
      block_seen_mem[seen_ctx] <= init_i ? '0 : block_seen_mem[a2_ctx_q] + count_t'(1);
    end
    if (init_i || (a2_write_q && a2_row_q)) begin
      row_seen_mem[seen_ctx] <= init_i ? '0 : row_seen_mem[a2_ctx_q] + count_t'(1);
    end
    if (init_i || a2_slot_q || a2_load_q) begin
      read_seen_mem[seen_ctx] <= init_i ? '0 : read_seen_mem[a2_ctx_q] + count_t'(1);
    end
    if (a2_slot_q) data_mem[a2_turn_q[SlotBits-1:0]] <= {a2_error_q, a2_data_q};
    if (init_i || a2_slot_q) came_mem[came_at] <= !init_i && a2_turn_q[SlotBits];
    if (a2_load_q) result_mem[result_tail_q[LoadBits-1:0]] <= a2_loaded;
    if (init_i || a2_load_q) begin
      result_in_mem[seen_ctx] <= init_i ? '0 : result_in_mem[a2_ctx_q] + count_t'(1);
    end
    if (init_i || result_take) begin
      result_out_mem[init_i ? init_ctx : result_ctx] <= init_i ? '0 : result_out_mem[result_ctx] + count_t'(1);
    end
  end

  // Whoever waits for memory's answers hears of them one cycle later.
  logic a3_read_q, a3_write_q, a3_block_q, drain_q;
  ctx_t a3_ctx_q, drain_ctx_q;
  logic blocks_equal, rows_equal, reads_equal;
  assign blocks_equal = block_sent_mem[a3_ctx_q] == block_seen_mem[a3_ctx_q];
  assign rows_equal = row_sent_mem[a3_ctx_q] == row_seen_mem[a3_ctx_q];
  assign reads_equal = read_sent_mem[a3_ctx_q] == read_seen_mem[a3_ctx_q];

  logic a3_answered, a3_wakes;
  always_comb begin
    unique case (parked_mem[a3_ctx_q])
      ParkBlock: a3_answered = blocks_equal;
      ParkRows:  a3_answered = rows_equal;
      default:   a3_answered = reads_equal;
    endcase
  end
  assign a3_wakes = (a3_read_q || a3_write_q) && parked_q[a3_ctx_q] && a3_answered;

  logic [1:0] done_q;
  ctx_t [1:0] done_ctx_q;
  always_comb begin
    busy_d = busy_q;
    runnable_d = runnable_q;
    parked_d = parked_q;
    if (choice_take && choice_valid) runnable_d[choice_ctx] = 1'b0;
    if (engine_park) parked_d[ctx_q] = 1'b1;
    if (engine_again) runnable_d[ctx_q] = 1'b1;
    if (engine_done) busy_d[ctx_q] = 1'b0;
    if (a3_wakes) begin
      parked_d[a3_ctx_q] = 1'b0;
      runnable_d[a3_ctx_q] = 1'b1;
    end
    if (start_valid_i) begin
      busy_d[ctx_t'(start_ctx_i)] = 1'b1;
      runnable_d[ctx_t'(start_ctx_i)] = 1'b1;
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      busy_q <= '0;
      runnable_q <= '0;
      parked_q <= '0;
      lost_q <= '0;
      ring_head_q <= {1'b1, slot_t'(0)};
      ring_tail_q <= {1'b1, slot_t'(0)};
      beat_q <= '0;
      result_head_q <= '0;
      result_tail_q <= '0;
      load_tail_q <= '0;
      a1_valid_q <= 1'b0;
      a2_load_q <= 1'b0;
      a2_slot_q <= 1'b0;
      a2_write_q <= 1'b0;
      a3_read_q <= 1'b0;
      a3_write_q <= 1'b0;
      a3_block_q <= 1'b0;
      a3_ctx_q <= '0;
      done_q <= '0;
      done_ctx_q <= '0;
      drain_q <= 1'b0;
      drain_ctx_q <= '0;
    end else begin
      busy_q <= busy_d;
      runnable_q <= runnable_d;
      parked_q <= parked_d;
      if (ring_beat && head.what == UseKeep && head_error) lost_q[head.ctx] <= 1'b1;
      else if (engine_done && job_q.kind == JobUndo) lost_q[ctx_q] <= 1'b0;
      if (send_slot) ring_tail_q <= ring_tail_q + (SlotBits + 1)'(1);
      if (ring_pop) ring_head_q <= ring_head_q + (SlotBits + 1)'(1);
      if (ring_pop) beat_q <= '0;
      else if (ring_beat) beat_q <= beat_q + 2'd1;
      if (send_valid && send.tag[9]) load_tail_q <= load_tail_q + (LoadBits + 1)'(1);
      if (a2_load_q) result_tail_q <= result_tail_q + (LoadBits + 1)'(1);
      if (result_take) result_head_q <= result_head_q + (LoadBits + 1)'(1);
      a1_valid_q <= mem_rsp_valid_i;
      a2_load_q <= a1_valid_q && a1_load;
      a2_slot_q <= a1_valid_q && a1_slot;
      a2_write_q <= a1_valid_q && a1_write;
      a3_read_q <= a2_load_q || a2_slot_q;
      a3_write_q <= a2_write_q;
      a3_ctx_q <= a2_ctx_q;
      done_q <= {done_q[0], engine_done};
      done_ctx_q <= {done_ctx_q[0], ctx_q};
      drain_q <= (a3_block_q && blocks_equal)
          || ((a3_write_q || a3_read_q) && blocks_equal && rows_equal && reads_equal);
      a3_block_q <= a2_write_q && !a2_row_q;
      drain_ctx_q <= a3_ctx_q;
    end
  end

  assign busy_o = busy_q;
  assign done_valid_o = done_q[1];
  assign done_ctx_o = context_t'(done_ctx_q[1]);
  assign full_valid_o = engine_full;
  assign full_ctx_o = context_t'(ctx_q);
  assign result_valid_o = result_head_q != result_tail_q;
  assign result_o = result_mem[result_head_q[LoadBits-1:0]];
  ctx_t ask;
  assign ask = ask_i[CtxBits-1:0];
  assign settled_o = !busy_q[ask] && block_sent_mem[ask] == block_seen_mem[ask];
  assign drained_o = settled_o && row_sent_mem[ask] == row_seen_mem[ask] && read_sent_mem[ask] == read_seen_mem[ask];
  assign queued_o = result_in_mem[ask] != result_out_mem[ask];
  assign drain_valid_o = drain_q;
  assign drain_ctx_o = context_t'(drain_ctx_q);
  assign error_valid_o = (a2_load_q || a2_slot_q || a2_write_q) && a2_error_q;
  assign error_ctx_o = context_t'(a2_ctx_q);
  assign fetched_valid_o = a1_valid_q && a1_fetch;
  assign fetched_slot_o = a1_q.tag[1:0];
  assign fetched_data_o = a1_q.data;
  assign fetched_error_o = a1_q.error;

`ifdef LW_ASSERT
  always_ff @(posedge clk_i) begin
    if (rst_ni && start_valid_i) assert (!busy_q[ctx_t'(start_ctx_i)]);
    if (rst_ni && a2_slot_q) assert (came_mem[a2_turn_q[SlotBits-1:0]] != a2_turn_q[SlotBits]);
  end
`endif

  logic unused;
  assign unused = ^{job_q, log_at_q[3:0], undo_bytes_i[3:0], init_at_i, start_ctx_i, start_i, ask_i,
                    a1_q.tag, a2_turn_q, a2_of_q.ctx};

endmodule
