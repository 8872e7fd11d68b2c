//! A trend: per call site its class, a small curve, the evidence, and one sentence.

use anstyle::Style;
use culeak::analysis::trend::{
    Against, Class, Classes, DeviceTrend, Evidence, Measure, Point, ProcessSpan, Row, Trend,
};
use culeak::analysis::words::{mean_of_kind, of_kind, quoted};
use culeak::tally::Tally;

use super::{parts, units};
use crate::document::{
    BAD, Cell, Chart, ChartPoint, DIM, Document, Form, GOOD, PLAIN, Rows, Text, WARN, bold, counted, dim, short_name,
    styled,
};
use crate::escape::Escaped;

/// `charts`: with a chart of each series, and columns to sort by. `selected`: the options that select the memory, for the next command.
pub fn page(trend: &Trend, charts: bool, selected: &str) -> Document {
    let mut page = headline(trend);
    if charts {
        let held: Vec<u64> = trend.points.iter().map(|point| point.held.bytes).collect();
        page.chart(chart("all memory", &held, false, trend));
    }
    for device in trend.devices.iter().filter_map(|device| growth(device, trend.against)) {
        page.line(device);
    }
    page.table(rows(trend, charts));
    let is_quiet = trend.rows.is_empty() && trend.processes.len() == 1 && !trend.is_growing();
    if !is_quiet {
        page.more(
            trend.hidden_rows,
            "call site",
            " that did not change or are beyond --top; --all --top 0 shows all",
        );
        page.fields(trend.processes.iter().map(|span| ("process", process(span))));
    }
    let points = trend.points.iter();
    parts::completeness(
        points.map(|point| (point.is_complete, &*point.source)),
        "snapshot",
        &mut page,
    );
    page.warnings(&trend.warnings);
    next(trend, selected).into_iter().for_each(|command| page.next(command));
    page
}

/// A process, and its number of snapshots.
fn process(span: &ProcessSpan) -> String {
    let process = &span.process;
    let ranks = process.ranks.iter().map(|(name, value)| format!(", {name} {value}"));
    let end = if span.finished { ", the last one at exit" } else { "" };
    let (words, snapshots) = (process.command_line.join(" "), counted(span.points, "snapshot"));
    let what = match process.by.as_str() {
        "" => format!("{} {words} on {}", process.pid, process.host),
        by => format!("recorded by {by}"),
    };
    let text = format!("{what}{}: {snapshots}{end}", ranks.collect::<String>());
    Escaped(&text).to_string()
}

