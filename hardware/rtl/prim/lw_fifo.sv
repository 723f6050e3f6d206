/// A queue in LUTRAM, first-word fall-through: what is written in one cycle is at the head in the next. Takes and gives
/// one word a cycle; with `Depth` 2 or more both at once, without a path from `ready_i` to `ready_o`.
module lw_fifo #(
  /// Bits of a word.
  parameter int unsigned Width = 8,
  /// Words it holds; need not be a power of two.
  parameter int unsigned Depth = 4,
  /// Bits of `count_o`; follows from `Depth`.
  localparam int unsigned CountWidth = $clog2(Depth + 1)
) (
  /// Clock.
  input  logic                  clk_i,
  /// Asynchronous reset: empties it.
  input  logic                  rst_ni,
  /// A word comes in; taken in a cycle with `ready_o`.
  input  logic                  valid_i,
  /// Not full; from registers alone.
  output logic                  ready_o,
  /// The word that comes in.
  input  logic [Width-1:0]      data_i,
  /// Not empty; from registers alone.
  output logic                  valid_o,
  /// The head is taken in this cycle, if `valid_o`.
  input  logic                  ready_i,
  /// The head, an asynchronous read; means nothing without `valid_o`.
  output logic [Width-1:0]      data_o,
  /// Words in it, from a register.
  output logic [CountWidth-1:0] count_o
);

  localparam int unsigned PointerWidth = Depth > 1 ? $clog2(Depth) : 1;
  localparam logic [PointerWidth-1:0] Last = PointerWidth'(Depth - 1);
  // Whether pointers come back to 0 before they overflow.
  localparam bit Wraps = Depth != 1 << PointerWidth;
  localparam logic [CountWidth-1:0] Full = CountWidth'(Depth);

  (* ram_style = "distributed" *) logic [Width-1:0] memory_q [Depth];
  logic [PointerWidth-1:0] head_q, tail_q;
  logic [CountWidth-1:0] count_q;
  logic push, pop;

  assign ready_o = count_q != Full;
  assign valid_o = count_q != '0;
  assign count_o = count_q;
  assign data_o  = memory_q[head_q];
  assign push    = valid_i & ready_o;
  assign pop     = valid_o & ready_i;

  always_ff @(posedge clk_i) begin
    if (push) memory_q[tail_q] <= data_i;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      head_q  <= '0;
      tail_q  <= '0;
      count_q <= '0;
    end else begin
      if (push) tail_q <= (Wraps && tail_q == Last) ? '0 : tail_q + 1'b1;
      if (pop) head_q <= (Wraps && head_q == Last) ? '0 : head_q + 1'b1;
      // One adder: by one, or by minus one.
      if (push != pop) count_q <= count_q + (pop ? '1 : CountWidth'(1));
    end
  end

`ifdef LW_ASSERT
  always_ff @(posedge clk_i) begin
    if (rst_ni) begin
      assert (count_q <= Full)
      else $error("lw_fifo: more words than places");
    end
  end
`endif

endmodule
