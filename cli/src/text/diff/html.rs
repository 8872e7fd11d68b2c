//! A diff as a page of HTML with graphs.

use std::io::{self, Write};

use culeak::analysis::diff::{Diff, DiffRow, Options};
use culeak::analysis::report::{self, By, Report};
use culeak::analysis::words;

use super::change::{RowStack, mark, state, style_of, write_stack};
use super::page_around;
use super::side_by_side::{self, Side};
use crate::document::{Cell, Document, Rows, Site, styled};
use crate::html::{Graphs, ROWS_WITH_STACKS, Section, write_sections};
use crate::text::parts;
use crate::text::report::sums;

/// Writes the whole page.
pub fn write(sides: [Side; 2], options: &Options, full_stacks: bool, out: &mut dyn Write) -> io::Result<()> {
    let [(before, _), (after, _)] = sides;
    let mut graphs = Graphs::new(full_stacks, true);
    graphs.add_diff(before, after, options);
    let options = Options {
        top: Some(options.top.unwrap_or(ROWS_WITH_STACKS).min(ROWS_WITH_STACKS)),
        ..options.clone()
    };
    let diff = Diff::of(before, after, &options);
    let stacks = RowStack::Whole { full: full_stacks };
    let document = page_around(&diff, stacks, |page| {
        page.heading(match diff.by {
            By::Site => "Call sites",
            By::Forward => "Forward lines",
            _ => "Stacks",
        });
        page.table(rows(&diff, stacks));
        page.more(diff.hidden_rows, "row", "; the graph has all");
    });
    let mut below = Document::default();
    // Charts are of all memory.
    if !diff.same_process && options.filter.is_empty() {
        side_by_side::write(sides, &mut below);
    }
    for (name, snapshot) in [("before", before), ("after", after)] {
        let options = report::Options {
            by: By::Kind,
            ..report::Options::default()
        };
        let report = Report::of(snapshot, &options);
        below.heading(format!("Not recorded {name}"));
        let mut all = Document::default();
        all.fields(sums::losses(&report, true));
        below.folded("all counts", all);
    }
    let title = format!("culeak diff: {}", parts::process(&diff.after.process));
    let name = String::new();
    write_sections(&title, &[Section { name, document, below }], Some(graphs), out)
}

fn rows<'d, 'a>(diff: &'d Diff<'a>, stacks: RowStack) -> Rows<&'d DiffRow<'a>> {
    let change = |row: &&DiffRow| Cell::Delta(row.bytes_delta, row.estimated).styled(style_of(row.bytes_delta));
    let blocks = |row: &&DiffRow| {
        let about = parts::about(row.estimated.is_some());
        let [before, after] = row.blocks().map(|side| i128::from(side.count));
        Cell::Number(format!("{about}{}", words::signed_count(after - before)))
    };
    let site = |row: &&DiffRow| Site::of(&row.label, row.site(), mark(row));
    Rows::of(&diff.rows)
        .column("change", change)
        .column("blocks", blocks)
        .column("state", |row| styled(state(row.state).1, state(row.state).0))
        .column("call site", site)
        .column("after", |row| Cell::Size(row.after.bytes))
        .expendable(1)
        .column("before", |row| Cell::Size(row.before.bytes))
        .expendable(1)
        .column("kind", |row| row.kinds.join(", "))
        .expendable(1)
        .below(|row, page| write_stack(row, stacks, true, page))
}
