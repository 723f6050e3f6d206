//! One procedure as a function in OpenCL C.
//!
//! Every instruction becomes a statement or two; a GP register becomes a variable, a CP register a handle and a code.
//! Jumps become `goto`: verified procedures have only forward jumps and nested counting loops that are entered at the
//! head, so the flow is reducible, as devices want it.
//!
//! Arguments are read once, line by line, into private memory (`a0`, `a1`, ...; HOBBES, section 3.3.1); a load or a
//! field copy at a constant place then takes its bytes from there. Results are written where they belong, once.

use std::fmt::Write;

use lockwork_engine::registry::Registered;
use lockwork_locking::LockMode;
use lockwork_procedure::access::{AccessSet, Operation};
use lockwork_procedure::isa::{Instruction, NO_LABEL, Opcode, SIGNED, scan_source, scan_stride};
use lockwork_procedure::key::KeyFormat;
use lockwork_procedure::program::Layout;

use super::bounds::{Bounds, written};

/// Longer arguments are read where they are needed.
const MAX_ARGUMENT_BYTES: u32 = 512;
const LINE: u32 = 64;

/// The section that an instruction stands in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Logic,
    CommitHandler,
    AbortHandler,
}

pub(super) struct Translator<'a> {
    pub(super) id: u32,
    pub(super) registered: &'a Registered,
    /// Rows that are looked up ahead, at most.
    pub(super) hints: usize,
    /// How it locks tables, by table number.
    pub(super) table_modes: &'a [(u16, LockMode)],
    lines: Vec<u32>,
    layout: Layout,
}

impl<'a> Translator<'a> {
    pub(super) fn new(id: u32, registered: &'a Registered, hints: usize, table_modes: &'a [(u16, LockMode)]) -> Self {
        let layout = registered.verified.procedure().layout();
        Self { id, registered, hints, table_modes, lines: Vec::new(), layout }
    }

