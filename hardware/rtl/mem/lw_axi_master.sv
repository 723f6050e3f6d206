/// The memory port of a worker as an AXI4 master of 64 bits: every request is a burst of one, its unit and tag are the ID, so
/// answers may come in any order. SLVERR and DECERR become `error`. Reads and writes travel on their own channels and are
/// not ordered with each other; their answers come together in two queues and an arbiter, one answer a cycle.
///
/// A shell that has fewer ID bits maps them; one whose memory does not begin at 0 adds its base.
module lw_axi_master #(
  /// Places of each queue, at least 2 for a request a cycle.
  parameter int unsigned Depth = 2,
  /// Bits of an ID: unit and tag.
  localparam int unsigned IdWidth = lw_pkg::UnitWidth + lw_pkg::TagWidth
) (
  /// Clock.
  input  logic                         clk_i,
  /// Asynchronous reset; the slave has answered everything, or is reset too.
  input  logic                         rst_ni,
  /// The worker asks.
  input  logic                         valid_i,
  /// The request is taken; depends on `req_i.write` and registers.
  output logic                         ready_o,
  /// The request.
  input  lw_pkg::port_req_t            req_i,
  /// An answer, in the cycle after it came at the earliest; the worker always takes it.
  output logic                         rsp_valid_o,
  /// The answer.
  output lw_pkg::port_rsp_t            rsp_o,
  /// AXI4 write address channel; all AXI outputs but the constant ones come from queues.
  output logic                         awvalid_o,
  /// See AXI4, as for the other ports of the channels.
  input  logic                         awready_i,
  /// Unit and tag.
  output logic [IdWidth-1:0]           awid_o,
  /// Byte address, a multiple of 8.
  output logic [lw_pkg::AddrWidth-1:0] awaddr_o,
  /// 0: bursts of one.
  output logic [7:0]                   awlen_o,
  /// 3: 8 bytes.
  output logic [2:0]                   awsize_o,
  /// 1: incrementing.
  output logic [1:0]                   awburst_o,
  /// Write data channel; data are offered together with, before or after the address.
  output logic                         wvalid_o,
  /// Taken.
  input  logic                         wready_i,
  /// The word.
  output logic [63:0]                  wdata_o,
  /// Its bytes to be written.
  output logic [7:0]                   wstrb_o,
  /// Always 1.
  output logic                         wlast_o,
  /// Write response channel.
  input  logic                         bvalid_i,
  /// From registers.
  output logic                         bready_o,
  /// Unit and tag.
  input  logic [IdWidth-1:0]           bid_i,
  /// 2 and 3 are errors.
  input  logic [1:0]                   bresp_i,
  /// Read address channel.
  output logic                         arvalid_o,
  /// Taken.
  input  logic                         arready_i,
  /// Unit and tag.
  output logic [IdWidth-1:0]           arid_o,
  /// Byte address, a multiple of 8.
  output logic [lw_pkg::AddrWidth-1:0] araddr_o,
  /// 0: bursts of one.
  output logic [7:0]                   arlen_o,
  /// 3: 8 bytes.
  output logic [2:0]                   arsize_o,
  /// 1: incrementing.
  output logic [1:0]                   arburst_o,
  /// Read data channel.
  input  logic                         rvalid_i,
  /// From registers.
  output logic                         rready_o,
  /// Unit and tag.
  input  logic [IdWidth-1:0]           rid_i,
  /// The word.
  input  logic [63:0]                  rdata_i,
  /// 2 and 3 are errors.
  input  logic [1:0]                   rresp_i,
  /// Always 1, as bursts have one word; not looked at.
  input  logic                         rlast_i
);

  localparam int unsigned AddressWidth = IdWidth + lw_pkg::AddrWidth - 3;
  localparam int unsigned ReadWidth = $bits(lw_pkg::port_rsp_t);
  localparam int unsigned WriteWidth = IdWidth + 1;
  localparam int unsigned CountWidth = $clog2(Depth + 1);

  logic read_room, address_room, data_room;
  logic read_valid, read_taken, write_valid, write_taken;
  logic [ReadWidth-1:0] read_data, answer;
  logic [WriteWidth-1:0] write_data;
  logic [4:0][CountWidth-1:0] unused_counts;
  logic unused_bits;

  assign unused_bits = rlast_i ^ bresp_i[0] ^ rresp_i[0];
  // A write needs a place in both queues, so that neither holds what the other lacks.
  assign ready_o = req_i.write ? address_room & data_room : read_room;

  lw_fifo #(
    .Width(AddressWidth),
    .Depth(Depth)
  ) u_ar (
    .clk_i,
    .rst_ni,
    .valid_i(valid_i & ~req_i.write),
    .ready_o(read_room),
    .data_i ({req_i.unit, req_i.tag, req_i.addr}),
    .valid_o(arvalid_o),
    .ready_i(arready_i),
    .data_o ({arid_o, araddr_o[lw_pkg::AddrWidth-1:3]}),
    .count_o(unused_counts[0])
  );

  lw_fifo #(
    .Width(AddressWidth),
    .Depth(Depth)
  ) u_aw (
    .clk_i,
    .rst_ni,
    .valid_i(valid_i & req_i.write & data_room),
    .ready_o(address_room),
    .data_i ({req_i.unit, req_i.tag, req_i.addr}),
    .valid_o(awvalid_o),
    .ready_i(awready_i),
    .data_o ({awid_o, awaddr_o[lw_pkg::AddrWidth-1:3]}),
    .count_o(unused_counts[1])
  );

  lw_fifo #(
    .Width(72),
    .Depth(Depth)
  ) u_w (
    .clk_i,
    .rst_ni,
    .valid_i(valid_i & req_i.write & address_room),
    .ready_o(data_room),
    .data_i ({req_i.data, req_i.strobe}),
    .valid_o(wvalid_o),
    .ready_i(wready_i),
    .data_o ({wdata_o, wstrb_o}),
    .count_o(unused_counts[2])
  );

  assign araddr_o[2:0] = '0;
  assign arlen_o       = '0;
  assign arsize_o      = 3'd3;
  assign arburst_o     = 2'd1;
  assign awaddr_o[2:0] = '0;
  assign awlen_o       = '0;
  assign awsize_o      = 3'd3;
  assign awburst_o     = 2'd1;
  assign wlast_o       = 1'b1;

  lw_fifo #(
    .Width(ReadWidth),
    .Depth(Depth)
  ) u_r (
    .clk_i,
    .rst_ni,
    .valid_i(rvalid_i),
    .ready_o(rready_o),
    .data_i ({rresp_i[1], rdata_i, rid_i}),
    .valid_o(read_valid),
    .ready_i(read_taken),
    .data_o (read_data),
    .count_o(unused_counts[3])
  );

  lw_fifo #(
    .Width(WriteWidth),
    .Depth(Depth)
  ) u_b (
    .clk_i,
    .rst_ni,
    .valid_i(bvalid_i),
    .ready_o(bready_o),
    .data_i ({bresp_i[1], bid_i}),
    .valid_o(write_valid),
    .ready_i(write_taken),
    .data_o (write_data),
    .count_o(unused_counts[4])
  );

  lw_arbiter #(
    .Inputs(2),
    .Width (ReadWidth),
    .Lock  (1'b0)
  ) u_merge (
    .clk_i,
    .rst_ni,
    .valid_i({write_valid, read_valid}),
    .ready_o({write_taken, read_taken}),
    .data_i ({{write_data[IdWidth], 64'b0, write_data[IdWidth-1:0]}, read_data}),
    .valid_o(rsp_valid_o),
    .ready_i(1'b1),
    .data_o (answer)
  );

  assign rsp_o = lw_pkg::port_rsp_t'(answer);

endmodule
