/// Of `lw_arbiter`: an input that waits is taken at the latest as the `Inputs`-th word; what comes out is the word of the
/// input that is told so; with `Lock` an offered word stays until it is taken.
module lw_arbiter_properties #(
  /// Streams.
  parameter int unsigned Inputs = 4,
  /// Bits of a word.
  parameter int unsigned Width = 2,
  /// As of the arbiter.
  parameter bit Lock = 1'b1
) (
  /// Clock.
  input logic                         clk_i,
  /// Free, but a word stays until it is taken.
  input logic [Inputs-1:0]            valid_i,
  /// Free, but a word stays until it is taken.
  input logic [Inputs-1:0][Width-1:0] data_i,
  /// Free: the consumer takes.
  input logic                         ready_i
);

  logic started_q;
  initial started_q = 1'b0;
  always_ff @(posedge clk_i) started_q <= 1'b1;

  logic valid;
  logic [Inputs-1:0] ready;
  logic [Width-1:0] data;

  lw_arbiter #(
    .Inputs(Inputs),
    .Width (Width),
    .Lock  (Lock)
  ) u_arbiter (
    .clk_i,
    .rst_ni (started_q),
    .valid_i(valid_i),
    .ready_o(ready),
    .data_i (data_i),
    .valid_o(valid),
    .ready_i(ready_i),
    .data_o (data)
  );

  logic [Inputs-1:0] valid_q, ready_q;
  logic [Inputs-1:0][Width-1:0] data_q;
  logic offered_q;
  logic [Width-1:0] offer_q;
  // Words of others that were taken while this input waited.
  logic [Inputs-1:0][$clog2(Inputs+1)-1:0] waited_q;

  always_ff @(posedge clk_i or negedge started_q) begin
    if (!started_q) begin
      valid_q   <= '0;
      ready_q   <= '0;
      data_q    <= '0;
      offered_q <= 1'b0;
      offer_q   <= '0;
      waited_q  <= '0;
    end else begin
      valid_q   <= valid_i;
      ready_q   <= ready;
      data_q    <= data_i;
      offered_q <= valid & ~ready_i;
      offer_q   <= data;
      for (int unsigned i = 0; i < Inputs; i++) begin
        if (!valid_i[i] || ready[i]) waited_q[i] <= '0;
        else if (valid && ready_i) waited_q[i] <= waited_q[i] + 1'b1;
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (started_q) begin
      for (int unsigned i = 0; i < Inputs; i++) begin
        if (valid_q[i] && !ready_q[i]) assume (valid_i[i] && data_i[i] == data_q[i]);
        if (ready[i]) assert (valid_i[i] && data == data_i[i]);
        assert (waited_q[i] < ($clog2(Inputs+1))'(Inputs));
      end
      assert (valid == (valid_i != '0));
      assert ((ready != '0) == (valid && ready_i));
      assert ((ready & (ready - 1'b1)) == '0);
      if (Lock && offered_q) assert (valid && data == offer_q);
      cover (waited_q[0] == ($clog2(Inputs+1))'(Inputs - 1) && ready[0]);
    end
  end

endmodule
