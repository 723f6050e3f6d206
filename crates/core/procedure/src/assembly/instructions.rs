//! One instruction of a source: which opcode its mnemonic and operands mean.

use super::lexer::{Kind, Place, shorten};
use super::nearest::suggestion;
use super::operands::Memory;
use super::parser::{Parse, Parser};
use super::widths::{copy_length, natural_width, parse_suffix};
use crate::block::abort;
use crate::isa::{Instruction, NO_LABEL, Opcode};
use crate::schema::Catalog;

/// The most bytes that one copy moves.
const MAX_COPY: u32 = u16::MAX as u32;

impl<'a, C: Catalog + ?Sized> Parser<'a, C> {
    /// The instruction that begins with `word`. Where it branches to a label, its target is patched at the end.
    pub(super) fn instruction(&mut self, word: &'a str, place: Place) -> Parse<Instruction> {
        let width = if self.take_mark('.')? { Some(self.width_suffix()?) } else { None };
        if width.is_some() && !matches!(word, "load" | "store" | "loadr" | "storer") {
            return Err(place.error(format!("'{word}' takes no width; only load, store, loadr and storer do")));
        }
        Ok(match word {
            "mov" => self.mov()?,
            "add" => self.arithmetic(Opcode::Add, Opcode::Addi)?,
            "sub" => self.arithmetic(Opcode::Sub, Opcode::Subi)?,
            "mul" => self.arithmetic(Opcode::Mul, Opcode::Muli)?,
            "div" => self.arithmetic(Opcode::Div, Opcode::Divi)?,
            "cmp" => self.compare()?,
            "check" => {
                let b = self.register()?;
                self.mark(',')?;
                Instruction { b, ..Instruction::new(Opcode::Check) }.with_immediate(self.constant()?)
            }
            "load" | "store" | "loadr" | "storer" => self.load_or_store(word, width)?,
            "copy" => self.copy(place)?,
            "jmp" | "be" | "bne" | "bl" | "ble" | "bg" | "bge" => {
                let opcode = Opcode::ALL.iter().find(|opcode| opcode.mnemonic() == word);
                Instruction { x: self.branch()?, ..Instruction::new(*opcode.expect("every branch has its mnemonic")) }
            }
            "search" => self.access(Opcode::Search)?,
            "update" => self.access(Opcode::Update)?,
            "insert" => self.access(Opcode::Insert)?,
            "remove" => self.access(Opcode::Remove)?,
            "scan" => self.scan()?,
            "ret" => self.ret()?,
            "commit" => Instruction::new(Opcode::Commit),
            "abort" => {
                let code_place = self.token.place;
                let code = self.number("an abort code")?;
                match u16::try_from(code).ok().filter(|&code| code < abort::FIRST_RESERVED) {
                    Some(w) => Instruction { w, ..Instruction::new(Opcode::Abort) },
                    None => {
                        let last = abort::FIRST_RESERVED - 1;
                        return Err(code_place.error(format!("{code} is no abort code; use 0 to {last}")));
                    }
                }
            }
            _ => {
                let words = ["procedure", "table", "param", "result", "scratch", "copy", "on"];
                let mnemonics = Opcode::ALL.iter().map(|opcode| opcode.mnemonic());
                let written = mnemonics.filter(|word| !word.ends_with('i') && !word.starts_with("copy"));
                let hint = suggestion(word, written.chain(words));
                return Err(place.error(format!("there is no instruction '{}'{hint}", shorten(word))));
            }
        })
    }

    fn width_suffix(&mut self) -> Parse<u16> {
        let (word, place) = self.word("a width")?;
        parse_suffix(word).ok_or_else(|| {
            place.error(format!("'{}' is no width; use i8, i16, i32, i64, u8, u16 or u32", shorten(word)))
        })
    }

    fn mov(&mut self) -> Parse<Instruction> {
        let a = self.register()?;
        self.mark(',')?;
        if self.at_constant() {
            return Ok(Instruction { a, ..Instruction::new(Opcode::Movi) }.with_immediate(self.constant()?));
        }
        Ok(Instruction { a, b: self.register()?, ..Instruction::new(Opcode::Mov) })
    }

    fn arithmetic(&mut self, register: Opcode, constant: Opcode) -> Parse<Instruction> {
        let a = self.register()?;
        self.mark(',')?;
        let b = self.register()?;
        self.mark(',')?;
        if self.at_constant() {
            return Ok(Instruction { a, b, ..Instruction::new(constant) }.with_immediate(self.constant()?));
        }
        Ok(Instruction { a, b, c: self.register()?, ..Instruction::new(register) })
    }

    fn compare(&mut self) -> Parse<Instruction> {
        let b = self.register()?;
        self.mark(',')?;
        if self.at_constant() {
            return Ok(Instruction { b, ..Instruction::new(Opcode::Cmpi) }.with_immediate(self.constant()?));
        }
        Ok(Instruction { b, c: self.register()?, ..Instruction::new(Opcode::Cmp) })
    }

