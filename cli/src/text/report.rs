//! A report as text: the failed request that caused it, the ledger, the headline, the ranked rows, their details, the
//! totals, the losses, the warnings, and the next command.

use std::collections::HashMap;
use std::io::{self, Write};

use anstyle::Style;
use culeak::analysis::check::{Judged, Standing};
use culeak::analysis::report::{By, FailedRow, HOST_MEMORY, NO_DEVICE, NO_STREAM, Report, Row, Tally, shell_word};
use culeak::analysis::site::Frame;
use culeak::kind::{Kind, Place};
use culeak::point::Point;
use culeak::snapshot::{Automatic, EndOf, ProcessState, Reason};

use super::parts::{self, BAD, BOLD, DIM, GOOD, NAME_WIDTH, Styled};
use super::units::{self, plural};
use super::{categories, columns, ledger, objects, why};
use crate::escape::Escaped;

pub mod sums;

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

/// The report in one sentence; a second one compares the end of the program with its exit.
pub fn headline(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let totals = &report.totals;
    let held = totals.held.total();
    if let Some(text) = end_and_exit(report).or_else(|| window(report)) {
        writeln!(out, "{}", Styled(BOLD, text))?;
    }
    if let Some((style, text)) = objects::headline(report) {
        return writeln!(out, "{}{}", Styled(style, text), when(report));
    }
    if report.is_empty() {
        let text = if report.finished {
            "no CUDA memory was ever allocated"
        } else {
            "no CUDA memory allocated so far"
        };
        return writeln!(out, "{}", Styled(GOOD, text));
    }
    let filtered = report.filter.is_some();
    let has_peaks = !filtered && report.taken.point != Some(Point::Peak);
    let peak = if has_peaks { peaks(report) } else { String::new() };
    if filtered && held.count == 0 {
        let word = if report.finished { "leaked" } else { "held" };
        let nothing = format!("no {word} memory passes the filter{}", when(report));
        return writeln!(out, "{}{}", Styled(BOLD, nothing), pools(report));
    }
    if held.count == 0 {
        let nothing = match report.finished {
            true => "nothing leaked".to_owned(),
            false => format!("nothing held{}", when(report)),
        };
        let allocated = plural(totals.allocated, "allocation", "allocations");
        let (freed, pools) = (units::count(totals.freed), pools(report));
        return writeln!(
            out,
            "{}: {allocated}, {freed} freed{peak}{pools}",
            Styled(GOOD, nothing)
        );
    }
    let on_device = totals.held.on_devices();
    let mut what = Vec::new();
    let live: Vec<_> = report.devices.iter().filter(|device| device.live.count > 0).collect();
    if on_device.count > 0 {
        let size = format!("{}{}", parts::about(report), units::bytes(on_device.bytes));
        what.push(match live.as_slice() {
            [] => format!("{size} of GPU memory{peak}"),
            [one] => format!("{size} on GPU {}{peak}", one.ordinal),
            several => format!("{size} on {} GPUs{peak}", several.len()),
        });
    }
    if totals.held.host.count > 0 {
        what.push(format!("{} of host memory", units::bytes(totals.held.host.bytes)));
    }
    let (style, sites) = call_sites(report);
    let (what, when) = (what.join(" and "), when(report));
    let sentence = match has_no_stack(report) {
        true => format!("{what} {}{when}; no stack of it was taken", verb(report)),
        false => format!("{sites} {what}{when}"),
    };
    writeln!(
        out,
        "{}{}{}",
        Styled(style, sentence),
        pools(report),
        if filtered { " (filtered)" } else { "" }
    )
}

