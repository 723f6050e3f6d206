/// Of `lw_judge`, for one decision word that begins free, any requests, and releases of grants that are held: while a
/// transaction holds a grant to write, every grant of the word is its own; nothing is granted behind a later
/// transaction; and nobody waits for a later one.
///
/// One transaction of any time is followed, and its grants are counted here. What holds for it holds for each, which
/// the assumption about releases of others uses: `own` are all grants of the transaction of `read_time`.
module lw_judge_properties #(
  /// Bits of a count; few, so that counts overflow.
  parameter int unsigned CountWidth = 3
) (
  /// Clock.
  input logic           clk_i,
  /// Free, taken at the beginning: the time of the transaction that is followed.
  input lw_pkg::stamp_t followed_i,
  /// Free: whose request or release.
  input lw_pkg::stamp_t stamp_i,
  /// Free: a release.
  input logic           release_i,
  /// Free: to write.
  input logic           write_i,
  /// Free: to insert, which is to write.
  input logic           insert_i,
  /// Free: a scan's row cannot be parked.
  input logic           park_i,
  /// Free: the park is full, so a request that has to wait leaves the word as it is.
  input logic           full_i
);

  localparam int unsigned WordWidth = 2 * lw_pkg::TimeWidth + 2 * CountWidth + 4;

  typedef struct packed {
    logic [1:0]            state;
    logic                  inserted;
    logic                  awaited;
    lw_pkg::stamp_t        write_time;
    lw_pkg::stamp_t        read_time;
    logic [CountWidth-1:0] count;
    logic [CountWidth-1:0] own;
  } word_t;

  localparam logic [1:0] Free = 2'd0;
  localparam logic [1:0] Dirty = 2'd2;

  logic started_q;
  initial started_q = 1'b0;
  always_ff @(posedge clk_i) started_q <= 1'b1;

  lw_pkg::stamp_t followed_q;
  always_ff @(posedge clk_i) if (!started_q) followed_q <= followed_i;

  word_t word_q;
  logic [WordWidth-1:0] word;
  logic must_wait, conflict, ordered, wake, granted;

  lw_judge #(
    .CountWidth(CountWidth)
  ) u_judge (
    .clk_i,
    .word_i    (word_q),
    .stamp_i   (stamp_i),
    .release_i (release_i),
    .write_i   (write_i),
    .insert_i  (insert_i),
    .park_i    (park_i),
    .wait_o    (must_wait),
    .conflict_o(conflict),
    .ordered_o (ordered),
    .wake_o    (wake),
    .word_o    (word)
  );

  assign granted = !release_i && !must_wait && !conflict;

  // Grants of the followed transaction, and whether one is to write.
  logic [CountWidth-1:0] mine_q, mine, others;
  logic writes_q, is_mine;

  assign is_mine = stamp_i == followed_q;

  always_comb begin
    mine = mine_q;
    if (is_mine && granted) mine = mine_q + 1'b1;
    if (is_mine && release_i) mine = mine_q - 1'b1;
    // Grants neither of the followed transaction nor of that of `read_time`.
    others = word_q.count - mine_q;
    if (word_q.read_time != followed_q) others = others - word_q.own;
  end

  always_ff @(posedge clk_i or negedge started_q) begin
    if (!started_q) begin
      word_q   <= '0;
      mine_q   <= '0;
      writes_q <= 1'b0;
    end else begin
      if (release_i || !must_wait || !full_i) word_q <= word_t'(word);
      mine_q   <= mine;
      writes_q <= mine != '0 && (writes_q || (is_mine && granted && write_i));
    end
  end

  always_ff @(posedge clk_i) begin
    if (started_q) begin
      assume (!insert_i || write_i);
      // Only who holds a grant lets one go.
      if (release_i && is_mine) assume (mine_q != '0);
      if (release_i && !is_mine && stamp_i == word_q.read_time) assume (word_q.own != '0);
      if (release_i && !is_mine && stamp_i != word_q.read_time) assume (others != '0);

      // What is to be shown.
      if (writes_q) assert (word_q.state == Dirty && word_q.write_time == followed_q && word_q.count == mine_q);
      if (mine_q != '0 && granted && write_i) assert (is_mine);
      if (granted && write_i) assert (stamp_i >= word_q.read_time || word_q.state != Free);
      if (granted) assert (stamp_i >= word_q.write_time);
      if (!release_i && must_wait && word_q.state != Free) assert (word_q.write_time <= stamp_i);
      if (!release_i && must_wait && word_q.state == Free) assert (word_q.read_time <= stamp_i);
      assert (!must_wait || !conflict);

      // What that follows from.
      assert (word_q.state != 2'd3);
      assert (word_q.state != Dirty || word_q.count != '0);
      assert (word_q.state == Dirty || !word_q.inserted);
      assert (mine_q <= word_q.count && word_q.own <= word_q.count);
      if (word_q.state == Dirty && word_q.write_time == followed_q) assert (word_q.count == mine_q);
      if (word_q.state == Dirty && word_q.write_time != followed_q) assert (mine_q == '0);
      if (word_q.read_time == followed_q) assert (word_q.own == mine_q);
      else assert (word_q.own <= word_q.count - mine_q);
      if (word_q.read_time < followed_q && mine_q != '0) begin
        assert (word_q.state == Dirty && word_q.write_time == followed_q);
      end
      if (word_q.state != Free) assert (word_q.read_time <= word_q.write_time);
      cover (writes_q && mine_q == CountWidth'(2) && word_q.awaited);
      cover (word_q.state == 2'd1 && granted);
    end
  end

  logic unused;
  assign unused = ordered ^ wake;

endmodule
