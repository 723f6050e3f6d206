/// The rules of admission: from a decision word and a request to a verdict and the word after it. Combinational.
module lw_judge #(
  /// Bits of a count.
  parameter int unsigned CountWidth = 8,
  /// Bits of a word; follows from `CountWidth`.
  localparam int unsigned WordWidth = 2 * lw_pkg::TimeWidth + 2 * CountWidth + 4
) (
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

  word_t now, next;
  logic written_earlier, written_later, written_by_it, read_earlier, read_later, read_by_it;
  logic others, full, taken, too_late, must_wait;

  assign now             = word_t'(word_i);
  assign word_o          = next;
  assign written_by_it   = now.write_time == stamp_i;
  assign written_later   = now.write_time > stamp_i;
  assign written_earlier = !written_by_it && !written_later;
  assign read_by_it      = now.read_time == stamp_i;
  assign read_later      = now.read_time > stamp_i;
  assign read_earlier    = !read_by_it && !read_later;
  assign others          = now.count != (read_by_it ? now.own : '0);
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
          next.write_time = stamp_i;
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
        next.write_time = stamp_i;
        if (insert_i) next.inserted = 1'b1;
      end else if (read_earlier) begin
        next.read_time = stamp_i;
        next.own       = CountWidth'(1);
      end
    end
  end

endmodule