/// `held when the script ended: 42 MiB in 4 blocks; the interpreter's shutdown freed 8 MiB of it; 34 MiB was never freed`, if
/// the report shows the end of a script, or if exit handlers freed memory.
fn end_and_exit(report: &Report) -> Option<String> {
    let (Some(end), Some(exit)) = (&report.points.end, &report.points.exit) else {
        return None;
    };
    let shows_one = matches!(report.taken.point, None | Some(Point::Exit | Point::End));
    let ended = report.taken.automatic.is_none() && report.process.state != ProcessState::Running;
    let is_wanted = match end.of {
        EndOf::Script => report.points.changed_after_end() || report.taken.point.is_some() && end.held.count > 0,
        EndOf::Main => end.freed.count > 0,
    };
    if !shows_one || !ended || !is_wanted || report.filter.is_some() {
        return None;
    }
    let (when, freeing) = match end.of {
        EndOf::Script => ("the script ended", "the interpreter's shutdown"),
        EndOf::Main => ("main returned", "exit handlers"),
    };
    let held = match end.held {
        Tally { count: 0, .. } => "nothing".to_owned(),
        held => parts::tally(held),
    };
    let freed = match end.freed {
        Tally { count: 0, .. } if end.held.count == 0 => String::new(),
        Tally { count: 0, .. } => format!("; {freeing} freed nothing of it"),
        freed if freed == end.held => format!("; {freeing} freed all of it"),
        freed => format!("; {freeing} freed {} of it", units::bytes(freed.bytes)),
    };
    let never = match exit.held {
        Tally { count: 0, .. } => String::new(),
        never => format!("; {} was never freed", units::bytes(never.bytes)),
    };
    let later = match exit.allocated_after_end {
        Tally { count: 0, .. } => String::new(),
        later => format!(", {} of it allocated later", units::bytes(later.bytes)),
    };
    Some(format!("held when {when}: {held}{freed}{never}{later}"))
}

/// `window from 5 s to 12.5 s: memory that was allocated in it and was live at its end`, if the report shows one.
fn window(report: &Report) -> Option<String> {
    let from = match report.taken.after_ns? {
        0 => "the start".to_owned(),
        from => units::duration(from),
    };
    let to = units::duration(report.taken.at_ns);
    let mark = match &report.taken.point {
        Some(Point::Mark(name)) => format!(" (the mark {})", Escaped(name)),
        _ => String::new(),
    };
    Some(format!(
        "window from {from} to {to}{mark}: memory that was allocated in it and was live at its end"
    ))
}

/// ` when the script ended`, if the report shows a point in time that no other line names.
fn when(report: &Report) -> String {
    let when = report.when.iter().map(|when| format!(" {}", Escaped(when)));
    when.collect()
}

/// Whether sampling chose no block of what is held, so that nothing is known of its call sites.
fn has_no_stack(report: &Report) -> bool {
    report.sampling.is_some() && report.totals.call_sites == 0
}

fn verb(report: &Report) -> &'static str {
    match (report.finished, &report.when) {
        (true, _) => "leaked",
        (false, None) => "is held",
        (false, Some(_)) => "was held",
    }
}

/// `3 call sites leak`, and its style.
fn call_sites(report: &Report) -> (Style, String) {
    let (style, one, many) = match (report.finished, &report.when) {
        (true, _) => (BAD, "call site leaks", "call sites leak"),
        (false, None) => (BOLD, "call site holds", "call sites hold"),
        (false, Some(_)) => (BOLD, "call site held", "call sites held"),
    };
    let sites = plural(report.totals.call_sites as u64, one, many);
    // A site may have no block with a stack.
    let sites = match report.sampling {
        Some(_) => format!("at least {sites}"),
        None => sites,
    };
    (style, sites)
}

/// `; pools hold 40 MiB`. A pool is not leaked.
fn pools(report: &Report) -> String {
    match report.totals.pool {
        Tally { count: 0, .. } => String::new(),
        pool => {
            let verb = if report.when.is_some() { "held" } else { "hold" };
            format!("; pools {verb} {}", units::bytes(pool.bytes))
        }
    }
}

/// ` (peak 6.4 GiB)`; with several devices, the peak of each.
fn peaks(report: &Report) -> String {
    let peaks: Vec<_> = report.devices.iter().filter(|device| device.peak_bytes > 0).collect();
    match peaks.as_slice() {
        [] => String::new(),
        [one] => format!(" (peak {})", units::bytes(one.peak_bytes)),
        several => {
            let each: Vec<_> = several
                .iter()
                .map(|device| format!("{} on GPU {}", units::bytes(device.peak_bytes), device.ordinal))
                .collect();
            format!(" (peak {})", each.join(", "))
        }
    }
}

