//! Procedures as an engine keeps them: verified, with access set and executable form, bound to their tables.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockwork_locking::LockMode;
use lockwork_memory::LINE;
use lockwork_procedure::access::{AccessSet, KeyAccess, Operation, Slice, access_set, cover, live};
use lockwork_procedure::interpreter::Program;
use lockwork_procedure::isa::{Instruction, NO_LABEL, Opcode};
use lockwork_procedure::program::Procedure;
use lockwork_procedure::schema::Catalog;
use lockwork_procedure::verified::Verified;
use lockwork_procedure::verify::verify;
use lockwork_storage::{Database, Table};

use crate::contract::{EngineError, MAX_PROCEDURES};
use crate::recipe::Recipe;

/// What a planner wants to know of a procedure at a glance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// Some access writes.
    pub writes: bool,
    /// It inserts, removes or scans: it changes, or depends on, which keys exist.
    pub structural: bool,
    /// It inserts or removes.
    pub changes_keys: bool,
    /// Its access set is not known from the arguments.
    pub dependent: bool,
    /// Exactly one access, known from the arguments, and no scan.
    pub single: bool,
    /// It can be cut into one independent piece for each access, and none of its writes ever has to be taken back.
    pub separable: bool,
}

/// A registered procedure.
#[derive(Debug)]
pub struct Registered {
    /// With the facts that were proved.
    pub verified: Verified,
    /// What its calls touch.
    pub access: AccessSet,
    /// If it is dependent: what is known of its calls all the same.
    pub cover: Option<Slice>,
    /// Where in the code a DB instruction may follow, or is.
    pub live: Vec<bool>,
    /// Its executable form.
    pub program: Program,
    /// The executable form of each fragment, if it is separable.
    pub fragments: Vec<Program>,
    /// Its inner-loop form, if it is straight.
    pub recipe: Option<Recipe>,
    /// Its tables, by slot.
    pub tables: Vec<Arc<Table>>,
    /// How it locks each of its tables as a whole, by slot: shared if it scans it, with intent if it inserts or removes
    /// in a table with ordered keys, exclusively if it does both.
    pub table_modes: Vec<Option<LockMode>>,
    /// Whether some DB instruction has to take effect when it is issued, not when it is awaited: in between, the
    /// procedure writes rows or the block, and may change what the instruction reads.
    pub at_once: bool,
    /// At a glance.
    pub traits: Traits,
    /// No procedure that is registered so far inserts into its tables or removes from them.
    pub steady: AtomicBool,
    /// Bytes of its block.
    pub block_bytes: usize,
    /// Where in the block the arguments end, which follow its header.
    pub arguments_end: usize,
    /// Results, as (offset, length) in the block.
    pub results: (usize, usize),
}

impl Registered {
    /// Verifies `procedure` against the tables of `database` and makes it executable.
    ///
    /// # Errors
    /// What the verifier refuses.
    pub fn of(procedure: Procedure, database: &Database) -> Result<Self, EngineError> {
        let verified = verify(procedure, database)?;
        let access = access_set(&verified);
        let tables: Vec<Arc<Table>> = verified.tables().iter().map(|table| database.table(table.id).clone()).collect();
        let fragments = fragments(&verified, &access);
        let layout = verified.procedure().layout();
        let block_bytes = layout.block_bytes as usize;
        let recipe = match &access {
            AccessSet::Straight(straight) => {
                Some(Recipe::new(straight, &tables, block_bytes.next_multiple_of(LINE), !fragments.is_empty()))
            }
            _ => None,
        };
        Ok(Self {
            program: Program::new(&verified),
            recipe,
            tables,
            table_modes: table_modes(&verified),
            at_once: at_once(&verified),
            traits: traits(&verified, &access, !fragments.is_empty()),
            block_bytes,
            arguments_end: layout.arguments_end as usize,
            results: (layout.results_start as usize, (layout.results_end - layout.results_start) as usize),
            cover: if matches!(access, AccessSet::Dependent(_)) { cover(&verified) } else { None },
            live: live(&verified),
            steady: AtomicBool::new(false),
            verified,
            access,
            fragments,
        })
    }

