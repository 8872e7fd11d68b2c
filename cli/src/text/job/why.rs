//! What holds the memory of a job, as text: one line for each shape of path, with the processes that hold it.

use std::io::{self, Write};

use culeak::analysis::job::why::{HolderRow, JobWhy};
use culeak::analysis::report::shell_word;
use culeak::snapshot::Class;

use super::Table;
use crate::escape::Escaped;
use crate::text::parts::{self, BAD, BOLD, DIM, PLAIN, Styled, WARN};
use crate::text::units::{self, plural};

pub fn write(why: &JobWhy, out: &mut dyn Write) -> io::Result<()> {
    let processes = plural(why.processes.len() as u64, "process", "processes");
    let hosts = plural(why.hosts as u64, "host", "hosts");
    let held = parts::tally(why.total);
    writeln!(
        out,
        "{}",
        Styled(BOLD, format!("what holds {held} of {processes} on {hosts}"))
    )?;
    if why.holders.is_empty() {
        writeln!(out, "no holder is listed")?;
    } else {
        holders(why, out)?;
    }
    if why.hidden_holders > 0 {
        let more = plural(why.hidden_holders as u64, "more row", "more rows");
        let more = format!(
            "… and {more} with {}; --top 0 --min-bytes 0 shows all",
            parts::tally(why.hidden)
        );
        writeln!(out, "  {}", Styled(DIM, more))?;
    }
    for (tally, what) in [
        (why.changed, "changed during the search"),
        (why.not_searched, "was not searched"),
    ] {
        if tally.count > 0 {
            writeln!(out, "{}", Styled(DIM, format!("{} {what}", parts::tally(tally))))?;
        }
    }
    if !why.unreadable.is_empty() {
        let count = plural(why.unreadable.len() as u64, "input", "inputs");
        writeln!(out, "{}", Styled(WARN, format!("without an answer: {count}")))?;
    }
    match why.holders.first() {
        Some(first) => parts::next(out, &format!("culeak why {}", shell_word(&first.largest))),
        None => Ok(()),
    }
}

fn holders(why: &JobWhy, out: &mut dyn Write) -> io::Result<()> {
    let has_programs = why.programs.len() > 1;
    let row = |row: &HolderRow| {
        let style = match (row.stands_out, row.class) {
            (true, _) => BAD,
            (false, Class::Held) => PLAIN,
            (false, _) => WARN,
        };
        let place = row
            .place
            .iter()
            .map(|place| format!(" {}", Escaped(place)))
            .collect::<String>();
        let mut cells = vec![
            units::bytes(row.tally.bytes),
            units::bytes(row.median_bytes),
            format!("{}/{}", units::count(row.processes), units::count(row.of_processes)),
            format!("{}{place}", parts::short_name(&row.label)),
            format!(
                "{}{}  {}",
                Escaped(&row.origin),
                joined(&row.path),
                Escaped(&row.sentence)
            ),
        ];
        if has_programs {
            cells.insert(3, Escaped(&row.program.to_string()).to_string());
        }
        (style, cells)
    };
    let (mut header, mut right) = (
        vec!["sum", "median", "processes", "call site", "held by"],
        vec![true, true, true, false, false],
    );
    if has_programs {
        header.insert(3, "program");
        right.insert(3, false);
    }
    let table = Table {
        header,
        right,
        rows: why.holders.iter().map(row).collect(),
    };
    table.write(out)
}

/// The path behind its origin.
fn joined(path: &str) -> String {
    match path.is_empty() {
        true => String::new(),
        false => format!(" {}", Escaped(path)),
    }
}
