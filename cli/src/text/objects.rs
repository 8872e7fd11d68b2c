//! Objects without an address as text: a line of totals, the kinds, and the rows.

use std::io::{self, Write};

use culeak::analysis::diff::{DiffRow, ObjectChanges, State};
use culeak::analysis::objects::{KindOfObject, ObjectRow, Objects};
use culeak::analysis::report::Report;
use culeak::kind::{Kind, Place};

use super::columns;
use super::diff::state;
use super::parts::{self, BOLD, DIM, Styled};
use super::units::{self, plural};
use crate::escape::Escaped;

/// `128 stream, 40 graph-exec at 3 call sites`; `None` if there are none.
pub fn line(objects: &Objects) -> Option<String> {
    // The others are among the claims.
    let is_plain = |of: &&KindOfObject| Kind::from_name(of.kind).is_some_and(|kind| kind.place() == Place::Object);
    let live = objects.kinds.iter().filter(|kind| kind.live > 0).filter(is_plain);
    let kinds: Vec<String> = live
        .map(|of| format!("{} {}", units::count(of.live), of.kind))
        .collect();
    let sites = (objects.rows.len() + objects.hidden_rows) as u64;
    (!kinds.is_empty()).then(|| format!("{} at {}", kinds.join(", "), plural(sites, "call site", "call sites")))
}

/// `graph-exec: 40 live, 43 created, 3 destroyed`.
pub fn kind(of: &KindOfObject) -> String {
    let known = |count: Option<u64>| count.map_or_else(|| "?".to_owned(), units::count);
    format!(
        "{}: {} live, {} created, {} destroyed",
        of.kind,
        units::count(of.live),
        known(of.created),
        known(of.destroyed)
    )
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
        return writeln!(out, "  none was created");
    }
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
        writeln!(
            out,
            "  {:names$}  {live:>w0$} live  {created:>w1$} created  {destroyed:>w2$} destroyed",
            of.kind
        )?;
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
    let library = parts::mark_of(false, None, row.library);
    format!(
        "  {} {}  {}{}{library}  ({}{nodes}; {ages})",
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

/// The changes between two snapshots.
pub fn write_changes(changes: &ObjectChanges, out: &mut dyn Write) -> io::Result<()> {
    if changes.rows.is_empty() {
        return Ok(());
    }
    let delta = i128::from(changes.after) - i128::from(changes.before);
    let counts = format!(
        "objects without an address: {} ({})",
        units::count(changes.after),
        units::signed_count(delta)
    );
    writeln!(out, "\n{}", Styled(BOLD, counts))?;
    for row in &changes.rows {
        writeln!(out, "  {}", change(row))?;
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
