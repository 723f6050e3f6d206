/// KeyFetch and Hash: from a DB instruction to a key in normal form, its hash and the worker that has its row.
///
/// Instructions leave in the order in which they came, those of the own softcore and those of the fabric each for
/// themselves, so what one transaction asks of one worker arrives there in program order. Nothing from the fabric ever
/// waits for a request to be sent: an instruction of the softcore begins only when the queue to the fabric has room.
///
/// An aligned key of one integer takes one cycle, others one cycle a byte of the normal form. Stages: 0 chooses a byte,
/// 1 has the key map's entry for it, 2 reads the word of the image, 3 takes the byte, 4 hashes a word and says whose
/// row it is. They never stand still: what leaves them has a place in the queue behind from the moment it begins.
module lw_prepare #(
  /// Words of the widest key in normal form, 1 to 4.
  parameter int unsigned KeyWords = 4,
  /// Requests under way of the softcore, and as many of the fabric; a power of two, at most 32.
  parameter int unsigned Slots = 16,
  /// Workers of the machine; a power of two, at most 16.
  parameter int unsigned Workers = 1
) (
  /// Clock.
  input  logic              clk_i,
  /// Asynchronous reset: all requests are lost.
  input  logic              rst_ni,
  /// This worker.
  input  lw_pkg::worker_t   worker_i,
  /// What the host writes.
  input  lw_pkg::config_t   config_i,
  /// An instruction of the softcore; taken in a cycle with `db_ready_o`.
  input  logic              db_valid_i,
  /// Follows `far_valid_i` in the same cycle.
  output logic              db_ready_o,
  /// The instruction.
  input  lw_pkg::db_req_t   db_req_i,
  /// An instruction of another worker; no release.
  input  logic              far_valid_i,
  /// From registers alone.
  output logic              far_ready_o,
  /// The instruction.
  input  lw_pkg::request_t  far_req_i,
  /// A read; stays until taken.
  output logic              mem_valid_o,
  /// It is taken.
  input  logic              mem_ready_i,
  /// The read; tags are below 512.
  output lw_pkg::mem_req_t  mem_req_o,
  /// An answer to one of its reads.
  input  logic              mem_rsp_valid_i,
  /// The answer.
  input  lw_pkg::mem_rsp_t  mem_rsp_i,
  /// An instruction for this worker; stays until taken.
  output logic              lookup_valid_o,
  /// It is taken.
  input  logic              lookup_ready_i,
  /// The instruction.
  output lw_pkg::lookup_t   lookup_o,
  /// An instruction for another worker; stays until taken; from a queue.
  output logic              remote_valid_o,
  /// It is taken.
  input  logic              remote_ready_i,
  /// For which worker.
  output lw_pkg::worker_t   remote_dest_o,
  /// The instruction.
  output lw_pkg::request_t  remote_o,
  /// Memory refused the key of an instruction; stays until taken.
  output logic              failed_valid_o,
  /// It is taken.
  input  logic              failed_ready_i,
  /// The answer.
  output lw_pkg::response_t failed_o
);

  import lw_pkg::*;
  import lw_point_pkg::*;

  localparam int unsigned Rings = (Workers > 1) ? 2 : 1;
  localparam int unsigned SlotWidth = $clog2(Slots);
  localparam int unsigned PlaceWidth = $clog2(Slots * Rings);
  localparam int unsigned RemoteDepth = 8;
  // More than the stages, so that there is always a place when the queue is emptied at once.
  localparam int unsigned OutDepth = 16;
  localparam worker_t WorkerMask = worker_t'(Workers - 1);
  localparam logic [63:0] SignBit = 64'h8000_0000_0000_0000;

  typedef logic [SlotWidth-1:0] slot_t;
  typedef logic [PlaceWidth-1:0] place_t;

  // A beat: a byte of a key, or a key that is there at once.
  typedef struct packed {
    logic       ring;    // 0: of the softcore
    slot_t      slot;
    table_t     tab;
    logic [2:0] offset;  // of the image in its first word
    logic [2:0] at;      // byte of the word of the normal form
    logic [1:0] word;
    logic       direct;  // the whole word
    logic       error;
    logic       wide;    // more than one word
    logic       done;    // the word is complete
    logic       last;    // the key, too
  } beat_t;

  // An instruction with its key.
  typedef struct packed {
    logic                      ring;
    logic                      error;
    logic                      here;
    worker_t                   dest;
    op_e                       op;
    table_t                    tab;
    stamp_t                    stamp;
    return_t                   ret;
    logic                      judged;
    logic                      tree;
    logic                      as_it_came;
    logic [15:0]               limit;
    logic [5:0]                source;
    addr_t                     result;
    hash_t                     hash;
    logic [KeyWords-1:0][63:0] key;
  } out_t;

  // ---------------------------------------------------------------------------------------------------------------
  // The rings
  // ---------------------------------------------------------------------------------------------------------------

  request_t [1:0] ring_req;
  logic [1:0] head_valid, head_next, head_error, free;
  key_head_t [1:0] head;
  slot_t [1:0] head_slot;
  logic [2:0] image_word;
  logic [63:0] image;
  request_t now;
  addr_t result;
  beat_t beat, s1_q, s2_q, s3_q, s4_q;
  logic s0_valid, s1_valid_q, s2_valid_q, s3_valid_q, s4_valid_q;
  out_t out_in, out;
  logic out_valid, out_pop;
  logic unused_bits;

  always_comb begin
    ring_req[0]       = '0;
    ring_req[0].op    = db_req_i.op;
    ring_req[0].tab   = db_req_i.tab;
    ring_req[0].stamp = db_req_i.stamp;
    ring_req[0].ret   = db_req_i.ret;
    ring_req[0].key   = {db_req_i.delta, db_req_i.key_addr};
    ring_req[0].hash  = HashWidth'({db_req_i.source, db_req_i.limit});
    ring_req[1]       = far_req_i;
  end

  logic [Rings-1:0] ring_ready;

  lw_key_fetch #(
    .Slots(Slots),
    .Rings(Rings)
  ) u_fetch (
    .clk_i,
    .rst_ni,
    .worker_i,
    .config_i,
    .req_valid_i    (Rings'({far_valid_i, db_valid_i})),
    .req_ready_o    (ring_ready),
    .req_i          (ring_req[Rings-1:0]),
    .mem_valid_o,
    .mem_ready_i,
    .mem_req_o,
    .mem_rsp_valid_i,
    .mem_rsp_i,
    .head_valid_o   (head_valid[Rings-1:0]),
    .head_next_i    (head_next[Rings-1:0]),
    .head_slot_o    (head_slot[Rings-1:0]),
    .head_o         (head[Rings-1:0]),
    .head_error_o   (head_error[Rings-1:0]),
    .image_place_i  (place_t'({s2_q.ring, s2_q.slot})),
    .image_word_i   (image_word),
    .image_o        (image),
    .look_place_i   (place_t'({s4_q.ring, s4_q.slot})),
    .look_o         (now),
    .look_result_o  (result),
    .free_i         (free[Rings-1:0])
  );

  assign db_ready_o  = ring_ready[0];
  assign far_ready_o = Rings == 2 && ring_ready[Rings-1];

  if (Rings == 1) begin : gen_no_ring
    logic unused_ring;
    assign unused_ring   = ^{far_valid_i, ring_req[1], head_next[1], free[1]};
    assign head_valid[1] = 1'b0;
    assign head_slot[1]  = '0;
    assign head[1]       = '0;
    assign head_error[1] = 1'b0;
  end

  // ---------------------------------------------------------------------------------------------------------------
  // Stage 0: which byte of which key
  // ---------------------------------------------------------------------------------------------------------------

  logic busy_q, ring_q, chosen, may_send, begins;
  logic [4:0] byte_q;
  logic [1:0] may_begin;
  logic [$clog2(RemoteDepth+1)-1:0] sends_q;
  logic [$clog2(OutDepth+1)-1:0] inside_q;
  key_head_t first;

  assign may_begin = (inside_q == ($clog2(OutDepth+1))'(OutDepth)) ? 2'b00 : {head_valid[1], head_valid[0] & may_send};
  // Who was not last goes first.
  assign chosen    = busy_q ? ring_q : (ring_q ? !may_begin[0] : may_begin[1]);
  assign s0_valid  = busy_q | (|may_begin);
  assign begins    = s0_valid & ~busy_q;
  assign first     = head[chosen];

  always_comb begin
    beat.ring   = chosen;
    beat.slot   = head_slot[chosen];
    beat.tab    = first.tab;
    beat.offset = first.offset;
    beat.at     = byte_q[2:0];
    beat.word   = byte_q[4:3];
    beat.error  = head_error[chosen];
    beat.direct = first.direct || beat.error;
    beat.wide   = first.wide;
    beat.done   = beat.direct || byte_q[2:0] == 3'd7;
    beat.last   = beat.direct || (byte_q[2:0] == 3'd7 && byte_q[4:3] == first.last);
  end

  assign head_next = (s0_valid && beat.last) ? (chosen ? 2'b10 : 2'b01) : 2'b00;

  // ---------------------------------------------------------------------------------------------------------------
  // Stage 1: where the byte lies
  // ---------------------------------------------------------------------------------------------------------------

  // The host writes only while nothing is under way.
  (* no_rw_check *) logic [63:0] map_q [256];
  logic [63:0] map_word_q;
  logic [7:0] entry;
  logic [4:0] partition_offset;
  logic [5:0] image_byte;

  always_ff @(posedge clk_i) begin
    if (config_i.valid && config_i.addr[15:8] == ConfigKey[15:8]) map_q[config_i.addr[7:0]] <= config_i.data;
    map_word_q <= map_q[{first.tab, byte_q[4:3]}];
  end

  lw_table_field #(
    .Field(2),
    .Low  (10),
    .Width(5)
  ) u_partition_offset (
    .clk_i,
    .config_i,
    .table_i(s1_q.tab),
    .data_o (partition_offset)
  );

  assign entry      = map_word_q[{s1_q.at, 3'b0}+:8];
  assign image_byte = {3'b0, s1_q.offset} + {1'b0, entry[4:0]};

  // ---------------------------------------------------------------------------------------------------------------
  // Stages 2 to 4: byte, word, hash and whose row it is
  // ---------------------------------------------------------------------------------------------------------------

  logic [2:0] s2_byte_q, s3_byte_q;
  logic s2_exists_q, s2_flip_q, s2_part_q, s3_exists_q, s3_flip_q, s3_part_q;
  logic [63:0] s4_word_q;
  logic [7:0] image_part;
  worker_t part_q, dest;
  logic here;
  logic [31:0] crc, crc_q;
  logic [KeyWords-1:0][63:0] key_q;
  logic [8:0] flags;
  logic unjudged;
  logic out_push, unused_out_ready;
  logic [$clog2(OutDepth+1)-1:0] unused_out_count;

  assign image_part = image[{s3_byte_q, 3'b0}+:8];

  lw_crc32c u_crc (
    .crc_i ((KeyWords == 1 || s4_q.word == '0) ? '1 : crc_q),
    .word_i(s4_word_q),
    .crc_o (crc)
  );

  // [1] replicated, [2] ordered, [4] partition by hash, [5] has home, [9:6] home
  lw_table_field #(
    .Field(2),
    .Low  (1),
    .Width(9)
  ) u_flags (
    .clk_i,
    .config_i,
    .table_i(s4_q.tab),
    .data_o (flags)
  );

  // [15] nobody writes what is read under this number
  lw_table_field #(
    .Field(2),
    .Low  (15),
    .Width(1)
  ) u_unjudged (
    .clk_i,
    .config_i,
    .table_i(s4_q.tab),
    .data_o (unjudged)
  );

  always_ff @(posedge clk_i) begin
    s1_q        <= beat;
    s2_q        <= s1_q;
    image_word  <= s1_q.direct ? 3'd0 : image_byte[5:3];
    s2_byte_q   <= image_byte[2:0];
    s2_exists_q <= entry[7];
    s2_flip_q   <= entry[5];
    s2_part_q   <= entry[7] && entry[4:0] == partition_offset;
    s3_q        <= s2_q;
    s3_byte_q   <= s2_byte_q;
    s3_exists_q <= s2_exists_q;
    s3_flip_q   <= s2_flip_q;
    s3_part_q   <= s2_part_q;
    s4_q        <= s3_q;
    if (s3_valid_q) begin
      s4_word_q <= s3_q.direct ? image ^ SignBit :
                   {s4_word_q[55:0], s3_exists_q ? image_part ^ {s3_flip_q, 7'b0} : 8'b0};
      if (s3_q.direct) begin
        part_q <= image[3:0];
      end else if (s3_part_q) begin
        part_q <= image_part[3:0];
      end
    end
    if (s4_valid_q && s4_q.done) begin
      crc_q <= crc;
      for (int unsigned w = 0; w < KeyWords; w++) begin
        if (s4_q.word == 2'(w)) key_q[w] <= s4_word_q;
      end
    end
  end

  always_comb begin
    if (flags[0] || s4_q.ring) begin
      dest = worker_i;
    end else if (flags[4]) begin
      dest = flags[8:5] & WorkerMask;
    end else if (flags[3]) begin
      dest = ~crc[27:24] & WorkerMask;
    end else begin
      dest = part_q & WorkerMask;
    end
    here              = (Rings == 1) || dest == worker_i;
    out_in.ring       = s4_q.ring;
    out_in.error      = s4_q.error;
    out_in.here       = here;
    out_in.dest       = dest;
    out_in.op         = now.op;
    out_in.tab        = now.tab;
    out_in.stamp      = now.stamp;
    out_in.ret        = now.ret;
    out_in.judged     = !flags[0] && !unjudged;
    out_in.tree       = flags[1];
    out_in.limit      = now.hash[15:0];
    out_in.source     = now.hash[21:16];
    out_in.result     = result;
    // With its key, or, as scans and keys of several words are sent on, without.
    out_in.as_it_came = here ? now.keyed : s4_q.wide || now.op == OpScan;
    out_in.hash       = out_in.as_it_came ? now.hash : ~crc;
    for (int unsigned w = 0; w < KeyWords; w++) begin
      out_in.key[w] = '0;
      if (s4_q.word == 2'(w)) out_in.key[w] = s4_word_q;
      if (s4_q.word > 2'(w)) out_in.key[w] = key_q[w];
    end
    if (out_in.as_it_came) out_in.key[0] = now.key;
  end

  assign out_push = s4_valid_q & s4_q.last;

  lw_fifo #(
    .Width($bits(out_t)),
    .Depth(OutDepth)
  ) u_out (
    .clk_i,
    .rst_ni,
    .valid_i(out_push),
    .ready_o(unused_out_ready),
    .data_i (out_in),
    .valid_o(out_valid),
    .ready_i(out_pop),
    .data_o (out),
    .count_o(unused_out_count)
  );

  // ---------------------------------------------------------------------------------------------------------------
  // Behind the queue: here, or away
  // ---------------------------------------------------------------------------------------------------------------

  request_t sent;
  logic remote_push, remote_pop, leaves, began, kept;

  assign failed_valid_o = out_valid & out.error;
  assign lookup_valid_o = out_valid & !out.error & out.here;
  assign remote_push    = out_valid & !out.error & !out.here;
  assign out_pop        = out.error ? failed_ready_i : (!out.here || lookup_ready_i);
  assign leaves         = out_valid & out_pop;
  // All of it is in the queue.
  assign free           = out_push ? (s4_q.ring ? 2'b10 : 2'b01) : 2'b00;

  always_comb begin
    failed_o        = '0;
    failed_o.ret    = out.ret;
    failed_o.op     = out.op;
    failed_o.answer = AnswerFailed;
    failed_o.owner  = worker_i;
    failed_o.value  = AddrWidth'(16'hFF13);
    lookup_o        = '0;
    lookup_o.op     = out.op;
    lookup_o.tab    = out.tab;
    lookup_o.stamp  = out.stamp;
    lookup_o.ret    = out.ret;
    lookup_o.judged = out.judged;
    lookup_o.tree   = out.tree;
    lookup_o.hash   = out.hash;
    lookup_o.limit  = out.limit;
    lookup_o.source = out.source;
    lookup_o.result = out.result;
    for (int unsigned w = 0; w < KeyWords; w++) lookup_o.key[w] = out.key[w];
    sent            = '0;
    sent.op         = out.op;
    sent.tab        = out.tab;
    sent.stamp      = out.stamp;
    sent.ret        = out.ret;
    sent.keyed      = !out.as_it_came;
    sent.key        = out.key[0];
    sent.hash       = out.hash;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      busy_q     <= 1'b0;
      ring_q     <= 1'b0;
      byte_q     <= '0;
      inside_q   <= '0;
      s1_valid_q <= 1'b0;
      s2_valid_q <= 1'b0;
      s3_valid_q <= 1'b0;
      s4_valid_q <= 1'b0;
    end else begin
      if (s0_valid) begin
        busy_q <= !beat.last;
        ring_q <= chosen;
        byte_q <= beat.last ? '0 : byte_q + 1'b1;
      end
      inside_q   <= inside_q + ($clog2(OutDepth+1))'(begins) - ($clog2(OutDepth+1))'(leaves);
      s1_valid_q <= s0_valid;
      s2_valid_q <= s1_valid_q;
      s3_valid_q <= s2_valid_q;
      s4_valid_q <= s3_valid_q;
    end
  end

  // Places in the queue to the fabric, counted from the moment an instruction of the softcore begins.
  assign began = begins && !chosen;
  assign kept  = leaves && !out.ring && !remote_push;

  if (Rings == 2) begin : gen_remote
    localparam int unsigned RemoteWidth = $bits(worker_t) + $bits(request_t);
    logic unused_ready;
    logic [$clog2(RemoteDepth+1)-1:0] unused_count;

    assign remote_pop = remote_valid_o & remote_ready_i;
    assign may_send   = sends_q != ($clog2(RemoteDepth+1))'(RemoteDepth);

    lw_fifo #(
      .Width(RemoteWidth),
      .Depth(RemoteDepth)
    ) u_remote (
      .clk_i,
      .rst_ni,
      .valid_i(remote_push),
      .ready_o(unused_ready),
      .data_i ({out.dest, sent}),
      .valid_o(remote_valid_o),
      .ready_i(remote_ready_i),
      .data_o ({remote_dest_o, remote_o}),
      .count_o(unused_count)
    );

    always_ff @(posedge clk_i or negedge rst_ni) begin
      if (!rst_ni) begin
        sends_q <= '0;
      end else begin
        sends_q <= sends_q + ($clog2(RemoteDepth+1))'(began) - ($clog2(RemoteDepth+1))'(kept) -
                   ($clog2(RemoteDepth+1))'(remote_pop);
      end
    end

`ifdef LW_ASSERT
    always_ff @(posedge clk_i) begin
      if (rst_ni) assert (!remote_push || unused_ready) else $error("lw_prepare: a request is lost");
    end
`endif
  end else begin : gen_alone
    assign remote_pop     = 1'b0;
    assign may_send       = 1'b1;
    assign sends_q        = '0;
    assign remote_valid_o = 1'b0;
    assign remote_dest_o  = '0;
    assign remote_o       = '0;
    logic unused_alone;
    assign unused_alone = ^{remote_ready_i, sent, began, kept, remote_pop, sends_q, remote_push};
  end

`ifdef LW_ASSERT
  always_ff @(posedge clk_i) begin
    if (rst_ni) assert (!out_push || unused_out_ready) else $error("lw_prepare: an instruction is lost");
  end
`endif

  assign unused_bits = ^{flags, entry[6], s4_q, s3_q, s2_q, s1_q, out, first.at_once};

endmodule
