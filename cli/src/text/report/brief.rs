//! The short form of a report: whose call each row is, what the process needs besides, and whether the recording is complete.

use culeak::analysis::ledger::{Line, LineKind};
use culeak::analysis::report::{By, Report, Row, RowForward, Tally};
use culeak::analysis::site::{CallStack, Frame};
use culeak::analysis::why::SiteHolder;
use culeak::kind::Kind;
use culeak::point::Point;

use super::sums::{self, Recorded, Sum};
use crate::document::cells::balance;
use crate::document::{self, Cell, Document, GOOD, Rows, Site, Text, dim, styled};
use crate::escape::Escaped;
use crate::text::parts::Caller;
use crate::text::units::{unless_zero, when};
use crate::text::{ledger, parts, units, why};

/// Rows with their callers, ages and holders.
pub const EXPLAINED: usize = 5;
/// Ways to a call site.
const WAYS_SHOWN: usize = 3;
/// Holders of a call site's memory, and paths from each.
const HOLDERS_SHOWN: usize = 2;
const PATHS_SHOWN: usize = 3;
/// Lines of the modules that own it.
const MODULES_SHOWN: usize = 5;
/// Parts of the memory besides the rows.
const BESIDES_SHOWN: usize = 5;
const DEVICES_SHOWN: usize = 2;

/// What is below a row: the ways that lead to its call site, its ages, and its largest holder.
pub fn explain(row: &Row, report: &Report, indent: usize, page: &mut Document) {
    if report.by == By::Module {
        return why::write_modules_below(row, report, why::MODULES_SHOWN, indent, page);
    }
    let has_ages = row.largest > 0 && !report.taken.is_of_unrecorded();
    let ages = has_ages.then(|| parts::ages(row.count, row.oldest_age_ns, row.newest_age_ns));
    if !row.stacks.is_empty() {
        ways(row, ages, indent, page);
    }
    let site_of = |row: &Row| row.stacks.first().map(|stack| stack.stack.site_fingerprint);
    // Memory of a pool may have the call site of another row, and the answer is for both.
    let first = report.rows.iter().find(|other| site_of(other) == site_of(row));
    let is_asked = report.by == By::Site && first.is_none_or(|first| std::ptr::eq(first, row));
    let site = report
        .held_by
        .iter()
        .find(|site| Some(site.site_fingerprint) == site_of(row) && is_asked);
    let holders = site.map_or(&[][..], |site| site.holders.as_slice());
    // Paths of one origin are beside each other.
    let origins: Vec<&[SiteHolder]> = holders
        .chunk_by(|a, b| (a.class, &a.origin) == (b.class, &b.origin))
        .collect();
    let (shown, rest) = origins.split_at(origins.len().min(HOLDERS_SHOWN));
    for paths in shown {
        let size = |tally: Tally, all: usize| match all {
            1 => String::new(),
            _ => units::bytes(tally.bytes) + " ",
        };
        let all = size(Tally::total(paths.iter().map(|path| path.tally)), origins.len());
        if let [only] = paths {
            page.indented(indent, format!("{all}{}", why::holder_text(only)));
            continue;
        }
        let held_by = why::held_by(&paths[0], paths.iter().all(|path| path.possibly));
        page.indented(indent, format!("{all}{held_by}{}", Escaped(&paths[0].origin)));
        let (shown, rest) = paths.split_at(paths.len().min(PATHS_SHOWN));
        for path in shown {
            let size = size(path.tally, paths.len());
            page.indented(indent + 2, format!("{size}{}", why::path_text(path)));
        }
        page.more_at(indent + 2, rest.len(), "path", "");
    }
    page.more_at(indent, rest.len(), "holder", "");
    if let Some(modules) = site.and_then(|site| site.modules.as_ref()) {
        why::write_modules(modules, MODULES_SHOWN, indent, page);
    }
}

/// The first callers of a call site, each with the library that it belongs to if the user's own code is on the stack too.
pub fn callers<'r>(stack: &'r CallStack<'r>, most: usize) -> Vec<Caller<'r>> {
    let caller = |frame: &'r Frame<'r>| {
        let library = frame.python_library().filter(|_| stack.has_user());
        (Site::of(&frame.name(), Some(frame), ""), library)
    };
    stack.callers().take(most).map(caller).collect()
}

