// Tuple lock module: takes and gives back locks of the shared lock table for processing elements, while host processes
// use the same table (neoDBMS, section 3; the protocol is that of the `shared` module of the locking crate).
//
// A processing element speaks for one session of the table, which the host opens and hands over (configuration). It
// sends one request after the other; the module hashes the key, keeps the session's list in memory so that whoever
// cleans up after a death finds it, and changes the line by compare-and-swap, word by word. Every access of a line is
// one that `Line` of the locking crate would make there, in its order; only loads of the slots of one look go out
// together. Sessions take turns: a sequencer runs the session whose answers have come until it has to wait for memory
// again, so as many accesses are in flight as there are sessions, or more.
//
// A request that has to wait stands in the line's ring and in the session's list, and takes nothing else: the session
// goes on with other requests. It is looked at again when the module itself makes it its turn, and every
// `ConfigPoll` cycles, which stays in the cache of the memory port until somebody changes the line. Then the element
// gets `LockGranted` once more. Host sessions that the module makes the holders are told on `wake_*`: they may sleep,
// and the host's driver wakes them as `SharedLocks` does; a wake that is lost costs them one nap.
//
// What remains with the host: opening and closing sessions (header, liveness), the clean-up after those who died, and
// after this module when it was reset (sessions of its own are cleaned up as those of a dead process), a full line's
// crowd word, sleeping. A session that waits and asks for something else with a patience other than `WaitAnybody` is
// refused, where the locking crate would look whether it waits for younger ones only.
//
// Configuration (`config_addr_i`), while no session is open for the first three:
//   0: word address of line 0                           1: word address of the record of session 1
//   2: [4:0] log2 of lines, [5] direct placement, [17:6] sessions of the table, [63:32] lines that a session can hold
//   3: [31:0] cycles between two looks of those who wait, not 0
//   64 + 4 * element + 0: [11:0] session, [12] open: what an earlier session of the element had is forgotten
//                    + 1: its epoch                     + 2: word address of its list
//                    + 3: its age
// Fields 1 to 3 are written before the element is opened. To close it, write 0 to field 0 and wait for `busy_o` to
// fall: a request under way is finished, and later ones are answered `LockStale`.
module lw_tuple_lock #(
  /// Processing elements, a power of two, 2 to 32. Each speaks for one session.
  parameter int unsigned Elements = 8,
  /// Lines that a session can hold, a power of two; fewer if the table's sessions can hold fewer.
  parameter int unsigned Held = 64,
  localparam int unsigned ElementWidth = $clog2(Elements),
  localparam int unsigned HeldWidth = $clog2(Held)
) (
  /// Clock; everything on its rising edge.
  input  logic clk_i,
  /// Asynchronous reset. All sessions are closed.
  input  logic rst_ni,

  /// Writes a word of configuration in this cycle.
  input  logic config_valid_i,
  /// Which; see above.
  input  logic [7:0] config_addr_i,
  /// The word.
  input  logic [63:0] config_data_i,

  /// A request of each element, held until it is taken.
  input  logic [Elements-1:0] req_valid_i,
  /// The request is taken in this cycle; at most one element's is, and only if it is valid.
  output logic [Elements-1:0] req_ready_o,
  /// The requests.
  input  lw_tuple_pkg::lock_req_t [Elements-1:0] req_i,

  /// An answer for an element, in this cycle. Elements always take answers. One request has one answer, in order; after
  /// `LockWaiting` a `LockGranted` (or `LockDamage`, each time the module looks) comes, unless it is withdrawn.
  output logic [Elements-1:0] rsp_valid_o,
  /// The answer. Its line names what was asked for.
  output lw_tuple_pkg::lock_rsp_t rsp_o,
  /// Which answers are those to a request; the others are of what was waited for.
  output logic rsp_direct_o,
  /// Element at work on a request or a look.
  output logic [Elements-1:0] busy_o,

  /// A host session has a reason to look at its line again; held until it is taken.
  output logic wake_valid_o,
  /// It is taken in this cycle. While one is not taken, the module stands still at the next one.
  input  logic wake_ready_i,
  /// Not one session, but all who wait for a place in a line.
  output logic wake_crowd_o,
  /// The session.
  output lw_tuple_pkg::session_t wake_session_o,

  /// A request to memory; held until it is taken.
  output logic mem_valid_o,
  /// It is taken in this cycle.
  input  logic mem_ready_i,
  /// The request.
  output lw_tuple_pkg::lock_mem_req_t mem_req_o,
  /// An answer from memory in this cycle, which is always taken.
  input  logic mem_rsp_valid_i,
  /// The answer.
  input  lw_tuple_pkg::lock_mem_rsp_t mem_rsp_i
);
  import lw_pkg::*;
  import lw_tuple_pkg::*;

  typedef logic [ElementWidth-1:0] element_t;
  typedef logic [HeldWidth-1:0] place_t;

  typedef enum logic [5:0] {
    StPick,         // choose a session
    StResume,       // its registers are loaded
    StStart,        // a new request, or a look
    StPlace,        // the line is computed
    StFind,         // search the list
    StFirst,        // ask for the epoch, and for the control word
    StChecked,      // both are there
    StPushed,       // the line stands in the list
    StTaken,        // whether the free line was taken
    StView,         // look at a line: control word,
    StViewControl,
    StViewTail,
    StViewSlots,    //   slots,
    StViewAgain,    //   control word again,
    StViewSame,
    StEntries,      //   entries
    StDecide,       // what follows from the look
    StFreeTaken,
    StJoined,
    StSettled,
    StTailSlot,     // the slot at the tail
    StTailSame,
    StClaimed,
    StConfirm,
    StConfirmWord,
    StConfirmSwap,
    StConfirmed,
    StStood,
    StEntered,      // the session is in the line: holds or waits
    StUpgraded,
    StLeft,
    StDeparted,
    StHandedOver,
    StLeave,        // out of the line
    StAges,         // somebody's age
    StAge,
    StAgesDone,
    StWake,         // tell those whose turn it is
    StWakeGroup,
    StWakeCrowd,
    StRefuse,
    StKeep,         // the line's entry in the list is written
    StDrop,         // the line leaves the list
    StDropRead,
    StDropMove,
    StDropCount,
    StAll,          // next line of the list
    StAllRead,
    StAllLoad,      // its control word
    StAllControl,
    StGiveBack,     // at once, if nobody waits
    StNextLook,
    StLookRead,
    StLook,
    StAnswer,
    StNoted         // an answer to what was waited for was given
  } st_e;

  // Why the line is looked at.
  typedef enum logic [3:0] {
    WhyAdmit,      // whether it would be granted at once
    WhyAllYounger, // whether everybody there is younger
    WhyEnter,
    WhyStand,
    WhyWaitsFor,   // whether those in front are younger
    WhyFull,       // the ring is full: whether everybody there is younger
    WhyUpgrade,
    WhyLeave,
    WhyDepart      // the entry is vacated
  } why_e;

  // What follows when the session is out of the line.
  typedef enum logic [1:0] {
    ThenEnter,
    ThenRefuse,
    ThenDrop,
    ThenAll
  } then_e;

  // A session's registers, while another one is at work.
  typedef struct packed {
    st_e          st;
    why_e         why;
    then_e        next;
    lock_op_e     op;
    logic         look;       // no request: looks at what it waits for
    mode_e        mode;
    patience_e    patience;
    lock_answer_e answer;
    logic         damaged;
    logic         listed;     // the line was found in the list
    line_t        line;
    place_t       place;      // in the list
    mode_e        held_mode;
    logic [29:0]  count;
    control_t     control;
    logic [2:0]   tail_slot;
    ticket_t      ticket;     // of the entry to be confirmed
    logic         joining;
    logic         live;       // what was vacated is still live
    logic         relies;     // holds the lock behind dead entries
    logic         holds;
    logic         wake;       // those whose turn it is
    logic [2:0]   wake_to;    // so many entries
    session_t     wake_owner; // or this writer
    logic         wake_writer;
    logic         wake_crowd;
    st_e          woken;      // what follows
    logic         age_owner;  // the owner's age was looked at
    logic [2:0]   age_at;
    logic [2:0]   age_end;
    logic         age_begun;
    logic [31:0]  age_left;
    logic         all;        // everybody is younger
    logic [HeldWidth:0] touched;
    logic [HeldWidth:0] waits;
  } context_t;

  // The session at work.
  element_t cur_q, cur_d;
  context_t ctx_q, ctx_d;
  logic [2:0] walk_q, walk_d;    // a slot of its line
  logic [2:0] count_q, count_d;  // entries walked over
  control_t control;
  assign control = ctx_q.control;

  // ---- Configuration ----------------------------------------------------------------------------------------------

  word_addr_t lines_base_q, records_base_q;
  logic [4:0] lines_bits_q;
  logic direct_q;
  session_t sessions_q;
  logic [31:0] held_q;
  logic [31:0] poll_q;
  session_t [Elements-1:0] session_q;
  logic [Elements-1:0] open_q;
  logic [Elements-1:0] fresh_q;  // opened, and nothing done since

  logic config_element;
  element_t config_which;
  assign config_element = config_valid_i && config_addr_i[7:6] != 2'd0;
  assign config_which = ElementWidth'((config_addr_i - 8'd64) >> 2);

  logic [63:0] epochs [Elements];
  word_addr_t lists [Elements];
  logic [63:0] ages [Elements];
  logic age_write;
  logic [63:0] age_data;


  always_ff @(posedge clk_i) begin
    if (config_element && config_addr_i[1:0] == 2'd1) epochs[config_which] <= config_data_i;
    if (config_element && config_addr_i[1:0] == 2'd2) lists[config_which] <= config_data_i[AddrWidth-4:0];
    if (age_write) ages[cur_q] <= age_data;
    else if (config_element && config_addr_i[1:0] == 2'd3) ages[config_which] <= config_data_i;
  end

  logic fail;             // memory refused something of the session at work
  logic start_fresh;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      lines_base_q <= '0;
      records_base_q <= '0;
      lines_bits_q <= '0;
      direct_q <= 1'b0;
      sessions_q <= '0;
      held_q <= '0;
      poll_q <= 32'd256;
      session_q <= '0;
      open_q <= '0;
      fresh_q <= '0;
    end else begin
      if (start_fresh) fresh_q[cur_q] <= 1'b0;
      if (fail) open_q[cur_q] <= 1'b0;
      if (config_valid_i && config_addr_i[7:6] == 2'd0) begin
        unique case (config_addr_i[1:0])
          2'd0: lines_base_q <= config_data_i[AddrWidth-4:0];
          2'd1: records_base_q <= config_data_i[AddrWidth-4:0];
          2'd2: begin
            lines_bits_q <= config_data_i[4:0];
            direct_q <= config_data_i[5];
            sessions_q <= config_data_i[17:6];
            held_q <= config_data_i[63:32];
          end
          default: poll_q <= config_data_i[31:0];
        endcase
      end
      if (config_element && config_addr_i[1:0] == 2'd0) begin
        session_q[config_which] <= config_data_i[11:0];
        open_q[config_which] <= config_data_i[12];
        fresh_q[config_which] <= 1'b1;
      end
    end
  end

  session_t me;
  assign me = session_q[cur_q];

  // ---- Memory -----------------------------------------------------------------------------------------------------

  logic mem_valid_q, mem_valid_d;
  lock_mem_req_t mem_q, mem_d;
  logic mem_free;
  logic issue;
  assign mem_free = !mem_valid_q || mem_ready_i;

  // Answers: place 0 for single words, 1 to 7 for slots 0 to 6 (and 1 for the epoch).
  logic [63:0] answers [8*Elements];
  logic [2:0] answer_at;
  logic [63:0] got;
  element_t rsp_element;
  assign rsp_element = mem_rsp_i.tag[ElementWidth+2:3];
  always_comb begin
    unique case (ctx_q.st)
      StChecked: answer_at = 3'd1;
      StEntries, StAge, StWakeGroup: answer_at = walk_q + 3'd1;
      default: answer_at = 3'd0;
    endcase
    if (ctx_q.st == StAge && ctx_q.joining) answer_at = 3'd0;
  end
  assign got = answers[{cur_q, answer_at}];

  logic [Elements-1:0][3:0] pending_q;
  logic [Elements-1:0] swapped_q, failed_q;

  always_ff @(posedge clk_i) begin
    if (mem_rsp_valid_i) answers[{rsp_element, mem_rsp_i.tag[2:0]}] <= mem_rsp_i.data;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      pending_q <= '0;
      swapped_q <= '0;
      failed_q <= '0;
    end else begin
      for (int unsigned at = 0; at < Elements; at++) begin
        pending_q[at] <= pending_q[at] + 4'(issue && cur_q == ElementWidth'(at))
                       - 4'(mem_rsp_valid_i && rsp_element == ElementWidth'(at));
      end
      if (mem_rsp_valid_i) begin
        swapped_q[rsp_element] <= mem_rsp_i.swapped;
        if (mem_rsp_i.error) failed_q[rsp_element] <= 1'b1;
      end
      if (fail) failed_q[cur_q] <= 1'b0;
    end
  end

  logic unused_tag;
  assign unused_tag = ^mem_rsp_i.tag[TagWidth-1:ElementWidth+3];

  // ---- Lists ------------------------------------------------------------------------------------------------------

  held_t list [Elements*Held];
  held_t list_q;
  place_t list_at;
  logic list_write;
  held_t list_data;

  always_ff @(posedge clk_i) begin
    list_q <= list[{cur_q, list_at}];
    if (list_write) list[{cur_q, ctx_q.place}] <= list_data;
  end

  // ---- Sessions ---------------------------------------------------------------------------------------------------

  context_t contexts [Elements];
  logic save;
  always_ff @(posedge clk_i) begin
    if (save) contexts[cur_q] <= ctx_d;
  end

  logic [Elements-1:0] busy_q, busy_d;
  logic [Elements-1:0] waiting_q, waiting_d;  // waits for something
  logic [Elements-1:0] due_q, due_d;          // and has a reason to look
  logic [31:0] timer_q;
  logic tick;
  assign tick = timer_q == '0;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) timer_q <= '0;
    else if (tick) timer_q <= poll_q;
    else timer_q <= timer_q - 32'd1;
  end

  // The next session with something to do, in turn.
  logic [Elements-1:0] ready;
  logic [Elements-1:0] looks;
  logic any;
  element_t pick;
  always_comb begin
    for (int unsigned at = 0; at < Elements; at++) begin
      looks[at] = open_q[at] && waiting_q[at] && due_q[at] && !fresh_q[at];
      ready[at] = busy_q[at] ? pending_q[at] == '0 : req_valid_i[at] || looks[at];
    end
    any = 1'b0;
    pick = cur_q;
    for (int unsigned at = Elements; at > 0; at--) begin
      if (ready[cur_q + ElementWidth'(at)]) begin
        any = 1'b1;
        pick = cur_q + ElementWidth'(at);
      end
    end
  end

  // ---- Parts ------------------------------------------------------------------------------------------------------

  logic place_start, place_done;
  line_t place_line;
  lock_req_t req;
  assign req = req_i[cur_q];

  lw_lock_place i_place (
    .clk_i, .rst_ni,
    .start_i(place_start), .key_i(req.key), .direct_i(direct_q), .lines_bits_i(lines_bits_q),
    .done_o(place_done), .line_o(place_line)
  );

  logic ring_clear, ring_valid;
  ring_view_t view;

  lw_lock_ring i_ring (
    .clk_i, .rst_ni,
    .clear_i(ring_clear), .valid_i(ring_valid), .slot_i(slot_t'(got)), .number_i(walk_q),
    .owner_i(control.owner), .owner_mode_i(control.mode), .tail_i(control.tail), .length_i(control.length),
    .session_i(me), .sessions_i(sessions_q), .mode_i(ctx_q.mode), .view_o(view)
  );

  // ---- What follows from a look -----------------------------------------------------------------------------------

  logic owns, owned;
  assign owned = control.owner != '0;
  assign owns = owned && control.owner == me;

  // The control word when what is dead in front falls off and a writer whose turn it is becomes the owner; `handed`:
  // when the owner goes, too.
  control_t settled, handed, taken, grown, upgraded, crowdless;
  always_comb begin
    settled = control;
    settled.length = control.length - view.fallen;
    if (!owned && view.first_writer) begin
      settled.owner = view.first;
      settled.mode = ModeExclusive;
      settled.length = control.length - view.fallen - 3'd1;
    end
    handed = control;
    handed.owner = view.first_writer ? view.first : '0;
    handed.mode = view.first_writer ? ModeExclusive : ModeNone;
    handed.length = control.length - view.fallen - 3'(view.first_writer);
    handed.crowded = control.crowded && handed.length == 3'd7;
    taken = settled;
    taken.owner = me;
    taken.mode = ctx_q.mode;
    taken.crowded = 1'b0;
    crowdless = settled;
    crowdless.crowded = control.crowded && settled.length == 3'd7;
    upgraded = control;
    upgraded.owner = me;
    upgraded.mode = ModeExclusive;
    upgraded.length = control.length - view.granted;
    upgraded.crowded = control.crowded && upgraded.length == 3'd7;
    grown = control;
    grown.length = control.length + 3'd1;
    grown.tail = ticket_next(control.tail);
  end

  logic is_free, would_admit, holds;
  assign is_free = settled.owner == '0 && settled.length == '0 && settled.mode == ModeNone;
  assign would_admit = view.uniform;
  assign holds = owns || (view.found && view.found_at < view.granted);

  // The slot that the session was found in, and the last one.
  slot_t found_q, found_d, last_q, last_d;
  slot_t vacated, joined;
  logic joins;
  assign vacated = without(found_q, me[4:0]);
  assign joins = control.length != '0 && ctx_q.mode != ModeExclusive && last_q.mode == ctx_q.mode
              && last_q.block == me[11:5] && last_q.members != '0;
  always_comb begin
    joined = last_q;
    joined.members[me[4:0]] = 1'b1;
  end

  // Reasons not to let a new line in.
  logic waits_already, list_full;
  assign waits_already = ctx_q.waits != '0 && ctx_q.patience != WaitAnybody;
  assign list_full = ctx_q.touched[HeldWidth] || 32'(ctx_q.touched) == held_q;

  logic by_age, may_queue;
  assign may_queue = ctx_q.patience != WaitNever;
  assign by_age = ctx_q.patience == WaitYounger || (ctx_q.patience == WaitSafe && ctx_q.touched > (HeldWidth+1)'(1));

  ticket_t behind, tail_before;
  logic contains;
  assign behind = ticket_minus(control.tail, ctx_q.ticket);
  assign contains = behind != '0 && behind <= 23'(control.length);
  assign tail_before = ticket_minus(control.tail, 23'd7);

  // The session whose age is next, or who is told next.
  slot_t walked;
  assign walked = slot_t'(got);
  logic [31:0] left;
  logic [4:0] lowest;
  always_comb begin
    lowest = '0;
    for (int unsigned at = 32; at > 0; at--) if (left[at-1]) lowest = 5'(at - 1);
  end
  always_comb begin
    left = walked.members;
    if (walked.mode == ModeNone) left = '0;
    if (walked.mode == ModeExclusive) left = 32'd1;
    if (ctx_q.age_begun) left = ctx_q.age_left;
  end

  // ---- The sequencer ----------------------------------------------------------------------------------------------

  logic yield;
  logic note;                        // an answer in this cycle
  logic note_q, note_direct_q;
  element_t note_element_q;
  lock_rsp_t rsp_q;
  lock_answer_e note_answer;
  logic note_direct;

  logic wake_valid_q, wake_valid_d, wake_crowd_q, wake_crowd_d;
  session_t wake_q, wake_d;
  logic tell;                        // whether somebody may be told in this cycle
  session_t told;
  logic told_valid;
  logic told_local;
  assign tell = !wake_valid_q || wake_ready_i;
  always_comb begin
    unique case (ctx_q.st)
      StAges: told = control.owner;
      StWake: told = ctx_q.wake_owner;
      default: told = walked.mode == ModeExclusive ? {walked.members[4:0], walked.block} : {walked.block, lowest};
    endcase
  end
  always_comb begin
    told_local = 1'b0;
    for (int unsigned at = 0; at < Elements; at++) if (open_q[at] && session_q[at] == told) told_local = 1'b1;
  end

  // Word addresses.
  word_addr_t line_word, my_record, told_record;
  assign line_word = lines_base_q + {3'd0, ctx_q.line, 3'd0};
  assign my_record = records_base_q + 37'({me - 12'd1, 4'd0});
  assign told_record = records_base_q + 37'({told - 12'd1, 4'd1});

  // Requests to memory, by kind.
  logic [2:0] ask_place;
  logic ask_line;                    // a word of the line
  logic [2:0] ask_word;
  lock_mem_op_e ask_op;
  word_addr_t ask_addr;
  logic [63:0] ask_expected, ask_data;

  held_t kept;
  assign kept = '{zero: 1'b0, line: ctx_q.line, mode: ctx_q.held_mode, count: ctx_q.count};

  function automatic control_t bump(control_t word);
    control_t changed;
    changed = word;
    changed.version = word.version + 23'd1;
    return changed;
  endfunction

  // A swap of the control word.
  logic swap_control;
  control_t swap_to;

  always_comb begin
    cur_d = cur_q;
    ctx_d = ctx_q;
    busy_d = busy_q;
    waiting_d = waiting_q;
    due_d = due_q | {Elements{tick}};
    walk_d = walk_q;
    count_d = count_q;
    found_d = found_q;
    last_d = last_q;
    list_at = ctx_q.place;
    list_write = 1'b0;
    list_data = kept;
    place_start = 1'b0;
    ring_clear = 1'b0;
    ring_valid = 1'b0;
    issue = 1'b0;
    ask_place = 3'd0;
    ask_line = 1'b1;
    ask_word = 3'd0;
    ask_op = MemLoad;
    ask_addr = line_word;
    ask_expected = ctx_q.control;
    ask_data = '0;
    swap_control = 1'b0;
    swap_to = control;
    yield = 1'b0;
    note = 1'b0;
    note_answer = ctx_q.answer;
    note_direct = 1'b1;
    age_write = 1'b0;
    age_data = req.key;
    fail = 1'b0;
    start_fresh = 1'b0;
    req_ready_o = '0;
    told_valid = 1'b0;
    wake_valid_d = wake_valid_q && !wake_ready_i;
    wake_crowd_d = wake_crowd_q;
    wake_d = wake_q;

    unique case (ctx_q.st)
      StPick: begin
        if (any) begin
          cur_d = pick;
          ctx_d.st = StResume;
        end
      end

      // `ctx_q` is still that of another session.
      StResume: begin
        ctx_d = contexts[cur_q];
        if (!busy_q[cur_q]) ctx_d.st = StStart;
        else if (failed_q[cur_q]) begin
          // Nothing is known of what was changed: the host cleans up as after a death.
          fail = 1'b1;
          ctx_d.answer = LockMemError;
          // Those two are taken late.
          if (ctx_d.st == StChecked && !ctx_d.look) begin
            req_ready_o[cur_q] = ctx_d.op == LockReleaseAll || ctx_d.op == LockAge;
          end
          ctx_d.st = StAnswer;
        end
        busy_d[cur_q] = 1'b1;
      end

      StStart: begin
        ctx_d.damaged = 1'b0;
        ctx_d.age_begun = 1'b0;
        ctx_d.place = '0;
        ctx_d.listed = 1'b0;
        if (fresh_q[cur_q]) begin
          start_fresh = 1'b1;
          ctx_d.touched = '0;
          ctx_d.waits = '0;
          ctx_d.look = 1'b0;
          waiting_d[cur_q] = 1'b0;
          due_d[cur_q] = 1'b0;
        end else if (looks[cur_q] && !(ctx_q.look && req_valid_i[cur_q])) begin
          // In turn with requests, however often there is a reason to look.
          ctx_d.look = 1'b1;
          due_d[cur_q] = 1'b0;
          ctx_d.st = StFirst;
        end else if (!req_valid_i[cur_q]) begin
          // A reason to look has gone.
          busy_d[cur_q] = 1'b0;
          ctx_d.st = StPick;
        end else begin
          ctx_d.look = 1'b0;
          ctx_d.op = req.op;
          ctx_d.mode = req.mode;
          ctx_d.patience = req.patience;
          ctx_d.line = '0;
          if (!open_q[cur_q]) begin
            req_ready_o[cur_q] = 1'b1;
            ctx_d.answer = LockStale;
            ctx_d.st = StAnswer;
          end else if (req.op == LockReleaseAll || req.op == LockAge) begin
            ctx_d.st = StFirst;
          end else begin
            place_start = 1'b1;
            ctx_d.st = StPlace;
          end
        end
      end

      StPlace: begin
        if (place_done) begin
          req_ready_o[cur_q] = 1'b1;
          ctx_d.line = place_line;
          list_at = '0;
          ctx_d.st = ctx_q.touched == '0 ? StFirst : StFind;
        end
      end

      // `list_q` is the entry at `place`; the next one is asked for.
      StFind: begin
        list_at = ctx_q.place + 1'b1;
        if (list_q.line == ctx_q.line) begin
          ctx_d.listed = 1'b1;
          ctx_d.held_mode = list_q.mode;
          ctx_d.count = list_q.count;
          ctx_d.st = StFirst;
        end else if ({1'b0, ctx_q.place} + 1'b1 == ctx_q.touched) begin
          ctx_d.st = StFirst;
        end else begin
          ctx_d.place = ctx_q.place + 1'b1;
        end
      end

      StFirst: begin
        if (mem_free) begin
          issue = 1'b1;
          // The epoch first, then the control word if the line is touched at all.
          if (!ctx_q.age_begun) begin
            ask_line = 1'b0;
            ask_addr = my_record;
            ask_place = 3'd1;
          end
          ctx_d.age_begun = 1'b1;
          if (ctx_q.age_begun || ctx_q.look
              || !((ctx_q.op == LockAcquire && !ctx_q.listed && !waits_already && !list_full)
                   || (ctx_q.op == LockRelease && ctx_q.listed && ctx_q.count == 30'd1))) begin
            ctx_d.age_begun = 1'b0;
            ctx_d.st = StChecked;
            yield = 1'b1;
          end
        end
      end

      StChecked: begin
        ctx_d.st = StAnswer;
        if (got != epochs[cur_q]) begin
          ctx_d.answer = LockStale;
          if (ctx_q.look) begin
            waiting_d[cur_q] = 1'b0;
            busy_d[cur_q] = 1'b0;
            ctx_d.st = StPick;
          end
        end else if (ctx_q.look) begin
          ctx_d.st = StLookRead;
        end else begin
          unique case (ctx_q.op)
            LockAcquire: begin
              if (ctx_q.listed) begin
                if (ctx_q.count == '0) ctx_d.answer = LockWaits;
                else if (&ctx_q.count) ctx_d.answer = LockTooOften;
                else if ((ctx_q.mode | ctx_q.held_mode) == ctx_q.held_mode) begin
                  ctx_d.count = ctx_q.count + 30'd1;
                  ctx_d.answer = LockGranted;
                  ctx_d.st = StKeep;
                end else begin
                  ctx_d.why = WhyUpgrade;
                  ctx_d.st = StView;
                end
              end else if (waits_already) begin
                ctx_d.answer = LockRefused;
              end else if (list_full) begin
                ctx_d.answer = LockTooMany;
              end else begin
                ctx_d.place = ctx_q.touched[HeldWidth-1:0];
                ctx_d.touched = ctx_q.touched + 1'b1;
                ctx_d.held_mode = ctx_q.mode;
                ctx_d.count = 30'd1;
                ctx_d.st = StPushed;
              end
            end
            LockRelease: begin
              if (!ctx_q.listed || ctx_q.count == '0) ctx_d.answer = LockNotHeld;
              else if (ctx_q.count != 30'd1) begin
                ctx_d.count = ctx_q.count - 30'd1;
                ctx_d.answer = LockDone;
                ctx_d.st = StKeep;
              end else begin
                ctx_d.answer = LockDone;
                ctx_d.next = ThenDrop;
                ctx_d.st = StAllControl;
              end
            end
            LockWithdraw: begin
              if (!ctx_q.listed || ctx_q.count != '0) ctx_d.answer = LockNotHeld;
              else begin
                ctx_d.answer = LockDone;
                ctx_d.next = ThenDrop;
                ctx_d.why = WhyLeave;
                ctx_d.st = StView;
              end
            end
            LockReleaseAll: begin
              ctx_d.answer = LockDone;
              ctx_d.waits = '0;
              waiting_d[cur_q] = 1'b0;
              ctx_d.next = ThenAll;
              ctx_d.st = StAll;
            end
            LockAge: begin
              ctx_d.answer = LockDone;
              if (ctx_q.touched != '0) begin
                ctx_d.answer = LockInUse;
                req_ready_o[cur_q] = 1'b1;
              end else if (mem_free) begin
                issue = 1'b1;
                ask_line = 1'b0;
                ask_addr = my_record | 37'd1;
                ask_op = MemStore;
                ask_data = req.key;
                age_write = 1'b1;
                req_ready_o[cur_q] = 1'b1;
                yield = 1'b1;
              end else begin
                ctx_d.st = StChecked;
              end
            end
            default: ctx_d.answer = LockStale;
          endcase
          if (ctx_q.op == LockReleaseAll) req_ready_o[cur_q] = 1'b1;
        end
        // A stale one of those is taken, too.
        if (got != epochs[cur_q] && !ctx_q.look && (ctx_q.op == LockReleaseAll || ctx_q.op == LockAge)) begin
          req_ready_o[cur_q] = 1'b1;
        end
      end

      // The list's entry and its length go out together: a stale entry within the length names a line that the session
      // is not in, which whoever cleans up finds out. The line is touched when both are there.
      StPushed: begin
        ctx_d.control = ctx_q.age_begun ? ctx_q.control : control_t'(got);
        if (mem_free) begin
          issue = 1'b1;
          ask_line = 1'b0;
          ask_op = MemStore;
          ask_place = 3'd1;
          if (!ctx_q.age_begun) begin
            list_write = 1'b1;
            ask_addr = lists[cur_q] + 37'(ctx_q.place);
            ask_data = kept;
            ctx_d.age_begun = 1'b1;
          end else begin
            ask_addr = my_record | 37'd3;
            ask_data = 64'(ctx_q.touched);
            ctx_d.age_begun = 1'b0;
            ctx_d.st = StTaken;
            ctx_d.holds = 1'b0;
            yield = 1'b1;
          end
        end
      end

      // First the swap, if the line is free, then its answer.
      StTaken: begin
        if (!ctx_q.holds && control.owner == '0 && control.length == '0 && control.mode == ModeNone) begin
          swap_control = 1'b1;
          swap_to.owner = me;
          swap_to.mode = ctx_q.mode;
          if (mem_free) begin
            ctx_d.holds = 1'b1;
            yield = 1'b1;
          end
        end else if (ctx_q.holds && swapped_q[cur_q]) begin
          ctx_d.answer = LockGranted;
          ctx_d.st = StAnswer;
        end else begin
          ctx_d.why = by_age ? WhyAdmit : WhyEnter;
          ctx_d.st = StView;
        end
      end

      StView: begin
        if (mem_free) begin
          issue = 1'b1;
          ctx_d.st = StViewControl;
          yield = 1'b1;
        end
      end

      StViewControl: begin
        ctx_d.control = control_t'(got);
        ctx_d.st = StViewTail;
      end

      StViewTail: begin
        ctx_d.tail_slot = mod7(control.tail);
        count_d = '0;
        ring_clear = 1'b1;
        if (!is_sound(control.owner, control.mode, control.tail, sessions_q)) begin
          ctx_d.damaged = 1'b1;
          ctx_d.st = StRefuse;
        end else begin
          walk_d = ctx_d.tail_slot >= control.length ? ctx_d.tail_slot - control.length
                 : 3'(4'(ctx_d.tail_slot) + 4'd7 - 4'(control.length));
          ctx_d.st = control.length == '0 ? StDecide : StViewSlots;
        end
      end

      StViewSlots: begin
        ask_word = walk_q + 3'd1;
        ask_place = walk_q + 3'd1;
        if (mem_free) begin
          issue = 1'b1;
          walk_d = slot_next(walk_q);
          count_d = count_q + 3'd1;
          if (count_q + 3'd1 == control.length) begin
            ctx_d.st = StViewAgain;
            yield = 1'b1;
          end
        end
      end

      StViewAgain: begin
        if (mem_free) begin
          issue = 1'b1;
          ctx_d.st = StViewSame;
          yield = 1'b1;
        end
      end

      StViewSame: begin
        ctx_d.control = control_t'(got);
        ring_clear = 1'b1;
        count_d = '0;
        walk_d = ctx_q.tail_slot >= control.length ? ctx_q.tail_slot - control.length
               : 3'(4'(ctx_q.tail_slot) + 4'd7 - 4'(control.length));
        ctx_d.st = got == control ? StEntries : StViewTail;
      end

      StEntries: begin
        ring_valid = 1'b1;
        walk_d = slot_next(walk_q);
        count_d = count_q + 3'd1;
        if (has(walked.mode, walked.members, walked.block, me) && !view.found) found_d = walked;
        last_d = walked;
        if (count_q + 3'd1 == control.length) ctx_d.st = StDecide;
      end

      StDecide: begin
        ctx_d.wake = 1'b0;
        ctx_d.wake_to = view.granted;
        ctx_d.wake_writer = 1'b0;
        ctx_d.wake_crowd = 1'b0;
        ctx_d.age_owner = !owned;
        ctx_d.age_at = '0;
        ctx_d.age_end = control.length;
        ctx_d.age_begun = 1'b0;
        ctx_d.all = 1'b1;
        if (view.torn && control.length != '0) begin
          ctx_d.damaged = 1'b1;
          ctx_d.st = StRefuse;
        end else begin
          unique case (ctx_q.why)
            WhyAdmit: begin
              ctx_d.why = is_free || would_admit ? WhyEnter : WhyAllYounger;
              ctx_d.st = StView;
            end
            WhyAllYounger, WhyFull: ctx_d.st = StAges;
            WhyEnter: begin
              if (is_free) begin
                swap_control = 1'b1;
                swap_to = taken;
                ctx_d.wake_crowd = control.crowded;
                ctx_d.woken = StEntered;
                ctx_d.holds = 1'b1;
                if (mem_free) begin
                  ctx_d.st = StFreeTaken;
                  yield = 1'b1;
                end
              end else if (!may_queue && !would_admit) begin
                ctx_d.answer = LockRefused;
                ctx_d.st = StDrop;
              end else if (joins) begin
                ask_word = ctx_q.tail_slot == '0 ? 3'd7 : ctx_q.tail_slot;
                ask_op = MemSwap;
                ask_expected = last_q;
                ask_data = joined;
                ctx_d.ticket = last_q.ticket;
                ctx_d.joining = 1'b1;
                if (mem_free) begin
                  issue = 1'b1;
                  ctx_d.st = StJoined;
                  yield = 1'b1;
                end
              end else if (control.length == 3'd7) begin
                if (settled.length == 3'd7) begin
                  ctx_d.answer = may_queue ? LockFull : LockRefused;
                  ctx_d.why = WhyFull;
                  ctx_d.st = may_queue && by_age ? StView : StDrop;
                end else begin
                  swap_control = 1'b1;
                  swap_to = crowdless;
                  ctx_d.wake = 1'b1;
                  ctx_d.wake_writer = crowdless.mode == ModeExclusive;
                  ctx_d.wake_owner = crowdless.owner;
                  ctx_d.wake_crowd = control.crowded && !crowdless.crowded;
                  ctx_d.woken = StView;
                  if (mem_free) begin
                    ctx_d.st = StSettled;
                    yield = 1'b1;
                  end
                end
              end else begin
                ask_word = ctx_q.tail_slot + 3'd1;
                if (mem_free) begin
                  issue = 1'b1;
                  ctx_d.st = StTailSlot;
                  yield = 1'b1;
                end
              end
            end
            WhyStand: begin
              ctx_d.holds = holds;
              ctx_d.relies = holds && !owns && view.behind_dead;
              if (settled == control && !ctx_d.relies) ctx_d.st = StEntered;
              else begin
                swap_control = 1'b1;
                swap_to = settled;
                if (mem_free) begin
                  ctx_d.st = StStood;
                  yield = 1'b1;
                end
              end
            end
            WhyWaitsFor: begin
              ctx_d.age_end = view.found_at;
              ctx_d.st = !view.found || view.found_at < view.granted ? StAgesDone : StAges;
            end
            WhyUpgrade: begin
              if (owned ? owns && view.granted == '0 : view.only && view.granted != '0) begin
                swap_control = 1'b1;
                swap_to = upgraded;
                ctx_d.wake_crowd = control.crowded && !upgraded.crowded;
                ctx_d.woken = StKeep;
                if (mem_free) begin
                  ctx_d.st = StUpgraded;
                  yield = 1'b1;
                end
              end else begin
                ctx_d.answer = LockRefused;
                ctx_d.st = StAnswer;
              end
            end
            WhyLeave, WhyDepart: begin
              ctx_d.woken = StLeave;
              ctx_d.holds = 1'b1;
              if (owns) begin
                swap_control = 1'b1;
                swap_to = handed;
                ctx_d.wake = view.granted == '0 || control.crowded;
                ctx_d.wake_to = view.granted_free;
                ctx_d.wake_writer = view.first_writer;
                ctx_d.wake_owner = handed.owner;
                ctx_d.wake_crowd = control.crowded && !handed.crowded;
                if (mem_free) begin
                  ctx_d.st = StHandedOver;
                  yield = 1'b1;
                end
              end else if (ctx_q.why == WhyDepart) begin
                swap_control = 1'b1;
                swap_to = crowdless;
                ctx_d.wake = 1'b1;
                ctx_d.wake_writer = crowdless.mode == ModeExclusive;
                ctx_d.wake_owner = crowdless.owner;
                ctx_d.wake_crowd = control.crowded && !crowdless.crowded;
                if (mem_free) begin
                  ctx_d.st = StHandedOver;
                  yield = 1'b1;
                end
              end else if (!view.found) begin
                ctx_d.holds = 1'b0;
                ctx_d.st = StLeave;
              end else begin
                ask_word = view.found_slot + 3'd1;
                ask_op = MemSwap;
                ask_expected = found_q;
                ask_data = vacated;
                ctx_d.live = is_live(vacated.mode, vacated.members);
                if (mem_free) begin
                  issue = 1'b1;
                  ctx_d.st = StLeft;
                  yield = 1'b1;
                end
              end
            end
            default: ctx_d.st = StView;
          endcase
        end
      end

      StFreeTaken, StSettled, StHandedOver, StUpgraded: begin
        if (ctx_q.st == StUpgraded && swapped_q[cur_q]) begin
          ctx_d.held_mode = ModeExclusive;
          ctx_d.count = ctx_q.count + 30'd1;
          ctx_d.answer = LockGranted;
        end
        ctx_d.age_at = '0;
        ctx_d.age_begun = 1'b0;
        ctx_d.st = swapped_q[cur_q] ? StWake : StView;
      end

      StJoined, StClaimed: ctx_d.st = swapped_q[cur_q] ? StConfirm : StView;

      StTailSlot: begin
        ctx_d.joining = 1'b0;
        ctx_d.ticket = control.tail;
        if (got != '0 && walked.ticket == control.tail) begin
          swap_control = 1'b1;
          swap_to = grown;
          if (mem_free) begin
            ctx_d.st = StView;
            yield = 1'b1;
          end
        end else if (got == '0 ? control.tail < 23'd7 : walked.ticket == tail_before) begin
          ask_word = ctx_q.tail_slot + 3'd1;
          ask_op = MemSwap;
          ask_expected = got;
          ask_data = entry(control.tail, me, ctx_q.mode);
          if (mem_free) begin
            issue = 1'b1;
            ctx_d.st = StClaimed;
            yield = 1'b1;
          end
        end else if (mem_free) begin
          issue = 1'b1;
          ctx_d.st = StTailSame;
          yield = 1'b1;
        end
      end

      StTailSame: begin
        ctx_d.damaged = got == control;
        ctx_d.st = got == control ? StRefuse : StView;
      end

      StConfirm: begin
        if (mem_free) begin
          issue = 1'b1;
          ctx_d.st = StConfirmWord;
          yield = 1'b1;
        end
      end

      StConfirmWord: begin
        ctx_d.control = control_t'(got);
        ctx_d.st = StConfirmSwap;
      end

      StConfirmSwap: begin
        if (!is_sound(control.owner, control.mode, control.tail, sessions_q)) begin
          ctx_d.damaged = 1'b1;
          ctx_d.st = StRefuse;
        end else if (contains || (behind == '0 && control.length != 3'd7)) begin
          swap_control = 1'b1;
          if (!contains) swap_to = grown;
          ctx_d.live = contains;
          if (mem_free) begin
            ctx_d.st = StConfirmed;
            yield = 1'b1;
          end
        end else begin
          // It does not count and never will, unless somebody has handed over to it.
          ctx_d.why = WhyEnter;
          ctx_d.st = StView;
          if (owns) begin
            ctx_d.why = ctx_q.joining && behind != 23'd1 ? WhyLeave : WhyStand;
            ctx_d.next = ThenEnter;
          end
        end
      end

      StConfirmed: begin
        // The tail is one behind the entry, or it is not the last one.
        ctx_d.why = ctx_q.joining && ctx_q.live && behind != 23'd1 ? WhyLeave : WhyStand;
        ctx_d.next = ThenEnter;
        ctx_d.st = swapped_q[cur_q] ? StView : StConfirm;
      end

      StStood: begin
        ctx_d.st = swapped_q[cur_q] && ctx_q.relies ? StEntered : StView;
      end

      StEntered: begin
        ctx_d.answer = LockGranted;
        ctx_d.st = StAnswer;
        ctx_d.next = ThenRefuse;
        if (ctx_q.look) begin
          ctx_d.count = 30'd1;
          ctx_d.st = ctx_q.holds ? StKeep : StNextLook;
          if (ctx_q.holds) ctx_d.waits = ctx_q.waits - 1'b1;
        end else if (!ctx_q.holds) begin
          ctx_d.st = StView;
          if (!may_queue) ctx_d.why = WhyLeave;
          else if (by_age) ctx_d.why = WhyWaitsFor;
          else begin
            ctx_d.answer = LockWaiting;
            ctx_d.count = '0;
            ctx_d.waits = ctx_q.waits + 1'b1;
            ctx_d.st = StKeep;
          end
        end
      end

      StLeft: begin
        ctx_d.why = WhyLeave;
        ctx_d.st = StView;
        if (swapped_q[cur_q]) begin
          ctx_d.why = WhyDepart;
          if (ctx_q.live) ctx_d.st = StLeave;
        end
      end

      // `holds`: the session was in the line.
      StLeave: begin
        unique case (ctx_q.next)
          ThenEnter: begin
            ctx_d.why = WhyEnter;
            ctx_d.st = StView;
          end
          ThenRefuse: begin
            ctx_d.answer = LockRefused;
            ctx_d.st = StDrop;
          end
          ThenDrop: begin
            ctx_d.st = StDrop;
            if (ctx_q.op == LockWithdraw) ctx_d.waits = ctx_q.waits - 1'b1;
            else if (!ctx_q.holds) begin
              ctx_d.answer = LockNotHeld;
              ctx_d.st = StAnswer;
            end
          end
          default: ctx_d.st = StDropCount;
        endcase
      end

      // Everybody in front: first the owner, then entry after entry.
      StAges: begin
        ask_line = 1'b0;
        ask_addr = told_record;
        // The slot of entry `age_at`.
        walk_d = 3'((5'(ctx_q.tail_slot) + 5'd7 - 5'(control.length) + 5'(ctx_q.age_at)) % 5'd7);
        ctx_d.st = StAge;
        if (!ctx_q.all && ctx_q.why == WhyWaitsFor) ctx_d.st = StAgesDone;
        else if (!ctx_q.age_owner) begin
          if (mem_free) begin
            issue = 1'b1;
            ctx_d.age_owner = 1'b1;
            ctx_d.age_begun = 1'b0;
            ctx_d.joining = 1'b1;
            yield = 1'b1;
          end else ctx_d.st = StAges;
        end else begin
          ctx_d.joining = 1'b0;
          if (ctx_q.age_at == ctx_q.age_end) ctx_d.st = StAgesDone;
        end
      end

      // `joining`: an age has come. Else the next session of the entry's.
      StAge: begin
        if (ctx_q.joining) begin
          if (ages[cur_q] >= got) ctx_d.all = 1'b0;
          ctx_d.st = StAges;
        end else begin
          ask_line = 1'b0;
          ask_addr = told_record;
          if (left == '0) begin
            ctx_d.age_at = ctx_q.age_at + 3'd1;
            ctx_d.age_begun = 1'b0;
            ctx_d.st = StAges;
          end else if (mem_free) begin
            issue = 1'b1;
            ctx_d.age_left = left & (left - 32'd1);
            ctx_d.age_begun = 1'b1;
            ctx_d.joining = 1'b1;
            yield = 1'b1;
          end
        end
      end

      StAgesDone: begin
        ctx_d.age_begun = 1'b0;
        ctx_d.next = ThenRefuse;
        ctx_d.st = StDrop;
        unique case (ctx_q.why)
          WhyAllYounger: begin
            ctx_d.answer = LockRefused;
            ctx_d.why = WhyEnter;
            if (ctx_q.all) ctx_d.st = StView;
          end
          WhyFull: ctx_d.answer = ctx_q.all ? LockFull : LockRefused;
          default: begin
            ctx_d.why = WhyLeave;
            ctx_d.st = StView;
            if (ctx_q.all) begin
              ctx_d.answer = LockWaiting;
              ctx_d.count = '0;
              ctx_d.waits = ctx_q.waits + 1'b1;
              ctx_d.st = StKeep;
            end
          end
        endcase
      end

      StWake: begin
        walk_d = ctx_q.tail_slot >= control.length ? ctx_q.tail_slot - control.length
               : 3'(4'(ctx_q.tail_slot) + 4'd7 - 4'(control.length));
        ctx_d.age_begun = 1'b0;
        ctx_d.st = StWakeCrowd;
        if (ctx_q.wake) begin
          if (ctx_q.wake_writer) begin
            told_valid = 1'b1;
            if (!tell) ctx_d.st = StWake;
          end else if (ctx_q.wake_to != '0) ctx_d.st = StWakeGroup;
        end
      end

      StWakeGroup: begin
        if (left == '0) begin
          ctx_d.age_begun = 1'b0;
          walk_d = slot_next(walk_q);
          ctx_d.age_at = ctx_q.age_at + 3'd1;
          if (ctx_q.age_at + 3'd1 == ctx_q.wake_to) ctx_d.st = StWakeCrowd;
        end else begin
          told_valid = 1'b1;
          if (tell) begin
            ctx_d.age_left = left & (left - 32'd1);
            ctx_d.age_begun = 1'b1;
          end
        end
      end

      StWakeCrowd: begin
        ctx_d.age_begun = 1'b0;
        if (!ctx_q.wake_crowd) ctx_d.st = ctx_q.woken;
        else if (tell) begin
          wake_valid_d = 1'b1;
          wake_crowd_d = 1'b1;
          ctx_d.st = ctx_q.woken;
        end
      end

      // A damaged line. Whoever was about to enter it may be in it, so it stays in the list, as waited for.
      StRefuse: begin
        ctx_d.answer = LockDamage;
        ctx_d.st = StAnswer;
        if (ctx_q.look) ctx_d.st = StNoted;
        else if (ctx_q.op == LockAcquire && ctx_q.why != WhyUpgrade) begin
          ctx_d.count = '0;
          ctx_d.waits = ctx_q.waits + 1'b1;
          ctx_d.st = StKeep;
        end else if (ctx_q.op == LockReleaseAll) ctx_d.st = StDropCount;
      end

      // The entry at `place` changes: here and in memory.
      StKeep: begin
        waiting_d[cur_q] = ctx_q.waits != '0;
        list_write = 1'b1;
        ask_line = 1'b0;
        ask_op = MemStore;
        ask_addr = lists[cur_q] + 37'(ctx_q.place);
        ask_data = kept;
        if (mem_free) begin
          issue = 1'b1;
          ctx_d.st = ctx_q.look ? StNoted : StAnswer;
          yield = 1'b1;
        end
      end

      // The last entry takes the place of the one at `place`, and stands there before the list gets shorter.
      StDrop: begin
        list_at = HeldWidth'(ctx_q.touched - 1'b1);
        ctx_d.touched = ctx_q.touched - 1'b1;
        ctx_d.st = {1'b0, ctx_q.place} == ctx_q.touched - 1'b1 ? StDropCount : StDropMove;
        waiting_d[cur_q] = ctx_q.waits != '0;
        ctx_d.age_begun = 1'b0;
      end

      StDropMove: begin
        list_at = ctx_q.touched[HeldWidth-1:0];
        list_write = 1'b1;
        list_data = list_q;
        ask_line = 1'b0;
        ask_op = MemStore;
        ask_addr = lists[cur_q] + 37'(ctx_q.place);
        ask_data = list_q;
        if (mem_free) begin
          issue = 1'b1;
          ctx_d.st = StDropCount;
          yield = 1'b1;
        end
      end

      StDropCount: begin
        ask_line = 1'b0;
        ask_op = MemStore;
        ask_addr = my_record | 37'd3;
        ask_data = 64'(ctx_q.touched);
        if (mem_free) begin
          issue = 1'b1;
          ctx_d.st = ctx_q.op == LockReleaseAll ? StAll : StAnswer;
          yield = 1'b1;
        end
      end

      // Gives back what is last in the list, until there is nothing.
      StAll: begin
        ctx_d.place = HeldWidth'(ctx_q.touched - 1'b1);
        list_at = ctx_d.place;
        ctx_d.st = StAllRead;
        if (ctx_q.touched == '0) begin
          ctx_d.answer = ctx_q.damaged ? LockDamage : LockDone;
          ctx_d.st = StAnswer;
        end else ctx_d.touched = ctx_q.touched - 1'b1;
      end

      StAllRead: begin
        ctx_d.line = list_q.line;
        ctx_d.st = StAllLoad;
      end

      StAllLoad: begin
        if (mem_free) begin
          issue = 1'b1;
          ctx_d.st = StAllControl;
          yield = 1'b1;
        end
      end

      // Back with it at once if the session is the owner and nobody waits.
      StAllControl: begin
        ctx_d.control = control_t'(got);
        ctx_d.st = StGiveBack;
      end

      StGiveBack: begin
        ctx_d.why = WhyLeave;
        ctx_d.st = StView;
        if (control.length == '0 && !control.crowded && owns && control.mode != ModeNone) begin
          swap_control = 1'b1;
          swap_to.owner = '0;
          swap_to.mode = ModeNone;
          ctx_d.st = StGiveBack;
          if (mem_free) begin
            ctx_d.st = StDeparted;
            yield = 1'b1;
          end
        end
      end

      StDeparted: begin
        ctx_d.holds = 1'b1;
        ctx_d.why = WhyLeave;
        ctx_d.st = swapped_q[cur_q] ? StLeave : StView;
      end

      // A look at all that is waited for, one after the other.
      StNextLook: begin
        ctx_d.place = ctx_q.place + 1'b1;
        list_at = ctx_d.place;
        ctx_d.st = StLook;
        if ({1'b0, ctx_q.place} + 1'b1 >= ctx_q.touched || ctx_q.waits == '0) begin
          waiting_d[cur_q] = ctx_q.waits != '0;
          busy_d[cur_q] = 1'b0;
          ctx_d.st = StPick;
        end
      end

      StLookRead: begin
        list_at = '0;
        ctx_d.st = StLook;
      end

      StLook: begin
        ctx_d.line = list_q.line;
        ctx_d.held_mode = list_q.mode;
        ctx_d.why = WhyStand;
        ctx_d.st = list_q.count == '0 ? StView : StNextLook;
      end

      StNoted: begin
        note = 1'b1;
        note_direct = 1'b0;
        ctx_d.st = StNextLook;
      end

      StAnswer: begin
        note = 1'b1;
        note_direct = !(ctx_q.answer == LockMemError && ctx_q.look);
        busy_d[cur_q] = 1'b0;
        ctx_d.st = StPick;
      end

      default: ctx_d.st = StPick;
    endcase

    if (swap_control) begin
      ask_op = MemSwap;
      ask_data = bump(swap_to);
      issue = mem_free;
    end

    if (told_valid && tell) begin
      // A session of this module looks at once, a host session is told.
      for (int unsigned at = 0; at < Elements; at++) begin
        if (open_q[at] && session_q[at] == told) due_d[at] = 1'b1;
      end
      if (!told_local) begin
        wake_valid_d = 1'b1;
        wake_crowd_d = 1'b0;
        wake_d = told;
      end
    end

    mem_valid_d = mem_valid_q && !mem_ready_i;
    mem_d = mem_q;
    if (issue) begin
      mem_valid_d = 1'b1;
      mem_d.op = ask_op;
      mem_d.addr = ask_line ? {line_word[AddrWidth-1:6], ask_word} : ask_addr;
      mem_d.expected = ask_expected;
      mem_d.data = ask_data;
      mem_d.tag = TagWidth'({cur_q, ask_place});
    end
  end

  // What a session keeps: all of its registers when it waits for memory, and when it is done.
  assign save = yield || (ctx_q.st != StPick && ctx_d.st == StPick);

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      cur_q <= '0;
      ctx_q <= '0;
      busy_q <= '0;
      waiting_q <= '0;
      due_q <= '0;
      walk_q <= '0;
      count_q <= '0;
      found_q <= '0;
      last_q <= '0;
      mem_valid_q <= 1'b0;
      mem_q <= '0;
      wake_valid_q <= 1'b0;
      wake_crowd_q <= 1'b0;
      wake_q <= '0;
      note_q <= 1'b0;
      note_direct_q <= 1'b0;
      note_element_q <= '0;
      rsp_q <= '0;
    end else begin
      cur_q <= cur_d;
      ctx_q <= ctx_d;
      if (yield) ctx_q.st <= StPick;
      busy_q <= busy_d;
      waiting_q <= waiting_d;
      due_q <= due_d;
      walk_q <= walk_d;
      count_q <= count_d;
      found_q <= found_d;
      last_q <= last_d;
      mem_valid_q <= mem_valid_d;
      mem_q <= mem_d;
      wake_valid_q <= wake_valid_d;
      wake_crowd_q <= wake_crowd_d;
      wake_q <= wake_d;
      note_q <= note;
      note_direct_q <= note_direct;
      note_element_q <= cur_q;
      rsp_q <= '{answer: note_answer, line: ctx_q.line};
    end
  end

  always_comb begin
    rsp_valid_o = '0;
    rsp_valid_o[note_element_q] = note_q;
  end
  assign rsp_o = rsp_q;
  assign rsp_direct_o = note_direct_q;
  assign busy_o = busy_q;
  assign wake_valid_o = wake_valid_q;
  assign wake_crowd_o = wake_crowd_q;
  assign wake_session_o = wake_q;
  assign mem_valid_o = mem_valid_q;
  assign mem_req_o = mem_q;

endmodule
