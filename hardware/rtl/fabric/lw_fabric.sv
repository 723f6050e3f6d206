/// The message fabric between workers: DB instructions go to the worker that has the row, answers come back, and
/// releases go with the answers, each on a channel of its own. A request to a neighbour and its answer take four cycles
/// together.
///
/// What it guarantees, and why, is said at `lw_fabric_crossbar` and `lw_fabric_ring`. A worker must take responses and
/// releases whatever else it waits for; requests may wait for memory and for the response channel, never for a request
/// to be sent. With one worker nothing is ever sent.
module lw_fabric #(
  /// Workers: 1, 2, 4, 8 or 16.
  parameter int unsigned Workers = 4,
  /// `lw_pkg::TopologyCrossbar` or `lw_pkg::TopologyRing`.
  parameter int unsigned Topology = lw_pkg::TopologyCrossbar,
  /// Places of each queue, at least 2 for a message a cycle. 16 cost what 2 do, and a receiver that is full for a while
  /// does not hold up what others are sent.
  parameter int unsigned Depth = 16
) (
  /// Clock.
  input  logic                               clk_i,
  /// Asynchronous reset: messages on the way are lost.
  input  logic                               rst_ni,
  /// A worker sends a request.
  input  logic              [Workers-1:0]    request_valid_i,
  /// It is taken.
  output logic              [Workers-1:0]    request_ready_o,
  /// For which worker; never the sender itself.
  input  lw_pkg::worker_t   [Workers-1:0]    request_dest_i,
  /// The request.
  input  lw_pkg::request_t  [Workers-1:0]    request_i,
  /// A request has come to a worker; stays until taken.
  output logic              [Workers-1:0]    request_valid_o,
  /// The worker takes it.
  input  logic              [Workers-1:0]    request_ready_i,
  /// The request.
  output lw_pkg::request_t  [Workers-1:0]    request_o,
  /// A worker answers or releases; goes to `ret.worker`, never the sender itself.
  input  logic              [Workers-1:0]    response_valid_i,
  /// The answer is taken.
  output logic              [Workers-1:0]    response_ready_o,
  /// The answer.
  input  lw_pkg::response_t [Workers-1:0]    response_i,
  /// An answer has come to a worker; stays until taken.
  output logic              [Workers-1:0]    response_valid_o,
  /// The worker takes it; must not wait for anything but time.
  input  logic              [Workers-1:0]    response_ready_i,
  /// The answer.
  output lw_pkg::response_t [Workers-1:0]    response_o
);

  localparam int unsigned RequestWidth = $bits(lw_pkg::request_t);
  localparam int unsigned ResponseWidth = $bits(lw_pkg::response_t);

  if (Workers == 1) begin : gen_alone
    logic unused_inputs;
    assign unused_inputs = ^{clk_i, rst_ni, request_valid_i, request_dest_i, request_i, request_ready_i,
                             response_valid_i, response_i, response_ready_i};
    assign request_ready_o  = '0;
    assign request_valid_o  = '0;
    assign request_o        = '0;
    assign response_ready_o = '0;
    assign response_valid_o = '0;
    assign response_o       = '0;
  end else begin : gen_fabric
    logic [Workers-1:0][RequestWidth-1:0] requests_in, requests_out;
    logic [Workers-1:0][ResponseWidth-1:0] responses_in, responses_out;
    lw_pkg::worker_t [Workers-1:0] response_dest;

    assign requests_in  = request_i;
    assign responses_in = response_i;

    for (genvar w = 0; w < int'(Workers); w++) begin : gen_types
      assign response_dest[w] = response_i[w].ret.worker;
      assign request_o[w]     = lw_pkg::request_t'(requests_out[w]);
      assign response_o[w]    = lw_pkg::response_t'(responses_out[w]);
    end

    if (Topology == lw_pkg::TopologyRing) begin : gen_ring
      lw_fabric_ring #(
        .Workers(Workers),
        .Width  (RequestWidth),
        .Depth  (Depth)
      ) u_requests (
        .clk_i,
        .rst_ni,
        .valid_i(request_valid_i),
        .ready_o(request_ready_o),
        .dest_i (request_dest_i),
        .data_i (requests_in),
        .valid_o(request_valid_o),
        .ready_i(request_ready_i),
        .data_o (requests_out)
      );
      lw_fabric_ring #(
        .Workers(Workers),
        .Width  (ResponseWidth),
        .Depth  (Depth)
      ) u_responses (
        .clk_i,
        .rst_ni,
        .valid_i(response_valid_i),
        .ready_o(response_ready_o),
        .dest_i (response_dest),
        .data_i (responses_in),
        .valid_o(response_valid_o),
        .ready_i(response_ready_i),
        .data_o (responses_out)
      );
    end else begin : gen_crossbar
      lw_fabric_crossbar #(
        .Workers(Workers),
        .Width  (RequestWidth),
        .Depth  (Depth)
      ) u_requests (
        .clk_i,
        .rst_ni,
        .valid_i(request_valid_i),
        .ready_o(request_ready_o),
        .dest_i (request_dest_i),
        .data_i (requests_in),
        .valid_o(request_valid_o),
        .ready_i(request_ready_i),
        .data_o (requests_out)
      );
      lw_fabric_crossbar #(
        .Workers(Workers),
        .Width  (ResponseWidth),
        .Depth  (Depth)
      ) u_responses (
        .clk_i,
        .rst_ni,
        .valid_i(response_valid_i),
        .ready_o(response_ready_o),
        .dest_i (response_dest),
        .data_i (responses_in),
        .valid_o(response_valid_o),
        .ready_i(response_ready_i),
        .data_o (responses_out)
      );
    end
  end

endmodule
