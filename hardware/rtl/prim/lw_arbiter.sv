/// Round-robin arbiter with its multiplexer: `Inputs` streams become one, one word a cycle, without a register on the
/// way.
///
/// Fairness: an input that stays valid is taken at the latest as the `Inputs`-th word from now. With `Lock` a word that
/// has been offered stays offered until it is taken, as the handshake demands; without, a later but preferred word may
/// replace it, which a consumer that looks only when it is ready (a queue) does not see, and which is shorter.
module lw_arbiter #(
  /// Streams, at least 2.
  parameter int unsigned Inputs = 4,
  /// Bits of a word.
  parameter int unsigned Width = 8,
  /// Whether an offered word stays until taken.
  parameter bit Lock = 1'b1
) (
  /// Clock.
  input  logic                         clk_i,
  /// Asynchronous reset: input 0 is preferred then.
  input  logic                         rst_ni,
  /// Words that wait, one bit an input.
  input  logic [Inputs-1:0]            valid_i,
  /// Whose word is taken in this cycle; at most one; follows `valid_i` and `ready_i` in the same cycle.
  output logic [Inputs-1:0]            ready_o,
  /// The words.
  input  logic [Inputs-1:0][Width-1:0] data_i,
  /// Some input is valid, in the same cycle.
  output logic                         valid_o,
  /// The chosen word is taken in this cycle.
  input  logic                         ready_i,
  /// The chosen word; means nothing without `valid_o`.
  output logic [Width-1:0]             data_o
);

  localparam int unsigned NumberWidth = $clog2(Inputs);

  // Inputs whose turn comes before the round begins again.
  logic [Inputs-1:0] turn_q, turn;
  logic [Inputs-1:0] early, first, chosen;
  logic [NumberWidth-1:0] number;

  assign early   = valid_i & turn_q;
  assign valid_o = |valid_i;
  assign ready_o = ready_i ? chosen : '0;

  // The first one whose turn it is, else the first one. Adders would do it, too, with a carry chain on the way.
  assign first[0] = early[0] || (early == '0 && valid_i[0]);
  // All inputs above the one that is taken.
  assign turn[0] = 1'b0;
  for (genvar i = 1; i < int'(Inputs); i++) begin : gen_input
    assign first[i] = (early[i] && early[i-1:0] == '0) || (early == '0 && valid_i[i] && valid_i[i-1:0] == '0);
    assign turn[i]  = |chosen[i-1:0];
  end

  always_comb begin
    number = '0;
    for (int unsigned i = 0; i < Inputs; i++) begin
      if (chosen[i]) number |= NumberWidth'(i);
    end
  end

  assign data_o = data_i[number];

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      turn_q <= '1;
    end else if (valid_o && ready_i) begin
      turn_q <= turn;
    end
  end

  if (Lock) begin : gen_lock
    logic [Inputs-1:0] held_q;

    assign chosen = ((held_q & valid_i) != '0) ? held_q : first;

    always_ff @(posedge clk_i or negedge rst_ni) begin
      if (!rst_ni) begin
        held_q <= '0;
      end else begin
        held_q <= ready_i ? '0 : chosen;
      end
    end
  end else begin : gen_free
    assign chosen = first;
  end

`ifdef LW_ASSERT
  always_ff @(posedge clk_i) begin
    if (rst_ni) begin
      assert ($onehot0(chosen))
      else $error("lw_arbiter: two chosen");
      assert ((chosen & ~valid_i) == '0)
      else $error("lw_arbiter: chosen, but not valid");
    end
  end
`endif

endmodule
