//! The instruction set and its binary encoding.
//!
//! Source: BionicDB, Table 2 (section 4.3), completed. An instruction is one 16-byte word, little-endian, with every
//! field at one place, so that hardware reads and decodes it in a cycle:
//!
//! ```text
//! byte   0   opcode           (the numbers of [`Opcode`])
//! byte   1   a                GP register, or CP register of a DB instruction
//! byte   2   b                GP register
//! byte   3   c                GP register
//! byte   4   d                GP register, or table slot of a DB instruction
//! byte   5   e                GP register, or column of SCAN
//! bytes  6-7 w                width or count
//! bytes  8-11 x               offset, branch target
//! bytes 12-15 y               offset;   x and y together are the 64-bit immediate, x its low half
//! ```
//!
//! A field that an instruction does not use is zero; the decoder refuses anything else, so that equal programs are
//! equal bytes and unused fields stay free for later.
//!
//! **Registers.** 256 general-purpose registers of 64 bits hold integers and row handles; 256 coprocessor registers
//! hold the answers of DB instructions. A procedure uses the first few of each, and the executor moves that window
//! (BionicDB 4.5). `r0` always reads zero and cannot be written; an index register of `r0` means "no index".
//!
//! **Addresses.** A block address is `x + r[index]` from the start of the block, a row address from the start of the
//! row ([`crate::schema`]). The verifier proves every address inside its bounds; nothing is checked at run time.
//!
//! | instruction | fields | what it does |
//! |---|---|---|
//! | MOV     | a ← b              | copies a register |
//! | MOVI    | a ← x:y            | loads a constant |
//! | ADD SUB MUL DIV | a ← b op c | 64-bit signed; leaving the range aborts ([`abort::OVERFLOW`](crate::block::abort)), division by zero too; division truncates |
//! | ADDI SUBI MULI DIVI | a ← b op x:y | as above, with a constant |
//! | CMP, CMPI | b with c, or with x:y | sets the comparison flag: less, equal, greater |
//! | CHECK   | 0 ≤ b < x:y        | goes on if so, else aborts with `OUT_OF_RANGE` (array bounds, constraints) |
//! | LOAD    | a ← block\[x + r\[c\]\], w bytes | w is 1, 2, 4, 8; [`SIGNED`] set in w extends the sign |
//! | STORE   | block\[x + r\[c\]\] ← a, w bytes | aborts with `VALUE_TOO_WIDE` if the value does not fit w (with `SIGNED`: as signed) |
//! | LOADR   | a ← row b\[x + r\[c\]\], w bytes | as LOAD, from the row whose handle is in b |
//! | STORER  | row b\[x + r\[c\]\] ← a, w bytes | as STORE, into a row held for writing |
//! | COPYBB  | block\[x + r\[d\]\] ← block\[y + r\[e\]\], w bytes | |
//! | COPYBR  | block\[x + r\[d\]\] ← row c\[y + r\[e\]\], w bytes | |
//! | COPYRB  | row b\[x + r\[d\]\] ← block\[y + r\[e\]\], w bytes | |
//! | COPYRR  | row b\[x + r\[d\]\] ← row c\[y + r\[e\]\], w bytes | |
//! | JMP     | to x               | |
//! | BE BNE BL BLE BG BGE | to x  | branches on the comparison flag |
//! | SEARCH  | CP a, slot d, key at block\[x + r\[c\]\] | starts a look-up to read |
//! | UPDATE  | CP a, slot d, key at block\[x + r\[c\]\] | starts a look-up to write |
//! | INSERT  | CP a, slot d, key at block\[x + r\[c\]\] | starts an insert; the new row's values are zero until written |
//! | REMOVE  | CP a, slot d, key at block\[x + r\[c\]\] | starts a removal, which takes effect at commit |
//! | SCAN    | CP a, slot d, first key at block\[x + r\[c\]\], at most w rows (r\[b\] if b is not r0, which must be ≤ w), column e-1 (e = 0: all) to block\[y..\] | starts a scan in ascending key order |
//! | RET     | a ← CP b, else to x | waits for CP b. On success a is the row's handle (SEARCH, UPDATE, INSERT), the number of rows (SCAN) or zero (REMOVE). If there was no row (or, for INSERT, there was one): branches to x, or aborts if x is [`NO_LABEL`] |
//! | COMMIT  |                    | ends the logic, or a handler |
//! | ABORT   | code w             | ends the logic; takes everything back |
//!
//! A SCAN writes its rows one after the other, each the bytes of the column, or, for all columns, the row from
//! offset 16 to its end; from one to the next is that length rounded up to 8 ([`scan_stride`]).
//!
//! **Handlers.** COMMIT hands over to the commit handler, ABORT (and every abort that the system decides) to the abort
//! handler, after the database has been put back. A handler may use CPU instructions on the block only and ends with
//! COMMIT; it cannot change the outcome. In BionicDB handlers were written by hand and carried the concurrency control;
//! here that part belongs to the engine, because one procedure runs on engines with different concurrency control.

