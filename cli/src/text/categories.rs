//! The rules that decided the categories of a report, with the memory of each.

use culeak::analysis::categories::{BUILT_IN_NAME, CategoryTotal, Decided};
use culeak::tally::Tally;

use crate::document::{Cell, Document, Rows, bold, dim};

/// One line per rule that decided memory, grouped by category, the memory that no rule matched, and the user's rules that
/// matched nothing.
pub fn write(totals: &[CategoryTotal], page: &mut Document) {
    let mut lines: Vec<(Tally, String)> = Vec::new();
    for total in totals {
        let mut used: Vec<&Decided> = total.rules.iter().filter(|rule| rule.memory.count > 0).collect();
        used.sort_by_key(|rule| std::cmp::Reverse(rule.memory.bytes));
        lines.extend(used.iter().map(|rule| (rule.memory, name(rule))));
        let matched = Tally::total(used.iter().map(|rule| rule.memory));
        let rest = total.memory.less(matched);
        if rest.count > 0 {
            lines.push((rest, format!("{}: no rule matches", total.category.name())));
        }
    }
    if lines.is_empty() {
        return;
    }
    page.line(bold("by rule"));
    let rows = Rows::of(lines)
        .bare()
        .column("bytes", |(memory, _)| Cell::Size(memory.bytes));
    page.table(rows.column("rule", |(_, rule)| rule.clone()));
    let rules = totals.iter().flat_map(|total| &total.rules);
    for rule in rules.filter(|rule| rule.memory.count == 0) {
        page.item(dim(format!("never matched: {}", name(rule))));
    }
}

/// The rule, and where it is written.
fn name(rule: &Decided) -> String {
    match rule.source.as_str() {
        BUILT_IN_NAME => format!("{} ({BUILT_IN_NAME})", rule.rule),
        source => format!("{} ({source}:{})", rule.rule, rule.line),
    }
}
