//! A report in one sentence: what is left, where, and of how many call sites.

use anstyle::Style;
use culeak::analysis::opaque::OpaquePool;
use culeak::analysis::report::{Report, Tally};
use culeak::point::Point;
use culeak::snapshot::{EndOf, ProcessState};

use crate::document::{BAD, BOLD, Document, GOOD, Text, WARN, bold, counted, styled};
use crate::text::units::unless_zero;
use crate::text::{objects, parts, units};

/// The report in one sentence; a second one compares the end of the program with its exit.
pub fn headline(report: &Report) -> Document {
    let mut page = Document::default();
    end_and_exit(report)
        .or_else(|| window(report))
        .into_iter()
        .for_each(|text| page.line(bold(text)));
    let text = match objects::headline(report) {
        Some(text) => text + when(report),
        None if report.totals.held.total().count > 0 => return opaque_pools(report, holds(report, page)),
        None => match nothing_held(report) {
            Some(text) => text,
            None => return opaque_pools(report, page),
        },
    };
    page.line(text);
    page
}

/// That nothing was left of any kind, if that is all that there is to say.
pub fn clean(report: &Report) -> Option<Text> {
    let says_more = end_and_exit(report).is_some() || window(report).is_some() || objects::headline(report).is_some();
    let is_empty = report.totals.held.total().count == 0 && report.rows.is_empty();
    let is_clean = report.finished && is_empty && report.filter.is_none();
    nothing_held(report).filter(|_| is_clean && !says_more)
}

/// That nothing is held. `None` if pools may hold memory: without a word on them, nothing would seem to be held.
fn nothing_held(report: &Report) -> Option<Text> {
    let totals = &report.totals;
    if report.is_empty() && report.losses.lost_allocations > 0 {
        return Some(styled(WARN, format!("no allocation could be recorded{}", when(report))));
    }
    if report.is_empty() {
        return Some(styled(
            GOOD,
            match (report.finished, &report.when) {
                (true, _) => "no CUDA memory was ever allocated".to_owned(),
                (false, None) => "no CUDA memory allocated so far".to_owned(),
                (false, Some(when)) => format!("no CUDA memory had been allocated {when}"),
            },
        ));
    }
    if report.unknown_pools().next().is_some() {
        return None;
    }
    let (pools, when) = (pools(report), when(report));
    if report.filter.is_some() {
        let word = if report.finished { "leaked" } else { "held" };
        return Some(bold(format!("no {word} memory passes the filter{when}")) + pools);
    }
    let nothing = match report.finished {
        true => "nothing leaked".to_owned(),
        false => format!("nothing held{when}"),
    };
    let (allocated, freed) = (counted(totals.allocated, "allocation"), units::count(totals.freed));
    Some(styled(GOOD, nothing) + format!(": {allocated}, {freed} freed{}{pools}", peaks(report)))
}

fn holds(report: &Report, mut page: Document) -> Document {
    let held = &report.totals.held;
    let on_device = held.on_devices();
    let mut what = Vec::new();
    let live: Vec<_> = report.devices.iter().filter(|device| device.live.count > 0).collect();
    if on_device.count > 0 {
        let (size, peak) = (
            format!(
                "{}{}",
                parts::about(report.totals_estimated),
                units::bytes(on_device.bytes)
            ),
            peaks(report),
        );
        what.push(match live.as_slice() {
            [] => format!("{size} of GPU memory{peak}"),
            [one] => format!("{size} on GPU {}{peak}", one.ordinal),
            several => format!("{size} on {} GPUs{peak}", several.len()),
        });
    }
    if held.host.count > 0 {
        let about = parts::about(report.totals_estimated);
        what.push(format!("{about}{} of host memory", units::bytes(held.host.bytes)));
    }
    let (style, sites) = call_sites(report);
    let (what, when) = (what.join(" and "), when(report));
    let sentence = match has_no_stack(report) {
        true => format!("{what} {}{when}; no stack of it was taken", verb(report)),
        false => format!("{sites} {what}{when}"),
    };
    let filtered = if report.filter.is_some() { " (filtered)" } else { "" };
    page.line(styled(style, sentence) + suppressed(report) + pools(report) + filtered);
    page
}

