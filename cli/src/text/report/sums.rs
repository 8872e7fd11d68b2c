//! The last rows of a report: what is left, what was refused, the peaks, and what could not be seen.

use culeak::analysis::framework::owner_of_domain;
use culeak::analysis::report::{FailedRow, Report};
use culeak::snapshot::BY_PYTORCH;

use crate::escape::Escaped;
use crate::text::parts;
use crate::text::units::{self, plural};

/// A row's name, empty where it continues the row above, and its text.
pub type Sum = (&'static str, String);

pub fn totals(report: &Report) -> Vec<Sum> {
    let mut rows = Vec::new();
    let totals = &report.totals;
    let word = if report.finished { "leaked" } else { "held" };
    let mut row = |name: &'static str, text: String| rows.push((name, text));
    let held = &totals.held;
    let mut places = Vec::new();
    if held.blocks.count > 0 {
        places.push(format!("{} of frameworks", parts::amount(held.blocks)));
    }
    places.push(format!("{} device", parts::amount(held.device)));
    places.push(format!("{} managed", units::bytes(held.managed.bytes)));
    places.push(format!("{} host", units::bytes(held.host.bytes)));
    row(word, places.join(", "));
    if let Some(filter) = &report.filter {
        row("filter", parts::filter(filter));
        row("", "refused, peak and made are of everything".to_owned());
    }
    if !totals.claims.is_empty() {
        let claims: Vec<_> = totals
            .claims
            .iter()
            .map(|(kind, count)| format!("{} {kind}", units::count(*count)))
            .collect();
        row("claims", format!("{} (no memory of their own)", claims.join(", ")));
    }
    if totals.pool.count > 0 {
        row(
            "pools",
            format!("{} kept by caching allocators for reuse", parts::amount(totals.pool)),
        );
    }
    if totals.alive_at_shutdown.count > 0 {
        let constructed = totals.from_static_constructors;
        let constructed = match constructed.count {
            0 => String::new(),
            _ => format!(
                ", {} of it asked for by static constructors",
                parts::amount(constructed)
            ),
        };
        row(
            "",
            format!(
                "{} alive when CUDA shut down{constructed}; a free by a static destructor after that is not seen",
                parts::amount(totals.alive_at_shutdown)
            ),
        );
    }
    row(
        "refused",
        match totals.failed.count {
            0 => "0 calls".to_owned(),
            n => format!(
                "{} for {}",
                plural(n, "call", "calls"),
                units::bytes(totals.failed.bytes)
            ),
        },
    );
    let failed = failed_lines(report);
    let more = failed.len().saturating_sub(FAILED_SHOWN);
    for line in failed.into_iter().take(FAILED_SHOWN) {
        row("", line);
    }
    if more > 0 {
        row("", format!("… and {more} more kinds of failed requests"));
    }
    if told_by_pytorch(report) {
        let file = Escaped(report.process.recording);
        row(
            "source",
            format!("PyTorch's allocator, in {file}: no peak, no process, nothing that was freed"),
        );
        rows.extend(marks(report));
        return rows;
    }
    if report.devices.is_empty() {
        row("peak", "0 B".to_owned());
    }
    for device in &report.devices {
        let name = if device.name.is_empty() {
            String::new()
        } else {
            format!(", {}", Escaped(device.name))
        };
        let peak = units::bytes(device.peak_bytes);
        let live = match (&report.filter, report.finished) {
            (Some(_), _) => String::new(),
            (None, true) => format!(", at the end {}", units::bytes(device.live.bytes)),
            (None, false) => format!(", now {}", units::bytes(device.live.bytes)),
        };
        row("peak", format!("{peak} on GPU {}{name}{live}", device.ordinal));
    }
    row(
        "made",
        format!(
            "{}, {} freed",
            plural(totals.allocated, "allocation", "allocations"),
            units::count(totals.freed)
        ),
    );
    rows.extend(marks(report));
    rows.push(("process", parts::process(&report.process)));
    rows
}

/// What PyTorch tells of itself lacks what only a recording knows.
fn told_by_pytorch(report: &Report) -> bool {
    report.taken.by == BY_PYTORCH
}

fn marks(report: &Report) -> Option<Sum> {
    let last = report.marks.last()?;
    let count = plural(report.marks.len() as u64, "mark", "marks");
    let age = units::duration(report.taken.at_ns.saturating_sub(last.time_ns));
    let text = format!(
        "{count} set by the program, the last {age} before: {}",
        Escaped(&last.name)
    );
    Some(("marks", text))
}

/// Failed requests, largest first. Those that differ in their callers alone are one line.
fn failed_lines(report: &Report) -> Vec<String> {
    let mut lines: Vec<(String, u64)> = Vec::new();
    for failed in &report.failed {
        let line = request(failed);
        match lines.iter_mut().find(|(known, _)| *known == line) {
            Some((_, count)) => *count = count.saturating_add(failed.count),
            None => lines.push((line, failed.count)),
        }
    }
    lines.into_iter().map(|(line, count)| times(count) + &line).collect()
}

/// `3 times cudaMalloc of 64 TiB on GPU 0: CUDA_ERROR_OUT_OF_MEMORY (2), grow cache.cu:9`.
pub fn failed(failed: &FailedRow) -> String {
    times(failed.count) + &request(failed)
}

fn times(count: u64) -> String {
    match count {
        1 => String::new(),
        count => format!("{} times ", units::count(count)),
    }
}

fn request(failed: &FailedRow) -> String {
    let name = failed.error_name.map_or_else(
        || format!("error {}", failed.error),
        |name| format!("{name} ({})", failed.error),
    );
    let site = failed.stack.site().map_or(String::new(), |site| {
        let place = site.short_place().map(|place| format!(" {place}")).unwrap_or_default();
        format!(", {}{}", parts::short_name(&site.name()), Escaped(&place))
    });
    format!(
        "{} of {} on {}: {name}{site}",
        Escaped(failed.api),
        units::bytes(failed.bytes),
        failed.device
    )
}

/// Refusals listed one by one.
const FAILED_SHOWN: usize = 5;

/// Every field of `Losses`, zeros too.
pub fn losses(report: &Report) -> Vec<Sum> {
    if told_by_pytorch(report) {
        let text = "memory outside PyTorch's allocator, and whatever its snapshot does not keep".to_owned();
        return vec![("not seen", text)];
    }
    let h = report.losses;
    let n = units::count;
    let mut rows = Vec::new();
    let mut row = |name: &'static str, text: String| rows.push((name, text));
    row(
        "not seen",
        format!(
            "lost {}, {}, {}, {}, {}",
            plural(h.lost_allocations, "allocation", "allocations"),
            plural(h.lost_stacks, "stack", "stacks"),
            plural(h.lost_python, "Python stack", "Python stacks"),
            plural(h.lost_details, "detail", "details"),
            plural(h.lost_snapshots, "snapshot", "snapshots")
        ),
    );
    row(
        "",
        format!(
            "frees: {} unknown, {} of unknown blocks, {} failed, {} at teardown, {} implicit",
            n(h.unknown_frees),
            n(h.unknown_blocks),
            n(h.failed_frees),
            n(h.teardown_frees),
            n(h.implicit_frees)
        ),
    );
    row(
        "",
        format!(
            "{} vanished, {} captured but not launched, {} private driver tables",
            n(h.vanished),
            n(h.captured_not_launched),
            n(h.export_tables)
        ),
    );
    row(
        "",
        format!(
            "{}, {} in flight, {} during the read",
            plural(h.unhooked.len() as u64, "unhooked function", "unhooked functions"),
            n(report.taken.in_flight),
            plural(report.taken.events_during_read, "event", "events")
        ),
    );
    for allocator in report.allocators {
        row(
            "",
            format!(
                "{}: {}, {} where its own sum differs, {} handed out before",
                Escaped(owner_of_domain(&allocator.domain)),
                plural(allocator.events, "event", "events"),
                n(allocator.mismatches),
                units::bytes(allocator.unseen_bytes)
            ),
        );
    }
    row(
        "",
        format!(
            "recorder: about {} for {}",
            units::duration(h.recorder_ns),
            plural(h.events, "event", "events")
        ),
    );
    rows
}
