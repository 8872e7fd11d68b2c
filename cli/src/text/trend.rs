//! A trend: per call site its class, a small curve, the evidence, and one sentence.

use anstyle::Style;
use culeak::analysis::tally::Tally;
use culeak::analysis::trend::{
    Against, Class, Classes, DeviceTrend, Evidence, Measure, Point, ProcessSpan, Row, Trend,
};
use culeak::analysis::words::of_kind;

use super::{parts, units};
use crate::document::{BAD, DIM, Document, GOOD, PLAIN, Text, WARN, bold, counted, dim, short_name, styled};
use crate::escape::Escaped;

/// The width of a curve in columns.
const CURVE: usize = 24;

pub fn page(trend: &Trend) -> Document {
    let mut page = headline(trend);
    for device in trend.devices.iter().filter_map(|device| growth(device, trend.against)) {
        page.line(device);
    }
    if !trend.rows.is_empty() {
        page.blank();
    }
    trend.rows.iter().for_each(|row| write_row(row, trend, &mut page));
    page.more(
        trend.hidden_rows,
        "call site",
        " that did not change or are beyond --top; --all --top 0 shows all",
    );
    page.blank();
    page.fields(trend.processes.iter().map(|span| ("process", process(span))));
    page.warnings(&trend.warnings);
    next(trend).into_iter().for_each(|command| page.next(command));
    page
}

/// A process, and its number of snapshots.
pub fn process(span: &ProcessSpan) -> String {
    let process = &span.process;
    let ranks = process.ranks.iter().map(|(name, value)| format!(", {name} {value}"));
    let end = if span.finished { ", the last one at exit" } else { "" };
    let (words, snapshots) = (process.command_line.join(" "), counted(span.points, "snapshot"));
    let text = format!(
        "{} {words} on {}{}: {snapshots}{end}",
        process.pid,
        process.host,
        ranks.collect::<String>()
    );
    Escaped(&text).to_string()
}

pub fn headline(trend: &Trend) -> Document {
    let mut page = Document::default();
    let (first, last) = (&trend.points[0], &trend.points[trend.points.len() - 1]);
    let (running, at_exit) = trend.end().unwrap_or((last, None));
    let (held, at_exit) = (parts::tally(first.held), at_exit.map(|left| left.held));
    let sums = match (first.held == running.held, at_exit) {
        (true, None) => format!("{held} at the first and the last"),
        (true, Some(left)) if left == running.held => format!("{held} at the first, the last and at exit"),
        (true, Some(left)) => format!("{held} at the first and the last, {} at exit", parts::tally(left)),
        (false, left) => {
            let left = match left {
                None => String::new(),
                Some(left) if left == running.held => ", and the same at exit".to_owned(),
                Some(left) => format!(", {} at exit", parts::tally(left)),
            };
            format!("from {held} to {}{left}", parts::tally(running.held))
        }
    };
    let snapshots = counted(trend.points.len(), "snapshot");
    let over = match trend.against {
        Against::Time => units::duration(last.at_unix_ns.saturating_sub(first.at_unix_ns)),
        Against::Marks => counted(last.marks.saturating_sub(first.marks), "mark"),
        Against::Runs => counted(trend.processes.len(), "run"),
    };
    page.line(bold(&trend.program) + format!(": {snapshots} over {over}, {sums}"));
    parts::opaque_pools(&mut page, &trend.opaque_pools);
    let needed = trend.points_needed;
    page.line(match (trend.too_few, trend.no_marks, trend.too_few_marks) {
        (true, ..) => styled(
            WARN,
            format!("too few snapshots to judge: {needed} of one process are needed"),
        ),
        (_, true, _) => styled(WARN, "nothing to judge: the program set no marks between the snapshots"),
        (_, _, true) => {
            let what = format!("snapshots after {needed} different marks of one process are needed");
            styled(WARN, format!("too few marks to judge: {what}"))
        }
        _ => styled(if trend.is_growing() { BAD } else { GOOD }, classes(&trend.classes)),
    });
    page
}

pub fn classes(classes: &Classes) -> String {
    let all: usize = classes.each().map(|(_, count)| count).sum();
    let shown = classes
        .each()
        .filter(|(class, count)| *count > 0 || *class == Class::Growing);
    let each: Vec<String> = shown
        .map(|(class, count)| format!("{count} {}", word(class).0))
        .collect();
    format!("{}: {}", counted(all, "call site"), each.join(", "))
}

/// The name of a class, and its style.
pub fn word(class: Class) -> (&'static str, Style) {
    match class {
        Class::Growing => ("growing", BAD),
        Class::FreedOnlyAtExit => ("freed only at exit", BAD),
        Class::Slowing => ("slowing", WARN),
        Class::GrewThenBounded => ("grew then bounded", GOOD),
        Class::Periodic => ("periodic", PLAIN),
        Class::Irregular => ("irregular", PLAIN),
        Class::Shrinking => ("shrinking", GOOD),
        Class::Steady => ("steady", GOOD),
        Class::TooFew => ("too few snapshots", DIM),
    }
}

/// The growth of a device's memory, if it grows.
pub fn growth(device: &DeviceTrend, against: Against) -> Option<String> {
    if device.pace <= 0.0 {
        return None;
    }
    let used = match (device.used_bytes, device.total_bytes) {
        (Some(used), Some(total)) => format!(", {} of {} used", units::bytes(used), units::bytes(total)),
        _ => String::new(),
    };
    let full = device
        .full_after
        .map(|after| format!(", full in {}", against.span(after)));
    let pace = format!("{} per {}", units::bytes(device.pace as u64), against.unit());
    let (name, full) = (Escaped(&device.name), full.unwrap_or_default());
    Some(format!("{}  {name}{used}: growing by {pace}{full}", device.label))
}

