//! The stacks of one call site, with the memory of each.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::super::names::Named;
use super::super::rows::{Row, StackRow};
use super::super::state::State;
use super::{Palette, panel};
use crate::text::parts::tally;
use crate::text::units::{self, plural};

/// Limits the time that drawing takes.
const MOST: usize = 200;

pub fn draw(state: &mut State, palette: &Palette, area: Rect, buffer: &mut Buffer) {
    let now = state.reading_shown().map_or(0, |reading| reading.at_ns);
    panel(state, palette, area, buffer, |state, row| {
        content(state, row, now, palette)
    });
}

fn content(state: &State, row: &Row, now_ns: u64, palette: &Palette) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    let title = [&*row.label, &*row.place].join("  ");
    let mut title = vec![Span::styled(title, palette.bold)];
    if !row.owner.is_empty() {
        title.push(Span::styled(format!("  [{}]", row.owner), palette.dim));
    }
    lines.push(Line::from(title));
    let stacks = plural(row.stacks.len() as u64, "stack", "stacks");
    let (amount, growth) = match row.object() {
        Some(kind) => (
            objects(row.now.count, kind.name()),
            units::signed_count(row.count_change()),
        ),
        None => (tally(row.now), units::signed_bytes(row.bytes_change())),
    };
    lines.push(Line::raw(format!("{amount} from {stacks}, growth {growth}")));
    for stack in row.stacks.iter().take(MOST) {
        lines.push(Line::default());
        lines.push(Line::raw(sums(stack, row.object().is_some(), now_ns)));
        if let Some(named) = state.names.get(&stack.stack) {
            frames(named, palette, &mut lines);
        }
    }
    if row.stacks.len() > MOST {
        let more = format!(
            "… and {} more stacks; culeak report --by stack shows all",
            row.stacks.len() - MOST
        );
        lines.push(Line::styled(more, palette.dim));
    }
    lines
}

/// `21 stream objects`.
pub fn objects(count: u64, kind: &str) -> String {
    let noun = if count == 1 { "object" } else { "objects" };
    format!("{} {kind} {noun}", units::count(count))
}

fn sums(stack: &StackRow, of_objects: bool, now_ns: u64) -> String {
    let change = |now: u64, before: u64| i128::from(now) - i128::from(before);
    let growth = match of_objects {
        true => match change(stack.now.count, stack.before.count) {
            0 => String::new(),
            by => format!(", growth {}", units::signed_count(by)),
        },
        false => match change(stack.now.bytes, stack.before.bytes) {
            0 => String::new(),
            by => format!(", growth {}", units::signed_bytes(by)),
        },
    };
    let age = |time_ns: u64| units::duration(now_ns.saturating_sub(time_ns));
    let ages = match stack.now.count {
        0 => String::new(),
        1 => format!(", {} old", age(stack.oldest_ns)),
        _ => format!(", oldest {}, newest {}", age(stack.oldest_ns), age(stack.newest_ns)),
    };
    match of_objects {
        true => format!("  {}{ages}{growth}", objects(stack.now.count, &stack.kinds.to_string())),
        false => format!("  {}, {}{ages}{growth}", tally(stack.now), stack.kinds),
    }
}

fn frames(named: &Named, palette: &Palette, lines: &mut Vec<Line<'static>>) {
    let shown = || named.frames.iter().filter(|frame| frame.shown);
    let widths = shown().map(|frame| Span::raw(frame.name.as_str()).width());
    let width = widths.filter(|&width| width <= 60).max().unwrap_or(0);
    for frame in shown() {
        let style = if frame.users_own { palette.plain } else { palette.dim };
        lines.push(Line::from(vec![
            Span::styled(format!("    {:width$}", frame.name), style),
            Span::styled(format!("  {}", frame.place), palette.dim),
        ]));
    }
    if named.frames.is_empty() {
        lines.push(Line::styled("    (recorded without a stack)", palette.dim));
    }
    if named.truncated && !named.frames.is_empty() {
        lines.push(Line::styled("    … (the stack was cut here)", palette.dim));
    }
}
