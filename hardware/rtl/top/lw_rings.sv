/// The rings of one worker in memory: takes block addresses from the submission ring and puts outcomes into the completion
/// ring.
///
/// Up to `Slots` entries are read ahead and handed on in order, and up to `Slots` outcomes are on their way to memory; the
/// index that the host sees moves when memory has answered, in order. Indices count on beyond the size of the ring. While the
/// completion ring is full, outcomes wait, and with them the worker. A ring begins at a multiple of its bytes.
///
/// Tags: bit 3 for the completion ring, the slot below.
module lw_rings (
  /// Clock.
  input  logic                          clk_i,
  /// Asynchronous reset: both rings are empty, indices are 0. Answers to what was asked before must not come after it.
  input  logic                          rst_ni,
  /// What the registers say; bases and sizes change only while nothing runs.
  input  lw_regs_pkg::ring_control_t    control_i,
  /// Entries of the submission ring that were handed on.
  output lw_regs_pkg::index_t           submit_tail_o,
  /// Entries of the completion ring that are in memory.
  output lw_regs_pkg::index_t           complete_head_o,
  /// All that was read has been handed on, and all outcomes are in memory; from registers.
  output logic                          idle_o,
  /// One cycle: memory refused an entry; it is skipped.
  output logic                          error_o,
  /// The address of the next block; from registers.
  output logic                          block_valid_o,
  /// The softcore takes it.
  input  logic                          block_ready_i,
  /// Byte address of the block.
  output lw_pkg::addr_t                 block_o,
  /// A transaction has ended.
  input  logic                          outcome_valid_i,
  /// Its outcome is on its way to memory; in the same cycle.
  output logic                          outcome_ready_o,
  /// Status as in the block.
  input  logic [6:0]                    outcome_status_i,
  /// Code as in the block.
  input  logic [15:0]                   outcome_code_i,
  /// Byte address of the block.
  input  lw_pkg::addr_t                 outcome_block_i,
  /// A request to memory.
  output logic                          mem_valid_o,
  /// It is taken.
  input  logic                          mem_ready_i,
  /// The request.
  output lw_pkg::mem_req_t              mem_req_o,
  /// Memory answers.
  input  logic                          mem_rsp_valid_i,
  /// The answer.
  input  lw_pkg::mem_rsp_t              mem_rsp_i
);

  import lw_regs_pkg::index_t;
  import lw_regs_pkg::size_t;

  localparam int unsigned LogSlots = 3;
  localparam int unsigned Slots = 1 << LogSlots;
  localparam index_t Ahead = index_t'(Slots);
  localparam int unsigned TagRest = lw_pkg::TagWidth - LogSlots - 1;
  localparam int unsigned AddrRest = lw_pkg::AddrWidth - 3 - lw_regs_pkg::IndexWidth;

  typedef logic [LogSlots-1:0] slot_t;

  // Where entry `index` is: bases are multiples of the ring's bytes.
  function automatic lw_pkg::word_addr_t place(lw_pkg::word_addr_t base, size_t size, index_t index);
    index_t mask;
    mask = ~(index_t'('1) << size);
    return base | {{AddrRest{1'b0}}, index & mask};
  endfunction

  // Submission ring: asked up to `asked_q`, handed on up to `tail_q`.
  index_t asked_q, tail_q;
  logic [Slots-1:0] here_q, refused_q;
  lw_pkg::addr_t blocks_q [Slots];
  logic ask_valid, ask_ready, hand_on;
  slot_t tail_slot;

  // Completion ring: sent up to `sent_q`, answered up to `head_q`.
  index_t sent_q, head_q;
  logic [Slots-1:0] answered_q;
  logic send_valid, send_ready, full;
  slot_t head_slot;

  logic rsp_submit, rsp_complete;
  slot_t rsp_slot;
  lw_pkg::mem_req_t ask, send;
  logic [$bits(lw_pkg::mem_req_t)-1:0] chosen;
  logic unused_rsp;

  assign rsp_slot     = mem_rsp_i.tag[LogSlots-1:0];
  assign rsp_submit   = mem_rsp_valid_i && !mem_rsp_i.tag[LogSlots];
  assign rsp_complete = mem_rsp_valid_i && mem_rsp_i.tag[LogSlots];
  assign unused_rsp   = ^{mem_rsp_i.tag[lw_pkg::TagWidth-1:LogSlots+1], mem_rsp_i.data[63:lw_pkg::AddrWidth]};

  assign ask_valid = control_i.fetch && asked_q != control_i.submit_head && index_t'(asked_q - tail_q) != Ahead;
  assign ask = '{
    write:  1'b0,
    addr:   place(control_i.submit_base, control_i.submit_size, asked_q),
    data:   '0,
    strobe: '0,
    tag:    {{TagRest{1'b0}}, 1'b0, asked_q[LogSlots-1:0]}
  };

  assign tail_slot     = tail_q[LogSlots-1:0];
  assign block_valid_o = here_q[tail_slot] & ~refused_q[tail_slot];
  assign block_o       = blocks_q[tail_slot];
  assign hand_on       = here_q[tail_slot] & (refused_q[tail_slot] | block_ready_i);

  always_ff @(posedge clk_i) begin
    if (rsp_submit) blocks_q[rsp_slot] <= mem_rsp_i.data[lw_pkg::AddrWidth-1:0];
  end

  assign full       = index_t'(sent_q - control_i.complete_tail) == index_t'(1) << control_i.complete_size;
  assign send_valid = outcome_valid_i && !full && index_t'(sent_q - head_q) != Ahead;
  assign send = '{
    write:  1'b1,
    addr:   place(control_i.complete_base, control_i.complete_size, sent_q),
    data:   {~sent_q[control_i.complete_size], outcome_status_i, outcome_code_i, outcome_block_i},
    strobe: '1,
    tag:    {{TagRest{1'b0}}, 1'b1, sent_q[LogSlots-1:0]}
  };
  assign outcome_ready_o = send_ready;
  assign head_slot       = head_q[LogSlots-1:0];

  lw_arbiter #(
    .Inputs(2),
    .Width ($bits(lw_pkg::mem_req_t))
  ) u_arbiter (
    .clk_i,
    .rst_ni,
    .valid_i({send_valid, ask_valid}),
    .ready_o({send_ready, ask_ready}),
    .data_i ({send, ask}),
    .valid_o(mem_valid_o),
    .ready_i(mem_ready_i),
    .data_o (chosen)
  );
  assign mem_req_o = lw_pkg::mem_req_t'(chosen);

  assign submit_tail_o   = tail_q;
  assign complete_head_o = head_q;
  assign idle_o          = asked_q == tail_q && sent_q == head_q;
  assign error_o         = mem_rsp_valid_i & mem_rsp_i.error;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      asked_q    <= '0;
      tail_q     <= '0;
      here_q     <= '0;
      refused_q  <= '0;
      sent_q     <= '0;
      head_q     <= '0;
      answered_q <= '0;
    end else begin
      if (ask_valid && ask_ready) asked_q <= asked_q + 1'b1;
      if (hand_on) begin
        tail_q            <= tail_q + 1'b1;
        here_q[tail_slot] <= 1'b0;
      end
      if (rsp_submit) begin
        here_q[rsp_slot]    <= 1'b1;
        refused_q[rsp_slot] <= mem_rsp_i.error;
      end
      if (send_valid && send_ready) sent_q <= sent_q + 1'b1;
      if (answered_q[head_slot]) begin
        head_q                <= head_q + 1'b1;
        answered_q[head_slot] <= 1'b0;
      end
      if (rsp_complete) answered_q[rsp_slot] <= 1'b1;
    end
  end

`ifdef LW_ASSERT
  always_ff @(posedge clk_i) begin
    if (rst_ni) begin
      assert (!rsp_submit || !here_q[rsp_slot]) else $error("lw_rings: an entry came twice");
      assert (!rsp_complete || !answered_q[rsp_slot]) else $error("lw_rings: an outcome was answered twice");
    end
  end
`endif

endmodule
