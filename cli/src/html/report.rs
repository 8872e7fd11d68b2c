//! A report, or several, as a page.

use std::io::{self, Write};

use culeak::analysis::estimate::sampled;
use culeak::analysis::groups::Level;
use culeak::analysis::lives::Logged;
use culeak::analysis::profile::{self, Profile};
use culeak::analysis::report::{By, FailedRow, Options, Report, Row, Tally, process_line};
use culeak::kind::Kind;
use culeak::snapshot::Snapshot;
use serde::Serialize;

use super::data::Data;
use super::page::{self, Parts};
use super::stacks::{Stack, Stacks};
use super::{ledger, rows, timeline, why};
use crate::document::Document;
use crate::escape::Escaped;
use crate::text;
use crate::text::parts;
use crate::text::report::{Extent, sums};

/// One process and how to report it.
pub struct Item<'a> {
    pub snapshot: &'a Snapshot,
    /// The events that the snapshot was read with, if they were logged.
    pub timeline: Option<&'a Logged>,
    pub options: Options,
    /// Frames inside the CUDA runtime and below main too.
    pub full_stacks: bool,
}

#[derive(Serialize)]
struct Page {
    what: &'static str,
    dimensions: [&'static str; 5],
    processes: Vec<Process>,
}

#[derive(Serialize)]
struct Process {
    source: String,
    process: String,
    headline: String,
    /// The process has ended, so live memory is leaked.
    finished: bool,
    trigger: Option<Failed>,
    warnings: Vec<String>,
    ledger: ledger::Shown,
    over_time: Option<timeline::Shown>,
    /// The names of the samples' places.
    places: Vec<String>,
    /// What holds the memory of each row; empty if that was not searched for.
    held: Vec<Vec<why::Line>>,
    /// The tree of retained memory.
    retainers: Vec<why::Node>,
    by: &'static str,
    /// Rows are call sites or stacks, which have a place in the source.
    is_code: bool,
    hidden_rows: usize,
    hidden: Tally,
    /// The lines on what suppressions left out of rows and graph.
    suppressed: Vec<String>,
    totals: Vec<sums::Sum>,
    failed: Vec<Failed>,
    /// Objects without an address: the kinds, and the call sites.
    object_kinds: Vec<String>,
    objects: Vec<Failed>,
    hidden_objects: usize,
    losses: Vec<sums::Sum>,
    all_losses: Vec<sums::Sum>,
    next: String,
}

/// A failed request or objects of a call site, and the number of the stack.
#[derive(Serialize)]
struct Failed {
    text: String,
    stack: u64,
}

/// Writes the whole page.
pub fn write(items: &[Item], out: &mut dyn Write) -> io::Result<()> {
    let mut data = Data::new();
    data.full_stacks = items.iter().any(|item| item.full_stacks);
    let mut plain = Vec::new();
    let mut processes = Vec::new();
    for (number, item) in items.iter().enumerate() {
        let options = Options {
            stacks_kept: Some(STACKS_OF_A_ROW),
            ..item.options.clone()
        };
        let mut report = Report::of(item.snapshot, &options);
        if items.len() > 1 {
            writeln!(plain, "== {} ==", Escaped(&item.options.source))?;
        }
        as_text(&mut report, item.full_stacks, &mut plain)?;
        processes.push(process(&mut data, number, item, report)?);
    }
    let title = match items {
        [one] => format!("culeak: {}", parts::process(&process_line(one.snapshot))),
        several => format!("culeak: {} processes", several.len()),
    };
    let content = Page {
        what: "report",
        dimensions: rows::DIMENSIONS,
        processes,
    };
    page::write(
        Parts::Graph,
        &title,
        &String::from_utf8_lossy(&plain),
        data,
        &content,
        out,
    )
}

/// Limits the size of the page: a row for a thread or a kind may have all stacks.
const STACKS_OF_A_ROW: usize = 1000;

/// Call sites of objects on a page.
const OBJECTS_SHOWN: usize = 500;

/// Rows in the text for browsers without scripts.
const ROWS_IN_TEXT: usize = 20;

fn as_text(report: &mut Report, full_stacks: bool, out: &mut Vec<u8>) -> io::Result<()> {
    let rest = report.rows.split_off(report.rows.len().min(ROWS_IN_TEXT));
    let (hidden, hidden_rows, cut) = (report.hidden, report.hidden_rows, report.cut);
    for row in &rest {
        report.hidden.join(Tally {
            bytes: row.bytes,
            count: row.count,
        });
    }
    report.hidden_rows += rest.len();
    report.cut.beyond_top += rest.len();
    let extent = Extent {
        full_stacks,
        ..Extent::default()
    };
    out.write_all(text::report::page(report, extent).plain().as_bytes())?;
    (report.hidden, report.hidden_rows, report.cut) = (hidden, hidden_rows, cut);
    report.rows.extend(rest);
    writeln!(out)
}

fn process<'a>(data: &mut Data<'a>, number: usize, item: &Item<'a>, report: Report<'a>) -> io::Result<Process> {
    let full = item.full_stacks;
    let mut stacks = Stacks::default();
    let samples = samples(data, &mut stacks, item);
    let over_time = item
        .timeline
        .map(|events| timeline::Prepared::of(data, &mut stacks, item, events));
    let mut request = |row: &FailedRow<'a>| {
        let stack = stacks.add_call_stack(data, &row.stack, full);
        (sums::failed(row), stack)
    };
    let trigger = report.trigger.as_ref().map(&mut request);
    let failed: Vec<_> = report.failed.iter().map(request).collect();
    let sites = report.objects.rows.iter().take(OBJECTS_SHOWN);
    let objects: Vec<(String, usize)> = sites
        .map(|row| {
            let stack = stacks.add_call_stack(data, &row.stack, full);
            (text::objects::title(row), stack)
        })
        .collect();
    let hidden_objects = report.objects.hidden_rows + report.objects.rows.len() - objects.len();
    let object_kinds = report.objects.kinds.iter().map(text::objects::kind).collect();
    let tables = [("rows", &report.rows), ("pools", &report.pools)].map(|(name, rows)| {
        let of_rows: Vec<_> = rows.iter().map(|row| of_row(data, &mut stacks, row, full)).collect();
        (name, rows, of_rows)
    });
    let places = stacks.write(data, &format!("{number}.stacks"));
    for (name, rows, mut stacks) in tables {
        for (stack, _) in stacks.iter_mut().flatten() {
            *stack = places[*stack as usize];
        }
        rows::write(data, &format!("{number}.{name}"), rows, report.by, &stacks);
    }
    let lies_in = samples.write(data, &format!("{number}.samples"), &places);
    let over_time = over_time.map(|prepared| prepared.write(data, &format!("{number}.time"), &places));
    let moved = |(text, stack): (String, usize)| Failed {
        text,
        stack: places[stack],
    };
    let mut suppressed = Document::default();
    let (objects_too, is_sampled) = (report.suppressed_objects, report.sampling.is_some());
    parts::suppressions(
        report.suppressed,
        objects_too,
        &report.suppressions,
        is_sampled,
        &mut suppressed,
    );
    // The filter is shown among the warnings, at the top.
    let filter = report
        .filter
        .iter()
        .map(|filter| format!("filter: {}", parts::filter(filter, report.objects.left_out)));
    let sampling = report.sampling.map(|sampling| sampled("of this process", sampling));
    let warnings = report.warnings.iter().map(|text| Escaped(text).to_string());
    let warnings = sampling.into_iter().chain(warnings);
    Ok(Process {
        source: Escaped(&item.options.source).to_string(),
        process: parts::process(&report.process),
        headline: text::report::headline(&report).plain().trim().to_owned(),
        finished: report.finished,
        trigger: trigger.map(moved),
        warnings: filter.chain(warnings).collect(),
        ledger: match &report.filter {
            None => ledger::of(&report.ledger),
            Some(_) => ledger::Shown::default(),
        },
        over_time,
        places: lies_in,
        held: match report.by {
            By::Site | By::Stack => why::of_rows(&report),
            _ => Vec::new(),
        },
        retainers: why::tree_of(item.snapshot, &report),
        by: report.by.name(),
        is_code: matches!(report.by, By::Site | By::Stack),
        hidden_rows: report.hidden_rows,
        hidden: report.hidden,
        suppressed: suppressed
            .plain_lines()
            .iter()
            .map(|line| line.trim().to_owned())
            .collect(),
        totals: sums::totals(&report, true),
        failed: failed.into_iter().map(moved).collect(),
        object_kinds,
        objects: objects.into_iter().map(moved).collect(),
        hidden_objects,
        losses: sums::losses(&report, false),
        all_losses: sums::losses(&report, true),
        next: Escaped(&report.next).to_string(),
    })
}

