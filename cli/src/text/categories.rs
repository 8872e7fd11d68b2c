//! The rules that decided the categories of a report, with the memory of each.

use std::io::{self, Write};

use culeak::analysis::categories::{BUILT_IN_NAME, CategoryTotal, Decided};
use culeak::analysis::tally::Tally;

use super::parts::{self, DIM, Styled};
use super::{columns, units};
use crate::escape::Escaped;

/// Writes one line per rule that decided memory, grouped by category, the memory that no rule matched, and the user's rules
/// that matched nothing.
pub fn write(totals: &[CategoryTotal], out: &mut dyn Write) -> io::Result<()> {
    let mut lines: Vec<(Tally, String)> = Vec::new();
    for total in totals {
        let mut used: Vec<&Decided> = total.rules.iter().filter(|rule| rule.memory.count > 0).collect();
        used.sort_by_key(|rule| std::cmp::Reverse(rule.memory.bytes));
        lines.extend(used.iter().map(|rule| (rule.memory, name(rule))));
        let matched = Tally::total(used.iter().map(|rule| rule.memory));
        let rest = Tally {
            bytes: total.memory.bytes.saturating_sub(matched.bytes),
            count: total.memory.count.saturating_sub(matched.count),
        };
        if rest.count > 0 {
            lines.push((rest, format!("{}: no rule matches", total.category.name())));
        }
    }
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(out, "{}", Styled(parts::BOLD, "by rule"))?;
    let sizes: Vec<String> = lines.iter().map(|(memory, _)| units::bytes(memory.bytes)).collect();
    let width = sizes.iter().map(|size| columns::width(size)).max().unwrap_or(0);
    for ((_, rule), size) in lines.iter().zip(sizes) {
        writeln!(out, "  {size:>width$}  {rule}")?;
    }
    let unused = totals.iter().flat_map(|total| &total.rules);
    for rule in unused.filter(|rule| rule.memory.count == 0) {
        writeln!(out, "  {}", Styled(DIM, format!("never matched: {}", name(rule))))?;
    }
    Ok(())
}

/// The rule, and where it is written.
fn name(rule: &Decided) -> String {
    let text = Escaped(&rule.rule);
    match rule.source.as_str() {
        BUILT_IN_NAME => format!("{text} ({BUILT_IN_NAME})"),
        source => format!("{text} ({}:{})", Escaped(source), rule.line),
    }
}
