//! The page of keys, and notes on what could not be found out.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::super::state::State;
use super::{Palette, line, rows};
use crate::escape::Escaped;

const KEYS: &[(&str, &str)] = &[
    ("q, Ctrl-C", "quit"),
    ("up down, j k", "another call site; PgUp, PgDn, Home, End: further"),
    ("enter", "the stacks of a call site; enter or esc: back"),
    ("s", "sort by the next of bytes, count, growth, age, name"),
    ("b c g a n", "sort by this one at once"),
    (
        "/",
        "show only call sites with these words in a name, file, module or kind",
    ),
    ("m", "mark: growth counts from now on"),
    ("d", "only what changed since the mark, the largest change first"),
    ("space, f", "freeze the view; the program goes on"),
    ("tab, shift-tab", "the next process, the one before"),
    ("esc", "back, and drop the filter"),
    ("Ctrl-Z, Ctrl-L", "suspend the view; redraw it"),
];

pub fn draw(state: &mut State, palette: &Palette, area: Rect, buffer: &mut Buffer) {
    let mut lines: Vec<Line> = KEYS
        .iter()
        .map(|(key, what)| {
            Line::from(vec![
                Span::styled(format!("{key:>14}"), palette.bold),
                Span::raw(format!("  {what}")),
            ])
        })
        .collect();
    lines.push(Line::default());
    lines.push(Line::raw(
        "The process is not stopped or touched: the view reads its recording.",
    ));
    if let Some(process) = state.process() {
        let recording = process.recording.display().to_string();
        lines.push(Line::raw(format!("It is {}", Escaped(&recording))));
    }
    for note in &state.notes {
        lines.push(Line::styled(format!("note: {}", Escaped(note)), palette.dim));
    }
    state.room = usize::from(area.height);
    state.offset = state.offset.min(lines.len().saturating_sub(state.room));
    for (at, content) in (0..area.height).zip(lines.into_iter().skip(state.offset)) {
        line(rows(area, at, 1), buffer, content);
    }
}
