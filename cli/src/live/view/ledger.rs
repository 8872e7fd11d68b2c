//! The ledger of the process: what holds each byte of its devices.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::super::ledger::{Answer, Device};
use super::super::state::State;
use super::{Palette, line, rows, wrapped};
use crate::document::cells::balance;
use crate::escape::Escaped;
use crate::text::ledger::EntryOf;
use crate::text::units;

/// Parts of a line.
const DETAILS: usize = 3;

pub fn draw(state: &mut State, palette: &Palette, area: Rect, buffer: &mut Buffer) {
    let lines = content(state, usize::from(area.width), palette);
    state.room = usize::from(area.height);
    state.offset = state.offset.min(lines.len().saturating_sub(state.room));
    for (at, content) in (0..area.height).zip(lines.into_iter().skip(state.offset)) {
        line(rows(area, at, 1), buffer, content);
    }
}

fn content(state: &State, width: usize, palette: &Palette) -> Vec<Line<'static>> {
    let Some(process) = state.process() else {
        return Vec::new();
    };
    let mut lines = Vec::new();
    match &process.ledger.answer {
        None => lines.push(Line::styled("adding up the ledger …", palette.line)),
        Some(Err(problem)) => {
            let parts = wrapped(&Escaped(problem).to_string(), width);
            lines.extend(parts.into_iter().map(|part| Line::styled(part, palette.warning)));
        }
        Some(Ok(answer)) => of_answer(answer, state, width, palette, &mut lines),
    }
    lines
}

fn of_answer(answer: &Answer, state: &State, width: usize, palette: &Palette, lines: &mut Vec<Line<'static>>) {
    for device in &answer.devices {
        let parts = wrapped(&device.title, width);
        lines.extend(parts.into_iter().map(|part| Line::styled(part, palette.bold)));
        of_device(device, width, palette, lines);
    }
    for (name, text) in &answer.beside {
        let parts = wrapped(&format!("{name}  {text}"), width);
        lines.extend(parts.into_iter().map(Line::raw));
    }
    if answer.devices.is_empty() {
        lines.push(Line::raw("nothing is known of any device yet"));
    }
    let now = state.reading_shown().map_or(0, |reading| reading.at_ns);
    let ago = units::duration(now.saturating_sub(answer.at_ns));
    let missing = answer
        .missing
        .as_ref()
        .map(|why| format!("without the driver's figures: {}", Escaped(why)));
    for text in missing.into_iter().chain([format!("read {ago} ago")]) {
        let parts = wrapped(&text, width);
        lines.extend(parts.into_iter().map(|part| Line::styled(part, palette.dim)));
    }
}

fn of_device(device: &Device, width: usize, palette: &Palette, lines: &mut Vec<Line<'static>>) {
    let sizes: Vec<String> = device.entries.iter().map(|entry| balance(entry.bytes)).collect();
    let size_width = sizes.iter().map(|size| size.chars().count()).max().unwrap_or(0);
    let indent = size_width + 4;
    for (entry, size) in device.entries.iter().zip(&sizes) {
        let (sign, style) = match entry.of {
            EntryOf::Process => ("= ", palette.bold),
            EntryOf::Rest => ("  ", palette.warning),
            _ => ("  ", palette.bold),
        };
        let mut parts = wrapped(&entry.text, width.saturating_sub(indent)).into_iter();
        lines.push(Line::from(vec![
            Span::raw(sign),
            Span::styled(format!("{size:>size_width$}"), style),
            Span::raw(format!("  {}", parts.next().unwrap_or_default())),
        ]));
        lines.extend(parts.map(|part| Line::raw(format!("{:indent$}{part}", ""))));
        for (bytes, text) in entry.details.iter().take(DETAILS) {
            let text = format!("{:indent$}  {}  {text}", "", units::bytes(*bytes));
            lines.push(Line::styled(text, palette.dim));
        }
    }
}
