/// The units of one worker share its memory port: one request a cycle, round robin, and answers back to who asked.
///
/// A unit that asks is served at the latest as the `Units`-th request from now. A request is at the port in the cycle after
/// it was taken; answers reach the unit in the cycle in which they come. Requests of one unit keep their order as far as the
/// port; memory may answer in any order, so what must be ordered waits for the answer first.
module lw_mem_arbiter #(
  /// Units, at most 8.
  parameter int unsigned Units = 4,
  /// Requests that may wait for their answers; more are not taken.
  parameter int unsigned Inflight = 128
) (
  /// Clock.
  input  logic                          clk_i,
  /// Asynchronous reset; memory must have answered everything.
  input  logic                          rst_ni,
  /// No new requests are taken, in the same cycle.
  input  logic                          hold_i,
  /// Memory has answered everything; from registers.
  output logic                          quiet_o,
  /// A unit asks.
  input  logic             [Units-1:0]  valid_i,
  /// Its request is taken; in the same cycle as `valid_i`, at most one.
  output logic             [Units-1:0]  ready_o,
  /// The request; `tag` is the unit's own affair.
  input  lw_pkg::mem_req_t [Units-1:0]  req_i,
  /// An answer for a unit, at most one; in the same cycle as `port_rsp_valid_i`.
  output logic             [Units-1:0]  rsp_valid_o,
  /// The answer, the same for all units.
  output lw_pkg::mem_rsp_t              rsp_o,
  /// A request at the port; from registers.
  output logic                          port_valid_o,
  /// Memory takes it.
  input  logic                          port_ready_i,
  /// The request.
  output lw_pkg::port_req_t             port_req_o,
  /// Memory answers; always taken.
  input  logic                          port_rsp_valid_i,
  /// The answer.
  input  lw_pkg::port_rsp_t             port_rsp_i
);

  localparam int unsigned Width = $bits(lw_pkg::port_req_t);

  lw_pkg::port_req_t [Units-1:0] extended;
  logic [Units-1:0][Width-1:0] words;
  logic chosen_valid, chosen_ready, room, available;
  logic [Width-1:0] chosen, head;
  logic [$clog2(Inflight+1)-1:0] unused_credits;
  logic [1:0] unused_count;

  for (genvar u = 0; u < int'(Units); u++) begin : gen_unit
    assign extended[u] = '{
      write:  req_i[u].write,
      addr:   req_i[u].addr,
      data:   req_i[u].data,
      strobe: req_i[u].strobe,
      unit:   lw_pkg::unit_t'(u),
      tag:    req_i[u].tag
    };
    assign rsp_valid_o[u] = port_rsp_valid_i && port_rsp_i.unit == lw_pkg::unit_t'(u);
  end
  assign words = extended;
  assign rsp_o = '{error: port_rsp_i.error, data: port_rsp_i.data, tag: port_rsp_i.tag};

  lw_arbiter #(
    .Inputs(Units),
    .Width (Width),
    .Lock  (1'b0)
  ) u_arbiter (
    .clk_i,
    .rst_ni,
    .valid_i(valid_i),
    .ready_o(ready_o),
    .data_i (words),
    .valid_o(chosen_valid),
    .ready_i(chosen_ready),
    .data_o (chosen)
  );

  assign chosen_ready = room & available & ~hold_i;

  lw_credit #(
    .Credits(Inflight)
  ) u_inflight (
    .clk_i,
    .rst_ni,
    .take_i     (chosen_valid & chosen_ready),
    .give_i     (port_rsp_valid_i),
    .available_o(available),
    .idle_o     (quiet_o),
    .count_o    (unused_credits)
  );

  lw_fifo #(
    .Width(Width),
    .Depth(2)
  ) u_out (
    .clk_i,
    .rst_ni,
    .valid_i(chosen_valid & chosen_ready),
    .ready_o(room),
    .data_i (chosen),
    .valid_o(port_valid_o),
    .ready_i(port_ready_i),
    .data_o (head),
    .count_o(unused_count)
  );

  assign port_req_o = lw_pkg::port_req_t'(head);

endmodule
