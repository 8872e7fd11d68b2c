//! The page of keys, and notes, for example on modules without symbols.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::super::state::State;
use super::{Palette, line, rows};
use crate::escape::Escaped;

const KEYS: &[(&str, &str)] = &[
    ("q, Ctrl-C", "quit"),
    ("up down, j k", "select a call site; also PgUp, PgDn, Home, End"),
    ("enter", "show the stacks of the call site; enter or esc: back"),
    ("w", "show what holds the memory of the call site; again: search anew"),
    ("l", "show the ledger: what holds each byte of the devices"),
    ("s", "sort by bytes, count, growth, age or name in turn"),
    ("b c g a n", "sort by bytes, count, growth, age or name"),
    ("/", "show call sites with these words in a name, file, module or kind"),
    ("m", "set a mark: growth counts from now on"),
    ("d", "show changes since the mark, the largest first"),
    ("space, f", "pause or resume the view; the program keeps running"),
    (
        "tab, shift-tab",
        "show the next or the previous process; p: list all of them",
    ),
    ("esc", "go back, or clear the filter"),
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
        "The view reads the recording; w reads the memory of the process, which runs on.",
    ));
    if let Some(process) = state.process() {
        let recording = process.recording.display().to_string();
        lines.push(Line::raw(format!("recording: {}", Escaped(&recording))));
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
