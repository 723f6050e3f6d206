/// KeyFetch and Hash: from a DB instruction to a key in normal form, its hash and the worker that has its row.
///
/// Instructions leave in the order in which they came, those of the own softcore and those of the fabric each for
/// themselves, so what one transaction asks of one worker arrives there in program order. Nothing from the fabric ever
/// waits for a request to be sent: an instruction of the softcore begins only when the queue to the fabric has room.
///
/// An aligned key of one integer takes one cycle, others one cycle a byte of the normal form. Stages: 0 chooses a byte,
/// 1 has the key map's entry for it, 2 reads the word of the image, 3 takes the byte, 4 hashes a word, 5 routes.
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
  /// From registers alone.
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
  /// The read; the upper bit of 9 in its tag says which ring.
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

  localparam int unsigned Rings = (Workers > 1) ? 2 : 1;
  localparam int unsigned SlotWidth = $clog2(Slots);
  localparam int unsigned RemoteDepth = 8;
  localparam worker_t WorkerMask = worker_t'(Workers - 1);
  localparam logic [63:0] SignBit = 64'h8000_0000_0000_0000;

  typedef logic [SlotWidth-1:0] slot_t;

  // A beat: a byte of a key, or a key that is there at once.
  typedef struct packed {
    logic       ring;    // 0: of the softcore
    slot_t      slot;
    table_t     tab;
    logic [2:0] offset;  // of the image in its first word
    logic [2:0] at;      // byte of the word of the normal form
    logic [1:0] word;
    logic       direct;  // the whole word
    logic       keyed;
    logic       skip;
    logic       error;
    logic       wide;    // more than one word
    logic       done;    // the word is complete
    logic       last;    // the key, too
  } beat_t;

  // ---------------------------------------------------------------------------------------------------------------
  // The rings
  // ---------------------------------------------------------------------------------------------------------------

  request_t [1:0] ring_req, look;
  logic [1:0] ring_valid, ring_ready, ring_mem_valid, ring_mem_ready, head_valid, head_next;
  mem_req_t [1:0] ring_mem_req;
  slot_t [1:0] head_slot;
  table_t [1:0] head_table;
  logic [1:0][2:0] head_offset;
  logic [1:0] head_keyed, head_skip, head_error;
  logic [1:0][63:0] image, ring_key;
  logic [1:0] free;
  beat_t beat, s1_q, s2_q, s3_q, s4_q, s5_q;
  logic s0_valid, s1_valid_q, s2_valid_q, s3_valid_q, s4_valid_q, s5_valid_q;
  logic go;
  logic [2:0] s2_image_word_q;
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

  assign ring_valid  = {far_valid_i, db_valid_i};
  assign db_ready_o  = ring_ready[0];
  assign far_ready_o = ring_ready[1];

  for (genvar r = 0; r < 2; r++) begin : gen_ring
    if (r < int'(Rings)) begin : gen_fetch
      lw_key_fetch #(
        .Slots(Slots),
        .Local(r == 0)
      ) u_fetch (
        .clk_i,
        .rst_ni,
        .worker_i,
        .config_i,
        .req_valid_i    (ring_valid[r]),
        .req_ready_o    (ring_ready[r]),
        .req_i          (ring_req[r]),
        .mem_valid_o    (ring_mem_valid[r]),
        .mem_ready_i    (ring_mem_ready[r]),
        .mem_req_o      (ring_mem_req[r]),
        .mem_rsp_valid_i(mem_rsp_valid_i && mem_rsp_i.tag[8] == 1'(r)),
        .mem_rsp_i,
        .head_valid_o   (head_valid[r]),
        .head_next_i    (head_next[r]),
        .head_slot_o    (head_slot[r]),
        .head_table_o   (head_table[r]),
        .head_offset_o  (head_offset[r]),
        .head_keyed_o   (head_keyed[r]),
        .head_skip_o    (head_skip[r]),
        .head_error_o   (head_error[r]),
        .image_read_i   (go),
        .image_slot_i   (s2_q.slot),
        .image_word_i   (s2_image_word_q),
        .image_o        (image[r]),
        .look_slot_i    (s5_q.slot),
        .look_o         (look[r]),
        .key_slot_i     (s3_q.slot),
        .key_o          (ring_key[r]),
        .free_i         (free[r])
      );
    end else begin : gen_none
      assign ring_ready[r]     = 1'b0;
      assign ring_mem_valid[r] = 1'b0;
      assign ring_mem_req[r]   = '0;
      assign head_valid[r]     = 1'b0;
      assign head_slot[r]      = '0;
      assign head_table[r]     = '0;
      assign head_offset[r]    = '0;
      assign head_keyed[r]     = 1'b0;
      assign head_skip[r]      = 1'b0;
      assign head_error[r]     = 1'b0;
      assign image[r]          = '0;
      assign look[r]           = '0;
      assign ring_key[r]       = '0;
      logic unused_ring;
      assign unused_ring = ^{ring_valid[r], ring_req[r], ring_mem_valid[r], ring_mem_req[r], ring_mem_ready[r],
                              head_next[r], free[r]};
    end
  end

  if (Rings == 2) begin : gen_mem_arbiter
    localparam int unsigned MemWidth = $bits(mem_req_t);
    mem_req_t [1:0] marked;

    always_comb begin
      marked            = ring_mem_req;
      marked[1].tag[8]  = 1'b1;
    end

    lw_arbiter #(
      .Inputs(2),
      .Width (MemWidth)
    ) u_mem (
      .clk_i,
      .rst_ni,
      .valid_i(ring_mem_valid),
      .ready_o(ring_mem_ready),
      .data_i (marked),
      .valid_o(mem_valid_o),
      .ready_i(mem_ready_i),
      .data_o (mem_req_o)
    );
  end else begin : gen_mem
    assign mem_valid_o    = ring_mem_valid[0];
    assign mem_req_o      = ring_mem_req[0];
    assign ring_mem_ready = {1'b0, mem_ready_i};
  end

  // ---------------------------------------------------------------------------------------------------------------
  // Stage 0: which byte of which key
  // ---------------------------------------------------------------------------------------------------------------

  logic busy_q, ring_q, chosen, may_send;
  logic [4:0] byte_q;
  table_t begin_table;
  logic [2:0] begin_words;
  logic begin_single;
  logic [3:0] begin_flags;
  logic [1:0] may_begin;
  logic [$clog2(RemoteDepth+1)-1:0] sends_q;

  assign may_begin[0] = head_valid[0] & may_send;
  assign may_begin[1] = head_valid[1];
  // Who was not last goes first.
  assign chosen       = busy_q ? ring_q : (ring_q ? !may_begin[0] : may_begin[1]);
  assign s0_valid     = busy_q | (|may_begin);
  assign begin_table  = head_table[chosen];

  lw_table_field #(
    .Field(2),
    .Low  (3),
    .Width(1)
  ) u_single (
    .clk_i,
    .config_i,
    .table_i(begin_table),
    .data_o (begin_single)
  );

  lw_table_field #(
    .Field(2),
    .Low  (24),
    .Width(3)
  ) u_words (
    .clk_i,
    .config_i,
    .table_i(begin_table),
    .data_o (begin_words)
  );

  assign begin_flags = {begin_single && head_offset[chosen] == '0, head_keyed[chosen], head_skip[chosen],
                        head_error[chosen]};

  always_comb begin
    beat.ring   = chosen;
    beat.slot   = head_slot[chosen];
    beat.tab    = begin_table;
    beat.offset = head_offset[chosen];
    beat.at     = byte_q[2:0];
    beat.word   = byte_q[4:3];
    beat.direct = |begin_flags;
    beat.keyed  = head_keyed[chosen];
    beat.skip   = head_skip[chosen];
    beat.error  = head_error[chosen];
    beat.wide   = begin_words > 3'd1;
    beat.done   = beat.direct || byte_q[2:0] == 3'd7;
    beat.last   = beat.direct || (byte_q[2:0] == 3'd7 && {1'b0, byte_q[4:3]} + 3'd1 == begin_words);
  end

  assign head_next = (go && s0_valid && beat.last) ? (chosen ? 2'b10 : 2'b01) : 2'b00;

  // ---------------------------------------------------------------------------------------------------------------
  // Stage 1: where the byte lies
  // ---------------------------------------------------------------------------------------------------------------

  logic [63:0] map_q [256];
  logic [63:0] map_word_q;
  logic [7:0] entry;
  logic [4:0] partition_offset;
  logic [5:0] image_byte;

  always_ff @(posedge clk_i) begin
    if (config_i.valid && config_i.addr[15:8] == ConfigKey[15:8]) map_q[config_i.addr[7:0]] <= config_i.data;
    if (go) map_word_q <= map_q[{begin_table, byte_q[4:3]}];
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
  // Stages 2 to 4: byte, word, hash
  // ---------------------------------------------------------------------------------------------------------------

  logic [2:0] s2_byte_q, s3_byte_q;
  logic s2_exists_q, s2_flip_q, s2_part_q, s3_exists_q, s3_flip_q, s3_part_q;
  logic [63:0] image_word, s4_word_q;
  logic [7:0] image_part;
  worker_t part_q, s5_part_q;
  logic [31:0] crc, crc_q;
  logic [KeyWords-1:0][63:0] key_q;
  logic [8:0] flags;
  logic unjudged;
  logic s5_replicated_q, s5_unjudged_q, s5_tree_q, s5_by_hash_q, s5_has_home_q;
  worker_t s5_home_q;

  assign image_word = image[s3_q.ring];
  assign image_part = image_word[{s3_byte_q, 3'b0}+:8];

  lw_crc32c u_crc (
    .crc_i ((s4_q.word == '0) ? '1 : crc_q),
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
    if (go) begin
      s1_q            <= beat;
      s2_q            <= s1_q;
      s2_image_word_q <= s1_q.direct ? 3'd0 : image_byte[5:3];
      s2_byte_q       <= image_byte[2:0];
      s2_exists_q     <= entry[7];
      s2_flip_q       <= entry[5];
      s2_part_q       <= entry[7] && entry[4:0] == partition_offset;
      s3_q            <= s2_q;
      s3_byte_q       <= s2_byte_q;
      s3_exists_q     <= s2_exists_q;
      s3_flip_q       <= s2_flip_q;
      s3_part_q       <= s2_part_q;
      s4_q            <= s3_q;
      s5_q            <= s4_q;
      if (s3_valid_q) begin
        if (s3_q.keyed) begin
          s4_word_q <= ring_key[s3_q.ring];
        end else if (s3_q.direct) begin
          s4_word_q <= image_word ^ SignBit;
        end else begin
          s4_word_q <= {s4_word_q[55:0], s3_exists_q ? image_part ^ {s3_flip_q, 7'b0} : 8'b0};
        end
        if (s3_q.direct) begin
          part_q <= image_word[3:0];
        end else if (s3_part_q) begin
          part_q <= image_part[3:0];
        end
      end
      if (s4_valid_q && s4_q.done) begin
        crc_q <= crc;
        for (int unsigned w = 0; w < KeyWords; w++) begin
          if (s4_q.word == 2'(w)) begin
            key_q[w] <= s4_word_q;
          end else if (s4_q.word == '0) begin
            key_q[w] <= '0;
          end
        end
      end
      s5_part_q       <= part_q;
      s5_replicated_q <= flags[0];
      s5_unjudged_q   <= unjudged;
      s5_tree_q       <= flags[1];
      s5_by_hash_q    <= flags[3];
      s5_has_home_q   <= flags[4];
      s5_home_q       <= flags[8:5];
    end
  end

  // ---------------------------------------------------------------------------------------------------------------
  // Stage 5: whose row it is
  // ---------------------------------------------------------------------------------------------------------------

  request_t now, sent;
  worker_t dest;
  hash_t hash;
  logic here, remote_push, remote_pop, leaves, began, kept;

  assign now  = look[s5_q.ring];
  assign hash = ~crc_q;

  always_comb begin
    if (s5_replicated_q || s5_q.ring) begin
      dest = worker_i;
    end else if (s5_has_home_q) begin
      dest = s5_home_q & WorkerMask;
    end else if (s5_by_hash_q) begin
      dest = hash[27:24] & WorkerMask;
    end else begin
      dest = s5_part_q & WorkerMask;
    end
  end

  assign here           = (Rings == 1) || dest == worker_i;
  assign failed_valid_o = s5_valid_q & s5_q.error;
  assign lookup_valid_o = s5_valid_q & !s5_q.error & here;
  assign remote_push    = s5_valid_q & !s5_q.error & !here;
  assign leaves         = s5_valid_q & go;
  assign free           = leaves ? (s5_q.ring ? 2'b10 : 2'b01) : 2'b00;
  assign go             = !s5_valid_q || (s5_q.error ? failed_ready_i : (!here || lookup_ready_i));

  always_comb begin
    failed_o         = '0;
    failed_o.ret     = now.ret;
    failed_o.op      = now.op;
    failed_o.answer  = AnswerFailed;
    failed_o.owner   = worker_i;
    failed_o.value   = AddrWidth'(16'hFF13);
    lookup_o         = '0;
    lookup_o.op      = now.op;
    lookup_o.tab     = now.tab;
    lookup_o.stamp   = now.stamp;
    lookup_o.ret     = now.ret;
    lookup_o.judged  = !s5_replicated_q && !s5_unjudged_q;
    lookup_o.tree    = s5_tree_q;
    lookup_o.hash    = hash;
    lookup_o.limit   = now.hash[15:0];
    lookup_o.source  = now.hash[21:16];
    lookup_o.result  = now.key[AddrWidth-1:0] + {{(AddrWidth - 24) {now.key[63]}}, now.key[63:40]};
    for (int unsigned w = 0; w < KeyWords; w++) lookup_o.key[w] = key_q[w];
    sent = now;
    if (!s5_q.wide && now.op != OpScan) begin
      sent.keyed = 1'b1;
      sent.key   = key_q[0];
      sent.hash  = hash;
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      busy_q     <= 1'b0;
      ring_q     <= 1'b0;
      byte_q     <= '0;
      s1_valid_q <= 1'b0;
      s2_valid_q <= 1'b0;
      s3_valid_q <= 1'b0;
      s4_valid_q <= 1'b0;
      s5_valid_q <= 1'b0;
    end else if (go) begin
      if (s0_valid) begin
        busy_q <= !beat.last;
        ring_q <= chosen;
        byte_q <= beat.last ? '0 : byte_q + 1'b1;
      end
      s1_valid_q <= s0_valid;
      s2_valid_q <= s1_valid_q;
      s3_valid_q <= s2_valid_q;
      s4_valid_q <= s3_valid_q;
      s5_valid_q <= s4_valid_q & s4_q.last;
    end
  end

  // Places in the queue to the fabric, counted from the moment an instruction of the softcore begins.
  assign began = go && s0_valid && !busy_q && !chosen;
  assign kept  = leaves && !s5_q.ring && !remote_push;

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
      .data_i ({dest, sent}),
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

  assign unused_bits = ^{flags, entry[6], s5_q, s4_q, s3_q, s2_q, s1_q};

endmodule
