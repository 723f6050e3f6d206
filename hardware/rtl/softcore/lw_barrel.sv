// The data path of the barrel: an instruction every second cycle, at most one of a context at a time, so nothing is
// forwarded. Cycle 1: program counter to the catalogue. 2: registers b and c are read. 3: a or d, and e. 4: base
// addresses. 5: indexes added, arithmetic. 6: the results stand at the outputs, where the softcore decides.

module lw_barrel
  import lw_pkg::*;
  import lw_softcore_pkg::*;
  import lw_isa_pkg::*;
(
  /// Everything happens on its rising edge.
  input  logic         clk_i,
  /// Forgets all instructions.
  input  logic         rst_ni,

  /// Cycle 1: a context's next instruction is to be executed; never in two cycles one after the other.
  input  logic         pick_valid_i,
  /// Whose.
  input  context_t     pick_ctx_i,
  /// Its program counter.
  input  logic [15:0]  pick_pc_i,
  /// Its comparison flag: less, equal.
  input  logic [1:0]   pick_flag_i,
  /// Block of its transaction.
  input  addr_t        pick_block_i,
  /// Its window of GP registers.
  input  granule_t     pick_gp_base_i,
  /// Its window of CP registers.
  input  granule_t     pick_cp_base_i,

  /// Cycle 1, to the catalogue.
  output logic [15:0]  code_addr_o,
  /// Cycle 2, from the catalogue.
  input  logic [127:0] code_i,

  /// A register is written.
  input  logic         write_i,
  /// Physical GP register.
  input  logic [7:0]   write_gp_i,
  /// Which bytes of it.
  input  logic [7:0]   write_bytes_i,
  /// Its value.
  input  logic [63:0]  write_value_i,

  /// The small memories are being cleared.
  input  logic         init_i,
  /// This place now.
  input  logic [7:0]   init_at_i,
  /// Register a of the instruction in cycle 6 is being loaded from now on.
  input  logic         load_i,
  /// A register has been loaded; the cycle after it was written.
  input  logic         loaded_i,
  /// Which.
  input  logic [7:0]   loaded_gp_i,
  /// `toggle_o` of its load.
  input  logic         loaded_toggle_i,
  /// Cycle 6: goes with the load of register a.
  output logic         toggle_o,
  /// Cycle 6: the instruction saw the old value of a register that was being loaded.
  output logic         stale_o,
  /// Cycle 6: the physical GP register.
  output logic [7:0]   stale_gp_o,
  /// Cycle 6: it is still being loaded.
  output logic         pending_o,

  /// Cycle 5: whose instruction is resolved in the next cycle.
  output context_t     ask_ctx_o,
  /// Cycle 5: the physical CP register of its RET.
  output logic [7:0]   ask_cp_o,

  /// Cycle 5: it names a register b.
  output logic         ask_b_o,

  /// Cycle 6: an instruction.
  output logic         valid_o,
  /// Whose.
  output context_t     ctx_o,
  /// Its opcode, without the undo bit.
  output logic [7:0]   opcode_o,
  /// Old bytes are kept before the row is written.
  output logic         undo_o,
  /// Its program counter.
  output logic [15:0]  pc_o,
  /// The next one in the code.
  output logic [15:0]  next_pc_o,
  /// Field a.
  output logic [7:0]   a_o,
  /// Field d.
  output logic [7:0]   d_o,
  /// Field e.
  output logic [7:0]   e_o,
  /// Field w.
  output logic [15:0]  w_o,
  /// Field x.
  output logic [31:0]  x_o,
  /// Physical GP register of field a.
  output logic [7:0]   gp_a_o,
  /// Physical CP register of field a.
  output logic [7:0]   cp_a_o,
  /// First operand: register b.
  output logic [63:0]  left_o,
  /// Second operand: register c or the constant.
  output logic [63:0]  right_o,
  /// Register a of stores.
  output logic [63:0]  stored_o,
  /// Destination of copies; else what a load, a store or a DB instruction is about.
  output addr_t        addr_x_o,
  /// Source of copies; buffer of scans.
  output addr_t        addr_y_o,
  /// Result of moves, additions and subtractions.
  output logic [63:0]  value_o,
  /// It left the range.
  output logic         overflow_o,
  /// Left is less than right, as signed integers.
  output logic         less_o,
  /// Left equals right.
  output logic         equal_o,
  /// Right is zero.
  output logic         zero_o,
  /// Left divided by right leaves the range.
  output logic         extreme_o,
  /// The stored value fits its width.
  output logic         fits_o,
  /// A conditional branch branches.
  output logic         taken_o
);

  typedef struct packed {
    logic        valid;
    context_t    ctx;
    logic [15:0] pc;
    logic [1:0]  flag;
    addr_t       block;
    granule_t    gp_base;
    granule_t    cp_base;
  } slot_t;

  typedef struct packed {
    logic [31:0] y;
    logic [31:0] x;
    logic [15:0] w;
    logic [7:0]  e;
    logic [7:0]  d;
    logic [7:0]  c;
    logic [7:0]  b;
    logic [7:0]  a;
    logic        undo;
    logic [6:0]  opcode;
  } instruction_t;

  slot_t        s2_q, s3_q, s4_q, s5_q;
  instruction_t i2, i3_q, i4_q, i5_q;

  assign code_addr_o = pick_pc_i;
  assign i2 = instruction_t'(code_i);

  function automatic logic is_copy(logic [6:0] opcode);
    return (opcode | 7'h03) == (OpcodeCopyBb[6:0] | 7'h03);
  endfunction

  // ---- Registers: two copies, each read twice an instruction.
  logic [63:0] rf0_mem[256];
  logic [63:0] rf1_mem[256];
  logic [63:0] rf0_q, rf1_q;
  logic [7:0] rf0_at, rf1_at, second_at;
  assign second_at = is_copy(i3_q.opcode) ? i3_q.d : i3_q.a;
  assign rf0_at = s2_q.valid ? physical(s2_q.gp_base, i2.b) : physical(s3_q.gp_base, second_at);
  assign rf1_at = s2_q.valid ? physical(s2_q.gp_base, i2.c) : physical(s3_q.gp_base, i3_q.e);

  always_ff @(posedge clk_i) begin
    rf0_q <= rf0_mem[rf0_at];
    rf1_q <= rf1_mem[rf1_at];
    for (int unsigned i = 0; i < 8; i++) begin
      if (write_i && write_bytes_i[i]) rf0_mem[write_gp_i][8*i+:8] <= write_value_i[8*i+:8];
      if (write_i && write_bytes_i[i]) rf1_mem[write_gp_i][8*i+:8] <= write_value_i[8*i+:8];
    end
  end

  // ---- Registers that are being loaded: those whose two bits differ. They are looked up in the cycle after the
  // register is read, b and c in cycle 3, the others in 4, and are said to be loaded in the cycle after the last part
  // is written.
  logic asked_mem[256];
  logic answered_mem[256];
  logic [7:0] at0_q, at1_q, asked_at, answered_at, stale4_gp_q, stale5_gp_q;
  logic pending0, pending1, pending3_b, pending3_c, pending4_second, pending4_e, stale4_q, stale5_q, toggle5_q;
  assign pending0 = asked_mem[at0_q] != answered_mem[at0_q];
  assign pending1 = asked_mem[at1_q] != answered_mem[at1_q];
  assign pending3_b = pending0 && i3_q.b != '0 && {1'b0, i3_q.opcode} != OpcodeRet;
  assign pending3_c = pending1 && i3_q.c != '0;
  // Field a of a DB instruction is a CP register.
  assign pending4_second = pending0 && (is_copy(i4_q.opcode) ? i4_q.d : i4_q.a) != '0
      && i4_q.opcode[6:4] != OpcodeSearch[6:4];
  assign pending4_e = pending1 && i4_q.e != '0 && is_copy(i4_q.opcode);
  assign pending_o = asked_mem[stale_gp_o] != answered_mem[stale_gp_o];
  assign asked_at = init_i ? init_at_i : gp_a_o;
  assign answered_at = init_i ? init_at_i : loaded_gp_i;

  always_ff @(posedge clk_i) begin
    if (init_i || load_i) asked_mem[asked_at] <= !init_i && toggle_o;
    if (init_i || loaded_i) answered_mem[answered_at] <= !init_i && loaded_toggle_i;
    at0_q <= rf0_at;
    at1_q <= rf1_at;
    stale4_q <= pending3_b || pending3_c;
    stale4_gp_q <= pending3_b ? at0_q : at1_q;
    stale5_q <= stale4_q || pending4_second || pending4_e;
    stale5_gp_q <= stale4_q ? stale4_gp_q : pending4_second ? at0_q : at1_q;
    stale_o <= stale5_q;
    stale_gp_o <= stale5_gp_q;
    // In cycle 4 the first port looks register a up.
    toggle5_q <= !asked_mem[at0_q];
    toggle_o <= toggle5_q;
  end

  // ---- Cycle 4.
  logic [63:0] b4_q, c4_q, immediate4, left4, right4;
  assign immediate4 = {i4_q.y, i4_q.x};
  logic row_x, row_y, has_immediate, is_move;
  always_comb begin
    row_x = 1'b0;
    row_y = 1'b0;
    has_immediate = 1'b0;
    is_move = 1'b0;
    unique case ({1'b0, i4_q.opcode})
      OpcodeLoadr, OpcodeStorer, OpcodeCopyRb: row_x = 1'b1;
      OpcodeCopyBr: row_y = 1'b1;
      OpcodeCopyRr: begin
        row_x = 1'b1;
        row_y = 1'b1;
      end
      OpcodeMovi: begin
        has_immediate = 1'b1;
        is_move = 1'b1;
      end
      OpcodeAddi, OpcodeSubi, OpcodeMuli, OpcodeDivi, OpcodeCmpi, OpcodeCheck: has_immediate = 1'b1;
      default: ;
    endcase
  end
  // A constant is moved by adding it to zero, a register by adding zero to it.
  assign left4 = is_move ? '0 : b4_q;
  always_comb begin
    right4 = has_immediate ? immediate4 : c4_q;
    if ({1'b0, i4_q.opcode} == OpcodeMov) right4 = '0;
  end
  addr_t base_x4, base_y4;
  assign base_x4 = (row_x ? b4_q[AddrWidth-1:0] : s4_q.block) + addr_t'(i4_q.x);
  assign base_y4 = (row_y ? c4_q[AddrWidth-1:0] : s4_q.block) + addr_t'(i4_q.y);

  // ---- Cycle 5.
  logic [63:0] left5_q, right5_q, second5_q, e5_q;
  addr_t base_x5_q, base_y5_q, index_x5, index_y5, c5_q;
  assign index_x5 = is_copy(i5_q.opcode) ? second5_q[AddrWidth-1:0] : c5_q;
  assign index_y5 = is_copy(i5_q.opcode) ? e5_q[AddrWidth-1:0] : '0;
  logic subtract5;
  always_comb begin
    unique case ({1'b0, i5_q.opcode})
      OpcodeSub, OpcodeSubi, OpcodeCmp, OpcodeCmpi, OpcodeCheck: subtract5 = 1'b1;
      default: subtract5 = 1'b0;
    endcase
  end
  // One bit more than the operands: the sign of the true result.
  logic [64:0] sum5;
  assign sum5 = {left5_q[63], left5_q} + ({right5_q[63], right5_q} ^ {65{subtract5}}) + 65'(subtract5);

  logic fits5;
  always_comb begin
    unique case (i5_q.w)
      16'h0001: fits5 = second5_q[63:8] == '0;
      16'h0002: fits5 = second5_q[63:16] == '0;
      16'h0004: fits5 = second5_q[63:32] == '0;
      16'h0001 | WidthSigned: fits5 = second5_q[63:7] == '0 || second5_q[63:7] == '1;
      16'h0002 | WidthSigned: fits5 = second5_q[63:15] == '0 || second5_q[63:15] == '1;
      16'h0004 | WidthSigned: fits5 = second5_q[63:31] == '0 || second5_q[63:31] == '1;
      default: fits5 = 1'b1;
    endcase
  end

  logic taken5;
  always_comb begin
    unique case ({1'b0, i5_q.opcode})
      OpcodeJmp: taken5 = 1'b1;
      OpcodeBe:  taken5 = s5_q.flag[0];
      OpcodeBne: taken5 = !s5_q.flag[0];
      OpcodeBl:  taken5 = s5_q.flag[1];
      OpcodeBle: taken5 = s5_q.flag[1] || s5_q.flag[0];
      OpcodeBg:  taken5 = !s5_q.flag[1] && !s5_q.flag[0];
      OpcodeBge: taken5 = !s5_q.flag[1];
      default:   taken5 = 1'b0;
    endcase
  end

  assign ask_ctx_o = s5_q.ctx;
  assign ask_b_o = i5_q.b != '0;
  assign ask_cp_o = physical(s5_q.cp_base, i5_q.b);

  always_ff @(posedge clk_i) begin
    i3_q <= i2;
    i4_q <= i3_q;
    i5_q <= i4_q;
    // Register 0 of a window reads as zero.
    b4_q <= i3_q.b == '0 ? '0 : rf0_q;
    c4_q <= i3_q.c == '0 ? '0 : rf1_q;
    second5_q <= (is_copy(i4_q.opcode) ? i4_q.d : i4_q.a) == '0 ? '0 : rf0_q;
    e5_q <= i4_q.e == '0 ? '0 : rf1_q;
    left5_q <= left4;
    right5_q <= right4;
    c5_q <= c4_q[AddrWidth-1:0];
    base_x5_q <= base_x4;
    base_y5_q <= base_y4;

    opcode_o <= {1'b0, i5_q.opcode};
    undo_o <= i5_q.undo;
    pc_o <= s5_q.pc;
    next_pc_o <= s5_q.pc + 16'd1;
    a_o <= i5_q.a;
    d_o <= i5_q.d;
    e_o <= i5_q.e;
    w_o <= i5_q.w;
    x_o <= i5_q.x;
    gp_a_o <= physical(s5_q.gp_base, i5_q.a);
    cp_a_o <= physical(s5_q.cp_base, i5_q.a);
    left_o <= left5_q;
    right_o <= right5_q;
    stored_o <= second5_q;
    addr_x_o <= base_x5_q + index_x5;
    addr_y_o <= base_y5_q + index_y5;
    value_o <= sum5[63:0];
    overflow_o <= sum5[64] != sum5[63];
    less_o <= sum5[64];
    equal_o <= left5_q == right5_q;
    zero_o <= right5_q == '0;
    extreme_o <= left5_q == {1'b1, 63'd0} && right5_q == '1;
    fits_o <= fits5;
    taken_o <= taken5;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      s2_q <= '0;
      s3_q <= '0;
      s4_q <= '0;
      s5_q <= '0;
      valid_o <= 1'b0;
      ctx_o <= '0;
    end else begin
      s2_q <= '{
          valid: pick_valid_i,
          ctx: pick_ctx_i,
          pc: pick_pc_i,
          flag: pick_flag_i,
          block: pick_block_i,
          gp_base: pick_gp_base_i,
          cp_base: pick_cp_base_i
      };
      s3_q <= s2_q;
      s4_q <= s3_q;
      s5_q <= s4_q;
      valid_o <= s5_q.valid;
      ctx_o <= s5_q.ctx;
    end
  end

  logic unused;
  assign unused = ^{s4_q, s5_q, i4_q, i5_q, e5_q};

endmodule