    fn code(&self) -> &'a [Instruction] {
        &self.registered.verified.procedure().code
    }

    fn table(&self, slot: u8) -> u16 {
        self.registered.verified.tables()[usize::from(slot)].id
    }

    /// Appends the function `lw_procedure_N`.
    pub(super) fn emit(mut self, out: &mut String) {
        let procedure = self.registered.verified.procedure();
        let mut body = String::new();
        let (commit, abort) = (procedure.commit_handler as usize, procedure.abort_handler as usize);
        self.section(&mut body, 0..commit, Section::Logic);
        let mut on_commit = String::new();
        self.section(&mut on_commit, commit..abort, Section::CommitHandler);
        let mut on_abort = String::new();
        self.section(&mut on_abort, abort..self.code().len(), Section::AbortHandler);

        let (id, bounds) = (self.id, Bounds::of(self.registered));
        let _ = writeln!(
            out,
            "\n/* ---- procedure {id}: {} ---- */\n\nstatic inline uint lw_procedure_{id}(\n    LW_HEAP, lw_address block, \
             const ulong *hints, uint *stamp, struct lw_spare *spare)\n{{",
            procedure.name
        );
        self.declarations(out, &bounds);
        for (held, (table, mode)) in self.table_modes.iter().enumerate() {
            let mode = mode.bits();
            let _ = writeln!(out, "    LW_LOCK_TABLE({table}, {mode}, {held})");
        }
        out.push_str(&body);
        self.endings(out, &bounds, &on_commit, &on_abort);
    }

    fn declarations(&self, out: &mut String, bounds: &Bounds) {
        let verified = &self.registered.verified;
        if verified.gp_registers() > 1 {
            let registers: Vec<String> = (1..verified.gp_registers()).map(|r| format!("r{r} = 0")).collect();
            let _ = writeln!(out, "    long {};", registers.join(", "));
        }
        for cp in 0..verified.cp_registers() {
            let _ = writeln!(out, "    ulong v{cp} = 0; uint s{cp} = 0;");
        }
        let _ = writeln!(out, "    int flag = 0; uint code = 0;");
        for (count, what) in [(bounds.undo_words, "undo"), (bounds.inserts, "inserted"), (bounds.removes, "removed")] {
            if count > 0 {
                let _ = writeln!(out, "    ulong {what}[{count}]; uint {what}_count = 0;");
            }
        }
        let _ = writeln!(out, "    LW_BEGIN({})", bounds.locks.max(1));
        for line in &self.lines {
            let _ = writeln!(out, "    const ulong8 a{line} = ((const __global lw_ulong8 *)block)[{line}];");
        }
    }

    /// What happens after the logic, for each way in which it can end.
    fn endings(&self, out: &mut String, bounds: &Bounds, on_commit: &str, on_abort: &str) {
        let layout = &self.layout;
        let (start, end, block) = (layout.results_start, layout.results_end, layout.block_bytes);
        let _ = writeln!(out, "committed:;");
        if bounds.removes > 0 {
            let _ = writeln!(out, "    for (uint i = 0; i < removed_count; i++)");
            let _ = writeln!(out, "        lw_remove(heap, tables, removed[i], 0);");
        }
        self.let_go(out, true);
        let _ = write!(out, "{on_commit}handled_commit:;\n    return LW_OUTCOME(LW_COMMITTED, 0);\n");
        let _ = writeln!(out, "failed:;\n    code |= 0x10000u;\naborted:;");
        take_back(out, bounds, "0");
        self.let_go(out, true);
        let _ = writeln!(out, "    lw_zero(block + {start}, {});", end - start);
        let _ = writeln!(out, "{on_abort}handled_abort:;");
        let _ = writeln!(out, "    return LW_OUTCOME(code > 0xFFFFu ? LW_FAILED : LW_ABORTED, code & 0xFFFFu);");
        let _ = writeln!(out, "#ifdef LW_TWO_PHASE\nconflict:;");
        take_back(out, bounds, "spare");
        self.let_go(out, false);
        let _ = writeln!(out, "    lw_zero(block + {start}, {});", block - start);
        let _ = writeln!(out, "    return LW_OUTCOME(LW_CONFLICT, 0);\n#endif\n}}");
    }

    /// Gives all locks back, after leaving the transaction's stamp in them if it counts.
    fn let_go(&self, out: &mut String, counts: bool) {
        let _ = writeln!(out, "#ifdef LW_TWO_PHASE");
        if counts {
            let _ = writeln!(out, "    *stamp += 1;");
        }
        let _ = writeln!(out, "    lw_let_go(heap, held, held_count, {counts} ? *stamp : 0);");
        for (position, (table, mode)) in self.table_modes.iter().enumerate() {
            let mode = mode.bits();
            let _ = writeln!(out, "    if (tables_held > {position})");
            let _ = writeln!(out, "        lw_let_go_of_table(heap, tables, {table}, {mode}, {counts} ? *stamp : 0);");
        }
        let _ = writeln!(out, "#endif");
    }

    fn section(&mut self, out: &mut String, range: std::ops::Range<usize>, section: Section) {
        let code = self.code();
        let targets: Vec<u32> = code.iter().filter_map(target).collect();
        let mut hint = 0;
        for at in range {
            if targets.contains(&(at as u32)) {
                let _ = writeln!(out, "L{at}:;");
            }
            let instruction = &code[at];
            if self.registered.verified.facts()[at].reachable {
                self.instruction(out, at, instruction, section, hint);
            }
            hint += usize::from(instruction.opcode.is_db() && self.registered.verified.facts()[at].reachable);
        }
    }

    fn instruction(&mut self, out: &mut String, at: usize, i: &Instruction, section: Section, hint: usize) {
        let (a, b, c) = (register(i.a), register(i.b), register(i.c));
        let immediate = constant(i.immediate());
        let line = match i.opcode {
            Opcode::Mov => format!("{a} = {b};"),
            Opcode::Movi => format!("{a} = {immediate};"),
            Opcode::Add => checked("add", i, &c),
            Opcode::Sub => checked("sub", i, &c),
            Opcode::Mul => checked("mul", i, &c),
            Opcode::Addi => checked("add", i, &immediate),
            Opcode::Subi => checked("sub", i, &immediate),
            Opcode::Muli => checked("mul", i, &immediate),
            Opcode::Div => divide(i, &c),
            Opcode::Divi => divide(i, &immediate),
            Opcode::Cmp => format!("flag = LW_COMPARE({b}, {c});"),
            Opcode::Cmpi => format!("flag = LW_COMPARE({b}, {immediate});"),
            Opcode::Check => abort_unless(&format!("{b} >= 0 && {b} < {immediate}"), "LW_OUT_OF_RANGE"),
            Opcode::Load => format!("{a} = {};", self.load_block(i)),
            Opcode::Store => {
                let fits = fits(i.w, &a).map(|fits| abort_unless(&fits, "LW_VALUE_TOO_WIDE")).unwrap_or_default();
                format!("{fits} {}", store(&block_at(i.x, i.c), i.x, i.c, i.w, &a))
            }
            Opcode::Loadr => {
                let loaded = load(&row_at(i.b, i.x, i.c), i.x, i.c, i.w);
                format!("{a} = {loaded};")
            }
            Opcode::Storer => {
                let fits = fits(i.w, &a).map(|fits| abort_unless(&fits, "LW_VALUE_TOO_WIDE")).unwrap_or_default();
                let keep = self.keep(at, i.x, i.c);
                format!("{fits} {keep} {}", store(&row_at(i.b, i.x, i.c), i.x, i.c, i.w, &a))
            }
            Opcode::CopyBb => copy(&block_at(i.x, i.d), &block_at(i.y, i.e), i, true),
            Opcode::CopyBr => copy(&block_at(i.x, i.d), &row_at(i.c, i.y, i.e), i, false),
            Opcode::CopyRb => {
                let keep = self.keep(at, i.x, i.d);
                format!("{keep} {}", self.copy_from_block(i))
            }
            Opcode::CopyRr => {
                let keep = self.keep(at, i.x, i.d);
                format!("{keep} {}", copy(&row_at(i.b, i.x, i.d), &row_at(i.c, i.y, i.e), i, true))
            }
            Opcode::Jmp => format!("goto L{};", i.x),
            Opcode::Be => format!("if (flag == 0) goto L{};", i.x),
            Opcode::Bne => format!("if (flag != 0) goto L{};", i.x),
            Opcode::Bl => format!("if (flag < 0) goto L{};", i.x),
            Opcode::Ble => format!("if (flag <= 0) goto L{};", i.x),
            Opcode::Bg => format!("if (flag > 0) goto L{};", i.x),
            Opcode::Bge => format!("if (flag >= 0) goto L{};", i.x),
            Opcode::Search | Opcode::Update | Opcode::Insert | Opcode::Remove => self.access(i, hint),
            Opcode::Scan => self.scan(i),
            Opcode::Ret => answer(i),
            Opcode::Commit => match section {
                Section::Logic => "goto committed;".into(),
                Section::CommitHandler => "goto handled_commit;".into(),
                Section::AbortHandler => "goto handled_abort;".into(),
            },
            Opcode::Abort => format!("{{ code = {}; goto aborted; }}", i.w),
            _ => unreachable!("all opcodes are translated"),
        };
        let _ = writeln!(out, "    {line}");
    }

    /// The private copy of an argument word, if `width` bytes at `offset` lie in one.
    fn argument_word(&mut self, offset: u32, width: u32) -> Option<(String, u32)> {
        let private = self.layout.arguments_end <= MAX_ARGUMENT_BYTES;
        if !private || offset + width > self.layout.arguments_end || offset % 8 + width > 8 {
            return None;
        }
        let line = self.argument_line(offset / LINE);
        Some((format!("{line}.s{}", offset % LINE / 8), offset % 8 * 8))
    }

    fn argument_line(&mut self, line: u32) -> String {
        if !self.lines.contains(&line) {
            self.lines.push(line);
        }
        format!("a{line}")
    }

    fn load_block(&mut self, i: &Instruction) -> String {
        let width = u32::from(i.w & !SIGNED);
        if i.c == 0
            && let Some((word, shift)) = self.argument_word(i.x, width)
        {
            let bits = if shift == 0 { word } else { format!("({word} >> {shift})") };
            return format!("(long)({})({bits})", integer_type(i.w));
        }
        load(&block_at(i.x, i.c), i.x, i.c, i.w)
    }

    /// COPYRB: a field of one line whose bytes are one line of the arguments is stored from private memory.
    fn copy_from_block(&mut self, i: &Instruction) -> String {
        let line = i.d == 0 && i.e == 0 && i.w == 64 && i.x.is_multiple_of(LINE) && i.y.is_multiple_of(LINE);
        if line && i.y + LINE <= self.layout.arguments_end && self.layout.arguments_end <= MAX_ARGUMENT_BYTES {
            let line = self.argument_line(i.y / LINE);
            return format!("*(__global lw_ulong8 *)({}) = {line};", row_at(i.b, i.x, i.d));
        }
        copy(&row_at(i.b, i.x, i.d), &block_at(i.y, i.e), i, false)
    }

    fn keep(&self, at: usize, offset: u32, index: u8) -> String {
        if !self.registered.verified.facts()[at].needs_undo {
            return String::new();
        }
        let instruction = &self.code()[at];
        let (row, length) = (register(instruction.b), written(instruction));
        format!("lw_keep(heap, undo, &undo_count, (ulong){row} + {offset} + {}, {length});", register(index))
    }

    /// The normal form of a key in the block.
    fn key(&mut self, slot: u8, offset: u32, index: u8) -> String {
        let table = self.table(slot);
        if index == 0
            && KeyFormat::of(&self.registered.verified.tables()[usize::from(slot)].schema).is_one_integer()
            && let Some((word, 0)) = self.argument_word(offset, 8)
        {
            return format!("(ulong4)({word} ^ 0x8000000000000000UL, 0, 0, 0)");
        }
        let aligned = index == 0 && offset.is_multiple_of(8);
        format!("lw_key_{table}({}, {aligned})", block_at(offset, index))
    }

    fn access(&mut self, i: &Instruction, hint: usize) -> String {
        let (table, cp) = (self.table(i.d), i.a);
        let key = self.key(i.d, i.x, i.c);
        let operation = Operation::of(i.opcode);
        let exclusive = operation.writes();
        let lock = format!("LW_LOCK({table}, lw_hash(key), {exclusive})");
        let looked_up = hint < self.hints && matches!(self.registered.access, AccessSet::Straight(_));
        let found = format!("lw_find_{table}(heap, tables, lw_hash(key), key)");
        let find = if looked_up { format!("LW_HINT({hint}) != 0 ? LW_HINT({hint}) : {found}") } else { found };
        let work = match operation {
            Operation::Insert => format!(
                "s{cp} = lw_insert_{table}(heap, tables, lw_hash(key), key, {}, &v{cp}, spare); \
                 if (s{cp} == 0) inserted[inserted_count++] = v{cp} << 16 | {table};",
                block_at(i.x, i.c)
            ),
            Operation::Remove => format!(
                "const ulong row = {find}; v{cp} = 0; s{cp} = row != 0 ? 0 : LW_NOT_FOUND; \
                 if (row != 0) removed[removed_count++] = row << 16 | {table};"
            ),
            _ => format!("v{cp} = {find}; s{cp} = v{cp} != 0 ? 0 : LW_NOT_FOUND;"),
        };
        format!("{{ const ulong4 key = {key}; {lock} {work} }}")
    }

    fn scan(&mut self, i: &Instruction) -> String {
        let (table, cp) = (self.table(i.d), i.a);
        let key = self.key(i.d, i.x, i.c);
        let schema = &self.registered.verified.tables()[usize::from(i.d)].schema;
        let column = usize::from(i.e).checked_sub(1);
        let (from, length) = scan_source(schema, column);
        let (step, stride) = (scan_stride(schema, column), schema.stride());
        let limit = if i.b == 0 { i.w.to_string() } else { format!("(uint){}", register(i.b)) };
        format!(
            "{{ uint before[LW_LEVELS]; uint entry = lw_before_{table}(heap, tables, {key}, before);
      const uint limit = {limit}; lw_address to = block + {}; v{cp} = 0; s{cp} = 0;
      for (; entry != 0 && v{cp} < limit; v{cp}++, to += {step}) {{
          lw_move(to, heap + tables[{table}].rows + (ulong)(entry - 1) * {stride} + {from}, {length});
          entry = lw_links(heap, tables, {table}, entry)[0];
      }} }}",
            i.y
        )
    }
}

