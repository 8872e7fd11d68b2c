//! Comma-separated values: one row per live allocation, for spreadsheets and scripts. See `records` for the columns.
//!
//! A spreadsheet runs a text that begins with `=`, `+`, `-` or `@` as a formula, and recorded names are untrusted. Such a
//! text gets an apostrophe in front, which marks it as text. Where the comma is the decimal separator, spreadsheets split
//! fields at `;`, so each frame of a stack is treated in the same way. Parquet has the unchanged text.

use std::borrow::Cow;
use std::io::{self, Write};

use csv::Writer;
use itoa::Buffer;

use super::Input;
use super::records::{COLUMNS, Column, Field, Rows};
use crate::progress::{Progress, Unit};

pub fn export(input: &Input, out: &mut dyn Write) -> io::Result<()> {
    write_all(input.tables(), out)
}

pub fn write_all<'a>(mut tables: impl Iterator<Item = Rows<'a>>, out: &mut dyn Write) -> io::Result<()> {
    write_header(out)?;
    tables.try_for_each(|rows| write_rows(&rows, out))
}

fn write_header(out: &mut dyn Write) -> io::Result<()> {
    let mut header = Writer::from_writer(&mut *out);
    header.write_record(COLUMNS.iter().map(|column| column.name))?;
    header.flush()
}

fn write_rows(rows: &Rows, out: &mut dyn Write) -> io::Result<()> {
    let texts = (0..COLUMNS.len()).map(|column| rows.texts(column).iter().map(|text| quoted(text)).collect());
    let texts: Vec<Vec<Vec<u8>>> = texts.collect::<Result<_, io::Error>>()?;
    let progress = Progress::over("writing", rows.rows().len() as u64, Unit::Of("rows"));
    let (mut line, mut digits) = (Vec::new(), Buffer::new());
    for (nth, row) in rows.rows().iter().enumerate() {
        let allocation = rows.allocation(row);
        line.clear();
        for (column, Column { field, .. }) in COLUMNS.iter().enumerate() {
            line.extend_from_slice(match field {
                Field::Number(number) => digits.format(number(&allocation)).as_bytes(),
                _ => &texts[column][rows.text(column, row)],
            });
            line.push(b',');
        }
        // Removes the comma after the last field.
        line.pop();
        line.push(b'\n');
        out.write_all(&line)?;
        progress.tick(nth);
    }
    Ok(())
}

/// The text, with an apostrophe before each formula.
fn without_formulas(text: &str) -> Cow<'_, str> {
    let is_formula = |part: &str| part.starts_with(['=', '+', '-', '@']);
    if !text.split(';').any(is_formula) {
        return Cow::Borrowed(text);
    }
    let parts = text.split(';').map(|part| match is_formula(part) {
        true => format!("'{part}"),
        false => part.to_owned(),
    });
    Cow::Owned(parts.collect::<Vec<_>>().join(";"))
}

/// A field, quoted if necessary.
fn quoted(text: &str) -> io::Result<Vec<u8>> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let text = without_formulas(text);
    let mut field = Vec::new();
    let mut writer = Writer::from_writer(&mut field);
    writer.write_record([&*text])?;
    writer.flush()?;
    drop(writer);
    // Removes the line break.
    field.pop();
    Ok(field)
}
