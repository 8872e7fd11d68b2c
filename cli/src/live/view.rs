//! Draws the state: the process, its devices over time, its call sites, and the keys.
//!
//! ```text
//! culeak: 4711 python train.py                                running for 2 m 14 s     title
//! GPU 0  1.2 GiB now, 1.9 GiB peak   ▁▂▃▅▇▇█▇▇▆▆▆▅▅▅▅                                  top.rs
//! holds 1.2 GiB in 128 blocks at 3 call sites
//! by bytes · growth since the mark, 38 s ago
//!      bytes    count      growth  oldest  call site                                   table.rs, stacks.rs, holders.rs or ledger.rs
//!    200 MiB      100    +100 MiB    25 s  load_batch  train.cu:14
//! not recorded: 3 unknown frees
//! q quit  ? help  enter stacks  / filter  m mark  d diff  space pause                  bottom.rs
//! ```
//!
//! Drawing changes nothing but the offset and the number of rows that fit, which is the step of PgUp and PgDn. No
//! information is given by colour alone. Deliberately absent: terms that the report does not use.

mod bottom;
mod help;
mod holders;
mod ledger;
pub mod processes;
mod stacks;
mod table;
mod top;

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Widget, Wrap};

use super::rows::Row;
use super::state::{Page, State};
use crate::document::columns;
use crate::text::units;

/// The smallest terminal that has room for rows with numbers.
const LEAST: (u16, u16) = (40, 10);

/// Styles by meaning. Without colours (`NO_COLOR`), bold and dim remain.
#[derive(Debug, Clone, Copy)]
pub struct Palette {
    pub plain: Style,
    pub bold: Style,
    pub dim: Style,
    pub bad: Style,
    pub good: Style,
    pub warning: Style,
    pub line: Style,
    pub selected: Style,
}

impl Palette {
    pub fn new(colours: bool) -> Palette {
        let plain = Style::new();
        let colour = |colour: Color| if colours { plain.fg(colour) } else { plain };
        Palette {
            plain,
            bold: plain.add_modifier(Modifier::BOLD),
            dim: plain.add_modifier(Modifier::DIM),
            bad: colour(Color::Red).add_modifier(Modifier::BOLD),
            good: colour(Color::Green),
            warning: colour(Color::Yellow),
            line: colour(Color::Cyan),
            selected: plain.add_modifier(Modifier::REVERSED),
        }
    }
}

pub fn draw(state: &mut State, palette: &Palette, frame: &mut Frame) {
    let area = frame.area();
    let buffer = frame.buffer_mut();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        return too_small(area, buffer);
    }
    if state.page == Page::Processes {
        let height = area.height - 2;
        processes::draw(state, palette, rows(area, 0, height), buffer);
        return bottom::draw(state, palette, rows(area, height, 2), buffer);
    }
    let below = top::draw(state, palette, area, buffer);
    let (middle, last) = (
        rows(below, 0, below.height.saturating_sub(2)),
        rows(below, below.height - 2, 2),
    );
    match state.page {
        Page::Sites | Page::Processes => table::draw(state, palette, middle, buffer),
        Page::Stacks => stacks::draw(state, palette, middle, buffer),
        Page::Holders => holders::draw(state, palette, middle, buffer),
        Page::Ledger => ledger::draw(state, palette, middle, buffer),
        Page::Help => help::draw(state, palette, middle, buffer),
    }
    bottom::draw(state, palette, last, buffer);
}

