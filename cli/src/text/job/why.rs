//! What holds the memory of a job: one line for each shape of path, with the processes that hold it.

use culeak::analysis::job::why::{HolderRow, JobWhy};
use culeak::analysis::report::shell_word;
use culeak::snapshot::Class;

use super::part;
use crate::document::{BAD, Cell, Document, PLAIN, Rows, Site, WARN, bold, counted, dim, styled};
use crate::text::parts;

/// `selected`: the options that select the memory, for the next command.
pub fn page(why: &JobWhy, selected: &str) -> Document {
    let mut page = Document::default();
    let (processes, hosts) = (counted(why.processes.len(), "process"), counted(why.hosts, "host"));
    page.line(bold(format!(
        "what holds {} of {processes} on {hosts}",
        parts::tally(why.total)
    )));
    match why.holders.is_empty() {
        true => page.line("no holder is listed"),
        false => holders(why, &mut page),
    }
    let hidden = parts::tally(why.hidden);
    page.more(
        why.hidden_holders,
        "row",
        format!(" with {hidden}; --top 0 --min-bytes 0 shows all"),
    );
    let others = [
        (why.changed, "changed during the search"),
        (why.not_searched, "was not searched"),
    ];
    for (tally, what) in others.into_iter().filter(|(tally, _)| tally.count > 0) {
        page.line(dim(format!("{} {what}", parts::tally(tally))));
    }
    if !why.unreadable.is_empty() {
        page.line(styled(
            WARN,
            format!("without an answer: {}", counted(why.unreadable.len(), "input")),
        ));
    }
    if let Some(first) = why.holders.first() {
        page.next(format!("culeak why {}{selected}", shell_word(&first.largest)));
    }
    page
}

fn holders(why: &JobWhy, page: &mut Document) {
    let style = |row: &&HolderRow| match (row.stands_out, row.class) {
        (true, _) => BAD,
        (false, Class::Held) => PLAIN,
        (false, _) => WARN,
    };
    let held_by = |row: &&HolderRow| {
        let gap = if row.path.is_empty() { "" } else { " " };
        format!("{}{gap}{}  {}", row.origin, row.path, row.sentence)
    };
    let rows = Rows::of(&why.holders)
        .column("sum", |row| Cell::Size(row.tally.bytes))
        .column("median", |row| Cell::Size(row.range.median.unsigned_abs()))
        .column("processes", |row| part(row.range.above, row.range.of_processes))
        .column_if(why.programs.len() > 1, "program", |row| row.program.to_string())
        .column("call site", |row| Site::at(&row.label, row.place.as_deref(), ""))
        .column("held by", held_by)
        .style(style);
    page.table(rows);
}
