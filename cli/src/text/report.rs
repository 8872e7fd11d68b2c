//! A report: the failed request that caused it, the process, the headline, the ranked rows with their callers, what the process
//! needs besides, whether the recording is complete, the warnings, and the next command. Views that are asked for stand below the
//! headline, in the order asked for.

use culeak::analysis::report::{By, FailedRow, HOST_MEMORY, NO_DEVICE, NO_STREAM, Report, Row, shell_word};
use culeak::analysis::site::NO_STACK;
use culeak::snapshot::{Automatic, Reason};

use super::{categories, ledger, objects, pages, parts, units, why};
use crate::document::{self, BAD, Document, bold, dim, estimate, short_name, styled};
use crate::options::view::Shape;
use crate::text::units::when;

mod brief;
mod headline;
mod html;
mod ranking;
pub mod sums;

pub use brief::{EXPLAINED, besides, completeness, completeness_of, costs, write_completeness};
use brief::{has_ledger, is_of_code};
pub use headline::headline;
pub use html::write as write_html;
use ranking::counted;
pub use ranking::{Ranked, judged, ranked, ranking};

/// What a report shows beyond the default.
#[derive(Debug, Clone, Copy, Default)]
pub struct Extent<'a> {
    /// The views, in order: the stacks of each row, the ledger with all totals, every count of losses, objects by call site. Without
    /// the table among them, it follows them; stacks contain it.
    pub views: &'a [Shape],
    /// Frames inside the CUDA runtime and below `main` too.
    pub full_stacks: bool,
}

impl Extent<'_> {
    #[cfg(test)]
    pub const ALL: Extent<'static> = Extent {
        views: &[Shape::Objects, Shape::Stacks, Shape::Ledger, Shape::Losses],
        full_stacks: true,
    };

    fn shows(&self, view: Shape) -> bool {
        self.views.contains(&view)
    }
}

/// The report: the answer first, and what was asked for.
pub fn page(report: &Report, extent: Extent) -> Document {
    let mut page = Document::default();
    let [stacks, ledger, losses, objects] =
        [Shape::Stacks, Shape::Ledger, Shape::Losses, Shape::Objects].map(|view| extent.shows(view));
    let stack = (stacks || extent.full_stacks).then_some(extent.full_stacks);
    cause(report, stack, &mut page);
    page.line(dim(sums::process(report)));
    let costs = brief::costs(report);
    let complete = brief::completeness(report);
    let is_alone = costs.is_empty() && report.pages.is_empty();
    let nothing = headline::clean(report).filter(|_| is_alone && !(ledger || losses || objects));
    if let (Some(nothing), Ok(in_full)) = (nothing, &complete) {
        page.line(nothing + "; " + in_full.clone());
        rules(report, &mut page);
        page.fields(sums::conditions(report, objects));
        page.warnings(&report.warnings);
        page.next(&report.next);
        return page;
    }
    page.append(headline(report));
    views(report, extent, &costs, &mut page);
    if !ledger {
        brief::besides(report, &costs, &mut page);
        page.fields(sums::conditions(report, objects));
    }
    match (ledger, losses) {
        (_, true) => {}
        (true, false) => page.fields(sums::losses(report, false)),
        (false, false) => brief::write_completeness(complete, &mut page),
    }
    page.warnings(&report.warnings);
    match objects && report.next.ends_with(" --view objects") {
        true => page.next(format!("culeak check {}", shell_word(&report.source))),
        false => page.next(&report.next),
    }
    if !(stacks || ledger) && report.totals.held.total().count > 0 {
        more(report, &mut page);
    }
    page
}