fn ranking(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let mut lines: Vec<_> = report.rows.iter().map(|row| RankedLine::of(row, report.by)).collect();
    if report.by == By::Stack {
        name_callers(&report.rows, &mut lines);
    }
    write_ranking(&lines, out)?;
    if report.hidden_rows > 0 {
        let rows = plural(report.hidden_rows as u64, "more row", "more rows");
        let (tally, option) = (parts::tally(report.hidden), parts::all_rows(report.cut));
        let is_estimate = report.rows.iter().any(|row| row.estimated.is_some());
        let about = if is_estimate { "≈ " } else { "" };
        let text = format!("… and {rows} with {about}{tally}; {option} shows all");
        writeln!(out, "  {}", Styled(DIM, text))?;
    }
    Ok(())
}

/// Adds callers to rows with the same call site, up to the first caller that differs.
fn name_callers(rows: &[Row], lines: &mut [RankedLine]) {
    let mut alike: HashMap<(String, String, String), Vec<usize>> = HashMap::new();
    for (nth, line) in lines.iter().enumerate() {
        let key = (line.label.clone(), line.place.clone(), line.mark.clone());
        alike.entry(key).or_default().push(nth);
    }
    for group in alike.into_values().filter(|group| group.len() > 1) {
        let callers: Vec<Vec<String>> = group.iter().map(|&nth| callers(&rows[nth])).collect();
        for (of_row, &nth) in callers.iter().zip(&group) {
            let shared = |other: &Vec<String>| of_row.iter().zip(other).take_while(|(a, b)| a == b).count();
            let others = callers.iter().filter(|other| !std::ptr::eq(*other, of_row));
            let longest = others.map(shared).max().unwrap_or(0);
            let needed = of_row.get(..=longest).unwrap_or(of_row);
            let chain = match needed {
                [] => "nothing".to_owned(),
                [first, .., last] if needed.len() > CALLERS_SHOWN => format!("{first} ← … ← {last}"),
                few => few.join(" ← "),
            };
            lines[nth].mark += &format!("  ← {chain}");
        }
    }
}

/// Longer chains are shortened in the middle.
const CALLERS_SHOWN: usize = 3;

/// The visible frames that called the call site, innermost first.
fn callers(row: &Row) -> Vec<String> {
    let Some(first) = row.stacks.first() else {
        return Vec::new();
    };
    let site = first.stack.site().map(std::ptr::from_ref);
    let outside = first
        .stack
        .shown()
        .skip_while(|frame| Some(std::ptr::from_ref(*frame)) != site)
        .skip(1);
    let name = |frame: &Frame| {
        let place = frame.short_place().map(|place| format!(" {}", Escaped(&place)));
        format!("{}{}", parts::short_name(&frame.name()), place.unwrap_or_default())
    };
    outside.map(name).collect()
}

/// One row of the ranking, in columns.
pub struct RankedLine {
    size: String,
    blocks: String,
    label: String,
    place: String,
    mark: String,
}

/// `3 blocks`; `3 claims` for records that hold no memory; `3 segments`.
fn counted(row: &Row) -> String {
    let kinds = || row.kinds.keys().filter_map(|kind| Kind::from_name(kind));
    let (one, many) = match row.claims == row.count {
        true => ("claim", "claims"),
        false if kinds().all(|kind| kind == Kind::Channel) => ("channel", "channels"),
        false if kinds().all(|kind| kind.place() == Place::Segment) => ("segment", "segments"),
        false => ("block", "blocks"),
    };
    let counted = plural(row.count, one, many);
    match row.estimated {
        None => counted,
        Some(_) => format!("≈ {counted}"),
    }
}

impl RankedLine {
    pub fn of(row: &Row, by: By) -> RankedLine {
        let is_code = matches!(by, By::Site | By::Stack);
        // Numbers are aligned, so the singular is as wide as the plural.
        let space = if row.count == 1 { " " } else { "" };
        RankedLine {
            size: parts::bytes(row.bytes, row.estimated),
            blocks: counted(row) + space,
            label: if is_code {
                parts::short_name(&row.label)
            } else {
                Escaped(&row.label).to_string()
            },
            place: row
                .site()
                .filter(|_| is_code)
                .and_then(|site| site.short_place())
                .map(|place| Escaped(&place).to_string())
                .unwrap_or_default(),
            mark: parts::mark(row),
        }
    }

