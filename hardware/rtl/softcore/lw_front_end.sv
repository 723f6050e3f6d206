// Takes block addresses and reads the first word of each, some ahead, so that a transaction begins with its procedure
// known. Blocks leave in the order in which they came.

module lw_front_end
  import lw_pkg::*;
#(
  /// Blocks read ahead.
  parameter int unsigned Ahead = 4
) (
  /// Everything happens on its rising edge.
  input  logic       clk_i,
  /// Forgets all blocks.
  input  logic       rst_ni,
  /// Nothing is taken now.
  input  logic       hold_i,

  /// A block is to be executed.
  input  logic       submit_valid_i,
  /// It is taken.
  output logic       submit_ready_o,
  /// Its address, a multiple of 8.
  input  addr_t      submit_addr_i,

  /// A word is wanted.
  output logic       fetch_valid_o,
  /// It was asked for.
  input  logic       fetch_ready_i,
  /// Where it lies.
  output word_addr_t fetch_addr_o,
  /// Number of the fetch.
  output logic [1:0] fetch_slot_o,
  /// A word came.
  input  logic       fetched_valid_i,
  /// Number of its fetch.
  input  logic [1:0] fetched_slot_i,
  /// The word.
  input  logic [63:0] fetched_data_i,
  /// Memory refused.
  input  logic       fetched_error_i,

  /// The next block is known; held until taken.
  output logic       head_valid_o,
  /// It is taken.
  input  logic       head_ready_i,
  /// Its address.
  output addr_t      head_addr_o,
  /// Its procedure.
  output logic [9:0] head_procedure_o,
  /// No procedure has such a number.
  output logic       head_unknown_o,
  /// Memory refused the block.
  output logic       head_error_o,
  /// There is no block.
  output logic       empty_o
);

  if (Ahead != 4) begin : gen_check
    $error("two bits number the fetches");
  end

  addr_t       addr_mem[4];
  logic [11:0] word_mem[4];  // error, unknown, procedure
  logic [3:0]  known_q;
  logic [2:0]  head_q, sent_q, tail_q;

  logic [2:0] held;
  assign held = tail_q - head_q;
  assign submit_ready_o = held != 3'd4 && !hold_i;
  assign fetch_valid_o = sent_q != tail_q;
  assign fetch_slot_o = sent_q[1:0];
  addr_t fetch_addr;
  assign fetch_addr = addr_mem[sent_q[1:0]];
  assign fetch_addr_o = fetch_addr[AddrWidth-1:3];
  assign head_valid_o = held != 3'd0 && known_q[head_q[1:0]];
  assign head_addr_o = addr_mem[head_q[1:0]];
  assign {head_error_o, head_unknown_o, head_procedure_o} = word_mem[head_q[1:0]];
  assign empty_o = held == 3'd0;

  always_ff @(posedge clk_i) begin
    if (submit_valid_i && submit_ready_o) addr_mem[tail_q[1:0]] <= submit_addr_i;
    if (fetched_valid_i) begin
      word_mem[fetched_slot_i] <= {fetched_error_i, fetched_data_i[31:10] != '0, fetched_data_i[9:0]};
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      known_q <= '0;
      head_q <= '0;
      sent_q <= '0;
      tail_q <= '0;
    end else begin
      if (submit_valid_i && submit_ready_o) tail_q <= tail_q + 3'd1;
      if (fetch_valid_o && fetch_ready_i) sent_q <= sent_q + 3'd1;
      if (fetched_valid_i) known_q[fetched_slot_i] <= 1'b1;
      if (head_valid_o && head_ready_i) begin
        head_q <= head_q + 3'd1;
        known_q[head_q[1:0]] <= 1'b0;
      end
    end
  end

  logic unused;
  assign unused = ^{fetched_data_i[63:32], fetch_addr[2:0]};

endmodule
