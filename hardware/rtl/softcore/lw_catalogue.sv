// The catalogue: code and procedures, written by the host over the config bus while the machine runs. A procedure is
// made valid last and only code of procedures that are not running is replaced; nothing here checks that.

module lw_catalogue
  import lw_pkg::*;
  import lw_softcore_pkg::*;
#(
  /// Instructions; a power of two, at most 16384.
  parameter int unsigned CodeWords = 1024,
  /// Procedures; a power of two, at most 1024.
  parameter int unsigned Procedures = 64
) (
  /// Everything happens on its rising edge.
  input  logic         clk_i,
  /// Makes all procedures invalid.
  input  logic         rst_ni,
  /// Writes of the host; taken at once.
  input  config_t      config_i,
  /// Which instruction to read.
  input  logic [15:0]  code_addr_i,
  /// The instruction of one cycle before.
  output logic [127:0] code_o,
  /// Which procedure to read.
  input  logic [9:0]   procedure_i,
  /// The procedure of one cycle before.
  output procedure_t   procedure_o
);

  localparam int unsigned CodeBits = $clog2(CodeWords);
  localparam int unsigned ProcedureBits = $clog2(Procedures);

  logic [63:0] low_mem[CodeWords];
  logic [63:0] high_mem[CodeWords];
  logic [49:0] entry_mem[Procedures];
  logic [17:0] window_mem[Procedures];
  logic [39:0] layout_mem[Procedures];
  logic [Procedures-1:0] valid_q;

  logic [63:0] low_q, high_q;
  logic [49:0] entry_q;
  logic [17:0] window_q;
  logic [39:0] layout_q;
  logic        found_q;

  logic code_write, procedure_write;
  assign code_write = config_i.valid && !config_i.addr[15] && 15'(config_i.addr[14:1]) < 15'(CodeWords);
  assign procedure_write = config_i.valid && config_i.addr[15:13] == ConfigProcedure[15:13]
      && 11'(config_i.addr[12:3]) < 11'(Procedures);

  logic [CodeBits-1:0] code_slot;
  logic [ProcedureBits-1:0] procedure_slot, wanted_slot;
  assign code_slot = config_i.addr[CodeBits:1];
  assign procedure_slot = config_i.addr[ProcedureBits+2:3];
  assign wanted_slot = procedure_i[ProcedureBits-1:0];

  always_ff @(posedge clk_i) begin
    if (code_write && !config_i.addr[0]) low_mem[code_slot] <= config_i.data;
    if (code_write && config_i.addr[0]) high_mem[code_slot] <= config_i.data;
    low_q <= low_mem[code_addr_i[CodeBits-1:0]];
    high_q <= high_mem[code_addr_i[CodeBits-1:0]];
  end

  always_ff @(posedge clk_i) begin
    if (procedure_write && config_i.addr[2:0] == 3'd0) entry_mem[procedure_slot] <= config_i.data[49:0];
    if (procedure_write && config_i.addr[2:0] == 3'd1) begin
      window_mem[procedure_slot] <= {config_i.data[24:16], config_i.data[8:0]};
    end
    if (procedure_write && config_i.addr[2:0] == 3'd2) layout_mem[procedure_slot] <= config_i.data[39:0];
    entry_q <= entry_mem[wanted_slot];
    window_q <= window_mem[wanted_slot];
    layout_q <= layout_mem[wanted_slot];
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      valid_q <= '0;
      found_q <= 1'b0;
    end else begin
      if (procedure_write && config_i.addr[2:0] == 3'd3) valid_q[procedure_slot] <= config_i.data[0];
      found_q <= valid_q[wanted_slot] && 11'(procedure_i) < 11'(Procedures);
    end
  end

  assign code_o = {high_q, low_q};
  assign procedure_o = '{
      valid: found_q,
      logic_at: entry_q[15:0],
      commit_at: entry_q[31:16],
      abort_at: entry_q[47:32],
      has_commit: entry_q[48],
      has_abort: entry_q[49],
      gps: window_q[8:0],
      cps: window_q[17:9],
      results_start: layout_q[19:0],
      block_bytes: layout_q[39:20]
  };

  // Numbers above the memories' sizes are refused above; these bits have no other use.
  logic unused;
  assign unused = ^{code_addr_i, procedure_i, config_i.data[63:50]};

endmodule
