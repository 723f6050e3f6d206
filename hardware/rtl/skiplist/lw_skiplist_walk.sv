// Traversals of skiplists, all at once.
//
// A slot is a traversal: where it is lies in a small memory, and its next step is made when all words that it asked for
// have come. One step compares the key of a candidate; with it come the candidate's link on the same level and, when
// few slots are busy, on the level below, so that going on and going down cost one memory latency each. A step takes
// a cycle to compare, one to decide and one to ask for words, in which the next slot is read: three, as many as it asks
// for words; two more when it goes down.

module lw_skiplist_walk
  import lw_pkg::*;
  import lw_skiplist_pkg::*;
#(
    /// Traversals at once, at most 64.
    parameter int unsigned Slots = 16,
    /// Words of a key, 1 to 4.
    parameter int unsigned KeyWords = 1,
    /// With at most so many slots in use the link of the level below is asked for with every step: fewer latencies,
    /// more words.
    parameter int unsigned Lookahead = 64,
    localparam int unsigned SlotWidth = $clog2(Slots)
) (
    input  logic                 clk_i,
    input  logic                 rst_ni,

    /// Slots in use.
    input  logic [6:0]           used_i,

    /// A traversal begins in `start_slot_i`. Taken at the clock edge with valid and ready.
    input  logic                 start_valid_i,
    output logic                 start_ready_o,
    input  logic [SlotWidth-1:0] start_slot_i,
    input  start_t               start_i,

    /// Which word of which key is to be compared, and that word, in the same cycle.
    output logic [SlotWidth-1:0] key_slot_o,
    output logic [1:0]           key_word_o,
    input  logic [63:0]          key_i,

    /// Requests; valid does not wait for ready.
    output logic                 mem_valid_o,
    input  logic                 mem_ready_i,
    output mem_req_t             mem_req_o,
    /// Answers to them, with tags {slot, 2 bits: key, link, link below}.
    input  logic                 mem_valid_i,
    input  mem_rsp_t             mem_rsp_i,

    /// The place of an insert on a level, written at the clock edge with valid.
    output logic                 path_valid_o,
    output logic [SlotWidth-1:0] path_slot_o,
    output level_t               path_level_o,
    output node_t                path_pred_o,
    output node_t                path_succ_o,

    /// The highest level of the table seems to be empty. Valid for one cycle.
    output logic                 empty_valid_o,
    output table_t               empty_table_o,
    output level_t               empty_level_o,

    /// A traversal has ended: at a node with the key, or between two. Stays until ready.
    output logic                 done_valid_o,
    input  logic                 done_ready_i,
    output logic [SlotWidth-1:0] done_slot_o,
    output logic                 done_again_o,
    output logic                 done_error_o,
    /// What follows the node is `bound`, as it was given.
    output logic                 done_same_o,
    output logic                 done_found_o,
    /// Whether the node is live, if found.
    output logic                 done_live_o,
    /// The node, or the one before the key.
    output node_t                done_node_o,
    /// The first node at or behind the key, if none was found; 0: none.
    output node_t                done_next_o
);

  typedef enum logic [2:0] {
    ModeStart,
    ModeFetch,    // links of `pred`
    ModeCompare,  // key and links of `cand`
    ModeMore,     // a further word of the key of `cand`
    ModeHeader    // the header of `cand`, which is found
  } mode_e;

  typedef struct packed {
    start_t     at;      // pred, level and bound move on
    node_t      cand;
    node_t      down;
    logic       known;   // `down` is the link of `pred` on the level below
    logic       asked;   // such a link was asked for with the last step
    logic       head;    // `pred` is the head
    logic       same;    // nothing was compared: what follows is what was said to
    logic [1:0] word;
    mode_e      mode;
  } place_t;

  typedef struct packed {
    logic  live;
    node_t next;
  } link_t;

  typedef enum logic [2:0] {
    StEmpty,
    StCompare,
    StJudge,
    StCheck,
    StDrop,
    StAsk,
    StDone
  } state_e;

  place_t                place_mem [Slots];
  logic [63:0]           key_mem   [Slots];
  link_t                 next_mem  [Slots];
  node_t                 down_mem  [Slots];
  logic [SlotWidth-1:0]  fifo_mem  [Slots];

  // How many words of a slot have come, and how many will have, modulo 4.
  logic [1:0]            came_mem [Slots];
  logic [1:0]            whole_mem[Slots];
  logic [1:0]            came, many;
  logic [Slots-1:0]      error_q;

  // Answers.
  logic [SlotWidth-1:0]  rsp_slot;
  logic                  rsp_last;
  link_t                 rsp_link;
  logic                  unused_rsp;
  assign rsp_slot   = mem_rsp_i.tag[2+:SlotWidth];
  assign came       = came_mem[rsp_slot] + 2'd1;
  assign rsp_last   = mem_valid_i && (came == whole_mem[rsp_slot]);
  assign rsp_link   = '{live: mem_rsp_i.data[56], next: mem_rsp_i.data[39:6]};
  assign unused_rsp = ^{mem_rsp_i.tag};

  always_ff @(posedge clk_i) begin
    if (mem_valid_i) came_mem[rsp_slot] <= came;
    if (mem_valid_i && mem_rsp_i.tag[1:0] == 2'd0) key_mem[rsp_slot] <= mem_rsp_i.data;
    if (mem_valid_i && mem_rsp_i.tag[1:0] == 2'd1) next_mem[rsp_slot] <= rsp_link;
    if (mem_valid_i && mem_rsp_i.tag[1:0] == 2'd2) down_mem[rsp_slot] <= rsp_link.next;
  end

  // Slots that are ready, in order.
  logic [SlotWidth-1:0]  head_q, tail_q;
  logic [SlotWidth:0]    count_q;
  logic                  push, pop;
  logic [SlotWidth-1:0]  push_slot, pop_slot;

  function automatic logic [SlotWidth-1:0] after(logic [SlotWidth-1:0] at);
    return (at == SlotWidth'(Slots - 1)) ? '0 : at + 1'b1;
  endfunction

  state_e                state_q, state_d;
  logic                  start;
  logic                  save;
  assign start_ready_o = !rsp_last && (state_q != StAsk);
  assign start         = start_valid_i && start_ready_o;
  assign push          = rsp_last || start;
  assign push_slot     = rsp_last ? rsp_slot : start_slot_i;
  assign pop_slot      = fifo_mem[head_q];

  always_ff @(posedge clk_i) begin
    if (push) fifo_mem[tail_q] <= push_slot;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      head_q  <= '0;
      tail_q  <= '0;
      count_q <= '0;
    end else begin
      if (push) tail_q <= after(tail_q);
      if (pop) head_q <= after(head_q);
      if (push && !pop) count_q <= count_q + 1'b1;
      if (pop && !push) count_q <= count_q - 1'b1;
    end
  end

  // Stages one and two.
  logic [SlotWidth-1:0] slot_q;
  place_t               at_q, at_d;
  logic [63:0]          mine_q, key_q;
  link_t                next_q;
  node_t                down_q;
  logic                 failed_q;
  logic                 less_q, equal_q;
  logic                 last_q, same_q;  // the link leads to no node, or to `bound`; to `bound`
  logic                 ask_ready;
  place_t               place_start, place_read;

  assign place_read  = place_mem[pop_slot];
  assign place_start = '{
          at: start_i,
          cand: '0,
          down: '0,
          known: 1'b0,
          asked: 1'b0,
          head: 1'b1,
          same: 1'b1,
          word: '0,
          mode: ModeStart
      };
  assign pop         = ((state_q == StEmpty) || save) && (count_q != '0);
  assign key_slot_o  = pop_slot;
  assign key_word_o  = (KeyWords == 1) ? '0 : place_read.word;

  always_ff @(posedge clk_i) begin
    if (save) whole_mem[slot_q] <= came_mem[slot_q] + many;
    if (save) place_mem[slot_q] <= at_q;
    else if (start) place_mem[start_slot_i] <= place_start;
  end

  always_ff @(posedge clk_i) begin
    if (pop) begin
      slot_q   <= pop_slot;
      mine_q   <= key_i;
      key_q    <= key_mem[pop_slot];
      next_q   <= next_mem[pop_slot];
      down_q   <= down_mem[pop_slot];
      failed_q <= error_q[pop_slot] && (place_read.mode != ModeStart);
    end
    less_q  <= key_q < mine_q;
    equal_q <= key_q == mine_q;
    last_q  <= (next_q.next == '0) || (next_q.next == at_q.at.bound);
    same_q  <= next_q.next == at_q.at.bound;
    at_q    <= at_d;
  end

  logic ended;
  logic found_q, found_d;
  assign ended = (at_q.cand == '0) || (at_q.cand == at_q.at.bound);

  always_comb begin
    state_d = state_q;
    at_d    = at_q;
    found_d = found_q;
    unique case (state_q)
      StEmpty: ;
      StCompare: state_d = StJudge;
      StJudge: begin
        // If the link leads on, its node is compared next.
        state_d = last_q ? StDrop : StAsk;
        unique case (at_q.mode)
          ModeStart: begin
            at_d.mode = ModeFetch;
            state_d   = StAsk;
          end
          ModeFetch: begin
            at_d.cand  = next_q.next;
            at_d.down  = down_q;
            at_d.known = at_q.asked;
            at_d.same  = at_q.same && same_q;
            at_d.mode  = ModeCompare;
          end
          ModeCompare, ModeMore: begin
            if (equal_q && (3'(at_q.word) + 3'd1 != at_q.at.words)) begin
              at_d.word = at_q.word + 1'b1;
              at_d.mode = ModeMore;
              state_d   = StAsk;
            end else if (equal_q && !at_q.at.scan) begin
              found_d   = 1'b1;
              at_d.mode = ModeHeader;
              state_d   = (at_q.at.level == '0) ? StDone : StAsk;
            end else if (less_q) begin
              at_d.at.pred = at_q.cand;
              at_d.cand    = next_q.next;
              at_d.down    = down_q;
              at_d.known   = at_q.asked;
              at_d.head    = 1'b0;
              at_d.word    = '0;
              at_d.mode    = ModeCompare;
            end else begin
              at_d.at.bound = at_q.cand;
              state_d       = StDrop;
            end
          end
          default: begin
            found_d = 1'b1;
            state_d = StDone;
          end
        endcase
        if (failed_q) state_d = StDone;
      end
      StCheck: begin
        at_d.mode = ModeCompare;
        at_d.same = at_q.same && (at_q.cand == at_q.at.bound);
        state_d   = ended ? StDrop : StAsk;
      end
      StDrop: begin
        at_d.mode     = ModeFetch;
        at_d.word     = '0;
        at_d.cand     = at_q.down;
        at_d.known    = 1'b0;
        at_d.at.level = at_q.at.level - 1'b1;
        state_d       = at_q.known ? StCheck : StAsk;
        if (at_q.at.level == at_q.at.stop) begin
          at_d.cand     = at_q.cand;
          at_d.at.level = at_q.at.level;
          state_d       = StDone;
        end
      end
      StAsk: if (ask_ready) state_d = StEmpty;
      StDone: if (done_ready_i) state_d = StEmpty;
      default: state_d = StEmpty;
    endcase
    if (pop) begin
      at_d    = place_read;
      found_d = 1'b0;
      state_d = StCompare;
    end
    // Whether the level below is asked for is decided with the first two words.
    if (state_d == StAsk && state_q != StAsk && (at_d.mode == ModeFetch || at_d.mode == ModeCompare)) begin
      at_d.asked = (at_d.at.level != at_d.at.stop) && (used_i <= 7'(Lookahead));
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q <= StEmpty;
      found_q <= 1'b0;
    end else begin
      state_q <= state_d;
      found_q <= found_d;
    end
  end

  assign save          = (state_q == StAsk) && ask_ready;
  assign path_valid_o  = (state_q == StDrop) && (at_q.at.level < at_q.at.height);
  assign path_slot_o   = slot_q;
  assign path_level_o  = at_q.at.level;
  assign path_pred_o   = at_q.at.pred;
  assign path_succ_o   = at_q.cand;
  assign empty_valid_o = (state_q == StDrop) && at_q.head && !at_q.at.again && (at_q.cand == '0);
  assign empty_table_o = at_q.at.tab;
  assign empty_level_o = at_q.at.level;
  assign done_valid_o  = state_q == StDone;
  assign done_slot_o   = slot_q;
  assign done_again_o  = at_q.at.again;
  assign done_error_o  = failed_q;
  assign done_same_o   = at_q.same;
  assign done_found_o  = found_q;
  assign done_live_o   = next_q.live;
  assign done_next_o   = at_q.cand;
  assign done_node_o   = found_q ? at_q.cand : at_q.at.pred;

  // Stage three: one word a cycle.
  logic [2:0]           wants_q, wants_d;  // key, link, link below
  logic [SlotWidth-1:0] ask_slot_q;
  node_t                ask_node_q;
  logic [5:0]           ask_link_q, ask_down_q, offset;  // so many words before the node
  logic [1:0]           ask_word_q;
  level_t               ask_level;
  logic [2:0]           left;
  logic                 sent;

  always_comb begin
    unique case (at_q.mode)
      ModeFetch:   wants_d = {at_q.asked, 2'b10};
      ModeCompare: wants_d = {at_q.asked, 2'b11};
      ModeMore:    wants_d = 3'b001;
      default:     wants_d = 3'b010;
    endcase
  end

  assign many        = 2'(wants_d[0]) + 2'(wants_d[1]) + 2'(wants_d[2]);
  assign left        = wants_q & (wants_q - 3'd1);
  assign sent        = mem_valid_o && mem_ready_i;
  assign ask_ready   = (wants_q == '0) || (sent && left == '0);
  assign mem_valid_o = wants_q != '0;
  assign ask_level   = (at_q.mode == ModeHeader) ? '0 : at_q.at.level;
  assign offset      = wants_q[0] ? 6'(ask_word_q) : wants_q[1] ? ask_link_q : ask_down_q;

  always_comb begin
    mem_req_o                   = '0;
    mem_req_o.addr              = {ask_node_q, 3'b000} - 37'(offset);
    mem_req_o.addr[3]           = mem_req_o.addr[3] || (wants_q[0] && ask_word_q == '0);
    mem_req_o.tag[2+:SlotWidth] = ask_slot_q;
    mem_req_o.tag[1:0]          = wants_q[0] ? 2'd0 : wants_q[1] ? 2'd1 : 2'd2;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) wants_q <= '0;
    else if (save) wants_q <= wants_d;
    else if (sent) wants_q <= left;
  end

  always_ff @(posedge clk_i) begin
    if (save) begin
      ask_slot_q <= slot_q;
      ask_node_q <= (at_q.mode == ModeFetch) ? at_q.at.pred : at_q.cand;
      ask_link_q <= link_below(ask_level, at_q.at.words);
      ask_down_q <= link_below(ask_level - 1'b1, at_q.at.words);
      ask_word_q <= (KeyWords == 1) ? '0 : at_q.word;
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) error_q <= '0;
    else begin
      if (start) error_q[start_slot_i] <= 1'b0;
      if (mem_valid_i && mem_rsp_i.error) error_q[rsp_slot] <= 1'b1;
    end
  end

`ifdef LW_ASSERT
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
    end else begin
      assert (!(mem_valid_i && came_mem[rsp_slot] == whole_mem[rsp_slot])) else $error("an answer to nobody");
      assert (32'(count_q) <= Slots) else $error("a slot is ready twice");
    end
  end
`endif
endmodule