fn headline(trend: &Trend) -> Document {
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
        Against::Marks => counted(marks(trend), "mark"),
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

/// The marks that the snapshots follow, in all processes: a process without one before its first snapshot begins at 0.
fn marks(trend: &Trend) -> u64 {
    let of_each = trend.points.chunk_by(|a, b| a.process == b.process);
    let marks = |points: &[Point]| (points[points.len() - 1].marks).saturating_sub(points[0].marks.saturating_sub(1));
    of_each.map(marks).sum()
}

/// `2 call sites: 1 growing, 1 steady`; `0 growing` only if `--fail-on growing` passes.
pub fn classes(classes: &Classes) -> String {
    let all: usize = classes.each().map(|(_, count)| count).sum();
    let shown = classes
        .each()
        .filter(|(class, count)| *count > 0 || *class == Class::Growing && classes.growing() == 0);
    let each: Vec<String> = shown
        .map(|(class, count)| format!("{count} {}", class.name()))
        .collect();
    format!("{}: {}", counted(all, "call site"), each.join(", "))
}

pub fn style(class: Class) -> Style {
    match class {
        Class::Growing | Class::FreedOnlyAtExit => BAD,
        Class::Slowing => WARN,
        Class::GrewThenBounded | Class::Shrinking | Class::Steady => GOOD,
        Class::Periodic | Class::Irregular => PLAIN,
        Class::TooFew => DIM,
    }
}

/// The growth of a device's memory, if it grows.
fn growth(device: &DeviceTrend, against: Against) -> Option<String> {
    let pace = |pace: f64| format!("growing by {} per {}", units::bytes(pace as u64), against.unit());
    let pace = match (device.pace > 0.0, device.pace_until_exit > 0.0) {
        (false, false) => return None,
        (true, false) => pace(device.pace),
        (false, true) => format!("{}, which was freed only at exit", pace(device.pace_until_exit)),
        (true, true) => {
            let freed = units::bytes(device.pace_until_exit as u64);
            format!("{}, and {freed} that was freed only at exit", pace(device.pace))
        }
    };
    let used = match (device.used_bytes, device.total_bytes) {
        (Some(used), Some(total)) => format!(", {} of {} used", units::bytes(used), units::bytes(total)),
        _ => String::new(),
    };
    let full = device
        .full_after
        .map(|after| format!(", full in {}", against.span(after)));
    let (name, full) = (Escaped(&device.name), full.unwrap_or_default());
    Some(format!("{}  {name}{used}: {pace}{full}", device.label))
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

/// The series that decided a row's class, and its evidence.
fn judged(row: &Row) -> (&Evidence, &[u64], bool) {
    match row.judged_by {
        Measure::Bytes => (&row.bytes, &row.series.bytes, false),
        Measure::Count => (&row.count, &row.series.counts, true),
    }
}

fn rows(trend: &Trend, charts: bool) -> Rows<&Row> {
    let class = |row: &&Row| styled(style(row.class), format!("{:18}", row.class.name()));
    let curve = |row: &&Row| {
        let (_, values, counts) = judged(row);
        Cell::Chart(chart("held", values, counts, trend))
    };
    let first_and_last = |row: &&Row| {
        let of = |bytes, count| Tally { bytes, count };
        let (first, last) = (of(row.bytes.first, row.count.first), of(row.bytes.last, row.count.last));
        sizes(row.site.object, first, last, parts::about(row.is_estimate))
    };
    // Too few points have no meaningful evidence.
    let evidence = |row: &&Row| match row.class {
        Class::TooFew => Text::default(),
        _ => dim(numbers(row, judged(row).0, trend.against)),
    };
    let last = |row: &&Row| match row.site.object {
        Some(kind) => Cell::Things(row.count.last, of_kind(row.count.last, kind)),
        None => Cell::Size(row.bytes.last),
    };
    let confidence = |row: &&Row| Cell::Number(format!("{:.0} %", row.confidence * 100.0));
    Rows::of(&trend.rows)
        .bare()
        .column("class", class)
        .column("over time", curve)
        .column("first and last", first_and_last)
        .column_if(charts, "last", last)
        .column_if(charts, "call site", |row| parts::cell(&row.site))
        .column_if(charts, "confidence", confidence)
        .column_if(!charts, "evidence", evidence)
        .below(|row, page| match charts {
            true => details(row, trend, page),
            false => summary(row, page),
        })
}

fn summary(row: &Row, page: &mut Document) {
    let pool = if row.site.pool { parts::POOL } else { "" };
    page.indented(6, format!("{}{pool}", with_short_name(row)));
    parts::callers_of(&row.site, page);
}

fn details(row: &Row, trend: &Trend, page: &mut Document) {
    page.line(&*row.sentence);
    if row.site.object.is_none() {
        page.chart(chart("bytes", &row.series.bytes, false, trend));
    }
    let things = row.site.object.unwrap_or("blocks");
    page.chart(chart(things, &row.series.counts, true, trend));
    let range = |evidence: &Evidence, words: fn(u64) -> String| {
        let (first, last) = (words(evidence.first), words(evidence.last));
        let (least, most) = (words(evidence.least), words(evidence.most));
        format!("first {first}, last {last}, between {least} and {most}")
    };
    let is_memory = row.site.object.is_none();
    page.fields(is_memory.then(|| ("bytes", range(&row.bytes, units::bytes))));
    page.fields([
        (
            if is_memory { "blocks" } else { "number" },
            range(&row.count, units::count),
        ),
        ("evidence", numbers(row, judged(row).0, trend.against)),
        ("kind", row.site.kinds.join(", ")),
    ]);
    if row.site.parts_after.is_some() {
        page.line(dim("one of several stacks; --by stack shows each"));
    }
    page.site_stack(&row.site.stack, false, 6);
}

/// A series of a trend.
fn chart(what: &str, values: &[u64], counts: bool, trend: &Trend) -> Chart {
    let began = trend.points.first().map_or(0, |point| point.at_unix_ns);
    let name = |point: &Point| match trend.against {
        Against::Time => format!("after {}", units::duration(point.at_unix_ns.saturating_sub(began))),
        Against::Marks => counted(point.marks, "mark"),
        Against::Runs => point.source.clone(),
    };
    let points = trend.points.iter().zip(values).map(|(point, &value)| ChartPoint {
        name: name(point),
        x: point.x,
        value,
        part: if trend.against == Against::Runs {
            0
        } else {
            point.process
        },
        stands_out: false,
    });
    let along = match trend.against {
        Against::Time => "over time",
        Against::Marks => "by mark",
        Against::Runs => "by run",
    };
    Chart {
        label: format!("{what} {along}"),
        points: points.collect(),
        form: Form::Curve,
        counts,
    }
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
fn numbers(row: &Row, evidence: &Evidence, against: Against) -> String {
    let (steps, unit) = (evidence.steps, against.unit());
    let pace = match row.site.object {
        Some(kind) => {
            let sign = if row.count.pace < 0.0 { '-' } else { '+' };
            format!("{sign}{} per {unit}", mean_of_kind(row.count.pace.abs(), Some(kind)))
        }
        None => format!("{} per {unit}", units::signed_bytes(row.bytes.pace as i128)),
    };
    let steps = format!("{} up, {} down, {} same", steps.up, steps.down, steps.same);
    let (fit, confidence) = (evidence.r_squared, evidence.confidence * 100.0);
    format!("{pace}, R² {fit:.2}, steps: {steps}, confidence {confidence:.0} %")
}

/// The command to run next.
fn next(trend: &Trend, selected: &str) -> Option<String> {
    let process = &trend.processes[trend.processes.len() - 1];
    let word = culeak::analysis::report::shell_word;
    match (trend.too_few, trend.is_growing()) {
        (true, _) if !process.process.by.is_empty() => None,
        (true, _) if !process.finished => Some(format!(
            "culeak trend --pid {} --every 30s --for 10m",
            process.process.pid
        )),
        (true, _) => {
            // A run of the same length then gives twice the snapshots needed.
            let lasted = trend.points.iter().map(|point| point.at_ns).max().unwrap_or(0);
            let every = (lasted / 1_000_000_000 / (2 * trend.points_needed as u64)).max(1);
            let command: Vec<String> = process.process.command_line.iter().map(|part| quoted(part)).collect();
            let command = command.join(" ");
            Some(format!(
                "culeak run -o runs --snapshot every:{every}s -- {command}; culeak trend runs"
            ))
        }
        (false, true) => {
            let (first, last) = ends(trend)?;
            Some(format!(
                "culeak diff {} {}{selected} --view stacks",
                word(first),
                word(last)
            ))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_growth_of_a_device_includes_what_is_freed_only_at_exit() {
        let growth = |pace: f64, pace_until_exit: f64| {
            let device = DeviceTrend {
                label: "GPU 0".to_owned(),
                name: "H200".to_owned(),
                pace: pace * f64::from(1 << 20),
                pace_until_exit: pace_until_exit * f64::from(1 << 20),
                ..DeviceTrend::default()
            };
            growth(&device, Against::Marks).unwrap_or_default()
        };
        assert_eq!(growth(0.0, 0.0), "");
        assert_eq!(growth(2.0, 0.0), "GPU 0  H200: growing by 2 MiB per mark");
        assert_eq!(
            growth(2.0, 54.5),
            "GPU 0  H200: growing by 2 MiB per mark, and 54.5 MiB that was freed only at exit"
        );
        assert_eq!(
            growth(0.0, 54.5),
            "GPU 0  H200: growing by 54.5 MiB per mark, which was freed only at exit"
        );
    }
}
