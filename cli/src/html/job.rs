//! The report of a job as a page: its processes, its call sites, and the bytes of each process at a call site.
//!
//! The page is bounded: it has at most [`SITES`] call sites, those at which processes stand out first, and at most [`VALUES`] values
//! of processes. Equal values of neighbouring ranks compress to almost nothing.

use std::io::{self, Write};

use culeak::analysis::job::sites::Site;
use culeak::analysis::job::{JobProcess, JobReport, ProcessesOut, Quantity, SiteRow};
use serde::Serialize;

use super::data::Data;
use super::page::{self, Parts};
use super::stacks::{StackLine, lines_of};
use crate::escape::Escaped;
use crate::text;
use crate::text::parts;

/// The most call sites of a page.
pub const SITES: usize = 1000;
/// The most values of processes, over all call sites.
const VALUES: usize = 4 << 20;
/// Lines about shared memory.
const SHARED: usize = 200;
/// Rows in the text for browsers without scripts.
const ROWS_IN_TEXT: usize = 20;

#[derive(Serialize)]
struct Page {
    what: &'static str,
    headline: String,
    finished: bool,
    /// What stands out in the sums of processes.
    notes: Vec<String>,
    warnings: Vec<String>,
    programs: Vec<String>,
    processes: Vec<Process>,
    sites: Vec<Row>,
    /// Lines about memory that several processes have open.
    shared: Vec<String>,
    hidden: Option<String>,
    unreadable: Vec<String>,
    next: Option<String>,
}

#[derive(Serialize)]
struct Process {
    rank: Option<u32>,
    host: String,
    pid: u32,
    devices: String,
    state: &'static str,
    program: usize,
    unexplained: Option<i64>,
    out: bool,
    source: String,
}

#[derive(Serialize)]
struct Row {
    label: String,
    place: String,
    mark: String,
    program: usize,
    processes: u64,
    of: u64,
    /// The median is exact.
    exact: bool,
    sentence: Option<String>,
    stack: Vec<StackLine>,
    /// The bytes of each process are in the page.
    values: bool,
}

/// Writes the whole page. `values`: of each call site the bytes of each process, in the order of the report.
pub fn write(job: &JobReport, values: &[Vec<u64>], out: &mut dyn Write) -> io::Result<()> {
    let plain = as_text(job);
    let with_values = values.len().min(VALUES / job.processes.len().max(1));
    let mut data = Data::new();
    columns(&mut data, job, &values[..with_values]);
    let program = |of| job.programs.iter().position(|program| program == of).unwrap_or(0);
    let rows = job.sites.iter().enumerate().map(|(nth, site)| Row {
        values: nth < with_values,
        program: program(&site.program),
        ..row(site)
    });
    let processes = job.processes.iter().map(|of| Process {
        program: program(&of.row.member.program),
        ..process(of)
    });
    let content = Page {
        what: "job",
        headline: plain.lines().next().unwrap_or_default().to_owned(),
        finished: job.leaked,
        notes: job.stands_out.iter().map(note).collect(),
        warnings: (job.opaque_pools.iter().map(|pool| pool.sentence(None)))
            .chain(job.warnings.iter().map(|text| escaped(text)))
            .collect(),
        programs: job
            .programs
            .iter()
            .map(|program| escaped(&program.to_string()))
            .collect(),
        processes: processes.collect(),
        sites: rows.collect(),
        shared: text::job::shared::lines(job).take(SHARED).collect(),
        hidden: (job.hidden_sites > 0).then(|| {
            let rows = text::units::plural(job.hidden_sites as u64, "more call site", "more call sites");
            format!("{rows} with {} are not on this page", parts::tally(job.hidden))
        }),
        unreadable: job
            .unreadable
            .iter()
            .map(|input| escaped(&format!("{}: {}", input.source, input.reason)))
            .collect(),
        next: plain
            .lines()
            .find_map(|line| line.strip_prefix("next: "))
            .map(str::to_owned),
    };
    let title = format!(
        "culeak: {}",
        text::units::plural(job.processes.len() as u64, "process", "processes")
    );
    page::write(Parts::Job, &title, &plain, data, &content, out)
}

fn as_text(job: &JobReport) -> String {
    let shown = JobReport {
        sites: job.sites.iter().take(ROWS_IN_TEXT).cloned().collect(),
        ..job.clone()
    };
    text::job::page(&shown, Some(ROWS_IN_TEXT)).plain()
}

fn columns(data: &mut Data, job: &JobReport, values: &[Vec<u64>]) {
    let rows = || job.processes.iter().map(|process| &process.row);
    let mut add = |name: &str, numbers: &mut dyn Iterator<Item = u64>| data.columns.add(name, numbers);
    add("process.held", &mut rows().map(|row| row.held.bytes));
    add("process.pools", &mut rows().map(|row| row.pools.bytes));
    add("process.peak", &mut rows().map(|row| row.peak_bytes));
    add("site.sum", &mut job.sites.iter().map(|site| site.sum_bytes));
    add("site.count", &mut job.sites.iter().map(|site| site.sum_count));
    add("site.median", &mut job.sites.iter().map(|site| site.median_bytes));
    add("site.min", &mut job.sites.iter().map(|site| site.min_bytes));
    add("site.max", &mut job.sites.iter().map(|site| site.max_bytes));
    add("values", &mut values.iter().flatten().copied());
}

fn process(of: &JobProcess) -> Process {
    let row = &of.row;
    let devices: Vec<String> = row.devices.iter().map(i32::to_string).collect();
    Process {
        rank: row.member.rank,
        host: escaped(&row.member.host),
        pid: row.member.pid,
        devices: devices.join(","),
        state: text::job::state(row.state),
        program: 0,
        unexplained: row.unexplained_bytes.and_then(|bytes| i64::try_from(bytes).ok()),
        out: of.stands_out,
        source: escaped(&row.source),
    }
}

fn row(row: &SiteRow) -> Row {
    let site: &Site = &row.site;
    Row {
        label: escaped(&site.label),
        place: escaped(site.place.as_deref().unwrap_or_default()),
        mark: parts::mark_of(site.pool, site.allocator, site.library)
            .trim()
            .to_owned(),
        program: 0,
        processes: row.processes,
        of: row.of_processes,
        exact: row.median_is_exact,
        sentence: row.stands_out.as_ref().map(|out| escaped(&out.sentence)),
        stack: lines_of(&site.stack),
        values: false,
    }
}

fn note(found: &ProcessesOut) -> String {
    let what = match found.what {
        Quantity::Held => "all that is held",
        Quantity::Peak => "peak",
    };
    format!("{what}: {}", Escaped(&found.out.sentence))
}

fn escaped(text: &str) -> String {
    Escaped(text).to_string()
}
