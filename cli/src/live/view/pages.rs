//! What stands below the header, as documents: the tables, stacks, holders and the ledger of a report.

use std::ops::Range;

use super::super::ask::{Answer, Asked};
use super::super::processes::ProcessRow;
use super::super::reading::Reading;
use super::super::rows::{Row, StackRow};
use super::super::state::State;
use crate::document::{BOLD, Cell, Document, Rows, Site, Text, WARN, bold, counted, dim, styled};
use crate::escape::Escaped;
use crate::text::diff::{state as change, style_of};
use crate::text::parts::tally;
use crate::text::units;
use crate::text::why::write_holders;

/// Limits the time that drawing takes.
const MOST: usize = 200;

/// The call sites at these places of the list, one line each. `wide`: with their kinds.
pub fn sites(state: &State, places: Range<usize>, wide: bool) -> Document {
    let now_ns = state.reading_shown().map_or(0, |reading| reading.at_ns);
    let bytes = |row: &&Row| match row.object() {
        Some(_) => Cell::Number("-".to_owned()),
        None => Cell::Size(row.of.after.bytes),
    };
    let growth = |row: &&Row| match row.object() {
        Some(_) => changed(row.of.count(), units::signed_count),
        None => changed(row.of.bytes(), units::signed_bytes),
    };
    let oldest = |row: &&Row| match row.of.after.count {
        0 => Cell::Number(String::new()),
        // Not known of a process that was never recorded.
        _ if row.oldest_ns == u64::MAX => Cell::Number(String::new()),
        _ => Cell::Time(now_ns.saturating_sub(row.oldest_ns)),
    };
    let rows = Rows::of(places.filter_map(|place| state.row(place)))
        .indent(0)
        .column_if(state.diff, "", |row| {
            let (word, style) = change(row.state());
            styled(style, word)
        })
        .column("bytes", bytes)
        .column("count", |row| Cell::Count(row.of.after.count))
        .expendable(2)
        .column("growth", growth)
        .column_if(wide, "+count", |row| changed(row.of.count(), units::signed_count))
        .column_if(!state.diff, "oldest", oldest)
        .rank("oldest", 3)
        .column(one_row(state), |row| site(row, wide));
    let mut page = Document::default();
    page.table(rows);
    page
}

/// What a row is; of a process that was never recorded, a holder.
pub fn one_row(state: &State) -> &'static str {
    match state.reading_shown() {
        Some(reading) if reading.process.recording.is_empty() => "holder",
        _ => "call site",
    }
}

fn changed(by: i128, write: fn(i128) -> String) -> Cell {
    Cell::Number(if by == 0 { String::new() } else { write(by) }).styled(style_of(by))
}

/// The kind tells the rows of objects of one call site apart.
fn site(row: &Row, wide: bool) -> Site {
    let kinds = match row.object() {
        Some(kind) => format!("  {}", kind.name()),
        None if wide => format!("  {}", row.kinds),
        None => String::new(),
    };
    let place = row.named.site.place.as_deref();
    Site {
        // It is without parameters already; a holder is no function.
        name: Escaped(row.label()).to_string(),
        ..Site::at("", place, format!("{}{kinds}", row.mark()))
    }
}

/// In place of rows.
pub fn nothing(state: &State) -> &'static str {
    match (state.reading_shown(), state.rows.rows.is_empty()) {
        (None, _) => "",
        (Some(_), true) => "no live memory",
        (Some(_), false) if !state.filter.is_empty() => "no call site matches the filter; press esc to clear it",
        (Some(_), false) => "nothing changed",
    }
}

/// A page about the selected call site.
pub fn of_selected(state: &State, write: fn(&State, &Row, &mut Document)) -> Document {
    let mut page = Document::default();
    match state.selected_row().filter(|row| Some(row.key) == state.selected) {
        Some(row) => {
            let site = site(row, false);
            page.line(bold(format!("{}  {}", site.name, site.place)) + dim(site.mark));
            write(state, row, &mut page);
        }
        None => page.item(dim("this call site has no live memory any more; press esc to go back")),
    }
    page
}

