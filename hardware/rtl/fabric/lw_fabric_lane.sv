/// One direction of one station of the ring: takes messages from the station before, hands those that have arrived to the
/// worker and passes the others on, together with those that the worker injects.
///
/// Two virtual channels: a message starts on channel 0 and changes to channel 1 on the one link of the ring that is the
/// date line. See `lw_fabric_ring`.
module lw_fabric_lane #(
  /// Bits of a worker's number.
  parameter int unsigned DestWidth = 2,
  /// Bits of a message without its destination.
  parameter int unsigned Width = 8,
  /// Places of each virtual channel, at least 2 for a message a cycle.
  parameter int unsigned Depth = 2,
  /// The worker at this station.
  parameter logic [DestWidth-1:0] Here = '0,
  /// Whether the link to the next station is the date line.
  parameter bit DateLine = 1'b0
) (
  /// Clock.
  input  logic                            clk_i,
  /// Asynchronous reset.
  input  logic                            rst_ni,
  /// The station before sends, one bit a virtual channel, at most one, and only where `space_o` is set.
  input  logic [1:0]                      link_i,
  /// Which virtual channels have a place; from registers alone.
  output logic [1:0]                      space_o,
  /// What it sends: destination, message.
  input  logic [DestWidth+Width-1:0]      data_i,
  /// To the next station, like `link_i`.
  output logic [1:0]                      link_o,
  /// Which virtual channels of the next station have a place.
  input  logic [1:0]                      space_i,
  /// What is sent: destination, message.
  output logic [DestWidth+Width-1:0]      data_o,
  /// The worker injects a message.
  input  logic                            inject_valid_i,
  /// It is taken, in the same cycle.
  output logic                            inject_ready_o,
  /// Destination and message.
  input  logic [DestWidth+Width-1:0]      inject_data_i,
  /// A message has arrived, one bit a virtual channel; from registers.
  output logic [1:0]                      eject_valid_o,
  /// It is taken.
  input  logic [1:0]                      eject_ready_i,
  /// The messages.
  output logic [1:0][Width-1:0]           eject_data_o
);

  logic [1:0] head_valid, head_ready, head_here;
  logic [1:0][DestWidth+Width-1:0] head_data;
  // Of virtual channel 0, of 1, of the worker.
  logic [2:0] wants, taken;
  logic unused_valid;

  for (genvar c = 0; c < 2; c++) begin : gen_channel
    logic [$clog2(Depth+1)-1:0] unused_count;

    lw_fifo #(
      .Width(DestWidth + Width),
      .Depth(Depth)
    ) u_queue (
      .clk_i,
      .rst_ni,
      .valid_i(link_i[c]),
      .ready_o(space_o[c]),
      .data_i (data_i),
      .valid_o(head_valid[c]),
      .ready_i(head_ready[c]),
      .data_o (head_data[c]),
      .count_o(unused_count)
    );

    assign head_here[c]     = head_data[c][Width+:DestWidth] == Here;
    assign eject_valid_o[c] = head_valid[c] & head_here[c];
    assign eject_data_o[c]  = head_data[c][Width-1:0];
    assign head_ready[c]    = head_here[c] ? eject_ready_i[c] : taken[c];
  end

  // Only this link fills the next station's channels: space that is there stays until it is used.
  assign wants[0] = head_valid[0] & ~head_here[0] & space_i[DateLine];
  assign wants[1] = head_valid[1] & ~head_here[1] & space_i[1];
  assign wants[2] = inject_valid_i & space_i[DateLine];

  lw_arbiter #(
    .Inputs(3),
    .Width (DestWidth + Width),
    .Lock  (1'b0)
  ) u_arbiter (
    .clk_i,
    .rst_ni,
    .valid_i(wants),
    .ready_o(taken),
    .data_i ({inject_data_i, head_data[1], head_data[0]}),
    .valid_o(unused_valid),
    .ready_i(1'b1),
    .data_o (data_o)
  );

  assign inject_ready_o = taken[2];

  if (DateLine) begin : gen_date_line
    assign link_o = {|taken, 1'b0};
  end else begin : gen_link
    assign link_o = {taken[1], taken[0] | taken[2]};
  end

`ifdef LW_ASSERT
  always_ff @(posedge clk_i) begin
    if (rst_ni) begin
      assert ((link_i & ~space_o) == '0)
      else $error("lw_fabric_lane: sent to a full channel");
      assert (!DateLine || !wants[1])
      else $error("lw_fabric_lane: a message crosses the date line twice");
    end
  end
`endif

endmodule
