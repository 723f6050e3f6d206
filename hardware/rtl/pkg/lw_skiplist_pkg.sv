// Types that the modules of the ordered index share.

package lw_skiplist_pkg;

  /// A row's address, in units of 64 bytes. Zero: no row.
  localparam int unsigned NodeWidth = 34;
  typedef logic [NodeWidth-1:0] node_t;

  /// Levels are numbered from 0; at most 20 of them.
  typedef logic [4:0] level_t;

  /// What the index must know of a request until it is answered.
  typedef struct packed {
    lw_pkg::op_e     op;
    lw_pkg::table_t  tab;
    lw_pkg::stamp_t  stamp;
    lw_pkg::return_t ret;
    lw_pkg::entry_t  entry;
    logic            granted;
    logic            calm;    // no insert was in flight when it came
    level_t          height;  // of the key, for an insert
    logic [2:0]      words;   // of the table's keys
  } asked_t;

  /// What a scan adds to that.
  typedef struct packed {
    logic [15:0]        limit;
    logic [5:0]         source;
    lw_pkg::word_addr_t buffer;
  } span_t;

  /// Where a traversal starts.
  typedef struct packed {
    logic           again;   // one level is looked at once more
    lw_pkg::table_t tab;
    node_t          pred;    // its key is below the one that is looked for
    node_t          bound;   // its key is known to be above, if it is a node
    level_t         level;
    level_t         stop;    // the last level
    level_t         height;  // below it the path is recorded
    logic [2:0]     words;
    logic           scan;    // rows from the key on: the key itself is above
  } start_t;

  /// How a request ended.
  typedef struct packed {
    lw_pkg::answer_e answer;
    logic            no_room;  // why it failed; else memory refused
    node_t           value;    // the row, or the number of rows of a scan
  } ending_t;

  /// What became of asking for a read grant.
  typedef enum logic [1:0] {
    GrantGiven    = 2'd0,
    GrantWait     = 2'd1,
    GrantConflict = 2'd2
  } grant_e;

  /// Abort codes.
  localparam logic [15:0] CodeNotFound = 16'hFF01;
  localparam logic [15:0] CodeDuplicate = 16'hFF02;
  localparam logic [15:0] CodeNoRoom = 16'hFF11;
  localparam logic [15:0] CodeMemory = 16'hFF13;

  /// How many words before a node its link on a level lies. The words behind the first of its key come between.
  function automatic logic [5:0] link_below(level_t level, logic [2:0] words);
    return (level == '0) ? '0 : 6'(level) + 6'(words) - 6'd1;
  endfunction

  /// Word address of a word of a node's key.
  function automatic lw_pkg::word_addr_t key_address(node_t node, logic [1:0] word);
    return (word == '0) ? {node, 3'b001} : {node, 3'b000} - 37'(word);
  endfunction

endpackage
