/// The transaction processor for a shell: AXI4-Lite slave of 32 bits for the registers, AXI4 master of 64 bits for each
/// worker. All in one clock.
module lw_top #(
  /// Workers, a power of two, at most 16.
  parameter int unsigned Workers = 4,
  /// Hardware contexts of a worker, a power of two.
  parameter int unsigned Contexts = 16,
  /// Decision words of a worker, a power of two.
  parameter int unsigned Entries = 1024,
  /// Words of the longest key.
  parameter int unsigned KeyWords = 4,
  /// Requests of a worker whose keys are being read, a power of two.
  parameter int unsigned PrepareSlots = 16,
  /// Requests in the hash index of a worker.
  parameter int unsigned HashSlots = 48,
  /// Requests in the skiplist of a worker, at most 64; 0 leaves the skiplist out.
  parameter int unsigned SkiplistSlots = 16,
  /// Levels of the skiplist that the host is told of.
  parameter int unsigned Levels = 20,
  /// Scans of a worker at once, 1 to 8.
  parameter int unsigned Scanners = 1,
  /// Ranges of a worker that scans keep free of new rows, a power of two.
  parameter int unsigned Gaps = 8,
  /// Words of 64 bits of the catalogue, two an instruction, a power of two.
  parameter int unsigned CodeWords = 2048,
  /// Procedures of the catalogue, a power of two.
  parameter int unsigned Procedures = 64,
  /// Places of a context's grant log, a power of two.
  parameter int unsigned Grants = 64,
  /// `lw_pkg::TopologyCrossbar` or `lw_pkg::TopologyRing`.
  parameter int unsigned Topology = lw_pkg::TopologyCrossbar,
  /// Memory requests of a worker that may wait for their answers.
  parameter int unsigned Inflight = 128,
  /// Bits of an AXI ID, unit and tag; shells that have fewer map them.
  localparam int unsigned IdWidth = lw_pkg::UnitWidth + lw_pkg::TagWidth
) (
  /// Clock.
  input  logic                                  clk_i,
  /// Asynchronous reset.
  input  logic                                  rst_ni,
  /// AXI4-Lite slave of the registers, see `lw_regs`.
  input  logic                                  s_awvalid_i,
  /// Taken.
  output logic                                  s_awready_o,
  /// Byte address.
  input  logic [lw_regs_pkg::RegAddrWidth-1:0]  s_awaddr_i,
  /// Write data.
  input  logic                                  s_wvalid_i,
  /// Taken.
  output logic                                  s_wready_o,
  /// The value.
  input  logic [31:0]                           s_wdata_i,
  /// All ones.
  input  logic [3:0]                            s_wstrb_i,
  /// Write response.
  output logic                                  s_bvalid_o,
  /// Taken.
  input  logic                                  s_bready_i,
  /// 2: refused.
  output logic [1:0]                            s_bresp_o,
  /// Read address.
  input  logic                                  s_arvalid_i,
  /// Taken.
  output logic                                  s_arready_o,
  /// Byte address.
  input  logic [lw_regs_pkg::RegAddrWidth-1:0]  s_araddr_i,
  /// Read data.
  output logic                                  s_rvalid_o,
  /// Taken.
  input  logic                                  s_rready_i,
  /// The value.
  output logic [31:0]                           s_rdata_o,
  /// 2: refused.
  output logic [1:0]                            s_rresp_o,
  /// Level, see `lw_regs`.
  output logic                                  interrupt_o,
  /// Write address channel of each worker, as the other ports of this name see `lw_axi_master`.
  output logic [Workers-1:0] m_awvalid_o,
  /// Taken.
  input  logic [Workers-1:0] m_awready_i,
  /// Unit and tag.
  output logic [Workers-1:0][IdWidth-1:0] m_awid_o,
  /// Byte address.
  output logic [Workers-1:0][lw_pkg::AddrWidth-1:0] m_awaddr_o,
  /// 0.
  output logic [Workers-1:0][7:0] m_awlen_o,
  /// 3.
  output logic [Workers-1:0][2:0] m_awsize_o,
  /// 1.
  output logic [Workers-1:0][1:0] m_awburst_o,
  /// Write data channel.
  output logic [Workers-1:0] m_wvalid_o,
  /// Taken.
  input  logic [Workers-1:0] m_wready_i,
  /// The word.
  output logic [Workers-1:0][63:0] m_wdata_o,
  /// Bytes to be written.
  output logic [Workers-1:0][7:0] m_wstrb_o,
  /// 1.
  output logic [Workers-1:0] m_wlast_o,
  /// Write response channel.
  input  logic [Workers-1:0] m_bvalid_i,
  /// Taken.
  output logic [Workers-1:0] m_bready_o,
  /// Unit and tag.
  input  logic [Workers-1:0][IdWidth-1:0] m_bid_i,
  /// 2 and 3 are errors.
  input  logic [Workers-1:0][1:0] m_bresp_i,
  /// Read address channel.
  output logic [Workers-1:0] m_arvalid_o,
  /// Taken.
  input  logic [Workers-1:0] m_arready_i,
  /// Unit and tag.
  output logic [Workers-1:0][IdWidth-1:0] m_arid_o,
  /// Byte address.
  output logic [Workers-1:0][lw_pkg::AddrWidth-1:0] m_araddr_o,
  /// 0.
  output logic [Workers-1:0][7:0] m_arlen_o,
  /// 3.
  output logic [Workers-1:0][2:0] m_arsize_o,
  /// 1.
  output logic [Workers-1:0][1:0] m_arburst_o,
  /// Read data channel.
  input  logic [Workers-1:0] m_rvalid_i,
  /// Taken.
  output logic [Workers-1:0] m_rready_o,
  /// Unit and tag.
  input  logic [Workers-1:0][IdWidth-1:0] m_rid_i,
  /// The word.
  input  logic [Workers-1:0][63:0] m_rdata_i,
  /// 2 and 3 are errors.
  input  logic [Workers-1:0][1:0] m_rresp_i,
  /// 1.
  input  logic [Workers-1:0] m_rlast_i
);

  logic [Workers-1:0] valid, ready, rsp_valid;
  lw_pkg::port_req_t [Workers-1:0] req;
  lw_pkg::port_rsp_t [Workers-1:0] rsp;

  lw_top_mem #(
    .Workers     (Workers),
    .Contexts    (Contexts),
    .Entries     (Entries),
    .KeyWords    (KeyWords),
    .PrepareSlots(PrepareSlots),
    .HashSlots   (HashSlots),
    .SkiplistSlots(SkiplistSlots),
    .Levels      (Levels),
    .Scanners    (Scanners),
    .Gaps        (Gaps),
    .CodeWords   (CodeWords),
    .Procedures  (Procedures),
    .Grants      (Grants),
    .Topology    (Topology),
    .Inflight    (Inflight)
  ) u_machine (
    .clk_i,
    .rst_ni,
    .awvalid_i(s_awvalid_i),
    .awready_o(s_awready_o),
    .awaddr_i(s_awaddr_i),
    .wvalid_i(s_wvalid_i),
    .wready_o(s_wready_o),
    .wdata_i(s_wdata_i),
    .wstrb_i(s_wstrb_i),
    .bvalid_o(s_bvalid_o),
    .bready_i(s_bready_i),
    .bresp_o(s_bresp_o),
    .arvalid_i(s_arvalid_i),
    .arready_o(s_arready_o),
    .araddr_i(s_araddr_i),
    .rvalid_o(s_rvalid_o),
    .rready_i(s_rready_i),
    .rdata_o(s_rdata_o),
    .rresp_o(s_rresp_o),
    .interrupt_o,
    .mem_valid_o    (valid),
    .mem_ready_i    (ready),
    .mem_req_o      (req),
    .mem_rsp_valid_i(rsp_valid),
    .mem_rsp_i      (rsp)
  );

  for (genvar w = 0; w < int'(Workers); w++) begin : gen_master
    lw_axi_master u_master (
      .clk_i,
      .rst_ni,
      .valid_i    (valid[w]),
      .ready_o    (ready[w]),
      .req_i      (req[w]),
      .rsp_valid_o(rsp_valid[w]),
      .rsp_o      (rsp[w]),
      .awvalid_o  (m_awvalid_o[w]),
      .awready_i  (m_awready_i[w]),
      .awid_o     (m_awid_o[w]),
      .awaddr_o   (m_awaddr_o[w]),
      .awlen_o    (m_awlen_o[w]),
      .awsize_o   (m_awsize_o[w]),
      .awburst_o  (m_awburst_o[w]),
      .wvalid_o   (m_wvalid_o[w]),
      .wready_i   (m_wready_i[w]),
      .wdata_o    (m_wdata_o[w]),
      .wstrb_o    (m_wstrb_o[w]),
      .wlast_o    (m_wlast_o[w]),
      .bvalid_i   (m_bvalid_i[w]),
      .bready_o   (m_bready_o[w]),
      .bid_i      (m_bid_i[w]),
      .bresp_i    (m_bresp_i[w]),
      .arvalid_o  (m_arvalid_o[w]),
      .arready_i  (m_arready_i[w]),
      .arid_o     (m_arid_o[w]),
      .araddr_o   (m_araddr_o[w]),
      .arlen_o    (m_arlen_o[w]),
      .arsize_o   (m_arsize_o[w]),
      .arburst_o  (m_arburst_o[w]),
      .rvalid_i   (m_rvalid_i[w]),
      .rready_o   (m_rready_o[w]),
      .rid_i      (m_rid_i[w]),
      .rdata_i    (m_rdata_i[w]),
      .rresp_i    (m_rresp_i[w]),
      .rlast_i    (m_rlast_i[w])
    );
  end

endmodule
