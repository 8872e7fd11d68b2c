//! The rows of a report as columns: the fields of a row, its tallies by dimension, and its stacks.

use std::collections::BTreeMap;

use culeak::analysis::estimate::Errors;
use culeak::analysis::report::{By, Row, Tally};

use super::data::Data;
use crate::text::parts;
use culeak::analysis::function_name::plain;

/// A stack of a row: its number, and the row's memory with that stack.
pub type Part = (u64, Tally);

/// The dimensions that a row's memory is divided by, in the order of the numbers in `tally.dimension`.
pub const DIMENSIONS: [&str; 5] = ["kinds", "devices", "streams", "threads", "apis"];

/// Writes the rows. `stacks`: of each row, largest first.
pub fn write(data: &mut Data, prefix: &str, rows: &[Row], by: By, stacks: &[Vec<Part>]) {
    let is_code = matches!(by, By::Site | By::Stack);
    let labels: Vec<u64> = rows.iter().map(|row| label(data, row, is_code)).collect();
    let places: Vec<u64> = rows.iter().map(|row| place(data, row, is_code)).collect();
    let marks: Vec<u64> = rows.iter().map(|row| data.text(parts::mark(row).trim())).collect();
    let tallies: Vec<Vec<(u64, u64, Tally)>> = rows.iter().map(|row| tallies(data, row)).collect();
    let flat = || tallies.iter().flatten();
    let stack = || stacks.iter().flatten();
    let columns = &mut data.columns;
    let mut add = |name: &str, numbers: &mut dyn Iterator<Item = u64>| columns.add(format!("{prefix}.{name}"), numbers);
    add("label", &mut labels.into_iter());
    add("place", &mut places.into_iter());
    add("mark", &mut marks.into_iter());
    add("bytes", &mut rows.iter().map(|row| row.bytes));
    add("count", &mut rows.iter().map(|row| row.count));
    add("estimated", &mut rows.iter().map(|row| estimated(row.estimated)));
    add("claims", &mut rows.iter().map(|row| row.claims));
    add("smallest", &mut rows.iter().map(|row| row.smallest));
    add("largest", &mut rows.iter().map(|row| row.largest));
    add("oldest", &mut rows.iter().map(|row| row.oldest_age_ns));
    add("newest", &mut rows.iter().map(|row| row.newest_age_ns));
    add("stacks_in_all", &mut rows.iter().map(|row| row.stacks_in_all as u64));
    add("tallies", &mut tallies.iter().map(|tallies| tallies.len() as u64));
    add("tally.dimension", &mut flat().map(|tally| tally.0));
    add("tally.name", &mut flat().map(|tally| tally.1));
    add("tally.bytes", &mut flat().map(|tally| tally.2.bytes));
    add("tally.count", &mut flat().map(|tally| tally.2.count));
    add("stacks", &mut stacks.iter().map(|stacks| stacks.len() as u64));
    add("stack.number", &mut stack().map(|part| part.0));
    add("stack.bytes", &mut stack().map(|part| part.1.bytes));
    add("stack.count", &mut stack().map(|part| part.1.count));
}

/// 0 if a row is exact; otherwise 1 more than its standard error in bytes.
pub fn estimated(errors: Option<Errors>) -> u64 {
    errors.map_or(0, |errors| errors.bytes_error.saturating_add(1))
}

fn label(data: &mut Data, row: &Row, is_code: bool) -> u64 {
    if is_code {
        data.text(&plain(&row.label))
    } else {
        data.text(&row.label)
    }
}

fn place(data: &mut Data, row: &Row, is_code: bool) -> u64 {
    let site = row.site().filter(|_| is_code);
    data.text(&site.and_then(|site| site.short_place()).unwrap_or_default())
}

fn tallies(data: &mut Data, row: &Row) -> Vec<(u64, u64, Tally)> {
    fn each<'a, K: AsRef<str> + 'a>(tallies: &'a BTreeMap<K, Tally>) -> impl Iterator<Item = (&'a str, Tally)> {
        tallies.iter().map(|(name, tally)| (name.as_ref(), *tally))
    }
    let mut found = Vec::new();
    let mut add = |dimension: u64, tallies: &mut dyn Iterator<Item = (&str, Tally)>| {
        for (name, tally) in tallies {
            found.push((dimension, data.text(name), tally));
        }
    };
    add(0, &mut each(&row.kinds));
    add(1, &mut each(&row.devices));
    add(2, &mut each(&row.streams));
    add(3, &mut each(&row.threads));
    add(4, &mut each(&row.apis));
    found
}
