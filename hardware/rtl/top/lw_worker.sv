/// One worker: softcore, index coprocessor and rings, behind one memory port and one place of the message fabric.
///
///     rings -> softcore -> prepare -> (here) --> admission -> hash index -> answers -> softcore
///                             \-> fabric -> (there) --^                        \-> fabric
///
/// Units at the memory port: 0 rings, 1 softcore, 2 index, 3 skiplist.
///
/// State word (`status_o.state`), from bit 0: block valid, ready; outcome valid, ready; DB instruction valid, ready;
/// release
/// valid, ready; request to the fabric valid, ready; request from the fabric valid, ready; answer of the index valid,
/// ready;
/// answer to the fabric valid, ready; answer from the fabric valid; instruction for the skiplist valid; index busy;
/// softcore
/// idle; rings idle; memory quiet; memory port valid, ready; a context is stuck. From bit 32 what contexts 0 to 7 do
/// (`lw_softcore_pkg::state_e`), four bits each.
module lw_worker #(
  /// Workers of the machine, a power of two.
  parameter int unsigned Workers = 4,
  /// Hardware contexts, a power of two.
  parameter int unsigned Contexts = 16,
  /// Decision words, a power of two.
  parameter int unsigned Entries = 1024,
  /// Words of the longest key.
  parameter int unsigned KeyWords = 4,
  /// Requests whose keys are being read, a power of two.
  parameter int unsigned PrepareSlots = 16,
  /// Requests in the hash index.
  parameter int unsigned HashSlots = 48,
  /// Requests in the skiplist, at most 64; 0 leaves the skiplist out: ordered tables must not be used then.
  parameter int unsigned SkiplistSlots = 16,
  /// Scans at once, 1 to 8.
  parameter int unsigned Scanners = 1,
  /// Ranges that scans keep free of new rows, a power of two.
  parameter int unsigned Gaps = 8,
  /// Words of 64 bits of the catalogue, two an instruction, a power of two.
  parameter int unsigned CodeWords = 2048,
  /// Procedures of the catalogue, a power of two.
  parameter int unsigned Procedures = 64,
  /// Places of a context's grant log, a power of two.
  parameter int unsigned Grants = 64,
  /// Memory requests that may wait for their answers.
  parameter int unsigned Inflight = 128
) (
  /// Clock.
  input  logic                          clk_i,
  /// Asynchronous reset of everything.
  input  logic                          rst_ni,
  /// Asynchronous reset of the units; the memory port goes on, and answers to what was asked before are dropped.
  input  logic                          unit_rst_ni,
  /// Decision words are zeroed; one cycle, while nothing is under way.
  input  logic                          clear_i,
  /// The decision words are zero, after a reset or `clear_i`.
  output logic                          ready_o,
  /// This worker.
  input  lw_pkg::worker_t               worker_i,
  /// What the host writes into the tables.
  input  lw_pkg::config_t               config_i,
  /// What the registers say.
  input  lw_regs_pkg::worker_control_t  control_i,
  /// What the registers are told; from registers, but for `events`.
  output lw_regs_pkg::worker_status_t   status_o,
  /// The time of a transaction that begins now.
  input  lw_pkg::stamp_t                start_stamp_i,
  /// It was taken.
  output logic                          start_o,
  /// A request for another worker; stays until taken.
  output logic                          request_valid_o,
  /// It is taken.
  input  logic                          request_ready_i,
  /// For which worker.
  output lw_pkg::worker_t               request_dest_o,
  /// The request.
  output lw_pkg::request_t              request_o,
  /// A request of another worker.
  input  logic                          request_valid_i,
  /// It is taken.
  output logic                          request_ready_o,
  /// The request.
  input  lw_pkg::request_t              request_i,
  /// An answer for another worker, or a release for it; stays until taken.
  output logic                          response_valid_o,
  /// It is taken.
  input  logic                          response_ready_i,
  /// The answer.
  output lw_pkg::response_t             response_o,
  /// An answer of another worker, or a release.
  input  logic                          response_valid_i,
  /// It is taken; waits for nothing but time.
  output logic                          response_ready_o,
  /// The answer.
  input  lw_pkg::response_t             response_i,
  /// A memory request; stays until taken; from registers.
  output logic                          mem_valid_o,
  /// It is taken.
  input  logic                          mem_ready_i,
  /// The request.
  output lw_pkg::port_req_t             mem_req_o,
  /// Memory answers; always taken.
  input  logic                          mem_rsp_valid_i,
  /// The answer.
  input  lw_pkg::port_rsp_t             mem_rsp_i
);

  localparam int unsigned Units = SkiplistSlots > 0 ? 4 : 3;
  localparam int unsigned ResponseWidth = $bits(lw_pkg::response_t);
  // Contexts that the state word has room for.
  localparam int unsigned Shown = Contexts < 8 ? Contexts : 8;

  // Memory.
  logic [Units-1:0] unit_valid, unit_ready, unit_rsp_valid;
  lw_pkg::mem_req_t [Units-1:0] unit_req;
  lw_pkg::mem_rsp_t unit_rsp;
  logic quiet;

  // Rings and softcore.
  logic block_valid, block_ready, done_valid, done_ready, rings_idle, core_idle;
  lw_pkg::addr_t block, done_block;
  logic [1:0] done_status;
  logic [15:0] done_code;
  logic db_valid, db_ready;
  lw_pkg::db_req_t db_req;
  logic release_valid, release_ready;
  lw_pkg::worker_t release_owner;
  lw_pkg::request_t release_request;
  lw_pkg::release_t release_grant;
  logic [Contexts-1:0] stuck;
  logic [Contexts-1:0][3:0] states;
  logic [31:0] shown;

  // Answers: of the index, then either for the fabric or for the softcore.
  logic answer_valid, answer_ready, answer_here, local_ready;
  lw_pkg::response_t answer;
  logic back_valid;
  logic [ResponseWidth-1:0] back;
  lw_pkg::response_t back_response;

  logic index_busy, parked;
  logic [1:0] source_valid, source_ready;
  lw_pkg::response_t [1:0] source;
  logic [1:0][ResponseWidth-1:0] source_words;
  logic [ResponseWidth-1:0] answer_word, out_word;

  // Skiplist.
  logic tree_valid, tree_ready, tree_idle, tree_release_valid, tree_release_ready;
  lw_pkg::grant_t tree;
  lw_pkg::release_t tree_release;
  logic row_valid, row_ready, verdict_valid;
  lw_pkg::row_req_t row;
  lw_pkg::row_verdict_e verdict;
  lw_pkg::entry_t verdict_entry;
  lw_regs_pkg::events_t events;

  lw_mem_arbiter #(
    .Units   (Units),
    .Inflight(Inflight)
  ) u_mem_arbiter (
    .clk_i,
    .rst_ni,
    .hold_i          (~unit_rst_ni),
    .quiet_o         (quiet),
    .valid_i         (unit_valid),
    .ready_o         (unit_ready),
    .req_i           (unit_req),
    .rsp_valid_o     (unit_rsp_valid),
    .rsp_o           (unit_rsp),
    .port_valid_o    (mem_valid_o),
    .port_ready_i    (mem_ready_i),
    .port_req_o      (mem_req_o),
    .port_rsp_valid_i(mem_rsp_valid_i),
    .port_rsp_i      (mem_rsp_i)
  );

  lw_rings u_rings (
    .clk_i,
    .rst_ni          (unit_rst_ni),
    .control_i       (control_i.rings),
    .submit_tail_o   (status_o.submit_tail),
    .complete_head_o (status_o.complete_head),
    .idle_o          (rings_idle),
    .error_o         (status_o.ring_error),
    .block_valid_o   (block_valid),
    .block_ready_i   (block_ready),
    .block_o         (block),
    .outcome_valid_i (done_valid),
    .outcome_ready_o (done_ready),
    .outcome_status_i({5'b0, done_status}),
    .outcome_code_i  (done_code),
    .outcome_block_i (done_block),
    .mem_valid_o     (unit_valid[0]),
    .mem_ready_i     (unit_ready[0]),
    .mem_req_o       (unit_req[0]),
    .mem_rsp_valid_i (unit_rsp_valid[0]),
    .mem_rsp_i       (unit_rsp)
  );

  lw_pkg::stamp_t unused_done_stamp;
  logic unused_trace_write, unused_trace_begin;
  lw_pkg::context_t unused_trace_write_ctx, unused_trace_begin_ctx;
  logic [7:0] unused_trace_write_gp, unused_trace_write_bytes, unused_trace_begin_gp;
  logic [63:0] unused_trace_write_value;
  lw_pkg::addr_t unused_trace_begin_block;

  lw_softcore #(
    .Contexts  (Contexts),
    .Grants    (Grants),
    .CodeWords (CodeWords / 2),
    .Procedures(Procedures)
  ) u_softcore (
    .clk_i,
    .rst_ni             (unit_rst_ni),
    .config_i,
    .worker_i,
    .mode_i             (lw_softcore_pkg::mode_e'(control_i.mode)),
    .max_inflight_i     (control_i.max_inflight),
    .max_retries_i      (control_i.max_retries),
    .undo_base_i        ({control_i.undo_base, 3'b0}),
    .undo_bytes_i       (control_i.undo_bytes),
    .start_stamp_i,
    .start_o,
    .submit_valid_i     (block_valid),
    .submit_ready_o     (block_ready),
    .submit_addr_i      (block),
    .done_valid_o       (done_valid),
    .done_ready_i       (done_ready),
    .done_block_o       (done_block),
    .done_status_o      (done_status),
    .done_code_o        (done_code),
    .done_stamp_o       (unused_done_stamp),
    .db_valid_o         (db_valid),
    .db_ready_i         (db_ready),
    .db_op_o            (db_req.op),
    .db_table_o         (db_req.tab),
    .db_stamp_o         (db_req.stamp),
    .db_return_o        (db_req.ret),
    .db_key_addr_o      (db_req.key_addr),
    .db_limit_o         (db_req.limit),
    .db_source_o        (db_req.source),
    .db_delta_o         (db_req.delta),
    .response_valid_i   (back_valid),
    .response_i         (back_response),
    .release_valid_o    (release_valid),
    .release_ready_i    (release_ready),
    .release_owner_o    (release_owner),
    .release_o          (release_request),
    .mem_valid_o        (unit_valid[1]),
    .mem_ready_i        (unit_ready[1]),
    .mem_o              (unit_req[1]),
    .mem_rsp_valid_i    (unit_rsp_valid[1]),
    .mem_rsp_i          (unit_rsp),
    .idle_o             (core_idle),
    .stuck_o            (stuck),
    .states_o           (states),
    .trace_write_o      (unused_trace_write),
    .trace_write_ctx_o  (unused_trace_write_ctx),
    .trace_write_gp_o   (unused_trace_write_gp),
    .trace_write_bytes_o(unused_trace_write_bytes),
    .trace_write_value_o(unused_trace_write_value),
    .trace_begin_o      (unused_trace_begin),
    .trace_begin_ctx_o  (unused_trace_begin_ctx),
    .trace_begin_block_o(unused_trace_begin_block),
    .trace_begin_gp_o   (unused_trace_begin_gp)
  );

  // A release for another worker travels with the answers, which always are taken: it waits behind no request.
  logic unused_release, release_here, release_taken, leaving_ready;
  logic [1:0] out_valid, out_ready;
  lw_pkg::response_t leaving;
  logic far_release, far_release_ready, far_answer_ready;
  lw_pkg::release_t far_release_grant;

  assign unused_release = ^release_request;
  assign release_grant = '{stamp: release_request.stamp, entry: release_request.hash[lw_pkg::EntryWidth-1:0]};
  assign release_here  = Workers == 1 || release_owner == worker_i;
  assign release_ready = release_here ? release_taken : leaving_ready;

  always_comb begin
    // What a release does not say is left as it is beside it: no multiplexer.
    leaving            = answer;
    leaving.ret.worker = release_owner;
    leaving.op         = lw_pkg::OpRelease;
    leaving.entry      = release_grant.entry;
    leaving.value      = lw_pkg::AddrWidth'(release_grant.stamp);
  end

  assign far_release       = response_i.op == lw_pkg::OpRelease;
  assign far_release_grant = '{stamp: response_i.value[lw_pkg::TimeWidth-1:0], entry: response_i.entry};
  assign response_ready_o  = far_release ? far_release_ready : far_answer_ready;

  lw_index #(
    .KeyWords(KeyWords),
    .Inflight(HashSlots),
    .Slots   (PrepareSlots),
    .Entries (Entries),
    .Workers (Workers)
  ) u_index (
    .clk_i,
    .rst_ni              (unit_rst_ni),
    .worker_i,
    .config_i,
    .clear_i,
    .busy_o              (index_busy),
    .parked_o            (parked),
    .db_valid_i          (db_valid),
    .db_ready_o          (db_ready),
    .db_req_i            (db_req),
    .release_valid_i     (release_valid && release_here),
    .release_ready_o     (release_taken),
    .release_i           (release_grant),
    .far_release_valid_i (response_valid_i && far_release),
    .far_release_ready_o (far_release_ready),
    .far_release_i       (far_release_grant),
    .far_valid_i         (request_valid_i),
    .far_ready_o         (request_ready_o),
    .far_req_i           (request_i),
    .far_valid_o         (request_valid_o),
    .far_ready_i         (request_ready_i),
    .far_dest_o          (request_dest_o),
    .far_req_o           (request_o),
    .tree_valid_o        (tree_valid),
    .tree_ready_i        (tree_ready),
    .tree_o              (tree),
    .tree_release_valid_i(tree_release_valid),
    .tree_release_ready_o(tree_release_ready),
    .tree_release_i      (tree_release),
    .row_valid_i         (row_valid),
    .row_ready_o         (row_ready),
    .row_i               (row),
    .row_valid_o         (verdict_valid),
    .row_verdict_o       (verdict),
    .row_entry_o         (verdict_entry),
    .answer_valid_o      (source_valid[0]),
    .answer_ready_i      (source_ready[0]),
    .answer_o            (source[0]),
    .mem_valid_o         (unit_valid[2]),
    .mem_ready_i         (unit_ready[2]),
    .mem_req_o           (unit_req[2]),
    .mem_rsp_valid_i     (unit_rsp_valid[2]),
    .mem_rsp_i           (unit_rsp)
  );

  if (SkiplistSlots > 0) begin : gen_skiplist
    logic tag_ready, tag_valid, wants_row;
    logic [2:0] row_tag, verdict_tag;
    logic [3:0] unused_tags;
    logic unused_tree;

    // What the skiplist does not look at: it orders inserts itself, and reads keys of its own width.
    assign unused_tree = ^tree ^ tag_valid;

    lw_skiplist #(
      .Slots   (SkiplistSlots),
      .KeyWords(KeyWords),
      .Scanners(Scanners),
      .Gaps    (Gaps)
    ) u_skiplist (
      .clk_i,
      .rst_ni          (unit_rst_ni),
      .worker_i,
      .config_i,
      .clear_i,
      .idle_o          (tree_idle),
      .req_valid_i     (tree_valid),
      .req_ready_o     (tree_ready),
      .req_op_i        (tree.req.op),
      .req_table_i     (tree.req.tab),
      .req_stamp_i     (tree.req.stamp),
      .req_ret_i       (tree.req.ret),
      .req_key_i       (tree.req.key[KeyWords-1:0]),
      .req_hash_i      (tree.req.hash),
      .req_granted_i   (tree.granted),
      .req_entry_i     (tree.entry),
      .req_limit_i     (tree.req.limit),
      .req_source_i    (tree.req.source),
      .req_buffer_i    (tree.req.result[lw_pkg::AddrWidth-1:3]),
      .mem_valid_o     (unit_valid[3]),
      .mem_ready_i     (unit_ready[3]),
      .mem_req_o       (unit_req[3]),
      .mem_valid_i     (unit_rsp_valid[3]),
      .mem_rsp_i       (unit_rsp),
      .grant_valid_o   (wants_row),
      .grant_ready_i   (row_ready & tag_ready),
      .grant_stamp_o   (row.stamp),
      .grant_hash_o    (row.hash),
      .grant_table_o   (row.tab),
      .grant_tag_o     (row_tag),
      .grant_valid_i   (verdict_valid),
      .grant_tag_i     (verdict_tag),
      .grant_i         (lw_skiplist_pkg::grant_e'(verdict)),
      .grant_entry_i   (verdict_entry),
      .release_valid_o (tree_release_valid),
      .release_ready_i (tree_release_ready),
      .release_stamp_o (tree_release.stamp),
      .release_entry_o (tree_release.entry),
      .response_valid_o(source_valid[1]),
      .response_ready_i(source_ready[1]),
      .response_o      (source[1])
    );

    assign row_valid = wants_row & tag_ready;

    // Admission answers in order, and the skiplist wants its tags back.
    lw_fifo #(
      .Width(3),
      .Depth(8)
    ) u_tags (
      .clk_i,
      .rst_ni (unit_rst_ni),
      .valid_i(wants_row & row_ready),
      .ready_o(tag_ready),
      .data_i (row_tag),
      .valid_o(tag_valid),
      .ready_i(verdict_valid),
      .data_o (verdict_tag),
      .count_o(unused_tags)
    );
  end else begin : gen_no_skiplist
    logic unused_skiplist;

    assign unused_skiplist = ^{tree, tree_release_ready, row_ready, verdict_valid, verdict, verdict_entry,
                               source_ready[1]};
    assign tree_ready         = 1'b0;
    assign tree_idle          = 1'b1;
    assign tree_release_valid = 1'b0;
    assign tree_release       = '0;
    assign row_valid          = 1'b0;
    assign row                = '0;
    assign source_valid[1]    = 1'b0;
    assign source[1]          = '0;
  end

  assign source_words = source;

  lw_arbiter #(
    .Inputs(2),
    .Width (ResponseWidth)
  ) u_sources (
    .clk_i,
    .rst_ni (unit_rst_ni),
    .valid_i(source_valid),
    .ready_o(source_ready),
    .data_i (source_words),
    .valid_o(answer_valid),
    .ready_i(answer_ready),
    .data_o (answer_word)
  );
  assign answer = lw_pkg::response_t'(answer_word);

  assign answer_here      = answer.ret.worker == worker_i;
  assign answer_ready     = answer_here ? local_ready : out_ready[0];
  assign out_valid        = {release_valid & ~release_here, answer_valid & ~answer_here};
  assign leaving_ready    = out_ready[1];

  lw_arbiter #(
    .Inputs(2),
    .Width (ResponseWidth)
  ) u_out (
    .clk_i,
    .rst_ni (unit_rst_ni),
    .valid_i(out_valid),
    .ready_o(out_ready),
    .data_i ({leaving, answer}),
    .valid_o(response_valid_o),
    .ready_i(response_ready_i),
    .data_o (out_word)
  );
  assign response_o = lw_pkg::response_t'(out_word);

  lw_arbiter #(
    .Inputs(2),
    .Width (ResponseWidth),
    .Lock  (1'b0)
  ) u_answers (
    .clk_i,
    .rst_ni (unit_rst_ni),
    .valid_i({response_valid_i & ~far_release, answer_valid & answer_here}),
    .ready_o({far_answer_ready, local_ready}),
    .data_i ({response_i, answer}),
    .valid_o(back_valid),
    .ready_i(1'b1),
    .data_o (back)
  );
  assign back_response = lw_pkg::response_t'(back);

  assign ready_o        = ~index_busy;
  assign status_o.idle  = core_idle & rings_idle & ~index_busy & tree_idle;
  assign status_o.quiet = quiet;

  always_comb begin
    events.transaction = done_valid & done_ready;
    events.db          = db_valid & db_ready;
    events.memory      = (unit_valid & unit_ready) != '0;
    events.conflict    = back_valid && back_response.answer == lw_pkg::AnswerConflict;
    events.park        = parked;
    shown = '0;
    for (int unsigned i = 0; i < Shown; i++) shown[4*i+:4] = states[i];
  end
  assign status_o.events = events;
  assign status_o.state = {
    shown,
    7'b0, |stuck, mem_ready_i, mem_valid_o, quiet, rings_idle, core_idle, index_busy, tree_valid,
    response_valid_i, response_ready_i, response_valid_o, answer_ready, answer_valid,
    request_ready_o, request_valid_i, request_ready_i, request_valid_o,
    release_ready, release_valid, db_ready, db_valid, done_ready, done_valid, block_ready, block_valid
  };

endmodule
