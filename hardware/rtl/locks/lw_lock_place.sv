// Which line of the shared lock table a key has: `Layout::place` of the locking crate.
//
// Spread: 64 keys that follow each other lie side by side, and their group is mixed by the finalizer of splitmix64, two
// multiplications by constants, 16 bits of the constant a cycle. Direct: the low bits of the key.
module lw_lock_place (
  /// Clock; everything on its rising edge.
  input  logic clk_i,
  /// Asynchronous reset.
  input  logic rst_ni,
  /// Takes the key: the line of the one before is forgotten.
  input  logic start_i,
  /// The key; read in the cycle of `start_i` only.
  input  logic [63:0] key_i,
  /// Low bits of the key instead of spread. Constant while at work.
  input  logic direct_i,
  /// The table has 2^lines_bits_i lines, 0 to 31. Constant while at work.
  input  logic [4:0] lines_bits_i,
  /// `line_o` is the line, from one cycle (direct) or 13 cycles (spread) after `start_i` to the next start.
  output logic done_o,
  /// The line.
  output lw_tuple_pkg::line_t line_o
);

  localparam logic [63:0] First = 64'hBF58_476D_1CE4_E5B9;
  localparam logic [63:0] Second = 64'h94D0_49BB_1331_11EB;

  logic [63:0] word_q, word_d, product_q, product_d, sum_q, sum_d;
  logic [5:0] low_q, low_d;
  logic [30:0] line_q, line_d;
  logic [3:0] step_q, step_d;  // 0: at rest; then seven of each multiplication
  logic done_q, done_d;

  logic [63:0] factor;
  logic [15:0] digit;
  logic [24:0] mixed;
  logic [30:0] mask;
  logic [24:0] group;
  logic [63:0] shifted;

  assign shifted = {6'd0, key_i[63:6]};
  // Bits 39 to 63 of the word with itself, 31 to the right.
  assign mixed = sum_q[63:39] ^ 25'(sum_q[63:39] >> 31);
  assign mask = ~(31'h7FFF_FFFF << lines_bits_i);
  assign group = lines_bits_i > 5'd6 ? mixed >> (5'd31 - lines_bits_i) : 25'd0;

  always_comb begin
    factor = step_q > 4'd7 ? Second : First;
    unique case (step_q)
      4'd1, 4'd8:  digit = factor[63:48];
      4'd2, 4'd9:  digit = factor[47:32];
      4'd3, 4'd10: digit = factor[31:16];
      default:     digit = factor[15:0];
    endcase
  end

  always_comb begin
    word_d = word_q;
    product_d = word_q * {48'd0, digit};
    sum_d = sum_q;
    low_d = low_q;
    line_d = line_q;
    step_d = step_q;
    done_d = done_q;
    unique case (step_q)
      4'd0: ;
      4'd1, 4'd8: begin
        sum_d = '0;
        step_d = step_q + 4'd1;
      end
      4'd2, 4'd3, 4'd4, 4'd5, 4'd9, 4'd10, 4'd11, 4'd12: begin
        sum_d = {sum_q[47:0], 16'd0} + product_q;
        step_d = step_q + 4'd1;
      end
      4'd6: begin
        word_d = sum_q ^ (sum_q >> 27);
        step_d = 4'd8;
      end
      default: begin
        line_d = {group, low_q} & mask;
        done_d = 1'b1;
        step_d = 4'd0;
      end
    endcase
    if (start_i) begin
      word_d = shifted ^ (shifted >> 30);
      low_d = key_i[5:0];
      line_d = key_i[30:0] & mask;
      done_d = direct_i;
      step_d = direct_i ? 4'd0 : 4'd1;
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      word_q <= '0;
      product_q <= '0;
      sum_q <= '0;
      low_q <= '0;
      line_q <= '0;
      step_q <= '0;
      done_q <= 1'b0;
    end else begin
      word_q <= word_d;
      product_q <= product_d;
      sum_q <= sum_d;
      low_q <= low_d;
      line_q <= line_d;
      step_q <= step_d;
      done_q <= done_d;
    end
  end

  assign done_o = done_q;
  assign line_o = line_q;

endmodule
