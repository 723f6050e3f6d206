//! (the interpreter)
