// Signed 64-bit division, truncated, a bit a cycle. The caller has ruled out a divisor of zero and the one quotient
// that does not fit.

module lw_divider
  import lw_pkg::*;
(
  /// Everything happens on its rising edge.
  input  logic        clk_i,
  /// Forgets the division.
  input  logic        rst_ni,
  /// Begin; only when `ready_o`.
  input  logic        valid_i,
  /// There is no division.
  output logic        ready_o,
  /// Whose it is, and where it goes.
  input  context_t    ctx_i,
  /// Physical GP register.
  input  logic [7:0]  gp_i,
  /// Dividend.
  input  logic [63:0] a_i,
  /// Divisor.
  input  logic [63:0] b_i,
  /// A quotient, about 68 cycles after its beginning; held until taken.
  output logic        valid_o,
  /// It is taken.
  input  logic        ready_i,
  /// As `ctx_i`.
  output context_t    ctx_o,
  /// As `gp_i`.
  output logic [7:0]  gp_o,
  /// The quotient.
  output logic [63:0] value_o
);

  typedef enum logic [2:0] {
    Idle,
    Signs,
    Divide,
    Negate,
    Done
  } phase_e;

  phase_e      phase_q;
  context_t    ctx_q;
  logic [7:0]  gp_q;
  logic [5:0]  count_q;
  logic        negative_q, a_negative_q;
  logic [63:0] divisor_q, quotient_q;
  logic [62:0] rest_q;

  // One negation a stage: of the divisor when it comes, of the dividend and the quotient by the same adder.
  logic [63:0] negated, shifted;
  assign negated = 64'd0 - quotient_q;
  assign shifted = {rest_q, quotient_q[63]};
  // Divisors are at most 2^63 and rests smaller, so a rest fits 63 bits and the borrow of a difference tells.
  logic [64:0] difference;
  assign difference = {1'b0, shifted} - {1'b0, divisor_q};

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      phase_q <= Idle;
      ctx_q <= '0;
      gp_q <= '0;
      count_q <= '0;
      negative_q <= 1'b0;
      a_negative_q <= 1'b0;
      divisor_q <= '0;
      quotient_q <= '0;
      rest_q <= '0;
    end else begin
      unique case (phase_q)
        Idle: if (valid_i) begin
          phase_q <= Signs;
          ctx_q <= ctx_i;
          gp_q <= gp_i;
          negative_q <= a_i[63] ^ b_i[63];
          a_negative_q <= a_i[63];
          divisor_q <= b_i[63] ? 64'd0 - b_i : b_i;
          quotient_q <= a_i;
          rest_q <= '0;
          count_q <= 6'd63;
        end
        Signs: begin
          phase_q <= Divide;
          if (a_negative_q) quotient_q <= negated;
        end
        Divide: begin
          count_q <= count_q - 6'd1;
          rest_q <= difference[64] ? shifted[62:0] : difference[62:0];
          quotient_q <= {quotient_q[62:0], !difference[64]};
          if (count_q == 6'd0) phase_q <= Negate;
        end
        Negate: begin
          phase_q <= Done;
          if (negative_q) quotient_q <= negated;
        end
        Done: if (ready_i) phase_q <= Idle;
        default: phase_q <= Idle;
      endcase
    end
  end

  logic unused;
  assign unused = difference[63];

  assign ready_o = phase_q == Idle;
  assign valid_o = phase_q == Done;
  assign ctx_o = ctx_q;
  assign gp_o = gp_q;
  assign value_o = quotient_q;

endmodule
