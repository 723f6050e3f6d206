/// The transaction processor with the memory ports of its workers as they are: registers, workers, fabric and times. For
/// shells with a memory port of their own and for fast simulation; `lw_top` has AXI4 instead.
module lw_top_mem #(
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
  parameter int unsigned Inflight = 128
) (
  /// Clock.
  input  logic                                  clk_i,
  /// Asynchronous reset.
  input  logic                                  rst_ni,
  /// AXI4-Lite slave of the registers, see `lw_regs`.
  input  logic                                  awvalid_i,
  /// Taken.
  output logic                                  awready_o,
  /// Byte address.
  input  logic [lw_regs_pkg::RegAddrWidth-1:0]  awaddr_i,
  /// Write data.
  input  logic                                  wvalid_i,
  /// Taken.
  output logic                                  wready_o,
  /// The value.
  input  logic [31:0]                           wdata_i,
  /// All ones.
  input  logic [3:0]                            wstrb_i,
  /// Write response.
  output logic                                  bvalid_o,
  /// Taken.
  input  logic                                  bready_i,
  /// 2: refused.
  output logic [1:0]                            bresp_o,
  /// Read address.
  input  logic                                  arvalid_i,
  /// Taken.
  output logic                                  arready_o,
  /// Byte address.
  input  logic [lw_regs_pkg::RegAddrWidth-1:0]  araddr_i,
  /// Read data.
  output logic                                  rvalid_o,
  /// Taken.
  input  logic                                  rready_i,
  /// The value.
  output logic [31:0]                           rdata_o,
  /// 2: refused.
  output logic [1:0]                            rresp_o,
  /// Level, see `lw_regs`.
  output logic                                  interrupt_o,
  /// A worker asks memory; stays until taken; from registers.
  output logic                [Workers-1:0]     mem_valid_o,
  /// It is taken.
  input  logic                [Workers-1:0]     mem_ready_i,
  /// The request.
  output lw_pkg::port_req_t   [Workers-1:0]     mem_req_o,
  /// Memory answers a worker, one cycle after it took the request at the earliest; always taken.
  input  logic                [Workers-1:0]     mem_rsp_valid_i,
  /// The answer.
  input  lw_pkg::port_rsp_t   [Workers-1:0]     mem_rsp_i
);

  logic unit_rst_n, clear, times_low;
  lw_pkg::config_t config_word;
  lw_regs_pkg::worker_control_t [Workers-1:0] control;
  lw_regs_pkg::worker_status_t [Workers-1:0] status;
  logic [Workers-1:0] ready, start;
  lw_pkg::stamp_t [Workers-1:0] stamps;

  logic [Workers-1:0] request_out_valid, request_out_ready, request_in_valid, request_in_ready;
  logic [Workers-1:0] response_out_valid, response_out_ready, response_in_valid, response_in_ready;
  lw_pkg::worker_t [Workers-1:0] request_dest;
  lw_pkg::request_t [Workers-1:0] request_out, request_in;
  lw_pkg::response_t [Workers-1:0] response_out, response_in;

  lw_regs #(
    .Workers     (Workers),
    .Contexts    (Contexts),
    .Entries     (Entries),
    .KeyWords    (KeyWords),
    .Instructions(CodeWords / 2),
    .Procedures  (Procedures),
    .Grants      (Grants),
    .Levels      (SkiplistSlots > 0 ? Levels : 0),
    .Topology    (Topology),
    .Inflight    (Inflight)
  ) u_regs (
    .clk_i,
    .rst_ni,
    .awvalid_i  (awvalid_i),
    .awready_o  (awready_o),
    .awaddr_i   (awaddr_i),
    .wvalid_i   (wvalid_i),
    .wready_o   (wready_o),
    .wdata_i    (wdata_i),
    .wstrb_i    (wstrb_i),
    .bvalid_o   (bvalid_o),
    .bready_i   (bready_i),
    .bresp_o    (bresp_o),
    .arvalid_i  (arvalid_i),
    .arready_o  (arready_o),
    .araddr_i   (araddr_i),
    .rvalid_o   (rvalid_o),
    .rready_i   (rready_i),
    .rdata_o    (rdata_o),
    .rresp_o    (rresp_o),
    .interrupt_o,
    .unit_rst_no(unit_rst_n),
    .clear_o    (clear),
    .ready_i    (&ready),
    .times_low_i(times_low),
    .config_o   (config_word),
    .control_o  (control),
    .status_i   (status)
  );

  lw_stamp #(
    .Workers(Workers)
  ) u_stamp (
    .clk_i,
    .rst_ni,
    .clear_i(clear),
    .take_i (start),
    .stamp_o(stamps),
    .low_o  (times_low)
  );

  for (genvar w = 0; w < int'(Workers); w++) begin : gen_worker
    lw_worker #(
      .Workers     (Workers),
      .Contexts    (Contexts),
      .Entries     (Entries),
      .KeyWords    (KeyWords),
      .PrepareSlots(PrepareSlots),
      .HashSlots   (HashSlots),
      .SkiplistSlots(SkiplistSlots),
      .Scanners    (Scanners),
      .Gaps        (Gaps),
      .CodeWords   (CodeWords),
      .Procedures  (Procedures),
      .Grants      (Grants),
      .Inflight    (Inflight)
    ) u_worker (
      .clk_i,
      .rst_ni,
      .unit_rst_ni     (unit_rst_n),
      .clear_i         (clear),
      .ready_o         (ready[w]),
      .worker_i        (lw_pkg::worker_t'(w)),
      .config_i        (config_word),
      .control_i       (control[w]),
      .status_o        (status[w]),
      .start_stamp_i   (stamps[w]),
      .start_o         (start[w]),
      .request_valid_o (request_out_valid[w]),
      .request_ready_i (request_out_ready[w]),
      .request_dest_o  (request_dest[w]),
      .request_o       (request_out[w]),
      .request_valid_i (request_in_valid[w]),
      .request_ready_o (request_in_ready[w]),
      .request_i       (request_in[w]),
      .response_valid_o(response_out_valid[w]),
      .response_ready_i(response_out_ready[w]),
      .response_o      (response_out[w]),
      .response_valid_i(response_in_valid[w]),
      .response_ready_o(response_in_ready[w]),
      .response_i      (response_in[w]),
      .mem_valid_o     (mem_valid_o[w]),
      .mem_ready_i     (mem_ready_i[w]),
      .mem_req_o       (mem_req_o[w]),
      .mem_rsp_valid_i (mem_rsp_valid_i[w]),
      .mem_rsp_i       (mem_rsp_i[w])
    );
  end

  lw_fabric #(
    .Workers (Workers),
    .Topology(Topology)
  ) u_fabric (
    .clk_i,
    .rst_ni          (unit_rst_n),
    .request_valid_i (request_out_valid),
    .request_ready_o (request_out_ready),
    .request_dest_i  (request_dest),
    .request_i       (request_out),
    .request_valid_o (request_in_valid),
    .request_ready_i (request_in_ready),
    .request_o       (request_in),
    .response_valid_i(response_out_valid),
    .response_ready_o(response_out_ready),
    .response_i      (response_out),
    .response_valid_o(response_in_valid),
    .response_ready_i(response_in_ready),
    .response_o      (response_in)
  );

endmodule