    /// A branch target: a label, whose place is not known yet (zero stands for it), or `@` and an instruction's number.
    fn branch(&mut self) -> Parse<u32> {
        if self.take_mark('@')? {
            return self.number("the number of an instruction");
        }
        let (label, place) = self.name("a label")?;
        self.branches.push((self.procedure.code.len(), label, place));
        Ok(0)
    }

    fn load_or_store(&mut self, word: &str, width: Option<u16>) -> Parse<Instruction> {
        let a = self.register()?;
        self.mark(',')?;
        let place = self.token.place;
        let memory = self.memory()?;
        let opcode = match (word, memory.row) {
            ("load", None) => Opcode::Load,
            ("store", None) => Opcode::Store,
            ("loadr", Some(_)) => Opcode::Loadr,
            ("storer", Some(_)) => Opcode::Storer,
            ("load" | "store", _) => {
                return Err(place.error(format!("'{word}' is for the block; for rows use '{word}r'")));
            }
            _ => return Err(place.error(format!("'{word}' is for rows, as in r1[table.column]"))),
        };
        let Some(w) = width.or(memory.named.and_then(natural_width)) else {
            return Err(place.error(format!("how wide? Write '{word}.i64', or name an integer field or column")));
        };
        let b = memory.row.unwrap_or(0);
        Ok(Instruction { a, b, c: memory.index, w, x: memory.offset, ..Instruction::new(opcode) })
    }

    fn copy(&mut self, place: Place) -> Parse<Instruction> {
        let to = self.memory()?;
        self.mark(',')?;
        let from = self.memory()?;
        let w = if self.take_mark(',')? {
            self.number_up_to("the length of a copy", MAX_COPY)? as u16
        } else {
            default_length(&to, &from).map_err(|message| place.error(message))?
        };
        let opcode = match (to.row, from.row) {
            (None, None) => Opcode::CopyBb,
            (None, Some(_)) => Opcode::CopyBr,
            (Some(_), None) => Opcode::CopyRb,
            (Some(_), Some(_)) => Opcode::CopyRr,
        };
        let (b, c) = (to.row.unwrap_or(0), from.row.unwrap_or(0));
        Ok(Instruction {
            b,
            c,
            d: to.index,
            e: from.index,
            w,
            x: to.offset,
            y: from.offset,
            ..Instruction::new(opcode)
        })
    }

    fn access(&mut self, opcode: Opcode) -> Parse<Instruction> {
        let a = self.cp()?;
        self.mark(',')?;
        let d = self.slot()?;
        self.mark(',')?;
        let key = self.block_memory("a key")?;
        Ok(Instruction { a, c: key.index, d, x: key.offset, ..Instruction::new(opcode) })
    }

    fn scan(&mut self) -> Parse<Instruction> {
        let a = self.cp()?;
        self.mark(',')?;
        let d = self.slot()?;
        let mut e = 0;
        if self.take_mark('.')? {
            e = self.column(usize::from(d))?.0 as u8 + 1;
        } else if self.take_mark('#')? {
            e = self.number_up_to("the position of a column", 254)? as u8 + 1;
        }
        self.mark(',')?;
        let key = self.block_memory("a key")?;
        self.mark(',')?;
        let place = self.token.place;
        let buffer = self.block_memory("a scan's buffer")?;
        if buffer.index != 0 {
            return Err(place.error("a scan's buffer has a constant address"));
        }
        if !self.take_mark(',')? {
            return self.expected("',' and the most rows of the scan, as in 'scan c0, t, [first], [rows], 50',");
        }
        let w = self.number_up_to("the most rows of a scan", u16::MAX.into())? as u16;
        let b = if self.take_mark(',')? { self.register()? } else { 0 };
        Ok(Instruction {
            a,
            b,
            c: key.index,
            d,
            e,
            w,
            x: key.offset,
            y: buffer.offset,
            ..Instruction::new(Opcode::Scan)
        })
    }

    fn ret(&mut self) -> Parse<Instruction> {
        let a = match self.token.kind {
            Kind::Word(word) if word.starts_with('c') => 0,
            _ => {
                let a = self.register()?;
                self.mark(',')?;
                a
            }
        };
        let b = self.cp()?;
        let x = if self.take_mark(',')? { self.branch()? } else { NO_LABEL };
        Ok(Instruction { a, b, x, ..Instruction::new(Opcode::Ret) })
    }
}

/// How many bytes a copy moves when its source gives no length.
fn default_length(to: &Memory, from: &Memory) -> Result<u16, String> {
    let Some(length) = copy_length(to.named, from.named) else {
        return Err(match (to.named, from.named) {
            (Some(to), Some(from)) => format!(
                "how many bytes? The target has {} and the source {}; give a length as third operand",
                to.width(),
                from.width()
            ),
            _ => "how many bytes? Name a field or column, or give a length as third operand".to_string(),
        });
    };
    u16::try_from(length)
        .map_err(|_| format!("{length} bytes are too many for one copy; at most {MAX_COPY} are possible"))
}