/// The stacks that a report keeps of a row.
fn of_row<'a>(data: &mut Data<'a>, all: &mut Stacks, row: &Row<'a>, full: bool) -> Vec<rows::Part> {
    let stacks = row.stacks.iter().map(|stack| {
        let tally = Tally {
            bytes: stack.bytes,
            count: stack.count,
        };
        (all.add_call_stack(data, &stack.stack, full) as u64, tally)
    });
    stacks.collect()
}

/// The graph's data: memory by stack, kind and place.
struct Samples {
    samples: Vec<profile::Sample>,
    /// The number of each sample's stack.
    stacks: Vec<usize>,
    /// The owner of each sample other than the program, as the number of a string.
    owners: Vec<u64>,
    /// The place of each sample, as an index into `places`.
    lies_in: Vec<u64>,
    places: Vec<String>,
}

fn samples<'a>(data: &mut Data<'a>, stacks: &mut Stacks, item: &Item<'a>) -> Samples {
    let options = profile::Options {
        full_stacks: item.full_stacks,
        filter: item.options.filter.clone(),
        suppressions: item.options.suppressions.clone(),
        ..profile::Options::default()
    };
    let profile = Profile::of(item.snapshot, &options);
    let frames: Vec<u32> = profile.frames.iter().map(|frame| data.frame(frame)).collect();
    let paths: Vec<usize> = profile
        .paths
        .iter()
        .map(|path| {
            stacks.add(Stack {
                frames: path.frames.iter().map(|&frame| frames[frame]).collect(),
                truncated: path.truncated,
            })
        })
        .collect();
    let mut places: Vec<String> = profile.samples.iter().map(|sample| profile.place(sample)).collect();
    let each = places.clone();
    places.sort();
    places.dedup();
    let place = |place: String| places.binary_search(&place).unwrap_or(0) as u64;
    let owner = |sample: &profile::Sample| data.text(profile.paths[sample.path].origin.unwrap_or_default());
    Samples {
        owners: profile.samples.iter().map(owner).collect(),
        stacks: profile.samples.iter().map(|sample| paths[sample.path]).collect(),
        lies_in: each.into_iter().map(place).collect(),
        samples: profile.samples,
        places,
    }
}

impl Samples {
    /// Writes the samples in the order of their stacks, and returns the names of places.
    fn write(self, data: &mut Data, prefix: &str, moved: &[u64]) -> Vec<String> {
        let mut order: Vec<usize> = (0..self.samples.len()).collect();
        order.sort_by_key(|&nth| moved[self.stacks[nth]]);
        let mut add = |name: &str, number: &dyn Fn(usize) -> u64| {
            let numbers = order.iter().map(|&nth| number(nth));
            data.columns.add(format!("{prefix}.{name}"), numbers);
        };
        add("stack", &|nth| moved[self.stacks[nth]]);
        add("kind", &|nth| number_of(self.samples[nth].kind));
        add("owner", &|nth| self.owners[nth]);
        add("place", &|nth| self.lies_in[nth]);
        add("cached", &|nth| (self.samples[nth].level == Level::Cached).into());
        add("bytes", &|nth| self.samples[nth].live.bytes);
        add("count", &|nth| self.samples[nth].live.count);
        self.places
    }
}

/// A kind's index in the page's list of kinds.
pub fn number_of(kind: Kind) -> u64 {
    Kind::ALL.iter().position(|&other| other == kind).unwrap_or(0) as u64
}
