/// The parked requests of a worker, in the order in which they were parked, and whose they are.
///
/// A pass tries each of them once: `pass_i` marks all as not yet tried, the queue is popped, and what has to wait again
/// is pushed behind the others. `parked_o` then speaks of those that were tried, so that a transaction's later request
/// never overtakes an earlier one.
module lw_park #(
  /// Bits of a request.
  parameter int unsigned Width = 8,
  /// Requests; a power of two.
  parameter int unsigned Depth = 16,
  /// Bits that say whose a request is.
  parameter int unsigned OwnerWidth = 10,
  /// Bits of `count_o`; follows from `Depth`.
  localparam int unsigned CountWidth = $clog2(Depth + 1)
) (
  /// Clock.
  input  logic                  clk_i,
  /// Asynchronous reset: empties it.
  input  logic                  rst_ni,
  /// A pass begins: none has been tried in it.
  input  logic                  pass_i,
  /// A request is parked; only if not full.
  input  logic                  push_i,
  /// The request.
  input  logic [Width-1:0]      data_i,
  /// Whose it is.
  input  logic [OwnerWidth-1:0] owner_i,
  /// The oldest one is taken; only if not empty.
  input  logic                  pop_i,
  /// The oldest one, an asynchronous read.
  output logic [Width-1:0]      data_o,
  /// Who is asked about.
  input  logic [OwnerWidth-1:0] look_i,
  /// Only what was parked since the pass began counts.
  input  logic                  look_tried_i,
  /// A request of this owner is parked, in the same cycle.
  output logic                  parked_o,
  /// Requests, from a register.
  output logic [CountWidth-1:0] count_o,
  /// As many as there can be, from a register.
  output logic                  full_o
);

  localparam int unsigned PointerWidth = $clog2(Depth);

  (* ram_style = "distributed" *) logic [Width-1:0] memory_q [Depth];
  logic [Depth-1:0][OwnerWidth-1:0] owner_q;
  logic [Depth-1:0] valid_q, tried_q, match;
  logic [PointerWidth-1:0] head_q, tail_q;
  logic [CountWidth-1:0] count_q;

  assign data_o   = memory_q[head_q];
  assign count_o  = count_q;
  assign full_o   = count_q == CountWidth'(Depth);
  assign parked_o = |match;

  for (genvar i = 0; i < int'(Depth); i++) begin : gen_match
    assign match[i] = valid_q[i] && (tried_q[i] || !look_tried_i) && owner_q[i] == look_i;
  end

  always_ff @(posedge clk_i) begin
    if (push_i) begin
      memory_q[tail_q] <= data_i;
      owner_q[tail_q]  <= owner_i;
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      valid_q <= '0;
      tried_q <= '0;
      head_q  <= '0;
      tail_q  <= '0;
      count_q <= '0;
    end else begin
      if (pass_i) tried_q <= '0;
      if (pop_i) begin
        valid_q[head_q] <= 1'b0;
        head_q          <= head_q + 1'b1;
      end
      if (push_i) begin
        valid_q[tail_q] <= 1'b1;
        tried_q[tail_q] <= 1'b1;
        tail_q          <= tail_q + 1'b1;
      end
      count_q <= count_q + CountWidth'(push_i) - CountWidth'(pop_i);
    end
  end

`ifdef LW_ASSERT
  always_ff @(posedge clk_i) begin
    if (rst_ni) begin
      assert (!push_i || !full_o) else $error("lw_park: a request is lost");
      assert (!pop_i || count_q != '0) else $error("lw_park: there is none");
    end
  end
`endif

endmodule
