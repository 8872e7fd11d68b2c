//! Comma-separated values: one row per live allocation, for spreadsheets and scripts. See `records` for the columns.

use std::io::{self, Write};

use csv::Writer;

use super::records::{COLUMNS, Field, Rows};

pub fn write(rows: &Rows, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Writer::from_writer(out);
    table.write_record(COLUMNS.iter().map(|column| column.name))?;
    for &seen in &rows.seen {
        let allocation = &rows.allocation(seen);
        table.write_record(COLUMNS.iter().map(|column| match column.field {
            Field::Number(number) => number(allocation).to_string(),
            Field::Text(text) => text(rows, allocation, seen),
        }))?;
    }
    table.flush()
}
