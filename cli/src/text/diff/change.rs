//! A change in words: what grew and by how much, the state of a row and its style, and the stack of a row.

use anstyle::Style;
use culeak::analysis::diff::{DiffRow, State};
use culeak::analysis::report::{By, Tally};
use culeak::analysis::site::Frame;

use crate::document::{BAD, DIM, Document, GOOD, PLAIN, Site, dim};
use crate::text::{parts, units};

/// What is shown of a row's stack.
#[derive(Debug, Clone, Copy)]
pub enum RowStack {
    /// The callers of the call site, in one line.
    Callers,
    /// Every frame; with `full`, also those inside the CUDA runtime and below `main`.
    Whole { full: bool },
}

/// Writes a row's stack below it; `places`: also those of callers, if the stack is one line.
pub fn write_stack(row: &DiffRow, stacks: RowStack, places: bool, page: &mut Document) {
    match stacks {
        RowStack::Callers => callers(row, places, page),
        RowStack::Whole { full } => page.stack(&row.stack, full, 12),
    }
}

/// `grew by 12 MiB`; `+12 MiB between two runs`.
pub fn changed(same_process: bool, delta: i128) -> String {
    let size = units::bytes(u64::try_from(delta.unsigned_abs()).unwrap_or(u64::MAX));
    match (same_process, delta) {
        (true, 0..) => format!("grew by {size}"),
        (true, _) => format!("shrank by {size}"),
        (false, _) => format!("{} between two runs", units::signed_bytes(delta)),
    }
}

pub fn style_of(delta: i128) -> Style {
    match delta {
        1.. => BAD,
        0 => PLAIN,
        _ => GOOD,
    }
}

/// The word for a state, and its style.
pub fn state(state: State) -> (&'static str, Style) {
    match state {
        State::New => ("new", BAD),
        State::Grown => ("grown", BAD),
        State::Shrunk => ("shrunk", GOOD),
        State::Gone => ("gone", GOOD),
        State::Unchanged => ("same", DIM),
    }
}

/// Whose memory it is, unless the program's own.
pub fn mark(row: &DiffRow) -> String {
    parts::mark_of(row.pool, row.stack.allocator, row.stack.library)
}

/// `size=40 MiB (+12 MiB), count=4 (+1), average=10 MiB`.
pub fn sizes(after: Tally, bytes: i128, count: i128) -> String {
    let average = after.bytes.checked_div(after.count).unwrap_or(0);
    format!(
        "size={} ({}), count={} ({}), average={}",
        units::bytes(after.bytes),
        units::signed_bytes(bytes),
        units::count(after.count),
        units::signed_count(count),
        units::bytes(average)
    )
}

/// The callers of a call site at which its stacks part, with their changes.
const CALLERS_SHOWN: usize = 3;

fn callers_apart(row: &DiffRow, page: &mut Document) {
    let changed: Vec<_> = (row.callers.iter())
        .filter(|of| of.change.before != of.change.after)
        .collect();
    for of in changed.iter().take(CALLERS_SHOWN) {
        let caller = match &of.caller {
            Some(caller) => parts::with_place(&Site::of(&caller.name(), Some(caller), "")),
            None => "(no other caller)".to_owned(),
        };
        let change = of.change;
        let sizes = sizes(change.after, change.bytes(), change.count());
        page.indented(12, dim(format!("← {caller}: {sizes}")));
    }
    // The largest changes are kept: beyond one that did not change, none did.
    let beyond = match changed.len() == row.callers.len() {
        true => row.callers_in_all - row.callers.len(),
        false => 0,
    };
    let more = changed.len().saturating_sub(CALLERS_SHOWN) + beyond;
    page.more_at(12, more, "caller", "; --by stack shows each");
}

/// The callers of the call site in one line: rows of one call site differ in them.
fn callers<'r>(row: &'r DiffRow<'r>, places: bool, page: &mut Document) {
    if row.by == By::Forward {
        return;
    }
    if !row.callers.is_empty() {
        return callers_apart(row, page);
    }
    let caller = |frame: &Frame<'r>| {
        let library = frame.python_library().filter(|_| row.stack.has_user());
        (Site::of(&frame.name(), Some(frame).filter(|_| places), ""), library)
    };
    let through = parts::through([&row.stack]).filter(|_| row.by == By::Stack);
    let callers = parts::callers(&row.stack.callers().map(caller).collect::<Vec<_>>());
    let line: Vec<String> = through.into_iter().chain(callers).collect();
    if !line.is_empty() {
        page.indented(12, dim(line.join(", ")));
    }
}
