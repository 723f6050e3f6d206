/// Of `lw_credit`: what is here and what was taken are always all there are, and none is taken where none is.
module lw_credit_properties #(
  /// Credits.
  parameter int unsigned Credits = 5
) (
  /// Clock.
  input logic clk_i,
  /// Free: somebody wants one.
  input logic want_i,
  /// Free: somebody gives one back, who has one.
  input logic give_i
);

  localparam int unsigned CountWidth = $clog2(Credits + 1);

  logic started_q;
  initial started_q = 1'b0;
  always_ff @(posedge clk_i) started_q <= 1'b1;

  logic available, idle, take, give;
  logic [CountWidth-1:0] count, away_q;

  assign take = want_i & available;
  assign give = give_i && away_q != '0;

  lw_credit #(
    .Credits(Credits)
  ) u_credit (
    .clk_i,
    .rst_ni     (started_q),
    .take_i     (take),
    .give_i     (give),
    .available_o(available),
    .idle_o     (idle),
    .count_o    (count)
  );

  always_ff @(posedge clk_i or negedge started_q) begin
    if (!started_q) away_q <= '0;
    else away_q <= away_q + CountWidth'(take) - CountWidth'(give);
  end

  always_ff @(posedge clk_i) begin
    if (started_q) begin
      assert (count <= CountWidth'(Credits) && count == CountWidth'(Credits) - away_q);
      assert (away_q <= CountWidth'(Credits));
      assert (idle == (away_q == '0));
      assert (available == (away_q != CountWidth'(Credits)));
      cover (!available);
    end
  end

endmodule
