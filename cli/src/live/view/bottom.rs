//! The last two lines: losses, and keys.

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
        let hint = Span::styled("  (enter: apply, esc: clear)", palette.dim);
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
    line(last, buffer, Line::styled(keys.join("  "), palette.dim));
}

/// The line of losses alone.
pub fn losses_line(state: &State, palette: &Palette, area: Rect, buffer: &mut Buffer) {
    line(area, buffer, losses(state, palette));
}

/// The last error, how the program ended, and the losses that occurred.
fn losses<'a>(state: &State, palette: &Palette) -> Line<'a> {
    let problem = state.process().and_then(|process| process.problem.as_ref());
    if let Some(problem) = problem.filter(|_| state.page != Page::Processes) {
        return Line::styled(Escaped(problem).to_string(), palette.warning);
    }
    let ended = state.ended.iter().map(|ended| format!("{ended} · "));
    if state.page == Page::Processes {
        return Line::raw(state.ended.clone().unwrap_or_default());
    }
    let Some(reading) = state.reading_shown() else {
        return Line::raw("");
    };
    let sampled = reading.sample_bytes.map(|bytes| {
        format!(
            "call sites are estimates (≈) from a stack for each {} · ",
            units::bytes(bytes)
        )
    });
    let text: String = ended.chain(sampled).chain([not_recorded(reading)]).collect();
    let lost = reading.losses.lost_allocations + reading.losses.lost_stacks > 0;
    Line::styled(text, if lost { palette.warning } else { palette.dim })
}

fn not_recorded(reading: &Reading) -> String {
    let losses = &reading.losses;
    let stacks = losses.lost_stacks.saturating_add(losses.lost_python);
    let counts = [
        (losses.lost_allocations, "allocation", "allocations"),
        (stacks, "stack", "stacks"),
        (losses.unknown_frees, "unknown free", "unknown frees"),
        (
            reading.events_during_read,
            "event during the read",
            "events during the read",
        ),
    ];
    let occurred = counts.into_iter().filter(|(count, ..)| *count > 0);
    let texts: Vec<_> = occurred
        .map(|(count, one, many)| units::plural(count, one, many))
        .collect();
    match texts.as_slice() {
        [] => "not recorded: nothing lost".to_owned(),
        texts => format!("not recorded: {}", texts.join(", ")),
    }
}
