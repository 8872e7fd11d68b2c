//! A job: what stands out, the processes, and the call sites over all of them.

use std::collections::BTreeSet;

use culeak::analysis::check::{Unseen, missing_ranks};
use culeak::analysis::job::member::Member;
use culeak::analysis::job::sites;
use culeak::analysis::job::{JobProcess, JobReport, ProcessesOut, Quantity, SiteRow, Unreadable};
use culeak::analysis::report::shell_word;

pub mod diff;
pub mod shared;
pub mod trend;
pub mod why;

use super::report::EXPLAINED;
use super::{parts, units};
use crate::document::{
    BAD, BOLD, Cell, Chart, ChartPoint, Document, Form, GOOD, PLAIN, Rows, Site, Text, WARN, bold, counted, dim, styled,
};

/// Call sites in the summary at the top.
const SUMMARY: usize = 5;
/// Unreadable inputs that are listed.
const UNREADABLE: usize = 10;

/// At most `top` processes; the call sites were cut before. `selected`: the options that select the memory, for the next command.
pub fn page(job: &JobReport, top: Option<usize>, selected: &str) -> Document {
    let mut page = Document::default();
    headline(job, &mut page);
    if job.held.count > 0 || !job.sites.is_empty() || !job.stands_out.is_empty() {
        summary(job, &mut page);
        sites(job, top, &mut page);
        shared::write(job, &mut page);
        page.blank();
        processes(job, top, &mut page);
    }
    if !job.unreadable.is_empty() {
        page.blank();
        unreadable("not read", &job.unreadable, &mut page);
    }
    parts::suppressions(job.suppressed, 0, &job.suppressions, job.sampled, &mut page);
    failed_requests(job, &mut page);
    let members: Vec<Member> = job.processes.iter().map(|process| process.row.member.clone()).collect();
    let lacking = missing_ranks(&members);
    let recordings = job.processes.iter().map(|process| &process.row);
    if lacking.is_empty() || recordings.clone().any(|of| !of.is_complete) {
        parts::completeness(recordings.map(|of| (of.is_complete, &*of.source)), "process", &mut page);
    }
    for (_, Unseen { what, next, .. }) in lacking {
        page.line(styled(WARN, format!("not recorded in full: {what}; {next}")));
    }
    page.warnings(&job.warnings);
    page.warnings(missing_mark(job).filter(|(_, all)| !all).map(|(warning, _)| warning));
    let lost = job.processes.iter().map(|process| process.row.lost_allocations);
    let lost: u64 = lost.fold(0, u64::saturating_add);
    if lost > 0 {
        let lost = units::plural(lost, "allocation was", "allocations were");
        let warning = format!("{lost} not recorded, so these sums are too low; --per-process shows in which processes");
        page.warnings([warning]);
    }
    let mut at_sites = job
        .sites
        .iter()
        .filter_map(|row| row.stands_out.as_ref()?.processes.first());
    let mut in_sum = job.stands_out.iter().filter_map(|out| out.out.processes.first());
    let source = at_sites
        .next()
        .or_else(|| in_sum.next())
        .map(|outlier| outlier.process.source.as_str());
    // Where all are alike, the first is as good as any.
    let held = |process: &&JobProcess| process.row.held.bytes;
    let largest = job
        .processes
        .iter()
        .rev()
        .max_by_key(held)
        .map(|process| process.row.source.as_str());
    if let Some(source) = source.or(largest) {
        page.next(format!("culeak report {}{selected}", shell_word(source)));
    }
    page
}

/// Inputs, and why they could not be read.
fn unreadable(title: &str, inputs: &[Unreadable], page: &mut Document) {
    let all = inputs.len();
    page.line(styled(WARN, format!("{title}: {}", counted(all, "input"))));
    let shown = inputs.iter().take(UNREADABLE);
    shown.for_each(|Unreadable { source, reason }| page.item(format!("{source}: {reason}")));
    page.more(all.saturating_sub(UNREADABLE), "input", "; --json lists all");
}

fn process_name(process: &JobProcess) -> String {
    match process.row.member.rank {
        Some(rank) => format!("rank {rank}"),
        None => format!("process {}", process.row.member.pid),
    }
}

