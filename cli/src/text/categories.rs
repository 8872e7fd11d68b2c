//! The rules that decided the categories of a report, with the memory of each.

use std::io::{self, Write};

use culeak::analysis::categories::{BUILT_IN_NAME, Category, CategoryTotal};

use super::parts::{self, DIM, Styled};
use super::{columns, units};
use crate::escape::Escaped;

/// Writes one line per rule that decided memory, grouped by category, and the memory that no rule matched.
pub fn write(totals: &[CategoryTotal], out: &mut dyn Write) -> io::Result<()> {
    if totals.is_empty() {
        return Ok(());
    }
    writeln!(out, "{}", Styled(parts::BOLD, "decided by"))?;
    let mut lines = Vec::new();
    for total in totals {
        let mut rules: Vec<_> = total.rules.iter().collect();
        rules.sort_by_key(|decided| std::cmp::Reverse(decided.memory.bytes));
        for decided in rules {
            let place = match decided.source.as_str() {
                BUILT_IN_NAME => BUILT_IN_NAME.to_owned(),
                source => format!("{}:{}", Escaped(source), decided.line),
            };
            lines.push((decided.memory, Escaped(&decided.rule).to_string(), place));
        }
        if total.category == Category::Other && total.rules.is_empty() {
            lines.push((total.memory, "no rule matches".to_owned(), String::new()));
        }
    }
    let sizes: Vec<String> = lines.iter().map(|(memory, ..)| units::bytes(memory.bytes)).collect();
    let width = sizes.iter().map(|size| columns::width(size)).max().unwrap_or(0);
    for ((_, rule, place), size) in lines.iter().zip(sizes) {
        let gap = if place.is_empty() { "" } else { "  " };
        writeln!(out, "  {size:>width$}  {rule}{gap}{}", Styled(DIM, place))?;
    }
    Ok(())
}
