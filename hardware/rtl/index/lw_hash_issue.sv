/// The memory side of the hash index: turns what a slot has to do next into requests, one a cycle.
///
/// Jobs come from the event side through a queue, or begin with a new instruction, which then gets its slot. Stage 0
/// has the job and reads the tables, stage 1 makes the words, stage 2 adds the address.
module lw_hash_issue #(
  /// Words of the widest key in normal form, 1 to 4.
  parameter int unsigned KeyWords = 4,
  /// Slots, at most 64.
  parameter int unsigned Inflight = 48,
  /// Bits of the number of answers that a job waits for.
  parameter int unsigned WantedWidth = 13,
  /// Bits of a slot's number; follows from `Inflight`.
  localparam int unsigned SlotWidth = $clog2(Inflight)
) (
  /// Clock.
  input  logic                              clk_i,
  /// Asynchronous reset: all jobs are lost.
  input  logic                              rst_ni,
  /// This worker.
  input  lw_pkg::worker_t                   worker_i,
  /// What the host writes.
  input  lw_pkg::config_t                   config_i,
  /// A job; taken in a cycle with `job_ready_o`.
  input  logic                              job_valid_i,
  /// From registers alone.
  output logic                              job_ready_o,
  /// Whose job; its row is readable from the next cycle on.
  input  logic [SlotWidth-1:0]              job_slot_i,
  /// Which job: of `job_e`.
  input  logic [2:0]                        job_i,
  /// Of which table.
  input  lw_pkg::table_t                    job_table_i,
  /// For a job HeadFetch: the hash of the key.
  input  lw_pkg::hash_t                     job_hash_i,
  /// The slot whose row is read, and whose key is read for the cycle after `key_next_o`.
  output logic [SlotWidth-1:0]              row_slot_o,
  /// Its row, in the same cycle.
  input  logic [39:6]                       row_i,
  /// The slot `row_slot_o` becomes the slot `key_slot_o`.
  output logic                              key_next_o,
  /// The slot whose old head is read.
  output logic [SlotWidth-1:0]              key_slot_o,
  /// Its key, from a register.
  input  logic [KeyWords-1:0][63:0]         key_i,
  /// What its bucket's head was.
  input  logic [39:6]                       head_i,
  /// How many answers the slot `key_slot_o` waits for from now on.
  output logic                              wanted_valid_o,
  /// How many, less one.
  output logic [WantedWidth-1:0]            wanted_o,
  /// A new row for the slot `key_slot_o`; stays until taken.
  output logic                              new_row_valid_o,
  /// It is taken.
  input  logic                              new_row_ready_i,
  /// The row.
  output logic [39:6]                       new_row_o,
  /// There is no room for a row for the slot `key_slot_o`; stays until taken.
  output logic                              no_room_valid_o,
  /// It is taken.
  input  logic                              no_room_ready_i,
  /// A memory request; stays until taken. All but its address is from registers, that is behind an adder.
  output logic                              mem_valid_o,
  /// It is taken.
  input  logic                              mem_ready_i,
  /// The request: tag is {slot, kind}, kind of `kind_e`.
  output lw_pkg::mem_req_t                  mem_req_o
);

  import lw_pkg::*;
  import lw_point_pkg::*;

  localparam int unsigned OffsetWidth = 37;
  localparam logic [63:0] SignBit = 64'h8000_0000_0000_0000;

  typedef enum logic [2:0] {
    PartBegin,
    PartWords,
    PartHead,
    PartImage,
    PartFlush,
    PartLive
  } part_e;

  // ---------------------------------------------------------------------------------------------------------------
  // Stage 0: what the tables say
  // ---------------------------------------------------------------------------------------------------------------

  typedef struct packed {
    logic [SlotWidth-1:0] slot;
    job_e                 job;
    table_t               tab;
    hash_t                hash;
  } job_t;

  job_t next_job, s0;
  logic s0_valid, s1_valid_q, s1_ready, s1_done;
  logic [1:0] unused_jobs;

  assign next_job   = '{slot: job_slot_i, job: job_e'(job_i), tab: job_table_i, hash: job_hash_i};
  assign row_slot_o = s0.slot;
  assign s1_ready   = !s1_valid_q || s1_done;
  assign key_next_o = s1_ready;

  // A queue, so that memory's ready ends here.
  lw_fifo #(
    .Width($bits(job_t)),
    .Depth(2)
  ) u_jobs (
    .clk_i,
    .rst_ni,
    .valid_i(job_valid_i),
    .ready_o(job_ready_o),
    .data_i (next_job),
    .valid_o(s0_valid),
    .ready_i(s1_ready),
    .data_o (s0),
    .count_o(unused_jobs)
  );

  logic [44:0] head_field;
  logic [31:6] row_field;
  logic [26:1] flags;
  hash_t mask;
  logic [35:0] first;

  lw_table_field #(.Field(0), .Low(0), .Width(45)) u_head (
    .clk_i, .config_i, .table_i(s0.tab), .data_o(head_field)
  );
  lw_table_field #(.Field(1), .Low(6), .Width(26)) u_row (
    .clk_i, .config_i, .table_i(s0.tab), .data_o(row_field)
  );
  lw_table_field #(.Field(2), .Low(1), .Width(26)) u_flags (
    .clk_i, .config_i, .table_i(s0.tab), .data_o(flags)
  );

  // Words of a table's values: from that in which they begin to the end of the row.
  (* ram_style = "distributed" *) logic [12:0] zeros_q [2**TableWidth];
  logic [13:0] row_end;

  assign row_end = {1'b0, config_i.data[47:35]} + 14'(|config_i.data[34:32]);

  always_ff @(posedge clk_i) begin
    if (config_i.valid && config_i.addr[15:9] == ConfigTable[15:9] && config_i.addr[2:0] == 3'd1) begin
      zeros_q[config_i.addr[8:3]] <= (row_end > {1'b0, config_i.data[31:19]}) ?
                                     row_end[12:0] - config_i.data[31:19] : '0;
    end
  end

  for (genvar i = 0; i < int'(HashWidth) - 1; i++) begin : gen_mask
    assign mask[i] = head_field[44:40] > 5'(i);
  end
  assign mask[HashWidth-1] = 1'b0;

  // The heads of all workers follow each other; replicated tables have only those of worker 0.
  assign first = flags[1] ? '0 : 36'(worker_i) << head_field[44:40];

  // Free rows. An install has taken its row long before the next job looks for one.
  (* ram_style = "distributed" *) logic [39:6] next_q [2**TableWidth];
  (* ram_style = "distributed" *) logic [39:6] end_q [2**TableWidth];
  logic [39:6] next, after;
  logic config_rows, allocate;

  table_t s1_table_q;
  logic [SlotWidth-1:0] s1_slot_q;
  job_e s1_job_q;
  // Base of the job's addresses: the heads, the row, or the new row.
  logic [39:3] s1_base_q;
  logic [35:0] s1_index_q;
  logic [2:0] s1_words_q;
  logic [1:0] s1_image_last_q;
  logic s1_single_q, s1_full_q;
  logic [15:6] s1_stride_q;
  logic [12:0] s1_values_q, s1_zeros_q;
  logic [2:0] s1_values_byte_q;

  assign config_rows = config_i.valid && config_i.addr[15:11] == ConfigRows[15:11] && config_i.addr[4:1] == worker_i;
  assign next        = next_q[s0.tab];
  assign after       = s1_base_q[39:6] + 34'(s1_stride_q);

  always_ff @(posedge clk_i) begin
    if (config_rows && !config_i.addr[0]) begin
      next_q[config_i.addr[10:5]] <= config_i.data[39:6];
    end else if (allocate) begin
      next_q[s1_table_q] <= after;
    end
    if (config_rows && config_i.addr[0]) end_q[config_i.addr[10:5]] <= config_i.data[39:6];
  end

  always_ff @(posedge clk_i) begin
    if (s1_ready) begin
      s1_slot_q        <= s0.slot;
      s1_job_q         <= s0.job;
      s1_table_q       <= s0.tab;
      s1_index_q       <= {4'b0, (s0.hash & mask)} | first;
      s1_words_q       <= flags[26:24];
      s1_image_last_q  <= flags[20:19];
      s1_single_q      <= flags[3];
      s1_full_q        <= next == end_q[s0.tab];
      s1_stride_q      <= row_field[15:6];
      s1_values_q      <= row_field[31:19];
      s1_values_byte_q <= row_field[18:16];
      s1_zeros_q       <= zeros_q[s0.tab];
      unique case (s0.job)
        JobHeadFetch: s1_base_q <= head_field[39:3];
        JobInstall:   s1_base_q <= {next, 3'b0};
        default:      s1_base_q <= {row_i, 3'b0};
      endcase
    end
  end

  // ---------------------------------------------------------------------------------------------------------------
  // Stage 1: the words of a job
  // ---------------------------------------------------------------------------------------------------------------

  part_e part_q, part;
  logic [12:0] step_q, step;
  (* ram_style = "distributed" *) logic fresh_q [Inflight];
  (* ram_style = "distributed" *) logic [39:3] buckets_q [Inflight];
  logic s2_valid_q, s2_ready, out_valid, out_write, out_save, s2_write_q, s2_save_q;
  logic [39:3] out_base, s2_base_q;
  logic signed [OffsetWidth-1:0] out_offset, s2_offset_q;
  logic [63:0] out_data, other_data, s2_data_q, key_word;
  logic [7:0] out_strobe, s2_strobe_q;
  logic [2:0] out_kind, s2_kind_q;
  logic [SlotWidth-1:0] s2_slot_q;
  logic signed [OffsetWidth-1:0] word_offset;
  logic words_done;
  logic [2:0] key_index;

  // Where the data of a write come from.
  typedef enum logic [2:0] {
    FromKey,
    FromImage,  // the key as an integer
    FromRow,    // the row's address
    FromHead,   // the old head
    FromWord,   // the old head, in a live row
    FromMade,
    FromLive,
    FromZero
  } from_e;
  from_e from;

  // The byte of the key that goes into the image, what the map says of it, and the word of the image that is being
  // made. The map's word of the next byte is read ahead.
  (* no_rw_check *) logic [63:0] map_q [256];
  logic [63:0] map_word_q;
  logic [4:0] byte_q, byte_ahead, byte_read;
  logic [7:0] entry_q, image_byte;
  logic [63:0] made_q, byte_key_word;
  logic [7:0] made_strobe_q;
  logic [1:0] made_at_q;
  logic image_begun, byte_take, made_clear, byte_last;

  assign key_slot_o = s1_slot_q;
  assign key_index  = step_q[2:0];
  assign words_done = key_index == s1_words_q;
  // Key words at +1, -1, -2, -3, then the row's own word at 0.
  assign word_offset = words_done ? '0 :
                       ((key_index == '0) ? OffsetWidth'(1) : -OffsetWidth'({1'b0, key_index}));

  always_comb begin
    key_word      = '0;
    byte_key_word = '0;
    for (int unsigned w = 0; w < KeyWords; w++) begin
      if (key_index == 3'(w)) key_word = key_i[w];
      if (byte_q[4:3] == 2'(w)) byte_key_word = key_i[w];
    end
  end

  assign image_begun = part_q == PartImage;
  assign byte_ahead  = image_begun ? byte_q + 1'b1 : '0;
  assign byte_read   = byte_take ? byte_q + 5'd2 : byte_ahead;
  assign image_byte  = byte_key_word[{~byte_q[2:0], 3'b0}+:8] ^ {entry_q[5], 7'b0};
  assign byte_last   = byte_q[2:0] == 3'd7 && {1'b0, byte_q[4:3]} + 3'd1 == s1_words_q;

  always_comb begin
    part           = part_q;
    step           = step_q;
    s1_done        = 1'b0;
    out_valid      = 1'b0;
    out_write      = 1'b1;
    out_save       = 1'b0;
    out_base       = s1_base_q;
    out_offset     = '0;
    from           = FromZero;
    out_strobe     = '1;
    out_kind       = KindWrites;
    wanted_valid_o = 1'b0;
    wanted_o       = '0;
    new_row_valid_o = 1'b0;
    no_room_valid_o = 1'b0;
    allocate       = 1'b0;
    byte_take      = 1'b0;
    made_clear     = 1'b0;

    if (s1_valid_q) begin
      unique case (part_q)
        PartBegin: unique case (s1_job_q)
          // HeadFetch
          JobHeadFetch: begin
            out_valid  = 1'b1;
            out_write  = 1'b0;
            out_save   = 1'b1;
            out_offset = OffsetWidth'(s1_index_q);
            out_kind   = KindHead;
            s1_done    = s2_ready;
          end
          // KeyComp and Traverse
          JobRow: begin
            out_valid      = 1'b1;
            out_write      = 1'b0;
            out_offset     = word_offset;
            out_kind       = words_done ? KindRow : KindKey | {1'b0, step_q[1:0]};
            wanted_valid_o = step_q == '0;
            wanted_o       = WantedWidth'(s1_words_q);
            if (s2_ready) begin
              step    = words_done ? '0 : step_q + 1'b1;
              s1_done = words_done;
            end
          end
          // Install
          JobInstall: begin
            // The first word of the key goes out in the cycle in which the row is taken.
            new_row_valid_o = !s1_full_q && s2_ready;
            no_room_valid_o = s1_full_q;
            wanted_valid_o  = 1'b1;
            wanted_o        = WantedWidth'(s1_words_q) + WantedWidth'(s1_image_last_q) + WantedWidth'(2);
            made_clear      = 1'b1;
            out_offset      = OffsetWidth'(1);
            from            = FromKey;
            if (new_row_valid_o && new_row_ready_i) begin
              out_valid = 1'b1;
              allocate  = 1'b1;
              step      = 13'd1;
              part      = PartWords;
            end
            if (no_room_valid_o && no_room_ready_i) s1_done = 1'b1;
          end
          JobZero: begin
            out_valid      = s1_zeros_q != '0;
            out_offset     = OffsetWidth'(s1_values_q) + OffsetWidth'(step_q);
            out_strobe     = (step_q == '0) ? 8'hFF << s1_values_byte_q : '1;
            wanted_valid_o = step_q == '0;
            wanted_o       = s1_zeros_q;
            if (!out_valid) begin
              part = PartLive;
            end else if (s2_ready) begin
              step = step_q + 1'b1;
              if (step == s1_zeros_q) part = PartLive;
            end
          end
          // What an install did is taken back: the old head, or the row absent.
          default: begin
            out_valid  = 1'b1;
            out_kind   = KindUndo;
            out_base   = fresh_q[s1_slot_q] ? buckets_q[s1_slot_q] : s1_base_q;
            out_strobe = fresh_q[s1_slot_q] ? 8'hFF : 8'h80;
            from       = fresh_q[s1_slot_q] ? FromHead : FromZero;
            s1_done    = s2_ready;
          end
        endcase
        PartWords: begin
          out_valid  = 1'b1;
          out_offset = word_offset;
          from       = words_done ? FromWord : FromKey;
          if (s2_ready) begin
            step = words_done ? '0 : step_q + 1'b1;
            if (words_done) part = PartHead;
          end
        end
        // Nobody else is at this chain until the transaction ends, so the head need not wait for the row.
        PartHead: begin
          out_valid = 1'b1;
          out_base  = buckets_q[s1_slot_q];
          from      = FromRow;
          if (s2_ready) part = PartImage;
        end
        PartImage: begin
          if (s1_single_q) begin
            out_valid  = 1'b1;
            out_offset = OffsetWidth'(2);
            from       = FromImage;
            s1_done    = s2_ready;
          end else begin
            // A byte of another word: the one that was being made goes out.
            out_valid  = entry_q[7] && entry_q[4:3] != made_at_q && made_strobe_q != '0;
            out_offset = OffsetWidth'(made_at_q) + OffsetWidth'(2);
            from       = FromMade;
            out_strobe = made_strobe_q;
            byte_take  = !out_valid || s2_ready;
            if (byte_take && byte_last) part = PartFlush;
          end
        end
        PartFlush: begin
          out_valid  = 1'b1;
          out_offset = OffsetWidth'(made_at_q) + OffsetWidth'(2);
          from       = FromMade;
          out_strobe = made_strobe_q;
          s1_done    = s2_ready;
        end
        default: begin
          out_valid  = 1'b1;
          out_strobe = 8'h80;
          from       = FromLive;
          s1_done    = s2_ready;
        end
      endcase
      if (s1_done) begin
        part = PartBegin;
        step = '0;
      end
    end
  end

  // The key comes late: out of a block RAM.
  assign out_data = (from == FromKey) ? key_word : ((from == FromImage) ? key_word ^ SignBit : other_data);

  always_comb begin
    unique case (from)
      FromRow:   other_data = {24'b0, s1_base_q[39:6], 6'b0};
      FromHead:  other_data = {24'b0, head_i, 6'b0};
      FromWord:  other_data = {8'h01, 16'h0, head_i, 6'b0};
      FromMade:  other_data = made_q;
      FromLive:  other_data = {8'h01, 56'b0};
      default:   other_data = '0;
    endcase
  end

  assign new_row_o = s1_base_q[39:6];

  always_ff @(posedge clk_i) begin
    if (config_i.valid && config_i.addr[15:8] == ConfigKey[15:8]) map_q[config_i.addr[7:0]] <= config_i.data;
    map_word_q <= map_q[{s1_table_q, byte_read[4:3]}];
    if (!image_begun || byte_take) begin
      entry_q <= map_word_q[{byte_ahead[2:0], 3'b0}+:8];
      byte_q  <= byte_ahead;
    end
    if (wanted_valid_o) fresh_q[s1_slot_q] <= s1_job_q == JobInstall;
    if (made_clear) begin
      made_strobe_q <= '0;
      made_at_q     <= '0;
    end else if (byte_take && entry_q[7]) begin
      made_at_q <= entry_q[4:3];
      for (int unsigned b = 0; b < 8; b++) begin
        if (entry_q[2:0] == 3'(b)) begin
          made_q[8*b+:8]   <= image_byte;
          made_strobe_q[b] <= 1'b1;
        end else if (out_valid) begin
          made_strobe_q[b] <= 1'b0;
        end
      end
    end
  end

  // ---------------------------------------------------------------------------------------------------------------
  // Stage 2: the address
  // ---------------------------------------------------------------------------------------------------------------

  logic [39:3] sum;

  assign s2_ready    = !s2_valid_q || mem_ready_i;
  assign sum         = s2_base_q + s2_offset_q;
  assign mem_valid_o = s2_valid_q;
  assign mem_req_o   = '{write: s2_write_q, addr: sum, data: s2_data_q, strobe: s2_strobe_q,
                         tag: TagWidth'({s2_slot_q, s2_kind_q})};

  always_ff @(posedge clk_i) begin
    if (s2_ready) begin
      s2_write_q  <= out_write;
      s2_save_q   <= out_save;
      s2_base_q   <= out_base;
      s2_offset_q <= out_offset;
      s2_data_q   <= out_data;
      s2_strobe_q <= out_strobe;
      s2_kind_q   <= out_kind;
      s2_slot_q   <= s1_slot_q;
    end
    if (s2_valid_q && s2_save_q) buckets_q[s2_slot_q] <= sum;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      s1_valid_q <= 1'b0;
      s2_valid_q <= 1'b0;
      part_q     <= PartBegin;
      step_q     <= '0;
    end else begin
      if (s1_ready) s1_valid_q <= s0_valid;
      if (s2_ready) s2_valid_q <= out_valid;
      part_q <= part;
      step_q <= step;
    end
  end

  logic unused_bits;
  assign unused_bits = ^{config_i, head_field[2:0], flags, entry_q[6], row_end, s2_offset_q, byte_read};

`ifdef LW_ASSERT
  always_ff @(posedge clk_i) begin
    if (rst_ni) assert (!(config_rows && allocate)) else $error("lw_hash_issue: a row is taken while rows are given");
  end
`endif

endmodule
