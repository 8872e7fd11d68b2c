//! Draws the state: the process, its devices over time, a page, and the keys. All of it is documents, shown as lines that fit.
//!
//! ```text
//! culeak: 4711 python train.py                                running for 2 m 14 s     head
//! GPU 0  1.2 GiB now  1.9 GiB peak   ▁▂▃▅▇▇█▇▇▆▆▆▅▅▅▅
//! holds 1.2 GiB in 128 blocks at 3 call sites
//! by bytes · growth since the mark, 38 s ago
//!  bytes  count    growth  oldest  call site                                            page
//! 200 MiB   100  +100 MiB    25 s  load_batch  train.cu:14
//! not recorded: 3 unknown frees                                                         foot
//! q quit  ? help  enter stacks  / filter  m mark  d diff  space pause
//! ```
//!
//! Drawing changes nothing but the offset and the number of rows that fit, which is the step of PgUp and PgDn. No
//! information is given by colour alone. Deliberately absent: terms that the report does not use.

mod pages;

use anstyle::{AnsiColor, Style};
use culeak::analysis::program::Program;
use culeak::analysis::words::of_kind;
use culeak::snapshot::Process;

use super::reading::{Device, Reading};
use super::state::{Page, State, Watched};
use crate::document::chart::character;
use crate::document::columns::{first, padded, width, with_available};
use crate::document::wrap::wrapped;
use crate::document::{BAD, BOLD, GOOD, Text, WARN, bold, counted, dim, styled};
use crate::escape::Escaped;
use crate::text::parts::{self, tally};
use crate::text::units::{self, plural, when};

/// Wider screens show kinds, the growth of counts, and names of devices.
const WIDE: usize = 100;
/// The smallest terminal that has room for rows with numbers: columns and rows.
const LEAST: [usize; 2] = [40, 10];

const CHART: Style = AnsiColor::Cyan.on_default();
const SELECTED: Style = Style::new().invert();

/// The lines of a screen, with escape sequences for styles.
pub fn screen(state: &mut State, [columns, rows]: [usize; 2], colours: bool) -> Vec<String> {
    if columns < LEAST[0] || rows < LEAST[1] {
        let text = format!(
            "culeak live needs {} columns and {} rows; this terminal has {columns} and {rows}. Make it larger, or press q to quit.",
            LEAST[0], LEAST[1]
        );
        let lines = wrapped(&text, columns);
        return lines
            .lines()
            .take(rows)
            .map(|line| first(line, columns).to_owned())
            .collect();
    }
    let cut = |line: Text| line.cut(columns).ansi(colours);
    let mut screen: Vec<String> = Vec::with_capacity(rows);
    let foot = match state.page {
        Page::Processes => state.ended.as_deref().unwrap_or_default().into(),
        _ => {
            let head = head(state, columns, (rows / 4).max(1));
            screen.extend(head.into_iter().map(cut));
            losses(state)
        }
    };
    let room = rows.saturating_sub(screen.len() + 2);
    screen.truncate(rows - 2);
    let middle = with_available(columns, || middle(state, room, columns));
    match middle {
        Middle::List(lines, selected) => {
            let line = |(nth, line): (usize, Text)| match selected == Some(nth) {
                true => format!(
                    "{SELECTED}{}{SELECTED:#}",
                    padded(&line.cut(columns).to_string(), columns)
                ),
                false => cut(line),
            };
            screen.extend(lines.into_iter().enumerate().take(room).map(line));
        }
        Middle::Text(lines) => {
            let lines = lines.iter().map(|line| line.ansi(colours));
            let lines: Vec<String> = lines
                .flat_map(|line| {
                    wrapped(&line, columns)
                        .split('\n')
                        .map(str::to_owned)
                        .collect::<Vec<_>>()
                })
                .collect();
            state.room = room;
            state.offset = state.offset.min(lines.len().saturating_sub(room));
            screen.extend(lines.into_iter().skip(state.offset).take(room));
        }
    }
    screen.resize(rows - 2, String::new());
    let keys = match state.filtering {
        true => bold(format!("filter: {}▏", state.filter)) + dim("  (enter: apply, esc: clear)"),
        false => dim(keys(state)),
    };
    screen.extend([foot, keys].map(cut));
    screen
}

