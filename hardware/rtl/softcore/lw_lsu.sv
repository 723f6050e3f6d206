// Loads, stores, copies, fills, and the undo log, of all contexts over one memory port.
//
// Each context has at most one job. An engine takes one job at a time and sends its requests, one a cycle, each within
// one word of its source and one of its destination; a job that must wait for an answer before its next request is
// parked, and comes again. What a copy or an undo reads is kept, when it comes back, in a queue of writes; a slot is
// taken for it before it is asked for, so answers are always accepted. `drained` tells whether memory has answered
// everything of a context; a write that follows from a read is counted when the read is sent.

module lw_lsu
  import lw_pkg::*;
  import lw_softcore_pkg::*;
#(
  /// Contexts; a power of two, 2 to 64.
  parameter int unsigned Contexts = 16,
  /// Reads of copies and undo that may be outstanding at a time; a power of two, 2 to 128.
  parameter int unsigned Slots = 16
) (
  /// Everything happens on its rising edge.
  input  logic        clk_i,
  /// Forgets all jobs; answers of memory that come later are misunderstood.
  input  logic        rst_ni,
  /// The counters are being cleared, this context's now; nothing else may happen meanwhile.
  input  logic        init_i,
  /// See `init_i`.
  input  context_t    init_ctx_i,

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

  /// The last request of a job other than a load was sent (of `JobUndo`: everything was answered).
  output logic        done_valid_o,
  /// Whose.
  output context_t    done_ctx_o,
  /// The undo log is full; nothing of the job but entries of the log was written.
  output logic        done_full_o,

  /// A loaded value; held until taken.
  output logic        result_valid_o,
  /// Taken.
  input  logic        result_ready_i,
  /// Whose.
  output context_t    result_ctx_o,
  /// Physical GP register.
  output logic [7:0]  result_gp_o,
  /// The value, extended.
  output logic [63:0] result_value_o,

  /// First question: is this context drained?
  input  context_t    ask_a_i,
  /// The answer, same cycle.
  output logic        drained_a_o,
  /// Second question.
  input  context_t    ask_b_i,
  /// The answer, same cycle.
  output logic        drained_b_o,
  /// A context is drained; two cycles after `drained` told so first.
  output logic        drain_valid_o,
  /// Which.
  output context_t    drain_ctx_o,
  /// Memory refused something.
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
  localparam logic [1:0] TagWrite = 2'd0;
  localparam logic [1:0] TagLoad = 2'd1;
  localparam logic [1:0] TagSlot = 2'd2;
  localparam logic [1:0] TagFetch = 2'd3;

  typedef logic [CtxBits-1:0] ctx_t;
  typedef logic [SlotBits-1:0] slot_t;

  typedef enum logic [1:0] {
    UseCopy,   // write it
    UseKeep,   // two words into the undo log
    UseReplay  // address and strobe of an entry of the log
  } use_e;

  typedef struct packed {
    use_e        what;
    ctx_t        ctx;
    word_addr_t  dst;
    logic [7:0]  strobe;
    logic [2:0]  rotate;
    logic [AddrWidth-1:4] entry;  // place in the undo log
  } slot_info_t;

  typedef struct packed {
    logic        keep;
    ctx_t        ctx;
    word_addr_t  dst;
    logic [7:0]  strobe;
    logic [AddrWidth-1:4] entry;
    logic [63:0] data;
  } write_t;

  typedef enum logic [2:0] {
    EngineIdle,
    EngineMeet,   // do source and destination overlap; where was it left
    EnginePlace,
    EngineRun
  } engine_e;

  // ---- Job descriptors, and how far parked ones are.
  job_t job_mem[Contexts];
  logic [20:0] progress_mem[Contexts];  // pass, bytes left
  logic [15:0] log_mem[Contexts];       // entries in the undo log
  logic [Contexts-1:0] runnable_q, runnable_d, resumed_q, resumed_d;
  logic [Contexts-1:0] park_reads_q, park_reads_d, park_writes_q, park_writes_d;
  logic [Contexts-1:0] lost_q;  // old bytes that were to be kept could not be read

  // ---- Counters: a pair of writers each.
  logic [7:0] write_sent_mem[Contexts];
  logic [7:0] write_seen_mem[Contexts];
  logic [SlotBits:0] read_sent_mem[Contexts];
  logic [SlotBits:0] read_seen_mem[Contexts];

  // ---- Engine.
  engine_e engine_q, engine_d;
  ctx_t    ctx_q;
  job_t    job_q;
  logic    pass_q;
  logic [19:0] left_q;
  addr_t   src_q, dst_q;
  logic    single_q, back_q, high_q;
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
  logic [20:0] picked_progress;
  assign picked_progress = progress_mem[pick_ctx_q];

  // Overlap of a copy within one object.
  addr_t distance_q;
  logic  is_copy;
  assign is_copy = job_q.kind == JobCopy;
  logic near_up, near_down;
  assign near_up = distance_q != '0 && distance_q < addr_t'(job_q.len);
  assign near_down = distance_q > addr_t'(0) - addr_t'(job_q.len);

  logic keeping;  // the pass that fills the undo log
  assign keeping = job_q.undo && !pass_q;

  // Where a chunk lies: `src_q` and `dst_q` are its first bytes, or, backwards, the bytes after its last.
  logic [3:0] src_room, dst_room, room, bytes;
  always_comb begin
    if (back_q) begin
      src_room = src_q[2:0] == 3'd0 ? 4'd8 : {1'b0, src_q[2:0]};
      dst_room = dst_q[2:0] == 3'd0 ? 4'd8 : {1'b0, dst_q[2:0]};
    end else begin
      src_room = 4'd8 - {1'b0, src_q[2:0]};
      dst_room = 4'd8 - {1'b0, dst_q[2:0]};
    end
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
  assign src_word = src_q[AddrWidth-1:3] - word_addr_t'(back_q && src_q[2:0] == 3'd0);
  assign dst_word = dst_q[AddrWidth-1:3] - word_addr_t'(back_q && dst_q[2:0] == 3'd0);
  logic [7:0] strobe;
  assign strobe = low_bytes(bytes) << dst_at;

  logic log_full;
  assign log_full = log_q >= undo_bytes_i[19:4];
  logic [AddrWidth-1:4] log_entry;
  assign log_entry = log_at_q[AddrWidth-1:4] + (AddrWidth - 4)'(log_q);

  logic [63:0] accumulated_mem[Contexts];
  logic [63:0] accumulated;
  assign accumulated = accumulated_mem[ctx_q];

  // ---- Slots and the queue of writes.
  logic [Slots-1:0] slot_free_q, slot_free_d;
  slot_info_t slot_mem[Slots];
  logic slot_valid;
  slot_t slot;
  always_comb begin
    slot = '0;
    slot_valid = 1'b0;
    for (int unsigned i = 0; i < Slots; i++) begin
      if (slot_free_q[i] && !slot_valid) begin
        slot = slot_t'(i);
        slot_valid = 1'b1;
      end
    end
  end

  write_t queue_mem[Slots];
  logic [SlotBits:0] queue_head_q, queue_tail_q, reserved_q;
  logic queue_valid, queue_second_q;
  write_t queue_top;
  assign queue_valid = queue_head_q != queue_tail_q;
  assign queue_top = queue_mem[queue_head_q[SlotBits-1:0]];

  // ---- Output register.
  logic     out_valid_q;
  mem_req_t out_q, out_d;
  logic     out_ready, out_valid_d;
  assign out_ready = !out_valid_q || mem_ready_i;

  // Where a parked copy goes on.
  logic [19:0] skipped;
  assign skipped = back_q ? left_q : job_q.len - left_q;

  // What the engine sends in this cycle.
  logic     send_ok, send_valid, send_slot;
  mem_req_t send;
  slot_info_t send_info;
  logic [1:0] send_writes;
  logic [7:0] writes_out;
  assign writes_out = write_sent_mem[ctx_q] - write_seen_mem[ctx_q];
  assign send_ok = out_ready && !queue_valid && writes_out < 8'd250;
  logic slot_ok;
  assign slot_ok = slot_valid && !reserved_q[SlotBits];

  logic engine_end, engine_park_reads, engine_park_writes, engine_step, engine_log_up, engine_log_down;
  logic engine_done, engine_full, engine_clear;
  logic pass_d;

  always_comb begin
    send_valid = 1'b0;
    send_slot = 1'b0;
    send_writes = 2'd0;
    send = '{write: 1'b0, addr: src_word, data: '0, strobe: '0, tag: {TagSlot, 8'(slot)}};
    send_info = '{what: UseCopy, ctx: ctx_q, dst: dst_word, strobe: strobe, rotate: dst_at - src_at, entry: log_entry};
    engine_end = 1'b0;
    engine_done = 1'b0;
    engine_full = 1'b0;
    engine_clear = 1'b0;
    engine_park_reads = 1'b0;
    engine_park_writes = 1'b0;
    engine_step = 1'b0;
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
          engine_end = 1'b1;
          pass_d = !pass_q;
          if (!pass_q) begin
            send.addr = {log_entry, 1'b0};
            send_info.what = UseReplay;
            engine_park_reads = 1'b1;
          end else begin
            send.addr = {log_entry, 1'b1};
            send_info.dst = accumulated[AddrWidth-1:3];
            send_info.strobe = accumulated[47:40];
            send_info.rotate = '0;
            send_writes = 2'd1;
            engine_log_down = 1'b1;
            engine_park_writes = 1'b1;
          end
        end
      end else if (left_q == '0) begin
        engine_end = 1'b1;
        engine_done = 1'b1;
      end else if (keeping) begin
        if (log_full) begin
          engine_end = 1'b1;
          engine_done = 1'b1;
          engine_full = 1'b1;
        end else if (send_ok && slot_ok) begin
          send_valid = 1'b1;
          send_slot = 1'b1;
          send.addr = dst_word;
          send_info.what = UseKeep;
          send_info.rotate = '0;
          send_writes = 2'd2;
          engine_log_up = 1'b1;
          engine_step = 1'b1;
          engine_end = last;
          engine_park_reads = last;
          pass_d = last;
        end
      end else begin
        unique case (job_q.kind)
          JobLoad: if (send_ok) begin
            send_valid = 1'b1;
            send.addr = dst_word;
            send.tag = {TagLoad, 1'(high_q), 7'(ctx_q)};
            engine_step = 1'b1;
            engine_end = last;
          end
          JobStore, JobFill: if (send_ok) begin
            send_valid = 1'b1;
            send_writes = 2'd1;
            send.write = 1'b1;
            send.addr = dst_word;
            send.strobe = strobe;
            send.data = job_q.kind == JobFill ? '0 : rotate_up(job_q.data, job_q.dst[2:0]);
            send.tag = {TagWrite, 8'(ctx_q)};
            engine_step = 1'b1;
            engine_end = last;
            engine_done = last;
            engine_clear = last && job_q.clear;
          end
          default: if (send_ok && slot_ok) begin
            send_valid = 1'b1;
            send_slot = 1'b1;
            send_writes = 2'd1;
            engine_step = 1'b1;
            engine_end = last || single_q;
            engine_done = last;
            engine_park_writes = single_q && !last;
          end
        endcase
      end
    end
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
            engine_d = picked.kind == JobCopy || picked.kind == JobUndo || picked.undo ? EngineMeet : EngineRun;
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
      ctx_q <= '0;
      job_q <= '0;
      pass_q <= 1'b0;
      left_q <= '0;
      src_q <= '0;
      dst_q <= '0;
      single_q <= 1'b0;
      back_q <= 1'b0;
      high_q <= 1'b0;
      log_q <= '0;
      log_at_q <= '0;
      log_empty_q <= 1'b0;
      pick_valid_q <= 1'b0;
      pick_ctx_q <= '0;
      distance_q <= '0;
    end else begin
      engine_q <= engine_d;
      if (choice_take) begin
        pick_valid_q <= choice_valid;
        pick_ctx_q <= choice_ctx;
      end
      if (pick_take && pick_valid_q) begin
        ctx_q <= pick_ctx_q;
        job_q <= picked;
        pass_q <= resumed_q[pick_ctx_q] && picked_progress[20];
        // Nothing is written over what could not be kept.
        left_q <= resumed_q[pick_ctx_q] ? picked_progress[19:0] & {20{!lost_q[pick_ctx_q]}} : picked.len;
        src_q <= picked.data[AddrWidth-1:0];
        // A load goes through its source as a store does through its destination.
        dst_q <= picked.kind == JobLoad ? picked.data[AddrWidth-1:0] : picked.dst;
        distance_q <= picked.dst - picked.data[AddrWidth-1:0];
        single_q <= 1'b0;
        back_q <= 1'b0;
        high_q <= 1'b0;
        log_q <= log_mem[pick_ctx_q];
      end
      if (engine_q == EngineMeet) begin
        log_at_q <= addr_t'(ctx_q) * addr_t'(undo_bytes_i);
        log_empty_q <= log_q == '0;
        if (job_q.kind == JobUndo) log_q <= log_q - 16'd1;
        if (is_copy && !keeping) begin
          single_q <= near_up || near_down;
          back_q <= near_up;
        end
      end
      if (engine_q == EnginePlace) log_at_q <= undo_base_i + log_at_q;
      if (engine_q == EnginePlace && is_copy && single_q) begin
        src_q <= src_q + addr_t'(skipped);
        dst_q <= dst_q + addr_t'(skipped);
      end
      if (engine_step && !engine_end) begin
        left_q <= left_next;
        src_q <= src_q + addr_t'(bytes);
        dst_q <= dst_q + addr_t'(bytes);
        high_q <= 1'b1;
      end
      if (engine_log_up && !engine_end) log_q <= log_q + 16'd1;
    end
  end

  // ---- Memories that the engine writes.
  ctx_t log_ctx;
  logic log_write;
  logic [15:0] log_next;
  assign log_write = init_i || engine_log_up || engine_log_down || engine_clear;
  assign log_ctx = init_i ? ctx_t'(init_ctx_i) : ctx_q;
  always_comb begin
    log_next = '0;
    if (!init_i && engine_log_up) log_next = log_q + 16'd1;
    if (!init_i && engine_log_down) log_next = log_q;
  end

  always_ff @(posedge clk_i) begin
    if (start_valid_i) job_mem[ctx_t'(start_ctx_i)] <= start_i;
    if (engine_end) begin
      progress_mem[ctx_q] <= {pass_d, engine_park_writes && engine_step ? left_next : job_q.len};
    end
    if (log_write) log_mem[log_ctx] <= log_next;
    if (init_i || send_writes != '0) begin
      write_sent_mem[log_ctx] <= init_i ? '0 : write_sent_mem[ctx_q] + 8'(send_writes);
    end
    if (init_i || send_slot) begin
      read_sent_mem[log_ctx] <= init_i ? '0 : read_sent_mem[ctx_q] + (SlotBits + 1)'(1);
    end
    if (send_slot) slot_mem[slot] <= send_info;
  end

  // ---- To memory: writes that follow from reads first, then the engine, then the front end.
  logic queue_pop;
  assign queue_pop = queue_valid && out_ready && (!queue_top.keep || queue_second_q);
  assign fetch_ready_o = out_ready && !queue_valid && !send_valid;

  always_comb begin
    out_valid_d = 1'b1;
    out_d = send;
    if (queue_valid) begin
      out_d.write = 1'b1;
      out_d.tag = {TagWrite, 8'(queue_top.ctx)};
      if (queue_top.keep) begin
        out_d.addr = {queue_top.entry, queue_second_q};
        out_d.strobe = '1;
        out_d.data = queue_second_q ? queue_top.data : 64'({queue_top.strobe, queue_top.dst, 3'd0});
      end else begin
        out_d.addr = queue_top.dst;
        out_d.strobe = queue_top.strobe;
        out_d.data = queue_top.data;
      end
    end else if (!send_valid) begin
      out_valid_d = fetch_valid_i;
      out_d.write = 1'b0;
      out_d.addr = fetch_addr_i;
      out_d.tag = {TagFetch, 8'(fetch_slot_i)};
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      out_valid_q <= 1'b0;
      out_q <= '0;
    end else if (out_ready) begin
      out_valid_q <= out_valid_d;
      out_q <= out_d;
    end
  end

  assign mem_valid_o = out_valid_q;
  assign mem_o = out_q;

  // ---- Answers. First stage: as they come. Second: rotated. Third: where they belong. Fourth: who hears of it.
  logic       a1_valid_q, a2_valid_q;
  mem_rsp_t   a1_q;
  logic [1:0] a1_kind;
  slot_info_t a1_info;
  job_t       a1_job;
  ctx_t       a1_ctx;
  logic [2:0] a1_rotate;
  assign a1_kind = a1_q.tag[9:8];
  assign a1_info = slot_mem[a1_q.tag[SlotBits-1:0]];
  assign a1_ctx = a1_kind == TagSlot ? a1_info.ctx : a1_q.tag[CtxBits-1:0];
  assign a1_job = job_mem[a1_ctx];
  assign a1_rotate = a1_kind == TagSlot ? a1_info.rotate : 3'd0 - a1_job.data[2:0];

  logic [1:0] a2_kind_q;
  logic       a2_high_q, a2_error_q, a2_extend_q;
  slot_info_t a2_info_q;
  slot_t      a2_slot_q;
  ctx_t       a2_ctx_q;
  logic [63:0] a2_data_q;
  logic [2:0] a2_at_q;
  logic [3:0] a2_len_q;
  logic [7:0] a2_gp_q;
  logic       a2_parted;
  assign a2_parted = 5'(a2_at_q) + 5'(a2_len_q) > 5'd8;

  logic [Contexts-1:0] half_q;  // one half of a load in two has come
  logic [63:0] a2_other, a2_value, a2_mask;
  logic [7:0]  a2_low_bytes;
  assign a2_other = accumulated_mem[a2_ctx_q];
  assign a2_low_bytes = low_bytes(4'd8 - 4'(a2_at_q));
  always_comb begin
    for (int unsigned i = 0; i < 8; i++) a2_mask[8*i+:8] = {8{a2_low_bytes[i] ^ a2_high_q}};
    a2_value = a2_data_q;
    if (a2_parted) a2_value = (a2_data_q & a2_mask) | (a2_other & ~a2_mask);
  end
  logic a2_slot, a2_write, a2_loaded, a2_keep_half;
  assign a2_slot = a2_valid_q && a2_kind_q == TagSlot;
  assign a2_write = a2_valid_q && a2_kind_q == TagWrite;
  assign a2_keep_half = a2_valid_q && a2_kind_q == TagLoad && a2_parted && !half_q[a2_ctx_q];
  assign a2_loaded = a2_valid_q && a2_kind_q == TagLoad && !a2_keep_half;
  logic a2_push;
  assign a2_push = a2_slot && a2_info_q.what != UseReplay;

  logic        a3_loaded_q, a3_error_q, a3_slot_q, a3_write_q, a3_extend_q;
  ctx_t        a3_ctx_q;
  logic [63:0] a3_value_q, a3_extended;
  logic [3:0]  a3_len_q;
  logic [7:0]  a3_gp_q;
  always_comb begin
    unique case (a3_len_q)
      4'd1:    a3_extended = {{56{a3_extend_q & a3_value_q[7]}}, a3_value_q[7:0]};
      4'd2:    a3_extended = {{48{a3_extend_q & a3_value_q[15]}}, a3_value_q[15:0]};
      4'd4:    a3_extended = {{32{a3_extend_q & a3_value_q[31]}}, a3_value_q[31:0]};
      default: a3_extended = a3_value_q;
    endcase
  end

  logic [CtxBits:0] result_head_q, result_tail_q;
  logic [63:0] result_value_mem[Contexts];
  logic [7:0]  result_gp_mem[Contexts];
  ctx_t        result_ctx_mem[Contexts];

  ctx_t seen_ctx;
  assign seen_ctx = init_i ? ctx_t'(init_ctx_i) : a2_ctx_q;

  always_ff @(posedge clk_i) begin
    a1_q <= mem_rsp_i;
    a2_kind_q <= a1_kind;
    a2_high_q <= a1_q.tag[7];
    a2_error_q <= a1_q.error;
    a2_extend_q <= a1_job.extend;
    a2_info_q <= a1_info;
    a2_slot_q <= a1_q.tag[SlotBits-1:0];
    a2_ctx_q <= a1_ctx;
    // A word that memory refuses counts as zeros: as an entry of the undo log it writes nothing.
    a2_data_q <= a1_q.error ? '0 : rotate_up(a1_q.data, a1_rotate);
    a2_at_q <= a1_job.data[2:0];
    a2_len_q <= a1_job.len[3:0];
    a2_gp_q <= a1_job.gp;
    a3_value_q <= a2_value;
    a3_len_q <= a2_len_q;
    a3_extend_q <= a2_extend_q;
    a3_gp_q <= a2_gp_q;
    a3_ctx_q <= a2_ctx_q;
    if (a2_keep_half || (a2_slot && a2_info_q.what == UseReplay)) accumulated_mem[a2_ctx_q] <= a2_data_q;
    if (init_i || a2_write) write_seen_mem[seen_ctx] <= init_i ? '0 : write_seen_mem[a2_ctx_q] + 8'd1;
    if (init_i || a2_slot) begin
      read_seen_mem[seen_ctx] <= init_i ? '0 : read_seen_mem[a2_ctx_q] + (SlotBits + 1)'(1);
    end
    if (a2_push) begin
      queue_mem[queue_tail_q[SlotBits-1:0]] <= '{
          keep: a2_info_q.what == UseKeep,
          ctx: a2_ctx_q,
          dst: a2_info_q.dst,
          strobe: a2_error_q ? 8'd0 : a2_info_q.strobe,
          entry: a2_info_q.entry,
          data: a2_data_q
      };
    end
    if (a3_loaded_q) begin
      result_value_mem[result_tail_q[CtxBits-1:0]] <= a3_extended;
      result_gp_mem[result_tail_q[CtxBits-1:0]] <= a3_gp_q;
      result_ctx_mem[result_tail_q[CtxBits-1:0]] <= a3_ctx_q;
    end
  end

  // Memory that answers a write is heard of by whoever waits for it, one cycle later.
  logic writes_equal, reads_equal, drain_q;
  ctx_t drain_ctx_q;
  assign writes_equal = write_sent_mem[a3_ctx_q] == write_seen_mem[a3_ctx_q];
  assign reads_equal = read_sent_mem[a3_ctx_q] == read_seen_mem[a3_ctx_q];
  logic error_q;
  ctx_t error_ctx_q;

  always_comb begin
    runnable_d = runnable_q;
    resumed_d = resumed_q;
    park_reads_d = park_reads_q;
    park_writes_d = park_writes_q;
    if (choice_take && choice_valid) runnable_d[choice_ctx] = 1'b0;
    if (engine_end) begin
      resumed_d[ctx_q] = engine_park_reads || engine_park_writes;
      park_reads_d[ctx_q] = engine_park_reads;
      park_writes_d[ctx_q] = engine_park_writes;
    end
    if (a3_slot_q && reads_equal && park_reads_q[a3_ctx_q]) begin
      park_reads_d[a3_ctx_q] = 1'b0;
      runnable_d[a3_ctx_q] = 1'b1;
    end
    if (a3_write_q && writes_equal && park_writes_q[a3_ctx_q]) begin
      park_writes_d[a3_ctx_q] = 1'b0;
      runnable_d[a3_ctx_q] = 1'b1;
    end
    if (start_valid_i) begin
      runnable_d[ctx_t'(start_ctx_i)] = 1'b1;
      resumed_d[ctx_t'(start_ctx_i)] = 1'b0;
    end
    slot_free_d = slot_free_q;
    if (send_slot) slot_free_d[slot] = 1'b0;
    if (a2_slot) slot_free_d[a2_slot_q] = 1'b1;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      runnable_q <= '0;
      resumed_q <= '0;
      park_reads_q <= '0;
      park_writes_q <= '0;
      slot_free_q <= '1;
      half_q <= '0;
      lost_q <= '0;
      queue_head_q <= '0;
      queue_tail_q <= '0;
      queue_second_q <= 1'b0;
      reserved_q <= '0;
      result_head_q <= '0;
      result_tail_q <= '0;
      a1_valid_q <= 1'b0;
      a2_valid_q <= 1'b0;
      a3_loaded_q <= 1'b0;
      a3_error_q <= 1'b0;
      a3_slot_q <= 1'b0;
      a3_write_q <= 1'b0;
      drain_q <= 1'b0;
      drain_ctx_q <= '0;
      error_q <= 1'b0;
      error_ctx_q <= '0;
    end else begin
      runnable_q <= runnable_d;
      resumed_q <= resumed_d;
      park_reads_q <= park_reads_d;
      park_writes_q <= park_writes_d;
      slot_free_q <= slot_free_d;
      a1_valid_q <= mem_rsp_valid_i;
      a2_valid_q <= a1_valid_q && a1_kind != TagFetch;
      a3_loaded_q <= a2_loaded;
      a3_error_q <= a2_valid_q && a2_error_q;
      a3_slot_q <= a2_slot;
      a3_write_q <= a2_write;
      if (a2_keep_half) half_q[a2_ctx_q] <= 1'b1;
      if (a2_loaded) half_q[a2_ctx_q] <= 1'b0;
      if (start_valid_i) lost_q[ctx_t'(start_ctx_i)] <= 1'b0;
      if (a2_slot && a2_error_q && a2_info_q.what == UseKeep) lost_q[a2_ctx_q] <= 1'b1;
      if (a2_push) queue_tail_q <= queue_tail_q + (SlotBits + 1)'(1);
      if (queue_pop) queue_head_q <= queue_head_q + (SlotBits + 1)'(1);
      if (queue_valid && out_ready && queue_top.keep) queue_second_q <= !queue_second_q;
      // Places of the queue that are taken or promised.
      reserved_q <= reserved_q + (SlotBits + 1)'(send_slot)
          - (SlotBits + 1)'(queue_pop) - (SlotBits + 1)'(a2_slot && !a2_push);
      if (a3_loaded_q) result_tail_q <= result_tail_q + (CtxBits + 1)'(1);
      if (result_valid_o && result_ready_i) result_head_q <= result_head_q + (CtxBits + 1)'(1);
      drain_q <= a3_write_q && writes_equal;
      drain_ctx_q <= a3_ctx_q;
      error_q <= a3_error_q;
      error_ctx_q <= a3_ctx_q;
    end
  end

  assign done_valid_o = engine_done;
  assign done_full_o = engine_full;
  assign done_ctx_o = context_t'(ctx_q);
  assign result_valid_o = result_head_q != result_tail_q;
  assign result_ctx_o = context_t'(result_ctx_mem[result_head_q[CtxBits-1:0]]);
  assign result_gp_o = result_gp_mem[result_head_q[CtxBits-1:0]];
  assign result_value_o = result_value_mem[result_head_q[CtxBits-1:0]];
  assign drained_a_o = write_sent_mem[ctx_t'(ask_a_i)] == write_seen_mem[ctx_t'(ask_a_i)];
  assign drained_b_o = write_sent_mem[ctx_t'(ask_b_i)] == write_seen_mem[ctx_t'(ask_b_i)];
  assign drain_valid_o = drain_q;
  assign drain_ctx_o = context_t'(drain_ctx_q);
  assign error_valid_o = error_q;
  assign error_ctx_o = context_t'(error_ctx_q);
  assign fetched_valid_o = a1_valid_q && a1_kind == TagFetch;
  assign fetched_slot_o = a1_q.tag[1:0];
  assign fetched_data_o = a1_q.data;
  assign fetched_error_o = a1_q.error;

  logic unused;
  assign unused = ^{job_q, a2_info_q, accumulated, a1_job, log_at_q[3:0], undo_bytes_i[3:0], init_ctx_i, start_ctx_i, ask_a_i, ask_b_i, a1_q.tag};

endmodule
