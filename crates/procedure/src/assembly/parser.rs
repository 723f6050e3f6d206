//! From text to a procedure, in one pass; branches to labels that come later are patched at the end.

use std::collections::HashMap;

use super::lexer::{Kind, Lexer, Place, Token};
use super::nearest::suggestion;
use super::{Assembled, AssemblyError};
use crate::block::{MAX_BLOCK_BYTES, abort};
use crate::isa::{Instruction, MAX_INSTRUCTIONS, NO_LABEL, Opcode, SIGNED};
use crate::program::{Field, Procedure};
use crate::schema::{Catalog, ColumnType, TableSchema, is_name};

type Parse<T> = Result<T, AssemblyError>;

/// Assembles one procedure. Tables without columns are looked up in `catalog`.
///
/// # Errors
/// The first thing that is wrong, with its place.
pub fn assemble(source: &str, catalog: &(impl Catalog + ?Sized)) -> Result<Assembled, AssemblyError> {
    let mut lexer = Lexer::new(source);
    let token = lexer.token()?;
    let mut parser = Parser { lexer, token, catalog, ..Parser::start(source, catalog) };
    parser.source()?;
    parser.finish()
}

struct Table {
    schema: TableSchema,
}

struct Parser<'a, C: ?Sized> {
    lexer: Lexer<'a>,
    token: Token<'a>,
    catalog: &'a C,
    procedure: Procedure,
    tables: Vec<Table>,
    schemas: Vec<TableSchema>,
    labels: HashMap<&'a str, u32>,
    /// Instructions that branch to a label, by name.
    branches: Vec<(usize, &'a str, Place)>,
    commit_handler: Option<usize>,
    abort_handler: Option<usize>,
    named: bool,
}

/// An operand in memory.
struct Memory {
    /// The register with the row's handle; `None`: the block.
    row: Option<u8>,
    offset: u32,
    index: u8,
    /// Type of the field or column that was named.
    named: Option<ColumnType>,
}

impl<'a, C: Catalog + ?Sized> Parser<'a, C> {
    fn start(source: &'a str, catalog: &'a C) -> Self {
        let place = Place { line: 1, column: 1 };
        Self {
            lexer: Lexer::new(source),
            token: Token { kind: Kind::End, place },
            catalog,
            procedure: Procedure::default(),
            tables: Vec::new(),
            schemas: Vec::new(),
            labels: HashMap::new(),
            branches: Vec::new(),
            commit_handler: None,
            abort_handler: None,
            named: false,
        }
    }

