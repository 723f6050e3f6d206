// Signed 64-bit multiplication with overflow detection, one a cycle. The operands are cut into 32-bit halves; each
// partial product has a stage of its own inside the DSP blocks, each sum a stage of its own.

module lw_multiplier
  import lw_pkg::*;
(
  /// Everything happens on its rising edge.
  input  logic        clk_i,
  /// Forgets what is in the stages.
  input  logic        rst_ni,
  /// There is something to multiply.
  input  logic        valid_i,
  /// Whose it is, and where it goes.
  input  context_t    ctx_i,
  /// Physical GP register.
  input  logic [7:0]  gp_i,
  /// A factor.
  input  logic [63:0] a_i,
  /// A factor.
  input  logic [63:0] b_i,
  /// A product, five cycles after its factors.
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

  localparam int unsigned Stages = 5;

  logic [Stages-1:0] valid_q;
  context_t [Stages-1:0] ctx_q;
  logic [Stages-1:0][7:0] gp_q;

  // Stage 1: operands. Stage 2: partial products. Stage 3: the two middle ones together, and the outer ones side by
  // side. Stage 4: low 64 bits with their carry. Stage 5: high 64 bits.
  logic [63:0] a_q, b_q;
  logic [63:0] ll_q;
  logic signed [65:0] lh_q, hl_q;
  logic signed [65:0] hh_q;
  logic [63:0] ll3_q;
  logic signed [65:0] middle_q;
  logic signed [65:0] hh3_q;
  logic [63:0] low_q;
  logic        carry_q;
  logic signed [65:0] middle4_q, hh4_q;
  logic [63:0] low5_q, high5_q;

  logic signed [32:0] a_low, b_low, a_high, b_high;
  assign a_low = {1'b0, a_q[31:0]};
  assign b_low = {1'b0, b_q[31:0]};
  assign a_high = {a_q[63], a_q[63:32]};
  assign b_high = {b_q[63], b_q[63:32]};

  logic [64:0] low_sum;
  assign low_sum = 65'(ll3_q) + {1'b0, middle_q[31:0], 32'b0};
  logic [63:0] high_sum;
  assign high_sum = hh4_q[63:0] + 64'(signed'(middle4_q[65:32])) + 64'(carry_q);

  always_ff @(posedge clk_i) begin
    a_q <= a_i;
    b_q <= b_i;
    ll_q <= 64'(a_q[31:0]) * 64'(b_q[31:0]);
    lh_q <= a_low * b_high;
    hl_q <= a_high * b_low;
    hh_q <= a_high * b_high;
    ll3_q <= ll_q;
    middle_q <= lh_q + hl_q;
    hh3_q <= hh_q;
    low_q <= low_sum[63:0];
    carry_q <= low_sum[64];
    middle4_q <= middle_q;
    hh4_q <= hh3_q;
    low5_q <= low_q;
    high5_q <= high_sum;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      valid_q <= '0;
      ctx_q <= '0;
      gp_q <= '0;
    end else begin
      valid_q <= {valid_q[Stages-2:0], valid_i};
      ctx_q <= {ctx_q[Stages-2:0], ctx_i};
      gp_q <= {gp_q[Stages-2:0], gp_i};
    end
  end

  assign valid_o = valid_q[Stages-1];
  assign ctx_o = ctx_q[Stages-1];
  assign gp_o = gp_q[Stages-1];
  assign value_o = low5_q;
  assign overflow_o = high5_q != {64{low5_q[63]}};

  logic unused;
  assign unused = ^{hh4_q[65:64], middle4_q[31:0]};

endmodule
