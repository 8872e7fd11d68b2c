//! Trends of a job as text: the call sites that grow and on which processes, then the processes that grow.

use std::io::{self, Write};

use culeak::analysis::job::trend::{JobTrend, ProcessTrend, SiteTrend};
use culeak::analysis::report::shell_word;
use culeak::analysis::tally::Tally;
use culeak::analysis::trend::{Against, Class};
use culeak::analysis::words::of_kind;

use super::{Table, name};
use crate::escape::Escaped;
use crate::text::parts::{self, BAD, BOLD, DIM, GOOD, PLAIN, Styled, WARN};
use crate::text::trend::{classes, word};
use crate::text::units::{self, plural};

/// Processes that are listed.
const PROCESSES: usize = 10;

pub fn write(trend: &JobTrend, out: &mut dyn Write) -> io::Result<()> {
    headline(trend, out)?;
    let growing: Vec<&ProcessTrend> = trend.processes.iter().filter(|process| process.growing > 0).collect();
    if !trend.sites.is_empty() {
        sites(trend, out)?;
    }
    if trend.hidden_sites > 0 {
        let rows = plural(trend.hidden_sites as u64, "call site", "call sites");
        let more = format!("… and {rows} beyond --top or below --min-bytes; --top 0 shows all");
        writeln!(out, "  {}", Styled(DIM, more))?;
    }
    if !growing.is_empty() {
        writeln!(out)?;
        processes(trend, growing, out)?;
    }
    parts::warnings(out, &trend.warnings)?;
    next(trend, out)
}

/// `8 processes of serve on 1 host: 12 snapshots each, from 1 GiB to 1.2 GiB`.
fn headline(trend: &JobTrend, out: &mut dyn Write) -> io::Result<()> {
    let count = trend.processes.len() as u64;
    let processes = plural(count, "process", "processes");
    let hosts = plural(trend.hosts as u64, "host", "hosts");
    let points = || trend.processes.iter().map(|process| process.points as u64);
    let (least, most) = (points().min().unwrap_or(0), points().max().unwrap_or(0));
    let each = if count == 1 { "" } else { " each" };
    let snapshots = match least == most {
        true => format!("{}{each}", plural(most, "snapshot", "snapshots")),
        false => format!(
            "{} to {}{each}",
            units::count(least),
            plural(most, "snapshot", "snapshots")
        ),
    };
    let total = |of: fn(&ProcessTrend) -> Tally| Tally::total(trend.processes.iter().map(of));
    let subject = format!("{processes} of {} on {hosts}", Escaped(&trend.program.to_string()));
    let left: Vec<Tally> = trend.processes.iter().filter_map(|process| process.at_exit).collect();
    let at_exit = match left.len() {
        0 => String::new(),
        n => {
            let of = if n as u64 == count {
                String::new()
            } else {
                format!(" of {n} of them")
            };
            format!(", {} at exit{of}", units::bytes(Tally::total(left).bytes))
        }
    };
    writeln!(
        out,
        "{}: {snapshots}, from {} to {}{at_exit}",
        Styled(BOLD, subject),
        units::bytes(total(|process| process.first).bytes),
        units::bytes(total(|process| process.last).bytes)
    )?;
    parts::opaque_pools(out, &trend.opaque_pools)?;
    let needed = trend.points_needed;
    if trend.judged == 0 {
        let what = match trend.against {
            Against::Marks => format!("snapshots after {needed} different marks"),
            Against::Time | Against::Runs => format!("{needed} snapshots"),
        };
        let few = format!("too few snapshots to judge: {what} of one process are needed");
        return writeln!(out, "{}", Styled(WARN, few));
    }
    let style = if trend.is_growing() { BAD } else { GOOD };
    writeln!(out, "{}", Styled(style, classes(&trend.classes)))?;
    if trend.judged < trend.processes.len() {
        let few = plural(
            (trend.processes.len() - trend.judged) as u64,
            "process has",
            "processes have",
        );
        let few = format!("{few} too few snapshots to judge: {needed} are needed");
        writeln!(out, "{}", Styled(WARN, few))?;
    }
    Ok(())
}

fn sites(trend: &JobTrend, out: &mut dyn Write) -> io::Result<()> {
    let row = |row: &SiteTrend| {
        let (class, style) = word(row.class);
        let style = if style == BAD { BAD } else { PLAIN };
        let sizes = match row.site.object {
            Some(kind) => format!("{} → {}", units::count(row.first.count), of_kind(row.last.count, kind)),
            None => format!("{} → {}", units::bytes(row.first.bytes), units::bytes(row.last.bytes)),
        };
        let of = format!(
            "{}/{}",
            units::count(row.agreeing as u64),
            units::count(row.judged as u64)
        );
        // Of the others it is enough to know that they do not grow.
        let sentence = match row.class {
            Class::Growing | Class::FreedOnlyAtExit | Class::Slowing => format!("  {}", Escaped(&row.sentence)),
            _ => String::new(),
        };
        let cells = vec![class.to_owned(), of, sizes, format!("{}{sentence}", name(&row.site))];
        (style, cells)
    };
    let table = Table {
        header: vec!["class", "processes", "in all", "call site"],
        right: vec![false, true, false, false],
        rows: trend.sites.iter().map(row).collect(),
    };
    table.write(out)
}

fn processes(trend: &JobTrend, mut growing: Vec<&ProcessTrend>, out: &mut dyn Write) -> io::Result<()> {
    growing.sort_by(|a, b| b.pace.total_cmp(&a.pace));
    let shown = &growing[..growing.len().min(PROCESSES)];
    let has_ranks = shown.iter().any(|process| process.rank.is_some());
    let row = |process: &&ProcessTrend| {
        let full = process.full_after.map(|after| trend.against.span(after));
        let mut cells = vec![
            Escaped(&process.host).to_string(),
            process.pid.to_string(),
            units::bytes(process.last.bytes),
            format!(
                "{} per {}",
                units::signed_bytes(process.pace as i128),
                trend.against.unit()
            ),
            plural(process.growing as u64, "call site", "call sites"),
            full.map_or_else(String::new, |full| format!("full in {full}")),
        ];
        if has_ranks {
            cells.insert(0, process.rank.map_or_else(String::new, |rank| rank.to_string()));
        }
        (PLAIN, cells)
    };
    let (mut header, mut right) = (
        vec!["host", "pid", "held", "growth", "growing", ""],
        vec![false, true, true, true, true, false],
    );
    if has_ranks {
        header.insert(0, "rank");
        right.insert(0, true);
    }
    let table = Table {
        header,
        right,
        rows: shown.iter().map(row).collect(),
    };
    table.write(out)?;
    let hidden = growing.len() - shown.len();
    if hidden > 0 {
        let more = plural(hidden as u64, "more process grows", "more processes grow");
        writeln!(out, "  {}", Styled(DIM, format!("… and {more}; --json lists all")))?;
    }
    Ok(())
}

fn next(trend: &JobTrend, out: &mut dyn Write) -> io::Result<()> {
    let growing = trend.processes.iter().max_by(|a, b| a.pace.total_cmp(&b.pace));
    match growing {
        Some(process) if process.growing > 0 => {
            parts::next(out, &format!("culeak report {}", shell_word(&process.source)))
        }
        _ if trend.judged == 0 => parts::next(
            out,
            "culeak run -o runs --snapshot-every 30s -- COMMAND; culeak trend runs",
        ),
        _ => Ok(()),
    }
}
