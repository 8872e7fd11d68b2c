//! A diff. A row: `function  file:line: size=… (+…), count=… (+…), average=…`.

use culeak::analysis::diff::{Diff, DiffRow, Totals};
use culeak::analysis::estimate::Errors;
use culeak::analysis::libraries::LibraryChange;
use culeak::analysis::report::By;
use culeak::point::Point;

use super::{host, objects, parts, report, units};
use crate::document::{Document, Rows, Site, Text, bold, fitting, styled};
use crate::escape::Escaped;
use crate::text::units::when;

mod change;
mod html;
mod side_by_side;

use change::sizes;
pub use change::{RowStack, changed, mark, state, style_of, write_stack};
pub use html::write as write_html;

/// The diff; `stacks` adds each row's whole stack.
pub fn page(diff: &Diff, stacks: bool, full_stacks: bool) -> Document {
    let detail = match (stacks, full_stacks) {
        (false, _) => RowStack::Callers,
        (true, full) => RowStack::Whole { full },
    };
    page_around(diff, detail, |page| {
        let site = |row: &DiffRow| Site::of(&row.label, row.site(), mark(row));
        let mut sites: Vec<Site> = diff.rows.iter().map(site).collect();
        parts::tell_apart(&mut sites, diff.rows.iter().map(|row| row.label.as_str()));
        let rows = Rows::of(diff.rows.iter().zip(&sites)).bare();
        let rows = rows.column("change", |(row, site)| title(row, site));
        page.table(rows.below(|(row, _), page| write_stack(row, detail, false, page)));
        page.more(diff.hidden_rows, "row", format!("; {}", parts::all_rows(diff.cut)));
    })
}

/// The headline, the body (rows or a tree), the objects, what was compared, whether it was recorded in full, and the warnings.
pub fn page_around(diff: &Diff, stacks: RowStack, body: impl FnOnce(&mut Document)) -> Document {
    let mut page = Document::default();
    page.line(if diff.only_objects {
        headline_of_objects(diff)
    } else {
        headline(diff)
    });
    let rows = (diff.by == By::Site).then_some("rows are call sites; --by stack compares whole stacks");
    versions(&diff.libraries, rows, &mut page);
    parts::opaque_pools(&mut page, &diff.opaque_pools);
    body(&mut page);
    if let Some(objects) = &diff.objects {
        objects::write_changes(objects, !diff.only_objects, stacks, &mut page);
    }
    diff.host
        .iter()
        .for_each(|changes| host::write_changes(changes, diff.same_process, &mut page));
    page.fields(compared(diff));
    let sides = [
        ("not recorded before", &diff.before),
        ("not recorded after", &diff.after),
    ];
    let recorded = sides.map(|(title, side)| (title, (side.losses, side.taken, side.allocators)));
    report::write_completeness(report::completeness_of(&recorded), &mut page);
    page.warnings(&diff.warnings);
    page
}

/// `versions: CPython 3.11.4 → 3.12.1, torch 2.9.0 → 2.10.0; other builds of libcuda`, if libraries differ. `rows`: how rows were matched.
pub fn versions(libraries: &[LibraryChange], rows: Option<&str>, page: &mut Document) {
    let mut known = Vec::new();
    let mut others = Vec::new();
    for change in libraries {
        match (&change.before, &change.after) {
            (Some(before), Some(after)) => known.push(format!("{} {before} → {after}", change.name)),
            _ => others.push(change.name.clone()),
        }
    }
    let others = (!others.is_empty()).then(|| format!("other builds of {}", others.join(", ")));
    let known = (!known.is_empty()).then(|| known.join(", "));
    let rows = rows.map(str::to_owned);
    if known.is_some() || others.is_some() {
        let parts: Vec<String> = [known, others, rows].into_iter().flatten().collect();
        page.line(format!("versions: {}", Escaped(&parts.join("; "))));
    }
}

/// What was compared; of a diff without a change only what it leaves out.
fn compared(diff: &Diff) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
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
    if let Some(filter) = &diff.filter {
        let others = "other memory is not compared";
        rows.push(("filter", format!("{}; {others}", parts::conditions(filter))));
    }
    let (before, after) = (&diff.before.process, &diff.after.process);
    match diff.same_process {
        _ if is_unchanged(diff) && !has_others(diff) => {}
        true => rows.push(("process", parts::process(after))),
        false => rows.extend([("before", parts::process(before)), ("after", parts::process(after))]),
    }
    rows
}

