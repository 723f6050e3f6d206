// A scanner: walks level 0, asks for read grants, and copies rows, one scan at a time.
//
// Three parts, with a few rows between them: the walk reads the next row's link and key (one latency a row, which is
// what a scan costs); in order, each row's hash is computed and its grant asked for, never for more rows than may be
// wanted; rows granted are read (header again: only now liveness counts) with all their words under way at once, and
// written in order. A row's grant is given back when its words have come.

module lw_skiplist_scan
  import lw_pkg::*;
  import lw_skiplist_pkg::*;
#(
    /// Which scanner; its memory tags are {1, number, sequence}.
    parameter int unsigned Number = 0,
    /// Slots of requests.
    parameter int unsigned Slots = 16,
    /// Words of a key, 1 to 4.
    parameter int unsigned KeyWords = 1,
    /// Cycles until a grant that had to wait is asked for again.
    parameter int unsigned Patience = 16,
    localparam int unsigned SlotWidth = $clog2(Slots)
) (
    input  logic                 clk_i,
    input  logic                 rst_ni,

    /// A scan, from `start_node_i` on; 0: there are no rows. Taken with valid and ready.
    input  logic                 start_valid_i,
    output logic                 start_ready_o,
    input  logic [SlotWidth-1:0] start_slot_i,
    input  node_t                start_node_i,
    input  table_t               start_table_i,
    input  stamp_t               start_stamp_i,
    input  logic [2:0]           start_words_i,
    /// Rows of this table are not judged.
    input  logic                 start_free_i,
    input  span_t                start_span_i,
    /// What is copied of each row, all in bytes: offset, count, from one to the next.
    input  logic [15:0]          start_offset_i,
    input  logic [15:0]          start_bytes_i,
    input  logic [15:0]          start_stride_i,

    /// Somebody waits for a scanner or a slot. A scan that waits for a grant then gives way and is a conflict: the
    /// transaction that it waits for may be the one that waits for it.
    input  logic                 press_i,

    /// Asks for a read grant. Stays until ready; answered once, later.
    output logic                 grant_valid_o,
    input  logic                 grant_ready_i,
    output stamp_t               grant_stamp_o,
    output hash_t                grant_hash_o,
    output table_t               grant_table_o,
    input  logic                 grant_valid_i,
    input  grant_e               grant_i,
    input  entry_t               grant_entry_i,

    /// Lets a read grant go. Stays until ready.
    output logic                 release_valid_o,
    input  logic                 release_ready_i,
    output stamp_t               release_stamp_o,
    output entry_t               release_entry_o,

    /// Requests; valid does not wait for ready.
    output logic                 mem_valid_o,
    input  logic                 mem_ready_i,
    output mem_req_t             mem_req_o,
    /// Answers to this scanner.
    input  logic                 mem_valid_i,
    input  mem_rsp_t             mem_rsp_i,

    /// The scan has ended. Stays until ready.
    output logic                 end_valid_o,
    input  logic                 end_ready_i,
    output logic [SlotWidth-1:0] end_slot_o,
    output ending_t              end_o,
    /// The range ends with this key; else with the table.
    output logic                 end_known_o,
    output logic [63:0]          end_key_o
);

  // Sequence numbers of tags: 0 to 31 are words of rows in order, 32 writes, 40 links, 48 + w key words.
  localparam int unsigned WriteTag = 32;
  localparam int unsigned LinkTag = 40;
  localparam int unsigned KeyTag = 48;
  localparam int unsigned Ahead = 4;
  localparam int unsigned ByteWidth = $clog2(KeyWords * 8);

  // The scan.
  logic                 busy_q;
  logic [SlotWidth-1:0] slot_q;
  table_t               table_q;
  stamp_t               stamp_q;
  logic [2:0]           words_q;
  logic                 free_q;
  logic [15:0]          offset_q, bytes_q, stride_q, limit_q;
  logic                 conflict_q, failed_q, stop;
  logic [5:0]           rsp_tag;
  logic                 unused_tag;
  logic                 start;

  assign start_ready_o = !busy_q;
  assign start         = start_valid_i && !busy_q;
  assign stop          = conflict_q || failed_q;
  assign rsp_tag       = mem_rsp_i.tag[5:0];

  always_ff @(posedge clk_i) begin
    if (start) begin
      slot_q   <= start_slot_i;
      table_q  <= start_table_i;
      stamp_q  <= start_stamp_i;
      words_q  <= start_words_i;
      free_q   <= start_free_i;
      offset_q <= start_offset_i;
      bytes_q  <= start_bytes_i;
      stride_q <= start_stride_i;
      limit_q  <= start_span_i.limit;
    end
  end

  // The walk.
  logic                       walk_end_q;    // no more rows
  node_t                      walk_node_q;
  logic [2:0]                 walk_ask_q;    // words still to be asked for: link last
  logic [2:0]                 walk_word;     // of the key; negative for the link
  logic [2:0]                 walk_left_q;   // words still to come
  node_t                      walk_next_q;
  logic [KeyWords-1:0][63:0]  walk_key_q;
  logic                       walk_whole, walk_push, walk_sent;
  logic                       full;

  typedef struct packed {
    node_t                     node;
    logic [KeyWords-1:0][63:0] key;
  } found_t;

  found_t     found_mem[Ahead];
  found_t     found;
  logic [1:0] found_head_q, found_tail_q;
  logic [2:0] found_count_q;
  logic       found_pop;

  assign full       = found_count_q == 3'(Ahead);
  assign walk_whole = busy_q && !walk_end_q && (walk_ask_q == '0) && (walk_left_q == '0);
  assign walk_push  = walk_whole && !full && !stop;
  assign found      = found_mem[found_head_q];

  always_ff @(posedge clk_i) begin
    if (walk_push) found_mem[found_tail_q] <= '{node: walk_node_q, key: walk_key_q};
    if (mem_valid_i && rsp_tag == 6'(LinkTag)) walk_next_q <= mem_rsp_i.data[39:6];
    for (int unsigned w = 0; w < KeyWords; w++) begin
      if (mem_valid_i && rsp_tag == 6'(KeyTag + w)) walk_key_q[w] <= mem_rsp_i.data;
    end
  end

  logic walk_answer;
  assign walk_answer = mem_valid_i && (rsp_tag >= 6'(LinkTag));

  logic enough, nothing;
  assign nothing = (start_span_i.limit == '0) || (start_node_i == '0);
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      walk_end_q    <= 1'b1;
      walk_ask_q    <= '0;
      walk_left_q   <= '0;
      found_head_q  <= '0;
      found_tail_q  <= '0;
      found_count_q <= '0;
    end else begin
      if (walk_sent) walk_ask_q <= walk_ask_q - 1'b1;
      if (walk_answer) walk_left_q <= walk_left_q - 1'b1;
      if (walk_whole && (walk_push || stop || enough)) begin
        if (stop || enough || walk_next_q == '0) walk_end_q <= 1'b1;
        else begin
          walk_ask_q  <= words_q + 3'd1;
          walk_left_q <= words_q + 3'd1;
        end
      end
      if (start) begin
        walk_end_q  <= nothing;
        walk_ask_q  <= nothing ? '0 : start_words_i + 3'd1;
        walk_left_q <= nothing ? '0 : start_words_i + 3'd1;
      end
      if (walk_push) found_tail_q <= found_tail_q + 1'b1;
      if (found_pop) found_head_q <= found_head_q + 1'b1;
      if (walk_push && !found_pop) found_count_q <= found_count_q + 1'b1;
      if (found_pop && !walk_push) found_count_q <= found_count_q - 1'b1;
      if (!busy_q) begin
        found_head_q  <= '0;
        found_tail_q  <= '0;
        found_count_q <= '0;
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (start) walk_node_q <= start_node_i;
    else if (walk_push) walk_node_q <= walk_next_q;
  end

  // Grants: the hash, a byte a cycle, then the question.
  typedef enum logic [2:0] {
    GrIdle,
    GrHash,
    GrAsk,
    GrAnswer,
    GrWait,
    GrPut
  } grant_state_e;

  function automatic hash_t crc_byte(hash_t crc, logic [7:0] data);
    hash_t c;
    c = crc ^ {24'b0, data};
    for (int unsigned i = 0; i < 8; i++) c = c[0] ? ({1'b0, c[31:1]} ^ 32'h82F6_3B78) : {1'b0, c[31:1]};
    return c;
  endfunction

  grant_state_e              gr_q;
  logic [5:0]                gr_byte_q;
  logic [KeyWords*64-1:0]    gr_key;
  logic                      gr_start;
  hash_t                     gr_hash_q;
  entry_t                    gr_entry_q;
  logic [$clog2(Patience):0] gr_wait_q;
  logic [1:0]                gr_tries_q;
  logic [15:0]               wanted_q;  // rows that may still be granted

  typedef struct packed {
    node_t       node;
    entry_t      entry;
    logic [63:0] key;
  } row_t;

  row_t       row_mem[Ahead];
  row_t       row_in;
  logic [1:0] row_tail_q;
  logic [2:0] row_count_q;
  logic       row_push, row_done, row_live;

  // The row stays the first of those found until its grant is there.
  assign gr_key        = found.key;
  assign gr_start      = (gr_q == GrIdle) && busy_q && !stop && (found_count_q != '0) && (wanted_q != '0);
  assign row_in        = '{node: found.node, entry: gr_entry_q, key: found.key[0]};
  assign found_pop     = row_push;
  assign enough        = busy_q && (wanted_q == '0) && (row_count_q == '0) && (gr_q == GrIdle);
  assign row_push      = (gr_q == GrPut) && (row_count_q != 3'(Ahead));
  assign grant_valid_o = gr_q == GrAsk;
  assign grant_stamp_o = stamp_q;
  assign grant_hash_o  = ~gr_hash_q;
  assign grant_table_o = table_q;

  always_ff @(posedge clk_i) begin
    if (gr_start) begin
      gr_hash_q  <= '1;
      gr_byte_q  <= '0;
      gr_tries_q <= '0;
    end
    if (gr_q == GrHash) begin
      gr_hash_q <= crc_byte(gr_hash_q, gr_key[{gr_byte_q[ByteWidth-1:0], 3'b000}+:8]);
      gr_byte_q <= gr_byte_q + 1'b1;
    end
    if (gr_q == GrAnswer && grant_valid_i) begin
      gr_entry_q <= grant_entry_i;
      gr_wait_q  <= ($clog2(Patience) + 1)'(Patience - 1);
    end
    if (gr_q == GrWait) gr_wait_q <= gr_wait_q - 1'b1;
    if (gr_q == GrWait && gr_wait_q == '0 && gr_tries_q != '1) gr_tries_q <= gr_tries_q + 1'b1;
    if (row_push) row_mem[row_tail_q] <= row_in;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      gr_q       <= GrIdle;
      conflict_q <= 1'b0;
      failed_q   <= 1'b0;
      wanted_q   <= '0;
    end else begin
      unique case (gr_q)
        GrIdle:   if (gr_start) gr_q <= free_q ? GrPut : GrHash;
        GrHash:   if (gr_byte_q + 1'b1 == {words_q, 3'b000}) gr_q <= GrAsk;
        GrAsk:    if (grant_ready_i) gr_q <= GrAnswer;
        GrAnswer: if (grant_valid_i) begin
          unique case (grant_i)
            GrantGiven: gr_q <= GrPut;
            GrantWait:  gr_q <= GrWait;
            default: begin
              gr_q       <= GrIdle;
              conflict_q <= 1'b1;
            end
          endcase
        end
        GrWait:   if (gr_wait_q == '0) begin
          gr_q <= stop ? GrIdle : GrAsk;
          if (press_i && gr_tries_q == '1) begin
            gr_q       <= GrIdle;
            conflict_q <= 1'b1;
          end
        end
        GrPut:    if (row_push) gr_q <= GrIdle;
        default:  gr_q <= GrIdle;
      endcase
      if (row_done && !row_live && !row_push) wanted_q <= wanted_q + 1'b1;
      if (row_push && !(row_done && !row_live)) wanted_q <= wanted_q - 1'b1;
      if (mem_valid_i && mem_rsp_i.error) failed_q <= 1'b1;
      if (start) begin
        conflict_q <= 1'b0;
        failed_q   <= 1'b0;
        wanted_q   <= start_span_i.limit;
      end
    end
  end

  // Reading rows: the header, then the words that hold the bytes, all numbered in one sequence of 32.
  logic [31:0]       come_q;
  logic [63:0]       word_mem[32];
  logic [4:0]        read_q, take_q;
  logic [5:0]        under_q;     // words asked for and not taken
  logic [1:0]        read_row_q, take_row_q;
  logic [2:0]        unread_q;    // rows of which not all is asked for
  logic [13:0]       read_at_q;   // 0: the header; else 1 + word
  word_addr_t        read_addr, read_addr_q;
  logic [13:0]       last_word;   // words that hold the bytes
  logic [16:0]       span_end;
  logic              read_valid, read_sent, read_last;
  row_t              row_read, row_take;

  assign span_end   = {14'b0, offset_q[2:0]} + {1'b0, bytes_q} + 17'd7;
  assign last_word  = span_end[16:3];
  assign row_read   = row_mem[read_row_q];
  assign row_take   = row_mem[take_row_q];
  assign read_valid = (unread_q != '0) && !under_q[5];
  assign read_last  = read_at_q == last_word;
  assign read_addr  = (read_at_q == '0) ? {row_read.node, 3'b000} : read_addr_q;

  // Taking them, in order: pairs of words make words of the result.
  logic [13:0]       take_at_q;
  logic [63:0]       word, before_q;
  logic [127:0]      pair;
  logic              take, take_last, live_q, tail_q;
  logic [15:0]       rows_q, put_left_q;
  logic [63:0]       last_key_q;
  logic              first_q;  // of the words of a row
  word_addr_t        base_q;
  logic              put_valid_q, put_sent;
  word_addr_t        out_addr_q;
  logic [63:0]       out_data_q;
  logic [7:0]        out_strobe_q;
  logic [5:0]        writes_q;
  logic              can_put, puts;
  logic              release_q;
  entry_t            release_entry_q;

  assign word      = word_mem[take_q];
  assign pair      = {word, before_q};
  assign can_put   = !put_valid_q && !release_q && (writes_q < 6'd30);
  assign take      = (row_count_q != '0) && !tail_q && (under_q != '0) && come_q[take_q] && can_put;
  assign take_last = take_at_q == last_word;
  assign row_live  = live_q;
  // The first word alone gives nothing, and the end may need one more step.
  assign puts      = take && (take_at_q > 14'd1) && live_q && !stop;

  logic tail_puts, tail_step;
  assign tail_step = tail_q && can_put;
  assign tail_puts = tail_step && (put_left_q != '0) && live_q && !stop;
  assign row_done  = tail_step;

  // In the last step only bytes that are written matter, and they are of `before_q`.
  logic [63:0] shifted;
  assign shifted = 64'(pair >> {offset_q[2:0], 3'b000});

  always_ff @(posedge clk_i) begin
    if (mem_valid_i && !rsp_tag[5]) word_mem[rsp_tag[4:0]] <= mem_rsp_i.data;
    if (read_sent) read_addr_q <= read_addr + ((read_at_q == '0) ? 37'(offset_q[15:3]) : 37'd1);
    if (take) before_q <= word;
    if (take && take_at_q == '0) begin
      first_q    <= 1'b1;
      put_left_q <= bytes_q;
    end
    if (puts || tail_puts) begin
      first_q      <= 1'b0;
      out_addr_q   <= first_q ? base_q : out_addr_q + 1'b1;
      out_data_q   <= shifted;
      out_strobe_q <= (put_left_q >= 16'd8) ? 8'hFF : ~(8'hFF << put_left_q[2:0]);
      put_left_q   <= (put_left_q >= 16'd8) ? put_left_q - 16'd8 : '0;
    end
    if (start) base_q <= start_span_i.buffer;
    if (row_done) begin
      release_entry_q <= row_take.entry;
      if (live_q) begin
        last_key_q <= row_take.key;
        base_q     <= base_q + 37'(stride_q[15:3]);
      end
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      come_q      <= '0;
      read_q      <= '0;
      take_q      <= '0;
      under_q     <= '0;
      read_row_q  <= '0;
      take_row_q  <= '0;
      row_tail_q  <= '0;
      row_count_q <= '0;
      unread_q    <= '0;
      read_at_q   <= '0;
      take_at_q   <= '0;
      live_q      <= 1'b0;
      tail_q      <= 1'b0;
      rows_q      <= '0;
      put_valid_q <= 1'b0;
      writes_q    <= '0;
      release_q   <= 1'b0;
      busy_q      <= 1'b0;
    end else begin
      if (mem_valid_i && !rsp_tag[5]) come_q[rsp_tag[4:0]] <= 1'b1;
      if (read_sent) begin
        come_q[read_q] <= 1'b0;
        read_q         <= read_q + 1'b1;
        read_at_q      <= read_last ? '0 : read_at_q + 1'b1;
        if (read_last) read_row_q <= read_row_q + 1'b1;
      end
      if (row_push && !(read_sent && read_last)) unread_q <= unread_q + 1'b1;
      if (!row_push && read_sent && read_last) unread_q <= unread_q - 1'b1;
      if (read_sent && !take) under_q <= under_q + 1'b1;
      if (take && !read_sent) under_q <= under_q - 1'b1;
      if (row_push) row_tail_q <= row_tail_q + 1'b1;
      if (row_push && !row_done) row_count_q <= row_count_q + 1'b1;
      if (row_done && !row_push) row_count_q <= row_count_q - 1'b1;
      if (take) begin
        take_q    <= take_q + 1'b1;
        take_at_q <= take_last ? '0 : take_at_q + 1'b1;
        if (take_at_q == '0) live_q <= word[56];
        if (take_last) tail_q <= 1'b1;
      end
      if (row_done) begin
        tail_q     <= 1'b0;
        take_row_q <= take_row_q + 1'b1;
        if (live_q) rows_q <= rows_q + 1'b1;
      end
      if (release_q && release_ready_i) release_q <= 1'b0;
      if (row_done && !free_q) release_q <= 1'b1;
      if (put_sent) put_valid_q <= 1'b0;
      if (puts || tail_puts) put_valid_q <= 1'b1;
      if (put_sent && !(mem_valid_i && rsp_tag == 6'(WriteTag))) writes_q <= writes_q + 1'b1;
      if (!put_sent && mem_valid_i && rsp_tag == 6'(WriteTag)) writes_q <= writes_q - 1'b1;
      if (start) begin
        busy_q <= 1'b1;
        rows_q <= '0;
      end
      if (end_valid_o && end_ready_i) busy_q <= 1'b0;
    end
  end

  assign release_valid_o = release_q;
  assign release_stamp_o = stamp_q;
  assign release_entry_o = release_entry_q;

  // Requests: writes first, then words of rows, then the walk.
  assign put_sent    = put_valid_q && mem_ready_i;
  assign read_sent   = read_valid && !put_valid_q && mem_ready_i;
  assign walk_sent   = (walk_ask_q != '0) && !put_valid_q && !read_valid && mem_ready_i;
  assign mem_valid_o = put_valid_q || read_valid || (walk_ask_q != '0);

  assign walk_word = walk_ask_q - 3'd2;  // of the key; negative for the link

  always_comb begin
    mem_req_o          = '0;
    mem_req_o.tag[9]   = 1'b1;
    mem_req_o.tag[8:6] = 3'(Number);
    if (put_valid_q) begin
      mem_req_o.write    = 1'b1;
      mem_req_o.addr     = out_addr_q;
      mem_req_o.data     = out_data_q;
      mem_req_o.strobe   = out_strobe_q;
      mem_req_o.tag[5:0] = 6'(WriteTag);
    end else if (read_valid) begin
      mem_req_o.addr     = read_addr;
      mem_req_o.tag[5:0] = {1'b0, read_q};
    end else if (walk_ask_q == 3'd1) begin
      mem_req_o.addr     = {walk_node_q, 3'b000};
      mem_req_o.tag[5:0] = 6'(LinkTag);
    end else begin
      mem_req_o.addr     = key_address(walk_node_q, walk_word[1:0]);
      mem_req_o.tag[5:0] = 6'(KeyTag) + 6'(walk_word[1:0]);
    end
  end

  assign end_valid_o = busy_q && walk_end_q && (walk_left_q == '0) && (gr_q == GrIdle) && (row_count_q == '0) &&
                       (found_count_q == '0 || stop || wanted_q == '0) && !put_valid_q && (writes_q == '0) &&
                       !release_q;
  assign end_slot_o  = slot_q;
  assign end_known_o = (rows_q == limit_q) && (limit_q != '0);
  assign end_key_o   = last_key_q;

  always_comb begin
    end_o = '{answer: AnswerReady, no_room: 1'b0, value: 34'(rows_q)};
    if (conflict_q) end_o.answer = AnswerConflict;
    if (failed_q) end_o.answer = AnswerFailed;
  end
  // Bits that are there only because whole structs and sums are.
  assign unused_tag    = ^{mem_rsp_i.tag, start_span_i, stride_q, span_end, row_read, row_take, walk_word, gr_byte_q};

endmodule