/// Requests that CUDA refused, and in which processes.
fn failed_requests(job: &JobReport, page: &mut Document) {
    const SHOWN: usize = 3;
    let failed: Vec<&JobProcess> = job
        .processes
        .iter()
        .filter(|process| process.row.failed.count > 0)
        .collect();
    let names = match failed.len() {
        0 => return,
        1..=SHOWN => failed
            .iter()
            .map(|process| process_name(process))
            .collect::<Vec<_>>()
            .join(", "),
        all => counted(all, "process"),
    };
    let (requests, bytes) = (
        counted(job.failed.count, "failed request"),
        units::bytes(job.failed.bytes),
    );
    page.line(styled(
        WARN,
        format!("{requests} for {bytes} in {names}; --per-process shows them"),
    ));
}

/// Processes whose memory all passes, since they set no mark of the name that `--since` gives; and whether these are all.
fn missing_mark(job: &JobReport) -> Option<(String, bool)> {
    let name = job.filter.as_ref()?.filter.since.as_deref()?;
    let lacking = job.processes.iter().filter(|process| process.row.lacks_mark).count();
    let all = job.processes.len();
    let processes = counted(all, "process");
    let lists = "--per-process --json lists the marks";
    let text = match lacking {
        0 => return None,
        lacking if lacking == all => {
            format!("none of {processes} set the mark {name:?}, so --since has no effect; {lists}")
        }
        lacking => {
            let lacking = units::count(lacking as u64);
            format!("{lacking} of {processes} set no mark {name:?}, so all of their memory counts; {lists}")
        }
    };
    Some((text, lacking == all))
}

/// `64 processes of train on 8 hosts`.
fn subject<P: ToString>(processes: usize, programs: &[P], hosts: usize) -> Text {
    let of = match programs {
        [program] => program.to_string(),
        programs => counted(programs.len(), "program"),
    };
    bold(format!(
        "{} of {of} on {}",
        counted(processes, "process"),
        counted(hosts, "host")
    ))
}

/// What all processes hold, which is an estimate if a filter selects it by sampled stacks.
fn held(job: &JobReport) -> String {
    let is_estimate = job.processes.iter().any(|process| process.row.held_is_estimated);
    format!("{}{}", parts::about(is_estimate), parts::tally(job.held))
}

/// `64 processes of python train.py on 8 hosts leak 2.1 TiB in 1,234 blocks`
fn headline(job: &JobReport, page: &mut Document) {
    let (verb, when) = match (job.leaked, job.finished, job.processes.len()) {
        (true, _, 1) => ("leaks", ""),
        (true, ..) => ("leak", ""),
        (false, true, 1) => ("held", " when it ended"),
        (false, true, _) => ("held", " when they ended"),
        (false, false, 1) => ("holds", ""),
        (false, false, _) => ("hold", ""),
    };
    let (style, held) = match (job.held.count, job.leaked) {
        (0, true) => (GOOD, "nothing".to_owned()),
        (0, false) => (BOLD, "nothing".to_owned()),
        (_, true) if job.held.bytes > 0 => (BAD, held(job)),
        _ => (BOLD, held(job)),
    };
    let opaque = job.opaque_pools.iter().map(|pool| pool.tally.bytes);
    let pools = match opaque.fold(job.pools.bytes, u64::saturating_sub) {
        0 => String::new(),
        known => format!(
            "; pools {} {}",
            if when.is_empty() { "hold" } else { "held" },
            units::bytes(known)
        ),
    };
    let subject = subject(job.processes.len(), &job.programs, job.hosts) + format!(" {verb} ");
    page.line(subject + styled(style, format!("{held}{when}")) + pools);
    parts::opaque_pools(page, &job.opaque_pools);
    if job.earlier_snapshots > 0 {
        let earlier = counted(job.earlier_snapshots, "earlier snapshot");
        page.line(dim(format!(
            "{earlier} of the same processes left out; culeak trend compares them"
        )));
    }
    if let Some(filtered) = &job.filter {
        page.line(format!("filter: {}", parts::filter(filtered, 0)));
    }
    if let Some((text, true)) = missing_mark(job) {
        page.line(styled(WARN, text));
    }
    if job.elsewhere > 0 {
        let others = units::plural(job.elsewhere as u64, "more process uses", "more processes use");
        page.line(dim(format!("{others} none of these devices")));
    }
}

