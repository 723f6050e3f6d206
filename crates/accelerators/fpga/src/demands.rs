//! What a call of a procedure may ask of the card, at most: bounds that follow from its code.

use lockwork_procedure::access::overwrites;
use lockwork_procedure::isa::{Instruction, Opcode, SIGNED};
use lockwork_procedure::verified::Verified;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demands {
    /// Grants that it may hold.
    pub grants: u64,
    /// Bytes of its undo log.
    pub undo_bytes: u64,
    /// Rows that it may insert, by table; a table can stand there more than once.
    pub inserts: Vec<(u16, u64)>,
}

/// Bytes of an entry of the undo log.
const UNDO_ENTRY: u64 = 16;

impl Demands {
    /// Those of a procedure.
    #[must_use]
    pub fn of(verified: &Verified) -> Self {
        let mut demands = Self::default();
        let overwrites = overwrites(verified);
        for (at, instruction) in verified.procedure().code.iter().enumerate() {
            let times = times(verified, at);
            if instruction.opcode.is_db() {
                demands.grants = demands.grants.saturating_add(times);
            }
            if instruction.opcode == Opcode::Insert {
                demands.inserts.push((verified.tables()[usize::from(instruction.d)].id, times));
            }
            if overwrites[at] {
                let words = words_touched(instruction);
                demands.undo_bytes = demands.undo_bytes.saturating_add(times.saturating_mul(words * UNDO_ENTRY));
            }
        }
        demands
    }
}

/// How often a call can execute the instruction at `at`, at most.
fn times(verified: &Verified, at: usize) -> u64 {
    let around = verified.loops().iter().filter(|found| (found.head..=found.back).contains(&(at as u32)));
    around.fold(1, |times, found| times.saturating_mul(found.bound))
}

/// How many words of a row an instruction writes at most, wherever they begin.
fn words_touched(instruction: &Instruction) -> u64 {
    let bytes = match instruction.opcode {
        Opcode::Storer => instruction.w & !SIGNED,
        _ => instruction.w,
    };
    u64::from(bytes).div_ceil(8) + 1
}

/// Whether all keys of table `id` begin where a word of the block begins, so far as the code of a procedure tells.
#[must_use]
pub fn keys_are_aligned(verified: &Verified, id: u16) -> bool {
    let multiples = multiples_of_eight(&verified.procedure().code);
    let is_of = |i: &&Instruction| i.opcode.is_db() && verified.tables()[usize::from(i.d)].id == id;
    verified.procedure().code.iter().filter(is_of).all(|i| i.x % 8 == 0 && multiples[usize::from(i.c)])
}

/// Which registers hold nothing but multiples of eight, whatever way control takes: those that are written only by what
/// makes one of others.
fn multiples_of_eight(code: &[Instruction]) -> [bool; 256] {
    let mut multiples = [true; 256];
    loop {
        let before = multiples;
        for i in code {
            let is = |register: u8| before[usize::from(register)];
            let constant = i.immediate() % 8 == 0;
            let makes_one = match i.opcode {
                Opcode::Mov => is(i.b),
                Opcode::Movi => constant,
                Opcode::Add | Opcode::Sub => is(i.b) && is(i.c),
                Opcode::Mul => is(i.b) || is(i.c),
                Opcode::Addi | Opcode::Subi => is(i.b) && constant,
                Opcode::Muli => is(i.b) || constant,
                Opcode::Div | Opcode::Divi | Opcode::Load | Opcode::Loadr => false,
                // An answer is a row's address, a number of rows, or zero.
                Opcode::Ret => i.a == 0,
                _ => continue,
            };
            multiples[usize::from(i.a)] &= makes_one;
        }
        // r0 cannot be written.
        multiples[0] = true;
        if multiples == before {
            return multiples;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockwork_procedure::assembly::assemble;
    use lockwork_procedure::schema::{ColumnType, TableSchema};
    use lockwork_procedure::verify::verify;

    fn verified(source: &str) -> Verified {
        let columns = [("id", ColumnType::I64), ("v", ColumnType::I64), ("text", ColumnType::Bytes(20))];
        let catalog = [TableSchema::new("t", &columns, 1, true).unwrap()];
        let source = format!("procedure p\ntable t\n{source}");
        verify(assemble(&source, catalog.as_slice()).unwrap().procedure, catalog.as_slice()).unwrap()
    }

    #[test]
    fn loops_multiply_what_a_call_may_ask_for() {
        let verified = verified(
            "param ids: i64[5]\nparam text: bytes(20)\nmov r2, 0\nagain:\nmul r3, r2, 8\ninsert c0, t, [ids + r3]\nret r1, c0
             copy r1[t.text], [text]\nupdate c1, t, [ids + r3]\nret r4, c1\ncopy r4[t.text], [text]\nadd r2, r2, 1\ncmp r2, 5\nbl again\nupdate c0, t, [ids]\nret r1, c0\ncommit",
        );
        let demands = Demands::of(&verified);
        assert_eq!((demands.grants, &demands.inserts[..]), (11, &[(0, 5)][..]));
        // The rows that it inserts are taken away, whatever is in them.
        assert_eq!(demands.undo_bytes, 5 * 16 * 4);
        assert!(keys_are_aligned(&verified, 0));
    }

    #[test]
    fn a_key_at_any_byte_is_not_aligned() {
        let with = |index: &str| {
            verified(&format!(
                "param ids: i64[5]\nparam at: u8\nload r1, [at]\ncheck r1, 5\n{index}\nret r2, c0\ncommit"
            ))
        };
        assert!(keys_are_aligned(&with("mul r3, r1, 8\nsearch c0, t, [ids + r3]"), 0));
        assert!(keys_are_aligned(&with("mul r3, r1, 16\ndiv r4, r3, 3\nsearch c0, t, [ids]"), 0));
        assert!(!keys_are_aligned(&with("mul r3, r1, 4\nsearch c0, t, [ids + r3]"), 0));
        assert!(!keys_are_aligned(&with("mul r3, r1, 8\nadd r3, r3, 1\nsub r3, r3, 1\nsearch c0, t, [ids + r3]"), 0));
    }
}
