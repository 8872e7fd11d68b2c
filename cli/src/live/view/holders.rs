//! What holds the memory of one call site.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::super::holders::Answer;
use super::super::rows::Row;
use super::super::state::State;
use super::stacks::objects;
use super::{Palette, panel, wrapped};
use crate::escape::Escaped;
use crate::text::parts::tally;
use crate::text::units;
use crate::text::why::holder_text;

/// Limits the time that drawing takes.
const MOST: usize = 200;

pub fn draw(state: &mut State, palette: &Palette, area: Rect, buffer: &mut Buffer) {
    let width = usize::from(area.width);
    panel(state, palette, area, buffer, |state, row| {
        content(state, row, width, palette)
    });
}

fn content(state: &State, row: &Row, width: usize, palette: &Palette) -> Vec<Line<'static>> {
    let title = [&*row.label, &*row.place].join("  ");
    if let Some(kind) = row.object() {
        let what = format!(
            "{}: what holds objects without an address is not searched for",
            objects(row.now.count, kind.name())
        );
        let mut lines = vec![Line::styled(title, palette.bold)];
        lines.extend(wrapped(&what, width).into_iter().map(Line::raw));
        return lines;
    }
    let mut lines = vec![Line::styled(title, palette.bold), Line::raw(tally(row.now))];
    let Some(search) = state.process().map(|process| &process.holders) else {
        return lines;
    };
    if search.searching {
        let text = "searching the memory of the process, which keeps running …";
        lines.push(Line::styled(text, palette.line));
    }
    match &search.answer {
        None => {}
        Some(Err(problem)) => {
            for part in wrapped(&Escaped(problem).to_string(), width) {
                lines.push(Line::styled(part, palette.warning));
            }
        }
        Some(Ok(answer)) => of_answer(answer, state, row, width, palette, &mut lines),
    }
    lines
}

fn of_answer(
    answer: &Answer,
    state: &State,
    row: &Row,
    width: usize,
    palette: &Palette,
    lines: &mut Vec<Line<'static>>,
) {
    let now = state.reading_shown().map_or(0, |reading| reading.at_ns);
    let ago = units::duration(now.saturating_sub(answer.at_ns));
    let took = units::duration(answer.took_ns);
    lines.push(Line::styled(
        format!("searched {ago} ago, in {took}; w searches again"),
        palette.dim,
    ));
    let site = answer.sites.iter().find(|site| site.site_fingerprint == row.key.0);
    match site {
        None => lines.push(Line::raw("the call site held nothing then")),
        Some(site) => {
            for holder in site.holders.iter().take(MOST) {
                lines.push(Line::default());
                lines.push(Line::from(vec![
                    Span::styled(units::bytes(holder.tally.bytes), palette.bold),
                    Span::raw(format!(
                        " in {} held by",
                        units::plural(holder.tally.count, "block", "blocks")
                    )),
                ]));
                let parts = wrapped(&holder_text(holder), width.saturating_sub(2));
                lines.extend(parts.into_iter().map(|part| Line::raw(format!("  {part}"))));
            }
            if site.not_searched.count > 0 {
                lines.push(Line::default());
                lines.push(Line::styled(
                    format!("{} without an answer", tally(site.not_searched)),
                    palette.dim,
                ));
            }
        }
    }
    for limit in &answer.limits {
        for part in wrapped(&format!("not searched: {}", Escaped(limit)), width) {
            lines.push(Line::styled(part, palette.dim));
        }
    }
}
