/// Of one channel of the fabric: from one sender to one receiver, what is sent arrives once, in order and unchanged, at
/// nobody else, and nothing else arrives as if it were of that sender, whatever the others send; and it has arrived
/// `Drain` cycles after senders fall silent and receivers take all.
module lw_fabric_properties #(
  /// Workers.
  parameter int unsigned Workers = 4,
  /// Topology.
  parameter int unsigned Topology = lw_pkg::TopologyRing,
  /// The sender that is followed.
  parameter int unsigned From = 0,
  /// The receiver that is followed.
  parameter int unsigned To = 1,
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

  // A message: whether it is of those that are followed, and its number.
  localparam int unsigned SeqWidth = 3;
  localparam int unsigned Width = 1 + SeqWidth;

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

  // How many were sent and received.
  logic [SeqWidth-1:0] sent_q, received_q;
  logic [Workers-1:0] waiting_q;
  lw_pkg::worker_t [Workers-1:0] dest_q;
  logic [4:0] time_q;
  logic silent, send, receive;

  assign silent  = time_q >= 5'(Free);
  assign sending = valid_i;
  assign taking  = ready_i;
  assign send    = sending[From] && ready[From] && dest_i[From] == lw_pkg::worker_t'(To);
  assign receive = valid[To] && taking[To] && data[To][SeqWidth];

  for (genvar w = 0; w < int'(Workers); w++) begin : gen_message
    assign sent[w] = (w == int'(From) && dest_i[w] == lw_pkg::worker_t'(To)) ? {1'b1, sent_q} : '0;
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
      if (send) sent_q <= sent_q + 1'b1;
      if (receive) received_q <= received_q + 1'b1;
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
        if (valid[w] && data[w][SeqWidth]) assert (w == To);
      end
      // In order, unchanged, not twice, and not what nobody has sent.
      if (valid[To] && data[To][SeqWidth]) begin
        assert (data[To][SeqWidth-1:0] == received_q && received_q != sent_q);
      end
      if (time_q >= 5'(Free + Drain)) assert (sent_q == received_q && sending == '0 && valid == '0);
      cover (time_q == 5'(Free) && waiting_q == '1 && sent_q != '0);
    end
  end

endmodule
