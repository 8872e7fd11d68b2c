//! A job as text: what stands out, the processes, and the call sites over all of them.

use std::collections::BTreeSet;
use std::io::{self, Write};

use culeak::analysis::job::sites::Site;
use culeak::analysis::job::{JobProcess, JobReport, ProcessesOut, Quantity, SiteRow};
use culeak::analysis::report::shell_word;
use culeak::snapshot::ProcessState;

pub mod diff;
pub mod shared;
pub mod trend;
pub mod why;

use super::columns;
use super::parts::{self, BAD, BOLD, DIM, GOOD, PLAIN, Styled, WARN};
use super::units::{self, plural};
use crate::escape::Escaped;

/// Call sites in the summary at the top.
const SUMMARY: usize = 5;
/// Unreadable inputs that are listed.
const UNREADABLE: usize = 10;

/// Writes at most `top` processes; the call sites were cut before.
pub fn write(job: &JobReport, top: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
    headline(job, out)?;
    summary(job, out)?;
    writeln!(out)?;
    processes(job, top, out)?;
    writeln!(out)?;
    sites(job, out)?;
    shared::write(job, out)?;
    if !job.unreadable.is_empty() {
        writeln!(out)?;
        let count = plural(job.unreadable.len() as u64, "input", "inputs");
        writeln!(out, "{}", Styled(WARN, format!("not read: {count}")))?;
        for input in job.unreadable.iter().take(UNREADABLE) {
            writeln!(out, "  {}: {}", Escaped(&input.source), Escaped(&input.reason))?;
        }
        if job.unreadable.len() > UNREADABLE {
            writeln!(
                out,
                "  {}",
                Styled(
                    DIM,
                    format!("… and {} more; --json lists all", job.unreadable.len() - UNREADABLE)
                )
            )?;
        }
    }
    let lost: u64 = job
        .processes
        .iter()
        .map(|process| process.row.lost_allocations)
        .fold(0, u64::saturating_add);
    parts::suppressions(job.suppressed, 0, &job.suppressions, job.sampled, out)?;
    failed_requests(job, out)?;
    let mut warnings = job.warnings.clone();
    warnings.extend(missing_mark(job).filter(|(_, all)| !all).map(|(warning, _)| warning));
    if lost > 0 {
        let lost = plural(lost, "allocation was", "allocations were");
        warnings.push(format!(
            "{lost} not recorded, so these sums are too low; --per-process shows in which processes"
        ));
    }
    parts::warnings(out, &warnings)?;
    let first_out = || {
        job.sites
            .iter()
            .find_map(|row| row.stands_out.as_ref()?.processes.first())
    };
    let outlier = first_out().or_else(|| job.stands_out.iter().find_map(|out| out.out.processes.first()));
    let source = outlier.map(|outlier| outlier.source.as_str());
    // Where all are alike, the first is as good as any.
    let most = job.processes.iter().map(|process| process.row.held.bytes).max();
    let largest = || {
        job.processes
            .iter()
            .find(|process| Some(process.row.held.bytes) == most)
    };
    match source.or_else(|| largest().map(|process| process.row.source.as_str())) {
        Some(source) => parts::next(out, &format!("culeak report {}", shell_word(source))),
        None => Ok(()),
    }
}

/// Requests that CUDA refused, and in which processes.
fn failed_requests(job: &JobReport, out: &mut dyn Write) -> io::Result<()> {
    let failed = job.processes.iter().filter(|process| process.row.failed.count > 0);
    let failed: Vec<&JobProcess> = failed.collect();
    if failed.is_empty() {
        return Ok(());
    }
    const SHOWN: usize = 3;
    let name = |process: &&JobProcess| match process.row.member.rank {
        Some(rank) => format!("rank {rank}"),
        None => format!("process {}", process.row.member.pid),
    };
    let names = match failed.len() <= SHOWN {
        true => failed.iter().map(name).collect::<Vec<_>>().join(", "),
        false => plural(failed.len() as u64, "process", "processes"),
    };
    let requests = plural(job.failed.count, "failed request", "failed requests");
    let line = format!(
        "{requests} for {} in {}; --per-process shows them",
        units::bytes(job.failed.bytes),
        names
    );
    writeln!(out, "{}", Styled(WARN, line))
}