/// Puts the database back as it was; row numbers go to `spare`.
fn take_back(out: &mut String, bounds: &Bounds, spare: &str) {
    if bounds.undo_words > 0 {
        let _ = writeln!(out, "    lw_roll_back(heap, undo, &undo_count);");
    }
    if bounds.inserts > 0 {
        let _ = writeln!(out, "    while (inserted_count > 0)");
        let _ = writeln!(out, "        lw_remove(heap, tables, inserted[--inserted_count], {spare});");
    }
}

/// Where an instruction may jump to.
fn target(i: &Instruction) -> Option<u32> {
    match i.opcode {
        Opcode::Jmp => Some(i.x),
        Opcode::Ret => (i.x != NO_LABEL).then_some(i.x),
        opcode => opcode.is_branch().then_some(i.x),
    }
}

fn register(number: u8) -> String {
    if number == 0 { "0L".into() } else { format!("r{number}") }
}

/// The smallest integer has no literal of its own.
fn constant(value: i64) -> String {
    if value == i64::MIN { format!("(-{}L - 1)", i64::MAX) } else { format!("({value}L)") }
}

fn block_at(offset: u32, index: u8) -> String {
    if index == 0 { format!("block + {offset}") } else { format!("block + ({offset}L + r{index})") }
}

fn row_at(handle: u8, offset: u32, index: u8) -> String {
    let handle = register(handle);
    if index == 0 {
        format!("heap + (ulong){handle} + {offset}")
    } else {
        format!("heap + (ulong){handle} + ({offset}L + r{index})")
    }
}

