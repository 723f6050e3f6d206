/// Of `lw_arbiter`: an input that waits is taken at the latest as the `Inputs`-th word; what comes out is the word of
/// the input that is told so; with `Lock` an offered word stays until it is taken.
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

  // For the induction: the turn begins at an input, and whoever waits has as many words before it as there are inputs
  // before it in the turn.
  localparam int unsigned CountWidth = $clog2(Inputs + 1) + 1;
  logic [Inputs-1:0] turn, held;
  logic [CountWidth-1:0] start;
  logic [Inputs-1:0][CountWidth-1:0] ahead;
  assign turn = u_arbiter.turn_q;

  always_comb begin
    start = '0;
    for (int unsigned i = 0; i < Inputs; i++) begin
      if (!turn[i]) start = CountWidth'((i + 1) % Inputs);
    end
    for (int unsigned i = 0; i < Inputs; i++) begin
      ahead[i] = CountWidth'(i) >= start ? CountWidth'(i) - start : CountWidth'(i + Inputs) - start;
    end
  end

  always_ff @(posedge clk_i) begin
    if (started_q) begin
      // Of ones from some bit upwards.
      assert ((~turn & (~turn + 1'b1)) == '0);
      for (int unsigned i = 0; i < Inputs; i++) begin
        if (waited_q[i] != '0) assert (CountWidth'(waited_q[i]) + ahead[i] < CountWidth'(Inputs));
        for (int unsigned h = 0; h < Inputs; h++) begin
          if (held[h] && ahead[i] < ahead[h]) assert (waited_q[i] == '0);
        end
      end
      assert ((held & (held - 1'b1)) == '0);
      assert (held == '0 || (offered_q && (held & valid_q) == held && (held & ready_q) == '0));
    end
  end

  if (Lock) begin : gen_held
    assign held = u_arbiter.gen_lock.held_q;
  end else begin : gen_none
    assign held = '0;
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
