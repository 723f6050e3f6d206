/// Of `lw_fifo`: any word that was taken in comes out once, unchanged and in its place, and nothing else; never more than
/// `Depth` words are inside.
module lw_fifo_properties #(
  /// Bits of a word.
  parameter int unsigned Width = 4,
  /// Places.
  parameter int unsigned Depth = 3
) (
  /// Clock.
  input logic             clk_i,
  /// Free: a word comes.
  input logic             valid_i,
  /// Free: the word.
  input logic [Width-1:0] data_i,
  /// Free: the head is taken.
  input logic             ready_i,
  /// Free: this is the word that is followed, if none was yet.
  input logic             follow_i
);

  localparam int unsigned CountWidth = $clog2(Depth + 1);
  localparam int unsigned PointerWidth = Depth > 1 ? $clog2(Depth) : 1;

  logic started_q;
  initial started_q = 1'b0;
  always_ff @(posedge clk_i) started_q <= 1'b1;

  logic ready, valid;
  logic [Width-1:0] data;
  logic [CountWidth-1:0] count;

  lw_fifo #(
    .Width(Width),
    .Depth(Depth)
  ) u_fifo (
    .clk_i,
    .rst_ni (started_q),
    .valid_i(valid_i),
    .ready_o(ready),
    .data_i (data_i),
    .valid_o(valid),
    .ready_i(ready_i),
    .data_o (data),
    .count_o(count)
  );

  // The followed word, and how many words are before it.
  logic inside_q;
  logic [Width-1:0] word_q;
  logic [CountWidth-1:0] before_q;
  logic push, pop;

  assign push = valid_i & ready;
  assign pop  = valid & ready_i;

  always_ff @(posedge clk_i or negedge started_q) begin
    if (!started_q) begin
      inside_q <= 1'b0;
      word_q   <= '0;
      before_q <= '0;
    end else if (!inside_q) begin
      inside_q <= push & follow_i;
      word_q   <= data_i;
      before_q <= count - CountWidth'(pop);
    end else if (pop) begin
      inside_q <= before_q != '0;
      before_q <= before_q - 1'b1;
    end
  end

  // Where the followed word is in memory.
  logic [PointerWidth:0] place;
  assign place = (PointerWidth+1)'(u_fifo.head_q) + (PointerWidth+1)'(before_q);

  always_ff @(posedge clk_i) begin
    if (started_q) begin
      assert (count <= CountWidth'(Depth));
      assert (valid == (count != '0));
      assert (ready == (count != CountWidth'(Depth)));
      assert (u_fifo.head_q < PointerWidth'(Depth) || Depth == 1 << PointerWidth);
      assert (u_fifo.tail_q < PointerWidth'(Depth) || Depth == 1 << PointerWidth);
      assert ((PointerWidth+1)'(u_fifo.tail_q) ==
              ((PointerWidth+2)'(u_fifo.head_q) + (PointerWidth+2)'(count)) % (PointerWidth+2)'(Depth));
      if (inside_q) begin
        assert (before_q < count);
        if (before_q == '0) assert (data == word_q);
        assert (u_fifo.memory_q[PointerWidth'((PointerWidth+2)'(place) % (PointerWidth+2)'(Depth))] == word_q);
      end
      cover (count == CountWidth'(Depth) && inside_q && before_q != '0);
    end
  end

endmodule
