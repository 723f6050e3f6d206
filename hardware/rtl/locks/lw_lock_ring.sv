// A look over the entries of one line of the shared lock table, first to last, one a cycle: what `Ring` of the locking
// crate tells of them.
module lw_lock_ring (
  /// Clock; everything on its rising edge.
  input  logic clk_i,
  /// Asynchronous reset.
  input  logic rst_ni,
  /// Begins with an empty ring.
  input  logic clear_i,
  /// The next entry is there.
  input  logic valid_i,
  /// The entry, as it is in its slot.
  input  lw_tuple_pkg::slot_t slot_i,
  /// Its slot, 0 to 6.
  input  logic [2:0] number_i,
  /// Owner, in the control word that the entries belong to, or 0.
  input  lw_tuple_pkg::session_t owner_i,
  /// The owner's mode.
  input  lw_tuple_pkg::mode_e owner_mode_i,
  /// Ticket behind the last entry.
  input  lw_tuple_pkg::ticket_t tail_i,
  /// Entries.
  input  logic [2:0] length_i,
  /// The session that looks. Constant from `clear_i` on.
  input  lw_tuple_pkg::session_t session_i,
  /// Sessions of the table. Constant.
  input  lw_tuple_pkg::session_t sessions_i,
  /// The mode in which it asks. Constant from `clear_i` on.
  input  lw_tuple_pkg::mode_e mode_i,
  /// What the entries so far tell, from the cycle behind the last one on.
  output lw_tuple_pkg::ring_view_t view_o
);
  import lw_tuple_pkg::*;

  ring_view_t view_q, view_d;
  ticket_t ticket_q, ticket_d;  // the next entry's
  logic [2:0] at_q, at_d;
  logic live_q, live_d;         // a live one was there
  logic dead_q, dead_d;
  mode_e mode_q, mode_d;        // of the holders, beside the owner
  logic stop_q, stop_d;         // no more holders
  mode_e mode_free_q, mode_free_d;
  logic stop_free_q, stop_free_d;

  logic live, mine, sound;
  logic [31:0] rest;
  assign sound = is_slot_sound(slot_i.mode, slot_i.members, slot_i.block, sessions_i);
  assign live = is_live(slot_i.mode, slot_i.members);
  assign mine = has(slot_i.mode, slot_i.members, slot_i.block, session_i);
  assign rest = slot_i.members & ~(32'd1 << session_i[4:0]);

  always_comb begin
    view_d = view_q;
    ticket_d = ticket_q;
    at_d = at_q;
    live_d = live_q;
    dead_d = dead_q;
    mode_d = mode_q;
    stop_d = stop_q;
    mode_free_d = mode_free_q;
    stop_free_d = stop_free_q;
    if (clear_i) begin
      view_d = '0;
      view_d.only = 1'b1;
      view_d.uniform = mode_i != ModeExclusive && (owner_i == '0 || owner_mode_i == mode_i);
      ticket_d = ticket_minus(tail_i, 23'(length_i));
      at_d = '0;
      live_d = 1'b0;
      dead_d = 1'b0;
      mode_d = owner_mode_i;
      stop_d = owner_mode_i == ModeExclusive;
      mode_free_d = ModeNone;
      stop_free_d = 1'b0;
    end else if (valid_i) begin
      at_d = at_q + 3'd1;
      ticket_d = ticket_next(ticket_q);
      if (slot_i == '0 || slot_i.ticket != ticket_q || !sound) view_d.torn = 1'b1;
      if (mine && !view_q.found) begin
        view_d.found = 1'b1;
        view_d.found_at = at_q;
        view_d.found_slot = number_i;
        view_d.behind_dead = dead_q;
      end
      if (live) begin
        live_d = 1'b1;
        if (!live_q && slot_i.mode == ModeExclusive) begin
          view_d.first_writer = 1'b1;
          view_d.first = {slot_i.members[4:0], slot_i.block};
        end
        if (slot_i.mode != mode_i) view_d.uniform = 1'b0;
        if (slot_i.mode == ModeExclusive || (mode_q != ModeNone && mode_q != slot_i.mode)) stop_d = 1'b1;
        else if (!stop_q) begin
          mode_d = slot_i.mode;
          view_d.granted = at_q + 3'd1;
          if (!mine || rest != '0) view_d.only = 1'b0;
        end
        if (slot_i.mode == ModeExclusive || (mode_free_q != ModeNone && mode_free_q != slot_i.mode)) stop_free_d = 1'b1;
        else if (!stop_free_q) begin
          mode_free_d = slot_i.mode;
          view_d.granted_free = at_q + 3'd1;
        end
      end else begin
        dead_d = 1'b1;
        if (!live_q) view_d.fallen = view_q.fallen + 3'd1;
      end
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      view_q <= '0;
      ticket_q <= '0;
      at_q <= '0;
      live_q <= 1'b0;
      dead_q <= 1'b0;
      mode_q <= ModeNone;
      stop_q <= 1'b0;
      mode_free_q <= ModeNone;
      stop_free_q <= 1'b0;
    end else begin
      view_q <= view_d;
      ticket_q <= ticket_d;
      at_q <= at_d;
      live_q <= live_d;
      dead_q <= dead_d;
      mode_q <= mode_d;
      stop_q <= stop_d;
      mode_free_q <= mode_free_d;
      stop_free_q <= stop_free_d;
    end
  end

  assign view_o = view_q;

endmodule
