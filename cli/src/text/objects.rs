//! Objects without an address as text: a line of totals, and the rows.

use std::io::{self, Write};

use culeak::analysis::objects::{ObjectRow, Objects};

use super::columns;
use super::parts::{self, BOLD, DIM, Styled};
use super::units::{self, plural};
use crate::escape::Escaped;

/// `128 stream, 40 graph-exec at 3 call sites`; `None` if there are none.
pub fn line(objects: &Objects) -> Option<String> {
    let live = objects.kinds.iter().filter(|kind| kind.live > 0);
    let kinds: Vec<String> = live
        .map(|of| format!("{} {}", units::count(of.live), of.kind))
        .collect();
    let sites = (objects.rows.len() + objects.hidden_rows) as u64;
    (!kinds.is_empty()).then(|| format!("{} at {}", kinds.join(", "), plural(sites, "call site", "call sites")))
}

/// The rows, with their stacks.
pub fn write(objects: &Objects, full_stacks: bool, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", Styled(BOLD, "objects without an address"))?;
    if objects.is_empty() {
        return writeln!(out, "  none was created\n");
    }
    for of in &objects.kinds {
        let text = format!(
            "  {:18} {:>9} live  {:>9} created  {:>9} destroyed",
            of.kind,
            units::count(of.live),
            units::count(of.created),
            units::count(of.destroyed)
        );
        writeln!(out, "{}", text.trim_end())?;
    }
    writeln!(out)?;
    for row in &objects.rows {
        title(row, out)?;
        parts::stack(out, &row.stack, full_stacks, "     ")?;
        if row.stacks_in_all > 1 {
            let more = plural(row.stacks_in_all as u64 - 1, "more stack", "more stacks");
            writeln!(out, "     {}", Styled(DIM, format!("and {more}")))?;
        }
        writeln!(out)?;
    }
    if objects.hidden_rows > 0 {
        let rows = plural(objects.hidden_rows as u64, "more row", "more rows");
        let text = format!(
            "  … and {rows} with {}; --top 0 shows all",
            plural(objects.hidden, "object", "objects")
        );
        writeln!(out, "{}\n", Styled(DIM, text))?;
    }
    Ok(())
}

/// `40 graph-exec  serve  server.cpp:88  (cuGraphInstantiateWithFlags; 2.1 s to 40 s old)`
fn title(row: &ObjectRow, out: &mut dyn Write) -> io::Result<()> {
    let name = row
        .stack
        .site()
        .map_or("(no stack)".to_owned(), |site| parts::short_name(&site.name()));
    let place = parts::place(row.stack.site());
    let ages = match row.count {
        1 => format!("{} old", units::duration(row.oldest_age_ns)),
        _ => format!(
            "{} to {} old",
            units::duration(row.newest_age_ns),
            units::duration(row.oldest_age_ns)
        ),
    };
    let text = format!(
        "  {} {}  {name}{place}  ({}; {ages})",
        units::count(row.count),
        row.kind,
        Escaped(row.api)
    );
    match columns::available() {
        Some(width) => writeln!(out, "{}", columns::shortened(&text, width)),
        None => writeln!(out, "{text}"),
    }
}
