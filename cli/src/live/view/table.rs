//! The list of call sites, one row each, numbers first.

use culeak::analysis::diff::State as Change;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::super::rows::Row;
use super::super::state::State;
use super::{Palette, line, rows};
use crate::document::columns::shortened;
use crate::text::units;

/// Labels are not cut below this width.
const LABEL_NEEDED: usize = 12;

/// A column of numbers: its heading and its width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Change,
    Bytes,
    Count,
    Growth,
    CountGrowth,
    Oldest,
}

impl Column {
    fn heading(self) -> (&'static str, usize) {
        match self {
            Column::Change => ("", 6),
            Column::Bytes => ("bytes", 10),
            Column::Count => ("count", 9),
            Column::Growth => ("growth", 11),
            Column::CountGrowth => ("+count", 9),
            Column::Oldest => ("oldest", 10),
        }
    }
}

/// The columns that fit beside a name.
fn columns(width: u16, diff: bool) -> Vec<Column> {
    let mut columns = match width {
        0..60 => vec![Column::Bytes, Column::Growth],
        60..100 => vec![Column::Bytes, Column::Count, Column::Growth, Column::Oldest],
        _ => vec![
            Column::Bytes,
            Column::Count,
            Column::Growth,
            Column::CountGrowth,
            Column::Oldest,
        ],
    };
    if diff {
        columns.retain(|&column| column != Column::Oldest);
        columns.insert(0, Column::Change);
    }
    columns
}

pub fn draw(state: &mut State, palette: &Palette, area: Rect, buffer: &mut Buffer) {
    let columns = columns(area.width, state.diff);
    let mut heading = String::new();
    for (name, width) in columns.iter().map(|column| column.heading()) {
        heading.push_str(&format!("{name:>width$}"));
    }
    heading.push_str("  call site");
    line(rows(area, 0, 1), buffer, Line::styled(heading, palette.bold));
    let list = rows(area, 1, area.height.saturating_sub(1));
    state.room = usize::from(list.height);
    state.scroll_to_selected();
    if state.shown.is_empty() {
        line(list, buffer, Line::styled(nothing(state), palette.dim));
        return;
    }
    let selected = state.selected_place();
    let now = state.reading_shown().map_or(0, |reading| reading.at_ns);
    for at in 0..list.height {
        let place = state.offset + usize::from(at);
        let Some(row) = state.row(place) else { break };
        let area = rows(list, at, 1);
        line(area, buffer, content(row, &columns, now, area.width, palette));
        if place == selected {
            buffer.set_style(area, palette.selected);
        }
    }
}

fn nothing(state: &State) -> &'static str {
    match (state.reading_shown(), state.rows.rows.is_empty()) {
        (None, _) => "",
        (Some(_), true) => "  no live memory",
        (Some(_), false) if !state.filter.is_empty() => "  no call site matches the filter; press esc to clear it",
        (Some(_), false) => "  nothing changed",
    }
}

fn content(row: &Row, columns: &[Column], now_ns: u64, width: u16, palette: &Palette) -> Line<'static> {
    let mut spans = Vec::new();
    for &column in columns {
        let (_, width) = column.heading();
        let (text, style) = match column {
            Column::Change => (change(row.change()).to_owned(), palette.dim),
            Column::Bytes if row.object().is_some() => ("-".to_owned(), palette.dim),
            Column::Bytes => (units::bytes(row.now.bytes), palette.plain),
            Column::Count => (units::count(row.now.count), palette.plain),
            Column::Growth if row.object().is_some() => growth(row.count_change(), units::signed_count, palette),
            Column::Growth => growth(row.bytes_change(), units::signed_bytes, palette),
            Column::CountGrowth => growth(row.count_change(), units::signed_count, palette),
            Column::Oldest if row.now.count == 0 => (String::new(), palette.plain),
            Column::Oldest => (units::duration(now_ns.saturating_sub(row.oldest_ns)), palette.plain),
        };
        spans.push(Span::styled(format!("{text:>width$}"), style));
    }
    let mut behind = Vec::new();
    if !row.place.is_empty() {
        behind.push(Span::styled(format!("  {}", row.place), palette.dim));
    }
    // The kind tells the rows of objects of one call site apart, so it is cut last.
    if let Some(kind) = row.object() {
        behind.push(Span::styled(format!("  {}", kind.name()), palette.dim));
    }
    if !row.owner.is_empty() {
        behind.push(Span::styled(format!("  [{}]", row.owner), palette.dim));
    }
    if width >= 100 && row.object().is_none() {
        behind.push(Span::styled(format!("  {}", row.kinds), palette.dim));
    }
    // A long label is cut first, so that the place stays visible.
    let taken: usize = spans.iter().chain(&behind).map(Span::width).sum();
    let room = usize::from(width).saturating_sub(taken + "  ".len());
    let label = shortened(&row.label, room.max(LABEL_NEEDED));
    spans.push(Span::styled(format!("  {label}"), palette.plain));
    spans.extend(behind);
    Line::from(spans)
}

fn growth(by: i128, write: fn(i128) -> String, palette: &Palette) -> (String, ratatui::style::Style) {
    match by {
        0 => (String::new(), palette.plain),
        1.. => (write(by), palette.bad),
        _ => (write(by), palette.good),
    }
}

pub fn change(change: Change) -> &'static str {
    match change {
        Change::New => "new",
        Change::Grown => "grown",
        Change::Shrunk => "shrunk",
        Change::Gone => "gone",
        Change::Unchanged => "",
    }
}
