// The ordered index of a worker: skiplists in memory, one a table.
//
//     request -> front (gaps, a slot) -> walk --> answer          search, update, remove
//                                         | \--> insert <-> walk  rows taken, written, linked bottom-up
//                                         \----> barrier -> scanners
//
// Every request has a slot, and every answer of memory moves one slot on, so no request blocks another (BionicDB,
// 4.4.2, has eight stages of fixed levels instead, in which at most as many requests overlap as there are stages, and
// the stage of the lowest levels holds up all others). Requests arrive admitted: whoever inserts, updates or removes a
// key is alone with it.

module lw_skiplist
  import lw_pkg::*;
  import lw_skiplist_pkg::*;
#(
    /// Requests in flight, at most 64.
    parameter int unsigned Slots = 16,
    /// Words of a key, 1 to 4.
    parameter int unsigned KeyWords = 1,
    /// Scanners, 1 to 8.
    parameter int unsigned Scanners = 1,
    /// Scanned ranges that are kept one by one, a power of two.
    parameter int unsigned Gaps = 8,
    /// Links that are remembered, a power of two, 16 to 512; eight a slot are enough.
    parameter int unsigned Links = 64,
    /// See `lw_skiplist_walk`.
    parameter int unsigned Lookahead = 64,
    localparam int unsigned SlotWidth = $clog2(Slots)
) (
    input  logic                       clk_i,
    input  logic                       rst_ni,
    /// This worker.
    input  worker_t                    worker_i,

    /// Configuration; only while the unit is idle.
    input  config_t                    config_i,
    /// Forgets the times of scans and all that is remembered of tables; one cycle, while idle. Due after the host
    /// has changed tables, and when times begin again.
    input  logic                       clear_i,
    /// Nothing is in flight.
    output logic                       idle_o,

    /// An admitted request. Stays until ready, which comes some cycles later.
    input  logic                       req_valid_i,
    output logic                       req_ready_o,
    input  op_e                        req_op_i,
    input  table_t                     req_table_i,
    input  stamp_t                     req_stamp_i,
    input  return_t                    req_ret_i,
    /// The key, normal form, word 0 in the low bits; words that the table's keys do not have are ignored.
    input  logic [KeyWords-1:0][63:0]  req_key_i,
    input  hash_t                      req_hash_i,
    /// The grant that it came with, if any: none for scans and replicated tables.
    input  logic                       req_granted_i,
    input  entry_t                     req_entry_i,
    /// Of a scan: most rows, scan source, where to.
    input  logic [15:0]                req_limit_i,
    input  logic [5:0]                 req_source_i,
    input  word_addr_t                 req_buffer_i,

    /// Memory: one request a cycle; each answered once, in any order, a cycle later at the earliest.
    output logic                       mem_valid_o,
    input  logic                       mem_ready_i,
    output mem_req_t                   mem_req_o,
    input  logic                       mem_valid_i,
    input  mem_rsp_t                   mem_rsp_i,

    /// Asks for a read grant of a row; stays until ready. Each is answered once, with its tag; one of each tag at a
    /// time.
    output logic                       grant_valid_o,
    input  logic                       grant_ready_i,
    output stamp_t                     grant_stamp_o,
    output hash_t                      grant_hash_o,
    output table_t                     grant_table_o,
    output logic [2:0]                 grant_tag_o,
    input  logic                       grant_valid_i,
    input  logic [2:0]                 grant_tag_i,
    input  grant_e                     grant_i,
    input  entry_t                     grant_entry_i,

    /// Lets a grant go; stays until ready.
    output logic                       release_valid_o,
    input  logic                       release_ready_i,
    output stamp_t                     release_stamp_o,
    output entry_t                     release_entry_o,

    /// The answer to a request; stays until ready.
    output logic                       response_valid_o,
    input  logic                       response_ready_i,
    output response_t                  response_o
);

  localparam int unsigned GuardWidth = 10;

  typedef logic [SlotWidth-1:0] slot_t;

  // Tables and scan sources.
  typedef struct packed {
    logic       replicated;
    logic [2:0] words;
    level_t     levels;
  } table_info_t;

  // Those of blocks are written while nothing is read.
  table_info_t table_mem[64];
  level_t      top_mem  [64];
  (* ram_style = "block", no_rw_check *)
  node_t       first_mem[64];
  (* ram_style = "block", no_rw_check *)
  logic [47:0] source_mem[64];
  logic        for_table, for_info;

  assign for_table = config_i.valid && (config_i.addr[15:9] == ConfigTable[15:9]);
  assign for_info  = for_table && (config_i.addr[2:0] == 3'd2);

  always_ff @(posedge clk_i) begin
    if (for_info) begin
      table_mem[config_i.addr[8:3]] <=
          '{replicated: config_i.data[1], words: config_i.data[26:24], levels: config_i.data[36:32]};
    end
    if (for_table && config_i.addr[2:0] == 3'd3) first_mem[config_i.addr[8:3]] <= config_i.data[39:6];
    if (config_i.valid && config_i.addr[15:6] == 10'h340) source_mem[config_i.addr[5:0]] <= config_i.data[47:0];
  end

  // The highest level of each table that may have rows. Too low costs time and no more, so it may be a little wrong.
  logic   raise_valid, raise_ready, empty_valid;
  table_t raise_table, empty_table, hint_table;
  level_t raise_level, empty_level, hint_level;
  assign raise_ready = !for_info;
  assign hint_table  = raise_valid ? raise_table : empty_table;
  assign hint_level  = top_mem[hint_table];
  always_ff @(posedge clk_i) begin
    if (for_info) top_mem[config_i.addr[8:3]] <= config_i.data[36:32] - 5'd1;
    else if (raise_valid && hint_level < raise_level) top_mem[hint_table] <= raise_level;
    else if (!raise_valid && empty_valid && hint_level == empty_level && hint_level != '0) begin
      top_mem[hint_table] <= empty_level - 1'b1;
    end
  end

  // Slots.
  asked_t                          asked_mem[Slots];
  span_t                           span_mem [Slots];
  logic [KeyWords-1:0][63:0]       key_mem  [Slots];
  logic [Slots-1:0]                active_q, inserts_q, guarded_q, freed;
  logic [Slots-1:0][GuardWidth-1:0] guard_q;
  logic [6:0]                      used_q;
  logic                            free_q;
  slot_t                           free_slot_q;
  logic                            free_valid;
  slot_t                           free_slot;

  // The front: one request after the other.
  typedef enum logic [2:0] {
    FrIdle,
    FrCheck,
    FrGuard,
    FrGap,
    FrPut,
    FrStart,
    FrLate
  } front_e;

  front_e      front_q;
  slot_t       front_slot_q;
  table_info_t info_q;
  node_t       first_q;
  level_t      top_q, height_q;
  logic        guard_hit_q, guard_hit;
  logic        is_insert, is_scan;
  logic        gap_valid, gap_ready, gap_late;
  logic        front_start, front_start_ready;
  logic        late_valid, late_ready;
  start_t      front_info;
  level_t      height;

  assign is_insert = req_op_i == OpInsert;
  assign is_scan   = req_op_i == OpScan;

  always_comb begin
    logic zero;
    zero   = 1'b1;
    height = 5'd1;
    for (int i = 15; i >= 0; i--) begin
      zero = zero && (req_hash_i[2*i+:2] == 2'b00);
      if (zero) height = height + 1'b1;
    end
    if (height > info_q.levels) height = info_q.levels;
  end

  // Two requests for one key are in flight together only if none is an insert (they are of one transaction).
  always_comb begin
    guard_hit = 1'b0;
    for (int unsigned i = 0; i < Slots; i++) begin
      if (guarded_q[i] && !is_scan && guard_q[i] == req_hash_i[GuardWidth-1:0] && (is_insert || inserts_q[i])) begin
        guard_hit = 1'b1;
      end
    end
  end

  always_ff @(posedge clk_i) begin
    info_q      <= table_mem[req_table_i];
    first_q     <= first_mem[req_table_i];
    top_q       <= top_mem[req_table_i];
    height_q    <= height;
    guard_hit_q <= guard_hit;
    if (front_q == FrIdle) front_slot_q <= free_slot_q;
    if (front_q == FrPut) begin
      asked_mem[front_slot_q] <= '{
          op: req_op_i,
          tab: req_table_i,
          stamp: req_stamp_i,
          ret: req_ret_i,
          entry: req_entry_i,
          granted: req_granted_i && !is_scan,
          calm: inserts_q == '0,
          height: height_q,
          words: info_q.words
      };
      key_mem[front_slot_q]  <= req_key_i;
      span_mem[front_slot_q] <= '{limit: req_limit_i, source: req_source_i, buffer: req_buffer_i};
      guard_q[front_slot_q]  <= req_hash_i[GuardWidth-1:0];
    end
  end

  always_comb begin
    free_valid = 1'b0;
    free_slot  = '0;
    for (int unsigned i = 0; i < Slots; i++) begin
      if (!active_q[i]) begin
        free_valid = 1'b1;
        free_slot  = slot_t'(i);
      end
    end
  end

  logic late_q;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      front_q     <= FrIdle;
      active_q    <= '0;
      inserts_q   <= '0;
      guarded_q   <= '0;
      used_q      <= '0;
      free_q      <= 1'b0;
      free_slot_q <= '0;
      late_q      <= 1'b0;
    end else begin
      free_q      <= free_valid && (front_q == FrIdle);
      free_slot_q <= free_slot;
      unique case (front_q)
        FrIdle: begin
          late_q <= 1'b0;
          if (req_valid_i && free_q) begin
            front_q <= FrCheck;
            free_q  <= 1'b0;
          end
        end
        FrCheck: front_q <= FrGuard;
        FrGuard: if (!guard_hit_q) begin
          front_q <= (is_insert || (is_scan && req_limit_i != '0)) ? FrGap : FrPut;
        end
        FrGap: if (gap_ready) begin
          late_q  <= gap_late;
          front_q <= FrPut;
        end
        FrPut: begin
          active_q[front_slot_q]  <= 1'b1;
          inserts_q[front_slot_q] <= is_insert && !late_q;
          guarded_q[front_slot_q] <= !is_scan;
          front_q                 <= late_q ? FrLate : FrStart;
        end
        FrStart: if (front_start_ready) front_q <= FrIdle;
        FrLate:  if (late_ready) front_q <= FrIdle;
        default: front_q <= FrIdle;
      endcase
      for (int unsigned i = 0; i < Slots; i++) begin
        if (freed[i]) begin
          active_q[i]  <= 1'b0;
          inserts_q[i] <= 1'b0;
          guarded_q[i] <= 1'b0;
        end
      end
      if (front_q == FrPut && freed == '0) used_q <= used_q + 1'b1;
      if (front_q != FrPut && freed != '0) used_q <= used_q - 1'b1;
    end
  end

  assign gap_valid   = (front_q == FrGap);
  assign front_start = (front_q == FrStart);
  assign late_valid  = (front_q == FrLate);
  assign req_ready_o = (front_start && front_start_ready) || (late_valid && late_ready);
  assign idle_o      = (active_q == '0) && (front_q == FrIdle);

  always_comb begin
    front_info = '{
        again: 1'b0,
        tab: req_table_i,
        pred: first_q,
        bound: '0,
        level: top_q,
        stop: '0,
        height: is_insert ? height_q : '0,
        words: info_q.words,
        scan: is_scan
    };
    if (is_insert && height_q > top_q) front_info.level = height_q - 1'b1;
  end

  // Traversals.
  logic     redo_start, redo_ready;
  slot_t    redo_slot;
  start_t   redo_info;
  logic     walk_start, walk_start_ready, again_start, again_ready;
  slot_t    walk_start_slot, insert_slot, walk_key_slot, path_slot;
  start_t   walk_info, again_info;
  logic [1:0] walk_key_word, insert_word;
  asked_t   insert_asked, done_asked;
  logic     path_valid, path_read, path_write, path_ready;
  level_t   path_level, path_read_level;
  node_t    path_pred, path_succ, path_new_pred, path_new_succ;
  logic     done_valid, done_ready, done_again, done_error, done_same, done_found, done_live;
  slot_t    done_slot;
  node_t    done_node, done_next;
  logic [Scanners+1:0] mem_valid, mem_ready;
  mem_req_t [Scanners+1:0] mem_req;
  logic     to_walk, to_insert;

  assign walk_start        = again_start || redo_start || front_start;
  assign walk_start_slot   = again_start ? insert_slot : redo_start ? redo_slot : front_slot_q;
  assign walk_info         = again_start ? again_info : redo_start ? redo_info : front_info;
  assign again_ready       = walk_start_ready;
  assign redo_ready        = walk_start_ready && !again_start;
  assign front_start_ready = walk_start_ready && !again_start && !redo_start;
  assign to_walk           = mem_valid_i && !mem_rsp_i.tag[9] && (mem_rsp_i.tag[1:0] != 2'd3);
  assign to_insert         = mem_valid_i && !mem_rsp_i.tag[9] && (mem_rsp_i.tag[1:0] == 2'd3);

  lw_skiplist_walk #(
      .Slots(Slots),
      .KeyWords(KeyWords),
      .Lookahead(Lookahead)
  ) u_walk (
      .clk_i,
      .rst_ni,
      .used_i(used_q),
      .start_valid_i(walk_start),
      .start_ready_o(walk_start_ready),
      .start_slot_i(walk_start_slot),
      .start_i(walk_info),
      .key_slot_o(walk_key_slot),
      .key_word_o(walk_key_word),
      .key_i(key_mem[walk_key_slot][walk_key_word]),
      .mem_valid_o(mem_valid[0]),
      .mem_ready_i(mem_ready[0]),
      .mem_req_o(mem_req[0]),
      .mem_valid_i(to_walk),
      .mem_rsp_i,
      .path_valid_o(path_valid),
      .path_slot_o(path_slot),
      .path_level_o(path_level),
      .path_pred_o(path_pred),
      .path_succ_o(path_succ),
      .empty_valid_o(empty_valid),
      .empty_table_o(empty_table),
      .empty_level_o(empty_level),
      .done_valid_o(done_valid),
      .done_ready_i(done_ready),
      .done_slot_o(done_slot),
      .done_again_o(done_again),
      .done_error_o(done_error),
      .done_same_o(done_same),
      .done_found_o(done_found),
      .done_live_o(done_live),
      .done_node_o(done_node),
      .done_next_o(done_next)
  );

  // Paths of inserts: one write port, of which the walk is first.
  logic [2*NodeWidth-1:0] path_mem [Slots*32];
  logic [2*NodeWidth-1:0] path_q;
  assign path_ready = !path_valid;
  always_ff @(posedge clk_i) begin
    if (path_valid) path_mem[{path_slot, path_level}] <= {path_pred, path_succ};
    else if (path_write) path_mem[{insert_slot, path_read_level}] <= {path_new_pred, path_new_succ};
    if (path_read) path_q <= path_mem[{insert_slot, path_read_level}];
  end

  // Where a traversal's end goes.
  logic    ends_here, to_scan, done_insert, insert_ready, walk_end_ready;
  ending_t walk_end;
  assign done_asked  = asked_mem[done_slot];
  assign to_scan     = (done_asked.op == OpScan) && !done_error;
  assign done_insert = (done_asked.op == OpInsert) && (done_again || (!done_error && !(done_found && done_live)));
  assign ends_here   = !done_insert && !to_scan;
  assign done_ready  = done_insert ? insert_ready : to_scan ? 1'b1 : walk_end_ready;

  always_comb begin
    walk_end = '{answer: AnswerMissing, no_room: 1'b0, value: done_node};
    if (done_found && done_live && done_asked.op != OpInsert) walk_end.answer = AnswerReady;
    if (done_error) walk_end.answer = AnswerFailed;
  end

  logic    insert_end_valid, insert_end_ready;
  slot_t   insert_end_slot;
  ending_t insert_end;
  assign insert_asked = asked_mem[insert_slot];

  lw_skiplist_insert #(
      .Slots(Slots),
      .KeyWords(KeyWords),
      .Links(Links)
  ) u_insert (
      .clk_i,
      .rst_ni,
      .worker_i,
      .config_i,
      .clear_i,
      .inserts_i(inserts_q),
      .done_valid_i(done_valid && done_insert),
      .done_ready_o(insert_ready),
      .done_slot_i(done_slot),
      .done_again_i(done_again),
      .done_found_i(done_found),
      .done_node_i(done_node),
      .done_same_i(done_same),
      .done_error_i(done_error),
      .slot_o(insert_slot),
      .word_o(insert_word),
      .asked_i(insert_asked),
      .key_i(key_mem[insert_slot][insert_word]),
      .path_read_o(path_read),
      .path_level_o(path_read_level),
      .path_pred_i(path_q[2*NodeWidth-1:NodeWidth]),
      .path_succ_i(path_q[NodeWidth-1:0]),
      .path_write_o(path_write),
      .path_ready_i(path_ready),
      .path_pred_o(path_new_pred),
      .path_succ_o(path_new_succ),
      .start_valid_o(again_start),
      .start_ready_i(again_ready),
      .start_o(again_info),
      .mem_valid_o(mem_valid[1]),
      .mem_ready_i(mem_ready[1]),
      .mem_req_o(mem_req[1]),
      .mem_valid_i(to_insert),
      .mem_rsp_i,
      .raise_valid_o(raise_valid),
      .raise_ready_i(raise_ready),
      .raise_table_o(raise_table),
      .raise_level_o(raise_level),
      .end_valid_o(insert_end_valid),
      .end_ready_i(insert_end_ready),
      .end_slot_o(insert_end_slot),
      .end_o(insert_end)
  );

  // A scan that has found its place waits, in a group, for the inserts that are in flight, and looks for its first row
  // once more: it sees every insert that came before it, and no key below its own.
  node_t            from_mem[Slots];
  logic [Slots-1:0] waiting_q, group_q, before_q, redo_q, eligible_q, later_q, behind, pick;
  asked_t           redo_asked;
  logic             next_valid_q, dispatch;
  slot_t            next_slot_q, pick_slot;
  assign behind = ((eligible_q & later_q) != '0) ? (eligible_q & later_q) : eligible_q;
  assign pick   = behind & (~behind + 1'b1);
  always_comb begin
    pick_slot = '0;
    for (int unsigned i = 0; i < Slots; i++) pick_slot |= pick[i] ? slot_t'(i) : '0;
  end

  logic to_wait;
  assign to_wait    = !done_again && !done_asked.calm;
  assign redo_asked = asked_mem[redo_slot];
  assign redo_start = redo_q != '0;
  always_comb begin
    redo_slot = '0;
    for (int unsigned i = 0; i < Slots; i++) begin
      if (redo_q[i]) redo_slot = slot_t'(i);
    end
    redo_info = '{
        again: 1'b1,
        tab: redo_asked.tab,
        pred: from_mem[redo_slot],
        bound: '0,
        level: '0,
        stop: '0,
        height: '0,
        words: redo_asked.words,
        scan: 1'b1
    };
  end

  always_ff @(posedge clk_i) begin
    if (done_valid && to_scan) from_mem[done_slot] <= to_wait ? done_node : done_next;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      waiting_q    <= '0;
      group_q      <= '0;
      redo_q       <= '0;
      before_q     <= '0;
      eligible_q   <= '0;
      later_q      <= '0;
      next_valid_q <= 1'b0;
      next_slot_q  <= '0;
    end else begin
      before_q <= before_q & inserts_q;
      if (group_q == '0) begin
        group_q   <= waiting_q;
        waiting_q <= '0;
        before_q  <= inserts_q;
      end else if ((before_q & inserts_q) == '0) begin
        group_q <= '0;
        redo_q  <= redo_q | group_q;
      end
      if (redo_start && redo_ready) redo_q[redo_slot] <= 1'b0;
      if (done_valid && to_scan && to_wait) waiting_q[done_slot] <= 1'b1;
      if (done_valid && to_scan && !to_wait) eligible_q[done_slot] <= 1'b1;
      if (dispatch) next_valid_q <= 1'b0;
      if (!next_valid_q && eligible_q != '0) begin
        next_valid_q          <= 1'b1;
        next_slot_q           <= pick_slot;
        eligible_q[pick_slot] <= 1'b0;
        later_q               <= ~(pick | (pick - 1'b1));
      end
    end
  end

  // Scanners.
  asked_t      next_asked;
  span_t       next_span;
  table_info_t next_info;
  logic [47:0] source_q;
  logic [Scanners-1:0] idle, starts, grants, grant_readys, releases, release_readys, scan_ends, scan_end_readys;
  logic        press_q, next_whole_q;

  assign next_asked  = asked_mem[next_slot_q];
  assign next_span   = span_mem[next_slot_q];
  assign next_info   = table_mem[next_asked.tab];
  assign starts      = next_whole_q ? (idle & (~idle + 1'b1)) : '0;
  assign dispatch    = starts != '0;

  // The source is read a cycle later than all else of the next scan.
  always_ff @(posedge clk_i) begin
    source_q <= source_mem[next_span.source];
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) next_whole_q <= 1'b0;
    else next_whole_q <= next_valid_q && !dispatch;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) press_q <= 1'b0;
    else press_q <= (next_valid_q && idle == '0) || (req_valid_i && active_q == '1);
  end

  typedef struct packed {
    stamp_t     stamp;
    hash_t      hash;
    table_t     tab;
    logic [2:0] tag;
  } grant_ask_t;

  typedef struct packed {
    stamp_t stamp;
    entry_t entry;
  } release_t;

  typedef struct packed {
    slot_t   slot;
    ending_t ending;
    logic    known;
  } end_t;

  grant_ask_t [Scanners-1:0] grant_asks;
  release_t   [Scanners:0]   release_all;
  end_t       [Scanners+2:0] end_all;
  logic       [Scanners+2:0] end_valids, end_readys;
  logic       [Scanners-1:0][63:0] end_keys;

  for (genvar s = 0; s < Scanners; s++) begin : gen_scanner
    slot_t       end_slot;
    ending_t     ending;
    logic        known;
    logic [63:0] key;
    lw_skiplist_scan #(
        .Number(s),
        .Slots(Slots),
        .KeyWords(KeyWords)
    ) u_scan (
        .clk_i,
        .rst_ni,
        .start_valid_i(starts[s]),
        .start_ready_o(idle[s]),
        .start_slot_i(next_slot_q),
        .start_node_i(from_mem[next_slot_q]),
        .start_table_i(next_asked.tab),
        .start_stamp_i(next_asked.stamp),
        .start_words_i(next_asked.words),
        .start_free_i(next_info.replicated),
        .start_span_i(next_span),
        .start_offset_i(source_q[15:0]),
        .start_bytes_i(source_q[31:16]),
        .start_stride_i(source_q[47:32]),
        .press_i(press_q),
        .grant_valid_o(grants[s]),
        .grant_ready_i(grant_readys[s]),
        .grant_stamp_o(grant_asks[s].stamp),
        .grant_hash_o(grant_asks[s].hash),
        .grant_table_o(grant_asks[s].tab),
        .grant_valid_i(grant_valid_i && grant_tag_i == 3'(s)),
        .grant_i,
        .grant_entry_i,
        .release_valid_o(releases[s]),
        .release_ready_i(release_readys[s]),
        .release_stamp_o(release_all[s].stamp),
        .release_entry_o(release_all[s].entry),
        .mem_valid_o(mem_valid[s+2]),
        .mem_ready_i(mem_ready[s+2]),
        .mem_req_o(mem_req[s+2]),
        .mem_valid_i(mem_valid_i && mem_rsp_i.tag[9] && mem_rsp_i.tag[8:6] == 3'(s)),
        .mem_rsp_i,
        .end_valid_o(scan_ends[s]),
        .end_ready_i(scan_end_readys[s]),
        .end_slot_o(end_slot),
        .end_o(ending),
        .end_known_o(known),
        .end_key_o(key)
    );
    assign grant_asks[s].tag  = 3'(s);
    assign end_all[s+3]       = '{slot: end_slot, ending: ending, known: known};
    assign end_keys[s]        = key;
    assign end_valids[s+3]    = scan_ends[s];
    assign scan_end_readys[s] = end_readys[s+3];
  end

  lw_skiplist_arbiter #(
      .Ports(Scanners + 2),
      .Width($bits(mem_req_t))
  ) u_memory (
      .clk_i,
      .rst_ni,
      .valid_i(mem_valid),
      .ready_o(mem_ready),
      .data_i(mem_req),
      .valid_o(mem_valid_o),
      .ready_i(mem_ready_i),
      .data_o(mem_req_o)
  );

  lw_skiplist_arbiter #(
      .Ports(Scanners),
      .Width($bits(grant_ask_t))
  ) u_grants (
      .clk_i,
      .rst_ni,
      .valid_i(grants),
      .ready_o(grant_readys),
      .data_i(grant_asks),
      .valid_o(grant_valid_o),
      .ready_i(grant_ready_i),
      .data_o({grant_stamp_o, grant_hash_o, grant_table_o, grant_tag_o})
  );

  // Endings, one after the other: the scan's range, its own grant, the answer.
  logic end_valid, end_ready, finish_release, finish_release_ready;
  end_t end_now;
  ending_t late_end;
  assign late_end       = '{answer: AnswerConflict, no_room: 1'b0, value: '0};
  assign end_all[0]     = '{slot: front_slot_q, ending: late_end, known: 1'b0};
  assign end_all[1]     = '{slot: done_slot, ending: walk_end, known: 1'b0};
  assign end_all[2]     = '{slot: insert_end_slot, ending: insert_end, known: 1'b0};
  assign end_valids[0]  = late_valid;
  assign end_valids[1]  = done_valid && ends_here;
  assign end_valids[2]  = insert_end_valid;
  assign late_ready       = end_readys[0];
  assign walk_end_ready   = end_readys[1];
  assign insert_end_ready = end_readys[2];

  lw_skiplist_arbiter #(
      .Ports(Scanners + 3),
      .Width($bits(end_t))
  ) u_ends (
      .clk_i,
      .rst_ni,
      .valid_i(end_valids),
      .ready_o(end_readys),
      .data_i(end_all),
      .valid_o(end_valid),
      .ready_i(end_ready),
      .data_o(end_now)
  );

  // The key behind which the range of a scan ends, kept like its ending.
  logic [63:0] end_key, end_key_q;
  if (Scanners == 1) begin : gen_key
    assign end_key = end_keys[0];
  end else begin : gen_keys
    always_comb begin
      end_key = '0;
      for (int unsigned i = 0; i < Scanners; i++) end_key |= end_readys[i+3] ? end_keys[i] : '0;
    end
  end
  always_ff @(posedge clk_i) begin
    if (end_readys != '0) end_key_q <= end_key;
  end

  typedef enum logic [2:0] {
    FnIdle,
    FnClose,
    FnRelease,
    FnAnswer,
    FnFree
  } finish_e;

  finish_e finish_q;
  asked_t  asked_q;
  logic    lost, close_ready;
  addr_t   value;
  // Fields that one reader of a record does not need.
  logic unused;
  assign unused    = ^{info_q, done_asked, next_asked, next_info, asked_q, redo_asked, config_i};
  always_comb begin
    value = 40'((asked_q.op == OpInsert) ? CodeDuplicate : CodeNotFound);
    if (end_now.ending.answer == AnswerReady) begin
      value = (asked_q.op == OpScan) ? 40'(end_now.ending.value) : {end_now.ending.value, 6'b0};
    end
    if (end_now.ending.answer == AnswerFailed) value = 40'(end_now.ending.no_room ? CodeNoRoom : CodeMemory);
  end
  assign lost      = (end_now.ending.answer == AnswerConflict) || (end_now.ending.answer == AnswerFailed);
  assign end_ready = finish_q == FnFree;

  always_ff @(posedge clk_i) begin
    asked_q <= asked_mem[end_now.slot];
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) finish_q <= FnIdle;
    else begin
      unique case (finish_q)
        FnIdle:    if (end_valid) finish_q <= FnClose;
        FnClose: begin
          if (asked_q.op != OpScan || close_ready) finish_q <= (lost && asked_q.granted) ? FnRelease : FnAnswer;
        end
        FnRelease: if (finish_release_ready) finish_q <= FnAnswer;
        FnAnswer:  if (response_ready_i) finish_q <= FnFree;
        default:   finish_q <= FnIdle;
      endcase
    end
  end

  always_comb begin
    freed = '0;
    if (finish_q == FnFree) freed[end_now.slot] = 1'b1;
  end

  assign finish_release        = finish_q == FnRelease;
  assign release_all[Scanners] = '{stamp: asked_q.stamp, entry: asked_q.entry};
  assign response_valid_o      = finish_q == FnAnswer;
  assign response_o            = '{
          ret: asked_q.ret,
          op: asked_q.op,
          answer: end_now.ending.answer,
          granted: asked_q.granted && !lost,
          owner: worker_i,
          entry: asked_q.entry,
          value: value
      };

  lw_skiplist_arbiter #(
      .Ports(Scanners + 1),
      .Width($bits(release_t))
  ) u_releases (
      .clk_i,
      .rst_ni,
      .valid_i({finish_release, releases}),
      .ready_o({finish_release_ready, release_readys}),
      .data_i(release_all),
      .valid_o(release_valid_o),
      .ready_i(release_ready_i),
      .data_o({release_stamp_o, release_entry_o})
  );

  lw_skiplist_gaps #(
      .Gaps(Gaps),
      .Slots(Slots)
  ) u_gaps (
      .clk_i,
      .rst_ni,
      .clear_i,
      .ask_valid_i(gap_valid),
      .ask_ready_o(gap_ready),
      .ask_scan_i(is_scan),
      .ask_slot_i(front_slot_q),
      .ask_table_i(req_table_i),
      .ask_stamp_i(req_stamp_i),
      .ask_key_i(req_key_i[0]),
      .ask_late_o(gap_late),
      .close_valid_i(finish_q == FnClose && asked_q.op == OpScan),
      .close_ready_o(close_ready),
      .close_slot_i(end_now.slot),
      .close_void_i(lost),
      .close_known_i(end_now.known),
      .close_key_i(end_key_q)
  );
endmodule
