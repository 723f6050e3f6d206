/// Of one channel of the fabric: between any sender and any receiver, what is sent arrives once, in order and unchanged,
/// nothing else arrives, and the fabric is empty `Drain` cycles after senders fall silent and receivers take all,
/// whatever has happened until then.
module lw_fabric_properties #(
  /// Workers.
  parameter int unsigned Workers = 4,
  /// Topology.
  parameter int unsigned Topology = lw_pkg::TopologyRing,
  /// Places of a queue; few, so that they fill within the bound of the proof.
  parameter int unsigned Depth = 1,
  /// Cycles in which anything may happen.
  parameter int unsigned Free = 8,
  /// Cycles that it takes to drain.
  parameter int unsigned Drain = 12
) (
  /// Clock.
  input logic                              clk_i,
  /// Free, but a message stays until it is taken.
  input logic            [Workers-1:0]     valid_i,
  /// Free: receivers, but never the sender.
  input lw_pkg::worker_t [Workers-1:0]     dest_i,
  /// Free: receivers take.
  input logic            [Workers-1:0]     ready_i
);

  localparam int unsigned Log = $clog2(Workers);
  localparam int unsigned SeqWidth = 4;
  localparam int unsigned Width = Log + SeqWidth;

  logic started_q;
  initial started_q = 1'b0;
  always_ff @(posedge clk_i) started_q <= 1'b1;

  logic [Workers-1:0] sending, ready, valid, taking;
  logic [Workers-1:0][Width-1:0] data, sent;

  if (Topology == lw_pkg::TopologyRing) begin : gen_ring
    lw_fabric_ring #(
      .Workers(Workers),
      .Width  (Width),
      .Depth  (Depth)
    ) u_channel (
      .clk_i,
      .rst_ni (started_q),
      .valid_i(sending),
      .ready_o(ready),
      .dest_i (dest_i),
      .data_i (sent),
      .valid_o(valid),
      .ready_i(taking),
      .data_o (data)
    );
  end else begin : gen_crossbar
    lw_fabric_crossbar #(
      .Workers(Workers),
      .Width  (Width),
      .Depth  (Depth)
    ) u_channel (
      .clk_i,
      .rst_ni (started_q),
      .valid_i(sending),
      .ready_o(ready),
      .dest_i (dest_i),
      .data_i (sent),
      .valid_o(valid),
      .ready_i(taking),
      .data_o (data)
    );
  end

  // Of every pair: how many were sent and received. A message is its sender and its number.
  logic [Workers-1:0][Workers-1:0][SeqWidth-1:0] sent_q, received_q;
  logic [Workers-1:0] waiting_q;
  lw_pkg::worker_t [Workers-1:0] dest_q;
  logic [7:0] time_q;
  logic silent;

  assign silent  = time_q >= 8'(Free);
  assign sending = valid_i;
  assign taking  = ready_i;

  for (genvar w = 0; w < int'(Workers); w++) begin : gen_message
    assign sent[w] = {Log'(w), sent_q[w][dest_i[w][Log-1:0]]};
  end

  always_ff @(posedge clk_i or negedge started_q) begin
    if (!started_q) begin
      sent_q     <= '0;
      received_q <= '0;
      waiting_q  <= '0;
      dest_q     <= '0;
      time_q     <= '0;
    end else begin
      if (time_q != '1) time_q <= time_q + 1'b1;
      waiting_q <= sending & ~ready;
      dest_q    <= dest_i;
      for (int unsigned w = 0; w < Workers; w++) begin
        if (sending[w] && ready[w]) begin
          sent_q[w][dest_i[w][Log-1:0]] <= sent_q[w][dest_i[w][Log-1:0]] + 1'b1;
        end
        if (valid[w] && taking[w]) begin
          received_q[data[w][SeqWidth+:Log]][w] <= received_q[data[w][SeqWidth+:Log]][w] + 1'b1;
        end
      end
    end
  end

  always_ff @(posedge clk_i) begin
    if (started_q) begin
      for (int unsigned w = 0; w < Workers; w++) begin
        assume (dest_i[w] < lw_pkg::worker_t'(Workers) && dest_i[w] != lw_pkg::worker_t'(w));
        if (waiting_q[w]) assume (valid_i[w] && dest_i[w] == dest_q[w]);
        if (silent) begin
          assume (ready_i[w]);
          if (!waiting_q[w]) assume (!valid_i[w]);
        end
        if (valid[w]) begin
          // In order, unchanged, not twice, and not what nobody has sent.
          assert (data[w][SeqWidth-1:0] == received_q[data[w][SeqWidth+:Log]][w]);
          assert (received_q[data[w][SeqWidth+:Log]][w] != sent_q[data[w][SeqWidth+:Log]][w]);
        end
      end
      if (time_q >= 8'(Free + Drain)) assert (sent_q == received_q && sending == '0);
      cover (time_q == 8'(Free) && waiting_q == '1);
    end
  end

endmodule