/// What stands out, in the first lines of the report.
fn summary(job: &JobReport, page: &mut Document) {
    let outlying = job.sites.iter().filter_map(|row| Some((row, row.stands_out.as_ref()?)));
    let outlying: Vec<_> = outlying.collect();
    for (row, found) in outlying.iter().take(SUMMARY) {
        page.item(Text::from(name(&row.site) + "  ") + styled(BAD, &found.sentence));
    }
    let hidden = outlying.len().saturating_sub(SUMMARY);
    page.more(hidden, "call site", " at which processes differ, below");
    // Call sites explain the sums of their processes.
    let named = outlying.iter().flat_map(|(_, found)| &found.processes);
    let named: BTreeSet<&str> = named.map(|outlier| outlier.process.source.as_str()).collect();
    let is_unexplained = |found: &&ProcessesOut| {
        let mut processes = found.out.processes.iter();
        !processes.all(|outlier| named.contains(outlier.process.source.as_str()))
    };
    for found in job.stands_out.iter().filter(is_unexplained) {
        let what = match found.what {
            Quantity::Held => "all that is held: ",
            Quantity::Peak => "peak: ",
        };
        page.item(Text::from(what) + styled(WARN, &found.out.sentence));
    }
    if outlying.is_empty() && job.stands_out.is_empty() && job.processes.len() > 1 {
        page.line(styled(GOOD, "no process stands out"));
    }
}

/// A call site in a sentence.
fn name(site: &sites::Site) -> String {
    let Site { place, mark, .. } = parts::cell(site);
    let gap = if place.is_empty() { "" } else { "  " };
    format!("{}{gap}{place}{mark}", parts::short_name(&site.label))
}

fn stands_out(stands_out: bool) -> &'static str {
    if stands_out { "<- stands out" } else { "" }
}

/// The style of a row that stands out.
fn bad_if(stands_out: bool) -> anstyle::Style {
    if stands_out { BAD } else { PLAIN }
}

/// The columns that say which process it is.
fn members<T>(processes: Vec<T>, member: impl Fn(&T) -> &Member) -> Rows<T> {
    let has_ranks = processes.iter().any(|process| member(process).rank.is_some());
    let rank = |process: &T| member(process).rank.map_or_else(String::new, |rank| rank.to_string());
    Rows::of(processes)
        .column_if(has_ranks, "rank", |process| Cell::Number(rank(process)))
        .column("host", |process| member(process).host.clone())
        .column("pid", |process| Cell::Number(member(process).pid.to_string()))
}

fn processes(job: &JobReport, top: Option<usize>, page: &mut Document) {
    let most = top.unwrap_or(job.processes.len());
    let has_memory = |process: &&JobProcess| {
        let row = &process.row;
        top.is_none() || process.stands_out || (row.held.count, row.peak_bytes, row.failed.count) != (0, 0, 0)
    };
    let all: Vec<&JobProcess> = job.processes.iter().filter(has_memory).collect();
    // Those that stand out come first if there is no room for all.
    let (out_of_line, usual): (Vec<_>, Vec<_>) = all.iter().copied().partition(|process| process.stands_out);
    let shown: Vec<&JobProcess> = match all.len() <= most {
        true => all,
        false => out_of_line.into_iter().chain(usual).take(most).collect(),
    };
    let hidden = job.processes.len() - shown.len();
    let has_unexplained = shown.iter().any(|process| process.row.unexplained_bytes.is_some());
    let devices = |process: &&JobProcess| {
        let devices: Vec<String> = process.row.devices.iter().map(i32::to_string).collect();
        devices.join(",")
    };
    let unexplained = |process: &&JobProcess| match process.row.unexplained_bytes {
        Some(bytes) => Cell::Delta(bytes, None),
        None => Cell::Number(String::new()),
    };
    let rows = members(shown, |process| &process.row.member)
        .column("device", devices)
        .column("state", |process| process.row.state.name())
        .column(if job.leaked { "leaked" } else { "held" }, |process| {
            parts::size_about(process.row.held.bytes, process.row.held_is_estimated)
        })
        .column("peak", |process| Cell::Size(process.row.peak_bytes))
        .column_if(has_unexplained, "unexplained", unexplained)
        .column_if(job.programs.len() > 1, "program", |process| {
            process.row.member.program.to_string()
        })
        .column("", |process| stands_out(process.stands_out))
        .style(|process| bad_if(process.stands_out));
    page.table(rows);
    page.more(hidden, "process", "; --top 0 shows all");
}

