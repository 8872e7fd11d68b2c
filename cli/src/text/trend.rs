//! A trend as text: per call site its class, a small curve, the evidence, and one sentence.

use std::io::{self, Write};

use anstyle::Style;
use culeak::analysis::trend::{
    Against, Class, Classes, DeviceTrend, Evidence, Measure, Point, ProcessSpan, Row, Trend,
};

use culeak::analysis::words::of_kind;

use super::parts::{self, BAD, BOLD, DIM, GOOD, PLAIN, Styled, WARN};
use super::units::{self, plural};
use crate::escape::Escaped;

/// The width of a curve in columns.
const CURVE: usize = 24;

pub fn write(trend: &Trend, out: &mut dyn Write) -> io::Result<()> {
    headline(trend, out)?;
    for device in trend.devices.iter().filter_map(|device| growth(device, trend.against)) {
        writeln!(out, "{device}")?;
    }
    if !trend.rows.is_empty() {
        writeln!(out)?;
    }
    for row in &trend.rows {
        write_row(row, trend, out)?;
    }
    if trend.hidden_rows > 0 {
        let rows = plural(trend.hidden_rows as u64, "call site", "call sites");
        let hidden = format!("… and {rows} that did not change or are beyond --top; --all --top 0 shows all");
        writeln!(out, "  {}", Styled(DIM, hidden))?;
    }
    writeln!(out)?;
    for span in &trend.processes {
        writeln!(out, "{}  {}", Styled(BOLD, "process "), process(span))?;
    }
    parts::warnings(out, &trend.warnings)?;
    match next(trend) {
        Some(command) => parts::next(out, &command),
        None => Ok(()),
    }
}

/// A process, and its number of snapshots.
pub fn process(span: &ProcessSpan) -> String {
    let process = &span.process;
    let words: Vec<_> = process.command_line.iter().map(String::as_str).collect();
    let ranks: String = process
        .ranks
        .iter()
        .map(|(name, value)| format!(", {name} {value}"))
        .collect();
    let end = if span.finished { ", the last one at exit" } else { "" };
    let text = format!(
        "{} {} on {}{ranks}: {}{end}",
        process.pid,
        words.join(" "),
        process.host,
        plural(span.points as u64, "snapshot", "snapshots")
    );
    Escaped(&text).to_string()
}

pub fn headline(trend: &Trend, out: &mut dyn Write) -> io::Result<()> {
    let (first, last) = (&trend.points[0], &trend.points[trend.points.len() - 1]);
    let (running, at_exit) = trend.end().unwrap_or((last, None));
    let sums = match (first.held == running.held, at_exit.map(|left| left.held)) {
        (true, None) => format!("{} at the first and the last", parts::tally(first.held)),
        (true, Some(left)) if left == running.held => {
            format!("{} at the first, the last and at exit", parts::tally(left))
        }
        (true, Some(left)) => format!(
            "{} at the first and the last, {} at exit",
            parts::tally(first.held),
            parts::tally(left)
        ),
        (false, left) => {
            let left = match left {
                None => String::new(),
                Some(left) if left == running.held => ", and the same at exit".to_owned(),
                Some(left) => format!(", {} at exit", parts::tally(left)),
            };
            format!(
                "from {} to {}{left}",
                parts::tally(first.held),
                parts::tally(running.held)
            )
        }
    };
    let snapshots = plural(trend.points.len() as u64, "snapshot", "snapshots");
    let over = match trend.against {
        Against::Time => units::duration(last.at_unix_ns.saturating_sub(first.at_unix_ns)),
        Against::Marks => plural(last.marks.saturating_sub(first.marks), "mark", "marks"),
        Against::Runs => plural(trend.processes.len() as u64, "run", "runs"),
    };
    writeln!(
        out,
        "{}: {snapshots} over {over}, {sums}",
        Styled(BOLD, Escaped(&trend.program.to_string()))
    )?;
    parts::opaque_pools(out, &trend.opaque_pools)?;
    if trend.too_few {
        let needed = trend.points_needed;
        let few = format!("too few snapshots to judge: {needed} of one process are needed");
        return writeln!(out, "{}", Styled(WARN, few));
    }
    if trend.no_marks {
        let none = "nothing to judge: the program set no marks between the snapshots";
        return writeln!(out, "{}", Styled(WARN, none));
    }
    if trend.too_few_marks {
        let needed = trend.points_needed;
        let few = format!("too few marks to judge: snapshots after {needed} different marks of one process are needed");
        return writeln!(out, "{}", Styled(WARN, few));
    }
    let style = if trend.is_growing() { BAD } else { GOOD };
    writeln!(out, "{}", Styled(style, classes(&trend.classes)))
}

