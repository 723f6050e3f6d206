/// One channel of the message fabric as a crossbar: a queue at every input, an arbiter and a queue at every output.
///
/// - A message is at its receiver two cycles after it was taken, if nobody else sends to it.
/// - Exactly once, in order from one sender to one receiver: both queues on the way are the only way.
/// - No deadlock: a message waits only for its output queue, which waits only for the receiver. Fair by round robin: at the
///   head of an input, a message is behind at most `Workers` - 2 others at its output.
/// - Nobody sends to itself: such a message would never be taken.
module lw_fabric_crossbar #(
  /// Senders and receivers; a power of two, at least 2.
  parameter int unsigned Workers = 4,
  /// Bits of a message.
  parameter int unsigned Width = 8,
  /// Places of each queue, at least 2 for a message a cycle.
  parameter int unsigned Depth = 2
) (
  /// Clock.
  input  logic                                   clk_i,
  /// Asynchronous reset: messages on the way are lost.
  input  logic                                   rst_ni,
  /// A worker sends.
  input  logic             [Workers-1:0]            valid_i,
  /// Its message is taken; from registers alone.
  output logic             [Workers-1:0]            ready_o,
  /// To whom; the bits above log2(`Workers`) are ignored.
  input  lw_pkg::worker_t  [Workers-1:0]            dest_i,
  /// The message.
  input  logic             [Workers-1:0][Width-1:0] data_i,
  /// A message is there for a worker; from registers alone.
  output logic             [Workers-1:0]            valid_o,
  /// The worker takes it.
  input  logic             [Workers-1:0]            ready_i,
  /// The message, an asynchronous read.
  output logic             [Workers-1:0][Width-1:0] data_o
);

  localparam int unsigned DestWidth = $clog2(Workers);

  logic [Workers-1:0] head_valid, head_ready;
  logic [Workers-1:0][Width-1:0] head_data;
  logic [Workers-1:0][DestWidth-1:0] head_dest;
  // By receiver, then sender.
  logic [Workers-1:0][Workers-1:0] grant;

  for (genvar w = 0; w < int'(Workers); w++) begin : gen_in
    logic [$clog2(Depth+1)-1:0] unused_count;
    logic [lw_pkg::WorkerWidth-1:0] unused_dest;

    assign unused_dest = dest_i[w];

    lw_fifo #(
      .Width(Width + DestWidth),
      .Depth(Depth)
    ) u_in (
      .clk_i,
      .rst_ni,
      .valid_i(valid_i[w]),
      .ready_o(ready_o[w]),
      .data_i ({dest_i[w][DestWidth-1:0], data_i[w]}),
      .valid_o(head_valid[w]),
      .ready_i(head_ready[w]),
      .data_o ({head_dest[w], head_data[w]}),
      .count_o(unused_count)
    );

    always_comb begin
      head_ready[w] = 1'b0;
      for (int unsigned o = 0; o < Workers; o++) head_ready[w] |= grant[o][w];
    end

`ifdef LW_ASSERT
    always_ff @(posedge clk_i) begin
      if (rst_ni) begin
        assert (!valid_i[w] || dest_i[w][DestWidth-1:0] != DestWidth'(w))
        else $error("lw_fabric_crossbar: worker %0d sends to itself", w);
      end
    end
`endif
  end

  for (genvar o = 0; o < int'(Workers); o++) begin : gen_out
    localparam logic [DestWidth-1:0] Here = DestWidth'(o);
    logic [Workers-1:0] wants;
    logic chosen_valid, chosen_ready;
    logic [Width-1:0] chosen_data;
    logic [$clog2(Depth+1)-1:0] unused_count;

    always_comb begin
      for (int unsigned w = 0; w < Workers; w++) begin
        wants[w] = head_valid[w] && head_dest[w] == Here && w != o;
      end
    end

    lw_arbiter #(
      .Inputs(Workers),
      .Width (Width),
      .Lock  (1'b0)
    ) u_arbiter (
      .clk_i,
      .rst_ni,
      .valid_i(wants),
      .ready_o(grant[o]),
      .data_i (head_data),
      .valid_o(chosen_valid),
      .ready_i(chosen_ready),
      .data_o (chosen_data)
    );

    lw_fifo #(
      .Width(Width),
      .Depth(Depth)
    ) u_out (
      .clk_i,
      .rst_ni,
      .valid_i(chosen_valid),
      .ready_o(chosen_ready),
      .data_i (chosen_data),
      .valid_o(valid_o[o]),
      .ready_i(ready_i[o]),
      .data_o (data_o[o]),
      .count_o(unused_count)
    );
  end

endmodule
