/// Numbers of free slots, the first ones in order, then as they come back.
module lw_slots #(
  /// How many there are, 2 to 64.
  parameter int unsigned Slots = 48,
  /// Bits of a number; follows from `Slots`.
  localparam int unsigned SlotWidth = $clog2(Slots)
) (
  /// Clock.
  input  logic       clk_i,
  /// Asynchronous reset: all are free.
  input  logic       rst_ni,
  /// There is a free one; from registers.
  output logic       valid_o,
  /// It is taken; only with `valid_o`.
  input  logic       take_i,
  /// Which one, in the same cycle.
  output logic [SlotWidth-1:0] slot_o,
  /// One comes back.
  input  logic       free_i,
  /// Which one.
  input  logic [SlotWidth-1:0] slot_i
);

  localparam int unsigned CountWidth = $clog2(Slots + 1);

  logic [CountWidth-1:0] used_q, unused_count;
  logic first, back_valid, unused_ready;
  logic [SlotWidth-1:0] back;

  // Slots that were never taken go first.
  assign first   = used_q != CountWidth'(Slots);
  assign valid_o = first || back_valid;
  assign slot_o  = first ? SlotWidth'(used_q) : back;

  lw_fifo #(
    .Width(SlotWidth),
    .Depth(Slots)
  ) u_back (
    .clk_i,
    .rst_ni,
    .valid_i(free_i),
    .ready_o(unused_ready),
    .data_i (slot_i),
    .valid_o(back_valid),
    .ready_i(take_i && !first),
    .data_o (back),
    .count_o(unused_count)
  );

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      used_q <= '0;
    end else if (take_i && first) begin
      used_q <= used_q + 1'b1;
    end
  end

endmodule