pub fn classes(classes: &Classes) -> String {
    let counts = [
        (classes.growing, Class::Growing),
        (classes.freed_only_at_exit, Class::FreedOnlyAtExit),
        (classes.slowing, Class::Slowing),
        (classes.grew_then_bounded, Class::GrewThenBounded),
        (classes.periodic, Class::Periodic),
        (classes.irregular, Class::Irregular),
        (classes.shrinking, Class::Shrinking),
        (classes.steady, Class::Steady),
        (classes.too_few, Class::TooFew),
    ];
    let all: usize = counts.iter().map(|(count, _)| count).sum();
    let each = counts
        .iter()
        .filter(|(count, class)| *count > 0 || *class == Class::Growing)
        .map(|(count, class)| format!("{count} {}", word(*class).0));
    format!(
        "{}: {}",
        plural(all as u64, "call site", "call sites"),
        each.collect::<Vec<_>>().join(", ")
    )
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
    let full = match device.full_after {
        Some(after) => format!(", full in {}", against.span(after)),
        None => String::new(),
    };
    let pace = format!("{} per {}", units::bytes(device.pace as u64), against.unit());
    let name = Escaped(&device.name);
    Some(format!("{}  {name}{used}: growing by {pace}{full}", device.label))
}

fn pace(bytes: f64, against: Against) -> String {
    format!("{} per {}", units::signed_bytes(bytes as i128), against.unit())
}

fn write_row(row: &Row, trend: &Trend, out: &mut dyn Write) -> io::Result<()> {
    let (class, style) = word(row.class);
    let (evidence, values) = match row.judged_by {
        Measure::Bytes => (&row.bytes, &row.series.bytes),
        Measure::Count => (&row.count, &row.series.counts),
    };
    let curve = sparkline(values, trend);
    let sizes = match row.site.object {
        Some(kind) => format!("{} → {}", units::count(row.count.first), of_kind(row.count.last, kind)),
        None => {
            let about = if row.is_estimate { "≈ " } else { "" };
            let (first, last) = (units::bytes(row.bytes.first), units::bytes(row.bytes.last));
            format!("{about}{first} → {about}{last}")
        }
    };
    // Too few points have no meaningful evidence.
    let numbers = match row.class {
        Class::TooFew => String::new(),
        _ => format!("  {}", Styled(DIM, numbers(row, evidence, trend.against))),
    };
    writeln!(
        out,
        "  {}  {curve}  {sizes}{numbers}",
        Styled(style, format!("{class:18}"))
    )?;
    let pool = if row.site.pool { parts::POOL } else { "" };
    writeln!(out, "      {}{pool}", Escaped(&with_short_name(row)))?;
    let outer = row.site.stack.iter().skip_while(|frame| !frame.site).skip(1);
    parts::callers(out, "      ", outer.map(|frame| (&frame.function, String::new())))
}

/// The sentence. It begins with the call site, whose name is shortened on a terminal.
fn with_short_name(row: &Row) -> String {
    let label = &row.site.label;
    match row.sentence.strip_prefix(label.as_str()) {
        Some(rest) => parts::short_name(label) + rest,
        None => row.sentence.clone(),
    }
}

/// The evidence in numbers.
pub fn numbers(row: &Row, evidence: &Evidence, against: Against) -> String {
    let steps = evidence.steps;
    format!(
        "{}, R² {:.2}, steps: {} up, {} down, {} same, confidence {:.0} %",
        match row.site.object {
            Some(_) => format!("{:+.1} per {}", row.count.pace, against.unit()),
            None => pace(row.bytes.pace, against),
        },
        evidence.r_squared,
        steps.up,
        steps.down,
        steps.same,
        evidence.confidence * 100.0
    )
}

/// A series as block characters, from 0 to its maximum, with a gap between processes.
fn sparkline(values: &[u64], trend: &Trend) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = values.iter().copied().max().unwrap_or(0).max(1);
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
        let highest = values[start..end].iter().copied().max().unwrap_or(0);
        line.push(BLOCKS[(u128::from(highest) * 7 / u128::from(most)) as usize]);
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