/// The header, all call sites and the losses as text.
pub fn as_text(state: &mut State, width: u16) -> String {
    // A taller screen gives each device a chart of several lines, which one reading cannot fill.
    const HEAD: u16 = 39;
    let height = u16::try_from(state.shown.len() + usize::from(HEAD)).unwrap_or(u16::MAX);
    let area = Rect::new(0, 0, width.max(LEAST.0), height);
    let palette = Palette::new(false);
    let mut buffer = Buffer::empty(area);
    let below = top::draw(state, &palette, rows(area, 0, HEAD), &mut buffer);
    let list = rows(area, below.y, height);
    table::draw(state, &palette, list, &mut buffer);
    let mut lines: Vec<String> = (0..area.height)
        .map(|y| {
            let row: String = (0..area.width).map(|x| buffer[(x, y)].symbol()).collect();
            row.trim_end().to_owned()
        })
        .collect();
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    let hidden = state
        .shown
        .len()
        .saturating_sub(usize::from(list.height.saturating_sub(1)));
    if hidden > 0 {
        lines.push(format!(
            "… and {}",
            units::plural(hidden as u64, "more row", "more rows")
        ));
    }
    let mut last = Buffer::empty(Rect::new(0, 0, area.width, 1));
    bottom::losses_line(state, &palette, last.area, &mut last);
    let last: String = last.content().iter().map(|cell| cell.symbol()).collect();
    lines.push(last.trim_end().to_owned());
    lines.join("\n") + "\n"
}

fn too_small(area: Rect, buffer: &mut Buffer) {
    let text = format!(
        "culeak live needs {} columns and {} rows; this terminal has {} and {}. Make it larger, or press q to quit.",
        LEAST.0, LEAST.1, area.width, area.height
    );
    Paragraph::new(text).wrap(Wrap { trim: true }).render(area, buffer);
}

/// Fills the area with lines about the selected call site, from the offset on.
fn panel(
    state: &mut State,
    palette: &Palette,
    area: Rect,
    buffer: &mut Buffer,
    content: impl FnOnce(&State, &Row) -> Vec<Line<'static>>,
) {
    let lines = match state.selected_row().filter(|row| Some(row.key) == state.selected) {
        Some(row) => content(state, row),
        None => vec![Line::styled(
            "  this call site has no live memory any more; press esc to go back",
            palette.dim,
        )],
    };
    state.room = usize::from(area.height);
    state.offset = state.offset.min(lines.len().saturating_sub(state.room));
    for (at, content) in (0..area.height).zip(lines.into_iter().skip(state.offset)) {
        line(rows(area, at, 1), buffer, content);
    }
}

/// The text in lines of at most this width, broken between words.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let lines = crate::document::wrap::wrapped(text, width.max(8));
    lines.lines().map(str::to_owned).collect()
}

/// A part of an area, by rows; empty where the area ends.
fn rows(area: Rect, from: u16, count: u16) -> Rect {
    let from = from.min(area.height);
    Rect {
        y: area.y + from,
        height: count.min(area.height - from),
        ..area
    }
}

/// A line at the left, cut to leave room for one at the right.
fn both_ends(area: Rect, buffer: &mut Buffer, left: Line, right: Line) {
    let taken = u16::try_from(right.width()).unwrap_or(u16::MAX).min(area.width);
    let room = area.width.saturating_sub(taken + u16::from(taken > 0) * 2);
    line(Rect { width: room, ..area }, buffer, left);
    let right_area = Rect {
        x: area.x + area.width - taken,
        width: taken,
        ..area
    };
    line(right_area, buffer, right);
}

/// A line; one that does not fit is cut and ends in `…`.
fn line(area: Rect, buffer: &mut Buffer, content: Line) {
    if area.height == 0 || area.width == 0 {
        return;
    }
    let mut left = usize::from(area.width);
    let style = content.style;
    let fits = content.width() <= left;
    let mut shown: Vec<Span> = Vec::new();
    for span in content.spans {
        let width = span.width();
        if fits || width < left {
            left = left.saturating_sub(width);
            shown.push(span);
            continue;
        }
        let cut = columns::first(&span.content, left - 1);
        shown.push(Span::styled(format!("{cut}…"), span.style));
        break;
    }
    buffer.set_line(area.x, area.y, &Line::from(shown).style(style), area.width);
}

#[cfg(test)]
mod tests;