use crate::schema::{ROW_HEADER_BYTES, TableSchema};

/// Bytes of an instruction word.
pub const INSTRUCTION_BYTES: usize = 16;
/// The most instructions a procedure may have.
pub const MAX_INSTRUCTIONS: usize = 65_536;
/// The branch target of a RET that aborts when there is no row.
pub const NO_LABEL: u32 = u32::MAX;
/// In `w` of loads and stores: the value has a sign.
pub const SIGNED: u16 = 0x8000;

/// Bytes from one row to the next in the result of a SCAN over `column` (`None`: the whole row).
#[must_use]
pub fn scan_stride(schema: &TableSchema, column: Option<usize>) -> u32 {
    scan_source(schema, column).1.next_multiple_of(8)
}

/// Which bytes of each row a SCAN over `column` (`None`: the whole row) delivers: offset in the row, and length.
#[must_use]
pub fn scan_source(schema: &TableSchema, column: Option<usize>) -> (u32, u32) {
    match column {
        None => (ROW_HEADER_BYTES, schema.row_bytes() - ROW_HEADER_BYTES),
        Some(column) => {
            let column = &schema.columns()[column];
            (column.offset, column.column_type.width())
        }
    }
}

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        /// What an instruction does; see the module for the fields that each uses.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum Opcode { $($(#[$doc])* $name = $number,)* }

        impl Opcode {
            /// All opcodes, in order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The opcode of a byte.
            #[must_use]
            pub const fn from_byte(byte: u8) -> Option<Self> {
                match byte { $($number => Some(Self::$name),)* _ => None }
            }

            /// Its mnemonic, in lower case.
            #[must_use]
            pub const fn mnemonic(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

opcodes! {
    /// a ← b.
    Mov = 0x01, "mov";
    /// a ← constant.
    Movi = 0x02, "movi";
    /// a ← b + c.
    Add = 0x10, "add";
    /// a ← b − c.
    Sub = 0x11, "sub";
    /// a ← b × c.
    Mul = 0x12, "mul";
    /// a ← b ÷ c, truncated.
    Div = 0x13, "div";
    /// a ← b + constant.
    Addi = 0x14, "addi";
    /// a ← b − constant.
    Subi = 0x15, "subi";
    /// a ← b × constant.
    Muli = 0x16, "muli";
    /// a ← b ÷ constant, truncated.
    Divi = 0x17, "divi";
    /// Compares b with c.
    Cmp = 0x18, "cmp";
    /// Compares b with a constant.
    Cmpi = 0x19, "cmpi";
    /// Aborts unless 0 ≤ b < constant.
    Check = 0x1A, "check";
    /// a ← block.
    Load = 0x20, "load";
    /// block ← a.
    Store = 0x21, "store";
    /// a ← row.
    Loadr = 0x22, "loadr";
    /// row ← a.
    Storer = 0x23, "storer";
    /// block ← block.
    CopyBb = 0x28, "copybb";
    /// block ← row.
    CopyBr = 0x29, "copybr";
    /// row ← block.
    CopyRb = 0x2A, "copyrb";
    /// row ← row.
    CopyRr = 0x2B, "copyrr";
    /// Goes to x.
    Jmp = 0x30, "jmp";
    /// Goes to x if equal.
    Be = 0x31, "be";
    /// Goes to x if not equal.
    Bne = 0x32, "bne";
    /// Goes to x if less.
    Bl = 0x33, "bl";
    /// Goes to x if less or equal.
    Ble = 0x34, "ble";
    /// Goes to x if greater.
    Bg = 0x35, "bg";
    /// Goes to x if greater or equal.
    Bge = 0x36, "bge";
    /// Starts a look-up to read.
    Search = 0x40, "search";
    /// Starts a look-up to write.
    Update = 0x41, "update";
    /// Starts an insert.
    Insert = 0x42, "insert";
    /// Starts a removal.
    Remove = 0x43, "remove";
    /// Starts a range scan.
    Scan = 0x44, "scan";
    /// Waits for the answer of a DB instruction.
    Ret = 0x50, "ret";
    /// Ends with success.
    Commit = 0x51, "commit";
    /// Ends and takes everything back.
    Abort = 0x52, "abort";
}

impl Opcode {
    /// Whether it is a DB instruction: asynchronous, answered into a CP register.
    #[must_use]
    pub const fn is_db(self) -> bool {
        matches!(self, Self::Search | Self::Update | Self::Insert | Self::Remove | Self::Scan)
    }

    /// Whether it is one of the six conditional branches.
    #[must_use]
    pub const fn is_branch(self) -> bool {
        matches!(self, Self::Be | Self::Bne | Self::Bl | Self::Ble | Self::Bg | Self::Bge)
    }

    /// Whether it takes the 64-bit immediate in x and y.
    #[must_use]
    pub const fn has_immediate(self) -> bool {
        matches!(self, Self::Movi | Self::Addi | Self::Subi | Self::Muli | Self::Divi | Self::Cmpi | Self::Check)
    }

    /// Which of the fields a, b, c, d, e, w, x, y it uses, in this order; unused ones are zero.
    #[must_use]
    pub const fn fields(self) -> [bool; 8] {
        const T: bool = true;
        const F: bool = false;
        match self {
            Self::Mov => [T, T, F, F, F, F, F, F],
            Self::Movi => [T, F, F, F, F, F, T, T],
            Self::Add | Self::Sub | Self::Mul | Self::Div => [T, T, T, F, F, F, F, F],
            Self::Addi | Self::Subi | Self::Muli | Self::Divi => [T, T, F, F, F, F, T, T],
            Self::Cmp => [F, T, T, F, F, F, F, F],
            Self::Cmpi | Self::Check => [F, T, F, F, F, F, T, T],
            Self::Load | Self::Store => [T, F, T, F, F, T, T, F],
            Self::Loadr | Self::Storer => [T, T, T, F, F, T, T, F],
            Self::CopyBb => [F, F, F, T, T, T, T, T],
            Self::CopyBr => [F, F, T, T, T, T, T, T],
            Self::CopyRb => [F, T, F, T, T, T, T, T],
            Self::CopyRr => [F, T, T, T, T, T, T, T],
            Self::Jmp | Self::Be | Self::Bne | Self::Bl | Self::Ble | Self::Bg | Self::Bge => [F, F, F, F, F, F, T, F],
            Self::Search | Self::Update | Self::Insert | Self::Remove => [T, F, T, T, F, F, T, F],
            Self::Scan => [T, T, T, T, T, T, T, T],
            Self::Ret => [T, T, F, F, F, F, T, F],
            Self::Commit => [F; 8],
            Self::Abort => [F, F, F, F, F, T, F, F],
        }
    }
}

/// One instruction; see the module for what its fields mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Instruction {
    /// What to do.
    pub opcode: Opcode,
    /// Field a.
    pub a: u8,
    /// Field b.
    pub b: u8,
    /// Field c.
    pub c: u8,
    /// Field d.
    pub d: u8,
    /// Field e.
    pub e: u8,
    /// Field w.
    pub w: u16,
    /// Field x.
    pub x: u32,
    /// Field y.
    pub y: u32,
}

/// Sixteen bytes are no instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The first byte is no opcode.
    #[error("{0:#04x} is no opcode")]
    UnknownOpcode(u8),
    /// A field that the instruction does not use is not zero.
    #[error("'{}' does not use field {field}, which must be zero", .opcode.mnemonic())]
    UnusedField {
        /// The instruction.
        opcode: Opcode,
        /// The field: a, b, c, d, e, w, x or y.
        field: char,
    },
}

