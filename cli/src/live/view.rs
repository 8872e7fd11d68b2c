//! Draws the state: the process, its devices over time, its call sites, and the keys.
//!
//! ```text
//! culeak: 4711 python train.py                                running for 2 m 14 s     title
//! GPU 0  1.2 GiB now, 1.9 GiB peak   ▁▂▃▅▇▇█▇▇▆▆▆▅▅▅▅                                  top.rs
//! holds 1.2 GiB in 128 blocks at 3 call sites
//! by bytes · growth since the mark, 38 s ago
//!      bytes    count      growth  oldest  call site                                   pages.rs
//!    200 MiB      100    +100 MiB    25 s  load_batch  train.cu:14
//! not recorded: 3 unknown frees
//! q quit  ? help  enter stacks  / filter  m mark  d diff  space pause                  
//! ```
//!
//! Drawing changes nothing but the offset and the number of rows that fit, which is the step of PgUp and PgDn. No
//! information is given by colour alone. Deliberately absent: terms that the report does not use.

mod pages;
mod top;

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Widget, Wrap};

use super::processes::ProcessRow;
use super::state::{Page, State};
use crate::document::columns::{self, with_available};
use crate::document::wrap::wrapped;
use crate::document::{Document, dim};

/// Wider screens show kinds, and the growth of counts.
const WIDE: u16 = 100;
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
    let below = match state.page {
        Page::Processes => area,
        _ => top::draw(state, palette, area, buffer),
    };
    let middle = rows(below, 0, below.height.saturating_sub(2));
    match state.page {
        Page::Sites => sites(state, palette, middle, buffer),
        Page::Processes => processes(state, palette, middle, buffer),
        page => {
            let document = match page {
                Page::Stacks => pages::of_selected(state, pages::stacks),
                Page::Holders => pages::of_selected(state, pages::holders),
                Page::Ledger => pages::ledger(state),
                _ => pages::help(state),
            };
            let lines = lines(&document, area.width, true, palette);
            state.room = usize::from(middle.height);
            state.offset = state.offset.min(lines.len().saturating_sub(state.room));
            put(lines.into_iter().skip(state.offset), middle, buffer);
        }
    }
    let losses = match state.page {
        Page::Processes => state.ended.as_deref().unwrap_or_default().into(),
        _ => pages::losses(state),
    };
    let last = if state.filtering {
        pages::typed(state)
    } else {
        dim(keys(state))
    };
    let mut bottom = Document::default();
    bottom.line(losses);
    bottom.line(last);
    let lines = lines(&bottom, area.width, false, palette);
    put(lines, rows(below, below.height - 2, 2), buffer);
}

/// The list of call sites.
fn sites(state: &mut State, palette: &Palette, area: Rect, buffer: &mut Buffer) {
    state.room = usize::from(area.height.saturating_sub(1));
    state.scroll_to_selected();
    let places = state.offset..state.shown.len().min(state.offset + state.room);
    let mut page = pages::sites(state, places, area.width >= WIDE);
    if state.shown.is_empty() {
        page.item(dim(pages::nothing(state)));
    }
    put(lines(&page, area.width, false, palette), area, buffer);
    if !state.shown.is_empty() {
        select(state.selected_place() - state.offset, palette, area, buffer);
    }
}

/// The list of processes: their sum, the order, and the rows.
fn processes(state: &mut State, palette: &Palette, area: Rect, buffer: &mut Buffer) {
    let all = state.process_rows();
    let is_set = state
        .processes
        .iter()
        .any(|process| process.mark.as_ref().is_some_and(|mark| mark.set));
    let since = if is_set { "the mark" } else { "the view started" };
    let mut head = Document::default();
    head.line(pages::sum_of_processes(&all));
    head.line(dim(format!("by {} · growth since {since}", state.list.order.name())));
    put(lines(&head, area.width, false, palette), area, buffer);
    let list = rows(area, 2, area.height.saturating_sub(2));
    state.room = usize::from(list.height.saturating_sub(1));
    let at = state.list.place(&all);
    state.offset = state.offset.clamp((at + 1).saturating_sub(state.room.max(1)), at);
    let shown = &all[state.offset..all.len().min(state.offset + state.room)];
    put(
        lines(&pages::processes(shown), list.width, false, palette),
        list,
        buffer,
    );
    if !all.is_empty() {
        select(at - state.offset, palette, list, buffer);
    }
}