    /// [`Self::recipe`], by reference.
    #[inline(always)]
    #[must_use]
    pub fn recipe(&self) -> Option<&Recipe> {
        self.recipe.as_ref()
    }

    /// Whether keys of its tables neither come nor go, whatever is called.
    #[inline(always)]
    #[must_use]
    pub fn is_steady(&self) -> bool {
        self.steady.load(Ordering::Relaxed)
    }

    /// Whether its accesses can only be found by running it.
    #[inline(always)]
    #[must_use]
    pub fn needs_reconnaissance(&self) -> bool {
        self.traits.dependent && self.cover.is_none()
    }

    /// The number of the table in `slot`.
    #[inline(always)]
    #[must_use]
    pub fn table_id(&self, slot: u8) -> u16 {
        self.verified.tables()[usize::from(slot)].id
    }

    /// How to look up and, perhaps, execute a straight procedure that is known to be one.
    ///
    /// # Panics
    /// When it is not straight.
    #[inline(always)]
    #[must_use]
    pub fn known(&self) -> &Recipe {
        self.recipe.as_ref().expect("its accesses are known")
    }

    /// Tells `take` of every access that the call in `block` will make: its operation, its table's slot and the hash of
    /// its key (for a scan, of the first). Returns false, and tells of none, if only the database knows them. `keys` is
    /// scratch memory.
    ///
    /// # Safety
    /// `block` is a block of the procedure.
    #[inline(always)]
    pub unsafe fn accesses(
        &self,
        block: *const u8,
        keys: &mut Vec<KeyAccess>,
        mut take: impl FnMut(Operation, u8, u64),
    ) -> bool {
        match &self.access {
            AccessSet::Straight(_) => {
                // SAFETY: as the caller's.
                unsafe { self.known().accesses(block, take) };
                true
            }
            AccessSet::Sliced(slice) => {
                keys.clear();
                // SAFETY: as the caller's.
                slice.collect(unsafe { std::slice::from_raw_parts(block, self.block_bytes) }, keys);
                for access in keys {
                    take(access.operation, access.slot, access.key.hash());
                }
                true
            }
            AccessSet::Dependent(_) => false,
        }
    }
}

/// All procedures of an engine.
#[derive(Debug, Default)]
pub struct Registry {
    procedures: Vec<Arc<Registered>>,
    ids: HashMap<String, u32>,
    scanned: Vec<bool>,
    covered: Vec<bool>,
    written: Vec<bool>,
    changing: Vec<bool>,
    most_accesses: usize,
    widest_windows: (usize, usize),
    changes: u64,
}

impl Registry {
    /// Verifies `procedure` against the tables of `database` and takes it in.
    ///
    /// # Errors
    /// What the verifier refuses, or what [`Self::add`] does; then nothing has changed.
    pub fn register(&mut self, procedure: Procedure, database: &Database) -> Result<u32, EngineError> {
        self.add(Registered::of(procedure, database)?)
    }

    /// Whether [`Self::register`] would take `procedure` if these were the tables, or, with the id of a procedure that
    /// it is to replace, whether [`Self::replace`] would.
    ///
    /// # Errors
    /// As for those.
    pub fn accepts(&self, procedure: &Procedure, tables: &dyn Catalog, old: Option<u32>) -> Result<(), EngineError> {
        verify(procedure.clone(), tables)?;
        self.has_room_for(&procedure.name, old)
    }

    fn has_room_for(&self, name: &str, replaced: Option<u32>) -> Result<(), EngineError> {
        if self.ids.get(name).is_some_and(|&id| Some(id) != replaced) {
            return Err(EngineError::DuplicateProcedure(name.into()));
        }
        match replaced {
            Some(id) if id as usize >= self.procedures.len() => Err(EngineError::UnknownProcedure(id)),
            None if self.procedures.len() >= MAX_PROCEDURES => Err(EngineError::TooManyProcedures(name.into())),
            _ => Ok(()),
        }
    }