/// `7/8`.
fn part(of: u64, all: u64) -> Cell {
    Cell::Number(format!("{}/{}", units::count(of), units::count(all)))
}

/// The bytes of each process at a call site, and a stack of it.
fn bars(job: &JobReport, row: &SiteRow, page: &mut Document) {
    let members = job.processes.iter();
    let members = members.filter(|process| process.row.member.program == row.program);
    let value = |process: &JobProcess| {
        let at = row.values.binary_search_by_key(&process.number, |value| value.0);
        at.map_or(0, |at| row.values[at].1.unsigned_abs())
    };
    let outliers = row.stands_out.iter().flat_map(|found| &found.processes);
    let outliers: BTreeSet<&str> = outliers.map(|outlier| outlier.process.source.as_str()).collect();
    let point = |(nth, process): (usize, &JobProcess)| ChartPoint {
        name: process_name(process),
        x: nth as f64,
        value: value(process),
        part: 0,
        stands_out: outliers.contains(process.row.source.as_str()),
    };
    page.chart(Chart {
        label: format!(
            "bytes of each process; the median is {}",
            units::bytes(row.range.median.unsigned_abs())
        ),
        points: members.enumerate().map(point).collect(),
        form: Form::Bars,
        counts: false,
    });
    page.site_stack(&row.site.stack, false, 6);
}

/// Unless all are asked for (`top`: `None`), call sites that hold nothing are counted.
fn sites(job: &JobReport, top: Option<usize>, page: &mut Document) {
    if job.sites.is_empty() {
        return page.line(match (job.hidden_sites, &job.filter) {
            (1.., _) => "no call site is as large as --min-bytes",
            (0, Some(_)) => "no memory that the filter selects is held",
            (0, None) => "no memory is held",
        });
    }
    let holds = |(_, row): &(usize, &SiteRow)| top.is_none() || row.range.sum > 0 || row.stands_out.is_some();
    let shown: Vec<(usize, &SiteRow)> = job.sites.iter().enumerate().filter(holds).collect();
    let empty = job.sites.len() - shown.len();
    let size = |bytes| parts::size_about(bytes, job.sampled);
    let rows = Rows::of(shown)
        .column("sum", |(_, row)| size(row.range.sum_bytes()))
        .column("median", |(_, row)| size(row.range.median.unsigned_abs()))
        .column("min", |(_, row)| size(row.range.min.unsigned_abs()))
        .column("max", |(_, row)| size(row.range.max.unsigned_abs()))
        .column("processes", |(_, row)| part(row.processes, row.range.of_processes))
        .column("call site", |(_, row)| parts::cell(&row.site))
        .style(|(_, row)| bad_if(row.stands_out.is_some()))
        .below(|&(nth, row), page| match row.values.is_empty() {
            false => bars(job, row, page),
            true if nth < EXPLAINED => parts::callers_of(&row.site, page),
            true => {}
        });
    page.table(rows);
    let hidden = match job.hidden.count {
        0 => "out memory".to_owned(),
        _ => format!(" {}{}", parts::about(job.sampled), parts::tally(job.hidden)),
    };
    page.more(
        job.hidden_sites + empty,
        "call site",
        format!(" with{hidden}; --top 0 shows all"),
    );
    if job.beyond.count > 0 {
        let beyond = format!("{}{}", parts::about(job.sampled), parts::tally(job.beyond));
        page.item(dim(format!("… and {beyond} at more call sites than a report keeps")));
    }
}