/// Marks a row of a table, whose first line has the headings.
fn select(row: usize, palette: &Palette, area: Rect, buffer: &mut Buffer) {
    let row = u16::try_from(row).unwrap_or(u16::MAX);
    buffer.set_style(rows(area, row.saturating_add(1), 1), palette.selected);
}

fn keys(state: &State) -> String {
    let mut keys = match state.page {
        Page::Sites => vec![
            "q quit",
            "? help",
            "enter stacks",
            "/ filter",
            "w why",
            "m mark",
            "d diff",
        ],
        Page::Processes => vec!["q quit", "? help", "enter open", "s sort", "m mark"],
        Page::Stacks => vec!["q quit", "? help", "esc back", "up/down scroll", "m mark"],
        Page::Holders => vec!["q quit", "? help", "esc back", "up/down scroll", "w search again"],
        Page::Ledger => vec!["q quit", "? help", "esc back", "up/down scroll"],
        Page::Help => vec!["q quit", "esc back"],
    };
    keys.push(if state.paused { "space resume" } else { "space pause" });
    if state.processes.len() > 1 && state.page != Page::Processes {
        keys.insert(2, "tab process");
    }
    keys.join("  ")
}

/// The list of processes as plain text.
pub fn list_as_text(all: &[ProcessRow], width: u16) -> String {
    let mut page = Document::default();
    page.line(pages::sum_of_processes(all));
    page.append(pages::processes(all));
    with_available(width.into(), || page.plain())
}

/// The header, all call sites and the losses as text.
pub fn as_text(state: &State, width: u16) -> String {
    // A taller screen gives each device a chart of several lines, which one reading cannot fill.
    const HEAD: u16 = 39;
    let head = Rect::new(0, 0, width.max(LEAST.0), HEAD);
    let mut buffer = Buffer::empty(head);
    let below = top::draw(state, &Palette::new(false), head, &mut buffer);
    let mut text = String::new();
    for y in 0..below.y {
        let row: String = (0..head.width).map(|x| buffer[(x, y)].symbol()).collect();
        text += &format!("{}\n", row.trim_end());
    }
    let mut page = pages::sites(state, 0..state.shown.len(), width >= WIDE);
    if state.shown.is_empty() {
        page.item(pages::nothing(state));
    }
    page.line(pages::losses(state));
    text + &with_available(head.width.into(), || page.plain())
}

fn too_small(area: Rect, buffer: &mut Buffer) {
    let text = format!(
        "culeak live needs {} columns and {} rows; this terminal has {} and {}. Make it larger, or press q to quit.",
        LEAST.0, LEAST.1, area.width, area.height
    );
    Paragraph::new(text).wrap(Wrap { trim: true }).render(area, buffer);
}

/// A document as lines of the screen. `wraps`: lines that do not fit continue below; otherwise they are cut.
fn lines(document: &Document, width: u16, wraps: bool, palette: &Palette) -> Vec<Line<'static>> {
    let width = usize::from(width);
    let lines = with_available(width, || document.ansi_lines());
    let lines = lines.into_iter().flat_map(|line| match wraps {
        true => wrapped(&line, width).split('\n').map(str::to_owned).collect(),
        false => vec![line],
    });
    lines.map(|line| of_ansi(&line, palette)).collect()
}

/// A line of a document, whose styles are escape sequences.
fn of_ansi(text: &str, palette: &Palette) -> Line<'static> {
    let (mut spans, mut style) = (Vec::new(), palette.plain);
    for (nth, part) in text.split('\u{1b}').enumerate() {
        let (code, rest) = match nth {
            0 => ("", part),
            _ => part.split_once('m').unwrap_or(("", part)),
        };
        style = match code {
            "[0" => palette.plain,
            "[1" => style.patch(palette.bold),
            "[2" => style.patch(palette.dim),
            "[31" => style.patch(palette.bad),
            "[32" => style.patch(palette.good),
            "[33" => style.patch(palette.warning),
            _ => style,
        };
        if !rest.is_empty() {
            spans.push(Span::styled(rest.to_owned(), style));
        }
    }
    Line::from(spans)
}

/// Puts lines on the area, one below the other.
fn put(lines: impl IntoIterator<Item = Line<'static>>, area: Rect, buffer: &mut Buffer) {
    for (at, content) in (0..area.height).zip(lines) {
        line(rows(area, at, 1), buffer, content);
    }
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
