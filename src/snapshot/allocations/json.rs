//! Allocations in JSON: calls, the names of the columns, and rows of numbers.

use std::fmt;

use serde::de::{Deserializer, Error, IgnoredAny, SeqAccess, Visitor};
use serde::ser::{SerializeSeq, SerializeStruct, SerializeTuple, Serializer};
use serde::{Deserialize, Serialize};

use super::{Allocations, Call, NO_STACK, Row, stack_of};
use crate::reader::progress::{Progress, Unit};

/// The names of a row's columns. A row may lack `requested`, which then equals `bytes`. `count` is present if rows are sums
/// over several blocks.
const COLUMNS: [&str; 7] = ["address", "bytes", "time_ns", "stack", "call", "requested", "count"];
/// The columns without `count`.
const PLAIN: usize = COLUMNS.len() - 1;

impl Serialize for Allocations {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let columns = if self.is_summed() {
            &COLUMNS[..]
        } else {
            &COLUMNS[..PLAIN]
        };
        let mut fields = out.serialize_struct("Allocations", 3)?;
        fields.serialize_field("calls", &self.calls)?;
        fields.serialize_field("columns", columns)?;
        fields.serialize_field("rows", &Rows(self))?;
        fields.end()
    }
}

struct Rows<'a>(&'a Allocations);

impl Serialize for Rows<'_> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let Rows(Allocations { rows: all, counts, .. }) = self;
        let mut rows = out.serialize_seq(Some(all.len()))?;
        let progress = Progress::over("writing", all.len() as u64, Unit::Of("records"));
        for (nth, &row) in all.iter().enumerate() {
            progress.tick(nth);
            rows.serialize_element(&Counted {
                row,
                count: counts.get(nth).copied(),
            })?;
        }
        rows.end()
    }
}

/// A row and its number of blocks, if rows are sums.
pub(in crate::snapshot) struct Counted {
    row: Row,
    count: Option<u64>,
}

impl Serialize for Counted {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let Counted { row: values, count } = self;
        let columns = match count {
            Some(_) => COLUMNS.len(),
            None if values.requested == values.bytes => PLAIN - 1,
            None => PLAIN,
        };
        let mut row = out.serialize_tuple(columns)?;
        row.serialize_element(&values.address)?;
        row.serialize_element(&values.bytes)?;
        row.serialize_element(&values.time_ns)?;
        row.serialize_element(&stack_of(values.stack))?;
        row.serialize_element(&values.call)?;
        if columns >= PLAIN {
            row.serialize_element(&values.requested)?;
        }
        if let Some(count) = count {
            row.serialize_element(count)?;
        }
        row.end()
    }
}

/// Rows as they are read.
#[derive(Default)]
pub(in crate::snapshot) struct Read {
    pub rows: Vec<Row>,
    pub counts: Vec<u64>,
}

impl Read {
    pub fn push(&mut self, Counted { row, count }: Counted) {
        self.rows.push(row);
        self.counts.extend(count);
    }

    /// Either all rows have a count, or none.
    pub fn is_valid(&self) -> bool {
        self.counts.is_empty() || self.counts.len() == self.rows.len()
    }
}

impl<'de> Deserialize<'de> for Read {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Read, D::Error> {
        struct OfRows;

        impl<'de> Visitor<'de> for OfRows {
            type Value = Read;

            fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
                write!(out, "an array of rows")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut rows: A) -> Result<Read, A::Error> {
                let mut read = Read::default();
                while let Some(row) = rows.next_element()? {
                    read.push(row);
                }
                Ok(read)
            }
        }
        input.deserialize_seq(OfRows)
    }
}

impl<'de> Deserialize<'de> for Allocations {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Allocations, D::Error> {
        #[derive(Deserialize)]
        struct Fields {
            calls: Vec<Call>,
            columns: Vec<String>,
            rows: Read,
        }
        let fields = Fields::deserialize(input)?;
        // A later version may append columns.
        if fields.columns.len() < PLAIN || COLUMNS.iter().zip(&fields.columns).any(|(ours, found)| ours != found) {
            return Err(D::Error::custom(
                "the columns of `allocations` are not those that this version reads",
            ));
        }
        if !fields.rows.is_valid() {
            return Err(D::Error::custom("some rows have a count, others have none"));
        }
        Ok(Allocations {
            calls: fields.calls,
            rows: fields.rows.rows,
            counts: fields.rows.counts,
        })
    }
}

impl<'de> Deserialize<'de> for Counted {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Counted, D::Error> {
        struct OfRow;

        impl<'de> Visitor<'de> for OfRow {
            type Value = Counted;

            fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
                write!(out, "an array of {} to {} numbers", PLAIN - 1, COLUMNS.len())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut columns: A) -> Result<Counted, A::Error> {
                let short = |column| A::Error::invalid_length(column, &self);
                let address = columns.next_element()?.ok_or_else(|| short(0))?;
                let bytes = columns.next_element()?.ok_or_else(|| short(1))?;
                let time_ns = columns.next_element()?.ok_or_else(|| short(2))?;
                let stack: Option<u32> = columns.next_element()?.ok_or_else(|| short(3))?;
                let call = columns.next_element()?.ok_or_else(|| short(4))?;
                let requested = columns.next_element()?.unwrap_or(bytes);
                let count = columns.next_element()?;
                while columns.next_element::<IgnoredAny>()?.is_some() {}
                if stack == Some(NO_STACK) {
                    return Err(A::Error::custom("the index of a stack is too large"));
                }
                let row = Row {
                    address,
                    bytes,
                    requested,
                    time_ns,
                    stack: stack.unwrap_or(NO_STACK),
                    call,
                };
                Ok(Counted { row, count })
            }
        }
        input.deserialize_seq(OfRow)
    }
}