    /// A row of a verdict, with its standing against the baseline.
    pub fn of_judged(judged: &Judged) -> RankedLine {
        let mut line = RankedLine::of(&judged.row, By::Site);
        line.mark += match judged.standing {
            None => "",
            Some(Standing::New) => "  [new]",
            Some(Standing::Grown) => "  [grown]",
            Some(Standing::Known) => "  [known]",
        };
        line
    }
}

pub fn write_ranking(lines: &[RankedLine], out: &mut dyn Write) -> io::Result<()> {
    write_within(lines, columns::available(), out)
}

/// Labels and places are not cut below these widths.
const LABEL_NEEDED: usize = 12;
const PLACE_NEEDED: usize = 10;

/// Writes each row on a line of at most this width. Labels are cut first, then places.
fn write_within(lines: &[RankedLine], available: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
    let widest = |column: fn(&RankedLine) -> usize| lines.iter().map(column).max().unwrap_or(0);
    let sizes = widest(|line| columns::width(&line.size));
    let blocks = widest(|line| columns::width(&line.blocks));
    let behind = widest(|line| columns::width(&line.place) + columns::width(&line.mark));
    let labels = lines.iter().map(|line| columns::width(&line.label));
    let mut labels = labels.filter(|&width| width <= NAME_WIDTH).max().unwrap_or(0);
    // What remains for label, place and mark.
    let room =
        available.map(|available| available.saturating_sub("  ".len() + sizes + "  in ".len() + blocks + "    ".len()));
    if let Some(room) = room {
        labels = labels.min(room.saturating_sub(behind).max(LABEL_NEEDED));
    }
    for line in lines {
        let (label, place) = match room {
            Some(room) => {
                let left = room.saturating_sub(labels + columns::width(&line.mark));
                let place = columns::end_of(&line.place, left.max(PLACE_NEEDED));
                (columns::shortened(&line.label, labels), place)
            }
            None => (line.label.clone(), line.place.clone()),
        };
        let text = format!(
            "  {}  in {:>blocks$}  {}  {place}{}",
            Styled(BOLD, format!("{:>sizes$}", line.size)),
            line.blocks,
            columns::padded(&label, labels),
            line.mark
        );
        writeln!(out, "{}", text.trim_end())?;
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn line(label: &str, place: &str, mark: &str) -> RankedLine {
        RankedLine {
            size: "1.2 GiB".to_owned(),
            blocks: "128 blocks".to_owned(),
            label: label.to_owned(),
            place: place.to_owned(),
            mark: mark.to_owned(),
        }
    }

    fn shown(lines: &[RankedLine], available: Option<usize>) -> Vec<String> {
        let mut out = Vec::new();
        write_within(lines, available, &mut out).expect("memory is writable");
        let text = anstream::adapter::strip_str(std::str::from_utf8(&out).expect("text")).to_string();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn rows_fit_the_terminal_and_are_whole_in_a_file() {
        let long = "a_function_with_a_name_that_is_forty_columns";
        let lines = [
            line(long, "a_file_with_a_long_name_of_its_own.cu:1234", "  [cuBLAS]"),
            line("short", "train.cu:7", ""),
        ];
        for available in [60, 80, 100, 200] {
            for row in shown(&lines, Some(available)) {
                assert!(columns::width(&row) <= available, "{available}: {row}");
            }
        }
        let whole = shown(&lines, None);
        assert!(
            whole[0].contains(long) && whole[0].ends_with("own.cu:1234  [cuBLAS]"),
            "{whole:?}"
        );
        assert!(
            shown(&lines, Some(80))[1].ends_with("train.cu:7"),
            "places stay readable"
        );
    }

    #[test]
    fn wide_characters_leave_the_columns_aligned() {
        let rows = shown(&[line("訓練する", "a.py:1", ""), line("step", "b.py:2", "")], None);
        let place = |row: &str, name: &str| row.find(name).map(|at| columns::width(&row[..at]));
        assert_eq!(place(&rows[0], "a.py"), place(&rows[1], "b.py"), "{rows:?}");
    }
}
