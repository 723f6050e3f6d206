//! Values as a program has them, and as they lie in blocks and rows.

use lockwork_procedure::schema::ColumnType;

use crate::Error;

/// A value for a parameter or a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// For every integer type.
    Integer(i64),
    /// For char(n), padded with zero bytes.
    Text(String),
    /// For bytes(n): exactly n.
    Bytes(Vec<u8>),
}

impl Value {
    /// Writes the value as the first bytes of `target`.
    pub(crate) fn write(&self, name: &str, column_type: ColumnType, target: &mut [u8]) -> Result<(), Error> {
        let width = column_type.width() as usize;
        let target = &mut target[..width];
        let bytes = match (self, column_type, column_type.range()) {
            (Self::Integer(value), _, Some((lo, hi))) if (lo..=hi).contains(value) => &value.to_le_bytes()[..width],
            (Self::Text(text), ColumnType::Char(_), _) if text.len() <= width => text.as_bytes(),
            (Self::Bytes(bytes), ColumnType::Bytes(_), _) if bytes.len() == width => bytes,
            _ => {
                let value = match self {
                    Self::Integer(value) => value.to_string(),
                    Self::Text(text) => format!("a text of {} bytes", text.len()),
                    Self::Bytes(bytes) => format!("{} bytes", bytes.len()),
                };
                return Err(Error::Type { name: name.to_string(), value, wanted: column_type.to_string() });
            }
        };
        target.fill(0);
        target[..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    /// Reads an integer that lies at the start of `source`; `None` for other types.
    pub(crate) fn read_integer(column_type: ColumnType, source: &[u8]) -> Option<i64> {
        let width = column_type.width() as usize;
        let (lo, _) = column_type.range()?;
        let mut bytes = [0; 8];
        bytes[..width].copy_from_slice(&source[..width]);
        let unused = 64 - 8 * width as u32;
        let value = i64::from_le_bytes(bytes) << unused;
        Some(if lo < 0 { value >> unused } else { (value as u64 >> unused) as i64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_come_back_as_they_went() {
        let types =
            [(ColumnType::I8, -128), (ColumnType::U8, 255), (ColumnType::I32, -5), (ColumnType::U32, 4_000_000_000)];
        for (column_type, value) in types {
            let mut target = [0xAA; 8];
            Value::Integer(value).write("x", column_type, &mut target).unwrap();
            assert_eq!(Value::read_integer(column_type, &target), Some(value));
        }
        let refused = Value::Integer(256).write("x", ColumnType::U8, &mut [0]).unwrap_err();
        assert_eq!(refused.to_string(), "256 does not fit 'x', which is u8");
    }
}