    fn next(&mut self) -> Parse<Token<'a>> {
        let token = self.token;
        self.token = self.lexer.token()?;
        Ok(token)
    }

    fn fail<T>(&self, message: impl Into<String>) -> Parse<T> {
        Err(self.token.place.error(message))
    }

    fn expected<T>(&self, what: &str) -> Parse<T> {
        self.fail(format!("{what} is wanted here, not {}", self.token.kind.describe()))
    }

    fn at_mark(&self, mark: char) -> bool {
        self.token.kind == Kind::Mark(mark)
    }

    fn take_mark(&mut self, mark: char) -> Parse<bool> {
        let there = self.at_mark(mark);
        if there {
            self.next()?;
        }
        Ok(there)
    }

    fn mark(&mut self, mark: char) -> Parse<()> {
        if self.take_mark(mark)? { Ok(()) } else { self.expected(&format!("'{mark}'")) }
    }

    fn word(&mut self, what: &str) -> Parse<(&'a str, Place)> {
        match self.token.kind {
            Kind::Word(word) => {
                let place = self.next()?.place;
                Ok((word, place))
            }
            _ => self.expected(what),
        }
    }

    fn name(&mut self, what: &str) -> Parse<(&'a str, Place)> {
        let (name, place) = self.word(what)?;
        if is_name(name) { Ok((name, place)) } else { Err(place.error(format!("{what} has at most 63 characters"))) }
    }

    /// A constant that fits in 32 bits.
    fn number(&mut self, what: &str) -> Parse<u32> {
        match self.token.kind {
            Kind::Number(number) => match u32::try_from(number) {
                Ok(number) => {
                    self.next()?;
                    Ok(number)
                }
                Err(_) => self.fail(format!("{number} is too large for {what}; at most {} is possible", u32::MAX)),
            },
            _ => self.expected(what),
        }
    }

    fn end_of_line(&mut self) -> Parse<()> {
        match self.token.kind {
            Kind::Newline => self.next().map(drop),
            Kind::End => Ok(()),
            _ => self.expected("the end of the line"),
        }
    }

    fn source(&mut self) -> Parse<()> {
        loop {
            match self.token.kind {
                Kind::End => return Ok(()),
                Kind::Newline => drop(self.next()?),
                Kind::Word(word) => {
                    let place = self.next()?.place;
                    if self.at_mark(':') {
                        self.label(word, place)?;
                    } else {
                        self.statement(word, place)?;
                        self.end_of_line()?;
                    }
                }
                _ => return self.expected("a statement or a label"),
            }
        }
    }

    fn label(&mut self, name: &'a str, place: Place) -> Parse<()> {
        self.mark(':')?;
        if !is_name(name) {
            return Err(place.error("a label has at most 63 characters"));
        }
        let at = self.procedure.code.len() as u32;
        match self.labels.insert(name, at) {
            None => Ok(()),
            Some(_) => Err(place.error(format!("the label '{name}' stands twice; give each a name of its own"))),
        }
    }

    fn statement(&mut self, word: &'a str, place: Place) -> Parse<()> {
        if !self.named && word != "procedure" {
            return Err(place.error("a source begins with 'procedure NAME'"));
        }
        match word {
            "procedure" if self.named => {
                Err(place.error("a source has one procedure; put the next into a source of its own"))
            }
            "procedure" => {
                self.named = true;
                self.procedure.name = self.name("the procedure's name")?.0.to_string();
                Ok(())
            }
            "table" => self.table(),
            "param" | "result" | "scratch" => self.field(word, place),
            "on" => self.handler(place),
            _ => self.instruction(word, place),
        }
    }

    fn before_code(&self, place: Place, what: &str) -> Parse<()> {
        if self.procedure.code.is_empty() {
            return Ok(());
        }
        Err(place.error(format!("{what} is declared before the first instruction")))
    }

    fn table(&mut self) -> Parse<()> {
        let (name, place) = self.name("the table's name")?;
        self.before_code(place, "a table")?;
        if self.tables.len() == 256 {
            return Err(place.error("a procedure uses at most 256 tables"));
        }
        if self.tables.iter().any(|table| table.schema.name() == name) {
            return Err(place.error(format!("the table '{name}' is declared twice")));
        }
        let known = self.catalog.table(name).map(|(_, schema)| schema.clone());
        let schema = if self.at_mark('(') {
            let declared = self.columns(name, place)?;
            if known.is_some_and(|known| known != declared) {
                return Err(
                    place.error(format!("the table '{name}' exists with other columns; name it without columns"))
                );
            }
            self.schemas.push(declared.clone());
            declared
        } else {
            let Some(known) = known else {
                let names = self.catalog.table_names();
                let hint = suggestion(name, names.iter().map(String::as_str));
                return Err(place.error(format!("no table is called '{name}'{hint}; or declare its columns here")));
            };
            known
        };
        self.procedure.tables.push(name.to_string());
        self.tables.push(Table { schema });
        Ok(())
    }

    fn columns(&mut self, name: &str, place: Place) -> Parse<TableSchema> {
        self.mark('(')?;
        let mut columns = Vec::new();
        let mut key = 0;
        loop {
            let (column, column_place) = self.name("a column's name")?;
            self.mark(':')?;
            let column_type = self.column_type()?;
            if self.token.kind == Kind::Word("key") {
                self.next()?;
                if key < columns.len() {
                    return Err(column_place.error("key columns come first"));
                }
                key += 1;
            }
            columns.push((column, column_type));
            if !self.take_mark(',')? {
                break;
            }
        }
        self.mark(')')?;
        let ordered = self.token.kind == Kind::Word("ordered");
        if ordered {
            self.next()?;
        }
        TableSchema::new(name, &columns, key, ordered).map_err(|error| place.error(error.to_string()))
    }

    fn column_type(&mut self) -> Parse<ColumnType> {
        const TYPES: &str = "a type is i8, i16, i32, i64, u8, u16, u32, char(n) or bytes(n)";
        let (word, place) = self.word("a type")?;
        let mut text = word.to_string();
        if self.take_mark('(')? {
            let width = self.number("a width")?;
            self.mark(')')?;
            text = format!("{word}({width})");
        }
        ColumnType::parse(&text).ok_or_else(|| place.error(format!("'{text}' is no type; {TYPES}")))
    }

    fn field(&mut self, group: &str, place: Place) -> Parse<()> {
        self.before_code(place, "a parameter, result or scratch")?;
        let (name, place) = self.name("a name")?;
        if self.find_field(name).is_some() {
            return Err(place.error(format!("'{name}' is declared twice; give each a name of its own")));
        }
        self.mark(':')?;
        let column_type = self.column_type()?;
        let mut count = 1;
        if self.take_mark('[')? {
            let count_place = self.token.place;
            count = self.number("a number of elements")?;
            if count == 0 {
                return Err(count_place.error("an array has at least one element"));
            }
            self.mark(']')?;
        }
        let field = Field { name: name.to_string(), column_type, count, offset: 0 };
        match group {
            "param" => self.procedure.parameters.push(field),
            "result" => self.procedure.results.push(field),
            _ => self.procedure.scratch.push(field),
        }
        self.lay_out(place)
    }

    /// Puts all fields where they belong. Instructions come later, so none has used an offset yet.
    fn lay_out(&mut self, place: Place) -> Parse<()> {
        let procedure = &mut self.procedure;
        let groups = [&procedure.parameters, &procedure.results, &procedure.scratch];
        let shapes = groups.map(|fields| fields.iter().map(|f| (f.column_type, f.count)).collect::<Vec<_>>());
        let (ends, offsets) = Procedure::lay_out([&shapes[0], &shapes[1], &shapes[2]]);
        if ends[3] > u64::from(MAX_BLOCK_BYTES) {
            let message = format!("the block would have {} bytes; at most {MAX_BLOCK_BYTES} are possible", ends[3]);
            return Err(place.error(message));
        }
        let fields = procedure.parameters.iter_mut().chain(&mut procedure.results).chain(&mut procedure.scratch);
        for (field, offset) in fields.zip(offsets) {
            field.offset = offset as u32;
        }
        Ok(())
    }

    fn find_field(&self, name: &str) -> Option<&Field> {
        self.fields().find(|field| field.name == name)
    }

    fn fields(&self) -> impl Iterator<Item = &Field> {
        let procedure = &self.procedure;
        procedure.parameters.iter().chain(&procedure.results).chain(&procedure.scratch)
    }

    fn handler(&mut self, place: Place) -> Parse<()> {
        let (which, which_place) = self.word("'commit' or 'abort'")?;
        self.mark(':')?;
        let at = self.procedure.code.len();
        if at == 0 {
            return Err(place.error("the logic comes before the handlers"));
        }
        match which {
            "commit" if self.commit_handler.is_none() && self.abort_handler.is_none() => {
                self.commit_handler = Some(at);
                Ok(())
            }
            "abort" if self.abort_handler.is_none() => {
                if self.commit_handler.is_none() {
                    self.commit_handler = Some(at);
                    self.procedure.code.push(Instruction::new(Opcode::Commit));
                }
                self.abort_handler = Some(self.procedure.code.len());
                Ok(())
            }
            "commit" | "abort" => Err(place.error("'on commit' and 'on abort' stand once each, in this order")),
            _ => Err(which_place.error(format!("there is no handler '{which}'; there are 'on commit' and 'on abort'"))),
        }
    }

    fn instruction(&mut self, word: &'a str, place: Place) -> Parse<()> {
        if self.procedure.code.len() == MAX_INSTRUCTIONS {
            return Err(place.error(format!("a procedure has at most {MAX_INSTRUCTIONS} instructions")));
        }
        let width = if self.take_mark('.')? { Some(self.width_suffix()?) } else { None };
        if width.is_some() && !matches!(word, "load" | "store" | "loadr" | "storer") {
            return Err(place.error(format!("'{word}' takes no width; only load, store, loadr and storer do")));
        }
        let instruction = match word {
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
                self.branch()?;
                let opcode = Opcode::ALL.iter().find(|opcode| opcode.mnemonic() == word);
                Instruction::new(*opcode.expect("every branch has its mnemonic"))
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
                let hint = suggestion(word, Opcode::ALL.iter().map(|opcode| opcode.mnemonic()).chain(words));
                return Err(place.error(format!("there is no instruction '{}'{hint}", super::lexer::shorten(word))));
            }
        };
        self.procedure.code.push(instruction);
        Ok(())
    }

    fn width_suffix(&mut self) -> Parse<u16> {
        let (word, place) = self.word("a width")?;
        match ColumnType::parse(word).and_then(width_of) {
            Some(width) => Ok(width),
            None => Err(place.error(format!("'{word}' is no width; use i8, i16, i32, i64, u8, u16 or u32"))),
        }
    }

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

    fn register(&mut self) -> Parse<u8> {
        self.numbered('r', "a register")
    }

    fn cp(&mut self) -> Parse<u8> {
        self.numbered('c', "a CP register")
    }

    fn at_constant(&self) -> bool {
        matches!(self.token.kind, Kind::Number(_)) || self.at_mark('-')
    }

    fn constant(&mut self) -> Parse<i64> {
        let place = self.token.place;
        let negative = self.take_mark('-')?;
        let Kind::Number(number) = self.token.kind else { return self.expected("a constant") };
        self.next()?;
        let value = if negative { -i128::from(number) } else { i128::from(number) };
        i64::try_from(value).map_err(|_| place.error(format!("{value} does not fit in 64 bits with a sign")))
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

    fn branch(&mut self) -> Parse<()> {
        let (label, place) = self.name("a label")?;
        self.branches.push((self.procedure.code.len(), label, place));
        Ok(())
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
        let Some(w) = width.or(memory.named.and_then(width_of)) else {
            return Err(place.error(format!("how wide? Write '{word}.i64', or name an integer field or column")));
        };
        let b = memory.row.unwrap_or(0);
        Ok(Instruction { a, b, c: memory.index, w, x: memory.offset, ..Instruction::new(opcode) })
    }

    fn copy(&mut self, place: Place) -> Parse<Instruction> {
        let to = self.memory()?;
        self.mark(',')?;
        let from = self.memory()?;
        let length = if self.take_mark(',')? {
            Some(self.number("a length")?)
        } else {
            to.named.or(from.named).map(ColumnType::width)
        };
        let Some(length) = length else {
            return Err(place.error("how many bytes? Name a field or column, or give a length as third operand"));
        };
        let Ok(w) = u16::try_from(length) else {
            return Err(
                place.error(format!("{length} bytes are too many for one copy; at most {} are possible", u16::MAX))
            );
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

    fn slot(&mut self) -> Parse<u8> {
        let (name, place) = self.word("a table")?;
        match self.tables.iter().position(|table| table.schema.name() == name) {
            Some(slot) => Ok(slot as u8),
            None => {
                let hint = suggestion(name, self.procedure.tables.iter().map(String::as_str));
                Err(place.error(format!("the procedure declares no table '{name}'{hint}")))
            }
        }
    }

    fn block_memory(&mut self, what: &str) -> Parse<Memory> {
        let place = self.token.place;
        let memory = self.memory()?;
        if memory.row.is_some() {
            return Err(place.error(format!("{what} lies in the block, as in [name]")));
        }
        Ok(memory)
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
        }
        self.mark(',')?;
        let key = self.block_memory("a key")?;
        self.mark(',')?;
        let place = self.token.place;
        let buffer = self.block_memory("a scan's buffer")?;
        if buffer.index != 0 {
            return Err(place.error("a scan's buffer has a constant address"));
        }
        self.mark(',')?;
        let limit_place = self.token.place;
        let limit = self.number("the most rows")?;
        let Ok(w) = u16::try_from(limit) else {
            return Err(limit_place.error(format!("a scan delivers at most {} rows, not {limit}", u16::MAX)));
        };
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
        if self.take_mark(',')? {
            self.branch()?;
        }
        Ok(Instruction { a, b, x: NO_LABEL, ..Instruction::new(Opcode::Ret) })
    }

    /// A column of the table in `slot`, by name: position and column.
    fn column(&mut self, slot: usize) -> Parse<(usize, crate::schema::Column)> {
        let (name, place) = self.word("a column")?;
        let schema = &self.tables[slot].schema;
        match schema.column(name) {
            Some((position, column)) => Ok((position, column.clone())),
            None => {
                let hint = suggestion(name, schema.columns().iter().map(|column| column.name.as_str()));
                Err(place.error(format!("table '{}' has no column '{name}'{hint}", schema.name())))
            }
        }
    }

    /// `[...]` in the block, or `rN[...]` in a row.
    fn memory(&mut self) -> Parse<Memory> {
        let row = if self.at_mark('[') { None } else { Some(self.register()?) };
        self.mark('[')?;
        let mut memory = Memory { row, offset: 0, index: 0, named: None };
        let place = self.token.place;
        let mut offset = 0_u64;
        let mut indexed = false;
        loop {
            match self.token.kind {
                Kind::Number(_) => offset += u64::from(self.number("an offset")?),
                Kind::Word(word) if is_register(word) && (row.is_some() || self.find_field(word).is_none()) => {
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
                    offset += u64::from(column.offset);
                    memory.named = Some(column.column_type);
                }
                Kind::Word(_) => offset += self.named_field(&mut memory)?,
                _ => return self.expected("a name, an offset or an index register"),
            }
            if !self.take_mark('+')? {
                break;
            }
        }
        self.mark(']')?;
        memory.offset = u32::try_from(offset).map_err(|_| place.error(format!("offset {offset} is too large")))?;
        Ok(memory)
    }

    fn named_field(&mut self, memory: &mut Memory) -> Parse<u64> {
        let (name, place) = self.word("a name")?;
        let Some(field) = self.find_field(name).cloned() else {
            let hint = suggestion(name, self.fields().map(|field| field.name.as_str()));
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

    fn finish(mut self) -> Parse<Assembled> {
        if !self.named {
            return self.fail("the source is empty; it begins with 'procedure NAME'");
        }
        if self.procedure.code.is_empty() {
            return self.fail("the procedure has no instruction; the shortest is 'commit'");
        }
        for (at, label, place) in std::mem::take(&mut self.branches) {
            let Some(&target) = self.labels.get(label) else {
                let hint = suggestion(label, self.labels.keys().copied());
                return Err(place.error(format!("no label is called '{label}'{hint}")));
            };
            self.procedure.code[at].x = target;
        }
        let code = &mut self.procedure.code;
        let mut generated = |handler: Option<usize>| {
            handler.unwrap_or_else(|| {
                code.push(Instruction::new(Opcode::Commit));
                code.len() - 1
            })
        };
        self.procedure.commit_handler = generated(self.commit_handler) as u32;
        self.procedure.abort_handler = generated(self.abort_handler) as u32;
        Ok(Assembled { procedure: self.procedure, schemas: self.schemas })
    }
}

/// Width and sign, as loads and stores have them, of an integer type.
pub(super) fn width_of(column_type: ColumnType) -> Option<u16> {
    let width = column_type.width() as u16;
    let signed = column_type.is_signed() && width < 8;
    column_type.is_integer().then_some(if signed { width | SIGNED } else { width })
}

fn is_register(word: &str) -> bool {
    word.strip_prefix('r').is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}
