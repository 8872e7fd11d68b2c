//! Trends of a job: the call sites that grow and on which processes, then the processes that grow.

use culeak::analysis::job::trend::{JobTrend, ProcessTrend, SiteTrend};
use culeak::analysis::report::shell_word;
use culeak::analysis::trend::{Against, Class};
use culeak::tally::Tally;

use super::{bad_if, members, part, subject};
use crate::document::{BAD, Cell, Document, GOOD, Rows, WARN, counted, styled};
use crate::text::trend::{classes, sizes, style};
use crate::text::units::when;
use crate::text::{parts, units};

/// Processes that are listed.
const PROCESSES: usize = 10;

/// `selected`: the options that select the memory, for the next command.
pub fn page(trend: &JobTrend, selected: &str) -> Document {
    let mut page = Document::default();
    headline(trend, &mut page);
    let mut growing: Vec<&ProcessTrend> = trend.processes.iter().filter(|process| process.growing > 0).collect();
    growing.sort_by(|a, b| b.pace.total_cmp(&a.pace));
    if !trend.sites.is_empty() {
        sites(trend, &mut page);
    }
    page.more(
        trend.hidden_sites,
        "call site",
        " beyond --top or below --min-bytes; --top 0 shows all",
    );
    let next = match growing.first() {
        Some(process) => Some(format!("culeak report {}{selected}", shell_word(&process.source))),
        None if trend.judged == 0 => {
            Some("culeak run -o runs --snapshot every:30s -- COMMAND; culeak trend runs".to_owned())
        }
        None => None,
    };
    if !growing.is_empty() {
        page.blank();
        processes(trend, growing, &mut page);
    }
    let processes = trend.processes.iter();
    parts::completeness(processes.map(|of| (of.is_complete, &*of.source)), "process", &mut page);
    page.warnings(&trend.warnings);
    next.into_iter().for_each(|next| page.next(next));
    page
}

/// `8 processes of serve on 1 host: 12 snapshots each, from 1 GiB to 1.2 GiB`.
fn headline(trend: &JobTrend, page: &mut Document) {
    let count = trend.processes.len();
    let points = || trend.processes.iter().map(|process| process.points as u64);
    let (least, most) = (points().min().unwrap_or(0), points().max().unwrap_or(0));
    let least = when(least != most, || format!("{} to ", units::count(least)));
    let each = if count == 1 { "" } else { " each" };
    let total = |of: fn(&ProcessTrend) -> Tally| units::bytes(Tally::total(trend.processes.iter().map(of)).bytes);
    let left: Vec<Tally> = trend.processes.iter().filter_map(|process| process.at_exit).collect();
    let of = when(left.len() != count, || format!(" of {} of them", left.len()));
    let at_exit = when(!left.is_empty(), || {
        format!(", {} at exit{of}", units::bytes(Tally::total(left).bytes))
    });
    let (snapshots, first, last) = (
        counted(most, "snapshot"),
        total(|process| process.first),
        total(|process| process.last),
    );
    let subject = subject(count, &[&trend.program], trend.hosts);
    page.line(subject + format!(": {least}{snapshots}{each}, from {first} to {last}{at_exit}"));
    parts::opaque_pools(page, &trend.opaque_pools);
    let needed = trend.points_needed;
    if trend.judged == 0 {
        let what = match trend.against {
            Against::Marks => format!("snapshots after {needed} different marks"),
            Against::Time | Against::Runs => format!("{needed} snapshots"),
        };
        let few = format!("too few snapshots to judge: {what} of one process are needed");
        return page.line(styled(WARN, few));
    }
    let style = if trend.is_growing() { BAD } else { GOOD };
    page.line(styled(style, classes(&trend.classes)));
    if trend.judged < count {
        let few = units::plural((count - trend.judged) as u64, "process has", "processes have");
        page.line(styled(
            WARN,
            format!("{few} too few snapshots to judge: {needed} are needed"),
        ));
    }
}

fn sites(trend: &JobTrend, page: &mut Document) {
    let sentence = |row: &&SiteTrend| match row.class {
        Class::Growing | Class::FreedOnlyAtExit | Class::Slowing => row.sentence.clone(),
        // Of the others it is enough to know that they do not grow.
        _ => String::new(),
    };
    let rows = Rows::of(&trend.sites)
        .column("class", |row| row.class.name())
        .column("processes", |row| part(row.agreeing as u64, row.judged as u64))
        .column("in all", |row| sizes(row.site.object, row.first, row.last, ""))
        .column("call site", |row| parts::cell(&row.site))
        .column("", sentence)
        .style(|row| bad_if(style(row.class) == BAD))
        .below(|row, page| parts::callers_of(&row.site, page));
    page.table(rows);
}

fn processes(trend: &JobTrend, mut growing: Vec<&ProcessTrend>, page: &mut Document) {
    let hidden = growing.len().saturating_sub(PROCESSES);
    growing.truncate(PROCESSES);
    let unit = trend.against.unit();
    let full = |process: &&ProcessTrend| {
        let full = process.full_after.map(|after| trend.against.span(after));
        full.map_or_else(String::new, |full| format!("full in {full}"))
    };
    let pace = |process: &&ProcessTrend| format!("{} per {unit}", units::signed_bytes(process.pace as i128));
    let rows = members(growing, |process| &process.member)
        .column("held", |process| Cell::Size(process.last.bytes))
        .column("growth", |process| Cell::Number(pace(process)))
        .column("growing", |process| Cell::Number(counted(process.growing, "call site")))
        .column("", full);
    page.table(rows);
    page.more(hidden, "process", " that grow; --json lists all");
}
