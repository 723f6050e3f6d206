// Windows of a register file. A window is a run of granules; windows are given out one after the other and come back
// in any order, so one transaction that takes long holds up no registers but its own. A free run is kept at hand: it
// grows while the granule behind it is free, and windows are taken from its front. Only when it is shorter than what
// somebody waits for, and cannot grow, is it let go, and another one begins behind the obstacle.

module lw_windows
  import lw_softcore_pkg::*;
(
  /// Everything happens on its rising edge.
  input  logic       clk_i,
  /// Nothing is free.
  input  logic       rst_ni,
  /// A granule becomes free for the first time; nothing else happens then.
  input  logic       init_i,
  /// Which.
  input  granule_t   init_at_i,
  /// So many granules are waited for, at most all there are; 0: nobody waits.
  input  granules_t  want_i,
  /// The first granule of the run.
  output granule_t   base_o,
  /// How many it has. It does not become shorter but by `take_i`, unless more are waited for.
  output granules_t  free_o,
  /// A window is taken.
  input  logic       take_i,
  /// Its granules, at most `free_o`.
  input  granules_t  take_count_i,
  /// A window comes back.
  input  logic       give_valid_i,
  /// It is taken in.
  output logic       give_ready_o,
  /// Its first granule.
  input  granule_t   give_base_i,
  /// Its granules.
  input  granules_t  give_count_i
);

  // Granules of the run count as taken.
  logic      free_mem[Granules];
  granule_t  base_q, end_at, give_at_q, write_at;
  granules_t free_q, give_left_q;
  logic      giving, behind, quiet, grow, short, write_en, write_free;
  assign end_at = base_q + granule_t'(free_q);
  assign behind = free_mem[end_at];
  assign giving = give_left_q != '0;
  assign quiet = !init_i && !giving && !take_i && free_q != granules_t'(Granules);
  assign grow = quiet && behind;
  assign short = quiet && !behind && want_i > free_q;

  always_comb begin
    write_en = init_i || giving || grow || (short && free_q != '0);
    write_free = !grow;
    write_at = base_q;
    if (init_i) write_at = init_at_i;
    else if (giving) write_at = give_at_q;
    else if (grow) write_at = end_at;
  end
  always_ff @(posedge clk_i) begin
    if (write_en) free_mem[write_at] <= write_free;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      base_q <= '0;
      free_q <= '0;
      give_at_q <= '0;
      give_left_q <= '0;
    end else begin
      if (take_i) begin
        base_q <= base_q + granule_t'(take_count_i);
        free_q <= free_q - take_count_i;
      end else if (grow) begin
        free_q <= free_q + granules_t'(1);
      end else if (short) begin
        base_q <= base_q + granule_t'(1);
        if (free_q != '0) free_q <= free_q - granules_t'(1);
      end
      if (give_valid_i && give_ready_o) begin
        give_at_q <= give_base_i;
        give_left_q <= give_count_i;
      end else if (giving) begin
        give_at_q <= give_at_q + granule_t'(1);
        give_left_q <= give_left_q - granules_t'(1);
      end
    end
  end

  assign give_ready_o = !giving;
  assign base_o = base_q;
  assign free_o = free_q;

`ifdef LW_ASSERT
  always_ff @(posedge clk_i) begin
    if (rst_ni && take_i) assert (take_count_i <= free_q);
    // What comes back was taken.
    if (rst_ni && !init_i && giving) assert (!free_mem[give_at_q]);
  end
`endif

endmodule