pub fn stacks(state: &State, row: &Row, page: &mut Document) {
    let now_ns = state.reading_shown().map_or(0, |reading| reading.at_ns);
    let stacks = counted(row.stacks.len(), "stack");
    let (amount, growth) = match row.object() {
        Some(kind) => (
            objects(row.of.after.count, kind.name()),
            units::signed_count(row.of.count()),
        ),
        None => (tally(row.of.after), units::signed_bytes(row.of.bytes())),
    };
    page.line(format!("{amount} from {stacks}, growth {growth}"));
    for stack in row.stacks.iter().take(MOST) {
        page.blank();
        page.item(sums(stack, row.object().is_some(), now_ns));
        page.site_stack(&stack.named.site.stack, stack.named.truncated, 4);
    }
    let rest = "; culeak report --by stack shows all";
    page.more(row.stacks.len().saturating_sub(MOST), "stack", rest);
}

/// `21 stream objects`.
fn objects(count: u64, kind: &str) -> String {
    counted(count, &format!("{kind} object"))
}

fn sums(stack: &StackRow, of_objects: bool, now_ns: u64) -> String {
    let growth = match of_objects {
        true => (stack.of.count(), units::signed_count(stack.of.count())),
        false => (stack.of.bytes(), units::signed_bytes(stack.of.bytes())),
    };
    let growth = match growth {
        (0, _) => String::new(),
        (_, growth) => format!(", growth {growth}"),
    };
    let age = |time_ns: u64| units::duration(now_ns.saturating_sub(time_ns));
    let ages = match stack.of.after.count {
        0 => String::new(),
        _ if stack.oldest_ns == u64::MAX => String::new(),
        1 => format!(", {} old", age(stack.oldest_ns)),
        _ => format!(", oldest {}, newest {}", age(stack.oldest_ns), age(stack.newest_ns)),
    };
    match of_objects {
        true => format!(
            "{}{ages}{growth}",
            objects(stack.of.after.count, &stack.kinds.to_string())
        ),
        false => format!("{}, {}{ages}{growth}", tally(stack.of.after), stack.kinds),
    }
}

/// What holds the memory of a call site.
pub fn holders(state: &State, row: &Row, page: &mut Document) {
    if let Some(kind) = row.object() {
        let objects = objects(row.of.after.count, kind.name());
        return page.line(format!(
            "{objects}: what holds objects without an address is not searched for"
        ));
    }
    page.line(tally(row.of.after));
    let Some(process) = state.process() else { return };
    if let Some(answer) = answer(
        &process.holders,
        "searching the memory of the process, which keeps running …",
        page,
    ) {
        let (ago, took) = (ago(state, answer), units::duration(answer.took_ns));
        page.line(dim(format!("searched {ago} ago, in {took}; w searches again")));
        match answer.sites.iter().find(|site| site.site_fingerprint == row.key.0) {
            None => page.line("the call site held nothing then"),
            Some(site) => write_holders(site, MOST, 0, page),
        }
        let limits = answer.limits.iter();
        limits.for_each(|limit| page.line(dim(format!("not searched: {limit}"))));
    }
}

/// What holds each byte of the devices.
pub fn ledger(state: &State) -> Document {
    let mut page = Document::default();
    let Some(process) = state.process() else { return page };
    if let Some(answer) = answer(&process.ledger, "adding up the ledger …", &mut page) {
        page.append(answer.ledger.clone());
        page.line(dim(format!("read {} ago", ago(state, answer))));
    }
    page
}

/// The answer, if there is one. `waiting`: in place of the first one.
fn answer<'a>(asked: &'a Asked, waiting: &str, page: &mut Document) -> Option<&'a Answer> {
    match &asked.answer {
        Some(Ok(answer)) => return Some(answer),
        Some(Err(problem)) => page.line(styled(WARN, problem)),
        None => {}
    }
    if asked.waiting {
        page.line(dim(waiting));
    }
    None
}

