//! A report as text: the failed request that caused it, the ledger, the headline, the ranked rows, their details, the
//! totals, the losses, the warnings, and the next command.

use std::io::{self, Write};

use culeak::analysis::report::{By, FailedRow, HOST_MEMORY, NO_DEVICE, NO_STREAM, Report, Row, shell_word};
use culeak::point::Point;
use culeak::snapshot::{Automatic, Reason};

use super::parts::{self, BAD, BOLD, DIM, Styled};
use super::units::{self, plural};
use super::{categories, ledger, objects, why};
use crate::escape::Escaped;

mod headline;
mod ranking;
pub mod sums;

pub use headline::headline;
use headline::{call_sites, has_no_stack};
pub use ranking::{RankedLine, write_ranking};
use ranking::{counted, ranking};

/// What a report shows beyond the default.
#[derive(Debug, Clone, Copy, Default)]
pub struct Extent {
    /// Frames inside the CUDA runtime and below `main` too.
    pub full_stacks: bool,
    /// Every count of losses, zeros too.
    pub all_losses: bool,
    /// Objects without an address, by call site.
    pub objects: bool,
}

impl Extent {
    #[cfg(test)]
    pub const ALL: Extent = Extent {
        full_stacks: true,
        all_losses: true,
        objects: true,
    };
}

/// Writes the report.
pub fn write(report: &Report, extent: Extent, out: &mut dyn Write) -> io::Result<()> {
    let full_stacks = extent.full_stacks;
    match (&report.trigger, &report.taken.automatic) {
        (Some(failed), _) => request(failed, full_stacks, out)?,
        (None, Some(automatic)) => reason(automatic, out)?,
        (None, None) => {}
    }
    // The ledger covers all memory, so with a filter its sums would contradict the lines below it.
    let is_peak = report.taken.point == Some(Point::Peak);
    let has_ledger = !(is_peak && report.ledger.devices.is_empty()) && report.taken.after_ns.is_none();
    let has_entries = !report.is_empty() || report.ledger.devices.iter().any(|device| device.process.is_some());
    if has_entries && report.filter.is_none() && has_ledger {
        ledger::write(&report.ledger, out)?;
    }
    headline(report, out)?;
    match report.by {
        By::ObjectKind if extent.objects => {}
        By::ObjectKind => objects::write_kinds(report, out)?,
        _ => ranking(report, out)?,
    }
    parts::suppressions(
        report.suppressed,
        report.suppressed_objects,
        &report.suppressions,
        report.sampling.is_some(),
        out,
    )?;
    if report.by == By::Category {
        categories::write(&report.categories, out)?;
    }
    writeln!(out)?;
    let detailed = matches!(report.by, By::Site | By::Stack);
    if detailed {
        for (index, row) in report.rows.iter().enumerate() {
            details(index + 1, row, full_stacks, out)?;
        }
    }
    if !report.held_by.is_empty() {
        why::write_sites(&report.held_by, report.rows.len(), &report.source, out)?;
    }
    if extent.objects {
        objects::write(report, full_stacks, out)?;
    }
    for (name, text) in sums::totals(report, extent.objects)
        .into_iter()
        .chain(sums::losses(report, extent.all_losses))
    {
        writeln!(out, "{}  {text}", Styled(BOLD, format!("{name:12}")))?;
    }
    parts::warnings(out, &report.warnings)?;
    let fit = if detailed {
        DETAILS_ON_A_SCREEN
    } else {
        ROWS_ON_A_SCREEN
    };
    let held = report.totals.held.total();
    if report.rows.len() > fit && held.count > 0 && !has_no_stack(report) {
        let (style, sites) = call_sites(report);
        writeln!(
            out,
            "{}",
            Styled(style, format!("{sites} {}", parts::tally_of(report, held)))
        )?;
    }
    match extent.objects && report.next.ends_with(" --objects") {
        true => parts::next(out, &format!("culeak check {}", shell_word(&report.source))),
        false => parts::next(out, &report.next),
    }
}

