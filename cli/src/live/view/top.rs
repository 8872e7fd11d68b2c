//! The header: the process, its devices over time, the memory it holds, and the order of the list below.

use culeak::analysis::report::Tally;
use culeak::analysis::words::of_kind;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Sparkline, Widget};

use super::super::reading::{DeviceReading, Reading};
use super::super::state::{State, Watched};
use super::super::usage::Used;
use super::pages::one_row;
use super::{Palette, both_ends, line, rows};
use crate::document::counted;
use crate::escape::Escaped;
use crate::text::parts::{self, tally};
use crate::text::units::when;
use crate::text::units::{self, plural};

/// Draws the header and returns the rest of the area.
pub fn draw(state: &State, palette: &Palette, area: Rect, buffer: &mut Buffer) -> Rect {
    let mut used = 0;
    let mut next = |height: u16| {
        used += height;
        rows(area, used - height, height)
    };
    title(state, palette, next(1), buffer);
    if state.processes.len() > 1 {
        processes(state, palette, next(1), buffer);
    }
    let Some((process, reading)) = state
        .process()
        .and_then(|process| Some((process, process.reading.as_ref()?)))
    else {
        line(next(1), buffer, Line::raw(waiting(state)));
        return rows(area, used, area.height - used);
    };
    // Devices get at most a quarter of the screen: one line each, more if there is room.
    let most = usize::from(area.height / 4).max(1);
    let height = match (area.height, reading.devices.len()) {
        (40.., 0..=2) => 4,
        (40.., 3..=4) => 2,
        _ => 1,
    };
    let shown = reading.devices.len().min(most);
    for device in &reading.devices[..shown] {
        self::device(process, device, palette, next(height), buffer);
    }
    if shown < reading.devices.len() {
        let rest = Tally::total(reading.devices[shown..].iter().map(|device| device.live));
        let rest = format!("{} more GPUs  {}", reading.devices.len() - shown, tally(rest));
        line(next(1), buffer, Line::styled(rest, palette.dim));
    }
    line(next(1), buffer, sums(state, reading, palette));
    line(next(1), buffer, list(state, process, reading, palette));
    rows(area, used, area.height - used)
}

fn title(state: &State, palette: &Palette, area: Rect, buffer: &mut Buffer) {
    let mut left = vec![Span::styled("culeak:", palette.bold)];
    let mut right = Vec::new();
    if let Some(reading) = state.reading_shown() {
        left.push(Span::raw(format!(" {}", command(reading))));
        let state = reading.process.state;
        let style = if state.has_ended() { palette.bold } else { palette.plain };
        right.push(Span::styled(parts::lasted(state, reading.at_ns), style));
    }
    if state.paused {
        right.push(Span::styled("  PAUSED", palette.warning));
    }
    both_ends(area, buffer, Line::from(left), Line::from(right));
}

/// `4711 python train.py, RANK 3`.
fn command(reading: &Reading) -> String {
    let process = &reading.process;
    let words = parts::command(&process.command_line, &process.executable);
    let mut text = format!("{} {words}", process.pid);
    for (variable, value) in &process.ranks {
        text.push_str(&format!(", {} {}", Escaped(variable), Escaped(value)));
    }
    text
}

fn waiting(state: &State) -> String {
    match state.process() {
        Some(Watched {
            problem: Some(problem), ..
        }) => Escaped(problem).to_string(),
        Some(_) => "reading …".to_owned(),
        None => match &state.ended {
            Some(ended) => format!("{ended}; nothing was recorded, because no recorded process used CUDA"),
            None => Escaped(&state.waiting).to_string(),
        },
    }
}

/// The processes from the one on the screen on, which is highlighted; as many as fit.
fn processes(state: &State, palette: &Palette, area: Rect, buffer: &mut Buffer) {
    let name = |process: &Watched| match &process.reading {
        None => " … ".to_owned(),
        Some(reading) => {
            let name = crate::live::processes::name_of(&reading.process);
            let ended = if reading.finished { " (ended)" } else { "" };
            format!(" {} {}{ended} ", reading.process.pid, Escaped(&name))
        }
    };
    let heading = format!("process {} of {} ", state.chosen + 1, state.processes.len());
    let names = state.processes[state.chosen..].iter().map(name);
    let styles = [palette.selected].into_iter().chain(std::iter::repeat(palette.plain));
    let names = names.zip(styles).map(|(name, style)| Span::styled(name, style));
    let spans = [Span::styled(heading, palette.dim)].into_iter().chain(names);
    line(area, buffer, spans.collect::<Vec<_>>().into());
}

