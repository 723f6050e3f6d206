/// Where times come from: a counter of which every worker sees its own values, so that no two transactions of the machine
/// have the same time, every next one of a worker is later, and workers stay abreast. Never gives 0.
///
/// A time is a common count above the worker's number; the count goes on in every cycle in which any worker takes one.
module lw_stamp #(
  /// Workers, a power of two.
  parameter int unsigned Workers = 4,
  /// How many counts before the last `low_o` is raised; at least what begins while the machine stops.
  parameter int unsigned Reserve = 65536
) (
  /// Clock.
  input  logic                            clk_i,
  /// Asynchronous reset: times begin again.
  input  logic                            rst_ni,
  /// Times begin again, from the next cycle on.
  input  logic                            clear_i,
  /// A worker takes its time in this cycle.
  input  logic            [Workers-1:0]   take_i,
  /// The time a worker has if it takes one now; from registers.
  output lw_pkg::stamp_t  [Workers-1:0]   stamp_o,
  /// Times run out soon: the machine is to stop and clear; from a register.
  output logic                            low_o
);

  localparam int unsigned LogWorkers = $clog2(Workers);
  localparam int unsigned Width = lw_pkg::TimeWidth - LogWorkers;
  localparam logic [Width-1:0] Low = ~Width'(Reserve);

  logic [Width-1:0] count_q;
  logic low_q;

  for (genvar w = 0; w < int'(Workers); w++) begin : gen_worker
    if (Workers == 1) begin : gen_alone
      assign stamp_o[w] = count_q;
    end else begin : gen_number
      assign stamp_o[w] = {count_q, LogWorkers'(w)};
    end
  end
  assign low_o = low_q;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      count_q <= Width'(1);
      low_q   <= 1'b0;
    end else if (clear_i) begin
      count_q <= Width'(1);
      low_q   <= 1'b0;
    end else begin
      if (take_i != '0) count_q <= count_q + 1'b1;
      if (count_q >= Low) low_q <= 1'b1;
    end
  end

endmodule