/// The wrappers and the callers that all stacks of a row share, and the nearest callers at which they part, with the memory of each.
fn ways<'r>(row: &'r Row<'r>, ages: Option<String>, indent: usize, page: &mut Document) {
    let site = |frame: &Frame| Site::of(&frame.name(), Some(frame), "");
    let shared = callers(&row.stacks[0].stack, row.shared_callers);
    let head: Vec<String> = (parts::through_of(row).into_iter())
        .chain(parts::callers(&shared))
        .chain(ages)
        .chain(row.forward.as_ref().map(|forward| gradient(row, forward)))
        .collect();
    if !head.is_empty() {
        page.indented(indent, dim(head.join(", ")));
    }
    let shown = &row.callers[..row.callers.len().min(WAYS_SHOWN)];
    if shown.is_empty() {
        return;
    }
    let about = parts::about(row.estimated.is_some());
    let rows = Rows::of(shown)
        .bare()
        .indent(indent)
        .tally(
            |of| Cell::Estimate(of.tally.bytes, None),
            |of| document::things_about(about, of.tally.count, "block"),
        )
        .column("caller", |of| {
            let no_other = || Site::at("(no other caller)", None, "");
            let caller = of.caller.as_ref().map_or_else(no_other, site);
            Site {
                name: format!("← {}", caller.name),
                ..caller
            }
        });
    page.table(rows);
    let others = row.callers_in_all - shown.len();
    page.more_at(indent, others, "caller", "; --by stack shows each");
}

/// `gradient of Net.forward model.py:31 and 3 other lines`, or of which part of the row. It has no line of its own, because the rows
/// are what the first lines are for.
fn gradient(row: &Row, forward: &RowForward) -> String {
    let part = when(forward.tally.bytes < row.bytes, || {
        let about = parts::about(row.estimated.is_some());
        format!("{about}{} of it ", units::bytes(forward.tally.bytes))
    });
    let line = parts::with_place(&Site::of(&forward.line.name(), Some(&forward.line), ""));
    let others = unless_zero(forward.lines_in_all - 1, |others| {
        format!(" and {}", document::counted(others, "other line"))
    });
    part + &line + &others
}

/// Objects of a call site, and the memory that the kernel driver gave for them on a device.
pub struct Cost<'r, 'a> {
    device: i32,
    line: LineKind,
    pub bytes: u64,
    pub row: &'r Row<'a>,
}

/// The most costly objects that the program itself made, largest first.
pub fn costs<'r, 'a>(report: &'r Report<'a>) -> Vec<Cost<'r, 'a>> {
    if !is_of_code(report) {
        return Vec::new();
    }
    let parts_of = |line: &'r Line<'a>| match line.what {
        LineKind::GraphExecs => Some((Kind::GraphExec, &line.parts)),
        LineKind::Streams => Some((Kind::Stream, &line.parts)),
        LineKind::GreenContexts => Some((Kind::GreenContext, &line.parts)),
        LineKind::Code => Some((Kind::Module, &line.loads)),
        _ => None,
    };
    let mut costs = Vec::new();
    for device in &report.ledger.devices {
        for (line, (kind, parts)) in device.lines.iter().filter_map(|line| Some((line, parts_of(line)?))) {
            let own =
                |row: &&Row| row.kind_of_objects() == Some(kind) && row.library.is_none() && !is_pool_of_streams(row);
            for row in report.objects.rows.iter().filter(own) {
                let place = row.site().and_then(Frame::short_place);
                let parts = parts
                    .iter()
                    .filter(|part| part.name == row.label && part.place == place);
                costs.push(Cost {
                    device: device.ordinal,
                    line: line.what,
                    bytes: parts.fold(0, |sum, part| sum.saturating_add(part.bytes)),
                    row,
                });
            }
        }
    }
    costs.retain(|cost| cost.bytes > 0);
    costs.sort_by_key(|cost| std::cmp::Reverse(cost.bytes));
    costs.truncate(EXPLAINED);
    costs
}

/// Whether rows are lines or stacks of code.
pub fn is_of_code(report: &Report) -> bool {
    matches!(report.by, By::Site | By::Stack)
}

/// PyTorch and XLA make the streams of their pools when they need the first one, and keep them.
fn is_pool_of_streams(row: &Row) -> bool {
    let stack = row.stacks.first().map(|first| &first.stack);
    let mut frames = stack.iter().flat_map(|stack| &stack.frames);
    let is_pool = |name: &str| ["libc10_cuda", "xla_cuda"].iter().any(|file| name.starts_with(file));
    row.kind_of_objects() == Some(Kind::Stream) && frames.any(|frame| is_pool(frame.module_name()))
}

