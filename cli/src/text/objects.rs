//! Objects without an address as text: a line of totals, the kinds, and the rows.

use std::io::{self, Write};

use anstyle::Style;
use culeak::analysis::diff::{DiffRow, ObjectChanges, State};
use culeak::analysis::filter::only_objects;
use culeak::analysis::objects::{KindOfObject, ObjectRow, Objects};
use culeak::analysis::report::Report;
use culeak::analysis::words::of_kind;
use culeak::kind::{Kind, Place};

use super::columns;
use super::diff::{self, RowStack, state};
use super::parts::{self, BOLD, DIM, GOOD, Styled};
use super::units::{self, plural};
use crate::escape::Escaped;

/// `128 streams, 40 executable graphs at 3 call sites; 5 suppressed`; `None` if there are none.
pub fn line(objects: &Objects) -> Option<String> {
    // The others are among the claims.
    let is_plain = |of: &&KindOfObject| Kind::from_name(of.kind).is_some_and(|kind| kind.place() == Place::Object);
    let plain = || objects.kinds.iter().filter(is_plain);
    let shown = |of: &KindOfObject| of.live - of.suppressed;
    let kinds: Vec<String> = plain()
        .filter(|of| shown(of) > 0)
        .map(|of| of_kind(shown(of), of.kind))
        .collect();
    let mut parts = Vec::new();
    if !kinds.is_empty() {
        let sites = plural(objects.call_sites as u64, "call site", "call sites");
        parts.push(format!("{} at {sites}", kinds.join(", ")));
    }
    let suppressed = plain().fold(0, |sum: u64, of| sum.saturating_add(of.suppressed));
    if suppressed > 0 {
        parts.push(format!("{} suppressed", units::count(suppressed)));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// `graph-exec: 40 live, 43 created, 3 destroyed`; numbers that are not known are omitted.
pub fn kind(of: &KindOfObject) -> String {
    let mut text = format!("{}: {} live", of.kind, units::count(of.live));
    if of.suppressed > 0 {
        text += &format!(" ({} suppressed)", units::count(of.suppressed));
    }
    for (count, word) in [(of.created, "created"), (of.destroyed, "destroyed")] {
        if let Some(count) = count {
            text += &format!(", {} {word}", units::count(count));
        }
    }
    text
}

/// `21 stream objects left at 1 call site`, and its style, if the report shows only kinds of objects.
pub fn headline(report: &Report) -> Option<(Style, String)> {
    let kinds = &report.filter.as_ref()?.filter.kinds;
    if !only_objects(kinds) || !report.objects.known {
        return None;
    }
    let word = if report.finished { "left" } else { "held" };
    let live = report.objects.kinds.iter().filter(|of| of.live > 0);
    let counts: Vec<String> = live
        .map(|of| format!("{} {}", units::count(of.live), of.kind))
        .collect();
    if counts.is_empty() {
        let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
        return Some((GOOD, format!("no {} object {word}", names.join(" or "))));
    }
    let total = report
        .objects
        .kinds
        .iter()
        .fold(0, |sum: u64, of| sum.saturating_add(of.live));
    let noun = if total == 1 { "object" } else { "objects" };
    let sites = match report.objects.call_sites as u64 {
        0 => String::new(),
        sites => format!(" at {}", plural(sites, "call site", "call sites")),
    };
    Some((BOLD, format!("{} {noun} {word}{sites}", counts.join(" and "))))
}

/// The kinds, one per line.
pub fn write_kinds(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let objects = &report.objects;
    writeln!(out, "{}", Styled(BOLD, "objects without an address"))?;
    if !objects.known {
        let why = match report.when.is_some() {
            true => "not known at this point",
            false => "not recorded",
        };
        return writeln!(out, "  {why}");
    }
    if objects.is_empty() {
        let none = match report.filter.is_some() {
            true => "none passes the filter",
            false => "none was created",
        };
        return writeln!(out, "  {none}");
    }
    // Counters have no stacks and times, so a filter by these leaves the live numbers alone.
    let has_counters = objects.kinds.iter().any(|of| of.created.is_some());
    let known = |count: Option<u64>| count.map_or_else(|| "?".to_owned(), units::count);
    let numbers = |of: &KindOfObject| [units::count(of.live), known(of.created), known(of.destroyed)];
    let mut widths = [0; 3];
    for numbers in objects.kinds.iter().map(numbers) {
        for (width, number) in widths.iter_mut().zip(&numbers) {
            *width = (*width).max(number.len());
        }
    }
    let names = objects.kinds.iter().map(|of| of.kind.len()).max().unwrap_or(0);
    for of in &objects.kinds {
        let [live, created, destroyed] = numbers(of);
        let [w0, w1, w2] = widths;
        let mut line = format!("  {:names$}  {live:>w0$} live", of.kind);
        if has_counters {
            line += &format!("  {created:>w1$} created  {destroyed:>w2$} destroyed");
        }
        if of.suppressed > 0 {
            line += &format!("  {} suppressed", units::count(of.suppressed));
        }
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// The kinds, and the rows with their stacks.
pub fn write(report: &Report, full_stacks: bool, out: &mut dyn Write) -> io::Result<()> {
    write_kinds(report, out)?;
    writeln!(out)?;
    for row in &report.objects.rows {
        writeln!(out, "{}", cut(&title(row)))?;
        parts::stack(out, &row.stack, full_stacks, "     ")?;
        if row.stacks_in_all > 1 {
            let more = plural(row.stacks_in_all as u64 - 1, "more stack", "more stacks");
            writeln!(out, "     {}", Styled(DIM, format!("and {more}")))?;
        }
        writeln!(out)?;
    }
    if report.objects.hidden_rows > 0 {
        let rows = plural(report.objects.hidden_rows as u64, "more row", "more rows");
        let objects = plural(report.objects.hidden, "object", "objects");
        let text = format!("  … and {rows} with {objects}; --top 0 shows all");
        writeln!(out, "{}\n", Styled(DIM, text))?;
    }
    Ok(())
}

/// Rows without their stacks, as in a verdict.
pub fn write_lines<'r, 'a: 'r>(
    rows: impl ExactSizeIterator<Item = &'r ObjectRow<'a>>,
    most: usize,
    out: &mut dyn Write,
) -> io::Result<()> {
    let hidden = rows.len().saturating_sub(most) as u64;
    for row in rows.take(most) {
        writeln!(out, "{}", cut(&title(row)))?;
    }
    if hidden > 0 {
        let more = plural(hidden, "more call site of objects", "more call sites of objects");
        writeln!(out, "  {}", Styled(DIM, format!("… and {more}")))?;
    }
    Ok(())
}

/// `40 graph-exec  serve  server.cpp:88  (cudaGraphInstantiateWithFlags; 50 nodes each; 40 s to 2.1 s old)`
pub fn title(row: &ObjectRow) -> String {
    let ages = match row.count {
        1 => format!("{} old", units::duration(row.oldest_age_ns)),
        _ => format!(
            "{} to {} old",
            units::duration(row.newest_age_ns),
            units::duration(row.oldest_age_ns)
        ),
    };
    let nodes = match row.nodes {
        None => String::new(),
        Some((least, most)) if least == most => format!("; {} each", plural(most, "node", "nodes")),
        Some((least, most)) => format!("; {} to {} nodes", units::count(least), units::count(most)),
    };
    let kernels: Vec<String> = (row.kernels.iter())
        .map(|name| parts::short_name(name))
        .map(|name| Escaped(&name).to_string())
        .collect();
    let kernels = match &kernels[..] {
        [] => String::new(),
        [only] => format!("; kernel {only}"),
        some => format!("; kernels {} …", some.join(", ")),
    };
    let library = parts::mark_of(false, None, row.library);
    format!(
        "  {} {}  {}{}{library}  ({}{nodes}{kernels}; {ages})",
        units::count(row.count),
        row.kind,
        parts::short_name(&row.label),
        parts::place(row.stack.site()),
        Escaped(row.api)
    )
}

/// On a terminal, a line as wide as it.
fn cut(text: &str) -> String {
    match columns::available() {
        Some(width) => columns::shortened(text, width),
        None => text.to_owned(),
    }
}

/// The changes between two snapshots. `with_title`: after a line with the totals.
pub fn write_changes(
    changes: &ObjectChanges,
    with_title: bool,
    stacks: RowStack,
    out: &mut dyn Write,
) -> io::Result<()> {
    if changes.rows.is_empty() {
        return Ok(());
    }
    let delta = i128::from(changes.after) - i128::from(changes.before);
    let counts = format!(
        "objects without an address: {} ({})",
        units::count(changes.after),
        units::signed_count(delta)
    );
    if with_title {
        writeln!(out, "\n{}", Styled(BOLD, counts))?;
    }
    for row in &changes.rows {
        writeln!(out, "  {}", change(row))?;
        diff::write_stack(row, stacks, true, out)?;
    }
    if changes.hidden_rows > 0 {
        let rows = plural(changes.hidden_rows as u64, "more row", "more rows");
        let text = format!("… and {rows}; {} shows all", parts::all_rows(changes.cut));
        writeln!(out, "  {}", Styled(DIM, text))?;
    }
    Ok(())
}

/// `grown     graph-exec  serve  server.cpp:88: count=40 (+28)`
fn change(row: &DiffRow) -> String {
    let (word, style) = state(row.state);
    let kind = row.kinds.first().copied().unwrap_or_default();
    let now = match row.state {
        State::Gone => "count=0".to_owned(),
        _ => format!("count={}", units::count(row.after.count)),
    };
    format!(
        "{}  {kind}  {}{}: {now} ({})",
        Styled(style, format!("{word:8}")),
        Styled(BOLD, parts::short_name(&row.label)),
        parts::place(row.stack.site()),
        units::signed_count(row.count_delta)
    )
}