impl Instruction {
    /// An instruction with every field zero, to be completed with struct update syntax.
    #[must_use]
    pub const fn new(opcode: Opcode) -> Self {
        Self { opcode, a: 0, b: 0, c: 0, d: 0, e: 0, w: 0, x: 0, y: 0 }
    }

    /// The 64-bit immediate in x (low half) and y (high half).
    #[must_use]
    #[inline(always)]
    pub const fn immediate(&self) -> i64 {
        (self.x as u64 | (self.y as u64) << 32) as i64
    }

    /// The same instruction with this immediate.
    #[must_use]
    pub const fn with_immediate(mut self, value: i64) -> Self {
        self.x = value as u64 as u32;
        self.y = (value as u64 >> 32) as u32;
        self
    }

    /// Its sixteen bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; INSTRUCTION_BYTES] {
        let mut word = [0; INSTRUCTION_BYTES];
        word[..6].copy_from_slice(&[self.opcode as u8, self.a, self.b, self.c, self.d, self.e]);
        word[6..8].copy_from_slice(&self.w.to_le_bytes());
        word[8..12].copy_from_slice(&self.x.to_le_bytes());
        word[12..].copy_from_slice(&self.y.to_le_bytes());
        word
    }

    /// The instruction of sixteen bytes.
    ///
    /// # Errors
    /// [`DecodeError`] when the opcode is unknown or an unused field is not zero.
    pub fn decode(word: &[u8; INSTRUCTION_BYTES]) -> Result<Self, DecodeError> {
        let opcode = Opcode::from_byte(word[0]).ok_or(DecodeError::UnknownOpcode(word[0]))?;
        let [_, a, b, c, d, e, w0, w1, x0, x1, x2, x3, y0, y1, y2, y3] = *word;
        let w = u16::from_le_bytes([w0, w1]);
        let x = u32::from_le_bytes([x0, x1, x2, x3]);
        let y = u32::from_le_bytes([y0, y1, y2, y3]);
        let zero = [a == 0, b == 0, c == 0, d == 0, e == 0, w == 0, x == 0, y == 0];
        for ((used, zero), field) in opcode.fields().into_iter().zip(zero).zip("abcdewxy".chars()) {
            if !used && !zero {
                return Err(DecodeError::UnusedField { opcode, field });
            }
        }
        Ok(Self { opcode, a, b, c, d, e, w, x, y })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_lies_where_the_module_says() {
        let scan = Instruction {
            a: 1,
            b: 2,
            c: 3,
            d: 4,
            e: 5,
            w: 0x0706,
            x: 0x0B0A_0908,
            y: 0x0F0E_0D0C,
            ..Instruction::new(Opcode::Scan)
        };
        let word = [0x44, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        assert_eq!(scan.encode(), word);
        assert_eq!(Instruction::decode(&word), Ok(scan));
        assert_eq!(Instruction::new(Opcode::Movi).with_immediate(-2).immediate(), -2);
    }

    #[test]
    fn every_opcode_decodes_to_itself_and_refuses_unused_fields() {
        for &opcode in Opcode::ALL {
            assert_eq!(Opcode::from_byte(opcode as u8), Some(opcode));
            let word = Instruction::new(opcode).encode();
            assert_eq!(Instruction::decode(&word), Ok(Instruction::new(opcode)));
            let places = [1, 2, 3, 4, 5, 6, 8, 12];
            for (place, used) in places.into_iter().zip(opcode.fields()) {
                let mut changed = word;
                changed[place] = 1;
                assert_eq!(Instruction::decode(&changed).is_ok(), used, "{opcode:?} byte {place}");
            }
        }
        assert_eq!(Instruction::decode(&[0; 16]), Err(DecodeError::UnknownOpcode(0)));
    }
}