/// The ledger covers all memory, so with a filter its sums would contradict the other lines.
pub fn has_ledger(report: &Report) -> bool {
    let is_peak = report.taken.point == Some(Point::Peak);
    let is_known = !(is_peak && report.ledger.devices.is_empty()) && report.taken.after_ns.is_none();
    let has_entries = !report.is_empty() || report.ledger.devices.iter().any(|device| device.process.is_some());
    has_entries && report.filter.is_none() && is_known
}

/// `besides, 620 MiB on GPU 0: 520 MiB context, 100 MiB 1 other process`: what the rows do not contain.
/// `costs`: the objects that are listed with the rows.
pub fn besides(report: &Report, costs: &[Cost], page: &mut Document) {
    if !has_ledger(report) {
        return;
    }
    let devices: Vec<_> = ledger::known_devices(&report.ledger).collect();
    for device in devices.iter().take(DEVICES_SHOWN) {
        let mut lines = device.lines.iter();
        if let Some(moved) = lines.find(|line| line.what == LineKind::Checkpointed) {
            let (device, moved) = (device.ordinal, balance(-moved.bytes));
            page.line(format!(
                "seems to be checkpointed: 0 B on GPU {device}, {moved} on the host until the process is restored"
            ));
        }
        let mut entries: Vec<(i128, String)> = device
            .lines
            .iter()
            .filter_map(|line| {
                let listed = costs
                    .iter()
                    .filter(|cost| cost.device == device.ordinal && cost.line == line.what);
                let listed: i128 = listed.map(|cost| i128::from(cost.bytes)).sum();
                Some((line.bytes - listed, ledger::briefly(line)?))
            })
            .chain(device.unexplained.map(|bytes| (bytes, "unexplained".to_owned())))
            .filter(|(bytes, _)| *bytes != 0)
            .collect();
        entries.sort_by_key(|(bytes, _)| std::cmp::Reverse(bytes.abs()));
        let sum: i128 = entries.iter().map(|(bytes, _)| bytes).sum();
        let more = entries.len().saturating_sub(BESIDES_SHOWN);
        let mut texts: Vec<String> = (entries.iter().take(BESIDES_SHOWN))
            .map(|(bytes, text)| format!("{} {text}", balance(*bytes)))
            .collect();
        if more > 0 {
            texts.push(format!("{more} more"));
        }
        if !texts.is_empty() {
            let title = format!("besides, {} on GPU {}: ", balance(sum), device.ordinal);
            page.line(title + &texts.join(", "));
        }
    }
    for pool in report.minor_pools() {
        page.line(format!(
            "besides, {} of host memory in {}'s pool",
            units::bytes(pool.tally.bytes),
            pool.owner
        ));
    }
    page.more_at(
        0,
        devices.len().saturating_sub(DEVICES_SHOWN),
        "GPU",
        "; --view ledger shows each",
    );
}

/// `recorded in full`, or what is missing.
pub type Completeness = Result<Text, Vec<Sum>>;

pub fn completeness(report: &Report) -> Completeness {
    completeness_of(&[("not recorded", (report.losses, report.taken, report.allocators))])
}

/// As [`completeness`], of several recordings. What all of them lack is said once.
pub fn completeness_of(recordings: &[(&'static str, Recorded)]) -> Completeness {
    let lacking = recordings.iter();
    let lacking = lacking.map(|(title, of)| (*title, sums::losses_and_notes(*of)));
    let lacking: Vec<_> = lacking.collect();
    let notes = match lacking.last().map(|(_, (_, notes))| notes.join("; ")) {
        Some(notes) if !notes.is_empty() => format!(" ({notes})"),
        _ => String::new(),
    };
    let mut rows: Vec<(&str, Vec<String>)> = lacking.into_iter().map(|(title, of)| (title, of.0)).collect();
    if rows.iter().any(|(_, losses)| !losses.is_empty()) {
        if rows.windows(2).all(|pair| pair[0].1 == pair[1].1) {
            rows.truncate(1);
            rows[0].0 = "not recorded";
        }
        return Err(rows
            .into_iter()
            .flat_map(|(title, losses)| sums::titled(title, losses))
            .collect());
    }
    // Each program with a CUDA runtime has such tables.
    let tables = recordings.last().map_or(0, |(_, (losses, ..))| losses.export_tables);
    let except = match tables {
        0 => String::new(),
        tables => format!(
            ", except for calls through {}",
            document::counted(tables, "private driver table")
        ),
    };
    Ok(styled(GOOD, "recorded in full") + except + dim(notes))
}

pub fn write_completeness(completeness: Completeness, page: &mut Document) {
    match completeness {
        Ok(text) => page.line(text),
        Err(losses) => page.fields(losses),
    }
}
