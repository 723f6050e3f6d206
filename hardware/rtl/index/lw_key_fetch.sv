/// KeyFetch: reads key images from memory, many at once, and hands them on in the order in which they were asked for.
///
/// Requests lie in a ring. Words come back in any order; the oldest request whose words are all there may begin
/// (`head_valid_o`), and its place is free again when it has been taken through the stages behind (`free_i`).
module lw_key_fetch #(
  /// Requests under way; a power of two, at most 32.
  parameter int unsigned Slots = 16,
  /// Whether requests come from the own softcore, so that some go on to other workers.
  parameter bit Local = 1'b1,
  /// Bits of a place; follows from `Slots`.
  localparam int unsigned SlotWidth = $clog2(Slots)
) (
  /// Clock.
  input  logic                 clk_i,
  /// Asynchronous reset: all requests are lost.
  input  logic                 rst_ni,
  /// This worker.
  input  lw_pkg::worker_t      worker_i,
  /// What the host writes.
  input  lw_pkg::config_t      config_i,
  /// A request; taken in a cycle with `req_ready_o`.
  input  logic                 req_valid_i,
  /// There is a place, and the words of the one before are asked for; from registers alone.
  output logic                 req_ready_o,
  /// The request; not keyed: `key` is {delta, address of the image}, `hash` {source, limit}.
  input  lw_pkg::request_t     req_i,
  /// A read; stays until taken; from registers.
  output logic                 mem_valid_o,
  /// It is taken.
  input  logic                 mem_ready_i,
  /// The read: tag is {place, word}, 3 bits of word.
  output lw_pkg::mem_req_t     mem_req_o,
  /// An answer to one of its reads.
  input  logic                 mem_rsp_valid_i,
  /// The answer.
  input  lw_pkg::mem_rsp_t     mem_rsp_i,
  /// The oldest request that has not begun is complete; from registers.
  output logic                 head_valid_o,
  /// It begins; goes on to the next one.
  input  logic                 head_next_i,
  /// Its place.
  output logic [SlotWidth-1:0] head_slot_o,
  /// Its table.
  output lw_pkg::table_t       head_table_o,
  /// Bytes from the word's beginning to the image.
  output logic [2:0]           head_offset_o,
  /// Its key is there already, in `key` of the request.
  output logic                 head_keyed_o,
  /// It goes to the table's home as it is, so its key does not matter here.
  output logic                 head_skip_o,
  /// Memory refused a word.
  output logic                 head_error_o,
  /// A word of an image is read in this cycle.
  input  logic                 image_read_i,
  /// Whose word.
  input  logic [SlotWidth-1:0] image_slot_i,
  /// Which one.
  input  logic [2:0]           image_word_i,
  /// The word, in the cycle after.
  output logic [63:0]          image_o,
  /// Which request is looked at.
  input  logic [SlotWidth-1:0] look_slot_i,
  /// That request, an asynchronous read.
  output lw_pkg::request_t     look_o,
  /// Whose key is looked at.
  input  logic [SlotWidth-1:0] key_slot_i,
  /// The field `key` of that request, an asynchronous read.
  output logic [63:0]          key_o,
  /// The place of the oldest request is free again.
  input  logic                 free_i
);

  import lw_pkg::*;

  localparam int unsigned FlagsWidth = 27;

  request_t requests_q [Slots];
  logic [63:0] images_q [Slots*8];
  logic [Slots-1:0][4:0] left_q;
  logic [Slots-1:0] error_q, skip_q;
  logic [SlotWidth-1:0] tail_q, head_q;
  logic [SlotWidth:0] count_q, waiting_q;
  logic busy_q;
  word_addr_t addr_q;
  logic [2:0] word_q, last_q;
  logic [SlotWidth-1:0] slot_q;

  logic [FlagsWidth-1:0] flags;
  logic [4:0] image_bytes_less_one;
  logic [5:0] end_of_image;
  logic [2:0] words;
  logic [4:0] needed;
  logic take, taken, skip, multiple;
  logic [2:0] rsp_word;
  logic [SlotWidth-1:0] rsp_slot;
  logic unused_bits;

  lw_table_field #(
    .Field(2),
    .Low  (0),
    .Width(FlagsWidth)
  ) u_flags (
    .clk_i,
    .config_i,
    .table_i(req_i.tab),
    .data_o (flags)
  );

  // [5] has home, [9:6] home, [20:16] bytes of the image less one, [26:24] words of the normal form
  assign image_bytes_less_one = flags[20:16];
  assign multiple             = flags[26:24] > 3'd1;
  assign skip = Local && !req_i.keyed && !flags[1] && flags[5] && flags[9:6] != worker_i &&
                (req_i.op == OpScan || multiple);
  assign end_of_image = {3'b0, req_i.key[2:0]} + {1'b0, image_bytes_less_one};
  assign words        = end_of_image[5:3];
  assign needed       = (skip || req_i.keyed) ? 5'b0 : 5'((6'd2 << words) - 6'd1);
  assign unused_bits  = ^{flags, end_of_image[2:0], mem_rsp_i.tag};

  assign taken       = mem_valid_o & mem_ready_i;
  assign req_ready_o = !busy_q && count_q != (SlotWidth+1)'(Slots);
  assign take        = req_valid_i & req_ready_o;

  assign mem_valid_o      = busy_q;
  assign mem_req_o.write  = 1'b0;
  assign mem_req_o.addr   = addr_q;
  assign mem_req_o.data   = '0;
  assign mem_req_o.strobe = '0;
  assign mem_req_o.tag    = TagWidth'({slot_q, word_q});

  assign {rsp_slot, rsp_word} = mem_rsp_i.tag[SlotWidth+2:0];

  assign head_valid_o  = waiting_q != '0 && left_q[head_q] == '0;
  assign head_slot_o   = head_q;
  assign head_table_o  = requests_q[head_q].tab;
  assign head_offset_o = requests_q[head_q].key[2:0];
  assign head_keyed_o  = requests_q[head_q].keyed;
  assign head_skip_o   = skip_q[head_q];
  assign head_error_o  = error_q[head_q];
  assign look_o        = requests_q[look_slot_i];
  assign key_o         = requests_q[key_slot_i].key;

  always_ff @(posedge clk_i) begin
    if (take) requests_q[tail_q] <= req_i;
    if (mem_rsp_valid_i) images_q[{rsp_slot, rsp_word}] <= mem_rsp_i.data;
    if (image_read_i) image_o <= images_q[{image_slot_i, image_word_i}];
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      left_q    <= '0;
      error_q   <= '0;
      skip_q    <= '0;
      tail_q    <= '0;
      head_q    <= '0;
      count_q   <= '0;
      waiting_q <= '0;
      busy_q    <= 1'b0;
      addr_q    <= '0;
      word_q    <= '0;
      last_q    <= '0;
      slot_q    <= '0;
    end else begin
      if (taken) begin
        addr_q <= addr_q + 1'b1;
        word_q <= word_q + 1'b1;
        if (word_q == last_q) busy_q <= 1'b0;
      end
      if (mem_rsp_valid_i) begin
        left_q[rsp_slot][rsp_word] <= 1'b0;
        if (mem_rsp_i.error) error_q[rsp_slot] <= 1'b1;
      end
      if (take) begin
        left_q[tail_q]  <= needed;
        error_q[tail_q] <= 1'b0;
        skip_q[tail_q]  <= skip;
        tail_q          <= tail_q + 1'b1;
        busy_q          <= needed != '0;
        addr_q          <= req_i.key[AddrWidth-1:3];
        word_q          <= '0;
        last_q          <= words;
        slot_q          <= tail_q;
      end
      if (head_next_i) head_q <= head_q + 1'b1;
      count_q   <= count_q + (SlotWidth+1)'(take) - (SlotWidth+1)'(free_i);
      waiting_q <= waiting_q + (SlotWidth+1)'(take) - (SlotWidth+1)'(head_next_i);
    end
  end

endmodule
