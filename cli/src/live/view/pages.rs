//! What stands below the head, as documents: tables, stacks, holders and the keys.

use std::ops::Range;

use culeak::analysis::job::identity::rank_of;

use super::super::state::{Line, State, Watched};
use super::name_of;
use crate::document::{BOLD, Cell, Document, Rows, Site, WARN, bold, counted, dim, styled};
use crate::escape::Escaped;
use crate::text::diff::{state as change, style_of};
use crate::text::parts::{about, ages, size_about, tally};
use crate::text::units;
use crate::text::why::write_holders;

/// The most holders of a call site.
const MOST: usize = 200;

/// The call sites at these places of the list, one line each, or why there is none. `wide`: with their kinds.
pub fn sites(state: &State, places: Range<usize>, wide: bool) -> Document {
    let Some(reading) = state.reading() else {
        return Document::default();
    };
    let noun = reading.noun();
    let bytes = |line: &&Line| match line.row.site.object {
        Some(_) => Cell::Number("-".to_owned()),
        None => size_about(line.of.after.bytes, line.row.is_estimate),
    };
    let oldest = |line: &&Line| match line.of.after.count {
        0 => Cell::Number(String::new()),
        _ => Cell::Time(reading.at_ns.saturating_sub(line.row.oldest_ns)),
    };
    let rows = Rows::of(&state.shown[places])
        .indent(0)
        .column_if(state.diff, "", |line| {
            let (word, style) = change(line.state());
            styled(style, word)
        })
        .column("bytes", bytes)
        .column("count", |line| match line.row.is_estimate {
            true => Cell::Number(format!("{}{}", about(true), units::count(line.of.after.count))),
            false => Cell::Count(line.of.after.count),
        })
        .expendable(2)
        .column("growth", |line| {
            let (by, text) = growth(line);
            Cell::Number(if by == 0 { String::new() } else { text }).styled(style_of(by))
        })
        .column_if(wide, "+count", |line| match line.of.count() {
            0 => Cell::Number(String::new()),
            by => Cell::Number(units::signed_count(by)).styled(style_of(by)),
        })
        // Not known of a process that was never recorded.
        .column_if(!state.diff && noun != "holder", "oldest", oldest)
        .rank("oldest", 3)
        .column(noun, |line| site(line, wide));
    let mut page = Document::default();
    page.table(rows);
    if state.shown.is_empty() {
        page.item(dim(match state.all {
            0 => "no live memory",
            _ if !state.filter.is_empty() => "no call site matches the filter; press esc to clear it",
            _ => "nothing changed",
        }));
    }
    page
}

/// By how much a row has grown since the mark: objects have counts and no bytes.
fn growth(line: &Line) -> (i128, String) {
    match line.row.site.object {
        Some(_) => (line.of.count(), units::signed_count(line.of.count())),
        None => {
            let by = units::signed_bytes(line.of.bytes());
            (line.of.bytes(), format!("{}{by}", about(line.row.is_estimate)))
        }
    }
}

/// The kind tells the rows of objects of one call site apart.
fn site(line: &Line, wide: bool) -> Site {
    let site = &line.row.site;
    let kinds = match site.object {
        Some(kind) => format!("  {kind}"),
        None if wide => format!("  {}", site.kinds.join(", ")),
        None => String::new(),
    };
    Site {
        // It is without parameters already; a holder is no function.
        name: Escaped(&site.label).to_string(),
        ..Site::at("", site.place.as_deref(), line.row.mark() + &kinds)
    }
}

/// The page of the selected call site.
pub fn of_selected(state: &State, write: impl FnOnce(&State, &Line, &mut Document)) -> Document {
    let mut page = Document::default();
    let line = state.shown.get(state.selected_place());
    match line.filter(|line| Some(line.row.key) == state.selected) {
        Some(line) => {
            let site = site(line, false);
            page.line(bold(format!("{}  {}", site.name, site.place)) + dim(site.mark));
            write(state, line, &mut page);
        }
        None => page.item(dim("this call site has no live memory any more; press esc to go back")),
    }
    page
}

/// `2 MiB in 1 block, device`; `21 stream objects`.
fn amount(line: &Line) -> String {
    let (after, site) = (line.of.after, &line.row.site);
    match site.object {
        Some(kind) => counted(after.count, &format!("{kind} object")),
        None => format!(
            "{}{}, {}",
            about(line.row.is_estimate),
            tally(after),
            site.kinds.join(", ")
        ),
    }
}

pub fn stacks(state: &State, line: &Line, page: &mut Document) {
    let (row, reading) = (&line.row, state.reading());
    let age = |time_ns: u64| reading.map_or(0, |reading| reading.at_ns.saturating_sub(time_ns));
    let is_recorded = reading.is_some_and(|reading| reading.noun() != "holder");
    let ages = match is_recorded && line.of.after.count > 0 {
        true => format!(
            ", {}",
            ages(line.of.after.count, age(row.oldest_ns), age(row.newest_ns))
        ),
        false => String::new(),
    };
    let stacks = counted(row.stacks_in_all, "stack");
    page.line(format!(
        "{}{ages}, growth {}, from {stacks}",
        amount(line),
        growth(line).1
    ));
    for stack in &row.stacks {
        let before = line.before.iter().flat_map(|row| &row.stacks);
        let before = before
            .filter(|before| before.stack == stack.stack)
            .map(|before| before.tally);
        let before = culeak::analysis::report::Tally::total(before);
        let by = i128::from(stack.tally.bytes) - i128::from(before.bytes);
        let count = i128::from(stack.tally.count) - i128::from(before.count);
        page.blank();
        page.item(match (row.site.object, by) {
            (Some(_), _) => format!(
                "{}, growth {}",
                units::count(stack.tally.count),
                units::signed_count(count)
            ),
            (None, 0) => tally(stack.tally),
            (None, by) => format!("{}, growth {}", tally(stack.tally), units::signed_bytes(by)),
        });
        page.site_stack(&stack.site.stack, stack.truncated, 4);
    }
    let rest = "; culeak report --by stack shows all";
    page.more(row.stacks_in_all.saturating_sub(row.stacks.len()), "stack", rest);
}

