/// Counts what may still be given away: places of a queue far away, requests outstanding, contexts.
module lw_credit #(
  /// Credits there are; all are here after reset.
  parameter int unsigned Credits = 8,
  /// Bits of `count_o`; follows from `Credits`.
  localparam int unsigned CountWidth = $clog2(Credits + 1)
) (
  /// Clock.
  input  logic                  clk_i,
  /// Asynchronous reset: all credits are here.
  input  logic                  rst_ni,
  /// One credit is taken; only in a cycle with `available_o`.
  input  logic                  take_i,
  /// One credit comes back; may come in the cycle in which another is taken.
  input  logic                  give_i,
  /// At least one credit is here; from registers alone.
  output logic                  available_o,
  /// All credits are here; from registers alone.
  output logic                  idle_o,
  /// Credits here, from a register.
  output logic [CountWidth-1:0] count_o
);

  localparam logic [CountWidth-1:0] All = CountWidth'(Credits);

  logic [CountWidth-1:0] count_q;

  assign available_o = count_q != '0;
  assign idle_o      = count_q == All;
  assign count_o     = count_q;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      count_q <= All;
    end else if (take_i != give_i) begin
      // One adder: by one, or by minus one.
      count_q <= count_q + (take_i ? '1 : CountWidth'(1));
    end
  end

`ifdef LW_ASSERT
  always_ff @(posedge clk_i) begin
    if (rst_ni) begin
      assert (!take_i || available_o)
      else $error("lw_credit: taken, but none is here");
      assert (!give_i || !idle_o)
      else $error("lw_credit: given back, but none is away");
    end
  end
`endif

endmodule
