//! Rows of a table in memory, column by column.
//!
//! Millions of rows share a few thousand texts, so each text is stored once per column.

use std::cmp::Ordering;

use foldhash::HashMap;

use crate::schema::{Table, Type};

/// A value on its way into a table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    Null,
    Number(i64),
    Text(&'a str),
    Flag(bool),
}

impl Value<'_> {
    /// The largest number stands for all larger ones.
    pub fn of(number: u64) -> Value<'static> {
        Value::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl<'a> From<Option<&'a str>> for Value<'a> {
    fn from(text: Option<&'a str>) -> Value<'a> {
        text.map_or(Value::Null, Value::Text)
    }
}

impl From<Option<u64>> for Value<'_> {
    fn from(number: Option<u64>) -> Self {
        number.map_or(Value::Null, Value::of)
    }
}

/// Stands for NULL among the numbers of texts.
pub const NO_TEXT: u32 = u32::MAX;

#[derive(Debug, Clone, Default)]
pub struct Texts {
    numbers: HashMap<String, u32>,
    pub distinct: Vec<String>,
    /// By row.
    pub of: Vec<u32>,
}

impl Texts {
    fn number(&mut self, text: &str) -> u32 {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let number = self.distinct.len() as u32;
        self.distinct.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }
}

#[derive(Debug, Clone)]
pub enum Data {
    Numbers(Vec<Option<i64>>),
    Texts(Texts),
    Flags(Vec<Option<bool>>),
}

/// Rows of one table.
#[derive(Debug, Clone)]
pub struct Rows {
    pub table: &'static Table,
    pub data: Vec<Data>,
    len: usize,
}

impl Rows {
    pub fn new(table: &'static Table) -> Rows {
        let data = table.columns.iter().map(|column| match column.of {
            Type::Number => Data::Numbers(Vec::new()),
            Type::Text => Data::Texts(Texts::default()),
            Type::Flag => Data::Flags(Vec::new()),
        });
        Rows {
            table,
            data: data.collect(),
            len: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a row; a value of another type than its column's is NULL.
    pub fn push(&mut self, row: &[Value]) {
        debug_assert_eq!(row.len(), self.data.len(), "{}", self.table.name);
        for (nth, data) in self.data.iter_mut().enumerate() {
            let value = row.get(nth).copied().unwrap_or(Value::Null);
            match data {
                Data::Numbers(numbers) => numbers.push(match value {
                    Value::Number(number) => Some(number),
                    _ => None,
                }),
                Data::Flags(flags) => flags.push(match value {
                    Value::Flag(flag) => Some(flag),
                    _ => None,
                }),
                Data::Texts(texts) => {
                    let number = match value {
                        Value::Text(text) => texts.number(text),
                        _ => NO_TEXT,
                    };
                    texts.of.push(number);
                }
            }
        }
        self.len += 1;
    }

    pub fn value(&self, column: usize, row: usize) -> Value<'_> {
        match &self.data[column] {
            Data::Numbers(numbers) => numbers[row].map_or(Value::Null, Value::Number),
            Data::Flags(flags) => flags[row].map_or(Value::Null, Value::Flag),
            Data::Texts(texts) => match texts.of[row] {
                NO_TEXT => Value::Null,
                number => Value::Text(&texts.distinct[number as usize]),
            },
        }
    }

    pub fn text(&self, column: usize, row: usize) -> &str {
        match self.value(column, row) {
            Value::Text(text) => text,
            _ => "",
        }
    }

    /// The rows in the order of the table; NULL is least.
    pub fn sorted(&self) -> Vec<u32> {
        let columns: Vec<Vec<i64>> = self.table.order.iter().filter_map(|name| self.keys(name)).collect();
        let mut rows: Vec<u32> = (0..self.len as u32).collect();
        let compare = |a: &u32, b: &u32| {
            let each = columns.iter().map(|keys| keys[*a as usize].cmp(&keys[*b as usize]));
            each.fold(Ordering::Equal, Ordering::then)
        };
        // Stable, so that equal rows keep their order, and files are the same in every run.
        rows.sort_by(compare);
        rows
    }

    /// Numbers that compare as the values of a column do.
    fn keys(&self, name: &str) -> Option<Vec<i64>> {
        Some(match &self.data[self.table.column(name)?] {
            Data::Numbers(numbers) => numbers.iter().map(|number| number.unwrap_or(i64::MIN)).collect(),
            Data::Flags(flags) => flags.iter().map(|flag| flag.map_or(-1, i64::from)).collect(),
            Data::Texts(texts) => {
                let mut order: Vec<u32> = (0..texts.distinct.len() as u32).collect();
                order.sort_by_key(|&number| &texts.distinct[number as usize]);
                let mut place = vec![0; order.len()];
                for (nth, number) in order.into_iter().enumerate() {
                    place[number as usize] = nth as i64;
                }
                texts
                    .of
                    .iter()
                    .map(|&number| place.get(number as usize).copied().unwrap_or(-1))
                    .collect()
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::STACKS;

    #[test]
    fn rows_keep_their_values_when_they_are_sorted() {
        let row = |job: &'static str, stack: &'static str, line| {
            let mut row = [Value::Null; 12];
            (row[0], row[1], row[6]) = (Value::Text(job), Value::Text(stack), line);
            row
        };
        let mut one = Rows::new(&STACKS);
        one.push(&row("b", "2", Value::Number(7)));
        one.push(&row("a", "9", Value::Null));
        one.push(&row("a", "1", Value::of(u64::MAX)));
        assert_eq!(one.len(), 3);
        let shown: Vec<(&str, &str, Value)> = one
            .sorted()
            .into_iter()
            .map(|row| row as usize)
            .map(|row| (one.text(0, row), one.text(1, row), one.value(6, row)))
            .collect();
        assert_eq!(
            shown,
            [
                ("a", "1", Value::Number(i64::MAX)),
                ("a", "9", Value::Null),
                ("b", "2", Value::Number(7))
            ]
        );
    }
}
