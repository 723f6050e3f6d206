/// The index coprocessor of a worker: prepare, admission and the hash index behind one memory port.
///
///     softcore --> prepare --(fabric)-->
///                     |
///       fabric --> prepare --> admission --> hash ------> answers
///                               ^   |  \---> skiplist       ^
///                   releases ---/   \------- conflicts -----/
module lw_index #(
  /// Words of the widest key in normal form, 1 to 4.
  parameter int unsigned KeyWords = 4,
  /// Instructions under way in the hash index, 2 to 64.
  parameter int unsigned Inflight = 48,
  /// Keys under way of the softcore, and as many of the fabric; a power of two, at most 32.
  parameter int unsigned Slots = 32,
  /// Decision words; a power of two, 64 to 16384, at most the buckets of any table.
  parameter int unsigned Entries = 4096,
  /// Requests that can be parked; a power of two.
  parameter int unsigned Park = 64,
  /// Bits of a count of grants.
  parameter int unsigned CountWidth = 8,
  /// Workers of the machine; a power of two, at most 16.
  parameter int unsigned Workers = 1
) (
  /// Clock.
  input  logic                 clk_i,
  /// Asynchronous reset; the decision words are zeroed after it.
  input  logic                 rst_ni,
  /// This worker.
  input  lw_pkg::worker_t      worker_i,
  /// What the host writes; only while nothing is under way.
  input  lw_pkg::config_t      config_i,
  /// Zeroes the decision words; only while nothing is under way and no grant is held; a pulse.
  input  logic                 clear_i,
  /// Something is under way in admission or in the hash index; from registers. Grants that are held do not count.
  output logic                 busy_o,
  /// A new request has been parked, in the cycle before; from a register.
  output logic                 parked_o,
  /// An instruction of the softcore.
  input  logic                 db_valid_i,
  /// It is taken; follows `far_valid_i` in the same cycle.
  output logic                 db_ready_o,
  /// The instruction.
  input  lw_pkg::db_req_t      db_req_i,
  /// The softcore lets a grant of this worker go.
  input  logic                 release_valid_i,
  /// It is taken.
  output logic                 release_ready_o,
  /// The grant.
  input  lw_pkg::release_t     release_i,
  /// Another worker lets a grant of this worker go.
  input  logic                 far_release_valid_i,
  /// It is taken; never waits for anything but time.
  output logic                 far_release_ready_o,
  /// The grant.
  input  lw_pkg::release_t     far_release_i,
  /// A request of another worker.
  input  logic                 far_valid_i,
  /// It is taken.
  output logic                 far_ready_o,
  /// The request.
  input  lw_pkg::request_t     far_req_i,
  /// A request for another worker; stays until taken; from a queue.
  output logic                 far_valid_o,
  /// It is taken.
  input  logic                 far_ready_i,
  /// For which worker.
  output lw_pkg::worker_t      far_dest_o,
  /// The request.
  output lw_pkg::request_t     far_req_o,
  /// An instruction for the skiplist, in the order of grants; stays until taken.
  output logic                 tree_valid_o,
  /// It is taken.
  input  logic                 tree_ready_i,
  /// The instruction; scans are not granted, their rows are.
  output lw_pkg::grant_t       tree_o,
  /// The skiplist takes a grant back.
  input  logic                 tree_release_valid_i,
  /// It is taken.
  output logic                 tree_release_ready_o,
  /// The grant.
  input  lw_pkg::release_t     tree_release_i,
  /// A scanner asks to read a row.
  input  logic                 row_valid_i,
  /// It is taken.
  output logic                 row_ready_o,
  /// The row.
  input  lw_pkg::row_req_t     row_i,
  /// The answer to the oldest row, for one cycle; four cycles after it was taken, or later.
  output logic                 row_valid_o,
  /// What it is.
  output lw_pkg::row_verdict_e row_verdict_o,
  /// Its decision word.
  output lw_pkg::entry_t       row_entry_o,
  /// An answer, for the softcore of `ret.worker`; stays until taken.
  output logic                 answer_valid_o,
  /// It is taken.
  input  logic                 answer_ready_i,
  /// The answer.
  output lw_pkg::response_t    answer_o,
  /// A memory request; stays until taken; from a queue.
  output logic                 mem_valid_o,
  /// It is taken.
  input  logic                 mem_ready_i,
  /// The request.
  output lw_pkg::mem_req_t     mem_req_o,
  /// An answer of memory.
  input  logic                 mem_rsp_valid_i,
  /// The answer.
  input  lw_pkg::mem_rsp_t     mem_rsp_i
);

  import lw_pkg::*;

  logic [3:0] release_valid, release_ready;
  release_t [3:0] releases;
  logic takeback_valid, takeback_ready;
  release_t takeback;

  assign release_valid = {far_release_valid_i, release_valid_i, tree_release_valid_i, takeback_valid};
  assign releases      = {far_release_i, release_i, tree_release_i, takeback};
  assign {far_release_ready_o, release_ready_o, tree_release_ready_o, takeback_ready} = release_ready;

  // ---------------------------------------------------------------------------------------------------------------
  // The units
  // ---------------------------------------------------------------------------------------------------------------

  logic lookup_valid, lookup_ready, failed_valid, failed_ready, conflict_valid, conflict_ready, hash_valid, hash_ready;
  lookup_t lookup;
  response_t failed, conflict, hash;
  logic grant_valid, grant_ready, hash_grant_ready, admission_busy, hash_busy;
  grant_t grant;
  logic [1:0] mem_valid, mem_ready;
  mem_req_t [1:0] mem_req, mem_tagged;
  mem_req_t chosen_req;
  logic chosen_valid, chosen_ready;
  logic [1:0] unused_requests;

  lw_prepare #(
    .KeyWords(KeyWords),
    .Slots   (Slots),
    .Workers (Workers)
  ) u_prepare (
    .clk_i,
    .rst_ni,
    .worker_i,
    .config_i,
    .db_valid_i,
    .db_ready_o,
    .db_req_i,
    .far_valid_i,
    .far_ready_o,
    .far_req_i,
    .mem_valid_o    (mem_valid[1]),
    .mem_ready_i    (mem_ready[1]),
    .mem_req_o      (mem_req[1]),
    .mem_rsp_valid_i(mem_rsp_valid_i && mem_rsp_i.tag[9]),
    .mem_rsp_i,
    .lookup_valid_o (lookup_valid),
    .lookup_ready_i (lookup_ready),
    .lookup_o       (lookup),
    .remote_valid_o (far_valid_o),
    .remote_ready_i (far_ready_i),
    .remote_dest_o  (far_dest_o),
    .remote_o       (far_req_o),
    .failed_valid_o (failed_valid),
    .failed_ready_i (failed_ready),
    .failed_o       (failed)
  );

  lw_admission #(
    .Entries   (Entries),
    .KeyWords  (KeyWords),
    .Park      (Park),
    .CountWidth(CountWidth),
    .Releases  (4)
  ) u_admission (
    .clk_i,
    .rst_ni,
    .worker_i,
    .clear_i,
    .busy_o          (admission_busy),
    .parked_o,
    .req_valid_i     (lookup_valid),
    .req_ready_o     (lookup_ready),
    .req_i           (lookup),
    .release_valid_i (release_valid),
    .release_ready_o (release_ready),
    .release_i       (releases),
    .row_valid_i,
    .row_ready_o,
    .row_i,
    .row_valid_o,
    .row_verdict_o,
    .row_entry_o,
    .grant_valid_o   (grant_valid),
    .grant_ready_i   (grant_ready),
    .grant_o         (grant),
    .conflict_valid_o(conflict_valid),
    .conflict_ready_i(conflict_ready),
    .conflict_o      (conflict)
  );

  assign tree_valid_o = grant_valid && grant.req.tree;
  assign tree_o       = grant;
  assign grant_ready  = grant.req.tree ? tree_ready_i : hash_grant_ready;

  lw_hash #(
    .KeyWords(KeyWords),
    .Inflight(Inflight)
  ) u_hash (
    .clk_i,
    .rst_ni,
    .worker_i,
    .config_i,
    .grant_valid_i   (grant_valid && !grant.req.tree),
    .grant_ready_o   (hash_grant_ready),
    .grant_i         (grant),
    .mem_valid_o     (mem_valid[0]),
    .mem_ready_i     (mem_ready[0]),
    .mem_req_o       (mem_req[0]),
    .mem_rsp_valid_i (mem_rsp_valid_i && !mem_rsp_i.tag[9]),
    .mem_rsp_i,
    .takeback_valid_o(takeback_valid),
    .takeback_ready_i(takeback_ready),
    .takeback_o      (takeback),
    .answer_valid_o  (hash_valid),
    .answer_ready_i  (hash_ready),
    .answer_o        (hash),
    .busy_o          (hash_busy)
  );

  assign busy_o = admission_busy || hash_busy || grant_valid || conflict_valid;

  // ---------------------------------------------------------------------------------------------------------------
  // One memory port, one stream of answers
  // ---------------------------------------------------------------------------------------------------------------

  always_comb begin
    mem_tagged           = mem_req;
    mem_tagged[1].tag[9] = 1'b1;
    // Prepare only reads, and a read has no data.
    mem_tagged[1].data   = mem_req[0].data;
    mem_tagged[1].strobe = mem_req[0].strobe;
  end

  lw_arbiter #(
    .Inputs(2),
    .Width ($bits(mem_req_t)),
    .Lock  (1'b0)
  ) u_mem (
    .clk_i,
    .rst_ni,
    .valid_i(mem_valid),
    .ready_o(mem_ready),
    .data_i (mem_tagged),
    .valid_o(chosen_valid),
    .ready_i(chosen_ready),
    .data_o (chosen_req)
  );

  lw_fifo #(
    .Width($bits(mem_req_t)),
    .Depth(2)
  ) u_requests (
    .clk_i,
    .rst_ni,
    .valid_i(chosen_valid),
    .ready_o(chosen_ready),
    .data_i (chosen_req),
    .valid_o(mem_valid_o),
    .ready_i(mem_ready_i),
    .data_o (mem_req_o),
    .count_o(unused_requests)
  );

  lw_arbiter #(
    .Inputs(3),
    .Width ($bits(response_t))
  ) u_answers (
    .clk_i,
    .rst_ni,
    .valid_i({failed_valid, conflict_valid, hash_valid}),
    .ready_o({failed_ready, conflict_ready, hash_ready}),
    .data_i ({failed, conflict, hash}),
    .valid_o(answer_valid_o),
    .ready_i(answer_ready_i),
    .data_o (answer_o)
  );

endmodule
