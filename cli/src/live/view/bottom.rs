//! The last two lines: what could not be seen, and the keys.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::super::reading::Reading;
use super::super::state::{Page, State};
use super::{Palette, line, rows};
use crate::escape::Escaped;
use crate::text::units;

pub fn draw(state: &State, palette: &Palette, area: Rect, buffer: &mut Buffer) {
    line(rows(area, 0, 1), buffer, losses(state, palette));
    let last = rows(area, 1, 1);
    if state.filtering {
        let typed = format!("filter: {}", Escaped(&state.filter));
        let hint = Span::styled("  (enter: keep, esc: drop)", palette.dim);
        line(
            last,
            buffer,
            Line::from(vec![Span::styled(typed + "▏", palette.bold), hint]),
        );
        return;
    }
    let mut keys = match state.page {
        Page::Sites => vec![
            "q quit",
            "? help",
            "enter stacks",
            "/ filter",
            "s sort",
            "m mark",
            "d diff",
        ],
        Page::Stacks => vec!["q quit", "? help", "esc back", "up/down scroll", "m mark"],
        Page::Help => vec!["q quit", "esc back"],
    };
    keys.push(if state.paused { "space go on" } else { "space freeze" });
    if state.processes.len() > 1 {
        keys.insert(2, "tab process");
    }
    line(last, buffer, Line::styled(keys.join("  "), palette.dim));
}

/// The first of the two alone.
pub fn not_seen_line(state: &State, palette: &Palette, area: Rect, buffer: &mut Buffer) {
    line(area, buffer, losses(state, palette));
}

/// Zero is shown as zero.
fn losses<'a>(state: &State, palette: &Palette) -> Line<'a> {
    if let Some(problem) = state.process().and_then(|process| process.problem.as_ref()) {
        return Line::styled(Escaped(problem).to_string(), palette.warning);
    }
    let ended = state.ended.iter().map(|ended| format!("{ended} · "));
    let Some(reading) = state.reading_shown() else {
        return Line::raw("");
    };
    let text: String = ended.chain([not_seen(reading)]).collect();
    let lost = reading.losses.lost_allocations + reading.losses.lost_stacks > 0;
    Line::styled(text, if lost { palette.warning } else { palette.dim })
}

fn not_seen(reading: &Reading) -> String {
    let losses = &reading.losses;
    let count = units::plural;
    format!(
        "not seen: lost {}, {}; {}, {} in the read",
        count(losses.lost_allocations, "allocation", "allocations"),
        count(losses.lost_stacks.saturating_add(losses.lost_python), "stack", "stacks"),
        count(losses.unknown_frees, "unknown free", "unknown frees"),
        count(reading.events_during_read, "event", "events"),
    )
}