    /// Takes a verified procedure in and returns its id. The time that it takes does not grow with their number.
    ///
    /// # Errors
    /// When its name is taken, or there are as many as there may be; then nothing has changed.
    pub fn add(&mut self, registered: Registered) -> Result<u32, EngineError> {
        let name = registered.verified.procedure().name.clone();
        self.has_room_for(&name, None)?;
        let id = self.procedures.len() as u32;
        let registered = Arc::new(registered);
        self.procedures.push(registered.clone());
        self.ids.insert(name, id);
        self.note(&registered);
        Ok(id)
    }

    /// Puts a verified procedure in the place of another one, which is forgotten: blocks with this id call the new one.
    /// What is asked of all procedures ([`Self::is_scanned`] and the like) goes on counting the old one.
    ///
    /// # Errors
    /// When there is no procedure of this id, or another one has the name; then nothing has changed.
    pub fn replace(&mut self, id: u32, registered: Registered) -> Result<(), EngineError> {
        let name = registered.verified.procedure().name.clone();
        self.has_room_for(&name, Some(id))?;
        let registered = Arc::new(registered);
        let old = std::mem::replace(&mut self.procedures[id as usize], registered.clone());
        self.ids.remove(&old.verified.procedure().name);
        self.ids.insert(name, id);
        self.note(&registered);
        Ok(())
    }

    /// Counts a procedure in what is asked of all of them.
    fn note(&mut self, registered: &Registered) {
        let tables = registered.verified.tables();
        for slot in registered.cover.iter().flat_map(Slice::spans) {
            mark(&mut self.covered, tables[usize::from(slot)].id);
        }
        let mut has_new = false;
        for instruction in registered.verified.procedure().code.iter().filter(|i| i.opcode.is_db()) {
            let (table, operation) = (tables[usize::from(instruction.d)].id, Operation::of(instruction.opcode));
            if operation == Operation::Scan {
                mark(&mut self.scanned, table);
            }
            if operation.writes() {
                mark(&mut self.written, table);
            }
            if matches!(operation, Operation::Insert | Operation::Remove) {
                has_new |= !is_marked(&self.changing, table);
                mark(&mut self.changing, table);
            }
        }
        let settle = |registered: &Registered| {
            let tables = registered.verified.tables().iter();
            let steady = !tables.map(|table| table.id).any(|table| is_marked(&self.changing, table));
            registered.steady.store(steady, Ordering::Relaxed);
        };
        settle(registered);
        if has_new {
            // At most once for each table.
            self.procedures.iter().for_each(|registered| settle(registered));
        }
        let (gp, cp) = (registered.program.gp_registers(), registered.program.cp_registers());
        self.widest_windows = (self.widest_windows.0.max(gp), self.widest_windows.1.max(cp));
        self.most_accesses = self.most_accesses.max(registered.recipe.as_ref().map_or(0, Recipe::len));
        self.changes += 1;
    }

    /// How often a procedure was added or replaced: whoever derives something from all of them sees that it is old.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// The procedure of this id.
    #[inline(always)]
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&Arc<Registered>> {
        self.procedures.get(id as usize)
    }

    /// All procedures, in the order of their ids.
    pub fn all(&self) -> impl ExactSizeIterator<Item = &Registered> {
        self.procedures.iter().map(|procedure| &**procedure)
    }

    /// The id of the procedure of this name.
    #[must_use]
    pub fn id(&self, name: &str) -> Option<u32> {
        self.ids.get(name).copied()
    }

    /// Whether any procedure scans table number `table`.
    #[must_use]
    pub fn is_scanned(&self, table: u16) -> bool {
        is_marked(&self.scanned, table)
    }

    /// Whether any procedure writes table number `table`.
    #[must_use]
    pub fn is_written(&self, table: u16) -> bool {
        is_marked(&self.written, table)
    }

    /// Whether the cover of any procedure names ranges of table number `table`.
    #[must_use]
    pub fn is_covered(&self, table: u16) -> bool {
        is_marked(&self.covered, table)
    }

    /// The most accesses of any straight procedure, at least 1.
    #[must_use]
    pub fn most_accesses(&self) -> usize {
        self.most_accesses.max(1)
    }

    /// The widest register windows, general-purpose and coprocessor.
    #[must_use]
    pub fn widest_windows(&self) -> (usize, usize) {
        (self.widest_windows.0.max(1), self.widest_windows.1.max(1))
    }
}

