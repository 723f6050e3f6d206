/// The rules of admission: from a decision word and a request to a verdict and the word after it. Combinational, or
/// with a register between comparing the times and deciding.
module lw_judge #(
  /// Bits of a count.
  parameter int unsigned CountWidth = 8,
  /// Whether there is the register. All inputs but the word and the time then belong to the cycle after these.
  parameter bit Registered = 1'b0,
  /// Bits of a word; follows from `CountWidth`.
  localparam int unsigned WordWidth = 2 * lw_pkg::TimeWidth + 2 * CountWidth + 4
) (
  /// Clock.
  input  logic                 clk_i,
  /// The word: {state, inserted, awaited, write_time, read_time, count, own}.
  input  logic [WordWidth-1:0] word_i,
  /// The transaction's time.
  input  lw_pkg::stamp_t       stamp_i,
  /// Whether a grant is let go.
  input  logic                 release_i,
  /// Else: whether the request is to write.
  input  logic                 write_i,
  /// Whether it is to insert.
  input  logic                 insert_i,
  /// Whether it can be parked.
  input  logic                 park_i,
  /// A request: it has to wait.
  output logic                 wait_o,
  /// A request: it comes too late, or a count is full. Neither: it is granted.
  output logic                 conflict_o,
  /// Granted: may meet one of its own transaction in the index, of which one inserts.
  output logic                 ordered_o,
  /// A release: the parked requests are to be tried.
  output logic                 wake_o,
  /// The word after it.
  output logic [WordWidth-1:0] word_o
);

  import lw_pkg::*;

  typedef enum logic [1:0] {
    Free     = 2'd0,
    Reserved = 2'd1,
    Dirty    = 2'd2
  } state_e;

  typedef struct packed {
    state_e                state;
    logic                  inserted;    // one of the grants of a dirty word is for an insert
    logic                  awaited;
    stamp_t                write_time;
    stamp_t                read_time;
    logic [CountWidth-1:0] count;
    logic [CountWidth-1:0] own;
  } word_t;

  // What comparing finds.
  typedef struct packed {
    logic written_by_it;
    logic written_later;
    logic read_by_it;
    logic read_later;
    logic others;  // grants of others
  } found_t;

  word_t given, now, next;
  found_t compared, found;
  stamp_t stamp;
  logic written_by_it, written_later, written_earlier, read_by_it, read_later, read_earlier, others;
  logic full, taken, too_late, must_wait;

  assign given                  = word_t'(word_i);
  assign word_o                 = next;
  assign compared.written_by_it = given.write_time == stamp_i;
  assign compared.written_later = given.write_time > stamp_i;
  assign compared.read_by_it    = given.read_time == stamp_i;
  assign compared.read_later    = given.read_time > stamp_i;
  assign compared.others        = given.count != (compared.read_by_it ? given.own : '0);

  if (Registered) begin : gen_registered
    word_t now_q;
    found_t found_q;
    stamp_t stamp_q;

    always_ff @(posedge clk_i) begin
      now_q   <= given;
      found_q <= compared;
      stamp_q <= stamp_i;
    end
    assign now   = now_q;
    assign found = found_q;
    assign stamp = stamp_q;
  end else begin : gen_at_once
    logic unused_clk;
    assign unused_clk = clk_i;
    assign now        = given;
    assign found      = compared;
    assign stamp      = stamp_i;
  end

  assign {written_by_it, written_later, read_by_it, read_later, others} = found;
  assign written_earlier = !written_by_it && !written_later;
  assign read_earlier    = !read_by_it && !read_later;
  assign full            = &now.count;
  assign taken           = now.state != Free;

  always_comb begin
    if (taken && !written_by_it) begin
      must_wait = written_earlier;
      too_late  = written_later;
    end else if (now.state == Dirty) begin
      must_wait = 1'b0;
      too_late  = 1'b0;
    end else if (now.state == Reserved) begin
      must_wait = others;
      too_late  = 1'b0;
    end else begin
      too_late  = written_later || (write_i && read_later);
      must_wait = write_i && others && !too_late;
    end
  end

  assign wait_o     = must_wait;
  assign conflict_o = too_late || (!must_wait && full);
  assign ordered_o  = (now.state == Dirty) ? now.inserted || insert_i : insert_i && read_by_it && now.own != '0;
  assign wake_o     = now.awaited && (now.count == CountWidth'(1) || now.state == Reserved);

  always_comb begin
    next = now;
    if (release_i) begin
      next.count = now.count - 1'b1;
      if (read_by_it && now.own != '0) next.own = now.own - 1'b1;
      if (now.state == Dirty && now.count == CountWidth'(1)) begin
        next.state    = Free;
        next.inserted = 1'b0;
      end
      if (wake_o) next.awaited = 1'b0;
    end else if (must_wait) begin
      if (park_i) begin
        next.awaited = 1'b1;
        if (!taken) begin
          next.state      = Reserved;
          next.write_time = stamp;
        end
      end
    end else if (conflict_o) begin
      // For whom it was reserved gives up.
      if (now.state == Reserved && written_by_it) next.state = Free;
    end else begin
      next.count = now.count + 1'b1;
      if (read_by_it) next.own = now.own + 1'b1;
      if (taken || write_i) begin
        next.state      = Dirty;
        next.write_time = stamp;
        if (insert_i) next.inserted = 1'b1;
      end else if (read_earlier) begin
        next.read_time = stamp;
        next.own       = CountWidth'(1);
      end
    end
  end

endmodule