/// What stands between the headline and the sums.
fn views(report: &Report, extent: Extent, costs: &[brief::Cost], page: &mut Document) {
    let is_of_rows = |view: &&Shape| matches!(view, Shape::Table | Shape::Stacks);
    let (mut rows_left, mut above) = (true, None);
    let last = (!extent.views.iter().any(|view| is_of_rows(&view))).then_some(&Shape::Table);
    for view in extent.views.iter().chain(last) {
        // The rows belong to the headline, and objects end with an empty line.
        if above != Some(&Shape::Objects) && (above.is_some() || !is_of_rows(&view)) {
            page.gap();
        }
        if is_of_rows(&view) && std::mem::take(&mut rows_left) {
            table(report, extent, costs, page);
        }
        match view {
            Shape::Stacks if is_of_code(report) => write_stacks(report, extent.full_stacks, page),
            Shape::Objects => objects::write(report, extent.full_stacks, page),
            Shape::Ledger => {
                ledger(report, page);
                page.fields(sums::totals(report, extent.shows(Shape::Objects)));
            }
            Shape::Losses => page.fields(sums::losses(report, true)),
            _ => {}
        }
        above = Some(view);
    }
}

/// The ranked rows, what rules decided about them, and the pages of pools.
fn table(report: &Report, extent: Extent, costs: &[brief::Cost], page: &mut Document) {
    match report.by {
        By::ObjectKind if extent.shows(Shape::Objects) => {}
        By::ObjectKind => objects::write_kinds(report, page),
        _ => rows(report, costs, page),
    }
    rules(report, page);
    pages::write(&report.pages, page);
}

fn write_stacks(report: &Report, full_stacks: bool, page: &mut Document) {
    page.gap();
    let rows = report.rows.iter().enumerate();
    rows.for_each(|(index, row)| details(index + 1, row, full_stacks, page));
    if !report.held_by.is_empty() {
        why::write_sites(&report.held_by, report.rows.len(), &report.source, page);
    }
}

/// The commands that show more of the same.
fn more(report: &Report, page: &mut Document) {
    let (source, selected) = (shell_word(&report.source), &report.selected);
    let filter = report.filter.as_ref().map(|of| of.filter.options()).unwrap_or_default();
    let holders = when(!report.held_by.is_empty(), || format!("culeak why {source}{filter}; "));
    let ledger = if has_ledger(report) { " | --view ledger" } else { "" };
    page.line(dim(format!(
        "more: {holders}culeak report {source}{selected} --view stacks{ledger} | --by stack | -o FILE.html"
    )));
}

/// The ranked rows, the first of them with their callers, and objects among them by what they cost.
fn rows(report: &Report, costs: &[brief::Cost], page: &mut Document) {
    let all = parts::all_rows(report.cut);
    let explained = match is_of_code(report) || report.by == By::Module {
        true => &report.rows[..report.rows.len().min(brief::EXPLAINED)],
        false => &[],
    };
    let explain = |row: &Row, page: &mut Document| {
        if explained.iter().any(|of| std::ptr::eq(of, row)) {
            brief::explain(row, report, EXPLAINED_INDENT, page);
        }
        objects::held_by(row, EXPLAINED_INDENT, page);
    };
    ranking(
        report,
        costs,
        all,
        |rows| rows.below(|ranked, page| explain(ranked.row, page)),
        page,
    );
}

const EXPLAINED_INDENT: usize = 6;

/// The failed request or the event that a snapshot was taken for. `stack`: the request's stack too, and whether all of it.
pub fn cause(report: &Report, stack: Option<bool>, page: &mut Document) {
    match (&report.trigger, &report.taken.automatic) {
        (Some(failed), automatic) => {
            let limits = automatic.as_ref().map(|automatic| ledger::limits(automatic.limits));
            request(failed, &limits.unwrap_or_default(), stack, page);
        }
        (None, Some(automatic)) => reason(automatic, page),
        (None, None) => {}
    }
}

/// The ledger.
pub fn ledger(report: &Report, page: &mut Document) {
    if has_ledger(report) {
        ledger::write(&report.ledger, page);
    }
}

/// What the rules of suppressions and categories decided.
pub fn rules(report: &Report, page: &mut Document) {
    let (objects, sampled) = (report.suppressed_objects, report.sampling.is_some());
    parts::suppressions(report.suppressed, objects, &report.suppressions, sampled, page);
    if report.by == By::Category {
        categories::write(&report.categories, page);
    }
}

