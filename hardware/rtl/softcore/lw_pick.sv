// Round robin: the first set bit after the last one taken, else the first at all.

module lw_pick #(
  /// How many ask; a power of two, at least 2.
  parameter int unsigned Width = 16
) (
  /// Everything happens on its rising edge.
  input  logic                     clk_i,
  /// Begins at number 0.
  input  logic                     rst_ni,
  /// Who asks.
  input  logic [Width-1:0]         ask_i,
  /// The choice is taken; whoever was chosen is last from now on.
  input  logic                     take_i,
  /// Somebody asks; same cycle.
  output logic                     valid_o,
  /// Who is chosen; same cycle.
  output logic [$clog2(Width)-1:0] index_o
);

  // Ones above the last one taken.
  logic [Width-1:0] above_q;
  logic [Width-1:0] after, from, chosen;
  assign after = ask_i & above_q;
  assign from = after != '0 ? after : ask_i;
  assign chosen = from & (~from + Width'(1));
  assign valid_o = ask_i != '0;

  always_comb begin
    index_o = '0;
    for (int unsigned i = 0; i < Width; i++) begin
      if (chosen[i]) index_o |= ($clog2(Width))'(i);
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) above_q <= '0;
    else if (take_i && valid_o) above_q <= ~(chosen | (chosen - Width'(1)));
  end

endmodule