/// No memory changed.
fn is_unchanged(diff: &Diff) -> bool {
    let totals = &diff.totals;
    (totals.bytes_delta, totals.count_delta) == (0, 0) && only_unchanged(totals)
}

/// Objects without an address changed, or host memory.
fn has_others(diff: &Diff) -> bool {
    let has_objects = diff.objects.as_ref().is_some_and(|objects| !objects.rows.is_empty());
    has_objects || diff.host.as_ref().is_some_and(|host| host.before != host.after)
}

fn headline(diff: &Diff) -> Text {
    let (totals, delta) = (&diff.totals, diff.totals.bytes_delta);
    let what = match (is_unchanged(diff), has_others(diff)) {
        (true, true) if diff.host.is_some() => "no change of GPU memory".to_owned(),
        (true, true) => "no change of memory".to_owned(),
        (true, false) => "no change".to_owned(),
        _ => changed(diff.same_process, delta),
    } + &error(totals.estimated);
    let to = when(!is_unchanged(diff), || {
        let comma = if diff.same_process { "" } else { "," };
        format!("{comma} to {}", units::bytes(totals.after.bytes))
    });
    let subject = match (diff.same_process, diff.kinds.join(" and ")) {
        (true, kinds) if kinds.is_empty() => format!("process {}", diff.after.process.pid),
        (true, kinds) => format!("{kinds} memory of process {}", diff.after.process.pid),
        (false, kinds) if kinds.is_empty() => "held memory".to_owned(),
        (false, kinds) => format!("held {kinds} memory"),
    };
    Text::from(subject + ": ")
        + styled(style_of(delta), what)
        + to
        + time(diff.elapsed_ns, diff.before.point, diff.after.point)
}

/// `graph-exec objects of process 4711: 40 (+28) in 28 s`.
fn headline_of_objects(diff: &Diff) -> Text {
    let kinds = diff.kinds.join(" and ");
    let subject = match diff.same_process {
        true => format!("{kinds} objects of process {}: ", diff.after.process.pid),
        false => format!("{kinds} objects: "),
    };
    let what = match &diff.objects {
        None => Text::from("not compared"),
        Some(objects) => {
            let delta = i128::from(objects.after) - i128::from(objects.before);
            let (after, change) = (units::count(objects.after), units::signed_count(delta));
            styled(style_of(delta), format!("{after} ({change})"))
        }
    };
    let runs = if diff.same_process { "" } else { " between two runs" };
    Text::from(subject) + what + runs + time(diff.elapsed_ns, diff.before.point, diff.after.point)
}

/// ` in 28 s, from mark:start to end`: the time between the two, and the points in time if they differ.
pub fn time(elapsed_ns: Option<u64>, before: Option<&Point>, after: Option<&Point>) -> String {
    let mut text = elapsed_ns.map_or_else(String::new, |ns| format!(" in {}", units::duration(ns)));
    let points = [("from", before), ("to", after)];
    let named = points.into_iter().filter_map(|(word, point)| Some((word, point?)));
    for (number, (word, point)) in named.enumerate().filter(|_| before != after) {
        let comma = if number == 0 && !text.is_empty() { "," } else { "" };
        text.push_str(&format!("{comma} {word} {}", Escaped(&point.to_string())));
    }
    text
}

fn only_unchanged(totals: &Totals) -> bool {
    totals.new + totals.grown + totals.shrunk + totals.gone == 0
}

fn title(row: &DiffRow, site: &Site) -> Text {
    let (word, style) = state(row.state);
    let [before, after] = row.blocks();
    let count = i128::from(after.count) - i128::from(before.count);
    // With nothing but claims they are the count.
    let [claims_before, claims] = [row.before.count - before.count, row.after.count - after.count];
    let claims = when(claims_before != claims, || {
        format!(
            ", claims={} ({})",
            units::count(claims),
            units::signed_count(i128::from(claims) - i128::from(claims_before))
        )
    });
    let sizes = sizes(after, row.bytes_delta, count) + &claims + &error(row.estimated);
    let (name, place, pool) = (fitting(&site.name), parts::place(row.site()), &site.mark);
    styled(style, format!("{word:8}")) + "  " + bold(name) + format!("{place}: {sizes}{pool}")
}

/// ` ≈ ± 12 MiB` for an estimate from sampled stacks.
fn error(estimated: Option<Errors>) -> String {
    let error = estimated.map(|errors| units::bytes(errors.bytes_error));
    error.map_or_else(String::new, |error| format!(" (≈, ± {error})"))
}