/// A device's live memory, its peak, and the course of both.
fn device(process: &Watched, device: &DeviceReading, palette: &Palette, area: Rect, buffer: &mut Buffer) {
    let wide = area.width >= 100;
    let name = when(wide, || format!("  {}", Escaped(&device.name)));
    let used = match process.used.get(&device.ordinal) {
        Some(used) if wide => format!("  {} of {} used", units::bytes(used.bytes), units::bytes(used.of)),
        Some(used) if area.width >= 60 => format!("  {:>3} % full", percent(used)),
        _ => String::new(),
    };
    // Not known of a process that was never recorded.
    let peak = match device.peak_bytes {
        0 if device.live.bytes > 0 => String::new(),
        peak => format!("  {:>9} peak", units::bytes(peak)),
    };
    let text = format!(
        "GPU {}{name}  {:>9} now{peak}{used}  ",
        device.ordinal,
        units::bytes(device.live.bytes)
    );
    let left = (text.chars().count() as u16).min(area.width);
    let content = Line::from(vec![Span::raw(text)]);
    buffer.set_line(area.x, area.y, &content, left);
    let chart = Rect {
        x: area.x + left,
        width: area.width - left,
        ..area
    };
    let Some(history) = process.histories.get(&device.ordinal) else {
        return;
    };
    let columns = history.columns(usize::from(chart.width));
    // Full height is the exact peak, even if it fell between two readings.
    Sparkline::default()
        .data(columns)
        .max(device.peak_bytes.max(device.live.bytes))
        .style(palette.line)
        .render(chart, buffer);
}

fn percent(used: &Used) -> u128 {
    u128::from(used.bytes) * 100 / u128::from(used.of.max(1))
}

/// The held memory, in the report's terms.
fn sums(state: &State, reading: &Reading, palette: &Palette) -> Line<'static> {
    let rows = &state.rows;
    let of_pools = rows.opaque_pools.iter().map(|pool| {
        let how = pool.remedy.iter().map(|remedy| format!(" (record with {remedy})"));
        let (size, host) = (
            units::bytes(pool.tally.bytes),
            if pool.on_host { " on host" } else { "" },
        );
        format!(
            "{size} in {}'s pool{host}: use unknown{}",
            pool.owner,
            how.collect::<String>()
        )
    });
    let of_pools = of_pools.collect::<Vec<_>>().join(", ");
    let (word, style) = match reading.finished {
        true if rows.held.count > 0 => ("leaked ", palette.bad),
        // Nothing else is known.
        _ if rows.held.count == 0 && !of_pools.is_empty() => ("", palette.warning),
        true => ("nothing leaked", palette.good),
        false if rows.held.count > 0 => ("holds ", palette.bold),
        false => ("nothing held", palette.bold),
    };
    let mut spans = vec![Span::styled(word, style)];
    if rows.held.count > 0 {
        let sites = counted(rows.sites as u64, one_row(state));
        spans.push(Span::styled(format!("{} at {sites}", tally(rows.held)), style));
    }
    if rows.held_on_host.count > 0 {
        let on_host = units::bytes(rows.held_on_host.bytes);
        spans.push(Span::raw(format!(" ({on_host} on host)")));
    }
    if !of_pools.is_empty() {
        let comma = if rows.held.count > 0 { ", " } else { "" };
        spans.push(Span::styled(format!("{comma}{of_pools}"), palette.warning));
    }
    let opaque = rows.opaque_pools.iter().map(|pool| pool.tally.bytes);
    let known = opaque.fold(rows.cached.bytes, u64::saturating_sub);
    if known > 0 {
        spans.push(Span::raw(format!(", {} in pools", units::bytes(known))));
    }
    if reading.failed.count > 0 {
        let failed = plural(reading.failed.count, "call", "calls");
        spans.push(Span::styled(format!(", {failed} failed"), palette.warning));
    }
    let objects: Vec<String> = (reading.objects.iter().take(3))
        .map(|&(kind, count)| of_kind(count, kind.name()))
        .collect();
    if rows.held.count == 0 {
        let made = plural(reading.allocated, "allocation", "allocations");
        spans.push(Span::raw(format!(": {made}, {} freed", units::count(reading.freed))));
    }
    if !objects.is_empty() {
        let more = if reading.objects.len() > objects.len() {
            " …"
        } else {
            ""
        };
        spans.push(Span::raw(format!(" · {}{more}", objects.join(", "))));
    }
    Line::from(spans)
}

/// The order of the list, what growth is measured from, and the filter.
fn list(state: &State, process: &Watched, reading: &Reading, palette: &Palette) -> Line<'static> {
    let mut parts = vec![format!("by {}", state.sort.name())];
    if let Some(mark) = &process.mark {
        let since = if mark.set { "the mark" } else { "the view started" };
        let ago = match reading.at_ns.saturating_sub(mark.at_ns) {
            0 => "just now".to_owned(),
            ns => format!("{} ago", units::duration(ns)),
        };
        parts.push(match state.diff {
            true => format!("changes since {since}, {ago}"),
            false => format!("growth since {since}, {ago}"),
        });
    }
    if !state.filter.is_empty() {
        let shown = format!("{} of {}", state.shown.len(), state.rows.rows.len());
        parts.push(format!("filter {:?}: {shown}", Escaped(&state.filter).to_string()));
    }
    if state.rows.unnamed > 0 {
        let stacks = plural(state.rows.unnamed as u64, "stack", "stacks");
        let bytes = units::bytes(state.rows.unnamed_tally.bytes);
        parts.push(format!("looking up names of {stacks} with {bytes}"));
    }
    Line::styled(parts.join(" · "), palette.dim)
}
