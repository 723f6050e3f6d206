/// One channel of the message fabric as a ring in both directions: wires only between neighbours, area linear in the number
/// of workers.
///
/// - A message takes the shorter way, by even senders upwards and by odd ones downwards if both are equal: the way depends
///   on sender and receiver alone, and all queues on it keep the order. So delivery is exactly once and in order from one
///   sender to one receiver.
/// - One cycle a hop and one for the queue at the receiver: two cycles to a neighbour.
/// - No deadlock: each direction has two virtual channels. A message changes from channel 0 to channel 1 when it crosses the
///   date line (upwards the link from the last worker to worker 0, downwards the link back) and crosses it at most once, as no
///   way is longer than half the ring. Number the queues of a direction in the order of the links, channel 0 of all
///   stations first, then channel 1: every message waits only for a queue with a higher number, or for its receiver. A
///   circle of waiting messages cannot be, as long as receivers take what they are given: responses always are
///   taken, and requests wait for nothing but memory and responses, which have a channel of their own.
/// - Fair: at each link round robin of the two virtual channels and the worker, so nobody starves.
/// - Nobody sends to itself: such a message would never be taken.
module lw_fabric_ring #(
  /// Stations; a power of two, at least 2.
  parameter int unsigned Workers = 4,
  /// Bits of a message.
  parameter int unsigned Width = 8,
  /// Places of each queue, at least 2 for a message a cycle.
  parameter int unsigned Depth = 2
) (
  /// Clock.
  input  logic                                      clk_i,
  /// Asynchronous reset: messages on the way are lost.
  input  logic                                      rst_ni,
  /// A worker sends.
  input  logic             [Workers-1:0]            valid_i,
  /// Its message is taken; in the same cycle, depends on `valid_i`, `dest_i` and registers.
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
  localparam logic [DestWidth-1:0] Half = DestWidth'(Workers / 2);

  // By direction (0 upwards, 1 downwards), then by the station that the link leads to.
  logic [1:0][Workers-1:0][1:0] link, space;
  logic [1:0][Workers-1:0][DestWidth+Width-1:0] data;

  for (genvar w = 0; w < int'(Workers); w++) begin : gen_station
    localparam logic [DestWidth-1:0] Here = DestWidth'(w);
    localparam logic TieDown = 1'(w % 2);

    logic [DestWidth-1:0] distance;
    logic down;
    logic [1:0] inject_valid, inject_ready;
    logic [3:0] eject_valid, eject_ready;
    logic [3:0][Width-1:0] eject_data;
    logic out_valid, out_ready;
    logic [Width-1:0] out_data;
    logic [$clog2(Depth+1)-1:0] unused_count;
    logic [lw_pkg::WorkerWidth-1:0] unused_dest;

    assign unused_dest = dest_i[w];

    assign distance = dest_i[w][DestWidth-1:0] - Here;
    // The top bit is set for a half and more.
    assign down     = distance[DestWidth-1] && (distance != Half || TieDown);
    assign inject_valid[0] = valid_i[w] && distance != '0 && !down;
    assign inject_valid[1] = valid_i[w] && distance != '0 && down;
    assign ready_o[w] = |inject_ready;

    for (genvar d = 0; d < 2; d++) begin : gen_lane
      localparam int unsigned Next = (d == 0) ? (w + 1) % Workers : (w + Workers - 1) % Workers;
      localparam bit DateLine = (d == 0) ? w == int'(Workers) - 1 : w == 0;

      lw_fabric_lane #(
        .DestWidth(DestWidth),
        .Width    (Width),
        .Depth    (Depth),
        .Here     (Here),
        .DateLine (DateLine)
      ) u_lane (
        .clk_i,
        .rst_ni,
        .link_i        (link[d][w]),
        .space_o       (space[d][w]),
        .data_i        (data[d][w]),
        .link_o        (link[d][Next]),
        .space_i       (space[d][Next]),
        .data_o        (data[d][Next]),
        .inject_valid_i(inject_valid[d]),
        .inject_ready_o(inject_ready[d]),
        .inject_data_i ({dest_i[w][DestWidth-1:0], data_i[w]}),
        .eject_valid_o (eject_valid[2*d+:2]),
        .eject_ready_i (eject_ready[2*d+:2]),
        .eject_data_o  (eject_data[2*d+:2])
      );
    end

    lw_arbiter #(
      .Inputs(4),
      .Width (Width),
      .Lock  (1'b0)
    ) u_eject (
      .clk_i,
      .rst_ni,
      .valid_i(eject_valid),
      .ready_o(eject_ready),
      .data_i (eject_data),
      .valid_o(out_valid),
      .ready_i(out_ready),
      .data_o (out_data)
    );

    lw_fifo #(
      .Width(Width),
      .Depth(Depth)
    ) u_out (
      .clk_i,
      .rst_ni,
      .valid_i(out_valid),
      .ready_o(out_ready),
      .data_i (out_data),
      .valid_o(valid_o[w]),
      .ready_i(ready_i[w]),
      .data_o (data_o[w]),
      .count_o(unused_count)
    );

`ifdef LW_ASSERT
    always_ff @(posedge clk_i) begin
      if (rst_ni) begin
        assert (!valid_i[w] || distance != '0)
        else $error("lw_fabric_ring: worker %0d sends to itself", w);
      end
    end
`endif
  end

endmodule
