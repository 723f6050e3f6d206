//! Widths: what a load, a store or a copy takes from the type of the thing it names.
//!
//! Assembler and disassembler share these rules, so that what one leaves out the other adds again.

use crate::isa::SIGNED;
use crate::schema::ColumnType;

/// The types that a suffix of a mnemonic can name.
pub(super) const INTEGERS: [ColumnType; 7] = [
    ColumnType::I8,
    ColumnType::I16,
    ColumnType::I32,
    ColumnType::I64,
    ColumnType::U8,
    ColumnType::U16,
    ColumnType::U32,
];

/// Field w of a load or store of this type; `None` when it does not fit a register. Eight bytes have no room for a
/// sign to be extended into, so `i64` stands without [`SIGNED`].
pub(super) fn natural_width(column_type: ColumnType) -> Option<u16> {
    if !column_type.is_integer() {
        return None;
    }
    let sign = if column_type.is_signed() && column_type != ColumnType::I64 { SIGNED } else { 0 };
    u16::try_from(column_type.width()).ok().map(|width| width | sign)
}

/// The suffix that stands for field w: `u8`, or `w3` for a width that is no type's.
pub(super) fn suffix(w: u16) -> String {
    match INTEGERS.into_iter().find(|&column_type| natural_width(column_type) == Some(w)) {
        Some(column_type) => column_type.to_string(),
        None => format!("w{w}"),
    }
}

/// Field w of a suffix.
pub(super) fn parse_suffix(suffix: &str) -> Option<u16> {
    if let Some(digits) = suffix.strip_prefix('w') {
        let decimal = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        return if decimal { digits.parse().ok() } else { None };
    }
    ColumnType::parse(suffix).and_then(natural_width)
}

/// How many bytes a copy moves when nothing is said: as many as the one side that is named is wide, or both sides if
/// they agree.
pub(super) fn copy_length(target: Option<ColumnType>, source: Option<ColumnType>) -> Option<u32> {
    match (target, source) {
        (Some(target), Some(source)) => (target.width() == source.width()).then(|| source.width()),
        (Some(named), None) | (None, Some(named)) => Some(named.width()),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_has_a_suffix_that_reads_back() {
        for w in 0..=u16::MAX {
            assert_eq!(parse_suffix(&suffix(w)), Some(w));
        }
        assert_eq!((suffix(8).as_str(), suffix(SIGNED | 4).as_str(), suffix(4).as_str()), ("i64", "i32", "u32"));
        for text in ["", "w", "w65536", "w+1", "u64", "bytes", "char(4)"] {
            assert_eq!(parse_suffix(text), None, "{text}");
        }
    }
}