fn ago(state: &State, answer: &Answer) -> String {
    let now_ns = state.reading_shown().map_or(0, |reading| reading.at_ns);
    units::duration(now_ns.saturating_sub(answer.at_ns))
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
    state
        .notes
        .iter()
        .for_each(|note| page.line(dim(format!("note: {note}"))));
    page
}

/// The list of processes, one line each, numbers before names.
pub fn processes(all: &[ProcessRow]) -> Document {
    let optional = |number: Option<u32>| number.map_or_else(String::new, |number| number.to_string());
    let devices = |row: &&ProcessRow| row.devices.iter().map(i32::to_string).collect::<Vec<_>>().join(",");
    let growth = |row: &&ProcessRow| changed(row.per_second.unwrap_or(0), units::signed_bytes);
    let name = |row: &&ProcessRow| row.problem.as_ref().unwrap_or(&row.name).clone();
    let rows = Rows::of(all)
        .indent(0)
        .column_if(all.iter().any(|row| row.rank.is_some()), "rank", |row| {
            Cell::Number(optional(row.rank))
        })
        .column("host", |row| row.host.as_str())
        .expendable(4)
        .column("pid", |row| Cell::Number(optional(row.pid)))
        .column("device", devices)
        .expendable(3)
        .column("held", |row| Cell::Size(row.on_devices.bytes))
        .column("peak", |row| Cell::Size(row.peak_bytes))
        .expendable(2)
        .column("growth/s", growth)
        .column("state", |row| row.state)
        .column("program", name)
        .flexible();
    let mut page = Document::default();
    page.table(rows);
    page
}

/// `culeak: 8 processes, 7 running, have 1.2 GiB on devices, +20 MiB per second`.
pub fn sum_of_processes(all: &[ProcessRow]) -> Text {
    let held = all.iter().map(|row| row.on_devices.bytes).fold(0, u64::saturating_add);
    let running = all.iter().filter(|row| row.state == "running").count();
    let growth = match all.iter().filter_map(|row| row.per_second).sum::<i128>() {
        0 => String::new(),
        growth => format!(", {} per second", units::signed_bytes(growth)),
    };
    let (processes, running) = (counted(all.len(), "process"), units::count(running as u64));
    let text = format!(
        " {processes}, {running} running, have {} on devices{growth}",
        units::bytes(held)
    );
    bold("culeak:") + text
}

/// The last error, how the program ended, and the losses that occurred.
pub fn losses(state: &State) -> Text {
    let ended = state.ended.iter().map(|ended| format!("{ended} · "));
    if let Some(problem) = state.process().and_then(|process| process.problem.as_ref()) {
        return styled(WARN, problem);
    }
    let Some(reading) = state.reading_shown() else {
        return Text::default();
    };
    let sampled = reading.sample_bytes.map(|bytes| {
        format!(
            "call sites are estimates (≈) from a stack for each {} · ",
            units::bytes(bytes)
        )
    });
    let text: String = ended.chain(sampled).chain([not_recorded(reading)]).collect();
    match reading.losses.lost_allocations + reading.losses.lost_stacks {
        0 => dim(text),
        _ => styled(WARN, text),
    }
}

fn not_recorded(reading: &Reading) -> String {
    let losses = &reading.losses;
    let counts = [
        (losses.lost_allocations, "allocation"),
        (losses.lost_stacks.saturating_add(losses.lost_python), "stack"),
        (losses.unknown_frees, "unknown free"),
    ];
    let mut texts: Vec<String> = (counts.into_iter().filter(|(count, _)| *count > 0))
        .map(|(count, noun)| counted(count, noun))
        .collect();
    if reading.events_during_read > 0 {
        texts.push(format!(
            "{} during the read",
            counted(reading.events_during_read, "event")
        ));
    }
    match texts.as_slice() {
        [] => "not recorded: nothing lost".to_owned(),
        texts => format!("not recorded: {}", texts.join(", ")),
    }
}

/// What is typed into the filter.
pub fn typed(state: &State) -> Text {
    bold(format!("filter: {}▏", state.filter)) + dim("  (enter: apply, esc: clear)")
}
