//! A diff as a page.

use std::collections::HashMap;
use std::io::{self, Write};

use culeak::analysis::diff::{Diff, DiffRow, Options, State};
use culeak::analysis::function_name::plain;
use culeak::analysis::report::{self, By, Report};
use culeak::analysis::site::Fingerprint;
use culeak::kind::Kind;
use culeak::snapshot::Snapshot;
use serde::Serialize;

use super::data::Data;
use super::page::{self, Parts};
use super::report::number_of;
use super::rows::estimated;
use super::stacks::Stacks;
use crate::document::Document;
use crate::escape::Escaped;
use crate::text;
use crate::text::diff::RowStack;
use crate::text::parts;
use crate::text::report::sums;

#[derive(Serialize)]
struct Page {
    what: &'static str,
    headline: String,
    /// Both snapshots are of one process, so a difference is growth.
    same_process: bool,
    by: &'static str,
    states: [&'static str; 5],
    hidden_rows: usize,
    warnings: Vec<String>,
    totals: Vec<(&'static str, String)>,
    /// Changes of objects without an address, one line each.
    objects: Vec<String>,
    /// Of both sides: the losses that occurred, and all counts.
    losses: [[Vec<sums::Sum>; 2]; 2],
}

/// In the order of their numbers on the page.
const STATES: [(State, &str); 5] = [
    (State::New, "new"),
    (State::Grown, "grown"),
    (State::Shrunk, "shrunk"),
    (State::Gone, "gone"),
    (State::Unchanged, "same"),
];

/// Writes the whole page.
pub fn write(
    before: &Snapshot,
    after: &Snapshot,
    options: &Options,
    full_stacks: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    let diff = Diff::of(before, after, options);
    let mut data = Data::new();
    data.full_stacks = full_stacks;
    let shown = as_text(before, after, options, full_stacks);
    let sites = graph(&mut data, before, after, options, full_stacks);
    rows(&mut data, &diff.rows, &sites, options.by);
    let content = Page {
        what: "diff",
        headline: shown.lines().next().unwrap_or_default().to_owned(),
        same_process: diff.same_process,
        by: options.by.name(),
        states: STATES.map(|(_, name)| name),
        hidden_rows: diff.hidden_rows,
        warnings: (diff.opaque_pools.iter().map(|pool| pool.sentence(None)))
            .chain(diff.warnings.iter().map(|text| Escaped(text).to_string()))
            .collect(),
        totals: text::diff::totals(&diff),
        objects: objects(&diff),
        losses: [before, after].map(|snapshot| {
            let options = report::Options {
                by: By::Kind,
                ..report::Options::default()
            };
            let report = Report::of(snapshot, &options);
            [false, true].map(|all| sums::losses(&report, all))
        }),
    };
    let title = format!("culeak diff: {}", parts::process(&diff.after.process));
    page::write(Parts::Graph, &title, &shown, data, &content, out)
}

fn objects(diff: &Diff) -> Vec<String> {
    let mut page = Document::default();
    if let Some(changes) = &diff.objects {
        text::objects::write_changes(changes, true, RowStack::Callers, &mut page);
    }
    let mut joined: Vec<String> = Vec::new();
    let lines = page.plain_lines();
    for line in lines.iter().map(|line| line.trim()).filter(|line| !line.is_empty()) {
        match joined.last_mut() {
            // The callers of the row above.
            Some(row) if line.starts_with("from ") => *row += &format!(", {line}"),
            _ => joined.push(line.to_owned()),
        }
    }
    joined
}

/// The text for browsers without scripts: the largest changes.
fn as_text(before: &Snapshot, after: &Snapshot, options: &Options, full_stacks: bool) -> String {
    let few = Options {
        top: Some(options.top.unwrap_or(usize::MAX).min(20)),
        ..options.clone()
    };
    text::diff::page(&Diff::of(before, after, &few), true, full_stacks).plain()
}

/// Finds the stacks of a row: one by its fingerprint, or all of a call site.
#[derive(Default)]
struct Found {
    by_stack: HashMap<(Fingerprint, State, bool), u64>,
    by_site: HashMap<(Fingerprint, bool), Vec<u64>>,
}

/// Writes every stack, unchanged ones too, because the graph can show either side.
fn graph<'a>(data: &mut Data<'a>, before: &'a Snapshot, after: &'a Snapshot, options: &Options, full: bool) -> Found {
    let everything = Options {
        by: By::Stack,
        all: true,
        top: None,
        min_bytes: 0,
        ..options.clone()
    };
    let diff = Diff::of(before, after, &everything);
    let mut stacks = Stacks::default();
    let numbers: Vec<usize> = diff
        .rows
        .iter()
        .map(|row| stacks.add_call_stack(data, &row.stack, full))
        .collect();
    let places = stacks.write(data, "0.stacks");
    let mut samples: Vec<(u64, &DiffRow)> = numbers.iter().map(|&nth| places[nth]).zip(&diff.rows).collect();
    samples.sort_by_key(|(stack, _)| *stack);
    let kind = |row: &DiffRow| {
        row.kinds
            .first()
            .and_then(|name| Kind::from_name(name))
            .map_or(0, number_of)
    };
    let owner = |row: &DiffRow| row.stack.library.or(row.stack.allocator).unwrap_or_default();
    let owners: Vec<u64> = samples.iter().map(|(_, row)| data.text(owner(row))).collect();
    data.columns.add("0.samples.owner".to_owned(), owners);
    let mut add = |name: &str, number: &dyn Fn(&DiffRow) -> u64| {
        let numbers = samples.iter().map(|(_, row)| number(row));
        data.columns.add(format!("0.samples.{name}"), numbers);
    };
    add("kind", &kind);
    add("before", &|row| row.before.bytes);
    add("after", &|row| row.after.bytes);
    add("before_count", &|row| row.before.count);
    add("after_count", &|row| row.after.count);
    data.columns
        .add("0.samples.stack", samples.iter().map(|(stack, _)| *stack));
    let mut found = Found::default();
    for (stack, row) in samples {
        let print = (row.stack.fingerprint, row.state, row.pool);
        found.by_stack.insert(print, stack);
        let site = (row.stack.site_fingerprint, row.pool);
        found.by_site.entry(site).or_default().push(stack);
    }
    found
}

fn rows(data: &mut Data, rows: &[DiffRow], found: &Found, by: By) {
    let labels: Vec<u64> = rows.iter().map(|row| data.text(&plain(&row.label))).collect();
    let place = |row: &DiffRow| row.stack.site().and_then(|site| site.short_place()).unwrap_or_default();
    let places: Vec<u64> = rows.iter().map(|row| data.text(&place(row))).collect();
    let kinds: Vec<u64> = rows.iter().map(|row| data.text(&row.kinds.join(", "))).collect();
    let stacks: Vec<Vec<u64>> = rows
        .iter()
        .map(|row| {
            let site = (row.stack.site_fingerprint, row.pool);
            let all = found.by_site.get(&site).filter(|_| by == By::Site).cloned();
            let one = (row.stack.fingerprint, row.state, row.pool);
            all.unwrap_or_else(|| found.by_stack.get(&one).into_iter().copied().collect())
        })
        .collect();
    let state = |row: &DiffRow| STATES.iter().position(|(state, _)| *state == row.state);
    let columns = &mut data.columns;
    let mut add = |name: &str, numbers: &mut dyn Iterator<Item = u64>| columns.add(format!("0.rows.{name}"), numbers);
    add("label", &mut labels.into_iter());
    add("place", &mut places.into_iter());
    add("kinds", &mut kinds.into_iter());
    add("state", &mut rows.iter().map(|row| state(row).unwrap_or(0) as u64));
    add("before", &mut rows.iter().map(|row| row.before.bytes));
    add("after", &mut rows.iter().map(|row| row.after.bytes));
    add("before_count", &mut rows.iter().map(|row| row.before.count));
    add("after_count", &mut rows.iter().map(|row| row.after.count));
    add("estimated", &mut rows.iter().map(|row| estimated(row.estimated)));
    add("pool", &mut rows.iter().map(|row| row.pool.into()));
    add("stacks", &mut stacks.iter().map(|stacks| stacks.len() as u64));
    add("stack.number", &mut stacks.iter().flatten().copied());
}
