//! (the assembler and disassembler)