/// Processes whose memory all passes, since they set no mark of the name that `--since` gives; and whether these are all.
fn missing_mark(job: &JobReport) -> Option<(String, bool)> {
    let name = job.filter.as_ref()?.filter.since.as_deref()?;
    let lacking = job.processes.iter().filter(|process| process.row.lacks_mark).count();
    let all = job.processes.len();
    let processes = plural(all as u64, "process", "processes");
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

/// `64 processes of python train.py on 8 hosts leak 2.1 TiB in 1,234 blocks`
fn headline(job: &JobReport, out: &mut dyn Write) -> io::Result<()> {
    let count = job.processes.len() as u64;
    let processes = plural(count, "process", "processes");
    let of = match job.programs.as_slice() {
        [program] => program.to_string(),
        programs => plural(programs.len() as u64, "program", "programs"),
    };
    let hosts = plural(job.hosts as u64, "host", "hosts");
    let (verb, when) = match (job.leaked, job.finished, count) {
        (true, _, 1) => ("leaks", ""),
        (true, ..) => ("leak", ""),
        (false, true, 1) => ("held", " when it ended"),
        (false, true, _) => ("held", " when they ended"),
        (false, false, 1) => ("holds", ""),
        (false, false, _) => ("hold", ""),
    };
    let held = format!("{}{when}", parts::tally(job.held));
    let style = if job.leaked && job.held.bytes > 0 { BAD } else { BOLD };
    write!(
        out,
        "{} {verb} {}",
        Styled(BOLD, format!("{processes} of {} on {hosts}", Escaped(&of))),
        Styled(style, held)
    )?;
    let opaque = job.opaque_pools.iter().map(|pool| pool.bytes);
    let known = opaque.fold(job.pools.bytes, u64::saturating_sub);
    if known > 0 {
        let verb = if when.is_empty() { "hold" } else { "held" };
        write!(out, "; pools {verb} {}", units::bytes(known))?;
    }
    writeln!(out)?;
    parts::opaque_pools(out, &job.opaque_pools)?;
    if job.earlier_snapshots > 0 {
        let earlier = plural(job.earlier_snapshots as u64, "earlier snapshot", "earlier snapshots");
        let line = format!("{earlier} of the same processes left out; culeak trend compares them");
        writeln!(out, "{}", Styled(DIM, line))?;
    }
    if let Some(filtered) = &job.filter {
        writeln!(out, "filter: {}", parts::filter(filtered, 0))?;
    }
    if let Some((text, true)) = missing_mark(job) {
        writeln!(out, "{}", Styled(WARN, text))?;
    }
    if job.elsewhere > 0 {
        let others = plural(job.elsewhere as u64, "more process uses", "more processes use");
        writeln!(out, "{}", Styled(DIM, format!("{others} none of these devices")))?;
    }
    Ok(())
}

/// What stands out, in the first lines of the report.
fn summary(job: &JobReport, out: &mut dyn Write) -> io::Result<()> {
    let outlying: Vec<_> = job
        .sites
        .iter()
        .filter_map(|row| Some((row, row.stands_out.as_ref()?)))
        .collect();
    for (row, found) in outlying.iter().take(SUMMARY) {
        let sentence = Escaped(&found.sentence).to_string();
        writeln!(out, "  {}  {}", name(&row.site), Styled(BAD, sentence))?;
    }
    if outlying.len() > SUMMARY {
        let more = format!(
            "… and {} more call sites at which processes differ, below",
            outlying.len() - SUMMARY
        );
        writeln!(out, "  {}", Styled(DIM, more))?;
    }
    // Call sites explain the sums of their processes.
    let named = outlying.iter().flat_map(|(_, found)| &found.processes);
    let named: BTreeSet<&str> = named.map(|process| process.source.as_str()).collect();
    let is_unexplained = |found: &&ProcessesOut| {
        let mut processes = found.out.processes.iter();
        !processes.all(|process| named.contains(process.source.as_str()))
    };
    for found in job.stands_out.iter().filter(is_unexplained) {
        let what = match found.what {
            Quantity::Held => "all that is held",
            Quantity::Peak => "peak",
        };
        writeln!(
            out,
            "  {what}: {}",
            Styled(WARN, Escaped(&found.out.sentence).to_string())
        )?;
    }
    if outlying.is_empty() && job.stands_out.is_empty() && job.processes.len() > 1 {
        writeln!(out, "{}", Styled(GOOD, "no process stands out"))?;
    }
    Ok(())
}

fn name(site: &Site) -> String {
    let place = site
        .place
        .as_ref()
        .map_or_else(String::new, |place| format!("  {}", Escaped(place)));
    let mark = parts::mark_of(site.pool, site.allocator, site.library);
    format!("{}{place}{mark}", parts::short_name(&site.label))
}

/// Cells, aligned in columns: the last one is left as it is.
struct Table {
    header: Vec<&'static str>,
    /// Whether each column is of numbers.
    right: Vec<bool>,
    rows: Vec<(anstyle::Style, Vec<String>)>,
}

impl Table {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|(_, cells)| columns::width(&cells[column]));
            cells.chain([columns::width(self.header[column])]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.header.len()).map(width).collect();
        let line = |cells: &[&str]| {
            let padded = cells.iter().enumerate().map(|(column, cell)| {
                let room = widths[column].saturating_sub(columns::width(cell));
                match self.right[column] {
                    true => format!("{}{cell}", " ".repeat(room)),
                    false => columns::padded(cell, widths[column]),
                }
            });
            padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        writeln!(out, "  {}", Styled(DIM, line(&self.header)))?;
        for (style, cells) in &self.rows {
            let cells: Vec<&str> = cells.iter().map(String::as_str).collect();
            writeln!(out, "  {}", Styled(*style, line(&cells)))?;
        }
        Ok(())
    }
}

