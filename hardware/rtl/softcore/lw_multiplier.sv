// Signed 64-bit multiplication with overflow detection. The operands are cut into halves of 32 bits; one multiplier
// makes the four partial products one after the other, lowest first, and one adder sums them up.

module lw_multiplier
  import lw_pkg::*;
(
  /// Everything happens on its rising edge.
  input  logic        clk_i,
  /// Forgets the multiplication.
  input  logic        rst_ni,
  /// Begin; only when `ready_o`.
  input  logic        valid_i,
  /// There is no multiplication.
  output logic        ready_o,
  /// Whose it is, and where it goes.
  input  context_t    ctx_i,
  /// Physical GP register.
  input  logic [7:0]  gp_i,
  /// A factor.
  input  logic [63:0] a_i,
  /// A factor.
  input  logic [63:0] b_i,
  /// A product, for one cycle, seven cycles after its factors.
  output logic        valid_o,
  /// As `ctx_i`.
  output context_t    ctx_o,
  /// As `gp_i`.
  output logic [7:0]  gp_o,
  /// The product's low half.
  output logic [63:0] value_o,
  /// The product does not fit.
  output logic        overflow_o
);

  // Cycles 1 to 4 multiply, 2 to 5 add, 6 compares, 7 tells.
  logic [2:0]  step_q;
  context_t    ctx_q;
  logic [7:0]  gp_q;
  logic [63:0] a_q, b_q;
  logic        a_high, b_high;
  assign a_high = step_q == 3'd3 || step_q == 3'd4;
  assign b_high = !step_q[0];

  logic signed [32:0] a_half, b_half;
  assign a_half = a_high ? {a_q[63], a_q[63:32]} : {1'b0, a_q[31:0]};
  assign b_half = b_high ? {b_q[63], b_q[63:32]} : {1'b0, b_q[31:0]};

  // The sum so far, from bit 32 on, then from bit 64 on.
  logic signed [65:0] partial_q;
  logic signed [66:0] sum_q;
  logic [63:0] value_q;
  logic        overflow_q;
  logic signed [66:0] rest;
  assign rest = step_q == 3'd5 ? {{32{sum_q[66]}}, sum_q[66:32]} : sum_q;

  always_ff @(posedge clk_i) begin
    if (step_q == 3'd0) begin
      ctx_q <= ctx_i;
      gp_q <= gp_i;
      a_q <= a_i;
      b_q <= b_i;
    end
    partial_q <= a_half * b_half;
    // The lowest product is unsigned; its low half is done.
    if (step_q == 3'd2) begin
      value_q[31:0] <= partial_q[31:0];
      sum_q <= {35'd0, partial_q[63:32]};
    end else begin
      sum_q <= rest + 67'(partial_q);
    end
    if (step_q == 3'd5) value_q[63:32] <= sum_q[31:0];
    overflow_q <= sum_q[63:0] != {64{value_q[63]}};
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) step_q <= '0;
    else if (step_q != '0) step_q <= step_q + 3'd1;
    else if (valid_i) step_q <= 3'd1;
  end

  assign ready_o = step_q == 3'd0;
  assign valid_o = step_q == 3'd7;
  assign ctx_o = ctx_q;
  assign gp_o = gp_q;
  assign value_o = value_q;
  assign overflow_o = overflow_q;

endmodule
