// Inserts, once the place of the key is known: a row is taken, written, and linked bottom-up.
//
// All links are made here, one decision at a time, so two inserts cannot both link behind one node. What was linked
// lately is kept in a small table, (node, level) -> next, which is right whenever it has an entry: the writes of a link
// may be on their way while the next insert already goes on from it. An insert that learns from an entry whose write is
// not answered depends on its maker: it is not done before that one is, so whoever has an answer can be found by all.
//
// The path of an insert was read from memory. It is right for (node, level) if no link was made there since, that is,
// if the table has no entry and none that was made meanwhile was replaced (`stale`). Else that level is walked again.

module lw_skiplist_insert
  import lw_pkg::*;
  import lw_skiplist_pkg::*;
#(
    /// Slots, at most 64.
    parameter int unsigned Slots = 16,
    /// Words of a key, 1 to 4.
    parameter int unsigned KeyWords = 1,
    /// Entries of the table of links; a power of two, 16 to 512.
    parameter int unsigned Links = 64,
    localparam int unsigned SlotWidth = $clog2(Slots)
) (
    input  logic                 clk_i,
    input  logic                 rst_ni,
    /// This worker.
    input  worker_t              worker_i,

    /// Configuration; while nothing is under way.
    input  config_t              config_i,
    /// Forgets all links, for one cycle while nothing is under way: the host has changed tables. As after reset,
    /// nothing is taken for `Links` cycles.
    input  logic                 clear_i,

    /// Inserts in flight, from before their first access on.
    input  logic [Slots-1:0]     inserts_i,

    /// A traversal of an insert has ended; see `lw_skiplist_walk`.
    input  logic                 done_valid_i,
    output logic                 done_ready_o,
    input  logic [SlotWidth-1:0] done_slot_i,
    input  logic                 done_again_i,
    /// A row of the key that is absent, to be used again.
    input  logic                 done_found_i,
    input  node_t                done_node_i,
    /// What follows is what followed before, when a level was walked again.
    input  logic                 done_same_i,
    /// Memory refused, when a level was walked again.
    input  logic                 done_error_i,

    /// The request in a slot, and a word of its key, in the same cycle.
    output logic [SlotWidth-1:0] slot_o,
    output logic [1:0]           word_o,
    input  asked_t               asked_i,
    input  logic [63:0]          key_i,

    /// The recorded path is read at the clock edge with valid.
    output logic                 path_read_o,
    output level_t               path_level_o,
    input  node_t                path_pred_i,
    input  node_t                path_succ_i,
    /// The path is written when ready.
    output logic                 path_write_o,
    input  logic                 path_ready_i,
    output node_t                path_pred_o,
    output node_t                path_succ_o,

    /// A level is to be walked again.
    output logic                 start_valid_o,
    input  logic                 start_ready_i,
    output start_t               start_o,

    /// Requests; valid does not wait for ready.
    output logic                 mem_valid_o,
    input  logic                 mem_ready_i,
    output mem_req_t             mem_req_o,
    /// Answers to them, with tags {slot, 3}.
    input  logic                 mem_valid_i,
    input  mem_rsp_t             mem_rsp_i,

    /// A level of a table has a node now. Stays until ready.
    output logic                 raise_valid_o,
    input  logic                 raise_ready_i,
    output table_t               raise_table_o,
    output level_t               raise_level_o,

    /// An insert has ended. Stays until ready.
    output logic                 end_valid_o,
    input  logic                 end_ready_i,
    output logic [SlotWidth-1:0] end_slot_o,
    output ending_t              end_o
);

  localparam int unsigned LinkWidth = $clog2(Links);
  localparam int unsigned AgeWidth = 5;
  /// With so many writes of one slot unanswered there are at most two more.
  localparam int unsigned MostPending = 60;

  typedef enum logic [1:0] {
    PhLink,    // all of the node is written
    PhLinked,  // the link on `level` is written
    PhReused,  // an absent row is live again
    PhUndone   // a row that is only half linked is absent
  } phase_e;

  typedef struct packed {
    node_t  node;
    level_t level;
    logic   differs;  // the node's link on `level` in memory is not the recorded one
    phase_e phase;
  } place_t;

  typedef struct packed {
    node_t                pred;
    level_t               level;
    node_t                next;
    logic [63:0]          key;    // first word of the key of `next`, if known
    logic                 known;
    logic                 linked;  // behind `pred` was linked; if not, the entry says what memory has said all the time
    logic [SlotWidth-1:0] maker;
  } link_t;

  typedef enum logic [5:0] {
    StClear,  // forgets one link a cycle
    StIdle,
    StVisit,
    StBranch,
    StNew,
    StRows,
    StNext,
    StSum,
    StFits,
    StRoom,
    StKey,
    StImage,
    StLoad,
    StBytes,
    StFlush,
    StTower,
    StTowerWrite,
    StAbsent,
    StSpan,
    StBounds,
    StExtent,
    StZero,
    StZeroWait,
    StLive,
    StPath,
    StPathRead,
    StIndex,
    StMatch,
    StDecide,
    StSave,
    StRewrite,
    StPlace,
    StLink,
    StSecond,
    StSecondMatch,
    StSecondPut,
    StAgain,
    StRetry,
    StLinkedPut,
    StUndo,
    StEnd
  } state_e;

  localparam logic [1:0] EndReady  = 2'd0;
  localparam logic [1:0] EndNoRoom = 2'd1;
  localparam logic [1:0] EndMemory = 2'd2;

  function automatic logic [LinkWidth-1:0] index_of(logic [2*LinkWidth-1:0] node, level_t level);
    return node[0+:LinkWidth] ^ node[LinkWidth+:LinkWidth] ^ {level[0+:4], {(LinkWidth - 4) {1'b0}}} ^
           {{(LinkWidth - 1) {1'b0}}, level[4]};
  endfunction

  state_e               state_q, state_d;
  logic [SlotWidth-1:0] slot_q, slot_d;
  place_t               at_q, at_d;
  logic                 again_q, again_d;
  logic                 broken_q, broken_d;
  logic                 linked_q, linked_d;  // the path is read to end a link
  logic                 sent;
  logic                 save;

  // Configuration. Each memory has one write port. The one of blocks: which byte of the image each byte of a key is, in
  // {0, table, word}; row_bytes, values_start and row_stride in {100, table}; the end of the free rows in {101, table}.
  // It is written while nothing is read.
  (* ram_style = "block", no_rw_check *)
  logic [63:0] set_mem   [512];
  logic        single_mem[64];
  addr_t       next_mem  [64];
  // Of the request's table, a cycle after its slot.
  table_t      table_q;
  logic [2:0]  words_q;
  level_t      height_q;
  logic        single_q;
  logic        for_table, for_layout, for_rows, for_last, for_key, take_row;
  logic [8:0]  set_at, set_read;
  logic [63:0] set_q, info_q;  // a block RAM is slow: what it has read counts a cycle later
  addr_t       row, past_q;

  assign for_table  = config_i.valid && (config_i.addr[15:9] == ConfigTable[15:9]);
  assign for_layout = for_table && (config_i.addr[2:0] == 3'd1);
  assign for_rows   = config_i.valid && (config_i.addr[15:11] == ConfigRows[15:11]);
  assign for_last   = for_rows && (config_i.addr[4:0] == {worker_i, 1'b1});
  assign for_key    = config_i.valid && (config_i.addr[15:8] == ConfigKey[15:8]);
  assign row        = next_mem[table_q];

  always_comb begin
    set_at = {1'b0, config_i.addr[7:0]};
    if (for_layout) set_at = {3'b100, config_i.addr[8:3]};
    if (for_last) set_at = {3'b101, config_i.addr[10:5]};
    set_read = {1'b0, table_q, word_o};
    if (state_q == StRows || state_q == StSpan) set_read = {3'b100, table_q};
    if (state_q == StNext) set_read = {3'b101, table_q};
  end

  always_ff @(posedge clk_i) begin
    if (for_layout || for_last || for_key) set_mem[set_at] <= config_i.data;
    set_q    <= set_mem[set_read];
    info_q   <= set_q;
    table_q  <= asked_i.tab;
    words_q  <= asked_i.words;
    height_q <= asked_i.height;
    single_q <= single_mem[table_q];
    if (for_table && config_i.addr[2:0] == 3'd2) single_mem[config_i.addr[8:3]] <= config_i.data[3];
    if (for_rows && config_i.addr[4:0] == {worker_i, 1'b0}) next_mem[config_i.addr[10:5]] <= config_i.data[39:0];
    else if (take_row) next_mem[table_q] <= past_q;
  end

  // The key's image, byte by byte of the normal form.
  logic [63:0] image_q;
  logic [7:0]  strobe_q, map_byte, key_byte;
  logic [1:0]  image_word_q;
  logic [2:0]  word_q, word_d;
  logic [2:0]  byte_q;
  logic        map_step, map_other;

  assign map_byte  = info_q[{byte_q, 3'b000}+:8];
  assign key_byte  = key_i[{~byte_q, 3'b000}+:8] ^ {map_byte[5], 7'b0};
  assign map_other = (strobe_q != '0) && (image_word_q != map_byte[4:3]);

  always_ff @(posedge clk_i) begin
    if (state_q == StRoom || (state_q == StFlush && sent)) strobe_q <= '0;
    if (state_q == StLoad) byte_q <= '0;
    if (map_step) begin
      if (map_byte[7]) begin
        image_q[{map_byte[2:0], 3'b000}+:8] <= key_byte;
        strobe_q[map_byte[2:0]]             <= 1'b1;
        image_word_q                        <= map_byte[4:3];
      end
      byte_q <= byte_q + 1'b1;
    end
  end

  // Words of the values, to be zeroed.
  logic [12:0] zero_q, zero_last_q;
  logic [7:0]  zero_first_q, zero_end_q;
  logic        zero_any_q, zero_begin_q;
  logic [15:0] span_last;
  assign span_last = info_q[47:32] - 16'd1;

  // Unanswered requests, and slots to visit because all are answered.
  // How many of a slot were sent and were answered, modulo 64. They are made equal when a request begins.
  logic [5:0]            sent_mem[Slots];
  logic [5:0]            came_mem[Slots];
  logic [5:0]            came, left;
  logic                  few_q;
  logic                  fresh;
  logic [Slots-1:0]      error_q;
  logic                  installing_q;
  logic [SlotWidth-1:0]  rsp_slot;
  logic                  rsp_push, push, pop;
  logic [SlotWidth-1:0]  fifo_mem[Slots];
  logic [SlotWidth-1:0]  head_q, tail_q;
  logic [SlotWidth:0]    count_q;
  logic                  unused_rsp;

  assign rsp_slot   = mem_rsp_i.tag[2+:SlotWidth];
  assign rsp_push   = mem_valid_i && (came == sent_mem[rsp_slot]) && !(sent && rsp_slot == slot_q) &&
                      !(installing_q && rsp_slot == slot_q);
  assign came       = came_mem[rsp_slot] + 6'd1;
  assign left       = sent_mem[slot_q] - came_mem[slot_q];
  assign fresh      = (state_q == StRoom) || (state_q == StSpan);
  assign push       = rsp_push || (state_q == StRetry);
  assign unused_rsp = ^{mem_rsp_i, asked_i, row, info_q, word_q, map_byte};

  function automatic logic [SlotWidth-1:0] after(logic [SlotWidth-1:0] at);
    return (at == SlotWidth'(Slots - 1)) ? '0 : at + 1'b1;
  endfunction

  always_ff @(posedge clk_i) begin
    if (push) fifo_mem[tail_q] <= rsp_push ? rsp_slot : slot_q;
    few_q <= left < 6'(MostPending);
    if (mem_valid_i) came_mem[rsp_slot] <= came;
    if (fresh || sent) sent_mem[slot_q] <= (fresh ? came_mem[slot_q] : sent_mem[slot_q]) + 6'(sent);
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      head_q    <= '0;
      tail_q    <= '0;
      count_q   <= '0;
      error_q   <= '0;
    end else begin
      if (push) tail_q <= after(tail_q);
      if (pop) head_q <= after(head_q);
      if (push && !pop) count_q <= count_q + 1'b1;
      if (pop && !push) count_q <= count_q - 1'b1;
      error_q <= error_q & inserts_i;
      if (mem_valid_i && mem_rsp_i.error) error_q[rsp_slot] <= 1'b1;
    end
  end

  // The table of links.
  // A block RAM would be too slow for the comparisons behind it.
  (* ram_style = "distributed" *)
  link_t                link_mem[Links];
  link_t                link_q, link_new;
  // Whether it is there, whether its write is under way, and when that was answered: before, the old link may still be
  // read.
  typedef struct packed {
    logic                valid;
    logic                busy;
    logic [AgeWidth-1:0] age;
  } state_of_t;
  state_of_t            state_mem[Links];
  state_of_t            state_read, state_new;
  logic [AgeWidth-1:0]  link_age_q;
  logic [LinkWidth-1:0] index, index_q, state_at, clear_q;
  logic                 link_write;
  logic                 entry_valid_q, entry_busy_q, entry_now_q, entry_before_q;
  logic                 hit_q, same_q, less_q, equal_q;
  node_t                pred_q, succ_q;
  logic                 unknown_q, moved_q, differs_q;
  logic [63:0]          key_q;

  // Ages: inserts that are in flight began in this age or in the one before (`older_q`).
  logic [AgeWidth-1:0]  age_q;
  logic [Slots-1:0]     older_q, stale_q, fresh_q, evicted;
  logic [Slots-1:0]     depends_q, wait_q;
  logic [Slots-1:0][SlotWidth-1:0] maker_q;
  logic                 wake_q;
  logic [SlotWidth-1:0] wake_slot_q;

  assign index = index_of((state_q == StSecond) ? at_q.node[2*LinkWidth-1:0] : pred_q[2*LinkWidth-1:0], at_q.level);

  always_ff @(posedge clk_i) begin
    if (link_write) link_mem[index_q] <= link_new;
    if (link_write || state_q == StLinkedPut || state_q == StClear) state_mem[state_at] <= state_new;
    if (state_q == StIndex || state_q == StSecond) begin
      link_q         <= link_mem[index];
      link_age_q     <= state_read.age;
      index_q        <= index;
      entry_valid_q  <= state_read.valid;
      entry_busy_q   <= state_read.valid && state_read.busy;
    end
    hit_q          <= entry_valid_q && (link_q.pred == pred_q) && (link_q.level == at_q.level);
    same_q         <= link_q.next == succ_q;
    less_q         <= (link_q.next != '0) && (link_q.key < key_q);
    equal_q        <= (link_q.next != '0) && (link_q.key == key_q);
    entry_now_q    <= entry_valid_q && link_q.linked && (link_age_q == age_q);
    entry_before_q <= entry_valid_q && link_q.linked && (link_age_q == age_q - 1'b1);
  end

  logic second_put;

  // What decides between the ends of a link.
  logic onward, walk_again, beyond;
  always_comb begin
    onward      = hit_q && !same_q && link_q.known && less_q;
    beyond     = hit_q && !same_q && link_q.known && !less_q && !equal_q;
    walk_again = hit_q ? (!same_q && !onward && !beyond) :
                         (unknown_q || (stale_q[slot_q] && !fresh_q[slot_q]));
  end

  assign evicted = ((state_q == StPlace && !hit_q) || second_put) ?
                       ((entry_now_q ? inserts_i : '0) | (entry_before_q ? older_q : '0)) :
                   (state_q == StLinkedPut && error_q[slot_q]) ? inserts_i : '0;

  logic second_known_q;
  logic [63:0] second_key_q;
  assign second_put = (state_q == StSecondPut) && !entry_busy_q;
  assign link_write = (state_q == StPlace) || second_put;

  always_comb begin
    link_new       = '0;
    link_new.level = at_q.level;
    link_new.maker = slot_q;
    if (state_q == StPlace) begin
      link_new.pred  = pred_q;
      link_new.next  = at_q.node;
      link_new.key   = key_q;
      link_new.known  = 1'b1;
      link_new.linked = 1'b1;
    end else begin
      link_new.pred  = at_q.node;
      link_new.next  = succ_q;
      link_new.key   = second_key_q;
      link_new.known = second_known_q;
    end
  end

  // The entry of a link that is under way stays, so what is written when it has ended is of that link.
  assign state_read = state_mem[index];
  always_comb begin
    state_at  = link_write ? index_q : index;
    state_new = '{valid: link_write || !error_q[slot_q], busy: link_write && (state_q == StPlace), age: age_q};
    if (state_q == StClear) begin
      state_at        = clear_q;
      state_new.valid = 1'b0;
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) clear_q <= '0;
    else if (state_q == StClear) clear_q <= clear_q + 1'b1;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      age_q     <= '0;
      older_q   <= '0;
      stale_q   <= '0;
      fresh_q   <= '0;
      depends_q <= '0;
      wait_q    <= '0;
    end else begin
      older_q <= older_q & inserts_i;
      if ((older_q & inserts_i) == '0 && inserts_i != '0) begin
        older_q <= inserts_i;
        age_q   <= age_q + 1'b1;
      end
      stale_q <= (stale_q | evicted) & inserts_i;
      fresh_q <= fresh_q & ~evicted & inserts_i;
      if (start_valid_o && start_ready_i) fresh_q[slot_q] <= 1'b1;
      depends_q <= depends_q & inserts_i;
      if (state_q == StDecide && onward && entry_busy_q) depends_q[slot_q] <= 1'b1;
      if (state_q == StBranch && at_q.phase == PhLinked && depends_q[slot_q]) wait_q[slot_q] <= 1'b1;
      if (state_q == StLinkedPut) begin
        fresh_q[slot_q] <= 1'b0;
        wait_q[slot_q]  <= 1'b0;
        for (int unsigned i = 0; i < Slots; i++) begin
          if (maker_q[i] == slot_q) depends_q[i] <= 1'b0;
        end
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (state_q == StDecide && onward && entry_busy_q) maker_q[slot_q] <= link_q.maker;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      wake_q      <= 1'b0;
      wake_slot_q <= '0;
    end else begin
      wake_q <= (wait_q & ~depends_q) != '0;
      for (int unsigned i = 0; i < Slots; i++) begin
        if (wait_q[i] && !depends_q[i]) wake_slot_q <= SlotWidth'(i);
      end
    end
  end

  // Visits.
  place_t               place_mem[Slots];
  // How it ends: with its row, without room, or because memory refused.
  logic [1:0]           end_q, end_d;
  logic                 room_q;
  always_ff @(posedge clk_i) begin
    if (save) place_mem[slot_q] <= at_d;
  end

  assign slot_o = slot_q;
  assign word_o = (KeyWords == 1) ? '0 : word_q[1:0];
  assign sent   = mem_valid_o && mem_ready_i;
  assign pop    = (state_q == StIdle) && !clear_i && !wake_q && (count_q != '0);

  logic failed;
  assign failed = error_q[slot_q] || broken_q;

  always_comb begin
    state_d      = state_q;
    slot_d       = slot_q;
    at_d         = at_q;
    again_d      = again_q;
    broken_d     = broken_q;
    linked_d     = linked_q;
    word_d       = word_q;
    end_d        = end_q;
    save         = 1'b0;
    done_ready_o = 1'b0;
    take_row     = 1'b0;
    map_step     = 1'b0;
    unique case (state_q)
      StClear: if (clear_q == '1) state_d = StIdle;
      StIdle: begin
        again_d  = 1'b0;
        broken_d = 1'b0;
        word_d   = '0;
        if (clear_i) state_d = StClear;
        else if (wake_q) begin
          slot_d  = wake_slot_q;
          state_d = StVisit;
        end else if (count_q != '0) begin
          slot_d  = fifo_mem[head_q];
          state_d = StVisit;
        end else if (done_valid_i) begin
          done_ready_o = 1'b1;
          slot_d       = done_slot_i;
          again_d      = done_again_i && !done_same_i;
          broken_d     = done_again_i && done_error_i;
          at_d.node    = done_node_i;
          state_d      = done_again_i ? StVisit : done_found_i ? StAbsent : StNew;
        end
      end
      StVisit: begin
        at_d         = place_mem[slot_q];
        at_d.differs = at_d.differs || again_q;
        state_d      = StBranch;
      end
      StBranch: begin
        linked_d = at_q.phase == PhLinked;
        end_d    = EndReady;
        unique case (at_q.phase)
          PhLink:   state_d = failed ? ((at_q.level == '0) ? StEnd : StUndo) : StPath;
          PhLinked: state_d = depends_q[slot_q] ? StIdle : StPath;
          PhReused: state_d = failed ? StUndo : StEnd;
          default:  state_d = StEnd;
        endcase
        if (state_d == StEnd && failed) end_d = EndMemory;
      end

      // A new row.
      StNew: state_d = StRows;
      StRows: state_d = StNext;
      StNext: state_d = StSum;
      StSum: state_d = StFits;
      StFits: state_d = StRoom;
      StRoom: begin
        at_d.node    = row[39:6];
        at_d.level   = height_q - 1'b1;
        at_d.differs = 1'b0;
        at_d.phase   = PhLink;
        take_row     = room_q;
        state_d      = room_q ? StKey : StEnd;
        end_d        = EndNoRoom;
      end
      StKey: if (sent) begin
        word_d  = word_q + 1'b1;
        if (word_q + 3'd1 == words_q) begin
          word_d  = '0;
          state_d = StImage;
        end
      end
      StImage: begin
        if (!single_q) state_d = StLoad;
        else if (sent) state_d = StTower;
      end
      StLoad: state_d = StBytes;
      StBytes: begin
        map_step = !(map_byte[7] && map_other);
        if (!map_step) state_d = StFlush;
        else if (byte_q == 3'd7) begin
          word_d  = word_q + 1'b1;
          state_d = (word_q + 3'd1 == words_q) ? StFlush : StImage;
        end
      end
      StFlush: if (sent) state_d = (word_q == words_q) ? StTower : StBytes;
      StTower: state_d = StTowerWrite;
      StTowerWrite: if (sent) begin
        at_d.level = at_q.level - 1'b1;
        state_d    = StTower;
        if (at_q.level == '0) begin
          at_d.level = '0;
          save       = 1'b1;
          state_d    = StIdle;
        end
      end

      // An absent row.
      StAbsent: state_d = StSpan;
      StSpan: state_d = StBounds;
      StBounds: state_d = StExtent;
      StExtent: state_d = StZero;
      StZero: begin
        if (!zero_any_q) state_d = StZeroWait;
        else if (sent && zero_q == zero_last_q) state_d = StZeroWait;
      end
      StZeroWait: if (left == '0) state_d = StLive;
      StLive: if (sent) begin
        at_d.phase = PhReused;
        save       = 1'b1;
        state_d    = StIdle;
      end

      // Linking.
      StPath: state_d = StPathRead;
      StPathRead: state_d = linked_q ? StLinkedPut : StIndex;
      StIndex: state_d = StMatch;
      StMatch: state_d = StDecide;
      StDecide: begin
        if (onward) state_d = StIndex;
        else if (walk_again) state_d = StAgain;
        else state_d = StSave;
      end
      StSave: begin
        if (!moved_q || path_ready_i) begin
          if (differs_q) state_d = StRewrite;
          else if (entry_busy_q) state_d = StRetry;
          else state_d = StPlace;
        end
        if (state_d == StRetry) begin
          at_d.differs = 1'b0;
          save         = 1'b1;
        end
      end
      StRewrite: if (sent) begin
        at_d.differs = 1'b0;
        save         = 1'b1;
        state_d      = StIdle;
      end
      StPlace: state_d = StLink;
      StLink: if (sent) begin
        at_d.phase = PhLinked;
        save       = 1'b1;
        state_d    = StSecond;
      end
      StSecond: state_d = StSecondMatch;
      StSecondMatch: state_d = StSecondPut;
      StSecondPut: state_d = StIdle;
      StAgain: begin
        at_d.differs = differs_q;
        save         = start_ready_i;
        if (start_ready_i) state_d = StIdle;
      end
      StRetry: if (!rsp_push) state_d = StIdle;
      StLinkedPut: if (raise_ready_i) begin
        at_d.level   = at_q.level + 1'b1;
        at_d.differs = 1'b0;
        at_d.phase   = PhLink;
        linked_d     = 1'b0;
        end_d        = EndReady;
        state_d      = failed ? StUndo : (at_q.level + 1'b1 == height_q) ? StEnd : StPath;
      end
      StUndo: if (sent) begin
        at_d.phase = PhUndone;
        save       = 1'b1;
        state_d    = StIdle;
      end
      StEnd: if (end_ready_i) state_d = StIdle;
      default: state_d = StIdle;
    endcase
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) state_q <= StClear;
    else state_q <= state_d;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) installing_q <= 1'b0;
    else if (state_q == StIdle && (state_d == StNew || state_d == StAbsent)) installing_q <= 1'b1;
    else if (state_d == StIdle || state_d == StEnd) installing_q <= 1'b0;
  end

  always_ff @(posedge clk_i) begin
    slot_q   <= slot_d;
    at_q     <= at_d;
    again_q  <= again_d;
    broken_q <= broken_d;
    linked_q <= linked_d;
    word_q   <= word_d;
    end_q    <= end_d;
    if (state_q == StBranch) key_q <= key_i;
    room_q <= past_q <= info_q[39:0];
    if (state_q == StSum) past_q <= row + 40'(info_q[15:0]);
    if (state_q == StExtent) begin
      zero_q       <= info_q[31:19];
      zero_last_q  <= span_last[15:3];
      zero_first_q <= 8'hFF << info_q[18:16];
      zero_end_q   <= 8'hFF >> (3'd7 - span_last[2:0]);
      zero_any_q   <= info_q[31:16] < info_q[47:32];
      zero_begin_q <= 1'b1;
    end
    if (state_q == StZero && sent) begin
      zero_q       <= zero_q + 1'b1;
      zero_begin_q <= 1'b0;
    end
    if (state_q == StPathRead) begin
      pred_q    <= path_pred_i;
      succ_q    <= path_succ_i;
      unknown_q <= 1'b0;
      moved_q   <= 1'b0;
      differs_q <= at_q.differs;
    end
    if (state_q == StDecide) begin
      if (onward) begin
        pred_q    <= link_q.next;
        unknown_q <= 1'b1;
        moved_q   <= 1'b1;
      end
      if (beyond) begin
        succ_q    <= link_q.next;
        moved_q   <= 1'b1;
        differs_q <= 1'b1;
      end
      second_known_q <= (hit_q && link_q.known) || (succ_q == '0);
      second_key_q   <= link_q.key;
    end
  end

  assign path_read_o   = (state_q == StPath) || (state_q == StTower);
  assign path_level_o  = at_q.level;
  assign path_write_o  = (state_q == StSave) && moved_q;
  assign path_pred_o   = pred_q;
  assign path_succ_o   = succ_q;
  assign start_valid_o = state_q == StAgain;
  assign start_o       = '{
          again: 1'b1,
          tab: table_q,
          pred: pred_q,
          bound: succ_q,
          level: at_q.level,
          stop: at_q.level,
          height: at_q.level + 1'b1,
          words: words_q,
          scan: 1'b0
      };
  assign raise_valid_o = state_q == StLinkedPut;
  assign raise_table_o = table_q;
  assign raise_level_o = at_q.level;
  assign end_valid_o   = state_q == StEnd;
  assign end_slot_o    = slot_q;

  always_comb begin
    end_o = '{answer: AnswerReady, no_room: end_q == EndNoRoom, value: at_q.node};
    if (end_q != EndReady) end_o.answer = AnswerFailed;
  end

  // Where a request goes: so many words from a node on.
  logic [5:0]  below_q;  // of the link on the level
  logic [13:0] offset;
  node_t       from, link;
  always_ff @(posedge clk_i) begin
    below_q <= link_below(at_q.level, words_q);
  end

  always_comb begin
    from = at_q.node;
    link = at_q.node;
    if (state_q == StLink) from = pred_q;
    if (state_q == StTowerWrite) link = path_succ_i;
    if (state_q == StRewrite) link = succ_q;
    unique case (state_q)
      StTowerWrite, StRewrite, StLink: offset = -14'(below_q);
      StKey:                           offset = -14'(word_o);
      StZero:                          offset = 14'(zero_q);
      default:                         offset = '0;
    endcase
  end

  always_comb begin
    mem_valid_o                 = 1'b0;
    mem_req_o                   = '0;
    mem_req_o.write             = 1'b1;
    mem_req_o.strobe            = 8'hFF;
    mem_req_o.tag[2+:SlotWidth] = slot_q;
    mem_req_o.tag[1:0]          = 2'd3;
    mem_req_o.addr              = {from, 3'b000} + {{23{offset[13]}}, offset};
    unique case (state_q)
      StKey: begin
        mem_valid_o       = 1'b1;
        mem_req_o.addr[3] = mem_req_o.addr[3] || (word_o == '0);
        mem_req_o.data    = key_i;
      end
      StImage: begin
        mem_valid_o         = single_q;
        mem_req_o.addr[5:3] = 3'd2;
        mem_req_o.data      = key_i ^ {1'b1, 63'b0};
      end
      StFlush: begin
        mem_valid_o         = 1'b1;
        mem_req_o.addr[5:3] = 3'd2 + 3'(image_word_q);
        mem_req_o.data      = image_q;
        mem_req_o.strobe    = strobe_q;
      end
      StTowerWrite: begin
        mem_valid_o    = 1'b1;
        mem_req_o.data = {7'b0, at_q.level == '0, 16'b0, link, 6'b0};
      end
      StZero: begin
        mem_valid_o      = zero_any_q && few_q;
        mem_req_o.strobe = (zero_begin_q ? zero_first_q : 8'hFF) & ((zero_q == zero_last_q) ? zero_end_q : 8'hFF);
      end
      StLive: begin
        mem_valid_o      = 1'b1;
        mem_req_o.data   = {8'h01, 56'b0};
        mem_req_o.strobe = 8'h80;
      end
      StRewrite: begin
        mem_valid_o      = 1'b1;
        mem_req_o.data   = {24'b0, link, 6'b0};
        mem_req_o.strobe = 8'h1F;
      end
      StLink: begin
        mem_valid_o      = 1'b1;
        mem_req_o.data   = {24'b0, link, 6'b0};
        mem_req_o.strobe = 8'h1F;
      end
      StUndo: begin
        mem_valid_o      = 1'b1;
        mem_req_o.strobe = 8'h80;
      end
      default: ;
    endcase
  end
endmodule