/// Out of memory: the size, the device and the call site of the failed request, and the limit of the control group. Without the
/// stack, the callers are on one line, so that the largest holder is one of the first lines.
fn request(failed: &FailedRow, limits: &str, stack: Option<bool>, page: &mut Document) {
    let line = failed.stack.python_line().or_else(|| failed.stack.site());
    let name = line.map_or_else(|| NO_STACK.to_owned(), |line| short_name(&line.name()));
    let (api, bytes, place) = (failed.api, units::bytes(failed.bytes), parts::place(line));
    let title = format!(
        "out of memory: {api} of {bytes} on {} failed in {name}{place}",
        failed.device
    );
    page.line(styled(BAD, title + limits));
    match stack {
        Some(is_full) => {
            page.stack(&failed.stack, is_full, 2);
            page.blank();
        }
        None => parts::callers(&brief::callers(&failed.stack, usize::MAX))
            .into_iter()
            .for_each(|callers| page.indented(2, dim(callers))),
    }
}

/// Why the recorder took this snapshot.
fn reason(automatic: &Automatic, page: &mut Document) {
    let why = match automatic.reason {
        Reason::OutOfMemory => "after a request failed for lack of memory",
        Reason::Peak => "at a new peak",
        Reason::Mark => "at a mark",
        Reason::Requested => "at the program's request",
        Reason::Every => "at a regular interval",
    };
    let name: String = automatic.name.iter().map(|name| format!(": {name}")).collect();
    page.line(bold(format!("automatic snapshot, taken {why}{name}")));
    page.blank();
}

fn details(number: usize, row: &Row, full_stacks: bool, page: &mut Document) {
    let (place, mark) = (parts::place(row.site()), parts::mark(row));
    page.line(bold(format!("#{number}  {}{place}{mark}", short_name(&row.label))));
    facts(row, page);
    if let Some(first) = row.stacks.first() {
        page.stack(&first.stack, full_stacks, 6);
    }
    other_stacks(row.stacks_in_all, 1, page);
    page.blank();
}

/// The line on stacks that are not shown.
pub fn other_stacks(in_all: usize, shown: usize, page: &mut Document) {
    let others = in_all.saturating_sub(shown);
    if others > 0 {
        let others = document::counted(others, "other stack");
        page.indented(6, dim(format!("and {others}; --by stack shows each")));
    }
}

/// The memory of a row: its sizes, kinds, places, functions, threads and ages.
pub fn facts(row: &Row, page: &mut Document) {
    let is_sum = row.largest == 0 && row.bytes > 0;
    let each = match (row.count, row.smallest == row.largest) {
        (1, _) => String::new(),
        _ if is_sum => String::new(),
        (_, true) => format!(" of {}", units::bytes(row.smallest)),
        (_, false) => format!(" of {} to {}", units::bytes(row.smallest), units::bytes(row.largest)),
    };
    let kinds = parts::listed(row.kinds.iter().map(|(name, tally)| (*name, *tally)));
    let mut what = vec![
        format!("{} in {}{each}", estimate(row.bytes, row.estimated), counted(row)),
        kinds,
    ];
    // Host memory is recognized by its kind.
    let no_device = [NO_DEVICE, HOST_MEMORY].as_slice();
    for (names, none) in [(&row.devices, no_device), (&row.streams, &[NO_STREAM])] {
        if names.len() != 1 || !none.iter().any(|none| names.contains_key(*none)) {
            what.push(parts::listed(names.iter().map(|(name, tally)| (name.as_str(), *tally))));
        }
    }
    page.indented(4, what.join(", "));
    let apis = parts::listed(row.apis.iter().map(|(name, tally)| (*name, *tally)));
    let (oldest, newest) = (units::duration(row.oldest_age_ns), units::duration(row.newest_age_ns));
    let age = match row.count {
        1 => format!("{oldest} old"),
        _ => format!("oldest {oldest}, newest {newest}"),
    };
    let threads = parts::listed(row.threads.iter().map(|(name, tally)| (name.as_str(), *tally)));
    match is_sum {
        true => page.indented(4, format!("by {apis}")),
        false => page.indented(4, format!("by {apis}, {threads}, {age}")),
    }
}