enum Middle {
    /// Lines that are cut where they do not fit, and the selected one.
    List(Vec<Text>, Option<usize>),
    /// Lines that continue below, scrolled.
    Text(Vec<Text>),
}

/// What stands between the head and the foot, in `room` lines.
fn middle(state: &mut State, room: usize, columns: usize) -> Middle {
    match state.page {
        Page::Sites => {
            let (from, to) = window(state, state.selected_place(), state.shown.len(), room.saturating_sub(1));
            let page = pages::sites(state, from..to, columns >= WIDE);
            let selected = (from < to).then(|| 1 + state.selected_place() - from);
            Middle::List(page.lines(), selected)
        }
        Page::Processes => {
            let order = state.in_order();
            let at = order.iter().position(|&nth| nth == state.in_list).unwrap_or(0);
            let (from, to) = window(state, at, order.len(), room.saturating_sub(3));
            let is_set = |process: &Watched| process.mark.as_ref().is_some_and(|mark| mark.set);
            let is_set = state.processes.iter().any(is_set);
            let mut page = pages::sum_of_processes(&state.processes.iter().collect::<Vec<_>>());
            page.line(dim(format!(
                "by {} · growth since {}",
                state.order.name(),
                since(is_set)
            )));
            let shown: Vec<&Watched> = order[from..to].iter().map(|&nth| &state.processes[nth]).collect();
            page.append(pages::processes(&shown));
            Middle::List(page.lines(), (from < to).then(|| 3 + at - from))
        }
        Page::Stacks => Middle::Text(pages::of_selected(state, pages::stacks).lines()),
        Page::Holders => Middle::Text(pages::of_selected(state, pages::holders).lines()),
        Page::Ledger => {
            let ledger = state.reading().map(|reading| reading.ledger_now());
            Middle::Text(ledger.unwrap_or_default().lines())
        }
        Page::Help => Middle::Text(pages::help(state).lines()),
    }
}

/// The rows of a list that are on the screen: the selected one is among them.
fn window(state: &mut State, selected: usize, count: usize, room: usize) -> (usize, usize) {
    state.room = room;
    state.offset = state.offset.clamp((selected + 1).saturating_sub(room.max(1)), selected);
    state.offset = state.offset.min(count.saturating_sub(room));
    (state.offset, count.min(state.offset + room))
}

fn since(is_set: bool) -> &'static str {
    if is_set { "the mark" } else { "the view started" }
}

fn keys(state: &State) -> String {
    let mut keys = match state.page {
        Page::Sites => "q quit  ? help  enter stacks  / filter  w why  m mark  d diff",
        Page::Processes => "q quit  ? help  enter open  s sort  m mark",
        Page::Stacks => "q quit  ? help  esc back  up/down scroll  m mark",
        Page::Holders => "q quit  ? help  esc back  up/down scroll  w search again",
        Page::Ledger => "q quit  ? help  esc back  up/down scroll",
        Page::Help => "q quit  esc back",
    }
    .to_owned();
    keys += if state.paused {
        "  space resume"
    } else {
        "  space pause"
    };
    match state.processes.len() > 1 && state.page != Page::Processes {
        true => keys.replacen("  ? help", "  ? help  tab process", 1),
        false => keys,
    }
}

/// The list of processes as plain text.
pub fn list_as_text(states: &[State], width: usize) -> String {
    let all: Vec<&Watched> = states.iter().flat_map(|state| &state.processes).collect();
    let mut page = pages::sum_of_processes(&all);
    page.append(pages::processes(&all));
    with_available(width, || page.plain())
}

/// The head, all call sites and the losses as text.
pub fn as_text(state: &State, width: usize) -> String {
    let width = width.max(LEAST[0]);
    let head = head(state, width, usize::MAX).into_iter();
    let head: String = head
        .map(|line| format!("{}\n", line.cut(width).to_string().trim_end()))
        .collect();
    let mut page = pages::sites(state, 0..state.shown.len(), width >= WIDE);
    page.line(losses(state));
    head + &with_available(width, || page.plain())
}

