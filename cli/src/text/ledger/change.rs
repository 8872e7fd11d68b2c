//! The ledgers of two points side by side: one line per owner, the largest change first.

use culeak::analysis::ledger::{DeviceChange, LedgerDiff, Line, LineChange, LineKind};

use super::words;
use crate::document::{BOLD, Cell, DIM, Document, PLAIN, Rows, bold};
use crate::escape::Escaped;
use crate::text::units::when;
use crate::text::{diff, units};

/// A line of a page: before, after, and what it is.
struct Shown {
    bytes: [i128; 2],
    counts: Option<[u64; 2]>,
    name: String,
    is_sum: bool,
}

pub fn page(change: &LedgerDiff) -> Document {
    let mut page = Document::default();
    let process = change.devices.iter().map(|device| device.process);
    let [before, after] = process.fold([0, 0], |sum, of| [sum[0] + of[0], sum[1] + of[1]]);
    let subject = match change.same_process {
        true => format!("ledger of process {}: ", change.after.process.pid),
        false => "ledgers of two runs: ".to_owned(),
    };
    let time = diff::time(change.elapsed_ns, change.before.point, change.after.point);
    page.line(format!("{subject}{}", diff::changed(change.same_process, after - before)) + &time);
    change.devices.iter().for_each(|device| write_device(device, &mut page));
    page.blank();
    let host = change.host.iter().map(|(kind, [before, after])| {
        let delta = i128::from(after.bytes) - i128::from(before.bytes);
        (
            "host",
            format!("{} {kind} ({})", units::bytes(after.bytes), units::signed_bytes(delta)),
        )
    });
    page.fields(host);
    page.warnings(&change.warnings);
    page
}

fn write_device(device: &DeviceChange, page: &mut Document) {
    let name = if device.name.is_empty() { "" } else { "  " };
    page.line(bold(format!("GPU {}", device.ordinal)) + format!("{name}{}", Escaped(device.name)));
    let shown = |line: &LineChange| Shown {
        bytes: sides(line).map(|line| line.map_or(0, |line| line.bytes)),
        counts: Some(sides(line).map(|line| line.map_or(0, |line| line.count))).filter(|counts| *counts != [0, 0]),
        name: name_of(line),
        is_sum: false,
    };
    let (own, others): (Vec<_>, Vec<_>) = device.lines.iter().partition(|line| line.what.is_of_process());
    let by_change = |lines: Vec<&LineChange>| {
        let mut lines: Vec<Shown> = lines
            .into_iter()
            .map(shown)
            .filter(|line| line.bytes != [0, 0])
            .collect();
        lines.sort_by_key(|line| std::cmp::Reverse((line.bytes[1] - line.bytes[0]).abs()));
        lines
    };
    let sum = |bytes, name: &str, is_sum| Shown {
        bytes,
        counts: None,
        name: name.to_owned(),
        is_sum,
    };
    let mut rows = by_change(own);
    rows.push(sum(device.process, "this process", true));
    rows.extend(by_change(others));
    if let [Some(before), Some(after)] = device.unexplained {
        rows.push(sum([before, after], "unexplained", false));
    }
    let rows = Rows::of(rows)
        .column("before", |line| Cell::Balance(line.bytes[0]))
        .column("after", |line| Cell::Balance(line.bytes[1]))
        .column("change", |line| Cell::Delta(line.bytes[1] - line.bytes[0], None))
        .column("number", |line| {
            Cell::Number(line.counts.map_or(String::new(), of_counts))
        })
        .column("owner", |line| line.name.clone())
        .sign(|line| if line.is_sum { "= " } else { "" })
        .style(|line| match line.bytes[0] == line.bytes[1] {
            _ if line.is_sum => BOLD,
            true => DIM,
            false => PLAIN,
        });
    page.table(rows);
}

fn sides<'l, 'a>(line: &'l LineChange<'a>) -> [Option<&'l Line<'a>>; 2] {
    [&line.before, &line.after].map(Option::as_ref)
}

/// `12 (+4)`.
fn of_counts([before, after]: [u64; 2]) -> String {
    let delta = i128::from(after) - i128::from(before);
    let change = when(delta != 0, || format!(" ({})", units::signed_count(delta)));
    units::count(after) + &change
}

fn name_of(line: &LineChange) -> String {
    match (line.what, line.category) {
        (LineKind::Blocks, Some(category)) => {
            let of = Escaped(line.of.unwrap_or_default());
            format!("{} of {of}", category.name())
        }
        (what, _) => words::name(what, line.of),
    }
}
