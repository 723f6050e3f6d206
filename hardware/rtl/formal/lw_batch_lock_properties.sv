// Whatever comes in, in whatever rhythm: two chains of one batch never hold a record in modes that exclude each other.
// The inputs are free; the record, the capacity and the limit are free constants.
module lw_batch_lock_properties (
  input logic clk_i,
  input logic [2:0] capacity_i,
  input logic [1:0] limit_i,
  input logic record_i,
  input logic access_valid_i,
  input logic [31:0] access_record_i,
  input logic [1:0] access_mode_i,
  input logic access_last_i,
  input logic close_i,
  input logic grant_ready_i
);

  logic begun_q = 1'b0;
  logic [2:0] capacity_q;
  logic [1:0] limit_q;
  logic record_q;
  always_ff @(posedge clk_i) begin
    begun_q <= 1'b1;
    if (!begun_q) begin
      capacity_q <= capacity_i;
      limit_q <= limit_i;
      record_q <= record_i;
    end
  end

  // Transactions are numbered; the run ends before numbers come again.
  logic [2:0] id_q = '0;
  logic access_ready, grant_valid;
  logic [1:0] grant_kind, grant_position, grant_chain;
  logic [2:0] grant_id;
  logic [1:0] deferred;

  lw_batch_lock #(
    .Records(2), .PositionWidth(2), .Deferred(2), .SetMax(2), .IdWidth(3), .EpochWidth(2)
  ) i_dut (
    .clk_i, .rst_ni(begun_q), .capacity_i(capacity_q), .deferred_limit_i(limit_q),
    .access_valid_i, .access_ready_o(access_ready), .access_id_i(id_q), .access_record_i, .access_mode_i,
    .access_last_i, .close_i,
    .grant_valid_o(grant_valid), .grant_ready_i, .grant_kind_o(grant_kind), .grant_id_o(grant_id),
    .grant_position_o(grant_position), .grant_chain_o(grant_chain), .deferred_o(deferred)
  );

  // In which mode each transaction wants the record.
  logic [7:0][1:0] wants_q = '0;
  // In which mode each chain of the batch holds it.
  logic [3:0][1:0] holds_q = '0;
  always_ff @(posedge clk_i) begin
    if (begun_q && access_valid_i && access_ready) begin
      if (access_record_i[0] == record_q) wants_q[id_q] <= wants_q[id_q] | access_mode_i;
      if (access_last_i) id_q <= id_q + 3'd1;
    end
    if (begun_q && grant_valid && grant_ready_i) begin
      if (grant_kind == 2'd0) holds_q[grant_chain] <= holds_q[grant_chain] | wants_q[grant_id];
      if (grant_kind == 2'd1) holds_q <= '0;
    end
  end

  always_comb begin
    if (begun_q) begin
      assume (capacity_q != '0 && capacity_q <= 3'd4);
      assume (limit_q != '0 && limit_q <= 2'd2);
      assume (id_q != 3'd7);
      assume (access_record_i < 32'd2);
      for (int a = 0; a < 4; a++) begin
        for (int b = 0; b < a; b++) begin
          assert (holds_q[a] == 2'd0 || holds_q[b] == 2'd0 || (holds_q[a] == holds_q[b] && holds_q[a] != 2'd3));
        end
      end
      assert (deferred <= limit_q);
    end
  end

endmodule
