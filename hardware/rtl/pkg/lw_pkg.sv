// Types that cross module boundaries. One width for every configuration: bits that a small one does not use are
// constants, which synthesis removes.

package lw_pkg;

  /// Bytes are addressed by this many bits; memory is reached in words of 64 bits.
  localparam int unsigned AddrWidth = 40;
  /// Transaction times. The machine drains and starts again from one before they run out.
  localparam int unsigned TimeWidth = 32;
  /// At most 16 workers.
  localparam int unsigned WorkerWidth = 4;
  /// At most 64 hardware contexts a worker.
  localparam int unsigned ContextWidth = 6;
  /// CP registers of a worker, as in BionicDB.
  localparam int unsigned CpWidth = 8;
  /// At most 64 tables.
  localparam int unsigned TableWidth = 6;
  /// At most 16384 decision words a worker.
  localparam int unsigned EntryWidth = 14;
  /// Tags of one unit's memory requests.
  localparam int unsigned TagWidth = 10;
  /// Units of a worker that share its memory port.
  localparam int unsigned UnitWidth = 3;
  /// Bits of a key hash.
  localparam int unsigned HashWidth = 32;

  typedef logic [AddrWidth-1:0] addr_t;
  typedef logic [AddrWidth-1:3] word_addr_t;
  typedef logic [TimeWidth-1:0] stamp_t;
  typedef logic [WorkerWidth-1:0] worker_t;
  typedef logic [ContextWidth-1:0] context_t;
  typedef logic [CpWidth-1:0] cp_t;
  typedef logic [TableWidth-1:0] table_t;
  typedef logic [EntryWidth-1:0] entry_t;
  typedef logic [TagWidth-1:0] tag_t;
  typedef logic [UnitWidth-1:0] unit_t;
  typedef logic [HashWidth-1:0] hash_t;

  /// One word to or from memory. Every request, also a write, is answered exactly once, in any order; whoever asks
  /// takes the answer at once, whenever it comes.
  typedef struct packed {
    logic       write;
    word_addr_t addr;
    logic [63:0] data;
    logic [7:0] strobe;  // bytes to write
    tag_t       tag;
  } mem_req_t;

  /// The answer. `error`: memory refused; `data` means nothing then.
  typedef struct packed {
    logic        error;
    logic [63:0] data;
    tag_t        tag;
  } mem_rsp_t;

  /// A request at the memory port of a worker: the tag says which unit asks, too.
  typedef struct packed {
    logic        write;
    word_addr_t  addr;
    logic [63:0] data;
    logic [7:0]  strobe;
    unit_t       unit;
    tag_t        tag;
  } port_req_t;

  /// The answer at the memory port of a worker.
  typedef struct packed {
    logic        error;
    logic [63:0] data;
    unit_t       unit;
    tag_t        tag;
  } port_rsp_t;

  // Topologies of the message fabric.
  localparam int unsigned TopologyCrossbar = 0;
  localparam int unsigned TopologyRing = 1;

  /// What is asked of an index, or of the decision words.
  typedef enum logic [2:0] {
    OpSearch  = 3'd0,
    OpUpdate  = 3'd1,
    OpInsert  = 3'd2,
    OpRemove  = 3'd3,
    OpScan    = 3'd4,
    OpRelease = 3'd5   // lets one grant go; no answer
  } op_e;

  /// Where an answer goes.
  typedef struct packed {
    worker_t  worker;
    context_t ctx;
    cp_t      cp;  // a physical register
  } return_t;

  /// A DB instruction, or a release, on its way to the worker that has the row.
  typedef struct packed {
    op_e         op;
    table_t      tab;
    stamp_t      stamp;  // time of the transaction
    return_t     ret;
    logic        keyed;  // `key` is the key in normal form, which is one word; else the byte address of its image
    logic [63:0] key;
    hash_t       hash;   // of the key, if `keyed`; for a release, the decision word's number
  } request_t;

  /// How a DB instruction ended.
  typedef enum logic [1:0] {
    AnswerReady    = 2'd0,  // `value` is the row's byte address, or the number of rows of a scan
    AnswerMissing  = 2'd1,  // no row, or, for an insert, a row; `value` is the abort code
    AnswerConflict = 2'd2,  // the transaction begins again under a new time
    AnswerFailed   = 2'd3   // `value` is the abort code
  } answer_e;

  /// The answer to a DB instruction; or, with `op` OpRelease, a release: `ret.worker` has the decision word `entry`,
  /// and `value` is the transaction's time.
  typedef struct packed {
    return_t ret;
    op_e     op;
    answer_e answer;
    logic    granted;  // the transaction holds a grant on `entry` of `owner` now, and lets it go when it ends
    worker_t owner;
    entry_t  entry;
    addr_t   value;
  } response_t;

  /// One write of the host into the tables of the units: code, procedures, schemas. All units listen.
  typedef struct packed {
    logic        valid;
    logic [15:0] addr;
    logic [63:0] data;
  } config_t;

  /// A DB instruction on its way from the softcore to prepare.
  typedef struct packed {
    op_e         op;
    table_t      tab;
    stamp_t      stamp;
    return_t     ret;
    addr_t       key_addr;  // byte address of the key image, any alignment
    logic [15:0] limit;     // of a scan: most rows
    logic [5:0]  source;    // of a scan: scan source
    logic [23:0] delta;     // of a scan: address of the result minus `key_addr`, signed
  } db_req_t;

  /// A key in normal form, its first word at 0. Words that a table's keys do not have are zero.
  typedef logic [3:0][63:0] key_t;

  /// A DB instruction with its key, at the worker that has the row.
  typedef struct packed {
    op_e         op;
    table_t      tab;
    stamp_t      stamp;
    return_t     ret;
    logic        judged;   // accesses are judged: the table is not replicated, and somebody writes what is read
    logic        tree;     // the table is ordered
    key_t        key;
    hash_t       hash;
    logic [15:0] limit;    // of a scan
    logic [5:0]  source;   // of a scan
    addr_t       result;   // of a scan: where its rows go
  } lookup_t;

  /// An instruction that admission has let go on.
  typedef struct packed {
    lookup_t req;
    logic    granted;  // it holds a grant on `entry`
    logic    ordered;  // its transaction may have one of the same decision word under way in the index, and one of
                       // both inserts: it begins when that one is answered
    entry_t  entry;
  } grant_t;

  /// Lets one grant go.
  typedef struct packed {
    stamp_t stamp;
    entry_t entry;
  } release_t;

  /// What a scanner asks of admission: to read a row.
  typedef struct packed {
    stamp_t stamp;
    table_t tab;
    hash_t  hash;
  } row_req_t;

  /// What admission says of a row.
  typedef enum logic [1:0] {
    RowGranted  = 2'd0,
    RowWait     = 2'd1,  // an older transaction is at it: ask again
    RowConflict = 2'd2
  } row_verdict_e;

  // Regions of `config_t.addr`; see hardware/rtl/README.md for the fields.
  localparam logic [15:0] ConfigCode      = 16'h0000;  // 2 * instruction + half
  localparam logic [15:0] ConfigProcedure = 16'h8000;  // 8 * procedure + field
  localparam logic [15:0] ConfigTable     = 16'hA000;  // 8 * table + field
  localparam logic [15:0] ConfigKey       = 16'hB000;  // 4 * table + word
  localparam logic [15:0] ConfigRows      = 16'hC000;  // 32 * table + 2 * worker + field

endpackage
