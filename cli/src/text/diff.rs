//! A diff as text. A row: `function  file:line: size=… (+…), count=… (+…), average=…`.

use std::io::{self, Write};

use anstyle::Style;
use culeak::analysis::diff::{Diff, DiffRow, State, Totals};
use culeak::analysis::estimate::Errors;
use culeak::analysis::report::Tally;
use culeak::analysis::site::Frame;

use super::objects;
use super::parts::{self, BAD, BOLD, DIM, GOOD, PLAIN, Styled};
use super::units;
use crate::escape::Escaped;

/// Writes the diff; `stacks` adds each row's whole stack.
pub fn write(diff: &Diff, stacks: bool, full_stacks: bool, out: &mut dyn Write) -> io::Result<()> {
    let detail = match (stacks, full_stacks) {
        (false, _) => RowStack::Callers,
        (true, full) => RowStack::Whole { full },
    };
    write_around(diff, detail, out, |out| rows(diff, detail, out))
}

/// What is shown of a row's stack.
#[derive(Debug, Clone, Copy)]
pub enum RowStack {
    /// The callers of the call site, in one line.
    Callers,
    /// Every frame; with `full`, also those inside the CUDA runtime and below `main`.
    Whole { full: bool },
}

/// Writes a row's stack below it; `places`: also those of callers, if the stack is one line.
pub fn write_stack(row: &DiffRow, stacks: RowStack, places: bool, out: &mut dyn Write) -> io::Result<()> {
    match stacks {
        RowStack::Callers => callers(row, places, out),
        RowStack::Whole { full } => parts::stack(out, &row.stack, full, "            "),
    }
}

/// Writes the headline, the body (rows or a tree), the objects, the totals and the warnings.
pub fn write_around(
    diff: &Diff,
    stacks: RowStack,
    out: &mut dyn Write,
    body: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    headline(diff, out)?;
    parts::opaque_pools(out, &diff.opaque_pools)?;
    body(out)?;
    if let Some(objects) = &diff.objects {
        objects::write_changes(objects, !diff.only_objects, stacks, out)?;
    }
    writeln!(out)?;
    for (name, text) in totals(diff) {
        writeln!(out, "{}  {text}", Styled(BOLD, format!("{name:8}")))?;
    }
    parts::warnings(out, &diff.warnings)
}

fn rows(diff: &Diff, stacks: RowStack, out: &mut dyn Write) -> io::Result<()> {
    for row in &diff.rows {
        write_row(row, out)?;
        write_stack(row, stacks, false, out)?;
    }
    if diff.hidden_rows > 0 {
        let rows = units::plural(diff.hidden_rows as u64, "more row", "more rows");
        let text = format!("… and {rows}; {} shows all", parts::all_rows(diff.cut));
        writeln!(out, "  {}", Styled(DIM, text))?;
    }
    Ok(())
}

/// The totals, and the two processes.
pub fn totals(diff: &Diff) -> Vec<(&'static str, String)> {
    let t = &diff.totals;
    let mut rows = Vec::new();
    if !diff.only_objects {
        rows.push((
            "total",
            sizes(t.after, t.bytes_delta, t.count_delta) + &error(t.estimated),
        ));
        rows.push(("rows", counts(t)));
    }
    if !diff.kinds.is_empty() {
        let others = if diff.only_objects {
            "nothing else"
        } else {
            "other memory"
        };
        let verb = if diff.only_objects { "is" } else { "is not" };
        rows.push((
            "filter",
            format!("kind {}; {others} {verb} compared", diff.kinds.join(" or ")),
        ));
    }
    rows.push(("before", parts::process(&diff.before.process)));
    rows.push(("after", parts::process(&diff.after.process)));
    rows
}

fn headline(diff: &Diff, out: &mut dyn Write) -> io::Result<()> {
    if diff.only_objects {
        return headline_of_objects(diff, out);
    }
    let delta = diff.totals.bytes_delta;
    let what = match (diff.same_process, delta) {
        _ if delta == 0 && diff.totals.count_delta == 0 && only_unchanged(&diff.totals) => {
            let objects = diff.objects.as_ref().is_some_and(|objects| !objects.rows.is_empty());
            (if objects { "no change of memory" } else { "no change" }).to_owned()
        }
        (true, 0..) => format!("grew by {}", units::bytes(u64::try_from(delta).unwrap_or(u64::MAX))),
        (true, _) => format!("shrank by {}", units::bytes(u64::try_from(-delta).unwrap_or(u64::MAX))),
        (false, _) => format!("{} between two runs", units::signed_bytes(delta)),
    } + &error(diff.totals.estimated);
    let style = match delta {
        1.. => BAD,
        0 => PLAIN,
        _ => GOOD,
    };
    let time = time(diff);
    let subject = match (diff.same_process, diff.kinds.join(" and ")) {
        (true, kinds) if kinds.is_empty() => format!("process {}", diff.after.process.pid),
        (true, kinds) => format!("{kinds} memory of process {}", diff.after.process.pid),
        (false, kinds) if kinds.is_empty() => "held memory".to_owned(),
        (false, kinds) => format!("held {kinds} memory"),
    };
    writeln!(out, "{subject}: {}{time}", Styled(style, what))
}

