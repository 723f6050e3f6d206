/// Control and status registers behind an AXI4-Lite slave of 32 bits; the map is in hardware/rtl/README.md. Also the state
/// machine of the whole processor, its event counters and the watchdogs.
///
/// One write and one read at a time. A write is answered three cycles after address and data are both there, a read two
/// cycles after its address. What is refused changes nothing but `RegError` and `RegRefused` and is answered with SLVERR.
module lw_regs #(
  /// Workers, a power of two.
  parameter int unsigned Workers = 4,
  /// For the host to read, as all that follow: hardware contexts of a worker.
  parameter int unsigned Contexts = 16,
  /// Decision words of a worker.
  parameter int unsigned Entries = 1024,
  /// Words of the longest key.
  parameter int unsigned KeyWords = 4,
  /// Instructions of the catalogue.
  parameter int unsigned Instructions = 1024,
  /// Procedures of the catalogue.
  parameter int unsigned Procedures = 64,
  /// Tables of the catalogue.
  parameter int unsigned Tables = 64,
  /// Scan sources of the catalogue.
  parameter int unsigned Sources = 64,
  /// Places of a context's grant log.
  parameter int unsigned Grants = 64,
  /// GP registers of a worker.
  parameter int unsigned Registers = 256,
  /// Levels of the skiplist, 0 for none.
  parameter int unsigned Levels = 0,
  /// Topology of the fabric.
  parameter int unsigned Topology = lw_pkg::TopologyCrossbar,
  /// Memory requests of a worker that may wait for their answers.
  parameter int unsigned Inflight = 128
) (
  /// Clock.
  input  logic                                        clk_i,
  /// Asynchronous reset.
  input  logic                                        rst_ni,
  /// AXI4-Lite write address.
  input  logic                                        awvalid_i,
  /// Taken together with the data; depends on both valid inputs.
  output logic                                        awready_o,
  /// Byte address; the lowest two bits are ignored.
  input  logic [lw_regs_pkg::RegAddrWidth-1:0]        awaddr_i,
  /// Write data.
  input  logic                                        wvalid_i,
  /// Taken together with the address.
  output logic                                        wready_o,
  /// The value.
  input  logic [31:0]                                 wdata_i,
  /// Must be all ones.
  input  logic [3:0]                                  wstrb_i,
  /// Write response; from a register.
  output logic                                        bvalid_o,
  /// Taken.
  input  logic                                        bready_i,
  /// 0, or 2 (SLVERR) if refused.
  output logic [1:0]                                  bresp_o,
  /// Read address.
  input  logic                                        arvalid_i,
  /// From registers.
  output logic                                        arready_o,
  /// Byte address; the lowest two bits are ignored.
  input  logic [lw_regs_pkg::RegAddrWidth-1:0]        araddr_i,
  /// Read data; from a register.
  output logic                                        rvalid_o,
  /// Taken.
  input  logic                                        rready_i,
  /// The value.
  output logic [31:0]                                 rdata_o,
  /// 0, or 2 (SLVERR) if there is no such register.
  output logic [1:0]                                  rresp_o,
  /// Level: a completion ring has entries, or an error is set, as enabled; from a register.
  output logic                                        interrupt_o,
  /// Reset of the units, active low, for as long as `StateResetting` lasts; a register, for asynchronous use.
  output logic                                        unit_rst_no,
  /// Decision words and times are forgotten: one cycle as `StateClearing` begins; from a register.
  output logic                                        clear_o,
  /// The units have forgotten all decision words, and are ready after a reset.
  input  logic                                        ready_i,
  /// Times run out soon.
  input  logic                                        times_low_i,
  /// One word for the tables of all units; from registers.
  output lw_pkg::config_t                             config_o,
  /// What each worker is told.
  output lw_regs_pkg::worker_control_t [Workers-1:0]  control_o,
  /// What each worker tells.
  input  lw_regs_pkg::worker_status_t  [Workers-1:0]  status_i
);

  import lw_regs_pkg::*;

  localparam int unsigned IndexBits = Workers > 1 ? $clog2(Workers) : 1;
  localparam logic [4:0] WorkerCount = 5'(Workers);
  typedef logic [IndexBits-1:0] number_t;

  state_e state_q, state_d;
  command_t command;
  error_t error_q, error_set, error_clear;
  logic idle, quiet, stopped, active;
  logic idle_q, quiet_q;

  // Set-up of the machine.
  logic [1:0] mode_q, interrupt_enable_q;
  logic [10:0] max_inflight_q;
  logic [15:0] max_retries_q, watchdog_q, config_addr_q;
  logic [19:4] undo_bytes_q;
  logic [31:0] config_low_q;
  lw_pkg::config_t config_q;

  // Set-up of the workers.
  logic [Workers-1:0][39:3] submit_base_q, complete_base_q;
  logic [Workers-1:0][39:4] undo_base_q;
  size_t [Workers-1:0] submit_size_q, complete_size_q;
  index_t [Workers-1:0] submit_head_q, complete_tail_q;

  // What is counted.
  logic [63:0] cycles_q;
  logic [31:0] cycles_high_q;
  logic [Workers-1:0][31:0] transactions_q, db_q, memory_q, conflicts_q, parks_q;
  logic [7:0] tick_q;
  logic tick;
  logic [Workers-1:0] bark, stuck_q, ring_error, waiting;
  logic [Workers-1:0][StateWidth-1:0] state_words;

  // A write: what it asks for, and whether it is let.
  logic take_write, looking_q, write, write_ok, for_worker, no_worker, write_all;
  logic [RegAddrWidth-1:0] write_addr;
  logic [31:0] write_data;
  logic [11:0] write_machine;
  logic [7:0] write_register;
  number_t write_number;
  error_t write_error;
  index_t submit_claim_q, submit_places_q, complete_claim_q, complete_have_q;
  logic reading_bad, completions_read;
  logic [RegAddrWidth-1:0] refused_q;
  logic bvalid_q, bad_write_q;

  // A read, in two steps.
  logic read_q, rvalid_q, bad_read_q, bad_read;
  logic [RegAddrWidth-1:2] read_addr_q;
  logic [31:0] rdata_q, read_data;
  logic [11:0] read_machine;
  logic [7:0] read_register;
  number_t read_number;
  logic [1:0] unused_low;

  assign unused_low = araddr_i[1:0] ^ awaddr_i[1:0];

  // ---------------------------------------------------------------------------------------------- state of the machine

  assign stopped = state_q == StateStopped;
  assign active  = state_q inside {StateRunning, StateStopping, StateDraining};

  always_comb begin
    idle  = 1'b1;
    quiet = 1'b1;
    for (int unsigned w = 0; w < Workers; w++) begin
      idle  &= status_i[w].idle;
      quiet &= status_i[w].quiet;
      // What was rung in and is not yet read.
      waiting[w] = status_i[w].submit_tail != submit_head_q[w];
      ring_error[w] = status_i[w].ring_error;
    end
  end

  always_comb begin
    state_d = state_q;
    unique case (state_q)
      StateStopped: begin
        if (command.run) state_d = StateRunning;
        if (command.clear) state_d = StateClearing;
      end
      StateRunning: begin
        if (command.drain) state_d = StateDraining;
        if (command.stop || times_low_i) state_d = StateStopping;
      end
      StateStopping: begin
        // Fetching has ended a cycle ago, so idle is for good; writes of the last moment have reached memory.
        if (idle_q && idle && quiet) state_d = StateStopped;
      end
      StateDraining: begin
        if (idle_q && idle && quiet && waiting == '0) state_d = StateStopped;
        if (command.stop || times_low_i) state_d = StateStopping;
      end
      StateResetting: if (quiet_q && quiet && !unit_rst_no) state_d = StateClearing;
      StateClearing: if (!clear_o && ready_i) state_d = StateStopped;
      default: state_d = StateStopped;
    endcase
    if (command.reset) state_d = StateResetting;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q     <= StateResetting;
      idle_q      <= 1'b0;
      quiet_q     <= 1'b0;
      unit_rst_no <= 1'b0;
      clear_o     <= 1'b0;
    end else begin
      state_q     <= state_d;
      // Only what was seen in this state counts.
      idle_q      <= idle && state_d == state_q;
      quiet_q     <= quiet && state_d == state_q;
      unit_rst_no <= state_d != StateResetting;
      clear_o     <= state_d == StateClearing && state_q != StateClearing;
    end
  end

  // ------------------------------------------------------------------------------------------------------------ writes

  // Taken, then looked up, then done.
  assign take_write = awvalid_i & wvalid_i & ~looking_q & ~write & (~bvalid_q | bready_i);
  assign awready_o  = take_write;
  assign wready_o   = take_write;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      looking_q        <= 1'b0;
      write            <= 1'b0;
      write_addr       <= '0;
      write_data       <= '0;
      write_all        <= 1'b0;
      submit_claim_q   <= '0;
      submit_places_q  <= '0;
      complete_claim_q <= '0;
      complete_have_q  <= '0;
    end else begin
      looking_q <= take_write;
      write     <= looking_q;
      if (take_write) begin
        write_addr <= {awaddr_i[RegAddrWidth-1:2], 2'b00};
        write_data <= wdata_i;
        write_all  <= wstrb_i == '1;
      end
      // What a doorbell would claim; it must not be more than the ring holds, or than there is.
      submit_claim_q   <= write_data[IndexWidth-1:0] - status_i[write_number].submit_tail;
      submit_places_q  <= index_t'(1) << submit_size_q[write_number];
      complete_claim_q <= write_data[IndexWidth-1:0] - complete_tail_q[write_number];
      complete_have_q  <= status_i[write_number].complete_head - complete_tail_q[write_number];
    end
  end

  assign for_worker = write_addr[WorkerBit];
  assign write_machine  = write_addr[11:0];
  assign write_register = write_addr[7:0];
  assign write_number   = write_addr[WorkerShift+:IndexBits];
  assign no_worker      = {1'b0, write_addr[WorkerShift+:4]} >= WorkerCount;
  assign command = (write && write_error == '0 && !for_worker && write_machine == RegControl) ? write_data[4:0] : '0;

  always_comb begin
    write_error = '0;
    if (!write_all) write_error.partial = 1'b1;
    if (for_worker) begin
      if (write_addr[12] || no_worker) write_error.address = 1'b1;
      unique case (write_register)
        RegSubmitLow, RegCompleteLow: begin
          write_error.state = !stopped;
          write_error.value = write_data[2:0] != '0;
        end
        RegUndoLow: begin
          write_error.state = !stopped;
          write_error.value = write_data[3:0] != '0;
        end
        RegSubmitHigh, RegCompleteHigh, RegUndoHigh: begin
          write_error.state = !stopped;
          write_error.value = write_data[31:8] != '0;
        end
        RegSubmitSize, RegCompleteSize: begin
          write_error.state = !stopped;
          write_error.value = write_data[31:SizeWidth] != '0;
        end
        RegSubmitHead: begin
          write_error.state    = !(state_q inside {StateStopped, StateRunning});
          write_error.value    = write_data[31:IndexWidth] != '0;
          write_error.doorbell = submit_claim_q > submit_places_q;
        end
        RegCompleteTail: begin
          write_error.state    = state_q == StateResetting;
          write_error.value    = write_data[31:IndexWidth] != '0;
          write_error.doorbell = complete_claim_q > complete_have_q;
        end
        default: write_error.address = 1'b1;
      endcase
    end else begin
      if (write_addr[12]) write_error.address = 1'b1;
      unique case (write_machine)
        RegControl: begin
          write_error.value = write_data[31:5] != '0 || !$onehot(write_data[4:0]);
          unique case (write_data[4:0])
            5'b00001: write_error.state = !stopped || times_low_i;
            5'b00010: write_error.state = !(state_q inside {StateRunning, StateDraining});
            5'b00100: write_error.state = state_q != StateRunning;
            5'b10000: write_error.state = !stopped;
            default: ;
          endcase
        end
        RegError: write_error.value = write_data[31:8] != '0;
        RegInterrupt: write_error.value = write_data[31:2] != '0;
        RegMode: begin
          write_error.state = !stopped;
          write_error.value = write_data > 32'd2;
        end
        RegMaxInflight: begin
          write_error.state = !stopped;
          write_error.value = write_data[31:11] != '0;
        end
        RegMaxRetries, RegWatchdog, RegConfigAddr: begin
          write_error.state = !stopped;
          write_error.value = write_data[31:16] != '0;
        end
        RegUndoBytes: begin
          write_error.state = !stopped;
          write_error.value = write_data[31:20] != '0 || write_data[3:0] != '0;
        end
        RegConfigLow, RegConfigHigh: write_error.state = !stopped;
        default: write_error.address = 1'b1;
      endcase
    end
  end

  assign write_ok = write && write_error == '0;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      bvalid_q    <= 1'b0;
      bad_write_q <= 1'b0;
      refused_q   <= '0;
    end else begin
      if (write) begin
        bvalid_q    <= 1'b1;
        bad_write_q <= write_error != '0;
      end else if (bready_i) begin
        bvalid_q <= 1'b0;
      end
      if (write && write_error != '0) refused_q <= write_addr;
      else if (reading_bad) refused_q <= {read_addr_q, 2'b00};
    end
  end
  assign bvalid_o = bvalid_q;
  assign bresp_o  = {bad_write_q, 1'b0};

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      mode_q             <= 2'd2;
      max_inflight_q     <= '0;
      max_retries_q      <= '1;
      watchdog_q         <= '0;
      undo_bytes_q       <= '0;
      interrupt_enable_q <= '0;
      config_addr_q      <= '0;
      config_low_q       <= '0;
      config_q           <= '0;
    end else begin
      config_q.valid <= 1'b0;
      if (write_ok && !for_worker) begin
        case (write_machine)
          RegMode:        mode_q <= write_data[1:0];
          RegMaxInflight: max_inflight_q <= write_data[10:0];
          RegMaxRetries:  max_retries_q <= write_data[15:0];
          RegWatchdog:    watchdog_q <= write_data[15:0];
          RegUndoBytes:   undo_bytes_q <= write_data[19:4];
          RegInterrupt:   interrupt_enable_q <= write_data[1:0];
          RegConfigAddr:  config_addr_q <= write_data[15:0];
          RegConfigLow:   config_low_q <= write_data;
          RegConfigHigh: begin
            config_q      <= '{valid: 1'b1, addr: config_addr_q, data: {write_data, config_low_q}};
            config_addr_q <= config_addr_q + 1'b1;
          end
          default: ;
        endcase
      end
    end
  end
  assign config_o = config_q;

  for (genvar w = 0; w < int'(Workers); w++) begin : gen_setup
    logic mine;
    assign mine = write_ok && for_worker && write_number == number_t'(w);

    always_ff @(posedge clk_i or negedge rst_ni) begin
      if (!rst_ni) begin
        submit_base_q[w]   <= '0;
        complete_base_q[w] <= '0;
        undo_base_q[w]     <= '0;
        submit_size_q[w]   <= '0;
        complete_size_q[w] <= '0;
        submit_head_q[w]   <= '0;
        complete_tail_q[w] <= '0;
      end else begin
        if (mine) begin
          case (write_register)
            RegSubmitLow:    submit_base_q[w][31:3] <= write_data[31:3];
            RegSubmitHigh:   submit_base_q[w][39:32] <= write_data[7:0];
            RegSubmitSize:   submit_size_q[w] <= write_data[SizeWidth-1:0];
            RegSubmitHead:   submit_head_q[w] <= write_data[IndexWidth-1:0];
            RegCompleteLow:  complete_base_q[w][31:3] <= write_data[31:3];
            RegCompleteHigh: complete_base_q[w][39:32] <= write_data[7:0];
            RegCompleteSize: complete_size_q[w] <= write_data[SizeWidth-1:0];
            RegCompleteTail: complete_tail_q[w] <= write_data[IndexWidth-1:0];
            RegUndoLow:      undo_base_q[w][31:4] <= write_data[31:4];
            RegUndoHigh:     undo_base_q[w][39:32] <= write_data[7:0];
            default: ;
          endcase
        end
        if (state_q == StateResetting) begin
          submit_head_q[w]   <= '0;
          complete_tail_q[w] <= '0;
        end
      end
    end

    assign control_o[w] = '{
      rings: '{
        fetch:         state_q inside {StateRunning, StateDraining},
        submit_base:   submit_base_q[w],
        submit_size:   submit_size_q[w],
        submit_head:   submit_head_q[w],
        complete_base: complete_base_q[w],
        complete_size: complete_size_q[w],
        complete_tail: complete_tail_q[w]
      },
      mode:         mode_q,
      max_inflight: max_inflight_q,
      max_retries:  max_retries_q,
      undo_base:    {undo_base_q[w], 1'b0},
      undo_bytes:   {undo_bytes_q, 4'b0}
    };
  end

  // ------------------------------------------------------------------------------------------- counters and watchdogs

  assign tick = tick_q == '1;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      cycles_q <= '0;
      tick_q   <= '0;
    end else begin
      tick_q <= tick_q + 1'b1;
      if (state_q == StateResetting) cycles_q <= '0;
      else if (active) cycles_q <= cycles_q + 1'b1;
    end
  end

  for (genvar w = 0; w < int'(Workers); w++) begin : gen_worker
    logic [15:0] patience_q;
    logic [StateWidth-1:0] snapshot_q;

    assign bark[w] = watchdog_q != '0 && tick && active && patience_q >= watchdog_q && !stuck_q[w];
    assign state_words[w] = stuck_q[w] ? snapshot_q : status_i[w].state;

    always_ff @(posedge clk_i or negedge rst_ni) begin
      if (!rst_ni) begin
        transactions_q[w] <= '0;
        db_q[w]           <= '0;
        memory_q[w]       <= '0;
        conflicts_q[w]    <= '0;
        parks_q[w]        <= '0;
        patience_q        <= '0;
        snapshot_q        <= '0;
        stuck_q[w]        <= 1'b0;
      end else begin
        if (state_q == StateResetting) begin
          transactions_q[w] <= '0;
          db_q[w]           <= '0;
          memory_q[w]       <= '0;
          conflicts_q[w]    <= '0;
          parks_q[w]        <= '0;
        end else begin
          if (status_i[w].events.transaction) transactions_q[w] <= transactions_q[w] + 1'b1;
          if (status_i[w].events.db) db_q[w] <= db_q[w] + 1'b1;
          if (status_i[w].events.memory) memory_q[w] <= memory_q[w] + 1'b1;
          if (status_i[w].events.conflict) conflicts_q[w] <= conflicts_q[w] + 1'b1;
          if (status_i[w].events.park) parks_q[w] <= parks_q[w] + 1'b1;
        end
        if (!active || status_i[w].idle || status_i[w].events.transaction) patience_q <= '0;
        else if (tick && patience_q != '1) patience_q <= patience_q + 1'b1;
        if (bark[w]) begin
          snapshot_q <= status_i[w].state;
          stuck_q[w] <= 1'b1;
        end else if (error_clear.stuck) begin
          stuck_q[w] <= 1'b0;
        end
      end
    end
  end

  // ------------------------------------------------------------------------------------------------ errors, interrupt

  assign error_clear = (write_ok && !for_worker && write_machine == RegError) ? write_data[7:0] : '0;

  always_comb begin
    error_set = write ? write_error : '0;
    if (reading_bad) error_set.address = 1'b1;
    if (ring_error != '0) error_set.memory = 1'b1;
    if (bark != '0) error_set.stuck = 1'b1;
    if (active && times_low_i) error_set.times = 1'b1;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      error_q     <= '0;
      interrupt_o <= 1'b0;
    end else begin
      error_q     <= (error_q & ~error_clear) | error_set;
      interrupt_o <= (interrupt_enable_q[1] && error_q != '0) || (interrupt_enable_q[0] && !completions_read);
    end
  end

  always_comb begin
    completions_read = 1'b1;
    for (int unsigned w = 0; w < Workers; w++) begin
      completions_read &= status_i[w].complete_head == complete_tail_q[w];
    end
  end

  // ------------------------------------------------------------------------------------------------------------- reads

  assign arready_o     = ~read_q & (~rvalid_q | rready_i);
  assign reading_bad   = read_q & bad_read;
  assign read_machine  = {read_addr_q[11:2], 2'b00};
  assign read_register = {read_addr_q[7:2], 2'b00};
  assign read_number   = read_addr_q[WorkerShift+:IndexBits];

  always_comb begin
    read_data = '0;
    bad_read  = read_addr_q[12];
    if (read_addr_q[WorkerBit]) begin
      if ({1'b0, read_addr_q[WorkerShift+:4]} >= WorkerCount) bad_read = 1'b1;
      unique case (read_register)
        RegSubmitLow:      read_data = {submit_base_q[read_number][31:3], 3'b0};
        RegSubmitHigh:     read_data = {24'b0, submit_base_q[read_number][39:32]};
        RegSubmitSize:     read_data = {28'b0, submit_size_q[read_number]};
        RegSubmitHead:     read_data = {16'b0, submit_head_q[read_number]};
        RegSubmitTail:     read_data = {16'b0, status_i[read_number].submit_tail};
        RegCompleteLow:    read_data = {complete_base_q[read_number][31:3], 3'b0};
        RegCompleteHigh:   read_data = {24'b0, complete_base_q[read_number][39:32]};
        RegCompleteSize:   read_data = {28'b0, complete_size_q[read_number]};
        RegCompleteHead:   read_data = {16'b0, status_i[read_number].complete_head};
        RegCompleteTail:   read_data = {16'b0, complete_tail_q[read_number]};
        RegUndoLow:        read_data = {undo_base_q[read_number][31:4], 4'b0};
        RegUndoHigh:       read_data = {24'b0, undo_base_q[read_number][39:32]};
        RegTransactions:   read_data = transactions_q[read_number];
        RegDbInstructions: read_data = db_q[read_number];
        RegMemoryWords:    read_data = memory_q[read_number];
        RegConflicts:      read_data = conflicts_q[read_number];
        RegParks:          read_data = parks_q[read_number];
        RegStateLow:       read_data = state_words[read_number][31:0];
        RegStateHigh:      read_data = state_words[read_number][63:32];
        default:           bad_read = 1'b1;
      endcase
    end else begin
      unique case (read_machine)
        RegId:           read_data = Id;
        RegVersion:      read_data = Version;
        RegWorkers:      read_data = 32'(Workers);
        RegContexts:     read_data = 32'(Contexts);
        RegEntries:      read_data = 32'(Entries);
        RegKeyWords:     read_data = 32'(KeyWords);
        RegInstructions: read_data = 32'(Instructions);
        RegProcedures:   read_data = 32'(Procedures);
        RegTables:       read_data = 32'(Tables);
        RegSources:      read_data = 32'(Sources);
        RegGrants:       read_data = 32'(Grants);
        RegRegisters:    read_data = 32'(Registers);
        RegLevels:       read_data = 32'(Levels);
        RegTopology:     read_data = 32'(Topology);
        RegInflight:     read_data = 32'(Inflight);
        RegControl:      read_data = '0;
        RegStatus:       read_data = {22'b0, quiet, idle, 5'b0, state_q};
        RegError:        read_data = {24'b0, error_q};
        RegRefused:      read_data = {18'b0, refused_q};
        RegStuck:        read_data = 32'(stuck_q);
        RegMode:         read_data = {30'b0, mode_q};
        RegMaxInflight:  read_data = {21'b0, max_inflight_q};
        RegMaxRetries:   read_data = {16'b0, max_retries_q};
        RegWatchdog:     read_data = {16'b0, watchdog_q};
        RegUndoBytes:    read_data = {12'b0, undo_bytes_q, 4'b0};
        RegInterrupt:    read_data = {30'b0, interrupt_enable_q};
        RegConfigAddr:   read_data = {16'b0, config_addr_q};
        RegConfigLow:    read_data = config_low_q;
        RegConfigHigh:   read_data = '0;
        RegCyclesLow:    read_data = cycles_q[31:0];
        RegCyclesHigh:   read_data = cycles_high_q;
        default:         bad_read = 1'b1;
      endcase
    end
    if (bad_read) read_data = '0;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      read_q        <= 1'b0;
      read_addr_q   <= '0;
      rvalid_q      <= 1'b0;
      rdata_q       <= '0;
      bad_read_q    <= 1'b0;
      cycles_high_q <= '0;
    end else begin
      if (rready_i) rvalid_q <= 1'b0;
      if (arvalid_i && arready_o) begin
        read_q      <= 1'b1;
        read_addr_q <= araddr_i[RegAddrWidth-1:2];
      end
      if (read_q) begin
        read_q     <= 1'b0;
        rvalid_q   <= 1'b1;
        rdata_q    <= read_data;
        bad_read_q <= bad_read;
        if (!read_addr_q[WorkerBit] && read_machine == RegCyclesLow) cycles_high_q <= cycles_q[63:32];
      end
    end
  end
  assign rvalid_o = rvalid_q;
  assign rdata_o  = rdata_q;
  assign rresp_o  = {bad_read_q, 1'b0};

endmodule
