//! Numbers by column, in a variable-length encoding.
//!
//! The numbers of a column are similar (sizes, counts, indices), so columns compress far better than records, and the
//! page reads each into one typed array. Seven bits per byte, lowest first; the top bit is set if more bytes follow.

use serde::Serialize;

#[derive(Debug, Serialize)]
pub struct Column {
    pub name: String,
    pub count: usize,
}

/// The concatenated columns, and their names.
#[derive(Debug, Default)]
pub struct Columns {
    pub names: Vec<Column>,
    pub bytes: Vec<u8>,
}

impl Columns {
    pub fn add(&mut self, name: impl Into<String>, numbers: impl IntoIterator<Item = u64>) {
        let mut count = 0;
        for mut number in numbers {
            while number >= 0x80 {
                self.bytes.push(number as u8 | 0x80);
                number >>= 7;
            }
            self.bytes.push(number as u8);
            count += 1;
        }
        self.names.push(Column {
            name: name.into(),
            count,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(bytes: &[u8]) -> Vec<u64> {
        let mut numbers = Vec::new();
        let (mut number, mut shift) = (0u64, 0);
        for &byte in bytes {
            number |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                numbers.push(number);
                (number, shift) = (0, 0);
            }
        }
        numbers
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(numbers in any::<Vec<u64>>()) {
            let mut columns = Columns::default();
            columns.add("numbers", numbers.iter().copied());
            prop_assert_eq!(columns.names[0].count, numbers.len());
            prop_assert_eq!(read(&columns.bytes), numbers);
        }
    }
}
