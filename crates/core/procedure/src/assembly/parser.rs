//! From text to a procedure, in one pass; branches to labels that come later are patched at the end.
//!
//! This file has the statements, labels and handlers; [`super::declarations`] has tables and fields,
//! [`super::instructions`] the instructions, [`super::operands`] what stands in them.

use std::collections::{BTreeMap, HashMap};

use super::declarations::Declared;
use super::lexer::{Kind, Lexer, Place, Token, shorten};
use super::nearest::suggestion;
use super::{Assembled, AssemblyError};
use crate::isa::{Instruction, MAX_INSTRUCTIONS, Opcode};
use crate::program::Procedure;
use crate::schema::{Catalog, TableSchema, is_name};

/// The most tables of a procedure: an instruction names one in a byte.
pub(super) const MAX_TABLES: usize = 256;

pub(super) type Parse<T> = Result<T, AssemblyError>;

/// Assembles one procedure. Tables without columns are looked up in `catalog`.
///
/// # Errors
/// The first thing that is wrong, with its place.
pub fn assemble(source: &str, catalog: &(impl Catalog + ?Sized)) -> Result<Assembled, AssemblyError> {
    let mut parser = Parser::start(source, catalog)?;
    parser.source()?;
    parser.finish()
}

/// Assembles a source of table declarations with columns and nothing else.
///
/// # Errors
/// The first thing that is wrong, with its place.
pub fn assemble_tables(source: &str, catalog: &(impl Catalog + ?Sized)) -> Result<Vec<TableSchema>, AssemblyError> {
    let mut parser = Parser::start(source, catalog)?;
    loop {
        match parser.token.kind {
            Kind::End => return Ok(parser.schemas),
            Kind::Newline => drop(parser.next()?),
            Kind::Word("table") => {
                let (place, declared) = (parser.next()?.place, parser.schemas.len());
                parser.table()?;
                if parser.schemas.len() == declared {
                    return Err(place.error("a table is declared with its columns here"));
                }
                parser.end_of_line()?;
            }
            _ => return parser.expected("'table'"),
        }
    }
}

pub(super) struct Table<'a> {
    pub(super) name: &'a str,
    /// `None` when the source calls the table opaque: its columns have no names here.
    pub(super) schema: Option<TableSchema>,
}

pub(super) struct Parser<'a, C: ?Sized> {
    lexer: Lexer<'a>,
    pub(super) token: Token<'a>,
    pub(super) catalog: &'a C,
    pub(super) procedure: Procedure,
    pub(super) tables: Vec<Table<'a>>,
    pub(super) schemas: Vec<TableSchema>,
    pub(super) declared: HashMap<&'a str, Declared>,
    /// Bytes of the fields so far, without padding.
    pub(super) field_bytes: u64,
    labels: BTreeMap<&'a str, (u32, Place)>,
    /// Instructions that branch to a label, by name.
    pub(super) branches: Vec<(usize, &'a str, Place)>,
    commit_handler: Option<usize>,
    abort_handler: Option<usize>,
    named: bool,
}

const EMPTY_HANDLER: &str = "a handler has at least one instruction; the shortest is 'commit'";

impl<'a, C: Catalog + ?Sized> Parser<'a, C> {
    fn start(source: &'a str, catalog: &'a C) -> Parse<Self> {
        let mut lexer = Lexer::new(source);
        let token = lexer.token()?;
        Ok(Self {
            lexer,
            token,
            catalog,
            procedure: Procedure::default(),
            tables: Vec::new(),
            schemas: Vec::new(),
            declared: HashMap::new(),
            field_bytes: 0,
            labels: BTreeMap::new(),
            branches: Vec::new(),
            commit_handler: None,
            abort_handler: None,
            named: false,
        })
    }

