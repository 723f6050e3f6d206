//! What stands in an instruction: registers, constants, tables and columns, places in memory.

use super::lexer::{Kind, shorten};
use super::nearest::suggestion;
use super::parser::{Parse, Parser};
use crate::schema::{Catalog, Column, ColumnType};

/// An operand in memory.
pub(super) struct Memory {
    /// The register with the row's handle; `None`: the block.
    pub(super) row: Option<u8>,
    /// Bytes from the start of the block or row.
    pub(super) offset: u32,
    /// The index register; 0 for none.
    pub(super) index: u8,
    /// Type of the field or column that was named.
    pub(super) named: Option<ColumnType>,
}

impl<'a, C: Catalog + ?Sized> Parser<'a, C> {
    fn numbered(&mut self, prefix: char, what: &str) -> Parse<u8> {
        let Kind::Word(word) = self.token.kind else { return self.expected(what) };
        let digits =
            word.strip_prefix(prefix).filter(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()));
        let canonical = digits.filter(|digits| *digits == "0" || !digits.starts_with('0'));
        match canonical.and_then(|digits| digits.parse().ok()) {
            Some(number) => {
                self.next()?;
                Ok(number)
            }
            None => self.expected(&format!("{what} ({prefix}0 to {prefix}255)")),
        }
    }

    pub(super) fn register(&mut self) -> Parse<u8> {
        self.numbered('r', "a register")
    }

    pub(super) fn cp(&mut self) -> Parse<u8> {
        self.numbered('c', "a CP register")
    }

    pub(super) fn at_constant(&self) -> bool {
        matches!(self.token.kind, Kind::Number(_)) || self.at_mark('-')
    }

    pub(super) fn constant(&mut self) -> Parse<i64> {
        let place = self.token.place;
        let negative = self.take_mark('-')?;
        let Kind::Number(number) = self.token.kind else { return self.expected("a constant") };
        self.next()?;
        let value = if negative { -i128::from(number) } else { i128::from(number) };
        i64::try_from(value).map_err(|_| place.error(format!("{value} does not fit in 64 bits with a sign")))
    }

    /// A table: its name, or `#` and the number of its slot.
    pub(super) fn slot(&mut self) -> Parse<u8> {
        if self.take_mark('#')? {
            return Ok(self.number_up_to("the number of a table", 255)? as u8);
        }
        let (name, place) = self.word("a table")?;
        match self.tables.iter().position(|table| table.name == name) {
            Some(slot) => Ok(slot as u8),
            None => {
                let hint = suggestion(name, self.procedure.tables.iter().map(String::as_str));
                Err(place.error(format!("the procedure declares no table '{}'{hint}", shorten(name))))
            }
        }
    }

    pub(super) fn block_memory(&mut self, what: &str) -> Parse<Memory> {
        let place = self.token.place;
        let memory = self.memory()?;
        if memory.row.is_some() {
            return Err(place.error(format!("{what} lies in the block, as in [name]")));
        }
        Ok(memory)
    }

    /// A column of the table in `slot`, by name: position and column.
    pub(super) fn column(&mut self, slot: usize) -> Parse<(usize, Column)> {
        let (name, place) = self.word("a column")?;
        let Some(table) = self.tables.get(slot) else {
            return Err(
                place.error(format!("the procedure declares no table number {slot}, so its columns have no names"))
            );
        };
        let Some(schema) = &table.schema else {
            let table = table.name;
            return Err(
                place.error(format!("table '{table}' is opaque, so its columns have no names; write an offset"))
            );
        };
        match schema.column(name) {
            Some((position, column)) => Ok((position, column.clone())),
            None => {
                let hint = suggestion(name, schema.columns().iter().map(|column| column.name.as_str()));
                Err(place.error(format!("table '{}' has no column '{}'{hint}", table.name, shorten(name))))
            }
        }
    }

    /// `[...]` in the block, or `rN[...]` in a row.
    pub(super) fn memory(&mut self) -> Parse<Memory> {
        let row = if self.at_mark('[') { None } else { Some(self.register()?) };
        self.mark('[')?;
        let mut memory = Memory { row, offset: 0, index: 0, named: None };
        let place = self.token.place;
        let mut offset = 0_u64;
        let mut indexed = false;
        let mut first = true;
        loop {
            // A field may be called like a register: it is meant where it stands first, the register elsewhere.
            let field_first = first && row.is_none();
            match self.token.kind {
                Kind::Number(_) => offset = offset.saturating_add(u64::from(self.number("an offset")?)),
                Kind::Word(word) if is_register(word) && !(field_first && self.find_field(word).is_some()) => {
                    if indexed {
                        return self.fail("an address has at most one index register");
                    }
                    indexed = true;
                    memory.index = self.register()?;
                }
                Kind::Word(_) if memory.named.is_some() => return self.fail("an address names one field or column"),
                Kind::Word(_) if row.is_some() => {
                    let slot = self.slot()?;
                    self.mark('.')?;
                    let column = self.column(usize::from(slot))?.1;
                    offset = offset.saturating_add(u64::from(column.offset));
                    memory.named = Some(column.column_type);
                }
                Kind::Word(_) => offset = offset.saturating_add(self.named_field(&mut memory)?),
                _ => return self.expected("a name, an offset or an index register"),
            }
            first = false;
            if !self.take_mark('+')? {
                break;
            }
        }
        self.mark(']')?;
        memory.offset = u32::try_from(offset).map_err(|_| place.error(format!("offset {offset} is too large")))?;
        Ok(memory)
    }

    fn named_field(&mut self, memory: &mut Memory) -> Parse<u64> {
        let (word, place) = self.word("a name")?;
        let name = shorten(word);
        let Some(field) = self.find_field(word).cloned() else {
            let hint = suggestion(word, self.fields().map(|field| field.name.as_str()));
            return Err(place.error(format!("no parameter, result or scratch is called '{name}'{hint}")));
        };
        memory.named = Some(field.column_type);
        let mut offset = u64::from(field.offset);
        if self.take_mark('#')? {
            let element_place = self.token.place;
            let element = self.number("an element")?;
            if element >= field.count {
                let last = field.count - 1;
                return Err(
                    element_place.error(format!("'{name}' has elements 0 to {last}, and {element} is asked for"))
                );
            }
            offset += u64::from(element) * u64::from(field.element_stride());
        }
        Ok(offset)
    }
}

fn is_register(word: &str) -> bool {
    word.strip_prefix('r').is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}
