/// Admission: timestamp ordering on decision words (BionicDB, section 4.7; the rules are in hardware/rtl/README.md).
///
/// One request or release a cycle; two of one decision word four cycles apart. Stage A has a request and reads its
/// word, B has the word come out of the block RAM, C compares the times, D decides and writes. A waits while its word
/// is in B, C or D. What is not needed to decide lies aside meanwhile, under a number (`items_q`).
///
/// Order: a request of a transaction that has one parked is parked behind it, so a transaction's requests are granted
/// in program order. While the parked ones are tried (a pass) no other request is judged. A release in the middle of a
/// pass makes the rest of the pass go round unjudged, and a new one begin. Releases need no room anywhere, so
/// whoever holds up the grants by waiting for a release gets it through.
module lw_admission #(
  /// Decision words; a power of two, 64 to 16384.
  parameter int unsigned Entries = 4096,
  /// Words of the widest key in normal form, 1 to 4.
  parameter int unsigned KeyWords = 4,
  /// Requests that can be parked; a power of two.
  parameter int unsigned Park = 64,
  /// Bits of a count of grants.
  parameter int unsigned CountWidth = 8,
  /// Streams of releases.
  parameter int unsigned Releases = 4
) (
  /// Clock.
  input  logic                                  clk_i,
  /// Asynchronous reset; the words are zeroed after it.
  input  logic                                  rst_ni,
  /// This worker.
  input  lw_pkg::worker_t                       worker_i,
  /// Zeroes all words; only when there is no request and no grant; a pulse.
  input  logic                                  clear_i,
  /// Words are zeroed, or requests are parked or between the stages; from registers.
  output logic                                  busy_o,
  /// A new request has been parked, in the cycle before; from a register.
  output logic                                  parked_o,
  /// A request; taken in a cycle with `req_ready_o`.
  input  logic                                  req_valid_i,
  /// Follows the valid of what is preferred (releases, parked ones, rows of scans) in the same cycle.
  output logic                                  req_ready_o,
  /// The request.
  input  lw_pkg::lookup_t                       req_i,
  /// Releases.
  input  logic              [Releases-1:0]      release_valid_i,
  /// One of them is taken.
  output logic              [Releases-1:0]      release_ready_o,
  /// The releases.
  input  lw_pkg::release_t  [Releases-1:0]      release_i,
  /// A scanner asks to read a row; answered in order.
  input  logic                                  row_valid_i,
  /// It is taken; follows `row_valid_i`, `req_valid_i` and `release_valid_i` in the same cycle.
  output logic                                  row_ready_o,
  /// The row.
  input  lw_pkg::row_req_t                      row_i,
  /// The answer to the oldest row; the scanner takes it in this cycle.
  output logic                                  row_valid_o,
  /// What it is.
  output lw_pkg::row_verdict_e                  row_verdict_o,
  /// Its decision word.
  output lw_pkg::entry_t                        row_entry_o,
  /// A request that goes on; stays until taken; from a queue.
  output logic                                  grant_valid_o,
  /// It is taken.
  input  logic                                  grant_ready_i,
  /// The request.
  output lw_pkg::grant_t                        grant_o,
  /// The answer to a request that comes too late; stays until taken; from a queue.
  output logic                                  conflict_valid_o,
  /// It is taken.
  input  logic                                  conflict_ready_i,
  /// The answer.
  output lw_pkg::response_t                     conflict_o
);

  import lw_pkg::*;

  localparam int unsigned EntryBits = $clog2(Entries);
  localparam int unsigned WordWidth = 2 * TimeWidth + 2 * CountWidth + 4;
  localparam int unsigned QueueDepth = 16;
  localparam int unsigned ParkCount = $clog2(Park + 1);
  // Requests that are here: as many as can be parked, and some more.
  localparam int unsigned Items = Park + 16;
  localparam int unsigned ItemBits = $clog2(Items);

  typedef logic [EntryBits-1:0] index_t;

  typedef logic [ItemBits-1:0] number_t;

  // A request, from when it is taken until it is answered or goes on.
  typedef struct packed {
    table_t                    tab;
    stamp_t                    stamp;
    return_t                   ret;
    op_e                       op;
    logic                      judged;
    hash_t                     hash;
    logic [15:0]               limit;
    logic [5:0]                source;
    addr_t                     result;
    logic [KeyWords-1:0][63:0] key;
  } item_t;

  // What is decided by.
  typedef struct packed {
    number_t number;
    op_e     op;
    stamp_t  stamp;
    return_t ret;
    logic    tree;
    logic    judge;
  } case_t;

  // With its decision word's number.
  typedef struct packed {
    case_t  what;
    index_t entry;
  } parked_t;

  typedef struct packed {
    number_t number;
    logic    tree;
    logic    ordered;
    logic    granted;
    index_t  entry;
  } go_t;

  typedef struct packed {
    number_t number;
    return_t ret;
    op_e     op;
  } late_t;

  typedef enum logic [1:0] {
    ClassRelease,
    ClassNew,
    ClassAgain,  // parked before
    ClassRow     // of a scan
  } class_e;

  function automatic index_t entry_of(input index_t hash, input table_t tab);
    return hash ^ (index_t'(tab) << (EntryBits - TableWidth));
  endfunction

  // ---------------------------------------------------------------------------------------------------------------
  // Selection
  // ---------------------------------------------------------------------------------------------------------------

  typedef enum logic [1:0] {
    PassNone,
    PassDrain,  // requests between the stages are parked
    PassTry
  } pass_e;

  pass_e pass_q;
  logic wake_q, wake, pass_begins;
  logic [ParkCount-1:0] left_q, park_count;
  logic park_full, park_push, park_pop, parked;
  parked_t park_item;
  item_t new_item, item;
  case_t new_case;
  number_t new_number;
  logic number_free;
  logic release_valid, release_take, room, again_take, row_take, new_take;
  logic may_new, choose_row, turn_q;
  release_t chosen_release;
  logic a_free, a_go;
  logic a_valid_q, b_valid_q, c_valid_q, d_valid_q;
  class_e a_class_q, b_class_q, c_class_q, d_class_q;
  case_t a_case_q, b_case_q, c_case_q, d_case_q;
  index_t a_entry_q, b_entry_q, c_entry_q, d_entry_q;
  logic any_new, any_again;
  logic [4:0] go_count, late_count;
  logic sweep_q;
  index_t sweep_at_q;

  lw_arbiter #(
    .Inputs(Releases),
    .Width ($bits(release_t)),
    .Lock  (1'b0)
  ) u_releases (
    .clk_i,
    .rst_ni,
    .valid_i(release_valid_i),
    .ready_o(release_ready_o),
    .data_i (release_i),
    .valid_o(release_valid),
    .ready_i(release_take),
    .data_o (chosen_release)
  );

  always_comb begin
    new_item        = '0;
    new_item.op     = req_i.op;
    new_item.tab    = req_i.tab;
    new_item.stamp  = req_i.stamp;
    new_item.ret    = req_i.ret;
    new_item.judged = req_i.judged;
    new_item.hash   = req_i.hash;
    new_item.limit  = req_i.limit;
    new_item.source = req_i.source;
    new_item.result = req_i.result;
    new_item.key    = req_i.key[KeyWords-1:0];
    new_case        = '{number: new_number, op: req_i.op, stamp: req_i.stamp, ret: req_i.ret, tree: req_i.tree,
                        judge: req_i.judged && req_i.op != OpScan};
  end

  // Up to four requests are between the stages, and one leaves them now.
  assign room         = go_count <= 5'(QueueDepth - 5) && late_count <= 5'(QueueDepth - 5);
  assign a_free       = (!a_valid_q || a_go) && !sweep_q;
  assign release_take = a_free;
  assign again_take   = a_free && !release_valid && room && pass_q == PassTry && left_q != '0;
  // A scanner that asks again and again does not keep others out: new requests and rows take turns.
  assign may_new      = req_valid_i && room && number_free && pass_q == PassNone && !wake_q;
  assign choose_row   = row_valid_i && !(may_new && turn_q);
  assign row_ready_o  = a_free && !release_valid && !again_take && choose_row;
  assign row_take     = row_ready_o;
  assign req_ready_o  = a_free && !release_valid && !choose_row && may_new;
  assign new_take     = req_ready_o;
  assign park_pop     = again_take;

  // ---------------------------------------------------------------------------------------------------------------
  // The stages
  // ---------------------------------------------------------------------------------------------------------------

  // A word that is about to be written is never read.
  (* no_rw_check *) logic [WordWidth-1:0] words_q [Entries];
  logic [WordWidth-1:0] b_word_q, c_word_q, word_after;
  logic d_write, judged_wait, judged_conflict, judged_ordered, judged_wake;
  logic d_request, d_park, d_round, d_late, d_granted, d_turned_away;

  assign a_go = !(b_valid_q && b_entry_q == a_entry_q) && !(c_valid_q && c_entry_q == a_entry_q) &&
                !(d_valid_q && d_entry_q == a_entry_q);

  always_ff @(posedge clk_i) begin
    if (a_go) b_word_q <= words_q[a_entry_q];
    if (d_write || sweep_q) begin
      words_q[sweep_q ? sweep_at_q : d_entry_q] <= sweep_q ? '0 : word_after;
    end
  end

  lw_judge #(
    .CountWidth(CountWidth),
    .Registered(1'b1)
  ) u_judge (
    .clk_i,
    .word_i    (c_word_q),
    .stamp_i   (c_case_q.stamp),
    .release_i (d_class_q == ClassRelease),
    .write_i   (d_class_q != ClassRow && d_case_q.op != OpSearch),
    .insert_i  (d_class_q != ClassRow && d_case_q.op == OpInsert),
    .park_i    (d_class_q != ClassRow),
    .wait_o    (judged_wait),
    .conflict_o(judged_conflict),
    .ordered_o (judged_ordered),
    .wake_o    (judged_wake),
    .word_o    (word_after)
  );

  // Unjudged: a pass is about to begin, or this one has been overtaken by a release, or an earlier one is parked.
  assign d_request = d_valid_q && (d_class_q == ClassNew || d_class_q == ClassAgain);
  assign d_round   = wake_q || (d_class_q == ClassNew && pass_q != PassNone) || parked;
  assign d_park    = d_request && (d_round || (d_case_q.judge && judged_wait));
  // A request that was parked has kept its place.
  assign d_turned_away = d_class_q == ClassNew && park_full;
  assign park_push = d_park && !d_turned_away;
  assign d_late    = d_request && ((d_park && d_turned_away) || (!d_round && d_case_q.judge && judged_conflict));
  assign d_granted = d_request && !d_park && !d_late;
  assign d_write   = d_valid_q && d_case_q.judge &&
                     (d_class_q == ClassRelease || d_class_q == ClassRow || !d_round && !(d_park && d_turned_away));
  assign wake      = d_valid_q && d_class_q == ClassRelease && judged_wake;

  assign row_valid_o   = d_valid_q && d_class_q == ClassRow;
  assign row_entry_o   = EntryWidth'(d_entry_q);
  assign row_verdict_o = judged_wait ? RowWait : (judged_conflict ? RowConflict : RowGranted);

  lw_park #(
    .Width     ($bits(parked_t)),
    .Depth     (Park),
    .OwnerWidth($bits(worker_t) + $bits(context_t))
  ) u_park (
    .clk_i,
    .rst_ni,
    .pass_i      (pass_begins),
    .push_i      (park_push),
    .data_i      ({d_case_q, d_entry_q}),
    .owner_i     ({d_case_q.ret.worker, d_case_q.ret.ctx}),
    .pop_i       (park_pop),
    .data_o      (park_item),
    .look_i      ({d_case_q.ret.worker, d_case_q.ret.ctx}),
    .look_tried_i(d_class_q == ClassAgain),
    .parked_o    (parked),
    .count_o     (park_count),
    .full_o      (park_full)
  );

  assign any_new   = (a_valid_q && a_class_q == ClassNew) || (b_valid_q && b_class_q == ClassNew) ||
                     (c_valid_q && c_class_q == ClassNew) || (d_valid_q && d_class_q == ClassNew);
  assign any_again = (a_valid_q && a_class_q == ClassAgain) || (b_valid_q && b_class_q == ClassAgain) ||
                     (c_valid_q && c_class_q == ClassAgain) || (d_valid_q && d_class_q == ClassAgain);

  always_comb begin
    pass_begins = 1'b0;
    unique case (pass_q)
      PassDrain: pass_begins = !any_new;
      PassTry:   pass_begins = left_q == '0 && !any_again && wake_q;
      default:   pass_begins = 1'b0;
    endcase
  end

  always_ff @(posedge clk_i) begin
    if (a_free) begin
      if (release_valid) begin
        a_class_q      <= ClassRelease;
        a_case_q.stamp <= chosen_release.stamp;
        a_case_q.judge <= 1'b1;
        a_entry_q      <= chosen_release.entry[EntryBits-1:0];
      end else if (again_take) begin
        a_class_q <= ClassAgain;
        a_case_q  <= park_item.what;
        a_entry_q <= park_item.entry;
      end else if (choose_row) begin
        a_class_q      <= ClassRow;
        a_case_q.stamp <= row_i.stamp;
        a_case_q.judge <= 1'b1;
        a_entry_q      <= entry_of(row_i.hash[EntryBits-1:0], row_i.tab);
      end else begin
        a_class_q <= ClassNew;
        a_case_q  <= new_case;
        a_entry_q <= entry_of(req_i.hash[EntryBits-1:0], req_i.tab);
      end
    end
    b_class_q <= a_class_q;
    b_case_q  <= a_case_q;
    b_entry_q <= a_entry_q;
    c_class_q <= b_class_q;
    c_case_q  <= b_case_q;
    c_entry_q <= b_entry_q;
    d_class_q <= c_class_q;
    d_case_q  <= c_case_q;
    d_entry_q <= c_entry_q;
    c_word_q  <= b_word_q;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      a_valid_q  <= 1'b0;
      b_valid_q  <= 1'b0;
      c_valid_q  <= 1'b0;
      d_valid_q  <= 1'b0;
      pass_q     <= PassNone;
      wake_q     <= 1'b0;
      turn_q     <= 1'b0;
      left_q     <= '0;
      sweep_q    <= 1'b1;
      sweep_at_q <= '0;
    end else begin
      if (a_free) a_valid_q <= release_valid || again_take || row_take || new_take;
      b_valid_q <= a_valid_q && a_go;
      if (row_take || new_take) turn_q <= row_take;
      c_valid_q <= b_valid_q;
      d_valid_q <= c_valid_q;
      if (wake) begin
        wake_q <= 1'b1;
      end else if (pass_begins) begin
        wake_q <= 1'b0;
      end
      if (again_take) left_q <= left_q - 1'b1;
      unique case (pass_q)
        PassDrain: if (pass_begins) begin
          pass_q <= PassTry;
          left_q <= park_count;
        end
        PassTry: if (pass_begins) begin
          left_q <= park_count;
        end else if (left_q == '0 && !any_again) begin
          pass_q <= PassNone;
        end
        default: if (wake_q) pass_q <= PassDrain;
      endcase
      if (sweep_q) begin
        sweep_at_q <= sweep_at_q + 1'b1;
        if (&sweep_at_q) sweep_q <= 1'b0;
      end else if (clear_i) begin
        sweep_q <= 1'b1;
      end
    end
  end

  // To be counted.
  logic parked_q;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) parked_q <= 1'b0;
    else         parked_q <= park_push && d_class_q == ClassNew;
  end
  assign parked_o = parked_q;

  assign busy_o = sweep_q || a_valid_q || b_valid_q || c_valid_q || d_valid_q || park_count != '0;

  // ---------------------------------------------------------------------------------------------------------------
  // Queues behind
  // ---------------------------------------------------------------------------------------------------------------

  go_t go_in, go_out;
  late_t late_in, late_out;
  logic late_valid, late_pop, freed_valid_q, go_pop;
  number_t freed_q;
  (* ram_style = "distributed" *) item_t items_q [Items];
  logic unused_go_ready, unused_late_ready, unused_bits;

  assign go_in   = '{number: d_case_q.number, tree: d_case_q.tree, ordered: d_case_q.judge && judged_ordered,
                     granted: d_case_q.judge, entry: d_entry_q};
  assign late_in = '{number: d_case_q.number, ret: d_case_q.ret, op: d_case_q.op};
  assign go_pop  = grant_valid_o && grant_ready_i;
  // One number comes back in a cycle: that of a conflict after that of a grant.
  assign conflict_valid_o = late_valid && !freed_valid_q;
  assign late_pop         = conflict_valid_o && conflict_ready_i;
  assign item             = items_q[go_out.number];
  assign unused_bits      = ^{chosen_release, a_case_q, b_case_q, c_case_q, d_case_q};

  always_ff @(posedge clk_i) begin
    if (new_take) items_q[new_number] <= new_item;
    if (late_pop) freed_q <= late_out.number;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      freed_valid_q <= 1'b0;
    end else if (late_pop) begin
      freed_valid_q <= 1'b1;
    end else if (!go_pop) begin
      freed_valid_q <= 1'b0;
    end
  end

  lw_slots #(
    .Slots(Items)
  ) u_numbers (
    .clk_i,
    .rst_ni,
    .valid_o(number_free),
    .take_i (new_take),
    .slot_o (new_number),
    .free_i (go_pop || freed_valid_q),
    .slot_i (go_pop ? go_out.number : freed_q)
  );

  lw_fifo #(
    .Width($bits(go_t)),
    .Depth(QueueDepth)
  ) u_go (
    .clk_i,
    .rst_ni,
    .valid_i(d_granted),
    .ready_o(unused_go_ready),
    .data_i (go_in),
    .valid_o(grant_valid_o),
    .ready_i(grant_ready_i),
    .data_o (go_out),
    .count_o(go_count)
  );

  lw_fifo #(
    .Width($bits(late_t)),
    .Depth(QueueDepth)
  ) u_late (
    .clk_i,
    .rst_ni,
    .valid_i(d_late),
    .ready_o(unused_late_ready),
    .data_i (late_in),
    .valid_o(late_valid),
    .ready_i(late_pop),
    .data_o (late_out),
    .count_o(late_count)
  );

  always_comb begin
    grant_o            = '0;
    grant_o.req.op     = item.op;
    grant_o.req.tab    = item.tab;
    grant_o.req.stamp  = item.stamp;
    grant_o.req.ret    = item.ret;
    grant_o.req.judged = item.judged;
    grant_o.req.tree   = go_out.tree;
    grant_o.req.hash   = item.hash;
    grant_o.req.limit  = item.limit;
    grant_o.req.source = item.source;
    grant_o.req.result = item.result;
    for (int unsigned w = 0; w < KeyWords; w++) grant_o.req.key[w] = item.key[w];
    grant_o.granted    = go_out.granted;
    grant_o.ordered    = go_out.ordered;
    grant_o.entry      = EntryWidth'(go_out.entry);
    conflict_o         = '0;
    conflict_o.ret     = late_out.ret;
    conflict_o.op      = late_out.op;
    conflict_o.answer  = AnswerConflict;
    conflict_o.owner   = worker_i;
  end

`ifdef LW_ASSERT
  always_ff @(posedge clk_i) begin
    if (rst_ni) begin
      assert (!d_granted || unused_go_ready) else $error("lw_admission: a grant is lost");
      assert (!d_late || unused_late_ready) else $error("lw_admission: a conflict is lost");
      assert (!(d_valid_q && d_class_q == ClassRelease && &word_after[CountWidth+:CountWidth]))
      else $error("lw_admission: a grant is let go that nobody has");
    end
  end
`endif

endmodule