/// Notes a table in a list of flags by number.
fn mark(flags: &mut Vec<bool>, table: u16) {
    let table = usize::from(table);
    flags.resize(flags.len().max(table + 1), false);
    flags[table] = true;
}

fn is_marked(flags: &[bool], table: u16) -> bool {
    flags.get(usize::from(table)).copied().unwrap_or(false)
}

fn table_modes(verified: &Verified) -> Vec<Option<LockMode>> {
    let tables = verified.tables();
    let mut modes: Vec<Option<LockMode>> = vec![None; tables.len()];
    for instruction in verified.procedure().code.iter().filter(|i| i.opcode.is_db()) {
        let table = &tables[usize::from(instruction.d)];
        let mode = match Operation::of(instruction.opcode) {
            Operation::Scan => LockMode::Shared,
            Operation::Insert | Operation::Remove if table.schema.is_ordered() => LockMode::IntentExclusive,
            _ => continue,
        };
        // The same table can stand in two slots.
        for (known, other) in modes.iter_mut().zip(tables).filter(|(_, other)| other.id == table.id) {
            debug_assert_eq!(other.id, table.id);
            *known = Some(known.map_or(mode, |known| known.join(mode)));
        }
    }
    modes
}

/// See [`Registered::at_once`]. Only code that follows an instruction in a straight line is looked at: what jumps
/// before the answer is awaited counts as writing.
fn at_once(verified: &Verified) -> bool {
    let procedure = verified.procedure();
    let (code, arguments) = (&procedure.code, procedure.layout().arguments_end);
    let changes = |at: usize| {
        let issued = &code[at];
        let key = verified.tables()[usize::from(issued.d)].key.image_bytes() as u32;
        let fixed = issued.c == 0 && issued.x + key <= arguments && issued.opcode != Opcode::Scan;
        let awaits = |i: &&Instruction| i.opcode == Opcode::Ret && i.b == issued.a;
        let harmless = |i: &Instruction| match i.opcode {
            Opcode::Mov | Opcode::Movi | Opcode::Cmp | Opcode::Cmpi | Opcode::Check => true,
            Opcode::Add | Opcode::Sub | Opcode::Mul | Opcode::Div | Opcode::Load | Opcode::Loadr => true,
            Opcode::Addi | Opcode::Subi | Opcode::Muli | Opcode::Divi => true,
            Opcode::Ret => i.x == NO_LABEL,
            opcode => opcode.is_db() && opcode != Opcode::Scan,
        };
        let between = code[at + 1..].iter().take_while(|i| !awaits(i));
        !fixed && !between.into_iter().all(harmless)
    };
    (0..code.len()).filter(|&at| code[at].opcode.is_db()).any(changes)
}

fn traits(verified: &Verified, access: &AccessSet, separable: bool) -> Traits {
    let procedure = verified.procedure();
    let operations = || procedure.code.iter().filter(|i| i.opcode.is_db()).map(|i| Operation::of(i.opcode));
    let structural = |o: Operation| matches!(o, Operation::Insert | Operation::Remove | Operation::Scan);
    let single = match access {
        AccessSet::Straight(straight) => {
            straight.accesses.len() == 1 && straight.accesses[0].operation != Operation::Scan
        }
        _ => false,
    };
    Traits {
        writes: operations().any(Operation::writes),
        structural: operations().any(structural),
        changes_keys: operations().any(|o| structural(o) && o != Operation::Scan),
        dependent: matches!(access, AccessSet::Dependent(_)),
        single,
        separable,
    }
}

/// The fragments of a separable procedure, executable. None when a write might have to be taken back: a fragment
/// runs as soon as its planner lets it go, before the others are known to have run.
fn fragments(verified: &Verified, access: &AccessSet) -> Vec<Program> {
    let AccessSet::Straight(straight) = access else { return Vec::new() };
    let Some(fragments) = &straight.fragments else { return Vec::new() };
    if verified.facts().iter().any(|facts| facts.needs_undo) {
        return Vec::new();
    }
    fragments.iter().map(|fragment| Program::of_fragment(fragment, verified)).collect()
}
