module counter #(
    parameter int unsigned Width = 8
) (
    input  logic             clk_i,
    input  logic             rst_ni,
    input  logic [Width-1:0] step_i,
    output logic [Width-1:0] count_o,
    output logic [99:0]      wide_o,
    input  logic [79:0]      wide_i
);
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) count_o <= '0;
    else count_o <= count_o + step_i;
  end
  assign wide_o = {20'd0, ~wide_i};
`ifdef LW_ASSERT
  assert property (@(posedge clk_i) disable iff (!rst_ni) step_i != 13);
`endif
endmodule