fn abort_unless(condition: &str, code: &str) -> String {
    format!("if (!({condition})) {{ code = {code}; goto aborted; }}")
}

/// Arithmetic goes through a variable of its own: an operation that leaves the range changes no register.
fn checked(operation: &str, i: &Instruction, right: &str) -> String {
    let (a, b) = (register(i.a), register(i.b));
    let fits = format!("lw_{operation}({b}, {right}, &result)");
    format!("{{ long result; {} {a} = result; }}", abort_unless(&fits, "LW_OVERFLOW"))
}

fn divide(i: &Instruction, right: &str) -> String {
    let (a, b) = (register(i.a), register(i.b));
    let zero = abort_unless(&format!("{right} != 0"), "LW_DIVISION_BY_ZERO");
    let fits = abort_unless(&format!("!({right} == -1 && {b} == {})", constant(i64::MIN)), "LW_OVERFLOW");
    format!("{zero} {fits} {a} = {b} / {right};")
}

/// The type of an integer of width and sign `w`.
pub(super) fn integer_type(w: u16) -> &'static str {
    match (w & !SIGNED, w & SIGNED != 0) {
        (1, false) => "uchar",
        (1, true) => "char",
        (2, false) => "ushort",
        (2, true) => "short",
        (4, false) => "uint",
        (4, true) => "int",
        _ => "long",
    }
}

