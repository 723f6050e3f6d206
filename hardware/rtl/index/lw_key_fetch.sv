/// KeyFetch: reads key images from memory, many at once, and hands them on in the order in which they were asked for.
///
/// Requests lie in rings, one for each source, in one memory: one is taken every second cycle. Words come back in any
/// order; the oldest request of a ring whose words are all there may begin (`head_valid_o`), and its place is free
/// again when it has been taken through the stages behind (`free_i`).
module lw_key_fetch #(
  /// Requests under way in a ring; a power of two, at most 32.
  parameter int unsigned Slots = 16,
  /// Rings: 0 of the own softcore, of which some go on to other workers; 1, if there are 2, of the fabric.
  parameter int unsigned Rings = 1,
  /// Bits of a place in a ring; follows from `Slots`.
  localparam int unsigned SlotWidth = $clog2(Slots),
  /// Bits of a place: ring, place in it; follows from `Slots` and `Rings`.
  localparam int unsigned PlaceWidth = $clog2(Slots * Rings)
) (
  /// Clock.
  input  logic                             clk_i,
  /// Asynchronous reset: all requests are lost; nothing is taken for some cycles.
  input  logic                             rst_ni,
  /// This worker.
  input  lw_pkg::worker_t                  worker_i,
  /// What the host writes.
  input  lw_pkg::config_t                  config_i,
  /// Requests; taken in a cycle with `req_ready_o`.
  input  logic              [Rings-1:0]    req_valid_i,
  /// There is a place. For ring 1 from registers alone; it goes first, so ring 0 follows its valid.
  output logic              [Rings-1:0]    req_ready_o,
  /// The requests; not keyed: `key` is {delta, address of the image}, `hash` {source, limit}.
  input  lw_pkg::request_t  [Rings-1:0]    req_i,
  /// A read; stays until taken.
  output logic                             mem_valid_o,
  /// It is taken.
  input  logic                             mem_ready_i,
  /// The read: tag is {place, word}, 3 bits of word.
  output lw_pkg::mem_req_t                 mem_req_o,
  /// An answer to one of its reads.
  input  logic                             mem_rsp_valid_i,
  /// The answer.
  input  lw_pkg::mem_rsp_t                 mem_rsp_i,
  /// The oldest request of a ring that has not begun is complete; from registers.
  output logic              [Rings-1:0]    head_valid_o,
  /// It begins; goes on to the next one.
  input  logic              [Rings-1:0]    head_next_i,
  /// Its place in the ring.
  output logic [Rings-1:0][SlotWidth-1:0]  head_slot_o,
  /// What there is to know of it.
  output lw_point_pkg::key_head_t [Rings-1:0] head_o,
  /// Memory refused a word.
  output logic              [Rings-1:0]    head_error_o,
  /// Whose word of an image is read in this cycle.
  input  logic [PlaceWidth-1:0]            image_place_i,
  /// Which one.
  input  logic [2:0]                       image_word_i,
  /// The word, in the cycle after.
  output logic [63:0]                      image_o,
  /// Which request is looked at.
  input  logic [PlaceWidth-1:0]            look_place_i,
  /// That request, an asynchronous read.
  output lw_pkg::request_t                 look_o,
  /// Of a scan: the address of its result.
  output lw_pkg::addr_t                    look_result_o,
  /// The place of the oldest request of a ring is free again.
  input  logic              [Rings-1:0]    free_i
);

  import lw_pkg::*;
  import lw_point_pkg::*;

  localparam int unsigned Places = Slots * Rings;
  localparam int unsigned FlagsWidth = 24;

  typedef logic [PlaceWidth-1:0] place_t;

  typedef struct packed {
    logic [2:0] words;
    logic       error;
  } arrived_t;

  (* ram_style = "distributed" *) request_t requests_q [Places];
  (* ram_style = "distributed" *) addr_t result_q [Places];
  // A place is never written and read in one cycle: it is complete before it is read.
  (* no_rw_check *) logic [63:0] images_q [Places*8];
  (* ram_style = "distributed" *) arrived_t arrived_q [Places];
  (* ram_style = "distributed" *) logic [2:0] last_q [Places];
  (* ram_style = "distributed" *) logic error_q [Places];
  logic [Rings-1:0][Slots-1:0] done_q;
  logic [Rings-1:0][SlotWidth-1:0] tail_q, head_q;
  logic [Rings-1:0][SlotWidth:0] count_q, waiting_q;
  logic [Rings-1:0] room, take;

  // ---------------------------------------------------------------------------------------------------------------
  // Taking, and asking for the words
  // ---------------------------------------------------------------------------------------------------------------

  request_t taken;
  logic taken_ring, busy_q, first_q, ring_q, keyed_q, skip_q, sweep_q;
  place_t taken_place, place_q, sweep_at_q;
  table_t tab_q;
  word_addr_t addr_q;
  logic [2:0] offset_q, word_q, words;
  logic [23:0] delta_q;
  logic [FlagsWidth+2:3] flags;
  (* ram_style = "distributed" *) logic away_q [2**TableWidth];
  (* ram_style = "distributed" *) logic away_wide_q [2**TableWidth];
  logic away;
  logic [5:0] end_of_image;
  logic several, at_once, asked;
  key_head_t head_new;
  logic unused_bits;

  for (genvar r = 0; r < int'(Rings); r++) begin : gen_room
    assign room[r] = !busy_q && !sweep_q && count_q[r] != (SlotWidth+1)'(Slots);
    if (r == 0 && Rings == 2) begin : gen_second
      assign req_ready_o[r] = room[r] && !(room[Rings-1] && req_valid_i[Rings-1]);
    end else begin : gen_first
      assign req_ready_o[r] = room[r];
    end
  end

  assign take        = req_valid_i & req_ready_o;
  assign taken_ring  = Rings == 2 && room[Rings-1] && req_valid_i[Rings-1];
  assign taken       = taken_ring ? req_i[Rings-1] : req_i[0];
  assign taken_place = place_t'({taken_ring, taken_ring ? tail_q[Rings-1] : tail_q[0]});

  // [3] single, [20:16] bytes of the image less one, [26:24] words of the normal form
  lw_table_field #(
    .Field(2),
    .Low  (3),
    .Width(FlagsWidth)
  ) u_flags (
    .clk_i,
    .config_i,
    .table_i(tab_q),
    .data_o (flags)
  );

  // Tables that have a home elsewhere, and those of them whose keys have several words. They are read before it is
  // known whose request is taken. [1] replicated, [5] has home, [9:6] home, [26:24] words
  assign away = !config_i.data[1] && config_i.data[5] && config_i.data[9:6] != worker_i;

  always_ff @(posedge clk_i) begin
    if (config_i.valid && config_i.addr[15:9] == ConfigTable[15:9] && config_i.addr[2:0] == 3'd2) begin
      away_q[config_i.addr[8:3]]      <= away;
      away_wide_q[config_i.addr[8:3]] <= away && config_i.data[26:24] > 3'd1;
    end
  end

  assign several      = flags[26:24] > 3'd1;
  assign at_once      = keyed_q || skip_q;
  assign end_of_image = {3'b0, offset_q} + {1'b0, flags[20:16]};
  assign words        = end_of_image[5:3];
  assign asked        = mem_valid_o && mem_ready_i;

  assign head_new = '{
    tab:     tab_q,
    offset:  offset_q,
    direct:  at_once || (flags[3] && offset_q == '0),
    at_once: at_once,
    wide:    several,
    last:    2'(flags[26:24] - 1'b1)
  };

  assign mem_valid_o      = busy_q && !at_once;
  assign mem_req_o.write  = 1'b0;
  assign mem_req_o.addr   = addr_q;
  assign mem_req_o.data   = '0;
  assign mem_req_o.strobe = '0;
  assign mem_req_o.tag    = TagWidth'({place_q, word_q});

  always_ff @(posedge clk_i) begin
    if (take != '0) requests_q[taken_place] <= taken;
    if (first_q) result_q[place_q] <= {addr_q, offset_q} + {{(AddrWidth - 24) {delta_q[23]}}, delta_q};
    if (busy_q) last_q[place_q] <= words;
    if (take != '0) begin
      place_q  <= taken_place;
      ring_q   <= taken_ring;
      tab_q    <= taken.tab;
      keyed_q  <= taken.keyed;
      skip_q   <= !taken_ring &&
                  ((req_i[0].op == OpScan) ? away_q[req_i[0].tab] : away_wide_q[req_i[0].tab]);
      offset_q <= taken.key[2:0];
      delta_q  <= taken.key[63:40];
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      busy_q     <= 1'b0;
      first_q    <= 1'b0;
      addr_q     <= '0;
      word_q     <= '0;
      sweep_q    <= 1'b1;
      sweep_at_q <= '0;
    end else begin
      first_q <= take != '0;
      if (take != '0) begin
        busy_q <= 1'b1;
        addr_q <= taken.key[AddrWidth-1:3];
        word_q <= '0;
      end else if (at_once) begin
        busy_q <= 1'b0;
      end else if (asked) begin
        addr_q <= addr_q + 1'b1;
        word_q <= word_q + 1'b1;
        if (word_q == words) busy_q <= 1'b0;
      end
      if (sweep_q) begin
        sweep_at_q <= sweep_at_q + 1'b1;
        if (sweep_at_q == place_t'(Places - 1)) sweep_q <= 1'b0;
      end
    end
  end

  // ---------------------------------------------------------------------------------------------------------------
  // Words that come
  // ---------------------------------------------------------------------------------------------------------------

  place_t rsp_place;
  logic [2:0] rsp_word;
  arrived_t arrived, arrived_next;
  logic complete, refused;

  assign {rsp_place, rsp_word} = mem_rsp_i.tag[PlaceWidth+2:0];
  assign arrived  = arrived_q[rsp_place];
  assign complete = arrived.words == last_q[rsp_place];
  assign refused  = arrived.error || mem_rsp_i.error;

  always_comb begin
    arrived_next.words = arrived.words + 1'b1;
    arrived_next.error = refused;
    if (complete || sweep_q) arrived_next = '0;
  end

  always_ff @(posedge clk_i) begin
    if (mem_rsp_valid_i || sweep_q) arrived_q[sweep_q ? sweep_at_q : rsp_place] <= arrived_next;
    if (mem_rsp_valid_i) images_q[{rsp_place, rsp_word}] <= mem_rsp_i.data;
    if (mem_rsp_valid_i && complete) error_q[rsp_place] <= refused;
    image_o <= images_q[{image_place_i, image_word_i}];
  end

  // ---------------------------------------------------------------------------------------------------------------
  // The rings
  // ---------------------------------------------------------------------------------------------------------------

  assign look_o        = requests_q[look_place_i];
  assign look_result_o = result_q[look_place_i];
  assign head_slot_o   = head_q;

  for (genvar r = 0; r < int'(Rings); r++) begin : gen_ring
    // Read by the ring's own head, before it is known which ring goes on.
    (* ram_style = "distributed" *) key_head_t heads_q [Slots];
    logic of_ring, begins;

    assign of_ring         = ring_q == 1'(r);
    assign begins          = first_q && of_ring;
    assign head_o[r]       = heads_q[head_q[r]];
    assign head_error_o[r] = !head_o[r].at_once && error_q[place_t'({1'(r), head_q[r]})];
    assign head_valid_o[r] = waiting_q[r] != '0 && (head_o[r].at_once || done_q[r][head_q[r]]);

    always_ff @(posedge clk_i) begin
      if (begins) heads_q[place_q[SlotWidth-1:0]] <= head_new;
    end

    always_ff @(posedge clk_i or negedge rst_ni) begin
      if (!rst_ni) begin
        tail_q[r]    <= '0;
        head_q[r]    <= '0;
        count_q[r]   <= '0;
        waiting_q[r] <= '0;
        done_q[r]    <= '0;
      end else begin
        if (take[r]) tail_q[r] <= tail_q[r] + 1'b1;
        if (head_next_i[r]) head_q[r] <= head_q[r] + 1'b1;
        count_q[r]   <= count_q[r] + (SlotWidth+1)'(take[r]) - (SlotWidth+1)'(free_i[r]);
        waiting_q[r] <= waiting_q[r] + (SlotWidth+1)'(begins) - (SlotWidth+1)'(head_next_i[r]);
        for (int unsigned i = 0; i < Slots; i++) begin
          if (mem_rsp_valid_i && complete && rsp_place == place_t'(r * Slots + i)) begin
            done_q[r][i] <= 1'b1;
          end else if (head_next_i[r] && head_q[r] == SlotWidth'(i)) begin
            done_q[r][i] <= 1'b0;
          end
        end
      end
    end
  end

  assign unused_bits = ^{flags, end_of_image[2:0], mem_rsp_i.tag};

`ifdef LW_ASSERT
  always_ff @(posedge clk_i) begin
    if (rst_ni) begin
      assert (!(mem_rsp_valid_i && sweep_q)) else $error("lw_key_fetch: an answer that nobody waits for");
    end
  end
`endif

endmodule