/// `; 64 MiB of it suppressed`, or nothing.
fn suppressed(report: &Report) -> String {
    let (held, about) = (report.totals.held.total(), parts::about(report.sampling.is_some()));
    match report.suppressed_held {
        Tally { count: 0, .. } => String::new(),
        all if all.bytes >= held.bytes => "; all of it suppressed".to_owned(),
        some => format!("; {about}{} of it suppressed", units::bytes(some.bytes)),
    }
}

/// One line for each pool of which an unknown part is in use. Beside other memory, those are left out whose blocks cannot be
/// recorded.
fn opaque_pools(report: &Report, mut page: Document) -> Document {
    let when = report.when.clone().or(report.finished.then(|| "at exit".to_owned()));
    for pool in shown_pools(report) {
        page.line(styled(WARN, pool.sentence(when.as_deref())));
    }
    page
}

fn shown_pools<'r>(report: &'r Report) -> impl Iterator<Item = &'r OpaquePool> {
    let holds_nothing = report.totals.held.total().count == 0;
    report
        .unknown_pools()
        .filter(move |pool| holds_nothing || pool.remedy.is_some())
}

/// `held when the script ended: 42 MiB in 4 blocks; exit callbacks and the interpreter's shutdown freed 8 MiB of it; 34 MiB was
/// never freed`, if the report shows the end of a script, or if exit handlers freed memory.
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
        EndOf::Script => ("the script ended", "exit callbacks and the interpreter's shutdown"),
        EndOf::Main => ("main returned", "exit handlers"),
    };
    let held = match end.held {
        Tally { count: 0, .. } if !report.opaque_pools.is_empty() => "nothing outside pools".to_owned(),
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
        Some(Point::Mark(name)) => format!(" (the mark {})", name),
        _ => String::new(),
    };
    Some(format!(
        "window from {from} to {to}{mark}: memory that was allocated in it and was live at its end"
    ))
}

/// ` when the script ended`, if the report shows a point in time that no other line names.
fn when(report: &Report) -> String {
    report.when.iter().map(|when| format!(" {when}")).collect()
}

/// Whether sampling chose no block of what is held, so that nothing is known of its call sites.
pub(super) fn has_no_stack(report: &Report) -> bool {
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
pub(super) fn call_sites(report: &Report) -> (Style, String) {
    let (style, one, many) = match (report.finished, &report.when) {
        (true, _) => (BAD, "call site leaks", "call sites leak"),
        (false, None) => (BOLD, "call site holds", "call sites hold"),
        (false, Some(_)) => (BOLD, "call site held", "call sites held"),
    };
    let sites = units::plural(report.totals.call_sites as u64, one, many);
    // A site may have no block with a stack.
    let sites = match report.sampling {
        Some(_) => format!("at least {sites}"),
        None => sites,
    };
    (style, sites)
}

/// `; pools hold 40 MiB`, without those that have a line of their own. A pool is not leaked.
fn pools(report: &Report) -> String {
    let others = shown_pools(report).fold(report.totals.pool.bytes, |sum, pool| {
        sum.saturating_sub(pool.tally.bytes)
    });
    unless_zero(others, |bytes| {
        let verb = if report.when.is_some() { "held" } else { "hold" };
        format!("; pools {verb} {}", units::bytes(bytes))
    })
}

/// ` (peak 6.4 GiB)`; with several devices, the peak of each. Empty with a filter, at the peak, and of a window, whose peak is
/// unknown.
fn peaks(report: &Report) -> String {
    if report.filter.is_some() || report.taken.after_ns.is_some() || report.taken.point == Some(Point::Peak) {
        return String::new();
    }
    let peaks: Vec<_> = report.devices.iter().filter(|device| device.peak_bytes > 0).collect();
    let each = peaks
        .iter()
        .map(|device| format!("{} on GPU {}", units::bytes(device.peak_bytes), device.ordinal));
    match peaks.as_slice() {
        [] => String::new(),
        [one] => format!(" (peak {})", units::bytes(one.peak_bytes)),
        _ => format!(" (peak {})", each.collect::<Vec<_>>().join(", ")),
    }
}
