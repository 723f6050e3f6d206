/// For simulation only: tells the host every decision of admission, in the order in which they are made. Bound to
/// `lw_admission` when a model is built with a trace. What the words mean is in crates/accelerators/fpga/src/trace.rs.
module lw_admission_trace (
  /// Clock.
  input logic                clk_i,
  /// Nothing is told during reset.
  input logic                rst_ni,
  /// This worker.
  input lw_pkg::worker_t     worker_i,
  /// All words are forgotten.
  input logic                clear_i,
  /// A scanner's question is taken.
  input logic                row_i,
  /// The question.
  input lw_pkg::row_req_t    row_req_i,
  /// There is a release, request or row at the stage that decides.
  input logic                valid_i,
  /// 0: release, 1: new request, 2: request that was parked, 3: row of a scan.
  input logic [1:0]          class_i,
  /// What a request does.
  input lw_pkg::op_e         op_i,
  /// Its table.
  input lw_pkg::table_t      table_i,
  /// The transaction's time.
  input lw_pkg::stamp_t      stamp_i,
  /// Where the answer to a request goes.
  input lw_pkg::return_t     ret_i,
  /// The decision word.
  input lw_pkg::entry_t      entry_i,
  /// The key of a request.
  input lw_pkg::key_t        key_i,
  /// The word decides.
  input logic                judge_i,
  /// The request is parked without being judged, to keep its place.
  input logic                round_i,
  /// What was decided of a request: it goes on.
  input logic                granted_i,
  /// It is parked.
  input logic                parked_i,
  /// It is a conflict.
  input logic                late_i,
  /// What was decided of a row.
  input lw_pkg::row_verdict_e verdict_i
);

  import "DPI-C" function void lw_note(input int unsigned kind, input int unsigned worker, input bit [383:0] word);

  always_ff @(posedge clk_i) begin
    if (rst_ni) begin
      if (clear_i) lw_note(8, 32'(worker_i), '0);
      if (row_i) lw_note(7, 32'(worker_i), 384'({row_req_i.hash, 32'(row_req_i.tab), row_req_i.stamp}));
      if (valid_i) begin
        lw_note(6, 32'(worker_i), {
          key_i, 14'b0, ret_i, 12'b0, table_i, entry_i, stamp_i,
          20'b0, judge_i, round_i, granted_i, parked_i, late_i, verdict_i, op_i, class_i
        });
      end
    end
  end

endmodule

bind lw_admission lw_admission_trace u_trace (
  .clk_i,
  .rst_ni,
  .worker_i,
  .clear_i,
  .row_i    (row_take),
  .row_req_i(row_i),
  .valid_i  (d_valid_q),
  .class_i  (d_class_q),
  .op_i     (d_case_q.op),
  .table_i  (items_q[d_case_q.number].tab),
  .stamp_i  (d_case_q.stamp),
  .ret_i    (d_case_q.ret),
  .entry_i  (lw_pkg::entry_t'(d_entry_q)),
  .key_i    (lw_pkg::key_t'(items_q[d_case_q.number].key)),
  .judge_i  (d_case_q.judge),
  .round_i  (d_round),
  .granted_i(d_granted),
  .parked_i (park_push),
  .late_i   (d_late),
  .verdict_i(row_verdict_o)
);
