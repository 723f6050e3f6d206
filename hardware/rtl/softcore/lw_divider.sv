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
    Divisor,   // made positive
    Dividend,  // made positive
    Divide,
    Quotient,  // made negative
    Done
  } phase_e;

  phase_e      phase_q;
  context_t    ctx_q;
  logic [7:0]  gp_q;
  logic [5:0]  count_q;
  logic        negative_q;
  logic [63:0] divisor_q, quotient_q;
  logic [62:0] rest_q;

  // One subtraction serves all phases. Divisors are at most 2^63 and rests smaller, so a rest fits 63 bits and the
  // borrow of a difference tells.
  logic [63:0] shifted, minuend, subtrahend;
  logic [64:0] difference;
  assign shifted = {rest_q, quotient_q[63]};
  assign minuend = phase_q == Divide ? shifted : '0;
  assign subtrahend = phase_q == Dividend || phase_q == Quotient ? quotient_q : divisor_q;
  assign difference = {1'b0, minuend} - {1'b0, subtrahend};

  always_ff @(posedge clk_i) begin
    unique case (phase_q)
      Divisor:  if (divisor_q[63]) divisor_q <= difference[63:0];
      Dividend: if (quotient_q[63]) quotient_q <= difference[63:0];
      Divide:   quotient_q <= {quotient_q[62:0], !difference[64]};
      Quotient: if (negative_q) quotient_q <= difference[63:0];
      default: begin
        if (phase_q == Idle) begin
          ctx_q <= ctx_i;
          gp_q <= gp_i;
          negative_q <= a_i[63] ^ b_i[63];
          divisor_q <= b_i;
          quotient_q <= a_i;
        end
      end
    endcase
    if (phase_q != Divide) rest_q <= '0;
    else rest_q <= difference[64] ? shifted[62:0] : difference[62:0];
    if (phase_q == Divide) count_q <= count_q - 6'd1;
    else count_q <= 6'd63;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      phase_q <= Idle;
    end else begin
      unique case (phase_q)
        Idle:     if (valid_i) phase_q <= Divisor;
        Divisor:  phase_q <= Dividend;
        Dividend: phase_q <= Divide;
        Divide:   if (count_q == 6'd0) phase_q <= Quotient;
        Quotient: phase_q <= Done;
        Done:     if (ready_i) phase_q <= Idle;
        default:  phase_q <= Idle;
      endcase
    end
  end

  assign ready_o = phase_q == Idle;
  assign valid_o = phase_q == Done;
  assign ctx_o = ctx_q;
  assign gp_o = gp_q;
  assign value_o = quotient_q;

endmodule