    pub(super) fn next(&mut self) -> Parse<Token<'a>> {
        let token = self.token;
        self.token = self.lexer.token()?;
        Ok(token)
    }

    pub(super) fn fail<T>(&self, message: impl Into<String>) -> Parse<T> {
        Err(self.token.place.error(message))
    }

    pub(super) fn expected<T>(&self, what: &str) -> Parse<T> {
        self.fail(format!("{what} is wanted here, not {}", self.token.kind.describe()))
    }

    pub(super) fn at_mark(&self, mark: char) -> bool {
        self.token.kind == Kind::Mark(mark)
    }

    pub(super) fn take_mark(&mut self, mark: char) -> Parse<bool> {
        let there = self.at_mark(mark);
        if there {
            self.next()?;
        }
        Ok(there)
    }

    pub(super) fn mark(&mut self, mark: char) -> Parse<()> {
        if self.take_mark(mark)? { Ok(()) } else { self.expected(&format!("'{mark}'")) }
    }

    pub(super) fn word(&mut self, what: &str) -> Parse<(&'a str, Place)> {
        match self.token.kind {
            Kind::Word(word) => {
                let place = self.next()?.place;
                Ok((word, place))
            }
            _ => self.expected(what),
        }
    }

    pub(super) fn name(&mut self, what: &str) -> Parse<(&'a str, Place)> {
        let (name, place) = self.word(what)?;
        if is_name(name) { Ok((name, place)) } else { Err(place.error(format!("{what} has at most 63 characters"))) }
    }

    /// A constant that fits in 32 bits.
    pub(super) fn number(&mut self, what: &str) -> Parse<u32> {
        self.number_up_to(what, u32::MAX)
    }

    /// A constant from zero to `most`.
    pub(super) fn number_up_to(&mut self, what: &str, most: u32) -> Parse<u32> {
        let Kind::Number(number) = self.token.kind else { return self.expected(what) };
        match u32::try_from(number).ok().filter(|&number| number <= most) {
            Some(number) => {
                self.next()?;
                Ok(number)
            }
            None => self.fail(format!("{number} is too large for {what}; at most {most} is possible")),
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
        if !self.named {
            return Err(place.error("a source begins with 'procedure NAME'"));
        }
        self.mark(':')?;
        if !is_name(name) {
            return Err(place.error("a label has at most 63 characters"));
        }
        let at = self.procedure.code.len() as u32;
        match self.labels.insert(name, (at, place)) {
            None => Ok(()),
            Some((_, Place { line, .. })) => Err(place
                .error(format!("the label '{name}' stands twice, first in line {line}; give each a name of its own"))),
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
            "param" | "result" | "scratch" => self.field(word),
            "on" => self.handler(place),
            _ => {
                if self.procedure.code.is_empty() {
                    self.lay_out()?;
                }
                let instruction = self.instruction(word, place)?;
                self.push(instruction, place)
            }
        }
    }

    fn push(&mut self, instruction: Instruction, place: Place) -> Parse<()> {
        if self.procedure.code.len() == MAX_INSTRUCTIONS {
            return Err(place.error(format!(
                "a procedure has at most {MAX_INSTRUCTIONS} instructions, those of its handlers counted"
            )));
        }
        self.procedure.code.push(instruction);
        Ok(())
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
                match self.commit_handler {
                    Some(handler) if handler == at => return Err(place.error(EMPTY_HANDLER)),
                    Some(_) => {}
                    None => {
                        self.commit_handler = Some(at);
                        self.push(Instruction::new(Opcode::Commit), place)?;
                    }
                }
                self.abort_handler = Some(self.procedure.code.len());
                Ok(())
            }
            "commit" | "abort" => Err(place.error("'on commit' and 'on abort' stand once each, in this order")),
            _ => Err(which_place
                .error(format!("there is no handler '{}'; there are 'on commit' and 'on abort'", shorten(which)))),
        }
    }

    fn finish(mut self) -> Parse<Assembled> {
        if !self.named {
            return self.fail("the source is empty; it begins with 'procedure NAME'");
        }
        if self.procedure.code.is_empty() {
            return self.fail("the procedure has no instruction; the shortest is 'commit'");
        }
        for (at, label, place) in std::mem::take(&mut self.branches) {
            let Some(&(target, _)) = self.labels.get(label) else {
                let hint = suggestion(label, self.labels.keys().copied());
                return Err(place.error(format!("no label is called '{label}'{hint}")));
            };
            self.procedure.code[at].x = target;
        }
        let end = self.token.place;
        if self.abort_handler.or(self.commit_handler) == Some(self.procedure.code.len()) {
            return Err(end.error(EMPTY_HANDLER));
        }
        for handler in [self.commit_handler, self.abort_handler] {
            if handler.is_none() {
                self.push(Instruction::new(Opcode::Commit), end)?;
            }
        }
        let length = self.procedure.code.len();
        self.procedure.commit_handler = self.commit_handler.unwrap_or(length - 2) as u32;
        self.procedure.abort_handler = self.abort_handler.unwrap_or(length - 1) as u32;
        Ok(Assembled { procedure: self.procedure, schemas: self.schemas })
    }
}
