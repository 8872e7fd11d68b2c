//! Trends as a page: memory over time, in all and by call site.

use std::io::{self, Write};

use anstyle::Style;
use culeak::analysis::function_name::plain;
use culeak::analysis::report::By;
use culeak::analysis::trend::{Against, Evidence, Measure, Row, Trend};
use culeak::kind::Kind;
use serde::Serialize;

use super::data::Data;
use super::page::{self, Parts};
use super::stacks::{StackLine, lines_of};
use crate::escape::Escaped;
use crate::text;
use crate::text::parts::{BAD, POOL, WARN};

#[derive(Serialize)]
struct Page<'t> {
    what: &'static str,
    trends: Vec<Shown<'t>>,
}

#[derive(Serialize)]
struct Shown<'t> {
    program: String,
    headline: Vec<String>,
    growing: bool,
    by: &'static str,
    against: Against,
    unit: &'static str,
    processes: Vec<String>,
    points: Vec<Point>,
    devices: Vec<String>,
    rows: Vec<Site<'t>>,
    hidden_rows: usize,
    warnings: Vec<String>,
    next: Option<String>,
}

#[derive(Serialize)]
struct Point {
    x: f64,
    process: usize,
}

#[derive(Serialize)]
struct Site<'t> {
    label: String,
    place: String,
    mark: String,
    kinds: String,
    /// The kind of object; null for memory.
    object: Option<[&'static str; 2]>,
    class: &'static str,
    /// The style of the class.
    tone: &'static str,
    confidence: f64,
    sentence: String,
    evidence: String,
    bytes: &'t Evidence,
    count: &'t Evidence,
    stack: Vec<StackLine>,
}

/// Writes the whole page.
pub fn write(trends: &[Trend], by: By, out: &mut dyn Write) -> io::Result<()> {
    let mut data = Data::new();
    let mut shown = Vec::new();
    let mut plain = String::new();
    for (number, trend) in trends.iter().enumerate() {
        plain += &(text::trend::page(trend).plain() + "\n");
        columns(&mut data, number, trend);
        shown.push(of(trend, by)?);
    }
    let title = match trends {
        [one] => format!("culeak trend: {}", Escaped(&one.program.to_string())),
        several => format!("culeak trend: {} processes", several.len()),
    };
    let content = Page {
        what: "trend",
        trends: shown,
    };
    page::write(Parts::Charts, &title, &plain, data, &content, out)
}

/// Writes one value per point: the total, then each row.
fn columns(data: &mut Data, number: usize, trend: &Trend) {
    let mut add = |name: &str, numbers: &mut dyn Iterator<Item = u64>| {
        data.columns.add(format!("{number}.{name}"), numbers);
    };
    let series = || trend.rows.iter().map(|row| &row.series);
    add("points.bytes", &mut trend.points.iter().map(|point| point.held.bytes));
    add(
        "series.bytes",
        &mut series().flat_map(|series| series.bytes.iter().copied()),
    );
    add(
        "series.counts",
        &mut series().flat_map(|series| series.counts.iter().copied()),
    );
}

fn of(trend: &Trend, by: By) -> io::Result<Shown<'_>> {
    let devices = trend.devices.iter();
    let points = trend.points.iter().map(|point| Point {
        x: point.x,
        process: point.process,
    });
    Ok(Shown {
        program: Escaped(&trend.program.to_string()).to_string(),
        headline: text::trend::headline(trend).plain_lines(),
        growing: trend.is_growing(),
        by: by.name(),
        against: trend.against,
        unit: trend.against.unit(),
        processes: trend.processes.iter().map(text::trend::process).collect(),
        points: points.collect(),
        devices: devices
            .filter_map(|device| text::trend::growth(device, trend.against))
            .collect(),
        rows: trend.rows.iter().map(|row| site(row, trend.against)).collect(),
        hidden_rows: trend.hidden_rows,
        warnings: trend.warnings.iter().map(|text| Escaped(text).to_string()).collect(),
        next: text::trend::next(trend).map(|command| Escaped(&command).to_string()),
    })
}

fn site(row: &Row, against: Against) -> Site<'_> {
    let (class, style) = text::trend::word(row.class);
    let judged = match row.judged_by {
        Measure::Bytes => &row.bytes,
        Measure::Count => &row.count,
    };
    let site = &row.site;
    Site {
        label: Escaped(&plain(&site.label)).to_string(),
        place: escaped(&site.place),
        mark: match (site.pool, site.library) {
            (true, _) => POOL.trim().to_owned(),
            (false, Some(library)) => format!("[{library}]"),
            (false, None) => String::new(),
        },
        kinds: site.kinds.join(", "),
        object: site.object.and_then(Kind::from_name).map(Kind::nouns),
        class,
        tone: tone(style),
        confidence: row.confidence,
        sentence: Escaped(&row.sentence).to_string(),
        evidence: text::trend::numbers(row, judged, against),
        bytes: &row.bytes,
        count: &row.count,
        stack: lines_of(&site.stack),
    }
}

fn escaped(text: &Option<String>) -> String {
    text.as_deref()
        .map_or_else(String::new, |text| Escaped(text).to_string())
}

/// The page's name for the terminal's colour of a class.
fn tone(style: Style) -> &'static str {
    match style {
        BAD => "bad",
        WARN => "warn",
        _ => "plain",
    }
}
