//! The list of processes, one row each, numbers before names.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::super::processes::ProcessRow;
use super::super::state::State;
use super::{Palette, line, rows};
use crate::escape::Escaped;
use crate::text::units::{self, plural};

/// Lines above the rows: the sum, the order, and the headings.
const HEAD: u16 = 3;

pub fn draw(state: &mut State, palette: &Palette, area: Rect, buffer: &mut Buffer) {
    let all = state.process_rows();
    line(rows(area, 0, 1), buffer, sum(&all, palette));
    let order = format!("by {} · growth since {}", state.list.order.name(), since(state));
    line(rows(area, 1, 1), buffer, Line::styled(order, palette.dim));
    let columns = Columns::of(&all, area.width);
    line(rows(area, 2, 1), buffer, Line::styled(columns.heading(), palette.bold));
    let list = rows(area, HEAD, area.height.saturating_sub(HEAD));
    state.room = usize::from(list.height);
    let at = all
        .iter()
        .position(|row| row.process == state.list.selected)
        .unwrap_or(0);
    state.offset = state.offset.clamp((at + 1).saturating_sub(state.room.max(1)), at);
    for (nth, row) in (0..list.height).zip(all.iter().skip(state.offset)) {
        let area = rows(list, nth, 1);
        line(area, buffer, columns.row(row, palette));
        if row.process == state.list.selected {
            buffer.set_style(area, palette.selected);
        }
    }
}

/// The list as plain text.
pub fn as_text(all: &[ProcessRow], width: u16) -> String {
    let palette = Palette::new(false);
    let columns = Columns::of(all, width);
    let mut lines = vec![sum(all, &palette), Line::raw(columns.heading())];
    lines.extend(all.iter().map(|row| columns.row(row, &palette)));
    let lines = lines.iter().map(|line| {
        let text: String = line.spans.iter().map(|span| span.content.as_ref()).collect();
        text.trim_end().to_owned() + "\n"
    });
    lines.collect()
}

fn since(state: &State) -> &'static str {
    let marks = || state.processes.iter().filter_map(|process| process.mark.as_ref());
    if marks().any(|mark| mark.set) {
        "the mark"
    } else {
        "the view started"
    }
}

/// `culeak: 8 processes, 7 running, have 1.2 GiB on devices, +20 MiB per second`.
fn sum(all: &[ProcessRow], palette: &Palette) -> Line<'static> {
    let bytes = all
        .iter()
        .fold(0_u64, |sum, row| sum.saturating_add(row.on_devices.bytes));
    let running = all.iter().filter(|row| row.state == "running").count();
    let growth: i128 = all.iter().filter_map(|row| row.per_second).sum();
    let growth = match growth {
        0 => String::new(),
        growth => format!(", {} per second", units::signed_bytes(growth)),
    };
    let processes = plural(all.len() as u64, "process", "processes");
    let text = format!(
        " {processes}, {} running, have {} on devices{growth}",
        units::count(running as u64),
        units::bytes(bytes)
    );
    Line::from(vec![Span::styled("culeak:", palette.bold), Span::raw(text)])
}

/// Which columns there are.
struct Columns {
    ranks: bool,
    host: usize,
    /// Room for the peak and the devices.
    wide: bool,
}

impl Columns {
    fn of(all: &[ProcessRow], width: u16) -> Columns {
        let hosts = all.iter().map(|row| Escaped(&row.host).to_string().chars().count());
        Columns {
            ranks: all.iter().any(|row| row.rank.is_some()),
            host: hosts.max().unwrap_or(0).clamp(4, if width < 80 { 12 } else { 24 }),
            wide: width >= 80,
        }
    }

    fn cells(&self, cells: [&str; 8]) -> String {
        let [rank, host, pid, device, bytes, peak, growth, state] = cells;
        let mut text = String::new();
        if self.ranks {
            text.push_str(&format!("{rank:>6}"));
        }
        let host: String = host.chars().take(self.host).collect();
        text.push_str(&format!("  {host:<width$}  {pid:>8}", width = self.host));
        if self.wide {
            text.push_str(&format!("  {device:<8}"));
        }
        text.push_str(&format!("  {bytes:>10}"));
        if self.wide {
            text.push_str(&format!("  {peak:>10}"));
        }
        text.push_str(&format!("  {growth:>12}  {state:<7}"));
        text
    }

    fn heading(&self) -> String {
        self.cells(["rank", "host", "pid", "device", "held", "peak", "growth/s", "state"]) + "  program"
    }

    fn row(&self, row: &ProcessRow, palette: &Palette) -> Line<'static> {
        let devices: Vec<String> = row.devices.iter().map(i32::to_string).collect();
        let growth = match row.per_second {
            None | Some(0) => String::new(),
            Some(growth) => units::signed_bytes(growth),
        };
        let text = self.cells([
            &row.rank.map_or_else(String::new, |rank| rank.to_string()),
            &Escaped(&row.host).to_string(),
            &row.pid.map_or_else(String::new, |pid| pid.to_string()),
            &devices.join(","),
            &units::bytes(row.on_devices.bytes),
            &units::bytes(row.peak_bytes),
            &growth,
            row.state,
        ]);
        let style = match row.per_second {
            Some(1..) => palette.bad,
            _ => Style::new(),
        };
        let name = match &row.problem {
            Some(problem) => Escaped(problem).to_string(),
            None => Escaped(&row.name).to_string(),
        };
        Line::from(vec![Span::styled(text, style), Span::raw(format!("  {name}"))])
    }
}