/// Whether a value fits width and sign, as a condition; `None`: always.
fn fits(w: u16, value: &str) -> Option<String> {
    match (w & !SIGNED, w & SIGNED != 0) {
        (8, _) => None,
        (width, false) => Some(format!("(ulong){value} <= {}UL", (1_u64 << (8 * width)) - 1)),
        (_, true) => Some(format!("{value} == (long)({}){value}", integer_type(w))),
    }
}

fn load(address: &str, offset: u32, index: u8, w: u16) -> String {
    let width = u32::from(w & !SIGNED);
    let value = match (index, offset.is_multiple_of(width)) {
        (0, true) => return format!("(long)*(const __global lw_{} *)({address})", integer_type(w)),
        (0, false) => format!("lw_bytes({address}, {width})"),
        _ => format!("lw_load({address}, {width})"),
    };
    format!("(long)({}){value}", integer_type(w))
}

fn store(address: &str, offset: u32, index: u8, w: u16, value: &str) -> String {
    let width = u32::from(w & !SIGNED);
    match (index, offset.is_multiple_of(width)) {
        (0, true) => format!("*(__global lw_{0} *)({address}) = ({0}){value};", integer_type(w & !SIGNED)),
        (0, false) => format!("lw_put_bytes({address}, {width}, (ulong){value});"),
        _ => format!("lw_store({address}, {width}, (ulong){value});"),
    }
}

/// A copy of `i.w` bytes; `same` says that both ends lie in memory of one kind, and may overlap.
fn copy(to: &str, from: &str, i: &Instruction, same: bool) -> String {
    let length = u32::from(i.w);
    let constant = i.d == 0 && i.e == 0;
    let apart = i.x.abs_diff(i.y) >= length || i.x == i.y;
    if !constant || same && !apart {
        return format!("lw_move({to}, {from}, {length});");
    }
    let alignment = (i.x | i.y | 64) & (i.x | i.y | 64).wrapping_neg();
    let mut pieces = String::new();
    let lines = if alignment == LINE { length / LINE } else { 0 };
    if lines > 0 {
        let _ = write!(pieces, "lw_copy_lines({to}, {from}, {lines}); ");
    }
    let mut done = lines * LINE;
    let words = if alignment >= 8 { (length - done) / 8 } else { 0 };
    if words > 0 {
        let _ = write!(pieces, "lw_copy_words({to} + {done}, {from} + {done}, {words}); ");
        done += words * 8;
    }
    if done < length {
        let _ = write!(pieces, "lw_copy_bytes({to} + {done}, {from} + {done}, {});", length - done);
    }
    pieces
}

fn answer(i: &Instruction) -> String {
    let cp = i.b;
    let missing =
        if i.x == NO_LABEL { format!("{{ code = s{cp}; goto aborted; }}") } else { format!("goto L{};", i.x) };
    let take = if i.a == 0 { String::new() } else { format!(" r{} = (long)v{cp};", i.a) };
    format!("if (s{cp} == LW_OUT_OF_MEMORY) {{ code = s{cp}; goto failed; }} if (s{cp} != 0) {missing}{take}")
}