/// The lines above the page: the process, its devices over time, the memory that it holds, and the order of the list. Of more
/// devices than `most`, the rest is one line.
fn head(state: &State, columns: usize, most: usize) -> Vec<Text> {
    let mut lines = vec![title(state, columns)];
    if state.processes.len() > 1 {
        lines.push(processes(state));
    }
    let process = state.process();
    let Some((process, reading)) = process.and_then(|process| Some((process, process.reading.as_ref()?))) else {
        lines.push(waiting(state).into());
        return lines;
    };
    let (shown, rest) = reading.devices.split_at(most.min(reading.devices.len()));
    lines.extend(shown.iter().map(|of| device(process, of, columns)));
    if !rest.is_empty() {
        let sum = tally(culeak::analysis::report::Tally::total(
            rest.iter().map(|device| device.live),
        ));
        lines.push(dim(format!("{} more GPUs  {sum}", rest.len())));
    }
    lines.push(sums(reading));
    lines.push(list(state, process, reading));
    lines
}

fn title(state: &State, columns: usize) -> Text {
    let (mut left, mut right) = (bold("culeak:"), Text::default());
    if let Some(reading) = state.reading() {
        let process = &reading.process;
        let words = parts::command(&process.command_line, &process.executable);
        let ranks = process
            .ranks
            .iter()
            .map(|(variable, value)| format!(", {variable} {value}"));
        left = left + format!(" {} {words}{}", process.pid, ranks.collect::<String>());
        let style = if process.state.has_ended() { BOLD } else { Style::new() };
        right = styled(style, parts::lasted(process.state, reading.at_ns));
    }
    if state.paused {
        right = right + styled(WARN, "  PAUSED");
    }
    let end = width(&right.to_string());
    let left = left.cut(columns.saturating_sub(end + 2));
    let gap = columns.saturating_sub(width(&left.to_string()) + end);
    left + " ".repeat(gap) + right
}

fn waiting(state: &State) -> String {
    match (state.process(), &state.ended) {
        (Some(process), _) => process.problem.clone().unwrap_or_else(|| "reading …".to_owned()),
        (None, Some(ended)) => format!("{ended}; nothing was recorded, because no recorded process used CUDA"),
        (None, None) => state.waiting.clone(),
    }
}

/// What a process is called: its script, or its executable.
fn name_of(process: &Process) -> String {
    let program = Program::of_process(process);
    program.script.unwrap_or(program.executable)
}

/// The processes from the one on the screen on, which is highlighted.
fn processes(state: &State) -> Text {
    let heading = dim(format!("process {} of {} ", state.chosen + 1, state.processes.len()));
    let name = |process: &Watched| match &process.reading {
        None => " … ".to_owned(),
        Some(reading) => {
            let ended = if reading.finished { " (ended)" } else { "" };
            format!(" {} {}{ended} ", reading.process.pid, name_of(&reading.process))
        }
    };
    let (chosen, others) = state.processes[state.chosen..].split_at(1);
    let line = heading + styled(SELECTED, name(&chosen[0]));
    others.iter().fold(line, |line, process| line + name(process))
}

/// A device's live memory, its peak, and the course of both.
fn device(process: &Watched, device: &Device, columns: usize) -> Text {
    let wide = columns >= WIDE;
    let name = when(wide, || format!("  {}", Escaped(&device.name)));
    let used = match device.used {
        Some([used, all]) if wide => format!("  {} of {} used", units::bytes(used), units::bytes(all)),
        Some([used, all]) if columns >= 60 => {
            format!("  {:>3} % full", u128::from(used) * 100 / u128::from(all.max(1)))
        }
        _ => String::new(),
    };
    // Not known of a process that was never recorded.
    let peak = match device.peak_bytes {
        0 if device.live.bytes > 0 => String::new(),
        peak => format!("  {:>9} peak", units::bytes(peak)),
    };
    let now = units::bytes(device.live.bytes);
    let text = format!("GPU {}{name}  {now:>9} now{peak}{used}  ", device.ordinal);
    // Full height is the exact peak, even if it fell between two readings.
    let most = device.peak_bytes.max(device.live.bytes);
    let values = process
        .histories
        .get(&device.ordinal)
        .map(|history| history.columns(columns.saturating_sub(width(&text))));
    let chart = values
        .into_iter()
        .flatten()
        .map(|value| character(value.min(most), most));
    Text::from(text) + styled(CHART, chart.collect::<String>())
}

