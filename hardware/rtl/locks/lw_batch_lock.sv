// Batch lock manager in front of the workers: decides, transaction by transaction, who may run in this batch.
//
// HOBBES (section 3.3.3, Algorithm 1), mended as the `batch` manager of the locking crate does it, and with the same
// decisions in the same order. One decision word a record, in block RAM:
//
//   chain    position of the first transaction of the chain that holds the record
//   many     several chains hold it side by side, in one compatible mode
//   held     join of the modes granted in this batch
//   reserved join of the modes that deferred transactions will want
//   written  somebody asked for more than shared in this batch
//   heat     not 0: readers are chained with writers; batches without a writer until the record is cold
//   epoch    the batch for which all of this but `heat` and `written` holds
//
// A transaction is a list of accesses and passes over the words twice: it is judged while it comes in, then its words
// are written; each pass takes one access a cycle. What conflicts with one chain is appended to it; what conflicts with
// more is deferred: it is judged again in front of the next batch, and its records are reserved meanwhile, so nobody
// overtakes it. The next batch is one addition to the epoch. When the epoch has run through, the words are walked once
// and marked as of no batch, which changes no decision.
//
// Two transactions of one batch in different chains never conflict, and a chain has to run in order: let
// worker `chain mod workers` run it. The effects of a batch must be complete before the next one runs: whoever takes
// the grants takes nothing behind `KindEnd` until then. The unit decides the next grant meanwhile.
module lw_batch_lock #(
  /// Records: numbers from 0. A power of two, at least 2. Each takes a decision word.
  parameter int unsigned Records = 1024,
  /// Bits of a position in a batch, which has at most 2^PositionWidth transactions.
  parameter int unsigned PositionWidth = 10,
  /// Most transactions deferred. A power of two, at least 2.
  parameter int unsigned Deferred = 64,
  /// Most accesses of a transaction. A power of two, at least 2.
  parameter int unsigned SetMax = 16,
  /// Bits of the name that the host gave a transaction.
  parameter int unsigned IdWidth = 16,
  /// Bits of the epoch, at least 2.
  parameter int unsigned EpochWidth = 18,
  localparam int unsigned RecordWidth = $clog2(Records),
  localparam int unsigned DeferredWidth = $clog2(Deferred),
  localparam int unsigned SetWidth = $clog2(SetMax)
) (
  /// Clock; everything on its rising edge.
  input  logic clk_i,
  /// Asynchronous reset. The words are cleared behind it, which takes `Records` cycles.
  input  logic rst_ni,

  /// Most transactions in one batch, 1 to 2^PositionWidth. Constant while not in reset.
  input  logic [PositionWidth:0] capacity_i,
  /// When so many are deferred the batch closes, 1 to `Deferred`. Constant while not in reset.
  input  logic [DeferredWidth:0] deferred_limit_i,

  /// An access is there. A transaction is its accesses one after the other.
  input  logic access_valid_i,
  /// The access is taken in this cycle; does not depend on `access_valid_i`.
  output logic access_ready_o,
  /// The name of its transaction, the same with each access.
  input  logic [IdWidth-1:0] access_id_i,
  /// The record. One that there is not makes its transaction `KindUnknown`.
  input  logic [31:0] access_record_i,
  /// 1 shared, 2 intent, 3 exclusive; 0 none: a transaction without accesses is one such beat.
  input  logic [1:0] access_mode_i,
  /// The last access of its transaction.
  input  logic access_last_i,
  /// Nothing more is to come for now: a batch that has taken all that there is closes.
  input  logic close_i,

  /// A decision is there, and stays until it is taken.
  output logic grant_valid_o,
  /// The decision is taken in this cycle.
  input  logic grant_ready_i,
  /// 0 granted, 1 end of the batch, 2 refused: names an unknown record, 3 refused: too many accesses.
  output logic [1:0] grant_kind_o,
  /// The transaction.
  output logic [IdWidth-1:0] grant_id_o,
  /// Its position in the batch; behind the end, how many the batch has, modulo 2^PositionWidth.
  output logic [PositionWidth-1:0] grant_position_o,
  /// Position of the first transaction of its chain; its own if it begins one.
  output logic [PositionWidth-1:0] grant_chain_o,
  /// Transactions deferred now.
  output logic [DeferredWidth:0] deferred_o
);

  localparam logic [1:0] KindGrant = 2'd0;
  localparam logic [1:0] KindEnd = 2'd1;
  localparam logic [1:0] KindUnknown = 2'd2;
  localparam logic [1:0] KindTooLong = 2'd3;
  localparam int unsigned RingWidth = DeferredWidth + SetWidth;

  typedef logic [PositionWidth-1:0] position_t;
  typedef logic [RecordWidth-1:0] record_t;

  typedef struct packed {
    logic [1:0] heat;
    logic       written;
    logic [1:0] reserved;
    logic [1:0] held;
    logic       many;
    position_t  chain;
  } state_t;

  typedef struct packed {
    logic [EpochWidth-1:0] epoch;
    state_t                state;
  } word_t;

  typedef struct packed {
    logic       last;
    logic [1:0] mode;
    record_t    record;
  } access_t;

  typedef struct packed {
    logic [IdWidth-1:0] id;
    access_t            access;
  } kept_t;

  typedef enum logic [3:0] {
    StSweep,   // walk over all words
    StBegin,   // a new batch
    StNext,    // the next transaction: deferred ones first; takes the first access of a new one
    StRetry,   // take the accesses of a deferred one
    StTake,    // take its other accesses
    StDrain,   // the last word is judged
    StDecide,
    StUpdate,  // write the words
    StRotate,  // a deferred one is not even judged: the batch is full
    StEnd
  } st_e;

  // Whether somebody in `held` mode excludes one who wants `wanted`, which is not 0.
  function automatic logic clash(logic [1:0] held, logic [1:0] wanted);
    return held != 2'd0 && (held != wanted || wanted == 2'd3);
  endfunction

  function automatic state_t as_of(word_t word, logic [EpochWidth-1:0] epoch);
    state_t cooled;
    cooled = '0;
    cooled.heat = (word.state.heat != 2'd0 && !word.state.written) ? word.state.heat - 2'd1 : word.state.heat;
    return word.epoch == epoch ? word.state : cooled;
  endfunction

  st_e st_q, st_d;
  logic [EpochWidth-1:0] epoch_q, epoch_d;
  logic [PositionWidth:0] grants_q, grants_d;
  logic [DeferredWidth:0] deferred_q, deferred_d;
  logic [DeferredWidth:0] waiting_q, waiting_d;  // deferred before this batch and not judged in it
  logic bad_q, bad_d;                            // the transaction `bad_id_q` is to be refused
  logic bad_long_q, bad_long_d;
  logic [IdWidth-1:0] bad_id_q, bad_id_d;
  logic [IdWidth-1:0] id_q, id_d;
  logic [SetWidth:0] count_q, count_d;           // accesses in the set buffer
  logic [SetWidth:0] at_q, at_d;
  logic wipe_q, wipe_d;
  record_t sweep_q, sweep_d;
  logic sweep_read_q, sweep_read_d;
  logic retry_q, retry_d;                        // this one was deferred before

  // Verdict.
  logic judged_q, judged_d;                      // a word comes from memory for the verdict
  logic [1:0] judged_mode_q, judged_mode_d;
  logic chained_q, chained_d;
  position_t chain_q, chain_d;
  logic defer_q, defer_d;

  // Write pass.
  logic update_q, update_d;
  logic [1:0] update_mode_q, update_mode_d;
  record_t update_record_q, update_record_d;
  position_t grant_chain_q, grant_chain_d;

  // Decision out.
  logic out_valid_q, out_valid_d;
  logic [1:0] out_kind_q, out_kind_d;
  logic [IdWidth-1:0] out_id_q, out_id_d;
  position_t out_position_q, out_position_d, out_chain_q, out_chain_d;

  // Decision words: one read, one write a cycle.
  word_t words [Records];
  word_t word_q;
  record_t read_record;
  logic write_word;
  record_t write_record;
  word_t write_data;
  // What was written in the cycle in which it was read.
  logic same_q;
  word_t same_word_q;

  always_ff @(posedge clk_i) begin
    word_q <= words[read_record];
    same_word_q <= write_data;
    if (write_word) words[write_record] <= write_data;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) same_q <= 1'b0;
    else same_q <= write_word && write_record == read_record;
  end

  word_t word;
  state_t state;
  assign word = same_q ? same_word_q : word_q;
  assign state = as_of(word, epoch_q);

  // Accesses of the transaction in hand that came before.
  logic [SetWidth:0] earlier;
  assign earlier = st_q == StNext ? '0 : count_q;

  // Accesses of the transaction in hand.
  access_t set_buffer [SetMax];
  logic set_write;
  access_t set_access;
  access_t set_at;
  assign set_at = set_buffer[at_q[SetWidth-1:0]];

  always_ff @(posedge clk_i) begin
    if (set_write) set_buffer[earlier[SetWidth-1:0]] <= set_access;
  end

  // Accesses of deferred transactions, first in, first out.
  kept_t ring [2**RingWidth];
  kept_t ring_q;
  logic [RingWidth-1:0] ring_head_q, ring_head_d, ring_tail_q, ring_tail_d;
  logic ring_write;
  kept_t ring_data;

  always_ff @(posedge clk_i) begin
    ring_q <= ring[ring_head_d];
    if (ring_write) ring[ring_tail_q] <= ring_data;
  end

  logic closed;
  assign closed = grants_q >= capacity_i || deferred_q >= deferred_limit_i;

  // New accesses are taken while their transaction is the one in hand.
  logic open;
  assign open = st_q == StTake || (st_q == StNext && waiting_q == '0 && !closed && !bad_q);
  assign access_ready_o = open;

  logic out_free;
  assign out_free = !out_valid_q || grant_ready_i;

  logic unknown;
  assign unknown = access_mode_i != 2'd0 && access_record_i >= 32'(Records);

  // The state of the word after the decision.
  state_t granted, reserved;
  logic [1:0] effective;
  always_comb begin
    effective = update_mode_q | {2{state.heat != 2'd0}};
    granted = state;
    granted.held = state.held | effective;
    granted.written = state.written | update_mode_q[1];
    granted.many = state.many | (state.held != 2'd0 && state.chain != grant_chain_q);
    granted.chain = grant_chain_q;
    reserved = state;
    reserved.reserved = state.reserved | update_mode_q;
    reserved.written = state.written | update_mode_q[1];
    if (state.many && clash(state.held, update_mode_q)) reserved.heat = 2'd3;
  end

  always_comb begin
    st_d = st_q;
    epoch_d = epoch_q;
    grants_d = grants_q;
    deferred_d = deferred_q;
    waiting_d = waiting_q;
    bad_d = bad_q;
    bad_long_d = bad_long_q;
    bad_id_d = bad_id_q;
    id_d = id_q;
    count_d = count_q;
    at_d = at_q;
    wipe_d = wipe_q;
    sweep_d = sweep_q;
    sweep_read_d = 1'b0;
    retry_d = retry_q;
    judged_d = 1'b0;
    judged_mode_d = judged_mode_q;
    chained_d = chained_q;
    chain_d = chain_q;
    defer_d = defer_q;
    update_d = 1'b0;
    update_mode_d = set_at.mode;
    update_record_d = set_at.record;
    grant_chain_d = grant_chain_q;
    out_valid_d = out_valid_q && !grant_ready_i;
    out_kind_d = out_kind_q;
    out_id_d = out_id_q;
    out_position_d = out_position_q;
    out_chain_d = out_chain_q;
    ring_head_d = ring_head_q;
    ring_tail_d = ring_tail_q;
    ring_write = 1'b0;
    ring_data = '{id: id_q, access: set_at};
    set_write = 1'b0;
    set_access = '{last: access_last_i, mode: access_mode_i, record: access_record_i[RecordWidth-1:0]};
    read_record = set_at.record;
    write_word = 1'b0;
    write_record = update_record_q;
    write_data = '{epoch: epoch_q, state: defer_q ? reserved : granted};

    // A word that was read is judged, or written, in the next cycle.
    if (judged_q) begin
      if (clash(state.reserved, judged_mode_q)) defer_d = 1'b1;
      if (clash(state.held, judged_mode_q | {2{state.heat != 2'd0}})) begin
        if (state.many || (chained_q && chain_q != state.chain)) defer_d = 1'b1;
        chained_d = 1'b1;
        chain_d = state.chain;
      end
    end
    if (update_q) write_word = 1'b1;

    unique case (st_q)
      StSweep: begin
        read_record = sweep_q;
        sweep_read_d = 1'b1;
        write_word = sweep_read_q;
        write_record = sweep_q - 1'b1;
        write_data = '{epoch: '0, state: wipe_q ? '0 : word.state};
        sweep_d = sweep_q + 1'b1;
        if (sweep_read_q && sweep_q == '0) begin
          wipe_d = 1'b0;
          st_d = StBegin;
          sweep_d = '0;
          sweep_read_d = 1'b0;
        end
      end

      StBegin: begin
        if (&epoch_q) begin
          epoch_d = '0;
          st_d = StSweep;
        end else begin
          epoch_d = epoch_q + 1'b1;
          grants_d = '0;
          waiting_d = deferred_q;
          st_d = StNext;
        end
      end

      StNext: begin
        count_d = '0;
        at_d = '0;
        chained_d = 1'b0;
        defer_d = 1'b0;
        retry_d = waiting_q != '0;
        if (waiting_q != '0) begin
          waiting_d = waiting_q - 1'b1;
          id_d = ring_q.id;
          st_d = grants_q >= capacity_i ? StRotate : StRetry;
        end else if (closed || (bad_q && (grants_q != '0 || deferred_q != '0))) begin
          st_d = StEnd;
        end else if (bad_q) begin
          // Nothing stands in front of it any more.
          if (out_free) begin
            out_valid_d = 1'b1;
            out_kind_d = bad_long_q ? KindTooLong : KindUnknown;
            out_id_d = bad_id_q;
            bad_d = 1'b0;
            st_d = StBegin;
          end
        end else if (!access_valid_i && close_i && grants_q != '0) begin
          st_d = StEnd;
        end
      end

      StTake: ;

      StRetry: begin
        read_record = ring_q.access.record;
        judged_d = 1'b1;
        judged_mode_d = ring_q.access.mode;
        set_write = 1'b1;
        set_access = ring_q.access;
        count_d = count_q + 1'b1;
        ring_head_d = ring_head_q + 1'b1;
        if (ring_q.access.last) st_d = StDrain;
      end

      StDrain: st_d = StDecide;

      StDecide: begin
        grant_chain_d = chained_q ? chain_q : grants_q[PositionWidth-1:0];
        if (defer_q) begin
          if (!retry_q) deferred_d = deferred_q + 1'b1;
          st_d = StUpdate;
        end else if (out_free) begin
          if (retry_q) deferred_d = deferred_q - 1'b1;
          out_valid_d = 1'b1;
          out_kind_d = KindGrant;
          out_id_d = id_q;
          out_position_d = grants_q[PositionWidth-1:0];
          out_chain_d = grant_chain_d;
          grants_d = grants_q + 1'b1;
          st_d = count_q == '0 ? StNext : StUpdate;
        end
      end

      StUpdate: begin
        update_d = 1'b1;
        at_d = at_q + 1'b1;
        ring_write = defer_q;
        ring_data.access.last = at_q + 1'b1 == count_q;
        if (defer_q) ring_tail_d = ring_tail_q + 1'b1;
        // The last word is written in the next cycle, in which none is judged.
        if (at_q + 1'b1 == count_q) st_d = StNext;
      end

      StRotate: begin
        ring_write = 1'b1;
        ring_data = ring_q;
        ring_head_d = ring_head_q + 1'b1;
        ring_tail_d = ring_tail_q + 1'b1;
        if (ring_q.access.last) st_d = StNext;
      end

      StEnd: begin
        if (out_free) begin
          out_valid_d = 1'b1;
          out_kind_d = KindEnd;
          out_position_d = grants_q[PositionWidth-1:0];
          st_d = StBegin;
        end
      end

      default: st_d = StBegin;
    endcase

    if (open && access_valid_i) begin
      read_record = access_record_i[RecordWidth-1:0];
      judged_d = access_mode_i != 2'd0;
      judged_mode_d = access_mode_i;
      id_d = access_id_i;
      if (unknown) bad_d = 1'b1;
      if (st_q == StNext) bad_long_d = 1'b0;
      if (access_mode_i != 2'd0) begin
        if (earlier[SetWidth]) begin
          bad_d = 1'b1;
          bad_long_d = 1'b1;
        end else begin
          set_write = 1'b1;
          count_d = earlier + 1'b1;
        end
      end
      bad_id_d = access_id_i;
      if (!access_last_i) st_d = StTake;
      else st_d = bad_d ? StNext : StDrain;
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      st_q <= StSweep;
      epoch_q <= '0;
      grants_q <= '0;
      deferred_q <= '0;
      waiting_q <= '0;
      bad_q <= 1'b0;
      bad_long_q <= 1'b0;
      bad_id_q <= '0;
      id_q <= '0;
      count_q <= '0;
      at_q <= '0;
      wipe_q <= 1'b1;
      sweep_q <= '0;
      sweep_read_q <= 1'b0;
      retry_q <= 1'b0;
      judged_q <= 1'b0;
      judged_mode_q <= '0;
      chained_q <= 1'b0;
      chain_q <= '0;
      defer_q <= 1'b0;
      update_q <= 1'b0;
      update_mode_q <= '0;
      update_record_q <= '0;
      grant_chain_q <= '0;
      out_valid_q <= 1'b0;
      out_kind_q <= '0;
      out_id_q <= '0;
      out_position_q <= '0;
      out_chain_q <= '0;
      ring_head_q <= '0;
      ring_tail_q <= '0;
    end else begin
      st_q <= st_d;
      epoch_q <= epoch_d;
      grants_q <= grants_d;
      deferred_q <= deferred_d;
      waiting_q <= waiting_d;
      bad_q <= bad_d;
      bad_long_q <= bad_long_d;
      bad_id_q <= bad_id_d;
      id_q <= id_d;
      count_q <= count_d;
      at_q <= at_d;
      wipe_q <= wipe_d;
      sweep_q <= sweep_d;
      sweep_read_q <= sweep_read_d;
      retry_q <= retry_d;
      judged_q <= judged_d;
      judged_mode_q <= judged_mode_d;
      chained_q <= chained_d;
      chain_q <= chain_d;
      defer_q <= defer_d;
      update_q <= update_d;
      update_mode_q <= update_mode_d;
      update_record_q <= update_record_d;
      grant_chain_q <= grant_chain_d;
      out_valid_q <= out_valid_d;
      out_kind_q <= out_kind_d;
      out_id_q <= out_id_d;
      out_position_q <= out_position_d;
      out_chain_q <= out_chain_d;
      ring_head_q <= ring_head_d;
      ring_tail_q <= ring_tail_d;
    end
  end

  assign grant_valid_o = out_valid_q;
  assign grant_kind_o = out_kind_q;
  assign grant_id_o = out_id_q;
  assign grant_position_o = out_position_q;
  assign grant_chain_o = out_chain_q;
  assign deferred_o = deferred_q;

endmodule
