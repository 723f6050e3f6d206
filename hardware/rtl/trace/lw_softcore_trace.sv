/// For simulation only: tells the host of every softcore what its transactions do. Bound to `lw_softcore` when a model
/// is built with a trace, so the design has no flip-flop for it. What the words mean is in
/// crates/accelerators/fpga/src/trace.rs.
module lw_softcore_trace (
  /// Clock.
  input logic                clk_i,
  /// Nothing is told during reset.
  input logic                rst_ni,
  /// This worker.
  input lw_pkg::worker_t     worker_i,
  /// A transaction begins, or begins again.
  input logic                begin_i,
  /// Its context.
  input lw_pkg::context_t    begin_ctx_i,
  /// Its block; 0 if it begins again.
  input lw_pkg::addr_t       begin_block_i,
  /// Its window of GP registers, if it begins for the first time.
  input logic [7:0]          begin_gp_i,
  /// A register is written.
  input logic                write_i,
  /// Whose.
  input lw_pkg::context_t    write_ctx_i,
  /// Physical GP register.
  input logic [7:0]          write_gp_i,
  /// Which of its bytes.
  input logic [7:0]          write_bytes_i,
  /// Its value.
  input logic [63:0]         write_value_i,
  /// A DB instruction is taken.
  input logic                issue_i,
  /// What it does.
  input lw_pkg::op_e         issue_op_i,
  /// Its table.
  input lw_pkg::table_t      issue_table_i,
  /// Time of its transaction.
  input lw_pkg::stamp_t      issue_stamp_i,
  /// Where its answer goes.
  input lw_pkg::return_t     issue_return_i,
  /// Byte address of its key image.
  input lw_pkg::addr_t       issue_key_i,
  /// The most rows of a scan.
  input logic [15:0]         issue_limit_i,
  /// An answer comes.
  input logic                answer_i,
  /// The answer.
  input lw_pkg::response_t   response_i,
  /// A block is completed.
  input logic                done_i,
  /// Its address.
  input lw_pkg::addr_t       done_block_i,
  /// Its status.
  input logic [1:0]          done_status_i,
  /// Its code.
  input logic [15:0]         done_code_i,
  /// Its time.
  input lw_pkg::stamp_t      done_stamp_i
);

  import "DPI-C" function void lw_note(input int unsigned kind, input int unsigned worker, input bit [383:0] word);

  always_ff @(posedge clk_i) begin
    if (rst_ni) begin
      if (begin_i) lw_note(1, 32'(worker_i), 384'({begin_gp_i, begin_block_i, 32'(begin_ctx_i)}));
      if (write_i) lw_note(2, 32'(worker_i), 384'({write_value_i, 16'b0, write_bytes_i, write_gp_i, 32'(write_ctx_i)}));
      if (issue_i) begin
        lw_note(3, 32'(worker_i), 384'({
          issue_limit_i, issue_key_i, 32'(issue_table_i), 32'(issue_op_i), 32'(issue_return_i), issue_stamp_i
        }));
      end
      if (answer_i) begin
        lw_note(4, 32'(worker_i), 384'({
          response_i.value, 32'(response_i.entry), 32'(response_i.owner), 32'(response_i.granted),
          32'(response_i.answer), 32'(response_i.op), 32'(response_i.ret)
        }));
      end
      if (done_i) begin
        lw_note(5, 32'(worker_i), 384'({done_block_i, 32'(done_code_i), 32'(done_status_i), done_stamp_i}));
      end
    end
  end

endmodule

bind lw_softcore lw_softcore_trace u_trace (
  .clk_i,
  .rst_ni,
  .worker_i,
  .begin_i       (trace_begin_o),
  .begin_ctx_i   (trace_begin_ctx_o),
  .begin_block_i (trace_begin_block_o),
  .begin_gp_i    (trace_begin_gp_o),
  .write_i       (trace_write_o),
  .write_ctx_i   (trace_write_ctx_o),
  .write_gp_i    (trace_write_gp_o),
  .write_bytes_i (trace_write_bytes_o),
  .write_value_i (trace_write_value_o),
  .issue_i       (db_valid_o && db_ready_i),
  .issue_op_i    (db_op_o),
  .issue_table_i (db_table_o),
  .issue_stamp_i (db_stamp_o),
  .issue_return_i(db_return_o),
  .issue_key_i   (db_key_addr_o),
  .issue_limit_i (db_limit_o),
  .answer_i      (response_valid_i),
  .response_i,
  .done_i        (done_valid_o && done_ready_i),
  .done_block_i  (done_block_o),
  .done_status_i (done_status_o),
  .done_code_i   (done_code_o),
  .done_stamp_i  (done_stamp_o)
);