/// The held memory, in the report's terms.
fn sums(reading: &Reading) -> Text {
    let (totals, held) = (&reading.totals, reading.totals.held.total());
    let pools = reading.opaque_pools.iter().map(|pool| {
        let how = pool.remedy.iter().map(|remedy| format!(" (record with {remedy})"));
        let size = units::bytes(pool.tally.bytes);
        let host = if pool.on_host { " on host" } else { "" };
        format!(
            "{size} in {}'s pool{host}: use unknown{}",
            pool.owner,
            how.collect::<String>()
        )
    });
    let pools: Vec<String> = pools.collect();
    let all = format!("{} at {}", tally(held), counted(totals.call_sites, reading.noun()));
    let mut line = match (reading.finished, held.count > 0) {
        (true, true) => styled(BAD, format!("leaked {all}")),
        (false, true) => bold(format!("holds {all}")),
        // Nothing else is known.
        _ if !pools.is_empty() => Text::default(),
        (true, false) => styled(GOOD, "nothing leaked"),
        (false, false) => bold("nothing held"),
    };
    if totals.held.host.count > 0 {
        line = line + format!(" ({} on host)", units::bytes(totals.held.host.bytes));
    }
    if !pools.is_empty() {
        let comma = if held.count > 0 { ", " } else { "" };
        line = line + styled(WARN, format!("{comma}{}", pools.join(", ")));
    }
    let opaque = reading.opaque_pools.iter().map(|pool| pool.tally.bytes);
    let known = opaque.fold(totals.pool.bytes, u64::saturating_sub);
    line = line + units::unless_zero(known, |known| format!(", {} in pools", units::bytes(known)));
    if totals.failed.count > 0 {
        let failed = plural(totals.failed.count, "call", "calls");
        line = line + styled(WARN, format!(", {failed} failed"));
    }
    if held.count == 0 {
        let made = plural(totals.allocated, "allocation", "allocations");
        line = line + format!(": {made}, {} freed", units::count(totals.freed));
    }
    let objects = reading.objects.iter().filter(|(_, count)| *count > 0);
    let objects: Vec<String> = objects.map(|&(kind, count)| of_kind(count, kind)).collect();
    match objects.as_slice() {
        [] => line,
        [a, b, c, _, ..] => line + format!(" · {a}, {b}, {c} …"),
        few => line + format!(" · {}", few.join(", ")),
    }
}

/// The order of the list, what growth is measured from, and the filter.
fn list(state: &State, process: &Watched, reading: &Reading) -> Text {
    let mut parts = vec![format!("by {}", state.sort.name())];
    if let Some(mark) = &process.mark {
        let ago = match reading.at_ns.saturating_sub(mark.reading.at_ns) {
            0 => "just now".to_owned(),
            ns => format!("{} ago", units::duration(ns)),
        };
        let what = if state.diff { "changes" } else { "growth" };
        parts.push(format!("{what} since {}, {ago}", since(mark.set)));
    }
    if !state.filter.is_empty() {
        let filter = Escaped(&state.filter).to_string();
        parts.push(format!("filter {filter:?}: {} of {}", state.shown.len(), state.all));
    }
    dim(parts.join(" · "))
}

/// The last error, how the program ended, and the losses that occurred.
fn losses(state: &State) -> Text {
    if let Some(problem) = state.process().and_then(|process| process.problem.as_ref()) {
        return styled(WARN, problem);
    }
    let ended = state
        .ended
        .iter()
        .map(|ended| format!("{ended} · "))
        .collect::<String>();
    let losses = state.reading().map(|reading| reading.losses.clone());
    losses.map_or_else(Text::default, |losses| dim(ended) + losses)
}

#[cfg(test)]
mod tests;
