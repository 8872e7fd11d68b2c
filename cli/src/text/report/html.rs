//! The report of a process, or of several, as a page of HTML with graphs.

use std::collections::HashMap;
use std::io::{self, Write};

use culeak::analysis::report::{By, Options, Report, Row, process_line};
use culeak::analysis::site::Fingerprint;
use culeak::analysis::why::{self, SiteHolders, Why};
use culeak::snapshot::Snapshot;

use super::{Ranked, headline, ranked, ranking, sums};
use crate::document::{Cell, Document, Rows, Site, bold};
use crate::escape::Escaped;
use crate::html::{Graphs, Item, ROWS, ROWS_WITH_STACKS, Section, write_sections};
use crate::text::{self, objects, parts};

/// Stacks that are listed of a row; the graph has all.
const STACKS: usize = 5;
/// Holders that are listed of a row.
const HOLDERS: usize = 200;
/// Rows that each of many processes has at least.
const FEWEST_ROWS: usize = 20;

/// Writes the whole page.
pub fn write(items: &[Item], out: &mut dyn Write) -> io::Result<()> {
    let mut graphs = Graphs::new(items.iter().any(|item| item.full_stacks), false);
    let most = (ROWS_WITH_STACKS / items.len().max(1)).max(FEWEST_ROWS);
    let sections = items.iter().map(|item| {
        graphs.add(item);
        section(item, most)
    });
    let sections: Vec<Section> = sections.collect();
    let title = match items {
        [one] => format!("culeak: {}", parts::process(&process_line(one.snapshot))),
        several => format!("culeak: {} processes", several.len()),
    };
    write_sections(&title, &sections, Some(graphs), out)
}

fn section(item: &Item, most: usize) -> Section {
    let full = item.full_stacks;
    let at_most = |top: Option<usize>| Some(top.unwrap_or(most).min(most));
    let options = Options {
        stacks_kept: Some(STACKS),
        top: at_most(item.options.top),
        top_objects: at_most(item.options.top_objects),
        ..item.options.clone()
    };
    let report = Report::of(item.snapshot, &options);
    Section {
        name: format!("{}: {}", Escaped(&item.options.source), parts::process(&report.process)),
        document: document(&report, full),
        below: below(item.snapshot, &report, full),
    }
}

/// What is in front of the graphs, in the order of the text: the headline, the rows, what the process needs besides, whether the
/// recording is complete, and the next command.
fn document(report: &Report, full: bool) -> Document {
    let mut page = Document::default();
    super::cause(report, Some(full), &mut page);
    page.append(headline(report));
    page.heading(match report.by {
        By::Site => "Call sites".to_owned(),
        by => format!("By {}", by.name().replace('-', " ")),
    });
    let holders = report.held_by.iter().map(|site| (site.site_fingerprint, site));
    let holders: HashMap<Fingerprint, &SiteHolders> = holders.collect();
    let costs = super::costs(report);
    if report.by == By::ObjectKind {
        objects::write_kinds(report, &mut page);
    } else {
        let with_columns = |rows| {
            with_columns(rows, report.by).below(|ranked, page| {
                text::why::write_modules_below(ranked.row, report, HOLDERS, 2, page);
                details(ranked.row, &holders, full, page);
            })
        };
        ranking(report, &costs, "the graph has all", with_columns, &mut page);
    }
    super::rules(report, &mut page);
    super::besides(report, &costs, &mut page);
    super::write_completeness(super::completeness(report), &mut page);
    page.warnings(&report.warnings);
    page.next(&report.next);
    page
}

/// The rows with what a page has room for.
fn with_columns<'r, 'a>(rows: Rows<Ranked<'r, 'a>>, by: By) -> Rows<Ranked<'r, 'a>> {
    let names = |tallies: Vec<&str>| tallies.join(", ");
    rows.column_if(by != By::Kind, "kind", |ranked| {
        names(ranked.row.kinds.keys().copied().collect())
    })
    .column_if(by != By::Device, "device", |ranked| {
        names(ranked.row.devices.keys().map(String::as_str).collect())
    })
    .expendable(1)
    .column("oldest", |ranked| Cell::Time(ranked.row.oldest_age_ns))
    .expendable(1)
}

/// What a row opens.
fn details(row: &Row, holders: &HashMap<Fingerprint, &SiteHolders>, full: bool, page: &mut Document) {
    if row.objects.is_some() {
        objects::held_by(row, 4, page);
        page.stack(row.stack(), full, 6);
        return super::other_stacks(row.stacks_in_all, 1, page);
    }
    super::facts(row, page);
    let first = row.stacks.first().map(|stack| stack.stack.site_fingerprint);
    if let Some(site) = first.and_then(|site| holders.get(&site)) {
        page.line(bold("held by"));
        text::why::write_holders(site, HOLDERS, 2, page);
        if let Some(modules) = &site.modules {
            page.line(bold("by module"));
            text::why::write_modules(modules, HOLDERS, 2, page);
        }
    }
    for stack in &row.stacks {
        let memory = parts::tally(stack.tally);
        if row.stacks.len() > 1 {
            page.line(bold(format!("{}{memory}", parts::about(row.estimated.is_some()))));
        }
        page.stack(&stack.stack, full, 6);
    }
    super::other_stacks(row.stacks_in_all, row.stacks.len(), page);
}

/// What is behind the graphs.
fn below(snapshot: &Snapshot, report: &Report, full: bool) -> Document {
    let mut page = Document::default();
    page.heading("Where the memory is");
    super::ledger(report, &mut page);
    if !report.pools.is_empty() {
        page.heading("Pools behind these blocks");
        let site = |row: &Row| Site::of(&row.label, row.site(), parts::mark(row));
        let rows = report.pools.iter().map(|row| ((row, row.bytes), site(row)));
        page.table(ranked(rows).below(|ranked, page| details(ranked.row, &HashMap::new(), full, page)));
    }
    // The tree is of all memory, so there is none with a filter.
    if !report.held_by.is_empty() && report.filter.is_none() {
        let options = why::Options {
            top: Some(ROWS),
            rows: Some(0),
            ..why::Options::default()
        };
        if let Ok(why) = Why::of(snapshot, &options) {
            page.heading("What would be freed");
            text::why::retainers(&why, &mut page);
        }
    }
    if !report.failed.is_empty() {
        page.heading("Failed requests");
        let rows = Rows::of(&report.failed).column("request", |row| sums::failed(row));
        page.table(rows.below(|row, page| page.stack(&row.stack, full, 6)));
    }
    if !report.objects.kinds.is_empty() {
        page.heading("Objects without an address");
        objects::write(report, full, &mut page);
    }
    page.heading("Totals");
    page.fields(sums::totals(report, true));
    page.heading("Not recorded");
    let mut all = Document::default();
    all.fields(sums::losses(report, true));
    page.folded("all counts", all);
    page
}