fn processes(job: &JobReport, top: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
    let most = top.unwrap_or(job.processes.len());
    // Those that stand out come first if there is no room for all.
    let (out_of_line, usual): (Vec<_>, Vec<_>) = job.processes.iter().partition(|process| process.stands_out);
    let shown: Vec<&JobProcess> = match job.processes.len() <= most {
        true => job.processes.iter().collect(),
        false => out_of_line.into_iter().chain(usual).take(most).collect(),
    };
    let any = |has: fn(&JobProcess) -> bool| shown.iter().any(|process| has(process));
    let has_ranks = any(|process| process.row.member.rank.is_some());
    let has_programs = job.programs.len() > 1;
    let has_unexplained = any(|process| process.row.unexplained_bytes.is_some());
    let held = if job.leaked { "leaked" } else { "held" };
    let all: [(&'static str, bool, bool); 10] = [
        ("rank", true, has_ranks),
        ("host", false, true),
        ("pid", true, true),
        ("device", false, true),
        ("state", false, true),
        (held, true, true),
        ("peak", true, true),
        ("unexplained", true, has_unexplained),
        ("program", false, has_programs),
        ("", false, true),
    ];
    let wanted: Vec<usize> = (0..all.len()).filter(|&column| all[column].2).collect();
    let row = |process: &&JobProcess| {
        let row = &process.row;
        let devices: Vec<String> = row.devices.iter().map(i32::to_string).collect();
        let cells = [
            row.member.rank.map_or_else(String::new, |rank| rank.to_string()),
            Escaped(&row.member.host).to_string(),
            row.member.pid.to_string(),
            devices.join(","),
            state(row.state).to_owned(),
            units::bytes(row.held.bytes),
            units::bytes(row.peak_bytes),
            row.unexplained_bytes.map_or_else(String::new, units::signed_bytes),
            Escaped(&row.member.program.to_string()).to_string(),
            if process.stands_out { "<- stands out" } else { "" }.to_owned(),
        ];
        let style = if process.stands_out { BAD } else { PLAIN };
        (style, wanted.iter().map(|&column| cells[column].clone()).collect())
    };
    let table = Table {
        header: wanted.iter().map(|&column| all[column].0).collect(),
        right: wanted.iter().map(|&column| all[column].1).collect(),
        rows: shown.iter().map(row).collect(),
    };
    table.write(out)?;
    let hidden = job.processes.len() - shown.len();
    if hidden > 0 {
        let more = format!(
            "… and {}; --top 0 shows all",
            plural(hidden as u64, "more process", "more processes")
        );
        writeln!(out, "  {}", Styled(DIM, more))?;
    }
    Ok(())
}

/// The word for a state.
pub fn state(state: ProcessState) -> &'static str {
    match state {
        ProcessState::Running => "running",
        ProcessState::Exited => "exited",
        ProcessState::Ended => "ended",
        ProcessState::Unknown => "unknown",
    }
}

fn sites(job: &JobReport, out: &mut dyn Write) -> io::Result<()> {
    if job.sites.is_empty() {
        let nothing = match (job.hidden_sites, &job.filter) {
            (1.., _) => "no call site is as large as --min-bytes",
            (0, Some(_)) => "no memory that the filter selects is held",
            (0, None) => "no memory is held",
        };
        return writeln!(out, "{nothing}");
    }
    let row = |row: &SiteRow| {
        let about = if row.median_is_exact { "" } else { "~" };
        let style = if row.stands_out.is_some() { BAD } else { PLAIN };
        let cells = vec![
            units::bytes(row.sum_bytes),
            format!("{about}{}", units::bytes(row.median_bytes)),
            units::bytes(row.min_bytes),
            units::bytes(row.max_bytes),
            format!("{}/{}", units::count(row.processes), units::count(row.of_processes)),
            name(&row.site),
        ];
        (style, cells)
    };
    let table = Table {
        header: vec!["sum", "median", "min", "max", "processes", "call site"],
        right: vec![true, true, true, true, true, false],
        rows: job.sites.iter().map(row).collect(),
    };
    table.write(out)?;
    if job.hidden_sites > 0 {
        let rows = plural(job.hidden_sites as u64, "more call site", "more call sites");
        let more = format!("… and {rows} with {}; --top 0 shows all", parts::tally(job.hidden));
        writeln!(out, "  {}", Styled(DIM, more))?;
    }
    if job.beyond.count > 0 {
        let beyond = format!(
            "… and {} at more call sites than a report keeps",
            parts::tally(job.beyond)
        );
        writeln!(out, "  {}", Styled(DIM, beyond))?;
    }
    Ok(())
}
