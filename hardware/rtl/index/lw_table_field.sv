/// One word of every table's description, kept as the host writes it: `Width` bits from bit `Low` of field `Field`.
module lw_table_field #(
  /// Which word of the table's eight.
  parameter int unsigned Field = 0,
  /// Lowest bit.
  parameter int unsigned Low = 0,
  /// How many bits.
  parameter int unsigned Width = 1
) (
  /// Clock.
  input  logic             clk_i,
  /// What the host writes.
  input  lw_pkg::config_t  config_i,
  /// Which table is looked at.
  input  lw_pkg::table_t   table_i,
  /// Its bits, an asynchronous read; undefined until the host has written them.
  output logic [Width-1:0] data_o
);

  (* ram_style = "distributed" *) logic [Width-1:0] memory_q [2**lw_pkg::TableWidth];
  logic unused_bits;

  assign unused_bits = ^config_i.data;
  assign data_o      = memory_q[table_i];

  always_ff @(posedge clk_i) begin
    if (config_i.valid && config_i.addr[15:9] == lw_pkg::ConfigTable[15:9] && config_i.addr[2:0] == 3'(Field)) begin
      memory_q[config_i.addr[8:3]] <= config_i.data[Low+:Width];
    end
  end

endmodule