/// `graph-exec objects of process 4711: 40 (+28) in 28 s`.
fn headline_of_objects(diff: &Diff, out: &mut dyn Write) -> io::Result<()> {
    let kinds = diff.kinds.join(" and ");
    let subject = match diff.same_process {
        true => format!("{kinds} objects of process {}", diff.after.process.pid),
        false => format!("{kinds} objects"),
    };
    let (what, style) = match &diff.objects {
        None => ("not compared".to_owned(), PLAIN),
        Some(objects) => {
            let delta = i128::from(objects.after) - i128::from(objects.before);
            let style = match delta {
                1.. => BAD,
                0 => PLAIN,
                _ => GOOD,
            };
            let what = format!("{} ({})", units::count(objects.after), units::signed_count(delta));
            (what, style)
        }
    };
    let runs = if diff.same_process { "" } else { " between two runs" };
    writeln!(out, "{subject}: {}{runs}{}", Styled(style, what), time(diff))
}

/// ` in 28 s, from mark:start to end`: the time between the two, and the points in time if they differ.
fn time(diff: &Diff) -> String {
    let mut text = diff
        .elapsed_ns
        .map_or_else(String::new, |ns| format!(" in {}", units::duration(ns)));
    let points = [("from", diff.before.point), ("to", diff.after.point)];
    let differ = diff.before.point != diff.after.point;
    let named = points.into_iter().filter_map(|(word, point)| Some((word, point?)));
    for (number, (word, point)) in named.enumerate().filter(|_| differ) {
        let comma = if number == 0 && !text.is_empty() { "," } else { "" };
        text.push_str(&format!("{comma} {word} {}", Escaped(&point.to_string())));
    }
    text
}

fn only_unchanged(totals: &Totals) -> bool {
    totals.new + totals.grown + totals.shrunk + totals.gone == 0
}

/// The word for a state, and its style.
pub fn state(state: State) -> (&'static str, Style) {
    match state {
        State::New => ("new", BAD),
        State::Grown => ("grown", BAD),
        State::Shrunk => ("shrunk", GOOD),
        State::Gone => ("gone", GOOD),
        State::Unchanged => ("same", DIM),
    }
}

fn write_row(row: &DiffRow, out: &mut dyn Write) -> io::Result<()> {
    let (word, style) = state(row.state);
    writeln!(
        out,
        "  {}  {}{}: {}{}",
        Styled(style, format!("{word:8}")),
        Styled(BOLD, parts::short_name(&row.label)),
        parts::place(row.stack.site()),
        sizes(row.after, row.bytes_delta, row.count_delta) + &error(row.estimated),
        if row.pool { parts::POOL } else { "" },
    )
}

/// ` ≈ ± 12 MiB` for an estimate from sampled stacks.
fn error(estimated: Option<Errors>) -> String {
    let error = estimated.map(|errors| units::bytes(errors.bytes_error));
    error.map_or_else(String::new, |error| format!(" (≈, ± {error})"))
}

fn sizes(after: Tally, bytes: i128, count: i128) -> String {
    let average = after.bytes.checked_div(after.count).unwrap_or(0);
    format!(
        "size={} ({}), count={} ({}), average={}",
        units::bytes(after.bytes),
        units::signed_bytes(bytes),
        units::count(after.count),
        units::signed_count(count),
        units::bytes(average)
    )
}

/// The callers of the call site in one line: rows of one call site differ in them.
fn callers(row: &DiffRow, places: bool, out: &mut dyn Write) -> io::Result<()> {
    let Some(site) = row.stack.site() else { return Ok(()) };
    let outer = row.stack.shown().skip_while(|frame| *frame != site).skip(1);
    let place = |frame: &Frame| match frame.short_place().filter(|_| places) {
        Some(place) => format!(" {}", Escaped(&place)),
        None => String::new(),
    };
    let named = outer.map(|frame| (frame.name(), place(frame)));
    parts::callers(out, "            ", named)
}

fn counts(totals: &Totals) -> String {
    format!(
        "{} new, {} grown, {} shrunk, {} gone, {} unchanged",
        totals.new, totals.grown, totals.shrunk, totals.gone, totals.unchanged
    )
}