/// A longer report repeats the sum at its end, since the headline has scrolled away.
const ROWS_ON_A_SCREEN: usize = 15;
const DETAILS_ON_A_SCREEN: usize = 2;

/// Out of memory: the size, the device and the call site of the failed request.
fn request(failed: &FailedRow, full_stacks: bool, out: &mut dyn Write) -> io::Result<()> {
    let line = failed.stack.python_line().or_else(|| failed.stack.site());
    let name = line.map_or_else(|| "(no stack)".to_owned(), |line| parts::short_name(&line.name()));
    let title = format!(
        "out of memory: {} of {} on {} failed in {name}{}",
        Escaped(failed.api),
        units::bytes(failed.bytes),
        failed.device,
        parts::place(line)
    );
    writeln!(out, "{}", Styled(BAD, title))?;
    parts::stack(out, &failed.stack, full_stacks, "  ")?;
    writeln!(out)
}

/// Why the recorder took this snapshot.
fn reason(automatic: &Automatic, out: &mut dyn Write) -> io::Result<()> {
    let why = match automatic.reason {
        Reason::OutOfMemory => "after a request failed for lack of memory",
        Reason::Peak => "at a new peak",
        Reason::Mark => "at a mark",
        Reason::Requested => "at the program's request",
        Reason::Every => "at a regular interval",
    };
    let name = automatic.name.iter().map(|name| format!(": {}", Escaped(name)));
    let text = format!("automatic snapshot, taken {why}{}", name.collect::<String>());
    writeln!(out, "{}\n", Styled(BOLD, text))
}

fn details(number: usize, row: &Row, full_stacks: bool, out: &mut dyn Write) -> io::Result<()> {
    let (name, place, mark) = (
        parts::short_name(&row.label),
        parts::place(row.site()),
        parts::mark(row),
    );
    writeln!(out, "{}", Styled(BOLD, format!("#{number}  {name}{place}{mark}")))?;
    let is_sum = row.largest == 0 && row.bytes > 0;
    let each = match (row.count, row.smallest == row.largest) {
        (1, _) => String::new(),
        _ if is_sum => String::new(),
        (_, true) => format!(" of {}", units::bytes(row.smallest)),
        (_, false) => format!(" of {} to {}", units::bytes(row.smallest), units::bytes(row.largest)),
    };
    let kinds = parts::listed(row.kinds.iter().map(|(name, tally)| (*name, *tally)));
    write!(
        out,
        "    {} in {}{each}, {kinds}",
        parts::bytes(row.bytes, row.estimated),
        counted(row)
    )?;
    // Host memory is recognized by its kind.
    let no_device = [NO_DEVICE, HOST_MEMORY].as_slice();
    for (names, none) in [(&row.devices, no_device), (&row.streams, &[NO_STREAM])] {
        if names.len() != 1 || !none.iter().any(|none| names.contains_key(*none)) {
            write!(
                out,
                ", {}",
                parts::listed(names.iter().map(|(name, tally)| (name.as_str(), *tally)))
            )?;
        }
    }
    writeln!(out)?;
    let apis = parts::listed(row.apis.iter().map(|(name, tally)| (*name, *tally)));
    let age = match row.count {
        1 => format!("{} old", units::duration(row.oldest_age_ns)),
        _ => format!(
            "oldest {}, newest {}",
            units::duration(row.oldest_age_ns),
            units::duration(row.newest_age_ns)
        ),
    };
    let threads = parts::listed(row.threads.iter().map(|(name, tally)| (name.as_str(), *tally)));
    match is_sum {
        true => writeln!(out, "    by {apis}")?,
        false => writeln!(out, "    by {apis}, {threads}, {age}")?,
    }
    if let Some(first) = row.stacks.first() {
        parts::stack(out, &first.stack, full_stacks, "      ")?;
    }
    if row.stacks_in_all > 1 {
        let others = row.stacks_in_all as u64 - 1;
        let text = format!(
            "and {}; --by stack shows each",
            plural(others, "other stack", "other stacks")
        );
        writeln!(out, "      {}", Styled(DIM, text))?;
    }
    writeln!(out)
}
