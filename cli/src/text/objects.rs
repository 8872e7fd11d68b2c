//! Objects without an address: a line of totals, the kinds, and the rows.

use culeak::analysis::diff::{DiffRow, ObjectChanges, State};
use culeak::analysis::filter::only_objects;
use culeak::analysis::objects::{KindOfObject, Objects};
use culeak::analysis::report::{OfObjects, Report, Row};
use culeak::analysis::words::of_kind;
use culeak::kind::{Kind, Place};

use super::diff::{RowStack, state, write_stack};
use super::{parts, units};
use crate::document::{Cell, Document, GOOD, Rows, Text, bold, counted, dim, short_name, styled};
use crate::escape::Escaped;

/// `128 streams, 40 executable graphs at 3 call sites; 5 suppressed`, `200 streams at accept server.cpp:57`; `None` if there are none.
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
        let is_plain = |row: &&Row| row.kind_of_objects().is_some_and(|kind| kind.place() == Place::Object);
        let only = objects.rows.iter().find(is_plain).filter(|_| objects.call_sites == 1);
        let sites = match only.and_then(|row| Some((short_name(&row.label), row.site()?.short_place()?))) {
            Some((name, place)) => format!("{name} {}", Escaped(&place)),
            None => counted(objects.call_sites, "call site"),
        };
        parts.push(format!("{} at {sites}", kinds.join(", ")));
    }
    let suppressed = plain().fold(0, |sum: u64, of| sum.saturating_add(of.suppressed));
    if suppressed > 0 {
        parts.push(format!("{} suppressed", units::count(suppressed)));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// `21 stream objects left at 1 call site`, if the report shows only kinds of objects.
pub fn headline(report: &Report) -> Option<Text> {
    let kinds = &report.filter.as_ref()?.filter.kinds;
    if !only_objects(kinds) || !report.objects.known {
        return None;
    }
    let word = if report.finished { "left" } else { "held" };
    let live = || report.objects.kinds.iter().filter(|of| of.live > 0);
    let counts: Vec<String> = live()
        .map(|of| format!("{} {}", units::count(of.live), of.kind))
        .collect();
    if counts.is_empty() {
        let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
        return Some(styled(GOOD, format!("no {} object {word}", names.join(" or "))));
    }
    let total = live().fold(0, |sum: u64, of| sum.saturating_add(of.live));
    let noun = if total == 1 { "object" } else { "objects" };
    let sites = match report.objects.call_sites {
        0 => String::new(),
        sites => format!(" at {}", counted(sites, "call site")),
    };
    Some(bold(format!("{} {noun} {word}{sites}", counts.join(" and "))))
}

/// The kinds, one per line.
pub fn write_kinds(report: &Report, page: &mut Document) {
    let objects = &report.objects;
    page.line(bold("objects without an address"));
    let nothing = match (objects.known, objects.is_empty()) {
        (false, _) if report.when.is_some() => "not known at this point",
        (false, _) => "not recorded",
        (true, true) if report.filter.is_some() => "none passes the filter",
        (true, true) => "none was created",
        (true, false) => "",
    };
    if !nothing.is_empty() {
        return page.item(nothing);
    }
    // Counters have no stacks and times, so a filter by these leaves the live numbers alone.
    let has_counters = objects.kinds.iter().any(|of| of.created.is_some());
    let number = |count: Option<u64>, word: &str| {
        let count = count.map_or_else(|| "?".to_owned(), units::count);
        Cell::Number(format!("{count} {word}"))
    };
    let suppressed = |of: &&KindOfObject| match of.suppressed {
        0 => String::new(),
        suppressed => format!("{} suppressed", units::count(suppressed)),
    };
    let rows = Rows::of(&objects.kinds)
        .bare()
        .column("kind", |of| of.kind)
        .column("live", |of| number(Some(of.live), "live"))
        .column_if(has_counters, "created", |of| number(of.created, "created"))
        .column_if(has_counters, "destroyed", |of| number(of.destroyed, "destroyed"))
        .column("suppressed", suppressed);
    page.table(rows);
}

/// The kinds, and the rows with their stacks.
pub fn write(report: &Report, full_stacks: bool, page: &mut Document) {
    write_kinds(report, page);
    page.blank();
    let below = |row: &&Row, page: &mut Document| {
        held_by(row, 5, page);
        page.stack(row.stack(), full_stacks, 5);
        if row.stacks_in_all > 1 {
            page.indented(5, dim(format!("and {}", counted(row.stacks_in_all - 1, "more stack"))));
        }
        page.blank();
    };
    let rows = Rows::of(&report.objects.rows).bare();
    page.table(rows.column("objects", |row| title(row)).below(below));
    if report.objects.hidden_rows > 0 {
        let objects = counted(report.objects.hidden, "object");
        page.more(
            report.objects.hidden_rows,
            "row",
            format!(" with {objects}; --top 0 shows all"),
        );
        page.blank();
    }
}

/// What holds the objects, if it was searched for.
pub fn held_by(row: &Row, indent: usize, page: &mut Document) {
    if let Some(holder) = row.objects.as_ref().and_then(|of| of.held_by.as_ref()) {
        page.indented(indent, format!("held by {}", Escaped(holder)));
    }
}

/// `40 graph-exec  serve  server.cpp:88  (cudaGraphInstantiateWithFlags; 50 nodes each; 40 s to 2.1 s old)`
pub fn title(row: &Row) -> String {
    let Some(OfObjects {
        kind, nodes, kernels, ..
    }) = &row.objects
    else {
        return String::new();
    };
    let ages = parts::ages(row.count, row.oldest_age_ns, row.newest_age_ns);
    let nodes = match *nodes {
        None => String::new(),
        Some((least, most)) if least == most => format!("; {} each", counted(most, "node")),
        Some((least, most)) => format!("; {} to {} nodes", units::count(least), units::count(most)),
    };
    let kernels: Vec<String> = kernels.iter().map(|name| short_name(name)).collect();
    let kernels = match &kernels[..] {
        [] => String::new(),
        [only] => format!("; kernel {only}"),
        some => format!("; kernels {} …", some.join(", ")),
    };
    let (count, name) = (units::count(row.count), short_name(&row.label));
    let (place, library) = (parts::place(row.site()), parts::mark_of(false, None, row.library));
    let api = row.apis.iter().max_by_key(|(_, tally)| tally.count);
    let api = Escaped(api.map_or("", |(api, _)| api));
    format!(
        "{count} {}  {name}{place}{library}  ({api}{nodes}{kernels}; {ages})",
        kind.name()
    )
}

/// The changes between two snapshots. `with_title`: after a line with the totals.
pub fn write_changes(changes: &ObjectChanges, with_title: bool, stacks: RowStack, page: &mut Document) {
    if changes.rows.is_empty() {
        return;
    }
    if with_title {
        let delta = i128::from(changes.after) - i128::from(changes.before);
        let (after, delta) = (units::count(changes.after), units::signed_count(delta));
        page.blank();
        page.line(bold(format!("objects without an address: {after} ({delta})")));
    }
    let rows = Rows::of(&changes.rows).bare().column("change", |row| change(row));
    page.table(rows.below(|row, page| write_stack(row, stacks, true, page)));
    let all = parts::all_rows(changes.cut);
    page.more(changes.hidden_rows, "row", format!("; {all}"));
}

/// `grown     graph-exec  serve  server.cpp:88: count=40 (+28)`
fn change(row: &DiffRow) -> Text {
    let (word, style) = state(row.state);
    let kind = row.kinds.first().copied().unwrap_or_default();
    let now = if row.state == State::Gone { 0 } else { row.after.count };
    let (place, now, delta) = (
        parts::place(row.stack.site()),
        units::count(now),
        units::signed_count(row.count_delta),
    );
    let name = styled(style, format!("{word:8}")) + format!("  {kind}  ") + bold(short_name(&row.label));
    name + format!("{place}: count={now} ({delta})")
}
