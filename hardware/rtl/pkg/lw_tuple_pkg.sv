// Types of the tuple lock module, and the words of the shared lock table as the `shared` module of the locking crate
// lays them out.

package lw_tuple_pkg;

  import lw_pkg::*;

  /// Sessions of a table: 1 to 4095.
  localparam int unsigned SessionWidth = 12;
  /// Lines of a table: at most 2^31.
  localparam int unsigned LineWidth = 31;
  /// Bits of a ticket.
  localparam int unsigned TicketWidth = 23;
  /// Tickets are counted modulo this, a multiple of the seven slots of a line.
  localparam logic [TicketWidth-1:0] Tickets = 23'd7340032;

  typedef logic [SessionWidth-1:0] session_t;
  typedef logic [LineWidth-1:0] line_t;
  typedef logic [TicketWidth-1:0] ticket_t;

  typedef enum logic [1:0] {
    ModeNone      = 2'd0,
    ModeShared    = 2'd1,
    ModeIntent    = 2'd2,
    ModeExclusive = 2'd3
  } mode_e;

  /// Word 0 of a line.
  typedef struct packed {
    logic [22:0] version;
    ticket_t     tail;
    logic        crowded;
    logic [2:0]  length;
    session_t    owner;
    mode_e       mode;
  } control_t;

  /// Words 1 to 7: a group, or, in mode exclusive, one writer, whose session is {members[4:0], block}.
  typedef struct packed {
    logic [31:0] members;
    logic [6:0]  block;
    ticket_t     ticket;
    mode_e       mode;
  } slot_t;

  /// What a session's list says about a line.
  typedef struct packed {
    logic        zero;
    line_t       line;
    mode_e       mode;
    logic [29:0] count;  // 0: it is waited for
  } held_t;

  /// What a port to coherent memory can do with a word. Each is atomic.
  typedef enum logic [1:0] {
    MemLoad  = 2'd0,
    MemStore = 2'd1,
    MemSwap  = 2'd2   // writes `data` if the word is `expected`
  } lock_mem_op_e;

  /// A request to coherent memory. It is answered exactly once, in any order; the answer is always taken.
  typedef struct packed {
    lock_mem_op_e op;
    word_addr_t   addr;
    logic [63:0]  expected;
    logic [63:0]  data;
    tag_t         tag;
  } lock_mem_req_t;

  /// Its answer. What was asked for afterwards happens afterwards.
  typedef struct packed {
    logic        error;    // memory refused; the rest means nothing
    logic        swapped;  // of a swap: the word was as expected, and was replaced
    logic [63:0] data;     // of a load: the word
    tag_t        tag;
  } lock_mem_rsp_t;

  /// What a processing element asks for.
  typedef enum logic [2:0] {
    LockAcquire    = 3'd0,  // the line of `key` in `mode`
    LockRelease    = 3'd1,  // one grant of it
    LockWithdraw   = 3'd2,  // takes back a request that waits, or was granted and that not told yet
    LockReleaseAll = 3'd3,  // whatever the session holds or waits for
    LockAge        = 3'd4   // `key` is the session's age for wait-die, while it holds nothing
  } lock_op_e;

  /// How long a request may wait, as `Patience` of the locking crate.
  typedef enum logic [1:0] {
    WaitNever   = 2'd0,
    WaitYounger = 2'd1,  // wait-die
    WaitAnybody = 2'd2,
    WaitSafe    = 2'd3   // anybody while the session holds nothing, else younger ones
  } patience_e;

  typedef struct packed {
    lock_op_e    op;
    mode_e       mode;
    patience_e   patience;
    logic [63:0] key;
  } lock_req_t;

  typedef enum logic [3:0] {
    LockGranted   = 4'd0,   // also later, for a request that waits
    LockWaiting   = 4'd1,   // stands in the line; `LockGranted` follows
    LockFull      = 4'd2,   // may wait, but the line has no place; ask again
    LockRefused   = 4'd3,   // may not wait
    LockDone      = 4'd4,   // released, withdrawn, age taken
    LockNotHeld   = 4'd5,
    LockTooMany   = 4'd6,   // the session's list is full
    LockTooOften  = 4'd7,   // held 2^30 - 1 times
    LockWaits     = 4'd8,   // the session waits for the line already
    LockInUse     = 4'd9,   // an age while something is held
    LockDamage    = 4'd10,  // the line contains what nobody wrote
    LockStale     = 4'd11,  // the session is not open here, or its epoch has ended
    LockMemError  = 4'd12   // memory refused; the session is closed here: whoever opened it has to clean up
  } lock_answer_e;

  typedef struct packed {
    lock_answer_e answer;
    line_t        line;
  } lock_rsp_t;

  /// What a look over a line's ring tells; see `lw_lock_ring`.
  typedef struct packed {
    logic       torn;          // an entry that cannot be
    logic [2:0] fallen;        // dead entries in front
    logic       first_writer;  // the first live entry is a writer
    session_t   first;         // that writer
    logic       found;         // the session has an entry
    logic [2:0] found_at;      // which, from the front
    logic [2:0] found_slot;    // in which slot
    logic       behind_dead;   // a dead entry is in front of it
    logic [2:0] granted;       // entries from the front that hold the lock beside the owner
    logic [2:0] granted_free;  // that would, were there no owner
    logic       only;          // nobody but the session is in those of `granted`
    logic       uniform;       // all live entries have the mode that is asked for
  } ring_view_t;

  /// Modulo 7.
  function automatic logic [2:0] mod7(ticket_t ticket);
    logic [5:0] sum;
    logic [3:0] folded;
    // 8 is 1 modulo 7, so the octal digits can be added.
    sum = 6'(ticket[2:0]) + 6'(ticket[5:3]) + 6'(ticket[8:6]) + 6'(ticket[11:9]) + 6'(ticket[14:12])
        + 6'(ticket[17:15]) + 6'(ticket[20:18]) + 6'(ticket[22:21]);
    folded = 4'(sum[5:3]) + 4'(sum[2:0]);
    if (folded >= 4'd14) return 3'd0;
    if (folded >= 4'd7) return 3'(folded - 4'd7);
    return folded[2:0];
  endfunction

  /// `a` - `b` modulo `Tickets`.
  function automatic ticket_t ticket_minus(ticket_t a, ticket_t b);
    return a >= b ? a - b : a - b + Tickets;
  endfunction

  /// The next ticket.
  function automatic ticket_t ticket_next(ticket_t a);
    return a == Tickets - 23'd1 ? 23'd0 : a + 23'd1;
  endfunction

  /// The next of the slots 0 to 6.
  function automatic logic [2:0] slot_next(logic [2:0] slot);
    return slot == 3'd6 ? 3'd0 : slot + 3'd1;
  endfunction

  /// Whether anybody is in a slot.
  function automatic logic is_live(mode_e mode, logic [31:0] members);
    return mode == ModeExclusive || (mode != ModeNone && members != '0);
  endfunction

  /// Whether a session is in a slot.
  function automatic logic has(mode_e mode, logic [31:0] members, logic [6:0] block, session_t session);
    if (mode == ModeExclusive) return {members[4:0], block} == session;
    return mode != ModeNone && block == session[11:5] && members[session[4:0]];
  endfunction

  /// A slot without a session that is in it, of which these are the low bits.
  function automatic slot_t without(slot_t slot, logic [4:0] low);
    slot_t rest;
    rest = slot;
    if (slot.mode == ModeExclusive) rest.mode = ModeNone;
    else rest.members[low] = 1'b0;
    return rest;
  endfunction

  /// The entry of one session, alone.
  function automatic slot_t entry(ticket_t ticket, session_t session, mode_e mode);
    slot_t slot;
    slot = '0;
    slot.ticket = ticket;
    slot.mode = mode;
    if (mode == ModeExclusive) {slot.members[4:0], slot.block} = session;
    else begin
      slot.block = session[11:5];
      slot.members[session[4:0]] = 1'b1;
    end
    return slot;
  endfunction

  /// Whether owner and mode are both there or both not, and the owner is one of that many sessions.
  function automatic logic is_sound(session_t owner, mode_e mode, ticket_t tail, session_t sessions);
    return (owner == '0) == (mode == ModeNone) && owner <= sessions && tail < Tickets;
  endfunction

  /// Whether all who are in a slot are of that many sessions.
  function automatic logic is_slot_sound(mode_e mode, logic [31:0] members, logic [6:0] block, session_t sessions);
    session_t writer;
    logic [31:0] above;
    writer = {members[4:0], block};
    above = 32'hFFFF_FFFE << sessions[4:0];
    if (mode == ModeNone) return 1'b1;
    if (mode == ModeExclusive) return writer != '0 && writer <= sessions;
    if (members == '0) return 1'b1;
    return !(block == '0 && members[0]) && block <= sessions[11:5]
      && !(block == sessions[11:5] && (members & above) != '0);
  endfunction

endpackage