/// What holds the memory of a call site.
pub fn holders(state: &State, line: &Line, page: &mut Document) {
    page.line(amount(line));
    if line.row.site.object.is_some() {
        return page.line("what holds objects without an address is not searched for");
    }
    let Some((process, reading)) = state.process().zip(state.reading()) else {
        return;
    };
    match &process.holders {
        Some(Ok(found)) => {
            let ago = units::duration(reading.at_ns.saturating_sub(found.at_ns));
            let took = units::duration(found.took_ns);
            page.line(dim(format!("searched {ago} ago, in {took}; w searches again")));
            match found.sites.iter().find(|site| site.site_fingerprint == line.row.key.0) {
                None => page.line("the call site held nothing then"),
                Some(site) => write_holders(site, MOST, 0, page),
            }
            let limits = found.limits.iter();
            limits.for_each(|limit| page.line(dim(format!("not searched: {limit}"))));
        }
        Some(Err(problem)) => page.line(styled(WARN, problem)),
        None => {}
    }
    if process.searching {
        page.line(dim("searching the memory of the process, which keeps running …"));
    }
}

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

/// The keys, and notes, for example on modules without symbols.
pub fn help(state: &State) -> Document {
    let mut page = Document::default();
    let keys = Rows::of(KEYS)
        .bare()
        .indent(0)
        .column("key", |(key, _)| Cell::Number((*key).to_owned()).styled(BOLD));
    page.table(keys.column("what it does", |(_, what)| *what));
    page.blank();
    page.line("The view reads the recording; w reads the memory of the process, which runs on.");
    if let Some(process) = state.process() {
        page.line(format!("recording: {}", process.recording.display()));
    }
    let notes = state.notes.iter();
    notes.for_each(|note| page.line(dim(format!("note: {note}"))));
    page
}

/// The list of processes, one line each, numbers before names.
pub fn processes(all: &[&Watched]) -> Document {
    let reading = |of: &&&Watched| of.reading.clone();
    let number = |number: Option<u32>| Cell::Number(number.map_or_else(String::new, |number| number.to_string()));
    let rank = |of: &&&Watched| reading(of).and_then(|reading| rank_of(&reading.process.ranks));
    let devices = |of: &&&Watched| {
        let devices = reading(of).map(|reading| reading.devices.clone()).unwrap_or_default();
        let ordinals = devices.iter().map(|device| device.ordinal.to_string());
        ordinals.collect::<Vec<_>>().join(",")
    };
    let peak = |of: &&&Watched| {
        let peaks = of.reading.iter().flat_map(|reading| &reading.devices);
        peaks.fold(0, |sum: u64, device| sum.saturating_add(device.peak_bytes))
    };
    let name = |of: &&&Watched| match (&of.problem, &of.reading) {
        (Some(problem), _) => problem.clone(),
        (None, Some(reading)) => name_of(&reading.process),
        (None, None) => culeak::analysis::site::file_name(&of.recording.display().to_string()).to_owned(),
    };
    let rows = Rows::of(all)
        .indent(0)
        .column_if(all.iter().any(|of| rank(&of).is_some()), "rank", |of| number(rank(of)))
        .column("host", |of| {
            reading(of).map_or_else(String::new, |reading| reading.process.host.clone())
        })
        .expendable(4)
        .column("pid", |of| number(reading(of).map(|reading| reading.process.pid)))
        .column("device", devices)
        .expendable(3)
        .column("held", |of| Cell::Size(of.on_devices()))
        .column("peak", |of| Cell::Size(peak(of)))
        .expendable(2)
        .column("growth/s", |of| match of.per_second().unwrap_or(0) {
            0 => Cell::Number(String::new()),
            by => Cell::Number(units::signed_bytes(by)).styled(style_of(by)),
        })
        .column("state", |of| {
            reading(of).map_or("", |reading| reading.process.state.name())
        })
        .column("program", name)
        .flexible();
    let mut page = Document::default();
    page.table(rows);
    page
}

/// `culeak: 8 processes, 7 running, have 1.2 GiB on devices, +20 MiB per second`.
pub fn sum_of_processes(all: &[&Watched]) -> Document {
    let held = all.iter().map(|of| of.on_devices()).fold(0, u64::saturating_add);
    let is_running = |of: &&&Watched| {
        of.reading
            .as_ref()
            .is_some_and(|reading| reading.process.state.name() == "running")
    };
    let running = units::count(all.iter().filter(is_running).count() as u64);
    let growth = match all.iter().filter_map(|of| of.per_second()).sum::<i128>() {
        0 => String::new(),
        growth => format!(", {} per second", units::signed_bytes(growth)),
    };
    let (processes, held) = (counted(all.len(), "process"), units::bytes(held));
    let mut page = Document::default();
    page.line(bold("culeak:") + format!(" {processes}, {running} running, have {held} on devices{growth}"));
    page
}
