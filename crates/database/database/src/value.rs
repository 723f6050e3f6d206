//! Values as a program has them, and as they lie in blocks and rows.

use lockwork_procedure::program::Field;
use lockwork_procedure::schema::ColumnType;
use lockwork_sql::SqlType;

use crate::Error;

/// A value for a parameter or a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// For every integer type.
    Integer(i64),
    /// For char(n), padded with zero bytes.
    Text(String),
    /// For bytes(n): exactly n. For an array of any type: all its elements, as [`crate::Answer::bytes`] gives them
    /// (integers in little-endian order one after the other; texts and bytes from 64 bytes on each begin at a multiple
    /// of 64).
    Bytes(Vec<u8>),
    /// For an array of integers: all its elements.
    Integers(Vec<i64>),
}

/// A type, and how many elements of it if it is an array's.
pub(crate) fn type_name(column_type: ColumnType, count: u32) -> String {
    if count == 1 { column_type.to_string() } else { format!("{column_type}[{count}]") }
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
            _ => return Err(self.misfit(name, column_type.to_string())),
        };
        target.fill(0);
        target[..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    /// Refuses a number that SQL says cannot be: one with more digits than its DECIMAL, or a BOOLEAN above 1.
    pub(crate) fn check(&self, name: &str, sql: SqlType) -> Result<(), Error> {
        let Some((lo, hi)) = sql.range() else { return Ok(()) };
        let numbers = match self {
            Self::Integer(number) => std::slice::from_ref(number),
            Self::Integers(numbers) => numbers,
            Self::Text(_) | Self::Bytes(_) => return Ok(()),
        };
        match numbers.iter().find(|number| !(lo..=hi).contains(number)) {
            Some(number) => {
                let wanted = format!("{sql}: {lo} to {hi} as it is stored");
                Err(Error::Type { name: name.to_string(), value: number.to_string(), wanted })
            }
            None => Ok(()),
        }
    }

    /// Writes the value at the place of a parameter in the block `image`.
    pub(crate) fn write_field(&self, field: &Field, image: &mut [u8]) -> Result<(), Error> {
        let target = &mut image[field.offset as usize..field.end() as usize];
        if field.count == 1 {
            return self.write(&field.name, field.column_type, target);
        }
        let wanted = type_name(field.column_type, field.count);
        match (self, field.column_type.range()) {
            (Self::Bytes(bytes), _) if bytes.len() == target.len() => target.copy_from_slice(bytes),
            (Self::Bytes(_), _) => return Err(self.misfit(&field.name, format!("{wanted} ({} bytes)", target.len()))),
            (Self::Integers(values), Some((lo, hi))) if values.len() == field.count as usize => {
                if let Some((at, value)) = values.iter().enumerate().find(|(_, value)| !(lo..=hi).contains(value)) {
                    let value = format!("{value} as element {at}");
                    return Err(Error::Type { name: field.name.clone(), value, wanted });
                }
                let width = field.column_type.width() as usize;
                for (place, value) in target.chunks_exact_mut(width).zip(values) {
                    place.copy_from_slice(&value.to_le_bytes()[..width]);
                }
            }
            _ => return Err(self.misfit(&field.name, wanted)),
        }
        Ok(())
    }

    fn misfit(&self, name: &str, wanted: String) -> Error {
        let value = match self {
            Self::Integer(value) => value.to_string(),
            Self::Text(text) => format!("a text of {} bytes", text.len()),
            Self::Bytes(bytes) => format!("{} bytes", bytes.len()),
            Self::Integers(values) => format!("{} integers", values.len()),
        };
        Error::Type { name: name.to_string(), value, wanted }
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
