// Times of scanned ranges: an insert of an older transaction into one came too late.
//
// Ranges are compared on the first word of the key only, so tables with longer keys see a few conflicts too many. The
// latest ranges are kept one by one; times of others become one time a table. Most inserts are younger than every scan
// and pass at once; others are compared with one range a cycle.

module lw_skiplist_gaps
  import lw_pkg::*;
#(
    /// Ranges that are kept, a power of two.
    parameter int unsigned Gaps = 8,
    /// Slots of requests.
    parameter int unsigned Slots = 16,
    localparam int unsigned SlotWidth = $clog2(Slots)
) (
    input  logic                 clk_i,
    input  logic                 rst_ni,

    /// Forgets all times, for one cycle, while nothing is asked. As after reset, nothing is taken for 64 cycles.
    input  logic                 clear_i,

    /// A request: a scan leaves its time on all keys from `key_i`, or an insert asks for its key.
    input  logic                 ask_valid_i,
    output logic                 ask_ready_o,
    input  logic                 ask_scan_i,
    input  logic [SlotWidth-1:0] ask_slot_i,
    input  table_t               ask_table_i,
    input  stamp_t               ask_stamp_i,
    input  logic [63:0]          ask_key_i,
    /// With ready: the insert comes too late.
    output logic                 ask_late_o,

    /// The scan of a slot has ended: its range goes to `close_key_i`, if that is known, or is void.
    input  logic                 close_valid_i,
    output logic                 close_ready_o,
    input  logic [SlotWidth-1:0] close_slot_i,
    input  logic                 close_void_i,
    input  logic                 close_known_i,
    input  logic [63:0]          close_key_i
);

  localparam int unsigned GapWidth = $clog2(Gaps);

  typedef struct packed {
    table_t      tab;
    stamp_t      stamp;
    logic [63:0] from;
  } gap_t;

  typedef enum logic [2:0] {
    StClear,   // forgets the time of one table
    StIdle,
    StLook,    // reads one range
    StCompare,
    StReplace,
    StPut,
    StAnswer,
    StClose
  } state_e;

  state_e                       state_q;
  gap_t                         gap_mem  [Gaps];
  logic [63:0]                  to_mem   [Gaps];
  logic [GapWidth-1:0]          index_mem[Slots];
  // 0: none. A block RAM would be too slow for the comparisons behind it.
  (* ram_style = "distributed" *)
  stamp_t                       table_mem[64];
  table_t                       table_at, clear_q;
  logic                         table_write;
  // Of ranges: they are there; their scan has not ended; they go to the end of the table.
  logic [Gaps-1:0]              valid_q, open_q, endless_q;
  logic [Gaps-1:0][SlotWidth-1:0] owner_q;
  logic [GapWidth-1:0]          next_q, at_q, close_index;
  stamp_t                       latest_q, everywhere_q;
  gap_t                         gap_q;
  logic [63:0]                  to_q;
  logic                         now_valid_q, now_endless_q, late_q;
  logic                         close_hit, is_older;  // than a scan

  assign is_older      = ask_stamp_i < latest_q;
  assign close_index   = index_mem[close_slot_i];
  assign close_hit     = valid_q[close_index] && open_q[close_index] && (owner_q[close_index] == close_slot_i);
  assign table_write   = (state_q == StClear) || (state_q == StReplace && now_valid_q && everywhere_q < gap_q.stamp);
  assign ask_ready_o   = state_q == StAnswer;
  assign ask_late_o    = late_q;
  assign close_ready_o = state_q == StClose;

  always_comb begin
    table_at = gap_q.tab;
    if (state_q == StIdle) table_at = ask_table_i;
    if (state_q == StClear) table_at = clear_q;
  end

  always_ff @(posedge clk_i) begin
    gap_q         <= gap_mem[at_q];
    to_q          <= to_mem[at_q];
    now_valid_q   <= valid_q[at_q];
    now_endless_q <= endless_q[at_q];
    everywhere_q  <= table_mem[table_at];
    if (state_q == StPut) begin
      gap_mem[next_q]         <= '{tab: ask_table_i, stamp: ask_stamp_i, from: ask_key_i};
      index_mem[ask_slot_i]   <= next_q;
      owner_q[next_q]         <= ask_slot_i;
    end
    if (state_q == StClose && close_hit) to_mem[close_index] <= close_key_i;
    if (table_write) table_mem[table_at] <= (state_q == StClear) ? '0 : gap_q.stamp;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q       <= StClear;
      clear_q       <= '0;
      valid_q       <= '0;
      open_q        <= '0;
      endless_q     <= '0;
      next_q        <= '0;
      at_q          <= '0;
      latest_q      <= '0;
      late_q        <= 1'b0;
    end else begin
      unique case (state_q)
        StClear: begin
          clear_q <= clear_q + 1'b1;
          if (clear_q == '1) state_q <= StIdle;
        end
        StIdle: begin
          late_q <= 1'b0;
          at_q   <= ask_scan_i ? next_q : '0;
          if (close_valid_i) state_q <= StClose;
          else if (ask_valid_i) begin
            if (ask_scan_i) state_q <= StLook;
            else state_q <= is_older ? StLook : StAnswer;
          end
        end
        StLook: begin
          state_q <= StCompare;
          // What was read in the state before is the table's own time.
          if (!ask_scan_i && at_q == '0 && everywhere_q > ask_stamp_i) late_q <= 1'b1;
        end
        StCompare: begin
          if (ask_scan_i) state_q <= StReplace;
          else begin
            if (now_valid_q && gap_q.tab == ask_table_i && gap_q.stamp > ask_stamp_i && gap_q.from <= ask_key_i &&
                (now_endless_q || ask_key_i <= to_q)) begin
              late_q <= 1'b1;
            end
            at_q    <= at_q + 1'b1;
            state_q <= (at_q == GapWidth'(Gaps - 1)) ? StAnswer : StLook;
          end
        end
        StReplace: begin
          state_q <= StPut;
        end
        StPut: begin
          valid_q[next_q]   <= 1'b1;
          open_q[next_q]    <= 1'b1;
          endless_q[next_q] <= 1'b1;
          next_q            <= next_q + 1'b1;
          if (!is_older) latest_q <= ask_stamp_i;
          state_q           <= StAnswer;
        end
        StClose: begin
          if (close_hit) begin
            open_q[close_index]    <= 1'b0;
            endless_q[close_index] <= !close_known_i;
            if (close_void_i) valid_q[close_index] <= 1'b0;
          end
          state_q <= StIdle;
        end
        default: state_q <= StIdle;
      endcase
      if (clear_i) begin
        valid_q  <= '0;
        open_q   <= '0;
        latest_q <= '0;
        state_q  <= StClear;
      end
    end
  end
endmodule