/// `1 GiB → 2 GiB`; `12 → 40 executable graphs` of objects. `about`: in front of each size.
pub fn sizes(object: Option<&str>, first: Tally, last: Tally, about: &str) -> String {
    match object {
        Some(kind) => format!("{} → {}", units::count(first.count), of_kind(last.count, kind)),
        None => format!(
            "{about}{} → {about}{}",
            units::bytes(first.bytes),
            units::bytes(last.bytes)
        ),
    }
}

fn write_row(row: &Row, trend: &Trend, page: &mut Document) {
    let (class, style) = word(row.class);
    let (evidence, values) = match row.judged_by {
        Measure::Bytes => (&row.bytes, &row.series.bytes),
        Measure::Count => (&row.count, &row.series.counts),
    };
    let of = |bytes, count| Tally { bytes, count };
    let (first, last) = (of(row.bytes.first, row.count.first), of(row.bytes.last, row.count.last));
    let sizes = sizes(row.site.object, first, last, if row.is_estimate { "≈ " } else { "" });
    // Too few points have no meaningful evidence.
    let numbers = match row.class {
        Class::TooFew => Text::default(),
        _ => Text::from("  ") + dim(numbers(row, evidence, trend.against)),
    };
    let curve = sparkline(values, trend);
    page.item(styled(style, format!("{class:18}")) + format!("  {curve}  {sizes}") + numbers);
    let pool = if row.site.pool { parts::POOL } else { "" };
    page.indented(6, format!("{}{pool}", with_short_name(row)));
    let outer = row.site.stack.iter().skip_while(|frame| !frame.site).skip(1);
    parts::callers(page, 6, outer.map(|frame| (&frame.function, String::new())));
}

/// The sentence. It begins with the call site, whose name is shortened on a terminal.
fn with_short_name(row: &Row) -> String {
    let label = &row.site.label;
    match row.sentence.strip_prefix(label.as_str()) {
        Some(rest) => short_name(label) + rest,
        None => row.sentence.clone(),
    }
}

/// The evidence in numbers.
pub fn numbers(row: &Row, evidence: &Evidence, against: Against) -> String {
    let (steps, unit) = (evidence.steps, against.unit());
    let pace = match row.site.object {
        Some(_) => format!("{:+.1} per {unit}", row.count.pace),
        None => format!("{} per {unit}", units::signed_bytes(row.bytes.pace as i128)),
    };
    let steps = format!("{} up, {} down, {} same", steps.up, steps.down, steps.same);
    let (fit, confidence) = (evidence.r_squared, evidence.confidence * 100.0);
    format!("{pace}, R² {fit:.2}, steps: {steps}, confidence {confidence:.0} %")
}

/// A series as block characters, from 0 to its maximum, with a gap between processes.
fn sparkline(values: &[u64], trend: &Trend) -> String {
    let most = values.iter().copied().max().unwrap_or(0);
    let columns = values.len().min(CURVE);
    let mut line = String::new();
    let mut process = trend.points.first().map(|point| point.process);
    for column in 0..columns {
        let (start, end) = (column * values.len() / columns, (column + 1) * values.len() / columns);
        let of = trend.points.get(start).map(|point| point.process);
        if of != process && trend.against != Against::Runs {
            line.push(' ');
        }
        process = of;
        line.push(parts::bar(values[start..end].iter().copied().max().unwrap_or(0), most));
    }
    line
}

/// The command to run next.
pub fn next(trend: &Trend) -> Option<String> {
    let process = &trend.processes[trend.processes.len() - 1];
    let word = culeak::analysis::report::shell_word;
    match (trend.too_few, trend.is_growing()) {
        (true, _) if !process.finished => Some(format!(
            "culeak trend --pid {} --every 30s --for 10m",
            process.process.pid
        )),
        (true, _) => {
            // A run of the same length then gives twice the snapshots needed.
            let lasted = trend.points.iter().map(|point| point.at_ns).max().unwrap_or(0);
            let every = (lasted / 1_000_000_000 / (2 * trend.points_needed as u64)).max(1);
            let command: Vec<String> = process.process.command_line.iter().map(|part| word(part)).collect();
            let command = command.join(" ");
            Some(format!(
                "culeak run -o runs --snapshot-every {every}s -- {command}; culeak trend runs"
            ))
        }
        (false, true) => {
            let (first, last) = ends(trend)?;
            Some(format!("culeak diff {} {} --stacks", word(first), word(last)))
        }
        _ => None,
    }
}

/// The first and the last snapshot of the process that was judged, or of the first and the last run. Live readings are
/// left out: a running process has changed since.
fn ends(trend: &Trend) -> Option<(&str, &str)> {
    let longest = (0..trend.processes.len()).max_by_key(|&process| trend.processes[process].points)?;
    let of_one = |point: &&Point| trend.against == Against::Runs || point.process == longest;
    let mut sources = trend.points.iter().filter(of_one).map(|point| point.source.as_str());
    let (first, last) = (sources.next()?, sources.next_back()?);
    let lasts = |source: &str| source != "-" && !source.bytes().all(|byte| byte.is_ascii_digit());
    (first != last && lasts(first) && lasts(last)).then_some((first, last))
}
