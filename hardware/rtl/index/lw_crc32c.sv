/// CRC-32C (reflected) of one 64-bit word more, low byte first: one level of XORs, no register.
module lw_crc32c (
  /// The remainder so far; all ones before the first word.
  input  logic [31:0] crc_i,
  /// The word.
  input  logic [63:0] word_i,
  /// The remainder with the word; inverted it is the CRC.
  output logic [31:0] crc_o
);

  localparam logic [31:0] Polynomial = 32'h82F63B78;

  typedef logic [31:0][63:0] matrix_t;

  // Bit i of the input changes these bits of the output.
  function automatic logic [31:0] column(input int unsigned i);
    logic [63:0] state;
    state = 64'h1 << i;
    for (int unsigned step = 0; step < 64; step++) begin
      state = {1'b0, state[63:1]} ^ (state[0] ? {32'h0, Polynomial} : 64'h0);
    end
    return state[31:0];
  endfunction

  function automatic matrix_t rows();
    matrix_t matrix;
    logic [31:0] bits;
    matrix = '0;
    for (int unsigned i = 0; i < 64; i++) begin
      bits = column(i);
      for (int unsigned o = 0; o < 32; o++) matrix[o][i] = bits[o];
    end
    return matrix;
  endfunction

  localparam matrix_t Rows = rows();

  logic [63:0] mixed;

  assign mixed = word_i ^ {32'h0, crc_i};

  for (genvar o = 0; o < 32; o++) begin : gen_bit
    assign crc_o[o] = ^(mixed & Rows[o]);
  end

endmodule
