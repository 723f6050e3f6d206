// Types inside the index coprocessor.

package lw_point_pkg;

  /// What a slot of the hash index does next, named after the stages of BionicDB's pipeline.
  typedef enum logic [2:0] {
    JobHeadFetch = 3'd0,  // read the head of its bucket
    JobRow       = 3'd1,  // KeyComp, Traverse: read a row's key and word
    JobInstall   = 3'd2,  // a new row, and the head
    JobZero      = 3'd3,  // an absent row begins again: values zero, live
    JobUndo      = 3'd4   // memory refused a part of an install
  } job_e;

  /// What a memory answer is about: the low bits of the tag. Key word k is KindKey + k.
  localparam logic [2:0] KindHead = 3'd0;
  localparam logic [2:0] KindRow = 3'd1;
  localparam logic [2:0] KindWrites = 3'd2;
  localparam logic [2:0] KindUndo = 3'd3;
  localparam logic [2:0] KindKey = 3'd4;

  /// What prepare has to know of the request whose key it begins with.
  typedef struct packed {
    lw_pkg::table_t tab;
    logic [2:0]     offset;   // bytes from the word's beginning to the image
    logic           direct;   // nothing is to be mapped: one aligned integer, or no key at all
    logic           at_once;  // no word of memory is needed: the key is here, or does not matter here
    logic           wide;     // more than one word
    logic [1:0]     last;     // number of its last word
  } key_head_t;

endpackage
