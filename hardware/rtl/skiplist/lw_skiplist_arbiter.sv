// Many handshakes to one, in turn, through a register.

module lw_skiplist_arbiter #(
    /// How many ask.
    parameter int unsigned Ports = 2,
    /// Bits of what they hand over.
    parameter int unsigned Width = 8
) (
    input  logic                        clk_i,
    input  logic                        rst_ni,

    /// Taken with valid and ready. Whoever was served last is served after all others that ask.
    input  logic [Ports-1:0]            valid_i,
    output logic [Ports-1:0]            ready_o,
    input  logic [Ports-1:0][Width-1:0] data_i,

    /// One cycle later; stays until ready. One a cycle.
    output logic                        valid_o,
    input  logic                        ready_i,
    output logic [Width-1:0]            data_o
);

  logic [Ports-1:0] later_q;  // those behind the last one served
  logic [Ports-1:0] behind, from, pick;
  logic             valid_q, take;
  logic [Width-1:0] data_q, data;

  assign behind  = valid_i & later_q;
  assign from    = (behind != '0) ? behind : valid_i;
  assign pick    = from & (~from + 1'b1);
  assign take    = !valid_q || ready_i;
  assign ready_o = take ? pick : '0;
  assign valid_o = valid_q;
  assign data_o  = data_q;

  always_comb begin
    data = '0;
    for (int unsigned i = 0; i < Ports; i++) data |= pick[i] ? data_i[i] : '0;
  end

  always_ff @(posedge clk_i) begin
    if (take) data_q <= data;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      valid_q <= 1'b0;
      later_q <= '0;
    end else if (take) begin
      valid_q <= valid_i != '0;
      if (valid_i != '0) later_q <= ~(pick | (pick - 1'b1));
    end
  end
endmodule
